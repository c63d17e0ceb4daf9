"""Second derivatives of compiled regions (Section 5.7) where the first depends on more than values: on writes, random
numbers, undefined upstream gradients, layouts."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.autodiff.scenarios import Scenarios, attempt, tensor

scenario = Scenarios()
TWICE = {"double_backward": True}


@scenario
def a_buffer_written_after_it_was_read(compiled):
    def g(a, buf):
        y = a * (buf * 1)
        buf.add_(1)
        return y.sin()

    f = compiled(g, options=TWICE)
    x = tensor(3)
    b = torch.ones(3)
    y = f(x, b)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    g.pow(2).sum().backward()
    return [g, b, x.grad]


@scenario
def dropout(compiled):
    f = compiled(lambda a, w: (F.dropout(a, 0.5) @ w).tanh(), options=TWICE)
    x = tensor(3, 3)
    w = tensor(3, 3, seed=2)
    torch.manual_seed(0)
    y = f(x, w)
    g = torch.autograd.grad(y.sum(), (x, w), create_graph=True)
    sum(q.pow(2).sum() for q in g).backward()
    return [g, x.grad, w.grad]


@scenario
def writes_into_intermediates(compiled):
    def g(a):
        y = a.exp()
        y = y.clone()
        y[0] = a[1]
        return y.sin()

    f = compiled(g, options=TWICE)
    x = tensor(3)
    y = f(x)
    (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
    g.pow(2).sum().backward()
    return [g, x.grad]


@scenario
def an_undefined_upstream_gradient(compiled):
    f = compiled(lambda a, w: (a.exp() * w, a.sin()), options=TWICE)
    x = tensor(3)
    w = tensor(3, seed=2)
    y, z = f(x, w)
    g = torch.autograd.grad(z.sum(), (x, w), create_graph=True, allow_unused=True)
    return [g[1] is None, torch.autograd.grad(g[0].sum(), x)]


@scenario
def mixed_derivatives(compiled):
    f = compiled(lambda a, w: (a.exp() * w).sum(), options=TWICE)
    x = tensor(3)
    w = tensor(3, seed=2)
    y = f(x, w)
    (g,) = torch.autograd.grad(y, w, create_graph=True)
    g2 = torch.autograd.grad(g.sum(), (x, w), allow_unused=True)
    return [g, g2]


@scenario
def a_linear_function(compiled):
    f = compiled(lambda a: (a * 2).sum(), options=TWICE)
    x = tensor(3)
    y = f(x)
    (g,) = torch.autograd.grad(y, x, create_graph=True)
    return [g, g.requires_grad]


@scenario
def a_gradient_penalty(compiled):
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(3, 8), nn.Softplus(), nn.Linear(8, 1))
    c = compiled(m, options=TWICE)
    x = tensor(4, 3)
    for _ in range(3):
        y = c(x)
        (g,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        ((g.norm(dim=1) - 1) ** 2).mean().backward()
    return [p.grad for p in m.parameters()]


@scenario
def a_freed_graph(compiled):
    f = compiled(lambda a: (a.exp()).sum(), options=TWICE)
    x = tensor(3)
    y = f(x)
    y.backward()
    return [attempt(y.backward)]


@scenario
def an_input_no_gradient_reads(compiled):
    # an unread parameter input stepped between
    f = compiled(lambda a, b: (a.exp() + b).sum(), options=TWICE)
    x = tensor(3)
    b = tensor(3)
    y = f(x, b)
    with torch.no_grad():
        b.add_(1)
    return [attempt(lambda: y.backward()), x.grad, b.grad]


@scenario
def layouts_of_upstream_gradients(compiled):
    f = compiled(lambda a, w: torch.tanh(a @ w), options=TWICE)
    x = tensor(3, 3)
    w = tensor(3, 3)
    y = f(x, w)
    (g,) = torch.autograd.grad(y, x, tensor(3, 3, seed=9, grad=False).t(), create_graph=True)
    g.sum().backward()
    r = [x.grad.clone()]
    y = f(x, w)
    u = tensor(3, 3, seed=8)
    (g,) = torch.autograd.grad(y, x, u, create_graph=True)
    g.pow(2).sum().backward()
    return r + [x.grad, u.grad]


@scenario
def batched_second_derivatives(compiled):
    f = compiled(lambda a: (a.exp() * a.sin()).sum().tanh(), options=TWICE)
    x = tensor(3)
    whole = torch.autograd.functional.hessian(f, x)
    return [whole, torch.autograd.functional.hessian(f, x, vectorize=True)]


@scenario
def dropout_as_a_result(compiled):
    f = compiled(lambda a: F.dropout(a, 0.5), options=TWICE)
    x = tensor(30)
    torch.manual_seed(0)
    y = f(x)
    (g,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
    g.pow(2).sum().backward()
    return [y, g, x.grad]


@scenario
def random_numbers_as_a_result(compiled):
    f = compiled(lambda a: (r := torch.rand(3), r * a.exp()), options=TWICE)
    x = tensor(3)
    torch.manual_seed(0)
    r, y = f(x)
    (g,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
    g.pow(2).sum().backward()
    return [r, y, g, x.grad]


@scenario
def native_dropout_whose_result_is_read(compiled):
    f = compiled(lambda a: torch.native_dropout(a, 0.5, True)[0].exp(), options=TWICE)
    x = tensor(30)
    torch.manual_seed(0)
    y = f(x)
    (g,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
    g.pow(2).sum().backward()
    return [y, g, x.grad]


@scenario
def attention(compiled):
    f = compiled(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True).sin(), options=TWICE)
    a = [tensor(1, 2, 5, 4, seed=i) for i in range(3)]
    y = f(*a)
    y.pow(2).sum().backward()
    g = f(*a)
    r = attempt(lambda: torch.autograd.grad(g.sum(), a, create_graph=True)[0].sum().backward())
    return [y, [x.grad for x in a], r]


@scenario
def attention_with_dropout(compiled):
    f = compiled(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, dropout_p=0.3).sin(), options=TWICE)
    a = [tensor(1, 2, 5, 4, seed=i) for i in range(3)]
    torch.manual_seed(0)
    y = f(*a)
    g = torch.autograd.grad(y.sum(), a, create_graph=True)
    sum(q.pow(2).sum() for q in g).backward()
    return [y, g, [x.grad for x in a]]


@scenario
def group_norm(compiled):
    m = nn.GroupNorm(2, 4)
    f = compiled(m, options=TWICE)
    x = tensor(3, 4, 5)
    y = f(x)
    (g,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
    g.pow(2).sum().backward()
    return [y, g, x.grad]


@scenario
def batch_norm(compiled):
    m = nn.BatchNorm1d(4)
    f = compiled(m, options=TWICE)
    x = tensor(3, 4, 5)
    for _ in range(2):
        y = f(x)
        (g,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
        g.pow(2).sum().backward()
    return [y, g, x.grad, m.running_mean, m.running_var]


@scenario
def a_convolutional_net(compiled):
    torch.manual_seed(0)
    m = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1),
        nn.LayerNorm([4, 4]),
        nn.SiLU(),
        nn.MaxPool2d(2),
        nn.ELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(3, 2),
        nn.LogSoftmax(-1),
    )
    f = compiled(m, options=TWICE)
    x = tensor(3, 2, 4, 4)
    y = f(x)
    (g,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
    g.pow(2).sum().backward()
    return [y, g, x.grad] + [p.grad for p in m.parameters()]


@scenario
def weight_norm(compiled):
    torch.manual_seed(0)
    m = torch.nn.utils.parametrizations.weight_norm(nn.Linear(3, 2))
    f = compiled(m, options=TWICE)
    x = tensor(3, 3)
    y = f(x)
    (g,) = torch.autograd.grad(y.pow(3).sum(), x, create_graph=True)
    g.pow(2).sum().backward()
    return [y, g, x.grad] + [p.grad for p in m.parameters()]


@scenario
def embeddings_and_indices(compiled):
    f = compiled(
        lambda w, i: F.embedding(i, w).pow(3).sum() + w[i].pow(2).sum() + w.index_select(0, i).exp().sum(),
        options=TWICE,
    )
    w = tensor(4, 3)
    i = torch.tensor([0, 0, 2])
    y = f(w, i)
    (g,) = torch.autograd.grad(y, w, create_graph=True)
    g.pow(2).sum().backward()
    return [y, g, w.grad]


@scenario
def scattered_writes(compiled):
    def h(w, i):
        y = torch.zeros(4, 3).index_add(0, i, w)
        y[1:3] = w[:2].sin()
        y.fill_diagonal_(1.0)
        y.masked_fill_(y > 2, 0.0)
        y[:, 0].mul_(2)
        return y.pow(3).sum() + torch.cat([w, y]).sort(0)[0].pow(2).sum() + y.cumsum(0).prod()

    f = compiled(h, options=TWICE)
    w = tensor(3, 3)
    i = torch.tensor([0, 0, 2])
    y = f(w, i)
    (g,) = torch.autograd.grad(y, w, create_graph=True)
    g.pow(2).sum().backward()
    return [y, g, w.grad]


@scenario
def by_the_upstream_gradient(compiled):
    # double-vjp trick: jvp by two vjps
    f = compiled(lambda a: a.exp(), options=TWICE)
    x = tensor(3)
    u = torch.zeros(3, requires_grad=True)
    y = f(x)
    (g,) = torch.autograd.grad(y, x, u, create_graph=True)
    (j,) = torch.autograd.grad(g, u, torch.ones(3))
    return [j]


@scenario
def autograd_functional(compiled):
    f = compiled(lambda a: (a.exp() * a.sin()).sum(), options=TWICE)
    x = tensor(3)
    v = torch.ones(3)
    A = torch.autograd.functional
    return [
        A.vjp(f, x),
        A.jvp(f, x, v),
        A.hvp(f, x, v),
        A.vhp(f, x, v),
        A.hessian(f, x),
        A.jacobian(f, x, create_graph=True),
    ]


@scenario
def a_rule_whose_branches_have_no_derivative_everywhere(compiled):
    f = compiled(torch.special.log_ndtr, options=TWICE)
    x = torch.tensor([-40.0, -3.0, 0.0, 2.0, 30.0], dtype=torch.float64, requires_grad=True)
    (first,) = torch.autograd.grad(f(x).sum(), x, create_graph=True)
    return [first, torch.autograd.grad(first.sum(), x)]


@pytest.mark.parametrize("name, backend", scenario.cases())
def test_as_in_eager_execution(name, backend):
    scenario.check(name, backend)
