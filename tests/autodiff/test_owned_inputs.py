"""Saved values are let go of as the backward goes, and only where nobody else needs them (Section 7.5)."""

from __future__ import annotations

import gc
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

import staxlab
from staxlab import native
from staxlab.runtime import program
from staxlab.schedule.owned_inputs import last_uses


def mlp(width=64):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 8))


def gradients(module):
    return [p.grad.clone() for p in module.parameters()]


@pytest.fixture(params=["C", "Python"])
def path(request, monkeypatch):
    if request.param == "Python":
        monkeypatch.setattr(program, "program_of", lambda *a: (None, "switched off"))
    elif not native.available:
        pytest.skip("no extension")
    return request.param


def test_gradients_are_eagers_and_the_wrapper_drops_what_it_has_read(path):
    module, x = mlp(), torch.randn(32, 64)
    (module(x) ** 2).mean().backward()
    expected = gradients(module)
    compiled = staxlab.compile(lambda x: (module(x) ** 2).mean())
    for _ in range(3):
        module.zero_grad()
        compiled(x).backward()
        for mine, theirs in zip(gradients(module), expected, strict=True):
            torch.testing.assert_close(mine, theirs)
    backward = compiled.versions[0].compilation.backward
    names = [name for at in last_uses(backward.schedule) for name in at]
    assert sorted(names) == sorted(backward.schedule.owned) and names
    dropped = [line for line in backward.wrapper.source.splitlines() if line.strip().startswith("del ")]
    assert all(any(name in line for line in dropped) for name in names)


def test_what_the_user_holds_outlives_the_backward(path):
    """The result of exp is saved for its own gradient, and given to the caller."""
    x = torch.randn(300, requires_grad=True)
    compiled = staxlab.compile(lambda x: ((y := (x * 2).exp()), (y * y).sum()))
    y, loss = compiled(x)
    before = y.detach().clone()
    loss.backward()
    gc.collect()
    [torch.full((300,), 7.0) for _ in range(20)]  # whoever takes the memory would be seen
    compiled(torch.randn(300))
    assert torch.equal(y, before)
    torch.testing.assert_close(x.grad, 4 * before * before)


def test_a_graph_that_is_kept_can_be_used_again(path):
    module, x = mlp(), torch.randn(32, 64)
    compiled = staxlab.compile(lambda x: (module(x) ** 2).mean())
    loss = compiled(x)
    loss.backward(retain_graph=True)
    once = gradients(module)
    loss.backward()
    for twice, first in zip(gradients(module), once, strict=True):
        torch.testing.assert_close(twice, 2 * first)
    with pytest.raises(RuntimeError, match="second time"):
        loss.backward()


def test_hooks_on_saved_tensors_see_every_value(path):
    module, x = mlp(), torch.randn(32, 64)
    compiled = staxlab.compile(lambda x: (module(x) ** 2).mean())
    compiled(x).backward()
    expected = gradients(module)
    module.zero_grad()
    packed = []

    def pack(value):
        packed.append(value)
        return len(packed) - 1

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda place: packed[place]):
        loss = compiled(x)
    loss.backward()
    assert packed
    for mine, theirs in zip(gradients(module), expected, strict=True):
        assert torch.equal(mine, theirs)


def test_a_subscript_that_went_bad_is_explained_in_the_backward(path):
    """A backward with subscripts owns nothing: who explains the error looks at its inputs once more."""
    x, at = torch.randn(5, 3, requires_grad=True), torch.tensor([1, 2])
    compiled = staxlab.compile(lambda x, at: (x[at] * 2).sum())
    loss = compiled(x, at)
    loss.backward()
    assert not compiled.versions[0].compilation.backward.schedule.owned
    loss = compiled(x, at)
    at.data[0] = 9  # behind autograd's back
    with pytest.raises(staxlab.SubscriptError, match="index 9 at position"):
        loss.backward()


@pytest.mark.slow
def test_no_training_step_needs_more_memory_than_eager():
    """Counted by the allocator, without the pool, whose blocks are up to an eighth larger than what is asked for."""
    command = [sys.executable, "-m", "benchmarks.peak_memory", "--programs", "training", "--peers", "eager,staxlab"]
    result = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True)
    assert result.returncode == 0 and "8 of 8 programs" in result.stdout, result.stdout[-2000:] + result.stderr[-2000:]
