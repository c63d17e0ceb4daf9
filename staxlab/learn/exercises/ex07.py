"""Exercise 7 (Section 4.8, Proposition 4.3): decomposition rules that go round in a circle.

Tables of rules are small graphs here. Whether taking operators apart ends is not argued but run: the package's own
check (:mod:`staxlab.operators.depth`) computes depths, refuses cyclic tables and names the cycle, for the exercise's
table, for tables the student builds, and against a check the student writes.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Choice, FormulaIn, Function, Number, Numbers, Prose
from ..claims import integers
from ..exercise import Part
from ..judges import Judge, Slip, close_to, one_of, read_by_a_person, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex07_answers import EXISTS, HARMLESS, LEFT, NEVER, NONE, STOPS, reference, wrong_answers
from .ex07_runs import (
    NAMES,
    depth_exists,
    depth_of,
    drawn_table,
    judge_depths,
    judge_table,
    judge_terminates,
    operators_left,
    table_text,
    when_it_ends,
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
TITLE = "Decomposition rules that go round"
DIFFICULTY = 2

statement = r"""
A table of operator-level decompositions has the rules

$$o_1 \Rightarrow o_2 + a_1 + \dots + a_p \qquad\qquad o_2 \Rightarrow o_1 \cdot c_1 \cdots c_q$$

where $o_1, o_2$ are not in the basis $\mathcal B$ and the $a_i, c_i$ have no rules. (With $p = q = 1$ these are
$o_1 \Rightarrow o_2 + o_3$ and $o_2 \Rightarrow o_1 \cdot c$.)
"""

_DEFAULT_RULES, _DEFAULT_BASE = drawn_table(random.Random("exercise 7"))


@dataclass(frozen=True)
class Variant(BaseVariant):
    """How many other operators the two rules have, and a table of one's own with one operator in the basis."""

    p: int = 1
    q: int = 1
    rules: tuple[tuple[str, tuple[str, ...]], ...] = _DEFAULT_RULES
    base: str = _DEFAULT_BASE

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(rng.randint(1, 4), rng.randint(1, 4), *drawn_table(rng))

    def constants(self) -> dict[str, Fraction]:
        return {"p": Fraction(self.p), "q": Fraction(self.q)}

    def describe(self) -> tuple[tuple[str, str], ...]:
        rules = table_text(dict(self.rules))
        return (("p", str(self.p)), ("q", str(self.q)), ("your table", rules), ("your basis", self.base))


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = """
1. $o_1$ is taken apart, and what comes of it is taken apart in turn. **When does this end?**
2. How many values $d(o_1)$ satisfy the definition of the depth?
3. Call it a *round* when the rule of $o_1$ and then the rule of $o_2$ has been applied. **How many operators** are
   there after `m` rounds, beginning with $o_1$ alone? A formula in `m`; `p` and `q` may be used.
4. **A table of your own** that is refused: `cyclic_table(length)` returns `(rules, basis)`, a dict from operators to
   the lists of operators on their right-hand sides, and a set. Its rules go round through exactly `length` operators.
   It is called for several lengths and handed to the package's check, which has to name such a cycle.
"""

PART_2 = f"""
1. Now $o_2$ is added to the basis. What are $d(o_1)$ and $d(o_2)$?
2. **Depths.** Above stand a table and a basis of your own. Give the depths of the operators
   {", ".join(NAMES)}, in this order.
3. **A check.** `terminates(rules, basis)` returns `True` if every operator has a depth, and `False` if not. `rules` is
   a dict from operators to lists of operators, `basis` a set. It must itself come to an end, on every table.
4. In words: why is this the same argument as that of Proposition 4.1, why does it fail for the first table, and what
   does the basis change?
"""

CYCLE_EXAMPLE = """\
def cyclic_table(length):
    return {"o1": ["o2"], "o2": []}, {"o2"}"""

CHECK_EXAMPLE = """\
def terminates(rules, basis):
    return len(rules) == 0"""

MEASURE = Rubric(
    (
        Criterion(
            "The measure",
            2,
            "Depth maps operators into the natural numbers, which are well-founded; one step replaces an operator by "
            "finitely many of smaller depth, so the depths that are left get smaller in a well-founded order, as the "
            "triple does.",
            "Says that depth decreases, without saying what an operator with several parts is compared with.",
            "Says that both terminate.",
        ),
        Criterion(
            "The cycle",
            1,
            "From o1's rule d(o1) > d(o2), from o2's d(o2) > d(o1): no numbers satisfy both.",
            none="Says only that recursion does not end.",
        ),
        Criterion(
            "The basis",
            1,
            "An operator of the basis is not taken apart, so its rule does not count; d(o2) = 0 and d(o1) = 1.",
            none="Does not mention that the rule is ignored.",
        ),
    ),
    "Depth as a measure",
)

PARTS = (
    Part(
        "1",
        "No depth",
        PART_1,
        (
            Choice("ends", "when it ends", 1, example=f'"{STOPS}"', options=(NEVER, STOPS, LEFT)),
            Choice("has_depth", "values of d(o1)", 1, example=f'"{EXISTS}"', options=(EXISTS, NONE)),
            FormulaIn("operators_left", "operators after m rounds", 2, example='"m + p"', variables=("m",)),
            Function("cyclic_table", "a table that is refused", 2, example=CYCLE_EXAMPLE, parameters=("length",),
                     returns="(rules, basis)"),
        ),
        (
            "Write down what is left after one rule, after two, after three. Which operator is there again?",
            "Every rule puts several operators in the place of one. How many more are there after each of the two?",
            "For a cycle of any length number the operators and let each rule contain the next one; what must the last "
            "one contain?",
        ),
    ),
    Part(
        "2",
        "What the basis changes",
        PART_2,
        (
            Number("depth_with_basis", "d(o1) with o2 in the basis", 1, example="3", whole=True),
            Number("depth_in_basis", "d(o2) with o2 in the basis", 1, example="3", whole=True),
            Numbers("own_depths", "depths in your table", 2, example=str([0] * len(NAMES)), shape=(len(NAMES),)),
            Function("terminates", "does it end?", 3, example=CHECK_EXAMPLE, parameters=("rules", "basis"),
                     returns="True or False", seconds=0.5),
            Prose("same_argument", "the same kind of argument", MEASURE.points, rubric=MEASURE),
        ),
        (
            "The definition of depth has two cases. Which of them does an operator in the basis belong to?",
            "Begin with the operators whose parts all have depth 0. Then those whose parts are known by now.",
            "For the check: remove the operators none of whose parts still waits, again and again. What is left when "
            "nothing can be removed any more?",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    p, q = variant.p, variant.q
    slips = (
        Slip("forgets-the-operator", lambda m: m * (p + q), "After no round there is one operator, o1 itself."),
        Slip("counts-rules", lambda m: 1 + 2 * m, "That counts a new operator per rule; the rules have more than two."),
        Slip("doubles", lambda m: 2**m, "Only one operator at a time has a rule: the others stay as they are."),
    )
    return {
        "ends": one_of(
            when_it_ends(p, q),
            {
                STOPS: "Go on for a few more steps: is there a step after which no operator has a rule?",
                LEFT: "The other operators do not disappear, and o2 has a rule.",
            },
            praise="Right: after a thousand steps there still is an operator with a rule.",
        ),
        "has_depth": one_of(
            depth_exists(p, q),
            {EXISTS: "d(o1) would have to be larger than d(o2), and the other way round."},
            praise="Right: the package's check refuses the table.",
        ),
        "operators_left": same_quantity(
            lambda m: operators_left(p, q, int(m)), {"m": integers(0, 60)}, seed=seed, slips=slips,
            counted="counted by taking it apart", praise="Right, and it grows with every round.",
        ),
        "cyclic_table": lambda callee: judge_table((2, 3, 5, 1, 7), callee),
        "depth_with_basis": close_to(
            Fraction(depth_of("o1", variant)),
            slips=(Slip("parts-have-no-rule-counted", Fraction(2), "o2 is in the basis: what is its depth?"),),
        ),
        "depth_in_basis": close_to(
            Fraction(depth_of("o2", variant)),
            slips=(Slip("has-a-rule", Fraction(1), "It has a rule, but which case of the definition comes first?"),),
        ),
        "own_depths": lambda answer: judge_depths(variant, answer),
        "terminates": lambda callee: judge_terminates(callee, seed),
        "same_argument": read_by_a_person(MEASURE),
    }  # fmt: skip
