"""Example 1.1 as records built by hand, so that the renderings are tested without the stages that make the records."""

from __future__ import annotations

import dataclasses
import operator

import torch

from staxlab.capture.graph import Graph, TensorMeta
from staxlab.capture.module import GraphModule
from staxlab.codegen.kernel import Assembly, Kernel, KernelArgument, KernelSet, Wrapper
from staxlab.compilation import Compilation
from staxlab.loops.ir import ComputedBuffer, InputBuffer, Layout, LoopProgram, OutputReference, Reduction
from staxlab.options import Decision, DeviceSpec, Options
from staxlab.provenance import Line, SourceLocation
from staxlab.schedule.dependencies import schedule

DEVICE = DeviceSpec(kind="cpu", name="cpu", instruction_set="avx512", vector_bytes=64, threads=2)
SHAPE = (64, 128)
aten = torch.ops.aten
BASIS = frozenset({aten.add.Tensor, aten.relu.default, aten.mul.Tensor, aten.sum.dim_IntList})


def meta(*shape: int) -> TensorMeta:
    return TensorMeta.of(torch.empty(shape))


def graph() -> Graph:
    """The captured graph of ``(torch.relu(x + w) * 2).sum(-1)``: ids 0 to 5, all on lines 1 and 2 of a file."""
    built = Graph()
    at = SourceLocation("example.py", 2, "return (torch.relu(x + w) * 2).sum(-1)", "f")
    x = built.placeholder("x", val=meta(*SHAPE), location=SourceLocation("example.py", 1, "def f(x, w):", "f"))
    w = built.placeholder("w", val=meta(*SHAPE), location=x.location)
    add = built.call_function(operator.add, (x, w), val=meta(*SHAPE), location=at)
    relu = built.call_function(torch.relu, (add,), val=meta(*SHAPE), location=at)
    mul = built.call_function(operator.mul, (relu, 2), val=meta(*SHAPE), location=at)
    total = built.call_method("sum", (mul, -1), val=meta(SHAPE[0]), location=at)
    built.set_output(total)
    return built


def program() -> LoopProgram:
    row = Layout.contiguous(SHAPE, torch.float32, "cpu")

    def compute(ops, index, reduced):
        subscript = row.address((*index, *reduced))
        added = ops.tagged(frozenset({2})).add(
            ops.tagged(frozenset({0})).load("x", subscript), ops.tagged(frozenset({1})).load("w", subscript)
        )
        positive = ops.tagged(frozenset({3})).relu(added)
        scaling = ops.tagged(frozenset({4}))
        return scaling.mul(positive, scaling.constant(2.0, torch.float32))

    everything = frozenset({2, 3, 4, 5})
    data = Reduction(SHAPE[:1], SHAPE[1:], "sum", torch.float32, torch.float32, compute, everything)
    out = Layout.contiguous(SHAPE[:1], torch.float32, "cpu")
    decision = Decision(
        "realize",
        "mul",
        "inline",
        "one reader, and recomputing it costs nothing",
        ("inline", "realize"),
        (("readers", 1),),
    )
    return LoopProgram(
        (InputBuffer("x", row, frozenset({0})), InputBuffer("w", row, frozenset({1}))),
        (ComputedBuffer("buf0", out, data, everything),),
        (OutputReference("buf0", out, origins=frozenset({5})),),
        (decision,),
    )


KERNEL_LINES = (
    Line('extern "C" void fused_add_relu_mul_sum_0(const float* x, const float* w, float* out) {'),
    Line("    #pragma omp parallel for"),
    Line("    for (long i0 = 0; i0 < 64; ++i0) {", frozenset({5})),
    Line("        vec acc = vec(0.0f);", frozenset({5})),
    Line("        for (long r0 = 0; r0 < 128; r0 += 16) {", frozenset({5})),
    Line("            vec tmp0 = load(x + 128 * i0 + r0);", frozenset({0})),
    Line("            vec tmp1 = load(w + 128 * i0 + r0);", frozenset({1})),
    Line("            vec tmp2 = tmp0 + tmp1;  // add <b>&", frozenset({2})),
    Line("            vec tmp3 = max(tmp2, vec(0.0f));", frozenset({3})),
    Line("            acc = acc + tmp3 * vec(2.0f);", frozenset({4, 5})),
    Line("        }"),
    Line("        out[i0] = reduce_add(acc);", frozenset({5})),
    Line("    }"),
    Line("}"),
)


def kernel() -> Kernel:
    pointer = KernelArgument
    return Kernel(
        "fused_add_relu_mul_sum_0",
        "cpp",
        KERNEL_LINES,
        (
            pointer("x", "x", "input", torch.float32),
            pointer("w", "w", "input", torch.float32),
            pointer("out", "buf0", "output", torch.float32),
        ),
        ("op0",),
        DEVICE,
        frozenset(range(6)),
        flags=("-O3", "-march=native"),
        launch={"vector_lanes": 16, "accumulators": 4},
        bytes_read=2 * 64 * 128 * 4,
        bytes_written=64 * 4,
        operations=4 * 64 * 128,
        decisions=(
            Decision("vector-width", "fused_add_relu_mul_sum_0", 16, "a vector of 64 bytes holds 16 floats", (8, 16)),
        ),
    )


def assembly() -> Assembly:
    texts = (
        ("fused_add_relu_mul_sum_0:", ()),
        ("    vmovups zmm0, zmmword ptr [rdi + 4*rax]", (0,)),
        ("    vaddps  zmm0, zmm0, zmmword ptr [rsi + 4*rax]", (1, 2)),
        ("    vmaxps  zmm0, zmm0, zmm1", (3,)),
        ("    vfmadd231ps zmm2, zmm0, zmm3", (4, 5)),
        ("    jne     .L3", ()),
        ("    ret", ()),
    )
    return Assembly("fused_add_relu_mul_sum_0", "asm", tuple(Line(t, frozenset(o)) for t, o in texts))


def wrapper() -> Wrapper:
    return Wrapper(
        (
            Line("def call(inputs):"),
            Line("    x, w = inputs", frozenset({0, 1})),
            Line("    buf0 = empty((64,), (1,), float32)", frozenset({5})),
            Line("    fused_add_relu_mul_sum_0(x, w, buf0)", frozenset({2, 3, 4, 5})),
            Line("    return (buf0,)", frozenset({5})),
        ),
        {"float32": torch.float32},
    )


def records() -> dict[str, object]:
    """One record of every kind, by name."""
    loops = program()
    return {
        "graph": graph(),
        "module": GraphModule(graph()),
        "loops": loops,
        "schedule": schedule(loops, DEVICE, Options()),
        "kernel": kernel(),
        "kernels": KernelSet((kernel(),)),
        "assembly": assembly(),
        "wrapper": wrapper(),
        "decision": loops.decisions[0],
    }


class DisassembledKernel(Kernel):
    """A kernel whose machine code is known, so that no compiler is needed."""

    def assembly(self, kind: str | None = None) -> Assembly:
        return assembly()


FUNCTION_SOURCE = """\
def f(x, w):
    y = torch.relu(x + w)
    z = y * 2 + 0
    return z.sum(-1)
"""


def sample() -> list[torch.Tensor]:
    return [torch.zeros(SHAPE), torch.zeros(SHAPE)]


def compilation() -> Compilation:
    """A compilation of Example 1.1: front end real, back end by hand."""
    from staxlab.capture.tracer import trace
    from staxlab.oneliner import define
    from staxlab.operators.record import record
    from staxlab.specialize.signature import compute_key
    from staxlab.transform import transform

    function = define(FUNCTION_SOURCE, file="example.py")
    inputs = sample()
    captured = trace(function, tuple(inputs), {}, options=Options())
    transformed = transform(captured, Options())
    loops = program()
    made = kernel()
    disassembled = DisassembledKernel(**{f.name: getattr(made, f.name) for f in dataclasses.fields(made)})
    return Compilation(
        name="f",
        target="cpu",
        options=Options(),
        device=DEVICE,
        records={
            "capture": captured,
            "transforms": transformed,
            "operators": record(transformed.final, inputs, Options(), basis=BASIS),
            "loops": loops,
            "schedule": schedule(loops, DEVICE, Options()),
            "kernels": KernelSet((disassembled,)),
            "wrapper": wrapper(),
        },
        timings={"capture": 0.0021, "transforms": 0.0004, "operators": 0.003, "loops": 0.001, "kernels": 0.012},
        key=compute_key(tuple(inputs), {}, parameter_name=lambda index: "xw"[index]),
    )
