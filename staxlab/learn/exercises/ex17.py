"""Exercise 17 (Section 7.2, Proposition 7.1; Algorithm 7.1): merging that makes a cycle, and merging that goes wrong.

Which pairs make a cycle is found by making them, how many partitions are left by counting. The student's graphs go
through greedy merging and through the exact search (:mod:`staxlab.schedule.optimum`), and a partition of the student's
is held against the best there is.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Number, Prose
from ..exercise import Part
from ..fusion_graphs import GRAPH_EXAMPLE, GraphField, PairsField, PartitionField, graph_text
from ..judges import Judge, Slip, close_to, read_by_a_person
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex17_answers import HARMLESS, reference, wrong_answers
from .ex17_runs import (
    GAINS,
    Edges,
    costs,
    count_legal,
    drawn_edges,
    given_graph,
    judge_graph,
    judge_pairs,
    judge_partition,
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
TITLE = "Merging kernels greedily"
DIFFICULTY = 2

statement = r"""
Nodes of a dependence graph are put into classes, each of which becomes a kernel. The quotient graph has a vertex for
each class, and an edge where a node of one reads what a node of the other writes. The kernels can be run if it has no
cycle. A kernel reads each buffer from outside once, and writes each of its own that is a result or is read outside
once; these bytes are the cost of a partition.

Greedy merging (Algorithm 7.1) begins with a class for each node. Candidates are two classes that share a buffer; a pair
is *vertical* if one of them writes it, else *horizontal*. The pair with the greatest gain among those that are legal
and save bytes is merged, until there is none. The gain is the triple (vertical or not, bytes saved, minus the distance
of the first nodes in the order of the program), compared from left to right.

A graph is written as a dictionary: `nodes` in an order in which they can run, each `(name, buffers read, buffers
written)`; `bytes` of every buffer; `results`; and `forbidden`, pairs that must not share a class. A partition is a list
of lists of names.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """The graph of Part 1, by how much the one of Part 2 must be worse, and the number of the graph of Part 3."""

    edges: Edges = (("a", "c"), ("c", "b"), ("a", "b"))
    percent: int = 10
    graph: int = 0

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(drawn_edges(rng), rng.choice((10, 20, 30, 40, 50)), rng.randint(1, 10_000))

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("edges of Part 1", ", ".join(f"{one} → {other}" for one, other in self.edges)),
            ("Part 2: worse by", f"{self.percent}% at least"),
            ("graph of Part 3", graph_text(given_graph(self.graph))),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
Your first value is a graph; no pair is forbidden.

1. `cyclic_pairs`: all pairs of nodes for which this holds: if the two are merged, and nothing else, the quotient has a
   cycle. (In the chapter's graph, $a \to c \to b$ and $a \to b$: verify that $a$ and $b$ are one.)
2. `legal_partitions`: how many partitions of the nodes into classes have an acyclic quotient?
"""

PART_2 = r"""
1. **A graph** of at most 12 nodes on which greedy merging ends in a partition that costs more than the best one, by
   your percentage at least.
2. **A graph on which the order does not help**: greedy merging is worse than the best partition, by however little, in
   each of three orders of the gain: (vertical, bytes, nearness), (bytes, vertical, nearness), (nearness, bytes,
   vertical).
"""

PART_3 = r"""
Your last value is a graph with sizes and forbidden pairs.

1. What does greedy merging end in, in bytes? Ties do not arise.
2. What does the best partition cost?
3. The best partition itself.
4. In words: can there be a gain with which greedy merging finds the best partition of every graph, if the gain of a
   pair is computed in polynomial time? And what would a gain have to know to have avoided the mistake of your graph?
"""

LIMITS = Rubric(
    (
        Criterion(
            "No gain is always right",
            2,
            "Greedy merging with such a gain takes polynomial time and would solve an NP-hard problem (Theorem 7.1), "
            "so not unless P = NP.",
            "Cites the theorem without saying what greedy merging would then be.",
            "Argues from examples only.",
        ),
        Criterion(
            "What the gain does not see",
            2,
            "A merge is never taken back and rules out others: the gain sees the bytes of the pair, not those of the "
            "merges that become illegal by it.",
            "Says that it is short-sighted, without saying what it costs.",
            "Repeats that the result is worse.",
        ),
    ),
    "What greedy merging can know",
)

PARTS = (
    Part(
        "1",
        "Cycles",
        PART_1,
        (
            PairsField("cyclic_pairs", "pairs that make a cycle", 2, example='[("a", "c"), ("c", "b")]'),
            Number("legal_partitions", "partitions with an acyclic quotient", 2, example="12", whole=True),
        ),
        (
            "A cycle of kernels goes out of the merged class and back into it. Where can it go through?",
            "Proposition 7.1: look for a path from one to the other with a third node on it.",
            "A class may hold a pair that makes a cycle, if it holds everything between the two. And two classes can "
            "wait for each other although each is harmless alone.",
        ),
    ),
    Part(
        "2",
        "A graph that fools it",
        PART_2,
        (
            GraphField("fooling_graph", "greedy is worse than the best", 3, example=GRAPH_EXAMPLE),
            GraphField("stubborn_graph", "in every order of the gain", 3, example=GRAPH_EXAMPLE),
        ),
        (
            "The best pair has to be the wrong one: after it, forbidden pairs stand in the way of something better.",
            "Vertical pairs come first, whatever they save. What if a horizontal pair would save far more?",
            "For all orders: only vertical pairs, all at the same distance. Let the best pair stand between two others "
            "that together save more.",
        ),
    ),
    Part(
        "3",
        "The best partition",
        PART_3,
        (
            Number("greedy_bytes", "what greedy merging ends in", 1, example="12", whole=True, unit="bytes"),
            Number("best_bytes", "what the best partition costs", 2, example="12", whole=True, unit="bytes"),
            PartitionField("best_partition", "the best partition", 2, example='[["a", "b"], ["c"]]'),
            Prose("no_gain", "what a gain cannot know", LIMITS.points, rubric=LIMITS),
        ),
        (
            "List the candidates with their bytes: what both read from outside saves its size once; what one writes "
            "and only the other reads saves it twice.",
            "Take the first merge of the greedy result back, and forbid it: what is the best now?",
            "`staxlab.schedule.optimum.optimum` searches, and `brute_force` tries everything.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    legal, without, total = count_legal(variant.edges)
    run, least, apart = costs(variant.graph)
    problem = given_graph(variant.graph)
    partitions = (
        Slip("all-partitions", Fraction(total), "So many partitions there are. Of some the kernels cannot be run."),
        Slip("pairs-only", Fraction(without),
             "So many have no class with such a pair. A class may hold one, with all that is between the two."),
    )  # fmt: skip
    single = Slip("nothing-merged", Fraction(apart), "That is one kernel for each node.")
    best = Slip("the-best", Fraction(least), "That is the best partition; greedy merging misses it.")
    return {
        "cyclic_pairs": lambda answer: judge_pairs(variant.edges, answer),
        "legal_partitions": close_to(Fraction(legal), slips=partitions),
        "fooling_graph": lambda answer: judge_graph(answer, variant.percent, tuple(GAINS)[:1]),
        "stubborn_graph": lambda answer: judge_graph(answer, 0, tuple(GAINS)),
        "greedy_bytes": close_to(Fraction(run), slips=(best, single)),
        "best_bytes": close_to(
            Fraction(least), slips=(Slip("greedy", Fraction(run), "That is what greedy merging ends in."), single)
        ),
        "best_partition": lambda answer: judge_partition(problem, answer),
        "no_gain": read_by_a_person(LIMITS),
    }
