"""The fusion partition problem as a problem about graphs (Definition 7.3).

Nodes write and read buffers, some pairs of nodes must not share a kernel, and a *partition* puts every node into one
class, a kernel. It is legal if no class holds a forbidden pair and the kernels can be run one after the other: the
quotient graph, which has a vertex for each class, is acyclic. Its cost is main-memory traffic. A class reads each
buffer from outside once, and writes each of its own that something outside needs once:

>>> problem = FusionProblem.build(                         # Exercise 17: a -> c -> b and a -> b
...     [("a", ["x"], ["y"]), ("c", ["y"], ["z"]), ("b", ["y", "z"], ["w"])], dict.fromkeys("xyzw", 100), results=["w"]
... )
>>> problem.cost([["a"], ["c"], ["b"]]), problem.cost([["a", "c", "b"]])
(700, 200)
>>> problem.violation([["a", "b"], ["c"]])
'the kernels a+b and c wait for each other'

Whoever knows more about a class than its pairs, such as whether all of its loops have rows in common, says so with a
:class:`Classes` object. Without one this is the problem of Theorem 7.1, which is NP-hard.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from ..errors import ScheduleError

Partition = Sequence[Iterable[str]]
NAMED_CYCLE = 6  # classes of a cycle that are named


@dataclass(frozen=True)
class Buffer:
    """Memory of ``nbytes`` bytes that the node ``writer`` writes (None: an input) and ``readers`` read, as positions.

    One that ``escapes`` has to be in memory whoever reads it. ``parts`` are what a reader touches, as (name, bytes),
    where that is not all: what two nodes of a class both touch is read once. ``written`` is what the writer touches,
    where that is not all.
    """

    name: str
    nbytes: int
    writer: int | None
    readers: tuple[int, ...]
    escapes: bool = False
    parts: Mapping[int, tuple[tuple[Hashable, int], ...]] = field(default_factory=dict)
    written: int | None = None

    @property
    def bytes_written(self) -> int:
        return self.nbytes if self.written is None else self.written

    @property
    def touching(self) -> tuple[int, ...]:
        return self.readers if self.writer is None else (self.writer, *self.readers)

    def bytes_read(self, members: int) -> int:
        """What a class, given as a set of bits, reads of it. O(readers)."""
        inside = [reader for reader in self.readers if members >> reader & 1]
        if not inside:
            return 0
        if any(reader not in self.parts for reader in inside):
            return self.nbytes
        return min(self.nbytes, sum(dict(part for reader in inside for part in self.parts[reader]).values()))


class Classes(Protocol):
    """What is known about classes beyond their pairs. A class is a set of bits, one for each position."""

    def may_grow(self, members: int) -> bool:
        """Whether some class that contains these nodes may be legal."""

    def extra(self, members: int) -> int | None:
        """Bytes the class moves in addition to those of Definition 7.3; None if it is not legal."""

    def reads(self, buffer: Buffer, members: int) -> int:
        """Bytes of a buffer that a class with these nodes reads at least, what is counted by ``extra`` included."""


@dataclass(frozen=True)
class FusionProblem:
    """Nodes by name in a topological order, their buffers, ``edges`` between positions, and the forbidden pairs of
    positions (smaller one first) with the rule that forbids each.

    Raises ScheduleError where an edge or a read leads backwards.
    """

    names: tuple[str, ...]
    buffers: tuple[Buffer, ...]
    edges: frozenset[tuple[int, int]]
    forbidden: Mapping[tuple[int, int], str]
    classes: Classes | None = None

    def __post_init__(self) -> None:
        for before, after in self.edges:
            if not 0 <= before < after < len(self.names):
                raise ScheduleError(f"nodes are not in a topological order: {before} must come before {after}")
        for first, second in self.forbidden:
            if not 0 <= first < second < len(self.names):
                raise ScheduleError(f"no pair of nodes: {first} and {second}")

    @staticmethod
    def build(
        nodes: Iterable[tuple[str, Iterable[str], Iterable[str]]],
        sizes: Mapping[str, int],
        *,
        results: Iterable[str] = (),
        forbidden: Iterable[tuple[str, str]] = (),
    ) -> FusionProblem:
        """A problem from nodes ``(name, buffers read, buffers written)`` in a topological order, the bytes of every
        buffer, the buffers that are results, and the pairs of nodes that must not share a kernel.

        Raises ScheduleError for a name that occurs twice, a buffer that has no size, that two nodes write or that is
        read before it is written, and for a pair that is none.
        """
        nodes = [(name, list(dict.fromkeys(reads)), list(writes)) for name, reads, writes in nodes]
        position = {name: place for place, (name, _, _) in enumerate(nodes)}
        if len(position) < len(nodes):
            raise ScheduleError("two nodes have the same name")
        writer: dict[str, int] = {}
        readers: dict[str, list[int]] = {}
        everything = {buffer for _, _, writes in nodes for buffer in writes}
        for place, (name, reads, writes) in enumerate(nodes):
            for buffer in reads:
                if buffer in everything and buffer not in writer:
                    raise ScheduleError(f"{name} reads {buffer} before it is written")
                readers.setdefault(buffer, []).append(place)
            for buffer in writes:
                if buffer in writer:
                    raise ScheduleError(f"two nodes write {buffer}")
                writer[buffer] = place
        results, buffers = set(results), []
        for buffer in dict.fromkeys([*readers, *writer]):
            size = sizes.get(buffer)
            if not isinstance(size, int) or isinstance(size, bool) or size < 0:
                raise ScheduleError(f"buffer {buffer} needs a number of bytes, not {size!r}")
            buffers.append(
                Buffer(buffer, size, writer.get(buffer), tuple(readers.get(buffer, ())), buffer in results)
            )  # fmt: skip
        pairs = {}
        for first, second in forbidden:
            if first not in position or second not in position or first == second:
                raise ScheduleError(f"no pair of nodes: {first} and {second}")
            one, other = sorted((position[first], position[second]))
            pairs[one, other] = "forbidden"
        edges = {(b.writer, reader) for b in buffers if b.writer is not None for reader in b.readers}
        return FusionProblem(tuple(position), tuple(buffers), frozenset(edges), pairs)

    # -- what follows from the graph ----------------------------------------------------------------------------------

    @property
    def size(self) -> int:
        return len(self.names)

    @cached_property
    def place(self) -> dict[str, int]:
        return {name: place for place, name in enumerate(self.names)}

    @cached_property
    def before(self) -> tuple[int, ...]:
        """For each node the nodes it reads from, as bits."""
        found = [0] * self.size
        for first, second in self.edges:
            found[second] |= 1 << first
        return tuple(found)

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """For each node all from which a path leads to it, as bits."""
        found: list[int] = []
        for direct in self.before:
            found.append(direct)
            for node in bits(direct):
                found[-1] |= found[node]
        return tuple(found)

    @cached_property
    def descendants(self) -> tuple[int, ...]:
        """For each node all to which a path leads from it, as bits."""
        found = [0] * self.size
        for node, above in enumerate(self.ancestors):
            for other in bits(above):
                found[other] |= 1 << node
        return tuple(found)

    @cached_property
    def apart(self) -> tuple[int, ...]:
        """For each node those it can share no class with, as bits: forbidden pairs, and pairs with a node on a path
        between them that is forbidden with one of the two, for it would have to be in the class as well (Proposition
        7.1). O(n^3) operations on sets of bits."""
        found = [0] * self.size
        for first, second in self.forbidden:
            found[first] |= 1 << second
            found[second] |= 1 << first
        if self.classes is not None:
            for second in range(self.size):
                for first in range(second):
                    if not found[first] >> second & 1 and not self.classes.may_grow(1 << first | 1 << second):
                        found[first] |= 1 << second
                        found[second] |= 1 << first
        direct = tuple(found)
        for second in range(self.size):
            for first in bits(self.ancestors[second]):
                between = self.descendants[first] & self.ancestors[second]
                hull = between | 1 << first | 1 << second
                if any(direct[node] & hull for node in bits(hull)):
                    found[first] |= 1 << second
                    found[second] |= 1 << first
        return tuple(found)

    # -- partitions ---------------------------------------------------------------------------------------------------

    def masks(self, partition: Partition) -> list[int]:
        """A partition as sets of bits. Raises ScheduleError unless every node is in one class."""
        found, seen = [], 0
        for part in partition:
            mask = 0
            for name in part:
                if name not in self.place:
                    raise ScheduleError(f"there is no node {name!r}")
                bit = 1 << self.place[name]
                if seen & bit:
                    raise ScheduleError(f"{name} is in two classes")
                mask, seen = mask | bit, seen | bit
            if mask:
                found.append(mask)
        missing = [name for name, place in self.place.items() if not seen >> place & 1]
        if missing:
            raise ScheduleError(f"{missing[0]} is in no class")
        return found

    def named(self, masks: Iterable[int]) -> tuple[tuple[str, ...], ...]:
        """Classes by name, in an order in which they can run (:meth:`violation` is None), else by their first node."""
        masks = list(masks)
        return tuple(tuple(self.names[node] for node in bits(mask)) for mask in run_order(masks, self.before) or masks)

    def cost(self, partition: Partition) -> int:
        """Bytes a partition moves. ScheduleError if it is none, or if a class is not legal by itself."""
        return self.cost_of(self.masks(partition))

    def cost_of(self, masks: Sequence[int]) -> int:
        """The same for classes given as sets of bits. O(buffers * classes)."""
        total = 0
        for buffer in self.buffers:
            total += self.buffer_cost(buffer, masks)
        if self.classes is not None:
            for mask in masks:
                extra = self.classes.extra(mask)
                if extra is None:
                    raise ScheduleError(f"{'+'.join(self.names[n] for n in bits(mask))} cannot share a kernel")
                total += extra
        return total

    def buffer_cost(self, buffer: Buffer, masks: Sequence[int]) -> int:
        """Bytes of one buffer: read by every class but the writer's, written if it escapes or one of them reads it."""
        home = 0 if buffer.writer is None else 1 << buffer.writer
        read = sum(buffer.bytes_read(mask) for mask in masks if not mask & home)
        away = any(not mask & home and mask >> reader & 1 for mask in masks for reader in buffer.readers)
        return read + (buffer.bytes_written if home and (away or buffer.escapes) else 0)

    def violation(self, partition: Partition) -> str | None:
        """Why a partition is not legal; None if it is. ScheduleError if it is no partition."""
        masks = self.masks(partition)
        for first, second in sorted(self.forbidden):
            if any(mask >> first & 1 and mask >> second & 1 for mask in masks):
                rule = self.forbidden[first, second]
                return f"{self.names[first]} and {self.names[second]} are apart: {rule}"
        for mask in masks:
            if self.classes is not None and self.classes.extra(mask) is None:
                return f"{'+'.join(self.names[n] for n in bits(mask))} cannot share a kernel"
        if run_order(masks, self.before) is None:
            cycle = ["+".join(self.names[n] for n in bits(mask)) for mask in cycle_of(masks, self.before)]
            more = f" and {len(cycle) - NAMED_CYCLE} more" if len(cycle) > NAMED_CYCLE else ""
            listed = cycle[:NAMED_CYCLE]
            words = ", ".join(listed) + more if more else " and ".join([", ".join(listed[:-1]), listed[-1]])
            return f"the kernels {words} wait for each other"
        return None


def bits(mask: int) -> Iterator[int]:
    """The positions in a set of bits, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def quotient(masks: Sequence[int], before: Sequence[int]) -> list[int]:
    """For each class the classes it reads from, as bits of their positions."""
    found = []
    for mask in masks:
        needed = 0
        for node in bits(mask):
            needed |= before[node]
        needed &= ~mask
        found.append(sum(1 << place for place, other in enumerate(masks) if other & needed))
    return found


def run_order(masks: Sequence[int], before: Sequence[int]) -> list[int] | None:
    """The classes in an order in which they can run, each as early as its first node allows; None if there is a cycle.

    O(classes^2) (Kahn 1962, "Topological sorting of large networks").
    """
    masks = sorted(masks, key=lambda mask: mask & -mask)
    needs = quotient(masks, before)
    done, order = 0, []
    while len(order) < len(masks):
        ready = next((k for k, need in enumerate(needs) if not done >> k & 1 and not need & ~done), None)
        if ready is None:
            return None
        done |= 1 << ready
        order.append(masks[ready])
    return order


def cycle_of(masks: Sequence[int], before: Sequence[int]) -> list[int]:
    """The classes of a shortest cycle of a quotient that has one, in order."""
    needs = quotient(masks, before)
    best: list[int] = []
    for start in range(len(masks)):
        paths = {start: [start]}
        queue = [start]
        while queue:
            place = queue.pop(0)
            if needs[place] >> start & 1 and (not best or len(paths[place]) < len(best)):
                best = paths[place]
            for following in bits(needs[place]):
                if following not in paths:
                    paths[following] = [*paths[place], following]
                    queue.append(following)
    return [masks[place] for place in sorted(best)] if len(best) == 2 else [masks[place] for place in best]
