"""Sizes that depend on data (Section 10.5, Proposition 10.4): what is decided, what is stated, what becomes a gate."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab

SAMPLES = [
    [1.0, -1.0, 2.0, 0.0], [3.0, 4.0, -1.0, 5.0, 1.0], [1.0, 1.0], [-1.0, -2.0, 3.0], [0.5, 0.0, 7.0, 7.0, 2.0, 1.0]
]  # fmt: skip


def dynamic(function):
    return staxlab.compile(function, dynamic=True, backend="eager")


def check(function, versions: int, samples=SAMPLES, gates: bool = False):
    """Eager's values on every sample, from so many versions; whether any of them has a data gate."""
    compiled = dynamic(function)
    for values in samples:
        x = torch.tensor(values)
        torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0, equal_nan=True)
    assert len(compiled.versions) == versions
    assert any(v.key.gamma_g for v in compiled.versions) is gates
    return compiled


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x[x > 0] * 2 + 1,
        lambda x: x.masked_select(x > 0).relu().sum(),
        lambda x: x.nonzero()[:, 0] * 3,
        lambda x: torch.unique(x) - 1,
        lambda x: (lambda y: y * y.shape[0])(x[x > 0]),
        lambda x: (lambda y: y.reshape(y.size(0), 1) @ y.reshape(1, -1))(torch.masked_select(x, x > 0)),
        lambda x: x.new_zeros(x.nonzero().shape[0] + 1) + 1,
        lambda x: torch.cat([x[x > 0], x[x <= 0]]).view(x.shape[0]),
    ],
    ids=["mask", "masked_select", "nonzero", "unique", "its size", "size twice", "allocation", "both halves"],
)
def test_one_version_serves_every_count(function):
    check(function, 1)


def test_what_the_range_settles_is_decided():
    """A count is not negative and at most the number of elements, whatever the data."""

    def function(x):
        n = x.nonzero().shape[0]
        return x + 1 if n >= 0 and not n < 0 and n + 1 > 0 else x - 1

    compiled = check(function, 1)
    assert "n >= 0" not in compiled.versions[0].compilation.graph.format()


def test_what_is_stated_is_known_and_checked_at_every_call():
    def function(x):
        n = x.nonzero().shape[0]
        torch._check(n > 0, lambda: "nothing is there")
        return x / n if n > 0 else x

    compiled = check(function, 1)
    for run in (compiled, function):
        with pytest.raises(RuntimeError, match="nothing is there"):
            run(torch.zeros(4))


def test_a_statement_that_fails_on_the_sample_raises_as_in_eager_execution():
    def function(x):
        torch._check_value(x.nonzero().shape[0] > 1, lambda: "too few")
        return x * 2

    with pytest.raises(ValueError, match="too few"):
        dynamic(function)(torch.zeros(4))
    compiled = dynamic(function)
    assert torch.equal(compiled(torch.ones(4)), 2 * torch.ones(4))
    with pytest.raises(ValueError, match="too few"):
        compiled(torch.zeros(5))


def test_an_undecided_question_is_a_data_gate():
    """As without dynamic mode: the number decides the version."""
    samples = [[1.0, 0.0], [1.0, 1.0], [0.0, 0.0], [2.0, 0.0, 0.0], [0.0, 5.0]]
    compiled = check(lambda x: x * 2 if x.nonzero().shape[0] > 1 else x + 1, 3, samples, gates=True)
    assert len({v.key.gamma_g for v in compiled.versions}) == 3


def test_a_loop_over_what_was_found_has_a_version_for_each_count():
    def function(x):
        total = x.sum()
        for _ in range(x.nonzero().shape[0]):
            total = total * 2
        return total

    check(function, 2, [[1.0, 0.0], [1.0, 1.0], [0.0, 3.0]], gates=True)


def test_two_counts_may_be_equal_or_not():
    def function(x):
        a, b = x[x > 0], x[x < 0]
        return a + b if a.shape[0] == b.shape[0] else torch.cat([a, b])

    check(function, 2, [[1.0, -1.0], [1.0, 2.0, -1.0], [2.0, -5.0, 0.0]], gates=True)


def test_without_dynamic_mode_a_count_is_a_gate_as_ever():
    compiled = staxlab.compile(lambda x: x[x > 0] * 2, backend="eager")
    for values in ([1.0, -1.0, 2.0], [1.0, 3.0, -2.0], [1.0, 1.0, 1.0]):
        x = torch.tensor(values)
        assert torch.equal(compiled(x), x[x > 0] * 2)
    assert len(compiled.versions) == 2 and all(v.key.gamma_g for v in compiled.versions)


def test_gradients_flow_through_a_selection_of_any_size():
    compiled = dynamic(lambda x: (x[x > 0] * 3).sum() / x[x > 0].shape[0])
    for values in SAMPLES:
        x, y = (torch.tensor(values, requires_grad=True) for _ in range(2))
        compiled(x).backward()
        ((y[y > 0] * 3).sum() / y[y > 0].shape[0]).backward()
        assert torch.equal(x.grad, y.grad)
    assert len(compiled.versions) == 1


STEPS = {
    "select": lambda x: x[x > 0],
    "count": lambda x: x * x.nonzero().shape[0],
    "unique": torch.unique,
    "pad": lambda x: torch.cat([x, x.new_zeros(x.shape[0] + 1)]),
    "half": lambda x: x[: x.shape[0] // 2],
    "branch": lambda x: x + 1 if x.shape[0] > 2 else x - 1,
    "shift": lambda x: x - 1.5,
    "loop": lambda x: x + sum(range(x.shape[0])),
}


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.sampled_from(sorted(STEPS)), min_size=1, max_size=4),
    st.lists(st.lists(st.sampled_from([-2.0, 0.0, 1.0, 2.0, 3.0]), min_size=2, max_size=6), min_size=2, max_size=4),
)
def test_random_programs_agree_with_eager(program, samples):
    def function(x):
        for step in program:
            x = STEPS[step](x)
        return x

    compiled = dynamic(function)
    for values in samples:
        x = torch.tensor(values)
        torch.testing.assert_close(compiled(x), function(x), rtol=0, atol=0)
