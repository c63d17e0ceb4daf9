"""Writing at subscripts read from data: the scatters (Table 6.1).

Several iterations may combine their elements with one and the same element of the result, in the order of the loops:
that order is what is kept here, so there are no atomic operations, and the bits do not depend on the number of threads.

* Threads share a *disjoint* loop (:func:`staxlab.polyhedral.orders.disjoint_loops`): one whose iterations provably
  write to different places. Each goes through all the other loops in order, for its part of that one.
* Where neighbouring iterations of a disjoint loop write neighbouring elements (adding rows to rows), that loop is the
  innermost and vectors of the result are loaded, combined and stored. Otherwise elements are combined one after the
  other; if making them takes a costly function, whole vectors are made, and then combined lane by lane in their order,
  which is right even if two lanes hit the same element.

So ``scatter_add`` along dimension 0 is shared among threads by columns, along dimension 1 by rows; adding whole rows at
subscripts is shared by columns; and a histogram over one dimension is sequential. A subscript out of range is reported
and nothing is written there.
"""

from __future__ import annotations

import contextlib
from dataclasses import replace

import torch

from ...loops.body import LoopBody
from ...loops.disjoint import dependences
from ...loops.expressions import Expr, Symbol
from ...loops.ops import OPERATIONS
from ...options import Decision, DeviceSpec, Options
from ...polyhedral.orders import disjoint_loops
from ...provenance import CodeWriter
from ...schedule.records import ScheduleNode
from .loops import Emission, element_function, for_loop, levels, pragma
from .operations import table_for
from .plan import GRAIN, LoopPlan, access_cost, extent, lanes_for, operation_cost
from .types import element_bytes
from .values import CppOps

#: What neighbouring threads may not share, in bytes: writing to one cache line they would wait for each other.
LINE = 64


def plan_scatter(node: ScheduleNode, device: DeviceSpec, options: Options, bytes_read: int) -> LoopPlan:
    """Decide the loops of a scatter that has at least one point."""
    body = node.body
    assert body is not None and body.target is not None and node.store_dtype is not None
    disjoint = list(disjoint_loops(node))
    innermost, rows, vector_decision = _choose_vector(node, body, disjoint, device)
    lanes = vector_decision.choice or 1
    outer = tuple(loop for loop in body.indices if loop != innermost)
    work = _work(node, body, innermost, rows, lanes)
    split, chunk, decision = _choose_split(node, body, disjoint, innermost, lanes, work, device)
    chunks = -(-extent(split) // chunk) if split is not None else 1
    return LoopPlan(
        "scatter", outer, (), innermost if lanes > 1 else None, innermost, lanes, 0, False,
        chunks=chunks, chunk=chunk, split=split, work=round(work), decisions=(vector_decision, decision),
    )  # fmt: skip


def _choose_vector(
    node: ScheduleNode, body: LoopBody, disjoint: list[Symbol], device: DeviceSpec
) -> tuple[Symbol | None, bool, Decision]:
    """The innermost loop, whether vectors of the result are combined whole along it, and the lanes."""
    if not body.indices:
        return None, False, Decision("scatter-lanes", node.name, 1, "a single element is written")
    along = next((loop for loop in reversed(disjoint) if _is_consecutive(body, loop)), None)
    innermost = body.indices[-1] if along is None else along
    read = dependences(body)
    statements = body.all_statements()
    varying = [s for s in statements if s.operation != "indirect" or innermost in read[s.args[3]]]
    lanes = lanes_for(varying, innermost, device, (node.store_dtype,))
    costly = dict.fromkeys(
        s.operation
        for s in statements
        if s.operation in OPERATIONS and OPERATIONS[s.operation].transcendental and s.dtype.is_floating_point
    )
    inputs = (
        ("extent", extent(innermost)), ("lanes that fit a register", lanes), ("costly functions", ", ".join(costly)),
    )  # fmt: skip

    def alone(why: str) -> tuple[Symbol, bool, Decision]:
        return innermost, False, Decision("scatter-lanes", node.name, 1, f"element by element: {why}", inputs=inputs)

    if lanes == 1:
        return alone("the instruction set has no vectors")
    if along is not None:
        reason = f"{along.name} writes neighbouring elements, none of them twice: vectors are loaded, combined, stored"
        return along, True, Decision("scatter-lanes", node.name, lanes, reason, (1, lanes), inputs)
    if extent(innermost) < lanes:
        return alone(f"{innermost.name} is shorter than a vector")
    if not costly:
        return alone("taking vectors apart costs more than making their elements one by one")
    reason = f"vectors of elements and subscripts along {innermost.name}, combined lane by lane in their order"
    return innermost, False, Decision("scatter-lanes", node.name, lanes, reason, (1, lanes), inputs)


def _is_consecutive(body: LoopBody, loop: Symbol) -> bool:
    """Whether the subscript advances by one along ``loop`` and what it reads from data stays the same."""
    assert body.target is not None
    read = dependences(body)
    return body.target.coefficient(loop) == Expr.of(1) and not any(
        loop in read[symbol] for symbol in body.target.symbols if symbol in read
    )


def _work(node: ScheduleNode, body: LoopBody, innermost: Symbol | None, rows: bool, lanes: int) -> float:
    """Estimated vector operations of the whole node; an element combined by itself counts as much as a vector."""
    if innermost is None:
        return 1.0
    statements = body.all_statements()
    loads = sum(access_cost(s.args[1], innermost, lanes) for s in statements if s.operation == "load")
    per_vector = loads + sum(operation_cost(s, lanes) for s in statements) + (2.0 if rows else 3.0 * lanes)
    return per_vector * node.numel / extent(innermost) * -(-extent(innermost) // lanes)


def _choose_split(
    node: ScheduleNode,
    body: LoopBody,
    disjoint: list[Symbol],
    innermost: Symbol | None,
    lanes: int,
    work: float,
    device: DeviceSpec,
) -> tuple[Symbol | None, int, Decision]:
    """The loop that threads share, and how many of its iterations each takes: the outermost disjoint loop that is long
    enough for all threads, else the one that serves most of them."""
    threads = max(device.threads, 1)
    inputs = (
        ("threads", threads), ("estimated vector operations", round(work)), ("fewest per thread", round(GRAIN)),
        ("disjoint loops", ", ".join(loop.name for loop in disjoint) or "none"),
    )  # fmt: skip

    def alone(reason: str) -> tuple[None, int, Decision]:
        return None, 0, Decision("parallel-depth", node.name, 0, reason, inputs=inputs)

    if not disjoint:
        return alone("no loop is known to write every element once, and the order of equal subscripts must be kept")
    if work < 2 * GRAIN:
        return alone("the whole kernel is shorter than starting threads would take")
    assert node.store_dtype is not None
    best: tuple[int, Symbol, int] | None = None
    for loop in disjoint:
        step = max(lanes, LINE // element_bytes(node.store_dtype)) if loop == innermost else 1
        chunk = -(-extent(loop) // threads)
        chunk = -(-chunk // step) * step
        pieces = -(-extent(loop) // chunk)
        if best is None or pieces > best[0]:
            best = (pieces, loop, chunk)
    assert best is not None
    pieces, loop, chunk = best
    if pieces == 1:
        return alone("the disjoint loops are too short to share")
    again = "" if loop == body.indices[0] else "; each goes through the loops around it again"
    reason = f"iterations of {loop.name} write to different elements: {pieces} threads take {chunk} each{again}"
    return loop, chunk, Decision("parallel-depth", node.name, 1, reason, (0, 1), inputs)


def merge_function(kind: str, dtype: torch.dtype) -> str:
    """A C++ function of what stands in memory and what is merged with it; "" if that replaces it. Of equal extremes the
    first stays, as in eager execution, and so does the first NaN."""
    if kind == "store":
        return ""
    if dtype.is_floating_point and kind in ("amax", "amin"):
        text = f"select((b {'>' if kind == 'amax' else '<'} a) | (b != b), b, a)"
    else:
        row = table_for(dtype)[{"sum": "add", "prod": "mul", "amax": "maximum", "amin": "minimum"}[kind]]
        assert isinstance(row, str)
        text = row.format("a", "b")
    return f"[](auto a, auto b) {{ return {text}; }}"


def write_scatter(emission: Emission) -> None:
    """The loops in the order of the semantics, but for the innermost; a piece of the shared loop for each thread."""
    plan, scope, innermost = emission.plan, emission.scope, emission.plan.innermost
    tail, whole = emission.tail(), emission.whole()
    several = tail > 0 and whole > 0
    handler = emission.handler(f"first<{tail}>" if tail and not whole else "lanes" if several else None)
    target, value = emission.body.replay_target(handler)
    merge = merge_function(str(emission.node.reduction), value.dtype)
    handler.tagged(emission.own).combine(emission.node.buffers[0], target, value, merge)
    last = len(scope.writers) - 1
    emission.flush(0)
    with contextlib.ExitStack() as stack:
        if plan.split is not None:
            pragma(emission, 1)
            stack.enter_context(emission.block(f"for (i64 piece = 0; piece < {plan.chunks}; ++piece) {{"))
            stop = f"begin + {plan.chunk} < {extent(plan.split)} ? begin + {plan.chunk} : {extent(plan.split)}"
            emission.emit(f"const i64 begin = piece*{plan.chunk}, end = {stop};")
        for position, loop in enumerate(plan.outer):
            stack.enter_context(emission.block(_head(plan, loop)))
            emission.flush(position + 1)
        if innermost is None:
            emission.flush(last)
        elif not tail:
            with emission.block(_head(plan, innermost, plan.lanes)):
                emission.flush(last)
        elif not several:
            with emission.block("{"):
                emission.emit(f"const i64 {innermost.name} = 0;")
                emission.flush(last)
        else:
            element_function(emission, last, f"i64 {innermost.name}, ", "void")
            stop = str(whole)
            if plan.split == innermost:
                emission.emit(f"const i64 whole = end < {whole} ? end : {whole};  // the last vector is a partial one")
                stop = "whole"
            with emission.block(_head(plan, innermost, plan.lanes, stop)):
                emission.emit(f"element({innermost.name}, all_lanes);")
            last_one = f"element({whole}, first<{tail}>);"
            emission.emit(last_one if plan.split != innermost else f"if (whole < end) {last_one}")


def write_checks(emission: Emission, part: LoopBody) -> None:
    """All that the checks of a scatter need (:func:`staxlab.schedule.checks.checking_part`), before it writes: where
    the result stands in an input, a call that fails must leave that as it was."""
    scope = replace(
        emission.scope, vector=None, lanes=1, level=levels(part.indices, 0), preloaded={},
        writers=[CodeWriter() for _ in range(len(part.indices) + 2)],
    )  # fmt: skip
    part.replay_statements(CppOps(scope))
    inner = replace(emission, scope=scope)
    inner.emit("// The result stands in an input, which must stay as it is if a subscript is out of range.")
    with contextlib.ExitStack() as stack:
        stack.enter_context(inner.block("{"))
        inner.flush(0)
        for position, loop in enumerate(part.indices):
            stack.enter_context(inner.block(for_loop(loop)))
            inner.flush(position + 1)
        inner.flush(len(scope.writers) - 1)
    inner.emit("if (failure) return failure;")


def _head(plan: LoopPlan, loop: Symbol, step: int = 1, stop: str = "") -> str:
    if plan.split != loop:
        return for_loop(loop, step, int(stop) if stop else None)
    advance = f"++{loop.name}" if step == 1 else f"{loop.name} += {step}"
    return f"for (i64 {loop.name} = begin; {loop.name} < {stop or 'end'}; {advance}) {{"
