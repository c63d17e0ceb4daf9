"""What every test shares: a cache directory of its own, fixed seeds, and the four markers.

``slow`` tests run only with ``--slow`` (``make test-all`` gives it), ``nightly`` tests only with ``--nightly``, ``gpu``
tests only where CUDA is, ``browser`` tests only where a Chromium is. What is left out is named in pytest's summary,
never dropped silently.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

# Several workers share the cores: threads that spin while they wait would take them from each other. Read by the OpenMP
# runtime when torch loads it, hence set before anything imports torch.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

ROOT = Path(__file__).resolve().parent.parent
_CACHE_VARIABLE = "STAXLAB_CACHE_DIR"
_PLANS_VARIABLE = "STAXLAB_PLANS"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--slow", action="store_true", help="also run the tests marked slow")
    parser.addoption("--nightly", action="store_true", help="also run the tests marked nightly, which take minutes")


def pytest_configure(config: pytest.Config) -> None:
    # One temporary cache for the run: workers inherit it, and the user's own cache is never read or written.
    if not hasattr(config, "workerinput"):
        config._staxlab_cache = tempfile.mkdtemp(prefix="staxlab-tests-")
        os.environ[_CACHE_VARIABLE] = config._staxlab_cache
    # Tests break stages on purpose: none may leave a plan behind that another one is given (`plans` has them back).
    os.environ.setdefault(_PLANS_VARIABLE, "0")

    from hypothesis import settings

    settings.register_profile("staxlab", deadline=None, derandomize=True, database=None, max_examples=60)
    settings.load_profile("staxlab")


def pytest_unconfigure(config: pytest.Config) -> None:
    cache = getattr(config, "_staxlab_cache", None)
    if cache:
        shutil.rmtree(cache, ignore_errors=True)


def find_chromium() -> str | None:
    """The browser the page tests drive: $STAXLAB_CHROMIUM, or the first one on PATH."""
    named = os.environ.get("STAXLAB_CHROMIUM")
    if named:
        return named
    names = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
    return next((path for path in map(shutil.which, names) if path), None)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    skip_slow = None if config.getoption("--slow") else pytest.mark.skip(reason="slow: give --slow (make test-all)")
    skip_nightly = None if config.getoption("--nightly") else pytest.mark.skip(reason="nightly: give --nightly")
    skip_browser = None if find_chromium() else pytest.mark.skip(reason="no Chromium here (STAXLAB_CHROMIUM names one)")
    skip_gpu = None
    if any(item.get_closest_marker("gpu") for item in items):
        import torch

        if not torch.cuda.is_available():
            skip_gpu = pytest.mark.skip(reason="no CUDA device here")
    for item in items:
        skips = (("slow", skip_slow), ("nightly", skip_nightly), ("browser", skip_browser), ("gpu", skip_gpu))
        for marker, skip in skips:
            if skip is not None and item.get_closest_marker(marker):
                item.add_marker(skip)


@pytest.fixture(autouse=True)
def _seed() -> None:
    """Every test starts from the same random numbers, alone or among others."""
    random.seed(0)
    import sys

    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)


@pytest.fixture(autouse=True)
def _gradients_stay_on() -> Iterator[None]:
    """A test that leaves gradients switched off would fail others, somewhere else and in some orders only."""
    yield
    import sys

    torch = sys.modules.get("torch")
    if torch is not None and not torch.is_grad_enabled():
        torch.set_grad_enabled(True)
        pytest.fail("gradients are switched off after this test")


@pytest.fixture(scope="session")
def repository() -> Path:
    return ROOT


@pytest.fixture
def cache_dir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty disk cache for this test alone."""
    directory = tmp_path / "cache"
    directory.mkdir()
    monkeypatch.setenv(_CACHE_VARIABLE, str(directory))
    return directory


@pytest.fixture
def plans(cache_dir: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty disk cache where regions are kept and restored as a whole, as they are outside the tests; also while
    somebody edits the package."""
    from staxlab.runtime import plan_sources

    monkeypatch.setenv(_PLANS_VARIABLE, "1")
    monkeypatch.delenv("STAXLAB_LOWER_DEBUG", raising=False)  # tests of lowering have it for their whole process
    monkeypatch.setattr(plan_sources, "LOADED", float("inf"))
    plan_sources.clear()
    return cache_dir


@pytest.fixture(scope="session")
def chromium_path() -> str:
    path = find_chromium()
    if path is None:
        pytest.skip("no Chromium here (STAXLAB_CHROMIUM names one)")
    return path


@pytest.fixture(scope="session")
def browser(chromium_path: str):
    """One headless Chromium for the session; ask it for a ``new_page()``."""
    from playwright.sync_api import sync_playwright

    # A container's root user has no sandbox, and its /dev/shm is small.
    arguments = ["--no-sandbox", "--disable-dev-shm-usage"]
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=chromium_path, args=arguments)
        yield chromium
        chromium.close()


@pytest.fixture
def page(browser):
    """A fresh page. An uncaught script error in it fails the test that used it."""
    context = browser.new_context()
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    yield page
    context.close()
    assert not errors, f"the page raised: {errors}"
