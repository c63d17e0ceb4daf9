"""Exercise 14: merging against the definition and NumPy's variance; what float32 leaves of either way."""

from __future__ import annotations

import random
import statistics
from fractions import Fraction
from itertools import product

import pytest

from staxlab import learn
from staxlab.learn.exercises import ex14, ex14_answers, ex14_runs
from staxlab.learn.variants import variant_for


def check(part, seed=None, **answers):
    return learn.check(f"ex14.{part}", answers, seed=seed, record=False)


SEGMENTS = ([], [3], [1, 2], [5, 5, 5], [-2, 0, 7, 1])


def test_triples_are_mean_and_variance():
    for values in SEGMENTS[1:]:
        n, mean, m2 = ex14_runs.triple(values)
        assert (n, mean) == (len(values), statistics.fmean(values))
        assert m2 / n == statistics.pvariance(map(Fraction, values))


def test_merging_is_a_commutative_monoid_on_triples():
    for a, b, c in product(map(ex14_runs.triple, SEGMENTS), repeat=3):
        assert ex14_runs.merged(a, b) == ex14_runs.merged(b, a) == ex14_answers.merge(a, b)
        left, other = (ex14_runs.merged(ex14_runs.merged(a, b), c), ex14_runs.merged(a, ex14_runs.merged(b, c)))
        assert left == other
        assert ex14_runs.merged(a, ex14_runs.triple([])) == a


def test_merging_is_concatenation():
    for a, b in product(SEGMENTS, repeat=2):
        assert ex14_runs.merged(ex14_runs.triple(a), ex14_runs.triple(b)) == ex14_runs.triple([*a, *b])


@pytest.mark.parametrize("seed", range(20))
def test_own_triples_are_triples_of_something_or_could_be(seed):
    variant = variant_for(ex14.Variant, seed)
    assert variant.first[0] >= 2 <= variant.second[0] and variant.first[2] > 0 < variant.second[2]
    assert variant.first[:2] != variant.second[:2], "the cross term must not vanish"
    assert variant.first[1] != variant.second[1]


def test_the_failing_mean_is_where_experience_puts_it():
    """At four times that mean the difference of sums is off by a tenth or more for some data; far below it is not."""
    mean = ex14_runs.first_failing_mean(Fraction(1))
    assert mean == 4096
    rng = random.Random(0)

    def worst(mean):
        off = 0.0
        for _ in range(40):
            numbers = [float(mean + rng.choice((-1, 1))) for _ in range(64)]
            exact = ex14_runs.triple(numbers)[2]
            off = max(off, abs(ex14_runs.by_sums(numbers) - float(exact)) / float(exact))
        return off

    assert worst(4 * mean + 1) > 0.1 > worst(mean // 64 + 1)


def test_merging_keeps_what_the_difference_loses():
    numbers = ex14_answers.cancelling(256)
    exact = float(ex14_runs.triple(numbers)[2])
    assert ex14_runs.by_merging(numbers) == exact and abs(ex14_runs.by_sums(numbers) - exact) > exact


@pytest.mark.parametrize("spelling", ["1 + mu**2/v", "(v + mu*mu)/v", lambda mu, v: Fraction(mu * mu + v, v)])
def test_other_spellings_of_the_factor(spelling):
    assert check("3", amplification=spelling)["amplification"].credit == 1


def test_another_merge_is_right():
    def merge(a, b):
        n = a[0] + b[0]
        total, squares = a[0] * a[1] + b[0] * b[1], a[2] + a[0] * a[1] ** 2 + b[2] + b[0] * b[1] ** 2
        return (n, total / n, squares - total * total / n) if n else (0, 0, 0)

    assert check("1", merge=merge)["merge"].credit == 1, "exactly, the difference of sums is as good"


def test_the_counterexample_to_a_missing_cross_term_is_two_numbers():
    verdict = check("1", merge=ex14_answers._no_cross_term)["merge"]
    assert dict(verdict.facts)["triples"] == "(1, 1, 0) and (1, 0, 0)"


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda n: None, "wrong-form"),
        (lambda n: [float("nan")] * n, "wrong-form"),
        (lambda n: [1e30 * k for k in range(n)], "other-variance"),
        (lambda n: [10.0 + k % 2 for k in range(n)], "no-cancellation"),
        (lambda n: [1e6 + k % 2 for k in range(n)], None),
    ],
)
def test_other_numbers(answer, mistake):
    assert check("3", cancelling=answer)["cancelling"].mistake == mistake
