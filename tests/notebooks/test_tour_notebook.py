"""The tour in a browser: in a converted page and in a real JupyterLab, with Run All Cells, stages clicked through, and
a highlight that appears in another stage. What holds for every notebook is tested in ``test_notebooks.py``.
"""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest

from tests.notebooks.lab import DARK, LIGHT, ROOT, jupyterlab, open_notebook, run_all_cells
from tests.view.reading import read

NOTEBOOK = ROOT / "notebooks" / "00_tour.ipynb"


def test_linking_in_the_notebook_goes_from_the_cell_to_the_kernel(cache_dir):
    """A function written in a cell has no file: its source still carries the links."""
    import staxlab
    from staxlab import view
    from staxlab.oneliner import define

    scope_function = define("def f(x, w):\n    return (torch.relu(x + w) * 2).sum(-1)\n", file="<ipython-input-1>")
    import torch

    compilation = staxlab.explain(scope_function, torch.randn(8, 16), torch.randn(8, 16))
    stages = {
        e.attributes["data-stage"]: e for e in read(view.html(compilation)).walk() if "data-stage" in e.attributes
    }
    (relu,) = [str(node.id) for node in compilation.graph if node.name == "relu"]
    for stage in ("capture", "operators", "loops", "schedule", "kernels", "wrapper", "traffic"):
        linked = [e for e in stages[stage].walk() if relu in e.attributes.get("data-origins", "").split()]
        assert linked, stage
    assert "a notebook cell" in stages["capture"].text


# -- converted -------------------------------------------------------------------------------------------------------


@pytest.fixture
def offline(page):
    """A page that can reach files only. nbconvert's own template asks for MathJax; nothing of ours may need it."""
    page.route(re.compile(r"^https?://"), lambda route: route.abort())
    page.set_viewport_size({"width": 1400, "height": 1000})
    return page


@pytest.mark.slow
@pytest.mark.browser
def test_the_links_work_in_the_converted_notebook(converted, offline):
    offline.goto(converted("00_tour").as_uri(), wait_until="domcontentloaded")
    check_explorer(offline, ".sx-explorer")


@pytest.mark.slow
@pytest.mark.browser
def test_the_converted_notebook_reads_without_scripts(converted, browser):
    context = browser.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.route(re.compile(r"^https?://"), lambda route: route.abort())
        page.goto(converted("00_tour").as_uri(), wait_until="domcontentloaded")
        stage = page.locator('.sx-explorer [data-stage="loops"]').first
        stage.locator("summary").first.click()
        assert "relu" in stage.locator("pre").first.inner_text()
    finally:
        context.close()


def check_explorer(page, root: str) -> None:
    """Click through every stage of the first explorer, then follow a link from the source into the kernel and back."""
    explorer = page.locator(root).first
    explorer.scroll_into_view_if_needed()
    tabs = explorer.locator(".sx-tab")
    names = [tab.get_attribute("data-show") for tab in tabs.all()]
    assert names[:6] == ["capture", "transforms", "operators", "loops", "schedule", "kernels"]
    assert {"asm", "wrapper", "key", "decisions", "traffic", "timings"} <= set(names)
    for name in names:
        explorer.locator(f'.sx-tab[data-show="{name}"]').click()
        assert explorer.locator(f'[data-stage="{name}"][data-pane="left"]').is_visible()
    explorer.locator('.sx-tab[data-show="capture"]').click()
    explorer.locator(".sx-beside select").select_option("kernels")
    assert explorer.locator('[data-stage="kernels"][data-pane="right"]').is_visible()
    explorer.locator('[data-stage="capture"] .sx-chip', has_text="%relu").first.click()
    marked = explorer.locator('[data-stage="kernels"] .sx-line.sx-linked')
    assert marked.count() >= 1 and any("relu" in text for text in marked.all_inner_texts())
    assert explorer.locator('[data-stage="asm"] .sx-line.sx-linked').count() >= 1
    said = explorer.locator(".sx-status").inner_text()
    assert said.startswith("relu (line ") and "pinned" in said and "assembly line" in said
    # Back: from a line of the kernel to the source, with the keyboard.
    marked.first.focus()
    page.keyboard.press("Escape")
    assert explorer.locator(".sx-linked").count() == 0
    explorer.locator('[data-stage="kernels"] .sx-line', has_text="// add").first.focus()
    page.keyboard.press("Enter")
    assert explorer.locator('[data-stage="capture"] .sx-chip.sx-linked', has_text="%add").count() == 1


# -- JupyterLab ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("theme", [LIGHT, DARK])
def test_the_tour_in_jupyterlab(theme, page, tmp_path):
    pytest.importorskip("jupyterlab")
    folder = tmp_path / "notebooks"
    folder.mkdir()
    shutil.copy(NOTEBOOK, folder)
    widget_notebook(folder / "widget.ipynb")
    page.set_viewport_size({"width": 1400, "height": 1000})
    with jupyterlab(folder, tmp_path, theme) as url:
        if theme == LIGHT:
            open_notebook(page, url, "00_tour.ipynb")
            run_all_cells(page)
            assert (
                page.locator(
                    '.jp-OutputArea-output[data-mime-type*="error"], .jp-RenderedText[data-mime-type*="stderr"]'
                ).count()
                == 0
            )
            page.locator(".jp-Cell .sx-explorer").first.scroll_into_view_if_needed()
            check_explorer(page, ".jp-Cell .sx-explorer")
            assert "jp-mod-commandMode" in page.locator(".jp-Notebook").first.get_attribute("class"), "keys leaked"
        open_notebook(page, url, "widget.ipynb")
        run_all_cells(page)
        check_widget(page)
        background = page.locator(".sx-stepper").evaluate("e => getComputedStyle(e).backgroundColor")
        assert background == ("rgb(255, 255, 255)" if theme == LIGHT else "rgb(33, 33, 33)")


def widget_notebook(path: Path) -> None:
    import nbformat

    source = "from tests.view.examples import compilation\ncompilation().stepper()"
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(source)])
    notebook.metadata["kernelspec"] = {"name": "python3", "display_name": "Python 3", "language": "python"}
    nbformat.write(notebook, path)


def check_widget(page) -> None:
    """The ipywidgets stepper: buttons ask the kernel for a stage, and the links reach what arrives."""
    stepper = page.locator(".sx-stepper").last
    stepper.wait_for()
    stepper.locator("button", has_text="Loop IR").click()
    stepper.locator(".sx-line", has_text="tmp2 = add").wait_for()
    stepper.locator('button:has-text("›")').click()
    stepper.locator('[data-stage="schedule"]').wait_for()
    stepper.locator('button:has-text("‹")').click()
    line = stepper.locator('[data-stage="loops"] .sx-line', has_text="tmp3 = relu")
    line.click()
    linked = stepper.locator('[data-stage="kernels"] .sx-line.sx-linked')
    assert "max(tmp2" in "".join(linked.all_inner_texts())
    assert stepper.locator(".sx-status").inner_text().startswith("relu (line 2) → ")
    stepper.locator("select").select_option("Wrapper")
    stepper.locator('[data-stage="wrapper"] .sx-line').first.wait_for()
