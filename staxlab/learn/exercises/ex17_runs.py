"""What Exercise 17 runs: the student's graph through Algorithm 7.1 and through the exact search."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from ...errors import ScheduleError
from ...schedule.fusion_problem import FusionProblem, bits, run_order
from ...schedule.greedy import Candidate, GreedyRun, gain, greedy
from ...schedule.optimum import brute_force, optimum, set_partitions
from ..feedback import Verdict, nearly, right, wrong
from ..fusion_graphs import graph_of, partition_text, random_graph

#: Orders of the same three numbers.
GAINS: dict[str, Callable[[Candidate], tuple]] = {
    "kind, bytes, nearness": gain,
    "bytes, kind, nearness": lambda pair: (pair.bytes_saved, pair.kind == "vertical", -pair.distance),
    "nearness, bytes, kind": lambda pair: (-pair.distance, pair.bytes_saved, pair.kind == "vertical"),
}

Edges = tuple[tuple[str, str], ...]
Pairs = frozenset[frozenset[str]]


@lru_cache(maxsize=64)
def graph_of_edges(edges: Edges) -> FusionProblem:
    """A graph with these edges, a buffer for each node."""
    names = list(dict.fromkeys(name for edge in edges for name in edge))
    needs = {name: [a for a, b in edges if b == name] for name in names}
    order: list[str] = []
    while len(order) < len(names):
        order.append(next(n for n in names if n not in order and all(a in order for a in needs[n])))
    nodes = [(name, [f"{a}1" for a in needs[name]], [f"{name}1"]) for name in order]
    return FusionProblem.build(nodes, {f"{name}1": 1 for name in order}, results=[f"{order[-1]}1"])


@lru_cache(maxsize=64)
def cyclic_pairs(edges: Edges) -> Pairs:
    """The pairs whose merging, of all other nodes none, makes a cycle: found by looking for it."""
    problem = graph_of_edges(edges)
    found = set()
    for one, other in itertools.combinations(range(problem.size), 2):
        masks = [1 << one | 1 << other, *(1 << k for k in range(problem.size) if k not in (one, other))]
        if run_order(masks, problem.before) is None:
            found.add(frozenset((problem.names[one], problem.names[other])))
    return frozenset(found)


@lru_cache(maxsize=64)
def count_legal(edges: Edges) -> tuple[int, int, int]:
    """Partitions whose quotient is acyclic; those without a cyclic pair in a class; and all."""
    problem, pairs = graph_of_edges(edges), cyclic_pairs(edges)
    legal = without = total = 0
    for partition in set_partitions(problem.names):
        total += 1
        legal += problem.violation(partition) is None
        classes = [set(part) for part in partition]
        without += not any(pair <= part for pair in pairs for part in classes)
    return legal, without, total


def joined(edges: Edges) -> Pairs:
    return frozenset(map(frozenset, edges))


def connected(edges: Edges) -> Pairs:
    """The pairs with a path from one to the other, of any length."""
    problem = graph_of_edges(edges)
    return frozenset(
        frozenset((problem.names[before], name))
        for name, above in zip(problem.names, problem.ancestors, strict=True)
        for before in bits(above)
    )


def drawn_edges(rng: random.Random) -> Edges:
    """A graph of five nodes on which the three notions of a pair differ."""
    while True:
        names = "abcde"
        edges = tuple((p, q) for p, q in itertools.combinations(names, 2) if rng.random() < 0.5)
        if {name for edge in edges for name in edge} != set(names):
            continue
        cyclic = cyclic_pairs(edges)
        legal, without, total = count_legal(edges)
        if (
            len(cyclic) >= 2
            and cyclic != joined(edges)
            and cyclic != connected(edges)
            and legal not in (without, total)
        ):
            return edges


def judge_pairs(edges: Edges, answer: Pairs) -> Verdict:
    """The pairs, and what was mistaken for them."""
    truth = cyclic_pairs(edges)
    if answer == truth:
        return right("Exactly these have a path from one to the other through a third.", ("pairs", len(truth)))
    names = set(graph_of_edges(edges).names)
    strange = sorted(name for pair in answer for name in pair if name not in names)
    if strange:
        return wrong("There is no such node.", ("node", strange[0]), mistake="no-node")
    if answer == joined(edges):
        message = "An edge is neither enough nor needed. Look for a path through a third node."
        return wrong(message, mistake="edges")
    if answer == connected(edges):
        message = "A path is not enough: where an edge is the only path, producer and consumer may be merged."
        return wrong(message, mistake="any-path")
    extra = answer - truth
    if extra:
        pair = " and ".join(sorted(min(extra, key=sorted)))
        return wrong("Of one of your pairs the kernels can be run in order.", ("pair", pair), mistake="no-cycle")
    facts = (("you have", f"{len(answer)} pairs"), ("there are", "more"))
    return nearly("All of yours make a cycle. They are not all.", *facts, mistake="not-all-pairs")


# --- Greedy against the optimum ---------------------------------------------------------------------------------------


def percent_above(run: GreedyRun, least: int) -> float:
    return 100 * (run.nbytes - least) / least if least else 0.0


def _merges(run: GreedyRun) -> str:
    return "; ".join(f"{'+'.join(p.first)} with {'+'.join(p.second)} (saves {p.bytes_saved})" for p in run.merges)


def judge_graph(problem: FusionProblem, percent: int, gains: tuple[str, ...]) -> Verdict:
    """Greedy merging by each of the gains must end at least so many percent above the optimum."""
    best = optimum(problem)
    if not best.is_proved:
        message = "The optimum of this graph was not found in time. Make it smaller."
        return wrong(message, ("nodes", problem.size), mistake="too-hard")
    weakest: tuple[float, str, GreedyRun] | None = None
    for words in gains:
        run = greedy(problem, GAINS[words])
        above = percent_above(run, best.nbytes)
        if weakest is None or above < weakest[0]:
            weakest = above, words, run
    assert weakest is not None
    above, words, run = weakest
    facts = (
        ("greedy", f"{run.nbytes} bytes: {partition_text(run.partition)}"),
        ("its merges", _merges(run) or "none"),
    )
    if len(gains) > 1:
        facts = (("by", words), *facts)
    if above <= 0:
        if not run.merges:
            message = "No merge is legal here with a gain, so nothing can be merged wrongly."
            return wrong(message, *facts, mistake="nothing-to-merge")
        if len(gains) > 1 and any(greedy(problem, GAINS[one]).nbytes > best.nbytes for one in gains):
            message = "One of the three orders is fooled by your graph, and another one is not."
            return nearly(message, *facts, mistake="one-order-only")
        return wrong("The greedy result is the optimum on this graph.", *facts, mistake="no-gap")
    facts = (*facts, ("optimum", f"{best.nbytes} bytes: {partition_text(best.partition)}"), ("above", f"{above:.1f}%"))
    if above < percent:
        return nearly("It is worse than the optimum, by too little.", *facts, mistake="gap-too-small")
    return right("The greedy result costs more than the best partition.", *facts)


def has_ties(run: GreedyRun) -> bool:
    """Whether two pairs had the greatest gain at once."""
    for merged, pairs in zip(run.merges, run.weighed, strict=False):
        best = [gain(pair) for pair in pairs if not pair.rule and pair.bytes_saved > 0]
        if best.count(gain(merged)) > 1:
            return True
    return False


TEMPTING = {
    "nodes": [
        ("a", ["x"], ["a1"]), ("b", ["a1"], ["b1"]), ("c", ["x"], ["c1"]), ("d", ["c1", "y"], ["d1"]),
        ("e", ["b1", "y"], ["e1"]),
    ],
    "bytes": {"x": 8, "a1": 1, "b1": 2, "c1": 3, "d1": 1, "y": 7, "e1": 1},
    "results": ["d1", "e1"],
    "forbidden": [("b", "c"), ("a", "d"), ("c", "e")],
}  # fmt: skip


@lru_cache(maxsize=64)
def given_graph(number: int) -> FusionProblem:
    """The graph of Part 3: the chapter's variant for 0, else one drawn so that greedy merging misses the optimum."""
    if number == 0:
        return graph_of(TEMPTING)
    rng = random.Random(f"{number}/fusion")
    while True:
        problem = random_graph(rng, 6)
        least, _ = brute_force(problem)
        run = greedy(problem)
        apart = problem.cost([[name] for name in problem.names])
        if least < run.nbytes < apart and not has_ties(run):
            return problem


@lru_cache(maxsize=64)
def costs(number: int) -> tuple[int, int, int]:
    """Bytes of the greedy result, of the optimum, and of one kernel for each node."""
    problem = given_graph(number)
    found = optimum(problem)
    assert found.is_proved
    return greedy(problem).nbytes, found.nbytes, problem.cost([[name] for name in problem.names])


def judge_partition(problem: FusionProblem, partition: Any) -> Verdict:
    """A partition must be legal and cost what the optimum costs."""
    least = optimum(problem).nbytes
    try:
        violated = problem.violation(partition)
    except ScheduleError as error:
        return wrong("That is no partition of the nodes.", ("reason", error.what), mistake="no-partition")
    if violated is not None:
        kind = "cycle" if "wait for each other" in violated else "forbidden-pair"
        return wrong("Your partition is not legal.", ("reason", violated), mistake=kind)
    cost = problem.cost(partition)
    if cost == least:
        return right("No partition moves fewer bytes.", ("yours moves", f"{cost} bytes"))
    run = greedy(problem)
    facts = (("yours moves", f"{cost} bytes"), ("possible", "less than that"))
    if {frozenset(part) for part in partition} == {frozenset(part) for part in run.partition}:
        return wrong("That is what greedy merging ends in.", *facts, mistake="greedy-partition")
    return wrong("It is legal, and there is a better one.", *facts, mistake="not-the-best")
