"""Matrix products of the C++ generator: every shape, stride, batch and hole, judged by the reference semantics.

The order of every sum is the semantics' own, so results are compared bit for bit, on every instruction set.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from staxlab.codegen import cpp
from staxlab.codegen.kernel import KernelSet
from staxlab.codegen.wrapper import generate_wrapper
from staxlab.loops.expressions import Expr
from staxlab.loops.ir import LoopProgram, Template
from staxlab.loops.operands import operands
from staxlab.loops.ops import compute_dtype
from staxlab.options import Options, host_device_spec
from staxlab.provenance import Line
from staxlab.runtime import artifact, build
from staxlab.schedule.dependencies import schedule
from tests.codegen.cpp_support import (
    ORIGINS,
    RUNNABLE,
    assert_same,
    buffer_program,
    compile_program,
    expected,
    layout_of,
    poisoned,
    run,
)

F32, F64, I64 = torch.float32, torch.float64, torch.int64
DTYPES = (F32, F64, I64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bfloat16, torch.float16)

Hole = Callable[..., Any]


def untouched(ops: Any, value: Any) -> Any:
    return value


def product(
    inputs: dict[str, torch.Tensor],
    *,
    dtype: torch.dtype | None = None,
    left: Hole = untouched,
    right: Hole = untouched,
    epilogue: Hole = lambda ops, index, total: total,
) -> LoopProgram:
    """The product of inputs ``x`` and ``y``, matrices or batches of them, with functions in the holes."""
    x, y = inputs["x"], inputs["y"]
    dtype = dtype or x.dtype
    places = {name: layout_of(tensor) for name, tensor in inputs.items()}
    shape = (*x.shape[:-1], y.shape[-1])
    data = Template(
        shape, x.shape[-1], dtype, compute_dtype(x.dtype),
        lambda ops, i: left(ops, ops.tagged(ORIGINS).load("x", places["x"].address(i))),
        lambda ops, i: right(ops, ops.tagged(ORIGINS).load("y", places["y"].address(i))),
        epilogue, ORIGINS,
    )  # fmt: skip
    return buffer_program(inputs, shape, dtype, data)


def filled(shape: tuple[int, ...], dtype: torch.dtype, seed: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(-99, 100, shape, generator=generator).to(dtype)


@st.composite
def matrices(draw, shape: tuple[int, ...], dtype: torch.dtype):
    """A matrix (or batch) of any strides: transposed, with gaps, expanded, or in the middle of other memory."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from([1, 1, 1, 2, 3])) for _ in shape]
    expanded = [draw(st.integers(0, 6)) == 0 for _ in shape]
    extents = [1 if expanded[k] else shape[k] * steps[k] for k in order]
    offset = draw(st.integers(0, 3))
    base = filled((math.prod(extents) + offset,), dtype, draw(st.integers(0, 99)))[offset:].view(extents)
    strides = dict(zip(order, base.stride(), strict=True))
    stride = [0 if expanded[k] else strides[k] * steps[k] for k in range(len(shape))]
    return base.as_strided(shape, stride, base.storage_offset())


extents = st.sampled_from([1, 2, 3, 5, 8, 16, 17, 31, 33, 40])


@st.composite
def cases(draw):
    rows, columns, depth = draw(extents), draw(extents), draw(st.sampled_from([0, 1, 2, 7, 16, 33]))
    batch = tuple(draw(st.lists(st.sampled_from([1, 2, 3]), max_size=2)))
    dtype = draw(st.sampled_from(DTYPES))
    x = draw(matrices((*batch, rows, depth), dtype)) if depth else torch.empty((*batch, rows, 0), dtype=dtype)
    y = draw(matrices((*batch, depth, columns), dtype)) if depth else torch.empty((*batch, 0, columns), dtype=dtype)
    return x, y, draw(st.sampled_from(RUNNABLE))


@settings(max_examples=15)
@given(cases())
@example((torch.ones(33, 17), torch.ones(40, 17).t(), "scalar"))
def test_products_of_any_strides(case):
    x, y, instruction_set = case
    inputs = {"x": x, "y": y}
    program = product(inputs)
    assert_same(run(program, inputs, instruction_set), expected(program, inputs))


HOLES = {
    "nothing": untouched,
    "relu": lambda ops, v: ops.relu(v),
    "a sum with itself": lambda ops, v: ops.add(v, ops.mul(v, v)),
    "a constant": lambda ops, v: ops.constant(3, ops.dtype_of(v)),
    "a choice": lambda ops, v: ops.where(ops.lt(v, ops.constant(0, ops.dtype_of(v))), ops.neg(v), v),
    "a mask": lambda ops, v: ops.masked(ops.lt(ops.constant(0, ops.dtype_of(v)), v), lambda inner: v, 1),
}


CASES = list(zip([F32, F64, torch.bfloat16, torch.int32, torch.uint8], [*HOLES][1:], [*HOLES][:-1], strict=True))


@pytest.mark.parametrize("instruction_set", RUNNABLE)
@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case[0]}, {case[1]}, {case[2]}")
def test_prologues_and_epilogues(instruction_set, case):
    """Functions of the operands' elements, and an epilogue that adds a bias along each dimension."""
    dtype, first, second = case
    *batch, rows, columns, depth = (9, 21, 13) if instruction_set == RUNNABLE[0] else (2, 40, 3, 5)
    inputs = {
        "x": filled((*batch, rows, depth), dtype, 1),
        "y": filled((*batch, columns, depth), dtype, 2).transpose(-1, -2),
        "along": filled((columns,), dtype, 3),
        "across": filled((rows,), dtype, 4),
    }

    def epilogue(ops, index, total):
        twice = ops.mul(total, ops.constant(2, compute_dtype(dtype)))
        return ops.sub(ops.add(twice, ops.load("along", index[-1])), ops.load("across", index[-2]))

    program = product(inputs, left=HOLES[first], right=HOLES[second], epilogue=epilogue)
    assert_same(run(program, inputs, instruction_set), expected(program, inputs))


@pytest.mark.parametrize("instruction_set", RUNNABLE)
def test_every_number_of_columns_and_rows_has_its_edge(instruction_set):
    for rows, columns in ((1, 1), (7, 16), (13, 31), (3, 70), (65, 2)):
        memory = torch.full((512 + columns * 6,), math.nan)  # beside the operand stands what must not be read
        y = memory[256 : 256 + columns * 6].view(6, columns).copy_(filled((6, columns), F32, columns))
        inputs = {"x": filled((rows, 6), F32, rows), "y": y}
        program = product(inputs)
        assert_same(run(program, inputs, instruction_set), expected(program, inputs))


@pytest.mark.parametrize("instruction_set", RUNNABLE)
def test_special_values_go_where_the_semantics_sends_them(instruction_set):
    special = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0, 1e38, -1e38, 1e-45])
    x, y = special[torch.arange(8 * 5) % 8].view(5, 8), special[torch.arange(8 * 19) * 3 % 8].view(8, 19)
    inputs = {"x": x, "y": y}
    program = product(inputs)
    result, wanted = run(program, inputs, instruction_set), expected(program, inputs)
    assert_same(result, wanted)
    assert torch.equal(result.signbit() & (result == 0), wanted.signbit() & (wanted == 0))


def test_a_sum_of_nothing_goes_through_the_epilogue():
    inputs = {"x": torch.empty(3, 0), "y": torch.empty(0, 5), "b": torch.arange(5.0)}
    program = product(inputs, epilogue=lambda ops, i, v: ops.add(v, ops.load("b", i[-1])))
    for instruction_set in RUNNABLE:
        assert_same(run(program, inputs, instruction_set), torch.arange(5.0).expand(3, 5))
    empty = {"x": torch.empty(0, 4), "y": torch.empty(4, 5)}
    assert run(product(empty), empty).shape == (0, 5)


def test_what_is_stored_may_be_of_another_dtype():
    inputs = {"x": filled((5, 20), F32, 0), "y": filled((20, 37), F32, 1)}

    def positive(ops, index, total):
        return ops.lt(ops.constant(0, F32), total)

    program = product(inputs, dtype=torch.bool, epilogue=positive)
    doubled = product(inputs, dtype=F64, epilogue=lambda ops, i, v: ops.to_dtype(v, F64))
    for instruction_set in RUNNABLE:
        assert_same(run(program, inputs, instruction_set), expected(program, inputs))
        assert_same(run(doubled, inputs, instruction_set), expected(doubled, inputs))


def test_operands_gathered_at_run_time_are_checked():
    """A row of the left operand is read at a subscript from data; one out of range raises as ever."""
    inputs = {"x": filled((6, 9), F32, 0), "y": filled((9, 20), F32, 1), "k": torch.tensor([5, -1, 0, 3])}

    def left(ops, i):
        row = ops.indirect(ops.load("k", i[0]), Expr.of(6))
        return ops.load("x", row * 9 + i[1])

    data = Template(
        (4, 20), 9, F32, F32, left, lambda ops, i: ops.load("y", 20 * i[0] + i[1]), lambda ops, i, v: v, ORIGINS
    )
    program = buffer_program(inputs, (4, 20), F32, data)
    for instruction_set in RUNNABLE:
        assert_same(run(program, inputs, instruction_set), expected(program, inputs))
        with pytest.raises(IndexError):
            run(program, {**inputs, "k": torch.tensor([5, -1, 6, 3])}, instruction_set)


@pytest.mark.parametrize("batch", [(), (3,), (9, 2)], ids=str)
def test_threads_change_no_bit(batch):
    inputs = {"x": filled((*batch, 70, 40), F32, 0), "y": filled((*batch, 90, 40), F32, 1).transpose(-1, -2)}
    program = product(inputs, left=HOLES["relu"])
    one, (kernel,), _ = compile_program(program, threads=1)
    several, (shared,), _ = compile_program(program, threads=4)
    assert shared.launch["parallel"] and "omp parallel" in shared.source
    (first,), (second,) = one.call(list(inputs.values())), several.call(list(inputs.values()))
    assert torch.equal(first, second)
    assert_same(first, expected(program, inputs))


def test_scratch_memory_that_is_too_large_for_the_stack_comes_from_the_heap():
    inputs = {"x": filled((2, 600), F32, 0), "y": filled((90, 600), F32, 1).t()}
    program = product(inputs)
    compiled, (kernel,), _ = compile_program(program)
    assert kernel.source.count("__builtin_malloc") == kernel.source.count("__builtin_free") == 1
    assert_same(compiled.call(list(inputs.values()))[0], expected(program, inputs))


def choices(program: LoopProgram, instruction_set: str = RUNNABLE[0]) -> dict[str, Any]:
    device = host_device_spec(instruction_set)
    (kernel,) = cpp.generate(schedule(program, device, Options()), Options(), device)
    return {decision.topic: decision.choice for decision in kernel.decisions}


@pytest.mark.skipif(RUNNABLE[0] != "avx512", reason="the choices below are those of 16 lanes")
def test_what_is_packed_and_which_loop_is_vectorised():
    x, w = torch.zeros(64, 32), torch.zeros(48, 32)
    plain = choices(product({"x": x, "y": w.t().contiguous()}))
    assert (plain["vector-loop"], plain["pack-panel"], plain["pack-other"]) == ("i1", False, False)
    turned = choices(product({"x": x, "y": w.t()}))
    assert (turned["vector-loop"], turned["pack-panel"]) == ("i1", True)
    computed = choices(product({"x": x, "y": w.t().contiguous()}, left=HOLES["relu"]))
    assert computed["pack-other"] is True
    thin = choices(product({"x": torch.zeros(32, 64).t(), "y": torch.zeros(32, 1)}))
    assert (thin["vector-loop"], thin["pack-panel"]) == ("i0", False)
    assert choices(product({"x": x, "y": w.t()}), "scalar")["vector-loop"] is None


def test_an_operand_is_computed_once_per_element():
    """However many columns there are: a relu of the left operand stands in a packing loop, not in the product."""
    inputs = {"x": torch.zeros(16, 32), "y": torch.zeros(32, 200)}
    _, (kernel,), scheduled = compile_program(product(inputs, left=HOLES["relu"]))
    assert kernel.name == "fused_relu_matmul_0"
    assert kernel.source.count("relu(") == 1
    assert kernel.operations == scheduled.nodes[0].operations == 2 * 16 * 200 * 32 + 16 * 32
    left, right = operands(scheduled.nodes[0].body)
    assert [s.operation for s in left.statements] == ["load", "relu"]
    assert [s.operation for s in right.statements] == ["load"]


def test_every_line_has_origins():
    inputs = {"x": torch.zeros(9, 20), "y": torch.zeros(30, 20).t()}
    _, (kernel,), _ = compile_program(product(inputs, left=HOLES["relu"]))
    assert all(line.origins for line in kernel.lines if line.text.strip() and line.text.strip() not in ("{", "}"))


# -- Planted faults ----------------------------------------------------------------------------------------------------


def plain():
    return product(p := {"x": filled((13, 21), F32, 0), "y": filled((21, 53), F32, 1)}), p


def transposed():
    inputs = {"x": filled((13, 21), F32, 0), "y": filled((53, 21), F32, 1).t(), "b": filled((53,), F32, 2)}
    epilogue = lambda ops, i, v: ops.add(v, ops.load("b", i[1]))  # noqa: E731
    return product(inputs, left=HOLES["relu"], epilogue=epilogue), inputs


def in_batches():
    inputs = {"x": filled((3, 5, 7), F32, 0), "y": filled((3, 20, 7), F32, 1).transpose(1, 2)}
    return product(inputs), inputs


PLANTED = {
    "depth cut short": (plain, "r0 < 21", "r0 < 20"),
    "sum not started at zero": (plain, "vectors.value] = {}", "vectors.value] = {in_x[0] + f32x16{}}"),
    "last vector forgotten": (plain, "p[last] = right(i1 + 16*last, r0, lanes);", "p[last] = p[0];"),
    "wrong row": (plain, "left(i0 + r, r0)", "left(i0, r0)"),
    "tail too short": (plain, "first<5>", "first<4>"),
    "rows left over": (plain, "count<3>, count<", "count<2>, count<"),
    "block stored twice": (plain, "finish(i0 + r, i1 + 16*v,", "finish(i0 + r, i1,"),
    "difference for sum": (plain, "sum[r][v] + q", "sum[r][v] - q"),
    "panel not turned": (transposed, "turned0[row]", "turned0[15 - row]"),
    "panel's rows": (transposed, "panel + 64*r0 + i1);", "panel + 63*r0 + i1);"),
    "prologue forgotten": (transposed, "relu(t0)", "t0"),
    "bias of another column": (transposed, "in_b + i1, lanes", "in_b, lanes"),
    "scratch of another row": (transposed, "load(other + 21*i0 + r0)", "load(other + 21*i0)"),
    "batch left out": (in_batches, "in_x + 35*i0", "in_x + 0*i0"),
}


@pytest.mark.skipif(RUNNABLE[0] != "avx512", reason="the texts are those of 16 lanes")
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_is_found(name):
    make, right, wrong = PLANTED[name]
    program, inputs = make()
    device = dataclasses.replace(host_device_spec("avx512"), threads=2)
    scheduled = schedule(program, device, Options())
    (kernel,) = cpp.generate(scheduled, Options(), device)
    assert right in kernel.source, f"the text to damage is not there:\n{kernel.source}"
    lines = tuple(Line(line.text.replace(right, wrong), line.origins) for line in kernel.lines)
    results = []
    for version in (kernel, dataclasses.replace(kernel, lines=lines)):
        kernels = KernelSet((version,))
        wrapper = generate_wrapper(scheduled, kernels, Options())
        loaded = poisoned(artifact.load(wrapper, build.build(kernels, Options(), device)))
        results.append(loaded.call(list(inputs.values()))[0])
    assert_same(results[0], expected(program, inputs))
    with pytest.raises(AssertionError):
        assert_same(results[1], expected(program, inputs))
