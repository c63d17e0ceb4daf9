"""Models trained side by side, compiled and eager: losses, parameters, statistics, versions and kept bytes.

In float64 the two runs differ by roundings in the last places, and a training run as short as these does not let them
grow beyond 1e-9 of what they are roundings of. In float32 the same roundings are ``2**-24 / 2**-53``, about 5e8, times
as large; the bound of a float32 run is that factor times what the float64 run of the same model was off by, or the
distance by which eager execution's own float32 run misses its float64 run, whichever is larger, with a margin of 8.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import staxlab

TIGHT = 1e-9
RATIO = 2.0**-24 / 2.0**-53
MARGIN = 8

# -- models -----------------------------------------------------------------------------------------------------------


class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 32), nn.GELU(), nn.Linear(32, 32), nn.Tanh(), nn.Linear(32, 4))

    def forward(self, x, target):
        return F.cross_entropy(self.layers(x), target)


class Convolutional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv2d(2, 6, 3, padding=1), nn.BatchNorm2d(6)
        self.second, self.norm2 = nn.Conv2d(6, 8, 3, stride=2, padding=1), nn.BatchNorm2d(8)
        self.out = nn.Linear(8, 4)

    def forward(self, x, target):
        x = x.reshape(-1, 2, 6, 6)
        x = F.max_pool2d(F.relu(self.norm(self.first(x))), 2, ceil_mode=True)
        x = F.silu(self.norm2(self.second(x))).mean((2, 3))
        return F.cross_entropy(self.out(x), target)


class Transformer(nn.Module):
    """One block with dropout; where ``again`` is set, its feed-forward half is checkpointed."""

    def __init__(self, again: bool = False) -> None:
        super().__init__()
        self.again = again
        self.embedding = nn.Embedding(11, 16)
        self.norm, self.norm2 = nn.LayerNorm(16), nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 32), nn.Linear(32, 16)
        self.drop = nn.Dropout(0.1)

    def _feed_forward(self, x):
        return self.drop(self.down(F.gelu(self.up(self.norm2(x)))))

    def forward(self, tokens, target):
        x = self.embedding(tokens)
        batch, length, width = x.shape
        q, k, v = (t.reshape(batch, length, 2, 8).transpose(1, 2) for t in self.qkv(self.norm(x)).split(width, -1))
        scores = (q @ k.transpose(-2, -1)) / math.sqrt(8)
        mask = torch.ones(length, length, dtype=torch.bool).tril()
        weights = self.drop(scores.masked_fill(~mask, -math.inf).softmax(-1))
        x = x + self.out((weights @ v).transpose(1, 2).reshape(batch, length, width))
        x = x + (checkpoint(self._feed_forward, x, use_reentrant=False) if self.again else self._feed_forward(x))
        logits = x @ self.embedding.weight.t()  # tied
        return F.cross_entropy(logits.reshape(-1, 11), target.reshape(-1), ignore_index=-100)


class Recurrent(nn.Module):
    def __init__(self, cell: type = nn.GRUCell) -> None:
        super().__init__()
        self.cell, self.out = cell(3, 8), nn.Linear(8, 4)

    def forward(self, x, target):
        state = x.new_zeros(x.shape[0], 8)
        state = (state, state) if isinstance(self.cell, nn.LSTMCell) else state
        for part in x.split(3, -1):
            state = self.cell(part, state)
        return F.cross_entropy(self.out(state[0] if isinstance(state, tuple) else state), target)


def vectors(step: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    target = torch.randint(4, (8,), generator=generator)
    x = torch.randn(8, 12, generator=generator, dtype=torch.float64) + target[:, None]
    return x.to(dtype), target


def images(step: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    target = torch.randint(4, (6,), generator=generator)
    return (torch.randn(6, 72, generator=generator, dtype=torch.float64) * (1 + target[:, None])).to(dtype), target


def sentences(step: int, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(11, (4, 7), generator=generator)
    target = tokens.roll(-1, 1)
    target[:, -1] = -100
    return tokens, target


def momentum(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9, weight_decay=1e-3)


def adamw(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(parameters, lr=2e-3, eps=1e-4)


@dataclass(frozen=True)
class Case:
    """What is trained, on what, and how."""

    model: Callable[[], nn.Module]
    data: Callable[[int, torch.dtype], tuple[torch.Tensor, torch.Tensor]]
    optimizer: Callable[[Any], torch.optim.Optimizer] = momentum
    accumulate: int = 1
    clip: float | None = None
    freeze: str = ""
    versions: int = 1


CASES = {
    "perceptron": Case(Perceptron, vectors),
    "perceptron, AdamW": Case(Perceptron, vectors, adamw),
    "perceptron, accumulated and clipped": Case(Perceptron, vectors, accumulate=3, clip=0.5),
    "perceptron, frozen": Case(Perceptron, vectors, freeze="layers.0"),
    "convolutional": Case(Convolutional, images),
    "convolutional, AdamW": Case(Convolutional, images, adamw),
    "transformer": Case(Transformer, sentences),
    "transformer, AdamW": Case(Transformer, sentences, adamw, clip=1.0),
    "transformer, checkpointed": Case(lambda: Transformer(again=True), sentences),
    "GRU cell": Case(Recurrent, vectors),
    "LSTM cell": Case(lambda: Recurrent(nn.LSTMCell), vectors, adamw),
}

# -- training ---------------------------------------------------------------------------------------------------------


@dataclass
class Run:
    losses: list[float] = field(default_factory=list)
    state: dict[str, torch.Tensor] = field(default_factory=dict)
    compiled: Any = None

    def distance(self, other: Run) -> float:
        """The largest relative difference of a loss, or of a tensor of the state, relative to its largest element."""
        found = [abs(a - b) / max(abs(b), 1e-3) for a, b in zip(self.losses, other.losses, strict=True)]
        for name, b in other.state.items():
            a, b = self.state[name].double(), b.double()
            if b.numel():
                found.append(float((a - b).abs().max() / b.abs().max().clamp(min=1e-3)))
        return max(found)


def train(case: Case, dtype: torch.dtype, steps: int, backend: str | None) -> Run:
    torch.manual_seed(0)
    model = case.model().double()
    model = model.to(dtype)
    if case.freeze:
        model.get_submodule(case.freeze).requires_grad_(False)
    run = Run()
    run.compiled = model if backend is None else staxlab.compile(model, backend=backend)
    optimizer = case.optimizer([p for p in model.parameters() if p.requires_grad])
    torch.manual_seed(1)
    for step in range(steps):
        total = 0.0
        for part in range(case.accumulate):
            loss = run.compiled(*case.data(step * case.accumulate + part, dtype))
            (loss / case.accumulate).backward()
            total += float(loss.detach())
        if case.clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), case.clip)
        optimizer.step()
        optimizer.zero_grad()
        run.losses.append(total)
    run.state = {name: value.detach().clone() for name, value in model.state_dict().items()}
    return run


def compare(name: str, steps: int, backend: str) -> None:
    case = CASES[name]
    eager, found = (train(case, torch.float64, steps, b) for b in (None, backend))
    precise = found.distance(eager)
    assert precise < TIGHT, f"{name}: {precise:.1e} apart in float64"
    assert eager.losses[-1] < eager.losses[0] or steps < 100, "nothing was learnt"
    single, own = (train(case, torch.float32, steps, b) for b in (None, backend))
    bound = MARGIN * max(RATIO * precise, single.distance(eager))
    assert own.distance(single) <= bound, f"{name}: {own.distance(single):.1e} apart in float32, bound {bound:.1e}"
    for run in (found, own):
        assert len(run.compiled.versions) == case.versions, [str(reason) for reason in run.compiled.recompiles]
        for version in run.compiled.versions:
            compilation = version.compilation
            assert compilation.fallback_reason is None and compilation.backward.fallback_reason is None
            part = compilation.partition
            sizes = f"{name}: {part.saved_bytes:,} bytes kept, eager {part.eager_bytes:,}\n{part}"
            assert part.saved_bytes <= part.eager_bytes, sizes


@pytest.mark.parametrize("name", CASES)
def test_twenty_steps_are_eagers(name):
    compare(name, 20, "aot_eager")


@pytest.mark.parametrize("name", ["perceptron", "transformer"])
def test_twenty_steps_in_kernels_are_eagers(name):
    compare(name, 20, "stax")


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_two_hundred_steps_in_kernels_are_eagers(name):
    compare(name, 200, "stax")
