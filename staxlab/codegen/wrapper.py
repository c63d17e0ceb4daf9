"""The wrapper: a Python module that allocates, calls the kernels and hands out the results (Section 8.5).

One region becomes one function ``call(inputs)``. Everything that can be decided beforehand is a constant in its text:
sizes, strides, which buffer is free after which kernel, which outputs are views. What remains per call is one line per
allocation and one per kernel, and each line knows which of the user's operations it serves.

C++ kernels take data pointers, Triton kernels take tensors; otherwise both are called alike. ``check(inputs)`` states
what ``call`` relies on, for whoever calls it without guards.
"""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch

from .. import native
from ..errors import CodegenError
from ..loops.ir import BufferArgument, Layout, OutputReference
from ..options import Options
from ..provenance import NO_ORIGINS, CodeWriter, Origins
from ..schedule.records import Schedule, ScheduleNode
from .cpp.types import identifier
from .kernel import Kernel, KernelSet, Wrapper


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
        self.kernels = kernels
        self.writer = CodeWriter()
        self.globals: dict[str, Any] = {}
        self.names: dict[str, str] = {}
        self.inputs = {buffer.name: buffer for buffer in schedule.program.inputs}
        self.called = {kernel.name for kernel in kernels}
        for buffer in (*schedule.program.inputs, *schedule.program.buffers):
            self.name(buffer.name)  # an argument called `mm` must not hide the operator: objects get other names

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
        if node.extern is not None:
            self.extern(node)
        else:
            for buffer in node.buffers:
                if node.base is not None:  # it takes over the memory of what it adds to
                    self.writer.emit(f"{self.name(buffer)} = {self.name(node.base)}", node.origins)
                else:
                    self.allocate(buffer, node.origins)
            if not node.is_empty and not kernel.launch.get("skip"):
                self.launch(node, kernel)
        dead = sorted(b for b, last in self.schedule.last_reader.items() if last == position and b not in self.inputs)
        if dead:
            self.writer.emit(f"del {', '.join(self.name(b) for b in dead)}", node.origins)

    def allocate(self, buffer: str, origins: Origins) -> None:
        layout = self.schedule.layouts[buffer]
        shape, stride, dtype = self.literal(layout.shape), self.literal(layout.stride), self.dtype(layout.dtype)
        if torch.device(layout.device).type == "cpu":
            if layout.storage_elements * layout.dtype.itemsize >= native.POOLED_FROM:
                self.globals.setdefault("pooled", native.empty)
                text = f"pooled({shape}, {stride}, {dtype})"
            else:
                self.globals.setdefault("empty", _empty_cpu())
                text = f"empty({shape}, {stride}, {dtype})"
        else:
            self.globals.setdefault("empty_strided", torch.empty_strided)
            device = self.object("device", torch.device(layout.device))
            text = f"empty_strided({shape}, {stride}, dtype={dtype}, device={device})"
        self.writer.emit(f"{self.name(buffer)} = {text}", origins)

    def launch(self, node: ScheduleNode, kernel: Kernel) -> None:
        suffix = ".data_ptr()" if kernel.language == "cpp" else ""
        arguments = ", ".join(self.name(argument.buffer) + suffix for argument in kernel.arguments)
        self.writer.emit(f"{kernel.name}({arguments})", node.origins)

    def extern(self, node: ScheduleNode) -> None:
        call = node.extern
        assert call is not None
        operator = self.object(str(call.operator).replace("aten.", "").removesuffix(".default"), call.operator)
        arguments = [self.argument(a) for a in call.args]
        arguments += [f"{key}={self.argument(value)}" for key, value in call.kwargs.items()]
        text = f"{operator}({', '.join(arguments)})"
        if not call.operator._schema.returns:
            self.writer.emit(f"{self.name(node.buffers[0])} = {text}", node.origins)
            return
        producers = [b for b in self.schedule.program.buffers if b.name in node.buffers]
        if len(producers) == 1 and producers[0].position is None:
            self.writer.emit(f"{self.name(node.buffers[0])} = {self.expected(text, node.buffers[0])}", node.origins)
            return
        self.writer.emit(f"results = {text}", node.origins)
        for buffer in producers:
            source = f"results[{buffer.position}]"
            self.writer.emit(f"{self.name(buffer.name)} = {self.expected(source, buffer.name)}", node.origins)
        self.writer.emit("del results", node.origins)

    def expected(self, text: str, buffer: str) -> str:
        """An operator's result in the layout that kernels were compiled for."""
        layout = self.schedule.layouts[buffer]
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
        own = self.schedule.layouts[buffer]
        name = self.name(buffer)
        if not fresh and (layout.shape, layout.stride, layout.offset) == (own.shape, own.stride, own.offset):
            return name
        self.globals.setdefault("as_strided", torch.as_strided)
        offset = str(layout.offset)
        if buffer in self.inputs or self._is_extern(buffer):
            # Offsets count from the first element of the tensor, wherever that lies in its storage.
            relative = layout.offset - own.offset
            offset = f"{name}.storage_offset()" + (f" + {relative}" if relative else "")
        return f"as_strided({name}, {self.literal(layout.shape)}, {self.literal(layout.stride)}, {offset})"

    def _is_extern(self, buffer: str) -> bool:
        return any(node.extern is not None and buffer in node.buffers for node in self.schedule.nodes)

    def output(self, output: OutputReference) -> str:
        if output.name is None:
            return self.literal(output.constant)
        assert output.layout is not None
        return self.view(output.name, output.layout, output.fresh)


_RESERVED = frozenset(
    "call check inputs results empty pooled empty_strided as_strided in_layout float del return def assert and or not "
    "is in lambda None True False if else for while class import from as with try except finally raise pass yield "
    "global nonlocal async await break continue elif".split()
)


def in_layout(tensor: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...]) -> torch.Tensor:
    """``tensor`` itself if it has the strides kernels were compiled for, else a copy that has them.

    Raises CodegenError if the shape differs: the operator's result depends on more than the specialization key.
    """
    if tensor.stride() == stride and tensor.shape == shape:
        return tensor
    if tensor.shape != shape:
        raise CodegenError(f"an operator returned shape {tuple(tensor.shape)} where {shape} was recorded")
    copy = torch.empty_strided(shape, stride, dtype=tensor.dtype, device=tensor.device)
    return copy.copy_(tensor)


def _empty_cpu() -> Any:
    """``empty(shape, stride, dtype)`` on the CPU: the quickest allocation PyTorch offers."""
    fast = getattr(getattr(getattr(torch._C, "_dynamo", None), "guards", None), "_empty_strided_cpu", None)
    if fast is not None:
        return fast
    return _empty_strided


def _empty_strided(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    return torch.empty_strided(shape, stride, dtype=dtype)
