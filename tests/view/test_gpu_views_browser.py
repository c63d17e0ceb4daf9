"""Section 9's pictures in a real browser: links between the steps of a kernel, both themes, small windows."""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab import view
from staxlab.measure.coalescing import compare_tilings
from staxlab.measure.little import InFlight, littles_law
from tests.view.test_browser import CONTRAST

pytest.importorskip("triton")
pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def pages(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gpu")
    made = staxlab.explain(lambda x, y: x.t() + y, torch.empty(512, 256), torch.empty(256, 512), target="sm_90")
    kernel = made.kernels[0]
    records = {
        "steps": kernel.lowering_steps(),
        "occupancy": kernel.occupancy(),
        "tilings": compare_tilings(made.schedule),
        "law": littles_law("sm_90", points=(InFlight("one load", 16, 8), InFlight("four loads", 64, 32))),
        "explorer": made,
    }
    return {name: view.write_page(folder / f"{name}.html", record).as_uri() for name, record in records.items()}


def test_a_line_of_the_kernel_lights_up_its_lines_in_every_step(page, pages):
    page.goto(pages["steps"])
    kernel = page.locator('[data-stage="steps-kernel"] .sx-line[data-origins]')
    line = kernel.filter(has_text="tmp2 = tmp0 + tmp1")
    number = line.get_attribute("data-origins")
    for step, word in (
        ("ttir", "arith.addf"),
        ("ttgir", "arith.addf"),
        ("llir", "fadd"),
        ("ptx", "add"),
        ("sass", "FADD"),
    ):
        page.select_option("select", step)
        line.hover()
        page.wait_for_selector(f'[data-stage="{step}"] .sx-linked')
        lit = page.locator(f'[data-stage="{step}"] .sx-line.sx-linked')
        assert lit.count() and set(lit.evaluate_all("all => all.map(e => e.dataset.origins)")) == {number}
        assert any(word in text for text in lit.all_text_contents())


def test_a_machine_instruction_leads_back_to_its_line(page, pages):
    page.goto(pages["steps"])
    page.locator('[data-stage="sass"] .sx-line', has_text="LDG").first.hover()
    page.wait_for_selector('[data-stage="steps-kernel"] .sx-linked')
    lit = page.locator('[data-stage="steps-kernel"] .sx-line.sx-linked')
    assert lit.count() == 1 and "tl.load" in lit.inner_text()


def test_the_explorer_has_a_tab_for_each_step(page, pages):
    page.goto(pages["explorer"])
    for step in ("ttir", "ttgir", "llir", "ptx", "sass"):
        assert page.locator(f'[data-stage="{step}"]').count() == 1


@pytest.mark.parametrize("name", ["steps", "occupancy", "tilings", "law"])
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
