"""Attention problems for the tests of the Triton templates, made from the variants that every kernel is held to."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from staxlab.attention.block_mask import BlockMask, create_block_mask
from staxlab.attention.modification import modification
from staxlab.attention.problem import AttentionProblem, BlockGeometry
from staxlab.attention.reference import reference_attention
from staxlab.options import GPU_SPECS
from tests.attention.variants import Made, Variant


class Setup(NamedTuple):
    """A problem with everything that a call of its kernel needs."""

    problem: AttentionProblem
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor]
    block_mask: BlockMask | None
    captured: tuple[torch.Tensor, ...]
    made: Made
    scale: float

    def expected(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What the specification says, in float64."""
        query, key, value = (x.double() for x in self.inputs)
        gqa = query.shape[1] != key.shape[1]
        with torch.no_grad():
            return reference_attention(
                query, key, value, self.made.score_mod, self.made.mask_mod, self.scale, enable_gqa=gqa
            )

    def check(self, run: Any, **tolerances: float) -> None:
        """Run it and compare; nothing visible is zero with a logarithm of minus infinity, exactly."""
        out, lse = run(*self.inputs, self.block_mask, self.captured)
        wanted, wanted_lse = self.expected()
        assert out.dtype == self.problem.dtype and lse.dtype == torch.float32
        assert out.stride() == self.problem.output_strides
        torch.testing.assert_close(out.double(), wanted, **tolerances)
        torch.testing.assert_close(lse.double(), wanted_lse, **tolerances)
        hidden = wanted_lse == float("-inf")
        assert torch.equal(lse == float("-inf"), hidden) and not out[hidden].any()


def setup(
    variant: Variant,
    dtype: torch.dtype = torch.float32,
    block: int | tuple[int, int] = 32,
    target: str = "sm_90",
    masked_by_blocks: bool = True,
    inputs: tuple[torch.Tensor, ...] | None = None,
) -> Setup:
    """A variant as a problem. Without ``masked_by_blocks`` its mask stays out."""
    made = variant.make(torch.float32)
    query, key, value = inputs or variant.inputs(dtype)
    (batch, heads, queries, size), keys = query.shape, key.shape[2]
    sizes = (batch, heads, queries, keys)
    score = modification(made.score_mod, "score", sizes) if made.score_mod else None
    mask = block_mask = geometry = None
    if made.mask_mod is not None and masked_by_blocks:
        from staxlab.attention.mask_evaluation import reads

        varies = reads(made.mask_mod, queries, keys, torch.device("cpu"))
        wanted = [n if v else None for n, v in zip(sizes[:2], varies, strict=True)]
        block_mask = create_block_mask(made.mask_mod, *wanted, queries, keys, BLOCK_SIZE=block)
        mask = modification(made.mask_mod, "mask", sizes)
        geometry = BlockGeometry(*block_mask.block_size, block_mask.shape[0] > 1, block_mask.shape[1] > 1)
    scale = size**-0.5 if variant.scale is None else variant.scale
    problem = AttentionProblem(
        batch, heads, key.shape[1], queries, keys, size, value.shape[3], query.dtype, scale, query.stride(),
        key.stride(), value.stride(), score, mask, geometry, False, GPU_SPECS[target],
    )  # fmt: skip
    return Setup(
        problem, (query, key, value), block_mask, tuple(c.tensor.detach() for c in problem.captured), made, scale
    )
