"""The two-level machine: what it computes, what it counts, and what it refuses."""

from __future__ import annotations

from fractions import Fraction

import pytest

from staxlab.learn.machine import MachineError, departures, elements_of, execute

X = {"x": {(0,): Fraction(3), (1,): Fraction(-5)}}
Y = {"y": (2,)}
DOUBLED = {"y": {(0,): Fraction(6), (1,): Fraction(0)}}
IDEAL = [
    step
    for i in range(2)
    for step in (("read", "a", "x", i), ("relu", "a", "a"), ("mul", "a", "a", 2), ("write", "a", "y", i))
]


def kinds(steps):
    return [departure.kind for departure in departures(execute(steps, X, Y), X, DOUBLED)]


def test_the_ideal_schedule_departs_in_nothing():
    run = execute(IDEAL, X, Y, registers=1)
    assert departures(run, X, DOUBLED) == []
    assert run.transfers == 4 and run.registers == 1 and run.steps == 8


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        (IDEAL[:4], "output-missing"),
        ([*IDEAL[:2], ("mul", "a", "a", 3), *IDEAL[3:]], "wrong-result"),
        ([*IDEAL, ("write", "a", "y", 1)], "output-rewritten"),
        ([*IDEAL, ("read", "c", "x", 1)], "input-reread"),
        ([*IDEAL, ("read", "c", "y", 1)], "output-reread"),
        ([*IDEAL, ("write", "a", "t", 9, 9)], "intermediate-write"),
        ([*IDEAL, ("write", "a", "x", 0)], "input-overwritten"),
        ([*IDEAL[:4], ("set", "a", 0), ("write", "a", "y", 1)], "input-skipped"),
    ],
)
def test_each_departure_is_found_alone(steps, kind):
    found = kinds(steps)
    assert found[0] == kind and set(found) <= {kind, "input-skipped"}


@pytest.mark.parametrize(
    ("instruction", "kind"),
    [
        (("read", "a", "x", 2), "out-of-bounds"),
        (("read", "a", "x", 0, 0), "out-of-bounds"),
        (("write", "a", "y", -1), "out-of-bounds"),
        (("read", "a", "t", 0), "read-before-write"),
        (("read", "a", "y", 0), "read-before-write"),
        (("add", "c", "a", "zz"), "unset-register"),
        (("write", "zz", "y", 0), "unset-register"),
        (("add", "c", "a"), "instruction"),
        (("fma", "c", "a", "a"), "instruction"),
        (("div", "c", "a", 0), "instruction"),
        (("set", "c", float("nan")), "instruction"),
        (("set", "c", float("inf")), "instruction"),
        (("set", "c", True), "instruction"),
        (("set", 3, 1), "instruction"),
        (("read", "a", "x", 0.0), "instruction"),
        (("read", "a", 0, 0), "instruction"),
        ("read a x 0", "instruction"),
        ((), "instruction"),
        (None, "instruction"),
    ],
)
def test_nonsense_stops_the_machine_at_its_step(instruction, kind):
    with pytest.raises(MachineError) as caught:
        execute([("set", "a", 1), instruction], X, Y)
    assert caught.value.kind == kind and caught.value.position == 1
    assert "step 1" in str(caught.value)


def test_registers_are_limited():
    steps = [("set", name, 0) for name in "abc"]
    assert execute(steps, X, Y, registers=3).registers == 3
    with pytest.raises(MachineError) as caught:
        execute(steps, X, Y, registers=2)
    assert caught.value.kind == "too-many-registers" and caught.value.position == 2


def test_arithmetic_is_exact():
    steps = [("set", "a", 1), ("div", "a", "a", 3), ("add", "c", "a", 0.5), ("max", "c", "c", "a"), ("neg", "c", "c")]
    run = execute([*steps, ("write", "c", "y", 0)], X, Y)
    assert run.memory["y", (0,)] == Fraction(-5, 6)


def test_elements_are_listed_in_row_major_order():
    assert list(elements_of((2, 2))) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert list(elements_of((0, 3))) == [] and list(elements_of(())) == [()]
