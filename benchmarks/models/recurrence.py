"""A gated recurrence of the GRU's kind (Cho et al. 2014, "Learning Phrase Representations using RNN Encoder-Decoder"),
with its time steps as a Python loop: nothing but linear layers and pointwise functions, many times."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class RecurrenceConfig:
    """``steps`` of ``inputs`` elements, through ``layers`` of ``width``."""

    inputs: int = 16
    width: int = 32
    layers: int = 2
    steps: int = 6
    classes: int = 10


class GatedCell(nn.Module):
    """One time step: an update gate, a reset gate, a candidate."""

    def __init__(self, inputs: int, width: int):
        super().__init__()
        self.from_input, self.from_state = nn.Linear(inputs, 3 * width), nn.Linear(width, 3 * width)

    def forward(self, x: torch.Tensor, state: torch.Tensor) -> torch.Tensor:
        update, reset, candidate = self.from_input(x).chunk(3, dim=-1)
        old_update, old_reset, old_candidate = self.from_state(state).chunk(3, dim=-1)
        update, reset = torch.sigmoid(update + old_update), torch.sigmoid(reset + old_reset)
        candidate = torch.tanh(candidate + reset * old_candidate)
        return candidate + update * (state - candidate)


class Recurrence(nn.Module):
    """Sequences [B, T, inputs] to logits [B, classes] of the last state."""

    def __init__(self, config: RecurrenceConfig):
        super().__init__()
        self.width = config.width
        sizes = [config.inputs] + [config.width] * config.layers
        self.cells = nn.ModuleList(GatedCell(a, b) for a, b in zip(sizes, sizes[1:], strict=False))
        self.head = nn.Linear(config.width, config.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = [x.new_zeros(x.shape[0], self.width) for _ in self.cells]
        for step in range(x.shape[1]):
            below = x[:, step]
            for layer, cell in enumerate(self.cells):
                below = states[layer] = cell(below, states[layer])
        return self.head(states[-1])
