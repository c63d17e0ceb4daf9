"""From schedule nodes to C++ kernels (Section 8): names, arguments, preamble, loops, and the accounts of each.

A kernel is one translation unit with one entry point that takes raw pointers; shapes and strides are constants in its
text. It includes nothing but this package's own headers, so that compiling it takes a tenth of a second.
"""

from __future__ import annotations

from typing import Any

import torch

from ...errors import CodegenError
from ...loops.body import LoopBody
from ...loops.operands import operands
from ...options import Decision, DeviceSpec, Options
from ...provenance import CodeWriter
from ...schedule.records import Schedule, ScheduleNode
from ..kernel import Kernel, KernelArgument, KernelSet
from .columns import ROWS_AT_ONCE, write_outer
from .loops import Emission, levels, write_pointwise
from .plan import LoopPlan, plan
from .reductions import accumulation, write_empty_reduction, write_inner
from .scan_plan import plan_scan
from .scans import SCAN_NAMES, write_scan
from .scatters import plan_scatter, write_scatter
from .templates import plan_template, write_template
from .tiles import write_tiles
from .types import element_bytes, identifier, stored_name
from .values import Scope

#: Flags that select an instruction set. Part of the compiler command, hence of the cache key.
INSTRUCTION_SETS = {
    "avx512": ("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mfma", "-mf16c"),
    "avx2": ("-mavx2", "-mfma", "-mf16c"),
    "neon": (),
    "scalar": (),
}

#: What the semantics of a kernel need. No contraction of a*b+c to one rounding, as eager execution has two; integers
#: wrap, as tensors' do; and mathematical functions set no errno, which nobody reads.
SEMANTIC_FLAGS = ("-ffp-contract=off", "-fwrapv", "-fno-math-errno", "-fno-trapping-math")


def generate(schedule: Schedule, options: Options, device: DeviceSpec) -> KernelSet:
    """One kernel per schedule node, in order. Extern nodes become kernels of language "extern".

    Raises CodegenError for a dtype or an instruction set that is not supported.
    """
    if device.instruction_set not in INSTRUCTION_SETS:
        known = ", ".join(INSTRUCTION_SETS)
        raise CodegenError(f"no C++ generator for instruction set {device.instruction_set!r}", remedy=f"use {known}")
    kernels = []
    for position, node in enumerate(schedule.nodes):
        if node.kind == "extern":
            kernels.append(_extern_kernel(schedule, node, position, device))
        else:
            kernels.append(generate_kernel(schedule, node, position, options, device))
    return KernelSet(tuple(kernels))


def kernel_name(node: ScheduleNode, position: int) -> str:
    """``fused_add_relu_mul_sum_0``: the operations in order of first use, the reduction last, the node's number."""
    names: list[str] = []
    if node.body is not None:
        names = _operation_names(node)
    if node.reduction and node.kind != "template":
        names.append(_reduction_name(node))
    stem = ""
    for name in names or ["copy"]:
        if len(stem) + len(name) > 56:
            stem += "_more"
            break
        stem += f"_{name}"
    return f"fused{stem}_{position}"


def _reduction_name(node: ScheduleNode) -> str:
    assert node.reduction is not None
    if node.kind == "scatter":
        return "scatter" if node.reduction == "store" else f"scatter_{node.reduction}"
    return SCAN_NAMES[node.reduction] if node.kind == "scan" else node.reduction


def _operation_names(node: ScheduleNode) -> list[str]:
    """The operations of a node, each once: of a template those of its operands, the product, those of its epilogue."""
    skipped = {"load", "constant", "to_dtype", "index_value", "masked", "indirect", "merged"}
    assert node.body is not None

    def of(body: LoopBody) -> list[str]:
        return list(dict.fromkeys(s.operation for s in body.all_statements() if s.operation not in skipped))

    if node.kind != "template":
        return of(node.body)
    assert node.body.epilogue is not None
    prologue = [name for operand in operands(node.body) for name in of(operand)]
    return [*dict.fromkeys(prologue), "matmul", *of(node.body.epilogue)]


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
    return Kernel(
        name=f"extern_{packet}_{position}", language="extern", lines=writer.lines(), arguments=arguments,
        nodes=(node.name,), device=device, origins=node.origins, bytes_read=schedule.bytes_read(node),
        bytes_written=schedule.bytes_written(node), is_fallback=extern.reason == "fallback",
    )  # fmt: skip


def _arguments(schedule: Schedule, node: ScheduleNode) -> tuple[KernelArgument, ...]:
    assert node.body is not None
    empty = node.kind in ("reduction", "template") and node.reduction_numel == 0
    loads = [] if empty else node.body.all_statements()
    if node.body.epilogue is not None:
        loads = [*loads, *node.body.epilogue.all_statements()]
    read = dict.fromkeys(s.args[0] for s in loads if s.operation == "load")
    taken: set[str] = set()

    def argument(buffer: str, role: str) -> KernelArgument:
        base = name = f"{'in' if role == 'input' else 'out'}_{identifier(buffer)}"
        while name in taken:
            name = f"{base}_{len(taken)}"
        taken.add(name)
        return KernelArgument(name, buffer, role, schedule.layouts[buffer].dtype)

    written = "inout" if node.base is not None else "output"  # a scatter finds there what it adds to
    return (*(argument(b, "input") for b in read), argument(node.buffers[0], written))


def generate_kernel(
    schedule: Schedule, node: ScheduleNode, position: int, options: Options, device: DeviceSpec
) -> Kernel:
    """The kernel of one node that is no extern call."""
    name = kernel_name(node, position)
    arguments = _arguments(schedule, node)
    for argument in arguments:
        stored_name(argument.dtype, argument.buffer)
    loop_plan = None
    empty_reduction = node.kind == "reduction" and node.reduction_numel == 0
    scope = _scope(schedule, arguments, device)
    scope.origins = node.origins
    emission_writer = CodeWriter()
    if node.is_empty:
        emission_writer.emit("// an empty box of subscripts: there is nothing to compute", node.origins)
    else:
        if empty_reduction:
            loop_plan = _constant_plan(node)
        else:
            loop_plan = _PLANS.get(node.kind, plan)(node, device, options, schedule.bytes_read(node))
        _prepare(scope, loop_plan)
        emission = Emission(node, loop_plan, scope, emission_writer)
        with emission_writer.indent():
            if empty_reduction:
                write_empty_reduction(emission)
            elif node.kind in _WRITERS:
                _WRITERS[node.kind](emission)
            elif loop_plan.tile is not None:
                write_tiles(emission)
            elif loop_plan.form == "pointwise":
                write_pointwise(emission)
            elif loop_plan.form == "inner":
                write_inner(emission)
            else:
                write_outer(emission)
    lines = _translation_unit(name, node, arguments, scope, emission_writer, loop_plan)
    launch = _launch(node, scope, loop_plan, empty_reduction)
    flags = (*INSTRUCTION_SETS[device.instruction_set], *SEMANTIC_FLAGS)
    if launch["parallel"]:
        flags += ("-fopenmp",)
    return Kernel(
        name=name, language="cpp", lines=lines, arguments=arguments, nodes=(node.name,), device=device,
        origins=node.origins, flags=flags, launch=launch, bytes_read=schedule.bytes_read(node),
        bytes_written=schedule.bytes_written(node), operations=node.operations,
        decisions=loop_plan.decisions if loop_plan else (),
    )  # fmt: skip


#: The kinds of node that choose and write their loops by themselves.
_PLANS = {"scan": plan_scan, "scatter": plan_scatter, "template": plan_template}
_WRITERS = {"scan": write_scan, "scatter": write_scatter, "template": write_template}


def _scope(schedule: Schedule, arguments: tuple[KernelArgument, ...], device: DeviceSpec) -> Scope:
    inputs = set(schedule.inputs)
    return Scope(
        vector=None, lanes=1, writers=[], level={}, neon=device.instruction_set == "neon",
        arguments={a.buffer: (a.name, a.dtype) for a in arguments},
        offsets={a.buffer: schedule.layouts[a.buffer].offset for a in arguments if a.buffer in inputs},
    )  # fmt: skip


def _prepare(scope: Scope, loop_plan: LoopPlan) -> None:
    nested = loop_plan.outer + (loop_plan.inner if loop_plan.form == "inner" else ())
    scope.vector, scope.lanes, scope.prefetch = loop_plan.vector, loop_plan.lanes, loop_plan.prefetch
    # A vector loop that is part of the parallel loop leaves no room for code outside the innermost body.
    whole_nest = loop_plan.parallel and loop_plan.parallel_innermost and loop_plan.form == "pointwise"
    scope.level = levels(nested, len(nested) + 1 if whole_nest else loop_plan.parallel)
    if loop_plan.strips:
        scope.prefetch_rows = (loop_plan.inner[-1], ROWS_AT_ONCE)
    scope.writers = [CodeWriter() for _ in range(len(nested) + 2)]


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


def _translation_unit(
    name: str,
    node: ScheduleNode,
    arguments: tuple[KernelArgument, ...],
    scope: Scope,
    body: CodeWriter,
    loop_plan: LoopPlan | None,
) -> tuple:
    writer = CodeWriter()
    writer.emit('#include "staxlab_math.h"', node.origins)
    writer.emit("using namespace stax;", node.origins)
    for vector, (element, lanes) in sorted(scope.vector_types.items()):
        writer.emit(f"using {vector} = Vec<{element}, {lanes}>;", node.origins)
    if loop_plan is not None and loop_plan.vector is not None:
        writer.emit(f"using mask = Vec<{_mask_element(scope, loop_plan)}, {loop_plan.lanes}>;", node.origins)
    if scope.imports:
        writer.emit("// Vector functions of SLEEF, found in libtorch_cpu when the kernel is loaded.", node.origins)
    for symbol, (vector, arity) in scope.imports.items():
        parameters = ", ".join([vector] * arity)
        writer.emit(f'extern "C" {{ {vector} (*{symbol.replace("Sleef_", "sleef_")})({parameters}); }}', node.origins)
    writer.emit()
    parameters = ", ".join(
        f"{'const ' if a.role == 'input' else ''}{stored_name(a.dtype, a.buffer)}* __restrict {a.name}"
        for a in arguments
    )
    result = "i64" if scope.checks else "void"
    writer.emit(f'extern "C" {result} {name}({parameters}) {{', node.origins)
    if scope.checks:
        writer.emit("    i64 failure = 0;  // remembers a subscript that is out of range", node.origins)
    writer.extend(body.lines())
    if scope.checks:
        writer.emit("    return failure;", node.origins)
    writer.emit("}", node.origins)
    return writer.lines()


def _mask_element(scope: Scope, loop_plan: LoopPlan) -> str:
    """Masks are as wide as the widest value, so that comparing and selecting need no conversion."""
    names = {"f32": 4, "f64": 8, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1}
    widths = [names[e] for e, lanes in scope.vector_types.values() if lanes == loop_plan.lanes]
    return {1: "i8", 2: "i16", 4: "i32", 8: "i64"}[max(widths, default=element_bytes(torch.bool))]
