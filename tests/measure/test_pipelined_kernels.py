"""The hardware models on kernels with a software pipeline: copies without registers, tiles that an engine fetches."""

from __future__ import annotations

import pytest
import torch

import staxlab
from staxlab.measure.loads_in_flight import read_in_flight
from tests.measure.test_little import sass


def product(form, dtype=torch.bfloat16):
    a, b = torch.empty(512, 256, dtype=dtype), torch.empty(256, 512, dtype=dtype)
    (kernel,) = staxlab.explain(lambda a, b: a @ b, a, b, target="sm_90", options={"matmul": form}).kernels
    return kernel


def test_groups_of_copies_are_in_flight_until_they_are_waited_for():
    """Two groups of 32 bytes; when at most one may be left, a third is begun."""
    copy = "LDGSTS.E.BYPASS.128 [R8], desc[UR6][R22.64]"
    found = read_in_flight(
        sass(
            copy,
            copy,
            "LDGDEPBAR",
            copy,
            copy,
            "LDGDEPBAR",
            "DEPBAR.LE SB0, 0x1",
            copy,
            "LDGDEPBAR",
            "DEPBAR.LE SB0, 0x0",
        )
    )
    assert (found.bytes, found.loads, found.issued, found.stalls) == (64, 4, 80, (6, 9))


def test_a_copy_that_is_switched_off_fetches_nothing():
    found = read_in_flight(sass("LDGSTS.E.BYPASS.128 [R8], desc[UR6][R16.64], !PT", "LDGDEPBAR"))
    assert (found.bytes, found.issued) == (0, 0)


def test_a_loop_that_copies_ahead_is_walked_twice():
    copy = "LDGSTS.E.BYPASS.128 [R8], desc[UR6][R22.64]"
    listing = sass(
        copy, "LDGDEPBAR", copy, "LDGDEPBAR", ".L_x_1:", "DEPBAR.LE SB0, 0x1", copy, copy, "LDGDEPBAR",
        "@P0 BRA `(.L_x_1)", "EXIT",
    )  # fmt: skip
    assert read_in_flight(listing).bytes == 64  # 16 + 16, wait, 16 + 32, wait, 32 + 32


pytest.importorskip("triton")


@pytest.fixture(scope="module")
def tiled():
    return product("template")


def test_a_pipeline_keeps_its_stages_in_flight(tiled):
    """Each stage is a tile of each operand; all stages but the one that is computed with are on their way."""
    found = tiled.occupancy()
    blocks, stages = tiled.launch["constants"], tiled.launch["num_stages"]
    stage = 2 * blocks["BLOCK_K"] * (blocks["BLOCK_M"] + blocks["BLOCK_N"])  # bytes of bfloat16
    assert found.loads.bytes == (stages - 1) * stage // found.usage.threads and found.loads.by_accelerator == 0
    assert found.usage.shared >= stages * stage
    assert found.in_flight.points[0].per_multiprocessor == (stages - 1) * stage * found.resident_blocks


def test_copies_of_a_pipeline_are_coalesced(tiled):
    found = tiled.coalescing()
    assert [(access.role, access.width) for access in found.accesses] == [("read", 16), ("read", 16), ("write", 16)]
    assert found.efficiency == 1 and not found.left_out


def test_copies_are_loads_of_every_step(tiled):
    steps, stages = tiled.lowering_steps(), tiled.launch["num_stages"]
    assert sum(dict(steps["ttir"].loads).values()) == 2
    assert sum(dict(steps["ttgir"].loads).values()) == 2 * stages  # before the loop, and inside
    assert set(dict(steps["ptx"].loads)) == set(dict(steps["sass"].loads)) == {"16 B"}
    assert steps["llir"].loads == steps["ptx"].loads


def test_tiles_of_the_accelerator_are_not_taken_for_nothing():
    kernel = product("template-tma")
    found = kernel.occupancy()
    assert found.loads.by_accelerator > 0 and found.in_flight.points == () and "accelerator" in str(found)
    patterns = kernel.coalescing()
    assert len(patterns.left_out) == 2 and "accelerator" in str(patterns)
    steps = kernel.lowering_steps()
    for name in ("llir", "ptx", "sass"):
        assert dict(steps[name].loads).get("tile", 0) >= 4, name
    assert any("64" in what for what, _ in steps["ttir"].loads)
