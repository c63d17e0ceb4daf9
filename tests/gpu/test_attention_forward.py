"""Forward attention on a device: every way that the templates can compute it agrees with the specification."""

from __future__ import annotations

import pytest
import torch

from staxlab.attention.block_mask import create_block_mask
from staxlab.attention.modification import modification
from staxlab.attention.problem import AttentionProblem, BlockGeometry
from staxlab.attention.reference import reference_attention
from tests.attention.variants import (
    BY_NAME,
    Sizes,
    Variant,
    alibi,
    causal,
    lower_right_causal,
    score_rounding,
    soft_cap,
    window,
)

pytest.importorskip("triton")

from staxlab.codegen.triton.attention.configurations import (
    AttentionConfiguration,
    can_fetch,
    candidates,
    decoding_candidates,
    default_configuration,
)
from staxlab.codegen.triton.attention.decoding import build_decoding
from staxlab.codegen.triton.attention.forward import build_forward
from staxlab.options import device_spec

pytestmark = pytest.mark.gpu

TOLERANCE = {torch.float32: 2e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
LONG = Sizes(2, 4, 2, 520, 650, 128, 128)


class Setup:
    """A variant on the device, with what a call of its kernels needs."""

    def __init__(self, variant: Variant, dtype: torch.dtype = torch.bfloat16):
        self.variant, self.made = variant, variant.make(torch.float32, "cuda")
        self.inputs = variant.inputs(dtype, "cuda")
        query, key, value = self.inputs
        sizes = variant.sizes.scores
        self.block_mask = geometry = mask = None
        if self.made.mask_mod is not None:
            self.block_mask = create_block_mask(
                self.made.mask_mod, sizes[0], sizes[1], *sizes[2:], device="cuda", BLOCK_SIZE=128
            )
            mask = modification(self.made.mask_mod, "mask", sizes, device=query.device)
            geometry = BlockGeometry(128, 128, sizes[0] > 1, sizes[1] > 1)
        score = self.made.score_mod and modification(self.made.score_mod, "score", sizes, device=query.device)
        self.scale = query.shape[-1] ** -0.5 if variant.scale is None else variant.scale
        self.problem = AttentionProblem(
            sizes[0], sizes[1], key.shape[1], *sizes[2:], query.shape[3], value.shape[3], dtype, self.scale,
            query.stride(), key.stride(), value.stride(), score, mask, geometry, False, device_spec("cuda"),
        )  # fmt: skip

    def check(self, run) -> None:
        captured = [c.tensor.detach() for c in self.problem.captured]
        out, lse = run(*self.inputs, self.block_mask, captured)
        with torch.no_grad():
            wanted, wanted_lse = reference_attention(
                *(x.double() for x in self.inputs), self.made.score_mod, self.made.mask_mod, self.scale,
                enable_gqa=self.variant.enable_gqa,
            )  # fmt: skip
        tolerance = TOLERANCE[out.dtype]
        above = tolerance + score_rounding(wanted_lse) * float(self.inputs[2].abs().max())
        torch.testing.assert_close(out.double(), wanted, rtol=tolerance, atol=above)
        torch.testing.assert_close(lse.double(), wanted_lse, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("size, value_size", [(64, 64), (128, 128), (256, 256), (96, 40), (24, 72)])
def test_the_rules_configuration_at_every_head_size(size, value_size, dtype):
    sizes = Sizes(1, 4, 2, 300, 333, size, value_size)
    made = Setup(Variant("sizes", score=alibi, mask=causal, sizes=sizes), dtype)
    made.check(build_forward(made.problem))


@pytest.mark.parametrize("mask", [None, causal, window], ids=["all", "causal", "window"])
@pytest.mark.parametrize("score", [None, alibi, soft_cap], ids=["plain", "ALiBi", "soft cap"])
def test_the_accelerator(score, mask):
    """With results multiplied at every tile and lazily."""
    made = Setup(Variant("long", score=score, mask=mask, sizes=LONG))
    if not can_fetch(made.problem):
        pytest.skip("no tensor memory accelerator")
    for block_n, lazy in ((64, False), (64, True), (128, False)):
        made.check(build_forward(made.problem, AttentionConfiguration(128, block_n, 4, 2, fetch=True, lazy=lazy)))


@pytest.mark.slow
def test_every_candidate_is_right():
    for variant in (Variant("long", score=alibi, mask=causal, sizes=LONG), Variant("plain", sizes=LONG)):
        made = Setup(variant)
        for chosen in candidates(made.problem):
            made.check(build_forward(made.problem, chosen))
    made = Setup(Variant("decoding", score=alibi, mask=lower_right_causal, sizes=Sizes(2, 8, 2, 1, 2000, 128, 128)))
    for chosen in decoding_candidates(made.problem):
        made.check(build_decoding(made.problem, chosen))


@pytest.mark.parametrize("dtype", list(TOLERANCE), ids=str)
@pytest.mark.parametrize("queries", [1, 5])
def test_decoding(queries, dtype):
    sizes = Sizes(2, 8, 2, queries, 3001, 128, 128)
    for variant in (
        Variant("plain", sizes=sizes),
        Variant("lower right", score=alibi, mask=lower_right_causal, sizes=sizes),
        BY_NAME["decoding, lengths"],
    ):
        made = Setup(variant, dtype)
        made.check(build_decoding(made.problem))


def test_a_tensor_that_starts_anywhere_takes_the_other_kernel():
    """Descriptors hold addresses at multiples of 16 bytes."""
    made = Setup(Variant("long", mask=causal, sizes=LONG))
    if not default_configuration(made.problem).fetch:
        pytest.skip("no tensor memory accelerator")
    key = made.inputs[1]
    shifted = torch.empty(key.numel() + 1, dtype=key.dtype, device="cuda")[1:].view(key.shape).copy_(key)
    assert shifted.data_ptr() % 16
    made.inputs = (made.inputs[0], shifted, made.inputs[2])
    made.check(build_forward(made.problem))
