"""The byte model drawn: every row tells reads from writes, the lower bound too, and says how operations are counted."""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab import view
from staxlab.view.schedule import traffic_bar
from tests.view.reading import read


@pytest.fixture(scope="module")
def drawn():
    inputs = torch.randn(64, 128), torch.randn(64, 128)
    compilation = staxlab.explain(lambda x, w: (torch.relu(x + w) * 2).sum(-1), *inputs)
    return read(view.html(compilation.traffic))


def test_the_lower_bound_writes_its_outputs(drawn):
    (row,) = [r for r in drawn.find("tr") if "each output written once" in r.text]
    assert "reads 64 KiB, writes 256 B" in row.text
    kinds = [e.attributes.get("class") for e in row.walk()]
    assert "sx-write" in kinds and "sx-hatch" in kinds
    assert "2N + n" in row.text


@pytest.mark.parametrize("written", [1, 100, 5_000, 100_000])
def test_whatever_is_written_is_hatched_inside_its_block(written):
    bar = read(str(traffic_bar(100_000, written, 200_000)))
    (block,) = [e for e in bar.walk() if e.attributes.get("class") == "sx-write"]
    strokes = [e for e in bar.walk() if e.attributes.get("class") == "sx-hatch"]
    start, width = float(block.attributes["x"]), float(block.attributes["width"])
    assert strokes
    for stroke in strokes:
        at = float(stroke.attributes["d"][1:].split()[0])
        assert start <= at <= at + 3 <= start + width + 0.1
    assert not [e for e in read(str(traffic_bar(1, 0, 10))).walk() if e.attributes.get("class") == "sx-hatch"]


def test_operations_and_their_rate_stand_apart_and_are_explained(drawn):
    heads = {e.text: e for e in drawn.find("th") if e.attributes.get("scope") == "col"}
    assert "exponential 10" in heads["operations"].attributes["title"]
    assert "operations per byte" in heads
    widths = {len([e for e in row.walk() if e.tag in ("td", "th")]) for row in drawn.find("tr")} - {1}
    assert widths == {5}
    assert "elements of input" in drawn.text and "exponential 10" in drawn.text
