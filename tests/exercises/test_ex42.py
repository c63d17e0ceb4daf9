"""Exercise 42: variances added up over a tree, first-order errors expanded exactly, sums that correct themselves."""

from __future__ import annotations

import math
import random
from fractions import Fraction

import numpy
import pytest

from staxlab import learn
from staxlab.learn.exercises import ex42, ex42_answers, ex42_runs
from staxlab.learn.variants import variant_for
from staxlab.measure.rounding import corollary_variance


def check(part, seed=None, **answers):
    return learn.check(f"ex42.{part}", answers, seed=seed, record=False)


@pytest.mark.parametrize("levels", range(1, 7))
def test_the_variance_of_a_tree_is_that_of_its_additions(levels):
    n = 2**levels
    sizes = [2**level for level in range(1, levels + 1) for _ in range(n // 2**level)]
    assert ex42_runs.tree_variance(n, 0) == sum(sizes) == n * levels
    assert ex42_runs.tree_variance(n, 1) == sum(size**2 for size in sizes) == 2 * n * (n - 1)


def test_the_chapters_values():
    variant = ex42.Variant()
    found = [variant.deviation(way) for way in ("sequential", "ways", "tree")]
    assert found == [pytest.approx(5.0e-5, rel=0.01), pytest.approx(1.29e-5, rel=0.01), pytest.approx(5.2e-6, rel=0.01)]
    leading = math.sqrt(sum(corollary_variance(2048, 0.0, 1.0, 16)))
    assert check("2", ways_42=leading)["ways_42"].credit == 1, "the corollary keeps leading terms only"


@pytest.mark.parametrize("seed", [None, *range(12)])
def test_leading_terms_are_good_enough_and_a_forgotten_merge_is_not(seed):
    variant = variant_for(ex42.Variant, seed)
    leading = math.sqrt(sum(corollary_variance(variant.n, 0.0, variant.spread, variant.ways)))
    assert leading == pytest.approx(variant.deviation("ways"), rel=0.0095)
    names = {slip.name for slip in ex42_runs.deviation_slips(variant, "ways")}
    assert {"merge-forgotten", "no-third", "variance"} <= names
    assert ("deviation-forgotten" in names) == (variant.spread > 1)


def test_growth_is_that_of_the_model_between_two_large_sizes():
    half = Fraction(1, 2)
    assert ex42_runs.GROWTH == ((1, half), (3 * half, 1))


def test_first_order_is_the_derivative_of_the_exact_error():
    rng = random.Random(4)
    a, d = [rng.randint(-9, 9) for _ in range(8)], [rng.randint(-9, 9) for _ in range(7)]
    small = Fraction(1, 10**9)
    exact = ex42_runs.tree_error(list(map(Fraction, a)), [small * value for value in d])
    assert exact / small == pytest.approx(float(ex42_runs.expanded(a, d)), abs=1e-4)
    assert ex42_answers.first_order(a, d) == ex42_runs.expanded(a, d)


def test_compensation_runs_and_plain_sums_are_far_off():
    verdict = check("3", seed=5, kahan=ex42_answers.kahan)["kahan"]
    errors = {name: float(value) for name, value in verdict.facts}
    assert verdict.credit == 1 and errors["of the plain sum"] > 20 * errors["largest error"]


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda x: math.fsum(map(float, x)), None),
        (lambda x: x[5], "failed-call"),
        (lambda x: numpy.float32("nan"), ""),
        (lambda x: True, "wrong-form"),
    ],
)
def test_other_sums(answer, mistake):
    verdict = check("3", kahan=answer)["kahan"]
    assert (verdict.credit == 1) == (mistake is None), str(verdict)
    assert not mistake or verdict.mistake == mistake


def test_measured_deviations_are_told_and_near():
    verdict = check("2", seed=3, tree_42=variant_for(ex42.Variant, 3).deviation("tree"))["tree_42"]
    ratio = float(dict(verdict.facts)["measured over predicted"].split(",")[0])
    assert verdict.credit == 1 and 0.5 < ratio < 1.1
    nothing = check("2", tree_42=0)["tree_42"]
    assert not nothing.mistake and nothing.credit == 0, "it is near none of the tiny numbers that are named"


def test_an_exact_answer_of_the_students_own_form():
    assert check("1", tree_zero=lambda n: n * math.log2(n))["tree_zero"].credit == 1
    assert check("3", correction="s + y - s - y")["correction"].credit == 1
