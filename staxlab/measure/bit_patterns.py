"""Which numbers a claim about arithmetic is tried on: every one where they can be counted, the telling ones elsewhere.

A 16-bit format has 65,536 numbers, so a claim about one variable can be tried on all of them: that is a proof, for
this machine. Two variables make four billion pairs; there every number meets the *special* ones (zeros, infinities,
NaN, the borders between subnormal, normal and infinite, the neighbours of 1), in both places, and random pairs are
added. float32 and float64 are *structured*: every exponent with telling significands, small fractions, the special
numbers, random bits.

``simplicity`` orders numbers for the reader: of many counterexamples, the one with the fewest significant bits and the
exponent closest to 0 is shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

#: dtype: (bits, of which exponent, of which stored significand)
FORMATS: dict[torch.dtype, tuple[int, int, int]] = {
    torch.float16: (16, 5, 10),
    torch.bfloat16: (16, 8, 7),
    torch.float32: (32, 8, 23),
    torch.float64: (64, 11, 52),
}
_BITS = {8: torch.int8, 16: torch.int16, 32: torch.int32, 64: torch.int64}


def bits_of(values: torch.Tensor) -> torch.Tensor:
    """The bit patterns as int64: sign-extended, one for one."""
    if values.dtype is torch.bool:
        return values.to(torch.int64)
    if values.dtype.is_floating_point:
        values = values.contiguous().view(_BITS[8 * values.dtype.itemsize])
    return values.to(torch.int64)


def from_bits(bits: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Numbers of a floating-point format from their bit patterns, given as int64."""
    return bits.to(_BITS[FORMATS[dtype][0]]).view(dtype)


def ordinals(values: torch.Tensor) -> torch.Tensor:
    """Integers in the order of the numbers, neighbours one apart, both zeros 0. The difference of two is their
    distance in units in the last place."""
    bits = bits_of(values)
    if not values.dtype.is_floating_point:
        return bits
    width = FORMATS[values.dtype][0]
    magnitude = bits & ((1 << (width - 1)) - 1)
    return torch.where(bits < 0, -magnitude, magnitude)


@cache
def special(dtype: torch.dtype) -> torch.Tensor:
    """The numbers at which identities break, both signs where there are two."""
    if dtype is torch.bool:
        return torch.tensor([False, True])
    if not dtype.is_floating_point:
        info = torch.iinfo(dtype)
        near = {0, 1, 2, 3, 7, info.max, info.max - 1, info.max // 2, info.max // 2 + 1}
        near |= {-n for n in near} | {info.min, info.min + 1} if info.min < 0 else set()
        return torch.tensor(sorted(near, key=lambda n: (abs(n), n < 0)), dtype=dtype)
    info = torch.finfo(dtype)
    smallest = info.smallest_normal * info.eps
    positive = [0.0, 1.0, 2.0, 0.5, 3.0, 1.0 + info.eps, 1.0 - info.eps / 2, info.eps, info.eps / 2, 1 / 3,
                smallest, info.smallest_normal - smallest, info.smallest_normal, info.max, info.max / 2,
                float("inf")]  # fmt: skip
    both = torch.tensor(positive, dtype=torch.float64)
    return torch.cat([torch.stack([both, -both], 1).reshape(-1), torch.tensor([float("nan")])]).to(dtype)


@dataclass(frozen=True)
class Numbers:
    """Values of one dtype; ``complete`` says that there are no others."""

    values: torch.Tensor
    complete: bool


@cache
def numbers(dtype: torch.dtype, quick: bool = False, seed: int = 0) -> Numbers:
    """All numbers of a dtype of at most 16 bits, the structured ones of a wider type (some 10^5; ``quick``: 10^4)."""
    if dtype is torch.bool:
        return Numbers(special(dtype), True)
    if dtype.itemsize <= 2:
        width = 8 * dtype.itemsize
        count = torch.arange(1 << width)
        if dtype.is_floating_point:
            signed = torch.where(count < 1 << (width - 1), count, count - (1 << width))
            return Numbers(from_bits(signed, dtype), True)
        return Numbers((count + torch.iinfo(dtype).min).to(dtype), True)
    return Numbers(_structured(dtype, 1 << (12 if quick else 17), seed), False)


def _structured(dtype: torch.dtype, draws: int, seed: int) -> torch.Tensor:
    random = torch.Generator().manual_seed(seed)
    low, high = (-(1 << 31), (1 << 31)) if dtype.itemsize == 4 else (-(1 << 63), (1 << 63) - 1)
    bits = torch.randint(low, high, (draws,), generator=random)
    if not dtype.is_floating_point:
        return torch.cat([special(dtype), torch.arange(-1000, 1000).to(dtype), bits.to(dtype)])
    _, exponent_bits, significand_bits = FORMATS[dtype]
    full = (1 << significand_bits) - 1
    telling = [0, 1, 2, 3, full, full - 1, full >> 1, (full >> 1) + 1, (full >> 1) + 2, full // 3, 2 * (full // 3)]
    exponents = torch.arange(1 << exponent_bits)[:, None] << significand_bits
    grid = (exponents | torch.tensor(telling)[None, :]).reshape(-1)
    fractions = torch.arange(-2048, 2049, dtype=torch.float64) / 8
    negative = grid + -(1 << (8 * dtype.itemsize - 1))  # the same with the sign bit, as a signed integer
    parts = [from_bits(torch.cat([grid, negative, bits]), dtype), fractions.to(dtype), special(dtype)]
    return torch.cat(parts)


def tuples(dtype: torch.dtype, count: int, quick: bool = False, seed: int = 0) -> tuple[list[torch.Tensor], bool]:
    """Values for ``count`` variables, as equally long tensors, and whether that is all there is."""
    domain = numbers(dtype, quick, seed)
    if count <= 1:
        return [domain.values] * count, domain.complete
    size = len(domain.values)
    if domain.complete and size**count <= 1 << 16:
        return list(torch.cartesian_prod(*[domain.values] * count).unbind(1)), True
    random = torch.Generator().manual_seed(seed + 1)
    extreme = special(dtype)
    draws = 1 << (12 if quick else 17)

    def drawn(source: torch.Tensor, number: int = draws) -> torch.Tensor:
        return source[torch.randint(len(source), (number,), generator=random)]

    columns: list[list[torch.Tensor]] = [[] for _ in range(count)]

    def add(*values: torch.Tensor) -> None:
        for column, value in zip(columns, values, strict=True):
            column.append(value)

    add(*torch.cartesian_prod(*[extreme] * count).unbind(1))
    if count == 2 and domain.complete:  # everything with the special numbers, in both places
        crossed = domain.values[:: 64 if quick else 1 if dtype.is_floating_point else 16]
        one, other = crossed.repeat(len(extreme)), extreme.repeat_interleave(len(crossed))
        add(one, other)
        add(other, one)
    small = _small(dtype)
    for source in (domain.values, small):
        add(*(drawn(source) for _ in range(count)))
    for place in range(count):  # one ordinary value among special ones
        add(*(drawn(small if other == place else extreme, draws // 4) for other in range(count)))
    return [torch.cat(column) for column in columns], False


def _small(dtype: torch.dtype) -> torch.Tensor:
    """Numbers a reader can add in the head."""
    if dtype is torch.bool:
        return special(dtype)
    if dtype.is_floating_point:
        return (torch.arange(-80, 81, dtype=torch.float64) / 8).to(dtype)
    return torch.arange(-20 if torch.iinfo(dtype).min else 0, 21).to(dtype)


def simplicity(values: torch.Tensor) -> torch.Tensor:
    """A rank per value, smaller for simpler: few significant bits, an exponent near 0, positive; NaN and infinity come
    last. int64."""
    if values.dtype is torch.bool:
        return values.to(torch.int64)
    if not values.dtype.is_floating_point:
        wide = values.to(torch.int64)
        return 2 * torch.where(wide == wide.min(), wide, wide.abs()).abs() + (wide < 0)
    bits = bits_of(values)
    width, exponent_bits, significand_bits = FORMATS[values.dtype]
    significand = bits & ((1 << significand_bits) - 1)
    exponent = (bits >> significand_bits) & ((1 << exponent_bits) - 1)
    lowest = significand & -significand  # the last bit that is set
    used = torch.where(significand == 0, 0, significand_bits - torch.log2(lowest.clamp(min=1).double()).long())
    away = (exponent - ((1 << (exponent_bits - 1)) - 1)).abs()
    rank = 4 * used + 3 * away + (bits < 0)
    rank = torch.where(values == 0, bits < 0, rank)
    rank = torch.where(values.isinf(), 300 + (bits < 0).long(), rank)
    return torch.where(values.isnan(), 400, rank)


def simplest(columns: Sequence[torch.Tensor], among: torch.Tensor) -> int:
    """The position of the simplest tuple among those that ``among`` marks (at least one)."""
    positions = among.nonzero().reshape(-1)
    ranks = sum(simplicity(column[positions]) for column in columns)
    return int(positions[int(torch.argmin(ranks))]) if columns else int(positions[0])


def number_text(value: torch.Tensor) -> str:
    """The shortest decimal that names this number in its own dtype: ``0.1`` for the float32 nearest to 0.1."""
    plain = value.item()
    if not isinstance(plain, float) or plain != plain or plain in (float("inf"), float("-inf")):
        return str(plain)
    for digits in range(1, 18):
        text = f"{plain:.{digits}g}"
        if torch.tensor(float(text), dtype=torch.float64).to(value.dtype).item() == plain:
            break
    return text if any(mark in text for mark in ".en") else f"{text}.0"


def count_of(dtype: torch.dtype, count: int) -> int:
    """How many tuples there are: 2^(bits * count)."""
    return 2 ** (count * (1 if dtype is torch.bool else 8 * dtype.itemsize))
