"""Exercise 37's closed forms against block masks, and what they leave out."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab.attention.block_mask import create_block_mask
from staxlab.attention.masks import causal, sliding_window
from staxlab.errors import OptionError
from staxlab.measure.block_counts import block_savings, causal_blocks, saving, visited_blocks, window_blocks


@given(st.integers(1, 9), st.integers(1, 8), st.integers(0, 90))
def test_windows_are_counted_right(n, block, width):
    counted = create_block_mask(sliding_window(width), None, None, n * block, n * block, BLOCK_SIZE=block).totals()
    assert window_blocks(n * block, block, width) == counted


@given(st.integers(1, 9), st.integers(1, 8))
def test_causal_blocks_are_counted_right(n, block):
    counted = create_block_mask(causal, None, None, n * block, n * block, BLOCK_SIZE=block).totals()
    assert causal_blocks(n * block, block) == counted


@given(st.integers(2, 40), st.integers(2, 64), st.data())
def test_the_answers_of_exercise_37(n, block, data):
    k = data.draw(st.integers(1, n - 1))
    counts = window_blocks(n * block, block, k * block)
    assert counts.partial == 2 * (n - k) and counts.empty == (n - k) * (n - k - 1)
    assert counts.full == n * (2 * k - 1) - k * (k - 1)
    if block > 2 and k + 1 < n:
        remainder = data.draw(st.integers(1, block - 2))
        assert window_blocks(n * block, block, k * block + remainder).partial == 2 * (n - k) + 2 * (n - k - 1)
        assert window_blocks(n * block, block, k * block + block - 1).partial == 2 * (n - k - 1)


def test_a_causal_mask_of_eight_blocks_and_what_a_window_saves():
    assert causal_blocks(1024, 128) == (8, 28, 28)
    counts = window_blocks(4096, 128, 1024)
    assert visited_blocks(counts) == 472 and saving(counts, causal_blocks(4096, 128)) == Fraction(56, 528)


def test_the_table_says_that_both_agree():
    record = block_savings(512, 64, (64, 100, 127))
    text = str(record)
    assert text.count("yes") == 4 and "no:" not in text and "saved over causal" in text
    assert "text/html" in record._repr_mimebundle_()


@pytest.mark.parametrize(("length", "block", "width"), [(100, 64, 3), (0, 4, 3), (8, 0, 3), (8, 4, -1)])
def test_what_has_no_closed_form(length, block, width):
    with pytest.raises(OptionError) as caught:
        block_savings(length, block, (width,))
    assert caught.value.remedy
