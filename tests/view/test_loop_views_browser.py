"""Compositions and view maps in a real browser: folding, links by pointer and keyboard, both themes, small windows."""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab import view
from staxlab.loops.composition import compose
from staxlab.loops.viewmap import view_map
from tests.view.test_browser import CONTRAST

pytestmark = pytest.mark.browser


def example_1_1(x, w):
    y = torch.relu(x + w)
    return (y * 2).sum(-1)


@pytest.fixture(scope="module")
def compilation():
    return staxlab.explain(example_1_1, torch.randn(64, 128), torch.randn(128))


@pytest.fixture(scope="module")
def pages(compilation, tmp_path_factory):
    folder = tmp_path_factory.mktemp("loops")
    records = {
        "composition": compose(compilation.loops),
        "affine": view_map((6, 8), lambda x: x.t()[1:, ::2]),
        "reshape": view_map((4, 6), lambda x: x.t().reshape(24)[3:]),
        "explorer": compilation,
    }
    return {name: view.write_page(folder / f"{name}.html", record).as_uri() for name, record in records.items()}


def test_boxes_fold_with_all_that_is_in_them(page, pages):
    page.goto(pages["composition"])
    shown = page.locator(".sx-box")
    assert sum(box.is_visible() for box in shown.all()) == 7  # the buffer, four operators, two loads
    page.locator('.sx-box[data-operator="mul"] > summary code').first.click()
    assert [b.is_visible() for b in page.locator("[data-operator]").all()] == [True, True, False, False]
    assert not page.locator(".sx-box-load").first.is_visible()


def test_pointing_at_an_operator_names_it(page, pages):
    page.goto(pages["composition"])
    page.locator('.sx-box[data-operator="relu"] > summary .sx-inline').hover()
    page.wait_for_selector(".sx-linked")
    line = example_1_1.__code__.co_firstlineno + 1
    assert page.locator(".sx-status").inner_text().startswith(f"relu (line {line}) → ")
    assert page.locator(".sx-box .sx-linked").all_inner_texts() == ["relu"]


def test_arrow_keys_go_from_box_to_box(page, pages):
    page.goto(pages["composition"])
    page.locator('.sx-boxes [tabindex="0"]').focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.innerText") == "mul"
    page.keyboard.press("Enter")
    assert page.locator('.sx-box[data-operator="mul"]').get_attribute("open") is not None, (
        "Enter links, it does not fold"
    )
    assert "pinned" in page.locator(".sx-status").inner_text()


def test_the_explorer_links_boxes_to_kernel_lines(page, pages):
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(pages["explorer"])
    page.locator('.sx-tab[data-show="loops"]').click()
    part = page.locator('[data-part="composition"]')
    assert not part.locator('[data-operator="relu"]').is_visible()
    part.locator("summary").first.click()
    part.locator("details.sx-more > summary").first.click()
    part.locator('[data-operator="relu"] > summary .sx-inline').hover()
    page.wait_for_selector('[data-stage="kernels"] .sx-line.sx-linked')


def test_pointing_at_a_number_finds_it_in_every_grid(page, pages):
    page.goto(pages["affine"])
    page.locator('.sx-node[data-element="17"]').nth(1).hover()
    page.wait_for_selector(".sx-linked")
    assert page.locator(".sx-node.sx-linked").count() == 5
    said = page.locator(".sx-status").inner_text()
    assert (
        said == "element 17 → storage 17 · x (2, 1) · after 1. t (1, 2) · after 2. slice (0, 2) · after 3. slice (0, 1)"
    )


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["composition", "affine", "reshape"])
def test_all_text_is_readable_in_both_themes(browser, pages, scheme, name):
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1180, "height": 900})
    try:
        page = context.new_page()
        page.goto(pages[name])
        worst = page.evaluate(CONTRAST, ".sx-page")
        assert worst["ratio"] >= 4.5, worst
        page.locator("[data-origins]").nth(2).click()
        worst = page.evaluate(CONTRAST, ".sx-page")
        assert worst["ratio"] >= 4.5, ("linked", worst)
    finally:
        context.close()


@pytest.mark.parametrize("name", ["composition", "affine", "reshape"])
@pytest.mark.parametrize("width", [1180, 420])
def test_nothing_sticks_out_of_the_page(browser, pages, name, width):
    context = browser.new_context(viewport={"width": width, "height": 900})
    try:
        page = context.new_page()
        page.goto(pages[name])
        assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
        wide = page.evaluate(
            """() => [...document.querySelectorAll('.sx-stage-body > *')].filter((e) => {
                const box = e.getBoundingClientRect();
                return box.right > window.innerWidth || box.left < 0;
            }).length"""
        )
        assert wide == 0
    finally:
        context.close()
