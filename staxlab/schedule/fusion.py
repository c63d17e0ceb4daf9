"""Greedy fusion: which nodes share a kernel (Section 7.3, Algorithm 7.1; Definition 7.3).

Nodes are merged into *groups* that share a loop over rows (:mod:`.rows`): inside it they run one after the other, so
that what one leaves in the cache the next finds there, and what only they need never reaches memory. A merge has to be
legal, and every pair that is not keeps the rule that says why:

``space``    no loop of the two has the same extent, or none of that extent runs over rows that lie apart in memory
             (Definition 7.2)
``path``     a third node needs the result of one and is needed by the other: the kernels would wait for each other
             (Proposition 7.1); a call that draws random numbers needs the one that draws before it
``index``    an iteration would read what another iteration writes (Propositions 7.2 and 7.3: the distance between write
             and read is not zero)
``rows``     too few rows: a reduction that is cut into pieces would lose its parallel work
``cache``    a row does not fit the second-level cache, so nothing would be found there
``size``     the kernel would have too many members for one source file
``order``    a subscript would be checked before a call of PyTorch's that comes first and may fail as well

Among the legal merges the best is taken, merged, and the rest weighed again, until none is left. What "best" means is a
function, :func:`score`, that may be replaced.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, replace
from functools import cached_property

from ..loops.body import MemoryAccess
from ..loops.ir import Layout
from ..options import Decision
from .in_place import copies_to_begin_with
from .legality import ONE_ROW, Legality, Space, Way
from .records import ScheduleNode, node_has_effect
from .rows import RowView, has_rows, place

#: What private buffers of a kernel may take on a thread's stack, whose size no kernel chooses. Others get memory.
STACK_BYTES = 128 << 10

#: Members of a kernel, and how many of the next readers of a buffer a node is paired with: both keep the work, and the
#: source of a kernel, in proportion to the program.
MOST_MEMBERS = 24
NEAREST = 6

#: Kernels with little to do that one more may be added to.
LATEST = 4


@dataclass(frozen=True)
class Group:
    """Nodes that share a kernel, in order. A single node has no rows."""

    members: tuple[ScheduleNode, ...]
    views: tuple[RowView, ...] = ()

    @property
    def rows(self) -> int:
        return self.views[0].rows if self.views else 0

    @property
    def space(self) -> Space:
        """The extents of its loops over rows."""
        return self.views[0].extents if self.views else ()

    @cached_property
    def names(self) -> frozenset[str]:
        return frozenset(node.name for node in self.members)

    @cached_property
    def written(self) -> frozenset[str]:
        return frozenset(buffer for node in self.members for buffer in node.buffers)

    @cached_property
    def read(self) -> frozenset[str]:
        return frozenset(access.buffer for node in self.members for access in node.reads)

    @cached_property
    def needed(self) -> frozenset[str]:
        """The nodes outside that members wait for."""
        return frozenset(name for node in self.members for name in node.predecessors) - self.names


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
    """The order of magnitude of what need not be moved, in powers of 16; among pairs that save about as much, vertical
    before horizontal, then the bytes, then nearness in the order of the program.

    Section 7.3 has the kind first. That merges a small sum with its reader before two kernels that both walk over a
    large matrix, and may leave these at different rows: on the backward of a layer norm it moves 1.6 times the least.
    """
    return (pair.bytes_saved.bit_length() // 4, pair.kind == "vertical", pair.bytes_saved, -pair.distance)


class Fusion:
    """One run of Algorithm 7.1 over nodes in topological order. Nodes of other ``kinds`` share no kernel."""

    kinds: tuple[str, ...] = ("pointwise", "reduction", "scan")

    def __init__(
        self, nodes: list[ScheduleNode], layouts: Mapping[str, Layout], escaping: frozenset[str], score: Score = score
    ):
        self.layouts, self.escaping, self.score = layouts, escaping, score
        nodes = in_order_of_effects(nodes)
        self.position = {node.name: number for number, node in enumerate(nodes)}
        self.groups = [Group((node,)) for node in nodes]
        self.group_of = {node.name: group for node, group in zip(nodes, self.groups, strict=True)}
        self.pairs: dict[tuple[frozenset[str], frozenset[str]], Pair] = {}
        self.merges: list[Pair] = []
        self.nodes = {node.name: node for node in nodes}
        self.rules = Legality(layouts, nodes)
        self.alone = copies_to_begin_with(nodes)
        self.calls = [(node.name, self.position[node.name]) for node in nodes if node.extern is not None]
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
                self._gather()
                return self._ordered()
            best = max(legal, key=self.score)
            # Merges of others may have led a path from one to the other since the pair was weighed.
            if self._path_between(best.first, best.second):
                self._weigh(best.first, best.second)
            else:
                self._merge(best)

    def _gather(self) -> None:
        """Merge nodes with little to do that share nothing: a kernel takes longer to compile, and to call, than they
        take to run. Each is tried with the LATEST such groups before it."""
        before: list[Group] = []
        for group in self._ordered():
            if not all(ONE_ROW in self.rules.spaces(node) for node in group.members):
                continue
            for other in before[-LATEST:]:
                pair = self._pair(other, group)
                if pair.merged is not None and pair.merged.space == ONE_ROW:
                    self._merge(pair)
                    before[before.index(other)] = pair.merged
                    break
            else:
                before.append(group)

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
        if self.alone & (first.names | second.names):
            return replace(pair, rule="space", reason="a copy that need not run if it may stand where the input does")
        if not all(map(self._joins, first.members + second.members)):
            return replace(pair, rule="space", reason="a call, or a node without rows")
        if len(first.members) + len(second.members) > MOST_MEMBERS:
            return replace(pair, rule="size", reason=f"more than {MOST_MEMBERS} members")
        if self._path_between(first, second):
            return replace(pair, rule="path", reason="a third kernel stands between the two")
        if call := self._overtaken(first.members + second.members):
            return replace(pair, rule="order", reason=f"a check would come before {call}, which may fail first")
        return self._aligned(pair)

    def _joins(self, node: ScheduleNode) -> bool:
        """Whether a node may share a kernel at all."""
        return has_rows(node) and node.kind in self.kinds

    def _overtaken(self, members: tuple[ScheduleNode, ...]) -> str:
        """A call of PyTorch's that a member with a check (a subscript that may be out of range) would move ahead of, if
        all members ran where the first of them stands; "" if there is none. Errors come in the order of the program."""
        start = min(self.position[node.name] for node in members)
        for node in members:
            if node.body is not None and node.body.may_fail:
                for call, position in self.calls:
                    if start < position < self.position[node.name]:
                        return call
        return ""

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
        seen, stack, is_first = {id(goal)}, [goal], True
        while stack:
            group = stack.pop()
            for before in {id(found): found for found in map(self.group_of.__getitem__, group.needed)}.values():
                if before is start:
                    if not is_first:
                        return True
                elif id(before) not in seen:
                    seen.add(id(before))
                    stack.append(before)
            is_first = False
        return False

    # -- legality -----------------------------------------------------------------------------------------------------

    def _aligned(self, pair: Pair) -> Pair:
        """The pair merged, in the first way that is legal; or with the rule that the last way broke."""
        groups = sorted((pair.first, pair.second), key=lambda group: -len(group.members))
        nodes = [node for group in groups for node in group.members]
        spaces = set().union(*({g.space} if g.views else self.rules.spaces(g.members[0]) for g in groups))
        spaces |= {cut for node in nodes for space in spaces if (cut := self.rules.cut(space, node))}
        rule, reason = "space", "no loop of one and the same extent"
        for space in self.rules.ranked(spaces, nodes):
            if any(node.numel % math.prod(space) for node in nodes):
                continue
            for views in self._ways(groups, space):
                problem = self.rules.together(views) or self._apart(pair, views)
                if problem is None:
                    return replace(pair, merged=Group(tuple(self.nodes[v.name] for v in views), views))
                rule, reason = problem
            if (rule, reason) == ("space", "no loop of one and the same extent"):
                rule, reason = self.rules.problem
        return replace(pair, rule=rule, reason=reason)

    def _ways(self, groups: list[Group], space: Space) -> Iterator[Way]:
        """The ways of running two groups over these rows; a group that has them keeps the way it has."""
        one, other = groups
        kept = [group.views if group.views and group.space == space else None for group in groups]
        start = kept[0] or ()
        choices = [[view] for view in kept[1] or ()]
        for group, views in zip((one, other), kept, strict=True):
            choices += [self.rules.views(node, space) for node in group.members] if views is None else []
        for way in self.rules.ways(start, choices):
            yield self._in_order(way)

    def _in_order(self, way: Way) -> Way:
        return tuple(sorted(way, key=lambda view: self.position[view.name]))

    def _apart(self, pair: Pair, views: Way) -> tuple[str, str] | None:
        """Two groups of which neither reads the other's results, and that read what they share in different rows:
        nothing is found in the cache then."""
        if pair.kind == "vertical" or not views[0].extents:
            return None
        for buffer in pair.first.read & pair.second.read:
            found = {place(a.index, view.loops) for view in views for a in view.node.reads if a.buffer == buffer}
            if len({None if where is None else where.steps for where in found}) > 1:
                return "index", f"{buffer} is read in different rows"
        return None

    def ways_of(
        self, nodes: tuple[ScheduleNode, ...], start: Way = (), spaces: Set[Space] | None = None
    ) -> Iterator[Way]:
        """Every way of running nodes in one kernel that no rule forbids, after those of ``start``; in the order of the
        program. Paths through other nodes are not looked at: whether there are any depends on the other groups.

        ``spaces`` are the rows to try, by default those the nodes offer. Ways of rows with one element each, which a
        further node may yet make legal, are among them (:meth:`allows`).
        """
        if len(start) + len(nodes) > MOST_MEMBERS or not all(map(has_rows, nodes)):
            return
        offered = set().union(*map(self.rules.spaces, nodes)) if spaces is None else set(spaces)
        for space in self.rules.ranked({start[0].extents} if start else offered, nodes):
            choices = [self.rules.views(node, space) for node in nodes]
            for way in self.rules.ways(start, choices):
                if self.allows(way) or _points(way) == 1:
                    yield way

    def allows(self, views: Way) -> bool:
        """Whether nodes may run in one kernel over these rows, as far as it depends on nothing else."""
        pairs = itertools.combinations(views, 2)
        problems = (*map(self.rules.unfit, views), *(self.rules.conflict(a, b) for a, b in pairs))
        return not any(problems) and self.rules.together(views) is None

    def needs_memory(self, views: Way, wanted: frozenset[str]) -> frozenset[str]:
        """The buffers that only members read (all but ``wanted``) and that get memory all the same."""
        return beyond_the_stack(views, wanted, self.layouts)

    # -- merging ------------------------------------------------------------------------------------------------------

    def _merge(self, pair: Pair) -> None:
        merged = pair.merged
        assert merged is not None
        self.merges.append(pair)
        gone = {pair.first.names, pair.second.names}  # every node is in one group: its names are the group
        neighbours = {}
        for (left, right), other in list(self.pairs.items()):
            if left in gone or right in gone:
                del self.pairs[left, right]
                for group in (other.first, other.second):
                    if group.names not in gone:
                        neighbours[group.names] = group
        self.groups = [group for group in self.groups if group.names not in gone] + [merged]
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


def in_order_of_effects(nodes: list[ScheduleNode]) -> list[ScheduleNode]:
    """The nodes, where each call of PyTorch's that is run for more than its value waits for the one before it: random
    numbers are drawn, inputs written and errors raised in the order of the program."""
    found, last = [], ""
    for node in nodes:
        if node.extern is not None and node_has_effect(node):
            if last and last not in node.predecessors:
                node = replace(node, predecessors=(*node.predecessors, last))
            last = node.name
        found.append(node)
    return found


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
    reads = {node.name: node.predecessors for node in nodes}  # without what is there for the order alone
    found = []
    for group in groups:
        before = dict.fromkeys(name[p] for node in group.members for p in reads[node.name] if p not in group.names)
        joined = _joined(group, nodes, run) if group.views else group.members[0]
        found.append(replace(joined, name=name[group.members[0].name], predecessors=tuple(before)))
    return found, (
        *(_decision(pair, True) for pair in run.merges),
        *(_decision(pair, False) for pair in run.pairs.values()),
    )


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
        row_loops=group.views[0].loops,
    )


def beyond_the_stack(views: Way, wanted: Set[str], layouts: Mapping[str, Layout]) -> frozenset[str]:
    """The buffers nobody outside needs (all but ``wanted``) that the stack has no room for: they get memory."""
    left, found = STACK_BYTES, []
    for view in views:
        for write in view.node.writes:
            if write.buffer in wanted:
                continue
            wrote = _local_bounds(write, view)
            reads = [_local_bounds(a, other) for other in views for a in other.node.reads if a.buffer == write.buffer]
            inside = wrote and all(read and wrote[0] <= read[0] and read[1] <= wrote[1] for read in reads)
            size = (wrote[1] - wrote[0] + 1) * layouts[write.buffer].dtype.itemsize if wrote and inside else left + 1
            if size > left:
                found.append(write.buffer)
            else:
                left -= size
    return frozenset(found)


def _local_bounds(access: MemoryAccess, view: RowView) -> tuple[int, int] | None:
    found = place(access.index, view.loops)
    return None if found is None else found.bounds


def _points(views: tuple[RowView, ...]) -> int:
    """Points of a row, of the node that has most."""
    return max(view.node.numel * max(view.node.reduction_numel, 1) for view in views)


def _decision(pair: Pair, is_merged: bool) -> Decision:
    subject = " + ".join(sorted((*pair.first.names, *pair.second.names)))
    inputs = (("bytes saved", pair.bytes_saved), ("nodes between", pair.distance - 1))
    if pair.merged is None:
        return Decision("fuse", subject, None, f"{pair.rule}: {pair.reason}", ("vertical", "horizontal", None), inputs)
    over = f"over {pair.merged.rows:,} rows" if pair.merged.space else "one after the other: both have little to do"
    if pair.merged.members[0].kind == "template":
        over = "an epilogue, made of the product's tiles while they are in registers"
    reason = over if is_merged else "nothing would be saved"
    choice = pair.kind if is_merged else None
    return Decision("fuse", subject, choice, reason, ("vertical", "horizontal", None), inputs)
