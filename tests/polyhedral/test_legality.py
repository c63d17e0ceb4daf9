"""Theorems 7.2 and 7.3 and Proposition 7.3: each verdict against all pairs of iterations that depend on each other."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.errors import ScheduleError
from staxlab.polyhedral import (
    dependences,
    fully_permutable,
    fusion,
    interchange,
    loop_nest,
    loop_nests,
    parallel_loops,
    permutation,
    reversal,
    skewing,
    tile_order,
    tiling,
    transformation,
)
from staxlab.polyhedral.distances import by_running, running_pairs
from staxlab.polyhedral.integers import apply, identity, lexicographic_sign
from staxlab.polyhedral.polyhedron import Polyhedron, Undecided
from tests.polyhedral.nests import (
    STENCIL,
    WRITTEN,
    affine_nests,
    open_nests,
    uniform_nests,
    unimodular,
    with_all_sizes,
)


def keeps_all_pairs(nest, order):
    """Whether every pair runs in order, and every iteration once."""
    position = {point: k for k, point in enumerate(order)}
    assert sorted(position) == sorted(nest.points())
    return all(position[s] < position[t] for s, t in running_pairs(nest))


def assert_verdict(verdict, real, found, rows=None):
    assert verdict.legal == bool(verdict) == real, verdict
    if real:
        assert verdict.distance is None
        return
    # The witness is a distance that the nest really has, and what is said of it is true.
    inside = {v for piece in verdict.dependence.pieces for v in piece.points(found.nest.depth)}
    assert verdict.distance in inside and str(verdict.distance).replace(" ", "") in verdict.reason.replace(" ", "")
    if rows is not None:
        assert verdict.image == apply(rows, verdict.distance) and lexicographic_sign(verdict.image) <= 0


def transformed_order(nest, rows):
    return sorted(nest.points(), key=lambda x: apply(rows, x))


def check_transformation(nest, rows):
    found = dependences(nest)
    verdict = transformation(found, rows)
    order = transformed_order(nest, rows)
    assert_verdict(verdict, keeps_all_pairs(nest, order), found, rows)
    if verdict:
        assert nest.same_values(order)


NESTS = st.one_of(uniform_nests(), affine_nests())


@given(NESTS.flatmap(lambda nest: st.tuples(st.just(nest), unimodular(nest.depth))))
def test_a_transformation_is_legal_exactly_if_it_keeps_all_pairs(case):
    check_transformation(*case)


@pytest.mark.parametrize("name", WRITTEN)
def test_all_orders_and_reversals_of_the_written_nests(name):
    nest = loop_nest(WRITTEN[name])
    for order in itertools.permutations(range(nest.depth)):
        for signs in itertools.product((1, -1), repeat=nest.depth):
            rows = tuple(
                tuple(sign * int(k == j) for j in range(nest.depth)) for k, sign in zip(order, signs, strict=True)
            )
            check_transformation(nest, rows)


SIZES = (1, 2, 3, 100)


def all_tilings_keep_all_pairs(nest):
    every = itertools.product(SIZES, repeat=nest.depth)
    return all(keeps_all_pairs(nest, list(tile_order(nest.points(), sizes))) for sizes in every)


@given(NESTS)
@settings(max_examples=60)
def test_a_nest_may_be_tiled_exactly_if_it_is_fully_permutable(nest):
    found = dependences(nest)
    verdict = tiling(found)
    assert_verdict(verdict, all_tilings_keep_all_pairs(nest), found)
    every_order = all(permutation(found, order) for order in itertools.permutations(range(nest.depth)))
    if verdict:
        assert every_order


@pytest.mark.parametrize("name", WRITTEN)
def test_tiling_of_the_written_nests(name):
    nest = loop_nest(WRITTEN[name])
    found = dependences(nest)
    assert_verdict(fully_permutable(found), all_tilings_keep_all_pairs(nest), found)


@given(NESTS)
def test_a_loop_is_parallel_exactly_if_no_pair_differs_there_first(nest):
    found = dependences(nest)
    pairs = running_pairs(nest)
    for place, verdict in enumerate(parallel_loops(found)):
        differing = [next(k for k, (a, b) in enumerate(zip(s, t, strict=True)) if a != b) for s, t in pairs]
        assert_verdict(verdict, place not in differing, found)
        assert verdict.legal or "it carries distance" in verdict.reason


@given(uniform_nests(depths=(2, 3)), st.data())
def test_an_inner_band_need_not_care_for_what_outer_loops_carry(nest, data):
    found = dependences(nest)
    first = data.draw(st.integers(1, nest.depth - 1))
    pairs = running_pairs(nest)
    inside = [
        tuple(b - a for a, b in zip(s, t, strict=True))[first:] for s, t in pairs if s[:first] == t[:first]
    ]  # fmt: skip
    assert tiling(found, range(first, nest.depth)).legal == all(min(v) >= 0 for v in inside)


def test_exercise_50():
    found = dependences(loop_nest(STENCIL))
    verdict = interchange(found, "i", "j")
    assert not verdict and verdict.distance == (1, -1) and verdict.image == (-1, 1)
    assert verdict.format() == (
        "interchange of i and j: not legal (Theorem 7.2): distance (1, -1) becomes (-1, 1), which is not "
        "lexicographically positive"
    )
    assert not tiling(found) and "negative in j" in tiling(found).reason
    assert skewing(found, "j", "i") and not reversal(found, "i") and not reversal(found, 1)
    assert tiling(found, rows=((1, 0), (1, 1))) and interchange(found, 0, -2).legal
    after = parallel_loops(found, ((2, 1), (1, 1)))
    assert [v.legal for v in after] == [False, True], "the wavefronts of 2 i + j are parallel inside"
    assert [v.legal for v in parallel_loops(found)] == [False, False]


@given(uniform_nests(depths=(2, 3)), st.integers(-3, 3))
def test_skewing_an_inner_loop_by_an_outer_one_is_always_legal(nest, factor):
    assert skewing(dependences(nest), nest.depth - 1, 0, factor)


def test_verdicts_hold_for_every_size():
    found = dependences(loop_nest(STENCIL.replace("6", "N").replace("7", "M")))
    assert not interchange(found, "i", "j") and tiling(found, rows=((1, 0), (1, 1)))
    sums = dependences(loop_nest("for i in range(N):\n    for j in range(M):\n        s[i] += x[i, j]"))
    assert interchange(sums, "i", "j") and not reversal(sums, "j") and reversal(sums, "i") and tiling(sums)
    assert reversal(sums.without_merges(), "j")
    everything = dependences(loop_nest("for i in range(N):\n    for j in range(M):\n        s += x[i, j]"))
    verdict = interchange(everything, "i", "j")
    assert not verdict and verdict.distance is not None and lexicographic_sign(verdict.distance) > 0
    assert lexicographic_sign(verdict.image) < 0


@given(open_nests().flatmap(lambda nest: st.tuples(st.just(nest), unimodular(nest.depth))))
@settings(max_examples=25)
def test_a_verdict_at_open_sizes_is_that_of_all_sizes(case):
    nest, rows = case
    verdict = transformation(dependences(nest), rows)
    small = [n for n in with_all_sizes(nest, 4) if n.points()]
    kept = all(keeps_all_pairs(n, transformed_order(n, rows)) for n in small)
    assert kept or not verdict
    if kept and not verdict:  # then a larger size has the distance that forbids it
        where = (n for n in with_all_sizes(nest, 12) if verdict.distance in by_running(n))
        assert next(where, None) is not None, verdict


def test_what_may_be_there_forbids_and_says_so():
    histogram = dependences(loop_nest("for i in range(9):\n    h[k[i]] = x[i]"))
    verdict = reversal(histogram, "i")
    assert not verdict and "may not exist" in verdict.reason and "read from data" in verdict.reason


def test_what_is_no_reordering_is_refused():
    found = dependences(loop_nest(STENCIL))
    verdict = transformation(found, [[2, 0], [0, 1]])
    assert not verdict and "determinant is 2" in verdict.reason
    assert "determinant is 0" in transformation(found, [[1, 1], [1, 1]]).reason
    for rows in ([[1, 0]], [[1, 0, 0], [0, 1, 0]], [[1]]):
        with pytest.raises(ScheduleError, match="transforms 2 loops"):
            transformation(found, rows)
    with pytest.raises(ScheduleError, match="no loop 'k'"):
        interchange(found, "i", "k")
    with pytest.raises(ScheduleError, match="no loop 2"):
        reversal(found, 2)
    with pytest.raises(ScheduleError, match="every loop once"):
        permutation(found, ["i", "i"])
    with pytest.raises(ScheduleError, match="consecutive"):
        tiling(found, ["j", "i"])
    with pytest.raises(ScheduleError, match="by another loop"):
        skewing(found, "i", "i")


def test_nothing_is_legal_that_was_not_proved(monkeypatch):
    found = dependences(loop_nest(WRITTEN["sum of all"]))

    def undecided(self):
        raise Undecided("no time")

    monkeypatch.setattr(Polyhedron, "sample", undecided)
    verdicts = [transformation(found, identity(2)), tiling(found), *parallel_loops(found)]
    assert not any(verdicts) and all("nothing was proved" in verdict.reason for verdict in verdicts)


# -- Proposition 7.3 ---------------------------------------------------------------------------------------------------


def two(read, n=8):
    return loop_nests(f"for i in range({n}):\n    B[i] = A[i]\nfor i in range(2, {n} - 2):\n    C[i] = {read}")


@pytest.mark.parametrize(
    ("read", "distance", "sequential", "parallel"),
    [("B[i]", 0, True, True), ("B[i - 1]", 1, True, False), ("B[i + 1]", -1, False, False),
     ("B[i] + B[i - 2]", 2, True, False), ("B[i] * B[i + 2]", -2, False, False)],
)  # fmt: skip
def test_exercises_19_and_33(read, distance, sequential, parallel):
    verdict = fusion(*two(read))
    assert (verdict.sequential.legal, verdict.parallel.legal) == (sequential, parallel)
    assert (distance,) in {v for d in verdict.distances for v in d.distances}
    wrong = verdict.parallel
    assert wrong.legal or wrong.distance == (distance,)
    open_size = fusion(*two(read, "N"))
    assert (open_size.sequential.legal, open_size.parallel.legal) == (sequential, parallel)


def fused_keeps_order(first, second, parallel):
    """By all pairs of accesses: in the fused loop the first nest's iteration i runs before the second's."""

    def touched(nest):
        for point in nest.points():
            values = dict(zip(nest.names, point, strict=True))
            for statement in nest.statements:
                for access, writes in statement.accesses:
                    yield (access.array, *(s.evaluate(values) for s in access.subscripts)), point, writes

    for place, source, wrote in touched(first):
        for other, target, writes in touched(second):
            if place == other and (wrote or writes):
                if target < source or (parallel and target != source):
                    return False
    return True


@given(uniform_nests(depths=(1, 2)), st.data())
@settings(max_examples=60)
def test_fusion_is_legal_exactly_if_no_pair_is_turned_round(first, data):
    second = data.draw(uniform_nests(depths=(first.depth,)))
    verdict = fusion(first, second)
    assert verdict.sequential.legal == fused_keeps_order(first, second, parallel=False)
    assert verdict.parallel.legal == fused_keeps_order(first, second, parallel=True)
    assert verdict.sequential or not verdict.parallel


def test_nests_may_share_their_outer_loops_only():
    rows, divided = loop_nests("""
for i in range(4):
    for k in range(5):
        s[i] += x[i, k]
for i in range(4):
    for j in range(5):
        y[i, j] = x[i, j] / s[i]
""")
    assert fusion(rows, divided, shared=1).parallel and not fusion(rows, divided).sequential
    apart = loop_nests("for i in range(4):\n    a[i] = 1\nfor i in range(4):\n    b[i] = c[i]")
    assert "share no element" in str(fusion(*apart))
