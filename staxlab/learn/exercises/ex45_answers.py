"""Answers to Exercise 45: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex45 import Variant


def cheapest(graph):
    return [[name for name, reads, writes in graph["nodes"]]]


def fusion_instance(words):
    nodes, spaces, distances = [], {}, []
    sizes = {"a": 1, "b": 1}
    for word in words:
        before = None
        for letter in word:
            name = str(len(nodes))
            if before is None:
                nodes.append((name, [letter], [name]))
            else:
                nodes.append((name, [letter, before], [name]))
                distances.append((before, name))
            spaces[name] = letter
            sizes[name] = 0
            before = name
    return {"nodes": nodes, "bytes": sizes, "results": [], "spaces": spaces, "distances": distances}


def typed_fusion(graph):
    from staxlab.learn.fusion_graphs import graph_of
    from staxlab.schedule.greedy import greedy

    problem = graph_of(graph)
    runs = [greedy(problem), greedy(problem, score=lambda pair: (pair.bytes_saved, -pair.distance))]
    return min(runs, key=lambda run: run.nbytes).partition


PROOF = """Put all nodes into one class. There is no forbidden pair in it, since all spaces are compatible and no
dependence has an illegal distance, and a quotient graph of one vertex has no cycle. This class reads every input that
some node reads once and writes every result once, and nothing else: what a node writes for others is read inside. No
partition does with less, because each input has to be read by some class and each result has to be written
(Proposition 1.1). So the partition is of least cost, and writing it down takes linear time. Nothing is left to search,
because a merge can only be wrong by making another one illegal, and none is."""

HARDNESS = """Two iteration spaces are enough. Given words over a and b, make a node for each letter of each word, whose
space is the letter. The nodes of a word are a chain: each reads what the one before it wrote, a buffer of no bytes, and
this dependence has a distance other than zero, as it has when the consumer needs a reduction of the producer's whole
result. All nodes of a space read one input of that space, of one byte. The forbidden pairs are those of different
spaces and of the distances, as in the restricted class. A class has nodes of one letter, and no two of one word: two
neighbours are forbidden, and of two others what lies between them on the chain would have to be in the class. The links
cost nothing, so the cost is the number of classes. A legal partition can be run in some order; the letters of its
classes in this order are a word that holds each of the given words as a subsequence, of as many letters as there are
classes. Conversely a common supersequence makes a partition: each node goes to the place at which its letter is
matched, and the order of the places is an order of the kernels, so there is no cycle. Hence the least cost is the
length of the shortest common supersequence, which is NP-hard for words over two letters (Räihä and Ukkonen 1981); the
graph has as many nodes as there are letters. Buffers of no bytes can be done without: give the inputs so many bytes
that all links together do not count. One space would do as well, since a kernel that reads both inputs costs what two
kernels do: distances alone make fusion hard. Without distances, equal neighbours share a kernel: each word is then one
in which a and b alternate, and the longest of them, with a letter before it perhaps, holds all others. So this
construction says nothing about two spaces without distances; with more spaces, words over more letters of which none
comes twice in a row do the work of the distances."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex45_runs import HARD, free_costs, free_graph

    return {
        "least_bytes": free_costs(free_graph(variant.graph))[0],
        "cheapest": cheapest,
        "why_polynomial": PROOF,
        "supersequence_length": variant.length,
        "fusion_instance": fusion_instance,
        "restricted_class": HARD,
        "why_hard": HARDNESS,
        "typed_fusion": typed_fusion,
    }


_RETURNED = "return {'nodes': nodes, 'bytes': sizes, 'results': [], 'spaces': %s, 'distances': distances}"

# One space for all nodes does as well: a kernel that reads both inputs costs what two do. And names are free.
HARMLESS = {
    "fusion_instance": (
        *(
            f"spaces[name] = letter -> spaces[name] = {one}"
            for one in ("distances", "nodes", "sizes", "spaces", "words")
        ),
        *(f"name = str(len(nodes)) -> name = str(len({n}))" for n in ("sizes", "spaces")),
        f"{_RETURNED % 'spaces'} -> {_RETURNED % 'sizes'}",
    ),
}


def _one_by_one(graph):
    return [[name] for name, reads, writes in graph["nodes"]]


def _half(graph):
    names = [name for name, reads, writes in graph["nodes"]]
    return [names[: len(names) // 2]]


def _no_distances(words):
    instance = fusion_instance(words)
    return {**instance, "distances": []}


def _no_inputs(words):
    instance = fusion_instance(words)
    nodes = [(name, [f"own{name}", *reads[1:]], writes) for name, reads, writes in instance["nodes"]]
    sizes = {**instance["bytes"], **{f"own{name}": 1 for name, _, _ in nodes}}
    return {**instance, "nodes": nodes, "bytes": sizes}


def _links_of_a_byte(words):
    instance = fusion_instance(words)
    sizes = dict.fromkeys(instance["bytes"], 1)
    return {**instance, "bytes": sizes}


def _pairs_forbidden(words):
    return {**fusion_instance(words), "forbidden": []}


def _many_spaces(words):
    instance = fusion_instance(words)
    return {**instance, "spaces": {name: name for name in instance["spaces"]}}


def _all_in_one(graph):
    return [[name for name, reads, writes in graph["nodes"]]]


def _first_pair_only(graph):
    from staxlab.learn.fusion_graphs import graph_of
    from staxlab.schedule.greedy import greedy

    merges = greedy(graph_of(graph)).merges
    if not merges:
        return [[name] for name, reads, writes in graph["nodes"]]
    first = [*merges[0].first, *merges[0].second]
    return [first, *([name] for name, reads, writes in graph["nodes"] if name not in first)]


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex45_runs import EASY, free_costs, free_graph

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    _, everything, by_reader, apart = free_costs(free_graph(variant.graph))
    return (
        slip("every-buffer", least_bytes=everything),
        slip("once-for-each-reader", least_bytes=by_reader),
        slip("nothing-merged", least_bytes=apart),
        slip("not-the-best", cheapest=_one_by_one),
        slip("wrong-form", cheapest=_half),
        slip("concatenation", supersequence_length=sum(map(len, variant.words))),
        slip("longest-word", supersequence_length=max(map(len, variant.words))),
        slip("repeated-letters", fusion_instance=_no_distances),
        slip("nothing-shared", fusion_instance=_no_inputs),
        slip("links-counted", fusion_instance=_links_of_a_byte),
        slip("wrong-form", fusion_instance=_pairs_forbidden),
        slip("more-spaces", fusion_instance=_many_spaces),
        slip(f"chose-{EASY}", restricted_class=EASY),
        slip("not-legal", typed_fusion=_all_in_one),
        slip("worse-than-greedy", typed_fusion=_first_pair_only),
        slip("nothing-merged", typed_fusion=_one_by_one),
    )
