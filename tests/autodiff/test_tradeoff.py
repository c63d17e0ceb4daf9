"""Storage against computation: points that were run, and a boundary that nothing crosses."""

from __future__ import annotations

import pytest

from staxlab.autodiff.checkpoint import CheckpointError, binomial, fewest_forward_evaluations, uniform_segments
from staxlab.autodiff.tradeoff import BINOMIAL, EXTREMES, UNIFORM, trade_off


@pytest.mark.parametrize("length", [1, 2, 10, 150])
def test_no_schedule_lies_below_the_binomial_ones(length):
    record = trade_off(length)
    for point in record.points:
        assert point.evaluations >= fewest_forward_evaluations(length, point.slots)
    for point in record.of(BINOMIAL):
        assert point.evaluations == fewest_forward_evaluations(length, point.slots)


def test_points_are_those_of_the_orders():
    record = trade_off(100)
    everything, nothing = record.of(EXTREMES)
    assert (everything.slots, everything.evaluations, everything.repetitions) == (100, 99, 1)
    assert (nothing.slots, nothing.evaluations, nothing.repetitions) == (1, 4950, 99)
    ten = next(point for point in record.of(UNIFORM) if point.name == "10 uniform segments")
    run = uniform_segments(100, 10)
    assert (ten.slots, ten.evaluations) == (run.peak_slots, run.forward_evaluations) == (19, 180)
    three = next(point for point in record.of(BINOMIAL) if point.name == "binomial, 3 slots")
    assert three.repetitions == binomial(100, 3).repetitions


def test_equal_segments_do_not_come_below_twice_the_root():
    record = trade_off(100, most=30)
    assert min(point.slots for point in record.of(UNIFORM)) == 19
    assert min(point.slots for point in record.of(BINOMIAL)) == 1


def test_it_prints_as_a_table():
    lines = trade_off(10, most=4).format().splitlines()
    assert lines[0] == "storage against computation: a chain of 10 steps"
    assert lines[1].split() == "schedule slots forward evaluations per step one step at most".split()
    assert lines[2].split() == ["save", "all", "10", "9", "0.9", "1"]
    assert any(line.startswith("binomial, 1 slot ") for line in lines) and len({len(line) for line in lines[1:]}) == 1


@pytest.mark.parametrize("length", [0, 10**6])
def test_what_is_not_run(length):
    with pytest.raises(CheckpointError, match="no orders are run"):
        trade_off(length)
