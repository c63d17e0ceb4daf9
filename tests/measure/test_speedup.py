"""Proposition 13.3: the three numbers of a decomposition come from the same readings, and mean something or say not."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import staxlab
from staxlab.measure import Comparison, Timing, decompose, traffic_model

MIB = 1 << 20
seconds = st.floats(1e-3, 1e2)


@given(*(st.integers(1, 10**9),) * 2, *(st.floats(1e-6, 1e2),) * 2)
def test_decomposition_is_an_identity(eager_bytes, compiled_bytes, eager_seconds, compiled_seconds):
    d = decompose(eager_bytes, compiled_bytes, eager_seconds, compiled_seconds)
    assert d.speedup == eager_seconds / compiled_seconds
    assert d.speedup == pytest.approx(d.rho * d.quality, rel=1e-9)


@given(st.lists(st.tuples(seconds, seconds), min_size=1, max_size=25))
def test_one_speedup_on_a_page(pairs):
    """The decomposition splits the very number the comparison prints, and its quality is the median of the ratios of
    bandwidths, round by round."""
    eager, compiled = ([pair[side] for pair in pairs] for side in (0, 1))
    comparison = Comparison((Timing("eager", tuple(eager)), Timing("it", tuple(compiled))))
    d = decompose(512 * MIB, 96 * MIB, comparison["eager"], comparison["it"])
    assert d.speedup == comparison.ratio("it").median
    assert d.interval == comparison.ratio("it").interval
    rates = Timing("", tuple((96 * MIB / c) / (512 * MIB / e) for e, c in pairs))
    assert d.quality == pytest.approx(rates.median, rel=1e-9)
    assert d.speedup == pytest.approx(d.rho * d.quality, rel=1e-12)


def test_drift_does_not_enter():
    """The machine halves its speed in the middle: every round says 8, the medians of the sides say something else."""
    eager, compiled = Timing("eager", (8.0, 8.0, 16.0, 16.0)), Timing("it", (1.0, 1.0, 2.0, 2.0, 2.0))
    d = decompose(512 * MIB, 128 * MIB, eager, compiled)
    assert (d.speedup, d.quality) == (8.0, 2.0)
    assert eager.median / compiled.median != 8.0
    text = repr(d)
    assert "speedup 8 = 4 (bytes saved) x 2 (kernel quality)" in text
    assert "8 [8, 8]" in text and "2 [2, 2]" in text and "median of pairwise ratios" in text


@pytest.mark.parametrize(
    ("compiled_bytes", "eager", "compiled", "why"),
    [
        (128 * MIB, 30e-6, 60e-6, "launching"),
        (128 * MIB, 60e-6, 3e-3, "launching"),
        (MIB, 2e-3, 4e-3, "stay in the caches"),
    ],
)
def test_no_quality_where_time_does_not_follow_memory(compiled_bytes, eager, compiled, why):
    d = decompose(4 * compiled_bytes, compiled_bytes, eager, compiled)
    text = repr(d)
    assert why in text and why in d.obstacle
    assert "no kernel quality is given" in text
    assert "B/s" not in text and f"x {d.quality:.3g}" not in text
    assert f"speedup {d.speedup:.3g}" in text


def test_large_and_slow_is_decomposed():
    text = repr(decompose(512 * MIB, 128 * MIB, 4.0, 2.0))
    assert "speedup 2 = 4 (bytes saved) x 0.5 (kernel quality)" in text
    assert "without an interval" in text


def test_json_and_refusals():
    json.dumps(decompose(400, 100, 4.0, 2.0).to_json(), allow_nan=False)
    timing = Timing("t", (1.0,) * 15)
    assert decompose(400, 100, timing, timing).to_json()["interval"]["low"] == 1.0
    for bad in ((0, 1, 1.0, 1.0), (1, 1, 0.0, 1.0), (1, 1, math.nan, 1.0), (1, 1, timing, Timing("none", ()))):
        with pytest.raises(ValueError, match="must be positive"):
            decompose(*bad)
    with pytest.raises(ValueError, match="nothing was compiled"):
        traffic_model(staxlab.explain(lambda x: x + 1, torch.rand(3)).operators).decompose(1.0, 1.0)


def test_the_tour_prints_and_draws_one_speedup():
    from staxlab import tour

    said: list[str] = []
    taken = tour.run(64, 128, show=said.append)
    ratio = taken.comparison.ratio("staxlab")
    assert taken.decomposition.speedup == ratio.median
    measured = said[-1]
    assert f"{ratio.median:.3g}" in measured
    assert "no kernel quality is given" in measured, "64 x 128 numbers stay in the cache"
    assert taken.decomposition in taken.page().values()
