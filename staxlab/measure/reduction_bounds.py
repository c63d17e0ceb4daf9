"""Between which numbers the result of a reordered reduction must lie (Section 6.5, Theorem 6.3).

A kernel that splits a sum into lanes, accumulators and pieces keeps the sum over the *real* numbers and nothing else.
So a result is judged by the exact sum of the very values the body yields, computed in float64: it may be off by
``gamma(h) * sum(|a_i|)``, ``h`` the height of the kernel's summation tree (:mod:`.rounding`). In relative terms that is
the condition number ``sum(|a_i|) / |sum(a_i)|`` times ``gamma(h)``: data that cancel get more room, by just as much.
A product of ``n`` factors may be off by ``gamma(n - 1)`` of itself in any order.

The bound is zero where no addition can round: if all values are multiples of one power of two and the sum of their
magnitudes stays below 2**24 of it, every order gives the same bits. Data of that kind make a lost summand visible that
a bound for a hundred thousand summands would hide.

Extremes, logical reductions, and sums and products of integers have one value in any order, and are judged exactly; of
an extreme that is zero the sign is open, since IEEE 754 does not order the zeros.
"""

from __future__ import annotations

import math

import torch

from ..loops.enclosure import Enclosure, either
from ..loops.semantics import fold
from .rounding import gamma

QUANTA = (1.0, 0.5, 2.0**-3, 2.0**-6, 2.0**-10)  # multiples of one are added without error while the sum is small

#: More elements than this are not folded one by one where torch's own reduction has the same value.
LONGEST_FOLD = 4096


def reorders(kind: str, accumulate: torch.dtype) -> bool:
    """Whether the order of a reduction can change its value: sums and products of floating-point numbers."""
    return kind in ("sum", "prod") and accumulate.is_floating_point


def enclose_reduction(
    elements: Enclosure, kind: str, merged_axes: int, accumulate: torch.dtype, height: int | None
) -> Enclosure:
    """The enclosure of a reduction over the last ``merged_axes`` axes of its elements.

    ``height`` is that of the kernel's summation tree, or None for a kernel that adds in the order of the semantics: it
    must match the fold. O(elements).
    """
    outer = elements.value.shape[: elements.value.dim() - merged_axes]
    count = math.prod(elements.value.shape[len(outer) :])
    flat = elements.reshaped(lambda part: part.reshape(*outer, count))
    free = None if flat.free is None else flat.free.any(-1)
    if count == 0:
        return Enclosure(fold(flat.value, kind, 1, accumulate))
    if kind in ("argmax", "argmin"):
        return _position(flat, kind, accumulate, free)
    if reorders(kind, accumulate) and (height is not None or (kind == "prod" and flat.lower is not None)):
        if kind == "sum":
            found = _sum(flat, accumulate, count - 1 if height is None else height)
        else:
            found = _product(flat, accumulate)
        return Enclosure(found.value, found.lower, found.upper, either(free, found.free))
    ends = [_fold(part, kind, accumulate) for part in (flat.value, *flat.ends)]
    if flat.lower is not None and not accumulate.is_floating_point and kind in ("sum", "prod"):
        wide = flat.wide
        return Enclosure(ends[0], free=either(free, None if wide is None else wide.any(-1)))
    if kind in ("amax", "amin") and accumulate.is_floating_point:
        zero = torch.zeros((), dtype=accumulate)
        return Enclosure(ends[0], torch.where(ends[1] == 0, -zero, ends[1]), torch.where(ends[-1] == 0, zero, ends[-1]),
                         free)  # fmt: skip
    return Enclosure(ends[0], free=free) if flat.lower is None else Enclosure(ends[0], ends[1], ends[-1], free)


def _fold(values: torch.Tensor, kind: str, accumulate: torch.dtype) -> torch.Tensor:
    if kind in ("amax", "amin") and values.shape[-1] > LONGEST_FOLD:
        return getattr(torch, kind)(values, -1)
    return fold(values, kind, 1, accumulate)


def _position(flat: Enclosure, kind: str, accumulate: torch.dtype, free: torch.Tensor | None) -> Enclosure:
    """The position of an extreme: certain where one element's interval lies beyond all others."""
    found = fold(flat.value, kind, 1, accumulate)
    if flat.lower is None:
        return Enclosure(found, free=free)
    low, high = (flat.low, flat.high) if kind == "argmax" else (-flat.high, -flat.low)
    candidates = (high >= low.amax(-1, keepdim=True)).sum(-1)
    wide = flat.wide
    assert wide is not None
    return Enclosure(found, free=either(free, wide.any(-1) & (candidates != 1)))


def _sum(flat: Enclosure, accumulate: torch.dtype, height: int) -> Enclosure:
    value = flat.value.double().sum(-1) + 0.0
    low, high = (part.double().sum(-1) + 0.0 for part in (flat.low, flat.high))
    size = torch.maximum(flat.low.abs(), flat.high.abs()).double().sum(-1)
    error = (gamma(height, accumulate) + gamma(flat.value.shape[-1], torch.float64)) * size
    if flat.lower is None:
        for quantum in QUANTA:
            scaled = flat.value.double() / quantum
            exact = (scaled == scaled.floor()).all(-1) & (size / quantum < 2.0 ** _digits(accumulate))
            error = torch.where(exact, 0.0, error)
    overflows = flat.value.isfinite().all(-1) & ~(size + error <= torch.finfo(accumulate).max)
    finite = value.isfinite()
    lower = torch.where(finite, low - error, value)
    upper = torch.where(finite, high + error, value)
    return Enclosure(value.to(accumulate), lower.to(accumulate), upper.to(accumulate), overflows)


def _product(flat: Enclosure, accumulate: torch.dtype) -> Enclosure:
    """A relative error for each multiplication, as long as no order can leave the normal numbers on its way. Unlike a
    sum, a product has all its roundings as factors, whatever the tree."""
    wide = flat.value.double()
    value = wide.prod(-1)
    sizes = torch.where(wide.isfinite() & (wide != 0), wide.abs(), torch.ones_like(wide)).log2()
    info = torch.finfo(accumulate)
    largest, least = math.log2(info.max), math.log2(info.smallest_normal)
    leaves = (sizes.clamp_min(0).sum(-1) > largest - 1) | (sizes.clamp_max(0).sum(-1) < least + 1)
    spread = torch.zeros_like(value)
    if flat.lower is not None:
        relative = (flat.high.double() - flat.low.double()) / torch.minimum(flat.low.abs(), flat.high.abs()).double()
        spread = torch.expm1(torch.where(relative.isnan(), 0.0, relative).log1p().sum(-1))
        leaves = leaves | spread.isinf()
    count = flat.value.shape[-1]
    error = (gamma(count - 1, accumulate) + gamma(count, torch.float64)) * (1 + spread) + spread
    exact = ~value.isfinite() | (value == 0)
    lower, upper = value - error * value.abs(), value + error * value.abs()
    return Enclosure(
        value.to(accumulate), torch.where(exact, value, lower).to(accumulate),
        torch.where(exact, value, upper).to(accumulate), leaves,
    )  # fmt: skip


def _digits(dtype: torch.dtype) -> int:
    return {torch.float64: 53, torch.float32: 24}[dtype]
