"""The forward values as Section 5.4 sees them: what saving one costs, and which must not be computed again.

The backward pass gets a forward value either from memory or by computing it again. This module says, for every value,
what the min-cut model asks: is it read by the backward pass (the set *B*), is it one that had better not be computed
again (the set *U*), and what is its capacity ``c(v) = b(v) beta(v) 1.1^d(v)``?

A value is in U when

1. it does not come from a *cheap* operation: matrix products, whatever PyTorch runs. A normalization is not cheap
   either: the reduction in it, which rule 3 would keep from being repeated, is no value of its own that could be saved;
2. the backward pass writes it to memory anyway, because a reader there cannot fuse with it: computing it again would
   then save no memory traffic;
3. it is the result of a reduction, so that computing it again means reading all it was made of: four times its bytes
   are less than those of its operands.

and further where repeating it is not possible (random numbers; an input the program has modified since) or would drag a
long chain along (the two rules of :func:`_mark_forced`).

Views are never saved: they own no memory, so saving one is saving what it looks at. Nor are tuples of results; their
items are. And a result that eager execution does not keep is not kept either, cheap as that would be: a caller who
modifies it before the backward pass would get an error that eager execution has no reason for.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.failing import is_foreign
from ..capture.graph import Node, TensorMeta
from ..operators.basis import is_random
from ..operators.structure import flatten
from .graph import JointGraph
from .network import INFINITE, FlowNetwork, capacity_text

KindOf = Callable[[Node], str]

#: Kinds whose results may be computed again in the backward pass.
CHEAP = frozenset({"pointwise", "view", "storage view", "item", "reduction", "factory", "joining", "indexing"})
#: Kinds of generated loops, into which what they read can be fused.
FUSING = frozenset(
    {"pointwise", "reduction", "scan", "scatter", "normalization", "factory", "joining", "indexing", "window"}
)
VIEWS = frozenset({"view", "storage view"})

#: A reduction is one whose results are this many times smaller than what it reads.
REDUCES_BY = 4
#: How much one more forward step between a value and its first backward reader adds to the price of saving it.
GROWTH = 1.1
#: Distances are clipped to this range. 1.1^100 is 13,781: beyond it nothing is saved for its nearness any more, and
#: capacities of large models stay far from the largest float.
NEAREST, FARTHEST = 1, 100
#: A chain of this many fusible operations is broken by a value that is not computed again. One fused loop computes a
#: short chain again for the price of reading its start; a chain through a whole model (a residual stream) would be
#: computed again from the model's beginning. At the distance where the capacities stop to tell near from far, so does
#: the chain.
LONGEST_CHAIN = FARTHEST


@dataclass(frozen=True)
class ForwardValue:
    """A vertex of the rematerialization network (Definition 5.2), before it is one.

    ``nbytes`` is what saving the value would keep, in bytes. ``is_read`` says that it is in B. ``source`` says why it
    is in U, ``materialized`` why it is in memory in the forward pass anyway, ``unsavable`` why it cannot be saved;
    each is empty where it is not so. ``distance`` is d(v), in forward steps.
    """

    node: Node
    kind: str
    nbytes: int
    is_read: bool
    source: str
    materialized: str
    unsavable: str
    distance: int

    @property
    def beta(self) -> int:
        """What writing the value costs in addition: 1 if it is written anyway, else 2."""
        return 1 if self.materialized else 2

    @property
    def capacity(self) -> float:
        """``b beta 1.1^d``, in weighted bytes; infinite where the value cannot be saved."""
        return INFINITE if self.unsavable else self.nbytes * self.beta * GROWTH**self.distance

    @property
    def is_repeatable(self) -> bool:
        return is_repeatable(self.node)

    @property
    def name(self) -> str:
        return self.node.name

    def __str__(self) -> str:
        sets = "".join(letter for letter, is_in in (("U", self.source), ("B", self.is_read)) if is_in) or "-"
        price = f"b={self.nbytes:,} beta={self.beta} d={self.distance} c={capacity_text(self.capacity)}"
        return f"%{self.name} [{sets}] {price}"


def forward_values(joint: JointGraph, kind_of: KindOf) -> tuple[ForwardValue, ...]:
    """Every value of the forward side that has to come from somewhere, in order. O(V + E).

    Primals and constants are none: the backward pass may read them for free. But a primal the program modifies is, for
    by then its old contents are gone: saving it means copying it.
    """
    return _Analysis(joint, kind_of).values()


def is_repeatable(node: Node) -> bool:
    """Whether running the node again gives the same value and does nothing besides, whatever it costs."""
    if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
        return node.op == "get_attr" or node.target is operator.getitem
    if is_random(node.target) or is_foreign(node.target) or node.target._schema.is_mutable:
        return False
    metas = [leaf for leaf in flatten(node.val) if isinstance(leaf, TensorMeta)]
    return node.target._opname not in _IN_ANY_ORDER or all(meta.device.type == "cpu" for meta in metas)


#: On a GPU these add up, or choose among equals, in the order in which threads happen to arrive.
_IN_ANY_ORDER = frozenset(
    "scatter_add scatter_reduce index_add index_put _index_put_impl index_reduce put histc bincount median mode "
    "kthvalue cumsum embedding_dense_backward embedding_bag _embedding_bag_forward_only".split()
)


def modified_primals(joint: JointGraph) -> frozenset[Node]:
    """The primals that the program gives new contents."""
    return frozenset(node.args[0] for node in joint.write_backs)


def rematerialization_network(
    values: Sequence[ForwardValue],
    capacity: Callable[[ForwardValue], float] | None = None,
    is_source: Callable[[ForwardValue], bool] | None = None,
) -> FlowNetwork:
    """The network of Definition 5.2. Value number k has the vertices 2 k (in) and 2 k + 1 (out); then come the source
    and the sink. The edges: the values' own, the dependences, those of the source, those of the sink.

    ``capacity`` and ``is_source`` take the place of the capacities and of the set U of Section 5.4.
    """
    capacity = capacity or (lambda value: value.capacity)
    is_source = is_source or (lambda value: bool(value.source))
    place = {value.node: k for k, value in enumerate(values)}
    source, sink = 2 * len(values), 2 * len(values) + 1
    edges = [(2 * k, 2 * k + 1, capacity(value)) for k, value in enumerate(values)]
    edges += [
        (2 * place[read] + 1, 2 * k, INFINITE)
        for k, value in enumerate(values)
        for read in value.node.inputs
        if read in place
    ]
    edges += [(source, 2 * k, INFINITE) for k, value in enumerate(values) if is_source(value)]
    edges += [(2 * k + 1, sink, INFINITE) for k, value in enumerate(values) if value.is_read]
    names = [f"{value.name}_{end}" for value in values for end in ("in", "out")]
    return FlowNetwork.of(sink + 1, edges, source, sink, [*names, "s", "t"])


class Kinds:
    """``kind_of`` remembered, and what follows from it for single nodes."""

    def __init__(self, kind_of: KindOf):
        self._kind_of = kind_of
        self._known: dict[Node, str] = {}
        self._roots: dict[Node, Node] = {}

    def __call__(self, node: Node) -> str:
        kind = self._known.get(node)
        if kind is None:
            kind = self._known[node] = self._kind_of(node)
        return kind

    def producer(self, node: Node) -> str:
        """The kind of the operation a value comes from: for an item, of the operation it is a result of."""
        return self(node.args[0]) if self(node) == "item" else self(node)

    def is_view(self, node: Node) -> bool:
        """Whether the value looks at another's memory: a view, or one of several that a view operator makes."""
        return self.producer(node) in VIEWS

    def base(self, node: Node) -> Node:
        """The value whose memory this one looks at (itself if it is no view)."""
        chain = []
        while node not in self._roots and self.is_view(node):
            chain.append(node)
            node = node.args[0]
        root = self._roots.get(node, node)
        for passed in chain:
            self._roots[passed] = root
        return root


class _Analysis:
    def __init__(self, joint: JointGraph, kind_of: KindOf):
        self.joint = joint
        self.kind = kind_of if isinstance(kind_of, Kinds) else Kinds(kind_of)
        self.modified = modified_primals(joint)
        apart = set(joint.write_backs)
        self.nodes = tuple(
            node
            for node in joint.forward_nodes
            if node not in apart and (node.op not in ("placeholder", "get_attr") or node in self.modified)
        )
        self.forward = set(self.nodes)
        self.position = {node: k for k, node in enumerate(self.nodes)}
        self.read = set(joint.read_by_backward)
        self.results = set(joint.outputs)
        self.returned = {node for node in joint.gradients if node is not None}
        visible = joint.outputs[: len(joint.outputs) - len(joint.drawn)]
        kept = {self.kind.base(node) for node in (*joint.saved_by_eager, *joint.read_by_backward)}
        self.open = {self.kind.base(node) for node in visible} - kept

    def values(self) -> tuple[ForwardValue, ...]:
        far = self._distances()
        self.open &= {self.kind.base(node) for node, steps in far.items() if steps < INFINITE}
        written = self._written_by_backward()
        materialized = self._materialized()
        sources = {node: self._source(node, written.get(node, "")) for node in self.nodes}
        self._mark_forced(sources)
        return tuple(
            ForwardValue(
                node, self.kind(node), _bytes(node), node in self.read, sources[node], materialized.get(node, ""),
                self._unsavable(node), int(min(max(far[node], NEAREST), FARTHEST)),
            )
            for node in self.nodes
        )  # fmt: skip

    def _passes_on(self, node: Node) -> bool:
        """Whether a reader does not compute but shows (part of) the value it reads to its own readers."""
        return self.kind(node) in ("view", "item")

    # -- the price ----------------------------------------------------------------------------------------------------

    def _distances(self) -> dict[Node, float]:
        """d(v) before it is clipped: the forward steps to the nearest backward reader, infinite where no chain of
        readers leads to one. A view is no step, for it computes nothing."""
        far: dict[Node, float] = {}
        for node in reversed(self.nodes):
            own = 0 if self._passes_on(node) else 1
            nearest = NEAREST if node in self.returned else INFINITE
            for user in node.users:
                if user in self.joint.backward:
                    nearest = min(nearest, own)
                elif user in far:
                    nearest = min(nearest, far[user] + own)
            far[node] = nearest
        return far

    def _materialized(self) -> dict[Node, str]:
        """Why a value is in memory after the forward pass has made it, whether or not it is saved."""
        reasons: dict[Node, str] = {}
        for node in reversed(self.nodes):
            own = self._made_in_memory(node) if not self.kind.is_view(node) else ""
            if node in self.results:
                own = own or "a result of the program"
            for user in node.users:
                if own or user not in self.forward:
                    continue
                if self._passes_on(user):
                    own = reasons.get(user, "") if self.kind.is_view(user) else ""
                elif self.kind(user) not in FUSING:
                    own = f"%{user.name} reads it from memory"
            if own:
                reasons[node] = own
        return reasons

    def _made_in_memory(self, node: Node) -> str:
        kind = self.kind.producer(node)
        if kind in ("library", "fallback", "random"):
            return "PyTorch's routine writes it"
        if kind == "template":
            return "a product of matrices is written"
        if kind == "scan":
            return "a scan is written"
        if kind == "scatter":
            return "a scatter is written"
        if kind == "reduction" or (kind == "normalization" and self._is_reduced(node)):
            return "a reduction is written"
        return ""

    def _unsavable(self, node: Node) -> str:
        if self.kind.is_view(node):
            return f"a view: %{self.kind.base(node).name} is what it looks at"
        if isinstance(node.val, (tuple, list)):
            return "several results: each is a value of its own"
        if not isinstance(node.val, TensorMeta):
            return "not a tensor"
        if node in self.open:
            return "the caller gets it and may modify it, since eager execution does not keep it"
        if node in self.modified and clone_meta(node.val).stride != node.val.stride:
            return "a copy would have other strides than the input"
        return ""

    # -- the set U ----------------------------------------------------------------------------------------------------

    def _source(self, node: Node, written: str) -> str:
        if node in self.modified:
            return "modified by the program: its old contents are gone in the backward pass"
        if self.kind.is_view(node):
            return ""
        if self.kind(node) == "item":
            # What an item comes from is a source itself; but a small item can be kept where a large one is not.
            if written:
                return written
            return "" if not self._is_reduced(node) else _REDUCED
        kind = self.kind(node)
        if kind == "random":
            return "random numbers: drawing again would give others"
        if kind not in CHEAP:
            return f"rule 1: {_short(node)} is not cheap ({kind})"
        if written:
            return written
        return _REDUCED if kind == "reduction" and self._is_reduced(node) else ""

    def _is_reduced(self, node: Node) -> bool:
        """Whether the value is a result of an operation that reduces, and less than a quarter of what that reads."""
        call = node.args[0] if self.kind(node) == "item" else node
        if self.kind(call) not in ("reduction", "normalization"):
            return False
        return REDUCES_BY * _bytes(node, parts=True) < sum(_bytes(source) for source in call.inputs)

    def _written_by_backward(self) -> dict[Node, str]:
        """Rule 2: values that some backward reader wants in memory, each with the reason. What is asked of a view is
        asked of its base."""
        reasons: dict[Node, str] = {}
        everything = [node for node in self.joint.graph if node in self.forward or node in self.joint.backward]
        for node in reversed(everything):
            reason = f"rule 2: %{node.name} is returned as a gradient" if node in self.returned else ""
            for user in node.users:
                if reason:
                    break
                if user not in self.forward and user not in self.joint.backward:
                    continue
                if self._passes_on(user):
                    reason = reasons.get(user, "") if self.kind.is_view(user) else ""
                elif self.kind(user) in FUSING:
                    continue
                elif user in self.joint.backward or (self.kind(user) in VIEWS and self._is_wanted(user, reasons)):
                    reason = f"rule 2: %{user.name} of the backward pass reads it from memory"
            if reason:
                reasons[node] = reason
        return reasons

    def _is_wanted(self, node: Node, written: dict[Node, str]) -> bool:
        return node in self.read or node in written

    def _mark_forced(self, sources: dict[Node, str]) -> None:
        """The two supplementary rules, which keep whole chains from being computed again.

        *Read nearby and far away*: a value is read by the loop that follows it and once more after that loop has ended,
        that is after an operation that cannot be fused and depends on it. So passes a residual stream through a model:
        each layer adds to it, and computing it again at the end would mean computing it again from the start.

        *The end of a long chain*: the last of LONGEST_CHAIN fusible operations in a row.
        """
        ends: dict[Node, int] = {}  # the first operation that ends the loop a value is read in
        last: dict[Node, tuple[int, str]] = {}  # the last loop that reads it
        beyond = len(self.nodes)
        for node in reversed(self.nodes):
            end, far = beyond, (-1, "")
            for user in node.users:
                if user not in self.forward:
                    continue
                if self._passes_on(user):
                    end, far = min(end, ends[user]), max(far, last[user])
                elif self.kind(user) in FUSING:
                    end, far = min(end, ends[user]), max(far, (self.position[user], user.name))
                else:
                    end = min(end, self.position[user])
            ends[node], last[node] = end, far
            if far[0] > end and not sources[node] and not self._passes_on(node) and not self.kind.is_view(node):
                between = self.nodes[end].name
                sources[node] = f"read nearby and far away: by %{far[1]} again, after %{between} has ended the loop"
        chain: dict[Node, int] = {}
        for node in self.nodes:
            if sources[node]:
                chain[node] = 0
                continue
            before = max((chain.get(source, 0) for source in node.inputs), default=0)
            chain[node] = before + (0 if self._passes_on(node) else 1)
            if chain[node] >= LONGEST_CHAIN and not self.kind.is_view(node):
                sources[node] = f"the last of {LONGEST_CHAIN} fusible operations in a row"
                chain[node] = 0


_REDUCED = f"rule 3: a reduction, less than 1/{REDUCES_BY} of what it reads"


def _bytes(node: Node, parts: bool = False) -> int:
    """The bytes of a tensor value. A tuple has none, or those of its parts."""
    if isinstance(node.val, TensorMeta):
        return node.val.nbytes
    if not parts:
        return 0
    return sum(leaf.nbytes for leaf in flatten(node.val) if isinstance(leaf, TensorMeta))


def _short(node: Node) -> str:
    return getattr(node.target, "_opname", None) or node.target_name()


def clone_meta(meta: TensorMeta) -> TensorMeta:
    """What ``clone`` makes of a tensor like this."""
    # Not on device "meta", whose first use imports torch._dynamo. What is allocated here is never touched.
    twin = torch.empty_like(torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype))
    return TensorMeta(meta.shape, tuple(twin.stride()), meta.dtype, meta.device)


def without_grad(value: Any) -> Any:
    """Metadata as it is inside a divided graph: nothing there requires grad."""
    if isinstance(value, TensorMeta):
        return TensorMeta(value.shape, value.stride, value.dtype, value.device, False, value.storage_offset)
    if type(value) in (tuple, list):
        return type(value)(map(without_grad, value))
    return value
