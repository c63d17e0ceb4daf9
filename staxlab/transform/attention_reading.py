"""Reading a tensor of the graph at the position of a score: arithmetic where it is that, a captured tensor where it is
data.

``torch.arange(n)[:, None]`` at (q, kv) is q, ``ones.tril()`` is 1 where kv <= q, whatever views stand between; so a
mask that the program puts together from such tensors becomes a comparison, and no matrix of N x M is read for it. What
is left is a tensor that has to be read: it is taken in the smallest form that the rest is pointwise in.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.graph import Node, TensorMeta, nodes_in
from .attention_expressions import CASTS, Captured, Coordinate, Expression, Number, call
from .attention_products import VIEWS, Atom, Coordinates
from .operations import is_number, is_pointwise, operation, run_without_memory


@dataclass(frozen=True)
class Along:
    """How an axis of a tensor is read: element ``start + step * x``, ``x`` being the position within ``atoms``."""

    atoms: tuple[Atom, ...]
    start: int = 0
    step: int = 1


FACTORIES: dict[str, Any] = {"zeros": 0, "ones": 1, "zeros_like": 0, "ones_like": 1, "new_zeros": 0, "new_ones": 1}
_LARGEST = 200  # operations that are looked through for one tensor


class Reader:
    """Reads tensors of a graph at the coordinates of a score. ``captured`` are the tensors it found, with the atoms
    each of their axes runs over; ``seen`` are all that it looked at, whose values must not change afterwards."""

    def __init__(self, coordinates: Coordinates):
        self._coordinates = coordinates
        self.captured: list[tuple[Node, tuple[tuple[Atom, ...], ...]]] = []
        self.seen: set[Node] = set()

    def term(self, node: Any, axes: Sequence[tuple[Atom, ...]]) -> Expression | None:
        """A tensor, or number, whose axes run over these atoms: arithmetic of the position where it is that; None
        where it cannot be read."""
        if not isinstance(node, Node):
            return Number(node) if is_number(node) else None
        along = tuple(Along(part) for part in axes)
        known = self.position(node, along)
        if known is not None:
            return known
        # What a few small tensors spread out to is spread out in registers: lengths[b] rather than a mask of N x M.
        operands = [x for x in node.inputs if isinstance(x.val, TensorMeta)]
        if is_pointwise(node) and operands and all(x.val.numel < node.val.numel or self._is_position(x, node, along)
                                                   for x in operands):  # fmt: skip
            return self._pointwise(node, along, self._term_of)
        return self._capture(node, axes)

    def _term_of(self, node: Node, along: tuple[Along, ...]) -> Expression | None:
        return self.term(node, [part.atoms for part in along])

    def _is_position(self, node: Node, reader: Node, along: tuple[Along, ...]) -> bool:
        return self.position(node, self._aligned(node, reader, along)) is not None

    def _capture(self, node: Node, axes: Sequence[tuple[Atom, ...]]) -> Expression | None:
        place = (node, tuple(axes))
        self.seen.add(node)
        if place not in self.captured:
            self.captured.append(place)
        groups = self._coordinates.groups
        varies = tuple(axis for axis in range(4) if any(atom in part for part in axes for atom in groups[axis]))
        return Captured(self.captured.index(place), varies)

    def position(self, node: Any, along: tuple[Along, ...]) -> Expression | None:
        """A tensor that depends on the position alone, as arithmetic; None for any other."""
        if not isinstance(node, Node):
            return Number(node) if is_number(node) else None
        name = operation(node)
        if not isinstance(node.val, TensorMeta):
            return Number(node.val) if is_number(node.val) and node.op != "placeholder" else None
        self.seen.add(node)
        if name is None or len(self.seen) > _LARGEST or node.meta.get("mutates") or node.meta.get("random"):
            return None
        if name == "arange":
            return self._arange(node, along)
        filled = filling(node)
        if filled is not None:
            return Number(filled)
        if name in ("tril", "triu") and node.val.ndim >= 2:
            return self._triangle(node, along)
        if name in VIEWS or name == "expand":
            inner = self._through_view(node, along)
            return None if inner is None else self.position(node.args[0], inner)
        return self._pointwise(node, along, self.position) if is_pointwise(node) or name == "to" else None

    def _arange(self, node: Node, along: tuple[Along, ...]) -> Expression | None:
        numbers = node.args
        if not numbers or {"start", "end", "step"} & set(node.kwargs):
            return None
        if not all(isinstance(x, int) for x in numbers) or node.val.dtype.is_floating_point:
            return None
        start, step = (numbers[0] if len(numbers) > 1 else 0), (numbers[2] if len(numbers) > 2 else 1)
        place = self._place(along[0])
        if place is None:
            return None
        place = place if step == 1 else call("mul", place, Number(step))
        return place if start == 0 else call("add", place, Number(start))

    def _place(self, along: Along) -> Expression | None:
        if not along.atoms:
            return Number(along.start)
        axis = self._coordinates.axis_of(along.atoms)
        if axis is None:
            return None
        place: Expression = Coordinate(axis)
        if along.step != 1:
            place = call("mul", place, Number(along.step))
        return call("add", place, Number(along.start)) if along.start else place

    def _triangle(self, node: Node, along: tuple[Along, ...]) -> Expression | None:
        if not node.args:
            return None
        diagonal = node.args[1] if len(node.args) > 1 else node.kwargs.get("diagonal", 0)
        inner, row, column = self.position(node.args[0], along), self._place(along[-2]), self._place(along[-1])
        if inner is None or row is None or column is None or not isinstance(diagonal, int):
            return None
        compare = "le" if operation(node) == "tril" else "ge"
        kept = call(compare, call("sub", column, row), Number(diagonal))
        nothing = Number(False if node.val.dtype is torch.bool else 0.0 if node.val.dtype.is_floating_point else 0)
        return call("where", kept, inner, nothing)

    def _through_view(self, node: Node, along: tuple[Along, ...]) -> tuple[Along, ...] | None:
        """How a view reads its argument."""
        source = node.args[0] if node.args else None
        if not isinstance(source, Node) or not isinstance(source.val, TensorMeta):
            return None
        if operation(node) in ("contiguous", "clone"):
            return along
        sample = torch.empty(source.val.shape, device="meta")
        try:
            found = run_without_memory(node, {source: sample})
        except Exception:
            return None
        if not isinstance(found, torch.Tensor) or (found is not sample and found._base is not sample):
            return None
        strides, inner, offset = sample.stride(), [], found.storage_offset()
        for stride in strides:
            inner.append(Along((), offset // stride, 0))
            offset %= stride
        taken: set[int] = set()
        for extent, stride, outer in zip(found.shape, found.stride(), along, strict=True):
            if extent == 1 or stride == 0:
                continue
            axis = next((k for k, s in enumerate(strides) if s <= stride < s * source.val.shape[k]), None)
            if axis is None or axis in taken or stride % strides[axis]:
                return None
            step, start = stride // strides[axis], inner[axis].start
            if start + step * (extent - 1) >= source.val.shape[axis]:
                return None  # the axis goes on into the next
            taken.add(axis)
            inner[axis] = Along(outer.atoms, start + step * outer.start, step * outer.step)
        return tuple(inner)

    def _aligned(self, node: Node, reader: Node, along: tuple[Along, ...]) -> tuple[Along, ...]:
        """How an operand is read that is broadcast to ``reader``."""
        shape = node.val.shape
        own = along[len(along) - len(shape) :] if shape else ()
        return tuple(Along(()) if extent == 1 else part for extent, part in zip(shape, own, strict=True))

    def _pointwise(self, node: Node, along: tuple[Along, ...], read: Callable) -> Expression | None:
        def argument(value: Any) -> Any:
            if isinstance(value, Node) and isinstance(value.val, TensorMeta):
                return read(value, self._aligned(value, node, along))
            if isinstance(value, Node):
                return self.position(value, ())
            return Number(value) if is_number(value) else value

        return spelled(node, argument)


def spelled(node: Node, argument: Callable[[Any], Any]) -> Expression | None:
    """A pointwise operation as an expression; ``argument`` reads what it is applied to. None where one cannot be
    read."""
    name = operation(node)
    if not node.args:
        return None
    if name in CASTS and len(node.args) == 1:
        inner = argument(node.args[0])
        return inner and call("to", inner, CASTS[name])
    if name == "to":
        inner = argument(node.args[0])
        same_device = not any(isinstance(x, torch.device) for x in (*node.args[1:], *node.kwargs.values()))
        return inner and same_device and call("to", inner, node.val.dtype) or None
    if name == "masked_fill":
        if len(node.args) != 3:
            return None
        condition, value, inner = argument(node.args[1]), argument(node.args[2]), argument(node.args[0])
        known = all(isinstance(x, Expression) for x in (condition, value, inner))
        return call("where", condition, value, inner) if known else None
    if node.target is builtins.getattr or any(isinstance(x, (list, tuple)) and nodes_in(x) for x in node.args):
        return None
    args = [argument(x) for x in node.args]
    keywords = {key: argument(x) for key, x in node.kwargs.items()}
    given = [*zip(node.args, args, strict=True), *((node.kwargs[key], x) for key, x in keywords.items())]
    if any(found is None and original is not None for original, found in given):
        return None
    if name in ("add", "sub") and "alpha" in keywords:
        factor = keywords.pop("alpha")
        args[1] = call("mul", args[1], factor) if factor != Number(1) else args[1]
    return call(name, *args, **keywords)


def filling(node: Node) -> Any:
    """The number that a tensor is filled with; None if it is no such tensor, or not known."""
    name = operation(node)
    value = None
    if name in FACTORIES:
        value = FACTORIES[name]
    elif name in ("full", "full_like", "new_full"):
        at = 1 if name != "new_full" else 2
        value = node.args[at] if len(node.args) > at else node.kwargs.get("fill_value")
    elif name in ("tensor", "scalar_tensor") and node.args:
        value = node.args[0]
    if isinstance(value, Node):
        value = value.val
    if not is_number(value) or isinstance(value, complex):
        return None
    dtype = node.val.dtype
    if dtype is torch.bool:
        return bool(value)
    if dtype.is_floating_point:
        return float(torch.tensor(value, dtype=dtype))
    return int(value)
