"""The lanes of builds and of list schedules: in words, in characters, and what is drawn where."""

from __future__ import annotations

from fractions import Fraction

import pytest

from staxlab.measure.list_scheduling import list_schedule, tight_family
from staxlab.runtime.build_report import CALLER, BuildReport, BuildTask
from staxlab.view.build_chart import lanes_chart, lanes_of, text
from tests.view.reading import check_page, read

TASKS = (
    BuildTask("found", "cpp", CALLER, 0.0, 0.0, 0.01, True, frozenset({9})),
    BuildTask("first", "cpp", 0, 0.01, 0.02, 0.9, False, frozenset({3, 7})),
    BuildTask("second", "cpp", 1, 0.01, 0.02, 0.5, False),
    BuildTask("<third>", "triton", 1, 0.01, 0.5, 1.1, False),
)
BUILD = BuildReport(TASKS, 2, 1.15)
RECORDS = {
    "build": BUILD,
    "with its stages": BuildReport(TASKS, 2, 1.15, (("capture", 0.2), ("loops", 0.1))),
    "all found": BuildReport(TASKS[:1], 1, 0.02),
    "in milliseconds": BuildReport((BuildTask("k", "cpp", 0, 0.0, 0.001, 0.3, False),), 1, 0.31),
    "tight": list_schedule(tight_family(3), 3),
    "loose": list_schedule([5, 1, 1, Fraction(1, 3)], 2),
}


@pytest.mark.parametrize("name", RECORDS)
def test_a_view_is_text_and_self_contained_html(name):
    check_page(RECORDS[name])


@pytest.mark.parametrize("record", [BuildReport(), list_schedule([], 2), list_schedule([0], 1)])
def test_nothing_to_draw_is_drawn(record):
    assert record._repr_mimebundle_()["text/plain"] == str(record) and str(record)


def test_boxes_stand_where_their_times_are():
    picture = read(lanes_chart(lanes_of(BUILD)))
    boxes = {e.find("title")[0].text.partition(":")[0]: e for e in picture.find("rect")}
    assert set(boxes) == {"found", "first", "second", "<third>"}
    left = {name: float(e.attributes["x"]) for name, e in boxes.items()}
    width = {name: float(e.attributes["width"]) for name, e in boxes.items()}
    scale = width["first"] / 0.88
    assert width["<third>"] == pytest.approx(0.6 * scale, rel=0.01)
    assert left["<third>"] - left["second"] == pytest.approx(0.48 * scale, rel=0.01)
    assert boxes["second"].attributes["y"] == boxes["<third>"].attributes["y"] != boxes["first"].attributes["y"]
    assert boxes["found"].attributes["data-kind"] == "hit" and boxes["found"].attributes["fill"] == "none"
    assert boxes["first"].attributes["data-origins"] == "3 7" and "data-origins" not in boxes["second"].attributes
    words = picture.text
    assert "time (seconds)" in words and "worker 0" in words and "caller" in words


def test_bounds_are_lines_at_their_times():
    drawn = lanes_of(BUILD)
    low, high = BUILD.bound
    assert {words: at for at, words in drawn.lines} == pytest.approx(
        {"lower bound": 0.01 + low, "upper bound": 0.01 + high}
    )
    picture = read(lanes_chart(drawn))
    assert {e.attributes["data-bound"] for e in picture.find("path") if "data-bound" in e.attributes} == {
        "lower bound", "upper bound",
    }  # fmt: skip
    tight = lanes_of(RECORDS["tight"])
    assert [words for _, words in tight.lines] == ["lower bound", "improved bound", "upper bound"]
    assert tight.lines[1][0] == 5 == max(box.finish for _, boxes in tight.lanes for box in boxes)


def test_the_serial_part_moves_the_build():
    alone, behind = lanes_of(BUILD), lanes_of(RECORDS["with its stages"])
    assert behind.lanes[0][0] == "serial" and [b.name for b in behind.lanes[0][1]] == ["capture", "loops"]
    assert behind.lanes[2][1][0].start == pytest.approx(alone.lanes[1][1][0].start + 0.3)
    assert behind.lines[0][0] == pytest.approx(alone.lines[0][0] + 0.3)
    assert "before it, 300 ms in one thread" in behind.said


def test_the_text_has_a_line_for_each_lane_and_task():
    lines = text(RECORDS["with its stages"]).splitlines()
    lanes = {line.partition("|")[0].strip(): line for line in lines if " |" in line}
    assert {"serial", "caller", "worker 0", "worker 1"} <= set(lanes)
    assert "S" in lanes["serial"] and "K" in lanes["worker 0"] and "k" in lanes["worker 1"] and "·" in lanes["caller"]
    assert any("lower bound" in line and "^" in line for line in lines)
    assert sum(line.startswith(("found", "first", "second", "<third>")) for line in lines) == 4
