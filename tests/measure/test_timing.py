"""Section 13.1: the interval has the coverage it claims, sides alternate, interruption keeps what was measured."""

from __future__ import annotations

import gc
import json
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab.measure import timing
from staxlab.measure.timing import Comparison, Timing, compare, median_coverage, median_interval, median_ranks, sample


class FakeClock:
    """A clock that only moves when the code under test says so."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def work(self, seconds: float):
        def run() -> None:
            self.now += seconds

        return run


def test_interval_of_fifteen_readings_is_the_fourth_to_the_twelfth():
    assert median_ranks(15) == (4, 12)
    assert median_coverage(15, 4, 12) == pytest.approx(0.96484375, abs=1e-12)


@given(st.integers(1, 80), st.floats(0.5, 0.999))
def test_ranks_are_the_narrowest_symmetric_ones_that_cover(n, confidence):
    j, k = median_ranks(n, confidence)
    assert j + k == n + 1
    if median_coverage(n, j, k) < confidence:
        assert (j, k) == (1, n), "falling short is only allowed when all readings are used"
    if j + 1 <= k - 1:
        assert median_coverage(n, j + 1, k - 1) < confidence, "a narrower interval would have done"


@given(st.integers(1, 60), st.data())
def test_coverage_is_the_binomial_probability(n, data):
    j = data.draw(st.integers(1, n))
    k = data.draw(st.integers(j, n))
    # The same probability by an independent route: enumerate Pascal's triangle.
    row = [1]
    for _ in range(n):
        row = [a + b for a, b in zip([0, *row], [*row, 0], strict=True)]
    assert median_coverage(n, j, k) == pytest.approx(sum(row[j:k]) / sum(row), abs=1e-15)


def test_coverage_rejects_ranks_that_are_not_ranks():
    for j, k in ((0, 3), (4, 3), (1, 6)):
        with pytest.raises(ValueError, match="order statistics"):
            median_coverage(5, j, k)


@pytest.mark.parametrize(
    ("draw", "true_median"),
    [
        (lambda g: g.expovariate(1.0), math.log(2)),
        (lambda g: g.lognormvariate(0.0, 2.0), 1.0),
        (lambda g: g.random() ** 4, 0.5**4),
    ],
    ids=["exponential", "lognormal", "skewed"],
)
def test_interval_covers_the_median_of_any_distribution_as_often_as_it_says(draw, true_median):
    generator = random.Random(13)
    rounds, hits = 4000, 0
    for _ in range(rounds):
        interval = median_interval([draw(generator) for _ in range(15)])
        hits += interval.low <= true_median < interval.high
    # 96.5% +- 4 standard errors of a proportion over 4000 rounds (0.29% each).
    assert abs(hits / rounds - 0.9648) < 4 * math.sqrt(0.9648 * 0.0352 / rounds)


def test_minimum_converges_to_the_undisturbed_duration_at_the_stated_rate():
    generator = random.Random(7)
    delta, rounds, n = 0.05, 4000, 10
    exceed = sum(min(1.0 + generator.expovariate(4.0) for _ in range(n)) - 1.0 >= delta for _ in range(rounds))
    assert exceed / rounds == pytest.approx(math.exp(-4.0 * delta) ** n, abs=0.03)


def test_too_few_readings_report_the_coverage_they_have():
    interval = median_interval([3.0, 1.0, 2.0])
    assert (interval.j, interval.k, interval.coverage) == (1, 3, 0.75)
    assert median_interval([]) is None


def test_readings_for_range_is_minimal():
    n = timing.readings_for_range(0.99)
    assert n == 8
    assert median_coverage(n, 1, n) >= 0.99 > median_coverage(n - 1, 1, n - 1)


def test_sample_measures_seconds_per_call():
    clock = FakeClock()
    result = sample(clock.work(0.25), name="quarter", readings=5, warmup=2, clock=clock)
    assert result.readings == (0.25,) * 5
    assert (result.calls, result.complete, result.planned) == (1, True, 5)


def test_short_work_is_repeated_inside_a_reading():
    clock = FakeClock()
    result = sample(clock.work(1e-6), readings=3, clock=clock)
    assert result.calls >= timing.SHORTEST_READING / 1e-6
    assert result.median == pytest.approx(1e-6)


def test_readings_on_a_gpu_are_longer():
    clock = FakeClock()
    result = compare({"a": clock.work(1e-3)}, device="cuda", synchronize=lambda: None, readings=2, clock=clock)
    assert result["a"].calls >= 10


def test_calls_are_not_repeated_when_fixed():
    clock, count = FakeClock(), []
    sample(lambda: count.append(1), readings=4, warmup=3, calls=2, clock=clock)
    assert len(count) == 3 + 4 * 2


@pytest.mark.parametrize("order", ["rotate", "random"])
def test_every_round_takes_each_side_once_and_the_lead_changes(order):
    clock, log = FakeClock(), []

    def side(name):
        def run():
            log.append(name)
            clock.now += 1.0

        return run

    compare({n: side(n) for n in "abc"}, readings=30, warmup=1, calls=1, order=order, clock=clock)
    rounds = [log[3 + 3 * r : 6 + 3 * r] for r in range(30)]
    assert all(sorted(r) == ["a", "b", "c"] for r in rounds)
    assert {r[0] for r in rounds} == {"a", "b", "c"}


def test_pairwise_ratio_cancels_drift_that_the_medians_do_not():
    clock, speed = FakeClock(), [1.0]

    def slow():
        clock.now += 2.0 * speed[0]

    def fast():
        clock.now += 1.0 * speed[0]
        speed[0] *= 1.3  # the machine gets slower and slower

    result = compare({"slow": slow, "fast": fast}, readings=9, warmup=0, calls=1, clock=clock)
    # The duration drifts by a factor of eight; the ratio of a pair is 2, or 2.6 where the drift struck between its two.
    assert max(result["slow"].readings) / min(result["slow"].readings) > 5
    assert all(r == pytest.approx(2.0) or r == pytest.approx(2.6) for r in result.ratio("fast").readings)


def test_ratio_between_named_sides():
    clock = FakeClock()
    result = compare(
        {"a": clock.work(4.0), "b": clock.work(2.0), "c": clock.work(1.0)}, readings=6, calls=1, clock=clock
    )
    assert result.ratio("c").median == 4.0
    assert result.ratio("c", "b").median == 2.0
    with pytest.raises(KeyError, match="no side named 'z'"):
        result["z"]


def test_interruption_returns_whole_rounds_marked_incomplete():
    clock, calls = FakeClock(), []

    def second():
        calls.append(1)
        if len(calls) == 1 + 4:  # one warm-up, then the fourth reading
            raise KeyboardInterrupt
        clock.now += 1.0

    result = compare({"a": clock.work(2.0), "b": second}, readings=10, warmup=1, calls=1, clock=clock)
    assert not result.complete
    assert [len(t.readings) for t in result.timings] == [3, 3]
    assert result.ratio("b").median == 2.0
    assert "interrupted" in repr(result)


def test_interruption_during_warm_up_returns_an_empty_record():
    def stop():
        raise KeyboardInterrupt

    result = sample(stop, name="stopped")
    assert not result.complete
    assert math.isnan(result.median)
    assert result.interval() is None
    assert "0 of 15" in repr(result)


def test_other_errors_pass_through_and_the_collector_is_restored():
    def fail():
        raise RuntimeError("boom")

    assert gc.isenabled()
    with pytest.raises(RuntimeError, match="boom"):
        sample(fail)
    assert gc.isenabled()


def test_collector_is_off_while_measuring():
    states = []
    sample(lambda: states.append(gc.isenabled()), readings=2, warmup=0, calls=1)
    assert states == [False, False]


def test_synchronize_brackets_every_reading():
    log = []
    sample(lambda: log.append("call"), readings=2, warmup=0, calls=3, synchronize=lambda: log.append("wait"))
    assert log == ["wait", "call", "call", "call", "wait"] * 2


def test_progress_ends_at_one():
    seen = []
    sample(lambda: None, readings=4, warmup=0, calls=1, progress=lambda f, m: seen.append(f))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0


def test_invalid_arguments_are_refused():
    with pytest.raises(ValueError, match="at least one side"):
        compare({})
    with pytest.raises(ValueError, match="unknown order"):
        compare({"a": lambda: None}, order="sorted")
    with pytest.raises(ValueError, match="at least one reading"):
        compare({"a": lambda: None}, readings=0)


def test_json_round_trip():
    clock = FakeClock()
    result = compare({"a": clock.work(2.0), "b": clock.work(1.0)}, readings=6, calls=1, clock=clock)
    text = json.dumps(result.to_json())
    assert Comparison.from_json(json.loads(text)) == result
    assert Timing.from_json(json.loads(json.dumps(result["a"].to_json()))) == result["a"]
    assert json.loads(text)["ratios_to_baseline"][0]["median"] == 2.0


def test_empty_timing_is_valid_json():
    json.loads(json.dumps(Timing("none", ()).to_json(), allow_nan=False))
