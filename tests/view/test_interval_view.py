"""Intervals at the ends of the lines of the loop IR, and the box that shows and hides them."""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab import view
from tests.view.reading import read, stripped


def g1(x, idx):
    return x[idx] * 2


def plain(x):
    return (x * 2).sum(-1)


def loops(function, *inputs):
    return staxlab.explain(function, *inputs).loops


def test_they_are_shown_to_begin_with_where_a_check_hangs_on_them():
    checked = read(view.html(loops(g1, torch.randn(8), torch.arange(4))))
    unchecked = read(view.html(loops(plain, torch.randn(8, 4))))
    for page, shown in ((checked, True), (unchecked, False)):
        (box,) = page.find("input", type="checkbox")
        assert ("checked" in box.attributes) is shown and "intervals" in box.parent.text
    (kept,) = [e.text for e in checked.find("span", class_="sx-remark") if "fix-up" in e.text]
    assert kept.strip() == "# [-inf, +inf] not within [0, 7]: fix-up and check kept"
    assert "subscript [0, 31]" in read(stripped(view.html(loops(plain, torch.randn(8, 4))))).text


def test_the_text_of_a_stage_has_them_when_asked():
    program = loops(g1, torch.randn(8), torch.arange(4))
    assert program._repr_mimebundle_()["text/plain"] == program.format() != program.format(intervals=True)


@pytest.mark.browser
def test_the_box_hides_and_shows(page, tmp_path):
    page.goto(view.write_page(tmp_path / "loops.html", loops(g1, torch.randn(8), torch.arange(4))).as_uri())
    remark, box = page.locator(".sx-remark").first, page.locator(".sx-remark-box input")
    assert remark.is_visible()
    box.focus()
    page.keyboard.press("Space")
    assert not remark.is_visible() and page.locator(".sx-line", has_text="load idx").is_visible()
    page.keyboard.press("Space")
    assert remark.is_visible()
