"""The wrapper: a Python module that allocates, calls the kernels and hands out the results (Section 8.5).

One region becomes one function ``call(inputs)``. Everything that can be decided beforehand is a constant in its text:
sizes, strides, whose memory a buffer stands in (the :class:`~staxlab.schedule.memory_plan.MemoryPlan`), which outputs
are views. What remains per call is one line per allocation and one per kernel, and each line knows which of the user's
operations it serves. Intermediates that share the arena are addresses in it, counted from its start; where PyTorch's
operators take one, it becomes a tensor over the arena.

C++ kernels take data pointers, Triton kernels take tensors; otherwise both are called alike. ``check(inputs)`` states
what ``call`` relies on, for whoever calls it without guards.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from .. import native
from ..errors import CodegenError
from ..loops.ir import BufferArgument, Extern, Layout, OutputReference
from ..loops.layout import contiguous_stride
from ..options import Options
from ..provenance import NO_ORIGINS, CodeWriter, Origins
from ..schedule.memory_plan import Placement
from ..schedule.owned_inputs import last_uses
from ..schedule.placement import plan_memory
from ..schedule.records import Schedule, ScheduleNode, extern_arguments
from .cpp.types import identifier
from .kernel import Kernel, KernelSet, Wrapper
from .wrapper_calls import CONTIGUOUS, DIRECT, empty_on_cpu, empty_on_cuda, in_layout, written


def generate_wrapper(schedule: Schedule, kernels: KernelSet, options: Options) -> Wrapper:
    """The wrapper module of a schedule; ``kernels`` holds one kernel per node, in the same order.

    Raises CodegenError if they do not match, or if an extern argument has no spelling.
    """
    if [node.name for node in schedule.nodes] != [name for kernel in kernels for name in kernel.nodes]:
        raise CodegenError("the kernels do not match the schedule's nodes")
    return _WrapperWriter(schedule, kernels).write()


class _WrapperWriter:
    """Collects the lines of one wrapper and the objects they refer to."""

    def __init__(self, schedule: Schedule, kernels: KernelSet):
        self.schedule = schedule
        self.on_gpu = schedule.device.is_gpu  # there the wrapper is what runs, and a decoder waits for it
        self.last_uses = last_uses(schedule)
        self.memory = schedule.memory or plan_memory(
            schedule.nodes, schedule.program, schedule.device, schedule.layouts
        )
        self.kernels = kernels
        self.writer = CodeWriter()
        self.globals: dict[str, Any] = {}
        self.names: dict[str, str] = {}
        self.inputs = {buffer.name: buffer for buffer in schedule.program.inputs}
        self.called = {kernel.name for kernel in kernels}
        externs = [node for node in schedule.nodes if node.extern is not None]
        self.made_by_operators = {name for node in externs for name in node.buffers}
        self.views = self.views_of_buffers()
        for buffer in (*schedule.program.inputs, *schedule.program.buffers):
            self.name(buffer.name)  # an argument called `mm` must not hide the operator: objects get other names

    def views_of_buffers(self) -> dict[str, set[tuple]]:
        """By root, the shapes and strides in which operators take it or the caller gets it."""
        found: dict[str, set[tuple]] = {}
        calls = (node.extern for node in self.schedule.nodes if node.extern is not None)
        taken = [argument for call in calls for argument in extern_arguments(call)]
        for one in (*taken, *(output for output in self.schedule.outputs if output.name is not None and output.layout)):
            seen = (tuple(one.layout.shape), tuple(one.layout.stride))
            found.setdefault(self.memory.root(one.name), set()).add(seen)
        return found

    # -- names -------------------------------------------------------------------------------------------------------

    def name(self, buffer: str) -> str:
        """The Python variable of a buffer: its own name where that is an identifier, made unique."""
        if buffer not in self.names:
            base = name = identifier(buffer)
            taken = set(self.names.values())
            while name in taken or name in self.called or name in _RESERVED:
                name = f"{base}_{len(taken)}"
            self.names[buffer] = name
        return self.names[buffer]

    def object(self, stem: str, value: Any) -> str:
        """A global name for an object that has no literal."""
        for known, other in self.globals.items():
            if other is value:
                return known
        name = base = identifier(stem)
        taken = {*self.globals, *self.called, *self.names.values()}
        suffix = itertools.count(1)
        while name in taken or name in _RESERVED:
            name = f"{base}_{next(suffix)}"
        self.globals[name] = value
        return name

    def dtype(self, dtype: torch.dtype) -> str:
        return self.object(str(dtype).removeprefix("torch."), dtype)

    def literal(self, value: Any, stem: str = "constant") -> str:
        """The Python text of a value, or the name of a global that holds it."""
        if value is None or value is Ellipsis or isinstance(value, (bool, int, str)):
            return repr(value) if isinstance(value, (str, type(None), type(...))) else str(value)
        if isinstance(value, float):
            return repr(value) if math.isfinite(value) else f"float({str(value)!r})"
        if type(value) in (tuple, list):
            parts = [self.literal(v, stem) for v in value]
            if type(value) is list:
                return f"[{', '.join(parts)}]"
            return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
        if isinstance(value, torch.dtype):
            return self.dtype(value)
        return self.object(stem, value)

    # -- the module --------------------------------------------------------------------------------------------------

    def write(self) -> Wrapper:
        everything = frozenset().union(*(node.origins for node in self.schedule.nodes), NO_ORIGINS)
        unpack = [self.name(buffer) for buffer in self.schedule.inputs]
        body = CodeWriter()
        self.writer, module = body, self.writer
        for position, (node, kernel) in enumerate(zip(self.schedule.nodes, self.kernels, strict=True)):
            self.node(position, node, kernel)
        returned = [self.output(output) for output in self.schedule.outputs]
        self.writer = module
        self.check(unpack)
        module.emit("def call(inputs):", everything)
        with module.indent():
            if unpack:
                origins = frozenset().union(*(buffer.origins for buffer in self.inputs.values()))
                module.emit(f"{', '.join(unpack)}{',' if len(unpack) == 1 else ''} = inputs", origins)
            module.extend(body.lines())
            united = frozenset().union(*(o.origins for o in self.schedule.outputs), NO_ORIGINS)
            module.emit(f"return ({', '.join(returned)}{',' if len(returned) == 1 else ''})", united)
        return Wrapper(module.lines(), self.globals)

    def check(self, unpack: list[str]) -> None:
        self.writer.emit("def check(inputs):")
        with self.writer.indent():
            self.writer.emit(f"assert len(inputs) == {len(unpack)}, 'wrong number of inputs'")
            if unpack:
                self.writer.emit(f"{', '.join(unpack)}{',' if len(unpack) == 1 else ''} = inputs")
            for buffer, variable in zip(self.inputs.values(), unpack, strict=True):
                layout = buffer.layout
                self.writer.emit(
                    f"assert {variable}.shape == {tuple(layout.shape)} and {variable}.dtype is "
                    f"{self.dtype(layout.dtype)} and {self.same_strides(variable, layout)}, "
                    f"'{variable} has another shape, dtype or stride'",
                    buffer.origins,
                )
        self.writer.emit()

    def same_strides(self, variable: str, layout: Layout) -> str:
        """Strides of dimensions of extent 0 or 1 do not matter."""
        if layout.numel == 0:
            return "True"
        picked = [k for k, n in enumerate(layout.shape) if n != 1]
        if len(picked) == len(layout.shape):
            return f"{variable}.stride() == {tuple(layout.stride)}"
        return " and ".join(f"{variable}.stride({k}) == {layout.stride[k]}" for k in picked) or "True"

    # -- nodes -------------------------------------------------------------------------------------------------------

    def node(self, position: int, node: ScheduleNode, kernel: Kernel) -> None:
        memory = self.memory
        if memory.arena_span is not None and memory.arena_span[0] == position:
            self.writer.emit(f"arena = {self.memory_of_bytes(memory.arena_bytes)}", node.origins)
            self.writer.emit("arena_at = arena.data_ptr()", node.origins)
        for root in memory.allocate[position]:
            self.allocate(root, node.origins)
        if node.name in memory.written_back:
            self.written_back(node)
        elif node.extern is not None:
            self.extern(node)
        elif node.name in memory.skipped:
            stands = self.name(memory.root(node.buffers[0]))
            self.writer.emit(f"# {kernel.name} is left out: it would copy {stands} onto itself", node.origins)
        elif not node.is_empty and not kernel.launch.get("skip"):
            self.launch(node, kernel)
        dead = sorted(self.name(root) for root in memory.release[position])
        if memory.arena_span is not None and memory.arena_span[1] == position:
            dead.append("arena")
        dead += map(self.name, self.last_uses[position])
        if dead:
            self.writer.emit(f"del {', '.join(dead)}", node.origins)

    def memory_of_bytes(self, count: int) -> str:
        """``count`` bytes, as a tensor of bytes."""
        return self.empty_on_cpu((count,), (1,), torch.uint8, count)

    def empty_on_cpu(self, shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype, size: int) -> str:
        name, function = ("pooled", native.empty) if size >= native.POOLED_FROM else ("empty", empty_on_cpu())
        self.globals.setdefault(name, function)
        return f"{name}({self.literal(shape)}, {self.literal(stride)}, {self.dtype(dtype)})"

    def allocate(self, buffer: str, origins: Origins) -> None:
        layout = self.schedule.layouts[buffer]
        shape, stride = self.seen_as(buffer)
        device = torch.device(layout.device)
        if device.type == "cpu":
            text = self.empty_on_cpu(shape, stride, layout.dtype, layout.storage_elements * layout.dtype.itemsize)
        else:
            name = "empty_strided" if device.index is None else f"empty_strided_{device.index}"
            if name not in self.globals:
                self.globals[name] = empty_on_cuda(device)
            text = f"{name}({self.literal(shape)}, {self.literal(stride)}, {self.dtype(layout.dtype)})"
        self.writer.emit(f"{self.name(buffer)} = {text}", origins)

    def seen_as(self, buffer: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Shape and strides of a buffer's tensor. Kernels look at addresses alone: what a kernel on a GPU makes is
        allocated in the shape in which PyTorch's operators take it, which spares a view for each of them."""
        layout = self.schedule.layouts[buffer]
        seen = self.views.get(buffer, ())
        if self.on_gpu and len(seen) == 1 and buffer not in self.inputs and buffer not in self.made_by_operators:
            ((shape, stride),) = seen
            if math.prod(shape) == layout.numel == layout.storage_elements and stride == contiguous_stride(shape):
                return shape, stride  # all of it, one element after the other: so it begins where the buffer does
        return tuple(layout.shape), tuple(layout.stride)

    def in_arena(self, buffer: str) -> Placement | None:
        """Where in the arena a buffer stands, None if elsewhere."""
        root = self.memory.placements.get(self.memory.root(buffer))
        return root if root is not None and root.kind == "arena" else None

    def launch(self, node: ScheduleNode, kernel: Kernel) -> None:
        suffix = ".data_ptr()" if kernel.language == "cpp" else ""

        def memory(buffer: str) -> str:
            place = self.in_arena(buffer)
            if place is None:
                return self.name(self.memory.root(buffer)) + suffix
            return f"arena_at + {place.offset}" if place.offset else "arena_at"

        arguments = ", ".join(memory(argument.buffer) for argument in kernel.arguments)
        self.writer.emit(f"{kernel.name}({arguments})", node.origins)

    def written_back(self, node: ScheduleNode) -> None:
        """What would be copied into an input stands there: all that is left of the copy is to count it."""
        self.globals.setdefault("written", written)
        target = self.name(self.memory.root(node.extern.args[1].name))
        self.writer.emit(f"{self.name(node.buffers[0])} = written({target})", node.origins)

    def extern(self, node: ScheduleNode) -> None:
        call = node.extern
        assert call is not None
        text = self.linear(call) or self.called_with(
            str(call.operator).replace("aten.", "").removesuffix(".default"),
            DIRECT.get(call.operator, call.operator) if self.on_gpu else call.operator,
            call.args,
            call.kwargs,
        )
        if not call.operator._schema.returns:
            self.writer.emit(f"{self.name(node.buffers[0])} = {text}", node.origins)
            return
        producers = [b for b in self.schedule.program.buffers if b.name in node.buffers]
        if len(producers) == 1 and producers[0].position is None:
            text = self.expected(text, node.buffers[0], call.operator)
            self.writer.emit(f"{self.name(node.buffers[0])} = {text}", node.origins)
            return
        self.writer.emit(f"results = {text}", node.origins)
        for buffer in producers:
            source = f"results[{buffer.position}]"
            self.writer.emit(f"{self.name(buffer.name)} = {self.expected(source, buffer.name)}", node.origins)
        self.writer.emit("del results", node.origins)

    def called_with(self, stem: str, function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
        arguments = [self.argument(a) for a in args]
        arguments += [f"{key}={self.argument(value)}" for key, value in kwargs.items()]
        return f"{self.object(stem, function)}({', '.join(arguments)})"

    def linear(self, call: Extern) -> str | None:
        """The call of a product with a transposed weight, None for others: PyTorch's ``linear`` makes the view in C++
        and then calls the same routine."""
        is_sum = call.operator is torch.ops.aten.addmm.default
        scaled = any(factor != 1 for factor in call.kwargs.values())  # alpha and beta
        if scaled or not (is_sum or call.operator is torch.ops.aten.mm.default):
            return None
        *bias, x, weight = call.args
        own = self.schedule.layouts.get(getattr(weight, "name", ""))
        if own is None or not self.on_gpu or len(own.shape) != 2:
            return None
        (rows, columns), seen = own.shape, weight.layout
        by_rows = own.stride == (columns, 1) and rows > 1 and columns > 1
        transposed = (seen.shape, seen.stride) == ((columns, rows), (1, columns)) and seen.offset == own.offset
        if not (by_rows and transposed) or any(len(part.layout.shape) != 1 for part in bias):
            return None
        whole = replace(weight, layout=own)
        return self.called_with("linear", torch._C._nn.linear, (x, whole, *bias), {})

    def expected(self, text: str, buffer: str, operator: Any = None) -> str:
        """An operator's result in the layout that kernels were compiled for."""
        layout = self.schedule.layouts[buffer]
        if self.on_gpu and operator in CONTIGUOUS and layout.stride == contiguous_stride(layout.shape):
            return text
        self.globals.setdefault("in_layout", in_layout)
        return f"in_layout({text}, {self.literal(layout.shape)}, {self.literal(layout.stride)})"

    def argument(self, value: Any) -> str:
        if isinstance(value, BufferArgument):
            return self.view(value.name, value.layout)
        if type(value) in (tuple, list):
            parts = [self.argument(v) for v in value]
            if type(value) is list:
                return f"[{', '.join(parts)}]"
            return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
        return self.literal(value)

    # -- views and outputs -------------------------------------------------------------------------------------------

    def view(self, buffer: str, layout: Layout, fresh: bool = False) -> str:
        """A tensor over a buffer's storage: the buffer itself, or a strided view of it. A ``fresh`` one is a view in
        any case: who changes the shape of ``x[:]`` in place must not find ``x`` changed."""
        own, root = self.schedule.layouts[buffer], self.memory.root(buffer)
        shape, stride = self.literal(layout.shape), self.literal(layout.stride)
        relative = layout.offset - own.offset  # from the buffer's first element
        place = self.in_arena(buffer)
        if place is not None:
            self.globals.setdefault("as_strided", torch.as_strided)
            assert place.offset is not None
            start = place.offset // own.dtype.itemsize + relative
            return f"as_strided(arena.view({self.dtype(own.dtype)}), {shape}, {stride}, {start})"
        name = self.name(root)
        if not fresh and not relative and (layout.shape, layout.stride) == self.seen_as(root):
            return name
        self.globals.setdefault("as_strided", torch.as_strided)
        offset = str(layout.offset)
        if root in self.inputs or root in self.made_by_operators:
            # Offsets count from the first element of the tensor, wherever that lies in its storage.
            offset = f"{name}.storage_offset()" + (f" + {relative}" if relative else "")
        return f"as_strided({name}, {shape}, {stride}, {offset})"

    def output(self, output: OutputReference) -> str:
        if output.name is None:
            return self.literal(output.constant)
        assert output.layout is not None
        return self.view(output.name, output.layout, output.fresh)


_RESERVED = frozenset(
    "call check inputs results empty pooled empty_strided as_strided in_layout written arena arena_at float del return "
    "def assert and or not is in lambda None True False if else for while class import from as with try except finally "
    "raise pass yield global nonlocal async await break continue elif".split()
)
