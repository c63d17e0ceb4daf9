"""Whole functions compiled for a GPU that is not here, run on CPU tensors through Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import staxlab
from staxlab.runtime.artifact import load

pytest.importorskip("triton")

from staxlab.codegen.triton.interpreter import interpret


def run(function: Callable, *inputs: torch.Tensor, rtol=1.3e-6, atol=1e-5):
    """Compile for sm_90, interpret every kernel under the generated wrapper, compare with eager."""
    compilation = staxlab.explain(function, *inputs, target="sm_90", strict_native=True)
    launchers = {
        kernel.name: lambda *tensors, kernel=kernel: interpret(kernel, tensors)
        for kernel in compilation.kernels
        if kernel.language == "triton"
    }
    got = load(compilation.wrapper, launchers).call([t for t in inputs if isinstance(t, torch.Tensor)])
    answer = function(*inputs)
    for a, b in zip(got, answer if isinstance(answer, tuple) else (answer,), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype and a.stride() == b.stride()
        torch.testing.assert_close(a, b, equal_nan=True, rtol=rtol, atol=atol)
    return compilation


def test_example_1_1():
    x, w = torch.randn(64, 128), torch.randn(64, 128)
    x[2, 3], w[9, 9] = float("nan"), float("inf")
    compilation = run(lambda x, w: (torch.relu(x + w) * 2).sum(-1), x, w, rtol=1e-5)
    assert [k.launch["form"] for k in compilation.kernels] == ["persistent"]
    assert compilation.kernels.bytes_moved == 4 * (2 * 64 * 128 + 64)


def test_example_6_1_is_two_dimensional():
    compilation = run(lambda x, y: x.t() + y, torch.randn(50, 20), torch.randn(20, 50))
    assert "YBLOCK" in compilation.kernels[0].source


def test_softmax_and_row_normalisation():
    x = torch.randn(9, 300)
    run(lambda x: torch.softmax(x, -1), x)
    run(lambda x: x / x.sum(-1, keepdim=True), x, rtol=1e-4, atol=1e-4)


def test_gelu_backward_by_hand():
    """Listing 9.3: reads h and one scalar."""

    def backward(gradient, h):
        return gradient * (
            0.5 * (1 + torch.erf(h * 0.7071067811865476)) + h * 0.3989422804014327 * torch.exp(-0.5 * h * h)
        )

    compilation = run(backward, torch.tensor(1.5), torch.randn(2048))
    (kernel,) = compilation.kernels
    assert kernel.bytes_read == 4 * (2048 + 1) and "in_ptr0 + (0)" in kernel.source


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_dtypes(dtype):
    x, y = torch.randn(30, 7, dtype=dtype), torch.randn(7, dtype=dtype)
    run(lambda x, y: torch.relu(x * 2 + y).sum(0), x, y, rtol=1e-2 if dtype.itemsize == 2 else 1e-12, atol=1e-2)


def test_integers_and_bools():
    x = torch.randint(-50, 50, (12, 40))
    run(lambda x: (x.sum(-1), x.amax(0), (x > 3).any(1), x.argmax(-1), x // 7, x % 7), x)


def test_joining_padding_and_gathering():
    x, y = torch.randn(6, 5), torch.randn(3, 5)
    run(lambda x, y: torch.cat([x, y]) * 2, x, y)
    run(lambda x: torch.nn.functional.pad(x, (1, 2)) + 1, x)
    run(lambda x, i: torch.nn.functional.embedding(i, x) + 1, x, torch.tensor([0, 5, 2]))


@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (1, 1)])
def test_empty_and_single(shape):
    x = torch.randn(shape)
    run(lambda x: (torch.relu(x) + 1, x.sum(-1)), x)


def test_sliced_expanded_and_transposed_inputs():
    base = torch.randn(8, 9, 10)
    for view in (base[::2], base[:, ::3, 5:8], base.permute(2, 0, 1), base[:, :1].expand(8, 4, 10), base[0, 0, 0]):
        run(lambda x: x * 2 + 1, view)


def test_listings_of_a_compiled_function_link_back_to_its_graph():
    compilation = staxlab.explain(
        lambda x, w: (torch.relu(x + w) * 2).sum(-1), torch.randn(64, 128), torch.randn(64, 128), target="sm_90"
    )
    (kernel,) = compilation.kernels
    ids = {node.id for node in compilation.graph.nodes}
    from staxlab.codegen.triton.listings import ptx_lines, sass_lines

    for lines in (kernel.lines, ptx_lines(kernel), sass_lines(kernel)):
        assert frozenset().union(*(line.origins for line in lines)) <= ids
        assert sum(bool(line.origins) for line in lines) > 10


def test_a_masked_read_of_one_element():
    """A condition that varies along nothing is a block of one element; the address must be one too."""
    x = torch.tensor(-8.5)
    compilation = staxlab.explain(torch.diagflat, x, target="sm_90")
    (kernel,) = compilation.kernels
    assert "in_ptr0 + tl.full([1], 0, tl.int32)" in kernel.source
    assert "ptx" not in kernel.source and kernel.assembly("ptx").text
