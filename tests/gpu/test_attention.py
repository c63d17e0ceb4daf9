"""Attention on a CUDA device: every variant forward and backward against the N x M specification in float64, large and
ragged sizes, decoding, and what repeats bit by bit (Section 9.10)."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

import staxlab
from staxlab import create_block_mask, omni_attention
from tests.attention.variants import (
    BY_NAME,
    VARIANTS,
    Made,
    Sizes,
    Variant,
    alibi,
    causal,
    expected,
    score_rounding,
    window,
)

pytestmark = [pytest.mark.gpu]

DEVICE = "cuda"
#: Of the largest element: what rounding to the dtype may change in a result, and in a gradient that is a sum of several
#: rounded ones. Learned tensors get sums over all scores, in which errors of single scores add up.
ALLOWED = {torch.float32: (2e-5, 1e-4), torch.float16: (4e-3, 2e-2), torch.bfloat16: (2e-2, 1e-1)}
DTYPES = list(ALLOWED)
#: Variants that make sense at any length, for sizes at which many tiles and blocks are visited.
LARGE = ("causal ALiBi", "documents", "sliding window", "learned relative bias", "soft cap", "several blocks, learned",
         "hidden rows")  # fmt: skip


def mask_of(variant: Variant, mask_mod: Callable | None, block: int | tuple[int, int]) -> staxlab.BlockMask | None:
    s = variant.sizes
    if mask_mod is None:
        return None
    return create_block_mask(mask_mod, s.batch, s.heads, s.queries, s.keys, device=DEVICE, BLOCK_SIZE=block)


def check(
    variant: Variant, dtype: torch.dtype, block: int | tuple[int, int] = 128, call: Callable = omni_attention,
    options: dict | None = None,
) -> list[torch.Tensor]:  # fmt: skip
    """Result, logarithm and gradients agree with the specification; returns what was found."""
    made = variant.make(dtype, DEVICE)
    query, key, value = variant.inputs(dtype, DEVICE, requires_grad=True)
    mask = mask_of(variant, made.mask_mod, block)
    wanted = expected(variant, exactly(made), query, key, value)
    output, lse = call(
        query, key, value, made.score_mod, mask, variant.scale, variant.enable_gqa, True, kernel_options=options
    )
    assert output.dtype == dtype and lse.dtype == torch.float32
    learned = list(made.learnable.values())
    found = torch.autograd.grad((output, lse), [query, key, value, *learned], variant.upstream(dtype, DEVICE))
    hidden = wanted.lse == -math.inf
    assert torch.equal(lse == -math.inf, hidden) and not output[hidden].any()
    near, far = ALLOWED[dtype]
    close(output, wanted.output, near)
    close(lse[~hidden], wanted.lse[~hidden], near)
    for ours, theirs in zip(found[:3], (wanted.query, wanted.key, wanted.value), strict=True):
        close(ours, theirs, near)
    for ours, theirs in zip(found[3:], wanted.learnable.values(), strict=True):
        close(ours, theirs, far)
    return [output, lse, *found]


def exactly(made: Made) -> Made:
    """The functions of a variant with what ``functools.partial`` has bound to them in float64.

    Eager execution, and so the specification, rounds a half-precision slope times a distance to half precision, which
    moves results by up to 0.02 (float16) and 0.13 (bfloat16). Kernels multiply in float32: what they have is within the
    ordinary bounds of the exact products.
    """
    bound = made.score_mod
    if not isinstance(bound, functools.partial):
        return made
    arguments = [a.double() if isinstance(a, torch.Tensor) else a for a in bound.args]
    return replace(made, score_mod=functools.partial(bound.func, *arguments))


def close(found: torch.Tensor, wanted: torch.Tensor, tolerance: float) -> None:
    assert found.shape == wanted.shape and not found.isnan().any()
    if wanted.numel():
        largest = max(1.0, float(wanted.abs().max()))
        assert float((found.detach() - wanted).abs().max()) <= tolerance * largest


# -- variants ----------------------------------------------------------------------------------------------------------


def every_variant() -> list:
    """All in bfloat16, those named in other dtypes as well, the rest by night: compiling is what takes the time."""
    return [
        pytest.param(variant, dtype, id=f"{variant}-{dtype}", marks=[] if by_day else [pytest.mark.slow])
        for variant in VARIANTS
        for dtype in DTYPES
        for by_day in [dtype == torch.bfloat16 or variant.name in LARGE]
    ]


@pytest.mark.parametrize("variant, dtype", every_variant())
def test_every_variant(variant, dtype):
    check(variant, dtype, 32)


@pytest.mark.parametrize("name", LARGE)
@pytest.mark.parametrize("dtype", [pytest.param(torch.float16, marks=pytest.mark.slow), torch.bfloat16], ids=str)
def test_many_tiles(name, dtype):
    """Lengths that no tile divides, with several tiles in a block of the mask."""
    check(BY_NAME[name].at(batch=2, heads=4, key_heads=2, queries=777, keys=777, head_size=64, value_size=64), dtype)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("name", ["causal ALiBi", "grouped queries, learned", "hidden rows"])
def test_in_a_region(name, compiled):
    """As an operator of a compiled region, and called at once: the same kernels, and so the same bits."""
    variant = BY_NAME[name]
    call = staxlab.compile(omni_attention, strict_native=True) if compiled else omni_attention
    found, again = check(variant, torch.bfloat16, call=call), check(variant, torch.bfloat16)
    for ours, theirs in zip(found[:5], again[:5], strict=True):
        assert torch.equal(ours, theirs)


# -- sizes -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [pytest.param(torch.float16, marks=pytest.mark.slow), torch.bfloat16], ids=str)
@pytest.mark.parametrize("head_size, value_size", [(8, 8), (40, 72), (96, 96), (128, 128), (192, 128), (256, 256)])
@pytest.mark.parametrize("queries, keys", [(1000, 1111), (512, 512), (64, 1500)])
def test_head_sizes_and_lengths(queries, keys, head_size, value_size, dtype):
    sizes = Sizes(2, 6, 2, queries, keys, head_size, value_size)
    check(Variant("causal ALiBi", score=alibi, mask=causal, sizes=sizes), dtype)


@pytest.mark.parametrize("head_size", [40, 128, 256])
def test_float32_is_not_rounded_to_tf32(head_size):
    sizes = Sizes(1, 4, 2, 200, 333, head_size, head_size)
    check(Variant("causal ALiBi", score=alibi, mask=causal, sizes=sizes), torch.float32)


@pytest.mark.parametrize("block", [16, 32, 256, (64, 128), (128, 48)], ids=str)
def test_blocks_of_any_shape(block):
    sizes = Sizes(1, 2, 2, 700, 801, 64, 64)
    check(Variant("window", score=alibi, mask=window, sizes=sizes), torch.bfloat16, block)


def test_the_definition_of_the_course_at_its_size():
    """Listing 9.7: causal ALiBi on 4,096 positions. The specification takes 1 GB a head here, so there are two."""
    sizes = Sizes(1, 2, 2, 4096, 4096, 128, 128)
    check(Variant("causal ALiBi", score=alibi, mask=causal, sizes=sizes), torch.bfloat16)


def test_strides_and_starts_of_any_kind():
    """Heads inside rows, and a start that is no multiple of 16 bytes, which no descriptor can hold."""
    memory = torch.randn(2 * 300 * 4 * 64 + 1, device=DEVICE).bfloat16()
    for start in (0, 1):
        tensors = [
            (memory * (k + 1)).narrow(0, start, 2 * 300 * 4 * 64).view(2, 300, 4, 64).transpose(1, 2).requires_grad_()
            for k in range(3)
        ]
        plain = [t.detach().contiguous().requires_grad_() for t in tensors]
        found = omni_attention(*tensors, scale=0.02)
        wanted = omni_attention(*plain, scale=0.02)
        assert found.stride() != wanted.stride() and torch.equal(found, wanted)
        upstream = torch.randn(2, 300, 4, 64, device=DEVICE).bfloat16().transpose(1, 2)
        first = torch.autograd.grad(found, tensors, upstream)
        second = torch.autograd.grad(wanted, plain, upstream.contiguous())
        for ours, theirs in zip(first, second, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=2e-2, atol=2e-2 * float(theirs.abs().max()))


def test_memory_grows_with_the_length():
    """Beside tensors in and out: 16 bytes a row. One head's matrix of scores would take 1 GiB."""
    query, key, value = (
        torch.randn(1, 2, 16384, 64, device=DEVICE, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )
    mask = create_block_mask(causal(None, None), None, None, 16384, 16384, device=DEVICE)
    for _ in range(2):  # what compiling takes is gone after the first
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        omni_attention(query, key, value, block_mask=mask).sum().backward()
        peak = torch.cuda.max_memory_allocated() - before
        query.grad = key.grad = value.grad = None
    assert peak <= 8 * query.nbytes + (4 << 20)


# -- decoding ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("queries, heads, key_heads, keys", [(1, 8, 2, 5000), (4, 4, 4, 1000), (7, 8, 1, 777)])
@pytest.mark.parametrize("splits", [None, 1, 7])
def test_decoding(splits, queries, heads, key_heads, keys, dtype):
    """Keys shared out among program instances, with a score_mod; the general template is of the same mind."""
    sizes = Sizes(3, heads, key_heads, queries, keys, 64, 64)
    variant = Variant("decoding", score=alibi, sizes=sizes)
    made = variant.make(dtype, DEVICE)
    query, key, value = variant.inputs(dtype, DEVICE)
    wanted = expected(variant, made, query, key, value)
    allowed = ALLOWED[dtype][0] + score_rounding(wanted.lse)
    options = {"BACKEND": "decode"} | ({"SPLITS": splits} if splits else {})
    for chosen in (options, {"BACKEND": "triton"}, None):
        output, lse = omni_attention(
            query, key, value, made.score_mod, enable_gqa=variant.enable_gqa, return_lse=True, kernel_options=chosen
        )
        close(output, wanted.output, allowed)
        close(lse, wanted.lse, ALLOWED[dtype][0])


@pytest.mark.parametrize("name", ["decoding", "decoding, ALiBi window", "decoding, lengths"])
def test_decoding_with_masks_and_captured_tensors(name):
    check(BY_NAME[name].at(keys=1777, head_size=128, value_size=128), torch.bfloat16)


# -- what repeats ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["causal ALiBi", "grouped queries, learned", "documents"])
def test_results_and_gradients_repeat_bit_by_bit(name):
    """Of queries, keys and values; what captured tensors get is added up in no fixed order."""
    variant = BY_NAME[name].at(queries=777, keys=777, head_size=64, value_size=64)
    first = check(variant, torch.bfloat16)
    for _ in range(3):
        again = check(variant, torch.bfloat16)
        assert all(torch.equal(a, b) for a, b in zip(first[:5], again[:5], strict=True))


def test_a_stream_of_its_own():
    """Kernels go to the stream that is current, in a backward pass that of the forward one."""
    variant = BY_NAME["causal ALiBi"].at(queries=777, keys=777, head_size=64, value_size=64)
    wanted = check(variant, torch.bfloat16)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        found = check(variant, torch.bfloat16)
    torch.cuda.current_stream().wait_stream(stream)
    assert all(torch.equal(a, b) for a, b in zip(wanted, found, strict=True))


# -- configurations ----------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("head_size", [64, 128])
def test_every_configuration_of_a_search_agrees(head_size):
    """Measured configurations are as right as the rule's, and none of the rule's spills."""
    from staxlab.attention.modification import modification
    from staxlab.attention.problem import AttentionProblem, BlockGeometry
    from staxlab.codegen.triton.attention.backward import build_backward
    from staxlab.codegen.triton.attention.backward_configurations import candidates
    from staxlab.codegen.triton.attention.configurations import candidates as forward_candidates
    from staxlab.codegen.triton.attention.forward import build_forward
    from staxlab.options import device_spec

    variant = Variant("causal", mask=causal, sizes=Sizes(1, 2, 2, 520, 648, head_size, head_size))
    made, s = variant.make(torch.bfloat16, DEVICE), variant.sizes
    query, key, value = variant.inputs(torch.bfloat16, DEVICE)
    mask = create_block_mask(made.mask_mod, None, None, s.queries, s.keys, device=DEVICE)
    problem = AttentionProblem(
        s.batch, s.heads, s.key_heads, s.queries, s.keys, s.head_size, s.value_size, query.dtype, head_size**-0.5,
        query.stride(), key.stride(), value.stride(), None, modification(made.mask_mod, "mask", s.scores),
        BlockGeometry(128, 128, False, False), False, device_spec(DEVICE),
    )  # fmt: skip
    wanted = expected(variant, made, query, key, value)
    near, _ = ALLOWED[torch.bfloat16]
    for configuration in forward_candidates(problem):
        output, lse = build_forward(problem, configuration)(query, key, value, mask)
        close(output, wanted.output, near)
        close(lse, wanted.lse, near)
    for configuration in candidates(replace(problem, needs_gradient=True)):
        run = build_backward(problem, configuration)
        found = run(query, key, value, output, lse, *variant.upstream(torch.bfloat16, DEVICE), mask)
        for ours, theirs in zip(found, (wanted.query, wanted.key, wanted.value), strict=True):
            close(ours, theirs, near)
