"""From a joint graph and a choice of saved values to two graphs (Sections 5.4 and 5.6).

The forward graph delivers the results and the saved values; the backward graph starts from saved values, primals and
upstream gradients, computes again what else it reads of the forward pass, and returns a gradient for each primal.
Both are operator graphs like any other, so the rest of the compiler takes them as it takes a region without gradients.

:func:`prune_tangents` cuts a backward graph down where some upstream gradients are undefined: autograd passes None for
a result that the loss does not depend on, and a zero tensor in its place would be computed with for nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..capture.graph import Graph, Node, TensorMeta, map_nodes, nodes_in
from ..capture.module import GraphModule
from ..errors import LoweringError, TransformError
from ..operators.basis import has_effect
from ..operators.graph import OperatorGraph
from .graph import JointGraph
from .values import Kinds, clone_meta, is_repeatable, modified_primals, without_grad

aten = torch.ops.aten


@dataclass(frozen=True)
class Split:
    """Two graphs and what passes between them. ``primals_read``, then ``saved``, then the tangents are the backward
    graph's placeholders; ``saved`` follow the results among the forward graph's outputs. ``recomputed`` are the forward
    values the backward graph computes again. All are nodes of the joint graph."""

    forward: OperatorGraph
    backward: OperatorGraph
    primals_read: tuple[Node, ...]
    saved: tuple[Node, ...]
    recomputed: tuple[Node, ...]


def split(joint: JointGraph, saved: Collection[Node], kinds: Kinds) -> Split:
    """Divide ``joint`` so that of the forward values exactly those of ``saved`` that the backward side needs are kept.

    O(V + E). Raises LoweringError if the backward side needs a value that is not saved and cannot be computed again.
    """
    return _Division(joint, set(saved), kinds).split()


class _Division:
    def __init__(self, joint: JointGraph, saved: set[Node], kinds: Kinds):
        self.joint = joint
        self.kinds = kinds
        self.order = {node: k for k, node in enumerate(joint.graph)}
        self.modified = modified_primals(joint)
        self.primals = set(joint.primals)
        self.candidates = saved

    def split(self) -> Split:
        needed = self._needed_by_backward()
        saved = tuple(node for node in needed if node in self.candidates)
        primals = tuple(node for node in needed if node in self.primals and node not in self.candidates)
        recomputed = tuple(n for n in needed if n.op not in ("placeholder", "get_attr") and n not in self.candidates)
        forward = self._forward(saved)
        return Split(forward, self._backward(primals, saved, recomputed), primals, saved, recomputed)

    def _needed_by_backward(self) -> list[Node]:
        """The forward nodes that occur in the backward graph, in order: read there, or read to compute those again."""
        waiting = list(self.joint.read_by_backward)
        needed = set(waiting)
        while waiting:
            node = waiting.pop()
            if node in self.candidates or (node in self.primals and node not in self.modified):
                continue
            self._check_repeatable(node)
            for source in node.inputs:
                if source not in needed:
                    needed.add(source)
                    waiting.append(source)
        return sorted(needed, key=self.order.__getitem__)

    def _check_repeatable(self, node: Node) -> None:
        if node in self.modified:
            raise LoweringError(
                f"the backward pass needs %{node.name} as it was before the program modified it, and has no copy",
                where=node.location,
                remedy="modify a copy of the input (.clone()) in place",
            )
        if not is_repeatable(node):
            raise LoweringError(
                f"the backward pass needs %{node.name}, which is not saved, and {node.target} must not run twice",
                where=node.location,
            )

    # -- forward ------------------------------------------------------------------------------------------------------

    def _forward(self, saved: tuple[Node, ...]) -> OperatorGraph:
        joint = self.joint
        apart = set(joint.write_backs)
        sources = [node for node in saved if node not in self.primals]
        needed = ancestors((*joint.outputs, *sources, *(n for n in joint.forward_nodes if _must_run(n))))
        copier = _Copier(joint)
        copies: dict[Node, Node] = {}
        for node in joint.primals:
            copier.copy(node)
        for node in saved:
            if node in self.primals:  # the program modifies it: its contents as of now are a value of their own
                copies[node] = copier.graph.create(
                    "call_function",
                    aten.clone.default,
                    (copier.twins[node],),
                    {},
                    name=f"{node.name}_before",
                    origins=node.origins,
                    location=node.location,
                    val=clone_meta(node.val),
                )
        for node in joint.forward_nodes:
            if node.op != "placeholder" and node in needed and node not in apart:
                copier.copy(node)
        for node in joint.write_backs:
            copier.copy(node)
        kept = [copies.get(node) or copier.twins[node] for node in saved]
        memories = [self.kinds.base(node).name for node in joint.outputs]
        memories += [copies[node].name if node in copies else self.kinds.base(node).name for node in saved]
        copier.graph.set_output((*(copier.twins[node] for node in joint.outputs), *kept))
        return copier.finish(memories, write_backs=joint.write_backs, takes_the_rest=True)

    # -- backward -----------------------------------------------------------------------------------------------------

    def _backward(
        self, primals: tuple[Node, ...], saved: tuple[Node, ...], recomputed: tuple[Node, ...]
    ) -> OperatorGraph:
        joint = self.joint
        copier = _Copier(joint)
        tangents = [node for node in joint.tangents if node is not None]
        for node in (*primals, *saved, *tangents):
            copier.placeholder(node)
        again = set(recomputed)

        def compute_again(roots: Iterable[Node]) -> None:
            """Recomputed values stand right before their first reader, so that they need not live long."""
            missing = {node for node in roots if node not in copier.twins and node not in joint.backward}
            waiting = list(missing)
            while waiting:
                for source in waiting.pop().inputs:
                    if source not in copier.twins and source not in missing:
                        missing.add(source)
                        waiting.append(source)
            for node in sorted(missing, key=self.order.__getitem__):
                assert node in again or node.op == "get_attr", node
                copier.copy(node)

        for node in joint.backward_nodes:
            if node.op != "placeholder":
                compute_again(node.inputs)
                copier.copy(node)
        gradients = [node for node in joint.gradients if node is not None]
        compute_again(gradients)
        copier.graph.set_output(tuple(None if node is None else copier.twins[node] for node in joint.gradients))
        known = set(saved) | set(primals)
        memories = [None if n is None else (n if n in known else self.kinds.base(n)).name for n in joint.gradients]
        return copier.finish(memories)


def _must_run(node: Node) -> bool:
    overload = isinstance(node.target, torch._ops.OpOverload)
    return node.op == "call_function" and overload and has_effect(node.target, node.args)


def ancestors(roots: Iterable[Node]) -> set[Node]:
    """The roots and everything they are computed from."""
    found = set(roots)
    waiting = list(found)
    while waiting:
        for source in waiting.pop().inputs:
            if source not in found:
                found.add(source)
                waiting.append(source)
    return found


def take_over(graph: Graph, node: Node, op: str, target: Any, args: tuple, kwargs: dict[str, Any], val: Any) -> Node:
    """A node for ``graph`` that stands for one of another: its name and what it stems from, with other contents."""
    return graph.create(
        op, target, args, kwargs, name=node.name, origins=node.origins, location=node.location, val=val
    )


def constants_of(graph: Graph, constants: Mapping[str, Any]) -> dict[str, Any]:
    """Those of ``constants`` that ``graph`` reads."""
    return {node.target: constants[node.target] for node in graph if node.op == "get_attr"}


@dataclass
class _Copier:
    """A graph that takes over nodes of another under their own names."""

    joint: JointGraph
    graph: Graph = field(default_factory=Graph)
    twins: dict[Node, Node] = field(default_factory=dict)

    def placeholder(self, node: Node) -> None:
        self.twins[node] = take_over(self.graph, node, "placeholder", node.name, (), {}, without_grad(node.val))

    def copy(self, node: Node) -> None:
        if node.op == "placeholder":
            self.placeholder(node)
            return
        args, kwargs = (map_nodes(part, self.twins.__getitem__) for part in (node.args, node.kwargs))
        self.twins[node] = take_over(self.graph, node, node.op, node.target, args, kwargs, without_grad(node.val))

    def finish(
        self, memories: Iterable[str | None], write_backs: tuple[Node, ...] = (), takes_the_rest: bool = False
    ) -> OperatorGraph:
        """The operator graph. Of what is recorded about nodes by name, it gets what is about its own;
        ``takes_the_rest``: and what is about nodes of neither side."""
        joint, graph = self.joint, self.graph
        graph.check()
        names = {node.name for node in graph}
        others = {node.name for node in joint.backward} if takes_the_rest else set()

        def own(name: str) -> bool:
            return name in names if not takes_the_rest else name not in others

        return OperatorGraph(
            GraphModule(graph, constants_of(graph, joint.module.constants)),
            tuple(node.val for node in graph.placeholders),
            tuple(self.twins[node] for node in write_backs),
            (),
            tuple(entry for entry in joint.obstacles if own(entry.node)),
            tuple(entry for entry in joint.decomposed if any(name in names for name in entry.into)),
            tuple(memories),
            joint.versions if takes_the_rest else (0,) * len(graph.placeholders),
            joint.apart if takes_the_rest else frozenset(),
        )


def only_gradients(backward: OperatorGraph) -> tuple[OperatorGraph, tuple[int, ...]]:
    """The backward graph without the places of primals that get no gradient, and which primals the others belong to."""
    graph, _ = backward.graph.copy()
    leaves = graph.output.args[0]
    places = tuple(place for place, leaf in enumerate(leaves) if leaf is not None)
    graph.output.args = (tuple(leaves[place] for place in places),)
    memories = tuple(backward.memories[place] for place in places)
    return replace(backward, module=GraphModule(graph, backward.module.constants), memories=memories), places


def saved_names(backward: OperatorGraph, places: Sequence[tuple[str, int]]) -> frozenset[str]:
    """The inputs of a backward graph that were made for it: saved values and results, not the caller's primals.
    ``places`` says where each comes from (:attr:`Partition.places`); upstream gradients come after them."""
    kept = zip(backward.graph.placeholders, places, strict=False)
    return frozenset(node.name for node, (source, _) in kept if source != "primal")


# -- undefined upstream gradients -------------------------------------------------------------------------------------


def prune_tangents(partition: Any, undefined: Collection[int]) -> OperatorGraph:
    """The backward graph of a partition for upstream gradients some of which are undefined (None).

    ``undefined`` are positions among the forward outputs. The graph returned has no placeholders for their tangents;
    the others stand as before. What depends on undefined tangents and on no defined one is undefined, and so is a
    gradient that comes to that: None takes its place. Adding something undefined changes nothing. Any other operator
    that reads defined and undefined values gets zeros for the latter, as eager execution makes them there.

    O(V + E). Raises TransformError for a position that has no tangent.
    """
    return without_tangents(partition.backward, partition.joint.tangents, undefined)


def without_tangents(
    backward: OperatorGraph, tangents: Sequence[Node | None], undefined: Collection[int]
) -> OperatorGraph:
    """The same for any graph that maps ``tangents``, among others, to gradients."""
    for place in undefined:
        if not 0 <= place < len(tangents) or tangents[place] is None:
            raise TransformError(f"forward output {place} has no upstream gradient that could be undefined")
    names = {tangents[place].name for place in undefined}
    return backward if not names else _Pruning(backward, tangents, names).graph_without()


class _Pruning:
    def __init__(self, backward: OperatorGraph, tangents: Iterable[Node | None], names: set[str]):
        self.backward = backward
        self.undefined = {node for node in backward.graph.placeholders if node.name in names}
        every = {node.name for node in tangents if node is not None}
        self.defined = {n for n in backward.graph.placeholders if n.name in every} - self.undefined
        self.graph = Graph()
        self.twins: dict[Node, Node] = {}
        self.zeros: dict[Node, Node] = {}

    def graph_without(self) -> OperatorGraph:
        for node in self.backward.graph:
            if node.op == "output":
                leaves = tuple(None if n is None or n in self.undefined else self.twins[n] for n in node.args[0])
                self.graph.set_output(leaves)
            elif node not in self.undefined:
                self._take(node)
        memories = [
            None if node is None or node in self.undefined else self._memory(node, old)
            for node, old in zip(self.backward.graph.output.args[0], self.backward.memories, strict=True)
        ]
        self._remove_dead()
        self.graph.check()
        names = {node.name for node in self.graph}
        return replace(
            self.backward,
            module=GraphModule(self.graph, constants_of(self.graph, self.backward.module.constants)),
            inputs=tuple(node.val for node in self.graph.placeholders),
            obstacles=tuple(entry for entry in self.backward.obstacles if entry.node in names),
            decomposed=tuple(e for e in self.backward.decomposed if any(name in names for name in e.into)),
            memories=tuple(memories),
            versions=(0,) * len(self.graph.placeholders),
        )

    def _take(self, node: Node) -> None:
        missing = [source for source in node.inputs if source in self.undefined]
        is_defined = any(source in self.defined for source in node.inputs)
        if missing and not is_defined:
            self.undefined.add(node)
            return
        if is_defined:
            self.defined.add(node)
        if missing and (kept := self._sum_of_one(node)) is not None:
            self.twins[node] = self.twins[kept]
            return
        change = {source: self._zeros(source) if source in missing else self.twins[source] for source in node.inputs}
        args, kwargs = (map_nodes(part, change.__getitem__) for part in (node.args, node.kwargs))
        self.twins[node] = take_over(self.graph, node, node.op, node.target, args, kwargs, node.val)

    def _sum_of_one(self, node: Node) -> Node | None:
        """The defined summand of a sum whose other one is undefined, if it looks like the sum."""
        if node.target is not aten.add.Tensor or len(nodes_in(node.args[:2])) != 2:
            return None
        first, second = node.args[:2]
        kept = second if first in self.undefined else first
        alpha = node.kwargs.get("alpha", 1)
        return kept if kept.val == node.val and (kept is first or alpha == 1) else None

    def _zeros(self, node: Node) -> Node:
        """Zeros with the geometry of an undefined value."""
        if node not in self.zeros:
            if not isinstance(node.val, TensorMeta):
                raise TransformError(f"no zeros can be made for the several results of %{node.name}")
            self.zeros[node] = self._filled(node.val, node)
        return self.zeros[node]

    def _filled(self, meta: TensorMeta, node: Node) -> Node:
        shape = tuple(1 if step == 0 else n for n, step in zip(meta.shape, meta.stride, strict=True))
        own = TensorMeta(shape, meta.stride, meta.dtype, meta.device)
        details = {"origins": node.origins, "location": node.location}
        placed = {"dtype": meta.dtype, "device": meta.device}
        if own.is_contiguous:
            own = TensorMeta(shape, tuple(torch.empty(shape, device="meta").stride()), meta.dtype, meta.device)
            made = self.graph.create(
                "call_function", aten.zeros.default, (list(shape),), placed, name="zeros", val=own, **details
            )
        else:
            room = self.graph.create(
                "call_function",
                aten.empty_strided.default,
                (list(shape), list(meta.stride)),
                placed,
                val=own,
                **details,
            )
            made = self.graph.create(
                "call_function", aten.zero.default, (room,), {}, name="zeros", val=clone_meta(own), **details
            )
        if shape == meta.shape:
            return made
        return self.graph.create("call_function", aten.expand.default, (made, list(meta.shape)), val=meta, **details)

    def _memory(self, node: Node, old: str | None) -> str | None:
        """A gradient that is now a summand itself has that summand's memory."""
        twin = self.twins[node]
        return twin.name if twin.name != node.name and old == node.name else old

    def _remove_dead(self) -> None:
        for node in reversed(self.graph.nodes):
            if node.op in ("call_function", "get_attr") and not node.users and not _must_run(node):
                self.graph.erase(node)
