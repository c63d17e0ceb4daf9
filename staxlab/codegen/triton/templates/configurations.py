"""Which tiles, warps and stages a product is multiplied with, by rule.

A tile of ``BLOCK_M x BLOCK_N`` reads ``(BLOCK_M + BLOCK_N) k`` elements, so large tiles move little (Section 9.8); but
there must be one for every multiprocessor, its float32 accumulators must fit into registers, and ``num_stages`` steps
of ``(BLOCK_M + BLOCK_N) BLOCK_K b`` bytes into shared memory.
"""

from __future__ import annotations

import torch

from ....options import DeviceSpec
from ..tiling import next_power_of_two

#: A configuration as :func:`~staxlab.codegen.triton.generate.triton_kernel` takes it: block sizes, warps, stages.
Configuration = tuple[dict[str, int], int, int]

GROUP_M = 8
NEARLY_ALL = 0.9  # of the multiprocessors must have a tile: one wave that is not quite full beats two
SMALLEST = 16  # of each side of a tile: what an instruction of the matrix units takes
MOST_ACCUMULATORS = 128  # float32 registers of a thread that hold the tile of the result; there are 255 in all

#: Shared memory that a program instance may have, in bytes, by compute capability (CUDA programming guide).
SHARED_MEMORY = {80: 163 << 10, 90: 227 << 10}

#: Tiles (BLOCK_M, BLOCK_N, BLOCK_K), warps and stages, from the one that moves least. Of 2-byte operands on the matrix
#: units; of float32, where a thread multiplies and adds by itself unless precision is tf32. Those of 90 are the best of
#: some fifty measured on an H200 for bfloat16 from 1024 to 8192 (``python -m benchmarks.gpu_matmul --sweep``).
HALF_TILES = {
    80: ((128, 128, 32, 4, 4), (128, 64, 32, 4, 4), (64, 64, 32, 4, 5), (64, 32, 64, 4, 4), (32, 32, 64, 2, 4)),
    90: ((128, 256, 64, 8, 4), (128, 128, 64, 4, 3), (64, 128, 128, 4, 4), (64, 64, 64, 4, 5), (64, 32, 64, 4, 5)),
}  # fmt: skip
FLOAT_TILES = ((128, 128, 16, 8, 3), (64, 64, 32, 4, 3), (64, 32, 32, 4, 3), (32, 32, 32, 2, 3))
TF32_TILES = ((128, 128, 32, 8, 3), (128, 64, 32, 4, 3), (64, 64, 32, 4, 4), (32, 32, 32, 2, 4))


def capability_of(device: DeviceSpec) -> int:
    """The entry of the tables for a device: 90 from compute capability 9 on, else 80."""
    return 90 if device.compute_capability >= 90 else 80


def shared_bytes(blocks: dict[str, int], stages: int, itemsize: int) -> int:
    """What so many stages of both operands take in shared memory: ``s (B_M + B_N) B_K b``."""
    return stages * (blocks["BLOCK_M"] + blocks["BLOCK_N"]) * blocks["BLOCK_K"] * itemsize


def default_configuration(
    sizes: tuple[int, int, int, int], dtype: torch.dtype, precision: str, persistent: bool, device: DeviceSpec
) -> Configuration:
    """The first tile of the table that leaves hardly a multiprocessor without one, cut down to the product's sizes."""
    batch, rows, columns, depth = sizes
    tables = FLOAT_TILES if precision == "ieee" else TF32_TILES
    table = tables if dtype == torch.float32 else HALF_TILES[capability_of(device)]
    enough = NEARLY_ALL * device.multiprocessors
    full = (t for t in table if batch * -(-rows // t[0]) * -(-columns // t[1]) >= enough)
    m, n, k, warps, stages = next(full, table[-1])
    blocks = {
        "BLOCK_M": _fitted(m, rows), "BLOCK_N": _fitted(n, columns), "BLOCK_K": _fitted(k, depth), "GROUP_M": GROUP_M,
    }  # fmt: skip
    if dtype.itemsize == 1:
        blocks["BLOCK_K"] = max(blocks["BLOCK_K"], 32)
    if persistent:
        blocks["PROGRAMS"] = device.multiprocessors
        blocks["BLOCK_M"] = max(blocks["BLOCK_M"], 64)
    room = SHARED_MEMORY[capability_of(device)] - (8 << 10)
    while stages > 1 and shared_bytes(blocks, stages, dtype.itemsize) > room:
        stages -= 1
    tile = blocks["BLOCK_M"] * blocks["BLOCK_N"]
    warps = max(1 if tile <= 1024 else 4 if persistent else 2, min(warps, tile // 512))
    return blocks, warps, stages


def _fitted(block: int, extent: int) -> int:
    return max(SMALLEST, min(block, next_power_of_two(extent)))
