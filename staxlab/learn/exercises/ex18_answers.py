"""Answers to Exercise 18: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex18 import Variant


def left_edge(lifetimes):
    ends = []
    places = {}
    for k in sorted(range(len(lifetimes)), key=lambda k: lifetimes[k]):
        first, last = lifetimes[k]
        free = [place for place, end in enumerate(ends) if end < first]
        if free:
            ends[free[0]] = last
            places[k] = free[0]
        else:
            places[k] = len(ends)
            ends.append(last)
    return [places[k] for k in range(len(lifetimes))]


def uneven():
    return [(0, 0, 1), (0, 2, 1), (1, 1, 2)]


PROOF_TEXT = """No rule can do with fewer: the buffers of the largest L are alive while one and the same kernel runs,
so no two of them may share a place. The left-edge rule does with so many: let a buffer that begins at s get place k,
with k as large as it ever becomes. It takes the lowest free place, so places 0 to k - 1 are taken at s. Whoever has
them came earlier in the order, so began at s or before, and has not ended before s: all k of them are alive while
kernel s runs, and so is the new one. L(s) therefore has k + 1 elements, and k + 1, the number of places, is at most the
largest |L|. Equal sizes are needed where a free place is taken as it is. With different sizes what is free may be in
pieces, each too small: a buffer of one unit dies below another of one unit that lives on, and the next buffer has two
units."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex18_runs import alive_at_once, places_of

    return {
        "most_alive": alive_at_once(variant.lifetimes),
        "places": places_of(variant.lifetimes),
        "left_edge": left_edge,
        "left_edge_proof": PROOF_TEXT,
        "uneven": uneven,
    }


def _changed(*buffers: tuple[int, int, int]) -> str:
    """What the tests call the reference list with one number changed."""
    return f"return {uneven()} -> return {list(buffers)}"


# Every buffer has one place. And many lists leave a hole that is too small.
HARMLESS = {
    "left_edge": (
        "return [places[k] for k in range(len(lifetimes))] -> return [places[k] for k in range(len(places))]",
    ),
    "uneven": (
        _changed((0, 0, 1), (0, 3, 1), (1, 1, 2)),
        _changed((0, 0, 1), (0, 1, 1), (1, 1, 2)),
        _changed((0, 0, 1), (0, 2, 2), (1, 1, 2)),
        _changed((0, 0, 1), (0, 2, 1), (1, 2, 2)),
        _changed((0, 0, 1), (0, 2, 1), (1, 1, 3)),
    ),
}


def _own_places(lifetimes):
    return list(range(len(lifetimes)))


def _one_place(lifetimes):
    return [0] * len(lifetimes)


def _ends_shared(lifetimes):
    ends = []
    places = {}
    for k in sorted(range(len(lifetimes)), key=lambda k: lifetimes[k]):
        first, last = lifetimes[k]
        free = [place for place, end in enumerate(ends) if end <= first]
        if free:
            ends[free[0]] = last
            places[k] = free[0]
        else:
            places[k] = len(ends)
            ends.append(last)
    return [places[k] for k in range(len(lifetimes))]


def _as_listed(lifetimes):
    ends = []
    places = []
    for first, last in lifetimes:
        free = [place for place, end in enumerate(ends) if end < first]
        place = free[0] if free else len(ends)
        if not free:
            ends.append(last)
        ends[place] = max(ends[place], last)
        places.append(place)
    return places


def _from_one(lifetimes):
    ends = []
    places = {}
    for k in sorted(range(len(lifetimes)), key=lambda k: lifetimes[k]):
        first, last = lifetimes[k]
        free = [place for place, end in enumerate(ends) if end < first]
        place = free[0] if free else len(ends)
        if not free:
            ends.append(last)
        ends[place] = last
        places[k] = place + 1
    return [places[k] for k in range(len(lifetimes))]


def _number(lifetimes):
    return len(lifetimes)


def _equal():
    return [(0, 2, 1), (1, 3, 1), (2, 4, 1)]


def _fits():
    return [(0, 1, 2), (1, 3, 1)]


def _backwards():
    return [(3, 1, 2)]


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex18_runs import alive_at_once, places_of

    found = variant.lifetimes

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    return (
        slip("ends-apart", most_alive=alive_at_once([(first, last - 1) for first, last in found if last > first])),
        slip("all-buffers", most_alive=len(found)),
        slip("ends-apart", places=places_of(found, early=True)),
        slip("never-freed", places=list(range(len(found)))),
        slip("ends-apart", left_edge=_ends_shared),
        slip("too-many-places", left_edge=_own_places),
        slip("ends-apart", left_edge=_one_place),
        slip("too-many-places", left_edge=_as_listed),
        slip("gaps", left_edge=_from_one),
        slip("wrong-form", left_edge=_number),
        slip("equal-sizes", uneven=_equal),
        slip("rule-succeeds", uneven=_fits),
        slip("wrong-form", uneven=_backwards),
    )
