"""The matrix templates as text (Section 9.8): loops laid out by hand, with holes for what surrounds the product.

A line ``<<left>>`` is replaced by the lines that read a tile of the left operand, each with its own origins, and so on;
``{M}`` by a number. Every other line belongs to the product. Read them as programs: what is written here is what the
listing of a kernel shows.
"""

from __future__ import annotations

#: Where a tile lies (Proposition 9.4): tiles are numbered in groups of GROUP_M rows of tiles, downward within a group
#: and then to the right, so that instances that run at the same time read few different rows and columns of tiles.
NUMBERING = """\
width = GROUP_M * grid_n  # tiles in a group of GROUP_M rows of tiles
group = tile // width
group_size = min(grid_m - group * GROUP_M, GROUP_M)  # the last group may have fewer rows
tile_m = group * GROUP_M + (tile % width) % group_size  # down the group first,
tile_n = (tile % width) // group_size  # then to the right
"""

SIZES = """\
M: tl.constexpr = {M}  # rows of the result
N: tl.constexpr = {N}  # columns of the result
K: tl.constexpr = {K}  # products in a sum
grid_m: tl.constexpr = (M + BLOCK_M - 1) // BLOCK_M
grid_n: tl.constexpr = (N + BLOCK_N - 1) // BLOCK_N
"""

#: One program instance makes one tile of BLOCK_M x BLOCK_N results. The loads of the next steps of the loop are under
#: way while a step multiplies: Triton keeps num_stages tiles of each operand in shared memory.
TILED = (
    SIZES
    + """\
<<asserts>>
tile = tl.program_id(0)  # which tile of the result this program instance makes
<<batch>>
"""
    + NUMBERING
    + """\
<<points>>
<<before>>
acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
for k in tl.range(0, K, BLOCK_K):
    <<summed>>
    <<left>>
    <<right>>
    acc = tl.dot({left}, {right}, acc, input_precision="{precision}"{accumulation})
<<epilogue>>
"""
)

#: As many program instances as multiprocessors, each of which makes one tile after the other. The tensor memory
#: accelerator fetches a whole tile for an instruction (what hangs over the edge becomes zeros), and may store one. The
#: two loops are flattened into one, so that the loads of the next tile are under way during the epilogue of this one.
PERSISTENT_TMA = (
    SIZES
    + """\
<<asserts>>
left = tl.make_tensor_descriptor({left_pointer}, {left_shape}, {left_strides}, {left_block})
right = tl.make_tensor_descriptor({right_pointer}, {right_shape}, {right_strides}, {right_block})
<<results>>
for tile in tl.range(tl.program_id(0), grid_m * grid_n, PROGRAMS, flatten=True):
"""
    + "".join(f"    {line}\n" for line in NUMBERING.splitlines())
    + """\
    acc = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
    for k in tl.range(0, K, BLOCK_K):
        a = left.load({left_place}){left_turned}
        b = right.load({right_place}){right_turned}
        acc = tl.dot(a, b, acc, input_precision="{precision}"{accumulation})
    <<points>>
    <<epilogue>>
"""
)
