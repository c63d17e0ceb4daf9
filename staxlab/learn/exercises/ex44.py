"""Exercise 44 (Section 13.4, Proposition 13.6): from which size on fusing a chain pays, in memory and in a cache.

Sizes are found on two exact clocks, one for each way of executing; formulas and functions are compared with them.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Choice, FormulaIn, Function, Number, Prose
from ..claims import integers
from ..exercise import Part
from ..judges import Judge, Slip, close_to, one_of, read_by_a_person, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex44_answers import HARMLESS, reference, wrong_answers
from .ex44_runs import (
    LARGER,
    SMALLER,
    UNCHANGED,
    always_slips,
    bandwidth_slips,
    fewest_operators,
    fewest_slips,
    judge_fewest,
    last_loss,
    limit_slips,
    of_counts,
    plain,
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
TITLE = "From which size on a chain is worth fusing"
DIFFICULTY = 2

statement = r"""
A chain of $k$ pointwise operators works on tensors of $N$ float32 elements. Every operator after the first reads the
result of the one before it; any of them may read further tensors from outside; each writes one. Eager execution pays
$\tau_e$ for every operator and moves all that the operators read and write. The compiled chain is one kernel: it pays
$\tau_c$ once, reads every outside tensor once, and writes the last result. Both move data at $\beta$.

A compiled call costs $\tau_c$ when the same tensors are passed again, and $\tau_c'$ when they are new each time.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Overheads in tenths of a microsecond, the bandwidth of memory in tenths of a GB/s, cores and the L2 cache of each
    in KiB, and the length of the chain of Part 3. The defaults are the chapter's."""

    tau_e_tenths: int = 18
    tau_same_tenths: int = 120
    tau_new_tenths: int = 220
    bandwidth_tenths: int = 494
    cores: int = 4
    l2_kib: int = 1024
    length: int = 5

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        while True:
            length, tau_e = rng.randint(4, 7), rng.randint(8, 22)
            same = length * tau_e + rng.randint(10, 60)
            variant = cls(
                tau_e, same, same + rng.randint(40, 120), rng.randint(150, 900), rng.choice((2, 4, 6, 8)),
                rng.choice((256, 512, 1024, 1280, 2048)), length,
            )  # fmt: skip
            # The cache holds more than N* at the speed of memory: otherwise there would be nothing to compare.
            if variant.l2_limit > 2 * (plain(variant, 2, variant.tau_same).fewest or 0):
                return variant

    @property
    def tau_e(self) -> Fraction:
        """Microseconds."""
        return Fraction(self.tau_e_tenths, 10)

    @property
    def tau_same(self) -> Fraction:
        """Microseconds."""
        return Fraction(self.tau_same_tenths, 10)

    @property
    def tau_new(self) -> Fraction:
        """Microseconds."""
        return Fraction(self.tau_new_tenths, 10)

    @property
    def bandwidth(self) -> Fraction:
        """Bytes per microsecond."""
        return Fraction(self.bandwidth_tenths * 100)

    @property
    def l2_limit(self) -> int:
        """The most elements of which an operand and a result fit into the caches together."""
        return self.cores * self.l2_kib * 1024 // 8

    @property
    def largest_bandwidth(self) -> Fraction:
        """The bandwidth at which N* of two operators is just what the caches hold, in GB/s."""
        durations = plain(self, 2, self.tau_same)
        assert durations.meeting is not None
        return self.l2_limit / durations.meeting * self.bandwidth / 1000

    @property
    def always_same(self) -> int:
        """The shortest chain that is worth fusing at every size."""
        return fewest_operators(self.tau_same, self.tau_e)

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("τ_e", f"{float(self.tau_e):g} µs"),
            ("τ_c", f"{float(self.tau_same):g} µs"),
            ("τ_c'", f"{float(self.tau_new):g} µs"),
            ("B", f"{self.bandwidth_tenths / 10:g} GB/s (10^9 bytes)"),
            ("L2", f"{self.l2_kib} KiB for each of {self.cores} cores"),
            ("length of the chain in Part 3", str(self.length)),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
Operator $i$ reads $r_i$ tensors; $R = \sum_i r_i$. From outside come $d$ different tensors.

1. The $N^*$ above which compiled execution is faster. A formula in `k`, `R`, `d`, `tau_c`, `tau_e` and `beta`.
2. Let every outside tensor be read by one operator only. How does $N^*$ then depend on the $r_i$?
3. `fewest_elements(chain, tau_e, tau_c, beta)` returns the smallest whole $N \ge 1$ at which compiled execution is
   faster, and `None` if there is none. `chain` is a list with the names of the outside tensors that each operator
   reads: `[["x", "y"], [], ["x"]]` has three operators, of which the second reads only the result of the first, and
   the third that of the second and `x`. The numbers are whole, in consistent units (`beta` bytes per unit of time).
"""

PART_2 = r"""
Two operators, each reading one tensor and writing one, with the same tensors passed each time.

1. With $\beta = B$: what is the smallest $N$ at which compiled execution is faster?
2. What an operator reads and what it writes, $8N$ bytes, is divided among the cores. What is the largest $N$ for which
   that fits into their L2 caches?
3. Small tensors stay there, and the bandwidth is $\beta_2 > B$. Up to which $\beta_2$ is $N^*$ still at most the number
   you found in 2? In GB/s.
4. Let both bandwidths hold: $\beta_2 = g B$ for $N \le L$, and $B$ for $N > L$. Let $N_1$ be $N^*$ at $B$. Above which
   $N$ is compiled execution faster from there on? A formula in `N1`, `g` and `L`, all of them whole and at least 1.
"""

PART_3 = r"""
A chain of the length that your values say, each operator reading one tensor and writing one, with $\beta = B$.

1. What is the smallest $N$ at which compiled execution is faster, with the same tensors each time?
2. And with new ones each time ($\tau_c'$)?
3. By how much is $N^*$ for $k + 1$ operators smaller than for $k$ ($k \ge 2$)? A formula in `k`, `tau_c`, `tau_e` and
   `beta`, from which one can see that it is positive.
4. From how many operators on is compiled execution faster at every size and every bandwidth, with the same tensors
   each time?
5. In words: why does compiling pay more, the longer the chain is, and what does the cache change?
"""

CHAIN_EXAMPLE = """\
def fewest_elements(chain, tau_e, tau_c, beta):
    return 1000 * len(chain)"""

LONGER = Rubric(
    (
        Criterion(
            "Once and k times",
            1,
            "The compiled overhead is paid once; every operator adds an overhead and a round trip to eager execution.",
            "Names one of overhead and traffic.",
            "Only says that more operators are fused.",
        ),
        Criterion(
            "How N* falls",
            1,
            "Decreasing in k, and zero or less from k = tau_c/tau_e on.",
            "Decreasing.",
            "Does not follow N* with k.",
        ),
        Criterion(
            "The cache",
            1,
            "A larger bandwidth raises N*, at most to what the cache holds (or to N* in memory, if that is larger).",
            "Raises N*.",
            "Takes a faster memory to favour compiling.",
        ),
    ),
    "Longer chains, and the cache",
)

PARTS = (
    Part(
        "1",
        "Any numbers of reads",
        PART_1,
        (
            FormulaIn("least_size", "N*", 2, example='"(tau_c + k)*beta/(R + d*tau_e)"',
                      variables=("k", "R", "d", "tau_c", "tau_e", "beta")),
            Choice("more_reads", "how N* depends on the reads", 1, example=f'"{LARGER}"',
                   options=(UNCHANGED, SMALLER, LARGER)),
            Function("fewest_elements", "the smallest N that wins", 3, example=CHAIN_EXAMPLE,
                     parameters=("chain", "tau_e", "tau_c", "beta"), returns="a whole number or None"),
        ),
        (
            "How many tensors does eager execution move in all, and how many the fused kernel? Writes count, too.",
            "Without sharing, R is k - 1 (the results in between) and the outside tensors, each once. Put that in.",
            "One operator alone saves no traffic: then only the overheads decide.",
        ),
    ),
    Part(
        "2",
        "In the cache",
        PART_2,
        (
            Number("two_operators", "the smallest N, in memory", 1, example="12345", whole=True, unit="elements"),
            Number("l2_limit", "the largest N that fits", 1, example="12345", whole=True, unit="elements"),
            Number("largest_bandwidth", "the largest bandwidth", 1, example='"1234/5"', unit="GB/s"),
            FormulaIn("from_which_size", "the N above which it is faster for good", 2, example='"g + L/N1"',
                      variables=("N1", "g", "L")),
        ),
        (
            "N* is proportional to the bandwidth. Compiled execution has to be faster, not as fast: N > N*.",
            "Sketch both stretches: up to L it is faster above g N1, beyond L above N1. Where L lies decides.",
        ),
    ),
    Part(
        "3",
        "Longer chains",
        PART_3,
        (
            Number("chain_same", "the smallest N, the same tensors", 1, example="12345", whole=True, unit="elements"),
            Number("chain_new", "the smallest N, new tensors", 1, example="12345", whole=True, unit="elements"),
            FormulaIn("one_more_operator", "by how much N* falls", 1, example='"beta*tau_c/(k + tau_e)"',
                      variables=("k", "tau_c", "tau_e", "beta")),
            Number("always_from", "from how many operators on at every size", 1, example="3", whole=True,
                   unit="operators"),
            Prose("longer_chains", "why longer chains pay more", LONGER.points, rubric=LONGER),
        ),
        (
            "A microsecond at 1 GB/s is 1000 bytes.",
            "Write N* as beta/8 times something over k - 1, minus something that does not depend on k.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    counts = {
        "k": integers(2, 8), "R": integers(20, 40), "d": integers(1, 10), "tau_c": integers(1, 60),
        "tau_e": integers(1, 9), "beta": integers(1, 50),
    }  # fmt: skip
    plain_counts = {name: counts[name] for name in ("k", "tau_c", "tau_e", "beta")}
    levels = {"N1": integers(1, 30), "g": integers(1, 9), "L": integers(1, 200)}

    def least(k: int, R: int, d: int, tau_c: int, tau_e: int, beta: int) -> Fraction:
        meeting = of_counts(k, R, d, tau_e, tau_c, beta).meeting
        assert meeting is not None
        return meeting

    def falls(k: int, tau_c: int, tau_e: int, beta: int) -> Fraction:
        return least(k, k, 1, tau_c, tau_e, beta) - least(k + 1, k + 1, 1, tau_c, tau_e, beta)

    def changed(overheads: Any, tensors: Any) -> Any:
        return lambda k, R, d, tau_c, tau_e, beta: Fraction((tau_c - overheads(k) * tau_e) * beta, 4 * tensors(k, R, d))

    k, same, new = variant.length, variant.tau_same, variant.tau_new
    return {
        "least_size": same_quantity(
            least, counts, seed=seed, counted="where the two durations meet",
            slips=(
                Slip("plain-chain", changed(lambda k: k, lambda k, R, d: 2 * (k - 1)),
                     "That is the chain of the proposition. Here a tensor may be read by several operators."),
                Slip("one-overhead", changed(lambda k: 1, lambda k, R, d: R + k - d - 1),
                     "Eager execution pays its overhead for every operator."),
                Slip("writes-forgotten", changed(lambda k: k, lambda k, R, d: R - d),
                     "Every operator writes its result, and so does the fused kernel."),
                Slip("fused-forgotten", changed(lambda k: k, lambda k, R, d: R + k),
                     "The fused kernel moves something as well: what counts is the difference."),
                Slip("bytes", lambda k, R, d, tau_c, tau_e, beta: 4 * least(k, R, d, tau_c, tau_e, beta),
                     "An element has four bytes."),
            ),
        ),
        "more_reads": one_of(UNCHANGED, {
            SMALLER: "The fused kernel reads the outside tensors as well, each of them once: that cancels.",
            LARGER: "Eager execution reads the outside tensors as well, each of them once: that cancels.",
        }),
        "fewest_elements": lambda callee: judge_fewest(callee, seed),
        "two_operators": close_to(Fraction(plain(variant, 2, same).fewest or 0), relative=Fraction(0),
                                  slips=fewest_slips(variant, 2, same)),
        "l2_limit": close_to(Fraction(variant.l2_limit), relative=Fraction(0), slips=limit_slips(variant)),
        "largest_bandwidth": close_to(variant.largest_bandwidth, slips=bandwidth_slips(variant)),
        "from_which_size": same_quantity(
            lambda N1, g, L: Fraction(last_loss(N1, g, L)), levels, seed=seed, counted="the last size that loses",
            slips=(
                Slip("only-the-cache", lambda N1, g, L: Fraction(g * N1), "Beyond L the data no longer are in the "
                     "cache."),
                Slip("only-memory", lambda N1, g, L: Fraction(N1), "Up to L it takes more to win."),
                Slip("beyond-the-cache", lambda N1, g, L: Fraction(max(L, N1)), "If g N1 is below L, it is faster "
                     "within the cache already."),
            ),
        ),
        "chain_same": close_to(Fraction(plain(variant, k, same).fewest or 0), relative=Fraction(0),
                               slips=fewest_slips(variant, k, same)),
        "chain_new": close_to(Fraction(plain(variant, k, new).fewest or 0), relative=Fraction(0),
                              slips=fewest_slips(variant, k, new)),
        "one_more_operator": same_quantity(
            falls, plain_counts, seed=seed, counted="the difference",
            slips=(
                Slip("the-ratio", lambda k, tau_c, tau_e, beta: Fraction(beta * (tau_c - k * tau_e), 8 * k * (k - 1)),
                     "One operator more also brings its own overhead to eager execution."),
                Slip("upwards", lambda **point: -falls(**point), "N* for k minus N* for k + 1, not the other way."),
            ),
        ),
        "always_from": close_to(Fraction(variant.always_same), relative=Fraction(0), slips=always_slips(variant)),
        "longer_chains": read_by_a_person(LONGER),
    }  # fmt: skip
