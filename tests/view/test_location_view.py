"""The picture of a location."""

from __future__ import annotations

import dataclasses

from staxlab.locate.record import LAYERS, Check, Culprit, Location
from staxlab.measure.agreement import Agreement, Difference
from staxlab.provenance import SourceLocation
from staxlab.view.location import ABSENT, BEHIND, RIGHT, WRONG, location_chart, states
from tests.view.reading import check_page, read

SAME, NEAR = Agreement(True), Agreement(False, 0.25, 1e-7, 4e-7, 7.0)
LINE = SourceLocation("model.py", 7, "y = <b>x</b> & z", "f")
CULPRIT = Culprit("loops", "lowering of aten.sin", "alone, too", Difference("%sin", (0, 1), 0.5, 0.25, 1e-7, 3, 8),
                  (LINE,), frozenset({4, 2}))  # fmt: skip
CHECKS = (
    Check("eager", "captured graph", ("capture", "transforms"), "equal bit for bit", "bit for bit", SAME, 0.1),
    Check("aot_eager", "operators", ("joint", "partition", "operators"), "within the bound", "rounding", NEAR, 0.2),
    Check("stax, strict", "kernels", ("loops", "schedule", "kernels", "wrapper", "artifact"), "WRONG", "rounding",
          Agreement(False, 9.0, difference=CULPRIT.difference), 1.0),
)  # fmt: skip
FOUND = Location("f", "stax", CHECKS, CULPRIT, script="import torch  # <planted>\n", seconds=1.3)
CLEAN = Location("f", "stax", (*CHECKS[:2], dataclasses.replace(CHECKS[2], verdict="within the bound", agreement=NEAR)))


def boxes(record):
    return {e.attributes["data-layer"]: e for e in read(location_chart(record)).walk() if "data-layer" in e.attributes}


def test_it_is_a_page():
    check_page(FOUND)
    check_page(CLEAN)


def test_every_layer_has_a_box_and_the_culprit_is_linked():
    drawn = boxes(FOUND)
    assert [*drawn] == [name for name, _, _ in LAYERS]
    assert drawn["loops"].attributes["data-origins"] == "2 4" and "✗ WRONG" in drawn["loops"].text
    assert "✓ right" in drawn["capture"].text and "same bits" in drawn["capture"].text
    assert "error 0.25" in drawn["operators"].text and "– not reached" in drawn["kernels"].text
    frames = {name: box.find("rect")[0].attributes for name, box in drawn.items()}
    assert frames["loops"]["stroke-width"] == "3" and "stroke-dasharray" in frames["kernels"]  # not by colour alone


def test_what_takes_no_part_is_told_from_what_was_not_reached():
    found = states(FOUND)
    assert (found["joint"], found["operators"], found["loops"], found["wrapper"]) == (ABSENT, RIGHT, WRONG, BEHIND)
    clean = states(CLEAN)
    assert clean["artifact"] == RIGHT and clean["dispatch"] == ABSENT and WRONG not in clean.values()
    held = Check("held", "the versions held", ("dispatch",), "within the bound", "rounding", NEAR, 0.1)
    assert states(dataclasses.replace(CLEAN, checks=(*CLEAN.checks, held)))["dispatch"] == RIGHT


def test_words_and_text_say_all_of_it():
    html = FOUND._repr_mimebundle_()["text/html"]
    for text in (html, str(FOUND)):
        assert "lowering of aten.sin" in text and "%sin[0, 1] is 0.5" in text and "model.py:7" in text
    assert "planted" in html and "<planted>" not in html and "y = <b>x</b>" not in html
    (svg,) = read(location_chart(FOUND)).find("svg")
    assert "Lowering: WRONG" in svg.attributes["aria-label"]
    assert "no error" in str(CLEAN) and "0.25 of its bound" in str(CLEAN)
