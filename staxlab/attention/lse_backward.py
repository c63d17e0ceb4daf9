"""The backward pass of attention from LSE alone (Section 9.10): a tile of probabilities at a time.

With ``S`` the scores as the softmax gets them, ``P = softmax(S)`` and ``O = P V``, the probabilities need not be kept:
``P_ij = exp(S_ij - LSE_i)``, since ``LSE_i = m_i + log(l_i)`` is the logarithm of the sum of exponentials of a row. The
derivative of the softmax asks for ``sum_j dP_ij P_ij`` of the whole row, but with ``dP = dO V^T``

    ``sum_j P_ij dP_ij = sum_j P_ij sum_c dO_ic V_jc = sum_c dO_ic O_ic = D_i``,

a number for each row that is known before the first tile. So ``dS = P (dP - D)``, element by element, needs one tile of
P, and nothing of the rest of the row. Where LSE is a result of its own, with gradient ``dLSE``, the derivative of LSE
by ``S_ij`` is ``P_ij``, and ``dS = P (dP - D + dLSE)`` (Dao et al., 2022, have this without dLSE).

These functions are what the backward kernels compute, on tensors, and what they are tested against.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch


def probabilities(scores: torch.Tensor, lse: torch.Tensor) -> torch.Tensor:
    """``P = exp(S - LSE)``: scores [..., N, M], LSE [..., N]. Rows with LSE = -inf, which see nothing, are 0."""
    return torch.where((lse == -math.inf)[..., None], 0.0, torch.exp(scores - lse[..., None]))


def row_products(d_out: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """``D_i = sum_c dO_ic O_ic`` [..., N], of dO and O [..., N, Dv]."""
    return (d_out * out).sum(-1)


def score_gradient(
    p: torch.Tensor, d_p: torch.Tensor, delta: torch.Tensor, d_lse: torch.Tensor | None = None
) -> torch.Tensor:
    """``dS = P (dP - D + dLSE)`` of a tile: p and d_p [..., N, M], delta and d_lse [..., N]."""
    row = delta if d_lse is None else delta - d_lse
    return p * (d_p - row[..., None])


@dataclass(frozen=True, eq=False)
class Gradients:
    """``query`` [..., N, D], ``key`` [..., M, D], ``value`` [..., M, Dv]; ``largest_tile`` is the number of elements of
    the largest tile of P that existed at a time, for each [...]."""

    query: torch.Tensor
    key: torch.Tensor
    value: torch.Tensor
    largest_tile: int


def attention_backward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    d_out: torch.Tensor,
    d_lse: torch.Tensor | None = None,
    *,
    scale: float | None = None,
    visible: torch.Tensor | None = None,
    tile: tuple[int, int] | None = None,
) -> Gradients:
    """Gradients of attention without a ``score_mod``, from LSE, tile by tile.

    Query [..., N, D], key [..., M, D], value [..., M, Dv], out and d_out [..., N, Dv], lse and d_lse [..., N];
    ``scale`` is 1/sqrt(D) where not given, ``visible`` bool [..., N, M] or None. ``tile`` (rows, columns) is the whole
    matrix where not given. O(N M (D + Dv)) operations; storage besides the operands: that of a tile.
    """
    rows, columns = query.shape[-2], key.shape[-2]
    scale = query.shape[-1] ** -0.5 if scale is None else scale
    height, width = tile or (max(rows, 1), max(columns, 1))
    delta = row_products(d_out, out)
    d_query, d_key, d_value = (torch.zeros_like(t) for t in (query, key, value))
    for j in range(0, columns, width):  # the outer loop is over keys: a program instance keeps dK and dV of its block
        keys = slice(j, j + width)
        for i in range(0, rows, height):
            here = slice(i, i + height)
            scores = scale * (query[..., here, :] @ key[..., keys, :].mT)
            if visible is not None:
                scores = torch.where(visible[..., here, keys], scores, -math.inf)
            p = probabilities(scores, lse[..., here])
            d_value[..., keys, :] += p.mT @ d_out[..., here, :]
            d_p = d_out[..., here, :] @ value[..., keys, :].mT
            d_s = score_gradient(p, d_p, delta[..., here], None if d_lse is None else d_lse[..., here])
            d_query[..., here, :] += scale * (d_s @ key[..., keys, :])
            d_key[..., keys, :] += scale * (d_s.mT @ query[..., here, :])
    return Gradients(d_query, d_key, d_value, min(height, rows) * min(width, columns))
