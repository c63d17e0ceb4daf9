"""Exercise 48 (Section 7.5, Proposition 7.4): peaks count vertices with unfinished business, and trees are easy.

Vertex separation numbers are found by trying every order of the vertices, peaks by the exact search
(:mod:`staxlab.schedule.orders`); the student's graph, order of vertices and order of a tree are held against both.
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
from .ex48_answers import HARMLESS, reference, wrong_answers
from .ex48_runs import (
    Undirected,
    cycle,
    judge_graph,
    judge_layout,
    judge_tree,
    lowest_peak,
    path,
    separation,
    star,
    unit_of,
    wheel,
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

SECTION = 7
TITLE = "Peaks and vertex separation"
DIFFICULTY = 2

statement = r"""
Let $H$ be an undirected graph with vertices $V$ and edges $E$. For an order of the vertices, the *separation* after $i$
of them is the number of those $i$ that have a neighbour among the rest; the vertex separation number
$\mathrm{vs}(H)$ is the smallest, over all orders, of the largest separation. Whether it is at most a given number is
NP-complete to decide.

The reduction of Proposition 7.4 makes a dependence graph $D$ of $H$. Let $M = |E| + 1$.

* For each vertex there is a kernel that reads nothing and writes a buffer of $M$ units.
* For each edge there is a kernel that reads the buffers of its two ends and writes 1 unit, which is a result.

A buffer is freed when its last reader has run; what a kernel reads and what it writes are alive while it runs. The
lowest peak of $D$ lies between $M(\mathrm{vs}(H) + 1)$ and $M(\mathrm{vs}(H) + 1) + |E|$.
"""

FAMILIES = {"path": path, "cycle": cycle, "star": star, "wheel": wheel}


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Two graphs, each as a family and its number of vertices. The defaults are the chapter's."""

    first: str = "path"
    first_size: int = 4
    second: str = "cycle"
    second_size: int = 4

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(rng.choice(("path", "star")), rng.randint(4, 7), rng.choice(("cycle", "wheel")), rng.randint(4, 7))

    @property
    def graphs(self) -> tuple[Undirected, Undirected]:
        return FAMILIES[self.first](self.first_size), FAMILIES[self.second](self.second_size)

    def describe(self) -> tuple[tuple[str, str], ...]:
        words = {"wheel": "the cycle on all but one vertex, and that one joined to all others",
                 "star": "one vertex joined to all others"}  # fmt: skip
        return tuple(
            (name, f"the {family} on {size} vertices" + (f" ({words[family]})" if family in words else ""))
            for name, family, size in (
                ("the first graph", self.first, self.first_size),
                ("the second graph", self.second, self.second_size),
            )
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. The vertex separation numbers of your two graphs.
2. **An order of the vertices.** `vertex_order(n, edges)` gets the number of vertices and the list of edges (pairs of
   numbers below $n$), and returns an order of the vertices whose largest separation is $\mathrm{vs}(H)$. It is compared
   with the best order of all on graphs of at most six vertices, so trying all orders is allowed.
"""

PART_2 = r"""
1. **The reduction.** `dependence_graph(n, edges)` returns $D$ as a list of kernels `(name, reads, size, kept)`, each
   after those it reads: `name` is a text, `reads` a list of names, `size` the units it writes, and `kept` says whether
   that is a result. The lowest peak of yours is computed, for several graphs.
2. The lowest peak of $D$ for each of your two graphs. They have to lie in the interval; check it.
3. In words: why does the interval let one read off $\mathrm{vs}(H)$, and what does that say about finding orders with
   the lowest peak?
"""

PART_3 = r"""
Now every kernel has at most one user, and every buffer has one unit. The last kernel's output is the only result.

1. `order_of_tree(operands)` gets a list: `operands[k]` are the numbers of the kernels whose outputs kernel `k` reads,
   all below `k`; the last kernel is the root. It returns an order of all kernels with the lowest peak. It is tried on
   small trees against the exact search, and on one of 200 kernels, where trying all orders would take too long.
2. In words: why is the rule right?
"""

LAYOUT_EXAMPLE = """\
def vertex_order(n, edges):
    return list(range(n))"""

GRAPH_EXAMPLE = """\
def dependence_graph(n, edges):
    return [(f"v{v}", [], 1, True) for v in range(n)]"""

TREE_EXAMPLE = """\
def order_of_tree(operands):
    return list(range(len(operands)))"""

READING = Rubric(
    (
        Criterion(
            "The intervals do not meet",
            1,
            "M is larger than |E|, so dividing the lowest peak by M, and rounding down, gives vs(H) + 1.",
            none="The roles of M and |E| are not named.",
        ),
        Criterion(
            "What follows",
            1,
            "D is made in polynomial time, so an efficient way to the lowest peak would decide vertex separation: the "
            "problem is NP-hard, and exact search is for small graphs only.",
            "Says that it is hard, without the direction of the reduction.",
            "Concludes that vertex separation is hard because orders are.",
        ),
    ),
    "Reading off the number",
)

TREES = Rubric(
    (
        Criterion(
            "Subtrees apart",
            1,
            "Going back and forth between subtrees only keeps more unfinished values alive; finishing one leaves a "
            "single unit.",
            none="It is taken for granted that subtrees are computed one after the other.",
        ),
        Criterion(
            "Which first",
            2,
            "While the i-th operand is computed, i - 1 finished ones are alive: the peak is max(need_i + i - 1), and "
            "an exchange of two neighbours shows that decreasing needs are best.",
            "Gives the rule and the formula without the exchange.",
            "Gives the rule alone.",
        ),
    ),
    "Sethi and Ullman's rule",
)

PARTS = (
    Part(
        "1",
        "Separation",
        PART_1,
        (
            Number("first_separation", "vs of the first graph", 1, example="3", whole=True),
            Number("second_separation", "vs of the second graph", 1, example="3", whole=True),
            Function("vertex_order", "an order of the vertices", 2, example=LAYOUT_EXAMPLE, parameters=("n", "edges"),
                     returns="a list of vertices"),
        ),
        (
            "Go along a path: how many of the vertices passed still have a neighbour ahead?",
            "On a cycle the first vertex has to wait for the last.",
        ),
    ),
    Part(
        "2",
        "The reduction",
        PART_2,
        (
            Function("dependence_graph", "the graph D", 2, example=GRAPH_EXAMPLE, parameters=("n", "edges"),
                     returns="a list of kernels", seconds=5.0),
            Number("first_peak", "the lowest peak for the first graph", 1, example="12", whole=True, unit="units"),
            Number("second_peak", "the lowest peak for the second graph", 1, example="12", whole=True, unit="units"),
            Prose("reading_off", "what the interval says", READING.points, rubric=READING),
        ),
        (
            "Run the vertices in the order of Part 1, and each edge as soon as both its ends are there.",
            "Results that are there already count as well: when is the peak reached for the first time, when last?",
            "An edge may wait until the peak is over, if its ends are alive anyway.",
        ),
    ),
    Part(
        "3",
        "Trees",
        PART_3,
        (
            Function("order_of_tree", "an order for a tree", 3, example=TREE_EXAMPLE, parameters=("operands",),
                     returns="a list of kernels", seconds=5.0),
            Prose("why_trees", "why the rule is right", TREES.points, rubric=TREES),
        ),
        (
            "Give each kernel a number: how much memory its subtree needs at least (Sethi and Ullman 1970).",
            "Two operands that need 3 and 2: which first? Count both ways.",
            "While a kernel runs, all its operands and its own output are alive.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""

    def number(graph: Undirected) -> Judge:
        truth = separation(graph)
        return close_to(
            Fraction(truth),
            slips=(
                Slip("one-too-many", Fraction(truth + 1), "The vertex that is placed next is not counted yet."),
                Slip("all-vertices", Fraction(graph[0]), "Not all of them wait for a neighbour at the same time."),
            ),
        )

    def height(graph: Undirected) -> Judge:
        unit, vs, edges = unit_of(graph), separation(graph), len(graph[1])
        return close_to(
            Fraction(lowest_peak(graph)),
            slips=(
                Slip("separation-alone", Fraction(unit * vs), "The kernel that runs has an output, too."),
                Slip("above-the-interval", Fraction(unit * (vs + 2)), "That is above the interval."),
                Slip("everything-at-once", Fraction(unit * graph[0] + edges), "Buffers are freed on the way."),
            ),
        )

    first, second = variant.graphs
    return {
        "first_separation": number(first),
        "second_separation": number(second),
        "vertex_order": lambda callee: judge_layout(callee, seed),
        "dependence_graph": lambda callee: judge_graph(callee),
        "first_peak": height(first),
        "second_peak": height(second),
        "reading_off": read_by_a_person(READING),
        "order_of_tree": lambda callee: judge_tree(callee, seed),
        "why_trees": read_by_a_person(TREES),
    }
