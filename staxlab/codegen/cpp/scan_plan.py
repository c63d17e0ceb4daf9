"""Which loop of a scan is vectorised, which rows go together, how wide a strip is (Table 6.1, Section 8.1).

Nothing here reorders a merge: a scan is not split, neither among lanes nor among threads (see :mod:`.scans`). So every
choice may depend on the number of threads, and none changes a bit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from ...loops.body import Statement
from ...loops.expressions import Symbol
from ...loops.ops import compute_dtype
from ...options import Decision, DeviceSpec, Options
from ...schedule.records import ScheduleNode
from .plan import (
    LoopPlan,
    _access_cost,
    _choose_parallel,
    _choose_prefetch,
    _operation_cost,
    extent,
    lanes_for,
    plan,
)
from .types import element_bytes

#: Rows whose elements are folded in turn. An addition takes four cycles, and one can begin in every cycle.
ROWS_TOGETHER = 4

#: Bytes of running values in the widest strip. Two pages of float64 are one page of a row of float32, read and written
#: whole; half of that took 1.4 times as long on a matrix of 4096 x 4096, and twice as much gained nothing.
STRIP_BYTES = 8192

#: The narrowest strip, in vectors, that is made for the sake of more threads.
NARROWEST_STRIP = 4

EXTREMES = ("amax", "amin", "argmax", "argmin")

#: Estimated operations of one merge, of a vector or of an element. A logarithm of a sum of exponentials goes through
#: the lanes one at a time.
_MERGE_COSTS = {"sum": 1.0, "prod": 1.0, "amax": 2.0, "amin": 2.0, "argmax": 2.0, "argmin": 2.0, "logaddexp": 40.0}


def value_dtype(node: ScheduleNode) -> torch.dtype:
    """What running values are: the accumulator's dtype, a byte for bools."""
    assert node.accumulate_dtype is not None
    return torch.uint8 if node.accumulate_dtype == torch.bool else compute_dtype(node.accumulate_dtype)


def plan_scan(node: ScheduleNode, device: DeviceSpec, options: Options, bytes_read: int) -> LoopPlan:
    """The loops of a scan. ``form`` is "outer" or "inner" (which it is without vectors too); ``tile`` is the loop
    whose rows an inner form folds in turn, ``accumulators`` how many; of an outer form, the vectors of a strip."""
    body = node.body
    assert body is not None
    if not body.reduction_indices:  # an axis of one element
        return plan(of_one_element(node), device, options, bytes_read)
    (axis,) = body.reduction_indices
    vector, lanes, cost, vector_decision = _choose_loop(node, axis, device)
    kept = list(body.indices)
    decisions = [vector_decision, _order_decision(node)]
    form = "outer" if vector in kept else "inner"
    if form == "outer":
        outer, rows = [s for s in kept if s != vector], None
        vectors = -(-extent(vector) // lanes)
        width, decision = _choose_strip(node, outer, vectors, lanes, device)
        pieces = -(-vectors // width)
    else:
        rows = max((s for s in kept), key=lambda s: (min(extent(s), ROWS_TOGETHER), kept.index(s)), default=None)
        outer = [s for s in kept if s != rows]
        width, decision = _choose_rows(node, rows, vector)
        pieces = -(-extent(rows) // width) if rows is not None else 1
    decisions.append(decision)
    work = cost * node.numel * node.reduction_numel
    parallel, along, decision = _choose_parallel(node, outer, "outer", 1, pieces, work, device)
    decisions.append(decision)
    prefetch, decision = _choose_prefetch(node, vector, None, lanes, bytes_read)
    decisions.append(decision)
    return LoopPlan(
        form, tuple(outer), (axis,) if form == "outer" else (), vector, axis if form == "inner" else vector, lanes,
        parallel, along, width, strips=form == "outer", tile=rows, prefetch=prefetch, work=round(work),
        decisions=tuple(decisions),
    )  # fmt: skip


def of_one_element(node: ScheduleNode) -> ScheduleNode:
    """The only prefix of one element is that element, at position 0: a pointwise node."""
    body, dtype = node.body, node.store_dtype
    assert body is not None and dtype is not None
    last = max(s.id for s in body.all_statements()) + 1
    if node.reduction in ("argmax", "argmin"):
        stored = Statement(last, "constant", (0,), dtype, node.origins)
    elif compute_dtype(dtype) != node.accumulate_dtype:
        stored = Statement(last, "to_dtype", (body.result, dtype), compute_dtype(dtype), node.origins)
    else:
        return replace(node, kind="pointwise", reduction=None)
    body = replace(body, statements=(*body.statements, stored), result=last)
    return replace(node, kind="pointwise", reduction=None, body=body)


def _order_decision(node: ScheduleNode) -> Decision:
    reason = "a prefix is made from the one before it: the order is the axis's, so that the bits are those of eager"
    return Decision("scan-order", node.name, "sequential", reason, ("sequential",), (("axis", node.reduction_numel),))


def _choose_loop(node: ScheduleNode, axis: Symbol, device: DeviceSpec) -> tuple[Symbol | None, int, float, Decision]:
    """The vectorised loop, its lanes and the estimated vector operations per element. Along the axis a vector is
    computed and stored whole, but folded element by element."""
    body = node.body
    assert body is not None and node.reduction is not None
    statements = body.all_statements()
    accesses = [s.args[1] for s in statements if s.operation == "load"] + [node.writes[0].index]
    one = _MERGE_COSTS[node.reduction]
    scalar = sum(2.0 for _ in accesses) + sum(_operation_cost(s, 1) * 2.0 for s in statements) + 2.0 * one
    costs: dict[str, float] = {"none": scalar}
    found: dict[str, tuple[Symbol, int]] = {}
    for symbol in reversed(body.symbols):
        lanes = lanes_for(statements, symbol, device, (value_dtype(node), node.store_dtype))
        if lanes == 1:
            continue
        n = extent(symbol)
        per_vector = sum(_access_cost(a, symbol, lanes) for a in accesses)
        per_vector += sum(_operation_cost(s, lanes) for s in statements)
        singly = symbol == axis or node.reduction == "logaddexp"
        merges = one * lanes if singly else one
        costs[symbol.name] = (-(-n // lanes) * (per_vector + merges) + (2.0 if n % lanes else 0.0)) / n
        found[symbol.name] = (symbol, lanes)
    best = min(costs, key=lambda name: costs[name])
    inputs = tuple((f"cost of {name}", round(cost, 3)) for name, cost in costs.items())
    alternatives = tuple(None if name == "none" else name for name in costs)
    if best == "none":
        reason = "no loop is long enough, or regular enough, for vectors to pay"
        if device.instruction_set == "scalar":
            reason = "the instruction set has no vectors"
        return None, 1, scalar, Decision("vector-loop", node.name, None, reason, alternatives, inputs)
    symbol, lanes = found[best]
    how = "the axis: elements are computed in vectors and folded singly" if symbol == axis else "a loop beside the axis"
    reason = f"least estimated cost per element, {lanes} lanes at a time along {how}"
    return symbol, lanes, costs[best], Decision("vector-loop", node.name, best, reason, alternatives, inputs)


def _choose_strip(
    node: ScheduleNode, outer: Sequence[Symbol], vectors: int, lanes: int, device: DeviceSpec
) -> tuple[int, Decision]:
    """How many running vectors are carried down the axis together. Nothing is reordered by it, so it may depend on
    the number of threads."""
    size = element_bytes(value_dtype(node)) * lanes
    widest = max(STRIP_BYTES // size, 1)
    around = 1
    for symbol in outer:
        around *= extent(symbol)
    shared = max(-(-vectors * around // (2 * max(device.threads, 1))), NARROWEST_STRIP)
    width = min(vectors, widest, shared)
    inputs = (("vectors", vectors), ("vectors at most", widest), ("vectors for two strips per thread", shared))
    if width == vectors:
        reason = "all running vectors of a row fit the first-level cache"
    elif width == widest:
        reason = "rows are read and written about a page at a time, and running values stay in the first-level cache"
    else:
        reason = "narrower than the cache would allow, so that all threads have strips"
    return width, Decision("column-strips", node.name, width, reason, inputs=inputs)


def _choose_rows(node: ScheduleNode, rows: Symbol | None, vector: Symbol | None) -> tuple[int, Decision]:
    count = min(extent(rows), ROWS_TOGETHER) if rows is not None else 1
    reason = "a merge waits for the one before it in its row; other rows' begin meanwhile"
    if vector is not None and node.reduction in EXTREMES:
        count, reason = 1, "vectors that leave the running extreme as it is are passed over whole: few merges wait"
    elif count == 1:
        reason = "there is one row: every merge waits for the one before it"
    inputs = (("rows", extent(rows) if rows is not None else 1),)
    return count, Decision("rows-together", node.name, count, reason, tuple(range(1, ROWS_TOGETHER + 1)), inputs)
