"""Exercise 51 (Section 5.8, Theorem 5.4): reversing a chain with few slots, move by move.

A reversal order is a list of moves, and it is run: the simulator of Definition 5.3 makes one move after the other and
names the first that breaks a rule. The student writes one order out, then a function that produces them for any chain,
and compares slots with those of equal segments (Theorem 5.3).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...autodiff.checkpoint import beta, minimal_slots
from ..answers import Function, Number, Numbers, Prose
from ..exercise import Part
from ..feedback import Verdict, right, wrong
from ..judges import Judge, Slip, close_to, read_by_a_person
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex51_answers import HARMLESS, reference, wrong_answers
from .ex51_runs import (
    Order,
    drawn_chain,
    fewest_uniform_slots,
    gain_in_the_long_run,
    judge_order,
    judge_orders,
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

SECTION = 5
TITLE = "Reversing a chain with few slots"
DIFFICULTY = 2

statement = r"""
A chain of $l$ steps, $z_k = \phi_k(z_{k-1})$, is reversed with $s$ slots, one of which holds $z_0$ at the start; $z_0$
is also the current state then, and $\bar z_l$ is known. The moves (Definition 5.3) are written as

* `("advance", i, j)`: computes $z_{i+1}, \dots, z_j$ from $z_i$, which is stored or current. $z_j$ becomes the current
  state; the states between are not kept.
* `("store", k)`: puts the current state, which must be $z_k$, into a free slot.
* `("free", k)`: gives up a slot that holds $z_k$.
* `("reverse", k)`: the backward step $k$. $\bar z_k$ is known, and $z_{k-1}$ is stored or current.

An order has repetition $t$ if it runs all backward steps and computes no forward step more than $t$ times.
$\beta(s, t)$ is the length of the longest chain that has one.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """beta is asked for at (sigma, tau), an order for a chain of l steps, and slots for a long one."""

    sigma: int = 3
    tau: int = 3
    l: int = 6
    s: int = 3
    t: int = 2
    long: int = 1000

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        sigma, tau = rng.choice(((3, 3), (4, 3), (3, 4), (5, 3), (3, 5), (4, 4), (4, 2), (2, 5), (5, 4)))
        return cls(sigma, tau, *drawn_chain(rng), 50 * rng.randint(8, 60))

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("(σ, τ)", f"({self.sigma}, {self.tau})"),
            ("(l, s, t)", f"({self.l}, {self.s}, {self.t})"),
            ("the long chain", f"{self.long} steps"),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. How long is the longest chain for your $\sigma$ slots and repetition $\tau$: $\beta(\sigma, \tau)$?
2. **A complete order**, written out, for your $l$, $s$ and $t$. It is run move by move.
"""

PART_2 = r"""
1. Your long chain: how many slots does it need for $t = 2$, for $t = 3$ and for $t = 4$? A list of three numbers.
2. **All orders.** `reversal_order(l, s, t)` returns a complete order as a list of moves, for every $l \le \beta(s, t)$.
   It is run for many chains. Recursion is fine; there are never more than a few hundred levels.
"""

PART_3 = r"""
Now the long chain in equal segments (Theorem 5.3), where no step is computed more than twice either. The forward pass
stores the first state of every segment; then one segment at a time is done, last one first: all its states are computed
and stored, and given up with its backward steps.

1. What is the smallest number of slots for which this works, over all numbers of segments? Segments may differ by one
   step. Each state in a slot counts, $z_0$ too, and the first state of a segment once.
2. How many slots fewer does the order of Theorem 5.4 need, with $t = 2$?
3. For $t = 2$ and $l \to \infty$: the limit of the slots of equal segments over those of Theorem 5.4.
4. In words: where does the gain come from, and what is gained by allowing more repetitions?
"""

ORDER_EXAMPLE = """\
[
    ("advance", 0, 2), ("reverse", 3),
    ("advance", 0, 1), ("store", 1), ("reverse", 2),
    ("free", 1), ("reverse", 1),
]"""

FUNCTION_EXAMPLE = """\
def reversal_order(l, s, t):
    return [("reverse", k) for k in range(l, 0, -1)]"""

COMPARED = Rubric(
    (
        Criterion(
            "The same order of growth",
            1,
            "For t = 2 both are of the order of the square root of l: C(s + 2, 2) is about s^2/2.",
            none="Only compares numbers.",
        ),
        Criterion(
            "Where the gain comes from",
            2,
            "Equal segments leave slots empty: as checkpoints are given up, later segments could be longer. The "
            "recursion makes them longer as slots become free.",
            "Says that segments are unequal, without saying which are longer and why.",
            "Says only that the binomial order is better.",
        ),
        Criterion(
            "More repetitions",
            1,
            "For fixed t slots grow like the t-th root of l; with s and t growing together, like log l. Equal segments "
            "cannot use a third evaluation.",
            none="Does not say how slots grow.",
        ),
    ),
    "Equal segments and the recursion",
)

PARTS = (
    Part(
        "1",
        "One order",
        PART_1,
        (
            Number("longest", "the longest chain", 1, example="17", unit="steps", whole=True),
            Order("order", "a complete order", 3, example=ORDER_EXAMPLE),
        ),
        (
            "Store a state somewhere in the chain and reverse what comes after it, with one slot less. What remains is "
            "a shorter chain, of which every step has been computed once.",
            "Where to store: the steps before it may be as many as s slots reverse with repetition t - 1, those after "
            "it as many as s - 1 slots reverse with repetition t.",
            "With one slot left, begin at the stored state for each backward step anew.",
        ),
    ),
    Part(
        "2",
        "All orders",
        PART_2,
        (
            Numbers("slots_needed", "slots for t = 2, 3 and 4", 1, example="[100, 50, 25]", unit="slots", shape=(3,)),
            Function("reversal_order", "an order for every chain", 4, example=FUNCTION_EXAMPLE,
                     parameters=("l", "s", "t"), returns="a list of moves", seconds=4.0),
        ),
        (
            "Look for the smallest s with C(s + t, t) >= l.",
            "Write a function for a piece of the chain, from a state that is stored to its end, with the slots and "
            "repetitions that are left. Its two smallest cases are one step, and one slot.",
            "If l is smaller than beta(s, t), give the second part as much as it can take, and leave the rest to the "
            "first, but at least one step.",
        ),
    ),
    Part(
        "3",
        "Equal segments",
        PART_3,
        (
            Number("uniform_slots", "slots of the best equal segments", 1, example="100", unit="slots", whole=True),
            Number("slots_saved", "slots fewer for the recursion", 1, example="100", unit="slots", whole=True),
            Number("gain", "the ratio in the long run", 1, example="3"),
            Prose("comparison", "where the gain comes from", COMPARED.points, rubric=COMPARED),
        ),
        (
            "With c segments, how many states are stored while the last one is reversed, and how many are in both "
            "lists?",
            "For large s, what is C(s + 2, 2) about? Solve for s.",
        ),
    ),
)  # fmt: skip


def _judge_slots(long: int, answer: tuple) -> Verdict:
    truth = [minimal_slots(long, t) for t in (2, 3, 4)]
    yours = [int(value) if value == int(value) else value for value in answer]
    if yours == truth:
        return right("For each of them one slot less would not do.")
    wrongs = [k for k in range(3) if yours[k] != truth[k]]
    t, mine, true = wrongs[0] + 2, yours[wrongs[0]], truth[wrongs[0]]
    facts = (("t", t), ("yours", mine), ("it is", "more than that" if true > mine else "less than that"))
    if yours == [one - 1 for one in truth]:
        return wrong("With these the chain is too long: beta(s, t) lies below it.", *facts, mistake="one-too-few")
    if yours == [one + 1 for one in truth]:
        message = "One slot less would do: z_0 is in one of the s slots, and needs no other."
        return wrong(message, *facts, mistake="z0-forgotten")
    return wrong("Not all of these are the smallest numbers.", *facts, mistake="wrong-number")


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    sigma, tau = variant.sigma, variant.tau
    uniform = fewest_uniform_slots(variant.long)
    saved = uniform - minimal_slots(variant.long, 2)
    row_up = Slip(
        "pascal-one-row-up", Fraction(beta(sigma, tau - 1)), "That many steps can be reversed with one repetition less."
    )
    twice = Slip(
        "start-counted-twice",
        Fraction(uniform + 1),
        "The first state of the last segment is a checkpoint and one of the states of the segment: one slot.",
    )
    sign = Slip("wrong-sign", Fraction(-saved), "How many fewer is asked, a number that is not negative.")
    gains = (
        Slip("storage-of-segments", Fraction(2), "That would be right if the other needed the square root of l."),
        Slip("this-chain-only", Fraction(uniform, uniform - saved),
             "That is the ratio for your chain; it still changes as the chain gets longer."),
    )  # fmt: skip
    return {
        "longest": close_to(Fraction(beta(sigma, tau)), slips=(row_up,)),
        "order": lambda moves: judge_order(variant.l, variant.s, variant.t, moves),
        "slots_needed": lambda answer: _judge_slots(variant.long, answer),
        "reversal_order": lambda callee: judge_orders(callee, seed),
        "uniform_slots": close_to(Fraction(uniform), slips=(twice,)),
        "slots_saved": close_to(Fraction(saved), slips=(sign,)),
        "gain": close_to(gain_in_the_long_run(), relative=Fraction(1, 10**6), slips=gains),
        "comparison": read_by_a_person(COMPARED),
    }
