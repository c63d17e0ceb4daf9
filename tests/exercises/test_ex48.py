"""Exercise 48: vertex separation, the reduction and its interval, and orders of trees."""

from __future__ import annotations

import itertools
import random

import pytest

from staxlab import learn
from staxlab.learn.exercises import ex48, ex48_answers, ex48_runs
from staxlab.learn.variants import variant_for
from staxlab.schedule.orders import exact


def check(part, seed=None, **answers):
    return learn.check(f"ex48.{part}", answers, seed=seed, record=False)


def test_the_chapters_graphs():
    answers = ex48_answers.reference(ex48.Variant())
    assert answers["first_separation"] == 1 and answers["second_separation"] == 2
    assert 4 * 2 <= answers["first_peak"] <= 4 * 2 + 3
    assert 5 * 3 <= answers["second_peak"] <= 5 * 3 + 4


@pytest.mark.parametrize(
    ("graph", "number"),
    [
        (ex48_runs.path(6), 1),
        (ex48_runs.cycle(6), 2),
        (ex48_runs.star(6), 1),
        (ex48_runs.wheel(6), 3),
        ((5, tuple(itertools.combinations(range(5), 2))), 4),
        ((3, ()), 0),
    ],
)
def test_known_separation_numbers(graph, number):
    assert ex48_runs.separation(graph) == number


@pytest.mark.parametrize("seed", range(20))
def test_the_lowest_peak_lies_in_the_interval(seed):
    graph = ex48_runs._random_graph(random.Random(seed))
    unit, vs = ex48_runs.unit_of(graph), ex48_runs.separation(graph)
    height = ex48_runs.lowest_peak(graph)
    assert unit * (vs + 1) <= height <= unit * (vs + 1) + len(graph[1])
    assert height // unit - 1 == vs


@pytest.mark.parametrize("seed", [None, *range(25)])
def test_values_of_students_lie_in_the_interval(seed):
    for graph in variant_for(ex48.Variant, seed).graphs:
        unit, vs = ex48_runs.unit_of(graph), ex48_runs.separation(graph)
        assert ex48_runs.lowest_peak(graph) // unit - 1 == vs


@pytest.mark.parametrize("seed", range(20))
def test_needs_in_decreasing_order_are_best(seed):
    operands = ex48_runs.random_tree(random.Random(seed), 11)
    problem = ex48_runs.tree_problem(operands)
    order = ex48_answers.order_of_tree(operands)
    assert problem.is_legal(order) and problem.peak(order) == exact(problem).peak


def test_a_balanced_tree_needs_its_depth():
    problem = ex48_runs.tree_problem(ex48_runs.balanced(3))
    assert exact(problem).peak == 5  # one unit for each level, and the one that is being written
