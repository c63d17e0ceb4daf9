"""How the loops around a matrix product are laid out: which one is vectorised, what stays in registers (Section 8.3).

Three nested loops compute a product, in six orders that all add in the order of the summed index. What makes one fast
is reuse in registers: a block of ``rows`` times ``vectors`` results is kept there while the summed loop runs, so that a
vector of one operand serves ``rows`` products and an element of the other ``vectors`` (Goto and van de Geijn, 2008,
"Anatomy of High-Performance Matrix Multiplication"). The *panel* operand is read in vectors along the vectorised index,
the *other* one element by element. An operand that does not lie in memory like that, or that is computed rather than
read, is first written to a scratch matrix (*packed*): once per element, not once per product.

Either the columns or the rows of the result can be vectorised; a model of the vector operations of both decides.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from ...loops.body import LoopBody
from ...loops.expressions import Expr, Symbol
from ...loops.operands import depends_on, operands
from ...options import Decision, DeviceSpec
from ...schedule.records import ScheduleNode
from .plan import GRAIN, LoopPlan, _operation_cost, extent, lanes_for

#: Vectors of results in a row of a block, and rows in it.
MOST_VECTORS, MOST_ROWS = 4, 8

#: Vector registers, by instruction set.
REGISTERS = {"avx512": 32, "neon": 32, "avx2": 16, "scalar": 16}

#: A product needs so many times the grain of other loops to be shared: its operands are in registers and the nearest
#: cache, where a vector operation takes a quarter of the time.
PRODUCT_GRAIN = 4 * GRAIN

#: Cycles until an addition can use the result of the one before it, and vector operations begun per cycle.
LATENCY, PORTS = 4.0, 2.0


@dataclass(frozen=True)
class ProductPlan(LoopPlan):
    """The loops of a template. ``vector`` (or, one element at a time, ``innermost``) is the row or column index along
    the panel operand, ``across`` the other one. A block has ``rows`` steps of ``across`` and ``vectors`` vectors.
    ``packed_panel`` and ``packed_other``: the operand is written to scratch memory first. ``share`` is which loops are
    parallel: "batch", "blocks" or "" for none. The device's vectors are kept for the packing loops."""

    across: Symbol | None = None
    rows: int = 1
    vectors: int = 1
    packed_panel: bool = False
    packed_other: bool = False
    share: str = ""
    panel_is_right: bool = True
    instruction_set: str = "scalar"
    vector_bytes: int = 16

    @property
    def along(self) -> Symbol:
        """The index along the panel operand, vectorised or not."""
        assert self.innermost is not None
        return self.innermost

    @property
    def row_length(self) -> int:
        """Elements from one row of a packed panel to the next: whole vectors."""
        return -(-extent(self.along) // self.lanes) * self.lanes


@dataclass(frozen=True)
class _Layout:
    """One of the two ways to lay out the loops, with its cost in vector operations."""

    along: Symbol
    across: Symbol
    lanes: int
    packed_panel: bool
    packed_other: bool
    pack_cost: float
    store_cost: float
    cost: float = field(default=0.0)


def plan_product(node: ScheduleNode, device: DeviceSpec) -> ProductPlan:
    """Decide the loops of a template that has at least one result. O(statements)."""
    body = node.body
    assert body is not None and body.epilogue is not None
    row, column = body.indices[-2:]
    layouts = [_layout(node, device, along, across) for along, across in ((column, row), (row, column))]
    best = min(layouts, key=lambda layout: layout.cost)
    rows, vectors, blocks = _block(best, node, device)
    decisions = [_vector_decision(node, best, layouts), _block_decision(node, best, rows, vectors, device)]
    decisions += _packing_decisions(node, best)
    share, parallel = _share(node, best, blocks, device)
    decisions.append(parallel)
    batch = body.indices[:-2]
    lanes = best.lanes
    return ProductPlan(
        "product", (*batch, best.across), body.reduction_indices, best.along if lanes > 1 else None, best.along, lanes,
        len(batch) if share == "batch" else 0, False, rows * vectors, work=round(best.cost), decisions=tuple(decisions),
        across=best.across, rows=rows, vectors=vectors, packed_panel=best.packed_panel, packed_other=best.packed_other,
        share=share, panel_is_right=best.along == column, instruction_set=device.instruction_set,
        vector_bytes=device.vector_bytes,
    )  # fmt: skip


def _layout(node: ScheduleNode, device: DeviceSpec, along: Symbol, across: Symbol) -> _Layout:
    body = node.body
    assert body is not None and body.epilogue is not None and node.accumulate_dtype is not None
    left, right = operands(body)
    panel, other = (right, left) if along == body.indices[-1] else (left, right)
    depth, n, m = node.reduction_numel, extent(along), extent(across)
    statements = list(body.epilogue.all_statements())
    consecutive = _is_plain(panel) and _step(panel, along) in (0, 1)
    if consecutive:
        statements += panel.all_statements()
    stored = (node.store_dtype,) if node.store_dtype is not None else ()
    lanes = lanes_for(statements, along, device, (node.accumulate_dtype, *stored))
    while lanes > 1 and lanes // 2 >= n:
        lanes //= 2
    vectors = -(-n // lanes)
    # Without masked moves a partial vector costs several operations each time; a packed row ends on a whole vector.
    ragged = n % lanes != 0 and device.instruction_set != "avx512" and m > 1
    packed_panel = depth > 0 and (not consecutive or ragged)
    packed_other = depth > 0 and not _is_plain(other)
    batch = node.numel // (n * m)
    pack = _pack_cost(panel, along, n, depth, lanes, batch, node) if packed_panel else 0.0
    pack += _pack_cost(other, across, m, depth, lanes, batch, node) if packed_other else 0.0
    store = batch * m * (vectors if _coefficient(node.writes[0].index, along) == 1 else 1.5 * n)
    arithmetic = 2.0 * batch * depth * vectors * m
    return _Layout(along, across, lanes, packed_panel, packed_other, pack, store, arithmetic + pack + store)


def _coefficient(index: Expr, symbol: Symbol) -> int | None:
    """The constant by which a subscript grows with a loop, if there is one."""
    found = index.coefficient(symbol)
    return int(found) if found is not None and found.is_constant else None


def _is_plain(operand: LoopBody) -> bool:
    """Whether an operand is one read at a subscript known beforehand."""
    if len(operand.statements) != 1 or operand.statements[0].operation != "load":
        return False
    return not any(s.name.startswith("indirect") for s in operand.statements[0].args[1].symbols)


def _step(operand: LoopBody, symbol: Symbol) -> int | None:
    return _coefficient(operand.statements[0].args[1], symbol)


def _pack_cost(
    operand: LoopBody, along: Symbol, n: int, depth: int, lanes: int, batch: int, node: ScheduleNode
) -> float:
    """Vector operations of writing an operand to scratch memory."""
    assert node.body is not None
    summed = node.body.reduction_indices[0]
    loads = [s.args[1] for s in operand.all_statements() if s.operation == "load"]
    read = 0.0
    for index in loads:
        if _coefficient(index, along) in (0, 1):
            read += 1.0
        elif _coefficient(index, summed) == 1:  # turned over in registers
            read += 2.0 + math.log2(max(lanes, 2)) / 2
        else:
            read += 1.5 * lanes
    operations = sum(_operation_cost(s, lanes) for s in operand.all_statements())
    repeated = batch if any(depends_on(operand, symbol) for symbol in node.body.indices[:-2]) else 1
    return repeated * (read + operations + 1.0) * depth * n / lanes


# -- Blocks ------------------------------------------------------------------------------------------------------------


def _block(layout: _Layout, node: ScheduleNode, device: DeviceSpec) -> tuple[int, int, int]:
    """Rows and vectors of a block: the fewest cycles by a model of one step of the summed loop, which begins two
    multiplications and additions per result, waits for the additions of the step before, and reads both operands. And
    how many blocks there are."""
    m, n = extent(layout.across), -(-extent(layout.along) // layout.lanes)
    registers = REGISTERS[device.instruction_set]

    def cycles(rows: int, vectors: int) -> float:
        return max(2.0 * rows * vectors / PORTS, LATENCY, (rows + vectors) / PORTS) + 1.0

    best: tuple[float, int, int] | None = None
    for vectors in range(1, min(MOST_VECTORS, n) + 1):
        for most in range(1, min(MOST_ROWS, m) + 1):
            rows = -(-m // -(-m // most))  # equal blocks, rather than full ones and a rest
            if rows * vectors + vectors + 2 > registers:
                continue
            total = 0.0
            for count, width in ((n // vectors, vectors), (1, n % vectors)):
                for repeat, height in ((m // rows, rows), (1, m % rows)):
                    total += count * repeat * cycles(height, width) if width and height else 0.0
            if best is None or total < best[0]:
                best = (total, rows, vectors)
    assert best is not None
    _, rows, vectors = best
    return rows, vectors, -(-m // rows) * -(-n // vectors)


# -- Decisions ---------------------------------------------------------------------------------------------------------


def _vector_decision(node: ScheduleNode, best: _Layout, layouts: list[_Layout]) -> Decision:
    inputs = tuple((f"vector operations along {layout.along}", round(layout.cost)) for layout in layouts)
    if best.lanes == 1:
        return Decision("vector-loop", node.name, None, "one element at a time", (None,), inputs)
    what = "columns" if best is layouts[0] else "rows"
    reason = f"{what} of the result, {best.lanes} lanes at a time: the fewest vector operations"
    return Decision("vector-loop", node.name, best.along.name, reason, tuple(x.along.name for x in layouts), inputs)


def _block_decision(node: ScheduleNode, best: _Layout, rows: int, vectors: int, device: DeviceSpec) -> Decision:
    reason = f"{rows * vectors} running sums in registers hide the latency of additions and share what they read"
    inputs = (("vector registers", REGISTERS[device.instruction_set]), ("lanes", best.lanes))
    return Decision("register-block", node.name, f"{rows} x {vectors}", reason, (), inputs)


def _packing_decisions(node: ScheduleNode, best: _Layout) -> list[Decision]:
    panel = "it does not lie in whole vectors along the vectorised loop, or is computed" if best.packed_panel else (
        "its vectors are read where they lie"
    )  # fmt: skip
    other = "it is computed once per element, not once per product" if best.packed_other else (
        "its elements are read where they lie"
    )  # fmt: skip
    return [
        Decision("pack-panel", node.name, best.packed_panel, panel, (False, True)),
        Decision("pack-other", node.name, best.packed_other, other, (False, True)),
    ]


def _share(node: ScheduleNode, best: _Layout, blocks: int, device: DeviceSpec) -> tuple[str, Decision]:
    """Which loops threads share: batches where there are enough of them, otherwise blocks of one product."""
    threads = max(device.threads, 1)
    batch = node.numel // (extent(best.along) * extent(best.across))
    inputs = (("threads", threads), ("estimated vector operations", round(best.cost)), ("batches", batch))
    if best.cost < 2 * PRODUCT_GRAIN:
        reason = "the whole kernel is shorter than starting threads would take"
        return "", Decision("parallel-depth", node.name, 0, reason, inputs=inputs)
    if batch >= 2 * threads or (batch > 1 and blocks == 1):
        reason = f"{batch} batches to share among {threads} threads"
        return "batch", Decision("parallel-depth", node.name, max(len(node.ranges) - 2, 1), reason, inputs=inputs)
    if blocks == 1:
        return "", Decision("parallel-depth", node.name, 0, "there is nothing to share", inputs=inputs)
    reason = f"{blocks} blocks to share among {threads} threads"
    return "blocks", Decision("parallel-depth", node.name, 2, reason, inputs=(*inputs, ("blocks", blocks)))


__all__ = ["ProductPlan", "plan_product"]
