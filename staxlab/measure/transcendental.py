"""How accurate composite operators are, and what writing them out would cost (Section 4.4, Table 4.2), measured.

A formula that is right over the reals can lose every digit in floating-point arithmetic. ``log(1 + x)`` is the standard
example: the sum rounds ``x`` away before the logarithm sees it, an error of about ``u / x`` of the result. Whether an
operator may be written out is therefore a question of fact, and answered here: every operator of Table 4.2 is computed
in float32 three ways,

=========  ============================================================================================================
formula    what one would write down, evaluated operation by operation
eager      PyTorch's own operator
ours       what the compiler makes of it: the front end's graph, or with ``compile`` the generated kernel
=========  ============================================================================================================

and compared with the exact value, computed to 200 bits by mpmath. Errors are in *units in the last place*: the distance
between the two float32 numbers around the exact value (Goldberg, 1991, "What every computer scientist should know about
floating-point arithmetic"). A correctly rounded result is off by at most 0.5, one without any correct digit by 2^23 and
more. Where a result fails at the ends of the format, infinity or NaN for what is a number, or 0 for a subnormal one,
that is told apart from the largest error elsewhere.

Arguments are drawn with logarithmically even distance from the place where the operator is delicate (mostly 0), to both
sides. What is found is a lower bound of the largest error, at an argument that anyone can try.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from ..errors import MissingDependencyError, OptionError
from ..transform.decompose import EXPANSIONS, KEPT, SELU_ALPHA, SELU_SCALE
from ..transform.patterns import Expr, Var, apply
from .identities import evaluate, one_thread
from .tables import Table, Tabular

BITS = 200  # of the exact values: float32 has 24, and the worst of the functions below cancels 130
POINTS = 20_000
LARGEST = torch.finfo(torch.float32).max

x = Var("x")
exp, log, sqrt, erf, erfc = (lambda a, name=name: apply(name, a) for name in "exp log sqrt erf erfc".split())


@dataclass(frozen=True)
class Function:
    """A function of one number: PyTorch's ``operator``, its ``exact`` value (of mpmath's context and a number), and the
    ``formula`` that is measured beside it (None where there is no other than the operator's own).

    Arguments lie strictly inside ``domain``, at distances of 2^``span`` from ``near``.
    """

    name: str
    operator: Callable[[torch.Tensor], torch.Tensor]
    exact: Callable[[Any, Any], Any]
    formula: Expr | None = None
    span: tuple[int, int] = (-40, 7)
    near: float = 0.0
    domain: tuple[float, float] = (-math.inf, math.inf)


def _softplus(mp: Any, a: Any) -> Any:
    return mp.log1p(mp.exp(a))


def _clamped(mp: Any, a: Any) -> Any:
    return min(max(a + 3, mp.mpf(0)), mp.mpf(6)) / 6


FUNCTIONS: tuple[Function, ...] = (
    Function("log1p", torch.log1p, lambda mp, a: mp.log1p(a), log(x + 1), (-40, 24), 0.0, (-1.0, math.inf)),
    Function("expm1", torch.expm1, lambda mp, a: mp.expm1(a), exp(x) - 1),
    Function("sinh", torch.sinh, lambda mp, a: mp.sinh(a), (exp(x) - exp(-x)) / 2),
    Function("cosh", torch.cosh, lambda mp, a: mp.cosh(a), (exp(x) + exp(-x)) / 2),
    Function("tanh", torch.tanh, lambda mp, a: mp.tanh(a), (exp(x) - exp(-x)) / (exp(x) + exp(-x))),
    Function("asinh", torch.asinh, lambda mp, a: mp.asinh(a), log(x + sqrt(x * x + 1)), (-40, 70)),
    Function("acosh", torch.acosh, lambda mp, a: mp.acosh(a), log(x + sqrt(x * x - 1)), (-23, 70), 1.0,
             (1.0, math.inf)),
    Function("atanh", torch.atanh, lambda mp, a: mp.atanh(a), log((x + 1) / (1 - x)) / 2, (-40, 0), 0.0, (-1.0, 1.0)),
    Function("sigmoid", torch.sigmoid, lambda mp, a: 1 / (1 + mp.exp(-a)), 1 / (exp(-x) + 1)),
    Function("softplus", F.softplus, _softplus, log(exp(x) + 1), (-40, 8)),
    Function("logsigmoid", F.logsigmoid, lambda mp, a: -_softplus(mp, -a), log(1 / (exp(-x) + 1)), (-40, 8)),
    Function("logaddexp", lambda a: torch.logaddexp(a, -a), lambda mp, a: mp.log(2 * mp.cosh(a)),
             log(exp(x) + exp(-x)), (-40, 8)),
    Function("erf", torch.erf, lambda mp, a: mp.erf(a), 1 - erfc(x), (-40, 3)),
    Function("erfc", torch.erfc, lambda mp, a: mp.erfc(a), 1 - erf(x), (-40, 4)),
    Function("logit", torch.logit, lambda mp, a: mp.log(a / (1 - a)), log(x / (1 - x)), (-24, -1), 0.5, (0.0, 1.0)),
    Function("gelu", F.gelu, lambda mp, a: a * mp.erfc(-a / mp.sqrt(2)) / 2,
             x * (erf(x * math.sqrt(0.5)) + 1) / 2, (-40, 4)),
    Function("selu", F.selu, lambda mp, a: SELU_SCALE * (a if a > 0 else SELU_ALPHA * mp.expm1(a)),
             SELU_SCALE * apply("where", x > 0, x, SELU_ALPHA * (exp(x) - 1))),
    Function("elu", F.elu, lambda mp, a: a if a > 0 else mp.expm1(a), apply("where", x > 0, x, exp(x) - 1)),
    Function("leaky_relu", F.leaky_relu, lambda mp, a: a if a > 0 else mp.mpf(0.01) * a),
    Function("relu6", F.relu6, lambda mp, a: min(max(a, mp.mpf(0)), mp.mpf(6))),
    Function("hardsigmoid", F.hardsigmoid, _clamped, span=(-40, 3)),
    Function("hardswish", F.hardswish, lambda mp, a: a * _clamped(mp, a), span=(-40, 3)),
    Function("softsign", F.softsign, lambda mp, a: a / (1 + abs(a)), span=(-40, 24)),
    Function("tanhshrink", F.tanhshrink, lambda mp, a: a - mp.tanh(a)),
)  # fmt: skip
BY_NAME = {function.name: function for function in FUNCTIONS}
WAYS = ("formula", "eager", "ours")
HOPELESS = 1000.0  # units in the last place


# --- Numbers ----------------------------------------------------------------------------------------------------------


def arguments(function: Function, points: int = POINTS, seed: int = 0) -> torch.Tensor:
    """Float32 arguments, shape (at most ``points`` + the powers of two of the span), by distance from
    ``function.near``: every power of two, and random distances between. Deterministic."""
    random = torch.Generator().manual_seed(seed)
    low, high = function.span
    exponents = torch.rand(points, generator=random, dtype=torch.float64) * (high - low) + low
    exponents = torch.cat([torch.arange(low, high + 1, dtype=torch.float64), exponents])
    signs = torch.where(torch.rand(len(exponents), generator=random) < 0.5, -1.0, 1.0)
    found = (function.near + signs * exponents.exp2()).to(torch.float32).unique()
    inside = (found > function.domain[0]) & (found < function.domain[1]) & found.isfinite() & (found != function.near)
    found = found[inside]
    return found[(found.double() - function.near).abs().argsort(stable=True)].contiguous()


def exact_values(function: Function, at: torch.Tensor) -> torch.Tensor:
    """The function's value at each argument, computed to ``BITS`` bits and rounded once, to float64.

    MissingDependencyError without mpmath. Some 20 microseconds for each argument.
    """
    try:
        import mpmath
    except ImportError as error:
        raise MissingDependencyError("exact values need mpmath", remedy='pip install "staxlab[proof]"') from error
    context = mpmath.mp.clone()
    context.prec = BITS
    values = [_double(function.exact(context, context.mpf(value))) for value in at.tolist()]
    return torch.tensor(values, dtype=torch.float64)


def _double(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.copysign(math.inf, value)


def unit_in_the_last_place(exact: torch.Tensor) -> torch.Tensor:
    """The distance of the float32 numbers around each float64 value: 2^-149 among the subnormal ones."""
    _, exponent = torch.frexp(exact)
    return torch.ldexp(torch.ones_like(exact), exponent.clamp(min=-125) - 24)


def errors_in_ulps(computed: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """``|computed - exact|`` in units in the last place of ``exact``. Infinite where infinity or NaN was computed; 0
    where the exact value is beyond the largest float32 number, which is no test of anything."""
    off = (computed.double() - exact).abs() / unit_in_the_last_place(exact)
    off = torch.where(computed.isfinite(), off, math.inf)
    return torch.where(exact.abs() <= LARGEST, off, 0.0)


# --- Records ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Errors:
    """What one way of computing a function was off by: ``worst`` units in the last place at argument ``at``, where
    ``computed`` came out instead of ``exact``, among the results that are finite and whose exact value is a normal
    number. ``failure`` is the first argument, by distance from the delicate place, at which another result is off by
    more than ``HOPELESS``, with what was computed there; None if there is none. ``curve`` is the largest error in each
    octave of that distance: (distance, units), failures included."""

    worst: float
    at: float
    computed: float
    exact: float
    curve: tuple[tuple[float, float], ...]
    failure: tuple[float, float] | None = None

    def text(self, near: float = 0.0) -> str:
        """The largest error and where: ``0.53 at -0.185``, or ``2.1e+06 at 0.5-1e-07`` for a function that is delicate
        near 1/2. No place without an error."""
        text = f"{ulps_text(self.worst)} at {_place(self.at, near)}" if self.worst else "0"
        return text if self.failure is None else f"{text}; {self.failure[1]:g} from {_place(self.failure[0], near)} on"


def ulps_text(units: float) -> str:
    """``0.53``, ``1.7e+07``."""
    return f"{units:.2g}" if units < 100 else f"{units:.1e}"


def _place(number: float, near: float) -> str:
    away = number - near
    return f"{near:g}{away:+.2g}" if near and abs(away) < 0.1 else f"{number:.3g}"


@dataclass(frozen=True)
class Entry:
    """A row of Table 4.2. ``ways`` maps "formula", "eager" and "ours" to what was measured; it is empty for an operator
    that is no function of one number."""

    name: str
    treatment: str
    reason: str
    formula: str = ""
    near: float = 0.0
    points: int = 0
    ways: dict[str, Errors] | None = None

    def __getitem__(self, way: str) -> Errors:
        """KeyError for a way that was not measured."""
        return (self.ways or {})[way]

    def said(self, way: str) -> str:
        """What was measured, in words; nothing for a way that was not."""
        return self[way].text(self.near) if way in (self.ways or {}) else ""


@dataclass(frozen=True)
class TreatmentTable(Tabular):
    """Table 4.2, measured: composite operators, what becomes of them, and how accurate each way is. ``what`` says what
    "ours" stands for ("graph" or "kernel"), ``machine`` where it was measured, if that is recorded."""

    entries: tuple[Entry, ...]
    what: str = "graph"
    machine: str = ""

    def __getitem__(self, name: str) -> Entry:
        """KeyError for an operator that is not in the table."""
        for entry in self.entries:
            if entry.name == name:
                return entry
        raise KeyError(name)

    @property
    def measured(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in self.entries if entry.ways)

    def table(self) -> Table:
        rows = [(e.name, e.treatment, e.reason, e.formula, *(e.said(way) for way in WAYS)) for e in self.entries]
        columns = ("operator", "treatment", "why", "formula", "formula (ulp)", "eager (ulp)", "ours (ulp)")
        points = max((e.points for e in self.measured), default=0)
        ours = {"graph": "the front end's graph", "kernel": "the generated kernel"}[self.what]
        notes = (
            f"largest error of float32 results at some {points:,} arguments, against {BITS}-bit values, and where;"
            " 0.5: correctly rounded, 8e+06: no correct digit",
            "from ... on: where infinity or NaN is computed for a number, or 0 for a subnormal one",
            f"ours: {ours}; a row without formula has none but the operator's own{self.machine}",
        )
        return Table.build("Composite operators, written out or kept (Table 4.2)", columns, rows, notes, len(columns))

    def to_json(self) -> dict[str, Any]:
        """Plain data; infinite and undefined numbers as text, which JSON lacks."""
        return _plain({"what": self.what, "entries": [asdict(entry) for entry in self.entries]})

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> TreatmentTable:
        """The table of :meth:`to_json`, with the machine if the data say which."""
        entries = []
        for row in data["entries"]:
            ways = {
                way: Errors(
                    *(float(found[key]) for key in ("worst", "at", "computed", "exact")),
                    tuple((float(a), float(b)) for a, b in found["curve"]),
                    None if found["failure"] is None else (float(found["failure"][0]), float(found["failure"][1])),
                )
                for way, found in (row["ways"] or {}).items()
            }
            entries.append(Entry(**{**row, "ways": ways}))
        machine = f"; measured on {data['machine']['processor']}" if "machine" in data else ""
        return cls(tuple(entries), data["what"], machine)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def load(path: str | Path) -> TreatmentTable:
    """A table that ``python -m benchmarks.transcendental --out`` wrote."""
    return TreatmentTable.from_json(json.loads(Path(path).read_text(encoding="utf-8")))


# --- Measuring --------------------------------------------------------------------------------------------------------


def _worst(function: Function, at: torch.Tensor, computed: torch.Tensor, exact: torch.Tensor) -> Errors:
    off = errors_in_ulps(computed, exact)
    normal = computed.isfinite() & (exact.abs() >= torch.finfo(torch.float32).smallest_normal)
    place = int(torch.where(normal, off, -1.0).argmax())
    failing = (~normal & (off > HOPELESS)).nonzero().reshape(-1)
    failure = (float(at[failing[0]]), float(computed[failing[0]])) if len(failing) else None
    octaves: dict[int, float] = {}
    distances = (at.double() - function.near).abs()
    for octave, error in zip(distances.log2().floor().int().tolist(), off.tolist(), strict=True):
        octaves[octave] = max(octaves.get(octave, 0.0), error)
    curve = tuple((1.5 * 2.0**octave, float(f"{error:.3g}")) for octave, error in sorted(octaves.items()))
    return Errors(*(float(v[place]) for v in (off, at, computed, exact)), curve, failure)


def measure(
    function: Function, points: int = POINTS, compile: Callable[..., Any] | None = None, seed: int = 0
) -> dict[str, Errors]:
    """The errors of each way of computing one function: "formula" (if it has one), "eager", "ours".

    ``compile`` is what compiles a Python function for "ours", :func:`staxlab.compile` for instance; without it, the
    graph is used that the front end's passes leave. MissingDependencyError without mpmath.
    """
    at = arguments(function, points, seed)
    exact = exact_values(function, at)

    def ours(a: torch.Tensor) -> torch.Tensor:
        return function.operator(a)

    ways: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {}
    if function.formula is not None:
        ways["formula"] = lambda a: evaluate(function.formula, {"x": a})
    ways["eager"] = function.operator
    ways["ours"] = compile(ours) if compile is not None else _front_end(ours, at)
    with one_thread(), torch.no_grad():
        return {name: _worst(function, at, way(at), exact) for name, way in ways.items()}


def _front_end(function: Callable[..., Any], sample: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    from ..capture.tracer import trace
    from ..transform import transform

    return transform(trace(function, (sample,))).final


def treatments(
    points: int = POINTS,
    compile: Callable[..., Any] | None = None,
    names: Sequence[str] | None = None,
    tell: Callable[[str], None] | None = None,
) -> TreatmentTable:
    """Table 4.2: every operator the front end writes out or keeps, and its measured errors.

    ``names`` limits it. Half a second for each operator at 20,000 ``points``, a kernel's compilation besides with
    ``compile``. ``tell`` is given each name before it is measured. OptionError for an unknown name.
    """
    known = {
        **dict.fromkeys(EXPANSIONS, ("written out", "")),
        **{name: ("kept", why) for name, why in KEPT.items()},
    }
    if unknown := set(names or ()) - set(known):
        raise OptionError(f"not in Table 4.2: {', '.join(sorted(unknown))}", remedy=f"choose of {', '.join(known)}")
    entries = []
    for name, (treatment, reason) in known.items():
        if names is not None and name not in names:
            continue
        function = BY_NAME.get(name)
        reason = reason or str(EXPANSIONS[name]())
        if function is None:
            entries.append(Entry(name, treatment, reason))
            continue
        if tell:
            tell(name)
        formula = "" if function.formula is None else str(function.formula)
        ways = measure(function, points, compile)
        entries.append(Entry(name, treatment, reason, formula, function.near, points, ways))
    return TreatmentTable(tuple(entries), "graph" if compile is None else "kernel")
