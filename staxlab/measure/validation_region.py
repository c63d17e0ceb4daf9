"""Whether the kernels of a region are put together rightly: its memory, its order, its results (Sections 7.1 and 8.5).

That each kernel computes what its loops mean says nothing about what calls them. So the region runs once as it will be
used, with its reuse of memory and its views as results, and once with every buffer in memory of its own that nobody
frees: the same kernels on the same values, hence equal bit for bit, shapes, strides and dtypes included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from ..codegen.kernel import KernelSet
from ..loops.semantics import flat_storage, view_of
from ..schedule.records import Schedule


class NotRun(Exception):
    """Why a region was not run as a whole."""


def region_difference(
    schedule: Schedule,
    kernels: KernelSet,
    launchers: Mapping[str, Callable[..., None]],
    call: Callable[[list[torch.Tensor]], Sequence[Any]],
    sample: Sequence[torch.Tensor] | None,
) -> str | None:
    """What is different about the results of ``call`` on a sample of the inputs, or None. Inputs are copied.

    NotRun where there is no sample, or PyTorch's operators take part, which may draw random numbers or write.
    """
    foreign = [kernel.name for kernel in kernels if kernel.language != "cpp"]
    if foreign:
        raise NotRun(f"PyTorch's operators take part ({foreign[0]})")
    buffers = schedule.program.inputs
    if sample is None or len(sample) != len(buffers) or any(
        not isinstance(x, torch.Tensor) or (tuple(x.shape), x.stride(), x.dtype) != (
            b.layout.shape, b.layout.stride, b.layout.dtype
        )
        for x, b in zip(sample, buffers, strict=True)
    ):  # fmt: skip
        raise NotRun("there is no sample of its inputs")
    storages = {b.name: flat_storage(x.detach(), b.layout).clone() for x, b in zip(sample, buffers, strict=True)}
    given = [view_of(storages[b.name].clone(), b.layout) for b in buffers]
    try:
        for node, kernel in zip(schedule.nodes, kernels, strict=True):
            for name in node.buffers:
                layout = schedule.layouts[name]
                if node.base is not None:
                    storages[name] = storages[node.base].clone()
                else:
                    storages[name] = torch.zeros(layout.storage_elements, dtype=layout.dtype)
            if kernel.name in launchers and not node.is_empty:
                launchers[kernel.name](*(
                    storages[a.buffer].data_ptr()
                    + (schedule.layouts[a.buffer].offset * a.dtype.itemsize if a.role == "input" else 0)
                    for a in kernel.arguments
                ))  # fmt: skip
    except IndexError as error:
        raise NotRun("the sample has a subscript out of range") from error
    results = call(given)
    if len(results) != len(schedule.outputs):
        return f"there are {len(results)} results in the place of {len(schedule.outputs)}"
    for number, (found, output) in enumerate(zip(results, schedule.outputs, strict=True)):
        if output.name is None:
            if found is not output.constant and found != output.constant:
                return f"result {number} is {found!r} in the place of {output.constant!r}"
            continue
        layout = output.layout
        assert layout is not None
        wanted = view_of(storages[output.name], layout)
        if (tuple(found.shape), found.dtype) != (layout.shape, layout.dtype):
            return f"result {number} is {found.dtype}{list(found.shape)} in the place of {layout}"
        if layout.numel and any(n > 1 and a != b for n, a, b in zip(layout.shape, found.stride(), layout.stride,
                                                                    strict=True)):  # fmt: skip
            return f"result {number} has the strides {found.stride()} in the place of {layout.stride}"
        if not _same_bits(found, wanted):
            return f"result {number} ({output.name}) has other elements than its buffer"
    return None


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.contiguous().view(-1).view(torch.uint8), other.contiguous().view(-1).view(torch.uint8))
