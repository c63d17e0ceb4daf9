"""The search for counterexamples: finds them, makes them small, repeats itself from a seed."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab.learn.claims import choices, falsify, floats, integers, lists


def test_a_true_claim_survives():
    search = falsify(lambda n: None if n >= 0 else "negative", {"n": integers(0, 1000)}, seed=1, trials=300)
    assert search.survived and search.trials > 100


@pytest.mark.parametrize("threshold", [1, 7, 500, 99_000])
def test_integers_shrink_to_the_smallest_refutation(threshold):
    search = falsify(lambda n: None if n < threshold else n, {"n": integers(0, 100_000)}, seed=3)
    assert search.counterexample == {"n": threshold} and search.reason == threshold


def test_arguments_shrink_together():
    search = falsify(
        lambda a, b: None if a * b < 100 else "large", {"a": integers(1, 500), "b": integers(1, 500)}, seed=0
    )
    a, b = search.counterexample["a"], search.counterexample["b"]
    assert a * b >= 100 and (a - 1) * b < 100 and a * (b - 1) < 100


def test_lists_shrink_in_length_and_in_elements():
    domain = {"values": lists(integers(0, 100), 0, 12)}
    search = falsify(lambda values: None if sum(values) < 10 else "sum", domain, seed=5)
    assert sum(search.counterexample["values"]) == 10 and len(search.counterexample["values"]) == 1


def test_special_floats_are_tried():
    def addition_of_zero_is_the_identity(x):
        same = math.copysign(1, x + 0.0) == math.copysign(1, x) and (x + 0.0 == x or math.isnan(x))
        return None if same else "changed"

    search = falsify(addition_of_zero_is_the_identity, {"x": floats()}, seed=1)
    assert math.copysign(1, search.counterexample["x"]) == -1 and search.counterexample["x"] == 0


def test_choices_prefer_the_first():
    search = falsify(lambda which: "bad" if which != "a" else None, {"which": choices(("a", "b", "c"))}, seed=1)
    assert search.counterexample == {"which": "b"}


def test_equal_seeds_give_equal_searches_and_different_ones_differ():
    def run(seed):
        tried = []
        falsify(lambda n: tried.append(n), {"n": integers(0, 10**6)}, seed=seed, trials=40)
        return tried

    assert run(1) == run(1) and run(1) != run(2)


def test_no_input_is_tried_twice():
    tried = []
    search = falsify(lambda n: tried.append(n), {"n": integers(1, 9)}, seed=4, trials=100)
    assert len(tried) == len(set(tried)) == search.trials


def test_a_reason_not_worth_shrinking_is_kept():
    calls = []

    def against(n):
        calls.append(n)
        return "slow" if n >= 100 else None

    search = falsify(against, {"n": integers(0, 10**6)}, seed=2, worth_shrinking=lambda reason: reason != "slow")
    assert search.counterexample == {"n": calls[-1]}


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers())
def test_integers_stay_in_range_and_get_simpler(low, span, seed):
    domain = integers(low, low + span)
    rng = random.Random(seed)
    for value in [*domain.corners(), *(domain.draw(rng) for _ in range(20))]:
        assert low <= value <= low + span
        assert all(low <= simpler < value for simpler in domain.simpler(value))


@given(st.floats())
def test_shrinking_floats_ends(value):
    for _ in range(5000):
        simpler = next(floats().simpler(value), None)
        if simpler is None:
            return
        value = simpler
    raise AssertionError("shrinking goes on")
