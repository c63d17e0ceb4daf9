"""Exercise 4: its truth against the chapter and the compiler, and the feedback on particular answers."""

from __future__ import annotations

import random
from collections import deque

import pytest
import torch

import staxlab
from staxlab import learn
from staxlab.capture.gates import backward_slice
from staxlab.learn import slicing
from staxlab.learn.dispatching import failing_on, slice_late, slicing_early, slicing_late
from staxlab.learn.exercises import ex04, ex04_answers
from staxlab.learn.variants import variant_for

CHAPTER = ex04.Variant()


def check(part, seed=None, **answers):
    return learn.check(f"ex04.{part}", answers, seed=seed, record=False)


# --- The late slice ---------------------------------------------------------------------------------------------------


def test_the_truth_is_example_3_2():
    """2, -3 and 2 from three versions; the second call becomes twice its input when the slice is taken too late."""
    assert ex04.eager(CHAPTER) == ex04.early(CHAPTER).results == (2, -3, 2)
    assert ex04.late(CHAPTER).results == (2, -4, 2)
    assert len(ex04.early(CHAPTER).dispatcher.versions) == 3
    assert len(ex04.late(CHAPTER).dispatcher.versions) == 2


def test_the_early_series_is_what_the_public_compiler_does():
    compiled = staxlab.compile(CHAPTER.function(), backend="aot_eager")
    for call in CHAPTER.calls:
        compiled(ex04.matrix(call))
    assert len(compiled.versions) == 3
    # As in the chapter's log: first the gate alone, then the shape, and against the second version both.
    gates = [[sum(g.kind == "gate" for g in failed) for _, failed in reason.failures] for reason in compiled.recompiles]
    assert gates == [[1], [0, 1]]


def test_the_gate_is_dead_code_and_the_late_slice_is_empty():
    f = CHAPTER.function()
    assert staxlab.trace(f, torch.ones(4, 8)).replay is not None
    region = slice_late(f, (torch.ones(4, 8),), {})
    assert region.capture.replay is None and region.capture.gates == ()
    assert [node.name for node in region.capture.graph.calls] == ["mul"]


def test_a_gate_that_also_reaches_the_output_is_found_late_as_well():
    """The order matters only where the gate's computation is dead: here it is not."""

    def f(x):
        positive = x.sum() > 0
        return x * 2 if positive else x - 1, positive

    compiled = slicing_late(f)
    assert compiled(torch.ones(4))[0].tolist() == [2.0] * 4
    assert compiled(-torch.ones(4))[0].tolist() == [-2.0] * 4
    assert len(compiled.versions) == 2


def test_no_guard_of_the_late_version_fails():
    f = CHAPTER.function()
    for make, failing in ((slicing_early, 1), (slicing_late, 0)):
        compiled = make(f)
        compiled(torch.ones(4, 8))
        assert len(failing_on(compiled.versions[0], f, -2 * torch.ones(4, 8))) == failing
        assert len(failing_on(compiled.versions[0], f, torch.ones(4, 8))) == 0


@pytest.mark.parametrize("seed", [None, *range(6)])
def test_what_holds_and_what_does_not(seed):
    variant = variant_for(ex04.Variant, seed)
    assert ex04.corollary_holds(variant, ex04.late(variant))
    assert ex04.late(variant).results != ex04.eager(variant) == ex04.early(variant).results
    assert ex04.late(variant).results[1] != ex04.eager(variant)[1]


def test_results_say_which_calls_are_wrong():
    verdict = check(2, late_results=[2, -4, 3])["late_results"]
    assert verdict.credit == 0 and dict(verdict.facts)["wrong at"] == "call 3"


# --- The slice in linear time -----------------------------------------------------------------------------------------


def test_the_truth_is_what_the_algorithm_does():
    """Algorithm 3.1, written out and counted here, on the family and on random graphs."""
    rng = random.Random(1)
    graphs = [slicing.layers(n, w) for n in (1, 2, 3) for w in (1, 2, 3)] + [
        slicing.random_graph(rng) for _ in range(60)
    ]
    for graph in graphs:
        needed, popped, pending = set(), 0, list(graph.gate_numbers)
        while pending:
            popped += 1
            node = pending.pop()
            if node not in needed:
                needed.add(node)
                pending.extend(graph.edges[node])
        assert slicing.walk(graph) == slicing.Walk(len(needed), popped)
        assert needed == graph.ancestors()


def test_real_graphs_agree_with_brute_force():
    """The package's slice of a captured graph, against following edges until nothing is new."""

    def f(x):
        a = x.sum() > 0
        b = (x * x).amax() > 1
        return (x + 1 if a else x - 1) * (2 if b else 3)

    graph = staxlab.trace(f, torch.ones(4)).graph
    for node in graph:
        found = {node}
        while more := {source for each in found for source in each.inputs} - found:
            found |= more
        assert backward_slice([node]) == found


def test_layers_have_as_many_paths_as_they_should():
    assert slicing.walk_without_check(slicing.layers(4, 3)) == 3 + 9 + 27 + 81
    assert slicing.walk(slicing.layers(4, 3)) == slicing.Walk(12, 3 + 27)


def with_a_queue(inputs, gates):
    needed, pending = set(gates), deque(gates)
    while pending:
        for node in inputs[pending.popleft()]:
            if node not in needed:
                needed.add(node)
                pending.append(node)
    return needed


def by_recursion(inputs, gates):
    needed = set()

    def visit(node):
        if node not in needed:
            needed.add(node)
            for source in inputs[node]:
                visit(source)

    for gate in gates:
        visit(gate)
    return needed


def with_a_dictionary(inputs, gates):
    order = dict.fromkeys(gates)
    pending = list(order)
    for node in pending:
        fresh = [source for source in inputs[node] if source not in order]
        order.update(dict.fromkeys(fresh))
        pending += fresh
    return list(order)


def backwards_in_one_pass(inputs, gates):
    """Nodes are numbered in topological order: one pass from the last to the first."""
    needed = set(gates)
    for node in reversed(list(inputs)):
        if node in needed:
            needed.update(inputs[node])
    return frozenset(needed)


@pytest.mark.parametrize("function", [with_a_queue, by_recursion, with_a_dictionary, backwards_in_one_pass])
def test_other_linear_slices_are_right(function):
    verdict = check(1, slice_nodes=function)["slice_nodes"]
    assert verdict.credit == 1, verdict


def pending_as_a_list_without_repetition(inputs, gates):
    needed, pending = set(), list(gates)
    while pending:
        node = pending.pop()
        needed.add(node)
        for source in inputs[node]:
            if source not in needed and source not in pending:
                pending.append(source)
    return needed


def examines_all_edges_for_each_node(inputs, gates):
    table = {node: list(inputs[node]) for node in inputs}
    needed, pending = set(), list(gates)
    while pending:
        node = pending.pop()
        if node not in needed:
            needed.add(node)
            pending.extend(table[node])
            sources = inputs[node]
            for _ in range(len(table)):
                list(sources)
    return needed


@pytest.mark.parametrize(
    ("function", "mistake"),
    [
        (pending_as_a_list_without_repetition, "searches-a-list"),
        (examines_all_edges_for_each_node, "examines-edges-again"),
        (lambda inputs, gates: {node for node in inputs if node not in gates}, "gate-missing"),
        (lambda inputs, gates: set(), "gate-missing"),
        (lambda inputs, gates: {1}, "wrong-form"),
        (lambda inputs, gates: inputs[0], "failed-call"),
    ],
)
def test_other_wrong_slices(function, mistake):
    verdict = check(1, slice_nodes=function)["slice_nodes"]
    assert verdict.mistake == mistake, verdict


def test_an_exponential_walk_is_stopped_and_counted():
    verdict = check(1, slice_nodes=ex04_answers._without_the_check)["slice_nodes"]
    assert "once for every path" in verdict.message
    assert "look-ups" in dict(verdict.facts)["counted"] and "layers" in dict(verdict.facts)["graph"]
    graph = slicing.layers(40, 2)
    verdict = slicing._examine(_callee(ex04_answers._without_the_check), slicing._Case("layers of two", graph))
    assert verdict.mistake == "expands-again" and "stopped" in dict(verdict.facts)["counted"]


def _callee(function):
    field = next(field for field in ex04.PARTS[0].fields if field.name == "slice_nodes")
    return field.read(function, {})


def test_the_smallest_graph_that_fails_is_shown():
    facts = dict(check(1, slice_nodes=lambda inputs, gates: set(gates))["slice_nodes"].facts)
    assert facts["graph"].startswith("2 nodes; %1 reads %0; gates: %1")


def test_the_right_answer_says_what_was_counted():
    verdict = check(1, slice_nodes=ex04_answers.slice_nodes)["slice_nodes"]
    assert dict(verdict.facts)["steps per node or edge"] == "at most 1"
