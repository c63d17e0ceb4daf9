"""Every scalar operation through its Triton row: complete table, right values for every class of operand."""

from __future__ import annotations

import pytest
import torch

from staxlab.codegen.triton.handler import missing_operations
from staxlab.codegen.triton.operations import HELPERS, ROWS
from staxlab.loops.ops import OPERATIONS
from tests.codegen.triton_operands import CASES, expected, operands
from tests.codegen.triton_support import interpret_program, kernels_of, program

pytest.importorskip("triton")


def test_every_operation_has_a_row_and_no_row_is_left_over():
    assert missing_operations() == []
    assert set(ROWS) == set(OPERATIONS)


def test_every_helper_is_used_by_some_row_or_reduction():
    templates = [t for row in ROWS.values() for t in (row.real, row.whole, row.boolean, row.real64) if t]
    for name in HELPERS:
        assert name.startswith(("merge_", "later_")) or any(f"{name}(" in template for template in templates), name


@pytest.mark.parametrize(("name", "dtype"), CASES, ids=lambda v: str(v).removeprefix("torch."))
def test_operation_agrees_with_pytorch(name, dtype):
    given = operands(name, dtype)
    answer = expected(name, given)
    tensors = dict(zip("abc", given, strict=False))

    def compute(ops, i):
        return ops.apply(name, *(ops.load(letter, i[0]) for letter in tensors))

    p = program(tensors, (given[0].numel(),), compute, answer.dtype)
    got = interpret_program(p, tensors)
    # The last bits of PyTorch's transcendental functions depend on how many elements it is given at a time.
    close = 4 * torch.finfo(dtype).eps if OPERATIONS[name].transcendental and dtype.is_floating_point else 0
    if name == "sqrt":
        close = torch.finfo(dtype).eps
    torch.testing.assert_close(got, answer, equal_nan=True, rtol=close, atol=0)
    if name not in ("where", "neg", "fmax", "fmin", "maximum", "minimum"):  # a tie may yield either zero
        zero = (answer == 0) & torch.ones((), dtype=torch.bool)
        if dtype.is_floating_point and answer.is_floating_point() and name != "relu":
            assert torch.equal(torch.signbit(got[zero]), torch.signbit(answer[zero]))


@pytest.mark.parametrize("target", [torch.float32, torch.float64, torch.int64, torch.int32, torch.int8, torch.bool])
@pytest.mark.parametrize(
    "source", [torch.float32, torch.float64, torch.bfloat16, torch.int64, torch.int16, torch.uint8, torch.bool]
)
def test_conversions(source, target):
    x = torch.tensor([0.0, 1.0, -1.0, 2.5, -2.5, 100.0]).abs() if source == torch.uint8 else torch.randn(30) * 20
    x = x.to(source)
    p = program({"x": x}, (x.numel(),), lambda ops, i: ops.to_dtype(ops.load("x", i[0]), target), target)
    assert torch.equal(interpret_program(p, {"x": x}), x.to(target))


@pytest.mark.parametrize("half", [torch.float16, torch.bfloat16])
def test_rounding_to_half_inside_a_kernel(half):
    x = torch.cat(
        [torch.randn(200), torch.tensor([1 + 2**-8, 1 + 3 * 2**-8, 65504.0, 1e6, float("nan"), float("inf")])]
    )
    p = program({"x": x}, (x.numel(),), lambda ops, i: ops.to_dtype(ops.load("x", i[0]), half), torch.float32)
    torch.testing.assert_close(interpret_program(p, {"x": x}), x.to(half).float(), equal_nan=True, rtol=0, atol=0)


def test_constants_keep_their_dtype_and_value():
    values = [
        (0.1, torch.float64), (float("inf"), torch.float32), (float("-inf"), torch.float32), (2**40 + 1, torch.int64),
        (-5, torch.int32), (True, torch.bool), (float("nan"), torch.float64),
    ]  # fmt: skip
    for value, dtype in values:
        p = program({}, (3,), lambda ops, i, v=value, d=dtype: ops.constant(v, d), dtype)
        got = interpret_program(p, {})
        torch.testing.assert_close(got, torch.full((3,), value, dtype=dtype), equal_nan=True, rtol=0, atol=0)


@pytest.mark.parametrize(("value", "dtype", "wrapped"), [(-1, torch.uint8, 255), (300, torch.int8, 44)])
def test_constants_out_of_range_wrap(value, dtype, wrapped):
    p = program({}, (3,), lambda ops, i: ops.constant(value, dtype), dtype)
    assert interpret_program(p, {}).tolist() == [wrapped] * 3


def test_index_values():
    p = program({}, (4, 5), lambda ops, i: ops.index_value(10 * i[0] - 3 * i[1] + 7, torch.int64), torch.int64)
    rows, columns = torch.arange(4)[:, None], torch.arange(5)
    assert torch.equal(interpret_program(p, {}), 10 * rows - 3 * columns + 7)


def test_negative_subscripts_divide_and_wrap_as_python_does():
    p = program(
        {}, (20,), lambda ops, i: ops.index_value((i[0] - 7) // 4 * 100 + (i[0] - 7) % 4, torch.int64), torch.int64
    )
    n = torch.arange(20) - 7
    assert torch.equal(interpret_program(p, {}), n // 4 * 100 + n % 4)


def test_masked_loads_do_not_touch_memory_outside():
    """Concatenation: the first 5 elements from one tensor, the rest from another, each read only where it exists."""
    tensors = {"a": torch.randn(5), "b": torch.randn(4)}

    def compute(ops, i):
        position = ops.index_value(i[0], torch.int64)
        first = ops.lt(position, ops.constant(5, torch.int64))
        left = ops.masked(first, lambda o: o.load("a", i[0]), 0.0)
        right = ops.masked(ops.logical_not(first), lambda o: o.load("b", i[0] - 5), 0.0)
        return ops.where(first, left, right)

    p = program(tensors, (9,), compute, torch.float32)
    (kernel,) = kernels_of(p)
    loads = [line.text for line in kernel.lines if "tl.load(" in line.text]
    assert all("xmask & tmp" in load and "other=0.0" in load for load in loads)
    assert torch.equal(interpret_program(p, tensors), torch.cat([tensors["a"], tensors["b"]]))


def test_nested_masks_and_a_load_that_does_not_vary_with_the_mask():
    x, y = torch.randn(6, 6), torch.randn(1)

    def compute(ops, i):
        row, column = (ops.index_value(k, torch.int64) for k in i)

        def inside(o):
            scaled = o.masked(o.lt(column, o.constant(4, torch.int64)), lambda p: p.load("y", i[0] * 0), 5.0)
            return o.mul(o.load("x", 6 * i[0] + i[1]), scaled)

        return ops.masked(ops.ge(row, column), inside, -1.0)

    p = program({"x": x, "y": y}, (6, 6), compute, torch.float32)
    rows, columns = torch.arange(6)[:, None], torch.arange(6)
    expected_value = torch.where(rows >= columns, x * torch.where(columns < 4, y, 5.0), -1.0)
    assert torch.equal(interpret_program(p, {"x": x, "y": y}), expected_value)


@pytest.mark.parametrize("length", [1100, 4400])
def test_masked_reduction(length):
    x = torch.randn(4, length)

    def compute(ops, i, r):
        below = ops.lt(ops.index_value(r[0], torch.int64), ops.index_value(300 * i[0] + 5, torch.int64))
        return ops.masked(below, lambda o: o.load("x", length * i[0] + r[0]), 0.0)

    p = program(
        {"x": x}, (4,), compute, torch.float32, kind="sum", reduction_ranges=(length,), accumulate=torch.float32
    )
    limit = 300 * torch.arange(4)[:, None] + 5
    torch.testing.assert_close(
        interpret_program(p, {"x": x}), torch.where(torch.arange(length) < limit, x, 0.0).sum(1), rtol=1e-5, atol=1e-5
    )


def _gather(table: torch.Tensor, indices: torch.Tensor):
    def compute(ops, i):
        row = ops.indirect(ops.load("indices", i[0]), _size(table.shape[0]))
        return ops.load("table", row * table.shape[1] + i[1])

    tensors = {"table": table, "indices": indices}
    return program(tensors, (indices.numel(), table.shape[1]), compute, table.dtype), tensors


def _size(n: int):
    from staxlab.loops.expressions import Expr

    return Expr.of(n)


def test_indirect_loads_count_negative_indices_from_the_end():
    p, tensors = _gather(torch.randn(7, 5), torch.tensor([0, 6, -1, -7, 3]))
    assert torch.equal(interpret_program(p, tensors), tensors["table"][tensors["indices"]])


@pytest.mark.parametrize("bad", [7, -8])
def test_an_index_out_of_bounds_is_an_error(bad):
    p, tensors = _gather(torch.randn(7, 5), torch.tensor([0, bad, 1]))
    (kernel,) = kernels_of(p)
    assert kernel.launch["options"]["debug"] and not kernel.launch["options"]["sanitize_overflow"]
    with pytest.raises(IndexError, match="out of bounds"):
        interpret_program(p, tensors)


def test_large_tensors_get_64_bit_subscripts():
    small = program({"x": torch.empty(8)}, (8,), lambda ops, i: ops.load("x", i[0]), torch.float32)
    x = torch.empty(1).expand(2**16, 2**16)
    p = program({"x": x}, (2**16, 2**16), lambda ops, i: ops.neg(ops.load("x", i[0] * 0)), torch.float32)
    assert ".to(tl.int64)" not in kernels_of(small)[0].source
    assert "tl.program_id(0).to(tl.int64)" in kernels_of(p)[0].source


@pytest.mark.parametrize("length", [1500, 4500])
def test_64_bit_subscripts_compute_the_same(monkeypatch, length):
    from staxlab.codegen.triton import tiling

    x = torch.randn(3, length)
    monkeypatch.setattr(tiling, "INT32_MAX", 100)

    def compute(ops, i, r):
        return ops.load("x", length * i[0] + r[0])

    for kind, dtype in (("sum", torch.float32), ("argmax", torch.int64)):
        p = program({"x": x}, (3,), compute, dtype, kind=kind, reduction_ranges=(length,), accumulate=torch.float32)
        assert "to(tl.int64)" in kernels_of(p)[0].source
        torch.testing.assert_close(interpret_program(p, {"x": x}), getattr(x, kind)(1), rtol=1e-5, atol=1e-5)
