"""Exercise 11 (Section 6.4, Proposition 6.2): strides after a transpose, a reshape, and a slice.

Layouts are computed twice: from the strides a student gives, and by the package, which sends symbolic subscripts
through the view and reads the strides off the address. When one stride is enough for all elements is a function that is
run on many layouts, and that cutting and permuting may change places is a claim about which dimension to cut, tried on
all permutations.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Choice, Function, Number, Numbers, Prose
from ..exercise import Part
from ..judges import Judge, Slip, close_to, one_of, read_by_a_person, same_numbers
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex11_answers import HARMLESS, reference, wrong_answers
from .ex11_runs import (
    drawn_layouts,
    flat_stride,
    judge_flat_stride,
    judge_moved,
    layout,
    layout_through,
    sliced_and_turned,
    turned,
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
TITLE = "Strides after a view"
DIFFICULTY = 2

statement = r"""
A layout is a shape, strides $t$ and an offset $o$; element $i$ is at address $o + t^{\mathsf T} i$, counted in elements
(Definition 6.2). A view whose subscript $i$ stands for the subscript $A i + c$ of what it looks at has strides
$A^{\mathsf T} t$ and offset $o + t^{\mathsf T} c$ (Proposition 6.2). The matrix `x` is contiguous, with offset 0; its
shape, and the layout of the array `z`, are among your values.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """The shape of x, the layout of z, and the slice ``start::step`` of the columns. x has the chapter's shape."""

    rows: int = 4
    columns: int = 6
    z_shape: tuple[int, ...] = (2, 3, 4)
    z_strides: tuple[int, ...] = (24, 8, 2)
    start: int = 1
    step: int = 2

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(*drawn_layouts(rng))

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("shape of x", f"({self.rows}, {self.columns})"),
            ("shape of z", str(self.z_shape)),
            ("strides of z", str(self.z_strides)),
            ("the slice", f"x[:, {self.start}::{self.step}]"),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. Shape and strides of `x.t()`.
2. Can `x.t().reshape(-1)`, all elements in one dimension, be given by one stride, without copying?
3. Can `z.reshape(-1)`?
"""

PART_2 = r"""
`flat_stride(shape, strides)` gets two tuples of equal length and returns the stride of the reshape to a single
dimension, or `None` if no stride does it. There are at least two elements; extents may be 1, strides may be 0. It is
held against the compiler, and against the addresses of all elements.
"""

PART_3 = r"""
1. Your slice, transposed: `w = x[:, start::step].t()`. Subscript $(i_0, i_1)$ of `w` is subscript
   $A\,(i_0, i_1)^{\mathsf T} + c$ of `x`. Give $A$, row by row, and $c$; then the strides and the offset of `w`.
2. **Cutting and permuting change places.** `y` is an array of any number of dimensions. Dimension $k$ of
   `y.permute(order)` is dimension `order[k]` of `y`. To cut dimension `d` of `y` and permute then is the same as to
   permute first and cut a dimension of the result: which? `moved(order, d)` returns its number.
3. In words: prove that the two ways give the same strides and the same offset, for every layout.
"""

FLAT_EXAMPLE = """\
def flat_stride(shape, strides):
    return strides[0]"""

MOVED_EXAMPLE = """\
def moved(order, d):
    return 0"""

WHY = Rubric(
    (
        Criterion(
            "The maps",
            2,
            "Writes both views as maps of subscripts (matrix and vector), composed in the right order.",
            "Names the two maps but composes them the other way round, or argues for two dimensions only.",
            "Computes one example.",
        ),
        Criterion(
            "They are equal",
            1,
            "Shows that both compositions are one map: scaling and shifting a coordinate goes with the coordinate when "
            "it is moved.",
            none="Asserts that the order does not matter.",
        ),
        Criterion(
            "From maps to layouts",
            1,
            "Concludes with Proposition 6.2: strides and offset follow from the map and the old layout alone.",
            none="Does not get from subscripts to strides.",
        ),
    ),
    "Cutting and permuting",
)

YES_NO = ("yes", "no")

PARTS = (
    Part(
        "1",
        "Transposing and reshaping",
        PART_1,
        (
            Numbers("turned_shape", "shape of x.t()", 1, example="[2, 3]", shape=(2,)),
            Numbers("turned_strides", "strides of x.t()", 1, example="[3, 1]", shape=(2,), unit="elements"),
            Choice("reshape_x", "one stride for x.t()", 1, example='"yes"', options=YES_NO),
            Choice("reshape_z", "one stride for z", 1, example='"yes"', options=YES_NO),
        ),
        (
            "Where is element (i, j) of x? Which element of x.t() is that?",
            "Write down the addresses of the elements in the order in which the reshape has them. Are the distances "
            "equal?",
            "Two neighbouring dimensions merge if a step in the outer one is as far as walking through the inner one.",
        ),
    ),
    Part(
        "2",
        "One stride",
        PART_2,
        (
            Function("flat_stride", "the stride, or None", 3, example=FLAT_EXAMPLE, parameters=("shape", "strides"),
                     returns="an integer or None"),
        ),
        (
            "The condition on two neighbours, for all neighbours: t_j = s_(j+1) t_(j+1).",
            "Dimensions of extent 1 must be left out first. Who are the neighbours then?",
        ),
    ),
    Part(
        "3",
        "Two orders",
        PART_3,
        (
            Numbers("matrix", "A, row by row", 1, example="[[1, 0], [0, 1]]", shape=(2, 2)),
            Numbers("shift", "c", 1, example="[0, 0]", shape=(2,)),
            Numbers("composed_strides", "strides of w", 1, example="[6, 1]", shape=(2,), unit="elements"),
            Number("composed_offset", "offset of w", 1, example="3", whole=True, unit="elements"),
            Function("moved", "the dimension to cut", 2, example=MOVED_EXAMPLE, parameters=("order", "d"),
                     returns="a number of a dimension"),
            Prose("why_same", "why both ways give one layout", WHY.points, rubric=WHY),
        ),
        (
            "Which element of x is w[i0, i1]? Its row number is one entry of A i + c, its column number the other.",
            "A has a row for each dimension of x and a column for each dimension of w.",
            "order says for each dimension of the result where it comes from. The question goes the other way.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    rows, columns, start, step = variant.rows, variant.columns, variant.start, variant.step
    shape, strides = (rows, columns), (columns, 1)
    other = turned(shape, strides)
    view = sliced_and_turned(shape, start, step)
    affine = view.affine()
    composed = layout_through(layout(shape, strides), view)
    assert affine is not None and composed is not None

    def fits(shape: tuple[int, ...], strides: tuple[int, ...]) -> Judge:
        truth = "no" if flat_stride(shape, strides) is None else "yes"
        return one_of(truth, {"yes": "Two neighbouring elements of the reshape are too far apart, or too near.",
                              "no": "All neighbours of the reshape are equally far apart."})  # fmt: skip

    return {
        "turned_shape": same_numbers(
            other.shape, slips=(Slip("not-turned", shape, "That is the shape of x itself."),)
        ),
        "turned_strides": same_numbers(
            other.stride,
            slips=(
                Slip("not-turned", strides, "These are the strides of x itself."),
                Slip("contiguous-strides", (rows, 1),
                     "A contiguous matrix of that shape has these; a view moves nothing in memory."),
            ),
        ),
        "reshape_x": fits(other.shape, other.stride),
        "reshape_z": fits(variant.z_shape, variant.z_strides),
        "flat_stride": lambda callee: judge_flat_stride(callee, seed),
        "matrix": same_numbers(
            affine[0],
            slips=(
                Slip("other-way-round", ((0, step), (1, 0)),
                     "With this the rows of x are skipped. Row 0 of A makes the row number of x."),
                Slip("no-step", ((0, 1), (1, 0)), "That is the transpose alone: no element is skipped."),
            ),
        ),
        "shift": same_numbers(
            affine[1],
            slips=(Slip("shift-of-the-view", (start, 0), "The entries of c belong to dimensions of x, not of w."),),
        ),
        "composed_strides": same_numbers(
            composed.stride,
            slips=(
                Slip("not-turned", (columns, step), "These are the strides of the slice, before it is transposed."),
                Slip("no-step", (1, columns), "These are the strides of x.t(): no element is skipped."),
            ),
        ),
        "composed_offset": close_to(
            Fraction(composed.offset),
            slips=(Slip("rows-skipped", Fraction(start * columns), "Whole rows are skipped there, not columns."),),
        ),
        "moved": judge_moved,
        "why_same": read_by_a_person(WHY),
    }  # fmt: skip
