"""Generated source as text: readable, deterministic, escaped, and with the decisions that led to it."""

from __future__ import annotations

import dataclasses
import re
import shutil
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from staxlab.codegen import cpp
from staxlab.codegen.cpp.types import identifier, literal
from staxlab.errors import CodegenError
from staxlab.loops.expressions import Expr
from staxlab.loops.ir import ComputedBuffer, InputBuffer, Layout, LoopProgram, OutputReference, Pointwise
from staxlab.options import Options, host_device_spec
from staxlab.runtime import build, toolchain
from staxlab.schedule.dependencies import schedule
from tests.codegen.cpp_support import RUNNABLE, assert_same, compile_program, pointwise, reduction, run

F32 = torch.float32


def example_1_1(rows: int = 64, columns: int = 128):
    x, w = torch.randn(rows, columns), torch.randn(rows, columns)

    def compute(ops, i, r):
        a = ops.add(ops.load("x", columns * i[0] + r[0]), ops.load("w", columns * i[0] + r[0]))
        return ops.mul(ops.relu(a), ops.constant(2, F32))

    return reduction({"x": x, "w": w}, (rows,), (columns,), "sum", F32, F32, compute), {"x": x, "w": w}


def test_example_1_1_is_one_readable_kernel():
    program, inputs = example_1_1()
    artifact, kernels, scheduled = compile_program(program, "avx512" if "avx512" in RUNNABLE else None)
    (kernel,) = kernels
    assert kernel.name == "fused_add_relu_mul_sum_0"
    for comment in ("// load x", "// load w", "// add", "// relu", "// mul", "// sum"):
        assert comment in kernel.source
    assert kernel.bytes_read == 2 * 64 * 128 * 4 and kernel.bytes_written == 64 * 4
    if "avx512" in RUNNABLE:
        plan = kernel.launch["accumulation"]
        assert (plan["lanes"], plan["accumulators"], plan["chunks"], plan["n"]) == (16, 4, 1, 128)
        assert "f32x16" in kernel.source
    topics = {decision.topic for decision in kernel.decisions}
    assert {"vector-loop", "accumulators", "chunks", "parallel-depth", "prefetch"} <= topics
    wanted = (torch.relu(inputs["x"] + inputs["w"]) * 2).sum(-1)
    assert_same(artifact.call(list(inputs.values()))[0], wanted, rtol=1e-5, atol=1e-4)


def test_the_error_stays_within_the_bound_of_the_recorded_order():
    from staxlab.measure.rounding import plan_of, summation_bound

    torch.manual_seed(3)
    for columns in (128, 1000, 2048, 300_000):
        program, inputs = example_1_1(3, columns)
        artifact, kernels, _ = compile_program(program)
        order = plan_of(kernels[0].launch["accumulation"])
        assert order.n == columns and order.height <= columns / 16  # vectors of 8 lanes reach 16 exactly
        # The float32 elements are exact inputs of the sum; only the additions are judged.
        elements = (torch.relu(inputs["x"] + inputs["w"]) * 2).double()
        (result,) = artifact.call(list(inputs.values()))
        for row in range(3):
            bound = summation_bound(columns, order, elements[row].abs().sum().item())
            assert abs(result[row].item() - elements[row].sum().item()) <= bound


def test_generation_is_deterministic_and_repeats_bit_for_bit():
    program, inputs = example_1_1(50, 1000)
    first, second = compile_program(program), compile_program(program)
    assert first[1][0].source == second[1][0].source
    results = [first[0].call(list(inputs.values()))[0] for _ in range(3)]
    assert all(torch.equal(results[0], r) for r in results)


def test_products_and_sums_are_not_contracted():
    """a*b + c rounds twice, as two eager operations do; a fused multiply-add would round once."""
    a = torch.tensor([1.0 + 2**-12] * 20)
    c = torch.tensor([-(1.0 + 2**-11)] * 20)
    inputs = {"a": a, "c": c}

    def compute(ops, i):
        x = ops.load("a", i[0])
        return ops.add(ops.mul(x, x), ops.load("c", i[0]))

    for instruction_set in RUNNABLE:
        result = run(pointwise(inputs, (20,), F32, compute), inputs, instruction_set)
        assert_same(result, a * a + c)
        assert result[0] == 0.0  # one rounding would leave 2**-24


def test_operators_of_extreme_names_and_buffers_are_escaped():
    hostile = 'x"; system("true"); // \\\n#include <evil> */ ??/'
    x = torch.arange(5.0)
    layout = Layout.contiguous((5,), F32, "cpu")
    out = ComputedBuffer("out\n}", layout, Pointwise((5,), F32, lambda ops, i: ops.load(hostile, i[0])))
    program = LoopProgram((InputBuffer(hostile, layout),), (out,), (OutputReference("out\n}", layout),))
    artifact, kernels, _ = compile_program(program)
    assert_same(artifact.call([x])[0], x)
    for text in (kernels[0].source, artifact.wrapper.source):
        assert "evil" not in text.replace(identifier(hostile), "") and '"; system' not in text


@given(st.text(max_size=80))
def test_any_text_becomes_an_identifier(text):
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", identifier(text))


@given(st.floats(width=32, allow_nan=False, allow_infinity=False))
def test_float_literals_read_back_exactly(value):
    text = literal(value, F32)
    assert text.endswith("f")
    assert torch.tensor(float(text[:-1]), dtype=F32).item() == value


@given(st.integers(-(2**70), 2**70))
def test_integer_literals_wrap(value):
    for dtype in (torch.int8, torch.uint8, torch.int32, torch.int64):
        limits = torch.iinfo(dtype)
        text = literal(value, dtype)
        number = eval(re.sub(r"\((i8|u8|i16)\)|ll", "", text))
        assert limits.min <= number <= limits.max and (number - value) % (limits.max - limits.min + 1) == 0


def test_constants_reach_the_kernel_exactly():
    values = [0.1, -0.0, 1e-45, 3.4028235e38, 1e39, float("nan"), float("-inf"), 16777217.0, 1 / 3]
    for dtype in (F32, torch.float64):
        for value in values:
            inputs = {"x": torch.zeros(3, dtype=dtype)}
            program = pointwise(inputs, (3,), dtype, lambda ops, i, v=value, d=dtype: ops.constant(v, d))
            assert_same(run(program, inputs), torch.tensor([value] * 3, dtype=torch.float64).to(dtype))
    for value in (2**63 - 1, -(2**63), 0, -1):
        inputs = {"x": torch.zeros(3, dtype=torch.int64)}
        program = pointwise(inputs, (3,), torch.int64, lambda ops, i, v=value: ops.constant(v, torch.int64))
        assert_same(run(program, inputs), torch.full((3,), value))


def test_an_unsupported_dtype_is_named():
    inputs = {"z": torch.zeros(3, dtype=torch.complex64)}
    program = pointwise(inputs, (3,), torch.complex64, lambda ops, i: ops.load("z", i[0]))
    with pytest.raises(CodegenError, match="complex64"):
        compile_program(program)


def test_an_unknown_instruction_set_is_refused():
    program, _ = example_1_1()
    device = host_device_spec()
    scheduled = schedule(program, device, Options())
    with pytest.raises(CodegenError, match="riscv"):
        cpp.generate(scheduled, Options(), dataclasses.replace(device, instruction_set="riscv"))


def test_neon_source_is_generated_without_intel_functions():
    """Another machine's kernel can be read here; vector functions carry that machine's names."""
    x = torch.randn(100)
    program = pointwise({"x": x}, (100,), F32, lambda ops, i: ops.exp(ops.load("x", i[0])))
    device = host_device_spec("neon")
    (kernel,) = cpp.generate(schedule(program, device, Options()), Options(), device)
    assert "f32x4" in kernel.source and "Sleef_expf4_u10" in kernel.launch["imports"]
    assert not any(flag.startswith("-mavx") for flag in kernel.flags)


def test_values_of_outer_loops_are_computed_once():
    """exp of a row's value stands outside the loop over the row."""
    x, row = torch.randn(10, 64), torch.randn(10)

    def compute(ops, i):
        return ops.mul(ops.load("x", 64 * i[0] + i[1]), ops.exp(ops.load("row", i[0])))

    _, kernels, _ = compile_program(pointwise({"x": x, "row": row}, (10, 64), F32, compute))
    lines = [line.text for line in kernels[0].lines]
    inner = next(n for n, text in enumerate(lines) if "for (i64 i1" in text)
    outside = next(n for n, text in enumerate(lines) if "// exp" in text)
    assert outside < inner


def test_every_line_of_a_kernel_has_origins():
    program, _ = example_1_1(30, 77)
    _, kernels, _ = compile_program(program)
    assert all(line.origins for line in kernels[0].lines if line.text.strip())


def test_a_kernel_name_is_bounded():
    x = torch.randn(4)

    def everything(ops, i):
        value = ops.load("x", i[0])
        for name in ("sigmoid", "reciprocal", "log1p", "exp2", "sinh", "tanh", "asinh", "lgamma", "hypot", "copysign"):
            value = ops.apply(name, value, value) if name in ("hypot", "copysign") else ops.apply(name, value)
        return value

    _, kernels, _ = compile_program(pointwise({"x": x}, (4,), F32, everything))
    assert len(kernels[0].name) < 80 and kernels[0].name.isidentifier()


def test_gathers_that_depend_on_two_indices():
    x = torch.arange(60.0)
    program = pointwise(
        {"x": x}, (5, 36), F32, lambda ops, i: ops.load("x", (i[0] * 7 + i[1] * i[0] + Expr.of(i[1]) // 3) % 60)
    )
    from tests.codegen.cpp_support import expected

    for instruction_set in RUNNABLE:
        assert_same(run(program, {"x": x}, instruction_set), expected(program, {"x": x}))


@pytest.mark.slow
@pytest.mark.skipif(not shutil.which("g++") or not sys.platform.startswith("linux"), reason="needs g++ and its runtime")
@pytest.mark.parametrize("instruction_set", RUNNABLE)
def test_sanitizers_find_nothing(instruction_set, tmp_path):
    """A sample of kernels under the address and undefined-behaviour sanitizers, as programs of their own: every buffer
    is a heap block of exactly the bytes the tensor has, so any access beside it is reported."""
    for number, (program, sizes) in enumerate(_sanitized_sample()):
        device = dataclasses.replace(host_device_spec(instruction_set), threads=2)
        (kernel,) = cpp.generate(schedule(program, device, Options()), Options(), device)
        types = {F32: "float", torch.int64: "long long", torch.bfloat16: "stax::bf16"}
        blocks = [f"({types[a.dtype]}*)calloc({max(sizes[a.buffer], 1)}, 1)" for a in kernel.arguments]
        main = f"#include <cstdlib>\n{kernel.source}\nint main() {{ {kernel.name}({', '.join(blocks)}); }}\n"
        source, binary = tmp_path / f"{number}.cpp", tmp_path / f"{number}"
        source.write_text(main)
        flags = [f for f in build.command_flags(kernel, toolchain.find()) if f not in ("-O3", "-fwrapv")]
        checks = ["-fsanitize=address,undefined", "-fno-sanitize=signed-integer-overflow", "-fno-sanitize-recover=all"]
        places = [f"-I{build.HEADER_DIRECTORY}", str(source), "-o", str(binary)]
        command = ["g++", *flags, "-O1", "-g", *checks, *places]
        subprocess.run(command, check=True, capture_output=True)
        ran = subprocess.run([str(binary)], capture_output=True, text=True, env={"ASAN_OPTIONS": "detect_leaks=0"})
        assert ran.returncode == 0, f"{kernel.source}\n{ran.stderr}"


def _sanitized_sample():
    def copy(ops, i):
        return ops.load("x", i[0])

    for n in (1, 15, 16, 17, 70):
        x = torch.zeros(n)
        yield pointwise({"x": x}, (n,), F32, copy), {"x": 4 * n, "out": 4 * n}
        yield (
            reduction({"x": x}, (), (n,), "argmax", torch.int64, F32, lambda ops, i, r: ops.load("x", r[0])),
            {"x": 4 * n, "out": 8},
        )
        yield (
            pointwise({"x": x}, (n,), F32, lambda ops, i, n=n: ops.load("x", n - 1 - i[0])),
            {"x": 4 * n, "out": 4 * n},
        )
        half = torch.zeros(n, dtype=torch.bfloat16)
        yield pointwise({"x": half}, (n,), torch.bfloat16, copy), {"x": 2 * n, "out": 2 * n}
    x, y = torch.zeros(70, 37), torch.zeros(37, 70)
    yield (
        pointwise(
            {"x": x, "y": y}, (37, 70), F32,
            lambda ops, i: ops.add(ops.load("x", i[1] * 37 + i[0]), ops.load("y", i[0] * 70 + i[1])),
        ),
        {"x": x.nbytes, "y": y.nbytes, "out": y.nbytes},
    )  # fmt: skip
    wide = torch.zeros(300, 1111)
    yield (
        reduction({"x": wide}, (1111,), (300,), "sum", F32, F32, lambda ops, i, r: ops.load("x", r[0] * 1111 + i[0])),
        {"x": wide.nbytes, "out": 4444},
    )
    long = torch.zeros(100_003)
    yield (
        reduction({"x": long}, (), (100_003,), "sum", F32, F32, lambda ops, i, r: ops.load("x", r[0])),
        {"x": long.nbytes, "out": 4},
    )

    def padded(ops, i):
        position = ops.index_value(i[0], torch.int64)
        return ops.masked(ops.lt(position, ops.constant(40, torch.int64)), lambda ops: ops.load("x", i[0]), 0.0)

    yield pointwise({"x": torch.zeros(40)}, (61,), F32, padded), {"x": 160, "out": 244}


@pytest.mark.parametrize("isa", RUNNABLE)
def test_both_entries_of_a_kernel_write_the_same(monkeypatch, isa):
    """Stores past the caches: whole vectors, halves of them where rows are no multiple, tails, several dtypes; a kernel
    whose outputs are small, or read again, has one entry."""
    from staxlab.codegen.cpp import streaming

    def both(program, x):
        artifact, kernels, schedule = compile_program(program, isa)
        (kernel,) = kernels
        (launch,) = build.build(kernels, Options(), kernel.device).values()
        expected = artifact.call([x])
        if launch.resident is None:
            return kernel, None
        results = []
        for entry in (launch, launch.resident):
            out = torch.full_like(expected[0], 3)
            entry.argtypes = launch.argtypes
            entry(*(t.data_ptr() for t in (x, out)))
            results.append(out)
        assert_same(results[0], expected[0])
        return kernel, results[1]

    large = torch.randn(1 << 10)
    assert both(pointwise({"x": large}, large.shape, F32, lambda ops, i: ops.load("x", i[0])), large)[1] is None
    monkeypatch.setattr(streaming, "STREAM_FROM", 1)
    for shape in ((64,), (77,), (100_000,), (37, 8), (37, 24), (129, 40), (33, 16)):
        x = torch.randn(shape)
        for dtype in (F32, torch.float64, torch.bfloat16):
            def compute(ops, i, d=dtype, step=shape[-1]):
                return ops.to_dtype(ops.load("x", i[0] * step + i[1] if len(i) == 2 else i[0]), d)

            kernel, result = both(pointwise({"x": x}, shape, dtype, compute), x)
            found = {d.topic: d for d in kernel.decisions}["streaming-stores"]
            assert found.choice == ("stream<resident" in kernel.source)
            if result is not None:
                assert_same(result, x.to(dtype))
