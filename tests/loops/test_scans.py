"""Scans against eager execution: the same bits over dtypes, dimensions, strides and special values."""

from __future__ import annotations

import itertools
import math
import warnings

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab
from staxlab.loops.ir import ExternBuffer, Scan
from staxlab.loops.lowering import RULES
from staxlab.loops.lowering.kinds import kind_of
from staxlab.options import GPU_SPECS

from .lowered import CPU, lower, operators_of, program_of, run
from .opinfo import DTYPES, operators_database, outcome, samples

FLOATING = (torch.float32, torch.float64, torch.float16, torch.bfloat16)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool)
NAMES = ("cumsum", "cumprod", "cummax", "cummin", "logcumsumexp")


def assert_same_bits(ours: object, eagers: object) -> None:
    """Equal values, signs of zero included, in tensors of one shape, stride and dtype; NaN equals NaN."""
    pairs = zip(ours, eagers, strict=True) if isinstance(eagers, tuple) else [(ours, eagers)]
    for a, b in pairs:
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True, check_stride=True)
        if a.dtype.is_floating_point:
            assert torch.equal(a.signbit() & ~a.isnan(), b.signbit() & ~b.isnan())


def native(function, *inputs: torch.Tensor):
    """Evaluate by the reference semantics, compare bit for bit; nothing may be left to PyTorch."""
    operators = operators_of(function, *inputs)
    program = lower(operators, CPU)
    assert not any(isinstance(b, ExternBuffer) for b in program.buffers), program
    assert_same_bits(run(operators, program, *inputs), function(*inputs))
    return program


def scans(program) -> list[Scan]:
    return [b.data for b in program.buffers if isinstance(b.data, Scan)]


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 3
    return x > 0 if dtype == torch.bool else x.to(dtype)


def special(dtype: torch.dtype) -> torch.Tensor:
    """Every sequence of four values among those that scans treat in a way of their own."""
    values = [0.0, -0.0, 1.0, -2.5, math.inf, -math.inf, math.nan]
    return torch.tensor(list(itertools.product(values, repeat=4)), dtype=dtype)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [*FLOATING, *INTEGERS], ids=str)
def test_every_dtype_dimension_and_stride(name, dtype):
    if name == "logcumsumexp" and dtype in INTEGERS:
        return  # eager execution has none
    function = getattr(torch, name)
    for shape in ((), (5,), (4, 7), (1, 3), (3, 1), (0, 3), (3, 0), (2, 3, 4)):
        x = numbers(dtype, *shape)
        views = [x] if x.ndim < 2 else [x, x.transpose(0, -1), numbers(dtype, *shape[:-1], 2 * shape[-1])[..., ::2]]
        for view in views:
            for dim in range(-max(x.ndim, 1), max(x.ndim, 1)):
                native(lambda a, dim=dim: function(a, dim), view)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_special_values(name, dtype):
    x = special(dtype)
    native(lambda a: getattr(torch, name)(a, 1), x)
    native(lambda a: getattr(torch, name)(a, 0), x.t().contiguous())


@pytest.mark.parametrize("dtype", FLOATING, ids=str)
def test_long_sums_are_accumulated_as_eager_execution_does(dtype):
    x = numbers(dtype, 3, 4000)
    native(lambda a, b: (a.cumsum(1), a.logcumsumexp(1), b.cumprod(1)), x, 1 + x / 4000)


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float64, torch.int8, torch.int64, torch.uint8], ids=str)
def test_the_dtype_argument_converts_before_the_elements_are_merged(name, dtype):
    for source in (torch.float32, torch.int32, torch.bfloat16, torch.bool):
        x = numbers(source, 3, 40)
        native(
            lambda a: getattr(torch, name)(a, 1, dtype=dtype),
            x.abs() if dtype == torch.uint8 and x.dtype != torch.bool else x,
        )
    x = numbers(torch.float32)
    native(lambda a: getattr(torch, name)(a, 0, dtype=dtype), x.abs())


def test_integers_wrap_around():
    x = torch.full((70,), 2**62)
    native(lambda a: (a.cumsum(0), a.cumprod(0)), x)


def test_an_axis_of_one_element_or_none_makes_no_scan():
    for shape in ((), (3, 1), (3, 0), (0, 1)):
        dim = len(shape) - 1
        program = native(lambda a, dim=dim: (a.cumsum(dim), *a.cummax(dim)), numbers(torch.float32, *shape))
        assert not scans(program)


def test_of_cummax_only_what_is_read_is_computed():
    x = numbers(torch.float32, 4, 9)
    both = native(lambda a: tuple(a.cummax(1)), x)
    assert sorted(s.kind for s in scans(both)) == ["amax", "argmax"]
    assert [s.kind for s in scans(native(lambda a: a.cummax(1)[1], x))] == ["argmax"]
    assert [s.kind for s in scans(native(lambda a: a.cummin(1)[0], x))] == ["amin"]


def test_accumulators_are_those_of_the_device():
    x = numbers(torch.float32, 4, 9)
    kinds = {
        device.kind: [
            s.accumulate_dtype for s in scans(program_of(lambda a: (a.cumsum(1), a.half().cumsum(1)), x, device=device))
        ]
        for device in (CPU, GPU_SPECS["sm_90"])
    }
    assert kinds == {"cpu": [torch.float64, torch.float32], "cuda": [torch.float32, torch.float32]}


def test_what_a_scan_reads_is_fused_into_it():
    program = native(lambda a: (a.neg() * 2).flip(1).cumsum(1).flip(1), numbers(torch.float32, 4, 9))
    assert len(program.buffers) == 2 and isinstance(program.buffers[0].data, Scan)


def test_scans_are_a_kind_of_their_own():
    operators = operators_of(lambda a: a.cumsum(0), numbers(torch.float32, 4))
    assert [kind_of(n) for n in operators.graph if n.op == "call_function"] == ["scan"]
    assert {rule.kind for target, rule in RULES.items() if target._opname in NAMES} == {"scan"}


def test_a_subscript_out_of_range_is_noticed_inside_a_scan():
    x, k = torch.randn(5, 4), torch.tensor([0, 4, 2])
    compiled = staxlab.compile(lambda a, i: a[i].cumsum(0) * 2)
    assert_same_bits(compiled(x, k), x[k].cumsum(0) * 2)
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([0, 5, 2]))


@pytest.mark.parametrize("name", DTYPES)
def test_samples_of_the_operator_database(name):
    found: set[str] = set()
    for op in operators_database():
        if op.name not in (*NAMES, "cumulative_trapezoid") or DTYPES[name] not in op.supported_dtypes("cpu"):
            continue
        for sample in samples(op, DTYPES[name], None):
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")
                found.add(outcome(op, sample))
    assert found <= {"native", "skipped"} and "native" in found


# -- Training ----------------------------------------------------------------------------------------------------------

LOSSES = {
    "cumsum": lambda x: x.cumsum(1) * x.detach(), "cumprod": lambda x: x.cumprod(1),
    "cumprod with a zero": lambda x: (x * (x.detach() > -1)).cumprod(0), "cummax": lambda x: x.cummax(1)[0],
    "cummin": lambda x: x.cummin(0)[0] * 2, "logcumsumexp": lambda x: x.logcumsumexp(1),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_gradients_of_scans_are_scans(name, dtype):
    x = numbers(dtype, 6, 37).requires_grad_()
    twin = x.detach().clone().requires_grad_()
    compiled = staxlab.compile(LOSSES[name])
    upstream = numbers(dtype, 37, 6).t()
    expected, result = LOSSES[name](x), compiled(twin)
    expected.backward(upstream)
    result.backward(upstream)
    assert_same_bits(result.detach(), expected.detach())
    exact = {"rtol": 0.0, "atol": 0.0} if "log" not in name else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(twin.grad, x.grad, **exact)
    half = staxlab.explain(LOSSES[name], twin)
    assert all(k.language == "cpp" for k in (*half.kernels, *half.backward.kernels))


# -- Programs with a scan in the middle --------------------------------------------------------------------------------

EXACT = {
    "-x": torch.neg, "|x|": torch.abs, "x*0.75": lambda x: x * 0.75, "x+1": lambda x: x + 1, "relu": torch.relu,
    "x*x": lambda x: x * x, "flip": lambda x: x.flip(-1), "t": lambda x: x.transpose(0, -1),
    "halves": lambda x: torch.cat([x[..., 1:], x[..., :1]], -1), "x[::2]": lambda x: x[::2], "round": torch.round,
}  # fmt: skip
MIDDLE = {
    "cumsum": lambda x, d: x.cumsum(d), "cumprod": lambda x, d: x.clamp(-1.1, 1.1).cumprod(d),
    "cummax": lambda x, d: x.cummax(d)[0], "cummin": lambda x, d: x.cummin(d)[0] + 0.5 * x.cummin(d)[1],
    "argmax": lambda x, d: x.cummax(d)[1].to(x.dtype),
}  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_a_program_with_a_scan_in_the_middle_has_the_bits_of_eager(data):
    before = data.draw(st.lists(st.sampled_from(sorted(EXACT)), max_size=3))
    after = data.draw(st.lists(st.sampled_from(sorted(EXACT)), max_size=3))
    middle = data.draw(st.lists(st.sampled_from(sorted(MIDDLE)), min_size=1, max_size=2))
    shape = tuple(data.draw(st.lists(st.sampled_from([1, 2, 5, 9, 40]), min_size=1, max_size=3)))
    dtype = data.draw(st.sampled_from([torch.float32, torch.float64]))
    dim = data.draw(st.integers(-len(shape), len(shape) - 1))

    def function(x):
        for name in before:
            x = EXACT[name](x)
        for name in middle:
            x = MIDDLE[name](x, dim)
        for name in after:
            x = EXACT[name](x)
        return x

    x = numbers(dtype, *shape)
    assert_same_bits(staxlab.compile(function)(x), function(x))
