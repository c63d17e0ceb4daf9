"""Timing as statistics (Section 13.1): what one reading means, and what may be concluded from many.

A reading of a clock is ``T = t0 + e`` (Definition 13.1): ``t0`` is how long the work takes undisturbed, ``e >= 0`` is
whatever the machine did in between. Interference only ever delays, so there are two useful summaries, and they answer
different questions:

* the **minimum** converges to ``t0`` (Proposition 13.1): what the machine *can* do. Use it for a capability, such as a
  bandwidth or an arithmetic rate;
* the **median** is what *typically* happens. Use it to compare two ways of doing the same work. Its confidence interval
  needs no assumption about the shape of the noise (Proposition 13.2): of ``n`` readings, the number that lie below the
  true median is Binomial(n, 1/2), so the interval between the ``j``-th and the ``k``-th smallest covers the median with
  probability ``sum(C(n, i), i=j..k-1) / 2**n``.

Both need readings that are alike. A machine's load drifts, so two programs timed one after the other are not
comparable: :func:`compare` alternates the sides reading by reading and reports the median of the *pairwise* ratios, in
which drift cancels. Disturbances we can remove, we remove: warm-up calls come first, the garbage collector is off, and
a device that works asynchronously is waited for before the clock is read.

>>> interval = median_interval([5.0, 1.0, 4.0, 2.0, 3.0, 7.0, 6.0, 9.0, 8.0, 15.0, 11.0, 12.0, 13.0, 14.0, 10.0])
>>> interval.j, interval.k, round(interval.coverage, 3)
(4, 12, 0.965)
>>> interval.low, interval.high
(4.0, 12.0)
"""

from __future__ import annotations

import contextlib
import gc
import math
import random
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..runtime.order_statistics import (
    MedianInterval,
    median,
    median_coverage,
    median_interval,
    median_ranks,
    readings_for_range,
)
from .tables import Table, Tabular, seconds_text

__all__ = [
    "Comparison", "MedianInterval", "Progress", "Ratio", "Timing", "compare", "device_synchronize", "median",
    "median_coverage", "median_interval", "median_ranks", "pairwise", "quiet", "readings_for_range", "sample",
]  # fmt: skip

Progress = Callable[[float, str], None]  # (fraction done in [0, 1], what is happening)

#: Calls are repeated inside one reading until it lasts about this long, so that the clock's own cost (about 0.1 us)
#: stays below a thousandth of what it measures.
SHORTEST_READING = 200e-6

#: On a GPU, starting the first kernel and waiting for the last add some 100 us to a reading, however many calls it has.
SHORTEST_CUDA_READING = 10e-3


# --- Records ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, repr=False)
class Timing(Tabular):
    """Readings of one callable, in seconds per call, in the order they were taken.

    ``calls`` is the number of calls one reading averages over, ``warmup`` the number of calls made before the first
    reading, ``planned`` how many readings were asked for; ``complete`` is False when the run was interrupted.
    """

    name: str
    readings: tuple[float, ...]
    calls: int = 1
    warmup: int = 0
    planned: int = 0
    complete: bool = True

    @property
    def minimum(self) -> float:
        """Estimator of the undisturbed duration (Proposition 13.1); NaN without readings."""
        return min(self.readings) if self.readings else math.nan

    @property
    def median(self) -> float:
        """The typical duration; NaN without readings."""
        return median(self.readings)

    def interval(self, confidence: float = 0.95) -> MedianInterval | None:
        """Confidence interval of the median (Proposition 13.2)."""
        return median_interval(self.readings, confidence)

    def rate(self, amount: float) -> float:
        """``amount`` (bytes, operations...) per second at the typical duration."""
        return amount / self.median if self.readings else math.nan

    def row(self) -> tuple[str, ...]:
        """Cells: name, minimum, median, interval, coverage, readings."""
        interval = self.interval()
        low_high = f"{seconds_text(interval.low)} .. {seconds_text(interval.high)}" if interval else "n/a"
        coverage = f"{100 * interval.coverage:.1f}%" if interval else "n/a"
        count = f"{len(self.readings)}" if self.complete else f"{len(self.readings)} of {self.planned}"
        return (self.name, seconds_text(self.minimum), seconds_text(self.median), low_high, coverage, count)

    def table(self) -> Table:
        return _timing_table("Timing", (self,))

    def to_json(self) -> dict[str, Any]:
        """A dict of JSON types; :meth:`from_json` is its inverse."""
        interval = self.interval()
        return {
            "name": self.name,
            "readings_s": list(self.readings),
            "calls_per_reading": self.calls,
            "warmup": self.warmup,
            "planned": self.planned,
            "complete": self.complete,
            "minimum_s": None if math.isnan(self.minimum) else self.minimum,
            "median_s": None if math.isnan(self.median) else self.median,
            "median_interval_s": interval.to_json() if interval else None,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Timing:
        return cls(
            name=data["name"],
            readings=tuple(data["readings_s"]),
            calls=data["calls_per_reading"],
            warmup=data["warmup"],
            planned=data["planned"],
            complete=data["complete"],
        )


@dataclass(frozen=True)
class Ratio:
    """How many times ``slower`` takes as long as ``faster``: the median of the ratios of readings taken side by
    side."""

    slower: str
    faster: str
    readings: tuple[float, ...]

    @property
    def median(self) -> float:
        return median(self.readings)

    @property
    def interval(self) -> MedianInterval | None:
        return median_interval(self.readings)

    def __str__(self) -> str:
        interval = self.interval
        if interval is None:
            return f"{self.slower} / {self.faster}: no readings"
        return (
            f"{self.slower} / {self.faster} = {self.median:.3g} "
            f"[{interval.low:.3g}, {interval.high:.3g}] at {100 * interval.coverage:.1f}%"
        )

    def to_json(self) -> dict[str, Any]:
        interval = self.interval
        return {
            "slower": self.slower,
            "faster": self.faster,
            "median": None if math.isnan(self.median) else self.median,
            "interval": interval.to_json() if interval else None,
        }


def pairwise(slower: Timing, faster: Timing) -> Ratio:
    """The ratios of two sides of one comparison, round by round."""
    # An interrupted round may have timed only some of its sides: zip keeps the rounds both completed.
    pairs = tuple(a / b for a, b in zip(slower.readings, faster.readings, strict=False) if b > 0)
    return Ratio(slower.name, faster.name, pairs)


@dataclass(frozen=True, repr=False)
class Comparison(Tabular):
    """Several callables timed in alternation. ``timings[0]`` is the baseline unless another is named.

    Reading ``i`` of every side belongs to the same round, a fraction of a second apart, so ratios are taken round by
    round. ``order`` says how the sides took turns.
    """

    timings: tuple[Timing, ...]
    order: str = "rotate"
    complete: bool = True

    def __getitem__(self, name: str) -> Timing:
        for timing in self.timings:
            if timing.name == name:
                return timing
        raise KeyError(f"no side named {name!r}; sides: {', '.join(t.name for t in self.timings)}")

    @property
    def baseline(self) -> Timing:
        return self.timings[0]

    def ratio(self, faster: str, slower: str | None = None) -> Ratio:
        """The speedup of ``faster`` over ``slower`` (default: the baseline), median of pairwise ratios."""
        return pairwise(self[slower] if slower is not None else self.baseline, self[faster])

    def table(self) -> Table:
        notes = [f"sides took turns reading by reading ({self.order}); ratios are medians of pairwise ratios"]
        notes += [str(self.ratio(t.name)) for t in self.timings[1:]]
        if not self.complete:
            notes.append("interrupted: what was measured until then")
        return _timing_table("Comparison", self.timings, notes)

    def to_json(self) -> dict[str, Any]:
        return {
            "order": self.order,
            "complete": self.complete,
            "timings": [t.to_json() for t in self.timings],
            "ratios_to_baseline": [self.ratio(t.name).to_json() for t in self.timings[1:]],
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Comparison:
        timings = tuple(Timing.from_json(t) for t in data["timings"])
        return cls(timings=timings, order=data["order"], complete=data["complete"])


def _timing_table(caption: str, timings: Sequence[Timing], notes: Sequence[str] = ()) -> Table:
    columns = ("side", "minimum", "median", "interval of the median", "coverage", "readings")
    extra = [f"{t.name}: interrupted" for t in timings if not t.complete] if not notes else []
    return Table.build(caption, columns, [t.row() for t in timings], [*notes, *extra])


# --- Measuring --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Collect garbage now, and not again until the block ends: a collection inside a reading is interference."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def device_synchronize(device: Any = "cpu") -> Callable[[], None] | None:
    """What to call before reading the clock for work on ``device``: None on CPU, ``torch.cuda.synchronize`` on CUDA."""
    kind = str(getattr(device, "type", device)).split(":")[0]
    if kind != "cuda":
        return None
    import torch

    return torch.cuda.synchronize


class _Side:
    """One callable being measured: its readings so far, and how to take one more."""

    def __init__(
        self,
        name: str,
        fn: Callable[[], Any],
        synchronize: Callable[[], None] | None,
        clock: Callable[[], float],
        pause: float,
        shortest: float,
    ):
        self.name = name
        self.fn = fn
        self.synchronize = synchronize
        self.clock = clock
        self.pause = pause
        self.shortest = shortest
        self.calls = 1
        self.warmup = 0
        self.readings: list[float] = []

    def reading(self, calls: int) -> float:
        """Seconds per call over ``calls`` calls. The result of a call is dropped at once, as in ``f(x)`` on its own
        line."""
        fn, synchronize, clock = self.fn, self.synchronize, self.clock
        if self.pause:
            time.sleep(self.pause)
        if synchronize is not None:
            synchronize()
        start = clock()
        for _ in range(calls):
            fn()
        if synchronize is not None:
            synchronize()
        return (clock() - start) / calls

    def prepare(self, warmup: int, calls: int | None) -> None:
        """Warm up, then settle how many calls one reading averages over."""
        for _ in range(warmup):
            self.reading(1)
        self.warmup = warmup
        if calls is not None:
            self.calls = max(1, calls)
            return
        # Double until a reading is long enough; the calls spent here are warm-up too. The shortest of three decides:
        # one reading that something else interrupted would settle for a single call, and time the clock with it.
        count = 1
        while (took := min(self.reading(count) for _ in range(3)) * count) < self.shortest and count < 1_000_000:
            self.warmup += 3 * count
            count = max(2 * count, min(64 * count, math.ceil(count * self.shortest / max(took, 1e-9))))
        self.calls = count

    def timing(self, planned: int, complete: bool) -> Timing:
        return Timing(self.name, tuple(self.readings), self.calls, self.warmup, planned, complete)


def _orders(count: int, rounds: int, order: str, seed: int) -> Iterator[list[int]]:
    """The order in which the sides take their turns, round by round."""
    generator = random.Random(seed)
    for r in range(rounds):
        if order == "rotate":
            yield [(r + i) % count for i in range(count)]
        else:
            yield generator.sample(range(count), count)


def compare(
    sides: Mapping[str, Callable[[], Any]],
    *,
    readings: int = 15,
    warmup: int = 3,
    calls: int | None = None,
    order: str = "rotate",
    seed: int = 0,
    device: Any = "cpu",
    synchronize: Callable[[], None] | None = None,
    pause: float = 0.0,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Comparison:
    """Time several ways of doing the same work, taking turns reading by reading.

    ``sides`` maps a name to a callable without arguments; the first is the baseline. Every side is warmed up, then each
    of ``readings`` rounds takes one reading of every side, in rotating or (``order="random"``) seeded random order, so
    that drift and the caches' state hit all sides alike. ``calls`` fixes how many calls a reading averages over (by
    default as many as make it last 0.2 ms, on a GPU 10 ms). ``device="cuda"`` waits for the GPU before the clock is
    read, ``synchronize`` for whatever it waits for instead.
    ``pause`` seconds before every reading let the threads of the side before it come to rest: a pool that spins while
    it waits would otherwise slow its neighbour.

    Ctrl-C ends the run early and returns what was measured, marked incomplete. Any other exception passes through.
    Raises ValueError for no sides, an unknown order, or fewer than one reading.
    """
    if not sides:
        raise ValueError("nothing to time: give at least one side")
    if order not in ("rotate", "random"):
        raise ValueError(f"unknown order {order!r}; known: rotate, random")
    if readings < 1:
        raise ValueError("at least one reading is needed")
    waiter = synchronize if synchronize is not None else device_synchronize(device)
    on_gpu = device_synchronize(device) is not None
    shortest = SHORTEST_CUDA_READING if on_gpu else SHORTEST_READING
    measured = [_Side(name, fn, waiter, clock, pause, shortest) for name, fn in sides.items()]
    complete = False
    with quiet():
        try:
            for side in measured:
                _report(progress, 0.0, f"warming up {side.name}")
                side.prepare(warmup, calls)
            for r, turns in enumerate(_orders(len(measured), readings, order, seed)):
                for index in turns:
                    measured[index].readings.append(measured[index].reading(measured[index].calls))
                _report(progress, (r + 1) / readings, f"round {r + 1} of {readings}")
            complete = True
        except KeyboardInterrupt:
            # The measurement so far is worth having; the caller sees that it is partial.
            pass
    if not complete:
        # Keep whole rounds only: a side that had its turn in the broken round would be compared with a stranger.
        whole = min(len(side.readings) for side in measured)
        for side in measured:
            del side.readings[whole:]
    timings = tuple(side.timing(readings, complete) for side in measured)
    return Comparison(timings, order if len(measured) > 1 else "alone", complete)


def sample(
    fn: Callable[[], Any],
    *,
    name: str = "",
    readings: int = 15,
    warmup: int = 3,
    calls: int | None = None,
    device: Any = "cpu",
    synchronize: Callable[[], None] | None = None,
    progress: Progress | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Timing:
    """Take ``readings`` readings of one callable. Same meaning of the arguments, and of Ctrl-C, as :func:`compare`.

    To say that one thing is faster than another, use :func:`compare`: samples taken apart differ by the machine's
    drift.
    """
    label = name or getattr(fn, "__name__", "") or type(fn).__name__
    result = compare(
        {label: fn},
        readings=readings,
        warmup=warmup,
        calls=calls,
        device=device,
        synchronize=synchronize,
        progress=progress,
        clock=clock,
    )
    return result.timings[0]


def _report(progress: Progress | None, fraction: float, message: str) -> None:
    if progress is not None:
        progress(fraction, message)
