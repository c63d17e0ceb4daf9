"""Answers to Exercise 24: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex24 import Variant


def trap(A, epsilon):
    start, best = (A[0], A[0]), (A[-1], A[-1])
    times = {(a, b): 9 for a in A for b in A}
    times[start] = 4
    times[best] = 1
    return start, times


TRAPS = """Two things do. A thread has a limited number of registers: a block that grows past it makes fewer warps fit
onto a multiprocessor, or spills, and the time jumps, so that what lies behind the jump is never reached by doubling one
value. And parameters belong together: a block of twice the size is slower with the same warps, twice the warps are
slower with the same block, but both together are faster, and the walk never changes both. What is promised is local:
if times do not vary, the walk ends after a bounded number of acceptances, at a configuration none of whose neighbours
is faster by more than the threshold. Random drawing does not look at neighbours at all, so no shape can trap it; with
60 draws one of the best 5 % is found with 95 %. So I would draw first and walk from the best that was drawn."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex24_runs import most_stops

    walk = variant.walk()
    return {
        "walk_end": list(walk.chosen),
        "walk_acceptances": walk.acceptances,
        "trap": trap,
        "most_stops": most_stops(variant.rows, variant.columns),
        "drawn_best": "1 - (1 - 1/size)**N",
        "traps": TRAPS,
    }


# Other times of the same order; the fastest, or the start, elsewhere.
_PLACES = "start, best = ((A[0], A[0]), (A[-1], A[-1])) -> start, best = "
HARMLESS: dict[str, tuple[str, ...]] = {
    "trap": (
        "times[start] = 4 -> pass",
        "times[start] = 4 -> times[start] = 5",
        "times[start] = 4 -> times[start] = 3",
        "times[start] = 4 -> times[best] = 4",
        "times[best] = 1 -> times[best] = 2",
        "times = {(a, b): 9 for a in A for b in A} -> times = {(a, b): 10 for a in A for b in A}",
        "times = {(a, b): 9 for a in A for b in A} -> times = {(a, b): 8 for a in A for b in A}",
        _PLACES + "((A[1], A[0]), (A[-1], A[-1]))",
        _PLACES + "((A[-1], A[0]), (A[-1], A[-1]))",
        _PLACES + "((A[0], A[1]), (A[-1], A[-1]))",
        _PLACES + "((A[0], A[-1]), (A[-1], A[-1]))",
        _PLACES + "((A[0], A[0]), (A[-2], A[-1]))",
        _PLACES + "((A[0], A[0]), (A[-0], A[-1]))",
        _PLACES + "((A[0], A[0]), (A[-1], A[-2]))",
        _PLACES + "((A[0], A[0]), (A[-1], A[-0]))",
    )
}


def _bowl(A, epsilon):
    return (A[0], A[0]), {(a, b): (a - A[-1]) ** 2 + (b - A[-1]) ** 2 + 1 for a in A for b in A}


def _starts_at_the_best(A, epsilon):
    return (A[0], A[0]), {(a, b): a + b for a in A for b in A}


def _hardly_slower(A, epsilon):
    times = {(a, b): 9 for a in A for b in A}
    times[(A[0], A[0])], times[(A[-1], A[-1])] = 1.5, 1
    return (A[0], A[0]), times


def _all_equal(A, epsilon):
    return (A[0], A[0]), {(a, b): 5 for a in A for b in A}


def _infinite_start(A, epsilon):
    times = dict.fromkeys([(a, b) for a in A for b in A], float("inf"))
    times[(A[-1], A[-1])] = 1
    return (A[0], A[0]), times


def _holes(A, epsilon):
    return (A[0], A[0]), {(A[0], A[0]): 4, (A[-1], A[-1]): 1}


def _negative(A, epsilon):
    times = {(a, b): 9 for a in A for b in A}
    times[(A[0], A[0])], times[(A[-1], A[-1])] = 4, -1
    return (A[0], A[0]), times


def _no_pair(A, epsilon):
    return {(a, b): 9 for a in A for b in A}


def _chapter_only(A, epsilon):
    times = {(a, b): 9 for a in (1, 2, 4, 8) for b in (1, 2, 4, 8)}
    times[(1, 1)], times[(8, 8)] = 4, 1
    return (1, 1), times


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex24_runs import acceptance_slips, end_slips, stop_slips

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    found = [slip(s.name, walk_end=list(s.answer)) for s in end_slips(variant)]
    found += [slip(s.name, walk_acceptances=s.answer) for s in acceptance_slips(variant)]
    found += [slip(s.name, most_stops=s.answer) for s in stop_slips(variant)]
    return (
        *found,
        slip("reaches-the-best", trap=_bowl),
        slip("starts-at-the-best", trap=_starts_at_the_best),
        slip("hardly-slower", trap=_hardly_slower),
        slip("all-equal", trap=_all_equal),
        slip("infinite-start", trap=_infinite_start),
        slip("holes", trap=_holes),
        slip("no-time", trap=_negative),
        slip("wrong-form", trap=_no_pair),
        slip("holes", trap=_chapter_only),
        slip("without-replacement", drawn_best="min(N/size, 1)"),
        slip("missed", drawn_best="(1 - 1/size)**N"),
        slip("every-time", drawn_best="size**(-N)"),
    )
