"""Scans: all prefixes of a reduction along one dimension (Section 6.3; Table 6.1).

``y(i) = merge over r <= i of f(r)``. Unlike a sum, a scan is defined by the order of its axis, and PyTorch's results
say in which precision it is merged: on a CPU sums and products of float32 are accumulated in float64 and those of half
precision in float32, on a GPU both in float32. What eager execution stores is then rounded once per element, so the
results are the same bit for bit, as long as nobody regroups the additions; nobody does on a CPU.

Sums begin with 0 and logarithms of sums with -inf, both of which turn a first element of -0.0 into +0.0.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..ops import Ops, compute_dtype
from .call import Call
from .registry import lowering
from .unary import cast
from .values import TensorValue


def accumulator(call: Call, dtype: torch.dtype) -> torch.dtype:
    """The dtype in which PyTorch keeps the running value of a scan whose result has ``dtype``."""
    if dtype == torch.float32 and not call.lowering.device.is_gpu:
        return torch.float64
    return compute_dtype(dtype)


def _accumulated(
    call: Call, kind: str, x: TensorValue, dim: int, dtype: torch.dtype, begin: Callable[[Ops, Any], Any] | None
) -> TensorValue:
    """A scan of the elements converted to ``dtype`` and merged in its accumulator; ``begin`` is what merging with the
    value that eager execution starts from does to an element."""
    if x.dtype != dtype:
        x = cast(call, x, dtype)
    if not x.ndim:
        return x if x.dtype != dtype else call.pointwise(lambda ops, a: a, x, shape=(), dtype=dtype)
    wide = accumulator(call, dtype)
    if begin is not None and dtype.is_floating_point:
        x = call.pointwise(begin, x, shape=x.shape, dtype=wide, operand_dtype=wide)
    return call.scan(kind, x, dim, dtype=dtype, accumulate_dtype=wide)


def _plus_zero(ops: Ops, value: Any) -> Any:
    return ops.add(value, ops.constant(0.0, ops.dtype_of(value)))


@lowering("cumsum", kind="scan")
def lower_cumsum(call: Call, x: TensorValue, dim: int, *, dtype: torch.dtype | None = None) -> TensorValue:
    return _accumulated(call, "sum", x, dim, call.meta.dtype, _plus_zero)


@lowering("cumprod", kind="scan")
def lower_cumprod(call: Call, x: TensorValue, dim: int, *, dtype: torch.dtype | None = None) -> TensorValue:
    return _accumulated(call, "prod", x, dim, call.meta.dtype, None)


@lowering("logcumsumexp", kind="scan")
def lower_logcumsumexp(call: Call, x: TensorValue, dim: int) -> TensorValue:
    return _accumulated(call, "logaddexp", x, dim, call.meta.dtype, _plus_zero)


@lowering("cummax cummin", kind="scan", passes=2)
def lower_cummax(call: Call, x: TensorValue, dim: int) -> tuple[TensorValue, TensorValue]:
    """Values and positions are two scans, of which only those that somebody reads are computed."""
    which, dtype = call.node.target._opname.removeprefix("cum"), x.dtype
    (x,) = call.rounded(x)
    if dtype == torch.bool:  # bools are ordered as bytes are
        x = cast(call, x, torch.uint8)
    values, positions = call.full(0, x.shape, dtype), call.full(0, x.shape, torch.int64)
    if call.is_used(0):
        values = call.scan(f"a{which}", x, dim, dtype=dtype, accumulate_dtype=x.dtype)
    if call.is_used(1):
        positions = call.scan(f"arg{which}", x, dim, dtype=torch.int64)
    return values, positions
