"""Sizes that data decide: what is asked of them is answered from what is known, or written down."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from staxlab.learn.data_sizes import COMPARISONS, AssertionFailed, assertion, decided, watched

SAMPLE = torch.tensor([1.0, 0.0, 2.0, 0.0, 3.0])


def followed(program, sample=SAMPLE):
    x, watch = watched(sample)
    result = program(x, assertion(watch))
    return result, [(event.kind, event.text) for event in watch.events], watch


@given(st.integers(-3, 6), st.integers(0, 6), st.sampled_from(sorted(COMPARISONS)), st.integers(-5, 14))
def test_decided_is_trying_every_size(low, more, comparison, bound):
    answers = {COMPARISONS[comparison](u, bound) for u in range(low, low + more + 1)}
    assert decided(low, low + more, comparison, bound) is (answers.pop() if len(answers) == 1 else None)


@given(st.sampled_from(sorted(COMPARISONS)), st.integers(-2, 8), st.sampled_from([1, 2, -1]), st.integers(-2, 2))
def test_an_assertion_keeps_every_size_for_which_it_holds(comparison, bound, scale, offset):
    def program(x, check):
        n = x.nonzero().shape[0]
        check(scale * n + offset > -100)
        try:
            check(COMPARISONS[comparison](scale * n + offset, bound))
        except AssertionFailed:
            return None
        return True

    result, _, watch = followed(program)
    (size,) = watch.sizes
    allowed = [u for u in range(6) if COMPARISONS[comparison](scale * u + offset, bound)]
    assert (result is True) == (3 in allowed)
    if result:
        assert size.low == allowed[0] and size.high == allowed[-1] and size.low <= size.value <= size.high
    else:
        assert (size.low, size.high) == (0, 5)


WAYS = {
    "shape": lambda x: x.nonzero().shape[0],
    "size": lambda x: torch.nonzero(x).size(0),
    "sizes": lambda x: torch.argwhere(x).size()[0],
    "numel": lambda x: x[x != 0].numel(),
    "select": lambda x: x.masked_select(x != 0).shape[0],
    "tuple": lambda x: x.nonzero(as_tuple=True)[0].shape[0],
    "after an operator": lambda x: (x.nonzero() * 2 + 1).shape[0],
}


@pytest.mark.parametrize("name", WAYS)
def test_every_way_to_such_a_size_is_followed(name):
    def program(x, check):
        n = WAYS[name](x)
        n > 2  # noqa: B015 (a comparison alone asks nothing)
        if n >= 0 and not n > 9 and n > 2:
            check(n > 2)
        return x.sum() / n if n > 1 else None

    result, events, watch = followed(program)
    assert float(result) == 2.0 and watch.sizes[0].value == 3
    assert [kind for kind, _ in events] == ["decided", "decided", "undecided", "asserted", "decided"]
    assert events[2][1] == "u0 > 2"


READ = {
    "item": lambda x: x.sum().item(),
    "int": lambda x: int(x.sum()),
    "if": lambda x: 1 if x.any() else 2,
    "list": lambda x: x.tolist(),
    "length": lambda x: len(x.nonzero()),
    "range": lambda x: list(range(x.nonzero().shape[0])),
    "float": lambda x: float(x.nonzero().shape[0]),
    "equal": lambda x: torch.equal(x, x),
}


@pytest.mark.parametrize("name", READ)
def test_taking_a_number_out_is_written_down(name):
    assert "read" in [kind for kind, _ in followed(lambda x, check: READ[name](x))[1]]


def test_shapes_and_operators_ask_nothing():
    def program(x, check):
        y = torch.where(x > 0, x, 0) * x.shape[0]
        n = x.nonzero().shape[0]
        return y.sum() * n + (n + 1) - torch.ones(2).sum() * n

    result, events, _ = followed(program)
    assert events == [] and float(result) == 30 * 3 + 4 - 6


def test_conditions_on_data_are_asserted_and_teach_nothing():
    def program(x, check):
        n = x.nonzero().shape[0]
        check((x != 0).any())
        return bool(n > 0)

    result, events, _ = followed(program)
    assert result and events == [("asserted", "a condition on data"), ("undecided", "u0 > 0")]
    with pytest.raises(AssertionFailed, match="none"):
        assertion()(torch.zeros(2).any(), "none")
