"""What Exercise 18 runs: a student's rule on lists of lifetimes, and buffers of different sizes, laid out."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from ...schedule.arena import ALIGNMENT, RULES, extent, least_extent, left_edge
from ...schedule.lifetimes import Lifetime, live_sets
from ..answers import Callee
from ..feedback import Verdict, right, wrong
from ..judges import call_failed, result_text, unexpected_result
from ..variants import generator

Pair = tuple[int, int]

#: The rule of Section 7.5 for different sizes.
FIRST_FIT = RULES["by beginning, as listed"]
MOST_BUFFERS = 12


def lives(found: Sequence[Pair]) -> list[Lifetime]:
    """Buffers of one size; their names are their places in the list, and sort like these."""
    return [Lifetime(f"{k:04d}", ALIGNMENT, first, last) for k, (first, last) in enumerate(found)]


def alive_at_once(found: Sequence[Pair]) -> int:
    """The most buffers that are alive while a kernel runs."""
    count = max((last for _, last in found), default=-1) + 1
    return max(map(len, live_sets(lives(found), count)), default=0)


def places_of(found: Sequence[Pair], early: bool = False) -> list[int]:
    """The left-edge rule's places; ``early`` as if a place were free during its buffer's last kernel."""
    taken = [(first, last - 1 if early and last > first else last) for first, last in found]
    # Those that begin together come in the order of the list, whenever they end.
    apart = [Lifetime(x.buffer, x.bytes, x.first * 1000 + k, x.last * 1000 + 999) for k, x in enumerate(lives(taken))]
    places = left_edge(apart)
    return [places[life.buffer] for life in apart]


def random_lifetimes(rng: random.Random, buffers: int, kernels: int) -> list[Pair]:
    found = []
    for _ in range(buffers):
        first = rng.randrange(kernels)
        found.append((first, min(kernels - 1, first + rng.choice((0, 1, 1, 2, 3, 4)))))
    return found


def shares_ends(found: Sequence[Pair]) -> bool:
    """Whether it matters that lifetimes include both ends, and places are used again."""
    shorter = [(first, last - 1) for first, last in found if last > first]
    truth = alive_at_once(found)
    return alive_at_once(shorter) < truth < len(found) and places_of(found, early=True) != places_of(found)


#: Lists that tell mistakes apart.
CASES: tuple[list[Pair], ...] = (
    [(0, 0)],
    [(0, 2), (3, 5)],
    [(0, 2), (2, 4)],
    [(3, 5), (0, 2)],
    [(0, 9), (1, 2), (3, 4), (5, 6)],
    [(4, 6), (0, 5), (1, 1), (2, 3), (6, 8)],
    [(5, 6), (0, 1), (2, 7), (0, 4), (8, 8), (7, 9)],
    [],
)


def cases(seed: int | None) -> list[list[Pair]]:
    rng = generator(seed, "lifetimes")
    return [*CASES, *(random_lifetimes(rng, rng.randint(2, 14), 12) for _ in range(20))]


def judge_left_edge(callee: Callee, seed: int | None) -> Verdict:
    """No overlaps, and no more places than buffers alive at once."""
    for found in cases(seed):
        outcome = callee.call(list(found))
        if outcome.failed:
            return call_failed(callee, (found,), outcome)
        places = outcome.value
        if not isinstance(places, list | tuple) or len(places) != len(found) or not all(map(_is_place, places)):
            return unexpected_result(callee, (found,), f"{result_text(places)} is no list of {len(found)} places")
        facts = (("lifetimes", found), ("places", list(places)))
        for k, (first, last) in enumerate(found):
            for j, (begin, end) in enumerate(found[:k]):
                if places[j] != places[k] or last < begin or end < first:
                    continue
                both = ("both alive", f"[{begin}, {end}] and [{first}, {last}]")
                if max(first, begin) == min(last, end):
                    message = "Both are alive during the kernel where one ends and the other begins."
                    return wrong(message, *facts, both, mistake="ends-apart")
                return wrong("Two buffers that are alive together share a place.", *facts, both, mistake="overlap")
        used, needed = len(set(places)), alive_at_once(found)
        if used > needed:
            more = (("places used", used), ("alive at once", needed))
            return wrong("More places are used than needed.", *facts, *more, mistake="too-many-places")
        if used and sorted(set(places)) != list(range(used)):
            return wrong("Places are numbered from 0, without gaps.", *facts, mistake="gaps")
    return right("Never more places than buffers alive at once.", ("tried", f"{len(cases(seed))} lists"))


def _is_place(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def judge_uneven(callee: Callee) -> Verdict:
    """Buffers that the rule for different sizes gives a longer block than is alive at once."""
    outcome = callee.call()
    if outcome.failed:
        return call_failed(callee, (), outcome)
    given = outcome.value
    if not isinstance(given, list | tuple) or not 1 <= len(given) <= MOST_BUFFERS:
        return unexpected_result(callee, (), f"that is no list of 1 to {MOST_BUFFERS} buffers")
    found = []
    for k, buffer in enumerate(given):
        numbers = isinstance(buffer, list | tuple) and len(buffer) == 3 and all(map(_is_place, buffer))
        if not numbers or buffer[0] > buffer[1] or buffer[1] > 1000 or not 1 <= buffer[2] <= 10**6:
            return unexpected_result(callee, (), f"{result_text(buffer)} is no buffer (s, e, size) with s <= e <= 1000")
        found.append(Lifetime(f"{k:04d}", buffer[2] * ALIGNMENT, buffer[0], buffer[1]))
    offsets = FIRST_FIT(found)
    length, alive = extent(offsets, found) // ALIGNMENT, least_extent(found) // ALIGNMENT
    at = ", ".join(
        f"{tuple(buffer)} at {offsets[x.buffer] // ALIGNMENT}" for buffer, x in zip(given, found, strict=True)
    )
    facts = (("the rule puts", at), ("length of the block", length), ("alive at once", alive))
    if length > alive:
        return right("A hole that is too small is no place.", *facts)
    if len({buffer[2] for buffer in given}) == 1:
        return wrong("All sizes are equal, and then the rule needs no more.", *facts, mistake="equal-sizes")
    return wrong("Here the rule needs no more than is alive at once.", *facts, mistake="rule-succeeds")
