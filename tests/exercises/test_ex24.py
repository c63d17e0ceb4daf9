"""Exercise 24: the walk by the package and by hand, traps of every kind, and how many places to stop at there are."""

from __future__ import annotations

import itertools
import math

import pytest

from staxlab import learn
from staxlab.codegen.configurations import ConfigurationSpace
from staxlab.learn.exercises import ex24, ex24_answers, ex24_runs
from staxlab.learn.variants import variant_for
from staxlab.runtime.autotune import coordinate_descent, random_search


def check(part, seed=None, **answers):
    return learn.check(f"ex24.{part}", answers, seed=seed, record=False)


def test_the_chapters_space_and_its_walk():
    variant = ex24.Variant()
    assert variant.space.size == 16 and variant.walk().chosen != variant.best
    assert variant.walk().path == ((1, 1), (2, 1), (2, 2))
    assert check("1", walk_end=[2, 2], walk_acceptances=2)["walk_end"].credit == 1


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_every_variant_has_a_walk_that_stops_elsewhere(seed):
    variant = variant_for(ex24.Variant, seed)
    walk = variant.walk()
    assert walk.acceptances >= 2 and walk.chosen != variant.best and len(ex24_runs.end_slips(variant)) >= 2
    assert walk.chosen not in [slip.answer for slip in ex24_runs.end_slips(variant)]
    for name in ("threshold ε", "start (a, b)"):
        assert name in dict(variant.describe())


@pytest.mark.parametrize(("rows", "columns"), [(1, 1), (1, 4), (2, 2), (3, 3), (3, 4), (4, 4)])
def test_places_to_stop_are_counted_over_all_sets(rows, columns):
    space = ConfigurationSpace.of(a=[1 << k for k in range(rows)], b=[1 << k for k in range(columns)])
    members = list(space)
    most = 0
    for chosen in itertools.product((False, True), repeat=len(members)):
        kept = {c for c, take in zip(members, chosen, strict=True) if take}
        if not any(near in kept for c in kept for near in space.neighbours(c)):
            most = max(most, len(kept))
    assert ex24_runs.most_stops(rows, columns) == most == math.ceil(rows * columns / 2)


def test_so_many_places_are_really_stopped_at():
    space = ConfigurationSpace.of(a=(1, 2, 4, 8), b=(1, 2, 4, 8))
    black = [c for c in space if (c[0].bit_length() + c[1].bit_length()) % 2]
    costs = dict.fromkeys(space, 100.0) | {c: 1.0 + k for k, c in enumerate(black)}
    assert {coordinate_descent(space, c, costs.__getitem__).chosen for c in space} == set(black)
    assert len(black) == ex24_runs.most_stops(4, 4)


def test_random_search_is_not_caught_where_the_walk_is():
    start, times = ex24_answers.trap([1, 2, 4, 8], 1e-3)
    space = ConfigurationSpace.of(a=(1, 2, 4, 8), b=(1, 2, 4, 8))
    assert coordinate_descent(space, start, times.__getitem__).chosen == start
    for seed in range(20):  # each misses with probability (15/16)**200, about 2e-6
        assert random_search(space, times.__getitem__, samples=200, seed=seed).cost == 1


def test_the_feedback_shows_the_walk():
    verdict = check("2", trap=lambda A, epsilon: ((A[0], A[0]), {(a, b): 99 - a - b for a in A for b in A}))["trap"]
    assert verdict.mistake == "reaches-the-best" and "(1, 1) -> (2, 1)" in dict(verdict.facts)["the walk"]


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda A, epsilon: 1 / 0, "failed-call"),
        (lambda A, epsilon: None, "wrong-form"),
        (lambda A, epsilon: ((3, 3), {}), "wrong-form"),
        (lambda A, epsilon: ([1], {}), "wrong-form"),
        (lambda A, epsilon: ((1, 1), []), "wrong-form"),
        (lambda A, epsilon: ((1, 1), dict.fromkeys(itertools.product(A, A), "slow")), "no-time"),
        (lambda A, epsilon: ((1, 1), dict.fromkeys(itertools.product(A, A), 0)), "no-time"),
        (lambda A, epsilon: ((1, 1), dict.fromkeys(itertools.product(A, A), 10**400)), "no-time"),
    ],
)
def test_what_is_no_trap(answer, mistake):
    verdict = check("2", trap=answer)["trap"]
    assert verdict.mistake == mistake and verdict.credit == 0


def test_walls_of_infinity_and_lists_for_tuples_are_fine():
    def walled(A, epsilon):
        times = {(a, b): float("inf") for a in A for b in A}
        times[(A[1], A[1])], times[(A[-1], A[0])] = 7, 3
        return [A[1], A[1]], times

    assert check("2", trap=walled)["trap"].credit == 1


def test_the_probability_may_be_written_with_numbers():
    assert check("3", drawn_best="1 - (15/16)**N")["drawn_best"].credit == 1
    assert check("3", drawn_best=lambda N: 1 - (15 / 16) ** N)["drawn_best"].credit == 1
