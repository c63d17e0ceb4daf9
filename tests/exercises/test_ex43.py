"""Exercise 43: expectations over all histories, histories that are not concave, and when buckets are cheaper."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab import learn
from staxlab.learn.exercises import ex43, ex43_answers, ex43_runs
from staxlab.learn.variants import variant_for
from staxlab.measure.amortize import bucket, bucket_bound, expected_versions

weights = st.lists(st.integers(0, 5), min_size=1, max_size=4).filter(any)


def distribution(numbers):
    return tuple(Fraction(number, sum(numbers)) for number in numbers)


def check(part, seed=None, **answers):
    return learn.check(f"ex43.{part}", answers, seed=seed, record=False)


def test_the_chapters_values():
    answers = ex43_answers.reference(ex43.Variant())
    assert answers["uniform_versions"] == pytest.approx(440, abs=0.5)
    assert answers["zipf_versions"] == pytest.approx(265.13, abs=0.01)
    assert check("1", zipf_versions="265.13", uniform_versions="439.52").earned == 2


@given(weights, st.integers(0, 4))
def test_all_histories_say_what_proposition_13_5_says(numbers, m):
    p = distribution(numbers)
    versions, bucketed, sizes, padded = ex43_runs.over_histories(p, m)
    assert float(versions) == pytest.approx(expected_versions([float(x) for x in p], m))
    assert float(bucketed) == pytest.approx(expected_versions([float(x) for x in ex43_runs.buckets(p)], m))
    assert sizes == m * ex43_runs.mean_size(p, False) and padded == m * ex43_runs.mean_size(p, True)
    assert versions <= min(m, sum(x > 0 for x in p)), "the bound of Part 2"
    assert bucketed <= bucket_bound(1, len(p))


@given(weights, st.integers(0, 2))
def test_the_expectation_is_concave(numbers, m):
    p = distribution(numbers)
    before, here, after = (ex43_runs.over_histories(p, m + k)[0] for k in range(3))
    assert after - here <= here - before


@given(st.fractions(0, 1, max_denominator=9), st.integers(0, 7))
def test_a_term_counted_is_the_formula(p, m):
    assert ex43_runs.term(p, m) == 1 - (1 - p) ** m <= m * p


@pytest.mark.parametrize("seed", [None, *range(6)])
def test_the_last_win_is_one_and_the_next_is_none(seed):
    variant = variant_for(ex43.Variant, seed)
    p, last = ex43_runs.zipf(variant.sizes), ex43_runs.truth_of(variant).last_win

    def cheaper(m):
        return ex43_runs.total(p, m, variant.cost, variant.alpha, True) < ex43_runs.total(
            p, m, variant.cost, variant.alpha, False
        )

    assert last > variant.calls and cheaper(last) and not cheaper(last + 1)
    assert not cheaper(1) and cheaper(last // 2) and not any(cheaper(k * last) for k in (2, 3, 10, 100))


@pytest.mark.parametrize("seed", [None, 3, 4])
def test_the_least_cost_is_where_both_take_equally_long(seed):
    variant = variant_for(ex43.Variant, seed)
    p, cost = ex43_runs.zipf(variant.sizes), ex43_runs.truth_of(variant).least_cost / 1e3
    durations = [ex43_runs.total(p, variant.calls, cost, variant.alpha, padded) for padded in (False, True)]
    assert durations[0] == pytest.approx(durations[1])


def test_where_padding_costs_more_than_every_version_buckets_never_win():
    assert ex43_runs.last_win((0.0, 0.0, 1.0), 1e-9, 1.0) == 0
    assert ex43_runs.last_win((0.25, 0.25, 0.25, 0.25), 0.0, 1.0) == 0


def test_expectations_agree_with_drawn_calls():
    rng = random.Random(43)
    p, m, rounds = ex43_runs.zipf(40), 30, 2000
    seen = padded = 0
    for _ in range(rounds):
        calls = rng.choices(range(1, 41), p, k=m)
        seen, padded = seen + len(set(calls)), padded + len({bucket(size) for size in calls})
    # Neither count has a standard deviation above 2.5, so the mean of 2000 is within 0.06; four times that is allowed.
    assert seen / rounds == pytest.approx(expected_versions(p, m), abs=0.25)
    assert padded / rounds == pytest.approx(expected_versions(ex43_runs.buckets(p), m), abs=0.25)


@pytest.mark.parametrize("seed", [None, *range(8)])
def test_slips_are_well_apart(seed):
    variant = variant_for(ex43.Variant, seed)
    assert len(ex43_runs.zipf_slips(variant)) >= 3 and len(ex43_runs.uniform_slips(variant)) >= 2
    assert len(ex43_runs.cost_slips(variant)) >= 3
    last = [slip.answer for slip in ex43_runs.last_slips(variant)]
    assert len(set(last)) == len(last) == 3 and ex43_runs.truth_of(variant).last_win not in last


@pytest.mark.parametrize(
    ("history", "mistake"),
    [
        ([1, 1, 2], None),
        ([7, 7, 7, 9, 9, 8], None),
        ([1, 2, 3], "concave"),
        ([4], "concave"),
        ([1, 2, 2, 2], "concave"),
        ([0, 0, 1], "no-sizes"),
        (["3/2", 1, 1], "no-sizes"),
    ],
)
def test_histories_are_counted(history, mistake):
    verdict = check("2", own_history=history)["own_history"]
    assert verdict.mistake == mistake and verdict.credit == (mistake is None)


def test_functions_may_use_floats_or_fractions_and_may_fail():
    def with_floats(p, m):
        return float(len(p)) - sum((1 - float(x)) ** m for x in p)

    assert check("1", mean_versions=with_floats)["mean_versions"].credit == 1
    assert check("1", mean_versions=lambda p, m: p[99])["mean_versions"].mistake == "failed-call"
    assert check("1", mean_versions=lambda p, m: sum(p))["mean_versions"].mistake is None
    assert check("3", bucketed_total=lambda p, m, C, alpha: None)["bucketed_total"].mistake == "wrong-form"
    assert check("1", mean_versions=lambda p, m: p.clear() or 0)["mean_versions"].credit == 0, "a copy is handed out"
