"""Exercise 34 (Sections 13.1 and 13.2): what a single speedup proves, and an experiment that proves more.

The student's experiment is run many times on machines whose truth was planted, where its errors can be counted, and on
two real kernels. Bytes are counted by the package's byte model.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Choice, FormulaIn, Function, Number, Prose
from ..claims import choices, integers
from ..exercise import Part
from ..judges import Judge, Slip, close_to, one_of, read_by_a_person, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex34_answers import HARMLESS, reference, wrong_answers
from .ex34_runs import (
    HIDDEN,
    IMPOSSIBLE,
    MOST_READINGS,
    QUALITY,
    SMALLER,
    byte_ratio,
    counted_bytes,
    delay_slips,
    draw_measured,
    false_alarms,
    fewest_pairs,
    judge_experiment,
    left_over_slips,
    pair_slips,
    ratio_slips,
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
TITLE = "Is the compiled kernel slower?"
DIFFICULTY = 2

statement = r"""
For single operators the compiled kernel moves the same bytes as the library's, $\rho = 1$, and most measured speedups
$S = T_e / T_c$ lie between 0.87 and 1.03. For the row sum, one round gave a much smaller one.

A reading is $T = t_0 + \varepsilon$ with a delay $\varepsilon \ge 0$ (Definition 13.1). Delays of readings that are
taken at different times need not be alike: seven medians of one and the same row sum lay between 1.36 and 3.18 ms.

(`staxlab.measure.timing` compares functions on a real clock. Use it to look, after you have answered.)
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Part 1: a speedup at rho = 1 and the eager kernel's share of the bandwidth, in percent. Part 2: the observed S
    and the level of error, in percent and thousandths, the eager reading in hundredths of a millisecond, and by how
    many percent a kernel is slower that the experiment has to notice. Part 3: columns, the traffic of a written byte,
    and the measured S, in hundredths. The defaults are the chapter's."""

    single_percent: int = 93
    share_percent: int = 70
    observed_percent: int = 63
    eager_hundredths: int = 136
    level_thousandths: int = 10
    effect_percent: int = 10
    columns: int = 2048
    factor_percent: int = 150
    measured_hundredths: int = 491

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        columns = rng.choice((256, 500, 512, 1000, 1024, 2048, 4096))
        factor = rng.choice((125, 140, 150, 160, 175))
        measured = draw_measured(rng, columns, Fraction(factor, 100))
        return cls(
            rng.choice((87, 88, 89, 91, 92, 93, 94, 96, 97)), rng.randint(55, 85), rng.randint(45, 80),
            rng.randint(100, 250), rng.choice((2, 3, 5, 10, 20)), rng.randint(9, 15), columns, factor,
            int(100 * measured),
        )  # fmt: skip

    @property
    def single(self) -> Fraction:
        return Fraction(self.single_percent, 100)

    @property
    def eager_share(self) -> Fraction:
        """In percent."""
        return Fraction(self.share_percent)

    @property
    def observed(self) -> Fraction:
        return Fraction(self.observed_percent, 100)

    @property
    def eager_ms(self) -> Fraction:
        return Fraction(self.eager_hundredths, 100)

    @property
    def level(self) -> Fraction:
        return Fraction(self.level_thousandths, 1000)

    @property
    def factor(self) -> Fraction:
        return Fraction(self.factor_percent, 100)

    @property
    def measured(self) -> Fraction:
        return Fraction(self.measured_hundredths, 100)

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("Part 1", f"S = {float(self.single)}, eager at {self.share_percent}% of the bandwidth"),
            ("Part 2", f"S = {float(self.observed)}, T_e = {float(self.eager_ms)} ms, level {float(self.level):g}, "
             f"slower by {self.effect_percent}%"),
            ("Part 3", f"{self.columns} columns, write allocate {float(self.factor):g}, S = {float(self.measured)}"),
        )  # fmt: skip


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. What is $S$ when $\rho = 1$? A formula in `beta_e` and `beta_c`, the effective bandwidths.
2. With the $S$ of your values, and the eager kernel at your share of the bandwidth ceiling: at which share is the
   compiled kernel? In percent.
"""

PART_2 = rf"""
1. The eager reading was undisturbed, `t_e`, and the measured speedup is `S`. Which delay $\varepsilon$ of the compiled
   kernel's reading explains that, if the kernel takes `t_c` undisturbed? A formula in `t_e`, `t_c` and `S`. (For which
   `t_c` is it allowed by Definition 13.1?)
2. How many milliseconds is that for your values, if the two kernels are **equally fast**?
3. Readings are taken in pairs, and of each pair the difference, compiled minus eager. If neither is slower, a
   difference is positive with probability 1/2. What is the probability that the `j`-th smallest of `n` differences is
   positive all the same? A formula in `n` and `j`; `Sum` and `binomial` are there.
4. How many pairs are needed at least, if "all differences are positive" is to happen by chance with at most the
   probability (level) of your values?
5. **The experiment.** `experiment(run_a, run_b)` decides whether the second kernel is slower. `run_a()` and `run_b()`
   run the first (eager) and the second (compiled) kernel once, each in its own time, and return the reading in seconds;
   it may take {MOST_READINGS} readings in all. It returns `True` if they establish that the second is slower, and
   otherwise `False`. If it is not slower, `True` may come out by chance in 2.5% of all experiments, whatever the noise,
   the load and its changes; if it is slower by the percentage of your values, nine of ten experiments have to find
   that. It is run many times on simulated machines, and then on real kernels: one twice, and two of which the second
   does more work.
6. In words: why does one number not prove that the kernel is slower, and why does your experiment?
"""

PART_3 = r"""
Example 1.1, `(relu(x + w) * 2).sum(-1)`, in rows of `C` columns. Suppose that a written byte causes `w` bytes of
traffic, since its line is read first, and a read byte causes one.

1. What is $\rho$ then, exactly? A formula in `C` and `w`. Eager execution runs four operators; the results of the sum
   count.
2. And for your values?
3. Which factor $\beta_c / \beta_e$ is left to explain the measured $S$ of your values?
4. What explains most of the excess of $S$ over the ratio as it was counted?
5. In words: compare with the explanation by bandwidths in Section 13.2, and with its round B, $S = 3.95$.
"""

EXPERIMENT_EXAMPLE = """\
def experiment(run_a, run_b):
    return run_b() > 2 * run_a()"""

WHY_ONE = Rubric(
    (
        Criterion(
            "Any number has an explanation",
            1,
            "A delay of the compiled reading gives any S below 1, even for a faster kernel.",
            "Says that there is noise.",
            "Takes the number as it is.",
        ),
        Criterion(
            "A median does not help",
            1,
            "Load lasts as long as one side is timed: readings of one period are not independent of it.",
            none="Trusts the median of one round.",
        ),
        Criterion(
            "Pairs, and turns",
            1,
            "Readings of both sides belong together and alternate, with changing order, so that drift cancels.",
            "Alternates, without saying why.",
            "Times one side after the other.",
        ),
        Criterion(
            "A rule fixed beforehand",
            1,
            "The ranks follow from the number of pairs and the error that is allowed, before reading; no model of the "
            "noise.",
            "Uses an interval.",
            "Judges by eye.",
        ),
    ),
    "One number, and an experiment",
)

COMPARED = Rubric(
    (
        Criterion(
            "Who writes",
            1,
            "Eager execution writes three large tensors, the fused kernel one number per row: a one-sided correction.",
            none="No reason.",
        ),
        Criterion(
            "Against kernel quality",
            1,
            "The factor of bandwidths shrinks to nearly 1: it had contained uncounted traffic.",
            "Gives the numbers.",
            "Leaves the explanation as it was.",
        ),
        Criterion(
            "Round B",
            1,
            "3.95 lies below the corrected ratio: differences between rounds are as large as the effect, so neither "
            "explanation is established.",
            "Names the difference.",
            "Not considered.",
        ),
    ),
    "Write allocate and S",
)  # fmt: skip

PARTS = (
    Part(
        "1",
        "No bytes are saved",
        PART_1,
        (
            FormulaIn("speedup_at_one", "S at rho = 1", 1, example='"beta_c - beta_e"', variables=("beta_e", "beta_c")),
            Number("compiled_share", "share of the compiled kernel", 1, example='"123/4"', unit="percent"),
        ),
        (
            "Proposition 13.3 with rho = 1.",
            "The same bytes in a longer time: is that a larger or a smaller bandwidth?",
        ),
    ),
    Part(
        "2",
        "From a number to an experiment",
        PART_2,
        (
            FormulaIn("delay_34", "the delay that explains S", 1, example='"t_e*t_c*S"', variables=("t_e", "t_c", "S")),
            Number("delay_here", "for two equal kernels", 1, example='"12/7"', unit="ms"),
            FormulaIn("false_alarm", "the j-th smallest is positive by chance", 1, example='"binomial(n, j)"',
                      variables=("n", "j")),
            Number("pairs_34", "the fewest pairs", 1, example="3", whole=True, unit="pairs"),
            Function("experiment", "whether the second kernel is slower", 5, example=EXPERIMENT_EXAMPLE,
                     parameters=("run_a", "run_b"), returns="True or False"),
            Prose("why_one_number", "why one number is not enough", WHY_ONE.points, rubric=WHY_ONE),
        ),
        (
            "Take readings of both sides directly after each other, and look at their difference.",
            "Proposition 13.2 for the differences: the interval of their median, with ranks that depend on how many "
            "there are. When does it lie above zero?",
            "A machine gets slower and slower: what does that do to you if the same side is always first of a pair?",
            "Are there enough pairs? With n = 15, at least 12 of the differences have to be positive.",
        ),
    ),
    Part(
        "3",
        "Write allocate",
        PART_3,
        (
            FormulaIn("corrected_rho", "rho with write allocate", 2, example='"C*w/2"', variables=("C", "w")),
            Number("corrected_here", "rho for your values, exactly", 1, example='"1234/567"'),
            Number("left_over", "the factor that is left, to four digits", 1, example="1.234"),
            Choice("explained_by", "what explains the excess", 1, example=f'"{QUALITY}"',
                   options=(QUALITY, HIDDEN, IMPOSSIBLE, SMALLER)),
            Prose("compared_with_s", "the comparison", COMPARED.points, rubric=COMPARED),
        ),
        (
            "Of the 8 C elements of a row that eager execution moves, how many are written?",
            "What does the fused kernel write?",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    bandwidths = {"beta_e": integers(1, 60), "beta_c": integers(1, 60)}
    percent = choices(tuple(Fraction(k, 100) for k in (63, 50, 93, 80, 25)))
    times = {"t_e": integers(1, 40), "t_c": integers(1, 40), "S": percent}
    signs = {"n": integers(1, 11), "j": integers(1, 8)}
    traffic = {
        "C": choices((2, 3, 8, 31, 64, 128, 500, 2048)),
        "w": choices(tuple(Fraction(k, 4) for k in (4, 6, 5, 8, 12))),
    }
    share = variant.single * variant.eager_share
    rho = byte_ratio(variant.columns, variant.factor)

    def only_eager(C: int, w: Fraction) -> Fraction:
        eager_read, eager_written, read, written = counted_bytes(C)
        return (eager_read + w * eager_written) / Fraction(read + written)

    def alarms(n: int, j: int) -> Fraction:
        return false_alarms(n, j) if j <= n else Fraction(1)

    return {
        "speedup_at_one": same_quantity(
            lambda beta_e, beta_c: Fraction(beta_c, beta_e), bandwidths, seed=seed,
            slips=(
                Slip("inverse", lambda beta_e, beta_c: Fraction(beta_e, beta_c), "S is T_e / T_c; a larger bandwidth "
                     "is a shorter time."),
                Slip("always-one", lambda beta_e, beta_c: Fraction(1), "Only if both use the bandwidth equally well."),
            ),
        ),
        "compiled_share": close_to(share, unit="percent", slips=(
            Slip("inverse", variant.eager_share / variant.single, "S below 1 means that the compiled kernel is the "
                 "slower one."),
        )),
        "delay_34": same_quantity(
            lambda t_e, t_c, S: t_e / S - t_c, times, seed=seed,
            slips=(
                Slip("sign", lambda t_e, t_c, S: t_c - t_e / S, "The delay is added to t_c."),
                Slip("equal-kernels", lambda t_e, t_c, S: t_e / S - t_e, "That is for t_c = t_e."),
                Slip("share-of-eager", lambda t_e, t_c, S: t_e * S - t_c, "S is T_e / T_c: which of the two is S times "
                     "the other?"),
            ),
        ),
        "delay_here": close_to(variant.eager_ms / variant.observed - variant.eager_ms, unit="ms",
                               slips=delay_slips(variant)),
        "false_alarm": same_quantity(
            alarms, signs, seed=seed, counted="of all patterns of signs",
            slips=(
                Slip("one-term", lambda n, j: alarms(n, j) - (alarms(n, j - 1) if j > 1 else 0), "Fewer than j - 1 "
                     "differences below zero do as well."),
                Slip("one-more", lambda n, j: alarms(n, j + 1), "With j differences below zero, so is the j-th "
                     "smallest."),
                Slip("coverage", lambda n, j: 1 - alarms(n, j), "That is how often it is not."),
            ),
        ),
        "pairs_34": close_to(Fraction(fewest_pairs(variant.level)), slips=pair_slips(variant)),
        "experiment": lambda callee: judge_experiment(callee, variant.effect_percent / 100),
        "why_one_number": read_by_a_person(WHY_ONE),
        "corrected_rho": same_quantity(
            byte_ratio_of, traffic, seed=seed, counted="by the byte model",
            slips=(
                Slip("sum-forgotten", lambda C, w: (5 + 3 * w) / 2, "The results of the sum are written as well, on "
                     "both sides: a small part, but this is not exact.", Fraction(3, 4)),
                Slip("as-counted", lambda C, w: byte_ratio(C, Fraction(1)), "That is without write allocate."),
                Slip("only-eager", only_eager, "The fused kernel writes, too."),
            ),
        ),
        "corrected_here": close_to(rho, slips=ratio_slips(variant)),
        "left_over": close_to(variant.measured / rho, relative=Fraction(1, 2000), slips=left_over_slips(variant)),
        "explained_by": one_of(HIDDEN, {
            QUALITY: "By how much does that factor shrink with the corrected ratio?",
            IMPOSSIBLE: "Proposition 13.3 bounds S by nothing: the bandwidths may differ.",
            SMALLER: "Eager execution writes three tensors of full size, the fused kernel none.",
        }),
        "compared_with_s": read_by_a_person(COMPARED),
    }  # fmt: skip


def byte_ratio_of(C: int, w: Fraction) -> Fraction:
    """As :func:`byte_ratio`, in the names of the question."""
    return byte_ratio(C, w)
