"""What a CUDA graph saves: a host that launches and a device that works, on one clock (Section 9.9).

The host needs ``t_launch`` for every launch and does not wait for the kernel; the device runs kernels one after the
other, each as soon as it is launched and the one before is done. So whoever is slower decides:

* short kernels: the device waits for the next launch, and ``n`` kernels take about ``n * t_launch``;
* long kernels: launches hide behind the kernels, which take their sum.

To first order the time of a region is the larger of the two. Exactly, with launch ``j`` issued after ``j`` times
``t_launch``, it is the largest over all ``j`` of ``j * t_launch + t_j + ... + t_n``: the last kernel that had to wait
for its launch begins a run without gaps. A graph is one submission of ``t_graph``, whatever ``n`` is, and then the sum.

Times are in seconds wherever they are numbers; exact fractions stay exact.

>>> timeline = launch_timeline([1e-6] * 10, launch=5e-6, graph=10e-6)
>>> round(timeline.launched.total * 1e6, 3), round(timeline.graph.total * 1e6, 3), round(timeline.speedup, 3)
(51.0, 20.0, 2.55)
>>> round(timeline.crossing, 3)
2.0
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..options import GPU_SPECS
from .tables import Table, Tabular, seconds_text

HOST, DEVICE = "host", "device"
FORMAT = "staxlab-cuda-graphs-1"


@dataclass(frozen=True)
class Span:
    """Something that occupies a lane from ``start`` to ``end`` (s). ``kernel`` is its number from 1, 0 for a graph."""

    lane: str
    start: Any
    end: Any
    kernel: int

    @property
    def seconds(self) -> Any:
        return self.end - self.start


@dataclass(frozen=True)
class Execution:
    """One way to run the kernels: what both lanes do, in order of time."""

    name: str
    spans: tuple[Span, ...]

    def lane(self, name: str) -> tuple[Span, ...]:
        return tuple(span for span in self.spans if span.lane == name)

    @property
    def total(self) -> Any:
        """Seconds until the last kernel is done."""
        return max((span.end for span in self.spans), default=0)

    @property
    def idle(self) -> tuple[tuple[Any, Any], ...]:
        """When the device has nothing to do before the last kernel: (from, until), in seconds."""
        gaps, at = [], 0
        for span in self.lane(DEVICE):
            if span.start > at:
                gaps.append((at, span.start))
            at = span.end
        return tuple(gaps)

    @property
    def idle_seconds(self) -> Any:
        return sum((end - start for start, end in self.idle), start=0)


def run_launches(kernels: Sequence[Any], launch: Any) -> Execution:
    """Kernels of these durations, launched one by one. O(n)."""
    spans: list[Span] = []
    host = device = launch * 0
    for number, seconds in enumerate(kernels, 1):
        spans.append(Span(HOST, host, host + launch, number))
        host = host + launch
        start = max(host, device)
        device = start + seconds
        spans.append(Span(DEVICE, start, device, number))
    return Execution("launched one by one", tuple(spans))


def run_graph(kernels: Sequence[Any], graph: Any) -> Execution:
    """The same kernels, submitted together. O(n)."""
    if not kernels:
        return Execution("one graph", ())
    spans = [Span(HOST, graph * 0, graph, 0)]
    at = graph
    for number, seconds in enumerate(kernels, 1):
        spans.append(Span(DEVICE, at, at + seconds, number))
        at = at + seconds
    return Execution("one graph", tuple(spans))


# -- closed forms ------------------------------------------------------------------------------------------------------


def launched_time(kernels: Sequence[Any], launch: Any) -> Any:
    """Exactly what :func:`run_launches` takes: the maximum over j of ``j * t_launch + t_j + ... + t_n``. O(n)."""
    rest: Any = 0
    longest: Any = 0
    for number in range(len(kernels), 0, -1):
        rest = rest + kernels[number - 1]
        longest = max(longest, number * launch + rest)
    return longest


def first_order(kernels: Sequence[Any], launch: Any) -> Any:
    """The section's estimate, ``max(n * t_launch, sum of t_k)``. Never too large, and short of the truth by no more
    than the smaller of the two; for equal kernels by one launch or one kernel."""
    return max(len(kernels) * launch, sum(kernels))


def graph_time(kernels: Sequence[Any], graph: Any) -> Any:
    """``t_graph + sum of t_k``."""
    return graph + sum(kernels)


def speedup(n: Any, t: Any, launch: Any, graph: Any) -> Any:
    """How many times faster a graph is for ``n`` kernels of ``t`` seconds each, to first order:
    ``n * max(t_launch, t) / (t_graph + n * t)``. Below 1 where launches hide behind the kernels anyway."""
    return n * max(launch, t) / (graph + n * t)


def speedup_bound(t: Any, launch: Any) -> Any:
    """What :func:`speedup` stays below for every ``n``, and comes as near to as one likes: ``max(t_launch / t, 1)``.
    Infinite for kernels that take no time."""
    return max(launch / t, 1) if t else math.inf


def crossing(total: Any, launch: Any) -> Any:
    """Into how many kernels ``total`` seconds of device work must be divided for launches to decide: ``n*`` with
    ``n* * t_launch = sum of t_k``. Below, the device is busy; above, it waits. Infinite if launches are free."""
    return total / launch if launch else math.inf


# -- the record --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class LaunchTimeline(Tabular):
    """Both ways to run ``kernels`` (durations in s) with ``launch`` seconds per launch and ``graph`` per submission.
    ``source`` says where the two numbers come from."""

    kernels: tuple[Any, ...]
    launch: Any
    graph_launch: Any
    source: str = "given"

    @property
    def launched(self) -> Execution:
        return run_launches(self.kernels, self.launch)

    @property
    def graph(self) -> Execution:
        return run_graph(self.kernels, self.graph_launch)

    @property
    def work(self) -> Any:
        """Seconds of all kernels together."""
        return sum(self.kernels)

    @property
    def speedup(self) -> Any:
        """The simulated times' ratio; 1 without kernels."""
        return self.launched.total / self.graph.total if self.kernels else 1

    @property
    def bound(self) -> Any:
        """:func:`speedup_bound` for the kernels' mean duration."""
        return speedup_bound(self.work / len(self.kernels), self.launch) if self.kernels else 1

    @property
    def crossing(self) -> Any:
        """:func:`crossing` for this work."""
        return crossing(self.work, self.launch)

    @property
    def host_bound(self) -> bool:
        """Whether launches take longer than the kernels."""
        return len(self.kernels) * self.launch > self.work

    def summary(self) -> str:
        count = len(self.kernels)
        who = "the host decides" if self.host_bound else "the device decides"
        times = f"{_text(self.launched.total)} launched one by one, {_text(self.graph.total)} as a graph"
        return f"{count} kernel{'' if count == 1 else 's'}: {times} ({float(self.speedup):.3g} times); {who}"

    def table(self) -> Table:
        rows = []
        for run in (self.launched, self.graph):
            idle = f"{_text(run.idle_seconds)} ({float(run.idle_seconds / run.total if run.total else 0):.0%})"
            host = sum((span.seconds for span in run.lane(HOST)), start=0)
            rows.append([run.name, _text(run.total), _text(host), _text(self.work), idle])
        known = f"t_launch = {_text(self.launch)}, t_graph = {_text(self.graph_launch)} ({self.source})"
        estimate = f"to first order {_text(first_order(self.kernels, self.launch))} and {_text(self.graph.total)}"
        where = f"launches decide from n* = {float(self.crossing):.3g} kernels on, for this much work"
        limit = f"no number of such kernels gains more than {float(self.bound):.3g}"
        notes = [known, estimate, where, limit]
        columns = ["run", "time", "host busy", "device busy", "device idle"]
        return Table.build(self.summary(), columns, rows, notes)

    def format(self) -> str:
        return f"{self.table().text()}\n{self.picture()}"

    __str__ = __repr__ = format

    def picture(self, width: int = 64) -> str:
        """Both lanes of both runs in characters: digits alternate between kernels, dots are idle device."""
        if not self.kernels:
            return ""
        end = float(max(self.launched.total, self.graph.total)) or 1.0
        lines = []
        for run in (self.launched, self.graph):
            for name in (HOST, DEVICE):
                cells = [" "] * width
                for start, until in run.idle if name == DEVICE else ():
                    _fill(cells, "·", float(start) / end, float(until) / end)
                for span in run.lane(name):
                    letter = ("Ll" if name == HOST else "Kk")[span.kernel % 2] if span.kernel else "G"
                    _fill(cells, letter, float(span.start) / end, float(span.end) / end)
                lines.append(f"{name:>6} |{''.join(cells).rstrip()}")
            lines[-1] += f"   {run.name}"
        scale = "0".ljust(width - 1) + f"{end * 1e6:.4g} us"
        return "\n".join([*lines, f"{'':>6} |{scale}", "        L l launches, G graph, K k kernels, · idle device"])

    def speedups(self, counts: Sequence[int]) -> tuple[tuple[int, float], ...]:
        """(n, first-order speedup) for ``n`` kernels of this one's mean duration."""
        mean = self.work / len(self.kernels) if self.kernels else 0
        return tuple((n, float(speedup(n, mean, self.launch, self.graph_launch))) for n in counts)


def _text(seconds: Any) -> str:
    return seconds_text(float(seconds))


def _fill(cells: list[str], letter: str, start: float, end: float) -> None:
    first, last = int(start * len(cells)), int(math.ceil(end * len(cells) - 1e-9))
    for place in range(first, min(max(last, first + 1), len(cells))):
        cells[place] = letter


def launch_timeline(
    kernels: Sequence[Any], *, launch: Any = None, graph: Any = None, costs: LaunchCosts | None = None
) -> LaunchTimeline:
    """The timelines of kernels that take these seconds on the device.

    ``launch`` and ``graph`` are the host's seconds per launch and per submission of a graph; or ``costs`` has both, as
    :func:`measured_costs` reads them. Raises OptionError for a negative or missing number.
    """
    source = "given"
    if costs is not None:
        launch = costs.launch if launch is None else launch
        graph = costs.graph if graph is None else graph
        source = costs.source
    for name, value in (("launch", launch), ("graph", graph)):
        if value is None:
            raise OptionError(f"{name} is missing", remedy=f"give {name}= in seconds, or costs=measured_costs()")
        _require_duration(name, value)
    for number, seconds in enumerate(kernels, 1):
        _require_duration(f"kernel {number}", seconds)
    return LaunchTimeline(tuple(kernels), launch, graph, source)


def region_timeline(
    compilation: Any, *, launch: Any = None, graph: Any = None, costs: LaunchCosts | None = None
) -> LaunchTimeline:
    """The timelines of a region compiled for a GPU that need not be here. Its kernels' times are a model: the bytes
    the schedule has them move, over the nominal bandwidth of the device; so they are bounds from below.

    ``launch``, ``graph`` and ``costs`` as for :func:`launch_timeline`. Raises OptionError for a region without GPU
    kernels.
    """
    if compilation.kernels is None or not compilation.device.is_gpu:
        reason = compilation.fallback_reason or f"it is compiled for {compilation.target}"
        remedy = 'use staxlab.explain(..., target="sm_90")'
        raise OptionError(f"{compilation.name} has no kernels for a GPU: {reason}", remedy=remedy)
    bandwidth = compilation.device.nominal_bandwidth or GPU_SPECS["sm_90"].nominal_bandwidth
    kernels = [k for k in compilation.kernels if not k.launch.get("skip")]
    times = [(kernel.bytes_read + kernel.bytes_written) / bandwidth for kernel in kernels]
    found = launch_timeline(times, launch=launch, graph=graph, costs=costs)
    return replace(found, source=f"{found.source}; kernels modelled by their bytes over {bandwidth / 1e12:.3g} TB/s")


def _require_duration(name: str, value: Any) -> None:
    try:
        fine = value >= 0 and float(value) < math.inf
    except (TypeError, ValueError):
        fine = False
    if not fine:
        raise OptionError(f"{name} must be a time in seconds, 0 or more, and is {value!r}")


@dataclass(frozen=True)
class LaunchCosts:
    """Seconds per launch and per submission of a graph, and where they were measured."""

    launch: float
    graph: float
    source: str


def results_file() -> Path:
    """Where ``python -m benchmarks.cuda_graphs`` leaves what it measured on a GPU."""
    return Path(__file__).resolve().parents[2] / "benchmarks" / "results" / "cuda_graphs_h200.json"


def measured_costs(path: Path | None = None) -> LaunchCosts:
    """What was measured (``python -m benchmarks.cuda_graphs``). Raises OptionError if the file is not there or is no
    such record."""
    path = path or results_file()
    command = "run python -m benchmarks.cuda_graphs on a machine with a GPU, or give launch= and graph="
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
        costs = record["costs"]
        found = LaunchCosts(float(costs["launch_s"]), float(costs["graph_s"]), f"measured, {path.name}")
    except FileNotFoundError:
        raise OptionError(f"there is no measurement at {path}", remedy=command) from None
    except (ValueError, KeyError, TypeError) as error:
        raise OptionError(f"{path} is no record of this measurement: {error!r}", remedy=command) from None
    if not record.get("device_present", True):
        raise OptionError(f"{path} was written without a GPU", remedy=command)
    return found
