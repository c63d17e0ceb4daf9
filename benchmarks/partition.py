"""What dividing a joint graph costs (Section 5.4): seconds and counted steps over 100 to 5,000 nodes.

    python -m benchmarks.partition --out partition.json

Graphs come in families that keep the minimum cut busy in different ways. Seconds are processor time of the one thread
that does it, the smallest of a few readings, for everything from the joint graph to the two graphs it is divided into;
*steps* are the arcs of the flow network that were looked at, and do not depend on the machine. The *exponent* is the
slope of time over nodes, both logarithmic, from a thousand nodes on: 1 is linear, 2 quadratic.
"""

from __future__ import annotations

import argparse
import gc
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from benchmarks.records import growth_options, header, save
from staxlab.autodiff.graph import JointGraph
from staxlab.autodiff.partition import Partition, partition
from staxlab.capture.graph import Graph, Node, TensorMeta
from staxlab.capture.module import GraphModule
from staxlab.loops.lowering.kinds import kind_of
from staxlab.measure import pass_costs

FORMAT = "staxlab-partition-1"
SIZES = (100, 300, 1000, 2000, 3000, 5000)
META = TensorMeta((64, 64), (64, 1), torch.float32, torch.device("cpu"))
aten = torch.ops.aten


class _Tape:
    """A forward graph in the making, which remembers how each step is differentiated."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.x, self.w = (self.graph.placeholder(name, val=META) for name in "xw")
        self.adjoints: list[tuple[Node, Callable[[Node], list[tuple[Node, Node]]]]] = []

    def call(self, target: Any, *args: Any, val: TensorMeta = META, **kwargs: Any) -> Node:
        return self.graph.call_function(target, args, kwargs, val=val)

    def step(self, value: Node, adjoint: Callable[[Node], list[tuple[Node, Node]]]) -> Node:
        """``adjoint(g)`` makes the backward nodes for an upstream gradient g: (operand, its share of the gradient)."""
        self.adjoints.append((value, adjoint))
        return value

    def sin(self, a: Node) -> Node:
        return self.step(
            self.call(aten.sin.default, a),
            lambda g: [(a, self.call(aten.mul.Tensor, g, self.call(aten.cos.default, a)))],
        )

    def exp(self, a: Node) -> Node:
        value = self.call(aten.exp.default, a)
        return self.step(value, lambda g: [(a, self.call(aten.mul.Tensor, g, value))])

    def add(self, a: Node, b: Node) -> Node:
        return self.step(self.call(aten.add.Tensor, a, b), lambda g: [(a, g), (b, g)])

    def mul(self, a: Node, b: Node) -> Node:
        return self.step(
            self.call(aten.mul.Tensor, a, b),
            lambda g: [(a, self.call(aten.mul.Tensor, g, b)), (b, self.call(aten.mul.Tensor, g, a))],
        )

    def mm(self, a: Node) -> Node:
        def adjoint(g: Node) -> list[tuple[Node, Node]]:
            weight = self.call(aten.mm.default, self.call(aten.t.default, a), g)
            return [(a, self.call(aten.mm.default, g, self.call(aten.t.default, self.w))), (self.w, weight)]

        return self.step(self.call(aten.mm.default, a, self.w), adjoint)

    def finish(self, value: Node) -> JointGraph:
        """Differentiate, adjoints summed in reverse order (Section 5.2)."""
        graph = self.graph
        mark = len(graph)
        tangent = graph.create("placeholder", "tangents_1", name="tangents_1", val=META)
        gradients: dict[Node, Node] = {value: tangent}
        for result, adjoint in reversed(self.adjoints):
            if result not in gradients:
                continue
            for operand, share in adjoint(gradients[result]):
                known = gradients.get(operand)
                gradients[operand] = share if known is None else self.call(aten.add.Tensor, known, share)
        found = tuple(gradients.get(primal) for primal in (self.x, self.w))
        graph.set_output(((value,), found))
        backward = frozenset(graph.nodes[mark:-1])
        primals = (self.x, self.w)
        return JointGraph(GraphModule(graph), (META, META), primals, (tangent,), (value,), found, backward, ())


def _chain(tape: _Tape, v: Node, k: int) -> Node:
    return tape.sin(v)


def _layers(tape: _Tape, v: Node, k: int) -> Node:
    return tape.add(v, tape.sin(tape.exp(tape.mm(v))))


def _wide(tape: _Tape, v: Node, k: int) -> Node:
    """Branches of their own from the input, joined one after the other."""
    return tape.mul(v, tape.exp(tape.sin(tape.mm(tape.x) if k % 3 == 0 else tape.x)))


def _braided(tape: _Tape, v: Node, k: int) -> Node:
    """Every value is read by the next and by one far behind it."""
    early = tape.adjoints[len(tape.adjoints) // 2][0] if tape.adjoints else tape.x
    return tape.mul(tape.exp(v), tape.sin(early) if k % 7 else tape.mm(early))


FAMILIES: dict[str, Callable[[_Tape, Node, int], Node]] = {
    "chain": _chain,
    "layers": _layers,
    "branches": _wide,
    "braided": _braided,
}


def joint_of(family: str, nodes: int) -> JointGraph:
    """A joint graph of about that many nodes. KeyError for an unknown family."""
    joint = _grown(family, 8)
    count = 8
    while len(joint.graph) < 0.98 * nodes:
        count = max(count + 1, round(count * nodes / len(joint.graph)))
        joint = _grown(family, count)
    return joint


def _grown(family: str, count: int) -> JointGraph:
    tape = _Tape()
    value = tape.x
    for k in range(count):
        value = FAMILIES[family](tape, value, k)
    return tape.finish(value)


def measure(families: Sequence[str], sizes: Sequence[int], repeats: int) -> dict[str, list[dict[str, Any]]]:
    """Seconds and steps for every family and size."""
    partition(joint_of("layers", 60), kind_of=kind_of)  # first use loads modules
    results: dict[str, list[dict[str, Any]]] = {}
    for family in families:
        rows = []
        for size in sizes:
            joint, readings = joint_of(family, size), []
            part: Partition | None = None
            for _ in range(repeats):
                part = None
                gc.collect()
                start = time.thread_time()
                part = partition(joint, kind_of=kind_of)
                readings.append(time.thread_time() - start)
            assert part is not None
            rows.append(
                {
                    "size": size,
                    "nodes": len(joint.graph),
                    "values": len(part.values),
                    "saved": len(part.saved),
                    "paths": len(part.flow.paths),
                    "steps": part.flow.steps,
                    "seconds": min(readings),
                    "readings": readings,
                }
            )
        results[family] = rows
    return results


def exponent(rows: Sequence[dict[str, Any]]) -> float | None:
    """The slope of log seconds over log nodes from a thousand nodes on; None for fewer than two sizes."""
    points = [(r["nodes"], r["seconds"]) for r in rows if r["nodes"] >= 980]
    slope = pass_costs.exponent(points)
    return None if math.isnan(slope) else slope


def report(results: dict[str, list[dict[str, Any]]]) -> str:
    """The results as a table."""
    lines = [f"{'family':10} {'nodes':>6} {'saved':>6} {'paths':>6} {'steps':>9} {'seconds':>8}"]
    for family, rows in results.items():
        for row in rows:
            lines.append(
                f"{family:10} {row['nodes']:>6,} {row['saved']:>6,} {row['paths']:>6,} {row['steps']:>9,} "
                f"{row['seconds']:>8.3f}"
            )
        slope = exponent(rows)
        if slope is not None:
            lines.append(f"{family:10} exponent {slope:.2f}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    p = argparse.ArgumentParser(prog="python -m benchmarks.partition", description=__doc__.split("\n")[0])
    families, sizes, options = growth_options(
        p, arguments, FAMILIES, SIZES, least=30, too_small="a joint graph needs thirty nodes, a figure one reading",
        out="write JSON",
    )  # fmt: skip
    results = measure(families, sizes, options.repeats)
    print(report(results))
    if options.out:
        print(f"wrote {save({**header(FORMAT), 'results': results}, options.out)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
