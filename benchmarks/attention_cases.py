"""The cases of ``benchmarks.attention``: which attention, how large, and what it counts as work."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

WINDOW = 1024  # keys before a query that it sees, besides itself
DOCUMENT_LENGTHS = (900, 300, 1500, 2100, 40, 700, 1200, 500)  # in turns, until the sequence is full

Modification = Callable[..., torch.Tensor]


def causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return q_idx >= kv_idx


def sliding_window(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    return (q_idx >= kv_idx) & (q_idx - kv_idx <= WINDOW)


def alibi(score: Any, b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
    """Press, Smith and Lewis (2022), "Train short, test long: Attention with linear biases"."""
    slope = torch.exp2(-(h + 1).to(torch.float32))
    return score - slope * (q_idx - kv_idx)


def documents(length: int, device: str) -> Modification:
    """Causal within each of several documents that share a sequence."""
    lengths: list[int] = []
    while sum(lengths) < length:
        lengths.append(max(1, DOCUMENT_LENGTHS[len(lengths) % len(DOCUMENT_LENGTHS)] * length // 8192))
    numbers = torch.repeat_interleave(torch.arange(len(lengths)), torch.tensor(lengths))[:length]
    document = numbers.to(device, torch.int32)

    def document_causal(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return (document[q_idx] == document[kv_idx]) & (q_idx >= kv_idx)

    return document_causal


def seen(length: int) -> Modification:
    """All keys but the last tenth, as with a cache that is not full."""
    filled = length - length // 10

    def seen(b: Any, h: Any, q_idx: Any, kv_idx: Any) -> Any:
        return kv_idx < filled

    return seen


@dataclass(frozen=True)
class Case:
    """``direction`` is "forward", "backward" (the gradients alone) or "decode" (few queries, where bytes count)."""

    name: str
    direction: str
    batch: int
    heads: int
    key_heads: int
    queries: int
    keys: int
    size: int
    score: str = ""  # "alibi"
    mask: str = ""  # "causal", "window", "documents", "seen"

    @property
    def shape(self) -> tuple[int, int, int, int]:
        return (self.batch, self.heads, self.queries, self.keys)

    def score_mod(self) -> Modification | None:
        return alibi if self.score == "alibi" else None

    def mask_mod(self, device: str) -> Modification | None:
        if self.mask == "documents":
            return documents(self.keys, device)
        if self.mask == "seen":
            return seen(self.keys)
        return {"": None, "causal": causal, "window": sliding_window}[self.mask]

    def inputs(self, device: str, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> list[torch.Tensor]:
        """Query, key, value and the gradient of the result, normally distributed."""
        generator = torch.Generator(device).manual_seed(seed)
        counts = ((self.heads, self.queries), (self.key_heads, self.keys), (self.key_heads, self.keys))
        shapes = [(self.batch, heads, n, self.size) for heads, n in (*counts, counts[0])]
        return [torch.randn(shape, generator=generator, device=device, dtype=dtype) for shape in shapes]

    def visible_share(self, mask: Modification | None, device: str) -> float:
        """The part of all positions that takes part, counted, some rows at a time."""
        if mask is None:
            return 1.0
        zero = torch.zeros(1, 1, dtype=torch.int32, device=device)
        columns = torch.arange(self.keys, dtype=torch.int32, device=device)[None, :]
        found = 0
        for start in range(0, self.queries, 1024):
            rows = torch.arange(start, min(start + 1024, self.queries), dtype=torch.int32, device=device)[:, None]
            visible = mask(zero, zero, rows, columns)
            found += int(visible.expand(rows.numel(), self.keys).sum())
        return found / (self.queries * self.keys)

    def operations(self, share: float) -> float:
        """Multiplications and additions of the products of visible positions: two products forward, five backward."""
        products = 5 if self.direction == "backward" else 2
        return 2.0 * products * share * self.batch * self.heads * self.queries * self.keys * self.size

    def moved(self, share: float, itemsize: int = 2) -> float:
        """Bytes of keys and values that are visible, once each, with queries and results."""
        keys = share * 2 * self.batch * self.key_heads * self.keys * self.size
        return (keys + 2 * self.batch * self.heads * self.queries * self.size) * itemsize


def _square(name: str, direction: str = "forward", **rest: str) -> Case:
    return Case(name, direction, 4, 16, 16, 8192, 8192, 128, **rest)


CASES: tuple[Case, ...] = (
    _square("causal", mask="causal"),
    Case("decode", "decode", 8, 32, 8, 1, 32768, 128),
    _square("window 1024", mask="window"),
    _square("documents", mask="documents"),
    _square("causal ALiBi", score="alibi", mask="causal"),
    _square("full"),
    Case("decode, ALiBi and a cache that is not full", "decode", 8, 32, 8, 1, 32768, 128, score="alibi", mask="seen"),
    Case("grouped causal", "forward", 4, 32, 8, 8192, 8192, 128, mask="causal"),
    Case("causal, heads of 64", "forward", 4, 32, 32, 8192, 8192, 64, mask="causal"),
    _square("causal backward", "backward", mask="causal"),
    _square("causal ALiBi backward", "backward", score="alibi", mask="causal"),
    _square("window 1024 backward", "backward", mask="window"),
    _square("documents backward", "backward", mask="documents"),
)


def small(cases: Sequence[Case] = CASES) -> list[Case]:
    """The same cases, small enough for an interpreter."""
    found = []
    for case in cases:
        queries, keys = (1, 200) if case.direction == "decode" else (136, 136)
        heads, key_heads = (2, 1) if case.heads != case.key_heads else (1, 1)
        changes = {"batch": 1, "heads": heads, "key_heads": key_heads, "queries": queries, "keys": keys, "size": 16}
        found.append(replace(case, **changes))
    return found
