"""Reductions in C++ (Sections 6.5 and 8.1): accumulators, lanes and pieces, merged in one fixed order.

A vectorised sum keeps ``accumulators * lanes`` running sums. At the end of a row the accumulators are merged as a
binary tree, then the lanes are, halves onto halves. A reduction to few outputs is first cut into pieces of fixed size
whose results are merged left to right. The order depends on nothing but the shape and the options, so results repeat
bit for bit with any number of threads, and :func:`accumulation` can say what it is.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import Any

import torch

from ...loops.expressions import Expr, Symbol
from ...loops.ops import compute_dtype
from ...loops.semantics import neutral_element
from ...schedule.records import ScheduleNode
from .loops import Emission, captures, for_loop, outer_loops, pragma
from .plan import LoopPlan, extent, position_dtype
from .types import ELEMENT, literal
from .values import CppOps, CppValue

MERGES = {"sum": "{a} + {b}", "prod": "{a} * {b}", "amax": "maximum({a}, {b})", "amin": "minimum({a}, {b})",
          "any": "{a} | {b}", "all": "{a} & {b}"}  # fmt: skip


@dataclass(frozen=True)
class Merge:
    """How values of one reduction are merged, as text; ``kind`` after bool reductions became any or all."""

    kind: str
    value_dtype: torch.dtype
    vector: bool
    value_type: str
    position_type: str = ""

    @property
    def positional(self) -> bool:
        return self.kind in ("argmax", "argmin")

    @property
    def accumulator_type(self) -> str:
        return f"Best<{self.value_type}, {self.position_type}>" if self.positional else self.value_type

    @property
    def largest(self) -> str:
        return "true" if self.kind == "argmax" else "false"

    def neutral(self) -> str:
        value = literal(neutral_element(self.kind, self.value_dtype), self.value_dtype)
        if self.vector:
            splat = "as_mask<mask>" if self.value_dtype == torch.bool else f"splat<{self.value_type}>"
            value = f"{splat}({value})"
        return f"{{{value}, {self.position_type}{{}}}}" if self.positional else value

    def pair(self, a: str, b: str) -> str:
        """Two accumulators into one."""
        return f"merge_best<{self.largest}>({a}, {b})" if self.positional else MERGES[self.kind].format(a=a, b=b)

    def tree(self, names: list[str]) -> str:
        """Accumulators merged as a balanced tree."""
        infix = "(" not in MERGES.get(self.kind, "(")
        while len(names) > 1:
            pairs = [self.pair(names[k], names[k + 1]) for k in range(0, len(names) - 1, 2)]
            if infix and len(names) > 2:
                pairs = [f"({pair})" for pair in pairs]
            names = pairs + names[len(pairs) * 2 :]
        return names[0]

    def lanes(self, text: str) -> str:
        """The lanes of one vector into an element."""
        if not self.vector:
            return text
        if self.positional:
            return f"best_lane<{self.largest}>({text})"
        return f"{'all_lanes_true' if self.kind == 'all' else f'{self.kind}_lanes'}({text})"


def merge_of(node: ScheduleNode, emission: Emission, vector: bool) -> Merge:
    """The merge of a node, for vector or element accumulators. Extremes of bools are "any" and "all"."""
    assert node.reduction is not None and node.accumulate_dtype is not None
    dtype = compute_dtype(node.accumulate_dtype)
    kind = node.reduction
    if dtype == torch.bool:
        kind = {"amax": "any", "amin": "all", "sum": "any", "prod": "all"}.get(kind, kind)
        if kind in ("argmax", "argmin"):
            dtype = torch.int32
    name = emission.scope.vector_type(dtype) if vector else ELEMENT[dtype]
    position = ""
    if kind in ("argmax", "argmin"):
        positions = position_dtype(node)
        position = emission.scope.vector_type(positions) if vector else ELEMENT[positions]
    return Merge(kind, dtype, vector, name, position)


def position(node: ScheduleNode) -> Expr:
    """The row-major number of a point of the reduced space."""
    assert node.body is not None
    total = Expr.of(0)
    for symbol in node.body.reduction_indices:
        total = total * extent(symbol) + Expr.of(symbol)
    return total


def merged_value(emission: Emission, merge: Merge, handler: CppOps, result: CppValue) -> str:
    """The merged value of one element or vector: with its position, for argmax and argmin."""
    if result.dtype == torch.bool and merge.positional:
        result = handler.to_dtype(result, torch.int32)
    text = handler.as_vector(result) if merge.vector else result.text
    return text


def update(merge: Merge, accumulator: str, call: str) -> str:
    if merge.positional:
        return f"{accumulator} = update_best<{merge.largest}>({accumulator}, {call});"
    return f"{accumulator} = {MERGES[merge.kind].format(a=accumulator, b=call)};"


def write_empty_reduction(emission: Emission) -> None:
    """Nothing to reduce: every output is the neutral element."""
    node = emission.node
    assert node.reduction is not None and node.accumulate_dtype is not None
    dtype = compute_dtype(node.accumulate_dtype)
    value = CppValue(literal(neutral_element(node.reduction, dtype), dtype), dtype, False, frozenset(), True)
    handler = CppOps(emission.scope)
    stored = compute_dtype(node.store_dtype)
    if dtype != stored:
        value = handler.to_dtype(value, node.store_dtype)
    write = node.writes[0]
    handler.store(write.buffer, write.index, value)
    with outer_loops(emission):
        emission.flush(len(emission.scope.writers) - 1)


def store_result(emission: Emission, handler: CppOps, merge: Merge, text: str) -> None:
    """Convert the merged value to the stored dtype and write it; lines go to the innermost writer."""
    node = emission.node
    write = node.writes[0]
    if merge.positional and merge.vector:
        handler.store_positions(write.buffer, write.index, f"{text}.index")
        return
    if merge.positional:
        value = CppValue(f"(i64){text}.index", torch.int64, False, frozenset())
    else:
        value = CppValue(text, merge.value_dtype, merge.vector, frozenset())
        if compute_dtype(node.store_dtype) != merge.value_dtype:
            value = handler.to_dtype(value, node.store_dtype)
    handler.store(write.buffer, write.index, value)


def write_inner(emission: Emission) -> None:
    """The reduced loop is the vectorised one (or nothing is): per output, accumulators along it."""
    plan, node, scope = emission.plan, emission.node, emission.scope
    merge = merge_of(node, emission, plan.vector is not None)
    tail = emission.tail()
    handler, result = emission.replay("lanes" if tail else None)
    value = merged_value(emission, merge, handler.tagged(emission.origins), result)
    last = len(scope.writers) - 1
    if merge.positional:
        where = handler.index_value(position(node), position_dtype(node))
        value = f"{merge.accumulator_type}{{{value}, {where.text}}}"
    chunked = plan.chunks > 1
    inner_level = len(plan.outer)
    with contextlib.ExitStack() as stack:
        if chunked:
            outputs = node.numel
            size = f"[{outputs * plan.chunks}]"
            partial = f"{ELEMENT[merge.value_dtype]}" if not merge.positional else (
                f"Best<{ELEMENT[merge.value_dtype]}, {ELEMENT[position_dtype(node)]}>"
            )  # fmt: skip
            emission.emit(f"{partial} partial{size};  // one result per piece, merged in order below", emission.own)
        emission.flush(0)
        if plan.is_parallel:
            pragma(emission, plan.parallel + (1 if chunked else 0))
        for position_, symbol in enumerate(plan.outer):
            stack.enter_context(emission.block(for_loop(symbol)))
            if not chunked:
                emission.flush(position_ + 1)
        if chunked:
            stack.enter_context(emission.block(f"for (i64 piece = 0; piece < {plan.chunks}; ++piece) {{"))
            for position_ in range(len(plan.outer)):
                emission.flush(position_ + 1)
        names = [f"acc{k}" for k in range(plan.accumulators)] if plan.accumulators > 1 else ["acc"]
        for name in names:
            emission.emit(f"{merge.accumulator_type} {name} = {merge.neutral()};", emission.own)
        _reduce(emission, merge, names, value, last, inner_level)
        total = merge.lanes(merge.tree(names))
        if chunked:
            emission.emit(f"partial[{_partial_index(plan)}] = {total};", emission.own)
        else:
            _finish(emission, merge, total)
    if chunked:
        _merge_chunks(emission, merge)


def _partial_index(plan: LoopPlan) -> str:
    total = Expr.of(0)
    for symbol in plan.outer:
        total = total * extent(symbol) + Expr.of(symbol)
    total = total * plan.chunks + Expr.of(Symbol("piece", 0, plan.chunks - 1))
    return total.c_style()


def _finish(emission: Emission, merge: Merge, total: str) -> None:
    """Name the merged element and store it."""
    emission.scope.writers[-1] = type(emission.writer)()
    element = merge_of(emission.node, emission, False)
    emission.emit(f"const {element.accumulator_type} result = {total};  // {emission.node.reduction}", emission.own)
    saved, emission.scope.vector = emission.scope.vector, None
    handler = CppOps(emission.scope)
    handler.origins = emission.own
    store_result(emission, handler, element, "result")
    emission.flush(len(emission.scope.writers) - 1)
    emission.scope.vector = saved


def _merge_chunks(emission: Emission, merge: Merge) -> None:
    plan = emission.plan
    element = merge_of(emission.node, emission, False)
    with contextlib.ExitStack() as stack:
        for symbol in plan.outer:
            stack.enter_context(emission.block(for_loop(symbol)))
        emission.emit(f"{element.accumulator_type} acc = {element.neutral()};", emission.own)
        with emission.block(f"for (i64 piece = 0; piece < {plan.chunks}; ++piece) {{"):
            emission.emit(f"acc = {element.pair('acc', f'partial[{_partial_index(plan)}]')};", emission.own)
        _finish(emission, element, "acc")


def _reduce(emission: Emission, merge: Merge, names: list[str], value: str, last: int, level: int) -> None:
    """The reduced loops of one output (or of one piece): outer reduced loops, then the innermost one."""
    plan, innermost = emission.plan, emission.plan.innermost
    chunked = plan.chunks > 1
    with contextlib.ExitStack() as stack:
        for symbol in plan.inner:
            level += 1
            if chunked and symbol == plan.inner[0]:
                name, stop = symbol.name, extent(symbol)
                bound = f"(piece + 1)*{plan.chunk} < {stop} ? (piece + 1)*{plan.chunk} : {stop}"
                head = f"for (i64 {name} = piece*{plan.chunk}, end = {bound}; {name} < end; ++{name}) {{"
                stack.enter_context(emission.block(head))
            else:
                stack.enter_context(emission.block(for_loop(symbol)))
            emission.flush(level)
        if innermost is None:
            emission.flush(last)
            emission.emit(update(merge, names[0], value), emission.own)
            return
        _reduce_innermost(emission, merge, names, value, last, cut=chunked and not plan.inner)


def _reduce_innermost(emission: Emission, merge: Merge, names: list[str], value: str, last: int, cut: bool) -> None:
    plan, innermost = emission.plan, emission.plan.innermost
    assert innermost is not None
    name, lanes, width = innermost.name, plan.lanes, plan.lanes * len(names)
    tail, whole = emission.tail(), emission.whole()
    main = whole // width * width
    rest = (whole - main) // lanes
    uses = (len(names) if main else 0) + rest + (1 if tail else 0)
    single = uses == 1 and not tail
    arguments = "{at}" if not tail else "{at}, {lanes}"

    def call(at: str, which: str = "all_lanes") -> str:
        return f"element({arguments.format(at=at, lanes=which)})"

    if not single:
        parameters = f"i64 {name}" + (", auto lanes" if tail else "")
        head = f"const auto element = {captures(emission)}({parameters}) __attribute__((always_inline))"
        emission.emit(f"{head} -> {merge.accumulator_type} {{")
        with emission.writer.indent():
            emission.flush(last)
            emission.emit(f"return {value};")
        emission.emit("};")
    if main:
        start, stop = "0", str(main)
        if cut:
            start = f"piece*{plan.chunk}"
            stop = f"piece < {plan.chunks - 1} ? (piece + 1)*{plan.chunk} : {main}"
            emission.emit(f"const i64 end = {stop};")
            stop = "end"
        with emission.block(f"for (i64 {name} = {start}; {name} < {stop}; {name} += {width}) {{"):
            if single:
                emission.flush(last)
                emission.emit(update(merge, names[0], value), emission.own)
            for k, accumulator in enumerate(names if not single else []):
                at = name if k == 0 else f"{name} + {k * lanes}"
                emission.emit(update(merge, accumulator, call(at)), emission.own)
    elif single:
        with emission.block("{"):
            emission.emit(f"const i64 {name} = 0;")
            emission.flush(last)
            emission.emit(update(merge, names[0], value), emission.own)
        return
    if not rest and not tail:
        return
    with contextlib.ExitStack() as stack:
        if cut:
            stack.enter_context(emission.block(f"if (piece == {plan.chunks - 1}) {{"))
        for k in range(rest):
            emission.emit(update(merge, names[k % len(names)], call(str(main + k * lanes))), emission.own)
        if tail:
            accumulator = names[rest % len(names)]
            assignment = update(merge, accumulator, call(str(whole), f"first<{tail}>"))
            merged = assignment.removeprefix(f"{accumulator} = ").removesuffix(";")
            emission.emit(f"{accumulator} = keep(first<{tail}>, {_typed(merge, merged)}, {accumulator});", emission.own)


def _typed(merge: Merge, text: str) -> str:
    return text if merge.positional else f"({merge.accumulator_type})({text})"


def accumulation(node: ScheduleNode, plan: LoopPlan) -> dict[str, Any]:
    """In what order a reduction adds, for error bounds: ``chunks`` pieces, each spread over ``accumulators * lanes``
    running values that are merged pairwise, the pieces merged in order. ``n`` is the number of values per output."""
    inner = plan.form == "inner"
    return {
        "kind": node.reduction,
        "n": node.reduction_numel,
        "lanes": plan.lanes if inner else 1,
        "accumulators": plan.accumulators if inner else 1,
        "chunks": plan.chunks,
        "lane_merge": "pairwise",
        "chunk_merge": "sequential",
        "sequential": longest_chain(node, plan),
    }


def longest_chain(node: ScheduleNode, plan: LoopPlan) -> int:
    """Values that enter the busiest running value one after the other."""
    if plan.form == "outer" and plan.chunks > 1:
        return node.reduction_numel // extent(plan.inner[0]) * plan.chunk
    if plan.form != "inner" or plan.innermost is None:
        return node.reduction_numel
    n = extent(plan.innermost)
    rows = node.reduction_numel // n
    ways = plan.lanes * plan.accumulators
    if plan.chunks > 1 and plan.inner:
        first = extent(plan.inner[0])
        rows = rows // first * plan.chunk
    elif plan.chunks > 1:
        n = plan.chunk
    return rows * -(-n // ways)
