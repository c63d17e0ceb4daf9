"""What Section 5.4 asks about each value, on random graphs, against definitions that follow every path one by one."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.autodiff.graph import JointGraph
from staxlab.autodiff.network import INFINITE, maximum_flow
from staxlab.autodiff.partition import partition, rematerialization_network
from staxlab.autodiff.values import FARTHEST, FUSING, forward_values
from staxlab.capture.graph import Graph, TensorMeta
from staxlab.capture.module import GraphModule
from tests.autodiff.test_partition import feasible_sets

CALL = torch.ops.aten.add.Tensor  # what a node computes is of no interest here; its kind is told by its name
KINDS = [
    "pointwise",
    "pointwise",
    "view",
    "storage view",
    "reduction",
    "library",
    "normalization",
    "indexing",
    "random",
]


def meta(size):
    return TensorMeta((size,), (1,), torch.float32, torch.device("cpu"))


@st.composite
def graphs(draw, most=9):
    """A joint graph of made-up operations, and the function that tells their kinds."""
    graph = Graph()
    primals = [graph.placeholder(name, val=meta(8)) for name in "xy"]
    kinds = dict.fromkeys(primals, "input")
    known = list(primals)
    for _ in range(draw(st.integers(1, most))):
        kind = draw(st.sampled_from(KINDS))
        count = 1 if "view" in kind else draw(st.integers(1, 2))
        reads = [known[-1 - draw(st.integers(0, 4)) % len(known)] for _ in range(count)]
        size = draw(st.sampled_from([1, 2, 8, 8, 64]))
        node = graph.call_function(CALL, tuple(reads), val=meta(size))
        kinds[node] = kind
        known.append(node)
    calls = known[2:]
    results = draw(st.lists(st.sampled_from(calls), min_size=1, max_size=2, unique=True))
    tangent = graph.placeholder("tangent", val=meta(8))
    kinds[tangent] = "input"
    backward = [tangent]
    for _ in range(draw(st.integers(1, 5))):
        read = draw(st.sampled_from(known))
        other = draw(st.sampled_from(backward))
        kind = draw(st.sampled_from(["pointwise", "pointwise", "reduction", "library", "view"]))
        node = graph.call_function(CALL, (read,) if kind == "view" else (read, other), val=meta(8))
        kinds[node] = kind
        backward.append(node)
    gradients = (draw(st.sampled_from(backward[1:])), draw(st.one_of(st.none(), st.sampled_from(calls))))
    graph.set_output((tuple(results), gradients))
    joint = JointGraph(
        GraphModule(graph), (meta(8), meta(8)), tuple(primals), (tangent, *[None] * (len(results) - 1)), tuple(results),
        gradients, frozenset(backward), (), saved_by_eager=tuple(calls),
    )  # fmt: skip
    return joint, kinds.__getitem__


def paths_to_readers(joint, kind_of, node, through):
    """Every chain of forward readers of a node (itself first) such that ``through(reader)`` holds for all but the
    first, and then the last one's readers that end it."""
    waiting = [(node,)]
    while waiting:
        chain = waiting.pop()
        for user in chain[-1].users:
            yield chain, user
            if user.op != "output" and through(user):
                waiting.append((*chain, user))


@settings(max_examples=150)
@given(graphs())
def test_distances_are_those_of_the_shortest_chain(drawn):
    joint, kind_of = drawn
    returned = {node for node in joint.gradients if node is not None}
    for value in forward_values(joint, kind_of):
        steps = []
        for chain, user in paths_to_readers(joint, kind_of, value.node, lambda n: n not in joint.backward):
            if user in joint.backward:
                steps.append(sum(kind_of(node) != "view" for node in chain))
            steps += [1 + sum(kind_of(n) != "view" for n in chain[:k]) for k, n in enumerate(chain) if n in returned]
        if value.node in returned:
            steps.append(1)
        assert value.distance == max(1, min([*steps, FARTHEST])), value


@settings(max_examples=150)
@given(graphs())
def test_a_value_is_in_u_for_the_reasons_of_the_section(drawn):
    joint, kind_of = drawn
    returned = {node for node in joint.gradients if node is not None}
    for value in forward_values(joint, kind_of):
        node, kind = value.node, kind_of(value.node)
        if "view" in kind:
            assert not value.source
            continue
        reasons = [kind in ("library", "random", "normalization")]
        reasons.append(node in returned)
        reasons.append(kind == "reduction" and 4 * node.val.nbytes < sum(read.val.nbytes for read in node.inputs))
        for chain, user in paths_to_readers(joint, kind_of, node, lambda n: kind_of(n) == "view"):
            if chain[-1] in returned and chain[-1] is not node:
                reasons.append(True)
            if user.op == "output":
                continue
            in_backward = user in joint.backward
            kind_of_user = kind_of(user)
            if in_backward and kind_of_user != "view" and kind_of_user not in FUSING:
                reasons.append(True)
            if kind_of_user == "storage view" and not in_backward:  # it wants memory, if anything is to be had of it
                reasons.append(wanted(joint, kind_of, user, returned))
        forced = value.source.startswith(("read nearby", "the last of"))
        assert bool(value.source) == (any(reasons) or forced), (value, reasons)
        if forced:
            assert not any(reasons)


def wanted(joint, kind_of, view, returned):
    """Whether the backward pass reads a view, or a view of it wants it in memory."""
    if view in returned or any(user in joint.backward for user in view.users):
        return True
    return any(
        wanted(joint, kind_of, user, returned) for user in view.users if user.op != "output" and "view" in kind_of(user)
    )


@settings(max_examples=150)
@given(graphs())
def test_the_cut_of_any_graph_is_the_cheapest_feasible_set(drawn):
    joint, kind_of = drawn
    values = forward_values(joint, kind_of)
    flow = maximum_flow(rematerialization_network(values))
    prices = {value.node: value.capacity for value in values}
    best = min((math.fsum(prices[n] for n in chosen) for chosen in feasible_sets(values)), default=INFINITE)
    assert flow.value == pytest.approx(best, rel=1e-9)
    if not flow.is_finite:
        return
    part = partition(joint, kind_of=lambda node: kind_of(node) if node in joint.graph.nodes else "pointwise")
    assert math.fsum(prices[node] for node in part.cut) == pytest.approx(best, rel=1e-12)
    for value in values:
        if value.source and value.is_read and not value.unsavable:
            assert value.node in part.saved  # Exercise 10
    assert not any(value.source and value.node in part.recomputed for value in values)


@settings(max_examples=300)
@given(graphs())
def test_what_is_in_memory_anyway(drawn):
    joint, kind_of = drawn
    for value in forward_values(joint, kind_of):
        kind = kind_of(value.node)
        own = kind in ("library", "random", "reduction") or value.node in joint.outputs
        if kind == "normalization":
            own = own or 4 * value.node.val.nbytes < sum(read.val.nbytes for read in value.node.inputs)
        for chain, user in paths_to_readers(joint, kind_of, value.node, lambda n: kind_of(n) == "view"):
            own = own or any(node in joint.outputs for node in chain)
            if user.op != "output" and user not in joint.backward and kind_of(user) != "view":
                own = own or kind_of(user) not in FUSING
        assert value.beta == (1 if own else 2), value


def test_a_view_of_any_kind_is_never_forced_to_be_saved():
    """It cannot be: what it looks at is. Found by random graphs, as a storage view read before and after a draw."""
    graph = Graph()
    meta = TensorMeta((8,), (1,), torch.float32, torch.device("cpu"))
    call = lambda *args: graph.call_function(torch.ops.aten.add.Tensor, args, {}, val=meta)  # noqa: E731
    x, tangent = graph.placeholder("x", val=meta), graph.placeholder("tangents_1", val=meta)
    seen = call(x)
    drawn = call(seen)
    near_and_far = call(seen, drawn)
    gradient = call(tangent, near_and_far)
    graph.set_output(((near_and_far,), (gradient,)))
    joint = JointGraph(
        GraphModule(graph), (meta, meta), (x,), (tangent,), (near_and_far,), (gradient,),
        frozenset({tangent, gradient}), (),
    )  # fmt: skip
    kinds = {x: "input", tangent: "input", seen: "storage view", drawn: "random"}
    values = {value.node: value for value in forward_values(joint, lambda node: kinds.get(node, "pointwise"))}
    assert not values[seen].source and values[drawn].source
    kinds[seen] = "pointwise"
    values = {value.node: value for value in forward_values(joint, lambda node: kinds.get(node, "pointwise"))}
    assert values[seen].source.startswith("read nearby and far away")
