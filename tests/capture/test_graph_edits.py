"""Edits of a graph are put down and settled later; whoever reads must not be able to tell."""

from __future__ import annotations

import operator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab.capture.graph import Graph, nodes_in
from staxlab.errors import TransformError


def chain(count):
    graph = Graph()
    nodes = [graph.placeholder("x")]
    for _ in range(count):
        nodes.append(graph.call_method("exp", (nodes[-1],)))
    return graph, nodes


def test_insertions_land_before_their_node_in_the_order_made():
    graph, (x, one, two) = chain(2)
    with graph.inserting_before(two):
        a = graph.call_method("sin", (one,))
        b = graph.call_method("cos", (a,))
        with graph.inserting_before(b):
            c = graph.call_method("tan", (a,))
    assert graph.nodes == (x, one, a, c, b, two) and len(graph) == 6
    graph.check()


def test_an_insertion_before_an_erased_node_keeps_its_place():
    graph, (x, one, two) = chain(2)
    with graph.inserting_before(two):
        new = graph.call_method("sin", (one,))
    graph.erase(two)
    assert graph.nodes == (x, one, new)


def test_an_insertion_before_a_node_of_another_graph_is_refused():
    graph, _ = chain(1)
    _, (_, foreign) = chain(1)
    with graph.inserting_before(foreign):
        graph.call_method("sin", ())
    with pytest.raises(TransformError, match="not in the graph"):
        len(graph)


def test_a_node_is_erased_once():
    graph, (_, one) = chain(1)
    graph.erase(one)
    with pytest.raises(TransformError, match="not in the graph"):
        graph.erase(one)
    assert len(graph) == 1
    with pytest.raises(TransformError, match="not in the graph"):
        graph.erase(one)


def test_freed_names_are_given_again_smallest_first():
    graph, nodes = chain(5)
    assert [node.name for node in nodes] == ["x", "exp", "exp_0", "exp_1", "exp_2", "exp_3"]
    graph.erase(nodes[-1])
    graph.erase(nodes[-2])
    assert [graph.call_method("exp", ()).name for _ in range(3)] == ["exp_2", "exp_3", "exp_4"]
    copy, _ = graph.copy()
    assert copy.call_method("exp", ()).name == graph.call_method("exp", ()).name == "exp_5"


def test_inputs_are_replaced_through_several_steps_and_back():
    graph = Graph()
    a, b, c = (graph.placeholder(name) for name in "abc")
    wide = graph.call_function(operator.add, ([a, b, a], {"k": c}))
    a.replace_all_uses_with(b)
    b.replace_all_uses_with(c)
    c.replace_all_uses_with(a)  # a comes back
    assert wide.args == ([a, a, a], {"k": a}) and wide.inputs == (a,)
    assert list(a.users) == [wide] and not b.users and not c.users
    wide.replace_input(a, 5)
    assert wide.args == ([5, 5, 5], {"k": 5}) and not a.users


def test_origins_are_united_when_read():
    graph, (x, one, two) = chain(2)
    one.replace_all_uses_with(x)
    two.replace_all_uses_with(x)
    assert x.origins == x.origins | one.origins | two.origins == {0, 1, 2}
    x.origins = frozenset({7})
    assert x.origins == {7}


def inputs_are_current(node):
    """``inputs`` are found once and kept: they must be those of the arguments as they are now."""
    return node.inputs == tuple(dict.fromkeys(nodes_in((node.args, node.kwargs))))


def test_inputs_follow_the_arguments():
    graph = Graph()
    a, b, c = (graph.placeholder(name) for name in "abc")
    node = graph.call_function(operator.add, ([a, b], a), {"k": (c, {"j": b})})
    assert node.inputs == (a, b, c)
    node.args = (b,)
    assert node.inputs == (b, c) and not a.users
    node.kwargs = {}
    assert node.inputs == (b,) and not c.users
    node.replace_input(b, (a, [c]))
    assert node.inputs == (a, c) and node.args == ((a, [c]),)
    twin = graph.copy()[1][node]
    assert [one.name for one in twin.inputs] == ["a", "c"] and not set(twin.inputs) & {a, c}


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 30), st.integers(0, 30)), max_size=40))
def test_settling_late_and_at_once_are_the_same(edits):
    """The same edits, on a graph that is read after each and on one that is read at the end."""
    results = []
    for at_once in (True, False):
        graph, order = chain(6)
        order.append(graph.call_function(operator.add, (tuple(order), order[1:3])))
        for kind, i, j in edits:
            first, second = order[i % len(order)], order[j % len(order)]
            if kind == 0 and order.index(first) < order.index(second):
                second.replace_all_uses_with(first)
            elif kind == 1 and not first.users and first.op != "placeholder":
                graph.erase(first)
                order.remove(first)
            elif kind == 2:
                with graph.inserting_before(second):
                    order.insert(order.index(second), graph.call_method("sin", ()))
            if at_once:
                graph.check()
                assert list(graph.nodes) == order and all(map(inputs_are_current, graph))
        graph.check()
        assert all(map(inputs_are_current, graph))
        results.append((str(graph), [sorted(node.origins) for node in graph]))
    assert results[0] == results[1]
