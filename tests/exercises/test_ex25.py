"""Exercise 25: tiles, their traffic and an epilogue, by the model, by running, and by hand."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab import learn
from staxlab.learn.exercises import ex25, ex25_answers, ex25_runs
from staxlab.learn.variants import variant_for
from staxlab.measure.matrix_traffic import largest_tile, tile_traffic


def check(part, seed=None, **answers):
    return learn.check(f"ex25.{part}", answers, seed=seed, record=False)


def test_the_chapters_values():
    answers = ex25_answers.reference(ex25.Variant())
    assert answers["tile_side_25"] == 128 and answers["peak_25"] == "2048/3"
    assert answers["bytes_25"] == 4 * (2**30 + 2**24) and answers["share_here"] == "2/65"
    assert answers["intensity_25"] == "2048/65"


@given(st.integers(3, 10**5), st.integers(1, 100))
def test_the_reference_is_the_packages_rule(capacity, depth):
    if 2 * depth + 1 <= capacity:
        assert ex25_answers.largest_tile(capacity, depth) == largest_tile(capacity, depth).choice


@pytest.mark.parametrize("n", [1, 5, 8, 13])
def test_reads_are_counted_and_agree_with_the_closed_form(n):
    for side in (1, 2, 3, 8, 20):
        assert ex25_runs.reads(n, side) == tile_traffic(n, n, n, tile=(side, side, 1), capacity=10**6).read


@pytest.mark.parametrize("seed", [None, *range(20)])
def test_slips_lead_elsewhere(seed):
    variant = variant_for(ex25.Variant, seed)
    slips = ex25_runs.side_slips(variant)
    assert slips and variant.side not in {slip.answer for slip in slips}
    assert variant.n % variant.side == 0, "tiles divide the matrices of every variant"


def test_half_marks_for_what_is_right_where_tiles_divide():
    verdict = check("2", reads_25="2*n**3/T")["reads_25"]
    assert verdict.credit == Fraction(1, 2) and verdict.mistake == "divides-only"
    feedback = check("3", saved_share="T/k", share_here="1/32")
    assert feedback["saved_share"].mistake == feedback["share_here"].mistake == "writes-forgotten"


@pytest.mark.parametrize(
    ("answer", "mistake"),
    [
        (lambda S, B_K: 0, "no-power-of-two"),
        (lambda S, B_K: 3, "no-power-of-two"),
        (lambda S, B_K: 1, "too-small"),
        (lambda S, B_K: 1 << 20, "too-large"),
        (lambda S, B_K: 128.0, "wrong-form"),
        (lambda S, B_K: S // 0, "failed-call"),
    ],
)
def test_what_is_no_tile(answer, mistake):
    verdict = check("1", largest_tile=answer)["largest_tile"]
    assert verdict.mistake == mistake and verdict.credit == 0
