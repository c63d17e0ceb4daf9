"""Filling the forward templates: loops over tiles of keys, and what one tile adds to the online softmax (Section 9.10).

There are up to three loops, one after the other, because what a tile needs differs: tiles of full blocks need no mask,
tiles of partial blocks evaluate ``mask_mod``, and a tile that hangs over the last key needs a bound. Each loop has the
user's functions written into it; the order of the tiles does not matter, since merging is commutative.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ....attention.problem import AttentionProblem
from ....provenance import CodeWriter
from ..operations import triton_dtype
from ..space import INT32_MAX
from .configurations import AttentionConfiguration
from .pieces import LN_2, LOG2_E, KernelWriter, Operand, Place, list_row, location_of, operands, padded, precision_of
from .texts import (
    COUNT,
    COUNT_FULL,
    COUNT_PARTIAL,
    EVERY,
    LISTED,
    RESULTS,
    SHIFT,
    STATE,
    VISIT,
    VISIT_LAZILY,
)

LISTS = ("kv_num_blocks", "kv_indices", "full_kv_num_blocks", "full_kv_indices")


@dataclass
class ForwardWriter(KernelWriter):
    """What the general and the decoding template have in common. ``packed``: the rows of a tile are queries of several
    heads, and ``h`` is a vector; ``row_block`` is the number of the row of blocks in the kernel, ``list_head`` the head
    whose lists are read."""

    configuration: AttentionConfiguration = AttentionConfiguration(128, 64, 4, 2)
    decoding: bool = False
    packed: bool = False
    row_block: str = "row"
    list_head: str = "h"

    def __post_init__(self) -> None:
        self.query, self.key, self.value = operands(self.problem)
        self.head_block, self.value_block = padded(self.problem.head_size), padded(self.problem.value_size)

    # -- sizes ---------------------------------------------------------------------------------------------------------

    @property
    def ragged_queries(self) -> bool:
        """Whether a tile may hang over the last query (decoding: always taken to)."""
        return self.decoding or self.row_tiles * self.configuration.block_m > self.problem.queries

    @property
    def row_tiles(self) -> int:
        """Tiles of queries of a head. Rows of blocks that start in an order of their own all have as many, though the
        last may be ragged."""
        problem, c = self.problem, self.configuration
        if problem.blocks is not None and c.heaviest_first:
            blocks, _ = problem.blocks.counts(problem.queries, problem.keys)
            return blocks * (problem.blocks.rows // c.block_m)
        return -(-problem.queries // c.block_m)

    @property
    def ragged_keys(self) -> bool:
        """Whether a tile may hang over the last key, or lie beyond it, as tiles of the last block of a list may."""
        blocks = self.problem.blocks
        return bool(self.problem.keys % (blocks.columns if blocks is not None else self.configuration.block_n))

    @property
    def lists_are_wide(self) -> bool:
        """Whether the number of a block among those of all batches and heads needs 64 bits."""
        problem, blocks = self.problem, self.problem.blocks
        assert blocks is not None
        rows, columns = blocks.counts(problem.queries, problem.keys)
        lists = (problem.batch if blocks.batch_varies else 1) * (problem.query_heads if blocks.head_varies else 1)
        return lists * rows * columns > INT32_MAX

    @property
    def scaled(self) -> bool:
        """Whether scores are multiplied by the scale where they are made. Without a ``score_mod`` a positive scale
        merges with log2(e) instead, and the largest score stays the largest."""
        return self.problem.score is not None or not self.problem.scale > 0

    @property
    def factor(self) -> float:
        """Scores times this are exponents of two."""
        return LOG2_E if self.scaled else self.problem.scale * LOG2_E

    def constants(self) -> dict[str, int]:
        """The constexpr parameters of the kernel."""
        c = self.configuration
        found = {"BLOCK_M": c.block_m, "BLOCK_N": c.block_n, "HEAD": self.head_block, "VALUE": self.value_block}
        return found | ({"SPLITS": c.splits} if self.decoding else {})

    def inputs(self) -> None:
        """Add the arguments that are read: operands, lists of blocks, captured tensors."""
        for operand in (self.query, self.key, self.value):
            self.argument(operand.pointer, "input", self.problem.dtype)
        if self.problem.blocks is not None:
            for name in LISTS:
                self.argument(name, "input", torch.int32)
        self.captured_arguments()

    # -- holes ---------------------------------------------------------------------------------------------------------

    def edges(self) -> CodeWriter:
        """Index vectors along the rows of operands, and which of their lanes exist."""
        writer, problem = CodeWriter(), self.problem
        if not self.decoding and self.ragged_queries:
            writer.emit(f"m_mask = m < {problem.queries}  # those that exist")
        writer.emit("d = tl.arange(0, HEAD)[None, :]")
        if self.head_block != problem.head_size:
            writer.emit(f"d_mask = d < {problem.head_size}")
        writer.emit("e = tl.arange(0, VALUE)[None, :]")
        if self.value_block != problem.value_size:
            writer.emit(f"e_mask = e < {problem.value_size}")
        return writer

    def d_masks(self) -> list[str]:
        return ["d_mask"] if self.head_block != self.problem.head_size else []

    def e_masks(self) -> list[str]:
        return ["e_mask"] if self.value_block != self.problem.value_size else []

    @property
    def query_fetched(self) -> bool:
        """Whether the accelerator fetches the queries, too: a kernel then needs fewer registers (196 instead of 232 for
        heads of 128 under a causal mask)."""
        return self.configuration.fetch and not self.decoding and self.query.is_fetchable

    def query_load(self) -> str:
        """The load of the tile of queries."""
        if self.query_fetched:
            return self.query.descriptor(self.query.base(), "BLOCK_M", "HEAD") + ".load([row * BLOCK_M, 0])"
        masks = (["m_mask"] if self.ragged_queries else []) + self.d_masks()
        return self.query.load(self.rows_of(self.query), "m", "d", masks)

    def rows_of(self, operand: Operand) -> str:
        """The pointer from which the rows of a tile of queries or results are counted: that of their head, or of each
        row's."""
        return operand.base()

    def operand_lines(self) -> CodeWriter:
        """The matrices of keys and values, as pointers or as descriptors."""
        writer = CodeWriter()
        for operand, width in ((self.key, "HEAD"), (self.value, "VALUE")):
            base = operand.base()
            if self.configuration.fetch:
                base = operand.descriptor(base, "BLOCK_N", width)
            writer.emit(f"{operand.pointer}_tiles = {base}")
        return writer

    def tile_of(self, operand: Operand, ragged: bool, column: str, column_masks: list[str]) -> str:
        """The load of a tile of keys or values."""
        tiles = f"{operand.pointer}_tiles"
        if self.configuration.fetch:
            return f"{tiles}.load([start, 0])"
        return operand.load(tiles, "n_rows", column, (["n_rows_mask"] if ragged else []) + column_masks)

    def visit(self, before: CodeWriter, ragged: bool, masked: bool, unsure: bool) -> CodeWriter:
        """One tile. ``ragged``: it may hang over the last key; ``masked``: ``mask_mod`` decides;
        ``unsure``: nothing in it may be visible. Lines that are the same for all tiles go to ``before``."""
        problem, c = self.problem, self.configuration
        positions, modified, shift, kept_shift = CodeWriter(), CodeWriter(), CodeWriter(), CodeWriter()
        masks = frozenset(({"m"} if self.ragged_queries else set()) | ({"n"} if ragged else set()))
        place = Place(before, modified, masks=masks, packed=self.packed)
        score = self.modified(place, "score")
        if masked or ragged:
            seen = self.visible(place) if masked else "n_mask"
            if seen:
                modified.emit(f'{score} = tl.where({seen}, {score}, float("-inf"))')
        if ragged or masked or problem.score is not None:
            positions.emit("n = start + tl.arange(0, BLOCK_N)[None, :]  # the keys of this tile")
        if ragged:
            positions.emit(f"n_mask = n < {problem.keys}  # those that exist")
        if not c.fetch:
            positions.emit("n_rows = start + tl.arange(0, BLOCK_N)[:, None]")
            if ragged:
                positions.emit(f"n_rows_mask = n_rows < {problem.keys}")
        guarded = masked or unsure or problem.score is not None
        if guarded:
            shift.emit(SHIFT.format(of="new_max"))
            kept_shift.emit(SHIFT.format(of="row_max"))
        half = problem.dtype != torch.float32
        names = {
            "key": self.tile_of(self.key, ragged, "d", self.d_masks()),
            "value": self.tile_of(self.value, ragged, "e", self.e_masks()),
            "precision": precision_of(problem),
            "scale": f" * {problem.scale!r}" if self.scaled else "",
            "score": score,
            "factor": repr(self.factor),
            "shift": "shift" if guarded else "new_max",
            "kept_shift": "shift" if guarded else "row_max",
            "p": f"p.to({triton_dtype(problem.dtype)})" if half else "p",
        }
        holes = {"positions": positions, "modified": modified, "shift": shift, "kept_shift": kept_shift}
        return self.fill(VISIT_LAZILY if c.lazy else VISIT, holes, names)

    def state(self) -> CodeWriter:
        return self.fill(STATE, {}, {})

    # -- loops ---------------------------------------------------------------------------------------------------------

    def of_tiles(self) -> dict[str, str]:
        """The words of a loop over tiles where a block has several: steps are tiles, lists are of blocks."""
        assert self.problem.blocks is not None
        tiles = self.problem.blocks.columns // self.configuration.block_n
        if tiles == 1:
            return {"times": "", "per": "", "inside": ""}
        return {"times": f" * {tiles}", "per": f" // {tiles}", "inside": f" + step % {tiles} * BLOCK_N"}

    def every(self, writer: CodeWriter, first: str, last: str, ragged: bool) -> None:
        """A loop over tiles side by side, from the key ``first`` to before ``last``."""
        visit = self.visit(writer, ragged, masked=False, unsure=False)
        names = {"first": first, "last": last}
        writer.extend(self.fill(EVERY, {"visit": visit}, names).lines())

    def listed(self, writer: CodeWriter, kind: str) -> None:
        """A loop over the tiles of the "partial" or "full" blocks of a row."""
        problem, blocks = self.problem, self.problem.blocks
        assert blocks is not None
        prefix = "full_" if kind == "full" else ""
        _, columns = blocks.counts(problem.queries, problem.keys)
        words = self.of_tiles() | {"kind": kind, "columns": str(columns)}
        words |= {"counts": f"{prefix}kv_num_blocks", "indices": f"{prefix}kv_indices"}
        apart = self.ragged_keys and problem.mask is not None  # a full block that hangs over is visited with the others
        count = {"full": COUNT_FULL, "partial": COUNT_PARTIAL}[kind] if apart else COUNT
        share, coming, first, last = CodeWriter(), CodeWriter(), "0", f"{kind}_steps"
        if not self.decoding and (self.row_tiles - 1) * self.configuration.block_m >= problem.queries:
            some = f"tl.where(row * BLOCK_M < {problem.queries}, {kind}_steps, 0)"
            share.emit(f"{kind}_steps = {some}  # none beyond the last query")
        if self.decoding:
            first, last = f"{kind}_first", f"{kind}_last"
            share.emit(f"{first} = {kind}_steps * split // SPLITS  # those of this share")
            share.emit(f"{last} = {kind}_steps * (split + 1) // SPLITS")
        per, beginning = words["per"], "0"
        if self.decoding:
            beginning = f"{first}{per}"
        number, following = f"tl.load({kind}_list + {beginning})", f"tl.load({kind}_list + coming)"
        if apart and kind == "partial":
            otherwise = f"{columns} - 1)"
            number = f"tl.where({beginning} < partial_blocks, {number}, {otherwise}"
            following = f"tl.where(coming < partial_blocks, {following}, {otherwise}"
        coming.emit(f"coming = tl.minimum(step + 1, {last} - 1){per}")
        coming.emit(f"number = {following}")
        ragged = self.ragged_keys and not (apart and kind == "full")
        masked = kind == "partial" and problem.mask is not None
        # Of a block that hangs over the last key, the first tile has keys: after it a maximum is known. A share may
        # begin with the second.
        visit = self.visit(writer, ragged, masked, unsure=ragged and self.decoding)
        names = words | {"number": number, "size": str(blocks.columns), "first": first, "last": last}
        holes = {"count": self.fill(count, {}, words), "share": share, "coming": coming, "visit": visit}
        writer.extend(self.fill(LISTED, holes, names).lines())

    def loops(self) -> CodeWriter:
        """All tiles that a program instance visits."""
        writer, problem = CodeWriter(), self.problem
        if problem.blocks is not None:
            rows, _ = problem.blocks.counts(problem.queries, problem.keys)
            row = list_row(problem, rows, self.row_block, self.list_head)
            if self.lists_are_wide:
                row = f"({row}).to(tl.int64)"
            writer.emit(f"list_row = {row}  # of the lists of blocks")
            writer.emit("# Full blocks: every position is visible.")
            self.listed(writer, "full")
            writer.emit("# Partial blocks: the mask decides.")
            self.listed(writer, "partial")
            return writer
        whole = problem.keys // self.configuration.block_n * self.configuration.block_n
        first, last, rest = "0", str(whole), str(whole)
        if self.decoding:
            tiles = -(-problem.keys // self.configuration.block_n)
            writer.emit(f"first = {tiles} * split // SPLITS * BLOCK_N  # the keys of this share")
            writer.emit(f"last = tl.minimum({tiles} * (split + 1) // SPLITS * BLOCK_N, {whole})")
            first, last, rest = "first", "last", f"tl.maximum(first, {whole})"
        if whole:
            self.every(writer, first, last, ragged=False)
        if self.ragged_keys:
            end = str(problem.keys)
            if self.decoding:
                end = f"tl.where(split == SPLITS - 1, {problem.keys}, 0)"
            writer.emit("# The last tile hangs over the last key.")
            self.every(writer, rest, end, ragged=True)
        return writer

    # -- results -------------------------------------------------------------------------------------------------------

    def output(self) -> Operand:
        problem = self.problem
        return Operand("out", problem.output_strides, problem.queries, problem.value_size, problem.dtype)

    def results(self) -> CodeWriter:
        """The tile of results and the logarithms of the sums, stored."""
        problem, out = self.problem, self.output()
        masks = (["m_mask"] if self.ragged_queries else []) + self.e_masks()
        half = problem.dtype != torch.float32
        names = {
            "out": f"{self.rows_of(out)} + ({out.offsets('m', 'e')})",
            "result": f"acc.to({triton_dtype(problem.dtype)})" if half else "acc",
            "mask": f", {' & '.join(masks)}" if masks else "",
            "lse": self.lse_rows(),
            "ln_2": repr(LN_2),
            "lse_mask": self.lse_mask(),
        }
        return self.fill(RESULTS, {}, names)

    def lse_rows(self) -> str:
        return f"lse + head.to(tl.int64) * {self.problem.queries} + rows"

    def lse_mask(self) -> str:
        return f", rows < {self.problem.queries}" if self.ragged_queries else ""


def description_of(problem: AttentionProblem) -> list[str]:
    """The first lines of a kernel: what it computes."""
    lines = [f"{str(problem)[0].upper()}{str(problem)[1:]}."]
    for modification in (problem.score, problem.mask):
        if modification is not None:
            lines.append(f"{modification.kind}_mod {modification.name} stands at {location_of(modification)}.")
    return lines
