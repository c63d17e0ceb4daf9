"""The backward kernels of attention against the N x M specification, in Triton's interpreter (Section 9.10)."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
import torch

from tests.attention.variants import BY_NAME, VARIANTS, Sizes, Variant, alibi, causal, expected, window

pytest.importorskip("triton")

from staxlab.codegen.triton.attention.backward import AttentionBackward, backward_source, build_backward
from staxlab.codegen.triton.attention.backward_configurations import (
    BackwardConfiguration,
    Tiles,
    candidates,
    combined,
    default_configuration,
    shared_bytes,
)
from staxlab.codegen.triton.compile import aot_compile
from staxlab.codegen.triton.resources import resource_usage
from staxlab.codegen.triton.templates.configurations import SHARED_MEMORY
from staxlab.errors import CodegenError
from tests.codegen.triton_attention import Setup, setup

HALF = {torch.float16: 8e-3, torch.bfloat16: 4e-2}
SMALL = BackwardConfiguration(Tiles(16, 16, 4, 2), Tiles(16, 16, 4, 2))
MEDIUM = BackwardConfiguration(Tiles(16, 32, 4, 2), Tiles(32, 16, 4, 2))


def gradients(made: Setup, variant: Variant, run: AttentionBackward, with_lse: bool = True) -> list[tuple]:
    """Pairs of what the kernels make and what the specification says, of queries, keys, values, captured tensors."""
    problem = made.problem
    upstream = list(variant.upstream(problem.dtype))
    if not with_lse:
        upstream[1] = None
    wanted = expected(replace(variant, scale=made.scale), made.made, *made.inputs, tuple(upstream))
    out = torch.empty_strided(wanted.output.shape, problem.output_strides, dtype=problem.dtype).copy_(wanted.output)
    found = run(*made.inputs, out, wanted.lse.float(), *upstream, made.block_mask, made.captured)
    learned = [c for c in problem.captured if c.requires_grad]
    assert len(found) == 3 + len(learned)
    names = {id(tensor): name for name, tensor in made.made.learnable.items()}
    pairs = list(zip(found, (wanted.query, wanted.key, wanted.value), strict=False))
    return pairs + [(g, wanted.learnable[names[id(c.tensor)]]) for g, c in zip(found[3:], learned, strict=True)]


def check(
    made: Setup, variant: Variant, run: AttentionBackward, tolerance: float = 2e-5, with_lse: bool = True
) -> None:
    """Every gradient agrees, up to ``tolerance`` times its largest element, and lies as it should."""
    pairs = gradients(made, variant, run, with_lse)
    for (found, _), strides in zip(pairs, made.problem.gradient_strides, strict=False):
        assert found.dtype == made.problem.dtype and found.stride() == strides
    assert all(found.is_contiguous() for found, _ in pairs[3:])
    for found, wanted in pairs:
        assert not found.isnan().any()
        largest = float(wanted.abs().max())
        torch.testing.assert_close(found.double(), wanted, rtol=0.0, atol=tolerance * max(largest, 1e-3))


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_variant_agrees_with_the_specification(variant):
    made = setup(variant)
    check(made, variant, build_backward(made.problem, MEDIUM))


@pytest.mark.parametrize("name", ["causal ALiBi", "documents", "grouped queries, learned", "several blocks", "lengths"])
@pytest.mark.parametrize("dtype", list(HALF), ids=str)
def test_half_precision_is_as_close_as_its_rounding(name, dtype):
    variant = BY_NAME[name]
    made = setup(variant, dtype)
    check(made, variant, build_backward(made.problem, MEDIUM), HALF[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_the_rules_configuration_agrees(target, dtype):
    variant = BY_NAME["several blocks, learned"]
    made = setup(variant, dtype, 128, target)
    run = build_backward(made.problem)
    fetched = "make_tensor_descriptor" in run.source
    assert fetched == (target == "sm_90" and dtype != torch.float32)
    check(made, variant, run, HALF.get(dtype, 2e-5))


@pytest.mark.parametrize("block", [16, 64, (16, 48), (64, 32)], ids=str)
def test_blocks_of_any_shape_are_walked_along_in_tiles(block):
    variant = Variant("window", score=alibi, mask=window, sizes=Sizes(1, 2, 1, 75, 90, 16, 16))
    made = setup(variant, block=block)
    check(made, variant, build_backward(made.problem, SMALL))


@pytest.mark.parametrize("head_size, value_size", [(40, 24), (7, 33), (1, 2), (256, 256)])
def test_head_sizes_that_are_no_powers_of_two(head_size, value_size):
    variant = Variant("sizes", score=alibi, mask=causal, sizes=Sizes(1, 2, 1, 20, 19, head_size, value_size))
    made = setup(variant)
    check(made, variant, build_backward(made.problem, SMALL))


@pytest.mark.parametrize("fetch", [False, True])
def test_the_accelerator_reads_the_same(fetch):
    """Descriptors deliver zeros past the edge, and in columns that a head does not have."""
    tiles = Tiles(16, 16, 4, 2, fetch)
    for heads, sizes in ((1, (37, 41, 16, 24)), (2, (37, 41, 16, 24)), (2, (64, 64, 40, 40))):
        for masked in (True, False):
            shape = Sizes(1, 2, heads, *sizes)
            variant = Variant("sizes", score=alibi, mask=causal if masked else None, sizes=shape)
            made = setup(variant, torch.float16)
            run = build_backward(made.problem, BackwardConfiguration(tiles, tiles))
            assert ("make_tensor_descriptor" in run.source) == fetch
            check(made, variant, run, HALF[torch.float16])
    for kernel in run.kernels()[1:]:
        assert ("unaligned" in kernel.launch) == fetch
        assert not fetch or "descriptor" not in kernel.launch["unaligned"].source


def test_strides_of_any_kind():
    """Of the inputs, and of the gradient that autograd hands over: projections leave heads inside rows; the gradient of
    a sum is one number, expanded."""
    query = torch.randn(2, 21, 2, 16).transpose(1, 2)
    key = torch.randn(1, 2, 16, 35).transpose(2, 3).expand(2, 2, 35, 16)
    value = torch.randn(2, 2, 35, 32)[..., ::2]
    variant = Variant("strides", score=alibi, sizes=Sizes(2, 2, 2, 21, 35, 16, 16))
    made = setup(variant, inputs=(query, key, value))
    run = build_backward(made.problem, SMALL)
    check(made, variant, run)
    ones = torch.ones(()).expand(2, 2, 21, 16)
    for upstream in (ones, torch.randn(2, 21, 2, 16).transpose(1, 2)):
        wanted = expected(variant, made.made, query, key, value, (upstream, None))
        found = run(query, key, value, wanted.output.float(), wanted.lse.float(), upstream)
        for ours, theirs in zip(found, (wanted.query, wanted.key, wanted.value), strict=True):
            torch.testing.assert_close(ours.double(), theirs, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("scale", [-0.7, 0.0, 3.0])
def test_scales_of_any_sign(scale):
    variant = replace(BY_NAME["causal ALiBi"], scale=scale)
    made = setup(variant)
    check(made, variant, build_backward(made.problem, SMALL))


def test_without_a_gradient_of_the_logarithm():
    variant = BY_NAME["causal ALiBi"]
    made = setup(variant)
    check(made, variant, build_backward(made.problem, MEDIUM), with_lse=False)


# -- what must not become NaN ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["hidden rows", "nothing visible"])
def test_rows_that_see_nothing_give_nothing(name):
    """Whatever comes in as the gradient of their logarithm, which is minus infinity."""
    variant = BY_NAME[name]
    made = setup(variant)
    wanted = expected(variant, made.made, *made.inputs)
    hidden = wanted.lse == -math.inf
    assert hidden.any()
    d_out, d_lse = variant.upstream()
    d_lse = torch.where(hidden, math.nan, d_lse)
    found = build_backward(made.problem, SMALL)(
        *made.inputs, wanted.output.float(), wanted.lse.float(), d_out, d_lse, made.block_mask, made.captured
    )
    for ours, theirs in zip(found, (wanted.query, wanted.key, wanted.value), strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=2e-5, atol=2e-5)
    assert not found[0][hidden].any()


def test_an_infinite_derivative_of_what_is_hidden_counts_for_nothing():
    """``log(q - kv + 1)`` is NaN above the diagonal, and minus infinity next to it, where the mask hides it."""

    def score(source, sizes):
        weight = source.learned("weight", 2, about=0.5)

        def distance(score, b, h, q_idx, kv_idx):
            ahead = (q_idx - kv_idx + 1).to(torch.float32)
            return score * ahead.sqrt() - weight[h] * ahead.log()

        return distance

    variant = Variant("distance", score=score, mask=causal, sizes=Sizes(1, 2, 2, 37, 37, 16, 16))
    made = setup(variant)
    (weight,) = made.made.learnable.values()
    q, k, v = (x.double().requires_grad_() for x in made.inputs)
    m, n = torch.arange(37)[:, None], torch.arange(37)[None, :]
    ahead = (m - n + 1).clamp(min=1).double()
    wide = weight.detach().double().requires_grad_()
    scores = (q @ k.transpose(2, 3)) * made.scale * ahead.sqrt() - wide[:, None, None] * ahead.log()
    scores = torch.where(m >= n, scores, -math.inf)
    out, lse = scores.softmax(-1) @ v, scores.logsumexp(-1)
    upstream, _ = variant.upstream()
    wanted = torch.autograd.grad(out, [q, k, v, wide], upstream.double())
    run = build_backward(made.problem, SMALL)
    found = run(
        *made.inputs, out.detach().float(), lse.detach().float(), upstream, None, made.block_mask, made.captured
    )
    for ours, theirs in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours.double(), theirs, rtol=2e-5, atol=2e-5)


def test_what_does_not_exist_counts_for_nothing():
    """A function that is NaN at queries and keys past the end, with an infinite derivative at the first of them."""

    def score(source, sizes):
        weight = source.learned("weight", 2, about=0.5)

        def until_the_end(score, b, h, q_idx, kv_idx):
            left = (sizes.queries - q_idx).to(torch.float32).log() + (sizes.keys - kv_idx).to(torch.float32).sqrt()
            return score * left + weight[h] * left

        return until_the_end

    variant = Variant("until the end", score=score, sizes=Sizes(1, 2, 1, 37, 41, 16, 16))
    made = setup(variant)
    check(made, variant, build_backward(made.problem, SMALL))


def test_a_nan_stays_where_it_can_be_seen():
    """A query that is NaN spoils its own gradient, and those of the keys and values it sees; no other."""
    variant = Variant("plain", mask=causal, sizes=Sizes(1, 1, 1, 40, 40, 16, 16))
    made = setup(variant, block=16)
    query, key, value = made.inputs
    query[0, 0, 20] = math.nan
    wanted = expected(variant, made.made, query, key, value)
    out, lse = wanted.output.float(), wanted.lse.float()
    d_query, d_key, d_value = build_backward(made.problem, SMALL)(
        query, key, value, out, lse, *variant.upstream(), made.block_mask
    )
    assert d_query.isnan().any(-1)[0, 0].nonzero().flatten().tolist() == [20]
    for gradient in (d_key, d_value):
        spoilt = gradient.isnan().any(-1)[0, 0]
        assert spoilt[:21].all() and not spoilt[32:].any()


# -- captured tensors --------------------------------------------------------------------------------------------------


def test_a_captured_tensor_with_gaps_and_turned_round():
    """The gradient is summed up where the kernel reads, and given back in the tensor's own shape."""
    memory = torch.randn(40, 3, 2)
    table = memory[::2, :, 1].t().requires_grad_()  # [3, 20], neither dimension dense

    def score(source, sizes):
        source.learnable["table"] = table
        return lambda score, b, h, q_idx, kv_idx: score * table[h, kv_idx]

    variant = Variant("gaps", score=score, sizes=Sizes(1, 3, 3, 20, 20, 16, 16))
    made = setup(variant)
    assert made.captured[0].stride() == (2, 12)
    check(made, variant, build_backward(made.problem, SMALL))


def test_gradients_are_made_of_what_is_wanted():
    """Of a tensor that a mask captured there is none, and what no derivative reaches is zero."""
    variant = BY_NAME["learned scalars"]
    made = setup(variant)
    run = build_backward(made.problem, SMALL)
    wanted = expected(variant, made.made, *made.inputs)
    arguments = (*made.inputs, wanted.output.float(), wanted.lse.float(), *variant.upstream(), None, made.captured)
    assert len(run(*arguments)) == 5 and len(run(*arguments, [False, False])) == 3
    both, second = run(*arguments), run(*arguments, [False, True])
    torch.testing.assert_close(second[3], both[4])
    variant = BY_NAME["documents"]
    made = setup(variant)
    wanted = expected(variant, made.made, *made.inputs)
    arguments = (*made.inputs, wanted.output.float(), wanted.lse.float(), *variant.upstream(), made.block_mask)
    *_, last = build_backward(made.problem, SMALL)(*arguments, made.captured, [True] * len(made.captured))
    assert not last.any()


def test_a_contribution_is_summed_over_the_tile_before_it_goes_to_memory():
    """Along the dimensions that the subscript does not vary on; only captured tensors are added to atomically."""
    per_head = build_backward(setup(BY_NAME["learned bias of heads"]).problem, SMALL).kernels()
    atomics = [line.text for line in per_head[1].lines if "atomic_add" in line.text]
    assert atomics and all("d_captured0" in text for text in atomics)
    assert per_head[1].source.count("tl.sum(") == 2 * len(atomics)
    of_scores = build_backward(setup(BY_NAME["learned additive bias"]).problem, SMALL).kernels()
    assert "tl.sum(" not in of_scores[1].source and "atomic_add" in of_scores[1].source
    for kernels in (per_head, of_scores):
        assert "atomic" not in kernels[0].source + kernels[2].source
    shared = build_backward(setup(BY_NAME["grouped queries"]).problem, SMALL).source
    assert "atomic" not in shared and "for member in tl.range(2, num_stages=1)" in shared


# -- the texts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("ragged", [False, True])
def test_whole_tiles_have_no_masks(ragged):
    variant = Variant("whole", score=alibi, sizes=Sizes(1, 1, 1, 32, 33 if ragged else 32, 16, 16))
    made = setup(variant)
    run = build_backward(made.problem, SMALL)
    assert ("n_mask" in run.source) == ragged and "m_mask" not in run.source
    check(made, variant, run)


def test_the_users_lines_and_their_derivative_stand_between_comments():
    made = setup(BY_NAME["causal ALiBi soft cap"])
    run = build_backward(made.problem, MEDIUM)
    for kernel in run.kernels()[1:]:
        text = kernel.source
        assert "# score_mod " in text and "# derivative of score_mod " in text and "# mask_mod causal" in text
        assert max(map(len, text.splitlines())) <= 200
        lines = text.splitlines()
        (first, *_) = (k for k, line in enumerate(lines) if "# derivative of score_mod" in line)
        derivative = kernel.lines[first + 1]
        assert derivative.origins and derivative.origins <= made.problem.score.body.origins
        # The derivative of tanh is made of tanh itself, which stands above it.
        loop = text[text.index("# the partial blocks") : text.index("# the full blocks")]
        assert loop.count("libdevice.tanh(") == 1
    assert backward_source(made.problem, MEDIUM) == run.source
    assert [line.text for line in run.listing if "mask_mod causal" in line.text]


def test_the_three_kernels_are_drawn_and_printed():
    run = build_backward(setup(BY_NAME["causal ALiBi"]).problem, SMALL)
    drawn = run._repr_mimebundle_()
    for kernel in run.kernels():
        assert kernel.name in drawn["text/html"] and kernel.name in drawn["text/plain"] and kernel.name in str(run)


def test_partial_blocks_ask_the_mask_and_full_ones_do_not():
    run = build_backward(setup(BY_NAME["causal"]).problem, SMALL)
    for kernel in run.kernels()[1:]:
        partial, full = kernel.source.split("# the full blocks")
        assert "# mask_mod causal" in partial and "# mask_mod" not in full


def test_a_layout_of_the_gradient_is_a_text_of_its_own():
    made = setup(BY_NAME["plain"])
    run = build_backward(made.problem, SMALL)
    variant = BY_NAME["plain"]
    check(made, variant, run)
    check(made, variant, run, with_lse=False)
    assert len({kernels[0].source for kernels in run._kernels.values()}) == len(run._kernels) == 2


# -- configurations ----------------------------------------------------------------------------------------------------


def large(target: str, dtype: torch.dtype = torch.bfloat16, head: int = 128, variant: Variant | None = None):
    """A causal problem of the size that is measured, of which only metadata exists."""
    base = setup(variant or Variant("causal", mask=causal, sizes=Sizes(1, 2, 1, 256, 256, 16, 16)), dtype, 128, target)
    heads, keys = 16, 16 // (base.problem.group or 1)
    strides = {
        f"{name}_strides": (h * 8192 * head, 8192 * head, head, 1)
        for name, h in (("query", heads), ("key", keys), ("value", keys))
    }
    return replace(
        base.problem, batch=4, query_heads=heads, key_heads=keys, queries=8192, keys=8192, head_size=head,
        value_size=head, scale=head**-0.5, **strides,
    )  # fmt: skip


@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
@pytest.mark.parametrize("head", [16, 64, 96, 128, 192, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_configurations_fit(target, head, dtype):
    problem = large(target, dtype, head)
    capability = int(target[3:])
    rule, decisions = default_configuration(problem)
    found = candidates(problem)
    assert found[0] == rule and [d.topic for d in decisions] == ["attention-backward"] * 2
    assert str(rule.keys) == decisions[0].choice
    for configuration in found:
        for over in ("keys", "queries"):
            tiles = getattr(configuration, over)
            assert 128 % tiles.block_m == 0 and 128 % tiles.block_n == 0
            assert shared_bytes(problem, tiles, over) <= SHARED_MEMORY[capability]
    assert len(found) > 10 or dtype == torch.float32 or head > 128


def test_the_best_of_both_kernels_is_combined():
    """Each candidate changes one kernel, so times of whole passes are compared among those that change the same."""
    problem = large("sm_90")
    rule, *others = candidates(problem)
    seconds = dict.fromkeys(candidates(problem), 1.0)
    keys = next(c for c in others if c.keys != rule.keys)
    queries = next(c for c in others if c.queries != rule.queries)
    assert combined(problem, seconds | {keys: 0.9, queries: 0.8}) == BackwardConfiguration(keys.keys, queries.queries)
    assert combined(problem, seconds | {keys: 0.9}).keys == keys.keys
    assert combined(problem, {keys: 2.0, rule: 1.0}) == combined(problem, {}) == rule


def test_tiles_are_no_larger_than_what_there_is():
    made = setup(Variant("short", sizes=Sizes(1, 1, 1, 20, 300, 64, 64)), torch.bfloat16)
    rule, _ = default_configuration(made.problem)
    assert rule.keys.block_m == rule.queries.block_m == 32 and rule.keys.block_n == 128


@pytest.mark.parametrize("block", [37, 50, (37, 16)], ids=str)
def test_a_single_row_of_blocks_may_be_of_any_size(block):
    variant = BY_NAME["causal ALiBi"]
    made = setup(variant, block=block)
    check(made, variant, build_backward(made.problem))
    check(made, variant, build_backward(made.problem, SMALL))


def test_what_cannot_be_is_refused():
    made = setup(BY_NAME["causal"], block=20)
    with pytest.raises(CodegenError, match="blocks of 20 queries"):
        build_backward(made.problem)
    with pytest.raises(CodegenError, match="tiles of 16 x 16 do not divide blocks of 20 x 20"):
        build_backward(made.problem, SMALL)
    with pytest.raises(CodegenError, match="float64"):
        build_backward(replace(made.problem, dtype=torch.float64))
    empty = setup(Variant("no keys", sizes=Sizes(1, 1, 1, 5, 0, 16, 16)))
    with pytest.raises(CodegenError, match="nothing to compute"):
        build_backward(empty.problem)
    made = setup(BY_NAME["causal"])
    wanted = expected(BY_NAME["causal"], made.made, *made.inputs)
    arguments = (*made.inputs, wanted.output.float(), wanted.lse.float(), *BY_NAME["causal"].upstream())
    with pytest.raises(CodegenError, match="given no block mask and 0 captured tensors"):
        build_backward(made.problem, SMALL)(*arguments)


def test_traffic_counts_every_element_once():
    problem = large("sm_90")
    rows, of_keys, row = 4 * 16 * 8192, 4 * 8 * 8192, 256 * 2
    traffic = build_backward(problem).traffic()
    assert traffic["rows"] == rows * (row + 4 + 8)
    assert traffic["keys"] == (rows + of_keys) * row + 8 * rows + of_keys * row
    assert traffic["queries"] == (rows + of_keys) * row + 8 * rows + rows * 256


# -- compiled ahead of time --------------------------------------------------------------------------------------------


def test_compiled_for_hopper_nothing_spills():
    """The products run on the matrix units of compute capability 9, and accumulators stay in registers."""
    variant = Variant("causal", mask=causal, sizes=Sizes(1, 2, 2, 256, 256, 16, 16))
    for kernel in build_backward(large("sm_90", variant=variant)).kernels():
        usage = resource_usage(kernel, 90)
        assert usage.spills == 0, (kernel.name, usage)
        ptx = aot_compile(kernel, 90)["ptx"]
        assert ("wgmma.mma_async" in ptx) == (kernel.name != "triton_attention_backward_rows")
        assert not re.search(r"\b(atom|red)\.", ptx)


@pytest.mark.slow
@pytest.mark.parametrize("head", [64, 128, 256])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_compiled_for_every_target(target, dtype, head):
    """With a derivative, captured tensors that learn and shared key heads; a few registers may spill."""
    variant = BY_NAME["grouped queries, learned"]
    for kernel in build_backward(large(target, dtype, head, variant)).kernels():
        usage = resource_usage(kernel, int(target[3:]))
        assert usage.spills <= 160, (kernel.name, usage)
        assert usage.shared <= SHARED_MEMORY[int(target[3:])]
