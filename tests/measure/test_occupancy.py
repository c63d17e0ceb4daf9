"""Occupancy: the rules on cases worked by hand, and the resources that real machine code takes."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import staxlab
from staxlab.codegen.triton.resources import Resources
from staxlab.errors import CodegenError, OptionError
from staxlab.measure.occupancy import LIMITS, block_limits, limits_of, occupancy
from staxlab.view.registry import panes_of
from tests.codegen.triton_support import example_1_1, example_6_1, kernels_of


def blocks_of(capability, registers, warps, shared=0):
    usage = Resources("k", capability, registers, shared, 0, 0, warps)
    return {bound.resource: bound.blocks for bound in block_limits(usage, LIMITS[capability])}


# Registers of a warp, in units of 256; warps of a quarter of 16,384; times 4; divided by the warps of a block.
REGISTERS = [
    (32, 8, 8),  # 1,024; 16; 64; 64 / 8
    (33, 8, 6),  # 1,056 -> 1,280; 12; 48; 48 / 8
    (71, 8, 3),  # 2,272 -> 2,304; 7; 28; 28 / 8
    (168, 2, 6),  # 5,376; 3; 12; 12 / 2
    (200, 2, 4),  # 6,400; 2; 8: a quarter holds two, though 65,536 / 12,800 = 5 blocks would fit the whole file
    (128, 1, 16),  # 4,096; 4; 16
    (64, 32, 1),  # 2,048 x 32 = 65,536: all of them
    (65, 32, 0),  # 2,304 x 32 = 73,728: more than a block may have
    (255, 8, 1),  # 8,160 -> 8,192; 2; 8
    (256, 1, 0),  # more than a thread may have
]


@pytest.mark.parametrize("capability", LIMITS)
@pytest.mark.parametrize(("registers", "warps", "blocks"), REGISTERS)
def test_registers(capability, registers, warps, blocks):
    assert blocks_of(capability, registers, warps)["registers"] == blocks


@pytest.mark.parametrize(
    ("capability", "shared", "blocks"),
    [
        (80, 48 << 10, 3),  # 167,936 / (49,152 + 1,024) = 3.35
        (90, 48 << 10, 4),  # 233,472 / 50,176 = 4.65
        (80, 163 << 10, 1),
        (80, (163 << 10) + 1, 0),
        (90, 227 << 10, 1),
        (90, (227 << 10) + 128, 0),
        (90, 112 << 10, 2),  # 233,472 / 115,712 = 2.02
        (90, 113 << 10, 2),  # 233,472 / 116,736 = 2 exactly
        (90, (113 << 10) + 1, 1),  # 116,864 after rounding to 128
        (90, 1, 202),  # 1,025 -> 1,152
        (90, 0, None),
    ],
)
def test_shared_memory(capability, shared, blocks):
    assert blocks_of(capability, 16, 4, shared)["shared memory"] == blocks


def test_warps_and_blocks():
    assert blocks_of(90, 16, 4)["warps"] == 16 and blocks_of(90, 16, 32)["warps"] == 2
    assert blocks_of(90, 16, 1) == {"registers": 128, "shared memory": None, "warps": 64, "blocks": 32}


@pytest.fixture(scope="module")
def tile():
    pytest.importorskip("triton")
    (kernel,) = kernels_of(example_6_1(4096, 4096))
    return kernel


def test_a_real_kernel(tile):
    """The tile goes through shared memory: 128 x 64 float32 and padding."""
    found = tile.occupancy()
    assert found.usage.registers >= 32 and found.usage.shared >= 128 * 64 * 4 and found.usage.warps == 8
    assert found.blocks == min(b.blocks for b in found.bounds if b.blocks is not None)
    assert found.warps == found.blocks * 8 and 0 < found.occupancy <= 1
    assert found.in_flight.points[0].per_multiprocessor == found.loads.bytes * 32 * 8 * found.resident_blocks
    # The second tensor's loads stand behind a barrier that needs the first's.
    assert 0 < found.loads.bytes < found.loads.issued == 2 * 128 * 64 * 4 // 256
    assert found.usage.spills == 0


def test_both_architectures(tile):
    found = tile.occupancy(80)
    assert found.device.name == "sm_80" and found.limits.shared == 164 << 10 and found.usage.capability == 80


def test_what_other_amounts_would_give(tile):
    found = tile.occupancy()
    by_registers = dict(found.by_registers())
    assert by_registers[found.usage.registers] == found.warps
    assert all(a >= b for a, b in zip(list(by_registers.values()), list(by_registers.values())[1:], strict=False))
    assert dict(found.by_block_size())[8] == found.warps
    scarce = found.with_usage(registers=255)
    assert scarce.binding == ("registers",) and scarce.warps < found.warps and "255 per thread" in str(scarce)
    with pytest.raises(OptionError, match="registers"):
        found.with_usage(registers=-1)
    with pytest.raises(OptionError, match="warps"):
        found.with_usage(warps=0)


def test_a_small_grid_fills_no_multiprocessor():
    pytest.importorskip("triton")
    (kernel,) = kernels_of(example_1_1())
    found = kernel.occupancy()
    assert found.instances == 64 and found.resident_blocks == 1 and found.waves < 1
    assert found.in_flight.share(found.in_flight.points[0]) < 1


def test_one_warp_blocks_are_limited_by_their_number():
    """The launch rules know it, too: what they call resident is what fits, where registers do not forbid it."""
    pytest.importorskip("triton")
    for rows, columns in ((1 << 16, 128), (1 << 16, 64)):
        (kernel,) = kernels_of(example_1_1(rows, columns))
        found, decision = kernel.occupancy(), next(d for d in kernel.decisions if d.topic == "launch")
        assert dict(decision.inputs)["resident instances"] == found.resident_blocks == found.blocks <= 32
    assert found.with_usage(warps=1).warps == 32 and "blocks" in found.with_usage(warps=1).binding


def test_a_kernel_that_loads_nothing_says_so():
    pytest.importorskip("triton")
    filled = staxlab.explain(lambda: torch.arange(5000, dtype=torch.float32) * 2, target="sm_90").kernels[0]
    found = filled.occupancy()
    assert found.loads.issued == 0 and found.in_flight.points == () and "loads nothing" in str(found)
    assert panes_of(found).panes[0].body


def test_it_draws_and_prints(tile):
    found = tile.occupancy()
    (pane,) = panes_of(found).panes
    for words in ("Blocks that each resource has room for", "registers per thread (count)", "TB/s", "▸ "):
        assert words in pane.body
    text = str(found)
    assert "(binds)" in text and "multiprocessor" in text and "Little's law" in text


def test_what_has_none_says_so(tile):
    with pytest.raises(OptionError, match="compute capability 75"):
        limits_of(75)
    with pytest.raises(CodegenError, match="not a Triton kernel"):
        occupancy(replace(tile, language="cpp"))
