"""What an attention kernel is generated for: sizes, types, modifications and the shape of the block mask.

An :class:`AttentionProblem` holds everything the text of a kernel may depend on and nothing else: no tensor, no
address, no value of a captured tensor. Two calls with equal problems run the same kernel, so the problem is the key of
the caches, and a kernel can be generated from it for a device that is not here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch

from ..options import DeviceSpec

DTYPES = (torch.float32, torch.float16, torch.bfloat16, torch.float64)  # float64 on CPUs and in the reference only
LARGEST_HEAD = 256  # elements of a row of queries, keys or values that the templates keep on chip


Strides = tuple[int, int, int, int]


def dense_like(sizes: Sequence[int], strides: Sequence[int]) -> Strides:
    """Strides without gaps: the last dimension innermost, the first three in the order of the ``strides`` given (a
    stride of 0 counts as the largest: what is expanded is outermost).

    >>> dense_like((2, 3, 5, 4), (60, 4, 12, 1))
    (60, 4, 12, 1)
    """
    order = sorted(range(3), key=lambda axis: -(strides[axis] or math.inf))
    found, step = [0, 0, 0, 1], max(sizes[3], 1)
    for axis in reversed(order):
        found[axis] = step
        step *= max(sizes[axis], 1)
    return tuple(found)


@dataclass(frozen=True)
class BlockGeometry:
    """The part of a block mask that a kernel's text depends on: how large a block is, and along which of batch and
    head the lists of blocks vary. Where one does not, its extent in the lists is 1 and every number of it reads the
    same list. Where a mask was made for a number of heads, and its function does not read which, they all have equal
    lists: ``heads_alike``. Which blocks are visible is data, and no part of this."""

    rows: int  # queries in a block
    columns: int  # keys in a block
    batch_varies: bool
    head_varies: bool
    heads_alike: bool = False

    def counts(self, queries: int, keys: int) -> tuple[int, int]:
        """Blocks along the queries and along the keys; the last of each may be ragged."""
        return -(-queries // self.rows), -(-keys // self.columns)


@dataclass(frozen=True, eq=False)
class AttentionProblem:
    """One attention, as far as its kernels depend on it.

    Query [batch, query_heads, queries, head_size], key [batch, key_heads, keys, head_size] and value [batch, key_heads,
    keys, value_size] are of ``dtype`` and have the strides given, in elements; query head ``h`` uses key head ``h //
    group``. ``score`` and ``mask`` are traced modifications or None; ``blocks`` is None where every block is visited
    and no ``mask`` is evaluated. The result [batch, query_heads, queries, value_size] is of ``dtype`` and has
    :attr:`output_strides`; the logarithm of the sum of exponentials [batch, query_heads, queries] is contiguous and
    float32 (float64 for float64).

    Equal and hashed by :attr:`key`: modifications count by what they compute, not by which object they are.
    """

    batch: int
    query_heads: int
    key_heads: int
    queries: int
    keys: int
    head_size: int
    value_size: int
    dtype: torch.dtype
    scale: float
    query_strides: Strides
    key_strides: Strides
    value_strides: Strides
    score: Any  # Modification | None
    mask: Any  # Modification | None
    blocks: BlockGeometry | None
    needs_gradient: bool
    device: DeviceSpec

    @property
    def key(self) -> tuple:
        """Hashable: whatever decides the text of this problem's kernels."""
        score, mask = (part and part.key for part in (self.score, self.mask))
        sizes = (self.batch, self.query_heads, self.key_heads, self.queries, self.keys, self.head_size, self.value_size)
        strides = (self.query_strides, self.key_strides, self.value_strides)
        # Zero equals minus zero, and a scale of either is a kernel of its own.
        scale = (self.scale, math.copysign(1.0, self.scale))
        return (sizes, self.dtype, scale, strides, score, mask, self.blocks, self.needs_gradient, self.device)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, AttentionProblem) and self.key == other.key

    def __hash__(self) -> int:
        return hash(self.key)

    @property
    def group(self) -> int:
        """Query heads that share one key head; 1 without grouped-query attention."""
        return self.query_heads // self.key_heads if self.key_heads else 1

    @cached_property
    def output_strides(self) -> Strides:
        """Strides of the result: dense, a row of values innermost, the other dimensions in the order that they have in
        the query, so that what comes of a projection in (batch, queries, heads, size) goes on as such."""
        return dense_like((self.batch, self.query_heads, self.queries, self.value_size), self.query_strides)

    @cached_property
    def gradient_strides(self) -> tuple[Strides, Strides, Strides]:
        """Strides of the gradients of query, key and value: dense, in the order that each has itself."""
        rows, columns = (self.batch, self.query_heads, self.queries), (self.batch, self.key_heads, self.keys)
        return (
            dense_like((*rows, self.head_size), self.query_strides),
            dense_like((*columns, self.head_size), self.key_strides),
            dense_like((*columns, self.value_size), self.value_strides),
        )

    @cached_property
    def captured(self) -> tuple[Any, ...]:
        """The tensors that the modifications read, those of ``score`` first: the order of a kernel's arguments."""
        return (*(self.score.captured if self.score else ()), *(self.mask.captured if self.mask else ()))

    @property
    def accumulator(self) -> torch.dtype:
        """The type in which products are accumulated, scores modified, and the logarithm of the sum delivered."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32

    @cached_property
    def is_empty(self) -> bool:
        """Whether there is nothing to compute: no result, or no key, when the result is zero throughout."""
        return 0 in (self.batch, self.query_heads, self.queries, self.keys)

    def __str__(self) -> str:
        heads = f"{self.query_heads}" if self.group == 1 else f"{self.query_heads} over {self.key_heads}"
        dtype = str(self.dtype).removeprefix("torch.")
        parts = [
            f"attention of {self.batch} x {heads} heads, {self.queries} queries x {self.keys} keys of {self.head_size}"
            + (f" (values of {self.value_size})" if self.value_size != self.head_size else ""),
            dtype,
            f"scale {self.scale:.6g}",
        ]
        parts += [f"score_mod {self.score.name}"] if self.score else []
        parts += [f"mask_mod {self.mask.name}"] if self.mask else []
        parts += [f"blocks of {self.blocks.rows} x {self.blocks.columns}"] if self.blocks else []
        return ", ".join(parts)
