"""The kernel forms of Sections 9.2 to 9.4, executed by Triton's interpreter and compared with PyTorch."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton")

from staxlab.codegen.triton import tiling
from staxlab.codegen.triton.launch import configured
from staxlab.errors import CodegenError
from staxlab.loops.expressions import ZERO
from staxlab.options import Options
from staxlab.schedule.dependencies import schedule
from tests.codegen.triton_support import (
    SM90,
    example_1_1,
    example_6_1,
    interpret_program,
    kernels_of,
    program,
    read,
)


def test_example_1_1_is_one_persistent_kernel_with_its_sizes_folded():
    (kernel,) = kernels_of(example_1_1())
    source = kernel.source
    assert kernel.launch["form"] == "persistent" and kernel.name.startswith("triton_per")
    assert "xnumel = 64" in source and "r0_numel = 128" in source
    assert "R0_BLOCK: tl.constexpr = 128" in source
    assert "r0_mask" not in source  # 128 fills the block exactly
    assert "tl.maximum(0, tmp2, tl.PropagateNan.ALL)" in source
    assert source.count("tl.load(") == 2 and source.count("tl.store(") == 1
    assert (kernel.bytes_read, kernel.bytes_written) == (2 * 64 * 128 * 4, 64 * 4)


def test_lines_carry_the_origin_of_the_operation_they_perform():
    (kernel,) = kernels_of(example_1_1())
    by_text = {line.text.strip(): line.origins for line in kernel.lines}
    origin = lambda part: next(o for text, o in by_text.items() if part in text)  # noqa: E731
    assert origin("# add") == {2}
    assert origin("# relu") == {3}
    assert origin("# mul") == {4}
    assert origin("tl.sum") == {99}
    assert origin("tl.store") == {99}
    assert origin("xindex = ") == kernel.origins == {0, 1, 2, 3, 4, 99}


@pytest.mark.parametrize(("rows", "columns"), [(64, 128), (7, 100), (3, 1), (1, 1000), (5, 1500), (2, 5000)])
def test_example_1_1_agrees_with_eager(rows, columns):
    x, w = torch.randn(rows, columns), torch.randn(rows, columns)
    x[0, 0] = float("nan")
    got = interpret_program(example_1_1(rows, columns), {"x": x, "w": w})
    torch.testing.assert_close(got, (torch.relu(x + w) * 2).sum(-1), equal_nan=True)


def test_example_6_1_is_two_dimensional_and_right():
    (kernel,) = kernels_of(example_6_1())
    assert "ynumel = 256" in kernel.source and "xnumel = 512" in kernel.source
    assert "tl.program_id(1) * YBLOCK" in kernel.source
    assert "in_ptr0 + (256*x1 + y0)" in kernel.source and "in_ptr1 + (x1 + 512*y0)" in kernel.source
    assert kernel.launch["grid"][1] > 1
    (decision,) = [d for d in kernel.decisions if d.topic == "tiling"]
    assert decision.choice == "2-D"
    x, y = torch.randn(40, 70), torch.randn(70, 40)
    assert torch.equal(interpret_program(example_6_1(70, 40), {"x": x, "y": y}), x.t() + y)


def three_orders(a: int, b: int, c: int):
    """``x.permute(2, 0, 1) * y.permute(1, 2, 0) + z``, z of shape [a, b, c]: each operand steps by one along a loop of
    its own."""
    tensors = {"x": torch.randn(b, c, a), "y": torch.randn(c, a, b), "z": torch.randn(a, b, c)}

    def compute(ops, i):
        x, y = ops.load("x", a * c * i[1] + a * i[2] + i[0]), ops.load("y", a * b * i[2] + b * i[0] + i[1])
        return ops.add(ops.mul(x, y), ops.load("z", b * c * i[0] + c * i[1] + i[2]))

    expected = tensors["x"].permute(2, 0, 1) * tensors["y"].permute(1, 2, 0) + tensors["z"]
    return program(tensors, (a, b, c), compute, torch.float32), tensors, expected


def test_three_orders_of_dimensions_make_a_box():
    """Every access is coalesced, which no rectangle achieves."""
    p, tensors, expected = three_orders(20, 33, 17)
    (kernel,) = kernels_of(p)
    (decision,) = [d for d in kernel.decisions if d.topic == "tiling"]
    assert decision.choice == "3-D" and "box" in decision.reason
    scores = dict(decision.inputs)
    whole = scores["bytes coalesced by i0 x i1 x i2"]
    assert whole == 4 * 4 * 20 * 33 * 17 > max(v for title, v in scores.items() if title.count(" x ") < 2)
    for prefix, numel in (("z", 20), ("y", 33), ("x", 17)):
        assert f"{prefix}numel = {numel}" in kernel.source
    assert kernel.source.count("[:, None, None]") == kernel.source.count("[None, None, :]") == 1
    assert "tl.program_id(2) * ZBLOCK" in kernel.source and min(kernel.launch["grid"]) > 1
    assert torch.equal(interpret_program(p, tensors), expected)


@pytest.mark.parametrize("extents", [(7, 40, 40), (40, 7, 40), (40, 40, 7), (3, 3, 3), (1, 30, 30), (0, 9, 9)])
def test_a_box_whose_edges_would_be_thin_stays_a_rectangle(extents):
    p, tensors, expected = three_orders(*extents)
    (kernel,) = kernels_of(p)
    assert "ZBLOCK" not in kernel.source
    assert torch.equal(interpret_program(p, tensors), expected)


def test_a_box_of_more_instances_than_a_grid_has_stays_a_rectangle():
    p, *_ = three_orders(8, 8, 8)
    scheduled = schedule(p, SM90, Options())
    loops = scheduled.nodes[0].body.indices
    assert (1, 2) in list(tiling._cuts(loops, dict.fromkeys(loops, 8)))
    assert (1, 2) not in list(tiling._cuts(loops, dict.fromkeys(loops, 8) | {loops[0]: 1 << 20}))
    with pytest.raises(CodegenError, match="grid"):
        form = tiling.choose_form(scheduled, scheduled.nodes[0])
        object.__setattr__(form.space.dims[0], "extents", (70000,))
        configured(form, "op0", 4, SM90, {"ZBLOCK": 1, "YBLOCK": 8, "XBLOCK": 8}, 1)


def test_aligned_accesses_need_one_dimension():
    x, y = torch.randn(24, 36), torch.randn(36)
    tensors = {"x": x, "y": y}
    p = program(
        tensors, (24, 36), lambda ops, i: ops.mul(read(ops, tensors, "x", i), read(ops, tensors, "y", i)), torch.float32
    )
    (kernel,) = kernels_of(p)
    (decision,) = [d for d in kernel.decisions if d.topic == "tiling"]
    assert decision.choice == "1-D"
    assert torch.equal(interpret_program(p, tensors), x * y)


@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3, 4), (0,), (3, 0, 2)])
def test_pointwise_of_any_shape(shape):
    x = torch.randn(shape)
    p = program({"x": x}, shape, lambda ops, i: ops.neg(read(ops, {"x": x}, "x", i)), torch.float32)
    assert torch.equal(interpret_program(p, {"x": x}), -x)


@pytest.mark.parametrize("shape", [(), (4,)])
def test_truth_values_of_a_single_element_spread_over_a_block(shape):
    x, y = torch.tensor(2.0), torch.randn(shape)
    tensors = {"x": x, "y": y}

    def compute(ops, i):
        one = ops.load("x", ZERO)
        positive = ops.gt(one, ops.constant(0.0, torch.float32))
        return ops.logical_and(positive, ops.isnan(ops.mul(one, read(ops, tensors, "y", i))))

    p = program(tensors, shape, compute, torch.bool)
    assert torch.equal(interpret_program(p, tensors), (x > 0) & (x * y).isnan())


def test_strided_and_broadcast_inputs_and_a_permuted_output():
    from staxlab.loops.ir import Layout

    base = torch.randn(6, 8, 10)
    tensors = {"a": base[::2, :, 1:9:2], "b": torch.randn(8, 1), "c": base.permute(2, 1, 0)[:4, :, :3].permute(2, 1, 0)}

    def compute(ops, i):
        total = ops.add(read(ops, tensors, "a", i), read(ops, tensors, "b", i))
        return ops.mul(total, read(ops, tensors, "c", i))

    output = Layout((3, 8, 4), (1, 12, 3), torch.float32, "cuda")
    p = program(tensors, (3, 8, 4), compute, torch.float32, output=output)
    expected = (tensors["a"] + tensors["b"]) * tensors["c"]
    assert torch.equal(interpret_program(p, tensors), expected)


@pytest.mark.parametrize("kind", ["sum", "prod", "amax", "amin", "argmax", "argmin"])
@pytest.mark.parametrize(("rows", "columns"), [(6, 32), (5, 33), (3, 1030), (2, 2500), (2, 5200)])
def test_reductions_along_rows(kind, rows, columns):
    x = torch.randn(rows, columns)
    x[1, 7] = x[1, columns - 1] = float("nan")
    x[-1] = 0.5  # all tied: the first position wins
    got, expected = _reduce(x, kind, 1)
    torch.testing.assert_close(got, expected, equal_nan=True, rtol=2e-5, atol=1e-5)


@pytest.mark.parametrize("kind", ["sum", "amax", "argmin"])
@pytest.mark.parametrize("rows", [17, 64, 100])
def test_reductions_across_rows(kind, rows):
    x = torch.randn(rows, 40)
    x[3, 5] = float("nan")
    got, expected = _reduce(x, kind, 0)
    torch.testing.assert_close(got, expected, equal_nan=True, rtol=2e-5, atol=1e-5)


def _reduce(x: torch.Tensor, kind: str, dim: int):
    other = 1 - dim

    def compute(ops, i, r):
        index = (i[0], r[0]) if dim == 1 else (r[0], i[0])
        return read(ops, {"x": x}, "x", index)

    position = kind in ("argmax", "argmin")
    dtype = torch.int64 if position else x.dtype
    p = program(
        {"x": x}, (x.shape[other],), compute, dtype, kind=kind, reduction_ranges=(x.shape[dim],), accumulate=x.dtype
    )
    return interpret_program(p, {"x": x}), getattr(torch, kind)(x, dim)


# Bools are summed and searched as int64, by the lowering rules as by PyTorch.
WHOLE = [
    (kind, dtype)
    for kind in ("sum", "prod", "amax", "amin", "argmax", "argmin", "any", "all")
    for dtype in (torch.int64, torch.int32, torch.int16, torch.uint8, torch.bool)
    if dtype != torch.bool or kind in ("amax", "amin", "any", "all")
]


@pytest.mark.parametrize(("kind", "dtype"), WHOLE)
@pytest.mark.parametrize("columns", [13, 1100, 4200])
def test_integer_and_bool_reductions(dtype, kind, columns):
    if dtype == torch.bool:
        x = torch.rand(4, columns) > torch.tensor([[0.5], [0.0], [1.0], [0.99]])
    elif dtype == torch.uint8:
        x = torch.randint(0, 255, (4, columns), dtype=dtype)
    else:
        x = torch.randint(-100, 100, (4, columns), dtype=dtype)
    accumulate = torch.bool if kind in ("any", "all") else torch.int64 if kind in ("sum", "prod") else dtype
    stored = torch.int64 if kind in ("argmax", "argmin") else accumulate

    def compute(ops, i, r):
        return ops.to_dtype(read(ops, {"x": x}, "x", (i[0], r[0])), accumulate)

    p = program({"x": x}, (4,), compute, stored, kind=kind, reduction_ranges=(columns,), accumulate=accumulate)
    expected = x.prod(1) if kind == "prod" else getattr(x, kind)(1)
    if kind in ("any", "all"):
        expected = expected.bool()
    assert torch.equal(interpret_program(p, {"x": x}), expected)


@pytest.mark.parametrize(("kind", "value"), [("sum", 0.0), ("prod", 1.0)])
def test_reducing_nothing_yields_the_neutral_element(kind, value):
    x = torch.randn(5, 0)
    got, expected = _reduce(x, kind, 1)
    assert torch.equal(got, expected) and torch.equal(got, torch.full((5,), value))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32_and_rounded_once(dtype):
    x, y = torch.randn(300).to(dtype), torch.randn(300).to(dtype)
    tensors = {"x": x, "y": y}

    def compute(ops, i):
        product = ops.mul(ops.load("x", i[0]), ops.load("y", i[0]))
        return ops.add(product, ops.constant(1.0, torch.float32))

    got = interpret_program(program(tensors, (300,), compute, dtype), tensors)
    assert torch.equal(got, (x.float() * y.float() + 1.0).to(dtype))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_reductions_accumulate_in_float32(dtype):
    x = torch.randn(4, 4500).to(dtype)
    p = program(
        {"x": x}, (4,), lambda ops, i, r: read(ops, {"x": x}, "x", (i[0], r[0])), dtype,
        kind="sum", reduction_ranges=(4500,), accumulate=torch.float32,
    )  # fmt: skip
    torch.testing.assert_close(interpret_program(p, {"x": x}), x.float().sum(1).to(dtype))


def test_reduction_over_several_loops_that_do_not_merge():
    x = torch.randn(6, 5, 7, 4)

    def compute(ops, i, r):
        return read(ops, {"x": x}, "x", (r[0], i[0], r[1], i[1]))

    p = program({"x": x}, (5, 4), compute, torch.float32, kind="sum", reduction_ranges=(6, 7), accumulate=torch.float32)
    torch.testing.assert_close(interpret_program(p, {"x": x}), x.sum((0, 2)))


def test_a_value_that_does_not_depend_on_the_reduction_is_computed_before_its_loop():
    x, scale = torch.randn(3, 8192), torch.randn(3)
    tensors = {"x": x, "scale": scale}

    def compute(ops, i, r):
        factor = ops.exp(ops.load("scale", i[0]))
        return ops.mul(read(ops, tensors, "x", (i[0], r[0])), factor)

    p = program(tensors, (3,), compute, torch.float32, kind="sum", reduction_ranges=(8192,), accumulate=torch.float32)
    (kernel,) = kernels_of(p)
    lines = kernel.source.splitlines()
    loop = next(k for k, line in enumerate(lines) if "for r0_offset" in line)
    assert next(k for k, line in enumerate(lines) if "libdevice.exp(" in line) < loop
    torch.testing.assert_close(interpret_program(p, tensors), (x * scale.exp()[:, None]).sum(1), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", ["sum", "prod", "amax", "amin", "argmax", "argmin"])
@pytest.mark.parametrize("shape", [(3, 1025), (2, 2048), (1, 4096), (5, 100), (12, 120)])
def test_a_row_held_whole_gives_the_values_of_the_loop_of_one_step(kind, shape):
    """Bit for bit the values of the kernel that walks the same block in a loop which runs once."""
    along = int(shape[1] > 1000)  # lanes along rows, or few rows with lanes across them
    x = torch.randn(shape if along else shape[::-1])
    x[1 % len(x), 3] = float("nan")
    rows, length = shape

    def compute(ops, i, r):
        return read(ops, {"x": x}, "x", (i[0], r[0]) if along else (r[0], i[0]))

    position = kind in ("argmax", "argmin")
    p = program(
        {"x": x}, (rows,), compute, torch.int64 if position else torch.float32, kind=kind, reduction_ranges=(length,),
        accumulate=torch.float32,
    )  # fmt: skip
    (kernel,) = kernels_of(p)
    assert kernel.launch["form"] == "persistent" and "for r0_offset" not in kernel.source
    whole = interpret_program(p, {"x": x})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiling, "longest_step", lambda rows, inner, scans: 0)  # by the rule alone
        (looped,) = kernels_of(p)
        assert "for r0_offset" in looped.source
        assert looped.launch["constants"]["R0_BLOCK"] >= length
        once = interpret_program(p, {"x": x})
    assert torch.equal(whole.view(torch.int32), once.view(torch.int32))


def test_interpretation_leaves_triton_as_it_was():
    import triton.language as tl
    from triton.runtime.jit import JITFunction

    def state():
        owners = (tl, tl.core, tl.math, tl.core.tensor, tl.core.dtype, JITFunction)
        return [{k: id(v) for k, v in vars(owner).items()} for owner in owners]

    before = state()
    interpret_program(example_1_1(2, 4500), {"x": torch.randn(2, 4500), "w": torch.randn(2, 4500)})
    assert state() == before
