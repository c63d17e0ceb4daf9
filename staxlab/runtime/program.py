"""From a schedule to a :class:`staxlab.native.Program`: the wrapper's work without the interpreter (Section 8.5).

The generated Python wrapper stays the readable description of a region, and what runs where this cannot: regions that
call PyTorch's operators, return views, or have kernels that report errors. :func:`program_of` says why.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import torch

from .. import native
from ..codegen.kernel import Kernel, KernelSet
from ..loops.ir import Layout
from ..schedule.records import Schedule
from .build import KEEP_LOCK_BELOW


class Unsuitable(Exception):
    """Why a region runs through its Python wrapper."""


def program_of(schedule: Schedule, kernels: KernelSet, launchers: Mapping[str, Any]) -> tuple[Any, str]:
    """A program equivalent to the wrapper, and "" ; or None and the reason."""
    if not native.available:
        return None, native.reason
    try:
        return _build(schedule, kernels, launchers), ""
    except Unsuitable as reason:
        return None, str(reason)


def _build(schedule: Schedule, kernels: KernelSet, launchers: Mapping[str, Any]) -> Any:
    inputs = tuple(schedule.inputs)
    slots = {name: position for position, name in enumerate(inputs)}
    produced: list[str] = []
    for node in schedule.nodes:
        for name in node.buffers:
            if node.base is not None:  # the memory passes on, and with it the slot
                slots[name] = slots[node.base]
                continue
            slots[name] = len(inputs) + len(produced)
            produced.append(name)
    if len(slots) > native.MOST_SLOTS:
        raise Unsuitable(f"more than {native.MOST_SLOTS} inputs and buffers")
    outputs = tuple(_output_slot(schedule, output, slots) for output in schedule.outputs)
    returned = [slot for slot in outputs if slot >= len(inputs)]
    if len(set(returned)) != len(returned):
        raise Unsuitable("a buffer is returned twice")
    steps = tuple(
        _step(schedule, position, node, kernel, launchers, slots, set(returned))
        for position, (node, kernel) in enumerate(zip(schedule.nodes, kernels, strict=True))
    )
    buffers = tuple(_buffer(schedule.layouts[name]) for name in produced)
    return native.Program(len(inputs), buffers, steps, outputs, tuple(launchers.values()))


def _output_slot(schedule: Schedule, output: Any, slots: dict[str, int]) -> int:
    if output.name is None:
        raise Unsuitable("a result is a constant")
    own, wanted = schedule.layouts[output.name], output.layout
    if output.fresh or (wanted.shape, wanted.stride, wanted.offset) != (own.shape, own.stride, own.offset):
        raise Unsuitable("a result is a view")
    return slots[output.name]


def _buffer(layout: Layout) -> tuple:
    if torch.device(layout.device).type != "cpu" or layout.dtype not in native.DLPACK_TYPES:
        raise Unsuitable(f"a buffer of {layout.dtype} on {layout.device}")
    if layout.numel == 0 or len(layout.shape) > native.MOST_DIMENSIONS or layout.offset != 0:
        raise Unsuitable("a buffer is empty" if layout.numel == 0 else "a buffer has an unusual layout")
    shape, stride = tuple(map(int, layout.shape)), tuple(map(int, layout.stride))
    return layout.storage_elements * layout.dtype.itemsize, native.DLPACK_TYPES[layout.dtype], shape, stride


def _step(
    schedule: Schedule, position: int, node: Any, kernel: Kernel, launchers: Mapping[str, Any],
    slots: dict[str, int], returned: set[int],
) -> tuple:  # fmt: skip
    if node.extern is not None or kernel.language != "cpp":
        raise Unsuitable(f"{kernel.name} is not a C++ kernel")
    if kernel.launch.get("checks"):
        raise Unsuitable(f"{kernel.name} reports errors")
    if node.is_empty or kernel.launch.get("skip") or not 1 <= len(kernel.arguments) <= native.MOST_ARGUMENTS:
        raise Unsuitable(f"{kernel.name} takes {len(kernel.arguments)} arguments")
    address = ctypes.cast(launchers[kernel.name], ctypes.c_void_p).value
    ending = (name for name, last in schedule.last_reader.items() if last == position and name != node.base)
    dead = [slots[name] for name in ending if name in slots]
    gives = tuple(slot for slot in dead if slot >= len(schedule.inputs) and slot not in returned)
    return (
        address,
        tuple(slots[argument.buffer] for argument in kernel.arguments),
        tuple(slots[name] for name in node.buffers if node.base is None),
        gives,
        kernel.launch.get("work", 0) >= KEEP_LOCK_BELOW,
    )
