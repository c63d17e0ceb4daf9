"""What ``omni_attention`` refuses: one clear sentence each, that names the argument, before anything is computed."""

from __future__ import annotations

import math

import pytest
import torch

import staxlab
from staxlab import create_block_mask, omni_attention
from staxlab.attention.masks import causal
from staxlab.attention.reference import reference_attention
from staxlab.errors import CaptureError, OptionError, SubscriptError


def tensors(heads: int = 4, key_heads: int = 4, queries: int = 6, keys: int = 6, size: int = 8, **kind) -> dict:
    return {
        "query": torch.zeros(2, heads, queries, size, **kind),
        "key": torch.zeros(2, key_heads, keys, size, **kind),
        "value": torch.zeros(2, key_heads, keys, size, **kind),
    }


def mask_of(batch=None, heads=None, queries=6, keys=6, mask_mod=causal):
    return create_block_mask(mask_mod, batch, heads, queries, keys, BLOCK_SIZE=4)


#: (what is changed about a call that works, what the message says; one line of it, to be found whole).
REFUSED = {
    "no tensor": ({"key": [1.0]}, "key must be a tensor"),
    "three dimensions": ({"query": torch.zeros(4, 6, 8)}, "query must have the four dimensions"),
    "sparse": ({"value": torch.zeros(2, 4, 6, 8).to_sparse()}, "value has layout torch.sparse_coo"),
    "two dtypes": ({"key": torch.zeros(2, 4, 6, 8).double()}, "of one dtype, and are torch.float32, torch.float64"),
    "integers": (tensors(dtype=torch.int64), "query, key and value are torch.int64"),
    "two devices": ({"key": torch.zeros(2, 4, 6, 8, device="meta")}, "on one device, and are on cpu, meta and cpu"),
    "another batch": ({k: torch.zeros(1, 4, 6, 8) for k in ("key", "value")}, "query has batch size 2, key and value"),
    "another value": ({"value": torch.zeros(2, 4, 5, 8)}, "value must have the batch, heads and keys of key"),
    "another head size": ({"query": torch.zeros(2, 4, 6, 16)}, "query has head size 16, key has 8"),
    "head size 0": (tensors(size=0), "head size 0"),
    "shared keys": (tensors(key_heads=2), "query has 4 heads, key and value have 2"),
    "heads that do not divide": (tensors(key_heads=3) | {"enable_gqa": True}, "which does not divide them"),
    "more key heads": (tensors(key_heads=8) | {"enable_gqa": True}, "query has 4 heads, key and value have 8"),
    "no flag": ({"enable_gqa": 1}, "enable_gqa must be True or False"),
    "scale: a tensor": ({"scale": torch.tensor(0.5)}, "scale must be a number, not a tensor"),
    "scale: infinite": ({"scale": math.inf}, "scale must be a finite number, not inf"),
    "scale: not a number": ({"scale": math.nan}, "scale must be a finite number, not nan"),
    "scale: a truth value": ({"scale": True}, "scale must be a finite number, not True"),
    "mask: a function": ({"block_mask": causal}, "block_mask must be a BlockMask, not function"),
    "mask: a tensor": ({"block_mask": torch.ones(6, 6)}, "block_mask must be a BlockMask, not Tensor"),
    "mask: queries": ({"block_mask": mask_of(queries=7)}, "was made for 7 queries, and there are 6"),
    "mask: keys": ({"block_mask": mask_of(keys=9)}, "was made for 9 keys, and there are 6"),
    "mask: batch": ({"block_mask": mask_of(batch=3)}, "was made for 3 batch elements, and there are 2"),
    "mask: heads": ({"block_mask": mask_of(heads=2)}, "was made for 2 query heads, and there are 4"),
    "mask: device": ({"block_mask": mask_of().to("meta")}, "is on meta, the query on cpu"),
    "options: no dict": ({"kernel_options": "cpp"}, "kernel_options must be a dict, not str"),
    "options: unknown": ({"kernel_options": {"BLOCK_K": 64}}, "unknown kernel option 'BLOCK_K'; did you mean 'BLOCK_"),
    "options: no number": ({"kernel_options": {"BLOCK_M": 0}}, "BLOCK_M=0 must be a whole number"),
    "options: no flag": ({"kernel_options": {"INTERPRET": 1}}, "INTERPRET=1 must be True or False"),
    "backend: unknown": ({"kernel_options": {"BACKEND": "cppp"}}, "unknown BACKEND 'cppp'.*did you mean 'cpp'"),
    "backend: a list": ({"kernel_options": {"BACKEND": ["cpp"]}}, "unknown BACKEND \\['cpp'\\] in kernel_options"),
    "backend: elsewhere": ({"kernel_options": {"BACKEND": "triton"}}, "BACKEND='triton', which is not available: the "),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("compiled", [False, True])
def test_what_does_not_fit_is_refused(name, compiled):
    changes, message = REFUSED[name]
    if name == "sparse" and compiled:
        pytest.skip("regions refuse such tensors themselves")
    call = staxlab.compile(omni_attention) if compiled else omni_attention
    with pytest.raises(OptionError, match=message) as caught:
        call(**(tensors() | changes))
    assert "\n" not in caught.value.what and len(caught.value.what) < 400


def test_a_nested_tensor_is_refused():
    nested = torch.nested.nested_tensor([torch.zeros(4, 6, 8)] * 2)
    with pytest.raises(OptionError, match="value is a nested tensor"):
        omni_attention(**(tensors() | {"value": nested}))


def test_what_fits_is_not():
    """The call that the table changes, and changes that are allowed."""
    for allowed in ({}, {"scale": 2}, tensors(key_heads=2) | {"enable_gqa": True}, {"block_mask": mask_of()},
                    {"block_mask": mask_of(batch=2, heads=4)}, {"value": torch.zeros(2, 4, 6, 3)}):  # fmt: skip
        found = omni_attention(**(tensors() | allowed), kernel_options={"BACKEND": "reference"})
        assert torch.isfinite(found).all()


def backend_is_told(message: str) -> bool:
    return "available here: cpp, reference" in message


def test_an_unavailable_backend_says_what_is_there():
    with pytest.raises(OptionError) as caught:
        omni_attention(**tensors(), kernel_options={"BACKEND": "decode"})
    assert backend_is_told(caught.value.remedy)
    with pytest.raises(OptionError, match="256 at most"):
        omni_attention(**tensors(size=320), kernel_options={"BACKEND": "cpp"})


@pytest.mark.parametrize("compiled", [False, True])
def test_functions_that_are_none_of_one_score(compiled):
    call = staxlab.compile(omni_attention) if compiled else omni_attention

    def normalized(score, b, h, q_idx, kv_idx):
        return score - score.amax(-1, keepdim=True)

    def branches(score, b, h, q_idx, kv_idx):
        if (q_idx > kv_idx).any():
            return score
        return score * 2

    def whole(score, b, h, q_idx, kv_idx):
        return q_idx - kv_idx

    for function, line in ((normalized, "score.amax"), (branches, "if (q_idx"), (whole, "")):
        with pytest.raises(CaptureError) as caught:
            call(**tensors(), score_mod=function)
        assert function.__name__ in caught.value.what
        assert line in caught.value.where.text and caught.value.where.file == __file__
    with pytest.raises(CaptureError, match="score_mod"):
        call(**tensors(), score_mod="causal")
    with pytest.raises(CaptureError):
        call(**tensors(), score_mod=lambda score: score)


def test_a_mask_that_is_no_truth_value():
    with pytest.raises(CaptureError, match="bool"):
        mask_of(mask_mod=lambda b, h, q_idx, kv_idx: q_idx - kv_idx)


def test_what_a_modification_captured_is_somewhere_else():
    table = torch.zeros(4, device="meta")
    with pytest.raises(staxlab.StaxError, match="table"):
        omni_attention(**tensors(), score_mod=lambda score, b, h, q_idx, kv_idx: score + table[h])


TABLE = torch.linspace(-1, 1, 11)  # for 6 queries and 6 keys


@pytest.mark.parametrize(
    ("function", "reach"),
    [
        (lambda s, b, h, q, k: s + TABLE[q - k + 5], None),
        (lambda s, b, h, q, k: s + TABLE[q - k], None),  # negative ones count from the end
        (lambda s, b, h, q, k: s + TABLE[q * 2], None),
        (lambda s, b, h, q, k: s + TABLE[q // 4 * 4 + q % 4 + k], None),  # bounds of its parts would say 12
        (lambda s, b, h, q, k: s + TABLE[(q * 3).clamp(max=10)], None),
        (lambda s, b, h, q, k: s + TABLE[q - k + 6], "from 1 to 11, in a dimension of 11"),
        (lambda s, b, h, q, k: s + TABLE[k - 3 * q], "from -15 to 5, in a dimension of 11"),
        (lambda s, b, h, q, k: torch.where(k < 2, TABLE[:2][k], s), "from 0 to 5, in a dimension of 2"),
    ],
)
def test_a_read_beyond_a_tensor(function, reach):
    """As the specification has it, which runs the function on all subscripts; behind a mask it may be right."""
    given = tensors()
    for call in (omni_attention, staxlab.compile(omni_attention)):
        if reach is None:
            found = call(**given, score_mod=function)
            assert torch.allclose(found, reference_attention(*given.values(), function)[0].float(), atol=1e-6)
            continue
        with pytest.raises(IndexError):
            reference_attention(*given.values(), function)
        with pytest.raises(SubscriptError, match=reach) as caught:
            call(**given, score_mod=function)
        assert caught.value.where.file == __file__ and "TABLE" in caught.value.where.text
        call(**given, score_mod=function, block_mask=mask_of())
        empty = tensors(queries=0)
        assert call(**empty, score_mod=function).shape == empty["query"].shape


def test_a_captured_tensor_is_no_matrix_of_scores_of_another_size():
    """Nothing clamps where it would be read."""
    given = tensors()
    given["value"].copy_(torch.arange(6.0)[:, None])
    bias = torch.randn(4, 6, 6)
    found = omni_attention(**given, score_mod=lambda s, b, h, q, k: bias)
    assert torch.allclose(found[..., 0], (bias.softmax(-1) * torch.arange(6.0)).sum(-1).expand(2, -1, -1), atol=1e-5)
    for small in (bias[..., :5], bias[:, :3], torch.zeros(7)):
        with pytest.raises(CaptureError, match="returns a tensor of shape"):
            omni_attention(**given, score_mod=lambda s, b, h, q, k, small=small: small)


def test_an_exception_of_the_function_itself_passes_through():
    def wrong(score, b, h, q_idx, kv_idx):
        raise ZeroDivisionError("mine")

    for call in (omni_attention, staxlab.compile(omni_attention)):
        with pytest.raises(ZeroDivisionError, match="mine"):
            call(**tensors(), score_mod=wrong)


def test_where_no_template_fits_the_definition_runs_and_says_so():
    with pytest.warns(staxlab.FallbackWarning, match="runs on N x M matrices") as caught:
        omni_attention(**tensors(size=300))
    assert caught[0].filename == __file__


def test_sums_in_no_fixed_order_are_refused_where_algorithms_are_to_be_deterministic():
    table = torch.zeros(4, requires_grad=True)
    given = {name: x.requires_grad_() for name, x in tensors(queries=3, keys=3).items()}

    def gradient(score_mod, **options):
        found = omni_attention(**given, score_mod=score_mod, kernel_options={"INTERPRET": True, **options})
        torch.autograd.grad(found.sum(), given["query"])

    def biased(score, b, h, q_idx, kv_idx):
        return score + table[h]

    gradient(biased, BACKEND="triton")
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(staxlab.StaxError, match="in no fixed order"):
            gradient(biased, BACKEND="triton")
        gradient(None, BACKEND="triton")
        gradient(biased, BACKEND="reference")
    finally:
        torch.use_deterministic_algorithms(False)
