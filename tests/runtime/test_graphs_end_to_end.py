"""``staxlab.compile(..., mode="reduce-overhead")`` as on a GPU, through dispatch and autograd, on the simulated device.

Tensors of the CPU stand for those of a card: code is generated for sm_90, kernels run in Triton's interpreter.
"""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab import api
from staxlab.codegen.triton.interpreter import interpret
from staxlab.errors import GraphWarning
from staxlab.runtime import build, graphs
from staxlab.runtime.simulated_device import SimulatedDevice, _apart


@pytest.fixture
def card(monkeypatch):
    """A simulated card that everything in this process is compiled for."""
    device = SimulatedDevice()

    def launcher(kernel, *_, **__):
        return lambda *tensors: device.launch(lambda *given: interpret(kernel, [*map(_apart, given)]), *tensors)

    monkeypatch.setattr(api, "_target_of", lambda structure: "sm_90")
    monkeypatch.setattr(build, "_triton_launcher", launcher)
    monkeypatch.setattr(graphs, "graph_device", lambda compilation: device)
    return device


def graphed(fn, **options):
    return staxlab.compile(fn, mode="reduce-overhead", options=options)


def report(f):
    return f.versions[0].compilation.graphs


@pytest.mark.parametrize("options", [{}, {"graph_inputs": "copy"}, {"graph_outputs": "copy"}], ids=str)
def test_calls_are_replayed_whatever_level_dispatches_them(card, options):
    w = torch.randn(16)
    f = graphed(lambda x: torch.relu(x + w) * 2, **options)
    x = torch.zeros(4, 16)
    for call in range(8):
        x.fill_(call)
        y = f(x)
        torch.testing.assert_close(y, torch.relu(x + w) * 2)
    found = report(f)
    assert found.state == graphs.REPLAYING and found.replays == 7, str(found)
    assert any(entry[0] == "replay" for entry in card.log)


def test_a_free_tensor_that_moves_is_no_longer_replayed(card):
    w = torch.ones(3)
    f = graphed(lambda x: x * w)
    x = torch.full((3,), 2.0)
    for _ in range(3):
        assert f(x).tolist() == [2.0] * 3
    before = report(f).replays
    w = torch.full((3,), 5.0)
    assert f(x).tolist() == [10.0] * 3
    assert report(f).replays == before


def test_two_shapes_have_a_region_each(card):
    f = graphed(lambda x: x.cumsum(0))
    pair = torch.ones(4), torch.ones(6)
    for _ in range(3):
        for x in pair:
            torch.testing.assert_close(f(x), x.cumsum(0))
    assert [v.compilation.graphs.replays for v in f.versions] == [2, 2]


def test_dropout_draws_as_without_graphs(card):
    def fn(x):
        return F.dropout(x + 1, 0.5)

    f, x = graphed(fn), torch.ones(256)
    f(x)
    torch.manual_seed(3)
    expected = [fn(x) for _ in range(5)]
    torch.manual_seed(3)
    for y in expected:
        assert torch.equal(f(x), y)
    assert report(f).replays >= 4


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("options", [{}, {"graph_inputs": "copy"}, {"graph_outputs": "copy"}], ids=str)
def test_a_training_loop_takes_eagers_steps(card, set_to_none, options):
    torch.manual_seed(0)
    layers = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16), torch.nn.GELU(), torch.nn.Linear(16, 3)
    model = torch.nn.Sequential(*layers)
    twin = copy.deepcopy(model)
    data, target = torch.randn(8, 8), torch.randint(3, (8,))
    f = graphed(lambda x, y: F.cross_entropy(model(x), y), **options)
    pairs = [(model, f), (twin, lambda x, y: F.cross_entropy(twin(x), y))]
    optimizers = [torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9) for net, _ in pairs]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        for _ in range(8):
            data.normal_()
            losses = []
            for (_, step), optimizer in zip(pairs, optimizers, strict=True):
                optimizer.zero_grad(set_to_none=set_to_none)
                loss = step(data, target)
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
                del loss
            assert losses[0] == pytest.approx(losses[1], rel=1e-3, abs=1e-5)
    for name, value in twin.state_dict().items():
        torch.testing.assert_close(model.state_dict()[name], value, rtol=1e-3, atol=1e-4)
    # Nothing is held from one step to the next but gradients; the engine's first gradient, which may be anywhere, is
    # copied. The first call of the backward finds the saved values of a forward that was not replayed.
    assert report(f).replays == 7, str(report(f))
    assert f.versions[0].compilation.backward.graphs.replays >= 5, str(f.versions[0].compilation.backward.graphs)


def test_gradients_accumulate_over_several_forward_passes(card):
    w = torch.randn(6, 6, requires_grad=True)
    f = graphed(lambda x: torch.tanh(x @ w).sum())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        x = torch.zeros(6, 6)
        for _ in range(4):
            inputs = [torch.randn(6, 6) for _ in range(3)]
            losses = []
            for given in inputs:
                x = given  # a new address each time, and the same again below
                losses.append(f(x))
            w.grad = None
            for loss in reversed(losses):
                loss.backward()
            found, w.grad = w.grad, None
            for given in inputs:
                torch.tanh(given @ w).sum().backward()
            torch.testing.assert_close(found, w.grad, rtol=1e-4, atol=1e-5)


def test_double_backward_with_graphs(card):
    w = torch.randn(5, requires_grad=True)
    f = graphed(lambda x: (x * w).exp().sum(), double_backward=True)
    x = torch.randn(5) / 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", GraphWarning)
        for _ in range(4):
            (first,) = torch.autograd.grad(f(x), w, create_graph=True)
            (second,) = torch.autograd.grad(first.sum(), w)
            torch.testing.assert_close(second, x * x * (x * w).exp(), rtol=1e-4, atol=1e-5)


def test_a_module_in_evaluation_and_training_mode(card):
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
    twin = copy.deepcopy(model)
    f = staxlab.compile(model, mode="reduce-overhead")
    x = torch.randn(6, 4)
    with torch.no_grad():
        for training in (True, True, True, False, False, False, True, True):
            model.train(training), twin.train(training)
            x.normal_()
            torch.testing.assert_close(f(x), twin(x), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(dict(model.state_dict()), dict(twin.state_dict()), rtol=1e-4, atol=1e-5)


def test_inference_mode(card):
    f = graphed(lambda x: x.softmax(-1))
    x = torch.randn(3, 8)
    with torch.inference_mode():
        for _ in range(4):
            y = f(x)
            torch.testing.assert_close(y, x.softmax(-1))
            assert y.is_inference()
    assert report(f).replays == 3


def test_the_fallback_state_leaves_values_alone(card):
    card.fails_at = "record"
    f = graphed(lambda x: x * 2 + 1)
    x = torch.ones(4)
    with pytest.warns(GraphWarning, match="without CUDA Graphs"):
        for call in range(4):
            x.fill_(call)
            assert f(x).tolist() == [2.0 * call + 1] * 4
    assert report(f).state == graphs.FALLBACK and "failed" in str(f.versions[0].compilation)
