"""From a function and sample tensors to its operator graph and loop program, and back to values."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import torch

from staxlab.capture.graph import Graph
from staxlab.capture.module import GraphModule
from staxlab.loops.ir import LoopProgram
from staxlab.loops.lowering import basis, lower
from staxlab.loops.semantics import evaluate
from staxlab.operators.record import OperatorGraph, record
from staxlab.options import GPU_SPECS, DeviceSpec, Options

os.environ["STAXLAB_LOWER_DEBUG"] = "1"  # in use a failing rule is a visible fallback, here it is an error

CPU = DeviceSpec(kind="cpu", name="cpu", instruction_set="avx2", vector_bytes=32, threads=2)
GPU = GPU_SPECS["sm_90"]


def module_of(function: Callable, count: int) -> GraphModule:
    """A graph of one call of ``function`` on ``count`` inputs called a, b, c..."""
    graph = Graph()
    inputs = [graph.placeholder("abcdefghijklmnop"[k]) for k in range(count)]
    graph.set_output(graph.call_function(function, tuple(inputs), name="call"))
    return GraphModule(graph)


def operators_of(function: Callable, *inputs: torch.Tensor, **kwargs: Any) -> OperatorGraph:
    return record(module_of(function, len(inputs)), list(inputs), basis=kwargs.pop("basis", basis()))


def program_of(function: Callable, *inputs: torch.Tensor, device: DeviceSpec = CPU, **options: Any) -> LoopProgram:
    return lower(operators_of(function, *inputs), device, Options(**options))


def run(operators: OperatorGraph, program: LoopProgram, *inputs: torch.Tensor) -> Any:
    """The program's value by the reference semantics, nested as the function returns it."""
    tensors = [t for t in inputs if isinstance(t, torch.Tensor)]
    names = [buffer.name for buffer in program.inputs]
    given = dict(zip(names, [*tensors, *operators.module.constants.values()], strict=False))
    constants = {name: operators.module.constants[name] for name in names if name in operators.module.constants}
    return operators.rebuild(evaluate(program, {**given, **constants}))


def check(function: Callable, *inputs: torch.Tensor, device: DeviceSpec = CPU, **tolerance: Any) -> LoopProgram:
    """Lower, evaluate, compare with eager execution: values, dtypes and strides. Returns the program."""
    operators = operators_of(function, *inputs)
    program = lower(operators, device)
    result, expected = run(operators, program, *inputs), function(*inputs)
    torch.testing.assert_close(result, expected, equal_nan=True, check_stride=True, **tolerance)
    return program
