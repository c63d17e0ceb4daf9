"""Batch norm with the batch's own statistics: one kernel over channels each way, as exact as eager execution."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import staxlab


def plain(x):
    return F.batch_norm(x, None, None, None, None, True)


@pytest.mark.parametrize("shape", [(8, 64, 12, 12), (300, 70), (4, 3, 5, 6, 7), (2, 5, 1, 1)])
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_no_less_exact_than_eager(shape, offset):
    """Sums are made in double precision, so a mean that is large beside the deviation does no harm."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(1)) + offset
    exact = plain(x.double())
    compiled = staxlab.compile(plain, strict_native=True)
    ours, eager = (compiled(x) - exact).abs().max(), (plain(x) - exact).abs().max()
    assert ours <= 2 * eager + 1e-6


def test_one_kernel_each_way():
    x, w, b = (torch.randn(shape, requires_grad=True) for shape in ((8, 64, 12, 12), (64,), (64,)))
    function = lambda x, w, b: F.batch_norm(x, None, None, w, b, True)  # noqa: E731
    compiled = staxlab.compile(function, strict_native=True)
    gradients = []
    for each in (compiled, function):
        x.grad = w.grad = b.grad = None
        each(x, w, b).backward(torch.ones(x.shape).cumsum(1))
        gradients.append((x.grad, w.grad, b.grad))
    for found, wanted in zip(*gradients, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=2e-3)
    compilation = compiled.versions[0].compilation
    assert (len(compilation.kernels), len(compilation.backward.kernels)) == (1, 1)


def test_channels_that_lie_side_by_side():
    x = torch.randn(4, 32, 9, 9).to(memory_format=torch.channels_last)
    found = staxlab.compile(plain, strict_native=True)(x)
    torch.testing.assert_close(found, plain(x))
    assert found.stride() == plain(x).stride()


def test_running_statistics_move_as_eagers_do():
    ours, theirs = nn.BatchNorm2d(20, momentum=0.3), nn.BatchNorm2d(20, momentum=0.3)
    compiled = staxlab.compile(ours)
    for seed in range(3):
        x = torch.randn(6, 20, 5, 5, generator=torch.Generator().manual_seed(seed)) * 3 + 2
        torch.testing.assert_close(compiled(x), theirs(x))
    torch.testing.assert_close(ours.running_mean, theirs.running_mean)
    torch.testing.assert_close(ours.running_var, theirs.running_var)
    assert ours.num_batches_tracked == theirs.num_batches_tracked == 3


def test_what_is_not_finite_stays_in_its_channel():
    x = torch.randn(8, 5, 40)
    x[0, 1, 2], x[3, 2, 1] = float("nan"), float("inf")
    torch.testing.assert_close(staxlab.compile(plain)(x), plain(x), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_other_dtypes(dtype):
    x = torch.randn(8, 70, 40).to(dtype)
    torch.testing.assert_close(staxlab.compile(plain)(x), plain(x))


def test_with_running_statistics_a_gpu_needs_one_kernel():
    """The roots of the channels are no kernel of their own, forward or backward."""
    pytest.importorskip("triton")
    module = torch.nn.Sequential(torch.nn.BatchNorm2d(6), torch.nn.ReLU()).eval()
    x = torch.randn(4, 6, 5, 5)
    with torch.no_grad():
        kernels = staxlab.explain(module, x, target="sm_90").kernels
        on_a_cpu = staxlab.explain(module, x).kernels
    assert len(kernels) == len(on_a_cpu) == 1 and "rsqrt" in kernels[0].source

    from staxlab.codegen.triton.interpreter import interpret

    found = torch.empty_like(x)
    given = {"input": x, "_0_running_mean": module[0].running_mean, "_0_running_var": module[0].running_var,
             "_0_weight": module[0].weight.detach(), "_0_bias": module[0].bias.detach()}  # fmt: skip
    interpret(kernels[0], [given.get(argument.buffer, found) for argument in kernels[0].arguments])
    torch.testing.assert_close(found, module(x).detach())
