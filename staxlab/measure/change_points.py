"""Where a noisy sequence changes its level (Section 13.1): the best piecewise-constant fit, by dynamic programming.

A sequence that is constant but for noise, except at a few places, is divided into segments so that the sum of squared
deviations from each segment's mean, each in units of the noise's variance there, plus a penalty for every segment, is
least. With normal noise and the penalty ``2 ln n`` for each further segment (a place and a level, two parameters; Yao,
1988, "Estimating the number of change-points via Schwarz' criterion") a constant sequence is hardly ever divided, and
the places are found as the noise becomes small. All divisions are tried, none is guessed: the best division of a prefix
ends in some last segment, before which stands the best division of a shorter prefix (Jackson et al., 2005, "An
algorithm for optimal partitioning of data on an interval").

>>> [(s.start, s.stop, round(s.mean, 2)) for s in piecewise_constant([1.0, 1.1, 0.9, 1.0, 5.1, 4.9, 5.0, 5.0], 0.1)]
[(0, 4, 1.0), (4, 8, 5.0)]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import OptionError


@dataclass(frozen=True)
class Segment:
    """Elements ``start`` to ``stop`` (exclusive) and their ``mean``."""

    start: int
    stop: int
    mean: float

    def __len__(self) -> int:
        return self.stop - self.start


def piecewise_constant(
    values: Sequence[float], noise: float | Sequence[float], *, penalty: float | None = None
) -> tuple[Segment, ...]:
    """The division of ``values`` into constant segments of least cost.

    ``noise`` is the standard deviation of a value around its level, in the values' unit: one for all, or one for each.
    A segment's mean weighs values by the inverse of their variances. ``penalty`` is what each segment costs (``2 ln
    n``, but at least 4). Takes O(n^2) steps. OptionError for noise that is not above 0 or of another length, and for
    values that are not finite. The empty sequence has no segments.
    """
    count = len(values)
    spread = [float(noise)] * count if isinstance(noise, (int, float)) else list(noise)
    if len(spread) != count or not all(s > 0 and math.isfinite(s) for s in spread):
        raise OptionError("the noise of a sequence is one number above 0, or one for each value")
    if not all(map(math.isfinite, values)):
        raise OptionError("a sequence to be divided has finite values only")
    price = penalty if penalty is not None else max(2 * math.log(max(count, 1)), 4.0)
    center = sum(values) / count if count else 0.0  # small numbers, so that differences of sums lose nothing
    weights, sums, squares = [0.0], [0.0], [0.0]
    for value, deviation in zip(values, spread, strict=True):
        weight = 1 / deviation**2
        weights.append(weights[-1] + weight)
        sums.append(sums[-1] + weight * (value - center))
        squares.append(squares[-1] + weight * (value - center) ** 2)

    def cost(start: int, stop: int) -> float:
        total = sums[stop] - sums[start]
        return max(squares[stop] - squares[start] - total * total / (weights[stop] - weights[start]), 0.0)

    best, begins = [0.0], [0]
    for stop in range(1, count + 1):
        start = min(range(stop), key=lambda k: best[k] + cost(k, stop))
        best.append(best[start] + cost(start, stop) + price)
        begins.append(start)
    found = []
    stop = count
    while stop:
        start = begins[stop]
        mean = center + (sums[stop] - sums[start]) / (weights[stop] - weights[start])
        found.append(Segment(start, stop, mean))
        stop = start
    return tuple(reversed(found))


def joined(segments: Sequence[Segment], apart: float) -> tuple[Segment, ...]:
    """The segments, neighbours whose means differ by less than ``apart`` joined into one, the nearest first."""
    found = list(segments)
    while len(found) > 1:
        k = min(range(len(found) - 1), key=lambda k: abs(found[k].mean - found[k + 1].mean))
        a, b = found[k], found[k + 1]
        if abs(a.mean - b.mean) >= apart:
            break
        mean = (a.mean * len(a) + b.mean * len(b)) / (len(a) + len(b))
        found[k : k + 2] = [Segment(a.start, b.stop, mean)]
    return tuple(found)


def noise_of(readings: Sequence[Sequence[float]], window: int = 9) -> list[float]:
    """Standard deviation of the largest reading of each place, from the differences of two halves of its readings.

    ``readings`` holds for every place its readings in order; those of even and of odd number make the halves. The
    difference of the halves' largest has twice the variance of one of them, which is that of the largest of half as
    many readings: an estimate on the safe side. The scale is that of the median absolute difference over the ``window``
    places nearest by, which a few disturbed places do not move. NaN for all where a place has fewer than two readings.
    """
    if not readings or min(map(len, readings)) < 2:
        return [math.nan] * len(readings)
    differences = [abs(max(place[::2]) - max(place[1::2])) for place in readings]
    found = []
    for place in range(len(readings)):
        begin = max(0, min(place - window // 2, len(readings) - window))
        near = sorted(differences[begin : begin + window])
        middle = len(near) // 2
        found.append(1.4826 * (near[middle] + near[~middle]) / 2 / math.sqrt(2))
    return found
