"""Chains on a CUDA device: eager's bits with the device's own random numbers, and memory that follows the slots."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from staxlab.autodiff.chain import differentiate
from staxlab.autodiff.checkpoint import binomial, recompute_all, save_all, uniform_segments

pytestmark = [pytest.mark.gpu]

STEPS = 8
ORDERS = [save_all(STEPS), recompute_all(STEPS), uniform_segments(STEPS, 3), binomial(STEPS, 2)]


@pytest.mark.parametrize("order", ORDERS, ids=lambda order: order.name)
def test_dropout_on_the_device_repeats(order):
    torch.manual_seed(0)
    shared = nn.Linear(64, 64)
    model = nn.Sequential(
        shared, nn.Dropout(0.4), nn.BatchNorm1d(64), nn.GELU(), shared, nn.Dropout(0.2), nn.LayerNorm(64)
    ).cuda()
    steps = [*model, lambda z: (z * z).mean()]
    x = torch.randn(32, 64, device="cuda", requires_grad=True)

    torch.manual_seed(3)
    z = x
    for step in steps:
        z = step(z)
    z.backward()
    drawn = torch.rand(4, device="cuda")
    statistics = model[2].running_mean.clone()

    model[2].reset_running_stats()
    torch.manual_seed(3)
    found = differentiate(steps, x, order)
    assert torch.equal(torch.rand(4, device="cuda"), drawn)
    assert torch.equal(found.output, z.detach()) and torch.equal(found.input_gradient, x.grad)
    for name, parameter in model.named_parameters():
        assert torch.equal(found.of(parameter), parameter.grad), name
    assert torch.equal(model[2].running_mean, statistics)


def test_memory_follows_the_slots():
    """A slot more is a state more on the device, but for the tape of the one step that is at work."""
    x = torch.randn(1 << 22, device="cuda", requires_grad=True)
    steps = [torch.tanh] * 31 + [torch.sum]

    def peak(slots):
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        found = differentiate(steps, x, slots=slots)
        assert found.peak_bytes == slots * x.nbytes
        return torch.cuda.max_memory_allocated() - before

    few, many = peak(4), peak(32)
    assert (many - few) / x.nbytes == pytest.approx(32 - 4, abs=4)
