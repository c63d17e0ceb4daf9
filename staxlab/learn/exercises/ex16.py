"""Exercise 16 (Section 6.5): how far the order of additions can take a sum from the truth.

The coefficient of the bound is the largest number of additions that one summand goes through, and that is counted: the
student's summation is run on numbers that remember it, and then on float32 numbers. That the bound is not idle talk is
shown by numbers that reach it.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...measure.rounding import pairwise, segmented, sequential
from ..answers import Function, Number, Prose
from ..exercise import Part
from ..judges import Judge, Slip, close_to, read_by_a_person
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex16_answers import HARMLESS, reference, wrong_answers
from .ex16_runs import fewest_accumulators, judge_vector_sum, judge_worst_case

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

SECTION = 6
TITLE = "The order of additions"
DIFFICULTY = 1

statement = r"""
Each addition rounds its result by a relative error of at most $u$ ($2^{-24}$ in float32). To first order in $u$, the
error of a sum is at most $h\,u \sum_i |a_i|$, where the *coefficient* $h$ is the largest number of additions that one
of the numbers goes through on its way into the result. It depends on nothing but the order of the additions. $n$
numbers are to be added; $n$, and two numbers of segments, are among your values.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """2**exponent numbers; two numbers of segments; the coefficient that running sums may have."""

    exponent: int = 20
    few: int = 16
    many: int = 1024
    limit: int = 10_000

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        exponent = 2 * rng.randint(8, 12)
        return cls(exponent, 2 ** rng.randint(2, 5), 2 ** rng.choice((8, 9, 10)), 100 * rng.randint(3, 40))

    @property
    def n(self) -> int:
        return 2**self.exponent

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("n", f"2^{self.exponent}"),
            ("k", f"{self.few} and {self.many}"),
            ("the largest coefficient of Part 2", str(self.limit)),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
The coefficients for

1. one running sum, from left to right;
2. $k$ segments of equal length, each from left to right, and then their sums from left to right; for both values of
   $k$ (`few_coefficient` for the smaller one);
3. a balanced tree of pairs.
4. Which number of segments, of those that divide $n$, gives segments the smallest coefficient?
"""

PART_2 = r"""
A vector kernel keeps $W$ running sums: number $j$ goes into sum $j \bmod W$. At the end the $W$ sums are merged as a
tree.

1. `vector_sum(x, W)` adds the list `x` in such an order. `W` is a power of two that divides the length of `x`. Add with
   `+`; the numbers count the additions they go through. Then it is run on float32 numbers.
2. Your $n$ numbers, and your largest coefficient: how many running sums are needed at least? A power of two.
"""

PART_3 = r"""
1. `worst_case(n)` returns `n` float32 numbers whose sum from left to right is off by at least nine tenths of its bound,
   $(n - 1)\,u \sum_i |a_i|$. It is tried for three values of `n`.
2. In words: why must the number of running sums not be small? What happens if it is large?
"""

SUM_EXAMPLE = """\
def vector_sum(x, W):
    return x[0] + x[1]"""

WORST_EXAMPLE = """\
def worst_case(n):
    return [1.0 / (k + 1) for k in range(n)]"""

WIDTH = Rubric(
    (
        Criterion(
            "Few running sums",
            2,
            "The term n/W decides while W is much smaller than n: halving W doubles the bound; W = 1 is sequential.",
            "Says that the bound grows, without saying how.",
            "Argues about speed only.",
        ),
        Criterion(
            "Many",
            1,
            "A tree merge adds only log2 W; what limits W is registers, and rows that are too short.",
            none="Does not consider large W.",
        ),
        Criterion(
            "Speed asks for the same",
            1,
            "One running sum is a chain of dependent additions, one latency each.",
            none="Does not mention it.",
        ),
    ),
    "How many running sums",
)

PARTS = (
    Part(
        "1",
        "Four orders",
        PART_1,
        (
            Number("sequential_coefficient", "one running sum", 1, example="12", whole=True),
            Number("few_coefficient", "the smaller number of segments", 1, example="12", whole=True),
            Number("many_coefficient", "the larger number of segments", 1, example="12", whole=True),
            Number("tree_coefficient", "a tree of pairs", 1, example="12", whole=True),
            Number("best_segments", "the best number of segments", 1, example="12", whole=True, unit="segments"),
        ),
        (
            "The first number of all goes through the most additions. How many are there?",
            "How many additions does it take to add a segment of n/k numbers, and how many to merge k sums?",
            "n/k + k: what if k is made a little smaller or larger? Where do the two terms balance?",
        ),
    ),
    Part(
        "2",
        "Running sums",
        PART_2,
        (
            Function("vector_sum", "a sum with W running sums", 3, example=SUM_EXAMPLE, parameters=("x", "W"),
                     returns="their sum"),
            Number("fewest_accumulators", "running sums needed", 1, example="12", whole=True),
        ),
        (
            "Begin with the first W numbers as the running sums: adding to a zero is not needed.",
            "Merging as a tree: add sum k and sum k + W/2, for all k, and go on with half as many.",
        ),
    ),
    Part(
        "3",
        "A bound that is reached",
        PART_3,
        (
            Function("worst_case", "numbers that reach the bound", 2, example=WORST_EXAMPLE, parameters=("n",),
                     returns="a list of n numbers"),
            Prose("why_wide", "how many running sums", WIDTH.points, rubric=WIDTH),
        ),
        (
            "Which number can be added to 1 without changing it?",
            "The largest such number is lost whole with every addition, and it is as large as the rounding may be.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    n = variant.n
    counted = "How many additions does that take? One fewer than there are numbers."

    def segments(k: int) -> Judge:
        forgotten = Slip("merge-forgotten", Fraction(n // k - 1), "The sums of the segments have to be added, too.")
        tree = Slip(
            "tree-merge",
            Fraction(n // k - 1 + k.bit_length() - 1),
            "That is for merging as a tree; here the segments are merged from left to right.",
            credit=Fraction(1, 2),
        )
        whole = Slip("numbers-counted", Fraction(n // k + k), counted)
        return close_to(Fraction(segmented(n, k).height), slips=(forgotten, tree, whole))

    fewest = fewest_accumulators(n, variant.limit)
    return {
        "sequential_coefficient": close_to(
            Fraction(sequential(n).height), slips=(Slip("numbers-counted", Fraction(n), counted),)
        ),
        "few_coefficient": segments(variant.few),
        "many_coefficient": segments(variant.many),
        "tree_coefficient": close_to(
            Fraction(pairwise(n).height),
            slips=(
                Slip("all-additions", Fraction(n - 1), "So many additions there are; one number meets few of them."),
            ),
        ),
        "best_segments": close_to(
            Fraction(_best_segments(n)),
            slips=(Slip("all-segments", Fraction(n), "Segments of one number each: that is one running sum again."),),
        ),
        "vector_sum": lambda callee: judge_vector_sum(callee, seed),
        "fewest_accumulators": close_to(
            Fraction(fewest),
            slips=(
                Slip("one-power-less", Fraction(fewest, 2), "With so many the coefficient is still above the limit."),
                Slip("one-power-more", Fraction(2 * fewest), "Half as many would do."),
            ),
        ),
        "worst_case": judge_worst_case,
        "why_wide": read_by_a_person(WIDTH),
    }


def _best_segments(n: int) -> int:
    """Tried one after the other; for an even power of two no other number of segments is as good."""
    candidates = [2**j for j in range(n.bit_length())]
    return min(candidates, key=lambda k: segmented(n, k).height)
