"""Exercise 8 (Section 4.9, Proposition 4.4): a write through a transposed row, made into values.

The student writes a view and its scatter inverse, which are held to the two conditions of Proposition 4.4; gives the
functionalized graph of ``y.t()[k].add_(a)`` as data, which is executed and compared name by name, so that the write is
seen through every alias or is not; and builds a program that common subexpression elimination breaks if it comes before
functionalization, which is done to it, with the package's own graphs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Function, Number, Numbers, Prose
from ..exercise import Part
from ..judges import Judge, Slip, close_to, read_by_a_person
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex08_answers import HARMLESS, reference, wrong_answers
from .ex08_runs import (
    OPERATORS,
    drawn_shape,
    elements_changed_in_first,
    judge_elements,
    judge_graph,
    judge_scatter,
    judge_select,
    judge_stale,
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
TITLE = "A write through a transposed row"
DIFFICULTY = 2

statement = r"""
A write into a view changes its base, and whatever else looks at the same memory. To make values of such writes, every
view needs a *scatter inverse* (Proposition 4.4): $\mathrm{scatter}(b, v')$ with
$\mathrm{view}(\mathrm{scatter}(b, v')) = v'$, which agrees with $b$ wherever the view does not look. This exercise is
about the program

```python
def program(y, k, a):      # y: float32, rows x columns, contiguous
    v = y.t()
    row = v[k]
    first = y[0]
    row.add_(a)
    return y, v, row, first
```
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """The shape of y, which row of y.t() is written, and what is added."""

    rows: int = 4
    columns: int = 3
    k: int = 0
    a: int = 1

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(*drawn_shape(rng), rng.randint(2, 9))


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = """
For matrices, given as lists of rows:

1. `select(b, dim, i)` returns, as a list, row `i` of `b` (`dim = 0`) or column `i` (`dim = 1`).
2. `select_scatter(b, v, dim, i)` is its scatter inverse. It returns a new list of rows and **writes into nothing**.
   Both conditions of Proposition 4.4 are checked.
"""

PART_2 = f"""
1. Which **elements** of the storage of `y` does `row` look at? Their positions, counted from 0.
2. **How many** elements of `first` have another value after the write?
3. **The functionalized graph.** `graph(k, a)` returns `(nodes, results)`. `nodes` is a list of
   `(name, operator, argument, ...)`, in order; an argument that is a string is the name of `"y"` or of an earlier node.
   `results` says for each of `"y"`, `"v"`, `"row"`, `"first"` which node has its value after the write. Every node is a
   new value, so there is nothing that writes. The operators are

   {", ".join(f"`{name}`" for name in OPERATORS)},

   with arguments as in PyTorch (`select` takes a dimension and an index, `select_scatter` the base, the new contents, a
   dimension and an index).
"""

PART_3 = """
1. **A program that merging breaks.** `stale(y)` is a function of a float32 matrix that returns a tensor. Calls with
   the same target and the same arguments are merged in its captured graph (writes stay), *without* functionalizing it
   first: the result has to be wrong. Functionalized first and merged then, it is right.
2. In words: which assumption of value numbering is broken by a write, and why is it true again afterwards?
"""

SELECT_EXAMPLE = """\
def select(b, dim, i):
    return [0, 0]"""

SCATTER_EXAMPLE = """\
def select_scatter(b, v, dim, i):
    return [[0, 0], [0, 0]]"""

GRAPH_EXAMPLE = """\
def graph(k, a):
    return [("z", "mul", "y", a)], {"y": "z", "v": "z", "row": "z", "first": "z"}"""

STALE_EXAMPLE = """\
def stale(y):
    return y.sum() + y.sum()"""

WHY = Rubric(
    (
        Criterion(
            "The assumption",
            2,
            "Equal target and equal arguments mean equal value; with writes a name stands for different contents at "
            "different times, so two calls with the same key may differ.",
            "Says that writes are side effects, without relating it to keys.",
            "Says only that the order matters.",
        ),
        Criterion(
            "Why it holds afterwards",
            1,
            "Each write makes a new value with a name of its own, and later reads name that value, so their keys "
            "differ.",
            none="Says only that there are no writes any more.",
        ),
        Criterion(
            "Views",
            1,
            "Notes that the write need not name the tensor whose value it changes: it goes through an alias.",
            none="Does not mention aliases.",
        ),
    ),
    "Merging before functionalization",
)

PARTS = (
    Part(
        "1",
        "A view and its inverse",
        PART_1,
        (
            Function("select", "a row or a column", 1, example=SELECT_EXAMPLE, parameters=("b", "dim", "i"),
                     returns="a list"),
            Function("select_scatter", "its scatter inverse", 2, example=SCATTER_EXAMPLE,
                     parameters=("b", "v", "dim", "i"), returns="a list of lists"),
        ),
        (
            "Begin with a copy of b that shares no row with it.",
            "Into which places of the copy does v go, for dim = 0 and for dim = 1?",
        ),
    ),
    Part(
        "2",
        "The graph after functionalization",
        PART_2,
        (
            Numbers("row_elements", "elements that row looks at", 1, example="[0, 1, 2]", unit="elements"),
            Number("first_changes", "elements of first that change", 1, unit="elements", example="7", whole=True),
            Function("graph", "the functionalized graph", 4, example=GRAPH_EXAMPLE, parameters=("k", "a"),
                     returns="(nodes, results)"),
        ),
        (
            "Transposing exchanges the strides. Element (i, j) of y is at i * columns + j; where is element j of row k "
            "of y.t()?",
            "The write is an add on the row. Its result must be put into the transpose, and what comes of that into y: "
            "one scatter inverse for each view, from the inside out. What is the inverse of t?",
            "v and first look at the same memory. Which node has v's contents after the write? From which node can "
            "first be taken again?",
        ),
    ),
    Part(
        "3",
        "Why merging has to wait",
        PART_3,
        (
            Function("stale", "a program that merging breaks", 2, example=STALE_EXAMPLE, parameters=("y",),
                     returns="a tensor"),
            Prose("why_before", "why functionalization comes first", WHY.points, rubric=WHY),
        ),
        (
            "Two calls are merged if they look alike. Let something happen between them that changes what they see.",
            "Read y, write into it, and read it again in the same way. The result must show the difference.",
            "If y itself is written, the graph gives it a new name. A write through a view of y does not.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    rows, columns, k, a = variant.rows, variant.columns, variant.k, variant.a
    slips = (
        Slip("sees-nothing", Fraction(0), "first looks at the same memory as row does, in one place at least."),
        Slip("sees-all", Fraction(columns), "row is a column of y, and first a row of it. Where do they meet?"),
    )
    return {
        "select": lambda callee: judge_select(callee, seed),
        "select_scatter": lambda callee: judge_scatter(callee, seed),
        "row_elements": lambda answer: judge_elements(rows, columns, k, answer),
        "first_changes": close_to(Fraction(elements_changed_in_first(rows, columns, k)), slips=slips),
        "graph": lambda callee: judge_graph(rows, columns, k, a, callee, seed),
        "stale": judge_stale,
        "why_before": read_by_a_person(WHY),
    }
