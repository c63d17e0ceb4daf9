"""Extern calls as kernels: operators that PyTorch runs, in the same list as those the compiler generated.

A library call (matrix product, convolution, sort) or a fallback has no source of ours. It still appears in
``compilation.kernels``, with its traffic and its place in the order, so that nothing that runs is invisible.

An operator of the compiler's own (attention) is called in the same way and does have a source. :data:`DESCRIBERS` has
what tells it, from the call alone, so that it can be read for a device that is not here.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..loops.ir import BufferArgument, Extern
from ..options import Decision, DeviceSpec
from ..provenance import Line
from ..schedule.dependencies import extern_arguments
from ..schedule.records import Schedule, ScheduleNode
from .kernel import Kernel, KernelArgument


@dataclass(frozen=True)
class Description:
    """What an extern call runs: the text of its kernels in ``language`` ("cpp", "triton", "text"), the ``kernels``
    themselves where they are records, why they are what they are, and ``embedded``, records of what stands inside them
    (the user's functions and their derivatives), which print themselves."""

    language: str
    lines: tuple[Line, ...]
    kernels: tuple[Kernel, ...] = ()
    decisions: tuple[Decision, ...] = ()
    embedded: tuple[Any, ...] = ()


#: Operators whose kernels are the compiler's own, and what describes those of one call on a device.
DESCRIBERS: dict[torch._ops.OpOverload, Callable[[Extern, DeviceSpec], Description]] = {}


def described(kernel: Kernel, call: Extern) -> Kernel:
    """The kernel record of an extern call, with the text of what it runs where that is known."""
    describe = DESCRIBERS.get(call.operator)
    if describe is None:
        return kernel
    found = describe(call, kernel.device)
    comment = "//" if found.language == "cpp" else "#"
    results = ", ".join(argument.buffer for argument in kernel.arguments if argument.role == "output")
    heading = [f"{comment} An operator of the compiler's own: its kernels follow."]
    heading += textwrap.wrap(
        f"{results} = {call.operator}({_arguments(call)})", 120,
        initial_indent=f"{comment} ", subsequent_indent=f"{comment}     ", break_long_words=False,
    )  # fmt: skip
    # Lines that come of a traced function name nodes of a graph of its own: here all stem from the call.
    lines = tuple(Line(text, kernel.origins) for text in (*heading, "", *(line.text for line in found.lines)))
    return replace(
        kernel, lines=lines, written_in=found.language, inner=found.kernels, decisions=found.decisions,
        embedded=found.embedded,
    )  # fmt: skip


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
    why = "a library call, on purpose" if call.reason == "library" else f"a fallback: {call.cause or 'no lowering'}"
    lines = (
        Line(f"# {why}; PyTorch runs it", node.origins),
        Line(f"{', '.join(node.buffers)} = {call.operator}({_arguments(call)})", node.origins),
    )
    kernel = Kernel(
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
    return described(kernel, call)


def _arguments(call: Extern) -> str:
    return ", ".join([*map(_text, call.args), *(f"{key}={_text(value)}" for key, value in call.kwargs.items())])


def _text(value: Any) -> str:
    if isinstance(value, BufferArgument):
        return value.name
    if isinstance(value, (tuple, list)):
        return "[" + ", ".join(_text(part) for part in value) + "]"
    return repr(value)
