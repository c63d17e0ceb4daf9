"""When compiling pays (Section 13.4): three small cost models, each a formula one can invert in the head.

Compiling costs ``C`` once (seconds), a call then costs ``t_c`` instead of ``t_e``; the versions a workload needs
multiply ``C``; and the fixed overhead of a call decides how large a tensor must be before fusion wins at all.

>>> round(break_even(5.6, 15e-3, 3.4e-3).calls)
483
>>> round(expected_versions([1 / 512] * 512, 1000))
440
>>> bucket_bound(1, 512)
10
>>> f"{minimum_size(2, 1.8e-6, 12.0e-6, 49.4e9):.1e}"
'5.2e+04'
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..shapes.bucketing import bucket as bucket
from ..shapes.bucketing import bucket_bound as bucket_bound
from .tables import Table, Tabular, seconds_text


@dataclass(frozen=True, repr=False)
class BreakEven(Tabular):
    """Proposition 13.4 for one function. Times in seconds; ``versions`` specialized versions cost ``compile_time``
    each."""

    compile_time: float
    eager_time: float
    compiled_time: float
    versions: float = 1.0

    @property
    def calls(self) -> float:
        """``m* = K*C / (t_e - t_c)``; infinite when a compiled call is not faster."""
        saved = self.eager_time - self.compiled_time
        return self.versions * self.compile_time / saved if saved > 0 else math.inf

    @property
    def first_winning_call(self) -> int | None:
        """The smallest whole number of calls after which compiling has cost no more; None if that never happens."""
        return math.ceil(self.calls) if math.isfinite(self.calls) else None

    def total(self, calls: float) -> tuple[float, float]:
        """Seconds spent after ``calls`` calls: (eager, compiled)."""
        return calls * self.eager_time, self.versions * self.compile_time + calls * self.compiled_time

    def table(self) -> Table:
        rows = (
            ("compile, once per version", seconds_text(self.compile_time)),
            ("versions", f"{self.versions:g}"),
            ("eager call", seconds_text(self.eager_time)),
            ("compiled call", seconds_text(self.compiled_time)),
            (
                "break-even after",
                f"{self.first_winning_call} calls" if self.first_winning_call is not None else "never",
            ),
        )
        return Table.build("Break-even of compilation (Proposition 13.4)", ("quantity", "value"), rows)

    def to_json(self) -> dict[str, Any]:
        return {
            "compile_s": self.compile_time,
            "eager_s": self.eager_time,
            "compiled_s": self.compiled_time,
            "versions": self.versions,
            "calls": self.calls if math.isfinite(self.calls) else None,
        }


def break_even(compile_time: float, eager_time: float, compiled_time: float, versions: float = 1.0) -> BreakEven:
    """Proposition 13.4. Seconds in, a record out. ValueError for negative times or a ``versions`` below zero."""
    if min(compile_time, eager_time, compiled_time, versions) < 0:
        raise ValueError("times and the number of versions cannot be negative")
    return BreakEven(compile_time, eager_time, compiled_time, versions)


def expected_versions(distribution: Mapping[Any, float] | Sequence[float], calls: int) -> float:
    """Proposition 13.5: expected number of distinct shapes among ``calls`` independent draws, ``sum(1 - (1 - p)**m)``.

    ``distribution`` gives the probability of each shape. ValueError unless they are nonnegative and sum to 1 (to 1e-6).
    """
    chances = list(distribution.values() if isinstance(distribution, Mapping) else distribution)
    if any(p < 0 for p in chances) or not math.isclose(math.fsum(chances), 1.0, abs_tol=1e-6):
        raise ValueError("probabilities must be nonnegative and sum to 1")
    if calls < 0:
        raise ValueError("the number of calls cannot be negative")
    # expm1 and log1p keep small probabilities accurate, where 1 - (1 - p)**m would cancel.
    return math.fsum(float(calls > 0) if p >= 1 else -math.expm1(calls * math.log1p(-p)) for p in chances)


def minimum_size(
    operators: int,
    eager_overhead: float,
    compiled_overhead: float,
    bandwidth: float,
    *,
    reads: Sequence[int] | None = None,
    external_reads: int | None = None,
    itemsize: int = 4,
) -> float:
    """Proposition 13.6: elements above which one fused kernel beats ``operators`` pointwise operators.

    ``eager_overhead`` seconds per operator, ``compiled_overhead`` seconds per call, ``bandwidth`` bytes per second, the
    same for both. ``reads[i]`` is how many full-size tensors operator ``i`` reads (default 1 each; every operator
    writes one) and ``external_reads`` how many distinct tensors the chain as a whole reads from outside (default: what
    ``reads`` leaves after each operator takes the previous result).

    Zero or less means always faster. Infinite when fusion saves no traffic (one operator) and costs more overhead.
    """
    if operators < 1:
        raise ValueError("a chain has at least one operator")
    counts = [1] * operators if reads is None else list(reads)
    if len(counts) != operators or min(counts) < 1:
        raise ValueError("reads gives one number, at least 1, per operator")
    if bandwidth <= 0 or itemsize <= 0:
        raise ValueError("bandwidth and itemsize are positive")
    outside = sum(counts) - (operators - 1) if external_reads is None else external_reads
    saved_tensors = sum(counts) + operators - (outside + 1)
    extra = compiled_overhead - operators * eager_overhead
    if saved_tensors <= 0:
        return math.inf if extra >= 0 else 0.0
    return extra * bandwidth / (itemsize * saved_tensors)
