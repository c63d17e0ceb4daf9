"""Planning memory (Section 7.5): who takes over whose memory, and where in the arena the rest stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..loops.ir import Layout, LoopProgram
from ..options import DeviceSpec
from .lifetimes import Step, lifetimes, live_bytes
from .memory_plan import MemoryPlan, Placement
from .records import ScheduleNode, buffers_read


def storage_bytes(layout: Layout) -> int:
    """The bytes of the storage a layout addresses."""
    return layout.storage_elements * layout.dtype.itemsize


def step_of(node: ScheduleNode) -> Step:
    """What a node does to memory."""
    return Step(node.name, tuple(sorted(buffers_read(node))), node.buffers)


def plan_memory(
    nodes: Sequence[ScheduleNode], program: LoopProgram, device: DeviceSpec, layouts: Mapping[str, Layout]
) -> MemoryPlan:
    """The memory plan of nodes in execution order."""
    outputs = {output.name for output in program.outputs if output.name is not None}
    inputs = {buffer.name for buffer in program.inputs}
    bases = {node.buffers[0]: node.base for node in nodes if node.base is not None}
    roots: dict[str, str] = {}
    for node in nodes:
        for name in node.buffers:
            roots[name] = roots[bases[name]] if name in bases else name
    escaping = {roots[name] for name in outputs if name in roots}
    extern = {name for node in nodes if node.extern is not None for name in node.buffers}
    steps = [
        Step(
            node.name,
            tuple(roots.get(name, name) for name in buffers_read(node)),
            tuple(roots[name] for name in node.buffers),
        )
        for node in nodes
    ]
    sizes = {name: storage_bytes(layouts[name]) for name in roots}
    found = lifetimes(steps, sizes, escaping)
    placements = {
        name: Placement(name, sizes[name], _kind(name, bases, escaping, extern), root)
        for name, root in roots.items()
        if name not in inputs
    }
    allocate: list[list[str]] = [[] for _ in nodes]
    release: list[list[str]] = [[] for _ in nodes]
    for life in found:
        if life.buffer not in extern:
            allocate[life.first].append(life.buffer)
        if life.buffer not in escaping:
            release[life.last].append(life.buffer)
    live = live_bytes(found, len(nodes))
    return MemoryPlan(
        placements, tuple(map(tuple, allocate)), tuple(map(tuple, release)), live, least_bytes=max(live, default=0)
    )


def _kind(name: str, bases: Mapping[str, str | None], escaping: set[str], extern: set[str]) -> str:
    if name in bases:
        return "view of base"
    if name in extern:
        return "extern"
    return "result" if name in escaping else "own"
