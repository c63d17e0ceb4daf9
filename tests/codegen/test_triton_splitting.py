"""Split reductions (Section 6.5) as Triton kernels: interpreted on the CPU, and compiled to PTX."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab
from staxlab.codegen.triton import generate
from staxlab.loops.splitting import TOPIC
from staxlab.options import GPU_SPECS, DeviceSpec, Options
from staxlab.runtime.artifact import load
from staxlab.schedule.dependencies import schedule
from tests.loops.lowered import lower, operators_of

pytest.importorskip("triton")

from staxlab.codegen.triton.compile import aot_compile
from staxlab.codegen.triton.interpreter import interpret

SM90 = GPU_SPECS["sm_90"]
TINY = DeviceSpec(
    kind="cuda", name="tiny", compute_capability=90, multiprocessors=4, warp_size=2, max_threads_per_multiprocessor=64
)


def compiled(function: Callable, *inputs: torch.Tensor, **options) -> staxlab.Compilation:
    return staxlab.explain(function, *inputs, target="sm_90", strict_native=True, options=options or None)


def value_of(compilation, *inputs: torch.Tensor):
    launchers = {
        kernel.name: lambda *tensors, kernel=kernel: interpret(kernel, tensors) for kernel in compilation.kernels
    }
    return load(compilation.wrapper, launchers).call(list(inputs))


def run(function: Callable, *inputs: torch.Tensor, rtol=1.3e-6, atol=1e-5):
    compilation = compiled(function, *inputs)
    assert any(d.topic == TOPIC and d.choice > 1 for d in compilation.loops.decisions), "nothing was split"
    answer = function(*inputs)
    for a, b in zip(value_of(compilation, *inputs), answer if isinstance(answer, tuple) else (answer,), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride()
        torch.testing.assert_close(a, b, equal_nan=True, rtol=rtol, atol=atol)
    return compilation


def test_example_6_2_is_two_kernels():
    """Listing 9.4: a looped reduction of 128 rows, then a persistent one of 64."""
    x = torch.randn(64, 16384)
    first, second = run(lambda x: (x * x).sum(-1), x, rtol=1e-5).kernels
    assert (first.launch["form"], second.launch["form"]) == ("looped", "persistent")
    assert first.launch["sizes"] == {"xnumel": 128, "r0_numel": 8192}
    assert second.launch["sizes"] == {"xnumel": 64, "r0_numel": 2}
    assert "r0_0 + 8192*x0" in first.source and first.source.count("tl.load(") == 1
    assert first.bytes_written == 512
    assert len(compiled(lambda x: (x * x).sum(-1), x, split_reductions=False).kernels) == 1


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: x.sum(), (1 << 17,)),
        (lambda x: (x.sum(), x.amax(), x.abs().amin()), (133, 1001)),
        (lambda x: x.t().sum(), (200, 300)),
        (lambda x: x.sum(0), (3000, 70)),
        (lambda x: x.sum((0, 2, 3)), (8, 3, 56, 56)),
        (lambda x: (x > 4).any(), (100_003,)),
        (lambda x: torch.relu(x).mean() * 2 + 1, (50_000,)),
        (lambda x: torch.softmax(x, -1), (2, 20_000)),
        (lambda x: torch.nn.functional.layer_norm(x, x.shape), (20_001,)),
        (lambda x: torch.linalg.vector_norm(x), (300, 100)),
    ],
)
def test_values(function, shape):
    run(function, torch.randn(shape), rtol=2e-5, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64, torch.int32, torch.bool])
def test_dtypes(dtype):
    x = torch.randint(0, 2, (20_001,)).to(dtype)
    run(lambda x: x.sum(), x, rtol=1e-2 if dtype in (torch.float16, torch.bfloat16) else 0, atol=0)
    if dtype != torch.bool:
        run(lambda x: (x.amax(), x.amin()), x, rtol=0, atol=0)


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
def test_a_softmax_of_few_long_rows_reads_them_twice(function):
    """One kernel if there are as many rows as multiprocessors; else one for blocks of rows, which finds the greatest
    element and the sum of each in one pass, one that merges them, and one that divides."""
    for rows, columns, count, transfers in ((128, 65536, 1, 2), (64, 65536, 3, 3), (4, 1 << 20, 3, 3)):
        compilation = compiled(lambda x: function(x, -1), torch.empty(rows, columns))
        assert len(compilation.kernels) == count
        moved = compilation.kernels.bytes_moved / (4 * rows * columns)
        assert transfers <= moved < transfers + 0.01
    (decision,) = [d for d in compilation.loops.decisions if d.topic == TOPIC and d.choice > 1]
    assert "Proposition 9.1" in decision.reason


@pytest.mark.parametrize("function", [torch.softmax, torch.log_softmax])
def test_blocks_of_long_rows_hold_special_values(function):
    x = torch.randn(6, 20_000)
    x[0, 7], x[1, 9_999], x[2, 19_999] = float("nan"), float("inf"), float("-inf")
    x[3], x[4, :12_000] = float("-inf"), float("-inf")
    run(lambda x: function(x, -1), x, rtol=2e-5, atol=1e-5)
    run(lambda x: function(x, -1), x.to(torch.bfloat16), rtol=2e-2, atol=1e-2)
    run(lambda x: function(x, -1), x[:, ::2].contiguous()[:, :10_000], rtol=2e-5, atol=1e-5)


def test_moments_of_few_long_rows_read_them_once():
    """A kernel for blocks of rows and one that merges them; a norm reads the rows once more."""
    cases = [(lambda x: torch.var_mean(x, -1), 2, 1), (lambda x: x.std(), 2, 1)]
    cases += [(lambda x: torch.nn.functional.layer_norm(x, x.shape[-1:]), 3, 3)]
    for function, count, transfers in cases:
        for rows, columns in ((64, 65536), (4, 1 << 20)):
            compilation = compiled(function, torch.empty(rows, columns))
            assert len(compilation.kernels) == count
            moved = compilation.kernels.bytes_moved / (4 * rows * columns)
            assert transfers <= moved < transfers + 0.01


MOMENTS = {
    "noise": lambda: torch.randn(5, 20_000),
    "a large mean": lambda: torch.randn(5, 20_000) + 1e6,
    "blocks of different means": lambda: torch.randn(5, 20_000) + 100.0 * (torch.arange(20_000) // 3000),
    "one value": lambda: torch.full((5, 20_000), 0.1),
    "several dimensions": lambda: torch.randn(5, 40, 500) + 3,
}


@pytest.mark.parametrize("case", MOMENTS)
def test_moments_in_blocks_against_float64(case):
    x = MOMENTS[case]()
    dims = tuple(range(1, x.ndim))
    compilation = compiled(lambda x: torch.var_mean(x, dims), x)
    assert any("Chan" in d.reason for d in compilation.loops.decisions)
    variance, mean = value_of(compilation, x)
    true_variance, true_mean = torch.var_mean(x.double(), dims)
    unit, n = 2.0**-24, x[0].numel()
    largest = x.abs().amax(dims).double()
    assert ((mean - true_mean).abs() <= n * unit * largest).all()
    assert ((variance - true_variance).abs() <= n * unit * true_variance + 4 * (n * unit * largest) ** 2).all()


def test_moments_in_blocks_of_other_inputs():
    run(lambda x: (x.var((1, 2, 3)), torch.nn.functional.group_norm(x, 2)), torch.randn(2, 4, 60, 70), rtol=1e-4)
    run(lambda x: torch.nn.functional.layer_norm(x, x.shape), torch.randn(3, 7000).bfloat16(), rtol=2e-2, atol=2e-2)
    run(lambda x: x.var(), torch.randn(200, 300).t(), rtol=1e-4)
    x = torch.randn(3, 20_000)
    x[0, 5], x[1, 19_000] = float("nan"), float("inf")
    run(lambda x: (x.var(-1), x.std(-1, correction=0)), x, rtol=1e-4)


@pytest.mark.parametrize("shape", [(3, 20_011), (2, 3, 20_000), (20_000,)])
def test_long_rows_without_a_divisor_and_of_other_ranks(shape):
    run(lambda x: torch.softmax(x, -1), torch.randn(shape), rtol=2e-5, atol=1e-5)
    run(lambda x: torch.softmax(x, 0), torch.randn(shape[::-1]), rtol=2e-5, atol=1e-5)


def test_special_values_reach_the_result():
    for place in (0, 8191, 8192, 20_000):
        for special in (float("nan"), float("inf"), float("-inf")):
            x = torch.ones(20_001)
            x[place] = special
            run(lambda x: (x.sum(), x.amax(), x.amin()), x)


def test_a_result_repeats_bit_by_bit():
    x = torch.randn(100_001)
    compilation = compiled(lambda x: x.sum(), x)
    results = {value_of(compilation, x)[0].item() for _ in range(3)}
    assert len(results) == 1 and compiled(lambda x: x.sum(), x).kernels[0].source == compilation.kernels[0].source


@given(
    shape=st.lists(st.sampled_from([1, 3, 8, 33, 70, 257]), min_size=1, max_size=3), data=st.data(),
    kind=st.sampled_from(["sum", "amax", "amin", "any", "prod"]),
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_kernels_mean_what_the_operator_means(shape, data, kind):
    """On a device so small that almost everything is split."""
    x = torch.randint(-1, 2, tuple(shape[:3]) if len(shape) < 3 else (shape[0] % 9 + 1, *shape[1:])).float()
    x[x == 0] = 1
    if data.draw(st.booleans()):
        x.view(-1)[data.draw(st.integers(0, x.numel() - 1))] = data.draw(st.sampled_from([float("nan"), float("inf")]))
    dim = data.draw(st.integers(0, x.ndim - 1))
    if data.draw(st.booleans()):
        x = x.transpose(0, -1)
    function = lambda x: getattr(torch, kind)(x, dim)  # noqa: E731
    program = lower(operators_of(function, x), TINY, Options())
    storages = {program.inputs[0].name: x}
    for kernel in generate(schedule(program, TINY, Options()), Options(), TINY):
        for argument in kernel.arguments:
            if argument.role == "output":
                layout = program.buffer(argument.buffer).layout
                room = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype)
                storages[argument.buffer] = room.fill_(1 if layout.dtype == torch.bool else 77)
        interpret(kernel, [storages[a.buffer] for a in kernel.arguments])
    torch.testing.assert_close(storages[program.outputs[0].name], function(x), rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize(
    ("function", "shape"),
    [(lambda x: (x * x).sum(-1), (64, 16384)), (lambda x: x.sum(), (1 << 22,)), (lambda x: x.sum(0), (4096, 1024))],
)
def test_ptx(function, shape):
    kernels = compiled(function, torch.empty(shape)).kernels
    assert len(kernels) == 2
    for kernel in kernels:
        assert ".target sm_90" in aot_compile(kernel, 90)["ptx"]
    assert re.search(r"ld\.global\S*\.v4\.b32", aot_compile(kernels[0], 90)["ptx"]), "16 bytes to a load"


def test_a_ragged_tail_still_reads_whole_vectors():
    """Segments begin at multiples of a warp's width, so that the mask costs a comparison and no wider access."""
    first = compiled(lambda x: x.sum(), torch.empty(2048 * 2049)).kernels[0]
    assert re.search(r"ld\.global\S*\.v4\.b32", aot_compile(first, 90)["ptx"])
