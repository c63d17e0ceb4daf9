"""Integer linear algebra, against definitions and against SymPy."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab.errors import ScheduleError
from staxlab.polyhedral.integers import (
    apply,
    determinant,
    dot,
    hermite,
    identity,
    inverse,
    is_unimodular,
    lexicographic_sign,
    matrix,
    multiply,
    solve,
    text,
)
from tests.polyhedral.nests import unimodular


def matrices(rows, columns, size=4):
    return st.lists(st.tuples(*[st.integers(-size, size)] * columns), min_size=rows, max_size=rows).map(tuple)


SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 4))


@given(SHAPES.flatmap(lambda s: matrices(*s)))
def test_the_hermite_form_is_a_staircase_reached_by_unimodular_operations(rows):
    found = hermite(rows)
    assert multiply(rows, found.operations) == found.form
    assert is_unimodular(found.operations)
    for k, pivot in enumerate(found.pivots):
        column = [row[k] for row in found.form]
        assert not any(column[:pivot]) and column[pivot] > 0
        assert all(0 <= entry < column[pivot] for entry in found.form[pivot][:k])
        assert not any(found.form[pivot][k + 1 :])
    assert list(found.pivots) == sorted(set(found.pivots))
    assert not any(entry for row in found.form for entry in row[found.rank :])


@given(st.integers(1, 4).flatmap(lambda n: matrices(n, n)))
def test_determinants_are_those_of_the_definition(rows):
    n = len(rows)
    total = 0
    for order in itertools.permutations(range(n)):
        inversions = sum(order[a] > order[b] for a in range(n) for b in range(a + 1, n))
        term = (-1) ** inversions
        for i, j in enumerate(order):
            term *= rows[i][j]
        total += term
    assert determinant(rows) == total


@given(st.integers(1, 3).flatmap(unimodular))
def test_inverses_of_unimodular_matrices_are_whole(rows):
    assert multiply(rows, inverse(rows)) == multiply(inverse(rows), rows) == identity(len(rows))


@given(SHAPES.flatmap(lambda s: st.tuples(matrices(*s, size=3), st.tuples(*[st.integers(-4, 4)] * s[0]))))
def test_solutions_are_all_there_are(case):
    rows, right = case
    width = len(rows[0])
    found = solve(rows, right, width)
    box = list(itertools.product(range(-3, 4), repeat=width))
    real = {x for x in box if apply(rows, x) == right}
    if found is None:
        assert not real
        return
    assert apply(rows, found.particular) == right
    assert all(not any(apply(rows, direction)) for direction in found.basis)
    # Every solution in the box is the particular one plus a combination of the basis: the difference is in its lattice.
    for x in real:
        difference = tuple(a - b for a, b in zip(x, found.particular, strict=True))
        columns = tuple(zip(*found.basis, strict=True)) if found.basis else ()
        inside = solve(columns, difference, len(found.basis)) is not None if found.basis else not any(difference)
        assert inside
    leads = [next(k for k, entry in enumerate(direction) if entry) for direction in found.basis]
    assert leads == sorted(set(leads)), "the basis is a staircase"


def test_what_is_no_solution_and_no_inverse():
    assert solve(((2, 4),), (3,), 2) is None and solve(((0, 0),), (1,), 2) is None
    assert solve((), (), 2).basis == ((1, 0), (0, 1))
    for rows in (((2, 0), (0, 1)), ((1, 1), (1, 1)), ((1, 0),)):
        assert not is_unimodular(rows)
        with pytest.raises(ScheduleError, match="not 1 or -1"):
            inverse(rows)
    with pytest.raises(ScheduleError, match="whole"):
        matrix([[0.5]])
    with pytest.raises(ScheduleError, match="equally long"):
        matrix([[1], [1, 2]])


def test_words():
    assert text(((1, 0), (-1, 1))) == "[[1, 0], [-1, 1]]" and text((1, -1)) == "(1, -1)" and text((3,)) == "(3,)"
    assert [lexicographic_sign(v) for v in ((0, 1), (0, -2), (0, 0), (1, -9))] == [1, -1, 0, 1]
    assert dot((1, 2), (3, 4)) == 11 and determinant(()) == 1
