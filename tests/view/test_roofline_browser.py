"""A roofline in a real browser: words at the pointer and the focus, switches that take lines away, both themes."""

from __future__ import annotations

import pytest

from staxlab import view
from staxlab.measure.roofline import Ceiling, Point, Roofline
from tests.view.test_browser import CONTRAST

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    ceilings = (
        Ceiling("L2 read", "bandwidth", 150e9, "", "L2", 1 << 20),
        Ceiling("read", "bandwidth", 50e9),
        Ceiling("matmul float32", "throughput", 400e9),
    )
    points = (Point("sum", 1e6, 4e6, 1e-4, 4e6, None, 5e5, "float32"),)
    record = Roofline(ceilings, points, {"processor": "Test", "threads": 2})
    return view.write_page(tmp_path_factory.mktemp("roofline") / "page.html", record).as_uri()


def test_pointer_and_focus_are_told_the_numbers(page, address):
    page.goto(address)
    said = page.locator(".sx-roof-words")
    assert "has its numbers" in said.inner_text()
    page.locator("g[data-point='0'] path.sx-chart-point").hover()
    assert "27% of L2 read" in said.inner_text() and "4 MB moved" in said.inner_text()
    page.locator("g[data-ceiling='1']").focus()
    assert "read: 50 GB/s" in said.inner_text()


def test_a_line_goes_and_comes_back(page, address):
    page.goto(address)
    box = page.locator("li[data-ceiling='0'] input")
    line = page.locator("g[data-ceiling='0']")
    assert line.is_visible() and box.is_checked()
    box.uncheck()
    assert not line.is_visible() and page.locator("g[data-ceiling='1']").is_visible()
    box.check()
    assert line.is_visible()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_words_have_contrast_in_both_themes(browser, address, scheme):
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto(address)
    worst = page.evaluate(CONTRAST, ".sx-page")
    assert worst["ratio"] >= 4.5, worst
    context.close()
