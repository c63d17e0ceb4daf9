"""Blocks that are whole need no mask (Sections 9.1 and 9.3).

A thread moves up to 16 bytes by one instruction, but only if it may have all of them or none. What Triton knows of the
mask ``xindex < xnumel`` is its *constancy*, how many neighbouring lanes must agree: the largest power of two that
divides ``xnumel``. For an odd number of elements it is one, and every element is an instruction of its own, in all
262,128 program instances of 134 million elements, of which a single one hangs over the edge. So a kernel that memory
bounds gets two bodies: without a mask for blocks that are whole, with one for the last. All lanes of an instance take
the same branch, and every element is computed by the same operations: no bit of a result depends on which it was in.

Only where neighbouring points are neighbours in memory *and* begin at a multiple of the vector is there anything to
win. Rows of odd length begin anywhere, so rectangles, boxes and rows that are reduced keep their masks; so do kernels
whose tensors stay in the second-level cache, which wait for other things.
"""

from __future__ import annotations

import math

import torch

from ...loops.expressions import Expr
from ...options import Decision
from ...schedule.records import Schedule, ScheduleNode
from .launch import Launch
from .space import BlockDim, coefficient_along
from .tiling import Form, accesses_of

WIDEST = 16  # bytes of one instruction of a thread


def whole_blocks_decision(
    schedule: Schedule, node: ScheduleNode, form: Form, launch: Launch, streams: bool
) -> Decision | None:
    """Why whole blocks have a body without a mask, with the bytes that a lane moves at once with one and without; None
    where one body is enough. ``streams``: the kernel moves more than the second-level cache holds. O(accesses)."""
    (dim, *others) = form.space.dims
    elementwise = form.kind == "pointwise" and all(part.kind == "pointwise" for part in node.members or (node,))
    if not elementwise or others or not streams:
        return None
    if launch.divides(dim) or dim.numel <= launch.blocks[dim.block_name]:
        return None
    widths = []
    for access in accesses_of(node):
        subscript, dtype = form.space.flatten(access.index), schedule.layouts[access.buffer].dtype
        masked, free = (lane_bytes(subscript, dim, dtype, launch, masked) for masked in (True, False))
        if masked < free:
            widths.append((access.buffer, f"{free} B instead of {masked}"))
    if not widths:
        return None
    constancy = dim.numel & -dim.numel
    reason = (
        f"only the last of {launch.grid[0]:,} blocks hangs over the edge, and a mask that may end after "
        f"{'any element' if constancy == 1 else f'{constancy} elements'} cuts the accesses of all others"
    )
    return Decision(
        "mask", node.name, "whole blocks apart", reason, ("in every block", "whole blocks apart"),
        tuple(dict(widths).items()),
    )  # fmt: skip


def lane_bytes(subscript: Expr, dim: BlockDim, dtype: torch.dtype, launch: Launch, masked: bool) -> int:
    """Bytes that a lane moves by one instruction: its elements, as far as they are neighbours that begin at a multiple
    of their number, fit into 16 bytes and, if ``masked``, have one mask."""
    rest = subscript - Expr.of(dim.flat)
    if coefficient_along(subscript, dim.flat) != 1 or not rest.is_constant:
        return dtype.itemsize
    per_lane = max(1, launch.blocks[dim.block_name] // (32 * launch.num_warps))
    elements = math.gcd(per_lane, max(1, WIDEST // dtype.itemsize), int(rest))
    return dtype.itemsize * (math.gcd(elements, dim.numel) if masked else elements)


__all__ = ["lane_bytes", "whole_blocks_decision"]
