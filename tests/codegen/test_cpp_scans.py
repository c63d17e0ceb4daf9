"""Every form of a scan's C++ kernel against the reference semantics, bit for bit, on every instruction set."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.codegen.cpp import plan as planning
from staxlab.codegen.cpp import scan_plan
from staxlab.loops.expressions import Expr
from staxlab.loops.ir import ComputedBuffer, InputBuffer, Layout, LoopProgram, OutputReference, Scan
from tests.codegen.cpp_support import ORIGINS, RUNNABLE, assert_same, compile_program, expected, layout_of

F32, F64, I64 = torch.float32, torch.float64, torch.int64
KINDS = ("sum", "prod", "amax", "amin", "argmax", "argmin", "logaddexp")
DTYPES = (
    F32, F64, torch.float16, torch.bfloat16, I64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
)  # fmt: skip


def scan(
    x: torch.Tensor,
    axis: int,
    kind: str,
    *,
    accumulate: torch.dtype | None = None,
    stored: torch.dtype | None = None,
    compute=None,
    others: dict[str, torch.Tensor] | None = None,
    stride: tuple[int, ...] | None = None,
) -> tuple[LoopProgram, dict[str, torch.Tensor]]:
    """A program of one scan of x; ``compute(ops, index, element)`` makes what is merged of x's element."""
    shape, source = tuple(x.shape), layout_of(x)
    own = F32 if x.dtype in (torch.float16, torch.bfloat16) else x.dtype
    accumulate = accumulate or own
    stored = I64 if kind in ("argmax", "argmin") else stored or x.dtype

    def element(ops, index):
        value = ops.load("x", source.address(index))
        value = compute(ops, index, value) if compute else value
        return value if accumulate == own else ops.to_dtype(value, accumulate)

    layout = Layout.contiguous(shape, stored, "cpu")
    layout = layout if stride is None else Layout(shape, stride, stored, "cpu")
    data = Scan(shape, axis, kind, stored, accumulate, element, ORIGINS)
    tensors = {"x": x, **(others or {})}
    inputs = tuple(InputBuffer(name, layout_of(t), ORIGINS) for name, t in tensors.items())
    output = OutputReference("out", layout, origins=ORIGINS)
    return LoopProgram(inputs, (ComputedBuffer("out", layout, data, ORIGINS),), (output,)), tensors


def check(program: LoopProgram, tensors: dict[str, torch.Tensor], instruction_set: str, kind: str = "sum", **more):
    """Compile, run, compare; returns the kernel."""
    compiled, kernels, _ = compile_program(program, instruction_set, **more)
    (result,) = compiled.call(list(tensors.values()))
    tolerance = {"rtol": 1e-6, "atol": 1e-6} if kind == "logaddexp" else {}
    if result.dtype in (torch.float16, torch.bfloat16) and tolerance:
        tolerance = {"rtol": 1e-2, "atol": 1e-2}
    wanted = expected(program, tensors)
    assert_same(result, wanted, **tolerance)
    if result.dtype.is_floating_point and not tolerance:
        assert torch.equal(result.signbit() & ~result.isnan(), wanted.signbit() & ~wanted.isnan())
    return kernels.kernels[0]


def decision(kernel, topic: str):
    (found,) = (d for d in kernel.decisions if d.topic == topic)
    return found


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 3
    return x > 0 if dtype == torch.bool else x.to(dtype)


@pytest.fixture
def form(monkeypatch):
    """Make the generator take a form it might not choose: "axis", "beside" (vectors along another loop) or "none"."""

    def force(name: str) -> None:
        own = scan_plan._choose_loop

        def chosen(node, axis, device):
            *_, cost, why = own(node, axis, device)
            symbol = axis if name == "axis" else node.body.indices[-1] if name == "beside" else None
            if symbol is None or device.instruction_set == "scalar":
                return None, 1, cost, why
            extra = (scan_plan.value_dtype(node), node.store_dtype)
            lanes = planning.lanes_for(node.body.all_statements(), symbol, device, extra)
            return (symbol if lanes > 1 else None), lanes, cost, why

        monkeypatch.setattr(scan_plan, "_choose_loop", chosen)

    return force


@pytest.mark.parametrize("instruction_set", RUNNABLE)
@pytest.mark.parametrize("name", ["axis", "beside", "none"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_form_of_every_kind(form, name, kind, instruction_set):
    form(name)
    for shape, axis in (((7, 37), 1), ((37, 21), 0)):
        program, tensors = scan(numbers(F32, *shape), axis, kind, accumulate=F64 if kind in ("sum", "prod") else None)
        check(program, tensors, instruction_set, kind)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_every_dtype(kind, dtype):
    if kind == "logaddexp" and not dtype.is_floating_point:
        return
    for axis in (0, 1):
        program, tensors = scan(numbers(dtype, 9, 45), axis, kind)
        check(program, tensors, RUNNABLE[0], kind)


@pytest.mark.parametrize("instruction_set", RUNNABLE)
@pytest.mark.parametrize("name", ["axis", "beside", "none"])
@pytest.mark.parametrize("kind", ["sum", "prod", "amax", "argmin"])
def test_nan_infinities_and_signed_zeros(form, name, kind, instruction_set):
    form(name)
    values = torch.tensor([0.0, -0.0, 1.0, -1.0, math.inf, -math.inf, math.nan])
    for rare in (False, True):
        x = values[torch.randint(0, 7, (40, 50), generator=torch.Generator().manual_seed(2))]
        if rare:  # most vectors change nothing, some hold one element that does
            x = torch.where(torch.rand(40, 50, generator=torch.Generator().manual_seed(3)) < 0.04, x, -5.0)
        check(*scan(x, 1, kind), instruction_set, kind)


@pytest.mark.parametrize("instruction_set", RUNNABLE)
@pytest.mark.parametrize("name", ["axis", "beside", "none"])
def test_checked_subscripts_and_masked_reads(form, name, instruction_set):
    form(name)
    x, k = numbers(F32, 11, 29), torch.randint(-11, 11, (29,), generator=torch.Generator().manual_seed(4))
    source = layout_of(x)

    def gathered(ops, index, value):
        row = ops.indirect(ops.load("k", Expr.of(index[1])), Expr.of(11))
        condition = ops.lt(ops.index_value(index[1], I64), ops.constant(17, I64))
        masked = ops.masked(condition, lambda inner: inner.load("x", source.address((index[0], index[1] + 12))), 0.5)
        return ops.add(ops.mul(ops.load("x", source.address((row, index[1]))), value), masked)

    program, tensors = scan(x, 1, "sum", accumulate=F64, compute=gathered, others={"k": k})
    check(program, tensors, instruction_set)
    compiled, _, _ = compile_program(program, instruction_set)
    with pytest.raises(IndexError, match="11"):
        compiled.call([x, torch.where(torch.arange(29) == 28, 11, k)])


def test_threads_share_rows_and_strips_and_change_nothing(monkeypatch):
    monkeypatch.setattr(planning, "GRAIN", 1.0)
    for axis in (0, 1, 2):
        program, tensors = scan(numbers(F32, 6, 70, 90), axis, "sum", accumulate=F64)
        for threads in (1, 2, 8):
            kernel = check(program, tensors, RUNNABLE[0], threads=threads)
            assert decision(kernel, "parallel-depth").choice and "-fopenmp" in kernel.flags


def test_lengths_around_vectors_blocks_and_rows():
    lengths = (1, 7, 8, 9, 127, 128, 129, 300)
    for n, rows in zip(lengths, (5, 3, 4, 1, 5, 3, 1, 4), strict=True):
        check(*scan(numbers(F32, rows, n), 1, "sum", accumulate=F64), RUNNABLE[0])
        check(*scan(numbers(F32, n, rows), 0, "amax"), RUNNABLE[0])


@pytest.mark.parametrize("kind", ["sum", "argmax", "amin"])
def test_an_axis_of_one_element_is_a_pointwise_kernel(kind):
    for shape, axis in (((40, 1), 1), ((1,), 0), ((33, 1, 40), 1)):
        x = numbers(F32, *shape)
        check(*scan(x, axis, kind, accumulate=F64 if kind == "sum" else None), RUNNABLE[0])
    turned = numbers(F32, 40, 33).t().unsqueeze(1)  # read across rows: tiles
    check(*scan(turned, 1, kind, accumulate=F64 if kind == "sum" else None), RUNNABLE[0])


def test_an_empty_scan_has_an_empty_kernel():
    for shape, axis in (((0, 4), 1), ((4, 0), 1)):
        kernel = check(*scan(torch.empty(shape), axis, "sum"), RUNNABLE[0])
        assert "nothing to compute" in kernel.source


def test_bools_are_merged_as_bytes():
    for kind in ("sum", "prod", "amax", "argmin"):
        check(*scan(numbers(torch.bool, 5, 40), 1, kind, accumulate=torch.bool), RUNNABLE[0])


def test_the_order_is_a_decision_and_the_dense_loop_gets_the_vectors():
    along = check(*scan(numbers(F32, 20, 90), 1, "sum", accumulate=F64), RUNNABLE[0])
    across = check(*scan(numbers(F32, 90, 100), 0, "sum", accumulate=F64), RUNNABLE[0])
    assert {decision(k, "scan-order").choice for k in (along, across)} == {"sequential"}
    if RUNNABLE[0] != "scalar":
        assert decision(along, "vector-loop").choice == "r0" and decision(across, "vector-loop").choice == "i0"
        assert decision(along, "rows-together").choice == scan_plan.ROWS_TOGETHER
        assert decision(across, "column-strips").choice > 1
    assert along.name.startswith("fused_cumsum")


def test_running_extremes_pass_over_vectors_that_change_nothing():
    kernel = check(*scan(numbers(F32, 5, 70), 1, "amax"), RUNNABLE[0])
    assert RUNNABLE[0] == "scalar" or "if (any(is_later_extreme<true>" in kernel.source


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_random_scans(data):
    kind, dtype = data.draw(st.sampled_from(KINDS)), data.draw(st.sampled_from(DTYPES))
    if kind == "logaddexp" and not dtype.is_floating_point:
        return
    sizes = [1, 2, 3, 5, 8, 17, 33, 70]
    shape = tuple(data.draw(st.lists(st.sampled_from(sizes), min_size=1, max_size=3)))
    axis = data.draw(st.integers(0, len(shape) - 1))
    order = data.draw(st.permutations(range(len(shape))))
    x = numbers(dtype, *[shape[d] for d in order]).permute([order.index(d) for d in range(len(shape))])
    turned = data.draw(st.permutations(range(len(shape))))
    stride = torch.empty([shape[d] for d in turned]).permute([turned.index(d) for d in range(len(shape))]).stride()
    wide = F64 if dtype == F32 and kind in ("sum", "prod") else None
    program, tensors = scan(x, axis, kind, accumulate=wide, stride=tuple(stride))
    check(program, tensors, data.draw(st.sampled_from(RUNNABLE)), kind, threads=data.draw(st.sampled_from([1, 2, 16])))
