"""Whole training steps in strict mode: every operator on the way back has a lowering rule or is a library call."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import staxlab


class Convolutional(nn.Module):
    def __init__(self):
        super().__init__()
        self.convolution, self.norm, self.last = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(128, 5)

    def forward(self, x, y):
        h = F.max_pool2d(F.relu(self.norm(self.convolution(x))), 2)
        return F.cross_entropy(self.last(F.adaptive_avg_pool2d(F.silu(h), 4).flatten(1)), y)


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.first, self.second = nn.Embedding(20, 16), nn.LayerNorm(16), nn.LayerNorm(16)
        self.attention, self.last = nn.Linear(16, 48), nn.Linear(16, 20)
        self.perceptron = nn.Sequential(nn.Linear(16, 64), nn.GELU(), nn.Linear(64, 16))

    def forward(self, x, y):
        h = self.table(x)
        n, length, width = h.shape
        parts = self.attention(self.first(h)).split(16, -1)
        q, k, v = (part.view(n, length, 2, 8).transpose(1, 2) for part in parts)
        h = h + F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(n, length, width)
        h = h + self.perceptron(self.second(h))
        return F.cross_entropy(self.last(h).flatten(0, 1), y.flatten())


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.down, self.norm = nn.Conv2d(1, 4, 3, stride=2), nn.GroupNorm(2, 4)
        self.up = nn.Conv2d(4, 1, 3, padding=1)

    def forward(self, x, y):
        h = F.mish(self.norm(self.down(F.pad(x, [1, 1, 1, 1], mode="reflect"))))
        z = torch.sigmoid(self.up(F.interpolate(h, scale_factor=2.0, mode="nearest")))
        return F.binary_cross_entropy(z, y) + F.smooth_l1_loss(z, y) + F.huber_loss(z, y) + F.mse_loss(z, y)


class Gated(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.slope, self.norm = nn.Linear(10, 12), nn.PReLU(), nn.RMSNorm(12)

    def forward(self, x, y):
        h = F.glu(self.norm(F.leaky_relu(self.first(x))), -1)
        h = F.softplus(F.elu(F.hardswish(self.slope(h)))).softmax(-1)
        return h.max(1).values.sum() - (h.log() * y).sum() + F.hardtanh(h).std()


TOKENS = (torch.arange(21) * 7 % 20).view(3, 7)
STEPS = {
    Gated: lambda: (torch.randn(6, 10), torch.rand(6, 6)),
    Convolutional: lambda: (torch.randn(4, 3, 16, 16), torch.randint(0, 5, (4,))),
    Transformer: lambda: (TOKENS, TOKENS.flip(1)),
    Autoencoder: lambda: (torch.randn(2, 1, 8, 8), torch.rand(2, 1, 8, 8)),
}


@pytest.mark.parametrize("kind", [pytest.param(k, marks=[pytest.mark.slow] if k is not Gated else []) for k in STEPS])
def test_a_training_step_is_native(kind: Callable[[], nn.Module]):
    eager, compiled = kind(), kind()
    compiled.load_state_dict(eager.state_dict())
    x, y = STEPS[kind]()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        loss = staxlab.compile(compiled, strict_native=True)(x, y)
        loss.backward()
    expected = eager(x, y)
    expected.backward()
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(compiled.parameters(), eager.parameters(), strict=True):
        torch.testing.assert_close(ours.grad, theirs.grad, rtol=1e-4, atol=1e-6)
