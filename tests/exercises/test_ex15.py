"""Exercise 15: laws that are proved, counterexamples that are computed, and gradients beside autograd's."""

from __future__ import annotations

import math

import pytest
import torch

from staxlab import learn
from staxlab.learn.answers import FormulaIn
from staxlab.learn.exercises import ex15, ex15_answers, ex15_runs
from staxlab.learn.variants import variant_for

pytest.importorskip("sympy")


def check(part, seed=None, **answers):
    return learn.check(f"ex15.{part}", answers, seed=seed, record=False)


def test_the_defaults_by_hand():
    m, l, a = ex15_runs.merged_triple((3, 2, 5), (1, 4, -6))
    assert (m, l, a) == pytest.approx((3, 2 + 4 * math.exp(-2), 5 - 6 * math.exp(-2)))
    assert check("1", merged=[3, "2 + 4*exp(-2)", "5 - 6*exp(-2)"])["merged"].credit == 1
    assert check("1", merged=[m, l, a])["merged"].credit == 1, "floats will do"


@pytest.mark.parametrize("seed", [None, *range(12)])
def test_states_of_variants_have_different_maxima_and_every_mistake_shows(seed):
    variant = variant_for(ex15.Variant, seed)
    assert variant.first[0] != variant.second[0] and len(ex15_runs.merged_slips(variant)) == 3


@pytest.mark.parametrize("name", ex15_runs.MISTAKES)
@pytest.mark.parametrize("seed", [None, 5])
def test_mistakes_of_merging_are_named_for_any_numbers(name, seed):
    function, _ = ex15_runs.MISTAKES[name]
    verdict = check("1", seed, merge=lambda x, y, exp, maximum: function(x, y, exp, maximum))["merge"]
    assert verdict.mistake == name and verdict.credit == 0


def test_a_merge_without_a_guard_is_nearly_right():
    verdict = check("1", merge=ex15_answers.unguarded)["merge"]
    assert verdict.mistake == "nothing-seen" and 0 < verdict.credit < 1
    assert "-inf" in str(dict(verdict.facts)["x"])


def test_another_way_to_write_it_is_proved_as_well():
    def merge(x, y, exp, maximum):
        mu = maximum(x[0], y[0])

        def factor(m):
            return 0 if m == float("-inf") else exp(m - mu)

        return [mu] + [factor(x[0]) * s + factor(y[0]) * t for s, t in zip(x[1:], y[1:], strict=True)]

    verdict = check("1", merge=merge)["merge"]
    assert verdict.credit == 1 and "SymPy proves" in verdict.message


def test_what_is_no_triple_of_numbers():
    for answer, mistake in (
        (lambda x, y, exp, maximum: None, "wrong-form"),
        (lambda x, y, exp, maximum: ("a", "b", "c"), "wrong-form"),
        (lambda x, y, exp, maximum: x[5], "failed-call"),
        (lambda x, y, exp, maximum: (exp(900), 0, 0), "overflow"),
    ):
        assert check("1", merge=answer)["merge"].mistake == mistake


def test_rows_that_show_that_one_number_is_not_enough():
    for field, rows in (
        ("same_m", [[0, 5], [0, 5, 5]]),
        ("same_m", [["1/2", 1, 1, 1], ["1/2", 1]]),
        ("same_l", [[0, 3], [0, -3]]),
        ("same_l", [[2, 2, 1], [2, 3, 3]]),
    ):
        assert check("2", **{field: rows})[field].credit == 1, rows
    assert check("2", same_m=[[], [1]])["same_m"].mistake == "no-scores"


@pytest.mark.parametrize(
    ("formula", "with_lse", "holds"),
    [
        ("P*(dP - D)", False, True),
        ("P*dP - P*D", False, True),
        ("P*dP", False, False),
        ("P*(1 - P)*dP", False, False),
        ("P*(L + dP - D)", True, True),
        ("P*(dP - D)", True, False),
    ],
)
def test_sympys_derivative_agrees_with_the_right_formulas_only(formula, with_lse, holds):
    names = ("P", "dP", "D", "L")
    answer = FormulaIn("d", "d", variables=names).read(formula, {})
    assert ex15_runs.is_derivative(answer, with_lse) == holds


@pytest.mark.parametrize("size", [1, 2, 4])
def test_the_truth_is_the_whole_attentions(size):
    """dk and dv of the block, and the contributions of all blocks to dq, are autograd's without any trick."""
    (q, k, v, out, lse, d_out), truth = ex15_runs.attention_case(None, size)
    found = ex15_answers.gradients(q, k, v, out, lse, d_out)
    for a, b in zip(found, truth, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)
    assert q.dtype == torch.float64 and k.shape[0] == (3 if size == 1 else size)


def test_gradients_of_another_form_are_refused_with_their_shapes():
    verdict = check("3", gradients=lambda q, k, v, out, lse, d_out: (q, v, k))["gradients"]
    assert verdict.mistake == "wrong-form" and "shapes" in dict(verdict.facts)
    verdict = check("3", gradients=lambda q, k, v, out, lse, d_out: q.no_such_thing)["gradients"]
    assert verdict.mistake == "failed-call" and "no_such_thing" in dict(verdict.facts)["reason"]
