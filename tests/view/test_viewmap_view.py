"""Views as maps on a small grid: the numbers in the drawing are what eager execution reads."""

from __future__ import annotations

import re

import pytest
import torch

from staxlab import view
from staxlab.loops.viewmap import view_map
from staxlab.view.charts import CHARACTER
from staxlab.view.document import SIZE_CAP
from staxlab.view.viewmap import MOST_CELLS
from tests.view.reading import read, references, stripped

CASES = {
    "transpose and slices": ((6, 8), lambda x: x.t()[1:, ::2]),
    "not affine": ((4, 6), lambda x: x.t().reshape(24)[3:]),
    "negative strides": ((2, 3, 4), lambda x: x.flip(2).permute(1, 0, 2)[1:]),
    "windows": ((8, 12), lambda x: x.unfold(1, 3, 3)[::2]),
    "broadcast": ((1, 6), lambda x: x.expand(4, 6).diagonal()),
    "merged": ((2, 3, 4), lambda x: x.view(6, 4)),
    "a row": ((11,), lambda x: x[1::2]),
    "a number": ((3, 4), lambda x: x[1, 2]),
    "four dimensions": ((2, 2, 3, 4), lambda x: x.movedim(0, 2)),
    "nothing at all": ((3, 4), lambda x: x),
    "no element": ((3, 4), lambda x: x[3:]),
}


def grids(html: str) -> list[list[int]]:
    """The numbers in the cells of each picture, in order: the storage, the tensor, then one for each step."""
    found = []
    for figure in read(html).find("figure", class_="sx-map"):
        cells = figure.find("g", class_="sx-node")
        for cell in cells:
            (text,) = [e.text for e in cell.children if getattr(e, "tag", "") == "text"]
            assert text == cell.attributes["data-element"] and cell.attributes["data-origins"] == f"e{text}"
        found.append([int(cell.attributes["data-element"]) for cell in cells])
    return found


@pytest.mark.parametrize("case", CASES)
def test_the_cells_hold_the_elements_that_eager_execution_reads(case):
    shape, function = CASES[case]
    record = view_map(shape, function)
    storage, tensor, *steps = grids(view.html(record))
    numbers = torch.arange(record.source.numel).view(shape)
    assert storage == tensor == numbers.flatten().tolist()
    assert len(steps) == len(record.steps)
    if steps:
        assert steps[-1] == function(numbers).flatten().tolist()
    for count, shown in enumerate(steps, 1):
        assert shown == record.addresses_after(count).flatten().tolist()


def test_cells_say_which_subscript_reads_what_and_whether_the_view_reaches_it():
    html = view.html(view_map((6, 8), lambda x: x.t()[1:, ::2]))
    cells = read(html).find("g", class_="sx-node")
    said = {cell.attributes["aria-label"] for cell in cells}
    assert "after 3. slice (0, 1) reads element 17" in said and "after 1. t (1, 2) reads element 17" in said
    assert "storage element 0, not reached by the last view" in said
    for cell in cells:
        apart = cell.has("class_", "sx-map-apart")
        assert apart == ("not reached" in cell.attributes["aria-label"])
        (frame,) = cell.find("rect")
        assert (frame.attributes["stroke"] == "none") == apart == (frame.attributes["fill"] == "none")
    # Equal shade is equal row of the tensor.
    shades = {
        int(c.attributes["data-element"]): c.attributes["class"].split()[-1]
        for c in cells
        if "sx-region" in str(c.attributes)
    }
    assert all(shade == f"sx-region-{number // 8}" for number, shade in shades.items())


@pytest.mark.parametrize("case", CASES)
def test_the_numbers_below_each_grid(case):
    record = view_map(*CASES[case])
    figures = read(view.html(record)).find("figure", class_="sx-map")[2:]
    for figure, step in zip(figures, record.steps, strict=True):
        (formula,) = figure.find("pre")
        lines = formula.text.splitlines()
        assert lines[0] == step.map_text() and all(line in lines for line in step.law())
        assert ("A = " in formula.text) == (bool(step.matrix))
        notes = [e.text for e in figure.find("p", class_="sx-note")]
        assert step.verdict() in notes and ("Eager execution copies here." in notes) == step.copies
        warned = figure.find("p", class_="sx-warning")
        assert bool(warned) == (step.layout is None)


def test_the_failing_pair_is_named():
    html = view.html(view_map((4, 6), lambda x: x.t().reshape(24)[3:]))
    (first, _) = read(html).find("p", class_="sx-warning")
    assert first.text.startswith("no strides: t0 = s1 t1 fails: 1 != 4*6 (along i1 the address moves by 6,")
    whole = read(html).find("div", class_="sx-map-whole")[0].text
    assert "address = 6*((i0 + 3) % 4) + ((i0 + 3) // 4)" in whole and "no strides" in whole


@pytest.mark.parametrize("case", CASES)
def test_a_view_is_text_and_self_contained_html(case):
    record = view_map(*CASES[case])
    bundle = record._repr_mimebundle_()
    html = bundle["text/html"]
    assert "drawing failed" not in html and len(html) < SIZE_CAP and bundle["text/plain"] == record.format()
    assert view.html(record) == html and references(html) == [] and " at 0x" not in html
    assert not any("hidden" in e.attributes for e in read(stripped(html)).walk())
    for picture in read(html).find("svg"):
        assert picture.attributes["aria-label"] == picture.find("title")[0].text
        assert picture.attributes["role"] == "group"


@pytest.mark.parametrize("case", CASES)
def test_nothing_is_cut_off_and_no_label_covers_another(case):
    for picture in read(view.html(view_map(*CASES[case]))).find("svg"):
        width, height = (float(picture.attributes[name]) for name in ("width", "height"))
        boxes = []
        for text in picture.find("text"):
            long = CHARACTER * len(text.text)
            x, y = float(text.attributes["x"]), float(text.attributes["y"])
            left = {"middle": x - long / 2, "end": x - long}.get(text.attributes.get("text-anchor"), x)
            assert left >= 0 and left + long <= width + 1 and y - 9 >= 0 and y + 2 <= height, text.text
            boxes.append((left, y - 9, left + long, y + 1))
        for k, one in enumerate(boxes):
            for other in boxes[:k]:
                apart = one[2] <= other[0] or other[2] <= one[0] or one[3] <= other[1] or other[3] <= one[1]
                assert apart, (one, other)
        for frame in picture.find("rect"):
            x, y, w, h = (float(frame.attributes[name]) for name in ("x", "y", "width", "height"))
            assert x >= 0 and y >= 0 and x + w <= width and y + h <= height


def test_large_shapes_are_told_in_numbers():
    html = view.html(view_map((64, 32), lambda x: x.t()))
    assert read(html).find("svg") == [] and "A grid of 2,048 cells would explain nothing" in html
    assert "address = i0 + 32*i1" in html
    small = view.html(view_map((10, MOST_CELLS // 10), lambda x: x.t()))
    assert len(read(small).find("svg")) == 3


def test_the_users_line_stands_once():
    def look(x):
        y = x.t()
        return y[1:, ::2]

    notes = re.findall(r"line (\d+): <code", view.html(view_map((4, 6), look)))
    assert list(map(int, notes)) == [look.__code__.co_firstlineno + 1, look.__code__.co_firstlineno + 2]
