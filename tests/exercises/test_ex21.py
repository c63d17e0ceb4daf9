"""Exercise 21: Algorithm 8.1 by the package, by the reference, and by hand; where the imbalance is worst."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab import learn
from staxlab.codegen.cpp.sharing import parallel_depth
from staxlab.learn.exercises import ex21, ex21_answers, ex21_runs
from staxlab.learn.variants import variant_for


def check(part, seed=None, **answers):
    return learn.check(f"ex21.{part}", answers, seed=seed, record=False)


def test_the_chapters_values():
    answers = ex21_answers.reference(ex21.Variant())
    assert (answers["depth_few"], answers["depth_many"], answers["busiest"]) == (2, 2, 256)
    assert ex21_runs.most_uneven(2, 8) == (17, Fraction(24, 17)) and answers["limit"] == "3/2"


@given(st.lists(st.integers(1, 40), max_size=5), st.integers(1, 64), st.integers(0, 600))
def test_the_reference_is_the_packages_algorithm(extents, threads, grain):
    assert ex21_answers.parallel_depth(extents, threads, grain) == parallel_depth(extents, threads, grain).depth


@pytest.mark.parametrize("multiple", [1, 2, 3, 5])
@pytest.mark.parametrize("threads", [2, 3, 8, 64])
def test_the_worst_q_is_one_after_a_multiple(multiple, threads):
    q, worst = ex21_runs.most_uneven(multiple, threads)
    assert q == multiple * threads + 1
    assert worst == Fraction((multiple + 1) * threads, multiple * threads + 1) < Fraction(multiple + 1, multiple)


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_variants_ask_for_something(seed):
    variant = variant_for(ex21.Variant, seed)
    few, many = variant.depth(variant.few), variant.depth(variant.many)
    assert 1 <= few <= len(variant.extents) and 1 <= many <= len(variant.extents)
    assert seed is None or few != many
    for threads in (variant.few, variant.many):
        slips = ex21_runs.depth_slips(variant, threads)
        assert slips and variant.depth(threads) not in {slip.answer for slip in slips}


@pytest.mark.parametrize("name", ex21_runs.MISTAKES)
@pytest.mark.parametrize("seed", [None, 3])
def test_every_mistake_shows_on_some_nest_and_is_named(name, seed):
    algorithm, _ = ex21_runs.MISTAKES[name]
    verdict = check("2", seed, parallel_depth=lambda extents, P, m: algorithm(extents, P, m))["parallel_depth"]
    assert verdict.mistake == name and dict(verdict.facts)["your depth"] is not None


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda extents, P, m: None, "wrong-form"),
        (lambda extents, P, m: True, "wrong-form"),
        (lambda extents, P, m: len(extents) + 1, "wrong-form"),
        (lambda extents, P, m: extents[0], "failed-call"),
        (lambda extents, P, m: 0, None),
    ],
)
def test_what_is_no_depth(answer, mistake):
    verdict = check("2", parallel_depth=answer)["parallel_depth"]
    assert verdict.mistake == mistake and verdict.credit == 0


def test_formulas_may_use_the_multiple_or_its_value():
    for q, value in (("a*P + 1", "(a + 1)*P/(a*P + 1)"), ("2*P + 1", "3*P/(2*P + 1)")):
        feedback = check("3", worst_q=q, worst_imbalance=value, limit="3/2")
        assert all(feedback[name].credit == 1 for name in ("worst_q", "worst_imbalance", "limit"))
