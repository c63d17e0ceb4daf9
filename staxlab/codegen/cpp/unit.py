"""A kernel's source as a whole: its name, its arguments, its preamble and the flags it is compiled with (Section 8).

A kernel is one translation unit with one entry point that takes raw pointers; shapes and strides are constants in its
text. It includes nothing but this package's own headers, so that compiling it takes a tenth of a second.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ...loops.body import LoopBody
from ...loops.operands import operands
from ...options import DeviceSpec
from ...provenance import CodeWriter
from ...schedule.records import Schedule, ScheduleNode
from ..kernel import RESIDENT, KernelArgument
from .plan import LoopPlan
from .scans import SCAN_NAMES
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


def compiler_flags(device: DeviceSpec, parallel: bool) -> tuple[str, ...]:
    """The flags a kernel's source needs."""
    flags = (*INSTRUCTION_SETS[device.instruction_set], *SEMANTIC_FLAGS)
    return (*flags, "-fopenmp") if parallel else flags


def kernel_name(node: ScheduleNode, position: int) -> str:
    """``fused_add_relu_mul_sum_0``: the operations in order of first use, the reduction last, the node's number."""
    names: list[str] = []
    for member in node.members or (node,):
        if member.body is not None:
            names += _operation_names(member)
        if member.reduction and member.kind != "template":
            names.append(_reduction_name(member))
    names = list(dict.fromkeys(names))
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


def pointer_arguments(schedule: Schedule, roles: Iterable[tuple[str, str]]) -> tuple[KernelArgument, ...]:
    """The arguments for pairs of a buffer and its role, named after the buffer, each differently.

    Raises CodegenError for a dtype that kernels do not store.
    """
    found: dict[str, KernelArgument] = {}
    roles = list(roles)
    for buffer, role in roles:
        base = name = f"{'in' if role == 'input' else 'out'}_{identifier(buffer)}"
        while name in found:
            name = f"{base}_{len(found)}"
        dtype = schedule.layouts[buffer].dtype
        stored_name(dtype, buffer)
        shared = schedule.memory is not None and any(schedule.memory.shares(buffer, other) for other, _ in roles)
        found[name] = KernelArgument(name, buffer, role, dtype, shared)
    return tuple(found.values())


def kernel_scope(schedule: Schedule, arguments: tuple[KernelArgument, ...], device: DeviceSpec) -> Scope:
    """What the loops of a kernel with these arguments find around them."""
    inputs = set(schedule.inputs)
    return Scope(
        vector=None, lanes=1, writers=[], level={}, neon=device.instruction_set == "neon",
        arguments={a.buffer: (a.name, a.dtype) for a in arguments},
        offsets={a.buffer: schedule.layouts[a.buffer].offset for a in arguments if a.buffer in inputs},
    )  # fmt: skip


def translation_unit(
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
        writer.emit(f"using mask = Vec<{mask_element(scope, loop_plan)}, {loop_plan.lanes}>;", node.origins)
    if scope.imports:
        writer.emit("// Vector functions of SLEEF, found in libtorch_cpu when the kernel is loaded.", node.origins)
    for symbol, (vector, arity) in scope.imports.items():
        parameters = ", ".join([vector] * arity)
        writer.emit(f'extern "C" {{ {vector} (*{symbol.replace("Sleef_", "sleef_")})({parameters}); }}', node.origins)
    writer.emit()
    parameters = ", ".join(map(_parameter, arguments))
    result = "i64" if scope.checks else "void"
    if scope.streams:
        writer.emit("// resident: the outputs' pages have been there before, so that stores may bypass the caches.")
        writer.emit("template <bool resident>")
        writer.emit(f"static inline {result} rows({parameters}) {{", node.origins)
    else:
        writer.emit(f'extern "C" {result} {name}({parameters}) {{', node.origins)
    if scope.checks:
        writer.emit("    i64 failure = 0;  // remembers a subscript that is out of range", node.origins)
    writer.extend(body.lines())
    if scope.streams:
        writer.emit("    streamed<resident>();", node.origins)
    if scope.checks:
        writer.emit("    return failure;", node.origins)
    writer.emit("}", node.origins)
    if scope.streams:
        given = ", ".join(a.name for a in arguments)
        for suffix, resident in (("", "false"), (RESIDENT, "true")):
            call = f"{'return ' if scope.checks else ''}rows<{resident}>({given});"
            writer.emit(f'extern "C" {result} {name}{suffix}({parameters}) {{ {call} }}', node.origins)
    return writer.lines()


def _parameter(argument: KernelArgument) -> str:
    """An argument's declaration. What the kernel may overwrite in place must not be said to stand alone in memory."""
    const = "const " if argument.role == "input" else ""
    alone = "" if argument.shared else " __restrict"
    return f"{const}{stored_name(argument.dtype, argument.buffer)}*{alone} {argument.name}"


def mask_element(scope: Scope, loop_plan: LoopPlan) -> str:
    """Masks are as wide as the widest value, so that comparing and selecting need no conversion."""
    names = {"f32": 4, "f64": 8, "i64": 8, "i32": 4, "i16": 2, "i8": 1, "u8": 1}
    widths = [names[e] for e, lanes in scope.vector_types.values() if lanes == loop_plan.lanes]
    return {1: "i8", 2: "i16", 4: "i32", 8: "i64"}[max(widths, default=element_bytes(torch.bool))]
