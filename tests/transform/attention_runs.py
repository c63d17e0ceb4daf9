"""Attention rewritten and run beside eager, with a stand-in for the attention operator that is its definition."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from staxlab.capture.tracer import trace
from staxlab.options import Options
from staxlab.transform import TransformLog, transform
from staxlab.transform.attention_expressions import function_of
from staxlab.transform.attention_rewrite import LAW, GeneralCall

PASS = "ReplaceAttention"


def definition(plan: Any, operands: Any, captured: Any, where: Any = None) -> GeneralCall:
    """A call that computes a plan by its definition on a matrix of scores, so that what is tested is the plan."""
    group = operands[0].shape[1] // operands[1].shape[1]

    def attention(q: Any, k: Any, v: Any, blocks: Any, tensors: Any, name: str) -> tuple[Any, Any]:
        k, v = (x.repeat_interleave(group, 1) for x in (k, v))
        position = [
            torch.arange(size, device=q.device).view([-1 if axis == own else 1 for axis in range(4)])
            for own, size in enumerate((q.shape[0], q.shape[1], q.shape[2], k.shape[2]))
        ]
        score = q @ k.mT * plan.scale
        score = function_of(plan.score, "modified", tensors, where)(score, *position)
        if plan.visible is not None:
            score = torch.where(function_of(plan.visible, "visible", score=False)(*position), score, -math.inf)
        highest = score.amax(-1, keepdim=True).clamp_min(torch.finfo(score.dtype).min)
        weights = torch.exp(score - highest)
        total = weights.sum(-1, keepdim=True)
        lse = (highest + total.log()).squeeze(-1)
        return (weights @ v) / total.clamp_min(torch.finfo(score.dtype).tiny), lse.detach()

    return GeneralCall(attention, "definition", (), tuple(range(len(captured))))


def rewritten(function: Callable, arguments: list, mode: str = "require", general: Any = definition) -> TransformLog:
    """The log of the passes on a function."""
    return transform(trace(function, tuple(arguments)), Options(attention=mode), general=general)


def replaced_by(log: TransformLog) -> list[str]:
    """What each attention of a graph was replaced by."""
    choices = {law: choice for choice, law in LAW.items()}
    return [choices[applied.law] for run in log.changes if run.name == PASS for applied in run.applied]


def with_gradients(arguments: list, but: str = "") -> list:
    """Fresh arguments that require grad where they may."""
    return [x.detach().clone().requires_grad_(x.is_floating_point()) for x in arguments]


def gradients(result: Any, arguments: list, upstream: torch.Tensor) -> list[torch.Tensor | None]:
    given = [x for x in arguments if x.requires_grad]
    return list(torch.autograd.grad(result, given, upstream, allow_unused=True))
