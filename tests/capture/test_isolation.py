"""Isolation: whether compilation happened must not be observable afterwards."""

from __future__ import annotations

import random
import warnings

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import staxlab
from staxlab.capture import isolation
from staxlab.capture.tracer import trace
from staxlab.errors import CaptureError

X = torch.linspace(-2, 2, 32).reshape(4, 8)


def copies(monkeypatch):
    made = []
    original = isolation.SavedStorage
    monkeypatch.setattr(isolation, "SavedStorage", lambda storage, copy: made.append(copy) or original(storage, copy))
    return made


def test_inputs_are_restored_through_every_kind_of_write():
    def f(x, y, z):
        x.mul_(2)
        y.t()[0].zero_()
        z[z > 0] = -1
        torch.add(x, y, out=z)
        x.view(-1)[3:5] = 7
        F.relu(y, inplace=True)
        y.copy_(x)
        torch._foreach_add_([x, y], 1.0)
        return x + y + z

    inputs = [X.clone(), X.clone() + 1, X.clone() - 1]
    before = [t.clone() for t in inputs]
    capture = trace(f, tuple(inputs))
    assert all(map(torch.equal, inputs, before))
    expected_inputs = [t.clone() for t in before]
    expected = f(*expected_inputs)
    assert torch.equal(capture(*inputs), expected)
    assert all(map(torch.equal, inputs, expected_inputs))


def test_nothing_is_copied_unless_it_is_written(monkeypatch):
    made = copies(monkeypatch)
    trace(lambda x: [(x + 1).mul_(2), x.clone().zero_(), x.sum()], (X,))
    assert not made
    x, y = X.clone(), X.clone()
    trace(lambda x, y: [x.add_(1), x.mul_(2), x[0].zero_(), y.sum()], (x, y))
    assert [len(copy) for copy in made] == [x.untyped_storage().nbytes()]  # once, and only x


def test_views_of_one_storage_are_restored_together():
    base = torch.arange(10.0)
    before = base.clone()
    trace(lambda a, b: [a.add_(1), b.zero_()], (base[:6], base[4:]))
    assert torch.equal(base, before)


def test_module_state_is_restored():
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    capture = trace(lambda x: model[1](model[0](x)), (X,))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert capture.mutates_inputs
    capture(X)
    assert int(model[1].num_batches_tracked) == 1


def test_random_numbers_are_those_of_an_uncompiled_call():
    def f(x):
        return F.dropout(x) + torch.randn_like(x)

    torch.manual_seed(0)
    capture = trace(f, (X,))
    result = capture(X)
    torch.manual_seed(0)
    assert torch.equal(result, f(X))


def test_given_generators_are_rewound():
    generator = torch.Generator().manual_seed(3)
    state = generator.get_state()
    capture = trace(lambda x, g: x + torch.rand(8, generator=g), (X, generator))
    assert torch.equal(generator.get_state(), state)
    first = capture(X, generator)
    assert torch.equal(first, X + torch.rand(8, generator=torch.Generator().manual_seed(3)))


def test_later_stages_can_rewind_what_they_draw():
    generator = torch.Generator().manual_seed(3)
    torch.manual_seed(0)
    states = generator.get_state(), torch.get_rng_state()
    capture = trace(lambda x, g: x + torch.rand(8, generator=g) + torch.rand(8), (X, generator))
    capture(X, generator)
    capture.rewind()
    assert torch.equal(generator.get_state(), states[0]) and torch.equal(torch.get_rng_state(), states[1])
    capture.release()
    torch.rand(1)
    capture.rewind()  # nothing is remembered any more
    assert not torch.equal(torch.get_rng_state(), states[1])
    assert trace(lambda x: x + 1, (X,)).random_state is None


def test_seeding_with_the_very_same_state_is_harmless():
    def f(x):
        state = torch.get_rng_state()
        torch.set_rng_state(state)
        return x + torch.rand(8)

    trace(f, (X,))


@pytest.mark.parametrize("draw", [random.random, lambda: float(numpy.random.rand())])
def test_python_generators_are_refused_and_rewound(draw):
    random.seed(1)
    numpy.random.seed(1)
    with pytest.raises(CaptureError, match="draws from"):
        trace(lambda x: x * draw(), (X,))
    value = draw()
    random.seed(1)
    numpy.random.seed(1)
    assert draw() == value


@pytest.mark.filterwarnings("ignore")
def test_rebound_python_state_is_put_back():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.ones(8))
            self.count, self.log = 0, []

        def forward(self, x):
            self.count += 1
            self.extra = x
            self.log.append(self.count)
            self.w = nn.Parameter(self.w.detach() * 2) if False else self.w
            return x * self.w

    model = Model()
    with pytest.raises(CaptureError, match=r"changes self\.count, self\.extra"):
        trace(model, (X,))
    assert model.count == 0 and model.log == [] and not hasattr(model, "extra")


def test_argument_containers_are_put_back():
    def f(d, items):
        d["new"] = items.pop()
        return d["x"] + 1

    d, items = {"x": X}, [X, X + 1]
    with pytest.raises(CaptureError, match=r"changes d, items"):
        trace(f, (d, items))
    assert list(d) == ["x"] and len(items) == 2


def test_outer_containers_keep_what_was_added_and_lose_it_on_refusal():
    log = []

    def notes(x):
        log.append(1)
        return x + 1

    def refuses(x):
        log.append(2)
        return x.numpy()

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        trace(notes, (X,))
        with pytest.raises(CaptureError):
            trace(refuses, (X,))
    assert log == [1]


def test_modes_are_as_before():
    with torch.no_grad():
        trace(lambda x: x * 2, (X,))
        assert not torch.is_grad_enabled()
    with pytest.raises(ValueError):
        trace(lambda x: (_ for _ in ()).throw(ValueError()), (X,))
    assert torch.is_grad_enabled() and torch._C._len_torch_function_stack() == 0
    assert torch._C._len_torch_dispatch_stack() == 0


def test_facts_are_observed_not_guessed():
    def f(x, mean, var):
        F.embedding(torch.tensor([0, 1]), x, max_norm=1.0)
        y = F.batch_norm(x, mean, var, training=True)
        z = F.batch_norm(x, mean, var)
        return y + z + F.rrelu(x, training=True) + F.one_hot(torch.tensor([1])).sum() + x.view(-1)[0]

    graph = trace(f, (X.clone(), torch.zeros(8), torch.ones(8))).graph
    facts = {n.name: {k for k in n.meta if k != "val"} for n in graph.calls}
    assert facts["embedding"] == {"mutates", "may_fail"}
    assert facts["batch_norm"] == {"mutates"} and facts["batch_norm_0"] == set()
    assert facts["rrelu"] == {"random"}
    assert facts["one_hot"] == {"reads_data", "may_fail"}
    assert facts["view"] == facts["getitem"] == {"aliases"}
    assert facts["add"] == set()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "stax"])
def test_a_write_that_was_undone_does_not_count(backend):
    """Autograd compares version counters: what tracing wrote and took back must not look like a write."""
    x = torch.ones(2)
    view = x[:1]
    staxlab.compile(lambda x: x[0].add_(1), backend=backend)(x)
    assert x._version == view._version == 1 and x.tolist() == [2.0, 1.0]
    trace(lambda x: x.mul_(2), (x,))
    assert x._version == 1 and x.tolist() == [2.0, 1.0]
    with torch.inference_mode():
        y = torch.ones(2)
        assert staxlab.compile(lambda x: x.add_(1), backend=backend)(y).tolist() == [2.0, 2.0]
