"""Lowering rules that modifications have of their own (Section 9.10), beside those of :mod:`staxlab.loops.lowering`.

Two things are different inside an attention kernel. Some lanes belong to no score, so that nothing may trap or raise:
whole numbers divide by anything. And bodies are differentiated as they stand, so that an operator with a kink has to be
written with the piece that PyTorch's derivative takes where pieces meet, and so that a piece that is not taken has a
finite derivative (0 times infinity is not 0). Values stay what they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from ..loops.intervals import Intervals
from ..loops.ir import Index
from ..loops.lowering.call import Call
from ..loops.lowering.values import TensorValue
from ..loops.ops import Ops

#: Operators whose formulas have pieces with infinite derivatives that other pieces are selected over. They can be used
#: where no gradient goes through them.
NO_DERIVATIVE = frozenset(
    {
        "digamma", "erfinv", "i0", "polygamma", "special_entr", "special_i0e", "special_i1", "special_i1e",
        "heaviside",
    }
)  # fmt: skip

_DIVISIONS = {
    ("remainder", None): "remainder", ("fmod", None): "fmod", ("floor_divide", None): "floordiv",
    ("div", "floor"): "floordiv", ("div", "trunc"): "truncdiv",
}  # fmt: skip


def own_rule(call: Call, arguments: tuple[Any, ...], options: dict[str, Any]) -> TensorValue | None:
    """The value of an operator that has a rule here; None: it has none. ``arguments`` are values or numbers."""
    name, dtype = call.node.target._opname, call.meta.dtype
    if not dtype.is_floating_point:
        operation = _DIVISIONS.get((name, options.get("rounding_mode")))
        if operation is not None and isinstance(arguments[1], TensorValue):
            return _divided(call, operation, *arguments[:2])
        return None
    if name in ("clamp", "clamp_min", "clamp_max") and any(isinstance(a, TensorValue) for a in arguments[1:]):
        low, high = _bounds(name, *arguments[1:], **options)
        operands = [arguments[0], *(bound for bound in (low, high) if bound is not None)]
        return call.pointwise(_clamped(low is not None, high is not None), *operands, operand_dtype=dtype)
    function = _PIECES.get(name)
    if function is None:
        return None
    tensors = [a for a in arguments if isinstance(a, TensorValue)]
    if name == "xlogy":
        tensors, arguments = list(arguments), ()
    numbers = [a for a in arguments if not isinstance(a, TensorValue)]

    def element(ops: Ops, *values: Any) -> Any:
        return function(ops, lambda number: ops.constant(number, dtype), *values, *numbers)

    return call.pointwise(element, *tensors, operand_dtype=dtype)


def _divided(call: Call, operation: str, dividend: Any, divisor: TensorValue) -> TensorValue:
    """Whole numbers divided by what is known at run time only. Eager execution raises for a zero; a lane of a kernel
    cannot, and one that no score belongs to must not trap: unless intervals show the divisor to be positive, one is
    taken in place of zero, and -1 by negation, which the smallest integer does not survive as a division."""
    dtype, shape = call.meta.dtype, call.meta.shape
    first, second = call.loader(dividend, shape, dtype), call.loader(divisor, shape, dtype)

    def compute(ops: Ops, index: Index) -> Any:
        ops = ops.tagged(call.origins)
        a, b = first(ops, index), second(ops, index)
        known = second(Intervals(ops.dtypes), index) if ops.dtypes is not None else None
        if known is not None and known.interval is not None and known.interval.lower > 0:
            return ops.apply(operation, a, b)
        zero, one, minus_one = (ops.constant(n, dtype) for n in (0, 1, -1))
        negated = ops.eq(b, minus_one)
        safe = ops.where(ops.logical_or(negated, ops.eq(b, zero)), one, b)
        by_minus_one = ops.neg(a) if "div" in operation else zero
        return ops.where(negated, by_minus_one, ops.apply(operation, a, safe))

    return call.computed(compute, shape, dtype, (dividend, divisor))


# -- pieces -----------------------------------------------------------------------------------------------------------


def _bounds(name: str, first: Any = None, second: Any = None, **named: Any) -> tuple[Any, Any]:
    low, high = named.get("min", first), named.get("max", second)
    if name == "clamp_max":
        return None, named.get("max", first)
    return low, high if name == "clamp" else None


def _clamped(has_low: bool, has_high: bool) -> Callable[..., Any]:
    """Within bounds that are tensors: at a bound the derivative is that of the value. A NaN in one comes through."""

    def function(ops: Ops, x: Any, *bounds: Any) -> Any:
        remaining = list(bounds)
        for comparison, present in (("lt", has_low), ("gt", has_high)):
            if present:
                bound = remaining.pop(0)
                x = ops.where(ops.logical_or(ops.apply(comparison, x, bound), ops.isnan(bound)), bound, x)
        return x

    return function


def _hardtanh(ops: Ops, constant: Callable, x: Any, low: float = -1.0, high: float = 1.0) -> Any:
    """Derivative 0 at both ends."""
    lower, upper = constant(low), constant(high)
    return ops.where(ops.le(x, lower), lower, ops.where(ops.ge(x, upper), upper, x))


def _hardsigmoid(ops: Ops, constant: Callable, x: Any) -> Any:
    """Derivative 0 at both ends."""
    zero, three, six = constant(0.0), constant(3.0), constant(6.0)
    inside = ops.truediv(ops.add(x, three), six)
    upper = ops.where(ops.ge(x, three), constant(1.0), inside)
    return ops.where(ops.le(x, ops.neg(three)), zero, upper)


def _hardswish(ops: Ops, constant: Callable, x: Any) -> Any:
    """Derivative 0 at -3, 1 at 3."""
    three, six = constant(3.0), constant(6.0)
    inside = ops.truediv(ops.mul(x, ops.add(x, three)), six)
    upper = ops.where(ops.ge(x, three), x, inside)
    return ops.where(ops.le(x, ops.neg(three)), constant(0.0), upper)


def _elu(ops: Ops, constant: Callable, x: Any, alpha: float = 1.0, scale: float = 1.0, input_scale: float = 1.0) -> Any:
    """At 0 the derivative from below; ``selu`` is this with numbers of its own."""
    low = ops.mul(constant(alpha * scale), ops.expm1(ops.mul(x, constant(input_scale))))
    return ops.where(ops.gt(x, constant(0.0)), ops.mul(constant(scale), x), low)


def _xlogy(ops: Ops, constant: Callable, x: Any, y: Any) -> Any:
    """``x log y``, 0 for x = 0: with a logarithm that is finite there, so that the derivative by x is log y."""
    zero, one = constant(0.0), constant(1.0)
    vanishes = ops.eq(x, zero)
    positive = ops.where(ops.logical_and(vanishes, ops.le(y, zero)), one, y)
    return ops.mul(x, ops.log(positive))


def _sinc(ops: Ops, constant: Callable, x: Any) -> Any:
    """``sin(pi x) / (pi x)``, by the distance to the next whole number (see the rule in ``loops.lowering.unary``)."""
    zero, one, pi = constant(0.0), constant(1.0), constant(math.pi)
    vanishes = ops.eq(x, zero)
    away = ops.where(vanishes, one, x)
    whole = ops.round(away)
    half = ops.mul(whole, constant(0.5))
    sine = ops.sin(ops.mul(ops.sub(away, whole), pi))
    sine = ops.where(ops.eq(half, ops.floor(half)), sine, ops.neg(sine))
    return ops.where(vanishes, one, ops.truediv(sine, ops.mul(away, pi)))


_PIECES: dict[str, Callable[..., Any]] = {
    "hardtanh": _hardtanh,
    "relu6": lambda ops, constant, x: _hardtanh(ops, constant, x, 0.0, 6.0),
    "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish,
    "elu": _elu,
    "xlogy": _xlogy,
    "sinc": _sinc,
}

__all__ = ["NO_DERIVATIVE", "own_rule"]
