"""Theorem 9.1 and the traffic of tiles: exact, counted by running, and the worked numbers of Exercises 25 and 47."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.errors import OptionError
from staxlab.measure.matrix_traffic import (
    compulsory_elements,
    count_tiles,
    keeps_bound,
    largest_tile,
    least_transfers,
    peak_intensity,
    recursive_transfers,
    tile_capacity,
    tile_traffic,
    transfer_bound,
)

CHAPTER = {"m": 4096, "n": 4096, "k": 4096, "tile": (128, 128, 32), "itemsize": 4, "capacity": 48 * 1024}
sizes = st.integers(1, 9)


def test_the_chapters_numbers():
    traffic = tile_traffic(**CHAPTER)
    assert traffic.read == 2**30 and traffic.written == 2**24 and traffic.fits
    assert traffic.read_intensity == 32 and traffic.peak_intensity == Fraction(2 * 4096, 12)
    # sqrt(S) = 128 sqrt(3), so the leading term of the bound is a whole number over 768.
    assert transfer_bound(4096, 4096, 4096, 48 * 1024) == pytest.approx(4096**3 / 768 - 48 * 1024, rel=1e-12)
    assert largest_tile(48 * 1024, 32).choice == 128
    assert tile_capacity((192, 192, 32)) == 48 * 1024, "the largest tile fills the chip to the last element"
    assert traffic.read / (traffic.bound + traffic.capacity) == pytest.approx(12)


def test_the_factors_of_the_gap_multiply_to_it():
    traffic = tile_traffic(**CHAPTER)
    named = {gap.name: gap.value for gap in traffic.gaps}
    assert math.prod(named.values()) == pytest.approx(traffic.ratio, rel=1e-12)
    assert named["tile"] == 1.5 and named["proof"] == pytest.approx(4 * math.sqrt(3))
    assert named["operands"] == pytest.approx(2 / math.sqrt(3))
    assert not traffic.with_tile((256, 256, 32)).gaps, "a tile that does not fit explains nothing"
    assert not tile_traffic(2, 2, 2, tile=(1, 1, 1), capacity=100).gaps, "nor does a bound that says nothing"


@settings(deadline=None, max_examples=60)
@given(sizes, sizes, sizes, st.tuples(sizes, sizes, sizes), st.data())
def test_the_closed_form_is_what_the_loops_do(m, n, k, tile, data):
    numbers = st.integers(-3, 3)
    a = [[data.draw(numbers) for _ in range(k)] for _ in range(m)]
    b = [[data.draw(numbers) for _ in range(n)] for _ in range(k)]
    counted = count_tiles(a, b, tile)
    model = tile_traffic(m, n, k, tile=tile, capacity=1000)
    assert (counted.read_a, counted.read_b, counted.written) == (model.read_a, model.read_b, model.written)
    assert counted.products == m * n * k and counted.most_on_chip <= tile_capacity(tile)
    assert counted.result == tuple(tuple(sum(a[i][l] * b[l][j] for l in range(k)) for j in range(n)) for i in range(m))
    if m >= tile[0] and n >= tile[1] and k >= tile[2]:
        assert counted.most_on_chip == tile_capacity(tile)


@given(st.integers(1, 400), st.integers(1, 400), st.integers(1, 400), st.integers(1, 3000), st.integers(1, 9))
def test_the_whole_bound_is_the_irrational_one_rounded_up(m, n, k, capacity, processors):
    least = least_transfers(m, n, k, capacity, processors)
    exceeds = lambda q: 12 * capacity * (processors * (q + capacity)) ** 2 >= (m * n * k) ** 2  # noqa: E731
    assert exceeds(least) and (least == 0 or not exceeds(least - 1))
    assert least == pytest.approx(max(0, math.ceil(transfer_bound(m, n, k, capacity, processors) - 1e-9)), abs=1)
    if processors == 1:
        assert keeps_bound(least, m, n, k, capacity) and (least == 0 or not keeps_bound(least - 1, m, n, k, capacity))


@given(st.integers(1, 64), st.integers(1, 64), st.integers(1, 64), st.integers(1, 40), st.integers(1, 40))
def test_a_tile_that_fits_never_beats_the_bound(m, n, k, side, depth):
    capacity = tile_capacity((side, side, depth))
    traffic = tile_traffic(m, n, k, tile=(side, side, depth), capacity=capacity)
    assert traffic.fits and keeps_bound(traffic.elements, m, n, k, capacity)
    assert traffic.elements >= compulsory_elements(m, n, k)
    assert traffic.intensity <= traffic.peak_intensity == peak_intensity(m, n, k, 4)


@given(st.integers(3, 10**6), st.integers(1, 200))
def test_the_largest_tile_fits_and_the_next_does_not(capacity, depth):
    if 2 * depth + 1 > capacity:
        with pytest.raises(OptionError, match="no tile fits"):
            largest_tile(capacity, depth)
        return
    whole = largest_tile(capacity, depth, power_of_two=False).choice
    power = largest_tile(capacity, depth)
    assert tile_capacity((whole, whole, depth)) <= capacity < tile_capacity((whole + 1, whole + 1, depth))
    assert power.choice <= whole < 2 * power.choice and power.choice & (power.choice - 1) == 0
    assert power.choice in power.candidates and str(power.choice) in power.reason


def test_recursive_products_move_less_the_fewer_multiplications_they_have():
    standard, strassen = (recursive_transfers(4096, 1024, count) for count in (8, 7))
    assert standard == pytest.approx(4096**3 / 32) and strassen < standard
    assert recursive_transfers(8192, 1024) == pytest.approx(7 * strassen)
    assert recursive_transfers(4096, 4096) == pytest.approx(4 / 7 * strassen)


def test_the_curve_halves_from_tile_to_tile():
    traffic = tile_traffic(**CHAPTER)
    curve = traffic.curve()
    assert [one.tile[0] for one in curve] == [1 << e for e in range(13)]
    assert all(2 * b.read == a.read for a, b in zip(curve, curve[1:], strict=False))
    assert traffic in curve and curve[-1].intensity == traffic.peak_intensity


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: tile_traffic(0, 1, 1, tile=(1, 1, 1), capacity=9), "m = 0"),
        (lambda: tile_traffic(1, 1, 1, tile=(1, 1), capacity=9), "three sizes"),
        (lambda: tile_traffic(1, 1, 1, tile=(1, 0, 1), capacity=9), "B_N = 0"),
        (lambda: tile_traffic(1, 1, 1.5, tile=(1, 1, 1), capacity=9), "k = 1.5"),
        (lambda: transfer_bound(1, 1, 1, 0), "capacity = 0"),
        (lambda: count_tiles([[1, 2], [3]], [[1], [2]], (1, 1, 1)), "no matrices"),
        (lambda: count_tiles([], [], (1, 1, 1)), "no matrices"),
    ],
)
def test_bad_sizes_are_named(call, words):
    with pytest.raises(OptionError, match=words) as caught:
        call()
    assert caught.value.remedy
