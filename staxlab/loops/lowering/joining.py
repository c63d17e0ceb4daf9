"""Rearranging and joining tensors as masked or re-subscripted pointwise nodes (Section 6.2).

A concatenation is a function by cases: element ``i`` comes from the part whose interval holds ``i``. Written as masked
reads it copies nothing by itself and fuses with its users; each element pays one comparison for each part. Padding is
the same with a constant outside. Flips, rolls and repetitions are a change of subscript that eager execution copies.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..expressions import Expr
from ..ir import Index
from ..layout import IndexMap, broadcast, numel, reshaped, sliced
from .call import Call
from .registry import lowering
from .values import Number, TensorValue, promote


@lowering("cat", kind="joining")
def lower_cat(call: Call, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    shape, dtype = call.meta.shape, call.meta.dtype
    parts = [t for t in tensors if not (t.ndim == 1 and t.shape[0] == 0 and len(shape) != 1)]  # eager skips such
    dim %= max(len(shape), 1)
    starts, start = [], 0
    for part in parts:
        starts.append(start)
        start += part.shape[dim]

    def compute(ops, index):
        ops = ops.tagged(call.origins)
        place = Expr.of(index[dim])

        def read(handler, part: TensorValue, begin: int):
            value = part.load(handler, (*index[:dim], place - begin, *index[dim + 1 :]))
            return promote(handler, value, part.dtype, dtype)

        result = None
        for part, begin in reversed([p for p in zip(parts, starts, strict=True) if p[0].shape[dim]]):
            inside = _between(ops, place, begin, begin + part.shape[dim], shape[dim])
            if inside is None:
                return read(ops, part, begin)
            value = ops.masked(inside, lambda handler, p=part, b=begin: read(handler, p, b), 0)
            result = value if result is None else ops.where(inside, value, result)
        return ops.constant(0, dtype) if result is None else result

    return call.computed(compute, shape, dtype, parts)


def _between(ops, place: Expr, low: int, high: int, extent: int):
    """``low <= place < high``, leaving out what holds for every ``0 <= place < extent``; None if all of it does."""
    tests = []
    if low > 0:
        tests.append(ops.ge(ops.index_value(place, torch.int64), ops.constant(low, torch.int64)))
    if high < extent:
        tests.append(ops.lt(ops.index_value(place, torch.int64), ops.constant(high, torch.int64)))
    if not tests:
        return None
    return tests[0] if len(tests) == 1 else ops.logical_and(*tests)


@lowering("stack", kind="joining")
def lower_stack(call: Call, tensors: Sequence[TensorValue], dim: int = 0) -> TensorValue:
    from ..layout import unsqueezed

    dim %= tensors[0].ndim + 1
    return lower_cat(call, [t.seen(unsqueezed(t.shape, dim)) for t in tensors], dim)


@lowering("constant_pad_nd", kind="joining")
def lower_pad(call: Call, x: TensorValue, pad: Sequence[int], value: Number = 0) -> TensorValue:
    """Padding, cropping where an amount is negative. ``pad`` counts dimensions from the last."""
    shape, dtype = call.meta.shape, call.meta.dtype
    before = [0] * x.ndim
    for k in range(len(pad) // 2):
        before[x.ndim - 1 - k] = pad[2 * k]

    def compute(ops, index):
        ops = ops.tagged(call.origins)
        inner = tuple(Expr.of(i) - b for i, b in zip(index, before, strict=True))
        tests = [
            test
            for i, b, n, m in zip(index, before, x.shape, shape, strict=True)
            if (test := _between(ops, Expr.of(i), b, b + n, m)) is not None
        ]
        if not tests:
            return x.load(ops, inner)
        inside = tests[0]
        for test in tests[1:]:
            inside = ops.logical_and(inside, test)
        return ops.masked(inside, lambda handler: x.load(handler, inner), _as(value, dtype))

    if x.numel == 0:
        return call.full(value, shape, dtype)
    return call.computed(compute, shape, dtype, (x,))


def _as(value: Number, dtype: torch.dtype) -> Number:
    if dtype == torch.bool:
        return bool(value)
    return float(value) if dtype.is_floating_point else int(value)


def _copied(call: Call, x: TensorValue, view: IndexMap) -> TensorValue:
    """A copy through a change of subscript (eager execution copies here too, so the result is no view)."""
    return call.pointwise(lambda ops, a: a, x.seen(view), operand_dtype=x.dtype)


@lowering("flip", kind="joining")
def lower_flip(call: Call, x: TensorValue, dims: Sequence[int]) -> TensorValue:
    seen = x
    for dim in {d % x.ndim for d in dims} if x.ndim else ():
        seen = seen.seen(sliced(seen.shape, dim, max(seen.shape[dim] - 1, 0), seen.shape[dim], -1))
    return call.pointwise(lambda ops, a: a, seen, operand_dtype=x.dtype)


@lowering("roll", kind="joining")
def lower_roll(call: Call, x: TensorValue, shifts: Sequence[int], dims: Sequence[int] = ()) -> TensorValue:
    shifts = [shifts] if isinstance(shifts, int) else list(shifts)
    dims = [dims] if isinstance(dims, int) else list(dims)
    if x.numel == 0 or x.ndim == 0:
        return call.pointwise(lambda ops, a: a, x)
    if not dims:
        flat = x.seen(reshaped(x.shape, (x.numel,)))
        return _copied(call, flat.seen(_rolled(flat.shape, 0, shifts[0])), reshaped((x.numel,), x.shape))
    seen = x
    for dim, shift in zip(dims, shifts, strict=True):
        seen = seen.seen(_rolled(x.shape, dim % x.ndim, shift))
    return call.pointwise(lambda ops, a: a, seen, operand_dtype=x.dtype)


def _rolled(shape: tuple[int, ...], dim: int, shift: int) -> IndexMap:
    extent = shape[dim]
    back = -shift % extent
    return IndexMap(shape, lambda i: (*i[:dim], (i[dim] + back) % extent, *i[dim + 1 :]))


@lowering("repeat", kind="joining")
def lower_repeat(call: Call, x: TensorValue, repeats: Sequence[int]) -> TensorValue:
    shape = call.meta.shape
    lead = len(shape) - x.ndim

    def function(i: Index) -> Index:
        return tuple(i[k + lead] % extent for k, extent in enumerate(x.shape))

    if numel(shape) == 0:
        return call.full(0, shape, call.meta.dtype)
    return _copied(call, x, IndexMap(shape, function))


@lowering("expand_copy", kind="joining")
def lower_expand_copy(call: Call, x: TensorValue, size, *, implicit: bool = False) -> TensorValue:
    return _copied(call, x, broadcast(x.shape, call.meta.shape))


@lowering("view_copy reshape_copy _unsafe_view_copy", kind="joining")
def lower_view_copy(call: Call, x: TensorValue, *_) -> TensorValue:
    return _copied(call, x, reshaped(x.shape, call.meta.shape))


def _part(i: Index, dim: int, position: Expr | int) -> Index:
    return (*i[:dim], Expr.of(position), *i[dim + 1 :])


def _scattered(
    call: Call, x: TensorValue, source: TensorValue, dim: int, start: int, step: int, count: int
) -> TensorValue:
    """``x`` with positions ``start, start + step, ...`` of one dimension taken from ``source`` (Proposition 4.4)."""
    shape, dtype = call.meta.shape, call.meta.dtype

    def compute(ops, index):
        ops = ops.tagged(call.origins)
        place = Expr.of(index[dim])
        tests = []
        bound = _between(ops, place, start, start + (count - 1) * step + 1, shape[dim])
        if bound is not None:
            tests.append(bound)
        if step > 1:
            rest = ops.index_value((place - start) % step, torch.int64)
            tests.append(ops.eq(rest, ops.constant(0, torch.int64)))
        inner = _part(index, dim, (place - start) // step)

        def read(handler):
            return promote(handler, source.load(handler, inner), source.dtype, dtype)

        if not tests:
            return read(ops)
        inside = tests[0] if len(tests) == 1 else ops.logical_and(*tests)
        return ops.where(inside, ops.masked(inside, read, 0), x.load(ops, index))

    if count <= 0:
        return call.pointwise(lambda ops, a: a, x)
    return call.computed(compute, shape, dtype, (x, source))


@lowering("slice_scatter", kind="joining")
def lower_slice_scatter(
    call: Call, x: TensorValue, source: TensorValue, dim: int = 0, start=None, end=None, step: int = 1
) -> TensorValue:
    dim %= x.ndim
    extent = x.shape[dim]
    first = 0 if start is None else min(max(start + extent if start < 0 else start, 0), extent)
    return _scattered(call, x, source, dim, first, step, source.shape[dim])


@lowering("select_scatter", kind="joining")
def lower_select_scatter(call: Call, x: TensorValue, source: TensorValue, dim: int, position: int) -> TensorValue:
    from ..layout import unsqueezed

    dim %= x.ndim
    return _scattered(call, x, source.seen(unsqueezed(source.shape, dim)), dim, position % x.shape[dim], 1, 1)


@lowering("diagonal_scatter", kind="joining")
def lower_diagonal_scatter(
    call: Call, x: TensorValue, source: TensorValue, offset: int = 0, first: int = 0, second: int = 1
) -> TensorValue:
    first, second, dtype = first % x.ndim, second % x.ndim, call.meta.dtype
    rows, columns = (0, offset) if offset >= 0 else (-offset, 0)
    length = source.shape[-1]
    others = [d for d in range(x.ndim) if d not in (first, second)]

    def compute(ops, index):
        ops = ops.tagged(call.origins)
        row, column = Expr.of(index[first]) - rows, Expr.of(index[second]) - columns
        on_diagonal = ops.eq(ops.index_value(row, torch.int64), ops.index_value(column, torch.int64))
        bound = _between(ops, Expr.of(index[first]), rows, rows + length, x.shape[first])
        inside = on_diagonal if bound is None else ops.logical_and(on_diagonal, bound)

        def read(handler):
            return promote(handler, source.load(handler, (*(index[d] for d in others), row)), source.dtype, dtype)

        return ops.where(inside, ops.masked(inside, read, 0), x.load(ops, index))

    if length == 0:
        return call.pointwise(lambda ops, a: a, x)
    return call.computed(compute, call.meta.shape, dtype, (x, source))


@lowering("copy", kind="pointwise")
def lower_copy(call: Call, x: TensorValue, source: TensorValue, non_blocking: bool = False) -> TensorValue:
    """The values of ``source``, in the dtype and shape of ``x``."""
    from .unary import cast

    converted = cast(call, source, x.dtype)
    return call.pointwise(lambda ops, a: a, converted, operand_dtype=x.dtype)
