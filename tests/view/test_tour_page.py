"""The tour's page: every target of one captured graph in one explorer, everything else under its heading."""

from __future__ import annotations

import dataclasses

import pytest

from staxlab import view
from staxlab.measure.roofline import Ceiling, Point, Roofline
from staxlab.measure.timing import compare
from staxlab.view.explorer import same_captured_graph, with_other_targets
from staxlab.view.tour import tour_page, write_tour
from tests.view import examples
from tests.view.reading import read, references


@pytest.fixture(scope="module")
def compilation():
    return examples.compilation()


@pytest.fixture(scope="module")
def other_target():
    return dataclasses.replace(examples.compilation(), target="sm_90")


@pytest.fixture(scope="module")
def roofline():
    ceilings = (Ceiling("read", "bandwidth", 50e9), Ceiling("matmul", "throughput", 400e9))
    return Roofline(ceilings=ceilings, points=(Point("Example 1.1 eager", 4e6, 32e6, 2e-3),))


def stages(tree):
    return [e.attributes["data-stage"] for e in tree.walk() if "data-stage" in e.attributes]


def page_tree(records):
    text = tour_page(records).removeprefix("<!doctype html>")
    assert references(text) == []
    return read(text)


def test_targets_of_one_graph_share_an_explorer(compilation, other_target):
    tree = page_tree({"Here": compilation, "There": other_target, "Traffic": compilation.traffic})
    assert [e.text for e in tree.find("h2")] == ["Here and there", "Traffic"]
    keys = stages(tree.find(class_="sx-explorer")[0])
    assert keys.index("asm-sm_90") == keys.index("kernels-sm_90") + 1 == keys.index("asm") + 2
    assert len(keys) == len(set(keys))
    (there,) = [e for e in tree.walk() if e.attributes.get("data-stage") == "kernels-sm_90"]
    assert there.attributes["data-title"] == "Kernel (sm_90)"


def test_another_graph_gets_an_explorer_of_its_own(compilation):
    from staxlab.capture.tracer import trace
    from staxlab.oneliner import define
    from staxlab.options import Options

    function = define("def g(x, w):\n    return (x * w).sum(-1)\n")
    captured = trace(function, tuple(examples.sample()), {}, options=Options())
    different = dataclasses.replace(compilation, name="g", records=compilation.records | {"capture": captured})
    assert not same_captured_graph(compilation, different)
    tree = page_tree({"One": compilation, "Two": different})
    assert [e.text for e in tree.find("h2")] == ["One", "Two"]
    with pytest.raises(ValueError, match="another graph"):
        with_other_targets(compilation, [different])


def test_measurements_stand_beside_the_stages(compilation, roofline):
    pytest.importorskip("matplotlib")
    comparison = compare({"a": lambda: 1, "b": lambda: 2}, readings=3)
    tree = page_tree({"Here": compilation, "Roofline": roofline, "Measured": comparison})
    roof = tree.find(class_="sx-root")[1]
    assert roof.find("svg", role="img") and "Example 1.1 eager" in roof.find("table")[0].text
    measured = tree.find(class_="sx-root")[2]
    assert [row.find("th")[0].text for row in measured.find("tbody")[0].find("tr")] == ["a", "b"]
    assert measured.find("td", class_="sx-num")


def test_a_roofline_needs_no_matplotlib_to_be_drawn(monkeypatch, roofline):
    import sys

    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    drawn = read(view.html(roofline))
    assert drawn.find("div", class_="sx-roofline")[0].find("svg") and "GFLOP/s" in drawn.text


def test_a_tour_without_a_compilation_and_the_written_file(tmp_path, roofline):
    path = write_tour(tmp_path / "tour.html", {"Kernel": examples.kernel()})
    assert "fused_add_relu_mul_sum_0" in path.read_text(encoding="utf-8")
