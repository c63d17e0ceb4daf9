"""The backend ``reference``: attention on whole N x M matrices, by PyTorch's operators (Section 9.10).

It is given exactly what a kernel is given (the block lists, the captured tensors, traced modifications) and computes by
definition, in O(N M) memory: what runs where no template fits, and what kernels are held against. The modifications'
bodies are replayed over tensors, and their adjoints over tensors again, so that derivatives come from the rules that
the templates embed, and not from autograd (:mod:`.reference` has them from there).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from ..loops.semantics import Evaluator
from .lse_backward import probabilities, row_products, score_gradient
from .modification import flat_storage_of
from .problem import AttentionProblem
from .reference import subscript_tensors
from .tracing import SUBSCRIPTS


class _Matrix:
    """What both passes of one problem share."""

    def __init__(self, problem: AttentionProblem):
        self.problem = problem

    @property
    def source(self) -> str:
        """What is computed, in words of tensors."""
        problem = self.problem
        lines = [f"S = {problem.scale!r} * Q @ K^T"]
        lines += [f"S = {problem.score.name}(S, b, h, q_idx, kv_idx)"] if problem.score else []
        lines += [f"S = where({problem.mask.name}(b, h, q_idx, kv_idx), S, -inf)"] if problem.mask else []
        return "\n".join([*lines, "LSE = logsumexp(S)", "O = exp(S - LSE) @ V"]) + "\n"

    # -- parts --------------------------------------------------------------------------------------------------------

    def _scores(
        self, query: torch.Tensor, key: torch.Tensor, lists: Any, captured: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The scores that the softmax gets, hidden ones minus infinity, and those before they were modified."""
        problem, wide = self.problem, self.problem.accumulator
        products = query.to(wide) @ self._repeated(key).to(wide).mT * problem.scale
        scores = products
        if problem.score is not None:
            count = len(problem.score.captured)
            scores = problem.score.replay(self._evaluator(problem.score, captured[:count], query.device), products)
            scores = scores.to(wide).expand(products.shape)
        if lists is not None:
            count = len(problem.score.captured) if problem.score else 0
            asked = problem.mask.replay(self._evaluator(problem.mask, captured[count:], query.device))
            scores = torch.where(self._visible(lists, asked), scores, -math.inf)
        return scores, products

    def _evaluator(self, modification: Any, captured: Sequence[torch.Tensor], device: torch.device) -> Evaluator:
        storages = {
            part.name: flat_storage_of(tensor) for part, tensor in zip(modification.captured, captured, strict=True)
        }
        return _Everywhere(storages, self._places(device))

    def _places(self, device: torch.device) -> dict[str, torch.Tensor | int]:
        """The subscripts of all scores, along an axis each."""
        problem = self.problem
        sizes = (problem.batch, problem.query_heads, problem.queries, problem.keys)
        return dict(zip(SUBSCRIPTS, subscript_tensors(sizes, device), strict=True))

    def _visible(self, lists: Any, asked: torch.Tensor) -> torch.Tensor:
        """Positions in full blocks, and those in partial blocks that the mask lets take part."""
        partial, full = (
            self._spread_out(count, columns)
            for count, columns in (
                (lists.kv_num_blocks, lists.kv_indices),
                (lists.full_kv_num_blocks, lists.full_kv_indices),
            )
        )
        return full | (partial & asked.to(full.device))

    def _spread_out(self, count: torch.Tensor, columns: torch.Tensor) -> torch.Tensor:
        """Which positions lie in the blocks of a list: bool [Bm, Hm, N, M]."""
        problem = self.problem
        listed = torch.arange(columns.shape[3], device=columns.device) < count.unsqueeze(-1)
        member = torch.zeros_like(listed).scatter_reduce(3, columns.long(), listed, "amax")
        rows = torch.arange(problem.queries, device=columns.device) // problem.blocks.rows
        keys = torch.arange(problem.keys, device=columns.device) // problem.blocks.columns
        return member[:, :, rows][:, :, :, keys]

    def _adjoint(
        self, products: torch.Tensor, d_scores: torch.Tensor, captured: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """The derivative through ``score_mod``: of the score, and of the captured tensors that require one."""
        problem = self.problem
        own = captured[: len(problem.score.captured)]
        places = self._places(products.device).values()
        d_products, made = problem.score.adjoint.evaluate(own, products, d_scores, *places)
        learned = [
            made[number] if number in made else torch.zeros_like(tensor, dtype=problem.accumulator)
            for number, (tensor, part) in enumerate(zip(captured, problem.captured, strict=True))
            if part.requires_grad
        ]
        return d_products, learned

    def _repeated(self, tensor: torch.Tensor) -> torch.Tensor:
        """Key heads as many times as query heads share them."""
        return tensor.repeat_interleave(self.problem.group, 1) if self.problem.group > 1 else tensor

    def _values(self, value: torch.Tensor) -> torch.Tensor:
        return self._repeated(value).to(self.problem.accumulator)

    def _over_groups(self, gradient: torch.Tensor) -> torch.Tensor:
        """The gradients of the query heads that share a key head, summed."""
        return gradient.unflatten(1, (-1, self.problem.group)).sum(2) if self.problem.group > 1 else gradient

    def _rounded(self, matrix: torch.Tensor) -> torch.Tensor:
        """As the second product is given it: in the dtype of a half-precision value."""
        return matrix.to(self.problem.dtype).to(self.problem.accumulator)


class MatrixForward(_Matrix):
    """``forward(query, key, value, lists, captured) -> (result, logarithm of the sum of exponentials)``."""

    def __call__(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, lists: Any, captured: Sequence[torch.Tensor]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """(result, logarithm of the sum of exponentials), as the operator has them."""
        scores, _ = self._scores(query, key, lists, captured)
        lse = _log_sum(scores)
        p = probabilities(scores, lse)
        return (self._rounded(p) @ self._values(value)).to(query.dtype), lse


class MatrixBackward(_Matrix):
    """The backward pass, with the signature that every backend's has."""

    def __call__(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        output: torch.Tensor,
        lse: torch.Tensor,
        output_gradient: torch.Tensor,
        lse_gradient: torch.Tensor | None,
        lists: Any,
        captured: Sequence[torch.Tensor],
    ) -> list[torch.Tensor]:
        """Gradients of query, key, value and of every captured tensor that requires one."""
        problem, wide = self.problem, self.problem.accumulator
        scores, products = self._scores(query, key, lists, captured)
        p = probabilities(scores, lse)
        upstream = output_gradient.to(wide)
        d_value = self._rounded(p).mT @ upstream
        d_p = upstream @ self._values(value).mT
        rows = None if lse_gradient is None else torch.where(lse == -math.inf, 0.0, lse_gradient.to(wide))
        d_scores = score_gradient(p, d_p, row_products(upstream, output.to(wide)), rows)
        # A hidden score takes part in nothing, whatever a modification makes of it or of its derivative.
        d_scores = torch.where(scores == -math.inf, 0.0, d_scores)
        learned: list[torch.Tensor] = []
        if problem.score is not None:
            d_scores, learned = self._adjoint(products, d_scores, captured)
        d_scores = self._rounded(d_scores * problem.scale)
        d_query = d_scores @ self._repeated(key).to(wide)
        d_key = d_scores.mT @ query.to(wide)
        return [d_query, self._over_groups(d_key), self._over_groups(d_value), *learned]


class _Everywhere(Evaluator):
    """The reference semantics, with numbers on the device of the subscripts."""

    def constant(self, value: Any, dtype: torch.dtype) -> torch.Tensor:
        return super().constant(value, dtype).to(self.symbols["kv"].device)


def _log_sum(scores: torch.Tensor) -> torch.Tensor:
    """The logarithm of each row's sum of exponentials; minus infinity where all scores are."""
    largest = scores.amax(-1, keepdim=True)
    shift = torch.where(largest == -math.inf, 0.0, largest)
    return (torch.exp(scores - shift).sum(-1, keepdim=True).log() + shift).squeeze(-1)
