"""The running state of one query in tiled attention: the triple (m, l, a) (Section 9.10; Proposition 9.1).

Of the keys seen so far, ``m`` is the maximum of the scores, ``l`` the sum of ``exp(s - m)``, and ``a`` the sum of
``exp(s - m)`` times the row of values. Two states of different keys merge into that of both, in any order and grouping,
so the keys may be taken block by block, a block left out in which nothing is visible, and a long list of keys split
among program instances. At the end ``o = a / l``, and ``LSE = m + log(l)`` is what the backward pass is given
(:mod:`.lse_backward`). Rabe and Staats (2021) have the recurrence for attention; Dao et al. (2022) its tiles.

>>> import torch
>>> scores, values = torch.tensor([[0.5, -1.0, 2.0]]), torch.eye(3)
>>> whole = State.from_block(scores, values)
>>> split = State.from_block(scores[:, :1], values[:1]).merge(State.from_block(scores[:, 1:], values[1:]))
>>> torch.allclose(split.finish()[0], torch.softmax(scores, -1)), torch.allclose(split.total, whole.total)
(True, True)
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import torch

from ..loops.online_softmax import merge as merged
from ..loops.semantics import Evaluator


@dataclass(frozen=True, eq=False)
class State:
    """``maximum`` and ``total`` of shape [..., N], ``accumulated`` [..., N, Dv], all of one floating dtype.

    A row that has seen nothing holds (-inf, 0, 0), the identity of :meth:`merge`. A row that has seen a NaN holds NaN,
    and so does one with a score of plus infinity, whose softmax is NaN in eager execution too.
    """

    maximum: torch.Tensor
    total: torch.Tensor
    accumulated: torch.Tensor

    @staticmethod
    def identity(
        shape: Iterable[int], value_size: int, dtype: torch.dtype = torch.float64, device: torch.device | str = "cpu"
    ) -> State:
        """The state of no key at all: rows of the given shape, values of ``value_size``."""
        rows = tuple(shape)
        return State(
            torch.full(rows, -math.inf, dtype=dtype, device=device),
            torch.zeros(rows, dtype=dtype, device=device),
            torch.zeros((*rows, value_size), dtype=dtype, device=device),
        )

    @staticmethod
    def from_block(scores: torch.Tensor, value: torch.Tensor, visible: torch.Tensor | None = None) -> State:
        """The state of one block of keys: ``scores`` [..., N, M], ``value`` [..., M, Dv], ``visible`` bool,
        broadcasting to the scores, or None where every key is. O(N M Dv).

        A score of minus infinity is as good as invisible. An invisible key counts with weight 0, which makes NaN of a
        value that is infinite or NaN, as the product of probabilities and values does in eager execution.
        """
        if visible is not None:
            scores = torch.where(visible, scores, -math.inf)
        if scores.shape[-1] == 0:
            return State.identity(scores.shape[:-1], value.shape[-1], scores.dtype, scores.device)
        maximum = scores.amax(-1)
        # Nothing is subtracted from a score of minus infinity: where the maximum is one too, there is no difference.
        weights = torch.where(scores == -math.inf, 0.0, torch.exp(scores - maximum[..., None]))
        return State(maximum, weights.sum(-1), weights @ value)

    def merge(self, other: State) -> State:
        """The state of the keys of both (:func:`staxlab.loops.online_softmax.merge`). O(N Dv)."""
        first, second = ((part.maximum[..., None], part.total[..., None], part.accumulated) for part in (self, other))
        maximum, total, accumulated = merged(_EAGER, first, second)
        return State(maximum[..., 0], total[..., 0], accumulated)

    def correction(self, other: State) -> torch.Tensor:
        """``exp(m - mu)`` [..., N], with which a merge with ``other`` multiplies this state; 1 where m is the maximum,
        also where both are minus infinity."""
        greatest = torch.maximum(self.maximum, other.maximum)
        return torch.where(self.maximum == greatest, 1.0, torch.exp(self.maximum - greatest))

    def finish(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(o, LSE): ``a / l`` [..., N, Dv] and ``m + log(l)`` [..., N]; 0 and -inf for rows that have seen nothing."""
        empty = self.maximum == -math.inf
        total = torch.where(empty, 1.0, self.total)
        out = torch.where(empty[..., None], 0.0, self.accumulated / total[..., None])
        return out, torch.where(empty, -math.inf, self.maximum + torch.log(total))


#: PyTorch's operators as the interpretation of the rule: no buffers are read and there are no subscripts.
_EAGER = Evaluator({}, {})


def merge_all(states: Iterable[State]) -> State:
    """The states merged from left to right, as a program instance does it. At least one state."""
    first, *rest = states
    for state in rest:
        first = first.merge(state)
    return first


def merge_error_bound(height: int, spread: float, unit_roundoff: float = 2.0**-53) -> float:
    """How far ``l`` may be from its exact value after merges, relative to it; and each element of ``a`` relative to the
    sum of the absolute values of what was added to it.

    ``height`` is how many merges a block passes through, at most, ``spread`` the distance of the smallest of the
    blocks' maxima from the largest. On its way a summand is multiplied, in each merge, by ``exp`` of a difference.
    Every difference is rounded, which changes its exponential by a factor within ``exp(u |difference|)``; the
    differences along the way add up to ``spread`` at most, since maxima only grow. The exponential is taken to be
    within one unit in the last place (``2u``); a multiplication and an addition round once each. Together that is less
    than ``exp(u (spread + 4 height)) - 1``, where nothing underflows; one per cent is added for ``1/(1 - u)``.
    """
    return math.expm1(1.01 * unit_roundoff * (spread + 4 * height))
