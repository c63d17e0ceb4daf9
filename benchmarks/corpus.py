"""Programs to count on: the benchmark cases, fragments of models, a transformer block forward and in training.

Counts (kernels, bytes) do not depend on a machine's mood, so sizes are small: a case has an eighth of its rows.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks import cases, training


@dataclass(frozen=True)
class Program:
    """``make()`` gives a function and its tensors, or a module and its tensors. A ``training`` program's function gives
    a loss, whose gradients with respect to ``parameters`` are part of the call."""

    name: str
    title: str
    make: Callable[[], tuple[Callable[..., Any], list[torch.Tensor]]]
    group: str
    training: bool = False

    def instance(self) -> tuple[Callable[..., Any], list[torch.Tensor]]:
        """The same function and tensors every time."""
        torch.manual_seed(0)
        return self.make()


def call(program: Program, function: Callable[..., Any], inputs: list[torch.Tensor]) -> Any:
    """Run a program once: forward without gradients, or a loss and its backward pass."""
    if not program.training:
        with torch.no_grad():
            return function(*inputs)
    loss = function(*inputs)
    loss.backward()
    return loss


def forget_gradients(function: Callable[..., Any], inputs: list[torch.Tensor]) -> None:
    """So that every call makes its gradients anew."""
    for tensor in (*inputs, *getattr(function, "parameters", list)()):
        tensor.grad = None


def _case(case: cases.Case) -> Program:
    rows, columns = case.size
    size = (max(rows // 8, 64), columns) if rows * columns <= 1 << 25 else (max(rows // 64, 4), columns)
    return Program(
        case.name, case.title, lambda: (case.function, case.make_inputs(size, torch.float32, "cpu")), "cases"
    )  # fmt: skip


class _Step(nn.Module):
    """A module and its loss as one module, so that compiling it compiles the step."""

    def __init__(self, module: nn.Module, loss: Callable[[nn.Module, torch.Tensor], torch.Tensor]):
        super().__init__()
        self.module, self.loss = module, loss

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.loss(self.module, x)


def _training(case: training.Case) -> Program:
    return Program(
        f"training_{case.name}", f"{case.title}, a training step",
        lambda: (_Step(case.make(), case.loss), [torch.randn(case.shape)]), "training", True,
    )  # fmt: skip


def example_4_4(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """Changes both arguments in place, one as a whole and one in its first row."""
    x.mul_(2)
    y[0].add_(1)
    return x + y


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight


def swiglu(x: torch.Tensor, gate: torch.Tensor, up: torch.Tensor, down: torch.Tensor) -> torch.Tensor:
    return (F.silu(x @ gate) * (x @ up)) @ down


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return (q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])).softmax(-1) @ v


def focal_loss(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    p = x.sigmoid()
    at = p * target + (1 - p) * (1 - target)
    return (-((1 - at) ** 2) * at.clamp_min(1e-7).log()).mean(-1)


def lstm_cell(gates: torch.Tensor, cell: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    i, f, g, o = gates.chunk(4, -1)
    cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
    return o.sigmoid() * cell.tanh(), cell


def adam(parameter: torch.Tensor, gradient: torch.Tensor, first: torch.Tensor, second: torch.Tensor) -> None:
    first.mul_(0.9).add_(gradient, alpha=0.1)
    second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
    parameter.sub_(1e-3 * first / (second.sqrt() + 1e-8))


class _Residual(nn.Module):
    """Two convolutions with batch norm around a skip connection."""

    def __init__(self, channels: int):
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(x + self.norm2(self.second(F.relu(self.norm1(self.first(x))))))


def _tensors(*shapes: tuple[int, ...]) -> list[torch.Tensor]:
    return [torch.randn(shape) for shape in shapes]


FRAGMENTS: tuple[Program, ...] = (
    Program("example_4_4", "Example 4.4: arguments changed in place",
            lambda: (example_4_4, _tensors(*[(1024, 512)] * 2)), "fragments"),
    Program("rms_norm", "RMS norm", lambda: (rms_norm, _tensors((1024, 1024), (1024,))), "fragments"),
    Program("swiglu", "SwiGLU", lambda: (swiglu, _tensors((512, 256), (256, 768), (256, 768), (768, 256))),
            "fragments"),
    Program("attention", "attention of four operators", lambda: (attention, _tensors(*[(4, 8, 128, 32)] * 3)),
            "fragments"),
    Program("focal_loss", "focal loss", lambda: (focal_loss, [torch.randn(1024, 512), torch.rand(1024, 512).round()]),
            "fragments"),
    Program("lstm_cell", "LSTM cell", lambda: (lstm_cell, _tensors((1024, 2048), (1024, 512))), "fragments"),
    Program("adam", "Adam's step, in place", lambda: (adam, [t.abs() for t in _tensors(*[(1024, 512)] * 4)]),
            "fragments"),
    Program("log_softmax_nll", "log softmax and its loss",
            lambda: (lambda x, t: F.nll_loss(F.log_softmax(x, -1), t),
                     [torch.randn(512, 1000), torch.randint(1000, (512,))]), "fragments"),
    Program("mlp", "MLP", lambda: (training._mlp().eval(), _tensors((256, 256))), "fragments"),
    Program("residual", "residual block, inference", lambda: (_Residual(16).eval(), _tensors((8, 16, 32, 32))),
            "fragments"),
    Program("residual_training", "residual block, batch statistics",
            lambda: (_Residual(16).train(), _tensors((8, 16, 32, 32))), "fragments"),
    Program("block", "transformer block, forward",
            lambda: (training.Block(256, 8, 0.0).eval(), _tensors((8, 128, 256))), "fragments"),
)  # fmt: skip

PROGRAMS: tuple[Program, ...] = (
    *(_case(case) for case in cases.CASES),
    *FRAGMENTS,
    *(_training(case) for case in training.CASES),
)


def select(names: str) -> list[Program]:
    """Programs by comma-separated names, "cases", "fragments", "training" or "all". KeyError names the unknown one."""
    by_name = {program.name: program for program in PROGRAMS}
    groups = {program.group for program in PROGRAMS}
    chosen: dict[str, Program] = {}
    for name in (part.strip() for part in names.split(",")):
        if name == "all":
            chosen.update(by_name)
        elif name in groups:
            chosen.update({p.name: p for p in PROGRAMS if p.group == name})
        elif name in by_name:
            chosen[name] = by_name[name]
        else:
            raise KeyError(f"no program named {name!r}; programs: {', '.join([*by_name, *sorted(groups), 'all'])}")
    return list(chosen.values())
