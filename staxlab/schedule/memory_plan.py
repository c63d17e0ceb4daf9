"""What planning memory delivers (Section 7.5): for every buffer of a schedule, whose memory it lives in.

Buffers that may share memory form a *chain* of owners one after the other, and every chain has one *root*: the
allocation that all of its buffers live in. Roots are of four kinds. A ``result`` has memory of its own, since it leaves
the call; what PyTorch's operators return (``extern``) has what they allocated; every other intermediate stands in the
``arena``, one block per call, at an offset, or, where a block held to the end would cost more than it saves, has memory
of its ``own`` that is freed after its last reader. A scatter is a ``view of base``, and a buffer ``in place`` stands in
the memory of its chain's root; the root may also be an input, where the program overwrites that input anyway.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..loops.body import LoopBody
from ..options import Decision
from ..provenance import Origins
from .lifetimes import Lifetime

#: Arena offsets are multiples of this many bytes, the line of a cache and the widest vector.
ALIGNMENT = 64

#: Nodes for which a text has room for bars.
MOST_COLUMNS = 60

KINDS = ("result", "arena", "own", "in place", "extern", "view of base")


@dataclass(frozen=True)
class Placement:
    """Where the ``bytes`` of storage of a ``buffer`` are.

    ``kind`` is one of :data:`KINDS`. ``root`` names the allocation: the buffer itself for the kinds "result", "arena",
    "own" and "extern"; for "in place" and "view of base" another buffer, or an input of the program. ``offset`` counts
    bytes from the start of the arena (kind "arena" alone, a multiple of :data:`ALIGNMENT`). ``reuses`` is the buffer
    whose memory this one takes over, at the kernel that reads the one and writes the other (None: the first of its
    chain, or one that lived in the root's memory before the root did).
    """

    buffer: str
    bytes: int
    kind: str
    root: str
    offset: int | None = None
    reuses: str | None = None


@dataclass(frozen=True)
class MemoryPlan:
    """The placement of every buffer that has memory, and when allocations come and go.

    ``allocate[p]`` are the roots of kind "result" or "own" to allocate before the node at position ``p`` runs, and
    ``release[p]`` those of kind "own" and "extern" that are dead after it. ``arena_span`` holds the first and the last
    position at which the arena of ``arena_bytes`` is in use (None without one): it is allocated before the first, and
    may be freed after the last. ``live_bytes[p]`` is what the call has allocated while node ``p`` runs (inputs do not
    count), ``peak_bytes`` the most of it; ``least_bytes`` is the most that is alive at once if every buffer has memory
    exactly as long as it lives (Definition 7.5), which no plan without reuse in place can beat.

    ``written_back`` names the extern nodes (``copy_`` into an input) that have nothing left to copy: their source
    stands in the input's memory. ``skipped`` names the kernels that would copy such an input to begin with, and so have
    nothing to do. ``checked_first`` maps the scatters that must not write anything into such an input before all their
    checks are made to the part of their body that makes them. ``decisions`` say what was chosen where there was a
    choice. ``steps`` are the names of the nodes and ``lifetimes`` those of the buffers (``sources``: the captured nodes
    each buffer stems from).
    """

    placements: Mapping[str, Placement]
    allocate: tuple[tuple[str, ...], ...]
    release: tuple[tuple[str, ...], ...]
    live_bytes: tuple[int, ...]
    arena_bytes: int = 0
    arena_span: tuple[int, int] | None = None
    least_bytes: int = 0
    written_back: frozenset[str] = frozenset()
    decisions: tuple[Decision, ...] = field(default=(), repr=False)
    steps: tuple[str, ...] = ()
    lifetimes: tuple[Lifetime, ...] = ()
    sources: Mapping[str, Origins] = field(default_factory=dict, repr=False)
    skipped: frozenset[str] = frozenset()
    checked_first: Mapping[str, LoopBody] = field(default_factory=dict, repr=False)

    @property
    def peak_bytes(self) -> int:
        return max(self.live_bytes, default=0)

    @property
    def peak_step(self) -> int:
        """The first position at which the call has the most memory; 0 for a plan of nothing."""
        return self.live_bytes.index(self.peak_bytes) if self.live_bytes else 0

    def root(self, buffer: str) -> str:
        """The name of the allocation (a buffer, or an input) that holds a buffer; an input's is itself."""
        placement = self.placements.get(buffer)
        return buffer if placement is None else placement.root

    def shares(self, written: str, read: str) -> bool:
        """Whether two buffers stand in the same memory, so that a kernel may not be told that they do not."""
        return written != read and self.root(written) == self.root(read)

    def format(self) -> str:
        """A line per buffer, with the nodes during which it is alive as a bar, then the totals, in bytes."""
        lines = []
        alive = {life.buffer: life for life in self.lifetimes}
        for placement in self.placements.values():
            where = placement.kind
            if placement.offset is not None:
                where += f" at {placement.offset}"
            if placement.root != placement.buffer:
                where += f" of {placement.root}"
            if placement.reuses is not None:
                where += f", after {placement.reuses}"
            life = alive.get(placement.buffer)
            bar = "" if life is None or len(self.steps) > MOST_COLUMNS else f"|{_bar(life, len(self.steps))}| "
            lines.append(f"{bar}{placement.buffer}: {placement.bytes} bytes, {where}")
        at = f" at {self.steps[self.peak_step]}" if self.steps else ""
        lines.append(
            f"arena {self.arena_bytes} bytes, peak {self.peak_bytes} bytes{at}, alive at most {self.least_bytes} bytes"
        )
        return "\n".join(lines)

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def _bar(life: Lifetime, count: int) -> str:
    return "".join("=" if life.first <= position <= life.last else "." for position in range(count))
