"""Enclosures hold what another implementation may compute, and no more where there is only one right result."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.loops.body import record
from staxlab.loops.enclosure import ULPS, EnclosingEvaluator, OutsideDomain, enclose_body, steps
from staxlab.loops.expressions import Expr
from staxlab.loops.ir import ComputedBuffer, Layout, Pointwise
from staxlab.loops.ops import OPERATIONS, compute_dtype
from staxlab.loops.semantics import _FUNCTIONS, Evaluator

COUNT = 48
FLOATING = sorted(
    name for name, rule in OPERATIONS.items()
    if rule.result == "same" and not name.startswith(("bitwise", "logical")) and name != "where"
)  # fmt: skip


class Perturbed(Evaluator):
    """Another library: every elementary function is off by up to its stated bound, special operands excepted."""

    def __init__(self, storages, symbols, generator):
        super().__init__(storages, symbols)
        self.generator = generator

    def apply(self, operation, *operands):
        value = super().apply(operation, *operands)
        if operation not in ULPS or not value.dtype.is_floating_point:
            return value
        special = value.isnan()
        for operand in operands:
            special = special | ~operand.isfinite() | (operand == 0)
        off = torch.randint(-ULPS[operation], ULPS[operation] + 1, value.shape, generator=self.generator)
        for count in range(1, ULPS[operation] + 1):
            value = torch.where(special | (off != count), value, steps(value, count, up=True))
            moved = steps(value, count, up=False)
            negative_by_error = (moved < 0) & (value >= 0)
            value = torch.where(special | negative_by_error | (off != -count), value, moved)
        return value


def buffer_of(compute, dtype=torch.float32):
    layout = Layout.contiguous((COUNT,), dtype, "cpu")
    return ComputedBuffer("out", layout, Pointwise((COUNT,), dtype, compute))


chains = st.lists(st.tuples(st.sampled_from(FLOATING), st.integers(0, 9), st.integers(0, 9)), min_size=1, max_size=6)


@settings(max_examples=300)
@given(chains, st.integers(0, 100))
def test_what_another_library_computes_is_enclosed(chain, seed):
    """Chains of any operations, on data with special values, ending in a choice between their last values."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(COUNT, generator=generator) * 3
    x[:6] = torch.tensor([0.0, -0.0, math.inf, -math.inf, math.nan, 1e-40])
    y = x[torch.randperm(COUNT, generator=generator)]
    storages = {"x": x, "y": y}

    def compute(ops, index):
        values = [ops.load("x", index[0]), ops.load("y", index[0])]
        for name, *places in chain:
            operands = [values[-1 - place % len(values)] for place in places][: OPERATIONS[name].arity]
            values.append(ops.apply(name, *operands))
        return ops.where(ops.gt(values[-1], values[-2]), values[-1], values[-2])

    body = record(buffer_of(compute), dict.fromkeys(storages, torch.float32))
    try:
        found = enclose_body(body, (COUNT,), storages)
    except OutsideDomain:
        return
    other = body.replay(Perturbed(storages, {"i0": torch.arange(COUNT)}, generator)).expand(COUNT)
    inside = (other >= found.low) & (other <= found.high) | (other.isnan() & found.value.isnan())
    if found.free is not None:
        inside |= found.free
    assert bool(inside.all()), (x[~inside], y[~inside], other[~inside], found.low[~inside], found.high[~inside])


@pytest.mark.parametrize("name", sorted(set(FLOATING) - set(ULPS)))
def test_an_operation_that_is_no_elementary_function_stays_exact(name):
    operands = [torch.linspace(-4, 4, COUNT), torch.linspace(3, -5, COUNT)][: OPERATIONS[name].arity]
    storages = dict(zip("xy", operands, strict=False))

    def compute(ops, index):
        return ops.apply(name, *(ops.load(operand, index[0]) for operand in storages))

    found = enclose_body(record(buffer_of(compute), dict.fromkeys(storages, torch.float32)), (COUNT,), storages)
    assert found.lower is None and found.upper is None
    assert torch.equal(found.value.nan_to_num(), _FUNCTIONS[name](*operands).nan_to_num())


@pytest.mark.parametrize("name", sorted(name for name in ULPS if OPERATIONS[name].arity == 1))
def test_special_operands_have_one_result(name):
    x = torch.tensor([math.nan, math.inf, -math.inf, 0.0, -0.0] * 10)[:COUNT]

    def compute(ops, index):
        return ops.apply(name, ops.load("x", index[0]))

    found = enclose_body(record(buffer_of(compute), {"x": torch.float32}), (COUNT,), {"x": x})
    exact = (found.low == found.high) | found.value.isnan()
    open_ended = {"acos": [3, 4], "atan": [1, 2]}.get(name, [])  # multiples of pi
    assert [k for k in range(5) if not exact[k]] == open_ended


def test_cancellation_widens_and_a_decision_on_the_last_bit_is_free():
    x = torch.full((COUNT,), 1.0)

    def difference(ops, index):
        return ops.sub(ops.exp(ops.load("x", index[0])), ops.constant(math.e, torch.float32))

    body = record(buffer_of(difference), {"x": torch.float32})
    found = enclose_body(body, (COUNT,), {"x": x})
    assert bool((found.high - found.low > 1e-7).all()) and bool((found.value.abs() < 1e-6).all())

    def choice(ops, index):
        positive = ops.gt(difference(ops, index), ops.constant(0.0, torch.float32))
        return ops.where(positive, ops.constant(5.0, torch.float32), ops.constant(-5.0, torch.float32))

    found = enclose_body(record(buffer_of(choice), {"x": torch.float32}), (COUNT,), {"x": x})
    assert bool((found.low == -5).all()) and bool((found.high == 5).all())


def test_what_traps_is_outside_the_domain():
    x = torch.tensor([3, torch.iinfo(torch.int32).min] * (COUNT // 2), dtype=torch.int32)
    for divisor in (0, -1):

        def compute(ops, index, divisor=divisor):
            return ops.floordiv(ops.load("x", index[0]), ops.constant(divisor, torch.int32))

        body = record(buffer_of(compute, torch.int32), {"x": torch.int32})
        with pytest.raises(OutsideDomain):
            enclose_body(body, (COUNT,), {"x": x})


def test_an_unchecked_subscript_out_of_range_is_outside_the_domain():
    storages = {"x": torch.arange(8.0), "at": torch.full((COUNT,), 8)}
    dtypes = {name: compute_dtype(tensor.dtype) for name, tensor in storages.items()}
    for check, error in ((False, OutsideDomain), (True, IndexError)):

        def compute(ops, index, check=check):
            return ops.load("x", ops.indirect(ops.load("at", index[0]), Expr.of(8), check=check))

        with pytest.raises(error):
            enclose_body(record(buffer_of(compute), dtypes), (COUNT,), storages)


def test_the_evaluator_covers_every_operation():
    assert EnclosingEvaluator.operations >= set(OPERATIONS)
