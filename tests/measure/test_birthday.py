"""The birthday bound: above the probability, which what is drawn keeps to."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest

from staxlab.errors import OptionError
from staxlab.measure.birthday import birthday, collision_bound, collision_probability, most_keys
from staxlab.view.birthday import curves
from tests.view.reading import check_page, read


@pytest.mark.parametrize(("q", "bits"), list(itertools.product(range(5), range(1, 4))))
def test_the_probability_is_the_share_of_all_ways_and_below_the_bound(q, bits):
    ways = list(itertools.product(range(2**bits), repeat=q))
    share = Fraction(sum(len(set(way)) < q for way in ways), len(ways))
    assert collision_probability(q, 2**bits) == share <= collision_bound(q, bits)


def test_what_is_drawn_keeps_to_the_probability():
    record = birthday(10, trials=4000, seed=3)
    assert [count.keys for count in record.counts] == [2, 4, 8, 16, 32, 64, 128]
    for count in record.counts:
        deviation = (count.probability * (1 - count.probability) / 4000) ** 0.5
        assert abs(count.seen - count.probability) <= 5 * deviation + 1e-12, count
        assert count.probability < count.bound
    assert record == birthday(10, trials=4000, seed=3) != birthday(10, trials=4000, seed=4)


@pytest.mark.parametrize(("bits", "one_in"), [(255, 10**6), (64, 1000), (3, 1)])
def test_the_most_keys_are_the_most(bits, one_in):
    most = most_keys(bits, Fraction(1, one_in))
    assert collision_bound(most, bits) <= Fraction(1, one_in) < collision_bound(most + 1, bits)


def test_bits_nobody_could_draw_are_refused():
    for bits in (0, 41):
        with pytest.raises(OptionError, match="1 to 40 bits"):
            birthday(bits)


def test_it_draws_itself():
    record = birthday(8, trials=50)
    check_page(record)
    lines = {e.attributes["data-curve"] for e in read(curves(record)).walk() if "data-curve" in e.attributes}
    assert lines == {"bound", "probability", "seen in 50 drawings"}
    assert "8 bits: up to 22 keys the bound is below 1" in str(record)
