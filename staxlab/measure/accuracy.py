"""How far elementwise functions are from the truth: every exponent, both signs, hard arguments (Section 8.1).

A vector library promises a bound, one unit in the last place for instance; what a compiler makes of its functions,
with wrappers, masked tails, formulas of several functions, and on every instruction set, is another matter. Here it is
measured, for single functions and for composed ones (:mod:`.accuracy_functions`), on generated kernels and on PyTorch's
own operators alike.

Testing all 2^32 arguments of one function in 200-bit arithmetic would take a day. Arguments are therefore chosen in
three ways, and all that are kept are compared with values of ``BITS`` bits by mpmath:

* *a grid*: from every binade, subnormal ones included, and of both signs: the power of two, its neighbour below the
  next one, and random mantissas,
* *a sieve*: many more random mantissas per binade, judged by the operator's own float64 value; where that says a way of
  computing is worst, the argument is kept. A sieve that errs can miss something, but never report something false,
* *hard arguments*: the neighbours of roots, poles and the ends of the format; for the trigonometric functions the
  numbers of every binade that are closest to multiples of pi/2, found by continued fractions (Kahan, 1983, "Minimizing
  q*m - n"), where argument reduction loses most.

The unit is the distance of the numbers around the exact value, 2^-149 among the subnormal ones of float32 (Muller et
al., 2018, "Handbook of Floating-Point Arithmetic", Section 2.3). Beyond the largest number, infinity counts as the
next one.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from ..errors import OptionError
from .accuracy_arguments import BITS, binades, hard_arguments, mpmath_context, sample, scaled
from .accuracy_functions import BOUND, COMPOSED, PAIRS, SINGLE, Function
from .identities import one_thread
from .tables import Table, Tabular
from .transcendental import ulps_text

FUNCTIONS = (*SINGLE, *PAIRS, *COMPOSED)
BY_NAME = {function.name: function for function in FUNCTIONS}
GRID = 4  # arguments of each binade and sign that are always compared
MANTISSAS = 64  # of each binade and sign that go through the sieve at a time
CURVE_STEP = {torch.float32: 1, torch.float64: 32}  # exponents told apart
DIGITS = {torch.float32: 9, torch.float64: 17}  # that identify a number
SPECIAL = (0.0, -0.0, math.inf, -math.inf, math.nan)
ORDINARY = (1.0, -1.0, 0.5, 2.0, -3.0, 2.5, 1e30, -1e-30)

Way = Callable[..., torch.Tensor]


# --- Exact values ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExactValues:
    """Values as sums of two float64 numbers (``high`` the rounded one; NaN where there is none), and the size in whose
    units errors are counted."""

    high: torch.Tensor
    low: torch.Tensor
    size: torch.Tensor


def exact_values(function: Function, operands: Sequence[torch.Tensor]) -> ExactValues:
    """The function at each argument, to ``BITS`` bits. MissingDependencyError without mpmath.

    20 to 500 microseconds for each argument.
    """
    context = mpmath_context()
    rows = []
    for numbers in zip(*(operand.double().tolist() for operand in operands), strict=True):
        given = [context.mpf(number) for number in numbers]
        value = function.exact(context, *given)
        if value is None:
            rows.append((math.nan, 0.0, 0.0))
            continue
        high = _double(value)
        low = _double(value - high) if math.isfinite(high) else 0.0
        size = abs(high) if function.scale is None else max(abs(high), _double(function.scale(context, *given)))
        rows.append((high, low, size))
    return ExactValues(*torch.tensor(rows, dtype=torch.float64).reshape(-1, 3).unbind(1))


def _double(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def unit(size: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The distance of the numbers of ``dtype`` around a float64 size, at most that of the largest numbers."""
    info = torch.finfo(dtype)
    digits = 1 - math.frexp(info.eps)[1]
    _, exponent = torch.frexp(size.clamp_max(info.max))
    lowest = math.frexp(info.smallest_normal)[1]
    exponent = torch.where(size == 0, lowest, exponent).clamp_min(lowest)
    return scaled(torch.ones_like(size), exponent - 1 - digits)


def errors(computed: torch.Tensor, exact: ExactValues) -> tuple[torch.Tensor, torch.Tensor]:
    """How far off numbers are: in units of the size that counts, and in units of the value itself. Infinite where NaN
    stands for a number or a number for NaN."""
    dtype = computed.dtype
    most = torch.finfo(dtype).max
    # What rounds to infinity is at least half a unit above the largest number.
    beyond = exact.high.abs() - most >= unit(exact.high.abs(), dtype) / 2
    one_is_infinite = (computed.isinf() ^ beyond) | (computed.isinf() & beyond & ((computed > 0) ^ (exact.high > 0)))
    found = computed.double().clamp(-most, most)
    away = ((found - exact.high.clamp(-most, most)) - torch.where(exact.high.abs() <= most, exact.low, 0.0)).abs()
    wrong = computed.isnan() ^ exact.high.isnan()
    both = []
    for size in (exact.size, exact.high.abs()):
        off = away / unit(size, dtype) + one_is_infinite.double()
        off = torch.where(computed.isnan() & exact.high.isnan(), 0.0, off)
        both.append(torch.where(wrong, math.inf, off))
    return both[0], both[1]


# --- Records ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """What one way of computing a function is off by. ``worst`` units at the operands ``at``, where ``computed`` came
    out instead of ``exact``; ``plain`` is the largest error in units of the result itself, which differs for a function
    with a scale of its own. ``curve``: the exponent of the first operand, the largest error there, and its operands.
    ``wrong`` are special values that are not the prescribed ones. Exponents of float64 stand for 32 each."""

    worst: float
    at: tuple[float, ...]
    computed: float
    exact: float
    plain: float
    curve: tuple[tuple[int, float, tuple[float, ...]], ...]
    wrong: tuple[str, ...] = ()

    def text(self) -> str:
        """``0.907 at -6.547``."""
        place = ", ".join(f"{number:.4g}" for number in self.at)
        return f"{ulps_text(self.worst)} at {place}" if self.worst else "0"


@dataclass(frozen=True)
class FunctionAccuracy(Tabular):
    """A function, its bound in units in the last place, of what (``why`` is empty for those of the result), and what
    each way of computing it was off by, among ``points`` arguments compared with exact values."""

    name: str
    dtype: str
    bound: float
    points: int
    ways: dict[str, Measured]
    why: str = ""

    def __getitem__(self, way: str) -> Measured:
        """KeyError for a way that was not measured."""
        return self.ways[way]

    def within(self, way: str) -> bool:
        """Whether a way keeps the bound, and every special value."""
        return self.ways[way].worst <= self.bound and not self.ways[way].wrong

    @property
    def generated(self) -> list[str]:
        """The ways other than PyTorch's own."""
        return [way for way in self.ways if way != "eager"]

    def curve(self, ways: Sequence[str] | None = None) -> dict[int, float]:
        """The largest error for each exponent of the first operand, of some ways (default: all generated ones)."""
        found: dict[int, float] = {}
        for way in self.generated if ways is None else ways:
            for exponent, error, _ in self.ways[way].curve:
                found[exponent] = max(found.get(exponent, 0.0), error)
        return found

    def table(self) -> Table:
        rows = []
        for way, found in self.ways.items():
            at = ", ".join(f"{number:.9g}" for number in found.at)
            rows.append((way, ulps_text(found.worst), at, f"{found.computed:.9g}", f"{found.exact:.12g}",
                         ulps_text(found.plain), "; ".join(found.wrong[:3]) or "as prescribed"))  # fmt: skip
        notes = [self.why, f"{self.points:,} arguments compared with {BITS}-bit values"]
        columns = ("way", "largest error (ulp)", "at", "computed", "exact", "of the result (ulp)", "special values")
        caption = f"Errors of {self.name}, {self.dtype}: bound {self.bound:g} ulp"
        return Table.build(caption, columns, rows, notes)


@dataclass(frozen=True)
class Accuracy(Tabular):
    """The errors of elementwise functions over all exponents, eager and generated side by side. ``machine`` says where,
    if that is recorded."""

    entries: tuple[FunctionAccuracy, ...]
    machine: str = ""

    def __getitem__(self, name: str) -> FunctionAccuracy:
        """KeyError for a function that was not measured."""
        for entry in self.entries:
            if entry.name == name:
                return entry
        raise KeyError(name)

    @property
    def beyond(self) -> list[tuple[FunctionAccuracy, str]]:
        """Entries and generated ways that do not keep the bound."""
        return [(entry, way) for entry in self.entries for way in entry.generated if not entry.within(way)]

    def table(self) -> Table:
        ways = list(dict.fromkeys(way for entry in self.entries for way in entry.ways))
        rows = []
        for entry in self.entries:
            said = []
            for way in ways:
                found = entry.ways.get(way)
                mark = "" if found is None or way == "eager" or entry.within(way) else "  (!)"
                said.append("" if found is None else found.text() + mark)
            rows.append((entry.name, f"{entry.bound:.3g}" + ("*" if entry.why else ""), *said))
        dtype = self.entries[0].dtype if self.entries else "float32"
        notes = [
            f"largest error over every exponent and both signs, at arguments compared with {BITS}-bit values"
            f"{self.machine}; 0.5: correctly rounded; (!): not within the bound",
            *(f"* {entry.name}: {entry.why}" + _in_its_own_units(entry) for entry in self.entries if entry.why),
            *(f"(!) {entry.name}, {way}: {_what_is_wrong(entry, way)}" for entry, way in self.beyond),
            *(f"PyTorch's {entry.name}: {'; '.join(entry['eager'].wrong[:3])}"
              for entry in self.entries if "eager" in entry.ways and entry["eager"].wrong),
        ]  # fmt: skip
        columns = ("function", "bound (ulp)", *(f"{way} (ulp)" for way in ways))
        return Table.build(f"Errors of {dtype} functions in units in the last place", columns, rows, notes)

    def to_json(self) -> dict[str, Any]:
        """Plain data; infinite and undefined numbers as text, which JSON lacks. Curves are columns (exponents, errors,
        and operands where the error is a unit or more), or the name of a way before that has the same."""
        rows = [asdict(entry) for entry in self.entries]
        for row in rows:
            seen: dict[Any, str] = {}
            for way, found in row["ways"].items():
                curve, same = found["curve"], seen.setdefault(found["curve"], way)
                found["curve"] = same if same != way else _columns(curve)
        return _plain({"entries": rows})

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Accuracy:
        """The record of :meth:`to_json`, with the machine if the data say which."""
        entries = []
        for row in data["entries"]:
            curves = {way: found["curve"] for way, found in row["ways"].items()}
            curves = {way: curves[curve] if isinstance(curve, str) else curve for way, curve in curves.items()}
            ways = {
                way: Measured(
                    float(found["worst"]), _numbers(found["at"]), float(found["computed"]), float(found["exact"]),
                    float(found["plain"]),
                    tuple((int(e), float(o), _numbers(a or ())) for e, o, a in zip(*curves[way], strict=True)),
                    tuple(found["wrong"]),
                )
                for way, found in row["ways"].items()
            }  # fmt: skip
            entries.append(FunctionAccuracy(**{**row, "bound": float(row["bound"]), "ways": ways}))
        machine = f" on {data['machine']['processor']}" if "machine" in data else ""
        return cls(tuple(entries), machine)


def _in_its_own_units(entry: FunctionAccuracy) -> str:
    plain = {way: found.plain for way, found in entry.ways.items() if found.plain > found.worst}
    return "; of the result itself: " + ", ".join(f"{w} {ulps_text(p)}" for w, p in plain.items()) if plain else ""


def _what_is_wrong(entry: FunctionAccuracy, way: str) -> str:
    found = entry[way]
    said = list(found.wrong[:3])
    if found.worst > entry.bound:
        said.insert(0, f"{found.computed:.9g} instead of {found.exact:.9g}")
    return "; ".join(said)


def _columns(curve: Sequence[tuple[int, float, tuple[float, ...]]]) -> list[list[Any]]:
    exponents, errors, operands = (list(column) for column in zip(*curve, strict=True))
    return [exponents, errors, [at if error >= 1 else 0 for error, at in zip(errors, operands, strict=True)]]


def _numbers(values: Sequence[Any]) -> tuple[float, ...]:
    return tuple(float(value) for value in values)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def load(path: str | Path, dtype: torch.dtype = torch.float32) -> Accuracy:
    """A record that ``python -m benchmarks.accuracy --out`` wrote: that of one dtype."""
    data = json.loads(Path(path).read_text(encoding="utf-8"))
    kind = str(dtype).removeprefix("torch.")
    return Accuracy.from_json({**data, "entries": [row for row in data["entries"] if row["dtype"] == kind]})


# --- Measuring -------------------------------------------------------------------------------------------------------


class _Padded:
    """A way of computing, always called with tensors of one length: a compiled function is compiled once. The length
    is no multiple of a vector's, so that the tail of a kernel is measured, too."""

    def __init__(self, way: Way, length: int):
        self.way, self.length = way, length

    def __call__(self, *operands: torch.Tensor) -> torch.Tensor:
        parts = []
        for chunk in zip(*(operand.split(self.length) for operand in operands), strict=True):
            count = len(chunk[0])
            full = [torch.cat([part, part.new_ones(self.length - count)]) for part in chunk]
            parts.append(self.way(*full)[:count])
        return torch.cat(parts)


def measure(
    function: Function,
    ways: Mapping[str, Way],
    *,
    dtype: torch.dtype = torch.float32,
    mantissas: int = MANTISSAS,
    rounds: int = 1,
    grid: int = GRID,
    seed: int = 0,
) -> FunctionAccuracy:
    """The errors of each of ``ways`` of computing a function: callables of one or two tensors of shape (n,).

    Per binade and sign, ``grid`` arguments are compared in any case, and the worst of ``rounds * mantissas`` for each
    way (float32 only). 0.1 to 5 seconds. MissingDependencyError without mpmath.
    """
    random = torch.Generator().manual_seed(seed)
    with one_thread(), torch.no_grad():
        first = sample(dtype, grid, random).reshape(-1)
        hard = hard_arguments(function, dtype)
        chosen = [torch.cat([first, *[hard] * (1 if function.arity == 1 else 8)])]
        if function.second is not None:
            chosen.append(function.second(chosen[0], random))
        length = 2 * len(binades(dtype)) * mantissas + 13
        padded = {name: _Padded(way, length) for name, way in ways.items()}
        kept = [tuple(chosen)]
        if dtype == torch.float32:
            kept += [_sieve(function, padded, mantissas, random) for _ in range(rounds)]
        operands = [torch.cat(parts) for parts in zip(*kept, strict=True)]
        inside = (operands[0] >= function.inside[0]) & (operands[0] <= function.inside[1])
        for operand in operands:
            inside &= operand.isfinite() & (operand != 0)
        for argument, _ in function.exactly:
            inside &= operands[0] != argument  # poles among them
        operands = [operand[inside] for operand in operands]
        exact = exact_values(function, operands)
        found = {name: _judge(operands, way(*operands), exact) for name, way in padded.items()}
        found = {
            name: Measured(**{**vars(one), "wrong": wrong_values(function, padded[name], dtype)})
            for name, one in found.items()
        }
    kind = str(dtype).removeprefix("torch.")
    own = dtype == torch.float64 and function.why_double
    bound, why = (math.inf, function.why_double) if own else (function.bound, function.why)
    return FunctionAccuracy(function.name, kind, bound, len(operands[0]), found, why)


def _sieve(
    function: Function, ways: Mapping[str, Way], mantissas: int, random: torch.Generator
) -> tuple[torch.Tensor, ...]:
    """For each way, the argument of every binade and sign where it is furthest from the operator in float64."""
    x = sample(torch.float32, mantissas, random)
    rows = len(x)
    operands = [x.reshape(-1)]
    if function.second is not None:
        operands.append(function.second(operands[0], random))
    wanted = function.operator(*(operand.double() for operand in operands))
    about = ExactValues(wanted, torch.zeros_like(wanted), wanted.abs())
    places = []
    for way in ways.values():
        _, off = errors(way(*operands), about)
        allowed = (operands[0] >= function.inside[0]) & (operands[0] <= function.inside[1])
        worst = torch.where(allowed, off, -1.0).reshape(rows, mantissas).argmax(1)
        places.append(torch.arange(rows) * mantissas + worst)
    place = torch.cat(places).unique()
    return tuple(operand[place] for operand in operands)


def _judge(operands: Sequence[torch.Tensor], computed: torch.Tensor, exact: ExactValues) -> Measured:
    off, plain = errors(computed, exact)
    place = int(off.argmax())
    together = CURVE_STEP[computed.dtype]
    exponents = torch.div(torch.frexp(operands[0])[1] - 1, together, rounding_mode="floor") * together
    order = torch.argsort(off, descending=True)
    order = order[torch.argsort(exponents[order], stable=True)]
    curve = []
    for exponent, group in itertools.groupby(order.tolist(), key=exponents.tolist().__getitem__):
        worst = next(group)
        at = tuple(float(f"{float(operand[worst]):.{DIGITS[operand.dtype]}g}") for operand in operands)
        curve.append((exponent, float(f"{float(off[worst]):.3g}"), at))
    at = tuple(float(operand[place]) for operand in operands)
    values = (float(off[place]), at, float(computed[place]), float(exact.high[place]), float(plain.max()))
    return Measured(*values, tuple(curve))


def wrong_values(function: Function, way: Way, dtype: torch.dtype = torch.float32) -> tuple[str, ...]:
    """Special values that a way of computing does not give: ``sinh(-0) = 0, not -0``. Zeros, infinities and NaN must be
    the very same, other values within the bound."""
    cases: list[tuple[tuple[float, ...], float]] = []
    if function.special:
        if function.arity == 1:
            cases = [((a,), function.at_special(a)) for a in SPECIAL]
        else:
            pairs = itertools.product((*SPECIAL, *ORDINARY), repeat=2)
            cases = [(pair, function.at_special(*pair)) for pair in pairs if not all(map(_ordinary, pair))]
    cases += [((argument,), value) for argument, value in function.exactly]
    if not cases:
        return ()
    computed = way(*(torch.tensor(column, dtype=dtype) for column in zip(*(at for at, _ in cases), strict=True)))
    found = []
    for (at, value), result in zip(cases, computed.tolist(), strict=True):
        if not _same(result, value, dtype):
            given = ", ".join(f"{number:g}" for number in at)
            found.append(f"{function.name}({given}) = {result:g}, not {value:g}")
    return tuple(found)


def _ordinary(number: float) -> bool:
    return number != 0 and math.isfinite(number)


def _same(result: float, value: float, dtype: torch.dtype) -> bool:
    if math.isnan(value) or math.isnan(result):
        return math.isnan(value) and math.isnan(result)
    if value == 0 or math.isinf(value) or not math.isfinite(result):
        return result == value and math.copysign(1, result) == math.copysign(1, value)
    size = torch.tensor(abs(value), dtype=torch.float64)
    return abs(result - value) <= BOUND * float(unit(size, dtype))


def accuracy(
    ways_of: Callable[[Function], Mapping[str, Way]],
    names: Sequence[str] | None = None,
    tell: Callable[[str], None] | None = None,
    **options: Any,
) -> Accuracy:
    """The errors of all functions, or of those named. ``ways_of`` gives the ways to measure for a function, ``tell`` is
    given each name before, ``options`` are those of :func:`measure`. OptionError for an unknown name."""
    if unknown := set(names or ()) - set(BY_NAME):
        raise OptionError(
            f"no such function: {', '.join(sorted(unknown))}", remedy=f"choose of {', '.join(BY_NAME)}"
        )  # fmt: skip
    entries = []
    for function in FUNCTIONS:
        if names is None or function.name in names:
            if tell:
                tell(function.name)
            entries.append(measure(function, ways_of(function), **options))
    return Accuracy(tuple(entries))


def compiled_ways(function: Function, compile: Callable[..., Any], instruction_sets: Sequence[str]) -> dict[str, Way]:
    """The operator itself ("eager"), and compiled for each instruction set by ``compile(function, options=...)``."""

    def own() -> Way:
        if function.arity == 1:
            return lambda a: function.operator(a)
        return lambda a, b: function.operator(a, b)

    compiled = {name: compile(own(), options={"instruction_set": name}) for name in instruction_sets}
    return {"eager": function.operator, **compiled}
