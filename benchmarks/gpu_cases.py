"""The cases of the GPU benchmark as data: a function, its inputs, and what any program must move (Proposition 1.1)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from benchmarks.cases import CASES


@dataclass(frozen=True)
class GpuCase:
    """A function, the shapes of its inputs, the first of which has rows, and the elements any program must move. A case
    with ``labels`` takes an int64 number of a column for each row besides, and moves it."""

    name: str
    function: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    elements: int
    dtype: torch.dtype = torch.float32
    labels: bool = False

    @property
    def title(self) -> str:
        size = "x".join(map(str, self.shapes[0]))
        return f"{self.name} {size} {str(self.dtype).removeprefix('torch.')}"

    @property
    def least_bytes(self) -> int:
        return self.elements * self.dtype.itemsize + (8 * self.shapes[0][0] if self.labels else 0)

    def inputs(self, seed: int, device: str = "cuda") -> list[torch.Tensor]:
        generator = torch.Generator(device).manual_seed(seed)
        made = [torch.randn(s, generator=generator, device=device).to(self.dtype) for s in self.shapes]
        if self.labels:
            rows, columns = self.shapes[0]
            made.append(torch.randint(columns, (rows,), generator=generator, device=device))
        return made

    def head(self, inputs: list[torch.Tensor], rows: int = 512) -> list[torch.Tensor]:
        """The first rows of the inputs, in double precision; of a transposition, all."""
        if self.name == "transpose_add":
            return [t.double() for t in inputs]
        cut = [t[:rows] if t.shape[0] == inputs[0].shape[0] else t for t in inputs]
        return [t.double() if t.is_floating_point() else t for t in cut]


def from_table(name: str, size: tuple[int, int], dtype: torch.dtype = torch.float32) -> GpuCase:
    """A case of Tables 13.1 and 13.2 at a size of our own."""
    case = next(c for c in CASES if c.name == name)
    return GpuCase(name, case.function, (size,) * case.inputs, case.elements("compiled", size), dtype)


def transpose_add(n: int) -> GpuCase:
    """Example 6.1: one operand lies along rows, the other along columns."""
    return GpuCase("transpose_add", lambda x, y: x.t() + y, ((n, n), (n, n)), 3 * n * n)


def all_cases() -> list[GpuCase]:
    large = (65536, 2048)
    return [
        from_table("example_1_1", (8192, 2048)),
        from_table("example_1_1", large),
        from_table("example_1_1", (1 << 20, 128)),
        from_table("row_sum", large),
        from_table("row_sum", (16384, 8192)),
        from_table("row_amax", large),
        from_table("add", large),
        from_table("add", large, torch.bfloat16),
        from_table("relu", large),
        from_table("exp", large),
        from_table("pointwise_chain", large),
        transpose_add(16384),
        from_table("example_7_1", large),
        from_table("example_7_2", large),
        from_table("softmax_library", (16384, 1000)),
        from_table("softmax_five_operators", (16384, 1000)),
    ]


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(x, weight.shape, weight, bias)


def rms_norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt((x * x).mean(-1, keepdim=True) + 1e-6) * weight


def cross_entropy_rows(x: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.cross_entropy(x, labels, reduction="none")


def norm_case(size: tuple[int, int], dtype: torch.dtype = torch.float32) -> GpuCase:
    rows, columns = size
    return GpuCase("layer_norm", layer_norm, (size, (columns,), (columns,)), 2 * rows * columns + 2 * columns, dtype)


def rms_case(size: tuple[int, int], dtype: torch.dtype = torch.float32) -> GpuCase:
    rows, columns = size
    return GpuCase("rms_norm", rms_norm, (size, (columns,)), 2 * rows * columns + columns, dtype)


def cross_entropy_case(size: tuple[int, int]) -> GpuCase:
    rows, columns = size
    return GpuCase("cross_entropy_rows", cross_entropy_rows, (size,), rows * columns + rows, labels=True)


def fused_cases() -> list[GpuCase]:
    """Reductions that share a kernel with their neighbours (Sections 7 and 9.4): short rows, long ones, longest."""
    large = (65536, 2048)
    return [
        from_table("softmax_library", (16384, 1000)), from_table("softmax_five_operators", (16384, 1000)),
        from_table("softmax_library", (16384, 8192)), from_table("softmax_library", (4096, 32768)),
        from_table("softmax_library", (16384, 8192), torch.bfloat16), from_table("example_7_1", large),
        from_table("example_7_2", large), norm_case((65536, 1024)), norm_case((65536, 1024), torch.bfloat16),
        norm_case((4096, 16384)), rms_case((16384, 4096)), rms_case((65536, 1024), torch.bfloat16),
        cross_entropy_case((16384, 1000)), cross_entropy_case((4096, 32000)),
    ]  # fmt: skip


def moments_case(size: tuple[int, int]) -> GpuCase:
    rows, columns = size
    return GpuCase("var_mean", lambda x: torch.var_mean(x, -1), (size,), rows * columns + 2 * rows)


def three_orders_case(n: int) -> GpuCase:
    """Three orders of the dimensions of a cube in one expression, each adjacent in memory along another one."""
    cube = (n, n, n)
    return GpuCase("three_orders", lambda x, y, z: x.permute(2, 0, 1) * y.permute(1, 2, 0) + z, (cube,) * 3, 4 * n**3)


def gelu_backward(gradient: torch.Tensor, h: torch.Tensor) -> torch.Tensor:
    return torch.ops.aten.gelu_backward(gradient, h)


def more_cases() -> list[GpuCase]:
    """Scans along and across rows, GELU backward, three orders of dimensions, moments, few rows that are long, and an
    odd number of elements."""
    square = (16384, 8192)
    return [
        from_table("cumsum_rows", square), from_table("cumsum_columns", square), from_table("cummax_rows", square),
        from_table("gelu", (65536, 2048)),
        GpuCase("gelu_backward", gelu_backward, ((65536, 2048),) * 2, 3 * 65536 * 2048),
        three_orders_case(512), moments_case((4096, 32768)), norm_case((4096, 40000)),
        from_table("softmax_library", (128, 1 << 20)), from_table("example_7_1", (200, 1 << 18)),
        # Elements that no vector of four divides: every lane needs the mask of its own.
        from_table("add", (8191, 16385)), from_table("add", (8191, 16385), torch.bfloat16),
    ]  # fmt: skip


def every_case() -> list[GpuCase]:
    """All of them once."""
    found: dict[str, GpuCase] = {}
    for case in (*all_cases(), *fused_cases(), *more_cases()):
        found.setdefault(case.title, case)
    return list(found.values())


def small(case: GpuCase) -> GpuCase:
    """The case at sizes that an interpreter can run: equal extents stay equal, others different."""
    extents = sorted({extent for shape in case.shapes for extent in shape})
    smaller = {extent: 24 + 9 * place for place, extent in enumerate(extents)}
    return replace(case, shapes=tuple(tuple(smaller[extent] for extent in shape) for shape in case.shapes))
