"""What a correct kernel may compute: the reference semantics with an enclosure around every value (Sections 6.5, 6.9).

Two correct implementations of a loop body differ in one place only: elementary functions. Addition, multiplication,
division, conversions and comparisons have one right result (IEEE 754, 2019), while ``exp`` of one library is off by
half a unit in the last place where that of another is not. :class:`EnclosingEvaluator` therefore evaluates a body to
the value of the reference semantics *and* to the least and the greatest number that an implementation with such
functions can arrive at. It is interval arithmetic (Moore, 1966, "Interval Analysis") in which only elementary functions
widen an interval: everything else maps the ends with the very rounding the kernel has, so that an interval of one
number stays one, and a body without elementary functions has to be matched bit for bit. How much a deviation grows on
its way through the body, by cancellation or by a steep function, comes out by itself: that is the condition of the
computation.

:data:`ULPS` states how far apart two results of one elementary function may be. What is *special* is exempt: NaN,
infinities and zeros as operands must give the very same result, sign included.

An element is *free* where the semantics leaves the value open (a conversion of a number that does not fit, a shift by
more than the width) or where the enclosure says nothing (a decision that hangs on the last bit). Nothing is checked
there; who uses this counts them.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from .body import LoopBody
from .expressions import Expr, Symbol
from .ops import OPERATIONS, compute_dtype
from .semantics import _FUNCTIONS, Evaluator, iteration_symbols

#: How far apart, in units in the last place, two implementations may be: each is within 1 unit of the true value
#: (SLEEF's "u10" functions, Intel's and the C library's), or within 1.5 ("u15") or 2 (the C library's tanh, erfc and
#: log10, formulas of several roundings such as sigmoid). PyTorch's vectorised square root is off by one, too.
ULPS: dict[str, int] = {name: 3 for name, rule in OPERATIONS.items() if rule.transcendental} | {
    "sqrt": 1, "rsqrt": 2, "hypot": 2, "erfc": 4, "sigmoid": 4, "pow": 4, "lgamma": 4,
}  # fmt: skip

#: Not a multiple of the result near its zeros: an error of this many units in the last place of 1 besides.
ABSOLUTE_ULPS = {"lgamma": 4}

#: SLEEF's functions overflow early: beyond these arguments one implementation may have infinity where another has a
#: number (sinh, cosh), or 0 where another has a subnormal one (a sigmoid that divides by 1 + exp(-x)).
DOMAIN = {torch.float32: 88.0, torch.float64: 709.0}

#: The same for lgamma, whose value is beyond half of the largest number from here on.
LGAMMA_DOMAIN = {torch.float32: 2.1e36, torch.float64: 1.3e305}

#: Functions that no library lets become negative.
_NOT_NEGATIVE = ("exp", "exp2", "cosh", "sigmoid", "erfc", "acosh", "acos", "hypot", "sqrt", "rsqrt")

_EVEN = ("abs", "square", "cosh", "hypot")
_DIVIDING = ("truediv", "reciprocal", "rsqrt", "floordiv", "truncdiv")
_LOOSE = ("nextafter", "fmod", "remainder", "bitwise_left_shift", "bitwise_right_shift")


class OutsideDomain(ArithmeticError):
    """The values violate what the body presupposes (a divisor of 0, an unchecked subscript out of range), so that
    neither the semantics nor a kernel is defined on them."""


@dataclass(frozen=True)
class Enclosure:
    """``value`` by the reference semantics, and all an implementation may have: ``lower`` to ``upper`` (None: the value
    itself), anything where ``free``. Tensors of one shape, or broadcastable to it."""

    value: torch.Tensor
    lower: torch.Tensor | None = None
    upper: torch.Tensor | None = None
    free: torch.Tensor | None = None

    @property
    def dtype(self) -> torch.dtype:
        return self.value.dtype

    @property
    def ends(self) -> tuple[torch.Tensor, ...]:
        return (self.value,) if self.lower is None or self.upper is None else (self.lower, self.upper)

    @property
    def low(self) -> torch.Tensor:
        return self.ends[0]

    @property
    def high(self) -> torch.Tensor:
        return self.ends[-1]

    @property
    def wide(self) -> torch.Tensor | None:
        """Where there is more than one number in it; None: nowhere."""
        return None if self.lower is None else self.lower != self.upper

    def map(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Enclosure:
        """A monotone increasing function (a conversion, a change of shape) of all parts; ``free`` keeps its dtype."""
        parts = [None if part is None else function(part) for part in (self.value, self.lower, self.upper)]
        return Enclosure(*parts, self.free)

    def reshaped(self, function: Callable[[torch.Tensor], torch.Tensor]) -> Enclosure:
        """The same change of shape for all parts."""
        shape = self.value.shape
        parts = [
            None if part is None else function(part.expand(shape))
            for part in (self.value, self.lower, self.upper, self.free)
        ]
        return Enclosure(*parts)


def either(*masks: torch.Tensor | None) -> torch.Tensor | None:
    """The union of masks, None standing for an empty one."""
    found = None
    for mask in masks:
        if mask is not None:
            found = mask if found is None else found | mask
    return found


def hull(value: torch.Tensor, corners: list[torch.Tensor], free: torch.Tensor | None) -> Enclosure:
    """From the results at all corners; one that is NaN where the value is not, or the reverse, leaves it free."""
    lower, upper = corners[0], corners[0]
    for corner in corners[1:]:
        if lower.dtype == torch.bool:
            lower, upper = lower & corner, upper | corner
        else:
            lower, upper = torch.minimum(lower, corner), torch.maximum(upper, corner)
    if value.dtype.is_floating_point:
        lower, upper = _signed_zeros(lower, upper, corners)
        some = torch.stack(torch.broadcast_tensors(*(corner.isnan() for corner in corners)))
        undefined = some.all(0) & value.isnan()
        free = either(free, (some.any(0) | value.isnan()) & ~undefined)
    return Enclosure(value, lower, upper, free)


def _signed_zeros(
    lower: torch.Tensor, upper: torch.Tensor, corners: list[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Ends that are zero, with the signs that zeros among the corners have: minimum and maximum do not order them."""
    zeros = torch.stack(torch.broadcast_tensors(*(corner.eq(0) for corner in corners)))
    signs = torch.stack(torch.broadcast_tensors(*(corner.signbit() for corner in corners)))
    zero = torch.zeros((), dtype=lower.dtype)
    least = torch.where((zeros & signs).any(0), -zero, zero)
    greatest = torch.where((zeros & ~signs).any(0), zero, -zero)
    return torch.where(lower == 0, least, lower), torch.where(upper == 0, greatest, upper)


def steps(number: torch.Tensor, count: int, *, up: bool) -> torch.Tensor:
    """The floating-point number ``count`` places above or below; infinities and NaN by ``nextafter``."""
    end = torch.full_like(number, math.inf if up else -math.inf)
    for _ in range(count):
        number = torch.nextafter(number, end)
    return number


class EnclosingEvaluator(Evaluator):
    """The evaluator whose values are :class:`Enclosure`, as those of some storages may be. Raises OutsideDomain where
    kernels are not defined."""

    def __init__(self, storages: Mapping[str, torch.Tensor | Enclosure], symbols: dict[str, torch.Tensor | int]):
        super().__init__(storages, symbols)
        self.loose: dict[str, torch.Tensor] = {}  # run-time subscripts that are not certain

    def load(self, buffer: str, index: Expr) -> Enclosure:
        stored = self.storages[buffer]
        if isinstance(stored, Enclosure):
            parts = (stored.value, stored.lower, stored.upper, stored.free)
            found = Enclosure(*(None if part is None else self.element(part, index) for part in parts))
        else:
            found = Enclosure(self.element(stored, index))
        for symbol in Expr.of(index).symbols:
            if symbol.name in self.loose:
                found = Enclosure(found.value, free=either(found.free, self.loose[symbol.name]))
        return found

    def constant(self, value: Any, dtype: torch.dtype) -> Enclosure:
        return Enclosure(super().constant(value, dtype))

    def index_value(self, expression: Expr, dtype: torch.dtype) -> Enclosure:
        return Enclosure(super().index_value(expression, dtype))

    def to_dtype(self, value: Enclosure, dtype: torch.dtype) -> Enclosure:
        found = value.map(lambda part: part.to(dtype).to(compute_dtype(dtype)))
        free = found.free
        if dtype == torch.bool and value.wide is not None:
            free = either(free, value.wide & (value.low <= 0) & (value.high >= 0))
        elif value.dtype.is_floating_point and not dtype.is_floating_point and dtype != torch.bool:
            limits = torch.iinfo(dtype)
            # PyTorch's own conversions of numbers that do not fit differ between its loops.
            for part in value.ends:
                whole = part.double()
                fits = (whole > max(limits.min, -(2.0**31)) - 1) & (whole < min(limits.max, 2.0**31 - 130))
                free = either(free, ~fits)
        return Enclosure(found.value, found.lower, found.upper, free)

    def masked(self, condition: Enclosure, body: Callable[[Any], Enclosure], other: Any) -> Enclosure:
        outer = self.condition
        self.condition = condition.value if outer is None else outer & condition.value
        inner = body(self)
        self.condition = outer
        default = torch.tensor(other, dtype=inner.dtype)
        free = None if inner.free is None else inner.free & condition.value
        found = inner.map(lambda part: torch.where(condition.value, part, default))
        return Enclosure(found.value, found.lower, found.upper, either(free, condition.free, condition.wide))

    def indirect(self, value: Enclosure, size: Expr, *, check: bool | None = True) -> Expr:
        try:
            expression = super().indirect(value.value, size, check=True)
        except IndexError as error:
            if check:
                raise
            raise OutsideDomain(str(error)) from error
        uncertain = either(value.free, value.wide)
        if uncertain is not None:
            (symbol,) = (s for s in expression.symbols if isinstance(s, Symbol))
            self.loose[symbol.name] = uncertain
        return expression

    def apply(self, operation: str, *operands: Enclosure) -> Enclosure:
        if operation == "where":
            return self._where(*operands)
        free = either(*(o.free for o in operands), self._undefined(operation, operands))
        function = _FUNCTIONS[operation]
        try:
            value = function(*(o.value for o in operands))
        except RuntimeError as error:
            raise OutsideDomain(f"{operation}: {error}") from error
        if all(o.lower is None for o in operands):
            found = Enclosure(value, free=free)
        else:
            found = self._inexact(operation, function, value, operands, free)
        if operation in ULPS and value.dtype.is_floating_point:
            found = self._widened(operation, found, operands)
        return found

    def _where(self, condition: Enclosure, one: Enclosure, other: Enclosure) -> Enclosure:
        value = torch.where(condition.value, one.value, other.value)
        free = condition.free
        if one.free is not None or other.free is not None:
            nowhere = torch.zeros((), dtype=torch.bool)
            parts = [nowhere if o.free is None else o.free for o in (one, other)]
            free = either(free, torch.where(condition.value, *parts))
        if one.lower is None and other.lower is None and condition.lower is None:
            return Enclosure(value, free=free)
        low = torch.where(condition.value, one.low, other.low)
        high = torch.where(condition.value, one.high, other.high)
        found = Enclosure(value, low, high, free)
        if condition.wide is None:
            return found
        both = hull(value, [one.low, one.high, other.low, other.high], either(one.free, other.free))
        wide = condition.wide
        return Enclosure(
            value, torch.where(wide, both.low, found.low), torch.where(wide, both.high, found.high),
            either(found.free, None if both.free is None else wide & both.free),
        )  # fmt: skip

    def _undefined(self, operation: str, operands: tuple[Enclosure, ...]) -> torch.Tensor | None:
        """Where an operation has no one result. Raises OutsideDomain where a processor would trap."""
        if len(operands) != 2:
            return None
        x, y = (o.value for o in operands)
        if operation in ("floordiv", "truncdiv", "remainder", "fmod"):
            if y.dtype.is_floating_point:
                # SLEEF's fmod has no subnormal divisors, and no quotients beyond the largest number.
                subnormal = (y != 0) & (y.abs() < torch.finfo(y.dtype).smallest_normal)
                return subnormal if operation == "truncdiv" else subnormal | ((x / y).isinf() & x.isfinite() & (y != 0))
            lowest = torch.iinfo(y.dtype).min
            if bool((y == 0).any()) or (lowest < 0 and bool(((x == lowest) & (y == -1)).any())):
                raise OutsideDomain(f"{operation} has a divisor of 0, or -1 for the least number")
        elif operation in ("bitwise_left_shift", "bitwise_right_shift") and y.dtype != torch.bool:
            return (y < 0) | (y >= torch.iinfo(y.dtype).bits)
        elif operation == "pow" and not y.dtype.is_floating_point and y.dtype != torch.bool:
            return y < 0
        return None

    def _inexact(
        self, operation: str, function: Callable[..., torch.Tensor], value: torch.Tensor,
        operands: tuple[Enclosure, ...], free: torch.Tensor | None,
    ) -> Enclosure:  # fmt: skip
        """The hull over operands of which some are intervals. Nearly every operation is monotone in each operand."""
        wide = either(*(o.wide for o in operands))
        first, last = operands[0], operands[-1]
        whole = not first.dtype.is_floating_point and first.dtype != torch.bool
        if operation in _LOOSE or (whole and OPERATIONS[operation].result == "same"
                                   and operation not in ("maximum", "minimum", "fmax", "fmin", "relu")):  # fmt: skip
            return Enclosure(value, free=either(free, wide))
        if operation in ("eq", "ne"):
            apart = (first.high < last.low) | (first.low > last.high)
            maybe = ~apart & wide if wide is not None else ~apart
            return Enclosure(value, value & ~maybe, value | maybe, free)
        if operation in ("sin", "cos"):
            width = first.high - first.low
            lower, upper = (value - width).clamp_min(-1), (value + width).clamp_max(1)
            return Enclosure(value, torch.where(width == 0, value, lower), torch.where(width == 0, value, upper),
                             either(free, width.isnan() & ~value.isnan(), width.isinf()))  # fmt: skip
        if operation in _EVEN or operation == "copysign":
            if operation == "copysign":
                free = either(free, _around_zero(last))
                operands = (_magnitude(first), last)
            else:
                operands = tuple(_magnitude(o) for o in operands)
        elif operation in _DIVIDING:
            free = either(free, _around_zero(last))
        elif operation == "pow":
            free = either(free, wide & (first.low <= 0) & (first.high >= 0))
            if last.wide is not None:
                free = either(free, last.wide & (first.low <= 0))
        elif operation == "atan2":
            free = either(free, wide & (last.low <= 0) & (first.low <= 0) & (first.high >= 0))
        elif operation == "lgamma":
            free = either(free, wide & (first.low <= 0))
        corners = [function(*corner) for corner in itertools.product(*(o.ends for o in operands))]
        if operation == "tan":
            free = either(free, wide & ~((first.high - first.low < 1) & (corners[0] <= corners[-1])))
        if operation == "lgamma":
            bottom = (first.low < 1.4617) & (first.high > 1.4616)
            corners.append(torch.where(bottom, torch.full_like(value, -0.1215), value))
        return hull(value, corners, free)

    def _widened(self, operation: str, found: Enclosure, operands: tuple[Enclosure, ...]) -> Enclosure:
        """Room for two libraries. Special operands have none: what they give must be equal."""
        special = found.value.isnan()
        for operand in operands:
            # Not every value at a special operand is one: acos(0), atan(inf) and atan2 are multiples of pi.
            one = torch.zeros_like(special)
            if operation not in ("atan", "atan2"):
                one = ~operand.value.isfinite()
            if operation not in ("acos", "atan2", "hypot"):
                one = one | (operand.value == 0)
            special = special | (one if operand.wide is None else one & ~operand.wide)
        special = special & ((found.low == found.high) | found.value.isnan())
        count = ULPS[operation]
        lower, upper = steps(found.low, count, up=False), steps(found.high, count, up=True)
        if operation in _NOT_NEGATIVE:
            lower = torch.where(lower < 0, torch.zeros_like(lower), lower)
        if operation in ABSOLUTE_ULPS:
            slack = ABSOLUTE_ULPS[operation] * torch.finfo(found.dtype).eps
            lower, upper = torch.minimum(lower, found.low - slack), torch.maximum(upper, found.high + slack)
        if operation in ("sinh", "cosh", "lgamma"):
            size = operands[0].value if operation == "lgamma" else operands[0].value.abs()
            early = (size > (LGAMMA_DOMAIN if operation == "lgamma" else DOMAIN)[found.dtype]) & ~special
            infinite = torch.full_like(upper, math.inf)
            number = torch.full_like(upper, torch.finfo(found.dtype).max / 8)
            upper = torch.where(early & (found.value > 0), infinite, upper)
            lower = torch.where(early & (found.value < 0), -infinite, lower)
            lower = torch.where(early & (found.value > 0), torch.minimum(lower, number), lower)
            upper = torch.where(early & (found.value < 0), torch.maximum(upper, -number), upper)
        if operation == "sigmoid":
            early = (operands[0].low < -DOMAIN[found.dtype]) & ~special
            tiny = torch.full_like(upper, torch.finfo(found.dtype).smallest_normal)
            lower = torch.where(early, torch.zeros_like(lower), lower)
            upper = torch.where(early, torch.maximum(upper, tiny), upper)
        return Enclosure(found.value, torch.where(special, found.low, lower), torch.where(special, found.high, upper),
                         found.free)  # fmt: skip


def _magnitude(enclosure: Enclosure) -> Enclosure:
    """The absolute value of an interval, which is not the hull of those of its ends where it has a zero inside."""
    one, other = enclosure.low.abs(), enclosure.high.abs()
    inside = (enclosure.low <= 0) & (enclosure.high >= 0)
    low = torch.where(inside, torch.zeros_like(one), torch.minimum(one, other))
    return Enclosure(enclosure.value.abs(), low, torch.maximum(one, other), enclosure.free)


def _around_zero(enclosure: Enclosure) -> torch.Tensor | None:
    """Where an interval of more than one number has a zero in it."""
    wide = enclosure.wide
    return None if wide is None else wide & (enclosure.low <= 0) & (enclosure.high >= 0)


def enclose_body(
    body: LoopBody, extents: tuple[int, ...], storages: Mapping[str, torch.Tensor], start: int = 0,
    stop: int | None = None,
) -> Enclosure:  # fmt: skip
    """The enclosures at every point of a box (kept loops first, then reduced ones), or of the part with the first index
    from ``start`` to ``stop``: tensors of that shape. As :func:`staxlab.loops.semantics.evaluate_body`.

    Raises IndexError for a checked subscript out of range, OutsideDomain where a kernel would not be defined.
    """
    symbols = iteration_symbols(body, extents, start, stop)
    return _everywhere(body.replay(EnclosingEvaluator(storages, symbols)), extents, start, stop)


def enclose_epilogue(
    body: LoopBody, extents: tuple[int, ...], storages: Mapping[str, torch.Tensor], merged: Enclosure, start: int = 0,
    stop: int | None = None,
) -> Enclosure:  # fmt: skip
    """As :func:`enclose_body` for the epilogue of a template, given the enclosures of what was ``merged``."""
    symbols = iteration_symbols(body, extents, start, stop)
    return _everywhere(body.replay(EnclosingEvaluator(storages, symbols), merged), extents, start, stop)


def _everywhere(found: Enclosure, extents: tuple[int, ...], start: int, stop: int | None) -> Enclosure:
    shape = extents if stop is None or not extents else (stop - start, *extents[1:])
    parts = [None if p is None else p.expand(shape) for p in (found.value, found.lower, found.upper, found.free)]
    return Enclosure(*parts)
