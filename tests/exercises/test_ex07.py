"""Exercise 7: its truth against the package's check of depth, and the feedback on particular answers."""

from __future__ import annotations

import random

import pytest

from staxlab import learn
from staxlab.learn.exercises import ex07, ex07_runs
from staxlab.learn.exercises.ex07_answers import NEVER, NONE
from staxlab.learn.variants import variant_for
from staxlab.operators.depth import CyclicRulesError, depths, find_cycle


def check(part, seed=None, **answers):
    return learn.check(f"ex07.{part}", answers, seed=seed, record=False)


def test_the_exercises_table_has_no_depth_and_never_ends():
    table = ex07_runs.the_table(1, 1)
    assert table == {"o1": ["o2", "a0"], "o2": ["o1", "c0"]}
    with pytest.raises(CyclicRulesError) as caught:
        depths(table)
    assert caught.value.cycle == ("o1", "o2", "o1")
    assert ex07_runs.when_it_ends(1, 1) == NEVER and ex07_runs.depth_exists(1, 1) == NONE


@pytest.mark.parametrize(("p", "q"), [(1, 1), (2, 3), (4, 1)])
def test_operators_are_counted_by_taking_apart(p, q):
    table = ex07_runs.the_table(p, q)
    assert ex07_runs.unfolded(table, (), "o1", 0) == ["o1"]
    assert len(ex07_runs.unfolded(table, (), "o1", 1)) == 1 + p
    assert [ex07_runs.operators_left(p, q, m) for m in range(4)] == [1 + m * (p + q) for m in range(4)]


def test_with_the_second_operator_in_the_basis_it_ends_at_once():
    table = ex07_runs.the_table(2, 1)
    left = ex07_runs.unfolded(table, {"o2"}, "o1", 100)
    assert left == ["o2", "a0", "a1"] and depths(table, {"o2"})["o1"] == 1


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_tables_of_ones_own_are_acyclic_and_the_basis_matters(seed):
    variant = variant_for(ex07.Variant, seed)
    rules = dict(variant.rules)
    assert find_cycle(rules) is None and variant.base in rules
    with_basis, without = depths(rules, {variant.base}), depths(rules)
    assert with_basis != without and max(with_basis.values()) >= 3
    listed = ex07_runs.depth_list(variant)
    assert len(listed) == len(ex07_runs.NAMES) and listed[ex07_runs.NAMES.index(variant.base)] == 0


def test_a_cyclic_table_is_refused_with_its_cycle():
    verdict = check("1", cyclic_table=lambda length: ({k: [(k + 1) % length] for k in range(length)}, set()))[
        "cyclic_table"
    ]
    assert verdict.credit == 1
    assert "the rules lead from 0 back to itself: 0 => 1 => 2" in dict(verdict.facts)["the last one"]


def long_way_round(length):
    """A cycle that only an operator from outside leads to, and other rules besides."""
    rules = {f"x{k}": [f"x{(k + 1) % length}", "add", "mean"] for k in range(length)}
    return {"start": ["x0", "mul"], "mean": ["sum", "div"], **rules}, {"add", "mul", "sum"}


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (long_way_round, None),
        (lambda length: ({k: (k - 1 if k else length - 1,) for k in range(length)}, []), None),
        (lambda length: ({}, set()), "no-cycle"),
        (lambda length: ({"a": ["a"]}, set()), "cycle-of-another-length"),
        (lambda length: ({"a": ["b"], "b": ["a"]}, {"b"}), "basis-breaks-the-cycle"),
        (lambda length: {"a": ["a"]}, "wrong-form"),
        (lambda length: ({"a": 1}, set()), "wrong-form"),
        (lambda length: 1 / 0, "failed-call"),
    ],
)
def test_tables_of_ones_own(answer, mistake):
    verdict = check("1", cyclic_table=answer)["cyclic_table"]
    assert verdict.mistake == mistake and (verdict.credit == 1) == (mistake is None)


def test_depths_that_ignore_the_basis_are_named():
    variant = variant_for(ex07.Variant, 5)
    without = depths(dict(variant.rules))
    verdict = check("2", seed=5, own_depths=[without.get(name, 0) for name in ex07_runs.NAMES])["own_depths"]
    assert verdict.mistake == "ignores-the-basis" and variant.base in verdict.message


def by_search(rules, basis):
    """Another right check: no operator is reached from itself."""
    for start in rules:
        if start in basis:
            continue
        seen, pending = set(), list(rules[start])
        while pending:
            one = pending.pop()
            if one == start:
                return False
            if one not in seen and one not in basis:
                seen.add(one)
                pending.extend(rules.get(one, ()))
    return True


def test_another_right_check_is_right():
    assert check("2", terminates=by_search)["terminates"].credit == 1


def test_a_wrong_check_is_shown_a_small_table():
    verdict = check("2", terminates=lambda rules, basis: True)["terminates"]
    facts = dict(verdict.facts)
    assert verdict.mistake == "misses-a-cycle" and facts["basis"] == "empty"
    assert facts["but"] in ("a => a", "b => b", "c => c"), "shrunk to one operator"


def test_a_check_must_answer_true_or_false():
    assert check("2", terminates=lambda rules, basis: 1)["terminates"].mistake == "wrong-form"


def test_tables_are_drawn_the_same_again():
    assert ex07_runs.drawn_table(random.Random(3)) == ex07_runs.drawn_table(random.Random(3))
