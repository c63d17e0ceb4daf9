"""Exercise 23 (Sections 9.4 and 9.5): what fusing a softmax saves, and how often a long row has to be read.

All bytes are those that the compiler's own schedule counts for the kernels it generates: for the fused one, for five
operators compiled separately, and for what remains with fusion switched off. How often a kernel reads its input is
counted in its text.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Choice, FormulaIn, Number, Numbers, Prose
from ..claims import choices
from ..exercise import Part
from ..judges import Judge, Slip, close_to, one_of, read_by_a_person, same_numbers, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex23_answers import INLINED, reference, wrong_answers
from .ex23_runs import bytes_of, five_kernels, fused_kernels, passes, unfused_kernels

__all__ = [
    "DIFFICULTY",
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
TITLE = "A softmax in one kernel"
DIFFICULTY = 1

statement = r"""
The rows of a float32 tensor $x$ of shape $n \times L$ get a softmax each: the maximum of the row, the differences from
it, their exponentials, the sum of these, and the quotients. Five operators; each could be a kernel of its own that
reads its operands from main memory and writes its result there. The compiler fuses them: a program instance holds a row
in registers and does all five. Count what is transferred between main memory and the kernels.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Rows and their length. The defaults are those of Listing 9.5."""

    n: int = 256
    length: int = 1000

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(rng.randrange(32, 513, 8), rng.randrange(100, 1001, 10))

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (("n, in the table of Part 1", str(self.n)), ("L, in the table of Part 1", str(self.length)))


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. For each of the five kernels, in the order above: how many *elements* does it read, and how many does it write? Five
   pairs, with your values of $n$ and $L$. The maxima and the sums are tensors of $n$ elements.
2. The *bytes* of the five kernels together and of the fused one, as formulas in `n` and `L`.
3. The ratio of the two, five over one, as a formula in `L`; and what it tends to for long rows.
"""

PART_2 = r"""
With `fuse` switched off (`options={"fuse": False}`) the compiler still does not make five kernels: a value that is
cheap to compute is written into its readers instead of into memory when the graph is lowered.

1. How many kernels are there?
2. How many bytes do they transfer together? A formula in `n` and `L`.
3. Which two of the five operators have no kernel of their own?
"""

PART_3 = r"""
Now a row is too long for the registers of a program instance, and the kernel walks along it in steps, once for each
*pass*; what a pass has read is gone when it ends.

1. How often is the input read until all results are written, if the maximum is found first, and then the sum relative
   to it? And how often if both are found together, as pairs $(m, d)$ (Proposition 9.1)?
2. With the pairs, and every pass reading from main memory: the ratio of the bytes of five separate kernels to those of
   this one, as a formula in `L`.
3. In words: why can the results not be written in the pass that finds the pairs? And what may keep the next pass from
   going to main memory for all of it?
"""

AGAIN = Rubric(
    (
        Criterion(
            "The pair is final at the end",
            1,
            "m and d of the row are known after its last element only, and every result of the row needs both.",
            none="Does not say that every result needs the whole row.",
        ),
        Criterion(
            "The row is gone",
            1,
            "Its elements do not fit into registers, so those read first have to be read again (or exponentials "
            "written and corrected later, which transfers more).",
            none="Does not say why they have to be read again.",
        ),
        Criterion(
            "Caches",
            1,
            "The second pass follows at once: a row, or the end of it, may still be in L2.",
            none="Does not mention a cache.",
        ),
    ),
    "Why the input is read again",
)

PARTS = (
    Part(
        "1",
        "Five kernels and one",
        PART_1,
        (
            Numbers("elements", "elements read and written", 2,
                    example="[[10, 20], [10, 20], [10, 20], [10, 20], [10, 20]]", shape=(5, 2)),
            FormulaIn("five_bytes", "bytes of five kernels", 1, example='"6*n*L + n"', variables=("n", "L")),
            FormulaIn("fused_bytes", "bytes of the fused kernel", 1, example='"6*n*L + n"', variables=("n", "L")),
            FormulaIn("ratio", "five over one", 1, example='"3 + 1/L"', variables=("L",)),
            Number("ratio_limit", "its limit", 1, example="12"),
        ),
        (
            "Which operators read the n values of the rows besides the tensor?",
            "An operator's result is written once and read by the next one.",
        ),
    ),
    Part(
        "2",
        "Without fusion",
        PART_2,
        (
            Number("kernels", "kernels", 1, example="12", whole=True, unit="kernels"),
            FormulaIn("unfused_bytes", "their bytes", 1, example='"6*n*L + n"', variables=("n", "L")),
            Choice("inlined", "operators without a kernel", 1, example='"maximum and sum"',
                   options=("maximum and sum", INLINED, "exponential and division", "subtraction and division")),
        ),
        (
            "A reduction has to be finished before anybody can use it; what about the elementwise operators?",
            "Print staxlab.explain(f, x, target=\"sm_90\", options={\"fuse\": False}).kernels: what does each read?",
        ),
    ),
    Part(
        "3",
        "Long rows",
        PART_3,
        (
            Number("two_pass", "maximum first", 1, example="12", whole=True, unit="times"),
            Number("online", "pairs", 1, example="12", whole=True, unit="times"),
            FormulaIn("long_ratio", "five over one", 1, example='"3 + 1/L"', variables=("L",)),
            Prose("second_pass", "why it is read again", AGAIN.points, rubric=AGAIN),
        ),
        (
            "Finding m and d is not all: the quotients have to be computed from something, too.",
            "The kernel writes each result once, whatever it reads.",
        ),
    ),
)  # fmt: skip

ROWS = 64  # of a ratio that does not depend on them


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    n, whole = variant.n, variant.n * variant.length
    counted = [list(pair) for pair in five_kernels(n, variant.length)]
    shapes = {"n": choices((1, 2, 3, 8, 64)), "L": choices((5, 7, 12, 100, 1000))}
    lengths = {"L": choices((5, 7, 12, 64, 100, 333, 1000))}

    def five(n: Any, L: Any) -> int:
        return bytes_of(five_kernels(int(n), int(L)))

    def fused(n: Any, L: Any) -> int:
        return bytes_of(fused_kernels(int(n), int(L)))

    def unfused(n: Any, L: Any) -> int:
        return bytes_of(unfused_kernels(int(n), int(L)))

    def ratio(L: Any) -> Fraction:
        return Fraction(five(ROWS, L), fused(ROWS, L))

    def long_ratio(L: Any, times: int | None = None) -> Fraction:
        reads = passes(online=True) if times is None else times
        return Fraction(five(ROWS, L), 4 * ROWS * int(L) * (reads + 1))

    plain = "Those are elements; a float32 has four bytes."
    return {
        "elements": same_numbers(
            counted,
            slips=(
                Slip("row-values-not-read", [[whole, written] for _, written in counted],
                     "Two of the kernels read the values of the rows besides the tensor."),
                Slip("results-as-large", [[read, whole] for read, _ in counted],
                     "A maximum and a sum of each row are n elements."),
                Slip("bytes-not-elements", [[4 * a for a in row] for row in counted], "Those are bytes."),
            ),
            praise="As the compiler counts it for the five kernels.",
        ),
        "five_bytes": same_quantity(
            five, shapes, seed=seed, counted="counted for five kernels",
            slips=(
                Slip("elements-not-bytes", lambda n, L: Fraction(five(n, L), 4), plain),
                Slip("row-values-forgotten", lambda n, L: 32 * n * L, "The maxima and sums are transferred, too."),
                Slip("reads-only", lambda n, L: 4 * sum(read for read, _ in five_kernels(int(n), int(L))),
                     "Every kernel writes its result, too."),
            ),
        ),
        "fused_bytes": same_quantity(
            fused, shapes, seed=seed, counted="counted for the fused kernel",
            slips=(
                Slip("elements-not-bytes", lambda n, L: Fraction(fused(n, L), 4), plain),
                Slip("not-written", lambda n, L: Fraction(fused(n, L), 2), "The input is read, the result written."),
                Slip("read-twice", lambda n, L: Fraction(3 * fused(n, L), 2),
                     "The row stays in registers: it is read once."),
            ),
        ),
        "ratio": same_quantity(
            ratio, lengths, seed=seed, counted="counted for the kernels",
            slips=(
                Slip("upside-down", lambda L: 1 / ratio(L), "That is one over five."),
                Slip("limit-for-ratio", lambda L: 4, "That is what it tends to for long rows."),
            ),
        ),
        "ratio_limit": close_to(
            Fraction(round(ratio(1000))),
            slips=(
                Slip("kernels-counted", Fraction(5), "There are five kernels, but they do not all transfer as much."),
                Slip("not-divided", Fraction(8), "So many times the tensor; the fused kernel transfers it, too."),
            ),
        ),
        "kernels": close_to(
            Fraction(len(unfused_kernels(n, variant.length))),
            slips=(
                Slip("one-for-each-operator", Fraction(5), "Lowering writes cheap values into their readers."),
                Slip("fused-all-the-same", Fraction(1), "With fusion switched off every buffer has its own kernel."),
                Slip("reductions-only", Fraction(2), "Who writes the result?"),
            ),
        ),
        "unfused_bytes": same_quantity(
            unfused, shapes, seed=seed, counted="counted for these kernels",
            slips=(
                Slip("five-kernels", five, "That is for five kernels."),
                Slip("row-values-forgotten", lambda n, L: 16 * n * L,
                     "The maxima and sums are written once each, and read wherever they are needed."),
                Slip("elements-not-bytes", lambda n, L: Fraction(unfused(n, L), 4), plain),
            ),
        ),
        "inlined": one_of(
            INLINED,
            {
                "maximum and sum": "A reduction is not computed again for every element that needs it.",
                "exponential and division": "The division makes the result, and that has to be written.",
                "subtraction and division": "The division makes the result, and that has to be written.",
            },
        ),
        "two_pass": close_to(
            Fraction(passes(online=False)),
            slips=(
                Slip("results-forgotten", Fraction(2), "And from what are the results computed?"),
                Slip("one-for-each-operator", Fraction(5), "Elementwise operators go along with a pass."),
            ),
        ),
        "online": close_to(
            Fraction(passes(online=True)),
            slips=(
                Slip("results-forgotten", Fraction(1), "And from what are the results computed?"),
                Slip("not-merged", Fraction(3), "A pair (m, d) is kept up to date while both are found."),
            ),
        ),
        "long_ratio": same_quantity(
            long_ratio, lengths, seed=seed, counted="counted for the kernels",
            slips=(
                Slip("read-once", lambda L: long_ratio(L, 1), "That is for a row that stays in registers."),
                Slip("two-pass", lambda L: long_ratio(L, 3), "That is for the maximum first."),
                Slip("upside-down", lambda L: 1 / long_ratio(L), "That is one over five."),
            ),
        ),
        "second_pass": read_by_a_person(AGAIN),
    }  # fmt: skip
