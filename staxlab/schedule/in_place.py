"""When a kernel may write its output over one of its inputs (Sections 4.9 and 7.5).

Functionalization gives every value memory of its own; in-place reuse takes that back where nobody would notice. If the
kernel that reads a buffer last writes another of equal size and dtype, the second may stand in the memory of the first,
provided that no element is overwritten before its last read. Kernels run vectors, tiles and threads in an order that is
nobody's business here, so the proof is by subscripts alone:

* an elementwise kernel, or a scan, that reads the buffer only at the very subscript it writes in the same iteration
  (a read under a condition may be at another one that the condition makes equal: what the scatter inverse of a view
  reads of its base, Proposition 4.4);
* the epilogue of a product (:mod:`.epilogues`), likewise, if the product itself does not read the buffer;
* a kernel over rows (:mod:`.fusion`) in which no row touches what another row writes, every reader of the buffer runs
  before the member that writes, or is that member and reads only at the subscript it writes.

A reduction, a product of matrices or a scatter is refused: when it writes is up to its loops.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import torch

from ..loops.body import MemoryAccess, Statement
from ..loops.expressions import Expr
from ..loops.ir import BufferArgument, Layout
from .records import ScheduleNode
from .rows import place

#: Kinds of node that write each element once, after all they read for it.
ELEMENTWISE = ("pointwise", "scan")


def obstacle(node: ScheduleNode, dying: frozenset[str], written: str, shift: int = 0) -> str:
    """Why ``node`` may not write ``written`` over the memory of the ``dying`` buffers, or "" if it may.

    The names in ``dying`` are those of one memory (a buffer and the scatters into it), whose subscripts count from
    ``shift`` elements before its start (the offset of an input). That sizes and dtypes are equal, and that nobody reads
    the memory later, is for the caller to know.
    """
    if node.members and node.product is not None and dying & {access.buffer for access in node.product.reads}:
        return "a product reads rows and columns that other tiles write"
    if node.kind == "fused":
        return _obstacle_in_rows(node, dying, written, shift)
    if node.kind not in ELEMENTWISE:
        return f"a {node.kind} may write before it has read everything"
    return "" if _same(node, dying, node.writes[0], shift) else "it is read at other subscripts than are written"


def only_copies(node: ScheduleNode, name: str, layout: Layout) -> bool:
    """Whether a kernel does nothing but copy a buffer of this layout, element by element. Where its output stands in
    the memory of that buffer it need not run."""
    if node.kind != "pointwise" or node.members or node.body is None or len(node.body.statements) != 1:
        return False
    (only,) = node.body.statements
    if only.operation != "load" or only.args[0] != name or layout.dtype != node.store_dtype:
        return False  # half precision is computed with in float32: what counts is what memory holds
    return node.writes[0].index == only.args[1] - layout.offset


def copies_to_begin_with(nodes: Iterable[ScheduleNode]) -> frozenset[str]:
    """The kernels that copy an input so that scatters can write into the copy, which is then copied back. Left alone
    they need not run, if the copy may stand in the input's memory (:mod:`.placement`)."""
    makers = {buffer: node for node in nodes for buffer in node.buffers}
    found = set()
    for node in list(makers.values()):
        if node.extern is None or node.extern.operator is not torch.ops.aten.copy_.default:
            continue
        target, source = node.extern.args[:2]
        maker = makers.get(getattr(source, "name", ""))
        while maker is not None and maker.base is not None:
            maker = makers.get(maker.base)
        if (
            maker is not None
            and isinstance(target, BufferArgument)
            and only_copies(maker, target.name, target.layout)
        ):
            found.add(maker.name)
    return frozenset(found)


def _same(node: ScheduleNode, dying: frozenset[str], write: MemoryAccess, shift: int) -> bool:
    """Whether a node reads the dying buffers only where it writes in the same iteration."""
    body = node.body
    assert body is not None and body.epilogue is None
    values = {statement.id: statement for statement in body.all_statements()}

    def check(statements: Iterable[Statement], fixed: tuple[tuple[Expr, int], ...]) -> bool:
        for statement in statements:
            if statement.operation == "masked":
                condition, block = statement.args[:2]
                if not check(block.statements, (*fixed, *_fixed(values, condition))):
                    return False
            elif statement.operation == "load" and statement.args[0] in dying:
                if not _vanishes(write.index - (statement.args[1] - shift), fixed):
                    return False
        return True

    return check(body.statements, ())


def _fixed(values: Mapping[int, Statement], condition: int) -> list[tuple[Expr, int]]:
    """Subscripts that a condition leaves one value: ``0 <= i`` and ``i < 1`` leave 0."""
    tests = [values[condition]]
    limits: dict[Expr, tuple[int, int]] = {}
    while tests:
        test = tests.pop()
        if test.operation == "logical_and":
            tests += [values[argument] for argument in test.args]
        elif (bound := bounded(test, values)) is not None:
            index, least, most = bound
            low, high = limits.get(index) or (index.bounds().lower, index.bounds().upper)
            limits[index] = max(low, least), min(high, most)
    return [(index, int(low)) for index, (low, high) in limits.items() if low == high]


def bounded(test: Statement, values: Mapping[int, Statement]) -> tuple[Expr, float, float] | None:
    """The subscript that a comparison with a number bounds, and the least and the most it may be; None for others."""
    if test.operation not in _LIMITS:
        return None
    left, right = (values[argument] for argument in test.args)
    if left.operation != "index_value" or right.operation != "constant" or type(right.args[0]) is not int:
        return None
    return (left.args[0], *_LIMITS[test.operation](right.args[0]))


_LIMITS: dict[str, Callable[[int], tuple[float, float]]] = {
    "lt": lambda bound: (-math.inf, bound - 1),
    "le": lambda bound: (-math.inf, bound),
    "gt": lambda bound: (bound + 1, math.inf),
    "ge": lambda bound: (bound, math.inf),
    "eq": lambda bound: (bound, bound),
}


def _vanishes(difference: Expr, fixed: tuple[tuple[Expr, int], ...]) -> bool:
    """Whether a difference of subscripts is 0 where each of the ``fixed`` subscripts has its value."""
    for index, value in fixed:
        for symbol in index.symbols:
            unit, have = index.coefficient(symbol), difference.coefficient(symbol)
            if unit is None or have is None or not (unit.is_constant and have.is_constant):
                continue
            if int(unit) and int(have) % int(unit) == 0:
                difference = difference - (index - value) * (int(have) // int(unit))
                break
    return difference == Expr.of(0)


def _obstacle_in_rows(node: ScheduleNode, dying: frozenset[str], written: str, shift: int) -> str:
    names = [member.name for member in node.members]
    writer = next(member for member in node.members if written in member.buffers)
    readers = [member for member in node.members if any(read.buffer in dying for read in member.reads)]
    makers = [member for member in node.members if dying.intersection(member.buffers)]
    if any(names.index(member.name) > names.index(writer.name) for member in readers):
        return "a later member still reads it"
    if any(names.index(member.name) >= names.index(writer.name) for member in makers):
        return "it is written later"
    if any(member.base is not None for member in (writer, *makers)):
        return "a scatter may write before it has read everything"
    own = [read for read in writer.reads if read.buffer in dying]
    if own and (writer.kind not in ELEMENTWISE or not _same(writer, dying, writer.writes[0], shift)):
        return "it is read at other subscripts than are written"
    if not makers and all(reader is writer for reader in readers):
        return ""  # element by element, whatever the rows
    accesses = [a.index - shift for member in readers for a in member.reads if a.buffer in dying]
    accesses += [a.index for member in makers for a in member.writes if a.buffer in dying]
    return "" if _rows_apart(accesses, writer.writes[0].index, node) else "rows touch each other's memory"


def _rows_apart(accesses: list[Expr], written: Expr, node: ScheduleNode) -> bool:
    """Whether an element that a row writes is accessed by no other row."""
    target = place(written, node.row_loops)
    if target is None or not all(target.steps):
        return False
    found = [place(index, node.row_loops) for index in accesses]
    return all(other is not None and other.agrees(target) for other in found)
