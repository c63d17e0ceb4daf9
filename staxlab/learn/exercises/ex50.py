"""Exercise 50 (Section 7.7): from distance vectors to a skewed, tiled nest and to wavefronts.

The distances belong to a nest that is there: the student's matrix transforms it, it is tiled and run, and the student's
schedule puts its iterations on dates. What is right is what the package's own analysis (:mod:`staxlab.polyhedral`)
proves and what running it confirms.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Choice, Function, Number, Numbers, Prose
from ..exercise import Part
from ..judges import Judge, Slip, close_to, one_of, read_by_a_person
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex50_answers import HARMLESS, reference, wrong_answers
from .ex50_runs import (
    LEGAL,
    Distance,
    at_once,
    distances_text,
    drawn,
    found_in,
    is_interchangeable,
    is_permutable,
    judge_forbidding,
    judge_matrix,
    judge_schedule,
    judge_smallest,
)

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
TITLE = "Skewing, tiles and wavefronts"
DIFFICULTY = 2

statement = r"""
Two nested loops, $i$ outside, run over a rectangle of iterations; the distance vectors of their dependences are among
your values, as is the rectangle. (A nest that has them: `w[i, j]` is made of `w[i - a, j - b]` for every distance
$(a, b)$. `staxlab.polyhedral.loop_nest` reads it as text, and displayed in a notebook it draws itself.) All distances
are lexicographically positive, as those of a program always are.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Three distances, and the extents of the two loops."""

    distances: tuple[Distance, ...] = ((1, 0), (0, 1), (1, -1))
    rows: int = 6
    columns: int = 8

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(*drawn(rng))

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("distances", distances_text(self.distances)),
            ("iterations", f"i = 0 to {self.rows - 1}, j = 0 to {self.columns - 1}"),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. By Theorem 7.2: is interchange of the two loops legal? Which distance decides it? (If it is legal, give any one.)
2. By Theorem 7.3: may the two loops be tiled as they are?
"""

PART_2 = r"""
1. A unimodular matrix $T$, row by row, after which the band is fully permutable, and which is as near to the identity
   as can be: the sum of $|T_{kl} - I_{kl}|$ is to be the least possible. The nest is transformed, tiled in several ways
   and run, and what it leaves in memory is compared.
2. `smallest_skew(distances)` returns the smallest whole number `s`, perhaps negative, for which the matrix
   `[[1, 0], [s, 1]]` makes the band fully permutable. `distances` is a list of pairs, lexicographically positive, one
   of them at least with a positive first entry.
"""

PART_3 = r"""
1. A schedule $\theta(i, j) = c_1 i + c_2 j$ with $c \cdot \delta \ge 1$ for every distance, as `[c_1, c_2]`, with as
   few dates as can be for your iterations. They are run date by date, backwards within a date.
2. `smallest_slope(distances)`: the smallest whole `c_1`, perhaps negative, such that $c = (c_1, 1)$ is such a schedule,
   for lists as above.
3. At most how many iterations of your space have the same date, under the schedule of fewest dates?
4. In words: which iterations may run at the same time, why, and what does it take?
"""

SKEW_EXAMPLE = """\
def smallest_skew(distances):
    return 7"""

SLOPE_EXAMPLE = """\
def smallest_slope(distances):
    return 7"""

FRONTS = Rubric(
    (
        Criterion(
            "Which",
            1,
            "Those with the same date: a line across the space, whose slope the coefficients give.",
            none="Says rows or columns.",
        ),
        Criterion(
            "Why",
            1,
            "Iterations that depend on each other differ by a distance, whose step is at least 1: their dates differ.",
            none="Gives no reason.",
        ),
        Criterion(
            "What it takes",
            1,
            "Dates run one after the other, with a barrier between them; fronts at both ends are short.",
            none="Does not mention it.",
        ),
    ),
    "Wavefronts",
)

PARTS = (
    Part(
        "1",
        "As they are",
        PART_1,
        (
            Choice("interchange_50", "interchange", 1, example='"legal"', options=LEGAL),
            Numbers("forbidding_distance", "the distance that decides", 1, example="[7, 7]", shape=(2,)),
            Choice("permutable_50", "tiling as they are", 1, example='"legal"', options=LEGAL),
        ),
        (
            "Interchange exchanges the entries of every distance. Which one is no longer lexicographically positive?",
            "For tiles no entry may be negative, in either loop.",
        ),
    ),
    Part(
        "2",
        "Skewed",
        PART_2,
        (
            Numbers("skew_matrix", "T, row by row", 3, example="[[7, 0], [0, 7]]", shape=(2, 2)),
            Function("smallest_skew", "the smallest skew", 2, example=SKEW_EXAMPLE, parameters=("distances",),
                     returns="a whole number"),
        ),
        (
            "Add a multiple of the outer loop to the inner one: the distance (a, b) becomes (a, b + s a).",
            "For one distance with a > 0: b + s a >= 0 says s >= -b/a. And for all of them?",
            "In Python -(b // a) is -b/a rounded up.",
        ),
    ),
    Part(
        "3",
        "On dates",
        PART_3,
        (
            Numbers("schedule_50", "c_1 and c_2", 2, example="[7, 7]", shape=(2,)),
            Function("smallest_slope", "the smallest c_1", 2, example=SLOPE_EXAMPLE, parameters=("distances",),
                     returns="a whole number"),
            Number("at_once", "iterations on one date, at most", 1, example="12", whole=True, unit="iterations"),
            Prose("which_in_parallel", "what may run at the same time", FRONTS.points, rubric=FRONTS),
        ),
        (
            "The distance (0, 1) asks for c_2 >= 1. What do the others ask of c_1 then?",
            "Iterations of one date lie on a line: from one to the next, as many steps forward in one loop as make up "
            "for steps back in the other.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    case = (variant.distances, variant.rows, variant.columns)
    found = found_in(*case)

    def legal(truth: str, against: str) -> Judge:
        return one_of(truth, {option: against for option in LEGAL if option != truth})

    widest = at_once(*case)
    return {
        "interchange_50": legal(is_interchangeable(found), "Exchange the entries of every distance, and look again."),
        "forbidding_distance": lambda answer: judge_forbidding(answer, variant.distances),
        "permutable_50": legal(is_permutable(found), "Is there an entry that is negative?"),
        "skew_matrix": lambda answer: judge_matrix(answer, *case),
        "smallest_skew": lambda callee: judge_smallest(callee, seed, 0, "b + s a"),
        "schedule_50": lambda answer: judge_schedule(answer, *case),
        "smallest_slope": lambda callee: judge_smallest(callee, seed, 1, "c . delta"),
        "at_once": close_to(
            Fraction(widest),
            slips=(
                Slip(
                    "a-column",
                    Fraction(variant.rows),
                    "As many as there are rows: the line does not reach all of them.",
                ),
                Slip("a-row", Fraction(variant.columns), "A row is not on one date: each of its iterations waits."),
                Slip("all", Fraction(variant.rows * variant.columns), "So many there are in all."),
            ),
        ),
        "which_in_parallel": read_by_a_person(FRONTS),
    }
