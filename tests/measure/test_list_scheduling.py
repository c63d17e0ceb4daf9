"""Greedy list schedules: their rule, their bounds, and the tasks that attain them (Proposition 11.2, Exercise 31)."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab.errors import OptionError
from staxlab.measure.list_scheduling import (
    bounds,
    improved_bound,
    list_schedule,
    longest_first,
    longest_first_family,
    optimum,
    tight_family,
)

TASKS = st.lists(st.integers(0, 30) | st.fractions(0, 30, max_denominator=7), max_size=14)
WORKERS = st.integers(1, 6)


@given(TASKS, WORKERS)
def test_a_schedule_is_greedy_and_in_the_order_of_the_list(durations, workers):
    schedule = list_schedule(durations, workers)
    assert [a.task for a in schedule.assignments] == list(range(len(durations)))
    starts = [a.start for a in schedule.assignments]
    assert starts == sorted(starts)
    for worker in range(workers):
        lane = schedule.lane(worker)
        assert all(a.finish == a.start + durations[a.task] for a in lane)
        assert all(one.finish <= other.start for one, other in itertools.pairwise(lane))
    for a in schedule.assignments:  # nobody was free before it began, among those who had earlier tasks of the list
        earlier = schedule.assignments[: a.task]
        free = [max((b.finish for b in earlier if b.worker == w), default=0) for w in range(workers)]
        assert a.start == min(free)


@given(TASKS, WORKERS)
def test_every_list_schedule_keeps_the_bounds(durations, workers):
    schedule = list_schedule(durations, workers)
    low, high = bounds(durations, workers)
    better = improved_bound(durations, workers)
    assert low <= schedule.makespan <= better <= high
    assert better == Fraction(sum(durations)) / workers + (1 - Fraction(1, workers)) * max(durations, default=0)
    assert schedule.idle >= 0 and longest_first(durations, workers).makespan <= better


@given(st.lists(st.integers(1, 12), min_size=1, max_size=6), st.integers(1, 3))
def test_the_optimum_is_that_of_trying_everything(durations, workers):
    everything = min(
        max(sum(d for d, w in zip(durations, lanes, strict=True) if w == worker) for worker in range(workers))
        for lanes in itertools.product(range(workers), repeat=len(durations))
    )
    assert optimum(durations, workers) == everything
    assert bounds(durations, workers)[0] <= everything <= list_schedule(durations, workers).makespan


@given(st.lists(st.integers(1, 20), min_size=1, max_size=9), st.integers(1, 4))
def test_grahams_ratios(durations, workers):
    best = optimum(durations, workers)
    assert list_schedule(durations, workers).makespan <= (2 - Fraction(1, workers)) * best
    assert longest_first(durations, workers).makespan <= (Fraction(4, 3) - Fraction(1, 3 * workers)) * best


@pytest.mark.parametrize("workers", range(1, 8))
@pytest.mark.parametrize("length", [1, 3])
def test_the_tight_family_attains_the_improved_bound(workers, length):
    schedule = list_schedule(tight_family(workers, length), workers)
    assert schedule.attains and schedule.makespan == (2 * workers - 1) * length == schedule.improved_bound
    if len(schedule.durations) <= 14:
        assert optimum(schedule.durations, workers) == workers * length
    if workers > 1:
        assert not list_schedule(tight_family(workers, length)[::-1], workers).attains, "the order matters"


@pytest.mark.parametrize("workers", [2, 3, 4, 5])
def test_the_longest_first_is_not_always_the_best(workers):
    assert list_schedule([1, 1, 2], 2).makespan == 3 and longest_first([1, 1, 2], 2).makespan == 2
    tasks = longest_first_family(workers)
    assert longest_first(tasks, workers).makespan == 4 * workers - 1
    if len(tasks) <= 14:
        assert optimum(tasks, workers) == 3 * workers


def test_what_is_no_schedule_is_refused():
    for durations, workers, words in (
        ([1], 0, "needs a worker, not 0"),
        ([1], True, "needs a worker, not True"),
        ([1, -1], 2, "the duration of task 1 is -1"),
        ([float("nan")], 2, "the duration of task 0 is nan"),
        ([float("inf")], 2, "the duration of task 0 is inf"),
        (["long"], 2, "the duration of task 0 is 'long'"),
    ):
        with pytest.raises(OptionError, match=words):
            list_schedule(durations, workers)
    with pytest.raises(OptionError, match="too many to try all"):
        optimum([1] * 15, 2)
    for bad in (lambda: tight_family(0), lambda: tight_family(2, 0), lambda: longest_first_family(1)):
        with pytest.raises(OptionError):
            bad()
    assert list_schedule([], 2).makespan == 0 == improved_bound([], 2)
