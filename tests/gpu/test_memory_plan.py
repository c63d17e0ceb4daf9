"""Memory plans on a GPU: outputs over dying inputs, inputs written where the program writes them, other orders."""

from __future__ import annotations

import random

import pytest
import torch

import staxlab
from tests.schedule.test_memory_plan import OPERATIONS, WRITES, check_plan, written

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("seed", range(12))
def test_values_of_random_programs(seed):
    draw = random.Random(seed)
    for _ in range(3):
        steps = [
            (draw.choice([*OPERATIONS, *WRITES]), draw.randrange(99), draw.randrange(99))
            for _ in range(draw.randint(3, 10))
        ]
        function = written((steps, {draw.randrange(12) for _ in range(3)}))
        n = draw.choice([33, 64, 130])
        samples = [torch.randn(n, n, generator=torch.Generator().manual_seed(k)).cuda() for k in range(2)]
        eager = [x.clone() for x in samples]
        wanted = function(*eager)
        if any(not x.isfinite().all() for x in (*wanted, *eager)):
            continue
        compiled = staxlab.compile(function)
        for _ in range(2):
            mine = [x.clone() for x in samples]
            found = compiled(*mine)
            for one, other in zip((*found, *mine), (*wanted, *eager), strict=True):
                torch.testing.assert_close(one, other, rtol=2e-3, atol=2e-3)
        if compiled.versions and compiled.versions[0].compilation.schedule is not None:
            check_plan(compiled.versions[0].compilation.schedule)


@pytest.mark.parametrize("fuse", [True, False])
def test_the_allocator_is_asked_for_what_the_plan_says(fuse):
    """Example 4.4: without fusion the first kernel writes where eager does."""

    def f(x, y):
        x.mul_(2)
        y[0].add_(1)
        return x + y

    x, y = (torch.randn(512, 512, device="cuda") for _ in range(2))
    eager = [x.clone(), y.clone()]
    compiled = staxlab.compile(f, options={"fuse": fuse})
    compiled(x.clone(), y.clone())
    plan = compiled.versions[0].compilation.schedule.memory
    mine = [x.clone(), y.clone()]
    torch.cuda.synchronize()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    found = compiled(*mine)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before == plan.peak_bytes
    assert fuse or (plan.written_back and plan.peak_bytes == x.nbytes)
    assert torch.equal(found, f(*eager)) and torch.equal(mine[0], eager[0]) and torch.equal(mine[1], eager[1])


def test_a_cache_takes_no_second_memory():
    def f(cache, positions, k):
        cache.index_copy_(1, positions, k)
        return cache.sum()

    cache, k = torch.randn(16, 1024, 64, device="cuda"), torch.randn(16, 1, 64, device="cuda")
    mine, eager = cache.clone(), cache.clone()
    compiled = staxlab.compile(f)
    for position in (7, 8, 1023):
        positions = torch.tensor([position], device="cuda")
        torch.testing.assert_close(compiled(mine, positions, k), f(eager, positions, k), rtol=1e-4, atol=1e-2)
        assert torch.equal(mine, eager)
    assert len(compiled.versions) == 1
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    compiled(mine, positions, k)
    torch.cuda.synchronize()
    assert torch.cuda.max_memory_allocated() - before < cache.nbytes // 2


def test_a_chain_of_kernels_has_one_memory():
    def f(x, w):
        return ((x @ w).relu() * 2).cumsum(-1)

    x, w = torch.randn(256, 256, device="cuda"), torch.randn(256, 256, device="cuda")
    compilation = staxlab.explain(f, x, w, target="cuda")
    kinds = [place.kind for place in compilation.schedule.memory.placements.values()]
    assert kinds[0] == "extern" and compilation.schedule.memory.arena_bytes == 0
    torch.testing.assert_close(staxlab.compile(f)(x, w), f(x, w), rtol=1e-3, atol=1e-3)
