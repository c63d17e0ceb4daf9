"""Reductions: merging along dimensions with a commutative monoid (Definitions 6.1 and 6.3; Table 6.1).

``y(i) = merge over r of f(i, r)``. The accumulator of half precision is float32, that of integer sums int64. Means,
norms and variances are a reduction and a pointwise epilogue, which stays a compute function until somebody reads it.
A variance takes two passes, mean first, as ``sum(x*x) - n*mean**2`` would cancel.

Rules say what is merged, not in what order. A reduction whose outputs are too few for a GPU becomes two levels when it
is given memory (:mod:`staxlab.loops.splitting`); argmax and argmin, which carry positions along, stay whole, and so do
scans (:mod:`.scans`) and matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch

from ..layout import numel, reshaped, squeezed
from ..ops import compute_dtype
from .call import Call
from .registry import Decline, lowering
from .row_blocks import block_length
from .unary import cast, truth
from .values import Number, TensorValue


def all_dimensions(x: TensorValue, dimensions: int | Sequence[int] | None) -> list[int]:
    """The dimensions an argument names; none given means all."""
    if dimensions is None or (not isinstance(dimensions, int) and len(dimensions) == 0):
        return list(range(x.ndim))
    chosen = [dimensions] if isinstance(dimensions, int) else list(dimensions)
    return sorted({d % x.ndim for d in chosen}) if x.ndim else []


def count_over(x: TensorValue, dimensions: Sequence[int]) -> int:
    """How many elements are merged into one."""
    return numel([x.shape[d] for d in dimensions]) if x.ndim else 1


def cast_elements(x: TensorValue, dtype: torch.dtype | None):
    """The element function of a reduction with a ``dtype`` argument: elements are converted before they are merged."""
    if dtype is None or dtype == x.dtype:
        return None
    return lambda ops, a: ops.to_dtype(a, dtype)


# -- sums and products ------------------------------------------------------------------------------------------------


@lowering("sum sum.dim_IntList", kind="reduction")
def lower_sum(call: Call, x: TensorValue, dims=None, keepdim: bool = False, *, dtype=None) -> TensorValue:
    return call.reduction("sum", x, all_dimensions(x, dims), keepdim=keepdim, function=cast_elements(x, dtype))


@lowering("nansum", kind="reduction")
def lower_nansum(call: Call, x: TensorValue, dims=None, keepdim: bool = False, *, dtype=None) -> TensorValue:
    if not x.dtype.is_floating_point:
        return lower_sum(call, x, dims, keepdim, dtype=dtype)
    convert = cast_elements(x, dtype) or (lambda ops, a: a)

    def element(ops, a):
        return convert(ops, ops.where(ops.isnan(a), ops.constant(0.0, x.compute_dtype), a))

    return call.reduction("sum", x, all_dimensions(x, dims), keepdim=keepdim, function=element)


@lowering("prod prod.dim_int", kind="reduction")
def lower_prod(call: Call, x: TensorValue, dim=None, keepdim: bool = False, *, dtype=None) -> TensorValue:
    return call.reduction("prod", x, all_dimensions(x, dim), keepdim=keepdim, function=cast_elements(x, dtype))


def mean_of(call: Call, x: TensorValue, dims: Sequence[int], keepdim: bool, dtype: torch.dtype) -> TensorValue:
    """Sum and division, both in the compute dtype of ``dtype``; the sum of half-precision numbers is stored as float32,
    where float16 would overflow."""
    wide = compute_dtype(dtype)
    total = call.reduction("sum", x, dims, keepdim=keepdim, dtype=wide, function=cast_elements(x, dtype))
    count = count_over(x, dims)
    return divided(call, total, count, dtype)


def divided(call: Call, total: TensorValue, count: Number, dtype: torch.dtype) -> TensorValue:
    """``total / count``, in the dtype of ``total``."""

    def function(ops, a):
        return ops.truediv(a, ops.constant(count, total.dtype))

    return call.pointwise(function, total, dtype=dtype, operand_dtype=total.dtype, shape=total.shape)


@lowering("mean mean.dim", kind="reduction")
def lower_mean(call: Call, x: TensorValue, dims=None, keepdim: bool = False, *, dtype=None) -> TensorValue:
    return mean_of(call, x, all_dimensions(x, dims), keepdim, call.meta.dtype)


# -- extremes ---------------------------------------------------------------------------------------------------------


def extreme(call: Call, kind: str, x: TensorValue, dims: Sequence[int], keepdim: bool) -> TensorValue:
    """The greatest or smallest element. Of bools these are "any" and "all"."""
    if x.dtype == torch.bool:
        kind = "any" if kind == "amax" else "all"
    return call.reduction(kind, x, dims, keepdim=keepdim, dtype=x.dtype)


def position_of_extreme(call: Call, kind: str, x: TensorValue, dims: Sequence[int], keepdim: bool) -> TensorValue:
    """The row-major number of the first greatest or smallest element among ``dims``."""
    if x.dtype == torch.bool:
        x = call.pointwise(
            lambda ops, a: ops.to_dtype(a, torch.uint8), x, operand_dtype=torch.bool, dtype=torch.uint8, shape=x.shape
        )
    (x,) = call.rounded(x)
    return call.reduction(kind, x, dims, keepdim=keepdim, dtype=torch.int64)


@lowering("amax max", kind="reduction")
def lower_amax(call: Call, x: TensorValue, dims=(), keepdim: bool = False) -> TensorValue:
    return extreme(call, "amax", x, all_dimensions(x, dims), keepdim)


@lowering("amin min", kind="reduction")
def lower_amin(call: Call, x: TensorValue, dims=(), keepdim: bool = False) -> TensorValue:
    return extreme(call, "amin", x, all_dimensions(x, dims), keepdim)


@lowering("aminmax", kind="reduction", passes=2)
def lower_aminmax(call: Call, x: TensorValue, *, dim=None, keepdim: bool = False) -> tuple[TensorValue, TensorValue]:
    dims = all_dimensions(x, dim)
    return extreme(call, "amin", x, dims, keepdim), extreme(call, "amax", x, dims, keepdim)


@lowering("argmax argmin", kind="reduction")
def lower_argmax(call: Call, x: TensorValue, dim=None, keepdim: bool = False) -> TensorValue:
    return position_of_extreme(call, call.node.target._opname, x, all_dimensions(x, dim), keepdim)


@lowering("max.dim min.dim", kind="reduction", passes=2)
def lower_max_dim(call: Call, x: TensorValue, dim: int, keepdim: bool = False) -> tuple[TensorValue, TensorValue]:
    which, dims = call.node.target._opname, all_dimensions(x, dim)
    return extreme(call, f"a{which}", x, dims, keepdim), position_of_extreme(call, f"arg{which}", x, dims, keepdim)


# -- truth ------------------------------------------------------------------------------------------------------------


def _any_or_all(call: Call, kind: str, x: TensorValue, dims: Sequence[int], keepdim: bool) -> TensorValue:
    (x,) = call.rounded(x)
    result = call.reduction(kind, x, dims, keepdim=keepdim, dtype=torch.bool, function=truth)
    if call.meta.dtype == torch.bool:
        return result
    return call.pointwise(lambda ops, a: a, result, operand_dtype=torch.bool)  # of uint8 these are uint8


@lowering("any any.dim any.dims", kind="reduction")
def lower_any(call: Call, x: TensorValue, dims=None, keepdim: bool = False) -> TensorValue:
    return _any_or_all(call, "any", x, all_dimensions(x, dims), keepdim)


@lowering("all all.dim all.dims", kind="reduction")
def lower_all(call: Call, x: TensorValue, dims=None, keepdim: bool = False) -> TensorValue:
    return _any_or_all(call, "all", x, all_dimensions(x, dims), keepdim)


@lowering("count_nonzero count_nonzero.dim_IntList", kind="reduction")
def lower_count_nonzero(call: Call, x: TensorValue, dims=None) -> TensorValue:
    (x,) = call.rounded(x)
    return call.reduction(
        "sum", x, all_dimensions(x, dims), function=lambda ops, a: ops.to_dtype(truth(ops, a), torch.int64)
    )


# -- second moments ---------------------------------------------------------------------------------------------------


def moments(
    call: Call, x: TensorValue, dims: Sequence[int], correction: Number, dtype: torch.dtype
) -> tuple[TensorValue, TensorValue]:
    """Variance and mean over ``dims``, dimensions kept, in the compute dtype of ``dtype``. Two passes, which a GPU may
    make one (:mod:`staxlab.schedule.squared_deviations`)."""
    wide, count = compute_dtype(dtype), count_over(x, dims)
    found = "the mean and the squared deviations from it (Chan, Golub and LeVeque, 1983)"
    size = block_length(call, x, dims, found) if x.ndim else 0
    mean, total = _deviations_in_blocks(call, x, dims, size, wide) if size else _deviations(call, x, dims, wide)
    return divided(call, total, max(count - correction, 0), wide), mean


def _deviations(call: Call, x: TensorValue, dims: Sequence[int], wide: torch.dtype) -> tuple[TensorValue, TensorValue]:
    """The mean, kept in memory, and the sum of squared deviations from it."""
    mean = call.stored(mean_of(call, x, dims, True, wide), "a mean read by every element of its row")

    def deviation(ops, a, center):
        difference = ops.sub(a if x.compute_dtype == wide else ops.to_dtype(a, wide), center)
        return ops.mul(difference, difference)

    return mean, call.reduction("sum", x, dims, keepdim=True, dtype=wide, function=deviation, extra=(mean,))


def _deviations_in_blocks(
    call: Call, x: TensorValue, dims: Sequence[int], size: int, wide: torch.dtype
) -> tuple[TensorValue, TensorValue]:
    """The same of blocks of ``size`` elements first: what separates their means from the row's is added afterwards."""
    lead = x.shape[: x.ndim - len(dims)]
    count, last = numel(x.shape[len(lead) :]) // size, len(lead)
    means, sums = _deviations(call, x.seen(reshaped(x.shape, (*lead, count, size))), [last + 1], wide)
    mean = call.stored(mean_of(call, means, [last, last + 1], True, wide), "a mean read by every element of its row")

    def merged(ops, squares, own, center):
        difference = ops.sub(own, center)
        return ops.add(squares, ops.mul(ops.mul(difference, difference), ops.constant(float(size), wide)))

    total = call.reduction(
        "sum", sums, [last, last + 1], keepdim=True, dtype=wide, function=merged, extra=(means, mean)
    )  # fmt: skip
    shape = (*lead, *(1 for _ in dims))
    return mean.seen(reshaped(mean.shape, shape)), total.seen(reshaped(total.shape, shape))


def _variance(
    call: Call, x: TensorValue, dims, correction, keepdim: bool, root: bool
) -> tuple[TensorValue, TensorValue]:
    chosen = all_dimensions(x, dims)
    dtype = call.meta.dtype
    variance, mean = moments(call, x, chosen, 1 if correction is None else correction, dtype)
    if root:
        variance = call.pointwise(lambda ops, a: ops.sqrt(a), variance, shape=variance.shape, dtype=variance.dtype)
    return finish(call, variance, chosen, keepdim, dtype), finish(call, mean, chosen, keepdim, dtype)


def finish(call: Call, value: TensorValue, dims: Sequence[int], keepdim: bool, dtype: torch.dtype) -> TensorValue:
    """Drop the kept dimensions if they are not wanted, and take the result's dtype."""
    if not keepdim:
        value = value.seen(squeezed(value.shape, list(dims)))
    if dtype == value.dtype:
        return value
    return call.pointwise(lambda ops, a: a, value, shape=value.shape, operand_dtype=value.dtype, dtype=dtype)


@lowering("var.correction", kind="reduction", passes=2)
def lower_var(call: Call, x: TensorValue, dims=None, *, correction=None, keepdim: bool = False) -> TensorValue:
    return _variance(call, x, dims, correction, keepdim, False)[0]


@lowering("std.correction", kind="reduction", passes=2)
def lower_std(call: Call, x: TensorValue, dims=None, *, correction=None, keepdim: bool = False) -> TensorValue:
    return _variance(call, x, dims, correction, keepdim, True)[0]


@lowering("var_mean.correction", kind="reduction", passes=2)
def lower_var_mean(call: Call, x: TensorValue, dims=None, *, correction=None, keepdim: bool = False):
    return _variance(call, x, dims, correction, keepdim, False)


@lowering("std_mean.correction", kind="reduction", passes=2)
def lower_std_mean(call: Call, x: TensorValue, dims=None, *, correction=None, keepdim: bool = False):
    return _variance(call, x, dims, correction, keepdim, True)


# -- norms ------------------------------------------------------------------------------------------------------------


def vector_norm(call: Call, x: TensorValue, order: Number, dims: Sequence[int], keepdim: bool, cast) -> TensorValue:
    """``(sum |x|^p)^(1/p)``, with the extremes and the count of non-zeros as its limits."""
    dtype = call.meta.dtype
    wide = compute_dtype(dtype)

    def element(ops, a):
        magnitude = ops.abs(cast(ops, a) if cast else a)
        if order in (math.inf, -math.inf, 1):
            return magnitude
        if order == 0:
            return ops.to_dtype(ops.ne(magnitude, ops.constant(0.0, wide)), wide)
        if order == 2:
            return ops.mul(magnitude, magnitude)
        return ops.pow(magnitude, ops.constant(float(order), wide))

    kind = {math.inf: "amax", -math.inf: "amin"}.get(order, "sum")
    total = call.reduction(kind, x, dims, keepdim=keepdim, dtype=wide, function=element)

    def root(ops, a):
        if order in (math.inf, -math.inf, 1, 0):
            return a
        return ops.sqrt(a) if order == 2 else ops.pow(a, ops.constant(1.0 / order, wide))

    return call.pointwise(root, total, operand_dtype=wide, shape=total.shape)


@lowering("linalg_vector_norm", kind="reduction")
def lower_vector_norm(call: Call, x: TensorValue, ord=2, dims=None, keepdim=False, *, dtype=None) -> TensorValue:
    return vector_norm(call, x, ord, all_dimensions(x, dims), keepdim, cast_elements(x, dtype))


@lowering("norm.Scalar norm.ScalarOpt_dim norm.ScalarOpt_dim_dtype norm.ScalarOpt_dtype", kind="reduction")
def lower_norm(call: Call, x: TensorValue, order=2, dims=None, keepdim=False, *, dtype=None) -> TensorValue:
    order = 2 if order is None else order
    return vector_norm(call, x, order, all_dimensions(x, dims), keepdim, cast_elements(x, dtype))


@lowering("logsumexp", kind="reduction", passes=2)
def lower_logsumexp(call: Call, x: TensorValue, dims, keepdim: bool = False) -> TensorValue:
    """``m + log(sum(exp(x - m)))`` with m the greatest element; an infinite m is not subtracted."""
    dtype = call.meta.dtype
    if not x.dtype.is_floating_point:
        x = cast(call, x, dtype)
    wide, chosen = compute_dtype(dtype), all_dimensions(x, dims)
    if count_over(x, chosen) == 0:
        raise Decline("logsumexp of nothing")
    greatest = call.reduction("amax", x, chosen, keepdim=True, dtype=wide)

    def shift(ops, m):
        return ops.where(ops.isinf(m), ops.constant(0.0, wide), m)

    total = call.reduction(
        "sum", x, chosen, keepdim=True, dtype=wide, extra=(greatest,),
        function=lambda ops, a, m: ops.exp(ops.sub(a, shift(ops, m))),
    )  # fmt: skip
    result = call.pointwise(
        lambda ops, s, m: ops.add(ops.log(s), shift(ops, m)), total, greatest, shape=total.shape, dtype=wide
    )
    return finish(call, result, chosen, keepdim, dtype)
