"""Scans in C++ (Table 6.1, Section 8.1): running values along one loop, every one of which is stored.

Each prefix is made from the one before it, so along its axis a scan is a chain of additions that wait for each other;
no lane, accumulator or thread may take a part of it without changing the order in which numbers are added. What runs
side by side is what a scan has many of: independent rows. Two forms, by the loop that lies densely in memory:

* *outer*: another loop is the dense one. Vectors run along it, a strip of running vectors wide enough to use pages
  whole is carried down the axis, and every step reads, merges and writes one row of the strip.
* *inner*: the axis itself is the dense one. Whole vectors of a few rows are computed, converted and put on the stack;
  then elements are folded one after the other, but several rows in turn, so that while one addition is under way those
  of other rows begin; then whole vectors are converted and stored. A running extreme needs no folding where a whole
  vector leaves it as it is, which one comparison tells.

Both give the bits of the reference semantics (:func:`staxlab.loops.semantics.prefixes`): the first element is the first
prefix, and the order is that of the axis.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from ...loops.expressions import Symbol
from ...loops.ops import compute_dtype
from ...provenance import CodeWriter
from .loops import Emission, captures, for_loop, levels, outer_loops, pragma, write_pointwise
from .plan import extent
from .scan_plan import EXTREMES, NARROWEST_STRIP, of_one_element, value_dtype
from .tiles import write_tiles
from .types import ELEMENT
from .values import CppOps, CppValue

#: Elements of a row that are computed before they are folded: four rows of float64 are then 4 KiB of the stack.
BLOCK_ELEMENTS = 128

#: What PyTorch calls the scan of each kind.
SCAN_NAMES = {
    "sum": "cumsum", "prod": "cumprod", "amax": "cummax", "amin": "cummin", "argmax": "cumargmax",
    "argmin": "cumargmin", "logaddexp": "logcumsumexp",
}  # fmt: skip

MERGES = {
    "sum": "{a} + {b}", "prod": "{a} * {b}", "amax": "later_extreme<true>({a}, {b})",
    "amin": "later_extreme<false>({a}, {b})", "logaddexp": "log_add_exp({a}, {b})",
}  # fmt: skip


@dataclass(frozen=True)
class Running:
    """The running value of a scan as text: its type, how the next element is merged into it, what is stored."""

    kind: str
    dtype: torch.dtype
    vector: str  # the type of a vector of values; of one, without vectors

    @property
    def positional(self) -> bool:
        return self.kind in ("argmax", "argmin")

    @property
    def extreme(self) -> bool:
        return self.kind in EXTREMES

    @property
    def largest(self) -> str:
        return "true" if self.kind.endswith("max") else "false"

    @property
    def element(self) -> str:
        return ELEMENT[self.dtype]

    def merged(self, a: str, b: str) -> str:
        return MERGES[self.kind].format(a=a, b=b)


def write_scan(emission: Emission) -> None:
    """The loops of a scan that has at least one element."""
    node, loop_plan, scope = emission.node, emission.plan, emission.scope
    if not emission.body.reduction_indices:
        emission.node = of_one_element(node)
        (write_pointwise if loop_plan.tile is None else write_tiles)(emission)
        return
    # The innermost parallel loop is that of rows or strips, in whose body all code stands; what depends on the row
    # alone the compiler takes out of the loops inside.
    scope.level = levels(loop_plan.outer, loop_plan.parallel + (1 if loop_plan.parallel_innermost else 0))
    scope.writers = [CodeWriter() for _ in range(len(loop_plan.outer) + 2)]
    running = _running(emission)
    handler, result = emission.replay("lanes" if loop_plan.vector is not None else None)
    handler = handler.tagged(emission.origins)
    if result.dtype != running.dtype:
        result = handler.to_dtype(result, running.dtype)
    value = handler.as_vector(result) if loop_plan.vector is not None else result.text
    with outer_loops(emission, extra_parallel=1 if loop_plan.parallel_innermost and loop_plan.parallel else 0):
        if loop_plan.parallel_innermost and not loop_plan.parallel:
            pragma(emission, 1)
        if loop_plan.form == "outer":
            _write_strips(emission, running, value)
        elif loop_plan.tile is not None:
            with emission.block(for_loop(loop_plan.tile, loop_plan.accumulators)):
                _write_rows(emission, running, value)
        else:
            _write_rows(emission, running, value)


def _running(emission: Emission) -> Running:
    node, kind = emission.node, emission.node.reduction
    assert kind is not None
    dtype = value_dtype(node)
    if node.accumulate_dtype == torch.bool:  # the sum of truths is "or", their product "and"
        kind = {"sum": "amax", "prod": "amin"}.get(kind, kind)
    vector = emission.scope.vector_type(dtype) if emission.plan.vector is not None else ELEMENT[dtype]
    return Running(kind, dtype, vector)


def _parameters(emission: Emission) -> list[Symbol]:
    """The loop indices that the code of one vector is a function of."""
    plan_, (axis,) = emission.plan, emission.body.reduction_indices
    if plan_.form == "outer":
        assert plan_.vector is not None
        return [plan_.vector, axis]
    return [plan_.tile, axis] if plan_.tile is not None else [axis]


def _define_functions(emission: Emission, running: Running, value: str) -> None:
    """``element(indices, lanes)`` computes a vector (or an element), ``write(indices, prefix, lanes)`` stores one."""
    last = len(emission.scope.writers) - 1
    indices = ", ".join(f"i64 {s.name}" for s in _parameters(emission))
    lanes = ", auto lanes" if emission.plan.vector is not None else ""
    head = f"const auto element = {captures(emission)}({indices}{lanes}) __attribute__((always_inline))"
    emission.emit(f"{head} -> {running.vector} {{")
    with emission.writer.indent():
        emission.flush(last)
        emission.emit(f"return {value};")
    emission.emit("};")
    kind = _stored_type(emission, running)
    emission.scope.writers[-1] = CodeWriter()
    handler = CppOps(emission.scope, "lanes" if lanes else None)
    handler.origins = emission.own
    _store(emission, handler, running)
    emission.emit(
        f"const auto write = [=]({indices}, {kind} prefix{lanes}) __attribute__((always_inline)) {{", emission.own
    )
    with emission.writer.indent():
        emission.flush(last)
    emission.emit("};", emission.own)


def _stored_type(emission: Emission, running: Running) -> str:
    if not running.positional:
        return running.vector
    return emission.scope.vector_type(torch.int64) if emission.plan.vector is not None else "i64"


def _store(emission: Emission, handler: CppOps, running: Running) -> None:
    """Convert ``prefix`` to what is stored, and store it; lines go to the innermost writer."""
    node = emission.node
    dtype = torch.int64 if running.positional else running.dtype
    here = frozenset({Symbol("innermost")})
    result = CppValue("prefix", dtype, emission.plan.vector is not None, here)
    if compute_dtype(node.store_dtype) != dtype:
        result = handler.to_dtype(result, node.store_dtype)
    handler.store(node.writes[0].buffer, node.writes[0].index, result)


def _step(emission: Emission, running: Running, accumulator: str, slot: str, value: str, first: str, at: str) -> None:
    """Merge ``value``, at position ``at`` of the axis, into a running value; ``first``: whether it begins one.
    ``slot`` is the subscript of the running value, if there are several."""
    own = emission.own
    here = f"{accumulator}{slot}"
    if not running.positional:
        emission.emit(f"const auto value = {value};", own)
        emission.emit(f"{here} = {first} ? value : {running.merged(here, 'value')};", own)
        return
    where = f"{accumulator}_at{slot}"
    positions = emission.scope.vector_type(torch.int64) if emission.plan.form == "outer" else ""
    position = f"splat<{positions}>({at})" if positions else at
    emission.emit(f"const auto value = {value};", own)
    emission.emit(f"const auto taken = is_later_extreme<{running.largest}>({here}, value);", own)
    with emission.block(f"if ({first}) {{"):
        emission.emit(f"{here} = value;", own)
        emission.emit(f"{where} = {position};", own)
    with emission.block("else {"):
        emission.emit(f"{here} = select(taken, value, {here});", own)
        mask = f"as_mask<mask_of<{positions}>>(taken)" if positions else "taken"
        emission.emit(f"{where} = select({mask}, {position}, {where});", own)


# -- The axis is not the dense loop ------------------------------------------------------------------------------------


def _write_strips(emission: Emission, running: Running, value: str) -> None:
    plan_, vector = emission.plan, emission.plan.vector
    (axis,) = emission.body.reduction_indices
    assert vector is not None
    tail, vectors, width = emission.tail(), emission.whole() // plan_.lanes, plan_.accumulators
    slots = vectors + (1 if tail else 0)
    constant = width == slots and width <= NARROWEST_STRIP  # so few that registers hold them
    with emission.block(f"for (i64 strip = 0; strip < {-(-slots // width)}; ++strip) {{"):
        _define_functions(emission, running, value)
        if constant:
            emission.emit("const i64 begin = 0;")
        else:
            emission.emit(f"const i64 begin = strip*{width};")
            emission.emit(f"const i64 end = begin + {width} < {slots} ? begin + {width} : {slots};")
            if tail:
                emission.emit(f"const i64 whole = end < {vectors} ? end : {vectors};  // the last is a partial vector")
        size = f"[{width}]"
        emission.emit(f"{running.vector} acc{size};", emission.own)
        if running.positional:
            emission.emit(f"{emission.scope.vector_type(torch.int64)} acc_at{size};", emission.own)
        with emission.block(for_loop(axis)):
            stop = str(vectors) if constant else "whole" if tail else "end"
            if constant and vectors:
                emission.emit(f"#pragma GCC unroll {width}")
            if vectors:
                with emission.block(f"for (i64 k = begin; k < {stop}; ++k) {{"):
                    _merge_row(emission, running, "k", "all_lanes", axis)
            if tail:
                with emission.block("{" if constant else "if (whole < end) {"):
                    _merge_row(emission, running, str(vectors), f"first<{tail}>", axis)


def _merge_row(emission: Emission, running: Running, k: str, lanes: str, axis: Symbol) -> None:
    at = f"{emission.plan.lanes}*{k}"
    call = f"element({at}, {axis.name}, {lanes})"
    _step(emission, running, "acc", f"[{k} - begin]", call, f"{axis.name} == 0", axis.name)
    stored = "acc_at" if running.positional else "acc"
    emission.emit(f"write({at}, {axis.name}, {stored}[{k} - begin], {lanes});", emission.own)


# -- The axis is the dense loop ----------------------------------------------------------------------------------------


def _write_rows(emission: Emission, running: Running, value: str) -> None:
    """The rows from ``tile`` on, as many as are folded in turn."""
    plan_ = emission.plan
    _define_functions(emission, running, value)
    count = plan_.accumulators
    rest = extent(plan_.tile) % count if plan_.tile is not None else 0
    if not rest:
        _rows(emission, running, "")
        return
    name = plan_.tile.name
    emission.emit(f"const auto scan_rows = {captures(emission)}(auto rows) __attribute__((always_inline)) {{")
    with emission.writer.indent():
        _rows(emission, running, " && rows.active(row)")
    emission.emit("};")
    if extent(plan_.tile) >= count:
        emission.emit(f"if ({name} < {extent(plan_.tile) - rest}) scan_rows(all_lanes);")
        emission.emit(f"else scan_rows(first<{rest}>);")
    else:
        emission.emit(f"scan_rows(first<{rest}>);")


def _rows(emission: Emission, running: Running, active: str) -> None:
    plan_ = emission.plan
    (axis,) = emission.body.reduction_indices
    count = plan_.accumulators
    each_row = f"for (int row = 0; row < {count}{active}; ++row) {{"
    index = f"{plan_.tile.name} + row, " if plan_.tile is not None else ""
    if plan_.vector is None:
        emission.emit(f"{running.element} acc[{count}];", emission.own)
        if running.positional:
            emission.emit(f"i64 acc_at[{count}];", emission.own)
        stored = "acc_at" if running.positional else "acc"
        with emission.block(for_loop(axis)):
            emission.emit(f"#pragma GCC unroll {count}")
            with emission.block(each_row):
                call = f"element({index}{axis.name})"
                _step(emission, running, "acc", "[row]", call, f"{axis.name} == 0", axis.name)
                emission.emit(f"write({index}{axis.name}, {stored}[row]);", emission.own)
        return
    if running.extreme:
        with emission.block(each_row):
            _pass_over(emission, running, index)
    else:
        _blocks(emission, running, each_row, index)


def _pass_over(emission: Emission, running: Running, index: str) -> None:
    """One row of a running extreme: a vector none of whose elements replaces it is passed over whole. Each comparison
    is made as if elements came one at a time, and in most data nearly all of them change nothing."""
    plan_, own = emission.plan, emission.own
    (axis,) = emission.body.reduction_indices
    n, lanes, whole, tail = extent(axis), plan_.lanes, emission.whole(), emission.tail()
    kind = _stored_type(emission, running)
    stored = "acc_at" if running.positional else "acc"
    emission.emit(f"{running.element} acc{{}};", own)
    if running.positional:
        emission.emit("i64 acc_at = 0;", own)
    parameters = "i64 k, auto lanes"
    emission.emit(f"const auto scan_vector = [&]({parameters}) __attribute__((always_inline)) {{", own)
    with emission.writer.indent():
        emission.emit(f"const {running.vector} value = element({index}k, lanes);", own)
        emission.emit("if (k == 0) acc = value[0];", own)
        emission.emit(f"{kind} prefix = splat<{kind}>({stored});", own)
        taken = f"is_later_extreme<{running.largest}>(splat<{running.vector}>(acc), value)"
        with emission.block(f"if (any({taken})) {{"):
            with emission.block(f"for (int lane = 0; lane < {lanes}; ++lane) {{"):
                replaces = f"is_later_extreme<{running.largest}, {running.element}>(acc, value[lane])"
                with emission.block(f"if ({replaces}) {{"):
                    emission.emit("acc = value[lane];", own)
                    if running.positional:
                        emission.emit("acc_at = k + lane;", own)
                emission.emit(f"prefix[lane] = {stored};", own)
        emission.emit(f"write({index}k, prefix, lanes);", own)
    emission.emit("};", own)
    if whole:
        emission.emit(f"for (i64 k = 0; k < {whole}; k += {lanes}) scan_vector(k, all_lanes);", own)
    if tail:
        emission.emit(f"scan_vector({n - tail}, first<{tail}>);", own)


def _blocks(emission: Emission, running: Running, each_row: str, index: str) -> None:
    """Blocks of whole vectors on the stack: computed, folded in place, stored. Rows of a block are a cache line longer
    than the block, so that they do not lie a power of two apart."""
    plan_ = emission.plan
    (axis,) = emission.body.reduction_indices
    n, lanes, count, tail = extent(axis), plan_.lanes, plan_.accumulators, emission.tail()
    block = min(BLOCK_ELEMENTS, -(-n // lanes) * lanes)
    emission.emit(f"{running.element} acc[{count}];", emission.own)
    emission.emit(f"{running.element} block[{count}][{block + lanes}];", emission.own)
    loop = f"for (i64 start = 0; start < {n}; start += {block}) {{"
    with emission.block(loop):
        emission.emit(f"const i64 length = start + {block} < {n} ? {block} : {n} - start;")
        with emission.block(each_row):
            _each_vector(emission, tail, lambda which: (
                f"store_vector(block[row] + k, element({index}start + k, {which}));"
            ))  # fmt: skip
        with emission.block("for (i64 k = 0; k < length; ++k) {"):
            emission.emit(f"#pragma GCC unroll {count}")
            with emission.block(each_row):
                _step(emission, running, "acc", "[row]", "block[row][k]", "start + k == 0", "start + k")
                emission.emit("block[row][k] = acc[row];", emission.own)
        with emission.block(each_row):
            _each_vector(emission, tail, lambda which: (
                f"write({index}start + k, load<{running.vector}>(block[row] + k), {which});"
            ))  # fmt: skip


def _each_vector(emission: Emission, tail: int, line: Callable[[str], str]) -> None:
    """The vectors of a block; the last one of the axis may be a partial one."""
    lanes = emission.plan.lanes
    emission.emit("i64 k = 0;")
    if emission.whole():
        emission.emit(f"for (; k + {lanes} <= length; k += {lanes}) {line('all_lanes')}", emission.own)
    if tail:
        emission.emit(f"if (k < length) {line(f'first<{tail}>')}", emission.own)
