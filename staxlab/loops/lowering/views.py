"""View operators: a change of subscript and nothing else (Section 6.4, Proposition 6.2).

Every rule here turns an operator into an :class:`~staxlab.loops.layout.IndexMap`. The recorded metadata says which
shape eager execution gave the view, so ``-1`` in a shape, negative dimensions and slice bounds need no arithmetic of
their own. ``as_strided`` is the one that speaks of storage instead of elements; it needs its operand in memory with
eager's layout, which realization sees to.
"""

from __future__ import annotations

from ..ir import Layout
from ..layout import (
    IndexMap,
    broadcast,
    diagonal,
    layout_through,
    permuted,
    reshaped,
    same_stride,
    selected,
    sliced,
    squeezed,
    unfolded,
    unsqueezed,
)
from .call import Call
from .registry import Decline, lowering
from .values import Box, TensorValue


def view(*names: str):
    return lowering(*names, kind="view", is_view=True)


def _dimension(dimension: int, rank: int) -> int:
    return dimension % rank if rank else 0


@view("view _unsafe_view reshape _reshape_alias")
def lower_reshape(call: Call, x: TensorValue, *_, **__) -> TensorValue:
    return call.view(x, reshaped(x.shape, call.meta.shape))


@view("t numpy_T")
def lower_t(call: Call, x: TensorValue) -> TensorValue:
    return call.view(x, permuted(x.shape, tuple(reversed(range(x.ndim)))))


@view("permute")
def lower_permute(call: Call, x: TensorValue, order) -> TensorValue:
    return call.view(x, permuted(x.shape, [_dimension(d, x.ndim) for d in order]))


@view("transpose.int swapaxes swapdims")
def lower_transpose(call: Call, x: TensorValue, first: int, second: int) -> TensorValue:
    order = list(range(x.ndim))
    if order:
        a, b = _dimension(first, x.ndim), _dimension(second, x.ndim)
        order[a], order[b] = order[b], order[a]
    return call.view(x, permuted(x.shape, order))


@view("expand")
def lower_expand(call: Call, x: TensorValue, size, *, implicit: bool = False) -> TensorValue:
    return call.view(x, broadcast(x.shape, call.meta.shape))


@view("squeeze squeeze.dim squeeze.dims")
def lower_squeeze(call: Call, x: TensorValue, dimensions=None) -> TensorValue:
    if dimensions is None:
        chosen = list(range(x.ndim))
    else:
        chosen = [_dimension(d, x.ndim) for d in ([dimensions] if isinstance(dimensions, int) else dimensions)]
    return call.view(x, squeezed(x.shape, [d for d in chosen if x.ndim and x.shape[d] == 1]))


@view("unsqueeze")
def lower_unsqueeze(call: Call, x: TensorValue, dimension: int) -> TensorValue:
    return call.view(x, unsqueezed(x.shape, dimension % (x.ndim + 1)))


@view("slice.Tensor")
def lower_slice(call: Call, x: TensorValue, dimension: int = 0, start=None, end=None, step: int = 1) -> TensorValue:
    dimension = _dimension(dimension, x.ndim)
    extent = x.shape[dimension]
    start = 0 if start is None else start + extent if start < 0 else start
    start = min(max(start, 0), extent)
    return call.view(x, sliced(x.shape, dimension, start, call.meta.shape[dimension], step))


@view("select.int")
def lower_select(call: Call, x: TensorValue, dimension: int, position: int) -> TensorValue:
    dimension = _dimension(dimension, x.ndim)
    return call.view(x, selected(x.shape, dimension, position % x.shape[dimension]))


@view("split.Tensor split_with_sizes split.sizes")
def lower_split(call: Call, x: TensorValue, sizes, dimension: int = 0) -> list[TensorValue]:
    dimension = _dimension(dimension, x.ndim)
    parts, start = [], 0
    for meta in call.val:
        parts.append(call.view(x, sliced(x.shape, dimension, start, meta.shape[dimension], 1)))
        start += meta.shape[dimension]
    return parts


@view("unbind.int")
def lower_unbind(call: Call, x: TensorValue, dimension: int = 0) -> list[TensorValue]:
    dimension = _dimension(dimension, x.ndim)
    return [call.view(x, selected(x.shape, dimension, k)) for k in range(x.shape[dimension])]


@view("diagonal")
def lower_diagonal(call: Call, x: TensorValue, offset: int = 0, first: int = 0, second: int = 1) -> TensorValue:
    return call.view(x, diagonal(x.shape, offset, _dimension(first, x.ndim), _dimension(second, x.ndim)))


@view("unfold")
def lower_unfold(call: Call, x: TensorValue, dimension: int, size: int, step: int) -> TensorValue:
    if x.ndim == 0:
        return call.view(x, IndexMap(call.meta.shape, lambda i: (), name="unfold"))
    return call.view(x, unfolded(x.shape, _dimension(dimension, x.ndim), size, step))


@view("alias detach lift lift_fresh")
def lower_alias(call: Call, x: TensorValue) -> TensorValue:
    return TensorValue(x.box, x.view, x.origins | call.origins, x.steps)


@lowering("as_strided", kind="storage view", is_view=True)
def lower_as_strided(call: Call, x: TensorValue, size, stride, storage_offset=None) -> TensorValue:
    """A new layout over the same storage: legal only where our storage is laid out as eager's."""
    box, source = x.box, call.node.args[0].val
    layout = layout_through(box.layout, x.view) if box.is_stored else None
    if layout is None or not same_stride(source.shape, layout.stride, source.stride):
        raise Decline("as_strided of a value that is not stored as eager execution stores it")
    if storage_offset is None:
        offset = layout.offset
    elif box.is_input:
        raise Decline("as_strided at an absolute offset into the caller's storage")
    else:
        # Offsets count from the start of eager's storage; ours from the first element of the buffer.
        offset = storage_offset - source.storage_offset + layout.offset
    strided = Layout(tuple(size), tuple(stride), layout.dtype, layout.device, offset)
    if offset < 0 or strided.storage_elements > box.layout.storage_elements:
        raise Decline("as_strided beyond the elements of its operand")
    return TensorValue(Box.stored(box.name, strided, box.origins, box.is_input), None, x.origins | call.origins)
