"""Kernels of program instances that write where an input dies: which may, which may not and why, and their values."""

from __future__ import annotations

import dataclasses

import pytest
import torch

import staxlab
from staxlab.runtime.artifact import load
from tests.schedule.test_memory_plan import check_plan

pytest.importorskip("triton")

from staxlab.codegen.triton.interpreter import interpret


def explained(function, *inputs, **options):
    return staxlab.explain(function, *inputs, target="sm_90", options=options)


def takings(compilation) -> list[tuple]:
    """(buffer, in whose memory or None, why) of every decision."""
    decisions = [d for d in compilation.schedule.memory.decisions if d.topic == "in place"]
    return [(d.subject, d.choice, d.reason) for d in decisions]


def taken(compilation, kind: str) -> list[str]:
    """Kinds of the nodes that write over a buffer that dies there."""
    nodes = {buffer: node for node in compilation.schedule.nodes for buffer in node.buffers}
    return [nodes[buffer].kind for buffer, choice, _ in takings(compilation) if choice and nodes[buffer].kind == kind]


def values(compilation, *inputs) -> tuple[torch.Tensor, ...]:
    launchers = {
        kernel.name: lambda *tensors, kernel=kernel: interpret(kernel, tensors)
        for kernel in compilation.kernels
        if kernel.language == "triton"
    }
    return load(compilation.wrapper, launchers).call(list(inputs))


def agrees(function, *inputs, **options):
    compilation = explained(function, *inputs, **options)
    check_plan(compilation.schedule)
    wanted = function(*inputs)
    wanted = wanted if isinstance(wanted, tuple) else (wanted,)
    for found, one in zip(values(compilation, *inputs), wanted, strict=True):
        torch.testing.assert_close(found, one, rtol=1e-4, atol=1e-4)
    return compilation


def scores(q, k):
    return torch.softmax(q @ k.t(), -1)


def normed(x, w):
    return torch.nn.functional.layer_norm(x @ w, (w.shape[1],))


def divided(x):
    c = x.cumsum(-1)
    return c / (c * c).sum(-1, keepdim=True)


def divided_by_columns(x):
    c = x.cumsum(-1)
    return c / (c * c).sum(0, keepdim=True)


def scaled(x, w):
    h = x @ w
    return torch.tanh(h * h.amax(-1, keepdim=True)) + h


@pytest.mark.parametrize("function", [scores, normed, scaled])
@pytest.mark.parametrize("columns", [33, 128, 1500])
def test_rows_that_are_held_stand_where_what_they_are_made_of_stood(function, columns):
    x, w = torch.randn(9, 16), torch.randn(16, columns) / 4
    compilation = agrees(function, x, w.t().contiguous() if function is scores else w)
    assert taken(compilation, "fused") == ["fused"]
    plan = compilation.schedule.memory
    assert plan.peak_bytes == 9 * columns * 4, "the product and what is made of it are one array"


@pytest.mark.parametrize("function", [divided, divided_by_columns])
@pytest.mark.parametrize("shape", [(7, 40), (40, 7), (3, 5000), (65, 90)])
def test_a_scan_and_what_follows(function, shape):
    compilation = agrees(function, torch.rand(shape) + 0.5)
    assert taken(compilation, "fused") == ["fused"]


def test_rows_that_are_walked_along_are_written_in_the_last_pass():
    compilation = agrees(divided, torch.rand(132, 33000) + 0.5)
    kernel = compilation.kernels[-1]
    assert kernel.launch["form"] == "looped" and "Times that a row is walked along: 2" in kernel.source
    assert taken(compilation, "fused") == ["fused"]


def test_a_scan_writes_over_what_it_reads():
    compilation = agrees(lambda x, w: (x @ w).cumsum(-1), torch.randn(5, 8), torch.randn(8, 30))
    assert taken(compilation, "scan") == ["scan"]


def other_subscripts(x):
    c = x.cumsum(-1)
    return c.roll(1, -1) * c.sum(-1, keepdim=True)


def independent(x):
    c = x.cumsum(-1)
    return (c * x).sum(-1), x * 2


def again(x):
    h = torch.tanh(x.cumsum(-1))
    return h, h / h.sum(-1, keepdim=True)


def of_rows(x, y):
    v = x.cumsum(-1)  # one element for each row of y
    s = y.sum(-1) + v
    return s, y * s[:, None]


REFUSED = {
    "other subscripts": (other_subscripts, [(6, 50)], "other subscripts"),
    "nothing orders them": (independent, [(6, 50)], "does not wait"),
    "values of rows": (of_rows, [(64,), (64, 50)], "every lane"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_may_not_and_why(case):
    function, shapes, why = REFUSED[case]
    compilation = agrees(function, *(torch.rand(shape) + 0.5 for shape in shapes))
    fused = [node for node in compilation.schedule.nodes if node.kind == "fused"]
    assert fused, "nothing shares a kernel"
    found = [(choice, reason) for buffer, choice, reason in takings(compilation) if buffer in fused[-1].buffers]
    assert found and all(choice is None for choice, _ in found)
    assert any(why in reason for _, reason in found), found


def test_what_is_made_again_in_a_later_pass_is_not_written_over_before():
    """The hyperbolic tangent may not stand where its argument stood, the last result may."""
    compilation = agrees(again, torch.rand(6, 50) + 0.5)
    first, second = takings(compilation)
    assert first[1] is None and "a later pass along the row" in first[2]
    assert second[1] == "buf0"


def test_a_program_may_overwrite_its_input_by_its_own_softmax():
    def function(x):
        x.copy_(torch.softmax(x, -1))
        return x.sum()

    x = torch.randn(6, 40)
    mine, eager = x.clone(), x.clone()
    compilation = explained(function, x.clone())
    (found,), wanted = values(compilation, mine), function(eager)
    torch.testing.assert_close(mine, eager)
    torch.testing.assert_close(found, wanted)
    assert compilation.schedule.memory.written_back


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.int64])
def test_a_cache_is_written_where_it_stands(dtype):
    """The scatter's base is the input: neither the copy before it nor the one after it runs. Also in half precision,
    which is computed with in float32: a copy keeps its bits."""

    def function(cache, positions, k):
        cache.index_copy_(0, positions, k * 2)
        return cache.sum(0)

    positions = torch.tensor([5, 2])
    cache, k = (torch.randn(9, 40) * 9).to(dtype), (torch.randn(2, 40) * 9).to(dtype)
    mine, eager = cache.clone(), cache.clone()
    compilation = explained(function, cache.clone(), positions, k)
    check_plan(compilation.schedule)
    (found,), wanted = values(compilation, mine, positions, k), function(eager, positions, k)
    assert torch.equal(mine, eager)
    torch.testing.assert_close(found, wanted)
    memory = compilation.schedule.memory
    assert len(memory.written_back) == len(memory.skipped) == 1 and "copy_(" not in compilation.wrapper.source


def test_a_copy_keeps_the_dtype_that_memory_holds():
    """Halves are numbers in float32 while a kernel has them, whichever half they are."""
    from staxlab.schedule.in_place import only_copies

    for function, same in ((lambda x: x.clone() + 0 * 0, True), (lambda x: x.to(torch.bfloat16), False)):
        compilation = explained(function, torch.randn(8, 8).half())
        (node,) = compilation.schedule.nodes
        layout = compilation.schedule.layouts["x"]
        assert only_copies(node, "x", layout) is same
        assert not only_copies(node, "x", dataclasses.replace(layout, dtype=torch.int16))  # not what is stored


def test_threads_are_no_more_than_elements():
    """Else several threads would load an element that one of them writes over."""
    from staxlab.codegen.triton.generate import triton_kernel

    compilation = explained(scores, torch.randn(64, 16), torch.randn(64, 16))
    node = next(node for node in compilation.schedule.nodes if node.kind == "fused")
    for blocks, warps in (({"XBLOCK": 1, "R0_BLOCK": 64}, 8), ({"XBLOCK": 4, "R0_BLOCK": 64}, 32)):
        kernel = triton_kernel(compilation.schedule, node, "_0", compilation.device, (blocks, warps, 1))
        assert 32 * kernel.launch["num_warps"] == blocks["XBLOCK"] * blocks["R0_BLOCK"]
    for kernel in compilation.kernels:
        if kernel.language == "triton":
            elements = 1
            for size in (*kernel.launch["constants"].values(), 64):
                elements *= size
            assert kernel.launch["num_warps"] == 1 or 32 * kernel.launch["num_warps"] <= elements
