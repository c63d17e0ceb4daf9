"""Rounding, from theorem to kernel: bounds and predictions beside simulated and real sums (Section 13.3).

:mod:`.rounding` says of an order of additions how far its result may be off at most (Section 6.5) and how far it
typically is (Theorem 13.1). Here both are held against what happens. Rows of random numbers are added in float32

* left to right, in ``WAYS`` running sums that are merged as a tree, and as one tree: *simulated*, by
  :meth:`~.rounding.SummationPlan.run`, which rounds after every addition,
* by PyTorch's own sum, whose order is nobody's promise,
* by the kernel that was generated, whose order it states itself (:func:`~.rounding.plan_of`),

and the error of every row is taken from its exact sum (``math.fsum``). Two kinds of rows are the chapter's: those of
Example 1.1, whose numbers are not negative, so that partial sums grow as ``n`` and errors as ``n**1.5``; and those of
Example 7.1, of mean zero, where partial sums wander and errors grow as ``n``.

Three things are to be expected of the comparison:

* Measured deviations are *smaller* than predicted, between a half and the whole. The model draws a rounding from
  ``[-u, u]`` relative to the result; a real one is at most half the distance of neighbouring numbers, which is ``u`` of
  the result just above a power of two and half of that just below the next. Over significands that are spread evenly
  on a logarithmic scale, the root mean square is ``sqrt(3 / (8 ln 2))`` of the model's, 0.74. Partial sums that grow
  steadily spend most additions in the upper part of a binade, so one running sum in Example 1.1 shows a half.
* Where errors are not much larger than the distance of the numbers that a result can be (:attr:`SumErrors.spacing`),
  they are *quantized*: the last rounding alone spreads them by ``spacing / sqrt(12)``, and a difference of two results
  is a whole number of spacings. That is so in Example 1.1, and why its largest difference is a round number.
* Zeros cost nothing. Adding to zero is exact, which the model counts as a rounding.

A *relative* error is the absolute one over the sum. In Example 7.1, ``x / x.sum()``, it reaches every element of a row:
it is the condition number ``sum(|x|) / |sum(x)|`` times an error that is the same for all rows, so the row whose sum
happens to be closest to zero has by far the largest. A tolerance that does not know this calls it a defect
(:mod:`.tolerance`).
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import OptionError
from .rounding import (
    SummationPlan,
    corollary_variance,
    error_model,
    pairwise,
    plan_of,
    segmented,
    sequential,
    summation_bound,
    unit_roundoff,
)
from .tables import Table, Tabular

#: Running sums of the chapter's two predictions: the float32 lanes of a 512-bit register.
WAYS = 16
SIZES = (64, 256, 1024, 2048, 8192)
ROWS = 512
#: Numbers in a row of the chapter's examples.
CHAPTER_SIZE = 2048
#: Root mean square of real roundings over the model's, for significands that are spread evenly on a logarithmic scale.
LOGARITHMIC = math.sqrt(3 / (8 * math.log(2)))
#: An error of fewer spacings than this takes a handful of values only.
QUANTIZED = 2.0
#: Rows that :class:`Conditions` keeps: those of the smallest sums, and others spread evenly over the rest.
SMALLEST, SPREAD = 60, 140


@dataclass(frozen=True)
class SumExample:
    """Rows of independent, identically distributed numbers: ``function`` makes and adds them, ``summands`` makes them
    only, both from ``inputs`` standard normal tensors. ``mean`` and ``deviation`` are those of one summand, ``size``
    the mean of its magnitude."""

    name: str
    function: Callable[..., torch.Tensor]
    summands: Callable[..., torch.Tensor]
    inputs: int
    mean: float
    deviation: float
    size: float


def _relu_sum(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return (torch.relu(x + w) * 2).sum(-1)


def _relu_summands(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.relu(x + w) * 2


def _plain_sum(x: torch.Tensor) -> torch.Tensor:
    return x.sum(-1)


def _plain(x: torch.Tensor) -> torch.Tensor:
    return x


def normalised(x: torch.Tensor) -> torch.Tensor:
    """Example 7.1: every row divided by its sum."""
    return x / x.sum(-1, keepdim=True)


#: 2 relu(z) with z of variance 2: mean 2 / sqrt(pi), second moment 4.
EXAMPLE_1_1 = SumExample(
    "Example 1.1", _relu_sum, _relu_summands, 2, 2 / math.sqrt(math.pi), math.sqrt(4 - 4 / math.pi),
    2 / math.sqrt(math.pi),
)  # fmt: skip
EXAMPLE_7_1 = SumExample("Example 7.1", _plain_sum, _plain, 1, 0.0, 1.0, math.sqrt(2 / math.pi))
EXAMPLES = (EXAMPLE_1_1, EXAMPLE_7_1)


# --- Records ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SumErrors:
    """The errors of ``rows`` float32 sums of ``n`` numbers each, added in one ``way``.

    ``deviation`` is their root mean square, ``largest`` the largest of them, and ``share`` the largest part of its own
    bound that one of them takes. ``predicted`` is the deviation of Theorem 13.1 for ``plan``, ``corollary`` that of
    Corollary 13.1 for its running sums; None where there is no such plan. ``bound`` is the worst case of Section 6.5
    for the row with the largest ``sum(|a|)``, in any order where the plan is not known. ``spacing`` is the distance of
    the float32 numbers around the median row sum, ``exact`` the part of the rows whose result is the exact sum rounded
    once.
    """

    way: str
    n: int
    rows: int
    plan: SummationPlan | None
    deviation: float
    largest: float
    share: float
    predicted: float | None
    corollary: float | None
    bound: float
    spacing: float
    exact: float

    @property
    def spacings(self) -> float:
        """The deviation in units of the distance of neighbouring results."""
        return self.deviation / self.spacing

    @property
    def is_quantized(self) -> bool:
        """Whether errors are so few spacings that a handful of values is all they can be."""
        return self.spacings < QUANTIZED

    @property
    def last_rounding(self) -> float:
        """The part of the variance that rounding the exact sum once would have, at most 1."""
        return min(self.spacing**2 / 12 / self.deviation**2, 1.0) if self.deviation else 1.0


@dataclass(frozen=True)
class ConditionedRow:
    """One row of Example 7.1: its condition number, its exact sum, and the largest relative ``error`` of its elements
    from exact values and ``difference`` from eager's."""

    condition: float
    row_sum: float
    error: float
    difference: float


@dataclass(frozen=True)
class Conditions:
    """Relative errors of ``x / x.sum()`` against condition numbers, for rows of ``n`` numbers of mean zero.

    ``deviation`` is the model's for one row sum in ``plan``'s order. The rows of the smallest sums come first.
    ``of`` says whose results these are.
    """

    of: str
    n: int
    deviation: float
    plan: SummationPlan | None
    rows: tuple[ConditionedRow, ...]

    @property
    def smallest(self) -> ConditionedRow:
        return self.rows[0]

    def predicted(self, row_sum: float, sums: int = 1) -> float:
        """The relative error to be expected of a row with that sum (``sums=2``: of the difference of two results)."""
        return relative_deviation(self.deviation, row_sum, sums)

    def bound(self, condition: float) -> float:
        """The largest relative error that Section 6.5 allows at a condition number, the division's included: with ``r``
        that of the sum, ``(r + u) / (1 - r)``; infinite where the sum may have the wrong sign."""
        r = summation_bound(self.n, self.plan, condition)
        return (r + unit_roundoff()) / (1 - r) if r < 1 else math.inf


def relative_deviation(deviation: float, row_sum: float, sums: int = 1) -> float:
    """The relative error of a sum whose absolute error has that deviation; ``sums=2``: the difference of two results.

    >>> predicted = math.sqrt(sum(corollary_variance(2048, 0.0, 1.0, 16)))
    >>> [f"{relative_deviation(predicted, smallest, sums=2):.1e}" for smallest in (0.0152, 0.0050)]  # Section 13.3
    ['1.2e-03', '3.6e-03']
    """
    return math.sqrt(sums) * deviation / abs(row_sum) if row_sum else math.inf


@dataclass(frozen=True)
class ExampleErrors:
    """One example at all sizes."""

    example: SumExample
    errors: tuple[SumErrors, ...]

    @property
    def ways(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(found.way for found in self.errors))

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(dict.fromkeys(found.n for found in self.errors))

    def at(self, way: str, n: int) -> SumErrors:
        """KeyError where that was not measured."""
        for found in self.errors:
            if (found.way, found.n) == (way, n):
                return found
        raise KeyError(f"no errors of {way!r} at n = {n}; ways: {', '.join(self.ways)}; sizes: {self.sizes}")


@dataclass(frozen=True, repr=False)
class RoundingStudy(Tabular):
    """Measured errors of sums beside their bounds and predictions, and relative errors beside condition numbers.

    Prints as a table, draws itself as plots of error against length and of relative error against condition number.
    """

    examples: tuple[ExampleErrors, ...]
    conditions: Conditions | None
    seed: int

    def __getitem__(self, name: str) -> ExampleErrors:
        for found in self.examples:
            if found.example.name == name:
                return found
        raise KeyError(f"no example {name!r}; examples: {', '.join(e.example.name for e in self.examples)}")

    def table(self) -> Table:
        columns = ("example", "way", "n", "deviation", "Theorem 13.1", "measured / predicted", "Corollary 13.1",
                   "largest error", "worst case", "spacings")  # fmt: skip
        rows = []
        for each in self.examples:
            for e in sorted(each.errors, key=lambda e: (e.n, each.ways.index(e.way))):
                ratio = f"{e.deviation / e.predicted:.2f}" if e.predicted else ""
                rows.append((
                    each.example.name, e.way, f"{e.n:,}", f"{e.deviation:.2e}", _text(e.predicted), ratio,
                    _text(e.corollary), f"{e.largest:.2e}", f"{e.bound:.2e}", f"{e.spacings:.2g}",
                ))  # fmt: skip
        return Table.build("Errors of float32 row sums", columns, rows, self.notes(), 2)

    def notes(self) -> list[str]:
        """What is to be read off the figures."""
        found = [
            "deviation: root mean square over the rows; spacings: the deviation over the distance of float32 numbers "
            f"around the sum; real roundings are about {LOGARITHMIC:.2f} of the model's"
        ]
        for each in self.examples:
            way = next((way for way in ("compiled", f"{WAYS} ways") if way in each.ways), each.ways[0])
            quantized = [e for e in each.errors if e.way == way and e.is_quantized]
            told = [e for e in quantized if e.n == CHAPTER_SIZE] or quantized[-1:]
            found += [quantization(each.example.name, e) for e in told]
        if self.conditions is not None:
            row = self.conditions.smallest
            found.append(
                f"x / x.sum(), {self.conditions.of}, n = {self.conditions.n:,}: the row with the smallest sum, "
                f"{row.row_sum:.3g}, has condition {row.condition:.2g} and relative error {row.error:.2g} "
                f"({self.conditions.predicted(row.row_sum):.2g} is one deviation of the model)"
            )
        return found

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types."""
        return {
            "seed": self.seed,
            "examples": [
                {
                    "example": each.example.name, "mean": each.example.mean, "deviation": each.example.deviation,
                    "errors": [_error_json(e) for e in each.errors],
                }
                for each in self.examples
            ],
            "conditions": None if self.conditions is None else {
                "of": self.conditions.of, "n": self.conditions.n, "deviation": self.conditions.deviation,
                "rows": [[r.condition, r.row_sum, r.error, r.difference] for r in self.conditions.rows],
            },
        }  # fmt: skip


    def summary(self) -> str:
        """How close prediction and measurement are, in a line."""
        ratios = [e.deviation / e.predicted for each in self.examples for e in each.errors if e.predicted]
        return f"measured deviations are {min(ratios):.2f} to {max(ratios):.2f} of those of Theorem 13.1"


def quantization(name: str, e: SumErrors) -> str:
    """In words, that errors are the distance of neighbouring results, and of how many roundings they may be."""
    return (
        f"{name}, {e.way}, n = {e.n:,}: the error is quantization: results are multiples of {e.spacing:.2g}, the "
        f"deviation is {e.spacings:.2g} of that and the largest error {e.largest / e.spacing:.2g}; {e.exact:.0%} of "
        f"the results are the exact sum rounded once, whose rounding is {e.last_rounding:.0%} of the variance"
    )


def _text(value: float | None) -> str:
    return "" if value is None else f"{value:.2e}"


def _error_json(e: SumErrors) -> dict[str, Any]:
    plan = None if e.plan is None else [[s.kind, s.count] for s in e.plan.stages]
    return {
        "way": e.way, "n": e.n, "rows": e.rows, "plan": plan, "deviation": e.deviation, "largest": e.largest,
        "share_of_bound": e.share, "predicted": e.predicted, "corollary": e.corollary, "bound": e.bound,
        "spacing": e.spacing, "correctly_rounded": e.exact,
    }  # fmt: skip


# --- The study --------------------------------------------------------------------------------------------------------


def rounding_study(
    compile: Callable[..., Any] | None = None,
    *,
    sizes: Iterable[int] = SIZES,
    rows: int = ROWS,
    seed: int = 0,
    condition_size: int = CHAPTER_SIZE,
    condition_rows: int = 4096,
    examples: Sequence[SumExample] = EXAMPLES,
) -> RoundingStudy:
    """Add ``rows`` rows of each of ``sizes`` numbers in every way, and hold the errors against bound and model.

    ``compile`` compiles a function (``staxlab.compile``): its kernels are measured, too, in the order they state. None
    leaves them out. Relative errors are those of ``condition_rows`` rows of ``condition_size`` numbers (0: none).
    Takes O(rows * n) additions for each way and size, a few seconds for the defaults. OptionError for sizes or numbers
    of rows that are no positive integers.
    """
    sizes = tuple(sizes)
    if not sizes or any(not isinstance(n, int) or n < 2 for n in sizes):
        raise OptionError(f"sizes {sizes!r} of rows to be added", remedy="whole numbers from 2 on, at least one")
    if rows < 2 or condition_rows < 0 or condition_size < 2:
        raise OptionError(f"{rows} rows, {condition_rows} for relative errors", remedy="at least 2 rows, or 0 for none")
    found = []
    for number, example in enumerate(examples):
        errors: list[SumErrors] = []
        for n in sizes:
            generator = torch.Generator().manual_seed(seed * 1_000_003 + 101 * n + number)
            inputs = [torch.randn(rows, n, generator=generator) for _ in range(example.inputs)]
            errors += errors_at(example, inputs, compile)
        found.append(ExampleErrors(example, tuple(errors)))
    conditions = None
    if condition_rows:
        generator = torch.Generator().manual_seed(seed * 1_000_003 + 7)
        x = torch.randn(condition_rows, condition_size, generator=generator)
        conditions = relative_errors(x, compile)
    return RoundingStudy(tuple(found), conditions, seed)


def errors_at(
    example: SumExample, inputs: Sequence[torch.Tensor], compile: Callable[..., Any] | None = None
) -> list[SumErrors]:
    """The errors of every way of adding the summands that ``inputs``, of shape (rows, n), make."""
    summands = example.summands(*inputs)
    n = summands.shape[-1]
    exact, sizes = exact_sums(summands), exact_sums(summands.abs())
    plans = {
        "sequential": (sequential(n), 1),
        f"{WAYS} ways": (segmented(n, WAYS, "pairwise"), WAYS),
        "tree": (pairwise(n), None),
    }
    found = []
    for way, (plan, ways) in plans.items():
        corollary = None
        if ways is not None:
            corollary = math.sqrt(sum(corollary_variance(n, example.mean, example.deviation, ways)))
        found.append(_errors(example, n, way, plan, corollary, plan.run(summands), exact, sizes))
    found.append(_errors(example, n, "eager", None, None, example.function(*inputs), exact, sizes))
    if compile is not None:
        compiled = compile(example.function, strict_native=True)
        computed = compiled(*inputs)
        plan = plan_of_sum(compiled, n)
        found.append(_errors(example, n, "compiled", plan, None, computed, exact, sizes))
    return found


def exact_sums(values: torch.Tensor) -> torch.Tensor:
    """The row sums of a (rows, n) tensor, each exact and rounded once to float64 (``math.fsum``)."""
    return torch.tensor([math.fsum(row) for row in values.double().tolist()], dtype=torch.float64)


def plan_of_sum(compiled: Any, n: int) -> SummationPlan | None:
    """In what order the last version of a compiled function adds: None where not one kernel adds ``n`` numbers."""
    found = []
    for kernel in compiled.versions[-1].compilation.kernels:
        orders = kernel.launch.get("accumulations") or {"": kernel.launch.get("accumulation")}
        found += [order for order in orders.values() if order is not None and order["kind"] == "sum"]
    if len(found) != 1 or found[0]["n"] != n:
        return None
    return plan_of(found[0])


def _errors(
    example: SumExample, n: int, way: str, plan: SummationPlan | None, corollary: float | None,
    computed: torch.Tensor, exact: torch.Tensor, sizes: torch.Tensor,
) -> SumErrors:  # fmt: skip
    away = (computed.double() - exact).abs()
    room = summation_bound(n, plan, sizes)
    model = None if plan is None else error_model(plan, example.mean, example.deviation).error_deviation
    return SumErrors(
        way, n, computed.numel(), plan, float(away.square().mean().sqrt()), float(away.max()),
        float((away / room).nan_to_num(0.0).max()), model, corollary, float(room.max()),
        spacing_of(statistics.median(exact.abs().tolist())), float((computed == exact.float()).double().mean()),
    )  # fmt: skip


def spacing_of(value: float) -> float:
    """The distance of the float32 numbers from ``abs(value)`` to the next larger one.

    >>> spacing_of(2300.0) == 2.0**-12
    True
    """
    at = torch.tensor(abs(value), dtype=torch.float32)
    return float(torch.nextafter(at, torch.tensor(math.inf)).double() - at.double())


def relative_errors(x: torch.Tensor, compile: Callable[..., Any] | None = None) -> Conditions:
    """Relative errors of ``x / x.sum(-1, keepdim=True)`` for every row of a (rows, n) float32 tensor, by the compiled
    kernel, or by the simulated ``WAYS``-way sum where ``compile`` is None."""
    n = x.shape[-1]
    exact, sizes = exact_sums(x), exact_sums(x.abs())
    if compile is None:
        plan: SummationPlan | None = segmented(n, WAYS, "pairwise")
        assert plan is not None
        result = x / plan.run(x).unsqueeze(-1)
    else:
        compiled = compile(normalised, strict_native=True)
        result, plan = compiled(x), plan_of_sum(compiled, n)
    wanted, eager = x.double() / exact.unsqueeze(-1), normalised(x).double()
    size = wanted.abs().clamp_min(torch.finfo(torch.float64).tiny)
    error = ((result.double() - wanted).abs() / size).amax(-1)
    difference = ((result.double() - eager).abs() / size).amax(-1)
    model = plan if plan is not None else segmented(n, WAYS, "pairwise")
    order = exact.abs().argsort().tolist()
    rest = order[SMALLEST:]
    kept = order[:SMALLEST] + rest[:: max(len(rest) // SPREAD, 1)]
    points = tuple(
        ConditionedRow(float(sizes[k] / exact[k].abs()), float(exact[k]), float(error[k]), float(difference[k]))
        for k in kept
    )
    deviation = error_model(model, 0.0, 1.0).error_deviation
    return Conditions("simulated" if compile is None else "compiled", n, deviation, plan, points)
