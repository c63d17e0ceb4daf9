"""Our own decomposition rules (Section 4.8), consulted before PyTorch's table.

PyTorch's table has about a thousand rules and covers the rare operators. For the common ones these few lines say the
same in plain tensor code: a rule is a function with the operator's signature, run under the recorder, so that what it
calls is what gets recorded. (The table's rules also import a computer-algebra package on first use, which alone would
take as long as the rest of a first compilation.)
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

aten = torch.ops.aten
Tensor = torch.Tensor

DECOMPOSITIONS: dict[torch._ops.OpOverload, Callable[..., Any]] = {}

MEAN, SUM = 1, 2  # the codes at::Reduction gives to "mean" and "sum"; 0 is "none"


def rule(*overloads: torch._ops.OpOverload) -> Callable[[Callable], Callable]:
    """Decorator: the function is the decomposition of these overloads."""

    def register(function: Callable) -> Callable:
        for overload in overloads:
            DECOMPOSITIONS[overload] = function
        return function

    return register


def reduced(loss: Tensor, reduction: int) -> Tensor:
    """A loss over all elements as its ``reduction`` argument says."""
    if reduction == MEAN:
        return aten.mean.default(loss)
    return aten.sum.default(loss) if reduction == SUM else loss


# -- losses ----------------------------------------------------------------------------------------------------------


@rule(aten.mse_loss.default)
def mse_loss(x: Tensor, y: Tensor, reduction: int = MEAN) -> Tensor:
    difference = aten.sub.Tensor(x, y)
    return reduced(aten.mul.Tensor(difference, difference), reduction)


@rule(aten.smooth_l1_loss.default)
def smooth_l1_loss(x: Tensor, y: Tensor, reduction: int = MEAN, beta: float = 1.0) -> Tensor:
    distance = aten.abs.default(aten.sub.Tensor(x, y))
    if beta == 0.0:
        return reduced(distance, reduction)
    quadratic = aten.div.Tensor(aten.mul.Tensor(aten.mul.Tensor(distance, 0.5), distance), beta)
    linear = aten.sub.Tensor(distance, 0.5 * beta)
    return reduced(aten.where.self(aten.lt.Scalar(distance, beta), quadratic, linear), reduction)


@rule(aten.huber_loss.default)
def huber_loss(x: Tensor, y: Tensor, reduction: int = MEAN, delta: float = 1.0) -> Tensor:
    distance = aten.abs.default(aten.sub.Tensor(x, y))
    quadratic = aten.mul.Tensor(aten.mul.Tensor(distance, 0.5), distance)
    linear = aten.mul.Tensor(aten.sub.Tensor(distance, 0.5 * delta), delta)
    return reduced(aten.where.self(aten.le.Scalar(distance, delta), quadratic, linear), reduction)


@rule(aten.binary_cross_entropy.default)
def binary_cross_entropy(x: Tensor, y: Tensor, weight: Tensor | None = None, reduction: int = MEAN) -> Tensor:
    for values, name in ((x, "input"), (y, "target")):
        inside = aten.logical_and.default(aten.ge.Scalar(values, 0), aten.le.Scalar(values, 1))
        aten._assert_async.msg(aten.all.default(inside), f"all elements of {name} should be between 0 and 1")
    log_x = aten.clamp_min.default(aten.log.default(x), -100)
    log_rest = aten.clamp_min.default(aten.log1p.default(aten.neg.default(x)), -100)
    loss = aten.sub.Tensor(aten.mul.Tensor(aten.sub.Tensor(y, 1), log_rest), aten.mul.Tensor(y, log_x))
    return reduced(loss if weight is None else aten.mul.Tensor(loss, weight), reduction)


@rule(aten.binary_cross_entropy_with_logits.default)
def binary_cross_entropy_with_logits(
    x: Tensor, y: Tensor, weight: Tensor | None = None, pos_weight: Tensor | None = None, reduction: int = MEAN
) -> Tensor:
    log_sigmoid = aten.log_sigmoid_forward.default(x)[0]
    rest = aten.mul.Tensor(aten.rsub.Scalar(y, 1), x)
    if pos_weight is not None:
        scale = aten.add.Scalar(aten.mul.Tensor(aten.sub.Scalar(pos_weight, 1), y), 1)
        log_sigmoid = aten.mul.Tensor(scale, log_sigmoid)
    loss = aten.sub.Tensor(rest, log_sigmoid)
    return reduced(loss if weight is None else aten.mul.Tensor(loss, weight), reduction)


@rule(aten.soft_margin_loss.default)
def soft_margin_loss(x: Tensor, y: Tensor, reduction: int = MEAN) -> Tensor:
    return reduced(aten.log1p.default(aten.exp.default(aten.mul.Tensor(aten.neg.default(x), y))), reduction)


# -- elementwise -----------------------------------------------------------------------------------------------------


@rule(aten.glu.default)
def glu(x: Tensor, dim: int = -1) -> Tensor:
    if x.shape[dim] % 2:
        return NotImplemented
    half = x.shape[dim] // 2
    return aten.mul.Tensor(
        aten.slice.Tensor(x, dim, 0, half), aten.sigmoid.default(aten.slice.Tensor(x, dim, half, 2 * half))
    )


@rule(aten._fused_rms_norm.default) if hasattr(aten, "_fused_rms_norm") else (lambda function: function)
def rms_norm(x: Tensor, shape: list[int], weight: Tensor | None, eps: float | None) -> tuple[Tensor, Tensor]:
    dims = list(range(x.dim() - len(shape), x.dim()))
    wide = x if x.dtype in (torch.float32, torch.float64) else aten._to_copy.default(x, dtype=torch.float32)
    eps = torch.finfo(wide.dtype).eps if eps is None else eps
    mean_square = aten.mean.dim(aten.mul.Tensor(wide, wide), dims, True)
    scale = aten.rsqrt.default(aten.add.Scalar(mean_square, eps))
    result = aten.mul.Tensor(wide, scale)
    if weight is not None:
        result = aten.mul.Tensor(result, weight)
    return (result if result.dtype == x.dtype else aten._to_copy.default(result, dtype=x.dtype)), scale
