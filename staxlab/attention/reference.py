"""The specification of attention: the whole matrix of scores, in float64 (Section 9.10).

:func:`reference_attention` is what ``omni_attention`` means. It makes the N x M matrix that kernels avoid, calls the
user's own functions on tensors of subscripts, and leaves the gradient to PyTorch. Nothing is blocked, split, rounded
to half precision or taken from a trace, so it shares no mistake with what is tested against it.

With S = scale * Q K^T, modified by ``score_mod``, and hidden where ``mask_mod`` says False, for each row of scores::

    LSE = log(sum of exp(S_j) over visible j)        O = sum of exp(S_j - LSE) V_j over visible j

A row in which nothing is visible has LSE = -inf, O = 0 and gradients 0. A score of -inf that ``score_mod`` returns
hides a position just as a mask does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch

from ..errors import OptionError


def subscript_tensors(sizes: Sequence[int], device: str | torch.device = "cpu") -> tuple[torch.Tensor, ...]:
    """``b, h, q_idx, kv_idx`` for all scores of ``sizes`` (batch, query heads, queries, keys): int32 tensors [B, 1, 1,
    1], [1, H, 1, 1], [1, 1, N, 1] and [1, 1, 1, M], which broadcast."""
    return tuple(
        torch.arange(extent, dtype=torch.int32, device=device).reshape([-1 if axis == own else 1 for axis in range(4)])
        for own, extent in enumerate(sizes)
    )


def visible(mask_mod: Callable | None, sizes: Sequence[int], device: str | torch.device = "cpu") -> torch.Tensor:
    """Which scores take part: bool [B, H, N, M]. O(B H N M) memory."""
    if mask_mod is None:
        return torch.ones(tuple(sizes), dtype=torch.bool, device=device)
    found = mask_mod(*subscript_tensors(sizes, device))
    return torch.as_tensor(found, dtype=torch.bool, device=device).expand(tuple(sizes))


def reference_attention(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    score_mod: Callable | None = None,
    mask_mod: Callable | None = None,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(O, LSE)``, both float64: [B, Hq, N, Dv] and [B, Hq, N] (natural logarithm).

    ``query`` [B, Hq, N, D], ``key`` [B, Hkv, M, D] and ``value`` [B, Hkv, M, Dv] of any floating dtype are converted to
    float64 first. ``scale`` defaults to 1/sqrt(D). With ``enable_gqa`` query head h uses key head h // (Hq // Hkv).
    ``score_mod(score, b, h, q_idx, kv_idx)`` and ``mask_mod(b, h, q_idx, kv_idx)`` are called once, with a float64
    score and int32 subscripts that broadcast. Differentiable by autograd, captured tensors included; the derivative
    of ``score_mod`` has to be finite where the mask hides a score. O(B Hq N M (D + Dv)) time, O(B Hq N M) memory.

    OptionError if the heads do not fit.
    """
    heads, key_heads = query.shape[1], key.shape[1]
    if heads != key_heads and not (enable_gqa and key_heads and heads % key_heads == 0):
        raise OptionError(
            f"{heads} query heads do not fit {key_heads} key heads",
            remedy="equal numbers, or enable_gqa=True and a multiple of the key heads",
        )
    sizes = (query.shape[0], heads, query.shape[2], key.shape[2])
    group = heads // key_heads if key_heads else 1
    q, k, v = query.double(), key.double(), value.double()
    if group > 1:
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    factor = (1.0 / math.sqrt(query.shape[3]) if query.shape[3] else 1.0) if scale is None else scale
    score = (q @ k.transpose(-2, -1)) * factor
    if score_mod is not None:
        score = score_mod(score, *subscript_tensors(sizes, query.device)).double().expand(sizes)
    score = torch.where(visible(mask_mod, sizes, query.device), score, -math.inf)
    if sizes[3] == 0:
        return q.new_zeros((*sizes[:3], value.shape[3])), q.new_full(sizes[:3], -math.inf)
    largest = score.detach().amax(-1, keepdim=True)
    nothing = largest == -math.inf
    weights = torch.exp(score - torch.where(nothing, 0.0, largest))
    total = torch.where(nothing, 1.0, weights.sum(-1, keepdim=True))
    output = (weights @ v) / total
    lse = torch.where(nothing, -math.inf, largest + torch.log(total)).squeeze(-1)
    return output, lse


__all__ = ["reference_attention", "subscript_tensors", "visible"]
