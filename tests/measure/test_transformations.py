"""Table 4.3 and Figure 4.1 are read off the compiler: nothing is missing, out of order or miscounted."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab import view
from staxlab.measure.transformations import STAGES, transformations
from staxlab.options import Options
from staxlab.transform.passes import PASSES, SHAPE_INDEPENDENT
from tests.view.reading import read


def loss(x, y):
    x.mul_(2)
    return F.mse_loss(F.selu(2 * x + 0), y)


@pytest.fixture(scope="module")
def compilation():
    return staxlab.explain(loss, torch.rand(4, 4), torch.rand(4, 4))


def test_the_front_end_is_the_passes_in_their_order():
    for options, wanted in ((Options(), PASSES), (Options(dynamic=True), SHAPE_INDEPENDENT)):
        found = transformations(options=options)
        assert [e.name for e in found.entries if e.stage == "A"] == [item.name for item in wanted]
        assert found.rounds is None and all(e.count is None and e.done == "" for e in found.entries)
    assert [e.stage for e in found.entries] == sorted(e.stage for e in found.entries)
    assert {e.stage for e in found.entries} == set(STAGES)


def test_what_each_does_is_said_where_it_is_written(repository):
    for entry in transformations().entries:
        text = " ".join((repository / "staxlab" / entry.source).read_text(encoding="utf-8").split())
        assert entry.what.rsplit(": ", 1)[-1] in text.replace("``", ""), entry


def test_counts_are_those_of_the_records(compilation):
    found = transformations(compilation)
    counts = {entry.name: entry.count for entry in found.entries}
    log = compilation.transforms
    for item in PASSES:
        assert counts[item.name] == sum(len(run.applied) for run in log.runs if run.name == item.name)
    assert counts["Normalize"] > 1 and counts["Decompose"] == 1
    assert counts["Decompose operators"] == 1, "mse_loss"
    assert counts["Functionalize"] == 1, "x is written"
    assert counts["Schedule"] == len(compilation.schedule.nodes)
    assert found.rounds == log.rounds and f"here {log.rounds} rounds" in str(found)


def test_it_is_drawn_in_order_with_the_loop_in_words(compilation):
    found = transformations(compilation)
    tree = read(view.html(found))
    boxes = [e.find("text")[0].text for e in tree.find("g", class_="sx-node")]
    passes = [e.name for e in found.entries if e.stage == "A"]
    rest = [e.name for e in found.entries if e.stage != "A"]
    assert boxes == ["captured graph", *passes, "unchanged?", *rest, "code generation"]
    assert f"at most {found.max_rounds}" in tree.text and "mse" not in tree.text
    assert "1 write-back" in tree.text and "drawing failed" not in tree.text
