"""The pictures of Section 9.8: self-contained, in words as well, and of what the models say."""

from __future__ import annotations

import json
import random

import pytest

from staxlab import view
from staxlab.measure.epilogue_saving import epilogue_saving
from staxlab.measure.grouped_numbering import l2_traffic, numbering
from staxlab.measure.matrix_traffic import tile_traffic
from staxlab.measure.pebbles import replay, row_by_row, tiled
from staxlab.measure.pipeline_stages import pipeline, stage_budget
from staxlab.measure.projections import brick, projections
from staxlab.measure.tensor_cores import ridge_table
from staxlab.view.grouped_numbering import grid, numbering_figure
from staxlab.view.log_plots import log_plot, power_ticks
from staxlab.view.matrix_traffic import traffic_chart
from staxlab.view.pipeline_stages import budget_chart, pipeline_chart
from staxlab.view.plots import Curve
from staxlab.view.projections import corner, projections_figure
from tests.view.reading import check_page, read

CHAPTER = tile_traffic(4096, 4096, 4096, tile=(128, 128, 32), itemsize=4, capacity=48 * 1024)
POINTS = projections(random.Random(1).sample(sorted(brick(5, 4, 4).points), 26))
RECORDS = {
    "traffic": CHAPTER,
    "no square tile": CHAPTER.with_tile((64, 256, 32)),
    "no bound": tile_traffic(4, 4, 4, tile=(2, 2, 1), itemsize=4, capacity=64),
    "epilogue": epilogue_saving(4096, 4096, 4096),
    "points": POINTS,
    "no points": projections([]),
    "a brick": brick(2, 3, 4),
    "many points": brick(12, 12, 12),
    "pebbles": replay(8, 8, 8, 24, tiled(8, 8, 8, (4, 4, 1))),
    "three pebbles": replay(2, 2, 2, 3, row_by_row(2, 2, 2)),
    "numbering": numbering(6, 6, 2, 8),
    "row-major": numbering(3, 4, 1, 12),
    "many blocks": numbering(32, 32, 8, 128),
    "too many blocks": numbering(64, 64, 8, 528),
    "cache": l2_traffic(6, 6, 4, window=8, capacity=20, bytes_a=1, bytes_b=1),
    "pipeline": pipeline(20, 1, latency=6, transfer=1, compute=2).compared((1, 2, 3, 4)),
    "one step": pipeline(1, 3, latency=0, transfer=0, compute=1),
    "budget": stage_budget((128, 128, 64), itemsize=2, epilogue_bytes=32 << 10),
    "ridges": ridge_table("sm_90"),
    "roofline": ridge_table("sm_90").roofline((512, 4096)),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_view_is_text_and_self_contained_html(name):
    check_page(RECORDS[name])


def test_the_traffic_has_bound_capacity_and_units():
    picture = read(traffic_chart(CHAPTER))
    curves = {e.attributes["data-curve"] for e in picture.find("path") if "data-curve" in e.attributes}
    assert curves == {"tiles", "bound of Theorem 9.1", "every element once"}
    dots = [e for e in picture.find("circle") if "data-x" in e.attributes]
    assert len(dots) == 13 + 2 + 2
    assert "side T of a square tile (elements)" in picture.text and "elements moved (count)" in picture.text
    assert "capacity: T = 192" in picture.text and "128 x 128" in picture.text
    (hatched,) = [e for e in picture.find("path") if "data-beyond" in e.attributes]
    assert hatched.attributes["data-beyond"] == "192"
    small = read(traffic_chart(tile_traffic(64, 64, 64, tile=(16, 16, 16), capacity=32)))  # a tile of 1 x 1 takes 33
    assert "no tile fits on the chip" in small.find("svg")[0].attributes["aria-label"]
    assert [e.attributes["data-beyond"] for e in small.find("path") if "data-beyond" in e.attributes] == ["1"]
    silent = read(traffic_chart(RECORDS["no bound"]))
    assert "Theorem 9.1 says nothing" in silent.find("svg")[0].attributes["aria-label"]


@pytest.mark.parametrize(("low", "high", "base"), [(1, 1, 10), (0.5, 3e6, 2), (1e-9, 1e12, 10), (1, 2, 10)])
def test_ticks_are_powers_and_few(low, high, base):
    ticks = power_ticks(low, high, base)
    assert len(ticks) <= 9 and all(low * 0.99 <= t <= high * 1.01 for t in ticks)


def test_what_a_logarithm_does_not_know_is_left_out():
    picture = read(log_plot("t", "s", ("x", "y"), [Curve("c", ((0.0, 1.0), (1.0, 2.0), (2.0, 0.0), (3.0, 4.0)))]))
    assert [e.attributes["data-x"] for e in picture.find("circle")] == ["1", "3"]


def test_the_blocks_are_those_of_the_numbering():
    record = numbering(6, 6, 2, 8)
    picture = read(grid(record, list(range(9))))
    cells = {int(e.attributes["data-pid"]): e for e in picture.find("rect") if "data-pid" in e.attributes}
    assert sorted(cells) == list(range(36))
    filled = {pid for pid, cell in cells.items() if cell.has("class_", "sx-cell-covered")}
    assert filled == set(range(8))
    assert cells[0].attributes["data-lit"] == "1 2 3 4 5 6 7 8" and cells[7].attributes["data-lit"] == "8"
    assert "data-lit" not in cells[8].attributes
    rows = [e for e in picture.find("rect") if "data-a" in e.attributes and e.has("class_", "sx-cell-covered")]
    columns = [e for e in picture.find("rect") if "data-b" in e.attributes and e.has("class_", "sx-cell-covered")]
    assert (len(rows), len(columns)) == (2, 4)
    across = {float(cells[pid].attributes["x"]) for pid in (0, 2, 4, 6)}
    assert len(across) == 4 and cells[0].attributes["x"] == cells[1].attributes["x"]


def test_every_step_says_what_is_read():
    (figure,) = read(numbering_figure(numbering(6, 6, 2, 8))).find("figure")
    words = json.loads(figure.attributes["data-words"])
    assert len(words) == int(figure.attributes["data-steps"]) + 1 == 9
    assert words[0] == "no block is running" and "groups of 2: 2 rows of A and 4 columns of B, 6 in all" in words[-1]
    assert "row-major: 2 rows of A and 6 columns of B, 8 in all" in words[-1]
    assert read(numbering_figure(numbering(64, 64, 8, 528))).find("figure") == []
    (wide,) = read(numbering_figure(numbering(32, 32, 8, 1000))).find("figure")
    assert int(wide.attributes["data-steps"]) <= 160 and "1000 blocks" in json.loads(wide.attributes["data-words"])[-1]


def test_every_point_and_every_shadow_is_drawn_once():
    picture = read(corner(POINTS))
    points = [
        tuple(map(int, e.attributes["data-point"].split())) for e in picture.find("g") if "data-point" in e.attributes
    ]
    assert sorted(points) == sorted(POINTS.points)
    faces = [int(e.attributes["data-face"]) for e in picture.find("path") if "data-face" in e.attributes]
    assert tuple(faces.count(face) for face in range(3)) == POINTS.sizes
    (figure,) = read(projections_figure(POINTS)).find("figure")
    assert int(figure.attributes["data-steps"]) == len(POINTS.slices)
    assert json.loads(figure.attributes["data-words"])[-1].endswith("26 points so far")
    labels = [label for label in ("x (", "y (", "z (") if label in picture.text]
    assert len(labels) == 3 and "units)" in picture.text


def test_a_slice_appears_at_its_step():
    picture = read(corner(brick(2, 1, 1)))
    cubes = [e.attributes for e in picture.find("g") if "data-point" in e.attributes]
    assert {cube["data-point"]: cube["data-shown"] for cube in cubes} == {"0 0 0": "1 2", "1 0 0": "2"}
    squares = [e.attributes for e in picture.find("path") if "data-face" in e.attributes]
    assert [(square["data-face"], square["data-shown"]) for square in squares] == [
        ("0", "1 2"), ("0", "2"), ("1", "1 2"), ("1", "2"), ("2", "1 2"),
    ]  # fmt: skip


def test_the_chart_of_a_pipeline_has_every_step_of_every_run():
    run = pipeline(5, 1, latency=6, transfer=1, compute=2).compared((2, 3))
    picture = read(pipeline_chart(run))
    bars = [e.attributes for e in picture.find("rect") if "data-step" in e.attributes]
    for stages in (1, 2, 3):
        for what in ("memory", "delivered", "computed"):
            own = [b for b in bars if b["data-stages"] == str(stages) and b["data-what"] == what]
            assert [int(b["data-step"]) for b in own] == list(range(5)), (stages, what)
    ends = {}
    for bar in bars:
        if bar["data-what"] == "computed":
            ends[bar["data-stages"]] = float(bar["x"]) + float(bar["width"])
    assert ends["1"] > ends["2"] > ends["3"] and "time (time units)" in picture.text


def test_the_budget_has_a_box_for_each_stage():
    picture = read(budget_chart(RECORDS["budget"]))
    boxes = [e for e in picture.find("rect") if "data-stage" in e.attributes]
    assert len(boxes) == sum(range(1, 8)) and picture.text.count("too much") == 1
    assert len([e for e in picture.find("rect") if "data-epilogue" in e.attributes]) == 7


def test_lower_ceilings_stand_in_the_text_plot():
    text = str(ridge_table("sm_90").roofline())
    assert text.count("." * 12) >= 3
    assert "ridge point is 295 FLOP/byte" in view.html(ridge_table("sm_90").roofline())
