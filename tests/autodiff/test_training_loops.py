"""Training loops and functions of every kind: optimizers in hooks, adversarial training, straight-through
gradients, layers, losses, singular points."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.autodiff.scenarios import Scenarios, attempt, tensor

scenario = Scenarios()


@scenario
def a_step_in_backward(compiled):
    # optimizer in backward
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
    c = compiled(m)
    opts = {p: torch.optim.SGD([p], 0.1) for p in m.parameters()}

    def step(p):
        opts[p].step()
        opts[p].zero_grad()

    for p in m.parameters():
        p.register_post_accumulate_grad_hook(step)
    for i in range(3):
        c(tensor(2, 3, seed=i)).pow(2).sum().backward()
    return [list(m.parameters())]


@scenario
def two_regions(compiled):
    torch.manual_seed(0)
    a = nn.Linear(3, 3)
    b = nn.Linear(3, 3)
    ca, cb = compiled(a), compiled(b)
    x = tensor(2, 3)
    y = cb(ca(x))
    y.sum().backward()
    with torch.no_grad():
        for p in [*a.parameters(), *b.parameters()]:
            p -= 0.1 * p.grad
    y = cb(ca(x))
    y.pow(2).sum().backward()
    return [p.grad for p in a.parameters()]


@scenario
def adversarial_training(compiled):
    torch.manual_seed(0)
    g = nn.Linear(2, 3)
    d = nn.Linear(3, 1)
    cg, cd = compiled(g), compiled(d)
    og = torch.optim.SGD(g.parameters(), 0.1)
    od = torch.optim.SGD(d.parameters(), 0.1)
    for i in range(3):
        z = tensor(4, 2, seed=i, grad=False)
        fake = cg(z)
        od.zero_grad()
        (cd(fake.detach()) - cd(tensor(4, 3, seed=i, grad=False))).mean().backward()
        od.step()
        og.zero_grad()
        cd(fake).mean().neg().backward()
        og.step()
    return [list(g.parameters()), list(d.parameters())]


@scenario
def a_running_mean(compiled):
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(3, 3)
            s.register_buffer("n", torch.zeros(3))

        def forward(s, x):
            y = s.l(x)
            with torch.no_grad():
                s.n.mul_(0.9).add_(y.mean(0), alpha=0.1)
            return y * s.n

    torch.manual_seed(0)
    m = M()
    c = compiled(m)
    for _ in range(3):
        c(tensor(2, 3)).sum().backward()
    return [m.n, m.l.weight.grad, m.n._version]


@scenario
def weights_clipped_inside(compiled):
    class M(nn.Module):
        def __init__(s):
            super().__init__()
            s.l = nn.Linear(3, 3)

        def forward(s, x):
            with torch.no_grad():
                s.l.weight.clamp_(-0.1, 0.1)
            return s.l(x)

    torch.manual_seed(0)
    m = M()
    c = compiled(m)
    r = attempt(lambda: c(tensor(2, 3)).sum().backward())
    return [r, m.l.weight, m.l.weight.grad]


@scenario
def straight_through(compiled):
    f = compiled(lambda a: a + (a.round() - a).detach())
    x = tensor(3)
    y = f(x)
    y.pow(2).sum().backward()
    return [y, x.grad]


@scenario
def gumbel_softmax(compiled):
    f = compiled(lambda a: F.gumbel_softmax(a, hard=True))
    x = tensor(4, 3)
    torch.manual_seed(0)
    y = f(x)
    (y * torch.arange(3.0)).sum().backward()
    return [y, x.grad, torch.rand(1)]


@scenario
def gradient_reversal(compiled):
    f = compiled(lambda a: -a + (2 * a).detach())
    x = tensor(3)
    f(x).sum().backward()
    return [x.grad]


@scenario
def a_branch_without_gradient(compiled):
    def g(a):
        with torch.no_grad():
            t = a.softmax(-1)
        return (F.log_softmax(a, -1) * t).sum()

    f = compiled(g)
    x = tensor(4, 3)
    f(x).backward()
    return [x.grad]


@scenario
def logsumexp_of_masked_rows(compiled):
    f = compiled(lambda a, m: torch.logsumexp(a.masked_fill(m, float("-inf")), -1))
    x = tensor(4, 3)
    m = torch.tensor([[True] * 3, [False] * 3, [True, False, True], [False, True, False]])
    y = f(x, m)
    y[1:].sum().backward()
    return [y, x.grad]


@scenario
def softmax_of_masked_rows(compiled):
    f = compiled(lambda a, m: a.masked_fill(m, float("-inf")).softmax(-1))
    x = tensor(4, 3)
    m = torch.tensor([[True] * 3, [False] * 3, [True, False, True], [False, True, False]])
    y = f(x, m)
    y.nan_to_num().pow(2).sum().backward()
    return [y, x.grad]


@scenario
def where_on_both_branches(compiled):
    f = compiled(lambda a: torch.where(a > 0, a.sqrt(), torch.zeros(())))
    x = torch.tensor([-1.0, 0.0, 4.0], requires_grad=True)
    f(x).sum().backward()
    return [x.grad]


@scenario
def divisions_by_zero(compiled):
    f = compiled(lambda a, b: a / b + a**b + torch.atan2(a, b) + torch.fmod(a, b + 1))
    x = torch.tensor([0.0, 1.0, -1.0], requires_grad=True)
    w = torch.tensor([0.0, 2.0, 2.0], requires_grad=True)
    f(x, w).sum().backward()
    return [x.grad, w.grad]


@scenario
def powers(compiled):
    f = compiled(lambda a: (a**2 + a**3 + a**0.5 + a**-1 + a**0 + 2**a + a**1).sum())
    x = torch.tensor([0.0, 1.0, 2.0, 0.5], requires_grad=True)
    f(x).backward()
    return [x.grad]


@scenario
def cumulative_operators(compiled):
    f = compiled(lambda a: (a.cumsum(0) * a.cumprod(0)).sum() + a.cummax(0)[0].sum() + a.logcumsumexp(0).sum())
    x = tensor(5)
    f(x).backward()
    return [x.grad]


@scenario
def sorting(compiled):
    f = compiled(
        lambda a: a.sort(-1, descending=True)[0][:, :2].sum() + a.argsort(-1).float().sum() + a.kthvalue(2)[0].sum()
    )
    x = tensor(4, 5)
    f(x).backward()
    return [x.grad]


@scenario
def einsum(compiled):
    f = compiled(lambda a, b: torch.einsum("bij,bjk->bik", a, b).exp().sum() + torch.einsum("bij,bij->b", a, a).sum())
    x = tensor(2, 3, 4)
    w = tensor(2, 4, 3)
    f(x, w).backward()
    return [x.grad, w.grad]


@scenario
def fft(compiled):
    f = compiled(lambda a: torch.fft.rfft(a).abs().pow(2).sum())
    x = tensor(8)
    f(x).backward()
    return [x.grad]


@scenario
def linear_algebra(compiled):
    f = compiled(
        lambda a: (
            torch.linalg.inv(a @ a.T + torch.eye(3)).sum()
            + torch.logdet(a @ a.T + torch.eye(3))
            + torch.linalg.cholesky(a @ a.T + torch.eye(3)).sum()
            + torch.linalg.solve(a @ a.T + torch.eye(3), a).sum()
        )
    )
    x = tensor(3, 3)
    f(x).backward()
    return [x.grad]


@scenario
def a_long_chain(compiled):
    def g(a):
        for i in range(150):
            a = a.sin() * 1.01 + 0.01 * i
        return a

    f = compiled(g)
    x = tensor(5)
    f(x).sum().backward()
    return [x.grad]


@scenario
def many_inputs(compiled):
    ps = [tensor(2, seed=i) for i in range(80)]
    f = compiled(lambda *ps: sum(p.sin() for p in ps))
    f(*ps).sum().backward()
    return [p.grad for p in ps]


@scenario
def many_results(compiled):
    f = compiled(lambda a: tuple(a * k for k in range(40)))
    x = tensor(3)
    r = f(x)
    (r[3] + r[39]).sum().backward()
    y = f(x)
    sum(q.sum() for q in y).backward()
    return [x.grad]


@scenario
def train_and_eval_in_turn(compiled):
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5))
    c = compiled(m)
    x = tensor(4, 3)
    out = []
    for mode in (True, False, True, False):
        m.train(mode)
        torch.manual_seed(1)
        m.zero_grad()
        y = c(x)
        y.pow(2).sum().backward()
        out += [y, [p.grad.clone() for p in m.parameters()], m[1].running_mean.clone()]
    with torch.no_grad():
        out.append(c(x))
    return out


@scenario
def gradients_set_to_zero(compiled):
    torch.manual_seed(0)
    m = nn.Linear(3, 3)
    c = compiled(m)
    for _ in range(3):
        m.zero_grad(set_to_none=False)
        c(tensor(2, 3)).pow(2).sum().backward()
    return [m.weight.grad]


@scenario
def one_buffer_for_all_gradients(compiled):
    torch.manual_seed(0)
    m = nn.Linear(3, 3)
    c = compiled(m)
    g = torch.zeros(12)
    m.weight.grad = g[:9].view(3, 3)
    m.bias.grad = g[9:]
    c(tensor(2, 3)).pow(2).sum().backward()
    return [g]


@scenario
def an_average_of_parameters(compiled):
    torch.manual_seed(0)
    m = nn.Linear(3, 3)
    c = compiled(m)
    ema = copy.deepcopy(m)
    opt = torch.optim.Adam(m.parameters(), 1e-2)
    for i in range(4):
        opt.zero_grad()
        c(tensor(2, 3, seed=i)).pow(2).sum().backward()
        opt.step()
        with torch.no_grad():
            for p, q in zip(ema.parameters(), m.parameters(), strict=True):
                p.lerp_(q, 0.1)
    return [list(ema.parameters())]


@scenario
def views_of_a_flat_parameter(compiled):
    # replicas: functional_call with views of a flat parameter
    torch.manual_seed(0)
    m = nn.Linear(3, 2)
    c = compiled(m)
    flat = tensor(8)
    y = torch.func.functional_call(c, {"weight": flat[:6].view(2, 3), "bias": flat[6:]}, (tensor(4, 3),))
    y.pow(2).sum().backward()
    return [flat.grad]


@scenario
def a_parametrization(compiled):
    import torch.nn.utils.parametrize as P

    class Sym(nn.Module):
        def forward(s, X):
            return X.triu() + X.triu(1).t()

    torch.manual_seed(0)
    m = nn.Linear(3, 3)
    P.register_parametrization(m, "weight", Sym())
    c = compiled(m)
    c(tensor(2, 3)).pow(2).sum().backward()
    return [p.grad for p in m.parameters()]


@scenario
def forward_hooks(compiled):
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(3, 3), nn.ReLU())
    m[0].register_forward_hook(lambda m, i, o: o * 2)
    m[0].register_forward_pre_hook(lambda m, i: (i[0] + 1,))
    c = compiled(m)
    x = tensor(2, 3)
    c(x).sum().backward()
    return [x.grad, m[0].weight.grad]


@scenario
def loss_scaling_under_autocast(compiled):
    torch.manual_seed(0)
    m = nn.Linear(3, 3)
    c = compiled(m)
    s = torch.amp.GradScaler("cpu", init_scale=1024.0)
    opt = torch.optim.SGD(m.parameters(), 0.1)
    for i in range(3):
        opt.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            l = c(tensor(2, 3, seed=i)).float().pow(2).mean()
        s.scale(l).backward()
        s.unscale_(opt)
        nn.utils.clip_grad_norm_(m.parameters(), 1.0)
        s.step(opt)
        s.update()
    return ["autocast"] + [*m.parameters()]


@scenario
def tied_weights_under_autocast(compiled):
    torch.manual_seed(0)
    m = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    m[1].weight = m[0].weight
    c = compiled(m)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = c(tensor(2, 3))
        z = c(tensor(2, 3))
    (y.float().sum() + z.float().sum()).backward()
    return [p.grad for p in m.parameters()]


@scenario
def calls_in_turn(compiled):
    f = compiled(lambda a, w: (a @ w).tanh())
    w = tensor(3, 3)
    xs = [tensor(n, 3) for n in (2, 5, 2, 7)]
    ys = [f(x, w) for x in xs]
    for y in reversed(ys):
        y.sum().backward()
    return [w.grad] + [x.grad for x in xs]


@scenario
def each_gradient_of_a_convolution(compiled):
    out = []
    for k in range(3):
        f = compiled(lambda a, w, b: F.conv2d(a, w, b, stride=2, padding=1, groups=1).relu())
        t = [tensor(2, 3, 5, 5, grad=k == 0), tensor(4, 3, 3, 3, grad=k == 1), tensor(4, grad=k == 2)]
        f(*t).pow(2).sum().backward()
        out += [q.grad for q in t]
    return out


@scenario
def transposed_convolution(compiled):
    f = compiled(
        lambda a, w: F.conv_transpose2d(a, w, stride=2).gelu() if False else F.gelu(F.conv_transpose2d(a, w, stride=2))
    )
    a = tensor(2, 3, 4, 4)
    w = tensor(3, 2, 3, 3)
    f(a, w).pow(2).sum().backward()
    return [a.grad, w.grad]


@scenario
def interpolation(compiled):
    f = compiled(lambda a: F.interpolate(a, scale_factor=2, mode="bilinear") + F.interpolate(a, size=(8, 8)))
    a = tensor(2, 3, 4, 4)
    f(a).pow(2).sum().backward()
    return [a.grad]


@scenario
def padding(compiled):
    f = compiled(
        lambda a: (
            F.pad(a, (1, 2), mode="reflect").sum()
            + F.pad(a, (1, 2), mode="replicate").pow(2).sum()
            + F.pad(a, (1, 2), value=3.0).pow(2).sum()
        )
    )
    a = tensor(2, 3, 4)
    f(a).backward()
    return [a.grad]


@scenario
def losses(compiled):
    f = compiled(
        lambda a, b: (
            F.mse_loss(a, b)
            + F.l1_loss(a, b)
            + F.smooth_l1_loss(a, b)
            + F.huber_loss(a, b)
            + F.binary_cross_entropy_with_logits(a, b.sigmoid())
            + F.kl_div(a.log_softmax(-1), b.softmax(-1), reduction="batchmean")
            + F.cosine_similarity(a, b).sum()
            + F.triplet_margin_loss(a, b, a * b)
            + F.hinge_embedding_loss(a, torch.ones(3, 4))
        )
    )
    a = tensor(3, 4)
    b = tensor(3, 4, seed=5)
    f(a, b).backward()
    return [a.grad, b.grad]


@scenario
def multi_head_attention(compiled):
    torch.manual_seed(0)
    m = nn.MultiheadAttention(8, 2, batch_first=True)
    c = compiled(m)
    x = tensor(2, 5, 8)
    y, w = c(x, x, x)
    (y.sum() + w.pow(2).sum()).backward()
    y, _ = c(x, x, x, need_weights=False)
    y.pow(2).sum().backward()
    return [x.grad] + [p.grad for p in m.parameters()]


@scenario
def an_encoder_layer(compiled):
    torch.manual_seed(0)
    m = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    c = compiled(m)
    x = tensor(2, 5, 8)
    torch.manual_seed(3)
    y = c(x)
    y.pow(2).sum().backward()
    m.eval()
    y2 = c(x)
    y2.pow(3).sum().backward()
    with torch.no_grad():
        y3 = c(x)
    return [y, y2, y3, x.grad] + [p.grad for p in m.parameters()]


@scenario
def a_bidirectional_lstm(compiled):
    torch.manual_seed(0)
    m = nn.LSTM(3, 4, bidirectional=True)
    c = compiled(m)
    x = tensor(5, 2, 3)
    h = (tensor(2, 2, 4), tensor(2, 2, 4, seed=5))
    y, (a, b) = c(x, h)
    y.pow(2).sum().backward()
    x2 = tensor(5, 2, 3, seed=8)
    y, (a, b) = c(x2, h)
    (a.sum() + b.sum()).backward()
    return [x.grad, x2.grad, h[0].grad, h[1].grad] + [p.grad for p in m.parameters()]


@scenario
def an_lstm_with_and_without_gradients(compiled):
    torch.manual_seed(0)
    m = nn.LSTM(3, 4)
    c = compiled(m)
    x = tensor(5, 2, 3)
    with torch.no_grad():
        y = c(x)[0]
    z = c(x.detach())[0]
    z.sum().backward()
    m.requires_grad_(False)
    q = c(x)[0]
    q.sum().backward()
    return [y, z, q, x.grad]


@scenario
def topk(compiled):
    f = compiled(lambda a: a.topk(2))
    x = tensor(5)
    v, i = f(x)
    v.sum().backward()
    return [v, i, x.grad]


@pytest.mark.parametrize("name, backend", scenario.cases())
def test_as_in_eager_execution(name, backend):
    scenario.check(name, backend, 1e-4)
