"""The three backward kernels of an attention, as texts of a configuration: the holes of :mod:`.backward_texts`, filled.

A tile may hang over an edge where a side of the scores is no multiple of the tile, or of the mask's block: then its
loads are guarded, and nowhere else. A head size that is no power of two is padded with zeros, which add nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ....attention.problem import AttentionProblem
from ....options import Decision
from ....provenance import CodeWriter
from ...kernel import Kernel
from ..operations import triton_dtype
from .backward_configurations import ROWS_BLOCK, BackwardConfiguration, Tiles, learnable
from .backward_texts import (
    EVERY_TILE,
    KEYS,
    LISTED_TILES,
    ONE_HEAD,
    QUERIES,
    ROWS,
    SHARED_HEADS,
    VISIT_KEYS,
    VISIT_QUERIES,
)
from .backward_tile import TileWriter, d_captured
from .pieces import LOG2_E, KernelWriter, Operand, Place, list_row, operands, padded, precision_of

Strides = tuple[int, int, int, int]

#: The lists of a block mask that each kernel walks along: counts and numbers of partial blocks, and of full ones.
LISTS = {
    "keys": (("q_num_blocks", "q_indices"), ("full_q_num_blocks", "full_q_indices")),
    "queries": (("kv_num_blocks", "kv_indices"), ("full_kv_num_blocks", "full_kv_indices")),
}

#: What Triton's compiler is told: it may contract products and sums, since the order of the sums is the template's own.
OPTIONS = {"enable_fp_fusion": True}


@dataclass(frozen=True)
class Layouts:
    """What the kernels' texts depend on beside the problem: the strides, in elements, of the result and of its gradient
    as autograd hands it over, and whether a gradient of the logarithm of the sum comes with it."""

    result: Strides
    d_result: Strides
    with_d_lse: bool


class BackwardWriter:
    """Writes the backward kernels of one problem: ``rows()``, ``keys()``, ``queries()``."""

    def __init__(self, problem: AttentionProblem, configuration: BackwardConfiguration, layouts: Layouts):
        self.problem, self.configuration, self.layouts = problem, configuration, layouts
        p, dtype = problem, problem.dtype
        self.query, self.key, self.value = operands(problem)
        self.result = Operand("result", layouts.result, p.queries, p.value_size, dtype)
        self.d_result = Operand("d_result", layouts.d_result, p.queries, p.value_size, dtype)
        of_queries, of_keys, of_values = p.gradient_strides
        self.d_query = Operand("d_query", of_queries, p.queries, p.head_size, dtype)
        self.d_key = Operand("d_key", of_keys, p.keys, p.head_size, dtype, "key_head")
        self.d_value = Operand("d_value", of_values, p.keys, p.value_size, dtype, "key_head")

    # -- the first kernel ---------------------------------------------------------------------------------------------

    def rows(self) -> Kernel:
        """Of every row, what the other two kernels need of its normalizer and of its result."""
        problem = self.problem
        kernel = KernelWriter(problem, "triton_attention_backward_rows")
        for name, dtype in (("result", problem.dtype), ("d_result", problem.dtype), ("lse", torch.float32)):
            kernel.argument(name, "input", dtype)
        d_lse = CodeWriter()
        if self.layouts.with_d_lse:
            kernel.argument("d_lse", "input", torch.float32)
            d_lse.emit("total -= tl.load(d_lse + place, exists, other=0.0)")
        for name in ("shift", "delta"):
            kernel.argument(name, "output", torch.float32)
        tiles = -(-problem.queries // ROWS_BLOCK)
        masks = [f"m < {problem.queries}"] if problem.queries % ROWS_BLOCK else []
        masks = [f"({m})" for m in (*masks, *self._padding(problem.value_size, "e"))]
        names = {
            "tiles": tiles, "heads": problem.query_heads, "queries": problem.queries, "log2_e": LOG2_E,
            "value_block": padded(problem.value_size),
            "result": self.result.load(self.result.base(), "m", "e", masks),
            "upstream": self.d_result.load(self.d_result.base(), "m", "e", masks),
        }  # fmt: skip
        body = kernel.fill(ROWS, {"d_lse": d_lse}, names)
        rows = problem.batch * problem.query_heads * problem.queries
        read = 2 * rows * problem.value_size * problem.dtype.itemsize + (8 if self.layouts.with_d_lse else 4) * rows
        return kernel.kernel(
            body, [f"{problem}: what the backward kernels need of every row."], {"BLOCK_M": ROWS_BLOCK}, 4, 1,
            (tiles * problem.batch * problem.query_heads, 1, 1), form="attention-backward-rows", bytes_read=read,
            bytes_written=8 * rows, operations=2 * rows * problem.value_size, options=OPTIONS,
        )  # fmt: skip

    # -- the kernels over tiles of scores -----------------------------------------------------------------------------

    def keys(self, decisions: tuple[Decision, ...] = ()) -> Kernel:
        """The gradients of keys, values and captured tensors: a program instance for every tile of keys."""
        kernel = self._keys(self.configuration.keys, decisions)
        if "make_tensor_descriptor" in kernel.source:
            # Descriptors hold addresses at multiples of 16 bytes; where a tensor starts elsewhere, this kernel runs.
            kernel.launch["unaligned"] = self._keys(replace(self.configuration.keys, fetch=False), (), "_unaligned")
        return kernel

    def _keys(self, tiles: Tiles, decisions: tuple[Decision, ...], suffix: str = "") -> Kernel:
        problem = self.problem
        kernel = KernelWriter(problem, f"triton_attention_backward_keys{suffix}")
        self._inputs(kernel, "keys")
        for name in ("d_key", "d_value"):
            kernel.argument(name, "output", problem.dtype)
        for number in learnable(problem):
            kernel.argument(d_captured(number), "inout", torch.float32)
        ragged = self._ragged(tiles)
        walked = {self.query: "BLOCK_M", self.d_result: "BLOCK_M"} if self._fetches(tiles, "keys") else {}
        names = self._names(ragged, walked, rows="rows", own="n") | {
            "tiles": -(-problem.keys // tiles.block_n),
            "store_dk": self._store(self.d_key, "n", "d", "dk", ragged),
            "store_dv": self._store(self.d_value, "n", "e", "dv", ragged),
        }  # fmt: skip
        loops = self._loops(kernel, "keys", tiles, ragged, names)
        heads = kernel.fill(ONE_HEAD if problem.group == 1 else SHARED_HEADS, {"loops": loops}, names)
        holes = self._masks(ragged) | {"heads": heads}
        words = [
            f"{problem}: gradients of keys and values, a tile of BLOCK_N keys for every program instance.",
            *self._about_captured(),
        ]
        return self._finish(kernel, kernel.fill(KEYS, holes, names), words, "keys", tiles, decisions)

    def queries(self, decisions: tuple[Decision, ...] = ()) -> Kernel:
        """The gradient of the queries: a program instance for every tile of queries."""
        kernel = self._queries(self.configuration.queries, decisions)
        if "make_tensor_descriptor" in kernel.source:
            plain = replace(self.configuration.queries, fetch=False)
            kernel.launch["unaligned"] = self._queries(plain, (), "_unaligned")
        return kernel

    def _queries(self, tiles: Tiles, decisions: tuple[Decision, ...], suffix: str = "") -> Kernel:
        problem = self.problem
        kernel = KernelWriter(problem, f"triton_attention_backward_queries{suffix}")
        self._inputs(kernel, "queries")
        kernel.argument("d_query", "output", problem.dtype)
        ragged = self._ragged(tiles)
        count = -(-problem.queries // tiles.block_m)
        number = f"tl.program_id(0) % {count}"
        # A mask mostly hides what comes later, so the last rows see the most keys. They go first, and what is left at
        # the end of the launch is short.
        last_first = f"{count - 1} - {number}  # the last rows, which often see most, go first"
        walked = {self.key: "BLOCK_N", self.value: "BLOCK_N"} if self._fetches(tiles, "queries") else {}
        names = self._names(ragged, walked, rows="m", own="rows") | {
            "tiles": count, "tile": last_first if problem.blocks else number,
            "store_dq": self._store(self.d_query, "m", "d", "dq", ragged),
        }  # fmt: skip
        holes = self._masks(ragged) | {"loops": self._loops(kernel, "queries", tiles, ragged, names)}
        words = [f"{problem}: gradient of the queries, a tile of BLOCK_M queries for every program instance."]
        return self._finish(kernel, kernel.fill(QUERIES, holes, names), words, "queries", tiles, decisions)

    def _inputs(self, kernel: KernelWriter, over: str) -> None:
        for name in ("query", "key", "value", "d_result"):
            kernel.argument(name, "input", self.problem.dtype)
        for name in ("shift", "delta"):
            kernel.argument(name, "input", torch.float32)
        for name in (name for pair in LISTS[over] for name in pair) if self.problem.blocks else ():
            kernel.argument(name, "input", torch.int32)
        kernel.captured_arguments()

    def _about_captured(self) -> list[str]:
        names = [self.problem.score.captured[k].path for k in learnable(self.problem)]
        if not names:
            return []
        return [f"Adds to the gradients of {', '.join(names)} by atomic operations, in no fixed order."]

    def _ragged(self, tiles: Tiles) -> frozenset[str]:
        """The dimensions along which a tile may hang over the edge. Blocks of a mask are walked along whole."""
        problem, blocks = self.problem, self.problem.blocks
        unit_m, unit_n = (blocks.rows, blocks.columns) if blocks else (tiles.block_m, tiles.block_n)
        sides = (("m", problem.queries, unit_m), ("n", problem.keys, unit_n))
        return frozenset(prefix for prefix, extent, unit in sides if extent % unit)

    @staticmethod
    def _padding(size: int, column: str) -> list[str]:
        return [f"{column} < {size}"] if padded(size) != size else []

    def _guards(self, operand: Operand, row: str, column: str, ragged: frozenset[str]) -> list[str]:
        """The masks of an access to a tile of rows ``row`` (an index vector) and columns ``column``."""
        of_queries = operand.head == "h"
        edge = [f"{row} < {operand.rows}"] if ("m" if of_queries else "n") in ragged else []
        return [f"({mask})" for mask in (*edge, *self._padding(operand.columns, column))]

    def _store(self, operand: Operand, row: str, column: str, value: str, ragged: frozenset[str]) -> str:
        masks = self._guards(operand, row, column, ragged)
        mask = f", {' & '.join(masks)}" if masks else ""
        return f"tl.store({operand.base()} + ({operand.offsets(row, column)}), {value}{self._rounded}{mask})"

    @property
    def _rounded(self) -> str:
        """What makes an operand of the matrix units, or an element of a result, of float32."""
        dtype = self.problem.dtype
        return "" if dtype == torch.float32 else f".to({triton_dtype(dtype)})"

    def _fetches(self, tiles: Tiles, over: str) -> bool:
        """Whether the accelerator is to fetch what the kernel walks along, and can."""
        walked = (self.query, self.d_result) if over == "keys" else (self.key, self.value)
        able = self.problem.device.compute_capability >= 90 and self.problem.dtype != torch.float32
        return tiles.fetch and able and all(operand.is_fetchable for operand in walked)

    def _names(self, ragged: frozenset[str], fetched: dict[Operand, str], rows: str, own: str) -> dict[str, Any]:
        """The words of the texts: ``rows`` is the index vector of rows of queries, ``own`` that of rows of keys;
        ``fetched`` are the operands that the accelerator fetches, with the names of their tiles' heights."""
        problem = self.problem

        def tile(operand: Operand, base: str, row: str, column: str) -> str:
            if operand in fetched:
                return f"{base}.load([start, 0])"
            return operand.load(base, row, column, self._guards(operand, row, column, ragged))

        def begin(operand: Operand) -> str:
            if operand in fetched:
                return operand.descriptor(operand.base(), fetched[operand], str(padded(operand.columns)))
            return operand.base()

        walks_queries = rows == "rows"
        query_base, d_result_base = begin(self.query), begin(self.d_result)
        key_base, value_base = begin(self.key), begin(self.value)
        # Of rows past the end, a shift that makes P = 0.
        exists = f", row < {problem.queries}, other=" if "m" in ragged else ""
        shift, delta = (f"{exists}{other}" if exists else "" for other in ('float("inf")', "0.0"))
        return {
            "queries": problem.queries, "heads": problem.query_heads, "key_heads": problem.key_heads,
            "group": problem.group, "key_head_of": f"h // {problem.group}" if problem.group > 1 else "h",
            "head_block": padded(problem.head_size), "value_block": padded(problem.value_size),
            "scale": repr(float(problem.scale)), "rounded": self._rounded, "precision": precision_of(problem),
            "query_base": query_base, "d_result_base": d_result_base, "key_base": key_base, "value_base": value_base,
            "query_tile": tile(self.query, "query_start" if walks_queries else query_base, rows, "d"),
            "upstream": tile(self.d_result, "d_result_start" if walks_queries else d_result_base, rows, "e"),
            "keys": tile(self.key, key_base if walks_queries else "key_start", own, "d"),
            "values": tile(self.value, value_base if walks_queries else "value_start", own, "e"),
            "row_shift": f"tl.load(shift + first_row + row{shift})",
            "row_delta": f"tl.load(delta + first_row + row{delta})",
        }  # fmt: skip

    def _masks(self, ragged: frozenset[str]) -> dict[str, CodeWriter]:
        found = {}
        for prefix, extent in (("m", self.problem.queries), ("n", self.problem.keys)):
            writer = found[f"{prefix}_mask"] = CodeWriter()
            if prefix in ragged:
                writer.emit(f"{prefix}_mask = {prefix} < {extent}  # those that exist")
        return found

    # -- the loops ----------------------------------------------------------------------------------------------------

    def _loops(
        self, kernel: KernelWriter, over: str, tiles: Tiles, ragged: frozenset[str], names: dict[str, Any]
    ) -> CodeWriter:
        """What a program instance visits: the partial blocks and the full ones, or everything."""
        writer, problem = CodeWriter(), self.problem
        extent, step = (problem.queries, "BLOCK_M") if over == "keys" else (problem.keys, "BLOCK_N")
        if problem.blocks is None:
            holes = self._visit(kernel, over, ragged, names, partial=False)
            writer.extend(kernel.fill(EVERY_TILE, holes, {"extent": extent, "step": step}).lines())
            return writer
        rows, columns = problem.blocks.counts(problem.queries, problem.keys)
        height, width = problem.blocks.rows // tiles.block_m, problem.blocks.columns // tiles.block_n
        if over == "keys":
            block, steps, length, lists, per_list = problem.blocks.rows, height, rows, columns, width
        else:
            block, steps, length, lists, per_list = problem.blocks.columns, width, columns, rows, height
        own = list_row(problem, lists, f"tile // {per_list}" if per_list > 1 else "tile")
        writer.emit(f"own = {own}  # which of the mask's lists")
        told = {
            "length": length, "steps": f" * {steps}" if steps > 1 else "",
            "start": f"block * {block}" + (f" + step % {steps} * {step}" if steps > 1 else ""),
            "following": f"(step + 1) // {steps}" if steps > 1 else "step + 1",
        }  # fmt: skip
        for (counts, indices), what in zip(LISTS[over], ("partial", "full"), strict=True):
            partial = what == "partial"
            remark = "the partial blocks: mask_mod decides" if partial else "the full blocks: everything is visible"
            holes = self._visit(kernel, over, ragged, names, partial)
            words = told | {"counts": counts, "indices": indices, "what": remark}
            writer.extend(kernel.fill(LISTED_TILES, holes, words).lines())
        return writer

    def _visit(
        self, kernel: KernelWriter, over: str, ragged: frozenset[str], names: dict[str, Any], partial: bool
    ) -> dict[str, CodeWriter]:
        """The lines that treat a tile, and those in front of the loop."""
        before = CodeWriter()
        place = Place(
            before, CodeWriter(), moving="m" if over == "keys" else "n", masks=ragged, transposed=over == "keys",
            zero_fill=True,
        )  # fmt: skip
        tile = TileWriter(kernel, over, place, partial)
        probabilities = tile.probabilities()
        adjoint, ds = tile.adjoint()
        rows = CodeWriter()
        if "rows" in names["query_tile"] + names["keys"]:  # threads compute addresses
            rows.emit(f"rows = start + tl.arange(0, BLOCK_{place.moving.upper()})[:, None]")
        holes = self._masks(ragged) | {"rows": rows, "probabilities": probabilities, "adjoint": adjoint}
        text = VISIT_KEYS if over == "keys" else VISIT_QUERIES
        return {"visit": kernel.fill(text, holes, names | {"ds": ds}), "before": before}

    # -- putting it together ------------------------------------------------------------------------------------------

    def _finish(
        self, kernel: KernelWriter, body: CodeWriter, words: list[str], over: str, tiles: Tiles,
        decisions: tuple[Decision, ...],
    ) -> Kernel:  # fmt: skip
        problem = self.problem
        heads, count = (
            (problem.key_heads, -(-problem.keys // tiles.block_n))
            if over == "keys"
            else (problem.query_heads, -(-problem.queries // tiles.block_m))
        )
        constants = {"BLOCK_M": tiles.block_m, "BLOCK_N": tiles.block_n}
        finished = kernel.kernel(
            body, words, constants, tiles.num_warps, tiles.num_stages, (count * problem.batch * heads, 1, 1),
            form=f"attention-backward-{over}", decisions=decisions, options=OPTIONS,
        )  # fmt: skip
        read, written = once(problem, over)
        return replace(finished, bytes_read=read, bytes_written=written)


def once(problem: AttentionProblem, over: str) -> tuple[int, int]:
    """Bytes that a kernel reads and writes if every element is moved once, whatever the cache holds."""
    p, size = problem, problem.dtype.itemsize
    rows, of_keys = p.batch * p.query_heads * p.queries, p.batch * p.key_heads * p.keys
    read = (rows + of_keys) * (p.head_size + p.value_size) * size + 8 * rows
    written = of_keys * (p.head_size + p.value_size) if over == "keys" else rows * p.head_size
    return read, written * size
