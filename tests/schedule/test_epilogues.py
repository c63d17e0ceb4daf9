"""Which nodes become the epilogue of a product on a GPU, and why others do not (Section 9.8)."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab.schedule.epilogues import corresponding, over_tiles, refusal
from staxlab.schedule.in_place import obstacle


def filled(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(dtype)


def scheduled(function, *inputs, **options):
    return staxlab.explain(function, *inputs, target="sm_90", options={"matmul": "template"} | options).schedule


def shapes(schedule) -> list[str]:
    """Of each node: the kinds of its members."""
    return ["+".join(member.kind for member in node.members or (node,)) for node in schedule.nodes]


A, B, C = filled(24, 10), filled(10, 36), filled(36)

FUSES = {
    "relu": (lambda a, b, c: torch.relu(a @ b), ["template+pointwise"]),
    "bias and gelu": (lambda a, b, c: F.gelu(a @ b + c), ["template+pointwise"]),
    "merged loops": (lambda a, b, c: (a @ b).flatten() * 2, ["template+pointwise"]),
    "transposed": (lambda a, b, c: ((a @ b).t() + 1).contiguous(), ["template+pointwise"]),
    "kept, too": (lambda a, b, c: ((p := a @ b), p.relu()), ["template+pointwise"]),
    "two readers": (lambda a, b, c: ((p := a @ b).relu(), p.exp()), ["template+pointwise+pointwise"]),
    "a batch": (lambda a, b, c: torch.tanh(a.expand(3, 24, 10) @ b), ["template+pointwise"]),
    "a row": (lambda a, b, c: torch.relu(a[:1] @ b), ["template+pointwise"]),
    "a number": (lambda a, b, c: torch.relu(a[:1] @ b[:, :1]), ["template+pointwise"]),
}

STAYS = {
    "a reduction": (lambda a, b, c: (a @ b).sum(-1), ["template", "reduction"], "no reduction"),
    "a softmax": (lambda a, b, c: torch.softmax(a @ b, -1), None, "no reduction"),
    "a scan": (lambda a, b, c: (a @ b).cumsum(-1), ["template", "scan"], "a call, or a node without rows"),
    "a part": (lambda a, b, c: (a @ b)[:, :5] + 1, ["template", "pointwise"], "120 points are not the 864"),
    "another place": (lambda a, b, c: (a @ b).flip(0) + 1, ["template", "pointwise"], "in another place"),
    "both places": (lambda a, b, c: (p := a[:10] @ b[:, :10]) + p.t(), ["template", "pointwise"], "in another place"),
    "a product": (lambda a, b, c: torch.relu(a @ b) @ b.t(), None, ""),
}


@pytest.mark.parametrize("name", FUSES)
def test_what_is_fused(name):
    function, wanted = FUSES[name]
    assert shapes(scheduled(function, A, B, C)) == wanted
    assert all("template+" not in shape for shape in shapes(scheduled(function, A, B, C, fuse=False)))


@pytest.mark.parametrize("name", STAYS)
def test_what_is_not_and_the_rule(name):
    function, wanted, words = STAYS[name]
    schedule = scheduled(function, A, B, C)
    if wanted is not None:
        assert shapes(schedule) == wanted
    refused = [d.reason for d in schedule.decisions if d.topic == "fuse" and d.choice is None]
    assert any(words in reason for reason in refused)


def test_a_write_in_place_is_no_epilogue():
    """``copy_`` into an input is a call of its own; what is stored there before may be the epilogue's."""

    def f(a, b, c):
        c.copy_((a @ b).relu()[0])
        return c + 1

    nodes = scheduled(f, A, B, C.clone()).nodes
    assert all(node.product is None or all(m.base is None for m in node.members) for node in nodes)


def test_the_accumulated_is_not_written_over_an_operand():
    """An elementwise kernel may take over the memory of what it reads last; a product reads rows that others write."""

    def f(a, b):
        x = a.cumsum(0)
        return torch.relu(x @ b) + 1

    square = filled(32, 32)
    compilation = staxlab.explain(f, square, square, target="sm_90", options={"matmul": "template"})
    schedule = compilation.schedule
    node = next(n for n in schedule.nodes if n.product is not None)
    dying = next(read.buffer for read in node.product.reads if read.buffer.startswith("buf"))
    assert schedule.memory.root(dying) not in {schedule.memory.root(buffer) for buffer in node.buffers}
    assert obstacle(node, frozenset({dying}), node.buffers[0])


def test_a_residual_may_be_overwritten_where_it_is_added():
    """It is read only by the lane that writes there."""

    def f(a, b, r):
        return torch.relu(a @ b + r.cumsum(0))

    given = filled(32, 16), filled(16, 32), filled(32, 32)
    schedule = staxlab.explain(f, *given, target="sm_90", options={"matmul": "template"}).schedule
    node = next(n for n in schedule.nodes if n.product is not None)
    residual = next(read.buffer for read in node.reads if read.buffer.startswith("buf"))
    assert not obstacle(node, frozenset({residual}), node.buffers[0])


def test_an_epilogue_is_written_over_the_loops_of_the_product():
    apart = scheduled(lambda a, b, c: (a @ b).t().flatten() * 2, A, B, C, fuse=False)
    product, reader = apart.nodes
    assert reader.ranges == (36, 24) or len(reader.ranges) <= 2
    found = corresponding((product, reader))
    assert found is not None and found[1].ranges == (24, 36)
    assert found[1].reads[0].index == product.writes[0].index
    assert sum(1 for _ in over_tiles(reader, product)) == 2
    assert refusal((reader, product))[0] == "space"


def test_bytes_and_operations_are_those_of_the_members():
    fused = scheduled(lambda a, b, c: torch.relu(a @ b + c), A, B, C)
    apart = scheduled(lambda a, b, c: torch.relu(a @ b + c), A, B, C, fuse=False)
    (node,) = fused.nodes
    assert node.operations == sum(n.operations for n in apart.nodes)
    assert fused.bytes_read(node) + fused.bytes_written(node) == 4 * (24 * 10 + 10 * 36 + 36 + 24 * 36)
    assert "1 fused" in node.describe() and "24 x 36 | 10" in node.describe()
    assert node.private == ("buf0",)


@pytest.mark.parametrize("choice", ["template", "template-tma"])
def test_the_views_say_what_is_fused_and_what_it_saves(choice):
    compilation = staxlab.explain(
        lambda a, b, c: torch.relu(a @ b + c), filled(64, 64), filled(64, 64), filled(64), target="sm_90",
        options={"matmul": choice},
    )  # fmt: skip
    page = compilation.schedule._repr_mimebundle_()["text/html"]
    assert "fused, on each tile" in page and "buf0 stays in registers" in page and "64 × 64 | 64" in page
    assert "apart they would move 32 KiB more" in page
    kernel = compilation.kernels[0]
    shown = kernel._repr_mimebundle_()["text/html"]
    product = next(line.origins for line in kernel.lines if "tl.dot" in line.text)
    after = next(line.origins for line in kernel.lines if "tl.store" in line.text)
    assert product != after and all(f'data-origins="{next(iter(o))}"' in shown for o in (product, after))
    assert "Line(text" not in shown
