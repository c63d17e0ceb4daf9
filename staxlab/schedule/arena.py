"""Where buffers stand in one block of memory (Section 7.5): storage allocation for intervals.

Two buffers may overlap in the block exactly if they are never alive at the same time. Buffers of one size are a
colouring of an interval graph, which the left-edge rule solves with as many places as are ever alive at once
(Exercise 18; Hashimoto and Stevens, "Wire routing by optimizing channel assignment within large apertures", 1971). With
mixed sizes the problem is NP-hard (Garey and Johnson, *Computers and Intractability*, 1979, problem SR2), so a few
rules are tried and the shortest block is kept; the most bytes ever alive are a bound from below for all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..options import Decision
from .lifetimes import Lifetime, live_bytes
from .memory_plan import ALIGNMENT


def aligned(size: int) -> int:
    """``size`` bytes rounded up to whole units of :data:`~.memory_plan.ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def left_edge(found: Sequence[Lifetime]) -> dict[str, int]:
    """The number of each buffer's place, from 0: in order of their beginnings, each takes the lowest place that is
    free. O(n * places). With equal sizes the number of places is the most that are alive at once, which no assignment
    can undercut."""
    free_from: list[int] = []  # of each place: the first position at which it is free
    places: dict[str, int] = {}
    for life in sorted(found, key=lambda life: (life.first, life.last, life.buffer)):
        free = (place for place, position in enumerate(free_from) if position <= life.first)
        place = next(free, len(free_from))
        if place == len(free_from):
            free_from.append(0)
        free_from[place] = life.last + 1
        places[life.buffer] = place
    return places


def _by_left_edge(found: Sequence[Lifetime]) -> dict[str, int]:
    size = max(aligned(life.bytes) for life in found)
    return {name: place * size for name, place in left_edge(found).items()}


def _fit(order: Sequence[Lifetime], best: bool) -> dict[str, int]:
    """Each buffer in turn goes into a gap between those it meets: the lowest that fits, or the narrowest (``best``)."""
    offsets: dict[str, int] = {}
    placed: list[Lifetime] = []
    for life in order:
        size = aligned(life.bytes)
        taken = sorted((offsets[o.buffer], offsets[o.buffer] + aligned(o.bytes)) for o in placed if o.meets(life))
        gaps, end = [], 0
        for start, stop in taken:
            if start - end >= size:
                gaps.append((start - end, end))
            end = max(end, stop)
        chosen = (min(gaps) if best else gaps[0])[1] if gaps else end
        offsets[life.buffer] = chosen
        placed.append(life)
    return offsets


#: How the buffers of a block may be laid out, by name.
RULES = {
    "left edge": _by_left_edge,
    "by beginning, lowest gap": lambda found: _fit(sorted(found, key=lambda x: (x.first, -x.bytes, x.buffer)), False),
    "by beginning, as listed": lambda found: _fit(sorted(found, key=lambda x: x.first), False),
    "by beginning, narrowest gap": lambda found: _fit(sorted(found, key=lambda x: (x.first, -x.bytes, x.buffer)), True),
    "by size, lowest gap": lambda found: _fit(sorted(found, key=lambda x: (-x.bytes, x.first, x.buffer)), False),
    "by size, narrowest gap": lambda found: _fit(sorted(found, key=lambda x: (-x.bytes, x.first, x.buffer)), True),
    "by size times duration": lambda found: _fit(
        sorted(found, key=lambda x: (-x.bytes * (x.last - x.first + 1), x.first, x.buffer)), False
    ),
}


def extent(offsets: Mapping[str, int], found: Sequence[Lifetime]) -> int:
    """The bytes of a block in which the buffers stand at these offsets."""
    return max((offsets[life.buffer] + aligned(life.bytes) for life in found), default=0)


def least_extent(found: Sequence[Lifetime]) -> int:
    """A bound from below for every block: the most bytes alive at once, each buffer rounded up."""
    count = max((life.last for life in found), default=-1) + 1
    rounded = [Lifetime(x.buffer, aligned(x.bytes), x.first, x.last) for x in found]
    return max(live_bytes(rounded, count), default=0)


def allocate(found: Sequence[Lifetime]) -> tuple[dict[str, int], int, Decision]:
    """Offsets in bytes (multiples of the alignment), the size of the block, and which rule they come from.

    O(rules * n^2). A rule that reaches the bound from below is not looked beyond.
    """
    bound = least_extent(found)
    tried: dict[str, int] = {}
    best: tuple[int, str, dict[str, int]] | None = None
    for name, rule in RULES.items():
        offsets = rule(found) if found else {}
        size = tried[name] = extent(offsets, found)
        if best is None or size < best[0]:
            best = (size, name, offsets)
        if size == bound:
            break
    assert best is not None
    size, name, offsets = best
    reason = "no block can be shorter" if size == bound else f"the shortest of {len(tried)} tried, {size - bound} above"
    inputs = (("most alive", bound), *((f"bytes {rule}", count) for rule, count in tried.items()))
    return offsets, size, Decision("arena layout", "arena", name, reason, tuple(RULES), inputs)
