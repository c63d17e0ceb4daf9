"""Planning memory (Section 7.5): who takes over whose memory, and where what is left stands.

Three steps. Buffers are joined to chains that share memory one after the other: a scatter with its base, an output with
the input it is written over (:mod:`.in_place`), an input of the program with what the program overwrites it by. Then a
chain that is over before a result begins may stand in that result's memory. What remains of intermediates goes into
one arena; a block is held longer than any of its parts, so whatever would make the call's peak higher than memory of
its own does is taken out of it again, largest first. Every step is decided by counting bytes; ``Decision`` records say
what was compared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from ..loops.body import LoopBody
from ..loops.ir import BufferArgument, InputBuffer, Layout, LoopProgram
from ..operators.basis import has_effect, is_random
from ..options import Decision, DeviceSpec
from . import arena
from .checks import Check, answered, checking_part, checks_of
from .in_place import obstacle, only_copies
from .in_place_gpu import obstacle_on_gpu
from .lifetimes import Lifetime, Step, lifetimes, live_bytes
from .memory_plan import MemoryPlan, Placement
from .records import ScheduleNode, buffers_read

aten = torch.ops.aten

#: Intermediates, the largest first, for which a place in a result's memory is looked for, and in how many results'.
MOST_GUESTS, MOST_HOSTS = 256, 8

#: Operators whose result is fresh memory in the layout that was recorded, whatever their arguments: it may be reused.
FRESH = frozenset(
    "mm bmm addmm baddbmm addbmm mv addmv linear _addmm_activation convolution _convolution".split()
)  # fmt: skip


def storage_bytes(layout: Layout) -> int:
    """The bytes of the storage a layout addresses."""
    return layout.storage_elements * layout.dtype.itemsize


@dataclass
class Chain:
    """Buffers that stand in one memory one after the other, alive from ``first`` to ``last``.

    ``groups`` holds the names of each stage: a buffer and the scatters into it. ``root`` is an input's name where the
    memory is the caller's, ``extern`` a buffer that PyTorch's operators made.
    """

    groups: list[list[str]]
    bytes: int
    first: int
    last: int
    escapes: bool = False
    extern: str | None = None
    root: str | None = None
    pinned: bool = False
    after: dict[str, str] = field(default_factory=dict)  # who took over whose memory

    @property
    def names(self) -> list[str]:
        return [name for group in self.groups for name in group]

    @property
    def owner(self) -> str:
        """The buffer, or input, whose allocation this is: of a result the result, so that it leaves the call."""
        return self.root or self.extern or (self.groups[-1] if self.escapes else self.groups[0])[0]

    @property
    def kind(self) -> str:
        if self.extern or self.root:
            return "extern"
        return "result" if self.escapes else "own"

    @property
    def counted(self) -> int:
        """The bytes the call allocates for it: none for memory of the caller."""
        return 0 if self.root else self.bytes

    @property
    def lifetime(self) -> Lifetime:
        return Lifetime(self.owner, self.counted, self.first, self.last)


def plan_memory(
    nodes: Sequence[ScheduleNode], program: LoopProgram, device: DeviceSpec, layouts: Mapping[str, Layout]
) -> MemoryPlan:
    """The memory plan of nodes in execution order. O(nodes * kernel arguments + intermediates^2)."""
    return _Planner(nodes, program, device, layouts).run()


class _Planner:
    def __init__(
        self, nodes: Sequence[ScheduleNode], program: LoopProgram, device: DeviceSpec, layouts: Mapping[str, Layout]
    ):
        self.nodes, self.program, self.device, self.layouts = nodes, program, device, layouts
        self.inputs = {buffer.name: buffer for buffer in program.inputs}
        self.chain_of: dict[str, Chain] = {}
        self.chains: list[Chain] = []
        self.decisions: list[Decision] = []
        self.written_back: set[str] = set()
        self.skipped: set[str] = set()
        self.checked_first: dict[str, LoopBody] = {}
        self.taken = [buffers_read(node) for node in nodes]
        self.last_read: dict[str, int] = {}
        for position, names in enumerate(self.taken):
            self.last_read.update(dict.fromkeys(names, position))

    def run(self) -> MemoryPlan:
        self._make_chains()
        least = max(live_bytes([c.lifetime for c in self.chains], len(self.nodes)), default=0)
        for position, node in enumerate(self.nodes):
            self._write_back(position, node)
        for position, node in enumerate(self.nodes):
            for name in node.buffers:
                if node.extern is None and node.base is None:
                    self._take_over(position, node, name)
        hosted = self._host() if not self.device.is_gpu else {}
        offsets, size, span = ({}, 0, None) if self.device.is_gpu else self._arena(hosted)
        return self._plan(hosted, offsets, size, span, least)

    # -- chains -------------------------------------------------------------------------------------------------------

    def _make_chains(self) -> None:
        outputs = {output.name for output in self.program.outputs}
        self.failing = [i for i, node in enumerate(self.nodes) if _may_fail(node)]
        self.checks = {i: checks_of(self.nodes[i]) for i in self.failing}
        for position, node in enumerate(self.nodes):
            for name in node.buffers:
                if node.base is not None and node.base in self.chain_of:
                    chain = self.chain_of[node.base]
                    chain.groups[-1].append(name)
                elif node.base is not None:
                    continue  # a scatter into an input: lowering never makes one
                else:
                    size = 0 if _returns_argument(node) else storage_bytes(self.layouts[name])
                    chain = Chain([[name]], size, position, position, extern=name if node.extern is not None else None)
                    self.chains.append(chain)
                self.chain_of[name] = chain
                chain.last = max(chain.last, position, self.last_read.get(name, 0))
                if name in outputs:
                    chain.escapes, chain.last = True, len(self.nodes) - 1
        for node, names in zip(self.nodes, self.taken, strict=True):
            if node.extern is not None and not _keeps_apart(node):
                for name in names & self.chain_of.keys():
                    self.chain_of[name].pinned = True

    def _join(self, dying: Chain, taker: Chain, name: str, after: str) -> None:
        """``taker`` goes on in the memory of ``dying``."""
        dying.groups += taker.groups
        dying.after |= taker.after | {name: after}
        dying.last, dying.escapes = taker.last, taker.escapes
        dying.pinned |= taker.pinned
        for moved in taker.names:
            self.chain_of[moved] = dying
        self.chains.remove(taker)

    # -- an output over an input --------------------------------------------------------------------------------------

    def _take_over(self, position: int, node: ScheduleNode, name: str) -> None:
        """Let ``name`` stand in the memory of a buffer that dies at the node which writes it, if one may be had."""
        taker = self.chain_of[name]
        if taker.root is not None or taker.first != position or taker.groups[0][0] != name or taker.bytes == 0:
            return
        layout = self.layouts[name]
        refused: list[tuple[str, str]] = []
        for read in sorted(self.taken[position] | set(node.buffers)):
            chain = self.chain_of.get(read)
            if chain is None or chain is taker or chain.last != position or chain.bytes != taker.bytes:
                continue
            if self.layouts[read].dtype != layout.dtype:
                continue
            dying = frozenset(chain.groups[-1])
            reason = self._unsuitable(chain, taker) or self._obstacle(node, dying, name)
            if reason:
                refused.append((read, reason))
                continue
            facts = (("bytes", taker.bytes), ("kernel", node.name))
            why = "it dies at the kernel that writes, element by element or row by row"
            candidates = (*(other for other, _ in refused), read, None)
            self.decisions.append(Decision("in place", name, read, why, candidates, facts))
            self._join(chain, taker, name, read)
            return
        if refused:
            why = "; ".join(f"{read}: {reason}" for read, reason in refused)
            facts = (("bytes", taker.bytes), ("kernel", node.name))
            candidates = (*(read for read, _ in refused), None)
            self.decisions.append(Decision("in place", name, None, why, candidates, facts))

    def _obstacle(self, node: ScheduleNode, dying: frozenset[str], name: str, shift: int = 0) -> str:
        return (obstacle_on_gpu if self.device.is_gpu else obstacle)(node, dying, name, shift)

    def _unsuitable(self, chain: Chain, taker: Chain) -> str:
        if chain.root is not None:
            return "it is the caller's"
        if chain.escapes:
            return "it is a result"
        if chain.pinned:
            return "an operator that took it may have kept it"
        if chain.extern is not None:
            node = next(node for node in self.nodes if chain.extern in node.buffers)
            if not _is_fresh(node):
                return "an operator made it, and may have kept it"
            own, new = self.layouts[chain.extern], self.layouts[taker.groups[-1][0]]
            if taker.escapes and (own.shape, own.stride) != (new.shape, new.stride):
                return "the result would be a view of what an operator made"
        return ""

    # -- a result over the caller's memory ----------------------------------------------------------------------------

    def _write_back(self, position: int, node: ScheduleNode) -> None:
        """Let what ``copy_`` would copy into an input stand there from the start, and nothing be left to copy."""
        found = _copied(node, self.inputs)
        if found is None:
            return
        target, source = found
        reason = self._keeps_copy(position, target, source)
        choice = None if reason else target
        why = reason or "every element is written where its last read is done"
        size = storage_bytes(self.layouts[target])
        self.decisions.append(Decision("write back", source, choice, why, (target, None), (("bytes", size),)))
        if not reason:
            chain = self.chain_of[source]
            chain.root, chain.last = target, len(self.nodes) - 1
            chain.after[chain.groups[0][0]] = target
            self.written_back.add(node.name)
            if self._nothing_to_do(chain, target):
                self.skipped.add(self.nodes[chain.first].name)

    def _keeps_copy(self, position: int, target: str, source: str) -> str:
        chain = self.chain_of.get(source)
        own, new = self.layouts[target], self.layouts[source]
        if chain is None or chain.extern is not None or chain.root is not None or not chain.bytes:
            return "it is not made by a kernel"
        if own.dtype != new.dtype or new.offset or not _same_elements(own, new):
            return "the layouts differ"
        if chain.escapes:
            return "it is a result of its own"
        maker = chain.first
        unanswered = [place for place in self.failing if maker <= place <= position and self._fails(place)]
        checked_first = self._checked_first(unanswered, chain, target)
        if len(checked_first) < len(unanswered):
            return "something may still fail, and the input would have changed"
        if any(node.extern is not None and target in names and not _keeps_apart(node)
               for node, names in zip(self.nodes, self.taken, strict=True)):  # fmt: skip
            return "an operator that took the input may have kept it"
        if any(name in self.inputs and not self.inputs[name].apart for p in range(maker, len(self.nodes))
               for name in (*self.taken[p], target)):  # fmt: skip
            return "inputs may share memory"
        if self.last_read.get(target, -1) > maker and any(
            target in self.taken[p] for p in range(maker + 1, len(self.nodes)) if p != position
        ):
            return "the old contents are read later"
        if any(place > position and target in self._overwritten(place) for place in range(len(self.nodes))):
            return "it is overwritten again"
        node = self.nodes[maker]
        if node.base is not None:
            return "a scatter fills it"
        if target in self.taken[maker]:
            reason = self._obstacle(node, frozenset({target}), chain.groups[0][0], own.offset)
        else:
            reason = ""
        if not reason:
            self.checked_first |= checked_first
        return reason

    def _fails(self, place: int) -> bool:
        """Whether the node at ``place`` may fail while an input stands half overwritten.

        Not if all it checks has been checked before. And a check that fails on a GPU ends the use of the device, so
        that nobody sees what memory held.
        """
        node = self.nodes[place]
        if node.extern is not None or self.device.is_gpu:
            return node.extern is not None
        return bool(self._unanswered(place))

    def _unanswered(self, place: int) -> list[Check]:
        """The checks of a kernel that none before it has made."""
        kept = self.inputs.keys() - {name for p in range(len(self.nodes)) for name in self._overwritten(p)}
        earlier = [check for p in range(place) if not self.nodes[p].is_empty for check in self.checks.get(p, ())]
        earlier = [check for check in earlier if check.buffer in kept]
        return [check for check in self.checks[place] if not answered(check, earlier)]

    def _checked_first(self, places: Sequence[int], chain: Chain, target: str) -> dict[str, LoopBody]:
        """Those of the nodes at ``places`` that may fail and yet not with the input ``target`` half overwritten: the
        first to write into it, if it makes its checks before it writes (at the cost of reading its subscripts twice,
        so not if copying the input is less)."""
        if len(places) != 1 or not self._nothing_to_do(chain, target):
            return {}
        node, names = self.nodes[places[0]], frozenset((target, *chain.names))
        if not chain.groups[0][1:] or chain.groups[0][1] not in node.buffers:
            return {}
        part = checking_part(node, self._unanswered(places[0]), names, self.layouts[target].numel)
        return {} if part is None else {node.name: part}

    def _nothing_to_do(self, chain: Chain, target: str) -> bool:
        """Whether what makes a chain only copies the input in whose memory it stands, so that it need not run."""
        return only_copies(self.nodes[chain.first], target, self.layouts[target])

    def _overwritten(self, position: int) -> set[str]:
        found = _copied(self.nodes[position], self.inputs)
        return {found[0]} if found else set()

    # -- what is left -------------------------------------------------------------------------------------------------

    def _host(self) -> dict[str, Chain]:
        """Intermediates that are over before a result begins and fit into its memory, which is then allocated earlier;
        only where that does not raise the peak. Maps the first buffer of each such chain to the result's."""
        given = self._given_to_operators()
        hosted: dict[str, Chain] = {}
        guests = [c for c in self.chains if c.kind == "own" and c.bytes and not given.intersection(c.names)]
        results = sorted((c for c in self.chains if c.kind == "result"), key=lambda c: (c.bytes, c.first))
        live = list(live_bytes(self._allocations(hosted), len(self.nodes)))
        peak = max(live, default=0)
        begins = {c.owner: c.first for c in results}
        for guest in sorted(guests, key=lambda c: (-c.bytes, c.first))[:MOST_GUESTS]:
            for host in [c for c in results if c.bytes >= guest.bytes and c.first > guest.last][:MOST_HOSTS]:
                others = [c for c in self.chains if hosted.get(c.owner) is host]
                if any(other.lifetime.meets(guest.lifetime) for other in others):
                    continue
                changed = live.copy()
                for position in range(guest.first, guest.last + 1):
                    changed[position] -= guest.bytes
                for position in range(guest.first, begins[host.owner]):
                    changed[position] += host.bytes
                if max(changed[guest.first : host.first]) <= peak:
                    hosted[guest.owner], live = host, changed
                    begins[host.owner] = min(begins[host.owner], guest.first)
                    facts = (("bytes", guest.bytes), ("peak", max(live)))
                    why = "it is over before the result begins"
                    self.decisions.append(Decision("host", guest.owner, host.owner, why, (host.owner, None), facts))
                    break
        return hosted

    def _given_to_operators(self) -> set[str]:
        """Buffers that PyTorch's operators take, and so must be tensors of their own dtype."""
        externs = (names for node, names in zip(self.nodes, self.taken, strict=True) if node.extern is not None)
        return set().union(*externs)

    def _allocations(self, hosted: Mapping[str, Chain], left_out: Iterable[str] = ()) -> list[Lifetime]:
        """The lifetime of every allocation, those of guests added to their hosts'; without the owners ``left_out``."""
        begins: dict[str, int] = {}
        for chain in self.chains:
            if chain.owner in hosted:
                host = hosted[chain.owner].owner
                begins[host] = min(begins.get(host, chain.first), chain.first)
        out = set(left_out) | hosted.keys()
        return [
            replace(c.lifetime, first=min(c.first, begins.get(c.owner, c.first)))
            for c in self.chains
            if c.owner not in out
        ]

    def _peak(self, hosted: Mapping[str, Chain]) -> int:
        return max(live_bytes(self._allocations(hosted), len(self.nodes)), default=0)

    def _arena(self, hosted: Mapping[str, Chain]) -> tuple[dict[str, int], int, tuple[int, int] | None]:
        """Offsets of the intermediates that stand in the arena, its size and its span."""
        inside = [c for c in self.chains if c.kind == "own" and c.bytes and not c.pinned and c.owner not in hosted]
        inside.sort(key=lambda c: (-c.bytes, c.first))
        whole = inside
        alone = self._peak(hosted)
        expelled = 0
        while len(inside) > 1:
            found = [c.lifetime for c in inside]
            offsets, size, decision = arena.allocate(found)
            span = min(x.first for x in found), max(x.last for x in found)
            together = self._allocations(hosted, [c.owner for c in inside]) + [Lifetime("arena", size, *span)]
            # Rounding up to whole units is no reason to do without.
            slack = arena.ALIGNMENT * len(inside)
            changed = max(live_bytes(together, len(self.nodes)))
            if changed <= alone + slack:
                facts = (("bytes", size), ("peak", changed), ("peak without", alone), ("expelled", expelled))
                why = "one block for the call, and the peak is no higher than with memory for each"
                self.decisions += [decision, Decision("arena", "arena", size, why, (size, 0), facts)]
                return offsets, size, span
            expelled += max(expelled, 1)  # twice as many each time: planning stays quick
            inside = whole[expelled:]
        if expelled:
            facts = (("peak without", alone),)
            why = "a block held to the end would raise the peak"
            self.decisions.append(Decision("arena", "arena", 0, why, (0,), facts))
        return {}, 0, None

    def _plan(
        self, hosted: Mapping[str, Chain], offsets: dict[str, int], size: int, span: tuple[int, int] | None, least: int
    ) -> MemoryPlan:
        placements: dict[str, Placement] = {}
        bases = {node.buffers[0]: node.base for node in self.nodes if node.base is not None}
        order = {name: position for position, node in enumerate(self.nodes) for name in node.buffers}
        for chain in self.chains:
            host = hosted.get(chain.owner)
            owner = host.owner if host is not None else chain.owner
            for name in chain.names:
                kind = chain.kind if name == owner else "view of base" if name in bases else "in place"
                offset = offsets.get(owner)
                if offset is not None and name == owner:
                    kind = "arena"
                nbytes = 0 if chain.counted == 0 and chain.root is None else storage_bytes(self.layouts[name])
                inner = offset if name == owner else None
                placements[name] = Placement(name, nbytes, kind, owner, inner, chain.after.get(name))
        placements = {name: placements[name] for name in sorted(placements, key=lambda n: order[n])}
        allocate: list[list[str]] = [[] for _ in self.nodes]
        release: list[list[str]] = [[] for _ in self.nodes]
        kinds = {chain.owner: chain for chain in self.chains}
        alive = self._allocations(hosted, offsets)
        for life in alive:
            chain = kinds[life.buffer]
            if chain.kind != "extern":
                allocate[life.first].append(life.buffer)
            if not chain.escapes and chain.root is None:
                release[life.last].append(life.buffer)
        if span is not None:
            alive.append(Lifetime("arena", size, *span))
        return MemoryPlan(
            placements, tuple(map(tuple, allocate)), tuple(map(tuple, release)), live_bytes(alive, len(self.nodes)),
            size, span, least, frozenset(self.written_back), tuple(self.decisions),
            tuple(node.name for node in self.nodes), self._lifetimes(placements),
            {name: node.origins for node in self.nodes for name in node.buffers}, frozenset(self.skipped),
            self.checked_first,
        )  # fmt: skip

    def _lifetimes(self, placements: Mapping[str, Placement]) -> tuple[Lifetime, ...]:
        """How long each buffer itself is alive, whoever has the memory before or after."""
        steps = [Step(n.name, tuple(names), n.buffers) for n, names in zip(self.nodes, self.taken, strict=True)]
        kept = [output.name for output in self.program.outputs if output.name is not None]
        return lifetimes(steps, {name: place.bytes for name, place in placements.items()}, kept)


def _may_fail(node: ScheduleNode) -> bool:
    """Whether running a node may raise: a subscript that is checked, or an operator that nobody knows."""
    members = node.members or (node,)
    if any(member.body is not None and member.body.may_fail for member in members):
        return True
    if node.extern is None or _is_copy(node) or is_random(node.extern.operator):
        return False
    return node.extern.reason != "library" or has_effect(node.extern.operator, node.extern.args)


def _is_copy(node: ScheduleNode) -> bool:
    return node.extern is not None and node.extern.operator is aten.copy_.default


def _copied(node: ScheduleNode, inputs: Mapping[str, InputBuffer]) -> tuple[str, str] | None:
    """The whole input that a node overwrites with a whole buffer, and that buffer; None if the node does something
    else."""
    if not _is_copy(node):
        return None
    assert node.extern is not None
    target, source = node.extern.args[:2]
    if not (isinstance(target, BufferArgument) and isinstance(source, BufferArgument)) or target.name not in inputs:
        return None
    own = inputs[target.name].layout
    same = (target.layout.shape, target.layout.stride, target.layout.offset) == (own.shape, own.stride, own.offset)
    whole = (source.layout.shape, source.layout.stride, source.layout.offset) == (own.shape, own.stride, 0)
    return (target.name, source.name) if same and whole else None


def _same_elements(own: Layout, new: Layout) -> bool:
    """Whether two layouts have their elements at the same places of a storage: as they are, or since both fill it."""
    if (own.shape, own.stride) == (new.shape, new.stride):
        return True
    return own.numel == new.numel == own.storage_elements - own.offset == new.storage_elements


def _returns_argument(node: ScheduleNode) -> bool:
    """Whether an operator's results are its own arguments, written to: they take no memory."""
    return node.extern is not None and any(r.alias_info is not None for r in node.extern.operator._schema.returns)


def _keeps_apart(node: ScheduleNode) -> bool:
    """Whether what an operator returns never stands in the memory of what it takes."""
    assert node.extern is not None
    return _is_copy(node) or (node.extern.reason == "library" and not _returns_argument(node))


def _is_fresh(node: ScheduleNode) -> bool:
    """Whether the one result of an operator is memory that nobody else knows of."""
    assert node.extern is not None
    name = node.extern.operator._schema.name
    return name.removeprefix("aten::") in FRESH and not is_random(node.extern.operator) and len(node.buffers) == 1
