"""The best partition into kernels there is, for graphs of up to about 25 nodes (Definition 7.3).

Greedy fusion (Algorithm 7.1) takes the best pair it sees and never takes a merge back. How much that costs can only be
said against the optimum. The problem is NP-hard (Theorem 7.1), so this is a search, by *branch and bound* (Land and
Doig 1960, "An automatic method of solving discrete programming problems"): nodes are put into classes one after the
other, in a topological order, each into one of the classes there are or into a new one. A branch ends where

- the pair, the class or the quotient graph would not be legal, and so no completion would be, or
- a *lower bound* shows that no completion moves fewer bytes than the best partition known.

The bound is what has been paid, and for each buffer what its readers to come will cost at least: those that can join
none of the classes that have it must read it again, once for any set of them that are apart from each other; and one
that could find two buffers, in two classes, finds one of them at most.

A search that is cut short says so, and gives the bound it has proved by then.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import ScheduleError
from .fusion_problem import Buffer, FusionProblem, Partition, bits
from .greedy import greedy

SECONDS = 20.0
STATES = 2_000_000
_LOOK = 128  # states between two looks at the clock

PROVED, OUT_OF_TIME, OUT_OF_STATES, INTERRUPTED = "optimal", "time limit", "state limit", "interrupted"

#: Called with the share of the search that is done and a sentence.
Progress = Callable[[float, str], None]


@dataclass(frozen=True)
class Optimum:
    """The best partition found, classes in an order in which they can run; no partition moves fewer than ``bound``
    bytes. ``states`` partial partitions were looked at; ``proof`` says how the search ended."""

    problem: FusionProblem
    partition: tuple[tuple[str, ...], ...]
    nbytes: int
    bound: int
    states: int
    proof: str

    @property
    def is_proved(self) -> bool:
        return self.bound >= self.nbytes

    def format(self) -> str:
        """A line per kernel, and what was proved."""
        lines = [f"{len(self.partition)} kernels, {self.nbytes:,} bytes"]
        lines += [f"  {' + '.join(part)}" for part in self.partition]
        said = "no partition moves fewer" if self.is_proved else f"{self.proof}; none moves fewer than {self.bound:,}"
        return "\n".join([*lines, f"{said} ({self.states:,} partial partitions looked at)"])

    __str__ = format


def optimum(
    problem: FusionProblem,
    *,
    start: Partition | None = None,
    seconds: float = SECONDS,
    states: int = STATES,
    progress: Progress | None = None,
) -> Optimum:
    """The partition of least traffic, by branch and bound.

    ``start`` is a legal partition to begin with (by default the greedy one), which is returned if none is better.
    ``seconds`` and ``states`` (partial partitions) limit the search; Ctrl-C ends it: then the best partition so far is
    returned, with the bound that has been proved. Worst case: exponential in the number of nodes.

    Raises ScheduleError if ``start`` is not a legal partition.
    """
    start = greedy(problem).partition if start is None else start
    if (said := problem.violation(start)) is not None:
        raise ScheduleError(f"the partition to start from is not legal: {said}")
    masks = problem.masks(start)
    deadline = time.monotonic() + seconds
    found: list[int] = []
    bound = looked = 0
    proof = PROVED
    components = list(_components(problem))
    for place, nodes in enumerate(components):
        inside = sum(1 << node for node in nodes)
        search = _Search(problem, nodes, [part for mask in masks if (part := mask & inside)])

        def heard(share: float, words: str, place: int = place) -> None:
            if progress is not None:
                progress((place + share) / len(components), words)

        ended = search.run(deadline, states - looked, heard)
        proof = ended if proof == PROVED else proof
        found += search.best
        bound += search.bound
        looked += search.looked
    if progress is not None:
        progress(1.0, proof)
    return Optimum(problem, problem.named(found), problem.cost_of(found), bound, looked, proof)


def brute_force(problem: FusionProblem) -> tuple[int, tuple[tuple[str, ...], ...]]:
    """The least cost and a partition that has it, by trying every set partition: Bell(n) of them, 4,140 for 8 nodes.

    Shares nothing with :func:`optimum` but the definition of legal and of cost.
    """
    best: tuple[int, tuple[tuple[str, ...], ...]] | None = None
    for partition in set_partitions(problem.names):
        if problem.violation(partition) is None:
            cost = problem.cost(partition)
            if best is None or cost < best[0]:
                best = cost, tuple(map(tuple, partition))
    assert best is not None  # every node by itself is legal
    return best


def set_partitions(items: Sequence[Any]) -> Iterator[list[list[Any]]]:
    """All ways of dividing items into non-empty classes."""
    if not items:
        yield []
        return
    *rest, last = items
    for partition in set_partitions(rest):
        for place in range(len(partition)):
            yield [[*part, last] if k == place else list(part) for k, part in enumerate(partition)]
        yield [*map(list, partition), [last]]


def _components(problem: FusionProblem) -> Iterator[list[int]]:
    """Nodes that a chain of shared buffers and edges joins: each such part is a problem of its own."""
    leader = list(range(problem.size))

    def find(node: int) -> int:
        while leader[node] != node:
            node = leader[node]
        return node

    for chain in (*(buffer.touching for buffer in problem.buffers), *problem.edges):
        for node in chain[1:]:
            leader[find(node)] = find(chain[0])
    parts: dict[int, list[int]] = {}
    for node in range(problem.size):
        parts.setdefault(find(node), []).append(node)
    yield from parts.values()


#: Classes as sets of bits; for each the classes a path leads to, as bits of their places; the place of every node's
#: class; bytes paid for.
_State = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], int]


class _Search:
    """One component. ``best`` is the best partition known and ``least`` its bytes."""

    def __init__(self, problem: FusionProblem, nodes: list[int], start: list[int]):
        # A class of two components is two here, of which one by itself need not be legal.
        classes = problem.classes
        if classes is not None and any(classes.extra(mask) is None for mask in start):
            start = [1 << node for node in nodes]
        self.problem, self.nodes, self.best = problem, nodes, start
        self.known: dict[tuple[int, int], int] = {}
        self.hulls: dict[int, int] = {}
        inside = sum(1 << node for node in nodes)
        self.buffers = [b for b in problem.buffers if any(inside >> node & 1 for node in b.touching)]
        self.reads: dict[int, list[int]] = {node: [] for node in nodes}
        self.writes: dict[int, list[int]] = {node: [] for node in nodes}
        self.place = {node: place for place, node in enumerate(nodes)}
        for number, buffer in enumerate(self.buffers):
            if buffer.writer is not None:
                self.writes[buffer.writer].append(number)
            for reader in buffer.readers:
                self.reads[reader].append(number)
        self.readers = [sum(1 << reader for reader in b.readers) for b in self.buffers]
        self.alone = [{reader: b.bytes_read(1 << reader) for reader in b.readers} for b in self.buffers]
        self.untouched = [self._untouched(number, b) for number, b in enumerate(self.buffers)]
        # Buffers that some node from a place on has to do with.
        self.live = [
            [k for k, b in enumerate(self.buffers) if any(node >= first for node in b.touching)] for first in nodes
        ]
        self.least = self._cost(start)
        self.bound, self.looked = 0, 0

    def run(self, deadline: float, states: int, progress: Progress) -> str:
        """Search; how it ended. ``bound`` is what has been proved by then."""
        first: _State = ((), (), (), 0)
        stack = [(self._future(0, first), 1.0, first)]
        below = self.least  # the bound of what is being looked at
        done, proof = 0.0, PROVED
        try:
            while stack:
                below, share, state = stack.pop()
                if below >= self.least:
                    done += share
                    continue
                if self.looked >= states:
                    proof = OUT_OF_STATES
                    break
                self.looked += 1
                if self.looked % _LOOK == 0:
                    progress(min(done, 1.0), f"{self.least:,} bytes, at least {min([below, *(s[0] for s in stack)]):,}")
                    if time.monotonic() > deadline:
                        proof = OUT_OF_TIME
                        break
                if len(state[2]) == len(self.nodes):
                    self._complete(state)
                    done += share
                    continue
                children = sorted(self._children(state), key=lambda child: -child[0])
                done += share * (not children)
                stack += [(bound, share / len(children), child) for bound, child in children]
        except KeyboardInterrupt:
            proof = INTERRUPTED
        open_bounds = [] if proof == PROVED else [below, *(entry[0] for entry in stack)]
        self.bound = min([self.least, *open_bounds])
        return proof

    # -- one step -----------------------------------------------------------------------------------------------------

    def _children(self, state: _State) -> Iterator[tuple[int, _State]]:
        """The next node in each of the classes it may join, and in a new one; with a bound, if that is not too high."""
        masks, reach, home, paid = state
        node = self.nodes[len(home)]
        needs = 0  # the classes it reads from
        for before in bits(self.problem.before[node]):
            needs |= 1 << home[self.place[before]]
        for place in range(len(masks) + 1):
            is_new = place == len(masks)
            mask = 0 if is_new else masks[place]
            others = needs & ~(1 << place)
            behind = 0 if is_new else reach[place]
            if mask & self.problem.apart[node] or behind & others:
                continue
            grown = mask | 1 << node
            if mask and self.problem.classes is not None and not self.problem.classes.may_grow(grown):
                continue
            cost = paid + self._price(node, mask, masks, home)
            if cost >= self.least:
                continue
            further = 1 << place | behind
            led = (*reach, 0) if is_new else reach
            led = tuple(r | further if others >> k & 1 or r & others else r for k, r in enumerate(led))
            after = (*masks, grown) if is_new else (*masks[:place], grown, *masks[place + 1 :])
            child: _State = (after, led, (*home, place), cost)
            bound = cost + self._future(len(home) + 1, child)
            if bound < self.least:
                yield bound, child

    def _price(self, node: int, mask: int, masks: tuple[int, ...], home: tuple[int, ...]) -> int:
        """The bytes that a node adds by joining a class."""
        total = 0
        for number in self.reads[node]:
            buffer = self.buffers[number]
            writer = buffer.writer
            if writer is not None and mask >> writer & 1:
                continue
            total += self._read(number, mask | 1 << node) - self._read(number, mask)
            if writer is not None and not buffer.escapes:
                sooner = self.readers[number] & ((1 << node) - 1)
                if not sooner & ~masks[home[self.place[writer]]]:
                    total += buffer.bytes_written  # the first to read it from outside: it has to be written
        return total + sum(self.buffers[n].bytes_written for n in self.writes[node] if self.buffers[n].escapes)

    def _read(self, number: int, mask: int) -> int:
        inside, classes = mask & self.readers[number], self.problem.classes
        if classes is not None and inside.bit_count() > 1:
            return classes.reads(self.buffers[number], mask)
        key = number, inside
        if key not in self.known:
            self.known[key] = self.buffers[number].bytes_read(inside)
        return self.known[key]

    def _complete(self, state: _State) -> None:
        masks, _, _, cost = state
        if self.problem.classes is not None:
            if any(self.problem.classes.extra(mask) is None for mask in masks):
                return
            cost = self._cost(list(masks))
        if cost < self.least:
            self.least, self.best = cost, list(masks)

    def _cost(self, masks: list[int]) -> int:
        classes = self.problem.classes
        extra = sum(classes.extra(mask) or 0 for mask in masks) if classes is not None else 0
        return extra + sum(self.problem.buffer_cost(buffer, masks) for buffer in self.buffers)

    # -- the bound ----------------------------------------------------------------------------------------------------

    def _untouched(self, number: int, buffer: Buffer) -> int:
        """Bytes a buffer costs at least, whatever its writer joins: readers that are apart from it read it again."""
        alone = self.alone[number]
        large = [reader for reader in buffer.readers if 2 * alone[reader] >= max(alone.values())]
        home = [] if buffer.writer is None else [buffer.writer]
        one_class = self._read_together(number, sum(1 << node for node in (*home, *large)))
        if buffer.writer is None:
            two_classes = sum(sorted(alone[reader] for reader in large)[:: max(len(large) - 1, 1)])
            return max(self._again(number, list(buffer.readers)), min(one_class, two_classes))
        away = [reader for reader in buffer.readers if self.problem.apart[buffer.writer] >> reader & 1]
        read = self._again(number, away) or (0 if one_class < math.inf else min(alone[r] for r in large))
        return read + (buffer.bytes_written if away or one_class == math.inf or buffer.escapes else 0)

    def _read_together(self, number: int, members: int) -> float:
        """Bytes of a buffer that these nodes read in one class, with all that lies on paths between them (Proposition
        7.1); infinite if they cannot be in one."""
        if members not in self.hulls:
            above = below = 0
            for node in bits(members):
                above |= self.problem.ancestors[node]
                below |= self.problem.descendants[node]
            hull, classes = members | above & below, self.problem.classes
            apart = any(self.problem.apart[node] & hull for node in bits(hull))
            self.hulls[members] = hull if not apart and (classes is None or classes.may_grow(hull)) else 0
        hull, writer = self.hulls[members], self.buffers[number].writer
        if hull and writer is not None and hull >> writer & 1:
            return 0
        return self._read(number, hull) if hull else math.inf

    def _again(self, number: int, readers: list[int]) -> int:
        """What readers that find a buffer nowhere cost: a set of them that are pairwise apart, found greedily."""
        alone, chosen, total = self.alone[number], 0, 0
        for reader in sorted(
            readers, key=lambda r: (-alone[r], -(self.problem.apart[r] & self.readers[number]).bit_count())
        ):
            if chosen & ~self.problem.apart[reader] == 0:
                chosen |= 1 << reader
                total += alone[reader]
        return total

    def _future(self, count: int, state: _State) -> int:
        """What the nodes to come cost at least, after ``count`` of them have a class."""
        if count == len(self.nodes):
            return 0
        masks, reach, home, _ = state
        first = self.nodes[count]
        allowed = self._allowed(count, masks, reach, home)
        total = 0
        chances: list[tuple[int, int, int, list[int]]] = []  # buffer, classes that have it, home if unwritten, readers
        for number in self.live[count]:
            buffer = self.buffers[number]
            writer = buffer.writer
            if writer is not None and writer >= first:
                total += self.untouched[number]
                continue
            holding = 0
            for node in buffer.touching:
                if node < first:
                    holding |= 1 << home[self.place[node]]
            coming = [reader for reader in buffer.readers if reader >= first]
            unwritten = -1
            if writer is not None and not buffer.escapes:
                place = home[self.place[writer]]
                if holding == 1 << place:
                    unwritten = place
            lost = [reader for reader in coming if not allowed[reader] & holding]
            if lost:
                total += self._again(number, lost) + (buffer.bytes_written if unwritten >= 0 else 0)
                continue
            more = max(self._at_home(number, masks, allowed[reader] & holding, reader) for reader in coming)
            one_class = 0.0
            if not holding & (holding - 1):  # all in the one class that has it, or one of them elsewhere
                home_class = masks[holding.bit_length() - 1]
                # Of readers that touch little of it, one elsewhere would prove little.
                whole = max(self.alone[number][reader] for reader in coming)
                large = [reader for reader in coming if 2 * self.alone[number][reader] >= whole]
                one_class = self._read_together(number, home_class | sum(1 << reader for reader in large))
                if not (writer is not None and home_class >> writer & 1):
                    one_class -= self._read(number, home_class)
                more = max(more, min(one_class, min(self.alone[number][reader] for reader in large)))
            if one_class == math.inf:
                total += int(more) + (buffer.bytes_written if unwritten >= 0 else 0)
            elif more:
                total += int(more)
            else:
                chances.append((number, holding, unwritten, coming))
        return total + self._conflicts(allowed, chances)

    def _at_home(self, number: int, masks: tuple[int, ...], places: int, reader: int) -> int:
        """What a buffer costs a reader in the cheapest of the classes that have it, or in another one."""
        if self.problem.classes is None:
            return 0
        buffer, least = self.buffers[number], self.alone[number][reader]
        for place in bits(places):
            mask = masks[place]
            if least == 0 or (buffer.writer is not None and mask >> buffer.writer & 1):
                return 0
            least = min(least, self._read(number, mask | 1 << reader) - self._read(number, mask))
        return least

    def _allowed(
        self, count: int, masks: tuple[int, ...], reach: tuple[int, ...], home: tuple[int, ...]
    ) -> dict[int, int]:
        """The classes that each node to come may join, as far as can be told now."""
        found = {}
        apart, ancestors, classes = self.problem.apart, self.problem.ancestors, self.problem.classes
        for node in self.nodes[count:]:
            above = ancestors[node]
            sources = 0
            for place, mask in enumerate(masks):
                if mask & above:
                    sources |= 1 << place
            bad = apart[node]
            fitting = [p for p, mask in enumerate(masks) if not mask & bad and not reach[p] & sources]
            if classes is not None:
                fitting = [place for place in fitting if classes.may_grow(masks[place] | 1 << node)]
            found[node] = sum(1 << place for place in fitting)
        return found

    def _conflicts(self, allowed: dict[int, int], chances: list[tuple[int, int, int, list[int]]]) -> int:
        """Each buffer is one reader's, who joins one class: what it misses by that. A bound, for buffers are disjoint
        and a reader counted once for each of its own."""
        wanted: dict[int, list[tuple[int, int, int]]] = {}
        for number, holding, unwritten, coming in chances:
            for reader in coming:
                wanted.setdefault(reader, []).append((number, holding, unwritten))
        taken: set[int] = set()
        total = 0
        for reader in sorted(wanted, key=lambda r: -len(wanted[r])):
            own = [entry for entry in wanted[reader] if entry[0] not in taken]
            if len(own) < 2:
                continue
            taken.update(number for number, _, _ in own)
            prices = []
            for place in (*bits(allowed[reader]), -1):
                price = 0
                for number, holding, unwritten in own:
                    if place < 0 or not holding >> place & 1:
                        price += self.alone[number][reader]
                        price += self.buffers[number].bytes_written if unwritten >= 0 else 0
                prices.append(price)
            total += min(prices)
        return total
