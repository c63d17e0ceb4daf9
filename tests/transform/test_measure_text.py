"""The measure of Proposition 4.1 is printed with its parts named, wherever it is shown."""

from __future__ import annotations

import torch

import staxlab
from staxlab import view
from staxlab.transform.rewrite import measure_text
from tests.view.reading import read


def test_the_parts_of_a_measure_are_named():
    assert measure_text((0, 7, 1)) == "(0, 7, 1): 0 composite operators, 7 nodes, 1 deviation from normal form"


def test_the_log_and_its_drawing_say_what_is_counted():
    log = staxlab.explain(lambda x: (x.exp() + x.exp()) * 1, torch.randn(4)).transforms
    assert log.changes
    page = read(view.html(log))
    for run in log.changes:
        assert measure_text(run.measure) in log.format()
        (note, *_) = [e for e in page.find("p") if measure_text(run.measure) in e.text]
        assert "Proposition 4.1" in note.attributes["title"]
