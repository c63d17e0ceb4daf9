"""The adjoints of views, padding, pooling and resampling against eager execution: bit for bit where the order of the
sums is eager's, and as library calls where no rule covers the case."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from staxlab.loops.body import record
from staxlab.loops.ir import ComputedBuffer, ExternBuffer, LoopProgram, Scatter

from .lowered import check, program_of
from .test_adjoints import interpreted, kernels, native

aten = torch.ops.aten
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16]


def exact(function: Callable, *inputs: torch.Tensor) -> None:
    """Eager's bits; in half precision, where eager rounds after every addition, a few roundings."""
    dtype = inputs[0].dtype
    half = {"rtol": 8 * torch.finfo(dtype).eps, "atol": 8 * torch.finfo(dtype).eps}
    native(function, *inputs, **(half if dtype.itemsize == 2 else {"rtol": 0, "atol": 0}))


def copied(function: Callable, *inputs: torch.Tensor) -> None:
    native(function, *inputs, rtol=0, atol=0)


def scattered(function: Callable, *inputs: torch.Tensor, checked: bool = True) -> None:
    """Positions that are any data: elements are scattered, and subscripts checked unless they are known to be right."""
    program = check(function, *inputs)
    (scatter,) = [b for b in program.buffers if isinstance(b, ComputedBuffer) and isinstance(b.data, Scatter)]
    assert record(scatter, {b.name: b.layout.dtype for b in (*program.inputs, *program.buffers)}).may_fail == checked


def library(function: Callable, *inputs: torch.Tensor) -> LoopProgram:
    """A case no rule covers is PyTorch's by design: no warning."""
    program = check(function, *inputs)
    assert {b.data.reason for b in program.buffers if isinstance(b, ExternBuffer)} == {"library"}
    return program


def gradient_like(result: torch.Tensor) -> torch.Tensor:
    return torch.randn(result.shape, dtype=torch.float64).to(result.dtype)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64])
def test_views(dtype):
    def values(*shape):
        return torch.randn(shape, dtype=torch.float64).mul(9).to(dtype)

    sizes = [4, 5, 6]
    for dim in (0, 1, -1):
        rest = [n for k, n in enumerate(sizes) if k != dim % 3]
        for position in (0, 2, -1):
            copied(lambda g: aten.select_backward(g, sizes, dim, position), values(*rest))  # noqa: B023
        for start, end, step in ((0, 3, 1), (1, 2**63 - 1, 2), (-3, -1, 1), (2, 2, 1)):
            cut = torch.empty(sizes).transpose(0, dim)[slice(start, end, step)].transpose(0, dim).shape
            copied(lambda g: aten.slice_backward(g, sizes, dim, start, end, step), values(*cut))  # noqa: B023
    for offset in (0, 1, -2, 5):
        length = torch.empty(4, 5, 6).diagonal(offset, 0, 2).shape
        copied(lambda g: aten.diagonal_backward(g, sizes, offset, 0, 2), values(*length))  # noqa: B023
        copied(lambda x: aten.diag_embed(x, offset, 0, -1), values(4, 5))  # noqa: B023
    copied(lambda g: aten.slice_backward(g.t(), [5, 4], 0, 1, 3, 1), values(4, 2))
    copied(lambda t: aten.select_backward(t.expand(5), [4, 5], 0, 1), values(1))


def test_what_rules_do_not_cover_is_a_library_call():
    number, at = torch.randn(()), torch.tensor([0])
    library(lambda x, i: torch.index_select(x, 0, i), number, at)
    library(
        lambda g: torch.view_as_real(aten.slice_backward(g, [4], 0, 1, 3, 1)), torch.randn(2, dtype=torch.complex64)
    )


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64])
def test_what_a_reduction_selected_gets_the_gradient(dtype):
    x = torch.randn(4, 5, 6, dtype=torch.float64).mul(3).to(dtype)
    for select in (torch.max, torch.min):
        for dim in (0, 1, -1):

            def function(x, g, select=select, dim=dim):
                position = select(x, dim).indices.unsqueeze(dim)
                return x.new_zeros(x.shape).scatter(dim, position, g)

            copied(function, x, x.narrow(dim, 0, 1).clone())
    copied(lambda x: x.scatter(1, x.argmax(1, keepdim=True), x[:, :1] * 2), x)
    library(lambda x: x.scatter(1, x.kthvalue(2, 1, True).indices, x[:, :1] * 2), x)  # one for the selection itself
    scattered(lambda x, i: x.scatter(1, i, x[:, :1]), x, torch.randint(0, 5, (4, 1, 6)))
    scattered(lambda x: x[:, :2].scatter(1, x.argmax(1, keepdim=True) * 0, x[:, :1]), x, checked=False)


def test_positions_beyond_the_rows_they_are_written_to_are_noticed():
    x = torch.arange(12.0).view(3, 4)
    program = program_of(lambda x: x[:, :2].scatter(1, x[:, :2].argmax(1, keepdim=True), x[:, :1]), x)
    assert not any(isinstance(b, ExternBuffer) for b in program.buffers)
    x = torch.zeros(3, 4)  # the first element is the greatest, so eager execution does not raise on the sample
    scattered(lambda x: x[:, :2].scatter(1, x.argmax(1, keepdim=True), x[:, :1]), x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_unfolding(dtype):
    for dim, size, step in ((0, 3, 1), (1, 2, 2), (-1, 3, 2), (1, 2, 4), (0, 7, 1), (1, 9, 2)):
        x = torch.zeros(7, 9, 8, dtype=dtype)
        g = gradient_like(x.unfold(dim, size, step))
        exact(lambda g: aten.unfold_backward(g, [7, 9, 8], dim, size, step), g)  # noqa: B023
    library(lambda g: aten.unfold_backward(g, [40], 0, 20, 1), torch.randn(21, 20))


POOLS = [(2, 2, 0, 1, False), (3, 2, 1, 1, False), (3, 1, 1, 1, False), (3, 2, 1, 2, False), (3, 2, 1, 1, True)]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_greatest_of_windows(dtype, layout):
    for size, step, padding, dilation, ceil in [*POOLS, ((2, 3), (1, 2), (0, 1), 1, False)]:
        x = torch.randn(2, 3, 9, 8, dtype=torch.float64).to(dtype).contiguous(memory_format=layout)
        y, indices = F.max_pool2d(x, size, step, padding, dilation, ceil, return_indices=True)
        arguments = [[v] if isinstance(v, int) else v for v in (size, step, padding, dilation)]

        def function(g, x, i, arguments=arguments, ceil=ceil):
            return aten.max_pool2d_with_indices_backward(g, x, *arguments, ceil, i)

        exact(function, gradient_like(y).contiguous(memory_format=layout), x, indices)
    if layout == torch.contiguous_format:
        y, indices = F.max_pool2d(x[0], 2, return_indices=True)
        exact(lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, [2, 2], [], 0, 1, False, i), gradient_like(y),
              x[0], indices)  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_greatest_of_windows_in_space_and_of_wide_ones(dtype):
    x = torch.randn(2, 3, 5, 6, 7, dtype=dtype)
    for size, step in ((2, 2), (3, 2)):
        y, indices = F.max_pool3d(x, size, step, return_indices=True)
        exact(lambda g, x, i: aten.max_pool3d_with_indices_backward(g, x, size, step, 0, 1, False, i),  # noqa: B023
              gradient_like(y), x, indices)  # fmt: skip
    x = torch.randn(2, 3, 12, 12, dtype=dtype)
    y, indices = F.max_pool2d(x, 5, 1, return_indices=True)
    library(
        lambda g, x, i: aten.max_pool2d_with_indices_backward(g, x, 5, 1, 0, 1, False, i), gradient_like(y), x, indices
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("count_padding", [False, True])
@pytest.mark.parametrize("divisor", [None, 3])
def test_means_of_windows(dtype, count_padding, divisor):
    x = torch.randn(2, 3, 9, 8, dtype=torch.float64).to(dtype)
    for size, step, padding, _, ceil in [*POOLS, ((2, 3), (1, 2), (0, 1), 1, False)]:
        arguments = (*([v, v] if isinstance(v, int) else list(v) for v in (size, step, padding)), ceil, count_padding)
        y = F.avg_pool2d(x, *arguments, divisor)
        exact(lambda g, x: aten.avg_pool2d_backward(g, x, *arguments, divisor), gradient_like(y), x)  # noqa: B023
    if dtype.itemsize > 2:
        x = torch.randn(2, 3, 5, 6, 7, dtype=dtype)
        y = F.avg_pool3d(x, 3, 2, 1, True, count_padding, divisor)
        exact(lambda g, x: aten.avg_pool3d_backward(g, x, [3], [2], [1], True, count_padding, divisor),
              gradient_like(y), x)  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [(1, 1), (3, 4), (4, 3), (9, 8), (2, 5)])
def test_adaptive_pools(dtype, size):
    x = torch.randn(2, 3, 9, 8, dtype=torch.float64).to(dtype)
    exact(aten._adaptive_avg_pool2d_backward, gradient_like(F.adaptive_avg_pool2d(x, size)), x)
    y, indices = F.adaptive_max_pool2d(x, size, return_indices=True)
    exact(aten.adaptive_max_pool2d_backward, gradient_like(y), x, indices)
    if dtype.itemsize > 2:
        x = torch.randn(2, 5, 9, 8, dtype=dtype)
        exact(aten._adaptive_avg_pool3d_backward, gradient_like(F.adaptive_avg_pool3d(x, (2, *size))), x)
        y, indices = F.adaptive_max_pool3d(x, (2, *size), return_indices=True)
        exact(aten.adaptive_max_pool3d_backward, gradient_like(y), x, indices)


def test_adaptive_pools_with_more_windows_than_elements():
    x = torch.randn(2, 3, 3, 3)
    library(aten._adaptive_avg_pool2d_backward, gradient_like(F.adaptive_avg_pool2d(x, (5, 2))), x)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", ["upsample_nearest", "_upsample_nearest_exact"])
def test_nearest_neighbours(dtype, name):
    for rank, factors in ((1, (3,)), (2, (2, 3)), (2, (1, 4)), (3, (2, 1, 2))):
        inner = (5, 4, 3)[:rank]
        outer = [n * k for n, k in zip(inner, factors, strict=True)]
        backward = getattr(aten, f"{name}{rank}d_backward")
        g = torch.randn(2, 3, *outer, dtype=torch.float64).to(dtype)
        exact(lambda g: backward(g, outer, [2, 3, *inner], *[None] * rank), g)  # noqa: B023
        exact(lambda g: backward(g, outer, [2, 3, *inner], *map(float, factors)), g)  # noqa: B023
    uneven = getattr(aten, f"{name}1d_backward")
    library(lambda g: uneven(g, [7], [2, 3, 5], None), torch.randn(2, 3, 7))
    library(lambda g: uneven(g, [10], [2, 3, 5], 2.5), torch.randn(2, 3, 10))


@pytest.mark.parametrize("kind", ["reflection", "replication"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_margins(kind, dtype):
    for padding in ([2, 1], [0, 3], [1, 1, 1, 1], [1, 0, 0, 2], [1, 1, 0, 1, 1, 0]):
        rank = len(padding) // 2
        x = torch.randn(2, 3, *(5, 4, 6)[:rank], dtype=torch.float64).to(dtype)
        backward = getattr(aten, f"{kind}_pad{rank}d_backward")
        g = gradient_like(F.pad(x, padding, mode={"reflection": "reflect", "replication": "replicate"}[kind]))
        for inner in (x, x[0]):
            exact(lambda g, x: backward(g, x, padding), g if inner is x else g[0], inner)  # noqa: B023


def test_margins_that_are_wide_or_negative():
    x = torch.randn(2, 3, 9, 9)
    g = gradient_like(F.pad(x, [4] * 4, mode="replicate"))
    library(lambda g, x: aten.replication_pad2d_backward(g, x, [4] * 4), g, x)
    g = gradient_like(F.pad(x, [-1, 2, 0, 0], mode="replicate"))
    library(lambda g, x: aten.replication_pad2d_backward(g, x, [-1, 2, 0, 0]), g, x)


def test_sums_begin_at_zero_as_eagers_do():
    """The sum of nothing but -0.0 is then 0.0; a copy stays -0.0."""
    g = torch.full((1, 1, 4, 4), -0.0)
    for function in (
        lambda g: aten.avg_pool2d_backward(g, g.repeat(1, 1, 2, 2), [2, 2], [2, 2], [0, 0], False, True, None),
        lambda g: aten.upsample_nearest2d_backward(g, [4, 4], [1, 1, 2, 2], None, None),
        lambda g: aten.reflection_pad2d_backward(g, g[..., :3, :3], [1, 0, 0, 1]),
        lambda g: aten.unfold_backward(g, [1, 1, 8], 2, 4, 1)[..., :7],
        lambda g: aten.select_backward(g, [1, 1, 4, 4, 2], 4, 0),
    ):
        native(lambda g, function=function: function(g).signbit(), g)


def test_they_fuse_with_what_makes_the_gradient():
    x = torch.randn(2, 3, 8, 8)
    y, indices = F.max_pool2d(x, 2, return_indices=True)
    program = program_of(
        lambda g, x, i: aten.max_pool2d_with_indices_backward(g * 2, x, 2, 2, 0, 1, False, i) * x, y, x, indices
    )
    assert len(program.buffers) == 1


def test_windows_through_kernels():
    x = torch.randn(2, 3, 9, 8)
    y, indices = F.max_pool2d(x, 3, 2, 1, return_indices=True)

    def everything(g, x, i):
        return (
            aten.max_pool2d_with_indices_backward(g, x, 3, 2, 1, 1, False, i),
            aten.avg_pool2d_backward(g, x, [3, 3], [2, 2], [1, 1], False, False, None),
            aten._adaptive_avg_pool2d_backward(g[..., :3], x),
            aten.upsample_nearest2d_backward(x[:, :, :8], [8, 8], [2, 3, 4, 4], None, None),
            aten.reflection_pad2d_backward(x, x[:, :, 1:8, 2:7], [2, 1, 1, 1]),
            aten.unfold_backward(x, [2, 3, 16], 2, 8, 1),
            aten.slice_backward(x, [2, 3, 9, 20], 3, 1, 17, 2),
            aten.select_backward(x, [2, 3, 4, 9, 8], 2, -1),
        )

    for run in (kernels, interpreted):
        run(everything, y, x, indices, rtol=1e-6, atol=1e-6)
