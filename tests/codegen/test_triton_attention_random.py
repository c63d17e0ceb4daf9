"""Forward attention of random sizes, masks, scores, blocks and tiles against the specification, interpreted."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from tests.attention import variants
from tests.attention.variants import Sizes, Variant

pytest.importorskip("triton")

from staxlab.codegen.triton.attention.configurations import (
    AttentionConfiguration,
    can_fetch,
    fitted,
    is_packed,
    why_not_decoding,
)
from staxlab.codegen.triton.attention.decoding import build_decoding
from staxlab.codegen.triton.attention.forward import build_forward
from staxlab.codegen.triton.attention.pieces import padded
from tests.codegen.triton_attention import setup

MASKS = [
    None, variants.causal, variants.window, variants.prefix, variants.packed, variants.dilated, variants.strided_heads,
    variants.local_global, variants.lengths, variants.checkerboard, variants.some_rows_hidden, variants.nothing,
    variants.table_of_blocks,
]  # fmt: skip
SCORES = [
    None, None, variants.alibi, variants.soft_cap, variants.relative_bias, variants.buckets, variants.learned_scalar,
    variants.additive, variants.full_additive, variants.times, variants.mask_in_score,
]  # fmt: skip


def drawn(seed: int) -> tuple[Any, Any]:
    """A problem and what runs it."""
    draw = random.Random(seed)
    few, group, key_heads = draw.random() < 0.4, draw.choice([1, 1, 2, 3]), draw.choice([1, 2])
    queries = draw.choice([1, 2, 5, 16]) if few else draw.randint(1, 140)
    sizes = Sizes(
        draw.choice([1, 2]), group * key_heads, key_heads, queries, draw.randint(1, 160),
        draw.choice([4, 8, 16, 20, 32]), draw.choice([4, 8, 16, 20, 32]),
    )  # fmt: skip
    scale = draw.choice([None, 0.5, -1.0, 2.0])
    variant = Variant("random", draw.choice(SCORES), draw.choice(MASKS), sizes, scale)
    made = setup(variant, block=(draw.choice([16, 32, 48, 64, 128]), draw.choice([16, 32, 64, 80, 128])))
    problem = made.problem
    tile = AttentionConfiguration(draw.choice([16, 32, 64]), draw.choice([16, 32, 64]), 4, 2)
    if few and not why_not_decoding(problem):
        rows = padded(problem.queries * (problem.group if is_packed(problem) else 1))
        chosen = fitted(problem, replace(tile, block_m=rows, splits=draw.choice([1, 2, 3, 9])))
        return made, build_decoding(problem, replace(chosen, block_m=rows))
    fetch = can_fetch(problem) and draw.random() < 0.5
    chosen = fitted(problem, replace(tile, fetch=fetch, heaviest_first=draw.random() < 0.7))
    chosen = replace(chosen, lazy=draw.random() < 0.3)
    return made, build_forward(problem, chosen)


def holds(seed: int) -> None:
    made, run = drawn(seed)
    made.check(run, rtol=3e-5, atol=3e-5)


@pytest.mark.parametrize("seed", range(10))
def test_random_attention(seed):
    holds(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(10, 80))
def test_more_random_attention(seed):
    holds(seed)
