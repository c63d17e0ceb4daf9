"""Exercise 5 (Section 4.2, Table 4.1): which identities are left when numbers are IEEE 754 numbers.

Seven rewrites are decided twice: by the student, and by the arithmetic itself, which computes both sides for a great
many float32 numbers and compares bits (:mod:`staxlab.measure.identities`). Every counterexample a student gives is run.
Then the set of numbers at which one rewrite fails is described by a predicate, and the constants by which a division
may be replaced by a multiplication.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..answers import Choice, Function, Prose
from ..claims import choices, integers
from ..exercise import Part
from ..judges import Judge, for_all, one_of, read_by_a_person
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex05_answers import HARMLESS, reference, wrong_answers
from .ex05_runs import (
    CHAPTER,
    DESCRIBED,
    LETTERS,
    NUMBERS,
    OPTIONS,
    POOL,
    Float32,
    against_description,
    against_divisors,
    decided,
    judge_counterexample,
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

SECTION = 4
TITLE = "Which identities are left"
DIFFICULTY = 1

statement = r"""
A compiler would like to replace the left side of a rewrite by its right side, for every float32 tensor `x`. Among the
numbers in it may be both zeros, both infinities, NaN and subnormal numbers; every operation rounds its result to the
nearest float32 number. A rewrite is *exact* if both sides always have the same bits (one NaN counts as good as
another). A number alone on the right side stands for a tensor full of it.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Seven rewrites, and the one that Part 2 is about. The defaults are the chapter's."""

    laws: tuple[str, ...] = CHAPTER
    described: str = "x * 0 -> 0"

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        laws = [law for count, row in POOL for law in rng.sample(row, count)]
        rng.shuffle(laws)
        return cls(tuple(laws), rng.choice(DESCRIBED))

    def describe(self) -> tuple[tuple[str, str], ...]:
        rows = [(f"({letter})", law) for letter, law in zip(LETTERS, self.laws, strict=True)]
        return tuple((name, f"`{law.replace('->', '⇒')}`") for name, law in [*rows, ("Part 2", self.described)])


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = """
For each of your seven rewrites (a) to (g):

* `verdict_a` and so on: is it `"exact"`? If not, do the sides differ in the `"sign of zero"` only; only where an
  argument or a result is `"NaN"`; in both ways, `"NaN and sign of zero"`; or is some other number `"wrong"`?
* `against_a` and so on: a float32 number `x` at which the two sides differ, or `"none"`. Your number is run.
"""

PART_2 = """
`fails(x)` gets a float32 number as a Python float and returns `True` exactly where the rewrite that your values name
for Part 2 changes the result (another number, another sign of zero, or NaN on one side only), and `False` elsewhere.
"""

PART_3 = r"""
1. `exact_divisor(c)`: for which whole numbers $c \ge 1$ is $x / c \Rightarrow x \cdot (1/c)$ exact on float32 tensors?
   (`1 / c` is computed by Python, and the product in float32.)
2. In words: why for these and no others? And why does a compiler accept $x + 0 \Rightarrow x$, which is not exact
   either, but not $x \cdot 0 \Rightarrow 0$?
"""

FAILS_EXAMPLE = """\
def fails(x):
    return x > 1"""

DIVISOR_EXAMPLE = """\
def exact_divisor(c):
    return c < 3"""

WHY = Rubric(
    (
        Criterion(
            "Powers of two",
            2,
            "Says that 1/c is then a float32 number itself, so both sides are one correctly rounded real number; and "
            "that otherwise 1/c is rounded first, so that two roundings take the place of one.",
            "Only one of the two directions.",
            "Says that 'powers of two are exact' without relating it to rounding.",
        ),
        Criterion(
            "What may be given up",
            1,
            "x + 0 changes the sign of a zero only, which few operations can see; x * 0 hides NaN and infinity, the "
            "sign that something went wrong.",
            none="Says only that one is exact and the other is not.",
        ),
    ),
    "Why these, and not those",
)


def _both(letter: str) -> tuple[Choice, Float32]:
    return (
        Choice(f"verdict_{letter}", f"is ({letter}) exact", 1, example='"exact"', options=tuple(OPTIONS.values())),
        Float32(f"against_{letter}", f"a counterexample to ({letter})", 1, example='"none"'),
    )


PARTS = (
    Part(
        "1",
        "Seven rewrites",
        PART_1,
        tuple(field for letter in LETTERS for field in _both(letter)),
        (
            "Go through the numbers that are unlike the others: 0.0, -0.0, infinity, NaN, the smallest and the "
            "largest number. What does IEEE 754 say of inf - inf, 0 * inf, 0 / 0, 0 - 0, -0 + 0?",
            "If nothing there differs, ask where something is rounded. A rewrite in which each side rounds one and "
            "the same real number once is exact; one that rounds twice on one side needs a closer look.",
            "Multiplying by 2 never rounds, but it can overflow. Dividing by 2 rounds only below the smallest normal "
            "number. Let the machine look: "
            "staxlab.measure.identities.compare(Identity(left, right), torch.float32) with expressions over Var('x').",
        ),
    ),
    Part(
        "2",
        "Where one of them fails",
        PART_2,
        (Function("fails", "the numbers at which it fails", 3, example=FAILS_EXAMPLE, parameters=("x",),
                  returns="True or False"),),
        (
            "Divide the numbers into classes: NaN, the infinities, the two zeros, positive and negative numbers. What "
            "do both sides give in each?",
            "== does not tell 0.0 from -0.0. math.copysign(1.0, x), or the text str(x), does. math.isfinite(x) is "
            "False for infinities and NaN.",
        ),
    ),
    Part(
        "3",
        "Division by a constant",
        PART_3,
        (
            Function("exact_divisor", "divisors for which it is exact", 2, example=DIVISOR_EXAMPLE,
                     parameters=("c",), returns="True or False"),
            Prose("reasons", "why these, and what may be given up", WHY.points, rubric=WHY),
        ),
        (
            "How many roundings are there on the left, how many on the right? When does one of them do nothing?",
            "1/c is rounded to nothing but itself if it has a finite binary expansion.",
        ),
    ),
)  # fmt: skip


def _reasons(truth: str) -> dict[str, str]:
    """What speaks against each verdict but the right one."""
    special = "Look at what IEEE 754 says about zeros, infinities and NaN, and at results that have to be rounded."
    if truth == "exact":
        said = "The arithmetic does not agree: no number was found at which the sides have different bits."
        return {option: said for option in OPTIONS.values() if option != truth}
    reasons = {"exact": f"There are numbers at which the sides differ. {special}"}
    if truth == "wrong":
        said = "There is worse: two ordinary numbers that are not equal. " + special
        return reasons | {option: said for option in OPTIONS.values() if option not in ("exact", "wrong")}
    reasons["wrong"] = "They differ, but hardly: look at how. Are two numbers that compare equal among them, or NaN?"
    said = "This is not the way in which they differ, or not the only one: both zeros, and then everything beside NaN."
    return reasons | {option: said for option in OPTIONS.values() if option not in ("exact", "wrong", truth)}


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    judges: dict[str, Judge] = {}
    for letter, law in zip(LETTERS, variant.laws, strict=True):
        truth = OPTIONS[decided(law).verdict]
        judges[f"verdict_{letter}"] = one_of(truth, _reasons(truth))
        judges[f"against_{letter}"] = partial(judge_counterexample, law)
    return {
        **judges,
        "fails": for_all(
            {"x": choices(NUMBERS)},
            lambda callee, x: against_description(variant.described, callee, x),
            seed=seed,
            trials=2 * len(NUMBERS) + 80,
            praise="It agrees with the arithmetic wherever it was tried.",
        ),
        "exact_divisor": for_all(
            {"c": integers(1, 4096)},
            against_divisors,
            seed=seed,
            trials=120,
            praise="It agrees with the arithmetic wherever it was tried.",
        ),
        "reasons": read_by_a_person(WHY),
    }
