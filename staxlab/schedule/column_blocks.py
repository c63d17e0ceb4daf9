"""Column sums beside their rows: a reduction over outer loops in two steps, so that the first can share a kernel.

The adjoint of a layer norm sums along the rows of its operands and down their columns. Rows cannot be shared by the
two: a column needs all of them. But merging is associative (Definition 6.3), so blocks of rows may be reduced by
themselves,

    ``y(c) = merge over blocks p of ( merge over rows r of block p of f(r, c) )``,

and the first step is a node with a kept loop over blocks: it takes its place in a loop over blocks of rows
(:mod:`.rows`) beside everything else that reads them, while they are in the cache. The results of the blocks are merged
in order by a short second node. How rows are blocked follows from shapes alone, so a result repeats bit by bit.

Which nodes are cut is tried, not guessed: a schedule with blocks is kept if it moves fewer bytes.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from ..loops.expressions import Expr
from ..loops.ir import ComputedBuffer, Index, Layout, LoopProgram, Reduction
from ..loops.ops import Ops
from ..options import Decision
from .legality import FEWEST_ROWS
from .records import Schedule, ScheduleNode

TOPIC = "column-blocks"

#: What a block of rows of one operand may take: several operands' blocks stay in a second-level cache together.
BLOCK_BYTES = 128 << 10

#: Of fewer rows the results of the blocks would be no small part of what is read.
FEWEST_IN_BLOCK = 8

#: Operands that take less are cached whole, and read again for little.
LEAST_BYTES = 256 << 10


@dataclass(frozen=True)
class Blocks:
    """The reduced loops outside ``loop``, and pieces of it of so many ``iterations``, become loops over blocks."""

    loop: int
    iterations: int
    count: int


def in_blocks(found: Schedule, again: Callable[[LoopProgram], Schedule]) -> Schedule:
    """The schedule, or a better one with some column sums in two steps; ``again`` schedules a program."""
    wanted = {node.buffers[0]: blocks for node in found.nodes if (blocks := _blocks(node, found)) is not None}
    while wanted:
        other = again(with_blocks(found.program, wanted))
        alone = [name for name in wanted if not _is_shared(partial_name(name), other)]
        if not alone:
            moved, instead = _traffic(found), _traffic(other)
            better = instead < moved
            decisions = tuple(_decision(name, blocks, moved, instead) for name, blocks in wanted.items())
            kept = other if better else found
            return replace(kept, decisions=kept.decisions + decisions)
        wanted = {name: blocks for name, blocks in wanted.items() if name not in alone}
    return found


def partial_name(buffer: str) -> str:
    """The buffer that holds the results of a column sum's blocks."""
    return f"{buffer}_blocks"


def with_blocks(program: LoopProgram, wanted: Mapping[str, Blocks]) -> LoopProgram:
    """The program with these reductions in two steps."""
    buffers: list[Any] = []
    for buffer in program.buffers:
        if buffer.name in wanted:
            buffers += _two_steps(buffer, wanted[buffer.name])  # type: ignore[arg-type]  # only reductions are wanted
        else:
            buffers.append(buffer)
    return replace(program, buffers=tuple(buffers))


def _two_steps(buffer: ComputedBuffer, blocks: Blocks) -> tuple[ComputedBuffer, ComputedBuffer]:
    data = buffer.data
    assert isinstance(data, Reduction)
    loop, size = blocks.loop, blocks.iterations
    outside = (*data.reduction_ranges[:loop], data.reduction_ranges[loop] // size)
    name = partial_name(buffer.name)
    layout = Layout.contiguous((*outside, *data.ranges), data.accumulate_dtype, buffer.layout.device)

    def block(ops: Ops, index: Index, inner: Index) -> Any:
        first = Expr.of(index[loop]) * size + inner[0]
        return data.compute(ops, tuple(index[loop + 1 :]), (*index[:loop], first, *inner[1:]))

    def merge(ops: Ops, index: Index, inner: Index) -> Any:
        return ops.tagged(data.origins).load(name, layout.address((*inner, *index)))

    first_step = replace(
        data, ranges=layout.shape, reduction_ranges=(size, *data.reduction_ranges[loop + 1 :]),
        dtype=data.accumulate_dtype, compute=block,
    )  # fmt: skip
    second_step = replace(data, reduction_ranges=outside, compute=merge)
    return ComputedBuffer(name, layout, first_step, buffer.origins), replace(buffer, data=second_step)


# -- which -------------------------------------------------------------------------------------------------------------


def _blocks(node: ScheduleNode, schedule: Schedule) -> Blocks | None:
    """How to block the rows of a node that is the sum of columns and shares what it reads with another kernel."""
    if node.kind != "reduction" or node.reduction in ("argmax", "argmin") or node.is_empty or not node.reduction_numel:
        return None
    buffer = schedule.program.buffer(node.buffers[0])
    assert isinstance(buffer, ComputedBuffer) and isinstance(buffer.data, Reduction) and node.body is not None
    largest = max(node.reads, key=schedule.bytes_of, default=None)
    if largest is None or schedule.bytes_of(largest) < LEAST_BYTES:
        return None
    along = [largest.index.coefficient(symbol) for symbol in node.body.indices]
    if not any(step is not None and step == Expr.of(1) for step in along):
        return None
    others = [other for other in schedule.nodes if other is not node and other.kind != "extern"]
    if not any(largest.buffer in {a.buffer for a in (*other.reads, *other.writes)} for other in others):
        return None
    row = max(schedule.bytes_of(largest) // node.reduction_numel, 1)
    return _choose(buffer.data.reduction_ranges, max(BLOCK_BYTES // row, FEWEST_IN_BLOCK))


def _choose(extents: tuple[int, ...], most: int) -> Blocks | None:
    """The largest blocks of at most so many rows of which there are enough."""
    best: tuple[int, Blocks] | None = None
    total = math.prod(extents)
    for loop, extent in enumerate(extents):
        inside = math.prod(extents[loop + 1 :])
        for iterations in range(1, min(extent, most // inside) + 1):
            rows = iterations * inside
            if extent % iterations or rows < FEWEST_IN_BLOCK or total // rows < FEWEST_ROWS:
                continue
            if best is None or rows > best[0]:
                best = rows, Blocks(loop, iterations, total // rows)
    return best and best[1]


def _is_shared(name: str, schedule: Schedule) -> bool:
    """Whether the node that writes a buffer shares its kernel with another."""
    return any(name in member.buffers for node in schedule.nodes if len(node.members) > 1 for member in node.members)


def _traffic(schedule: Schedule) -> int:
    return sum(schedule.bytes_read(node) + schedule.bytes_written(node) for node in schedule.nodes)


def _decision(name: str, blocks: Blocks, moved: int, instead: int) -> Decision:
    better = instead < moved
    reason = (
        f"{blocks.count} blocks of rows, each reduced where others read it: {moved - instead:,} bytes less are moved"
        if better
        else "what is not read again is less than the results of the blocks take"
    )
    inputs = (("bytes in one step", moved), ("bytes in two", instead))
    return Decision(TOPIC, name, blocks.count if better else 1, reason, (1, blocks.count), inputs)
