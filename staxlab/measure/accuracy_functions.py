"""What every elementary and composed function should give: exact values and special ones (IEEE 754, 2019, Section 9.2).

A :class:`Function` is PyTorch's operator beside its mathematical meaning, which mpmath evaluates to any precision.
The *special* values, at zeros and infinities, are not measured but prescribed, sign included; those of single functions
are the standard's and C's (Annex F), those of composed ones PyTorch's, which follow from its formulas.

A computed number is off by so many *units in the last place* of the exact one. Where a function subtracts two nearly
equal numbers that are rounded already, no such bound can hold near its roots; its ``scale`` is then the size of what is
subtracted, and errors are counted in units of the larger of the two. ``why`` says so in words.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

import torch
import torch.nn.functional as F

from ..transform.decompose import SELU_ALPHA, SELU_SCALE

Exact = Callable[..., Any]
BOUND = 4.0  # units in the last place


@dataclass(frozen=True)
class Function:
    """A function of one or two numbers.

    ``operator`` is PyTorch's, ``exact(mp, *numbers)`` the value in mpmath's context (None: no number, so NaN is right).
    ``special`` are the values at 0, -0, infinity and -infinity (of a function of two numbers: a function that knows
    them; "": not prescribed), ``exactly`` pairs of an argument and the result that must come out, zeros with their
    sign. ``near`` are arguments around which all neighbours are tried, ``periodic`` adds those next to multiples of
    pi/2. ``second`` draws a second operand. ``inside`` bounds the arguments for which the bound is claimed.
    """

    name: str
    operator: Callable[..., torch.Tensor]
    exact: Exact
    special: str | Callable[[float, float], float] = ""
    near: tuple[float, ...] = ()
    exactly: tuple[tuple[float, float], ...] = ()
    periodic: bool = False
    scale: Exact | None = None
    why: str = ""
    why_double: str = ""
    bound: float = BOUND
    inside: tuple[float, float] = (-math.inf, math.inf)
    second: Callable[[torch.Tensor, torch.Generator], torch.Tensor] | None = None

    @property
    def arity(self) -> int:
        return 1 if self.second is None else 2

    def at_special(self, *operands: float) -> float:
        """The prescribed value where an operand is zero, infinite or NaN."""
        if callable(self.special):
            return self.special(*operands)
        (a,) = operands
        if math.isnan(a):
            return math.nan
        position = (0 if a == 0 else 2) + (math.copysign(1.0, a) < 0)
        return float(self.special.split()[position])


# --- Exact values --------------------------------------------------------------------------------------------------


def _inside(low: float, high: float, value: Exact) -> Exact:
    """``value``, of arguments from ``low`` to ``high``; nothing elsewhere."""
    return lambda mp, a: value(mp, a) if low <= a <= high else None


def _lgamma(mp: Any, a: Any) -> Any:
    if a > 0:
        return mp.loggamma(a)
    if a == mp.floor(a):
        return mp.inf
    return mp.log(mp.pi / abs(mp.sinpi(a))) - mp.loggamma(1 - a)


def _erfc(mp: Any, a: Any) -> Any:
    return mp.erfc(a) if a < 30 else mp.exp(-a * a) / (a * mp.sqrt(mp.pi))  # beyond all formats


def _softplus(mp: Any, a: Any) -> Any:
    return mp.log1p(mp.exp(a)) if a < 200 else a


def _sigmoid(mp: Any, a: Any) -> Any:
    return 1 / (1 + mp.exp(-a))


def _digamma(mp: Any, a: Any) -> Any:
    """By reflection below 0, where mpmath counts its way up to 0; no value at poles, whose sides differ in sign."""
    if a > 0:
        return mp.digamma(a)
    return None if a == mp.floor(a) else mp.digamma(1 - a) - mp.pi * mp.cospi(a) / mp.sinpi(a)


def _trigamma(mp: Any, a: Any) -> Any:
    if a > 0:
        return mp.psi(1, a)
    return mp.inf if a == mp.floor(a) else (mp.pi / mp.sinpi(a)) ** 2 - mp.psi(1, 1 - a)


def _bessel(order: int, scaled: bool) -> Exact:
    def exact(mp: Any, a: Any) -> Any:
        if abs(a) > 800 and not scaled:
            return mp.sign(a) ** order * mp.inf
        if abs(a) > 1e6:  # two terms of the asymptotic series are exact to 36 bits there, three to 55, four to 73
            m, size = 4 * order * order, abs(a)
            series = 1 - (m - 1) / (8 * size) + (m - 1) * (m - 9) / (2 * (8 * size) ** 2)
            series -= (m - 1) * (m - 9) * (m - 25) / (6 * (8 * size) ** 3)
            return mp.sign(a) ** order * series / mp.sqrt(2 * mp.pi * size)
        value = mp.besseli(order, a)
        return value * mp.exp(-abs(a)) if scaled else value

    return exact


def _elu(alpha: float, scale: float = 1.0, inner: float = 1.0) -> Exact:
    return lambda mp, a: scale * (a if a > 0 else alpha * mp.expm1(a / mp.mpf(inner)))


def _gelu_tanh(mp: Any, a: Any) -> Any:
    return a * _sigmoid(mp, 2 * mp.sqrt(2 / mp.pi) * (a + mp.mpf(0.044715) * a**3))


def _mish(mp: Any, a: Any) -> Any:
    if a > 200:
        return a
    n = mp.exp(a) * (mp.exp(a) + 2)
    return a * n / (n + 2)


def _clamped(mp: Any, a: Any) -> Any:
    return min(max(a + 3, mp.mpf(0)), mp.mpf(6)) / 6


def _tanh(mp: Any, a: Any) -> Any:
    return mp.tanh(a) if abs(a) < 200 else mp.sign(a)


def _remainder(a: float, b: float) -> float:
    """What Python and PyTorch call the remainder; a remainder of zero keeps the sign of the dividend."""
    rest = _c(math.fmod)(a, b)
    return rest + b if rest and (rest < 0) != (b < 0) else rest


def _exact_quotient(rounded: Callable[[Fraction], int], rest: bool) -> Exact:
    def exact(mp: Any, a: Any, b: Any) -> Any:
        x, y = Fraction(float(a)), Fraction(float(b))
        whole = rounded(x / y)
        found = x - whole * y if rest else Fraction(whole)
        return mp.mpf(found.numerator) / found.denominator

    return exact


def _power(mp: Any, a: Any, b: Any) -> Any:
    if a < 0 and b != mp.floor(b):
        return None
    size = mp.exp(b * mp.log(abs(a)))
    return -size if a < 0 and b % 2 == 1 else size


def _log_sum(mp: Any, a: Any, b: Any) -> Any:
    return max(a, b) + mp.log1p(mp.exp(-abs(a - b)))


def _log_sum2(mp: Any, a: Any, b: Any) -> Any:
    return max(a, b) + mp.log1p(mp.exp(-abs(a - b) * mp.ln2)) / mp.ln2


def _larger(mp: Any, a: Any, b: Any) -> Any:
    return max(abs(a), abs(b))


# --- Special values of functions of two numbers ----------------------------------------------------------------------


def _c(function: Callable[..., float]) -> Callable[..., float]:
    """A function of Python's ``math`` as C has it: NaN where Python raises."""

    def call(*operands: float) -> float:
        try:
            return function(*operands)
        except ValueError:
            return math.nan
        except OverflowError:
            return math.inf

    return call


def _special_power(a: float, b: float) -> float:
    if a == 0 and b < 0:
        odd = math.isfinite(b) and b % 2 == 1
        return math.copysign(math.inf, a) if odd else math.inf
    return _c(math.pow)(a, b)


def _special_quotient(a: float, b: float) -> float:
    if b == 0:
        return math.nan if a == 0 or math.isnan(a) else math.copysign(math.inf, a) * math.copysign(1.0, b)
    return a / b


def _special_floor(a: float, b: float) -> float:
    """PyTorch's, by way of the remainder: that of infinity is NaN."""
    if b == 0:
        return _special_quotient(a, b)
    if math.isnan(a) or math.isnan(b) or math.isinf(a):
        return math.nan
    if math.isinf(b):
        return -1.0 if a and (a < 0) != (b < 0) else math.copysign(0.0, a) * math.copysign(1.0, b)
    return a / b


def _special_log_sum(base: float) -> Callable[[float, float], float]:
    def value(a: float, b: float) -> float:
        if math.isnan(a) or math.isnan(b):
            return math.nan
        if math.isinf(a) or math.isinf(b) or abs(a - b) > 1e4:
            return max(a, b) + 0.0  # a zero added to a zero is positive
        return max(a, b) + math.log1p(base ** -abs(a - b)) / math.log(base)

    return value


def _special_times_log(function: Callable[[float], float]) -> Callable[[float, float], float]:
    def value(a: float, b: float) -> float:
        if math.isnan(b):
            return b
        if a == 0:
            return 0.0
        pole = b == (0.0 if function is math.log else -1.0)
        return a * (-math.inf if pole else _c(function)(b))

    return value


# --- Second operands ---------------------------------------------------------------------------------------------


def _signed(size: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    return torch.where(torch.rand(size.shape, generator=random) < 0.5, -size, size)


def _any_size(x: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """A third of any exponent, a third near that of the first operand, a third very near."""
    info = torch.finfo(x.dtype)
    lowest, highest = math.log2(info.smallest_normal * info.eps), math.log2(info.max)
    width = highest - lowest
    own = x.abs().double().clamp_min(5e-324).log2()
    spread = torch.rand(x.shape, generator=random, dtype=torch.float64) - 0.5
    kind = torch.rand(x.shape, generator=random)
    exponent = torch.where(kind < 0.33, lowest + (spread + 0.5) * width, own + spread * torch.where(kind < 0.66, 60, 3))
    size = exponent.clamp(lowest, highest).clamp(-1074, 1023.9).exp2().to(x.dtype).clamp_max(info.max)
    return _signed(size, random)


def _exponent_of_power(x: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Exponents for which the power is a number: its logarithm is drawn evenly, a third of them whole numbers."""
    info = torch.finfo(x.dtype)
    lowest, highest = math.log2(info.smallest_normal * info.eps) - 2, math.log2(info.max) + 2
    aim = lowest + torch.rand(x.shape, generator=random, dtype=torch.float64) * (highest - lowest)
    y = aim / x.abs().double().log2()
    y = torch.where(torch.rand(x.shape, generator=random) < 0.33, y.round(), y)
    return y.clamp(-info.max, info.max).nan_to_num(1.0).to(x.dtype)


def _sign(x: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    return _signed(torch.ones_like(x), random)


def _probability(x: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    return torch.rand(x.shape, generator=random, dtype=x.dtype)


def _moderate(x: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Numbers of either sign between 2^-20 and 2^7 in size."""
    return _signed((torch.rand(x.shape, generator=random) * 27 - 20).exp2().to(x.dtype), random)


# --- The table -----------------------------------------------------------------------------------------------------

_ROOTS_OF_LGAMMA = (
    -2.457024738, -2.747682647, -3.143580889, -3.955294285, -4.039361840, -4.991544641, -5.008218168, -5.998580731,
)  # fmt: skip
_EXP_ENDS = (88.722839, -87.33655, -103.97208, -17.32868, 709.782712, -708.3964, -745.13)
_REDUCED = "in float64 some results next to multiples of pi/2 keep fewer digits, in the C library, too"
_SERIES = "in float64 a series rounded at every step, with terms larger than their sum; in float32 rounded once"
_ROUNDED = 0.5  # the bound of what is rounded once

SINGLE: tuple[Function, ...] = (
    Function("sqrt", torch.sqrt, lambda mp, a: mp.sqrt(a) if a >= 0 else None, "0 -0 inf nan"),
    Function("rsqrt", torch.rsqrt, lambda mp, a: 1 / mp.sqrt(a) if a >= 0 else None, "inf -inf 0 nan"),
    Function("reciprocal", torch.reciprocal, lambda mp, a: 1 / a, "inf -inf 0 -0", near=(2.0**-128, 2.0**126)),
    Function("exp", torch.exp, lambda mp, a: mp.exp(a), "1 1 inf 0", near=_EXP_ENDS),
    Function("exp2", torch.exp2, lambda mp, a: mp.exp(a * mp.ln2), "1 1 inf 0", near=(128, -126, -149, -150, 1024),
             exactly=((1.0, 2.0), (-1.0, 0.5))),
    Function("expm1", torch.expm1, lambda mp, a: mp.expm1(a), "0 -0 inf -1", near=_EXP_ENDS),
    Function("log", torch.log, lambda mp, a: mp.log(a) if a >= 0 else None, "-inf -inf inf nan", near=(1.0,),
             exactly=((1.0, 0.0),)),
    Function("log2", torch.log2, lambda mp, a: mp.log(a) / mp.ln2 if a >= 0 else None, "-inf -inf inf nan",
             near=(1.0,), exactly=((1.0, 0.0), (8.0, 3.0))),
    Function("log10", torch.log10, lambda mp, a: mp.log10(a) if a >= 0 else None, "-inf -inf inf nan", near=(1.0,),
             exactly=((1.0, 0.0),)),
    Function("log1p", torch.log1p, lambda mp, a: mp.log1p(a) if a >= -1 else None, "0 -0 inf nan", near=(-1.0,),
             exactly=((-1.0, -math.inf),)),
    Function("sin", torch.sin, lambda mp, a: mp.sin(a), "0 -0 nan nan", periodic=True,
             why_double=_REDUCED),
    Function("cos", torch.cos, lambda mp, a: mp.cos(a), "1 1 nan nan", periodic=True,
             why_double=_REDUCED),
    Function("tan", torch.tan, lambda mp, a: mp.tan(a), "0 -0 nan nan", periodic=True,
             why_double=_REDUCED),
    Function("asin", torch.asin, _inside(-1, 1, lambda mp, a: mp.asin(a)), "0 -0 nan nan", near=(1.0, -1.0, 0.5)),
    Function("acos", torch.acos, _inside(-1, 1, lambda mp, a: mp.acos(a)), f"{math.pi / 2} {math.pi / 2} nan nan",
             near=(1.0, -1.0, 0.5), exactly=((1.0, 0.0),)),
    Function("atan", torch.atan, lambda mp, a: mp.atan(a), f"0 -0 {math.pi / 2} {-math.pi / 2}", near=(1.0, -1.0)),
    Function("sinh", torch.sinh, lambda mp, a: mp.sinh(a), "0 -0 inf -inf",
             near=(88.0, 89.415985, -89.415985, 88.722839, 710.47586)),
    Function("cosh", torch.cosh, lambda mp, a: mp.cosh(a), "1 1 inf inf", near=(88.0, 89.415985, 88.722839, 710.47586)),
    Function("tanh", torch.tanh, _tanh, "0 -0 1 -1", near=(9.010913, -9.010913, 2.0**-12)),
    Function("asinh", torch.asinh, lambda mp, a: mp.asinh(a), "0 -0 inf -inf", near=(2.0**60, 2.0**64)),
    Function("acosh", torch.acosh, lambda mp, a: mp.acosh(a) if a >= 1 else None, "nan nan inf nan",
             near=(1.0, 2.0**60, 2.0**64), exactly=((1.0, 0.0),)),
    Function("atanh", torch.atanh, _inside(-1, 1, lambda mp, a: mp.atanh(a)), "0 -0 nan nan", near=(1.0, -1.0, 0.5),
             exactly=((1.0, math.inf), (-1.0, -math.inf))),
    Function("erf", torch.erf, lambda mp, a: mp.erf(a), "0 -0 1 -1", near=(3.919206, 1.0)),
    Function("erfc", torch.erfc, _erfc, "1 1 0 2", near=(9.194549, 10.054204, -3.832507, 1.0)),
    Function("lgamma", torch.lgamma, _lgamma, "inf inf inf inf",
             near=(1.0, 2.0, 4.085003e36, *_ROOTS_OF_LGAMMA, -1.0, -0.5), exactly=((1.0, 0.0), (2.0, 0.0)),
             scale=lambda mp, a: 1 + mp.loggamma(1 - a) if a < 0 else mp.mpf(0),
             why="below 0 the sum of two logarithms, so errors near a root are those of the parts, 1 + lgamma(1 - x)"),
    Function("sigmoid", torch.sigmoid, _sigmoid, "0.5 0.5 1 0", near=(-88.722839, -103.97208, -87.33655, -16.635532)),
)  # fmt: skip

PAIRS: tuple[Function, ...] = (
    Function("pow", torch.pow, _power, _special_power, second=_exponent_of_power),
    Function("atan2", torch.atan2, lambda mp, a, b: mp.atan2(a, b), math.atan2, second=_any_size),
    Function("hypot", torch.hypot, lambda mp, a, b: mp.sqrt(a * a + b * b), math.hypot, second=_any_size),
    Function("truediv", torch.true_divide, lambda mp, a, b: a / b, _special_quotient, second=_any_size, bound=_ROUNDED),
    Function("fmod", torch.fmod, _exact_quotient(math.trunc, True), _c(math.fmod), second=_any_size, bound=0.0),
    Function("remainder", torch.remainder, _exact_quotient(math.floor, True), _remainder, second=_any_size,
             bound=_ROUNDED),
    Function("floordiv", torch.floor_divide, _exact_quotient(math.floor, False), _special_floor, second=_any_size),
)  # fmt: skip

COMPOSED: tuple[Function, ...] = (
    Function("gelu", F.gelu, lambda mp, a: a * _erfc(mp, -a / mp.sqrt(2)) / 2, "0 -0 inf nan",
             near=(-13.0, -13.3, -14.2, -5.0, -1.0, 0.75, -0.75),
             why_double="in float64 as PyTorch has it, 1 + erf(x / sqrt(2)), which cancels for negative x"),
    Function("gelu tanh", lambda a: F.gelu(a, approximate="tanh"), _gelu_tanh, "0 -0 inf nan",
             near=(-10.0, -9.0, -5.0, -1.0), why_double="in float64 the constants of its argument have 53 bits"),
    Function("silu", F.silu, lambda mp, a: a * _sigmoid(mp, a), "0 -0 inf nan", near=(-88.722839, -91.9, -103.97208)),
    Function("softplus", F.softplus, lambda mp, a: a if a > 20 else _softplus(mp, a),
             f"{math.log(2)} {math.log(2)} inf 0", near=(20.0, -87.33, -103.97)),
    Function("mish", F.mish, _mish, "0 -0 inf nan", near=(20.0, -20.0, -87.33, -91.9, -103.97)),
    Function("logsigmoid", F.logsigmoid, lambda mp, a: -_softplus(mp, -a), f"{-math.log(2)} {-math.log(2)} 0 -inf",
             near=(103.97, 87.33)),
    Function("elu", F.elu, _elu(1.0), "0 -0 inf -1", near=(-17.32868,)),
    Function("celu", lambda a: F.celu(a, alpha=0.75), _elu(0.75, 1.0, 0.75), "0 -0 inf -0.75", near=(-13.0,)),
    Function("selu", F.selu, _elu(SELU_ALPHA, SELU_SCALE), f"0 -0 inf {-SELU_ALPHA * SELU_SCALE}", near=(-17.32868,)),
    Function("hardswish", F.hardswish, lambda mp, a: a * _clamped(mp, a), "0 -0 inf nan", near=(-3.0, 3.0),
             inside=(-math.inf, 2.0**125), why="6 x overflows, as it does in PyTorch, for x > 2^128 / 6"),
    Function("hardsigmoid", F.hardsigmoid, _clamped, "0.5 0.5 1 0", near=(-3.0, 3.0)),
    Function("softsign", F.softsign, lambda mp, a: a / (1 + abs(a)), "0 -0 nan nan"),
    Function("tanhshrink", F.tanhshrink, lambda mp, a: a - _tanh(mp, a), "0 0 inf -inf", near=(2.0**-12, 9.010913),
             scale=lambda mp, a: abs(a), why="x less a number that is rounded: errors are those of tanh(x)"),
    Function("sinc", torch.sinc, lambda mp, a: mp.sinpi(a) / (mp.pi * a), "1 1 nan nan",
             near=(1.0, 2.0, 0.5, -3.0, 100.0, 65536.0)),
    Function("logit", torch.logit, _inside(0, 1, lambda mp, a: mp.log(a / (1 - a))), "-inf -inf nan nan",
             near=(0.5, 1.0, 0.25), exactly=((1.0, math.inf), (0.5, 0.0))),
    Function("entr", torch.special.entr, lambda mp, a: -a * mp.log(a) if a >= 0 else -mp.inf, "0 0 -inf -inf",
             near=(1.0,)),
    Function("digamma", torch.digamma, _digamma, "-inf inf inf nan",
             near=(1.461632145, -0.504083008, -1.573498473, 1.0, -1.0), why_double=_SERIES),
    Function("trigamma", lambda a: torch.polygamma(1, a), _trigamma, "inf inf 0 nan"),
    Function("erfinv", torch.erfinv, _inside(-1, 1, lambda mp, a: mp.erfinv(a)), "0 -0 nan nan", near=(1.0, -1.0),
             exactly=((1.0, math.inf), (-1.0, -math.inf))),
    Function("i0", torch.special.i0, _bessel(0, False), "1 1 nan nan", near=(91.9, 88.7)),
    Function("i0e", torch.special.i0e, _bessel(0, True), "1 1 0 0", near=(8.0,)),
    Function("i1", torch.special.i1, _bessel(1, False), "0 0 nan nan", near=(91.9, 88.7)),
    Function("i1e", torch.special.i1e, _bessel(1, True), "0 0 0 -0", near=(8.0,), why_double=_SERIES),
    Function("logaddexp", torch.logaddexp, _log_sum, _special_log_sum(math.e), second=_moderate, scale=_larger,
             why="the larger number plus a logarithm: errors near 0 are those of the parts"),
    Function("logaddexp2", torch.logaddexp2, _log_sum2, _special_log_sum(2.0), second=_moderate, scale=_larger,
             why="the larger number plus a logarithm: errors near 0 are those of the parts"),
    Function("xlogy", torch.xlogy, lambda mp, a, b: a * mp.log(b) if b > 0 else None, _special_times_log(math.log),
             second=_any_size),
    Function("xlog1py", torch.special.xlog1py, lambda mp, a, b: a * mp.log1p(b) if b > -1 else None,
             _special_times_log(math.log1p), second=_any_size),
    Function("soft_margin_loss", lambda a, b: F.soft_margin_loss(a, b, reduction="none"),
             lambda mp, a, b: _softplus(mp, -a * b), second=_sign, inside=(-88.0, 88.0),
             why="exp(-x y) overflows, as it does in PyTorch, beyond 88"),
    Function("binary_cross_entropy_with_logits",
             lambda a, b: F.binary_cross_entropy_with_logits(a, b, reduction="none"),
             lambda mp, a, b: (1 - b) * a + _softplus(mp, -a), second=_probability, inside=(-(2.0**120), 2.0**120),
             scale=lambda mp, a, b: abs((1 - b) * a) + _softplus(mp, -a),
             why="a difference of two terms: errors are those of the terms"),
    Function("poisson_nll_loss", lambda a, b: F.poisson_nll_loss(a, b, reduction="none"),
             lambda mp, a, b: mp.exp(a) - a * b, second=_moderate, inside=(-(2.0**100), 2.0**100),
             scale=lambda mp, a, b: mp.exp(a) + abs(a * b),
             why="a difference of two terms: errors are those of the terms"),
)  # fmt: skip
