"""Which nodes may share a loop over rows, and the rule that forbids it (Section 7.2; Propositions 7.2 and 7.3).

A *way* of running nodes in one kernel gives each of them a :class:`~.rows.RowView` over the same rows. Rows run side
by side, and inside a row one node after the other: so a way is legal if every row reads, of what the nodes write, only
what the same row wrote. That is Proposition 7.3 with rows for iterations: a distance of zero. Within the row any
distance will do, since a node has ended before the next begins (Proposition 7.2 asks for less). The remaining rules are
matters of cost. All of them look at shapes alone, never at the number of threads.

Rows without a loop are one row. Nodes with so little to do that no threads are started for them may share it whatever
they read of each other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from ..loops.ir import Layout
from .records import ScheduleNode
from .rows import LEAST_STEP, MOST_LOOPS, RowView, has_rows, place, row_spaces, row_views

Problem = tuple[str, str]  # a rule, and what breaks it
Way = tuple[RowView, ...]
Space = tuple[int, ...]

#: Below so many rows a long reduction is cut into pieces instead (Section 6.5), and shares its kernel with nobody.
#: Of elementwise nodes fewer rows will do: that many threads find work.
FEWEST_ROWS = 64
FEWEST_ELEMENTWISE = 16
SHORT = 1 << 16

#: Accesses that touch less than this part of a row's points may share cache lines with other rows' accesses.
FEW = 16

#: What all accesses of a row may touch, in bytes: what a second-level cache holds besides other things.
ROW_BYTES = 512 << 10

#: Elements of a row that a loop without rows of its own is cut into.
BLOCK_ELEMENTS = 4096

#: Operations of nodes that share one row: about what starting a thread takes, in vectors of sixteen.
ONE_ROW: Space = ()
LITTLE_WORK = 1 << 17

#: Rows of a scan that are left together.
SCANNED_TOGETHER = 4

#: Distances between rows that elementwise loops are cut at.
MOST_PARTS = 4

#: Steps of a search for a way before it is given up.
MOST_STEPS = 400


def work(node: ScheduleNode) -> int:
    """Operations and accesses of a whole node."""
    points = node.numel * max(node.reduction_numel, 1)
    return node.operations + points * (len(node.reads) + 1)


class _Kept:
    """Views that are made when somebody first asks for them, and kept."""

    def __init__(self, source: Iterator[RowView]):
        self.source = source
        self.found: list[RowView] = []

    def __iter__(self) -> Iterator[RowView]:
        for number in itertools.count():
            if number == len(self.found):
                view = next(self.source, None)
                if view is None:
                    return
                self.found.append(view)
            yield self.found[number]


class Legality:
    """The rules over one program's buffers. Answers are kept."""

    def __init__(self, layouts: Mapping[str, Layout], nodes: Sequence[ScheduleNode] = ()):
        self.layouts = layouts
        self.parts = _parts(nodes)
        self._views: dict[tuple[str, Space], _Kept] = {}
        self._spaces: dict[str, set[Space]] = {}
        self._unfit: dict[tuple, Problem | None] = {}
        self._conflicts: dict[tuple, Problem | None] = {}
        self.problem: Problem = ("space", "no loop of one and the same extent")

    # -- rows of one node ---------------------------------------------------------------------------------------------

    def spaces(self, node: ScheduleNode) -> set[Space]:
        """The extents of the loops over rows that a node may have."""
        if node.name not in self._spaces:
            found = row_spaces(node) if has_rows(node) else set()
            if node.kind == "scan":
                found = {_several(space) for space in found}
            if node.kind == "pointwise" and node.ranges and (part := _block(node.ranges[-1])):
                found.add((node.ranges[-1] // part,))
            if has_rows(node) and work(node) <= LITTLE_WORK:
                found.add(ONE_ROW)
            self._spaces[node.name] = found
        return self._spaces[node.name]

    @staticmethod
    def cut(space: Space, node: ScheduleNode) -> Space | None:
        """A single loop over rows cut where a node's loops are: 64 rows are 8 x 8 beside loops of 8 and 24."""
        found, rest = [], space[0] if len(space) == 1 else 1
        for extent in node.ranges[: MOST_LOOPS - 1]:
            if rest % extent or rest == extent:
                break
            if extent > 1:
                found.append(extent)
                rest //= extent
        return (*found, rest) if found and rest > 1 else None

    def views(self, node: ScheduleNode, space: Space) -> Iterable[RowView]:
        """The ways of taking such rows of a node to the front. A scan has only those that leave it some together."""
        if node.kind == "scan" and space not in self.spaces(node):
            return []
        if (node.name, space) not in self._views:
            parts = self.parts if node.kind == "pointwise" else ()
            self._views[node.name, space] = _Kept(row_views(node, space, parts))
        return self._views[node.name, space]

    def unfit(self, view: RowView) -> Problem | None:
        """The rule that one node alone breaks over these rows."""
        if view.key not in self._unfit:
            self._unfit[view.key] = self._broken_alone(view) if view.extents else None
        return self._unfit[view.key]

    def _broken_alone(self, view: RowView) -> Problem | None:
        points = view.node.numel * max(view.node.reduction_numel, 1)
        for access in view.accesses:
            layout, elements = self.layouts[access.buffer], view.elements(access)
            found = place(access.index, view.loops)
            few = elements == 1 or elements * FEW <= points
            if found is not None and not few and any(0 < abs(step) < LEAST_STEP for step in found.steps):
                return "space", f"neighbouring rows of {access.buffer} share cache lines"
            size = min(elements, layout.storage_elements) * layout.dtype.itemsize
            if size > ROW_BYTES:
                return "cache", f"a row has {size} bytes"
        return None

    # -- nodes together -----------------------------------------------------------------------------------------------

    def conflict(self, one: RowView, other: RowView) -> Problem | None:
        """The rule two nodes break together: what one writes, the other must read in the same row."""
        key = (one.key, other.key)
        if key not in self._conflicts:
            self._conflicts[key] = self._distance(one, other) or self._distance(other, one)
        return self._conflicts[key]

    def _distance(self, writer: RowView, reader: RowView) -> Problem | None:
        """Proposition 7.3: why a row reads what another one writes, or None if none does."""
        if not writer.extents:
            return None
        for write in writer.node.writes:
            wrote = place(write.index, writer.loops)
            for access in reader.node.reads:
                if access.buffer != write.buffer:
                    continue
                reads = place(access.index, reader.loops)
                if wrote is None or reads is None:
                    return "index", f"{write.buffer}: it is not written and read row by row"
                if wrote.agrees(reads):
                    continue
                if wrote.steps != reads.steps:
                    apart = [" x ".join(map(str, found.steps)) for found in (wrote, reads)]
                    return "index", f"{write.buffer}: written {apart[0]} apart and read {apart[1]} apart"
                why = "a row reads beyond what it wrote" if wrote.is_apart else "its rows overlap in memory"
                return "index", f"{write.buffer}: {why}"
        return None

    def together(self, views: Way) -> Problem | None:
        """The rule that nodes break as a whole, each pair of them being legal."""
        space, members = views[0].extents, [view.node for view in views]
        points = max(node.numel * max(node.reduction_numel, 1) for node in members)
        rows = views[0].rows
        if not space:
            total = sum(map(work, members))
            return None if total <= LITTLE_WORK else ("size", f"{total} operations, too many for a single row")
        fewest = FEWEST_ROWS if any(node.kind == "reduction" for node in members) else FEWEST_ELEMENTWISE
        if rows < fewest and rows * points >= SHORT:
            return "rows", f"{rows} rows"
        if points == 1:
            return "space", "rows of one element"
        return None

    def ways(self, start: Way, choices: Sequence[Iterable[RowView]]) -> Iterator[Way]:
        """Ways that begin with ``start`` (a legal one) and go on with one of each of the choices, as far as pairs
        decide. Where there is none, ``problem`` is the last that was met. MOST_STEPS at most are tried."""
        left = [MOST_STEPS]

        def longer(way: Way, number: int) -> Iterator[Way]:
            if number == len(choices):
                yield way
                return
            for view in choices[number]:
                if left[0] == 0:
                    return
                left[0] -= 1
                problem = self.unfit(view)
                problem = problem or next((p for other in way if (p := self.conflict(other, view))), None)
                if problem is None:
                    yield from longer((*way, view), number + 1)
                else:
                    self.problem = problem

        self.problem = ("space", "no loop of one and the same extent")
        yield from longer(start, 0)

    def ranked(self, spaces: set[Space], nodes: Sequence[ScheduleNode]) -> list[Space]:
        """Spaces, the best first: with a reduction the most rows, so that each is its own; else rows of a block."""
        points = max(node.numel * max(node.reduction_numel, 1) for node in nodes)
        reduces = any(node.kind != "pointwise" for node in nodes)

        def rank(space: Space) -> tuple:
            rows = math.prod(space)
            size = rows if reduces else -abs(math.log2(max(points / rows, 1) / BLOCK_ELEMENTS))
            return (not space, -size, len(space), space)

        return sorted(spaces, key=rank)


def _several(space: Space) -> Space:
    """Rows of which some are folded in turn: an addition waits for the one before it in its row (:mod:`..codegen`)."""
    *outer, last = space
    return (*outer, last // SCANNED_TOGETHER) if last % SCANNED_TOGETHER == 0 and last > SCANNED_TOGETHER else space


def _parts(nodes: Sequence[ScheduleNode]) -> tuple[int, ...]:
    """How far apart the rows of the program's reductions are: elementwise loops are cut alike."""
    found: dict[int, None] = {}
    for node in nodes:
        if node.kind == "reduction" and node.body is not None and len(node.reduction_ranges) > 1:
            steps = (a.index.coefficient(symbol) for a in node.reads for symbol in node.body.indices)
            found |= {int(step): None for step in steps if step is not None and step.is_constant and int(step) > 1}
    return tuple(found)[:MOST_PARTS]


@lru_cache(maxsize=1024)
def _block(extent: int) -> int:
    """The divisor of an extent that is nearest to a block's elements, within a factor of four; 0 if there is none."""
    for distance in range(3 * BLOCK_ELEMENTS + 1):
        for part in (BLOCK_ELEMENTS - distance, BLOCK_ELEMENTS + distance):
            if part >= BLOCK_ELEMENTS // 4 and extent % part == 0:
                return part
    return 0
