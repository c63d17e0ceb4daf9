"""Exercise 39 (Section 10.5, Proposition 10.4): a decision about a size that only the data know.

A rewritten program is judged by running it, and by following it on a size that has no hint: every decision has to
follow from what is known or was asserted before.
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
from .ex39_answers import HARMLESS, reference, wrong_answers
from .ex39_runs import (
    AFTER,
    ALWAYS_FALSE,
    ALWAYS_TRUE,
    BEFORE,
    NEVER,
    REFUSED,
    decision_of,
    judge_decide,
    judge_rewritten,
    judge_witness,
    reasons_against,
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
TITLE = "A size that only the data know"
DIFFICULTY = 2

statement = r"""
```python
def f(x, k):
    n = x.nonzero().shape[0]
    if n > k:
        return x.sum() / n
    return x.sum()
```

`x` is a vector of $N$ numbers, and `k` a number that does not change ($k = 0$ in the chapter's question). How many of
the elements are not zero cannot be seen from any shape: $n$ is known to lie in $[0, N]$ and has no hint.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """The length of x, what is asserted (n > asserted), and the bounds of the three decisions that follow."""

    length: int = 12
    asserted: int = 0
    bounds: tuple[int, int, int] = (0, 5, 12)

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        length, asserted = rng.randint(8, 40), rng.randint(0, 4)
        # One that follows, one whose negation does, and one that does not; at the edges as often as not.
        bounds = [
            max(asserted - rng.randint(0, 2), 0),
            rng.choice((asserted + 1, length - 1, rng.randint(asserted + 1, length - 1))),
            length + rng.randint(0, 3),
        ]
        rng.shuffle(bounds)
        return cls(length, asserted, (bounds[0], bounds[1], bounds[2]))

    def describe(self) -> tuple[tuple[str, str], ...]:
        decisions = "; ".join(f"({letter}) n > {bound}" for letter, bound in zip("abc", self.bounds, strict=True))
        return (("N", str(self.length)), ("asserted", f"n > {self.asserted}"), ("decisions", decisions))


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
Suppose the test were evaluated on the sample, and the branch that it took recorded, as for a shape.

1. `witness(values, k)` gets the elements of a sample (a list with more than `k` entries) and returns those of another
   input **with the same key** (the same shape and type), for which what was recorded is the wrong branch.
2. When could `n > k` be checked at a later call?
"""

PART_2 = r"""
The user knows that more than `k` elements are never zero. Rewrite the function so that it can be compiled:
`rewritten(x, k, check)`. `check(condition, message)` is the assertion that the compiler knows, like `torch._check`: it
raises at run time where the condition does not hold, and the compiler may rely on the condition from there on. Where
the user is right, your function returns what `f` returns; where not, its assertion must raise.

It is run on samples, and it is followed: no decision (`if`, `while`, `assert`, `and`, `not`, taking a number out of a
tensor) may depend on the data unless it follows from what was asserted before it.
"""

PART_3 = r"""
Proposition 10.4: a decision may be made if it follows from what is known, or its negation does; otherwise the compiler
refuses.

1. `decide(low, high, k)`: of a size $u$ it is known that `low` $\le u \le$ `high` (`high` is `None` where there is no
   upper bound). What becomes of the decision $u > k$? Return `True`, `False`, or `None` if it is refused.
2. In your values, `n` was asserted after the call of `nonzero`. What becomes of the three decisions?
3. In words: what has your rewriting to do with Proposition 10.4? And what may a shape guard do that it forbids here?
"""

WITNESS_EXAMPLE = """\
def witness(values, k):
    return values"""

REWRITTEN_EXAMPLE = """\
def rewritten(x, k, check):
    return x.sum()"""

DECIDE_EXAMPLE = """\
def decide(low, high, k):
    return None"""

RELATION = Rubric(
    (
        Criterion(
            "The assertion enlarges what is known",
            1,
            "Before it, 0 <= n <= N implies neither n > k nor its negation, so the compiler has to refuse; with it, "
            "n > k is among the constraints and the decision follows.",
            "Only that the assertion helps.",
            "Says that the sample decides.",
        ),
        Criterion(
            "Why the path is the program's",
            1,
            "For every n that satisfies the constraints the decision has the same truth value, so the compiled path is "
            "the original's; for all others the assertion raises at run time.",
            none="Does not say what happens where the assertion fails.",
        ),
        Criterion(
            "Shape guards",
            1,
            "A guard is decided by the sample and checked at later calls before anything runs, and another version can "
            "be compiled; a size that data decide is known only in the middle of the call, too late to choose.",
            "Only: shapes are known, data are not.",
            "No difference named.",
        ),
    ),
    "Assertions and Proposition 10.4",
)

OUTCOMES = (ALWAYS_TRUE, ALWAYS_FALSE, REFUSED)

PARTS = (
    Part(
        "1",
        "Why not the sample",
        PART_1,
        (
            Function("witness", "an input that goes the other way", 2, example=WITNESS_EXAMPLE,
                     parameters=("values", "k"), returns="a list of numbers"),
            Choice("checked_when", "when the condition could be checked", 1, example=f'"{NEVER}"',
                   options=(BEFORE, AFTER, NEVER)),
        ),
        (
            "The key has no elements in it. Which way did the sample go?",
            "A guard is checked before the call, from what the arguments show without their elements.",
        ),
    ),
    Part(
        "2",
        "An assertion",
        PART_2,
        (
            Function("rewritten", "the program with an assertion", 3, example=REWRITTEN_EXAMPLE,
                     parameters=("x", "k", "check"), returns="what f returns"),
        ),
        (
            "An `if` that raises is a decision, too, and so is Python's `assert`.",
            "What has to be known before the branch is reached? Is anything left of the branch then?",
        ),
    ),
    Part(
        "3",
        "What follows, and what does not",
        PART_3,
        (
            Function("decide", "True, False, or None", 2, example=DECIDE_EXAMPLE, parameters=("low", "high", "k"),
                     returns="True, False or None"),
            Choice("decision_a", "decision (a)", 1, example=f'"{REFUSED}"', options=OUTCOMES),
            Choice("decision_b", "decision (b)", 1, example=f'"{REFUSED}"', options=OUTCOMES),
            Choice("decision_c", "decision (c)", 1, example=f'"{REFUSED}"', options=OUTCOMES),
            Prose("assertion_and_proof", "what the assertion has to do with the proposition", RELATION.points,
                  rubric=RELATION),
        ),
        (
            "Is u > k for all sizes from low to high? For none?",
            "The vector has N elements: that is known as well.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    shapes = "No shape shows it: the same shapes come with any number of nonzero elements."
    late = "It is known once nonzero has run."
    judges: dict[str, Judge] = {
        "witness": lambda callee: judge_witness(callee, seed),
        "checked_when": one_of(AFTER, {BEFORE: shapes, NEVER: late}),
        "rewritten": lambda callee: judge_rewritten(callee, seed),
        "decide": lambda callee: judge_decide(callee, seed),
        "assertion_and_proof": read_by_a_person(RELATION),
    }
    for letter, bound in zip("abc", variant.bounds, strict=True):
        truth = decision_of(variant, bound)
        judges[f"decision_{letter}"] = one_of(truth, reasons_against(variant, bound))
    return judges
