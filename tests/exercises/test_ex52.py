"""Exercise 52: numbers of draws by exact powers, corners that the walk stays in, and plans of halving."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab import learn
from staxlab.codegen.configurations import ConfigurationSpace
from staxlab.learn.exercises import ex52, ex52_answers, ex52_runs
from staxlab.learn.variants import variant_for
from staxlab.runtime.autotune import coordinate_descent, halving_plan


def check(part, seed=None, **answers):
    return learn.check(f"ex52.{part}", answers, seed=seed, record=False)


def test_the_chapters_values():
    answers = ex52_answers.reference(ex52.Variant())
    assert (answers["draws_asked"], answers["draws_needed"]) == (461, 459)
    assert Fraction(99, 100) ** 459 <= Fraction(1, 100) < Fraction(99, 100) ** 458
    feedback = check("1", draws_asked=461, draws_needed=459)
    assert feedback["draws_asked"].credit == feedback["draws_needed"].credit == 1
    assert check("1", draws_asked=460)["draws_asked"].mistake == "rounded-down"


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_variants_have_slips_of_their_own(seed):
    variant = variant_for(ex52.Variant, seed)
    for slips, truth in (
        (ex52_runs.sample_slips(variant), ex52_answers.reference(variant)["draws_asked"]),
        (ex52_runs.exact_slips(variant), ex52_answers.reference(variant)["draws_needed"]),
    ):
        numbers = [slip.answer for slip in slips]
        assert len(numbers) >= 2 and truth not in numbers and len(set(numbers)) == len(numbers)
    q, delta = Fraction(variant.q_percent, 100), Fraction(variant.delta_percent, 100)
    needed = ex52_answers.reference(variant)["draws_needed"]
    assert (1 - q) ** needed <= delta < (1 - q) ** (needed - 1)


@given(st.integers(1, 300), st.integers(0, 2000))
def test_the_reference_plan_is_the_packages(n, more):
    budget = n * n.bit_length() + more
    truth = [(stage.configurations, stage.readings) for stage in halving_plan(n, budget)]
    assert ex52_answers.halving(n, budget) == truth


@pytest.mark.parametrize(("k", "r"), list(itertools.product(range(1, 8), (1, 2, 5))))
def test_the_totals_are_those_of_a_plan_with_that_budget(k, r):
    total = ex52_runs.counted_total(k, r)
    plan = halving_plan(1 << k, total)
    assert [stage.readings for stage in plan] == [r << j for j in range(k)]
    assert sum(stage.total for stage in plan) == total == r * k * 2**k


@pytest.mark.parametrize("lengths", ex52_runs.SPACES)
def test_the_reference_corner_holds_the_walk(lengths):
    values = [[1 << k for k in range(length)] for length in lengths]
    start, times = ex52_answers.slow_corner(values)
    space = ConfigurationSpace.of({f"p{k}": one for k, one in enumerate(values)})
    walk = coordinate_descent(space, start, times.__getitem__)
    assert walk.chosen == start and walk.acceptances == 0
    assert 10 * sum(time >= times[start] for time in times.values()) <= space.size


def test_every_mistake_in_a_plan_is_named():
    for name, (plan_of, _) in ex52_runs.PLAN_MISTAKES.items():
        verdict = check("3", halving=lambda n, budget, plan_of=plan_of: plan_of(n, budget))["halving"]
        assert verdict.mistake == name and "your plan" in dict(verdict.facts)


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda n, budget: 1 / 0, "failed-call"),
        (lambda n, budget: [1, 2], "wrong-form"),
        (lambda n, budget: [(n, 1.5)], "wrong-form"),
        (lambda n, budget: [(n, budget)] * 3, "over-budget"),
        (lambda n, budget: [], None),
    ],
)
def test_other_plans(answer, mistake):
    verdict = check("3", halving=answer)["halving"]
    assert verdict.mistake == mistake and verdict.credit == 0


def test_plans_may_be_tuples_lists_or_yielded():
    def yielded(n, budget):
        for size, each in ex52_answers.halving(n, budget):
            yield [size, each]

    assert check("3", halving=yielded)["halving"].credit == 1
    assert check("3", halving=lambda n, budget: tuple(ex52_answers.halving(n, budget)))["halving"].credit == 1


def test_the_feedback_on_a_corner_counts_the_slow_ones():
    verdict = check("2", slow_corner=ex52_answers._not_slow)["slow_corner"]
    assert verdict.mistake == "not-slow" and dict(verdict.facts)["as slow or slower"] == "64 of 64"
    praised = check("2", slow_corner=ex52_answers.slow_corner)["slow_corner"]
    assert dict(praised.facts)["random searches that ended there"].startswith("0 of")
