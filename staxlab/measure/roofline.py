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
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..files import write_whole
from .tables import Table, Tabular, bytes_text, quantity_text
from .timing import Progress, Timing, compare, quiet

if TYPE_CHECKING:
    from .size_sweep import SizeSweep

FORMAT = "staxlab-roofline-2"
#: Written before there were levels; what it lacks is what there was then.
FORMATS = ("staxlab-roofline-1", FORMAT)

#: Where the bytes of a bandwidth lie if in no cache.
MEMORY = "memory"

#: The share of reads in the traffic of each bandwidth probe.
READ_SHARES = {"read": 1.0, "copy": 0.5, "streaming copy": 0.5, "write": 0.0, "streaming write": 0.0}

#: A kernel this close to the mix of a probe is compared with that probe alone.
SAME_MIX = 0.02


@dataclass(frozen=True)
class Ceiling:
    """A limit of the machine: ``kind`` "bandwidth" (``value`` in bytes/s) or "throughput" (in operations/s).

    ``level`` is where the bytes of a bandwidth lie ("L1", "L2", ..., "memory"), ``capacity`` the bytes of a working set
    that fit there (None: no end), ``threads`` how many moved them (None: PyTorch's own number, or a GPU). ``rounds``
    holds the best value of every round: their spread says how far the best of them may be trusted.
    """

    name: str
    kind: str
    value: float
    note: str = ""
    level: str = MEMORY
    capacity: int | None = None
    threads: int | None = None
    rounds: tuple[float, ...] = ()

    @property
    def probe(self) -> str:
        """What was done there: "read", "copy", ..."""
        return self.name.split(", ")[0].removeprefix(f"{self.level} ")

    @property
    def spread(self) -> float | None:
        """By which part the best round was above the worst; None with fewer than two."""
        return max(self.rounds) / min(self.rounds) - 1 if len(self.rounds) > 1 else None

    def text(self) -> str:
        return quantity_text(self.value, "B/s" if self.kind == "bandwidth" else "FLOP/s")

    def remark(self) -> str:
        """The note, and how far the rounds differ."""
        spread = f"rounds differ by {self.spread:.0%}" if self.spread is not None else ""
        return "; ".join(part for part in (self.note, spread) if part)


@dataclass(frozen=True)
class Point:
    """A kernel on the plot: ``operations`` and ``nbytes`` of the model, ``seconds`` measured (a median; ``between`` are
    the ends of its interval), and how many of the bytes are read (None: not known). ``working_set`` is how many
    different bytes it walks over (None: more than any cache holds), ``dtype`` the kind of number it computes with
    (None: not known); they decide whose roof it stands under."""

    label: str
    operations: float
    nbytes: float
    seconds: float
    bytes_read: float | None = None
    between: tuple[float, float] | None = None
    working_set: float | None = None
    dtype: str | None = None

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
    sweep: SizeSweep | None = None

    def of(self, kind: str, level: str = MEMORY) -> tuple[Ceiling, ...]:
        """The ceilings of a kind, highest first: of bandwidths those of one ``level``, moved by all threads."""
        found = (c for c in self.ceilings if c.kind == kind)
        if kind == "bandwidth":
            found = (c for c in found if c.level == level and c.threads in (None, self.threads))
        return tuple(sorted(found, key=lambda c: -c.value))

    @property
    def threads(self) -> int | None:
        """The largest number of threads that a bandwidth names; None if none does."""
        return max((c.threads for c in self.ceilings if c.threads is not None), default=None)

    @property
    def levels(self) -> tuple[str, ...]:
        """The levels whose bandwidth was measured with all threads, nearest first, "memory" last."""
        sizes = {c.level: c.capacity or math.inf for c in self.ceilings
                 if c.kind == "bandwidth" and c.threads in (None, self.threads)}  # fmt: skip
        return tuple(sorted(sizes, key=lambda level: sizes[level]))

    def level_of(self, point: Point) -> str:
        """The nearest level that holds the working set of a kernel; "memory" where that is not known."""
        for level in self.levels:
            capacity = self.of("bandwidth", level)[0].capacity
            if capacity is not None and point.working_set is not None and point.working_set <= capacity:
                return level
        return MEMORY

    def __getitem__(self, name: str) -> Ceiling:
        for ceiling in self.ceilings:
            if ceiling.name == name:
                return ceiling
        raise KeyError(f"no ceiling named {name!r}; there are {', '.join(c.name for c in self.ceilings)}")

    @property
    def bandwidth(self) -> float:
        """``B`` in bytes/s: the highest bandwidth of main memory; NaN if none was measured."""
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
        """The ceiling that limits a kernel: arithmetic of its kind of number, or the level that holds its working set,
        with the kernel's own mix of reads and writes.

        Between two measured mixes the time per byte is interpolated, as if some bytes were moved as the one probe does
        and the rest as the other. Where the kernel's mix is not known it is the highest bandwidth; where the probes do
        not reach the mix, the nearest of them.
        """
        memory = self._memory_limit(point.read_share, self.level_of(point))
        rates = self.of("throughput")
        own = [c for c in rates if point.dtype is not None and c.name == f"matmul {point.dtype}"]
        arithmetic = next(iter(own or rates), None)
        if memory is None or (arithmetic is not None and arithmetic.value < memory.value * point.intensity):
            return arithmetic or Ceiling("nothing measured", "bandwidth", math.nan)
        return memory

    def _memory_limit(self, read_share: float | None, level: str) -> Ceiling | None:
        best: dict[float, Ceiling] = {}  # by share of reads, the fastest probe
        for ceiling in reversed(self.of("bandwidth", level)):
            if ceiling.probe in READ_SHARES:
                best[READ_SHARES[ceiling.probe]] = ceiling
        if read_share is None or not best:
            return next(iter(self.of("bandwidth", level)), None)
        near = min(best, key=lambda share: abs(share - read_share))
        below, above = [s for s in best if s < read_share], [s for s in best if s > read_share]
        if abs(near - read_share) <= SAME_MIX or not below or not above:
            return best[near]
        low, high = max(below), min(above)
        part = (read_share - low) / (high - low)
        value = 1 / (part / best[high].value + (1 - part) / best[low].value)
        return Ceiling(f"{best[high].name} mixed with {best[low].name}", "bandwidth", value, level=level)

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
            parts += [f"{words}." for words in self._levels_text()]
            parts += [
                f"{p.label}: {p.intensity:.3g} FLOP/byte, {quantity_text(p.throughput, 'FLOP/s')}, "
                f"{self.fraction_text(p)}."
                for p in self.points
            ]
        return " ".join(parts)

    def table(self) -> Table:
        shown = {*self.of("bandwidth"), *self.of("throughput")}
        rows = [(c.name, c.kind, c.text(), c.remark()) for c in self.ceilings if c in shown]
        rows += self._other_rows(shown)
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

    def _other_rows(self, shown: set[Ceiling]) -> list[tuple[str, str, str, str]]:
        """A row for each level and number of threads that is not the roof's own."""
        groups: dict[tuple[str, int | None], list[Ceiling]] = {}
        for c in self.ceilings:
            if c not in shown:
                groups.setdefault((c.level, c.threads), []).append(c)
        rows = []
        for (level, threads), group in groups.items():
            best = max(group, key=lambda c: c.value)
            said = ", ".join(f"{c.probe} {c.text()}" for c in group)
            spreads = [c.spread for c in group if c.spread is not None]
            said += f"; rounds differ by at most {max(spreads):.0%}" if spreads else ""
            counted = f", {threads} thread{'s' if threads > 1 else ''}" if threads else ""
            holds = f", {bytes_text(best.capacity)}" if best.capacity else ""
            rows.append((f"{level}{counted}{holds}", "bandwidth", best.text(), said))
        return rows

    def _levels_text(self) -> list[str]:
        """One phrase for the roof of each cache."""
        return [
            f"Working sets up to {bytes_text(top.capacity)} are in {level}, whose roof rises with {top.text()} "
            f"({top.probe})"
            for level in self.levels
            for top in self.of("bandwidth", level)[:1]
            if top.capacity is not None
        ]

    def _reading_notes(self) -> list[str]:
        """How to read the table, as far as it holds what needs explaining."""
        notes, names = [], {c.name for c in self.ceilings}
        if any(p.read_share is not None for p in self.points):
            notes.append("a kernel is compared with the bandwidth for its own mix of reads and writes, which is named")
        if any(p.between is not None for p in self.points):
            notes.append("in brackets: the interval of the median time (Proposition 13.2); ceilings are best readings")
        if len(self.levels) > 1:
            notes.append("a kernel whose working set fits into a cache is compared with that cache")
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
            "ceilings": [{**asdict(c), "rounds": list(c.rounds)} for c in self.ceilings],
            "points": [
                {
                    "label": p.label,
                    "operations": p.operations,
                    "bytes": p.nbytes,
                    "bytes_read": p.bytes_read,
                    "seconds": p.seconds,
                    "seconds_interval": list(p.between) if p.between else None,
                    "working_set": p.working_set,
                    "dtype": p.dtype,
                }
                for p in self.points
            ],
            "sweep": self.sweep.to_json() if self.sweep is not None else None,
            "notes": list(self.notes),
            "complete": self.complete,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Roofline:
        """Rebuild a record. ValueError if the data is not a roofline of this format."""
        from .size_sweep import SizeSweep

        if data.get("format") not in FORMATS:
            raise ValueError(
                f"not a roofline written by this version (format {data.get('format')!r}, expected {FORMAT!r})"
            )
        return cls(
            ceilings=tuple(Ceiling(**{**c, "rounds": tuple(c.get("rounds", ()))}) for c in data["ceilings"]),
            points=tuple(
                Point(
                    p["label"],
                    p["operations"],
                    p["bytes"],
                    p["seconds"],
                    p.get("bytes_read"),
                    tuple(p["seconds_interval"]) if p.get("seconds_interval") else None,
                    p.get("working_set"),
                    p.get("dtype"),
                )
                for p in data["points"]
            ),
            machine=data["machine"],
            versions=data["versions"],
            command=data["command"],
            date=data["date"],
            notes=tuple(data["notes"]),
            complete=data["complete"],
            sweep=SizeSweep.from_json(data["sweep"]) if data.get("sweep") else None,
        )

    def save(self, path: str | Path) -> Path:
        """Write JSON, at once or not at all. Returns the path."""
        path = Path(path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return write_whole(path, (json.dumps(self.to_json(), indent=1, allow_nan=False) + "\n").encode(), private=False)

    @classmethod
    def load(cls, path: str | Path) -> Roofline:
        """Read what :meth:`save` wrote."""
        return cls.from_json(json.loads(Path(path).read_text(encoding="utf-8")))


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
    levels: bool = False,
) -> Roofline:
    """Measure this machine's limits, in a few seconds (at most a minute on a slow machine).

    ``progress(fraction, message)`` is called along the way; ``quick`` takes one round instead of three; ``device`` is
    "cpu" or "cuda". ``native=False`` measures with PyTorch's own operators only, which is also what happens, with a
    note in the record, when no C++ compiler is found. Uses as many threads as PyTorch does. With ``levels`` the caches
    are measured too, with all threads and with fewer, and matrix products of every kind of number the machine has.

    Ctrl-C returns what was measured so far, marked incomplete. Raises OptionError for an unknown or absent device.
    """
    from .roofline_measuring import measured

    return measured(progress, quick, device, buffer_bytes, native, levels)


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
    held = {"Example 1.1 eager": 4 * big, "Example 1.1 fused": 2 * big + small}  # elements in use at the same time
    sides: dict[str, Callable[[], Any]] = {"Example 1.1 eager": lambda: example_1_1(x, w)}
    if compiled is not None:
        moved["Example 1.1 fused"] = (2 * big, small)
        sides["Example 1.1 fused"] = lambda: compiled(x, w)
    with quiet():
        result = compare(sides, readings=readings, device=device, progress=progress)
    return tuple(
        measured_point(
            t.name, t, 4 * rows * columns, 4 * moved[t.name][0], 4 * moved[t.name][1], working_set=4 * held[t.name]
        )
        for t in result.timings
        if t.readings
    )


def measured_point(
    label: str,
    timing: Timing,
    operations: float,
    bytes_read: float,
    bytes_written: float,
    *,
    working_set: float | None = None,
    dtype: str | None = "float32",
) -> Point:
    """A kernel with the median of its timing and the interval of that median."""
    interval = timing.interval()
    between = (interval.low, interval.high) if interval else None
    nbytes = bytes_read + bytes_written
    return Point(label, operations, nbytes, timing.median, bytes_read, between, working_set, dtype)
