"""Functions called with padded sizes: eager's values, few versions, and an error wherever padding would show."""

from __future__ import annotations

import math
from collections import namedtuple

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab
from staxlab import Buckets, ConstraintError, OptionError, bucketed

SIZES = (*range(1, 20), 31, 32, 33)


def mean(x, length):
    return x.sum(-1) / length


def softmax(x, valid):
    return x.masked_fill(~valid, -math.inf).softmax(-1)


# name: the function that is padded, how, and what eager computes
CASES = {
    "sum": (lambda x: x.sum(-1), {"pad": 0.0}, lambda x: x.sum(-1)),
    "maximum": (lambda x: x.amax(-1), {"pad": -math.inf}, lambda x: x.amax(-1)),
    "product": (lambda x: x.prod(-1), {"pad": 1.0}, lambda x: x.prod(-1)),
    "mean": (mean, {"pad": 0.0, "lengths": {"n": "length"}}, lambda x: x.mean(-1)),
    "softmax": (softmax, {"pad": 0.0, "masks": {"n": "valid"}, "results": -1}, lambda x: x.softmax(-1)),
    "softmax of padding": (lambda x: x.softmax(-1), {"pad": -math.inf, "results": -1}, lambda x: x.softmax(-1)),
    "pointwise": (lambda x: torch.exp(x) * 2, {"pad": 0.0, "results": -1}, lambda x: torch.exp(x) * 2),
}


@pytest.mark.parametrize("name", CASES)
def test_values_are_eagers_and_versions_within_the_bound(name):
    function, how, eager = CASES[name]
    wrapped = bucketed(staxlab.compile(function, backend="aot_eager"), dims={"x": -1}, **how)
    generator = torch.Generator().manual_seed(1)
    for n in SIZES:
        x = torch.randn(3, n, generator=generator)
        torch.testing.assert_close(wrapped(x), eager(x))
        torch.testing.assert_close(wrapped(x.t().contiguous().t()), eager(x))  # another layout, no other version
    assert len(wrapped.versions) == len(wrapped.calls) == Buckets().bound(1, 33) == 7
    assert sum(wrapped.calls.values()) == 2 * len(SIZES)


@pytest.mark.parametrize("name", ["sum", "softmax"])
def test_generated_kernels_behind_it(name):
    function, how, eager = CASES[name]
    buckets = Buckets(sizes=(8, 32))
    wrapped = bucketed(staxlab.compile(function, strict_native=True), dims={"x": -1}, buckets=buckets, **how)
    for n in SIZES[:-1]:
        x = torch.randn(3, n)
        torch.testing.assert_close(wrapped(x), eager(x))
    assert len(wrapped.versions) == buckets.bound(1, 32) == 2 and wrapped.calls[(32,)] == sum(n > 8 for n in SIZES[:-1])


@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from([1.3, 2, 3]), st.randoms())
@settings(max_examples=25, deadline=None)
def test_two_sizes(rows, columns, ratio, random):
    def normalized(x, valid):
        weights = x.masked_fill(~valid, -math.inf).softmax(-1)
        return weights, weights.sum(0), x.amax()

    wrapped = bucketed(
        normalized, dims={"x": {0: "rows", 1: "columns"}}, pad=-math.inf, masks={"columns": "valid"},
        results=[{0: "rows", -1: "columns"}, {0: "columns"}, None], buckets=Buckets(ratio=ratio), check=False,
    )  # fmt: skip
    x = torch.tensor([[random.uniform(-4, 4) for _ in range(columns)] for _ in range(rows)])
    # A padded row would be a softmax of nothing but -inf, NaN: its sums must not be asked for.
    weights, _, most = wrapped(x)
    torch.testing.assert_close(weights, x.softmax(-1))
    assert most == x.amax() and weights.is_contiguous()


def test_the_rows_that_show_are_found():
    """The same function, tried: the column sums hold NaN as soon as a row is padded."""
    wrapped = bucketed(
        lambda x: x.softmax(-1).sum(0), dims={"x": {0: "rows", 1: "columns"}}, pad=-math.inf, results={0: "columns"}
    )
    wrapped(torch.randn(4, 3))
    with pytest.raises(ConstraintError, match=r"rows from 3 to 4.*nan with it"):
        wrapped(torch.randn(3, 3))


def test_size_zero_is_not_padded():
    total = bucketed(lambda x: x.sum(), dims={"x": 0}, pad=0.0)
    assert total(torch.empty(0)) == 0 and list(total.calls) == [(0,)]
    largest = bucketed(lambda x: x.amax(0), dims={"x": 0}, pad=-math.inf)
    with pytest.raises((RuntimeError, IndexError), match="amax"):
        largest(torch.empty(0))


def test_gradients_pass_through_the_padding():
    wrapped = bucketed(staxlab.compile(mean, backend="aot_eager"), dims={"x": 0}, pad=0.0, lengths={"n": "length"})
    x = torch.randn(5, requires_grad=True)
    (wrapped(x) ** 2).backward()
    expected = torch.autograd.grad(x.mean() ** 2, x)[0]
    torch.testing.assert_close(x.grad, expected)


WRONG = {
    "mean by the padded length": (lambda x: x.mean(), {"pad": 0.0}, "result 1"),
    "softmax without mask": (lambda x: x.softmax(0), {"pad": 0.0, "results": 0}, "result 1"),
    "0 for a maximum": (lambda x: x.amax(), {"pad": 0.0}, "their negation|negative arguments"),
    "0 for a minimum": (lambda x: x.amin(), {"pad": 0.0}, "these arguments|positive arguments"),
    "0 for a product": (lambda x: x.prod(), {"pad": 0.0}, "result 1"),
    "a result that is not cut": (lambda x: x + 1, {"pad": 0.0}, r"\(5,\) without padding and \(8,\)"),
    "the last become the first": (lambda x: x.flip(0) + 0, {"pad": 0.0, "results": 0}, "result 1"),
    "a declared size that is none": (lambda x: x.sum(0, keepdim=True), {"pad": 0.0, "results": 0}, "have the size n"),
    "a dimension that is none": (lambda x: x.sum(), {"pad": 0.0, "results": 1}, "have the size n in dimension 1"),
    "more results than declared": (lambda x: (x + 1, x.sum()), {"pad": 0.0, "results": 0}, "returns 2 tensors"),
    "other results than declared": (lambda x: x + 1, {"pad": 0.0, "results": [0, None]}, "returns 1 tensors"),
    "a number": (lambda x: (x.sum(), x.shape[0]), {"pad": 0.0}, "nothing tells"),
    "a view": (lambda x: x[:2], {"pad": 0.0}, "view of its argument x"),
    "random numbers": (lambda x: torch.rand_like(x), {"pad": 0.0, "results": 0}, "random"),
    "a failure on padding": (lambda x: x.view(5).sum(), {"pad": 0.0}, "fails once they are padded"),
    "writes into x": (lambda x: x.mul_(2).sum(), {"pad": 0.0}, "writes into its argument x"),
    "an infinite integer": (lambda x: x.amax(), {"pad": math.inf, "dtype": torch.int64}, "cannot hold its padding"),
    "half an integer": (lambda x: x.amax(), {"pad": 0.5, "dtype": torch.int64}, "cannot hold its padding"),
    "too large a number": (lambda x: x.sum(), {"pad": 1e300}, "cannot hold its padding"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_whatever_padding_changes_is_an_error(name):
    function, how, message = WRONG[name]
    how = dict(how)
    x = torch.tensor([1.5, -0.5, 0.25, 2.0, -1.0]).to(how.pop("dtype", torch.float32))
    with pytest.raises(ConstraintError, match=message):
        bucketed(function, dims={"x": 0}, **how)(x)


def test_what_is_written_and_what_a_module_keeps_must_not_show_the_padding():
    def into(x, out):
        out.copy_(x.mean())
        return x.sum()

    with pytest.raises(ConstraintError, match="written argument 1"):
        bucketed(into, dims={"x": 0}, pad=0.0)(torch.ones(3), torch.zeros(()))

    class Counts(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("seen", torch.zeros(()))

        def forward(self, x):
            self.seen += x.numel()
            return x.sum()

    module = Counts()
    with pytest.raises(ConstraintError, match="written argument"):
        bucketed(module, dims={"x": 0}, pad=0.0)(torch.ones(3))
    assert module.seen == 0, "what is tried runs on a copy"
    bucketed(module, dims={"x": 0}, pad=0.0)(torch.ones(4))
    assert module.seen == 4


def test_a_function_of_one_type_is_tried_as_it_is():
    weight = torch.randn(4, 2)
    right = bucketed(lambda x: (x @ weight).sum(0), dims={"x": 0}, pad=0.0)
    torch.testing.assert_close(right(torch.ones(3, 4)), 3 * weight.sum(0))
    with pytest.raises(ConstraintError, match="padding changes"):
        bucketed(lambda x: (x @ weight).mean(0), dims={"x": 0}, pad=0.0)(torch.ones(3, 4))


def test_what_eager_refuses_is_refused_by_its_words():
    with pytest.raises(RuntimeError, match="size of tensor"):
        bucketed(lambda x, w: (x + w).sum(), dims={"x": 0}, pad=0.0)(torch.ones(3), torch.ones(5))


def test_one_row_that_would_broadcast_is_tried_by_itself():
    """With sizes 3 and 1 in one bucket: a single row broadcasts against the other argument, a padded one does not."""
    wrapped = bucketed(lambda x, w: (x * w).sum(0), dims={"x": 0}, pad=0.0, buckets=Buckets(sizes=(4,)))
    w = torch.arange(4.0)
    wrapped(torch.ones(4), w)
    with pytest.raises(ConstraintError, match="n from 1 to 4"):
        wrapped(torch.ones(1), w)


def test_random_numbers_of_the_caller_stay_as_they_were():
    torch.manual_seed(3)
    expected = torch.rand(2)
    torch.manual_seed(3)
    bucketed(lambda x: x.sum(), dims={"x": 0}, pad=0.0)(torch.ones(3))
    assert torch.equal(torch.rand(2), expected)


def test_it_is_tried_once_for_each_kind():
    runs = []

    def total(x):
        runs.append(tuple(x.shape))
        return x.sum()

    wrapped = bucketed(total, dims={"x": 0}, pad=0.0)
    wrapped(torch.ones(8))
    assert runs == [(8,)], "nothing was padded, so nothing was tried"
    wrapped(torch.ones(5))
    tried = len(runs)
    assert tried > 3 and {(5,), (8,)} == set(runs)
    wrapped(torch.ones(6))
    assert len(runs) == tried + 1
    wrapped(torch.ones(6, dtype=torch.float64))
    assert len(runs) > tried + 2
    unchecked = bucketed(lambda x: x.mean(), dims={"x": 0}, pad=0.0, check=False)
    assert unchecked(torch.ones(3)) == 0.75, "nobody looked"


def test_structures_are_kept():
    Pair = namedtuple("Pair", "total parts")

    def pair(x):
        return Pair(x.sum(), {"twice": [2 * x, None]})

    got = bucketed(pair, dims={"x": 0}, pad=0.0, results=[None, 0])(torch.ones(3))
    assert type(got) is Pair and got.total == 3 and got.parts["twice"][1] is None
    assert torch.equal(got.parts["twice"][0], torch.full((3,), 2.0))


DECLARED = {
    "an unknown argument": ({"dims": {"y": 0}, "pad": 0.0}, "dims names 'y'"),
    "no dimension": ({"dims": {"x": {}}, "pad": 0.0}, "no dimension that it varies"),
    "nothing": ({"dims": {}, "pad": 0.0}, "dims is empty"),
    "no element": ({"dims": {"x": 0}, "pad": {}}, "does not say with what"),
    "an element of nobody": ({"dims": {"x": 0}, "pad": {"x": 0.0, "z": 1.0}}, "pad names 'z'"),
    "a length of nobody": ({"dims": {"x": 0}, "pad": 0.0, "lengths": {"n": "k"}}, "lengths names 'k'"),
    "a length of no size": ({"dims": {"x": 0}, "pad": 0.0, "lengths": {"m": "length"}}, "the size 'm'"),
    "a result of no size": ({"dims": {"x": 0}, "pad": 0.0, "results": {0: "m"}}, "results names the size 'm'"),
    "buckets of no size": ({"dims": {"x": 0}, "pad": 0.0, "buckets": {"m": Buckets()}}, "buckets names the size 'm'"),
    "two at once": ({"dims": {"x": 0}, "pad": 0.0, "masks": {"n": "x"}}, "cannot be both"),
}  # fmt: skip


@pytest.mark.parametrize("name", DECLARED)
def test_declarations_that_cannot_be(name):
    how, message = DECLARED[name]
    with pytest.raises(OptionError, match=message):
        bucketed(mean, **how)


def test_calls_that_do_not_fit():
    add = bucketed(lambda x, y: (x * y).sum(), dims={"x": 0, "y": 0}, pad=0.0, buckets=Buckets(sizes=(4, 8)))
    assert add(torch.ones(3), torch.ones(3)) == 3
    with pytest.raises(ConstraintError, match="the size n is 3 in dimension 0 of x and 4 in dimension 0 of y"):
        add(torch.ones(3), torch.ones(4))
    with pytest.raises(ConstraintError, match="n: size 9 is beyond the last bucket, 8"):
        add(torch.ones(9), torch.ones(9))
    with pytest.raises(ConstraintError, match="x has no dimension 0"):
        add(torch.tensor(1.0), torch.ones(1))
    with pytest.raises(ConstraintError, match="should be a tensor to be padded, not a list"):
        add([1.0], torch.ones(1))
    with pytest.raises(TypeError):
        add(torch.ones(3))
    with pytest.raises(OptionError, match="function or module"):
        bucketed(3, dims={"x": 0}, pad=0.0)
    with pytest.raises(OptionError, match="does not say what its parameters are called"):
        bucketed(torch.sum, dims={"input": 0}, pad=0.0)
    assert "buckets 4, 8" in repr(add) and "1 padded sizes" in repr(add)


def test_not_a_number_without_padding_and_with_it_is_no_difference():
    logarithm = bucketed(lambda x: x.log(), dims={"x": 0}, pad=1.0, results=0)  # tried on negative arguments, too
    torch.testing.assert_close(logarithm(torch.tensor([1.0, -2.0, 3.0])), torch.tensor([1.0, -2.0, 3.0]).log(),
                               equal_nan=True)  # fmt: skip


def test_gradients_that_show_the_padding_are_found():
    """The maximum of x * abs(w) is not changed by minus infinity; the gradient of w is: 0 times infinity."""
    wrapped = bucketed(lambda x, w: (x * w.abs()).amax(), dims={"x": 0}, pad=-math.inf)
    x, w = torch.tensor([1.0, 3.0, 2.0]), torch.tensor(2.0)
    assert wrapped(x, w) == 6
    with pytest.raises(ConstraintError, match="gradient 1: 3 without padding and nan with it"):
        wrapped(x, w.clone().requires_grad_())
    with torch.no_grad():
        assert wrapped(x, w.clone().requires_grad_()) == 6
    module = torch.nn.Linear(2, 3)
    largest = bucketed(torch.nn.Sequential(module, torch.nn.Softmax(0)), dims={"input": 0}, pad=-math.inf, results=0)
    with pytest.raises(ConstraintError, match="gradient|result"):
        largest(torch.ones(3, 2))


def test_a_module_is_padded_and_trained():
    module = torch.nn.Linear(2, 3)
    compiled = staxlab.compile(module, backend="aot_eager")
    wrapped = bucketed(compiled, dims={"input": 0}, pad=0.0, results=0)
    for n in (3, 4, 5):
        x = torch.randn(n, 2)
        module.zero_grad()
        wrapped(x).square().sum().backward()
        expected = torch.autograd.grad(module(x).square().sum(), list(module.parameters()))
        torch.testing.assert_close([p.grad for p in module.parameters()], list(expected))
    assert len(wrapped.versions) == 2

    class Largest(torch.nn.Linear):
        def forward(self, input):
            return super().forward(input).amax(0)

    module = Largest(2, 3, bias=False)
    torch.nn.init.ones_(module.weight)
    with pytest.raises(ConstraintError, match="tried on their negation"):  # the sample alone does not show it
        bucketed(module, dims={"input": 0}, pad=0.0)(torch.ones(3, 2))
    assert module.weight.dtype == torch.float32 and module.weight.grad is None


def test_within_a_compiled_function_nothing_is_padded():
    wrapped = bucketed(mean, dims={"x": 0}, pad=0.0, lengths={"n": "length"})
    outer = staxlab.compile(lambda x: wrapped(x) * 2, backend="aot_eager")
    for n in (3, 5, 6):
        x = torch.randn(n)
        torch.testing.assert_close(outer(x), 2 * x.mean())
    assert not wrapped.calls and len(outer.versions) == 3
    rows = torch.randn(4, 3)
    torch.testing.assert_close(torch.vmap(wrapped)(rows), rows.mean(1))
