"""The space-time diagram of a reversal order: what is drawn is what the simulator saw."""

from __future__ import annotations

import pytest
import torch

from staxlab import view
from staxlab.autodiff.chain import differentiate
from staxlab.autodiff.checkpoint import binomial, recompute_all, save_all, uniform_segments
from staxlab.autodiff.reversal import Advance, ReversalError, simulate
from staxlab.view.document import SIZE_CAP
from staxlab.view.reversal import round_ticks, space_time_diagram
from tests.view.reading import read, references, stripped

ORDERS = [save_all(1), save_all(5), recompute_all(6), uniform_segments(20, 4), binomial(10, 3), binomial(1000, 17)]


@pytest.mark.parametrize("run", ORDERS, ids=lambda run: f"{run.name} {run.length}")
def test_a_view_is_text_and_self_contained_html(run):
    bundle = run._repr_mimebundle_()
    html = bundle["text/html"]
    assert "drawing failed" not in html and len(html) < SIZE_CAP and bundle["text/plain"] == run.format()
    assert view.html(run) == html and references(html) == [] and " at 0x" not in html
    assert not any("hidden" in e.attributes for e in read(stripped(html)).walk())


def moves(picture, kind):
    return [e for e in picture.find("path") if e.attributes.get("data-move") == kind]


def test_every_move_and_every_stay_is_drawn_once():
    run = binomial(10, 3)
    picture = read(space_time_diagram(run))
    bars = [int(e.attributes["data-state"]) for e in picture.find("rect") if "data-state" in e.attributes]
    assert bars == [stay.state for stay in run.residences]
    assert len(moves(picture, "backward")) == 10
    assert len(moves(picture, "forward")) == sum(isinstance(move, Advance) for move in run.moves)
    widths = [float(e.attributes["width"]) for e in picture.find("rect") if "data-state" in e.attributes]
    lasted = [stay.stop - stay.start for stay in run.residences]
    assert max(widths) == widths[lasted.index(max(lasted))]


def test_it_says_in_words_what_it_shows():
    run = uniform_segments(20, 4)
    (picture,) = read(space_time_diagram(run)).find("svg")
    spoken = picture.attributes["aria-label"]
    assert run.summary() in spoken and "z_5 from 5 to 42" in spoken and "and 8 more" in spoken
    assert picture.attributes["role"] == "img" and picture.attributes["tabindex"] == "0"
    words = picture.text
    for label in ("time (forward and backward steps)", "state", "slots (count)", "8 slots; at most 8 in use"):
        assert label in words
    styles = {kind: moves(picture, kind)[0].attributes for kind in ("forward", "backward")}
    assert "stroke-dasharray" in styles["backward"] and "stroke-dasharray" not in styles["forward"]


def test_many_moves_are_two_paths_and_too_many_a_sentence():
    picture = read(space_time_diagram(binomial(1000, 17)))
    assert len(moves(picture, "forward")) == len(moves(picture, "backward")) == 1
    assert read(space_time_diagram(recompute_all(3001))).find("svg") == []


def test_an_order_that_broke_a_rule_draws_up_to_there():
    with pytest.raises(ReversalError) as caught:
        simulate([Advance(0, 2), Advance(1, 2)], 3, 2)
    assert "not complete" in view.html(caught.value.history)


def test_gradients_of_a_chain_draw_their_order():
    found = differentiate([torch.sin, torch.sum], torch.ones(3, requires_grad=True), slots=1)
    bundle = found._repr_mimebundle_()
    assert "1 slot; at most 1 in use" in bundle["text/html"] and bundle["text/plain"] == str(found)


@pytest.mark.parametrize("most", [1, 2, 7, 8, 9, 99, 1000, 12345])
def test_ticks_are_few_and_round(most):
    ticks = round_ticks(most)
    assert ticks[0] == 0 and ticks[-1] <= most and 1 <= len(ticks) <= 10
