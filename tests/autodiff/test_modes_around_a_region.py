"""Modes around a compiled region with gradients: autocast, inference mode, ``torch.func``, batched gradients, forward
mode, deterministic algorithms, other defaults."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.autograd import forward_ad as fw

from tests.autodiff.scenarios import Scenarios, attempt, tensor

scenario = Scenarios()


@scenario
def backward_under_no_grad(compiled):
    f = compiled(lambda a: a.exp().sin())
    x = tensor(3)
    y = f(x)
    with torch.no_grad():
        y.sum().backward() if False else torch.autograd.backward([y], [torch.ones(3)])
    return [x.grad]


@scenario
def backward_in_inference_mode(compiled):
    f = compiled(lambda a: a.exp().sin())
    x = tensor(3)
    y = f(x)
    with torch.inference_mode():
        r = attempt(lambda: torch.autograd.backward([y], [torch.ones(3)]))
    return [r, x.grad, x.grad.is_inference() if x.grad is not None else None]


@scenario
def a_call_in_inference_mode(compiled):
    f = compiled(lambda a: a.exp().sin())
    x = tensor(3)
    with torch.inference_mode():
        y = f(x)
    return [y, y.requires_grad, y.is_inference()]


@scenario
def an_inference_tensor_that_would_be_kept(compiled):
    f = compiled(lambda a, w: (a * w).sum())
    with torch.inference_mode():
        a = torch.ones(3)
    w = tensor(3)
    r = attempt(lambda: f(a, w).backward())
    return [r, w.grad]


@scenario
def an_inference_tensor_that_is_not_kept(compiled):
    f = compiled(lambda a, w: (a + w).sum())
    with torch.inference_mode():
        a = torch.ones(3)
    w = tensor(3)
    r = attempt(lambda: f(a, w).backward())
    return [r, w.grad]


@scenario
def function_transforms_around(compiled):
    f = compiled(lambda a: (a.exp() * 2).sum())
    x = tensor(3)
    return [
        torch.func.grad(f)(x),
        torch.func.vjp(f, x)[1](torch.tensor(1.0))[0],
        torch.vmap(f)(tensor(2, 3)),
        torch.func.jvp(f, (x.detach(),), (x.detach(),)),
        torch.func.hessian(f)(x.detach()),
    ]


@scenario
def function_transforms_of_a_module(compiled):
    torch.manual_seed(0)
    m = nn.Linear(3, 3)
    c = compiled(m)
    p = {k: v.detach().clone() for k, v in m.named_parameters()}
    x = tensor(2, 3)
    return [torch.func.grad(lambda p: torch.func.functional_call(c if True else m, p, (x,)).sum())(p)["weight"]]


@scenario
def other_parameters_for_a_module(compiled):
    torch.manual_seed(0)
    m = nn.Linear(3, 3)
    c = compiled(m)
    p = {k: v.detach().clone().requires_grad_() for k, v in m.named_parameters()}
    x = tensor(2, 3)
    y = torch.func.functional_call(c, p, (x,))
    y.sum().backward()
    return [p["weight"].grad, m.weight.grad]


@scenario
def autocast_inside(compiled):
    def g(a, w):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = a @ w
        return y.float().exp()

    f = compiled(g)
    x = tensor(3, 3)
    w = tensor(3, 3)
    y = f(x, w)
    y.sum().backward()
    return [y, x.grad, w.grad]


@scenario
def autocast_around(compiled):
    f = compiled(lambda a, w: F.softmax(a @ w, -1).sum() + F.gelu(a @ w).sum())
    x = tensor(3, 3)
    w = tensor(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = f(x, w)
    y.backward()
    return [y, x.grad, w.grad]


@scenario
def backward_under_the_same_autocast(compiled):
    f = compiled(lambda a, w: F.softmax(a @ w, -1).pow(2).sum() + F.gelu(a @ w).sum())
    x = tensor(3, 3)
    w = tensor(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = f(x, w)
        y.backward()
    return [y, x.grad, w.grad]


@scenario
def autocast_switched_off_inside(compiled):
    def g(a, w):
        with torch.autocast("cpu", enabled=False):
            y = a @ w
        return y.exp()

    f = compiled(g)
    x = tensor(3, 3)
    w = tensor(3, 3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = f(x, w)
    y.sum().backward()
    return [y, x.grad, w.grad]


@scenario
def backward_alone_under_autocast(compiled):
    f = compiled(lambda a, w: (a @ w).exp())
    x = tensor(3, 3)
    w = tensor(3, 3)
    y = f(x, w)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y.sum().backward()
    return [x.grad.dtype, w.grad.dtype]  # eager execution rounds these gradients to bfloat16, compiled code does not


@scenario
def forward_mode_around(compiled):
    f = compiled(lambda a: a.exp() * 2)
    x = tensor(3)
    with fw.dual_level():
        d = fw.make_dual(x, torch.ones(3))
        y = f(d)
        p, t = fw.unpack_dual(y)
    return [p, t]


@scenario
def batched_upstream_gradients(compiled):
    f = compiled(lambda a, w: ((a @ w).exp() * w.sum()).sum(0))
    x = tensor(3, 4)
    w = tensor(4, 2)
    y = f(x, w)
    return [
        torch.autograd.grad(y, (x, w), torch.eye(2), is_grads_batched=True),
        torch.autograd.functional.jacobian(f, (x, w)),
        torch.autograd.functional.jacobian(f, (x, w), vectorize=True),
    ]


@scenario
def batched_upstream_gradients_of_one_result(compiled):
    f = compiled(lambda a, w: ((a @ w).exp().sum(0), a.sin()))
    x = tensor(3, 4)
    w = tensor(4, 2)
    y = f(x, w)[0]
    return [torch.autograd.grad(y, (x, w), torch.eye(2), is_grads_batched=True)]


@scenario
def a_dual_upstream_gradient(compiled):
    f = compiled(lambda a: (a * 2).exp())
    x = tensor(3)
    y = f(x)
    with fw.dual_level():
        d = fw.make_dual(torch.ones(3), torch.ones(3))
        (g,) = torch.autograd.grad(y, x, d)
        p, t = fw.unpack_dual(g)
    return [p, t]


@scenario
def deterministic_algorithms_in_backward(compiled):
    f = compiled(lambda w, i: F.embedding(i, w).exp().sum())
    w = tensor(5, 3)
    i = torch.tensor([1, 1, 3])
    y = f(w, i)
    torch.use_deterministic_algorithms(True)
    try:
        y.backward()
    finally:
        torch.use_deterministic_algorithms(False)
    return [w.grad]


@scenario
def another_default_dtype_in_backward(compiled):
    f = compiled(lambda a: a.exp().mean() + torch.tensor(1.5))
    x = tensor(3)
    y = f(x)
    torch.set_default_dtype(torch.float64)
    try:
        y.backward()
    finally:
        torch.set_default_dtype(torch.float32)
    return [x.grad]


@scenario
def another_default_device_in_backward(compiled):
    f = compiled(lambda a: a.exp().mean() + torch.zeros(1))
    x = tensor(3)
    y = f(x)
    with torch.device("meta"):
        y.sum().backward()
    return [x.grad]


@scenario
def a_branch_on_the_gradient_mode(compiled):
    def g(a):
        if torch.is_grad_enabled():
            return a * 2
        return a * 3

    f = compiled(g)
    x = tensor(3)
    y = f(x)
    with torch.no_grad():
        z = f(x)
    return [y, z]


@scenario
def no_grad_inside(compiled):
    def g(a, w):
        with torch.no_grad():
            b = a * w
        return (b * a).sum()

    f = compiled(g)
    x = tensor(3)
    w = tensor(3, seed=1)
    f(x, w).backward()
    return [x.grad, w.grad]


@pytest.mark.parametrize("name, backend", scenario.cases())
def test_as_in_eager_execution(name, backend):
    scenario.check(name, backend)
