"""Medians and their confidence intervals without a model of the noise (Proposition 13.2).

Of ``n`` independent readings, the number that lie below the true median is Binomial(n, 1/2), whatever their
distribution. So two of the sorted readings, chosen by rank before anything was read, enclose the median with a
probability that is a sum of binomial coefficients. Whoever measures needs this: :mod:`staxlab.measure.timing` to report
a duration, :mod:`staxlab.runtime.autotune_noise` to say whether one launch configuration is faster than another.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


def median_coverage(n: int, j: int, k: int) -> float:
    """Probability that ``[X_(j), X_(k))`` of ``n`` readings contains the median (Proposition 13.2). Exact, O(n).

    Raises ValueError unless ``1 <= j <= k <= n``; the interval of a single order statistic (``j == k``) covers nothing.
    """
    if not 1 <= j <= k <= n:
        raise ValueError(f"order statistics must satisfy 1 <= j <= k <= n, got j={j}, k={k}, n={n}")
    return sum(math.comb(n, i) for i in range(j, k)) / 2**n


def median_ranks(n: int, confidence: float = 0.95) -> tuple[int, int]:
    """The ranks ``(j, k)``, ``j + k = n + 1``, of the narrowest equal-tailed interval that covers at least
    ``confidence``.

    The ranks depend on ``n`` alone, never on the readings: choosing them after looking would void the guarantee. With
    too few readings even ``(1, n)`` falls short; it is returned all the same, and the interval reports its coverage.
    """
    if n < 1:
        raise ValueError("an interval needs at least one reading")
    for j in range((n + 1) // 2, 0, -1):
        if median_coverage(n, j, n + 1 - j) >= confidence:
            return j, n + 1 - j
    return 1, n


def readings_for_range(confidence: float) -> int:
    """The fewest readings whose minimum and maximum enclose the median with at least ``confidence``: ``1 -
    2**(1-n)``."""
    if not 0 < confidence < 1:
        raise ValueError("confidence must lie strictly between 0 and 1")
    n = 1
    while 1 - 2.0 ** (1 - n) < confidence:
        n += 1
    return n


@dataclass(frozen=True)
class MedianInterval:
    """A confidence interval for a median: the ``j``-th to the ``k``-th smallest of ``n`` readings, and its coverage."""

    low: float
    high: float
    j: int
    k: int
    n: int
    coverage: float

    def contains(self, value: float) -> bool:
        return self.low <= value <= self.high

    def to_json(self) -> dict[str, Any]:
        return {"low": self.low, "high": self.high, "j": self.j, "k": self.k, "n": self.n, "coverage": self.coverage}


def median_interval(readings: Sequence[float], confidence: float = 0.95) -> MedianInterval | None:
    """The distribution-free interval of Proposition 13.2; None without readings. O(n log n)."""
    if not readings:
        return None
    ordered = sorted(readings)
    n = len(ordered)
    j, k = median_ranks(n, confidence)
    return MedianInterval(ordered[j - 1], ordered[k - 1], j, k, n, median_coverage(n, j, k))


def median(readings: Sequence[float]) -> float:
    """The middle reading, or the mean of the middle two; NaN without readings."""
    return statistics.median(readings) if readings else math.nan
