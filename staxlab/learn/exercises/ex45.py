"""Exercise 45 (Theorem 7.1, Definition 7.2, Proposition 7.3): how hard fusion is, with the forbidden pairs there are.

A research problem, in three parts: without forbidden pairs it is easy; with those that come from iteration spaces and
distances it is hard, which the student shows by turning words into graphs; and then a method of the student's own is
held against brute force. What is proved a person reads. What is built is run, on random instances.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Choice, Function, Number, Prose
from ..exercise import Part
from ..fusion_graphs import graph_text
from ..judges import Judge, Slip, close_to, one_of, read_by_a_person
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex45_answers import HARMLESS, reference, wrong_answers
from .ex45_runs import (
    EASY,
    HARD,
    free_costs,
    free_graph,
    judge_free,
    judge_instance,
    judge_method,
    shortest_supersequence,
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
TITLE = "How hard is fusion?"
DIFFICULTY = 3

statement = r"""
Fusion with arbitrary forbidden pairs is NP-hard (Theorem 7.1). The forbidden pairs of a compiler are not arbitrary: two
nodes are kept apart because their iteration spaces differ (Definition 7.2), or because one reads what the other writes
at a distance other than zero (Proposition 7.3). How hard is what is left?

The cost of a partition is the traffic of Definition 7.3: every class reads each buffer from outside once, and writes
each of its own that is a result or that another class reads once. A partition is legal if no class holds a forbidden
pair and the kernels can be run one after the other.

A graph is a dictionary: `nodes` in an order in which they can run, each `(name, buffers read, buffers written)`;
`bytes` of every buffer, 0 or more; `results`, the buffers that are wanted; and `forbidden`, a list of pairs. A
partition is a list of lists of names.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """The number of the graph of Part 1, and the words of Part 2."""

    graph: int = 0
    words: tuple[str, ...] = ("abba", "baab")

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        while True:
            words = tuple("".join(rng.choice("ab") for _ in range(rng.randint(3, 6))) for _ in range(2))
            if max(map(len, words)) + 1 < shortest_supersequence(words) < sum(map(len, words)):
                return cls(rng.randint(1, 10_000), words)

    @property
    def length(self) -> int:
        return shortest_supersequence(self.words)

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (("graph of Part 1", graph_text(free_graph(self.graph))), ("words of Part 2", " and ".join(self.words)))


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
No pair is forbidden: all spaces are compatible, and no distance is illegal.

1. What does the cheapest partition of your graph move, in bytes?
2. `cheapest(graph)` returns a partition of least cost, for any such graph, in polynomial time. It is compared with
   brute force on small graphs, and run on one of 200 nodes.
3. In words: the proof that it is legal and of least cost.
"""

PART_2 = r"""
Now the restricted class: pairs are forbidden if the spaces of the two nodes differ, or if the second reads what the
first writes at a distance other than zero. Nothing else is.

A word is a *supersequence* of others if each of them is left when letters are struck out of it. To find the shortest
common supersequence of words over two letters is NP-hard (Räihä and Ukkonen 1981).

1. How long is the shortest common supersequence of your two words?
2. `fusion_instance(words)` turns a list of words over `a` and `b` into a graph of the restricted class, **whose least
   traffic, in bytes, is the length of their shortest common supersequence**. Besides `nodes`, `bytes` and `results` it
   has `spaces`, the iteration space of every node by name (two spaces, no more), and `distances`, the pairs (producer,
   consumer) whose dependence has a distance other than zero. The graph must not be larger than the words by more than
   a constant factor. It is solved exactly, for many lists of words.
3. So what is minimum-cost fusion, on this class?
4. In words: the proof that your construction is right, both ways; and what becomes of it without `distances`.
"""

PART_3 = r"""
`typed_fusion(graph)` returns a legal partition of a graph of the restricted class that moves few bytes (its forbidden
pairs are listed in `graph["forbidden"]`). Whatever method you like: it is run on 24 random graphs of 5 to 10 nodes, and
has four seconds for each. The points are for being legal on all of them and, in all, no worse than greedy merging with
the gain of Section 7.3; how near to the best it comes is said as data. `staxlab.schedule` has the compiler's own
algorithms: `greedy.greedy`, with a gain of your choice, and `optimum.optimum`.
"""

CHEAPEST_EXAMPLE = """\
def cheapest(graph):
    return [[name] for name, reads, writes in graph["nodes"]]"""

INSTANCE_EXAMPLE = """\
def fusion_instance(words):
    return {
        "nodes": [("first", ["x"], ["y"]), ("second", ["y"], ["z"])],
        "bytes": {"x": 1, "y": 0, "z": 0},
        "results": [],
        "spaces": {"first": "a", "second": "b"},
        "distances": [("first", "second")],
    }"""

FUSION_EXAMPLE = """\
def typed_fusion(graph):
    return [[name] for name, reads, writes in graph["nodes"]]"""

EASY_CASE = Rubric(
    (
        Criterion(
            "Legal",
            1,
            "No pair is forbidden, and a quotient of one vertex has no cycle.",
            none="Forgets that the quotient has to be acyclic.",
        ),
        Criterion(
            "Cheapest",
            2,
            "It reads every input and writes every result once; every partition has to (Proposition 1.1).",
            "Says that it is least, without a lower bound for all partitions.",
            "Shows examples.",
        ),
    ),
    "Without forbidden pairs",
)

HARD_CASE = Rubric(
    (
        Criterion(
            "From partitions to words",
            2,
            "An order in which the kernels can run, read by their spaces, holds every word: the nodes of a word lie in "
            "different kernels, in their order. So the least traffic is no less than the shortest length.",
            "Has the word, without saying why each given word is in it.",
            "Only describes the graph.",
        ),
        Criterion(
            "From words to partitions",
            2,
            "A supersequence gives every node the place of its letter; the classes are legal and the order of the "
            "places shows that there is no cycle. So the least traffic is no more.",
            "Has the classes, without the argument that there is no cycle.",
            "Does not go this way.",
        ),
        Criterion(
            "Polynomial and in the class",
            1,
            "The graph has as many nodes as there are letters, and its pairs are forbidden by two spaces and by "
            "distances alone.",
            none="Does not look at size or class.",
        ),
        Criterion(
            "Without distances",
            1,
            "Equal neighbours then share a kernel, so runs of a letter count once and two letters alternate: this "
            "construction becomes easy. Says what that does and does not show about the class without distances.",
            none="Does not say.",
        ),
    ),
    "Two spaces and distances",
)

PARTS = (
    Part(
        "1",
        "Without forbidden pairs",
        PART_1,
        (
            Number("least_bytes", "bytes of the cheapest partition", 1, example="12", whole=True, unit="bytes"),
            Function("cheapest", "a cheapest partition", 2, example=CHEAPEST_EXAMPLE, parameters=("graph",),
                     returns="a list of lists of names", seconds=4.0),
            Prose("why_polynomial", "why it is legal and cheapest", EASY_CASE.points, rubric=EASY_CASE),
        ),
        (
            "Which bytes does every partition move, whatever the classes?",
            "Is there anything that speaks against the largest class there can be?",
        ),
    ),
    Part(
        "2",
        "Spaces and distances",
        PART_2,
        (
            Number("supersequence_length", "the shortest supersequence", 1, example="12", whole=True, unit="letters"),
            Function("fusion_instance", "a graph for words", 4, example=INSTANCE_EXAMPLE, parameters=("words",),
                     returns="a graph with spaces and distances", seconds=4.0),
            Choice("restricted_class", "fusion on this class", 1, options=(HARD, EASY), example=f'"{EASY}"'),
            Prose("why_hard", "why the construction is right", HARD_CASE.points, rubric=HARD_CASE),
        ),
        (
            "A kernel is a letter of the supersequence; its space says which. What has to share a kernel, then, and "
            "what must not?",
            "A node for each letter of each word; the nodes of a word form a chain, since letters come in order.",
            "Traffic has to count kernels: let all nodes of a space read one and the same byte, and let the links of "
            "the chains have none. Two equal letters in a row must not share a kernel: that is what a distance is for.",
        ),
    ),
    Part(
        "3",
        "A method of your own",
        PART_3,
        (
            Function("typed_fusion", "a partition that moves little", 3, example=FUSION_EXAMPLE, parameters=("graph",),
                     returns="a list of lists of names", seconds=4.0),
        ),
        (
            "Merge pairs as long as something is saved; test that the kernels can still be run before you merge.",
            "Run several orders and keep the best result; or take merges back at random and go on from there.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    least, everything, by_reader, apart = free_costs(free_graph(variant.graph))
    bytes_slips = (
        Slip("every-buffer", Fraction(everything), "What is written and read inside one class is not moved."),
        Slip("once-for-each-reader", Fraction(by_reader), "Readers in one class read an input once."),
        Slip("nothing-merged", Fraction(apart), "That is one kernel for each node."),
    )
    word_slips = (
        Slip("concatenation", Fraction(sum(map(len, variant.words))),
             "So long are the words one after the other; letters can serve both."),
        Slip("longest-word", Fraction(max(map(len, variant.words))), "The other word is not in the longer one."),
    )  # fmt: skip
    return {
        "least_bytes": close_to(Fraction(least), slips=bytes_slips),
        "cheapest": lambda callee: judge_free(callee, seed),
        "why_polynomial": read_by_a_person(EASY_CASE),
        "supersequence_length": close_to(Fraction(variant.length), slips=word_slips),
        "fusion_instance": lambda callee: judge_instance(callee, seed),
        "restricted_class": one_of(
            HARD, {EASY: "Then your construction would find shortest supersequences in polynomial time."}
        ),
        "why_hard": read_by_a_person(HARD_CASE),
        "typed_fusion": lambda callee: judge_method(callee, seed),
    }
