"""The notebooks as data: their cells, run one after the other in this process, or converted as a reader would do it."""

from __future__ import annotations

import ast
import json
import linecache
import os
import re
import shutil
import subprocess
import sys
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from staxlab.loops.lowering import RULES
from tests.notebooks.lab import ROOT
from tests.view.reading import read

NOTEBOOKS = tuple(sorted((ROOT / "notebooks").glob("*.ipynb")))

#: Sizes the notebooks use, and small ones in their place: what a cell shows is the same, only quicker.
SMALL = {"8192": "64", "2048": "32", "1024": "64"}

#: A notebook must not take longer than this from start to end, on two cores. Far above what any of them needs; a
#: conversion that runs into it is stopped.
SECONDS_AT_MOST = 600


def cells(path: Path, kind: str) -> list[tuple[str, str]]:
    """(id, text) of the cells of a kind ("markdown" or "code")."""
    found = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [(cell["id"], "".join(cell["source"])) for cell in found if cell["cell_type"] == kind]


@dataclass
class Shown:
    """What the cells of a notebook ended with: type names of the records that drew themselves, and the text they
    showed."""

    records: list[str] = field(default_factory=list)
    text: str = ""


def run_cells(path: Path, small: bool = True) -> Shown:
    """Run every code cell in order, in this process, and display what each ends with as a notebook would.

    An exception passes through with a note that names the cell. Warnings of the compiler that a cell does not catch
    are errors: in a notebook they would stand between the cells in red.
    """
    shown, scope = Shown(), {"__name__": "__main__"}
    # What a notebook switches off or registers ends with it, as it does with a kernel's process.
    with warnings.catch_warnings(), torch.enable_grad(), mock.patch.dict(RULES):
        for category in compiler_warnings():
            warnings.simplefilter("error", category)
        for identifier, source in cells(path, "code"):
            for large, little in SMALL.items() if small else ():
                source = re.sub(rf"\b{large}\b", little, source)
            try:
                value = _run_cell(identifier, source, scope)
                _display(value, shown)
            except Exception as error:
                error.add_note(f"in cell {identifier!r} of {path.name}")
                raise
    return shown


def compiler_warnings() -> tuple[type[Warning], ...]:
    """The warnings the package gives."""
    from staxlab import errors

    return tuple(value for name, value in vars(errors).items() if name.endswith("Warning"))


def _run_cell(identifier: str, source: str, scope: dict[str, Any]) -> Any:
    """Execute a cell; the value of its last line if that is an expression."""
    name = f"<cell {identifier}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)  # as IPython does
    tree = ast.parse(source)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, name, "exec"), scope)
    return eval(compile(ast.Expression(last.value), name, "eval"), scope) if last is not None else None


def _display(value: Any, shown: Shown) -> None:
    draw = getattr(value, "_repr_mimebundle_", None)
    if draw is None:
        return
    bundle = draw()
    assert bundle["text/plain"].strip(), f"a {type(value).__name__} shows nothing in a terminal"
    text = read(bundle["text/html"]).text
    assert "drawing failed" not in text, f"a {type(value).__name__} could not be drawn"
    shown.records.append(type(value).__name__)
    shown.text += text


def convert(path: Path, scratch: Path) -> Path:
    """Execute a notebook in a kernel of its own and convert it to a page, all with ``nbconvert``."""
    folder = scratch / "notebooks"
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, folder)
    environment = os.environ | {
        "JUPYTER_CONFIG_DIR": str(scratch / "config"),
        "JUPYTER_RUNTIME_DIR": str(scratch / "runtime"),
        "IPYTHONDIR": str(scratch / "ipython"),
        "STAXLAB_CACHE_DIR": str(scratch / "cache"),
        "PYTHONPATH": os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")])),
    }
    command = [sys.executable, "-m", "jupyter", "nbconvert", "--to", "html", "--execute", str(folder / path.name)]
    done = subprocess.run(
        command, env=environment, capture_output=True, text=True, cwd=scratch, timeout=SECONDS_AT_MOST
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return (folder / path.name).with_suffix(".html")
