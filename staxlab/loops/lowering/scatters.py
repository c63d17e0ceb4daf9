"""Scattered writes: elements sent to subscripts that are data (Table 6.1).

``y[idx[i]] += x[i]`` names, for every element of x, the element of y it goes to; several may go to one. A rule here
says which box of elements there is, where each goes and how it is combined with what is there
(:meth:`~.call.Call.scatter`); the order is that of the box, row by row, in which eager execution has it too. So sums of
float32 and float64 on a CPU have eager's bits. Sums and products of half precision are kept in float32 and rounded once
at the end, where eager execution rounds after every addition: ours are the more accurate.

On a GPU many threads write at the same time, by atomic operations, in whatever order they arrive: the rules decline
what those do not offer (products, extremes of floating-point numbers, which have NaN) and, if algorithms are to be
deterministic, whatever depends on the order. Which of several elements *replaces* another is then undefined, as it is
in eager execution.

Subscripts are checked as eager execution checks them: ``scatter`` and ``index_add`` take none below zero, ``x[i] = v``
and ``index_fill`` count those from the end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..expressions import Expr
from ..ir import Index
from ..layout import broadcast, reshaped
from ..ops import Ops, compute_dtype
from ..semantics import neutral_element
from .adjoint_windows import lower_scatter_selected
from .call import Call, Loader
from .indexing import _broadcast_shape, subscript
from .registry import Decline, lowering
from .values import HALF, Number, TensorValue

Compute = Callable[[Ops, Index], tuple[Index, Any]]

_INDICES = (torch.int64, torch.int32)
_ATOMIC = (torch.float32, torch.float64, torch.int32, torch.int64)


def _require_indices(*indices: TensorValue) -> None:
    if any(i.dtype not in _INDICES for i in indices):
        raise Decline("an index that is no int64 or int32 (a mask selects a number of elements that is data)")


def _accumulator(call: Call, kind: str, dtype: torch.dtype) -> torch.dtype:
    """The dtype of the memory that elements are combined in. Declines what the device cannot do."""
    if call.lowering.device.is_gpu:
        return _atomic(kind, dtype)
    return torch.float32 if dtype in HALF and kind in ("sum", "prod") else dtype


def _atomic(kind: str, dtype: torch.dtype) -> torch.dtype:
    ordered = kind == "store" or (kind == "sum" and dtype.is_floating_point)
    if ordered and torch.are_deterministic_algorithms_enabled():
        raise Decline("a result that depends on the order of threads, where algorithms are to be deterministic")
    if kind == "store":
        return dtype
    if kind == "prod" or dtype == torch.bool or (kind != "sum" and dtype.is_floating_point):
        raise Decline(f"{kind} of {str(dtype).removeprefix('torch.')}, for which there is no atomic operation")
    if dtype in HALF:
        return torch.float32
    return dtype if dtype in _ATOMIC else torch.int32  # narrow integers wrap when they are converted back


def _combined(
    call: Call, kind: str, base: TensorValue, ranges: Sequence[int], compute: Compute, operands: Sequence[Any]
) -> TensorValue:
    """``base`` with the box's elements combined into it, in the dtype of the accumulator."""
    if base.numel == 0:
        raise Decline("a scatter into a tensor without elements")
    wide = _accumulator(call, kind, base.dtype)
    if wide != base.dtype:
        base = _converted(call, base, wide)
    return call.scatter(kind, base, ranges, compute, operands)


def _converted(call: Call, x: TensorValue, dtype: torch.dtype) -> TensorValue:
    if x.dtype == dtype:
        return x
    return call.pointwise(lambda ops, a: a, x, shape=x.shape, dtype=dtype, operand_dtype=dtype)


def _scattered(
    call: Call,
    kind: str,
    x: TensorValue,
    ranges: Sequence[int],
    place: Callable[[Ops, Index], Index],
    load: Loader,
    operands: Sequence[Any],
    include_self: bool = True,
) -> TensorValue:
    """``x`` with the elements ``load(ops, i)`` combined by ``kind``, which may be "mean", at ``place(ops, i)``.

    Without ``include_self`` every element that something goes to first becomes the neutral one.
    """
    operation = "sum" if kind == "mean" else kind
    if kind == "mean" and x.dtype == torch.bool:
        raise Decline("a mean of bools")

    def written(value: Loader) -> Compute:
        def compute(ops: Ops, index: Index) -> tuple[Index, Any]:
            ops = ops.tagged(call.origins)
            return place(ops, index), value(ops, index)

        return compute

    def number(value: Number) -> Loader:
        return lambda ops, index: ops.constant(value, compute_dtype(_accumulator(call, operation, x.dtype)))

    base = x
    if not include_self:
        base = _converted(call, x, _accumulator(call, operation, x.dtype))
        neutral = neutral_element(operation, base.dtype)
        base = _combined(call, "store", base, ranges, written(number(neutral)), operands)
    total = _combined(call, operation, base, ranges, written(load), operands)
    if kind == "mean":
        start = call.full(int(include_self), x.shape, total.dtype)
        count = _combined(call, "sum", start, ranges, written(number(1)), operands)

        def divide(ops: Ops, a: Any, n: Any) -> Any:
            zero, one = (ops.constant(k, compute_dtype(total.dtype)) for k in (0, 1))
            n = ops.where(ops.eq(n, zero), one, n)
            return ops.truediv(a, n) if total.dtype.is_floating_point else ops.floordiv(a, n)

        total = call.pointwise(divide, total, count, shape=x.shape, dtype=total.dtype, operand_dtype=total.dtype)
    return _converted(call, total, x.dtype)


# -- Along a dimension, element by element ----------------------------------------------------------------------------


def _scatter(
    call: Call,
    kind: str,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    source: TensorValue | Number,
    include_self: bool = True,
) -> TensorValue:
    _require_indices(indices)
    if x.ndim == 0:
        row = _scatter(call, kind, _row(x), 0, _row(indices), _row(source), include_self)
        return row.seen(reshaped((1,), ()))
    if x.ndim == 1:
        indices, source = _row(indices), _row(source)
    dim %= x.ndim

    def place(ops: Ops, index: Index) -> Index:
        return (*index[:dim], subscript(ops, indices, index, x.shape[dim], "error"), *index[dim + 1 :])

    load, operands = _element(call, x, source)
    return _scattered(call, kind, x, indices.shape, place, load, (indices, *operands), include_self)


def _row(value: TensorValue | Number) -> TensorValue | Number:
    """A 0-dim tensor as the one element of a row, which is what it counts as here."""
    return value.seen(reshaped((), (1,))) if isinstance(value, TensorValue) and not value.ndim else value


def _element(call: Call, x: TensorValue, source: TensorValue | Number) -> tuple[Loader, tuple[TensorValue, ...]]:
    """What is written: the element of ``source`` at the same subscript, or the number it is."""
    if isinstance(source, TensorValue):
        return source.load, (source,)
    return lambda ops, index: ops.constant(source, compute_dtype(x.dtype)), ()


@lowering("scatter.src", kind="scatter")
def lower_scatter(call: Call, x: TensorValue, dim: int, indices: TensorValue, source: TensorValue) -> TensorValue:
    try:
        return lower_scatter_selected(call, x, dim, indices, source)
    except Decline:
        return _scatter(call, "store", x, dim, indices, source)


@lowering("scatter.value", kind="scatter")
def lower_scatter_value(call: Call, x: TensorValue, dim: int, indices: TensorValue, value: Number) -> TensorValue:
    return _scatter(call, "store", x, dim, indices, value)


@lowering("scatter.reduce scatter.value_reduce", kind="scatter")
def lower_scatter_by_name(
    call: Call, x: TensorValue, dim: int, indices: TensorValue, source: TensorValue | Number, *, reduce: str
) -> TensorValue:
    return _scatter(call, {"add": "sum", "multiply": "prod"}[reduce], x, dim, indices, source)


@lowering("scatter_add", kind="scatter")
def lower_scatter_add(call: Call, x: TensorValue, dim: int, indices: TensorValue, source: TensorValue) -> TensorValue:
    return _scatter(call, "sum", x, dim, indices, source)


@lowering("scatter_reduce.two", kind="scatter")
def lower_scatter_reduce(
    call: Call,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    source: TensorValue,
    reduce: str,
    *,
    include_self: bool = True,
) -> TensorValue:
    return _scatter(call, reduce, x, dim, indices, source, include_self)


# -- Along a dimension, slice by slice --------------------------------------------------------------------------------


def _index_write(
    call: Call,
    kind: str,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    source: TensorValue | Number,
    negative: str = "error",
    include_self: bool = True,
    factor: Number | None = None,
) -> TensorValue:
    """Slice k of ``source`` (a tensor of x's dimensions, or a number) goes to slice ``indices[k]``."""
    _require_indices(indices)
    if x.ndim == 0:
        row = _index_write(call, kind, _row(x), 0, indices, _row(source), negative, include_self, factor)
        return row.seen(reshaped((1,), ()))
    if x.ndim == 1:
        source = _row(source)
    dim %= x.ndim
    ranges = (*x.shape[:dim], indices.numel, *x.shape[dim + 1 :])
    if isinstance(source, TensorValue) and source.shape != ranges:
        raise Decline("slices of another shape")

    def place(ops: Ops, index: Index) -> Index:
        position = index[dim : dim + 1] if indices.ndim else ()
        return (*index[:dim], subscript(ops, indices, position, x.shape[dim], negative), *index[dim + 1 :])

    element, operands = _element(call, x, source)

    def load(ops: Ops, index: Index) -> Any:
        value = element(ops, index)
        return value if factor is None else ops.mul(value, ops.constant(factor, compute_dtype(x.dtype)))

    return _scattered(call, kind, x, ranges, place, load, (indices, *operands), include_self)


@lowering("index_add", kind="scatter")
def lower_index_add(
    call: Call, x: TensorValue, dim: int, indices: TensorValue, source: TensorValue, *, alpha: Number = 1
) -> TensorValue:
    return _index_write(call, "sum", x, dim, indices, source, factor=None if alpha == 1 else alpha)


@lowering("index_copy", kind="scatter")
def lower_index_copy(call: Call, x: TensorValue, dim: int, indices: TensorValue, source: TensorValue) -> TensorValue:
    return _index_write(call, "store", x, dim, indices, source)


@lowering("index_fill.int_Scalar index_fill.int_Tensor", kind="scatter")
def lower_index_fill(
    call: Call, x: TensorValue, dim: int, indices: TensorValue, value: TensorValue | Number
) -> TensorValue:
    if isinstance(value, TensorValue):
        place = dim % x.ndim if x.ndim else 0
        ranges = (*x.shape[:place], indices.numel, *x.shape[place + 1 :])
        load = call.loader(value, ranges, x.dtype)
        value = call.computed(lambda ops, index: load(ops.tagged(call.origins), index), ranges, x.dtype, (value,))
    return _index_write(call, "store", x, dim, indices, value, "wrap")


@lowering("index_reduce", kind="scatter")
def lower_index_reduce(
    call: Call,
    x: TensorValue,
    dim: int,
    indices: TensorValue,
    source: TensorValue,
    reduce: str,
    *,
    include_self: bool = True,
) -> TensorValue:
    return _index_write(call, reduce, x, dim, indices, source, include_self=include_self)


# -- At several subscripts at once ------------------------------------------------------------------------------------


@lowering("index_put", kind="scatter")
def lower_index_put(
    call: Call, x: TensorValue, indices: Sequence[TensorValue | None], values: TensorValue, accumulate: bool = False
) -> TensorValue:
    """``x[i0, :, i2] = values``: the box is what ``x[i0, :, i2]`` has for a shape (:func:`.indexing.lower_index`)."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if not given:
        raise Decline("an index without index tensors")
    if [i.dtype for _, i in given] == [torch.bool] and values.numel == 1:
        return _masked(call, x, *given[0], values, accumulate)
    _require_indices(*(i for _, i in given))
    shape = _broadcast_shape([i.shape for _, i in given])
    wide = [(d, i.seen(broadcast(i.shape, shape))) for d, i in given]
    adjacent = [d for d, _ in given] == list(range(given[0][0], given[0][0] + len(given)))
    front = given[0][0] if adjacent else 0
    kept = [d for d in range(x.ndim) if d not in {g for g, _ in given}]
    outer = [x.shape[d] for d in kept]
    ranges = (*outer[:front], *shape, *outer[front:])

    def place(ops: Ops, index: Index) -> Index:
        inner = index[front : front + len(shape)]
        found = dict(zip(kept, (*index[:front], *index[front + len(shape) :]), strict=True))
        for d, value in wide:
            found[d] = subscript(ops, value, inner, x.shape[d])
        return tuple(found[d] for d in range(x.ndim))

    load = call.loader(values, ranges, x.dtype)
    kind = "sum" if accumulate else "store"
    return _scattered(call, kind, x, ranges, place, load, (*(i for _, i in given), values))


def _masked(
    call: Call, x: TensorValue, dim: int, mask: TensorValue, value: TensorValue, accumulate: bool
) -> TensorValue:
    """``x[:, mask] = number``, where it does not matter how many elements the mask selects."""
    load = call.loader(value, x.shape, x.dtype)
    if mask.shape != x.shape[dim : dim + mask.ndim]:
        raise Decline("a mask of another shape")

    def compute(ops: Ops, index: Index) -> Any:
        ops = ops.tagged(call.origins)
        old, new = x.load(ops, index), load(ops, index)
        return ops.where(mask.load(ops, index[dim : dim + mask.ndim]), ops.add(old, new) if accumulate else new, old)

    return call.computed(compute, x.shape, x.dtype, (x, mask, value))


@lowering("put", kind="scatter")
def lower_put(
    call: Call, x: TensorValue, indices: TensorValue, source: TensorValue, accumulate: bool = False
) -> TensorValue:
    """The subscripts count the elements of x row by row."""
    _require_indices(indices)
    if source.numel != indices.numel:
        raise Decline("a source of another size")
    flat = x.seen(reshaped(x.shape, (x.numel,)))
    element = source if source.shape == indices.shape else source.seen(reshaped(source.shape, indices.shape))

    def place(ops: Ops, index: Index) -> Index:
        return (subscript(ops, indices, index, x.numel),)

    kind = "sum" if accumulate else "store"
    result = _scattered(call, kind, flat, indices.shape, place, element.load, (indices, source))
    return result.seen(reshaped((x.numel,), x.shape))


@lowering("embedding_dense_backward", kind="scatter")
def lower_embedding_backward(
    call: Call, gradient: TensorValue, indices: TensorValue, rows: int, padding: int, scale_by_frequency: bool
) -> TensorValue:
    """Row ``indices[k]`` gets row k of the gradient, except for the padding row. As in eager execution a subscript out
    of range has no effect: the forward pass has refused it."""
    _require_indices(indices)
    if scale_by_frequency:
        raise Decline("gradients scaled by frequency")
    base = call.full(0, call.meta.shape, call.meta.dtype)
    width = indices.ndim

    def wanted(ops: Ops, index: Index) -> tuple[Any, Any]:
        row = indices.load(ops, index[:width])
        dtype = ops.dtype_of(row)
        known = ops.logical_and(ops.ge(row, ops.constant(0, dtype)), ops.lt(row, ops.constant(rows, dtype)))
        if padding >= 0:
            known = ops.logical_and(known, ops.ne(row, ops.constant(padding, dtype)))
        return row, known

    def place(ops: Ops, index: Index) -> Index:
        row, known = wanted(ops, index)
        row = ops.where(known, row, ops.constant(0, ops.dtype_of(row)))
        if ops.dtype_of(row) != torch.int64:
            row = ops.to_dtype(row, torch.int64)
        return (ops.indirect(row, Expr.of(rows), check=False), *index[width:])

    def load(ops: Ops, index: Index) -> Any:
        _, known = wanted(ops, index)
        value = gradient.load(ops, index)
        return ops.where(known, value, ops.constant(0, ops.dtype_of(value)))

    return _scattered(call, "sum", base, gradient.shape, place, load, (gradient, indices))
