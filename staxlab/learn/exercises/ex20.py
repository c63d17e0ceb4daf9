"""Exercise 20 (Section 7.5): two chains, six orders, and what each needs of memory.

Peaks are counted by the package (:mod:`staxlab.schedule.lifetimes`), and an order or a graph of the student's is
compared with the best order there is, which an exact search finds (:mod:`staxlab.schedule.orders`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Function, Number, Prose
from ..exercise import Part
from ..judges import Judge, Slip, close_to, read_by_a_person
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex20_answers import HARMLESS, reference, wrong_answers
from .ex20_runs import ORDERS, judge_graph, judge_order, judge_peak, peak_of

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

SECTION = 7
TITLE = "Two chains and their peaks"
DIFFICULTY = 1

statement = r"""
A program consists of two chains, $a \to c$ and $b \to d$: kernel $c$ reads what $a$ writes, $d$ what $b$ writes. What
$a$ and $b$ write is freed when its only reader has run; what $c$ and $d$ write are results, and stay. While a kernel
runs, both what it reads and what it writes are alive. The peak of an order is the most that is alive at once
(Definition 7.5). The sizes of the four outputs are among your values.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """The sizes of the four outputs, in units. The defaults are the chapter's."""

    a: int = 4
    b: int = 4
    c: int = 1
    d: int = 1

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        small = rng.randint(1, 4)
        first, second = rng.sample(range(small + 2, small + 14), 2)
        return cls(first, second, small, rng.randint(1, small + 1))

    @property
    def sizes(self) -> dict[str, int]:
        return {"a": self.a, "b": self.b, "c": self.c, "d": self.d}

    def describe(self) -> tuple[tuple[str, str], ...]:
        return tuple((f"size of the output of {name}", str(size)) for name, size in self.sizes.items())


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. How many topological orders are there?
2. **Their peaks.** `order_peak(order, sizes)` gets an order as a text such as `"acbd"` and a dictionary from the four
   names to sizes. It returns the peak of that order. It is tried on all orders and on other sizes than yours.
3. The lowest and the highest peak for your sizes.
"""

PART_2 = r"""
`best_order(a, b, c, d)` gets the four sizes and returns an order of the lowest peak, as a text. It is compared with the
best of all orders, on many sizes, for which $c \le a$ and $d \le b$.
"""

PART_3 = r"""
A scheduler that takes, of all kernels that can run, always the one that leaves the fewest bytes alive, finds the lowest
peak here, too.

1. **But not always.** `graph_for_greedy()` returns a graph on which it does not: a list of at most 10 kernels
   `(name, reads, size, kept)`, each after those it reads. `reads` lists names of kernels, `size` (a whole number of at
   least 1) is that of the kernel's output, and `kept` says whether that is a result.
2. In words: which order of your two chains does a compiler choose that takes the lowest peak, why are its two chains
   not mixed, and why does such a compiler try several rules?
"""

PEAK_EXAMPLE = """\
def order_peak(order, sizes):
    return max(sizes.values())"""

ORDER_EXAMPLE = """\
def best_order(a, b, c, d):
    return "abcd" """.rstrip()

GRAPH_EXAMPLE = """\
def graph_for_greedy():
    return [("p", [], 4, False), ("q", ["p"], 1, True)]"""

WHY = Rubric(
    (
        Criterion(
            "The order",
            1,
            "Finish one chain before beginning the other, the one with the larger intermediate first.",
            "One chain after the other, without saying which.",
            "An order that has both intermediates alive.",
        ),
        Criterion(
            "Why",
            1,
            "Only one intermediate is alive at a time; what is left of a finished chain is its small result.",
            none="No reason is given.",
        ),
        Criterion(
            "Several rules",
            1,
            "The best order is NP-hard to find (Proposition 7.4), and each rule has graphs on which it fails.",
            none="Says only that more is better.",
        ),
    ),
    "The order of two chains",
)

PARTS = (
    Part(
        "1",
        "All orders",
        PART_1,
        (
            Number("order_count", "topological orders", 1, example="12", whole=True),
            Function("order_peak", "the peak of an order", 2, example=PEAK_EXAMPLE, parameters=("order", "sizes"),
                     returns="a number of units"),
            Number("lowest_peak", "the lowest peak", 1, example="12", whole=True, unit="units"),
            Number("highest_peak", "the highest peak", 1, example="12", whole=True, unit="units"),
        ),
        (
            "Of the 24 orders of four things, in which does a stand before c, and in how many of those b before d?",
            "Before a kernel runs, add its output to what is alive. After it has run, take away what it was the last "
            "to read.",
        ),
    ),
    Part(
        "2",
        "The best of them",
        PART_2,
        (
            Function("best_order", "an order of the lowest peak", 2, example=ORDER_EXAMPLE,
                     parameters=("a", "b", "c", "d"), returns="an order as text"),
        ),
        (
            "How much is left of a chain when it is over? How much while it is under way?",
            "The second chain runs with the result of the first still there. Which of the two can afford that?",
        ),
    ),
    Part(
        "3",
        "Where a rule fails",
        PART_3,
        (
            Function("graph_for_greedy", "a graph that the rule gets wrong", 2, example=GRAPH_EXAMPLE, parameters=(),
                     returns="a list of kernels"),
            Prose("why_not_mixed", "the order a compiler chooses", WHY.points, rubric=WHY),
        ),
        (
            "What does the rule do with a small result that nothing waits for?",
            "Run early, it stays alive through everything that follows. What if something large follows?",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    sizes = variant.sizes
    peaks = {order: peak_of(order, sizes) for order in ORDERS}
    a, b, c, d = (sizes[name] for name in "abcd")
    early = "What a kernel reads is alive while it runs, beside what it writes."
    no_results = "The results are alive as well."
    return {
        "order_count": close_to(
            Fraction(len(ORDERS)),
            slips=(
                Slip("all-permutations", Fraction(24), "In some of those a kernel runs before what it reads."),
                Slip("chains-not-mixed", Fraction(2), "The chains may be interleaved."),
            ),
        ),
        "order_peak": lambda callee: judge_peak(callee, seed),
        "lowest_peak": close_to(
            Fraction(min(peaks.values())),
            slips=(
                Slip("freed-too-early", Fraction(min(max(a, c + b), max(b, d + a))), early),
                Slip("results-forgotten", Fraction(max(a, b)), no_results),
                Slip("highest-of-all", Fraction(max(peaks.values())), "That is the peak of the worst order."),
            ),
        ),
        "highest_peak": close_to(
            Fraction(max(peaks.values())),
            slips=(
                Slip("results-forgotten", Fraction(a + b), no_results),
                Slip("lowest-of-all", Fraction(min(peaks.values())), "That is the peak of the best order."),
                Slip("everything-at-once", Fraction(a + b + c + d), "Not all four are ever alive at once."),
            ),
        ),
        "best_order": lambda callee: judge_order(callee, seed),
        "graph_for_greedy": judge_graph,
        "why_not_mixed": read_by_a_person(WHY),
    }
