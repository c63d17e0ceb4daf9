"""What Exercise 10 runs: claims about feasible sets and cuts, on the graphs of compiled programs."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch

from ...autodiff.network import INFINITE
from ...errors import StaxError
from ...loops.lowering.kinds import kind_of
from ..answers import Callee
from ..feedback import Verdict, right, wrong
from ..judges import call_failed, unexpected_result
from ..networks import RealGraph, always_saved, escaping_path, real_graph, real_graphs
from ..variants import generator


def program(x: torch.Tensor) -> torch.Tensor:
    """The program of the exercise."""
    total = (x * 2).sum(-1, keepdim=True)
    return (total * total * x).sum()


@lru_cache(maxsize=64)
def divided(rows: int, columns: int) -> RealGraph:
    """The compiler's partition of the program."""
    return real_graph(program, torch.ones(rows, columns, requires_grad=True), called={"sum": "total"}, title="f")


@lru_cache(maxsize=1)
def smallest_columns() -> int:
    """From how many columns on the compiler keeps the row sums."""
    return next(columns for columns in range(1, 64) if "total" in divided(8, columns).members("U"))


def graphs() -> Iterator[RealGraph]:
    yield divided(8, 16)
    yield from real_graphs()


# --- Part 1: feasible sets --------------------------------------------------------------------------------------------


def trials(graph: RealGraph, seed: int | None) -> Iterator[set[str]]:
    """Sets of values to try on a graph: none, all, all but one, what the compiler saves, and random ones."""
    names = list(graph.reads)
    yield set()
    yield set(names)
    for name in names:
        yield set(names) - {name}
    yield graph.saved
    rng = generator(seed, graph.title)
    for _ in range(12):
        yield {name for name in names if rng.random() < 0.5}


def judge_escape(callee: Callee, seed: int | None) -> Verdict:
    """The student's search for a path that makes a set infeasible."""
    count = 0
    for graph in graphs():
        for chosen in trials(graph, seed):
            count += 1
            verdict = _check_escape(callee, graph, chosen)
            if verdict is not None:
                return verdict
    return right("A path wherever there is one.", ("tried", f"{count} sets on the graphs of compiled programs"))


def _check_escape(callee: Callee, graph: RealGraph, chosen: set[str]) -> Verdict | None:
    reads = {name: list(sources) for name, sources in graph.reads.items()}
    u, b = graph.members("U"), graph.members("B")
    truth = escaping_path(graph, chosen)
    shown = (("program", graph.title), ("U", _text(u)), ("B", _text(b)), ("C", _text(chosen)))
    outcome = callee.call(reads, set(u), set(b), set(chosen))
    if outcome.failed:
        return call_failed(callee, ("reads", u, b, chosen), outcome)
    yours = outcome.value
    if yours is None:
        if truth is None:
            return None
        if len(truth) == 1:
            message = "C is not feasible: one value is in U and in B and not in C. It is a path by itself."
            return wrong(message, *shown, mistake="path-of-one-value")
        return wrong("C is not feasible, and you found no path.", *shown, mistake="misses-a-path")
    if not isinstance(yours, list | tuple) or not yours or not all(isinstance(name, str) for name in yours):
        return unexpected_result(callee, ("reads", u, b, chosen), "that is no list of names, nor None")
    facts = (*shown, ("yours", " -> ".join(yours)))
    for reader, source in zip(yours[1:], yours, strict=False):
        if source not in reads.get(reader, ()):
            message = f"{reader} does not read {source}: a path follows the forward dependences."
            return wrong(message, *facts, mistake="no-path")
    if yours[0] not in u:
        return wrong("It has to begin in U.", *facts, mistake="wrong-start")
    if yours[-1] not in b:
        return wrong("It has to end in B.", *facts, mistake="wrong-end")
    if chosen & set(yours):
        return wrong("It goes through C, ends included: it says nothing against C.", *facts, mistake="through-C")
    return None


def judge_always(callee: Callee) -> Verdict:
    """The student's claim which values are in every feasible set."""
    tried = 0
    for graph in graphs():
        tried += 1
        u, b, truth = graph.members("U"), graph.members("B"), always_saved(graph)
        outcome = callee.call(set(u), set(b))
        if outcome.failed:
            return call_failed(callee, (u, b), outcome)
        if not isinstance(outcome.value, set | frozenset | list | tuple):
            return unexpected_result(callee, (u, b), "that is no set of names")
        yours = set(outcome.value)
        facts = (("program", graph.title), ("U", _text(u)), ("B", _text(b)), ("yours", _text(yours)))
        for name in sorted(yours - truth):
            message = f"All values but {name} are a feasible set: {name} is not in every one."
            return wrong(message, *facts, mistake="too-many")
        for name in sorted(truth - yours):
            without = _text(set(graph.reads) - {name})
            facts = (*facts, ("not feasible", without))
            return wrong(f"Without {name} not even all other values are feasible.", *facts, mistake="too-few")
    return right("Exactly these are in every feasible set.", ("tried on", f"{tried} compiled programs"))


# --- Part 2: the network ----------------------------------------------------------------------------------------------


def judge_path(callee: Callee) -> Verdict:
    """The path that makes every finite cut contain the value's own edge."""
    tried = 0
    for graph in graphs():
        for name in sorted(always_saved(graph)):
            outcome = callee.call(name)
            if outcome.failed:
                return call_failed(callee, (name,), outcome)
            yours = outcome.value
            if not isinstance(yours, list | tuple) or len(yours) < 2:
                return unexpected_result(callee, (name,), "that is no list of vertices")
            verdict = _check_path(graph, name, list(yours))
            if verdict is not None:
                return verdict
            tried += 1
    return right("One edge on it may be cut, so every finite cut cuts that.", ("tried for", f"{tried} values"))


def _check_path(graph: RealGraph, name: str, yours: list[Any]) -> Verdict | None:
    facts = (("program", graph.title), ("value", name), ("yours", " -> ".join(map(str, yours))))
    if yours[0] != "s" or yours[-1] != "t":
        return wrong("A cut separates s from t: the path leads from s to t.", *facts, mistake="not-from-s-to-t")
    edges = list(zip(yours, yours[1:], strict=False))
    for edge in edges:
        if edge not in graph.edges:
            message = f"The network has no edge {edge[0]} -> {edge[1]}."
            return wrong(message, *facts, mistake="not-in-network")
    finite = [edge for edge in edges if graph.edges[edge] != INFINITE]
    if finite != [(f"{name}_in", f"{name}_out")]:
        message = "Other edges on it may be cut as well, so it does not force this one."
        return wrong(message, *facts, mistake="several-finite")
    return None


# --- Part 3: a reduction that is read and not saved -------------------------------------------------------------------


def judge_unsaved(callee: Callee, rows: int, columns: int) -> Verdict:
    """The student's program is recorded and divided as the compiler does it."""

    def given() -> torch.Tensor:
        values = torch.arange(1.0, rows * columns + 1).reshape(rows, columns) / (rows * columns)
        return values.requires_grad_()

    outcome = callee.call(given())
    if outcome.failed:
        return call_failed(callee, ("x",), outcome)
    if not isinstance(outcome.value, torch.Tensor) or not outcome.value.requires_grad:
        return unexpected_result(callee, ("x",), "that is no tensor that depends on x")
    try:
        graph = real_graph(callee.function, given())
    except StaxError as error:
        return wrong("The compiler cannot divide it.", ("reason", error.what), mistake="not-recorded")
    reductions = [value for value in graph.partition.values if kind_of(value.node) == "reduction"]
    if not reductions:
        return wrong("There is no reduction in it.", ("values", _text(graph.reads)), mistake="no-reduction")
    read = [value for value in reductions if value.is_read]
    if not read:
        shown = ("B", _text(graph.members("B")))
        message = "There is a reduction, but the backward pass reads the result of none."
        return wrong(message, shown, mistake="not-read")
    again = [value for value in read if value.node in graph.partition.recomputed]
    if not again:
        decision = graph.partition.decision(read[0].name)
        facts = (("value", read[0].name), ("the compiler", f"{decision.choice}: {decision.reason}"))
        return wrong("The reduction that the backward pass reads is saved.", *facts, mistake="is-saved")
    decision = graph.partition.decision(again[0].name)
    facts = (("value", again[0].name), ("because", decision.reason))
    return right("A reduction that is read, and computed again.", *facts)


def _text(names: Any) -> str:
    return "{" + ", ".join(sorted(names)) + "}"
