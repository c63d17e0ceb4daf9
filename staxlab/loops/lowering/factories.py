"""Tensors made from nothing: constants and functions of the subscript (Example 6.3's ``arange``).

They read no memory, so their users compute them: ``arange`` in a mask or an index never exists as a tensor.
"""

from __future__ import annotations

import torch

from ..expressions import Expr
from .call import Call
from .registry import Decline, lowering
from .unary import cast
from .values import Number, TensorValue


def _constant(value: Number | None, position: int | None = None):
    """A rule for a factory of one value: fixed, or the call's positional argument number ``position``."""

    def rule(call: Call, *args, **_) -> TensorValue:
        number = value if position is None else args[position]
        if isinstance(number, TensorValue):
            raise Decline("a factory filled from a tensor")
        return call.full(number, call.meta.shape, call.meta.dtype)

    return rule


lowering("full new_full", kind="factory")(lambda call, *args, **kw: _constant(None, len(args) - 1)(call, *args))
lowering("full_like", kind="factory")(_constant(None, 1))
lowering("scalar_tensor", kind="factory")(_constant(None, 0))
lowering("fill.Scalar", kind="factory")(_constant(None, 1))
# What an uninitialised tensor holds is nobody's business; zeros make every run alike.
lowering(
    "zeros zeros_like new_zeros zero empty.memory_format empty_like empty_strided new_empty new_empty_strided "
    "empty_permuted",
    kind="factory",
)(_constant(0))
lowering("ones ones_like new_ones", kind="factory")(_constant(1))


@lowering("fill.Tensor", kind="factory")
def lower_fill(call: Call, x: TensorValue, value: TensorValue) -> TensorValue:
    converted = cast(call, value, call.meta.dtype)
    return call.pointwise(lambda ops, a: a, converted, operand_dtype=converted.dtype)


def linear(call: Call, start: Number, step: Number) -> TensorValue:
    """``start + step * i``. Whole numbers stay exact as subscripts; others are computed in float64, as eager does."""
    dtype = call.meta.dtype
    if isinstance(start, int) and isinstance(step, int):
        return call.position(lambda index: start + step * index[0], call.meta.shape, dtype)

    def compute(ops, index):
        ops = ops.tagged(call.origins)
        place = ops.index_value(index[0], torch.float64)
        value = ops.add(ops.constant(start, torch.float64), ops.mul(ops.constant(step, torch.float64), place))
        return value if dtype == torch.float64 else ops.to_dtype(value, dtype)

    return call.computed(compute, call.meta.shape, dtype)


@lowering("arange", kind="factory")
def lower_arange(call: Call, end: Number, **_) -> TensorValue:
    return linear(call, 0, 1)


@lowering("arange.start arange.start_step", kind="factory")
def lower_arange_start(call: Call, start: Number, end: Number, step: Number = 1, **_) -> TensorValue:
    if not call.meta.dtype.is_floating_point:
        start, step = int(start), int(step)
    return linear(call, start, step)


@lowering("linspace", kind="factory")
def lower_linspace(call: Call, start: Number, end: Number, steps: int, **_) -> TensorValue:
    """From both ends to the middle, so that the last element is ``end`` exactly."""
    dtype = call.meta.dtype
    if not dtype.is_floating_point:
        raise Decline("linspace of integers")
    step = (end - start) / (steps - 1) if steps > 1 else 0.0

    def compute(ops, index):
        ops = ops.tagged(call.origins)
        wide = torch.float64
        place = ops.index_value(index[0], wide)
        rest = ops.sub(ops.constant(steps - 1, wide), place)
        up = ops.add(ops.constant(start, wide), ops.mul(ops.constant(step, wide), place))
        down = ops.sub(ops.constant(end, wide), ops.mul(ops.constant(step, wide), rest))
        value = ops.where(ops.lt(place, ops.constant(steps // 2, wide)), up, down)
        if steps == 1:
            value = ops.constant(start, wide)
        return value if dtype == wide else ops.to_dtype(value, dtype)

    return call.computed(compute, call.meta.shape, dtype)


@lowering("eye eye.m", kind="factory")
def lower_eye(call: Call, *_, **__) -> TensorValue:
    dtype = call.meta.dtype

    def compute(ops, index):
        ops = ops.tagged(call.origins)
        row, column = (ops.index_value(i, torch.int64) for i in index)
        same = ops.eq(row, column)
        if dtype == torch.bool:
            return same
        return ops.where(same, ops.constant(1, dtype), ops.constant(0, dtype))

    return call.computed(compute, call.meta.shape, dtype)


def _triangle(call: Call, x: TensorValue, diagonal: int, lower: bool) -> TensorValue:
    """Keep what lies on one side of a diagonal; the rest is zero whatever it was."""
    dtype = call.meta.dtype

    def compute(ops, index):
        ops = ops.tagged(call.origins)
        distance = ops.index_value(Expr.of(index[-1]) - index[-2], torch.int64)
        limit = ops.constant(diagonal, torch.int64)
        keep = ops.le(distance, limit) if lower else ops.ge(distance, limit)
        return ops.where(keep, x.load(ops, index), ops.constant(0, dtype))

    return call.computed(compute, call.meta.shape, dtype, (x,))


lowering("tril")(lambda call, x, diagonal=0: _triangle(call, x, diagonal, True))
lowering("triu")(lambda call, x, diagonal=0: _triangle(call, x, diagonal, False))
