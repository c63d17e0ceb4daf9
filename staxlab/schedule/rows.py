"""Nodes as rows: an iteration space with some loops taken out to the front (Section 7.2, Definition 7.2).

Nodes that share a kernel share its outermost loops, over *rows*, and run one after the other inside them. For that a
node's space is written anew as ``(row, rest)``: by taking some of its kept loops to the front, or by cutting a merged
loop of ``n * r`` iterations into rows of ``r`` (``i = r*row + j``), the way Definition 7.2 has a pointwise node take on
the space of a reduction. Nothing is computed differently; the iterations of a row come one after the other.

Whether rows may run side by side is a question about memory (Proposition 7.3): does a row read only what the same row
wrote? :func:`place` answers it by turning a subscript around, into the row as a function of the address.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

from ..loops.body import MemoryAccess
from ..loops.expressions import Expr, Symbol
from .records import ScheduleNode

ROW = "i_row"  # generated code has other rows, those of tiles

#: A row that starts within this many elements of the one before shares cache lines with it.
LEAST_STEP = 16

#: Loops over rows, and ways of choosing them, that are looked at for a node.
MOST_LOOPS = 3
MOST_WAYS = 12


@dataclass(frozen=True)
class RowView:
    """``node`` over rows: its body, ``ranges`` and accesses are those of one row, whose numbers are ``loops``;
    ``number`` tells apart the ways of taking the same rows."""

    node: ScheduleNode
    loops: tuple[Symbol, ...]
    number: int = 0

    @property
    def name(self) -> str:
        return self.node.name

    @property
    def key(self) -> tuple[str, tuple[int, ...], int]:
        return self.name, self.extents, self.number

    @property
    def extents(self) -> tuple[int, ...]:
        return tuple(int(loop.upper) + 1 for loop in self.loops)

    @property
    def rows(self) -> int:
        count = 1
        for extent in self.extents:
            count *= extent
        return count

    @property
    def accesses(self) -> tuple[MemoryAccess, ...]:
        return self.node.reads + self.node.writes

    def elements(self, access: MemoryAccess) -> int:
        """How many elements an access touches in one row."""
        return replace(access, symbols=tuple(s for s in access.symbols if s not in self.loops)).unique_elements


def has_rows(node: ScheduleNode) -> bool:
    """Whether a node has loops to take rows from: those of elementwise values, of reductions of something, and those
    of a scan beside its axis."""
    if node.kind not in ("pointwise", "reduction", "scan") or node.is_empty:
        return False
    return node.kind == "pointwise" or node.reduction_numel > 0


def row_spaces(node: ScheduleNode) -> set[tuple[int, ...]]:
    """The extents of the loops over rows that a node offers: some of its kept loops, in their order."""
    kept = [n for n in node.ranges if n > 1]
    return {space for count in range(1, MOST_LOOPS + 1) for space in itertools.combinations(kept, count)}


def row_views(node: ScheduleNode, space: Sequence[int], parts: Sequence[int] = ()) -> Iterator[RowView]:
    """The ways of taking loops over rows of these extents to the front of a node that has some, MOST_WAYS at most.

    A merged loop is cut so that its rows are outermost; or, for each of ``parts``, so that so many iterations are
    inside them and more rows around.
    """
    body = node.body
    assert body is not None
    names = [ROW] if len(space) == 1 else [f"{ROW}{k}" for k in range(len(space))]
    loops = tuple(Symbol(name, 0, n - 1) for name, n in zip(names, space, strict=True))
    kept = tuple(zip(body.indices, node.ranges, strict=True))
    for number, (values, rest) in enumerate(itertools.islice(_taken({}, kept, loops, parts), MOST_WAYS)):
        yield replace(_view(node, loops, values, rest), number=number)


_Loops = tuple[tuple[Symbol, int], ...]


def _taken(
    values: dict[Symbol, Expr], kept: _Loops, loops: tuple[Symbol, ...], parts: Sequence[int]
) -> Iterator[tuple[dict, _Loops]]:
    """Loops to take the place of ``kept`` so that ``loops`` are in front, and what the old indices are in terms of
    the new ones."""
    if not loops:
        yield values, kept
        return
    first, rows = loops[0], int(loops[0].upper) + 1
    for position, (symbol, extent) in enumerate(kept):
        before, after = kept[:position], kept[position + 1 :]
        for value, inner in _cuts(symbol, extent, first, rows, parts):
            changed = {old: expression.substitute({symbol: value}) for old, expression in values.items()}
            changed.setdefault(symbol, value)
            yield from _taken(changed, (*before, *inner, *after), loops[1:], parts)


def _cuts(
    symbol: Symbol, extent: int, row: Symbol, rows: int, parts: Sequence[int]
) -> Iterator[tuple[Expr, _Loops]]:
    """The ways of finding a loop over rows in a loop: what its index is then, and the loops that are left."""
    if extent == rows:
        yield Expr.of(row), ()
        return
    sizes = [extent // rows] if extent % rows == 0 else []
    sizes += [part for part in parts if 1 < part and extent % (rows * part) == 0 and rows * part < extent]
    for size in sizes:
        inner, around = Symbol(f"{symbol.name}_part", 0, size - 1), extent // (rows * size)
        value, loops = Expr.of(row) * size + Expr.of(inner), ((inner, size),)
        if around > 1:
            outer = Symbol(f"{symbol.name}_around", 0, around - 1)
            value, loops = Expr.of(outer) * (rows * size) + value, ((outer, around), *loops)
        yield value, loops


def _view(node: ScheduleNode, loops: tuple[Symbol, ...], values: dict[Symbol, Expr], rest: _Loops) -> RowView:
    body = node.body
    assert body is not None
    taken = {symbol: value for symbol, value in values.items() if symbol in body.indices}
    changed = body.substitute(taken, tuple(symbol for symbol, _ in rest), body.reduction_indices)

    def access(old: MemoryAccess) -> MemoryAccess:
        new = dict.fromkeys((*loops, *(s for s, _ in rest), *(s for s in old.symbols if s not in body.indices)))
        return replace(old, index=old.index.substitute(taken), symbols=tuple(new))

    twin = replace(
        node, body=changed, ranges=tuple(extent for _, extent in rest), reads=tuple(map(access, node.reads)),
        writes=tuple(map(access, node.writes)),
    )  # fmt: skip
    return RowView(twin, loops)


@dataclass(frozen=True)
class Place:
    """Where the accesses of a row lie.

    ``steps`` is what one more in each loop over rows adds to the address. Where ``is_apart``, the row is a function of
    the address: in the order of their steps, each loop's number is ``(address - low) // step % extent`` for any ``low``
    at which ``window`` fits in ``[low, low + step)``; taking that digit out of the address leaves the one the next loop
    is found from. ``local`` is what is left in the end, the address within the row.
    """

    steps: tuple[int, ...]
    windows: tuple[tuple[int, int, int], ...]
    local: Expr
    is_apart: bool

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The least and the greatest address within the row, where they are known."""
        bounds = self.local.bounds()
        if not isinstance(bounds.lower, int) or not isinstance(bounds.upper, int):
            return None
        return bounds.lower, bounds.upper

    def agrees(self, other: Place) -> bool:
        """Whether an address that both reach is in the same row for both: the distance between them is zero."""
        if self.steps != other.steps or not (self.is_apart and other.is_apart):
            return False
        pairs = zip(self.windows, other.windows, strict=True)
        return all(max(one[1], two[1]) - min(one[0], two[0]) < one[2] for one, two in pairs)


@lru_cache(maxsize=8192)
def place(index: Expr, loops: tuple[Symbol, ...]) -> Place | None:
    """Where a subscript goes in every row; None if it is not affine in the rows' numbers."""
    steps: list[int] = []
    for loop in loops:
        coefficient = index.coefficient(loop)
        if coefficient is None or not coefficient.is_constant:
            return None
        steps.append(int(coefficient))
    windows: list[tuple[int, int, int]] = []
    apart = all(step >= 0 for step in steps)
    for step, loop in sorted(zip(steps, loops, strict=True), key=lambda pair: pair[0]):
        now = int(index.coefficient(loop) or 0)
        index = index - Expr.of(loop) * now
        if not step or not apart:
            continue
        rows = int(loop.upper) + 1
        beyond, within = index.split_terms(now * rows)
        bounds = within.bounds()
        if not isinstance(bounds.lower, int) or not isinstance(bounds.upper, int) or bounds.upper - bounds.lower >= now:
            apart = False
            continue
        windows.append((bounds.lower, bounds.upper, now))
        index = beyond * now + within
    return Place(tuple(steps), tuple(windows), index, apart)
