"""The passes take steps in proportion to the graph, counted and not timed; the benchmark writes what it measured."""

from __future__ import annotations

import json
import math
from xml.etree import ElementTree

import pytest

from benchmarks import transforms
from staxlab import view
from staxlab.measure import pass_costs
from staxlab.transform import rewrite
from tests.view.reading import read


def ratios(family, small, large):
    one, other = (transforms.work(transforms.graph_of(family, nodes)) for nodes in (small, large))
    return {name: other[name] / one[name] for name in one if one[name]}, other


@pytest.mark.parametrize("family", transforms.FAMILIES)
def test_twice_the_nodes_take_twice_the_steps(family):
    grown, counts = ratios(family, 150, 300)
    assert grown.pop("rounds") == 1, "the number of rounds does not depend on the size"
    for name, ratio in grown.items():
        assert ratio < 2.15, f"{name}: {ratio:.2f} times as many"
    assert counts["lines"] > counts["nodes"] > 300


@pytest.mark.slow
@pytest.mark.parametrize("family", ["mixed", "one wide node", "dead code"])
def test_eight_times_the_nodes_take_eight_times_the_steps(family):
    grown, _ = ratios(family, 250, 2000)
    assert grown["lines"] < 8.6 and grown["nodes"] < 8.6 and grown["applications"] < 8.6


@pytest.mark.slow
def test_five_thousand_nodes_reach_a_fixed_point_in_few_rounds():
    log = rewrite.transform(transforms.graph_of("mixed", 5000))
    assert log.rounds <= 4 and transforms.applications(log) < 5000
    assert log.measures[-1][0] == 0 and log.measures[-1][2] <= log.measures[0][2]


def test_counting_notices_a_pass_that_is_quadratic(monkeypatch):
    """The planted mistake: a pass that walks the whole graph for every node."""
    from staxlab.transform import passes

    def slow(graph):
        for _ in graph:
            for _ in graph:
                pass
        return []

    monkeypatch.setattr(passes, "PASSES", (*passes.PASSES, rewrite.Pass("Slow", slow)))
    grown, _ = ratios("pointwise", 150, 300)
    assert grown["nodes"] > 3


def test_every_family_keeps_its_pass_busy():
    for family in set(transforms.FAMILIES) - {"pointwise", "regions"}:
        log = rewrite.transform(transforms.graph_of(family, 100))
        assert transforms.applications(log) >= 20, family


def test_the_exponent_is_the_slope():
    assert pass_costs.exponent([(n, n**2 / 7) for n in (10, 100, 1000)]) == pytest.approx(2)
    assert pass_costs.exponent([(n, 3.0 * n) for n in (10, 40)]) == pytest.approx(1)
    assert math.isnan(pass_costs.exponent([(10, 1.0)]))
    small_ones_are_left_out = pass_costs.PassCosts({"a": ((10, 10, 5.0), (1000, 1000, 1.0), (4000, 4000, 4.0))})
    assert small_ones_are_left_out.exponent("a") == pytest.approx(1)


def test_the_committed_run_covers_all_sizes_and_families(repository):
    """5,000 nodes are measured, not interpolated; the exponents say that nothing is quadratic."""
    costs = pass_costs.load(repository / "benchmarks/results/transforms_cpu.json")
    assert costs.complete and set(costs.points) == set(transforms.FAMILIES)
    for family, measured in costs.points.items():
        assert {100, 300, 1000, 3000, 5000, 10000} <= {size for size, _, _ in measured}, family
        assert costs.exponent(family) < 1.5, family
    page = read(view.html(costs))
    (picture,) = [e for e in page.find("svg") if e.attributes.get("role") == "img"]
    assert "composites" in picture.attributes["aria-label"] and "exponent" in page.text
    with pytest.raises(KeyError):
        costs.seconds("mixed", 7)


def test_a_run_is_written_as_data_and_as_a_plot(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    out = tmp_path / "transforms.json"
    command = ["--families", "identities,mixed", "--sizes", "20,40", "--repeats", "1", "--out", str(out)]
    assert transforms.main(command) == 0
    record = json.loads(out.read_text())
    assert record["format"] == transforms.FORMAT and record["machine"]["processor"]
    rows = record["results"]["identities"]
    assert [row["size"] for row in rows] == [20, 40] and rows[1]["applications"] > rows[0]["applications"]
    drawing = ElementTree.parse(out.with_suffix(".svg")).getroot()
    text = "".join(drawing.itertext())
    assert "nodes of the graph" in text and "identities" in text and drawing.get("role") == "img"
    assert "exponent" in capsys.readouterr().out


def test_unknown_families_and_sizes_are_refused(capsys):
    for command in (["--families", "none"], ["--sizes", "ten"], ["--sizes", "3"]):
        with pytest.raises(SystemExit):
            transforms.main(command)
    assert "families: pointwise" in capsys.readouterr().err
