"""Launch configurations, forms and cache advice: decisions with their reasons, checked on what they must guarantee."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from staxlab.codegen.triton.generate import triton_kernel
from staxlab.codegen.triton.launch import Work, bytes_in_flight_wanted, choose_launch
from staxlab.codegen.triton.tiling import choose_form
from staxlab.loops.expressions import ZERO, Expr
from staxlab.loops.ir import ComputedBuffer, InputBuffer, Layout, LoopProgram, OutputReference, Pointwise, Reduction
from staxlab.options import GPU_SPECS, Options
from staxlab.schedule.dependencies import schedule
from tests.codegen.triton_support import SM90, example_1_1, example_6_1, kernels_of, program, read


def configuration(p, device=SM90):
    scheduled = schedule(p, device, Options())
    form = choose_form(scheduled, scheduled.nodes[0])
    return form, choose_launch(form, "op0", Work(4), device)


@given(st.integers(1, 200_000), st.integers(1, 9000))
def test_grids_cover_every_point_and_blocks_are_powers_of_two(rows, columns):
    form, launch = configuration(example_1_1(rows, columns))
    for size in launch.blocks.values():
        assert size & (size - 1) == 0
    assert launch.grid[0] * launch.blocks["XBLOCK"] >= rows > (launch.grid[0] - 1) * launch.blocks["XBLOCK"]
    if form.kind == "persistent":
        assert columns <= launch.blocks["R0_BLOCK"] < 2 * columns or columns == 1
    assert 1 <= launch.num_warps <= 16 and 32 * launch.num_warps <= 1024


@given(st.integers(1, 300_000), st.integers(1, 3000))
def test_rectangles_cover_every_point(rows, columns):
    form, launch = configuration(example_6_1(rows, columns))
    x, y, z = launch.grid
    if len(form.space.dims) == 2:
        assert x * launch.blocks["XBLOCK"] >= columns and y * z * launch.blocks["YBLOCK"] >= rows
        assert y <= 65535


def summed(rows, columns, along):
    """A matrix summed along its rows (``along`` 1) or down its columns."""
    x = torch.empty(rows, columns)

    def compute(ops, i, r):
        return read(ops, {"x": x}, "x", (i[0], r[0]) if along else (r[0], i[0]))

    kept, reduced = (x.shape[1 - along],), (x.shape[along],)
    return program({"x": x}, kept, compute, torch.float32, kind="sum", reduction_ranges=reduced)


@pytest.mark.parametrize(
    ("rows", "columns", "along", "kind"),
    [
        (64, 1024, 1, "persistent"), (64, 2048, 1, "persistent"), (64, 4096, 1, "persistent"), (64, 4097, 1, "looped"),
        (64, 64, 0, "persistent"), (65, 64, 0, "looped"), (256, 5, 0, "persistent"), (300, 5, 0, "looped"),
    ],
)  # fmt: skip
def test_the_persistent_limit_depends_on_the_direction(rows, columns, along, kind):
    form, _ = configuration(summed(rows, columns, along))
    assert form.kind == kind and form.inner == bool(along)


@given(st.integers(1, 200_000), st.integers(1, 9000), st.booleans())
def test_a_loop_runs_more_than_once_and_the_decision_says_what_the_block_does(rows, columns, along):
    form, launch = configuration(summed(rows, columns, int(along)))
    (decision,) = [d for d in form.decisions if d.topic == "persistent-reduction"]
    length, block = (columns if along else rows), launch.blocks["R0_BLOCK"]
    facts = dict(decision.inputs)
    assert decision.choice == form.kind
    if form.kind == "looped":
        assert length > block
        assert block <= facts["longest step"] < length
        assert f"at most {facts['longest step']}" in decision.reason
    else:
        assert length <= block
        assert length <= max(facts["limit of the rule"], facts["longest step"])
        assert ("within" in decision.reason) == (length <= facts["limit of the rule"])
    assert "does not fit into the registers" not in decision.reason


@pytest.mark.parametrize(("step", "kind"), [(1024, "looped"), (2048, "persistent"), (4096, "persistent")])
def test_a_block_given_by_hand_never_leaves_out_part_of_a_row(step, kind):
    scheduled = schedule(example_1_1(64, 2048), SM90, Options())
    configured = ({"XBLOCK": 1, "R0_BLOCK": step}, 4, 1)
    kernel = triton_kernel(scheduled, scheduled.nodes[0], "_0", SM90, configured)
    assert kernel.launch["form"] == kind
    assert ("tl.range(0, r0_numel, R0_BLOCK)" in kernel.source) == (kind == "looped")


def test_the_index_width_tells_subscripts_from_the_room_for_lanes():
    form, _ = configuration(summed(8, 8, 1))
    (decision,) = [d for d in form.decisions if d.topic == "index-width"]
    facts = dict(decision.inputs)
    assert facts["largest subscript"] == 63
    assert facts["points along a dimension"] == 8
    assert "subscripts reach 63" in decision.reason and str(facts["room for lanes"]) in decision.reason
    assert "hangs over the edge" in decision.reason


def test_every_kernel_says_why():
    (kernel,) = kernels_of(example_1_1())
    topics = {decision.topic: decision for decision in kernel.decisions}
    assert set(topics) == {"reduction-direction", "persistent-reduction", "index-width", "launch"}
    assert all(decision.reason and decision.inputs for decision in topics.values())


def test_littles_law_of_the_chapter():
    """600 ns at 3.35 TB/s over 132 multiprocessors: about 15 KB each."""
    assert 15_000 <= bytes_in_flight_wanted(GPU_SPECS["sm_90"]) <= 15_500
    assert bytes_in_flight_wanted(replace(SM90, nominal_bandwidth=0.0)) > 0


def test_large_problems_fill_the_memory_system():
    for p in (example_1_1(65536, 2048), example_1_1(1 << 20, 128), example_6_1(8192, 8192)):
        _, launch = configuration(p)
        assert "cover" in launch.decision.reason


def chain(n: int):
    """A pointwise node whose result a second one reads, together with the first one's input."""
    layout = Layout.contiguous((n,), torch.float32, "cuda")

    def first(ops, i):
        return ops.exp(ops.load("x", i[0]))

    def second(ops, i):
        return ops.add(ops.load("buf0", i[0]), ops.load("x", i[0]))

    buffers = (
        ComputedBuffer("buf0", layout, Pointwise((n,), torch.float32, first)),
        ComputedBuffer("buf1", layout, Pointwise((n,), torch.float32, second)),
    )
    return LoopProgram((InputBuffer("x", layout),), buffers, (OutputReference("buf1", layout),))


def test_only_what_nothing_reads_again_leaves_the_cache_first():
    first, second = kernels_of(chain(1 << 26), fuse=False)
    assert "evict" not in first.source  # x and buf0 are read by the second kernel
    assert second.source.count("evict_first") == 3  # two loads, and the store of the region's output
    assert all("evict" not in kernel.source for kernel in kernels_of(chain(1 << 10)))


def test_what_every_row_reads_stays_longest():
    x, weight = torch.empty(64, 512), torch.empty(512)
    tensors = {"x": x, "weight": weight}

    def compute(ops, i, r):
        return ops.mul(read(ops, tensors, "x", (i[0], r[0])), ops.load("weight", r[0]))

    (kernel,) = kernels_of(program(tensors, (64,), compute, torch.float32, kind="sum", reduction_ranges=(512,)))
    loads = {line.text.split("# ")[-1]: line.text for line in kernel.lines if "tl.load(" in line.text}
    assert "evict_first" in loads["x"] and "evict_last" in loads["weight"]


def hints(p) -> dict[str, str]:
    """The advice of each load of the only kernel, by the name of what it loads."""
    (kernel,) = kernels_of(p)
    loads = [line.text for line in kernel.lines if "tl.load(" in line.text]
    return {text.split("# ")[-1]: "".join(re.findall(r"evict_\w+", text)) for text in loads}


def broadcast(rows: int, columns: int):
    """``x * weight + scale`` over [rows, columns], weight of [columns] and scale of one element."""
    tensors = {"x": torch.empty(rows, columns), "weight": torch.empty(columns), "scale": torch.empty(1)}

    def compute(ops, i):
        product = ops.mul(read(ops, tensors, "x", i), ops.load("weight", i[1]))
        return ops.add(product, ops.load("scale", ZERO))

    return program(tensors, (rows, columns), compute, torch.float32)


def test_a_vector_that_every_row_of_a_large_matrix_meets_stays_longest():
    """Along one dimension of a block all subscripts vary; what counts is how many elements there are."""
    assert hints(broadcast(1 << 16, 2048)) == {"x": "evict_first", "weight": "evict_last", "scale": ""}
    assert set(hints(broadcast(64, 2048)).values()) == {""}  # all of it fits into the cache


def test_what_would_fill_the_cache_is_not_asked_to_stay():
    rows, columns = 1 << 12, 1 << 14  # of the matrix that is repeated, 256 MiB

    def compute(ops, i, r):
        index = columns * i[1] + r[0]
        return ops.mul(ops.load("x", rows * columns * i[0] + index), ops.load("matrix", index))

    sizes = {"x": 8 * rows * columns, "matrix": rows * columns}
    tensors = {name: torch.empty(size, device="meta") for name, size in sizes.items()}
    p = program(tensors, (8, rows), compute, torch.float32, kind="sum", reduction_ranges=(columns,))
    assert hints(p) == {"x": "evict_first", "matrix": ""}


def test_neighbours_and_gathered_elements_are_left_to_the_cache():
    n = 1 << 26
    tensors = {"x": torch.empty(n + 1, device="meta"), "k": torch.empty(n, dtype=torch.int64, device="meta")}

    def neighbours(ops, i):
        return ops.add(ops.load("x", i[0]), ops.load("x", i[0] + 1))

    def gathered(ops, i):
        return ops.load("x", ops.indirect(ops.load("k", i[0]), Expr.of(n)))

    def windows(ops, i, r):
        return ops.load("x", i[0] + r[0])

    assert hints(program(tensors, (n,), neighbours, torch.float32)) == {"x": ""}
    assert hints(program(tensors, (n,), gathered, torch.float32)) == {"k": "evict_first", "x": ""}
    p = program(tensors, (n - 10,), windows, torch.float32, kind="sum", reduction_ranges=(10,))
    assert hints(p) == {"x": ""}  # each element is read ten times, by neighbours


def test_a_reduction_leaves_in_the_cache_what_the_next_kernel_reads():
    layout, rows = Layout.contiguous((64, 512), torch.float32, "cuda"), Layout.contiguous((64,), torch.float32, "cuda")

    def total(ops, i, r):
        return ops.load("x", 512 * i[0] + r[0])

    def divide(ops, i):
        return ops.truediv(ops.load("x", 512 * i[0] + i[1]), ops.load("buf0", i[0]))

    buffers = (
        ComputedBuffer("buf0", rows, Reduction((64,), (512,), "sum", torch.float32, torch.float32, total)),
        ComputedBuffer("buf1", layout, Pointwise((64, 512), torch.float32, divide)),
    )
    program = LoopProgram((InputBuffer("x", layout),), buffers, (OutputReference("buf1", layout),))
    first, _ = kernels_of(program, fuse=False)
    assert "evict_first" not in first.source
