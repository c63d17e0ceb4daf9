"""Softmax by length of the row: exponentials kept in the cache, long rows in blocks (Proposition 9.1)."""

from __future__ import annotations

import math

import pytest
import torch

import staxlab
from staxlab.loops.lowering import normalizations

FUNCTIONS = {"softmax": torch.softmax, "log_softmax": torch.log_softmax}


def compiled(function, x, **options):
    f = staxlab.compile(lambda x: function(x, -1), options=options)
    return f(x), f.versions[-1].compilation


@pytest.fixture
def short_blocks(monkeypatch):
    monkeypatch.setattr(normalizations, "LONG_ROW_BYTES", 1 << 10)
    monkeypatch.setattr(normalizations, "BLOCK_ELEMENTS", 256)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_long_row_is_read_twice_not_three_times(name):
    x = torch.randn(64, 200_000)
    y, compilation = compiled(FUNCTIONS[name], x)
    assert (y.double() - FUNCTIONS[name](x.double(), -1)).abs().max() < 2e-6
    whole = [n for n in compilation.schedule.nodes if any(a.buffer == "x" for a in n.reads)]
    assert len(whole) == 2 and [m.reduction for m in whole[0].members] == ["amax", "sum"]
    assert whole[0].rows == 64 * 20  # the largest divisor of whole cache lines within 16,384 elements is 10,000
    read = sum(compilation.schedule.bytes_read(node) for node in whole)
    assert 2 * x.nbytes <= read < 2.1 * x.nbytes


@pytest.mark.parametrize("name", FUNCTIONS)
def test_infinities_in_blocks_are_eagers(name, short_blocks):
    x = torch.randn(64, 3200)
    x[0] = -math.inf
    x[1, :1000] = -math.inf
    x[2, 7] = math.inf
    x[3, 3000] = math.nan
    x[4] = -math.inf
    x[4, 1600] = 1.0
    y, _ = compiled(FUNCTIONS[name], x)
    torch.testing.assert_close(y, FUNCTIONS[name](x, -1), equal_nan=True, rtol=1e-5, atol=1e-6)


def test_rows_without_a_fitting_divisor_or_with_too_few_blocks_stay_whole(short_blocks):
    for shape in ((64, 3203), (2, 3200)):
        x = torch.randn(shape)
        y, compilation = compiled(torch.softmax, x)
        torch.testing.assert_close(y, x.softmax(-1))
        assert not any("where" in kernel.name for kernel in compilation.kernels)


def test_a_row_that_fits_the_cache_has_its_exponentials_once():
    x = torch.randn(128, 1000)
    y, compilation = compiled(torch.softmax, x)
    assert len(compilation.kernels) == 1 and compilation.kernels[0].source.count("= exp(") == 1
    torch.testing.assert_close(y, x.softmax(-1))
    _, alone = compiled(torch.softmax, x, fuse=False)
    assert sum(kernel.source.count(" = exp(") for kernel in alone.kernels) == 2  # computed again: half the traffic
