"""From a schedule to a recipe: the wrapper as numbers and names (Sections 8.5 and 11.1).

A :class:`~staxlab.runtime.program.Recipe` is what a :class:`staxlab.native.Program` is made of before there are kernels
to point at: it holds no address, so it can be kept on disk beside the kernels (:mod:`.plan`).
"""

from __future__ import annotations

from typing import Any

import torch

from .. import native
from ..codegen.kernel import Kernel, KernelSet
from ..loops.ir import BufferArgument, Layout, OutputReference
from ..schedule.memory_plan import Placement
from ..schedule.owned_inputs import last_uses
from ..schedule.records import Schedule, ScheduleNode
from .program import (
    ARENA,
    CONSTANT,
    DELIVERED,
    KERNEL,
    MADE,
    NOTHING,
    OPERATOR,
    OWN,
    SEQUENCE,
    SHARED,
    TENSOR,
    VIEW,
    Recipe,
)


class Unsuitable(Exception):
    """Why a region runs through its Python wrapper."""


def recipe_of(schedule: Schedule, kernels: KernelSet) -> Recipe | str:
    """What a program equivalent to the wrapper consists of, or why there is none. Linear in nodes and arguments."""
    try:
        return _Builder(schedule).build(kernels)
    except Unsuitable as reason:
        return str(reason)


class _Builder:
    """Numbers the values of a schedule and writes its steps down."""

    def __init__(self, schedule: Schedule):
        if schedule.memory is None:
            raise Unsuitable("its memory has not been planned")
        self.schedule, self.memory = schedule, schedule.memory
        self.last_uses = last_uses(schedule)
        self.number = {name: position for position, name in enumerate(schedule.inputs)}
        for node in schedule.nodes:
            for name in node.buffers:
                self.number.setdefault(name, len(self.number))
        self.produced = [name for name in self.number if name not in schedule.inputs]
        for node in schedule.nodes:
            if node.name in self.memory.written_back:  # what it returns is the input that stands for its source
                self.number[node.buffers[0]] = self.number[self.target(node)]
        self.delivered = {name for node in schedule.nodes if node.extern is not None for name in node.buffers}

    def build(self, kernels: KernelSet) -> Recipe:
        values = tuple(self.value(name) for name in self.produced)
        nodes = zip(self.schedule.nodes, kernels, strict=True)
        steps = tuple(self.step(position, node, kernel) for position, (node, kernel) in enumerate(nodes))
        outputs = tuple(map(self.output, self.schedule.outputs))
        first, last = self.memory.arena_span or (0, 0)
        arena = (self.memory.arena_bytes, first, last)
        return Recipe(len(self.schedule.inputs), arena, values, steps, outputs)

    # -- memory ------------------------------------------------------------------------------------------------------

    def target(self, node: ScheduleNode) -> str:
        """The input that a node has nothing left to copy into."""
        assert node.extern is not None
        return self.memory.root(node.extern.args[1].name)

    def placement(self, name: str) -> Placement:
        if name not in self.memory.placements:
            raise Unsuitable(f"{name} is written over an input")
        return self.memory.placements[name]

    def value(self, name: str) -> tuple:
        """(where from, layout, offset in the arena, root, what it is made like: shape, strides and dtype)."""
        layout, placement = self.schedule.layouts[name], self.placement(name)
        if torch.device(layout.device).type != "cpu":
            raise Unsuitable(f"{name} is on {layout.device}")
        if layout.offset != 0 and name not in self.delivered:
            raise Unsuitable(f"{name} begins inside its memory")
        if placement.root != name:
            return SHARED, _described(layout), 0, self.number[placement.root], None
        if name in self.delivered:
            return DELIVERED, None, 0, 0, None
        if placement.kind == "arena":
            return ARENA, _described(layout), placement.offset, 0, None
        if layout.numel == 0 or layout.dtype not in native.DLPACK_TYPES:
            return MADE, None, 0, 0, (_whole(layout.shape), _whole(layout.stride), layout.dtype)
        return OWN, _described(layout), 0, 0, None

    def takes(self, position: int, node: ScheduleNode) -> tuple[int, ...]:
        """What is to be there before a node runs: allocations first, then what stands in some."""
        roots = [name for name in self.memory.allocate[position] if name not in self.schedule.inputs]
        standing = [name for name in node.buffers if name not in self.delivered and name not in roots]
        standing = [name for name in standing if self._stands_in_another(name)]
        return tuple(self.number[name] for name in (*roots, *standing))

    def _stands_in_another(self, name: str) -> bool:
        placement = self.placement(name)
        return placement.root != name or placement.kind == "arena"

    def gives(self, position: int) -> tuple[int, ...]:
        """What is let go of after a node: allocations, and inputs that are left to the call."""
        numbers = (self.number[name] for name in self.memory.release[position])
        made = (number for number in numbers if number >= len(self.schedule.inputs))
        return (*made, *(self.number[name] for name in self.last_uses[position]))

    # -- steps -------------------------------------------------------------------------------------------------------

    def step(self, position: int, node: ScheduleNode, kernel: Kernel) -> tuple:
        takes, gives = self.takes(position, node), self.gives(position)
        if node.name in self.memory.written_back:
            written = (SEQUENCE, False, ((TENSOR, self.number[self.target(node)]),))
            return OPERATOR, takes, gives, None, (written,), None, ()
        if node.extern is not None:
            return (OPERATOR, takes, gives, *self.operator(node))
        if kernel.language != "cpp":
            raise Unsuitable(f"{kernel.name} is a {kernel.language} kernel")
        if node.is_empty or kernel.launch.get("skip") or node.name in self.memory.skipped:
            return NOTHING, takes, gives
        if not 1 <= len(kernel.arguments) <= native.MOST_ARGUMENTS:
            raise Unsuitable(f"{kernel.name} takes {len(kernel.arguments)} arguments")
        arguments = tuple(self.number[argument.buffer] for argument in kernel.arguments)
        overwritten = tuple(self.number[buffer] for buffer in kernel.launch.get("resident", ()))
        return KERNEL, takes, gives, kernel.name, arguments, overwritten

    def operator(self, node: ScheduleNode) -> tuple:
        """(what to call, templates of its arguments, keywords, what it delivers)."""
        call = node.extern
        assert call is not None
        templates = tuple(self.template(value) for value in (*call.args, *call.kwargs.values()))
        producers = [buffer for buffer in self.schedule.program.buffers if buffer.name in node.buffers]
        if not call.operator._schema.returns:
            producers = []
        alone = len(producers) == 1 and producers[0].position is None
        deliveries = tuple(self.delivery(buffer.name, -1 if alone else buffer.position) for buffer in producers)
        return call.operator, templates, tuple(call.kwargs) or None, deliveries

    def delivery(self, name: str, position: int) -> tuple:
        layout = self.schedule.layouts[name]
        shape, stride = _whole(layout.shape), _whole(layout.stride)
        return position, self.number[name], (0, (0, 0), shape, stride), shape, stride

    # -- arguments and results ---------------------------------------------------------------------------------------

    def template(self, value: Any) -> tuple:
        """An argument of an operator. Lists are made anew for every call, since nobody knows who keeps them."""
        if isinstance(value, BufferArgument):
            return self.view(value.name, value.layout)
        if type(value) in (tuple, list):
            return SEQUENCE, type(value) is list, tuple(map(self.template, value))
        return CONSTANT, value

    def view(self, name: str, layout: Layout, fresh: bool = False) -> tuple:
        """A tensor over a buffer's storage, as :meth:`staxlab.codegen.wrapper._WrapperWriter.view` writes it."""
        own, root = self.schedule.layouts[name], self.memory.root(name)
        relative = int(layout.offset - own.offset)  # from the buffer's first element
        in_arena = root in self.memory.placements and self.memory.placements[root].kind == "arena"
        number = self.number[name if in_arena else root]
        whole = own if in_arena else self.schedule.layouts[root]
        if not fresh and not relative and (layout.shape, layout.stride) == (whole.shape, whole.stride):
            return TENSOR, number
        return VIEW, number, _whole(layout.shape), _whole(layout.stride), relative

    def output(self, output: OutputReference) -> tuple:
        if output.name is None:
            return self.template(output.constant)
        assert output.layout is not None
        return self.view(output.name, output.layout, output.fresh)


def _whole(extents: Any) -> tuple[int, ...]:
    return tuple(map(int, extents))


def _described(layout: Layout) -> tuple:
    """(bytes, (DLPack's type code, bits), shape, strides)."""
    size = layout.storage_elements * layout.dtype.itemsize if layout.numel else 0
    code = native.DLPACK_TYPES.get(layout.dtype, (0, 0))
    return size, code, _whole(layout.shape), _whole(layout.stride)
