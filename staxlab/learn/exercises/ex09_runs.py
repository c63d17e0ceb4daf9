"""What Exercise 9 runs: the compiler on Example 5.1 with other activations, and networks of the student's on real
graphs."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F

from ...autodiff.split import split
from ...autodiff.values import Kinds
from ...loops.lowering import lower
from ...loops.lowering.kinds import kind_of
from ...options import Options, host_device_spec
from ...schedule.dependencies import schedule
from ..answers import Callee, Malformed
from ..feedback import Verdict, right
from ..judges import call_failed, unexpected_result
from ..networks import RealGraph, cut_text, difference, edges_of, real_graph, real_graphs

ACTIVATIONS: dict[str, Callable[..., Any]] = {"relu": torch.relu, "tanh": torch.tanh, "sigmoid": torch.sigmoid}
BOTH, NOTHING = "h and r", "nothing"
OPTIONS = ("h", "r", "l", BOTH, NOTHING)


@lru_cache(maxsize=64)
def divided(activation: str, m: int, k: int, n: int, returns_r: bool = False) -> RealGraph:
    """The compiler's partition of ``activation(x @ w).sum()``, with values called h, r and l."""
    activate = F.gelu if activation == "gelu" else ACTIVATIONS[activation]

    def f(x: torch.Tensor, w: torch.Tensor) -> Any:
        r = activate(x @ w)
        return (r.sum(), r) if returns_r else r.sum()

    called = {"mm": "h", activation: "r", "sum": "l"}
    graph = real_graph(f, torch.ones(m, k), torch.ones(k, n, requires_grad=True), called=called)
    assert list(graph.reads) == ["h", "r", "l"], "the compiler's forward graph is the exercise's"
    return graph


def chosen(names: Collection[str]) -> str:
    """A set of values as one of the options."""
    return {frozenset("h"): "h", frozenset("r"): "r", frozenset("l"): "l", frozenset("hr"): BOTH}.get(
        frozenset(names), NOTHING
    )


def cut_of(graph: RealGraph) -> set[str]:
    return {graph.name(node) for node in graph.partition.cut}


def recomputed(graph: RealGraph) -> set[str]:
    return {graph.name(node) for node in graph.partition.recomputed}


def bytes_written(graph: RealGraph, saved: Collection[str] | None = None) -> int:
    """What the kernels of the forward half write, as the compiler schedules it; with other values saved, if given."""
    forward = graph.partition.forward
    if saved is not None:
        nodes = [value.node for value in graph.partition.values if graph.name(value.node) in saved]
        forward = split(graph.partition.joint, nodes, Kinds(kind_of)).forward
    device, options = host_device_spec(), Options()
    plan = schedule(lower(forward, device, options), device, options)
    return sum(plan.bytes_written(node) for node in plan.nodes)


def judge_networks(callee: Callee) -> Verdict:
    """The student's network of every real graph: edge by edge, and by the flow on it."""
    graphs = real_graphs()
    for graph in graphs:
        values = [{**value, "reads": list(value["reads"])} for value in graph.values]
        program = ("program", graph.title)
        outcome = callee.call(values)
        shown = f"the {len(values)} values of {graph.title}"
        if outcome.failed:
            return call_failed(callee, (shown,), outcome)
        try:
            edges = edges_of(outcome.value)
        except Malformed as problem:
            return unexpected_result(callee, (shown,), str(problem))
        verdict = difference(edges, graph)
        if verdict is not None:
            return Verdict(verdict.status, verdict.credit, verdict.message, (program, *verdict.facts), verdict.mistake)
    return right(
        "Edge by edge the compiler's network, so the flow finds the compiler's cut.",
        ("compared for", f"{len(graphs)} programs"), ("the last one", cut_text(graphs[-1].edges)),
    )  # fmt: skip
