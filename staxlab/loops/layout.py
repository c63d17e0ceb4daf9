"""Views as changes of subscript (Section 6.4, Proposition 6.2).

A view moves no data: it says which element of the viewed tensor each of its own subscripts means. Permuting, slicing,
broadcasting, inserting and dropping dimensions are affine maps ``pi(i) = A i + c``, and on storage with strides ``t``
and offset ``o`` they only make new strides ``A^T t`` and a new offset ``o + t^T c``. Maps compose as functions do, so
any stack of views is one map. A reshape is affine where the merged dimensions lie seamlessly one after the other
(``t_j = s_(j+1) t_(j+1)``); elsewhere floor-division and modulo stay in the subscript.

An :class:`IndexMap` is such a map from subscripts of the view to subscripts of what is viewed. :func:`layout_through`
applies Proposition 6.2 by running the map on symbolic subscripts and reading off the coefficients, which needs no
case distinction: if the address is affine its coefficients are the strides, and if it is not there is no layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .expressions import ZERO, Expr, Symbol
from .ir import Index, Layout


@dataclass(frozen=True)
class IndexMap:
    """A map from subscripts of a view of ``shape`` to subscripts of the viewed value. ``relaid`` finds the layout of
    the view of a layout where subscripts are a detour, and gives None where there is none or it does not know. ``name``
    is the kind of map, for whoever reads it."""

    shape: tuple[int, ...]
    function: Callable[[Index], Index]
    relaid: Callable[[Layout], Layout | None] | None = None
    name: str = "view"

    def __call__(self, index: Index) -> Index:
        return self.function(index)

    def after(self, outer: IndexMap) -> IndexMap:
        """The map of a view (``outer``) of this view."""

        def relaid(layout: Layout) -> Layout | None:
            inner = layout_through(layout, self)
            return None if inner is None else layout_through(inner, outer)

        known = self.relaid is not None or outer.relaid is not None
        return IndexMap(outer.shape, lambda index: self.function(outer.function(index)), relaid if known else None)

    def affine(self) -> tuple[tuple[tuple[int, ...], ...], tuple[int, ...]] | None:
        """The matrix A (one row for each dimension of what is viewed) and the vector c, or None."""
        symbols = _symbols(self.shape)
        rows: list[tuple[int, ...]] = []
        offsets: list[int] = []
        for position in self.function(tuple(Expr.of(s) for s in symbols)):
            found = Expr.of(position).affine(symbols)
            if found is None:
                return None
            rows.append(found[0])
            offsets.append(found[1])
        return tuple(rows), tuple(offsets)


def _symbols(shape: Sequence[int]) -> tuple[Symbol, ...]:
    return tuple(Symbol(f"i{k}", 0, max(extent - 1, 0)) for k, extent in enumerate(shape))


def layout_through(layout: Layout, view: IndexMap | None) -> Layout | None:
    """The layout of a view of a stored value: ``t' = A^T t``, ``o' = o + t^T c``; None where it is not affine."""
    if view is None:
        return layout
    if view.relaid is not None and (found := view.relaid(layout)) is not None:
        return found
    symbols = _symbols(view.shape)
    address = layout.address(view(tuple(Expr.of(s) for s in symbols)))
    found = address.affine(symbols)
    if found is None:
        return None
    return Layout(view.shape, found[0], layout.dtype, layout.device, found[1])


def numel(shape: Sequence[int]) -> int:
    count = 1
    for extent in shape:
        count *= extent
    return count


def contiguous_stride(shape: Sequence[int]) -> tuple[int, ...]:
    stride: list[int] = []
    step = 1
    for extent in reversed(shape):
        stride.append(step)
        step *= max(extent, 1)
    return tuple(reversed(stride))


def same_stride(shape: Sequence[int], first: Sequence[int], second: Sequence[int]) -> bool:
    """Whether two stride vectors address alike: those of dimensions of one element (or of none) do not matter."""
    return numel(shape) == 0 or all(n == 1 or a == b for n, a, b in zip(shape, first, second, strict=True))


def is_injective(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether no two elements share an address (gaps are fine), decided by nesting: each stride, in increasing order,
    must clear what the smaller ones span. Sound, and complete for layouts eager execution allocates."""
    span = 0
    for step, extent in sorted((step, extent) for step, extent in zip(stride, shape, strict=True) if extent > 1):
        if step <= span:
            return numel(shape) == 0
        span += step * (extent - 1)
    return True


def is_dense(shape: Sequence[int], stride: Sequence[int]) -> bool:
    """Whether the elements fill a block of storage without gaps or overlaps."""
    expected = 1
    for step, extent in sorted((step, extent) for step, extent in zip(stride, shape, strict=True) if extent != 1):
        if step != expected:
            return numel(shape) == 0
        expected *= extent
    return True


# -- the maps ---------------------------------------------------------------------------------------------------------


def permuted(shape: Sequence[int], order: Sequence[int]) -> IndexMap:
    """Dimension ``k`` of the view is dimension ``order[k]`` of the viewed."""
    place = {dimension: k for k, dimension in enumerate(order)}
    view = tuple(shape[d] for d in order)
    return IndexMap(view, lambda i: tuple(i[place[d]] for d in range(len(order))), name="permute")


def broadcast(shape: Sequence[int], target: Sequence[int]) -> IndexMap:
    """Stretch dimensions of extent 1, add new ones in front."""
    lead = len(target) - len(shape)
    kept = [(k + lead, extent == 1) for k, extent in enumerate(shape)]
    return IndexMap(tuple(target), lambda i: tuple(ZERO if single else i[k] for k, single in kept), name="broadcast")


def sliced(shape: Sequence[int], dimension: int, start: int, extent: int, step: int) -> IndexMap:
    """``extent`` positions ``start, start + step, ...`` of one dimension. A negative step flips."""
    view = list(shape)
    view[dimension] = extent
    return IndexMap(
        tuple(view), lambda i: (*i[:dimension], start + step * i[dimension], *i[dimension + 1 :]), name="slice"
    )


def selected(shape: Sequence[int], dimension: int, position: int) -> IndexMap:
    """One position of one dimension, which disappears."""
    fixed = Expr.of(position)
    view = (*shape[:dimension], *shape[dimension + 1 :])
    return IndexMap(view, lambda i: (*i[:dimension], fixed, *i[dimension:]), name="select")


def squeezed(shape: Sequence[int], dimensions: Sequence[int]) -> IndexMap:
    """Drop dimensions of extent 1."""
    dropped = set(dimensions)
    kept = [k for k in range(len(shape)) if k not in dropped]
    place = {dimension: k for k, dimension in enumerate(kept)}

    def function(i: Index) -> Index:
        return tuple(i[place[k]] if k in place else ZERO for k in range(len(shape)))

    return IndexMap(tuple(shape[k] for k in kept), function, name="squeeze")


def unsqueezed(shape: Sequence[int], dimension: int) -> IndexMap:
    """Insert a dimension of extent 1."""
    view = (*shape[:dimension], 1, *shape[dimension:])
    return IndexMap(view, lambda i: (*i[:dimension], *i[dimension + 1 :]), name="unsqueeze")


def diagonal(shape: Sequence[int], offset: int, first: int, second: int) -> IndexMap:
    """The diagonal of two dimensions as a new last one."""
    rows, columns = (0, offset) if offset >= 0 else (-offset, 0)
    length = max(min(shape[first] - rows, shape[second] - columns), 0)
    others = [k for k in range(len(shape)) if k not in (first, second)]

    def function(i: Index) -> Index:
        place = dict(zip(others, i, strict=False))
        place[first], place[second] = i[-1] + rows, i[-1] + columns
        return tuple(place[k] for k in range(len(shape)))

    return IndexMap((*(shape[k] for k in others), length), function, name="diagonal")


def unfolded(shape: Sequence[int], dimension: int, size: int, step: int) -> IndexMap:
    """Windows of ``size`` every ``step`` along a dimension; the position inside a window is a new last dimension."""
    view = list(shape)
    view[dimension] = (shape[dimension] - size) // step + 1
    return IndexMap(
        (*view, size), lambda i: (*i[:dimension], step * i[dimension] + i[-1], *i[dimension + 1 : -1]), name="unfold"
    )


def reshaped(shape: Sequence[int], target: Sequence[int]) -> IndexMap:
    """The same elements in row-major order under another shape.

    The two shapes are first cut into the smallest runs of dimensions with equal products, so dimensions a reshape does
    not touch keep their subscript as it is; inside a run the row-major number is taken apart again. That quotients and
    remainders by numbers which do not divide one another add up to the number itself (``(2, 2, 3)`` seen as ``(3, 4)``)
    is nothing the normal form of subscripts knows, so PyTorch's rule for views is asked for the layout.
    """
    if numel(target) == 0:
        return IndexMap(tuple(target), lambda i: tuple(ZERO for _ in shape), name="reshape")

    def relaid(layout: Layout) -> Layout | None:
        geometry = torch.empty_strided(layout.shape, layout.stride, device="meta")
        try:
            stride = geometry.view(tuple(target)).stride()
        except RuntimeError:
            return None
        return Layout(tuple(target), stride, layout.dtype, layout.device, layout.offset)

    runs = matching_runs(shape, target)

    def function(i: Index) -> Index:
        result: list[Expr] = []
        for (old_start, old_stop), (new_start, new_stop) in runs:
            olds = shape[old_start:old_stop]
            flat = ZERO
            for extent, position in zip(target[new_start:new_stop], i[new_start:new_stop], strict=True):
                if extent != 1:
                    flat = flat * extent + position
            rest = numel(olds)
            for extent in olds:
                rest //= extent
                outermost = rest * extent == numel(olds)
                if extent == 1:
                    result.append(ZERO)
                else:
                    quotient = flat // rest if rest > 1 else flat
                    result.append(quotient if outermost else quotient % extent)
        return tuple(result)

    return IndexMap(tuple(target), function, relaid, "reshape")


def matching_runs(old: Sequence[int], new: Sequence[int]) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """The smallest runs of dimensions, (first, behind the last), of two shapes of as many elements whose products are
    equal: what a reshape takes together and apart."""
    runs: list[tuple[tuple[int, int], tuple[int, int]]] = []
    a = b = 0
    while a < len(old) or b < len(new):
        start_a, start_b = a, b
        left = right = 1
        if a < len(old):
            left, a = old[a], a + 1
        if b < len(new):
            right, b = new[b], b + 1
        while left != right:
            if left < right:
                left, a = left * old[a], a + 1
            else:
                right, b = right * new[b], b + 1
        runs.append(((start_a, a), (start_b, b)))
    return runs
