"""Which operators are taken apart, which write, which are random (Section 4.8).

The decomposition set is built from two things: PyTorch's table of rules and the back end's basis (Definition 4.2). An
operator is decomposed only if it is outside the basis, has a rule, and draws no random numbers. Decomposition is the
second choice: a dedicated rule computes a softmax in fewer passes than the operators it is made of.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from ..capture.failing import is_foreign, may_fail
from .decompositions import DECOMPOSITIONS

# Operators that write into an argument although their schema does not say so: {overload name: (flag position, written
# positions)}; they write when the flag argument is true and the written arguments are given.
_HIDDEN_WRITES = {
    "aten::native_batch_norm": (5, (3, 4)),
    "aten::cudnn_batch_norm": (5, (3, 4)),
    "aten::miopen_batch_norm": (5, (3, 4)),
}


# cuDNN's batch norm. Its rules say the same by the operator that is known here, and its schema hides what it writes.
LIBRARY_NORMS = frozenset({torch.ops.aten.cudnn_batch_norm.default, torch.ops.aten.cudnn_batch_norm_backward.default})

# Operators whose third argument asks for singular or eigenvectors as well, and functions that need none. Those leave
# them out in eager execution, but not when a dispatch mode looks on: then they ask for what a derivative would need.
# The values alone come from another routine, which rounds differently.
VECTORS_TOO = frozenset({torch.ops.aten._linalg_svd.default, torch.ops.aten._linalg_eigh.default})
SPECTRA = frozenset(
    "svdvals linalg_svdvals eigvalsh linalg_eigvalsh cond linalg_cond matrix_rank linalg_matrix_rank norm linalg_norm "
    "matrix_norm linalg_matrix_norm nuclear_norm".split()
)


@lru_cache(maxsize=4096)
def is_random(func: Any) -> bool:
    """Whether an operator draws from a random number generator."""
    return torch.Tag.nondeterministic_seeded in func.tags


def has_effect(func: Any, args: tuple = ()) -> bool:
    """Whether a call must run though nobody reads its results: it writes, draws random numbers, may raise, or does what
    nobody knows. ``args`` as for :func:`.capture.failing.may_fail`."""
    return is_random(func) or func._schema.is_mutable or may_fail(func, args) or is_foreign(func)


# Operators whose rule in PyTorch's table is one primitive of another dialect. It would be refused, after its first use
# had imported half of torch.compile.
_WITHOUT_PARTS = frozenset(
    "digamma erfinv frexp gcd i0 igamma igammac lcm special_bessel_j0 special_bessel_j1 special_erfcx special_i0e "
    "special_i1 special_i1e special_ndtri special_spherical_bessel_j0 special_zeta".split()
)


_INTERPOLATING = ("upsample", "_upsample", "linspace", "logspace")


def is_faithful(func: Any, args: tuple, kwargs: dict[str, Any]) -> bool:
    """Whether the table's rule for ``func`` computes what the operator does. Between integers, interpolating rules
    round elsewhere than the operators, which shows in one value of a hundred."""
    dtype = kwargs.get("dtype") or next((x.dtype for x in args[:1] if isinstance(x, torch.Tensor)), None)
    integers = dtype is not None and not dtype.is_floating_point
    return not (integers and func._opname.startswith(_INTERPOLATING))


@lru_cache(maxsize=4096)
def is_view(func: Any) -> bool:
    """Whether an operator's results look at its first argument's memory."""
    return any(r.alias_info is not None and not r.alias_info.is_write for r in func._schema.returns)


@lru_cache(maxsize=4096)
def decomposition_of(func: Any) -> Callable[..., Any] | None:
    """The rule that takes ``func`` apart: ours, a composite operator's own body, PyTorch's table's, or None.

    An operator that writes into its arguments has none: a rule would run its writes on the sample, and if it then
    failed they could not be taken back.
    """
    from torch._decomp import decomposition_table

    if func._schema.is_mutable or func._opname in _WITHOUT_PARTS:
        return None
    if func in DECOMPOSITIONS:
        return DECOMPOSITIONS[func]
    if func._can_decompose():
        return func.decompose
    return decomposition_table.get(func)


@lru_cache(maxsize=4096)
def _written_places(func: Any) -> tuple[tuple[int, str], ...]:
    return tuple(
        (place, argument.name)
        for place, argument in enumerate(func._schema.arguments)
        if argument.alias_info is not None and argument.alias_info.is_write
    )


def written_arguments(func: Any, args: tuple, kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The tensors a call writes into, according to the operator's schema (and a short list of schemas that lie)."""
    written: list[torch.Tensor] = []
    for place, name in _written_places(func):
        value = args[place] if place < len(args) else kwargs.get(name)
        values = value if isinstance(value, (list, tuple)) else [value]
        written += [tensor for tensor in values if isinstance(tensor, torch.Tensor)]
    hidden = _HIDDEN_WRITES.get(func._schema.name)
    if hidden is not None and len(args) > hidden[0] and args[hidden[0]]:
        written += [args[place] for place in hidden[1] if isinstance(args[place], torch.Tensor)]
    return written


@lru_cache(maxsize=1024)
def _schema_arguments(func: Any) -> tuple[tuple[str, bool, bool, Any], ...]:
    return tuple((a.name, a.kwarg_only, a.has_default_value(), a.default_value) for a in func._schema.arguments)


def complete_arguments(func: Any, args: tuple, kwargs: dict[str, Any]) -> tuple[tuple, dict[str, Any]]:
    """The call with its schema's defaults filled in, as Listing 5.1 shows them (``alpha=1``); ``None`` defaults of
    keyword-only arguments are left out, they say nothing."""
    positional = list(args)
    named = dict(kwargs)
    for place, (name, keyword_only, has_default, default) in enumerate(_schema_arguments(func)):
        if keyword_only:
            if name not in named and has_default and default is not None:
                named[name] = default
        elif place >= len(positional):
            if name in named:
                positional.append(named.pop(name))
            elif has_default:
                positional.append(list(default) if isinstance(default, list) else default)
            else:
                break
    return tuple(positional), named
