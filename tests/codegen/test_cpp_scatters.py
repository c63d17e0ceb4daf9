"""Generated C++ scatters: the forms, on every instruction set this machine has, against the reference semantics; which
loops are shared; that planted faults are found."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

from staxlab.codegen.kernel import KernelSet
from staxlab.codegen.wrapper import generate_wrapper
from staxlab.errors import SubscriptError
from staxlab.loops.expressions import Expr
from staxlab.loops.ir import ComputedBuffer, InputBuffer, Layout, LoopProgram, OutputReference, Pointwise, Scatter
from staxlab.loops.ops import compute_dtype
from staxlab.options import Options
from staxlab.provenance import Line
from staxlab.runtime import artifact, build
from tests.codegen.cpp_support import (
    ORIGINS,
    RUNNABLE,
    assert_same,
    compile_program,
    expected,
    layout_of,
    run,
)

F32 = torch.float32
KINDS = ("store", "sum", "prod", "amax", "amin")
DTYPES = (
    torch.float32, torch.float64, torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool,
    torch.bfloat16, torch.float16,
)  # fmt: skip

Place = Callable[[Any, tuple], tuple]


def scatter(
    x: torch.Tensor,
    s: torch.Tensor,
    k: torch.Tensor,
    kind: str,
    place: Place,
    value: Callable[[Any, Any], Any] = lambda ops, element: element,
    output: Layout | None = None,
) -> tuple[LoopProgram, dict[str, torch.Tensor]]:
    """A copy of ``x``, and every element of ``s`` combined into it where ``place(ops, index)`` says."""
    inputs = {"x": x, "s": s, "k": k}
    layout = output or Layout.contiguous(tuple(x.shape), x.dtype, "cpu")

    def copy(ops: Any, index: tuple) -> Any:
        return ops.load("x", layout_of(x).address(index))

    def compute(ops: Any, index: tuple) -> tuple:
        return place(ops, index), value(ops, ops.load("s", layout_of(s).address(index)))

    base = ComputedBuffer("base", layout, Pointwise(tuple(x.shape), x.dtype, copy, ORIGINS), ORIGINS)
    out = ComputedBuffer("out", layout, Scatter(tuple(s.shape), "base", kind, x.dtype, compute, ORIGINS), ORIGINS)
    named = tuple(InputBuffer(name, layout_of(tensor), ORIGINS) for name, tensor in inputs.items())
    return LoopProgram(named, (base, out), (OutputReference("out", layout, origins=ORIGINS),)), inputs


def rows_of(k: torch.Tensor, size: int) -> Place:
    """Row i goes to row ``k[i]``."""
    return lambda ops, i: (ops.indirect(ops.load("k", layout_of(k).address(i[:1])), Expr.of(size)), *i[1:])


def elements_of(k: torch.Tensor, size: int, dim: int) -> Place:
    """Element i goes to ``k[i]`` along ``dim``."""
    return lambda ops, i: (
        *i[:dim], ops.indirect(ops.load("k", layout_of(k).address(i)), Expr.of(size)), *i[dim + 1 :],
    )  # fmt: skip


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    if dtype == torch.bool:
        return torch.rand(shape, generator=generator) > 0.5
    values = torch.randn(shape, generator=generator, dtype=torch.float64) * 3
    return values.to(dtype) if dtype.is_floating_point else values.abs().to(dtype)


def subscripts(size: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, size, shape, generator=torch.Generator().manual_seed(1))


def rows(kind: str = "sum", dtype: torch.dtype = F32, columns: int = 37, count: int = 50):
    k = subscripts(6, count)
    return scatter(numbers(dtype, 6, columns), numbers(dtype, count, columns), k, kind, rows_of(k, 6))


def elements(kind: str = "sum", dtype: torch.dtype = F32, dim: int = 0, shape: tuple[int, ...] = (23, 41), **more: Any):
    k = subscripts(7, *shape)
    size = tuple(7 if d == dim else n for d, n in enumerate(shape))
    return scatter(numbers(dtype, *size), numbers(dtype, *shape), k, kind, elements_of(k, 7, dim), **more)


def costly(kind: str = "sum", dim: int = 0, shape: tuple[int, ...] = (23, 41)):
    return elements(kind, dim=dim, shape=shape, value=lambda ops, e: ops.exp(e))


def decision(program: LoopProgram, topic: str, **more: Any):
    kernels = compile_program(program, **more)[1]
    return next(d for d in kernels[-1].decisions if d.topic == topic)


# -- values -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("instruction_set", RUNNABLE)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_in_every_form(instruction_set, kind):
    cases = (
        rows(kind), rows(kind, columns=3), rows(kind, columns=64), elements(kind), elements(kind, dim=1),
        elements(kind, shape=(300,)), elements(kind, shape=(9, 3), dim=1), elements(kind, dim=1, shape=(4, 9, 17)),
    )  # fmt: skip
    for program, inputs in cases:
        assert_same(run(program, inputs, instruction_set), expected(program, inputs))


@pytest.mark.parametrize("instruction_set", RUNNABLE)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype(instruction_set, dtype):
    for kind in KINDS:
        for program, inputs in (rows(kind, dtype), elements(kind, dtype), elements(kind, dtype, dim=1)):
            assert_same(run(program, inputs, instruction_set), expected(program, inputs))


@pytest.mark.parametrize("instruction_set", RUNNABLE)
def test_vectors_that_are_combined_lane_by_lane(instruction_set):
    """Costly elements are made as vectors. With seven places for 23 elements lanes of one vector meet."""
    for kind in KINDS:
        for dim, shape in ((0, (23, 41)), (1, (23, 41)), (0, (256,)), (0, (259,))):
            program, inputs = costly(kind, dim, shape)
            assert_same(run(program, inputs, instruction_set), expected(program, inputs), rtol=1e-5, atol=1e-5)
    if RUNNABLE[0] != "scalar":
        program, _ = costly()
        assert decision(program, "scatter-lanes").choice > 1
        assert "combine_lanes" in compile_program(program)[1][-1].source


def test_the_result_may_lie_in_memory_in_any_order():
    shape, layout = (6, 37), Layout((6, 37), (1, 6), F32, "cpu")
    k = subscripts(6, 50)
    program, inputs = scatter(numbers(F32, *shape), numbers(F32, 50, 37), k, "sum", rows_of(k, 6), output=layout)
    assert_same(run(program, inputs), expected(program, inputs))
    k = subscripts(37, 20)
    columns: Place = lambda ops, i: (i[0], ops.indirect(ops.load("k", i[1]), Expr.of(37)))  # noqa: E731
    program, inputs = scatter(numbers(F32, *shape), numbers(F32, 6, 20), k, "sum", columns, output=layout)
    assert decision(program, "scatter-lanes").reason.startswith(("i0 writes neighbouring", "element by element"))
    assert_same(run(program, inputs), expected(program, inputs))


def test_all_go_to_one_element():
    """Nothing of the target depends on a loop: every lane counts, and in order."""
    k, s = torch.zeros(1, dtype=torch.int64), numbers(F32, 70)
    place: Place = lambda ops, i: (ops.indirect(ops.load("k", Expr.of(0)), Expr.of(3)),)  # noqa: E731
    for kind in KINDS:
        for value in (lambda ops, e: e, lambda ops, e: ops.exp(e), lambda ops, e: ops.constant(0.9, F32)):
            program, inputs = scatter(numbers(F32, 3), s, k, kind, place, value)
            assert_same(run(program, inputs), expected(program, inputs), rtol=1e-5, atol=0)


def test_a_single_element():
    k = torch.tensor(2)
    place: Place = lambda ops, i: (ops.indirect(ops.load("k", Expr.of(0)), Expr.of(3)),)  # noqa: E731
    program, inputs = scatter(numbers(F32, 3), torch.tensor(5.0), k, "sum", place)
    assert_same(run(program, inputs), expected(program, inputs))


def test_extremes_keep_what_came_first_and_nan():
    special = torch.tensor([0.0, -0.0, 1.0, math.inf, -math.inf, math.nan])
    x, s = special.repeat_interleave(6), special.repeat(6)
    k = torch.arange(36)
    for kind in ("amax", "amin"):
        program, inputs = scatter(x, s, k, kind, elements_of(k, 36, 0))
        for instruction_set in RUNNABLE:
            result = run(program, inputs, instruction_set)
            eagers = x.scatter_reduce(0, k, s, kind)
            assert_same(result, eagers)
            assert torch.equal(result.signbit() | result.isnan(), eagers.signbit() | eagers.isnan())


# -- sharing ----------------------------------------------------------------------------------------------------------


def test_threads_share_a_loop_that_never_meets_itself():
    for (program, inputs), loop in (
        (rows(columns=333, count=400), "i1"), (elements(shape=(200, 301)), "i1"),
        (elements(shape=(200, 301), dim=1), "i0"), (costly(shape=(200, 301)), "i1"),
    ):  # fmt: skip
        for threads in (2, 3, 16):
            found = decision(program, "parallel-depth", threads=threads)
            assert found.choice == 1 and f"iterations of {loop} " in found.reason
            once = run(program, inputs, threads=1)
            assert_same(run(program, inputs, threads=threads), once)
        assert_same(
            once, expected(program, inputs), **({} if "exp" not in str(program) else {"rtol": 1e-5, "atol": 1e-4})
        )


def test_a_loop_whose_subscripts_may_be_equal_is_not_shared():
    program, inputs = elements(shape=(40_000,))
    assert decision(program, "parallel-depth").choice == 0
    assert "order of equal subscripts" in decision(program, "parallel-depth").reason
    assert_same(run(program, inputs), expected(program, inputs))
    source = compile_program(program)[1][-1].source
    assert "omp" not in source and "atomic" not in source


def test_the_same_bits_with_any_number_of_threads():
    program, inputs = rows(columns=1000, count=300)
    results = [run(program, inputs, threads=threads) for threads in (1, 2, 5, 64)]
    assert all(torch.equal(results[0], other) for other in results)


# -- subscripts out of range ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("instruction_set", RUNNABLE)
@pytest.mark.parametrize("make", [rows, elements, costly], ids=["rows", "elements", "lanes"])
def test_nothing_is_written_where_a_subscript_is_out_of_range(instruction_set, make):
    program, inputs = make()
    size = program.buffer("out").layout.shape[0]
    compiled, _, _ = compile_program(program, instruction_set)
    memory = torch.full((3 * 4096,), 5.0)  # the result lies in the middle of it

    def allocate(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        return memory.as_strided(shape, stride, 4096)

    compiled.call.__globals__["empty"] = allocate
    for wrong in (size, -size - 1, 1 << 40, -(1 << 40)):
        k = inputs["k"].clone()
        k.view(-1)[k.numel() // 2] = wrong
        with pytest.raises(SubscriptError, match="out of bounds"):
            compiled.call([inputs["x"], inputs["s"], k])
        length = program.buffer("out").layout.numel
        assert bool((memory[:4096] == 5).all()) and bool((memory[4096 + length :] == 5).all())


# -- planted faults ---------------------------------------------------------------------------------------------------


def damaged(program: LoopProgram, inputs: dict[str, torch.Tensor], old: str, new: str) -> torch.Tensor:
    """The result of a program whose last kernel has ``new`` for ``old``."""
    _, kernels, scheduled = compile_program(program)
    *before, last = kernels
    assert old in last.source, last.source
    lines = tuple(Line(line.text.replace(old, new), line.origins) for line in last.lines)
    broken = KernelSet((*before, dataclasses.replace(last, lines=lines)))
    wrapper = generate_wrapper(scheduled, broken, Options())
    loaded = artifact.load(wrapper, build.build(broken, Options(), last.device))
    loaded.call.__globals__["empty"] = with_room
    (result,) = loaded.call(list(inputs.values()))
    return result


def with_room(shape: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
    """Memory that a fault may write beside."""
    return torch.full((8192,), 7).to(dtype).as_strided(shape, stride, 1024)


needs_vectors = pytest.mark.skipif(RUNNABLE[0] != "avx512", reason="the texts below are those of 16 lanes")
FAULTS = {
    "it replaces instead of adding": (lambda: elements(), "return a + b;", "return b;"),
    "the last elements of a row are left out": (lambda: rows(), "element(32, first<5>);", ""),
    "one lane too many": (lambda: rows(), "first<5>", "first<6>"),
    "a row is left out": (lambda: rows(), "i64 i0 = 0; i0 < 50", "i64 i0 = 1; i0 < 50"),
    "another column": (lambda: elements(), "out_out + i1 +", "out_out + (i1 ^ 1) +"),
    "lanes in the wrong order": (
        lambda: costly("store", shape=(256,)), "return subscript0[lane];", "return subscript0[lane ^ 1];",
    ),
    "what is there does not count": (lambda: rows("amax"), "select((b > a)", "select((b > a - 9)"),
    "rows in another order": (
        lambda: rows("store", columns=64), "for (i64 i0 = 0; i0 < 50; ++i0)", "for (i64 i0 = 49; i0 >= 0; --i0)",
    ),
}  # fmt: skip


@needs_vectors
@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault):
    make, old, new = FAULTS[fault]
    program, inputs = make()
    close = {"rtol": 1e-6, "atol": 1e-6}
    assert_same(run(program, inputs), expected(program, inputs), **close)
    with pytest.raises(AssertionError):
        assert_same(damaged(program, inputs, old, new), expected(program, inputs), **close)


def test_what_the_kernel_says_of_itself():
    program, _ = rows("store")
    kernel = compile_program(program)[1][-1]
    assert kernel.name == "fused_scatter_1"
    assert compile_program(rows("amax")[0])[1][-1].name == "fused_scatter_amax_1"
    assert [a.role for a in kernel.arguments] == ["input", "input", "inout"]
    assert all(line.origins for line in kernel.lines if line.text.strip())
    assert compute_dtype(kernel.arguments[-1].dtype) == F32
