"""The explorer in a real browser: tabs, links by pointer and keyboard, both themes, and what is left without scripts.

Chromium only, headless; the file is skipped, visibly, where there is none.
"""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from staxlab import view
from staxlab.codegen.kernel import KernelSet
from staxlab.provenance import Line
from tests.view import examples
from tests.view.reading import stripped

pytestmark = pytest.mark.browser

# The smallest contrast of any visible text with what is painted behind it, and where it was found.
CONTRAST = """
(root) => {
  const parse = (c) => { const m = c.match(/[\\d.]+/g).map(Number); return m.length > 3 ? m : [...m, 1]; };
  const luminance = ([r, g, b]) => {
    const f = (v) => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
    return 0.2126 * f(r) + 0.7152 * f(g) + 0.0722 * f(b);
  };
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      if (e.tagName.toLowerCase() === 'g' && e.classList.contains('sx-node')) {
        return parse(getComputedStyle(e.querySelector('.sx-frame')).fill);
      }
      const color = parse(getComputedStyle(e).backgroundColor);
      if (color[3] > 0.99) return color;
    }
    return [255, 255, 255, 1];
  };
  let worst = { ratio: 99 };
  const texts = document.createTreeWalker(document.querySelector(root), NodeFilter.SHOW_TEXT);
  while (texts.nextNode()) {
    const element = texts.currentNode.parentElement;
    if (!texts.currentNode.data.trim() || !element.getClientRects().length) continue;
    if (element.closest('style, script, title, option, :disabled')) continue;
    if (getComputedStyle(element).opacity === '0') continue;
    const inDrawing = element.tagName.toLowerCase() === 'text';
    const ink = luminance(parse(inDrawing ? getComputedStyle(element).fill : getComputedStyle(element).color));
    const paper = luminance(behind(element));
    const ratio = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    const text = texts.currentNode.data.trim().slice(0, 40);
    if (ratio < worst.ratio) worst = { ratio, text, class: element.className };
  }
  return worst;
}
"""


@pytest.fixture(scope="module")
def compilation():
    return examples.compilation()


@pytest.fixture(scope="module")
def written(compilation, tmp_path_factory) -> Path:
    return view.write_page(tmp_path_factory.mktemp("pages") / "explorer.html", compilation, title="An explorer")


@pytest.fixture
def explorer(page, written):
    page.set_viewport_size({"width": 1280, "height": 900})
    page.goto(written.as_uri())
    return page


def line(page, stage: str, text: str):
    return page.locator(f'[data-stage="{stage}"] .sx-line', has_text=text).first


def node(page, stage: str, name: str):
    return page.locator(f'[data-stage="{stage}"] .sx-node[data-label="{name}"]').first


def linked(page, stage: str) -> list[str]:
    return page.locator(f'[data-stage="{stage}"] .sx-line.sx-linked').evaluate_all("es => es.map(e => e.dataset.line)")


def status(page) -> str:
    return page.locator(".sx-status").inner_text()


# -- tabs ------------------------------------------------------------------------------------------------------------


def shown(page) -> list[str]:
    return page.locator(".sx-stage").evaluate_all(
        "es => es.filter(e => e.getClientRects().length).map(e => e.dataset.pane + ':' + e.dataset.stage)"
    )


def test_stages_are_tabs_and_two_stand_beside_each_other(explorer):
    stages = explorer.locator(".sx-stage").count()
    assert explorer.locator(".sx-tab").count() == stages > 8
    assert shown(explorer) == ["left:capture", "right:kernels"]
    explorer.get_by_role("button", name="Next stage").click()
    assert shown(explorer) == ["left:transforms", "right:kernels"]
    explorer.locator('.sx-tab[data-show="loops"]').click()
    explorer.locator('.sx-tab[data-show="asm"]').click(modifiers=["Shift"])
    assert shown(explorer) == ["left:loops", "right:asm"]
    explorer.get_by_label("Stage shown beside the first").select_option("schedule")
    assert shown(explorer) == ["left:loops", "right:schedule"]
    explorer.get_by_label("Stage shown beside the first").select_option("")
    assert shown(explorer) == ["left:loops"]
    explorer.get_by_role("button", name="Previous stage").click()
    assert shown(explorer) == ["left:operators"]


def test_the_ends_of_the_row_of_stages(explorer):
    assert explorer.get_by_role("button", name="Previous stage").is_disabled()
    explorer.locator(".sx-tab").last.click()
    assert explorer.get_by_role("button", name="Next stage").is_disabled()


def test_the_stage_buttons_answer_to_arrow_keys(explorer):
    explorer.locator('.sx-tab[data-show="capture"]').focus()
    explorer.keyboard.press("ArrowRight")
    explorer.keyboard.press("Enter")
    assert shown(explorer)[0] == "left:transforms"


# -- links by pointer ------------------------------------------------------------------------------------------------


def test_pointing_at_a_node_lights_up_its_line_in_the_kernel(explorer):
    node(explorer, "capture", "%relu").hover()
    explorer.wait_for_selector('[data-stage="kernels"] .sx-line.sx-linked')
    assert linked(explorer, "kernels") == ["9"]
    assert linked(explorer, "capture")[0] == "2", "the line of the source"
    said = status(explorer)
    assert said.startswith("relu (line 2) → ") and "%relu" in said and "fused_add_relu_mul_sum_0 line 9" in said
    explorer.mouse.move(5, 5)
    explorer.wait_for_function("!document.querySelector('.sx-linked')")
    assert status(explorer).startswith("Point at")


def test_the_cue_is_not_colour_alone(explorer):
    target = line(explorer, "kernels", "max(tmp2")
    before = target.locator(".sx-n").evaluate("e => getComputedStyle(e, '::after').content")
    node(explorer, "capture", "%relu").hover()
    explorer.wait_for_selector(".sx-linked")
    after = target.locator(".sx-n").evaluate("e => getComputedStyle(e, '::after').content")
    assert before == '""' and after == '"▸"'
    assert target.evaluate("e => getComputedStyle(e).boxShadow") != "none"
    assert node(explorer, "capture", "%relu").locator(".sx-mark").evaluate("e => getComputedStyle(e).opacity") == "1"


def test_the_text_does_not_move_when_a_line_is_marked(explorer):
    target = line(explorer, "kernels", "max(tmp2")
    measure = """(element) => {
      const range = document.createRange();
      range.selectNodeContents(element.lastChild);
      return range.getBoundingClientRect().right;
    }"""
    before = target.evaluate(measure)
    node(explorer, "capture", "%relu").hover()
    explorer.wait_for_selector(".sx-linked")
    assert target.evaluate(measure) == before


def test_hidden_stages_say_how_much_of_them_is_linked(explorer):
    node(explorer, "capture", "%add").hover()
    explorer.wait_for_selector(".sx-linked")
    badge = explorer.locator('.sx-tab[data-show="asm"] .sx-badge')
    assert badge.inner_text() == "▸1"
    assert explorer.locator('.sx-tab[data-show="decisions"] .sx-badge').inner_text() == ""


def test_the_buttons_stay_where_they_are(explorer):
    """A button that moves between the press and the release of the pointer gets no click."""
    places = "[...document.querySelectorAll('.sx-tab')].map((e) => Object.values(e.getBoundingClientRect().toJSON()))"
    before = explorer.evaluate(places)
    node(explorer, "capture", "%add").hover()
    explorer.wait_for_selector(".sx-linked")
    assert explorer.locator('.sx-tab[data-show="asm"] .sx-badge').is_visible()
    assert explorer.evaluate(places) == before
    explorer.locator('.sx-tab[data-show="asm"]').click()
    assert explorer.evaluate(places) == before


def test_a_click_pins_and_a_second_one_lets_go(explorer):
    line(explorer, "kernels", "tmp0 + tmp1").click()
    node(explorer, "capture", "%sum").hover()
    explorer.wait_for_timeout(60)
    assert linked(explorer, "kernels") == ["8"] and "pinned" in status(explorer)
    line(explorer, "kernels", "tmp0 + tmp1").click()
    assert linked(explorer, "kernels") == []


def test_pins_survive_a_change_of_stage(explorer):
    node(explorer, "capture", "%relu").click()
    explorer.locator('.sx-tab[data-show="loops"]').click()
    assert explorer.locator('[data-stage="loops"] .sx-line.sx-linked').count() >= 1
    assert "pinned" in status(explorer)


def test_selecting_text_is_not_a_click(explorer):
    box = line(explorer, "kernels", "max(tmp2").bounding_box()
    explorer.mouse.move(box["x"] + 80, box["y"] + 8)
    explorer.mouse.down()
    explorer.mouse.move(box["x"] + 260, box["y"] + 8, steps=4)
    explorer.mouse.up()
    assert explorer.evaluate("String(getSelection()).length") > 5
    assert "pinned" not in status(explorer)


def test_copied_code_has_no_line_numbers(explorer):
    line(explorer, "kernels", "vec acc").evaluate(
        """(element) => {
          const range = document.createRange();
          range.selectNode(element);
          getSelection().removeAllRanges();
          getSelection().addRange(range);
        }"""
    )
    assert explorer.evaluate("String(getSelection())").strip() == "vec acc = vec(0.0f);"


# -- links by keyboard -----------------------------------------------------------------------------------------------


def test_everything_is_reached_from_the_keyboard(explorer):
    explorer.locator(".sx-tab").last.focus()
    explorer.keyboard.press("Tab")  # the choice of the stage beside it
    explorer.keyboard.press("Tab")
    focused = "document.activeElement.closest('.sx-line, .sx-node')?.textContent"
    assert "def f(x, w)" in explorer.evaluate(focused)
    explorer.keyboard.press("ArrowDown")  # the first thing recorded on that line
    for _ in range(2):
        explorer.keyboard.press("ArrowDown")
    assert "torch.relu" in explorer.evaluate(focused)
    assert linked(explorer, "kernels") == ["8", "9"], "the focus shows links without pinning"
    explorer.keyboard.press("Enter")
    assert "pinned" in status(explorer)
    explorer.keyboard.press("Escape")
    assert linked(explorer, "kernels") == [] and status(explorer).startswith("Point at")


def test_n_and_p_go_through_what_is_linked(explorer):
    line(explorer, "capture", "torch.relu").focus()
    explorer.keyboard.press("Enter")
    where = "[document.activeElement.closest('[data-stage]').dataset.stage, document.activeElement.textContent.trim()]"
    visited = []
    for _ in range(12):
        explorer.keyboard.press("n")
        visited.append(tuple(explorer.evaluate(where)))
    assert ("kernels", "8             vec tmp2 = tmp0 + tmp1;  // add <b>&") in visited
    explorer.keyboard.press("p")
    assert tuple(explorer.evaluate(where)) == visited[-2]
    assert "pinned" in status(explorer), "going through the links keeps them"


def test_a_group_has_one_tab_stop_that_follows_the_focus(explorer):
    line(explorer, "kernels", "vec acc = vec").focus()
    explorer.keyboard.press("ArrowDown")
    stops = explorer.locator('[data-stage="kernels"] .sx-line[tabindex="0"]')
    assert stops.count() == 1 and "for (long r0" in stops.inner_text()


# -- scrolling -------------------------------------------------------------------------------------------------------


def test_linking_scrolls_the_other_pane_and_never_the_page(page, tmp_path, compilation):
    filler = tuple(Line(f"// filler {k}") for k in range(400))
    kernel = dataclasses.replace(examples.kernel(), lines=filler + examples.KERNEL_LINES)
    kernels = KernelSet((examples.DisassembledKernel(**vars(kernel)),))
    long = dataclasses.replace(compilation, records=compilation.records | {"kernels": kernels})
    page.set_viewport_size({"width": 1280, "height": 700})
    page.goto(view.write_page(tmp_path / "long.html", long).as_uri())
    pane = page.locator('[data-stage="kernels"] .sx-stage-body')
    assert pane.evaluate("e => e.scrollTop") == 0
    node(page, "capture", "%add").hover()
    page.wait_for_selector('[data-stage="kernels"] .sx-linked')
    assert pane.evaluate("e => e.scrollTop") > 1000
    target = line(page, "kernels", "tmp0 + tmp1").bounding_box()
    frame = pane.bounding_box()
    assert frame["y"] <= target["y"] and target["y"] + target["height"] <= frame["y"] + frame["height"]
    assert page.evaluate("scrollY") == 0


# -- roots, hosts, themes --------------------------------------------------------------------------------------------


def test_links_stay_within_their_root(page, tmp_path):
    records = {"one": examples.kernel(), "two": examples.kernel()}
    page.goto(view.write_page(tmp_path / "two.html", records).as_uri())
    page.locator(".sx-root").nth(0).locator(".sx-line", has_text="max(tmp2").hover()
    page.wait_for_selector(".sx-linked")
    assert page.locator(".sx-root").nth(0).locator(".sx-linked").count() == 1
    assert page.locator(".sx-root").nth(1).locator(".sx-linked").count() == 0


def test_outputs_that_appear_later_are_linked_too(page, tmp_path):
    """As in a live notebook: each output brings the script again, and its root appears after the first has run."""
    page.goto(view.write_page(tmp_path / "live.html", examples.kernel()).as_uri())
    page.evaluate(
        """(html) => {
          const host = document.createElement('div');
          host.id = 'later';
          host.innerHTML = html;
          document.body.append(host);
          for (const old of host.querySelectorAll('script')) {  // what JupyterLab does with scripts it trusts
            const script = document.createElement('script');
            script.textContent = old.textContent;
            old.replaceWith(script);
          }
        }""",
        view.html([examples.kernel(), examples.wrapper()]),
    )
    assert page.locator("#later .sx-tab").count() == 2
    page.locator("#later .sx-line", has_text="max(tmp2").hover()
    page.wait_for_selector("#later .sx-linked")
    assert page.locator("#later .sx-status").inner_text().startswith("node 3 → ")


def test_nothing_is_fetched(page, written):
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(written.as_uri())
    page.wait_for_timeout(50)
    assert asked == [written.as_uri()]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_is_readable_in_both_themes(browser, written, scheme, tmp_path):
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 900})
    try:
        page = context.new_page()
        page.goto(written.as_uri())
        background = page.locator(".sx-page").evaluate("e => getComputedStyle(e).backgroundColor")
        assert (sum(map(int, re.findall(r"\d+", background)[:3])) > 380) == (scheme == "light")
        for tab in page.locator(".sx-tab").all():
            tab.click()
            worst = page.evaluate(CONTRAST, ".sx-page")
            assert worst["ratio"] >= 4.5, (tab.inner_text(), worst)
        page.locator('.sx-tab[data-show="capture"]').click()
        line(page, "capture", "torch.relu").click()
        worst = page.evaluate(CONTRAST, ".sx-page")
        assert worst["ratio"] >= 4.5, ("linked", worst)
        # The page's own switch turns the theme around.
        page.locator(".sx-theme").click()
        assert page.locator(".sx-page").evaluate("e => getComputedStyle(e).backgroundColor") != background
        assert page.evaluate(CONTRAST, ".sx-page")["ratio"] >= 4.5
    finally:
        context.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("host", ["jupyter light", "jupyter dark", "vscode dark"])
def test_the_hosts_theme_wins_over_the_readers_system(browser, scheme, host, tmp_path):
    kind = {"jupyter light": 'data-jp-theme-light="true"', "jupyter dark": 'data-jp-theme-light="false"'}.get(
        host, 'data-vscode-theme-kind="vscode-dark"'
    )
    variables = {
        "jupyter light": "--jp-layout-color1: #ffffff; --jp-content-font-color1: rgba(0, 0, 0, 0.87)",
        "jupyter dark": "--jp-layout-color1: #212121; --jp-content-font-color1: #ffffff",
        "vscode dark": "--vscode-editor-background: #1f1f1f; --vscode-editor-foreground: #cccccc",
    }[host]
    path = tmp_path / "host.html"
    page_text = f'<!doctype html><meta charset="utf-8"><body {kind} style="{variables}">{view.html(examples.kernel())}'
    path.write_text(page_text, encoding="utf-8")
    context = browser.new_context(color_scheme=scheme)
    try:
        page = context.new_page()
        page.goto(path.as_uri())
        background = page.locator(".sx-root").evaluate("e => getComputedStyle(e).backgroundColor")
        expected = {
            "jupyter light": "rgb(255, 255, 255)",
            "jupyter dark": "rgb(33, 33, 33)",
            "vscode dark": "rgb(31, 31, 31)",
        }
        assert background == expected[host]
        assert page.evaluate(CONTRAST, ".sx-root")["ratio"] >= 4.5
    finally:
        context.close()


# -- what is left ----------------------------------------------------------------------------------------------------


def test_without_scripts_the_stages_unfold(browser, written):
    context = browser.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto(written.as_uri())
        assert page.locator("details.sx-stage > summary").first.is_visible()
        assert page.locator('[data-stage="kernels"] pre').first.is_visible()
        assert not page.locator('[data-stage="loops"] pre').first.is_visible()
        page.locator('[data-stage="loops"] > summary').click()
        assert page.locator('[data-stage="loops"] pre').first.is_visible()
        assert page.locator(".sx-tab, .sx-status").count() == 0, "nothing promises what only a script can do"
    finally:
        context.close()


def test_without_styles_and_scripts_it_still_reads(browser, written, tmp_path):
    path = tmp_path / "stripped.html"
    path.write_text(stripped(written.read_text(encoding="utf-8")), encoding="utf-8")
    context = browser.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.goto(path.as_uri())
        page.locator('[data-stage="loops"] > summary').click()
        text = page.locator('[data-stage="loops"] pre').first.inner_text()
        assert any(re.match(r"\s*7 +tmp2 = add\(tmp0, tmp1\)", row) for row in text.splitlines())
        # Drawings keep their own colours: no black boxes.
        frame = page.locator('[data-stage="capture"] svg rect').first
        assert frame.evaluate("e => getComputedStyle(e).fill") == "rgb(228, 240, 251)"
        mark = page.locator('[data-stage="capture"] svg g[role=button] text').last
        assert mark.text_content() == "▸" and mark.evaluate("e => getComputedStyle(e).opacity") == "0"
    finally:
        context.close()


def test_a_narrow_page_does_not_scroll_sideways(browser, written):
    context = browser.new_context(viewport={"width": 390, "height": 800})
    try:
        page = context.new_page()
        page.goto(written.as_uri())
        assert len(shown(page)) == 1
        for tab in page.locator(".sx-tab").all():
            tab.click()
            overflow = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
            assert overflow <= 0, tab.inner_text()
    finally:
        context.close()
