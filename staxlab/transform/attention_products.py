"""Products of matrices in all spellings, and whose axes are whose: the ground that attention is recognised on.

``q @ k.mT``, ``torch.bmm``, ``torch.baddbmm`` and ``torch.einsum`` say one thing, a sum over one axis of the product
of two tensors. :func:`product` gives each the same record, in which axes have *labels*: a label that both operands and
the result have is a batch axis, one that both operands have and the result has not is summed over.

Between the scores and the second product a program may transpose, split and merge axes at will. What that does is not
worked out rule by rule: the scores are taken to lie contiguously in an imagined memory, views are carried out on
tensors without memory, and the strides that come out say where every axis went (:class:`Layout`). Sizes between
consecutive strides are *atoms*: axes that no view of the program takes apart. Every tensor that meets the scores,
whatever its own axes, is brought into the one order (batch, head, query, key) through them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.graph import Node, TensorMeta
from .operations import is_number, operation, run_without_memory

#: Operations that lay out their argument's elements anew, without computing. ``getitem`` is one where it inserts axes
#: only.
VIEWS = frozenset(
    {"transpose", "permute", "view", "reshape", "unsqueeze", "squeeze", "flatten", "unflatten", "T", "mT", "t",
     "swapaxes", "swapdims", "movedim", "moveaxis", "contiguous", "clone", "getitem", "view_as", "reshape_as"}
)  # fmt: skip
_KEEPS_AXES = frozenset({"contiguous", "clone"})

Labels = tuple[str, ...]


@dataclass(frozen=True)
class Product:
    """``result[labels] = alpha * sum(left[left_labels] * right[right_labels]) + beta * addend``.

    ``batch`` labels are on all three, ``left_rows`` on the left operand and the result, ``right_rows`` likewise, and
    ``summed`` on both operands only. Each operand's axes are in the order of its labels; a batch axis may have extent 1
    where the result's is larger.
    """

    node: Node
    left: Node
    right: Node
    left_labels: Labels
    right_labels: Labels
    labels: Labels
    alpha: float = 1.0
    addend: Any = None
    beta: float = 1.0

    @property
    def batch(self) -> Labels:
        return tuple(x for x in self.labels if x in self.left_labels and x in self.right_labels)

    @property
    def left_rows(self) -> Labels:
        return tuple(x for x in self.labels if x in self.left_labels and x not in self.right_labels)

    @property
    def right_rows(self) -> Labels:
        return tuple(x for x in self.labels if x in self.right_labels and x not in self.left_labels)

    @property
    def summed(self) -> Labels:
        return tuple(x for x in self.left_labels if x in self.right_labels and x not in self.labels)

    @property
    def is_of_matrices(self) -> bool:
        """Whether there is one axis of rows on either side and one that is summed over, and nothing else."""
        return len(self.left_rows) == len(self.right_rows) == len(self.summed) == 1

    def swapped(self) -> Product:
        """The same product with its operands exchanged."""
        return Product(self.node, self.right, self.left, self.right_labels, self.left_labels, self.labels, self.alpha,
                       self.addend, self.beta)  # fmt: skip


def product(node: Any) -> Product | None:
    """The product of matrices a node computes, or None."""
    if not isinstance(node, Node) or not isinstance(node.val, TensorMeta):
        return None
    name = operation(node)
    if name in ("matmul", "bmm", "mm") and len(node.inputs) in (1, 2) and len(node.args) == 2 and not node.kwargs:
        return _of_matrices(node, *node.args)
    if name == "baddbmm" and len(node.args) == 3 and set(node.kwargs) <= {"beta", "alpha"}:
        beta, alpha = node.kwargs.get("beta", 1), node.kwargs.get("alpha", 1)
        addend = node.args[0]
        if not (is_real(beta) and is_real(alpha)) or not isinstance(addend, Node):
            return None
        found = _of_matrices(node, *node.args[1:], alpha=float(alpha), addend=None if beta == 0 else addend)
        return found and Product(**{**found.__dict__, "beta": float(beta)})
    return _of_equation(node) if name == "einsum" and not node.kwargs else None


def count_products(nodes: Iterable[Node]) -> int:
    """How many of these nodes multiply matrices. O(V)."""
    return sum(product(node) is not None for node in nodes)


def _of_matrices(node: Node, left: Any, right: Any, **more: Any) -> Product | None:
    if not (_is_tensor(left) and _is_tensor(right)) or left.val.ndim < 2 or right.val.ndim < 2:
        return None
    count = max(left.val.ndim, right.val.ndim) - 2
    batch = tuple(f"batch{place}" for place in range(count))
    labels = (*batch, "row", "column")
    if node.val.ndim != len(labels):
        return None
    own = (
        (*batch[count + 2 - left.val.ndim :], "row", "inner"),
        (*batch[count + 2 - right.val.ndim :], "inner", "column"),
    )
    found = Product(node, left, right, *own, labels, **more)
    # A batch axis that only one operand has belongs to that operand's rows, which is not what is looked for.
    return found if set(batch) <= set(own[0]) & set(own[1]) else None


def _of_equation(node: Node) -> Product | None:
    if len(node.args) == 2 and isinstance(node.args[1], (list, tuple)):
        equation, operands = node.args[0], tuple(node.args[1])
    else:
        equation, operands = node.args[0], node.args[1:]
    if not isinstance(equation, str) or len(operands) != 2 or not all(map(_is_tensor, operands)):
        return None
    equation = equation.replace(" ", "")
    given, arrow, result = equation.partition("->")
    parts = given.split(",")
    if len(parts) != 2:
        return None
    if not arrow:
        letters = given.replace(",", "").replace(".", "")
        result = ("..." if "..." in given else "") + "".join(sorted(x for x in set(letters) if letters.count(x) == 1))
    counts = {
        x.val.ndim - len(part.replace("...", "")) for part, x in zip(parts, operands, strict=True) if "..." in part
    }
    if len(counts) > 1 or any(count < 0 for count in counts):
        return None
    dots = tuple(f"batch{place}" for place in range(counts.pop() if counts else 0))
    left, right, labels = (_spelled(part, dots) for part in (*parts, result))
    for own, size in ((left, operands[0].val.ndim), (right, operands[1].val.ndim), (labels, node.val.ndim)):
        if len(own) != size or len(set(own)) != len(own):
            return None
    if not set(labels) <= set(left) | set(right) or (set(left) ^ set(right)) - set(labels):
        return None  # a label on one operand only that is summed over
    return Product(node, *operands, left, right, labels)


def _spelled(part: str, dots: Labels) -> Labels:
    before, mark, after = part.partition("...")
    return (*before, *(dots if mark else ()), *after)


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Node) and isinstance(value.val, TensorMeta)


def is_real(value: Any) -> bool:
    """A Python number that is no truth value, finite and not complex."""
    return is_number(value) and not isinstance(value, (bool, complex)) and math.isfinite(value)


# -- views, carried out on tensors without memory ---------------------------------------------------------------------


@dataclass(frozen=True)
class Layout:
    """Where the axes of a value lie in an imagined contiguous memory of the scores: sizes and strides, in elements."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]

    @classmethod
    def contiguous(cls, shape: Sequence[int]) -> Layout:
        strides, step = [], 1
        for extent in reversed(shape):
            strides.append(step)
            step *= max(extent, 1)
        return cls(tuple(shape), tuple(reversed(strides)))

    @property
    def numel(self) -> int:
        return math.prod(self.shape)

    def after(self, node: Node, source: Node) -> Layout | None:
        """The layout of ``node``, a view of the one that ``source`` has; None if it is none of the whole."""
        if operation(node) in _KEEPS_AXES:
            return self
        if operation(node) == "getitem" and not inserts_axes(node.args[1], len(self.shape)):
            return None
        without_memory = torch.empty_strided(self.shape, self.strides, device="meta")
        try:
            found = run_without_memory(node, {source: without_memory})
        except Exception:  # a view that these strides do not have
            return None
        whole = isinstance(found, torch.Tensor) and found.numel() == self.numel and found.storage_offset() == 0
        if not whole or (found is not without_memory and found._base is not without_memory):
            return None  # laid out anew
        return Layout(tuple(found.shape), tuple(found.stride()))

    def place(self, axis: int) -> int:
        """The number of an axis counted from the front."""
        return axis % len(self.shape)


def inserts_axes(subscript: Any, rank: int) -> bool:
    """Whether a subscript takes everything, and at most inserts axes: ``[:, None]``, ``[..., None]``."""
    parts = subscript if isinstance(subscript, tuple) else (subscript,)
    return all(part is None or part is Ellipsis or (isinstance(part, slice) and part == slice(None)) for part in parts)


# -- atoms ------------------------------------------------------------------------------------------------------------

AXES = ("b", "h", "q", "kv")


@dataclass(frozen=True)
class Atom:
    """An axis of the scores that no view takes apart: its stride in the imagined memory, and its extent."""

    stride: int
    extent: int


@dataclass(frozen=True)
class Coordinates:
    """The atoms of the scores in the order (batch, head, query, key): ``groups[k]`` make up canonical axis ``k``."""

    groups: tuple[tuple[Atom, ...], tuple[Atom, ...], tuple[Atom, ...], tuple[Atom, ...]]

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return tuple(math.prod(atom.extent for atom in group) for group in self.groups)  # type: ignore[return-value]

    @property
    def order(self) -> tuple[Atom, ...]:
        return tuple(atom for group in self.groups for atom in group)

    def atoms_of(self, stride: int, extent: int) -> tuple[Atom, ...] | None:
        """The atoms, outermost first, that an axis of this stride and extent runs over; () for an axis of one
        element."""
        if extent == 1:
            return ()
        inside = sorted(
            (atom for atom in self.order if stride <= atom.stride < stride * extent), key=lambda atom: -atom.stride
        )
        if not inside or inside[-1].stride != stride or math.prod(atom.extent for atom in inside) != extent:
            return None
        return tuple(inside)

    def axis_of(self, atoms: tuple[Atom, ...]) -> int | None:
        """The canonical axis that these atoms make up, all of it and in order; None if they make up none."""
        return next((place for place, group in enumerate(self.groups) if group and group == atoms), None)


def coordinates(scores: Layout, row: int, column: int, layouts: Iterable[Layout]) -> Coordinates | None:
    """The atoms of scores of layout ``scores``, whose axes ``row`` and ``column`` count queries and keys, under all
    views of them; None where a view takes one of the two apart, or axes do not nest."""
    cuts = {1, scores.numel}
    for layout in (scores, *layouts):
        for extent, stride in zip(layout.shape, layout.strides, strict=True):
            if extent > 1:
                cuts |= {stride, stride * extent}
    steps = sorted(cuts)
    if any(high % low for low, high in zip(steps, steps[1:], strict=False)):
        return None
    atoms = [Atom(low, high // low) for low, high in zip(steps, steps[1:], strict=False)]
    of_axis: list[tuple[Atom, ...]] = []
    for extent, stride in zip(scores.shape, scores.strides, strict=True):
        inside = [atom for atom in atoms if extent > 1 and stride <= atom.stride < stride * extent]
        of_axis.append(tuple(sorted(inside, key=lambda atom: -atom.stride)))
    if any(len(of_axis[axis]) > 1 for axis in (row, column)):
        return None
    batch = [of_axis[axis] for axis in range(len(scores.shape)) if axis not in (row, column)]
    if len(batch) > 1:
        head = batch[-1]
        outer = tuple(atom for group in batch[:-1] for atom in group)
    else:  # one axis of batches and heads, that some view may take apart
        flat = batch[0] if batch else ()
        outer, head = (flat[:-1], flat[-1:]) if len(flat) > 1 else (flat, ())
    return Coordinates((outer, head, of_axis[row], of_axis[column]))
