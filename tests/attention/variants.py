"""Variants of attention as data: what every kernel, on every device, forward and backward, is held against.

A :class:`Variant` makes its two functions anew each time, with the tensors they capture (the same ones for the same
arguments, on the device and of the dtype asked for). :func:`expected` is what the specification, an N x M matrix in
float64, says of results and gradients. The sizes are small and awkward on purpose: no length is a multiple of a block.

    @pytest.mark.parametrize("variant", VARIANTS, ids=str)
    def test_forward(variant):
        made = variant.make()
        q, k, v = variant.inputs()
        found = omni_attention(q, k, v, made.score_mod, ...)
        assert_close(found, expected(variant, made, q, k, v).output)
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from staxlab.attention.reference import reference_attention, subscript_tensors, visible


@dataclass(frozen=True)
class Sizes:
    """Extents: batch, query heads, key heads, queries, keys, elements of a query and of a value."""

    batch: int = 2
    heads: int = 2
    key_heads: int = 2
    queries: int = 37
    keys: int = 37
    head_size: int = 16
    value_size: int = 16

    @property
    def scores(self) -> tuple[int, int, int, int]:
        """(batch, query heads, queries, keys), as modifications and block masks are given them."""
        return (self.batch, self.heads, self.queries, self.keys)


@dataclass
class Made:
    """The functions of a variant, and what they capture that is learned, by name."""

    score_mod: Callable | None = None
    mask_mod: Callable | None = None
    learnable: dict[str, torch.Tensor] = field(default_factory=dict)


@dataclass(frozen=True)
class Expected:
    """What the specification yields, all float64: results, and gradients for ``upstream`` of O and LSE."""

    output: torch.Tensor
    lse: torch.Tensor
    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    learnable: dict[str, torch.Tensor]


class Source:
    """Tensors for a variant to capture: numbers that depend on the order of the calls only."""

    def __init__(self, dtype: torch.dtype, device: str):
        self.dtype, self.device = dtype, device
        self.generator = torch.Generator().manual_seed(9)
        self.learnable: dict[str, torch.Tensor] = {}

    def normal(self, *shape: int, spread: float = 1.0) -> torch.Tensor:
        made = torch.randn(shape, generator=self.generator, dtype=torch.float64) * spread
        return made.to(self.device, self.dtype)

    def integers(self, high: int, *shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
        return torch.randint(0, high, shape, generator=self.generator).to(self.device, dtype)

    def tensor(self, values: Any) -> torch.Tensor:
        return torch.tensor(values, device=self.device)

    def learned(self, name: str, *shape: int, spread: float = 1.0, about: float = 0.0) -> torch.Tensor:
        made = (self.normal(*shape, spread=spread) + about).requires_grad_()
        self.learnable[name] = made
        return made


@dataclass(frozen=True)
class Variant:
    """A variant: ``score`` and ``mask`` make the two functions from a :class:`Source` and the sizes. ``scale`` and
    ``sizes`` are those of the call. ``hides_rows``: some row sees nothing."""

    name: str
    score: Callable[[Source, Sizes], Callable] | None = None
    mask: Callable[[Source, Sizes], Callable] | None = None
    sizes: Sizes = Sizes()
    scale: float | None = None
    hides_rows: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def enable_gqa(self) -> bool:
        return self.sizes.heads != self.sizes.key_heads

    def at(self, **sizes: int) -> Variant:
        """The variant with other sizes."""
        return replace(self, sizes=replace(self.sizes, **sizes))

    def make(self, dtype: torch.dtype = torch.float32, device: str = "cpu") -> Made:
        """Its functions; captured floating-point tensors are of ``dtype``."""
        source = Source(dtype, device)
        score = self.score(source, self.sizes) if self.score else None
        mask = self.mask(source, self.sizes) if self.mask else None
        return Made(score, mask, source.learnable)

    def inputs(
        self, dtype: torch.dtype = torch.float32, device: str = "cpu", requires_grad: bool = False, seed: int = 0
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Query, key and value: contiguous, normally distributed."""
        s = self.sizes
        shapes = (
            (s.batch, s.heads, s.queries, s.head_size),
            (s.batch, s.key_heads, s.keys, s.head_size),
            (s.batch, s.key_heads, s.keys, s.value_size),
        )
        generator = torch.Generator().manual_seed(seed)
        found = [torch.randn(shape, generator=generator, dtype=torch.float64) for shape in shapes]
        return tuple(x.to(device, dtype).requires_grad_(requires_grad) for x in found)

    def upstream(
        self, dtype: torch.dtype = torch.float32, device: str = "cpu", seed: int = 1
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Gradients of O (of ``dtype``) and of LSE (float32, or float64 for float64)."""
        s = self.sizes
        generator = torch.Generator().manual_seed(seed)
        output = torch.randn((s.batch, s.heads, s.queries, s.value_size), generator=generator, dtype=torch.float64)
        lse = torch.randn((s.batch, s.heads, s.queries), generator=generator, dtype=torch.float64)
        wide = torch.float64 if dtype == torch.float64 else torch.float32
        return output.to(device, dtype), lse.to(device, wide)


def expected(
    variant: Variant,
    made: Made,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    upstream: tuple[torch.Tensor, torch.Tensor | None] | None = None,
) -> Expected:
    """What the specification says for these very inputs (their values, exact in float64). ``upstream`` are the
    gradients of O and LSE (None: LSE is not used); default: those of :meth:`Variant.upstream`. O(N M) memory."""
    q, k, v = (x.detach().double().requires_grad_() for x in (query, key, value))
    learned = list(made.learnable.values())
    with torch.enable_grad():
        output, lse = reference_attention(
            q, k, v, made.score_mod, made.mask_mod, variant.scale, enable_gqa=variant.enable_gqa
        )
        d_output, d_lse = upstream or variant.upstream(query.dtype, str(query.device))
        total = (output * d_output.double()).sum()
        if d_lse is not None:
            total = total + torch.where(lse == -math.inf, 0.0, lse * d_lse.double()).sum()
        found = torch.autograd.grad(total, [q, k, v, *learned], allow_unused=True)
    gradients = [torch.zeros_like(x) if g is None else g for x, g in zip([q, k, v, *learned], found, strict=True)]
    names = dict(zip(made.learnable, (g.double() for g in gradients[3:]), strict=True))
    return Expected(output.detach(), lse.detach(), *gradients[:3], names)


def score_rounding(lse: torch.Tensor) -> float:
    """What holding scores in float32 may change in a result, relative to the largest value.

    A score s is off by 2**-24 |s|, half a unit in the last place. Scores that count lie near the logarithm of their
    sum, so weights are off by a factor of 1 + d with |d| <= 2**-24 max |LSE|, once above the fraction bar and once
    below. For small scores that is nothing; for ALiBi that no mask bounds, with scores in the thousands, it is what
    results are off by.
    """
    seen = lse[lse.isfinite()].abs()
    return 2.0**-23 * float(seen.max()) if seen.numel() else 0.0


# -- masks ------------------------------------------------------------------------------------------------------------


def causal(source: Source, sizes: Sizes) -> Callable:
    def causal(b, h, q_idx, kv_idx):
        return q_idx >= kv_idx

    return causal


def lower_right_causal(source: Source, sizes: Sizes) -> Callable:
    """Queries are the last positions of the keys, as in decoding with a cache."""
    offset = sizes.keys - sizes.queries

    def lower_right_causal(b, h, q_idx, kv_idx):
        return q_idx + offset >= kv_idx

    return lower_right_causal


def window(source: Source, sizes: Sizes, width: int = 9) -> Callable:
    def sliding_window(b, h, q_idx, kv_idx):
        return (q_idx >= kv_idx) & (q_idx - kv_idx <= width)

    return sliding_window


def prefix(source: Source, sizes: Sizes) -> Callable:
    lengths = source.integers(sizes.keys // 2, sizes.batch)

    def prefix_lm(b, h, q_idx, kv_idx):
        return (kv_idx < lengths[b]) | (q_idx >= kv_idx)

    return prefix_lm


def documents(source: Source, sizes: Sizes) -> Callable:
    lengths = [7, 11, 5, max(sizes.keys, sizes.queries)]
    document = torch.repeat_interleave(torch.arange(4), torch.tensor(lengths))[: max(sizes.keys, sizes.queries)]
    document = document.to(source.device)

    def document_causal(b, h, q_idx, kv_idx):
        return (document[q_idx] == document[kv_idx]) & (q_idx >= kv_idx)

    return document_causal


def packed(source: Source, sizes: Sizes) -> Callable:
    """Documents of each sequence of the batch by themselves, both ways."""
    starts = source.integers(2, sizes.batch, max(sizes.keys, sizes.queries), dtype=torch.int32)
    document = starts.cumsum(-1, dtype=torch.int32) // 6

    def packed_documents(b, h, q_idx, kv_idx):
        return document[b, q_idx] == document[b, kv_idx]

    return packed_documents


def dilated(source: Source, sizes: Sizes) -> Callable:
    def dilated(b, h, q_idx, kv_idx):
        apart = q_idx - kv_idx
        return (apart >= 0) & (apart % 3 == 0)

    return dilated


def strided_heads(source: Source, sizes: Sizes) -> Callable:
    """Each head looks at other multiples."""

    def strided_heads(b, h, q_idx, kv_idx):
        return ((q_idx + kv_idx) % (h + 2) == 0) | (q_idx == kv_idx)

    return strided_heads


def local_global(source: Source, sizes: Sizes) -> Callable:
    def local_global(b, h, q_idx, kv_idx):
        return (torch.abs(q_idx - kv_idx) < 5) | (kv_idx < 3) | (q_idx < 3)

    return local_global


def lengths(source: Source, sizes: Sizes) -> Callable:
    """Keys beyond a sequence's length do not exist; one sequence of the batch is empty."""
    found = source.tensor([0, *([sizes.keys - 5] * (sizes.batch - 1))])

    def padded(b, h, q_idx, kv_idx):
        return kv_idx < found[b]

    return padded


def checkerboard(source: Source, sizes: Sizes) -> Callable:
    def checkerboard(b, h, q_idx, kv_idx):
        return ((q_idx // 4) + (kv_idx // 4)) % 2 == 0

    return checkerboard


def some_rows_hidden(source: Source, sizes: Sizes) -> Callable:
    def every_third_row_sees(b, h, q_idx, kv_idx):
        return (q_idx % 3 == 0) & (kv_idx <= q_idx)

    return every_third_row_sees


def nothing(source: Source, sizes: Sizes) -> Callable:
    def nothing(b, h, q_idx, kv_idx):
        return kv_idx < 0

    return nothing


def nested(source: Source, sizes: Sizes) -> Callable:
    """and, or and not of masks, one inside the other."""
    from staxlab.attention.masks import and_masks, not_mask, or_masks

    parts = [make(source, sizes) for make in (causal, packed, window, checkerboard)]
    return or_masks(and_masks(parts[0], parts[1]), and_masks(parts[2], not_mask(parts[3])))


def table_of_blocks(source: Source, sizes: Sizes) -> Callable:
    """Visible where a captured table of blocks says so."""
    size = 8
    rows, columns = -(-sizes.queries // size), -(-sizes.keys // size)
    table = source.integers(2, sizes.heads, rows, columns).bool()
    table[:, :, 0] = True

    def block_sparse(b, h, q_idx, kv_idx):
        return table[h, q_idx // size, kv_idx // size]

    return block_sparse


# -- scores -----------------------------------------------------------------------------------------------------------


def alibi(source: Source, sizes: Sizes) -> Callable:
    """Press, Smith and Lewis (2022), Train short, test long: Attention with linear biases."""

    def alibi(score, b, h, q_idx, kv_idx):
        slope = torch.exp2(-(h + 1).to(torch.float32))
        return score - slope * (q_idx - kv_idx)

    return alibi


def soft_cap(source: Source, sizes: Sizes, cap: float = 5.0) -> Callable:
    def soft_cap(score, b, h, q_idx, kv_idx):
        return cap * torch.tanh(score / cap)

    return soft_cap


def alibi_soft_cap(source: Source, sizes: Sizes) -> Callable:
    inner, outer = alibi(source, sizes), soft_cap(source, sizes)

    def capped_alibi(score, b, h, q_idx, kv_idx):
        return outer(inner(score, b, h, q_idx, kv_idx), b, h, q_idx, kv_idx)

    return capped_alibi


def relative_bias(source: Source, sizes: Sizes) -> Callable:
    table = source.normal(sizes.heads, sizes.queries + sizes.keys - 1)
    last = sizes.keys - 1

    def relative_bias(score, b, h, q_idx, kv_idx):
        return score + table[h, q_idx - kv_idx + last]

    return relative_bias


def learned_relative_bias(source: Source, sizes: Sizes) -> Callable:
    table = source.learned("table", sizes.heads, sizes.queries + sizes.keys - 1)
    last = sizes.keys - 1

    def learned_relative_bias(score, b, h, q_idx, kv_idx):
        return score + table[h, q_idx - kv_idx + last]

    return learned_relative_bias


def wrapped_relative_bias(source: Source, sizes: Sizes) -> Callable:
    """Negative subscripts count from the end."""
    table = source.learned("table", 2 * sizes.keys)

    def wrapped_relative_bias(score, b, h, q_idx, kv_idx):
        return score + table[kv_idx - q_idx]

    return wrapped_relative_bias


def buckets(source: Source, sizes: Sizes) -> Callable:
    """Raffel and others (2020), Exploring the limits of transfer learning (T5): logarithmic buckets of distances."""
    exact, count, farthest = 4, 8, 32
    table = source.learned("table", count, sizes.heads)

    def bucketed_bias(score, b, h, q_idx, kv_idx):
        apart = torch.clamp(q_idx - kv_idx, min=0)
        ratio = torch.log(apart.to(torch.float32) / exact + 1e-6) / math.log(farthest / exact)
        far = torch.clamp(exact + (ratio * (count - exact)).to(torch.int32), max=count - 1)
        return score + table[torch.where(apart < exact, apart, far), h]

    return bucketed_bias


def learned_scalar(source: Source, sizes: Sizes) -> Callable:
    bias, gain = source.learned("bias"), source.learned("gain", spread=0.2, about=1.0)

    def affine(score, b, h, q_idx, kv_idx):
        return score * gain + bias * q_idx / (kv_idx + 1)

    return affine


def learned_per_head(source: Source, sizes: Sizes) -> Callable:
    bias = source.learned("bias", sizes.heads)

    def per_head(score, b, h, q_idx, kv_idx):
        # Not in float32: eager's square root is MKL's, and on some processors off by a unit in the last place.
        return score + bias[h] * torch.sqrt((q_idx + kv_idx).to(score.dtype))

    return per_head


def temperature(source: Source, sizes: Sizes) -> Callable:
    found = source.learned("temperature", sizes.heads, spread=0.2, about=1.0)

    def temperature(score, b, h, q_idx, kv_idx):
        return score / found[h]

    return temperature


def additive(source: Source, sizes: Sizes) -> Callable:
    bias = source.normal(sizes.queries, sizes.keys)

    def additive(score, b, h, q_idx, kv_idx):
        return score + bias[q_idx, kv_idx]

    return additive


def learned_additive(source: Source, sizes: Sizes) -> Callable:
    bias = source.learned("bias", sizes.queries, sizes.keys)

    def learned_additive(score, b, h, q_idx, kv_idx):
        return score + bias[q_idx, kv_idx]

    return learned_additive


def full_additive(source: Source, sizes: Sizes) -> Callable:
    """A bias of its own for every score."""
    bias = source.learned("bias", *sizes.scores)

    def full_additive(score, b, h, q_idx, kv_idx):
        return score + bias[b, h, q_idx, kv_idx]

    return full_additive


def transposed_additive(source: Source, sizes: Sizes) -> Callable:
    bias = source.normal(sizes.keys, sizes.queries).t()

    def transposed_additive(score, b, h, q_idx, kv_idx):
        return score + bias[q_idx, kv_idx]

    return transposed_additive


def gate(source: Source, sizes: Sizes) -> Callable:
    weight = source.learned("weight", sizes.heads)

    def gated(score, b, h, q_idx, kv_idx):
        return score * torch.sigmoid(weight[h] * score)

    return gated


def mask_in_score(source: Source, sizes: Sizes) -> Callable:
    """A causal mask as a score of minus infinity."""

    def causal_score(score, b, h, q_idx, kv_idx):
        return torch.where(q_idx >= kv_idx, score, float("-inf"))

    return causal_score


def decay(source: Source, sizes: Sizes) -> Callable:
    """A learned rate for each head, through an exponential and a subscript that is data."""
    rate = source.learned("rate", 3)
    kind = source.integers(3, sizes.heads)

    def decay(score, b, h, q_idx, kv_idx):
        return score - torch.exp(rate[kind[h]]) * torch.abs(q_idx - kv_idx) / 8

    return decay


def clamped(source: Source, sizes: Sizes) -> Callable:
    def clamped(score, b, h, q_idx, kv_idx):
        return torch.clamp(score, -0.5, 0.75) + torch.relu(score) / 2

    return clamped


def times(source: Source, sizes: Sizes) -> Callable:
    """Scores by when tokens were made: a table that both subscripts read."""
    when = source.learned("when", sizes.batch, max(sizes.queries, sizes.keys))

    def times(score, b, h, q_idx, kv_idx):
        apart = when[b, q_idx] - when[b, kv_idx]
        return score - apart * apart / 4

    return times


def partly_bound(source: Source, sizes: Sizes) -> Callable:
    """functools.partial: a number and a tensor bound beforehand."""
    slopes = source.normal(sizes.heads)

    def shifted(slope, offset, score, b, h, q_idx, kv_idx):
        return score + slope[h] * (kv_idx - q_idx - offset)

    return functools.partial(shifted, slopes, 3)


GROUPED = Sizes(heads=4, key_heads=2, queries=29, keys=35)
LONG = Sizes(queries=150, keys=173, heads=2, key_heads=1, batch=1)  # more than one block of 128 both ways
DECODING = Sizes(queries=1, keys=83, heads=4, key_heads=2)

VARIANTS: tuple[Variant, ...] = (
    Variant("plain"),
    Variant("scaled", scale=0.3),
    Variant("values of another size", sizes=Sizes(value_size=32, keys=45)),
    Variant("causal", mask=causal),
    Variant("causal, lower right", mask=lower_right_causal, sizes=Sizes(queries=21, keys=40)),
    Variant("sliding window", mask=window),
    Variant("prefix", mask=prefix),
    Variant("documents", mask=documents),
    Variant("packed documents", mask=packed),
    Variant("dilated", mask=dilated),
    Variant("strided heads", mask=strided_heads),
    Variant("local and global", mask=local_global),
    Variant("lengths", mask=lengths, hides_rows=True),
    Variant("checkerboard", mask=checkerboard),
    Variant("hidden rows", mask=some_rows_hidden, hides_rows=True),
    Variant("nothing visible", mask=nothing, hides_rows=True),
    Variant("nested masks", mask=nested),
    Variant("table of blocks", mask=table_of_blocks),
    Variant("ALiBi", score=alibi),
    Variant("causal ALiBi", score=alibi, mask=causal),  # Listing 9.7
    Variant("soft cap", score=soft_cap),
    Variant("causal ALiBi soft cap", score=alibi_soft_cap, mask=causal),
    Variant("relative bias", score=relative_bias, sizes=Sizes(queries=23, keys=41)),
    Variant("learned relative bias", score=learned_relative_bias, mask=causal),
    Variant("wrapped relative bias", score=wrapped_relative_bias),
    Variant("T5 buckets", score=buckets),
    Variant("learned scalars", score=learned_scalar),
    Variant("learned bias of heads", score=learned_per_head, mask=window),
    Variant("temperature", score=temperature),
    Variant("additive bias", score=additive),
    Variant("learned additive bias", score=learned_additive, mask=documents),
    Variant("bias of every score", score=full_additive, sizes=Sizes(queries=19, keys=22)),
    Variant("transposed bias", score=transposed_additive, sizes=Sizes(queries=26, keys=33)),
    Variant("sigmoid gate", score=gate),
    Variant("mask in the score", score=mask_in_score),
    Variant("learned decay", score=decay, mask=causal),
    Variant("clamped", score=clamped),
    Variant("times", score=times, mask=causal),
    Variant("partial", score=partly_bound),
    Variant("grouped queries", sizes=GROUPED),
    Variant("grouped queries, causal ALiBi", score=alibi, mask=causal, sizes=GROUPED),
    Variant("grouped queries, learned", score=learned_per_head, mask=packed, sizes=GROUPED),
    Variant("one key head", score=soft_cap, sizes=Sizes(heads=3, key_heads=1)),
    Variant("several blocks", score=alibi, mask=causal, sizes=LONG),
    Variant("several blocks, learned", score=learned_relative_bias, mask=documents, sizes=LONG),
    Variant("decoding", sizes=DECODING),
    Variant("decoding, ALiBi window", score=alibi, mask=lower_right_causal, sizes=DECODING),
    Variant("decoding, lengths", mask=lengths, sizes=DECODING, hides_rows=True),
)

BY_NAME = {variant.name: variant for variant in VARIANTS}

__all__ = [
    "BY_NAME",
    "VARIANTS",
    "Expected",
    "Made",
    "Sizes",
    "Variant",
    "expected",
    "score_rounding",
    "subscript_tensors",
    "visible",
]
