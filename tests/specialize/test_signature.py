"""Signatures: what makes two arguments interchangeable for a compiled program, and what does not."""

from __future__ import annotations

import collections
import dataclasses
import gc

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from staxlab.errors import GuardError
from staxlab.specialize.signature import (
    aliasing,
    dynamic_tensor_signature,
    identity,
    memory_spans,
    signature,
    stride_expression,
)

Pair = collections.namedtuple("Pair", "a b")


@dataclasses.dataclass
class Config:
    width: int
    scale: float = 1.0


DISTINCT = [
    0, 1, 2, True, False, 0.0, -0.0, 1.0, float("nan"), float("inf"), None, "1", b"1", 1 + 0j, complex(0.0, -0.0), 0j,
    (), [], {}, (1,), [1], (1, 2), {"a": 1}, {"b": 1}, {1: 1}, {True: 1}, Pair(1, 2), Config(1), Config(2),
    Config(1, 2.0),
    torch.float32, torch.device("cpu"), torch.Size([1, 2]), slice(0, 2), slice(0, 2.0), range(3), int, float, len,
    torch.zeros(2), torch.zeros(2, 1), torch.zeros(2, dtype=torch.float64), torch.zeros(2, requires_grad=True),
    torch.zeros(2, 2), torch.zeros(2, 2).t(), torch.zeros(1, 2).expand(2, 2), torch.nn.Parameter(torch.zeros(2)),
]  # fmt: skip


def test_distinct_values_have_distinct_signatures():
    signatures = [signature(value) for value in DISTINCT]
    assert len(set(signatures)) == len(DISTINCT)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (float("nan"), -float("nan")),
        (torch.ones(3), torch.zeros(3)),
        (torch.ones(6)[:3], torch.ones(6)[3:]),  # the storage offset is not part of it
        ({"a": 1, "b": [2.0, "x"]}, {"a": 1, "b": [2.0, "x"]}),
        (Pair(1, None), Pair(1, None)),
        (Config(3), Config(3)),
        (slice(1, None), slice(1, None)),
    ],
)
def test_interchangeable_values_have_equal_signatures(a, b):
    assert signature(a) == signature(b)
    assert hash(signature(a)) == hash(signature(b))


def test_order_of_dict_keys_counts():
    assert signature({"a": 1, "b": 2}) != signature({"b": 2, "a": 1})


@pytest.mark.parametrize("value", [{1, 2}, frozenset({1}), iter([1]), (x for x in [1]), [1, {2}]])
def test_sets_and_iterators_are_refused_with_a_remedy(value):
    with pytest.raises(GuardError) as caught:
        signature(value)
    assert "pass a" in caught.value.remedy


plain = st.none() | st.booleans() | st.integers(-3, 3) | st.floats(allow_nan=True) | st.text(max_size=2)
nested = st.recursive(
    plain, lambda s: st.lists(s, max_size=2) | st.tuples(s, s) | st.dictionaries(st.text(max_size=1), s)
)


def strictly_equal(a, b) -> bool:
    """Equality as a program can see it: types, order and the sign of zero count, NaN equals NaN."""
    if type(a) is not type(b):
        return False
    if isinstance(a, float):
        return repr(a) == repr(b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(strictly_equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(strictly_equal, a, b))
    return a == b


@given(nested, nested)
def test_signatures_are_equal_exactly_for_equal_values(a, b):
    assert (signature(a) == signature(b)) == strictly_equal(a, b)


def test_identity_is_never_reused():
    class Thing:
        pass

    seen = set()
    for _ in range(200):  # freed objects give their ids back
        thing = Thing()
        assert identity(thing) is identity(thing)
        seen.add(identity(thing).serial)
        del thing
    assert len(seen) == 200


def test_identity_holds_its_object_weakly():
    class Thing:
        pass

    thing = Thing()
    token = identity(thing)
    assert token.get() is thing
    del thing
    gc.collect()
    assert token.get() is None


def test_row_major_tensors_of_every_size_share_a_stride_expression():
    assert stride_expression((4, 6), (6, 1)) == stride_expression((8, 2), (2, 1)) == (("size", 1, 1), 1)
    assert stride_expression((4, 4), (1, 4)) == (1, ("size", 0, 1))
    assert stride_expression((4, 3), (6, 2)) == (("size", 1, 2), 2)  # x[:, ::2] of a 4 x 6 tensor
    assert stride_expression((4, 3), (0, 1))[0] == 0  # expanded
    assert stride_expression((), ()) == ()


def test_dynamic_mode_needs_two_versions_for_squares_and_their_transposes():
    tensors = [f(torch.empty(n, n)) for n in (4, 6, 8) for f in (lambda t: t, lambda t: t.t())]
    assert len({dynamic_tensor_signature(t) for t in tensors}) == 2
    assert len({signature(t) for t in tensors}) == 6


@given(st.permutations(range(4)), st.lists(st.integers(2, 5), min_size=4, max_size=4))
def test_stride_expressions_evaluate_to_the_strides(order, sizes):
    tensor = torch.empty(sizes).permute(*order)

    def evaluate(expression):
        return expression if isinstance(expression, int) else tensor.shape[expression[1]] * evaluate(expression[2])

    assert tuple(map(evaluate, stride_expression(tensor.shape, tensor.stride()))) == tensor.stride()


def test_aliasing_sees_shared_memory_and_only_that():
    base = torch.zeros(10)
    assert aliasing([base, torch.zeros(10)]) == ()
    assert aliasing([base, base]) == ((0, 1, 0),)
    assert aliasing([base[2:4], torch.zeros(3), base]) == ((2, 0, 8),)
    assert aliasing([base[:5], base[5:]]) == ()
    assert aliasing([base[::2], base[1::2]]) == ((0, 1, 4),)  # interleaved: extents overlap
    assert aliasing([torch.zeros(0), torch.zeros(0)]) == ()
    assert aliasing([base[:3], base[1:]]) != aliasing([base[:3], base[2:]])


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(1, 6)), min_size=1, max_size=6))
def test_aliasing_is_empty_exactly_if_no_two_extents_meet(intervals):
    base = torch.zeros(30)
    tensors = [base[start : start + length] for start, length in intervals]
    overlap = any(
        a[0] < b[0] + b[1] and b[0] < a[0] + a[1] for i, a in enumerate(intervals) for b in intervals[i + 1 :]
    )
    assert bool(aliasing(tensors)) == overlap
    spans = memory_spans(tensors)
    assert all(a[1] <= b[0] for a, b in zip(spans, spans[1:], strict=False))
