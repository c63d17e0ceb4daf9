"""New nodes for a rewrite of attention: tensors brought into the order (batch, head, query, key), and results back out.

Each node that is made gets the metadata its call has on tensors without memory, so the strides in the graph are those
that the operation will deliver.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..capture.graph import Graph, Node, TensorMeta
from ..provenance import Origins
from .attention_products import Atom, Coordinates
from .operations import operation, run_without_memory

TRANSPOSES = frozenset({"transpose", "permute", "mT", "T", "t", "swapaxes", "swapdims", "movedim", "moveaxis"})
FEATURE = Atom(0, 0)  # stands for the axis of features, which no axis of the scores corresponds to


class Builder:
    """Makes nodes before ``root``, with its source line and the origins of all that is replaced. Views are made with
    methods, so that the listing reads like a program."""

    def __init__(self, graph: Graph, root: Node, coordinates: Coordinates, origins: Origins):
        self._graph, self._root, self.coordinates, self._origins = graph, root, coordinates, origins
        self.created: list[Node] = []

    def call(
        self, target: Any, *args: Any, grad: bool | None = None, val: TensorMeta | None = None, **kwargs: Any
    ) -> Node:
        """``target(*args, **kwargs)``, or a method of the first argument where ``target`` is a name. ``val`` says what
        the result is like where tensors without memory do not."""
        op = "call_method" if isinstance(target, str) else "call_function"
        node = self._create(op, target, args, kwargs)
        if val is None:
            found = run_without_memory(node, {})
            requires_grad = any(x.val.requires_grad for x in node.inputs if isinstance(x.val, TensorMeta))
            if not found.is_floating_point():
                requires_grad = False
            elif grad is not None:
                requires_grad = grad
            val = TensorMeta(
                tuple(found.shape), tuple(found.stride()), found.dtype, self._root.val.device, requires_grad
            )
        node.meta["val"] = val
        if isinstance(target, str) and target in ("reshape", "view", "permute", "expand", "contiguous", "transpose"):
            node.meta["aliases"] = True
        return node

    def results(self, target: Any, args: tuple[Any, ...], requires_grad: bool) -> list[Node]:
        """A call with several results, and a node for each of them."""
        whole = self._create("call_function", target, args)
        found = run_without_memory(whole, {})
        values = [
            TensorMeta(tuple(x.shape), tuple(x.stride()), x.dtype, self._root.val.device, requires_grad) for x in found
        ]
        whole.meta["val"] = tuple(values)
        return [self.call(operator.getitem, whole, place, val=value) for place, value in enumerate(values)]

    def constant(self, name: str, val: TensorMeta) -> Node:
        """A tensor that is kept beside the graph."""
        node = self._create("get_attr", name, ())
        node.meta["val"] = val
        return node

    def _create(self, op: str, target: Any, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None) -> Node:
        with self._graph.inserting_before(self._root):
            node = self._graph.create(op, target, args, kwargs, origins=self._origins, location=self._root.location)
        self.created.append(node)
        return node

    def among(self, coordinates: Coordinates) -> Builder:
        """A builder for other coordinates, whose nodes count as this one's."""
        other = Builder(self._graph, self._root, coordinates, self._origins)
        other.created = self.created
        return other

    # -- into canonical order -----------------------------------------------------------------------------------------

    def canonical(
        self, node: Node, axes: Sequence[tuple[Atom, ...] | None], full: Sequence[int] = (), transposed: bool = True
    ) -> Node | None:
        """``node`` as a tensor [batch, head, query, key], with extent 1 along axes it does not vary along; with a
        feature axis, whose entry in ``axes`` is (FEATURE,), as [batch, head, row, feature]. ``axes`` says which atoms
        each of its axes runs over. Along the canonical axes ``full`` the result is expanded to all elements."""
        if any(part is None for part in axes):
            return None
        order, groups = self.coordinates.order, self.coordinates.groups
        pieces = [atom for part in axes for atom in part]  # type: ignore[union-attr]
        features = FEATURE in pieces
        last = node.val.shape[axes.index((FEATURE,))] if features else 1
        wanted = [atom for atom in order if atom in pieces] + ([FEATURE] if features else [])
        if len(wanted) != len(pieces) or len(set(pieces)) != len(pieces):
            return None
        rows = next((k for k in (2, 3) if groups[k] and groups[k][0] in pieces), 2)
        kept = (groups[0], groups[1], groups[rows]) if features else groups
        final, complete = [], []
        for axis, group in zip((0, 1, rows) if features else range(4), kept, strict=True):
            inside = [atom for atom in group if atom in pieces]
            whole = bool(inside) or axis in full
            final.append(math.prod(atom.extent for atom in group) if whole else 1)
            complete.append(len(inside) == len(group) or not whole)
        if features:
            final.append(last)
        placed = [pieces.index(atom) for atom in wanted]
        if all(complete) and placed == sorted(placed):
            return self.shaped(node, final)
        size = {atom: atom.extent for atom in order} | {FEATURE: last}
        value = self._permuted(self.shaped(node, [size[atom] for atom in pieces]), placed)
        if not all(complete):  # in part along a merged axis: spread out before it is merged
            spread = [
                [1 if atom not in pieces else atom.extent for atom in group]
                if done
                else [atom.extent for atom in group]
                for group, done in zip(kept, complete, strict=True)
            ]
            ones = [1 if atom not in pieces else atom.extent for group in kept for atom in group]
            tail = [last] if features else []
            value = self.shaped(value, ones + tail)
            target = [extent for part in spread for extent in part] + tail
            if list(value.val.shape) != target:
                value = self.call("expand", value, tuple(target))
        return self.shaped(value, final)

    def restored(self, value: Node, axes: Sequence[tuple[Atom, ...]], shape: Sequence[int]) -> Node:
        """A result [batch, head, query, feature] with the axes that ``axes`` names, in ``shape``."""
        last = value.val.shape[-1]
        have = [*(atom for group in self.coordinates.groups[:3] for atom in group), FEATURE]
        want = [atom for part in axes for atom in part]
        size = {atom: atom.extent for atom in have} | {FEATURE: last}
        value = self.shaped(value, [size[atom] for atom in have])
        value = self._permuted(value, [have.index(atom) for atom in want])
        return self.shaped(value, list(shape))

    def shaped(self, value: Node, shape: Sequence[int]) -> Node:
        """``value`` in ``shape``; what it was made from by reshaping, where that has the shape already."""
        while list(value.val.shape) != list(shape) and value in self.created and value.target == "reshape":
            inner = value.args[0]
            if not value.users:
                self._graph.erase(value)
                self.created.remove(value)
            value = inner
        return value if list(value.val.shape) == list(shape) else self.call("reshape", value, tuple(shape))

    def _permuted(self, value: Node, order: Sequence[int]) -> Node:
        return value if list(order) == sorted(order) else self.call("permute", value, tuple(order))


def beneath_transposes(node: Node) -> Iterator[tuple[Node, tuple[int, ...]]]:
    """A tensor, and one after the other what the transposed views that it is made by look at; with each, which of its
    axes each axis of ``node`` is."""
    order = tuple(range(node.val.ndim))
    yield node, order
    while operation(node) in TRANSPOSES and node.args and isinstance(node.args[0], Node):
        source = node.args[0]
        if not isinstance(source.val, TensorMeta):
            return
        # Extents that are all different, and larger than one, tell where each axis went.
        sample = torch.empty([2 + axis for axis in range(source.val.ndim)], device="meta")
        try:
            found = run_without_memory(node, {source: sample})
        except Exception:
            return
        if found.ndim != source.val.ndim:
            return
        inner = tuple(extent - 2 for extent in found.shape)
        order = tuple(inner[axis] for axis in order)
        node = source
        yield node, order
