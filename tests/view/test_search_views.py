"""A search prints, and its pictures say in words and marks what they show in colour."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from staxlab import view
from staxlab.codegen.configurations import ConfigurationSpace
from staxlab.runtime.autotune import coordinate_descent, exhaustive, select
from staxlab.runtime.autotune_landscapes import RegisterCliff, side_by_side
from staxlab.view.document import SIZE_CAP
from tests.view.reading import read, references, stripped


@pytest.fixture(scope="module")
def compared():
    return side_by_side(RegisterCliff(), start=(512, 4), noise=0.02)


def drawn(record):
    bundle = record._repr_mimebundle_()
    html = bundle["text/html"]
    assert "drawing failed" not in html and len(html) < SIZE_CAP and references(html) == [] and " at 0x" not in html
    assert bundle["text/plain"] == str(record) == repr(record) == record.format()
    assert view.html(record) == html
    for picture in read(html).find("svg"):
        assert picture.find("title") and picture.find("desc") and picture.attributes["aria-label"]
    return html


def test_all_methods_stand_side_by_side(compared):
    html = drawn(compared)
    plain = read(stripped(html)).text
    for words in ("coordinate descent (Algorithm 9.2)", "random search (Proposition 9.3)", "times the best"):
        assert words in plain and words in str(compared)
    assert "##" in str(compared), "what cannot run has a mark in the text as well"
    pictures = read(html).find("svg")
    assert len(pictures) == len(compared.searches) == 5
    labels = [e.text for e in pictures[1].find("text")]
    assert "XBLOCK (elements)" in labels and "num_warps (warps)" in labels


def test_the_map_has_every_cell_with_its_rank_and_hatches_what_cannot_run(compared):
    (picture,) = read(view.html(compared["exhaustive"])).find("svg")[:1]
    cells = [e.attributes for e in picture.find("rect") if "data-state" in e.attributes]
    assert len(cells) == compared.space.size
    impossible = sum(math.isinf(cost) for cost in compared.costs.values())
    assert sum(cell["data-state"] == "impossible" for cell in cells) == impossible > 0
    ranks = {int(cell["data-rank"]) for cell in cells if "data-rank" in cell}
    assert ranks == set(range(1, max(ranks) + 1))
    (chosen,) = [e.attributes["data-chosen"] for e in picture.find("rect") if "data-chosen" in e.attributes]
    assert chosen == "XBLOCK=32768, num_warps=32"


def test_a_path_is_drawn_step_by_step():
    cliff = RegisterCliff()
    found = coordinate_descent(cliff.space, (512, 4), cliff)
    picture, trials = read(drawn(found)).find("svg")
    assert len([e for e in picture.find("circle") if "data-step" in e.attributes]) == found.acceptances
    assert len([e for e in picture.find("circle") if "data-start" in e.attributes]) == 1
    marks = [e for e in trials.find("circle") + trials.find("path") if "data-verdict" in e.attributes]
    assert len(marks) == len(found.trials)
    assert any(e.text == "trial (number)" for e in trials.find("text"))
    assert any(e.text == "time (units at the marks)" for e in trials.find("text"))


def test_the_search_before_stands_below():
    cliff = RegisterCliff()
    first = select([(512, 4), (1024, 4)], cliff, space=cliff.space)
    found = replace(coordinate_descent(cliff.space, first.chosen, cliff), before=first)
    html = drawn(found)
    assert len(read(html).find("svg")) == 4 and "it began where the candidate set (Algorithm 9.1) ended" in str(found)
    assert str(first) in str(found)


def test_undecided_comparisons_and_interrupted_searches_are_said(compared):
    walked = compared["descent"]
    assert walked.undecided and "undecided" in str(walked) and "noise asks for more" in str(walked)

    def stops(configuration):
        if configuration == (4,):
            raise KeyboardInterrupt
        return 1.0

    assert "interrupted" in str(select([(1,), (2,), (4,)], stops))


def test_halving_shows_who_was_dropped_when(compared):
    html = drawn(compared["halving"])
    rounds = read(html).find("svg")[2]
    verdicts = [e.attributes["data-verdict"] for e in rounds.find("rect") if "data-verdict" in e.attributes]
    trials = [t.verdict for t in compared["halving"].trials if t.verdict in ("kept", "dropped")]
    assert sorted(verdicts) == sorted(trials)


def test_one_parameter_three_parameters_and_nothing_measured():
    line = ConfigurationSpace.of(a=(1, 2, 4))
    drawn(exhaustive(line, lambda c: float(c[0])))
    cube = ConfigurationSpace.of(a=(1, 2, 4), b=(1, 2), num_stages=(1, 3, 4))
    assert "fastest over b" in drawn(exhaustive(cube, lambda c: float(sum(c))))
    drawn(exhaustive(line, lambda c: math.inf))
    assert "not measured" in drawn(select([(4,)], lambda c: 1.0))


def test_long_searches_stay_below_the_cap():
    wide = ConfigurationSpace.of(a=[1 << k for k in range(16)], b=[1 << k for k in range(16)], c=range(1, 9))
    drawn(exhaustive(wide, lambda c: float(sum(c))))
