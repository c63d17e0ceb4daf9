"""What the searches of Section 9.6 promise, on paper: acceptances, draws, readings.

Coordinate descent accepts boundedly often (Proposition 9.2), random search takes a number of draws that depends on what
is to be found and how surely, and on nothing else (Proposition 9.3), and successive halving spends what its plan says
(Exercise 52). Nothing here measures anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import OptionError


def acceptance_bound(size: int, start: float, fastest: float, threshold: float) -> int:
    """The most acceptances of coordinate descent, ``min(|Pi|, ceil(log(t(c0)/t_min) / -log(1 - epsilon)))``
    (Proposition 9.2).

    ``start`` and ``fastest`` are costs in seconds; any lower bound of the fastest will do, such as the least traffic
    over the bandwidth of the memory it comes from. From an infinite cost, or with a ``fastest`` of 0, only the size
    bounds.
    """
    if math.isinf(start) or fastest <= 0:
        return size
    steps = math.log(start / fastest) / -math.log1p(-threshold)
    return min(size, max(math.ceil(steps), 0))


def samples_needed(quantile: float, failure: float) -> int:
    """``ceil(ln(1/delta) / q)`` draws find one of the best ``q`` with a probability of at least ``1 - delta``
    (Proposition 9.3).

    >>> samples_needed(0.05, 0.05)
    60
    """
    check_shares(quantile, failure)
    return math.ceil(math.log(1 / failure) / quantile)


def fewest_samples(quantile: float, failure: float) -> int:
    """The smallest ``N`` with ``(1 - q)**N <= delta``, a little below :func:`samples_needed`.

    >>> fewest_samples(0.05, 0.05)
    59
    """
    check_shares(quantile, failure)
    count = max(math.floor(math.log(failure) / math.log1p(-quantile)) - 1, 1) if quantile < 1 else 1
    while (1 - quantile) ** count > failure:
        count += 1
    return count


def check_shares(quantile: float, failure: float) -> None:
    """OptionError unless both are shares above 0 and the failure is below 1."""
    if not 0 < quantile <= 1 or not 0 < failure < 1:
        raise OptionError(
            f"quantile {quantile} and failure {failure} must be shares above 0, the latter below 1",
            remedy="quantile=0.05, failure=0.05",
        )


@dataclass(frozen=True)
class HalvingRound:
    """One round of a plan: how many ``configurations`` are left, and how many ``readings`` each of them gets."""

    configurations: int
    readings: int

    @property
    def total(self) -> int:
        return self.configurations * self.readings


def halving_plan(configurations: int, budget: int | None = None, reduction: int = 2) -> tuple[HalvingRound, ...]:
    """How ``budget`` readings are spread: ``ceil(log(n) / log(reduction))`` rounds get the same share each, divided
    evenly (rounded down) among those left, of which ``1 / reduction`` (rounded up) go on.

    The default budget gives two readings to each in the first round. The total is at most the budget. OptionError for
    a budget that leaves a configuration of the first round without a reading.

    >>> [(r.configurations, r.readings) for r in halving_plan(8, 48)]
    [(8, 2), (4, 4), (2, 8)]
    """
    if configurations < 1 or reduction < 2:
        raise OptionError(
            "successive halving needs at least one configuration and a reduction of 2 or more, not "
            f"{configurations} and {reduction}"
        )
    left, sizes = configurations, []
    while left > 1:
        sizes.append(left)
        left = -(-left // reduction)
    if not sizes:
        return ()
    least = configurations * len(sizes)
    budget = 2 * least if budget is None else budget
    if budget < least:
        raise OptionError(
            f"{budget} readings are too few: {len(sizes)} rounds of equal share begin with {configurations} "
            f"configurations, which takes {least} or more"
        )
    return tuple(HalvingRound(size, budget // (size * len(sizes))) for size in sizes)
