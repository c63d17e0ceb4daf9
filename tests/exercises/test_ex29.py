"""Exercise 29: 32-bit subscripts at the edge, the two ways without a bound, and segments chosen by a hint."""

from __future__ import annotations

import re
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab import learn
from staxlab.learn.exercises import ex29, ex29_answers, ex29_runs
from staxlab.learn.variants import variant_for


def check(part, seed=None, **answers):
    return learn.check(f"ex29.{part}", answers, seed=seed, record=False)


def test_the_chapters_values_are_just_right():
    truth = ex29_runs.truth_of(ex29.Variant())
    assert truth.largest == 2**31 - 1 and truth.fits and truth.ratio == 64
    assert ex29_runs.most_rows_of(128) == 2**24
    assert check("1", largest_subscript=2**31)["largest_subscript"].mistake == "count"


@given(st.integers(1, 2**31))
def test_the_reference_is_bisection_on_the_packages_bound(columns):
    assert ex29_answers.most_rows(columns) == ex29_runs.most_rows_of(columns)


@given(st.lists(st.tuples(st.integers(1, 2**33), st.integers(0, 2**20)), max_size=4))
def test_the_reference_decides_as_the_package_does(dims):
    uppers, strides = [u for u, _ in dims], [s for _, s in dims]
    fits = ex29_runs.largest_index(tuple(uppers), tuple(strides)) < 2**31
    assert ex29_answers.index_bits(uppers, strides) == (32 if fits else 64)


def test_the_table_of_the_statement_is_the_packages_rule():
    lines = ex29.PART_3.splitlines()
    exponents = [int(e) for e in re.findall(r"2\^(\d+) \|", next(line for line in lines if line.startswith("| el")))]
    segments = [int(k) for k in re.findall(r"(\d+) \|", next(line for line in lines if line.startswith("| seg")))]
    assert len(exponents) == len(segments) == 7
    assert [ex29_runs.segments_of(1 << e) for e in exponents] == segments
    assert all(ex29_runs.segments_of(1 << e) == 1 << (e - 13) for e in range(14, 23)), "and in proportion between"


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_variants_lie_at_the_edge_and_slips_lead_elsewhere(seed):
    variant = variant_for(ex29.Variant, seed)
    truth = ex29_runs.truth_of(variant)
    assert abs(truth.largest - 2**31) <= 2 * variant.columns and truth.fits == (truth.largest < 2**31)
    assert truth.ratio > 1 and variant.later_exponent <= 22
    assert truth.ratio not in {s.answer for s in ex29_runs.slowdown_slips(variant)}


def test_both_outcomes_are_drawn():
    drawn = {ex29_runs.truth_of(variant_for(ex29.Variant, seed)).fits for seed in range(20)}
    assert drawn == {True, False}


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda values, k: [0] * k, "tail-lost"),
        (lambda values, k: [sum(values)] * k, "counted-twice"),
        (lambda values, k: values[5], "failed-call"),
        (lambda values, k: ["a"], "wrong-form"),
    ],
)
def test_what_are_no_segments(answer, mistake):
    verdict = check("3", segment_sums=answer)["segment_sums"]
    assert verdict.mistake == mistake and verdict.credit == Fraction(0)
