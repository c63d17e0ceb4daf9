"""Pooling windows, written out in one loop: eager's values bit for bit, with what is pooled inlined."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

import staxlab

DTYPES = (torch.float32, torch.float64, torch.bfloat16)


def image(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    x = torch.randn(shape, generator=torch.Generator().manual_seed(seed)).round(decimals=1)  # many equal values
    flat = x.view(-1)
    flat[::37], flat[5::41], flat[11::53] = math.nan, -math.inf, math.inf
    flat[1::7] = -0.0
    return x.to(dtype)


def compared(function, *inputs):
    """Compile, compare bit for bit (NaN being NaN) and stride for stride; returns the kernels' languages."""
    compiled = staxlab.compile(function)
    wanted, found = function(*inputs), compiled(*inputs)
    for one, other in zip(*(r if isinstance(r, tuple) else (r,) for r in (wanted, found)), strict=True):
        assert one.dtype == other.dtype and one.shape == other.shape
        same = (one == other) & (one.signbit() == other.signbit()) | (one != one) & (other != other)
        assert bool(same.all())
        assert all(n == 1 or a == b for n, a, b in zip(one.shape, one.stride(), other.stride(), strict=True))
    compilation = compiled.versions[0].compilation
    assert compilation.fallback_reason is None
    return {kernel.language for kernel in compilation.kernels}


POOLS = {
    "max": lambda x: F.max_pool2d(x, 3, 2, 1),
    "max with positions": lambda x: F.max_pool2d(x, 3, 2, 1, return_indices=True),
    "max, dilated and cut": lambda x: F.max_pool2d(x, (2, 3), (2, 1), (1, 1), (2, 2), True, return_indices=True),
    "mean": lambda x: F.avg_pool2d(x, 3, 2, 1),
    "mean without padding": lambda x: F.avg_pool2d(x, 3, 2, 1, ceil_mode=True, count_include_pad=False),
    "mean by a given number": lambda x: F.avg_pool2d(x, 3, 2, 1, divisor_override=7),
    "adaptive mean": lambda x: F.adaptive_avg_pool2d(x, (6, 4)),
    "adaptive max": lambda x: F.adaptive_max_pool2d(x, (6, 4), return_indices=True),
    "max of an elementwise value": lambda x: F.max_pool2d(torch.relu(x) * 2, 2),
    "mean of a view": lambda x: F.avg_pool2d(x.flip(3)[:, 1:], 2),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", POOLS)
def test_windows_have_eagers_bits(name, dtype):
    x = image(2, 3, 12, 16, dtype=dtype)
    for input in (x, x.to(memory_format=torch.channels_last), image(2, 3, 16, 12, dtype=dtype).transpose(2, 3)):
        languages = compared(POOLS[name], input)
        assert languages == {"cpp"}


def test_three_dimensions_and_one():
    x = image(2, 3, 8, 8, 8)
    assert compared(lambda x: F.max_pool3d(x, 2, return_indices=True), x) == {"cpp"}
    assert compared(lambda x: F.avg_pool3d(x, 2), x) == {"cpp"}
    assert compared(lambda x: F.adaptive_avg_pool3d(x, 4), x) == {"cpp"}
    assert compared(lambda x: F.max_pool1d(x, 3), x[0, 0]) == {"cpp"}
    assert compared(lambda x: F.avg_pool1d(x, 3), x[0, 0]) == {"cpp"}


def test_windows_side_by_side_may_be_large():
    """Their sums are reductions, whose order is another."""
    x = torch.rand(2, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    for size in (1, 2):
        compiled = staxlab.compile(lambda x, size=size: F.adaptive_avg_pool2d(x, size))
        torch.testing.assert_close(compiled(x), F.adaptive_avg_pool2d(x, size), rtol=1e-6, atol=0)
        assert {k.language for k in compiled.versions[0].compilation.kernels} == {"cpp"}


def test_wide_windows_that_overlap_are_a_library_call():
    x = image(1, 2, 20, 20)
    assert compared(lambda x: F.max_pool2d(x, 7, 1), x) == {"extern"}
    assert compared(lambda x: F.adaptive_avg_pool2d(x, 3), x) == {"extern"}


def test_a_window_of_nothing_but_the_lowest_value_has_its_first_position():
    x = torch.full((1, 1, 4, 4), -math.inf)
    assert compared(lambda x: F.max_pool2d(x, 3, 1, 1, return_indices=True), x) == {"cpp"}


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_any_windows(data):
    rank = data.draw(st.integers(1, 2))
    extents = [data.draw(st.integers(3, 9)) for _ in range(rank)]
    size = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    step = [data.draw(st.integers(1, 3)) for _ in range(rank)]
    padding = [data.draw(st.integers(0, s // 2)) for s in size]
    dilation = [data.draw(st.integers(1, 2)) for _ in range(rank)]
    ceil = data.draw(st.booleans())
    if any((s - 1) * d + 1 > n + 2 * p for s, d, n, p in zip(size, dilation, extents, padding, strict=True)):
        return  # PyTorch refuses windows larger than what they look at
    x = image(2, 2, *extents, seed=data.draw(st.integers(0, 99)))
    largest, mean = (F.max_pool2d, F.avg_pool2d) if rank == 2 else (F.max_pool1d, F.avg_pool1d)
    one = [value if rank == 2 else value[0] for value in (size, step, padding, dilation)]
    compared(lambda x: largest(x, one[0], one[1], one[2], one[3], ceil), x)
    include = data.draw(st.booleans())
    if all(s <= n + 2 * p for s, n, p in zip(size, extents, padding, strict=True)):
        compared(lambda x: mean(x, one[0], one[1], one[2], ceil, include), x)


@pytest.mark.parametrize("name", ["max", "mean", "adaptive mean", "max of an elementwise value"])
def test_gradients(name):
    x = torch.randn(2, 3, 12, 16, generator=torch.Generator().manual_seed(1))
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    staxlab.compile(POOLS[name])(ours).square().sum().backward()
    POOLS[name](theirs).square().sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def test_kernels_are_validated():
    compiled = staxlab.compile(lambda x: (F.max_pool2d(x, 3, 2, 1), F.avg_pool2d(x, 2)), options={"validate": True})
    compiled(image(2, 3, 12, 16))
    assert compiled.versions[0].compilation.validation.passed
