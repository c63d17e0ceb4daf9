"""Random programs that write into their inputs at subscripts that are data: values, and what a failed check leaves."""

from __future__ import annotations

import random

import pytest
import torch

import staxlab
from tests.schedule.test_memory_plan import check_plan

STEPS = tuple("copied added put scattered row halved plus filled read summed product lookup".split())


def program(rng: random.Random):
    """A function of (x, y, i, j, k, t) that writes into x and y; ``j`` is only looked up."""
    steps = [(rng.choice(STEPS), rng.choice("xy")) for _ in range(rng.randint(2, 6))]

    def function(x, y, i, j, k, t):
        results = []
        for step, name in steps:
            target = x if name == "x" else y
            if step == "copied":
                target.index_copy_(0, i, k)
            elif step == "added":
                target.index_add_(0, i, k)
            elif step == "put":
                target[i] = k * 2
            elif step == "scattered":
                target.scatter_(0, i[:, None].expand(3, 4), k)
            elif step == "row":
                target[2] = k[0]
            elif step == "halved":
                target.mul_(0.5)
            elif step == "plus":
                target.add_(t[:8])
            elif step == "filled":
                target.fill_(1.0)
            elif step == "read":
                results.append(target * 2)
            elif step == "summed":
                results.append(target.cumsum(0))
            elif step == "product":
                results.append(target @ t.T)
            else:
                k = k + t[j]
        return (*results, k + 0)

    return function


def inputs(seed: int, bad: str = "") -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x, y, k, t = (torch.randn(shape, generator=generator) for shape in ((8, 4), (8, 4), (3, 4), (9, 4)))
    i, j = torch.randperm(8, generator=generator)[:3], torch.randint(9, (3,), generator=generator)
    if bad:
        {"i": i, "j": j}[bad][1] = 50
    return [x, y, i, j, k, t]


def same(found, wanted):
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)


def seeds(by_day: int, by_night: int) -> list:
    return [*range(by_day), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(by_day, by_night))]


@pytest.mark.parametrize("seed", seeds(8, 120))
def test_on_a_cpu(seed):
    rng = random.Random(seed)
    function = program(rng)
    compiled = staxlab.compile(function, options={"fuse": rng.random() < 0.6}, strict_native=True)
    for repeated in range(2):
        mine, eager = inputs(seed + repeated), inputs(seed + repeated)
        same((*compiled(*mine), *mine), (*function(*eager), *eager))
    assert len(compiled.versions) == 1
    check_plan(compiled.versions[0].compilation.schedule)
    for bad in "ij":
        mine, eager = inputs(seed, bad), inputs(seed, bad)
        try:
            function(*eager)
        except (IndexError, RuntimeError):
            with pytest.raises(IndexError):
                compiled(*mine)
            if bad == "j":  # a lookup: either nothing has been written, or what eager had written by then
                for one, other, before in zip(mine[:2], eager[:2], inputs(seed), strict=False):
                    assert torch.equal(one, before) or torch.allclose(one, other, rtol=1e-4, atol=1e-4)
        else:
            compiled(*mine)


@pytest.mark.parametrize("seed", seeds(8, 120))
def test_in_programs_for_a_gpu(seed):
    pytest.importorskip("triton")
    from staxlab.codegen.triton.interpreter import interpret
    from staxlab.runtime.artifact import load

    rng = random.Random(seed)
    function = program(rng)
    options = {"fuse": rng.random() < 0.6}
    compilation = staxlab.explain(function, *inputs(seed), target="sm_90", options=options)
    check_plan(compilation.schedule)
    launchers = {
        kernel.name: lambda *tensors, kernel=kernel: interpret(kernel, tensors)
        for kernel in compilation.kernels
        if kernel.language == "triton"
    }
    mine, eager = inputs(seed), inputs(seed)
    same((*load(compilation.wrapper, launchers).call(list(mine)), *mine), (*function(*eager), *eager))


def test_some_of_them_write_in_place():
    """Else the programs above would show nothing."""
    plans = [
        staxlab.explain(program(random.Random(seed)), *inputs(seed), target="sm_90").schedule.memory
        for seed in range(8)
    ]
    assert sum(len(plan.written_back) for plan in plans) >= 8 and sum(len(plan.skipped) for plan in plans) >= 2
