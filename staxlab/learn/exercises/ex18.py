"""Exercise 18 (Section 7.5): the left-edge rule, why it is best for buffers of one size, and where that ends.

The student's rule is run on random lifetimes and compared with the number of buffers alive at once; the student's
counterexample is laid out by the package's own rule (:mod:`staxlab.schedule.arena`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Function, Number, Numbers, Prose
from ..exercise import Part
from ..judges import Judge, Slip, close_to, read_by_a_person, same_numbers
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex18_answers import HARMLESS, reference, wrong_answers
from .ex18_runs import alive_at_once, judge_left_edge, judge_uneven, places_of, random_lifetimes, shares_ends

__all__ = [
    "DIFFICULTY",
    "HARMLESS",
    "PARTS",
    "SECTION",
    "TITLE",
    "Variant",
    "check",
    "reference",
    "statement",
    "wrong_answers",
]

SECTION = 7
TITLE = "Places for buffers"
DIFFICULTY = 2

statement = r"""
A buffer with lifetime $[s, e]$ is alive while the kernels number $s, s + 1, \dots, e$ run, both ends included. Two
buffers may share a place in memory if they are never alive at the same time: the lifetimes $[0, 2]$ and $[3, 5]$ may,
$[0, 2]$ and $[2, 4]$ may not. $L(\tau)$ is the set of the buffers that are alive while kernel $\tau$ runs.

The *left-edge rule* goes through the buffers in the order in which their lifetimes begin (those that begin together, in
the order in which they are listed) and gives each the free place with the lowest number. Places are numbered from 0.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Lifetimes of buffers of one size, as they are listed."""

    lifetimes: tuple[tuple[int, int], ...] = ((0, 3), (1, 2), (2, 6), (3, 4), (5, 7), (5, 5), (7, 8))

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        while True:
            found = sorted(random_lifetimes(rng, 7, 9))
            if shares_ends(found):  # so that the usual mistakes give other numbers
                return cls(tuple(found))

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (("lifetimes of your buffers", ", ".join(f"[{first}, {last}]" for first, last in self.lifetimes)),)


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
For your lifetimes, all of buffers of one size:

1. How many buffers are alive at once at most, $\max_\tau |L(\tau)|$?
2. The places that the left-edge rule gives the buffers, in the order in which they are listed.
"""

PART_2 = r"""
1. `left_edge(lifetimes)` gets a list of pairs `(s, e)`, in any order, and returns the list of their places. It is tried
   on many lists: no two buffers that are alive at the same time may share a place, and no more places may be used than
   buffers are ever alive at once.
2. In words: prove that the left-edge rule needs $\max_\tau |L(\tau)|$ places and that no rule needs fewer.
"""

PART_3 = r"""
Buffers of different sizes stand at addresses. The same rule goes through them in the order in which they begin and
gives each the lowest address at which it fits, between those that are alive.

`uneven()` returns a list of at most 12 buffers `(s, e, size)`, sizes whole numbers of at least 1, for which the rule
needs a longer block of memory than is ever alive at once.
"""

RULE_EXAMPLE = """\
def left_edge(lifetimes):
    return list(range(len(lifetimes)))"""

UNEVEN_EXAMPLE = """\
def uneven():
    return [(0, 1, 2), (1, 3, 1)]"""

PROOF = Rubric(
    (
        Criterion(
            "No rule needs fewer",
            1,
            "The buffers of the largest L are alive together, so each needs a place of its own.",
            none="The bound from below is taken for granted.",
        ),
        Criterion(
            "A new place is opened only if all are taken",
            2,
            "When a buffer gets place number k, places 0 to k - 1 are held by buffers that began no later and are "
            "still alive: with it they are k + 1 elements of L at its beginning.",
            "Says that all places are taken, without using that those buffers began earlier (so are in one L).",
            "Refers to interval graphs being perfect without a proof.",
        ),
        Criterion(
            "Where sizes enter",
            1,
            "A place can be handed on only because it fits whoever comes; otherwise a free gap may be too small.",
            none="Does not say where the argument needs equal sizes.",
        ),
    ),
    "The left-edge rule",
)

PARTS = (
    Part(
        "1",
        "By hand",
        PART_1,
        (
            Number("most_alive", "buffers alive at once", 1, example="3", whole=True, unit="buffers"),
            Numbers("places", "their places", 2, example="[0, 1, 0]", shape=(None,)),
        ),
        (
            "Draw the lifetimes as bars, one below the other, over the numbers of the kernels.",
            "A place is free again for a buffer that begins after the last kernel of the one that had it.",
        ),
    ),
    Part(
        "2",
        "The rule",
        PART_2,
        (
            Function("left_edge", "places for lifetimes", 3, example=RULE_EXAMPLE, parameters=("lifetimes",),
                     returns="a list of places"),
            Prose("left_edge_proof", "why the rule is best", PROOF.points, rubric=PROOF),
        ),
        (
            "Keep for each place the last kernel of whoever has it.",
            "The result is asked for in the order of the list, the rule goes by beginnings.",
            "Suppose a buffer gets place number k. Who has the places below, and since when?",
        ),
    ),
    Part(
        "3",
        "Different sizes",
        PART_3,
        (
            Function("uneven", "buffers for which the rule fails", 2, example=UNEVEN_EXAMPLE, parameters=(),
                     returns="a list of buffers"),
        ),
        (
            "What is left when a small buffer dies below one that lives on?",
            "A hole of one unit; then two units are wanted.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    found = variant.lifetimes
    truth = alive_at_once(found)
    shared = alive_at_once([(first, last - 1) for first, last in found if last > first])
    return {
        "most_alive": close_to(
            Fraction(truth),
            slips=(
                Slip("ends-apart", Fraction(shared), "A buffer is alive during its last kernel, too."),
                Slip("all-buffers", Fraction(len(found)), "Not all of them are alive at once."),
            ),
        ),
        "places": same_numbers(
            places_of(found),
            slips=(
                Slip("ends-apart", places_of(found, early=True), "A place is free after its buffer's last kernel."),
                Slip("never-freed", list(range(len(found))), "Places are used again."),
            ),
        ),
        "left_edge": lambda callee: judge_left_edge(callee, seed),
        "left_edge_proof": read_by_a_person(PROOF),
        "uneven": judge_uneven,
    }
