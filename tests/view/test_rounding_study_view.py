"""The pictures of rounding: every way has its dots, axes say their units, and nothing is left to colour."""

from __future__ import annotations

import pytest

from staxlab import view
from staxlab.measure.rounding_study import rounding_study
from tests.view.reading import read


@pytest.fixture(scope="module")
def study():
    return rounding_study(sizes=(16, 64), rows=32, seed=2, condition_size=64, condition_rows=80)


@pytest.fixture(scope="module")
def drawn(study):
    return read(view.html(study))


def test_a_picture_for_each_example_and_one_for_conditions(drawn):
    pictures = [svg for svg in drawn.find("svg") if svg.find("path", class_="sx-chart-line")]
    assert len(pictures) == 3
    for svg in pictures:
        assert svg.find("title") and svg.find("desc") and "logarithmic" in svg.find("desc")[0].text
    words = " ".join(svg.text for svg in pictures)
    for axis in ("numbers n in a row", "root mean square error (absolute)", "condition number of the row"):
        assert axis in words
    assert "circles: simulated" in words and "squares: eager" in words and "dotted: tree" in words


def test_dots_stand_at_what_was_measured(drawn, study):
    first = study.examples[0]
    dots = [(float(e.attributes["data-x"]), float(e.attributes["data-y"]))
            for e in drawn.find("svg")[0].walk() if e.attributes.get("data-dots") == "eager"]  # fmt: skip
    assert dots == [(n, pytest.approx(first.at("eager", n).deviation, rel=1e-4)) for n in (16, 64)]
    lines = {e.attributes.get("data-curve") for e in drawn.find("path", class_="sx-chart-line")}
    assert {"sequential", "16 ways", "tree", "16 ways, worst case", "worst case, where it leaves a digit"} <= lines


def test_shapes_differ(drawn):
    shapes = {}
    for e in drawn.find("svg")[0].walk():
        if "data-dots" in e.attributes:
            shapes.setdefault(e.attributes["data-dots"], set()).add(e.attributes["d"])
    assert len(shapes) == 2 and all(len(paths) == 1 for paths in shapes.values())
    assert len(set.union(*shapes.values())) == 2


def test_in_a_terminal_it_is_the_table(study):
    assert view.mimebundle(study)["text/plain"] == str(study)
