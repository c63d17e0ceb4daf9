"""Guards are a projection of the key: the failing ones are exactly the differing components (Corollary 2.1)."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from staxlab.specialize.ambient import read_ambient
from staxlab.specialize.guards import MISSING, failing_guards, guards
from staxlab.specialize.signature import compute_key

tensors = st.builds(
    lambda shape, dtype, transpose, grad: (lambda t: t.t() if transpose and t.ndim == 2 else t)(
        torch.zeros(shape, dtype=dtype)
    ).requires_grad_(grad and dtype.is_floating_point),
    st.lists(st.integers(0, 3), max_size=3),
    st.sampled_from([torch.float32, torch.float64, torch.int64]),
    st.booleans(),
    st.booleans(),
)
scalars = (
    st.none() | st.booleans() | st.integers(-1, 1) | st.sampled_from([0.0, -0.0, 1.0, float("nan")]) | st.text("ab")
)
values = st.recursive(
    tensors | scalars,
    lambda s: st.lists(s, max_size=2) | st.dictionaries(st.sampled_from("xy"), s, max_size=2),
    max_leaves=4,
)
calls = st.tuples(
    st.lists(values, max_size=3),
    st.dictionaries(st.sampled_from(["k", "m"]), values, max_size=1),
    st.lists(st.booleans() | st.integers(0, 1) | st.floats(0, 1), max_size=2),
)


def key_of(call):
    args, kwargs, gates = call
    return compute_key(tuple(args), kwargs, gates=gates, gate_names=("first", "second"))


@given(calls, calls)
def test_guards_hold_exactly_if_the_keys_are_equal(a, b):
    first, second = key_of(a), key_of(b)
    assert (not failing_guards(first, second)) == (first == second)
    assert (not failing_guards(second, first)) == (first == second)


@given(calls, calls)
def test_failing_guards_are_exactly_the_differing_components(a, b):
    first, second = key_of(a), key_of(b)
    mine, theirs = first.components(), second.components()

    def differs(path):
        return path not in theirs or type(mine[path]) is not type(theirs[path]) or mine[path] != theirs[path]

    assert [g.path for g in failing_guards(first, second)] == [path for path in mine if differs(path)]


@given(calls)
def test_every_guard_of_a_key_holds_for_itself(call):
    key = key_of(call)
    assert all(guard.holds for guard in guards(key))
    assert not failing_guards(key, key_of(call))


def test_a_guard_says_what_was_expected_and_what_came():
    def name(index):
        return ("x", "k")[index]

    first = compute_key((torch.zeros(4, 8), 3), {}, parameter_name=name)
    second = compute_key((torch.zeros(6, 8), 3.0), {}, parameter_name=name)
    failed = {guard.path: str(guard) for guard in failing_guards(first, second)}
    assert failed == {
        "x.shape[0]": "x.shape[0] == 4 (got 6)",
        "type(k)": "type(k) is int (got float)",
        "k": "k == 3 (got 3.0)",
    }


def test_a_component_the_other_key_lacks_is_absent():
    first = compute_key((torch.zeros(2, 3),), {})
    second = compute_key((torch.zeros(2),), {})
    failed = {guard.path: guard.actual for guard in failing_guards(first, second)}
    assert failed["args[0].shape[1]"] is MISSING and failed["args[0].ndim"] == 1


def test_ambient_state_is_part_of_the_key():
    def key():
        return compute_key((torch.zeros(2),), {})

    base = key()
    with torch.no_grad():
        assert [g.path for g in failing_guards(base, key())] == ["grad_mode"]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert [g.path for g in failing_guards(base, key())] == ["autocast"]
    with torch.inference_mode():
        assert {g.path for g in failing_guards(base, key())} == {"grad_mode", "inference_mode"}
    torch.set_default_dtype(torch.float64)
    try:
        assert "default_dtype" in {g.path for g in failing_guards(base, key())}
    finally:
        torch.set_default_dtype(torch.float32)
    torch.use_deterministic_algorithms(True)
    try:
        assert [g.path for g in failing_guards(base, key())] == ["deterministic"]
    finally:
        torch.use_deterministic_algorithms(False)
    with torch.device("cpu"):
        assert read_ambient().default_device == "cpu"
    assert base == key()


def test_key_prints_one_component_a_line():
    text = str(compute_key((torch.zeros(2),), {"scale": 2.0}))
    assert "args[0].shape[0] == 2" in text and "scale == 2.0" in text and "grad_mode == True" in text
