"""Derivatives of the scalar operations that loop bodies are made of (Section 9.10).

``score_mod`` is differentiated where it is embedded: inside a kernel, one score at a time. A body has some seventy
operations (:data:`staxlab.loops.ops.OPERATIONS`), each with the derivative that PyTorch gives it (``derivatives.yaml``
and ``FunctionsManual.cpp`` of its sources), at kinks and ties as well: the two sides of an equal maximum get half
each, ``relu`` has 0 at 0, ``abs`` the sign. Where PyTorch's formula guards a limit, so does the row here.

A row's formula is for reading, in terms of ``g`` (the derivative of the result), ``x``, ``z`` (operands) and ``y`` (the
result); its rule emits it. Operations that are constant almost everywhere have derivative 0 and no row; comparisons and
whole numbers end every path.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..loops.lowering.special import digamma
from ..loops.ops import OPERATIONS, Ops

LN_2 = math.log(2.0)
LN_10 = math.log(10.0)


class Algebra:
    """Emits through a handler, leaving out what changes nothing: factors of 1, terms of 0, double negation. Values are
    the handler's; ``dtype`` is that of the derivatives at hand."""

    def __init__(self, ops: Ops, dtype: torch.dtype, constants: dict[int, float]):
        self.ops, self.dtype, self.constants = ops, dtype, constants

    def number(self, value: float) -> Any:
        made = self.ops.constant(value, self.dtype)
        self.constants[made.id] = value
        return made

    def known(self, value: Any) -> float | None:
        """The number that a value is, if it is one."""
        return self.constants.get(value.id)

    def _of(self, value: Any) -> Any:
        return self.number(float(value)) if isinstance(value, (int, float)) else value

    def mul(self, a: Any, b: Any) -> Any:
        a, b = self._of(a), self._of(b)
        for one, other in ((a, b), (b, a)):
            if self.known(one) == 1.0:
                return other
            if self.known(one) == -1.0:
                return self.ops.neg(other)
        return self.ops.mul(a, b)

    def add(self, a: Any, b: Any) -> Any:
        return self.ops.add(self._of(a), self._of(b))

    def sub(self, a: Any, b: Any) -> Any:
        return self.ops.sub(self._of(a), self._of(b))

    def div(self, a: Any, b: Any) -> Any:
        a, b = self._of(a), self._of(b)
        return a if self.known(b) == 1.0 else self.ops.truediv(a, b)

    def neg(self, a: Any) -> Any:
        return self.ops.neg(a)

    def where(self, condition: Any, a: Any, b: Any) -> Any:
        return self.ops.where(condition, self._of(a), self._of(b))

    def test(self, comparison: str, a: Any, b: Any) -> Any:
        return self.ops.apply(comparison, self._of(a), self._of(b))


Rule = Callable[..., tuple[Any, ...]]


@dataclass(frozen=True)
class Derivative:
    """``formula`` for each operand, separated by semicolons; ``rule(algebra, g, y, *operands)`` gives a derivative, or
    None for 0, for each operand."""

    formula: str
    rule: Rule


def _one(formula: str, rule: Callable[..., Any]) -> Derivative:
    return Derivative(formula, lambda a, g, y, x: (rule(a, g, y, x),))


def _square(a: Algebra, x: Any) -> Any:
    return a.ops.mul(x, x)


def _lgamma(a: Algebra, g: Any, y: Any, x: Any) -> Any:
    wide = digamma(a.ops, a.ops.to_dtype(x, torch.float64))
    return a.mul(g, a.ops.to_dtype(wide, a.dtype))


def _pow(a: Algebra, g: Any, y: Any, x: Any, z: Any) -> tuple[Any, ...]:
    exponent = a.known(z)
    if exponent is not None:
        if exponent == 0.0:
            return None, None
        return a.mul(g, a.mul(exponent, x if exponent == 2.0 else a.ops.pow(x, a.number(exponent - 1.0)))), None
    base = a.mul(g, a.mul(z, a.ops.pow(x, a.sub(z, 1.0))))
    vanishes = a.ops.logical_and(a.test("eq", x, 0.0), a.test("ge", z, 0.0))
    power = a.mul(g, a.where(vanishes, 0.0, a.mul(y, a.ops.log(x))))
    return a.where(a.test("eq", z, 0.0), 0.0, base), power


def _extreme(loses: str, wins: str) -> Rule:
    def rule(a: Algebra, g: Any, y: Any, x: Any, z: Any) -> tuple[Any, ...]:
        shared = a.where(a.test("eq", x, z), a.mul(g, 0.5), g)
        return a.where(a.test(loses, x, z), 0.0, shared), a.where(a.test(wins, x, z), 0.0, shared)

    return rule


def _extreme_of_numbers(first: str) -> Rule:
    def rule(a: Algebra, g: Any, y: Any, x: Any, z: Any) -> tuple[Any, ...]:
        taken = a.ops.logical_or(a.test(first, x, z), a.ops.isnan(z))
        return a.where(taken, g, 0.0), a.where(taken, 0.0, g)

    return rule


def _quotient(a: Algebra, g: Any, y: Any, x: Any, z: Any) -> tuple[Any, ...]:
    return a.div(g, z), a.neg(a.mul(g, a.div(y, z)))


def _remainder(rounding: str) -> Rule:
    def rule(a: Algebra, g: Any, y: Any, x: Any, z: Any) -> tuple[Any, ...]:
        if rounding == "trunc":
            whole = a.ops.trunc(a.div(x, z))
        else:
            whole = a.ops.floordiv(x, z)
        return g, a.neg(a.mul(g, whole))

    return rule


def _atan2(a: Algebra, g: Any, y: Any, x: Any, z: Any) -> tuple[Any, ...]:
    squares = a.add(_square(a, x), _square(a, z))
    scale = a.where(a.test("eq", squares, 0.0), 0.0, a.div(g, squares))
    return a.mul(scale, z), a.neg(a.mul(scale, x))


def _copysign(a: Algebra, g: Any, y: Any, x: Any, z: Any) -> tuple[Any, ...]:
    return a.where(a.test("eq", x, 0.0), 0.0, a.mul(g, a.div(y, x))), None


DERIVATIVES: dict[str, Derivative] = {
    "neg": _one("-g", lambda a, g, y, x: a.neg(g)),
    "abs": _one("g sign(x)", lambda a, g, y, x: a.mul(g, a.ops.sign(x))),
    "relu": _one("0 if x <= 0 else g", lambda a, g, y, x: a.where(a.test("le", x, 0.0), 0.0, g)),
    "square": _one("2 g x", lambda a, g, y, x: a.mul(g, a.mul(2.0, x))),
    "reciprocal": _one("-g y^2", lambda a, g, y, x: a.neg(a.mul(g, _square(a, y)))),
    "sqrt": _one("g / (2 y)", lambda a, g, y, x: a.div(g, a.mul(2.0, y))),
    "rsqrt": _one("-g y^3 / 2", lambda a, g, y, x: a.mul(a.mul(-0.5, g), a.mul(_square(a, y), y))),
    "exp": _one("g y", lambda a, g, y, x: a.mul(g, y)),
    "exp2": _one("g y log 2", lambda a, g, y, x: a.mul(g, a.mul(y, LN_2))),
    "expm1": _one("g (y + 1)", lambda a, g, y, x: a.mul(g, a.add(y, 1.0))),
    "log": _one("g / x", lambda a, g, y, x: a.div(g, x)),
    "log2": _one("g / (x log 2)", lambda a, g, y, x: a.div(g, a.mul(x, LN_2))),
    "log10": _one("g / (x log 10)", lambda a, g, y, x: a.div(g, a.mul(x, LN_10))),
    "log1p": _one("g / (x + 1)", lambda a, g, y, x: a.div(g, a.add(x, 1.0))),
    "sin": _one("g cos(x)", lambda a, g, y, x: a.mul(g, a.ops.cos(x))),
    "cos": _one("-g sin(x)", lambda a, g, y, x: a.neg(a.mul(g, a.ops.sin(x)))),
    "tan": _one("g (1 + y^2)", lambda a, g, y, x: a.mul(g, a.add(1.0, _square(a, y)))),
    "asin": _one("g / sqrt(1 - x^2)", lambda a, g, y, x: a.mul(g, a.ops.rsqrt(a.sub(1.0, _square(a, x))))),
    "acos": _one("-g / sqrt(1 - x^2)", lambda a, g, y, x: a.neg(a.mul(g, a.ops.rsqrt(a.sub(1.0, _square(a, x)))))),
    "atan": _one("g / (x^2 + 1)", lambda a, g, y, x: a.div(g, a.add(_square(a, x), 1.0))),
    "sinh": _one("g cosh(x)", lambda a, g, y, x: a.mul(g, a.ops.cosh(x))),
    "cosh": _one("g sinh(x)", lambda a, g, y, x: a.mul(g, a.ops.sinh(x))),
    "tanh": _one("g (1 - y^2)", lambda a, g, y, x: a.mul(g, a.sub(1.0, _square(a, y)))),
    "asinh": _one("g / sqrt(x^2 + 1)", lambda a, g, y, x: a.mul(g, a.ops.rsqrt(a.add(_square(a, x), 1.0)))),
    "acosh": _one("g / sqrt(x^2 - 1)", lambda a, g, y, x: a.mul(g, a.ops.rsqrt(a.sub(_square(a, x), 1.0)))),
    "atanh": _one("g / (1 - x^2)", lambda a, g, y, x: a.div(g, a.sub(1.0, _square(a, x)))),
    "erf": _one(
        "g 2/sqrt(pi) exp(-x^2)",
        lambda a, g, y, x: a.mul(g, a.mul(2.0 / math.sqrt(math.pi), a.ops.exp(a.neg(_square(a, x))))),
    ),
    "erfc": _one(
        "-g 2/sqrt(pi) exp(-x^2)",
        lambda a, g, y, x: a.mul(g, a.mul(-2.0 / math.sqrt(math.pi), a.ops.exp(a.neg(_square(a, x))))),
    ),
    "lgamma": _one("g digamma(x)", _lgamma),
    "sigmoid": _one("g y (1 - y)", lambda a, g, y, x: a.mul(g, a.mul(y, a.sub(1.0, y)))),
    "add": Derivative("g; g", lambda a, g, y, x, z: (g, g)),
    "sub": Derivative("g; -g", lambda a, g, y, x, z: (g, a.neg(g))),
    "mul": Derivative("g z; g x", lambda a, g, y, x, z: (a.mul(g, z), a.mul(g, x))),
    "truediv": Derivative("g / z; -g (x / z) / z", _quotient),
    "remainder": Derivative("g; -g floor(x / z)", _remainder("floor")),
    "fmod": Derivative("g; -g trunc(x / z)", _remainder("trunc")),
    "pow": Derivative("g z x^(z - 1), 0 for z = 0; g y log x, 0 for x = 0 and z >= 0", _pow),
    "maximum": Derivative("g if x > z, g/2 if equal, else 0; the rest", _extreme("lt", "gt")),
    "minimum": Derivative("g if x < z, g/2 if equal, else 0; the rest", _extreme("gt", "lt")),
    "fmax": Derivative("g if x >= z or z is NaN, else 0; the rest", _extreme_of_numbers("ge")),
    "fmin": Derivative("g if x <= z or z is NaN, else 0; the rest", _extreme_of_numbers("le")),
    "atan2": Derivative("g z / (x^2 + z^2), 0 at the origin; -g x / (x^2 + z^2)", _atan2),
    "hypot": Derivative("g x / y; g z / y", lambda a, g, y, x, z: (a.mul(g, a.div(x, y)), a.mul(g, a.div(z, y)))),
    "copysign": Derivative("g y / x, 0 for x = 0; 0", _copysign),
    "where": Derivative(
        "0; g if c, else 0; 0 if c, else g",
        lambda a, g, y, c, x, z: (None, a.where(c, g, 0.0), a.where(c, 0.0, g)),
    ),
}

#: Constant wherever they are continuous: PyTorch's derivative is 0 everywhere.
CONSTANT_PIECES = frozenset({"sign", "floor", "ceil", "trunc", "round", "floordiv", "truncdiv"})

#: PyTorch has no derivative of these.
NOT_DIFFERENTIABLE = frozenset({"nextafter"})

#: Whole numbers and truth values have no derivative; the rest of the vocabulary.
DISCRETE = frozenset(OPERATIONS) - DERIVATIVES.keys() - CONSTANT_PIECES - NOT_DIFFERENTIABLE

__all__ = ["CONSTANT_PIECES", "DERIVATIVES", "DISCRETE", "NOT_DIFFERENTIABLE", "Algebra", "Derivative"]
