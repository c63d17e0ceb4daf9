"""Column sums in two steps, the first beside the rows they read."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab.schedule.column_blocks import Blocks, _choose


def step(function, *inputs):
    """The gradients of a function, by the compiler and by eager; and the kernels of the backward pass."""
    compiled = staxlab.compile(function)
    results = []
    for each in (compiled, function):
        for tensor in inputs:
            tensor.grad = None
        y = each(*inputs)
        y.backward(torch.randn(y.shape, generator=torch.Generator().manual_seed(7)))
        results.append([tensor.grad for tensor in inputs if tensor.grad is not None])
    return (*results, compiled.versions[0].compilation.backward)


def leaf(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)), requires_grad=True)


CASES = {
    "layer norm": (lambda x, w, b: F.layer_norm(x, (256,), w, b), (leaf(1024, 256), leaf(256), leaf(256))),
    "rms norm": (lambda x, w: F.rms_norm(x, (256,), w, 1e-6), (leaf(1024, 256), leaf(256))),
    "a bias": (lambda x, b: F.gelu(x + b), (leaf(1024, 256), leaf(256))),
}


@pytest.mark.parametrize("name", CASES)
def test_the_adjoint_reads_its_operands_once(name):
    function, inputs = CASES[name]
    found, wanted, backward = step(function, *inputs)
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-4)
    chosen = [d for d in backward.schedule.decisions if d.topic == "column-blocks"]
    assert chosen and all(d.choice > 1 for d in chosen)
    first = backward.schedule.nodes[0]
    assert first.members and any("_blocks" in name for name in first.buffers)
    upstream = next(name for name in backward.schedule.inputs if name.startswith("tangents"))
    assert sum(upstream in {a.buffer for a in node.reads} for node in backward.schedule.nodes) == 1


def test_sums_down_the_columns_of_what_a_kernel_writes():
    x = torch.randn(2048, 200)

    def function(x):
        s = torch.softmax(x, -1)
        return s, s.sum(0), s.amax(0)

    compilation = staxlab.explain(function, x)
    assert len([node for node in compilation.schedule.nodes if "x" in {a.buffer for a in node.reads}]) == 1
    for one, other in zip(staxlab.compile(function)(x), function(x), strict=True):
        torch.testing.assert_close(one, other)


def test_kernels_are_those_their_loops_mean():
    x = torch.randn(1024, 256)

    def function(x):
        s = torch.softmax(x, -1)
        return s, s.sum(0)

    compilation = staxlab.explain(function, x, options={"validate": True})
    assert compilation.validation.passed


def test_a_column_sum_alone_is_one_step():
    compilation = staxlab.explain(lambda x: x.sum(0), torch.randn(4096, 256))
    assert not [d for d in compilation.schedule.decisions if d.topic == "column-blocks"]


def test_half_precision_is_added_up_in_single():
    x = torch.randn(2048, 256).to(torch.bfloat16)

    def function(x):
        return (x * 2).amax(-1), (x * 0.01).sum(0)

    for one, other in zip(staxlab.compile(function)(x), function(x), strict=True):
        torch.testing.assert_close(one, other, rtol=2e-2, atol=2e-2)
    (node, *_) = staxlab.explain(function, x).schedule.nodes
    blocks = [name for name in node.buffers if name.endswith("_blocks")]
    assert all(staxlab.explain(function, x).schedule.layouts[name].dtype == torch.float32 for name in blocks)


@pytest.mark.parametrize(
    "extents, most, found",
    [
        ((4096,), 32, Blocks(0, 32, 128)),
        ((1000,), 32, Blocks(0, 10, 100)),
        ((4, 128), 32, Blocks(1, 8, 64)),
        ((64, 7), 16, None),  # one block is 7 or 14 rows: too few rows, or too few blocks
        ((4096, 7), 32, Blocks(0, 4, 1024)),
        ((509,), 32, None),
    ],
)
def test_blocks_of_rows(extents, most, found):
    assert _choose(extents, most) == found
