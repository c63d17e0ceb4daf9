"""A decoder of the Llama family: RMS norm, rotary embedding, grouped-query attention, SwiGLU, a cache.

One ``forward`` serves prefill and decoding: it takes the tokens, their positions as a tensor, and the cache, writes the
new keys and values into the cache, and returns the logits of the last token. Positions are data, so that every decoding
step has the same shapes and the same program; a query sees the cache up to its own position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

Cache = list[tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class DecoderConfig:
    """Sizes. ``heads`` query heads share ``key_heads`` key and value heads; the cache holds ``context`` positions."""

    vocabulary: int = 256
    width: int = 64
    layers: int = 2
    heads: int = 4
    key_heads: int = 2
    hidden: int = 176
    context: int = 64
    base: float = 10_000.0

    @property
    def head_size(self) -> int:
        return self.width // self.heads


class RMSNorm(nn.Module):
    """x / sqrt(mean(x^2) + epsilon), scaled (Zhang, Sennrich 2019, "Root Mean Square Layer Normalization"). The mean is
    taken in float32."""

    def __init__(self, width: int, epsilon: float = 1e-5):
        super().__init__()
        self.weight, self.epsilon = nn.Parameter(torch.ones(width)), epsilon

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.float()
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.epsilon)
        return wide.to(x.dtype) * self.weight


class Rotary(nn.Module):
    """Rotations of pairs of elements by angles that grow with the position (Su et al. 2021, "RoFormer")."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        half = config.head_size // 2
        frequencies = config.base ** (-torch.arange(half, dtype=torch.float64) / half)
        angles = torch.outer(torch.arange(config.context, dtype=torch.float64), frequencies)
        self.register_buffer("cosine", angles.cos().float(), persistent=False)
        self.register_buffer("sine", angles.sin().float(), persistent=False)

    def forward(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """x [B, H, T, D] at ``positions`` [T]."""
        cosine, sine = self.cosine[positions].to(x.dtype), self.sine[positions].to(x.dtype)
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cosine - second * sine, second * cosine + first * sine), dim=-1)


class Attention(nn.Module):
    """Grouped-query attention (Ainslie et al. 2023, "GQA") to everything in the cache up to a query's own position."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.config = config
        size = config.head_size
        self.query = nn.Linear(config.width, config.heads * size, bias=False)
        self.key = nn.Linear(config.width, config.key_heads * size, bias=False)
        self.value = nn.Linear(config.width, config.key_heads * size, bias=False)
        self.out = nn.Linear(config.heads * size, config.width, bias=False)

    def forward(
        self,
        x: torch.Tensor,
        positions: torch.Tensor,
        rotary: Callable[[torch.Tensor, torch.Tensor], torch.Tensor],
        cache: tuple[torch.Tensor, torch.Tensor] | None,
    ) -> torch.Tensor:
        batch, length, _ = x.shape
        q, k, v = (
            linear(x).view(batch, length, -1, self.config.head_size).transpose(1, 2)
            for linear in (self.query, self.key, self.value)
        )
        q, k = rotary(q, positions), rotary(k, positions)
        if cache is None:
            attended = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            keys, values = cache
            keys.index_copy_(2, positions, k)
            values.index_copy_(2, positions, v)
            visible = positions[:, None] >= torch.arange(keys.shape[2], device=x.device)
            attended = F.scaled_dot_product_attention(q, keys, values, attn_mask=visible, enable_gqa=True)
        return self.out(attended.transpose(1, 2).reshape(batch, length, -1))


class SwiGLU(nn.Module):
    """down(silu(gate(x)) * up(x)) (Shazeer 2020, "GLU Variants Improve Transformer")."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.gate = nn.Linear(config.width, config.hidden, bias=False)
        self.up = nn.Linear(config.width, config.hidden, bias=False)
        self.down = nn.Linear(config.hidden, config.width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(F.silu(self.gate(x)) * self.up(x))


class Block(nn.Module):
    """Attention and a gated network, each behind a norm and beside a residual connection."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.attention_norm, self.network_norm = RMSNorm(config.width), RMSNorm(config.width)
        self.attention, self.network = Attention(config), SwiGLU(config)

    def forward(self, x, positions, rotary, cache):
        x = x + self.attention(self.attention_norm(x), positions, rotary, cache)
        return x + self.network(self.network_norm(x))


class Decoder(nn.Module):
    """Tokens in, logits out. Random weights, scaled so that activations keep their size through the layers."""

    def __init__(self, config: DecoderConfig):
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocabulary, config.width)
        self.rotary = Rotary(config)
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.width)
        self.head = nn.Linear(config.width, config.vocabulary, bias=False)
        for block in self.blocks:
            for last in (block.attention.out, block.network.down):
                with torch.no_grad():
                    last.weight.mul_((2 * config.layers) ** -0.5)

    def forward(self, tokens: torch.Tensor, positions: torch.Tensor, cache: Cache | None = None) -> torch.Tensor:
        """Logits after ``tokens`` [B, T] at ``positions`` [T]: of the last token [B, V] with a cache, else of all
        [B, T, V]. Keys and values of the tokens are written into the cache."""
        x = self.embedding(tokens)
        for number, block in enumerate(self.blocks):
            x = block(x, positions, self.rotary, None if cache is None else cache[number])
        return self.head(self.norm(x if cache is None else x[:, -1]))

    def new_cache(self, batch: int) -> Cache:
        """Zeros for the keys and values of all positions, [B, Hkv, context, D] for each layer."""
        config, weight = self.config, self.head.weight
        shape = (batch, config.key_heads, config.context, config.head_size)
        return [(weight.new_zeros(shape), weight.new_zeros(shape)) for _ in self.blocks]


@torch.no_grad()
def generate(step: Callable[..., torch.Tensor], model: Decoder, prompt: torch.Tensor, count: int) -> torch.Tensor:
    """The ``count`` tokens after ``prompt`` [B, T] that have the largest logit each: int64 [B, count].

    ``step(tokens, positions, cache)`` is the model or a compiled form of it. ValueError if the context is too short.
    """
    batch, length = prompt.shape
    if length + count > model.config.context:
        raise ValueError(f"{length} + {count} tokens do not fit into a context of {model.config.context}")
    cache = model.new_cache(batch)
    positions = torch.arange(length, device=prompt.device)
    found = [step(prompt, positions, cache).argmax(-1)]
    position = positions[-1:] + 1
    for _ in range(count - 1):
        found.append(step(found[-1][:, None], position, cache).argmax(-1))
        position = position + 1
    return torch.stack(found, dim=1)
