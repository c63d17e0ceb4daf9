"""Section 9.8's pictures in a real browser: blocks that start, slices that appear, both themes, small windows."""

from __future__ import annotations

import pytest

from staxlab import view
from staxlab.measure.grouped_numbering import numbering
from staxlab.measure.matrix_traffic import tile_traffic
from staxlab.measure.pipeline_stages import pipeline, stage_budget
from staxlab.measure.projections import brick
from tests.view.test_browser import CONTRAST

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("products")
    records = {
        "numbering": numbering(6, 6, 2, 8),
        "points": brick(3, 2, 2),
        "traffic": tile_traffic(4096, 4096, 4096, tile=(128, 128, 32), itemsize=4, capacity=48 * 1024),
        "pipeline": pipeline(8, 1, latency=6, transfer=1, compute=2).compared((1, 2, 3, 4)),
        "budget": stage_budget((128, 128, 64), itemsize=2, epilogue_bytes=32 << 10),
    }
    return {name: view.write_page(folder / f"{name}.html", record).as_uri() for name, record in records.items()}


def test_blocks_start_one_after_the_other(page, pages):
    page.goto(pages["numbering"])
    slider, said = page.locator(".sx-steps-slider"), page.locator(".sx-steps-words")
    assert slider.input_value() == "8" and "6 in all" in said.inner_text()
    for step, rows, columns in (("0", 0, 0), ("1", 1, 1), ("3", 2, 2), ("8", 2, 4)):
        slider.fill(step)
        grouped = page.locator("svg[data-group='2']")
        assert grouped.locator("[data-pid].sx-lit").count() == int(step)
        assert grouped.locator("[data-a].sx-lit").count() == rows
        assert grouped.locator("[data-b].sx-lit").count() == columns
    row_major = page.locator("svg[data-group='1']")
    assert row_major.locator("[data-b].sx-lit").count() == 6


def test_slices_appear_with_their_shadows(page, pages):
    page.goto(pages["points"])
    shown = "[...document.querySelectorAll('[data-point]')].filter(e => e.style.visibility === 'visible').length"
    shadows = "[...document.querySelectorAll('[data-face]')].filter(e => e.style.visibility === 'visible').length"
    for step, points, squares in (("0", 0, 0), ("1", 4, 8), ("3", 12, 16)):
        page.locator(".sx-steps-slider").fill(step)
        assert page.evaluate(shown) == points and page.evaluate(shadows) == squares


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["numbering", "points", "traffic", "pipeline", "budget"])
def test_words_have_contrast_in_both_themes(browser, pages, name, scheme):
    context = browser.new_context(color_scheme=scheme)
    page = context.new_page()
    page.goto(pages[name])
    worst = page.evaluate(CONTRAST, ".sx-page")
    assert worst["ratio"] >= 4.5, worst
    context.close()


@pytest.mark.parametrize("name", ["numbering", "traffic", "pipeline", "budget"])
def test_a_small_window_scrolls_inside_and_not_as_a_whole(browser, pages, name):
    context = browser.new_context(viewport={"width": 420, "height": 700})
    page = context.new_page()
    page.goto(pages[name])
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    context.close()
