"""The tiles of a product: its loops as index vectors, and the handler that writes what surrounds it (Section 9.8).

A product has three loops and, in every tile, three rectangles: ``m x k`` of the left operand, ``k x n`` of the right
one and ``m x n`` of the result. An index vector lies along the first axis of a rectangle or along the second; only k
lies along either, so it has two vectors. Loops over a batch are numbers, the same in all of a tile.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ....loops.body import LoopBody, Statement
from ....loops.expressions import Expr, Symbol
from ....loops.ir import Layout, ProductForm
from ....loops.operands import operands
from ....loops.ops import Ops
from ....provenance import Origins
from ....schedule.records import ScheduleNode
from ..handler import BlockValue, Emission, TritonOps
from ..space import BlockDim, BlockSpace

ALONG_K = frozenset({"k_row", "k_column"})


class TileDim(BlockDim):
    """A dimension of a rectangle: ``m``, ``n``, or k along the rows of the left operand (``k_row``) or the columns of
    the right one (``k_column``)."""

    @property
    def size_name(self) -> str:
        return self.prefix[0].upper()

    @property
    def index_name(self) -> str:
        return self.prefix

    @property
    def mask_name(self) -> str:
        return f"{self.prefix}_mask"

    @property
    def block_name(self) -> str:
        return f"BLOCK_{self.size_name}"

    def loop_name(self, symbol: Symbol) -> str:
        return self.prefix

    def values(self) -> dict[Symbol, Expr]:
        return {symbol: Expr.of(self.flat) for symbol in self.symbols}


@dataclass(frozen=True)
class Product:
    """A template node and its epilogue, taken apart. ``sizes`` are (batch, rows, columns, depth)."""

    node: ScheduleNode
    template: ScheduleNode
    epilogue: tuple[ScheduleNode, ...]
    left: LoopBody
    right: LoopBody
    form: ProductForm

    @staticmethod
    def of(node: ScheduleNode) -> Product:
        """Of a template, or of a template with its epilogue."""
        template = node.product
        assert template is not None and template.body is not None and template.body.epilogue is not None
        left, right = operands(template.body)
        form = template.form or ProductForm("tiled", template.store_dtype or torch.float32)
        return Product(node, template, node.members[1:], left, right, form)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        *batch, rows, columns = self.template.ranges
        count = 1
        for extent in batch:
            count *= extent
        return count, rows, columns, self.template.reduction_numel

    @property
    def symbols(self) -> tuple[Symbol, Symbol, Symbol]:
        """The loops over rows, over columns, and over what is summed."""
        body = self.template.body
        assert body is not None
        return body.indices[-2], body.indices[-1], body.reduction_indices[0]

    def space(self, first: str, second: str) -> BlockSpace:
        """The rectangle of two of the dimensions."""
        _, rows, columns, depth = self.sizes
        m, n, k = self.symbols
        loops = {"m": (m, rows), "n": (n, columns), "k_row": (k, depth), "k_column": (k, depth)}
        dims = []
        for axis, prefix in enumerate((first, second)):
            symbol, extent = loops[prefix]
            dims.append(TileDim(prefix, (symbol,), (extent,), axis, 2))
        space = BlockSpace(tuple(dims))
        batch = Symbol("batch", 0, max(self.sizes[0] - 1, 0))
        space.symbol_dims[batch] = frozenset()
        stride = 1
        for symbol, extent in reversed(list(zip(self.template.body.indices[:-2], self.template.ranges, strict=False))):
            space.substitution[symbol] = (Expr.of(batch) // stride) % extent
            stride *= extent
        return space


def plain_load(body: LoopBody) -> Statement | None:
    """The load that an operand consists of: by itself, or under a condition outside which it is 0. None if something is
    computed from what is loaded."""
    result = next(s for s in body.statements if s.id == body.result)
    if result.operation == "masked" and result.args[2] == 0 and len(result.args[1].statements) == 1:
        (result,) = result.args[1].statements
    return result if result.operation == "load" else None


@dataclass(frozen=True)
class Strided:
    """An operand that is a matrix in memory: ``buffer[offset + rows * i + columns * j]``."""

    buffer: str
    offset: int
    rows: int
    columns: int


def strided(body: LoopBody, row: Symbol, column: Symbol) -> Strided | None:
    """The operand as a matrix in memory, over the loops that number its rows and columns; None if it is none."""
    load = body.statements[-1] if len(body.statements) == 1 else None
    if load is None or load.operation != "load":
        return None
    return affine(*load.args, row, column)


def affine(buffer: str, index: Expr, row: Symbol, column: Symbol) -> Strided | None:
    """A storage subscript as that of a matrix, over the loops that number its rows and columns; None if it is none."""
    steps = [index.coefficient(symbol) for symbol in (row, column)]
    if any(step is None or not step.is_constant for step in steps):
        return None
    rest = index - steps[0] * row - steps[1] * column
    return Strided(buffer, int(rest), int(steps[0]), int(steps[1])) if rest.is_constant else None


class TileOps(TritonOps):
    """Writes the statements around a product. What varies along k goes into the loop, all else before it; what an
    earlier part of an epilogue made is a variable. ``raw`` reads an operand as it is stored, for the matrix units."""

    def __init__(self, emission: Emission, origins: Origins, values: dict[str, BlockValue], raw: bool = False):
        super().__init__(emission, origins)
        self.values, self.raw = values, raw

    def tagged(self, origins: Origins) -> TileOps:
        return TileOps(self.emission, origins, self.values, self.raw)

    def writer(self, dims: frozenset[str]) -> Any:
        return self.emission.inner if dims & ALONG_K else self.emission.outer

    def load(self, buffer: str, index: Expr) -> BlockValue:
        return self.values[buffer] if buffer in self.values else super().load(buffer, index)

    def loaded(self, text: str, dtype: torch.dtype) -> str:
        return text if self.raw else super().loaded(text, dtype)

    def masked(self, condition: BlockValue, body: Callable[[Ops], Any], other: bool | int | float) -> BlockValue:
        if not self.raw:
            return super().masked(condition, body, other)
        self.emission.conditions.append(condition)  # what is masked off reads as 0, and nothing is done with it
        try:
            return body(self)
        finally:
            self.emission.conditions.pop()


def buffers_of(node: ScheduleNode, layouts: dict[str, Layout]) -> tuple[list[str], list[str]]:
    """What a kernel reads from outside and what it stores, in order."""
    members = node.members or (node,)
    made = {buffer for member in members for buffer in member.buffers}
    reads = [a.buffer for member in members for a in member.body.reads()]
    return list(dict.fromkeys(b for b in reads if b not in made)), list(node.buffers)
