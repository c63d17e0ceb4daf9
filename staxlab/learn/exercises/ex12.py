"""Exercise 12 (Section 6.8, Proposition 6.3): which loops of a nest are really one.

The condition on the coefficients of neighbouring loops is asked for a nest, as a function, and as a search for the
order that leaves the fewest loops. Everything is given to the compiler's own normalisation of loops, which merges or
does not.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Choice, Function, Number, Prose
from ..exercise import Part
from ..judges import Judge, Slip, close_to, one_of, read_by_a_person
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex12_answers import HARMLESS, reference, wrong_answers
from .ex12_runs import (
    LAYERS,
    allowed_by,
    drawn_nest,
    fewest_loops,
    judge_can_merge,
    judge_loop_order,
    left_if_one_access_decided,
    loops_left,
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
TITLE = "Two loops that are one"
DIFFICULTY = 1

statement = r"""
A nest of loops, $i_0$ outermost, reads two arrays. Each access has an address that is a sum of the loop variables times
coefficients. Two neighbouring loops $j$ and $j + 1$ can be replaced by one of extent $s_j s_{j+1}$ if that changes no
address of any access (Proposition 6.3). The extents and the two accesses are among your values.
"""


def _sum_text(coefficients: tuple[int, ...]) -> str:
    return " + ".join(f"i{k}" if c == 1 else f"{c}*i{k}" for k, c in enumerate(coefficients) if c)


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Three loops and two accesses."""

    extents: tuple[int, ...] = (4, 8, 16)
    accesses: tuple[tuple[int, ...], ...] = ((128, 16, 1), (1, 4, 32))

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(*drawn_nest(rng))

    def describe(self) -> tuple[tuple[str, str], ...]:
        first, second = map(_sum_text, self.accesses)
        return (("extents", str(self.extents)), ("first access", f"`{first}`"), ("second access", f"`{second}`"))


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. Merging the two outer loops, $i_0$ and $i_1$: which accesses allow it? And the two inner ones, $i_1$ and $i_2$?
2. How many loops are left in the given order, with both accesses in the body?
3. How many are left if the loops may be put into any order first, at least?
"""

PART_2 = r"""
`can_merge(extents, accesses, j)` says, `True` or `False`, whether loops `j` and `j + 1` can be one. `extents` is a
tuple, `accesses` a tuple of tuples of coefficients, one for each loop. Extents are at least 2, coefficients at least 0.
"""

PART_3 = r"""
1. `loop_order(extents, accesses)` returns the loops in the order, outermost first, in which the fewest are left after
   merging; `[2, 0, 1]` puts loop 2 outside and loop 1 inside. There are at most four loops. Where several orders are
   equally good, any of them will do. The compiler merges, in your order.
2. In words: what does a merge change, and what does a reordering change, for a pointwise loop and for a sum? When does
   no order help?
"""

MERGE_EXAMPLE = """\
def can_merge(extents, accesses, j):
    return extents[j] == 1"""

ORDER_EXAMPLE = """\
def loop_order(extents, accesses):
    return list(range(len(extents)))"""

CHANGED = Rubric(
    (
        Criterion(
            "Merging",
            1,
            "Neither addresses nor the order of iterations change, only how they are counted.",
            none="Says only that it is faster.",
        ),
        Criterion(
            "Reordering",
            2,
            "Pointwise: the same elements, in another order, which matters for the cache; a sum: other additions, so "
            "floating-point results change (real semantics only).",
            "One of the two.",
            "Says that order never matters, or always.",
        ),
        Criterion(
            "When nothing helps",
            1,
            "Two accesses that ask for different neighbours, or for the same two in opposite nesting.",
            none="Gives no reason.",
        ),
    ),
    "Merging and reordering",
)

PARTS = (
    Part(
        "1",
        "One nest",
        PART_1,
        (
            Choice("outer_pair", "accesses that allow i0 and i1", 1, example='"neither"', options=LAYERS),
            Choice("inner_pair", "accesses that allow i1 and i2", 1, example='"neither"', options=LAYERS),
            Number("loops_left", "loops left as given", 1, example="7", whole=True, unit="loops"),
            Number("fewest_loops", "loops left in the best order", 1, example="7", whole=True, unit="loops"),
        ),
        (
            "How far does an access move with one step of the outer loop, and how far while the inner loop runs from "
            "start to end, and one step further?",
            "Both accesses are in the same body: the loops are merged for both or for none.",
            "Any loop can be put next to any other. For how many ordered pairs of loops does the condition hold for "
            "both accesses?",
        ),
    ),
    Part(
        "2",
        "The condition",
        PART_2,
        (
            Function("can_merge", "whether two loops can be one", 2, example=MERGE_EXAMPLE,
                     parameters=("extents", "accesses", "j"), returns="True or False"),
        ),
        (
            "Whose extent is in the condition: that of the outer or of the inner loop?",
            "An access that does not move with either loop is no obstacle.",
        ),
    ),
    Part(
        "3",
        "Another order",
        PART_3,
        (
            Function("loop_order", "the order that leaves the fewest loops", 3, example=ORDER_EXAMPLE,
                     parameters=("extents", "accesses"), returns="a list of loop numbers"),
            Prose("what_order_changes", "what merging and reordering change", CHANGED.points, rubric=CHANGED),
        ),
        (
            "Four loops have 24 orders: you may try them all.",
            "In a given order, the loops left are as many as there are loops, less one for every neighbouring pair for "
            "which the condition holds.",
        ),
    ),
)  # fmt: skip


def _reasons(extents: tuple[int, ...], accesses: tuple[tuple[int, ...], ...], j: int) -> dict[str, str]:
    """What speaks against each wrong option: the extents and coefficients to look at, and nothing more."""
    truth = allowed_by(extents, accesses, j)
    rows = {"first": truth in LAYERS[:2], "second": truth in (LAYERS[0], LAYERS[2])}
    reasons = {}
    for option in LAYERS:
        claims = {"first": option in LAYERS[:2], "second": option in (LAYERS[0], LAYERS[2])}
        number = next((name for name in rows if claims[name] != rows[name]), None)
        if number is not None:
            access = accesses[0 if number == "first" else 1]
            reasons[option] = (
                f"Look at the {number} access again: one step of i{j} moves it by {access[j]}, one step of i{j + 1} by "
                f"{access[j + 1]}, and i{j + 1} takes {extents[j + 1]} values."
            )
    return reasons


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    nest = (variant.extents, variant.accesses)
    left, fewest = loops_left(*nest), fewest_loops(*nest)
    careless = Slip(
        "one-access-is-enough",
        Fraction(left_if_one_access_decided(*nest)),
        "One access would allow that; the other one has to be served by the same loops.",
    )
    counted = Slip("merges-counted", Fraction(3 - left), "That is how many merges there are. How many loops remain?")
    always = Slip(
        "always-one", Fraction(1), "Two accesses may ask for different neighbours; then one loop is not enough."
    )
    given = Slip("as-given", Fraction(3), "Put other loops next to one another, and look at the condition again.")
    return {
        "outer_pair": one_of(allowed_by(*nest, 0), _reasons(*nest, 0)),
        "inner_pair": one_of(allowed_by(*nest, 1), _reasons(*nest, 1)),
        "loops_left": close_to(Fraction(left), slips=(careless, counted)),
        "fewest_loops": close_to(Fraction(fewest), slips=(always, given)),
        "can_merge": lambda callee: judge_can_merge(callee, seed),
        "loop_order": lambda callee: judge_loop_order(callee, seed),
        "what_order_changes": read_by_a_person(CHANGED),
    }
