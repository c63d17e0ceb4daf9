"""Dividing the joint graph: which forward values are saved, and which are computed again (Sections 5.4 and 5.5).

Saving everything costs memory, computing everything again costs time. A set of saved values is *feasible* (Definition
5.1) if every path from a value that must not be computed again to one the backward pass reads goes through it; then the
backward pass can get whatever it reads by cheap operations alone. Split every value into two vertices joined by an edge
of its capacity, join the values by edges of infinite capacity, the source to all of U and all of B to the sink
(Definition 5.2): the finite cuts of that network are the feasible sets (Proposition 5.1), so the cheapest one is a
minimum cut, found in polynomial time (:mod:`.network`). What goes into U, into B and into the capacities is the subject
of :mod:`.values`, and making the two graphs that of :mod:`.split`.

In Example 5.1, ``gelu(x @ W).sum()``, the product h is the only value in U that is read by the backward pass. Saving it
costs 8192 x 1.1 = 9011.2, that is the minimum cut, and the backward loop computes the derivative of gelu from h.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..capture.graph import Node
from ..operators.graph import OperatorGraph
from ..options import Decision, Options
from .budget import BudgetPlan, budget_in_bytes, within_budget
from .graph import JointGraph
from .network import Flow, FlowNetwork, capacity_text, maximum_flow
from .split import prune_tangents, split
from .values import ForwardValue, KindOf, Kinds, forward_values, modified_primals, rematerialization_network

__all__ = ["Partition", "partition", "prune_tangents", "rematerialization_network"]


@dataclass(frozen=True)
class Partition:
    """A joint graph divided into a forward and a backward graph.

    ``plan`` is "min cut", "save all" (``reason`` says why no cut is possible) or "budget". ``values`` are the forward
    values with what Section 5.4 asks about them, in order, ``network`` and ``flow`` the model and its solution:
    the value number k has the vertices 2 k (in) and 2 k + 1 (out).

    ``saved`` are nodes of the joint graph (a modified primal stands for a copy of its old contents), ``recomputed``
    likewise; ``primals_read`` are the primals that the backward graph reads. ``decisions`` says for every value what
    becomes of it and why.

    ``forward`` maps the primals to ``(*joint.outputs, *saved)``; ``backward`` maps ``(*primals_read, *saved,
    *tangents)``, where tangents are those that are not None, to a gradient or None for each primal.

    ``budget`` is what the plan of that name rests on.

    ``saved_bytes`` is what is kept between the two, without primals; ``eager_bytes`` what eager execution keeps, and
    ``save_all_bytes`` what keeping every value the backward pass reads would, in distinct memory.
    """

    joint: JointGraph
    plan: str
    reason: str
    values: tuple[ForwardValue, ...]
    network: FlowNetwork
    flow: Flow
    saved: tuple[Node, ...]
    primals_read: tuple[Node, ...]
    recomputed: tuple[Node, ...]
    decisions: tuple[Decision, ...]
    saved_bytes: int
    eager_bytes: int
    save_all_bytes: int
    forward: OperatorGraph
    backward: OperatorGraph
    budget: BudgetPlan | None = None

    @property
    def cut(self) -> tuple[Node, ...]:
        """The values the minimum cut goes through."""
        return tuple(self.values[self.network.tails[edge] // 2].node for edge in self.flow.cut)

    @property
    def places(self) -> tuple[tuple[str, int], ...]:
        """Where at run time each value is found that the backward graph starts from: ``("primal", k)``, ``("output",
        k)`` (a result that is kept as well) or ``("saved", k)``."""
        joint = self.joint
        primal, output = ({node: k for k, node in enumerate(nodes)} for nodes in (joint.primals, joint.outputs))
        saved = {node: k for k, node in enumerate(self.saved)}
        found = [("primal", primal[node]) for node in self.primals_read]
        return (*found, *(("output", output[n]) if n in output else ("saved", saved[n]) for n in self.saved))

    def decision(self, name: str) -> Decision:
        """What became of the value called ``name``, and why. KeyError if there is none."""
        for decision in self.decisions:
            if decision.subject == name:
                return decision
        raise KeyError(name)

    def format(self) -> str:
        """Summary, then a line for each value."""
        kept = f"{len(self.saved)} saved, {self.saved_bytes:,} bytes"
        lines = [f"partition by {self.plan}: {kept} (eager {self.eager_bytes:,}, save all {self.save_all_bytes:,})"]
        if self.reason:
            lines.append(f"    {self.reason}")
        rows = [
            (f"%{v.name}", d.choice, f"{v.nbytes:,}", v.beta, v.distance, capacity_text(v.capacity), d.reason)
            for v, d in zip(self.values, self.decisions, strict=True)
        ]
        head = ("value", "", "bytes", "beta", "d", "capacity", "because")
        return "\n".join([*lines, *aligned(head, rows, right=range(2, 6))])

    __str__ = format

    def __repr__(self) -> str:
        return f"<partition by {self.plan}: {len(self.saved)} values saved, {self.saved_bytes:,} bytes>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def partition(joint: JointGraph, options: Options | None = None, *, kind_of: KindOf) -> Partition:
    """Divide ``joint`` at a minimum cut of its rematerialization network, or as ``options.memory_budget`` asks.

    ``kind_of`` says in a word how the back end treats a node (``staxlab.loops.lowering.kinds``). O(V^2 E) at worst,
    in practice a few passes over the graph. Raises LoweringError where the backward pass needs a value that can neither
    be saved nor computed again, and ConstraintError for a budget that cannot be kept.
    """
    kinds = Kinds(kind_of)
    values = forward_values(joint, kinds)
    network = rematerialization_network(values)
    flow = maximum_flow(network)
    everything = save_all(joint, values)
    if options is not None and options.memory_budget is not None:
        sizes = {value.node: value.nbytes for value in values}
        limit = budget_in_bytes(options.memory_budget, sum(sizes[node] for node in everything))
        found = within_budget(values, kinds, limit)
        return divided(joint, kinds, values, network, flow, found.saved, "budget", str(found), everything, found)
    if flow.is_finite:
        plan, reason = "min cut", ""
        saved: Iterable[Node] = [values[network.tails[edge] // 2].node for edge in flow.cut]
    else:
        way = " -> ".join(network.name(vertex) for vertex in flow.paths[-1].vertices)
        plan, reason = "save all", f"no finite cut: nothing on the way {way} can be saved"
        saved = everything
    return divided(joint, kinds, values, network, flow, saved, plan, reason, everything)


def divided(
    joint: JointGraph,
    kinds: Kinds,
    values: tuple[ForwardValue, ...],
    network: FlowNetwork,
    flow: Flow,
    saved: Iterable[Node],
    plan: str,
    reason: str,
    everything: Sequence[Node],
    budget: BudgetPlan | None = None,
) -> Partition:
    """The record of a partition that saves ``saved``, as far as the backward side needs them."""
    parts = split(joint, list(saved), kinds)
    sizes = {value.node: value.nbytes for value in values}
    return Partition(
        joint,
        plan,
        reason,
        values,
        network,
        flow,
        parts.saved,
        parts.primals_read,
        parts.recomputed,
        tuple(_decision(value, parts.saved, parts.recomputed, plan) for value in values),
        sum(sizes[node] for node in parts.saved),
        eager_bytes(joint, kinds),
        sum(sizes[node] for node in everything),
        parts.forward,
        parts.backward,
        budget,
    )


def save_all(joint: JointGraph, values: Sequence[ForwardValue]) -> list[Node]:
    """What is kept if all the backward pass reads is: those values, for views what they look at, and for what else
    cannot be saved, what it is made of."""
    known = {value.node: value for value in values}
    waiting = [node for node in joint.read_by_backward if node in known]
    seen = set(waiting)
    kept: list[Node] = []
    while waiting:
        node = waiting.pop()
        if not known[node].unsavable:
            kept.append(node)
            continue
        for source in node.inputs:
            if source in known and source not in seen:
                seen.add(source)
                waiting.append(source)
    place = {value.node: k for k, value in enumerate(values)}
    return sorted(kept, key=place.__getitem__)


def eager_bytes(joint: JointGraph, kinds: Kinds) -> int:
    """What eager execution keeps for its backward pass, in bytes of distinct memory. Primals and constants are there
    anyway."""
    free = (set(joint.primals) - modified_primals(joint)) | {n for n in joint.graph if n.op == "get_attr"}
    bases = {kinds.base(node) for node in joint.saved_by_eager}
    return sum(node.val.nbytes for node in bases - free if hasattr(node.val, "nbytes"))


def _decision(value: ForwardValue, saved: tuple[Node, ...], recomputed: tuple[Node, ...], plan: str) -> Decision:
    facts = (("bytes", value.nbytes), ("beta", value.beta), ("d", value.distance), ("read", value.is_read))
    if value.node in saved:
        choice = "saved"
        read = "the backward pass reads it" if value.is_read else "values the backward pass reads are made of it"
        reason = f"{read}; {value.source}" if value.source else f"{read}; {_WHY_SAVED[plan]}"
    elif value.node in recomputed:
        choice = "recomputed"
        reason = value.unsavable or _WHY_RECOMPUTED[plan]
    else:
        choice = "not needed"
        reason = "the backward pass gets along without it"
    return Decision("save", value.name, choice, reason, ("saved", "recomputed", "not needed"), facts)


_WHY_SAVED = {
    "min cut": "cheaper to save than what it is made of",
    "save all": "everything that is read is saved",
    "budget": "it saves more work than others of its size",
}
_WHY_RECOMPUTED = {
    "min cut": "cheap operations lead to it from what is saved or given",
    "save all": "it cannot be saved",
    "budget": "computing it again is the cheapest way to stay within the budget",
}


def aligned(head: Sequence[Any], rows: Sequence[Sequence[Any]], right: Collection[int]) -> list[str]:
    """A table as lines of text; the columns ``right`` are numbers, and end together."""
    cells = [[str(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[k]) for row in cells) for k in range(len(head))]
    return [
        "    "
        + "  ".join(
            c.rjust(w) if k in right else c.ljust(w) for k, (c, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in cells
    ]
