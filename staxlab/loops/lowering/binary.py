"""Elementwise operators of two tensors, or of a tensor and a number (Table 6.1, first class).

Operands are brought to their common dtype before the operation, by one of three rules (Section 6.2): the dtype they
promote to; the same but floating point (division, ``atan2``); or, for comparisons, the common dtype with a bool result.
Where eager execution treats bool or integers specially, the rule says so.
"""

from __future__ import annotations

import math

import torch

from .call import Call
from .registry import Decline, lowering
from .unary import truth
from .values import Number, TensorValue, result_type, to_floating

Operand = TensorValue | Number


# -- arithmetic -------------------------------------------------------------------------------------------------------


def _scaled(ops, value, alpha: Number):
    return value if alpha == 1 else ops.mul(value, ops.constant(alpha, ops.dtype_of(value)))


@lowering("add.Tensor add.Scalar")
def lower_add(call: Call, x: Operand, y: Operand, alpha: Number = 1) -> TensorValue:
    if call.meta.dtype == torch.bool:
        return call.pointwise(lambda ops, a, b: ops.logical_or(a, b) if alpha else a, x, y)
    return call.pointwise(lambda ops, a, b: ops.add(a, _scaled(ops, b, alpha)), x, y)


@lowering("sub.Tensor sub.Scalar")
def lower_sub(call: Call, x: Operand, y: Operand, alpha: Number = 1) -> TensorValue:
    return call.pointwise(lambda ops, a, b: ops.sub(a, _scaled(ops, b, alpha)), x, y)


@lowering("rsub.Tensor rsub.Scalar")
def lower_rsub(call: Call, x: Operand, y: Operand, alpha: Number = 1) -> TensorValue:
    return call.pointwise(lambda ops, a, b: ops.sub(b, _scaled(ops, a, alpha)), x, y)


@lowering("mul.Tensor mul.Scalar")
def lower_mul(call: Call, x: Operand, y: Operand) -> TensorValue:
    operation = "logical_and" if call.meta.dtype == torch.bool else "mul"
    return call.pointwise(lambda ops, a, b: ops.apply(operation, a, b), x, y)


@lowering("div.Tensor div.Scalar true_divide.Tensor")
def lower_div(call: Call, x: Operand, y: Operand) -> TensorValue:
    return call.pointwise(lambda ops, a, b: ops.truediv(a, b), x, y, operand_dtype=call.meta.dtype)


@lowering("div.Tensor_mode div.Scalar_mode")
def lower_div_mode(call: Call, x: Operand, y: Operand, *, rounding_mode: str | None = None) -> TensorValue:
    if rounding_mode is None:
        return lower_div(call, x, y)
    if call.meta.dtype.is_floating_point:
        function = floor_quotient if rounding_mode == "floor" else lambda ops, a, b: ops.trunc(ops.truediv(a, b))
        return call.pointwise(function, *call.rounded(x, y))
    return _integer_division(call, x, y, "floordiv" if rounding_mode == "floor" else "truncdiv")


@lowering("floor_divide floor_divide.Scalar")
def lower_floor_divide(call: Call, x: Operand, y: Operand) -> TensorValue:
    return lower_div_mode(call, x, y, rounding_mode="floor")


def _integer_division(call: Call, x: Operand, y: Operand, operation: str) -> TensorValue:
    """Eager execution raises for an integer divided by zero, which a loop cannot; so only for known divisors."""
    if isinstance(y, TensorValue):
        raise Decline("an integer divided by a tensor may be a division by zero, which must raise")

    limits = torch.iinfo(call.meta.dtype)
    minus_one = limits.min < 0 and (y + 1) % (1 << limits.bits) == 0

    def function(ops, a, b):
        if minus_one:  # the smallest integer has no negative: it wraps, where a division instruction would trap
            return ops.neg(a) if "div" in operation else ops.sub(a, a)
        return ops.apply(operation, a, b)

    return call.pointwise(function, x, y)


def floor_quotient(ops, a, b):
    """Division rounded down, by way of the exact remainder as eager execution does it: rounding ``a / b`` before
    taking the floor would give 1.0 // 0.1 = 10."""
    dtype = ops.dtype_of(a)
    zero, one = ops.constant(0.0, dtype), ops.constant(1.0, dtype)
    rest, plain = ops.fmod(a, b), ops.truediv(a, b)
    # Where the quotient overflows, vectorised remainders are NaN.
    overflow = ops.logical_and(ops.isinf(plain), ops.logical_not(ops.isinf(a)))
    quotient = ops.truediv(ops.where(overflow, a, ops.sub(a, rest)), b)
    differs = ops.logical_xor(ops.lt(b, zero), ops.lt(rest, zero))
    adjust = ops.logical_and(ops.ne(rest, zero), differs)
    quotient = ops.where(adjust, ops.sub(quotient, one), quotient)
    down = ops.floor(quotient)
    down = ops.where(ops.gt(ops.sub(quotient, down), ops.constant(0.5, dtype)), ops.add(down, one), down)
    result = ops.where(ops.eq(quotient, zero), ops.copysign(zero, plain), down)
    return ops.where(ops.eq(b, zero), plain, result)


def _remainder(call: Call, x: Operand, y: Operand, operation: str) -> TensorValue:
    if call.meta.dtype.is_floating_point:
        return call.pointwise(lambda ops, a, b: ops.apply(operation, a, b), *call.rounded(x, y))
    return _integer_division(call, x, y, operation)


for _name in ("remainder", "fmod"):
    lowering(f"{_name}.Tensor {_name}.Scalar {_name}.Scalar_Tensor")(
        lambda call, x, y, operation=_name: _remainder(call, x, y, operation)
    )


# -- powers -----------------------------------------------------------------------------------------------------------


def repeated_product(ops, value, exponent: int):
    """``value ** exponent`` for a positive integer by squaring: at most 2 log2(exponent) multiplications."""
    result = None
    while exponent:
        if exponent & 1:
            result = value if result is None else ops.mul(result, value)
        exponent >>= 1
        if exponent:
            value = ops.mul(value, value)
    return result


@lowering("pow.Tensor_Scalar")
def lower_pow_scalar(call: Call, x: TensorValue, exponent: Number) -> TensorValue:
    """The exponents eager execution singles out give exactly what it gives: ``x**2`` is ``x*x``."""
    dtype = call.meta.dtype
    if exponent == 0:
        return call.full(1, call.meta.shape, dtype)
    if not dtype.is_floating_point:
        if dtype == torch.bool or exponent < 0:
            raise Decline("a power of integers with a negative exponent")
        return call.pointwise(lambda ops, a: repeated_product(ops, a, int(exponent)), x, operand_dtype=dtype)

    def function(ops, a):
        one = ops.constant(1.0, dtype)
        # Half precision goes through the general power on the CPU, where -inf ** 0.5 is inf and -0.0 ** 0.5 is 0.0.
        general = dtype == torch.float16 and not call.lowering.device.is_gpu and abs(exponent) == 0.5
        special = {
            1.0: lambda: a,
            2.0: lambda: ops.mul(a, a),
            3.0: lambda: ops.mul(ops.mul(a, a), a),
            0.5: lambda: ops.sqrt(a),
            -0.5: lambda: ops.rsqrt(a),
            -1.0: lambda: ops.reciprocal(a),
            -2.0: lambda: ops.truediv(one, ops.mul(a, a)),
        }.get(float(exponent) if not general else None)
        return special() if special else ops.pow(a, ops.constant(exponent, dtype))

    return call.pointwise(function, x, operand_dtype=dtype)


@lowering("pow.Tensor_Tensor pow.Scalar")
def lower_pow(call: Call, x: Operand, y: Operand) -> TensorValue:
    dtype = call.meta.dtype
    if not dtype.is_floating_point:
        raise Decline("a power of integers with exponents known at run time only")
    if not isinstance(x, TensorValue) and x == 1:
        return call.full(1, call.meta.shape, dtype)
    return call.pointwise(lambda ops, a, b: ops.pow(a, b), x, y, operand_dtype=dtype)


# -- choosing ---------------------------------------------------------------------------------------------------------


def _extreme(call: Call, x: Operand, y: Operand, operation: str) -> TensorValue:
    if call.meta.dtype == torch.bool:
        operation = "logical_or" if "max" in operation else "logical_and"
    elif not call.meta.dtype.is_floating_point:
        operation = "maximum" if "max" in operation else "minimum"
    return call.pointwise(lambda ops, a, b: ops.apply(operation, a, b), x, y)


for _name in ("maximum", "minimum", "fmax", "fmin"):
    lowering(_name)(lambda call, x, y, operation=_name: _extreme(call, x, y, operation))


# -- functions of two real numbers ------------------------------------------------------------------------------------


def _real(call: Call, x: Operand, y: Operand, function) -> TensorValue:
    return call.pointwise(function, x, y, operand_dtype=to_floating(result_type(x, y)))


lowering("atan2")(lambda call, x, y: _real(call, x, y, lambda ops, a, b: ops.atan2(a, b)))
lowering("hypot")(lambda call, x, y: _real(call, x, y, lambda ops, a, b: ops.hypot(a, b)))
lowering("copysign.Tensor copysign.Scalar")(lambda call, x, y: _real(call, x, y, lambda ops, a, b: ops.copysign(a, b)))


@lowering("nextafter")
def lower_nextafter(call: Call, x: TensorValue, y: TensorValue) -> TensorValue:
    if call.meta.dtype not in (torch.float32, torch.float64):
        raise Decline("the neighbour of a half-precision number is not the float32 neighbour")
    return call.pointwise(lambda ops, a, b: ops.nextafter(a, b), x, y)


def _times_log(function_name: str):
    def function(ops, a, b):
        dtype = ops.dtype_of(a)
        zero = ops.constant(0.0, dtype)
        product = ops.mul(a, ops.apply(function_name, b))
        return ops.where(ops.isnan(b), b, ops.where(ops.eq(a, zero), zero, product))

    return function


lowering("xlogy.Tensor xlogy.Scalar_Other xlogy.Scalar_Self")(lambda call, x, y: _real(call, x, y, _times_log("log")))
lowering("special_xlog1py special_xlog1py.other_scalar special_xlog1py.self_scalar")(
    lambda call, x, y: _real(call, x, y, _times_log("log1p"))
)


def _log_add_exp(base: str):
    def function(ops, a, b):
        dtype = ops.dtype_of(a)
        same_infinity = ops.logical_and(ops.isinf(a), ops.eq(a, b))
        distance = ops.neg(ops.abs(ops.sub(a, b)))
        if base == "e":
            rest = ops.log1p(ops.exp(distance))
        else:
            rest = ops.mul(ops.log1p(ops.exp2(distance)), ops.constant(1 / math.log(2), dtype))
        return ops.where(same_infinity, a, ops.add(ops.maximum(a, b), rest))

    return function


lowering("logaddexp")(lambda call, x, y: _real(call, x, y, _log_add_exp("e")))
lowering("logaddexp2")(lambda call, x, y: _real(call, x, y, _log_add_exp("2")))


@lowering("heaviside")
def lower_heaviside(call: Call, x: TensorValue, values: TensorValue) -> TensorValue:
    dtype = call.meta.dtype

    def function(ops, a, b):
        zero, one = ops.constant(0, dtype), ops.constant(1, dtype)
        return ops.where(ops.eq(a, zero), b, ops.where(ops.gt(a, zero), one, zero))

    if dtype == torch.bool:
        return call.pointwise(lambda ops, a, b: ops.logical_or(a, b), x, values)
    return call.pointwise(function, *call.rounded(x, values))


# -- comparisons ------------------------------------------------------------------------------------------------------


def compare(ops, operation: str, a, b):
    """Compare two values of one dtype; bools by logic, for False < True."""
    if ops.dtype_of(a) != torch.bool:
        return ops.apply(operation, a, b)
    negation = ops.logical_not
    return {
        "eq": lambda: negation(ops.logical_xor(a, b)),
        "ne": lambda: ops.logical_xor(a, b),
        "lt": lambda: ops.logical_and(negation(a), b),
        "le": lambda: ops.logical_or(negation(a), b),
        "gt": lambda: ops.logical_and(a, negation(b)),
        "ge": lambda: ops.logical_or(a, negation(b)),
    }[operation]()


def _comparison(call: Call, x: Operand, y: Operand, operation: str) -> TensorValue:
    return call.pointwise(lambda ops, a, b: compare(ops, operation, a, b), *call.rounded(x, y))


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    lowering(f"{_name}.Tensor {_name}.Scalar")(lambda call, x, y, operation=_name: _comparison(call, x, y, operation))


# -- logic and bits ---------------------------------------------------------------------------------------------------


def _logical(call: Call, x: TensorValue, y: TensorValue, operation: str) -> TensorValue:
    left = call.pointwise(truth, *call.rounded(x), dtype=torch.bool, shape=x.shape)
    right = call.pointwise(truth, *call.rounded(y), dtype=torch.bool, shape=y.shape)
    return call.pointwise(lambda ops, a, b: ops.apply(operation, a, b), left, right)


for _name in ("logical_and", "logical_or", "logical_xor"):
    lowering(_name)(lambda call, x, y, operation=_name: _logical(call, x, y, operation))


def _bitwise(call: Call, x: Operand, y: Operand, operation: str) -> TensorValue:
    if call.meta.dtype == torch.bool:
        operation = operation.replace("bitwise", "logical")
    return call.pointwise(lambda ops, a, b: ops.apply(operation, a, b), x, y)


for _name in ("and", "or", "xor"):
    lowering(f"bitwise_{_name}.Tensor bitwise_{_name}.Scalar bitwise_{_name}.Scalar_Tensor")(
        lambda call, x, y, operation=f"bitwise_{_name}": _bitwise(call, x, y, operation)
    )


def _shift(call: Call, x: Operand, y: Operand, left: bool) -> TensorValue:
    """Shifts by a negative or too large amount are defined in eager execution and undefined in a machine: the result
    is what shifting bit by bit would leave."""
    dtype = call.meta.dtype
    if dtype.is_floating_point or dtype == torch.bool:
        raise Decline(f"a shift of {dtype}")
    width = torch.iinfo(dtype).bits

    def function(ops, a, b):
        zero, widest = ops.constant(0, dtype), ops.constant(width - 1, dtype)
        outside = ops.logical_or(ops.lt(b, zero), ops.gt(b, widest))
        if left:
            return ops.where(outside, zero, ops.bitwise_left_shift(a, ops.where(outside, zero, b)))
        shifted = ops.bitwise_right_shift(a, ops.where(outside, widest, b))
        return ops.where(outside, zero, shifted) if dtype == torch.uint8 else shifted

    return call.pointwise(function, x, y)


for _name, _left in (("left", True), ("right", False)):
    lowering(
        f"bitwise_{_name}_shift.Tensor bitwise_{_name}_shift.Tensor_Scalar bitwise_{_name}_shift.Scalar_Tensor "
        f"__{_name[0]}shift__.Tensor __{_name[0]}shift__.Scalar"
    )(lambda call, x, y, left=_left: _shift(call, x, y, left))
