"""Section 13.4: break-even, number of versions, smallest size worth fusing."""

from __future__ import annotations

import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab.measure.amortize import break_even, bucket, bucket_bound, expected_versions, minimum_size

times = st.floats(1e-6, 10.0)


@given(times, times, times)
def test_break_even_is_where_the_totals_cross(compile_time, eager, compiled):
    record = break_even(compile_time, eager, compiled)
    call = record.first_winning_call
    if eager <= compiled:
        assert call is None
        return
    eager_total, compiled_total = record.total(call)
    assert compiled_total <= eager_total * (1 + 1e-9)
    if call > 0:
        eager_total, compiled_total = record.total(call - 1)
        assert compiled_total >= eager_total * (1 - 1e-9)


def test_break_even_figures_of_the_chapter():
    assert 400 < break_even(5.6, 13.2e-3, 0.0).calls < 510
    assert break_even(1.0, 2.0, 1.0, versions=3).calls == 3.0
    with pytest.raises(ValueError, match="negative"):
        break_even(-1.0, 1.0, 1.0)


def test_break_even_prints_never_and_serialises():
    record = break_even(1.0, 1.0, 2.0)
    assert "never" in repr(record)
    assert json.loads(json.dumps(record.to_json(), allow_nan=False))["calls"] is None


def test_expected_versions_against_simulation():
    shapes = {s: 1 / s for s in range(1, 60)}
    total = sum(shapes.values())
    shapes = {s: p / total for s, p in shapes.items()}
    generator = random.Random(2)
    calls, rounds = 40, 3000
    seen = (
        sum(len(set(generator.choices(list(shapes), list(shapes.values()), k=calls))) for _ in range(rounds)) / rounds
    )
    assert expected_versions(shapes, calls) == pytest.approx(seen, abs=0.2)


@given(st.lists(st.floats(0.01, 1.0), min_size=1, max_size=20), st.integers(0, 200))
def test_expected_versions_is_concave_and_bounded(weights, calls):
    chances = [w / math.fsum(weights) for w in weights]

    def value(m):
        return expected_versions(chances, m)

    assert -1e-9 <= value(calls) <= min(calls, len(chances)) + 1e-9
    assert value(calls + 2) - value(calls + 1) <= value(calls + 1) - value(calls) + 1e-9


def test_expected_versions_of_one_certain_shape_and_refusals():
    assert expected_versions([1.0], 0) == 0.0
    assert expected_versions([1.0], 5) == 1.0
    assert expected_versions([1 / 512] * 512, 1000) == pytest.approx(512 * (1 - (511 / 512) ** 1000))
    with pytest.raises(ValueError, match="sum to 1"):
        expected_versions([0.5, 0.4], 3)
    with pytest.raises(ValueError, match="negative"):
        expected_versions([1.0], -1)


@given(st.integers(1, 3000), st.integers(0, 3000))
def test_buckets_never_exceed_their_bound(smallest, extra):
    largest = smallest + extra
    used = {bucket(n) for n in range(smallest, largest + 1)}
    assert len(used) <= bucket_bound(smallest, largest)
    assert all(n <= bucket(n) < 2 * n for n in range(smallest, min(largest, smallest + 50) + 1))


def test_bucket_refusals():
    with pytest.raises(ValueError, match="start at 1"):
        bucket(0)
    with pytest.raises(ValueError, match="smallest"):
        bucket_bound(5, 4)


@given(st.integers(2, 10), st.floats(1e-7, 1e-5), st.floats(1e-6, 1e-4), st.floats(1e9, 1e12))
def test_minimum_size_is_where_the_two_times_meet(k, eager, compiled, bandwidth):
    n = minimum_size(k, eager, compiled, bandwidth)

    def eager_time(size):
        return k * eager + 8 * k * size / bandwidth

    def compiled_time(size):
        return compiled + 8 * size / bandwidth

    assert eager_time(n) == pytest.approx(compiled_time(n), rel=1e-6, abs=1e-12)
    assert eager_time(n + abs(n) + 1) > compiled_time(n + abs(n) + 1)


def test_minimum_size_figures_and_generalisation():
    assert minimum_size(2, 1.8e-6, 12e-6, 49.4e9) == pytest.approx(5.2e4, rel=0.02)
    # Example 1.1's pointwise part: add reads two, relu and mul one each; fused, two reads and one write remain.
    n = minimum_size(3, 0.0, 1e-5, 1e9, reads=[2, 1, 1])
    assert n == pytest.approx(1e-5 * 1e9 / (4 * (4 + 3 - 3)))
    # x * x reads one tensor, whatever the operator's two arguments say.
    assert minimum_size(2, 0.0, 1e-5, 1e9, reads=[1, 2], external_reads=1) == pytest.approx(1e-5 * 1e9 / (4 * 3))
    assert minimum_size(1, 1e-6, 2e-6, 1e9) == math.inf
    assert minimum_size(1, 2e-6, 1e-6, 1e9) == 0.0
    with pytest.raises(ValueError, match="at least one operator"):
        minimum_size(0, 1, 1, 1)
    with pytest.raises(ValueError, match="per operator"):
        minimum_size(2, 1, 1, 1, reads=[1])
