"""Score modifications made at random, through every way of computing attention, forward and backward.

A program is a dozen elementwise operations over the score, positions, and tables that learn, read at subscripts that
are computed, negative, or data; masks and sizes are drawn with it. What comes out is held against the specification.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

from staxlab import create_block_mask, omni_attention
from tests.attention.variants import Sizes, Source, Variant, expected

UNARY = (
    torch.tanh, torch.sigmoid, torch.sin, torch.neg, torch.abs, F.relu, F.silu, torch.square, F.softplus, torch.atan,
    torch.erf, F.gelu, torch.floor, lambda x: torch.exp(-x * x), lambda x: x.clamp(-1, 1),
    lambda x: torch.sqrt(x * x + 1),
)  # fmt: skip
BINARY = (
    torch.add, torch.sub, torch.mul, torch.maximum, torch.minimum, torch.atan2,
    lambda x, y: torch.where(x > y, x, y * 0.5), lambda x, y: x / (1 + y * y),
)  # fmt: skip
MASKS: tuple[Callable | None, ...] = (
    None,
    lambda b, h, q_idx, kv_idx: q_idx + 3 >= kv_idx,
    lambda b, h, q_idx, kv_idx: (q_idx * 3 + kv_idx) % (h + 2) != 0,
    lambda b, h, q_idx, kv_idx: (q_idx % 4 != 1) & (kv_idx - q_idx < 9),
)


def random_variant(seed: int) -> Variant:
    """A variant whose score modification, mask and sizes follow from ``seed``."""
    draw = random.Random(seed)
    heads = draw.choice([1, 3])
    sizes = Sizes(draw.choice([1, 2]), heads, heads, draw.choice([1, 5, 33, 40]), draw.choice([7, 33, 50]))
    steps = [tuple(draw.randrange(99) for _ in range(3)) for _ in range(draw.randrange(1, 9))]
    mask = draw.choice(MASKS)

    def score(source: Source, sizes: Sizes) -> Callable:
        keys, last = sizes.keys, sizes.keys - 1
        table, bias = source.learned("table", sizes.heads, sizes.queries), source.learned("bias", keys)
        relative = source.learned("relative", sizes.queries + last)
        kind = source.integers(2 * keys, sizes.queries) - keys

        def program(score, b, h, q_idx, kv_idx):
            values = [
                score, table[h, q_idx], bias[kind[q_idx]], (q_idx - kv_idx) * 0.1, bias[kv_idx] * (b + 1),
                torch.where(q_idx >= kv_idx, score, -score), relative[q_idx - kv_idx + last],
            ]  # fmt: skip
            for choice, first, second in steps:
                x, y = values[first % len(values)], values[second % len(values)]
                unary = choice < 50
                values.append(UNARY[choice % len(UNARY)](x) if unary else BINARY[choice % len(BINARY)](x, y))
            mixed = torch.tanh(sum(values[-3:])) * 3 + score
            return mixed + (table[h, q_idx] * bias[kv_idx] + relative[q_idx - kv_idx + last]) * 0.1

        return program

    return Variant(f"random {seed}", score, (lambda source, sizes: mask) if mask else None, sizes)


def check(seed: int, backend: str) -> None:
    variant = random_variant(seed)
    made, sizes = variant.make(), variant.sizes
    query, key, value = variant.inputs(requires_grad=True)
    blocks = create_block_mask(made.mask_mod, *sizes.scores, BLOCK_SIZE=16) if made.mask_mod else None
    wanted = expected(variant, made, query, key, value)
    output, lse = omni_attention(
        query, key, value, made.score_mod, blocks, return_lse=True, kernel_options={"BACKEND": backend}
    )
    torch.testing.assert_close(output.double(), wanted.output, rtol=3e-5, atol=3e-5)
    torch.testing.assert_close(lse.double(), wanted.lse, rtol=3e-5, atol=3e-5)
    inputs = [query, key, value, *made.learnable.values()]
    found = torch.autograd.grad((output, lse), inputs, variant.upstream())
    for ours, theirs in zip(found, (wanted.query, wanted.key, wanted.value, *wanted.learnable.values()), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=1e-3, atol=3e-4)


@pytest.mark.parametrize("seed", range(12))
def test_by_definition(seed):
    check(seed, "reference")


@pytest.mark.parametrize("seed", range(12, 14))
def test_in_cpp(seed):
    check(seed, "cpp")


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(14, 40))
def test_in_cpp_more_often(seed):
    check(seed, "cpp")


def in_triton(seed: int) -> None:
    pytest.importorskip("triton")
    from staxlab.codegen.triton.attention.backward import build_backward
    from staxlab.codegen.triton.attention.configurations import AttentionConfiguration
    from staxlab.codegen.triton.attention.forward import build_forward
    from tests.codegen.test_triton_attention_backward import MEDIUM
    from tests.codegen.test_triton_attention_backward import check as check_gradients
    from tests.codegen.triton_attention import setup

    variant = random_variant(seed)
    made = setup(variant)
    made.check(build_forward(made.problem, AttentionConfiguration(32, 32, 4, 2)), rtol=3e-5, atol=3e-5)
    check_gradients(made, variant, build_backward(made.problem, MEDIUM), 3e-5)


@pytest.mark.parametrize("seed", range(40, 44))
def test_in_triton(seed):
    in_triton(seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(44, 90))
def test_in_triton_more_often(seed):
    in_triton(seed)
