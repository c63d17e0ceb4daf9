"""Exercise 12: the compiler merges exactly where addresses stay the same, found by brute force."""

from __future__ import annotations

from itertools import product

import pytest

from staxlab import learn
from staxlab.learn.exercises import ex12, ex12_answers, ex12_runs
from staxlab.learn.variants import variant_for


def check(part, seed=None, **answers):
    return learn.check(f"ex12.{part}", answers, seed=seed, record=False)


def one_step_for_all(extents, access, j):
    """Whether the addresses of the two loops, in order, are in step."""
    places = [access[j] * a + access[j + 1] * b for a, b in product(range(extents[j]), range(extents[j + 1]))]
    return len({b - a for a, b in zip(places, places[1:], strict=False)}) == 1


@pytest.mark.parametrize("seed", [None, *range(8)])
def test_the_compiler_merges_where_addresses_are_in_step(seed):
    for extents, accesses in ex12_runs.nests(seed):
        for j in range(len(extents) - 1):
            truth = all(one_step_for_all(extents, access, j) for access in accesses)
            assert ex12_runs.merges(extents, accesses, j) == truth == ex12_answers.can_merge(extents, accesses, j)


def test_the_chapters_nest():
    variant = ex12.Variant()
    answers = ex12_answers.reference(variant)
    assert answers["outer_pair"] == answers["inner_pair"] == "only the first"
    assert answers["loops_left"] == answers["fewest_loops"] == 3
    first, second = ((access,) for access in variant.accesses)
    assert ex12_runs.loops_after_merging(variant.extents, first) == (512,)
    assert ex12_runs.loops_left(variant.extents, second, (2, 1, 0)) == 1


def test_a_reordering_helps_some_students_and_others_not():
    helped = []
    for seed in range(40):
        variant = variant_for(ex12.Variant, seed)
        nest = (variant.extents, variant.accesses)
        helped.append(ex12_runs.fewest_loops(*nest) < ex12_runs.loops_left(*nest))
    assert 5 < sum(helped) < 35


@pytest.mark.parametrize("seed", [None, *range(4)])
def test_the_reference_order_is_the_best_for_the_compiler(seed):
    for extents, accesses in ex12_runs.nests(seed):
        order = ex12_answers.loop_order(extents, accesses)
        assert ex12_runs.loops_left(extents, accesses, order) == ex12_runs.fewest_loops(extents, accesses)


@pytest.mark.parametrize("answer", [None, [0, 0], ["0", "1"], 3, [0.0, 1.0, 2.0, 3.0, 4.0]])
def test_what_is_no_order_is_said_to_be_none(answer):
    verdict = check("3", loop_order=lambda extents, accesses: answer)["loop_order"]
    assert verdict.mistake == "wrong-form"


def test_a_wrong_merge_is_shown_with_the_access_that_forbids_it():
    verdict = check("2", can_merge=lambda extents, accesses, j: True)["can_merge"]
    facts = dict(verdict.facts)
    assert verdict.mistake == "false-merge" and (facts["extents"], facts["access"]) == ("(2, 3)", "(0, 1)")
    assert facts["the inner loop gets as far as"] == "2"
    assert facts["where the next step of the outer loop begins"] == "0"
