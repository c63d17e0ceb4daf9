"""Programs that are compiled rightly, with inputs that make it hard to see: cancellation, steep functions, special
values, random numbers, writes, views, gradients, half precision."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F


def numbers(*shape: int, dtype: torch.dtype = torch.float32, grad: bool = False, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator).to(dtype).requires_grad_(grad)


def cancelling() -> torch.Tensor:
    """Rows whose sum is a millionth of their magnitudes'."""
    half = numbers(8, 2048) * 1e4
    return torch.cat([half, -half.flip(1)], 1) + 1e-3


def written(x, w):
    y = x.clone()
    y[1:].mul_(2)
    x.add_(1)
    return y.t(), w.exp_() + y.sum()


class Net(torch.nn.Module):
    """Running statistics that each call in training mode changes."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer, self.norm = torch.nn.Linear(8, 16), torch.nn.BatchNorm1d(16)

    def forward(self, x):
        return F.gelu(self.norm(self.layer(x)))


def loop(x, w):
    for _ in range(4):
        x = torch.tanh(x @ w) + x
    return {"last": x, "parts": (x[0], x.sum(), 3)}


def special() -> torch.Tensor:
    x = numbers(4, 8)
    x[0, 0], x[1, 1], x[2, 2], x[3, 3] = float("nan"), float("inf"), -float("inf"), -0.0
    return x


PROGRAMS: dict[str, tuple[Callable[..., Any], Callable[[], tuple]]] = {
    "pointwise": (lambda x, w: torch.relu(x + w) * 2, lambda: (numbers(6, 8), numbers(8, seed=1))),
    "ill-conditioned sum": (lambda x: x.sum(-1), lambda: (cancelling(),)),
    "ill-conditioned normalization": (lambda x: x / x.sum(-1, keepdim=True), lambda: (cancelling(),)),
    "steep": (lambda x: ((x * 20).exp() + 1).log().sin() * 1e3, lambda: (numbers(5, 9),)),
    "column sums": (lambda x: (x * x).sum(0).sqrt(), lambda: (numbers(300, 7),)),
    "equal summands": (lambda x: x.sum(0), lambda: (torch.full((20000, 2), 0.1),)),
    "variance": (lambda x: x.var(-1) + x.mean(-1), lambda: (numbers(4, 500) + 1e3,)),
    "softmax": (lambda x: F.softmax(x * 10, -1), lambda: (numbers(6, 50),)),
    "layer norm": (lambda x, w: F.layer_norm(x, (40,), w), lambda: (numbers(6, 40) + 5, numbers(40, seed=2))),
    "product": (lambda x, w: F.gelu(x @ w).sum(-1), lambda: (numbers(9, 70), numbers(70, 11, seed=1))),
    "dropout": (lambda x: F.dropout(x, 0.5) * 2, lambda: (numbers(20, 20),)),
    "drawn": (lambda x: x + torch.rand_like(x).log(), lambda: (numbers(8, 8),)),
    "written": (written, lambda: (numbers(4, 6), numbers(5, seed=1))),
    "views": (lambda x: (x[::2].t().reshape(-1), x.expand(3, 4, 8).sum(0), x), lambda: (numbers(4, 8),)),
    "whole numbers": (lambda x: (x * 3 // 2, x.argmax(1), x > 2), lambda: (torch.arange(24).reshape(4, 6) % 7,)),
    "subscripts": (lambda x, i: x[i].cumsum(0), lambda: (numbers(9, 4), torch.tensor([3, 1, 8, 0, 3]))),
    "special values": (lambda x: (x.exp(), x.sum(1), torch.relu(x), x.amax(1)), lambda: (special(),)),
    "bfloat16": (lambda x: (x.float().exp().to(x.dtype) * x).sum(-1), lambda: (numbers(6, 64, dtype=torch.bfloat16),)),
    "float64": (lambda x: (x.sin() * x).sum(), lambda: (numbers(30, 30, dtype=torch.float64),)),
    "decomposed": (lambda x: F.smooth_l1_loss(x, x * 0.5) + F.elu(x).sum(), lambda: (numbers(6, 6),)),
    "loop and nest": (loop, lambda: (numbers(3, 12), numbers(12, 12, seed=1) / 4)),
    "gradients": (lambda x, w: (torch.sin(x) @ w).exp().sum(-1),
                  lambda: (numbers(5, 6, grad=True), numbers(6, 4, seed=1, grad=True))),
    "normalized gradients": (lambda x: F.layer_norm(torch.tanh(x) * x, (32,)), lambda: (numbers(4, 32, grad=True),)),
    "module": (Net(), lambda: (numbers(7, 8),)),
}  # fmt: skip
