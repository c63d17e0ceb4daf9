"""What Exercise 31 runs: greedy schedules, of drawn lists and of the students' own."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...measure.list_scheduling import (
    ListSchedule,
    bounds,
    list_schedule,
    longest_first,
    optimum,
    tight_family,
)
from ..answers import Callee
from ..feedback import Verdict, right, wrong
from ..judges import Slip, call_failed, number_text, result_text, unexpected_result
from ..variants import generator
from .ex25_runs import different

if TYPE_CHECKING:
    from .ex31 import Variant

COEFFICIENT = "its coefficient 1 - 1/P is not negative, and d <= m"
LAST_LONGEST = "the task that ends last is the longest"
ALIKE = "all tasks take equally long"
REPEATED = "the maximum is already part of the sum"

MOST_TASKS = 2000
WORKERS = (2, 3, 4, 5, 7)


# --- One schedule -----------------------------------------------------------------------------------------------------


def makespan_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other ends one may arrive at for the variant's list."""
    tasks, workers = variant.tasks, variant.workers
    in_turn = max(sum(tasks[worker::workers]) for worker in range(workers))
    low, _ = bounds(tasks, workers)
    last = list_schedule(tasks, workers).assignments[-1].finish
    return different(
        Fraction(list_schedule(tasks, workers).makespan),
        (
            Slip("in-turn", Fraction(in_turn), "The next task goes to whoever is free first, not to the next in turn."),
            Slip("sorted", Fraction(longest_first(tasks, workers).makespan), "The list is taken in its own order."),
            Slip("last-of-list", Fraction(last), "The last of the list need not be the last to end."),
            Slip("lower-bound", Fraction(low), "That is the lower bound: no schedule is bound to attain it."),
            Slip("one-worker", Fraction(sum(tasks)), "There are several workers."),
        ),
    )


def bound_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other bounds one may arrive at."""
    schedule = list_schedule(variant.tasks, variant.workers)
    low, high = schedule.bounds
    return different(
        Fraction(schedule.improved_bound),
        (
            Slip("unimproved", Fraction(high), "That is the bound of the proposition: the factor 1 - 1/P is missing."),
            Slip("the-schedule", Fraction(schedule.makespan), "That is when this schedule ends, not its bound."),
            Slip("lower-bound", Fraction(low), "That is the lower bound."),
        ),
    )


# --- The proof --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=4096)
def last_of(total: int, last: int, workers: int) -> tuple[Fraction, Fraction]:
    """When a task of duration ``last`` begins and ends, by running, after all others, which take ``total - last``
    together and keep all workers busy equally long."""
    share = Fraction(total - last, workers)
    task = list_schedule([share] * workers + [Fraction(last)], workers).assignments[-1]
    return Fraction(task.start), Fraction(task.finish)


def tasks_with(total: int, longest: int) -> list[int]:
    """Tasks of this total, of which the longest takes so long."""
    return [longest] * (total // longest) + [total % longest] * (total % longest > 0)


def judge_last_task(callee: Callee, seed: int | None) -> Verdict:
    """The student's function on drawn lists, smallest first; a task that ends last is one of possibly several."""
    rng = generator(seed, "lists")
    cases: list[tuple[list[int], int]] = [([3], 2), ([1, 2, 3], 1), ([2, 1, 3, 1], 2), ([1, 1, 4], 2), ([5, 1, 1], 2)]
    for _ in range(60):
        cases.append(([rng.randint(1, 9) for _ in range(rng.randint(1, 9))], rng.randint(1, 4)))
    given = []
    for tasks, workers in sorted(cases, key=lambda case: len(case[0])):
        outcome = callee.call(list(tasks), workers)
        if outcome.failed:
            return call_failed(callee, (tasks, workers), outcome)
        pair = _pair(outcome.value)
        if pair is None:
            problem = f"{result_text(outcome.value)} is no pair of a number and a time"
            return unexpected_result(callee, (tasks, workers), problem)
        given.append((list_schedule(tasks, workers), *pair))
    for schedule, task, start in given:
        if not _ends_last(schedule, task, start):
            facts = (*_facts(schedule), ("yours", f"({task}, {number_text(start)})"))
            for name, (answer_of, message) in LAST_MISTAKES.items():
                if all((task, start) == answer_of(schedule) for schedule, task, start in given):
                    return wrong(message, *facts, mistake=name)
            known = 0 <= task < len(schedule.durations)
            if known and schedule.assignments[task].start != start:
                return wrong("The task does not begin then.", *facts)
            return wrong("That task is not the last to end.", *facts)
    return right("A task that ends last, each time, and its beginning.", ("tried", f"{len(given)} lists"))


def _pair(value: Any) -> tuple[int, Fraction] | None:
    if not isinstance(value, (tuple, list)) or len(value) != 2:
        return None
    if any(isinstance(part, bool) or not isinstance(part, (int, Fraction)) for part in value):
        return None
    task, start = value
    return (task, Fraction(start)) if isinstance(task, int) else None


def _ends_last(schedule: ListSchedule, task: int, start: Fraction) -> bool:
    if not 0 <= task < len(schedule.durations):
        return False
    found = schedule.assignments[task]
    return found.finish == schedule.makespan and found.start == start


def _of_last(schedule: ListSchedule) -> tuple[int, Any]:
    last = schedule.assignments[-1]
    return last.task, Fraction(last.start)


def _of_longest(schedule: ListSchedule) -> tuple[int, Any]:
    task = schedule.durations.index(max(schedule.durations))
    return task, Fraction(schedule.assignments[task].start)


def _ends(schedule: ListSchedule) -> tuple[int, Any]:
    found = max(schedule.assignments, key=lambda a: a.finish)
    return found.task, Fraction(found.finish)


def _in_turn(schedule: ListSchedule) -> tuple[int, Any]:
    loads, best = [Fraction(0)] * schedule.workers, (Fraction(0), 0, Fraction(0))
    for task, duration in enumerate(schedule.durations):
        start = loads[task % schedule.workers]
        loads[task % schedule.workers] += duration
        if start + duration > best[0]:
            best = (start + duration, task, start)
    return best[1], best[2]


#: name of a mistake: the answers it leads to, and what to say.
LAST_MISTAKES: dict[str, tuple[Callable[[ListSchedule], tuple[int, Any]], str]] = {
    "last-of-list": (_of_last, "The last of the list need not be the last to end."),
    "longest-task": (_of_longest, "The longest task need not be the last to end."),
    "end-not-begin": (_ends, "That is when it ends; asked for is when it begins."),
    "in-turn": (_in_turn, "The next task goes to whoever is free first, not to the next in turn."),
}


# --- It is tight ------------------------------------------------------------------------------------------------------


def judge_own_list(tasks: Sequence[Any], variant: Variant) -> Verdict:
    """The student's list for the variant's number of workers, scheduled."""
    problem = examined(tasks, variant.workers, variant.longest)
    if problem is not None:
        return problem
    schedule = list_schedule([Fraction(task) for task in tasks], variant.workers)
    return right("It ends exactly at the bound.", *_facts(schedule))


def judge_tight(callee: Callee) -> Verdict:
    """The student's lists for several numbers of workers, scheduled."""
    for workers in WORKERS:
        outcome = callee.collect(workers, limit=MOST_TASKS)
        if outcome.failed:
            if "not iterable" in outcome.reason():
                return unexpected_result(callee, (workers,), "that is no list")
            return call_failed(callee, (workers,), outcome)
        tasks = outcome.value
        if len(tasks) > MOST_TASKS:
            return unexpected_result(callee, (workers,), f"these are more than {MOST_TASKS} tasks")
        if any(isinstance(task, bool) or not isinstance(task, int) for task in tasks):
            return unexpected_result(callee, (workers,), f"{result_text(tasks)} is no list of whole numbers")
        problem = examined(tasks, workers)
        if problem is not None:
            if workers > WORKERS[0]:
                return Verdict(
                    problem.status,
                    problem.credit,
                    problem.message,
                    (*problem.facts, ("but", f"it is right for {WORKERS[0]} workers")),
                    problem.mistake,
                )
            return problem
    return right("It ends exactly at the bound, for every P that was tried.", ("tried", ", ".join(map(str, WORKERS))))


def examined(tasks: Sequence[Any], workers: int, longest: int | None = None) -> Verdict | None:
    """What is wrong with a list that should attain the bound; None if nothing is."""
    if not tasks:
        return wrong("These are no tasks.", ("P", workers), mistake="no-tasks")
    if any(task < 1 for task in tasks):
        return wrong(
            "A task takes at least 1.",
            ("P", workers),
            ("shortest", number_text(Fraction(min(tasks)))),
            mistake="too-short",
        )
    schedule = list_schedule([Fraction(task) for task in tasks], workers)
    facts, mean, most = _facts(schedule), Fraction(sum(tasks)) / workers, max(tasks)
    if longest is not None and most != longest:
        return wrong(f"The longest task should take {longest}.", *facts, mistake="longest")
    if schedule.attains and mean < most:
        return wrong(
            "It ends at the bound, but only since one task outweighs all others together, and no order could "
            "be better.",
            *facts,
            mistake="outweighs",
        )
    if schedule.attains and mean > most:
        return wrong(
            "It ends at the bound, but the two terms are not alike: the workers' mean load is larger than the "
            "longest task.",
            *facts,
            mistake="too-many",
        )
    if not schedule.attains:
        again = list_schedule(sorted(schedule.durations), workers)
        if again.attains and mean == most:
            return wrong("These tasks would do, but in another order.", *facts, mistake="order")
        return wrong("It ends before the bound.", *facts, mistake="not-attained")
    return None


def _facts(schedule: ListSchedule) -> tuple[tuple[str, str], ...]:
    lanes = "; ".join(
        " ".join(number_text(Fraction(schedule.durations[a.task])) for a in schedule.lane(worker)) or "nothing"
        for worker in range(min(schedule.workers, 4))
    )
    return (
        ("P", str(schedule.workers)),
        ("workers do", lanes if len(lanes) <= 120 else lanes[:117] + "..."),
        ("ends at", number_text(Fraction(schedule.makespan))),
    )


@lru_cache(maxsize=16)
def ratio_of(workers: int) -> Fraction:
    """The largest ratio of a greedy schedule to the best: that of the tight family, both run."""
    tasks = tight_family(workers)
    best = optimum(tasks, workers) if workers <= 3 else longest_first(tasks, workers).makespan
    assert best == bounds(tasks, workers)[0], "the lower bound is attained, so nothing is better"
    return Fraction(list_schedule(tasks, workers).makespan) / Fraction(best)


def ratio_slips(workers: int) -> Iterable[Slip]:
    """Other ratios one may arrive at."""
    return different(
        ratio_of(workers),
        (
            Slip("unimproved", Fraction(2), "That follows from the proposition; the improved bound gives less."),
            Slip("sorted", Fraction(4, 3) - Fraction(1, 3 * workers), "That holds for the longest first."),
            Slip("inverse", 1 / ratio_of(workers), "The other way round."),
            Slip("number-of-workers", Fraction(workers), "Then the greedy schedule would leave all but one idle."),
        ),
    )
