"""The adjoints of softmax and the normalisations: one or two sums over a row, and a pointwise pass over it.

Let ``h = (x - mean) * r`` be the normalised value (computed again from what the forward pass kept) and ``u`` the
upstream gradient times the weight. The adjoint of a normalisation is

    ``dx = r * (u - mean(u) - h * mean(u * h))``,

which is ``r * u`` without its components along 1 and along ``h``: neither shifting a row nor scaling it changes what it
normalises to. The gradients of weight and bias are sums over everything else, of ``g * h`` and of ``g``.

Eager execution has the layer norm's adjoint on the CPU as ``a*u + b*x + c``, with ``b`` and ``c`` made of
``sum(u * x)``. That cancels where a row's mean is large beside its deviation; the form here does not, so where the two
differ by more than roundings it is the more exact one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ...capture.graph import TensorMeta
from ..layout import broadcast, reshaped
from ..ops import compute_dtype
from .call import Call
from .normalizations import SHARED
from .reductions import count_over
from .registry import Decline, lowering
from .values import TensorValue


def _wide(x: TensorValue) -> torch.dtype:
    """The dtype rows are summed in."""
    return torch.float64 if x.dtype == torch.float64 else torch.float32


# -- softmax ----------------------------------------------------------------------------------------------------------


def _row_sum(call: Call, gradient: TensorValue, dim: int, function=None, extra=()) -> TensorValue:
    wide = compute_dtype(gradient.dtype)
    return call.reduction("sum", gradient, [dim], keepdim=True, dtype=wide, function=function, extra=extra)


@lowering("_softmax_backward_data", kind="normalization", passes=2)
def lower_softmax_backward(call: Call, gradient: TensorValue, y: TensorValue, dim: int, input_dtype) -> TensorValue:
    """``y * (g - sum(g * y))``."""
    if call.meta.numel == 0:
        return call.full(0.0, call.meta.shape, call.meta.dtype)
    total = _row_sum(call, gradient, dim, lambda ops, g, a: ops.mul(g, a), (y,))
    return call.pointwise(lambda ops, g, a, s: ops.mul(ops.sub(g, s), a), gradient, y, total, operand_dtype=total.dtype)


@lowering("_log_softmax_backward_data", kind="normalization", passes=2)
def lower_log_softmax_backward(call: Call, gradient: TensorValue, y: TensorValue, dim: int, input_dtype):
    """``g - exp(y) * sum(g)``."""
    if call.meta.numel == 0:
        return call.full(0.0, call.meta.shape, call.meta.dtype)
    total = _row_sum(call, gradient, dim)
    return call.pointwise(
        lambda ops, g, a, s: ops.sub(g, ops.mul(ops.exp(a), s)), gradient, y, total, operand_dtype=total.dtype
    )


# -- normalisations ---------------------------------------------------------------------------------------------------


def _weighted(ops, g, weights):
    return ops.mul(g, weights[0]) if weights else g


def _row_sums(
    call: Call, gradient: TensorValue, x: TensorValue, statistics: list, weights: list, dims: Sequence[int]
) -> tuple[TensorValue | None, TensorValue]:
    """``sum(u)`` and ``sum(u * h)`` over ``dims``, kept. ``statistics`` are the mean (absent from an RMS norm, which
    shifts nothing, so that the first is None) and the reciprocal deviation."""
    count, wide = len(statistics), _wide(x)

    def total(function: Callable, extra: list) -> TensorValue:
        return call.reduction("sum", gradient, dims, keepdim=True, dtype=wide, function=function, extra=extra)

    def along(ops, g, a, *rest):
        return ops.mul(_weighted(ops, g, rest[count:]), _standard(ops, a, rest[:count]))

    second = total(along, [x, *statistics, *weights])
    return None if count == 1 else total(lambda ops, g, *w: _weighted(ops, g, w), list(weights)), second


def _standard(ops, a, statistics):
    """The normalised value ``h``."""
    return ops.mul(a, statistics[0]) if len(statistics) == 1 else ops.mul(ops.sub(a, statistics[0]), statistics[1])


def _for_input(
    call: Call,
    gradient: TensorValue,
    x: TensorValue,
    statistics: list,
    weights: list,
    sums: Sequence,
    n: int,
    *,
    weights_outside: bool = False,
) -> TensorValue:
    """``r * (u - mean(u) - h * mean(u * h))`` over the shape of ``x``; the means are ``sums`` over ``n`` elements.
    ``weights_outside``: the sums are those of the bare gradient, and all of it is weighted in the end."""
    kept = [s for s in sums if s is not None]
    count, wide = len(statistics), _wide(x)

    def function(ops, g, a, *rest):
        given, shared, rest = rest[:count], rest[count : count + len(kept)], rest[count + len(kept) :]
        means = [ops.mul(s, ops.constant(1 / n, wide)) for s in shared]
        value = g if weights_outside else _weighted(ops, g, rest)
        if len(means) == 2:
            value = ops.sub(value, means[0])
        value = ops.sub(value, ops.mul(_standard(ops, a, given), means[-1]))
        value = ops.mul(given[-1], value)
        return _weighted(ops, value, rest) if weights_outside else value

    operands = [gradient, x, *statistics, *kept, *weights]
    return call.pointwise(function, *operands, operand_dtype=wide, shape=x.shape, dtype=call.val[0].dtype)


def _sums(
    call: Call, gradient: TensorValue, x: TensorValue, statistics: list, dims: Sequence[int]
) -> tuple[TensorValue | None, TensorValue | None]:
    """The gradients of weight and bias where they are asked for: results 1 and 2 of the call."""
    metas = (*call.val[1:3], None)
    for_weight = for_bias = None
    if metas[0] is not None:
        for_weight = call.reduction(
            "sum", gradient, dims, dtype=metas[0].dtype, accumulate_dtype=_wide(x), extra=[x, *statistics],
            function=lambda ops, g, a, *rest: ops.mul(g, _standard(ops, a, rest)),
        )  # fmt: skip
    if metas[1] is not None:
        for_bias = call.reduction("sum", gradient, dims, dtype=metas[1].dtype, accumulate_dtype=_wide(x))
    return for_weight, for_bias


@lowering("native_layer_norm_backward", kind="normalization", passes=3)
def lower_layer_norm_backward(call: Call, gradient, x, shape, mean, scale, weight, bias, output_mask):
    lead = x.ndim - len(shape)
    rows, columns = list(range(lead, x.ndim)), list(range(lead))
    statistics, weights, for_x = [mean, scale], [] if weight is None else [weight], None
    if call.val[0] is not None:
        if x.numel == 0:
            for_x = call.full(0.0, x.shape, call.val[0].dtype)
        else:
            sums = _row_sums(call, gradient, x, statistics, weights, rows)
            for_x = _for_input(call, gradient, x, statistics, weights, sums, count_over(x, rows))
    return for_x, *_sums(call, gradient, x, statistics, columns)


@lowering("_fused_rms_norm_backward", kind="normalization", passes=2)
def lower_rms_norm_backward(call: Call, gradient, x, shape, scale, weight, output_mask):
    """As a layer norm's that shifts nothing: only the component along ``h`` is removed."""
    lead = x.ndim - len(shape)
    rows = list(range(lead, x.ndim))
    weights, for_x = [] if weight is None else [weight], None
    if call.val[0] is not None:
        if x.numel == 0:
            for_x = call.full(0.0, x.shape, call.val[0].dtype)
        else:
            sums = _row_sums(call, gradient, x, [scale], weights, rows)
            for_x = _for_input(call, gradient, x, [scale], weights, sums, count_over(x, rows))
    return for_x, _sums(call, gradient, x, [scale], list(range(lead)))[0]


@lowering("native_group_norm_backward", kind="normalization", passes=3)
def lower_group_norm_backward(call: Call, gradient, x, mean, scale, weight, n, channels, rest, groups, output_mask):
    """As a layer norm's over the channels and positions of a group."""
    if x.numel == 0:
        raise Decline("a group norm of nothing")
    grouped, flat = (n, groups, channels // groups, rest), (n, channels, rest)

    def per_group(value: TensorValue) -> TensorValue:
        return value.seen(reshaped(value.shape, (n, groups, 1, 1)))

    def spread(value: TensorValue, shape: Sequence[int]) -> TensorValue:
        """A per-group value for every element of ``shape``."""
        return value.seen(broadcast(value.shape, grouped)).seen(reshaped(grouped, shape))

    def per_channel(shape: Sequence[int]) -> list[TensorValue]:
        return [] if weight is None else [weight.seen(reshaped((channels,), shape))]

    statistics, for_x = [per_group(mean), per_group(scale)], None
    g, a = (value.seen(reshaped(value.shape, grouped)) for value in (gradient, x))
    if call.val[0] is not None:
        sums = _row_sums(call, g, a, statistics, per_channel((1, groups, channels // groups, 1)), [2, 3])
        everywhere, sums = ([spread(value, x.shape) for value in values] for values in (statistics, sums))
        weights = per_channel((channels, *[1] * (x.ndim - 2)))
        for_x = _for_input(call, gradient, x, everywhere, weights, sums, channels // groups * rest)
    g, a = (value.seen(reshaped(value.shape, flat)) for value in (gradient, x))
    return for_x, *_sums(call, g, a, [spread(value, flat) for value in statistics], [0, 2])


@lowering("native_batch_norm_backward", kind="normalization", passes=3)
def lower_batch_norm_backward(
    call: Call, gradient, x, weight, running_mean, running_variance, mean, scale, training: bool, eps, output_mask
):
    """The batch's own statistics depend on ``x``, running ones do not: then ``dx = r * u``."""
    if x.ndim < 2 or x.numel == 0:
        raise Decline("batch norm of a tensor without channels or elements")
    if not training:
        mean, scale = running_mean, _of_variance(call, running_variance, eps)
    shape = (x.shape[1], *[1] * (x.ndim - 2))
    statistics = [value.seen(reshaped(value.shape, shape)) for value in (mean, scale)]
    weights = [] if weight is None else [weight.seen(reshaped(weight.shape, shape))]
    dims, for_x = [d for d in range(x.ndim) if d != 1], None
    if call.val[0] is not None and training:
        # The weight is the same for all that is summed. Left out, the sums are the gradients of bias and weight too.
        sums = [call.stored(s, SHARED) for s in _row_sums(call, gradient, x, statistics, [], dims)]
        n = count_over(x, dims)
        for_x = _for_input(call, gradient, x, statistics, weights, sums, n, weights_outside=True)
        flat = [s.seen(reshaped(s.shape, (x.shape[1],))) for s in reversed(sums)]
        return for_x, *(_parameters(call, meta, s) for meta, s in zip(call.val[1:3], flat, strict=True))
    if call.val[0] is not None:
        for_x = call.pointwise(
            lambda ops, g, r, *w: ops.mul(_weighted(ops, g, w), r), gradient, statistics[1], *weights,
            operand_dtype=_wide(x), shape=x.shape, dtype=call.val[0].dtype,
        )  # fmt: skip
    return for_x, *_sums(call, gradient, x, statistics, dims)


def _parameters(call: Call, meta: TensorMeta | None, total: TensorValue) -> TensorValue | None:
    """A sum as the gradient of a parameter, in its dtype."""
    if meta is None or meta.dtype == total.dtype:
        return meta and total
    return call.pointwise(lambda ops, s: s, total, operand_dtype=total.dtype, shape=total.shape, dtype=meta.dtype)


@lowering("batch_norm_backward", kind="normalization", passes=3)
def lower_batch_norm_with_update_backward(
    call: Call, gradient, x, weight, running_mean, running_variance, mean, scale, update: bool, eps, mask, reserve
):
    """As ``native_batch_norm_backward``; what a vendor's library reserved for itself is not needed."""
    return lower_batch_norm_backward(
        call, gradient, x, weight, running_mean, running_variance, mean, scale, update, eps, mask
    )


def _of_variance(call: Call, variance: TensorValue, eps: float) -> TensorValue:
    wide = _wide(variance)

    def function(ops, v):
        return ops.rsqrt(ops.add(v, ops.constant(eps, wide)))

    value = call.pointwise(function, variance, operand_dtype=wide, shape=variance.shape, dtype=wide)
    return value if call.lowering.device.is_gpu else call.stored(value, SHARED)
