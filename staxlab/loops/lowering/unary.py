"""Elementwise operators of one tensor (Table 6.1, first class): mostly one operation of ``ops`` each.

Three groups by the dtype they compute in: functions of real numbers (integers become the default floating dtype),
operators that keep the dtype, and predicates, which yield bool.
"""

from __future__ import annotations

import math

import torch

from .call import Call
from .registry import Decline, lowering
from .values import TensorValue

REAL_FUNCTIONS = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh "
    "erf erfc lgamma sigmoid sqrt rsqrt reciprocal"
)


def _real(call: Call, x: TensorValue, operation: str) -> TensorValue:
    return call.pointwise(lambda ops, a: ops.apply(operation, a), x, operand_dtype=call.meta.dtype)


for _name in REAL_FUNCTIONS.split():
    lowering(_name)(lambda call, x, operation=_name: _real(call, x, operation))
lowering("special_expit")(lambda call, x: _real(call, x, "sigmoid"))
lowering("special_gammaln")(lambda call, x: _real(call, x, "lgamma"))


@lowering("clone")
def lower_clone(call: Call, x: TensorValue, *, memory_format=None) -> TensorValue:
    return call.pointwise(lambda ops, a: a, x)


lowering("contiguous lift_fresh_copy conj_physical _conj_physical positive")(lower_clone)


@lowering("_to_copy")
def lower_to_copy(call: Call, x: TensorValue, *, dtype=None, device=None, **_) -> TensorValue:
    if device is not None and torch.device(device).type != torch.device(x.device).type:
        raise Decline("a copy between devices")
    return cast(call, x, call.meta.dtype)


def cast(call: Call, x: TensorValue, dtype: torch.dtype) -> TensorValue:
    """An explicit conversion: it rounds to half precision, where inlined arithmetic would stay in float32."""

    def function(ops, a):
        return a if dtype == x.dtype else ops.to_dtype(a, dtype)

    if not dtype.is_floating_point:
        (x,) = call.rounded(x)
    return call.pointwise(function, x, operand_dtype=x.dtype, dtype=dtype, shape=x.shape)


@lowering("neg")
def lower_neg(call: Call, x: TensorValue) -> TensorValue:
    return call.pointwise(lambda ops, a: ops.neg(a), x)


@lowering("abs")
def lower_abs(call: Call, x: TensorValue) -> TensorValue:
    unsigned = x.dtype in (torch.bool, torch.uint8)
    return call.pointwise(lambda ops, a: a if unsigned else ops.abs(a), x)


@lowering("sign sgn")
def lower_sign(call: Call, x: TensorValue) -> TensorValue:
    return call.pointwise(lambda ops, a: a if x.dtype == torch.bool else ops.sign(a), *call.rounded(x))


@lowering("relu")
def lower_relu(call: Call, x: TensorValue) -> TensorValue:
    return call.pointwise(lambda ops, a: a if x.dtype == torch.uint8 else ops.relu(a), x)


def _rounding(call: Call, x: TensorValue, operation: str) -> TensorValue:
    """Floor and its like do nothing to integers."""
    return call.pointwise(lambda ops, a: ops.apply(operation, a) if x.dtype.is_floating_point else a, *call.rounded(x))


for _name in ("floor", "ceil", "trunc", "round"):
    lowering(_name)(lambda call, x, operation=_name: _rounding(call, x, operation))


@lowering("round.decimals")
def lower_round_decimals(call: Call, x: TensorValue, *, decimals: int = 0) -> TensorValue:
    scale = float(10 ** abs(decimals))

    def function(ops, a):
        factor = ops.constant(scale, x.compute_dtype)
        if decimals >= 0:
            return ops.truediv(ops.round(ops.mul(a, factor)), factor)
        return ops.mul(ops.round(ops.truediv(a, factor)), factor)

    if decimals == 0 or not x.dtype.is_floating_point:
        return _rounding(call, x, "round")
    return call.pointwise(function, *call.rounded(x))


@lowering("frac")
def lower_frac(call: Call, x: TensorValue) -> TensorValue:
    return call.pointwise(lambda ops, a: ops.sub(a, ops.trunc(a)), *call.rounded(x))


@lowering("square")
def lower_square(call: Call, x: TensorValue) -> TensorValue:
    return call.pointwise(lambda ops, a: ops.mul(a, a), x, operand_dtype=call.meta.dtype)


def _scaled(call: Call, x: TensorValue, factor: float) -> TensorValue:
    dtype = call.meta.dtype
    return call.pointwise(lambda ops, a: ops.mul(a, ops.constant(factor, dtype)), x, operand_dtype=dtype)


lowering("rad2deg")(lambda call, x: _scaled(call, x, 180.0 / math.pi))
lowering("deg2rad")(lambda call, x: _scaled(call, x, math.pi / 180.0))


@lowering("angle")
def lower_angle(call: Call, x: TensorValue) -> TensorValue:
    dtype = call.meta.dtype

    def function(ops, a):
        zero, half_turn = ops.constant(0.0, dtype), ops.constant(math.pi, dtype)
        return ops.where(ops.isnan(a), a, ops.where(ops.lt(a, zero), half_turn, zero))

    return call.pointwise(function, x, operand_dtype=dtype)


@lowering("sinc")
def lower_sinc(call: Call, x: TensorValue) -> TensorValue:
    """``sin(pi x) / (pi x)``. The sine is that of ``pi`` times the distance to the next whole number, which does not
    round, with the sign of that number: ``pi x`` is too coarse an argument for large ``x``."""
    dtype = call.meta.dtype

    def function(ops, a):
        pi = ops.constant(math.pi, dtype)
        whole = ops.round(a)
        half = ops.mul(whole, ops.constant(0.5, dtype))
        sine = ops.sin(ops.mul(ops.sub(a, whole), pi))
        sine = ops.where(ops.eq(half, ops.floor(half)), sine, ops.neg(sine))
        quotient = ops.truediv(sine, ops.mul(a, pi))
        return ops.where(ops.eq(a, ops.constant(0.0, dtype)), ops.constant(1.0, dtype), quotient)

    return call.pointwise(function, x, operand_dtype=dtype)


@lowering("logit")
def lower_logit(call: Call, x: TensorValue, eps: float | None = None) -> TensorValue:
    """``log(x / (1 - x))``, as ``log1p`` of that quotient less 1: near 1/2 the quotient rounds to few digits, but
    ``(2x - 1) / (1 - x)`` does not. Below 1/2 it is the negative logarithm of the reciprocal; the smallest numbers are
    scaled, because theirs overflows."""
    dtype = call.meta.dtype
    info = torch.finfo(dtype if dtype in (torch.float32, torch.float64) else torch.float32)

    def function(ops, a):
        def constant(value):
            return ops.constant(value, dtype)

        one = constant(1.0)
        if eps is not None:
            low, high = constant(eps), constant(1.0 - eps)
            a = ops.where(ops.lt(a, low), low, ops.where(ops.gt(a, high), high, a))
        upper = ops.ge(a, constant(0.5))
        tiny = ops.lt(ops.abs(a), constant(4 * info.smallest_normal))
        scaled = ops.add(ops.where(tiny, ops.mul(a, constant(2 / info.eps)), a), constant(0.0))  # -0.0 is a 0, too
        twice = ops.add(a, a)
        above = ops.where(upper, ops.sub(twice, one), ops.sub(one, twice))
        ratio = ops.log1p(ops.truediv(above, ops.where(upper, ops.sub(one, a), scaled)))
        below = ops.add(ratio, ops.where(tiny, constant(math.log(2 / info.eps)), constant(0.0)))
        return ops.where(upper, ratio, ops.neg(below))

    return call.pointwise(function, x, operand_dtype=dtype)


@lowering("special_entr")
def lower_entr(call: Call, x: TensorValue) -> TensorValue:
    dtype = call.meta.dtype

    def function(ops, a):
        zero = ops.constant(0.0, dtype)
        positive = ops.neg(ops.mul(a, ops.log(a)))
        rest = ops.where(ops.eq(a, zero), zero, ops.constant(-math.inf, dtype))
        return ops.where(ops.isnan(a), a, ops.where(ops.gt(a, zero), positive, rest))

    return call.pointwise(function, x, operand_dtype=dtype)


@lowering("nan_to_num")
def lower_nan_to_num(call: Call, x: TensorValue, nan=None, posinf=None, neginf=None) -> TensorValue:
    if not x.dtype.is_floating_point:
        return lower_clone(call, x)
    limits = torch.finfo(x.dtype)
    values = (nan or 0.0, limits.max if posinf is None else posinf, limits.min if neginf is None else neginf)

    def function(ops, a):
        when_nan, above, below = (ops.constant(v, x.compute_dtype) for v in values)
        infinity = ops.constant(math.inf, x.compute_dtype)
        finite = ops.where(ops.eq(a, infinity), above, ops.where(ops.eq(a, ops.neg(infinity)), below, a))
        return ops.where(ops.isnan(a), when_nan, finite)

    return call.pointwise(function, *call.rounded(x))


# -- predicates -------------------------------------------------------------------------------------------------------


def truth(ops, value):
    """Whether a value differs from zero."""
    dtype = ops.dtype_of(value)
    return value if dtype == torch.bool else ops.ne(value, ops.constant(0, dtype))


@lowering("logical_not")
def lower_logical_not(call: Call, x: TensorValue) -> TensorValue:
    return call.pointwise(lambda ops, a: ops.logical_not(truth(ops, a)), *call.rounded(x))


@lowering("bitwise_not")
def lower_bitwise_not(call: Call, x: TensorValue) -> TensorValue:
    operation = "logical_not" if x.dtype == torch.bool else "bitwise_not"
    return call.pointwise(lambda ops, a: ops.apply(operation, a), x)


def _predicate(call: Call, x: TensorValue, function) -> TensorValue:
    """A predicate on floating-point values that no integer satisfies."""
    if not x.dtype.is_floating_point:
        return call.full(False, call.meta.shape, torch.bool)
    return call.pointwise(function, *call.rounded(x))


def _equals(value: float):
    return lambda ops, a: ops.eq(a, ops.constant(value, ops.dtype_of(a)))


lowering("isnan")(lambda call, x: _predicate(call, x, lambda ops, a: ops.isnan(a)))
lowering("isinf")(lambda call, x: _predicate(call, x, lambda ops, a: ops.isinf(a)))
lowering("isposinf")(lambda call, x: _predicate(call, x, _equals(math.inf)))
lowering("isneginf")(lambda call, x: _predicate(call, x, _equals(-math.inf)))


@lowering("isfinite")
def lower_isfinite(call: Call, x: TensorValue) -> TensorValue:
    if not x.dtype.is_floating_point:
        return call.full(True, call.meta.shape, torch.bool)
    (x,) = call.rounded(x)
    return call.pointwise(lambda ops, a: ops.logical_not(ops.logical_or(ops.isnan(a), ops.isinf(a))), x)


@lowering("signbit")
def lower_signbit(call: Call, x: TensorValue) -> TensorValue:
    def function(ops, a):
        dtype = ops.dtype_of(a)
        if dtype == torch.bool:
            return ops.constant(False, torch.bool)
        if dtype.is_floating_point:  # the sign of -0.0 and of NaN counts too
            a = ops.copysign(ops.constant(1.0, dtype), a)
        return ops.lt(a, ops.constant(0, dtype))

    return call.pointwise(function, x)
