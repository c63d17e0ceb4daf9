"""What a build did: which kernel was compiled by which worker, from when until when (Section 11.2, Proposition 11.2).

The kernels of a region are independent of each other, and a worker that is free takes the next: a greedy list schedule.
For compile times ``c_1 .. c_n`` and ``P`` workers it ends between

    max(sum(c) / P, max(c))    and    sum(c) / P + max(c)

after its beginning (:func:`bounds`; :mod:`staxlab.measure.list_scheduling` has schedules that attain either, and the
sharper upper bound). So a report can say whether a build was as parallel as any could have been. What no number of
workers makes faster is the serial part in front, the stages from capture to the wrapper:
:func:`of_compilation` puts them before the build.

Times are seconds since the build began.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from ..codegen.kernel import Kernel
from ..errors import OptionError
from ..provenance import NO_ORIGINS, Origins

VARIABLE = "STAXLAB_BUILD_WORKERS"
MOST_WORKERS = 32  # unless more are asked for: a process that compiles for a GPU takes some 150 MB
CALLER = -1  # the lane of whatever is no worker: the thread that asked for the build


def worker_count() -> int:
    """How many kernels are compiled at once: ``$STAXLAB_BUILD_WORKERS``, or else the cores this process may use, 32 at
    most. OptionError if the variable is no whole number above 0."""
    wanted = os.environ.get(VARIABLE)
    if wanted:
        if not wanted.isdecimal() or int(wanted) < 1:
            raise OptionError(f"{VARIABLE} is {wanted!r}, and must be a whole number above 0", remedy=f"{VARIABLE}=4")
        return int(wanted)
    affinity = getattr(os, "sched_getaffinity", None)
    return min(len(affinity(0)) if affinity is not None else os.cpu_count() or 1, MOST_WORKERS)


def lane() -> int:
    """The number of the worker that runs this, from 0; CALLER in any other thread."""
    return getattr(threading.current_thread(), "lane", CALLER)


def bounds(durations: Sequence[Any], workers: int) -> tuple[Any, Any]:
    """Proposition 11.2: every greedy list schedule of tasks of these ``durations`` on so many ``workers`` ends between
    the first number and the second, after Graham (1966), "Bounds for certain multiprocessing anomalies".

    In the unit of the durations; exact for whole numbers and fractions. (0, 0) for no tasks. OptionError for less than
    one worker. O(n).
    """
    if workers < 1:
        raise OptionError(f"a schedule needs a worker, not {workers}", remedy="workers=1")
    longest = max(durations, default=0)
    share = share_of(sum(durations), workers)
    return max(share, longest), share + longest


def share_of(total: Any, workers: int) -> Any:
    """``total / workers``, exact where the total is."""
    if isinstance(total, float):
        return total / workers
    from fractions import Fraction  # late: for exercises, and it takes as long to load as everything else here

    return Fraction(total) / workers


@dataclass(frozen=True)
class BuildTask:
    """One kernel of a build. ``worker`` is the lane it ran in, from 0, or -1 for the thread that asked for the build;
    ``queued``, ``started`` and ``finished`` are seconds since the build began. ``hit``: it was compiled already.
    ``origins`` are the captured nodes that the kernel stems from."""

    kernel: str
    language: str
    worker: int
    queued: float
    started: float
    finished: float
    hit: bool
    origins: Origins = NO_ORIGINS

    @property
    def seconds(self) -> float:
        """What it took once a worker had it."""
        return self.finished - self.started


@dataclass(frozen=True, repr=False)
class BuildReport:
    """A build: its tasks in order of their beginning, the number of ``workers`` it could use, and its ``seconds``.
    ``before`` are the serial stages in front of it, by name, in seconds, where the report knows of a compilation."""

    tasks: tuple[BuildTask, ...] = ()
    workers: int = 1
    seconds: float = 0.0
    before: tuple[tuple[str, float], ...] = ()

    @property
    def compiled(self) -> tuple[BuildTask, ...]:
        """The tasks that were no hits."""
        return tuple(task for task in self.tasks if not task.hit)

    @property
    def work(self) -> float:
        """Seconds of all compilations together: what one worker would have taken."""
        return sum(task.seconds for task in self.compiled)

    @property
    def makespan(self) -> float:
        """Seconds from the moment the first kernel was there to be compiled until the last one was."""
        tasks = self.compiled
        return max(t.finished for t in tasks) - min(t.queued for t in tasks) if tasks else 0.0

    @property
    def bound(self) -> tuple[float, float]:
        """Between which the :attr:`makespan` of a greedy schedule lies, in seconds (Proposition 11.2). Workers that
        were busy with another build meanwhile, or started late, can take it beyond."""
        low, high = bounds([task.seconds for task in self.compiled], self.workers)
        return float(low), float(high)

    @property
    def speedup(self) -> float:
        """The work over the makespan: how many workers it kept busy. 1 where nothing was compiled."""
        return self.work / self.makespan if self.makespan > 0 else 1.0

    @property
    def serial(self) -> float:
        """Seconds of the stages in front."""
        return sum(seconds for _, seconds in self.before)

    @property
    def lanes(self) -> tuple[tuple[int, tuple[BuildTask, ...]], ...]:
        """The tasks of each worker that had any, by number; the calling thread (-1) first."""
        numbers = sorted({task.worker for task in self.tasks})
        return tuple((number, tuple(t for t in self.tasks if t.worker == number)) for number in numbers)

    def summary(self) -> str:
        """One line: how many kernels, how long, how parallel."""
        found, made = len(self.tasks) - len(self.compiled), len(self.compiled)
        if not self.tasks:
            return "nothing to build"
        if not made:
            return f"{found} kernel{'' if found == 1 else 's'} found compiled, in {_text(self.seconds)}"
        low, high = self.bound
        people = f"{self.workers} worker{'' if self.workers == 1 else 's'}"
        words = f"{made} kernel{'' if made == 1 else 's'} compiled by {people} in {_text(self.makespan)}"
        words += f" ({_text(self.work)} of work; Proposition 11.2: {_text(low)} to {_text(high)})"
        return words + (f"; {found} found compiled" if found else "")

    def text(self) -> str:
        """The chart in characters: a line for each lane."""
        return str(self)

    format = text

    def __str__(self) -> str:
        from ..view.build_chart import text

        return text(self)

    __repr__ = __str__

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def of_compilation(compilation: Any) -> BuildReport:
    """The build of a region that was compiled, with the serial stages in front of it. OptionError where nothing was
    built: the region fell back, or its target is not here."""
    artifact = compilation.artifact
    if artifact is None or artifact.build is None:
        why = compilation.fallback_reason or f"it is compiled for {compilation.target}"
        raise OptionError(f"{compilation.name} was not built: {why}", remedy="compile it for this machine")
    before = tuple((name, seconds) for name, seconds in compilation.timings.items() if name != "artifact")
    return replace(artifact.build, before=before)


class Recorder:
    """Takes down what a build does, from any of its threads."""

    def __init__(self, workers: int):
        self.workers = workers
        self._began = time.perf_counter()
        self._tasks: list[BuildTask] = []
        self._lock = threading.Lock()

    def now(self) -> float:
        """Seconds since the build began."""
        return time.perf_counter() - self._began

    @contextmanager
    def task(self, kernel: Kernel, queued: float) -> Iterator[_Outcome]:
        """Take down a task; whoever runs it says what became of it. One that fails leaves nothing."""
        started, outcome = self.now(), _Outcome()
        yield outcome
        times = queued, started, self.now()
        done = BuildTask(kernel.name, kernel.language, lane(), *times, outcome.hit, kernel.origins)
        with self._lock:
            self._tasks.append(done)

    def report(self) -> BuildReport:
        with self._lock:
            tasks = tuple(sorted(self._tasks, key=lambda task: (task.started, task.finished)))
        by_callers = all(task.worker == CALLER for task in tasks if not task.hit)
        return BuildReport(tasks, 1 if by_callers else self.workers, self.now())


class _Outcome:
    hit = False


def _text(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"
