"""Extern calls as kernels: operators that PyTorch runs, in the same list as those the compiler generated.

A library call (matrix product, convolution, sort) or a fallback has no source of ours. It still appears in
``compilation.kernels``, with its traffic and its place in the order, so that nothing that runs is invisible.
"""

from __future__ import annotations

from typing import Any

from ..loops.ir import BufferArgument
from ..options import DeviceSpec
from ..provenance import Line
from ..schedule.dependencies import extern_arguments
from ..schedule.records import Schedule, ScheduleNode
from .kernel import Kernel, KernelArgument


def extern_kernel(schedule: Schedule, node: ScheduleNode, device: DeviceSpec) -> Kernel:
    """The kernel record of an extern node: ``source`` is the call in words, ``is_fallback`` where no rule lowers it."""
    call = node.extern
    arguments = [
        KernelArgument(f"in_ptr{k}", argument.name, "input", argument.layout.dtype)
        for k, argument in enumerate(extern_arguments(call))
    ]
    arguments += [
        KernelArgument(f"out_ptr{k}", name, "output", schedule.layouts[name].dtype)
        for k, name in enumerate(node.buffers)
    ]
    shown = [_text(a) for a in call.args] + [f"{key}={_text(value)}" for key, value in call.kwargs.items()]
    why = "a library call, on purpose" if call.reason == "library" else f"a fallback: {call.cause or 'no lowering'}"
    lines = (
        Line(f"# {why}; PyTorch runs it", node.origins),
        Line(f"{', '.join(node.buffers)} = {call.operator}({', '.join(shown)})", node.origins),
    )
    return Kernel(
        name=f"extern_{node.name}_{call.operator._schema.name.split('::')[-1]}",
        language="extern",
        lines=lines,
        arguments=tuple(arguments),
        nodes=(node.name,),
        device=device,
        origins=node.origins,
        bytes_read=schedule.bytes_read(node),
        bytes_written=schedule.bytes_written(node),
        is_fallback=call.reason != "library",
    )


def _text(value: Any) -> str:
    if isinstance(value, BufferArgument):
        return value.name
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(_text(part) for part in value) + "]"
    return repr(value)
