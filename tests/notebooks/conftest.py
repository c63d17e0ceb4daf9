"""Fixtures of the notebook tests."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.notebooks.running import ROOT, convert


@pytest.fixture(scope="session")
def converted(tmp_path_factory) -> Callable[[str], Path]:
    """From the stem of a notebook to the page made of it: executed once for all tests that look at it."""
    pages: dict[str, Path] = {}

    def page_of(stem: str) -> Path:
        if stem not in pages:
            pages[stem] = convert(ROOT / "notebooks" / f"{stem}.ipynb", tmp_path_factory.mktemp(stem))
        return pages[stem]

    return page_of
