"""Which form a kernel takes and which loops lie along which dimension of its block (Sections 9.3 and 9.4).

A warp reads memory in 32-byte sectors, so what counts is whether *neighbouring lanes* touch neighbouring elements. For
a pointwise kernel every access votes with its bytes for the loop along which its subscript steps by one. If all are
served by the innermost loop, one dimension is enough; if some step by one along another loop only (Example 6.1, where a
transposed tensor meets one that is not), a rectangle of both loops coalesces them all. Three orders of a tensor's
dimensions in one expression may each step by one along a loop of their own, and then a box of all three does.

For a reduction the question is whether the innermost reduction loop is the one that steps by one ("inner": lanes run
along a row) or an outer loop is ("outer": lanes run across rows), and whether a whole row fits into registers.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

from ...loops.body import MemoryAccess
from ...loops.expressions import Expr, Symbol
from ...options import Decision
from ...schedule.programs import residence, step_along
from ...schedule.records import Schedule, ScheduleNode
from .space import GRID_LIMIT, INT32_MAX, BlockSpace, coefficient_along, group, largest_magnitude

PERSISTENT_INNER = 1024  # up to this length a row is one block whatever else the kernel does; lanes run along it
PERSISTENT_OUTER = 64  # the same when lanes run across rows
STEP_INNER, STEP_OUTER = 4096, 2048  # elements that a looped reduction takes in one step, rows times R0_BLOCK
STEP_SCAN = 8192  # the same for a scan along rows: every step waits for the one before, so fewer and longer ones
LANES_ACROSS = 32  # rows a block has at least when lanes run across them, if there are so many
LANE_ROOM = 1 << 16  # lanes that a last block may hang over the edge
SMALLEST_TILED_EXTENT = 4  # a rectangle thinner than this coalesces nothing
SMALLEST_BOX_EXTENT = 8  # nor does a box whose edges are shorter than a sector of memory, eight float32


@dataclass(frozen=True)
class Form:
    """The shape of a kernel: "pointwise", "persistent" or "looped"; its block space; ``inner`` for a reduction whose
    lanes run along the row; ``wide`` when subscripts need 64 bits; and why."""

    kind: str
    space: BlockSpace
    inner: bool
    wide: bool
    decisions: tuple[Decision, ...]

    @property
    def prefix(self) -> str:
        return {"pointwise": "poi", "persistent": "per", "looped": "red"}[self.kind]


def next_power_of_two(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def accesses_of(node: ScheduleNode) -> list[MemoryAccess]:
    return [*node.reads, *node.writes]


def coalesced_bytes(schedule: Schedule, node: ScheduleNode, loops: tuple[Symbol, ...]) -> int:
    """Bytes of the accesses that a block coalesces whose fastest lanes run along the last of ``loops``, and whose
    other dimensions, if it has any, run along those before.

    Along the fastest loop an access may step by one, or stand still: a warp that reads one element reads one sector.
    """
    *across, along = loops
    total = 0
    for access in accesses_of(node):
        good = coefficient_along(access.index, along) in (0, 1)
        if good or any(coefficient_along(access.index, loop) == 1 for loop in across):
            total += schedule.bytes_of(access)
    return total


def longest_step(rows: int, inner: bool, scans: bool = False) -> int:
    """The longest piece of a row that a looped reduction over ``rows`` rows takes in one step: its largest R0_BLOCK."""
    if inner:
        return STEP_SCAN if scans else STEP_INNER
    return STEP_OUTER // min(LANES_ACROSS, next_power_of_two(max(rows, 1)))


def choose_form(schedule: Schedule, node: ScheduleNode, step: int | None = None) -> Form:
    """The form of a node's kernel with the decisions that led to it. ``step`` is the R0_BLOCK, where it is given by
    hand: then a reduction is persistent exactly if that holds a row."""
    if node.members:
        space, kind, inner, decisions = _fused_space(schedule, node, step)
    elif node.kind in ("pointwise", "scatter") or node.reduction_numel == 0:
        space, decision = _pointwise_space(schedule, node)
        kind, inner, decisions = "pointwise", True, [decision]
    else:
        space, kind, inner, decisions = _reduction_space(schedule, node, step)
    wide, width = _index_width(node, space)
    return Form(kind, space, inner, wide, (*decisions, width))


def _extents(node: ScheduleNode) -> dict[Symbol, int]:
    body = node.body
    found = dict(zip(body.indices, node.ranges, strict=True))
    found.update(zip(body.reduction_indices, node.reduction_ranges, strict=True))
    return found


def _pointwise_space(schedule: Schedule, node: ScheduleNode) -> tuple[BlockSpace, Decision]:
    loops, extents = node.body.indices, _extents(node)
    scores: dict[tuple[int, ...], int] = {}  # where the loops are cut into the block's dimensions -> bytes coalesced
    if loops:
        scores[()] = coalesced_bytes(schedule, node, loops[-1:])
    for cuts in _cuts(loops, extents):
        scores[cuts] = coalesced_bytes(schedule, node, (*(loops[cut - 1] for cut in cuts), loops[-1]))
    cuts = max(scores, key=lambda c: (scores[c], -len(c), tuple(-cut for cut in c)), default=())
    best = scores.get(cuts, 0)
    total = sum(schedule.bytes_of(access) for access in accesses_of(node))
    rank, ends = len(cuts) + 1, (0, *cuts, len(loops))
    dims = tuple(
        group(prefix, loops[ends[axis] : ends[axis + 1]], extents, axis, rank)
        for axis, prefix in enumerate("zyx"[3 - rank :])
    )
    shape = {2: "rectangle", 3: "box"}.get(rank, "")
    reason = (
        f"accesses step by one along {'different' if rank == 2 else 'three different'} loops; a {shape} coalesces "
        f"{best} of {total} bytes"
        if cuts
        else f"one dimension coalesces {best} of {total} bytes and no rectangle coalesces more"
    )
    decision = Decision(
        "tiling", node.name, f"{rank}-D", reason, ("1-D", "2-D", "3-D"),
        tuple((_score_title(loops, cuts), amount) for cuts, amount in scores.items()),
    )  # fmt: skip
    return BlockSpace(dims), decision


def _cuts(loops: tuple[Symbol, ...], extents: dict[Symbol, int]) -> Iterator[tuple[int, ...]]:
    """The ways of dividing the loops among two or three dimensions of a block, each of which then runs along the last
    loop of its part: the positions of the cuts. None whose block would be thin, or have more instances along an axis
    than a grid."""
    for number, smallest in ((1, SMALLEST_TILED_EXTENT), (2, SMALLEST_BOX_EXTENT)):
        for cuts in itertools.combinations(range(1, len(loops)), number):
            parts = zip((0, *cuts), cuts, strict=False)
            points = [math.prod(extents[loop] for loop in loops[start:end]) for start, end in parts]
            if number == 2 and max(points) > GRID_LIMIT * SMALLEST_BOX_EXTENT:
                continue
            if min(extents[loops[cut - 1]] for cut in (*cuts, len(loops))) >= smallest:
                yield cuts


def _score_title(loops: tuple[Symbol, ...], cuts: tuple[int, ...]) -> str:
    if not cuts:
        return "bytes coalesced in 1-D"
    return "bytes coalesced by " + " x ".join(str(loops[cut - 1]) for cut in (*cuts, len(loops)))


def _reduction_space(
    schedule: Schedule, node: ScheduleNode, step: int | None
) -> tuple[BlockSpace, str, bool, list[Decision]]:
    extents = _extents(node)
    rows, columns = node.body.indices, node.body.reduction_indices
    along = _read_bytes(schedule, node, columns[-1]) if columns else 0
    across = _read_bytes(schedule, node, rows[-1]) if rows else 0
    inner = along >= across
    space = BlockSpace((group("x", rows, extents, 0, 2), group("r0_", columns, extents, 1, 2)))
    along_rows, across_rows = "lanes run along the reduction", "neighbouring results, not terms, are adjacent in memory"
    direction = Decision(
        "reduction-direction", node.name, "inner" if inner else "outer", along_rows if inner else across_rows,
        ("inner", "outer"), (("bytes contiguous along the reduction", along), ("across it", across)),
    )  # fmt: skip
    form = _persistent_or_looped(node.name, node.numel, node.reduction_numel, inner, step, node.kind == "scan")
    return space, form.choice, inner, [direction, form]


def _fused_space(
    schedule: Schedule, node: ScheduleNode, step: int | None
) -> tuple[BlockSpace, str, bool, list[Decision]]:
    """Of nodes that share a kernel: their rows, and the columns that its reductions run along, if there are any."""
    (row,) = node.row_loops
    reduced = [member for member in node.members if member.kind == "reduction"]
    if not reduced:
        reason = "elementwise values of equally many points, neighbours of which are neighbours in memory"
        decision = Decision("tiling", node.name, "1-D", reason, ("1-D", "2-D", "3-D"))
        return BlockSpace((group("x", (row,), {row: node.rows}, 0, 1),)), "pointwise", True, [decision]
    columns, length = reduced[0].body.reduction_indices, reduced[0].reduction_numel
    extents = {row: node.rows} | dict.fromkeys(columns, length)
    space = BlockSpace((group("x", (row,), extents, 0, 2), group("r0_", columns, extents, 1, 2)))
    full = [a for a in accesses_of(node) if {row, *columns} <= a.index.symbols and columns]
    along = sum(schedule.bytes_of(a) for a in full if step_along(a.index, columns[0].name) == 1)
    across = sum(schedule.bytes_of(a) for a in full if step_along(a.index, row.name) == 1)
    inner = along >= across
    reason = "lanes run along the rows" if inner else "neighbouring rows, not columns, are adjacent in memory"
    direction = Decision(
        "reduction-direction", node.name, "inner" if inner else "outer", reason, ("inner", "outer"),
        (("bytes contiguous along the row", along), ("across it", across)),
    )  # fmt: skip
    if inner and step is None:
        form = residence(node.name, node.members, length, schedule.layouts, schedule.device)
    else:
        form = _persistent_or_looped(node.name, node.rows, length, inner, step)
    return space, form.choice, inner, [direction, form]


def _persistent_or_looped(
    name: str, rows: int, length: int, inner: bool, step: int | None, scans: bool = False
) -> Decision:
    """Whether a block holds a row whole. By the rule of Section 9.4 up to a length that leaves registers for whatever
    else a kernel does with the row; beyond it too where the first step of a loop would be its last."""
    limit = PERSISTENT_INNER if inner else PERSISTENT_OUTER
    longest = longest_step(rows, inner, scans) if step is None else step
    how = "along" if inner else "across"
    kind = "persistent" if length <= (max(limit, longest) if step is None else step) else "looped"
    if step is not None:
        held = "holds" if kind == "persistent" else "is a piece of"
        reason = f"R0_BLOCK={step} was given, which {held} a row of {length}"
    elif length <= limit:
        reason = f"a row of {length} is within the {limit} elements held whole by rule when lanes run {how} it"
    elif kind == "persistent":
        reason = (
            f"a row of {length} is longer than the rule's {limit} elements for lanes that run {how} it, but a step of "
            f"a loop takes up to {longest} here: the loop would run once, so the row is held whole without it"
        )
    else:
        reason = f"a row of {length} does not fit into one step of at most {longest} elements: the row is walked along"
    inputs = (("reduction length", length), ("limit of the rule", limit), ("longest step", longest))
    return Decision("persistent-reduction", name, kind, reason, ("persistent", "looped"), inputs)


def _read_bytes(schedule: Schedule, node: ScheduleNode, loop: Symbol) -> int:
    return sum(schedule.bytes_of(a) for a in node.reads if coefficient_along(a.index, loop) == 1)


def _index_width(node: ScheduleNode, space: BlockSpace) -> tuple[bool, Decision]:
    """32-bit subscripts where every one provably fits, with room for the lanes past the end of the last block."""
    points = max((dim.numel for dim in space.dims), default=0)
    expressions: list[Expr] = [access.index for access in accesses_of(node)]
    for part in node.members or (node,):
        for statement in part.body.all_statements():
            expressions += [argument for argument in statement.args if isinstance(argument, Expr)]
    largest = max((largest_magnitude(space.flatten(expression)) for expression in expressions), default=0)
    bound = max(points + LANE_ROOM, largest)
    wide = not bound <= INT32_MAX
    shown = "unbounded" if math.isinf(largest) else int(largest)
    reason = (
        f"subscripts reach {shown}, and indices {points} plus the lanes of a last block that hangs over the edge "
        f"(room for {LANE_ROOM} is kept): {'beyond' if wide else 'within'} the {INT32_MAX} of 32 bits"
    )
    inputs = (("largest subscript", shown), ("points along a dimension", points), ("room for lanes", LANE_ROOM))
    return wide, Decision("index-width", node.name, 64 if wide else 32, reason, (32, 64), inputs)
