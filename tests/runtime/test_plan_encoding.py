"""Values as text and back: equal in type and in every bit, or refused."""

from __future__ import annotations

import json
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from staxlab import native
from staxlab.codegen.wrapper_calls import empty_on_cuda, in_layout, written
from staxlab.runtime.plan_encoding import CALLED, NotEncodable, decode, encode, text_of

_LEAVES = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.complex_numbers(), st.text(),
    st.sampled_from([
        torch.float32, torch.bfloat16, torch.bool, torch.strided, torch.contiguous_format, torch.channels_last,
        torch.device("cpu"), torch.device("cuda", 1), ..., torch.Size([2, 3]), torch.Size([]),
        torch.ops.aten.add.Tensor, torch.ops.aten.relu.default, torch.ops.aten.sum.dim_IntList,
    ]),
    st.frozensets(st.integers()),
)  # fmt: skip
VALUES = st.recursive(
    _LEAVES,
    lambda parts: st.one_of(
        st.lists(parts),
        st.lists(parts).map(tuple),
        st.dictionaries(st.text(), parts),
        st.tuples(parts, parts, parts).map(lambda three: slice(*three)),
    ),
    max_leaves=12,
)


def same(one, other) -> bool:
    """Equal, with equal types all the way down, and equal bits of numbers (NaN counts as one)."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return one.hex() == other.hex()
    if isinstance(one, complex):
        return same(one.real, other.real) and same(one.imag, other.imag)
    if isinstance(one, slice):
        return same((one.start, one.stop, one.step), (other.start, other.stop, other.step))
    if isinstance(one, dict):
        return same([*one.items()], [*other.items()])
    if isinstance(one, (list, tuple)) and not isinstance(one, torch.Size):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other


@given(VALUES)
def test_what_is_written_is_read_again(value):
    assert same(decode(json.loads(text_of(value))), value)


@given(VALUES, VALUES)
def test_equal_texts_mean_equal_values(one, other):
    assert (text_of(one) == text_of(other)) == same(one, other)


def test_values_that_python_takes_for_equal_are_told_apart():
    values = [0, 0.0, -0.0, False, 0j, "", None, (), [], {}, torch.Size([]), frozenset(), (0,), [0], (False,), (0.0,)]
    assert len({text_of(value) for value in values}) == len(values)
    assert math.isnan(decode(encode(math.nan)))


def test_functions_that_wrappers_call_have_names():
    for function in (in_layout, written, native.empty, torch.as_strided, torch.empty_strided):
        assert decode(encode(function)) is function
    assert decode(encode(torch._C._nn.linear)) is torch._C._nn.linear
    assert len({*map(id, CALLED.values())}) == len(CALLED) > 10
    for index in (None, 0, 1):
        device = torch.device("cuda") if index is None else torch.device("cuda", index)
        assert decode(encode(empty_on_cuda(device))).allocates_on == device


class Whole(int):
    """Neither a bool nor an int."""


@pytest.mark.parametrize(
    "value",
    [object(), torch.zeros(1), torch.Generator(), len, lambda: 0, Whole(1), (Whole(1),), b"bytes", {1, 2},
     frozenset("a"), torch.ops.aten.add, type("Named", (tuple,), {})((1,)), [1, [object()]]],
)  # fmt: skip
def test_anything_else_is_refused(value):
    with pytest.raises(NotEncodable):
        encode(value)


@pytest.mark.parametrize(
    "text",
    [[], ["x"], {}, 1.5, ["dtype", "Tensor"], ["dtype", "no_such"], ["called", "eval"], ["operator", "aten::nothing"],
     ["operator", "os::system"], ["layout", "float32"], ["f", "text"], ["d", [1]], ["operator", "aten::add.__init__"]],
)  # fmt: skip
def test_text_that_is_never_written_is_refused(text):
    with pytest.raises((ValueError, KeyError, AttributeError, TypeError)):
        decode(text)
