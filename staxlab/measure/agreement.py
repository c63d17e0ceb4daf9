"""Whether two runs of a program agree (Section 11.4): bit for bit, or in units of the bound of each element.

Runs that call the same operators have to agree bit for bit, NaN being NaN. Others may differ by what rounding allows
for the very data at hand (:mod:`.tolerance` chooses it); the largest difference is told in units of its bound, so that
1 is the limit whatever the scale or the condition of the values. NaN and infinities have to be where they are.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .rounding import unit_roundoff


@dataclass(frozen=True)
class Difference:
    """What disagrees first. ``value`` names it ("result 0", "gradient of x"); ``element`` is the first wrong one, with
    what was ``computed`` and ``expected`` there and by how much they may differ (``bound``, absolute; 0: not at all).
    ``wrong`` of ``elements`` are wrong. ``what`` says it where it is no element that differs."""

    value: str
    element: tuple[int, ...] = ()
    computed: Any = None
    expected: Any = None
    bound: float = 0.0
    wrong: int = 0
    elements: int = 0
    what: str = ""

    def __str__(self) -> str:
        if self.what:
            return f"{self.value}: {self.what}"
        place = f"[{', '.join(map(str, self.element))}]" if self.element else ""
        room = f", {self.bound:.3g} either way being allowed" if self.bound else ""
        return (
            f"{self.value}{place} is {self.computed!r} in the place of {self.expected!r}{room} "
            f"({self.wrong:,} of {self.elements:,} elements are wrong)"
        )


@dataclass(frozen=True)
class Agreement:
    """The verdict on two runs. ``identical``: bit for bit; else ``share`` is the largest error in units of its bound,
    found where ``error`` is the error and ``bound`` the bound (both absolute), and ``condition`` how many units of
    roundoff of the value that bound is. ``difference`` is None where they agree."""

    identical: bool
    share: float = 0.0
    error: float = 0.0
    bound: float = 0.0
    condition: float = 0.0
    open: int = 0
    difference: Difference | None = None

    @property
    def agrees(self) -> bool:
        return self.difference is None


def compare(
    computed: Sequence[Any],
    expected: Sequence[Any],
    names: Sequence[str],
    bounds: Sequence[torch.Tensor | None] | None = None,
) -> Agreement:
    """Compare values one by one. Without ``bounds`` (absolute, float64, NaN where anything goes) tensors must be equal
    bit for bit. O(elements)."""
    if len(computed) != len(expected):
        what = f"there are {len(computed)} values in the place of {len(expected)}"
        return Agreement(False, math.inf, difference=Difference("results", what=what))
    identical, worst, count = True, (0.0, 0.0, 0.0, 0.0), 0
    for place, (one, other) in enumerate(zip(computed, expected, strict=True)):
        name = names[place] if place < len(names) else f"value {place}"
        bound = bounds[place] if bounds is not None and place < len(bounds) else None
        found = _compare(one, other, name, bound)
        if found.difference is not None:
            return found
        identical &= found.identical
        count += found.open
        worst = max(worst, (found.share, found.error, found.bound, found.condition))
    return Agreement(identical, *worst, count)


def _compare(one: Any, other: Any, name: str, bound: torch.Tensor | None) -> Agreement:
    if not isinstance(other, torch.Tensor) or not isinstance(one, torch.Tensor):
        return _compare_plain(one, other, name)
    for fact in ("dtype", "shape", "device", "layout"):
        mine, theirs = getattr(one, fact), getattr(other, fact)
        if mine != theirs:
            words = f"{fact} {list(mine) if fact == 'shape' else mine} in the place of "
            words += f"{list(theirs) if fact == 'shape' else theirs}"
            return Agreement(False, math.inf, difference=Difference(name, what=words.replace("torch.", "")))
    if other.layout is not torch.strided:
        one, other = one.to_dense(), other.to_dense()
    one, other = one.detach(), other.detach()
    if one.dtype.is_complex:
        one, other = torch.view_as_real(one.resolve_conj()), torch.view_as_real(other.resolve_conj())
        bound = None if bound is None else bound.unsqueeze(-1).expand(one.shape)
    same = same_bits(one, other)
    if bool(same.all()):
        return Agreement(True)
    if bound is None:
        return Agreement(False, math.inf, difference=_difference(one, other, ~same, name, None))
    bound = bound.to(other.device)
    free = bound.isnan()
    away = (one.double() - other.double()).abs()
    right = same | free | (away <= bound)
    share = torch.where(same | free, 0.0, away / bound)
    share = torch.where(share.isnan(), math.inf, share)
    at = int(share.argmax())
    error, room = float(away.flatten()[at]), float(bound.flatten()[at])
    difference = None if bool(right.all()) else _difference(one, other, ~right, name, bound)
    return Agreement(
        False, float(share.flatten()[at]), error, room, _condition(other, at, room), int(free.sum()), difference
    )


def _condition(value: torch.Tensor, at: int, bound: float) -> float:
    """The bound of an element in units of roundoff of its value: the condition number of the computation, times how
    many roundings it has."""
    if not value.dtype.is_floating_point:
        return 0.0
    size = abs(float(value.flatten()[at]))
    return bound / (size * unit_roundoff(value.dtype)) if size else math.inf


def same_bits(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Where two tensors are equal bit for bit, a NaN being equal to every NaN."""
    if not one.dtype.is_floating_point:
        return one == other
    return ((one == other) & (one.signbit() == other.signbit())) | (one.isnan() & other.isnan())


def _difference(
    one: torch.Tensor, other: torch.Tensor, wrong: torch.Tensor, name: str, bound: torch.Tensor | None
) -> Difference:
    at = int(wrong.flatten().nonzero()[0, 0])
    place = tuple(map(int, torch.unravel_index(torch.tensor(at), wrong.shape))) if wrong.dim() else ()
    room = float(bound.flatten()[at]) if bound is not None else 0.0
    return Difference(
        name, place, one.flatten()[at].item(), other.flatten()[at].item(), room, int(wrong.sum()), wrong.numel()
    )


def _compare_plain(one: Any, other: Any, name: str) -> Agreement:
    tensors = isinstance(one, torch.Tensor) + isinstance(other, torch.Tensor)
    try:
        same = not tensors and type(one) is type(other) and (one is other or bool(one == other) or one != one)
    except Exception:  # values of the user's, whose comparison may do anything
        same = False
    if same:
        return Agreement(True)
    kinds = [f"a {type(x).__name__}" if isinstance(x, torch.Tensor) else f"{x!r:.80}" for x in (one, other)]
    what = f"it is {kinds[0]} in the place of {kinds[1]}"
    return Agreement(False, math.inf, difference=Difference(name, what=what))
