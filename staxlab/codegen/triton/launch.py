"""How a kernel is launched: block sizes, warps and grid, by rule (Sections 9.1 and 9.6).

By Little's law the memory system is busy only while ``latency * bandwidth`` bytes are in flight; divided by the
number of multiprocessors that is some 20 KiB each on a Hopper card. One program instance contributes what its block
loads, and a multiprocessor holds as many instances as threads and registers allow. So the rules aim at

* one or two 16-byte loads per thread and input, and many threads: measured on an H200 (``benchmarks/gpu.py --sweep``),
  more work per thread bought nothing, and an instance of less than 512 elements is bound by the launching of instances,
* at least two instances per multiprocessor where the problem is large enough, so that none idles,
* no larger a block than the problem: a block of 1024 lanes for 100 elements is a tenth used,
* for a row held whole, one row to an instance and 64 bytes of it to a lane: what lanes hold together they add up by
  themselves, and the fewer warps a row has, the less they wait for each other. Measured on an H200 for rows of 1,000 to
  8,192 elements (13 pairs of kernel and dtype, up to thirty configurations of each): within 0.97 to 0.99 of the best
  configuration's bandwidth on geometric average, where 16 or 32 bytes to a lane reach 0.70 to 0.96
  (``benchmarks/results/row_kernels_h200.json``; shorter rows, under the rules as they are: ``row_kernels_short_h200``),
* for a row walked along, 4,096 elements in a step; more warps where later passes read the row again, for fewer rows
  are under way then and are still in the second-level cache when they are read again.

The rules only choose; a search measures (Algorithm 9.1, :mod:`staxlab.runtime.autotune`). Whatever is chosen is kept as
a :class:`Decision`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from ...errors import CodegenError
from ...options import Decision, DeviceSpec
from .space import GRID_LIMIT, BlockDim
from .tiling import LANES_ACROSS, PERSISTENT_OUTER, STEP_INNER, STEP_OUTER, STEP_SCAN, Form, next_power_of_two

LATENCY = 600e-9  # seconds from a load to its data, the chapter's estimate
LANE_BYTES = 64  # of a row held whole, which its lane loads at once
SCAN_LANE_BYTES = 32  # the same for a scan, whose lanes have more to tell each other
INSTANCE_BYTES = 4096  # of rows, at least: smaller instances are bound by being launched
LONG_ROW_BYTES = 64 << 10  # from here on a row that several passes read gets the most warps


@dataclass(frozen=True)
class Work:
    """What a kernel does with a point of its block, as far as launching it depends on that: bytes loaded, all inputs
    together; bytes of an element of its rows; how often rows are walked along if they are not held; how many
    reductions they enter; whether every point is stored; whether it is a scan."""

    element_bytes: int
    itemsize: int = 4
    passes: int = 1
    reductions: int = 1
    stores_points: bool = False
    scans: bool = False


@dataclass(frozen=True)
class Launch:
    """A launch configuration: ``blocks`` by constexpr name, warps per instance, pipeline stages, and the grid."""

    blocks: dict[str, int]
    num_warps: int
    num_stages: int
    grid: tuple[int, int, int]
    decision: Decision

    def divides(self, dim: BlockDim) -> bool:
        """Whether every block along ``dim`` is full, so that no mask is needed. An empty dimension has no block."""
        return dim.numel > 0 and dim.numel % self.blocks[dim.block_name] == 0


def bytes_in_flight_wanted(device: DeviceSpec, latency: float = LATENCY) -> int:
    """Little's law per multiprocessor: latency (seconds) times bandwidth over the number of multiprocessors."""
    bandwidth = device.nominal_bandwidth or 3.35e12
    return int(latency * bandwidth / max(device.multiprocessors, 1))


def choose_launch(form: Form, name: str, work: Work, device: DeviceSpec) -> Launch:
    """The configuration the rules give."""
    wanted = 2 * max(device.multiprocessors, 1)
    if form.kind == "pointwise" and len(form.space.dims) == 1:
        blocks, warps = _one_dimension(form.space.dims[0].numel, wanted)
    elif form.kind == "pointwise" and len(form.space.dims) == 3:
        blocks, warps = _box({dim.block_name: dim.numel for dim in form.space.dims}, wanted)
    elif form.kind == "pointwise":
        blocks, warps = _rectangle(form.space.dim("y").numel, form.space.dim("x").numel, wanted)
    else:
        rows, length = form.space.dim("x").numel, form.space.dim("r0_").numel
        if form.inner:
            rule = _held if form.kind == "persistent" else _walked
            blocks, warps = rule(rows, length, work, wanted)
        else:
            # A longer row that is persistent all the same is a loop of one step without the loop.
            short = form.kind == "persistent" and length <= PERSISTENT_OUTER
            blocks, warps = (_held_across if short else _walked_across)(rows, length, wanted)
    return configured(form, name, work.element_bytes, device, blocks, warps)


def configured(
    form: Form,
    name: str,
    element_bytes: int,
    device: DeviceSpec,
    blocks: dict[str, int],
    num_warps: int,
    num_stages: int = 1,
) -> Launch:
    """A configuration given by hand (or by a search), with what Little's law says about it. There are no more threads
    than a block has elements: they would hold copies of elements that others own and may write over."""
    grid = _grid(form, blocks)
    instances = math.prod(grid)
    tile = math.prod(blocks.values())
    num_warps = min(num_warps, max(1, tile // 32))
    resident = min(device.max_threads_per_multiprocessor // (32 * num_warps), device.max_blocks_per_multiprocessor)
    per_multiprocessor = min(resident, -(-instances // max(device.multiprocessors, 1)))
    in_flight = per_multiprocessor * tile * element_bytes
    need = bytes_in_flight_wanted(device)
    chosen = ", ".join(f"{key}={value}" for key, value in blocks.items()) + f", num_warps={num_warps}"
    if in_flight >= need:
        reason = f"{in_flight} bytes in flight per multiprocessor cover the {need} that Little's law asks for"
    else:
        reason = f"the problem is too small to keep {need} bytes in flight per multiprocessor; {in_flight} are"
    inputs: tuple[tuple[str, Any], ...] = (
        ("instances", instances), ("elements per thread", max(1, tile // (32 * num_warps))),
        ("resident instances", per_multiprocessor), ("bytes per point", element_bytes),
    )  # fmt: skip
    return Launch(blocks, num_warps, num_stages, grid, Decision("launch", name, chosen, reason, (), inputs))


def _shrink(block: int, numel: int, wanted: int, smallest: int) -> int:
    """Halve a block until there are enough instances or it gets too small to be worth one."""
    block = min(block, next_power_of_two(max(numel, 1)))
    while block > smallest and -(-numel // block) < wanted:
        block //= 2
    return block


def _warps(tile: int, most: int = 8) -> int:
    """Four elements per thread, one 16-byte load of float32, until the most warps are reached."""
    return max(1, min(most, tile // 128))


def _one_dimension(numel: int, wanted: int) -> tuple[dict[str, int], int]:
    block = _shrink(512, numel, wanted, 128)
    return {"XBLOCK": block}, _warps(block)


def _rectangle(ynumel: int, xnumel: int, wanted: int) -> tuple[dict[str, int], int]:
    """Large rectangles: both directions then read whole cache lines, and more of them at a time."""
    for y, x in ((128, 64), (64, 64), (64, 32)):
        if ynumel >= y and xnumel >= x and (ynumel // y) * (xnumel // x) >= 2 * wanted:
            return {"YBLOCK": y, "XBLOCK": x}, 8
    y = min(32, next_power_of_two(max(ynumel, 1)))
    x = min(32, next_power_of_two(max(xnumel, 1)))
    return {"YBLOCK": y, "XBLOCK": x}, _warps(y * x, 4)


def _box(sizes: dict[str, int], wanted: int) -> tuple[dict[str, int], int]:
    """Cubes whose edges are whole sectors of memory in all three directions; smaller ones where there are few."""
    for edge in (16, 8):
        blocks = {name: min(edge, next_power_of_two(max(size, 1))) for name, size in sizes.items()}
        if math.prod(-(-size // blocks[name]) for name, size in sizes.items()) >= wanted:
            break
    return blocks, _warps(math.prod(blocks.values()))


def _held(rows: int, length: int, work: Work, wanted: int) -> tuple[dict[str, int], int]:
    """A row in registers, lanes along it: as few warps as can hold it, and more where rows are too few to fill the
    multiprocessors otherwise."""
    row = next_power_of_two(length)
    row_bytes = row * work.itemsize
    block = _shrink(max(1, INSTANCE_BYTES // row_bytes), rows, wanted, 1)
    warps = block * row_bytes // (32 * (SCAN_LANE_BYTES if work.scans else LANE_BYTES))
    idle = (wanted // 2) / max(-(-rows // block), 1)  # multiprocessors for each instance
    while idle > 1 and warps < block * row // 128:  # four elements to a lane, no fewer
        warps, idle = 2 * warps, idle / 2
    return {"XBLOCK": block, "R0_BLOCK": row}, max(1, min(warps, 16 if work.scans else 32))


def _walked(rows: int, length: int, work: Work, wanted: int) -> tuple[dict[str, int], int]:
    """So many elements per step, of one long row or of several shorter ones."""
    most = STEP_SCAN if work.scans else STEP_INNER
    step = min(most, next_power_of_two(length))
    block = _shrink(most // step, rows, wanted, 1)
    warps = _warps(block * step, 16)
    if work.reductions > 1 and not work.stores_points and step == STEP_INNER:
        step //= 2  # nothing but sums are carried along, of which each takes registers
    elif work.passes > 1 and length * work.itemsize >= LONG_ROW_BYTES:
        warps = 32
    return {"XBLOCK": block, "R0_BLOCK": step}, warps


def _held_across(rows: int, length: int, wanted: int) -> tuple[dict[str, int], int]:
    """Short columns in registers, lanes across them."""
    column = next_power_of_two(length)
    block = _shrink(max(2, 1024 // column), rows, wanted, 32)
    return {"XBLOCK": block, "R0_BLOCK": column}, _warps(block * column)


def _walked_across(rows: int, length: int, wanted: int) -> tuple[dict[str, int], int]:
    block = _shrink(64, rows, wanted, LANES_ACROSS)
    step = min(STEP_OUTER // block, next_power_of_two(length))
    return {"XBLOCK": block, "R0_BLOCK": step}, _warps(block * step)


def _grid(form: Form, blocks: dict[str, int]) -> tuple[int, int, int]:
    """Instances along each grid axis. A second axis longer than the hardware allows spills into the third."""
    dims = {dim.prefix: dim for dim in form.space.dims}
    x = -(-dims["x"].numel // blocks["XBLOCK"])
    if "y" not in dims:
        return (x, 1, 1)
    y = -(-dims["y"].numel // blocks["YBLOCK"])
    if "z" in dims:
        z = -(-dims["z"].numel // blocks["ZBLOCK"])
        if max(y, z) > GRID_LIMIT:
            raise CodegenError(f"a grid of {x} x {y} x {z} instances", remedy="larger blocks along y and z")
        return (x, y, z)
    z = -(-y // GRID_LIMIT) if y else 1
    return (x, -(-y // z), z)
