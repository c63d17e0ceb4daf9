"""The best piecewise-constant fit: against all divisions, and on planted steps under noise."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab.errors import OptionError
from staxlab.measure.change_points import Segment, joined, noise_of, piecewise_constant


def cost(values, noise, cuts, price):
    """The cost of a division, straight from its definition."""
    total = 0.0
    for start, stop in itertools.pairwise((0, *cuts, len(values))):
        weights = [1 / s**2 for s in noise[start:stop]]
        mean = sum(w * v for w, v in zip(weights, values[start:stop], strict=True)) / sum(weights)
        total += sum(w * (v - mean) ** 2 for w, v in zip(weights, values[start:stop], strict=True)) + price
    return total


@given(
    st.lists(st.tuples(st.floats(-4, 4), st.floats(0.5, 3)), min_size=1, max_size=7),
    st.floats(0.1, 20),
)
def test_no_division_is_cheaper(places, price):
    values, noise = [v for v, _ in places], [s for _, s in places]
    found = piecewise_constant(values, noise, penalty=price)
    assert [s.start for s in found] == [0, *(s.stop for s in found[:-1])] and found[-1].stop == len(values)
    own = cost(values, noise, [s.start for s in found[1:]], price)
    inner = range(1, len(values))
    least = min(
        cost(values, noise, cuts, price) for size in range(len(values)) for cuts in itertools.combinations(inner, size)
    )
    assert own == pytest.approx(least, rel=1e-6, abs=1e-6)


@given(st.integers(0, 2**32), st.integers(2, 4), st.floats(0.01, 1.0))
def test_planted_steps_are_found(seed, count, noise):
    generator = random.Random(seed)
    lengths = [generator.randint(6, 15) for _ in range(count)]
    values, edges, level = [], [0], 50.0
    for length in lengths:
        values += [level + generator.uniform(-0.6, 0.6) * noise for _ in range(length)]
        edges.append(edges[-1] + length)
        level += generator.choice((-1, 1)) * generator.uniform(10, 20) * noise
    assert [s.start for s in piecewise_constant(values, noise)] == edges[:-1]


def test_a_constant_sequence_is_one_segment_and_an_empty_one_none():
    assert piecewise_constant([3.0] * 20, 0.1) == (Segment(0, 20, 3.0),)
    assert piecewise_constant([], 1.0) == ()


def test_a_noisy_place_does_not_divide():
    values = [1.0] * 8 + [4.0] + [1.0] * 8
    assert len(piecewise_constant(values, 0.1)) == 3
    assert len(piecewise_constant(values, [0.1] * 8 + [2.0] + [0.1] * 8)) == 1


@pytest.mark.parametrize(("values", "noise"), [([1.0], 0.0), ([1.0], -1.0), ([1.0, 2.0], [0.1]), ([math.nan], 1.0),
                                               ([1.0], math.nan)])  # fmt: skip
def test_what_cannot_be_divided(values, noise):
    with pytest.raises(OptionError):
        piecewise_constant(values, noise)


def test_neighbours_are_joined_nearest_first():
    segments = [Segment(0, 2, 1.0), Segment(2, 4, 1.3), Segment(4, 8, 1.4), Segment(8, 9, 5.0)]
    (first, second, third) = joined(segments, 0.2)
    assert (first, third) == (segments[0], segments[3])
    assert (second.start, second.stop) == (2, 8) and second.mean == pytest.approx((2 * 1.3 + 4 * 1.4) / 6)
    assert joined(segments, 10.0)[0].stop == 9


def test_the_noise_is_that_of_the_readings():
    generator = random.Random(3)
    quiet = [[10 + generator.gauss(0, 0.1) for _ in range(8)] for _ in range(200)]
    loud = [[10 + generator.gauss(0, 2.0) for _ in range(8)] for _ in range(200)]
    found = noise_of([*quiet, *loud], window=101)
    assert 0.02 < found[100] < 0.12 and 0.4 < found[300] < 2.4  # the largest of eight varies less than one of them
    assert all(math.isnan(value) for value in noise_of([[1.0], [2.0, 2.0]]))
    assert noise_of([]) == []
    disturbed = [[5.0, 5.0]] * 9 + [[5.0, 1.0]] + [[5.0, 5.0]] * 9
    assert noise_of(disturbed) == [0.0] * 19
