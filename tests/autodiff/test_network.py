"""Maximum flow and minimum cut (Theorem 5.2): against SciPy, against every cut there is, and path by path."""

from __future__ import annotations

import itertools
import math

import numpy
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.autodiff.network import INFINITE, FlowNetwork, capacity_text, maximum_flow
from staxlab.errors import ConstraintError


@st.composite
def networks(draw, capacity=None):
    """Networks with parallel and opposite edges, loops at a vertex, and edges into the source."""
    capacity = st.integers(0, 9) if capacity is None else capacity
    count = draw(st.integers(2, 7))
    vertex = st.integers(0, count - 1)
    edges = draw(st.lists(st.tuples(vertex, vertex, capacity), max_size=18))
    return FlowNetwork.of(count, edges, 0, count - 1)


def cuts(network):
    """(capacity, source side) of every cut."""
    others = [v for v in range(network.size) if v not in (network.source, network.sink)]
    for size in range(len(others) + 1):
        for chosen in itertools.combinations(others, size):
            side = {network.source, *chosen}
            yield math.fsum(c for u, v, c in network.edges if u in side and v not in side), side


@settings(max_examples=200)
@given(networks())
def test_the_value_is_that_of_scipy(network):
    from scipy.sparse import csr_matrix
    from scipy.sparse.csgraph import maximum_flow as reference

    capacities = numpy.zeros((network.size, network.size), dtype=numpy.int32)
    for tail, head, capacity in network.edges:
        capacities[tail, head] += capacity
    expected = reference(csr_matrix(capacities), network.source, network.sink).flow_value
    assert maximum_flow(network).value == expected


@settings(max_examples=200)
@given(networks(st.one_of(st.integers(0, 9), st.just(INFINITE), st.floats(0, 1e9, allow_nan=False))))
def test_the_cut_is_the_smallest_of_all(network):
    flow = maximum_flow(network)
    smallest = min(capacity for capacity, _ in cuts(network))
    assert flow.is_finite == (smallest != INFINITE)
    if not flow.is_finite:
        assert flow.cut == () and flow.paths[-1].bottleneck == INFINITE
        assert all(network.capacities[arc // 2] == INFINITE and arc % 2 == 0 for arc in flow.paths[-1].arcs)
        return
    assert flow.cut_capacity == pytest.approx(smallest, rel=1e-9, abs=1e-9)
    assert flow.value == pytest.approx(smallest, rel=1e-9, abs=1e-9)
    assert network.source in flow.reachable and network.sink not in flow.reachable
    crossing = [e for e, (u, v, _) in enumerate(network.edges) if u in flow.reachable and v not in flow.reachable]
    assert flow.cut == tuple(crossing)


@settings(max_examples=200)
@given(networks())
def test_it_is_a_flow(network):
    flow = maximum_flow(network)
    balance = [0] * network.size
    for (tail, head, capacity), amount in zip(network.edges, flow.on_edges, strict=True):
        assert 0 <= amount <= capacity
        balance[tail] -= amount
        balance[head] += amount
    assert balance[network.sink] == flow.value == -balance[network.source]
    assert not any(balance[v] for v in range(network.size) if v not in (network.source, network.sink))


@settings(max_examples=200)
@given(networks())
def test_every_path_is_a_shortest_augmenting_path(network):
    """Edmonds and Karp's rule, checked on the residual network before each path."""
    flow = maximum_flow(network)
    value, before = 0, 0
    for number, path in enumerate(flow.paths):
        rooms = flow.residuals(number)
        assert path.vertices[0] == network.source and path.vertices[-1] == network.sink
        for arc, (tail, head) in zip(path.arcs, itertools.pairwise(path.vertices), strict=True):
            assert (network.arc_heads[arc ^ 1], network.arc_heads[arc]) == (tail, head)
        assert path.bottleneck == min(rooms[arc] for arc in path.arcs) > 0
        assert len(path.arcs) == distance(network, rooms) >= before
        value, before = value + path.bottleneck, len(path.arcs)
        assert path.flow == value
    assert value == flow.value and distance(network, flow.residuals()) is None
    assert len(flow.paths) <= network.size * max(len(network.tails), 1) / 2


def distance(network, rooms):
    """The arcs between source and sink in a residual network, by trying walks of ever greater length."""
    level, seen = {network.source}, {network.source}
    for length in range(network.size):
        if network.sink in level:
            return length
        level = {network.arc_heads[a] for v in level for a in network.arcs_from[v] if rooms[a] > 0} - seen
        seen |= level
    return None


def test_residuals_of_the_textbook_network():
    """Two paths, of which a greedy choice would take a third through the middle and need its arc back."""
    s, a, b, t = range(4)
    edges = [(s, a, 1), (s, b, 1), (a, b, 1), (a, t, 1), (b, t, 1)]
    flow = maximum_flow(FlowNetwork.of(4, edges, s, t, ["s", "a", "b", "t"]))
    assert flow.value == 2 and len(flow.paths) == 2 and flow.on_edges == (1, 1, 0, 1, 1)
    assert flow.residuals(0)[:2] == [1, 0] and flow.residuals(1)[:2] == [0, 1]
    assert "path 1: s -> a -> t, pushes 1, flow 1" in flow.format()
    assert "minimum cut: s -> a, s -> b" in flow.format()


def test_flow_is_taken_back_where_that_is_needed():
    """The shortest path takes an arc that the maximum flow must give back."""
    s, a, b, c, d, t = range(6)
    edges = [(s, a, 1), (a, d, 1), (d, t, 1), (s, b, 1), (b, c, 1), (c, d, 1), (a, c, 1), (c, t, 0), (a, b, 1)]
    edges += [(a, 6, 1), (6, 7, 1), (7, t, 1)]
    flow = maximum_flow(FlowNetwork.of(8, edges, s, t))
    assert flow.value == 2 and flow.on_edges[1] == 0
    assert any(arc % 2 for path in flow.paths for arc in path.arcs)


@pytest.mark.parametrize(
    "arguments",
    [
        (2, [], 0, 0),
        (2, [(0, 2, 1)], 0, 1),
        (2, [(0, 1, -1)], 0, 1),
        (2, [(0, 1, math.nan)], 0, 1),
    ],
)
def test_what_is_no_network_is_refused(arguments):
    with pytest.raises(ConstraintError):
        FlowNetwork.of(*arguments)


def test_capacities_are_rounded_for_reading_only():
    assert capacity_text(9011.2) == "9,011" and capacity_text(0) == "0" and capacity_text(9_999_999) == "9,999,999"
    assert capacity_text(2 * 8192 * 1.1**100) == "2.26e8" and capacity_text(1e7) == "1.00e7"
    assert capacity_text(INFINITE) == "∞"
