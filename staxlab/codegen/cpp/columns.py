"""Reductions over outer loops (Sections 8.1 and 8.2): sums down the columns of a matrix whose rows are contiguous.

Walking down one column touches a cache line per element. Instead the *kept* loop is vectorised and rows are read as
they lie in memory: every row is merged, element by element, into running results for a strip of neighbouring columns.
A short strip lives in registers; the strip of a large matrix lives in the first-level cache, a page wide, so that each
page is visited once per row and not once per vector. Lanes are different outputs here, so nothing is reordered within
one output; only large matrices with few columns are cut into pieces of rows, whose results are merged in order.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

from ...loops.expressions import Expr
from ...provenance import CodeWriter
from .loops import Emission, captures, for_loop, outer_loops, pragma
from .plan import STRIP_BYTES, extent, position_dtype
from .reductions import Merge, merge_of, merged_value, position, store_result, update
from .types import element_bytes
from .values import CppOps


def write_outer(emission: Emission) -> None:
    """The vectorised loop is kept, the reduced loops run inside it."""
    merge, value = _prepare(emission)
    if emission.plan.strips:
        _write_strips(emission, merge, value)
    else:
        _write_in_registers(emission, merge, value)


def _prepare(emission: Emission) -> tuple[Merge, str]:
    """Replay the body; the text of the value it merges."""
    node = emission.node
    merge = merge_of(node, emission, True)
    handler, result = emission.replay("lanes")
    value = merged_value(emission, merge, handler.tagged(emission.origins), result)
    if merge.positional:
        where = handler.index_value(position(node), position_dtype(node))
        value = f"{merge.accumulator_type}{{{value}, {handler.as_vector(where)}}}"
    return merge, value


def _define_element(emission: Emission, merge: Merge, value: str) -> None:
    plan = emission.plan
    assert plan.innermost is not None
    parameters = ", ".join(["i64 " + s.name for s in (plan.innermost, *plan.inner)] + ["auto lanes"])
    head = f"const auto element = {captures(emission)}({parameters}) __attribute__((always_inline))"
    emission.emit(f"{head} -> {merge.accumulator_type} {{")
    with emission.writer.indent():
        emission.flush(len(emission.scope.writers) - 1)
        emission.emit(f"return {value};")
    emission.emit("};")


def _store(emission: Emission, merge: Merge, text: str, shift: Expr, lanes: str | None) -> None:
    """Store the finished vector ``text`` at the kept index displaced by ``shift``."""
    plan = emission.plan
    assert plan.innermost is not None
    saved = emission.node
    emission.scope.writers[-1] = CodeWriter()
    handler = CppOps(emission.scope, lanes)
    handler.origins = emission.own
    write = saved.writes[0]
    displaced = write.index.substitute({plan.innermost: Expr.of(plan.innermost) + shift})
    emission.node = replace(saved, writes=(replace(write, index=displaced),))
    store_result(emission, handler, merge, text)
    emission.node = saved
    emission.flush(len(emission.scope.writers) - 1)


# -- In registers ------------------------------------------------------------------------------------------------------


def _write_in_registers(emission: Emission, merge: Merge, value: str) -> None:
    plan = emission.plan
    innermost = plan.innermost
    assert innermost is not None
    tail, whole = emission.tail(), emission.whole()
    width = plan.lanes * plan.accumulators
    main = whole // width * width
    with outer_loops(emission):
        _define_element(emission, merge, value)
        if main:
            if plan.parallel_innermost and not plan.parallel:
                pragma(emission, 1)
            with emission.block(for_loop(innermost, width, main)):
                _column_block(emission, merge, innermost.name, plan.accumulators, None)
        for start in range(main, whole, plan.lanes):
            with emission.block("{"):
                emission.emit(f"const i64 {innermost.name} = {start};")
                _column_block(emission, merge, innermost.name, 1, None)
        if tail:
            with emission.block("{"):
                emission.emit(f"const i64 {innermost.name} = {whole};")
                _column_block(emission, merge, innermost.name, 1, f"first<{tail}>")


def _column_block(emission: Emission, merge: Merge, name: str, count: int, lanes: str | None) -> None:
    """Reduce ``count`` neighbouring vectors of outputs over all rows and store them."""
    plan = emission.plan
    names = [f"acc{k}" for k in range(count)] if count > 1 else ["acc"]
    for accumulator in names:
        emission.emit(f"{merge.accumulator_type} {accumulator} = {merge.neutral()};", emission.own)
    rows = "".join(f", {s.name}" for s in plan.inner)
    with contextlib.ExitStack() as stack:
        for symbol in plan.inner:
            stack.enter_context(emission.block(for_loop(symbol)))
        for k, accumulator in enumerate(names):
            at = name if k == 0 else f"{name} + {k * plan.lanes}"
            emission.emit(update(merge, accumulator, f"element({at}{rows}, {lanes or 'all_lanes'})"), emission.own)
    for k, accumulator in enumerate(names):
        _store(emission, merge, accumulator, Expr.of(k * plan.lanes), lanes)


# -- In the first-level cache ------------------------------------------------------------------------------------------

ROWS_AT_ONCE = 4


def _write_strips(emission: Emission, merge: Merge, value: str) -> None:
    """Tiles of rows by columns: the pieces and strips of all outer iterations are one parallel loop."""
    plan, innermost = emission.plan, emission.plan.innermost
    assert innermost is not None
    tail, vectors = emission.tail(), emission.whole() // plan.lanes
    width = STRIP_BYTES // (element_bytes(merge.value_dtype) * plan.lanes)
    slots = vectors + (1 if tail else 0)
    outputs = 1
    for symbol in plan.outer:
        outputs *= extent(symbol)
    if plan.chunks > 1:
        results = outputs * plan.chunks * slots
        emission.emit(f"{merge.accumulator_type} partial[{results}];  // of every piece of rows", emission.own)
    emission.flush(0)
    with contextlib.ExitStack() as stack:
        if plan.is_parallel:
            pragma(emission, len(plan.outer) + 2)
        for symbol in plan.outer:
            stack.enter_context(emission.block(for_loop(symbol)))
        stack.enter_context(emission.block(f"for (i64 piece = 0; piece < {plan.chunks}; ++piece) {{"))
        stack.enter_context(emission.block(f"for (i64 strip = 0; strip < {-(-slots // width)}; ++strip) {{"))
        for level in range(1, len(plan.outer) + 1):
            emission.flush(level)
        _define_element(emission, merge, value)
        begin = f"strip*{width}"
        emission.emit(f"const i64 begin = {begin}, end = begin + {width} < {slots} ? begin + {width} : {slots};")
        if tail:
            emission.emit(f"const i64 whole = end < {vectors} ? end : {vectors};  // the last vector is a partial one")
        emission.emit(f"{merge.accumulator_type} acc[{min(width, slots)}];", emission.own)
        emission.emit(f"for (i64 k = begin; k < end; ++k) acc[k - begin] = {merge.neutral()};", emission.own)
        _rows(emission, merge, tail)
        _store_strip(emission, merge, slots, tail)
    if plan.chunks > 1:
        _merge_pieces(emission, merge, slots, tail)


def _rows(emission: Emission, merge: Merge, tail: int) -> None:
    plan = emission.plan
    last = plan.inner[-1]
    with contextlib.ExitStack() as stack:
        for position_, symbol in enumerate(plan.inner):
            start, stop = "0", str(extent(symbol))
            if position_ == 0 and plan.chunks > 1:
                emission.emit(f"const i64 row = piece*{plan.chunk};")
                emission.emit(f"const i64 stop = row + {plan.chunk} < {stop} ? row + {plan.chunk} : {stop};")
                start, stop = "row", "stop"
            name = symbol.name
            if symbol != last:
                stack.enter_context(emission.block(f"for (i64 {name} = {start}; {name} < {stop}; ++{name}) {{"))
                continue
            emission.emit(f"i64 {name} = {start};")
            several = f"for (; {name} + {ROWS_AT_ONCE} <= {stop}; {name} += {ROWS_AT_ONCE}) {{"
            with emission.block(several):
                _merge_rows(emission, merge, ROWS_AT_ONCE, tail)
            with emission.block(f"for (; {name} < {stop}; ++{name}) {{"):
                _merge_rows(emission, merge, 1, tail)


def _merge_rows(emission: Emission, merge: Merge, count: int, tail: int) -> None:
    """Merge ``count`` rows, one after the other, into the strip's running results."""
    plan = emission.plan
    outer_rows = "".join(f"{s.name}, " for s in plan.inner[:-1])
    name = plan.inner[-1].name

    def merged(at: str, slot: str, lanes: str) -> None:
        emission.emit(f"{merge.accumulator_type} merged = acc[{slot}];", emission.own)
        for k in range(count):
            row = name if k == 0 else f"{name} + {k}"
            emission.emit(update(merge, "merged", f"element({at}, {outer_rows}{row}, {lanes})"), emission.own)
        emission.emit(f"acc[{slot}] = merged;", emission.own)

    with emission.block(f"for (i64 k = begin; k < {'whole' if tail else 'end'}; ++k) {{"):
        merged(f"{plan.lanes}*k", "k - begin", "all_lanes")
    if tail:
        with emission.block("if (whole < end) {"):
            merged(f"{plan.lanes}*whole", "whole - begin", f"first<{tail}>")


def _slot(emission: Emission, slots: int, k: str) -> str:
    total = Expr.of(0)
    for symbol in emission.plan.outer:
        total = total * extent(symbol) + Expr.of(symbol)
    piece = f"({total.c_style()})*{emission.plan.chunks} + piece" if emission.plan.outer else "piece"
    return f"({piece})*{slots} + {k}" if " " in piece else f"{piece}*{slots} + {k}"


def _store_strip(emission: Emission, merge: Merge, slots: int, tail: int) -> None:
    plan, innermost = emission.plan, emission.plan.innermost
    assert innermost is not None
    if plan.chunks > 1:
        emission.emit(f"for (i64 k = begin; k < end; ++k) partial[{_slot(emission, slots, 'k')}] = acc[k - begin];")
        return
    with emission.block(f"for (i64 k = begin; k < {'whole' if tail else 'end'}; ++k) {{"):
        emission.emit(f"const i64 {innermost.name} = {plan.lanes}*k;")
        _store(emission, merge, "acc[k - begin]", Expr.of(0), None)
    if tail:
        with emission.block("if (whole < end) {"):
            emission.emit(f"const i64 {innermost.name} = {plan.lanes}*whole;")
            _store(emission, merge, "acc[whole - begin]", Expr.of(0), f"first<{tail}>")


def _merge_pieces(emission: Emission, merge: Merge, slots: int, tail: int) -> None:
    """The results of the pieces, merged in order, for every output."""
    plan, innermost = emission.plan, emission.plan.innermost
    assert innermost is not None
    with contextlib.ExitStack() as stack:
        for symbol in plan.outer:
            stack.enter_context(emission.block(for_loop(symbol)))
        stack.enter_context(emission.block(f"for (i64 k = 0; k < {slots}; ++k) {{"))
        emission.emit(f"{merge.accumulator_type} total = {merge.neutral()};", emission.own)
        merged = merge.pair("total", f"partial[{_slot(emission, slots, 'k')}]")
        emission.emit(f"for (i64 piece = 0; piece < {plan.chunks}; ++piece) total = {merged};", emission.own)
        emission.emit(f"const i64 {innermost.name} = {plan.lanes}*k;")
        if not tail:
            _store(emission, merge, "total", Expr.of(0), None)
            return
        with emission.block(f"if (k < {slots - 1}) {{"):
            _store(emission, merge, "total", Expr.of(0), None)
        with emission.block("else {"):
            _store(emission, merge, "total", Expr.of(0), f"first<{tail}>")
