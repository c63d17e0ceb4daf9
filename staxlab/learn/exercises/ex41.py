"""Exercise 41 (Section 13.1, Proposition 13.2): what an interval between two readings covers, and what rounds add.

Coverage is counted: the student's claim about order statistics is tried on sorted readings, the student's interval over
rounds on readings that were drawn, and against drift that was planted.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...runtime.order_statistics import median_ranks, readings_for_range
from ..answers import FormulaIn, Function, Number, Prose
from ..claims import integers
from ..exercise import Part
from ..judges import Judge, close_to, read_by_a_person, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex41_answers import HARMLESS, reference, wrong_answers
from .ex41_runs import (
    coverage_slips,
    exact_coverage,
    fewest_slips,
    judge_coverage,
    judge_covers,
    judge_overall_interval,
    pooled_slips,
    pooled_truth,
    range_slips,
    rounds_slips,
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

SECTION = 13
TITLE = "What an interval of readings covers"
DIFFICULTY = 2

statement = r"""
$n$ independent readings are drawn from one continuous distribution with median $m$, and sorted: $X_{(1)} \le \dots \le
X_{(n)}$. $K$ of them do not exceed $m$; each does so with probability $\frac12$, whatever the distribution. By
Proposition 13.2 two readings that are chosen by rank before anything is measured enclose $m$ with a probability that is
a sum of binomial coefficients.

(`staxlab.measure.timing` and `staxlab.measure.rounds` use this. Use them to look, after you have answered.)
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Readings and ranks, the percentage that the whole range shall cover, and rounds of readings."""

    n: int = 15
    j: int = 4
    k: int = 12
    percent: str = "99"
    rounds: int = 4

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        n = rng.choice((9, 11, 13, 15, 17, 19, 21))
        j, k = median_ranks(n, rng.choice((0.8, 0.9, 0.95)))
        if rng.random() < 0.5:
            k -= 1  # the ranks need not be placed symmetrically
        return cls(n, j, k, rng.choice(("95", "97", "99", "99.5", "99.9")), rng.choice((4, 6)))

    @property
    def confidence(self) -> Fraction:
        return Fraction(self.percent) / 100

    @property
    def fewest(self) -> int:
        return readings_for_range(float(self.confidence))

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("n", str(self.n)),
            ("j", str(self.j)),
            ("k", str(self.k)),
            ("what the range shall cover", f"{self.percent}%"),
            ("r", str(self.rounds)),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. The proof turns on one equivalence. `covers(K, j, k)` returns whether $X_{(j)} \le m < X_{(k)}$, given nothing but
   how many readings do not exceed $m$. It is tried on sorted readings.
2. `coverage(n, j, k)` returns the probability of that, a fraction or a float.
3. What is it for your $n$, $j$ and $k$?
"""

PART_2 = r"""
Now the smallest and the largest reading, $[X_{(1)}, X_{(n)}]$.

1. With what probability do they enclose the median? A formula in `n`.
2. How many readings are needed at least, for your percentage?
"""

PART_3 = r"""
$r$ rounds are measured at different times, each of $n$ readings. Readings of one round share what the machine was
doing then, so they are not alike across rounds. The medians $m_1, \dots, m_r$ of the rounds are independent and
identically distributed; their distribution's median is the *overall median*.

1. `overall_interval(rounds, confidence)` gets a list of rounds, each a list of an odd number of readings. It returns
   the pair of ends of the narrowest interval, of ranks $j$ and $r + 1 - j$, that covers the overall median with at
   least that probability, or `None` where there are too few rounds for any.
2. How many rounds does it take at least to cover the overall median with 95%?
3. Somebody pools all readings of your $r$ rounds of 15 and takes the ranks $j$ and $k = 15r + 1 - j$ that
   Proposition 13.2 would give them for 95% (the largest $j$ that suffices). Suppose the rounds differ so much that all
   readings of one round lie on the same side of the overall median, either side with probability $\frac12$. With what
   probability is the overall median in the pooled interval, really?
4. In words: which assumption does pooling violate, why does it make the interval too narrow, and what would help?
"""

COVERS_EXAMPLE = """\
def covers(K, j, k):
    return K == j"""

COVERAGE_EXAMPLE = """\
def coverage(n, j, k):
    return (k - j) / n"""

OVERALL_EXAMPLE = """\
def overall_interval(rounds, confidence):
    return rounds[0][0], rounds[-1][-1]"""

POOLING = Rubric(
    (
        Criterion(
            "The assumption",
            1,
            "Readings of one round share the state of the machine: they are neither independent of one another nor "
            "distributed like those of other rounds.",
            "Says that conditions change.",
            "Speaks of outliers.",
        ),
        Criterion(
            "Why too narrow",
            2,
            "rn readings are treated as so much information; K then varies like n times a binomial of r, far more than "
            "a binomial of rn, whose spread decides the ranks. More readings per round narrow the interval around a "
            "value that the rounds themselves do not agree about.",
            "Says that there is less information than readings.",
            "No reason.",
        ),
        Criterion(
            "What helps",
            1,
            "More rounds, not more readings in each; or comparing within rounds, where what they share cancels.",
            none="More readings.",
        ),
    ),
    "Why rounds must not be pooled",
)

PARTS = (
    Part(
        "1",
        "The coverage",
        PART_1,
        (
            Function("covers", "whether the median is inside", 1, example=COVERS_EXAMPLE, parameters=("K", "j", "k"),
                     returns="True or False"),
            Function("coverage", "the probability of that", 2, example=COVERAGE_EXAMPLE, parameters=("n", "j", "k"),
                     returns="a probability"),
            Number("coverage_41", "for your values", 1, example='"5/16"'),
        ),
        (
            "The j-th smallest reading does not exceed m exactly if at least j readings do not.",
            "K is binomial: C(n, i) / 2^n for each i.",
        ),
    ),
    Part(
        "2",
        "The whole range",
        PART_2,
        (
            FormulaIn("range_coverage", "what the range covers", 1, example='"n/2**n"', variables=("n",)),
            Number("fewest_readings", "readings needed", 1, example="12", whole=True, unit="readings"),
        ),
        (
            "When does the range miss the median? If all readings lie on one side of it.",
            "There are two sides, and each happens with probability 1/2**n.",
        ),
    ),
    Part(
        "3",
        "Rounds",
        PART_3,
        (
            Function("overall_interval", "an interval for the overall median", 3, example=OVERALL_EXAMPLE,
                     parameters=("rounds", "confidence"), returns="a pair of numbers, or None"),
            Number("fewest_rounds", "rounds needed", 1, example="12", whole=True, unit="rounds"),
            Number("pooled_41", "what the pooled interval covers", 2, example='"5/16"'),
            Prose("why_not_pooled", "why rounds must not be pooled", POOLING.points, rubric=POOLING),
        ),
        (
            "What is independent and identically distributed here? Apply the proposition to that.",
            "In 3.3 the number of readings below the overall median is 15 times a number of rounds.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    n, j, k = variant.n, variant.j, variant.k
    return {
        "covers": judge_covers,
        "coverage": judge_coverage,
        "coverage_41": close_to(exact_coverage(n, j, k), slips=coverage_slips(n, j, k)),
        "range_coverage": same_quantity(
            lambda n: exact_coverage(n, 1, n), {"n": integers(2, 60)}, seed=seed, slips=range_slips()
        ),
        "fewest_readings": close_to(Fraction(variant.fewest), slips=fewest_slips(variant)),
        "overall_interval": lambda callee: judge_overall_interval(callee, seed),
        "fewest_rounds": close_to(Fraction(readings_for_range(0.95)), slips=rounds_slips()),
        "pooled_41": close_to(pooled_truth(variant.rounds), slips=pooled_slips(variant.rounds)),
        "why_not_pooled": read_by_a_person(POOLING),
    }
