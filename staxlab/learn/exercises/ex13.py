"""Exercise 13 (Section 6.8, Definition 6.4 and Proposition 6.4): what intervals prove, and what they do not see.

Two subscripts are bounded by hand and by the compiler, which lowers the program and keeps its bounds check or does not.
A student's interval rules are run on all small intervals: a rule is sound if no possible value is outside. Then a
subscript that is always in range, and of which the compiler cannot tell.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..answers import Choice, Function, Numbers, Prose
from ..claims import choices, integers
from ..exercise import Part
from ..judges import Judge, Slip, for_all, one_of, read_by_a_person, same_numbers
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex13_answers import HARMLESS, reference, wrong_answers
from .ex13_runs import (
    CHECK,
    INTERVALS,
    NO_CHECK,
    against_remainder,
    against_times,
    drawn_subscripts,
    judge_unproved,
    quotient_facts,
    remainder_facts,
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

SECTION = 6
TITLE = "What intervals prove"
DIFFICULTY = 2

statement = r"""
A subscript that is computed at run time must be checked: a negative one counts from the end, and one outside the array
is an error. The compiler leaves that out if it can prove that the subscript lies in $[0, \mathit{size} - 1]$. Its proof
is an interval (Definition 6.4): $i \in [0, s)$ is $[0, s - 1]$, a constant $c$ is $[c, c]$, and every operation has a
rule that makes an interval from those of its operands. All intervals here are closed and of integers; $\lfloor a / b
\rfloor$ rounds down, and $a \bmod b$ has the sign of $b$.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Two subscripts, the loop they stand in and the array they are used on."""

    a: int = 3
    b: int = 5
    m: int = 128
    q: int = 4
    r: int = -1
    extent: int = 512
    size: int = 128

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(*drawn_subscripts(rng))

    def describe(self) -> tuple[tuple[str, str], ...]:
        shift = f" {'+' if self.r > 0 else '-'} {abs(self.r)}" if self.r else ""
        return (
            ("first subscript", f"`({self.a}*i + {self.b}) % {self.m}`"),
            ("second subscript", f"`i // {self.q}{shift}`"),
            ("i", f"0 to {self.extent - 1}"),
            ("size", str(self.size)),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
For your two subscripts, as `x[subscript]` with `x` of your size:

1. Their intervals, as `[lower, upper]`.
2. Does the compiled program keep its check? Here it is compiled.
"""

PART_2 = r"""
Rules of your own. Intervals are pairs `(lower, upper)`; what you return must contain every possible value, and nothing
wider will do: the smallest and the largest of the possible values.

1. `times(p, q)`: the product of a number from `p` and a number from `q`, chosen independently.
2. `remainder(p, c)`: the remainder modulo a constant `c >= 1` of a number from `p`. The chapter's rule is for
   `lower >= 0` and may be wider than need be; yours is for all.
"""

PART_3 = r"""
1. `unproved(i, m)` is an expression in `i`, built with `+`, `-`, `*`, `//` and `%` only. For $i$ from $0$ to $4m - 1$
   its value is always in $[0, m - 1]$; yet the compiler cannot prove it. ($m$ is even and at least 4.) It is evaluated
   for all $i$, and compiled.
2. In words: does that contradict Proposition 6.4? What exactly is lost, and what does it cost?
"""

TIMES_EXAMPLE = """\
def times(p, q):
    return (0, p[1] + q[1])"""

REMAINDER_EXAMPLE = """\
def remainder(p, c):
    return (0, p[1])"""

UNPROVED_EXAMPLE = """\
def unproved(i, m):
    return (i + 1) // 2"""

DIRECTION = Rubric(
    (
        Criterion(
            "One direction",
            2,
            "Soundness: interval inside implies values inside; the converse is not claimed (incompleteness).",
            "Says that the analysis is conservative, without the two directions.",
            "Says that the proposition is wrong, or that the analysis has a defect.",
        ),
        Criterion(
            "What is lost",
            1,
            "An interval does not know how its operands are related: combinations are counted that never occur.",
            none="Does not say where the surplus values come from.",
        ),
        Criterion(
            "What it costs",
            1,
            "A check that never fails: time, not correctness.",
            none="Says nothing of the price.",
        ),
    ),
    "Sound, not complete",
)

PARTS = (
    Part(
        "1",
        "Two subscripts",
        PART_1,
        (
            Numbers("remainder_bounds", "interval of the first", 1, example="[1, 9]", shape=(2,)),
            Numbers("quotient_bounds", "interval of the second", 1, example="[1, 9]", shape=(2,)),
            Choice("remainder_check", "check of the first", 1, example='"check"', options=(NO_CHECK, CHECK)),
            Choice("quotient_check", "check of the second", 1, example='"check"', options=(NO_CHECK, CHECK)),
        ),
        (
            "Which remainders are possible modulo m, and which is the largest?",
            "What is the largest i, and what is floor(i / q) there?",
            "Negative subscripts are valid in the program, but they count from the end: that is part of the check.",
        ),
    ),
    Part(
        "2",
        "Rules",
        PART_2,
        (
            Function("times", "rule for products", 2, example=TIMES_EXAMPLE, parameters=("p", "q"), returns="a pair"),
            Function("remainder", "rule for remainders", 2, example=REMAINDER_EXAMPLE, parameters=("p", "c"),
                     returns="a pair"),
        ),
        (
            "With one factor fixed, the product runs from one end to the other. So where are the extremes?",
            "The remainder increases by one with its argument, until it falls to 0. Is a multiple of c passed?",
            "low // c and high // c tell between which multiples the ends lie.",
        ),
    ),
    Part(
        "3",
        "What intervals do not see",
        PART_3,
        (
            Function("unproved", "in range, but not provably", 3, example=UNPROVED_EXAMPLE, parameters=("i", "m"),
                     returns="a subscript"),
            Prose("no_contradiction", "whether that is a contradiction", DIRECTION.points, rubric=DIRECTION),
        ),
        (
            "Use i twice, in such a way that the two uses hold each other in check.",
            "x - x is simplified to 0 before intervals are looked at. But the difference of two remainders is not.",
            "Is i mod m ever smaller than i mod (m/2)?",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    last = variant.extent - 1
    first, first_kept = remainder_facts(variant.a, variant.b, variant.m, variant.extent, variant.size)
    second, second_kept = quotient_facts(variant.q, variant.r, variant.extent, variant.size)

    def kept(is_kept: bool) -> Judge:
        reasons = {
            NO_CHECK: "The compiled program has one. Is your interval inside that of the array?",
            CHECK: "The compiled program has none: its interval was good enough.",
        }
        return one_of(CHECK if is_kept else NO_CHECK, reasons)

    return {
        "remainder_bounds": same_numbers(
            first,
            slips=(
                Slip("no-remainder", (variant.b, variant.a * last + variant.b),
                     "These are the bounds before the remainder is taken."),
                Slip("divisor-included", (0, variant.m), "A remainder modulo m is never m, and intervals are closed."),
            ),
        ),
        "quotient_bounds": same_numbers(
            second,
            slips=(
                Slip("end-excluded", (variant.r, variant.extent // variant.q + variant.r),
                     "i does not reach its extent: the largest is one less."),
                Slip("not-divided", (variant.r, last + variant.r), "The division is missing at one of the ends."),
            ),
        ),
        "remainder_check": kept(first_kept),
        "quotient_check": kept(second_kept),
        "times": for_all(
            {"p": choices(INTERVALS), "q": choices(INTERVALS)},
            against_times, seed=seed, trials=300, praise="Sound, and as narrow as can be, wherever it was tried.",
        ),
        "remainder": for_all(
            {"p": choices(INTERVALS), "c": integers(1, 8)},
            against_remainder, seed=seed, trials=300, praise="Sound, and as narrow as can be, wherever it was tried.",
        ),
        "unproved": lambda callee: judge_unproved(callee, variant.size),
        "no_contradiction": read_by_a_person(DIRECTION),
    }  # fmt: skip
