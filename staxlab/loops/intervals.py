"""Interval analysis (Section 6.8, Definition 6.4): what values a whole number of a loop body can have.

Before it makes code, a compiler asks questions about ranges. Is a subscript that comes from data certain to lie in
``[0, s)``, so that neither negative ones have to be turned round nor out-of-range ones noticed? Is the largest address
below 2**31, so that 32 bits suffice? :class:`Intervals` answers by running a compute function or a body on intervals
instead of numbers, which is abstract interpretation (Cousot and Cousot, 1977). A loop index is ``[0, s - 1]``, a
constant itself, what is read from memory anything its dtype holds; operations map intervals to intervals.

The answers are one-sided (Proposition 6.4): every value lies in its interval, but not every number of an interval need
occur. So a check goes where the interval is narrow enough, and stays where it is not, which costs time and never a
value. Machine integers wrap around: an operation whose result might not fit its dtype yields all of the dtype.

:func:`remarks` puts it beside a listing: the interval of each statement, and which checks went or stayed, and why.
Example 6.3 is the case in point.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import reduce
from typing import Any

import torch

from ..provenance import Origins
from .body import LoopBody, Statement, _Recorder, record
from .expressions import INFINITY, Bound, Expr, Interval, Symbol
from .ir import ComputedBuffer
from .ops import Ops, compute_dtype, result_dtype

BOOL = Interval(0, 1)
NARROW = 2**31 - 1  # the largest subscript of 32 bits


@dataclass(frozen=True)
class Ranged:
    """An abstract value: its interval, None where the analysis says nothing (floating point), and its dtype."""

    interval: Interval | None
    dtype: torch.dtype


def limits(dtype: torch.dtype) -> Interval | None:
    """All that a dtype holds; None for floating point."""
    if dtype == torch.bool:
        return BOOL
    if dtype.is_floating_point or dtype.is_complex:
        return None
    info = torch.iinfo(dtype)
    return Interval(info.min, info.max)


def fitted(interval: Interval, dtype: torch.dtype) -> Interval | None:
    """The interval, or all of the dtype where a machine number might have wrapped around."""
    whole = limits(dtype)
    return interval if whole is None or interval.within(whole.lower, whole.upper) else whole


def hull(one: Interval, other: Interval) -> Interval:
    """The least interval that contains both."""
    return Interval(min(one.lower, other.lower), max(one.upper, other.upper))


def interval_text(interval: Interval, dtype: torch.dtype | None = None) -> str:
    """As Definition 6.4 writes it: a side on which a 64-bit number is not limited is infinite."""
    ends = []
    wide = limits(torch.int64)
    for end, sign, extreme in ((interval.lower, "-", wide.lower), (interval.upper, "+", wide.upper)):
        ends.append(f"{sign}inf" if math.isinf(end) or end == extreme else f"{end:,}".replace(",", ""))
    return f"[{ends[0]}, {ends[1]}]"


class Intervals(Ops):
    """The interpretation whose values are :class:`Ranged`. ``dtypes`` maps buffer names to stored dtypes."""

    def __init__(self, dtypes: Mapping[str, torch.dtype]):
        self.dtypes = dtypes
        self._made: dict[Any, Any] = {}
        self._fresh = 0

    def load(self, buffer: str, index: Expr) -> Ranged:
        return Ranged(limits(self.dtypes[buffer]), compute_dtype(self.dtypes[buffer]))

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> Ranged:
        exact = None if dtype.is_floating_point else Interval(int(value), int(value))
        return Ranged(exact and fitted(exact, dtype), compute_dtype(dtype))

    def index_value(self, expression: Expr, dtype: torch.dtype) -> Ranged:
        exact = None if dtype.is_floating_point else fitted(Expr.of(expression).bounds(), dtype)
        return Ranged(exact, compute_dtype(dtype))

    def to_dtype(self, value: Ranged, dtype: torch.dtype) -> Ranged:
        interval = limits(dtype)
        if interval is not None and value.interval is not None:
            if dtype != torch.bool:
                interval = fitted(value.interval, dtype)
            elif value.interval.lower > 0 or value.interval.upper < 0:
                interval = Interval(1, 1)
            elif value.interval == Interval(0, 0):
                interval = value.interval
        return Ranged(interval, compute_dtype(dtype))

    def masked(self, condition: Ranged, body: Callable[[Ops], Any], other: bool | int | float) -> Ranged:
        inner = body(self)
        if inner.interval is None:
            return inner
        outside = Interval(int(other), int(other))
        if condition.interval == Interval(1, 1):
            return inner
        return Ranged(hull(inner.interval, outside), inner.dtype)

    def merged(self, dtype: torch.dtype) -> Ranged:
        return Ranged(limits(dtype), dtype)

    def indirect(self, value: Ranged, size: Expr, *, check: bool | None = True) -> Expr:
        extent = Expr.of(size).bounds().upper
        found = value.interval or Interval(-INFINITY, INFINITY)
        lower, upper = 0, extent - 1
        if found.lower >= 0:
            lower, upper = found.lower, min(upper, found.upper)
        elif found.upper < 0:
            lower, upper = max(lower, found.lower + extent), found.upper + extent
        self._fresh += 1
        # An interval without a number in it: the subscript is out of range whenever it is reached.
        lower, upper = (lower, upper) if lower <= upper else (0, extent - 1)
        return Expr.of(Symbol(f"indirect{self._fresh - 1}", lower, upper))

    def apply(self, operation: str, *operands: Ranged) -> Ranged:
        dtype = result_dtype(operation, tuple(o.dtype for o in operands))
        whole = limits(dtype)
        parts = [o.interval for o in operands]
        if whole is None or any(part is None for part in parts):
            return Ranged(whole, dtype)
        found = _RULES.get(operation, lambda *_: None)(*parts)
        return Ranged(whole if found is None else fitted(found, dtype), dtype)

    def once(self, key: Any, compute: Callable[[Ops], Any]) -> Any:
        if key not in self._made:
            self._made[key] = compute(self)
        return self._made[key]

    def dtype_of(self, value: Ranged) -> torch.dtype:
        return value.dtype

    def tagged(self, origins: Origins) -> Intervals:
        return self


# -- what operations do to intervals -----------------------------------------------------------------------------------


def _negated(a: Interval) -> Interval:
    return Interval(-a.upper, -a.lower)


def _absolute(a: Interval) -> Interval:
    ends = (abs(a.lower), abs(a.upper))
    return Interval(0 if a.lower <= 0 <= a.upper else min(ends), max(ends))


def _corners(function: Callable[[Bound, Bound], Bound], a: Interval, b: Interval) -> Interval:
    found = [function(x, y) for x in (a.lower, a.upper) for y in (b.lower, b.upper)]
    return Interval(min(found), max(found))


def _quotient(a: Interval, b: Interval) -> Interval | None:
    if b.lower <= 0 <= b.upper:
        return None
    return _corners(lambda x, y: x // y, a, b)


def _truncated(a: Interval, b: Interval) -> Interval | None:
    if b.lower <= 0 <= b.upper:
        return None
    return _corners(lambda x, y: abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1), a, b)


def _remainder(a: Interval, b: Interval) -> Interval | None:
    """The sign of the divisor: in ``[0, c - 1]`` for c > 0, and ``a`` itself where it is there already."""
    if b.lower > 0:
        return a if a.within(0, b.lower - 1) else Interval(0, b.upper - 1)
    return Interval(b.lower + 1, 0) if b.upper < 0 else None


def _fmod(a: Interval, b: Interval) -> Interval:
    """The sign of the dividend."""
    largest = max(abs(b.lower), abs(b.upper)) - 1
    return Interval(max(a.lower, -largest) if a.lower < 0 else 0, min(a.upper, largest) if a.upper > 0 else 0)


def _certain(holds: bool, fails: bool) -> Interval:
    return Interval(1, 1) if holds else Interval(0, 0) if fails else BOOL


def _equal(a: Interval, b: Interval) -> Interval:
    return _certain(a == b and a.lower == a.upper, a.upper < b.lower or b.upper < a.lower)


def _less(a: Interval, b: Interval) -> Interval:
    return _certain(a.upper < b.lower, a.lower >= b.upper)


def _not(a: Interval) -> Interval:
    return Interval(1 - a.upper, 1 - a.lower)


def _chosen(condition: Interval, a: Interval, b: Interval) -> Interval:
    return hull(a, b) if condition == BOOL else a if condition.lower else b


def _bits(a: Interval, b: Interval) -> Interval | None:
    """A result whose bits are among those of either operand."""
    if a.lower < 0 or b.lower < 0:
        return None
    return Interval(0, (1 << max(int(a.upper), int(b.upper)).bit_length()) - 1)


def _both_bits(a: Interval, b: Interval) -> Interval | None:
    ends = [x.upper for x in (a, b) if x.lower >= 0]
    return Interval(0, min(ends)) if ends else None


def _shifted_right(a: Interval, b: Interval) -> Interval | None:
    if not b.within(0, 62):
        return None
    return _corners(lambda x, y: int(x) >> int(y), a, b)


def _shifted_left(a: Interval, b: Interval) -> Interval | None:
    if not b.within(0, 30):
        return None
    return _corners(lambda x, y: int(x) << int(y), a, b)


def _same(a: Interval) -> Interval:
    return a


def _largest(a: Interval, b: Interval) -> Interval:
    return Interval(max(a.lower, b.lower), max(a.upper, b.upper))


def _smallest(a: Interval, b: Interval) -> Interval:
    return Interval(min(a.lower, b.lower), min(a.upper, b.upper))


_RULES: dict[str, Callable[..., Interval | None]] = {
    "neg": _negated, "abs": _absolute, "floor": _same, "ceil": _same, "trunc": _same, "round": _same,
    "relu": lambda a: Interval(max(a.lower, 0), max(a.upper, 0)),
    "sign": lambda a: Interval((a.lower > 0) - (a.lower < 0), (a.upper > 0) - (a.upper < 0)),
    "square": lambda a: _absolute(a) * _absolute(a),
    "add": lambda a, b: a + b, "sub": lambda a, b: a + _negated(b), "mul": lambda a, b: a * b,
    "maximum": _largest, "minimum": _smallest, "fmax": _largest, "fmin": _smallest,
    "floordiv": _quotient, "truncdiv": _truncated, "remainder": _remainder, "fmod": _fmod,
    "eq": _equal, "ne": lambda a, b: _not(_equal(a, b)), "lt": _less, "gt": lambda a, b: _less(b, a),
    "ge": lambda a, b: _not(_less(a, b)), "le": lambda a, b: _not(_less(b, a)),
    "logical_not": _not, "logical_and": _smallest, "logical_or": _largest,
    "where": _chosen, "bitwise_and": _both_bits, "bitwise_or": _bits, "bitwise_xor": _bits,
    "bitwise_not": lambda a: Interval(-1 - a.upper, -1 - a.lower) if a != BOOL else None,
    "bitwise_right_shift": _shifted_right, "bitwise_left_shift": _shifted_left,
}  # fmt: skip


# -- beside a listing --------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Remarks:
    """What the analysis says about a buffer's loops. ``statements`` maps statement ids to remarks, ``subscripts`` is an
    interval with every subscript in it, ``about`` a sentence on checks and width, ``last`` a remark on where results
    go, ``epilogue`` those on a template's last statements. ``kept`` and ``removed`` count the checks of subscripts that
    come from data, or look as if they did."""

    statements: Mapping[int, str]
    subscripts: Interval
    about: str
    kept: int
    removed: int
    last: str = ""
    epilogue: Mapping[int, str] = field(default_factory=dict)


class _Witness(_Recorder):
    """Records a body, and which of its subscripts needed no check because of a proof."""

    def __init__(self, dtypes: Mapping[str, torch.dtype]):
        super().__init__(dtypes)
        self.proofs: dict[int, list[tuple[Expr, int]]] = {}
        self.pending: list[tuple[Expr, int]] = []

    def tagged(self, origins: Origins) -> _Witness:
        twin = object.__new__(_Witness)
        twin.__dict__ = dict(self.__dict__)
        twin.origins = origins
        return twin

    def proved(self, subscript: Expr, size: int) -> Expr:
        self.pending.append((subscript, size))
        return subscript

    def load(self, buffer: str, index: Expr) -> Any:
        value = super().load(buffer, index)
        if self.pending:
            self.proofs.setdefault(value.id, []).extend(self.pending)
            self.pending.clear()
        return value


def remarks(buffer: ComputedBuffer, dtypes: Mapping[str, torch.dtype]) -> tuple[LoopBody, Remarks]:
    """A buffer's body, recorded anew, and what to say about its statements. One pass over the body."""
    witness = _Witness(dtypes)
    body = record(buffer, dtypes, witness)
    found, symbols = body.replay_statements(Intervals(dtypes))
    target = body.target and body.target.substitute(symbols)
    notes = _Notes([_address(buffer, target)], removed=len(witness.pending))
    texts = notes.of(body, found, symbols, witness.proofs)
    after: Mapping[int, str] = {}
    if body.epilogue is not None:
        merged = Ranged(limits(buffer.data.accumulate_dtype), buffer.data.accumulate_dtype)
        after = notes.of(body.epilogue, *body.epilogue.replay_statements(Intervals(dtypes), merged), {})
    everything = reduce(hull, notes.reach)
    last = "; ".join(_proof_text(*proof) for proof in witness.pending)
    about = _about(everything, notes.kept, notes.removed)
    return body, Remarks(texts, everything, about, notes.kept, notes.removed, last, after)


@dataclass
class _Notes:
    """What is said of the statements of a body and of its epilogue, and the sums over both."""

    reach: list[Interval]
    kept: int = 0
    removed: int = 0

    def of(
        self, body: LoopBody, found: Mapping[int, Any], symbols: Mapping[Symbol, Expr],
        proofs: Mapping[int, list[tuple[Expr, int]]],
    ) -> dict[int, str]:  # fmt: skip
        """Remarks by statement id."""
        texts: dict[int, str] = {}
        for statement in body.all_statements():
            interval = getattr(found.get(statement.id), "interval", None)
            if statement.operation == "load":
                within = statement.args[1].substitute(symbols).bounds()
                proved = proofs.get(statement.id, ())
                self.reach.append(within)
                self.removed += len(proved)
                parts = [f"subscript {interval_text(within)}", *(_proof_text(*proof) for proof in proved)]
                parts += [f"value {interval_text(interval)}"] if interval is not None else []
                texts[statement.id] = "; ".join(dict.fromkeys(parts))
            elif statement.operation == "indirect":
                texts[statement.id], fate = _indirect_text(statement, found[statement.args[0]])
                self.kept, self.removed = self.kept + (fate == "kept"), self.removed + (fate == "removed")
            elif interval is not None and statement.operation != "constant":
                texts[statement.id] = interval_text(interval)
        return texts


def _address(buffer: ComputedBuffer, target: Expr | None) -> Interval:
    """Where a buffer's elements are stored: at ``target``, or all over its storage."""
    return target.bounds() if target is not None else Interval(0, max(buffer.layout.storage_elements - 1, 0))


def _proof_text(expression: Expr, size: int) -> str:
    return f"index {interval_text(expression.bounds())} within [0, {size - 1}]: no fix-up, no check"


def _indirect_text(statement: Statement, value: Ranged) -> tuple[str, str]:
    """The remark on a subscript read at run time, and what became of its check."""
    _, size, check, _ = statement.args
    inside = f"[0, {int(size) - 1}]" if size.is_constant else f"[0, {size} - 1]"
    interval = value.interval
    shown = interval_text(interval) if interval is not None else "unknown"
    if check:
        return f"{shown} not within {inside}: fix-up and check kept", "kept"
    if check is None:
        return f"{shown} within {inside}: no fix-up, no check", "removed"
    return f"{shown}: the operator vouches for it, no check", ""


def _about(subscripts: Interval, kept: int, removed: int) -> str:
    largest = max(abs(subscripts.lower), abs(subscripts.upper))
    width = f"subscripts reach {largest:,}: 32 bits {'suffice' if largest <= NARROW else 'do not suffice'}"
    counted = [f"{number} {what}" for number, what in ((removed, "removed"), (kept, "kept")) if number]
    return width + (f"; checks: {', '.join(counted)}" if counted else "")


def within_size(value: Any, size: int) -> bool:
    """Whether a :class:`Ranged` is certain to be a subscript of a dimension of ``size`` elements, in [0, size)."""
    return isinstance(value, Ranged) and value.interval is not None and value.interval.within(0, size - 1)


__all__ = ["Intervals", "Ranged", "Remarks", "hull", "interval_text", "limits", "remarks", "within_size"]
