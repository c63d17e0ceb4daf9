"""A scaled product of 8-bit floating-point matrices: a template alone, since no operator of the basis is one.

What ``torch._scaled_mm`` means, without its fast accumulation: products added in float32, times both scales, rounded
once to the dtype of the result.
"""

from __future__ import annotations

import re

import pytest
import torch

from staxlab.loops.ir import ComputedBuffer, InputBuffer, Layout, LoopProgram, OutputReference, ProductForm, Template
from staxlab.measure.rounding import gamma, unit_roundoff

pytest.importorskip("triton")

from staxlab.codegen.triton.compile import aot_compile
from staxlab.codegen.triton.interpreter import interpret
from tests.codegen.triton_support import kernels_of, layout_of

EIGHT = torch.float8_e4m3fn


def scaled_product(a: torch.Tensor, b: torch.Tensor, template: str) -> LoopProgram:
    """``(a @ b) * scale_a * scale_b`` in bfloat16; the scales are inputs of one element."""
    one = torch.ones((), dtype=torch.float32)
    places = {"a": layout_of(a), "b": layout_of(b), "scale_a": layout_of(one), "scale_b": layout_of(one)}

    def epilogue(ops, index, total):
        scaled = ops.mul(ops.mul(total, ops.load("scale_a", 0)), ops.load("scale_b", 0))
        return ops.to_dtype(scaled, torch.bfloat16)

    ranges = (a.shape[0], b.shape[1])
    data = Template(
        ranges, a.shape[1], torch.bfloat16, torch.float32,
        lambda ops, i: ops.load("a", places["a"].address(i)), lambda ops, i: ops.load("b", places["b"].address(i)),
        epilogue, frozenset({7}), ProductForm(template, EIGHT),
    )  # fmt: skip
    layout = Layout.contiguous(ranges, torch.bfloat16, "cuda")
    inputs = tuple(InputBuffer(name, place) for name, place in places.items())
    return LoopProgram(inputs, (ComputedBuffer("buf0", layout, data),), (OutputReference("buf0", layout),))


def operands(rows: int, depth: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(rows + depth)
    a = torch.randn(rows, depth, generator=generator).to(EIGHT)
    return a, torch.randn(columns, depth, generator=generator).to(EIGHT).t()


@pytest.mark.parametrize("sizes", [(32, 64, 48), (33, 80, 17), (100, 33, 65)], ids=str)
@pytest.mark.parametrize("template", ["tiled", "persistent-tma"])
def test_values(template, sizes):
    rows, depth, columns = sizes
    a, b = operands(rows, depth, columns)
    (kernel,) = kernels_of(scaled_product(a, b, template))
    assert kernel.launch["form"] == (template if depth % 16 == 0 else "tiled")
    scales = torch.tensor(0.5), torch.tensor(3.0)
    out = torch.full((rows, columns), 77.0, dtype=torch.bfloat16)
    given = {"a": a, "b": b, "scale_a": scales[0], "scale_b": scales[1], "buf0": out}
    interpret(kernel, [given[argument.buffer] for argument in kernel.arguments])
    exact = 1.5 * (a.double() @ b.double())
    bound = 1.5 * gamma(depth + 3) * (a.double().abs() @ b.double().abs())
    bound = bound + unit_roundoff(torch.bfloat16) * (exact.abs() + bound)
    assert bool(((out.double() - exact).abs() <= bound).all())


@pytest.mark.parametrize("template", ["tiled", "persistent-tma"])
def test_the_matrix_units_take_8_bit_numbers_and_accumulate_in_float32(template):
    """The sums of an instruction leave the units' own, narrower accumulators before the next one's are added."""
    a, b = operands(512, 512, 512)
    (kernel,) = kernels_of(scaled_product(a, b, template))
    assert "max_num_imprecise_acc=32" in kernel.source
    ptx = aot_compile(kernel)["ptx"]
    assert re.search(r"wgmma\.mma_async\S*\.e4m3\.e4m3", ptx) and not re.search(r"(ld|st)\.local", ptx)
    assert re.search(r"add\.(rn\.)?f32", ptx)
    assert bool(re.search(r"cp\.async\.bulk\.tensor", ptx)) == (template == "persistent-tma")
