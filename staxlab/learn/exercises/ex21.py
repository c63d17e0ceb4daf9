"""Exercise 21 (Section 8.3, Algorithm 8.1): how many loops threads share, and how unevenly.

The depth of the student's nests is computed by the package's own Algorithm 8.1, and the student writes it as a
function. Where the imbalance is worst is found by trying every number of iterations.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...codegen.cpp.sharing import parallel_depth
from ..answers import FormulaIn, Function, Number, Prose
from ..claims import integers
from ..exercise import Part
from ..judges import Judge, Slip, close_to, read_by_a_person, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex21_answers import HARMLESS, reference, wrong_answers
from .ex21_runs import busiest_slips, depth_slips, judge_parallel_depth, most_uneven

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

SECTION = 8
TITLE = "Parallel depth"
DIFFICULTY = 1

statement = r"""
A kernel is a nest of loops, and $P$ threads share the outermost ones: the *depth* is how many. Algorithm 8.1 takes
loops from the outside in. Before it takes the next one, it stops

- if the extents of the loops taken so far multiply to $2P$ or more (nothing taken: 1), or
- if the iterations of the loops that are not taken yet, multiplied and divided among $P$ threads, are fewer than the
  grain $m$.

The $q$ iterations of the loops that were taken are then dealt out as evenly as whole numbers allow. The *imbalance*
$\lceil q/P \rceil / (q/P)$ is the time of the busiest thread over the average.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """The extents of the nest, two numbers of threads, the grain, and where Part 3 looks: from multiple * P to
    (multiple + 1) * P. The defaults are the chapter's."""

    extents: tuple[int, ...] = (4, 4096, 16)
    few: int = 8
    many: int = 64
    grain: int = 512
    multiple: int = 2

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        while True:
            extents = (
                rng.randint(2, 9),
                rng.choice((3, 5, 6, 12, 48, 96)),
                rng.choice((8, 60, 256, 1000)),
                rng.choice((8, 16)),
            )
            few, many = rng.choice((2, 3, 4, 6)), rng.choice((16, 24, 48, 64, 96))
            variant = cls(extents, few, many, rng.choice((128, 256, 512)), rng.randint(2, 5))
            depths = [variant.depth(threads) for threads in (few, many)]
            if 1 <= depths[0] != depths[1] >= 1:
                return variant

    def depth(self, threads: int) -> int:
        return parallel_depth(self.extents, threads, self.grain).depth

    def iterations(self, threads: int) -> int:
        return parallel_depth(self.extents, threads, self.grain).iterations

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("extents of the loops, outermost first", " × ".join(map(str, self.extents))),
            ("P", f"{self.few} and {self.many}"),
            ("m", str(self.grain)),
            ("a, in Part 3", str(self.multiple)),
        )

    def constants(self) -> dict[str, Fraction]:
        return {"a": Fraction(self.multiple)}


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. The depth of your nest for the smaller and for the larger number of threads.
2. For the larger one: how many of the $q$ iterations does the busiest thread get?
"""

PART_2 = r"""
`parallel_depth(extents, P, m)` returns the depth of a nest: `extents` is a list of whole numbers of 1 or more,
outermost first.
"""

PART_3 = r"""
Let $q$ be anything from $aP$ to $(a + 1)P$; $a$ is among your values, and $P$ is at least 2.

1. For which $q$ is the imbalance largest, and how large is it? Formulas in `P`; `a` may be used in them.
2. The larger $P$ is, the nearer that comes to a limit. Which?
3. In words: why does the algorithm ask for $2P$ iterations, and not for $P$, or for $100P$? And what is the grain for?
"""

DEPTH_EXAMPLE = """\
def parallel_depth(extents, P, m):
    return len(extents)"""

REASONS = Rubric(
    (
        Criterion(
            "Not P",
            1,
            "With q a little above P the imbalance is nearly 2: half the threads wait for the others. From 2P on it is "
            "below 3/2.",
            none="Does not name the imbalance.",
        ),
        Criterion(
            "Not 100P",
            1,
            "The gain is small (below 1 %), and loops have to be taken for it whose bodies then are short: less work "
            "per iteration, more arithmetic with indices, no room for vectors and for values computed once outside.",
            "Says only that it costs something.",
            "Sees no drawback.",
        ),
        Criterion(
            "The grain",
            1,
            "Starting and joining threads costs microseconds, whatever they do; less work per thread than that is "
            "faster on one thread.",
            none="Does not name the cost of threads.",
        ),
    ),
    "Why 2P, and why a grain",
)

PARTS = (
    Part(
        "1",
        "Your nest",
        PART_1,
        (
            Number("depth_few", "depth for the smaller P", 1, example="0", whole=True, unit="loops"),
            Number("depth_many", "depth for the larger P", 1, example="0", whole=True, unit="loops"),
            Number("busiest", "iterations of the busiest thread", 1, example="12", whole=True),
        ),
        (
            "Write down three columns: the product so far, what is left divided by P, and whether the loop is taken.",
            "Both conditions are looked at before a loop is taken, so the last product may be far above 2P.",
        ),
    ),
    Part(
        "2",
        "The algorithm",
        PART_2,
        (
            Function("parallel_depth", "Algorithm 8.1", 3, example=DEPTH_EXAMPLE, parameters=("extents", "P", "m"),
                     returns="the number of loops"),
        ),
        (
            "What is left starts as the product of all extents; each loop that is taken divides it by its own.",
            "Try a nest without loops, one whose first loop is enough, and one that runs out of loops.",
        ),
    ),
    Part(
        "3",
        "The imbalance",
        PART_3,
        (
            FormulaIn("worst_q", "the q where it is largest", 1, example='"P + 3"', variables=("P",)),
            FormulaIn("worst_imbalance", "the largest imbalance", 1, example='"P/(P + 3)"', variables=("P",)),
            Number("limit", "its limit", 1, example="1.25"),
            Prose("why_twice", "why 2P, and why a grain", REASONS.points, rubric=REASONS),
        ),
        (
            "Draw it for P = 4: it falls from one multiple of P to the next, and jumps. Where are the jumps?",
            "One iteration more than a multiple of P: one thread has a + 1, on average there is little more than a.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    a = variant.multiple
    threads = {"P": integers(2, 200)}
    return {
        "depth_few": close_to(Fraction(variant.depth(variant.few)), slips=depth_slips(variant, variant.few)),
        "depth_many": close_to(Fraction(variant.depth(variant.many)), slips=depth_slips(variant, variant.many)),
        "busiest": close_to(
            Fraction(-(-variant.iterations(variant.many) // variant.many)), slips=busiest_slips(variant)
        ),
        "parallel_depth": lambda callee: judge_parallel_depth(callee, seed),
        "worst_q": same_quantity(
            lambda P: most_uneven(a, int(P))[0], threads, seed=seed, counted="tried for every q",
            slips=(
                Slip("a-multiple", lambda P: a * P, "There every thread has the same number of iterations."),
                Slip("a-multiple", lambda P: (a + 1) * P, "There every thread has the same number of iterations."),
                Slip("last-before", lambda P: (a + 1) * P - 1, "There all threads but one have one more: nearly even."),
            ),
        ),
        "worst_imbalance": same_quantity(
            lambda P: most_uneven(a, int(P))[1], threads, seed=seed, counted="tried for every q",
            slips=(
                Slip("limit-for-maximum", lambda P: Fraction(a + 1, a), "That is what it tends to, and never reaches."),
                Slip("upside-down", lambda P: 1 / most_uneven(a, int(P))[1], "That is the average over the busiest."),
            ),
        ),
        "limit": close_to(
            Fraction(a + 1, a),
            slips=(
                Slip("no-imbalance", Fraction(1), "One q after a multiple of P is never even, however large P is."),
                Slip("beginning", Fraction(2), "That is the limit for q between P and 2P.") if a != 1 else
                Slip("one-less", Fraction(3, 2), "That is for a = 2."),
            ),
        ),
        "why_twice": read_by_a_person(REASONS),
    }  # fmt: skip
