"""Operators that must run even if nobody reads their result (Section 4.6): they may raise, or do nobody knows what.

An exception is part of what a program does. ``x[i]`` with a subscript out of range raises in eager execution whether
or not its value is used, so it must not be removed as dead, and a value computed only in part must not hide the
subscript in the other part. Which operators look at *data* before they decide to raise is not in their schemas; the
list stands here. What depends on shapes and dtypes alone was decided when the sample ran.

Of an operator that is neither PyTorch's nor the compiler's own (``torch.library``) nothing is known: it may log, count
or send. It runs as often as the program says.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import torch

# Namespaces whose operators do nothing but what their schemas say.
_OWN = frozenset({"aten", "prim", "prims", "quantized", "mkldnn", "mkl", "_quantized", "staxlab"})

_SUBSCRIPTS = (
    "index index_put _index_put_impl index_select index_add index_copy index_fill index_reduce gather scatter "
    "scatter_add scatter_reduce take put embedding embedding_bag _embedding_bag _embedding_bag_forward_only "
    "embedding_renorm segment_reduce repeat_interleave masked_scatter max_unpool2d max_unpool3d lu_unpack"
)
_LOSSES = (
    "nll_loss nll_loss_nd nll_loss_forward nll_loss2d nll_loss2d_forward multi_margin_loss multilabel_margin_loss "
    "multilabel_margin_loss_forward ctc_loss _ctc_loss binary_cross_entropy"
)
_LINEAR_ALGEBRA = (
    "_linalg_check_errors linalg_eig linalg_eigvals _linalg_eigvals _linalg_eigh _linalg_svd linalg_lstsq cholesky "
    "linalg_cholesky linalg_inv linalg_solve linalg_lu_factor linalg_ldl_factor linalg_eigh linalg_svd linalg_svdvals"
)
_OTHERS = "_assert_async histc bincount"
_MAY_FAIL = frozenset(f"{_SUBSCRIPTS} {_LOSSES} {_LINEAR_ALGEBRA} {_OTHERS}".split())
_DIVISIONS = frozenset({"div", "divide", "floor_divide", "remainder", "fmod", "__rmod__"})


def may_fail(func: Any, args: tuple = ()) -> bool:
    """Whether the operator may raise on account of its arguments' elements. ``args`` may hold anything with a
    ``dtype`` where tensors go, or with a ``val`` or ``layout`` that has one."""
    return _listed(func) or (func._opname in _DIVISIONS and func.namespace == "aten" and _divides_integers(args))


@lru_cache(maxsize=4096)
def _listed(func: Any) -> bool:
    return func.namespace == "aten" and func._opname.rstrip("_") in _MAY_FAIL


@lru_cache(maxsize=4096)
def is_foreign(func: Any) -> bool:
    """Whether the operator is somebody's own, so that its effects are unknown."""
    return func.namespace not in _OWN


def _divides_integers(args: tuple) -> bool:
    """An integer divided by zero raises; true division is never one of integers, since it yields floats."""
    if len(args) < 2:
        return False
    dtypes = [_dtype(argument) for argument in args[:2]]
    floats = any(isinstance(argument, float) for argument in args[:2])
    return dtypes[1] is not None and not floats and not any(d.is_floating_point or d.is_complex for d in dtypes if d)


def _dtype(argument: Any) -> torch.dtype | None:
    for part in (argument, getattr(argument, "val", None), getattr(argument, "layout", None)):
        dtype = getattr(part, "dtype", None)
        if isinstance(dtype, torch.dtype):
            return dtype
    return None
