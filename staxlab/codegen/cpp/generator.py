"""From schedule nodes to C++ kernels (Section 8): one for each, with the accounts of what it moves and computes."""

from __future__ import annotations

from typing import Any

from ...errors import CodegenError
from ...options import Decision, DeviceSpec, Options
from ...provenance import CodeWriter
from ...schedule.records import Schedule, ScheduleNode
from ..extern import described
from ..kernel import Kernel, KernelArgument, KernelSet, PlannedLoops
from .fused import generate_fused
from .loops import Emission
from .nests import plan_loops, prepare, write_loops
from .plan import LoopPlan
from .reductions import accumulation
from .scatters import write_checks
from .streaming import resident_launch, streamed_buffers, streaming_decision
from .types import identifier
from .unit import INSTRUCTION_SETS, compiler_flags, kernel_name, kernel_scope, pointer_arguments, translation_unit
from .values import Scope


def generate(schedule: Schedule, options: Options, device: DeviceSpec) -> KernelSet:
    """One kernel per schedule node, in order. Extern nodes become kernels of language "extern".

    Raises CodegenError for a dtype or an instruction set that is not supported.
    """
    if device.instruction_set not in INSTRUCTION_SETS:
        known = ", ".join(INSTRUCTION_SETS)
        raise CodegenError(f"no C++ generator for instruction set {device.instruction_set!r}", remedy=f"use {known}")
    kernels = []
    for position, node in enumerate(schedule.nodes):
        if node.members:
            kernels.append(generate_fused(schedule, node, position, options, device))
        elif node.kind == "extern":
            kernels.append(_extern_kernel(schedule, node, position, device))
        else:
            kernels.append(generate_kernel(schedule, node, position, options, device))
    return KernelSet(tuple(kernels))


def _extern_kernel(schedule: Schedule, node: ScheduleNode, position: int, device: DeviceSpec) -> Kernel:
    extern = node.extern
    assert extern is not None
    writer = CodeWriter()
    results = ", ".join(identifier(b) for b in node.buffers)
    why = "library call, on purpose" if extern.reason == "library" else f"fallback: {extern.cause or 'no lowering'}"
    writer.emit(f"{results} = {extern.operator}  # run by PyTorch ({why})", node.origins)
    arguments = tuple(
        KernelArgument(identifier(name), name, role, schedule.layouts[name].dtype)
        for role, names in (("input", dict.fromkeys(a.buffer for a in node.reads)), ("output", node.buffers))
        for name in names
    )
    packet = identifier(str(extern.operator).replace("aten.", "").replace(".default", ""))
    kernel = Kernel(
        name=f"extern_{packet}_{position}", language="extern", lines=writer.lines(), arguments=arguments,
        nodes=(node.name,), device=device, origins=node.origins, bytes_read=schedule.bytes_read(node),
        bytes_written=schedule.bytes_written(node), is_fallback=extern.reason == "fallback",
    )  # fmt: skip
    return described(kernel, extern)


def _arguments(schedule: Schedule, node: ScheduleNode) -> tuple[KernelArgument, ...]:
    assert node.body is not None
    empty = node.kind in ("reduction", "template") and node.reduction_numel == 0
    loads = [] if empty else node.body.all_statements()
    if node.body.epilogue is not None:
        loads = [*loads, *node.body.epilogue.all_statements()]
    read = dict.fromkeys(s.args[0] for s in loads if s.operation == "load")
    written = "inout" if node.base is not None else "output"  # a scatter finds there what it adds to
    return pointer_arguments(schedule, [*((b, "input") for b in read), (node.buffers[0], written)])


def generate_kernel(
    schedule: Schedule, node: ScheduleNode, position: int, options: Options, device: DeviceSpec
) -> Kernel:
    """The kernel of one node that is no extern call."""
    name = kernel_name(node, position)
    arguments = _arguments(schedule, node)
    loop_plan = None
    empty_reduction = node.kind == "reduction" and node.reduction_numel == 0
    scope = kernel_scope(schedule, arguments, device)
    scope.origins = node.origins
    scope.streamed, stores = streamed_buffers(schedule, node, device)
    emission_writer = CodeWriter()
    if node.is_empty:
        emission_writer.emit("// an empty box of subscripts: there is nothing to compute", node.origins)
    else:
        if empty_reduction:
            loop_plan = _constant_plan(node)
        else:
            loop_plan = plan_loops(node, device, options, schedule.bytes_read(node))
        prepare(scope, loop_plan)
        with emission_writer.indent():
            emission = Emission(node, loop_plan, scope, emission_writer)
            if schedule.memory is not None and node.name in schedule.memory.checked_first:
                write_checks(emission, schedule.memory.checked_first[node.name])
            write_loops(emission)
    lines = translation_unit(name, node, arguments, scope, emission_writer, loop_plan)
    launch = _launch(node, scope, loop_plan, empty_reduction)
    launch |= resident_launch(scope)
    flags = compiler_flags(device, bool(launch["parallel"]))
    return Kernel(
        name=name, language="cpp", lines=lines, arguments=arguments, nodes=(node.name,), device=device,
        origins=node.origins, flags=flags, launch=launch, bytes_read=schedule.bytes_read(node),
        bytes_written=schedule.bytes_written(node), operations=node.operations,
        decisions=(*loop_plan.decisions, streaming_decision(stores, scope)) if loop_plan else (),
        planned=(PlannedLoops(node, loop_plan),) if loop_plan else (),
    )  # fmt: skip


def _constant_plan(node: ScheduleNode) -> LoopPlan:
    assert node.body is not None
    reason = "an empty reduction: every output is the neutral element"
    decisions = (Decision("vector-loop", node.name, None, reason),)
    return LoopPlan("pointwise", node.body.indices, (), None, None, 1, 0, False, decisions=decisions)


def _launch(node: ScheduleNode, scope: Scope, loop_plan: LoopPlan | None, empty: bool) -> dict[str, Any]:
    if loop_plan is None:
        return {"parallel": 0, "vector_lanes": 1, "accumulators": 1, "checks": (), "imports": (), "skip": True}
    depth = next((d.choice for d in loop_plan.decisions if d.topic == "parallel-depth"), 0)
    launch: dict[str, Any] = {
        "parallel": depth,
        "vector_lanes": loop_plan.lanes,
        "accumulators": loop_plan.accumulators,
        "checks": tuple(scope.checks),
        "imports": tuple(scope.imports),
        "work": loop_plan.work,
    }
    if node.kind in ("reduction", "template") and not empty:
        launch["accumulation"] = accumulation(node, loop_plan)
    return launch
