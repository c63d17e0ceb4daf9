"""Section 8's pictures in a real browser: steps, play and pause, less motion, links, both themes, small windows."""

from __future__ import annotations

import datetime

import pytest
import torch

import staxlab
from staxlab import view
from staxlab.options import host_instruction_set
from tests.view.test_browser import CONTRAST

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(host_instruction_set() not in ("avx512", "avx2"), reason="needs AVX2 or AVX-512"),
]


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cpu")
    total = staxlab.explain(lambda x: x.sum(-1), torch.randn(64, 1027)).kernels[0]
    tile = staxlab.explain(lambda x, y: x.t() + y, torch.randn(512, 256), torch.randn(256, 512)).kernels[0]
    records = {
        "lanes": total.lanes(),
        "lines": tile.cache_lines(),
        "sharing": tile.sharing().with_threads(7),
        "loop": total.inner_loop(),
    }
    return {name: view.write_page(folder / f"{name}.html", record).as_uri() for name, record in records.items()}


def test_a_step_lights_up_what_it_fills(page, pages):
    page.goto(pages["lanes"])
    page.locator(".sx-steps-slider").fill("1")
    lit = page.locator(".sx-lane-cell.sx-lit")
    assert lit.count() > 16 and page.locator(".sx-steps-words").inner_text().startswith("1 / ")
    counts = page.locator("text[data-texts]").all_text_contents()
    assert set(counts) == {"1"}
    page.locator(".sx-steps-slider").fill("0")
    assert set(page.locator("text[data-texts]").all_text_contents()) == {"0"} and lit.count() == 0


def test_it_plays_when_asked_and_stops_at_the_end(page, pages):
    page.clock.install(time=datetime.datetime(2026, 1, 1))
    page.goto(pages["lanes"])
    page.clock.pause_at(datetime.datetime(2026, 1, 2))  # from here on time passes only in run_for
    slider, play = page.locator(".sx-steps-slider"), page.get_by_role("button", name="Play")
    last = int(slider.get_attribute("max"))
    assert slider.input_value() == str(last)  # nothing moves by itself
    play.click()
    assert slider.input_value() == "0"
    page.clock.run_for(1000)
    assert slider.input_value() == "1"
    page.get_by_role("button", name="Pause").click()
    page.clock.run_for(5000)
    assert slider.input_value() == "1"
    page.get_by_role("button", name="Play").click()
    page.clock.run_for(1000 * (last + 2))
    assert slider.input_value() == str(last) and play.is_visible()


def test_who_wants_less_motion_gets_none(browser, pages):
    context = browser.new_context(reduced_motion="reduce")
    page = context.new_page()
    page.goto(pages["lanes"])
    assert page.locator(".sx-play").count() == 0 and page.get_by_role("button", name="Previous step").is_visible()
    still = "getComputedStyle(document.querySelector('.sx-lane-cell')).transitionDuration"
    assert page.evaluate(still) == "0s"
    context.close()


def test_rows_of_a_tile_are_lit_one_after_the_other(page, pages):
    page.goto(pages["lines"])
    figure = page.locator(".sx-steps").first
    figure.locator(".sx-steps-slider").fill("3")
    panels = figure.locator("svg")
    for k in range(panels.count()):
        lit = panels.nth(k).locator("rect.sx-lit[data-used]")
        assert lit.count() in (8, 16)
        assert len({lit.nth(j).get_attribute("y") for j in range(lit.count())}) == 1  # one line


def test_an_instruction_is_linked_to_the_operation_it_serves(page, pages):
    page.goto(pages["loop"])
    page.locator(".sx-listing .sx-line[data-origins]").first.hover()
    page.wait_for_selector(".sx-linked")


@pytest.mark.parametrize("name", ["lanes", "lines", "sharing", "loop"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1300, 480])
def test_it_fits_and_can_be_read(browser, pages, name, scheme, width):
    context = browser.new_context(color_scheme=scheme, viewport={"width": width, "height": 800})
    page = context.new_page()
    page.goto(pages[name])
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    worst = page.evaluate(CONTRAST, ".sx-page")
    assert worst["ratio"] >= 4.5, worst
    context.close()
