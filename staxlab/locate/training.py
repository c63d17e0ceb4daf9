"""Inside a region with gradients (Section 5): the joint graph, its division, and which half the kernels get wrong.

The joint graph is run with everything saved that its backward side reads, so that nothing is computed twice. If that
agrees with eager execution and the division at the minimum cut does not, a value is computed again wrongly, or is not
what was saved: the two halves compute values of the same name, and the first that differs is it. Both are operator
graphs, run operator by operator under autograd as a compiled region would be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..autodiff.graph import JointGraph
from ..autodiff.partition import save_all
from ..autodiff.runtime import TrainingRegion
from ..autodiff.split import prune_tangents, split
from ..autodiff.values import Kinds
from ..capture.module import GraphModule, Interpreter
from ..compilation import Compilation
from ..measure.agreement import Difference
from .front_end import lines_of
from .record import Culprit
from .sample import copies_of
from .values import distance, node_values

Call = Callable[[list[torch.Tensor]], Any]


def flat_call(module: GraphModule) -> Call:
    """A graph as a function from flat inputs to a tuple."""

    def run(inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        result = Interpreter(module).run(*inputs)
        return result if isinstance(result, tuple) else (result,)

    return run


class _Undivided:
    """What :func:`staxlab.autodiff.split.prune_tangents` reads of a partition that saves everything."""

    def __init__(self, joint: JointGraph, kind_of: Any, values: Sequence[Any]):
        parts = split(joint, save_all(joint, values), Kinds(kind_of))
        self.joint, self.forward, self.backward = joint, parts.forward, parts.backward
        primal, output, saved = (
            {node: k for k, node in enumerate(nodes)} for nodes in (joint.primals, joint.outputs, parts.saved)
        )
        self.places = (
            *(("primal", primal[node]) for node in parts.primals_read),
            *(("output", output[n]) if n in output else ("saved", saved[n]) for n in parts.saved),
        )


def undivided(compilation: Compilation) -> Call:
    """The region of a joint graph that saves all its backward side reads."""
    from ..loops.lowering.kinds import kind_of

    return region_of(_Undivided(compilation.joint, kind_of, compilation.partition.values))


def region_of(partition: Any) -> Call:
    """A region run operator by operator, forward and backward, as one node of autograd's graph."""

    def backward(undefined: frozenset[int]) -> Call:
        return flat_call(prune_tangents(partition, undefined).module)

    forward = flat_call(partition.forward.module)
    return TrainingRegion(partition.joint, forward, partition.places, backward, backward)


def joint_culprit(compilation: Compilation, difference: Difference | None) -> Culprit:
    """The joint graph, with the lines of the operators that its wrong value is made by."""
    where = lines_of(compilation.capture.graph, frozenset().union(*(n.origins for n in compilation.joint.graph)))
    taken = compilation.joint.decomposed
    reason = "run with everything saved, nothing is computed twice"
    if taken:
        reason += "; taken apart in it: " + ", ".join(dict.fromkeys(entry.operator for entry in taken))
    side = "backward side" if difference is not None and difference.value.startswith("gradient") else "forward side"
    return Culprit("joint", f"the {side} of the joint graph", reason, difference, where)


def partition_culprit(compilation: Compilation, inputs: list[Any], tangents: Sequence[Any], seed: int,
                      difference: Difference | None) -> Culprit:  # fmt: skip
    """The value that the backward half computes otherwise than the forward half did."""
    partition = compilation.partition
    again = {node.name: node for node in partition.recomputed}
    try:
        first = node_values(partition.forward.module, inputs, seed)
        given = backward_inputs(partition, inputs, tangents, seed)
        second = node_values(partition.backward.module, given, seed)
    except Exception:
        first, second = {}, {}
    if not first:
        return Culprit("partition", "the two halves", "with everything saved the values are right", difference)
    whole = node_values(compilation.joint.module, [*inputs, *tangents], seed) if tangents else first
    for node in partition.backward.graph.calls:
        if node.name in whole and distance(second.get(node.name), whole[node.name]) > 0:
            part = f"recomputation of %{node.name}" if node.name in again else f"%{node.name} in the backward half"
            where = (node.location,) if node.location else ()
            reason = f"it is computed as {node.format()}, and had another value in the joint graph"
            return Culprit("partition", part, reason, difference, where, node.origins, "backward")
    for node in partition.forward.graph.calls:
        if node.name in whole and distance(first.get(node.name), whole[node.name]) > 0:
            where = (node.location,) if node.location else ()
            return Culprit("partition", f"%{node.name} in the forward half", node.format(), difference, where,
                           node.origins, "forward")  # fmt: skip
    reason = "every value has what it had in the joint graph, so a saved one is handed to the wrong place"
    return Culprit("partition", "what is saved", reason, difference)


def backward_inputs(partition: Any, inputs: Sequence[Any], tangents: Sequence[Any], seed: int) -> list[Any]:
    """What the backward half starts from: primals, results and saved values as the forward half leaves them, and the
    upstream gradients."""
    given = copies_of([x.detach() if isinstance(x, torch.Tensor) else x for x in inputs])
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        delivered = flat_call(partition.forward.module)(given)
    outputs = len(partition.joint.outputs)
    source = {"primal": given, "output": delivered[:outputs], "saved": delivered[outputs:]}
    return [*(source[kind][place] for kind, place in partition.places), *tangents]


class TangentsSeen:
    """Runs a region once and remembers the upstream gradients that reach it: those of its forward outputs, where views
    that are replayed outside have been differentiated already."""

    def __init__(self, partition: Any):
        self.partition = partition
        self.tangents: list[Any] = []
        self.undefined: frozenset[int] = frozenset()

    def region(self) -> Call:
        partition = self.partition

        def backward(undefined: frozenset[int]) -> Call:
            run = flat_call(prune_tangents(partition, undefined).module)

            def call(given: Any) -> Any:
                values = [*given]
                self.undefined = undefined
                self.tangents = [x.clone() for x in values[len(partition.places) :]]
                return run(values)

            return call

        forward = flat_call(partition.forward.module)
        return TrainingRegion(partition.joint, forward, partition.places, backward, backward)
