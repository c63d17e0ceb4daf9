"""Exercise 10 (Section 5.4, Definitions 5.1 and 5.2): what is in U and in B is in every feasible set.

The proof is taken apart into claims that run on the graphs of compiled programs: a search for the path that makes a
set infeasible, the exact set of values that no feasible set can do without, and the path of the network on which every
finite cut has to cut one edge. At the end a program shows where the claim ends: a reduction that is read and not saved.
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
from ..networks import RealGraph, always_saved
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex10_answers import HARMLESS, reference, wrong_answers
from .ex10_runs import divided, judge_always, judge_escape, judge_path, judge_unsaved, smallest_columns

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
TITLE = "What no feasible set can do without"
DIFFICULTY = 2

statement = r"""
$U$ are the forward values that must not be computed again, $B$ those that the backward pass reads. A set $C$ of forward
values is **feasible** (Definition 5.1) if every path along forward dependences that begins in $U$ and ends in $B$
contains a value of $C$; the two ends count, and a single value is a path.

The program of this exercise keeps the result of a reduction, `total`:

```python
def f(x):             # x: float32, rows x columns, requires grad
    total = (x * 2).sum(-1, keepdim=True)
    return (total * total * x).sum()
```

By rule 3 of Section 5.4 the result of a reduction is in $U$ if four times its bytes are **less** than the bytes of what
it reads.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """The shape of x."""

    rows: int = 16
    columns: int = 64

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(4 * rng.randint(2, 40), 8 * rng.randint(1, 20))

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (("rows", str(self.rows)), ("columns", str(self.columns)))

    def graph(self) -> RealGraph:
        return divided(self.rows, self.columns)


ROUNDED = Fraction(51, 100)  # capacities may be rounded to whole numbers

# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
Show that a value $v \in U \cap B$ is in every feasible set.

1. **What makes a set infeasible.** `escape(reads, U, B, C)` returns a path from $U$ to $B$ without any value of $C$, as
   a list of names in the order they are computed, or `None` if there is none, that is, if $C$ is feasible. `reads[v]`
   are the names of the forward values that `v` is computed from; `U`, `B`, `C` are sets of names.
2. **The claim, and its converse.** `always_saved(U, B)` returns the set of those values that are in *every* feasible
   set: all of them, and no others. It is tried on the graphs of compiled programs.
3. **The proof** in words, from Definition 5.1.
"""

PART_2 = r"""
The same in the network of Definition 5.2.

1. `only_path(v)` returns, for a value $v \in U \cap B$ called `v`, the vertices (`"s"`, `"t"`, `v + "_in"`,
   `v + "_out"`) of a path on which every cut of finite capacity must cut the edge of $v$.
2. Your shape: how many **bytes** does every feasible set of `f` save at least, by this argument?
3. What **capacity** does every finite cut of its network have at least, by this argument?
   $c(v) = b(v)\,\beta(v)\,1.1^{d(v)}$ with $b$ in bytes; $\beta$ is 1 if the value is in memory after the forward
   pass anyway and 2 otherwise, $d$ the forward steps to its first backward reader, at least 1. (It may be rounded to a
   whole number.)
4. What is the **smallest number of columns** for which `total` is in $U$?
"""

PART_3 = r"""
`unsaved_reduction(x)` is a program whose backward pass reads the result of a reduction that is **not** saved but
computed again. `x` is a float32 matrix of your shape. It is recorded and divided as the compiler does it, with one
number or a tensor as its result.
"""

ESCAPE_EXAMPLE = """\
def escape(reads, U, B, C):
    for v in U:
        if v not in C:
            return [v]"""

ALWAYS_EXAMPLE = """\
def always_saved(U, B):
    return U"""

PATH_EXAMPLE = """\
def only_path(v):
    return ["s", "t"]"""

UNSAVED_EXAMPLE = """\
def unsaved_reduction(x):
    return x.sum().exp()"""

PROOF = Rubric(
    (
        Criterion(
            "The path of one value",
            2,
            "v alone is a path from U to B, because it is in both and the ends count.",
            "Uses a path that begins at v, without saying that it also ends there.",
            "Argues with costs or with what the compiler does.",
        ),
        Criterion(
            "What follows for C",
            1,
            "The path must contain a value of C, and v is its only value, so v is in C. This holds for every C.",
            none="Shows it for one set only.",
        ),
        Criterion(
            "The converse",
            1,
            "If v is not in U and B both, all other values are a feasible set: a path from U to B has another value "
            "than v, at its beginning or at its end.",
            none="Does not say why no others are in every set.",
        ),
    ),
    "Why the value is in every feasible set",
)

PARTS = (
    Part(
        "1",
        "Feasible sets",
        PART_1,
        (
            Function("escape", "a path that makes a set infeasible", 3, example=ESCAPE_EXAMPLE,
                     parameters=("reads", "U", "B", "C"), returns="a list of names, or None"),
            Function("always_saved", "what is in every feasible set", 2, example=ALWAYS_EXAMPLE,
                     parameters=("U", "B"), returns="a set of names"),
            Prose("why_always", "why it is in every feasible set", PROOF.points, rubric=PROOF),
        ),
        (
            "Which is the shortest path there can be from U to B?",
            "Search from the values of U that are not in C, along the dependences, and never into C.",
            "For the converse: take C as all values but v. When is it not feasible?",
        ),
    ),
    Part(
        "2",
        "Cuts",
        PART_2,
        (
            Function("only_path", "the path that forces the cut", 2, example=PATH_EXAMPLE, parameters=("v",),
                     returns="a list of vertices"),
            Number("forced_bytes", "bytes saved at least", 1, example="1024", unit="bytes", whole=True),
            Number("forced_capacity", "capacity of every finite cut, at least", 1, example="9011.2"),
            Number("smallest_columns", "columns from which on total is in U", 1, example="17", whole=True),
        ),
        (
            "What does s lead to for a value in U, and what leads to t for one in B?",
            "The result of a reduction is written in any case, and its first backward reader is one step away.",
            "Four times 4 rows bytes, and 4 rows columns bytes: less, not equal.",
        ),
    ),
    Part(
        "3",
        "Where the claim ends",
        PART_3,
        (
            Function("unsaved_reduction", "a program with a reduction that is computed again", 3,
                     example=UNSAVED_EXAMPLE, parameters=("x",), returns="a tensor"),
        ),
        (
            "It has to be in B and not in U. Which rule puts reductions into U?",
            "A sum over very few elements, whose result the backward pass reads: that of exp or a power, say, or a "
            "product with it.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    graph = variant.graph()
    forced = [value for value in graph.values if value["name"] in always_saved(graph)]
    size = sum(value["b"] for value in forced)
    price = sum(Fraction(value["b"] * value["beta"] * 1.1 ** value["d"]) for value in forced)
    read = sum(value["b"] for value in graph.values if value["B"])
    sizes = (
        Slip("all-that-is-read", Fraction(read), "That is all the backward pass reads. Not all of it is in U."),
        Slip("elements", Fraction(size, 4), "These are elements; a float32 has 4 bytes."),
    )
    prices = (
        Slip("bytes-only", Fraction(size), "These are bytes; capacities weigh them."),
        Slip("beta-of-fused", 2 * price, "A reduction is in memory after the forward pass in any case: its β is 1."),
    )
    columns = (Slip("not-less", Fraction(smallest_columns() - 1), "There four times its bytes are equal, not less."),)
    return {
        "escape": lambda callee: judge_escape(callee, seed),
        "always_saved": judge_always,
        "why_always": read_by_a_person(PROOF),
        "only_path": judge_path,
        "forced_bytes": close_to(Fraction(size), slips=sizes),
        "forced_capacity": close_to(price, absolute=ROUNDED, slips=prices),
        "smallest_columns": close_to(Fraction(smallest_columns()), slips=columns),
        "unsaved_reduction": lambda callee: judge_unsaved(callee, variant.rows, variant.columns),
    }
