"""The page on attention as its reader takes it: its lines run in order and show what they say."""

from __future__ import annotations

import re
import warnings
from pathlib import Path

import torch

from staxlab.attention import backends

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "attention.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```python\n(.*?)^```", PAGE, flags=re.M | re.S)


def test_its_lines_run_from_top_to_bottom(capsys):
    namespace: dict = {"__name__": "page"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for number, source in enumerate(BLOCKS):
            exec(compile(source, f"<attention.md, block {number}>", "exec"), namespace)
    assert torch.equal(namespace["out"], namespace["same"])
    shown = capsys.readouterr().out
    assert "score_mod alibi" in shown and "mask_mod causal" in shown and "attention-backend" in shown


def test_it_names_every_backend_and_option():
    assert set(re.findall(r'^\| `"(\w+)"`', PAGE, flags=re.M)) == set(backends.BACKENDS)
    assert all(f"`{name}`" in PAGE for name in backends.NUMBERS) and "INTERPRET" in PAGE
    assert f"for {backends.FEW_QUERIES} queries or fewer" in PAGE
