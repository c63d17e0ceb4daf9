"""Cache lines: counted from the subscripts, against addresses worked out one by one."""

from __future__ import annotations

import json

import pytest
import torch

import staxlab
from staxlab.errors import OptionError
from staxlab.options import host_instruction_set
from staxlab.view.cache_lines import order_figure
from staxlab.view.document import SIZE_CAP
from tests.view.reading import read, references, stripped

vectors = pytest.mark.skipif(host_instruction_set() == "scalar", reason="needs vector instructions")


def kernel_of(function, *inputs):
    return staxlab.explain(function, *inputs).kernels[0]


def transposed():
    return kernel_of(lambda x, y: x.t() + y, torch.randn(2048, 512), torch.randn(512, 2048))


def walks(order):
    return {(walk.role, walk.buffer): walk for walk in order.walks}


@vectors
def test_a_tile_uses_every_line_whole_and_no_loop_order_does():
    """Example 6.1."""
    kernel = transposed()
    lines = kernel.cache_lines()
    planned, *others = lines.orders
    lanes = planned.lanes
    assert planned.planned and planned.tile is not None and len(others) == 2
    full = 4 * lanes / 64  # of a line, by one vector
    for walk in planned.walks:
        assert walk.lines_per_step == 1 and walk.used == full
    for order in others:
        wasteful = [walk for walk in order.walks if walk.lines_per_step == lanes]
        assert wasteful and all(walk.used == 4 / 64 and not walk.stays for walk in wasteful)
        assert all("wasted" in walk.verdict() for walk in wasteful)
    assert planned.lines < min(order.lines for order in others)


@vectors
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_lines_are_those_of_the_addresses(dtype):
    x = torch.randn(64, 300).to(dtype)
    lines = kernel_of(lambda x: (x + 1).t().contiguous(), x).cache_lines()
    for order in lines.orders:
        for walk in order.walks:
            assert walk.itemsize == x.element_size()
            for step, touch in enumerate(walk.steps):
                addresses = [element * walk.itemsize // 64 for element in touch.elements]
                assert walk.lines(step) == tuple(dict.fromkeys(addresses))
                assert max(touch.elements) < x.numel()
    read_ = walks(lines.orders[-1])["read", "x"]
    apart = [b - a for a, b in zip(read_.steps[0].elements, read_.steps[0].elements[1:], strict=False)]
    assert set(apart) in ({1}, {300})


@vectors
def test_rows_of_a_scan_that_go_side_by_side_are_no_tile():
    for axis in (0, 1):
        planned = kernel_of(lambda x, axis=axis: x.cumsum(axis), torch.randn(512, 1024)).cache_lines().orders[0]
        assert planned.tile is None and walks(planned)["read", "x"].lines_per_step <= 1


@vectors
def test_a_sum_down_the_columns_walks_along_rows():
    lines = kernel_of(lambda x: x.sum(0), torch.randn(4096, 1024)).cache_lines()
    planned, other = lines.orders[:2]
    assert walks(planned)["read", "x"].lines_per_step == 1 and walks(other)["read", "x"].lines_per_step == planned.lanes
    assert walks(other)["read", "x"].between == 4096


def test_rows_on_the_stack_and_subscripts_that_are_data_are_left_out():
    fused = kernel_of(lambda x: torch.softmax(x, -1), torch.randn(64, 1024))
    assert {walk.buffer for walk in fused.cache_lines("op1").orders[0].walks} <= {"x"} | {
        argument.buffer for argument in fused.arguments
    }
    gathered = kernel_of(lambda x, i: x[i] * 2, torch.randn(4096), torch.randint(0, 4096, (4096,)))
    lines = gathered.cache_lines()
    assert len(lines.left_out) == 1 and "not known beforehand" in str(lines)
    with pytest.raises(OptionError, match="no node 'op7'"):
        fused.cache_lines("op7")
    with pytest.raises(OptionError, match="a product in blocks"):
        kernel_of(lambda x: x @ x.t(), torch.randn(32, 32)).cache_lines()
    with pytest.raises(OptionError, match="no loops"):
        staxlab.explain(lambda x: x + 1, torch.randn(64), target="sm_90").kernels[0].cache_lines()


# -- pictures ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "shapes"),
    [
        (lambda x, y: x.t() + y, ((2048, 512), (512, 2048))),
        (lambda x: x.sum(0), ((300, 70),)),
        (lambda x: x.sum(-1), ((300, 70),)),
        (lambda x: x * 2, ((1000,),)),
        (lambda x: x + 1, ((3,),)),
    ],
)
def test_a_view_is_text_and_self_contained_html(function, shapes):
    lines = kernel_of(function, *map(torch.randn, shapes)).cache_lines()
    bundle = lines._repr_mimebundle_()
    html = bundle["text/html"]
    assert "drawing failed" not in html and len(html) < SIZE_CAP and bundle["text/plain"] == str(lines)
    assert references(html) == [] and not any("hidden" in e.attributes for e in read(stripped(html)).walk())


@vectors
def test_a_cell_is_lit_when_its_element_is_used():
    order = transposed().cache_lines().orders[0]
    (figure,) = read(order_figure(order)).find("figure")
    steps = int(figure.attributes["data-steps"])
    assert steps == min(16, order.lanes) and len(json.loads(figure.attributes["data-words"])) == steps + 1
    for svg, walk in zip(figure.find("svg"), order.walks, strict=True):
        assert svg.attributes["data-buffer"] == walk.buffer
        lit = [e.attributes["data-lit"] for e in svg.find("rect") if e.attributes.get("data-used", "0") != "0"]
        assert len(lit) == sum(len(touch.elements) for touch in walk.steps[:steps])
        assert sorted(set(map(int, lit))) == list(range(1, steps + 1))
