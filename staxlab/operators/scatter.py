"""Scatter inverses (Proposition 4.4): the new contents of a tensor, given those of a view of it.

For ``v = view(b)`` and new contents ``v'`` of the view, ``scatter(b, v')`` equals ``v'`` where the view looks and ``b``
elsewhere, so that ``view(scatter(b, v')) = v'``. A view that shows all elements, if in another order, as other numbers
or with a pending conjugation, has an inverse that does not need ``b``. A view that shows an element twice has none:
which of the two values would be kept?
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from .tensors import ViewStep

aten = torch.ops.aten
Tensor = torch.Tensor


class NotCovered(Exception):
    """A write that cannot be turned into values; the message says why, ``kind`` what an obstacle of that sort is
    called (:class:`~staxlab.operators.graph.Obstacle`)."""

    def __init__(self, message: str, kind: str = "mutation"):
        super().__init__(message)
        self.kind = kind


INVERSES: dict[Any, Callable[..., Tensor]] = {}


def inverse_of(*overloads: Any) -> Callable[[Callable], Callable]:
    """Decorator: the function ``scatter(base, contents, *view arguments)`` inverts these view operators."""

    def register(function: Callable) -> Callable:
        for overload in overloads:
            INVERSES[overload] = function
        return function

    return register


def scatter(base: Tensor, contents: Tensor, step: ViewStep) -> Tensor:
    """``base`` with ``contents`` where the view looks. NotCovered for a view without an inverse."""
    if step.route:
        seen = [base]
        for part in step.route[:-1]:
            seen.append(part(seen[-1]))
        for viewed, part in zip(reversed(seen), reversed(step.route), strict=True):
            contents = scatter(viewed, contents, part)
        return contents
    if step.part is not None:
        return _scatter_part(base, contents, step)
    inverse = INVERSES.get(step.function)
    if inverse is None:
        raise NotCovered(f"it writes through {step.function}, which has no scatter inverse")
    return inverse(base, contents, *step.args, **dict(step.kwargs))


def _scatter_part(base: Tensor, contents: Tensor, step: ViewStep) -> Tensor:
    """One of the parts of a split or unbind is a slice or a selection."""
    named = dict(step.kwargs)
    if step.function is aten.unbind.int:
        return aten.select_scatter.default(
            base, contents, step.args[0] if step.args else named.get("dim", 0), step.part
        )
    if step.function not in (aten.split.Tensor, aten.split_with_sizes.default):
        raise NotCovered(f"it writes through {step.function}, which has no scatter inverse")
    dim = step.args[1] if len(step.args) > 1 else named.get("dim", 0)
    sizes = step.args[0]
    start = sizes * step.part if isinstance(sizes, int) else sum(sizes[: step.part])
    return aten.slice_scatter.default(base, contents, dim, start, start + contents.shape[dim], 1)


# -- parts ------------------------------------------------------------------------------------------------------------


@inverse_of(aten.select.int)
def _unselect(base: Tensor, contents: Tensor, dim: int, position: int) -> Tensor:
    return aten.select_scatter.default(base, contents, dim, position)


@inverse_of(aten.slice.Tensor)
def _unslice(base: Tensor, contents: Tensor, dim: int = 0, start=None, end=None, step: int = 1) -> Tensor:
    return aten.slice_scatter.default(base, contents, dim, start, end, step)


@inverse_of(aten.diagonal.default)
def _undiagonal(base: Tensor, contents: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    return aten.diagonal_scatter.default(base, contents, offset, dim1, dim2)


@inverse_of(aten.unfold.default)
def _unfold(base: Tensor, contents: Tensor, dim: int, size: int, step: int) -> Tensor:
    """Window by window, or place by place in all windows at once, whichever is less."""
    if base.dim() == 0:
        return contents.reshape(())
    dim %= base.dim()
    count = contents.shape[dim]
    if size <= count:
        for place in range(size):
            last = place + (count - 1) * step + 1
            base = aten.slice_scatter.default(base, contents.select(-1, place), dim, place, last, step)
        return base
    for window in range(count):
        part = contents.select(dim, window).movedim(-1, dim)
        base = aten.slice_scatter.default(base, part, dim, window * step, window * step + size, 1)
    return base


@inverse_of(aten.as_strided.default)
def _unstrided(base: Tensor, contents: Tensor, size: list[int], stride: list[int], offset: int | None = None) -> Tensor:
    dimensions = zip(size, stride, base.stride(), strict=False)
    if offset is None and tuple(size) == tuple(base.shape) and all(n == 1 or a == b for n, a, b in dimensions):
        return contents
    return aten.as_strided_scatter.default(base, contents, size, stride, offset)


# -- all elements, in another order -----------------------------------------------------------------------------------


@inverse_of(aten.t.default)
def _untranspose_matrix(base: Tensor, contents: Tensor) -> Tensor:
    return aten.t.default(contents)


@inverse_of(aten.transpose.int)
def _untranspose(base: Tensor, contents: Tensor, first: int, second: int) -> Tensor:
    return aten.transpose.int(contents, first, second)


@inverse_of(aten.permute.default)
def _unpermute(base: Tensor, contents: Tensor, order: list[int]) -> Tensor:
    rank = base.dim()
    back = [0] * rank
    for place, dimension in enumerate(order):
        back[dimension % rank] = place
    return aten.permute.default(contents, back)


@inverse_of(
    aten.view.default, aten._unsafe_view.default, aten._reshape_alias.default, aten.unsqueeze.default,
    aten.squeeze.default, aten.squeeze.dim, aten.squeeze.dims,
)  # fmt: skip
def _unreshape(base: Tensor, contents: Tensor, *_: Any) -> Tensor:
    return contents.reshape(base.shape)


@inverse_of(aten.alias.default, aten.detach.default)
def _unalias(base: Tensor, contents: Tensor, *_: Any) -> Tensor:
    return contents


# -- all elements, as other numbers -----------------------------------------------------------------------------------


@inverse_of(aten._conj.default)
def _unconjugate(base: Tensor, contents: Tensor) -> Tensor:
    return aten.conj_physical.default(contents)


@inverse_of(aten._neg_view.default)
def _unnegate(base: Tensor, contents: Tensor) -> Tensor:
    return aten.neg.default(contents)


@inverse_of(aten.view_as_real.default)
def _as_complex(base: Tensor, contents: Tensor) -> Tensor:
    return aten.view_as_complex.default(contents.contiguous())


@inverse_of(aten.view_as_complex.default)
def _as_real(base: Tensor, contents: Tensor) -> Tensor:
    return aten.view_as_real.default(contents)


@inverse_of(aten.view.dtype)
def _as_dtype(base: Tensor, contents: Tensor, dtype: torch.dtype) -> Tensor:
    """The same bytes; those of one element may make several, which must then lie side by side."""
    return aten.view.dtype(contents.contiguous(), base.dtype)
