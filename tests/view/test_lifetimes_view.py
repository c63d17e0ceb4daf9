"""The chart of buffer lifetimes, the picture of the arena, and the comparison of orders."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab import view
from staxlab.schedule.execution_order import OrderComparison
from staxlab.view.document import SIZE_CAP
from staxlab.view.lifetimes import LOOKS, arena_picture, lifetime_chart
from tests.view.reading import read, references, stripped


def block(x, a, b):
    h = F.layer_norm(x, x.shape[-1:])
    return h + F.gelu(h @ a) @ b


@pytest.fixture(scope="module")
def compilation():
    generator = torch.Generator().manual_seed(0)
    inputs = [torch.randn(*shape, generator=generator) for shape in ((96, 64), (64, 128), (128, 64))]
    return staxlab.explain(block, *inputs, options={"fuse": False})


@pytest.fixture(scope="module")
def plan(compilation):
    return compilation.schedule.memory


def test_a_view_is_text_and_self_contained_html(plan, compilation):
    for record in (plan, compilation.orders()):
        bundle = record._repr_mimebundle_()
        html = bundle["text/html"]
        assert "drawing failed" not in html and len(html) < SIZE_CAP and bundle["text/plain"] == record.format()
        assert view.html(record) == html and references(html) == [] and " at 0x" not in html
        assert not any("hidden" in e.attributes for e in read(stripped(html)).walk())


def test_every_buffer_is_a_bar_over_the_kernels_during_which_it_is_alive(plan):
    picture = read(lifetime_chart(plan))
    bars = {e.attributes["data-buffer"]: e for e in picture.walk() if "data-buffer" in e.attributes}
    assert set(bars) == set(plan.placements)
    boxes = {name: next(e for e in bar.walk() if e.tag == "rect").attributes for name, bar in bars.items()}
    width = (760 - 190 - 24) / len(plan.steps)
    for life in plan.lifetimes:
        assert float(boxes[life.buffer]["x"]) == pytest.approx(190 + life.first * width, abs=0.1)
        assert float(boxes[life.buffer]["width"]) == pytest.approx((life.last - life.first + 1) * width, abs=0.2)
        said = bars[life.buffer].attributes["aria-label"]
        assert f"{plan.placements[life.buffer].bytes:,} bytes" in said and plan.steps[life.first] in said


def test_the_peak_is_marked_and_said(plan):
    picture = read(lifetime_chart(plan))
    (mark,) = [e for e in picture.walk() if "data-peak" in e.attributes]
    assert int(mark.attributes["data-peak"]) == plan.live_bytes.index(max(plan.live_bytes))
    (svg,) = picture.find("svg")
    assert f"At most {plan.peak_bytes:,} bytes are allocated" in svg.attributes["aria-label"]
    assert "allocated (bytes)" in svg.text and "kernel (number, in the order they run)" in svg.text


def test_kinds_differ_by_more_than_colour(plan):
    letters = [look[0] for look in LOOKS.values()]
    assert len(set(letters)) == len(letters) == len({look[3] for look in LOOKS.values()})
    text = read(lifetime_chart(plan)).text
    for kind in {place.kind for place in plan.placements.values()}:
        assert kind in text


def test_boxes_of_the_arena_lie_where_the_plan_has_them(plan):
    assert plan.arena_span is not None
    boxes = {
        e.attributes["data-arena"]: e.attributes
        for e in read(arena_picture(plan)).walk()
        if "data-arena" in e.attributes
    }
    placed = {place.buffer: place for place in plan.placements.values() if place.kind == "arena"}
    assert set(boxes) == set(placed)
    assert all(int(boxes[name]["data-offset"]) == place.offset for name, place in placed.items())
    tops = {name: float(box["y"]) for name, box in boxes.items()}
    lowest = min(placed, key=lambda name: placed[name].offset)
    assert tops[lowest] == max(tops.values()) or placed[lowest].bytes > min(p.bytes for p in placed.values())


def test_each_order_has_a_chart_and_a_button(compilation):
    record = compilation.orders()
    assert isinstance(record, OrderComparison) and record.chosen in record.plans
    page = read(view.html(record))
    (figure,) = [e for e in page.walk() if "sx-switches" in e.attributes.get("class", "").split()]
    for name in record.plans:
        assert f'"{name}"' in figure.attributes["data-choices"]
    charts = [e for e in page.find("svg") if "sx-lifetimes" in e.attributes["class"]]
    assert len(charts) == len(record.plans)
    assert "in no order" in record.format() or record.proved is None


def test_the_order_of_the_schedule_is_no_worse_than_any_other(compilation):
    record = compilation.orders()
    chosen = record.plans[record.chosen]
    assert chosen.steps == compilation.schedule.memory.steps
    assert all(sorted(plan.steps) == sorted(chosen.steps) for plan in record.plans.values())
    assert chosen.peak_bytes <= record.plans["as written"].peak_bytes


def test_a_plan_of_nothing_is_drawn():
    plan = staxlab.explain(lambda x: x, torch.randn(4)).schedule.memory
    assert "No kernel runs" in view.html(plan) and "peak 0 bytes" in str(plan)


def test_bars_in_text_show_who_is_alive(plan):
    first = plan.lifetimes[0]
    line = next(line for line in str(plan).splitlines() if f"| {first.buffer}:" in line)
    bar = line[1 : 1 + len(plan.steps)]
    assert bar == "".join("=" if first.first <= k <= first.last else "." for k in range(len(plan.steps)))
