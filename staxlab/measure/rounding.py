"""How far a floating-point sum may be from the true one: bounds (Section 6.5) and a statistical model (Section 13.3).

Floating-point addition is not associative, so a sum that is split into lanes, accumulators and chunks differs from the
sequential one. Neither is wrong; each carries its own rounding errors, and how large they may be depends on one number:
how many additions a summand passes through on its way to the result. Call the largest such number the *height* ``h`` of
the summation tree. Every addition multiplies what passes through it by ``1 + d``, ``|d| <= u``, so

    ``|computed - exact| <= gamma(h) * sum(|a_i|)``,   ``gamma(h) = h*u / (1 - h*u)``

(Higham, 2002, "Accuracy and Stability of Numerical Algorithms", sections 3.1 and 4.2). Sequential summation has height
``n - 1``; ``k`` segments, merged one after the other, ``(n/k - 1) + (k - 1)``; a balanced tree ``ceil(log2 n)``. A
:class:`SummationPlan` composes these: it says in what order a kernel adds, and everything below is a function of it.

The bound assumes that every rounding goes the same way. If instead the roundings are independent with mean zero
(Theorem 13.1), the error has mean zero and variance ``s2 * sum(partial sums squared)`` with ``s2 = u*u/3``: for like
summands it grows as ``n**1.5`` when their mean is not zero and as ``n`` when it is (Corollary 13.1), two to three
orders of magnitude below the bound.

Whether an absolute error is *relatively* large is a property of the problem, not of the kernel: the condition number
``sum(|a_i|) / |sum(a_i)|`` multiplies it. Tolerances must follow it.

>>> plan = vectorized(2048, lanes=16)
>>> plan.height, sequential(2048).height, segmented(2048, 16).height, pairwise(2048).height
(131, 2047, 142, 11)
>>> bound = summation_bound(2048, segmented(2048, 16), abs_sum=2300.0)
>>> round(bound, 3)
0.019
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .tables import Table, Tabular

#: Half the distance from 1 to the next larger number: the largest relative error of one rounding to nearest.
UNIT_ROUNDOFF = {"float64": 2.0**-53, "float32": 2.0**-24, "float16": 2.0**-11, "bfloat16": 2.0**-8}


def unit_roundoff(dtype: Any = "float32") -> float:
    """The unit roundoff ``u`` of a floating dtype, given as ``torch.float32`` or ``"float32"``. ValueError
    otherwise."""
    name = str(dtype).removeprefix("torch.")
    try:
        return UNIT_ROUNDOFF[name]
    except KeyError:
        raise ValueError(f"no unit roundoff for {dtype!r}; known: {', '.join(UNIT_ROUNDOFF)}") from None


# --- Plans ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Stage:
    """One level of a summation: every ``count`` values become one, "sequential" (left to right) or "pairwise" (a
    tree)."""

    kind: str
    count: int

    def __post_init__(self) -> None:
        if self.kind not in ("sequential", "pairwise"):
            raise ValueError(f"a stage is 'sequential' or 'pairwise', not {self.kind!r}")
        if self.count < 1:
            raise ValueError(f"a stage adds at least one value, not {self.count}")

    @property
    def height(self) -> int:
        """The most additions one value passes through in this stage."""
        return self.count - 1 if self.kind == "sequential" else (self.count - 1).bit_length()


@dataclass(frozen=True)
class SummationPlan:
    """In what order ``n`` numbers are added: stages applied one after the other, innermost first.

    The product of the stages' counts is at least ``n``; missing positions are zeros, which add without error (this is
    what a masked tail and a zero-initialised accumulator do).
    """

    n: int
    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        if self.n < 0:
            raise ValueError(f"cannot add {self.n} numbers")
        if math.prod(stage.count for stage in self.stages) < self.n:
            raise ValueError(f"the stages {self.stages} add fewer than {self.n} numbers")

    @property
    def height(self) -> int:
        """The coefficient of ``u * sum(|a_i|)`` in the error bound: the most additions a summand passes through."""
        return sum(stage.height for stage in self.stages)

    def run(self, values: Any, dtype: Any = None) -> Any:
        """Add the last dimension of a tensor in this very order, rounding after every addition.

        ``values`` has shape (..., n); the result has shape (...) and the tensor's dtype (or ``dtype``). Groups are
        taken from consecutive positions. One vectorised addition per step: O(height) operations on tensors.
        """
        import torch

        data = torch.as_tensor(values) if dtype is None else torch.as_tensor(values).to(dtype)
        if data.shape[-1] != self.n:
            raise ValueError(f"the plan adds {self.n} numbers, not {data.shape[-1]}")
        missing = math.prod(stage.count for stage in self.stages) - self.n
        data = torch.nn.functional.pad(data, (0, missing))
        for stage in self.stages:
            columns = list(data.reshape(*data.shape[:-1], -1, stage.count).unbind(-1))
            if stage.kind == "sequential":
                data = columns[0]
                for column in columns[1:]:
                    data = data + column
            else:
                while len(columns) > 1:
                    pairs = [columns[i] + columns[i + 1] for i in range(0, len(columns) - 1, 2)]
                    columns = pairs + columns[len(pairs) * 2 :]
                data = columns[0]
        return data[..., 0]

    def __str__(self) -> str:
        return f"{self.n} numbers: " + ", then ".join(f"{s.kind} over {s.count}" for s in self.stages)


def sequential(n: int) -> SummationPlan:
    """Left to right: height ``n - 1``."""
    return SummationPlan(n, (Stage("sequential", max(n, 1)),))


def segmented(n: int, k: int, merge: str = "sequential") -> SummationPlan:
    """``k`` segments (or interleaved lanes) added left to right, then their sums merged.

    Height ``(ceil(n/k) - 1) + (k - 1)``, or ``+ ceil(log2 k)`` with ``merge="pairwise"``.
    """
    if k < 1:
        raise ValueError(f"at least one segment is needed, not {k}")
    return SummationPlan(n, (Stage("sequential", max(-(-n // k), 1)), Stage(merge, k)))


def pairwise(n: int) -> SummationPlan:
    """A balanced binary tree: height ``ceil(log2 n)``."""
    return SummationPlan(n, (Stage("pairwise", max(n, 1)),))


def vectorized(
    n: int,
    lanes: int,
    accumulators: int = 1,
    chunks: int = 1,
    lane_merge: str = "pairwise",
    chunk_merge: str = "sequential",
) -> SummationPlan:
    """What a vector kernel does with a row of ``n``: ``chunks`` pieces, each spread over ``accumulators * lanes``
    running sums, the accumulators and then the lanes of each piece merged as a tree, the pieces merged in order."""
    ways = lanes * accumulators * chunks
    if min(lanes, accumulators, chunks) < 1:
        raise ValueError("lanes, accumulators and chunks are at least 1")
    stages = [Stage("sequential", max(-(-n // ways), 1)), Stage("pairwise", accumulators), Stage(lane_merge, lanes)]
    stages.append(Stage(chunk_merge, chunks))
    return SummationPlan(n, tuple(s for s in stages if s.count > 1 or s is stages[0]))


def two_level(n: int, first: SummationPlan, second: SummationPlan) -> SummationPlan:
    """A split reduction (Algorithm 6.1): ``n`` numbers in ``second.n`` segments of up to ``first.n``, each added by
    ``first``, and the partial sums, kept in the accumulator's dtype, by ``second``. The heights add up.

    >>> two_level(16384, sequential(8192), sequential(2)).height, sequential(16384).height  # Example 6.2
    (8192, 16383)
    """
    return SummationPlan(n, (*first.stages, *second.stages))


def plan_of(accumulation: Mapping[str, Any]) -> SummationPlan:
    """The plan a generated kernel follows, from its own description (``kernel.launch["accumulation"]``).

    Keys: ``n``, ``sequential`` (values entering the busiest running sum one after the other), ``accumulators`` merged
    pairwise, ``lanes`` merged by ``lane_merge``, ``chunks`` merged by ``chunk_merge``.
    """
    first = Stage("sequential", max(accumulation["sequential"], 1))
    rest = (
        Stage("pairwise", accumulation["accumulators"]),
        Stage(accumulation["lane_merge"], accumulation["lanes"]),
        Stage(accumulation["chunk_merge"], accumulation["chunks"]),
    )
    return SummationPlan(accumulation["n"], (first, *(stage for stage in rest if stage.count > 1)))


# --- Worst case -------------------------------------------------------------------------------------------------------


def gamma(height: int, dtype: Any = "float32") -> float:
    """``h*u / (1 - h*u)``: the relative growth that ``h`` roundings can cause. ValueError when ``h*u >= 1``."""
    hu = height * unit_roundoff(dtype)
    if hu >= 1:
        raise ValueError(f"{height} roundings in {dtype} have no finite bound (h*u = {hu:.3g} >= 1)")
    return hu / (1 - hu)


def summation_bound(
    n: int,
    plan: SummationPlan | None,
    abs_sum: Any,
    dtype: Any = "float32",
    *,
    result_dtype: Any = None,
) -> Any:
    """Largest possible ``|computed - exact|`` of a sum of ``n`` numbers with ``sum(|a_i|) == abs_sum`` (Section 6.5).

    ``abs_sum`` is a number, or a tensor for as many sums. ``plan`` is the order of the additions (None: any order at
    all, the height of sequential summation). ``dtype`` is
    what the additions are carried out in; when the result is then rounded to a narrower ``result_dtype``, that
    rounding is added. Rigorous to all orders in ``u``. Sums that overflow are outside the bound; gradual underflow is
    inside it, since an addition whose result is subnormal is exact.
    """
    if bool((abs_sum < 0).any() if hasattr(abs_sum, "any") else abs_sum < 0):
        raise ValueError("abs_sum is a sum of absolute values and cannot be negative")
    if plan is not None and plan.n != n:
        raise ValueError(f"the plan adds {plan.n} numbers, not {n}")
    height = max(n - 1, 0) if plan is None else plan.height
    error = gamma(height, dtype) * abs_sum
    if result_dtype is not None and unit_roundoff(result_dtype) > unit_roundoff(dtype):
        error += unit_roundoff(result_dtype) * (abs_sum + error)
    return error


def difference_bound(
    first: SummationPlan | None,
    second: SummationPlan | None,
    n: int,
    abs_sum: float,
    dtype: Any = "float32",
    **options: Any,
) -> float:
    """How far two computed sums of the same ``n`` numbers may lie apart: each may be off by its own bound."""
    return summation_bound(n, first, abs_sum, dtype, **options) + summation_bound(n, second, abs_sum, dtype, **options)


def expected_height(terms: int, height: int = 0) -> int:
    """The height to allow a sum of ``terms`` numbers in an order that is not known: ``2 sqrt(terms)``, or that of a
    kernel at hand where it is taller, and no more than ``terms``.

    Accumulation in tiles comes to ``2 sqrt(n)`` (Section 11.4). Where numbers are added one by one, it is six standard
    deviations for summands of one sign (Theorem 13.1: ``sqrt(n) / 3`` units of ``sum(|a_i|)``).
    """
    return min(terms, max(math.ceil(2 * math.sqrt(terms)), height))


def composed_units(count: int) -> float:
    """Units of roundoff that an operator may be off by that merges ``count`` elements by a formula of its own (a norm,
    a softmax): those of a sum, and four for what is done with it."""
    return 2 * math.sqrt(count) + 4


def stored_apart(size: Any, dtype: Any) -> Any:
    """How far apart two roundings of one exact value to ``dtype`` may be: a unit of roundoff of it on either side, and
    four of the smallest numbers there are. ``size`` is its magnitude, a number or a tensor."""
    import torch

    info = torch.finfo(getattr(torch, str(dtype).removeprefix("torch.")))
    return 2 * unit_roundoff(dtype) * size + 4 * info.smallest_normal * info.eps


def condition_number(values: Iterable[float]) -> float:
    """``sum(|a_i|) / |sum(a_i)|``, computed exactly and rounded once; 1 for no values, inf when they cancel.

    A relative error of the sum is at most this many times the coefficient of its bound. NaN or infinite values give
    NaN.
    """
    numbers = [float(v) for v in values]
    if not all(map(math.isfinite, numbers)):
        return math.nan
    absolute, total = math.fsum(map(abs, numbers)), abs(math.fsum(numbers))
    if absolute == 0:
        return 1.0
    return absolute / total if total else math.inf


# --- Theorem 13.1 and Corollary 13.1 ----------------------------------------------------------------------------------


def rounding_deviation(dtype: Any = "float32") -> float:
    """Standard deviation of one relative rounding error when it is uniform on ``[-u, u]``: ``u / sqrt(3)``."""
    return unit_roundoff(dtype) / math.sqrt(3)


def sequential_deviation(values: Sequence[float], dtype: Any = "float32") -> float:
    """Theorem 13.1 for given data: ``sigma * sqrt(sum(s_k**2, k=2..n))`` over the partial sums ``s_k``. O(n)."""
    partial, squares = 0.0, 0.0
    for k, value in enumerate(values):
        partial += float(value)
        if k:
            squares += partial * partial
    return rounding_deviation(dtype) * math.sqrt(squares)


@dataclass(frozen=True, repr=False)
class ErrorModel(Tabular):
    """Predicted standard deviation of a sum's error, split by the stages of the plan.

    ``parts`` are variances in units of ``sigma**2`` (the variance of one rounding), one per stage.
    """

    plan: SummationPlan
    mean: float
    deviation: float
    dtype: str
    parts: tuple[float, ...]

    @property
    def variance(self) -> float:
        return rounding_deviation(self.dtype) ** 2 * sum(self.parts)

    @property
    def error_deviation(self) -> float:
        """Standard deviation of ``computed - exact`` for one sum."""
        return math.sqrt(self.variance)

    def typical_largest(self, rows: int = 1, sums: int = 1) -> float:
        """Median of the largest ``|error|`` over ``rows`` independent sums.

        ``sums=2`` is for the difference of two independently rounded results. Solves ``P(|Z| <= z) ** rows = 1/2``.
        """
        if rows < 1 or sums < 1:
            raise ValueError("rows and sums are at least 1")
        inside = 0.5 ** (1 / rows)
        # 1 - inside cancels badly for many rows; expm1 keeps the tail accurate.
        tail = -math.expm1(math.log(0.5) / rows) / 2 if rows > 1 else (1 - inside) / 2
        return -statistics.NormalDist().inv_cdf(tail) * self.error_deviation * math.sqrt(sums)

    def table(self) -> Table:
        rows = []
        for stage, part in zip(self.plan.stages, self.parts, strict=True):
            share = part / sum(self.parts) if sum(self.parts) else 0.0
            deviation = rounding_deviation(self.dtype) * math.sqrt(part)
            rows.append((f"{stage.kind} over {stage.count}", stage.height, f"{deviation:.3g}", f"{100 * share:.0f}%"))
        worst = summation_bound(self.plan.n, self.plan, self.plan.n * (abs(self.mean) + self.deviation), self.dtype)
        notes = (
            f"standard deviation of the error of one sum: {self.error_deviation:.3g}",
            f"worst case at sum(|a|) = {self.plan.n * (abs(self.mean) + self.deviation):.4g}: {worst:.3g}",
        )
        caption = (
            f"Rounding of {self.plan.n} {self.dtype} summands, mean {self.mean:.3g}, deviation {self.deviation:.3g}"
        )
        return Table.build(caption, ("stage", "height", "deviation", "share of variance"), rows, notes)

    def to_json(self) -> dict[str, Any]:
        return {
            "n": self.plan.n,
            "stages": [[s.kind, s.count] for s in self.plan.stages],
            "mean": self.mean,
            "deviation": self.deviation,
            "dtype": self.dtype,
            "parts": list(self.parts),
            "error_deviation": self.error_deviation,
        }


def error_model(plan: SummationPlan, mean: float, deviation: float, dtype: Any = "float32") -> ErrorModel:
    """Theorem 13.1 applied to any plan, for summands that are independent with the given mean and deviation.

    The sum of ``m`` summands has second moment ``(m*mean)**2 + m*deviation**2``; the variance of the error is
    ``sigma**2`` times the sum of these moments over all additions of the plan. Exact to first order in ``u``, unlike
    Corollary 13.1, which keeps the leading powers only. Zeros that pad the last positions are counted as if they were
    summands.
    """

    def moment(m: int) -> float:
        return (m * mean) ** 2 + m * deviation**2

    positions = math.prod(stage.count for stage in plan.stages)
    parts, width = [], 1  # width: how many summands one value entering this stage stands for
    for stage in plan.stages:
        groups = positions // (width * stage.count)
        if stage.kind == "sequential":
            # sum over k = 2..count of moment(k * width), in closed form
            c = stage.count
            squares, ones = c * (c + 1) * (2 * c + 1) // 6 - 1, c * (c + 1) // 2 - 1
            total = (width * mean) ** 2 * squares + width * deviation**2 * ones
        else:
            total = sum(moment(width * m) for m in _tree_sizes(stage.count))
        parts.append(groups * total)
        width *= stage.count
    return ErrorModel(plan, mean, deviation, str(dtype).removeprefix("torch."), tuple(parts))


def _tree_sizes(count: int) -> list[int]:
    """How many leaves lie under each addition of a balanced tree over ``count`` leaves."""
    level, sizes = [1] * count, []
    while len(level) > 1:
        pairs = [level[i] + level[i + 1] for i in range(0, len(level) - 1, 2)]
        sizes += pairs
        level = pairs + level[len(pairs) * 2 :]
    return sizes


def corollary_variance(
    n: int, mean: float, deviation: float, ways: int = 1, dtype: Any = "float32"
) -> tuple[float, float]:
    """Corollary 13.1: leading terms of the error's variance for ``ways`` running sums merged in a tree.

    Returns (accumulation, merge): ``u**2/3`` times ``n**3 m**2 / (3 W**2) + n**2 s**2 / (2 W)`` and times
    ``2 n**2 m**2 + n s**2 log2(W)``; without a merge (``W = 1``) the second is zero. ValueError unless ``ways`` is a
    power of two.
    """
    if ways < 1 or ways & (ways - 1):
        raise ValueError(f"the corollary needs a power of two, not {ways} ways")
    scale = rounding_deviation(dtype) ** 2
    accumulation = n**3 * mean**2 / (3 * ways**2) + n**2 * deviation**2 / (2 * ways)
    merge = 2 * n**2 * mean**2 + n * deviation**2 * math.log2(ways) if ways > 1 else 0.0
    return scale * accumulation, scale * merge
