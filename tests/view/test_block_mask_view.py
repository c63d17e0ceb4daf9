"""The picture of a block mask: what is drawn is what the mask says, in words as well."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from staxlab import view
from staxlab.attention.block_mask import EMPTY, FULL, NAMES, PARTIAL, create_block_mask
from staxlab.attention.masks import and_masks, causal, dilated, document, not_mask, or_masks, sliding_window
from staxlab.view.block_mask import blocks_picture, class_runs, positions_picture, visible_runs
from staxlab.view.document import SIZE_CAP
from tests.view.reading import read, references, stripped


def later_heads(b, h, q_idx, kv_idx):
    return q_idx - kv_idx >= h * 16


MASKS = {
    "causal": create_block_mask(causal, None, None, 1024, 1024),
    "window": create_block_mask(and_masks(causal, sliding_window(20)), None, None, 100, 70, BLOCK_SIZE=(8, 16)),
    "documents": create_block_mask(document(torch.arange(90) // 31), None, None, 90, 90, BLOCK_SIZE=10),
    "heads": create_block_mask(later_heads, 2, 3, 64, 64, BLOCK_SIZE=16),
    "many heads": create_block_mask(later_heads, None, 40, 64, 64, BLOCK_SIZE=16),
    "one block": create_block_mask(causal, None, None, 5, 5),
    "decoding": create_block_mask(causal, None, None, 1, 4096),
    "nothing": create_block_mask(not_mask(or_masks(causal, not_mask(causal))), None, None, 64, 64, BLOCK_SIZE=8),
    "large": create_block_mask(sliding_window(1000), None, None, 4096, 2048, BLOCK_SIZE=32),
    "checkerboard": create_block_mask(dilated(2), None, None, 64, 64, BLOCK_SIZE=1),
    "empty": create_block_mask(causal, None, None, 0, 64),
}


@pytest.mark.parametrize("name", MASKS)
def test_a_view_is_text_and_self_contained_html(name):
    mask = MASKS[name]
    bundle = mask._repr_mimebundle_()
    html = bundle["text/html"]
    assert "drawing failed" not in html and len(html) < SIZE_CAP and view.html(mask) == html
    assert bundle["text/plain"] == str(mask)
    assert references(html) == [] and " at 0x" not in html
    assert not any("hidden" in e.attributes for e in read(stripped(html)).walk())
    pictures = read(html).find("svg", class_="sx-diagram")
    assert pictures or name == "empty"
    for picture in pictures:
        assert picture.attributes["role"] == "img" and picture.attributes["tabindex"] == "0"
        assert len(picture.attributes["aria-label"]) > 20 and picture.find("title") and picture.find("desc")


@pytest.mark.parametrize("name", ["causal", "window", "documents", "one block", "nothing", "checkerboard"])
def test_the_cells_are_the_classes(name):
    mask = MASKS[name]
    picture = read(blocks_picture(mask))
    drawn = torch.full(mask.grid, EMPTY, dtype=torch.int8)
    kinds = {words: kind for kind, words in NAMES.items()}
    for cell in picture.find("rect"):
        if "data-class" in cell.attributes:
            start, stop = map(int, cell.attributes["data-columns"].split())
            drawn[int(cell.attributes["data-row"]), start:stop] = kinds[cell.attributes["data-class"]]
    assert torch.equal(drawn, mask.classes()[0, 0])


def test_the_words_have_the_counts():
    picture = read(blocks_picture(MASKS["causal"]))
    label = picture.find("svg")[0].attributes["aria-label"]
    assert "28 full, 8 partial, 28 empty" in label and "7: full 0 to 6, partial 7" in label
    for words in ("full: 28", "partial: 8", "empty: 28", "blocks of 128 keys", "blocks of 128 queries"):
        assert words in picture.text
    large = read(blocks_picture(MASKS["large"]))
    assert "a cell is 2 x 2 blocks" in large.text and "Row by row" not in large.find("svg")[0].attributes["aria-label"]
    positions = read(positions_picture(MASKS["causal"]))
    assert "visible: 50.05% of the positions" in positions.text and "key position kv_idx" in positions.text


def test_what_cannot_be_drawn_is_a_sentence():
    assert "are not drawn one by one" in positions_picture(MASKS["large"])
    scattered = create_block_mask(lambda b, h, q, k: (q + k) % 2 == 0, None, None, 256, 256)
    assert "32,768 runs, too many to draw" in positions_picture(scattered)
    table = torch.arange(64)
    elsewhere = create_block_mask(document(table), None, None, 64, 64)
    table.resize_(8)
    assert "cannot be evaluated here" in positions_picture(elsewhere)


def test_each_head_has_its_picture_and_its_counts():
    html = MASKS["heads"]._repr_mimebundle_()["text/html"]
    stages = [e.attributes["data-title"] for e in read(html).find("details", class_="sx-stage")]
    assert stages == [f"batch element {b}, head {h}" for b, h in ((0, 0), (0, 1), (0, 2), (1, 0))] + ["Counts"]
    rows = [row.text for row in read(html).find("table")[-1].find("tr")]
    assert len(rows) == 7 and rows[1] == "batch 0, head 0466" and rows[3] == "batch 0, head 22113"
    many = MASKS["many heads"]._repr_mimebundle_()["text/html"]
    assert "the first 32 of 40" in many


@given(st.integers(1, 9), st.integers(1, 9), st.data())
def test_runs_cover_what_is_visible_once(rows, columns, data):
    bits = data.draw(st.lists(st.booleans(), min_size=rows * columns, max_size=rows * columns))
    visible = torch.tensor(bits).view(rows, columns)
    found = torch.zeros(rows, columns, dtype=torch.int64)
    for top, height, start, stop in visible_runs(visible):
        found[top : top + height, start:stop] += 1
    assert torch.equal(found, visible.long())


@given(st.lists(st.sampled_from((EMPTY, PARTIAL, FULL)), max_size=12))
def test_runs_of_classes(kinds):
    found = [EMPTY] * len(kinds)
    last = None
    for kind, start, stop in class_runs(kinds):
        assert kind != EMPTY and (kind, start) != last
        found[start:stop] = [kind] * (stop - start)
        last = (kind, stop)
    assert found == kinds
