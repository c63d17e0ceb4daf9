"""The tour as a newcomer meets it: every cell runs, in a converted page and in a real JupyterLab, and the links work.

The default run executes the cells on small tensors in this process. The slow ones do what CI must see: ``nbconvert
--execute`` on the notebook as it is, and JupyterLab in a browser with Run All Cells, stages clicked through, and a
highlight that appears in another stage.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.notebooks.lab import DARK, LIGHT, ROOT, jupyterlab, open_notebook, run_all_cells
from tests.view.reading import read

NOTEBOOK = ROOT / "notebooks" / "00_tour.ipynb"


def cells(kind: str) -> list[str]:
    return ["".join(c["source"]) for c in json.loads(NOTEBOOK.read_text())["cells"] if c["cell_type"] == kind]


def test_the_notebook_is_a_plain_document():
    notebook = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}
    identifiers = [cell["id"] for cell in notebook["cells"]]
    assert len(identifiers) == len(set(identifiers))
    assert all(len("".join(c["source"]).splitlines()) <= 30 for c in notebook["cells"]), "cells are short"


def test_the_links_lead_somewhere():
    targets = re.findall(r"\]\(([^)#]+)", "\n".join(cells("markdown")))
    assert len(targets) > 8
    for target in targets:
        assert not target.startswith("http"), "the tour needs no network"
        assert (NOTEBOOK.parent / target).exists(), target


def test_every_cell_runs_and_every_record_draws_itself(cache_dir, monkeypatch):
    """All cells in order, on small tensors; what a cell ends with must display as a notebook would display it."""
    import staxlab
    from staxlab.measure.roofline import Ceiling, Roofline

    limits = (Ceiling("read", "bandwidth", 50e9), Ceiling("matmul", "throughput", 400e9))
    monkeypatch.setattr(staxlab.measure.roofline, "measure", lambda **_: Roofline(ceilings=limits))
    points = staxlab.measure.roofline.example_points
    monkeypatch.setattr(
        staxlab.measure.roofline, "example_points", lambda fn: points(fn, rows=64, columns=128, readings=3)
    )
    scope: dict = {"__name__": "__main__"}
    shown = 0
    for number, source in enumerate(cells("code")):
        source = source.replace("8192", "64").replace("2048", "32")
        tree = ast.parse(source)
        last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
        name = f"<cell {number}>"
        exec(compile(tree, name, "exec"), scope)
        value = eval(compile(ast.Expression(last.value), name, "eval"), scope) if last is not None else None
        draw = getattr(value, "_repr_mimebundle_", None)
        if draw is not None:
            bundle = draw()
            assert bundle["text/plain"].strip()
            assert "drawing failed" not in read(bundle["text/html"]).text, source
            shown += 1
    assert shown >= 14


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


@pytest.fixture(scope="module")
def converted(tmp_path_factory) -> Path:
    """The notebook, executed and converted to HTML by nbconvert."""
    scratch = tmp_path_factory.mktemp("nbconvert")
    folder = scratch / "notebooks"
    folder.mkdir()
    shutil.copy(NOTEBOOK, folder)
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(scratch / "config"),
        "JUPYTER_RUNTIME_DIR": str(scratch / "runtime"),
        "IPYTHONDIR": str(scratch / "ipython"),
        "STAXLAB_CACHE_DIR": str(scratch / "cache"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    command = [sys.executable, "-m", "jupyter", "nbconvert", "--to", "html", "--execute", str(folder / NOTEBOOK.name)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=scratch, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    return folder / "00_tour.html"


@pytest.fixture
def offline(page):
    """A page that can reach files only. nbconvert's own template asks for MathJax; nothing of ours may need it."""
    page.route(re.compile(r"^https?://"), lambda route: route.abort())
    page.set_viewport_size({"width": 1400, "height": 1000})
    return page


@pytest.mark.slow
def test_the_converted_notebook_is_complete(converted):
    text = converted.read_text(encoding="utf-8")
    assert text.count('class="staxlab sx-root') >= 13
    assert "Traceback" not in text and "drawing failed" not in text
    assert len(text) < 8_000_000


@pytest.mark.slow
@pytest.mark.browser
def test_the_links_work_in_the_converted_notebook(converted, offline):
    offline.goto(converted.as_uri(), wait_until="domcontentloaded")
    check_explorer(offline, ".sx-explorer")


@pytest.mark.slow
@pytest.mark.browser
def test_the_converted_notebook_reads_without_scripts(converted, browser):
    context = browser.new_context(java_script_enabled=False)
    try:
        page = context.new_page()
        page.route(re.compile(r"^https?://"), lambda route: route.abort())
        page.goto(converted.as_uri(), wait_until="domcontentloaded")
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
