"""Generated Triton scatters, run by Triton's interpreter and compiled for real GPUs."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest
import torch

from staxlab.codegen.kernel import KernelSet
from staxlab.codegen.triton import generate
from staxlab.errors import CodegenError
from staxlab.options import Options
from staxlab.schedule.dependencies import schedule
from tests.codegen.triton_support import SM90
from tests.loops.lowered import GPU, operators_of, program_of

pytest.importorskip("triton")


def interpreted(function: Callable, *inputs: torch.Tensor) -> tuple[torch.Tensor, KernelSet]:
    """The result of a function's kernels for a GPU, one after the other, and the kernels."""
    from staxlab.codegen.triton.interpreter import interpret

    program = program_of(function, *inputs, device=GPU)
    scheduled = schedule(program, GPU, Options())
    kernels = generate(scheduled, Options(), GPU)
    memory = dict(zip((b.name for b in program.inputs), inputs, strict=True))
    for node, kernel in zip(scheduled.nodes, kernels, strict=True):
        assert kernel.language == "triton", kernel.source
        for name in node.buffers:
            layout = scheduled.layouts[name]
            fresh = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype).fill_(1)
            memory[name] = fresh if node.base is None else memory[node.base]
        interpret(kernel, [memory[a.buffer] for a in kernel.arguments])
    (output,) = program.outputs
    return memory[output.name].as_strided(output.layout.shape, output.layout.stride, output.layout.offset), kernels


def check(function: Callable, *inputs: torch.Tensor, **tolerance: float) -> KernelSet:
    result, kernels = interpreted(function, *inputs)
    torch.testing.assert_close(result, function(*inputs), **(tolerance or {"rtol": 1e-5, "atol": 1e-5}))
    return kernels


def add(x: torch.Tensor, k: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return x.scatter_add(0, k, s)


def add_rows(x: torch.Tensor, k: torch.Tensor, s: torch.Tensor) -> torch.Tensor:
    return x.index_add(0, k, s)


def sample(dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return (torch.randn(9, 30) * 9).to(dtype), torch.randint(0, 9, (70, 30)), (torch.randn(70, 30) * 9).to(dtype)


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.int32, torch.int64, torch.int8, torch.uint8, torch.float16, torch.bfloat16],
    ids=str,
)
def test_sums_of_every_dtype(dtype):
    x, k, s = sample() if dtype != torch.uint8 else (t.abs() for t in sample())
    half = {"rtol": 5e-2, "atol": 1.0} if dtype in (torch.float16, torch.bfloat16) else {"rtol": 1e-4, "atol": 1e-4}
    check(add, x.to(dtype), k, s.to(dtype), **half)
    kernels = check(add_rows, x.to(dtype), k[:, 0], s.to(dtype), **half)
    assert "tl.atomic_add" in kernels[1].source


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.int8], ids=str)
def test_extremes_of_whole_numbers(dtype):
    for reduce in ("amax", "amin"):
        for include_self in (True, False):
            check(
                lambda x, k, s: x.scatter_reduce(0, k, s, reduce, include_self=include_self),  # noqa: B023
                *sample(dtype),
            )


def test_means_several_subscripts_and_embeddings():
    x, k, s = sample()
    check(lambda x, k, s: x.scatter_reduce(0, k, s, "mean", include_self=False), x, k, s, rtol=1e-4, atol=1e-4)
    i, j = torch.randint(-9, 9, (3, 1)), torch.randint(-30, 30, (8,))
    check(lambda x, i, j, v: torch.index_put(x, [i, j], v, True), x, i, j, torch.randn(8), rtol=1e-4, atol=1e-4)
    check(lambda g, k: torch.ops.aten.embedding_dense_backward(g, k, 9, 4, False), s, k[:, 0], rtol=1e-4, atol=1e-4)


def test_what_meets_nowhere_needs_no_atomic_operation():
    x, _, s = sample()
    kernels = check(lambda x, s: x.index_add(0, torch.arange(9), s[:9]), x, s)
    assert "atomic" not in kernels[1].source
    kernels = check(lambda x, k, s: torch.index_put(x, [k], s[:9]), x, torch.randperm(9), s)
    assert "tl.store" in kernels[1].source and "atomic" not in kernels[1].source


def test_a_subscript_out_of_range_is_noticed():
    from staxlab.codegen.triton.interpreter import interpret

    x, k, s = sample()
    program = program_of(add, x, k, s, device=GPU)
    kernel = generate(schedule(program, GPU, Options()), Options(), GPU)[1]
    for wrong in (9, -1, 1 << 40):
        bad = k.clone()
        bad[3, 3] = wrong
        tensors = {"b": bad, "c": s}
        with pytest.raises(IndexError):
            interpret(kernel, [tensors.get(a.buffer, x.clone()) for a in kernel.arguments])


@pytest.mark.parametrize("capability", [80, 90])
def test_the_hardware_adds(capability):
    from staxlab.codegen.triton.compile import aot_compile

    for dtype, instruction in (
        (torch.float32, r"(red|atom)\.\S*\.add\.(\S*\.)?f32"), (torch.int64, r"(red|atom)\.\S*\.add\.[us]64"),
    ):  # fmt: skip
        _, kernels = interpreted(add_rows, *(t if k != 1 else t[:, 0] for k, t in enumerate(sample(dtype))))
        assert [a.role for a in kernels[1].arguments] == ["input", "input", "inout"]
        assert re.search(instruction, aot_compile(kernels[1], capability)["ptx"])


def test_what_has_no_atomic_operation_is_an_error_and_not_a_guess():
    """The rules of lowering decline such scatters for a GPU; a program that has one all the same is refused."""
    function = lambda x, k, s: x.scatter_reduce(0, k, s, "amax")  # noqa: E731
    program = program_of(function, *sample())  # lowered for a CPU
    assert len(operators_of(function, *sample()).graph.calls) >= 1
    with pytest.raises(CodegenError, match="no atomic operation"):
        generate(schedule(program, SM90, Options()), Options(), SM90)
