"""Attention written out and compiled: no matrix of scores in memory, values within a bound, gradients, modes."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import staxlab
from staxlab.errors import OptionError

LIBRARY, GENERAL = "scaled_dot_product_attention", "attention operator"
LENGTH = 160


def causal(q, k, v):
    n = q.shape[-2]
    scores = q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])
    return scores.masked_fill(torch.ones(n, n).tril() == 0, -math.inf).softmax(-1) @ v


def biased(q, k, v, bias):
    i = torch.arange(q.shape[-2])
    scores = 20 * torch.tanh(q @ k.mT * 0.25 / 20) + bias
    return scores.masked_fill(i > i[:, None], -math.inf).softmax(-1) @ v


def arguments(bias=False, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    found = [torch.randn(1, 4, LENGTH, 16, generator=generator).to(dtype) for _ in range(3)]
    return [*found, torch.randn(4, LENGTH, LENGTH, generator=generator).to(dtype)] if bias else found


def decisions(compilation):
    return [d.choice for d in compilation.decisions if d.topic == "attention"]


@pytest.mark.parametrize(("function", "bias", "choice"), [(causal, False, LIBRARY), (biased, True, GENERAL)])
def test_no_matrix_of_scores_is_in_memory(function, bias, choice):
    given = arguments(bias)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compilation = staxlab.explain(function, *given, strict_native=True)
    assert decisions(compilation) == [choice]
    written = [node.val for node in compilation.operators.graph.calls if hasattr(node.val, "numel")]
    assert all(value.numel < 4 * LENGTH * LENGTH for value in written)
    before = staxlab.explain(function, *given, options={"attention": "off"})
    assert any(getattr(n.val, "numel", 0) == 4 * LENGTH * LENGTH for n in before.operators.graph.calls)
    assert decisions(before) == []


def bound(q, k, v, scale, unit, half=0.0, extra=0.0):
    """How far attention may be from its value, elementwise, by standard analysis with unit roundoff u.

    Scores are off by at most e = (d + 4) u scale |q| |k| + 4 u |s|, a probability by a factor of exp(2 e) and one of
    1 + (m + 8) u, and a sum of m terms adds m u. ``half`` is the roundoff in which probabilities and results are
    rounded once each.
    """
    keys, size = k.shape[-2], q.shape[-1]
    magnitude = scale * (q.abs() @ k.abs().mT)
    error = ((size + 4) * unit * magnitude + 4 * unit * (magnitude + extra)).amax()
    return float(v.abs().max() * (2 * error + (2 * keys + 16) * unit + 3 * half) * 1.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("function", "bias"), [(causal, False), (biased, True)])
def test_values_are_within_the_bound(function, bias, dtype):
    given = arguments(bias, dtype)
    exact = [x.double() for x in given]
    expected = function(*exact)
    actual = staxlab.compile(function)(*given)
    assert actual.dtype == dtype and actual.stride() == function(*given).stride()
    half = 0.0 if dtype == torch.float32 else torch.finfo(dtype).eps / 2
    extra = 0.0 if not bias else float(exact[3].abs().max()) + 20
    limit = bound(*exact[:3], 0.25, 2.0**-24, half, extra)
    assert (actual.double() - expected).abs().max() <= limit < 0.2


@pytest.mark.parametrize(("function", "bias", "choice"), [(causal, False, LIBRARY), (biased, True, GENERAL)])
def test_training(function, bias, choice):
    given = [x.double().requires_grad_() for x in arguments(bias)]
    compiled = staxlab.compile(function, options={"attention": "require"})
    actual, expected = compiled(*given), function(*given)
    torch.testing.assert_close(actual, expected, rtol=1e-11, atol=1e-11)
    upstream = torch.randn_like(expected)
    for one, other in zip(*(torch.autograd.grad(y, given, upstream) for y in (actual, expected)), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    assert decisions(compiled.versions[0].compilation) == [choice]


class SelfAttention(nn.Module):
    """A layer as it is often written: one projection, a triangle in a buffer, dropout."""

    def __init__(self, width=64, heads=4, dropout=0.0):
        super().__init__()
        self.project, self.out, self.heads = nn.Linear(width, 3 * width), nn.Linear(width, width), heads
        self.register_buffer("triangle", torch.tril(torch.ones(LENGTH, LENGTH)).view(1, 1, LENGTH, LENGTH))
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.project(x).split(width, dim=2)
        q, k, v = (t.view(batch, length, self.heads, -1).transpose(1, 2) for t in (q, k, v))
        scores = (q @ k.transpose(-2, -1)) * (1.0 / math.sqrt(k.size(-1)))
        scores = scores.masked_fill(self.triangle[:, :, :length, :length] == 0, float("-inf"))
        weights = self.dropout(F.softmax(scores, dim=-1))
        return self.out((weights @ v).transpose(1, 2).contiguous().view(batch, length, width))


def test_a_layer_trains_as_it_did_and_with_dropout_stays_as_it_is():
    torch.manual_seed(0)
    layer = SelfAttention().double()
    x = torch.randn(2, LENGTH, 64, dtype=torch.float64)
    compiled = staxlab.compile(layer)
    found = []
    for run in (compiled, layer):
        layer.zero_grad()
        run(x).square().mean().backward()
        found.append([p.grad.clone() for p in layer.parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    assert decisions(compiled.versions[0].compilation) == [LIBRARY]
    assert decisions(staxlab.explain(SelfAttention(dropout=0.1), x.float())) == ["as written"]
    assert decisions(staxlab.explain(SelfAttention(dropout=0.1).eval(), x.float())) == [LIBRARY]


def test_a_row_without_a_key_is_nan_where_it_is_compiled():
    def masked(q, k, v, hidden):
        return (q @ k.mT).masked_fill(hidden, -math.inf).softmax(-1) @ v

    def capped(q, k, v, hidden):
        return torch.tanh(q @ k.mT).masked_fill(hidden, -math.inf).softmax(-1) @ v

    hidden = torch.zeros(LENGTH, LENGTH, dtype=torch.bool)
    hidden[3], hidden[5, 7:] = True, True
    for function, choice in ((masked, LIBRARY), (capped, GENERAL)):
        compiled = staxlab.compile(function)
        actual, expected = compiled(*arguments(), hidden), function(*arguments(), hidden)
        assert decisions(compiled.versions[0].compilation) == [choice]
        assert actual[:, :, 3].isnan().all()
        torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


def test_blocks_that_nobody_sees_are_not_visited():
    n = 512
    q = torch.randn(1, 1, n, 16)

    def window(q, k, v):
        i = torch.arange(n)
        far = (i[:, None] - i).abs() > 16
        return torch.tanh(q @ k.mT).masked_fill(far, -math.inf).softmax(-1) @ v

    compilation = staxlab.explain(window, q, q, q)
    assert decisions(compilation) == [GENERAL]
    (lists,) = [n.args[3] for n in compilation.transforms.final.graph.calls if "attention" in n.target_name()]
    assert len(lists) == 8 and lists[0].val.shape == (1, 1, 4)
    visited = sum(int(compilation.transforms.final.constants[x.target].sum()) for x in (lists[0], lists[2]))
    assert visited == 10  # of 16: the diagonal, and its neighbours
    torch.testing.assert_close(staxlab.compile(window)(q, q, q), window(q, q, q), rtol=1e-5, atol=1e-5)


def test_what_has_further_derivatives_keeps_them():
    given = [x.requires_grad_() for x in arguments()]

    def twice(function):
        (once,) = torch.autograd.grad(function(*given).sin().sum(), given[0], create_graph=True)
        return torch.autograd.grad(once.sin().sum(), given[1])[0]

    expected = twice(causal)
    for settings in ({"backend": "eager"}, {"options": {"double_backward": True}}):
        torch.testing.assert_close(twice(staxlab.compile(causal, **settings)), expected, rtol=1e-4, atol=1e-4)
    plain = tuple(arguments())
    torch.testing.assert_close(
        staxlab.jvp(causal)(plain, plain)[1], torch.func.jvp(causal, plain, plain)[1], rtol=1e-4, atol=1e-4
    )


@pytest.mark.parametrize(("function", "bias", "choice"), [(causal, False, LIBRARY), (biased, True, GENERAL)])
def test_under_autocast_operands_are_rounded_as_autocast_rounds_them(function, bias, choice):
    given = arguments(bias)
    exact = function(*(x.double() for x in given))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        compiled = staxlab.compile(function)
        actual, eager = compiled(*given), function(*given)
    assert decisions(compiled.versions[0].compilation) == [choice] and actual.dtype == eager.dtype == torch.bfloat16
    limit = 2 * (eager - exact).abs().max()
    assert 0 < (actual - exact).abs().max() <= limit < 0.5


def test_a_layer_trains_under_autocast():
    torch.manual_seed(0)
    layer, x = SelfAttention(), torch.randn(2, LENGTH, 64)
    compiled, found = staxlab.compile(layer), []
    for run in (compiled, layer):
        layer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            result = run(x)
        result.float().square().mean().backward()
        found.append((result, [p.grad.clone() for p in layer.parameters()]))
    assert decisions(compiled.versions[0].compilation) == [LIBRARY]
    torch.testing.assert_close(found[0][0], found[1][0], rtol=2e-2, atol=2e-2)
    for one, other in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(one, other, rtol=5e-2, atol=2e-2 * float(other.abs().max()))


def test_required_and_impossible_is_an_error_at_the_users_line():
    def shared(q, k, v):
        weights = (q @ k.mT).softmax(-1)
        return weights @ v, weights

    with pytest.raises(OptionError, match=r"%softmax is read by %output(.|\n)*test_attention_co"):
        staxlab.compile(shared, options={"attention": "require"})(*arguments())
    result, weights = staxlab.compile(shared)(*arguments())
    assert weights.shape[-1] == LENGTH and result.shape[-1] == 16
