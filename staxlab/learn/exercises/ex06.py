"""Exercise 6 (Section 4.1, Proposition 4.1): rules that never end, and a measure that shows that others do.

A rule is given, and the student adds others so that rewriting goes round for ever; the set is run, up to a bound, and
the graph is seen to come back. Then ``a + b -> b + a`` joins normalization and constant folding: the student says when
operands may be exchanged, and gives a measure that falls with every change, which is evaluated after every pass of the
package's own passes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..answers import Choice, Function, Prose
from ..exercise import Part
from ..judges import Judge, one_of, read_by_a_person
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex06_answers import HARMLESS, reference, wrong_answers
from .ex06_runs import (
    CONDITIONS,
    GIVEN,
    NO,
    YES,
    broken_condition,
    judge_added,
    judge_measure,
    judge_swap,
    measurable_without_condition,
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
TITLE = "Rewriting that does not end, and a measure for one that does"
DIFFICULTY = 2

statement = r"""
Rules are applied in rounds until a round changes nothing. Proposition 4.1 says when this ends: if there is a measure
$\mu$, with values in a well-founded set, that falls strictly with every change. This exercise breaks that condition,
and then restores it for a rule that seems to resist every measure, $a + b \Rightarrow b + a$.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """The rule that is given. The default is the shortest."""

    given: str = "x * 2 -> x + x"

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(rng.choice(tuple(GIVEN)))

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (("the given rule", f"`{self.given.replace('->', '⇒')}`"),)


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = """
1. **Rules that never end.** Your values give you one rule, which ends by itself on every graph. `added()` returns
   `(rules, program)`: a list of rules to be added, and a function of one float32 tensor on which the given rule and
   yours together are never done. Every rule must keep the values of the program (up to rounding), and the given rule
   has to take part. Rules are written as in `staxlab.transform`: `Rule("name", pattern, replacement)` over variables
   `Var("x")`. They are run without a measure that could stop them, for at most forty rounds.
2. **The condition.** Which assumption of Proposition 4.1 does such a set of rules violate?
"""

PART_2 = """
Now `a + b ⇒ b + a` is to join normalization (numbers to the right, for sums and products) and constant folding.

1. If it may be applied to *every* sum: is there a measure, with values in whatever well-founded set, that falls with
   every change?
2. **When.** An operand is a pair: `("value", p)` for the result of the node at position `p` of the graph, or
   `("number", c)` for a number. `swap(a, b)` says whether `a + b` is to become `b + a`. Rewriting has to end on every
   graph, together with the other two passes, and must leave no sum beside its mirror image.
3. **The measure.** `measure(nodes)` gets a graph as a list of `(operation, operands)`, in order, and returns a whole
   number or a tuple of whole numbers, none negative, compared from the left. Operations are `"input"`, `"add"`, `"mul"`
   and `"output"`. It must fall with every pass that changes anything. It is tried with your `swap` if that is right,
   else with one that puts the value of the smaller position first.
4. In words: why does each of the three passes lower it?
"""

ADDED_EXAMPLE = """\
def added():
    from staxlab.transform import Rule, Var
    x = Var("x")
    return [Rule("one", x * 1, x)], lambda a: (a * 1).sum()"""

SWAP_EXAMPLE = """\
def swap(a, b):
    return a[0] == "number\""""

MEASURE_EXAMPLE = """\
def measure(nodes):
    return len(nodes), 0"""

DESCENT = Rubric(
    (
        Criterion(
            "Each pass",
            3,
            "For each of the exchange, normalization and folding: which component falls, and that none before it "
            "rises. In particular that folding may disturb the order of operands, and why this does no harm.",
            "One or two of the passes, or without the components that come first.",
            "Says that 'the measure decreases' without going through the passes.",
        ),
        Criterion(
            "Well-foundedness",
            1,
            "Says that tuples of natural numbers in lexicographic order have no infinite descending chain.",
            none="Does not mention it.",
        ),
        Criterion(
            "The condition of the exchange",
            1,
            "Says that an unconditional exchange undoes itself, so that a measure would have to be below itself.",
            none="Only that it 'may loop'.",
        ),
    ),
    "Why it ends",
)

PARTS = (
    Part(
        "1",
        "Rules that never end",
        PART_1,
        (
            Function("added", "rules and a program that never end", 3, example=ADDED_EXAMPLE,
                     returns="(rules, program)", seconds=20.0),
            Choice("broken_condition", "the assumption that is violated", 1, example=f'"{CONDITIONS[-1]}"',
                   options=CONDITIONS),
        ),
        (
            "After the given rule has been applied, what could turn the graph back into what it was?",
            "A rule read from right to left holds as well as from left to right. The program has to contain what one "
            "of the two is looking for.",
            "The result of your program must not be what the rule would replace by an input: let it end in .sum().",
        ),
    ),
    Part(
        "2",
        "An exchange that ends",
        PART_2,
        (
            Choice("unconditional", "a measure for the rule without a condition", 1, example=f'"{YES}"',
                   options=(YES, NO)),
            Function("swap", "when operands are exchanged", 2, example=SWAP_EXAMPLE, parameters=("a", "b"),
                     returns="True or False", seconds=5.0),
            Function("measure", "what falls with every change", 4, example=MEASURE_EXAMPLE, parameters=("nodes",),
                     returns="a whole number or a tuple of them", seconds=5.0),
            Prose("decrease", "why it falls", DESCENT.points, rubric=DESCENT),
        ),
        (
            "Apply the rule twice to one sum. What would the measure have to satisfy?",
            "Choose an order of the operands and exchange only where it is violated. Equal operands violate no order. "
            "And mind what normalization does with numbers.",
            "Count what is still to be done: sums out of order, numbers on the left. Then ask which pass can create "
            "such work anew, and what it lowers in return: that has to come first.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    return {
        "added": lambda callee: judge_added(variant.given, callee),
        "broken_condition": one_of(
            broken_condition(),
            {
                CONDITIONS[1]: "The measures are what they were: tuples of natural numbers, with no infinite descent.",
                CONDITIONS[2]: "Values are kept. Rules may be right, each by itself, and go round together.",
                CONDITIONS[3]: "Whatever the order, there is always a rule that can be applied.",
            },
        ),
        "unconditional": one_of(
            measurable_without_condition(),
            {YES: "Twice applied, the rule gives back the graph. What would its measure have to be?"},
        ),
        "swap": lambda callee: judge_swap(callee, seed),
        "measure": lambda callee: judge_measure(callee, answers.get("swap"), seed),
        "decrease": read_by_a_person(DESCENT),
    }
