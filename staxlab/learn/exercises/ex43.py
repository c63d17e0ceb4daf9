"""Exercise 43 (Section 13.4, Proposition 13.5): how many versions a workload makes, and when buckets are cheaper.

Expectations are taken over all histories of calls where these can be gone through, and from the proposition where they
are too many. The proof of concavity is taken apart into differences that are compared exactly.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Choice, FormulaIn, Function, Number, Numbers, Prose
from ..claims import choices, integers
from ..exercise import Part
from ..judges import Judge, Slip, close_to, one_of, read_by_a_person, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex43_answers import HARMLESS, reference, wrong_answers
from .ex43_runs import (
    ALWAYS,
    BETWEEN,
    FROM_SOME_ON,
    UNTIL_SOME,
    cost_slips,
    judge_history,
    judge_total,
    judge_versions,
    last_slips,
    term,
    truth_of,
    uniform_slips,
    zipf_slips,
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
TITLE = "How many versions, and when buckets are cheaper"
DIFFICULTY = 2

statement = r"""
The size of each of $m$ calls is drawn independently; size $s$ has probability $p_s$. Compiling for every size that
occurs makes $K_m$ versions (Proposition 13.5). With buckets, a size is rounded up to the smallest power of two that is
not less than it, and each bucket that occurs makes one version.

In functions, `p` is a list: `p[s - 1]` is the probability of size `s`. Its entries may be fractions or floats, and
some may be zero.

(`staxlab.measure.amortize` has the formulas of this section. Use it to look, after you have answered.)
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Sizes from 1 to ``sizes``, the number of calls, what a version costs (milliseconds) and a call per unit of size
    (microseconds). The defaults are the chapter's sizes and calls, and its 1.2 s on a warm cache."""

    sizes: int = 512
    calls: int = 1000
    cost_ms: int = 1200
    alpha_us: int = 10

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        sizes = rng.choice((200, 256, 300, 384, 500, 512, 640, 768))
        return cls(sizes, rng.randrange(2, 9) * 250, rng.randrange(10, 56) * 100, rng.randint(5, 40))

    @property
    def cost(self) -> float:
        """Seconds for a version."""
        return self.cost_ms / 1e3

    @property
    def alpha(self) -> float:
        """Seconds per unit of size."""
        return self.alpha_us / 1e6

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("sizes", f"1 to {self.sizes}"),
            ("m", str(self.calls)),
            ("C", f"{self.cost_ms} ms"),
            ("α", f"{self.alpha_us} µs"),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. `mean_versions(p, m)` returns $\mathbb E[K_m]$ for any distribution.
2. Zipf's law, truncated: $p_s$ is proportional to $1/s$ for your sizes. What is $\mathbb E[K_m]$ for your $m$?
3. And if all your sizes are equally likely?
4. In words: why do the two differ, and which of the two still compiles after many calls?
"""

PART_2 = r"""
Prove that $\mathbb E[K_m]$ is concave in $m$, and at most $\min(m, |\{s : p_s > 0\}|)$. One term of the sum is
$t(m) = 1 - (1 - p)^m$, with $0 < p \le 1$.

1. By how much does one more call increase it: $t(m + 1) - t(m)$? A formula in `p` and `m`.
2. And by how much does that increase change, $\bigl(t(m+2) - t(m+1)\bigr) - \bigl(t(m+1) - t(m)\bigr)$? Its sign is
   what concavity asks for.
3. An upper bound of $t(m)$, valid for all $p$ and whole $m \ge 0$, which summed over all sizes gives $m$. A formula in
   `p` and `m`.
4. It is the expectation that is concave. `own_history`: a list of sizes, one call each, along which the counted $K_0,
   K_1, K_2, \dots$ is **not** concave.
5. In words: put the proof together.
"""

PART_3 = r"""
Compiling a version takes $C$, and a call computes for $\alpha$ times its size; with buckets, times the size of its
bucket. Durations are in the same unit.

1. `concrete_total(p, m, C, alpha)`: the expected duration of $m$ calls, compiling included, one version per size.
2. `bucketed_total(p, m, C, alpha)`: the same with buckets.
3. Let $K$ and $L$ be the expected numbers of versions without and with buckets ($K > L$), and $s$ and $b$ the expected
   sizes of a call and of its bucket. Above which $C$ are buckets cheaper? A formula in `m`, `alpha`, `K`, `L`, `s` and
   `b`.
4. What is that for Zipf's law with your sizes, $m$ and $\alpha$, in milliseconds?
5. With your $C$ and $\alpha$ and Zipf's law: what is the largest number of calls for which buckets are cheaper?
6. As a function of $m$, with enough sizes and a large $C$: where are buckets cheaper?
7. In words: under which conditions are they?
"""

SHAPES = Rubric(
    (
        Criterion(
            "Fewer versions",
            1,
            "A few sizes take most calls, so fewer different ones occur.",
            none="States the numbers only.",
        ),
        Criterion(
            "The tail",
            1,
            "Rare sizes appear for the first time late: E[K_m] still grows where the uniform one has ended.",
            none="Nothing about later calls.",
        ),
    ),
    "Zipf's law and equal sizes",
)

PROOF = Rubric(
    (
        Criterion(
            "Concavity",
            1,
            "The second difference of a term is not positive, and sums of concave functions are concave.",
            "Shows it for one term only.",
            "Looks at values of one distribution.",
        ),
        Criterion(
            "At most the number of sizes",
            1,
            "A term is a probability, and 0 where p is 0.",
            none="Not shown.",
        ),
        Criterion(
            "At most m",
            1,
            "Bernoulli's inequality for a term, and the probabilities sum to 1; or: K_m <= m in every history.",
            none="Not shown.",
        ),
    ),
    "Concave, and bounded twice",
)

WHEN = Rubric(
    (
        Criterion(
            "The condition",
            1,
            "Versions saved times their cost against the padding of all calls.",
            none="No inequality.",
        ),
        Criterion(
            "As m grows",
            1,
            "What is saved is bounded, what padding costs is not; and for one call nothing is saved.",
            "One of the two ends.",
            "Takes the winner to be the same for all m.",
        ),
        Criterion(
            "What that means",
            1,
            "Names workloads: many sizes and dear compilation for buckets; few sizes or endless runs against.",
            none="No workload.",
        ),
    ),
    "When buckets are cheaper",
)

VERSIONS_EXAMPLE = """\
def mean_versions(p, m):
    return len(p) / m"""

CONCRETE_EXAMPLE = """\
def concrete_total(p, m, C, alpha):
    return C + m * alpha"""

BUCKETED_EXAMPLE = """\
def bucketed_total(p, m, C, alpha):
    return C + m * alpha"""

CONDITION = ("m", "alpha", "K", "L", "s", "b")

PARTS = (
    Part(
        "1",
        "Expected versions",
        PART_1,
        (
            Function("mean_versions", "E[K_m] for any distribution", 2, example=VERSIONS_EXAMPLE,
                     parameters=("p", "m"), returns="a number"),
            Number("zipf_versions", "E[K_m] for Zipf's law, to two decimals or better", 1, example="123.45",
                   unit="versions"),
            Number("uniform_versions", "E[K_m] for equally likely sizes, to two decimals or better", 1,
                   example="123.45", unit="versions"),
            Prose("zipf_and_uniform", "why they differ", SHAPES.points, rubric=SHAPES),
        ),
        (
            "A version of size s exists if that size occurs at least once. How likely is it not to occur at all?",
            "Divide 1/s by the sum of all 1/s, so that the probabilities sum to 1.",
        ),
    ),
    Part(
        "2",
        "Concave and bounded",
        PART_2,
        (
            FormulaIn("one_more_call", "what one more call adds to a term", 1, example='"p/(m + 1)"',
                      variables=("p", "m")),
            FormulaIn("second_difference", "how that changes", 1, example='"p/(m + 1)"', variables=("p", "m")),
            FormulaIn("linear_bound", "a bound of a term that sums to m", 1, example='"p/(m + 1)"',
                      variables=("p", "m")),
            Numbers("own_history", "a history that is not concave", 1, example="[1, 2, 3]", shape=(None,)),
            Prose("concave_proof", "the proof", PROOF.points, rubric=PROOF),
        ),
        (
            "The call after m others adds a version of size s if it is the first of that size. How likely is that?",
            "Bernoulli: (1 - p)^m >= 1 - m p.",
            "A history is not concave when a new size follows a repeated one.",
        ),
    ),
    Part(
        "3",
        "Buckets",
        PART_3,
        (
            Function("concrete_total", "m calls, one version per size", 1, example=CONCRETE_EXAMPLE,
                     parameters=("p", "m", "C", "alpha"), returns="a duration"),
            Function("bucketed_total", "m calls, with buckets", 2, example=BUCKETED_EXAMPLE,
                     parameters=("p", "m", "C", "alpha"), returns="a duration"),
            FormulaIn("least_cost", "the C above which buckets are cheaper", 1, example='"m*alpha + K"',
                      variables=CONDITION),
            Number("least_cost_here", "that C for your values, to five digits", 1, example="1.2345", unit="ms"),
            Number("last_win", "the most calls for which buckets are cheaper", 1, example="12345", whole=True,
                   unit="calls"),
            Choice("buckets_win", "where buckets are cheaper", 1, example=f'"{ALWAYS}"',
                   options=(UNTIL_SOME, FROM_SOME_ON, BETWEEN, ALWAYS)),
            Prose("when_buckets", "under which conditions", WHEN.points, rubric=WHEN),
        ),
        (
            "The probability of a bucket is the sum of those of its sizes; then it is Proposition 13.5 again.",
            "Set the two durations equal and solve for C. Which side does more compiling, which more computing?",
            "How many versions can be saved at most, however many calls there are? What does padding do meanwhile?",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    truth, cent = truth_of(variant), Fraction(1, 100)
    probabilities = tuple(Fraction(a, b) for a, b in ((1, 2), (1, 1), (1, 3), (3, 4), (2, 5), (5, 7), (1, 10), (9, 11)))
    domain = {"p": choices(probabilities), "m": integers(0, 6)}
    costs = {
        "m": integers(1, 500), "alpha": integers(1, 30), "K": integers(20, 60), "L": integers(1, 10),
        "s": integers(1, 40), "b": integers(41, 80),
    }  # fmt: skip

    def step(p: Fraction, m: int) -> Fraction:
        return term(p, m + 1) - term(p, m)

    return {
        "mean_versions": lambda callee: judge_versions(callee, seed),
        "zipf_versions": close_to(truth.zipf_versions, relative=Fraction(0), absolute=cent,
                                  slips=zipf_slips(variant)),
        "uniform_versions": close_to(truth.uniform_versions, relative=Fraction(0), absolute=cent,
                                     slips=uniform_slips(variant)),
        "zipf_and_uniform": read_by_a_person(SHAPES),
        "one_more_call": same_quantity(
            step, domain, seed=seed, counted="over all histories",
            slips=(
                Slip("next-call", lambda p, m: step(p, m + 1), "That is what the call after it adds."),
                Slip("the-term", term, "That is the term itself, not its increase."),
            ),
        ),
        "second_difference": same_quantity(
            lambda p, m: step(p, m + 1) - step(p, m), domain, seed=seed, counted="over all histories",
            slips=(
                Slip("sign", lambda p, m: step(p, m) - step(p, m + 1), "The later increase minus the earlier."),
                Slip("derivative-like", lambda p, m: -step(p, m), "Subtract two increases, and take out what they "
                     "share."),
            ),
        ),
        "linear_bound": same_quantity(
            lambda p, m: m * p, domain, seed=seed, counted="Bernoulli's bound",
            slips=(
                Slip("the-other-bound", lambda p, m: Fraction(1), "That one sums to the number of sizes."),
                Slip("too-tight", term, "That is the term itself; summed over sizes it gives less than m."),
            ),
        ),
        "own_history": judge_history,
        "concave_proof": read_by_a_person(PROOF),
        "concrete_total": lambda callee: judge_total(callee, seed, padded=False),
        "bucketed_total": lambda callee: judge_total(callee, seed, padded=True),
        "least_cost": same_quantity(
            lambda m, alpha, K, L, s, b: Fraction(m * alpha * (b - s), K - L), costs, seed=seed,
            counted="where the two durations meet",
            slips=(
                Slip("buckets-free", lambda m, alpha, K, L, s, b: Fraction(m * alpha * (b - s), K),
                     "Buckets are compiled as well."),
                Slip("whole-work", lambda m, alpha, K, L, s, b: Fraction(m * alpha * b, K - L),
                     "Without buckets a call costs something, too: only the padding counts."),
                Slip("one-call", lambda m, alpha, K, L, s, b: Fraction(alpha * (b - s), K - L),
                     "Padding is paid at every call."),
            ),
        ),
        "least_cost_here": close_to(truth.least_cost, relative=Fraction(1, 20000), slips=cost_slips(variant)),
        "last_win": close_to(Fraction(truth.last_win), relative=Fraction(0), slips=last_slips(variant)),
        "buckets_win": one_of(BETWEEN, {
            UNTIL_SOME: "For one call both compile once, and the one with padding computes more.",
            FROM_SOME_ON: "The versions saved are bounded, and padding is paid at every call.",
            ALWAYS: "Compiling is paid for each version, padding at each call: let m be 1, or very large.",
        }),
        "when_buckets": read_by_a_person(WHEN),
    }  # fmt: skip
