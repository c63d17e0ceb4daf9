"""Inputs that a call may let go of (Section 7.5): a backward pass is the last that needs what was saved for it.

Eager execution frees a saved value as soon as the operator that reads it has run; a compiled backward that held all it
was given to its end would need more memory than eager at its peak. So the caller hands its references over,
and each input is dropped after the last node that reads it.
"""

from __future__ import annotations

from typing import Any

from .records import Schedule, buffers_read


def last_uses(schedule: Schedule) -> tuple[tuple[str, ...], ...]:
    """For each position of the schedule, the owned inputs that no later node and no result needs. Linear."""
    memory = schedule.memory

    def roots(buffers: Any) -> set[str]:
        return {memory.root(name) if memory is not None else name for name in buffers}

    last: dict[str, int] = {name: 0 for name in schedule.inputs if name in schedule.owned}
    for position, node in enumerate(schedule.nodes):
        for name in roots((*buffers_read(node), *node.buffers)) | set(buffers_read(node)):
            if name in last:
                last[name] = position
    kept = {output.name for output in schedule.outputs if output.name is not None}
    kept |= roots(kept)
    found: list[list[str]] = [[] for _ in schedule.nodes]
    for name, position in last.items():
        if name not in kept and found:
            found[position].append(name)
    return tuple(map(tuple, found))
