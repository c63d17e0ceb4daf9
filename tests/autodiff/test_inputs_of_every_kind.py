"""Inputs, upstream gradients and modules of every kind under autograd: dtypes, layouts, special values, layers."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.autodiff.scenarios import Scenarios, attempt, tensor

scenario = Scenarios()
TWICE = {"double_backward": True}


@scenario
def complex_inputs(compiled):
    f = compiled(lambda a, w: (a * w.conj()).abs().sum() + (a @ w).real.sum())
    x = tensor(3, 3, dtype=torch.complex64)
    w = tensor(3, 3, dtype=torch.complex64, seed=2)
    f(x, w).backward()
    return [x.grad, w.grad]


@scenario
def complex_results(compiled):
    f = compiled(lambda a, w: (torch.complex(a, w) * 2).exp())
    x = tensor(3)
    w = tensor(3, seed=2)
    y = f(x, w)
    y.backward(torch.ones(3, dtype=torch.complex64) * (1 + 2j))
    return [y, x.grad, w.grad]


@scenario
def a_conjugated_upstream_gradient(compiled):
    f = compiled(lambda a: a * 2)
    x = tensor(3, dtype=torch.complex64)
    y = f(x)
    y.conj().backward(torch.ones(3, dtype=torch.complex64) * (1 + 2j))
    return [x.grad]


@scenario
def half_precision_parameters(compiled):
    out = []
    for d in (torch.bfloat16, torch.float16):
        torch.manual_seed(0)
        m = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.LayerNorm(4)).to(d)
        c = compiled(m)
        x = tensor(5, 4, dtype=d)
        y = c(x)
        y.sum().backward()
        out += [y, x.grad] + [p.grad for p in m.parameters()]
    return out


@scenario
def integer_inputs(compiled):
    f = compiled(lambda w, i: F.embedding(i, w).sum() + (i * 2).float().mean() * w.sum())
    w = tensor(4, 3)
    i = torch.tensor([0, 2, 2])
    f(w, i).backward()
    return [w.grad]


@scenario
def empty_tensors(compiled):
    f = compiled(lambda a, w: (a @ w).exp())
    x = tensor(0, 3)
    w = tensor(3, 4)
    y = f(x, w)
    y.sum().backward()
    return [y, x.grad, w.grad]


@scenario
def numbers_as_tensors(compiled):
    f = compiled(lambda a, b: a * b.exp())
    x = tensor(1)[0].detach().requires_grad_()
    y = tensor(1, seed=4)[0].detach().requires_grad_()
    f(x, y).backward()
    return [x.grad, y.grad]


@scenario
def nan_and_infinities(compiled):
    f = compiled(lambda a, w: (a * w).exp() / w.sum() + torch.where(a > 0, a.log(), a))
    x = torch.tensor([1.0, float("nan"), float("inf"), -float("inf"), 0.0, -0.0], requires_grad=True)
    w = torch.tensor([1.0, 2, 3, 4, 5, 6], requires_grad=True)
    y = f(x, w)
    y.backward(torch.tensor([1.0, 1, 1, 0, float("nan"), float("inf")]))
    return [y, x.grad, w.grad]


@scenario
def expanded_inputs(compiled):
    f = compiled(lambda a, w: (a * w).exp())
    x = tensor(1, 3)
    w = tensor(4, 3)
    y = f(x.expand(4, 3), w)
    y.sum().backward()
    e = x.detach().expand(4, 3).requires_grad_()
    f(e, w).sum().backward()
    return [x.grad, w.grad, e.grad, e.grad.stride()]


@scenario
def the_gradient_of_a_view(compiled):
    f = compiled(lambda a: a.exp() * 2)
    x = tensor(4, 4)
    v = x[1:3].t()
    v.retain_grad()
    f(v).sum().backward()
    return [x.grad, v.grad, v.grad.stride()]


@scenario
def strides_of_accumulated_gradients(compiled):
    f = compiled(lambda a, w: (a @ w).exp())
    out = []
    for x, w in (
        (tensor(4, 3), tensor(3, 4)),
        (tensor(3, 4).t(), tensor(4, 3).t()),
        (tensor(4, 6)[:, ::2], tensor(6, 4)[::2]),
    ):
        x = x.detach().requires_grad_()
        w = w.detach().requires_grad_()
        for _ in range(2):
            f(x, w).sum().backward()
        out += [x.grad, w.grad, x.grad.stride(), w.grad.stride()]
    return out


@scenario
def accumulation_into_a_strided_grad(compiled):
    f = compiled(lambda a: a.exp())
    x = tensor(3)
    x.grad = torch.zeros(6)[::2]
    f(x).sum().backward()
    return [x.grad, x.grad.stride()]


@scenario
def a_sparse_upstream_gradient(compiled):
    f = compiled(lambda a: a * 2)
    x = tensor(5, 3)
    w = f(x)
    F.embedding(torch.tensor([1, 1, 3]), w, sparse=True).sum().backward()
    return [x.grad.to_dense()]


@scenario
def a_sparse_gradient(compiled):
    f = compiled(lambda w, i: F.embedding(i, w, sparse=True).exp())
    x = tensor(5, 3)
    f(x, torch.tensor([1, 1, 3])).sum().backward()
    return [x.grad.is_sparse, x.grad.to_dense()]


@scenario
def a_zero_tensor_upstream(compiled):
    f = compiled(lambda a: (a * 2, a.exp()))
    x = tensor(3)
    y, z = f(x)
    torch.autograd.backward([y, z], [torch._efficientzerotensor(3), torch.ones(3)])
    return [x.grad]


@scenario
def every_choice_of_inputs_that_require_grad(compiled):
    f = compiled(lambda a, b: (a * b).sum())
    out = []
    for ga in (0, 1):
        for gb in (0, 1):
            x = tensor(3, grad=bool(ga))
            w = tensor(3, seed=1, grad=bool(gb))
            y = f(x, w)
            if y.requires_grad:
                y.backward()
            out += [x.grad, w.grad, y.requires_grad]
    return out


@scenario
def some_gradients_only(compiled):
    f = compiled(lambda a, w: (a @ w).exp().sum())
    x = tensor(3, 3)
    w = tensor(3, 3)
    y = f(x, w)
    return [torch.autograd.grad(y, w, retain_graph=True), torch.autograd.grad(y, x)]


@scenario
def an_unused_input(compiled):
    f = compiled(lambda a, b: (a * 2, b * 1 if False else a))
    x = tensor(3)
    w = tensor(3)
    y = f(x, w)[0]
    y.sum().backward()
    return [x.grad, w.grad, attempt(lambda: torch.autograd.grad(f(x, w)[0].sum(), w))]


@scenario
def a_gradient_of_zeros(compiled):
    f = compiled(lambda a, b: (a, torch.where(a > 100, b, torch.zeros(()))))
    x = tensor(3)
    w = tensor(3)
    y = f(x, w)[1]
    y.sum().backward()
    return [x.grad, w.grad]


@scenario
def a_detached_factor(compiled):
    f = compiled(lambda a, b: (a.detach() * b).sum())
    x = tensor(3)
    w = tensor(3, seed=1)
    f(x, w).backward()
    return [x.grad, w.grad]


@scenario
def accumulation(compiled):
    f = compiled(lambda a: a.exp())
    x = tensor(3)
    for _ in range(3):
        f(x).sum().backward()
    return [x.grad]


@scenario
def real_viewed_as_complex(compiled):
    f = compiled(lambda a: torch.view_as_complex(a).abs())
    x = tensor(3, 2)
    f(x).sum().backward()
    return [x.grad]


@scenario
def nested_arguments(compiled):
    f = compiled(lambda d: {"y": d["a"] * d["b"][0], "z": [d["a"].exp()]})
    x = tensor(3)
    w = tensor(3, seed=1)
    r = f({"a": x, "b": [w]})
    (r["y"].sum() + r["z"][0].sum()).backward()
    return [x.grad, w.grad]


@scenario
def keyword_arguments(compiled):
    f = compiled(lambda a, *, w=None: (a if w is None else a * w).exp())
    x = tensor(3)
    w = tensor(3, seed=1)
    f(x, w=w).sum().backward()
    f(x).sum().backward()
    return [x.grad, w.grad]


@scenario
def a_parameter_in_a_closure(compiled):
    w = tensor(3, seed=1)
    f = compiled(lambda a: (a * w).exp())
    x = tensor(3)
    f(x).sum().backward()
    r = [x.grad.clone(), w.grad.clone()]
    with torch.no_grad():
        w.add_(1)
    f(x).sum().backward()
    return r + [x.grad, w.grad]


@scenario
def another_dtype_inside(compiled):
    f = compiled(lambda a: a.double() * 2)
    x = tensor(3)
    y = f(x)
    y.sum().backward()
    return [x.grad, y]


@scenario
def zeros_in_a_product(compiled):
    f = compiled(lambda a: torch.cumprod(a, 0).sum() + torch.prod(a) + torch.norm(a))
    x = tensor(3)
    f(x).backward()
    x = torch.tensor([1.0, 0, 0], requires_grad=True)
    f(x).backward()
    return [x.grad]


@scenario
def norms_of_zero(compiled):
    f = compiled(
        lambda a: torch.norm(a) + a.norm(p=1) + torch.linalg.vector_norm(a, 3) + torch.cdist(a[None], a[None] * 1).sum()
    )
    x = tensor(3)
    f(x).backward()
    x = torch.zeros(3, requires_grad=True)
    f(x).backward()
    return [x.grad]


@scenario
def ties(compiled):
    f = compiled(lambda a: a.max() + a.amax() + a.median() + a.max(0)[0] + a.sort()[0][0])
    x = tensor(4)
    f(x).backward()
    x = torch.ones(4, requires_grad=True)
    f(x).backward()
    return [x.grad]


@scenario
def indices_that_repeat(compiled):
    f = compiled(lambda a, i: a[i].exp().sum() + a.gather(0, i).sum() + a.index_select(0, i).sin().sum())
    x = tensor(4)
    i = torch.tensor([0, 0, 3])
    f(x, i).backward()
    x = tensor(4)
    i = torch.tensor([1, 1, 1])
    f(x, i).backward()
    return [x.grad]


@scenario
def masks(compiled):
    f = compiled(lambda a, m: a.masked_fill(m, 0.0).exp().sum() + torch.where(m, a, a * 2).sum())
    x = tensor(4)
    m = torch.tensor([True, False, True, False])
    f(x, m).backward()
    f(x, ~m).backward()
    return [x.grad]


@scenario
def cross_entropy_that_ignores(compiled):
    f = compiled(lambda a, i: F.cross_entropy(a, i, ignore_index=-100))
    x = tensor(4, 5)
    f(x, torch.tensor([1, 2, 3, 4])).backward()
    f(x, torch.tensor([-100, 2, -100, 4])).backward()
    f(x, torch.tensor([-100] * 4)).backward()
    return [x.grad]


@scenario
def cross_entropy_with_weights(compiled):
    f = compiled(lambda a, i, w: F.cross_entropy(a, i, w, label_smoothing=0.1))
    x = tensor(4, 5)
    f(x, torch.tensor([1, 2, 3, 4]), torch.arange(5.0)).backward()
    f(x, torch.tensor([-100, 2, -100, 4]), torch.ones(5)).backward()
    return [x.grad]


@scenario
def embeddings(compiled):
    f = compiled(lambda w, i: F.embedding(i, w, padding_idx=0).sin().sum() + F.embedding_bag(i, w).exp().sum())
    w = tensor(5, 3)
    f(w, torch.tensor([[0, 1], [1, 4]])).backward()
    f(w, torch.tensor([[0, 0], [2, 4]])).backward()
    return [w.grad]


@scenario
def an_embedding_that_renormalizes(compiled):
    f = compiled(lambda w, i: F.embedding(i, w, max_norm=0.5).sum())
    w = tensor(5, 3)
    y = attempt(lambda: f(w, torch.tensor([0, 1])))
    r = attempt(lambda: y.backward())
    return [y if isinstance(y, str) else y, r, w, w.grad]


@scenario
def changing_batch_sizes(compiled):
    torch.manual_seed(0)
    m = nn.Linear(3, 2)
    c = compiled(m)
    out = []
    for n in (4, 4, 7, 1, 4, 0):
        m.zero_grad()
        y = c(tensor(n, 3, grad=False))
        y.pow(2).sum().backward()
        out += [y, m.weight.grad.clone(), m.bias.grad.clone()]
    return out


@scenario
def deepcopy_after_training(compiled):
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(3, 3), nn.Tanh())
    c = compiled(m)
    x = tensor(2, 3)
    c(x).sum().backward()
    d = copy.deepcopy(c)
    y = d(x)
    d.zero_grad() if hasattr(d, "zero_grad") else None
    y = d(x)
    y.sum().backward()
    return [m[0].weight.grad] + [p.grad for p in d.parameters()] + [y]


@scenario
def frozen_layers(compiled):
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 3))
    m[0].requires_grad_(False)
    c = compiled(m)
    x = tensor(2, 3, grad=False)
    c(x).sum().backward()
    r = [p.grad for p in m.parameters()]
    m[0].requires_grad_(True)
    c(x).sum().backward()
    return r + [p.grad for p in m.parameters()]


@scenario
def a_parameter_exchanged(compiled):
    torch.manual_seed(0)
    m = nn.Linear(3, 3)
    c = compiled(m)
    x = tensor(2, 3)
    c(x).sum().backward()
    m.weight = nn.Parameter(torch.ones(3, 3))
    c(x).sum().backward()
    return [m.weight.grad, m.bias.grad]


@scenario
def tied_weights(compiled):
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.a = nn.Linear(3, 3)
            s.b = nn.Linear(3, 3)
            s.b.weight = s.a.weight

        def forward(s, x):
            return s.b(torch.relu(s.a(x)))

    torch.manual_seed(0)
    m = M()
    c = compiled(m)
    c(tensor(2, 3)).pow(2).sum().backward()
    return [p.grad for p in m.parameters()]


@scenario
def a_parameter_as_result(compiled):
    torch.manual_seed(0)
    m = nn.Linear(3, 3)

    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(3, 3)

        def forward(s, x):
            return s.l.weight, s.l.weight[0], s.l(x)

    m = M()
    c = compiled(m)
    a, b, y = c(tensor(2, 3))
    (a.sum() + b.sum() + y.sum()).backward()
    return [a is m.l.weight, m.l.weight.grad]


@scenario
def rrelu(compiled):
    f = compiled(lambda a: F.rrelu(a, training=True))
    x = tensor(30)
    torch.manual_seed(0)
    y = f(x)
    y.sum().backward()
    return [y, x.grad, torch.rand(1)]


@scenario
def attention(compiled):
    f = compiled(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True))
    a = [tensor(1, 2, 5, 4, seed=i) for i in range(3)]
    f(*a).pow(2).sum().backward()
    return [x.grad for x in a]


@scenario
def lstm(compiled):
    torch.manual_seed(0)
    m = nn.LSTM(3, 4, 2, batch_first=True)
    c = compiled(m)
    x = tensor(2, 5, 3)
    y, (h, k) = c(x)
    (y.sum() + h.pow(2).sum()).backward()
    return [y, x.grad] + [p.grad for p in m.parameters()]


@scenario
def lstm_cell(compiled):
    torch.manual_seed(0)
    m = nn.LSTMCell(3, 4)
    c = compiled(m)
    x = tensor(2, 3)
    h = k = torch.zeros(2, 4)
    for _ in range(4):
        h, k = c(x, (h, k))
    h.sum().backward()
    return [x.grad] + [p.grad for p in m.parameters()]


@scenario
def a_convolutional_net(compiled):
    torch.manual_seed(0)
    m = nn.Sequential(
        nn.Conv2d(2, 3, 3, padding=1), nn.BatchNorm2d(3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, 2)
    )
    c = compiled(m)
    x = tensor(2, 2, 4, 4)
    for _ in range(2):
        c(x).pow(2).sum().backward()
    m.eval()
    y = c(x)
    y.sum().backward()
    return [x.grad, y] + [p.grad for p in m.parameters()] + [*m.buffers()]


@scenario
def channels_last(compiled):
    torch.manual_seed(0)
    m = nn.Sequential(nn.Conv2d(2, 3, 3, padding=1), nn.ReLU()).to(memory_format=torch.channels_last)
    c = compiled(m)
    x = tensor(2, 2, 4, 4).detach().to(memory_format=torch.channels_last).requires_grad_()
    y = c(x)
    y.pow(2).sum().backward()
    return [y, y.stride(), x.grad.stride(), m[0].weight.grad.stride(), x.grad, m[0].weight.grad]


@scenario
def spectral_norm(compiled):
    torch.manual_seed(0)
    m = torch.nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2))
    f = compiled(m)
    x = tensor(3, 3)
    for _ in range(3):
        y = f(x)
        y.pow(2).sum().backward()
    return [y, x.grad] + [p.grad for p in m.parameters()]


@pytest.mark.parametrize("name, backend", scenario.cases())
def test_as_in_eager_execution(name, backend):
    scenario.check(name, backend)
