"""Fused kernels on a CUDA device, rows held in registers and rows walked along, against eager PyTorch there."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from tests.gpu.test_gpu import check

pytestmark = [pytest.mark.gpu]

ROWS = {
    "softmax": lambda x: torch.softmax(x, -1),
    "log_softmax": lambda x: torch.log_softmax(x, -1),
    "five operators": lambda x: (x - x.amax(-1, True)).exp() / (x - x.amax(-1, True)).exp().sum(-1, True),
    "layer_norm": lambda x: F.layer_norm(x, (x.shape[-1],)),
    "rms_norm": lambda x: x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6),
    "example 7.2": lambda x: (x.exp().sum(-1), x.exp().amax(-1)),
}


def forms(compiled) -> list[str]:
    return [kernel.launch["form"] for kernel in compiled.versions[0].compilation.kernels]


@pytest.mark.parametrize("size", [(300, 1), (300, 1000), (300, 5000), (300, 16384), (300, 33000), (1, 77)])
@pytest.mark.parametrize("name", ROWS)
def test_rows_of_any_length(name, size):
    x = torch.randn(size, device="cuda")
    compiled = check(ROWS[name], x, rtol=1e-4, atol=1e-4)
    if size[1] > 1:
        held = 8192 if name in ("layer_norm", "rms_norm") else 16384  # exponentials are dear to compute twice
        assert forms(compiled) == ["looped" if size[1] > held else "persistent"]


@pytest.mark.parametrize("columns", [37, 33000])
@pytest.mark.parametrize("name", ["softmax", "log_softmax", "example 7.2"])
def test_nan_and_infinities(name, columns):
    nan, inf = float("nan"), float("inf")
    x = torch.randn(300, columns, device="cuda")
    x[0, 3], x[1, 5], x[2, 7], x[3, 0], x[3, 36] = nan, inf, -inf, inf, -inf
    x[4], x[5], x[6, : columns // 2], x[7] = -inf, inf, -inf, 1e30
    check(ROWS[name], x, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("columns", [100, 9000, 40000])
def test_other_precisions(dtype, columns):
    x = torch.randn(300, columns, device="cuda", dtype=dtype)
    check(ROWS["softmax"], x, rtol=1e-2 if dtype.itemsize == 2 else 1e-12, atol=1e-5)
    check(ROWS["layer_norm"], x, rtol=1e-2 if dtype.itemsize == 2 else 1e-9, atol=1e-2 if dtype.itemsize == 2 else 1e-9)


@pytest.mark.parametrize("dim", [0, 1, 2, (0, 2), (1, 2)])
def test_any_dimensions_may_be_the_columns(dim):
    x = torch.randn(60, 50, 70, device="cuda")
    check(lambda x: (x - x.mean(dim, True)) * torch.rsqrt(x.var(dim, keepdim=True) + 1e-5), x, rtol=1e-4, atol=1e-4)
    check(lambda x: (x - x.amax(dim, True)).exp(), x)


def test_cross_entropy_of_rows():
    x, target = torch.randn(4096, 1000, device="cuda"), torch.randint(0, 1000, (4096,), device="cuda")
    compiled = check(lambda x, target: F.cross_entropy(x, target, reduction="none"), x, target, rtol=1e-5)
    assert forms(compiled) == ["persistent"]


def test_views_whose_data_is_not_aligned():
    base = torch.randn(300 * 4096 + 8, device="cuda")
    for start in (0, 1, 2, 3, 4):
        check(ROWS["softmax"], base[start : start + 300 * 4096].view(300, 4096), rtol=1e-5)
