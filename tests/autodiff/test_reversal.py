"""Reversal orders: every rule of Definition 5.3 is enforced and named, and the history says what happened."""

from __future__ import annotations

import pytest

from staxlab.autodiff.checkpoint import binomial, recompute_all
from staxlab.autodiff.reversal import Advance, Free, ReversalError, Reverse, Rule, Store, simulate
from staxlab.errors import StaxError

# A chain of four steps with two slots.
START = (Advance(0, 2), Store(2), Advance(2, 3), Reverse(4), Reverse(3))
WHOLE = (*START, Free(2), Advance(0, 1), Reverse(2), Reverse(1))


def test_a_legal_order_and_its_history():
    run = simulate(WHOLE, 4, 2, 2)
    assert run.complete and run.moves == WHOLE
    assert run.times == (2, 2, 3, 4, 5, 5, 6, 7, 8) and run.used == (1, 2, 2, 2, 2, 1, 1, 1, 1)
    assert run.evaluations == (2, 1, 1, 0) and run.repetitions == 2 and run.forward_evaluations == 4
    assert run.peak_slots == 2 and run.duration == 8
    stays = [(stay.state, stay.slot, stay.start, stay.stop) for stay in run.residences]
    assert stays == [(0, 0, 0, 8), (2, 1, 2, 5)]


@pytest.mark.parametrize(
    ("moves", "rule", "position"),
    [
        ((*START, "reverse 2"), Rule.KNOWN_MOVE, 5),
        ((Advance(0, 5),), Rule.IN_CHAIN, 0),
        ((Advance(-1, 2),), Rule.IN_CHAIN, 0),
        ((Reverse(0),), Rule.IN_CHAIN, 0),
        ((Advance(0, 1.5),), Rule.IN_CHAIN, 0),
        ((Advance(0, True),), Rule.IN_CHAIN, 0),
        ((Advance(0, 2), Advance(2, 2)), Rule.FORWARD, 1),
        ((Advance(0, 2), Advance(2, 1)), Rule.FORWARD, 1),
        ((Advance(1, 2),), Rule.FROM_CHECKPOINT, 0),
        ((Advance(0, 1), Advance(0, 2), Advance(1, 2)), Rule.FROM_CHECKPOINT, 2),
        ((*START, Free(2), Advance(2, 3)), Rule.FROM_CHECKPOINT, 6),
        ((Advance(0, 2), Store(1)), Rule.STORE_AT_HAND, 1),
        ((*START[:3], Store(3)), Rule.FREE_SLOT, 3),
        ((Store(0), Store(0)), Rule.FREE_SLOT, 1),
        ((Free(1),), Rule.FREE_STORED, 0),
        ((*START, Free(2), Free(2)), Rule.FREE_STORED, 6),
        ((Advance(0, 2), Reverse(3)), Rule.LAST_FIRST, 1),
        ((*START, Reverse(3)), Rule.LAST_FIRST, 5),
        ((*WHOLE, Reverse(1)), Rule.LAST_FIRST, 9),
        ((Advance(0, 2), Reverse(4)), Rule.STATE_PRESENT, 1),
        ((*START, Reverse(2)), Rule.STATE_PRESENT, 5),
        ((*START, Advance(0, 1), Advance(0, 1)), Rule.REPETITIONS, 6),
        (START, Rule.COMPLETE, 5),
        ((), Rule.COMPLETE, 0),
    ],
)
def test_each_rule_is_enforced_and_named(moves, rule, position):
    with pytest.raises(ReversalError) as caught:
        simulate(moves, 4, 2, 2)
    error = caught.value
    assert error.rule is rule and error.position == position
    assert error.history.moves == tuple(moves[:position]) and not error.history.complete or position == 9
    assert rule.value in str(error) and error.reason in str(error)


def test_every_rule_has_a_test():
    (mark,) = test_each_rule_is_enforced_and_named.pytestmark
    assert {rule for _, rule, _ in mark.args[1]} == set(Rule)


def test_a_state_that_was_given_up_is_still_at_hand():
    run = simulate((Advance(0, 1), Store(1), Free(1), Reverse(2), Reverse(1)), 2, 2, 1)
    assert run.complete


def test_without_bounds_slots_and_repetitions_are_counted():
    moves = (Store(0), Store(0), Advance(0, 1), Advance(0, 1), Reverse(2), Free(0), Reverse(1))
    run = simulate(moves, 2)
    assert (run.peak_slots, run.slots, run.repetitions) == (3, 3, 2)


@pytest.mark.parametrize(("length", "slots"), [(0, 1), (3, 0)])
def test_what_is_no_chain(length, slots):
    with pytest.raises(StaxError, match="cannot be reversed"):
        simulate((), length, slots)


def test_it_prints_with_a_diagram():
    text = simulate(WHOLE, 4, 2, name="mine").format()
    lines = text.splitlines()
    assert lines[0].startswith("mine: 4 steps, at most 2 slots of 2 used, 4 forward evaluations")
    assert lines[2:7] == [
        "  z_3 |  ><    |",
        "  z_2 | >==<   |",
        "  z_1 |>    >< |",
        "  z_0 |=======<|",
        "  slots|11222111|",
    ]
    assert "     2  advance 0 -> 2         1 of 2" in lines
    long = binomial(300, 3).format()
    assert "more moves" in long and "|" not in long and len(long) < 6000


def test_unfinished_orders_say_so():
    with pytest.raises(ReversalError) as caught:
        simulate(START, 4, 2)
    assert "not complete: backward step 2 is next" in caught.value.history.summary()


def test_units_of_time():
    run = recompute_all(3)
    assert list(run.units()) == [
        (0, 1, True), (1, 2, True), (2, 2, False), (3, 1, True), (4, 1, False), (5, 0, False),
    ]  # fmt: skip
