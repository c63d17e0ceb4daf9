"""A schedule as a fusion partition problem, by the rules the compiler itself goes by (Definition 7.3).

What may share a kernel is asked of :class:`~.fusion.Fusion`: a class is legal if there is a way of writing all of its
nodes over one loop of rows. That is more than its pairs can say, since two legal pairs may want different rows. What a
class moves is counted a little more sharply than by whole buffers: a node that reads part of a buffer pays for that
part, a buffer that one kernel reads in two different orders of rows is read twice unless it stays in the cache, and one
that only a kernel needs is in memory all the same where its stack has no room.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from itertools import islice

from ..loops.body import MemoryAccess
from ..loops.ir import Layout
from .fusion import Fusion
from .fusion_problem import Buffer, FusionProblem, bits
from .legality import ROW_BYTES, Space, Way
from .records import ScheduleNode
from .rows import RowView, has_rows, place

MOST_WAYS = 2000  # of running one class that are kept


def problem_of(run: Fusion, nodes: Sequence[ScheduleNode]) -> FusionProblem:
    """The problem that ``run``, made for these nodes, solves greedily."""
    place_of = {node.name: k for k, node in enumerate(nodes)}
    writers: dict[str, int] = {}
    written: dict[str, int] = {}
    readers: dict[str, dict[int, dict[Hashable, int]]] = {}
    for k, node in enumerate(nodes):
        for name in node.buffers:
            writers[name], written[name] = k, 0
        for access in node.writes:
            written[access.buffer] += _size(access, run.layouts[access.buffer])
        for access in node.loads:
            parts = readers.setdefault(access.buffer, {}).setdefault(k, {})
            parts[_part(access)] = _size(access, run.layouts[access.buffer])
    buffers = []
    for name in dict.fromkeys([*readers, *writers]):
        layout = run.layouts[name]
        whole = layout.storage_elements * layout.dtype.itemsize
        touched = readers.get(name, {})
        parts = {k: tuple(found.items()) for k, found in touched.items() if sum(found.values()) < whole}
        escapes = name in run.escaping
        buffers.append(Buffer(name, whole, writers.get(name), tuple(sorted(touched)), escapes, parts,
                              min(written[name], whole) if name in writers else None))  # fmt: skip
    edges = frozenset((place_of[before], k) for k, node in enumerate(nodes) for before in node.predecessors)
    names = tuple(place_of)
    return FusionProblem(names, tuple(buffers), edges, {}, RowClasses(run, nodes, buffers))


def _size(access: MemoryAccess, layout: Layout) -> int:
    return min(access.unique_elements, layout.storage_elements) * layout.dtype.itemsize


def _part(access: MemoryAccess) -> Hashable:
    """A name for what an access touches. Two loops that go over the same elements in different orders, or with
    different numbers of loops, agree in it."""
    bounds = access.index.bounds()
    return bounds.lower, bounds.upper, access.unique_elements


class RowClasses:
    """What a run of fusion allows (:class:`~.fusion_problem.Classes`). Answers are kept, one for each set of nodes.

    ``is_cut``: some class had more ways than are kept, or a kernel of the run's own was not found here. What was left
    out might have made a larger one legal.
    """

    def __init__(self, run: Fusion, nodes: Sequence[ScheduleNode], buffers: Sequence[Buffer]):
        self.run, self.nodes, self.buffers = run, tuple(nodes), buffers
        self.spaces = [run.rules.spaces(node) if has_rows(node) else set() for node in nodes]
        self.is_cut = False
        self._ways: dict[int, list[Way]] = {}
        self._extra: dict[int, int | None] = {}
        self._reads: dict[tuple[str, int], int] = {}
        self._readers = {b.name: sum(1 << reader for reader in b.readers) for b in buffers}
        self._rows: dict[tuple[int, ...], frozenset[Space]] = {}

    def ways(self, members: int) -> list[Way]:
        """The ways of running these nodes in one kernel over rows that any node of the program offers. What no part of
        a class allows, the class does not allow. Of several nodes MOST_WAYS are kept."""
        if members not in self._ways:
            last = members.bit_length() - 1
            rest = members & ~(1 << last)
            node = (self.nodes[last],)
            if rest:
                found = (way for start in self.ways(rest) for way in self.run.ways_of(node, start))
                self._ways[members] = list(islice(found, MOST_WAYS))
                self.is_cut |= next(found, None) is not None
            else:
                self._ways[members] = list(self.run.ways_of(node, (), self._offered(range(len(self.nodes)))))
        return self._ways[members]

    def _offered(self, members: Iterable[int]) -> frozenset[Space]:
        """The rows that nodes offer, and those that cutting them where another node's loops are leads to."""
        members = tuple(members)
        if members not in self._rows:
            found: set[Space] = set().union(*(self.spaces[node] for node in members))
            fresh = found
            while fresh:
                cuts = (self.run.rules.cut(space, self.nodes[node]) for space in fresh for node in members)
                fresh = {space for space in cuts if space} - found
                found = found | fresh
            self._rows[members] = frozenset(found)
        return self._rows[members]

    def admit(self, views: Way) -> None:
        """A kernel of the run's own, which is legal whether its way was found here or not."""
        members = sum(1 << self.run.position[view.name] for view in views)
        if self.extra(members) is None:
            self._ways[members], self.is_cut = [views], True
            self._extra[members] = self._more(views, members)

    def may_grow(self, members: int) -> bool:
        return members.bit_count() < 2 or bool(self.ways(members))

    def extra(self, members: int) -> int | None:
        if members.bit_count() < 2:
            return 0
        if members not in self._extra:
            offered = self._offered(bits(members))
            legal = [way for way in self.ways(members) if way[0].extents in offered and self.run.allows(way)]
            self._extra[members] = min((self._more(way, members) for way in legal), default=None)
        return self._extra[members]

    def reads(self, buffer: Buffer, members: int) -> int:
        inside = members & self._readers[buffer.name]
        plain = buffer.bytes_read(inside)
        if buffer.nbytes <= ROW_BYTES or inside.bit_count() < 2:
            return plain
        key = buffer.name, members
        if key not in self._reads:
            self._reads[key] = min((self._in_orders(buffer, way) for way in self.ways(members)), default=plain)
        return self._reads[key]

    def _in_orders(self, buffer: Buffer, way: Way) -> int:
        """Bytes of a large buffer that are read: once for every order of rows."""
        orders: dict[Hashable, int] = {}
        for view in way:
            for access in view.node.loads:
                if access.buffer == buffer.name:
                    order = _order(access, view)
                    orders[order] = orders.get(order, 0) | 1 << self.run.position[view.name]
        return sum(map(buffer.bytes_read, orders.values()))

    def _more(self, way: Way, members: int) -> int:
        """Bytes beyond those of Definition 7.3: what the stack cannot hold, and what is read in several orders."""
        wanted = {b.name for b in self.buffers if b.escapes or any(not members >> r & 1 for r in b.readers)}
        in_memory = self.run.needs_memory(way, frozenset(wanted))
        total = sum(buffer.bytes_written for buffer in self.buffers if buffer.name in in_memory)
        for buffer in self.buffers:
            inside = members & self._readers[buffer.name]
            if buffer.nbytes > ROW_BYTES and inside.bit_count() > 1 and buffer.writer not in bits(members):
                total += self._in_orders(buffer, way) - buffer.bytes_read(inside)
        return total


def _order(access: MemoryAccess, view: RowView) -> Hashable:
    """What tells apart the rows in which two nodes read the same buffer."""
    found = place(access.index, view.loops)
    return None if found is None else found.steps
