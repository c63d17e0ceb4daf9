"""Exercise 50: what the judges say of a matrix and a schedule, against running the nest."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from staxlab import learn
from staxlab.learn.exercises import ex50, ex50_answers, ex50_runs
from staxlab.learn.variants import variant_for
from staxlab.polyhedral.distances import by_running
from staxlab.polyhedral.integers import determinant, dot


def check(part, seed=None, **answers):
    return learn.check(f"ex50.{part}", answers, seed=seed, record=False)


@pytest.mark.parametrize("seed", [None, *range(6)])
def test_the_nest_really_has_the_distances_and_the_answers_are_the_best_there_are(seed):
    variant = variant_for(ex50.Variant, seed)
    case = (variant.distances, variant.rows, variant.columns)
    assert by_running(ex50_runs.found_in(*case).nest) == set(variant.distances)
    answers = ex50_answers.reference(variant)
    assert answers["interchange_50"] == answers["permutable_50"] == "not legal"
    cost = ex50_runs._cost(answers["skew_matrix"])
    for entries in itertools.product(range(-3, 4), repeat=4):
        rows = (entries[:2], entries[2:])
        if abs(determinant(rows)) == 1 and all(dot(row, v) >= 0 for row in rows for v in variant.distances):
            assert ex50_runs._cost(rows) >= cost
    dates = len(ex50_runs.best_schedule(*case).dates)
    points = ex50_runs.found_in(*case).nest.points()
    for c in itertools.product(range(-2, 8), repeat=2):
        if all(dot(c, v) >= 1 for v in variant.distances):
            assert len({dot(c, p) for p in points}) >= dates


def test_the_chapters_values():
    answers = ex50_answers.reference(ex50.Variant())
    assert answers["skew_matrix"] == [[1, 0], [1, 1]] and answers["schedule_50"] == [2, 1]
    assert answers["forbidding_distance"] == [1, -1] and answers["at_once"] == 4


@pytest.mark.parametrize("seed", [None, 3])
def test_the_functions_against_trying_all_numbers(seed):
    for distances in ex50_runs.distance_lists(seed):
        assert ex50_answers.smallest_skew(distances) == ex50_runs.smallest_skew(distances)
        assert ex50_answers.smallest_slope(distances) == ex50_runs.smallest_slope(distances)


@pytest.mark.parametrize(
    ("matrix", "mistake"),
    [([[1, 0], [1, 1]], None), ([[1, 1], [1, 0]], "not-the-nearest"), ([[-1, 0], [0, 1]], "not-legal"),
     ([[1, 0], [0, -1]], "not-legal"), ([[2, 1], [1, 1]], "not-the-nearest"), ([[0, 0], [0, 0]], "not-unimodular")],
)  # fmt: skip
def test_matrices(matrix, mistake):
    verdict = check("2", skew_matrix=matrix)["skew_matrix"]
    assert verdict.mistake == mistake, verdict
    if mistake in (None, "not-the-nearest"):
        assert "run in tiles of" in dict(verdict.facts)


def test_schedules_may_be_fractions_and_say_which_distance_comes_too_early():
    assert check("3", schedule_50=[2, 1])["schedule_50"].credit == 1
    assert check("3", schedule_50=[Fraction(5, 2), 1])["schedule_50"].mistake == "too-many-dates"
    verdict = check("3", schedule_50=[1, 1])["schedule_50"]
    assert verdict.mistake == "too-early" and "c . (1, -1) is 0" in dict(verdict.facts)["because"]
