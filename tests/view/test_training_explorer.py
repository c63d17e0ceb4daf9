"""A training compilation, shown whole: what both halves share, then the stages of each, linked by the same origins."""

from __future__ import annotations

import dataclasses

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab import view
from staxlab.compilation import Fallback
from staxlab.view.explorer import parts, with_other_targets
from staxlab.view.stepper import Stages
from tests.view.reading import read, references
from tests.view.test_browser import CONTRAST

SHARED = ["capture", "transforms", "joint", "partition", "flow"]
HALF = ["operators", "loops", "schedule", "kernels", "asm", "wrapper"]
ABOUT = ["key", "decisions", "memory", "traffic", "build", "timings"]


def f(x, w):
    h = x @ w
    return F.gelu(h).sum()


def arguments():
    return torch.randn(32, 64), torch.randn(64, 64, requires_grad=True)


@pytest.fixture(scope="module")
def compilation():
    return staxlab.explain(f, *arguments())


@pytest.fixture(scope="module")
def tree(compilation):
    return read(view.html(compilation))


def stages(tree):
    return {e.attributes["data-stage"]: e for e in tree.walk() if "data-stage" in e.attributes}


def test_every_stage_of_both_halves_stands_in_order(tree, compilation):
    shown = stages(tree)
    assert list(shown) == [*SHARED, *HALF, *(f"backward-{key}" for key in HALF), *ABOUT]
    for key in HALF:
        assert shown[key].attributes["data-title"].startswith("Forward: ")
        assert shown[f"backward-{key}"].attributes["data-title"].startswith("Backward: ")
    for key in (*SHARED, *ABOUT):
        assert "ward" not in shown[key].attributes["data-title"]
    assert references(view.html(compilation)) == [] and "drawing failed" not in tree.text
    ids = [e.attributes["id"] for e in tree.walk() if "id" in e.attributes]
    assert len(ids) == len(set(ids))


def test_a_node_leads_to_the_kernels_of_both_halves(tree, compilation):
    gelu = str(compilation.graph.find("gelu").id)
    linked = {
        key
        for key, stage in stages(tree).items()
        if any(gelu in e.attributes.get("data-origins", "").split(" ") for e in stage.walk())
    }
    expected = {"capture", "joint", "partition", "flow", *HALF, *(f"backward-{key}" for key in HALF), "memory"}
    assert linked >= expected, expected - linked
    known = {node.id for node in compilation.graph}
    for element in tree.walk():
        assert {int(part) for part in element.attributes.get("data-origins", "").split()} <= known


def test_the_headline_says_what_each_half_has_and_what_is_kept(tree):
    (head,) = tree.find(class_="sx-headline")
    assert "1 kernel" not in head.text or "forward" in head.text
    assert "forward, 2 backward" in head.text and "8 KiB kept for the backward pass (min cut)" in head.text


def test_what_concerns_all_is_there_for_both_halves(tree, compilation):
    shown = stages(tree)
    for key in ("decisions", "traffic", "build", "timings"):
        assert "Forward" in shown[key].text and "Backward" in shown[key].text
    for kernel in (*compilation.kernels, *compilation.backward.kernels):
        assert kernel.name in shown["traffic"].text


def test_the_text_has_both_halves(compilation):
    text = str(compilation)
    before, _, after = text.partition("=== The backward half, compiled by itself (Section 5.6); 8,192 bytes")
    for half, part in ((before, compilation), (after, compilation.backward)):
        for stage, record in part.stages():
            assert f"--- {stage.title} (" in half and str(record) in half
    assert "erf" in after and "[BW]" in before


def test_the_stepper_steps_through_both_halves(compilation):
    found = Stages(compilation)
    assert found.titles == [title for title, _ in parts(compilation)]
    assert found.titles[found.position_of("kernels")] == "Forward: Kernels"
    assert found.titles[found.position_of("joint")] == "Joint graph"
    markup = found.markup(found.titles.index("Backward: Kernels"))
    assert compilation.backward.kernels[0].name in markup and "backward-kernels" in markup


def test_a_backward_half_that_is_not_compiled_yet_is_announced():
    compiled = staxlab.compile(f)
    loss = compiled(*arguments())
    compilation = compiled.versions[0].compilation
    assert compilation.backward is None
    assert "is compiled when it is first needed" in str(compilation) and "first needed" in view.html(compilation)
    shown = stages(read(view.html(compilation)))
    assert "backward" in shown and "backward-kernels" not in shown, "the graph is known already"
    loss.backward()
    assert "backward-kernels" in stages(read(view.html(compilation)))


def test_every_pattern_of_gradients_has_its_backward_half():
    def two(x, w):
        h = x @ w
        return h.sin().sum(), h.exp().sum()

    compiled = staxlab.compile(two)
    compilation = None
    for use in (lambda a, b: b, lambda a, b: a + b):
        use(*compiled(*arguments())).backward()
        compilation = compiled.versions[0].compilation
    keys = list(stages(read(view.html(compilation))))
    assert "backward-kernels" in keys and "backward-2-kernels" in keys and "backward-3-kernels" not in keys
    titles = [title for title, _ in parts(compilation)]
    assert "Backward: Kernels" in titles and "Backward 2: Kernels" in titles and len(set(titles)) == len(titles)
    said = "runs where a gradient is missing: without %tangents_1"
    assert f"Backward 2 {said}" in read(view.html(compilation)).text
    text = str(compilation)
    complete, partial = text.split("=== The backward half")[1:]
    assert complete.startswith(",") and partial.startswith(" without %tangents_1,")
    assert "cos" in complete and "cos" not in partial  # the derivative of the first result


def test_a_backward_half_that_runs_operator_by_operator_says_so(compilation):
    half = dataclasses.replace(compilation.backward, fallback=Fallback("no kernel for it", "write one"))
    whole = dataclasses.replace(compilation, backwards={frozenset(): half})
    after = str(whole).partition("=== The backward half")[2]
    assert "FALLBACK, runs operator by operator: no kernel for it\n  remedy: write one\n--- Operator graph" in after
    (note,) = read(view.html(whole)).find("p", class_="sx-warning")
    assert "The backward half runs operator by operator" in note.text and "write one" in note.text
    assert "FALLBACK" not in str(compilation)


def test_without_gradients_nothing_is_called_forward():
    with torch.no_grad():
        compilation = staxlab.explain(f, *arguments())
    titles = [title for title, _ in parts(compilation)]
    assert not [title for title in titles if "ward" in title or "Memory" in title] and "Kernels" in titles
    assert "backward" not in str(compilation).lower()


def test_other_targets_stand_behind_both_halves(compilation):
    other = staxlab.explain(f, *arguments(), target="sm_90")
    keys = [pane.key for pane in with_other_targets(compilation, [other]).panes]
    for prefix in ("", "backward-"):
        assert f"{prefix}kernels-sm_90" in keys
        assert keys.index(f"{prefix}kernels-sm_90") == keys.index(f"{prefix}asm") + 1


def test_a_page_has_all_of_it(compilation, tmp_path):
    compilation.write_html(tmp_path / "page.html")
    assert {*SHARED, *HALF, *(f"backward-{key}" for key in HALF)} <= set(
        stages(read((tmp_path / "page.html").read_text()))
    )


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_line_lights_up_kernels_of_both_halves_in_a_browser(browser, compilation, scheme, tmp_path):
    compilation.write_html(tmp_path / "page.html")
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1280, "height": 900})
    try:
        page = context.new_page()
        page.goto((tmp_path / "page.html").as_uri())
        for tab in page.locator(".sx-tab").all():
            tab.click()
            worst = page.evaluate(CONTRAST, ".sx-page")
            assert worst["ratio"] >= 4.5, (tab.inner_text(), worst)
        page.locator('.sx-tab[data-show="capture"]').click()
        page.locator(".sx-beside select").select_option("backward-kernels")
        page.locator('[data-stage="capture"] .sx-chip', has_text="%gelu").click()
        for key, marked in (("kernels", ".sx-line"), ("backward-kernels", ".sx-line"), ("memory", ".sx-lane")):
            assert page.locator(f'[data-stage="{key}"] {marked}.sx-linked').count(), key
        assert page.locator('[data-stage="backward-kernels"] .sx-line.sx-linked').first.is_visible()
        # From a moment in time back to the program.
        page.keyboard.press("Escape")
        page.locator('.sx-tab[data-show="memory"]').click()
        page.locator(".sx-beside select").select_option("capture")
        page.locator('.sx-lane[data-label="%gelu_backward"]').click()
        assert "%gelu" in page.locator('[data-stage="capture"] .sx-chip.sx-linked').all_inner_texts()
    finally:
        context.close()
