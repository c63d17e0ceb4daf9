"""Schedules: legal, as good as their theorems say, and the binomial one as good as any order there is."""

from __future__ import annotations

from functools import cache
from math import comb, isqrt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab.autodiff.checkpoint import (
    CheckpointError,
    beta,
    binomial,
    can_be_reversed,
    fewest_forward_evaluations,
    longest_chain_by_search,
    minimal_repetitions,
    minimal_slots,
    recompute_all,
    save_all,
    uniform_segments,
)

LENGTHS = [1, 2, 3, 5, 10, 47]


@pytest.mark.parametrize("length", LENGTHS)
def test_the_two_extremes(length):
    run = save_all(length)
    assert (run.peak_slots, run.forward_evaluations) == (length, length - 1) and run.repetitions <= 1
    run = recompute_all(length)
    assert (run.peak_slots, run.forward_evaluations) == (1, length * (length - 1) // 2)
    assert run.repetitions == length - 1


@given(st.integers(1, 120).flatmap(lambda length: st.tuples(st.just(length), st.integers(1, length))))
def test_uniform_segments_keep_to_theorem_5_3(case):
    length, segments = case
    run = uniform_segments(length, segments)
    assert run.complete and run.repetitions <= 2 and run.forward_evaluations <= 2 * length
    assert run.peak_slots == segments + -(-length // segments) - 1
    assert run.peak_slots <= segments + length / segments


@pytest.mark.parametrize("root", range(1, 12))
def test_square_roots_of_storage(root):
    assert uniform_segments(root * root, root).peak_slots == 2 * root - 1


@given(st.integers(1, 400), st.integers(1, 14))
def test_the_binomial_order_is_legal_for_every_length_with_the_smallest_repetition(length, slots):
    run = binomial(length, slots)
    repetitions = minimal_repetitions(length, slots)
    assert beta(slots, repetitions - 1) < length <= beta(slots, repetitions)
    assert run.complete and run.peak_slots <= slots and run.repetitions == repetitions
    assert run.forward_evaluations == fewest_forward_evaluations(length, slots)


@cache
def fewest_over_all_splits(length, slots):
    """The recurrence: advance to some z_m and store it, reverse what follows, then what comes before."""
    if length == 1:
        return 0
    if slots == 1:
        return length * (length - 1) // 2
    return min(
        m + fewest_over_all_splits(length - m, slots - 1) + fewest_over_all_splits(m, slots) for m in range(1, length)
    )


@pytest.mark.parametrize("slots", range(1, 9))
def test_no_split_computes_fewer_forward_steps(slots):
    for length in range(1, 61):
        assert fewest_forward_evaluations(length, slots) == fewest_over_all_splits(length, slots)


@pytest.mark.parametrize(
    ("slots", "repetitions"),
    [(1, 0), (1, 1), (1, 4), (2, 0), (2, 1), (2, 2), (2, 3), (3, 1), (3, 2), (4, 1), (5, 1)],
)
def test_no_order_reverses_a_longer_chain(slots, repetitions):
    """Theorem 5.4 with equality, without its proof."""
    assert longest_chain_by_search(slots, repetitions) == comb(slots + repetitions, slots) == beta(slots, repetitions)


def test_the_search_finds_what_there_is():
    assert can_be_reversed(6, 3, 2) and can_be_reversed(3, 2, 1) and not can_be_reversed(4, 2, 1)


def test_beta_obeys_its_recurrence_and_its_borders():
    for s in range(1, 9):
        assert beta(s, 0) == 1 and beta(1, s) == s + 1 and beta(s, -1) == 0 and beta(0, s) == 0
        for t in range(1, 9):
            if s > 1:
                assert beta(s, t) == beta(s, t - 1) + beta(s - 1, t)


@given(st.integers(1, 5000), st.integers(1, 6))
def test_minimal_slots(length, repetitions):
    slots = minimal_slots(length, repetitions)
    assert beta(slots, repetitions) >= length and (slots == 1 or beta(slots - 1, repetitions) < length)


def test_the_numbers_of_exercise_51():
    assert beta(3, 3) == 20 and [minimal_slots(1000, t) for t in (2, 3, 4)] == [44, 17, 10]
    assert binomial(1000, 44, 2).repetitions == 2
    root = isqrt(1000)
    assert min(uniform_segments(1000, c).peak_slots for c in (root, root + 1)) == 63 > 44


def test_many_slots_and_long_chains_need_no_deep_recursion():
    assert binomial(5000, 5000).forward_evaluations == 4999
    assert binomial(20000, 200).repetitions == 2


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: binomial(11, 3, 2), "3 slots and 2 repetitions a chain may have at most 10 steps"),
        (lambda: binomial(2, 3, 0), "at most 1 step, and"),
        (lambda: binomial(0, 3), "0 steps and 3 slots"),
        (lambda: save_all(0), "0 steps"),
        (lambda: uniform_segments(4, 5), "4 steps cannot be parted into 5 segments"),
        (lambda: uniform_segments(4, 0), "into 0 segments"),
        (lambda: minimal_slots(5, 0), "without computing a forward step"),
        (lambda: longest_chain_by_search(1, 9, most=5), "up to 5 steps"),
    ],
)
def test_what_cannot_be_is_refused(call, words):
    with pytest.raises(CheckpointError, match=words) as caught:
        call()
    assert caught.value.remedy


def test_a_larger_repetition_than_needed_changes_nothing():
    assert binomial(10, 3, 7).moves == binomial(10, 3).moves
    assert minimal_slots(1, 0) == 1
