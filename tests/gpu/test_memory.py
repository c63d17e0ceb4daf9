"""Memory over time on a CUDA device: the allocator's own peak beside the model's, eager and compiled."""

from __future__ import annotations

import gc

import pytest
import torch
import torch.nn.functional as F

import staxlab

pytestmark = pytest.mark.gpu

MIB = 2**20


def measured_peak(function, arguments, wanted):
    """Bytes the allocator had handed out at most, beyond what was there before, over a forward and a backward pass."""
    for _ in range(2):  # the first time, workspaces are allocated, and kernels compiled
        loss = function(*arguments)
        gradients = torch.autograd.grad(loss, wanted)
        del loss, gradients
    torch.cuda.synchronize()
    gc.collect()  # else what an earlier test's failure keeps alive may go while this is measured
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    loss = function(*arguments)
    gradients = torch.autograd.grad(loss, wanted)
    torch.cuda.synchronize()
    found = torch.cuda.max_memory_allocated() - before
    del loss, gradients
    return found


def two_layers(x, w, v):
    return (F.gelu(F.gelu(x @ w) @ v) @ w).tanh().square().mean()


def normalized(x, w, v):
    return (F.layer_norm(F.gelu(x @ w), (1024,)) @ v).sigmoid().sum()


def chain(x, w, v):
    return (w.exp().tanh().sin().sigmoid() + v).mean()


@pytest.mark.parametrize("function", [two_layers, normalized, chain])
def test_the_peak_is_the_models(function):
    x = torch.randn(2048, 1024, device="cuda")
    w, v = (torch.randn(1024, 1024, device="cuda", requires_grad=True) for _ in range(2))
    wanted = [w, v]
    compiled = staxlab.compile(function)
    eager = measured_peak(function, (x, w, v), wanted)
    own = measured_peak(compiled, (x, w, v), wanted)
    compilation = compiled.versions[0].compilation
    timeline = compilation.memory()
    for name, peak in (("eager", eager), (compilation.partition.plan, own)):
        model = timeline[name].peak
        print(f"{function.__name__}, {name}: measured {peak / MIB:.2f} MiB, model {model / MIB:.2f} MiB")
        # Small values are rounded up to 512 bytes each.
        assert abs(peak - model) <= 0.01 * model, (name, peak, model)
