"""The enclosures of every kind of node hold what the reference semantics computes, and nothing that it does not."""

from __future__ import annotations

import math

import pytest
import torch

from staxlab.loops.body import record
from staxlab.loops.expressions import Expr
from staxlab.loops.ir import ComputedBuffer, Layout, Scan, Scatter, Template
from staxlab.loops.semantics import evaluate_computed, view_of
from staxlab.measure import node_enclosures
from staxlab.measure.node_enclosures import enclose_node

F32, F64, I64 = torch.float32, torch.float64, torch.int64
ROWS, COLUMNS = 6, 11


def numbers(*shape: int, dtype: torch.dtype = F32, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator).to(dtype)
    return torch.randint(-4, 5, shape, generator=generator).to(dtype)


def at(name: str, columns: int = COLUMNS):
    return lambda ops, index: ops.load(name, columns * index[0] + index[1])


def scan(kind: str, axis: int, dtype: torch.dtype = F32, load=None):
    stored = I64 if kind.startswith("arg") else dtype
    node = Scan((ROWS, COLUMNS), axis, kind, stored, dtype, load or at("x"))
    return ComputedBuffer("result", Layout.contiguous((ROWS, COLUMNS), stored, "cpu"), node)


def scatter(kind: str, load=None, dtype: torch.dtype = F32):
    def compute(ops, index):
        row = ops.indirect(ops.load("rows", COLUMNS * index[0] + index[1]), Expr.of(4))
        return (row, index[1]), (load or at("x"))(ops, index)

    node = Scatter((ROWS, COLUMNS), "base", kind, dtype, compute)
    return ComputedBuffer("result", Layout.contiguous((4, COLUMNS), dtype, "cpu"), node)


def product(load=None):
    def epilogue(ops, index, merged):
        return ops.add(merged, ops.load("bias", index[1]))

    right = lambda ops, index: ops.load("y", 5 * index[0] + index[1])  # noqa: E731
    node = Template((ROWS, 5), COLUMNS, F32, F32, load or at("x"), right, epilogue)
    return ComputedBuffer("result", Layout.contiguous((ROWS, 5), F32, "cpu"), node)


def storages(dtype: torch.dtype = F32) -> dict[str, torch.Tensor]:
    rows = torch.randint(-4, 4, (ROWS * COLUMNS,), generator=torch.Generator().manual_seed(1))
    return {
        "x": numbers(ROWS * COLUMNS, dtype=dtype), "base": numbers(4 * COLUMNS, dtype=dtype, seed=2), "rows": rows,
        "y": numbers(COLUMNS * 5, seed=3), "bias": numbers(5, seed=4),
    }  # fmt: skip


def enclosed(buffer: ComputedBuffer, inputs, points: int = 1 << 19, complete: bool = True):
    dtypes = {name: tensor.dtype for name, tensor in inputs.items()}
    value = view_of(evaluate_computed(buffer, dtypes, inputs), buffer.layout).reshape(-1)
    return value, list(enclose_node(buffer, record(buffer, dtypes), inputs, None, points, complete))


EXACT = {
    **{f"scan {kind} along {axis}": scan(kind, axis) for axis in (0, 1)
       for kind in ("sum", "prod", "amax", "amin", "argmax", "argmin")},
    **{f"scatter {kind}": scatter(kind) for kind in ("store", "sum", "prod")},
    "product": product(),
}  # fmt: skip


@pytest.mark.parametrize("name", EXACT)
def test_what_holds_no_elementary_function_is_one_number(name):
    value, ((start, found),) = enclosed(EXACT[name], storages())
    assert start == 0 and found.free is None or not bool(found.free.any())
    assert torch.equal(found.value, value)
    if "amax" not in name and "amin" not in name:
        assert torch.equal(found.low, value) and torch.equal(found.high, value)


@pytest.mark.parametrize("kind", ["amax", "amin"])
def test_the_sign_of_an_extreme_that_is_zero_is_open(kind):
    inputs = storages()
    inputs["x"] = torch.zeros(ROWS * COLUMNS) * torch.tensor([1.0, -1.0]).repeat(ROWS * COLUMNS // 2)
    _, ((_, found),) = enclosed(scatter(kind), inputs)
    zero = found.value == 0
    assert bool(zero.any()) and bool(found.low[zero].signbit().all()) and not bool(found.high[zero].signbit().any())
    _, ((_, found),) = enclosed(scan(kind, 1), inputs)  # a scan keeps the later of two zeros
    assert torch.equal(found.low.signbit(), inputs["x"].signbit())


@pytest.mark.parametrize("name", ["sum", "prod", "amax", "amin", "logaddexp", "scatter sum", "scatter amax", "product"])
def test_an_elementary_function_widens_by_little_and_around_the_value(name):
    def load(ops, index):
        return ops.exp(at("x")(ops, index))

    if name == "product":
        buffer = product(load)
    else:
        buffer = scatter(name.split()[1], load) if name.startswith("scatter") else scan(name, 1, load=load)
    value, ((_, found),) = enclosed(buffer, storages())
    assert found.lower is not None and bool((found.lower <= value).all()) and bool((value <= found.upper).all())
    assert bool(((found.upper - found.lower) <= 2e-5 * value.abs() + 1e-5).all())
    if name not in ("scatter sum", "scatter amax"):
        assert bool((found.upper > found.lower).all())


def test_a_position_that_hangs_on_the_last_bit_is_free():
    buffer = scan("argmax", 1, load=lambda ops, index: ops.exp(at("x")(ops, index)))
    _, ((_, found),) = enclosed(buffer, storages())
    assert bool(found.free.all())


def test_a_prefix_is_free_from_the_first_free_element_on():
    def load(ops, index):  # a conversion of a number that does not fit has no one value
        return ops.to_dtype(ops.mul(at("x")(ops, index), ops.constant(1e30, F32)), I64)

    inputs = storages()
    inputs["x"] = torch.zeros(ROWS * COLUMNS)
    inputs["x"][COLUMNS + 4] = 1.0
    node = Scan((ROWS, COLUMNS), 1, "sum", I64, I64, load)
    buffer = ComputedBuffer("result", Layout.contiguous((ROWS, COLUMNS), I64, "cpu"), node)
    _, ((_, found),) = enclosed(buffer, inputs)
    free = found.free.reshape(ROWS, COLUMNS)
    assert free[1].tolist() == [False] * 4 + [True] * 7 and not free[[0, 2, 3, 4, 5]].any()


def test_not_a_number_stays_in_all_later_prefixes():
    inputs = storages()
    inputs["x"][3] = math.nan
    for kind in ("sum", "prod", "amax", "amin"):
        value, ((_, found),) = enclosed(scan(kind, 1), inputs)
        assert value[3:COLUMNS].isnan().all() and found.value[3:COLUMNS].isnan().all()
        assert found.free is None or not found.free.any()


def test_pieces_cover_every_row_and_their_ends_at_least():
    buffer, inputs = scan("sum", 1), storages()
    value, pieces = enclosed(buffer, inputs, points=COLUMNS)
    assert [start for start, _ in pieces] == [row * COLUMNS for row in range(ROWS)]
    assert torch.equal(torch.cat([piece.value for _, piece in pieces]), value)
    _, some = enclosed(buffer, inputs, points=COLUMNS, complete=False)
    assert [start // COLUMNS for start, _ in some] == [0, 3, 5]


@pytest.mark.parametrize("kind", ["sum", "prod", "amax", "amin", "argmax", "argmin"])
@pytest.mark.parametrize("dtype", [F32, F64, I64])
def test_long_scans_are_folded_alike(kind, dtype, monkeypatch):
    inputs = storages(dtype)
    buffer = scan(kind, 1, dtype)
    value, _ = enclosed(buffer, inputs)
    monkeypatch.setattr(node_enclosures, "LONGEST_SCAN", 2)
    _, ((_, found),) = enclosed(buffer, inputs)
    assert torch.equal(found.value, value)


def test_a_subscript_out_of_range_is_refused():
    inputs = storages()
    inputs["rows"][5] = 4
    with pytest.raises(IndexError):
        enclosed(scatter("sum"), inputs)


def test_a_subscript_that_hangs_on_the_last_bit_leaves_the_result_open():
    def compute(ops, index):
        number = ops.to_dtype(ops.exp(ops.load("x", index[0])), I64)
        return (ops.indirect(number, Expr.of(4), check=False),), ops.load("x", index[0])

    node = Scatter((3,), "base", "sum", F32, compute)
    buffer = ComputedBuffer("result", Layout.contiguous((4,), F32, "cpu"), node)
    inputs = {"x": torch.tensor([0.1, 1.0, 0.0]), "base": torch.zeros(4)}
    _, ((_, found),) = enclosed(buffer, inputs)
    assert bool(found.free.all())
