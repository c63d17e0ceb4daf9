"""The layered layout: boxes do not overlap, edges go down, and the same graph is drawn the same way every time."""

from __future__ import annotations

import itertools
import shutil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab.view.layout import _by_dot, layered, nearest_with_gaps, place


@st.composite
def graphs(draw):
    count = draw(st.integers(1, 14))
    sizes = tuple((float(draw(st.integers(20, 200))), float(draw(st.integers(20, 60)))) for _ in range(count))
    pairs = [(a, b) for b in range(count) for a in range(b)]
    edges = draw(st.lists(st.sampled_from(pairs), max_size=24)) if pairs else []
    return sizes, tuple(dict.fromkeys(edges))


def check(sizes, edges, placement):
    assert len(placement.centres) == len(sizes) and len(placement.curves) == len(edges)
    boxes = [
        (x - w / 2, y - h / 2, x + w / 2, y + h / 2) for (x, y), (w, h) in zip(placement.centres, sizes, strict=True)
    ]
    for left, top, right, bottom in boxes:
        assert left >= -0.5 and top >= -0.5 and right <= placement.width + 0.5 and bottom <= placement.height + 0.5
    for one, other in itertools.combinations(boxes, 2):
        apart = (
            one[2] <= other[0] + 0.5 or other[2] <= one[0] + 0.5 or one[3] <= other[1] + 0.5 or other[3] <= one[1] + 0.5
        )
        assert apart, (one, other)
    for (a, b), curve in zip(edges, placement.curves, strict=True):
        assert (len(curve) - 1) % 3 == 0 and len(curve) >= 4
        assert placement.centres[a][1] < placement.centres[b][1]
        assert touches(boxes[a], curve[0]) and touches(boxes[b], curve[-1])


def touches(box, point, slack=2.5):
    left, top, right, bottom = box
    x, y = point
    inside = left - slack <= x <= right + slack and top - slack <= y <= bottom + slack
    deep = left + slack < x < right - slack and top + slack < y < bottom - slack
    return inside and not deep


@given(graphs())
def test_the_layered_layout(graph):
    sizes, edges = graph
    check(sizes, edges, layered(sizes, edges))


@pytest.mark.skipif(shutil.which("dot") is None, reason="graphviz is not installed")
@pytest.mark.parametrize(
    "sizes,edges",
    [
        (((60, 30),), ()),
        (((60, 30),) * 5, ((0, 2), (1, 2), (2, 3), (3, 4), (0, 4))),
        (((200, 60), (40, 40), (90, 30)), ((0, 2), (1, 2))),
    ],
)
def test_the_layout_by_dot_keeps_the_same_promises(sizes, edges):
    placement = _by_dot(shutil.which("dot"), sizes, edges)
    assert placement is not None, "dot did not answer"
    assert placement == place(sizes, edges)
    check(sizes, edges, placement)


def test_without_dot_the_layered_layout_is_used(monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    sizes, edges = ((60.0, 30.0), (60.0, 30.0)), ((0, 1),)
    assert place(sizes, edges) == layered(sizes, edges)


def test_a_dot_that_fails_is_replaced(tmp_path):
    broken = tmp_path / "dot"
    broken.write_text("#!/bin/sh\necho nonsense\nexit 0\n")
    broken.chmod(0o755)
    sizes, edges = ((60.0, 30.0), (60.0, 30.0)), ((0, 1),)
    assert place(sizes, edges, program=str(broken)) == layered(sizes, edges)


def test_the_order_has_no_crossing_where_none_is_needed():
    # 0 -> 3, 1 -> 2: kept in the given order the two edges would cross.
    placement = layered(((50.0, 30.0),) * 4, ((0, 3), (1, 2)))
    x = [centre[0] for centre in placement.centres]
    assert (x[0] < x[1]) == (x[3] < x[2])


def test_a_chain_is_straight():
    placement = layered(((50.0, 30.0), (80.0, 30.0), (60.0, 30.0)), ((0, 1), (1, 2)))
    assert len({x for x, _ in placement.centres}) == 1


def test_an_empty_graph():
    assert place((), ()).centres == ()


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=8), st.data())
def test_nearest_positions_keep_their_gaps_and_beat_any_shift(wanted, data):
    gaps = data.draw(st.lists(st.floats(0, 10), min_size=len(wanted) - 1, max_size=len(wanted) - 1))
    found = nearest_with_gaps(wanted, gaps)
    assert all(b - a >= gap - 1e-6 for a, b, gap in zip(found, found[1:], gaps, strict=False))
    cost = sum((a - b) ** 2 for a, b in zip(found, wanted, strict=True))
    # Feasible neighbours of the answer, made by moving a prefix left or a suffix right, are never better.
    for k in range(len(found)):
        for step in (0.1, 1.0):
            left = [v - step if j <= k else v for j, v in enumerate(found)]
            right = [v + step if j >= k else v for j, v in enumerate(found)]
            for other in (left, right):
                assert sum((a - b) ** 2 for a, b in zip(other, wanted, strict=True)) >= cost - 1e-6
