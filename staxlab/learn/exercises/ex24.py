"""Exercise 24 (Section 9.6, Algorithm 9.2): a walk that stops at the wrong place.

The walk is the package's own coordinate descent, over a table of the student's and over a cost function that the
student constructs. How many places it can stop at is counted over all sets of configurations.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...codegen.configurations import Configuration, ConfigurationSpace
from ...runtime.autotune import Search, coordinate_descent
from ..answers import FormulaIn, Function, Number, Numbers, Prose
from ..claims import integers
from ..exercise import Part
from ..judges import Judge, Slip, close_to, read_by_a_person, same_numbers, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex24_answers import HARMLESS, reference, wrong_answers
from .ex24_runs import acceptance_slips, end_slips, judge_trap, most_stops, stop_slips

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

SECTION = 9
TITLE = "Where coordinate descent stops"
DIFFICULTY = 2

statement = r"""
A kernel has two tunable parameters, $a$ and $b$, each with a few powers of two as values; a configuration is a pair
$(a, b)$, and $t(a, b)$ is its time. Coordinate descent (Algorithm 9.2) starts somewhere and goes through the
parameters, $a$ first. For each it tries the value times 2, then the value (as it was at the beginning of this turn)
divided by 2, as long as that is among the parameter's values; a configuration that takes less than
$(1 - \varepsilon)$ times the present one's time is accepted at once. When a whole round over both parameters has
accepted nothing, it stops.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """The number of values of each parameter, a table of times (microseconds; the values of b run fastest), where the
    walk starts, and the threshold in percent. The two fours are the chapter's."""

    rows: int = 4
    columns: int = 4
    times: tuple[int, ...] = (60, 52, 44, 70, 48, 40, 66, 75, 57, 39, 30, 46, 81, 64, 25, 18)
    start: tuple[int, int] = (1, 1)
    percent: int = 5

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        while True:
            rows, columns = rng.choice(((4, 4), (4, 5), (5, 4), (3, 5), (5, 3)))
            times = tuple(rng.sample(range(12, 96), rows * columns))
            start = (1 << rng.randrange(rows), 1 << rng.randrange(columns))
            variant = cls(rows, columns, times, start, rng.choice((3, 5, 8)))
            found = variant.walk()
            if 2 <= found.acceptances <= 5 and found.chosen != variant.best and len(end_slips(variant)) >= 2:
                return variant

    @property
    def space(self) -> ConfigurationSpace:
        return ConfigurationSpace.of(a=[1 << k for k in range(self.rows)], b=[1 << k for k in range(self.columns)])

    @property
    def table(self) -> dict[Configuration, float]:
        """Configuration to time in seconds."""
        return {c: time * 1e-6 for c, time in zip(self.space, self.times, strict=True)}

    @property
    def best(self) -> Configuration:
        return min(self.table, key=self.table.__getitem__)

    @property
    def threshold(self) -> float:
        return self.percent / 100

    def walk(self) -> Search:
        return coordinate_descent(self.space, self.start, self.table.__getitem__, threshold=self.threshold)

    def describe(self) -> tuple[tuple[str, str], ...]:
        names = [str(1 << k) for k in range(self.columns)]
        rows = [
            f"a = {1 << k}: " + ", ".join(map(str, self.times[k * self.columns : (k + 1) * self.columns]))
            for k in range(self.rows)
        ]
        return (
            ("times in microseconds, for b = " + ", ".join(names), "; ".join(rows)),
            ("start (a, b)", str(self.start)),
            ("threshold ε", f"{self.percent} %"),
        )

    def constants(self) -> dict[str, Fraction]:
        return {"size": Fraction(self.rows * self.columns)}


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
Walk over your table, from your start and with your threshold.

1. At which $(a, b)$ does the walk stop?
2. How many configurations were accepted on the way? (The start is not one of them.)
"""

PART_2 = r"""
Construct a cost function on which it goes wrong. `trap(A, epsilon)` gets the values `A` that both parameters may take
(a list of at least three consecutive powers of two, beginning with 1) and the threshold. It returns a pair: the
configuration to start from, and a dictionary that has a time for every configuration, a tuple `(a, b)`. A time is a
number above 0, or infinity; the start's must be finite. The walk must stop at a configuration that takes **at least
twice** as long as the fastest one, so that the threshold is no excuse.
"""

PART_3 = r"""
1. Suppose the times of any two neighbours (one parameter differs, by a factor of 2) differ by more than the threshold.
   At how many configurations of your space can the walk stop at most?
2. Instead of walking, $N$ configurations are drawn from your space, each one independently and as likely as any other.
   With which probability is the single fastest one among them? A formula in `N`; `size` is how many configurations
   there are.
3. In words: what in a real kernel makes such traps, what does Proposition 9.2 promise nevertheless, and how would you
   combine the two methods?
"""

TRAP_EXAMPLE = """\
def trap(A, epsilon):
    return (A[0], A[0]), {(a, b): a + b for a in A for b in A}"""

REASONS = Rubric(
    (
        Criterion(
            "What makes traps",
            1,
            "Times change abruptly where a block outgrows the registers (fewer warps resident, or spills), or where "
            "block and warps must grow together: each step alone is a loss.",
            "Names irregular times without a cause.",
            "No cause.",
        ),
        Criterion(
            "What is promised",
            1,
            "Termination after boundedly many acceptances, and no neighbour that is faster by more than the threshold; "
            "nothing about configurations that are farther away. All for times that do not vary.",
            "Says local optimality only.",
            "Claims the optimum.",
        ),
        Criterion(
            "Combining",
            1,
            "Draw first (one of the best q with high probability, wherever it lies), walk from the best drawn; or walk "
            "from several starts.",
            none="No combination.",
        ),
    ),
    "Traps, promises, and a combination",
)

PARTS = (
    Part(
        "1",
        "A walk by hand",
        PART_1,
        (
            Numbers("walk_end", "where the walk stops, (a, b)", 1, example="(2, 8)", shape=(2,)),
            Number("walk_acceptances", "accepted configurations", 1, example="7", whole=True),
        ),
        (
            "Mark the present configuration. In a's turn look down, then up; in b's turn right, then left.",
            "After an acceptance in a's turn the other neighbour of where the turn began is still tried.",
            "It only stops after a whole round in which nothing was accepted.",
        ),
    ),
    Part(
        "2",
        "A trap",
        PART_2,
        (
            Function("trap", "a start and times for every configuration", 3, example=TRAP_EXAMPLE,
                     parameters=("A", "epsilon"), returns="a pair of a configuration and a dictionary"),
        ),
        (
            "The walk sees neighbours only. What must hold of those of the place where it is to stop?",
            "And where may the fastest configuration be, so that the walk never looks at it?",
        ),
    ),
    Part(
        "3",
        "How bad, and what helps",
        PART_3,
        (
            Number("most_stops", "the most places to stop at", 1, example="3", whole=True, unit="configurations"),
            FormulaIn("drawn_best", "the fastest is among N drawn", 1, example='"N/(N + size)"', variables=("N",)),
            Prose("traps", "traps, promises, and a combination", REASONS.points, rubric=REASONS),
        ),
        (
            "Can the walk stop at both of two neighbours? Colour the table like a chessboard.",
            "With which probability is the fastest one missed by one draw? By all N of them?",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    walk, size = variant.walk(), variant.space.size
    stops = most_stops(variant.rows, variant.columns)
    return {
        "walk_end": same_numbers(walk.chosen, slips=end_slips(variant)),
        "walk_acceptances": close_to(Fraction(walk.acceptances), slips=acceptance_slips(variant)),
        "trap": lambda callee: judge_trap(callee, seed),
        "most_stops": close_to(Fraction(stops), slips=stop_slips(variant)),
        "drawn_best": same_quantity(
            lambda N: 1 - Fraction(size - 1, size) ** int(N), {"N": integers(1, 200)}, seed=seed,
            slips=(
                Slip("without-replacement", lambda N: min(N / size, 1), "The same one may be drawn again."),
                Slip("missed", lambda N: Fraction(size - 1, size) ** int(N), "So likely it is not among them."),
                Slip("every-time", lambda N: Fraction(1, size) ** int(N), "It need not be drawn every time."),
            ),
        ),
        "traps": read_by_a_person(REASONS),
    }  # fmt: skip
