"""Pooling: the mean or the greatest of a window (Table 6.1).

Element ``o`` of a pool looks at the window that starts at ``o * step - padding``. A window has few elements, so they
are written out one by one, in the order in which eager execution goes through them: one loop, into which what is pooled
may be inlined, and whose sums have eager's bits. Windows with more than :data:`MOST_ELEMENTS` would make the loop body
long; if they lie side by side they are a reduction over part of the subscripts, and otherwise a library call.

The adjoints are in :mod:`.adjoint_windows`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from ..expressions import Expr
from ..ir import Index
from ..layout import IndexMap, numel
from ..ops import Ops
from .call import Call
from .registry import Decline, lowering
from .values import HALF, TensorValue, convert
from .windows import each, elements_in, holds, product_of

MOST_ELEMENTS = 32


@dataclass(frozen=True)
class Window:
    """The windows along one dimension: window ``o`` of ``count`` has the elements ``o * step - padding + k * dilation``
    for ``k < size``, as far as they exist among ``extent``."""

    extent: int
    size: int
    step: int
    padding: int
    dilation: int
    count: int

    def element(self, o: Expr, k: int) -> tuple[Expr, tuple[tuple[Expr, int, int], ...]]:
        """Element ``k`` of window ``o``, and the test that it exists (none if it always does)."""
        place = o * self.step + (k * self.dilation - self.padding)
        return place, ((place, 0, self.extent),)


def _windows(call: Call, x: TensorValue, size, step, padding, dilation, rank: int) -> list[Window]:
    size, padding, dilation = (each(value, rank) for value in (size, padding, dilation))
    step = each(step, rank) or size
    counts = call.meta.shape[-rank:]
    return [Window(*numbers) for numbers in zip(x.shape[-rank:], size, step, padding, dilation, counts, strict=True)]


def _require_small(x: TensorValue, windows: Sequence[Window]) -> None:
    if x.numel == 0:
        raise Decline("windows over nothing")
    elements = numel([window.size for window in windows])
    if elements > MOST_ELEMENTS:
        raise Decline(f"windows of {elements} elements")


def _rank(call: Call) -> int:
    return 3 if "3d" in call.node.target._opname else 2


# -- means ------------------------------------------------------------------------------------------------------------


@lowering("avg_pool2d avg_pool3d", kind="window")
def lower_avg_pool(
    call: Call, x: TensorValue, size, step=(), padding=0, ceil_mode: bool = False, count_padding: bool = True,
    divisor: int | None = None,
) -> TensorValue:  # fmt: skip
    """The sum of a window, divided by the number of its elements (with those in the padding or without)."""
    rank = _rank(call)
    if not x.dtype.is_floating_point:
        raise Decline("a mean of integers")
    windows = _windows(call, x, size, step, padding, 1, rank)
    _require_small(x, windows)

    def compute(ops: Ops, index: Index) -> Any:
        ops = ops.tagged(call.origins)
        total = _sum_of(ops, x, windows, index)
        factors = [
            elements_in(ops, o, w.extent, w.size, w.step, w.padding, w.count, count_padding)
            for o, w in zip(index[-rank:], windows, strict=True)
        ]
        count = ops.constant(divisor, torch.int64) if divisor else product_of(ops, factors)
        return ops.truediv(total, ops.to_dtype(count, x.compute_dtype))

    return call.computed(compute, call.meta.shape, call.meta.dtype, (x,))


def _sum_of(ops: Ops, x: TensorValue, windows: Sequence[Window], index: Index) -> Any:
    lead, places = index[: -len(windows)], index[-len(windows) :]
    total = ops.constant(0, x.compute_dtype)
    for chosen in product(*[range(window.size) for window in windows]):
        parts = [window.element(o, k) for window, o, k in zip(windows, places, chosen, strict=True)]
        place = (*lead, *[part for part, _ in parts])

        def read(handler: Ops, place: Index = place) -> Any:
            return x.load(handler, place)

        inside = holds(ops, [test for _, tests in parts for test in tests])
        total = ops.add(total, read(ops) if inside is None else ops.masked(inside, read, 0))
    return total


@lowering("_adaptive_avg_pool2d _adaptive_avg_pool3d", kind="window")
def lower_adaptive_avg_pool(call: Call, x: TensorValue, output_size) -> TensorValue:
    """With a whole number of elements to a window: their sum, divided by its extents, one after the other."""
    rank = _rank(call)
    if not x.dtype.is_floating_point:
        raise Decline("a mean of integers")
    windows = _even_windows(call, x, rank)
    size = numel([window.size for window in windows])
    if size > MOST_ELEMENTS:
        return _mean_of_blocks(call, x, windows)
    _require_small(x, windows)

    def compute(ops: Ops, index: Index) -> Any:
        ops = ops.tagged(call.origins)
        return _divided(ops, _sum_of(ops, x, windows, index), windows)

    return call.computed(compute, call.meta.shape, call.meta.dtype, (x,))


def _even_windows(call: Call, x: TensorValue, rank: int) -> list[Window]:
    found = []
    for extent, count in zip(x.shape[-rank:], call.meta.shape[-rank:], strict=True):
        if count == 0 or extent == 0 or extent % count:
            raise Decline("windows of different sizes")
        found.append(Window(extent, extent // count, extent // count, 0, 1, count))
    return found


def _divided(ops: Ops, total: Any, windows: Sequence[Window]) -> Any:
    for window in windows:
        total = ops.truediv(total, ops.constant(window.size, ops.dtype_of(total)))
    return total


def _mean_of_blocks(call: Call, x: TensorValue, windows: Sequence[Window]) -> TensorValue:
    """Windows side by side, as a reduction over their own subscripts."""
    lead = x.ndim - len(windows)

    def function(index: Index) -> Index:
        pairs = zip(index[lead::2], index[lead + 1 :: 2], windows, strict=True)
        return (*index[:lead], *[o * window.size + k for o, k, window in pairs])

    shape = (*x.shape[:lead], *[n for window in windows for n in (window.count, window.size)])
    blocks = call.view(x, IndexMap(shape, function, name="blocks"))
    dtype = x.compute_dtype
    total = call.reduction("sum", blocks, range(lead + 1, len(shape), 2), dtype=dtype)
    return call.pointwise(
        lambda ops, a: _divided(ops, a, windows), total, operand_dtype=dtype, shape=call.meta.shape,
        dtype=call.meta.dtype,
    )  # fmt: skip


# -- extremes ---------------------------------------------------------------------------------------------------------


@lowering("max_pool2d_with_indices max_pool3d_with_indices", kind="window", passes=2)
def lower_max_pool(
    call: Call, x: TensorValue, size, step=(), padding=0, dilation=1, ceil_mode: bool = False
) -> tuple[TensorValue, TensorValue]:
    """The greatest element of each window and its number in the image: the first of equal ones, the last NaN."""
    windows = _windows(call, x, size, step, padding, dilation, _rank(call))
    _require_small(x, windows)
    return _greatest(call, x, windows, positions=False), _greatest(call, x, windows, positions=True)


@lowering("adaptive_max_pool2d adaptive_max_pool3d", kind="window", passes=2)
def lower_adaptive_max_pool(call: Call, x: TensorValue, output_size) -> tuple[TensorValue, TensorValue]:
    windows = _even_windows(call, x, _rank(call))
    _require_small(x, windows)
    return _greatest(call, x, windows, positions=False), _greatest(call, x, windows, positions=True)


def _greatest(call: Call, x: TensorValue, windows: Sequence[Window], positions: bool) -> TensorValue:
    shape, rank = call.meta.shape, len(windows)
    if x.dtype in HALF:
        (x,) = call.rounded(x)

    def compute(ops: Ops, index: Index) -> Any:
        ops = ops.tagged(call.origins)
        lead, places = index[:-rank], index[-rank:]
        best: Any = None
        at: Any = None
        for chosen in product(*[range(window.size) for window in windows]):
            parts = [window.element(o, k) for window, o, k in zip(windows, places, chosen, strict=True)]
            spot = [part for part, _ in parts]
            number = Expr.of(0)
            for part, window in zip(spot, windows, strict=True):
                number = number * window.extent + part
            inside = holds(ops, [test for _, tests in parts for test in tests])

            def read(handler: Ops, place: Index = (*lead, *spot)) -> Any:
                return x.load(handler, place)

            value = read(ops) if inside is None else ops.masked(inside, read, _least(x.dtype))
            here = ops.index_value(number, torch.int64) if positions else None
            if best is None:
                best, at = value, here
                known = inside
                continue
            better = ops.gt(value, best)
            if x.dtype.is_floating_point:
                better = ops.logical_or(better, ops.isnan(value))
            if known is not None:  # nothing of the window has been seen yet: whatever comes is taken
                better = ops.logical_or(better, ops.logical_not(known))
            if inside is not None:
                better = ops.logical_and(better, inside)
            best = ops.where(better, value, best)
            at = ops.where(better, here, at) if positions else None
            if known is not None:
                known = None if inside is None else ops.logical_or(known, inside)
        return at if positions else convert(ops, best, x.dtype)

    return call.computed(compute, shape, torch.int64 if positions else x.dtype, (x,))


def _least(dtype: torch.dtype) -> float | int:
    return float("-inf") if dtype.is_floating_point else torch.iinfo(dtype).min
