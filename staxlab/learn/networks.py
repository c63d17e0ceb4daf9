"""Rematerialization networks as students write them, held against those of real compilations (Sections 5.4 and 5.5).

A :class:`RealGraph` is the forward side of a joint graph that the compiler recorded and divided, as plain data: for
each value its name, what it reads, its price, and whether it is in U and in B. A network is a list of
``(tail, head, capacity)`` over the vertices ``s``, ``t``, ``v_in`` and ``v_out``; it is compared edge by edge with the
one of Definition 5.2, and the package's own maximum flow is run on it, whatever it is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import torch
import torch.nn.functional as F

from ..autodiff.joint import joint_graph
from ..autodiff.network import INFINITE, Flow, FlowNetwork, capacity_text, maximum_flow
from ..autodiff.partition import Partition, partition
from ..capture.tracer import trace
from ..loops.lowering import basis
from ..loops.lowering.kinds import kind_of
from ..options import Options
from ..transform import transform
from .answers import Field, Malformed, as_number
from .feedback import Verdict, wrong

Edges = dict[tuple[str, str], float]

SOURCE, SINK = "s", "t"
#: Capacities may be rounded; whole numbers of a few bytes are off by more than that.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class RealGraph:
    """The forward side of a compiled program: ``partition`` as the compiler made it, ``called`` what the values are
    called instead of their nodes' names."""

    title: str
    partition: Partition
    called: Mapping[str, str]

    @cached_property
    def values(self) -> list[dict[str, Any]]:
        """What Definition 5.2 asks about each value, in the order they are computed."""
        known = {value.node for value in self.partition.values}
        return [
            {
                "name": self.name(value.node), "reads": [self.name(n) for n in value.node.inputs if n in known],
                "b": value.nbytes, "beta": value.beta, "d": value.distance, "savable": not value.unsavable,
                "U": bool(value.source), "B": value.is_read,
            }
            for value in self.partition.values
        ]  # fmt: skip

    def name(self, node: Any) -> str:
        return self.called.get(node.name, node.name)

    @cached_property
    def reads(self) -> dict[str, list[str]]:
        return {value["name"]: value["reads"] for value in self.values}

    def members(self, letter: str) -> set[str]:
        """The set U or B."""
        return {value["name"] for value in self.values if value[letter]}

    @cached_property
    def edges(self) -> Edges:
        """The network of the compilation."""
        network = self.partition.network
        names = [*(f"{v['name']}_{end}" for v in self.values for end in ("in", "out")), SOURCE, SINK]
        return {(names[u], names[v]): capacity for u, v, capacity in network.edges}

    @property
    def saved(self) -> set[str]:
        return {self.name(node) for node in self.partition.saved}


def real_graph(
    function: Callable[..., Any], *inputs: torch.Tensor, called: Mapping[str, str] | None = None, title: str = ""
) -> RealGraph:
    """Record and divide a program as the compiler does. Raises StaxError where that is not possible."""
    with torch.enable_grad():
        captured = trace(function, inputs, {})
        samples = list(captured.samples)
        joint = joint_graph(transform(captured, Options()).final, samples, Options(), basis=basis())
    captured.release()
    return RealGraph(title, partition(joint, kind_of=kind_of), called or {})


PROGRAMS: dict[str, Callable[..., Any]] = {
    "gelu(x @ w).sum()": lambda x, w: F.gelu(x @ w).sum(),
    "relu(x @ w).sum()": lambda x, w: torch.relu(x @ w).sum(),
    "(w / w.sum(-1, keepdim=True)).sum()": lambda x, w: (w / w.sum(-1, keepdim=True)).sum(),
    "(w.amax(-1, keepdim=True) * w).exp().sum()": lambda x, w: (w.amax(-1, keepdim=True) * w).exp().sum(),
    "((x @ w) * 2 + 1).exp().sum()": lambda x, w: ((x @ w) * 2 + 1).exp().sum(),
    "dropout(tanh(x @ w), 0.5).sum()": lambda x, w: F.dropout(torch.tanh(x @ w), 0.5).sum(),
    "log_softmax(x @ w, -1)[:, 0].sum()": lambda x, w: F.log_softmax(x @ w, -1)[:, 0].sum(),
    "gelu(gelu(x @ w).t() @ x).sum()": lambda x, w: F.gelu(F.gelu(x @ w).t() @ x).sum(),
    "layer_norm(x @ w, (16,)).square().sum()": lambda x, w: F.layer_norm(x @ w, (16,)).square().sum(),
}


@lru_cache(maxsize=1)
def real_graphs() -> tuple[RealGraph, ...]:
    """Compiled programs of several kinds, the smallest first."""
    x, w = torch.ones(8, 16), torch.ones(16, 16, requires_grad=True)
    found = [real_graph(function, x, w, title=title) for title, function in PROGRAMS.items()]
    return tuple(sorted(found, key=lambda graph: len(graph.values)))


# --- Networks as answers ----------------------------------------------------------------------------------------------


def edges_of(answer: Any) -> Edges:
    """A network from a list of ``(tail, head, capacity)``. Infinite capacities may be written "inf". Raises
    Malformed."""
    if not isinstance(answer, list | tuple):
        raise Malformed(f"got {type(answer).__name__} and not a list of edges")
    found: Edges = {}
    for entry in answer:
        if not isinstance(entry, list | tuple) or len(entry) != 3 or not all(isinstance(v, str) for v in entry[:2]):
            raise Malformed(f"{entry!r} is no edge; an edge is (tail, head, capacity), its vertices text")
        tail, head = (vertex.strip() for vertex in entry[:2])
        if (tail, head) in found:
            raise Malformed(f"there are two edges from {tail} to {head}")
        found[tail, head] = _capacity(entry[2])
    return found


def _capacity(value: Any) -> float:
    if isinstance(value, str) and value.strip().lower() in ("inf", "infinity", "∞"):
        return INFINITE
    if isinstance(value, float) and value == INFINITE:
        return INFINITE
    number = float(as_number(value))
    if number < 0:
        raise Malformed(f"a capacity is zero or more, not {value}")
    return number


@dataclass(frozen=True)
class NetworkAnswer(Field):
    """A flow network, as a list of its edges."""

    kind: ClassVar[str] = 'a list of edges (tail, head, capacity), infinite capacities as float("inf") or "inf"'
    own_cell: ClassVar[bool] = True

    def read(self, answer: Any, constants: Any) -> Edges:
        return edges_of(answer)


def flow_of(edges: Edges) -> Flow:
    """The package's maximum flow on a network of named vertices."""
    names = list(dict.fromkeys([SOURCE, SINK, *(vertex for edge in edges for vertex in edge)]))
    place = {name: k for k, name in enumerate(names)}
    triples = [(place[tail], place[head], capacity) for (tail, head), capacity in edges.items()]
    return maximum_flow(FlowNetwork.of(len(names), triples, place[SOURCE], place[SINK], names))


def cut_text(edges: Edges) -> str:
    """What the maximum flow says of a network: its minimum cut."""
    flow = flow_of(edges)
    if not flow.is_finite:
        return "no finite cut"
    name, network = flow.network.name, flow.network
    cut = ", ".join(f"{name(network.tails[e])} -> {name(network.heads[e])}" for e in flow.cut)
    return f"minimum cut {capacity_text(flow.value)}: {cut or 'no edge'}"


def difference(edges: Edges, graph: RealGraph) -> Verdict | None:
    """The first way in which a network is not that of Definition 5.2; None if it is."""
    for message, edge, mistake in _differences(edges, graph):
        tail, head = edge
        facts = [("edge", f"{tail} -> {head}")]
        if edge in edges:
            facts.append(("yours", capacity_text(edges[edge])))
        return wrong(message, *facts, ("the flow on your network", cut_text(edges)), mistake=mistake)
    return None


def _differences(edges: Edges, graph: RealGraph) -> Iterable[tuple[str, tuple[str, str], str]]:
    truth = graph.edges
    vertices = {vertex for edge in truth for vertex in edge} | {SOURCE, SINK}
    for edge in edges:
        if not set(edge) <= vertices:
            yield "There is no such vertex: a value has two, and s and t are the only others.", edge, "unknown-vertex"
    owns = {(f"{value['name']}_in", f"{value['name']}_out"): value for value in graph.values}
    for own, value in owns.items():
        if own not in edges:
            yield "Every forward value has an edge of its own.", own, "value-left-out"
        elif problem := _price_problem(edges[own], value):
            yield problem[0], own, problem[1]
    for edge in truth:
        if edge not in owns and edges.get(edge, INFINITE) != INFINITE:
            yield "Only the edges of values may be cut; all others have infinite capacity.", edge, "finite-edge"
    for edge in truth:
        if edge not in edges:
            yield _missing(edge, edges)
    for edge in edges:
        if edge not in truth:
            yield _surplus(edge)


def _price_problem(capacity: float, value: Mapping[str, Any]) -> tuple[str, str] | None:
    if not value["savable"]:
        return None if capacity == INFINITE else ("A view is not saved: it owns no memory.", "view-saved")
    truth = value["b"] * value["beta"] * 1.1 ** value["d"]
    if math.isclose(capacity, truth, rel_tol=TOLERANCE, abs_tol=0.51):
        return None
    if capacity == INFINITE:
        return "The edge of a value is the one that may be cut: its capacity is finite.", "infinite-price"
    ratio = capacity / truth if truth else 0.0
    if math.isclose(ratio, 1.1 ** -value["d"], rel_tol=TOLERANCE) and value["d"]:
        return "The factor of the distance is not in this capacity.", "distance-left-out"
    if math.isclose(capacity, value["b"], rel_tol=TOLERANCE):
        return "These are the bytes alone; the capacity weighs them.", "bytes-only"
    if math.isclose(ratio, 0.5, rel_tol=TOLERANCE) or math.isclose(ratio, 2, rel_tol=TOLERANCE):
        return "Is this value in memory after the forward pass, if it is not saved? That decides β.", "beta-wrong"
    steps = math.log(ratio) / math.log(1.1) if ratio > 0 else 0.5
    if abs(steps - round(steps)) < 0.01:
        message = "The distance is another: the forward steps to the first backward reader, through other values too."
        return message, "distance-wrong"
    return "That is not b β 1.1^d.", "wrong-capacity"


def _missing(edge: tuple[str, str], edges: Edges) -> tuple[str, tuple[str, str], str]:
    tail, head = edge
    if tail == SOURCE:
        if (SOURCE, head.removesuffix("_in") + "_out") in edges:
            message = "From s it goes to v_in: a value in U may be saved, and then its own edge is cut."
            return message, edge, "ends-mixed-up"
        return "This value must not be computed again, so it belongs to U.", edge, "source-missing"
    if head == SINK:
        if (tail.removesuffix("_out") + "_in", SINK) in edges:
            return "To t it goes from v_out: a value in B that is saved need not be reached.", edge, "ends-mixed-up"
        return "The backward pass reads this value, so it belongs to B.", edge, "sink-missing"
    if (head, tail) in edges:
        return "This dependence runs the other way: from what is read to what reads it.", edge, "reversed"
    return "A forward dependence is missing.", edge, "dependence-missing"


def _surplus(edge: tuple[str, str]) -> tuple[str, tuple[str, str], str]:
    tail, head = edge
    if tail == SOURCE:
        return "This value may be computed again: it is not in U.", edge, "source-extra"
    if head == SINK:
        return "The backward pass does not read this value: it is not in B.", edge, "sink-extra"
    return "There is no such dependence in the forward graph.", edge, "dependence-extra"


# --- Feasible sets ----------------------------------------------------------------------------------------------------


def escaping_path(graph: RealGraph, saved: Iterable[str]) -> list[str] | None:
    """A path from U to B through none of ``saved``, of as few values as possible (Definition 5.1); None if there is
    none, so that the set is feasible."""
    saved, read = set(saved), graph.members("B")
    users: dict[str, list[str]] = {name: [] for name in graph.reads}
    for name, sources in graph.reads.items():
        for source in sources:
            users[source].append(name)
    waiting = [[name] for name in graph.reads if name in graph.members("U") and name not in saved]
    seen = {path[0] for path in waiting}
    for path in waiting:
        if path[-1] in read:
            return path
        for user in users[path[-1]]:
            if user not in seen and user not in saved:
                seen.add(user)
                waiting.append([*path, user])
    return None


def always_saved(graph: RealGraph) -> set[str]:
    """The values that every feasible set contains. A set with more values than a feasible one is feasible too, so a
    value is dispensable exactly if all others together are feasible."""
    names = set(graph.reads)
    return {name for name in names if escaping_path(graph, names - {name}) is not None}
