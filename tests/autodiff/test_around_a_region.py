"""What stands around a compiled region with gradients: hooks, checkpoints, transforms, autocast, threads, modes."""

from __future__ import annotations

import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import staxlab
from tests.autodiff.scenarios import Scenarios, attempt, tensor

scenario = Scenarios()
TWICE = {"double_backward": True}


@scenario
def compiled_inside_compiled(compiled):
    g = compiled(lambda a: a.exp() * 2)
    f = compiled(lambda a, b: g(a) * b.sin() + g(b))
    x = tensor(3)
    y = tensor(3, seed=4)
    f(x, y).sum().backward()
    return [x.grad, y.grad]


@scenario
def checkpoint_around(compiled):
    f = compiled(lambda a, w: (a @ w).exp().tanh())
    out = []
    for re in (False, True):
        x = tensor(3, 3)
        w = tensor(3, 3, seed=1)
        y = checkpoint(f, x, w, use_reentrant=re)
        y.sum().backward()
        out += [y, x.grad, w.grad]
    return out


@scenario
def checkpoint_around_dropout(compiled):
    f = compiled(lambda a, w: F.dropout((a @ w).exp(), 0.5).tanh())
    out = []
    for re in (False, True):
        torch.manual_seed(3)
        x = tensor(3, 3)
        w = tensor(3, 3, seed=1)
        y = checkpoint(f, x, w, use_reentrant=re)
        y.sum().backward()
        out += [y, x.grad, w.grad, torch.rand(1)]
    return out


@scenario
def checkpoint_sequential_around(compiled):
    torch.manual_seed(0)
    m = nn.Sequential(*[nn.Sequential(nn.Linear(3, 3), nn.Tanh()) for _ in range(4)])
    ms = nn.Sequential(*[compiled(k) for k in m])
    x = tensor(2, 3)
    y = checkpoint_sequential(ms, 2, x, use_reentrant=False)
    y.sum().backward()
    return [x.grad] + [p.grad for p in m.parameters()]


@scenario
def nested_checkpoints_inside(compiled):
    def g(a, w):
        return checkpoint(
            lambda q: checkpoint(lambda b: F.dropout(b @ w, 0.3).exp(), q.sin(), use_reentrant=False) + 1,
            a,
            use_reentrant=False,
        ).sum()

    f = compiled(g)
    x = tensor(3, 3)
    w = tensor(3, 3, seed=1)
    torch.manual_seed(0)
    y = f(x, w)
    y.backward()
    return [y, x.grad, w.grad, torch.rand(1)]


@scenario
def inside_a_custom_function(compiled):
    f = compiled(lambda a: a.exp() * 2)

    class Q(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return f(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            with torch.enable_grad():
                z = x.detach().requires_grad_()
                y = f(z)
            return torch.autograd.grad(y, z, g)[0]

    x = tensor(3)
    Q.apply(x).sum().backward()
    return [x.grad]


@scenario
def retain_grad_on_results(compiled):
    f = compiled(lambda a: (a * 2, a.exp()))
    x = tensor(3)
    y, z = f(x)
    y.retain_grad()
    z.retain_grad()
    (y * 3 + z * z).sum().backward()
    return [y.grad, z.grad, x.grad, y.is_leaf]


@scenario
def calls_from_several_threads(compiled):
    f = compiled(lambda a: (a.exp() * a.sin()).sum())
    xs = [tensor(3, seed=i) for i in range(6)]

    def go(i):
        for _ in range(3):
            f(xs[i]).backward()

    threads = [threading.Thread(target=go, args=(i,)) for i in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [x.grad for x in xs]


@scenario
def backward_from_another_thread(compiled):
    f = compiled(lambda a: (a.exp() * a.sin()).sum())
    x = tensor(3)
    y = f(x)
    t = threading.Thread(target=y.backward)
    t.start()
    t.join()
    return [x.grad]


@scenario
def backwards_in_another_order(compiled):
    f = compiled(lambda a: (a.exp() * a.sin()).sum())
    x = tensor(3)
    a = f(x)
    b = f(x * 2)
    b.backward(retain_graph=True)
    a.backward()
    b.backward()
    return [x.grad]


@scenario
def three_backwards(compiled):
    f = compiled(lambda a, w: ((a @ w).exp() * w).sum())
    x = tensor(3, 3)
    w = tensor(3, 3)
    y = f(x, w)
    r = [torch.autograd.grad(y, (x, w), retain_graph=True) for _ in range(3)]
    return r


@scenario
def a_freed_graph(compiled):
    f = compiled(lambda a: (a.exp() * a.sin()).sum())
    x = tensor(3)
    a = f(x)
    a.backward()
    return [attempt(a.backward), x.grad]


@scenario
def a_freed_graph_that_kept_nothing(compiled):
    f = compiled(lambda a: a.sum())
    x = tensor(3)
    a = f(x)
    a.backward()
    return [attempt(a.backward), x.grad]


@scenario
def hooks_that_change_gradients(compiled):
    f = compiled(lambda a, b: (a * b, a + b))
    x = tensor(3)
    w = tensor(3, seed=1)
    x.register_hook(lambda g: g * 2)
    y, z = f(x, w)
    y.register_hook(lambda g: g * 10)
    z.register_hook(lambda g: torch.zeros_like(g))
    (y.sum() + z.sum()).backward()
    return [x.grad, w.grad]


@scenario
def hooks_of_the_node(compiled):
    f = compiled(lambda a, b: (a * b, a + b))
    x = tensor(3)
    w = tensor(3, seed=1)
    y, z = f(x, w)
    seen = []
    y.grad_fn.register_hook(lambda gi, go: seen.append(len(go)))
    y.grad_fn.register_prehook(lambda go: None)
    y.sum().backward()
    return [x.grad, w.grad]


@scenario
def a_hook_on_several_results(compiled):
    f = compiled(lambda a, w: ((a @ w).exp(), w * 2))
    x = tensor(3, 3)
    w = tensor(3, 3)
    y, z = f(x, w)
    seen = []
    torch.autograd.graph.register_multi_grad_hook([y, z], lambda gs: seen.append([g is None for g in gs]))
    y.sum().backward()
    return [seen, x.grad]


@scenario
def a_hook_that_gives_an_expanded_gradient(compiled):
    f = compiled(lambda a: a.exp() * 2)
    x = tensor(3, 3)
    y = f(x)
    y.register_hook(lambda g: torch.ones(1).expand(3, 3))
    y.sum().backward()
    return [x.grad]


@scenario
def a_hook_that_gives_a_transposed_gradient(compiled):
    f = compiled(lambda a: a.exp() * 2)
    x = tensor(3, 3)
    y = f(x)
    y.register_hook(lambda g: g.t())
    y.sum().backward()
    return [x.grad]


@scenario
def a_parameter_as_upstream_gradient(compiled):
    f = compiled(lambda a: a.exp() * 2)
    x = tensor(3, 3)
    y = f(x)
    y.backward(nn.Parameter(torch.ones(3, 3)))
    return [x.grad]


@scenario
def anomaly_detection_that_finds_something(compiled):
    f = compiled(lambda a: a.sqrt())
    x = torch.zeros(3, requires_grad=True)
    with torch.autograd.set_detect_anomaly(True):
        y = f(x)
        r = attempt(lambda: (y * 0).sum().backward())
    return [r]


@scenario
def anomaly_detection_that_finds_nothing(compiled):
    f = compiled(lambda a: a.exp().sin())
    x = tensor(3)
    with torch.autograd.set_detect_anomaly(True):
        y = f(x)
        r = attempt(lambda: (y).sum().backward())
    return [r, x.grad]


@scenario
def save_on_cpu(compiled):
    f = compiled(lambda a, w: ((a @ w).exp() * w.t().sin()).sum())
    x = tensor(4, 4)
    w = tensor(4, 4, seed=2)
    with torch.autograd.graph.save_on_cpu():
        y = f(x, w)
    y.backward()
    return [x.grad, w.grad]


@scenario
def saved_tensor_hooks_that_lay_out_anew(compiled):
    f = compiled(lambda a, w: ((a.t() @ w).exp() * w.sin().t().sum() + a.t().exp().t().sum()).sum())
    x = tensor(4, 3)
    w = tensor(4, 3)
    out = []
    for x, w in ((tensor(4, 3), tensor(4, 3)), (tensor(3, 4).t(), tensor(4, 6)[:, ::2])):
        x = x.detach().requires_grad_()
        w = w.detach().requires_grad_()
        with torch.autograd.graph.saved_tensors_hooks(
            lambda t: t.detach().contiguous().clone(memory_format=torch.contiguous_format), lambda t: t
        ):
            y = f(x, w)
        y.backward()
        out += [x.grad, w.grad]
    return out


@scenario
def saved_tensor_hooks_that_convert(compiled):
    f = compiled(lambda a, w: (a * w).exp() * w)
    x = tensor(4, 3)
    w = tensor(4, 3)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.double(), lambda t: t.float()):
        y = f(x, w)
    y.sum().backward()
    return [x.grad, w.grad]


@scenario
def saved_tensor_hooks_disabled(compiled):
    f = compiled(lambda a, w: (a * w).exp() * w)
    x = tensor(4, 3)
    w = tensor(4, 3)
    with torch.autograd.graph.disable_saved_tensors_hooks("no"):
        f(x, w).sum().backward()
    return [x.grad, w.grad]


@scenario
def the_random_state(compiled):
    f = compiled(lambda a: F.dropout(a.exp(), 0.5) * torch.rand(3))
    x = tensor(3)
    torch.manual_seed(0)
    y = f(x)
    a = torch.rand(1)
    y.sum().backward()
    return [y, x.grad, a, torch.rand(1)]


@scenario
def exceptions_inside(compiled):
    def g(a):
        if a.shape[0] == 3:
            raise ValueError("no")
        return a.exp()

    f = compiled(g)
    return [attempt(lambda: f(tensor(3))), f(tensor(2)), attempt(lambda: f(tensor(3)))]


@scenario
def an_upstream_gradient_of_another_shape(compiled):
    f = compiled(lambda a: a.exp())
    x = tensor(3)
    y = f(x)
    return [
        attempt(lambda: y.backward(torch.ones(4))),
        attempt(lambda: y.backward(torch.ones(3, dtype=torch.float64))),
        x.grad,
        attempt(lambda: f(x).backward()),
    ]


@scenario
def gradients_with_a_graph(compiled):
    f = compiled(lambda a, b: (a.exp() * b.sin()).sum())
    x = tensor(3)
    w = tensor(3, seed=1)
    g = torch.autograd.grad(f(x, w), (x, w), create_graph=True)
    return [g]


@pytest.mark.parametrize("watch", ["hook", "retain_grad"])
def test_a_result_that_others_are_computed_from_cannot_be_watched(watch):
    """Eager execution would show its whole gradient. A region is one node, and what passes inside it is not seen."""

    def function(a):
        inner = a * 2
        return inner, inner.exp(), a + 1

    x = tensor(3)
    inner, outer, apart = staxlab.compile(function, backend="aot_eager")(x)
    apart.retain_grad()
    (inner.sum() + outer.sum() + apart.sum()).backward(retain_graph=True)
    torch.testing.assert_close(x.grad, 3 + 2 * outer.detach())
    inner.retain_grad() if watch == "retain_grad" else inner.register_hook(lambda gradient: gradient * 2)
    with pytest.raises(RuntimeError, match="other results of the same compiled function are computed from"):
        (inner.sum() + outer.sum()).backward()


def test_an_interrupted_compilation_of_the_backward_is_taken_up_again(monkeypatch):
    from staxlab.runtime import build

    def interrupted(*_):
        raise KeyboardInterrupt

    compiled = staxlab.compile(lambda a, w: torch.tanh(a @ w).exp().sum())
    arguments = [tensor(3, 3), tensor(3, 3, seed=2)]
    loss = compiled(*arguments)
    with monkeypatch.context() as patch:
        patch.setattr(build, "build", interrupted)
        with pytest.raises(KeyboardInterrupt):
            loss.backward()
    assert all(x.grad is None for x in arguments)
    loss = compiled(*arguments)
    loss.backward()
    expected = torch.autograd.grad(torch.tanh(arguments[0] @ arguments[1]).exp().sum(), arguments)
    torch.testing.assert_close([x.grad for x in arguments], list(expected))
    assert len(compiled.versions) == 1


@pytest.mark.parametrize("name, backend", scenario.cases())
def test_as_in_eager_execution(name, backend):
    scenario.check(name, backend)
