"""Which blocks of scores are visited at all: full, partial and empty ones (Section 9.10, Figure 9.3).

A mask that is evaluated element by element saves nothing: hidden scores are computed and thrown away. So the N x M
positions are divided into blocks once, before any attention, and each block is *full* (every position visible: no mask
is evaluated there), *partial* (some are: the mask decides) or *empty* (none is: the block is not visited). The lists
are those of a sparse matrix stored by rows: for every row of blocks how many columns it visits, and which.

.. code-block:: text

    row i visits  kv_indices[b, h, i, :kv_num_blocks[b, h, i]]            and evaluates mask_mod there,
                  full_kv_indices[b, h, i, :full_kv_num_blocks[b, h, i]]  and does not.

The backward pass walks down columns for the gradients of keys and values, so the same lists are kept transposed
(``q_num_blocks``, ``q_indices``, ...). A block mask depends on positions only, not on what stands there: one serves all
layers and steps, which is what pays for the O(N M) evaluation. Its own size is O(blocks): 16 bytes for each.

>>> mask = create_block_mask(causal, B=None, H=None, Q_LEN=1024, KV_LEN=1024)
>>> mask.totals()
BlockCounts(partial=8, full=28, empty=28)
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, NamedTuple

import torch

from ..errors import OptionError, StaxError
from ..provenance import SourceLocation
from ..specialize.ambient import unrecorded
from .mask_evaluation import (
    Rectangle,
    Span,
    block_extremes,
    evaluate,
    function_location,
    function_name,
    reads,
    require_callable,
)
from .masks import causal

__all__ = ["EMPTY", "FULL", "PARTIAL", "BlockCounts", "BlockMask", "causal", "create_block_mask"]

EMPTY, PARTIAL, FULL = 0, 1, 2  # the classes of blocks, as BlockMask.classes has them
SYMBOLS = {EMPTY: "·", PARTIAL: "▒", FULL: "█"}
NAMES = {EMPTY: "empty", PARTIAL: "partial", FULL: "full"}
MOST_TEXT_BLOCKS = 32  # of a row printed in characters; several blocks share a character beyond that


class BlockCounts(NamedTuple):
    """How many blocks are of each class: numbers, or tensors with one number for each (b, h)."""

    partial: Any
    full: Any
    empty: Any


@dataclass(frozen=True, eq=False, repr=False)
class BlockMask:
    """The classes of all blocks of a mask, as lists that kernels walk along. Made by :func:`create_block_mask`.

    All lists are int32 and on one device. Bm and Hm are 1 where the mask is the same for all batch elements or heads. R
    and C are the rows and columns of blocks, the last of which may be ragged; a ragged block is full if every position
    that *exists* is visible. Beyond the count of a row its indices are valid block numbers without meaning.

    =============================  ==============  ===============================================
    ``kv_num_blocks``              [Bm, Hm, R]     partial blocks in each row
    ``kv_indices``                 [Bm, Hm, R, C]  their columns, ascending
    ``full_kv_num_blocks``         [Bm, Hm, R]     full blocks in each row
    ``full_kv_indices``            [Bm, Hm, R, C]  their columns, ascending
    ``q_num_blocks`` ...           [Bm, Hm, C]     the same four by columns, for the backward pass
    =============================  ==============  ===============================================

    Two block masks are equal if they have the same mask_mod, lengths, block size and classes of blocks. In a terminal a
    block mask prints its grid; in a notebook it draws the positions beside the blocks (Figure 9.3).
    """

    mask_mod: Callable
    seq_lengths: tuple[int, int]
    block_size: tuple[int, int]
    reads_batch: bool
    reads_head: bool
    kv_num_blocks: torch.Tensor
    kv_indices: torch.Tensor
    full_kv_num_blocks: torch.Tensor
    full_kv_indices: torch.Tensor
    q_num_blocks: torch.Tensor
    q_indices: torch.Tensor
    full_q_num_blocks: torch.Tensor
    full_q_indices: torch.Tensor

    #: What a compiled program may depend on. Two masks whose functions compute the same, from other tensors perhaps
    #: (the document ids of another batch), share a version.
    __specialized_by__ = (
        "seq_lengths", "block_size", "reads_batch", "reads_head", "kv_num_blocks", "kv_indices", "full_kv_num_blocks",
        "full_kv_indices", "q_num_blocks", "q_indices", "full_q_num_blocks", "full_q_indices", "meaning", "captured",
    )  # fmt: skip

    @staticmethod
    def from_classes(
        classes: torch.Tensor,
        mask_mod: Callable,
        seq_lengths: tuple[int, int],
        block_size: tuple[int, int],
        reads_batch: bool | None = None,
        reads_head: bool | None = None,
    ) -> BlockMask:
        """A block mask from the class of every block (EMPTY, PARTIAL or FULL; [Bm, Hm, R, C], any integer dtype).

        The caller answers for the classes: where a block is called full, ``mask_mod`` is not asked; and where
        ``reads_batch`` or ``reads_head`` is False, they must be the same for all of these (None: they are taken to
        differ if there are several). O(blocks log blocks). Raises OptionError if there are not as many blocks as the
        lengths need.
        """
        rows, columns = (-(-n // size) for n, size in zip(seq_lengths, block_size, strict=True))
        if classes.dim() != 4 or tuple(classes.shape[2:]) != (rows, columns):
            raise OptionError(
                f"classes of shape {tuple(classes.shape)} for {rows} x {columns} blocks",
                remedy=f"give one class for each block: [Bm, Hm, {rows}, {columns}]",
            )
        lists: list[torch.Tensor] = []
        with torch.inference_mode(False):  # a mask made for a validation step may serve training, too
            for grid in (classes, classes.transpose(2, 3)):
                for wanted in (PARTIAL, FULL):
                    lists += _lists(grid == wanted)
        given = zip(classes.shape[:2], (reads_batch, reads_head), strict=True)
        reads = [extent > 1 if said is None else said for extent, said in given]
        return BlockMask(mask_mod, seq_lengths, block_size, *reads, *lists)

    # --- What its function computes ---------------------------------------------------------------------------------

    @cached_property
    def meaning(self) -> Any:
        """What the mask function computes and where it stands, in a digest: equal for functions that compute the same
        from captured tensors of equal shapes. The function itself where it cannot be traced. Found when it is first
        asked for; like the lists, it does not follow what the function reads."""
        traced = self._traced
        return self.mask_mod if traced is None else hashlib.sha256(repr(traced.key).encode()).hexdigest()

    @cached_property
    def captured(self) -> tuple[torch.Tensor, ...]:
        """The tensors that the mask function reads."""
        return () if self._traced is None else tuple(part.tensor for part in self._traced.captured)

    @cached_property
    def _traced(self) -> Any:
        from .modification import modification

        try:
            return unrecorded(lambda: modification(self.mask_mod, "mask", self.shape, device=self.device))
        except StaxError:
            return None

    # --- What it is -----------------------------------------------------------------------------------------------

    @property
    def shape(self) -> tuple[int, int, int, int]:
        """(Bm, Hm, Q_LEN, KV_LEN); 1 where the mask is the same for all batch elements or heads."""
        return (*self.kv_num_blocks.shape[:2], *self.seq_lengths)

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of blocks."""
        return self.kv_indices.shape[2], self.kv_indices.shape[3]

    @property
    def device(self) -> torch.device:
        return self.kv_num_blocks.device

    @property
    def name(self) -> str:
        """What the mask function calls itself."""
        return function_name(self.mask_mod)

    @property
    def location(self) -> SourceLocation | None:
        """Where the mask function is written."""
        return function_location(self.mask_mod)

    def lists(self) -> dict[str, torch.Tensor]:
        """The eight lists by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)[5:]}

    def to(self, device: torch.device | str) -> BlockMask:
        """The lists on another device (itself if they are there). The tensors that mask_mod captures stay where they
        are."""
        moved = {name: one.to(device) for name, one in self.lists().items()}
        return self if all(moved[name] is one for name, one in self.lists().items()) else replace(self, **moved)

    def classes(self) -> torch.Tensor:
        """The class of every block: EMPTY, PARTIAL or FULL, int8 [Bm, Hm, R, C], made from the lists."""
        found = torch.full(self.kv_indices.shape, EMPTY, dtype=torch.int8, device=self.device)
        for wanted, count, columns in (
            (PARTIAL, self.kv_num_blocks, self.kv_indices),
            (FULL, self.full_kv_num_blocks, self.full_kv_indices),
        ):
            listed = torch.arange(columns.shape[3], device=self.device) < count.unsqueeze(-1)
            # Every column stands in the list of its row exactly once, listed or beyond the count.
            member = torch.zeros_like(listed).scatter(3, columns.long(), listed)
            found[member] = wanted
        return found

    def to_dense(self) -> torch.Tensor:
        """Which blocks are visited: bool [Bm, Hm, R, C], True for partial and full ones."""
        return self.classes() != EMPTY

    def positions(self, batch: int = 0, head: int = 0) -> torch.Tensor:
        """Which positions are visible for one batch element and head: bool [Q_LEN, KV_LEN], evaluated now, O(N M)."""
        spans = (Span(batch, batch + 1), Span(head, head + 1), *(Span(0, n) for n in self.seq_lengths))
        if 0 in self.seq_lengths:
            return torch.zeros(self.seq_lengths, dtype=torch.bool, device=self.device)
        return evaluate(self.mask_mod, Rectangle(*spans), self.device)[0, 0]

    # --- How much it saves ----------------------------------------------------------------------------------------

    def counts(self) -> BlockCounts:
        """Partial, full and empty blocks of each batch element and head: three int64 tensors [Bm, Hm]."""
        partial, full = (n.sum(-1, dtype=torch.int64) for n in (self.kv_num_blocks, self.full_kv_num_blocks))
        return BlockCounts(partial, full, self.grid[0] * self.grid[1] - partial - full)

    def totals(self) -> BlockCounts:
        """Partial, full and empty blocks, whole numbers over all Bm x Hm grids."""
        return BlockCounts(*(int(count.sum()) for count in self.counts()))

    def sparsity(self) -> float:
        """Blocks that are not visited, in percent of all; 0 if there are none."""
        partial, full, empty = self.totals()
        return 100.0 * empty / max(partial + full + empty, 1)

    # --- Whether it fits ------------------------------------------------------------------------------------------

    def check(self, query: torch.Tensor, key: torch.Tensor) -> None:
        """Refuse tensors that this mask was not made for: query [B, H, N, D], key [B, Hkv, M, D].

        The lengths must be those of the mask. Batch and query heads must be as many as it was made for; a mask made for
        one of them serves any number, unless its function reads which one it is. OptionError says what does not fit.
        """
        batch, heads, queries, keys = (*query.shape[:2], query.shape[2], key.shape[2])
        asked = {"Q_LEN": (self.seq_lengths[0], queries, "queries"), "KV_LEN": (self.seq_lengths[1], keys, "keys")}
        for option, (made, given, what) in asked.items():
            if made != given:
                raise OptionError(
                    f"the block mask of {self.name!r} was made for {made} {what}, and there are {given}",
                    where=self.location,
                    remedy=f"make it with {option}={given}; a mask for another length is another mask",
                )
        read = {"B": (self.shape[0], batch, "batch elements", self.reads_batch),
                "H": (self.shape[1], heads, "query heads", self.reads_head)}  # fmt: skip
        for option, (made, given, what, varies) in read.items():
            if made != given and (made != 1 or varies):
                raise OptionError(
                    f"the block mask of {self.name!r} was made for {made} {what}, and there are {given}",
                    where=self.location,
                    remedy=f"make it with {option}={given}" + ("" if varies else f", or {option}=None for any number"),
                )
        if query.device != self.device:
            raise OptionError(
                f"the block mask of {self.name!r} is on {self.device}, the query on {query.device}",
                where=self.location,
                remedy="move it once with block_mask.to(query.device) and keep the result",
            )

    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        if not isinstance(other, BlockMask):
            return NotImplemented
        same = (self.mask_mod, self.shape, self.block_size, self.device) == (
            other.mask_mod, other.shape, other.block_size, other.device,
        )  # fmt: skip
        return same and torch.equal(self.classes(), other.classes())

    def __hash__(self) -> int:
        return hash((self.mask_mod, self.shape, self.block_size))

    # --- How it shows itself --------------------------------------------------------------------------------------

    def summary(self) -> str:
        """One line: whose mask, which lengths, and how much of it is visited."""
        partial, full, empty = self.totals()
        total = partial + full + empty
        share = f"{100 * (partial + full) / total:.4g}% visited" if total else "nothing to visit"
        size, block = (" x ".join(map(str, numbers)) for numbers in (self.shape, self.block_size))
        return f"{self.name}: {size} in blocks of {block}: {partial:,} partial, {full:,} full, {empty:,} empty, {share}"

    def format(self, batch: int = 0, head: int = 0) -> str:
        """The summary and one grid, a character for a block (for several where there are many)."""
        bm, hm = self.shape[:2]
        lines = [self.summary()]
        if 0 in (bm, hm, *self.grid):
            return lines[0]
        if bm * hm > 1:
            lines.append(f"batch element {batch} of {bm}, head {head} of {hm}:")
        shown, step = coarsened(self.classes()[batch, head].cpu(), MOST_TEXT_BLOCKS)
        lines += ["".join(SYMBOLS[int(one)] for one in row) for row in shown]
        legend = "   ".join(f"{SYMBOLS[kind]} {NAMES[kind]}" for kind in (FULL, PARTIAL, EMPTY))
        lines.append(legend + (f"   (a character is {step} x {step} blocks)" if step > 1 else ""))
        return "\n".join(lines)

    __repr__ = __str__ = lambda self: self.format()

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        from ..view import mimebundle

        return mimebundle(self)


def coarsened(classes: torch.Tensor, most: int) -> tuple[torch.Tensor, int]:
    """A grid [R, C] of classes with at most ``most`` rows and columns, and how many blocks along an axis share a cell.

    A cell is full or empty if all its blocks are, else partial.
    """
    step = max(1, *(-(-n // most) for n in classes.shape))
    if step == 1:
        return classes, 1
    low, high = (
        torch.nn.functional.pad(classes, (0, -classes.shape[1] % step, 0, -classes.shape[0] % step), value=value)
        .unflatten(1, (-1, step))
        .unflatten(0, (-1, step))
        for value in (FULL, EMPTY)
    )
    least, largest = low.amin((1, 3)), high.amax((1, 3))
    return torch.where(least == largest, least, PARTIAL), step


def _lists(member: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """How many columns of each row are members, and all columns of it with the members first, both ascending."""
    order = torch.argsort((~member).to(torch.uint8), dim=-1, stable=True)
    return member.sum(-1, dtype=torch.int32), order.to(torch.int32).contiguous()


def create_block_mask(
    mask_mod: Callable,
    B: int | None,
    H: int | None,
    Q_LEN: int,
    KV_LEN: int,
    device: torch.device | str = "cpu",
    BLOCK_SIZE: int | tuple[int, int] = 128,
) -> BlockMask:
    """Evaluate a mask once, by blocks, for any number of attentions to come.

    ``mask_mod(b, h, q_idx, kv_idx)`` returns a tensor of bool: whether a position takes part. ``B`` and ``H`` are the
    batch size and the number of *query* heads, or None where the mask is the same for all of them (then the lists are
    shared). ``Q_LEN`` and ``KV_LEN`` are positions and need not be multiples of ``BLOCK_SIZE``, which is one number or
    (queries, keys). The evaluation and the lists are on ``device``; the tensors mask_mod captures must be there.

    O(B H N M) time, in rectangles of at most 2^24 positions, so O(blocks) memory above that: an N x M mask is never
    held. Raises OptionError for sizes that are none, or if mask_mod reads ``b`` or ``h`` where B or H is None (its
    other batch elements would silently get the mask of the first); CaptureError if it does not return bool of the right
    shape; SubscriptError if it reads beyond a tensor.
    """
    require_callable(mask_mod)
    block = _block_size(BLOCK_SIZE)
    for name, value in {"B": B, "H": H, "Q_LEN": Q_LEN, "KV_LEN": KV_LEN}.items():
        may_be_none = name in ("B", "H")
        if value is None and may_be_none:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise OptionError(
                f"{name} is {value!r}",
                remedy="give a whole number" + (", or None where the mask does not vary" if may_be_none else ""),
            )
    device = torch.empty(0, device=device).device  # "cuda" is the current one, with its number
    batch, heads = (1 if size is None else size for size in (B, H))
    grid = (batch, heads, -(-Q_LEN // block[0]), -(-KV_LEN // block[1]))
    if 0 in (Q_LEN, KV_LEN):
        nothing = torch.zeros(grid, dtype=torch.int8, device=device)
        return BlockMask.from_classes(nothing, mask_mod, (Q_LEN, KV_LEN), block)
    reads_batch, reads_head = reads(mask_mod, Q_LEN, KV_LEN, device)
    for option, argument, size, varies in (("B", "b", B, reads_batch), ("H", "h", H, reads_head)):
        if size is None and varies:
            raise OptionError(
                f"mask_mod {function_name(mask_mod)!r} reads {argument}, and {option}=None says that it does not vary",
                where=function_location(mask_mod),
                remedy=f"give {option} as the number of {'batch elements' if option == 'B' else 'query heads'}",
            )
    # What does not vary is evaluated once and repeated as classes, not as positions.
    evaluated = (batch if reads_batch else min(batch, 1), heads if reads_head else min(heads, 1))
    if 0 in evaluated:
        classes = torch.zeros(grid, dtype=torch.int8, device=device)
    else:
        seen, whole = block_extremes(mask_mod, (*evaluated, Q_LEN, KV_LEN), block, device)
        classes = (seen.to(torch.int8) * PARTIAL + whole.to(torch.int8) * (FULL - PARTIAL)).expand(grid)
    return BlockMask.from_classes(classes, mask_mod, (Q_LEN, KV_LEN), block, reads_batch, reads_head)


def _block_size(given: Any) -> tuple[int, int]:
    sizes = (given, given) if isinstance(given, int) else tuple(given) if isinstance(given, (tuple, list)) else ()
    if len(sizes) != 2 or not all(isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in sizes):
        raise OptionError(
            f"BLOCK_SIZE is {given!r}", remedy="give a positive whole number, or two: (queries, keys) in a block"
        )
    return sizes
