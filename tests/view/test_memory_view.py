"""Memory over time, drawn: every curve with its peak, the turn, and operators that can be pointed at."""

from __future__ import annotations

import re

import pytest
import torch
import torch.nn.functional as F

from staxlab import view
from staxlab.autodiff.memory import MemoryTimeline, Occupancy, Step, Storage, memory_timeline
from staxlab.loops.lowering import basis
from staxlab.loops.lowering.kinds import kind_of
from staxlab.view.memory import MOST_BANDS, STROKES, _style
from tests.autodiff.programs import recorded
from tests.view.reading import read, references, stripped


def by_hand(steps, turn, primal_bytes, *curves):
    named = tuple(Step(f"s{k}", k >= turn, frozenset({k})) for k in range(steps))
    return MemoryTimeline(named, turn, primal_bytes, curves)


CURVES = (
    Occupancy("eager", 4, (Storage("x", 80, 0, 2, True), Storage("y", 80, 1, 1))),
    Occupancy("min cut", 4, (Storage("x", 80, 0, 3, True), Storage("g", 40, 3, 3))),
)
RECORDS = {
    "by hand": by_hand(4, 2, 100, *CURVES),
    "large inputs": by_hand(4, 2, 10**9, *CURVES),
    "no backward pass": by_hand(2, 2, 0, Occupancy("eager", 2, (Storage("x", 8, 0, 1),))),
    "nothing": by_hand(0, 0, 5, Occupancy("eager", 0, ())),
    "many operators": by_hand(MOST_BANDS + 1, 100, 5, Occupancy("eager", MOST_BANDS + 1, (Storage("x", 8, 0, 9),))),
}


@pytest.fixture(scope="module")
def example():
    x, w = torch.randn(32, 64), torch.randn(64, 64, requires_grad=True)
    _, joint, _ = recorded(lambda x, w: F.gelu(x @ w).sum(), [x, w], basis())
    return memory_timeline(joint, kind_of=kind_of)


@pytest.mark.parametrize("name", [*RECORDS, "example"])
def test_it_prints_and_draws_and_needs_nothing_else(name, example):
    record = RECORDS.get(name, example)
    bundle = view.mimebundle(record)
    assert bundle["text/plain"].strip() and repr(record)
    html = bundle["text/html"]
    assert "drawing failed" not in html and html == view.html(record) and references(html) == []
    tree = read(html)
    for drawing in tree.find("svg"):
        assert drawing.attributes.get("aria-label") and drawing.find("title") and drawing.find("desc")
        assert "alive (bytes)" in drawing.text and "operator (number" in drawing.text
    assert record.format().splitlines()[1].strip() in read(stripped(html)).text


def points(path):
    """The heights a curve runs through, one for each operator."""
    return [float(y) for y in re.findall(r"V([\d.]+)", path)]


@pytest.mark.parametrize("name", ["by hand", "example", "many operators"])
def test_curves_are_as_high_as_what_is_alive(name, example):
    record = RECORDS.get(name, example)
    (drawing,) = read(view.html(record)).find("svg", class_="sx-memory")
    drawn = {e.attributes["data-curve"]: e for e in drawing.walk() if "data-curve" in e.attributes}
    assert list(drawn) == [curve.name for curve in record.curves]
    bottom = float(re.search(r"V([\d.]+)H", drawing.find("path", class_="sx-chart-axis")[0].attributes["d"]).group(1))
    tall = {}
    for curve in record.curves:
        heights = [bottom - y for y in points(drawn[curve.name].attributes["d"])]
        assert len(heights) == len(record.steps)
        tall |= dict(zip(curve.live, heights, strict=True))
    scale = max(tall.values()) / max(tall)
    for size, height in tall.items():
        assert height == pytest.approx(size * scale, abs=0.2)
    marks = {e.attributes["data-peak"]: e.text for e in drawing.walk() if "data-peak" in e.attributes}
    for curve in record.curves:
        assert f"{curve.peak:,} bytes while %{record.steps[curve.peak_step].name}" in marks[curve.name]


def test_operators_say_what_is_alive_and_are_linked(example):
    (drawing,) = read(view.html(example)).find("svg", class_="sx-memory")
    bands = drawing.find("g", class_="sx-lane")
    assert [int(band.attributes["data-step"]) for band in bands] == list(range(len(example.steps)))
    for band, step, k in zip(bands, example.steps, range(len(bands)), strict=True):
        said = band.attributes["aria-label"]
        assert said.startswith(f"%{step.name}, {'backward' if step.is_backward else 'forward'}")
        assert all(f"{curve.name} {curve.live[k]:,}" in said for curve in example.curves)
        assert band.attributes.get("data-origins", "") == " ".join(map(str, sorted(step.origins)))
    assert not read(view.html(RECORDS["many operators"])).find("g", class_="sx-lane")


def test_inputs_are_a_line_where_it_fits_and_words_everywhere():
    for name, drawn in (("by hand", 1), ("large inputs", 0)):
        (drawing,) = read(view.html(RECORDS[name])).find("svg", class_="sx-memory")
        assert len([e for e in drawing.walk() if e.attributes.get("data-line-of") == "inputs"]) == drawn
        assert f"inputs and constants: {RECORDS[name].primal_bytes:,} bytes" in drawing.text


def test_curves_differ_by_more_than_colour():
    styles = [_style(k) for k in range(len(STROKES))]
    assert len({(s["stroke_width"], s["stroke_dasharray"]) for s in styles}) == len(styles)


def test_the_peak_is_taken_apart(example):
    tables = read(view.html(example)).find("table")
    text = next(t.text for t in tables if "In memory at the peak" in t.text)
    assert "%gelu_backward 8 KiB" in text and "%mm_0 16 KiB" in text
