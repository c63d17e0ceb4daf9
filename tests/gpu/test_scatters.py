"""Scattered writes on a CUDA device: sums in whatever order atomic operations make, everything else exactly."""

from __future__ import annotations

import pytest
import torch

import staxlab

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("ignore::UserWarning")]


def numbers(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    return (torch.randn(shape, device="cuda") * 9).to(dtype)


def subscripts(size: int, *shape: int) -> torch.Tensor:
    return torch.randint(0, size, shape, device="cuda")


def check(function, *inputs: torch.Tensor, scale: float = 1.0) -> None:
    """As precise as the same sum in float64, but for the roundings of the accumulator and of the result; whole numbers
    and what is only moved are exact."""
    compiled = staxlab.compile(function, strict_native=True)
    ours, dtype = compiled(*inputs), inputs[0].dtype
    (version,) = compiled.versions
    assert all(kernel.language == "triton" for kernel in version.compilation.kernels)
    if not dtype.is_floating_point:
        assert torch.equal(ours, function(*inputs))
        return
    true = function(*(t.double() if t.is_floating_point() else t for t in inputs))
    unit = torch.finfo(dtype).eps
    assert ours.dtype == dtype and bool(((ours.double() - true).abs() <= 2e-4 * scale + unit * true.abs()).all())


@pytest.mark.parametrize(
    "dtype",
    [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64, torch.int8],
    ids=str,
)
def test_sums(dtype):
    x, k, s = numbers(dtype, 100, 300), subscripts(100, 7000, 300), numbers(dtype, 7000, 300)
    check(lambda x, k, s: x.scatter_add(0, k, s), x, k, s, scale=20)
    check(lambda x, k, s: x.index_add(0, k[:, 0], s), x, k, s, scale=20)
    check(lambda x, k, s: torch.index_put(x, [k[:, 0], k[:, 1]], s[:, 0], True), x, k, s, scale=20)


def test_extremes_means_and_moves():
    for dtype in (torch.int32, torch.int64, torch.int8):
        x, k, s = numbers(dtype, 100, 30), subscripts(100, 700, 30), numbers(dtype, 700, 30)
        for reduce in ("amax", "amin"):
            check(lambda x, k, s: x.scatter_reduce(0, k, s, reduce, include_self=False), x, k, s)  # noqa: B023
    x, k, s = numbers(torch.float32, 100, 30), subscripts(100, 700, 30), numbers(torch.float32, 700, 30)
    check(lambda x, k, s: x.scatter_reduce(0, k, s, "mean"), x, k, s)
    where = torch.randperm(100, device="cuda")[:70]
    check(lambda x, k, s: torch.index_put(x, [k], s), x, where, s[:70], scale=0)
    check(lambda x, k: x.index_fill(0, k - 100, 3.0), x, where, scale=0)


def test_training_through_an_embedding():
    table = torch.randn(500, 96, device="cuda", requires_grad=True)
    k = subscripts(500, 8, 400)
    compiled = staxlab.compile(lambda t, k: torch.nn.functional.embedding(k, t, padding_idx=3).square().sum())
    (ours,) = torch.autograd.grad(compiled(table, k), table)
    (eagers,) = torch.autograd.grad(torch.nn.functional.embedding(k, table, padding_idx=3).square().sum(), table)
    torch.testing.assert_close(ours, eagers, rtol=1e-4, atol=1e-4)
    assert not ours[3].any()


def test_deterministic_algorithms_are_pytorchs():
    x, k, s = numbers(torch.float32, 10, 30), subscripts(10, 7000), numbers(torch.float32, 7000, 30)
    add = lambda x, k, s: x.index_add(0, k, s)  # noqa: E731
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        compiled = staxlab.compile(add)
        first = compiled(x, k, s)
        assert all(torch.equal(first, compiled(x, k, s)) for _ in range(5))
        assert torch.equal(first, add(x, k, s))
    finally:
        torch.use_deterministic_algorithms(before)
