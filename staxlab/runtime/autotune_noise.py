"""What a cost is when it has to be measured, and when one may be called smaller than another (Section 9.6).

Every search of :mod:`staxlab.runtime.autotune` asks a *meter* for costs. Two kinds there are:

* :class:`Exact`: a function of the configuration that always gives the same value, asked once for each;
* :class:`Interleaved`: readings of a clock. Configurations that are to be compared take turns, reading by reading, so
  that the machine's drift hits all alike; the statistic is the median of the readings.

A measured cost is ``t * (1 + eta)``. With ``|eta| <= h`` for both sides, a challenger that measures below
``1 - epsilon`` times the incumbent is really faster if ``epsilon >= 2*h / (1 + h)`` (Section 9.6): from ``t' (1 - h)
<= measured' < (1 - epsilon) measured <= (1 - epsilon) t (1 + h)`` follows ``t' < t`` exactly if ``(1 - epsilon) (1 + h)
<= 1 - h``. So :func:`judge` demands the larger of the threshold asked for and this one, with ``h`` read off the
interval of the median (Proposition 13.2). What lies between the two is *undecided*, and the incumbent stays.

>>> round(noise_threshold(0.01), 4)
0.0198
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..codegen.configurations import Configuration
from ..errors import OptionError
from .order_statistics import median, median_interval

READINGS = 9  # of each side of a comparison; the interval of the median then covers more than 95%

ACCEPTED, REJECTED, UNDECIDED = "accepted", "rejected", "undecided"


def noise_threshold(noise: float) -> float:
    """The smallest threshold at which every acceptance is a real improvement, ``2*h / (1 + h)`` (Section 9.6), for a
    relative noise of at most ``h``. 1, which nothing can pass, for a noise that is not below 1."""
    return 2 * noise / (1 + noise) if noise < 1 else 1.0


@dataclass(frozen=True)
class Estimate:
    """The cost of a configuration as far as it is known: ``value`` in seconds (infinite where it cannot run), the
    ``readings`` it is the median of, and ``noise``, how far relative to the true cost the value may be off."""

    configuration: Configuration
    value: float
    readings: tuple[float, ...] = ()
    noise: float = 0.0

    @staticmethod
    def of(configuration: Configuration, readings: Sequence[float], noise: float | None = None) -> Estimate:
        """From readings in seconds. Their noise, where it is not known, is the distance of the median from the ends of
        its interval (Proposition 13.2), relative to those ends, which may be the true median. One reading says
        nothing about noise."""
        if any(math.isinf(reading) for reading in readings):
            return Estimate(configuration, math.inf, tuple(readings))
        value = median(readings)
        if noise is None:
            interval = median_interval(readings)
            assert interval is not None, "an estimate needs a reading"
            alone = len(readings) == 1
            noise = 1.0 if alone else max(value / interval.low - 1, 1 - value / interval.high)
        return Estimate(configuration, value, tuple(readings), noise)


def judge(incumbent: Estimate, challenger: Estimate, threshold: float = 0.0) -> tuple[str, float]:
    """Whether the challenger takes the incumbent's place: "accepted", "rejected" or "undecided", and the threshold that
    applied. O(1)."""
    if math.isinf(challenger.value):
        return REJECTED, threshold
    if math.isinf(incumbent.value):
        return ACCEPTED, threshold
    required = max(threshold, noise_threshold(max(incumbent.noise, challenger.noise)))
    if challenger.value < (1 - required) * incumbent.value:
        return ACCEPTED, required
    return (UNDECIDED if challenger.value < (1 - threshold) * incumbent.value else REJECTED), required


class Exact:
    """A cost function that gives the same value every time (as Proposition 9.2 assumes): each configuration is asked
    once, and its value kept. ``function`` maps a configuration, a tuple, to seconds: a number above 0, or infinity.

    A value that is no such number raises OptionError; whatever the function raises passes through.
    """

    statistic = "the value of the cost function"
    noisy = False

    def __init__(self, function: Callable[[Configuration], float]):
        self.function = function
        self.known: dict[Configuration, float] = {}

    @property
    def evaluations(self) -> int:
        """How often the function was called."""
        return len(self.known)

    @property
    def configurations(self) -> int:
        """How many configurations were asked for (each takes a compilation)."""
        return len(self.known)

    def together(self, configurations: Sequence[Configuration], readings: int | None = None) -> list[Estimate]:
        """The costs of these configurations."""
        for configuration in configurations:
            if configuration not in self.known:
                self.known[configuration] = checked_cost(self.function(configuration), configuration)
        return [Estimate(configuration, self.known[configuration]) for configuration in configurations]


class Interleaved:
    """Costs from readings. ``sample(configuration)`` takes one, in seconds (infinity for a configuration that cannot
    run, which is then not asked again).

    ``readings`` of each are taken for a comparison, in rounds: every round has one reading of every configuration, and
    begins with another of them than the round before. ``noise`` is a bound on the relative noise of a single
    reading, where one is known; by default it is estimated. OptionError for less than one reading.
    """

    noisy = True

    def __init__(self, sample: Callable[[Configuration], float], readings: int = READINGS, noise: float | None = None):
        if not isinstance(readings, int) or readings < 1:
            raise OptionError(f"at least one reading is needed, not {readings!r}", remedy="readings=9")
        if noise is not None and not 0 <= noise < 1:
            raise OptionError(f"a bound on the relative noise lies between 0 and 1, not at {noise}")
        self.sample, self.readings, self.noise = sample, readings, noise
        self.evaluations = 0
        self.asked: set[Configuration] = set()
        self.impossible: set[Configuration] = set()

    @property
    def statistic(self) -> str:
        return f"the median of {self.readings} readings, taken in turns with what it is compared with"

    @property
    def configurations(self) -> int:
        """How many configurations were asked for (each takes a compilation)."""
        return len(self.asked)

    def prepare(self, configurations: Sequence[Configuration]) -> None:
        """Let ``sample`` know, if it has a method ``prepare``, what will be asked for: it may compile that at once."""
        prepare = getattr(self.sample, "prepare", None)
        wanted = [c for c in dict.fromkeys(configurations) if c not in self.asked]
        if prepare is not None and wanted:
            prepare(wanted)

    def together(self, configurations: Sequence[Configuration], readings: int | None = None) -> list[Estimate]:
        """Measure these configurations side by side, ``readings`` of each (by default the meter's own number)."""
        self.prepare(configurations)
        distinct = list(dict.fromkeys(configurations))
        taken: dict[Configuration, list[float]] = {configuration: [] for configuration in distinct}
        for round_ in range(readings or self.readings):
            shift = round_ % len(distinct) if distinct else 0
            for configuration in (*distinct[shift:], *distinct[:shift]):
                if configuration not in self.impossible:
                    taken[configuration].append(self._reading(configuration))
        found = {
            configuration: Estimate(configuration, math.inf)
            if configuration in self.impossible
            else Estimate.of(configuration, values, self.noise)
            for configuration, values in taken.items()
        }
        return [found[configuration] for configuration in configurations]

    def _reading(self, configuration: Configuration) -> float:
        self.asked.add(configuration)
        value = checked_cost(self.sample(configuration), configuration)
        self.evaluations += 1
        if math.isinf(value):
            self.impossible.add(configuration)
        return value


Meter = Exact | Interleaved


def meter_of(cost: Any) -> Any:
    """A meter as it is; a function as one that always gives the same value. OptionError for anything else."""
    if hasattr(cost, "together"):
        return cost
    if not callable(cost):
        raise OptionError(
            f"a cost is a function of a configuration, not {type(cost).__name__}",
            remedy="def cost(configuration): return seconds",
        )
    return Exact(cost)


def checked_cost(value: Any, configuration: Configuration) -> float:
    """A cost in seconds as a float. OptionError for what is no number above 0 (Definition 9.2)."""
    try:
        number = value.item() if callable(getattr(value, "item", None)) else value
    except (RuntimeError, ValueError):  # a tensor or an array of several
        number = None
    real = isinstance(number, numbers.Real) and not isinstance(number, bool)
    if not real or math.isnan(number) or number <= 0:
        raise OptionError(
            f"the cost of {configuration} is {value!r}: a cost is a number of seconds above 0, or infinity",
            remedy="return float('inf') for a configuration that cannot run",
        )
    return float(number)
