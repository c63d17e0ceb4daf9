"""On a CUDA device: every operation, every kernel form, and compiled functions, against eager PyTorch there."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import torch

import staxlab
from staxlab.loops.ops import OPERATIONS
from tests.codegen.triton_operands import CASES, expected, operands
from tests.codegen.triton_support import kernels_of, program

pytestmark = [pytest.mark.gpu]


def on_gpu(name: str, given: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """One operation as a kernel of its own, launched on CUDA tensors."""
    from staxlab.codegen.triton.launcher import load

    answer = expected(name, given)
    tensors = dict(zip("abc", given, strict=False))

    def compute(ops, i):
        return ops.apply(name, *(ops.load(letter, i[0]) for letter in tensors))

    device = staxlab.options.device_spec("cuda")
    (kernel,) = kernels_of(program(tensors, (given[0].numel(),), compute, answer.dtype), device)
    out = torch.full(answer.shape, 1 if answer.dtype == torch.bool else 77, dtype=answer.dtype, device="cuda")
    load(kernel)(*(out if a.buffer == "buf0" else tensors[a.buffer].cuda() for a in kernel.arguments))
    return out


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=lambda v: str(v).removeprefix("torch."))
def test_operation_agrees_with_eager(name, dtype):
    given = operands(name, dtype)
    got, answer = on_gpu(name, given), expected(name, tuple(t.cuda() for t in given))
    # PyTorch calls the same device functions; where its spelling differs (a product with a reciprocal, an exponential
    # in another base) the last bits may.
    close = 8 * torch.finfo(dtype).eps if OPERATIONS[name].transcendental and dtype.is_floating_point else 0
    torch.testing.assert_close(got, answer, equal_nan=True, rtol=close, atol=0)


def check(function, *inputs, rtol=1.3e-6, atol=1e-5, **options):
    compiled = staxlab.compile(function, strict_native=True, **options)
    with torch.no_grad():
        first, second = compiled(*inputs), compiled(*inputs)
        answer = function(*inputs)
        # Eager rounds to half precision after every operation, a fused kernel computes in float32 throughout: it is
        # held against the answer in double precision, and so must be no further off than one rounding.
        half = any(t.dtype in (torch.float16, torch.bfloat16) for t in inputs)
        truth = function(*(t.double() for t in inputs)) if half else answer
    for a, b, c, d in zip(*map(_tuple, (first, second, answer, truth)), strict=True):
        assert a.device == c.device and a.dtype == c.dtype and a.shape == c.shape and a.stride() == c.stride()
        torch.testing.assert_close(a, d.to(c.dtype), equal_nan=True, rtol=max(rtol, _eps(c)), atol=atol)
        torch.testing.assert_close(a, b, equal_nan=True, rtol=0, atol=0)
    return compiled


def _tuple(value):
    return tuple(value) if isinstance(value, (tuple, list)) else (value,)


def _eps(tensor):
    return torch.finfo(tensor.dtype).eps if tensor.dtype.is_floating_point else 0.0


def example_1_1(x, w):
    return (torch.relu(x + w) * 2).sum(-1)


@pytest.mark.parametrize("size", [(64, 128), (8192, 2048), (3, 1001), (1, 1), (1000, 7), (0, 5)])
def test_example_1_1(size):
    x, w = torch.randn(size, device="cuda"), torch.randn(size, device="cuda")
    if x.numel():
        x.view(-1)[0] = float("nan")
        w.view(-1)[-1] = float("inf")
    compiled = check(example_1_1, x, w, rtol=1e-5, atol=1e-3)
    assert [k.language for k in compiled.versions[0].compilation.kernels] == ["triton"]


@pytest.mark.parametrize("size", [(512, 256), (33, 70), (5, 2000)])
def test_transposed_operand(size):
    x, y = torch.randn(size, device="cuda"), torch.randn(size[::-1], device="cuda")
    check(lambda x, y: x.t() + y, x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.float64])
def test_pointwise_in_every_floating_dtype(dtype):
    x, y = torch.randn(300, 77, device="cuda", dtype=dtype), torch.randn(77, device="cuda", dtype=dtype)
    check(lambda x, y: torch.sigmoid(x) * y + torch.exp(-x.abs()), x, y)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [(257, 100), (64, 5000), (4096, 3)])
def test_softmax_and_row_normalisation(dtype, size):
    x = torch.randn(size, device="cuda", dtype=dtype)
    check(lambda x: torch.softmax(x, -1), x, rtol=1e-5)
    check(
        lambda x: (x - x.mean(-1, keepdim=True)) / (x.var(-1, keepdim=True, correction=0) + 1e-5).sqrt(),
        x,
        rtol=1e-4,
        atol=1e-4,
    )


@pytest.mark.parametrize("kind", ["amax", "amin", "argmax", "argmin", "sum", "prod", "any", "all"])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_reductions_with_nan_and_ties(kind, dim):
    x = torch.randn(130, 40, 70, device="cuda")
    x[3, 5, 7] = x[100, 20, 60] = float("nan")
    x[:, 1] = 0.25
    if kind in ("any", "all"):
        x = x > 2.5 if kind == "any" else x > -2.5
    check(lambda x: getattr(torch, kind)(x, dim), x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8, torch.bool])
def test_integers(dtype):
    x = torch.randint(0, 2 if dtype == torch.bool else 200, (70, 300), device="cuda").to(dtype)
    check(lambda x: (x.sum(-1), x.amax(0), x == 1, x.to(torch.float32) * 2), x)


def test_views_whose_data_is_not_aligned():
    base = torch.randn(4097, device="cuda")
    compiled = staxlab.compile(lambda x: torch.relu(x) * 3)
    for start in (0, 1, 2, 3, 4):
        x = base[start : start + 4000]
        assert torch.equal(compiled(x), torch.relu(x) * 3)


def test_strided_expanded_and_sliced_inputs():
    base = torch.randn(64, 64, 64, device="cuda")
    for view in (base[::2], base[:, ::3, 5:40], base.permute(2, 0, 1), base[:, :1].expand(64, 9, 64), base[0, 0, 0]):
        check(lambda x: x * 2 + 1, view)


def test_large_subscripts():
    """More than 2**31 elements: offsets need 64 bits."""
    x = torch.ones(2**31 + 4096, dtype=torch.int8, device="cuda")
    x[-3] = 7
    got = staxlab.compile(lambda x: x + x)(x)
    assert got[-3].item() == 14 and got[0].item() == 2 and int(got[-4096:].sum()) == 2 * 4095 + 14


def test_more_rows_than_the_second_grid_axis_holds():
    x = torch.randn(3_000_000, 8, device="cuda")
    y = torch.randn(8, 3_000_000, device="cuda")
    check(lambda x, y: x + y.t(), x, y)


def test_the_current_stream_is_used():
    x = torch.randn(1 << 22, device="cuda")
    compiled = staxlab.compile(lambda x: torch.exp(x) + 1)
    expected_value = compiled(x)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        source = x.clone()
        torch.cuda._sleep(20_000_000)
        source.zero_()
        got = compiled(source)
    torch.cuda.current_stream().wait_stream(stream)
    assert torch.equal(got, torch.full_like(x, 2.0))
    assert torch.equal(compiled(x), expected_value)


def test_launches_are_recorded_in_a_cuda_graph():
    x = torch.randn(512, 512, device="cuda")
    compiled = staxlab.compile(example_1_1)
    compiled(x, x)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = compiled(x, x)
    x.copy_(torch.randn_like(x))
    graph.replay()
    torch.testing.assert_close(out, example_1_1(x, x), rtol=1e-5, atol=1e-4)


def test_library_calls_run_beside_kernels():
    a, b = torch.randn(128, 64, device="cuda"), torch.randn(64, 32, device="cuda")
    check(lambda a, b: torch.relu(a @ b + 1), a, b, rtol=1e-4, atol=1e-4)


def test_a_damaged_compiler_cache_is_rebuilt(cache_dir):
    x = torch.randn(1237, device="cuda")
    f = lambda x: torch.cos(x) * 1.2371  # noqa: E731
    staxlab.compile(f)(x)
    for path in (cache_dir / "triton" / "compiled").rglob("*.cubin"):
        path.write_bytes(b"not machine code")
    from staxlab.codegen.triton import compile as compiling
    from staxlab.codegen.triton import source_files

    compiling.clear()
    source_files.clear()
    torch.testing.assert_close(staxlab.compile(f)(x), f(x))


def test_the_code_compiled_ahead_of_time_is_the_code_that_runs():
    compiled = staxlab.compile(example_1_1)
    x, w = torch.randn(64, 128, device="cuda"), torch.randn(64, 128, device="cuda")
    compiled(x, w)
    (kernel,) = compiled.versions[0].compilation.kernels
    from staxlab.codegen.triton.compile import aot_compile
    from staxlab.codegen.triton.launcher import load

    launcher = load(kernel)
    launcher(x, w, torch.empty(64, device="cuda"))
    (running,) = launcher.compiled
    assert _code(running.asm["ptx"]) == _code(aot_compile(kernel)["ptx"])
    assert running.n_spills == 0


def _code(ptx):
    """Instructions: everything but positions, labels and the names of parameters that hold constants."""
    lines = (line.split("//")[0].strip() for line in ptx.split(".section")[0].splitlines())
    return [line for line in lines if line and not line.startswith((".loc", ".file", "$L", ".param"))]


def test_an_index_out_of_bounds_is_an_error_not_a_value():
    """A failed device assertion ends the context, so this one needs a process of its own."""
    script = textwrap.dedent(
        """
        import torch, staxlab
        table, index = torch.randn(10, 4, device="cuda"), torch.tensor([1, 99], device="cuda")
        f = staxlab.compile(lambda t, i: torch.nn.functional.embedding(i, t) * 2)
        good = f(table, torch.tensor([1, 9], device="cuda"))
        assert torch.equal(good, table[[1, 9]] * 2)
        f(table, index)
        torch.cuda.synchronize()
        print("no error")
        """
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert run.returncode != 0 and "no error" not in run.stdout
    assert "assert" in run.stderr.lower()
