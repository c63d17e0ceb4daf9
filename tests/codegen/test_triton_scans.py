"""Scans as Triton kernels: executed by the interpreter, compiled ahead of time, compared with the semantics."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("triton")

from staxlab.codegen.triton import generate, interpreter
from staxlab.codegen.triton.compile import aot_compile
from staxlab.codegen.triton.generate import triton_kernel
from staxlab.codegen.triton.operations import HELPERS
from staxlab.codegen.triton.scans import MERGES
from staxlab.loops.ir import ComputedBuffer, InputBuffer, LoopProgram, OutputReference, Scan
from staxlab.loops.layout import contiguous_stride
from staxlab.loops.semantics import evaluate
from staxlab.options import Options
from staxlab.schedule.dependencies import schedule
from tests.codegen.triton_support import SM90, interpret_program, kernels_of, layout_of, program, read
from tests.loops.lowered import GPU, program_of

KINDS = ("sum", "prod", "amax", "amin", "argmax", "argmin", "logaddexp")
#: Rows held whole and walked along, lanes along the axis and across it.
SHAPES = [((5, 40), 1), ((3, 9000), 1), ((7, 37), 0), ((300, 33), 0), ((2, 9, 70), 1), ((6, 1), 1)]


def scan(x: torch.Tensor, axis: int, kind: str, accumulate: torch.dtype | None = None) -> LoopProgram:
    own = torch.float32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    accumulate, stored = accumulate or own, torch.int64 if kind in ("argmax", "argmin") else x.dtype
    source = layout_of(x)
    layout = type(source)(tuple(x.shape), contiguous_stride(tuple(x.shape)), stored, "cuda")

    def compute(ops, index):
        value = ops.load("x", source.address(index))
        return value if accumulate == own else ops.to_dtype(value, accumulate)

    data = Scan(tuple(x.shape), axis, kind, stored, accumulate, compute)
    buffer = ComputedBuffer("buf0", layout, data, frozenset({99}))
    return LoopProgram((InputBuffer("x", source),), (buffer,), (OutputReference("buf0", layout),))


def numbers(dtype: torch.dtype, shape: tuple[int, ...], kind: str = "") -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    if dtype == torch.bool:
        return x > 0
    if kind == "prod" and dtype.is_floating_point:  # products that neither vanish nor overflow
        return (x.sign() * 2 ** x.round().clamp(-1, 1)).to(dtype)
    return (x * 3).to(dtype)


def check(x: torch.Tensor, axis: int, kind: str, **more) -> None:
    p = scan(x, axis, kind, **more)
    got, (wanted,) = interpret_program(p, {"x": x}), evaluate(p, {"x": x})
    # Extremes, positions and integers do not depend on the order; products of powers of two neither.
    exact = kind not in ("sum", "logaddexp") or not x.dtype.is_floating_point
    tolerance = {"rtol": 0.0, "atol": 0.0} if exact else {"rtol": 1e-4, "atol": 1e-3}
    if x.dtype in (torch.float16, torch.bfloat16) and not exact:
        tolerance = {"rtol": 2e-2, "atol": 2e-1}
    torch.testing.assert_close(got, wanted, equal_nan=True, **tolerance)
    if exact and got.dtype.is_floating_point:
        assert torch.equal(got.signbit() & ~got.isnan(), wanted.signbit() & ~wanted.isnan())


@pytest.mark.parametrize(("shape", "axis"), SHAPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_form_of_every_kind(kind, shape, axis):
    check(numbers(torch.float32, shape, kind), axis, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "dtype",
    [torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool],
)
def test_every_dtype(kind, dtype):
    if kind == "logaddexp" and not dtype.is_floating_point:
        return
    wide = torch.int64 if kind in ("sum", "prod") and not dtype.is_floating_point and dtype != torch.bool else None
    for shape, axis in (((3, 70), 1), ((90, 5), 0)):
        check(numbers(dtype, shape, kind), axis, kind, accumulate=wide)


@pytest.mark.parametrize("kind", ["amax", "amin", "argmax", "argmin"])
def test_later_equal_elements_and_nan_win(kind):
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan])
    for length in (50, 9000):
        x = values[torch.randint(0, 7, (8, length), generator=torch.Generator().manual_seed(1))]
        rare = torch.rand(8, length, generator=torch.Generator().manual_seed(2)) < 20 / length
        check(torch.where(rare, x, 0.0), 1, kind)


def test_infinities_of_logcumsumexp():
    values = torch.tensor([0.5, -math.inf, math.inf, math.nan, -math.inf, -2.0])
    x = values[torch.randint(0, 6, (60, 6), generator=torch.Generator().manual_seed(3))]
    check(torch.cat([torch.full((60, 3), -math.inf), x], 1), 1, "logaddexp")


def test_the_sign_of_a_product_is_carried_from_block_to_block():
    x = torch.ones(2, 9000)
    x[0, 10], x[1, 4090] = -0.0, -1.0
    check(x, 1, "prod")


def test_the_form_and_the_order_are_decisions():
    for shape, choice, order in (((5, 40), "persistent", "tree"), ((3, 9000), "looped", "tree, blocks in order")):
        (kernel,) = kernels_of(scan(torch.empty(shape), 1, "sum"))
        assert kernel.launch["form"] == choice and "tl.associative_scan" in kernel.source
        assert [d.choice for d in kernel.decisions if d.topic == "scan-order"] == [order]
        by_text = {line.text.strip(): line.origins for line in kernel.lines}
        assert all(o == {99} for text, o in by_text.items() if "associative_scan" in text or "tl.store" in text)


def test_cumsum_reaches_the_generator_and_agrees_with_eager():
    x = torch.randn(6, 50)
    p = program_of(lambda a: a.exp().cumsum(1).flip(0), x, device=GPU)
    assert [type(b.data).__name__ for b in p.buffers] == ["Scan", "Pointwise"]
    kernels = generate(schedule(p, SM90, Options()), Options(), SM90)
    found = {"a": x}
    for kernel, buffer in zip(kernels, p.buffers, strict=True):
        found[buffer.name] = torch.full(buffer.layout.shape, 77.0)
        interpreter.interpret(kernel, [found[argument.buffer] for argument in kernel.arguments])
    torch.testing.assert_close(found[p.outputs[0].name], x.exp().cumsum(1).flip(0))


def test_an_empty_scan_does_nothing():
    for shape in ((0, 4), (4, 0)):
        p = scan(torch.empty(shape), 1, "sum")
        assert interpret_program(p, {"x": torch.empty(shape)}).shape == shape


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_size_given_by_hand_changes_no_extreme(kind):
    x = numbers(torch.float32, (4, 100), kind)
    p = scan(x, 1, kind)
    scheduled = schedule(p, SM90, Options())
    (wanted,) = evaluate(p, {"x": x})
    for block in (8, 32, 128):
        kernel = triton_kernel(
            scheduled, scheduled.nodes[0], "_by_hand", SM90, ({"XBLOCK": 2, "R0_BLOCK": block}, 4, 1)
        )
        out = torch.full(wanted.shape, 77, dtype=wanted.dtype)
        interpreter.interpret(kernel, [out if a.buffer == "buf0" else x for a in kernel.arguments])
        tolerance = {"rtol": 0.0, "atol": 0.0} if kind not in ("sum", "logaddexp") else {}
        torch.testing.assert_close(out, wanted, **tolerance)


def test_a_merge_that_takes_the_first_of_equal_elements_is_found(monkeypatch):
    x = torch.zeros(3, 20)
    wrong = HELPERS["later_argmax"].replace("value_b >= value_a", "value_b > value_a")
    monkeypatch.setitem(HELPERS, "later_argmax", wrong)
    with pytest.raises(AssertionError):
        check(x, 1, "argmax")


def test_a_running_value_that_is_forgotten_is_found(monkeypatch):
    from staxlab.codegen.triton import scans

    x = torch.ones(3, 9000)
    check(x, 1, "sum")
    monkeypatch.setattr(scans, "_carry", lambda *_: [])
    with pytest.raises(AssertionError):
        check(x, 1, "sum")


COMPILED = [
    (kind, dtype, shape, axis)
    for kind in MERGES
    for dtype in (torch.float32, torch.float64, torch.uint8)
    for shape, axis in (((300, 9000), 1), ((33, 20), 0), ((5, 1), 1))
    if kind != "logaddexp" or dtype.is_floating_point
]


@pytest.mark.parametrize("capability", [80, 90])
@pytest.mark.parametrize(("kind", "shape"), [("sum", (300, 100)), ("argmax", (300, 9000)), ("logaddexp", (300, 9000))])
def test_scans_compile_ahead_of_time(kind, shape, capability):
    (kernel,) = kernels_of(scan(torch.empty(shape), 1, kind))
    assert aot_compile(kernel, capability)["cubin"]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "dtype", "shape", "axis"), COMPILED)
def test_every_scan_compiles_ahead_of_time(kind, dtype, shape, axis):
    (kernel,) = kernels_of(scan(torch.empty(shape, dtype=dtype), axis, kind))
    assert aot_compile(kernel, 90)["cubin"]


def test_checks_inside_a_scan():
    tensors = {"x": torch.randn(11, 30), "k": torch.randint(-11, 11, (30,))}

    def compute(ops, index):
        row = ops.indirect(read(ops, tensors, "k", index[1:]), 11)
        return read(ops, tensors, "x", (row, index[1]))

    base = program(tensors, (11, 30), lambda ops, i: read(ops, tensors, "x", i), torch.float32)
    data = Scan((11, 30), 1, "sum", torch.float32, torch.float32, compute)
    p = LoopProgram(base.inputs, (ComputedBuffer("buf0", base.buffers[0].layout, data, frozenset({99})),), base.outputs)
    (wanted,) = evaluate(p, tensors)
    torch.testing.assert_close(interpret_program(p, tensors), wanted)
    with pytest.raises(IndexError):
        interpret_program(p, {**tensors, "k": torch.full((30,), 11)})
