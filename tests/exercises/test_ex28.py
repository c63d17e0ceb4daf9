"""Exercise 28: a guard on divisibility, its range, and versions that were compiled."""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab import ConstraintError, learn
from staxlab.learn.exercises import ex28, ex28_answers, ex28_runs
from staxlab.learn.variants import variant_for
from staxlab.shapes.bucketing import Buckets


def check(part, seed=None, **answers):
    return learn.check(f"ex28.{part}", answers, seed=seed, record=False)


def test_the_chapters_values():
    truth = ex28_runs.truth_of(ex28.Variant())
    assert (truth.concrete, truth.bucketed, truth.symbolic) == (64, 7, 3)
    assert truth.satisfied == 128 and truth.narrower == (64, 64) and truth.waste == Buckets().worst_waste(1, 64)
    assert truth.bucketed == Buckets().bound(1, 64)


def test_a_sample_that_is_not_divisible_leaves_a_range_between_multiples():
    truth = ex28_runs.truth_of(ex28.Variant(divisor=8, sample=62, upper=100, last=20))
    assert truth.narrower == (57, 63) and truth.satisfied == 100 - 12
    assert check("1", shape_guard=lambda n, d, s: n % d == 0)["shape_guard"].mistake == "true-branch-only"


def test_the_wrapper_refuses_this_function_where_its_values_would_differ():
    padded = staxlab.bucketed(lambda x: x * 2 if x.shape[0] % 8 == 0 else x + 3, dims={"x": 0}, pad=0.0, results=0)
    padded(torch.ones(3))
    with pytest.raises(ConstraintError, match="padding changes"):
        padded(torch.ones(12))


@pytest.mark.parametrize("seed", [None, *range(3)])
def test_slips_lead_elsewhere(seed):
    variant = variant_for(ex28.Variant, seed)
    truth = ex28_runs.truth_of(variant)
    assert all(s.answer != truth.other_way for s in ex28_runs.branch_slips(variant)) and truth.other_way
    assert variant.sample <= variant.upper and len(ex28_runs.range_slips(variant)) >= 2
    assert truth.bucketed == ex28_answers.bucket_versions(1, variant.last)


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [(lambda n, d, s: 1, "wrong-form"), (lambda n, d, s: n // (d - d), "failed-call"), (lambda n, d, s: n > d, None)],
)
def test_what_is_no_guard(answer, mistake):
    verdict = check("1", shape_guard=answer)["shape_guard"]
    assert verdict.mistake == mistake and verdict.credit == 0
