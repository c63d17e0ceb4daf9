"""Softmax and the normalisations: a few reductions over a row and a pointwise pass over the row again.

These operators belong to the basis and are not decomposed (Section 4.8). What a row's elements share, its greatest
element, its sum, its mean, its reciprocal standard deviation, is small and kept in memory; the row itself is computed
again in every pass, from its inputs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..layout import broadcast, numel, reshaped
from ..ops import compute_dtype
from .call import Call
from .reductions import finish, moments
from .registry import Decline, lowering
from .row_blocks import block_length
from .values import TensorValue

SHARED = "shared by every element of its row"

#: The exponentials of a row of at most so many bytes are kept for its second pass, where rows share a kernel: storing
#: and reading an element in the cache next to the core is quicker than another exponential.
KEPT_ROW_BYTES = 64 << 10
FEWEST_KEPT_ROWS = 64

#: A row of more bytes than this does not stay in the cache between two passes. It is cut into blocks of about so many
#: elements, which do.
LONG_ROW_BYTES = 512 << 10
BLOCK_ELEMENTS = 16 << 10
BLOCK_MULTIPLE = 16  # elements of a cache line


def _exponentials(call: Call, x: TensorValue, dim: int, wide: torch.dtype) -> tuple[TensorValue, TensorValue]:
    """The greatest element of each row and the sum of ``exp(x - greatest)``, both kept in memory."""
    if size := _block(call, x, dim, wide):
        return _exponentials_in_blocks(call, x, size, wide)
    greatest = call.reduction("amax", x, [dim], keepdim=True, dtype=wide)
    total = call.reduction(
        "sum", x, [dim], keepdim=True, dtype=wide, function=lambda ops, a, m: ops.exp(ops.sub(a, m)), extra=(greatest,)
    )
    return greatest, total


def _block(call: Call, x: TensorValue, dim: int, wide: torch.dtype) -> int:
    """Elements of the blocks that a long row is cut into; 0 if it is short, has no divisor of that kind, or if blocks
    would be too few to be fused."""
    if call.lowering.device.is_gpu:
        found = "the greatest element and the sum relative to it (Proposition 9.1)"
        return block_length(call, x, [dim], found) if x.ndim else 0
    if not call.fuses_rows or x.ndim == 0 or dim % x.ndim != x.ndim - 1 or x.shape[-1] * wide.itemsize < LONG_ROW_BYTES:
        return 0
    sizes = range(BLOCK_ELEMENTS, BLOCK_ELEMENTS // 16, -BLOCK_MULTIPLE)
    size = next((size for size in sizes if x.shape[-1] % size == 0), 0)
    return size if size and x.numel // size >= FEWEST_KEPT_ROWS else 0


def _exponentials_in_blocks(
    call: Call, x: TensorValue, size: int, wide: torch.dtype
) -> tuple[TensorValue, TensorValue]:
    """The same in one pass over memory: the two values of each block, which the cache holds meanwhile, and then of all
    blocks. Pairs (m, d) of a greatest element and a sum relative to it are merged by Proposition 9.1:
    ``(max(m, n), d exp(m - max(m, n)) + e exp(n - max(m, n)))`` (Milakov and Gimelshein, 2018),
    the rule of :mod:`staxlab.loops.online_softmax` for all blocks of a row at once.

    A block of nothing but minus infinity has the sum 0, relative to any number: 0 is taken, since infinities cancel to
    NaN. Where the whole row is like that, merging gives the NaN of eager execution.
    """
    lead, count = x.shape[:-1], x.shape[-1] // size
    last = len(lead)
    cut = x.seen(reshaped(x.shape, (*lead, count, size)))
    highest = call.reduction("amax", cut, [last + 1], keepdim=True, dtype=wide)

    def relative(ops, a, m):
        zero, lowest = ops.constant(0.0, wide), ops.constant(-math.inf, wide)
        return ops.exp(ops.sub(a, ops.where(ops.eq(m, lowest), zero, m)))

    sums = call.reduction("sum", cut, [last + 1], keepdim=True, dtype=wide, function=relative, extra=(highest,))
    greatest = call.reduction("amax", highest, [last, last + 1], keepdim=True, dtype=wide)
    total = call.reduction(
        "sum", sums, [last, last + 1], keepdim=True, dtype=wide,
        function=lambda ops, d, m, g: ops.mul(d, ops.exp(ops.sub(m, g))), extra=(highest, greatest),
    )  # fmt: skip
    one = (*lead, 1)
    return greatest.seen(reshaped(greatest.shape, one)), total.seen(reshaped(total.shape, one))


def _keeps_rows(call: Call, x: TensorValue, dim: int, wide: torch.dtype) -> bool:
    """Whether scheduling will let the passes over a row share a kernel, and the row is short enough to be kept."""
    last = dim % max(x.ndim, 1) == x.ndim - 1
    rows = x.numel // x.shape[dim] if x.ndim else 1
    short = x.ndim > 0 and x.shape[dim] * wide.itemsize <= KEPT_ROW_BYTES
    return call.fuses_rows and last and short and rows >= FEWEST_KEPT_ROWS


@lowering("_safe_softmax", kind="normalization", passes=3)
def lower_safe_softmax(call: Call, x: TensorValue, dim: int, dtype: torch.dtype | None = None) -> TensorValue:
    """A softmax in which a row of nothing but minus infinity (everything masked out) gives zeros instead of NaN."""
    if not x.dtype.is_floating_point or x.numel == 0 or dtype not in (None, x.dtype):
        raise Decline("softmax of integers, of nothing, or with a conversion")
    wide = compute_dtype(call.meta.dtype)
    greatest, total = _exponentials(call, x, dim, wide)

    def function(ops, a, m, s):
        zero, lowest = ops.constant(0.0, wide), ops.constant(-math.inf, wide)
        return ops.where(ops.eq(m, lowest), zero, ops.truediv(ops.exp(ops.sub(a, m)), s))

    return call.pointwise(function, x, greatest, total, operand_dtype=wide)


@lowering("_softmax", kind="normalization", passes=3)
def lower_softmax(call: Call, x: TensorValue, dim: int, half_to_float: bool = False) -> TensorValue:
    if not x.dtype.is_floating_point:
        raise Decline("softmax of integers")
    if x.numel == 0:
        return call.full(0.0, call.meta.shape, call.meta.dtype)
    wide = compute_dtype(call.meta.dtype)
    if _keeps_rows(call, x, dim, wide):
        greatest = call.reduction("amax", x, [dim], keepdim=True, dtype=wide)
        exponentials = call.pointwise(
            lambda ops, a, m: ops.exp(ops.sub(a, m)), x, greatest, operand_dtype=wide, dtype=wide
        )
        kept = call.stored(exponentials, "a row of exponentials stays in the cache until it is divided by its sum")
        total = call.reduction("sum", kept, [dim], keepdim=True, dtype=wide)
        return call.pointwise(lambda ops, e, s: ops.truediv(e, s), kept, total, operand_dtype=wide)
    greatest, total = _exponentials(call, x, dim, wide)
    return call.pointwise(
        lambda ops, a, m, s: ops.truediv(ops.exp(ops.sub(a, m)), s), x, greatest, total, operand_dtype=wide
    )


@lowering("_log_softmax", kind="normalization", passes=3)
def lower_log_softmax(call: Call, x: TensorValue, dim: int, half_to_float: bool = False) -> TensorValue:
    if not x.dtype.is_floating_point:
        raise Decline("log_softmax of integers")
    if x.numel == 0:
        return call.full(0.0, call.meta.shape, call.meta.dtype)
    wide = compute_dtype(call.meta.dtype)
    greatest, total = _exponentials(call, x, dim, wide)
    logarithm = call.stored(
        call.pointwise(lambda ops, s: ops.log(s), total, shape=total.shape, dtype=wide, operand_dtype=wide), SHARED
    )
    return call.pointwise(lambda ops, a, m, s: ops.sub(ops.sub(a, m), s), x, greatest, logarithm, operand_dtype=wide)


def _reciprocal_deviation(call: Call, variance: TensorValue, eps: float) -> TensorValue:
    wide = variance.dtype
    value = call.pointwise(
        lambda ops, v: ops.rsqrt(ops.add(v, ops.constant(eps, wide))), variance, shape=variance.shape, dtype=wide
    )
    return call.stored(value, SHARED)


def normalize(
    call: Call,
    x: TensorValue,
    mean: TensorValue,
    scale: TensorValue,
    weight: TensorValue | None,
    bias: TensorValue | None,
) -> TensorValue:
    """``(x - mean) * scale * weight + bias`` over the result's shape."""
    operands = [x, mean, scale] + [p for p in (weight, bias) if p is not None]

    def function(ops, a, m, r, *parameters):
        remaining = list(parameters)
        value = ops.mul(ops.sub(a, m), r)
        if weight is not None:
            value = ops.mul(value, remaining.pop(0))
        if bias is not None:
            value = ops.add(value, remaining.pop(0))
        return value

    wide = compute_dtype(torch.float64 if call.meta.dtype == torch.float64 else torch.float32)
    return call.pointwise(function, *operands, operand_dtype=wide, shape=x.shape, dtype=call.meta.dtype)


@lowering("native_layer_norm", kind="normalization", passes=3)
def lower_layer_norm(call: Call, x: TensorValue, shape, weight, bias, eps: float):
    """Result, mean and reciprocal standard deviation (Example 4.3)."""
    dims = list(range(x.ndim - len(shape), x.ndim))
    _, mean_meta, deviation_meta = call.val
    if x.numel == 0:
        raise Decline("a layer norm of nothing")
    variance, mean = moments(call, x, dims, 0, mean_meta.dtype)
    scale = _reciprocal_deviation(call, variance, eps)
    result = normalize(call, x, mean, scale, weight, bias)
    return (
        result,
        finish(call, mean, dims, True, mean_meta.dtype),
        finish(call, scale, dims, True, deviation_meta.dtype),
    )


@lowering("native_group_norm", kind="normalization", passes=3)
def lower_group_norm(call: Call, x: TensorValue, weight, bias, n, channels, rest, groups, eps):
    """As a layer norm over the channels and positions of a group."""
    _, mean_meta, deviation_meta = call.val
    if x.numel == 0:
        raise Decline("a group norm of nothing")
    per_group = channels // groups
    grouped = (n, groups, per_group, rest)
    rows = x.seen(reshaped(x.shape, grouped))
    variance, mean = moments(call, rows, [2, 3], 0, mean_meta.dtype)
    scale = _reciprocal_deviation(call, variance, eps)

    def spread(value: TensorValue) -> TensorValue:
        """A per-group value for every element of ``x``."""
        return value.seen(broadcast(value.shape, grouped)).seen(reshaped(grouped, x.shape))

    def per_channel(parameter: TensorValue | None) -> TensorValue | None:
        return None if parameter is None else parameter.seen(reshaped((channels,), (channels, *[1] * (x.ndim - 2))))

    result = normalize(call, x, spread(mean), spread(scale), per_channel(weight), per_channel(bias))

    def flat(value: TensorValue, dtype: torch.dtype) -> TensorValue:
        return finish(call, value, [2, 3], False, dtype)

    return result, flat(mean, mean_meta.dtype), flat(scale, deviation_meta.dtype)


def _channels(parameter: TensorValue | None, rank: int) -> TensorValue | None:
    """A per-channel vector against ``(N, C, ...)``."""
    if parameter is None:
        return None
    return parameter.seen(reshaped(parameter.shape, (parameter.shape[0], *[1] * (rank - 2))))


def _batch_norm_inference(call: Call, x: TensorValue, weight, bias, mean, variance, eps: float):
    wide = torch.float64 if x.dtype == torch.float64 else torch.float32
    scale = call.pointwise(
        lambda ops, v: ops.rsqrt(ops.add(v, ops.constant(eps, wide))),
        variance, operand_dtype=wide, shape=variance.shape, dtype=wide,
    )  # fmt: skip
    if not call.lowering.device.is_gpu:
        # On a GPU a root for each element hides behind its loads, and a kernel for the channels' costs a launch.
        scale = call.stored(scale, SHARED)
    parameters = [_channels(p, x.ndim) for p in (mean, scale, weight, bias)]
    result = normalize(call, x, *parameters)
    return result, *(call.full(0.0, meta.shape, meta.dtype) for meta in call.val[1:])


@lowering("_native_batch_norm_legit_no_training", kind="normalization")
def lower_batch_norm_no_training(call: Call, x, weight, bias, mean, variance, momentum: float, eps: float):
    if x.ndim < 2:
        raise Decline("batch norm of a tensor without channels")
    return _batch_norm_inference(call, x, weight, bias, mean, variance, eps)


@lowering("native_batch_norm", kind="normalization")
def lower_native_batch_norm(call: Call, x, weight, bias, mean, variance, training: bool, momentum: float, eps: float):
    if training and mean is None and variance is None:
        return _batch_statistics(call, x, weight, bias, eps)[:3]
    if training or mean is None or variance is None or x.ndim < 2:
        raise Decline("batch norm that updates running statistics in place")
    if any(numel(meta.shape) for meta in call.val[1:]):
        raise Decline("batch norm that returns statistics")
    return _batch_norm_inference(call, x, weight, bias, mean, variance, eps)


def _batch_statistics(call: Call, x: TensorValue, weight, bias, eps: float):
    """The result, the mean and the reciprocal deviation over everything but channels; and the variance.

    A channel of a batch may have millions of elements, and its mean may be large beside its deviation. On a CPU eager
    execution adds them up in double precision, and so does this.
    """
    if x.ndim < 2 or x.numel == 0:
        raise Decline("batch norm of a tensor without channels or elements")
    dims: Sequence[int] = [d for d in range(x.ndim) if d != 1]
    mean_meta, deviation_meta = call.val[1:3]
    wide = mean_meta.dtype if call.lowering.device.is_gpu else torch.float64
    variance, mean = moments(call, x, dims, 0, wide)
    scale = _reciprocal_deviation(call, variance, eps)
    mean, scale = (
        call.stored(finish(call, value, dims, True, meta.dtype), SHARED)
        for value, meta in ((mean, mean_meta), (scale, deviation_meta))
    )
    result = normalize(call, x, mean, scale, _channels(weight, x.ndim), _channels(bias, x.ndim))
    kept = (
        finish(call, mean, dims, False, mean_meta.dtype),
        finish(call, scale, dims, False, deviation_meta.dtype),
    )
    return result, *kept, finish(call, variance, dims, False, variance.dtype)


@lowering("_native_batch_norm_legit.no_stats", kind="normalization", passes=3)
def lower_batch_norm_statistics(call: Call, x, weight, bias, training: bool, momentum: float, eps: float):
    """Statistics of the batch itself, nothing updated."""
    return _batch_statistics(call, x, weight, bias, eps)[:3]


@lowering("_native_batch_norm_legit_functional", kind="normalization", passes=3)
def lower_batch_norm_training(
    call: Call, x, weight, bias, running_mean, running_variance, training: bool, momentum: float, eps: float
):
    """Training: the batch's statistics are used, and the running ones move toward them by ``momentum``."""
    if not training:
        raise Decline("batch norm that returns statistics without computing them")
    result, mean, scale, variance = _batch_statistics(call, x, weight, bias, eps)
    count = x.numel // x.shape[1]
    unbiased = count / max(count - 1, 1)

    def moved(running: TensorValue, fresh: TensorValue, factor: float, meta) -> TensorValue:
        wide = compute_dtype(fresh.dtype)

        def function(ops, old, new):
            scaled = new if factor == 1.0 else ops.mul(new, ops.constant(factor, wide))
            step = ops.mul(ops.constant(momentum, wide), scaled)
            return ops.add(step, ops.mul(ops.constant(1.0 - momentum, wide), old))

        return call.pointwise(function, running, fresh, operand_dtype=wide, shape=meta.shape, dtype=meta.dtype)

    return (
        result,
        mean,
        scale,
        moved(running_mean, mean, 1.0, call.val[3]),
        moved(running_variance, variance, unbiased, call.val[4]),
    )
