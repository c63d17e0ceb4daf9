"""Split reductions on a CUDA device: eager's values, whole sums as precise as split ones, and equal bits every time."""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab.loops.splitting import TOPIC

pytestmark = [pytest.mark.gpu]

SHAPES = [((1 << 22,), None), ((2049, 2047), None), ((4096, 1024), 0), ((65537, 33), 0), ((64, 16384), 1),
          ((16, 1 << 18), 1), ((16, 64, 56, 56), (0, 2, 3)), ((1 << 20, 3), 0)]  # fmt: skip


def segments(compiled) -> list[int]:
    return [d.choice for d in compiled.versions[-1].compilation.loops.decisions if d.topic == TOPIC]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32])
@pytest.mark.parametrize(("shape", "dim"), SHAPES, ids=str)
def test_sums(shape, dim, dtype):
    dims = list(range(len(shape))) if dim is None else dim
    x = torch.randn(shape, device="cuda", dtype=torch.float32)
    x = (x * 20).to(dtype) if dtype == torch.int32 else x.to(dtype)
    compiled = staxlab.compile(lambda x: x.sum(dims), strict_native=True)
    got = compiled(x)
    assert max(segments(compiled)) > 1
    assert got.dtype == x.sum(dims).dtype and torch.equal(got, compiled(x))
    if dtype == torch.int32:
        assert torch.equal(got, x.sum(dims))
        return
    true, scale = x.double().sum(dims), x.double().abs().sum(dims)
    unit = torch.finfo(dtype).eps
    # Well inside the bound of Section 6.5: partial results are float32 also where the result is of half precision.
    assert bool(((got.double() - true).abs() <= 2e-6 * scale + unit * true.abs()).all())


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.amax(), x.amin(), (x > 3.9).any(), (x > -9).all()),
        lambda x: (x.amax(0), x.amin(0)),
        lambda x: (torch.relu(x) * 2 + x).t().mean(),
        lambda x: torch.softmax(x, 0),
        lambda x: torch.var_mean(x),
        lambda x: torch.nn.functional.layer_norm(x, x.shape),
        lambda x: torch.logsumexp(x, (0, 1)),
    ],
)
def test_functions(function):
    x = torch.randn(5000, 129, device="cuda")
    compiled = staxlab.compile(function, strict_native=True)
    got, answer = compiled(x), function(x)
    assert max(segments(compiled)) > 1
    torch.testing.assert_close(got, answer, rtol=1e-4, atol=1e-4)
    x[4999, 128] = float("nan")
    torch.testing.assert_close(compiled(x), function(x), rtol=1e-4, atol=1e-4, equal_nan=True)


def test_the_gradients_of_a_layer_norm():
    x = torch.randn(20_000, 64, device="cuda", requires_grad=True)
    norm = torch.nn.LayerNorm(64).cuda()
    gradient = torch.randn(20_000, 64, device="cuda")
    wanted = torch.autograd.grad(norm(x), (x, norm.weight, norm.bias), gradient)
    compiled = staxlab.compile(norm)
    got = torch.autograd.grad(compiled(x), (x, norm.weight, norm.bias), gradient)
    torch.testing.assert_close(got, wanted, rtol=1e-3, atol=1e-3)
