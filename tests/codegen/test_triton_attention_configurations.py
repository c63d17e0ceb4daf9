"""Which tiles attention is computed with, and what a user may say about it (Section 9.10)."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from staxlab.errors import OptionError
from tests.attention.variants import BY_NAME, Sizes, Variant, causal

pytest.importorskip("triton")

from staxlab.codegen.triton.attention.configurations import (
    AttentionConfiguration,
    can_fetch,
    configured,
    default_configuration,
    fitted,
    shared_bytes,
)
from tests.codegen.triton_attention import setup


def large(dtype: torch.dtype = torch.bfloat16, size: int = 128, stride: int = 1, **changes: int):
    """A problem of 1024 queries and keys of which nothing is in memory."""
    sizes = Sizes(1, 2, 2, changes.get("queries", 1024), changes.get("keys", 1024), size, size)
    empty = torch.empty(1, dtype=dtype)
    inputs = [
        empty.as_strided((1, 2, n, size), (0, 0, 0, 0)).as_strided((1, 2, n, size), (0, 0, 0, 0))
        for n in (sizes.queries, sizes.keys, sizes.keys)
    ]
    problem = setup(Variant("large", sizes=sizes), inputs=tuple(inputs)).problem
    strides = [(2 * n * size * stride, n * size * stride, size * stride, stride) for n in (sizes.queries, sizes.keys)]
    return replace(problem, query_strides=strides[0], key_strides=strides[1], value_strides=strides[1])


def test_the_accelerator_needs_rows_at_multiples_of_16_bytes():
    assert can_fetch(large()) and not can_fetch(large(stride=2)) and not can_fetch(large(size=100))
    assert can_fetch(large(size=104))
    assert default_configuration(large()).fetch and not default_configuration(large(torch.float32)).fetch


def test_tiles_are_cut_down_to_the_problem():
    wide = AttentionConfiguration(128, 128, 8, 4)
    assert fitted(large(queries=40, keys=20), wide).block_m == 64
    assert fitted(large(queries=40, keys=20), wide).block_n == 32
    stages = fitted(large(size=256), wide).num_stages
    assert 1 <= stages < 4 and shared_bytes(large(size=256), fitted(large(size=256), wide)) <= 227 << 10
    blocked = setup(Variant("causal", mask=causal, sizes=Sizes(1, 1, 1, 300, 300, 16, 16)), block=(96, 48)).problem
    assert (fitted(blocked, wide).block_m, fitted(blocked, wide).block_n) == (32, 16)


def test_options_replace_the_rule():
    problem = large()
    found = configured(problem, {"BACKEND": "triton", "BLOCK_M": 64, "num_stages": 3})
    assert (found.block_m, found.num_stages) == (64, 3) and found.block_n == default_configuration(problem).block_n
    few = large(queries=1, keys=8192)
    assert configured(few, {"SPLITS": 5}, decoding=True).splits == 5
    assert not configured(problem, {"FETCH": False}).fetch


@pytest.mark.parametrize(
    "options, decoding, message",
    [
        ({"BLOCKM": 64}, False, "did you mean BLOCK_M"),
        ({"zzz": 64}, False, "there are BLOCK_M"),
        ({"BLOCK_M": 48}, False, "power of two, 16 at least"),
        ({"BLOCK_N": True}, False, "power of two, 16 at least"),
        ({"num_warps": 3}, False, "give 1, 2, 4, 8 or 16"),
        ({"num_stages": 0}, False, "a whole number, 1 at least"),
        ({"FETCH": 1}, False, "give True or False"),
        ({"SPLITS": 2}, False, "option of decoding"),
        ({"BLOCK_M": 32}, True, "what the queries need"),
    ],
)
def test_what_an_option_cannot_be_is_said(options, decoding, message):
    problem = large(queries=1, keys=4096) if decoding else large()
    with pytest.raises(OptionError, match=message):
        configured(problem, options, decoding)


def test_options_that_do_not_fit_the_problem():
    with pytest.raises(OptionError, match="do not divide into tiles of 64 x"):
        configured(setup(BY_NAME["causal"], block=32).problem, {"BLOCK_M": 64})
    with pytest.raises(OptionError, match="the tensor memory accelerator cannot read"):
        configured(large(size=100), {"FETCH": True})
