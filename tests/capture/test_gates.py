"""Data gates and guard replay: what is asked, what must run to answer it, and when the slice must be taken."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from staxlab.capture.gates import backward_slice, gate, replay_graph, same_answer
from staxlab.capture.module import GraphModule
from staxlab.capture.tracer import trace
from staxlab.errors import CaptureError
from staxlab.transform.dce import eliminate_dead_code

X = torch.linspace(-2, 3, 12).reshape(3, 4)


def example_3_1(x):
    if x.sum() > 0:
        return x * 2
    return x - 1


def test_example_3_2_replay_contains_the_sum_and_the_comparison():
    capture = trace(example_3_1, (X,))
    (asked,) = capture.gates
    assert (asked.kind, asked.value, asked.location.text) == ("bool", True, "if x.sum() > 0:")
    assert [n.name for n in capture.replay.module.graph.calls] == ["sum", "gt"]
    assert capture.replay.evaluate([X]) == (True,)
    assert capture.replay.evaluate([-X]) == (False,)
    assert capture.replay.path_condition == "bool(%gt) == True"


def test_the_slice_must_be_taken_before_dead_code_elimination():
    """Corollary 3.1: afterwards the gate's computation is gone."""
    capture = trace(example_3_1, (X,))
    graph, mapping = capture.graph.copy()
    gates = tuple(type(g)(mapping[g.node], g.kind, g.value, g.location) for g in capture.gates)
    before = replay_graph(GraphModule(graph), gates)
    assert before.evaluate([X]) == (True,)
    eliminate_dead_code(graph)
    assert gates[0].node not in set(graph)
    with pytest.raises(KeyError):
        replay_graph(GraphModule(graph), gates)


KINDS = {
    "bool": lambda x: x if x.any() else -x,
    "int": lambda x: x * int(x.max()),
    "float": lambda x: x * float(x.max()),
    "index": lambda x: x * [1.0, 2.0, 3.0, 4.0][x.argmax() % 4],
    "complex": lambda x: x * complex(x.max()).real,
    "item": lambda x: x * x.max().item(),
    "tolist": lambda x: x * x.max(0).values.tolist()[0],
    "value": lambda x: x if torch.equal(x, x) else -x,
    "shape": lambda x: x[x > 0],
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_of_question_is_a_gate(kind):
    capture = trace(KINDS[kind], (X,))
    (asked,) = capture.gates
    assert asked.kind == kind and asked.location.file == __file__
    (answer,) = capture.replay.evaluate([X])
    assert same_answer(answer, asked.value) and type(answer) is type(asked.value)
    assert asked.condition in str(capture)


def test_gates_come_in_order_and_the_slice_is_their_common_history():
    def f(x):
        a = x.exp()
        unrelated = x.sin()
        if a.sum() > 0:
            b = a * 2
            if b.max() > 1 and unrelated is not None:
                return b
        return unrelated

    capture = trace(f, (X,))
    assert [g.condition for g in capture.gates] == ["bool(%gt)", "bool(%gt_0)"]
    assert "sin" not in [n.name for n in capture.replay.module.graph]
    assert capture.replay.evaluate([X]) == (True, True)


def test_only_the_inputs_the_gates_need_are_taken():
    capture = trace(lambda a, b, c: a + c if b.sum() > 0 else a, (X, X, X + 1))
    # b is the same tensor as a: the first placeholder stands for both
    assert capture.replay.uses == (0,)
    capture = trace(lambda a, b, c: a + c if b.sum() > 0 else a, (X, X * 2, X + 1))
    assert capture.replay.uses == (1,)


def test_backward_slice_is_ancestors():
    graph = trace(lambda x: (x.exp() + x.sin()).sum() * x.cos(), (X,)).graph
    assert {n.name for n in backward_slice([graph.find("sum")])} == {"x", "exp", "sin", "add", "sum"}


def test_writes_before_a_gate_belong_to_the_replay_and_are_undone():
    def f(x):
        y = x.clone()
        view = y[0]
        view.add_(100)
        x.mul_(2)
        if y.sum() > x.sum():
            return y
        return x

    x = X.clone()
    capture = trace(f, (x,))
    assert torch.equal(x, X)
    assert capture.replay.writes
    small = torch.full((3, 4), 1000.0)
    before = small.clone()
    assert capture.replay.evaluate([X]) == (True,) and capture.replay.evaluate([small]) == (False,)
    assert torch.equal(small, before)


def test_draws_before_a_gate_belong_to_the_replay_and_the_generator_is_forked():
    def f(x):
        noise = torch.rand(3)
        if torch.rand(()) > 0.5:
            return x + noise.sum()
        return x

    torch.manual_seed(5)
    capture = trace(f, (X,))
    assert capture.replay.draws and [n.name for n in capture.replay.module.graph.calls] == ["rand", "rand_0", "gt"]
    for seed in range(8):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        torch.rand(3)
        expected = bool(torch.rand(()) > 0.5)
        torch.manual_seed(seed)
        assert capture.replay.evaluate([X]) == (expected,)
        assert torch.equal(torch.get_rng_state(), state)


def test_a_gate_without_draws_needs_no_generator():
    def f(x):
        noise = torch.rand(3)
        return noise if x.sum() > 0 else x

    assert not trace(f, (X,)).replay.draws


def test_gates_on_several_results_and_shapes():
    def f(x):
        values, indices = torch.unique(x, return_inverse=True)
        return values if indices.max() > 2 else x

    capture = trace(f, (X,))
    assert [g.kind for g in capture.gates] == ["shape", "bool"]
    assert capture.gates[0].value == ((12,), (3, 4))


def test_integer_indexing_is_no_gate():
    i = torch.tensor([0, 2])
    assert not trace(lambda x: x[i] + x.index_select(0, i), (X,)).gates


def test_gate_keeps_a_value_dynamic():
    def f(x):
        n = gate(x.sum())
        return x * n if n.ndim == 0 else x

    capture = trace(f, (X,))
    assert not capture.gates and torch.equal(capture(X * 3), f(X * 3))
    assert gate(torch.ones(1, 1)).shape == ()
    with pytest.raises(CaptureError, match="one-element"):
        gate(torch.ones(2))
    with pytest.raises(TypeError):
        gate(3)
    # A question about it is still a gate.
    assert len(trace(lambda x: x if gate(x.sum()) > 3 else -x, (X,)).gates) == 1


def test_opaque_nodes_are_known():
    capture = trace(lambda i: torch.nn.functional.one_hot(i), (torch.tensor([1, 2]),))
    assert [n.name for n in capture.opaque_nodes] == ["one_hot"]
    assert not trace(example_3_1, (X,)).opaque_nodes


answers = st.recursive(
    st.booleans() | st.integers(-2, 2) | st.sampled_from([0.0, -0.0, 1.0, math.nan]), lambda s: st.lists(s, max_size=2)
)


@given(answers, answers)
def test_same_answer_is_identity_of_text(a, b):
    assert same_answer(a, b) == (repr(a) == repr(b))


@given(st.lists(st.integers(-3, 3), min_size=4, max_size=4), st.lists(st.integers(-3, 3), min_size=4, max_size=4))
def test_proposition_3_1_equal_answers_exactly_for_equal_paths(a, b):
    """Replay on b gives a's answers if and only if running on b takes a's path."""

    def path_of(x):
        taken = []

        def f(t):
            for i in range(3):
                if t[i] > t[i + 1]:
                    taken.append((i, True))
                    t = t.flip(0)
                else:
                    taken.append((i, False))
                    if int(t[i]) == 1:
                        taken.append("one")
                        return t
                    taken.append(int(t[i]))
            return t

        return f, taken

    first, second = torch.tensor(a), torch.tensor(b)
    f, path = path_of(first)
    capture = trace_quietly(f, first)
    g, other = path_of(second)
    g(second)
    assert (capture.replay.evaluate([second]) == tuple(gate.value for gate in capture.gates)) == (path == other)


def trace_quietly(f, x):
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return trace(f, (x,))
