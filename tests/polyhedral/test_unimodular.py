"""The search for a fully permutable band, and the loops of the transformed nest, run."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.errors import ScheduleError
from staxlab.polyhedral import dependences, loop_nest, make_permutable, tile_order, tiling, transform, transformed
from staxlab.polyhedral.integers import apply, determinant, dot, identity, is_unimodular
from staxlab.polyhedral.unimodular import admissible_rows, skewed
from tests.polyhedral.nests import STENCIL, WRITTEN, affine_nests, uniform_nests, unimodular


def assert_permutable(found, made):
    assert is_unimodular(made.rows) and made.determinant in (1, -1)
    assert made.legal and made.permutable
    for before, after in made.distances:
        assert after == apply(made.rows, before) and min(after) >= 0
    nest = found.nest
    for sizes in itertools.product((1, 2, 100), repeat=nest.depth):
        assert transformed(nest, made.rows, sizes).keeps_values()


@given(uniform_nests(depths=(1, 2)))
@settings(max_examples=40)
def test_every_uniform_nest_is_made_permutable(nest):
    found = dependences(nest)
    made = make_permutable(found)
    assert made is not None
    assert_permutable(found, made)


@given(uniform_nests(depths=(3,)))
@settings(max_examples=8)
def test_also_of_three_loops(nest):
    found = dependences(nest)
    assert_permutable(found, make_permutable(found))


@given(uniform_nests())
@settings(max_examples=60)
def test_the_construction_always_succeeds_on_finitely_many_distances(nest):
    found = dependences(nest)
    rows = skewed(found)
    assert rows is not None and determinant(rows) == 1 and tiling(found, rows=rows)
    assert all(rows[k][j] == int(k == j) for k in range(nest.depth) for j in range(k, nest.depth))


@given(uniform_nests(depths=(2,)))
@settings(max_examples=40)
def test_no_matrix_nearer_to_the_identity_would_do(nest):
    found = dependences(nest)
    made = make_permutable(found, bound=2)

    def cost(rows):
        return sum(
            abs(a - b) for row, unit in zip(rows, identity(2), strict=True) for a, b in zip(row, unit, strict=True)
        )

    if max(abs(x) for row in made.rows for x in row) > 2:  # beyond the bound: constructed
        assert made.method.startswith("constructed")
        return
    for entries in itertools.product(range(-2, 3), repeat=4):
        rows = (entries[:2], entries[2:])
        if abs(determinant(rows)) == 1 and all(dot(row, v) >= 0 for row in rows for v in found.distances):
            assert cost(rows) >= cost(made.rows)


def test_exercise_50_is_skewed_once():
    made = make_permutable(dependences(loop_nest(STENCIL)))
    assert made.rows == ((1, 0), (1, 1)) and made.inverse == ((1, 0), (-1, 1))
    assert "distance (1, -1) -> (1, 0)" in str(made)
    assert make_permutable(dependences(loop_nest(WRITTEN["sum of rows"]))).method == "nothing to do"


def test_a_steep_distance_is_beyond_the_bound_and_constructed():
    steep = dependences(loop_nest("for i in range(1, 9):\n    for j in range(9):\n        w[i, j] = w[i - 1, j + 7]"))
    made = make_permutable(steep)
    assert made.permutable and max(abs(x) for row in made.rows for x in row) <= 7
    both = dependences(
        loop_nest("for i in range(1, 9):\n    for j in range(9):\n        w[i, j] = w[i - 1, j + 7] + w[i, j - 1]")
    )
    made = make_permutable(both)
    assert made.method.startswith("constructed") and made.rows == ((1, 0), (7, 1)) and made.permutable


def test_distances_without_end_may_forbid_every_skew():
    found = dependences(loop_nest("for i in range(N):\n    for j in range(N):\n        s += x[i, j]"))
    assert make_permutable(found) is None and skewed(found) is None
    assert admissible_rows(found, 1) == [(1, 0)], "(0, 1) and (1, -N) for every N leave the outer loop alone"


def test_at_open_sizes():
    text = """
for t in range(T):
    for i in range(1, N):
        a[i] = b[i - 1] + b[i + 1]
        b[i] = a[i]
"""
    made = make_permutable(dependences(loop_nest(text)))
    assert made.rows == ((1, 0), (1, 1)) and made.legal and made.permutable


@given(st.one_of(uniform_nests(), affine_nests()), st.data())
@settings(max_examples=80)
def test_the_new_loops_visit_the_iterations_in_the_new_order(nest, data):
    rows = data.draw(unimodular(nest.depth))
    new = transformed(nest, rows)
    assert list(new.order()) == sorted(nest.points(), key=lambda x: apply(rows, x))
    sizes = data.draw(st.tuples(*[st.integers(1, 3)] * nest.depth))
    tiled = transformed(nest, rows, sizes)
    assert list(tiled.new_points()) == list(tile_order((apply(rows, x) for x in nest.points()), sizes))
    first = data.draw(st.integers(0, nest.depth - 1))
    partly = transformed(nest, rows, (*[None] * first, *sizes[first:]))
    expected = sorted(
        new.new_points(),
        key=lambda y: (*y[:first], *(v // s for v, s in zip(y[first:], sizes[first:], strict=True)), *y),
    )
    assert list(partly.new_points()) == expected


class Recorder(dict):
    """An array that notes what is written."""

    def __init__(self, log):
        super().__init__()
        self.log = log

    def __missing__(self, key):
        return 0

    def __setitem__(self, key, value):
        self.log.append(key)


@given(uniform_nests(), st.data())
@settings(max_examples=60)
def test_the_text_of_the_new_nest_is_a_program_that_runs_the_same(nest, data):
    rows = data.draw(unimodular(nest.depth))
    sizes = data.draw(st.one_of(st.none(), st.tuples(*[st.integers(1, 3)] * nest.depth)))
    new = transformed(nest, rows, sizes)
    log = []
    exec(str(new), {"w": Recorder(log)})
    assert [key if isinstance(key, tuple) else (key,) for key in log] == list(new.order())


def test_the_text_at_open_sizes_runs_at_every_size():
    nest = loop_nest("for i in range(N):\n    for j in range(i, M):\n        w[i, j] = w[i - 1, j]")
    new = transformed(nest, [[1, 1], [0, 1]], (2, 3))
    for n, m in itertools.product(range(1, 5), repeat=2):
        log = []
        exec(str(new), {"w": Recorder(log), "N": n, "M": m})
        closed = nest.with_sizes(N=n, M=m)
        assert sorted(log) == sorted(closed.points())
        if log:
            assert log == list(transformed(closed, [[1, 1], [0, 1]], (2, 3)).order())


def test_bounds_say_no_more_than_they_must():
    new = transformed(loop_nest(STENCIL), [[1, 0], [1, 1]])
    assert str(new).splitlines() == [
        "for i in range(1, 6):",
        "    for t1 in range(i + 1, i + 7):",
        "        j = -i + t1",
        "        w[i, j] = w[i - 1, j] + w[i, j - 1] + w[i - 1, j + 1]",
    ]
    assert str(loop_nest(STENCIL)) == STENCIL.strip()
    assert new.keeps_values() and not transformed(loop_nest(STENCIL), [[0, 1], [1, 0]]).keeps_values()


def test_what_is_no_transformation_is_refused():
    nest = loop_nest(STENCIL)
    with pytest.raises(ScheduleError, match="not 1 or -1"):
        transformed(nest, [[2, 0], [0, 1]])
    with pytest.raises(ScheduleError, match="not 1 or -1"):
        transform(dependences(nest), [[2, 0], [0, 1]])
    with pytest.raises(ScheduleError, match="2 loops"):
        transformed(nest, None, (2,))
    with pytest.raises(ScheduleError, match="at least 1"):
        transformed(nest, None, (2, 0))
    with pytest.raises(ScheduleError, match="no iterations"):
        str(loop_nest("for i in range(4, 2):\n    w[i] = 1"))
    with pytest.raises(ScheduleError, match="open sizes"):
        list(transformed(loop_nest("for i in range(N):\n    w[i] = 1")).order())
