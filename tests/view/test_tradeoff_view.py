"""The chart of storage against computation."""

from __future__ import annotations

import pytest

from staxlab import view
from staxlab.autodiff.tradeoff import trade_off
from staxlab.view.document import SIZE_CAP
from staxlab.view.tradeoff import decades, trade_off_chart
from tests.view.reading import read, references, stripped


@pytest.mark.parametrize("length", [1, 2, 30, 400])
def test_a_view_is_text_and_self_contained_html(length):
    record = trade_off(length)
    bundle = record._repr_mimebundle_()
    html = bundle["text/html"]
    assert "drawing failed" not in html and len(html) < SIZE_CAP and bundle["text/plain"] == record.format()
    assert view.html(record) == html and references(html) == [] and " at 0x" not in html
    assert not any("hidden" in e.attributes for e in read(stripped(html)).walk())


def test_every_schedule_is_a_point_and_says_what_it_pays():
    record = trade_off(60)
    picture = read(trade_off_chart(record))
    points = [e for e in picture.find("path") if "data-point" in e.attributes]
    assert len(points) == len(record.points)
    assert sorted(int(e.attributes["data-slots"]) for e in points) == sorted(p.slots for p in record.points)
    said = " ".join(e.text for e in points)
    assert "recompute all: 1 slot, 1,770 forward evaluations" in said
    (svg,) = picture.find("svg")
    assert "save all: 60 slots, 59 forward evaluations" in svg.attributes["aria-label"]
    assert "slots (count, logarithmic)" in svg.text and "forward steps (count, logarithmic)" in svg.text


def test_families_differ_by_more_than_colour():
    picture = read(trade_off_chart(trade_off(60)))
    lines = {e.attributes["data-family"]: e.attributes for e in picture.find("path") if "data-family" in e.attributes}
    assert "stroke-dasharray" in lines["uniform segments"] and "stroke-dasharray" not in lines["binomial"]
    shapes = {
        e.attributes["data-point"]: e.attributes["class"] for e in picture.find("path") if "data-point" in e.attributes
    }
    assert len(set(shapes.values())) == 3


def test_ticks():
    assert decades(1, 200) == [1, 2, 5, 10, 20, 50, 100, 200]
    assert decades(3, 20000) == [10, 100, 1000, 10000] and decades(1, 1) == [1]
