"""Linear programs in fractions (against SciPy), the lemma of Farkas, and affine schedules, run."""

from __future__ import annotations

import itertools
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.polyhedral import AffineSchedule, NoSchedule, affine_schedule, check_schedule, dependences, loop_nest
from staxlab.polyhedral.distances import running_pairs
from staxlab.polyhedral.integers import dot
from staxlab.polyhedral.linear import Multipliers, farkas, holds, minimize
from staxlab.polyhedral.polyhedron import Constraint, Polyhedron
from staxlab.polyhedral.schedules import Share
from tests.polyhedral.nests import STENCIL, WRITTEN, affine_nests, open_nests, uniform_nests, with_all_sizes


@st.composite
def programs(draw):
    unknowns, equations = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    number = st.integers(-3, 3)
    rows = [[draw(number) for _ in range(unknowns)] for _ in range(equations)]
    return [draw(st.integers(0, 3)) for _ in range(unknowns)], rows, [draw(number) for _ in range(equations)]


@given(programs())
def test_the_simplex_method_finds_the_least_or_proves_that_there_is_none(program):
    cost, rows, right = program
    found = minimize(cost, rows, right)
    if found.is_feasible:
        assert min(found.values) >= 0 and dot(cost, found.values) == found.cost
        assert [dot(row, found.values) for row in rows] == right
    else:
        columns = list(zip(*rows, strict=True))
        assert all(dot(column, found.proof) <= 0 for column in columns) and dot(right, found.proof) > 0
    scipy = pytest.importorskip("scipy.optimize")
    theirs = scipy.linprog(cost, A_eq=rows, b_eq=right, method="highs")
    assert found.is_feasible == (theirs.status == 0)
    if found.is_feasible:
        assert abs(float(found.cost) - theirs.fun) < 1e-6


def test_a_cost_without_bound_has_no_solution():
    found = minimize([-1], [[0]], [0])
    assert not found.is_feasible and found.proof is None


@given(st.integers(1, 2).flatmap(lambda n: st.tuples(
    st.just(n), st.lists(st.tuples(st.tuples(*[st.integers(-2, 2)] * n), st.integers(-2, 4)), max_size=3),
    st.tuples(*[st.integers(-3, 3)] * n), st.integers(-3, 3),
)))  # fmt: skip
def test_farkas(case):
    """Lemma 7.1: multipliers exist exactly if the function is nowhere negative (here on quarter steps of a box)."""
    n, more, factors, constant = case
    box = Polyhedron.box("xy"[:n], [(-2, 2)] * n).where(*(Constraint(a, b) for a, b in more))
    steps = [Fraction(k, 4) for k in range(-8, 9)]
    points = [p for p in itertools.product(steps, repeat=n) if box.holds(p)]
    multipliers = farkas(box, factors, constant)
    if multipliers is not None:
        assert holds(multipliers, box, factors, constant)
        assert all(dot(factors, p) + constant >= 0 for p in points)
    elif points:
        # Somewhere it is negative: at a corner, which need not lie on the quarter steps, so ask for the least value.
        rows = [[*c.coefficients, *(-x for x in c.coefficients), *(-int(j == k) for j in range(len(box.constraints)))]
                for k, c in enumerate(box.constraints)]  # fmt: skip
        cost = [*factors, *(-x for x in factors), *[0] * len(box.constraints)]
        least = minimize(cost, rows, [-c.constant for c in box.constraints])
        assert least.cost + constant < 0


def test_multipliers_that_prove_nothing():
    box = Polyhedron.box(("x",), [(0, 4)])
    assert holds(Multipliers(Fraction(1), (Fraction(2), Fraction(0))), box, (2,), 1)
    assert not holds(Multipliers(Fraction(-1), (Fraction(2), Fraction(0))), box, (2,), -1)
    assert not holds(Multipliers(Fraction(0), (Fraction(1), Fraction(-1))), box, (2,), -4)
    assert not holds(Multipliers(Fraction(0), (Fraction(1), Fraction(0))), box, (2,), 0)
    assert Multipliers(Fraction(1), (Fraction(2), Fraction(0))).format(box) == "1 + 2*(x)"
    assert Multipliers(Fraction(0), (Fraction(0), Fraction(0))).format(box) == "0"


# -- schedules ---------------------------------------------------------------------------------------------------------


def assert_schedule(nest):
    found = dependences(nest)
    schedule = affine_schedule(found)
    assert isinstance(schedule, AffineSchedule), "a nest of known sizes has one: its own order, counted"
    assert check_schedule(found, schedule.coefficients, schedule.offsets)
    assert nest.run(schedule.instances()) == nest.execute()
    if len(nest.statements) == 1:
        for source, target in running_pairs(nest):
            assert schedule.date(source) < schedule.date(target)
        assert sum(map(len, schedule.wavefronts.values())) == len(nest.points())
        # What runs at the same time may run in any order.
        backwards = [p for points in schedule.wavefronts.values() for p in reversed(points)]
        assert nest.same_values(backwards)
    for margin in schedule.margins:
        assert margin.steps is None or margin.steps >= 1
        number = {s.name: k for k, s in enumerate(nest.statements)}
        d = margin.dependence
        shift = schedule.offsets[number[d.target]] - schedule.offsets[number[d.source]]
        for piece, multipliers in margin.proof:
            assert holds(multipliers, piece, schedule.coefficients, shift - 1)
        assert margin.proof or d.is_loop_independent
    return schedule


@pytest.mark.parametrize("name", WRITTEN)
def test_schedules_of_the_written_nests(name):
    assert_schedule(loop_nest(WRITTEN[name]))


@given(uniform_nests())
@settings(max_examples=40)
def test_schedules_of_uniform_nests(nest):
    assert_schedule(nest)


@given(affine_nests())
@settings(max_examples=40)
def test_schedules_of_any_affine_nests(nest):
    assert_schedule(nest)


@given(uniform_nests(depths=(2,)))
@settings(max_examples=30)
def test_no_schedule_of_small_whole_numbers_is_cheaper(nest):
    found = dependences(nest)
    schedule = affine_schedule(found)
    extents = [high - low for low, high in nest.extents]
    cost = sum(abs(c) * n for c, n in zip(schedule.coefficients, extents, strict=True))
    for c in itertools.product(range(-3, 4), repeat=2):
        if all(dot(c, v) >= 1 for v in found.distances):
            assert sum(abs(x) * n for x, n in zip(c, extents, strict=True)) >= cost - Fraction(1, 10)


def test_exercise_50():
    schedule = assert_schedule(loop_nest(STENCIL))
    assert schedule.coefficients == (2, 1) and schedule.theta == "theta(i, j) = 2*i + j"
    assert schedule.wavefronts[7] == ((1, 5), (2, 3), (3, 1)) and len(schedule.dates) == 14
    assert [m.steps for m in schedule.margins] == [2, 1, 1]
    found = schedule.dependences
    verdict = check_schedule(found, (1, 1))
    assert not verdict and verdict.distance == (1, -1) and "c . (1, -1) is 0" in verdict.reason
    assert check_schedule(found, (Fraction(5, 2), 1)) and not check_schedule(found, (2, Fraction(1, 2)))


def test_distances_of_two_may_share_a_date():
    nest = loop_nest("for i in range(2, 12):\n    w[i] = w[i - 2]")
    schedule = assert_schedule(nest)
    assert schedule.coefficients == (Fraction(1, 2),) and schedule.dates == (1, 2, 3, 4, 5)
    assert schedule.theta == "theta(i) = floor(1/2*i)"


def test_offsets_of_statements():
    nest = loop_nest("for i in range(2, 10):\n    a[i] = b[i]\n    b[i] = a[i - 2]\n    c[i] = b[i]")
    schedule = assert_schedule(nest)
    assert schedule.coefficients == (0,) and schedule.offsets == (0, 1, 2), "every statement for all i at once"
    assert not check_schedule(schedule.dependences, (0,)) and "plus 0 for S0" in str(schedule)


def test_at_open_sizes_there_may_be_none():
    sums = affine_schedule(
        dependences(loop_nest("for i in range(N):\n    for j in range(M):\n        s[i] += x[i, j]"))
    )
    assert sums.coefficients == (0, 1) and "steps - 1 = " in sums.format()
    none = affine_schedule(dependences(loop_nest("for i in range(N):\n    for j in range(M):\n        s += x[i, j]")))
    assert isinstance(none, NoSchedule) and not none and none.adds_up()
    assert "add up to the zero vector" in str(none) and "along (0, -1)" in str(none)
    # A certificate that does not add up, or claims distances that there are not, is none.
    d = none.shares[0].dependence
    for shares in (
        none.shares[:1],
        (Share(d, Fraction(1), (Fraction(-1), Fraction(0))), Share(d, Fraction(1), (Fraction(1), Fraction(0)))),
        (Share(d, Fraction(0), (Fraction(0), Fraction(0))),),
    ):
        assert not NoSchedule(none.dependences, shares).adds_up()
    with pytest.raises(Exception, match="open sizes"):
        _ = sums.wavefronts


@given(open_nests())
@settings(max_examples=25)
def test_at_open_sizes_there_is_a_schedule_for_all_sizes_or_a_proof(nest):
    found = dependences(nest)
    schedule = affine_schedule(found)
    if isinstance(schedule, NoSchedule):
        assert schedule.adds_up()
        return
    for closed in with_all_sizes(nest, 4):
        at_that_size = AffineSchedule(dependences(closed), schedule.coefficients, schedule.offsets)
        assert closed.run(at_that_size.instances()) == closed.execute()


def test_nothing_to_wait_for_runs_at_once():
    schedule = assert_schedule(loop_nest(WRITTEN["pointwise"]))
    assert schedule.coefficients == (0, 0) and len(schedule.dates) == 1
