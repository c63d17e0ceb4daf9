"""Figure 13.1 and the curves of amortisation: on records made by hand, every point is where its numbers are."""

from __future__ import annotations

import dataclasses

import pytest

from staxlab import view
from staxlab.measure.amortization import Amortization
from staxlab.measure.chapter_cases import Reported
from staxlab.measure.reproduce import write_json
from staxlab.measure.reproduction import CaseRun, Reproduction
from staxlab.measure.rounds import Rounds
from staxlab.measure.saved_runs import saved_run
from staxlab.measure.timing import Comparison, Timing
from staxlab.reproducing import Reproduced
from staxlab.view.document import SIZE_CAP
from staxlab.view.reproduce import standing_alone, svg_text, text_figure
from tests.view.reading import read, references, stripped


def case(name, table, rho, *speedups):
    rounds = tuple(Comparison((Timing("eager", (s * 1e-3,) * 9), Timing("compiled", (1e-3,) * 9))) for s in speedups)
    traffic = {"eager": {"read": int(rho * (32 << 20)), "written": 0, "operations": 8},
               "compiled": {"read": 32 << 20, "written": 0, "operations": 8}}  # fmt: skip
    return CaseRun(name, f"{name}: <x> & y", table, (4, 8), traffic, Rounds(rounds, 2), reported=Reported(rho, (2.0,)))


def record(**more):
    cases = (case("four", "13.1", 4, 4.9, 3.9), case("one", "13.1", 1, 0.8, 0.82), case("add", "13.2", 1, 1.0, 0.9),
             case("relu", "13.2", 1, 1.1, 1.05))  # fmt: skip
    return Reproduction(cases, machine={"processor": "a processor", "threads": 2, "device": "cpu"}, **more)


def drawn(of):
    html = of._repr_mimebundle_()["text/html"]
    assert "drawing failed" not in html and len(html) < SIZE_CAP and references(html) == [] and " at 0x" not in html
    for picture in read(html).find("svg"):
        assert picture.find("title") and picture.find("desc") and picture.attributes["aria-label"]
    return html


def test_every_round_of_every_case_is_a_point():
    html = drawn(record())
    (picture,) = read(html).find("svg")
    marks = [e for e in picture.walk() if "data-case" in e.attributes]
    found = {(e.attributes["data-case"], e.attributes["data-round"]): e for e in marks}
    assert len(found) == len(marks) == 8
    assert float(found["four", "A"].attributes["data-speedup"]) == pytest.approx(4.9)
    assert float(found["four", "B"].attributes["data-rho"]) == 4
    assert {found[c, "A"].attributes["fill"] for c in ("four", "one", "add")} == {"none"}
    assert {found[c, "B"].attributes["fill"] for c in ("four", "one", "add")} != {"none"}
    assert {c: found[c, "A"].tag for c in ("four", "one", "add")} == {"four": "circle", "one": "circle", "add": "rect"}
    labels = [e.text for e in picture.find("text")]
    assert "model byte ratio rho (times)" in labels and "measured speedup S (times)" in labels and "four" in labels


def test_points_stand_at_their_values_and_those_of_rho_one_beside_each_other():
    (picture,) = read(drawn(record())).find("svg")
    (line,) = [e for e in picture.walk() if e.attributes.get("data-line") == "S = rho"]
    start, end = (tuple(map(float, p.split())) for p in line.attributes["d"].removeprefix("M").split("L"))
    at = {(e.attributes["data-case"], e.attributes["data-round"]): e for e in picture.find("circle")}
    four = at["four", "B"]
    # On the line, S would be 4; 3.9 is below it, and the point's height follows from the line's slope.
    slope = (start[1] - end[1]) / (end[0] - start[0])
    across = float(four.attributes["cx"]) - start[0]
    assert start[1] - float(four.attributes["cy"]) == pytest.approx(slope * across * 3.9 / 4, abs=0.3)
    squares = [float(e.attributes["x"]) for e in picture.find("rect") if e.attributes.get("data-round") == "A"]
    assert len(set(squares)) == 2 and all(x < float(at["one", "A"].attributes["cx"]) for x in squares)


def test_the_tables_and_the_words_say_the_same():
    found = record(notes=("the machine was busy",), complete=False)
    plain = read(stripped(drawn(found))).text
    for words in ("Table 13.1", "Table 13.2", "the machine was busy", "interrupted", "4.9 [4.9, 4.9]", "four: <x> & y"):
        assert words in plain
    assert "rho 4, S 4.9 and 3.9" in found.description()
    assert "A/a" not in text_figure(found) and "a/A four" in text_figure(found)
    assert view.html(found)


def test_without_a_case_there_is_no_figure():
    empty = Reproduction(())
    assert "nothing was timed" in str(empty) and not read(drawn(empty)).find("svg")


def test_a_saved_run_has_its_speedups_and_shares(tmp_path):
    share = {"median": 0.8, "interval": {"low": 0.7, "high": 0.9}}
    cases = tuple(
        dataclasses.replace(c, roofs=({"bandwidth": {}, "shares": {"compiled": share}},)) for c in record().cases
    )
    made = dataclasses.replace(record(), cases=cases, date="2026-01-01", command="staxlab reproduce all")
    write_json(Reproduced("all", tables=made).to_json(), tmp_path / "example.json")
    run = saved_run("example", directory=tmp_path)
    drawn(run)
    assert run.cases == ("four", "one", "add", "relu") and "staxlab reproduce all" in str(run)
    assert [panel.cell("four", panel.series[0]) for panel in run.panels] == ["4.9", "4", "80 [70, 90]"]
    assert "add: not established" in str(run) and "four: not established" not in str(run)


def test_the_file_stands_by_itself():
    text = svg_text(record())
    assert text.startswith("<svg") and text.count('xmlns="http://www.w3.org/2000/svg"') == 1 and "#ffffff" in text
    assert standing_alone(text).count("xmlns=") == 1


def amortized(**more):
    given = {"first_calls": {"cold": (1.995,), "warm": (0.495,)}, "example": case("example_1_1", "13.1", 4, 11.0, 11.0)}
    return Amortization(**(given | more), overheads=None, bandwidth=1e10)


def test_a_line_for_each_state_of_the_cache_and_a_level_where_it_crosses():
    html = drawn(amortized())
    (picture,) = read(html).find("svg")
    assert len(picture.find(class_="sx-chart-line")) == 3 and len(picture.find(class_="sx-chart-limit")) == 2
    text = picture.text
    assert "m* 200" in text and "m* 50" in text and "calls" in text and "time in all (s)" in text


def test_where_nothing_pays_there_is_only_the_table():
    slower = amortized(example=case("example_1_1", "13.1", 4, 0.5, 0.5))
    assert not read(drawn(slower)).find("svg") and "never" in str(slower)
    nothing = dataclasses.replace(slower, first_calls={}, example=None)
    assert not read(drawn(nothing)).find("svg")
