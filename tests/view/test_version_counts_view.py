"""The picture of versions against calls: every curve, under its name, with what it says in words."""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab.measure.version_counts import draw_history, run_history, uniform, version_history
from staxlab.view.version_counts import curves, drawn_points, line_points
from tests.view.reading import check_page, read


def padded():
    history = draw_history(uniform(1, 64), 100, seed=2, guards={"n > 8": lambda n: n > 8})
    wrapped = staxlab.bucketed(
        staxlab.compile(lambda x: x.sum(), backend="eager"), dims={"x": 0}, pad=0.0, buckets=staxlab.Buckets(ratio=4)
    )
    return run_history(history, "ratio 4, compiled", wrapped, lambda n: (torch.ones(n),))


RECORDS = {"drawn": padded(), "one call": version_history((5,)), "only zeros": version_history((0, 0))}


@pytest.mark.parametrize("name", RECORDS)
def test_a_view_is_text_and_self_contained_html(name):
    check_page(RECORDS[name])


def test_lines_are_rules_and_dots_are_counts():
    record = RECORDS["drawn"]
    drawn = read(curves(record))
    lines = {e.attributes["data-curve"] for e in drawn.find("path") if "data-curve" in e.attributes}
    dots = {e.attributes["data-dots"] for e in drawn.find("path") if "data-dots" in e.attributes}
    assert lines == {"expected", "bucketed", "bound", "symbolic"} and dots == {"concrete", "ratio 4, compiled"}
    words = drawn.text
    assert "calls m (count, logarithmic)" in words and "versions K (count, logarithmic)" in words
    last = drawn.find("path", data_dots="concrete")[-1]
    assert (float(last.attributes["data-x"]), float(last.attributes["data-y"])) == (100, record.after(100, "concrete"))
    said = drawn.find("desc")[0].text
    assert "bound: 7 after 1, 7 after 10, 7 after 100." in said


def test_without_a_distribution_the_count_is_a_line():
    drawn = read(curves(version_history((5, 9, 5, 12))))
    lines = {e.attributes["data-curve"] for e in drawn.find("path") if "data-curve" in e.attributes}
    assert lines == {"concrete", "bucketed", "bound", "symbolic"}


def test_a_line_goes_up_where_a_version_is_added():
    record = version_history((5, 5, 9, 5, 12))
    assert line_points(record["concrete"], 5) == ((1, 1), (3, 1), (3, 2), (5, 2), (5, 3))
    assert drawn_points(record["concrete"], 5) == ((1, 1), (2, 1), (3, 2), (4, 2), (5, 3))
