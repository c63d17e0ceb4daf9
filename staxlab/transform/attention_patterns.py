"""Attention written out by hand, recognised on the graph (Section 9.10): ``softmax(q @ k^T ...) @ v`` in all spellings.

A list of patterns has to name every spelling, and misses the next one. Here three things are looked for, each in
whatever way it is written: a product whose operand is a matrix of probabilities (:func:`normalised`: a softmax, or an
exponential divided by its sum), the product that the softmax's argument comes from, and what stands between
(:mod:`.attention_scores`). Axes are followed by their strides (:mod:`.attention_products`), so transposing, splitting
and merging them makes no difference. What is found is one form,

    softmax over keys of  f(scale * query @ key^T, position, captured tensors)   @   value

with query [b, h, q, d], key and value [b, h, kv, d]: an :class:`Attention`. What becomes of it is decided elsewhere
(:mod:`.attention_rewrite`).

Dao, Fu, Ermon, Rudra, Ré, "FlashAttention: Fast and Memory-Efficient Exact Attention with IO-Awareness" (2022).
"""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..capture.graph import Graph, Node, TensorMeta
from .attention_building import FEATURE, beneath_transposes
from .attention_products import VIEWS, Atom, Coordinates, Layout, Product, coordinates, inserts_axes, product
from .attention_scores import ScorePath, score_paths
from .effects import takes_element
from .operations import operation


@dataclass(frozen=True)
class Normalised:
    """A matrix of probabilities: ``node`` is the softmax of ``argument`` along ``axis``; ``inside`` are the operations
    between the two, ``node`` among them."""

    node: Node
    argument: Node
    axis: int
    inside: tuple[Node, ...]


def normalised(node: Any) -> Normalised | None:
    """The softmax that ``node`` computes, as an operation or written out, or None.

    Written out it is exp(x - m) / sum(exp(x - m)) with m the maximum of x, or exp(x - logsumexp(x)). Without the
    maximum the exponential overflows where the softmax does not: that is something else.
    """
    if not isinstance(node, Node) or not isinstance(node.val, TensorMeta) or node.meta.get("mutates"):
        return None
    name = operation(node)
    if name == "softmax":
        axis = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
        known = set(node.kwargs) <= {"input", "dim", "_stacklevel", "dtype"}
        source = node.args[0] if node.args else node.kwargs.get("input")
        if not known or not isinstance(axis, int) or not _is_tensor(source) or source.val.ndim == 0:
            return None
        return Normalised(node, source, axis % source.val.ndim, (node,))
    if name == "exp":
        return _by_logarithm(node) if node.args and isinstance(node.args[0], Node) else None
    if name != "div" or len(node.args) != 2 or node.kwargs or not all(map(_is_tensor, node.args)):
        return None
    exponential, total = node.args
    if operation(exponential) != "exp" or not exponential.args or not isinstance(exponential.args[0], Node):
        return None
    shifted = exponential.args[0]
    summed = _reduced(total, "sum", exponential)
    if summed is None or operation(shifted) != "sub" or len(shifted.args) != 2 or shifted.kwargs:
        return None
    source, largest = shifted.args
    if not _is_tensor(source) or not _is_tensor(largest):
        return None
    detached = [largest] if operation(largest) == "detach" and largest.args else []
    maximum = _reduced(largest.args[0] if detached else largest, ("amax", "max"), source)
    if maximum is None or maximum[0] != summed[0]:
        return None
    inside = (*maximum[1], *detached, shifted, exponential, *summed[1], node)
    return Normalised(node, source, summed[0], tuple(dict.fromkeys(inside)))


def _by_logarithm(node: Node) -> Normalised | None:
    shifted = node.args[0]
    if operation(shifted) == "log_softmax" and shifted.args:
        axis = shifted.args[1] if len(shifted.args) > 1 else shifted.kwargs.get("dim")
        source = shifted.args[0]
        if not isinstance(axis, int) or not _is_tensor(source) or "dtype" in shifted.kwargs or not source.val.ndim:
            return None
        return Normalised(node, source, axis % source.val.ndim, (shifted, node))
    if not isinstance(shifted, Node) or operation(shifted) != "sub" or len(shifted.args) != 2 or shifted.kwargs:
        return None
    source, total = shifted.args
    found = _reduced(total, "logsumexp", source) if _is_tensor(source) else None
    return found and Normalised(node, source, found[0], (*found[1], shifted, node))


def _reduced(value: Any, names: str | tuple[str, ...], source: Node) -> tuple[int, list[Node]] | None:
    """The axis along which ``value`` is a reduction of ``source`` that keeps the axis, and the operations of it."""
    names = (names,) if isinstance(names, str) else names
    inside: list[Node] = []
    inserted: int | None = None
    while _is_tensor(value) and operation(value) not in names and value.args:
        inside.append(value)
        if takes_element(value) and value.args[1] == 0:
            pass  # the values of max(dim)
        elif operation(value) == "unsqueeze" and len(value.args) == 2:
            inserted = value.args[1] % value.val.ndim
        elif operation(value) == "getitem" and inserts_axes(value.args[1], value.args[0].val.ndim):
            inserted = _inserted_at(value)
        else:
            return None
        value = value.args[0]
    if not isinstance(value, Node) or operation(value) not in names or not value.args or value.args[0] is not source:
        return None
    axis = value.args[1] if len(value.args) > 1 else value.kwargs.get("dim")
    keeps = value.args[2] if len(value.args) > 2 else value.kwargs.get("keepdim", False)
    if isinstance(axis, (tuple, list)) and len(axis) == 1:
        axis = axis[0]
    if not isinstance(axis, int) or isinstance(axis, bool) or value.kwargs.get("dtype") is not None:
        return None
    axis %= source.val.ndim
    if keeps is not True and inserted != axis:
        return None
    if keeps is True and inserted is not None:
        return None
    return axis, [value, *reversed(inside)]


def _inserted_at(node: Node) -> int | None:
    """The place of the one axis that a subscript inserts."""
    subscript = node.args[1] if isinstance(node.args[1], tuple) else (node.args[1],)
    if sum(part is None for part in subscript) != 1:
        return None
    place = next(k for k, part in enumerate(subscript) if part is None)
    if any(part is Ellipsis for part in subscript[:place]):
        return node.val.ndim - (len(subscript) - place)
    return place


def _is_tensor(value: Any) -> bool:
    return isinstance(value, Node) and isinstance(value.val, TensorMeta)


# -- the whole --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Operand:
    """A tensor that goes into the attention: ``node``, and for each of its axes the atoms that it runs over. Where
    ``group`` heads share one, the node has that many fewer."""

    node: Node
    axes: tuple[tuple[Atom, ...], ...]
    group: int = 1


@dataclass(frozen=True)
class Attention:
    """One attention written out: ``root`` is the product with the values, ``path`` what stands between the scores and
    the softmax, ``inside`` every operation that is replaced, ``root`` last. ``key`` and ``value`` are those that query
    heads share, ``repeated`` the two with one for each query head. ``result_axes`` are the atoms of the root's
    axes."""

    root: Node
    path: ScorePath
    softmax: Normalised
    casts: tuple[Node, ...]
    query: Operand
    key: Operand
    value: Operand
    repeated: tuple[Operand, Operand]
    result_axes: tuple[tuple[Atom, ...], ...]
    value_size: int

    @property
    def inside(self) -> tuple[Node, ...]:
        found = (self.path.scores.node, *self.path.nodes, *self.softmax.inside, *self.casts, self.root)
        return tuple(dict.fromkeys(found))

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        """(batch, query heads, queries, keys)"""
        return self.path.coordinates.sizes  # type: ignore[union-attr]

    @property
    def head_size(self) -> int:
        return self.query.node.val.shape[self.query.axes.index((FEATURE,))]

    @property
    def dtype(self) -> torch.dtype:
        return self.root.val.dtype

    def __str__(self) -> str:
        batch, heads, queries, keys = self.sizes
        f = self.path.expression
        return (
            f"softmax({'?' if f is None else f}) of {batch} x {heads} heads, {queries} queries x {keys} keys of "
            f"{self.head_size}, values of {self.value_size}"
        )


def candidates(graph: Graph) -> Iterator[tuple[Product, Node, tuple[Node, ...]]]:
    """Products of a matrix of probabilities: the product with the probabilities on its left, the softmax, and the
    casts and views between the two."""
    if not any(operation(node) in ("softmax", "log_softmax", "exp") for node in graph):
        return
    for node in graph:
        found = product(node)
        alone = found is not None and found.addend is None and found.alpha == 1.0
        for side in (found, found.swapped()) if alone else ():
            between: list[Node] = []
            value = side.left
            while normalised(value) is None and _changes_no_value(value):
                between.append(value)
                value = value.args[0]
            if normalised(value) is not None:
                yield side, value, tuple(reversed(between))
                break


def _changes_no_value(node: Any) -> bool:
    if not _is_tensor(node) or not node.args or not _is_tensor(node.args[0]) or node.meta.get("mutates"):
        return False
    name = operation(node)
    if name == "dropout":  # with a probability, or it would be gone; what follows from that is decided with the rest
        return True
    if name in ("to", "type_as", "float", "double", "half", "bfloat16", "type"):
        return node.val.dtype.is_floating_point
    return name in VIEWS and (name != "getitem" or inserts_axes(node.args[1], node.args[0].val.ndim))


def recognise(weighted: Product, probabilities: Node, casts: tuple[Node, ...]) -> Attention | None:
    """The attention of a candidate, in canonical form; None if its scores are no product of matrices with pointwise
    operations behind it, or the axes do not fit."""
    softmax = normalised(probabilities)
    if softmax is None or not weighted.is_of_matrices:
        return None
    for path in score_paths(softmax.argument):
        for scores in (path.scores, path.scores.swapped()):
            if not scores.is_of_matrices:
                continue
            found = _fitted(scores, path, softmax, casts, weighted)
            if found is not None:
                return found
    return None


def _fitted(
    scores: Product, path: ScorePath, softmax: Normalised, casts: tuple[Node, ...], weighted: Product
) -> Attention | None:
    """The attention whose queries are on the left of ``scores``."""
    layouts = dict(path.layouts)
    start = layouts[scores.node]
    row, column = scores.labels.index(scores.left_rows[0]), scores.labels.index(scores.right_rows[0])
    along = layouts[softmax.argument]
    if start.shape[column] < 2 or not _is_axis(along, softmax.axis, start, column):
        return None
    layout: Layout | None = along
    for before, node in zip((softmax.node, *casts), casts, strict=False):
        if operation(node) in VIEWS:
            layout = layout.after(node, before)  # type: ignore[union-attr]
            if layout is None:
                return None
            layouts[node] = layout
    assert layout is not None
    place = coordinates(start, row, column, [*layouts.values(), layout])
    if place is None:
        return None
    path = ScorePath(scores, path.end, path.nodes, path.layouts)
    path.set_coordinates(place)

    # Labels of the second product stand for atoms: those of the probabilities' axes, and the values' features.
    label_atoms: dict[str, tuple[Atom, ...]] = {}
    for label, extent, stride in zip(weighted.left_labels, layout.shape, layout.strides, strict=True):
        atoms = place.atoms_of(stride, extent)
        if atoms is None:
            return None
        label_atoms[label] = atoms
    (summed,), (kept,), (feature,) = weighted.summed, weighted.left_rows, weighted.right_rows
    if label_atoms[summed] != place.groups[3] or label_atoms[kept] != place.groups[2]:
        return None
    label_atoms[feature] = (FEATURE,)
    value = _operand(weighted.right, weighted.right_labels, label_atoms, place, shared=True)

    score_atoms: dict[str, tuple[Atom, ...]] = {}
    for label, extent, stride in zip(scores.labels, start.shape, start.strides, strict=True):
        score_atoms[label] = place.atoms_of(stride, extent)  # type: ignore[assignment]
    score_atoms[scores.summed[0]] = (FEATURE,)
    query = _operand(scores.left, scores.left_labels, score_atoms, place)
    key = _operand(scores.right, scores.right_labels, score_atoms, place, shared=True)
    repeated = (
        _operand(scores.right, scores.right_labels, score_atoms, place),
        _operand(weighted.right, weighted.right_labels, label_atoms, place),
    )
    if key.group != value.group:
        key, value = repeated
    size = weighted.right.val.shape[weighted.right_labels.index(feature)]
    axes = tuple(label_atoms[label] for label in weighted.labels)
    return Attention(weighted.node, path, softmax, casts, query, key, value, repeated, axes, size)


def _is_axis(layout: Layout, axis: int, start: Layout, place: int) -> bool:
    """Whether an axis of a view is that axis of the scores."""
    return (layout.shape[axis], layout.strides[axis]) == (start.shape[place], start.strides[place])


def _operand(
    node: Node,
    labels: tuple[str, ...],
    atoms: dict[str, tuple[Atom, ...]],
    place: Coordinates,
    shared: bool = False,
) -> Operand:
    """An operand without those of the transposes before it that the form does not need, and where ``shared`` allows it
    and its heads are repeated, the tensor that they are repeated from."""
    axes = [() if extent == 1 and atoms[label] != (FEATURE,) else atoms[label]
            for label, extent in zip(labels, node.val.shape, strict=True)]  # fmt: skip
    heads = place.groups[1]
    for source, own in _stages(node, axes) if shared and len(heads) == 1 else ():
        repeated = _repeated(source)
        if repeated is not None and own[repeated[1]] == heads:
            inner, axis, group = repeated
            fewer = heads[0].extent // group
            own[axis] = (Atom(heads[0].stride * group, fewer),) if fewer > 1 else ()
            groups = (place.groups[0], own[axis], *place.groups[2:])
            inner, own = _in_order(_stages(inner, own), Coordinates(groups))
            return Operand(inner, tuple(own), group)
    source, own = _in_order(_stages(node, axes), place)
    return Operand(source, tuple(own))


_Axes = list[tuple[Atom, ...]]


def _stages(node: Node, axes: _Axes) -> Iterator[tuple[Node, _Axes]]:
    for source, order in beneath_transposes(node):
        moved: _Axes = [()] * len(axes)
        for axis, original in enumerate(order):
            moved[original] = axes[axis]
        yield source, moved


def _in_order(stages: Iterator[tuple[Node, _Axes]], place: Coordinates) -> tuple[Node, _Axes]:
    """The first whose axes are in the canonical order, or else the last."""
    wanted = [*place.order, FEATURE]
    found = next(stages)
    while True:
        places = [wanted.index(atom) for part in found[1] for atom in part if atom in wanted]
        further = None if places == sorted(places) else next(stages, None)
        if further is None:
            return found
        found = further


def _repeated(node: Node) -> tuple[Node, int, int] | None:
    """(source, axis, count) where a tensor is another with every element of an axis repeated ``count`` times in a row:
    ``repeat_interleave``, or an inserted axis, expanded and merged."""
    name = operation(node)
    if not node.args or not _is_tensor(node.args[0]):
        return None
    if name == "contiguous":
        return _repeated(node.args[0])
    if name == "repeat_interleave":
        source = node.args[0]
        count = node.args[1] if len(node.args) > 1 else node.kwargs.get("repeats")
        axis = node.args[2] if len(node.args) > 2 else node.kwargs.get("dim")
        known = isinstance(count, int) and isinstance(axis, int)
        return (source, axis % source.val.ndim, count) if known and count > 1 else None
    if name not in ("reshape", "flatten", "view"):
        return None
    spread = node.args[0]
    while operation(spread) in ("contiguous", "clone") and spread.args and _is_tensor(spread.args[0]):
        spread = spread.args[0]
    if operation(spread) != "expand" or not spread.args or not _is_tensor(spread.args[0]):
        return None
    inserted = spread.args[0]
    if not inserted.args or not _is_tensor(inserted.args[0]):
        return None
    if operation(inserted) == "unsqueeze" and len(inserted.args) == 2:
        place = inserted.args[1] % inserted.val.ndim
    elif operation(inserted) == "getitem" and inserts_axes(inserted.args[1], inserted.args[0].val.ndim):
        place = _inserted_at(inserted)
    else:
        return None
    source = inserted.args[0]
    if place is None or place == 0 or node.target is builtins.getattr:
        return None
    shape, count = source.val.shape, spread.val.shape[place]
    wanted = (*shape[: place - 1], shape[place - 1] * count, *shape[place:])
    only_there = spread.val.shape == (*shape[:place], count, *shape[place:])
    return (source, place - 1, count) if only_there and node.val.shape == wanted and count > 1 else None
