"""The drawing of a reverse sweep: program, adjoints, and operations next to the bound."""

from __future__ import annotations

import pytest

from staxlab import view
from staxlab.autodiff.straightline import log, straight_line, tanh
from staxlab.autodiff.sweeps import reverse_mode
from staxlab.view.document import SIZE_CAP
from staxlab.view.straightline import operations_bar, program_diagram, program_table
from tests.view.reading import read, references, stripped


def chain(size):
    def function(x):
        for _ in range(size):
            x = x * 0.5
        return x

    return reverse_mode(straight_line(function, 1, f"chain of {size}"), [1.0])


SWEEPS = [
    reverse_mode(straight_line(lambda x, y, z: log(x * y) + tanh(y / z) - 2 * x, 3, "f"), [1.5, 2.0, -0.7]),
    reverse_mode(straight_line(lambda x: x, 1, "identity"), [1.0]),
    chain(2000),
]


@pytest.mark.parametrize("sweep", SWEEPS, ids=lambda sweep: sweep.program.name)
def test_a_view_is_text_and_self_contained_html(sweep):
    bundle = sweep._repr_mimebundle_()
    html = bundle["text/html"]
    assert "drawing failed" not in html and len(html) < SIZE_CAP and bundle["text/plain"] == sweep.format()
    assert view.html(sweep) == html and references(html) == [] and " at 0x" not in html
    assert not any("hidden" in e.attributes for e in read(stripped(html)).walk())


def test_every_value_is_a_box_that_says_its_adjoint():
    boxes = [e.attributes["aria-label"] for e in read(program_diagram(SWEEPS[0])).find("g", class_="sx-node")]
    assert len(boxes) == 10 and "v4 = v1 * v2: value 3, adjoint 0.333333; reverse step: 4 operations" in boxes
    assert "v3: value -0.7, adjoint -0.0534996" in boxes
    (edges,) = read(program_diagram(SWEEPS[0])).find("g", class_="sx-edges")
    assert len(edges.find("path", class_="sx-edge")) == 11


def test_the_bar_has_both_sweeps_and_the_bound_to_scale():
    picture = read(operations_bar(SWEEPS[0]))
    bars = {e.attributes["data-sweep"]: e.attributes for e in picture.find("rect") if "data-sweep" in e.attributes}
    assert {name: int(bar["data-count"]) for name, bar in bars.items()} == {"forward": 7, "reverse": 21}
    assert float(bars["reverse"]["width"]) == pytest.approx(3 * float(bars["forward"]["width"]), abs=0.2)
    assert "stroke-dasharray" in bars["reverse"] and "stroke-dasharray" not in bars["forward"]
    (svg,) = picture.find("svg")
    assert "the bound is 5 W = 35" in svg.attributes["aria-label"] and "operations (count)" in svg.text


def test_a_long_program_is_a_table_with_a_beginning():
    sweep = SWEEPS[2]
    assert read(program_diagram(sweep)).find("svg") == []
    assert len(read(program_table(sweep)).find("tr")) == 201 and "first 200 of 2,001" in read(program_table(sweep)).text
    assert len(read(program_table(sweep, full=True)).find("tr")) == 2002
