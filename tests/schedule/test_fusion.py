"""Which nodes share a kernel, and the rule that keeps the others apart (Section 7.3)."""

from __future__ import annotations

import random

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab.schedule.fusion import Fusion
from staxlab.schedule.rows import place, row_views


def explained(function, *inputs, **options):
    return staxlab.explain(function, *inputs, options=options)


def agrees(function, *inputs, **tolerance) -> None:
    found, wanted = staxlab.compile(function)(*inputs), function(*inputs)
    for one, other in zip(*(r if isinstance(r, tuple) else (r,) for r in (found, wanted)), strict=True):
        torch.testing.assert_close(one, other, **tolerance)


def rules(compilation) -> dict[str, str]:
    return {
        d.subject: d.reason.split(":")[0] for d in compilation.schedule.decisions if d.topic == "fuse" and not d.choice
    }


X = torch.rand(256, 384, generator=torch.Generator().manual_seed(0)) + 0.5

ONE_KERNEL = {
    "Example 7.1": (lambda x: x / x.sum(-1, keepdim=True), (X,)),
    "Example 7.2": (lambda x: (x.exp().sum(-1), x.exp().amax(-1)), (X,)),
    "softmax": (lambda x: torch.softmax(x, -1), (X,)),
    "softmax of five operators": (
        lambda x: (lambda e: e / e.sum(-1, keepdim=True))((x - x.amax(-1, keepdim=True)).exp()),
        (X,),
    ),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (384,), w, b), (X, torch.rand(384), torch.rand(384))),
    "two results of one input": (lambda x: (x.exp() + 1, x * 2), (torch.randn(128, 4096),)),
    "a row that one subscript picks from": (
        lambda x, i: torch.log_softmax(x, -1).gather(1, i[:, None]),
        (X, torch.randint(0, 384, (256,))),
    ),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_one_kernel(name):
    function, inputs = ONE_KERNEL[name]
    compilation = explained(function, *inputs)
    assert len(compilation.kernels) == 1
    agrees(function, *inputs)


def test_without_the_option_every_buffer_has_a_kernel():
    compilation = explained(ONE_KERNEL["softmax"][0], X, fuse=False)
    assert len(compilation.kernels) == 3
    assert not [d for d in compilation.schedule.decisions if d.topic == "fuse"]


def test_what_stays_in_the_kernel_has_no_memory():
    compilation = explained(ONE_KERNEL["softmax"][0], X)
    (node,) = compilation.schedule.nodes
    assert node.private == ("buf0", "buf1", "buf2") and node.buffers == ("buf3",)
    assert compilation.kernels.bytes_moved == 2 * X.nbytes
    assert "buf0 = " not in compilation.wrapper.source


def test_large_rows_of_intermediate_values_get_memory():
    """A thread's stack is no place for them."""
    x = torch.randn(64, 70_000)

    def function(x):
        e = (x * 0.1).exp()
        return e / e.sum(-1, keepdim=True)

    compilation = explained(function, x)
    for node in compilation.schedule.nodes:
        for buffer in node.private:
            assert compilation.schedule.layouts[buffer].nbytes // 64 <= 128 << 10
    agrees(function, x)


def test_sums_along_and_across_stay_apart():
    found = rules(explained(lambda x: (x.sum(0), x.sum(1), x.sum()), X))
    assert set(found.values()) == {"space"}


def test_a_kernel_in_between_keeps_two_apart():
    """Proposition 7.1: the product between them is PyTorch's."""
    x = torch.randn(512, 512)

    def function(x):
        scale = x.sum(-1, keepdim=True)
        return (x @ x) * scale, x * scale

    compilation = explained(function, x)
    order = [kernel.language for kernel in compilation.kernels]
    assert order.count("extern") == 1
    agrees(function, x, rtol=1e-4, atol=1e-2)
    found = rules(explained(lambda x: torch.exp(x @ (x.exp() + 1)) + x.exp().sum(), x))
    assert "space" in found.values() or "path" in found.values()


def test_few_long_rows_are_cut_into_pieces_instead():
    x = torch.randn(4, 100_000)
    found = rules(explained(lambda x: torch.softmax(x, -1), x))
    assert "rows" in found.values()


def test_a_row_that_another_row_wrote_is_not_read():
    """Proposition 7.3: the shifted read is one row behind."""
    x = torch.randn(128, 64)

    def function(x):
        e = x.exp()
        return e.roll(1, 0) + e.sum(-1, keepdim=True), e

    compilation = explained(function, x)
    assert "index" in rules(compilation).values() or len(compilation.kernels) > 1
    agrees(function, x)


def test_the_best_pair_is_a_matter_of_the_score():
    compilation = explained(ONE_KERNEL["layer norm"][0], *ONE_KERNEL["layer norm"][1], fuse=False)
    nodes, layouts = list(compilation.schedule.nodes), compilation.schedule.layouts
    escaping = frozenset({o.name for o in compilation.schedule.outputs}) | frozenset(compilation.schedule.inputs)
    orders = []
    for score in (lambda pair: pair.bytes_saved, lambda pair: -pair.bytes_saved):
        run = Fusion(nodes, layouts, escaping, score)
        run.run()
        orders.append([pair.bytes_saved for pair in run.merges])
    assert orders[0] != orders[1]


STEPS = {
    "exp": lambda a, b: (a * 0.1).exp(),
    "sum": lambda a, b: a.sum(-1, keepdim=True) * 0.1,
    "add": lambda a, b: a + b,
    "max": lambda a, b: a.amax(-1, keepdim=True) + b,
    "columns": lambda a, b: a.sum(0, keepdim=True) * 0.1 + b,
}


@pytest.mark.parametrize("seed", range(30))
def test_no_order_of_merges_makes_a_cycle(seed):
    """A pair that was legal when it was weighed need not be when its turn comes: Proposition 7.1 holds then, too."""
    draw = random.Random(seed)
    steps = [(draw.choice(list(STEPS)), draw.randrange(99), draw.randrange(99)) for _ in range(draw.randint(6, 12))]

    def function(x):
        values = [x]
        for name, i, j in steps:
            values.append(STEPS[name](values[i % len(values)], values[j % len(values)]))
        return tuple(values[1:])

    schedule = explained(function, torch.rand(128, 64), fuse=False).schedule
    escaping = frozenset(output.name for output in schedule.outputs) | frozenset(schedule.inputs)
    for _ in range(6):
        scores: dict = {}
        run = Fusion(
            list(schedule.nodes), schedule.layouts, escaping,
            lambda pair, scores=scores: scores.setdefault((pair.first.names, pair.second.names), draw.random()),
        )  # fmt: skip
        done = set(schedule.inputs)
        for group in run.run():
            assert group.read - group.written <= done
            done |= group.written


def test_rows_of_a_merged_loop():
    """Definition 7.2: a loop of n * r iterations takes on the space of n rows."""
    compilation = explained(lambda x: x * 2, X, fuse=False)
    (node,) = compilation.schedule.nodes
    assert node.ranges == (X.numel(),)
    (view,) = row_views(node, (256,))
    assert view.node.ranges == (384,) and place(view.node.writes[0].index, view.loops).steps == (384,)
    assert not list(row_views(node, (255,)))
    (view,) = row_views(node, (16, 16))
    found = place(view.node.writes[0].index, view.loops)
    assert found.steps == (6144, 384) and found.is_apart and found.bounds == (0, 383)


def test_groups_run_after_what_they_need():
    def function(x, w):
        a = torch.softmax(x, -1)
        b = a @ w
        return torch.softmax(b, -1) + a.sum()

    x, w = torch.randn(128, 300), torch.randn(300, 300)
    compilation = explained(function, x, w)
    done = set(compilation.schedule.inputs)
    for node in compilation.schedule.nodes:
        assert {a.buffer for a in node.reads} <= done
        done |= set(node.buffers)
    agrees(function, x, w)


def test_the_work_is_in_proportion_to_the_program(monkeypatch):
    """Many readers of one buffer are not all paired with each other, and no kernel grows without end."""
    weighed = []
    pair = Fusion._pair
    monkeypatch.setattr(Fusion, "_pair", lambda self, *groups: weighed.append(groups) or pair(self, *groups))
    counts = []
    for number in (30, 60):
        weighed.clear()
        compilation = explained(
            lambda x, n=number: tuple((x * (k + 1)).sum(-1) for k in range(n)), torch.randn(128, 64)
        )
        counts.append(len(weighed))
        assert max(len(node.members) for node in compilation.schedule.nodes) <= 24
    assert counts[1] < 3 * counts[0]


def test_random_numbers_are_drawn_in_the_order_of_the_program():
    """Two kernels that read what is drawn first and last must not pull one draw ahead of another by being fused."""

    def program(x):
        return x + torch.randn(4, 8), torch.rand_like(x), torch.randint(0, 5, (3,)), F.dropout(x, 0.3)

    x, compiled = torch.randn(4, 8), staxlab.compile(program, strict_native=True)
    torch.manual_seed(5)
    expected = program(x)
    torch.manual_seed(5)
    assert all(map(torch.equal, compiled(x), expected))
    nodes = compiled.versions[0].compilation.schedule.nodes
    drawn = [str(node.extern.operator) for node in nodes if node.extern is not None]
    assert drawn == ["aten.randn.default", "aten.rand_like.default", "aten.randint.low", "aten.bernoulli.p"]
    assert not any("op1" in node.predecessors and node.extern for node in nodes)  # what stands in order is no reader
