"""Graphs that count how they are walked: what the backward slice of Algorithm 3.1 costs, and what a student's does.

A :class:`CountedGraph` hands out nodes and, through ``inputs[node]``, the nodes that one reads. Every look-up, every
edge that is examined and every comparison of two nodes is counted, the last because ``node in some_list`` is a loop as
well. Time is never measured: a count is the same on every machine, and it says *where* the work went.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..capture.gates import backward_slice
from .answers import Callee
from .feedback import Verdict, right, wrong
from .judges import Judge, call_failed, unexpected_result

# A linear algorithm may look at each node and each edge a few times.
STEPS_PER_ITEM = 4
# Beyond this many times the size of the graph a walk is stopped: it would take exponential time.
STOP_FACTOR = 40


class WalkedTooLong(Exception):
    """The walk has used up its budget of steps."""


@dataclass
class Counts:
    """``nodes`` looked up, ``edges`` examined, ``comparisons`` of nodes, ``passes`` over all nodes, so far."""

    nodes: int = 0
    edges: int = 0
    comparisons: int = 0
    passes: int = 0
    limit: int | None = None

    @property
    def total(self) -> int:
        return self.nodes + self.edges + self.comparisons

    def spend(self, what: str) -> None:
        setattr(self, what, getattr(self, what) + 1)
        if self.limit is not None and self.total > self.limit:
            raise WalkedTooLong

    def __str__(self) -> str:
        return f"{self.nodes:,} node look-ups, {self.edges:,} edges examined, {self.comparisons:,} comparisons of nodes"


class CountedNode:
    """A node that counts how often it is compared with another."""

    __slots__ = ("name", "graph")

    def __init__(self, name: int, graph: CountedGraph):
        self.name, self.graph = name, graph

    def __eq__(self, other: object) -> bool:
        self.graph.counts.spend("comparisons")
        return self is other

    def __hash__(self) -> int:
        return self.name

    def __repr__(self) -> str:
        return f"%{self.name}"


class _GraphNode(CountedNode):
    """What :func:`~staxlab.capture.gates.backward_slice` takes for a node of a captured graph."""

    __slots__ = ()

    @property
    def inputs(self) -> Sequence[CountedNode]:
        return self.graph[self]


class CountedEdges(Sequence):
    """The inputs of one node; every one that is looked at is counted."""

    def __init__(self, nodes: Sequence[CountedNode], counts: Counts):
        self._nodes, self._counts = nodes, counts

    def __len__(self) -> int:
        return len(self._nodes)

    def __getitem__(self, position: Any) -> Any:
        self._counts.spend("edges")
        return self._nodes[position]

    def __iter__(self) -> Iterator[CountedNode]:
        for node in self._nodes:
            self._counts.spend("edges")
            yield node

    def __repr__(self) -> str:
        return repr(list(self._nodes))


class CountedGraph(Mapping):
    """A directed acyclic graph as a mapping from a node to the nodes it reads.

    ``edges`` lists for node 0, 1, 2, ... the numbers of its inputs, all smaller; ``gates`` are the numbers of the
    nodes whose slice is wanted.
    """

    def __init__(
        self, edges: Sequence[Sequence[int]], gates: Sequence[int], node_class: type[CountedNode] = CountedNode
    ):
        self.counts = Counts()
        self.edges, self.gate_numbers = [list(each) for each in edges], list(gates)
        self.nodes = [node_class(number, self) for number in range(len(edges))]

    @property
    def gates(self) -> list[CountedNode]:
        return [self.nodes[number] for number in self.gate_numbers]

    @property
    def size(self) -> int:
        """|V| + |E|."""
        return len(self.nodes) + sum(map(len, self.edges))

    def __getitem__(self, node: CountedNode) -> CountedEdges:
        if not isinstance(node, CountedNode):
            raise KeyError(f"{node!r} is not a node")
        self.counts.spend("nodes")
        return CountedEdges([self.nodes[number] for number in self.edges[node.name]], self.counts)

    def __iter__(self) -> Iterator[CountedNode]:
        self.counts.passes += 1
        for node in self.nodes:
            self.counts.spend("nodes")
            yield node

    def __len__(self) -> int:
        return len(self.nodes)

    def ancestors(self) -> set[int]:
        """The numbers of the gates and all their ancestors, by brute force: edges are followed until nothing is new."""
        found = set(self.gate_numbers)
        while True:
            more = found | {source for number in found for source in self.edges[number]}
            if more == found:
                return found
            found = more

    def __repr__(self) -> str:
        return "inputs"  # what a student's function calls it

    def __str__(self) -> str:
        reads = "; ".join(f"%{i} reads {', '.join(f'%{j}' for j in each)}" for i, each in enumerate(self.edges) if each)
        gates = ", ".join(f"%{number}" for number in self.gate_numbers)
        return f"{len(self.nodes)} nodes; {reads or 'no edges'}; gates: {gates or 'none'}"


# --- Families of graphs -----------------------------------------------------------------------------------------------


def layers(count: int, width: int) -> CountedGraph:
    """``count`` layers of ``width`` nodes; each node reads the whole layer before; the last layer are the gates.

    There are ``width ** (count - 1)`` paths to each node of the last layer.
    """
    edges = [range((i // width - 1) * width, (i // width) * width) if i >= width else () for i in range(count * width)]
    return CountedGraph(edges, range((count - 1) * width, count * width))


def chain(count: int) -> CountedGraph:
    """Each node reads the one before; the last is the gate."""
    return CountedGraph([[i - 1] if i else [] for i in range(count)], [count - 1])


def dense(count: int) -> CountedGraph:
    """Each node reads all before it; the last is the gate."""
    return CountedGraph([range(i) for i in range(count)], [count - 1])


def beside(count: int) -> CountedGraph:
    """One short chain with a gate, and many nodes that nobody needs."""
    return CountedGraph([[i - 1] if i in (1, 2) else [] for i in range(count)], [min(2, count - 1)])


def all_gates(count: int) -> CountedGraph:
    """A chain of which every node is a gate."""
    return CountedGraph([[i - 1] if i else [] for i in range(count)], range(count))


FAMILIES: dict[str, Callable[[int], CountedGraph]] = {
    "a chain": chain,
    "layers of two": lambda count: layers(max(1, count // 2), 2),
    "every node reads all before it": lambda count: dense(max(1, count // 4)),
    "a short chain in a large graph": beside,
    "a chain of gates": all_gates,
}
SIZES = (4, 8, 16, 32, 64, 128, 256)


def random_graph(rng: random.Random, largest: int = 7) -> CountedGraph:
    """A small graph whose nodes read up to three earlier ones, with up to three gates."""
    count = rng.randint(1, largest)
    edges = [rng.sample(range(i), min(i, rng.choice((0, 1, 1, 2, 3)))) for i in range(count)]
    return CountedGraph(edges, rng.sample(range(count), min(count, rng.choice((0, 1, 1, 2, 3)))))


# --- Algorithm 3.1, counted -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Walk:
    """What Algorithm 3.1 does: nodes that enter ``needed``, and iterations of its loop (``popped``)."""

    needed: int
    popped: int


def walk(graph: CountedGraph) -> Walk:
    """Run the package's own backward slice and count. Every node that enters is looked up once, and everything that is
    put into ``pending`` (the gates, and an entry for every edge examined) is popped."""
    twin = CountedGraph(graph.edges, graph.gate_numbers, _GraphNode)
    found = backward_slice(twin.gates)
    assert twin.counts.nodes == len(found), "a node is expanded more than once"
    return Walk(len(found), len(twin.gates) + twin.counts.edges)


def walk_without_check(graph: CountedGraph) -> int:
    """How often the loop of Algorithm 3.1 runs without its line 4, which skips what is there already."""
    popped, pending = 0, list(graph.gate_numbers)
    while pending:
        popped += 1
        pending.extend(graph.edges[pending.pop()])
    return popped


# --- Judging a student's slice ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    name: str
    graph: CountedGraph = field(repr=False)


def slice_in_linear_time(*, rng: random.Random, small: int = 80) -> Judge:
    """The student's ``slice_nodes(inputs, gates)`` returns the backward slice, and examines O(|V| + |E|).

    First against brute force on ``small`` random graphs, the smallest first; then on families of growing graphs, where
    the steps it takes must stay below a fixed multiple of |V| + |E|.
    """
    graphs = sorted((random_graph(rng) for _ in range(small)), key=lambda graph: graph.size)
    cases = [_Case("a small graph", graph) for graph in graphs]
    cases += [_Case(name, family(size)) for size in SIZES for name, family in FAMILIES.items()]

    def judge(callee: Callee) -> Verdict:
        worst = 0.0
        for case in cases:
            verdict = _examine(callee, case)
            if verdict is not None:
                return verdict
            if case.name in FAMILIES:
                worst = max(worst, case.graph.counts.total / case.graph.size)
        largest = max(case.graph.size for case in cases)
        families = f"{len(FAMILIES)} families of graphs, up to {largest:,} nodes and edges"
        facts = (("correct on", f"{small} random graphs"), ("counted on", families))
        return right("The slice, in linear time.", *facts, ("steps per node or edge", f"at most {worst:.2g}"))

    return judge


def _examine(callee: Callee, case: _Case) -> Verdict | None:
    graph = case.graph
    graph.counts = Counts(limit=STOP_FACTOR * graph.size + 1000)
    outcome = callee.call(graph, graph.gates)
    counts, graph.counts = graph.counts, Counts()
    size = ("graph", f"{case.name}: {len(graph.nodes)} nodes, {graph.size - len(graph.nodes)} edges")
    if isinstance(outcome.error, WalkedTooLong):
        return _too_slow(counts, graph, size)
    if outcome.failed:
        verdict = call_failed(callee, (graph, graph.gates), outcome)
        return verdict.with_facts(("graph", graph if case.name not in FAMILIES else size[1]))
    if not isinstance(outcome.value, set | frozenset | list | tuple):
        return unexpected_result(callee, (graph, graph.gates), f"{outcome.value!r} is not a set of nodes")
    if not all(isinstance(node, CountedNode) for node in outcome.value):
        return unexpected_result(callee, (graph, graph.gates), "it contains something that is not a node")
    verdict = _compare({node.name for node in outcome.value}, graph)
    graph.counts = counts
    if verdict is not None:
        return verdict
    if counts.total > STEPS_PER_ITEM * graph.size + 8:
        return _too_slow(counts, graph, size)
    return None


def _compare(yours: set[int], graph: CountedGraph) -> Verdict | None:
    truth = graph.ancestors()
    if yours == truth:
        return None
    facts = (("graph", graph), ("yours", _names(yours)))
    missing, extra = truth - yours, yours - truth
    if missing & set(graph.gate_numbers):
        return wrong("A gate is missing: the slice contains the nodes it starts from.", *facts, mistake="gate-missing")
    if missing:
        message = f"An ancestor is missing: %{max(missing)} is read on the way to a gate."
        return wrong(message, *facts, mistake="ancestor-missing")
    return wrong(f"From %{min(extra)} there is no path to a gate.", *facts, mistake="not-needed")


def _too_slow(counts: Counts, graph: CountedGraph, size: tuple[str, str]) -> Verdict:
    stopped = counts.limit is not None and counts.total > counts.limit
    facts = (size, ("counted", f"{counts}{'; then it was stopped' if stopped else ''}"))
    if counts.comparisons > counts.nodes + counts.edges:
        message = (
            "The work is not in the graph but in your container: to find a node in a list, all its entries are "
            "compared. In a set it is found at once."
        )
        return wrong(message, *facts, mistake="searches-a-list")
    if counts.passes > 1:
        message = "You go over all nodes again and again until nothing changes. That is as many passes as levels."
        return wrong(message, *facts, ("passes", counts.passes), mistake="repeated-passes")
    if counts.nodes <= STEPS_PER_ITEM * len(graph.nodes):
        message = "Each node is looked up a few times only, and still its edges are examined again and again."
        return wrong(message, *facts, mistake="examines-edges-again")
    message = "Nodes are expanded again and again, once for every path that leads to them."
    return wrong(message, *facts, mistake="expands-again")


def _names(numbers: set[int]) -> str:
    return "{" + ", ".join(f"%{number}" for number in sorted(numbers)) + "}"
