"""A vision transformer: patches of an image as tokens (Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words")."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class VisionConfig:
    """Sizes, in pixels, elements and counts."""

    image: int = 32
    patch: int = 8
    width: int = 64
    layers: int = 2
    heads: int = 4
    classes: int = 10

    @property
    def tokens(self) -> int:
        """Patches, and the one token that collects the answer."""
        return (self.image // self.patch) ** 2 + 1


class EncoderBlock(nn.Module):
    """Attention of all tokens to all, and a two-layer network, each behind a layer norm."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.attention_norm, self.network_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.attention_norm(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        attended = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(batch, length, width)
        x = x + self.out(attended)
        return x + self.down(F.gelu(self.up(self.network_norm(x))))


class VisionTransformer(nn.Module):
    """Images [B, 3, H, W] to logits [B, classes]."""

    def __init__(self, config: VisionConfig):
        super().__init__()
        self.patches = nn.Conv2d(3, config.width, config.patch, stride=config.patch)
        self.answer = nn.Parameter(torch.zeros(1, 1, config.width))
        self.place = nn.Parameter(0.02 * torch.randn(1, config.tokens, config.width))
        self.blocks = nn.ModuleList(EncoderBlock(config) for _ in range(config.layers))
        self.norm, self.head = nn.LayerNorm(config.width), nn.Linear(config.width, config.classes)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2)
        x = torch.cat((self.answer.expand(x.shape[0], -1, -1), x), dim=1) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x[:, 0]))
