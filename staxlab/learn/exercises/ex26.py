"""Exercise 26 (Section 9.9): what a CUDA graph gains, and how much at most.

Formulas are compared with the package's model, break-even points are found by trying every number of kernels, and the
student's simulation is run against the package's own on many regions.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...measure import launch_timeline as model
from ..answers import FormulaIn, Function, Number, Prose
from ..claims import integers
from ..exercise import Part
from ..judges import Judge, Slip, close_to, read_by_a_person, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex26_answers import HARMLESS, reference, wrong_answers
from .ex26_runs import break_even, judge_execution_times

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
TITLE = "What a CUDA graph gains"
DIFFICULTY = 1

statement = r"""
A region is a sequence of $n$ kernels, each of which takes $t$ on the device. The host needs $L$ for every launch
($t_{\mathrm{launch}}$) and goes on without waiting for the kernel. The device runs kernels in order, each as soon as it
has been launched and the one before is done. Recorded as a CUDA graph, the region is submitted as a whole, in $G$
($t_{\mathrm{graph}}$), whatever $n$ is, and then runs without gaps.

*To first order* means: whoever is slower, host or device, decides, and what the other does in the meantime is free.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Number of kernels, and three times in microseconds. The defaults are of the order of the chapter's."""

    n: int = 24
    t: int = 2
    launch: int = 5
    graph: int = 10

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        while True:
            launch = rng.randint(3, 9)
            variant = cls(rng.randint(10, 60), rng.randint(1, launch - 1), launch, rng.randint(6, 25))
            # A point where both are equally fast would make "faster" a matter of words.
            if variant.graph % (variant.launch - variant.t) and break_even(variant.t, launch, variant.graph) > 2:
                return variant

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("n", str(self.n)),
            ("t", f"{self.t} us"),
            ("L", f"{self.launch} us"),
            ("G", f"{self.graph} us"),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
Formulas in `n`, `t`, `L` and `G`, all positive, to first order. They must hold for kernels that are shorter than a
launch and for kernels that are longer.

1. How long does the region take, launched kernel by kernel?
2. How long as a graph?
3. How many times faster is the graph?
"""

PART_2 = r"""
Two bounds on the speedup of Part 1. Each is to be the *least* one: the speedup comes as close to it as one likes.

1. For given `t` and `L`, whatever $n$ and $G$ are. A formula in `t` and `L`.
2. For given `n`, `L` and `G`, however short or long the kernels are. A formula in `n`, `L` and `G`.
"""

PART_3 = r"""
With your values, to first order:

1. How many times faster is the graph?
2. Your $t$, $L$ and $G$: from how many kernels on is the graph faster? (The least such number.)
3. The kernels' work of $n t$ is divided into more kernels, or fewer, of the same total. At which number do launches
   begin to decide? (It need not be whole.)
"""

PART_4 = r"""
1. **Exactly.** `execution_times(times, L, G)` gets a list of kernel times, which may differ, and may be empty; an empty
   region takes no time at all. It returns two numbers: the time from the start of the first launch to the end of the
   last kernel, launched one by one, and as a graph. Not to first order: launch $j$ is done at $jL$.
2. In words: when is it worth recording a graph, when is it not, and what does fusing kernels change about it?
"""

EXECUTION_EXAMPLE = """\
def execution_times(times, L, G):
    return [L * len(times), G]"""

WORTH = Rubric(
    (
        Criterion(
            "Where it pays",
            1,
            "Where the host decides: many kernels that are shorter than a launch, n L above the sum of their times.",
            none="Does not name what is compared with what.",
        ),
        Criterion(
            "Where it does not",
            1,
            "Where launches hide behind longer kernels: the device is busy anyway, and the speedup is just below 1.",
            none="Thinks it always pays.",
        ),
        Criterion(
            "Fusion",
            1,
            "Fusing lowers n and makes kernels longer, so there is less for a graph to gain; it saves traffic too, "
            "which a graph never does. What is left of launches, a graph still removes.",
            "Names one of both effects.",
            "Sees no relation.",
        ),
    ),
    "When a graph is worth recording",
)

PARTS = (
    Part(
        "1",
        "The model",
        PART_1,
        (
            FormulaIn("launched", "time, launched one by one", 1, example='"n + L"', variables=("n", "t", "L", "G")),
            FormulaIn("as_graph", "time as a graph", 1, example='"n + G"', variables=("n", "t", "L", "G")),
            FormulaIn("gain", "speedup", 1, example='"n + G/L"', variables=("n", "t", "L", "G")),
        ),
        (
            "Draw two lanes, one for the host and one for the device, for three short kernels and for three long ones.",
            "The larger of two quantities is written max(a, b).",
        ),
    ),
    Part(
        "2",
        "Bounds",
        PART_2,
        (
            FormulaIn("bound", "whatever n and G are", 1, example='"t + L"', variables=("t", "L")),
            FormulaIn("bound_for_n", "whatever t is", 1, example='"n + L + G"', variables=("n", "L", "G")),
        ),
        (
            "Divide numerator and denominator by n, and let n grow. Do not forget kernels longer than a launch.",
            "For fixed n: where does the speedup go as t goes to 0, and where as t grows without limit?",
        ),
    ),
    Part(
        "3",
        "Your region",
        PART_3,
        (
            Number("own_gain", "speedup of your region", 1, example='"5/7"'),
            Number("break_even", "kernels from which on the graph is faster", 1, example="2", whole=True),
            Number("crossing", "kernels at which launches begin to decide", 1, example='"7/2"'),
        ),
        (
            "Both times are linear in n. Where do the lines cross?",
            "At the number in question the launches together take as long as the kernels together.",
        ),
    ),
    Part(
        "4",
        "Kernel by kernel",
        PART_4,
        (
            Function("execution_times", "both times, exactly", 3, example=EXECUTION_EXAMPLE,
                     parameters=("times", "L", "G"), returns="two numbers"),
            Prose("when", "when it is worth it", WORTH.points, rubric=WORTH),
        ),
        (
            "Keep two clocks: when the host is done with the launch, and when the device is done with the kernel.",
            "A kernel starts at the later of two moments.",
        ),
    ),
)  # fmt: skip

POSITIVE = integers(1, 60)


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    four = dict.fromkeys(("n", "t", "L", "G"), POSITIVE)
    n, t, launch, graph = (Fraction(value) for value in (variant.n, variant.t, variant.launch, variant.graph))
    even = break_even(variant.t, variant.launch, variant.graph)
    short = "That holds for kernels shorter than a launch. Try t larger than L."
    return {
        "launched": same_quantity(
            lambda n, t, L, G: model.first_order([Fraction(t)] * int(n), L), four, seed=seed, counted="the model",
            slips=(
                Slip("one-after-the-other", lambda n, t, L, G: n * (L + t), "The host does not wait for the kernel."),
                Slip("host-only", lambda n, t, L, G: n * L, "Launches cannot be faster than the kernels they start."),
                Slip("device-only", lambda n, t, L, G: n * t, "The device cannot start what is not launched yet."),
            ),
        ),
        "as_graph": same_quantity(
            lambda n, t, L, G: model.graph_time([Fraction(t)] * int(n), G), four, seed=seed, counted="the model",
            slips=(
                Slip("submission-per-kernel", lambda n, t, L, G: n * (G + t), "A graph is submitted once."),
                Slip("without-submission", lambda n, t, L, G: n * t, "Submitting the graph takes time as well."),
                Slip("launches-remain", lambda n, t, L, G: G + n * L + n * t, "The launches are what it replaces."),
            ),
        ),
        "gain": same_quantity(
            lambda n, t, L, G: model.speedup(Fraction(n), t, L, G), four, seed=seed, counted="the model",
            slips=(
                Slip("upside-down", lambda n, t, L, G: 1 / model.speedup(Fraction(n), t, L, G),
                     "That is the graph's time over the other: faster means larger than 1."),
                Slip("short-kernels-only", lambda n, t, L, G: Fraction(n * L, G + n * t), short),
                Slip("kernels-for-nothing", lambda n, t, L, G: Fraction(n * max(L, t), G),
                     "The kernels still have to run when the graph is submitted."),
            ),
        ),
        "bound": same_quantity(
            lambda t, L: model.speedup_bound(Fraction(t), L), {"t": POSITIVE, "L": POSITIVE}, seed=seed,
            counted="the least bound",
            slips=(
                Slip("short-kernels-only", lambda t, L: Fraction(L, t),
                     f"{short} The speedup is below 1 then, but it comes near to 1."),
                Slip("for-one-kernel", lambda t, L: L, "A speedup has no unit: that is a time."),
            ),
        ),
        "bound_for_n": same_quantity(
            lambda n, L, G: max(Fraction(n * L, G), Fraction(1)), {"n": POSITIVE, "L": POSITIVE, "G": POSITIVE},
            seed=seed, counted="the least bound",
            slips=(
                Slip("short-kernels-only", lambda n, L, G: Fraction(n * L, G),
                     "That is the limit for kernels that take no time. Very long ones come near to another value."),
                Slip("without-n", lambda n, L, G: max(Fraction(L, G), Fraction(1)), "One graph replaces n launches."),
            ),
        ),
        "own_gain": close_to(
            model.speedup(n, t, launch, graph),
            slips=(
                Slip("upside-down", 1 / model.speedup(n, t, launch, graph), "That is the other ratio."),
                Slip("the-limit", model.speedup_bound(t, launch), "That is the bound, for more and more kernels."),
            ),
        ),
        "break_even": close_to(
            Fraction(even),
            slips=(
                Slip("one-less", Fraction(even - 1), "With so many the graph is still slower."),
                Slip("one-more", Fraction(even + 1), "One kernel less is enough already."),
            ),
        ),
        "crossing": close_to(
            model.crossing(n * t, launch),
            slips=(
                Slip("upside-down", launch / (n * t), "That is one over it."),
                Slip("launches-over-kernel", n * launch / t,
                     "The work stays the same: more kernels are shorter kernels."),
            ),
        ),
        "execution_times": lambda callee: judge_execution_times(callee, seed),
        "when": read_by_a_person(WORTH),
    }  # fmt: skip
