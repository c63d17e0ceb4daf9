"""What scheduling delivers: nodes in execution order, each with a normalised loop body and its memory accesses.

One :class:`ScheduleNode` per realized buffer (Section 7.1). A node knows its iteration space (Definition 7.2), what it
reads and writes, and where it came from; code generation turns each into one kernel.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ..loops.body import LoopBody, MemoryAccess
from ..loops.expressions import Symbol
from ..loops.ir import BufferArgument, Extern, Layout, LoopProgram, OutputReference, ProductForm
from ..loops.operands import operand_elements, operands
from ..operators.basis import has_effect
from ..options import Decision, DeviceSpec
from ..provenance import NO_ORIGINS, Origins
from .memory_plan import MemoryPlan

#: Operators that raise where an integer is divided by zero.
DIVISIONS = frozenset({"aten::floor_divide", "aten::div", "aten::remainder", "aten::fmod"})


@dataclass(frozen=True)
class ScheduleNode:
    """One kernel's worth of work.

    ``kind`` is "pointwise", "reduction", "scan", "scatter", "template" or "extern". For all but the last, ``body`` is
    the normalised loop body over ``ranges`` (outermost first, extents of ``body.indices``) and ``reduction_ranges`` (of
    a scan: its axis); these are authoritative where an extent is 0 (``is_empty``: nothing to do; an empty reduction
    range: every output is the neutral element). ``writes[0].index`` is the storage subscript at which ``body.result``
    (or what was merged) is stored into ``buffers[0]``. A scatter finds the contents of ``base`` there, whose memory
    it takes over. For an extern node ``extern`` holds the call and ``buffers`` all its results.

    A node of kind "fused" stands for its ``members``, which run one after the other for every value of ``row_loops``
    (outermost first; without one, once); they are written over one row. Its ``buffers``, reads and writes are those
    that cross its border. Where the first member is a template, the others are its epilogue (:mod:`.epilogues`): made
    of each element of the product while it is in registers, over the loops of the template and without rows.

    ``form`` of a template says how a GPU lays its loops out.
    """

    name: str
    kind: str
    buffers: tuple[str, ...]
    origins: Origins = NO_ORIGINS
    ranges: tuple[int, ...] = ()
    reduction_ranges: tuple[int, ...] = ()
    body: LoopBody | None = None
    reduction: str | None = None
    accumulate_dtype: torch.dtype | None = None
    store_dtype: torch.dtype | None = None
    reads: tuple[MemoryAccess, ...] = ()
    writes: tuple[MemoryAccess, ...] = ()
    extern: Extern | None = None
    predecessors: tuple[str, ...] = ()
    base: str | None = None
    members: tuple[ScheduleNode, ...] = ()
    row_loops: tuple[Symbol, ...] = ()
    form: ProductForm | None = None

    @property
    def rows(self) -> int:
        """How often the members of a fused node run, one after the other."""
        return _product(tuple(int(loop.upper) + 1 for loop in self.row_loops)) if self.members else 0

    @property
    def product(self) -> ScheduleNode | None:
        """The template that this node is, or that its other members are the epilogue of; None if it is neither."""
        first = self.members[0] if self.members else self
        return first if first.kind == "template" else None

    @property
    def private(self) -> tuple[str, ...]:
        """Buffers that exist for one row at a time: a member writes them and only members read them."""
        return tuple(b for member in self.members for b in member.buffers if b not in self.buffers)

    @property
    def loads(self) -> tuple[MemoryAccess, ...]:
        """The reads that move elements. A scatter that replaces elements takes over its base without looking at it."""
        if self.reduction != "store":
            return self.reads
        return tuple(access for access in self.reads if access.buffer != self.base)

    @property
    def numel(self) -> int:
        """Points of the pointwise space."""
        return _product(self.ranges)

    @property
    def reduction_numel(self) -> int:
        return _product(self.reduction_ranges)

    @property
    def is_empty(self) -> bool:
        if self.members:
            return False
        return self.numel == 0 or (self.kind == "scan" and self.reduction_numel == 0)

    def describe(self) -> str:
        """Name, kind and iteration space, in a line."""
        if self.product is not self and self.product is not None:
            return f"{self.product.describe()}, {len(self.members) - 1} fused".replace(self.product.name, self.name, 1)
        if self.members:
            rows = " x ".join(str(int(loop.upper) + 1) for loop in self.row_loops) or "1"
            return f"{self.name}: fused [{rows} row{'' if self.rows == 1 else 's'}]"
        space = " x ".join(map(str, self.ranges)) or "1"
        if self.kind not in ("pointwise", "scatter", "extern"):
            space += " | " + (" x ".join(map(str, self.reduction_ranges)) or "1")
        what = self.reduction or (str(self.extern.operator) if self.extern else "")
        return f"{self.name}: {self.kind} {what} [{space}]".replace("  ", " ")

    @property
    def operations(self) -> int:
        """Scalar operations of the whole node, merges of a reduction included."""
        if self.members:
            return self.rows * sum(member.operations for member in self.members)
        if self.body is None:
            return 0
        if self.kind == "template":
            return self._product_operations()
        merges = 0 if self.kind == "pointwise" or self.reduction == "store" else 1
        return self.numel * max(self.reduction_numel, 1) * (self.body.operation_count() + merges)

    def _product_operations(self) -> int:
        """A multiplication and an addition per product; what makes the operands and the results once per element."""
        assert self.body is not None and self.body.epilogue is not None
        extents = dict(zip(self.body.symbols, (*self.ranges, *self.reduction_ranges), strict=True))
        count = 2 * self.numel * self.reduction_numel + self.numel * self.body.epilogue.operation_count()
        if not self.is_empty and self.reduction_numel:
            for operand in operands(self.body):
                count += operand.operation_count() * operand_elements(operand, extents)
        return count


@dataclass(frozen=True)
class Schedule:
    """Nodes in execution order; ``layouts`` of every buffer and input by name; ``last_reader`` maps an intermediate
    buffer to the position of the node after which it may be freed; ``memory`` says where every buffer stands (None
    only where a schedule was put together by hand). ``owned`` are inputs that the caller leaves to the call, which lets
    go of each after its last reader."""

    nodes: tuple[ScheduleNode, ...]
    program: LoopProgram
    device: DeviceSpec
    layouts: dict[str, Layout]
    last_reader: dict[str, int]
    decisions: tuple[Decision, ...] = ()
    memory: MemoryPlan | None = None
    owned: frozenset[str] = frozenset()

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(buffer.name for buffer in self.program.inputs)

    @property
    def outputs(self) -> tuple[OutputReference, ...]:
        return self.program.outputs

    def node(self, name: str) -> ScheduleNode:
        for candidate in self.nodes:
            if candidate.name == name:
                return candidate
        raise KeyError(name)

    def bytes_of(self, access: MemoryAccess) -> int:
        """Bytes an access moves between memory and the processor, each distinct element counted once."""
        layout = self.layouts[access.buffer]
        elements = min(access.unique_elements, layout.storage_elements)
        return elements * layout.dtype.itemsize

    def bytes_read(self, node: ScheduleNode) -> int:
        """Bytes a node reads: each buffer once, however many accesses it has to it."""
        if self.is_written_back(node) or self.is_skipped(node):
            return 0
        per_buffer: dict[str, int] = {}
        for access in node.loads:
            whole = self.layouts[access.buffer].storage_elements * self.layouts[access.buffer].dtype.itemsize
            per_buffer[access.buffer] = min(whole, per_buffer.get(access.buffer, 0) + self.bytes_of(access))
        return sum(per_buffer.values())

    def is_written_back(self, node: ScheduleNode) -> bool:
        """Whether a copy into an input has nothing left to copy, since its source stands there."""
        return self.memory is not None and node.name in self.memory.written_back

    def is_skipped(self, node: ScheduleNode) -> bool:
        """Whether a kernel does not run, since it would copy an input onto itself."""
        return self.memory is not None and node.name in self.memory.skipped

    def bytes_written(self, node: ScheduleNode) -> int:
        if self.is_written_back(node) or self.is_skipped(node):
            return 0
        return sum(self.bytes_of(access) for access in node.writes)

    def format(self) -> str:
        """A line per node: kind, iteration space, what it reads and writes."""
        lines = []
        for node in self.nodes:
            lines.append(f"{node.describe()} -> {', '.join(node.buffers)}")
            lines += [f"    {member.describe()} -> {', '.join(member.buffers)}" for member in node.members]
            lines += [f"    reads  {a.buffer}[{a.index}]  ({self.bytes_of(a)} bytes)" for a in node.reads]
            lines += [f"    writes {a.buffer}[{a.index}]  ({self.bytes_of(a)} bytes)" for a in node.writes]
        return "\n".join(lines)

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def extern_arguments(call: Extern) -> list[BufferArgument]:
    """The tensor arguments of an extern call, left to right."""
    found: list[BufferArgument] = []

    def collect(argument: Any) -> None:
        if isinstance(argument, BufferArgument):
            found.append(argument)
        elif isinstance(argument, (tuple, list)):
            for part in argument:
                collect(part)

    collect(call.args)
    collect(tuple(call.kwargs.values()))
    return found


def buffers_read(node: ScheduleNode) -> set[str]:
    """Every buffer a node takes; an extern call also takes empty ones, which have no access to list."""
    names = {access.buffer for access in node.reads}
    return names | {a.name for a in extern_arguments(node.extern)} if node.extern else names


def node_has_effect(node: ScheduleNode) -> bool:
    """Whether a node is run for more than its value: a write into an input, a draw of random numbers, an error."""
    if node.extern is not None:
        divides = node.extern.operator._schema.name in DIVISIONS and not node.store_dtype.is_floating_point
        return divides or has_effect(node.extern.operator, node.extern.args)
    return any(part.body is not None and part.body.may_fail for part in node.members or (node,))


def _product(extents: tuple[int, ...]) -> int:
    count = 1
    for extent in extents:
        count *= extent
    return count
