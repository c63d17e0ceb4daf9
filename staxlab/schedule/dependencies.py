"""From buffers to schedule nodes (Section 7.1): what each reads and writes, and an order to run them in.

Lowering hands over buffers in an order in which they can be computed. Scheduling keeps that topological order, drops
what no output needs, normalises every loop body and records the memory accesses: the compute function, run under the
recording handler, *is* the list of reads, and the layout of its buffer is the write. Two nodes depend on each other
exactly when one reads a buffer the other writes. Every buffer is written once, so there are only true dependences; a
scatter, which takes over the memory of its base, is the base's only reader and so comes last there.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from ..errors import ScheduleError
from ..loops.body import MemoryAccess, record, store_index
from ..loops.expressions import Expr, Symbol
from ..loops.ir import (
    Computed,
    ComputedBuffer,
    ExternBuffer,
    Layout,
    LoopProgram,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Template,
)
from ..loops.normalize import is_empty, normalize
from ..options import Decision, DeviceSpec, Options
from .column_blocks import in_blocks
from .execution_order import in_best_order
from .fusion import Fusion, fuse
from .programs import ProgramFusion
from .records import Schedule, ScheduleNode, buffers_read, extern_arguments, node_has_effect


def schedule(
    program: LoopProgram, device: DeviceSpec, options: Options, owned: frozenset[str] = frozenset()
) -> Schedule:
    """Order the buffers a program's outputs need and describe each as a node; fuse them, by the rules of the device
    (:mod:`.fusion`, :mod:`.programs`), on a CPU with column sums in two steps where that saves traffic
    (:mod:`.column_blocks`). ``owned`` are inputs the call may let go of.

    Raises ScheduleError if a buffer is read before it is computed.
    """
    found = _scheduled(program, device, options, owned)
    if options.fuse and not device.is_gpu:
        found = in_blocks(found, lambda changed: _scheduled(changed, device, options, owned))
    return found


def _scheduled(program: LoopProgram, device: DeviceSpec, options: Options, owned: frozenset[str]) -> Schedule:
    layouts = {b.name: b.layout for b in (*program.inputs, *program.buffers)}
    kept = single_nodes(program)
    decisions: tuple[Decision, ...] = ()
    if options.fuse:
        rules = partial(ProgramFusion, device=device) if device.is_gpu else Fusion
        kept, decisions = fuse(kept, layouts, escaping(kept, program), rules=rules)
    kept, memory, ordered = in_best_order(kept, program, device, layouts, owned)
    last = _last_readers(kept, program)
    return Schedule(tuple(kept), program, device, layouts, last, decisions + ordered, memory, owned)


def single_nodes(program: LoopProgram) -> list[ScheduleNode]:
    """A node for each buffer that is needed, in the order of the program: what fusion begins with.

    Raises ScheduleError if a buffer is read before it is computed.
    """
    dtypes = {buffer.name: buffer.layout.dtype for buffer in (*program.inputs, *program.buffers)}
    producer: dict[str, str] = {}
    nodes: list[ScheduleNode] = []
    extern_position: dict[str, int] = {}
    for buffer in program.buffers:
        name = f"op{len(nodes)}"
        if isinstance(buffer, ExternBuffer):
            if buffer.call in extern_position:
                position = extern_position[buffer.call]
                nodes[position] = _extend_extern(nodes[position], buffer)
                producer[buffer.name] = nodes[position].name
                continue
            node = _extern_node(name, buffer)
            extern_position[buffer.call] = len(nodes)
        else:
            node = _computed_node(name, buffer, dtypes)
        for access in node.reads:
            if access.buffer not in producer and access.buffer not in {b.name for b in program.inputs}:
                raise ScheduleError(f"{node.name} reads {access.buffer} before it is computed")
        predecessors = dict.fromkeys(producer[a.buffer] for a in node.reads if a.buffer in producer)
        nodes.append(replace(node, predecessors=tuple(predecessors)))
        producer[buffer.name] = node.name
    return _needed(nodes, program)


def escaping(nodes: list[ScheduleNode], program: LoopProgram) -> frozenset[str]:
    """The buffers that need memory of their own whoever reads them: inputs, results, what PyTorch's operators take."""
    outputs = {output.name for output in program.outputs if output.name is not None}
    taken = {name for node in nodes if node.extern is not None for name in buffers_read(node)}
    taken |= {node.base for node in nodes if node.base is not None}
    return frozenset(outputs | taken | {buffer.name for buffer in program.inputs})


def _computed_node(name: str, buffer: ComputedBuffer, dtypes: dict) -> ScheduleNode:
    data = buffer.data
    ranges, reduction_ranges = _ranges(data)
    body = record(buffer, dtypes)
    store = store_index(buffer, body)
    empty = is_empty(ranges) or is_empty(reduction_ranges)
    if not empty and not isinstance(data, Template):  # whose loops are laid out already
        ordered = isinstance(data, Scan) or (isinstance(data, Reduction) and data.kind in ("argmax", "argmin"))
        normal = normalize(
            body, ranges, reduction_ranges, store, ordered=ordered, outer_ordered=isinstance(data, Scatter)
        )
        body, ranges, reduction_ranges, store = normal.body, normal.ranges, normal.reduction_ranges, normal.store
    symbols = body.symbols if isinstance(data, Scan) else body.indices
    written = MemoryAccess(buffer.name, store, symbols)
    reads = body.reads() if not empty else ()
    if body.epilogue is not None and not is_empty(ranges):  # what a sum of nothing is made into
        reads = reads or body.epilogue.reads()
    if isinstance(data, Scatter):
        reads += (replace(written, buffer=data.base),)
    return ScheduleNode(
        name=name,
        kind=_KINDS[type(data)],
        buffers=(buffer.name,),
        origins=buffer.origins | body.origins,
        ranges=ranges,
        reduction_ranges=reduction_ranges,
        body=body,
        reduction="sum" if isinstance(data, Template) else getattr(data, "kind", None),
        accumulate_dtype=getattr(data, "accumulate_dtype", None),
        store_dtype=buffer.layout.dtype,
        reads=reads,
        writes=() if is_empty(ranges) or (empty and isinstance(data, Scan)) else (written,),
        base=data.base if isinstance(data, Scatter) else None,
        form=data.form if isinstance(data, Template) else None,
    )


_KINDS = {
    Pointwise: "pointwise", Reduction: "reduction", Scan: "scan", Scatter: "scatter", Template: "template",
}  # fmt: skip


def _ranges(data: Computed) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The outer loops and the reduced (or scanned) ones."""
    if isinstance(data, Reduction):
        return data.ranges, data.reduction_ranges
    if isinstance(data, Scan):
        return data.ranges[: data.axis] + data.ranges[data.axis + 1 :], (data.ranges[data.axis],)
    return data.ranges, (data.depth,) if isinstance(data, Template) else ()


def _whole(name: str, layout: Layout) -> MemoryAccess:
    """The access that touches every element of a view once."""
    symbols = tuple(Symbol(f"i{k}", 0, max(n - 1, 0)) for k, n in enumerate(layout.shape))
    return MemoryAccess(name, layout.address(tuple(Expr.of(s) for s in symbols)), symbols)


def _extern_node(name: str, buffer: ExternBuffer) -> ScheduleNode:
    arguments = extern_arguments(buffer.data)
    return ScheduleNode(
        name=name,
        kind="extern",
        buffers=(buffer.name,),
        origins=buffer.origins | buffer.data.origins,
        store_dtype=buffer.layout.dtype,
        reads=tuple(dict.fromkeys(_whole(a.name, a.layout) for a in arguments if a.layout.numel)),
        writes=(_whole(buffer.name, buffer.layout),) if buffer.layout.numel else (),
        extern=buffer.data,
    )


def _extend_extern(node: ScheduleNode, buffer: ExternBuffer) -> ScheduleNode:
    writes = node.writes + ((_whole(buffer.name, buffer.layout),) if buffer.layout.numel else ())
    return replace(node, buffers=(*node.buffers, buffer.name), origins=node.origins | buffer.origins, writes=writes)


def _needed(nodes: list[ScheduleNode], program: LoopProgram) -> list[ScheduleNode]:
    """The nodes some output or effect depends on, in order: dead code elimination on buffers."""
    wanted = {output.name for output in program.outputs if output.name is not None}
    kept: list[ScheduleNode] = []
    for node in reversed(nodes):
        if wanted.intersection(node.buffers) or node_has_effect(node):
            kept.append(node)
            wanted.update(buffers_read(node))
    return kept[::-1]


def _last_readers(nodes: list[ScheduleNode], program: LoopProgram) -> dict[str, int]:
    """Intermediate buffers and the position of the node after which each may be freed."""
    escaping = {output.name for output in program.outputs} | {buffer.name for buffer in program.inputs}
    last: dict[str, int] = {}
    for position, node in enumerate(nodes):
        for name in node.buffers:
            last[name] = position
        for name in buffers_read(node):
            last[name] = position
    return {name: position for name, position in last.items() if name not in escaping}
