"""How long buffers live (Section 7.5): for an order of the nodes, which buffers are alive while each of them runs.

A buffer is alive from the node that writes it to the last node that reads it; a result to the end. ``L(p)`` is the set
of those alive while the node at position ``p`` runs, both what it reads and what it writes included, and the peak of an
order is the most bytes that are alive at once (Definition 7.5). Inputs belong to the caller and are not counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Lifetime:
    """A buffer is alive while the nodes at positions ``first`` to ``last`` run, both included."""

    buffer: str
    bytes: int
    first: int
    last: int

    def meets(self, other: Lifetime) -> bool:
        """Whether the two are ever alive at the same time."""
        return self.first <= other.last and other.first <= self.last


@dataclass(frozen=True)
class Step:
    """What a node does to memory: it takes ``reads`` and makes ``writes``. Nothing else of it matters here."""

    name: str
    reads: tuple[str, ...] = ()
    writes: tuple[str, ...] = ()


def lifetimes(steps: Sequence[Step], sizes: Mapping[str, int], escaping: Iterable[str] = ()) -> tuple[Lifetime, ...]:
    """The lifetime of every buffer that some step writes, in the order in which they begin.

    ``sizes`` are bytes; ``escaping`` buffers live to the end. Linear in the number of reads and writes.
    """
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, step in enumerate(steps):
        for name in step.writes:
            first.setdefault(name, position)
            last[name] = position
        for name in step.reads:
            if name in first:
                last[name] = position
    for name in escaping:
        if name in first:
            last[name] = len(steps) - 1
    return tuple(Lifetime(name, sizes[name], first[name], last[name]) for name in first)


def live_sets(found: Iterable[Lifetime], count: int) -> tuple[frozenset[str], ...]:
    """L(p) for every position ``p`` below ``count``."""
    alive: list[set[str]] = [set() for _ in range(count)]
    for life in found:
        for position in range(life.first, life.last + 1):
            alive[position].add(life.buffer)
    return tuple(map(frozenset, alive))


def live_bytes(found: Iterable[Lifetime], count: int) -> tuple[int, ...]:
    """The bytes of L(p) for every position ``p`` below ``count``. Linear in lifetimes and positions."""
    change = [0] * (count + 1)
    for life in found:
        change[life.first] += life.bytes
        change[life.last + 1] -= life.bytes
    total, totals = 0, []
    for step in change[:count]:
        total += step
        totals.append(total)
    return tuple(totals)


def peak(steps: Sequence[Step], sizes: Mapping[str, int], escaping: Iterable[str] = ()) -> int:
    """The peak of an order (Definition 7.5), in bytes."""
    return max(live_bytes(lifetimes(steps, sizes, escaping), len(steps)), default=0)
