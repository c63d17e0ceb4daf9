"""Every scalar operation, on every kind of number, under every instruction set that runs here, against PyTorch."""

from __future__ import annotations

import math

import pytest
import torch

from staxlab.codegen.cpp import operations
from staxlab.loops.ops import OPERATIONS, result_dtype
from staxlab.loops.semantics import _FUNCTIONS
from tests.codegen.cpp_support import RUNNABLE, assert_same, compile_program, pointwise, run

FLOATS = (torch.float32, torch.float64)
INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)

#: Operations whose result must be the correctly rounded one, or is exact; the others are within a few units in the
#: last place of PyTorch's, which uses another vector library for some of them.
APPROXIMATE = {name for name, rule in OPERATIONS.items() if rule.transcendental}
#: Correctly rounded here, up to one unit off in PyTorch, whose vector library rounds 0.5**0.5 in float64 the wrong way.
APPROXIMATE |= {"sqrt", "rsqrt"}


DIVIDING = {"floordiv", "truncdiv", "remainder", "fmod"}


def test_no_operation_is_missing():
    assert operations.missing_operations() == {"float": [], "integer": []}


def values(dtype: torch.dtype, count: int = 201) -> torch.Tensor:
    """Ordinary numbers of several magnitudes and both signs, and every special one."""
    generator = torch.Generator().manual_seed(7)
    if dtype == torch.bool:
        return torch.rand(count, generator=generator) < 0.5
    if not dtype.is_floating_point:
        limits = torch.iinfo(dtype)
        special = torch.tensor([0, 1, 2, 3, 7, limits.max, limits.max - 1, limits.min, limits.min + 1, 100, -1, -2, -3])
        spread = torch.randint(-40, 41, (count - len(special),), generator=generator)
        return torch.cat([special, spread]).to(dtype)
    finfo = torch.finfo(dtype)
    special = torch.tensor(
        [0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, math.inf, -math.inf, math.nan, finfo.max, -finfo.max,
         finfo.tiny, finfo.smallest_normal / 4, 1e-3, 88.5, -88.5, 700.0,
         2.0**31, -(2.0**31), 2.0**24 + 1, 0.49999997, 3.0],
        dtype=torch.float64,
    )  # fmt: skip
    spread = torch.randn(count - len(special), generator=generator, dtype=torch.float64) * 3
    return torch.cat([special, spread]).to(dtype)


def second_operand(dtype: torch.dtype, x: torch.Tensor) -> torch.Tensor:
    """Another order of the same values, so that special ones meet both special and ordinary ones."""
    generator = torch.Generator().manual_seed(11)
    return x[torch.randperm(len(x), generator=generator)]


def apply_all(names: list[str], operands: list[torch.Tensor], dtype: torch.dtype, instruction_set: str) -> torch.Tensor:
    """One kernel that computes operation ``k`` in row ``k``: compiling one per operation would take minutes."""
    n = operands[0].shape[0]
    inputs = {f"x{k}": operand for k, operand in enumerate(operands)}

    def compute(ops, index):
        row, column = index
        loaded = [ops.load(name, column) for name in inputs]
        total = None
        for number, name in enumerate(names):
            value = ops.apply(name, *loaded[: OPERATIONS[name].arity])
            if ops.dtype_of(value) != dtype:
                value = ops.to_dtype(value, dtype)
            if total is None:
                total = value
            else:
                here = ops.eq(ops.index_value(row, torch.int32), ops.constant(number, torch.int32))
                total = ops.where(here, value, total)
        return total

    return run(pointwise(inputs, (len(names), n), dtype, compute), inputs, instruction_set)


def eager(name: str, operands: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    if name in ("isnan", "isinf") and not dtype.is_floating_point:
        return torch.zeros(len(operands[0]), dtype=dtype)
    return _FUNCTIONS[name](*operands[: OPERATIONS[name].arity]).to(dtype)


def check(names: list[str], operands: list[torch.Tensor], dtype: torch.dtype, instruction_set: str) -> None:
    actual = apply_all(names, operands, dtype, instruction_set)
    for row, name in enumerate(names):
        wanted = eager(name, operands, dtype)
        tolerance = {}
        if name in APPROXIMATE:
            unit = torch.finfo(dtype).eps if dtype.is_floating_point else 0.0
            # lgamma's bound does not hold near its zeros; PyTorch's own kernel is no better there.
            tolerance = {"rtol": 4 * unit, "atol": 4 * unit if name == "lgamma" else 0.0}
            if dtype.is_floating_point:
                tolerance["atol"] += float(torch.finfo(dtype).smallest_normal) * unit
        try:
            assert_same(actual[row], wanted, **tolerance)
        except AssertionError as error:
            bad = ~torch.isclose(actual[row], wanted, rtol=tolerance.get("rtol", 0), atol=tolerance.get("atol", 0),
                                 equal_nan=True)  # fmt: skip
            where = bad.nonzero()[:4, 0].tolist()
            shown = [(tuple(o[k].item() for o in operands), actual[row][k].item(), wanted[k].item()) for k in where]
            raise AssertionError(f"{name} {dtype} {instruction_set}: (operands, got, eager) {shown}") from error


def names_for(dtype: torch.dtype, arity: int) -> list[str]:
    table = operations.table_for(dtype)
    return [name for name, rule in OPERATIONS.items() if rule.arity == arity and name in table]


@pytest.mark.parametrize("instruction_set", RUNNABLE)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_unary_floating_point(dtype, instruction_set):
    check(names_for(dtype, 1), [values(dtype)], dtype, instruction_set)


@pytest.mark.parametrize("instruction_set", RUNNABLE)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_binary_floating_point(dtype, instruction_set):
    x = values(dtype)
    y = second_operand(dtype, x)
    check([n for n in names_for(dtype, 2) if n not in DIVIDING], [x, y], dtype, instruction_set)
    # SLEEF's fmod, which PyTorch and vector kernels call, yields NaN for a subnormal divisor; fmod of C does not.
    subnormal = (y != 0) & (y.abs() < torch.finfo(dtype).smallest_normal)
    check(sorted(DIVIDING), [x, torch.where(subnormal, torch.ones((), dtype=dtype), y)], dtype, instruction_set)


@pytest.mark.parametrize("instruction_set", RUNNABLE)
@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers(dtype, instruction_set):
    x = values(dtype)
    y = second_operand(dtype, x)
    check(names_for(dtype, 1), [x], dtype, instruction_set)
    check([n for n in names_for(dtype, 2) if n not in DIVIDING and n != "pow"], [x, y], dtype, instruction_set)
    # The least number divided by -1 traps in PyTorch; a divisor of 0 is not asked for.
    divisor = torch.where((y == 0) | ((x == torch.iinfo(dtype).min) & (y == -1)), torch.tensor(3, dtype=dtype), y)
    check(sorted(DIVIDING), [x, divisor], dtype, instruction_set)
    exponent = (y % 8).to(dtype)
    check(["pow"], [x, exponent], dtype, instruction_set)


@pytest.mark.parametrize("instruction_set", RUNNABLE)
def test_bools(instruction_set):
    x, y = values(torch.bool), second_operand(torch.bool, values(torch.bool))
    # PyTorch has no fmax or add that yields bool from bools as arithmetic: they are "or" by promotion rules.
    names = [n for n in names_for(torch.bool, 2) if n not in ("fmax", "fmin")]
    check(names, [x, y], torch.bool, instruction_set)
    check(names_for(torch.bool, 1), [x], torch.bool, instruction_set)


@pytest.mark.parametrize("instruction_set", RUNNABLE)
@pytest.mark.parametrize("dtype", (*FLOATS, *INTEGERS, torch.bool), ids=str)
def test_where(dtype, instruction_set):
    condition, x = values(torch.bool), values(dtype)
    y = second_operand(dtype, x)
    inputs = {"c": condition, "x": x, "y": y}
    program = pointwise(
        inputs, (len(x),), dtype,
        lambda ops, i: ops.where(ops.load("c", i[0]), ops.load("x", i[0]), ops.load("y", i[0])),
    )  # fmt: skip
    assert_same(run(program, inputs, instruction_set), torch.where(condition, x, y))


STORED = (*FLOATS, *INTEGERS, torch.bool, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("instruction_set", RUNNABLE)
@pytest.mark.parametrize("source", STORED, ids=str)
def test_conversions(source, instruction_set):
    """Every dtype to every dtype, as ``tensor.to`` does it, wherever the value fits (PyTorch's own conversions of
    numbers that do not fit differ between its vectorised and its plain loop)."""
    x = values(source) if source not in (torch.bfloat16, torch.float16) else values(torch.float32).to(source)
    # Every target for the widest instruction set; for the others, those that take another path.
    for target in STORED if instruction_set == RUNNABLE[0] else (torch.float32, torch.int64, torch.uint8, *STORED[-3:]):
        usable = x
        if source.is_floating_point and not target.is_floating_point and target != torch.bool:
            limits = torch.iinfo(target)
            inside = (x.double() > max(limits.min, -(2.0**31)) - 1) & (x.double() < min(limits.max, 2.0**31 - 130))
            usable = torch.where(inside, x, torch.zeros((), dtype=source))
        inputs = {"x": usable}
        program = pointwise(inputs, (len(x),), target, lambda ops, i, t=target: ops.to_dtype(ops.load("x", i[0]), t))
        assert_same(run(program, inputs, instruction_set), usable.to(target))


@pytest.mark.parametrize("instruction_set", RUNNABLE)
@pytest.mark.parametrize("dtype", (torch.bfloat16, torch.float16), ids=str)
def test_every_half_precision_number_survives(dtype, instruction_set):
    """All 65536 bit patterns through load and store; and rounding of every midpoint between neighbours."""
    patterns = torch.arange(65536).to(torch.uint16).view(dtype)
    inputs = {"x": patterns}
    program = pointwise(inputs, (65536,), dtype, lambda ops, i: ops.load("x", i[0]))
    assert_same(run(program, inputs, instruction_set), patterns)
    ordered = torch.sort(patterns[~patterns.isnan()].double()).values
    middles = torch.cat([(ordered[1:] + ordered[:-1]) / 2, torch.tensor([math.nan, -math.nan, 1e38, -1e38])])
    middles = middles[middles.isfinite() | middles.isnan()].float()
    nudged = torch.cat([middles, torch.nextafter(middles, torch.tensor(math.inf)), -middles])
    inputs = {"x": nudged}
    program = pointwise(inputs, (len(nudged),), dtype, lambda ops, i: ops.to_dtype(ops.load("x", i[0]), dtype))
    assert_same(run(program, inputs, instruction_set), nudged.to(dtype))


def test_result_dtypes_agree_with_the_table():
    """What the C++ handler labels a value with is what the table of operations says."""
    for name in names_for(torch.float32, 2):
        kind = result_dtype(name, (torch.float32, torch.float32))
        assert (kind == torch.bool) == (name in operations.COMPARISONS), name


@pytest.mark.parametrize("isa", [isa for isa in RUNNABLE if isa.startswith("avx")])
def test_exp_in_place_has_the_bits_of_the_library(monkeypatch, isa):
    """Every exponent of both signs with mantissas spread evenly; all 2^32 arguments were tried once."""

    bits = torch.arange(0, 1 << 32, 4093, dtype=torch.int64)
    edges = [0.0, -0.0, math.inf, -math.inf, math.nan, 88.72284, 88.7229, -87.3366, -103.97, -103.98, -104, 104]
    x = torch.cat((bits.to(torch.int32).view(torch.float32), torch.tensor(edges)))

    def bits_of(text):
        program = pointwise({"x": x}, x.shape, torch.float32, lambda ops, i: ops.exp(ops.load("x", i[0])))
        artifact, kernels, _ = compile_program(program, isa)
        assert text in kernels[0].source
        return artifact.call([x])[0].nan_to_num(nan=7.0).view(torch.int32)

    inline = bits_of(" = exp(")
    monkeypatch.setattr(operations, "INLINE", {})
    assert torch.equal(inline, bits_of("sleef_exp"))
