"""Drawn data: the same every time, special where they should be, and subscripts up to the bounds and not beyond."""

from __future__ import annotations

import pytest
import torch

from staxlab.loops.body import record
from staxlab.loops.expressions import Expr
from staxlab.loops.ir import ComputedBuffer, Layout, Pointwise
from staxlab.measure.validation_inputs import KINDS, draw, special_values, subscript_bounds

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int32, torch.int16,
          torch.int8, torch.uint8, torch.bool)  # fmt: skip


def drawn(kind, dtype, count=4000, size=None):
    return draw(kind, dtype, count, torch.Generator().manual_seed(3), size)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_kind_of_every_dtype(kind, dtype):
    found = drawn(kind, dtype)
    assert found.dtype == dtype and found.shape == (4000,) and len(found.unique()) > 1
    assert torch.equal(found.nan_to_num(), drawn(kind, dtype).nan_to_num())
    assert drawn(kind, dtype, 0).shape == (0,)
    if dtype == torch.bool:
        return
    if kind == "positive":
        assert bool((found > 0).all())
    if kind == "negative" and dtype != torch.uint8:
        assert bool((found < 0).all())
    if kind == "whole":
        assert bool(((found.double() * 2).frac() == 0).all())
    if kind == "special":
        special = special_values(dtype)
        assert all(bool(((found == value) | (found.isnan() & value.isnan())).any()) for value in special)


@pytest.mark.parametrize("size", [1, 2, 37])
@pytest.mark.parametrize("dtype", (torch.int64, torch.int32, torch.uint8), ids=str)
def test_subscripts_reach_both_bounds_and_only_outside_goes_beyond(size, dtype):
    for kind in KINDS:
        found = drawn(kind, dtype, size=size).long()
        lowest = 0 if kind == "positive" or dtype == torch.uint8 else -size
        inside = (found >= lowest) & (found < size)
        assert int((~inside).sum()) == (kind == "outside")
        assert int(found[inside].min()) == lowest and int(found[inside].max()) == size - 1


def test_the_buffers_behind_subscripts_are_found():
    """Through arithmetic and conditions; of two dimensions that one buffer indexes, the smaller counts."""

    def compute(ops, index):
        at = ops.add(ops.load("at", index[0]), ops.constant(1, torch.int64))
        first = ops.load("x", ops.indirect(at, Expr.of(9)))
        inside = ops.lt(ops.index_value(index[0], torch.int64), ops.constant(3, torch.int64))
        masked = ops.masked(inside, lambda within: within.load("other", index[0]), 0)
        return ops.add(ops.add(first, ops.load("x", ops.indirect(masked, Expr.of(7)))),
                       ops.load("x", ops.indirect(ops.load("at", index[0]), Expr.of(5))))  # fmt: skip

    layout = Layout.contiguous((6,), torch.float32, "cpu")
    dtypes = {"x": torch.float32, "at": torch.int64, "other": torch.int64}
    body = record(ComputedBuffer("out", layout, Pointwise((6,), torch.float32, compute)), dtypes)
    assert subscript_bounds(body) == {"at": 5, "other": 7}
