"""Exercise 29 (Section 10.3): subscripts of 32 bits over a declared range, without a bound, and what a hint may decide.

The largest subscript is the package's own bound of the index expression, versions are counted from guard classes, and
numbers of segments come from the rule that the GPU back end uses (Algorithm 6.1).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Choice, Function, Number, Prose
from ..exercise import Part
from ..judges import Judge, close_to, one_of, read_by_a_person
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex29_answers import HARMLESS, reference, wrong_answers
from .ex29_runs import (
    FITS,
    GUARD_COST,
    OPTIONS_OF_COST,
    TOO_LARGE,
    WIDE_COST,
    index_slips,
    judge_index_bits,
    judge_most_rows,
    judge_segment_sums,
    judge_version_counts,
    most_rows_of,
    reasons_of_cost,
    slowdown_slips,
    truth_of,
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

SECTION = 10
TITLE = "Subscripts over a range, and a hint"
DIFFICULTY = 1

statement = r"""
A contiguous float32 tensor of shape $(n, c)$ is summed along its rows. The size $n$ varies; $c$ does not. A kernel
computes subscripts, in elements: $c\,i_0 + i_1$. In 32 bits they have to be less than $2^{31}$.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Columns, the declared bound of n, and, for a sum of all elements of a vector, the hint and a size that comes
    later (both as exponents of two). The defaults are the chapter's shape."""

    columns: int = 128
    most_rows: int = 1 << 24
    hint_exponent: int = 14
    later_exponent: int = 20

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        columns = rng.choice((48, 64, 96, 100, 128, 160, 192, 250, 256, 384))
        # Around the edge, so that it has to be decided exactly.
        most = most_rows_of(columns) + rng.choice((-1, 0, 0, 1, 1, 2))
        hint = rng.choice((12, 14, 15, 16))
        return cls(columns, most, hint, hint + rng.randint(3, 6))

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("c", str(self.columns)),
            ("n", f"1 to {self.most_rows:,}"),
            ("hint of Part 3", f"{1 << self.hint_exponent:,} elements"),
            ("later", f"{1 << self.later_exponent:,} elements"),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. The largest value that $c\,i_0 + i_1$ takes in the declared range. Exactly: it may be close.
2. Do 32 bits suffice?
3. `most_rows(c)` returns the largest upper bound of $n$ that may be declared for rows of `c` elements so that they do.
"""

PART_2 = r"""
Now $n$ is declared without an upper bound. The back end may use 64-bit subscripts, or add a guard that the largest
subscript is below $2^{31}$.

1. `index_bits(uppers, strides)` decides for any subscript $\sum_k \mathrm{stride}_k\, i_k$: `uppers` are the upper
   bounds of the sizes, `None` where there is none, `strides` are not negative. It returns 32 if that is right for the
   whole range, and 64 otherwise. (An upper bound is at least 1. A stride of 0 is a broadcast dimension.)
2. `version_counts(sizes, c)`: the calls have these numbers of rows (each at least 2). Return a pair: how many versions
   there are with 64-bit subscripts, and how many with the guard. A call for which the guard does not hold gets a
   version that holds for such calls.
3. What does the first approach cost, and what the second?
"""

PART_3 = r"""
All elements of a vector of $n$ elements are summed on an H100. The sum is split into $k$ segments, which run side by
side, and their sums are added. The rule of Algorithm 6.1 chooses $k$ from the size:

| elements | 2^12 | 2^14 | 2^15 | 2^16 | 2^18 | 2^20 | 2^22 |
|---|---|---|---|---|---|---|---|
| segments k | 1 | 2 | 4 | 8 | 32 | 128 | 512 |

With a symbolic $n$ the rule can be asked at one size only: the hint. Its $k$ is then part of the kernel, and the length
of a segment is $\lceil n / k \rceil$ at each call.

1. `segment_sums(values, k)` returns the `k` sums of consecutive segments of that length, for **any** number of values:
   a segment beyond the end is empty, and its sum 0.
2. The kernel was compiled with your hint, and your later size arrives. By what factor is its longest segment longer
   than with the $k$ that the rule would have chosen for that size? (For powers of two between those of the table, $k$
   goes up with the size in proportion.)
3. In words: why can $k$ only be chosen by the hint, and what follows for the result, and for the time?
"""

ROWS_EXAMPLE = """\
def most_rows(c):
    return 1000 * c"""

BITS_EXAMPLE = """\
def index_bits(uppers, strides):
    return 64"""

COUNTS_EXAMPLE = """\
def version_counts(sizes, c):
    return len(sizes), 1"""

SUMS_EXAMPLE = """\
def segment_sums(values, k):
    return [sum(values)]"""

HINTED = Rubric(
    (
        Criterion(
            "Why the hint",
            1,
            "The number of segments is fixed when the kernel is written, and the best one depends on the size, for "
            "which nothing but the hint is known then; it is no decision that is true or false over the whole range.",
            none="Does not say what the best number depends on.",
        ),
        Criterion(
            "The result",
            1,
            "Correct for every size: segments of ceil(n / k) cover all elements once, whatever n, with masks at the "
            "end. (Rounding may differ from that of another k; no guard is needed.)",
            "Correct, without a reason.",
            "Wants a guard, or thinks the result is at risk.",
        ),
        Criterion(
            "The time",
            1,
            "Only at the hint it is the rule's choice: for larger sizes too few segments leave the device idle, for "
            "smaller ones segments are nearly empty.",
            "One direction.",
            "No consequence named.",
        ),
    ),
    "What a hint may decide",
)

PARTS = (
    Part(
        "1",
        "Do 32 bits suffice?",
        PART_1,
        (
            Number("largest_subscript", "the largest subscript", 1, example="123456", whole=True),
            Choice("narrow", "32 bits", 1, example=f'"{FITS}"', options=(FITS, TOO_LARGE)),
            Function("most_rows", "the largest bound that may be declared", 2, example=ROWS_EXAMPLE,
                     parameters=("c",), returns="a whole number"),
        ),
        (
            "Which values do i_0 and i_1 take at most?",
            "c n - 1 < 2^31, in whole numbers.",
        ),
    ),
    Part(
        "2",
        "Without a bound",
        PART_2,
        (
            Function("index_bits", "32 or 64", 2, example=BITS_EXAMPLE, parameters=("uppers", "strides"),
                     returns="32 or 64"),
            Function("version_counts", "versions with either approach", 2, example=COUNTS_EXAMPLE,
                     parameters=("sizes", "c"), returns="a pair of whole numbers"),
            Choice("wide_cost", "64-bit subscripts cost", 1, example=f'"{GUARD_COST}"', options=OPTIONS_OF_COST),
            Choice("guard_cost", "the guard costs", 1, example=f'"{WIDE_COST}"', options=OPTIONS_OF_COST),
        ),
        (
            "A dimension of size u has subscripts up to u - 1. What does it add if its stride is 0?",
            "How many answers has the guard's question, and which of them occur?",
        ),
    ),
    Part(
        "3",
        "What a hint may decide",
        PART_3,
        (
            Function("segment_sums", "the sums of k segments", 2, example=SUMS_EXAMPLE, parameters=("values", "k"),
                     returns="a list of k numbers"),
            Number("longest_ratio", "longest segment over that of the rule's choice", 1, example='"3/2"'),
            Prose("by_the_hint", "why the hint, and what follows", HINTED.points, rubric=HINTED),
        ),
        (
            "What if there are fewer values than segments?",
            "The length of a segment is ceil(n / k). Once with the k of the hint, once with that of the size.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    truth = truth_of(variant)
    close = "Compare the largest subscript itself with 2^31 - 1."
    return {
        "largest_subscript": close_to(Fraction(truth.largest), relative=Fraction(0), slips=index_slips(variant)),
        "narrow": one_of(FITS if truth.fits else TOO_LARGE, {FITS: close, TOO_LARGE: close}),
        "most_rows": judge_most_rows,
        "index_bits": lambda callee: judge_index_bits(callee, seed),
        "version_counts": lambda callee: judge_version_counts(callee, seed),
        "wide_cost": one_of(WIDE_COST, reasons_of_cost(WIDE_COST)),
        "guard_cost": one_of(GUARD_COST, reasons_of_cost(GUARD_COST)),
        "segment_sums": judge_segment_sums,
        "longest_ratio": close_to(truth.ratio, slips=slowdown_slips(variant)),
        "by_the_hint": read_by_a_person(HINTED),
    }
