"""Exercise 39: programs whose size only the data know, run and followed."""

from __future__ import annotations

import pytest
import torch

from staxlab import learn
from staxlab.learn.exercises import ex39, ex39_answers, ex39_runs
from staxlab.learn.variants import variant_for


def check(part, seed=None, **answers):
    return learn.check(f"ex39.{part}", answers, seed=seed, record=False)


def by_mask(x, k, check):
    n = x[x != 0].shape[0]
    check(n >= k + 1, "too few")
    if n > k:
        return x.sum() / n
    return x.sum()


def on_data(x, k, check):
    n = torch.count_nonzero(x)
    check(n > k, "too few")
    return x.sum() / n


@pytest.mark.parametrize("answer", [by_mask, on_data])
def test_other_right_programs(answer):
    assert check("2", rewritten=answer)["rewritten"].credit == 1


def too_weak_by_one(x, k, check):
    n = x.nonzero().shape[0]
    check(n >= k, "too few")
    if n > k:
        return x.sum() / n
    check(n > k, "too few")
    return x.sum()


WRONG = {
    "too-weak": too_weak_by_one,
    "failed-call": lambda x, k, check: x.no_such_method(),
    "wrong-form": lambda x, k, check: check(x.nonzero().shape[0] > k),
    "not-asserted": lambda x, k, check: x.sum() / max((x != 0).sum(), 1),
    "reads-data": lambda x, k, check: (check(len(x.nonzero()) > k), x.sum() / len(x.nonzero()))[1],
}


@pytest.mark.parametrize("mistake", WRONG)
def test_what_is_no_rewriting(mistake):
    verdict = check("2", rewritten=WRONG[mistake])["rewritten"]
    assert verdict.mistake == mistake and verdict.credit == 0


def test_what_happened_is_told():
    verdict = check("2", rewritten=ex39_answers._too_late)["rewritten"]
    assert "undecided: u0 > 0" in dict(verdict.facts)["what happened"]


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_each_variant_has_one_decision_of_each_kind(seed):
    variant = variant_for(ex39.Variant, seed)
    kinds = {ex39_runs.decision_of(variant, bound) for bound in variant.bounds}
    assert kinds == {ex39_runs.ALWAYS_TRUE, ex39_runs.ALWAYS_FALSE, ex39_runs.REFUSED}
    for bound in variant.bounds:
        known = ex39_answers.decide(variant.asserted + 1, variant.length, bound)
        assert {True: ex39_runs.ALWAYS_TRUE, False: ex39_runs.ALWAYS_FALSE, None: ex39_runs.REFUSED}[known] == (
            ex39_runs.decision_of(variant, bound)
        )
        for option, reason in ex39_runs.reasons_against(variant, bound).items():
            assert option == ex39_runs.decision_of(variant, bound) or reason
