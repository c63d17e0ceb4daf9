"""Splitting reductions (Section 6.5): few long sums become many short ones, and a second level that merges those.

A GPU is full when some thousand program instances are at work. A reduction gives it one for each output, or for each
warp of neighbouring outputs; the sum of a whole tensor keeps one multiprocessor busy and all others idle. Since merging
is associative, the reduction range may be cut into ``k`` segments, each reduced by itself (Definition 6.3):

    ``y(i) = merge over j < k of ( merge over r in segment j of f(i, r) )``,

``n * k`` independent partial results, then one short reduction over ``k``. What is paid is writing and reading those.
On a CPU, whose threads are few, the outputs alone are parallel enough, and nothing is split.

How many segments is Algorithm 6.1. It speaks of *inner* reductions, whose lanes run along the row: an instance is one
output and its ``m`` threads share that output's elements. In an *outer* reduction (column sums) lanes run across ``c``
neighbouring outputs, so that reading stays contiguous; an instance is ``c`` outputs, and ``m / c`` threads share the
elements of each. Put into the algorithm, these two numbers give the rule for outer reductions too, and ``c = 1`` is
the algorithm as it stands; its bound ``2 S`` on the outputs becomes ``2 S c``, at most the ``2 * 32 * S`` outputs from
which Section 6.5 splits nothing at all.

A row whose result is put together with the row again, as in a softmax, is another matter: left whole, an instance
reduces the row and goes on to use it, which spares reading it twice, at the price of multiprocessors without a row.
:func:`left_whole` weighs the one against the other.

Which elements form a segment, and hence the order of summation, follows from shapes, strides, device and options
alone: a result repeats bit by bit. Partial results are kept in the accumulator's dtype.

>>> from staxlab.options import GPU_SPECS
>>> split, decision = choose_split("y", "sum", 64, 16384, GPU_SPECS["sm_90"])  # Example 6.2
>>> split
Split(elements=16384, segments=2, length=8192)
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..options import Decision, DeviceSpec
from ..provenance import Origins
from .body import LoopBody, MemoryAccess, record
from .expressions import Expr, Symbol
from .ir import ComputedBuffer, Index, Layout, Reduction
from .layout import numel
from .normalize import normalize, reduction_order
from .ops import Ops
from .semantics import neutral_element

TOPIC = "split-reduction"

# ``e_max``: elements that a thread takes in at most, until there are more than that for every thread of the device.
ELEMENTS_MOST = 512
# How far from the wanted number of elements per thread a divisor of the length may lie and still be taken for it.
NEAR_MOST = 50
INT32_MAX = 2**31 - 1

#: Kinds that are not split: what is stored is a position in the whole range, not a value of the monoid's set.
CARRIES_POSITION = ("argmax", "argmin")


@dataclass(frozen=True)
class Split:
    """``elements`` in ``segments`` consecutive pieces of ``length``, the last of which may be shorter but not empty."""

    elements: int
    segments: int
    length: int

    def __post_init__(self) -> None:
        if not (self.segments - 1) * self.length < self.elements <= self.segments * self.length:
            raise ValueError(f"{self.segments} segments of {self.length} do not tile {self.elements} elements")

    @property
    def is_ragged(self) -> bool:
        """Whether the last segment is shorter, so that its tail has to be masked."""
        return self.segments * self.length > self.elements

    def segment(self, number: int) -> range:
        """The elements of one segment."""
        return range(number * self.length, min((number + 1) * self.length, self.elements))


@dataclass(frozen=True)
class SplitRule:
    """Algorithm 6.1 for one device and ``outputs_side_by_side`` (``c``; 1 for an inner reduction).

    ``S`` multiprocessors, warps of ``w`` lanes, ``T`` threads per multiprocessor; an instance has ``m = 8 w`` threads,
    of which ``m / c`` share the elements of one output.
    """

    device: DeviceSpec
    outputs_side_by_side: int = 1

    @classmethod
    def of(cls, n: int, device: DeviceSpec, across: bool) -> SplitRule:
        """The rule for ``n`` outputs; ``across`` when lanes run across them: a warp of them, or all there are."""
        return cls(device, min(device.warp_size, 1 << (n - 1).bit_length()) if across else 1)

    @property
    def threads(self) -> int:
        return 8 * self.device.warp_size

    @property
    def threads_per_output(self) -> int:
        return max(1, self.threads // self.outputs_side_by_side)

    @property
    def fewest_elements(self) -> int:
        """``e_min``: what a thread takes in at least."""
        return self.device.warp_size

    @property
    def enough_outputs(self) -> int:
        """From so many outputs on, two instances for each multiprocessor, nothing is split (line 3)."""
        return 2 * self.device.multiprocessors * self.outputs_side_by_side

    @property
    def whole_up_to(self) -> int:
        """The longest range that is not split (line 4): its threads get no more than ``e_min`` elements each."""
        return self.fewest_elements * self.threads_per_output

    @property
    def resident_threads(self) -> int:
        return self.device.multiprocessors * self.device.max_threads_per_multiprocessor

    @property
    def small(self) -> int:
        """``D_min``: so many elements in all are ``e_min`` for every thread the device holds."""
        return self.fewest_elements * self.resident_threads

    @property
    def large(self) -> int:
        """``D_max``: so many are ``e_max`` for each."""
        return ELEMENTS_MOST * self.resident_threads

    @property
    def blocks_wanted(self) -> int:
        """``b``: instances of ``m`` threads that make half of what the device holds, which leaves room for larger
        ones (a looped row kernel has up to ``2 m`` threads)."""
        return self.resident_threads // (2 * self.threads)

    def elements_per_thread(self, n: int, n_r: int) -> int:
        """``s``, lines 5 to 7."""
        if n * n_r <= self.small:
            return self.fewest_elements
        if n * n_r < self.large:
            groups = -(-n // self.outputs_side_by_side)
            instances = -(-self.blocks_wanted // groups)
            wanted = -(-n_r // (self.threads_per_output * instances))
            # An even division is worth a quarter more or less work per thread.
            return max(_divisor_near(n_r, wanted, wanted // 4) or wanted, self.fewest_elements)
        return _divisor_near(n_r, ELEMENTS_MOST, NEAR_MOST) or ELEMENTS_MOST

    def segments(self, n: int, n_r: int) -> int:
        """``k``: into how many segments ranges of ``n_r`` elements are cut, ``n`` outputs there being."""
        if n >= self.enough_outputs or n_r <= self.whole_up_to:
            return 1
        return -(-n_r // (self.elements_per_thread(n, n_r) * self.threads_per_output))

    def split(self, n: int, n_r: int) -> Split:
        """The segments themselves: equally long, and along a row beginning at whole cache lines (a multiple of ``w``
        elements) where that does not cost a segment."""
        count = self.segments(n, n_r)
        length = -(-n_r // count)
        line = self.device.warp_size if self.outputs_side_by_side == 1 and count > 1 else 1
        aligned = -(-length // line) * line
        if (count - 1) * aligned < n_r:
            length = aligned
        return Split(n_r, -(-n_r // length), length)

    def facts(self, n: int, n_r: int) -> tuple[tuple[str, Any], ...]:
        device = self.device
        return (
            ("n", n), ("n_r", n_r), ("S", device.multiprocessors), ("w", device.warp_size),
            ("T", device.max_threads_per_multiprocessor), ("m", self.threads),
            ("outputs side by side", self.outputs_side_by_side), ("enough outputs", self.enough_outputs),
            ("whole up to", self.whole_up_to), ("D_min", self.small), ("D_max", self.large),
        )  # fmt: skip


def left_whole(n: int, row_bytes: int, device: DeviceSpec) -> tuple[float, float]:
    """What ``n`` rows of ``row_bytes`` cost that are reduced, then read again with the result and written anew: in
    transfers of an element at the full bandwidth of the memory, left whole and split. O(1).

    Whole, an instance reads its row, again if the rows under way are more than the second-level cache holds, and writes
    it; of S multiprocessors only n transfer anything. Split, the row is read by the first level and again by the kernel
    that writes, the second time at twice the bandwidth where the cache holds all rows.
    """
    cache = device.l2_bytes or 32 << 20
    busy = min(1.0, n / device.multiprocessors)
    under_way = min(n, 2 * device.multiprocessors) * row_bytes
    whole = (2.0 + (under_way > cache)) / busy
    split = 3.0 if n * row_bytes > cache else 2.5
    return round(whole, 2), split


def _divisor_near(number: int, wanted: int, distance: int) -> int | None:
    """The divisor of ``number`` nearest to ``wanted`` (the smaller of two), none further off than ``distance``."""
    for gap in range(distance + 1):
        for candidate in (wanted - gap, wanted + gap):
            if candidate > 0 and number % candidate == 0:
                return candidate
    return None


def choose_split(
    subject: str,
    kind: str,
    n: int,
    n_r: int,
    device: DeviceSpec,
    *,
    across: bool = False,
    enabled: bool = True,
    again: int = 0,
) -> tuple[Split, Decision]:
    """How a reduction of ``n`` outputs over ``n_r`` elements each is cut on a GPU, and why. O(1).

    ``across`` says that neighbouring outputs, not neighbouring terms, are adjacent in memory; ``enabled`` is the
    option ``split_reductions``; ``again`` are the bytes of a row that is read again with its result, else 0. ``n`` and
    ``n_r`` are at least 1.
    """
    rule = SplitRule.of(n, device, across)
    whole = Split(n_r, 1, n_r)
    facts = rule.facts(n, n_r)

    def kept(reason: str) -> tuple[Split, Decision]:
        return whole, Decision(TOPIC, subject, 1, reason, (1,), facts)

    if not enabled:
        return kept("the option split_reductions is off")
    if kind in CARRIES_POSITION:
        return kept(f"{kind} carries positions in the whole range along")
    if n >= rule.enough_outputs:
        return kept(f"{n} outputs keep the device busy: {rule.enough_outputs} make two instances per multiprocessor")
    if n_r <= rule.whole_up_to:
        most = rule.fewest_elements
        return kept(f"a range of {n_r} gives each of the {rule.threads_per_output} threads at most {most} elements")
    if again and not across:
        whole_cost, split_cost = left_whole(n, again, device)
        facts += (("transfers per element, whole", whole_cost), ("split", split_cost))
        if whole_cost <= split_cost:
            return kept(
                f"the row is read again with its result: {n} instances for {device.multiprocessors} multiprocessors "
                f"take the time of {whole_cost} transfers per element for both, splitting of {split_cost}"
            )
    split = rule.split(n, n_r)
    each = rule.elements_per_thread(n, n_r)
    facts += (("s", each), ("segments", split.segments), ("segment length", split.length))
    if split.segments == 1:
        return whole, Decision(TOPIC, subject, 1, f"{each} elements per thread make one segment", (1,), facts)
    tail = ", the last one shorter" if split.is_ragged else ""
    alone = "1 output does" if n == 1 else f"{n} outputs do"
    reason = (
        f"{alone} not fill {device.multiprocessors} multiprocessors: {split.segments} segments of "
        f"{split.length} elements{tail}, {each} for each of the {rule.threads_per_output} threads of an output"
    )
    return split, Decision(TOPIC, subject, split.segments, reason, (1, split.segments), facts)


# -- the two levels ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class TwoLevels:
    """A reduction cut in two. ``partial`` has one more output dimension, the segments, behind those of the reduction;
    its ``stride`` keeps the partial results of an output together, or those of a segment where lanes run across
    outputs. ``merge`` makes the second level from a loader of partial results."""

    partial: Reduction
    stride: tuple[int, ...]
    merge: Callable[[Callable[[Ops, Index], Any]], Reduction]


def two_levels(
    data: Reduction,
    layout: Layout,
    dtypes: Mapping[str, torch.dtype],
    device: DeviceSpec,
    enabled: bool = True,
    again: bool = False,
) -> tuple[TwoLevels | None, Decision | None]:
    """Decide on a reduction whose result would be stored with ``layout``; the levels (None: leave it whole) and the
    decision, its subject still to be named (None where there is nothing to decide: on a CPU, and without elements).
    ``dtypes`` are those of the buffers its compute function may read; ``again`` says that what a row is reduced to
    meets the row's elements again.
    """
    n, n_r = numel(data.ranges), numel(data.reduction_ranges)
    if not device.is_gpu or not device.multiprocessors or not n or not n_r:
        return None, None
    groups: list[list[int]] = [[d] for d in range(len(data.reduction_ranges))]
    across, row_bytes = False, 0
    widest = SplitRule(device, device.warp_size)
    if enabled and data.kind not in CARRIES_POSITION and n < widest.enough_outputs and n_r > widest.whole_up_to:
        body = record(ComputedBuffer("value", layout, data), dtypes)
        store = layout.address(tuple(Expr.of(s) for s in body.indices))
        normal = normalize(body, data.ranges, data.reduction_ranges, store)
        groups = _merged(reduction_order(body), data.reduction_ranges, normal.reduction_ranges)
        across = _lanes_run_across(normal.body, dtypes)
        inner = set(body.reduction_indices)
        row_bytes = sum(_bytes(a, dtypes) // n for a in body.reads() if again and inner <= a.index.symbols)
    split, decision = choose_split(
        "value", data.kind, n, n_r, device, across=across, enabled=enabled, again=row_bytes
    )  # fmt: skip
    if split.segments == 1:
        return None, decision
    partial = _first_level(data, split, groups)
    return TwoLevels(partial, _partial_stride(partial.ranges, layout, across), _second_level(data, split)), decision


def _lanes_run_across(body: LoopBody, dtypes: Mapping[str, torch.dtype]) -> bool:
    """Whether more bytes are contiguous across neighbouring outputs than along the reduction: the question by which
    code generation chooses the direction of lanes (Section 9.4), asked of the same normalised loops."""

    def contiguous(loops: tuple) -> int:
        one = Expr.of(1)
        return sum(_bytes(a, dtypes) for a in body.reads() if loops and a.index.coefficient(loops[-1]) == one)

    return contiguous(body.indices) > contiguous(body.reduction_indices)


def _bytes(access: MemoryAccess, dtypes: Mapping[str, torch.dtype]) -> int:
    return access.unique_elements * dtypes[access.buffer].itemsize


def _merged(order: Sequence[int], extents: Sequence[int], merged: Sequence[int]) -> list[list[int]]:
    """The reduction dimensions, by stride and in groups: those that loop normalisation makes one loop (``merged`` are
    the extents of these)."""
    groups, wanted = [[]], list(merged)
    product = 1
    for dimension in order:
        if wanted and product == wanted[0] and extents[dimension] > 1:
            groups.append([])
            wanted.pop(0)
            product = 1
        groups[-1].append(dimension)
        product *= extents[dimension]
    return groups


def _first_level(data: Reduction, split: Split, groups: Sequence[Sequence[int]]) -> Reduction:
    """Reduce each segment. Elements are numbered with the loop of the smallest stride running fastest (``groups``,
    outermost first), so that a segment is as contiguous in memory as the whole range is. Past the end of a ragged last
    segment stands the neutral element."""
    neutral = neutral_element(data.kind, data.accumulate_dtype)
    counter = torch.int32 if split.segments * split.length <= INT32_MAX else torch.int64

    def compute(ops: Ops, index: Index, inner: Index) -> Any:
        *outer, number = index
        position = Expr.of(number) * split.length + inner[0]
        element, values = _subscripts(position, data.reduction_ranges, groups)

        def value(handler: Ops) -> Any:
            return data.compute(Substituted(handler, values) if values else handler, tuple(outer), element)

        if not split.is_ragged:
            return value(ops)
        own = ops.tagged(data.origins)
        inside = own.lt(own.index_value(position, counter), own.constant(split.elements, counter))
        return ops.masked(inside, value, neutral)

    ranges = (*data.ranges, split.segments)
    return replace(data, ranges=ranges, reduction_ranges=(split.length,), dtype=data.accumulate_dtype, compute=compute)


def _subscripts(
    position: Expr, extents: Sequence[int], groups: Sequence[Sequence[int]]
) -> tuple[Index, dict[Symbol, Expr]]:
    """The subscripts of element ``position``. A group of dimensions is one number, whose parts the subscript puts
    together again; so it is a symbol, and its value in terms of ``position``, a remainder that would hide this, is put
    in afterwards (the second result)."""
    found: dict[int, Expr] = {}
    values: dict[Symbol, Expr] = {}
    below = numel(extents)
    for place, group in enumerate(groups):
        extent = numel([extents[d] for d in group])
        below //= extent
        number = position // below
        if place:  # the outermost needs no remainder
            number = number % extent
        if len(group) == 1:
            found[group[0]] = number
            continue
        symbol = Symbol(f"merged{place}", 0, extent - 1)
        values[symbol] = number
        for dimension in group:
            extent //= extents[dimension]
            found[dimension] = Expr.of(symbol) // extent % extents[dimension]
    return tuple(found[d] for d in range(len(extents))), values


class Substituted(Ops):
    """Another interpreter, with expressions put in for symbols in every subscript."""

    def __init__(self, ops: Ops, values: Mapping[Symbol, Expr]):
        self.ops, self.values, self.origins = ops, values, ops.origins

    def tagged(self, origins: Origins) -> Substituted:
        return Substituted(self.ops.tagged(origins), self.values)

    def load(self, buffer: str, index: Expr) -> Any:
        return self.ops.load(buffer, Expr.of(index).substitute(self.values))

    def constant(self, value: Any, dtype: torch.dtype) -> Any:
        return self.ops.constant(value, dtype)

    def index_value(self, expression: Expr, dtype: torch.dtype) -> Any:
        return self.ops.index_value(Expr.of(expression).substitute(self.values), dtype)

    def to_dtype(self, value: Any, dtype: torch.dtype) -> Any:
        return self.ops.to_dtype(value, dtype)

    def masked(self, condition: Any, body: Callable[[Ops], Any], other: Any) -> Any:
        return self.ops.masked(condition, lambda handler: body(Substituted(handler, self.values)), other)

    def indirect(self, value: Any, size: Expr, *, check: bool | None = True) -> Expr:
        return self.ops.indirect(value, size, check=check)

    def proved(self, subscript: Expr, size: int) -> Expr:
        return self.ops.proved(Expr.of(subscript).substitute(self.values), size)

    def apply(self, operation: str, *operands: Any) -> Any:
        return self.ops.apply(operation, *operands)

    def once(self, key: Any, compute: Callable[[Ops], Any]) -> Any:
        return self.ops.once(key, lambda handler: compute(Substituted(handler, self.values)))

    def read(self, value: Any, index: Index, evaluate: Callable[[Ops], Any]) -> Any:
        seen = tuple(Expr.of(position).substitute(self.values) for position in index)
        return self.ops.read(value, seen, lambda handler: evaluate(Substituted(handler, self.values)))

    def made_by(self, node: Any) -> Substituted:
        return Substituted(self.ops.made_by(node), self.values)

    def dtype_of(self, value: Any) -> torch.dtype:
        return self.ops.dtype_of(value)


def _second_level(data: Reduction, split: Split) -> Callable[[Callable[[Ops, Index], Any]], Reduction]:
    def merge(load: Callable[[Ops, Index], Any]) -> Reduction:
        def compute(ops: Ops, index: Index, inner: Index) -> Any:
            return load(ops.tagged(data.origins), (*index, inner[0]))

        return replace(data, reduction_ranges=(split.segments,), compute=compute)

    return merge


def _partial_stride(shape: tuple[int, ...], layout: Layout, across: bool) -> tuple[int, ...]:
    """Outputs in the order in which the result has them in memory, segments inside or outside of them."""
    outputs = sorted(range(len(layout.shape)), key=lambda d: -layout.stride[d])
    segments = len(layout.shape)
    stride, step = [0] * len(shape), 1
    for dimension in reversed([segments, *outputs] if across else [*outputs, segments]):
        stride[dimension] = step
        step *= shape[dimension]
    return tuple(stride)
