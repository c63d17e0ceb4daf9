"""The bandwidth a case could have had, measured in the same readings as the case itself.

A machine shared with others drifts, and how fast memory is depends on how much of it is walked over. So the probes of
the roofline (``staxlab.measure.roofline_probes``) take turns with the peers, reading by reading, on buffers as large as
the case's largest tensor, and a kernel is compared with the probes' readings of the same round. What a kernel reads and
writes is weighed as :meth:`staxlab.measure.roofline.Roofline.limit` does: reading alone against the read-only probe, a
copy against the copy with streaming stores, mixes between them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks import deviations
from staxlab.measure.roofline import Probe, Roofline
from staxlab.measure.timing import Comparison, median, median_interval

#: Ahead of a probe's name, among the sides of a comparison.
PREFIX = "roof: "

PROBES = ("read", "copy", "streaming copy")

#: Buffers larger than this are read no differently.
MOST_BYTES = 256 << 20
LEAST_BYTES = 1 << 20


@dataclass
class Roofs:
    """Probes on buffers of ``nbytes``; their seconds in every round so far, as a list per probe."""

    nbytes: int
    probes: Sequence[Probe]
    readings: dict[str, list[float]] = field(default_factory=dict)

    @property
    def sides(self) -> dict[str, Callable[[], Any]]:
        return {PREFIX + probe.name: probe.run for probe in self.probes}

    def take(self, comparison: Comparison) -> Comparison:
        """Keep the probes' readings, and give back the comparison without them."""
        kept = []
        for timing in comparison.timings:
            if timing.name.startswith(PREFIX):
                self.readings.setdefault(timing.name.removeprefix(PREFIX), []).extend(timing.readings)
            else:
                kept.append(timing)
        return Comparison(tuple(kept), comparison.order, comparison.complete)

    def reading(self, number: int) -> Roofline:
        """The roof of one reading."""
        return self._roof({name: seconds[number] for name, seconds in self.readings.items()})

    def typical(self) -> Roofline:
        """The roof of the median readings."""
        return self._roof({name: median(seconds) for name, seconds in self.readings.items()})

    def _roof(self, seconds: dict[str, float]) -> Roofline:
        amounts = {probe.name: probe.amount for probe in self.probes}
        return deviations.roof_of(seconds, amounts, arithmetic_peak())

    def share(self, rows: Sequence[Any], seconds: Sequence[float]) -> dict[str, Any] | None:
        """Which part of a side's time its kernels would take at the roof: the median over readings of the same round,
        and its interval (Proposition 13.2). None without readings."""
        count = min([len(seconds), *(len(s) for s in self.readings.values())])
        shares = [deviations.seconds_at_roof(rows, self.reading(i)) / seconds[i] for i in range(count)]
        interval = median_interval(shares)
        return {"median": median(shares), "interval": interval.to_json()} if interval is not None else None

    def to_json(self) -> dict[str, Any]:
        typical = self.typical()
        return {
            "buffer_bytes": self.nbytes,
            "readings_s": self.readings,
            "bandwidth": {c.name: c.value for c in typical.of("bandwidth")},
            "arithmetic_peak": typical.throughput,
        }


def roofs_for(largest_bytes: int, device: str) -> Roofs | None:
    """Probes for a case whose largest input is so large; None on a GPU, whose roof ``staxlab roofline --device cuda``
    measures."""
    if device != "cpu":
        return None
    from staxlab.measure.roofline_probes import cpu_probes

    nbytes = min(max(largest_bytes, LEAST_BYTES), MOST_BYTES)
    probes, _ = cpu_probes(device, nbytes, True)
    return Roofs(nbytes, [probe for probe in probes if probe.name in PROBES])


@functools.cache
def arithmetic_peak() -> float:
    """Operations per second of the best of a few matrix products."""
    from staxlab.measure.timing import sample

    a, b, out = (torch.ones(1024, 1024) for _ in range(3))
    return 2 * 1024**3 / sample(lambda: torch.mm(a, b, out=out), readings=9).minimum


@functools.cache
def fault_seconds() -> float:
    """Seconds per page fault on this machine, measured once per process."""
    return deviations.seconds_per_fault()


def clear() -> None:
    """Forget what was measured once per process."""
    arithmetic_peak.cache_clear()
    fault_seconds.cache_clear()
