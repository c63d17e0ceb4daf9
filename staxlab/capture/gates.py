"""Data gates and guard replay (Sections 3.4 to 3.6).

When Python asks a tensor for a plain value (``if x.sum() > 0``, ``int(x.max())``, ``x.tolist()``), tracing answers
with the sample's value and goes on; the graph it records is then valid only for inputs that give the same answer. Each
such question is a :class:`DataGate` (Definition 3.2). To know at a later call whether the answers are still the same,
only the part of the program that computes them has to run again: the backward slice of the gates (Definition 3.3),
extracted by :func:`replay_graph` (Algorithm 3.1).

The slice has to be taken *before* dead code elimination (Corollary 3.1): a gate's value is consumed by a Python ``if``
and flows into no output, so to dead code elimination its computation is dead.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import CaptureError
from ..provenance import SourceLocation
from ..specialize.signature import gate_signature
from .graph import Graph, Node, map_nodes
from .module import GraphModule

# How the value of a gate is derived from the value of its node.
KINDS: dict[str, Callable[[Any], Any]] = {
    "bool": bool,
    "int": int,
    "float": float,
    "complex": complex,
    "index": lambda value: value.__index__(),
    "item": lambda value: value.item(),
    "tolist": lambda value: value.tolist(),
    "shape": lambda value: _shapes(value),
    "value": lambda value: value,
}


def _shapes(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return tuple(value.shape)
    return tuple(_shapes(part) for part in value)


@dataclass(frozen=True)
class DataGate:
    """One question Python asked about tensor data: the node, the ``kind`` of question (a key of :data:`KINDS`), the
    answer on the sample, and the user's source line."""

    node: Node
    kind: str
    value: Any
    location: SourceLocation | None = None

    @property
    def condition(self) -> str:
        """The gate as one would write it: ``bool(%gt)``, ``%nonzero.shape``."""
        if self.kind == "shape":
            return f"%{self.node.name}.shape"
        if self.kind == "value":
            return f"%{self.node.name}"
        return (
            f"%{self.node.name}.{self.kind}()" if self.kind in ("item", "tolist") else f"{self.kind}(%{self.node.name})"
        )

    def __str__(self) -> str:
        return f"{self.condition} == {self.value!r}" + (f"   ({self.location})" if self.location else "")


def backward_slice(nodes: Iterable[Node]) -> set[Node]:
    """The given nodes and all their ancestors (Definition 3.3). O(V + E)."""
    needed: set[Node] = set()
    pending = list(nodes)
    while pending:
        node = pending.pop()
        if node in needed:
            continue
        needed.add(node)
        pending.extend(node.inputs)
    return needed


def replay_slice(graph: Graph, gates: Sequence[DataGate]) -> set[Node]:
    """The nodes that must run to answer the gates.

    The backward slice, closed under effects: operations before the last needed one that write tensors belong to it
    whenever something they may have written is read, and if one random draw is needed then so are all draws before it,
    because each moves the generator.
    """
    needed = backward_slice(gate.node for gate in gates)
    order = graph.nodes
    while True:
        last = max((i for i, node in enumerate(order) if node in needed), default=-1)
        draws = any(node.meta.get("random") for node in needed)
        effects = [
            node
            for node in order[: last + 1]
            if node not in needed and (node.meta.get("mutates") or (draws and node.meta.get("random")))
        ]
        if not effects:
            return needed
        needed |= backward_slice(effects)


@dataclass(frozen=True)
class Replay:
    """The guard replay subgraph: takes the region's placeholders, returns the values of the gates' nodes.

    ``uses`` are the positions, among the region's placeholders, of the ones the replay graph takes. ``draws`` and
    ``writes`` say whether it must run with a forked generator or on protected inputs.
    """

    module: GraphModule
    gates: tuple[DataGate, ...]
    uses: tuple[int, ...]
    draws: bool = False
    writes: bool = False

    def evaluate(self, inputs: Sequence[torch.Tensor]) -> tuple[Any, ...]:
        """The answers of the gates for these inputs (flat, in placeholder order)."""
        chosen = [inputs[i] for i in self.uses]
        if not (self.draws or self.writes):
            if not torch.is_grad_enabled() or not any(tensor.requires_grad for tensor in chosen):
                return self._answers(self.module.forward(*chosen))  # entering no_grad takes longer than a small gate
            with torch.no_grad():
                return self._answers(self.module(*chosen))
        from .isolation import RandomState, Watcher

        state, watcher = RandomState(), Watcher()
        watcher.inside = True
        try:
            for tensor in chosen:
                watcher.protect(tensor)
            watcher.arguments = chosen
            with torch.no_grad(), watcher:
                return self._answers(self.module(*chosen))
        finally:
            watcher.restore()
            state.restore()

    def _answers(self, values: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple([KINDS[gate.kind](value) for gate, value in zip(self.gates, values)])  # noqa: B905

    def component(self) -> Callable[[Sequence[torch.Tensor]], tuple | None]:
        """A function from flat inputs to the key's data gate component gamma_g; None where the replay fails, as it may
        off its own path. It runs at every call, so gates that only ask for a truth value, nearly all, take a short way.
        """
        if any(gate.kind != "bool" for gate in self.gates):

            def component(flat: Sequence[torch.Tensor]) -> tuple | None:
                try:
                    return gate_signature(self.evaluate(flat))
                except Exception:
                    return None

            return component
        answers = {value: gate_signature([value])[0] for value in (True, False)}
        true, false = answers[True], answers[False]

        def component(flat: Sequence[torch.Tensor]) -> tuple | None:
            try:
                return tuple([true if value else false for value in self.evaluate(flat)])
            except Exception:
                return None

        return component

    @property
    def path_condition(self) -> str:
        """The conjunction of all gates, readable."""
        return " and ".join(f"{gate.condition} == {gate.value!r}" for gate in self.gates)

    def __str__(self) -> str:
        return "\n".join([str(self.module), "path condition: " + self.path_condition])


def replay_graph(module: GraphModule, gates: Sequence[DataGate]) -> Replay | None:
    """Algorithm 3.1: copy, in topological order, what the gates depend on; its output is the gates' nodes.

    None if there are no gates. O(V + E), except with effects, where it is at most quadratic.
    """
    if not gates:
        return None
    graph = module.graph
    needed = replay_slice(graph, gates)
    copy = Graph()
    mapping: dict[Node, Node] = {}
    for node in graph:
        if node not in needed or node.op == "output":
            continue
        twin = copy.create(
            node.op,
            node.target,
            map_nodes(node.args, mapping.__getitem__),
            map_nodes(node.kwargs, mapping.__getitem__),
            name=node.name,
            origins=node.origins,
            location=node.location,
        )
        twin.meta = dict(node.meta)
        mapping[node] = twin
    copy.set_output(tuple(mapping[gate.node] for gate in gates))
    copy.check()
    uses = tuple(i for i, node in enumerate(graph.placeholders) if node in needed)
    return Replay(
        GraphModule(copy, module.constants),
        tuple(gates),
        uses,
        draws=any(node.meta.get("random") for node in copy),
        writes=any(node.meta.get("mutates") for node in copy),
    )


def same_answer(a: Any, b: Any) -> bool:
    """Equality of gate values: types count, NaN equals NaN, 0.0 differs from -0.0."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return (a == b and math.copysign(1.0, a) == math.copysign(1.0, b)) or (a != a and b != b)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same_answer, a, b))
    if isinstance(a, complex):
        return same_answer(a.real, b.real) and same_answer(a.imag, b.imag)
    return a == b


def gate(value: torch.Tensor) -> torch.Tensor:
    """Declare that a value read from data only takes part in tensor computation (Section 3.6).

    ``n = gate(x.sum())`` keeps ``n`` a 0-dimensional tensor, an input of the program at run time, where
    ``int(x.sum())`` would write the number into the program and need a version for each value. Shape ``[]`` or any
    one-element shape in, shape ``[]`` out, dtype kept. CaptureError if the tensor has more than one element, TypeError
    if it is no tensor.
    """
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"gate() takes a one-element tensor, got {type(value).__name__}")
    if value.numel() != 1:
        raise CaptureError(
            f"gate() takes a one-element tensor, got shape {list(value.shape)}",
            remedy="reduce it first, e.g. with .sum()",
        )
    return value if value.ndim == 0 else value.reshape(())
