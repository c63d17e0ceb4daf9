"""Exercise 20: six orders, their peaks, and graphs that a rule of thumb gets wrong."""

from __future__ import annotations

import pytest

from staxlab import learn
from staxlab.learn.exercises import ex20, ex20_answers, ex20_runs
from staxlab.learn.variants import variant_for
from staxlab.schedule.orders import exact


def check(part, seed=None, **answers):
    return learn.check(f"ex20.{part}", answers, seed=seed, record=False)


def test_the_chapters_numbers():
    answers = ex20_answers.reference(ex20.Variant())
    assert (answers["order_count"], answers["lowest_peak"], answers["highest_peak"]) == (6, 6, 9)
    assert set(ex20_runs.ORDERS) == {"abcd", "abdc", "bacd", "badc", "acbd", "bdac"}


@pytest.mark.parametrize("seed", range(40))
def test_the_larger_intermediate_first_is_best(seed):
    variant = variant_for(ex20.Variant, seed)
    for sizes in (variant.sizes, *ex20_runs.cases(seed)):
        order = ex20_answers.best_order(*(sizes[name] for name in "abcd"))
        lowest = min(ex20_runs.peak_of(o, sizes) for o in ex20_runs.ORDERS)
        assert ex20_runs.peak_of(order, sizes) == lowest == exact(ex20_runs._two_chains(sizes)).peak


@pytest.mark.parametrize(
    ("graph", "mistake"),
    [
        ([], "wrong-form"),
        ("pq", "wrong-form"),
        ([("p", [], 1)], "wrong-form"),
        ([("p", [], 1, True), ("p", [], 1, True)], "wrong-form"),
        ([("p", [], 0, True)], "wrong-form"),
        ([("p", [], True, True)], "wrong-form"),
        ([("p", [], 2, 1)], "wrong-form"),
        ([(f"p{k}", [], 1, False) for k in range(11)], "wrong-form"),
        ([("p", [], 3, True)], "rule-succeeds"),
        ([("r", [], 2, True), ("p", [], 9, False)], "rule-succeeds"),
        ([("r", [], 2, True), ("p", (), 6, False), ("q", ("p",), 6, False)], None),
    ],
)
def test_other_graphs(graph, mistake):
    verdict = check("3", graph_for_greedy=lambda: graph)["graph_for_greedy"]
    assert verdict.mistake == mistake and (verdict.credit == 1) == (mistake is None), str(verdict)


def test_an_order_for_equal_sizes_may_begin_with_either_chain():
    for order in (lambda a, b, c, d: "acbd" if a >= b else "bdac", lambda a, b, c, d: "acbd" if b < a else "bdac"):
        assert check("2", best_order=order)["best_order"].credit == 1
