"""Exercise 52 (Section 9.6, Proposition 9.3): what drawing at random promises, and what noise does to the promise.

Numbers of samples are computed exactly, cost functions are run through the package's coordinate descent and random
search, and a plan of measurements is compared with the one that the package's successive halving follows.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...runtime.autotune import fewest_samples, samples_needed
from ..answers import Choice, FormulaIn, Function, Number, Prose
from ..claims import integers
from ..exercise import Part
from ..judges import Judge, Slip, close_to, one_of, read_by_a_person, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex52_answers import HARMLESS, reference, wrong_answers
from .ex52_runs import (
    BOTH,
    DRAWING,
    NOTHING,
    PICKING,
    counted_total,
    exact_slips,
    judge_plan,
    judge_slow_corner,
    sample_slips,
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

SECTION = 9
TITLE = "Drawing at random, with noise"
DIFFICULTY = 2

statement = r"""
$N$ configurations are drawn from $\Pi$, independently and each as likely, and the fastest of them is taken. It is one
of the best $q$ of all with a probability of at least $1 - (1 - q)^N$ (Proposition 9.3), whatever the times look like.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """The share q of good configurations and the probability delta of missing them all, in percent. The defaults are
    the chapter's."""

    q_percent: int = 1
    delta_percent: int = 1

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        while True:
            variant = cls(rng.randint(1, 12), rng.choice((1, 2, 3, 4, 5, 10)))
            different = variant.q_percent != variant.delta_percent
            if different and samples_needed(variant.q, variant.delta) > fewest_samples(variant.q, variant.delta):
                return variant

    @property
    def q(self) -> float:
        return self.q_percent / 100

    @property
    def delta(self) -> float:
        return self.delta_percent / 100

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (("q", f"{self.q:g}"), ("δ", f"{self.delta:g}"))


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
One of the best $q$ is to be found with a probability of at least $1 - \delta$.

1. How many draws does Proposition 9.3 ask for ($N \ge \ln(1/\delta)/q$)?
2. The bound behind it is $(1 - q)^N \le \delta$. How many draws does that take at least?
"""

PART_2 = r"""
Construct a case in which walking fails and drawing does not. `slow_corner(A)` gets a list of two or three lists, the
values of each parameter (consecutive powers of two from 1, at least 8 of them). It returns a pair: a configuration to
start from (a tuple with one value of each) and a dictionary with a time for every configuration. Coordinate descent
(Algorithm 9.2, threshold $10^{-3}$) from there must stop at one of the **slowest tenth**: at most a tenth of all
configurations may take as long as the one it stops at, or longer. Then 60 draws avoid those with near certainty.
"""

PART_3 = r"""
Now times are measured: the reading of a configuration is $t (1 + \eta)$ with $|\eta| \le \eta_{\max}$, anew each time.

1. Which part of the proposition is affected?
2. **Successive halving.** All $n$ configurations are measured a little, the slower half is dropped, and the others are
   measured more, until one is left. With $s$ configurations left, $\lceil s/2 \rceil$ go on. Every round may spend the
   same share of the budget. `halving(n, budget)` returns the plan as a list of pairs, one for each round: how many
   configurations take part, and how many readings each of them gets. With $R$ rounds and $s$ configurations left these
   are $\lfloor \mathrm{budget} / (s R) \rfloor$. Nothing is to be measured where $n = 1$.
3. Let $n = 2^k$, and let every configuration get `r` readings in the first round, `2r` in the second, and so on. How
   many readings are taken in all? A formula in `k` and `r`.
4. How many would it be if all $n$ got as many readings as the two of the last round?
5. In words: what does the scheme gain, what can it still get wrong, and what should be done with its winner before it
   replaces the configuration that the rules had chosen?
"""

CORNER_EXAMPLE = """\
def slow_corner(A):
    from itertools import product
    return tuple(values[0] for values in A), {c: sum(c) for c in product(*A)}"""

PLAN_EXAMPLE = """\
def halving(n, budget):
    return [(n, budget // n)]"""

REASONS = Rubric(
    (
        Criterion(
            "Gain",
            1,
            "Readings go where the decision is close: the slow ones are recognised with few, only the last ones get "
            "many; n log n in place of n squared.",
            "Says that it is cheaper, without why.",
            "No gain named.",
        ),
        Criterion(
            "What can go wrong",
            1,
            "A good configuration may be dropped in an early round, on few readings; the guarantee has then the "
            "probability of that against it as well.",
            none="Takes it to be certain.",
        ),
        Criterion(
            "The winner",
            1,
            "The winner of many is partly the luckiest: measure it again, in turns with the one it is to replace, and "
            "replace only if the difference is larger than the noise allows for.",
            "Only: measure again.",
            "Takes it as measured.",
        ),
    ),
    "What halving gains, misses, and leaves to do",
)

PARTS = (
    Part(
        "1",
        "How many draws",
        PART_1,
        (
            Number("draws_asked", "draws that the proposition asks for", 1, example="100", whole=True, unit="draws"),
            Number("draws_needed", "draws that (1 - q)^N takes", 1, example="100", whole=True, unit="draws"),
        ),
        (
            "The logarithm is the natural one. A number of draws is whole: which way is it rounded?",
            "Take logarithms on both sides. ln(1 - q) is negative.",
        ),
    ),
    Part(
        "2",
        "A slow corner",
        PART_2,
        (
            Function("slow_corner", "a start and times for every configuration", 3, example=CORNER_EXAMPLE,
                     parameters=("A",), returns="a pair of a configuration and a dictionary"),
        ),
        (
            "Where the walk stops, the neighbours are slower still. They count among the slowest tenth, too.",
            "In a corner there is one neighbour for each parameter. How many does that make with the corner itself?",
        ),
    ),
    Part(
        "3",
        "With noise",
        PART_3,
        (
            Choice("noise_affects", "what noise affects", 1, example=f'"{NOTHING}"',
                   options=(DRAWING, PICKING, BOTH, NOTHING)),
            Function("halving", "the plan of readings", 3, example=PLAN_EXAMPLE, parameters=("n", "budget"),
                     returns="a list of pairs"),
            FormulaIn("halving_total", "readings in all", 1, example='"2**k + r"', variables=("k", "r")),
            FormulaIn("uniform_total", "readings if all got as many", 1, example='"2**k + r"', variables=("k", "r")),
            Prose("after_halving", "what halving gains, misses, and leaves to do", REASONS.points, rubric=REASONS),
        ),
        (
            "Which configurations are drawn does not depend on any clock.",
            "How often can n be halved, rounding up, until one is left?",
            "Twice the readings for half the configurations: what does each round cost?",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    sizes = {"k": integers(1, 12), "r": integers(1, 50)}
    unlike = "Which configurations are drawn has nothing to do with measuring; which of them is taken has."
    return {
        "draws_asked": close_to(Fraction(samples_needed(variant.q, variant.delta)), slips=sample_slips(variant)),
        "draws_needed": close_to(Fraction(fewest_samples(variant.q, variant.delta)), slips=exact_slips(variant)),
        "slow_corner": lambda callee: judge_slow_corner(callee, seed),
        "noise_affects": one_of(PICKING, {DRAWING: unlike, BOTH: unlike, NOTHING: unlike}),
        "halving": lambda callee: judge_plan(callee, seed),
        "halving_total": same_quantity(
            lambda k, r: counted_total(int(k), int(r)), sizes, seed=seed, counted="summed round by round",
            slips=(
                Slip("first-round", lambda k, r: r * 2**k, "That is the first round alone."),
                Slip("one-round-more", lambda k, r: r * 2**k * (k + 1), "With one configuration left it is over."),
                Slip("halves-only", lambda k, r: r * (2 ** (k + 1) - 2), "The readings of each double from round to "
                     "round."),
            ),
        ),
        "uniform_total": same_quantity(
            lambda k, r: 2**k * r * 2 ** (k - 1), sizes, seed=seed,
            slips=(
                Slip("one-doubling-more", lambda k, r: 2**k * r * 2**k, "The last round has two configurations."),
                Slip("first-round", lambda k, r: r * 2**k, "The two of the last round got more than that."),
                Slip("all-rounds-summed", lambda k, r: 2**k * r * (2**k - 1), "That is what one of them gets in all "
                     "rounds together; asked for are those of the last round."),
            ),
        ),
        "after_halving": read_by_a_person(REASONS),
    }  # fmt: skip
