"""Two-dimensional tiles (Section 8.2): reading one operand along its rows while another runs along its columns.

In ``x.t() + y`` (Example 6.1) no loop order suits both reads: whichever index is innermost, one operand steps over a
whole row per element and uses four bytes of each cache line it touches. A tile of ``L x L`` elements is small enough
to be read the way it lies in memory, ``L`` vectors one below the other, and turned over in registers: ``log2 L``
rounds, each exchanging blocks between pairs of vectors. Afterwards vector ``k`` runs along the innermost loop like
every other operand, and every line of every operand was used whole.

Tiles are grouped into blocks a few cache lines wide, so that the pages of both operands stay in the translation cache.
"""

from __future__ import annotations

import contextlib

from ...loops.body import Statement
from ...loops.expressions import Expr, Symbol
from ...provenance import CodeWriter
from .loops import Emission, captures, for_loop, pragma
from .plan import BLOCK, TILES_AHEAD, extent, is_transposed
from .types import identifier


def block_of(across: Symbol, along: Symbol) -> int:
    """Elements along each side of a block of tiles: larger for matrices that have many, so that pages are left less
    often."""
    return BLOCK if min(extent(across), extent(along)) < 16 * BLOCK else 2 * BLOCK


def transposed_loads(emission: Emission) -> list[Statement]:
    """The reads that are consecutive along the tile's other index, each once."""
    plan = emission.plan
    assert plan.tile is not None and plan.vector is not None
    conditional = {access.index for access in emission.body.reads() if access.conditional}
    return [
        s
        for s in emission.body.statements
        if s.operation == "load" and s.args[1] not in conditional and is_transposed(s.args[1], plan.tile, plan.vector)
    ]


def write_tiles(emission: Emission) -> None:
    """A pointwise kernel over blocks of tiles."""
    plan, scope = emission.plan, emission.scope
    across, along = plan.tile, plan.vector
    assert across is not None and along is not None
    lanes, size = plan.lanes, block_of(across, along)
    last = len(scope.writers) - 1
    preloads = CodeWriter()
    for number, statement in enumerate(transposed_loads(emission)):
        _preload(emission, preloads, statement, f"turned{number}")
    handler, result = emission.replay("lanes")
    write = emission.node.writes[0]
    handler.tagged(emission.origins).store(write.buffer, write.index, result)
    emission.flush(0)
    with contextlib.ExitStack() as stack:
        if plan.is_parallel:
            pragma(emission, len(plan.outer) + 2)
        for symbol in plan.outer:
            stack.enter_context(emission.block(for_loop(symbol)))
        for symbol in (across, along):
            block = f"{symbol.name}_block"
            head = f"for (i64 {block} = 0; {block} < {extent(symbol)}; {block} += {size}) {{"
            stack.enter_context(emission.block(head))
        for level in range(1, len(plan.outer) + 1):
            emission.flush(level)
        parameters = f"i64 {across.name}_first, i64 {along.name}, auto rows, auto lanes"
        emission.emit(f"const auto tile = {captures(emission)}({parameters}) __attribute__((always_inline)) {{")
        with emission.writer.indent():
            emission.writer.extend(preloads.lines())
            with emission.block(f"for (int row = 0; row < {lanes} && rows.active(row); ++row) {{"):
                emission.emit(f"const i64 {across.name} = {across.name}_first + row;")
                if scope.prefetch:
                    for statement in transposed_loads(emission):
                        _prefetch(emission, statement)
                emission.flush(last)
        emission.emit("};")
        for symbol in (across, along):
            name, n = symbol.name, extent(symbol)
            stop = f"{name}_block + {size} < {n} ? {name}_block + {size} : {n}"
            head = f"for (i64 {name} = {name}_block, {name}_end = {stop}; {name} < {name}_end; {name} += {lanes}) {{"
            stack.enter_context(emission.block(head))
        _call_tile(emission, across, along)


def _preload(emission: Emission, writer: CodeWriter, statement: Statement, name: str) -> None:
    """Read the tile of one operand and turn it over; the body finds it under ``scope.preloaded``."""
    plan, scope = emission.plan, emission.scope
    assert plan.tile is not None and plan.vector is not None
    buffer, index = statement.args
    pointer, _ = scope.arguments[buffer]
    relative = index - scope.offsets.get(buffer, 0)
    first = relative.substitute({plan.tile: Expr.of(Symbol(f"{plan.tile.name}_first", 0, plan.tile.upper))})
    step = int(index.coefficient(plan.vector))
    kind = scope.vector_type(statement.dtype)
    writer.emit(f"{kind} {name}[{plan.lanes}];  // a tile of {identifier(buffer)}, turned over", statement.origins)
    writer.emit(f"load_turned({name}, {pointer} + {first.c_style()}, {step}, rows, lanes);", statement.origins)
    scope.preloaded[buffer, index] = f"{name}[row]"


def _prefetch(emission: Emission, statement: Statement) -> None:
    """Ask for one row of the tile that is ``TILES_AHEAD`` tiles further along."""
    plan, scope = emission.plan, emission.scope
    assert plan.tile is not None and plan.vector is not None
    buffer, index = statement.args
    pointer, _ = scope.arguments[buffer]
    first = Expr.of(Symbol(f"{plan.tile.name}_first", 0, plan.tile.upper))
    row = Expr.of(Symbol("row", 0, plan.lanes - 1)) + TILES_AHEAD * plan.lanes
    place = {plan.tile: first, plan.vector: Expr.of(plan.vector) + row}
    ahead = (index - scope.offsets.get(buffer, 0)).substitute(place)
    emission.emit(f"prefetch({pointer} + {ahead.c_style()});", statement.origins)


def _call_tile(emission: Emission, across: Symbol, along: Symbol) -> None:
    """Call the tile, whole or cut off at either edge."""
    lanes = emission.plan.lanes
    cases = []
    for symbol in (across, along):
        whole, tail = extent(symbol) // lanes * lanes, extent(symbol) % lanes
        choices = [(f"{symbol.name} < {whole}", "all_lanes")] if whole else []
        if tail:
            choices.append(("", f"first<{tail}>"))
        elif choices:
            choices = [("", "all_lanes")]
        cases.append(choices)
    for row_condition, rows in cases[0]:
        for lane_condition, active in cases[1]:
            conditions = " && ".join(c for c in (row_condition, lane_condition) if c)
            otherwise = "else " if (row_condition, lane_condition) != (cases[0][0][0], cases[1][0][0]) else ""
            test = f"if ({conditions}) " if conditions else ""
            emission.emit(f"{otherwise}{test}tile({across.name}, {along.name}, {rows}, {active});")
