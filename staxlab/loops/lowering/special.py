"""Special functions of one number: digamma and trigamma, the inverse error function, modified Bessel functions.

Single precision is computed in double, which costs less than a formula that is exact to the last bit there; so results
of ``float32`` are rounded once. Series and recurrences are written out, for a compute function has no loops.

Sources: Abramowitz and Stegun (1964), "Handbook of Mathematical Functions", 6.3.5, 6.3.7, 6.3.18, 6.4.6, 6.4.12 (the
recurrences, reflections and asymptotic series of digamma and trigamma); Giles (2010), "Approximating the erfinv
function" (where Newton's method starts); Clenshaw (1955), "A note on the summation of Chebyshev series".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..ops import Ops
from .call import Call
from .registry import Decline, lowering
from .values import TensorValue, convert, to_floating

F64 = torch.float64


def _wide(call: Call, x: TensorValue, function: Callable[[Ops, Any], Any]) -> TensorValue:
    """``function(ops, element)`` computed in double precision."""
    floating = to_floating(x.dtype)

    def element(ops: Ops, a: Any) -> Any:
        return function(ops, ops.to_dtype(convert(ops, a, floating), F64))

    return call.pointwise(element, x, operand_dtype=x.dtype)


class _Double:
    """Arithmetic on double-precision values of a handler, so that formulas read like formulas."""

    def __init__(self, ops: Ops, value: Any):
        self.ops, self.value = ops, value

    def _with(self, operation: str, other: _Double | float, swapped: bool = False) -> _Double:
        operand = other.value if isinstance(other, _Double) else self.ops.constant(float(other), F64)
        pair = (operand, self.value) if swapped else (self.value, operand)
        return _Double(self.ops, self.ops.apply(operation, *pair))

    def __add__(self, other: _Double | float) -> _Double:
        return self._with("add", other)

    def __radd__(self, other: float) -> _Double:
        return self._with("add", other, swapped=True)

    def __sub__(self, other: _Double | float) -> _Double:
        return self._with("sub", other)

    def __rsub__(self, other: float) -> _Double:
        return self._with("sub", other, swapped=True)

    def __mul__(self, other: _Double | float) -> _Double:
        return self._with("mul", other)

    def __rmul__(self, other: float) -> _Double:
        return self._with("mul", other, swapped=True)

    def __truediv__(self, other: _Double | float) -> _Double:
        return self._with("truediv", other)

    def __rtruediv__(self, other: float) -> _Double:
        return self._with("truediv", other, swapped=True)

    def is_(self, comparison: str, other: _Double | float) -> Any:
        return self._with(comparison, other).value

    def __getattr__(self, function: str) -> Callable[[], _Double]:
        return lambda: _Double(self.ops, self.ops.apply(function, self.value))


def _either(condition: Any, one: _Double | float, other: _Double) -> _Double:
    ops = other.ops
    value = one.value if isinstance(one, _Double) else ops.constant(float(one), F64)
    return _Double(ops, ops.where(condition, value, other.value))


def _horner(x: _Double, coefficients: Sequence[float]) -> _Double:
    """The polynomial with the constant first."""
    total: _Double | float = coefficients[-1]
    for coefficient in coefficients[-2::-1]:
        total = total * x + coefficient if isinstance(total, _Double) else x * total + coefficient
    assert isinstance(total, _Double)
    return total


# -- gamma ------------------------------------------------------------------------------------------------------------

#: B_2k / 2k and B_2k of the Bernoulli numbers, k = 1 to 7.
_DIGAMMA_SERIES = (1 / 12, -1 / 120, 1 / 252, -1 / 240, 1 / 132, -691 / 32760, 1 / 12)
_TRIGAMMA_SERIES = (1 / 6, -1 / 30, 1 / 42, -1 / 30, 5 / 66, -691 / 2730, 7 / 6)
_FAR = 10.0  # from here on the series is exact to double precision


def digamma(ops: Ops, value: Any) -> Any:
    """The derivative of the logarithm of gamma: NaN at negative integers, -inf and inf at the zeros."""
    x = _Double(ops, value)
    left = x.is_("lt", 0.5)
    y = _either(left, 1.0 - x, x)  # psi(x) = psi(1 - x) - pi / tan(pi x)
    below = _Double(ops, ops.constant(0.0, F64))
    for _ in range(10):
        near = y.is_("lt", _FAR)
        below = _either(near, below - 1.0 / y, below)
        y = _either(near, y + 1.0, y)
    square = 1.0 / (y * y)
    found = below + (y.log() - 0.5 / y - square * _horner(square, _DIGAMMA_SERIES))
    fraction = x - x.round()
    found = _either(left, found - math.pi / (fraction * math.pi).tan(), found)
    pole = ops.logical_and(x.is_("le", 0.0), fraction.is_("eq", 0.0))
    found = _either(pole, math.nan, found)
    zero = x.is_("eq", 0.0)
    found = _either(zero, -1.0 * _Double(ops, ops.copysign(ops.constant(math.inf, F64), value)), found)
    found = _either(x.is_("eq", -math.inf), math.nan, found)
    return _either(x.is_("eq", math.inf), math.inf, found).value


def trigamma(ops: Ops, value: Any) -> Any:
    """The second derivative of the logarithm of gamma: inf at zero and the negative integers."""
    x = _Double(ops, value)
    left = x.is_("lt", 0.5)
    y = _either(left, 1.0 - x, x)  # psi'(x) = (pi / sin(pi x))^2 - psi'(1 - x)
    below = _Double(ops, ops.constant(0.0, F64))
    for _ in range(10):
        near = y.is_("lt", _FAR)
        below = _either(near, below + 1.0 / (y * y), below)
        y = _either(near, y + 1.0, y)
    inverse = 1.0 / y
    square = inverse * inverse
    found = below + (inverse + 0.5 * square + inverse * square * _horner(square, _TRIGAMMA_SERIES))
    fraction = x - x.round()
    sine = math.pi / (fraction * math.pi).sin()
    found = _either(left, sine * sine - found, found)
    pole = ops.logical_and(x.is_("le", 0.0), fraction.is_("eq", 0.0))
    found = _either(pole, math.inf, found)
    return _either(x.is_("eq", math.inf), 0.0, found).value


lowering("digamma")(lambda call, x: _wide(call, x, digamma))


@lowering("polygamma")
def lower_polygamma(call: Call, order: int, x: TensorValue) -> TensorValue:
    if order > 1:
        raise Decline("derivatives of gamma beyond the second")
    return _wide(call, x, trigamma if order else digamma)


# -- the inverse error function ---------------------------------------------------------------------------------------

_ERFINV_CENTRAL = (
    1.50140941, 0.246640727, -0.00417768164, -0.00125372503, 0.00021858087, -4.39150654e-06, -3.5233877e-06,
    3.43273939e-07, 2.81022636e-08,
)  # fmt: skip
_ERFINV_TAIL = (
    2.83297682, 1.00167406, 0.00943887047, -0.0076224613, 0.00573950773, -0.00367342844, 0.00134934322,
    0.000100950558, -0.000200214257,
)  # fmt: skip


def erfinv(ops: Ops, value: Any) -> Any:
    """The number whose error function is ``value``: infinite at -1 and 1, NaN beyond.

    Three steps of Halley's method. Where the error function is nearly 1 its complement is solved for, which keeps the
    relative precision of ``1 - |value|``; beyond what the start was made for, its asymptotic form gives one.
    """
    x = _Double(ops, value)
    size = x.abs()
    rest = 1.0 - size
    w = -1.0 * (rest * (1.0 + size)).log()
    central = _horner(w - 2.5, _ERFINV_CENTRAL)
    tail = _horner(w.sqrt() - 3.0, _ERFINV_TAIL)
    y = _either(w.is_("lt", 5.0), central, tail) * size
    depth = -1.0 * rest.log()
    y = _either(w.is_("gt", 16.0), (depth - 0.5 * (depth * math.pi).log()).sqrt(), y)
    for _ in range(3):
        error = _either(size.is_("gt", 0.5), rest - y.erfc(), y.erf() - size)
        step = error / ((-1.0 * (y * y)).exp() * (2 / math.sqrt(math.pi)))
        y = y - step / (1.0 + y * step)
    y = _either(size.is_("eq", 1.0), math.inf, y)
    y = _either(size.is_("eq", 0.0), size, y)
    y = _either(size.is_("gt", 1.0), math.nan, y)
    return ops.copysign(y.value, value)


lowering("erfinv")(lambda call, x: _wide(call, x, erfinv))

# -- modified Bessel functions ----------------------------------------------------------------------------------------

#: Chebyshev coefficients, the first halved, of exp(-x) I_0(x) and exp(-x) I_1(x) / x in x/4 - 1 for x up to 8.
_BESSEL_NEAR = {
    0: (
        0.33839763720473803, -0.3046826723431984, 0.17162090152220877, -0.09490109704804764, 0.04930528423967071,
        -0.02373741480589947, 0.010546460394594998, -0.004324309995050576, 0.0016394756169413357,
        -0.0005763755745385824, 0.00018850288509584165, -5.754195010082104e-05, 1.6448448070728896e-05,
        -4.4167383584587505e-06, 1.1173875391201037e-06, -2.670793853940612e-07, 6.046995022541919e-08,
        -1.300025009986248e-08, 2.6598237246823866e-09, -5.189795601635263e-10, 9.675809035373237e-11,
        -1.726826291441556e-11, 2.95505266312964e-12, -4.856446783111929e-13, 7.676185498604936e-14,
        -1.1685332877993451e-14, 1.715391285555133e-15, -2.431279846547955e-16, 3.3307945188222384e-17,
        -4.4153416464793395e-18,
    ),
    1: (
        0.12629359322181682, -0.17641651835783406, 0.1026436586898471, -0.05294598120809499, 0.024726449030626516,
        -0.010564084894626197, 0.004156422944312888, -0.0015135724506312532, 0.0005122859561685758,
        -0.00016176081582589674, 4.781565107550054e-05, -1.3273163656039436e-05, 3.4702513081376785e-06,
        -8.568720264695455e-07, 2.0032947535521353e-07, -4.445059128796328e-08, 9.381537386495773e-09,
        -1.8872497517228294e-09, 3.625590281552117e-10, -6.663489723502027e-11, 1.1736186298890901e-11,
        -1.9839743977649436e-12, 3.223793365945575e-13, -5.042185504727912e-14, 7.600684294735408e-15,
        -1.1055969477353862e-15, 1.5536319577362005e-16, -2.111421214358166e-17, 2.7779141127610464e-18,
    ),
}  # fmt: skip

#: The same of exp(-x) sqrt(x) I(x) in 16/x - 1 beyond.
_BESSEL_FAR = {
    0: (
        0.4022452055070544, 0.0033691164782556943, 6.889758346916825e-05, 2.8913705208347567e-06,
        2.0489185894690638e-07, 2.266668990498178e-08, 3.3962320257083865e-09, 4.94060238822497e-10,
        1.1889147107846439e-11, -3.1499165279632416e-11, -1.3215811840447713e-11, -1.7941785315068062e-12,
        7.180124451383666e-13, 3.8527783827421426e-13, 1.54008621752141e-14, -4.150569347287222e-14,
        -9.554846698828307e-15, 3.8116806693526224e-15, 1.7725601330565263e-15, -3.425485619677219e-16,
        -2.8276239805165836e-16, 3.461222867697461e-17, 4.46562142029676e-17, -4.830504485944182e-18,
        -7.233180487874754e-18, 9.921475412173699e-19, 1.193650890845982e-18,
    ),
    1: (
        0.38928811750914005, -0.009761097491361469, -0.00011058893876262371, -3.882564808877691e-06,
        -2.512236237870209e-07, -2.6314688468895196e-08, -3.835380385964237e-09, -5.589743462196584e-10,
        -1.8974958123505413e-11, 3.2526035830154884e-11, 1.4125807436613782e-11, 2.0356285441470896e-12,
        -7.198551776245908e-13, -4.0835511110921974e-13, -2.1015418427726643e-14, 4.272440016711951e-14,
        1.0420276984128802e-14, -3.8144030724370075e-15, -1.8803547755107825e-15, 3.3082023109209285e-16,
        2.96262899764595e-16, -3.209525921993424e-17, -4.6503053684893586e-17, 4.414348323071708e-18,
        7.517296310842105e-18, -9.314178867326884e-19, -1.242193275194891e-18,
    ),
}  # fmt: skip


def _chebyshev(t: _Double, coefficients: Sequence[float]) -> _Double:
    """The sum of ``c_k T_k(t)`` by Clenshaw's recurrence."""
    twice = t + t
    later: _Double | float = 0.0
    now: _Double = t * 0.0 + coefficients[-1]
    for coefficient in coefficients[-2:0:-1]:
        later, now = now, twice * now - later + coefficient
    return t * now - later + coefficients[0]


def bessel(order: int, scaled: bool) -> Callable[[Ops, Any], Any]:
    """``I_0`` or ``I_1``, times ``exp(-|x|)`` if ``scaled``. The unscaled ones are NaN at infinity, as in eager
    execution."""

    def function(ops: Ops, value: Any) -> Any:
        x = _Double(ops, value)
        size = x.abs()
        near = _chebyshev(size * 0.25 - 1.0, _BESSEL_NEAR[order])
        if order:
            near = near * size
        far = _chebyshev(16.0 / size - 1.0, _BESSEL_FAR[order]) / size.sqrt()
        found = _either(size.is_("le", 8.0), near, far)
        if not scaled:
            found = found * size.exp()
        return _either(x.is_("lt", 0.0), -1.0 * found, found).value if order else found.value

    return function


lowering("i0")(lambda call, x: _wide(call, x, bessel(0, scaled=False)))
lowering("special_i0e")(lambda call, x: _wide(call, x, bessel(0, scaled=True)))
lowering("special_i1")(lambda call, x: _wide(call, x, bessel(1, scaled=False)))
lowering("special_i1e")(lambda call, x: _wide(call, x, bessel(1, scaled=True)))
