"""Greedy fusion: which nodes share a kernel (Section 7.3, Algorithm 7.1; Definition 7.3).

Nodes are merged into *groups* that share a loop over rows (:mod:`.rows`): inside it they run one after the other, so
that what one leaves in the cache the next finds there, and what only they need never reaches memory. A merge has to be
legal, and every pair that is not keeps the rule that says why:

``space``    no loop of the two has the same extent, or none of that extent runs over rows that lie apart in memory
             (Definition 7.2)
``path``     a third node needs the result of one and is needed by the other: the kernels would wait for each other
             (Proposition 7.1)
``index``    an iteration would read what another iteration writes (Propositions 7.2 and 7.3: the distance between write
             and read is not zero)
``rows``     too few rows: a reduction that is cut into pieces would lose its parallel work
``cache``    a row does not fit the second-level cache, so nothing would be found there
``size``     the kernel would have too many members for one source file

Among the legal merges the best is taken, merged, and the rest weighed again, until none is left. What "best" means is a
function, :func:`score`, that may be replaced.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from functools import lru_cache

from ..loops.ir import Layout
from ..options import Decision
from .records import ScheduleNode
from .rows import LEAST_STEP, RowView, has_rows, row_counts, row_views, span

#: Below so many rows a long reduction is cut into pieces instead (Section 6.5), and shares its kernel with nobody.
FEWEST_ROWS = 64
SHORT = 1 << 16

#: What all accesses of a row may touch, in bytes: what a second-level cache holds besides other things.
ROW_BYTES = 512 << 10

#: What private buffers of a kernel may take on a thread's stack, whose size no kernel chooses. Others get memory.
STACK_BYTES = 128 << 10

#: Members of a kernel, and how many of the next readers of a buffer a node is paired with: both keep the work, and the
#: source of a kernel, in proportion to the program.
MOST_MEMBERS = 24
NEAREST = 6

#: Elements of a row that a loop without rows of its own is cut into.
BLOCK_ELEMENTS = 4096


@dataclass(frozen=True)
class Group:
    """Nodes that share a kernel, in order. A single node has no rows."""

    members: tuple[ScheduleNode, ...]
    views: tuple[RowView, ...] = ()

    @property
    def rows(self) -> int:
        return self.views[0].rows if self.views else 0

    @property
    def names(self) -> frozenset[str]:
        return frozenset(node.name for node in self.members)

    @property
    def written(self) -> frozenset[str]:
        return frozenset(buffer for node in self.members for buffer in node.buffers)

    @property
    def read(self) -> frozenset[str]:
        return frozenset(access.buffer for node in self.members for access in node.reads)


@dataclass(frozen=True)
class Pair:
    """Two groups that share a buffer: what fusing them would save, and the rule that forbids it, if one does."""

    first: Group
    second: Group
    kind: str
    bytes_saved: int
    distance: int
    rule: str = ""
    reason: str = ""
    merged: Group | None = None


Score = Callable[[Pair], tuple]


def score(pair: Pair) -> tuple:
    """Vertical before horizontal, then the bytes that need not be moved, then nearness in the order of the program."""
    return (pair.kind == "vertical", pair.bytes_saved, -pair.distance)


class Fusion:
    """One run of Algorithm 7.1 over nodes in topological order."""

    def __init__(
        self, nodes: list[ScheduleNode], layouts: Mapping[str, Layout], escaping: frozenset[str], score: Score = score
    ):
        self.layouts, self.escaping, self.score = layouts, escaping, score
        self.position = {node.name: number for number, node in enumerate(nodes)}
        self.groups = [Group((node,)) for node in nodes]
        self.group_of = {node.name: group for node, group in zip(nodes, self.groups, strict=True)}
        self.pairs: dict[tuple[frozenset[str], frozenset[str]], Pair] = {}
        self.merges: list[Pair] = []
        self.views: dict[tuple[str, int], list[tuple[RowView, ...]]] = {}
        self.readers: dict[str, set[str]] = {}
        for node in nodes:
            for access in node.reads:
                self.readers.setdefault(access.buffer, set()).add(node.name)

    def run(self) -> list[Group]:
        """The groups, each after those it needs. O(nodes) pairs are weighed, and again after each merge beside them."""
        for first, second in self._neighbours():
            self._weigh(first, second)
        while True:
            legal = [pair for pair in self.pairs.values() if pair.merged is not None and pair.bytes_saved > 0]
            if not legal:
                return self._ordered()
            best = max(legal, key=self.score)
            # Merges of others may have led a path from one to the other since the pair was weighed.
            if self._path_between(best.first, best.second):
                self._weigh(best.first, best.second)
            else:
                self._merge(best)

    # -- candidates ---------------------------------------------------------------------------------------------------

    def _neighbours(self) -> Iterator[tuple[Group, Group]]:
        users: dict[str, list[Group]] = {}
        for group in self.groups:
            for buffer in group.read | group.written:
                users.setdefault(buffer, []).append(group)
        seen = set()
        for groups in users.values():
            for position, first in enumerate(groups):
                for second in groups[position + 1 : position + 1 + NEAREST]:
                    if (first.names, second.names) not in seen:
                        seen.add((first.names, second.names))
                        yield first, second

    def _weigh(self, first: Group, second: Group) -> None:
        if self._start(second) < self._start(first):
            first, second = second, first
        self.pairs[first.names, second.names] = self._pair(first, second)

    def _start(self, group: Group) -> int:
        return min(self.position[node.name] for node in group.members)

    def _pair(self, first: Group, second: Group) -> Pair:
        vertical = bool(first.written & second.read)
        saved = 0
        for buffer in (first.read | first.written) & (second.read | second.written):
            layout = self.layouts[buffer]
            size = min(self._touched(first, buffer), self._touched(second, buffer)) * layout.dtype.itemsize
            saved += size  # the second need not read it again
            if buffer in first.written and self._is_private(buffer, first.names | second.names):
                saved += size  # nor the first write it
        distance = self._start(second) - self._start(first)
        pair = Pair(first, second, "vertical" if vertical else "horizontal", saved, distance)
        if not all(has_rows(node) for node in first.members + second.members):
            return replace(pair, rule="space", reason="a call, or a node without rows")
        if len(first.members) + len(second.members) > MOST_MEMBERS:
            return replace(pair, rule="size", reason=f"more than {MOST_MEMBERS} members")
        if self._path_between(first, second):
            return replace(pair, rule="path", reason="a third kernel stands between the two")
        return self._aligned(pair)

    def _touched(self, group: Group, buffer: str) -> int:
        accesses = [a for node in group.members for a in node.reads + node.writes if a.buffer == buffer]
        return min(max(a.unique_elements for a in accesses), self.layouts[buffer].storage_elements)

    def _is_private(self, buffer: str, names: frozenset[str]) -> bool:
        return buffer not in self.escaping and self.readers.get(buffer, set()) <= names

    def _path_between(self, first: Group, second: Group) -> bool:
        """Whether the second needs the first through a third (Proposition 7.1); the first never needs the second, but
        may through groups of which both are part."""
        return self._reaches(first, second) or self._reaches(second, first)

    def _reaches(self, start: Group, goal: Group) -> bool:
        seen: set[frozenset[str]] = {goal.names}
        stack = [goal]
        first_step = True
        while stack:
            group = stack.pop()
            for node in group.members:
                for name in node.predecessors:
                    before = self.group_of[name]
                    if before is start:
                        if not first_step:
                            return True
                        continue
                    if before.names not in seen:
                        seen.add(before.names)
                        stack.append(before)
            first_step = False
        return False

    # -- legality -----------------------------------------------------------------------------------------------------

    def _aligned(self, pair: Pair) -> Pair:
        """The pair merged, in the first way that is legal; or with the rule that the last way broke."""
        first, second = pair.first, pair.second
        counts = [group.rows for group in (first, second) if group.rows]
        wanted = set(counts[:1]) if counts else {n for g in (first, second) for n in self._counts(g.members[0])}
        if len(set(counts)) > 1:
            return replace(pair, rule="space", reason=f"{counts[0]} rows and {counts[1]} rows")
        rule, reason = "space", "no loop of one and the same extent"
        for rows in sorted(wanted, reverse=True):
            ways = [self._ways(group, rows) for group in (first, second)]
            for one, other in itertools.product(*ways):
                views = tuple(sorted(one + other, key=lambda view: self.position[view.name]))
                found = self._broken_rule(one, other, views)
                if found is None:
                    members = tuple(sorted(first.members + second.members, key=lambda node: self.position[node.name]))
                    return replace(pair, merged=Group(members, views))
                rule, reason = found
        return replace(pair, rule=rule, reason=reason)

    def ways_of(
        self, nodes: tuple[ScheduleNode, ...], start: tuple[RowView, ...] = ()
    ) -> Iterator[tuple[RowView, ...]]:
        """Every way of running nodes in one kernel that no rule forbids, after those of ``start``; in the order of the
        program. Paths through other nodes are not looked at: whether there are any depends on the other groups.

        Ways of rows with one element each, which a further node may yet make legal, are among them (:meth:`allows`).
        """
        if len(start) + len(nodes) > MOST_MEMBERS or not all(has_rows(node) for node in nodes):
            return
        counts = {start[0].rows} if start else set().union(*(self._counts(node) for node in nodes))
        for rows in sorted(counts, reverse=True):
            ways = [start]
            for node in nodes:
                longer = (way + more for way in ways for more in self._ways(Group((node,)), rows))
                ways = [way for way in longer if self.allows(way) or _points(way) == 1]
            yield from ways

    def allows(self, views: tuple[RowView, ...]) -> bool:
        """Whether nodes may run in one kernel over these rows, as far as it depends on nothing else."""
        return self._broken_rule(views, (), views) is None

    def _ways(self, group: Group, rows: int) -> list[tuple[RowView, ...]]:
        """The ways of running a group over so many rows: the one it has, or all there are for a single node."""
        if group.rows:
            return [group.views]
        (node,) = group.members
        if (node.name, rows) not in self.views:
            self.views[node.name, rows] = [(view,) for view in row_views(node, rows)]
        return self.views[node.name, rows]

    def _counts(self, node: ScheduleNode) -> set[int]:
        counts = row_counts(node)
        if node.kind == "pointwise" and node.ranges:
            part = _block(node.ranges[-1])
            if part:
                counts.add(node.ranges[-1] // part)
        return counts

    def _broken_rule(
        self, one: tuple[RowView, ...], other: tuple[RowView, ...], views: tuple[RowView, ...]
    ) -> tuple[str, str] | None:
        rows = views[0].rows
        points = _points(views)
        if rows < FEWEST_ROWS and rows * points >= SHORT:
            return "rows", f"{rows} rows"
        largest = 0
        for view in views:
            for access in view.accesses:
                layout = self.layouts[access.buffer]
                found = span(access.index, view.row)
                if found is None:
                    return "space", f"{access.buffer} is not read row by row"
                alone = access.unique_elements <= rows  # a number for each row, or for all
                if found.step and abs(found.step) < LEAST_STEP and not alone:
                    return "space", f"neighbouring rows of {access.buffer} share cache lines"
                whole = min(access.unique_elements, layout.storage_elements) * layout.dtype.itemsize
                largest = max(largest, whole // rows if found.step else whole)
        if largest > ROW_BYTES:
            return "cache", f"a row has {largest} bytes"
        if points == 1:
            return "space", "rows of one element"
        written = {view.node.buffers[0]: view for view in views}
        for reader in views:
            for access in reader.node.reads:
                writer = written.get(access.buffer)
                if writer is not None and (problem := _distance(writer, reader, access.index)):
                    return "index", f"{access.buffer}: {problem}"
        shared = {a.buffer for v in one for a in v.accesses} & {a.buffer for v in other for a in v.accesses}
        for buffer in shared - written.keys():
            steps = {span(a.index, v.row).step for v in views for a in v.node.reads if a.buffer == buffer}
            if len(steps) > 1 and not any(v.node.buffers[0] in shared for v in views):
                return "index", f"{buffer} is read in different rows"
        return None

    def needs_memory(self, views: tuple[RowView, ...], wanted: Set[str]) -> frozenset[str]:
        """The buffers of a group that get memory though nobody outside needs them, as all of ``wanted`` are needed."""
        return beyond_the_stack(views, wanted, self.layouts)

    # -- merging ------------------------------------------------------------------------------------------------------

    def _merge(self, pair: Pair) -> None:
        merged = pair.merged
        assert merged is not None
        self.merges.append(pair)
        gone = (pair.first, pair.second)
        neighbours = {}
        for (left, right), other in list(self.pairs.items()):
            if other.first in gone or other.second in gone:
                del self.pairs[left, right]
                for group in (other.first, other.second):
                    if group not in gone:
                        neighbours[group.names] = group
        self.groups = [group for group in self.groups if group not in gone] + [merged]
        for node in merged.members:
            self.group_of[node.name] = merged
        for group in neighbours.values():
            self._weigh(group, merged)

    def _ordered(self) -> list[Group]:
        found: dict[frozenset[str], Group] = {}

        def visit(group: Group) -> None:
            if group.names in found:
                return
            for node in group.members:
                for name in node.predecessors:
                    if self.group_of[name] is not group:
                        visit(self.group_of[name])
            found[group.names] = group

        for group in sorted(self.groups, key=self._start):
            visit(group)
        return list(found.values())


@lru_cache(maxsize=1024)
def _block(extent: int) -> int:
    """The divisor of an extent that is nearest to a block's elements, within a factor of four; 0 if there is none."""
    for distance in range(3 * BLOCK_ELEMENTS + 1):
        for part in (BLOCK_ELEMENTS - distance, BLOCK_ELEMENTS + distance):
            if part >= BLOCK_ELEMENTS // 4 and extent % part == 0:
                return part
    return 0


def fuse(
    nodes: list[ScheduleNode],
    layouts: Mapping[str, Layout],
    escaping: frozenset[str],
    score: Score = score,
    rules: Callable[..., Fusion] = Fusion,
) -> tuple[list[ScheduleNode], tuple[Decision, ...]]:
    """The nodes with those of one group made one, in an order in which they can run, and why they were or were not.

    ``escaping`` are the buffers that need memory whoever reads them; ``rules`` makes the run of the algorithm, by the
    rules of a device (:class:`.programs.ProgramFusion`: those of a GPU).
    """
    run = rules(nodes, layouts, escaping, score)
    groups = run.run()
    name = {node.name: "+".join(n.name for n in group.members) for group in groups for node in group.members}
    found = []
    for group in groups:
        before = dict.fromkeys(name[p] for node in group.members for p in node.predecessors if p not in group.names)
        joined = _joined(group, nodes, run) if group.views else group.members[0]
        found.append(replace(joined, name=name[group.members[0].name], predecessors=tuple(before)))
    return found, tuple(_decision(pair) for pair in (*run.merges, *run.pairs.values()))


def _joined(group: Group, nodes: list[ScheduleNode], run: Fusion) -> ScheduleNode:
    inside = group.written
    wanted = {a.buffer for node in nodes if node.name not in group.names for a in node.reads} | run.escaping
    wanted |= run.needs_memory(group.views, wanted)
    members = tuple(view.node for view in group.views)
    return ScheduleNode(
        name="",
        kind="fused",
        buffers=tuple(b for member in members for b in member.buffers if b in wanted),
        origins=frozenset().union(*(member.origins for member in members)),
        reads=tuple(dict.fromkeys(a for m in members for a in m.reads if a.buffer not in inside)),
        writes=tuple(a for member in members for a in member.writes if a.buffer in wanted),
        members=members,
        row=group.views[0].row,
    )


def beyond_the_stack(views: tuple[RowView, ...], wanted: Set[str], layouts: Mapping[str, Layout]) -> frozenset[str]:
    """The buffers nobody outside needs (all but ``wanted``) that the stack has no room for: they get memory."""
    left, found = STACK_BYTES, []
    for view in views:
        (buffer,) = view.node.buffers
        wrote = span(view.node.writes[0].index, view.row)
        assert wrote is not None
        size = (wrote.high - wrote.low + 1) * layouts[buffer].dtype.itemsize
        if buffer not in wanted:
            if size > left:
                found.append(buffer)
            else:
                left -= size
    return frozenset(found)


def _points(views: tuple[RowView, ...]) -> int:
    """Points of a row, of the node that has most."""
    return max(view.node.numel * max(view.node.reduction_numel, 1) for view in views)


def _decision(pair: Pair) -> Decision:
    subject = " + ".join(sorted((*pair.first.names, *pair.second.names)))
    inputs = (("bytes saved", pair.bytes_saved), ("nodes between", pair.distance - 1))
    if pair.merged is None:
        return Decision("fuse", subject, None, f"{pair.rule}: {pair.reason}", ("vertical", "horizontal", None), inputs)
    reason = f"over {pair.merged.rows:,} rows" if pair.bytes_saved else "nothing would be saved"
    choice = pair.kind if pair.bytes_saved else None
    return Decision("fuse", subject, choice, reason, ("vertical", "horizontal", None), inputs)


def _distance(writer: RowView, reader: RowView, index: object) -> str:
    """Why an iteration reads what another one writes, or "" if none does: then the distance is zero."""
    wrote, reads = span(writer.node.writes[0].index, writer.row), span(index, reader.row)
    assert wrote is not None and reads is not None
    if wrote.step != reads.step:
        return f"written {wrote.step} apart and read {reads.step} apart"
    if wrote.high - wrote.low >= abs(wrote.step):
        return "its rows overlap in memory"
    if reads.low < wrote.low or reads.high > wrote.high:
        return "a row reads beyond what it wrote"
    return ""
