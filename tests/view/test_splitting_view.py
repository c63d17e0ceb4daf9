"""The map of where reductions are split."""

from __future__ import annotations

import pytest

from staxlab import view
from staxlab.errors import OptionError
from staxlab.loops.splitmap import split_map
from staxlab.loops.splitting import choose_split
from staxlab.options import GPU_SPECS
from staxlab.view.document import SIZE_CAP
from staxlab.view.splitting import REGIONS, region_of, split_chart
from tests.view.reading import read, references, stripped


@pytest.mark.parametrize("target", sorted(GPU_SPECS))
@pytest.mark.parametrize("across", [False, True])
def test_a_view_is_text_and_self_contained_html(target, across):
    record = split_map(target, across)
    bundle = record._repr_mimebundle_()
    html = bundle["text/html"]
    assert "drawing failed" not in html and len(html) < SIZE_CAP and bundle["text/plain"] == record.format()
    assert view.html(record) == html and references(html) == [] and " at 0x" not in html
    assert not any("hidden" in e.attributes for e in read(stripped(html)).walk())


@pytest.mark.parametrize("across", [False, True])
def test_every_cell_is_the_decision_of_the_compiler(across):
    record = split_map("sm_90", across)
    cells = [e for e in read(split_chart(record)).find("rect") if "data-segments" in e.attributes]
    assert len(cells) == len(record.outputs) * len(record.lengths)
    for cell in cells:
        n, n_r, shown = (int(cell.attributes[f"data-{name}"]) for name in ("n", "length", "segments"))
        decision = choose_split("y", "sum", n, n_r, GPU_SPECS["sm_90"], across=across)[1]
        assert shown == decision.choice and cell.attributes["class"] == region_of(shown)[1]
    assert {region_of(int(cell.attributes["data-segments"]))[0] for cell in cells} == {r[0] for r in REGIONS}


def test_example_6_2_is_marked():
    record = split_map("sm_90")
    picture = read(split_chart(record))
    (frame,) = [e for e in picture.find("rect") if "data-mark" in e.attributes]
    (cell,) = [
        e for e in picture.find("rect")
        if (e.attributes.get("data-n"), e.attributes.get("data-length")) == ("64", "16384")
    ]  # fmt: skip
    assert float(cell.attributes["x"]) - float(frame.attributes["x"]) == 1 and cell.attributes["data-segments"] == "2"
    (svg,) = picture.find("svg")
    assert "Example 6.2 at n = 64 and n_r = 16,384: 2 segments" in svg.attributes["aria-label"]
    assert "n: outputs (elements, doubling)" in svg.text and "n_r: merged into each" in svg.text
    assert "Example 6.2 is n = 64, n_r = 16,384: 2 segments" in str(record)
    assert not [e for e in read(split_chart(split_map("sm_90", True))).find("rect") if "data-mark" in e.attributes]


def test_the_edges_of_the_map_are_not_split():
    for across in (False, True):
        record = split_map("sm_90", across)
        assert all(record.segments(record.outputs[-1], n_r) == 1 for n_r in record.lengths)
        assert all(record.segments(n, record.lengths[0]) == 1 for n in (record.outputs[-1], record.outputs[-2]))


def test_a_cpu_has_no_map():
    with pytest.raises(OptionError, match="GPUs only"):
        split_map("cpu")
