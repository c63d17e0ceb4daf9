"""What the passes of Section 4 cost on large graphs: seconds and counted steps over 10^2 to 10^4 nodes.

    python -m benchmarks.transforms --out transforms.json

Graphs come in families, each of which keeps one pass busy at every node, and one that keeps them all busy. For every
family and size, all passes run to their fixed point. Seconds are processor time of the one thread that does it, the
smallest of a few readings: what disturbs a reading makes it longer. The *exponent* is the slope of time over nodes,
both logarithmic, from a thousand nodes on: 1 is linear, 2 quadratic. Applications of rules and executed lines of Python
do not depend on the machine, which makes them fit for a test.
"""

from __future__ import annotations

import argparse
import gc
import operator
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from benchmarks.records import growth_options, header, save
from staxlab.capture.graph import Graph, Node, TensorMeta
from staxlab.capture.module import GraphModule
from staxlab.measure.pass_costs import PassCosts
from staxlab.transform import TransformLog, transform

FORMAT = "staxlab-transforms-1"
SIZES = (100, 300, 1000, 3000, 5000, 10000)
PACKAGE = str(Path(sys.modules["staxlab"].__file__).parent)  # type: ignore[arg-type]

META = TensorMeta((4, 4), (4, 1), torch.float32, torch.device("cpu"))

# One step of a chain: adds a few nodes after `v` and returns the last. `x` is the input of the graph.
Step = Callable[[Graph, Node, Node], Node]


def _pointwise(g: Graph, v: Node, x: Node) -> Node:
    return g.call_method("exp", (v,), val=META)


def _identity(g: Graph, v: Node, x: Node) -> Node:
    return g.call_function(operator.mul, (1, v), val=META)


def _spelling(g: Graph, v: Node, x: Node) -> Node:
    return g.call_function(torch.sub, (g.call_function(torch.add, (v, x), val=META), v), val=META)


def _constant(g: Graph, v: Node, x: Node) -> Node:
    return g.call_function(operator.mul, (v, g.call_function(operator.add, (2, 3), val=5)), val=META)


def _composite(g: Graph, v: Node, x: Node) -> Node:
    return g.call_function(F.selu, (v,), val=META)


def _duplicate(g: Graph, v: Node, x: Node) -> Node:
    one, other = (g.call_method("sin", (v,), val=META) for _ in range(2))
    return g.call_function(operator.add, (one, other), val=META)


def _dead(g: Graph, v: Node, x: Node) -> Node:
    g.call_method("cos", (v,), val=META)
    return v


def _in_place(g: Graph, v: Node, x: Node) -> Node:
    written = g.call_method("relu_", (g.call_method("tanh", (v,), val=META),), val=META)
    written.meta["mutates"] = True
    return written


def _region(g: Graph, v: Node, x: Node) -> Node:
    rows = TensorMeta((4, 1), (1, 1), META.dtype, META.device)
    total = g.call_method("sum", (v, 1), {"keepdim": True}, val=rows)
    return g.call_function(operator.sub, (v, total), val=META)


def _island(g: Graph, v: Node, x: Node) -> Node:
    return g.call_function(operator.matmul, (g.call_method("tanh", (v,), val=META), x), val=META)


def _shared(g: Graph, v: Node, x: Node) -> Node:
    return g.call_function(operator.mul, (v, g.call_function(operator.add, (x, 0), val=META)), val=META)


STEPS: dict[str, Step] = {
    "pointwise": _pointwise, "identities": _identity, "spellings": _spelling, "constants": _constant,
    "composites": _composite, "duplicates": _duplicate, "dead code": _dead, "in place": _in_place,
    "regions": _region, "islands": _island, "shared input": _shared,
}  # fmt: skip
FAMILIES = (*STEPS, "one wide node", "mixed")


def graph_of(family: str, nodes: int) -> GraphModule:
    """A graph of about that many nodes. KeyError for an unknown family."""
    graph = Graph()
    x = v = graph.placeholder("x", val=META)
    if family == "one wide node":
        parts = [graph.call_function(operator.mul, (x, 1), val=META) for _ in range(nodes - 3)]
        wide = TensorMeta((4 * len(parts), 4), (4, 1), META.dtype, META.device)
        v = graph.call_function(torch.cat, (parts,), val=wide)
    else:
        steps = list(STEPS.values()) if family == "mixed" else [STEPS[family]]
        count = 0
        while len(graph) < nodes - 2:
            v = steps[count % len(steps)](graph, v, x)
            count += 1
    graph.set_output((graph.call_method("exp", (v,), val=v.val),))
    return GraphModule(graph)


def work(module: GraphModule) -> dict[str, int]:
    """Counted cost of all passes: ``applications`` of rules, ``rounds``, ``nodes`` handed out by walks over a graph,
    and executed ``lines`` of the package. Deterministic. Some thirty times slower than the passes alone."""
    lines = visited = 0

    def local(frame: Any, event: str, argument: Any) -> Any:
        nonlocal lines
        if event == "line":
            lines += 1
        return local

    def trace(frame: Any, event: str, argument: Any) -> Any:
        return local if frame.f_code.co_filename.startswith(PACKAGE) else None

    original, before = Graph.__iter__, sys.gettrace()

    def counting(graph: Graph) -> Any:
        nonlocal visited
        visited += len(graph)
        return original(graph)

    Graph.__iter__ = counting  # type: ignore[method-assign]
    sys.settrace(trace)
    try:
        log = transform(module)
    finally:
        sys.settrace(before)
        Graph.__iter__ = original  # type: ignore[method-assign]
    return {"applications": applications(log), "rounds": log.rounds, "nodes": visited, "lines": lines}


def applications(log: TransformLog) -> int:
    """How often a rule was applied, all passes and rounds together."""
    return sum(len(run.applied) for run in log.runs)


def measure(
    families: Sequence[str], sizes: Sequence[int], repeats: int, say: Callable[[str], None] = print
) -> dict[str, Any]:
    """Seconds of all passes for every family and size, the sizes taking turns; Ctrl-C ends early."""
    transform(graph_of("mixed", 60))  # first use loads modules
    results: dict[str, list[dict[str, Any]]] = {}
    complete = True
    try:
        for family in families:
            rows = []
            for nodes in sizes:
                module, readings = graph_of(family, nodes), []
                for _ in range(repeats):
                    log = None  # the last reading's, which is large
                    gc.collect()
                    start = time.thread_time()
                    log = transform(module)
                    readings.append(time.thread_time() - start)
                rows.append(
                    {
                        "size": nodes,
                        "nodes": len(module.graph),
                        "nodes_after": len(log.final.graph),
                        "rounds": log.rounds,
                        "applications": applications(log),
                        "seconds": min(readings),
                        "readings": readings,
                    }
                )
            results[family] = rows
            say(f"  {family}: " + ", ".join(f"{row['seconds']:.3f} s" for row in rows))
    except KeyboardInterrupt:
        complete = False
    return {"complete": complete, "results": results}


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks.transforms", description=__doc__.split("\n")[0])
    families, sizes, options = growth_options(
        p, arguments, FAMILIES, SIZES, least=10, too_small="a graph needs ten nodes, a figure one reading",
        out="write JSON, and a plot (.svg) beside it",
    )  # fmt: skip
    record = measure(families, sizes, options.repeats)
    if record["results"]:
        print(PassCosts.from_json(record))
    if options.out:
        from staxlab.errors import MissingDependencyError

        record = {**header(FORMAT), **record}
        print(f"wrote {save(record, options.out)}")
        try:
            from staxlab.view.pass_costs import write

            print(f"wrote {write(PassCosts.from_json(record), options.out.with_suffix('.svg'))}")
        except MissingDependencyError as error:
            print(f"no plot: {error}")
    return 0 if record["complete"] else 130


if __name__ == "__main__":
    raise SystemExit(main())
