"""Exercise 46: its truth by counting, and the feedback on particular answers."""

from __future__ import annotations

from fractions import Fraction

import pytest

from staxlab import learn
from staxlab.autodiff.straightline import ELEMENTARY
from staxlab.learn.exercises import ex46, ex46_answers, ex46_runs
from staxlab.learn.variants import variant_for


def check(part, seed=None, **answers):
    return learn.check(f"ex46.{part}", answers, seed=seed, record=False)


def test_factors_are_those_of_the_proof():
    assert [ex46_runs.factor_of(one) for one in "+-*/"] == [3, 3, 5, 5]
    for name, one in ELEMENTARY.items():
        assert ex46_runs.factor_of(name) == 3 + one.cost


@pytest.mark.parametrize("pair", ex46_runs.PAIRS)
def test_of_each_pair_the_second_is_dearer_and_has_a_program(pair):
    first, second = map(ex46_runs.factor_of, pair)
    assert first < second and second in (4, 5)
    assert pair[1] in ex46_answers.DEAREST


def test_costs_of_the_product_are_counted():
    assert [ex46_runs.reverse_operations(n) for n in (2, 3, 10)] == [5, 10, 45]
    assert [ex46_runs.independent_operations(n) for n in (2, 3, 10)] == [0, 3, 80]
    assert [ex46_runs.forward_operations(n) for n in (2, 3, 10)] == [8, 24, 360]


def two_passes(x):
    """Products from both sides: 3 n - 6 operations."""
    n = len(x)
    left, right = [x[0]], [x[-1]]
    for k in range(1, n - 1):
        left.append(left[-1] * x[k])
        right.append(right[-1] * x[n - 1 - k])
    right.reverse()
    return [right[0], *(left[k - 1] * right[k] for k in range(1, n - 1)), left[-1]]


def with_a_case_for_zero(x):
    """Divides where it can: legal, since it looks first."""
    zeros = [k for k, factor in enumerate(x) if factor == 0]
    total = 1
    for k, factor in enumerate(x):
        if k not in zeros:
            total = total * factor
    if not zeros:
        return [total / factor for factor in x]
    return [total if zeros == [k] else 0 for k in range(len(x))]


@pytest.mark.parametrize("answer", [two_passes, with_a_case_for_zero])
def test_other_right_gradients_are_right(answer):
    verdict = check("2", product_gradient=answer)["product_gradient"]
    assert verdict.credit == 1, verdict


def test_division_is_shown_a_zero():
    verdict = check("2", product_gradient=lambda x: [x[0] * x[1] / factor for factor in x])["product_gradient"]
    assert verdict.mistake == "divides" and " 0" in dict(verdict.facts)["x"] or "[0" in dict(verdict.facts)["x"]


def test_too_many_operations_are_counted():
    verdict = check("2", product_gradient=ex46_answers._by_itself)["product_gradient"]
    facts = dict(verdict.facts)
    assert verdict.mistake == "too-many-operations" and int(facts["operations"]) > 5 * int(facts["n"])


def test_a_dearest_program_may_use_several_values():
    def other(x, w):
        values = [x]
        for k in range(w):
            values.append(values[k // 2] * values[-1])
        return values[-1]

    assert check("1", dearest=other)["dearest"].credit == 1


def test_operations_of_ones_own_variant_are_required():
    variant = variant_for(ex46.Variant, 3)
    assert variant.operations != ("+", "*")
    verdict = check("1", seed=3, dearest=ex46_answers._mixed)["dearest"]
    assert verdict.mistake == "other-operation" and variant.operations[1] in verdict.message


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda x, w: x + "text", "not-the-dearest"),
        (lambda x, w: [x, x], "not-the-dearest"),
        (lambda x, w: 1 / 0, "failed-call"),
        (lambda x, w: None, "wrong-form"),
    ],
)
def test_odd_programs_do_no_harm(answer, mistake):
    verdict = check("1", dearest=answer)["dearest"]
    assert verdict.credit == 0 and verdict.mistake in (mistake, "other-size", "wrong-form", "failed-call")


def test_values_once_is_nearly_right():
    verdict = check("3", forward_cost="(n - 1)*(1 + 3*n)")["forward_cost"]
    assert (verdict.mistake, verdict.credit) == ("values-once", Fraction(1, 2))
