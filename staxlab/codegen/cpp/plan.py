"""Which loop is vectorised, which are parallel, how a reduction is accumulated (Sections 8.1 to 8.3, Algorithm 8.1).

Nothing is written here: :func:`plan` looks at a schedule node and returns a :class:`LoopPlan` of plain decisions, each
with the alternatives it had and the quantities it looked at. :mod:`.loops` then writes what the plan says.

Every choice that changes the order of floating-point additions depends on the shape, the options and the vector width
only, never on the number of threads: a kernel gives the same bits on one core and on sixty-four.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ...loops.body import LoopBody, Statement
from ...loops.expressions import Expr, Symbol
from ...loops.ops import OPERATIONS
from ...options import Decision, DeviceSpec, Options
from ...polyhedral.orders import loop_order
from ...schedule.records import ScheduleNode
from .types import INTEGERS, element_bytes

#: Algorithm 8.1's grain: below this much estimated work (in vector-operation units) per thread, a parallel region
#: costs more than it saves. Starting and joining threads takes a few microseconds.
GRAIN = 4096.0

#: A reduction to few outputs is cut into pieces of at least this many elements, at most this many pieces.
CHUNK_ELEMENTS = 1 << 15
MOST_CHUNKS = 64

#: Kernels that read at least this many bytes ask for cache lines ahead of time, this many bytes ahead.
PREFETCH_FROM = 4 << 20
PREFETCH_BYTES = 4096

#: Kernels over tiles ask for the lines of the tile so many tiles ahead: rows a whole matrix apart are no stream that
#: the processor would follow by itself. (Measured on x + w.t(), 4096 x 4096: 14.9 ms without, 10.6 with.)
TILES_AHEAD = 2

#: A reduction over outer loops of a matrix of this size keeps its running results in cache, a strip of one page wide;
#: pieces of rows may leave so many partial results.
STRIPS_FROM = 1 << 20
STRIP_BYTES = 4096
MOST_PARTIALS = 1 << 16

#: Elements along each side of a block of transposing tiles.
BLOCK = 64

#: Vectors in a tile: turning over more takes more registers than there are, and more code than it is worth.
WIDEST_TILE = 16

#: Vector registers a block of accumulators may take in a reduction over outer loops.
DEFAULT_ACCUMULATORS = 4


@dataclass(frozen=True)
class LoopPlan:
    """The shape of a kernel's loops.

    ``outer`` are the loops around the innermost body, outermost first, ``parallel`` of which are one parallel loop;
    ``inner`` are reduction loops inside them except a vectorised one. ``vector`` is the vectorised index (None: one
    element at a time, ``lanes`` 1). ``form`` is "pointwise", "inner" (the vectorised loop is reduced; also any
    reduction without vectors) or "outer" (the vectorised loop is kept, the reduced loops run inside it).
    ``chunks > 1`` cuts the first reduced loop into pieces of ``chunk`` iterations with partial results of their own.
    ``strips`` keeps the running results of an "outer" reduction in the first-level cache instead of registers.
    ``split`` is the loop of a scatter whose pieces are shared among threads (form "scatter").
    ``tile`` is the other index of a two-dimensional tile (it is not among ``outer`` then).
    ``prefetch`` is how many bytes ahead of each consecutive read its cache line is asked for (0: not at all).
    ``work`` estimates the whole node in vector operations.
    """

    form: str
    outer: tuple[Symbol, ...]
    inner: tuple[Symbol, ...]
    vector: Symbol | None
    innermost: Symbol | None
    lanes: int
    parallel: int
    parallel_innermost: bool
    accumulators: int = 1
    chunks: int = 1
    chunk: int = 0
    strips: bool = False
    tile: Symbol | None = None
    split: Symbol | None = None
    prefetch: int = 0
    work: int = 0
    decisions: tuple[Decision, ...] = ()

    @property
    def is_parallel(self) -> bool:
        """Whether any loop is shared among threads."""
        return any(d.topic == "parallel-depth" and d.choice for d in self.decisions)


def extent(symbol: Symbol) -> int:
    return int(symbol.upper) + 1


def lanes_for(
    statements: list[Statement], vector: Symbol, device: DeviceSpec, extra: tuple[torch.dtype, ...] = ()
) -> int:
    """Lanes such that no vector of the kernel is wider than a register: register bytes over the widest element."""
    if device.instruction_set == "scalar":
        return 1
    widest = max((element_bytes(d) for d in extra), default=1)
    varying: set[int] = set()
    for statement in statements:
        used = {a for a in statement.args if isinstance(a, int) and not isinstance(a, bool)}
        if statement.operation in ("constant",):
            used = set()
        depends = bool(used & varying) or any(
            isinstance(a, Expr) and (vector in a.symbols or any(s.name.startswith("indirect") for s in a.symbols))
            for a in statement.args
        )
        if depends or statement.operation in ("masked", "indirect"):
            varying.add(statement.id)
            widest = max(widest, element_bytes(statement.dtype))
    return max(device.vector_bytes // widest, 1)


def _access_cost(index: Expr, symbol: Symbol, lanes: int) -> float:
    """Estimated cost of one vector read or write along ``symbol``, in vector operations."""
    coefficient = index.coefficient(symbol)
    if any(s.name.startswith("indirect") for s in index.symbols):
        return 1.5 * lanes
    if coefficient is None:
        return 3.0 * lanes
    if not coefficient.is_constant:
        return 1.5 * lanes
    step = int(coefficient)
    return {0: 0.25, 1: 1.0, -1: 2.0, 2: 3.0}.get(step, 1.25 * lanes)


def _turned_cost(lanes: int) -> float:
    """A read as part of a tile: a load, a store and a load on the stack, and half an exchange per round."""
    return 2.0 + math.log2(lanes) / 2


def _operation_cost(statement: Statement, lanes: int) -> float:
    rule = OPERATIONS.get(statement.operation)
    if rule is None:
        return 1.0 if statement.operation in ("to_dtype", "masked", "index_value", "indirect") else 0.0
    if rule.transcendental:
        return float(rule.cost) if statement.dtype.is_floating_point else 4.0 * lanes
    if statement.dtype in INTEGERS and statement.operation in ("floordiv", "truncdiv", "remainder", "fmod"):
        return 4.0 * lanes
    return 1.0


def plan(node: ScheduleNode, device: DeviceSpec, options: Options, bytes_read: int = 0) -> LoopPlan:
    """Decide the loops of a computed node that has at least one point and one element to reduce. ``bytes_read`` is the
    traffic the schedule predicts for it."""
    body = node.body
    assert body is not None
    statements = body.all_statements()
    accesses = [s.args[1] for s in statements if s.operation == "load"] + [node.writes[0].index]
    # argmax and argmin keep an index beside each value.
    extra = (_position_dtype(node),) if node.reduction in ("argmax", "argmin") else ()
    if node.kind == "reduction" and node.accumulate_dtype is not None:
        extra += (node.accumulate_dtype,)
    vector, lanes, vector_decision = _choose_vector(node, body, statements, accesses, device, extra)
    reduced = list(body.reduction_indices)
    kept = list(body.indices)
    if vector is None or lanes == 1:
        lanes, vector = 1, None
        innermost = reduced[-1] if reduced else kept[-1] if kept else None
    else:
        innermost = vector
    form = "pointwise" if not reduced else "outer" if innermost in kept else "inner"
    tile, tile_decision = _choose_tile(node, body, vector, lanes) if form == "pointwise" else (None, None)
    if tile is not None:
        lanes = min(lanes, WIDEST_TILE)
    outer = [s for s in kept if s != innermost and s != tile]
    inner = [s for s in reduced if s != innermost]
    work = _work(node, statements, accesses, innermost, lanes, tile)
    decisions = [vector_decision] + ([tile_decision] if tile_decision else [])
    accumulators, chunks, chunk, strips = 1, 1, 0, False
    if form == "inner":
        accumulators, decision = _choose_accumulators(node, innermost, lanes, options)
        decisions.append(decision)
        chunks, chunk, decision = _choose_chunks(node, inner, innermost, lanes, accumulators)
        decisions.append(decision)
    elif form == "outer":
        accumulators, strips, decision = _choose_strips(node, innermost, lanes, options, bytes_read)
        decisions.append(decision)
        if strips:
            chunks, chunk, decision = _choose_row_pieces(node, inner[0], innermost, lanes)
            decisions.append(decision)
    if tile is not None:
        chunks = -(-extent(tile) // BLOCK)
    pieces = -(-extent(innermost) // (lanes * accumulators)) if innermost else 1
    if form == "outer" and not strips:  # what is left over of the columns follows the shared loop
        pieces = extent(innermost) // (lanes * accumulators)
    parallel, along, decision = _choose_parallel(node, outer, form, chunks, pieces, work, device)
    decisions.append(decision)
    prefetch, decision = _choose_prefetch(node, vector, tile, lanes, bytes_read)
    decisions.append(decision)
    order = (*outer, tile, *inner, innermost)
    decisions.append(loop_order(node, [symbol for symbol in order if symbol is not None]))
    return LoopPlan(
        form, tuple(outer), tuple(inner), vector, innermost, lanes, parallel, along, accumulators, chunks, chunk,
        strips, tile, None, prefetch, round(work), tuple(decisions),
    )  # fmt: skip


def _choose_prefetch(
    node: ScheduleNode, vector: Symbol | None, tile: Symbol | None, lanes: int, bytes_read: int
) -> tuple[int, Decision]:
    """The processor fetches ahead by itself, but stops at page borders and has few requests under way per stream;
    asking a page ahead raises the read bandwidth of long streams. In cache it would only cost instructions."""
    inputs = (("bytes read", bytes_read), ("threshold", PREFETCH_FROM))
    ahead = PREFETCH_BYTES if tile is None else TILES_AHEAD * lanes * element_bytes(node.store_dtype or torch.float32)
    candidates = (0, ahead)
    if vector is None:
        reason = "elements are read one at a time, which memory keeps up with"
        return 0, Decision("prefetch", node.name, 0, reason, candidates, inputs)
    if bytes_read < PREFETCH_FROM:
        return 0, Decision("prefetch", node.name, 0, "what is read fits the cache", candidates, inputs)
    reason = "long streams from memory: cache lines are asked for one page ahead"
    if tile is not None:
        reason = f"the rows of a tile are no stream: they are asked for {TILES_AHEAD} tiles ahead"
    return ahead, Decision("prefetch", node.name, ahead, reason, candidates, inputs)


def _position_dtype(node: ScheduleNode) -> torch.dtype:
    """The dtype argmax and argmin count positions in: as wide as the compared value where that suffices."""
    assert node.accumulate_dtype is not None
    return torch.int32 if node.reduction_numel < 2**31 and element_bytes(node.accumulate_dtype) <= 4 else torch.int64


position_dtype, access_cost, operation_cost = _position_dtype, _access_cost, _operation_cost


def _choose_vector(
    node: ScheduleNode,
    body: LoopBody,
    statements: list[Statement],
    accesses: list[Expr],
    device: DeviceSpec,
    extra: tuple[torch.dtype, ...],
) -> tuple[Symbol | None, int, Decision]:
    """Proposition 8.1 allows any loop: pointwise iterations are independent and every merge is associative. The
    cheapest by a simple model wins: reads and operations per vector, the lanes wasted at the end of a row, and for a
    reduced loop the merging of lanes per row."""
    if device.instruction_set == "scalar":
        return None, 1, Decision("vector-loop", node.name, None, "the instruction set has no vectors")
    conditional = {access.index for access in body.reads() if access.conditional}

    def access_cost(index: Expr, symbol: Symbol, lanes: int) -> float:
        """As :func:`_access_cost`; a read that a tile can turn over is nearly as cheap as a consecutive one."""
        if node.kind == "pointwise" and index is not accesses[-1] and index not in conditional:
            side = min(lanes, WIDEST_TILE)
            others = (s for s in body.indices if s != symbol and min(extent(s), extent(symbol)) >= side)
            if any(is_transposed(index, other, symbol) for other in others):
                return _turned_cost(lanes)
        return _access_cost(index, symbol, lanes)

    scalar = sum(2.0 for _ in accesses) + sum(_operation_cost(s, 1) * 2.0 for s in statements)
    costs: dict[str, float] = {"none": scalar}
    found: dict[str, tuple[Symbol, int]] = {}
    for symbol in reversed(body.symbols):
        # Positions are stored lane by lane, once per output: their width does not matter here.
        vectors_stored = symbol in body.indices and node.reduction not in ("argmax", "argmin")
        stored = (node.store_dtype,) if vectors_stored and node.store_dtype is not None else ()
        lanes = lanes_for(statements, symbol, device, extra + stored)
        if lanes == 1:
            continue
        n = extent(symbol)
        vectors = -(-n // lanes)
        per_vector = sum(access_cost(a, symbol, lanes) for a in accesses) + sum(
            _operation_cost(s, lanes) for s in statements
        )
        tail = 2.0 if n % lanes else 0.0
        merge = 3.0 * math.log2(lanes) + 4.0 if symbol in body.reduction_indices else 0.0
        costs[symbol.name] = (vectors * per_vector + tail + merge) / n
        found[symbol.name] = (symbol, lanes)
    best = min(costs, key=lambda name: costs[name])
    inputs = tuple((f"cost of {name}", round(cost, 3)) for name, cost in costs.items())
    alternatives = tuple(None if name == "none" else name for name in costs)
    if best == "none":
        reason = "no loop is long enough, or regular enough, for vectors to pay"
        return None, 1, Decision("vector-loop", node.name, None, reason, alternatives, inputs)
    symbol, lanes = found[best]
    reason = f"least estimated cost per element, {lanes} lanes at a time"
    return symbol, lanes, Decision("vector-loop", node.name, best, reason, alternatives, inputs)


def _work(
    node: ScheduleNode,
    statements: list[Statement],
    accesses: list[Expr],
    innermost: Symbol | None,
    lanes: int,
    tile: Symbol | None,
) -> float:
    """Estimated vector operations of the whole node."""
    if innermost is None:
        return 1.0

    def access(index: Expr) -> float:
        turned = tile is not None and is_transposed(index, tile, innermost)
        return _turned_cost(lanes) if turned else _access_cost(index, innermost, lanes)

    per_vector = sum(access(a) for a in accesses) + sum(_operation_cost(s, lanes) for s in statements)
    points = node.numel * max(node.reduction_numel, 1)
    return per_vector * points / extent(innermost) * -(-extent(innermost) // lanes)


def _choose_accumulators(
    node: ScheduleNode, innermost: Symbol | None, lanes: int, options: Options
) -> tuple[int, Decision]:
    if innermost is None:
        return 1, Decision("accumulators", node.name, 1, "a single element is reduced", (1,))
    vectors = extent(innermost) // lanes
    wanted = options.accumulators or DEFAULT_ACCUMULATORS
    chosen = max(min(wanted, vectors), 1)
    if chosen < wanted:
        reason = f"a row holds {vectors} whole vector{'' if vectors == 1 else 's'}, too short for {wanted} accumulators"
    elif options.accumulators:
        reason = "as many as the option accumulators asks for"
    elif chosen > 1:
        reason = "an addition waits for the one before it in the same accumulator; several hide that latency"
    else:
        reason = "one accumulator is the default"
    inputs = (("vectors per row", vectors), ("lanes", lanes), ("accumulators wanted", wanted))
    return chosen, Decision("accumulators", node.name, chosen, reason, tuple(range(1, wanted + 1)), inputs)


def _choose_chunks(
    node: ScheduleNode, inner: list[Symbol], innermost: Symbol | None, lanes: int, accumulators: int
) -> tuple[int, int, Decision]:
    """Cut the first reduced loop when there are too few outputs to share among threads (Section 6.5's splitting)."""
    first = inner[0] if inner else innermost
    total = node.reduction_numel
    few = node.numel < MOST_CHUNKS
    inputs = (("outputs", node.numel), ("elements per output", total))
    if first is None or not few or total < 2 * CHUNK_ELEMENTS:
        reason = "outputs alone give enough parallel work" if not few else "the reduction is short"
        return 1, 0, Decision("chunks", node.name, 1, reason, inputs=inputs)
    n = extent(first)
    wanted = max(min(total // CHUNK_ELEMENTS, MOST_CHUNKS), 1)
    step = lanes * accumulators if first == innermost else 1
    chunk = -(-n // wanted)
    chunk = -(-chunk // step) * step
    chunks = -(-n // chunk)
    if chunks == 1:
        return 1, 0, Decision("chunks", node.name, 1, "the outermost reduced loop is too short to cut", inputs=inputs)
    reason = "few outputs: pieces of fixed size are reduced apart and merged in order, whatever the number of threads"
    return chunks, chunk, Decision("chunks", node.name, chunks, reason, inputs=(*inputs, ("iterations each", chunk)))


def _choose_tile(
    node: ScheduleNode, body: LoopBody, vector: Symbol | None, lanes: int
) -> tuple[Symbol | None, Decision | None]:
    """The other index of a tile, if some read runs along it and across the vectorised one."""
    side = min(lanes, WIDEST_TILE)
    if vector is None or extent(vector) < side:
        return None, None
    conditional = {access.index for access in body.reads() if access.conditional}
    loads = [s.args[1] for s in body.all_statements() if s.operation == "load" and s.args[1] not in conditional]
    for symbol in body.indices:
        if symbol == vector or extent(symbol) < side:
            continue
        turned = [index for index in loads if is_transposed(index, symbol, vector)]
        if turned:
            reason = f"{len(turned)} of {len(loads)} reads run along {symbol} and across {vector}: turned in registers"
            inputs = (("tile", f"{side} x {side}"),)
            return symbol, Decision("tile", node.name, symbol.name, reason, (None, symbol.name), inputs)
    return None, None


def is_transposed(index: Expr, across: Symbol, along: Symbol) -> bool:
    """Whether a read steps by one element along ``across`` and by more along ``along``."""
    one, step = index.coefficient(across), index.coefficient(along)
    if one is None or step is None or not (one.is_constant and step.is_constant):
        return False
    return int(one) == 1 and abs(int(step)) > 1 and not any(s.name.startswith("indirect") for s in index.symbols)


def _choose_strips(
    node: ScheduleNode, innermost: Symbol, lanes: int, options: Options, bytes_read: int
) -> tuple[int, bool, Decision]:
    """Where the running results of neighbouring outputs are kept while rows go by."""
    vectors = max(extent(innermost) // lanes, 1)
    accumulators = min(options.accumulators or DEFAULT_ACCUMULATORS, vectors)
    inputs = (
        ("extent", extent(innermost)), ("lanes", lanes), ("bytes read", bytes_read), ("threshold", STRIPS_FROM),
        ("vectors in registers", accumulators),
    )  # fmt: skip
    strips = bytes_read >= STRIPS_FROM and vectors > accumulators
    if strips:
        reason = "a large matrix: rows are read a page at a time into running results in the first-level cache"
    elif vectors <= accumulators:
        reason = f"a row of results is {vectors} vector{'' if vectors == 1 else 's'}: all stay in registers meanwhile"
    else:
        reason = (
            f"a small matrix, cached whole: it may be gone through once for every {accumulators} vectors of results, "
            "which then stay in registers"
        )
    return accumulators, strips, Decision("column-strips", node.name, strips, reason, (False, True), inputs)


def _choose_row_pieces(node: ScheduleNode, first: Symbol, innermost: Symbol, lanes: int) -> tuple[int, int, Decision]:
    """Pieces of rows, if strips of columns alone are too few to share among threads. Their results take memory, which
    bounds their number."""
    assert node.accumulate_dtype is not None
    strips = -(-extent(innermost) * element_bytes(node.accumulate_dtype) // STRIP_BYTES)
    tiles = node.numel // extent(innermost) * strips
    rows, total = extent(first), node.numel * node.reduction_numel
    wanted = min(-(-min(total // CHUNK_ELEMENTS, MOST_CHUNKS) // tiles), MOST_PARTIALS // node.numel, rows // 16)
    inputs = (("strips", tiles), ("rows", rows))
    if wanted <= 1:
        reason = "strips of columns alone give enough parallel work, or there are few rows"
        return 1, 0, Decision("chunks", node.name, 1, reason, inputs=inputs)
    chunk = -(-rows // wanted)
    chunks = -(-rows // chunk)
    reason = "few strips: pieces of rows of fixed size are reduced apart and merged in order"
    return chunks, chunk, Decision("chunks", node.name, chunks, reason, inputs=(*inputs, ("rows each", chunk)))


def _choose_parallel(
    node: ScheduleNode, outer: list[Symbol], form: str, chunks: int, pieces: int, work: float, device: DeviceSpec
) -> tuple[int, bool, Decision]:
    """Algorithm 8.1: take loops from the outside in until there are at least 2P iterations to share; none at all when
    the work per thread would fall below the grain. ``pieces`` is how often the innermost loop can be cut."""
    threads = max(device.threads, 1)
    inputs = (
        ("threads", threads), ("estimated vector operations", round(work)), ("fewest per thread", round(GRAIN)),
    )  # fmt: skip
    if work < 2 * GRAIN:
        reason = "the whole kernel is shorter than starting threads would take"
        return 0, False, Decision("parallel-depth", node.name, 0, reason, inputs=inputs)
    product, depth = chunks, 0
    for symbol in outer:
        if product >= 2 * threads:
            break
        product *= extent(symbol)
        depth += 1
    along = product < 2 * threads and form != "inner" and pieces > 1
    if along:
        product *= pieces
        depth = len(outer)
    if product == 1:
        return 0, False, Decision("parallel-depth", node.name, 0, "there is nothing to share", inputs=inputs)
    waste = -(-product // threads) / (product / threads) - 1
    reason = f"{product} iterations to share among {threads} threads, imbalance {100 * waste:.0f}%"
    choice = depth + int(along) + int(chunks > 1)
    return depth, along, Decision("parallel-depth", node.name, choice, reason, inputs=inputs)
