"""Reading at subscripts that are data (Section 6.2), and at subscripts that only look like data (Section 6.8).

``x[idx]`` reads an address that is known at run time only. ``ops.indirect`` turns the value into a subscript: negative
ones count from the end, one out of range is an error. But an index that is itself computed from loop indices, as
``x[(arange(128) * 3) % 128]`` has it, is no data at all: its compute function is run under an interpretation whose
values are subscript expressions (:class:`Subscripts`), and the read becomes direct, without index buffer or check
(Example 6.3). And where a value from memory was brought into range on the way, as ``x[idx.clamp(0, 127)]`` has it, its
interval shows that the check can go (:mod:`staxlab.loops.intervals`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ...provenance import Origins
from ..expressions import Expr
from ..intervals import Intervals, within_size
from ..ir import Index
from ..layout import broadcast, reshaped
from ..ops import Ops
from .call import Call
from .registry import Decline, lowering
from .values import TensorValue

INTEGERS = frozenset({torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8})


class NotASubscript(Exception):
    """The value depends on memory, or on an operation subscripts do not have."""


@dataclass(frozen=True)
class Position:
    """What the index propagation computes with: an expression of loop indices, and the dtype it is computed in."""

    expression: Expr
    dtype: torch.dtype


class Subscripts(Ops):
    """Interprets an integer compute function as a subscript expression (the index propagation of Section 6.8).

    Expressions are exact and machine integers are not: a value that might wrap around in its dtype is none of these.
    """

    def load(self, buffer: str, index: Expr) -> Position:
        raise NotASubscript(buffer)

    def _position(self, expression: Expr, dtype: torch.dtype) -> Position:
        if dtype not in (torch.int64, torch.int32):
            raise NotASubscript(str(dtype))
        whole = torch.iinfo(dtype)
        if not expression.bounds().within(whole.min, whole.max):
            raise NotASubscript(f"{expression} may not fit {dtype}")
        return Position(expression, dtype)

    def constant(self, value: Any, dtype: torch.dtype) -> Position:
        return self._position(Expr.of(int(value)), dtype)

    def index_value(self, expression: Expr, dtype: torch.dtype) -> Position:
        return self._position(Expr.of(expression), dtype)

    def to_dtype(self, value: Position, dtype: torch.dtype) -> Position:
        return self._position(value.expression, dtype)

    def masked(self, condition: Any, body: Callable, other: Any) -> Position:
        raise NotASubscript("masked")

    def indirect(self, value: Any, size: Expr, *, check: bool | None = True) -> Expr:
        raise NotASubscript("indirect")

    def apply(self, operation: str, *operands: Position) -> Position:
        a = operands[0].expression
        b = operands[1].expression if len(operands) > 1 else None
        if operation == "neg":
            found = -a
        elif operation in ("add", "sub", "mul"):
            found = {"add": a + b, "sub": a - b, "mul": a * b}[operation]
        elif operation in ("remainder", "floordiv") and b.is_constant and int(b) > 0:
            found = a % b if operation == "remainder" else a // b
        else:
            raise NotASubscript(operation)
        return self._position(found, operands[0].dtype)

    def tagged(self, origins: Origins) -> Subscripts:
        return self


def subscript(ops: Ops, index: TensorValue, position: Index, extent: int, negative: str = "wrap") -> Expr:
    """The subscript ``index[position]`` into a dimension of ``extent`` elements.

    ``negative``: "wrap" counts from the end as Python does, "error" refuses (embedding, gather), "trust" neither checks
    nor wraps beyond what ``ops.indirect`` does without a check.
    """
    try:
        expression = index.load(Subscripts(), position).expression
    except NotASubscript:
        expression = None
    if expression is not None and expression.bounds().within(0, extent - 1):
        return ops.proved(expression, extent)
    known = index.load(Intervals(ops.dtypes), position) if ops.dtypes is not None else None
    value = index.load(ops, position)
    if ops.dtype_of(value) != torch.int64:
        value = ops.to_dtype(value, torch.int64)
    if within_size(known, extent):
        return ops.indirect(value, Expr.of(extent), check=None)
    if negative == "error":
        zero = ops.constant(0, torch.int64)
        value = ops.where(ops.lt(value, zero), ops.constant(extent, torch.int64), value)
    return ops.indirect(value, Expr.of(extent), check=negative != "trust")


def _require_integers(*indices: TensorValue) -> None:
    if any(i.dtype not in INTEGERS for i in indices):
        raise Decline("an index that is not of an integer dtype")


def _gathered(
    call: Call, x: TensorValue, compute: Callable[[Ops, Index], Any], operands: Sequence[TensorValue]
) -> TensorValue:
    if x.numel == 0 and call.meta.numel:
        raise Decline("reading from an empty tensor")
    return call.computed(compute, call.meta.shape, call.meta.dtype, (x, *operands))


@lowering("embedding", kind="indexing")
def lower_embedding(call: Call, weight: TensorValue, indices: TensorValue, *_, **__) -> TensorValue:
    _require_integers(indices)

    def compute(ops, index):
        ops = ops.tagged(call.origins)
        row = subscript(ops, indices, index[: indices.ndim], weight.shape[0], "error")
        return weight.load(ops, (row, *index[indices.ndim :]))

    return _gathered(call, weight, compute, (indices,))


@lowering("index_select", kind="indexing")
def lower_index_select(call: Call, x: TensorValue, dim: int, indices: TensorValue) -> TensorValue:
    _require_integers(indices)
    if x.ndim == 0:
        raise Decline("index_select of a 0-dim tensor")
    dim %= x.ndim

    def compute(ops, index):
        ops = ops.tagged(call.origins)
        place = subscript(ops, indices, index[dim : dim + 1] if indices.ndim else (), x.shape[dim], "error")
        return x.load(ops, (*index[:dim], place, *index[dim + 1 :]))

    return _gathered(call, x, compute, (indices,))


@lowering("gather", kind="indexing")
def lower_gather(call: Call, x: TensorValue, dim: int, indices: TensorValue, *, sparse_grad=False) -> TensorValue:
    _require_integers(indices)
    if x.ndim == 0:  # as a row of one element
        x = x.seen(reshaped((), (1,)))
    dim %= x.ndim

    def compute(ops, index):
        ops = ops.tagged(call.origins)
        place = subscript(ops, indices, index, x.shape[dim], "error")
        if len(index) != x.ndim:  # of a row, one element or, by an empty index of any rank, none
            index = (0,) * x.ndim
        return x.load(ops, (*index[:dim], place, *index[dim + 1 :]))

    return _gathered(call, x, compute, (indices,))


@lowering("take", kind="indexing")
def lower_take(call: Call, x: TensorValue, indices: TensorValue) -> TensorValue:
    _require_integers(indices)
    flat = x.seen(reshaped(x.shape, (x.numel,)))

    def compute(ops, index):
        ops = ops.tagged(call.origins)
        return flat.load(ops, (subscript(ops, indices, index, x.numel),))

    return _gathered(call, x, compute, (indices,))


@lowering("index.Tensor _unsafe_index.Tensor", kind="indexing")
def lower_index(call: Call, x: TensorValue, indices: Sequence[TensorValue | None]) -> TensorValue:
    """``x[i0, :, i2]``: the index tensors broadcast against each other; their dimensions stand where the first of them
    stood if they are adjacent, else in front."""
    given = [(d, i) for d, i in enumerate(indices) if i is not None]
    if not given:
        raise Decline("an index without index tensors")
    _require_integers(*(i for _, i in given))
    checked = "trust" if call.node.target._opname == "_unsafe_index" else "wrap"
    shape = _broadcast_shape([i.shape for _, i in given])
    wide = [(d, i.seen(broadcast(i.shape, shape))) for d, i in given]
    adjacent = [d for d, _ in given] == list(range(given[0][0], given[0][0] + len(given)))
    front = given[0][0] if adjacent else 0
    kept = [d for d in range(x.ndim) if d not in {g for g, _ in given}]

    def compute(ops, index):
        ops = ops.tagged(call.origins)
        inner = index[front : front + len(shape)]
        outer = (*index[:front], *index[front + len(shape) :])
        place = dict(zip(kept, outer, strict=True))
        for d, value in wide:
            place[d] = subscript(ops, value, inner, x.shape[d], checked)
        return x.load(ops, tuple(place[d] for d in range(x.ndim)))

    return _gathered(call, x, compute, [i for _, i in given])


def _broadcast_shape(shapes: Sequence[tuple[int, ...]]) -> tuple[int, ...]:
    rank = max(len(s) for s in shapes)
    result = [1] * rank
    for shape in shapes:
        for k, extent in enumerate(shape, rank - len(shape)):
            if extent != 1:
                result[k] = extent
    return tuple(result)
