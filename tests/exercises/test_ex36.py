"""Exercise 36: the chapter's numbers, and counts that loops confirm."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from staxlab import learn
from staxlab.learn.exercises import ex36, ex36_answers
from staxlab.learn.variants import variant_for
from staxlab.measure.attention_traffic import count_attention, largest_rows


def check(part, seed=None, **answers):
    return learn.check(f"ex36.{part}", answers, seed=seed, record=False)


def test_the_chapters_numbers():
    answers = ex36_answers.reference(ex36.Variant())
    assert Fraction(answers["leading_ratio"]) == Fraction(25, 4)
    assert (answers["p_bytes"], answers["lse_bytes"]) == (2**27, 2**15)
    assert check("3", kept_ratio="N/2")["kept_ratio"].credit == 1


@pytest.mark.parametrize(("k", "rows", "d"), [(1, 4, 3), (3, 2, 5), (5, 8, 2)])
def test_the_count_in_tiles_is_what_the_loops_do(k, rows, d):
    x = torch.ones(k * rows, d).double()
    counted = count_attention(x, x, x, (rows, 3))
    total = counted.read_q + counted.read_k + counted.read_v + counted.written_o + counted.written_lse
    assert ex36.tiles(k, rows, d) == total == 2 * k * rows * d + 2 * k * k * rows * d + k * rows


@pytest.mark.parametrize("seed", [None, *range(12)])
def test_variants_lie_where_the_theorem_speaks_and_their_mistakes_differ(seed):
    variant = variant_for(ex36.Variant, seed)
    assert variant.head_size <= variant.capacity <= variant.length * variant.head_size
    assert largest_rows(variant.capacity, variant.head_size, 16).choice >= variant.rows, "the tile of Part 2 fits"
    answers = ex36_answers.reference(variant)
    numbers = {Fraction(answers[name]) for name in ("leading_ratio", "counted_ratio")}
    assert len(numbers) == 2 and Fraction(answers["leading_ratio"]) > 1


def test_leading_order_is_told_from_the_whole_order():
    verdict = check("1", leading_ratio="25/4*(1 + 128/8192)")["leading_ratio"]
    assert verdict.mistake == "with-operands" and 0 < verdict.credit < 1


def test_numbers_may_be_written_as_products():
    feedback = check("3", p_bytes="2*8192**2", lse_bytes="4*8192")
    assert feedback["p_bytes"].credit == feedback["lse_bytes"].credit == 1
