"""Exercise 14 (Section 6.5, Definition 6.3): mean and variance as a monoid, and why not by sums of squares.

Triples (count, mean, second central moment) are merged by the student's function on exact fractions and compared with
the triple of all elements together. Associativity is proved by a map to something that is plainly associative, which
the student writes down, too. Then both ways to a variance run in float32, on numbers of the student's making.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import FormulaIn, Function, Number, Numbers, Prose, Steps
from ..claims import integers
from ..exercise import Part
from ..judges import Judge, Slip, close_to, derivation, for_all, read_by_a_person, same_numbers, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex14_answers import HARMLESS, reference, wrong_answers
from .ex14_runs import SEGMENTS, against_merge, against_sums, first_failing_mean, judge_cancelling, merged

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
TITLE = "Mean and variance, merged"
DIFFICULTY = 2

statement = r"""
A segment of numbers $x_1, \dots, x_n$ is summed up in a triple: its count $n$, its mean $\mu$, and its second central
moment $M_2 = \sum_i (x_i - \mu)^2$. The triple of no numbers is $(0, 0, 0)$. Merging the triples of two segments gives
the triple of all their numbers together, so that a reduction can be cut into segments and done in parallel.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Two triples, and the variance for which a mean is asked in Part 3."""

    first: tuple[Fraction, ...] = (Fraction(4), Fraction(3), Fraction(10))
    second: tuple[Fraction, ...] = (Fraction(6), Fraction(8), Fraction(12))
    variance: Fraction = Fraction(1)

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        counts, means = rng.sample(range(2, 12), 2), rng.sample(range(-6, 12), 2)
        first, second = (
            (Fraction(n), Fraction(mean), Fraction(rng.randint(1, 30))) for n, mean in zip(counts, means, strict=True)
        )
        return cls(first, second, rng.choice((Fraction(1, 4), Fraction(1), Fraction(3), Fraction(9), Fraction(25))))

    def describe(self) -> tuple[tuple[str, str], ...]:
        def text(one: tuple[Fraction, ...]) -> str:
            return "(" + ", ".join(map(str, one)) + ")"

        return (
            ("first triple", text(self.first)),
            ("second triple", text(self.second)),
            ("variance for Part 3", str(self.variance)),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. The triple that your two triples merge to: three numbers, exactly.
2. `merge(a, b)` merges any two triples. The numbers are fractions; use exact arithmetic. Empty segments occur.
3. **The cross term.** With counts $p$ and $q$ and means that are $d$ apart, the joint mean is $q d / (p + q)$ from the
   first and $p d / (p + q)$ from the second. Derive in steps what the two segments contribute to $M_2$ beyond their own
   moments: from $p \left(\frac{q d}{p + q}\right)^2 + q \left(\frac{p d}{p + q}\right)^2$ to $\frac{p q d^2}{p + q}$.
   At least three formulas; every step is checked.
"""

PART_2 = r"""
1. `sums(t)` returns, for a triple, the count, the sum and the sum of squares of the numbers it stands for.
2. In words: prove with it that `merge` is associative and commutative, and say what its neutral element is.
"""

PART_3 = r"""
The other way to a variance adds up $S = \sum x$ and $Q = \sum x^2$, and takes $M_2 = Q - S^2 / n$ at the end.

1. A relative error of $\varepsilon$ in $Q$ is one of how many $\varepsilon$ in that difference? A formula in the mean
   $\mu$ (`mu`) and the variance $v = M_2 / n$, to first order.
2. From which mean on, of $1, 2, 4, 8, \dots$, is one float32 rounding of $Q$ ($u = 2^{-24}$) as large as the whole
   result, for your variance?
3. `cancelling(n)` returns `n` numbers with a variance between 1/4 and 4. In float32 their difference of sums is off by
   more than half of the result, while merging in a tree is right to a thousandth. Both are run.
4. In words: why does the difference fail, and why does merging not?
"""

MERGE_EXAMPLE = """\
def merge(a, b):
    return a[0] + b[0], a[1] + b[1], a[2] + b[2]"""

SUMS_EXAMPLE = """\
def sums(t):
    return t[0], t[1], t[2]"""

NUMBERS_EXAMPLE = """\
def cancelling(n):
    return [k % 2 for k in range(n)]"""

MONOID = Rubric(
    (
        Criterion(
            "A map to sums",
            2,
            "sums(merge(a, b)) = sums(a) + sums(b), with a reason (the definition, or the cross term).",
            "States it without a reason, or calculates with the formula of merge directly and makes a slip.",
            "Says that the triple is that of the union, without more.",
        ),
        Criterion(
            "One to one",
            1,
            "Notes that the triple can be recovered from the sums, so that equal sums mean equal triples.",
            none="Not mentioned.",
        ),
        Criterion(
            "The laws",
            1,
            "Concludes both laws from those of addition, and names (0, 0, 0) as neutral.",
            "One of the two, or no neutral element.",
        ),
    ),
    "The monoid of triples",
)

STABILITY = Rubric(
    (
        Criterion(
            "Why the difference fails",
            2,
            "Two large, rounded numbers are subtracted; their errors stay and are large relative to the difference, "
            "by the factor of 1.",
            "Says cancellation, without relating errors to the result.",
            "Says only that numbers are large.",
        ),
        Criterion(
            "Why merging does not",
            2,
            "It subtracts means before squaring, and then adds terms that are not negative: nothing cancels.",
            "One of the two.",
            "Says that the algorithm is stable.",
        ),
    ),
    "Two ways to a variance",
)

PARTS = (
    Part(
        "1",
        "Merging",
        PART_1,
        (
            Numbers("merged_triple", "the merged triple", 1, example="[10, 5, 7]", shape=(3,)),
            Function("merge", "merge of two triples", 3, example=MERGE_EXAMPLE, parameters=("a", "b"),
                     returns="a triple"),
            Steps("cross_term", "the cross term, in steps", 2,
                  example='["p*(q*d/(p + q))**2 + q*(p*d/(p + q))**2", "= p*q*d**2/(p + q)"]',
                  variables=("p", "q", "d"), minimum=3),
        ),
        (
            "The joint mean weighs each mean with its count.",
            "For the numbers of one segment, the sum of (x - c)^2 is M2 + n (mu - c)^2. Put in the joint mean for c.",
            "Take p q d^2 / (p + q)^2 out of both terms. What is left?",
        ),
    ),
    Part(
        "2",
        "The laws",
        PART_2,
        (
            Function("sums", "count, sum and sum of squares", 2, example=SUMS_EXAMPLE, parameters=("t",),
                     returns="three numbers"),
            Prose("why_algebra", "associativity and commutativity", MONOID.points, rubric=MONOID),
        ),
        (
            "The sum of (x - c)^2 is M2 + n (mu - c)^2. What is it for c = 0?",
            "What do the sums do when two segments are put together? Which laws does that have?",
        ),
    ),
    Part(
        "3",
        "Stability",
        PART_3,
        (
            FormulaIn("amplification", "how many epsilon", 1, example='"mu + v"', variables=("mu", "v")),
            Number("failing_mean", "the mean from which it fails", 1, example="8", whole=True),
            Function("cancelling", "numbers that cancel", 2, example=NUMBERS_EXAMPLE, parameters=("n",),
                     returns="a list of n numbers"),
            Prose("why_stable", "why one fails and the other does not", STABILITY.points, rubric=STABILITY),
        ),
        (
            "Q is n (mu^2 + v), and the difference n v.",
            "The difference fails when u times that factor reaches 1.",
            "Numbers that alternate between two neighbouring integers have variance 1/4. Where should they lie? Not so "
            "far out that float32 has no odd integers left.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    (_, mean_a, m2_a), (_, mean_b, m2_b) = variant.first, variant.second
    n, mean, m2 = merged(variant.first, variant.second)
    failing = first_failing_mean(variant.variance)
    counts = {name: integers(1, 40) for name in ("p", "q", "d")}
    slips = (
        Slip("no-cross-term", (n, mean, m2_a + m2_b),
             "The two moments are about two different means, and neither is the joint one."),
        Slip("unweighted-mean", (n, (mean_a + mean_b) / 2, m2), "The segments have different counts."),
    )  # fmt: skip
    factor = (
        Slip("variance-forgotten", lambda mu, v: Fraction(mu) ** 2 / v,
             "Q is not n mu^2: the numbers scatter about their mean.", credit=Fraction(1, 2)),
        Slip("not-squared", lambda mu, v: mu / float(v) ** 0.5, "Q and the difference are of second order in x."),
        Slip("whole-variance", lambda mu, v: Fraction(mu) ** 2 + v, "That is Q / n. What is it relative to v?"),
    )  # fmt: skip
    praise = "It agrees with the triple of all numbers, and so it is associative and commutative."
    return {
        "merged_triple": same_numbers((n, mean, m2), slips=slips),
        "merge": for_all(SEGMENTS, against_merge, seed=seed, praise=praise),
        "cross_term": derivation(
            lambda p, q, d: p * Fraction(q * d, p + q) ** 2 + q * Fraction(p * d, p + q) ** 2,
            "p*q*d**2/(p + q)",
            counts,
            constants={},
            seed=seed,
            start_is="what both segments contribute",
            end_is="the cross term",
        ),
        "sums": for_all(SEGMENTS, against_sums, seed=seed, praise="These add up when segments are put together."),
        "why_algebra": read_by_a_person(MONOID),
        "amplification": same_quantity(
            lambda mu, v: 1 + Fraction(mu) ** 2 / v,
            {"mu": integers(1, 5000), "v": integers(1, 50)},
            seed=seed,
            slips=factor,
        ),
        "failing_mean": close_to(
            Fraction(failing),
            slips=(
                Slip("one-power-less", Fraction(failing, 2), "There the rounding is still smaller than the result."),
                Slip("one-power-more", Fraction(2 * failing), "Half of that is enough."),
            ),
        ),
        "cancelling": judge_cancelling,
        "why_stable": read_by_a_person(STABILITY),
    }
