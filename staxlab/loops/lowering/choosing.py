"""Elementwise operators of several tensors, and activations: selection, clamping, interpolation (Table 6.1).

Formulas are eager execution's own, in its order of operations, so that results agree to the last rounding wherever
no transcendental function is involved; comparisons are written so that NaN goes where eager lets it go.
"""

from __future__ import annotations

import math

import torch

from .call import Call
from .compensated import number, times_number, two_product, two_sum
from .registry import Decline, lowering
from .unary import cast
from .values import Number, TensorValue

Operand = TensorValue | Number


@lowering("where.self where.ScalarSelf where.ScalarOther where.Scalar")
def lower_where(call: Call, condition: TensorValue, x: Operand, y: Operand) -> TensorValue:
    if condition.dtype != torch.bool:
        raise Decline("where with a condition that is not bool")
    return _select(call, condition, x, y)


def _select(call: Call, condition: TensorValue, x: Operand, y: Operand) -> TensorValue:
    shape, dtype = call.meta.shape, call.meta.dtype
    test = call.loader(condition, shape, torch.bool)
    first, second = call.loader(x, shape, dtype), call.loader(y, shape, dtype)

    def compute(ops, index):
        ops = ops.tagged(call.origins)
        return ops.where(test(ops, index), first(ops, index), second(ops, index))

    return call.computed(compute, shape, dtype, (condition, x, y))


@lowering("masked_fill.Scalar masked_fill.Tensor")
def lower_masked_fill(call: Call, x: TensorValue, mask: TensorValue, value: Operand) -> TensorValue:
    if mask.dtype != torch.bool:
        raise Decline("masked_fill with a mask that is not bool")
    if isinstance(value, TensorValue) and value.dtype != x.dtype:
        value = cast(call, value, x.dtype)
    return _select(call, mask, value, x)


# -- clamping ---------------------------------------------------------------------------------------------------------


def _clamp(call: Call, x: TensorValue, low: Operand | None, high: Operand | None) -> TensorValue:
    """``min(max(x, low), high)``, so the upper bound wins where they cross, and a NaN anywhere comes through. A zero
    keeps its sign beside a bound of 0, as everything does that is within the bounds."""
    operands = [x] + [bound for bound in (low, high) if bound is not None]

    def function(ops, a, *bounds):
        remaining = list(bounds)
        if low is not None:
            bound = remaining.pop(0)
            a = ops.where(ops.lt(a, bound), bound, a) if plain(low) else ops.maximum(a, bound)
        if high is not None:
            bound = remaining.pop(0)
            a = ops.where(ops.gt(a, bound), bound, a) if plain(high) else ops.minimum(a, bound)
        return a

    def plain(bound: Operand) -> bool:
        return call.meta.dtype.is_floating_point and not isinstance(bound, TensorValue) and not math.isnan(bound)

    return call.pointwise(function, *operands, operand_dtype=call.meta.dtype)


@lowering("clamp clamp.Tensor clip clip.Tensor hardtanh")
def lower_clamp(call: Call, x: TensorValue, low=None, high=None) -> TensorValue:
    return _clamp(call, x, low, high)


@lowering("clamp_min clamp_min.Tensor")
def lower_clamp_min(call: Call, x: TensorValue, low: Operand) -> TensorValue:
    return _clamp(call, x, low, None)


@lowering("clamp_max clamp_max.Tensor")
def lower_clamp_max(call: Call, x: TensorValue, high: Operand) -> TensorValue:
    return _clamp(call, x, None, high)


lowering("relu6")(lambda call, x: _clamp(call, x, 0, 6))


# -- combinations -----------------------------------------------------------------------------------------------------


@lowering("lerp.Scalar lerp.Tensor")
def lower_lerp(call: Call, x: TensorValue, y: TensorValue, weight: Operand) -> TensorValue:
    dtype = call.meta.dtype

    def function(ops, a, b, w):
        one, difference = ops.constant(1.0, dtype), ops.sub(b, a)
        near_start = ops.add(a, ops.mul(w, difference))
        near_end = ops.sub(b, ops.mul(difference, ops.sub(one, w)))
        return ops.where(ops.lt(ops.abs(w), ops.constant(0.5, dtype)), near_start, near_end)

    return call.pointwise(function, x, y, weight, operand_dtype=dtype)


@lowering("addcmul")
def lower_addcmul(call: Call, x: TensorValue, y: TensorValue, z: TensorValue, *, value: Number = 1) -> TensorValue:
    def function(ops, a, b, c):
        scaled = b if value == 1 else ops.mul(ops.constant(value, ops.dtype_of(b)), b)
        return ops.add(a, ops.mul(scaled, c))

    if call.meta.dtype == torch.bool:
        raise Decline("addcmul of bool")
    return call.pointwise(function, x, y, z)


@lowering("addcdiv")
def lower_addcdiv(call: Call, x: TensorValue, y: TensorValue, z: TensorValue, *, value: Number = 1) -> TensorValue:
    def function(ops, a, b, c):
        scaled = b if value == 1 else ops.mul(ops.constant(value, ops.dtype_of(b)), b)
        return ops.add(a, ops.truediv(scaled, c))

    return call.pointwise(function, x, y, z, operand_dtype=call.meta.dtype)


# -- activations ------------------------------------------------------------------------------------------------------


def activation(*names: str, on_gpu=None):
    """Decorator for ``function(ops, constant, a, *parameters)``, where ``constant(v)`` makes a number of a's dtype.
    ``on_gpu`` takes its place on a GPU."""

    def register(function):
        def rule(call: Call, x: TensorValue, *parameters, **named) -> TensorValue:
            dtype = call.meta.dtype
            if not dtype.is_floating_point:
                raise Decline(f"an activation of {dtype}")
            chosen = on_gpu if on_gpu is not None and call.lowering.device.is_gpu else function

            def element(ops, a):
                return chosen(ops, lambda v: ops.constant(v, dtype), a, *parameters, **named)

            return call.pointwise(element, x, operand_dtype=dtype)

        lowering(*names)(rule)
        return function

    return register


def _short_gelu(ops, constant, a, approximate="none"):
    """As eager execution has it: few operations, so that a GPU computes it anew rather than keep it in memory."""
    if approximate == "tanh":
        cubic = ops.mul(constant(0.044715), ops.mul(ops.mul(a, a), a))
        inner = ops.mul(constant(math.sqrt(2 / math.pi)), ops.add(a, cubic))
        return ops.mul(ops.mul(constant(0.5), a), ops.add(constant(1.0), ops.tanh(inner)))
    cumulative = ops.add(constant(1.0), ops.erf(ops.mul(a, constant(math.sqrt(0.5)))))
    return ops.mul(ops.mul(a, constant(0.5)), cumulative)


@activation("gelu", on_gpu=_short_gelu)
def gelu(ops, constant, a, approximate="none"):
    """``a`` times a probability that becomes tiny for negative ``a``. Eager execution has it as ``1 + erf(..)`` or
    ``1 + tanh(..)``, of which nothing is left there. Here it is made of an exponential, whose argument is the sum of
    two numbers, because it is so steep that the rounding of its argument counts."""
    if approximate != "tanh":
        return _gelu(ops, constant, a)
    near = ops.minimum(ops.maximum(a, constant(-64.0)), constant(64.0))  # all is decided before, and nothing overflows
    square, square_rest = two_product(ops, near, near)
    cubic, rest = times_number(ops, square, math.sqrt(8 / math.pi) * 0.044715)
    rest = ops.add(rest, ops.mul(square_rest, constant(math.sqrt(8 / math.pi) * 0.044715)))
    linear, linear_rest = number(ops, a, math.sqrt(8 / math.pi))
    slope, slope_rest = two_sum(ops, linear, cubic)
    slope_rest = ops.add(slope_rest, ops.add(rest, linear_rest))
    inner, inner_rest = two_product(ops, near, slope)
    return _gated(ops, constant, a, inner, ops.add(inner_rest, ops.mul(near, slope_rest)))


#: A polynomial in (t - 3) / (t + 3) for ``(1 + t) exp(t*t/2) erfc(t / sqrt(2)) / 2``, 0 <= t <= 15, fitted one
#: coefficient after the other so that each is a float32 number; relative error 4.2e-9. The form is that of Shepherd and
#: Laframboise (1981).
_NORMAL_TAIL = (
    0.486055791, -0.0965267569, -0.0164321065, 0.0451639406, -0.0227303058, 0.00115969882,
    0.00301156682, -0.000348235713, -0.000519191206, 3.50406367e-06, 8.99481383e-05, 2.35520438e-05,
)  # fmt: skip

#: The same for the distribution function between 0 and 3/4, less 1/2 and divided by ``t``, in ``t * t``.
_NORMAL_MIDDLE = (0.398942292, -0.0664905831, 0.009974177, -0.00118558982, 0.00010632482)


def _polynomial(ops, constant, coefficients, a):
    value = constant(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        value = ops.add(ops.mul(value, a), constant(coefficient))
    return value


def _gelu(ops, constant, a):
    """``a`` times the normal distribution function: in the tail ``exp(-a*a/2)`` times a smooth function, 1 less that on
    the other side, and a series between. Far out the exponential is taken in two factors, so that none is subnormal."""
    one, half = constant(1.0), constant(0.5)
    if ops.dtype_of(a) == torch.float64:  # the smooth function would take 25 terms
        return _short_gelu(ops, constant, a)
    distance = ops.minimum(ops.abs(a), constant(64.0))  # where the exponential is 0, and nothing overflows
    square, rest = two_product(ops, distance, distance)
    gate, rest = ops.mul(square, constant(-0.5)), ops.mul(rest, constant(-0.5))
    far = ops.lt(gate, constant(-72.0))
    power = ops.exp(ops.where(far, ops.mul(gate, half), gate))
    place = ops.truediv(ops.sub(distance, constant(3.0)), ops.add(distance, constant(3.0)))
    first = constant(_NORMAL_TAIL[0])
    others = ops.mul(_polynomial(ops, constant, _NORMAL_TAIL[1:], place), place)
    # exp(gate + rest) = exp(gate) (1 + rest): multiplied in before the last sum, it costs no rounding of its own.
    smooth = ops.add(first, ops.add(others, ops.mul(ops.add(first, others), rest)))
    tail = ops.mul(power, ops.truediv(smooth, ops.add(one, distance)))
    product = ops.mul(a, tail)
    product = ops.where(far, ops.mul(product, power), product)
    middle = ops.add(half, ops.mul(a, _polynomial(ops, constant, _NORMAL_MIDDLE, square)))
    part = ops.where(ops.lt(distance, constant(0.75)), middle, ops.sub(one, tail))
    return ops.where(ops.le(a, constant(-0.75)), product, ops.mul(a, part))


@activation("silu")
def silu(ops, constant, a):
    return _gated(ops, constant, a, a)


def _far(ops, a):
    """Below this, ``1 + exp(a)`` is 1: 2^-25 and 2^-54 are the smallest numbers that count beside it."""
    return -40.0 if ops.dtype_of(a) == torch.float64 else -20.0


def _gated(ops, constant, a, gate, rest=None):
    """``a / (1 + exp(-(gate + rest)))`` by one exponential. Far below 0 it is ``a exp(gate)``, in two factors, none of
    which overflows or is subnormal; there eager execution divides by infinity."""
    far = ops.lt(gate, constant(_far(ops, gate)))
    power = ops.exp(ops.where(far, ops.mul(gate, constant(0.5)), ops.neg(gate)))
    product = ops.mul(ops.mul(a, power), power)
    if rest is not None:
        product = ops.add(product, ops.mul(product, rest))
        power = ops.sub(power, ops.mul(power, rest))
    return ops.where(far, product, ops.truediv(a, ops.add(constant(1.0), power)))


@activation("elu")
def elu(ops, constant, a, alpha=1.0, scale=1.0, input_scale=1.0):
    below = ops.mul(ops.expm1(ops.mul(a, constant(input_scale))), constant(alpha * scale))
    return ops.where(ops.lt(a, constant(0.0)), below, ops.mul(a, constant(scale)))


@activation("selu")
def selu(ops, constant, a):
    return elu(ops, constant, a, 1.6732632423543772848, 1.0507009873554804934)


@activation("celu")
def celu(ops, constant, a, alpha=1.0):
    return elu(ops, constant, a, alpha, 1.0, 1.0 / alpha)


@activation("leaky_relu")
def leaky_relu(ops, constant, a, slope=0.01):
    return ops.where(ops.gt(a, constant(0.0)), a, ops.mul(a, constant(slope)))


@activation("hardswish")
def hardswish(ops, constant, a):
    gate = ops.minimum(ops.maximum(ops.add(a, constant(3.0)), constant(0.0)), constant(6.0))
    return ops.truediv(ops.mul(a, gate), constant(6.0))


@activation("hardsigmoid")
def hardsigmoid(ops, constant, a):
    gate = ops.minimum(ops.maximum(ops.add(a, constant(3.0)), constant(0.0)), constant(6.0))
    return ops.truediv(gate, constant(6.0))


@activation("softplus")
def softplus(ops, constant, a, beta=1, threshold=20):
    scaled = ops.mul(a, constant(beta))
    smooth = ops.truediv(ops.log1p(ops.exp(scaled)), constant(beta))
    return ops.where(ops.gt(scaled, constant(threshold)), a, smooth)


@activation("mish")
def mish(ops, constant, a):
    """``a tanh(log1p(exp(a)))``: with ``e = exp(a)`` and ``n = e (e + 2)``, the factor is ``n / (n + 2)``. Far below 0
    it is ``e``, which is taken in two factors lest it becomes subnormal."""
    far, two = ops.lt(a, constant(_far(ops, a))), constant(2.0)
    power = ops.exp(ops.where(far, ops.mul(a, constant(0.5)), ops.minimum(a, constant(20.0))))
    n = ops.mul(power, ops.add(power, two))
    return ops.where(far, ops.mul(ops.mul(a, power), power), ops.mul(a, ops.truediv(n, ops.add(n, two))))


@activation("softshrink")
def softshrink(ops, constant, a, limit=0.5):
    inside = ops.mul(a, constant(0.0))  # keeps NaN
    below = ops.where(ops.lt(a, constant(-limit)), ops.add(a, constant(limit)), inside)
    return ops.where(ops.gt(a, constant(limit)), ops.sub(a, constant(limit)), below)


@activation("log_sigmoid")
def log_sigmoid(ops, constant, a):
    decay = ops.exp(ops.neg(ops.abs(a)))
    return ops.sub(ops.minimum(a, constant(0.0)), ops.log1p(decay))


@lowering("log_sigmoid_forward")
def lower_log_sigmoid_forward(call: Call, x: TensorValue) -> tuple[TensorValue, TensorValue]:
    dtype, kept = call.meta.dtype, call.val[1]
    result = call.pointwise(lambda ops, a: log_sigmoid(ops, lambda v: ops.constant(v, dtype), a), x)
    decay = call.pointwise(lambda ops, a: ops.exp(ops.neg(ops.abs(a))), x)
    if kept.shape != decay.shape:  # a GPU keeps nothing for the backward pass
        decay = call.full(0.0, kept.shape, kept.dtype)
    return result, decay


@lowering("threshold")
def lower_threshold(call: Call, x: TensorValue, limit: Number, value: Number) -> TensorValue:
    def function(ops, a):
        dtype = ops.dtype_of(a)
        return ops.where(ops.le(a, ops.constant(limit, dtype)), ops.constant(value, dtype), a)

    return call.pointwise(function, *call.rounded(x))


@lowering("hardshrink")
def lower_hardshrink(call: Call, x: TensorValue, limit: Number = 0.5) -> TensorValue:
    """It jumps at a limit that eager execution rounds to the tensor's dtype."""
    x, limit = call.rounded(x, limit)

    def function(ops, a):
        dtype = ops.dtype_of(a)
        inside = ops.logical_and(ops.ge(a, ops.constant(-limit, dtype)), ops.le(a, ops.constant(limit, dtype)))
        return ops.where(inside, ops.constant(0.0, dtype), a)

    return call.pointwise(function, x)


@lowering("_prelu_kernel")
def lower_prelu(call: Call, x: TensorValue, weight: TensorValue) -> TensorValue:
    def function(ops, a, w):
        return ops.where(ops.gt(a, ops.constant(0.0, ops.dtype_of(a))), a, ops.mul(w, a))

    return call.pointwise(function, x, weight)
