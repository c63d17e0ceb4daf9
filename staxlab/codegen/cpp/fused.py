"""Several nodes in one kernel: a loop over rows, and inside it one node after the other (Section 8.4).

What a member leaves of a row is still in the cache when the next member reads it. A buffer that nobody else reads never
gets memory of its own: its row stands in an array on the thread's stack, which every row uses again. Each member's
loops are planned and written as if it were a kernel over one row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from ...loops.body import Block, LoopBody, Statement
from ...loops.expressions import Expr, Symbol
from ...options import Decision, DeviceSpec, Options
from ...provenance import CodeWriter
from ...schedule.records import Schedule, ScheduleNode
from ...schedule.rows import place
from ..kernel import Kernel, KernelArgument, PlannedLoops
from .loops import Emission, for_loop
from .nests import plan_loops, prepare, write_loops
from .plan import GRAIN, LoopPlan
from .reductions import accumulation
from .streaming import resident_launch, streamed_buffers, streaming_decision
from .types import identifier, stored_name
from .unit import compiler_flags, kernel_name, kernel_scope, mask_element, pointer_arguments, translation_unit
from .values import Scope


@dataclass(frozen=True)
class RowBuffer:
    """A private buffer: ``elements`` on the stack, the first of which is at address ``low`` within the row."""

    name: str
    low: int
    elements: int


def generate_fused(
    schedule: Schedule, node: ScheduleNode, position: int, options: Options, device: DeviceSpec
) -> Kernel:
    """The kernel of a fused node."""
    name = kernel_name(node, position)
    arguments = _arguments(schedule, node)
    local = {buffer: _row_buffer(node, buffer) for buffer in node.private}
    shared = kernel_scope(schedule, arguments, device)
    shared.arguments |= {buffer: (place.name, schedule.layouts[buffer].dtype) for buffer, place in local.items()}
    shared.streamed, stores = streamed_buffers(schedule, node, device)
    body = CodeWriter()
    plans: list[LoopPlan] = []
    planned: list[PlannedLoops] = []
    seen: set[str] = set()
    alone = replace(device, threads=1)
    work = 0
    writers: list[CodeWriter] = []
    for member in node.members:
        fresh = {a.buffer for a in member.reads} - seen - set(node.private)
        streamed = sum(schedule.bytes_of(a) for a in member.reads if a.buffer in fresh)
        seen |= {a.buffer for a in member.reads} | set(member.buffers)
        placed = _placed(member, local, node.row_loops)
        loop_plan = _one_thread(plan_loops(placed, alone, options, streamed))
        work += loop_plan.work * node.rows
        plans.append(loop_plan)
        planned.append(PlannedLoops(placed, loop_plan))
        scope = replace(shared, preloaded={}, origins=member.origins)  # preamble and checks are those of the kernel
        prepare(scope, loop_plan)
        scope.level |= dict.fromkeys(node.row_loops, 0)
        writer = CodeWriter()
        with writer.indent(), writer.indent():
            write_loops(Emission(placed, loop_plan, scope, writer))
        writers.append(_block(member, loop_plan, scope, writer))
    parallel = work >= 2 * GRAIN and node.rows > 1
    _rows(node, schedule, local, writers, body, shared, parallel)
    lines = translation_unit(name, node, arguments, shared, body, None)
    launch: dict[str, Any] = {
        "parallel": int(parallel),
        "vector_lanes": max(p.lanes for p in plans),
        "accumulators": max(p.accumulators for p in plans),
        "checks": tuple(shared.checks),
        "imports": tuple(shared.imports),
        "work": work,
        "accumulations": {
            member.buffers[0]: accumulation(member, p)
            for member, p in zip(node.members, plans, strict=True)
            if member.kind == "reduction"
        },
    }
    decisions = tuple(d for p in plans for d in p.decisions if d.topic != "parallel-depth")
    decisions += (_parallel_decision(node, parallel, work, device), streaming_decision(stores, shared))
    launch |= resident_launch(shared)
    flags = compiler_flags(device, parallel)
    return Kernel(
        name=name, language="cpp", lines=lines, arguments=arguments, nodes=(node.name,), device=device,
        origins=node.origins, flags=flags, launch=launch, bytes_read=schedule.bytes_read(node),
        bytes_written=schedule.bytes_written(node), operations=node.operations, decisions=decisions,
        planned=tuple(planned),
    )  # fmt: skip


def _arguments(schedule: Schedule, node: ScheduleNode) -> tuple[KernelArgument, ...]:
    """What is read from outside, then what is written for outside; what members read of the latter is no input."""
    inside = {b for member in node.members for b in member.buffers}
    bodies = [member.body for member in node.members if member.body is not None]
    loads = (s.args[0] for body in bodies for s in body.all_statements() if s.operation == "load")
    read = dict.fromkeys(buffer for buffer in loads if buffer not in inside)
    return pointer_arguments(schedule, [*((b, "input") for b in read), *((b, "output") for b in node.buffers)])


def _row_buffer(node: ScheduleNode, buffer: str) -> RowBuffer:
    writer = next(member for member in node.members if buffer in member.buffers)
    found = place(writer.writes[0].index, node.row_loops)
    assert found is not None and found.bounds is not None
    low, high = found.bounds
    return RowBuffer(f"row_{identifier(buffer)}", low, high - low + 1)


def _placed(member: ScheduleNode, local: dict[str, RowBuffer], loops: tuple[Symbol, ...]) -> ScheduleNode:
    """The member with its private buffers addressed from the start of the row."""

    def moved(buffer: str, index: Expr) -> Expr:
        if buffer not in local:
            return index
        found = place(index, loops)
        assert found is not None
        return found.local - local[buffer].low

    def change(statements: tuple[Statement, ...]) -> tuple[Statement, ...]:
        changed = []
        for s in statements:
            args = s.args
            if s.operation == "load":
                args = (args[0], moved(args[0], args[1]))
            elif s.operation == "masked":
                args = (args[0], Block(change(args[1].statements), args[1].result), args[2])
            changed.append(replace(s, args=args))
        return tuple(changed)

    body = member.body
    assert body is not None
    new = LoopBody(body.indices, body.reduction_indices, change(body.statements), body.result)
    return replace(
        member, body=new,
        reads=tuple(replace(a, index=moved(a.buffer, a.index)) for a in member.reads),
        writes=tuple(replace(a, index=moved(a.buffer, a.index)) for a in member.writes),
    )  # fmt: skip


def _one_thread(loop_plan: LoopPlan) -> LoopPlan:
    """Rows are shared among threads; inside one nothing is."""
    decisions = tuple(
        replace(d, choice=0, reason="rows are shared among threads") if d.topic == "parallel-depth" else d
        for d in loop_plan.decisions
    )
    return replace(loop_plan, parallel=0, parallel_innermost=False, decisions=decisions)


def _block(member: ScheduleNode, loop_plan: LoopPlan, scope: Scope, loops: CodeWriter) -> CodeWriter:
    writer = CodeWriter()
    with writer.indent():
        what = member.reduction or "elementwise"
        writer.emit(f"{{  // {member.name}: {what}", member.origins)
        if loop_plan.vector is not None:
            mask = f"Vec<{mask_element(scope, loop_plan)}, {loop_plan.lanes}>"
            writer.emit(f"    using mask [[maybe_unused]] = {mask};", member.origins)
        writer.extend(loops.lines())
        writer.emit("}", member.origins)
    return writer


def _rows(
    node: ScheduleNode,
    schedule: Schedule,
    local: dict[str, RowBuffer],
    members: list[CodeWriter],
    body: CodeWriter,
    shared: Scope,
    parallel: bool,
) -> None:
    with body.indent():
        if parallel:
            clause = f" collapse({len(node.row_loops)})" if len(node.row_loops) > 1 else ""
            clause += " reduction(max : failure)" if shared.checks else ""
            body.emit(f"#pragma omp parallel for{clause} schedule(static)", node.origins)
        heads = [for_loop(loop).removesuffix(" {") for loop in node.row_loops]
        for head in heads[:-1]:
            body.emit(head, node.origins)
        body.emit(f"{heads[-1]} {{" if heads else "{", node.origins)
        for buffer, place in local.items():
            kind = stored_name(schedule.layouts[buffer].dtype, buffer)
            origins = next(m.origins for m in node.members if buffer in m.buffers)
            body.emit(f"    alignas(64) {kind} memory_{place.name}[{place.elements}];", origins)
            body.emit(f"    {kind}* const {place.name} = memory_{place.name};", origins)
        for writer in members:
            body.extend(writer.lines())
        body.emit("}", node.origins)


def _parallel_decision(node: ScheduleNode, parallel: bool, work: int, device: DeviceSpec) -> Decision:
    reason = f"{node.rows} rows to share among {device.threads} threads" if parallel else (
        "the whole kernel is shorter than starting threads would take"
    )  # fmt: skip
    inputs = (("rows", node.rows), ("estimated vector operations", work), ("fewest per thread", round(GRAIN)))
    return Decision("parallel-depth", node.name, int(parallel), reason, inputs=inputs)
