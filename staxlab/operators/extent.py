"""Which bytes of a memory does a tensor cover? (Section 4.9)

A write through a view changes its base and every other tensor that looks at the same bytes. Whether two tensors have a
byte in common, whether one holds all of another, whether a tensor looks at some element twice: all of it follows from
shapes, strides and offsets, which are part of the specialization key (Section 2.1), so an answer found on the sample
holds for every call that shares the program.

The answers are exact. Where the strides do not say it plainly, a map of the memory with one cell for each byte (or for
the largest block that all agree on) is marked, which costs as much as an operator over the tensors themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from .tensors import ViewStep, Window

aten = torch.ops.aten

MOST_CELLS = 1 << 28  # of a map; beyond that the answer is "not apart", which costs a copy or a fallback


def is_injective(window: Window) -> bool:
    """Whether no two elements share a byte. O(rank log rank) where each stride clears what the smaller ones span, else
    O(bytes spanned)."""
    if _nested(window):
        return True
    cells = _Map([window])
    if not cells.fits:
        return False
    cells.mark(window)
    return int(cells.cells.sum()) == window.numel * (window.itemsize // cells.unit)


def _nested(window: Window) -> bool:
    reach = 0
    for stride, extent in sorted((s, n) for s, n in zip(window.stride, window.shape, strict=True) if n != 1):
        if stride <= reach:
            return window.numel == 0
        reach += (extent - 1) * stride
    return True


def _is_dense(window: Window) -> bool:
    """Whether it covers every byte from its first to its last, each once."""
    return window.end - window.start == window.numel * window.itemsize and _nested(window)


def apart(windows: Sequence[Window]) -> bool:
    """Whether no byte of one memory belongs to two of the windows. O(n log n) where their spans are disjoint, else
    O(bytes spanned)."""
    windows = sorted((w for w in windows if w.numel), key=lambda w: w.start)
    neighbours = [(a, b) for a, b in zip(windows, windows[1:], strict=False) if b.start < a.end]
    if not neighbours:
        return True
    if any(_is_dense(a) for a, _ in neighbours):
        return False
    cells = _Map(windows)
    if not cells.fits:
        return False
    for window in windows:
        if cells.look(window).any():
            return False
        cells.mark(window)
    return True


def contains(outer: Window, inner: Window) -> bool:
    """Whether every byte of ``inner`` is one of ``outer``."""
    if inner.numel == 0:
        return True
    if outer.numel == 0 or inner.start < outer.start or inner.end > outer.end:
        return False
    if _is_dense(outer):
        return True
    cells = _Map([outer, inner])
    if not cells.fits:
        return False
    cells.mark(outer)
    return bool(cells.look(inner).all())


class _Map:
    """A map of the memory that some windows span, in cells of the largest size that divides all they are made of."""

    def __init__(self, windows: Sequence[Window]):
        first = min((w.start for w in windows), default=0)
        last = max((w.end for w in windows), default=0)
        self.first = first
        self.unit = math.gcd(*(w.itemsize for w in windows), *(w.start - first for w in windows)) or 1
        size = (last - first) // self.unit
        self.fits = size <= MOST_CELLS
        self.cells = torch.zeros(size if self.fits else 0, dtype=torch.bool, device="cpu")

    def look(self, window: Window) -> torch.Tensor:
        width = window.itemsize // self.unit
        stride = (*(s * width for s in window.stride), 1)
        return self.cells.as_strided((*window.shape, width), stride, (window.start - self.first) // self.unit)

    def mark(self, window: Window) -> None:
        self.look(window).fill_(True)


# -- from a window to one inside it -----------------------------------------------------------------------------------


def route(outer: Window, inner: Window) -> tuple[ViewStep, ...] | None:
    """View operators that lead from a tensor that covers ``outer`` to one that covers ``inner`` in the same order, each
    of which has a scatter inverse; None where there are none. None of them counts from the start of a storage, so they
    hold for any tensor of this shape and these strides."""
    if outer.itemsize != inner.itemsize or (inner.start - outer.start) % inner.itemsize or not contains(outer, inner):
        return None
    offset = (inner.start - outer.start) // inner.itemsize
    if offset == 0 and (outer.shape, outer.stride) == (inner.shape, inner.stride):
        return (ViewStep(aten.alias.default, ()),)
    if not _nested(outer) or inner.numel == 0:
        return None
    steps = _by_dimensions(outer, inner, offset) or _by_position(outer, inner, offset)
    if steps is None:
        return None
    found = torch.empty_strided(outer.shape, outer.stride, device="meta")
    for step in steps:
        found = step(found)
    if found.stride() == inner.stride:
        return steps
    # Dimensions of one element may have any stride, which results of operators take over.
    return (*steps, ViewStep(aten.as_strided.default, (list(inner.shape), list(inner.stride))))


def _by_dimensions(outer: Window, inner: Window, offset: int) -> tuple[ViewStep, ...] | None:
    """Slices and selections of the dimensions of ``outer``, then their order in ``inner``."""
    first = {}
    by_stride = sorted((d for d, n in enumerate(outer.shape) if n > 1), key=lambda d: -outer.stride[d])
    for d in by_stride:
        first[d] = min(offset // outer.stride[d], outer.shape[d] - 1)
        offset -= first[d] * outer.stride[d]
    if offset:
        return None
    meant: dict[int, tuple[int, int]] = {}  # dimension of outer: (dimension of inner, step)
    wide = [k for k, n in enumerate(inner.shape) if n > 1]
    for k in wide:
        for d in by_stride:
            step, rest = divmod(inner.stride[k], outer.stride[d])
            if d not in meant and step and not rest and first[d] + (inner.shape[k] - 1) * step < outer.shape[d]:
                meant[d] = (k, step)
                break
        else:
            return None
    steps = []
    for d in reversed(range(len(outer.shape))):
        if d not in meant:
            steps.append(ViewStep(aten.select.int, (d, first.get(d, 0))))
            continue
        k, step = meant[d]
        last = first[d] + (inner.shape[k] - 1) * step + 1
        if (first[d], last, step) != (0, outer.shape[d], 1):
            steps.append(ViewStep(aten.slice.Tensor, (d, first[d], last, step)))
    order = [meant[d][0] for d in sorted(meant)]
    back = [order.index(k) for k in wide]
    if back != sorted(back):
        steps.append(ViewStep(aten.permute.default, (back,)))
    steps += [ViewStep(aten.unsqueeze.default, (k,)) for k, n in enumerate(inner.shape) if n == 1]
    return tuple(steps) or (ViewStep(aten.alias.default, ()),)


def memory_order(shape: Sequence[int], stride: Sequence[int]) -> list[int]:
    """The dimensions from the one with the largest steps to the one with the smallest."""
    return sorted(range(len(shape)), key=lambda d: (-stride[d], shape[d] == 1))


def _by_position(outer: Window, inner: Window, offset: int) -> tuple[ViewStep, ...] | None:
    """A window on the elements of a tensor without gaps, laid out in a row."""
    if not _is_dense(outer):
        return None
    order = memory_order(outer.shape, outer.stride)
    steps = [ViewStep(aten.permute.default, (order,))] if order != sorted(order) else []
    steps.append(ViewStep(aten.view.default, ([outer.numel],)))
    wide = [k for k, n in enumerate(inner.shape) if n > 1]
    reach = (inner.end - inner.start) // inner.itemsize
    in_row = len(wide) == 1 and inner.stride[wide[0]] > 0
    step = inner.stride[wide[0]] if in_row else 1
    steps.append(ViewStep(aten.slice.Tensor, (0, offset, offset + reach, step)))
    if in_row or _is_contiguous(inner):
        steps.append(ViewStep(aten.view.default, (list(inner.shape),)))
    else:
        steps.append(ViewStep(aten.as_strided.default, (list(inner.shape), list(inner.stride))))
    return tuple(steps)


def _is_contiguous(window: Window) -> bool:
    expected = 1
    for stride, extent in zip(reversed(window.stride), reversed(window.shape), strict=True):
        if extent != 1 and stride != expected:
            return False
        expected *= extent
    return True
