"""Memory over time: what is alive while each operator of the forward and the backward pass runs (Sections 5.2 and 5.4).

The forward pass computes values in one order, the backward pass reads them in the opposite one, so what is kept for
it piles up until the turn and is given back after it. How high depends on what is kept; this module draws the curve
for each choice: what eager execution keeps, everything the backward pass reads, the minimum cut, or a memory budget.

A *storage* is a piece of memory of its own: views count as what they look at. It is alive from the operator that
writes it to the last one that reads it, both included, and

* in eager execution every result is a storage. One that the backward pass reads ends with the node of autograd's graph
  that its last reader belongs to: a product has two gradients, one computed after the other, and what it kept, what it
  was handed and what it needed in between is released after both;
* in a compiled region a value has a storage only if it has to be in memory: it is kept or returned, a routine of
  PyTorch's or a reduction writes it, or one of its readers does not fuse with it. The region is *one* node of the graph
  that autograd runs (Section 5.6), but its backward lets go of what was kept for it value by value, each after its last
  reader. A value that is computed again starts just before its first reader.

Results and gradients belong to the caller and stay. Inputs and constants are there anyway, and are counted apart. This
is a model of what has to be in memory, not a measurement: Python variables may hold a tensor of eager execution longer
than its readers need it, and allocators round sizes up.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Any

import torch

from ..capture.graph import Node, TensorMeta
from ..operators.structure import flatten
from ..provenance import Origins
from .budget import TIME_LIMIT, budget_in_bytes, within_budget
from .graph import JointGraph
from .network import maximum_flow
from .partition import aligned, save_all
from .split import Split, split
from .values import FUSING, REDUCES_BY, KindOf, Kinds, forward_values, modified_primals, rematerialization_network

#: Steps that the text form lists one by one, and the width of its charts in characters.
MOST_LISTED, WIDEST = 40, 72
_BLOCKS = " ▁▂▃▄▅▆▇█"


@dataclass(frozen=True)
class Storage:
    """A piece of memory of ``nbytes`` bytes, alive while the steps ``start`` to ``stop`` run, both included.

    ``name`` is that of the value that is written into it. ``kept`` says that the forward pass leaves it to the
    backward pass.
    """

    name: str
    nbytes: int
    start: int
    stop: int
    kept: bool = False

    def is_alive(self, step: int) -> bool:
        return self.start <= step <= self.stop


@dataclass(frozen=True)
class Step:
    """An operator of the joint graph that computes something: its node's name, its side, where it comes from."""

    name: str
    is_backward: bool
    origins: Origins


@dataclass(frozen=True)
class Occupancy:
    """The storages of one way to run the two passes. ``live`` has the bytes alive during each step, ``kept_bytes`` is
    what the forward pass leaves for the backward pass, ``peak`` the most bytes alive at once, first in ``peak_step``.
    """

    name: str
    steps: int
    storages: tuple[Storage, ...]

    @cached_property
    def live(self) -> tuple[int, ...]:
        change = [0] * (self.steps + 1)
        for storage in self.storages:
            change[storage.start] += storage.nbytes
            change[storage.stop + 1] -= storage.nbytes
        return tuple(accumulate(change[:-1]))

    @property
    def kept_bytes(self) -> int:
        return sum(storage.nbytes for storage in self.storages if storage.kept)

    @property
    def peak(self) -> int:
        return max(self.live, default=0)

    @property
    def peak_step(self) -> int:
        return self.live.index(self.peak) if self.live else 0

    def alive(self, step: int) -> tuple[Storage, ...]:
        """What is in memory while a step runs, largest first."""
        found = (storage for storage in self.storages if storage.is_alive(step))
        return tuple(sorted(found, key=lambda storage: -storage.nbytes))


@dataclass(frozen=True)
class MemoryTimeline:
    """Bytes alive over the operators of a joint graph, for several choices of what is kept.

    ``steps`` are the operators in order, the first ``turn`` of them of the forward pass. ``primal_bytes`` is what
    inputs and constants take, which no curve contains.
    """

    steps: tuple[Step, ...]
    turn: int
    primal_bytes: int
    curves: tuple[Occupancy, ...]

    def __getitem__(self, name: str) -> Occupancy:
        """The curve of that name. KeyError, with the names there are."""
        for curve in self.curves:
            if curve.name == name:
                return curve
        raise KeyError(f"no curve {name!r}; there are {', '.join(curve.name for curve in self.curves)}")

    def format(self) -> str:
        """A summary and a chart for each curve, then the bytes operator by operator where they are few."""
        forward, backward = self.turn, len(self.steps) - self.turn
        lines = [
            f"bytes alive over {forward} forward and {backward} backward operators "
            f"(inputs and constants, {self.primal_bytes:,} bytes, not counted)"
        ]
        wide = max((len(curve.name) for curve in self.curves), default=0)
        highest = max((curve.peak for curve in self.curves), default=0)
        for curve in self.curves:
            at = self.steps[curve.peak_step].name if self.steps else "-"
            said = f"kept {curve.kept_bytes:>13,}   peak {curve.peak:>13,} at %{at}"
            lines.append(f"    {curve.name:<{wide}}  |{self._chart(curve, highest)}|  {said}")
        if len(self.steps) <= MOST_LISTED:
            lines += ["", *self._listing()]
        return "\n".join(lines)

    def _chart(self, curve: Occupancy, highest: int) -> str:
        """A block for each step, or for the largest of several where there are many; the turn is a colon."""
        each = -(-len(self.steps) // WIDEST) or 1
        sides = (curve.live[: self.turn], curve.live[self.turn :])
        return ":".join(
            "".join(_block(max(side[k : k + each]), highest) for k in range(0, len(side), each)) for side in sides
        )

    def _listing(self) -> list[str]:
        head = ["", "operator", *(curve.name for curve in self.curves)]
        rows = [
            ["BW" if step.is_backward else "FW", f"%{step.name}", *(f"{curve.live[k]:,}" for curve in self.curves)]
            for k, step in enumerate(self.steps)
        ]
        return aligned(head, rows, right=range(2, len(head)))

    __str__ = format

    def __repr__(self) -> str:
        return f"<memory over {len(self.steps)} operators: {', '.join(curve.name for curve in self.curves)}>"

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def _block(size: int, highest: int) -> str:
    return _BLOCKS[-(-size * (len(_BLOCKS) - 1) // highest)] if highest else " "


def memory_timeline(
    joint: JointGraph, *, kind_of: KindOf, budgets: Iterable[int | float] = (), time_limit: float = TIME_LIMIT
) -> MemoryTimeline:
    """Bytes alive over the operators of ``joint``: in eager execution, keeping all that is read, at the minimum cut
    (where there is a finite one), and for each of ``budgets``, as ``Options.memory_budget`` has them.

    O(V + E) for each curve, besides finding the cut and the plans. Errors of budgets as :func:`.budget.within_budget`;
    LoweringError where a value can neither be kept nor computed again.
    """
    kinds = Kinds(kind_of)
    values = forward_values(joint, kinds)
    model = _Model(joint, kinds)
    everything = save_all(joint, values)
    curves = [model.eager(), model.compiled("save all", split(joint, everything, kinds))]
    network = rematerialization_network(values)
    flow = maximum_flow(network)
    if flow.is_finite:
        cut = [values[network.tails[edge] // 2].node for edge in flow.cut]
        curves.append(model.compiled("min cut", split(joint, cut, kinds)))
    most = sum(node.val.nbytes for node in everything)
    for budget in budgets:
        limit = budget_in_bytes(budget, most)
        plan = within_budget(values, kinds, limit, time_limit=time_limit)
        curves.append(model.compiled(f"budget {limit:,}", split(joint, plan.saved, kinds)))
    steps = tuple(Step(node.name, node in joint.backward, node.origins) for node in model.steps)
    return MemoryTimeline(steps, model.turn, model.primal_bytes, tuple(curves))


class _Model:
    """Where the storages of a joint graph begin and end."""

    def __init__(self, joint: JointGraph, kinds: Kinds):
        self.joint, self.kinds = joint, kinds
        self.last = joint.write_backs  # run after everything else of the forward pass
        computing = [node for node in joint.graph if node.op == "call_function" and not self._hands_on(node)]
        forward = [node for node in computing if node not in joint.backward and node not in self.last]
        self.steps = (*forward, *self.last, *(node for node in computing if node in joint.backward))
        self.turn = len(forward) + len(self.last)
        self.end = len(self.steps) - 1
        self.position = {node: k for k, node in enumerate(self.steps)}
        free = set(joint.primals) | {node for node in joint.graph if node.op == "get_attr"}
        self.primal_bytes = sum(_bytes(node) for node in free)
        self.results = {kinds.base(node) for node in joint.outputs} - free
        self.gradients = {kinds.base(node) for node in joint.gradients if node is not None} - free
        self.modified = modified_primals(joint)

    def _hands_on(self, node: Node) -> bool:
        """Whether a node computes nothing: a view, or one of several results."""
        return self.kinds(node) == "item" or self.kinds.is_view(node)

    def readers(self, value: Node) -> Iterator[Node]:
        """The operators that read a value's memory, through views as well."""
        for user in value.users:
            if user.op == "output":
                continue
            if self._hands_on(user):
                yield from self.readers(user)
            else:
                yield user

    def values_of(self, call: Node) -> list[Node]:
        """The results of an operator that are tensors; each has memory of its own."""
        if call in self.last:
            return []
        if isinstance(call.val, TensorMeta):
            return [call]
        return [user for user in call.users if self.kinds(user) == "item" and isinstance(user.val, TensorMeta)]

    def upstream(self, when: Callable[[Node], int]) -> Iterator[Storage]:
        """The gradients that are handed in at the turn."""
        for node in self.joint.tangents:
            if node is not None and self.turn <= self.end:
                yield Storage(node.name, _bytes(node), self.turn, when(node))

    # -- eager execution ----------------------------------------------------------------------------------------------

    def eager(self) -> Occupancy:
        """Every result is in memory until it has been read for the last time."""
        packed = {self.kinds.base(node) for node in self.joint.saved_by_eager}
        storages = [Storage(node.name, _bytes(node), 0, self.end, True) for node in packed & self.modified]

        together: dict[Any, int] = {}  # the last step of each node of autograd's graph
        for step, call in enumerate(self.steps):
            together[self._group(call)] = step

        def last_read(value: Node) -> int:
            return max((together[self._group(reader)] for reader in self.readers(value)), default=-1)

        for start, call in enumerate(self.steps):
            for value in self.values_of(call):
                kept = value in packed
                stop = max(start, last_read(value))
                # What is packed and never read is released with the graph.
                if value in self.results or value in self.gradients or (kept and stop < self.turn):
                    stop = self.end
                storages.append(Storage(value.name, _bytes(value), start, stop, kept))
        storages += self.upstream(lambda node: max(self.turn, last_read(node)))
        return Occupancy("eager", len(self.steps), tuple(storages))

    def _group(self, node: Node) -> Any:
        """The node of autograd's graph an operator belongs to. Forward operators stand alone, and so do the sums of
        gradients that the engine makes between two nodes."""
        if node not in self.joint.backward:
            return node
        is_sum = node.target is torch.ops.aten.add.Tensor and self.joint.backward.issuperset(node.inputs)
        return node if is_sum else node.meta.get("autograd_node", node)

    # -- a compiled region --------------------------------------------------------------------------------------------

    def compiled(self, name: str, parts: Split) -> Occupancy:
        """What a forward and a backward graph have in memory."""
        recomputed = [node for node in parts.recomputed if node in self.position]
        backward = [*recomputed, *self.steps[self.turn :]]
        storages = [
            Storage(f"{node.name}_before", _bytes(node), 0, self.end, True) for node in self.modified & {*parts.saved}
        ]
        until: dict[Node, int] = {}
        later = [*self._side(backward, self._first_uses(recomputed).__getitem__, self.gradients, {}, until)]
        released = {
            node: max((until[reader] for reader in self.readers(node) if reader in until), default=self.end)
            for node in parts.saved
        }
        storages += self._side(self.steps[: self.turn], self.position.__getitem__, self.results, released, {})
        storages += later
        storages += self.upstream(lambda node: self.end)
        return Occupancy(name, len(self.steps), tuple(storages))

    def _first_uses(self, recomputed: Sequence[Node]) -> dict[Node, int]:
        """When the operators of the backward graph run: those that run again, just before their first reader."""
        when = {call: k for k, call in enumerate(self.steps) if k >= self.turn}
        for call in reversed(recomputed):
            read = [when[reader] for value in self.values_of(call) for reader in self.readers(value) if reader in when]
            when[call] = min(read, default=self.end)
        return when

    def _side(
        self, calls: Sequence[Node], when: Callable[[Node], int], escaping: Collection[Node],
        saved: Mapping[Node, int], until: dict[Node, int],
    ) -> Iterator[Storage]:  # fmt: skip
        """The storages of one graph; ``saved`` are those kept for the other one, and when it lets go of them. What a
        fused operator reads is read for as long as its own result is: it is computed wherever that is needed. Fills
        ``until`` with the last step in which each operator runs."""
        here = set(calls)
        for call in reversed(calls):
            start = until[call] = when(call)
            for value in self.values_of(call):
                readers = [reader for reader in self.readers(value) if reader in here]
                stop = max([start, *(until[reader] for reader in readers)])
                kept = value in saved
                if kept or value in escaping:
                    end = self.end if value in escaping else saved[value]
                    yield Storage(value.name, _bytes(value), start, end, kept)
                elif self._is_written(value, readers):
                    yield Storage(value.name, _bytes(value), start, stop)
                else:
                    until[call] = max(until[call], stop)

    def _is_written(self, value: Node, readers: Sequence[Node]) -> bool:
        """Whether a value that is neither kept nor returned has to be in memory (as :mod:`.values` sees it)."""
        kind = self.kinds.producer(value)
        if kind in ("library", "fallback", "random", "template", "reduction", "scan", "scatter"):
            return True
        call = value.args[0] if self.kinds(value) == "item" else value
        if kind == "normalization" and REDUCES_BY * _bytes(value) < sum(map(_bytes, call.inputs)):
            return True
        looked_at = any(self.kinds(user) == "storage view" for user in value.users)
        # A small product takes in what makes its operands, though values are divided as if it read them from memory.
        return looked_at or any(self.kinds(reader) not in FUSING | {"template"} for reader in readers)


def _bytes(node: Node) -> int:
    return sum(leaf.nbytes for leaf in flatten(node.val) if isinstance(leaf, TensorMeta))
