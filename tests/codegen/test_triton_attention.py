"""The forward template of attention against the N x M specification, in Triton's interpreter (Section 9.10)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from tests.attention import variants
from tests.attention.variants import BY_NAME, VARIANTS, Sizes, Variant, alibi, causal, nothing, strided_heads, window

pytest.importorskip("triton")

from staxlab.attention.modification import modification
from staxlab.codegen.triton.attention.configurations import AttentionConfiguration
from staxlab.codegen.triton.attention.forward import build_forward, forward_kernel, forward_traffic
from staxlab.codegen.triton.attention.handler import RELAXED
from staxlab.codegen.triton.attention.pieces import why_not
from staxlab.codegen.triton.attention.running import heaviest_first
from staxlab.errors import CodegenError
from tests.codegen.triton_attention import setup

CLOSE = {"rtol": 2e-5, "atol": 2e-5}
HALF = {torch.float16: 4e-3, torch.bfloat16: 3e-2}
SMALL = AttentionConfiguration(16, 16, 4, 2)
MEDIUM = AttentionConfiguration(32, 32, 4, 2)


@pytest.mark.parametrize("variant", VARIANTS, ids=str)
def test_every_variant_agrees_with_the_specification(variant):
    made = setup(variant)
    made.check(build_forward(made.problem, MEDIUM), **CLOSE)


@pytest.mark.parametrize(
    "name", ["causal ALiBi", "documents", "grouped queries, learned", "several blocks", "soft cap", "sigmoid gate"]
)
@pytest.mark.parametrize("dtype", list(HALF), ids=str)
def test_half_precision_is_as_close_as_its_rounding(name, dtype):
    made = setup(BY_NAME[name], dtype)
    made.check(build_forward(made.problem, MEDIUM), rtol=HALF[dtype], atol=HALF[dtype])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("target", ["sm_80", "sm_90"])
def test_the_rules_configuration_agrees(target, dtype):
    made = setup(BY_NAME["several blocks"], dtype, 128, target)
    tolerance = HALF.get(dtype, 2e-5)
    made.check(build_forward(made.problem), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", ["several blocks", "several blocks, learned", "soft cap", "plain", "hidden rows"])
def test_the_accelerator_reads_the_same(name):
    """Descriptors deliver zeros past the edge."""
    made = setup(BY_NAME[name], block=128)
    made.check(build_forward(made.problem, replace(MEDIUM, fetch=True)), **CLOSE)


@pytest.mark.parametrize("name", ["several blocks", "several blocks, learned", "soft cap", "plain", "hidden rows"])
def test_results_multiplied_lazily_are_the_same(name):
    made = setup(BY_NAME[name], block=32)
    run = build_forward(made.problem, replace(MEDIUM, lazy=True))
    assert "if tl.max((new_max > row_max + 8.0)" in run.source
    made.check(run, **CLOSE)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
@pytest.mark.parametrize("scale", [0.5, 20.0, -20.0])
def test_lazily_multiplied_results_follow_maxima_that_grow(scale, dtype):
    """Scores that grow from tile to tile by less than 2 ** 8, or by far more; float16 holds the exponentials."""
    sizes = Sizes(1, 2, 2, 40, 150, 16, 16)

    def growing(source, sizes):
        return lambda score, b, h, q_idx, kv_idx: score + kv_idx * 0.3 * h

    made = setup(Variant("growing", score=growing, mask=causal, sizes=sizes, scale=scale), dtype, 32)
    tolerance = HALF.get(dtype, 1e-4)
    made.check(build_forward(made.problem, replace(SMALL, lazy=True)), rtol=tolerance, atol=tolerance)


def test_a_tensor_that_starts_anywhere_takes_the_other_kernel():
    """Descriptors hold addresses at multiples of 16 bytes."""
    made = setup(BY_NAME["causal"], block=32)
    key = made.inputs[1]
    shifted = torch.empty(key.numel() + 1)[1:].view(key.shape).copy_(key)
    made = made._replace(inputs=(made.inputs[0], shifted, made.inputs[2]))
    for ordered in (True, False):
        run = build_forward(made.problem, replace(MEDIUM, fetch=True, heaviest_first=ordered))
        (kernel,) = run.kernels
        assert "make_tensor_descriptor" in kernel.source
        assert "make_tensor_descriptor" not in kernel.launch["unaligned"].source
        assert kernel.launch["unaligned"].arguments == kernel.arguments
        made.check(run, **CLOSE)


@pytest.mark.parametrize("ragged", [False, True])
def test_whole_tiles_have_no_masks(ragged):
    variant = Variant("whole", score=alibi, sizes=Sizes(1, 1, 1, 32, 33 if ragged else 32, 16, 16))
    made = setup(variant)
    run = build_forward(made.problem, SMALL)
    assert ("n_mask" in run.source) == ragged and "m_mask" not in run.source
    made.check(run, **CLOSE)


@pytest.mark.parametrize("head_size, value_size", [(40, 24), (7, 33), (1, 2), (256, 256)])
def test_head_sizes_that_are_no_powers_of_two(head_size, value_size):
    variant = Variant("sizes", score=alibi, mask=causal, sizes=Sizes(1, 2, 1, 20, 19, head_size, value_size))
    made = setup(variant)
    made.check(build_forward(made.problem, SMALL), **CLOSE)


def test_strides_of_any_kind():
    """Projections leave heads inside rows; keys may be stored by columns, and the batch may be expanded."""
    query = torch.randn(2, 21, 2, 16).transpose(1, 2)
    key = torch.randn(1, 2, 16, 35).transpose(2, 3).expand(2, 2, 35, 16)
    value = torch.randn(2, 2, 35, 32)[..., ::2]
    variant = Variant("strides", score=alibi, sizes=Sizes(2, 2, 2, 21, 35, 16, 16))
    made = setup(variant, inputs=(query, key, value))
    made.check(build_forward(made.problem, SMALL), **CLOSE)
    assert made.problem.output_strides[1] < made.problem.output_strides[2], "the result has the query's order"


@pytest.mark.parametrize("scale", [-0.7, 0.0, 3.0])
def test_scales_of_any_sign(scale):
    """The largest score is only the largest after a positive scale."""
    made = setup(replace(BY_NAME["causal"], scale=scale))
    made.check(build_forward(made.problem, SMALL), **CLOSE)


@pytest.mark.parametrize("rows, columns", [(16, 48), (64, 32), (32, 128)])
def test_blocks_that_are_not_square(rows, columns):
    variant = Variant("window", mask=window, sizes=Sizes(1, 2, 2, 75, 90, 16, 16))
    made = setup(variant, block=(rows, columns))
    made.check(build_forward(made.problem, SMALL), **CLOSE)


def test_the_only_block_may_be_of_any_size():
    """Where there is one row of blocks, or one column, nothing has to divide it."""
    made = setup(BY_NAME["causal"], block=(50, 37))
    assert not why_not(made.problem) and not why_not(replace(made.problem, needs_gradient=True))
    made.check(build_forward(made.problem), **CLOSE)
    made = setup(BY_NAME["causal, lower right"], block=(21, 16))
    made.check(build_forward(made.problem, SMALL), **CLOSE)


def test_a_full_block_that_hangs_over_is_visited_with_the_partial_ones():
    """So that no other full block needs a bound; here one is the last of the list, the only one, or there is none."""
    for mask in (variants.lower_right_causal, variants.prefix, lambda *_: lambda b, h, q, kv: q >= 0):
        variant = Variant("hanging", score=alibi, mask=mask, sizes=Sizes(2, 1, 1, 70, 150, 16, 16))
        made = setup(variant, block=64)
        run = build_forward(made.problem, MEDIUM)
        full, partial = run.source.split("# Full blocks")[1].split("# Partial blocks")
        assert "n_mask" not in full and "n_mask" in partial
        made.check(run, **CLOSE)


@pytest.mark.parametrize("queries", [129, 160, 200, 256])
def test_the_last_row_of_blocks_may_start_first(queries):
    """Its block holds fewer tiles than the others, and under a causal mask it is the heaviest."""
    variant = Variant("causal", mask=causal, sizes=Sizes(1, 1, 1, queries, queries, 16, 16))
    made = setup(variant, block=64)
    made.check(build_forward(made.problem, SMALL), **CLOSE)
    made.check(build_forward(made.problem, replace(SMALL, heaviest_first=False)), **CLOSE)


def test_rows_start_in_the_order_of_their_blocks():
    made = setup(Variant("causal", mask=causal, sizes=Sizes(1, 1, 1, 96, 96, 16, 16)), block=32)
    assert heaviest_first(made.block_mask).tolist() == [[[2, 1, 0]]]
    assert heaviest_first(made.block_mask) is heaviest_first(made.block_mask), "made once for a block mask"
    made = setup(Variant("heads", mask=strided_heads), block=32)
    order = heaviest_first(made.block_mask)
    assert order.shape == made.block_mask.kv_num_blocks.shape and order.dtype == torch.int32


def test_an_infinite_score_and_a_nan_stay_in_their_rows():
    made = setup(Variant("plain", mask=causal))
    query, key, value = made.inputs
    query[0, 0, 3] = float("nan")
    out, lse = build_forward(made.problem, SMALL)(query, key, value, made.block_mask)
    broken = torch.zeros(query.shape[:3], dtype=torch.bool)
    broken[0, 0, 3] = True
    assert torch.equal(out.isnan().any(-1), broken) and torch.equal(lse.isnan(), broken)


def test_nothing_visible_and_nothing_there():
    made = setup(Variant("nothing", mask=nothing))
    out, lse = build_forward(made.problem, SMALL)(*made.inputs, made.block_mask)
    assert not out.any() and (lse == float("-inf")).all()
    empty = Variant("no keys", sizes=Sizes(1, 1, 1, 5, 0, 16, 16))
    made = setup(empty)
    out, lse = build_forward(made.problem, SMALL)(*made.inputs)
    assert out.shape == (1, 1, 5, 16) and not out.any() and (lse == float("-inf")).all()


def test_the_users_lines_stand_between_comments():
    made = setup(BY_NAME["causal ALiBi"])
    kernel = forward_kernel(made.problem, SMALL)
    text = kernel.source
    assert "# score_mod alibi, variants.py:" in text and "# end of alibi" in text
    assert "# mask_mod causal, variants.py:" in text
    assert all(len(line) <= 200 for line in text.splitlines())
    of_score = made.problem.score.body.origins
    inside = text.splitlines().index(next(x for x in text.splitlines() if x.endswith("# end of alibi")))
    assert of_score and kernel.lines[inside - 1].origins <= of_score and kernel.lines[inside - 1].origins


def test_half_precision_has_functions_without_branches():
    """Divisions and hyperbolic tangents of single scores: accurate in float32, fast in half precision."""
    exact = forward_kernel(setup(BY_NAME["soft cap"]).problem, MEDIUM).source
    assert "tl.div_rn" in exact and "libdevice.tanh" in exact
    made = setup(BY_NAME["soft cap"], torch.bfloat16)
    text = forward_kernel(made.problem, MEDIUM).source
    assert "libdevice" not in text and "score * 0.2  # divided by 5" in text
    scores = torch.linspace(-30, 30, 16 * 37 * 4).view(4, 37, 16) / 8
    scores[0, 0] = torch.tensor([0.0, -0.0, 1e-6, -1e-6, 1e4, -1e4, float("inf"), float("-inf")] * 2)
    found = relaxed("tanh", scores), relaxed("sigmoid", scores)
    for ours, theirs in zip(found, (torch.tanh(scores.double()), torch.sigmoid(scores.double())), strict=True):
        assert (ours.double() - theirs).abs().max() <= 2.0**-22


def relaxed(operation: str, value: torch.Tensor) -> torch.Tensor:
    """What a relaxed operation computes, with PyTorch in Triton's place."""
    import types

    return eval(RELAXED[operation].format(a="value"), {"tl": types.SimpleNamespace(exp2=torch.exp2), "value": value})


def test_a_distance_is_converted_by_rows_and_columns():
    """One conversion per row and per column, not one per score: both are exact below 2**24."""
    text = forward_kernel(setup(BY_NAME["ALiBi"]).problem, SMALL).source
    assert "(m).to(tl.float32)" in text and "(n).to(tl.float32)" in text and "m - n" not in text
    far = Variant("far", score=alibi, sizes=Sizes(1, 1, 1, 1 << 25, 4, 16, 16))
    inputs = torch.empty(1, 1, 1, 16), torch.empty(1, 1, 4, 16), torch.empty(1, 1, 4, 16)
    inputs = (inputs[0].expand(1, 1, 1 << 25, 16), *inputs[1:])
    text = forward_kernel(setup(far, inputs=inputs).problem, SMALL).source
    assert "(m - n)" in text, "2**25 is too large for that"


#: Comparisons in which what moves along the loop stands beside what does not, and what becomes of them.
MIXED = {
    "q - kv <= 5": (lambda b, h, q, kv: q - kv <= 5, "n >= "),
    "2 q - kv > 7": (lambda b, h, q, kv: 2 * q - kv > 7, "n < "),
    "kv - q == h": (lambda b, h, q, kv: kv - q == h, "n == "),
    "q + 3 kv != b + 30": (lambda b, h, q, kv: q + 3 * kv != b + 30, " != "),
    "q - kv < q - 9": (lambda b, h, q, kv: q - kv < q - 9, "n > "),
}


@pytest.mark.parametrize("name", MIXED)
def test_what_moves_along_the_loop_is_compared_with_the_rest(name):
    """No element is subtracted first: the right side is computed in front of the loop."""
    mask, comparison = MIXED[name]
    made = setup(Variant(name, mask=lambda *_: mask, sizes=Sizes(2, 2, 2, 21, 37, 16, 16)), block=16)
    run = build_forward(made.problem, SMALL)
    partial = run.source.split("for step in")[2]
    assert comparison in partial and "m" not in partial.split(comparison)[1].split("#")[0].replace("tmp", "")
    made.check(run, **CLOSE)


@pytest.mark.parametrize("factor", [2**28, 2**30, 2**40])
def test_a_comparison_that_does_not_fit_into_32_bits_stays_and_is_computed_in_64(factor):
    """3 * 2**30 - n is negative in 32."""

    def far(b, h, q, kv):
        return q.long() * factor - kv <= 5

    made = setup(Variant("far", mask=lambda *_: far, sizes=Sizes(1, 1, 1, 4, 20, 16, 16)), block=16)
    run = build_forward(made.problem, SMALL)
    assert ("m.to(tl.int64)" in run.source) == (factor > 2**28)
    made.check(run, **CLOSE)


def test_subscripts_beyond_32_bits_are_computed_in_64():
    """A bias for each of 2**32 scores, of which only the metadata is made."""
    sizes = Sizes(16, 64, 64, 2048, 2048, 16, 16)
    table = torch.empty(sizes.scores, device="meta")

    def bias(score, b, h, q_idx, kv_idx):
        return score + table[b, h, q_idx, kv_idx]

    inputs = tuple(torch.empty(1).expand(16, 64, 2048, 16) for _ in range(3))
    problem = setup(Variant("wide", sizes=sizes), inputs=inputs).problem
    problem = replace(problem, score=modification(bias, "score", sizes.scores, device="meta"))
    text = forward_kernel(problem, SMALL).source
    assert "268435456*b.to(tl.int64) + 4194304*h.to(tl.int64)" in text
    small = forward_kernel(setup(BY_NAME["bias of every score"]).problem, SMALL).source
    assert "to(tl.int64)" not in small.split("# score_mod full_additive")[-1].split("# end of")[0]


def test_traffic_is_the_products_of_blocks():
    """Every key is read once for each BLOCK_M queries (Theorem 9.2)."""
    problem = setup(Variant("plain", sizes=Sizes(2, 4, 2, 256, 256, 32, 32))).problem
    for block_m in (16, 64):
        traffic = forward_traffic(problem, AttentionConfiguration(block_m, 32, 4, 2))
        assert traffic.keys == 2 * 4 * (256 // block_m) * 256 * 64 * 4
        assert traffic.queries == 2 * 4 * 256 * 32 * 4 and traffic.written == 2 * 4 * 256 * (32 + 1) * 4
    made = setup(Variant("causal", mask=causal, sizes=Sizes(1, 1, 1, 256, 256, 32, 32)), block=64)
    visited = sum(made.block_mask.totals()[:2])
    traffic = build_forward(made.problem, AttentionConfiguration(64, 32, 4, 2)).traffic(visited)
    assert traffic.keys == 10 * 64 * 64 * 4


def test_what_cannot_be_is_refused():
    made = setup(BY_NAME["causal"], block=20)
    refused = "a mask with blocks of 20 queries: tiles of 16 x 16 do not divide blocks of 20 x 20"
    assert why_not(made.problem) == refused
    with pytest.raises(CodegenError, match=refused):
        build_forward(made.problem, SMALL)
    with pytest.raises(CodegenError, match="blocks of 32 x 32 do not divide into tiles of 64 x 32"):
        build_forward(setup(BY_NAME["causal"]).problem, replace(MEDIUM, block_m=64))
    with pytest.raises(CodegenError, match="float64"):
        build_forward(replace(made.problem, dtype=torch.float64))
    made = setup(BY_NAME["causal"])
    with pytest.raises(CodegenError, match="given no block mask and 0 captured tensors"):
        build_forward(made.problem, SMALL)(*made.inputs)


def test_a_tile_beyond_the_last_query_visits_nothing():
    """37 queries in two rows of blocks of 32: four tiles of 16, the last of which has no query."""
    made = setup(BY_NAME["causal"], block=32)
    run = build_forward(made.problem, SMALL)
    assert "tl.where(row * BLOCK_M < 37, full_steps, 0)" in run.source
    made.check(run, **CLOSE)
    whole = setup(BY_NAME["causal"].at(queries=64, keys=64), block=32)
    assert "row * BLOCK_M <" not in build_forward(whole.problem, SMALL).source


def test_comments_name_the_cell_of_a_notebook():
    """Not its file, which has another name in every session."""
    made = setup(BY_NAME["causal"])
    cell = replace(made.problem.mask.source, file="/tmp/ipykernel_1/3584089161.py", line=3)
    problem = replace(made.problem, mask=replace(made.problem.mask, source=cell))
    text = build_forward(problem, SMALL).source
    assert "a notebook cell:3" in text and "3584089161" not in text
