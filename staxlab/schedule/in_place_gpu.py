"""When a Triton kernel may write its output over one of its inputs (Sections 7.5 and 9.4).

Program instances run in any order and at the same time, and within one no lane waits for another, except where a value
passes from lane to lane: in a reduction, or when a block changes its layout. So the order of the lines proves little
(:mod:`.in_place` has it for a CPU, where a thread runs them one after the other). What orders a store behind a load is
that the stored value *depends* on the loaded one. An output may stand where an input dies if

* every member reads the input at exactly the subscript that is written, over rows and columns alike: then an element is
  read and written in one lane of one instance, and rows are apart because no two of them write one element;
* what is written depends on every member that reads the input, directly or through others: by way of the same lane, or
  through a reduction, which takes the whole row;
* nothing comes after the member that writes, neither in its pass along the row nor in a later one, for which what an
  earlier pass made would be made again from the input.

A value of the rows alone (one element for each) is refused. All lanes of an instance load such an element, one stores
it, and the others might load it afterwards. For the same reason no kernel is launched with more threads than its blocks
have elements (:func:`staxlab.codegen.triton.launch.configured`).
"""

from __future__ import annotations

from collections.abc import Mapping

from ..loops.expressions import Expr
from .in_place import obstacle
from .programs import COLUMN, is_full, plan_passes
from .records import ScheduleNode


def obstacle_on_gpu(node: ScheduleNode, dying: frozenset[str], written: str, shift: int = 0) -> str:
    """As :func:`staxlab.schedule.in_place.obstacle`, for a kernel of program instances: why ``node`` may not write
    ``written`` over the memory of ``dying``, or "" if it may. O(members^2)."""
    if node.kind in ("pointwise", "scan"):
        return obstacle(node, dying, written, shift)
    if node.kind != "fused" or node.members[0].kind == "template":
        return f"the instances of a {node.kind} run in any order, and one may read what another has written"
    writer = next(member for member in node.members if written in member.buffers)
    readers = [member for member in node.members if any(read.buffer in dying for read in member.reads)]
    if any(dying.intersection(member.buffers) for member in node.members):
        return "the kernel makes it itself"
    walking = [member for member in node.members if is_full(member) or member.kind == "reduction"]
    columns = any(member.kind == "reduction" for member in node.members)
    if columns and not is_full(writer):
        return "a value of the rows is loaded by every lane of them and stored by one"
    for member in readers:
        for read in member.reads:
            if read.buffer in dying and (read.conditional or not _is_there(read.index - shift, writer, columns)):
                return "it is read at other subscripts than are written"
    makers = {buffer: member for member in node.members for buffer in member.buffers}
    if not all(_depends(writer, member, makers) for member in readers):
        return "what is written does not wait for what is read"
    if columns:
        passes = plan_passes(node.members)
        if walking[-1] is not writer or passes.number[writer.name] != passes.count - 1:
            return "a later member, or a later pass along the row, may read it again"
    return ""


def _is_there(index: Expr, writer: ScheduleNode, columns: bool) -> bool:
    """Whether a subscript is the one that is written, and names an element of its own for every point."""
    (write,) = writer.writes
    names = {symbol.name for symbol in index.symbols}
    return index == write.index and (not columns or COLUMN in names)


def _depends(member: ScheduleNode, other: ScheduleNode, makers: Mapping[str, ScheduleNode]) -> bool:
    """Whether what a member makes depends on what another one makes, or is the same."""
    seen: set[str] = set()
    open_ones = [member]
    while open_ones:
        one = open_ones.pop()
        if one is other:
            return True
        if one.name not in seen:
            seen.add(one.name)
            open_ones += [makers[read.buffer] for read in one.reads if read.buffer in makers]
    return False


__all__ = ["obstacle_on_gpu"]
