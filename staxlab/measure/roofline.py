"""The roofline of this machine (Definition 1.1, Section 13.1): how fast any kernel can be, given how it uses memory.

A kernel that performs ``W`` operations and moves ``Q`` bytes has arithmetic intensity ``I = W / Q`` and runs at most at
``min(P, B * I)`` operations per second, where ``P`` is the machine's arithmetic rate and ``B`` its memory bandwidth.
Left of the ridge point ``P / B`` only fewer bytes help; right of it only faster arithmetic.

``P`` and ``B`` are capabilities, so each is the *best* of many readings (Proposition 13.1). There is more than one
``B``: reading is not copying, and an ordinary store first reads the line it overwrites while a streaming store does
not. The plot's roof is the highest of them, the others are ceilings beneath it; but a kernel that only reads can never
come near the bandwidth of writing, so a kernel whose reads and writes are known is judged by the ceiling for *its own
mix* of them (:meth:`Roofline.limit`).

>>> roof = Roofline(ceilings=(Ceiling("read", "bandwidth", 50e9), Ceiling("matmul", "throughput", 400e9)))
>>> roof.ridge
8.0
>>> roof.attainable(0.125) / 1e9, roof.attainable(100.0) / 1e9
(6.25, 400.0)
>>> roof.limit(Point("sum", 1e6, 4e6, 1e-4, bytes_read=4e6)).name
'read'
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from .machine import busy_note, command_line, machine_record, timestamp, version_record
from .tables import Table, Tabular, bytes_text, quantity_text
from .timing import Progress, Timing, compare, quiet

FORMAT = "staxlab-roofline-1"

#: Size of each buffer the bandwidth kernels walk over: that of the chapter's cases (8192 x 2048 float32).
CPU_BUFFER = 64 << 20
CUDA_BUFFER = 1 << 30

#: The share of reads in the traffic of each bandwidth probe.
READ_SHARES = {"read": 1.0, "copy": 0.5, "streaming copy": 0.5, "write": 0.0, "streaming write": 0.0}

#: A kernel this close to the mix of a probe is compared with that probe alone.
SAME_MIX = 0.02

#: Measuring stops before the next round once this many seconds have passed.
TIME_LIMIT = 40.0


@dataclass(frozen=True)
class Ceiling:
    """A limit of the machine: ``kind`` "bandwidth" (``value`` in bytes/s) or "throughput" (in operations/s)."""

    name: str
    kind: str
    value: float
    note: str = ""

    def text(self) -> str:
        return quantity_text(self.value, "B/s" if self.kind == "bandwidth" else "FLOP/s")


@dataclass(frozen=True)
class Point:
    """A kernel on the plot: ``operations`` and ``nbytes`` of the model, ``seconds`` measured (a median; ``between`` are
    the ends of its interval), and how many of the bytes are read (None: not known)."""

    label: str
    operations: float
    nbytes: float
    seconds: float
    bytes_read: float | None = None
    between: tuple[float, float] | None = None

    @property
    def read_share(self) -> float | None:
        """Which part of the bytes is read; None if not known."""
        return self.bytes_read / self.nbytes if self.bytes_read is not None and self.nbytes else None

    @property
    def intensity(self) -> float:
        """Operations per byte (Definition 1.1)."""
        return self.operations / self.nbytes

    @property
    def throughput(self) -> float:
        """Operations per second."""
        return self.operations / self.seconds

    @property
    def bandwidth(self) -> float:
        """Effective bandwidth in bytes per second (Definition 13.2)."""
        return self.nbytes / self.seconds


@dataclass(frozen=True, repr=False)
class Roofline(Tabular):
    """The measured limits of a machine, and kernels placed among them.

    Prints as a table and a plot in characters; draws itself in a notebook; :meth:`plot` writes PNG, SVG or PDF and
    :meth:`save` JSON. ``complete`` is False when measuring was interrupted.
    """

    ceilings: tuple[Ceiling, ...]
    points: tuple[Point, ...] = ()
    machine: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    command: str = ""
    date: str = ""
    notes: tuple[str, ...] = ()
    complete: bool = True

    def of(self, kind: str) -> tuple[Ceiling, ...]:
        """The ceilings of a kind, highest first."""
        return tuple(sorted((c for c in self.ceilings if c.kind == kind), key=lambda c: -c.value))

    def __getitem__(self, name: str) -> Ceiling:
        for ceiling in self.ceilings:
            if ceiling.name == name:
                return ceiling
        raise KeyError(f"no ceiling named {name!r}; there are {', '.join(c.name for c in self.ceilings)}")

    @property
    def bandwidth(self) -> float:
        """``B`` in bytes/s: the highest bandwidth ceiling; NaN if none was measured."""
        return max((c.value for c in self.of("bandwidth")), default=math.nan)

    @property
    def throughput(self) -> float:
        """``P`` in operations/s: the highest throughput ceiling; NaN if none was measured."""
        return max((c.value for c in self.of("throughput")), default=math.nan)

    @property
    def ridge(self) -> float:
        """``P / B`` in operations per byte: kernels with a lower intensity are limited by memory."""
        return self.throughput / self.bandwidth

    def attainable(self, intensity: float) -> float:
        """Highest operations/s at an intensity: ``min(P, B * I)``."""
        return min(self.throughput, self.bandwidth * intensity)

    def limit(self, point: Point) -> Ceiling:
        """The ceiling that limits a kernel: arithmetic, or memory with the kernel's own mix of reads and writes.

        Between two measured mixes the time per byte is interpolated, as if some bytes were moved as the one probe does
        and the rest as the other. Where the kernel's mix is not known it is the highest bandwidth; where the probes do
        not reach the mix, the nearest of them.
        """
        memory = self._memory_limit(point.read_share)
        arithmetic = next(iter(self.of("throughput")), None)
        if memory is None or (arithmetic is not None and arithmetic.value < memory.value * point.intensity):
            return arithmetic or Ceiling("nothing measured", "bandwidth", math.nan)
        return memory

    def _memory_limit(self, read_share: float | None) -> Ceiling | None:
        best: dict[float, Ceiling] = {}  # by share of reads, the fastest probe
        for ceiling in reversed(self.of("bandwidth")):
            if ceiling.name in READ_SHARES:
                best[READ_SHARES[ceiling.name]] = ceiling
        if read_share is None or not best:
            return next(iter(self.of("bandwidth")), None)
        near = min(best, key=lambda share: abs(share - read_share))
        below, above = [s for s in best if s < read_share], [s for s in best if s > read_share]
        if abs(near - read_share) <= SAME_MIX or not below or not above:
            return best[near]
        low, high = max(below), min(above)
        part = (read_share - low) / (high - low)
        value = 1 / (part / best[high].value + (1 - part) / best[low].value)
        return Ceiling(f"{best[high].name} mixed with {best[low].name}", "bandwidth", value)

    def fraction(self, point: Point) -> float:
        """How close a kernel comes to the roof above it (:meth:`limit`), 1 being on it."""
        limit = self.limit(point)
        return (point.bandwidth if limit.kind == "bandwidth" else point.throughput) / limit.value

    def fraction_text(self, point: Point) -> str:
        """The fraction in percent with its interval, and of which ceiling: ``58% [57%, 59%] of read, 46.1 GB/s``."""
        limit, fraction = self.limit(point), self.fraction(point)
        interval = ""
        if point.between is not None:
            low, high = point.between
            interval = f" [{fraction * point.seconds / high:.0%}, {fraction * point.seconds / low:.0%}]"
        return f"{fraction:.0%}{interval} of {limit.name}, {limit.text()}"

    def with_points(self, points: Iterable[Point]) -> Roofline:
        """The same machine with these kernels added."""
        return replace(self, points=(*self.points, *points))

    # -- showing
    # --------------------------------------------------------------------------------------------------------

    @property
    def title(self) -> str:
        """Processor (or GPU) and threads, as the plot is headed."""
        device = self.machine.get("device", "cpu")
        if device != "cpu":
            return f"Roofline of {device}"
        threads = self.machine.get("threads")
        return f"Roofline of {self.machine.get('processor', 'this machine')}" + (
            f", {threads} threads" if threads else ""
        )

    @property
    def description(self) -> str:
        """The plot in words, for a reader who cannot see it."""
        parts = [f"{self.title}, performance in GFLOP/s against arithmetic intensity in FLOP/byte, both logarithmic."]
        if self.of("bandwidth") and self.of("throughput"):
            parts.append(
                f"The roof rises with {quantity_text(self.bandwidth, 'B/s')} and is level at "
                f"{quantity_text(self.throughput, 'FLOP/s')}; they meet at the ridge point, {self.ridge:.3g} FLOP/byte."
            )
            parts += [
                f"{p.label}: {p.intensity:.3g} FLOP/byte, {quantity_text(p.throughput, 'FLOP/s')}, "
                f"{self.fraction_text(p)}."
                for p in self.points
            ]
        return " ".join(parts)

    def table(self) -> Table:
        rows = [(c.name, c.kind, c.text(), c.note) for c in self.ceilings]
        for p in self.points:
            reads = f", {p.read_share:.0%} of it reads" if p.read_share is not None else ""
            what = f"{p.intensity:.3g} FLOP/byte, {quantity_text(p.bandwidth, 'B/s')} effective{reads}"
            if self.of("bandwidth") and self.of("throughput"):
                what += f"; {self.fraction_text(p)}"
            rows.append((p.label, "kernel", quantity_text(p.throughput, "FLOP/s"), what))
        notes = [f"ridge point {self.ridge:.3g} FLOP/byte"] if not math.isnan(self.ridge) else []
        notes += self._reading_notes()
        notes += list(self.notes)
        if not self.complete:
            notes.append("interrupted: what was measured until then")
        return Table.build(self.title, ("what", "kind", "value", "remark"), rows, notes, text_columns=4)

    def _reading_notes(self) -> list[str]:
        """How to read the table, as far as it holds what needs explaining."""
        notes, names = [], {c.name for c in self.ceilings}
        if any(p.read_share is not None for p in self.points):
            notes.append("a kernel is compared with the bandwidth for its own mix of reads and writes, which is named")
        if any(p.between is not None for p in self.points):
            notes.append("in brackets: the interval of the median time (Proposition 13.2); ceilings are best readings")
        if "copy" in names and "streaming copy" in names:
            notes.append(
                "copying counts each byte twice, read and written; but before an ordinary store overwrites a line, the "
                "processor fetches the old one, so that memory moves 3 bytes for 2 counted; a streaming store does not"
            )
        return notes

    def __repr__(self) -> str:
        from ..view.roofline import text_plot

        return f"{self.table().text()}\n\n{text_plot(self)}"

    __str__ = __repr__

    def show(self, path: str | Path, theme: str = "light") -> Path:
        """Write the plot to ``path`` (.png, .svg or .pdf), for a "light" or "dark" page. Returns the path.

        Foreground and background are both set, so the file is readable wherever it is put. Raises
        MissingDependencyError without matplotlib, OptionError for an unknown theme or file type.
        """
        from ..view.roofline import write_plot

        return write_plot(self, Path(path), theme)

    plot = show

    # -- keeping
    # --------------------------------------------------------------------------------------------------------

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types; :meth:`from_json` is its inverse."""
        return {
            "format": FORMAT,
            "date": self.date,
            "command": self.command,
            "machine": dict(self.machine),
            "versions": dict(self.versions),
            "ceilings": [{"name": c.name, "kind": c.kind, "value": c.value, "note": c.note} for c in self.ceilings],
            "points": [
                {
                    "label": p.label,
                    "operations": p.operations,
                    "bytes": p.nbytes,
                    "bytes_read": p.bytes_read,
                    "seconds": p.seconds,
                    "seconds_interval": list(p.between) if p.between else None,
                }
                for p in self.points
            ],
            "notes": list(self.notes),
            "complete": self.complete,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Roofline:
        """Rebuild a record. ValueError if the data is not a roofline of this format."""
        if data.get("format") != FORMAT:
            raise ValueError(
                f"not a roofline written by this version (format {data.get('format')!r}, expected {FORMAT!r})"
            )
        return cls(
            ceilings=tuple(Ceiling(c["name"], c["kind"], c["value"], c["note"]) for c in data["ceilings"]),
            points=tuple(
                Point(
                    p["label"],
                    p["operations"],
                    p["bytes"],
                    p["seconds"],
                    p.get("bytes_read"),
                    tuple(p["seconds_interval"]) if p.get("seconds_interval") else None,
                )
                for p in data["points"]
            ),
            machine=data["machine"],
            versions=data["versions"],
            command=data["command"],
            date=data["date"],
            notes=tuple(data["notes"]),
            complete=data["complete"],
        )

    def save(self, path: str | Path) -> Path:
        """Write JSON. Returns the path."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(self.to_json(), indent=2, allow_nan=False) + "\n")
        return path

    @classmethod
    def load(cls, path: str | Path) -> Roofline:
        """Read what :meth:`save` wrote."""
        return cls.from_json(json.loads(Path(path).read_text()))


# --- Measuring --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Probe:
    """One thing to time: ``amount`` bytes or operations per call of ``run``. ``buffers`` keeps alive what ``run`` only
    knows the address of."""

    name: str
    kind: str
    amount: float
    run: Callable[[], Any]
    note: str = ""
    buffers: Any = None


def measure(
    progress: Progress | None = None,
    quick: bool = False,
    *,
    device: str = "cpu",
    buffer_bytes: int | None = None,
    native: bool = True,
) -> Roofline:
    """Measure this machine's limits, in a few seconds (at most a minute on a slow machine).

    ``progress(fraction, message)`` is called along the way; ``quick`` takes one round instead of three; ``device`` is
    "cpu" or "cuda". ``native=False`` measures with PyTorch's own operators only, which is also what happens, with a
    note in the record, when no C++ compiler is found. Uses as many threads as PyTorch does.

    Ctrl-C returns what was measured so far, marked incomplete. Raises OptionError for an unknown or absent device.
    """
    before = machine_record()
    notes = [note for note in [busy_note(before)] if note]
    if device.startswith("cuda"):
        from .roofline_probes import cuda_probes as probes_for
        from .roofline_probes import cuda_round as run_round

        size = buffer_bytes or CUDA_BUFFER
    else:
        from .roofline_probes import cpu_probes as probes_for

        run_round = _cpu_round
        size = buffer_bytes or CPU_BUFFER
    started = time.monotonic()
    rounds = 1 if quick else 3
    best: dict[str, tuple[Probe, float]] = {}
    complete = True
    for r in range(rounds):
        # Fresh buffers every round: where the system places them in memory is part of the noise.
        probes, remarks = probes_for(device, size, native)
        notes += [note for note in remarks if note not in notes]
        timed, complete = run_round(probes, 6 if quick else 10, _part(progress, r / rounds, 1 / rounds))
        for probe in probes:
            seconds = timed.get(probe.name, math.nan)
            if not math.isnan(seconds) and (probe.name not in best or seconds < best[probe.name][1]):
                best[probe.name] = (probe, seconds)
        if not complete:
            break
        if time.monotonic() - started > TIME_LIMIT and r + 1 < rounds:
            notes.append(f"{r + 1} of {rounds} rounds: the time limit of {TIME_LIMIT:.0f} s was reached")
            break
    if progress is not None:
        progress(1.0, "done" if complete else "interrupted")
    ceilings = tuple(Ceiling(p.name, p.kind, p.amount / seconds, p.note) for p, seconds in best.values())
    machine = {**machine_record(device), "load_average": before["load_average"]}
    notes += _cache_notes(machine, size)
    return Roofline(
        ceilings=ceilings,
        machine=machine,
        versions=version_record(),
        command=command_line(),
        date=timestamp(),
        notes=tuple(notes),
        complete=complete,
    )


def _cpu_round(probes: Sequence[Probe], readings: int, progress: Progress | None) -> tuple[dict[str, float], bool]:
    """Best seconds per probe over one round of alternating readings, and whether the round ran to its end."""
    result = compare({p.name: p.run for p in probes}, readings=readings, warmup=2, calls=1, progress=progress)
    return {t.name: t.minimum for t in result.timings}, result.complete


def _part(progress: Progress | None, offset: float, share: float) -> Progress | None:
    """The progress of one round as a part of the whole."""
    if progress is None:
        return None
    return lambda fraction, message: progress(offset + share * fraction, message)


def _cache_notes(machine: Mapping[str, Any], buffer_bytes: int) -> list[str]:
    """A warning when the buffers may sit in a cache: then the figures are not main memory's."""
    cache = machine.get("last_level_cache_bytes")
    if machine.get("device") != "cpu" or cache is None or cache < buffer_bytes:
        return []
    return [
        f"buffers of {bytes_text(buffer_bytes)} fit in the reported last-level cache ({bytes_text(cache)}): "
        "bandwidths may be partly the cache's"
    ]


# --- Placing kernels --------------------------------------------------------------------------------------------------


def example_1_1(x: Any, w: Any) -> Any:
    """Example 1.1: four operators when run eagerly, one kernel when fused."""
    import torch

    return (torch.relu(x + w) * 2).sum(-1)


def example_points(
    compiled: Callable[..., Any] | None = None,
    *,
    rows: int = 8192,
    columns: int = 2048,
    readings: int = 15,
    device: str = "cpu",
    progress: Progress | None = None,
) -> tuple[Point, ...]:
    """Example 1.1 eager (``8N + n`` elements) and, if given, ``compiled`` (``2N + n``), timed in alternation.

    ``compiled`` is the compiled :func:`example_1_1`, such as ``staxlab.compile(roofline.example_1_1)``; medians are
    used (Section 13.1). Operations are the chapter's ``4N``.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    x = torch.randn(rows, columns, generator=generator).to(device)
    w = torch.randn(rows, columns, generator=generator).to(device)
    big, small = rows * columns, rows
    moved = {"Example 1.1 eager": (5 * big, 3 * big + small)}  # elements read and written
    sides: dict[str, Callable[[], Any]] = {"Example 1.1 eager": lambda: example_1_1(x, w)}
    if compiled is not None:
        moved["Example 1.1 fused"] = (2 * big, small)
        sides["Example 1.1 fused"] = lambda: compiled(x, w)
    with quiet():
        result = compare(sides, readings=readings, device=device, progress=progress)
    return tuple(
        measured_point(t.name, t, 4 * rows * columns, 4 * moved[t.name][0], 4 * moved[t.name][1])
        for t in result.timings
        if t.readings
    )


def measured_point(label: str, timing: Timing, operations: float, bytes_read: float, bytes_written: float) -> Point:
    """A kernel with the median of its timing and the interval of that median."""
    interval = timing.interval()
    between = (interval.low, interval.high) if interval else None
    return Point(label, operations, bytes_read + bytes_written, timing.median, bytes_read, between)
