"""Schedule nodes: iteration spaces, accesses, dependences, lifetimes."""

from __future__ import annotations

import pytest
import torch

from staxlab.errors import ScheduleError
from staxlab.loops.ir import (
    BufferArgument,
    ComputedBuffer,
    Extern,
    ExternBuffer,
    InputBuffer,
    LoopProgram,
    OutputReference,
    Pointwise,
    Reduction,
)
from staxlab.options import Options, host_device_spec
from staxlab.schedule.dependencies import schedule
from tests.loops.programs import FLOAT, contiguous, example_1_1


def plan(program):
    return schedule(program, host_device_spec("scalar"), Options(fuse=False))


def copy_of(name: str, source: str, extent: int) -> ComputedBuffer:
    compute = lambda ops, i: ops.load(source, i[0])  # noqa: E731
    return ComputedBuffer(name, contiguous(extent), Pointwise((extent,), FLOAT, compute, frozenset({9})))


def test_example_1_1_is_one_node_with_the_traffic_of_proposition_1_1():
    result = plan(example_1_1(64, 128))
    (node,) = result.nodes
    assert (node.kind, node.reduction, node.ranges, node.reduction_ranges) == ("reduction", "sum", (64,), (128,))
    elements = 64 * 128
    assert result.bytes_read(node) == 2 * elements * 4
    assert result.bytes_written(node) == 64 * 4
    assert node.operations == elements * 4
    assert node.origins == frozenset(range(6))
    assert "writes buf0[i0]" in str(result)


def test_order_predecessors_and_lifetimes():
    program = LoopProgram(
        (InputBuffer("x", contiguous(8)),),
        (copy_of("a", "x", 8), copy_of("b", "a", 8), copy_of("unused", "a", 8), copy_of("c", "b", 8)),
        (OutputReference("c", contiguous(8)),),
    )
    result = plan(program)
    assert [node.buffers for node in result.nodes] == [("a",), ("b",), ("c",)]
    assert [node.predecessors for node in result.nodes] == [(), (result.nodes[0].name,), (result.nodes[1].name,)]
    assert result.last_reader == {"a": 1, "b": 2}


def test_reading_before_computing_is_an_error():
    program = LoopProgram((), (copy_of("a", "b", 8), copy_of("b", "a", 8)), (OutputReference("b", contiguous(8)),))
    with pytest.raises(ScheduleError, match="before it is computed"):
        plan(program)


def test_a_broadcast_input_is_read_once():
    def compute(ops, i):
        return ops.add(ops.load("x", 128 * i[0] + i[1]), ops.load("w", i[1]))

    out = ComputedBuffer("out", contiguous(64, 128), Pointwise((64, 128), FLOAT, compute))
    program = LoopProgram(
        (InputBuffer("x", contiguous(64, 128)), InputBuffer("w", contiguous(128))),
        (out,),
        (OutputReference("out", out.layout),),
    )
    result = plan(program)
    assert result.bytes_read(result.nodes[0]) == (64 * 128 + 128) * 4


def test_empty_spaces_have_no_accesses():
    nothing = ComputedBuffer("a", contiguous(0), Pointwise((0,), FLOAT, lambda ops, i: ops.load("x", i[0])))
    zeros = ComputedBuffer(
        "b", contiguous(3), Reduction((3,), (0,), "sum", FLOAT, FLOAT, lambda ops, i, r: ops.load("x", r[0]))
    )
    program = LoopProgram(
        (InputBuffer("x", contiguous(0)),), (nothing, zeros),
        (OutputReference("a", nothing.layout), OutputReference("b", zeros.layout)),
    )  # fmt: skip
    result = plan(program)
    assert [node.is_empty for node in result.nodes] == [True, False]
    assert result.nodes[1].reduction_numel == 0
    assert [len(node.reads) for node in result.nodes] == [0, 0]
    assert result.bytes_written(result.nodes[1]) == 12


def test_the_results_of_one_extern_call_are_one_node():
    call = Extern(torch.ops.aten.sort.default, (BufferArgument("x", contiguous(8)),), {}, "library")
    program = LoopProgram(
        (InputBuffer("x", contiguous(8)),),
        (ExternBuffer("values", contiguous(8), call, "sort0", 0),
         ExternBuffer("indices", contiguous(8, dtype=torch.int64), call, "sort0", 1)),
        (OutputReference("indices", contiguous(8, dtype=torch.int64)),),
    )  # fmt: skip
    (node,) = plan(program).nodes
    assert node.buffers == ("values", "indices")
    assert [a.buffer for a in node.reads] == ["x"]
