"""The adjoints of views, padding, pooling and resampling: sums over the places that read an element (Section 5.2).

The adjoint of "``y(o) = x(p(o))``" gives ``x(i)`` the sum of the upstream gradient over all ``o`` with ``p(o) = i``.
Eager execution scatters: it runs over ``o`` and adds to ``p(o)``. A loop writes every element once, so the rules here
gather: for each ``i`` they name the few candidates ``o``, with the test which of them do read ``i``. Where an element
is read from several places the candidates stand in increasing order, so that the sum has the order, and in single and
double precision the very bits, of eager execution's.

With many candidates (wide windows that overlap, replication over a wide margin) the loop body would grow without
bounds; then, and where a resampling has no whole factor, the operator is a library call.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import torch

from ...capture.graph import Node
from ..expressions import Expr
from ..ir import Index
from ..layout import numel
from ..ops import Ops
from .call import Call
from .joining import lower_diagonal_scatter, lower_select_scatter, lower_slice_scatter
from .registry import Decline, lowering
from .values import TensorValue
from .windows import each, elements_in, holds, product_of

MOST_CANDIDATES = 16

# -- views ------------------------------------------------------------------------------------------------------------


def _zeros(call: Call, sizes: Sequence[int]) -> TensorValue:
    return call.full(0, tuple(sizes), call.meta.dtype)


@lowering("slice_backward", kind="joining")
def lower_slice_backward(call: Call, gradient: TensorValue, sizes, dim: int, start: int, end: int, step: int):
    return lower_slice_scatter(call, _zeros(call, sizes), gradient, dim, start, end, step)


@lowering("select_backward", kind="joining")
def lower_select_backward(call: Call, gradient: TensorValue, sizes, dim: int, position: int) -> TensorValue:
    return lower_select_scatter(call, _zeros(call, sizes), gradient, dim, position)


@lowering("diagonal_backward", kind="joining")
def lower_diagonal_backward(call: Call, gradient: TensorValue, sizes, offset: int, first: int, second: int):
    return lower_diagonal_scatter(call, _zeros(call, sizes), gradient, offset, first, second)


@lowering("diag_embed", kind="joining")
def lower_diag_embed(call: Call, x: TensorValue, offset: int = 0, first: int = -2, second: int = -1) -> TensorValue:
    """The adjoint of a diagonal over the two dimensions it makes."""
    return lower_diagonal_scatter(call, _zeros(call, call.meta.shape), x, offset, first, second)


# A tangent known to be zero, which eager execution does not allocate.
lowering("_efficientzerotensor", kind="factory")(lambda call, size, **_: _zeros(call, size))


# -- selection --------------------------------------------------------------------------------------------------------

# Operators whose positions (their result, or the second of two) lie within the dimension they name.
_SELECTING = frozenset("argmax argmin max min kthvalue median nanmedian mode".split())


def lower_scatter_selected(
    call: Call, x: TensorValue, dim: int, indices: TensorValue, source: TensorValue
) -> TensorValue:
    """The adjoint of ``x.max(dim)`` and its like writes one element of each row: ``x`` but where the row's position is
    the subscript. Positions that such an operator found need no check, which others do (:mod:`.scatters`)."""
    if x.ndim == 0 or indices.ndim != x.ndim or indices.dtype != torch.int64:
        raise Decline("a scatter into a number")
    dim %= x.ndim
    expected = tuple(1 if k == dim else extent for k, extent in enumerate(x.shape))
    if indices.shape != expected or not _selects(call.node.args[2], x.shape[dim]):
        raise Decline("a scatter of other positions than a reduction selects")

    def compute(ops: Ops, index: Index) -> Any:
        ops = ops.tagged(call.origins)
        row = (*index[:dim], Expr.of(0), *index[dim + 1 :])
        here = ops.eq(indices.load(ops, row), ops.index_value(Expr.of(index[dim]), torch.int64))
        return ops.where(here, source.load(ops, row), x.load(ops, index))

    return call.computed(compute, call.meta.shape, call.meta.dtype, (x, indices, source))


def _selects(node: Any, extent: int) -> bool:
    """Whether a node's values are positions within ``extent`` elements, found by an operator of one row."""
    while isinstance(node, Node) and node.op == "call_function":
        target = node.target
        if target is operator.getitem and node.args[1] == 1:
            node = node.args[0]
        elif target in (torch.ops.aten.unsqueeze.default, torch.ops.aten.squeeze.dim):
            node = node.args[0]
        elif isinstance(target, torch._ops.OpOverload) and target._opname in _SELECTING:
            rows = node.args[0].val.shape
            place = {"kthvalue": 2}.get(target._opname, 1)
            dims = node.args[place] if len(node.args) > place else None
            return isinstance(dims, int) and bool(rows) and rows[dims] <= extent
        else:
            return False
    return False


# -- gathering --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Candidate:
    """A place along one dimension of the upstream gradient that may read the element in question. ``tests`` are triples
    ``(expression, low, high)``, for ``low <= expression < high``, that all hold if it does."""

    place: Expr
    tests: tuple[tuple[Expr, int, int], ...] = ()
    width: Expr | None = None  # of an adaptive pool's window, which varies


Candidates = Callable[[Expr], list[Candidate]]


def gathered(
    call: Call,
    gradient: TensorValue,
    candidates: Sequence[Candidates],
    element: Callable[[Ops, Index, Index, tuple[Candidate, ...]], Any] | None = None,
    operands: Sequence[TensorValue] = (),
) -> TensorValue:
    """The sum of the upstream gradient over the candidates of the last ``len(candidates)`` dimensions; the dimensions
    before them are the result's. ``element(ops, index, place, chosen)`` is what a candidate contributes (default: the
    gradient's element at ``place``)."""
    shape, dtype = call.meta.shape, call.meta.dtype
    if call.meta.numel == 0 or gradient.numel == 0:
        return call.full(0, shape, dtype)
    lead = len(shape) - len(candidates)
    if numel([len(find(Expr.of(0))) for find in candidates]) > MOST_CANDIDATES:
        raise Decline(f"windows where more than {MOST_CANDIDATES} overlap")

    def compute(ops: Ops, index: Index) -> Any:
        ops = ops.tagged(call.origins)
        total = ops.constant(0, dtype)
        for chosen in product(*[find(Expr.of(i)) for find, i in zip(candidates, index[lead:], strict=True)]):
            place = (*index[:lead], *[c.place for c in chosen])

            def read(handler: Ops, place: Index = place, chosen: tuple[Candidate, ...] = chosen) -> Any:
                return element(handler, index, place, chosen) if element else gradient.load(handler, place)

            inside = holds(ops, [test for c in chosen for test in c.tests])
            total = ops.add(total, read(ops) if inside is None else ops.masked(inside, read, 0))
        return total

    return call.computed(compute, shape, dtype, (gradient, *operands))


# -- windows ----------------------------------------------------------------------------------------------------------


@lowering("unfold_backward", kind="joining")
def lower_unfold_backward(call: Call, gradient: TensorValue, sizes, dim: int, size: int, step: int) -> TensorValue:
    """Element ``i`` stands at position ``i - o*step`` of window ``o``."""
    shape = call.meta.shape
    if not shape or call.meta.numel == 0 or gradient.numel == 0:
        raise Decline("windows over a number or over nothing")
    dim %= len(shape)
    count, overlap = gradient.shape[dim], (size - 1) // step + 1
    if overlap > MOST_CANDIDATES:
        raise Decline(f"windows where more than {MOST_CANDIDATES} overlap")

    def compute(ops: Ops, index: Index) -> Any:
        ops = ops.tagged(call.origins)
        i, total = Expr.of(index[dim]), ops.constant(0, call.meta.dtype)
        for back in reversed(range(overlap)):
            window, position = i // step - back, i % step + back * step
            inside = holds(ops, [(window, 0, count), (position, 0, size)])
            place = (*index[:dim], window, *index[dim + 1 :], position)

            def read(handler: Ops, place: Index = place) -> Any:
                return gradient.load(handler, place)

            total = ops.add(total, read(ops) if inside is None else ops.masked(inside, read, 0))
        return total

    return call.computed(compute, shape, call.meta.dtype, (gradient,))


def _windows(extent: int, size: int, step: int, padding: int, count: int, exact: bool) -> Candidates:
    """The windows that may cover element ``i``: number ``o`` spans ``o*step - padding`` and the ``size - 1`` elements
    after it. ``exact``: with a test that it does, not only may."""
    overlap = (size - 1) // step + 1

    def find(i: Expr) -> list[Candidate]:
        found = []
        for back in reversed(range(overlap)):
            place = (i + padding) // step - back
            tests = [(place, 0, count)]
            if exact:
                tests.append(((i + padding) % step + back * step, 0, size))
            found.append(Candidate(place, tuple(tests)))
        return found

    return find


@lowering("max_pool2d_with_indices_backward max_pool3d_with_indices_backward", kind="joining")
def lower_max_pool_backward(
    call: Call, gradient: TensorValue, x, size, step, padding, dilation, ceil_mode: bool, indices: TensorValue
) -> TensorValue:
    """The gradient of every window whose greatest element this is."""
    rank = 3 if "3d" in call.node.target._opname else 2
    size, padding, dilation = (each(value, rank) for value in (size, padding, dilation))
    step = each(step, rank) or size
    extents, counts = call.meta.shape[-rank:], gradient.shape[-rank:]
    reach = [(s - 1) * d + 1 for s, d in zip(size, dilation, strict=True)]
    windows = [_windows(*numbers, exact=False) for numbers in zip(extents, reach, step, padding, counts, strict=True)]
    return gathered(call, gradient, windows, _if_greatest(gradient, indices, extents), (indices,))


def _if_greatest(gradient: TensorValue, indices: TensorValue, extents: Sequence[int]):
    def element(ops: Ops, index: Index, place: Index, chosen: tuple[Candidate, ...]) -> Any:
        number = Expr.of(0)
        for extent, i in zip(extents, index[-len(extents) :], strict=True):
            number = number * extent + i
        here = ops.eq(indices.load(ops, place), ops.index_value(number, torch.int64))
        value = gradient.load(ops, place)
        return ops.where(here, value, ops.constant(0, ops.dtype_of(value)))

    return element


@lowering("avg_pool2d_backward avg_pool3d_backward", kind="joining")
def lower_avg_pool_backward(
    call: Call, gradient, x, size, step, padding, ceil_mode: bool, count_padding: bool, divisor: int | None
) -> TensorValue:
    """The gradient of every window the element lies in, divided by the number of elements in that window."""
    rank, dtype = 3 if "3d" in call.node.target._opname else 2, call.meta.dtype
    size, padding = each(size, rank), each(padding, rank)
    step = each(step, rank) or size
    extents, counts = call.meta.shape[-rank:], gradient.shape[-rank:]
    windows = [_windows(*numbers, exact=True) for numbers in zip(extents, size, step, padding, counts, strict=True)]

    def element(ops: Ops, index: Index, place: Index, chosen: tuple[Candidate, ...]) -> Any:
        factors = None if divisor else [
            elements_in(ops, c.place, n, k, s, p, count, count_padding)
            for c, n, k, s, p, count in zip(chosen, extents, size, step, padding, counts, strict=True)
        ]  # fmt: skip
        total = ops.constant(divisor, torch.int64) if divisor else product_of(ops, factors)
        return ops.truediv(gradient.load(ops, place), ops.to_dtype(total, dtype))

    return gathered(call, gradient, windows, element)


def _adaptive(extent: int, count: int) -> Candidates:
    """The windows of an adaptive pool: number ``o`` spans from ``floor(o*n/m)`` to ``ceil((o + 1)*n/m)``, so with no
    more windows than elements an element lies in one, or in two that share it."""
    if count > extent:
        raise Decline("an adaptive pool with more windows than elements")

    def candidate(place: Expr, tests: tuple) -> Candidate:
        width = -((-(place + 1) * extent) // count) - (place * extent) // count
        return Candidate(place, tests, width)

    def find(i: Expr) -> list[Candidate]:
        first = (i * count) // extent
        if extent % count == 0:
            return [candidate(first, ())]
        start = ((first + 1) * extent) // count
        return [candidate(first, ()), candidate(first + 1, ((first + 1, 0, count), (start - i, -extent, 1)))]

    return find


@lowering("_adaptive_avg_pool2d_backward _adaptive_avg_pool3d_backward", kind="joining")
def lower_adaptive_avg_pool_backward(call: Call, gradient: TensorValue, x: TensorValue) -> TensorValue:
    rank = 3 if "3d" in call.node.target._opname else 2
    extents, counts, dtype = call.meta.shape[-rank:], gradient.shape[-rank:], call.meta.dtype

    def element(ops: Ops, index: Index, place: Index, chosen: tuple[Candidate, ...]) -> Any:
        value = gradient.load(ops, place)
        for c, n, m in zip(chosen, extents, counts, strict=True):
            whole = n % m == 0
            width = ops.constant(n // m, dtype) if whole else ops.index_value(c.width, dtype)
            value = ops.truediv(value, width)
        return value

    return gathered(call, gradient, [_adaptive(n, m) for n, m in zip(extents, counts, strict=True)], element)


@lowering("adaptive_max_pool2d_backward adaptive_max_pool3d_backward", kind="joining")
def lower_adaptive_max_pool_backward(call: Call, gradient: TensorValue, x, indices: TensorValue) -> TensorValue:
    rank = 3 if "3d" in call.node.target._opname else 2
    extents, counts = call.meta.shape[-rank:], gradient.shape[-rank:]
    windows = [_adaptive(n, m) for n, m in zip(extents, counts, strict=True)]
    return gathered(call, gradient, windows, _if_greatest(gradient, indices, extents), (indices,))


# -- resampling -------------------------------------------------------------------------------------------------------


@lowering(
    "upsample_nearest1d_backward upsample_nearest2d_backward upsample_nearest3d_backward "
    "_upsample_nearest_exact1d_backward _upsample_nearest_exact2d_backward _upsample_nearest_exact3d_backward",
    kind="joining",
)
def lower_upsample_nearest_backward(call: Call, gradient: TensorValue, output_size, input_size, *scales):
    """By a whole factor ``k``: the sum over a block of ``k`` elements each way."""
    middle = 0.5 if "exact" in call.node.target._opname else 0.0
    blocks = []
    for extent, count, scale in zip(input_size[2:], output_size, scales, strict=True):
        if extent == 0 or count % extent or not _is_whole(extent, count, scale, middle):
            raise Decline("resampling by a factor that is not whole")
        blocks.append(_block(count // extent))
    return gathered(call, gradient, blocks)


def _block(factor: int) -> Candidates:
    return lambda i: [Candidate(i * factor + k) for k in range(factor)]


def _is_whole(extent: int, count: int, scale: float | None, middle: float) -> bool:
    """Whether eager execution, which computes in float32 what each place reads, reads element ``o // k`` at ``o``."""
    ratio = 1.0 / scale if scale else extent / count
    places = torch.arange(count, dtype=torch.float32)
    source = ((places + middle) * torch.tensor(ratio, dtype=torch.float32)).floor().clamp(max=extent - 1)
    return torch.equal(source.long(), torch.arange(count) // (count // extent))


# -- padding ----------------------------------------------------------------------------------------------------------


def _reflected(extent: int, before: int, after: int) -> Candidates:
    """An inner element is read where it stands, and once more in a margin that shows its mirror image."""

    def find(i: Expr) -> list[Candidate]:
        found = [Candidate(i + before)]
        if before:
            found.insert(0, Candidate(before - i, ((i, 1, before + 1),)))
        if after:
            found.append(Candidate(2 * (extent - 1) + before - i, ((i, extent - 1 - after, extent - 1),)))
        return found

    return find


def _replicated(extent: int, before: int, after: int) -> Candidates:
    """The first and the last element are read in all of their margins."""

    def find(i: Expr) -> list[Candidate]:
        first = [Candidate(Expr.of(k), ((i, 0, 1),)) for k in range(before)]
        last = [Candidate(Expr.of(before + extent + k), ((i, extent - 1, extent),)) for k in range(after)]
        return [*first, Candidate(i + before), *last]

    return find


def _padding_backward(call: Call, gradient: TensorValue, padding: Sequence[int], kind: Callable) -> TensorValue:
    if any(amount < 0 for amount in padding):
        raise Decline("padding that cuts off")
    extents = call.meta.shape[len(call.meta.shape) - len(padding) // 2 :]
    amounts = [(padding[k], padding[k + 1]) for k in range(0, len(padding), 2)][::-1]  # it counts from the last one
    return gathered(call, gradient, [kind(n, *amount) for n, amount in zip(extents, amounts, strict=True)])


lowering("reflection_pad1d_backward reflection_pad2d_backward reflection_pad3d_backward", kind="joining")(
    lambda call, gradient, x, padding: _padding_backward(call, gradient, padding, _reflected)
)
lowering("replication_pad1d_backward replication_pad2d_backward replication_pad3d_backward", kind="joining")(
    lambda call, gradient, x, padding: _padding_backward(call, gradient, padding, _replicated)
)
