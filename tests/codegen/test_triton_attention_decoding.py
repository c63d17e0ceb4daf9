"""The decoding template of attention: shares of the keys, merged (Sections 6.5 and 9.10), in Triton's interpreter."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import staxlab
from staxlab.attention.block_mask import create_block_mask
from staxlab.attention.problem import BlockGeometry
from staxlab.options import GPU_SPECS
from tests.attention.variants import BY_NAME, VARIANTS, Sizes, Variant, alibi, lower_right_causal, strided_heads

pytest.importorskip("triton")

from staxlab.codegen.triton.attention.configurations import (
    AttentionConfiguration,
    decoding_configuration,
    is_packed,
    why_not_decoding,
)
from staxlab.codegen.triton.attention.decoding import build_decoding, decoding_kernels, prefers_decoding
from staxlab.errors import CodegenError
from tests.codegen.triton_attention import setup

CLOSE = {"rtol": 2e-5, "atol": 2e-5}
HALF = {torch.float16: 4e-3, torch.bfloat16: 3e-2}


def configuration(rows: int = 16, splits: int = 3, block_n: int = 16) -> AttentionConfiguration:
    return AttentionConfiguration(rows, block_n, 1, 2, splits=splits)


def few_queries(variant: Variant, queries: int = 3) -> Variant:
    return variant.at(queries=min(queries, variant.sizes.queries))


#: By day one in five; what differs between them is in the general template, too.
SOME = [v if k % 5 == 4 else pytest.param(v, marks=pytest.mark.slow) for k, v in enumerate(VARIANTS)]


@pytest.mark.parametrize("variant", SOME, ids=str)
def test_every_variant_agrees_for_few_queries(variant):
    made = setup(few_queries(variant))
    made.check(build_decoding(made.problem, configuration()), **CLOSE)


@pytest.mark.parametrize("name, splits", [
    ("decoding", 1), ("decoding", 7), ("decoding, ALiBi window", 2), ("decoding, lengths", 1), ("decoding, lengths", 7),
])  # fmt: skip
def test_any_number_of_shares_gives_the_same(name, splits):
    """Some shares have no key at all, or none that is visible: they are neutral."""
    made = setup(BY_NAME[name])
    made.check(build_decoding(made.problem, configuration(splits=splits)), **CLOSE)


@pytest.mark.parametrize("dtype", list(HALF), ids=str)
def test_half_precision(dtype):
    made = setup(BY_NAME["decoding, ALiBi window"], dtype)
    made.check(build_decoding(made.problem, configuration(splits=2)), rtol=HALF[dtype], atol=HALF[dtype])


def test_heads_that_share_keys_share_a_tile():
    """Queries of the four heads are the rows of one tile, so every key is read once."""
    made = setup(Variant("group", score=alibi, sizes=Sizes(2, 8, 2, 3, 70, 16, 16)))
    run = build_decoding(made.problem, configuration(splits=2))
    assert is_packed(made.problem) and run.kernels[0].launch["grid"] == (2 * 2 * 2, 1, 1)
    assert "h = (key_head * 4 + rows // 3)[:, None]" in run.source
    made.check(run, **CLOSE)
    assert run.traffic().keys == 2 * 2 * 70 * 32 * 4, "once each"


def test_blocks_of_one_query():
    made = setup(BY_NAME["decoding, ALiBi window"], block=(1, 32))
    made.check(build_decoding(made.problem), **CLOSE)


def test_heads_whose_blocks_differ_do_not():
    variant = Variant("heads", mask=strided_heads, sizes=Sizes(1, 4, 2, 2, 70, 16, 16))
    made = setup(variant)
    assert made.problem.blocks.head_varies and not is_packed(made.problem)
    run = build_decoding(made.problem, configuration(splits=2))
    assert run.kernels[0].launch["grid"] == (1 * 4 * 2, 1, 1)
    made.check(run, **CLOSE)


def test_heads_whose_blocks_are_alike_do_though_they_are_listed_for_each():
    """A mask made with H, whose function does not read h. Lists of the second group stand behind those of the first."""
    variant = Variant("alike", score=alibi, mask=lower_right_causal, sizes=Sizes(2, 6, 2, 3, 70, 16, 16))
    made = setup(variant)
    block_mask = create_block_mask(made.made.mask_mod, 2, 6, 3, 70, BLOCK_SIZE=32)
    assert block_mask.shape[:2] == (2, 6)
    made = made._replace(
        problem=replace(made.problem, blocks=BlockGeometry(32, 32, True, True, heads_alike=True)), block_mask=block_mask
    )
    run = build_decoding(made.problem, configuration(splits=2))
    assert run.kernels[0].launch["grid"] == (2 * 2 * 2, 1, 1) and "key_head * 3" in run.source
    made.check(run, **CLOSE)
    query, key, value = made.inputs
    options = {"BACKEND": "decode", "INTERPRET": True}
    arguments = (query, key, value, made.made.score_mod, block_mask, None, True, True)
    explained = staxlab.explain(staxlab.omni_attention, *arguments, options)
    assert "h = (key_head * 3 + rows // 3)[:, None]" in explained.kernels[0].source
    made.check(lambda *_: staxlab.omni_attention(*arguments, options), **CLOSE)


def test_strides_and_sizes_of_any_kind():
    key = torch.randn(2, 2, 20, 35).transpose(2, 3)
    value = torch.randn(2, 35, 2, 12).transpose(1, 2)
    query = torch.randn(2, 2, 4, 20).transpose(1, 2)
    made = setup(Variant("strides", score=alibi, sizes=Sizes(2, 4, 2, 2, 35, 20, 12)), inputs=(query, key, value))
    for splits in (1, 3):
        made.check(build_decoding(made.problem, configuration(splits=splits)), **CLOSE)


def test_shares_fill_the_device():
    """Batch 8, 32 query heads over 8 key heads, 32,768 keys: one wave that leaves few multiprocessors idle."""
    variant = Variant("decoding", sizes=Sizes(8, 32, 8, 1, 32768, 128, 128))
    sizes = ((32, 1), (8, 32768), (8, 32768))
    inputs = tuple(torch.empty(1, dtype=torch.bfloat16).expand(8, heads, n, 128) for heads, n in sizes)
    problem = setup(variant, inputs=inputs).problem
    chosen = decoding_configuration(problem)
    instances, slots = 64 * chosen.splits, 2 * GPU_SPECS["sm_90"].multiprocessors
    waves = -(-instances // slots)
    assert chosen.block_m == 16 and instances / (waves * slots) > 0.95
    decision = prefers_decoding(problem)
    assert decision.choice == "decode" and f"{chosen.splits} shares" in decision.reason
    kernel, merge = decoding_kernels(problem)
    assert kernel.bytes_read >= 2 * 8 * 8 * 32768 * 128 * 2 and merge.launch["grid"] == (8 * 32, 1, 1)


def test_short_keys_are_not_split():
    problem = setup(Variant("short", sizes=Sizes(1, 1, 1, 1, 100, 16, 16))).problem
    assert decoding_configuration(problem).splits == 1
    (kernel,) = decoding_kernels(problem)
    assert "part_acc" not in kernel.source


def test_many_queries_are_for_the_general_template():
    problem = setup(Variant("many", sizes=Sizes(1, 4, 1, 33, 40, 16, 16))).problem
    assert why_not_decoding(problem) == "132 queries read the same keys, and decoding takes 64"
    assert prefers_decoding(problem).choice == "triton"
    with pytest.raises(CodegenError, match="132 queries read the same keys"):
        build_decoding(problem)
    rows = setup(replace(BY_NAME["causal"], sizes=Sizes(1, 1, 1, 40, 40, 16, 16)), block=32).problem
    assert "several rows of blocks" in why_not_decoding(rows)
