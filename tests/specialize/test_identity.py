"""``is`` between parts of a call: whether two of them are one object is part of the key, as shared memory is."""

from __future__ import annotations

import itertools

import pytest
import torch

import staxlab
from staxlab.specialize.signature import ONE_OBJECT, compute_key
from tests.specialize.regions import dispatcher


def differs(a, b):
    return a * 2 if a is b else a * 3


X = torch.ones(1)
PAIRS = {
    "same": lambda: (X, X),
    "view": lambda: (X, X.view(1)),
    "other": lambda: (X, torch.ones(1)),
    "two views": lambda: (X.view(1), X.view(1)),
    "detached": lambda: (X, X.detach()),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("order", list(itertools.permutations(PAIRS, 2)))
def test_the_same_tensor_and_another_over_the_same_memory(order, dynamic):
    compiled = staxlab.compile(differs, dynamic=dynamic, backend="eager")
    for name in (*order, *order, *order):
        a, b = PAIRS[name]()
        assert torch.equal(compiled(a, b), differs(a, b)), name


def test_with_kernels_and_three_tensors():
    def f(a, b, c):
        return a * (1 + (a is b) + 2 * (b is c) + 4 * (a is c))

    compiled = staxlab.compile(f, options={"max_versions": 64, "max_compilations": 64})
    for _ in range(3):
        for i, j in itertools.product(range(3), range(3)):
            views = [X, X.view(1), torch.ones(1)]
            arguments = views[0], views[i], views[j]
            assert torch.equal(compiled(*arguments), f(*arguments)), (i, j)


@pytest.mark.parametrize("make", [lambda: torch.empty(0), lambda: torch.empty(3, 0, 2)])
def test_tensors_without_memory(make):
    def f(a, b):
        return a.double() if a is b else a.long()

    compiled = staxlab.compile(f)
    for _ in range(4):
        x, y = make(), make()
        assert compiled(x, y).dtype == torch.int64
    for _ in range(4):
        x = make()
        assert compiled(x, x).dtype == torch.float64


def test_a_free_tensor_and_an_argument():
    weight = torch.ones(2)

    def f(a):
        return a * 2 if a is weight else a * 3

    compiled = dispatcher(f)
    for value in (weight, weight.view(2), torch.ones(2), weight, weight.view(2)) * 2:
        assert torch.equal(compiled(value), f(value))


def test_two_free_tensors():
    class Holder:
        pass

    holder = Holder()
    holder.a = holder.b = torch.ones(2)

    def f(x):
        return x * 2 if holder.a is holder.b else x * 3

    compiled = dispatcher(f)
    for value in (holder.a, holder.a.view(2), holder.a, torch.ones(2)):
        holder.b = value
        assert torch.equal(compiled(X), f(X)) and torch.equal(compiled(X), f(X))


@pytest.mark.parametrize("make", [lambda: [X], lambda: {"x": X}])
def test_containers(make):
    def f(a, b):
        return X * 2 if a is b else X * 3

    compiled = dispatcher(f)
    one, other = make(), make()
    for a, b in ((one, one), (one, other), (one, one), (other, one), ([one], [one])):
        assert torch.equal(compiled(a, b), f(a, b))


def test_a_tensor_inside_a_list():
    def f(a, items):
        return a * 2 if any(a is item for item in items) else a * 3

    compiled = dispatcher(f)
    for items in ([X], [X.view(1)], [torch.ones(1), X], [torch.ones(1), X.view(1)]) * 2:
        assert torch.equal(compiled(X, items), f(X, items))


def test_calls_without_repetition_keep_their_level():
    compiled = staxlab.compile(differs)
    for _ in range(4):
        compiled(torch.ones(3), torch.ones(3))
    assert compiled.last_level == 1 and len(compiled.versions) == 1
    assert compute_key((X, X), {}).sigma.aliasing == ((0, 1, 0), (0, 1, ONE_OBJECT))
    assert compute_key((X, torch.ones(1)), {}).sigma.aliasing == ()
