"""Benchmarks run in the test's process, and choose caches through the environment as commands do."""

from __future__ import annotations

import os

import pytest

CHOSEN = ("TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR")


@pytest.fixture(autouse=True, scope="module")
def _keep_the_environment():
    before = {name: os.environ.get(name) for name in CHOSEN}
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
