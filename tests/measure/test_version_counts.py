"""Versions against calls: counted, expected and compiled, for concrete, bucketed and symbolic sizes."""

from __future__ import annotations

import json
import statistics

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import staxlab
from staxlab import Buckets, OptionError
from staxlab.measure.version_counts import VersionCurve, draw_history, run_history, uniform, version_history

HISTORIES = st.lists(st.integers(0, 40), min_size=1, max_size=60)
GUARDS = {"n > 4": lambda n: n > 4, "n % 8 == 0": lambda n: n % 8 == 0}


@given(HISTORIES)
def test_curves_count_the_classes_seen_so_far(sizes):
    history = version_history(sizes, guards=GUARDS)
    for m in range(len(sizes) + 1):
        seen = sizes[:m]
        assert history.after(m, "concrete") == len(set(seen))
        assert history.after(m, "bucketed") == len({Buckets().round_up(n) for n in seen})
        classes = {n if n < 2 else (n > 4, n % 8 == 0) for n in seen}
        assert history.after(m, "symbolic") == len(classes) <= 2 + 4
    assert history.after(len(sizes), "bucketed") <= history.after(len(sizes), "bound")


def test_the_chapters_numbers():
    history = draw_history(uniform(1, 512), 1000)
    assert round(history.after(1000, "expected")) == 440
    assert history.after(1, "bound") == 10 and history.after(1000, "symbolic") in (1, 2)
    # Example 10.4
    assert version_history((3, 7, 2, 9, 4, 11), guards={"n > 4": lambda n: n > 4}).after(6, "symbolic") == 2
    assert version_history((3, 1, 0, 7, 1, 0, 11)).after(7, "symbolic") == 3


def test_drawn_counts_scatter_around_the_expectation():
    distribution = {size: weight / 55 for size, weight in enumerate(range(1, 11), 1)}
    drawn = [draw_history(distribution, 12, seed=seed) for seed in range(300)]
    for m in (2, 5, 12):
        counts = [history.after(m, "concrete") for history in drawn]
        error = statistics.stdev(counts) / len(counts) ** 0.5
        assert abs(statistics.mean(counts) - drawn[0].after(m, "expected")) < 4 * error
    assert {history.after(12, "bound") for history in drawn} == {5}, "of what may occur, not of what did"


def test_compiled_versions_are_the_counted_ones():
    def f(x):
        return x.sum()

    history = version_history((3, 7, 3, 8, 5, 1, 16, 9))
    concrete = staxlab.compile(f, backend="eager", options={"max_versions": 20})
    history = run_history(history, "compiled", concrete, lambda n: (torch.ones(n),))
    padded = staxlab.bucketed(staxlab.compile(f, backend="eager"), dims={"x": 0}, pad=0.0)
    history = run_history(history, "padded", padded, lambda n: (torch.ones(n),))
    dynamic = staxlab.compile(f, backend="eager", dynamic=True)
    history = run_history(history, "dynamic", dynamic, lambda n: (torch.ones(n),))
    for m in range(1, 9):
        assert history.after(m, "compiled") == history.after(m, "concrete")
        assert history.after(m, "padded") == history.after(m, "bucketed")
        assert history.after(m, "dynamic") == history.after(m, "symbolic")
    assert not history["compiled"].note


@pytest.mark.filterwarnings("ignore::staxlab.errors.RecompileWarning")
def test_a_limit_is_told():
    limited = staxlab.compile(lambda x: x.sum(), backend="eager", options={"max_versions": 2})
    history = run_history(version_history((1, 2, 3, 4, 4)), "compiled", limited, lambda n: (torch.ones(n),))
    assert history.after(5, "compiled") == 2 and "3 calls ran eagerly" in str(history)
    with pytest.raises(OptionError, match="already"):
        run_history(history, "compiled", limited, lambda n: (torch.ones(n),))
    with pytest.raises(OptionError, match="no versions to count"):
        run_history(history, "plain", len, lambda n: ([n],))


def test_what_is_no_history_is_refused():
    for sizes in ((), (3, -1)):
        with pytest.raises(OptionError, match="at least one call"):
            version_history(sizes)
    with pytest.raises(OptionError, match="size 9 occurred"):
        version_history((9,), distribution=uniform(1, 8))
    with pytest.raises(OptionError, match="calls=0"):
        draw_history(uniform(1, 8), 0)
    with pytest.raises(KeyError, match="there are concrete"):
        version_history((9,))["compiled"]


def test_the_record_prints_and_is_plain_data():
    history = draw_history(uniform(1, 64), 100, guards=GUARDS, buckets=Buckets(ratio=4))
    assert history.points == (1, 10, 100)
    text = str(history)
    assert all(name in text for name in ("m = 100", "expected", "n > 4, n % 8 == 0", "buckets of ratio 4"))
    data = json.loads(json.dumps(history.to_json()))
    assert data["curves"]["bound"]["steps"] == [[1, 4]] and data["calls"] == 100
    assert version_history((0,)).after(1, "bound") == 1
    assert VersionCurve("x", ((2, 1), (5, 2))).after(1) == 0
