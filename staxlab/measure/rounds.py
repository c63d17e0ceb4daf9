"""Measuring in rounds (Section 13.1): what the interval of one round leaves out.

The interval of a median (Proposition 13.2) holds for readings that are independent and alike. Within one round of
alternating readings they nearly are; between rounds the load of the machine, its clock and where its pages lie have
changed, and all readings of a round share that. So a second round often lies outside the first one's interval. How far
apart the rounds are is the magnitude of a *systematic* error, which no number of further readings in one round removes.

Two things follow.

* The readings of several rounds must not be pooled: ``r * n`` readings are not ``r * n`` independent ones. What is
  independent are the medians of the rounds, and Proposition 13.2 applies to those (:meth:`Rounds.overall`). Two rounds
  enclose the overall median with probability 1/2 only; for 95% it takes six.
* A speedup is *established* (Section 13.5) if all rounds agree about its direction, each beyond its own interval, and
  if it is larger than the drift of the ratio between rounds, by a margin (:meth:`Rounds.verdict`). Effects and drifts
  are factors: both are compared as logarithms, so that twice as fast and half as fast count alike.

Why a margin: where two sides do not differ at all and the ratio of each round is off by an independent normal error
that is far larger than the interval of a round, two rounds still agree about a direction and differ by less than
``1/c`` of their mean with probability ``(2/pi) atan(1/(2c))``.

>>> round(chance_of_agreement(1.0), 3), round(chance_of_agreement(2.0), 3), round(chance_of_agreement(3.0), 3)
(0.295, 0.156, 0.105)

The text asks for effects "much larger" than the difference of rounds; here that is :data:`MARGIN` times as large. In
alternating readings drift hits both sides alike, and the ratio drifts far less than either side does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .tables import Table, Tabular, seconds_text
from .timing import Comparison, MedianInterval, Progress, Ratio, compare, median, median_interval, pairwise

FORMAT = "staxlab-rounds-1"

#: An effect is established if it is this many times as large as the drift between rounds.
MARGIN = 2.0


def chance_of_agreement(margin: float) -> float:
    """How often two rounds call a difference larger than ``margin`` times their drift, where there is none:
    ``(2/pi) atan(1/(2 margin))``, for independent normal errors of the rounds and ``margin`` at least 1/2.

    ValueError for a smaller margin: such a pair of rounds may disagree about the direction.
    """
    if margin < 0.5:
        raise ValueError(f"a margin is at least 1/2, not {margin}")
    return 2 / math.pi * math.atan(1 / (2 * margin))


def round_name(number: int) -> str:
    """A, B, C ... as the text calls its rounds; AA follows Z."""
    name = ""
    number += 1
    while number:
        number, letter = divmod(number - 1, 26)
        name = chr(65 + letter) + name
    return name


@dataclass(frozen=True)
class Verdict:
    """Whether a difference is established. ``effect`` and ``drift`` are factors, at least 1; ``reason`` says in words
    which condition failed, or that all hold."""

    established: bool
    effect: float
    drift: float
    reason: str

    def __str__(self) -> str:
        return f"{'established' if self.established else 'not established'}: {self.reason}"

    def to_json(self) -> dict[str, Any]:
        return {
            "established": self.established, "effect": self.effect, "drift": self.drift, "reason": self.reason,
        }  # fmt: skip


@dataclass(frozen=True, repr=False)
class Rounds(Tabular):
    """Comparisons of the same sides, made one after the other: ``rounds[0]`` is A. Times in seconds per call.

    ``planned`` rounds were asked for; fewer, or an incomplete last one, mean that measuring was interrupted.
    """

    rounds: tuple[Comparison, ...]
    planned: int = 0

    @property
    def complete(self) -> bool:
        return len(self.rounds) >= self.planned and all(comparison.complete for comparison in self.rounds)

    @property
    def names(self) -> tuple[str, ...]:
        """The sides, baseline first."""
        return tuple(timing.name for timing in self.rounds[0].timings) if self.rounds else ()

    def medians(self, side: str) -> tuple[float, ...]:
        """The median of a side in each round that has readings of it, in seconds."""
        return tuple(comparison[side].median for comparison in self.rounds if comparison[side].readings)

    def intervals(self, side: str) -> tuple[MedianInterval, ...]:
        """The interval of each of these medians (Proposition 13.2)."""
        return tuple(i for comparison in self.rounds if (i := comparison[side].interval()) is not None)

    def minimum(self, side: str) -> float:
        """The shortest reading of all rounds (Proposition 13.1); NaN without readings."""
        return min((t for comparison in self.rounds for t in comparison[side].readings), default=math.nan)

    def ratios(self, faster: str, slower: str | None = None) -> tuple[Ratio, ...]:
        """The speedup of ``faster`` over ``slower`` (default: the baseline) in each round that has readings of both."""
        found = (pairwise(c[slower] if slower is not None else c.baseline, c[faster]) for c in self.rounds)
        return tuple(ratio for ratio in found if ratio.readings)

    def drift(self, side: str) -> float:
        """The largest median of a side over its smallest: a factor, 1 where rounds agree; NaN without readings."""
        return _spread(self.medians(side))

    def overall(self, side: str, confidence: float = 0.95) -> MedianInterval | None:
        """Interval of the overall median: Proposition 13.2 on the medians of the rounds, which are taken to be
        independent and alike. Its coverage says what so few rounds are good for; None without readings."""
        return median_interval(self.medians(side), confidence)

    def speedup(self, faster: str, slower: str | None = None) -> float:
        """The median over rounds of the speedups; NaN without readings."""
        return median([ratio.median for ratio in self.ratios(faster, slower)])

    def verdict(self, faster: str, slower: str | None = None, margin: float = MARGIN) -> Verdict:
        """Whether the difference of two sides is established: at least two rounds, every interval on the same side of
        1, and an effect larger than ``margin`` times the drift (as logarithms). ValueError without readings, and for a
        ``margin`` below 1/2."""
        ratios = self.ratios(faster, slower)
        if not ratios:
            raise ValueError(f"there are no readings of {faster}")
        if margin < 0.5:
            raise ValueError(f"a margin is at least 1/2, not {margin}")
        medians = [ratio.median for ratio in ratios]
        effect, drift = math.exp(abs(math.log(median(medians)))), _spread(medians)
        intervals = [ratio.interval for ratio in ratios]
        if len(ratios) < 2:
            reason = "one round shows nothing about the drift between rounds"
        elif not (all(m > 1 for m in medians) or all(m < 1 for m in medians)):
            reason = "the rounds disagree about which side is faster"
        elif any(i.low <= 1 <= i.high for i in intervals):
            reason = "the interval of a round holds the ratio 1"
        elif math.log(effect) <= margin * math.log(drift):
            reason = f"the effect, {effect:.3g} times, does not exceed the drift, {drift:.4g} times, by enough"
        else:
            reason = f"all rounds agree, and the effect, {effect:.3g} times, exceeds the drift, {drift:.4g} times"
            return Verdict(True, effect, drift, reason)
        return Verdict(False, effect, drift, reason)

    def without(self, prefix: str) -> Rounds:
        """The rounds without the sides whose name begins so."""
        kept = tuple(
            replace(c, timings=tuple(t for t in c.timings if not t.name.startswith(prefix))) for c in self.rounds
        )
        return replace(self, rounds=kept)

    def table(self) -> Table:
        columns = ["side", *(f"round {round_name(r)}" for r in range(len(self.rounds))), "drift"]
        columns += ["interval of the overall median", "coverage"]
        rows = []
        for name in self.names:
            cells = []
            for comparison in self.rounds:
                timing = comparison[name]
                interval = timing.interval()
                ends = f" [{seconds_text(interval.low)}, {seconds_text(interval.high)}]" if interval else ""
                cells.append(seconds_text(timing.median) + ends)
            overall = self.overall(name)
            ends = f"{seconds_text(overall.low)} .. {seconds_text(overall.high)}" if overall else "n/a"
            rows.append(
                (
                    name,
                    *cells,
                    f"{self.drift(name):.3g}" if overall else "n/a",
                    ends,
                    f"{overall.coverage:.0%}" if overall else "n/a",
                )
            )
        return Table.build("Medians round by round (Section 13.1)", columns, rows, self._notes())

    def _notes(self) -> list[str]:
        notes = ["in brackets: the interval of the round's own median (Proposition 13.2); drift: largest over smallest"]
        for name in self.names[1:]:
            if ratios := self.ratios(name):
                said = " / ".join(f"{ratio.median:.3g}" for ratio in ratios)
                notes.append(f"{self.names[0]} / {name} = {said}; {self.verdict(name)}")
        return notes if self.complete else [*notes, "interrupted: what was measured until then"]

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types; :meth:`from_json` is its inverse."""
        return {
            "format": FORMAT,
            "planned": self.planned,
            "complete": self.complete,
            "rounds": [comparison.to_json() for comparison in self.rounds],
            "drift": {name: _number(self.drift(name)) for name in self.names},
            "verdicts": {n: self.verdict(n).to_json() for n in self.names[1:] if self.ratios(n)},
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Rounds:
        """ValueError for data of another format."""
        if data.get("format") != FORMAT:
            raise ValueError(f"no rounds written by this version (format {data.get('format')!r}, expected {FORMAT!r})")
        return cls(tuple(Comparison.from_json(entry) for entry in data["rounds"]), data["planned"])


def measure_rounds(
    sides: Mapping[str, Callable[[], Any]],
    *,
    rounds: int = 2,
    progress: Progress | None = None,
    between: Callable[[], None] | None = None,
    **settings: Any,
) -> Rounds:
    """Compare the sides ``rounds`` times over, each time as :func:`.timing.compare` does it with these ``settings``.

    ``between`` is called before every round but the first: it may wait, or leave the machine in another state. Ctrl-C
    ends early with what was measured. ValueError for fewer than one round, and what ``compare`` raises.
    """
    if rounds < 1:
        raise ValueError("at least one round is needed")
    found: list[Comparison] = []
    for r in range(rounds):
        report = _of_round(progress, r, rounds)
        try:
            if between is not None and r:
                between()
            comparison = compare(sides, progress=report, **settings)
        except KeyboardInterrupt:
            break
        if any(timing.readings for timing in comparison.timings) or not found:
            found.append(comparison)
        if not comparison.complete:
            break
    return Rounds(tuple(found), rounds)


def _of_round(progress: Progress | None, number: int, rounds: int) -> Progress | None:
    if progress is None:
        return None
    return lambda fraction, message: progress(
        (number + fraction) / rounds, f"round {round_name(number)} of {rounds}: {message}"
    )


def _spread(values: Sequence[float]) -> float:
    return max(values) / min(values) if values else math.nan


def _number(value: float) -> float | None:
    return value if math.isfinite(value) else None
