"""Exercise 13: intervals against all values, and checks against what compiled programs do."""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab import learn
from staxlab.learn.exercises import ex13, ex13_answers, ex13_runs
from staxlab.learn.variants import variant_for


def check(part, seed=None, **answers):
    return learn.check(f"ex13.{part}", answers, seed=seed, record=False)


@pytest.mark.parametrize("seed", [None, *range(10)])
def test_intervals_are_those_of_all_values(seed):
    v = variant_for(ex13.Variant, seed)
    first = [(v.a * i + v.b) % v.m for i in range(v.extent)]
    second = [i // v.q + v.r for i in range(v.extent)]
    answers = ex13_answers.reference(v)
    assert answers["remainder_bounds"] == [min(first), max(first)]
    assert answers["quotient_bounds"] == [min(second), max(second)]
    for name, values in (("remainder_check", first), ("quotient_check", second)):
        assert (answers[name] == "no check") == (0 <= min(values) and max(values) < v.size)


def test_both_verdicts_occur():
    answers = [ex13_answers.reference(variant_for(ex13.Variant, seed)) for seed in range(30)]
    assert {one["quotient_check"] for one in answers} == {"check", "no check"}


def test_the_chapters_program_raises_no_error_and_counts_from_the_end():
    """floor(i / 4) - 1 is -1 at first: the check is there because the correction is."""
    x = torch.arange(128.0)

    def function(x):
        return x[torch.arange(512) // 4 - 1]

    assert staxlab.compile(function)(x)[0] == function(x)[0] == 127


def test_a_kept_check_does_not_change_the_result():
    x = torch.arange(32.0)

    def function(x):
        return x[ex13_answers.unproved(torch.arange(128), 32)]

    assert torch.equal(staxlab.compile(function)(x), function(x))
    assert ex13_runs.keeps_check(lambda i: ex13_answers.unproved(i, 32), 128, 32)
    assert not ex13_runs.keeps_check(lambda i: i % 32, 128, 32)


def test_the_reference_rules_are_tight_for_all_small_intervals():
    for p in ex13_runs.INTERVALS:
        for c in range(1, 9):
            values = {a % c for a in range(p[0], p[1] + 1)}
            assert ex13_answers.remainder(p, c) == (min(values), max(values))


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda i, m: i * i % m - i % m * (i % m) % m + i % m, None),
        (lambda i, m: (i % m) * (i // (4 * m)), "proved"),
        (lambda i, m: (i // 2 % 2) * (1 - i // 2 % 2), "proved"),  # step by step; multiplied out it is not
        (lambda i, m: i // 2 % 2 - (i // 2 % 2) * (i // 2 % 2), None),
        (lambda i, m: i // 4 + i % 2 * (1 - i % 2), None),
        (lambda i, m: i - i // m * m, None),  # a remainder, but not written as one
        (lambda i, m: i * i % m - i % m, "out-of-range"),
        (lambda i, m: 0, "proved"),
        (lambda i, m: [i], "wrong-form"),
        (lambda i, m: i % m if i < 3 else i % m, "no-expression"),
    ],
)
def test_other_subscripts(answer, mistake):
    verdict = check("3", unproved=answer)["unproved"]
    assert verdict.mistake == mistake and (verdict.credit == 1) == (mistake is None), str(verdict)


@pytest.mark.parametrize("answer", [(1,), None, (0.0, 1.0), (True, 2), "ab", (1, 2, 3)])
def test_what_is_no_interval_is_said_to_be_none(answer):
    assert check("2", times=lambda p, q: answer)["times"].mistake == "wrong-form"
