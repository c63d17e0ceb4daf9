"""Building blocks of the Triton tests: programs written by hand in the loop IR, run through the interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from staxlab.codegen.kernel import KernelSet
from staxlab.codegen.triton import generate
from staxlab.loops.ir import ComputedBuffer, InputBuffer, Layout, LoopProgram, OutputReference, Pointwise, Reduction
from staxlab.loops.ops import compute_dtype
from staxlab.options import GPU_SPECS, Options
from staxlab.schedule.dependencies import schedule

SM90 = GPU_SPECS["sm_90"]


def layout_of(tensor: torch.Tensor) -> Layout:
    return Layout(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, "cuda")


def read(ops: Any, tensors: dict[str, torch.Tensor], name: str, index: tuple) -> Any:
    """The element of an input at a logical index, broadcast from the right as PyTorch does."""
    layout = layout_of(tensors[name])
    index = tuple(index)[len(index) - len(layout.shape) :]
    stride = tuple(0 if extent == 1 else step for extent, step in zip(layout.shape, layout.stride, strict=True))
    return ops.load(name, Layout(layout.shape, stride, layout.dtype, "cuda").address(index))


def program(
    tensors: dict[str, torch.Tensor],
    ranges: tuple[int, ...],
    compute: Callable,
    dtype: torch.dtype,
    *,
    kind: str | None = None,
    reduction_ranges: tuple[int, ...] = (),
    accumulate: torch.dtype | None = None,
    output: Layout | None = None,
) -> LoopProgram:
    """One computed buffer over some inputs. The buffer's origin is node 99, the reduction's or the store's own."""
    if kind is None:
        data: Any = Pointwise(ranges, dtype, compute)
    else:
        data = Reduction(ranges, reduction_ranges, kind, dtype, accumulate or compute_dtype(dtype), compute)
    layout = output or Layout.contiguous(ranges, dtype, "cuda")
    buffer = ComputedBuffer("buf0", layout, data, frozenset({99}))
    inputs = tuple(InputBuffer(name, layout_of(t)) for name, t in tensors.items())
    return LoopProgram(inputs, (buffer,), (OutputReference("buf0", layout),))


def kernels_of(program: LoopProgram, device: Any = SM90, **options: Any) -> KernelSet:
    return generate(schedule(program, device, Options(**options)), Options(**options), device)


def interpret_program(program: LoopProgram, tensors: dict[str, torch.Tensor], device: Any = SM90) -> torch.Tensor:
    """The value of ``buf0``, computed by Triton's interpreter into a poisoned output."""
    from staxlab.codegen.triton.interpreter import interpret

    layout = program.buffer("buf0").layout
    out = torch.empty_strided(layout.shape, layout.stride, dtype=layout.dtype)
    out.fill_(1 if layout.dtype == torch.bool else 77)
    for kernel in kernels_of(program, device):
        interpret(kernel, [out if a.buffer == "buf0" else tensors[a.buffer] for a in kernel.arguments])
    return out


def example_1_1(rows: int = 64, columns: int = 128) -> LoopProgram:
    """``(relu(x + w) * 2).sum(-1)``: the loads are nodes 0 and 1, then add 2, relu 3, mul 4; the sum is node 99."""

    def compute(ops: Any, i: tuple, r: tuple) -> Any:
        tag = lambda n: ops.tagged(frozenset({n}))  # noqa: E731
        index = columns * i[0] + r[0]
        total = tag(2).add(tag(0).load("x", index), tag(1).load("w", index))
        positive = tag(3).relu(total)
        return tag(4).mul(positive, tag(4).constant(2, torch.float32))

    tensors = {"x": torch.empty(rows, columns), "w": torch.empty(rows, columns)}
    return program(
        tensors, (rows,), compute, torch.float32, kind="sum", reduction_ranges=(columns,), accumulate=torch.float32
    )


def example_6_1(rows: int = 256, columns: int = 512) -> LoopProgram:
    """``x.t() + y`` with y of shape [rows, columns]."""

    def compute(ops: Any, i: tuple) -> Any:
        return ops.add(ops.load("x", rows * i[1] + i[0]), ops.load("y", columns * i[0] + i[1]))

    tensors = {"x": torch.empty(columns, rows), "y": torch.empty(rows, columns)}
    return program(tensors, (rows, columns), compute, torch.float32)
