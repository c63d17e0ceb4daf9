"""The bandwidth a case could have had, measured in the same readings as the case itself (Section 13.2).

A machine shared with others drifts, and how fast memory is depends on how much of it is walked over. So the probes of
the roofline (:mod:`.roofline_probes`) take turns with the sides of a comparison, reading by reading, on buffers as
large as the case's largest tensor, and a kernel is compared with the probes' readings of the same round. What a kernel
reads and writes is weighed as :meth:`.roofline.Roofline.limit` does: reading alone against the read-only probe, a copy
against the copy with streaming stores, mixes between them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from .roofline import Ceiling, Point, Probe, Roofline
from .timing import Comparison, median, median_interval, sample

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
    device: str = "cpu"
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
        return roof_of(seconds, amounts, arithmetic_peak(self.device))

    def share(self, rows: Sequence[Any], seconds: Sequence[float]) -> dict[str, Any] | None:
        """Which part of a side's time its kernels would take at the roof: the median over readings of the same round,
        and its interval (Proposition 13.2). None without readings."""
        count = min([len(seconds), *(len(s) for s in self.readings.values())])
        shares = [seconds_at_roof(rows, self.reading(i)) / seconds[i] for i in range(count)]
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


def roofs_for(largest_bytes: int, device: str) -> Roofs:
    """Probes for a case whose largest input is so large. OptionError for a GPU that is not there."""
    from .roofline_probes import cpu_probes, cuda_probes

    nbytes = min(max(largest_bytes, LEAST_BYTES), MOST_BYTES)
    probes, _ = (cpu_probes if device == "cpu" else cuda_probes)(device, nbytes, True)
    return Roofs(nbytes, [probe for probe in probes if probe.name in PROBES], device)


@functools.cache
def arithmetic_peak(device: str = "cpu") -> float:
    """Operations per second of the best of a few matrix products of float32."""
    order = 1024 if device == "cpu" else 4096
    a, b, out = (torch.ones(order, order, device=device) for _ in range(3))
    return 2 * order**3 / sample(lambda: torch.mm(a, b, out=out), readings=9, device=device).minimum


def seconds_at_roof(rows: Sequence[Any], roof: Roofline) -> float:
    """Seconds operators or kernels (:class:`.bytes.TrafficRow`) take, one after the other, at the roof."""
    total = 0.0
    for row in rows:
        if row.nbytes:
            limit = roof.limit(Point(row.name, row.operations, row.nbytes, 1.0, row.bytes_read))
            total += (row.nbytes if limit.kind == "bandwidth" else row.operations) / limit.value
    return total


def without_streaming(roof: Roofline) -> Roofline:
    """The roof over kernels with ordinary stores."""
    return Roofline(tuple(c for c in roof.ceilings if not c.name.startswith("streaming")))


def roof_of(seconds: Mapping[str, float], nbytes: Mapping[str, float], peak: float | None) -> Roofline:
    """A roof from the times of bandwidth probes, and the arithmetic peak in operations/s if known."""
    ceilings = [Ceiling(name, "bandwidth", nbytes[name] / t) for name, t in seconds.items()]
    if peak is not None:
        ceilings.append(Ceiling("matmul", "throughput", peak))
    return Roofline(tuple(ceilings))


def clear() -> None:
    """Forget what was measured once per process."""
    arithmetic_peak.cache_clear()
