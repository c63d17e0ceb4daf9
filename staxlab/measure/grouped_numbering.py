"""The order in which the blocks of a product are started, and what that does to the L2 cache (Proposition 9.4).

A block of ``C = A B`` needs a row of blocks of ``A`` and a column of blocks of ``B``. Of the blocks that run at the
same time, those in one row share the former and those in one column the latter, so ``W`` blocks that form an ``r`` x
``c`` rectangle read ``r + c`` block rows and columns together: the fewest for a square, ``2 sqrt(W)``. Numbered row by
row they form a line instead.

:func:`numbering` lists the order (with the arithmetic that kernels use, :mod:`staxlab.codegen.triton.numbering`) and
counts what any window of it reads, whether or not the height of the groups divides the window, or the grid.
:func:`best_group` tries every height. :func:`l2_traffic` goes through all loads of all blocks and keeps the last level
cache as a list of least recently used blocks, to say what remains for the main memory.

>>> numbering(6, 6, 2).reads(8).total, numbering(6, 6, 1).reads(8).total
(6, 8)
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..codegen.triton.numbering import block_coordinates
from ..errors import OptionError
from ..options import Decision
from .tables import Table, Tabular, bytes_text

MOST_TEXT_COLUMNS = 24  # of a grid printed in characters


@dataclass(frozen=True)
class Reads:
    """What a window of blocks reads: these ``rows`` of blocks of A and ``columns`` of blocks of B."""

    rows: tuple[int, ...]
    columns: tuple[int, ...]

    @property
    def total(self) -> int:
        """Block rows and block columns together."""
        return len(self.rows) + len(self.columns)


@dataclass(frozen=True, repr=False)
class Numbering(Tabular):
    """The blocks of a ``grid_m`` x ``grid_n`` result in groups of ``group`` rows, ``window`` of them at the same time.

    ``group=1`` is row-major. In a notebook the record shows the blocks being started one after the other, beside the
    row-major order; in a terminal it prints both.
    """

    grid_m: int
    grid_n: int
    group: int
    window: int

    @cached_property
    def order(self) -> tuple[tuple[int, int], ...]:
        """(row, column) of every block, in the order of their numbers."""
        return tuple(
            block_coordinates(pid, self.grid_m, self.grid_n, self.group) for pid in range(self.grid_m * self.grid_n)
        )

    @cached_property
    def number(self) -> dict[tuple[int, int], int]:
        """The number of the block at (row, column)."""
        return {block: pid for pid, block in enumerate(self.order)}

    def reads(self, window: int | None = None, start: int = 0) -> Reads:
        """The block rows and columns that blocks ``start`` to ``start + window - 1`` read; O(window).

        Raises OptionError for a window that does not lie in the grid.
        """
        window = self.window if window is None else window
        if window < 1 or start < 0 or start + window > len(self.order):
            raise OptionError(
                f"blocks {start} to {start + window - 1} are not all in a grid of {len(self.order)}",
                remedy=f"take a window of 1 to {len(self.order) - max(start, 0)} blocks from there",
            )
        blocks = self.order[start : start + window]
        return Reads(tuple(sorted({row for row, _ in blocks})), tuple(sorted({column for _, column in blocks})))

    @property
    def row_major(self) -> Numbering:
        """The same grid and window, numbered row by row."""
        return Numbering(self.grid_m, self.grid_n, 1, self.window)

    @property
    def waves(self) -> tuple[Reads, ...]:
        """What is read if the blocks run in waves of ``window``, one wave after the other; the last may be smaller."""
        blocks = len(self.order)
        return tuple(
            self.reads(min(self.window, blocks - start), start) for start in range(0, blocks, self.window)
        )  # fmt: skip

    @property
    def name(self) -> str:
        return "row-major" if self.group == 1 else f"groups of {self.group}"

    def summary(self) -> str:
        mine, plain = self.reads(), self.row_major.reads()
        least = 2 * math.sqrt(self.window)
        return (
            f"the first {self.window:,} of {self.grid_m} x {self.grid_n} blocks read {len(mine.rows)} block rows of A "
            f"and {len(mine.columns)} block columns of B, {mine.total} in all; row-major {plain.total}; "
            f"2 sqrt(W) = {least:.3g}"
        )

    def table(self) -> Table:
        rows = []
        for one in dict.fromkeys((self.row_major, self)):
            first, waves = one.reads(), one.waves
            rows.append(
                (one.name, len(first.rows), len(first.columns), first.total, sum(wave.total for wave in waves),
                 max(wave.total for wave in waves))
            )  # fmt: skip
        head = ("numbering", "rows of A", "columns of B", "first window", "all waves", "largest wave")
        caption = f"Blocks read by {self.window:,} at a time, of {self.grid_m} x {self.grid_n}"
        notes = [f"a square of W blocks would read 2 sqrt(W) = {2 * math.sqrt(self.window):.4g}"]
        return Table.build(caption, head, rows, notes)

    def format(self) -> str:
        """The table, and where they fit the two grids with the number of each block; ``*`` marks the first window."""
        text = self.table().text()
        if self.grid_n <= MOST_TEXT_COLUMNS and self.grid_m <= MOST_TEXT_COLUMNS:
            text += "".join(f"\n\n{one.name}\n{one.grid_text()}" for one in dict.fromkeys((self.row_major, self)))
        return text

    def grid_text(self) -> str:
        """The grid with the number of each block; the first window is marked with ``*``."""
        width = len(str(len(self.order) - 1)) + 1
        lines = []
        for row in range(self.grid_m):
            numbers = (self.number[row, column] for column in range(self.grid_n))
            lines.append(" ".join(f"{n}{'*' if n < self.window else ' '}".rjust(width) for n in numbers).rstrip())
        return "\n".join(lines)

    __str__ = __repr__ = format


def numbering(grid_m: int, grid_n: int, group: int = 8, window: int | None = None) -> Numbering:
    """The order of the blocks of a ``grid_m`` x ``grid_n`` result, in groups of ``group`` rows (1: row-major).

    ``window`` blocks run at the same time: by default 132, the multiprocessors of an H100, or all there are. Raises
    OptionError for extents, groups or windows below 1, or a window larger than the grid.
    """
    block_coordinates(0, grid_m, grid_n, group)  # says what is wrong with them
    blocks = grid_m * grid_n
    window = min(132, blocks) if window is None else window
    if not isinstance(window, int) or not 1 <= window <= blocks:
        raise OptionError(f"{window} blocks at a time, of {blocks}", remedy=f"take a window of 1 to {blocks}")
    return Numbering(grid_m, grid_n, group, window)


def aligned_reads(grid_m: int, grid_n: int, group: int, window: int) -> tuple[int, int]:
    """Block rows and columns that the *first* ``window`` blocks read, in closed form (Proposition 9.4, any ``group``).

    Whole groups read ``grid_n`` columns and all their rows. What is left over fills a group of height ``h`` from the
    left: ``min(left, h)`` rows and ``ceil(left / h)`` columns. With one group begun that is ``min(W, G)`` rows and
    ``ceil(W / G)`` columns, of which ``G`` and ``W / G`` are the case where ``G`` divides ``W``.

    >>> aligned_reads(16, 16, 1, 24), aligned_reads(16, 16, 4, 24), aligned_reads(16, 16, 5, 24)
    ((2, 16), (4, 6), (5, 5))
    """
    whole, left = divmod(window, group * grid_n)
    done = min(whole * group, grid_m)
    if not left or done >= grid_m:
        return done, grid_n
    height = min(grid_m - done, group)
    return done + min(left, height), grid_n if whole else -(-left // height)


def best_group(grid_m: int, grid_n: int, window: int, candidates: Iterable[int] | None = None) -> Decision:
    """The height of groups whose first window reads fewest blocks; the smaller one of equals. O(candidates).

    ``candidates`` are all heights from 1 to ``grid_m`` unless given. Raises OptionError if there are none, or as
    :func:`numbering` does.
    """
    window = numbering(grid_m, grid_n, 1, window).window
    tried = tuple(candidates) if candidates is not None else tuple(range(1, grid_m + 1))
    if not tried:
        raise OptionError("no height of groups to choose from", remedy="give at least one candidate")
    totals = {group: sum(aligned_reads(grid_m, grid_n, numbering(grid_m, grid_n, group, window).group, window))
              for group in tried}  # fmt: skip
    best = min(tried, key=lambda group: (totals[group], group))
    return Decision(
        "group-height", f"{grid_m} x {grid_n} blocks", best,
        f"{window} blocks at a time read {totals[best]} block rows and columns, the fewest", tried,
        (("window", window), ("row-major reads", totals.get(1, sum(aligned_reads(grid_m, grid_n, 1, window)))),
         ("2 sqrt(W)", round(2 * math.sqrt(window), 2))),
    )  # fmt: skip


# --- The cache --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CacheRun:
    """One numbering under the cache: ``loads`` of sub-blocks in all, and how many of them main memory had to serve
    (``misses_a`` of A, ``misses_b`` of B). ``first`` of these are the first touch of a sub-block, by whatever order."""

    group: int
    loads: int
    misses_a: int
    misses_b: int
    first: int

    @property
    def misses(self) -> int:
        return self.misses_a + self.misses_b

    @property
    def hit_rate(self) -> float:
        return 1 - self.misses / self.loads


@dataclass(frozen=True, repr=False)
class L2Traffic(Tabular):
    """Main-memory reads of a product under several numberings. ``bytes_a`` and ``bytes_b`` are the sizes of the
    sub-blocks of the operands, ``capacity`` that of the cache in bytes, ``steps`` how many sub-blocks make a row."""

    grid_m: int
    grid_n: int
    steps: int
    window: int
    capacity: int
    bytes_a: int
    bytes_b: int
    runs: tuple[CacheRun, ...]

    def nbytes(self, run: CacheRun) -> int:
        """Bytes that main memory serves in a run."""
        return run.misses_a * self.bytes_a + run.misses_b * self.bytes_b

    def of(self, group: int) -> CacheRun:
        """The run with groups of that height. KeyError if there is none."""
        for run in self.runs:
            if run.group == group:
                return run
        raise KeyError(group)

    @property
    def least_bytes(self) -> int:
        """Every sub-block once."""
        return self.steps * (self.grid_m * self.bytes_a + self.grid_n * self.bytes_b)

    def table(self) -> Table:
        rows = []
        for run in self.runs:
            moved = self.nbytes(run)
            name = "row-major" if run.group == 1 else f"groups of {run.group}"
            rows.append(
                (name, bytes_text(moved), f"{moved / self.least_bytes:.3g}", f"{run.hit_rate:.1%}", f"{run.misses:,}")
            )
        caption = (
            f"Main-memory reads of {self.grid_m} x {self.grid_n} blocks in {self.steps} steps, {self.window} at a "
            f"time, L2 of {bytes_text(self.capacity)}"
        )
        notes = [
            f"every sub-block once: {bytes_text(self.least_bytes)}; without a cache: "
            f"{bytes_text(self.grid_m * self.grid_n * self.steps * (self.bytes_a + self.bytes_b))}",
            "the model: whole sub-blocks, least recently used goes first, all blocks of a wave in step",
        ]
        return Table.build(caption, ("numbering", "read", "over the least", "L2 hits", "misses"), rows, notes)


def l2_traffic(
    grid_m: int,
    grid_n: int,
    steps: int,
    *,
    window: int,
    capacity: int,
    bytes_a: int,
    bytes_b: int,
    groups: Sequence[int] = (1, 8),
) -> L2Traffic:
    """Run the loads of all blocks through a cache of ``capacity`` bytes, least recently used first out, in each order.

    ``window`` blocks run in step: all of a wave load their sub-blocks of step 0 (``bytes_a`` and ``bytes_b`` each),
    then those of step 1. The next wave starts when all are done. Writes of the result are not counted. O(blocks x
    steps) for each numbering. Raises OptionError for extents below 1, or a cache that cannot hold two sub-blocks.
    """
    if steps < 1 or bytes_a < 1 or bytes_b < 1 or capacity < bytes_a + bytes_b:
        raise OptionError(
            f"no model of {steps} steps with sub-blocks of {bytes_a} and {bytes_b} bytes in {capacity} bytes of cache",
            remedy="give at least one step, and a cache that holds a sub-block of either operand",
        )
    runs = tuple(
        _cached(numbering(grid_m, grid_n, group, window), steps, capacity, bytes_a, bytes_b) for group in groups
    )
    return L2Traffic(grid_m, grid_n, steps, window, capacity, bytes_a, bytes_b, runs)


def _cached(order: Numbering, steps: int, capacity: int, bytes_a: int, bytes_b: int) -> CacheRun:
    held: OrderedDict[tuple[Any, ...], int] = OrderedDict()
    used, loads, missed, touched = 0, 0, {"A": 0, "B": 0}, set()
    for start in range(0, len(order.order), order.window):
        wave = order.order[start : start + order.window]
        for step in range(steps):
            for row, column in wave:
                for operand, block, size in (("A", row, bytes_a), ("B", column, bytes_b)):
                    key = (operand, block, step)
                    loads += 1
                    if key in held:
                        held.move_to_end(key)
                        continue
                    missed[operand] += 1
                    touched.add(key)
                    held[key] = size
                    used += size
                    while used > capacity:
                        used -= held.popitem(last=False)[1]
    return CacheRun(order.group, loads, missed["A"], missed["B"], len(touched))
