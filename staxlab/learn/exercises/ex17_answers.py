"""Answers to Exercise 17: the reference, and the mistakes that its checker must recognise by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex17 import Variant

#: A vertical pair that saves next to nothing (a, b) stands in the way of a horizontal one that saves all of x.
FOOLING = {
    "nodes": [("a", ["x"], ["u"]), ("b", ["u"], ["v"]), ("c", ["x"], ["w"])],
    "bytes": {"x": 100, "u": 1, "v": 1, "w": 1},
    "results": ["v", "w"],
    "forbidden": [("b", "c")],
}

#: A chain whose middle pair saves most, and less than the two pairs beside it.
STUBBORN = {
    "nodes": [("a", ["x"], ["u"]), ("b", ["u"], ["v"]), ("c", ["v"], ["w"]), ("d", ["w"], ["z"])],
    "bytes": {"x": 1, "u": 4, "v": 5, "w": 4, "z": 1},
    "results": ["z"],
    "forbidden": [("a", "c"), ("b", "d"), ("a", "d")],
}

NO_GAIN = """There is none unless P = NP. With a gain that takes polynomial time, greedy merging takes polynomial time:
there are fewer merges than nodes, and before each a number of pairs that is at most quadratic. If it always ended in
the best partition it would solve the fusion problem with arbitrary forbidden pairs, which is NP-hard by Theorem 7.1.
What goes wrong is always the same. A merge is never taken back, and it rules out others: a class inherits all forbidden
pairs of both its halves, and it may lie on both ends of a path. The gain counts the bytes of the pair and does not see
the bytes of the pairs that the merge makes illegal. To avoid the mistake here it would have to weigh what a merge saves
against what it forbids, which for one step is cheap and for all that follows is the problem itself. That the greedy
result is nearly always the best on real programs is because their forbidden pairs are not arbitrary."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from ...schedule.optimum import optimum
    from .ex17_runs import costs, count_legal, cyclic_pairs, given_graph

    run, least, _ = costs(variant.graph)
    return {
        "cyclic_pairs": sorted(tuple(sorted(pair)) for pair in cyclic_pairs(variant.edges)),
        "legal_partitions": count_legal(variant.edges)[0],
        "fooling_graph": FOOLING,
        "stubborn_graph": STUBBORN,
        "greedy_bytes": run,
        "best_bytes": least,
        "best_partition": [list(part) for part in optimum(given_graph(variant.graph)).partition],
        "no_gain": NO_GAIN,
    }


HARMLESS: dict[str, tuple[str, ...]] = {}

_FREE_CHAIN = {**STUBBORN, "forbidden": []}
_ALL_FORBIDDEN = {**FOOLING, "forbidden": [("a", "b"), ("a", "c"), ("b", "c")]}
_SLIGHTLY = {**STUBBORN, "bytes": {"x": 400, "u": 4, "v": 5, "w": 4, "z": 400}}


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from ...schedule.greedy import greedy
    from .ex17_runs import connected, costs, count_legal, cyclic_pairs, given_graph, joined

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    def listed(pairs: Any) -> list[tuple[str, ...]]:
        return sorted(tuple(sorted(pair)) for pair in pairs)

    edges = variant.edges
    legal, without, total = count_legal(edges)
    run, least, apart = costs(variant.graph)
    problem = given_graph(variant.graph)
    first, second = min(problem.forbidden)
    forbidden = [[problem.names[first], problem.names[second]]]
    forbidden += [[name] for name in problem.names if name not in forbidden[0]]
    slips = [
        slip("edges", cyclic_pairs=listed(joined(edges))),
        slip("no-node", cyclic_pairs=[("a", "q")]),
        slip("all-partitions", legal_partitions=total),
        slip("pairs-only", legal_partitions=without),
        slip("no-gap", fooling_graph=_FREE_CHAIN),
        slip("nothing-to-merge", fooling_graph=_ALL_FORBIDDEN),
        slip("gap-too-small", fooling_graph=_SLIGHTLY),
        slip("one-order-only", stubborn_graph=FOOLING),
        slip("no-gap", stubborn_graph=_FREE_CHAIN),
        slip("the-best", greedy_bytes=least),
        slip("nothing-merged", greedy_bytes=apart),
        slip("greedy", best_bytes=run),
        slip("nothing-merged", best_bytes=apart),
        slip("greedy-partition", best_partition=[list(part) for part in greedy(problem).partition]),
        slip("not-the-best", best_partition=[[name] for name in problem.names]),
        slip("forbidden-pair", best_partition=forbidden),
        slip("no-partition", best_partition=[[problem.names[0]]]),
    ]
    if connected(edges) != joined(edges):
        slips.append(slip("any-path", cyclic_pairs=listed(connected(edges))))
    if len(cyclic_pairs(edges)) > 1:
        slips.append(slip("not-all-pairs", cyclic_pairs=listed(cyclic_pairs(edges))[1:]))
    return tuple(slips)
