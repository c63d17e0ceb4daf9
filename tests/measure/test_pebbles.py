"""Pebble games and projections: executed schedules keep the bound, and every step of its proof."""

from __future__ import annotations

import itertools
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.errors import OptionError
from staxlab.measure.matrix_traffic import tile_capacity, tile_traffic
from staxlab.measure.pebbles import PebbleError, replay, row_by_row, tiled
from staxlab.measure.projections import Projections, brick, projections

small = st.integers(1, 6)


@settings(deadline=None, max_examples=40)
@given(small, small, small, st.tuples(small, small, small))
def test_a_tiled_schedule_moves_what_the_model_says(m, n, k, tile):
    capacity = tile_capacity(tile)
    run = replay(m, n, k, capacity, tiled(m, n, k, tile))
    model = tile_traffic(m, n, k, tile=tile, capacity=capacity)
    assert (run.reads, run.writes) == (model.read, model.written) and run.most_red <= capacity
    assert run.keeps_bound and run.proof_holds


def random_schedule(m, n, k, capacity, seed):
    """All products in any order, with a memory that lets go of any word that is not needed just now."""
    rng = random.Random(seed)
    products = list(itertools.product(range(m), range(n), range(k)))
    rng.shuffle(products)
    red, written, moves, grown = [], set(), [], set()

    def make_room(keep):
        while len(red) >= capacity:
            word = rng.choice([word for word in red if word not in keep])
            if word in grown:
                moves.append(("write", word))
                written.add(word)
                grown.discard(word)
            moves.append(("drop", word))
            red.remove(word)

    for i, j, l in products:
        a, b, c = ("a", i, l), ("b", l, j), ("c", i, j)
        for word in (a, b, c):
            if word not in red and (word != c or word in written):
                make_room({a, b, c})
                moves.append(("read", word))
                red.append(word)
        if c not in red:
            make_room({a, b, c})
            red.append(c)
        grown.add(c)
        moves.append(("multiply", i, j, l))
    return moves + [("write", word) for word in sorted(grown)]


@settings(deadline=None, max_examples=40)
@given(small, small, small, st.integers(3, 12), st.integers(0, 10**6))
def test_no_schedule_beats_the_bound(m, n, k, capacity, seed):
    run = replay(m, n, k, capacity, random_schedule(m, n, k, capacity, seed))
    assert run.most_red <= capacity and run.keeps_bound and run.proof_holds
    assert sum(segment.transfers for segment in run.segments) == run.transfers
    assert all(segment.transfers == capacity for segment in run.segments[:-1])
    assert sum(len(segment.products.points) for segment in run.segments) == m * n * k


def test_a_game_where_the_bound_says_something():
    run = replay(12, 12, 12, 3, row_by_row(12, 12, 12))
    assert run.bound > 280 and run.transfers == 2 * 12**3 + 144
    assert len(run.segments) == math.ceil(run.transfers / 3)
    assert len(run.table().rows) == 24 and f"all {len(run.segments):,} keep the limits" in str(run)


THREE = [("read", ("a", 0, 0)), ("read", ("b", 0, 0)), ("multiply", 0, 0, 0)]


@pytest.mark.parametrize(
    ("moves", "position", "words"),
    [
        ([("multiply", 0, 0, 0)], 0, "a.0, 0. is not in the fast memory"),
        ([("read", ("a", 0, 0)), ("drop", ("a", 0, 0)), ("drop", ("a", 0, 0))], 2, "no red pebble"),
        ([("read", ("c", 0, 0))], 0, "not in the slow memory"),
        ([("read", ("a", 0, 5))], 0, "no such word"),
        ([("read", ("a", 0, 0)), ("write", ("b", 0, 0))], 1, "not in the fast memory"),
        ([("eat", ("a", 0, 0))], 0, "no move"),
        ([()], 0, "no move"),
        ([*THREE, ("drop", ("c", 0, 0))], 3, "be lost"),
        ([*THREE, ("multiply", 0, 0, 0)], 3, "made before"),
        (THREE, 3, "1 products were not made"),
        ([("multiply", 0, 0, 9)], 0, "no such product"),
    ],
)  # fmt: skip
def test_moves_against_the_rules_are_refused(moves, position, words):
    with pytest.raises(PebbleError, match=words) as caught:
        replay(1, 1, 2, 3, moves)
    assert caught.value.position == position and caught.value.remedy


def test_too_many_pebbles_and_unwritten_results_are_refused():
    with pytest.raises(PebbleError, match="3 red pebbles of 2"):
        replay(1, 1, 1, 2, THREE)
    with pytest.raises(PebbleError, match="c.0, 0. was not written"):
        replay(1, 1, 1, 3, THREE)
    away = [*THREE, ("write", ("c", 0, 0)), ("drop", ("c", 0, 0)), ("read", ("a", 0, 1)), ("read", ("b", 1, 0))]
    with pytest.raises(PebbleError, match="the partial sum c.0, 0. is in the slow memory"):
        replay(1, 1, 2, 5, [*away, ("multiply", 0, 0, 1)])
    again = [*away, ("read", ("c", 0, 0)), ("multiply", 0, 0, 1), ("write", ("c", 0, 0))]
    assert (replay(1, 1, 2, 5, again).reads, replay(1, 1, 2, 5, again).writes) == (5, 2)
    stale = [*THREE, ("write", ("c", 0, 0)), ("drop", ("a", 0, 0)), ("read", ("a", 0, 1)), ("drop", ("b", 0, 0)),
             ("read", ("b", 1, 0)), ("multiply", 0, 0, 1)]  # fmt: skip
    with pytest.raises(PebbleError, match="was not written"):
        replay(1, 1, 2, 3, stale)
    with pytest.raises(OptionError):
        replay(0, 1, 1, 3, [])


points = st.frozensets(st.tuples(*[st.integers(-3, 3)] * 3), max_size=60)


@given(points)
def test_loomis_and_whitney(found):
    record = projections(found)
    assert record.holds and record.tightness <= 1
    assert sum(s.size for s in record.slices) == len(found)
    for s in record.slices:
        assert s.size <= s.alpha * s.beta and s.size <= record.sizes[2]
    assert sum(s.alpha for s in record.slices) == record.sizes[0]
    assert sum(s.beta for s in record.slices) == record.sizes[1]


def test_a_set_with_smaller_shadows_would_break_the_lemma():
    class Impossible(Projections):
        sizes = (1, 1, 3)

    assert not Impossible(frozenset({(0, 0, 0), (0, 0, 1)})).holds


def test_a_brick_is_tight_and_less_is_not():
    assert brick(2, 3, 4).tightness == 1
    assert projections(brick(2, 3, 4).points - {(0, 0, 0)}).tightness < 1
    diagonal = projections((i, i, i) for i in range(5))
    assert diagonal.sizes == (5, 5, 5) and diagonal.tightness * 5 == 1


@pytest.mark.parametrize("wrong", [[(1, 2)], [(1, 2, 3.5)], [(1, 2, 3, 4)]])
def test_what_is_no_point(wrong):
    with pytest.raises(OptionError, match="no point of Z"):
        projections(wrong)
