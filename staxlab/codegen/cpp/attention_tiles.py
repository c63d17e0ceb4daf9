"""Attention of bfloat16 on a matrix unit: where its tiles replace blocks of sums in registers (Section 9.10).

A processor with AMX multiplies a tile of 16 x 32 by one of 32 x 16 numbers of bfloat16 in one instruction, so much
faster than vectors of float32 that the exponentials are the larger part of the work. Strips then have 16 queries, keys
and values are stored by pairs (``staxlab_amx.h``), and, as on a GPU, the exponentials are rounded to bfloat16 before
they meet the values; their sum is taken before. Everything between the products is the same text as without the unit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ...attention.problem import AttentionProblem

if TYPE_CHECKING:
    from .attention_parts import AttentionPlan


def is_power_of_two(scale: float) -> bool:
    """Whether a bfloat16 is multiplied by it without rounding, so that queries can be scaled beforehand."""
    return math.frexp(scale)[0] == 0.5


def matrix_unit(problem: AttentionProblem, tile_rows: int) -> tuple[bool, str]:
    """Whether products are tiles of bfloat16 on a matrix unit, and why."""
    if problem.dtype != torch.bfloat16:
        return False, "the inputs are not bfloat16"
    if not problem.device.bfloat16_tiles:
        return False, "the processor has no matrix unit for bfloat16"
    steps = (problem.query_strides[3], problem.key_strides[3], problem.value_strides[3])
    if steps != (1, 1, 1) or problem.head_size % 2 or any(stride % 2 for stride in problem.key_strides[:3]):
        return False, "pairs of components do not lie side by side"
    if tile_rows < 8:
        return False, "a tile of 16 rows would be mostly empty"
    return True, "bfloat16, and tiles of 16 rows of queries"


#: Keys and values in pairs, for all tasks.
PAIRS = """turn_over_pairs<V, tile_keys, depth, head_size, key_row>(
        (u32*)panels + tile_keys * depth / 2 * task,
        key_tensor + key_batch * b + key_head * g + key_row * first, count);
    pair_rows<V, tile_keys, width, value_size, value_row>(
        (u32*)values + tile_keys * width / 2 * task,
        value_tensor + value_batch * b + value_head * g + value_row * first, count);"""


def tiles_of(plan: AttentionPlan) -> list[str]:
    """Where a matrix unit finds a tile of keys and one of values, in pairs."""
    if plan.shared_panels:
        return [
            "const i64 at = tile_keys * (panels_of_head * (key_heads * b + g) + number);",
            "const u32* const panel = (const u32*)panels + depth / 2 * at;",
            "const u32* const v_tile = (const u32*)values + width / 2 * at;",
        ]
    return [
        "turn_over_pairs<V, tile_keys, depth, head_size, key_row>(",
        "    panel, key_tensor + key_batch * b + key_head * g + key_row * first_key, count);",
        "pair_rows<V, tile_keys, width, value_size, value_row>(",
        "    value_tile, value_tensor + value_batch * b + value_head * g + value_row * first_key, count);",
        "const u32* const v_tile = value_tile;",
    ]


SCORES_OF_TILES = [
    "tile_product<false, tile_keys, tile_keys, depth, tile_keys>(scores, q_tile + depth * i, panel, depth);",
]
VALUES_OF_TILES = [
    "round_rows<V, strip, tile_keys>(halves, scores);",
    "scale_rows<V, strip, width>(acc + width * i, factor);",
    "tile_product<true, width, width, tile_keys, width>(",
    "    acc + width * i, halves, v_tile, (count + 31) / 32 * 32);",
]
