"""Loops of generated C++ kernels: every shape, stride, subscript and reduction, judged by the reference semantics."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from staxlab.loops.expressions import Expr
from staxlab.options import Options
from tests.codegen.cpp_support import RUNNABLE, assert_same, compile_program, expected, pointwise, reduction, run

F32, F64, I64, I32, BOOL = torch.float32, torch.float64, torch.int64, torch.int32, torch.bool
EXACT = (F32, F64, I64, I32, torch.int16, torch.int8, torch.uint8, torch.bfloat16, torch.float16)

shapes = st.lists(st.sampled_from([1, 2, 3, 5, 7, 16, 17, 33, 64]), min_size=0, max_size=3)


def filled(shape: tuple[int, ...], dtype: torch.dtype, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    whole = torch.randint(-9, 10, shape, generator=generator)
    return (whole % 2 == 0) if dtype == BOOL else whole.to(dtype)


@st.composite
def views(draw, shape: tuple[int, ...], dtype: torch.dtype):
    """A tensor of some strides and the subscript that reads it: permuted, sliced, expanded, flipped, or wrapped."""
    order = draw(st.permutations(range(len(shape))))
    expanded = [draw(st.integers(0, 7)) == 0 for _ in shape]
    steps = [draw(st.sampled_from([1, 1, 1, 2, 3])) for _ in shape]
    flipped = [draw(st.integers(0, 4)) == 0 for _ in shape]
    extents = [1 if expanded[k] else shape[k] * steps[k] for k in order]
    base = filled(tuple(extents), dtype, draw(st.integers(0, 99)))
    strides = dict(zip(order, base.stride() if extents else (), strict=True))
    wrap = draw(st.sampled_from([None, None, None, "modulo", "divide"]))
    axis = draw(st.integers(0, max(len(shape) - 1, 0)))
    period = draw(st.integers(1, 9))

    def subscript(index):
        total = Expr.of(0)
        for k, position in enumerate(index):
            if expanded[k]:
                continue
            if flipped[k]:
                position = Expr.of(shape[k] - 1) - position
            if wrap == "modulo" and k == axis:
                position = (position * 3 + 1) % min(period, shape[k])
            if wrap == "divide" and k == axis:
                position = position // period
            total = total + position * (strides[k] * steps[k])
        return total

    return base, subscript


@st.composite
def pointwise_cases(draw):
    shape = tuple(draw(shapes))
    dtype = draw(st.sampled_from(EXACT))
    return shape, dtype, draw(views(shape, dtype)), draw(views(shape, dtype)), draw(st.sampled_from(RUNNABLE))


@settings(max_examples=45)
@given(pointwise_cases())
def test_pointwise_over_any_view(case):
    shape, dtype, (x, read_x), (y, read_y), instruction_set = case
    inputs = {"x": x, "y": y}

    def compute(ops, index):
        return ops.sub(ops.load("x", read_x(index)), ops.load("y", read_y(index)))

    program = pointwise(inputs, shape, dtype, compute)
    assert_same(run(program, inputs, instruction_set), expected(program, inputs))


KINDS = ("sum", "prod", "amax", "amin", "argmax", "argmin", "any", "all")


@st.composite
def reduction_cases(draw):
    kept, reduced = tuple(draw(shapes))[:2], tuple(draw(shapes))[:2]
    kind = draw(st.sampled_from(KINDS))
    dtype = BOOL if kind in ("any", "all") else draw(st.sampled_from((F32, F64, I64, I32, torch.bfloat16)))
    order = draw(st.permutations(range(len(kept) + len(reduced))))
    return kept, reduced, kind, dtype, order, draw(st.sampled_from(RUNNABLE)), draw(st.integers(0, 6))


@settings(max_examples=60)
@given(reduction_cases())
@example(((), (64, 64), "sum", F32, (1, 0), RUNNABLE[0], 0))
@example(((33,), (17, 5), "argmax", F32, (2, 0, 1), RUNNABLE[0], 3))
def test_reductions_over_any_order_of_dimensions(case):
    """Whole numbers small enough that every order of additions is exact."""
    kept, reduced, kind, dtype, order, instruction_set, accumulators = case
    extents = kept + reduced
    x = filled(tuple(extents[k] for k in order), dtype)
    if kind == "prod":
        x = torch.where(filled(x.shape, I64, 5) > 6, x, torch.ones((), dtype=dtype)).to(dtype)
    strides = dict(zip(order, x.stride() if extents else (), strict=True))
    computed = dtype if dtype != torch.bfloat16 else F32
    accumulate = I64 if kind in ("sum", "prod") and dtype == I32 else computed
    stored = I64 if kind.startswith("arg") else accumulate if dtype == I32 else dtype

    def compute(ops, index, rindex):
        total = Expr.of(0)
        for k, position in enumerate((*index, *rindex)):
            total = total + position * strides[k]
        return ops.to_dtype(ops.load("x", total), accumulate)

    program = reduction({"x": x}, kept, reduced, kind, stored, accumulate, compute)
    options = Options(accumulators=accumulators)
    assert_same(run(program, {"x": x}, instruction_set, options=options), expected(program, {"x": x}))


@pytest.mark.parametrize("instruction_set", RUNNABLE)
def test_every_length_has_its_tail(instruction_set):
    """Lengths 1 to 70 beside memory that must not be written or read into the result."""
    padded = torch.full((200,), math.nan)
    for n in (1, 2, 3, 4, 5, 7, 8, 9, 11, 15, 16, 17, 31, 33, 63, 64, 65, 70):
        x = padded.clone()
        x[64 : 64 + n] = torch.arange(n) + 1.0
        view = x[64 : 64 + n]
        double = pointwise({"x": view}, (n,), F32, lambda ops, i: ops.add(ops.load("x", i[0]), ops.load("x", i[0])))
        assert_same(run(double, {"x": view}, instruction_set), view * 2)
        total = reduction({"x": view}, (), (n,), "sum", F32, F32, lambda ops, i, r: ops.load("x", r[0]))
        assert_same(run(total, {"x": view}, instruction_set), view.sum())


@pytest.mark.parametrize("instruction_set", RUNNABLE)
def test_nan_and_infinity_in_reductions(instruction_set):
    for n in (5, 16, 70):
        for special in (math.nan, math.inf, -math.inf):
            for where in (0, n // 2, n - 1):
                x = torch.arange(float(n))
                x[where] = special
                for kind in ("sum", "amax", "amin", "argmax", "argmin"):
                    stored = I64 if kind.startswith("arg") else F32
                    program = reduction({"x": x}, (), (n,), kind, stored, F32, lambda ops, i, r: ops.load("x", r[0]))
                    assert_same(run(program, {"x": x}, instruction_set), getattr(torch, kind)(x))


@pytest.mark.parametrize("kind", ("argmax", "argmin"))
def test_the_first_of_equal_extremes_wins(kind):
    for instruction_set in RUNNABLE:
        for n in (3, 40, 300):
            for dtype in (F32, I64):
                for fill in (0, 1):
                    x = torch.full((4, n), fill, dtype=dtype)
                    x[1, n // 2] = x[2, -1] = 1 if kind == "argmax" else -1
                    if dtype == F32:
                        x[3] = -math.inf if kind == "argmax" else math.inf
                    program = reduction(
                        {"x": x}, (4,), (n,), kind, I64, dtype, lambda ops, i, r, n=n: ops.load("x", n * i[0] + r[0])
                    )
                    assert_same(run(program, {"x": x}, instruction_set), expected(program, {"x": x}))


@pytest.mark.parametrize("kind", KINDS)
def test_empty_reductions_yield_the_neutral_element(kind):
    if kind.startswith("arg"):
        pytest.skip("PyTorch refuses an empty argmax before anything is compiled")
    dtype = BOOL if kind in ("any", "all") else F32
    x = torch.zeros((3, 0), dtype=dtype)
    program = reduction({"x": x}, (3,), (0,), kind, dtype, dtype, lambda ops, i, r: ops.load("x", i[0] + r[0]))
    assert_same(run(program, {"x": x}), expected(program, {"x": x}))


def test_empty_outputs_run_nothing():
    x = torch.zeros((0, 5))
    program = pointwise({"x": x}, (0, 5), F32, lambda ops, i: ops.load("x", 5 * i[0] + i[1]))
    assert run(program, {"x": x}).shape == (0, 5)


def test_long_reductions_are_cut_and_do_not_depend_on_the_number_of_threads():
    generator = torch.Generator().manual_seed(0)
    for shape in ((), (3,)):
        n = 300_007
        x = torch.randn(*shape, n, generator=generator)
        program = reduction(
            {"x": x},
            shape,
            (n,),
            "sum",
            F32,
            F32,
            lambda ops, i, r, n=n: ops.load("x", n * (i[0] if i else 0) + r[0]),
        )
        results = []
        for threads in (1, 2, 3, 8):
            before = torch.get_num_threads()
            torch.set_num_threads(threads)
            try:
                compiled, kernels, _ = compile_program(program, threads=threads)
                results.append(compiled.call([x])[0])
            finally:
                torch.set_num_threads(before)
        assert kernels[0].launch["accumulation"]["chunks"] > 1
        for result in results:
            assert_same(result, results[0])
        torch.testing.assert_close(results[0].double(), x.double().sum(-1), rtol=1e-5, atol=1e-2)


def test_other_reductions_are_cut_too():
    x = torch.randn(70_001, generator=torch.Generator().manual_seed(1))
    for kind in ("amax", "amin", "argmax", "argmin"):
        stored = I64 if kind.startswith("arg") else F32
        program = reduction({"x": x}, (), (70_001,), kind, stored, F32, lambda ops, i, r: ops.load("x", r[0]))
        compiled, kernels, _ = compile_program(program)
        assert kernels[0].launch["accumulation"]["chunks"] > 1
        assert_same(compiled.call([x])[0], getattr(torch, kind)(x))


@pytest.mark.parametrize("instruction_set", RUNNABLE)
def test_masked_reads_touch_no_memory_outside(instruction_set):
    """Padding: the condition keeps loads inside; the addresses outside would be unmapped."""
    n, pad = 40, 1 << 40
    x = torch.arange(1.0, n + 1)

    def compute(ops, index):
        position = ops.index_value(index[0], I64)
        inside = ops.logical_and(
            ops.ge(position, ops.constant(5, I64)), ops.lt(position, ops.constant(5 + n, I64))
        )  # fmt: skip
        return ops.masked(inside, lambda ops: ops.load("x", index[0] - 5), -2.0)

    program = pointwise({"x": x}, (n + 17,), F32, compute)
    wanted = torch.nn.functional.pad(x, (5, 12), value=-2.0)
    assert_same(run(program, {"x": x}, instruction_set), wanted)

    def far(ops, index):
        never = ops.lt(ops.index_value(index[0], I64), ops.constant(0, I64))
        return ops.masked(never, lambda ops: ops.load("x", index[0] * pad + pad), 3.0)

    program = pointwise({"x": x}, (n,), F32, far)
    assert_same(run(program, {"x": x}, instruction_set), torch.full((n,), 3.0))

    def scalar_condition(ops, index):
        first = ops.eq(ops.index_value(index[0], I64), ops.constant(0, I64))
        return ops.masked(first, lambda ops: ops.load("x", index[0] * pad + index[1]), 3.0)

    program = pointwise({"x": x}, (3, n), F32, scalar_condition)
    wanted = torch.cat([x[None], torch.full((2, n), 3.0)])
    assert_same(run(program, {"x": x}, instruction_set), wanted)


@pytest.mark.parametrize("instruction_set", RUNNABLE)
@pytest.mark.parametrize("index_dtype", (I64, I32), ids=str)
def test_subscripts_read_at_run_time(instruction_set, index_dtype):
    x = torch.randn(9, 21)
    index = torch.tensor([0, 8, -1, -9, 3, 3, 7] * 3, dtype=index_dtype)
    inputs = {"x": x, "index": index}

    def rows(ops, i):
        row = ops.indirect(ops.load("index", i[0]), Expr.of(9))
        return ops.load("x", row * 21 + i[1])

    program = pointwise(inputs, (21, 21), F32, rows)
    assert_same(run(program, inputs, instruction_set), x[index.long()])

    def along(ops, i):
        column = ops.indirect(ops.load("index", i[1]), Expr.of(9))
        return ops.load("x", i[0] + column * 21)

    program = pointwise(inputs, (21, 21), F32, along)
    assert_same(run(program, inputs, instruction_set), x[index.long()].t().contiguous())
    for bad in (9, -10, 2**31 - 1):
        index[20] = bad
        for compute in (rows, along):
            program = pointwise(inputs, (21, 21), F32, compute)
            with pytest.raises(IndexError, match=f"index {bad} is out of bounds for a dimension of size 9"):
                run(program, inputs, instruction_set)


@pytest.mark.parametrize("instruction_set", RUNNABLE)
@pytest.mark.parametrize("dtype", (F32, F64, I64, I32), ids=str)
def test_loop_indices_as_values(instruction_set, dtype):
    inputs = {"x": torch.zeros(1, dtype=dtype)}
    for expression in (
        lambda i: 3 * i[1] - 2 * i[0] + 5,
        lambda i: (i[0] * 37 + i[1]) // 5,
        lambda i: (i[1] * 7 + 3) % 11,
        lambda i: i[0] * (1 << 40) + i[1],
    ):
        program = pointwise(inputs, (6, 37), dtype, lambda ops, i, e=expression: ops.index_value(e(i), dtype))
        assert_same(run(program, inputs, instruction_set), expected(program, inputs))


def test_divisions_in_lanes_that_take_no_part_do_not_trap():
    for instruction_set in RUNNABLE:
        for dtype in (I64, I32, torch.uint8):
            x, y = filled((19,), dtype).abs() + 3, filled((19,), dtype).abs() + 1
            inputs = {"x": x, "y": y}
            program = pointwise(
                inputs, (19,), dtype, lambda ops, i: ops.floordiv(ops.load("x", i[0]), ops.load("y", i[0]))
            )
            assert_same(run(program, inputs, instruction_set), x // y)


def test_an_input_that_starts_inside_its_storage():
    base = torch.arange(40.0)
    x = base[7:27:2]
    program = pointwise({"x": x}, (10,), F32, lambda ops, i: ops.load("x", 2 * i[0]))
    assert_same(run(program, {"x": x}), x.contiguous())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ((2100, 135), (300, 1100), (3, 700, 151)), ids=str)
def test_columns_of_large_matrices(kind, shape, monkeypatch):
    """Strips of running results in cache, pieces of rows, and the partial vector at the right edge."""
    monkeypatch.setattr("staxlab.codegen.cpp.plan.STRIPS_FROM", 1 << 16)
    dtype = BOOL if kind in ("any", "all") else F32
    *batch, rows, columns = shape
    x = filled(shape, dtype)
    if kind == "prod":
        x = torch.where(filled(shape, I64, 3) > 8, torch.tensor(-1.0), torch.tensor(1.0))
    if kind in ("any", "all"):
        x = (torch.rand(shape) < 0.001) if kind == "any" else (torch.rand(shape) > 0.001)
    stored = I64 if kind.startswith("arg") else dtype

    def compute(ops, index, rindex):
        outer = index[0] * (rows * columns) if batch else Expr.of(0)
        return ops.load("x", outer + rindex[0] * columns + index[-1])

    program = reduction({"x": x}, (*batch, columns), (rows,), kind, stored, dtype, compute)
    compiled, kernels, _ = compile_program(program, RUNNABLE[0])
    if RUNNABLE[0] != "scalar" and (dtype != BOOL or columns > 1000):
        assert any(d.topic == "column-strips" and d.choice for d in kernels[0].decisions)
    wanted = x.all(-2) if kind == "all" else x.any(-2) if kind == "any" else getattr(torch, kind)(x, -2)
    assert_same(compiled.call([x])[0], wanted)


def test_columns_reduced_over_two_loops():
    """x.sum((0, 2)) of a four-dimensional tensor: two reduced loops that cannot be merged."""
    x = filled((40, 3, 50, 70), F32)
    strides = x.stride()

    def compute(ops, index, rindex):
        position = (rindex[0], index[0], rindex[1], index[1])
        return ops.load("x", sum((p * s for p, s in zip(position, strides, strict=True)), Expr.of(0)))

    program = reduction({"x": x}, (3, 70), (40, 50), "sum", F32, F32, compute)
    assert_same(run(program, {"x": x}), x.sum((0, 2)))


@pytest.mark.parametrize("dtype", (F32, F64, torch.int16, torch.bfloat16, BOOL), ids=str)
def test_tiles_turned_over_in_registers(dtype):
    """x.t() + y (Example 6.1), with whole tiles, both edges, a batch, and an operand of another width."""
    for instruction_set in RUNNABLE:
        for batch, rows, columns in ((1, 64, 64), (2, 35, 50)):
            x, y = filled((batch, columns, rows), dtype), filled((batch, rows, columns), dtype, 1)
            inputs = {"x": x, "y": y}

            def compute(ops, i, rows=rows, columns=columns):
                a = ops.load("x", i[0] * (rows * columns) + i[1] + i[2] * rows)
                b = ops.load("y", i[0] * (rows * columns) + i[1] * columns + i[2])
                return ops.apply("logical_xor" if dtype == BOOL else "sub", a, b)

            program = pointwise(inputs, (batch, rows, columns), dtype, compute)
            compiled, kernels, _ = compile_program(program, instruction_set)
            assert_same(compiled.call([x, y])[0], expected(program, inputs))
            lanes = kernels[0].launch["vector_lanes"]
            if 1 < lanes <= min(rows, columns):
                assert any(d.topic == "tile" for d in kernels[0].decisions), (instruction_set, rows, columns)


def test_a_large_transpose_is_shared_among_threads():
    x = torch.randn(1100, 1037)
    program = pointwise({"x": x}, (1037, 1100), F32, lambda ops, i: ops.load("x", i[1] * 1037 + i[0]))
    compiled, kernels, _ = compile_program(program, threads=2)
    assert kernels[0].launch["parallel"] >= 1
    assert_same(compiled.call([x])[0], x.t().contiguous())


def test_parallel_loops_around_values_of_outer_loops():
    """Few outer iterations: the vector loop joins the parallel loop, and nothing may stand between the two."""
    x, row = torch.randn(3, 100_003), torch.randn(3)
    inputs = {"x": x, "row": row}

    def compute(ops, i):
        return ops.mul(ops.load("x", i[0] * 100_003 + i[1]), ops.exp(ops.load("row", i[0])))

    program = pointwise(inputs, (3, 100_003), F32, compute)
    compiled, kernels, _ = compile_program(program, threads=4)
    assert kernels[0].launch["parallel"] == 2
    assert_same(compiled.call([x, row])[0], x * row.exp()[:, None], rtol=1e-6, atol=0)


@pytest.mark.parametrize("dtype", [torch.float64, torch.int64])
def test_positions_of_extremes_of_wide_elements(dtype):
    """Comparisons of doubles and masks of 64-bit lanes are vectors of two types of equal width."""
    import staxlab

    x = torch.randint(-50, 50, (7, 100)).to(dtype)
    result = staxlab.compile(lambda x: (x.max(1).indices, x.min(0).indices, x.argmax()))(x)
    torch.testing.assert_close(result, (x.max(1).indices, x.min(0).indices, x.argmax()))
