"""Where a speedup comes from (Definition 13.2, Proposition 13.3): fewer bytes, or bytes moved faster.

If eager execution moves ``b_e`` bytes by the byte model in ``T_e`` seconds and compiled execution ``b_c`` in ``T_c``,
then with the effective bandwidths ``beta = b / T``

    S = T_e / T_c = (b_e / b_c) * (beta_c / beta_e) = rho * quality.

``rho`` is known before anything is compiled; the quality of the kernels is what a measurement adds. It is one number
computed from two others, so all three must come from the same readings. A :class:`~.timing.Comparison` takes its sides
in turns, and its speedup is the median of the ratios round by round, in which drift of the machine cancels; dividing
the median times instead gives another number. So here too the speedup is the median of pairwise ratios. Every ratio of
bandwidths is that of the times divided by ``rho``, hence their median is too, and the identity is exact.

It means something only where time follows main-memory bytes. A call of some microseconds is mostly the launching of
operators, and tensors of a few megabytes stay in a cache between them: then the record says so and gives no quality.

>>> decompose(512 << 20, 128 << 20, 0.056, 0.005).rho
4.0
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from .tables import Table, Tabular, bytes_text, quantity_text, seconds_text
from .timing import MedianInterval, Ratio, Timing, pairwise

Seconds = float | Timing

#: Starting an operator takes some 5 us, so that four of them are a fifth of a call this short.
SHORTEST_CALL = 100e-6

#: What is no larger than this stays in the caches of most processors between two operators.
CACHED_BYTES = 8 << 20


@dataclass(frozen=True, repr=False)
class SpeedupDecomposition(Tabular):
    """Proposition 13.3: ``speedup == rho * quality``. Times are medians in seconds, bandwidths in bytes per second.

    ``ratio`` holds the pairwise ratios the speedup is the median of; without it the speedup is that of the two times.
    """

    eager_bytes: int
    compiled_bytes: int
    eager_seconds: float
    compiled_seconds: float
    ratio: Ratio | None = None

    @property
    def speedup(self) -> float:
        """``S``: the median of pairwise ratios, as the comparison itself prints it."""
        return self.ratio.median if self.ratio is not None else self.eager_seconds / self.compiled_seconds

    @property
    def interval(self) -> MedianInterval | None:
        """Confidence interval of the speedup (Proposition 13.2); None where only two durations are known."""
        return self.ratio.interval if self.ratio is not None else None

    @property
    def rho(self) -> float:
        """``b_e / b_c``: what the structure of the graph gives, known before compiling."""
        return self.eager_bytes / self.compiled_bytes

    @property
    def quality(self) -> float:
        """``beta_c / beta_e``: how much closer to the bandwidth ceiling the compiled kernels run."""
        return self.speedup / self.rho

    @property
    def eager_bandwidth(self) -> float:
        return self.eager_bytes / self.eager_seconds

    @property
    def compiled_bandwidth(self) -> float:
        return self.compiled_bytes / self.compiled_seconds

    @property
    def obstacle(self) -> str | None:
        """Why time does not follow main-memory bytes here, or None where it may."""
        shortest = min(self.eager_seconds, self.compiled_seconds)
        if shortest < SHORTEST_CALL:
            return f"a call of {seconds_text(shortest)} is in good part the launching of operators and kernels"
        if self.compiled_bytes <= CACHED_BYTES:
            return f"{bytes_text(self.compiled_bytes)} stay in the caches, so main memory is hardly asked"
        return None

    def table(self) -> Table:
        interval, rho = self.interval, self.rho
        rows = [
            ("model bytes", bytes_text(self.eager_bytes), bytes_text(self.compiled_bytes), f"{rho:.3g}"),
            ("time, median", seconds_text(self.eager_seconds), seconds_text(self.compiled_seconds),
             _with_interval(self.speedup, interval, 1.0)),
        ]  # fmt: skip
        if self.obstacle is None:
            rates = (quantity_text(rate, "B/s") for rate in (self.eager_bandwidth, self.compiled_bandwidth))
            rows.append(("bandwidth", *rates, _with_interval(self.quality, interval, rho)))
            said = f"speedup {self.speedup:.3g} = {rho:.3g} (bytes saved) x {self.quality:.3g} (kernel quality)"
        else:
            said = (
                f"speedup {self.speedup:.3g}, where {rho:.3g} times fewer bytes are moved; no kernel quality is given: "
                f"{self.obstacle}"
            )
        notes = [said]
        if self.ratio is not None:
            notes.append("the ratio of times is the median of pairwise ratios, not the ratio of the two medians")
        else:
            notes.append("two durations were given: the speedup is their ratio, without an interval")
        caption = "Where the speedup comes from (Proposition 13.3)"
        return Table.build(caption, ("", "eager", "compiled", "ratio"), rows, notes)

    def to_json(self) -> dict[str, Any]:
        interval = self.interval
        return {
            "speedup": self.speedup,
            "interval": interval.to_json() if interval else None,
            "rho": self.rho,
            "quality": self.quality,
            "obstacle": self.obstacle,
            "eager_bandwidth": self.eager_bandwidth,
            "compiled_bandwidth": self.compiled_bandwidth,
        }


def _with_interval(value: float, interval: MedianInterval | None, divisor: float) -> str:
    if interval is None:
        return f"{value:.3g}"
    return f"{value:.3g} [{interval.low / divisor:.3g}, {interval.high / divisor:.3g}]"


def decompose(eager_bytes: int, compiled_bytes: int, eager: Seconds, compiled: Seconds) -> SpeedupDecomposition:
    """Split a measured speedup (Proposition 13.3). ``eager`` and ``compiled`` are the two ``Timing`` of one comparison,
    or two durations in seconds. ValueError unless bytes and times are positive."""
    ratio = None
    if isinstance(eager, Timing) and isinstance(compiled, Timing):
        ratio = pairwise(eager, compiled)
    times = [side.median if isinstance(side, Timing) else side for side in (eager, compiled)]
    if min(eager_bytes, compiled_bytes) <= 0 or not min(times) > 0 or (ratio is not None and not ratio.readings):
        raise ValueError("bytes and times must be positive")
    return SpeedupDecomposition(eager_bytes, compiled_bytes, times[0], times[1], ratio)
