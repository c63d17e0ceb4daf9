"""Which cache lines the loops of a kernel touch (Section 8.2, Example 6.1).

Memory moves in lines of 64 bytes. A vector whose elements lie one behind the other is one line; one that steps over a
row from element to element touches a line for each, and uses four bytes of it. Whether the rest of that line is wasted
depends on when the loop comes back: after more lines than the first-level cache holds, it is gone.

The order walked is that of the kernel's plan (vector, tile), and, to compare, that of the same body with another loop
innermost.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from ...errors import OptionError
from ...loops.body import MemoryAccess
from ...loops.expressions import Expr, Symbol
from ..kernel import Kernel, PlannedLoops
from .plan import extent, is_transposed
from .tiles import block_of

#: Lines that may be kept until they are needed again: half of a first-level data cache of 32 KiB, since other operands
#: need room, and steps of a power of two meet in few of its sets.
LINES_KEPT = 256

#: Steps of a walk that are looked at one by one; of a walk over tiles, those of one tile if it has fewer rows.
STEPS = 16


@dataclass(frozen=True)
class Touch:
    """What one instruction touches: element offsets into the buffer, in order of the lanes."""

    elements: tuple[int, ...]


@dataclass(frozen=True)
class Walk:
    """One access in one loop order. ``steps`` are its first vectors; ``itemsize`` in bytes. ``between``: how many other
    lines this access touches before it needs a line again (0 if it never does)."""

    buffer: str
    role: str
    index: str
    itemsize: int
    line_bytes: int
    steps: tuple[Touch, ...]
    between: int

    def lines(self, step: int) -> tuple[int, ...]:
        """The numbers of the lines that a step touches, counted from the start of the buffer."""
        size = self.line_bytes // self.itemsize
        return tuple(dict.fromkeys(element // size for element in self.steps[step].elements))

    @property
    def lines_per_step(self) -> float:
        return sum(len(self.lines(step)) for step in range(len(self.steps))) / len(self.steps)

    @property
    def used(self) -> float:
        """The part of the bytes of the touched lines that a step uses: 1 if whole lines are."""
        bytes_ = sum(len(set(touch.elements)) for touch in self.steps) * self.itemsize
        return bytes_ / (sum(len(self.lines(step)) for step in range(len(self.steps))) * self.line_bytes)

    @property
    def stays(self) -> bool:
        """Whether a line is still in the first-level cache when it is needed again."""
        return self.between <= LINES_KEPT

    def verdict(self) -> str:
        """In words, what becomes of the lines."""
        first = self.steps[0].elements
        if len(set(first)) == 1 < len(first):
            return "one element for the whole inner loop"
        if self.used > 0.99:
            return "every line is used whole, at once"
        if self.between == 0:
            return "vectors share lines with their neighbours, which come next"
        if self.stays:
            return f"the rest of a line is used later: after {self.between:,} others, while it is still in the cache"
        return f"the rest of a line is wasted: {self.between:,} others come before it is needed again"


@dataclass(frozen=True)
class LoopOrder:
    """A loop order and the walks of all accesses in it. ``vector`` is the vectorised index, ``tile`` the other index of
    a tile that is turned over in registers; ``planned``: the kernel has this one."""

    name: str
    planned: bool
    vector: str
    other: str | None
    lanes: int
    tile: str | None
    walks: tuple[Walk, ...]

    @property
    def lines(self) -> float:
        """Lines touched per vector, all accesses together."""
        return sum(walk.lines_per_step for walk in self.walks)


@dataclass(frozen=True)
class CacheLines:
    """The cache lines of one node in several loop orders, the planned one first. ``left_out`` names accesses whose
    subscript is data or no affine function, so that nobody knows beforehand."""

    kernel: str
    node: str
    line_bytes: int
    orders: tuple[LoopOrder, ...]
    left_out: tuple[str, ...] = ()

    def summary(self) -> str:
        first = self.orders[0]
        words = f"{first.name}: {first.lines:.3g} lines for each vector of {first.lanes}"
        if len(self.orders) > 1:
            worst = max(self.orders[1:], key=lambda order: order.lines)
            words += f"; {worst.name}: {worst.lines:.3g}"
        return words

    def rows(self) -> list[list[str]]:
        """A row for each order and access: order, access, lines per vector, part used, what becomes of the rest."""
        return [
            [order.name + (" (the kernel's)" if order.planned else ""), f"{walk.role} {walk.buffer}[{walk.index}]",
             f"{walk.lines_per_step:.3g}", f"{100 * walk.used:.3g}%", walk.verdict()]
            for order in self.orders for walk in order.walks
        ]  # fmt: skip

    def format(self) -> str:
        """The table as text."""
        head = ["loop order", "access", "lines per vector", "used at once", "the rest"]
        table = [head, *self.rows()]
        widths = [max(len(row[place]) for row in table) for place in range(len(head))]
        lines = [f"cache lines of {self.node} in {self.kernel}, lines of {self.line_bytes} bytes"]
        lines += ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in table]
        lines += [f"not known beforehand: {text}" for text in self.left_out]
        return "\n".join(lines)

    __str__ = __repr__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ...view import mimebundle

        return mimebundle(self)


def cache_lines(kernel: Kernel, member: str | None = None) -> CacheLines:
    """The cache lines a kernel's loops touch; ``member`` names a node of a fused kernel, by default the first.

    OptionError where there are no loops, no such node, or no access with a subscript that is known beforehand.
    """
    parts = [part for part in kernel.planned if member in (None, part.node.name)]
    if not parts:
        wanted = f"no node {member!r}" if member else "no loops"
        raise OptionError(f"{kernel.name} has {wanted}", remedy="look at a C++ kernel that computes something")
    part = parts[0]
    if part.node.kind == "template":
        raise OptionError(
            f"{part.node.name} of {kernel.name} is a product in blocks, whose operands are copied to scratch memory",
            remedy="read the loops in the source of the kernel",
        )
    tile = part.plan.tile if part.node.kind == "pointwise" else None  # what a scan has there are rows side by side
    sizes = {argument.buffer: argument.dtype.itemsize for argument in kernel.arguments}
    known, left_out = _accesses(part, sizes)
    if not known or not part.plan.outer + part.plan.inner + ((part.plan.innermost,) if part.plan.innermost else ()):
        raise OptionError(f"{part.node.name} of {kernel.name} touches no memory whose addresses are known beforehand")
    line = kernel.device.cache_line_bytes
    orders = [_order(part, known, line, part.plan.innermost, part.plan.lanes, tile, planned=True)]
    for symbol in reversed(_symbols(part)):
        if symbol != part.plan.innermost or tile is not None:
            if extent(symbol) > 1 and len(orders) < 4:
                orders.append(_order(part, known, line, symbol, part.plan.lanes, None, planned=False))
    return CacheLines(kernel.name, part.node.name, line, tuple(orders), tuple(left_out))


@dataclass(frozen=True)
class _Access:
    access: MemoryAccess
    role: str
    itemsize: int


def _accesses(part: PlannedLoops, sizes: dict[str, int]) -> tuple[list[_Access], list[str]]:
    node = part.node
    known, left_out = [], []
    stored = node.store_dtype.itemsize if node.store_dtype is not None else 4
    for role, accesses in (("read", node.loads), ("write", node.writes)):
        for access in accesses:
            if access.buffer not in sizes:
                continue  # a row on the thread's stack, which is always in the first-level cache
            if _is_known(access.index):
                known.append(_Access(access, role, sizes.get(access.buffer, stored)))
            else:
                left_out.append(f"{role} {access.buffer}[{access.index}]")
    return known, left_out


def _is_known(index: Expr) -> bool:
    """Whether no part of a subscript is data."""
    return not any(symbol.name.startswith("indirect") for symbol in index.symbols)


def _symbols(part: PlannedLoops) -> tuple[Symbol, ...]:
    body = part.node.body
    return body.symbols if body is not None else ()


def _order(
    part: PlannedLoops,
    accesses: list[_Access],
    line: int,
    innermost: Symbol | None,
    lanes: int,
    tile: Symbol | None,
    *,
    planned: bool,
) -> LoopOrder:
    """The first vectors of all accesses with ``innermost`` as the vectorised loop."""
    assert innermost is not None
    other = tile or _partner(part, innermost, accesses)
    width = min(lanes, extent(innermost)) if lanes > 1 else 1
    count = STEPS if other is None else min(STEPS, extent(other), STEPS if tile is None else width)
    walks = []
    for entry in accesses:
        index = entry.access.index
        turned = tile is not None and entry.role == "read" and is_transposed(index, tile, innermost)
        along, across = (tile, innermost) if turned else (innermost, other)
        steps = tuple(_steps(index, along, across, width, count))
        between = _between(index, innermost, tile, turned, entry.itemsize, line)
        walks.append(
            Walk(entry.access.buffer, entry.role, str(index), entry.itemsize, line, steps, between)
        )  # fmt: skip
    name = f"{innermost.name} innermost"
    if tile is not None:
        name = f"tile of {tile.name} x {innermost.name}"
    return LoopOrder(
        name, planned, innermost.name, other.name if other else None, width, tile.name if tile else None, tuple(walks)
    )


def _partner(part: PlannedLoops, innermost: Symbol, accesses: list[_Access]) -> Symbol | None:
    """The loop that the picture steps along: one that some access runs along, else the next one outside."""
    others = [symbol for symbol in _symbols(part) if symbol != innermost and extent(symbol) > 1]
    for symbol in reversed(others):
        for entry in accesses:
            coefficient = entry.access.index.coefficient(symbol)
            if coefficient is not None and coefficient.is_constant and abs(int(coefficient)) == 1:
                return symbol
    return others[-1] if others else None


def _steps(index: Expr, along: Symbol, across: Symbol | None, lanes: int, count: int) -> Iterator[Touch]:
    """``count`` vectors of ``lanes`` elements: along one index, one after the other across another or further along."""
    zero = {symbol.name: 0 for symbol in index.symbols}
    for step in range(count):
        values = zero | ({across.name: step} if across is not None else {})
        start = 0 if across is not None else step * lanes
        if start + lanes > extent(along):
            return
        yield Touch(tuple(int(index.evaluate(values | {along.name: start + lane})) for lane in range(lanes)))


def _between(index: Expr, innermost: Symbol, tile: Symbol | None, turned: bool, itemsize: int, line: int) -> int:
    """Lines touched by a whole run of the innermost loop, after which the next iteration outside needs them again."""
    step = index.coefficient(innermost)
    if turned or step is None or not step.is_constant or abs(int(step)) * itemsize < line:
        return 0
    return extent(innermost) if tile is None else min(extent(innermost), block_of(tile, innermost))
