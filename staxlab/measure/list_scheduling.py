"""Greedy list schedules: what any of them keeps, and tasks for which that is all they keep (Proposition 11.2).

Tasks with durations ``c_1 .. c_n`` wait in a list; whenever one of ``P`` workers is free, it takes the next. Every such
schedule ends between :func:`bounds`. The upper bound counts the last task twice: once in the sum and once as the
maximum. Let task ``j`` end last, and begin at ``s``. Until ``s`` all workers were busy, with the *other* tasks, so
``P s <= sum(c) - c_j``, and

    T = s + c_j <= sum(c) / P + (1 - 1/P) c_j <= sum(c) / P + (1 - 1/P) max(c)

(:func:`improved_bound`, Exercise 31). No bound in these two numbers is smaller: :func:`tight_family` has ``P (P - 1)``
short tasks and a long one last in the list, which attains it. Hence also the ratio to the best schedule there is: both
``sum(c) / P`` and ``max(c)`` are at most the optimum, so ``T <= (2 - 1/P)`` times that, and the same tasks attain it
(Graham, 1966, "Bounds for certain multiprocessing anomalies"). With the longest tasks first the factor is
``4/3 - 1/(3P)`` (Graham, 1969, "Bounds on multiprocessing timing anomalies"), which is why a build submits the longest
sources first.

Whole numbers and fractions are computed with exactly.

>>> schedule = list_schedule(tight_family(3), 3)
>>> schedule.makespan, improved_bound(schedule.durations, 3), optimum(schedule.durations, 3)
(5, Fraction(5, 1), 3)
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property
from typing import Any

from ..errors import OptionError
from ..runtime.build_report import bounds, share_of
from .tables import Table, Tabular

MOST_TASKS = 14  # for which the optimum is searched for

__all__ = [
    "Assignment", "ListSchedule", "bounds", "improved_bound", "list_schedule", "longest_first", "longest_first_family",
    "optimum", "tight_family",
]  # fmt: skip


@dataclass(frozen=True)
class Assignment:
    """A task of a schedule: its number in the list from 0, its ``worker``, and its ``start`` and ``finish`` in the unit
    of the durations."""

    task: int
    worker: int
    start: Any
    finish: Any


@dataclass(frozen=True, repr=False)
class ListSchedule(Tabular):
    """Who does which task when. ``assignments`` are in the order of the list."""

    durations: tuple[Any, ...]
    workers: int
    assignments: tuple[Assignment, ...]

    @cached_property
    def makespan(self) -> Any:
        """When the last task ends."""
        return max((a.finish for a in self.assignments), default=0)

    @property
    def bounds(self) -> tuple[Any, Any]:
        """Proposition 11.2."""
        return bounds(self.durations, self.workers)

    @property
    def improved_bound(self) -> Any:
        """Exercise 31."""
        return improved_bound(self.durations, self.workers)

    @property
    def attains(self) -> bool:
        """Whether it ends as late as the improved bound allows."""
        return self.makespan == self.improved_bound

    def lane(self, worker: int) -> tuple[Assignment, ...]:
        """What a worker does, in order of time."""
        return tuple(sorted((a for a in self.assignments if a.worker == worker), key=lambda a: (a.start, a.task)))

    @property
    def idle(self) -> Any:
        """The time that workers have nothing to do before the end, of all together."""
        return self.workers * self.makespan - sum(self.durations)

    def summary(self) -> str:
        low, high = self.bounds
        words = f"{len(self.durations)} tasks on {self.workers} workers end at {_number(self.makespan)}"
        improved = f"{_number(self.improved_bound)}{' (attained)' if self.attains else ''}"
        return f"{words}; between {_number(low)} and {_number(high)}, and not after {improved}"

    def table(self) -> Table:
        rows = [
            (a.task, _number(self.durations[a.task]), a.worker, _number(a.start), _number(a.finish))
            for a in self.assignments
        ]
        return Table.build(self.summary(), ("task", "duration", "worker", "begins", "ends"), rows, text_columns=0)

    def format(self) -> str:
        return str(self)

    def __str__(self) -> str:
        from ..view.build_chart import text  # the same chart as that of a build

        return text(self)

    __repr__ = __str__


def list_schedule(durations: Sequence[Any], workers: int) -> ListSchedule:
    """The greedy schedule of tasks in the order of the list: whoever is free first takes the next, of several the one
    with the smallest number.

    Durations are numbers of 0 or more, in any unit. OptionError for others, or for less than one worker.
    O(n log P).
    """
    tasks = tuple(durations)
    _check(tasks, workers)
    free: list[tuple[Any, int]] = [(0, worker) for worker in range(workers)]  # a heap already
    assignments = []
    for task, duration in enumerate(tasks):
        start, worker = heapq.heappop(free)
        assignments.append(Assignment(task, worker, start, start + duration))
        heapq.heappush(free, (start + duration, worker))
    return ListSchedule(tasks, workers, tuple(assignments))


def longest_first(durations: Sequence[Any], workers: int) -> ListSchedule:
    """The greedy schedule of the same tasks, sorted: the longest first. Errors as :func:`list_schedule`."""
    return list_schedule(sorted(durations, reverse=True), workers)


def improved_bound(durations: Sequence[Any], workers: int) -> Any:
    """No greedy list schedule ends after ``sum(c) / P + (1 - 1/P) max(c)`` (Exercise 31). Errors as :func:`bounds`."""
    _, high = bounds(durations, workers)
    return high - share_of(max(durations, default=0), workers)


def tight_family(workers: int, length: int = 1) -> tuple[int, ...]:
    """``P (P - 1)`` tasks of ``length`` and one of ``P`` times that, last in the list: their greedy schedule ends at
    :func:`improved_bound`, ``(2 P - 1) length``, and the optimum is ``P length``. OptionError for less than one
    worker, or no length."""
    if workers < 1 or length < 1:
        raise OptionError("tasks need a worker and a length of at least 1", remedy="tight_family(3)")
    return (length,) * (workers * (workers - 1)) + (workers * length,)


def longest_first_family(workers: int) -> tuple[int, ...]:
    """Tasks for which even the longest first is not the best: it ends at ``4 P - 1``, the optimum is ``3 P`` (Graham,
    1969). Two each of ``2 P - 1`` down to ``P + 1``, and three of ``P``. OptionError for less than two workers."""
    if workers < 2:
        raise OptionError("one worker is never wrong", remedy="longest_first_family(2)")
    return tuple(c for c in range(2 * workers - 1, workers, -1) for _ in range(2)) + (workers,) * 3


def optimum(durations: Sequence[Any], workers: int) -> Any:
    """The smallest end of any schedule, by trying all that can be better (branch and bound; exponential in the number
    of tasks). OptionError for more than 14 tasks, and as :func:`list_schedule`."""
    tasks = sorted(durations, reverse=True)
    _check(tasks, workers)
    if len(tasks) > MOST_TASKS:
        raise OptionError(f"{len(tasks)} tasks are too many to try all schedules; {MOST_TASKS} are not")
    least, _ = bounds(tasks, workers)
    best = list_schedule(tasks, workers).makespan
    loads: list[Any] = [0] * workers

    def place(position: int) -> None:
        nonlocal best
        if position == len(tasks):
            best = min(best, max(loads))
            return
        for load in sorted(set(loads)):  # workers that are equally busy are interchangeable
            if best == least:
                return
            if load + tasks[position] < best:
                worker = loads.index(load)
                loads[worker] = load + tasks[position]
                place(position + 1)
                loads[worker] = load

    place(0)
    return best


def _check(durations: Sequence[Any], workers: Any) -> None:
    if not isinstance(workers, int) or isinstance(workers, bool) or workers < 1:
        raise OptionError(f"a schedule needs a worker, not {workers!r}", remedy="workers=1")
    for task, duration in enumerate(durations):
        try:
            fine = 0 <= duration < float("inf")
        except TypeError:
            fine = False
        if not fine:
            raise OptionError(f"the duration of task {task} is {duration!r}, and must be a number of 0 or more")


def _number(value: Any) -> str:
    return str(value) if isinstance(value, (int, Fraction)) else f"{value:.4g}"
