"""Between which numbers the elements of a buffer must lie, for every kind of loop node (Sections 6.3 and 6.9).

A reduction may be reordered, and :mod:`.reduction_bounds` says what that allows. Everything else keeps the order of the
semantics and is enclosed by the very operations it consists of: a scan's prefixes one after another, a scatter's
elements in the order of its loops, a template's products in the order of its depth and its epilogue after them. Their
intervals are as wide as elementary functions inside them make them, and otherwise single numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy
import torch

from ..loops.body import LoopBody
from ..loops.enclosure import (
    ULPS,
    EnclosingEvaluator,
    Enclosure,
    either,
    enclose_body,
    enclose_epilogue,
    steps,
)
from ..loops.ir import ComputedBuffer, Layout, Reduction, Scan, Scatter, Template
from ..loops.ops import compute_dtype
from ..loops.semantics import iteration_symbols, prefixes, scattered, view_of
from .reduction_bounds import enclose_reduction

#: More prefixes than this are not folded one by one where a library's own scan has the same value.
LONGEST_SCAN = 4096


def enclose_node(
    buffer: ComputedBuffer,
    body: LoopBody,
    inputs: Mapping[str, torch.Tensor | Enclosure],
    height: int | None,
    points: int,
    complete: bool,
) -> Iterator[tuple[int, Enclosure]]:
    """The enclosures of a buffer's elements in row-major order, piece by piece: (number of the first, they).

    ``inputs`` are flat storages by buffer name, or their enclosures; ``height`` is that of a reduction's summation tree
    (None: in order). At most about ``points`` points of the iteration space are enclosed at once; without ``complete``
    only the first, middle and last of several pieces. A scatter, and a scan along the first dimension, are one piece.

    Raises IndexError for a checked subscript out of range, OutsideDomain where a kernel would not be defined.
    """
    data = buffer.data
    if isinstance(data, Scatter):
        yield 0, _scatter(data, body, inputs, buffer.layout)
        return
    if isinstance(data, Scan):
        outer = data.ranges[: data.axis] + data.ranges[data.axis + 1 :]
        merged: tuple[int, ...] = (data.ranges[data.axis],)
        sliced = data.axis > 0
    else:
        outer = data.ranges
        merged = _merged(data)
        sliced = bool(outer)
    first = outer[0] if sliced else 1
    rows = max(1, points * first // max(math.prod(outer + merged), 1))
    starts = range(0, first, rows)
    if not complete and len(starts) > 3:
        starts = (0, starts[len(starts) // 2], first - rows)  # both ends: that is where tails are
    for start in starts:
        span = (start, min(start + rows, first)) if sliced else (0, None)
        part = enclose_body(body, outer + merged, inputs, *span)
        if isinstance(data, Scan):
            part = enclose_scan(part, data.kind).reshaped(lambda piece: piece.movedim(-1, data.axis))
        elif isinstance(data, Reduction):
            part = enclose_reduction(part, data.kind, len(merged), data.accumulate_dtype, height)
        elif isinstance(data, Template):
            assert body.epilogue is not None
            part = enclose_reduction(part, "sum", 1, data.accumulate_dtype, None)
            part = enclose_epilogue(body.epilogue, outer, inputs, part, *span)
        stored = part.map(lambda piece: piece.to(data.dtype))
        yield start * math.prod(data.ranges[1:]), stored.reshaped(lambda piece: piece.reshape(-1))


def _merged(data: object) -> tuple[int, ...]:
    if isinstance(data, Reduction):
        return data.reduction_ranges
    return (data.depth,) if isinstance(data, Template) else ()


# -- scans ------------------------------------------------------------------------------------------------------------


def enclose_scan(elements: Enclosure, kind: str) -> Enclosure:
    """The enclosure of all prefixes along the last axis, merged in order. O(elements)."""
    value = _prefixes(elements.value, kind)
    free = None if elements.free is None else elements.free.cumsum(-1) > 0
    if elements.lower is None and kind != "logaddexp":
        return Enclosure(value, free=free)
    if kind in ("argmax", "argmin"):
        wide = elements.wide
        assert wide is not None
        return Enclosure(value, free=either(free, wide.cumsum(-1) > 0))
    if kind == "prod":
        low, high = _products(elements)
    elif kind == "logaddexp":
        low, high = _logaddexps(elements)
    else:  # monotone in every element
        low, high = _prefixes(elements.low, kind), _prefixes(elements.high, kind)
    if kind in ("amax", "amin"):  # of equal ends that are zeros the sign is open
        zero = torch.zeros((), dtype=value.dtype)
        low, high = torch.where(low == 0, -zero, low), torch.where(high == 0, zero, high)
    undefined = low.isnan() | high.isnan() | value.isnan() if value.dtype.is_floating_point else None
    defined = None if undefined is None else undefined & ~(low.isnan() & high.isnan() & value.isnan())
    return Enclosure(value, low, high, either(free, defined))


def _prefixes(values: torch.Tensor, kind: str) -> torch.Tensor:
    if values.shape[-1] <= LONGEST_SCAN or kind == "logaddexp":
        return prefixes(values, kind)
    if kind in ("sum", "prod"):  # NumPy accumulates one by one in the dtype it is given; PyTorch in a wider one
        accumulate = numpy.add.accumulate if kind == "sum" else numpy.multiply.accumulate
        with numpy.errstate(all="ignore"):
            return torch.from_numpy(accumulate(values.numpy(), axis=-1, dtype=values.numpy().dtype))
    found = (torch.cummax if kind in ("amax", "argmax") else torch.cummin)(values, -1)
    return found.indices if kind in ("argmax", "argmin") else found.values


def _products(elements: Enclosure) -> tuple[torch.Tensor, torch.Tensor]:
    lows, highs = elements.low.unbind(-1), elements.high.unbind(-1)
    low, high = [lows[0]], [highs[0]]
    for one, other in zip(lows[1:], highs[1:], strict=True):
        corners = torch.stack([a * b for a in (low[-1], high[-1]) for b in (one, other)])
        low.append(corners.amin(0))
        high.append(corners.amax(0))
    return torch.stack(low, -1), torch.stack(high, -1)


def _logaddexps(elements: Enclosure) -> tuple[torch.Tensor, torch.Tensor]:
    """Each step is an elementary function of its own, and monotone."""
    ends = []
    for part, up in ((elements.low, False), (elements.high, True)):
        found: list[torch.Tensor] = []
        for element in part.unbind(-1):
            merged = torch.logaddexp(found[-1], element) if found else element
            found.append(steps(merged, 2 * ULPS["log1p"], up=up) if len(found) else merged)
        ends.append(torch.stack(found, -1))
    return ends[0], ends[1]


# -- scatters ---------------------------------------------------------------------------------------------------------


def _scatter(
    data: Scatter, body: LoopBody, inputs: Mapping[str, torch.Tensor | Enclosure], layout: Layout
) -> Enclosure:
    """The enclosure of what a scatter leaves, in row-major order of its result."""
    evaluator = EnclosingEvaluator(inputs, iteration_symbols(body, data.ranges))
    target, values = body.replay_target(evaluator)
    places = evaluator.subscript(target).expand(data.ranges).reshape(-1)
    values = values.reshaped(lambda part: part.expand(data.ranges).reshape(-1))
    base = inputs[data.base]
    storages = [_merge(base, places, part, data.kind) for part in (values.value, *values.ends)]
    value, low, high = storages[0], storages[1], storages[-1]
    free = None
    if values.free is not None:
        touched = torch.zeros(base.shape, dtype=torch.bool)
        touched[places[values.free]] = True
        free = touched
    if any(symbol.name in evaluator.loose for symbol in target.symbols):
        free = torch.ones(base.shape, dtype=torch.bool)  # who knows where an element goes
    if values.lower is not None and data.kind == "prod":  # not monotone: judged where factors are certain
        unsure = torch.zeros(base.shape, dtype=torch.bool)
        wide = values.wide
        assert wide is not None
        unsure[places[wide.expand(places.shape)]] = True
        free = either(free, unsure)
    if data.kind in ("amax", "amin") and value.dtype.is_floating_point:
        zero = torch.zeros((), dtype=value.dtype)
        low, high = torch.where(low == 0, -zero, low), torch.where(high == 0, zero, high)
    found = Enclosure(value, low, high, free)
    return found.reshaped(lambda part: view_of(part, layout).reshape(-1))


_AT = {"sum": numpy.add, "prod": numpy.multiply, "amax": numpy.maximum, "amin": numpy.minimum}


def _merge(base: torch.Tensor, places: torch.Tensor, values: torch.Tensor, kind: str) -> torch.Tensor:
    """As :func:`~staxlab.loops.semantics.scattered`, by NumPy's unbuffered loop where that has the dtype: it, too, goes
    through equal subscripts in order."""
    if compute_dtype(base.dtype) != base.dtype or base.dtype == torch.bool:
        return scattered(base, places, values, kind)
    storage = base.clone()
    if kind == "store":
        storage.numpy()[places.numpy()] = values.numpy()
    else:
        with numpy.errstate(all="ignore"):
            _AT[kind].at(storage.numpy(), places.numpy(), values.numpy())
    return storage
