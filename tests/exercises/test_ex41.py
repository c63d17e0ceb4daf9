"""Exercise 41: coverage against drawing, ranks against the package's, and what pooling does to rounds that drift."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest

from staxlab import learn
from staxlab.learn.exercises import ex41, ex41_answers, ex41_runs
from staxlab.learn.variants import variant_for
from staxlab.runtime.order_statistics import median_coverage, median_interval


def check(part, seed=None, **answers):
    return learn.check(f"ex41.{part}", answers, seed=seed, record=False)


def test_the_chapters_values():
    answers = ex41_answers.reference(ex41.Variant())
    assert float(Fraction(answers["coverage_41"])) == pytest.approx(0.965, abs=5e-4)
    assert answers["fewest_readings"] == 8 and answers["fewest_rounds"] == 6
    assert answers["pooled_41"] == "3/8", "two of four rounds have to fall on either side"


@pytest.mark.parametrize(("n", "j", "k"), [(1, 1, 1), (5, 2, 4), (15, 4, 12), (16, 1, 16)])
def test_coverage_is_the_packages_and_that_of_drawn_readings(n, j, k):
    truth = ex41_runs.exact_coverage(n, j, k)
    assert float(truth) == pytest.approx(median_coverage(n, j, k))
    rng = random.Random(n)
    hits = 0
    for _ in range(4000):
        readings = sorted(rng.expovariate(1) for _ in range(n))
        hits += readings[j - 1] <= 0.6931471805599453 < readings[k - 1]
    assert hits / 4000 == pytest.approx(float(truth), abs=0.03)


@pytest.mark.parametrize("seed", [None, *range(12)])
def test_variants_have_ranks_and_the_range_is_needed(seed):
    variant = variant_for(ex41.Variant, seed)
    assert 1 < variant.j < variant.k < variant.n
    assert 1 - Fraction(2, 2**variant.fewest) >= variant.confidence > 1 - Fraction(2, 2 ** (variant.fewest - 1))
    assert 0 < ex41_runs.pooled_truth(variant.rounds) < Fraction(19, 20), "pooling claims 95%"


def test_pooling_covers_far_less_than_it_claims_where_rounds_drift():
    measured = dict(ex41_runs._measured(3))
    rounds, pooled = (int(text.split()[-1].rstrip("%")) for text in measured.values())
    assert rounds >= 86 and pooled < 60, measured


def test_an_interval_over_rounds_is_that_of_their_medians():
    rounds = ex41_runs.drifting_rounds(random.Random(2), 9, 5, 1.0)
    ends = ex41_answers.overall_interval(rounds, 0.95)
    found = median_interval([sorted(each)[2] for each in rounds], 0.95)
    assert ends == (found.low, found.high) == ex41_runs.of_medians(rounds, 0.95)
    assert ex41_answers.overall_interval(rounds[:5], 0.95) is None is ex41_runs.of_medians(rounds[:5], 0.95)


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda rounds, confidence: None, "gives-up"),
        (lambda rounds, confidence: (1, 2, 3), "wrong-form"),
        (lambda rounds, confidence: rounds[9], "failed-call"),
        (lambda rounds, confidence: (-9.0, 9.0), "falls-short"),
    ],
)
def test_other_intervals(answer, mistake):
    assert check("3", overall_interval=answer)["overall_interval"].mistake == mistake


def test_other_forms_of_an_answer():
    assert check("1", coverage_41=ex41_answers.coverage(15, 4, 12))["coverage_41"].credit == 1
    assert check("1", coverage_41=0.965)["coverage_41"].mistake == "rounded"
    assert check("1", covers=lambda K, j, k: 1)["covers"].mistake == "wrong-form"
    assert check("1", coverage=lambda n, j, k: 2.0)["coverage"].credit == 0
    assert check("2", range_coverage=lambda n: 1 - 2.0 ** (1 - n))["range_coverage"].credit == 1
