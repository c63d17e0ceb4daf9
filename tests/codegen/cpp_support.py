"""Running a hand-written loop program through the C++ generator, and judging the result by the reference semantics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from staxlab.codegen import cpp
from staxlab.codegen.kernel import KernelSet
from staxlab.codegen.wrapper import generate_wrapper
from staxlab.loops.ir import (
    Computed,
    ComputedBuffer,
    InputBuffer,
    Layout,
    LoopProgram,
    OutputReference,
    Pointwise,
    Reduction,
)
from staxlab.loops.semantics import evaluate
from staxlab.options import Options, host_device_spec, host_instruction_set
from staxlab.runtime import artifact, build
from staxlab.schedule.dependencies import schedule
from staxlab.schedule.records import Schedule

#: The instruction sets this machine can run, widest first.
RUNNABLE = {"avx512": ("avx512", "avx2", "scalar"), "avx2": ("avx2", "scalar"), "neon": ("neon", "scalar")}.get(
    host_instruction_set(), ("scalar",)
)

ORIGINS = frozenset({1})


def layout_of(tensor: torch.Tensor) -> Layout:
    return Layout(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, "cpu")


def pointwise(
    inputs: dict[str, torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype, compute: Callable[..., Any]
) -> LoopProgram:
    """A program of one pointwise buffer; ``compute(ops, index)``."""
    out = Layout.contiguous(shape, dtype, "cpu")
    return _program(inputs, ComputedBuffer("out", out, Pointwise(shape, dtype, compute, ORIGINS), ORIGINS))


def reduction(
    inputs: dict[str, torch.Tensor],
    shape: tuple[int, ...],
    reduced: tuple[int, ...],
    kind: str,
    dtype: torch.dtype,
    accumulate: torch.dtype,
    compute: Callable[..., Any],
) -> LoopProgram:
    """A program of one reduction buffer; ``compute(ops, index, rindex)``."""
    out = Layout.contiguous(shape, dtype, "cpu")
    data = Reduction(shape, reduced, kind, dtype, accumulate, compute, ORIGINS)
    return _program(inputs, ComputedBuffer("out", out, data, ORIGINS))


def buffer_program(
    inputs: dict[str, torch.Tensor], shape: tuple[int, ...], dtype: torch.dtype, data: Computed
) -> LoopProgram:
    """A program of one buffer, in row-major memory, with any kind of node."""
    return _program(inputs, ComputedBuffer("out", Layout.contiguous(shape, dtype, "cpu"), data, ORIGINS))


def _program(inputs: dict[str, torch.Tensor], buffer: ComputedBuffer) -> LoopProgram:
    named = tuple(InputBuffer(name, layout_of(tensor), ORIGINS) for name, tensor in inputs.items())
    return LoopProgram(named, (buffer,), (OutputReference("out", buffer.layout, origins=ORIGINS),))


def compile_program(
    program: LoopProgram, instruction_set: str | None = None, options: Options | None = None, threads: int | None = None
) -> tuple[artifact.Artifact, KernelSet, Schedule]:
    options = options or Options()
    device = host_device_spec(instruction_set)
    if threads is not None:
        import dataclasses

        device = dataclasses.replace(device, threads=threads)
    scheduled = schedule(program, device, options)
    kernels = cpp.generate(scheduled, options, device)
    wrapper = generate_wrapper(scheduled, kernels, options)
    return poisoned(artifact.load(wrapper, build.build(kernels, options, device))), kernels, scheduled


def poisoned(loaded: artifact.Artifact) -> artifact.Artifact:
    """Let the wrapper allocate memory full of a pattern, so that an element no kernel writes cannot look right."""

    def allocate(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        tensor = torch.empty_strided(shape, stride, dtype=dtype)
        tensor.untyped_storage().fill_(0xA5)
        return tensor

    for name in {"empty", "pooled"} & loaded.wrapper_call.__globals__.keys():
        loaded.wrapper_call.__globals__[name] = allocate
    return loaded


def run(program: LoopProgram, inputs: dict[str, torch.Tensor], instruction_set: str | None = None, **more: Any) -> Any:
    """The single output of a program, computed by the generated kernel."""
    compiled, _, _ = compile_program(program, instruction_set, **more)
    (result,) = compiled.call(list(inputs.values()))
    return result


def expected(program: LoopProgram, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    """The single output by the definition."""
    (result,) = evaluate(program, inputs)
    return result


def assert_same(actual: torch.Tensor, wanted: torch.Tensor, **tolerance: float) -> None:
    """Equal bit for bit (NaN equals NaN), or within a tolerance where one is given."""
    tolerance = tolerance or {"rtol": 0.0, "atol": 0.0}
    torch.testing.assert_close(actual, wanted, equal_nan=True, **tolerance)
