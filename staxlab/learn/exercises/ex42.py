"""Exercise 42 (Section 13.3, Theorem 13.1): errors of a tree, of running sums, and of a sum that corrects itself.

Variances are summed over all additions of a tree, one by one; the student's first-order error is compared with products
that are expanded exactly, and the student's compensated summation runs on float32 numbers.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...measure.rounding import SummationPlan, error_model, pairwise, segmented, sequential
from ..answers import Choice, FormulaIn, Function, Number, Numbers, Prose
from ..claims import choices, integers
from ..exercise import Part
from ..judges import Judge, Slip, one_of, read_by_a_person, same_numbers, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex42_answers import HARMLESS, reference, wrong_answers
from .ex42_runs import (
    GROWTH,
    INDEPENDENCE,
    REASONS_42,
    STEPS_42,
    UNIFORM,
    deviation_slips,
    growth_slips,
    judge_deviation,
    judge_first_order,
    judge_kahan,
    tree_variance,
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
TITLE = "The error of a tree, and of a sum that corrects itself"
DIFFICULTY = 3

statement = r"""
Every addition multiplies its result by $1 + \delta$; the $\delta$ are independent of one another and of the data, with
mean zero and variance $\sigma_\delta^2 = u^2/3$, $u = 2^{-24}$. Theorem 13.1 derives the variance of the error of one
running sum from that. The numbers that are added are independent, with mean $\mu$ and variance $\sigma^2$.

(`staxlab.measure.rounding` and `staxlab.measure.rounding_study` have such models and measurements that draw themselves.
Use them to look, after you have answered.)
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """How many numbers, how many running sums, and the standard deviation of the numbers."""

    n: int = 2048
    ways: int = 16
    spread: int = 1

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(*rng.choice(((2048, 16), (1024, 16), (4096, 32), (2048, 32), (8192, 64))), rng.randint(1, 9))

    @property
    def plans(self) -> dict[str, SummationPlan]:
        """The three orders of Part 2."""
        return {
            "sequential": sequential(self.n), "ways": segmented(self.n, self.ways, "pairwise"), "tree": pairwise(self.n)
        }  # fmt: skip

    def deviation(self, way: str) -> float:
        """Standard deviation of the error for numbers of mean 0 and these values, all additions counted."""
        return error_model(self.plans[way], 0.0, float(self.spread)).error_deviation

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (("n", str(self.n)), ("W", str(self.ways)), ("sigma", str(self.spread)))


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
A balanced tree adds $n = 2^L$ numbers: neighbours in pairs, then neighbouring sums, until one is left.

1. `first_order(a, d)` returns the error of the result to first order. `a` is a list of $2^L$ numbers, `d` the list of
   the $n - 1$ relative roundings: first those of the pairs, from left to right, then those of the next level, ...
2. The variance of the error for $\mu = 0$, in units of $\sigma_\delta^2\sigma^2$: a formula in `n`.
3. The variance for $\sigma = 0$, in units of $\sigma_\delta^2\mu^2$: a formula in `n`.
4. With which power of $n$ does the standard deviation grow, logarithms left aside? `growth` is two rows of two numbers:
   the tree, for $\mu \ne 0$ and for $\mu = 0$; then $W$ running sums that are merged as a tree (Corollary 13.1, fixed
   $W$, large $n$), the same.
"""

PART_2 = r"""
For $\mu = 0$ and your $n$ and $\sigma$: the standard deviation of the error

1. of one running sum,
2. of your $W$ running sums, merged as a tree (both parts),
3. of the tree.

One per cent either way is allowed, so leading terms are good enough. The same sums are then added in float32.
"""

PART_3 = r"""
Compensated summation (Kahan, 1965, "Further remarks on reducing truncation errors") carries along what the last
addition lost. With $s$ the sum so far and $c$ a correction, it adds the next number $x$ so: $y = x - c$, $t = s + y$,
$c = (t - s) - y$, $s = t$.

1. `kahan(x)` adds the list `x` so. Its numbers are float32 numbers; use `+` and `-`, which round. Begin with the first
   number as the sum, and with `x[0] - x[0]` as the correction.
2. The first-order error of this sum does not grow with $n$. Which step in the derivation of Theorem 13.1 does not
   apply?
3. Over the real numbers, what is $(t - s) - y$ with $t = s + y$? A formula in `s` and `y`.
4. In words: why must a compiler that may reassociate additions (Section 6.5) not touch this loop, and what would
   become of it?
"""

FIRST_EXAMPLE = """\
def first_order(a, d):
    return a[0] * d[0]"""

KAHAN_EXAMPLE = """\
def kahan(x):
    return x[0]"""

REASSOCIATION = Rubric(
    (
        Criterion(
            "What becomes of it",
            2,
            "By the laws of the real numbers the correction is 0, so it is removed and the plain sum is left, with an "
            "error that grows with n.",
            "Says that precision is lost.",
            "Says that it is only slower.",
        ),
        Criterion(
            "Why",
            1,
            "Its whole effect is a rounding error, which is what reassociation takes to be nothing.",
            none="No reason.",
        ),
        Criterion(
            "What may be done",
            1,
            "Several compensated sums side by side, whose results are added: the loop as a whole may be split, the "
            "expression may not be rewritten.",
            none="Not said.",
        ),
    ),
    "Compensation and reassociation",
)

PARTS = (
    Part(
        "1",
        "A tree",
        PART_1,
        (
            Function("first_order", "the error to first order", 2, example=FIRST_EXAMPLE, parameters=("a", "d"),
                     returns="a number"),
            FormulaIn("tree_zero", "the variance for mean 0", 2, example='"n**2/2"', variables=("n",)),
            FormulaIn("tree_mean", "the variance for deviation 0", 2, example='"n**2/2"', variables=("n",)),
            Numbers("growth", "powers of n", 2, example='[[3, "1/4"], [2, "1/3"]]', shape=(2, 2)),
        ),
        (
            "Each rounding is multiplied by the sum it was made in, and by nothing else to first order.",
            "On level l there are n/2^l additions, and each has a result of 2^l numbers. What is its second moment?",
            "The powers asked for are those of the standard deviation, not of the variance.",
        ),
    ),
    Part(
        "2",
        "Three orders",
        PART_2,
        (
            Number("sequential_42", "one running sum", 1, example="1.5e-6"),
            Number("ways_42", "W running sums", 2, example="1.5e-6"),
            Number("tree_42", "a tree", 1, example="1.5e-6"),
        ),
        (
            "The k-th partial sum of a running sum has second moment k sigma^2, for mean 0.",
            "W running sums of n/W numbers each have n^2 sigma^2/(2W) together. What does their merge add?",
        ),
    ),
    Part(
        "3",
        "A sum that corrects itself",
        PART_3,
        (
            Function("kahan", "compensated summation", 3, example=KAHAN_EXAMPLE, parameters=("x",),
                     returns="their sum"),
            Choice("which_step", "what does not apply", 1, example=f'"{UNIFORM}"', options=STEPS_42),
            FormulaIn("correction", "the correction over the real numbers", 1, example='"2*s - 3*y"',
                      variables=("s", "y")),
            Prose("no_reassociation", "why it must not be touched", REASSOCIATION.points, rubric=REASSOCIATION),
        ),
        (
            "(t - s) is what was really added; y is what should have been.",
            "What c holds is an error that was made before. Does the next error depend on it?",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    powers = choices(tuple(2**level for level in range(1, 13)))
    last_only = "That is the last addition. The others round, too."
    return {
        "first_order": lambda callee: judge_first_order(callee, seed),
        "tree_zero": same_quantity(
            lambda n: tree_variance(n, 0), {"n": powers}, seed=seed, counted="added up over all additions",
            slips=(
                Slip("last-only", lambda n: n, last_only),
                Slip("sequential", lambda n: Fraction(n * (n + 1), 2) - 1, "That is one running sum."),
                Slip("numbers-counted", lambda n: n * n.bit_length(), "There are log2(n) levels."),
            ),
        ),
        "tree_mean": same_quantity(
            lambda n: tree_variance(n, 1), {"n": powers}, seed=seed, counted="added up over all additions",
            slips=(
                Slip("last-only", lambda n: n * n, last_only),
                Slip("leading-term", lambda n: 2 * n * n, "Its leading term. Add up the geometric series exactly.",
                     credit=Fraction(1, 2)),
                Slip("sequential", lambda n: Fraction(n * (n + 1) * (2 * n + 1), 6) - 1, "That is one running sum."),
                Slip("all-levels-alike", lambda n: n * n * (n.bit_length() - 1),
                     "Additions of a higher level have larger results, but there are fewer of them."),
            ),
        ),
        "growth": same_numbers(GROWTH, slips=growth_slips()),
        **{
            f"{way}_42": judge_deviation(variant, way, deviation_slips(variant, way), seed) for way in variant.plans
        },
        "kahan": lambda callee: judge_kahan(callee, seed),
        "which_step": one_of(INDEPENDENCE, REASONS_42),
        "correction": same_quantity(
            lambda s, y: (s + y) - s - y, {"s": integers(-20, 20), "y": integers(-20, 20)}, seed=seed,
            counted="computed exactly",
            slips=(
                Slip("what-was-added", lambda s, y: (s + y) - s, "That is t - s. What should have been added is y."),
                Slip("wrong-sign", lambda s, y: (s + y) - s + y, "y is subtracted."),
            ),
        ),
        "no_reassociation": read_by_a_person(REASSOCIATION),
    }  # fmt: skip


