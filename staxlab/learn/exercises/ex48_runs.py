"""What Exercise 48 runs: vertex separation by brute force, the reduction, and orders of trees."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from ...schedule.lifetimes import Step
from ...schedule.orders import OrderProblem, exact, tree_order
from ..answers import Callee
from ..feedback import Verdict, right, wrong
from ..judges import call_failed, result_text, unexpected_result
from ..variants import generator

#: The number of vertices, and the edges.
Undirected = tuple[int, tuple[tuple[int, int], ...]]

STATES = 200_000
MOST_KERNELS = 60


def path(n: int) -> Undirected:
    return n, tuple((k, k + 1) for k in range(n - 1))


def cycle(n: int) -> Undirected:
    return n, (*path(n)[1], (0, n - 1))


def star(n: int) -> Undirected:
    return n, tuple((0, k) for k in range(1, n))


def wheel(n: int) -> Undirected:
    return n, (*cycle(n - 1)[1], *((k, n - 1) for k in range(n - 1)))


def largest_separation(order: Sequence[int], graph: Undirected) -> int:
    """The most vertices, after any number of them, that have a neighbour among the rest."""
    count, edges = graph
    place = {vertex: k for k, vertex in enumerate(order)}
    last = [max([place[v]] + [place[b if a == v else a] for a, b in edges if v in (a, b)]) for v in range(count)]
    return max((sum(place[v] < i <= last[v] for v in range(count)) for i in range(1, count)), default=0)


@lru_cache(maxsize=256)
def separation(graph: Undirected) -> int:
    """The vertex separation number, by trying every order."""
    return min(largest_separation(order, graph) for order in itertools.permutations(range(graph[0])))


def unit_of(graph: Undirected) -> int:
    """M."""
    return len(graph[1]) + 1


def reduction(graph: Undirected) -> OrderProblem:
    """The dependence graph D of Proposition 7.4."""
    count, edges = graph
    vertices = [Step(f"v{k}", (), (f"v{k}",)) for k in range(count)]
    joined = [Step(f"e{a}-{b}", (f"v{a}", f"v{b}"), (f"e{a}-{b}",)) for a, b in edges]
    sizes = {step.name: unit_of(graph) for step in vertices} | {step.name: 1 for step in joined}
    return OrderProblem((*vertices, *joined), sizes, frozenset(step.name for step in joined))


@lru_cache(maxsize=256)
def lowest_peak(graph: Undirected) -> int:
    """The lowest peak of D."""
    best = exact(reduction(graph), STATES)
    assert best is not None
    return best.peak


#: Graphs of at most six vertices; one without edges, one in two parts.
GRAPHS: tuple[Undirected, ...] = (
    path(2), (1, ()), path(4), cycle(4), star(5), wheel(5), (4, tuple(itertools.combinations(range(4), 2))),
    (6, ((0, 3), (3, 1), (1, 4), (4, 2), (2, 5))), (5, ((0, 4), (4, 1))), (6, ((0, 1), (1, 2), (0, 2), (3, 4))),
)  # fmt: skip


def _random_graph(rng: random.Random) -> Undirected:
    count = rng.randint(3, 6)
    pairs = list(itertools.combinations(range(count), 2))
    return count, tuple(pair for pair in pairs if rng.random() < 0.45)


def judge_layout(callee: Callee, seed: int | None) -> Verdict:
    """The student's order of vertices against the best of all."""
    rng = generator(seed, "graphs")
    graphs = (*GRAPHS, *(_random_graph(rng) for _ in range(8)))
    for graph in graphs:
        count, edges = graph
        given = (count, [tuple(edge) for edge in edges])
        outcome = callee.call(*given)
        if outcome.failed:
            return call_failed(callee, given, outcome)
        order = outcome.value
        if (
            not isinstance(order, list | tuple)
            or not all(isinstance(v, int) for v in order)
            or (sorted(order) != list(range(count)))
        ):
            return unexpected_result(callee, given, f"{result_text(order)} is no order of {count} vertices")
        yours, best = largest_separation(order, graph), separation(graph)
        if yours > best:
            facts = (("edges", list(edges)), ("your order", list(order)), ("its largest separation", yours))
            return wrong("Another order has less.", *facts, ("vs", best), mistake="not-the-least")
    return right("No order has a smaller largest separation.", ("tried", f"{len(graphs)} graphs"))


def _problem(kernels: Any) -> OrderProblem | str:
    """Kernels ``(name, reads, size, kept)`` as a problem, or what is wrong with them."""
    if not isinstance(kernels, list | tuple) or len(kernels) > MOST_KERNELS:
        return f"that is no list of at most {MOST_KERNELS} kernels"
    steps, sizes, kept = [], {}, set()
    for kernel in kernels:
        if not isinstance(kernel, list | tuple) or len(kernel) != 4:
            return f"{result_text(kernel)} is not (name, reads, size, kept)"
        name, reads, size, stays = kernel
        if not isinstance(name, str) or name in sizes:
            return f"{result_text(name)} is no name, or is there twice"
        if not isinstance(reads, list | tuple) or any(not isinstance(r, str) or r not in sizes for r in reads):
            return f"{name} reads something that no earlier kernel writes"
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            return f"the size of {name} is no whole number"
        steps.append(Step(name, tuple(reads), (name,)))
        sizes[name] = size
        if stays:
            kept.add(name)
    return OrderProblem(tuple(steps), sizes, frozenset(kept))


def judge_graph(callee: Callee) -> Verdict:
    """The lowest peak of the student's graph must be that of D."""
    shown: list[tuple[str, Any]] = []
    for graph in GRAPHS:
        count, edges = graph
        given = (count, [tuple(edge) for edge in edges])
        outcome = callee.call(*given)
        if outcome.failed:
            return call_failed(callee, given, outcome)
        problem = _problem(outcome.value)
        if isinstance(problem, str):
            return unexpected_result(callee, given, problem)
        best = exact(problem, STATES)
        if best is None:
            return unexpected_result(callee, given, "the search for its lowest peak takes too long")
        unit, vs, truth = unit_of(graph), separation(graph), lowest_peak(graph)
        interval = f"{unit * (vs + 1)} to {unit * (vs + 1) + len(edges)}"
        facts = (
            ("vertices", count),
            ("edges", list(edges)),
            ("its lowest peak", best.peak),
            ("the interval", interval),
        )
        kernels = len(problem.steps)
        if kernels != count + len(edges):
            facts += (("kernels", kernels), ("vertices and edges", count + len(edges)))
            return wrong("There is one kernel for each vertex and each edge.", *facts, mistake="other-kernels")
        if best.peak != truth:
            if best.peak == problem.peak(range(kernels)) and not any(step.reads for step in problem.steps) and edges:
                return wrong("No kernel reads anything.", *facts, mistake="nothing-is-read")
            return wrong("The lowest peak of yours is not that of D.", *facts, mistake="other-peak")
        shown.append((f"{count} vertices, {len(edges)} edges", f"vs {vs}, peak {best.peak} in {interval}"))
    return right("Its lowest peaks lie where they should.", *shown[2:5])


def tree_problem(operands: Sequence[Sequence[int]]) -> OrderProblem:
    """A tree of buffers of one unit as a problem."""
    steps = tuple(Step(f"{k}", tuple(f"{j}" for j in own), (f"{k}",)) for k, own in enumerate(operands))
    return OrderProblem(steps, {step.name: 1 for step in steps}, frozenset({f"{len(operands) - 1}"}))


def random_tree(rng: random.Random, count: int) -> list[list[int]]:
    """Kernel k is an operand of a later one; the last is the root."""
    operands: list[list[int]] = [[] for _ in range(count)]
    for k in range(count - 1):
        operands[rng.randint(k + 1, min(count - 1, k + rng.choice((1, 2, 4, count))))].append(k)
    return operands


#: Trees that tell mistakes apart: the needier operand is now the first, now the last.
TREES: tuple[list[list[int]], ...] = (
    [[]],
    [[], [], [0, 1]],
    [[], [], [], [1, 2], [0, 3]],
    [[], [], [0, 1], [], [2, 3]],
    [[], [], [0, 1], [], [], [], [3, 4, 5], [2, 6]],
    [[], [], [], [0, 1, 2], [], [], [4, 5], [3, 6]],
    [[], [], [], [0, 1, 2], [], [], [], [4, 5, 6], [], [], [], [8, 9, 10], [7, 11], [3, 12]],
)


def balanced(depth: int) -> list[list[int]]:
    """A complete binary tree, operands before their user, leaves first of all: as bad an order as there is."""
    operands: list[list[int]] = [[] for _ in range(2**depth)]
    row = list(range(2**depth))
    while len(row) > 1:
        above = []
        for left, other in zip(row[::2], row[1::2], strict=True):
            above.append(len(operands))
            operands.append([left, other])
        row = above
    return operands


def judge_tree(callee: Callee, seed: int | None) -> Verdict:
    """The student's order of a tree against the search, and of a large one against Liu's rule."""
    rng = generator(seed, "trees")
    small = [balanced(3), *TREES, *(random_tree(rng, rng.randint(4, 12)) for _ in range(25))]
    for operands in (*small, random_tree(rng, 200)):
        problem = tree_problem(operands)
        outcome = callee.call([list(own) for own in operands])
        shown = (operands if len(operands) <= 16 else f"a tree of {len(operands)} kernels",)
        if outcome.failed:
            return call_failed(callee, shown, outcome)
        order = outcome.value
        if (
            not isinstance(order, list | tuple)
            or not all(isinstance(k, int) for k in order)
            or (sorted(order) != list(range(len(operands))))
        ):
            return unexpected_result(callee, shown, f"{result_text(order)} is no order of {len(operands)} kernels")
        facts = (("operands", shown[0]), ("your order", result_text(list(order))))
        if not problem.is_legal(order):
            return wrong("There a kernel runs before what it reads.", *facts, mistake="no-topological-order")
        yours = problem.peak(order)
        best = problem.peak(tree_order(problem))
        if len(operands) <= 16:
            found = exact(problem, STATES)
            assert found is not None and found.peak == best
        if yours > best:
            facts += (("its peak", yours), ("the lowest", best))
            if operands == balanced(3) and list(order) == list(range(len(operands))):
                return wrong("That is no better than the order they are listed in.", *facts, mistake="as-listed")
            return wrong("Another order of the operands has a lower peak.", *facts, mistake="not-the-lowest")
    return right("No order has a lower peak.", ("tried", f"{len(small) + 1} trees, of up to 200 kernels"))
