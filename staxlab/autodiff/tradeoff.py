"""Storage against computation: what each schedule pays for reversing the same chain (Section 5.8).

Every point is a reversal order that was run (``reversal.simulate``): the slots it used and the forward steps it
computed. Saving everything and recomputing everything are the two ends. Equal segments (Theorem 5.3) never come below
``2 sqrt(l)`` slots: there they turn back, ``c`` and ``l / c`` segments paying nearly the same. The binomial orders
(Theorem 5.4) go all the way, and are the boundary below which no order lies.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..specialize.report import counted
from .checkpoint import CheckpointError, binomial, recompute_all, save_all, uniform_segments
from .reversal import Reversal

LONGEST = 5000  # steps of a chain whose orders are run
EXTREMES, UNIFORM, BINOMIAL = "extremes", "uniform segments", "binomial"


@dataclass(frozen=True)
class TradePoint:
    """One schedule: its family, its name, the most slots it used, forward steps computed in all and of one step."""

    family: str
    name: str
    slots: int
    evaluations: int
    repetitions: int


@dataclass(frozen=True)
class TradeOff:
    """Schedules of one chain of ``length`` steps, by family and, within one, by slots."""

    length: int
    points: tuple[TradePoint, ...]

    def of(self, family: str) -> tuple[TradePoint, ...]:
        """The points of one family."""
        return tuple(point for point in self.points if point.family == family)

    HEADINGS = ("schedule", "slots", "forward evaluations", "per step", "one step at most")

    def rows(self) -> list[tuple[str, int, int, float, int]]:
        """(schedule, slots, forward evaluations, evaluations per step, the most of one step), for a table."""
        return [
            (point.name, point.slots, point.evaluations, round(point.evaluations / self.length, 2), point.repetitions)
            for point in self.points
        ]

    def format(self) -> str:
        """A table."""
        rows = [self.HEADINGS, *((name, *(f"{number:,}" for number in numbers)) for name, *numbers in self.rows())]
        widths = [max(len(row[k]) for row in rows) for k in range(len(self.HEADINGS))]
        lines = [f"storage against computation: a chain of {counted(self.length, 'step')}"]
        for name, *numbers in rows:
            cells = [number.rjust(width) for number, width in zip(numbers, widths[1:], strict=True)]
            lines.append("  ".join([name.ljust(widths[0]), *cells]))
        return "\n".join(lines)

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def trade_off(length: int, most: int = 16) -> TradeOff:
    """Run the schedules for a chain of ``length`` steps; of the two families about ``most`` members each, their
    parameters spread evenly on a logarithmic scale.

    Takes time in proportion to ``most * length`` and to the forward steps computed, ``length^2 / 2`` for the dearest.
    Raises CheckpointError for no step, or more than a few thousand.
    """
    if not 1 <= length <= LONGEST:
        raise CheckpointError(f"no orders are run for {length:,} steps", remedy=f"choose from 1 to {LONGEST:,}")
    count = max(most, 2)
    parameters = sorted({round(length ** (k / (count - 1))) for k in range(count)} | {round(length**0.5)})
    points = [_point(EXTREMES, save_all(length)), _point(EXTREMES, recompute_all(length))]
    points += [_point(UNIFORM, uniform_segments(length, segments)) for segments in parameters]
    points += [_point(BINOMIAL, binomial(length, slots)) for slots in parameters]
    return TradeOff(length, tuple(points))


def _point(family: str, run: Reversal) -> TradePoint:
    return TradePoint(family, run.name, run.peak_slots, run.forward_evaluations, run.repetitions)
