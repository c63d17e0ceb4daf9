"""Sets of integer points: against all points of a box, and against the integer set library where it is installed."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab.errors import MissingDependencyError
from staxlab.polyhedral.integers import dot
from staxlab.polyhedral.polyhedron import Constraint, Polyhedron, Undecided, affine_text, projections

SIDE = range(-3, 4)


@st.composite
def polyhedra(draw: st.DrawFn) -> Polyhedron:
    n = draw(st.integers(1, 3))
    box = Polyhedron.box("xyz"[:n], [(draw(st.integers(-3, 0)), draw(st.integers(0, 3))) for _ in range(n)])
    more = []
    for _ in range(draw(st.integers(0, 3))):
        factors = tuple(draw(st.integers(-3, 3)) for _ in range(n))
        more.append(Constraint(factors, draw(st.integers(-4, 4)), draw(st.integers(0, 2)) == 0))
    return box.where(*more)


def all_points(polyhedron):
    return [p for p in itertools.product(SIDE, repeat=len(polyhedron.names)) if polyhedron.holds(p)]


@given(polyhedra())
def test_the_points_are_those_of_the_box_for_which_the_constraints_hold(polyhedron):
    real = all_points(polyhedron)
    assert list(polyhedron.points()) == real
    for first in range(len(polyhedron.names) + 1):
        assert list(polyhedron.points(first)) == sorted({p[:first] for p in real})
    found = polyhedron.sample()
    assert polyhedron.is_empty == (not real) and (found in real if real else found is None)


@given(polyhedra(), st.tuples(*[st.integers(-2, 2)] * 3), st.integers(-2, 2))
def test_the_range_of_a_function_is_reached(polyhedron, factors, constant):
    real = all_points(polyhedron)
    if real:
        row = factors[: len(polyhedron.names)]
        values = [dot(row, p) + constant for p in real]
        assert polyhedron.range_of(row, constant) == (min(values), max(values))


@given(polyhedra())
def test_a_shadow_holds_every_points_beginning_and_no_more_than_the_rational_one(polyhedron):
    real = all_points(polyhedron)
    for first in range(len(polyhedron.names)):
        shadow = polyhedron.projected(first)
        assert all(shadow.holds(p[:first]) for p in real)
    whole = polyhedron.projected(len(polyhedron.names))
    assert [p for p in itertools.product(SIDE, repeat=len(polyhedron.names)) if whole.holds(p)] == real


@given(polyhedra())
def test_isl_says_the_same(polyhedron):
    islpy = pytest.importorskip("islpy")
    theirs = polyhedron.isl()
    found = []
    theirs.foreach_point(lambda point: found.append(_tuple(point, len(polyhedron.names), islpy)))
    assert sorted(found) == all_points(polyhedron)
    assert theirs.is_empty() == polyhedron.is_empty


def _tuple(point, n, islpy):
    return tuple(point.get_coordinate_val(islpy.dim_type.set, k).to_python() for k in range(n))


@given(polyhedra())
def test_isl_projects_to_the_same_integers_where_the_shadow_is_exact(polyhedron):
    islpy = pytest.importorskip("islpy")
    n = len(polyhedron.names)
    for first in range(1, n):
        theirs = polyhedron.isl().project_out(islpy.dim_type.set, first, n - first)
        found = []
        theirs.foreach_point(lambda point, first=first, found=found: found.append(_tuple(point, first, islpy)))
        assert sorted(found) == list(polyhedron.points(first))


def test_unbounded_sets():
    half = Polyhedron(("x", "y"), (Constraint((1, 0), -2), Constraint((2, -1), 1, True)))
    assert half.range_of((1, 0)) == (2, None) and half.range_of((0, 1)) == (5, None)
    assert list(itertools.islice(half.points(), 3)) == [(2, 5), (3, 7), (4, 9)]
    line = Polyhedron(("x",), ())
    assert line.sample() == (0,) and not line.is_empty and line.range_of((1,)) == (None, None)


#: A set with rational points of which none is whole, though neither coordinate shows it (Pugh 1991).
NIGHTMARE = (((11, 13), -27), ((-11, -13), 45), ((7, -9), 10), ((-7, 9), 4))


def test_holes_are_found_by_searching_and_a_search_without_end_gives_up():
    bounded = Polyhedron(("x", "y"), tuple(Constraint(a, c) for a, c in NIGHTMARE))
    assert bounded.is_empty and bounded.projected(1).sample() is not None
    # The same for x + z in place of x: now there are rational points without end.
    endless = Polyhedron(("x", "y", "z"), tuple(Constraint((*a, a[0]), c) for a, c in NIGHTMARE))
    with pytest.raises(Undecided):
        _ = endless.is_empty
    assert Polyhedron(("x", "y"), (Constraint((2, -2), -1, True),)).is_empty


def test_too_many_inequalities_are_not_multiplied():
    rows = [((k, 1), -k * k) for k in range(60)] + [((k, -1), k * k) for k in range(60)]
    with pytest.raises(Undecided, match="too many"):
        projections(rows, 2)


def test_words():
    assert affine_text((2, -1, 0), 3, "ijk") == "2*i - j + 3" and affine_text((0,), 0, "i") == "0"
    box = Polyhedron.box(("i", "j"), [(0, 4), (1, None)])
    assert str(box) == "{ (i, j) : i >= 0 and -i + 4 >= 0 and j - 1 >= 0 }"


def test_without_islpy_its_extra_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "islpy", None)
    with pytest.raises(MissingDependencyError, match=r"staxlab\[polyhedral\]"):
        Polyhedron.box(("i",), [(0, 1)]).isl()
