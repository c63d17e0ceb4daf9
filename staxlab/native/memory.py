"""The pool as its user sees it (Section 8.5): how much memory results hold, how much rests, and what that has saved.

Results and temporaries of CPU regions stand in blocks that return to a pool of the process when the last tensor over
them dies, on whatever thread that happens; the next result of that size is written where memory is mapped already. At
most a limit of bytes rests there, an eighth of the machine's memory or one GiB, whichever is less, unless
``STAXLAB_POOL_BYTES`` or :func:`set_memory_limit` says otherwise. It is a matter of the process and not of one compiled
function, hence no option of :func:`staxlab.compile`.

A result is a tensor like one made by ``torch.from_numpy``: PyTorch refuses to let its storage grow (``resize_`` to more
elements than it has, or ``out=`` with a larger result), and everything else is as usual.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .. import native


@dataclass(frozen=True)
class MemoryStats:
    """What the pool holds now, and what it has done since the process started or its counts were restarted.

    All in bytes, of whole blocks (up to an eighth more than was asked for), or in numbers of blocks. Now: ``lent`` to
    tensors and to calls that run, ``resting`` until somebody needs them, and the ``limit_bytes`` of what may rest.
    Since the start: requests answered by a block that rested (``hits``, of ``reused_bytes``) and by the system
    (``misses``, ``system_bytes``), bytes returned to the system, the peaks of what was lent and of what was held (lent
    or resting), and how often the pool was ``emptied`` because the system had no memory left. ``missing`` says why
    there is no pool; then all numbers are 0.
    """

    lent_bytes: int = 0
    lent_blocks: int = 0
    resting_bytes: int = 0
    resting_blocks: int = 0
    hits: int = 0
    misses: int = 0
    reused_bytes: int = 0
    system_bytes: int = 0
    returned_bytes: int = 0
    emptied: int = 0
    peak_lent_bytes: int = 0
    peak_held_bytes: int = 0
    limit_bytes: int = 0
    missing: str = ""

    @property
    def held_bytes(self) -> int:
        return self.lent_bytes + self.resting_bytes

    @property
    def hit_rate(self) -> float:
        """The part of requests that needed no memory of the system; 0 if there were none."""
        return self.hits / (self.hits + self.misses) if self.hits + self.misses else 0.0

    def rows(self) -> list[tuple[str, str, str]]:
        """(what, bytes, blocks), both as text, empty where there is no such number."""
        return [
            ("lent to tensors and calls", f"{self.lent_bytes:,}", f"{self.lent_blocks:,}"),
            ("resting in the pool", f"{self.resting_bytes:,}", f"{self.resting_blocks:,}"),
            ("limit of what may rest", f"{self.limit_bytes:,}", ""),
            ("most lent at a time", f"{self.peak_lent_bytes:,}", ""),
            ("most held at a time, lent or resting", f"{self.peak_held_bytes:,}", ""),
            ("reused: requests the pool answered", f"{self.reused_bytes:,}", f"{self.hits:,}"),
            ("taken from the system", f"{self.system_bytes:,}", f"{self.misses:,}"),
            ("returned to the system", f"{self.returned_bytes:,}", ""),
        ]

    def format(self) -> str:
        if self.missing:
            return f"memory pool: none ({self.missing})"
        lines = [f"{'memory pool':38} {'bytes':>18} {'blocks':>10}"]
        lines += [f"  {what:36} {size:>18} {blocks:>10}".rstrip() for what, size, blocks in self.rows()]
        lines.append(f"  {self.hit_rate:.1%} of {self.hits + self.misses:,} requests needed no memory of the system")
        if self.emptied:
            lines.append(f"  emptied {self.emptied:,} times because the system had no memory left")
        return "\n".join(lines)

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def memory_stats(*, restart: bool = False) -> MemoryStats:
    """How the memory of CPU results and temporaries is used: a :class:`MemoryStats`, which prints and draws itself.

    ``restart`` sets peaks and counts back once they are read; what is lent and at rest stays what it is. Memory that
    PyTorch's own operators allocate is not the pool's. O(1).
    """
    if not native.available:
        return MemoryStats(missing=native.reason)
    numbers = native.pool_statistics()
    if restart:
        native.restart_counts()
    hits, taken, limit = numbers.pop("reused"), numbers.pop("taken"), numbers.pop("limit")
    return MemoryStats(hits=hits, misses=taken - hits, limit_bytes=limit, **numbers)


def clear_memory_pool() -> int:
    """Return all memory that rests in the pool to the system, and say how many bytes. Tensors keep theirs, which comes
    to the pool when they die."""
    before = native.pool_statistics().get("resting_bytes", 0)
    native.clear()
    return before


def set_memory_limit(limit: int | str | None) -> None:
    """Set how many bytes may rest in the pool: a number, text such as "512M" or "2G", or None for the usual limit, an
    eighth of the machine's memory and at most one GiB. With 0 every result gets fresh memory. What rests beyond it is
    returned at once, that which has rested longest first. OptionError for what is no number of bytes."""
    native.set_limit(None if limit is None else native.bytes_of(limit))
