"""Exercise 46 (Section 5.2, Theorem 5.1): what the gradient of a straight-line program costs, counted.

Nothing is argued where it can be counted: programs, the student's and the package's, run on numbers that count the
operations done to them. The student builds a program whose gradient is as dear as the theorem allows, writes the
backward pass of a product, which must be right where a factor is zero and take a number of operations proportional to
the number of factors, and counts what the other ways cost.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import FormulaIn, Function, Number, Prose
from ..claims import integers
from ..exercise import Part
from ..judges import Judge, Slip, close_to, read_by_a_person, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex46_answers import HARMLESS, reference, wrong_answers
from .ex46_runs import (
    PAIRS,
    factors,
    forward_operations,
    independent_operations,
    judge_gradient,
    judge_program,
    reverse_operations,
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
TITLE = "What a gradient costs"
DIFFICULTY = 2

statement = r"""
A straight-line program of $W$ operations computes one number from its inputs. Reverse mode computes the number and all
its partial derivatives in at most $(1 + \max(4, c + 2))\, W$ operations (Theorem 5.1), where $c$ bounds what it takes
to get the derivative of an elementary function from its argument and its value. Operations are counted as in the
theorem's proof: the forward sweep is part of the total, and so is every addition to an adjoint, the first one included.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """The two operations of Part 1. The defaults are the chapter's."""

    operations: tuple[str, str] = ("+", "*")

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(rng.choice(PAIRS))

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (("operations of Part 1", " and ".join(f"`{one}`" for one in self.operations)),)


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = """
Your values name two operations. Think of programs in which no others occur, on any number of inputs.

1. By which factor does reverse mode (both sweeps) exceed the program itself **at least**? By which **at most**? (Here
   no operand is a number written in the program.)
2. **A program that attains the larger one.** `dearest(x, w)` computes something from `x` by exactly `w` operations. It
   is run on numbers that record what is done to them: use Python's operators, and elementary functions from
   `staxlab.autodiff.straightline` (`exp`, `log`, `sqrt`, `tanh`, `sigmoid`, `sin`, `cos`).
"""

PART_2 = r"""
Let $f(x) = x_1 x_2 \cdots x_n$ be computed with $n - 1$ multiplications, from the left.

1. **Its backward pass.** `product_gradient(x)` gets a list of at least two numbers and returns the list of all partial
   derivatives. It must be right for all numbers, zeros among them, and its operations are counted: no more than $5n$.
2. How many operations do both sweeps of reverse mode take, as counted in the proof? A formula in `n`.
3. How many multiplications does it take to compute each partial derivative by itself, as the product of the other
   $n - 1$ factors? A formula in `n`, for `n` of at least 2.
"""

PART_3 = r"""
Forward mode carries a tangent along with each value: for $v = ab$ also $\dot v = b \dot a + a \dot b$.

1. How many operations does it take to compute all $n$ partial derivatives of the product in this way, by $n$ passes,
   each of which computes values and tangents? A formula in `n`.
2. In words: why does forward mode need $\Theta(nW)$ operations for the gradient of *any* program with $n$ inputs, why
   does reverse mode not, and what does this have to do with Proposition 5.2?
"""

DEAREST_EXAMPLE = """\
def dearest(x, w):
    return x + x"""

GRADIENT_EXAMPLE = """\
def product_gradient(x):
    return [1 for factor in x]"""

REASONS = Rubric(
    (
        Criterion(
            "One direction at a time",
            2,
            "A tangent is the derivative along one direction, so n partial derivatives take n passes through a program "
            "of W operations.",
            "Says that n passes are needed, without saying what one pass gives.",
            "Says only that forward mode is slower.",
        ),
        Criterion(
            "Why reverse mode is different",
            1,
            "An adjoint belongs to the one output; once complete it serves all inputs, and each is completed once.",
            none="Only refers to the theorem.",
        ),
        Criterion(
            "Rows and columns",
            1,
            "Relates both to the Jacobian: forward mode gives a column, reverse mode a row; with one output there is "
            "one row and n columns.",
            none="Does not mention the Jacobian or the number of outputs.",
        ),
    ),
    "Forward and reverse",
)

PARTS = (
    Part(
        "1",
        "The dearest program",
        PART_1,
        (
            Number("smallest_factor", "both sweeps over the program, at least", 1, example="2"),
            Number("largest_factor", "both sweeps over the program, at most", 1, example="2"),
            Function("dearest", "a program that attains it", 2, example=DEAREST_EXAMPLE, parameters=("x", "w"),
                     returns="a number"),
        ),
        (
            "Go through the table in the proof: how many operations does the reverse step of each of your two take?",
            "An operation that occurs costs one in the forward sweep and its reverse step. Mixing two operations gives "
            "something between the two factors.",
            "Repeat the operation with the dearer reverse step, w times, each on the result of the one before.",
        ),
    ),
    Part(
        "2",
        "The gradient of a product",
        PART_2,
        (
            Function("product_gradient", "its backward pass", 3, example=GRADIENT_EXAMPLE, parameters=("x",),
                     returns="a list of numbers", seconds=4.0),
            FormulaIn("reverse_cost", "operations of both sweeps", 1, example='"n**2 + 1"'),
            FormulaIn("independent_cost", "multiplications, each by itself", 1, example='"n**2 + 1"'),
        ),
        (
            "Keep all the products of the forward sweep. Which of them does the backward step of v_k = v_(k-1) x_k "
            "read?",
            "Go through the multiplications from the last to the first with one adjoint: what does x_k get of it, and "
            "what is handed on?",
            "For the counts: every multiplication costs 1 in the forward sweep and how many in the reverse sweep? A "
            "product of m factors takes m - 1 multiplications.",
        ),
    ),
    Part(
        "3",
        "The same by forward mode",
        PART_3,
        (
            FormulaIn("forward_cost", "operations of n passes", 2, example='"n**2 + 1"'),
            Prose("why_forward", "why forward mode needs n passes", REASONS.points, rubric=REASONS),
        ),
        (
            "How many multiplications and additions are there in the formula for the tangent of a product?",
            "How many multiplications does the program have, and how many passes are there?",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    smallest, largest = factors(variant.operations)
    forgets = "That is the reverse sweep alone: the program itself has to run as well."

    def only(value: Any) -> tuple[Slip, ...]:
        return (Slip("reverse-sweep-only", value - 1, forgets),)

    factors_of = {"n": integers(2, 60)}
    reverse = (
        Slip("reverse-sweep-only", lambda n: 4 * (n - 1), forgets),
        Slip("n-multiplications", lambda n: 5 * n, "A product of n factors takes fewer than n multiplications."),
    )
    independent = (
        Slip("one-multiplication-too-many", lambda n: n * (n - 1), "A product of n - 1 factors takes n - 2 of them."),
        Slip("one-derivative", lambda n: n - 2, "That is one partial derivative."),
    )
    forward = (
        Slip("one-pass", lambda n: 4 * (n - 1), "That is one pass, and it gives one partial derivative."),
        Slip("values-once", lambda n: (n - 1) * (1 + 3 * n),
             "That would be right if the values were computed once and kept for all passes, which is not asked here.",
             credit=Fraction(1, 2)),
        Slip("multiplications-only", lambda n: 3 * n * (n - 1), "Each pass computes the values as well."),
    )  # fmt: skip
    return {
        "smallest_factor": close_to(smallest, slips=only(smallest)),
        "largest_factor": close_to(largest, slips=only(largest)),
        "dearest": lambda callee: judge_program(variant.operations, callee),
        "product_gradient": lambda callee: judge_gradient(callee, seed),
        "reverse_cost": same_quantity(reverse_operations, factors_of, seed=seed, slips=reverse),
        "independent_cost": same_quantity(independent_operations, factors_of, seed=seed, slips=independent),
        "forward_cost": same_quantity(forward_operations, factors_of, seed=seed, slips=forward),
        "why_forward": read_by_a_person(REASONS),
    }
