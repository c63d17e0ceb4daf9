"""Nodes as rows: an iteration space with one loop taken out to the front (Section 7.2, Definition 7.2).

Nodes that share a kernel share its outermost loop, over *rows*, and run one after the other inside it. For that a
node's space is written anew as ``(row, rest)``: by taking one of its kept loops to the front, or by cutting a merged
loop of ``n * r`` iterations into rows of ``r`` (``i = r*row + j``), the way Definition 7.2 has a pointwise node take on
the space of a reduction. Nothing is computed differently; the iterations of a row come one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache

from ..loops.body import MemoryAccess
from ..loops.expressions import Expr, Symbol
from .records import ScheduleNode

ROW = "i_row"  # generated code has other rows, those of tiles

#: A row that starts within this many elements of the one before shares cache lines with it.
LEAST_STEP = 16


@dataclass(frozen=True)
class RowView:
    """``node`` over ``rows`` rows: its body, ``ranges`` and accesses are those of one row, whose number is ``row``."""

    node: ScheduleNode
    rows: int
    row: Symbol

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def accesses(self) -> tuple[MemoryAccess, ...]:
        return self.node.reads + self.node.writes


def has_rows(node: ScheduleNode) -> bool:
    """Whether a node has loops to take rows from: those of elementwise values and of reductions of something."""
    if node.kind not in ("pointwise", "reduction") or node.is_empty:
        return False
    return node.kind == "pointwise" or node.reduction_numel > 0


def row_counts(node: ScheduleNode) -> set[int]:
    """In how many rows a node that has some may be cut: by the extents of its kept loops."""
    return {n for n in node.ranges if n > 1}


def row_views(node: ScheduleNode, rows: int) -> Iterator[RowView]:
    """Every way of taking ``rows`` rows of a node that has some to the front."""
    assert node.body is not None
    row = Symbol(ROW, 0, rows - 1)
    for position, (symbol, extent) in enumerate(zip(node.body.indices, node.ranges, strict=True)):
        if extent == rows:
            yield _view(node, row, position, Expr.of(row), None)
        elif extent % rows == 0:
            part = extent // rows
            inner = Symbol(f"{symbol.name}_part", 0, part - 1)
            yield _view(node, row, position, Expr.of(row) * part + Expr.of(inner), (inner, part))


def _view(node: ScheduleNode, row: Symbol, position: int, value: Expr, rest: tuple[Symbol, int] | None) -> RowView:
    body = node.body
    assert body is not None
    symbol = body.indices[position]
    indices, ranges = list(body.indices), list(node.ranges)
    if rest is None:
        del indices[position], ranges[position]
    else:
        indices[position], ranges[position] = rest
    values = {symbol: value}
    changed = body.substitute(values, tuple(indices), body.reduction_indices)

    def access(old: MemoryAccess) -> MemoryAccess:
        kept = tuple(s for s in old.symbols if s != symbol)
        more = (row,) if rest is None else (row, rest[0])
        return replace(old, index=old.index.substitute(values), symbols=more + kept)

    twin = replace(
        node, body=changed, ranges=tuple(ranges), reads=tuple(map(access, node.reads)),
        writes=tuple(map(access, node.writes)),
    )  # fmt: skip
    return RowView(twin, row.upper + 1, row)


@dataclass(frozen=True)
class Span:
    """Where the accesses of one row lie: ``step`` from one row to the next, within ``low`` to ``high`` of its start."""

    step: int
    low: int
    high: int


@lru_cache(maxsize=4096)
def span(index: Expr, row: Symbol) -> Span | None:
    """The span of a subscript over a row; None if it is not affine in the row's number or has no known bounds."""
    coefficient = index.coefficient(row)
    if coefficient is None or not coefficient.is_constant:
        return None
    step = int(coefficient)
    rest = index - Expr.of(row) * step
    if row in rest.symbols:
        return None
    bounds = rest.bounds()
    if not isinstance(bounds.lower, int) or not isinstance(bounds.upper, int):
        return None
    return Span(step, bounds.lower, bounds.upper)
