"""Blocks of a causal mask and of a sliding window, counted in closed form (Exercise 37, Section 9.10).

Divide N positions into n = N/B blocks of B a side. Whether the block (i, j) is visible depends on d = abs(i - j) alone.
Of the diagonals d = 0, 1, ... the first has n blocks and every other one 2 (n - d), half of them on each side.
In a block at distance d the positions are at least (d - 1) B + 1 apart (0 for d = 0), and at most (d + 1) B - 1. So for
the window abs(q - k) <= w

- diagonals with (d + 1) B - 1 <= w are **full**: those below F = floor((w + 1) / B);
- diagonals with (d - 1) B + 1 <= w are **visited**: those up to D = ceil(w / B);
- the ones between, F to D, are **partial**.

If B divides w that is one diagonal; if w leaves a remainder it is two, except for the remainder B - 1, where the
window ends with a block and one suffices again.

>>> window_blocks(4096, 128, 1024), window_blocks(4096, 128, 1100)
(BlockCounts(partial=48, full=424, empty=552), BlockCounts(partial=94, full=424, empty=506))
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ..attention.block_mask import BlockCounts, create_block_mask
from ..attention.masks import causal, sliding_window
from ..errors import OptionError
from .tables import Table, Tabular


def _blocks(length: int, block: int) -> int:
    if length < 1 or block < 1 or length % block:
        raise OptionError(
            f"{length} positions in blocks of {block}",
            remedy="the closed forms are for a length that is a positive multiple of the block size",
        )
    return length // block


def causal_blocks(length: int, block: int) -> BlockCounts:
    """Blocks of a causal mask over ``length`` positions: n partial ones on the diagonal, n (n - 1) / 2 full and empty.

    Blocks of one position are never partial. Raises OptionError if ``block`` does not divide ``length``.
    """
    n = _blocks(length, block)
    below = n * (n - 1) // 2
    return BlockCounts(n, below, below) if block > 1 else BlockCounts(0, n + below, below)


def window_blocks(length: int, block: int, width: int) -> BlockCounts:
    """Blocks of the window abs(q - k) <= ``width`` over ``length`` positions; O(1).

    Raises OptionError if ``block`` does not divide ``length``, or for a negative ``width``.
    """
    n = _blocks(length, block)
    if width < 0:
        raise OptionError(f"a window of width {width}", remedy="give a width of 0 or more")
    full = _within(n, (width + 1) // block)
    visited = _within(n, -(-width // block) + 1)
    return BlockCounts(visited - full, full, n * n - visited)


def _within(n: int, diagonals: int) -> int:
    """Blocks on the first ``diagonals`` diagonals of an n x n grid, both sides."""
    count = min(diagonals, n)
    return max(n * (2 * count - 1) - count * (count - 1), 0)


def visited_blocks(counts: BlockCounts) -> int:
    """Blocks whose scores are computed: full and partial ones."""
    return counts.full + counts.partial


def saving(counts: BlockCounts, other: BlockCounts) -> Fraction:
    """The share of ``other``'s visited blocks that ``counts`` does not visit; negative if it visits more."""
    return 1 - Fraction(visited_blocks(counts), visited_blocks(other))


@dataclass(frozen=True, repr=False)
class BlockSavings(Tabular):
    """Windows of several widths beside the causal mask: blocks in closed form, and counted by a block mask."""

    length: int
    block: int
    widths: tuple[int, ...]

    def rows(self) -> list[tuple[str, BlockCounts, BlockCounts]]:
        """(mask, closed form, counted), the causal mask first. O(length^2 widths): each mask is evaluated."""
        masks = [("causal", causal, causal_blocks(self.length, self.block))]
        masks += [(f"w = {w:,}", sliding_window(w), window_blocks(self.length, self.block, w)) for w in self.widths]
        size = (self.length, self.length)
        return [
            (name, closed, create_block_mask(mask, None, None, *size, BLOCK_SIZE=self.block).totals())
            for name, mask, closed in masks
        ]

    def table(self) -> Table:
        rows = self.rows()
        reference = rows[0][1]
        cells = [
            (name, closed.partial, closed.full, closed.empty, f"{100 * float(saving(closed, reference)):.4g}%",
             "yes" if closed == counted else f"no: {tuple(counted)}")
            for name, closed, counted in rows
        ]  # fmt: skip
        head = ("mask", "partial", "full", "empty", "saved over causal", "counted the same")
        caption = f"Blocks of {self.block} x {self.block} of {self.length:,} x {self.length:,} positions"
        return Table.build(caption, head, cells, ["saved: share of the causal mask's visited blocks"])


def block_savings(length: int, block: int, widths: Sequence[int]) -> BlockSavings:
    """Windows of these widths beside the causal mask. Raises OptionError as :func:`window_blocks` does."""
    for width in widths:
        window_blocks(length, block, width)
    causal_blocks(length, block)
    return BlockSavings(length, block, tuple(widths))
