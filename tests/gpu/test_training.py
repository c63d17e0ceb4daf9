"""On a CUDA device: forward and backward kernels of compiled regions, against eager PyTorch there."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import staxlab
from benchmarks import training

pytestmark = [pytest.mark.gpu]


def gelu_of_product(x, w):
    return F.gelu(x @ w).sum()


def row_sums(x, w):
    return (torch.relu(x + w[0]) * 2).sum(-1)


def layer_norm(x, w):
    return F.layer_norm(x @ w, (w.shape[1],), w[0], w[1]).tanh()


def softmax(x, w):
    return (x @ w).softmax(-1).pow(2).sum(-1), (x * 2).log_softmax(-1)


def cross_entropy(x, w):
    return F.cross_entropy(x @ w, torch.arange(x.shape[0], device=x.device) % w.shape[1])


@pytest.mark.parametrize("function", [gelu_of_product, row_sums, layer_norm, softmax, cross_entropy])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_gradients_are_eagers(function, dtype):
    torch.manual_seed(0)
    start = torch.randn(64, 96), torch.randn(96, 96) / 10
    found = []
    for f, precision in ((function, torch.float64), (staxlab.compile(function), dtype)):
        x, w = (t.to("cuda", dtype).to(precision).requires_grad_() for t in start)
        results = f(x, w)
        sum(r.sum() for r in (results if isinstance(results, tuple) else (results,))).backward()
        found.append((results, x.grad, w.grad))
    bound = 1e-4 if dtype is torch.float32 else 5e-2
    torch.testing.assert_close(found[1], found[0], rtol=bound, atol=bound, check_dtype=False)


def test_dropout_draws_what_eager_draws():
    def function(x):
        return F.dropout(x.tanh(), 0.5) * 2

    gradients = []
    for f in (function, staxlab.compile(function)):
        torch.manual_seed(5)
        x = torch.ones(1000, device="cuda", requires_grad=True)
        f(x).sum().backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("case", training.CASES, ids=lambda case: case.name)
def test_a_training_step(case):
    record = training.run_case(case, ["eager", "staxlab"], readings=1, device="cuda")
    assert not record["problems"]


def test_twenty_steps_follow_eagers():
    def losses(wrap):
        torch.manual_seed(0)
        block = training.Block(64, 4, 0.1).cuda()
        optimizer = torch.optim.SGD(block.parameters(), 0.05, momentum=0.9)
        loss = wrap(lambda x: block(x).pow(2).mean())
        found = []
        for step in range(20):
            torch.manual_seed(step)
            optimizer.zero_grad()
            value = loss(torch.randn(4, 16, 64, device="cuda"))
            value.backward()
            optimizer.step()
            found.append(value.item())
        return torch.tensor(found)

    torch.testing.assert_close(losses(staxlab.compile), losses(lambda f: f), rtol=1e-3, atol=1e-5)
