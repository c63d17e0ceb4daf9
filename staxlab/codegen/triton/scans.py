"""Scans in Triton (Table 6.1, Section 9.4): all prefixes of a row, found in a tree.

The merges of a scan are associative, so the lanes of a block find its prefixes together: ``tl.associative_scan`` takes
log2(R0_BLOCK) rounds. A row longer than a block is walked along, and every block's prefixes take in the running value
that the block before it left. Merging in a tree is another order of additions than the axis's, so sums differ from
those of the reference semantics in their last bits (Theorem 6.3's second class); extremes, positions and integers do
not. The order depends on the block size alone, never on the timing of threads.
"""

from __future__ import annotations

from typing import Any

import torch

from ...options import Decision
from ...provenance import Origins
from ...schedule.records import ScheduleNode
from .handler import BlockValue, TritonOps
from .operations import triton_dtype

#: The helper that merges two neighbouring stretches of a row, the earlier one first.
MERGES = {
    "sum": "merge_sum", "prod": "merge_product", "amax": "later_greater", "amin": "later_smaller",
    "argmax": "later_argmax", "argmin": "later_argmin", "logaddexp": "merge_exponentials",
}  # fmt: skip


def order_decision(node: ScheduleNode, looped: bool) -> Decision:
    """In which order a row is merged, on which the bits of a floating-point scan depend."""
    choice = "tree, blocks in order" if looped else "tree"
    reason = "merges are associative: the lanes of a block find its prefixes in a logarithmic number of rounds"
    if looped:
        reason += ", and each block takes in the running value of the one before it"
    return Decision("scan-order", node.name, choice, reason, ("sequential", "tree"), (("axis", node.reduction_numel),))


def write_scan(writer: Any, value: BlockValue, origins: Origins) -> None:
    """The prefixes of the block ``value`` and their store, the loop around them included."""
    ops, node = TritonOps(writer.emission, origins), writer.node
    kind, dtype = node.reduction, node.accumulate_dtype
    if dtype == torch.bool:  # one bit is not merged by comparisons; of bytes a sum is "or", a product "and"
        value, dtype = ops.emit(f"{value}.to(tl.int8)", torch.int8, value.dims), torch.int8
        kind = {"sum": "amax", "prod": "amin"}.get(kind, kind)
    values = [ops.broadcast(value)]
    if kind in ("argmax", "argmin"):
        wide = torch.int64 if writer.space.dim("r0_").numel > 2**31 - 1 else torch.int32
        text = f"tl.broadcast_to(r0_index.to({triton_dtype(wide)}), {writer.space.shape()})"
        values.append(ops.emit(text, wide, writer.space.all, "positions in the row"))
    merge = ops.use(MERGES[kind])
    found = [BlockValue(ops.fresh(), v.dtype, writer.space.all) for v in values]
    names = ", ".join(v.name for v in found)
    operand = values[0].name if len(values) == 1 else f"({', '.join(v.name for v in values)})"
    writer.inner.emit(f"{names} = tl.associative_scan({operand}, 1, {merge})  # prefixes within the block", origins)
    starts = _carry(writer, ops, found, merge, origins) if writer.looped else []
    _store(writer, ops, found[-1], origins)
    if writer.looped:
        writer.close_loop(starts)


def _carry(
    writer: Any, ops: TritonOps, found: list[BlockValue], merge: str, origins: Origins
) -> list[tuple[str, Origins]]:
    """Merge the running values of earlier blocks into ``found`` and keep its last lane as the next ones; returns how
    running values start, which no merge sees."""
    carried = [f"_{ops.fresh()}" for _ in found]
    merged = [ops.fresh() for _ in found]
    before = ", ".join(f"tl.broadcast_to({c}, {writer.space.shape()})" for c in carried)
    after = ", ".join(v.name for v in found)
    emit, starts = writer.inner.emit, []
    emit(f"{', '.join(merged)} = {merge}({before}, {after})", origins)
    for carry, joined, value in zip(carried, merged, found, strict=True):
        kind = triton_dtype(value.dtype)
        emit(f"{value} = tl.where(r0_offset > 0, {joined}, {value})  # the first block begins the row", origins)
        bits = f"tl.int{8 * value.dtype.itemsize}"  # adding zeros to a number's bits loses no sign and no NaN
        source = f"{value}.to({bits}, bitcast=True)" if value.dtype.is_floating_point else value.name
        last = f"tl.sum(tl.where(r0_base == R0_BLOCK - 1, {source}, 0), 1)[:, None]"
        back = f".to({bits}).to({kind}, bitcast=True)" if value.dtype.is_floating_point else f".to({kind})"
        emit(f"{carry} = {last}{back}  # what the row has come to", origins)
        starts.append((f"{carry} = tl.full({writer.space.shape({'x'})}, 0, {kind})", origins))
    return starts


def _store(writer: Any, ops: TritonOps, value: BlockValue, origins: Origins) -> None:
    node = writer.node
    if node.store_dtype == torch.bool:
        value = ops.emit(f"{value} != 0", torch.bool, value.dims)
    index = writer.space.flatten(node.writes[0].index)
    address, _ = ops.address("out_ptr0", index, writer.space.all)
    mask, _ = ops.mask_for(writer.space.all)
    writer.inner.emit(f"tl.store({', '.join([address, value.name, *([mask] if mask else [])])})", origins)
