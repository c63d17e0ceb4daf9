"""Distance vectors: against running through all accesses, and against the integer set library."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings

from staxlab.errors import ScheduleError
from staxlab.polyhedral import dependences, loop_nest, loop_nests
from staxlab.polyhedral.distances import by_running, running_pairs
from staxlab.polyhedral.polyhedron import Constraint, Polyhedron, Undecided
from tests.polyhedral.nests import STENCIL, WRITTEN, affine_nests, uniform_nests


def every_distance(found):
    """All distances of all pieces, listed or not."""
    depth = found.nest.depth
    return {v for d in found.found for piece in d.pieces for v in piece.points(depth) if any(v)}


def assert_right(nest):
    found = dependences(nest)
    real = by_running(nest)
    assert every_distance(found) == real
    for d in found.found:
        inside = {v for piece in d.pieces for v in piece.points(nest.depth)}
        if d.is_finite:
            assert set(d.distances) == inside
        for k, (low, high) in enumerate(d.ranges):
            assert low == min(v[k] for v in inside) and high == max(v[k] for v in inside)
    return found


@pytest.mark.parametrize("name", WRITTEN)
def test_the_distances_are_those_met_when_the_nest_runs(name):
    assert_right(loop_nest(WRITTEN[name]))


@given(uniform_nests())
def test_uniform_distances_are_those_met_when_the_nest_runs(nest):
    found = assert_right(nest)
    assert all(d.is_uniform for d in found.found)


@given(affine_nests())
def test_distances_of_any_subscripts_are_those_met_when_the_nest_runs(nest):
    assert_right(nest)


@given(affine_nests())
@settings(max_examples=30)
def test_isl_finds_the_same_distances(nest):
    islpy = pytest.importorskip("islpy")
    for d in dependences(nest).found:
        theirs = []
        for piece in d.pieces:
            shadow = piece.isl().project_out(islpy.dim_type.set, nest.depth, len(piece.names) - nest.depth)
            shadow.foreach_point(theirs.append)
        theirs = {
            tuple(p.get_coordinate_val(islpy.dim_type.set, k).to_python() for k in range(nest.depth)) for p in theirs
        }
        assert theirs == {v for piece in d.pieces for v in piece.points(nest.depth)}


def test_kinds_say_who_writes():
    in_place = dependences(loop_nest("for i in range(1, N - 1):\n    w[i] = w[i - 1] + w[i + 1]"))
    assert {(d.kind, d.distances) for d in in_place.found} == {("RAW", ((1,),)), ("WAR", ((1,),))}
    overwritten = dependences(loop_nest("for i in range(N):\n    for j in range(N):\n        s[j] = x[i, j]"))
    assert [(d.kind, d.direction) for d in overwritten.found] == [("WAW", "(+, 0)")]
    assert dependences(loop_nest("for i in range(N):\n    y[i] = x[i] + x[i - 1]")).found == ()


def test_exercise_50s_distances_at_any_size():
    open_sizes = STENCIL.replace("6", "N").replace("7", "M")
    assert dependences(loop_nest(open_sizes)).distances == ((0, 1), (1, -1), (1, 0))
    large = dependences(loop_nest(open_sizes, N=100_000, M=1_000_000))
    assert large.distances == ((0, 1), (1, -1), (1, 0)) and large.is_finite


def test_a_linear_address_knows_where_rows_end():
    text = """
    for i in range(8192):
        for j in range(2048):
            w[2048 * i + j + 2048] = w[2048 * i + j] + w[2048 * i + j + 2050]
    """
    found = {d.kind: d.distances for d in dependences(loop_nest(text)).found}
    assert found == {"RAW": ((1, 0),), "WAR": ((0, 2), (1, -2046))}


def test_statements_of_one_iteration_keep_their_order():
    text = "for i in range(N):\n    a[i] = x[i]\n    y[i] = a[i]"
    (only,) = dependences(loop_nest(text)).found
    assert only.is_loop_independent and only.distances == ((0,),) and dependences(loop_nest(text)).carried == ()
    swapped = "for i in range(N):\n    y[i] = a[i]\n    a[i] = x[i]"
    assert [d.kind for d in dependences(loop_nest(swapped)).found] == ["WAR"]


def test_what_may_be_says_why():
    (war, raw, waw) = dependences(loop_nest("for i in range(9):\n    h[k[i]] += x[i]")).found
    assert not waw.exact and waw.reason == "a subscript is read from data" and "may be" in str(waw)
    assert waw.merges and waw.direction == "(+,)" and waw.ranges == ((1, 8),)
    (product,) = dependences(loop_nest("for i in range(1, 9):\n    y[i * i] = x[i]")).found
    assert not product.exact and "i*i is not linear" in product.reason
    inside = dependences(loop_nest("for i in range(9):\n    y[3 * i + i % 2] = x[i]"))
    assert inside.found == (), "the remainder is known to be 0 or 1"


def test_merging_is_seen_and_can_be_left_out():
    assert dependences(loop_nest(WRITTEN["sum of rows"])).without_merges().found == ()
    # The element is read by the rest of the statement as well, or not merged into itself.
    kept = dependences(loop_nest("for i in range(9):\n    s += s * x[i]")).without_merges()
    assert len(kept.found) == 3
    assert dependences(loop_nest("for i in range(1, 9):\n    s[i] = s[i - 1] + x[i]")).without_merges().found


def test_untouched_loops():
    rows = dependences(loop_nest(WRITTEN["sum of rows"]))
    assert rows.untouched(0) and not rows.untouched(1)
    scatter = "for i in range(5):\n    for j in range(M):\n        y[4 * k[i] + j] += x[i, j]"
    assert dependences(loop_nest(scatter, M=4)).untouched(1), "columns of rows of four"
    assert not dependences(loop_nest(scatter, M=5)).untouched(1), "the fifth column is the first of the next row"


def test_what_cannot_be_decided_is_expected_to_be_there(monkeypatch):
    found = dependences(loop_nest(WRITTEN["sum of all"]))

    def undecided(self):
        raise Undecided("no time")

    monkeypatch.setattr(Polyhedron, "sample", undecided)
    assert not found.untouched(0)
    with pytest.raises(Undecided):
        found.found[0].find(Constraint((1, 0), 0))


def test_sets_of_distances_hold_every_distance():
    for text in WRITTEN.values():
        for d in dependences(loop_nest(text)).found:
            for piece in d.pieces:
                assert all(any(s.holds(v) for s in d.distance_sets) for v in piece.points(d.depth))


def test_format_and_counting():
    found = dependences(loop_nest(STENCIL))
    assert "3 dependences" in found.format() and "RAW w (1, -1)  S0: w[i, j] -> S0: w[i - 1, j + 1]" in str(found)
    assert "no iteration depends on another" in str(dependences(loop_nest(WRITTEN["pointwise"])))
    pairs = running_pairs(loop_nest("for i in range(1, 4):\n    w[i] = w[i - 1]"))
    assert pairs == {((1,), (2,)), ((2,), (3,))}


# -- nests written down ------------------------------------------------------------------------------------------------


def test_reading_a_nest():
    nest = loop_nest("for i in range(N):\n    for j in range(i, min(N, 9)):\n        s = s + w[i, 2 * j - 1] * alpha")
    (statement,) = nest.statements
    assert nest.names == ("i", "j") and [p.name for p in nest.parameters] == ["N"]
    assert list(map(str, statement.reads)) == ["s", "w[i, 2*j - 1]"] and list(map(str, statement.writes)) == ["s"]
    closed = nest.with_sizes(N=4)
    assert len(closed.points()) == 10 and closed.extents == ((0, 3), (0, 3))
    assert repr(nest) == "<LoopNest i, j: 1 statements>"
    with pytest.raises(ScheduleError, match="open sizes"):
        nest.points()
    with pytest.raises(ScheduleError, match="no open size"):
        nest.with_sizes(M=3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("while True:\n    pass", "not a statement"),
        ("for i in range(3):\n    print(i)", "not a statement"),
        ("for i in range(0, 9, 2):\n    w[i] = 1", "count up by one"),
        ("for i in w:\n    w[i] = 1", "not a loop"),
        ("for i in range(3):\n    for i in range(3):\n        w[i] = 1", "already the name"),
        ("for i in range(3):\n    i = 4", "assigned to"),
        ("for i in range(3):\n    w[i].x = 4", "not an element"),
        ("for i in range(3):\n    w[f(i)] = 4", "not a subscript"),
        ("for i in range(N * M):\n    w[i] = 4", "no sum of loop variables"),
        ("for i in range(3):\n   w[i] = 4\n  x", "no Python"),
        ("for i in range(3):\n    w[i] = 4\nfor i in range(3):\n    w[i] = 4", "2 loop nests"),
    ],
)
def test_what_is_no_nest_is_refused_in_words(text, message):
    with pytest.raises(ScheduleError, match=message) as caught:
        loop_nest(text)
    assert caught.value.what


def test_large_nests_are_analysed_and_not_listed():
    nest = loop_nest("for i in range(1000):\n    for j in range(1000):\n        w[i, j] = w[i - 1, j]")
    assert dependences(nest).distances == ((1, 0),)
    with pytest.raises(ScheduleError, match="iterations"):
        nest.points()


def test_running_mixes_all_that_is_read_and_is_the_same_every_time():
    nest = loop_nest(STENCIL)
    memory = nest.execute()
    assert len(memory) == 30 and memory == nest.execute() and len(set(memory.values())) == 30
    assert not nest.same_values(list(nest.points())[:-1]) and not nest.same_values([(1, 1)] * 30)
    torch.manual_seed(0)
    shuffled = [nest.points()[k] for k in torch.randperm(30).tolist()]
    assert not nest.same_values(shuffled)
    first, second = loop_nests("for i in range(3):\n    a[i] = 1\nfor i in range(3):\n    b[i] = a[i]")
    assert first.same_values(reversed(first.points())) and second.same_values(reversed(second.points()))
