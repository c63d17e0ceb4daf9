"""Small hand-written Triton kernels that the models of Section 9.8 are held against."""

from __future__ import annotations

import torch

from staxlab.codegen.kernel import Kernel, KernelArgument
from staxlab.codegen.triton.numbering import GROUPED_LINES
from staxlab.options import GPU_SPECS
from staxlab.provenance import Line

HEAD = "import triton\nimport triton.language as tl\n\n\n@triton.jit\n"

COORDINATES = (
    HEAD
    + "def coordinates(out_m, out_n, grid_m, grid_n, GROUP_M: tl.constexpr):\n    tile = tl.program_id(0)\n"
    + "".join(f"    {line}\n" for line in GROUPED_LINES)
    + "    tl.store(out_m + tile, tile_m)\n    tl.store(out_n + tile, tile_n)\n"
)

DOT_LOOP = HEAD + (
    "def dot_loop(a_ptr, b_ptr, c_ptr, K, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_K: tl.constexpr):\n"
    "    rows, columns, deep = tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_N), tl.arange(0, BLOCK_K)\n"
    "    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)\n"
    "    for start in range(0, K, BLOCK_K):\n"
    "        a = tl.load(a_ptr + rows[:, None] * 4096 + (start + deep)[None, :])\n"
    "        b = tl.load(b_ptr + (start + deep)[:, None] * 4096 + columns[None, :])\n"
    '        total = tl.dot(a, b, total, input_precision="PRECISION")\n'
    "    tl.store(c_ptr + rows[:, None] * 4096 + columns[None, :], total)\n"
)


def kernel(text, name, arguments, *, grid=(1, 1, 1), constants, sizes, device="sm_90", num_warps=4, num_stages=1):
    """A kernel record around a text, as the generator would make one."""
    launch = {"grid": grid, "constants": constants, "sizes": sizes, "num_warps": num_warps, "num_stages": num_stages,
              "options": {"enable_fp_fusion": False}}  # fmt: skip
    pointers = tuple(KernelArgument(argument, argument, "inout", dtype) for argument, dtype in arguments.items())
    lines = tuple(map(Line, text.splitlines()))
    return Kernel(name, "triton", lines, pointers, (), GPU_SPECS[device], launch=launch)


def coordinates(grid_m, grid_n, group):
    """One instance for each block, which stores its coordinates."""
    pointers = {"out_m": torch.int64, "out_n": torch.int64}
    return kernel(
        COORDINATES, "coordinates", pointers, grid=(grid_m * grid_n, 1, 1), constants={"GROUP_M": group},
        sizes={"grid_m": grid_m, "grid_n": grid_n},
    )  # fmt: skip


def dot_loop(tile, device, num_stages, dtype=torch.bfloat16, num_warps=8, precision="ieee"):
    """The inner loop of a tiled product, for one tile."""
    rows, columns, depth = tile
    pointers = {"a_ptr": dtype, "b_ptr": dtype, "c_ptr": torch.float32}
    constants = {"BLOCK_M": rows, "BLOCK_N": columns, "BLOCK_K": depth}
    text = DOT_LOOP.replace("PRECISION", precision)
    return kernel(
        text, "dot_loop", pointers, constants=constants, sizes={"K": 4096}, device=device, num_warps=num_warps,
        num_stages=num_stages,
    )  # fmt: skip
