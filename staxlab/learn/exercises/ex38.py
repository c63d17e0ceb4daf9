"""Exercise 38 (Section 5.7, Proposition 5.2): columns, rows, and second derivatives.

Whole Jacobians are assembled from oracles that count how often they are asked. Second derivatives are taken of
straight-line programs, by differentiating a gradient that is a program again: what a compiler would have to do. And
what happens without that is tried, with a backward pass that records nothing.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Choice, FormulaIn, Function, Prose
from ..claims import integers
from ..exercise import Part
from ..judges import Judge, Slip, one_of, read_by_a_person, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex38_answers import HARMLESS, reference, wrong_answers
from .ex38_runs import (
    EAGER,
    ERROR,
    FORWARD,
    REVERSE,
    ZERO,
    differentiated_twice,
    judge_hessian,
    judge_jacobian,
    sweeps,
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
TITLE = "Columns, rows, and second derivatives"
DIFFICULTY = 2

statement = r"""
Let $f: \mathbb R^n \to \mathbb R^m$ be computed by a program of $W$ operations, and let $J$ be its Jacobian, with $m$
rows and $n$ columns. One pass of forward mode gives $Jv$ for one $v$, one of reverse mode $u^{\mathsf T} J$ for one $u$
(Proposition 5.2). Here a pass is charged as $W$, whichever it is: constant factors are left out.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """The number of inputs and of outputs. The defaults are the chapter's."""

    n: int = 1000
    m: int = 10

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        many, few = rng.randint(3, 20) * 100, rng.randint(3, 30)
        return cls(many, few) if rng.random() < 0.6 else cls(few, many)

    def constants(self) -> dict[str, Fraction]:
        return {"n": Fraction(self.n), "m": Fraction(self.m)}


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. What does the whole Jacobian cost by forward mode, and what by reverse mode? Formulas in `W`; `n` and `m` may be used
   in them.
2. Which of the two is cheaper for your `n` and `m`?
3. **By columns.** `jacobian_by_columns(jvp, n, m)` gets a function `jvp(v)` that returns $Jv$ as a list of $m$ numbers,
   for a list of $n$ numbers. It returns $J$ as a list of $m$ rows. Calls of `jvp` are counted.
4. **By rows.** `jacobian_by_rows(vjp, n, m)` does the same with `vjp(u)`, which returns $u^{\mathsf T} J$.
"""

PART_2 = r"""
Now only one $Jv$ and one $u^{\mathsf T} J$ are needed. What do the two cost together? A formula in `W`.
"""

PART_3 = r"""
The backward pass of a compiled region is a program that was compiled in advance. Suppose it is called as it is, so that
nothing is recorded while it runs. A gradient is computed with `create_graph=True` and then differentiated again.

1. What does the second differentiation give? (It is tried.)
2. **By hand.** `hessian_vector(f, v)` gets a straight-line program `f` with one output
   (`staxlab.autodiff.straightline.Program`) and a list `v` of as many numbers as it has inputs. It returns a program
   with the same inputs whose outputs are $Hv$, with $H$ the Hessian of `f`. In `staxlab.autodiff.sweeps` there are
   `gradient_program(p)`, the program that computes all partial derivatives of a program with one output, and
   `weighted(p, weights)`, the program whose one output is the weighted sum of the outputs of `p`. Yours may be larger
   than `f` by a constant factor only.
3. In words: why do compiled regions have no second derivatives, what would the compiler have to do in addition, and
   what would it cost?
"""

COLUMNS_EXAMPLE = """\
def jacobian_by_columns(jvp, n, m):
    return [jvp([1] * n)]"""

ROWS_EXAMPLE = """\
def jacobian_by_rows(vjp, n, m):
    return [vjp([1] * m)]"""

HESSIAN_EXAMPLE = """\
def hessian_vector(f, v):
    from staxlab.autodiff.sweeps import gradient_program, weighted
    return weighted(gradient_program(f), v)"""

MORE = Rubric(
    (
        Criterion(
            "Why not",
            1,
            "The backward pass is compiled; nothing records its operators while it runs, so its results have no graph.",
            none="Says only that it is not supported.",
        ),
        Criterion(
            "What would have to be done",
            2,
            "Trace the joint graph once more as a forward pass and record its backward pass; part the result again, "
            "since the second backward pass reads values of the forward and of the first backward pass.",
            "Says that the backward pass is to be traced, without what follows for saving and recomputing.",
            "Says only that 'the compiler has to support it'.",
        ),
        Criterion(
            "What it costs",
            1,
            "The graph grows by a constant factor with each order, and so does compile time, also for those who do not "
            "need it, unless it is done on demand.",
            none="No cost is named.",
        ),
    ),
    "Second derivatives of compiled regions",
)

PARTS = (
    Part(
        "1",
        "The whole Jacobian",
        PART_1,
        (
            FormulaIn("forward_sweeps_cost", "cost by forward mode", 1, example='"2*n*W + m"', variables=("W",)),
            FormulaIn("reverse_sweeps_cost", "cost by reverse mode", 1, example='"2*n*W + m"', variables=("W",)),
            Choice("cheaper_mode", "the cheaper one", 1, example=f'"{FORWARD}"', options=(FORWARD, REVERSE)),
            Function("jacobian_by_columns", "the Jacobian from J v", 1, example=COLUMNS_EXAMPLE,
                     parameters=("jvp", "n", "m"), returns="a list of rows"),
            Function("jacobian_by_rows", "the Jacobian from u^T J", 1, example=ROWS_EXAMPLE,
                     parameters=("vjp", "n", "m"), returns="a list of rows"),
        ),
        (
            "What is J times the vector that is 1 in one place and 0 elsewhere?",
            "How many such vectors are there for v, how many for u?",
        ),
    ),
    Part(
        "2",
        "One of each",
        PART_2,
        (FormulaIn("both_products_cost", "one J v and one u^T J", 1, example='"n*W"', variables=("W",)),),
        (
            "How many passes does each of them take?",
            "Neither n nor m is in the answer. Why not?",
        ),
    ),
    Part(
        "3",
        "Once more",
        PART_3,
        (
            Choice("second_derivative", "what the second differentiation gives", 1, example=f'"{ZERO}"',
                   options=(EAGER, ZERO, ERROR)),
            Function("hessian_vector", "a program for H v", 3, example=HESSIAN_EXAMPLE, parameters=("f", "v"),
                     returns="a Program", seconds=5.0),
            Prose("second_order", "what a compiler would have to do", MORE.points, rubric=MORE),
        ),
        (
            "A gradient that nobody recorded is a tensor like any other. What does autograd say when asked for the "
            "derivative of a tensor that was not computed from anything it knows?",
            "H v is the gradient of a function with one output. Of which one?",
            "grad f . v, with v fixed: a weighted sum of the outputs of the gradient's program.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    n, m = variant.n, variant.m
    forward, reverse = sweeps(n, m, FORWARD), sweeps(n, m, REVERSE)
    pass_cost = {"W": integers(1, 10**6)}
    every = Slip("every-entry", lambda W: n * m * W, "A pass gives a whole column or row, not one entry.")
    truth = FORWARD if forward < reverse else REVERSE
    unlike = "Compare the two costs with your n and m."
    happened, words = differentiated_twice()
    tried = "Tried, it is something else: a tensor that nothing was recorded of has no way back to the input."
    return {
        "forward_sweeps_cost": same_quantity(
            lambda W: forward * W, pass_cost, seed=seed,
            slips=(Slip("rows-for-columns", lambda W: m * W, "Forward mode gives a column. J has m rows."), every),
        ),
        "reverse_sweeps_cost": same_quantity(
            lambda W: reverse * W, pass_cost, seed=seed,
            slips=(Slip("columns-for-rows", lambda W: n * W, "Reverse mode gives a row. J has n columns."), every),
        ),
        "cheaper_mode": one_of(truth, {FORWARD: unlike, REVERSE: unlike}),
        "jacobian_by_columns": lambda callee: judge_jacobian(FORWARD, callee, seed),
        "jacobian_by_rows": lambda callee: judge_jacobian(REVERSE, callee, seed),
        "both_products_cost": same_quantity(
            lambda W: 2 * W, pass_cost, seed=seed,
            slips=(
                Slip("whole-jacobian", lambda W: (n + m) * W, "One product takes one pass; no matrix is needed."),
                Slip("one-of-the-two", lambda W: W, "That is one of them."),
            ),
        ),
        "second_derivative": one_of(
            happened, {EAGER: tried, ZERO: tried}, praise=f"Right: {words}" if words else "Right."
        ),
        "hessian_vector": lambda callee: judge_hessian(callee, seed),
        "second_order": read_by_a_person(MORE),
    }  # fmt: skip
