"""Why a measured speedup is not the predicted one (Proposition 13.3), from counts and not from stories.

If both sides ran at the bandwidth the machine was seen to reach for their mix of reads and writes, the speedup would be

    S = rho * beta_c / beta_e,    beta = bytes of the model / time at the roof.

Measured times are longer. Each side's excess is split into what can be counted or measured on its own:

* **page faults**: minor faults during a call, times what one costs on this machine (a fresh buffer filled, against one
  that is there). A pool of results saves them;
* **write-allocate**: an ordinary store first fetches the line it overwrites. Counted for the bytes written by ordinary
  stores into pages that were not faulted in (zeroing them has put them into the cache), as the difference of the
  measured bandwidths of copying with ordinary and with streaming stores;
* **arithmetic**: how long the same work takes on data that fits into the cache, where it exceeds the time at the roof;
* **copies**: results that are computed elsewhere and then copied to where they belong (``preallocated``), by the
  bandwidth of copying with ordinary stores;
* **caches**: a time below the roof, where data stayed in a cache between operators or calls.

What is left is called unexplained.
"""

from __future__ import annotations

import functools
import resource
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from benchmarks.cases import Case
from benchmarks.peers import Peer
from staxlab.measure.roofline import Point, Roofline
from staxlab.measure.roofs import seconds_at_roof, without_streaming
from staxlab.measure.tables import seconds_text

#: A measured speedup further than this from the predicted one needs a cause.
LARGE = 0.2

#: A cause that makes up less of a side's time than this is not named.
NAMED = 0.1

PAGE = 4096

#: Elements of a tensor that stays in the cache of a core or two, with its results and temporaries.
CACHED_ELEMENTS = 1 << 18


def faults_of(run: Callable[[], Any], calls: int = 5) -> int:
    """Minor page faults of a call, all threads counted: the median of ``calls`` calls, each result dropped at once."""
    counts = []
    for _ in range(calls):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        run()
        counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return sorted(counts)[calls // 2]


@functools.cache
def seconds_per_fault(nbytes: int = 64 << 20, readings: int = 7) -> float:
    """What a page fault costs: a new tensor filled, against one that is there, divided by the faults counted. Measured
    once per process."""
    from staxlab.measure.timing import compare

    existing = torch.zeros(nbytes // 4)
    new = lambda: torch.empty(nbytes // 4).fill_(0.0)  # noqa: E731
    timed = compare({"new": new, "existing": lambda: existing.fill_(0.0)}, readings=readings, calls=1)
    faults = faults_of(new)
    return max(timed["new"].median - timed["existing"].median, 0.0) / faults if faults else 0.0


def seconds_in_cache(case: Case, size: tuple[int, int], peer: Peer, settings: Any) -> float | None:
    """Seconds the case's work would take if all its data were in the cache: its time on a few rows, per row and
    without what a call costs at any size. None where a few rows do not fit, or do not run."""
    from staxlab.measure.timing import compare

    rows = 2
    while 2 * rows * size[1] <= CACHED_ELEMENTS:
        rows *= 2
    if rows * size[1] > CACHED_ELEMENTS or rows < 4 or rows >= size[0]:
        return None
    try:
        small = {}
        for count in (rows, rows // 2):
            inputs = case.make_inputs((count, size[1]), settings.torch_dtype(), settings.device, settings.seed)
            small[str(count)] = peer.prepare(case, inputs).run
        timed = compare(small, readings=9)
    except Exception:  # a case may need more rows than that
        return None
    slope = (timed[str(rows)].median - timed[str(rows // 2)].median) / (rows - rows // 2)
    return slope * size[0] if slope > 0 else None


# --- One side ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Budget:
    """Where one side's time goes. ``at_roof`` is the model's time, ``excess`` seconds beyond it by cause."""

    side: str
    seconds: float
    at_roof: float
    faults: int
    excess: Mapping[str, float] = field(default_factory=dict)

    @property
    def unexplained(self) -> float:
        return self.seconds - self.at_roof - sum(self.excess.values())

    def named(self) -> list[str]:
        """What a reader should know, largest first; unexplained time only where nothing else is as large."""
        causes = dict(self.excess)
        if self.unexplained > max([NAMED * self.seconds, *causes.values()]):
            causes["unexplained"] = self.unexplained
        parts = []
        for name, seconds in sorted(causes.items(), key=lambda item: -abs(item[1])):
            if abs(seconds) < NAMED * self.seconds:
                continue
            of = f"{seconds_text(abs(seconds))} of {seconds_text(self.seconds)}"
            if name == "page faults":
                parts.append(f"{of} are {self.faults:,} page faults of new memory")
            elif name == "write-allocate":
                parts.append(f"{of} fetch lines that are then overwritten")
            elif name == "arithmetic":
                parts.append(f"bound by arithmetic, {seconds_text(self.at_roof + seconds)} even with all data in cache")
            elif name == "copies":
                parts.append(f"{of} copy results to where they belong")
            elif name == "caches":
                parts.append(f"{seconds_text(-seconds)} below the roof: data stayed in a cache")
            else:
                parts.append(f"{of} unexplained")
        return [f"{self.side}: {part}" for part in parts]

    def to_json(self) -> dict[str, Any]:
        return {
            "seconds": self.seconds,
            "seconds_at_roof": self.at_roof,
            "page_faults": self.faults,
            "excess_s": dict(self.excess),
            "unexplained_s": self.unexplained,
        }


def budget(
    side: str,
    seconds: float,
    rows: Sequence[Any],
    roof: Roofline,
    *,
    streaming: bool,
    faults: int,
    fault_seconds: float,
    in_cache: float | None = None,
    copied_bytes: int = 0,
) -> Budget:
    """The :class:`Budget` of a side whose operators or kernels are ``rows`` (``measure.bytes.TrafficRow``).

    ``streaming`` says whether its stores bypass the caches, ``fault_seconds`` what a fault costs, ``in_cache`` the
    result of :func:`seconds_in_cache`, ``copied_bytes`` how large the results are that are copied afterwards.
    """
    at_roof = seconds_at_roof(rows, roof)
    excess: dict[str, float] = {}
    if faults:
        excess["page faults"] = min(faults * fault_seconds, max(seconds - at_roof, 0.0))
    if copied_bytes:
        rate = without_streaming(roof).limit(Point("copy", 0, 2 * copied_bytes, 1.0, copied_bytes)).value
        excess["copies"] = min(2 * copied_bytes / rate, max(seconds - at_roof - sum(excess.values()), 0.0))
    if not streaming:
        allocated = seconds_at_roof(rows, without_streaming(roof)) - at_roof
        written = sum(row.bytes_written for row in rows)
        share = max(1.0 - faults * PAGE / written, 0.0) if written else 0.0
        left = max(seconds - at_roof - sum(excess.values()), 0.0)
        if min(allocated * share, left) > 0:
            excess["write-allocate"] = min(allocated * share, left)
    if in_cache is not None and in_cache > at_roof:
        left = max(seconds - at_roof - sum(excess.values()), 0.0)
        if min(in_cache - at_roof, left) > 0:
            excess["arithmetic"] = min(in_cache - at_roof, left)
    if seconds < at_roof:
        excess["caches"] = seconds - at_roof
    return Budget(side, seconds, at_roof, faults, excess)


# --- Both sides -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Deviation:
    """Measured against predicted speedup over eager; ``causes`` in words, from the numbers of both budgets."""

    measured: float
    rho: float
    eager: Budget
    compiled: Budget

    @property
    def predicted(self) -> float:
        """``rho * beta_c / beta_e``, with both bandwidths those of the roof."""
        return self.eager.at_roof / self.compiled.at_roof

    @property
    def roof_ratio(self) -> float:
        return self.predicted / self.rho

    @property
    def relative(self) -> float:
        return self.measured / self.predicted - 1

    @property
    def causes(self) -> list[str]:
        """None are needed where the two agree within 20%."""
        if abs(self.relative) <= LARGE:
            return []
        causes = self.eager.named() + self.compiled.named()
        if self.eager.faults and not self.compiled.faults:
            causes.append("staxlab: no page faults, its results come from memory used before")
        return causes or ["no single cause exceeds a tenth of either side's time"]

    def text(self) -> str:
        """``S = 5.1 measured, 4.4 predicted = 4 (bytes) x 1.1 (bandwidth); eager: ...``."""
        said = (
            f"S = {self.measured:.3g} measured, {self.predicted:.3g} predicted = {self.rho:.3g} (bytes) x "
            f"{self.roof_ratio:.3g} (bandwidth at the roof), {self.relative:+.0%}"
        )
        return "; ".join([said, *self.causes])

    def to_json(self) -> dict[str, Any]:
        return {
            "measured": self.measured,
            "rho": self.rho,
            "roof_ratio": self.roof_ratio,
            "predicted": self.predicted,
            "relative_deviation": self.relative,
            "quality": self.measured / self.rho,
            "causes": self.causes,
            "eager": self.eager.to_json(),
            "staxlab": self.compiled.to_json(),
        }
