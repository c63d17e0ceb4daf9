"""Buckets: Proposition 10.3 against counting, for every ratio and for listed sizes."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab import Buckets, ConstraintError, OptionError
from staxlab.measure import amortize
from staxlab.shapes import bucketing

RATIOS = st.fractions(min_value=Fraction(101, 100), max_value=8)


@given(RATIOS, st.integers(1, 400), st.integers(0, 400))
def test_versions_and_waste_are_those_of_counting(ratio, smallest, more):
    buckets, largest = Buckets(ratio=ratio), smallest + more
    rounded = {n: buckets.round_up(n) for n in range(smallest, largest + 1)}
    assert all(n <= size < ratio * n or size == n for n, size in rounded.items())
    assert sorted(set(rounded.values())) == list(buckets.between(smallest, largest))
    assert len(set(rounded.values())) <= buckets.bound(smallest, largest) <= len(set(rounded.values())) + 1
    assert max(Fraction(size, n) for n, size in rounded.items()) == buckets.worst_waste(smallest, largest)
    assert all(buckets.round_up(size) == size for size in rounded.values()), "a bucket is its own"


@given(st.integers(1, 2**40), st.integers(1, 2**40))
def test_powers_of_two_are_the_propositions(a, b):
    smallest, largest = sorted((a, b))
    powers = Buckets()
    assert powers.bound(smallest, largest) == bucketing.bucket_bound(smallest, largest)
    assert powers.round_up(largest) == 2 ** (largest - 1).bit_length() == amortize.bucket(largest)
    used = len(powers.between(smallest, largest))
    assert used == powers.bound(smallest, largest) - (smallest & (smallest - 1) != 0), "the floor counts one too many"


def test_a_smaller_ratio_wastes_less_and_needs_more_versions():
    bounds, wastes = zip(
        *((b.bound(1, 4096), b.worst_waste(1, 4096)) for b in map(Buckets, (1.1, 1.25, 1.5, 2, 4))), strict=True
    )
    assert list(bounds) == sorted(bounds, reverse=True) and list(wastes) == sorted(wastes)


def test_listed_sizes():
    buckets = Buckets(sizes=[16, 64, 100])
    assert [buckets.round_up(n) for n in (0, 1, 16, 17, 64, 100)] == [0, 16, 16, 64, 64, 100]
    assert buckets.between(20, 90) == (64, 100) and buckets.worst_waste(20, 90) == Fraction(64, 20)
    with pytest.raises(ConstraintError, match="size 101 is beyond the last bucket, 100"):
        buckets.round_up(101)
    assert str(buckets) == "buckets 16, 64, 100" and str(Buckets()) == "powers of two"


@pytest.mark.parametrize("ratio", [1, 0.5, -2, True, "two", float("nan"), float("inf"), 1 + 0j])
def test_a_ratio_that_is_none_is_refused(ratio):
    with pytest.raises(OptionError, match="ratio"):
        Buckets(ratio=ratio)


@pytest.mark.parametrize("sizes", [(), (4, 4), (8, 4), (0, 4), (4.0,), (True,), 4])
def test_sizes_that_are_none_are_refused(sizes):
    with pytest.raises(OptionError, match="no buckets"):
        Buckets(sizes=sizes)


def test_what_else_is_refused():
    with pytest.raises(OptionError, match="not both"):
        Buckets(ratio=2, sizes=(4,))
    for low, high in ((0, 4), (5, 4)):
        with pytest.raises(ConstraintError, match="need 1 <="):
            Buckets().bound(low, high)
    with pytest.raises(ConstraintError, match="no size -1"):
        Buckets().round_up(-1)
    with pytest.raises(ConstraintError, match="beyond what a tensor can have"):
        Buckets(ratio=3).round_up(2**63)
