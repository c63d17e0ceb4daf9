"""Batch norms in training: running statistics are nobody's but their owner's, and new ones stand where old ones did."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import staxlab


def network(channels: int = 6) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, channels, 3, bias=False), nn.BatchNorm2d(channels), nn.ReLU(), nn.Conv2d(channels, 4, 1)
    ).train()


def test_running_statistics_are_neither_saved_nor_copied():
    module = network()
    eager = copy.deepcopy(module)
    compiled = staxlab.compile(module, strict_native=True)
    for seed in range(3):
        x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(seed))
        for one in (compiled, eager):
            one.zero_grad()
            one(x).pow(2).mean().backward()
        for mine, other in zip((*module.buffers(), *module.parameters()), (*eager.buffers(), *eager.parameters()),
                               strict=True):  # fmt: skip
            torch.testing.assert_close(mine, other)
            if mine.grad is not None:
                torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-6)
    assert len(compiled.versions) == 1
    compilation = compiled.versions[0].compilation
    roots = {compilation.schedule.memory.root(name) for name in compilation.schedule.memory.placements}
    assert {"_1_running_mean", "_1_running_var", "_1_num_batches_tracked"} <= roots
    assert len(compilation.schedule.memory.written_back) == 3
    (backward,) = (node for node in compilation.joint.graph if "batch_norm_backward" in str(node.target))
    assert backward.args[3] is backward.args[4] is None
    shapes = sorted(tuple(node.val.shape) for node in compilation.partition.saved)
    assert shapes.count((6,)) <= 2  # the batch's own mean and scale


def test_in_evaluation_they_are_what_the_gradient_needs():
    module = network().eval()
    x = torch.randn(2, 3, 6, 6)
    compilation = staxlab.explain(module, x)
    found = [node for node in compilation.joint.graph if "batch_norm_backward" in str(node.target)]
    assert all(None not in node.args[3:5] for node in found)
    compiled, eager = staxlab.compile(module), copy.deepcopy(module)
    compiled(x).sum().backward()
    eager(x).sum().backward()
    for mine, other in zip(module.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shared", [False, True])
def test_a_write_into_an_input_of_a_training_region(shared):
    """In place where the memory is the input's alone, into a copy first where another input looks at it."""

    def f(x, w, counts):
        counts.mul_(0.5)
        counts.add_(x.detach().sum(0))
        return (x * w).sum()

    def arguments():
        torch.manual_seed(1)
        x, w, counts = torch.randn(5, 3), torch.randn(3, requires_grad=True), torch.ones(3)
        return (x, w, x[0]) if shared else (x, w, counts)

    compiled = staxlab.compile(f)
    mine, eager = arguments(), arguments()
    for function, given in ((compiled, mine), (f, eager)):
        function(*given).backward()
    for one, other in zip((*mine, mine[1].grad), (*eager, eager[1].grad), strict=True):
        torch.testing.assert_close(one, other)
    compilation = compiled.versions[0].compilation
    if compilation.schedule is not None:
        assert bool(compilation.schedule.memory.written_back) != shared
