"""ResNet-18: convolutions with batch norm and residual connections (He et al. 2016, "Deep Residual Learning for Image
Recognition")."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn


@dataclass(frozen=True)
class ResNetConfig:
    """``width`` channels in the first stage (64 in the paper), doubled in each of the ``stages``."""

    image: int = 32
    width: int = 8
    stages: int = 4
    classes: int = 10


def _convolution(channels: int, to: int, size: int, stride: int) -> nn.Conv2d:
    return nn.Conv2d(channels, to, size, stride=stride, padding=size // 2, bias=False)


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside an identity, or a 1 x 1 convolution where the shape changes."""

    def __init__(self, channels: int, to: int, stride: int):
        super().__init__()
        self.first, self.second = _convolution(channels, to, 3, stride), _convolution(to, to, 3, 1)
        self.first_norm, self.second_norm = nn.BatchNorm2d(to), nn.BatchNorm2d(to)
        self.relu = nn.ReLU()
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != to:
            self.shortcut = nn.Sequential(_convolution(channels, to, 1, stride), nn.BatchNorm2d(to))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.first_norm(self.first(x)))
        return self.relu(self.second_norm(self.second(y)) + self.shortcut(x))


class ResNet18(nn.Module):
    """Images [B, 3, H, W] to logits [B, classes]: four stages of two blocks."""

    def __init__(self, config: ResNetConfig):
        super().__init__()
        width = config.width
        self.stem = nn.Sequential(
            _convolution(3, width, 7, 2), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, stride=2, padding=1)
        )
        blocks: list[nn.Module] = []
        for stage in range(config.stages):
            to = config.width << stage
            blocks += [BasicBlock(width, to, 1 if stage == 0 else 2), BasicBlock(to, to, 1)]
            width = to
        self.blocks = nn.Sequential(*blocks)
        self.head = nn.Linear(width, config.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.stem(images)).mean(dim=(2, 3)))
