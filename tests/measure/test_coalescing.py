"""Sectors of warps: layouts by hand, addresses against the schedule's subscripts, widths against the PTX."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import staxlab
from staxlab.codegen.triton.addresses import accesses, shape_and_layout
from staxlab.codegen.triton.layouts import Layouts
from staxlab.codegen.triton.tiling import choose_form
from staxlab.errors import CodegenError, OptionError
from staxlab.measure.coalescing import (
    Instruction,
    coalescing,
    compare_tilings,
    instruction_widths,
    one_dimensional,
    sampled_programs,
)
from staxlab.options import Options
from staxlab.schedule.dependencies import schedule
from staxlab.view.registry import panes_of
from tests.codegen.triton_support import SM90, example_1_1, example_6_1, kernels_of, program

pytest.importorskip("triton")

from staxlab.codegen.triton.compile import aot_compile

E = torch.empty
PROGRAMS = {
    "two rows of a reduction": (lambda x, w: (torch.relu(x + w) * 2).sum(-1), (E(64, 128), E(64, 128))),
    "a transposed operand": (lambda x, y: x.t() + y, (E(512, 256), E(256, 512))),
    "a long row": (lambda x: x.sum(-1), (E(512, 8192),)),
    "a long row that ends inside a step": (lambda x: x.sum(-1), (E(512, 8190),)),
    "an odd row": (lambda x: x.sum(-1), (E(512, 333),)),
    "columns": (lambda x: x.sum(0), (E(4096, 1000),)),
    "softmax": (lambda x: F.softmax(x, -1), (E(64, 8192),)),
    "an odd number": (lambda x: x * 2, (E(1001),)),
    "half precision": (lambda x: x * 2, (E(4096, dtype=torch.bfloat16),)),
    "truth values": (lambda x: ~x, (torch.ones(4096, dtype=torch.bool),)),
    "whole numbers": (lambda x: x + 1, (torch.zeros(4098, dtype=torch.int64),)),
    "double precision": (lambda x: x.sum(0), (E(300, 50, dtype=torch.float64),)),
    "every second": (lambda x: x[:, ::2] + 1, (E(64, 512),)),
    "a row for all rows": (lambda x, b: x + b, (E(64, 500), E(500))),
    "two tensors in one": (lambda x, y: torch.cat([x, y], 1), (E(64, 500), E(64, 12))),
    "a scan": (lambda x: x.cumsum(-1), (E(64, 512),)),
    "a position": (lambda x: x.argmax(-1), (E(64, 512),)),
}  # fmt: skip


def kernels(name):
    function, inputs = PROGRAMS[name]
    return [k for k in staxlab.explain(function, *inputs, target="sm_90").kernels if k.language == "triton"]


# --- Layouts ----------------------------------------------------------------------------------------------------------

BLOCKED = (
    "#blocked = #ttg.blocked<{sizePerThread = [1, 4], threadsPerWarp = [4, 8], warpsPerCTA = [4, 1], order = [1, 0]}>\n"
    "#small = #ttg.blocked<{sizePerThread = [2], threadsPerWarp = [32], warpsPerCTA = [4], order = [0]}>\n"
    "#linear = #ttg.linear<{register = [[0, 1], [4, 0]], lane = [[0, 2], [0, 4], [0, 8], [1, 0], [2, 0]], "
    "warp = [], block = []}>\n"
)


def test_a_blocked_layout_by_hand():
    """Lane 9 is the second of the second row of lanes: its first element is (1, 4); warp 2 begins at row 8."""
    placed = Layouts(BLOCKED, 4).placement("#blocked", (16, 32)).coordinates
    assert placed.shape == (4, 32, 4, 2)
    assert placed[0, 0].tolist() == [[0, 0], [0, 1], [0, 2], [0, 3]]
    assert placed[0, 9].tolist() == [[1, 4], [1, 5], [1, 6], [1, 7]]
    assert placed[2, 31, 3].tolist() == [11, 31]


def test_a_larger_block_gives_threads_more_registers_and_a_smaller_one_more_holders():
    layouts = Layouts(BLOCKED, 4)
    larger = layouts.placement("#blocked", (32, 64)).coordinates
    assert larger.shape == (4, 32, 16, 2)
    assert larger[0, 0, 4].tolist() == [0, 32] and larger[0, 0, 8].tolist() == [16, 0]
    smaller = layouts.placement("#small", (64,)).coordinates  # 256 elements fit: four threads hold each
    assert smaller.shape == (4, 32, 2, 1) and (smaller[0] == smaller[3]).all()
    assert smaller[0, 5].ravel().tolist() == [10, 11]


def test_a_slice_and_a_linear_layout_by_hand():
    layouts = Layouts(BLOCKED, 4)
    rows = layouts.placement("#ttg.slice<{dim = 1, parent = #blocked}>", (16,)).coordinates
    assert rows.shape == (4, 32, 1, 1) and rows[1, 9, 0, 0] == 5
    linear = Layouts(BLOCKED, 1).placement("#linear", (8, 16)).coordinates
    assert linear[0, 0].tolist() == [[0, 0], [0, 1], [4, 0], [4, 1]] and linear[0, 11].tolist()[3] == [5, 7]


def test_other_layouts_are_refused():
    with pytest.raises(CodegenError, match="not read here"):
        Layouts("", 4).placement("#ttg.nvidia_mma<{versionMajor = 3}>", (16, 16))


def test_types():
    assert shape_and_layout("tensor<32x1xi32, #blocked>") == ((32, 1), "#blocked")
    assert shape_and_layout("tensor<128x!tt.ptr<f32>, #ttg.slice<{dim = 0, parent = #b}>>") == (
        (128,), "#ttg.slice<{dim = 0, parent = #b}>",
    )  # fmt: skip
    assert shape_and_layout("!tt.ptr<f32>") == ((), "")


# --- Addresses --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_every_element_of_a_block_is_held_and_every_access_is_found(name):
    for kernel in kernels(name):
        text = aot_compile(kernel)["ttgir"]
        layouts = Layouts(text, kernel.launch["num_warps"])
        found = accesses(kernel, text)
        assert {a.argument for a in found} == {a.name for a in kernel.arguments}
        for access in found:
            positions = layouts.placement(access.layout, access.shape).flat(access.shape)
            assert set(positions.ravel().tolist()) == set(range(int(np.prod(access.shape))))
            assert (
                access.line
                and ("tl.load" if access.role == "read" else "tl.store") in kernel.lines[access.line - 1].text
            )


def subscripts(made, kernel, program_id):
    """(role, buffer) -> the set of offsets that the schedule's subscripts give for the points of one instance."""
    (node,) = made.nodes
    space = choose_form(made, node).space
    blocks = dict(kernel.launch["constants"])
    axes = []
    for dim in space.dims:
        size = blocks.get(dim.block_name)
        if dim.prefix == "r0_":
            axes.append(range(dim.numel))
        else:
            start = program_id["xyz".index(dim.prefix)] * size
            axes.append(range(start, min(start + size, dim.numel)))
    found = {}
    for role, part in (("read", node.reads), ("write", node.writes)):
        for access in part:
            index = space.flatten(access.index)
            names = [dim.index_name for dim in space.dims]
            points = itertools.product(*axes)
            offsets = {int(index.evaluate(dict(zip(names, point, strict=True)))) for point in points}
            found.setdefault((role, access.buffer), set()).update(offsets)
    return found


def made_programs():
    def strided(ops, i):
        return ops.load("x", 3 * i[1] + 200 * i[0] + 7)

    yield "a reduction", example_1_1(48, 100)
    yield "rows past the edge", example_1_1(13, 5)
    yield "a rectangle", example_6_1(100, 52)
    yield "strides", program({"x": E(20, 200)}, (20, 60), strided, torch.float32)


@pytest.mark.parametrize(
    ("name", "made"), list(made_programs()), ids=lambda value: value if isinstance(value, str) else ""
)
def test_addresses_are_those_of_the_subscripts(name, made):
    """The arithmetic of the compiled kernel, executed, against the schedule's own index expressions."""
    kernel = kernels_of(made)[0]
    planned = schedule(made, SM90, Options())
    text = aot_compile(kernel)["ttgir"]
    buffers = {argument.name: argument.buffer for argument in kernel.arguments}
    for instance in sampled_programs(kernel.launch["grid"]):
        touched = {}
        for access in accesses(kernel, text, instance):
            mask = np.ones(access.shape, bool) if access.mask is None else access.mask
            key = (access.role, buffers[access.argument])
            touched.setdefault(key, set()).update(access.offsets[mask].ravel().tolist())
        assert touched == subscripts(planned, kernel, instance), instance


def test_sampled_instances_are_the_first_second_and_last():
    assert sampled_programs((1, 1, 1)) == ((0, 0, 0),)
    assert sampled_programs((9, 2, 1)) == ((0, 0, 0), (1, 0, 0), (8, 0, 0), (0, 1, 0), (1, 1, 0), (8, 1, 0))


# --- Widths -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", PROGRAMS)
def test_the_compiler_makes_the_widest_instruction_that_the_addresses_allow(name):
    for kernel in kernels(name):
        found = coalescing(kernel)
        widths = instruction_widths(kernel, aot_compile(kernel)["ptx"])
        assert len(found.accesses) == len(kernel.arguments) and not found.left_out
        for access in found.accesses:
            assert access.width == access.possible == widths[access.line, access.role], access.text


def test_widths_of_dtypes_by_hand():
    """Four elements of a thread: 8 bytes of bfloat16, 4 of bool; two instructions of 16 bytes for int64."""
    for name, width in (("half precision", 8), ("truth values", 4), ("whole numbers", 16), ("an odd number", 4)):
        (kernel,) = kernels(name)
        assert {access.width for access in kernel.coalescing().accesses} == {width}, name


# --- Sectors ----------------------------------------------------------------------------------------------------------


def test_sectors_of_an_instruction_by_hand():
    rows = Instruction(tuple(512 * lane for lane in range(32)), 4)
    assert len(rows.sectors) == 32 == len(rows.lines) and rows.bytes == 128 and rows.least_sectors == 4
    side_by_side = Instruction(tuple(16 * lane for lane in range(32)), 16)
    assert side_by_side.sectors == tuple(range(16)) and side_by_side.lines == (0, 1, 2, 3)
    shifted = Instruction(tuple(4 * lane + 4 for lane in range(32)), 4)
    assert shifted.sectors == (0, 1, 2, 3, 4) and shifted.least_sectors == 4
    masked = Instruction((0, *[None] * 31), 4)
    assert masked.sectors == (0,) and masked.bytes == 4
    same = Instruction((64,) * 32, 4)
    assert same.sectors == (2,) and same.least_sectors == 1
    across = Instruction((24, *[None] * 31), 16)
    assert across.sectors == (0, 1)


def test_example_6_1_in_one_dimension_and_two():
    """A row of y is 512 floats: 32 lanes that step over rows touch 32 sectors for 128 bytes, which four could hold."""
    function, inputs = PROGRAMS["a transposed operand"]
    found = compare_tilings(staxlab.explain(function, *inputs, target="sm_90").schedule)
    worst = min(found.flat.accesses, key=lambda access: access.efficiency)
    assert worst.role == "read" and worst.sectors_each == 32 and worst.efficiency == 1 / 8 and worst.width == 4
    assert [len(one.sectors) for one in worst.first] == [32] * 4
    assert found.chosen.efficiency == 1 and {access.width for access in found.chosen.accesses} == {16}
    assert found.flat.efficiency < 0.5 and "12.5%" in str(found) and "100%" in str(found)


def test_a_sum_is_written_by_one_thread():
    (kernel,) = kernels("two rows of a reduction")
    store = next(access for access in kernel.coalescing().accesses if access.role == "write")
    assert all(sum(a is not None for a in one.addresses) == 1 for one in store.first)


def test_rows_that_begin_inside_a_sector():
    """Rows of 8190 floats: every second one begins 24 bytes into a sector, and 8-byte loads of a warp touch nine."""
    (kernel,) = kernels("a long row that ends inside a step")
    (read,) = [access for access in kernel.coalescing().accesses if access.role == "read"]
    assert read.width == 8 and 0.85 < read.efficiency < 1 and "nearly" in read.verdict()


def test_what_an_instruction_leaves_of_a_sector_may_be_used_by_the_next():
    """An odd number of elements: four loads of 4 bytes where one of 16 would do, over the same sectors."""
    (kernel,) = kernels("an odd number")
    (read,) = [access for access in kernel.coalescing().accesses if access.role == "read"]
    assert read.shares and "other instructions use the rest" in read.verdict() and read.efficiency < 0.3
    (every_second,) = kernels("every second")
    (read,) = [access for access in every_second.coalescing().accesses if access.role == "read"]
    assert not read.shares and "times the sectors" in read.verdict()


def test_addresses_that_are_data_are_left_out():
    gathered = staxlab.explain(
        lambda x, i: x[i] * 2, E(4096), torch.zeros(4096, dtype=torch.int64), target="sm_90"
    ).kernels[0]
    found = gathered.coalescing()
    assert len(found.left_out) == 1 and "not known beforehand" in str(found) and len(found.accesses) == 2


def test_both_architectures_agree_on_the_layout():
    (kernel,) = kernels("a transposed operand")
    assert kernel.coalescing(80).efficiency == kernel.coalescing(90).efficiency == 1


def test_it_draws_and_prints():
    function, inputs = PROGRAMS["a transposed operand"]
    found = compare_tilings(staxlab.explain(function, *inputs, target="sm_90").schedule)
    (pane,) = panes_of(found).panes
    assert pane.body.count("<svg") == 6 and "lane (number)" in pane.body and "sector (byte address)" in pane.body
    (pane,) = panes_of(found.chosen).panes
    assert "16 sectors, 16 needed" in pane.body and "100% of the sectors" in pane.plain
    assert found._repr_mimebundle_()["text/plain"] == str(found)


def test_what_cannot_be_looked_at_says_so():
    made = schedule(example_1_1(), SM90, Options())
    with pytest.raises(OptionError, match="no pointwise node"):
        compare_tilings(made)
    with pytest.raises(OptionError, match="no node 'nowhere'"):
        compare_tilings(made, "nowhere")
    with pytest.raises(CodegenError, match="no pointwise node"):
        one_dimensional(made, made.nodes[0])
    (kernel,) = kernels_of(example_1_1())
    with pytest.raises(CodegenError, match="empty grid"):
        coalescing(replace(kernel, launch=kernel.launch | {"grid": (0, 1, 1)}))
    with pytest.raises(CodegenError, match="not a Triton kernel"):
        coalescing(replace(kernel, language="cpp"))
