"""Bandwidth against the size of the working set (Section 13.1, Lab 1): the caches of a machine, found by their speed.

One kernel walks over more and more memory. As long as all of it fits into a cache, it runs at that cache's bandwidth;
past the cache's size it slows down to the next level's. On logarithmic axes the curve is a staircase, and the edges of
its steps are the capacities. The sizes that the system reports are put beside them, and nothing else is taken from the
system, so the two can disagree: a virtual machine may report a cache that it shares with others, and the edge is where
the data stop fitting *in practice*.

**The rule.** The value of a size is the best of its readings (Proposition 13.1), and what is fitted is its logarithm.

1. The curve is divided into constant segments by the fit of least cost (``change_points``); the noise is estimated from
   the readings themselves, place by place, and is taken to be at least 1%.
2. Neighbouring segments less than 15% apart are joined. A segment that spans a factor of two in size or more, and whose
   noise (the median of its places') is at most 25%, is a *plateau*: with more, levels cannot be told from luck. What
   lies between plateaus is a transition. Neighbouring plateaus less than 15% apart are one.
3. Between two plateaus, the higher first, lies a *knee*: the size at which the curve crosses the geometric mean of
   both, interpolated between the neighbouring sizes on logarithmic axes.

>>> sizes = [4096 * 2**k for k in range(12)]
>>> curve = SweepCurve("read", 1, tuple(sizes), tuple((100e9 if s <= 65536 else 25e9,) * 2 for s in sizes))
>>> [(knee.between, round(knee.before / 1e9), round(knee.after / 1e9)) for knee in curve.knees]
[((65536, 131072), 100, 25)]
"""

from __future__ import annotations

import json
import math
import statistics
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..errors import OptionError
from ..files import write_whole
from .change_points import joined, noise_of, piecewise_constant
from .machine import (
    busy_note,
    cache_capacity,
    command_line,
    machine_record,
    timestamp,
    total_memory,
    version_record,
)
from .tables import Table, Tabular, bytes_text, quantity_text
from .timing import Progress, quiet

FORMAT = "staxlab-size-sweep-1"

#: Noise is not believed to be less than this (natural logarithm: 1%).
LEAST_NOISE = 0.01
#: Levels nearer to each other than this are one (natural logarithm: 15%).
APART = math.log(1.15)
#: A plateau spans at least this factor in size.
PLATEAU_SPAN = 2.0
#: A level is not believed where the noise is larger than this (natural logarithm: 25%).
MOST_NOISE = 0.25
#: A knee within this factor of a reported capacity is that cache's.
NEAR = 2.0

LARGEST = 512 << 20  # no processor's sweep goes further, unless asked to
#: Measuring stops before the next round once this many seconds have passed.
TIME_LIMIT = 12.0
GPU_SMALLEST, GPU_LARGEST = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Plateau:
    """Sizes ``first`` to ``last`` in bytes, over which the bandwidth is one (in bytes per second, geometric mean)."""

    first: int
    last: int
    bandwidth: float


@dataclass(frozen=True)
class Knee:
    """Where the bandwidth falls from ``before`` to ``after`` (bytes per second): at ``size`` bytes it is the geometric
    mean of both. ``between`` are the measured sizes on either side."""

    size: float
    before: float
    after: float
    between: tuple[int, int]


@dataclass(frozen=True)
class SweepCurve:
    """One kernel with one number of ``threads`` (None on a GPU): for each of ``sizes``, the working set in bytes, its
    ``readings`` in bytes per second, one for each round."""

    kernel: str
    threads: int | None
    sizes: tuple[int, ...]
    readings: tuple[tuple[float, ...], ...]

    @cached_property
    def bandwidths(self) -> tuple[float, ...]:
        """The best reading of every size (Proposition 13.1), in bytes per second."""
        return tuple(max(readings) for readings in self.readings)

    @cached_property
    def noise(self) -> tuple[float, ...]:
        """Standard deviation of the logarithm of every best reading, at least :data:`LEAST_NOISE`."""
        measured = noise_of([[math.log(value) for value in readings] for readings in self.readings])
        return tuple(max(LEAST_NOISE, value) if math.isfinite(value) else LEAST_NOISE for value in measured)

    @cached_property
    def _found(self) -> tuple[tuple[Plateau, ...], tuple[Knee, ...]]:
        return plateaus_and_knees(self.sizes, self.bandwidths, self.noise)

    @property
    def plateaus(self) -> tuple[Plateau, ...]:
        return self._found[0]

    @property
    def knees(self) -> tuple[Knee, ...]:
        return self._found[1]

    @property
    def label(self) -> str:
        return self.kernel if self.threads is None else f"{self.kernel}, {threads_text(self.threads)}"


def threads_text(threads: int) -> str:
    return f"{threads} thread{'s' if threads > 1 else ''}"


def plateaus_and_knees(
    sizes: Sequence[int], bandwidths: Sequence[float], noise: float | Sequence[float]
) -> tuple[tuple[Plateau, ...], tuple[Knee, ...]]:
    """Plateaus and knees of a curve by the rule above.

    ``sizes`` in bytes, growing; ``bandwidths`` in bytes per second, above 0; ``noise`` is the standard deviation of
    their logarithms, one or one for each. A step upwards is no knee. O(n^2) steps for n sizes. OptionError for a value
    of 0 or less.
    """
    if any(not value > 0 for value in (*sizes, *bandwidths)):
        raise OptionError("sizes and bandwidths of a sweep are above 0")
    logs = [math.log(value) for value in bandwidths]
    spread = [float(noise)] * len(sizes) if isinstance(noise, (int, float)) else list(noise)
    segments = joined(piecewise_constant(logs, spread), APART)
    wide = [s for s in segments if sizes[s.stop - 1] >= PLATEAU_SPAN * sizes[s.start]
            and statistics.median(spread[s.start : s.stop]) <= MOST_NOISE]  # fmt: skip
    merged: list[tuple[int, int, float]] = []  # first place, last place, mean of the logarithms
    for segment in wide:
        if merged and abs(merged[-1][2] - segment.mean) < APART:
            first, last, mean = merged[-1]
            weight = last - first + 1
            mean = (mean * weight + segment.mean * len(segment)) / (weight + len(segment))
            merged[-1] = (first, segment.stop - 1, mean)
        else:
            merged.append((segment.start, segment.stop - 1, segment.mean))
    plateaus = tuple(Plateau(sizes[first], sizes[last], math.exp(mean)) for first, last, mean in merged)
    knees = []
    for (_, last, high), (begin, _, low) in zip(merged, merged[1:], strict=False):
        if low < high:
            middle = (high + low) / 2
            after = next((k for k in range(last + 1, begin) if logs[k] < middle), begin)
            knees.append(Knee(_crossing(sizes, logs, after, middle), math.exp(high), math.exp(low),
                              (sizes[after - 1], sizes[after])))  # fmt: skip
    return plateaus, tuple(knees)


def _crossing(sizes: Sequence[int], logs: Sequence[float], after: int, middle: float) -> float:
    """The size at which the curve passes ``middle`` between the places ``after - 1`` and ``after``."""
    drop = logs[after - 1] - logs[after]
    part = min(max((logs[after - 1] - middle) / drop, 0.0), 1.0) if drop > 0 else 0.5
    size = math.exp((1 - part) * math.log(sizes[after - 1]) + part * math.log(sizes[after]))
    return min(max(size, sizes[after - 1]), sizes[after])


@dataclass(frozen=True)
class Beside:
    """A cache as the system reports it, ``capacity`` bytes for the threads of a curve, and the knee near it, if any."""

    name: str
    capacity: int
    knee: Knee | None


@dataclass(frozen=True, repr=False)
class SizeSweep(Tabular):
    """Curves of bandwidth against working set, their knees, and the caches that the system reports.

    Prints as a table and a plot in characters; draws itself in a notebook; :meth:`show` writes PNG, SVG or PDF and
    :meth:`save` JSON. ``caches`` is as in :func:`~staxlab.measure.machine.data_caches`. ``complete`` is False when
    measuring was interrupted.
    """

    curves: tuple[SweepCurve, ...]
    caches: tuple[Mapping[str, int], ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    date: str = ""
    notes: tuple[str, ...] = ()
    complete: bool = True

    @property
    def title(self) -> str:
        device = self.machine.get("device", "cpu")
        name = self.machine.get("processor", "this machine") if device == "cpu" else device
        return f"Bandwidth by working set, {name}"

    def reported(self, curve: SweepCurve) -> tuple[tuple[str, int], ...]:
        """Name and capacity in bytes of every cache, for the threads of a curve."""
        return tuple((f"L{c['level']}", cache_capacity(dict(c), curve.threads or 1)) for c in self.caches)

    def beside(self, curve: SweepCurve) -> tuple[tuple[Beside, ...], tuple[Knee, ...]]:
        """The reported caches, each with the nearest knee within a factor of two; and the knees that belong to none."""
        free = list(curve.knees)
        found = []
        for name, capacity in self.reported(curve):
            near = min(free, key=lambda knee: abs(math.log(knee.size / capacity)), default=None)
            if near is not None and abs(math.log(near.size / capacity)) > math.log(NEAR):
                near = None
            if near is not None:
                free.remove(near)
            found.append(Beside(name, capacity, near))
        return tuple(found), tuple(free)

    @property
    def description(self) -> str:
        """The plot in words."""
        parts = [f"{self.title}, in GB/s against KiB, both logarithmic."]
        for curve in self.curves:
            steps = "; ".join(
                f"{bytes_text(p.first)} to {bytes_text(p.last)}: {quantity_text(p.bandwidth, 'B/s')}"
                for p in curve.plateaus
            )
            parts.append(f"{curve.label}: {steps or 'no plateau'}. {self._knees_text(curve)}.")
        return " ".join(parts)

    def _knees_text(self, curve: SweepCurve) -> str:
        caches, others = self.beside(curve)
        said = [
            f"{b.name} reported {bytes_text(b.capacity)}, "
            + (f"knee at {size_text(b.knee.size)}" if b.knee else "no knee near it")
            for b in caches
        ]
        said += [f"a knee at {size_text(knee.size)} that no reported cache explains" for knee in others]
        return "; ".join(said) or "no knee"

    def table(self) -> Table:
        rows = []
        for curve in self.curves:
            caches, others = self.beside(curve)
            for b in caches:
                rows.append((curve.label, b.name, bytes_text(b.capacity), *_knee_cells(b.knee)))
            rows += [(curve.label, "not reported", "", *_knee_cells(knee)) for knee in others]
        notes = [
            f"{curve.label}: plateaus of {', '.join(quantity_text(p.bandwidth, 'B/s') for p in curve.plateaus)}; "
            f"noise {min(curve.noise):.1%} to {max(curve.noise):.1%}"
            for curve in self.curves
            if curve.plateaus
        ]
        notes += [
            f"{curve.label}: so noisy (median {statistics.median(curve.noise):.0%}) that knees may be missing: other "
            "processes took turns with its threads"
            for curve in self.curves
            if statistics.median(curve.noise) > MOST_NOISE
        ]
        notes.append("best readings; a knee is where the bandwidth is the geometric mean of the plateaus beside it")
        notes += list(self.notes)
        if not self.complete:
            notes.append("interrupted: what was measured until then")
        head = ("kernel", "cache", "reported", "knee", "before", "after")
        return Table.build(self.title, head, rows, notes, text_columns=2)

    def __repr__(self) -> str:
        from ..view.size_sweep import text_plot

        return f"{self.table().text()}\n\n{text_plot(self)}"

    __str__ = __repr__

    def show(self, path: str | Path, theme: str = "light") -> Path:
        """Write the plot to ``path`` (.png, .svg or .pdf), for a "light" or "dark" page. Returns the path. Raises
        MissingDependencyError without matplotlib, OptionError for an unknown theme or file type."""
        from ..view.size_sweep import write_plot

        return write_plot(self, Path(path), theme)

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types; :meth:`from_json` is its inverse. Knees and plateaus are there to be read only: they
        follow from the readings."""
        return {
            "format": FORMAT,
            "date": self.date,
            "command": self.command,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "caches": [dict(cache) for cache in self.caches],
            "curves": [
                {
                    "kernel": c.kernel,
                    "threads": c.threads,
                    "sizes": list(c.sizes),
                    "readings": [list(readings) for readings in c.readings],
                    "noise": list(c.noise),
                    "knees": [[knee.size, knee.before, knee.after] for knee in c.knees],
                }
                for c in self.curves
            ],
            "notes": list(self.notes),
            "complete": self.complete,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> SizeSweep:
        """Rebuild a record. ValueError if the data is not a sweep of this format."""
        if data.get("format") != FORMAT:
            raise ValueError(f"not a size sweep (format {data.get('format')!r}, expected {FORMAT!r})")
        curves = tuple(
            SweepCurve(c["kernel"], c["threads"], tuple(c["sizes"]), tuple(map(tuple, c["readings"])))
            for c in data["curves"]
        )
        return cls(curves, tuple(data["caches"]), data["machine"], data["versions"], data["command"], data["date"],
                   tuple(data["notes"]), data["complete"])  # fmt: skip

    def save(self, path: str | Path) -> Path:
        """Write JSON, at once or not at all. Returns the path."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n"
        return write_whole(path, text.encode(), private=False)

    @classmethod
    def load(cls, path: str | Path) -> SizeSweep:
        """Read what :meth:`save` wrote."""
        return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))


def size_text(size: float) -> str:
    """Bytes to about three digits: ``32.4 KiB``."""
    for scale, unit in ((1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size:.0f} B"


def _knee_cells(knee: Knee | None) -> tuple[str, str, str]:
    if knee is None:
        return "none near it", "", ""
    return size_text(knee.size), quantity_text(knee.before, "B/s"), quantity_text(knee.after, "B/s")


# --- Measuring --------------------------------------------------------------------------------------------------------


def sizes_between(smallest: int, largest: int, per_octave: int = 4) -> tuple[int, ...]:
    """Sizes from ``smallest`` to ``largest`` bytes, ``per_octave`` for each doubling, evenly on a logarithmic axis, in
    multiples of 512. OptionError unless 1024 <= smallest < largest and there is at least one for each doubling.

    >>> [size / 1024 for size in sizes_between(4096, 16384, 2)]
    [4.0, 5.5, 8.0, 11.0, 16.0]
    """
    if not 1024 <= smallest < largest or per_octave < 1:
        raise OptionError(f"there are no sizes from {smallest} to {largest} bytes, {per_octave} for each doubling",
                          remedy="begin at 1024 bytes or later, and end after that")  # fmt: skip
    count = round(per_octave * math.log2(largest / smallest))
    steps = (smallest * (largest / smallest) ** (k / count) for k in range(count + 1)) if count else (smallest, largest)
    return tuple(dict.fromkeys(round(step) >> 9 << 9 for step in steps))


def largest_size(caches: Iterable[Mapping[str, int]]) -> int:
    """Where a processor's sweep ends: eight times its last cache, at least 64 MiB, at most 512 MiB or what is an eighth
    of the memory."""
    last = max((cache["bytes"] for cache in caches), default=0)
    return min(max(8 * last, 64 << 20), LARGEST, max((total_memory() or LARGEST * 8) // 8, 1 << 20))


def sweep(
    progress: Progress | None = None,
    quick: bool = False,
    *,
    device: str = "cpu",
    kernel: str = "read",
    threads: Sequence[int] | None = None,
    smallest: int | None = None,
    largest: int | None = None,
    per_octave: int = 4,
    rounds: int | None = None,
) -> SizeSweep:
    """Measure bandwidth against working set, in a few seconds: in each of ``rounds`` every size of every number of
    threads has its turn.

    ``kernel`` is "read", "copy" or "write", on a CPU also "streaming copy" or "streaming write"; ``threads`` the
    numbers of threads (1 and PyTorch's own; on a GPU there are none); ``smallest`` and ``largest`` in bytes (from 4 KiB
    to beyond the last cache; on a GPU from 1 MiB to 1 GiB). ``quick`` takes 4 rounds for 8. ``progress(fraction,
    message)`` is called along the way.

    Ctrl-C returns what was measured in whole rounds, marked incomplete. Raises OptionError for an unknown kernel,
    device or size, BuildError without a C++ compiler, MissingDependencyError without Triton on a GPU.
    """
    import torch

    from .bandwidth_kernels import kernels_for

    before = machine_record()
    notes = [note for note in [busy_note(before)] if note]
    gpu = device.startswith("cuda")
    caches: list[dict[str, int]] = before["caches"]
    numbers: Sequence[int | None] = [None] if gpu else sorted(set(threads or (1, torch.get_num_threads())))
    if not gpu and min(numbers) < 1:
        raise OptionError("a sweep has at least one thread", remedy="threads=(1,)")
    end = largest or (GPU_LARGEST if gpu else largest_size(caches))
    sizes = sizes_between(smallest or (GPU_SMALLEST if gpu else 4096), end, per_octave)
    kernels = kernels_for(device, sizes[-1])
    if kernel not in kernels.probes:
        raise OptionError(f"unknown kernel {kernel!r}", remedy=f"choose among {', '.join(kernels.probes)}")
    if gpu:
        caches = [{"level": 2, "bytes": kernels.spec.l2_bytes, "shared_by": 1}]
    wanted = rounds or (4 if quick else 8)
    # Every thread has whole blocks, so that some of the smallest are the same for many threads.
    places = {n: tuple(dict.fromkeys(kernels.rounded(kernel, size, n) for size in sizes)) for n in numbers}
    readings: dict[int | None, list[list[float]]] = {number: [[] for _ in places[number]] for number in numbers}
    complete = True
    started = time.monotonic()
    with quiet():
        try:
            for r in range(wanted):
                if r >= 2 and time.monotonic() - started > TIME_LIMIT:
                    notes.append(f"{r} of {wanted} rounds: the time limit of {TIME_LIMIT:.0f} s was reached")
                    break
                for number in numbers:
                    round_of = [kernels.bandwidth(kernel, size, number) for size in places[number]]
                    for place, value in zip(readings[number], round_of, strict=True):
                        place.append(value)
                    if progress is not None:
                        done = (r * len(numbers) + list(numbers).index(number) + 1) / (wanted * len(numbers))
                        progress(done, f"working sets, round {r + 1} of {wanted}")
        except KeyboardInterrupt:
            complete = False
    curves = [
        SweepCurve(kernel, number, places[number], tuple(map(tuple, taken)))
        for number, taken in readings.items()
        if taken[0]
    ]
    machine = {**machine_record(device), "load_average": before["load_average"]}
    return SizeSweep(tuple(curves), tuple(caches), machine, version_record(), command_line(), timestamp(),
                     tuple(notes), complete)  # fmt: skip
