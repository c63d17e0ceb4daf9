"""Answers to Exercise 31: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex31 import Variant


def last_task(c, P):
    free, starts = [0] * P, []
    for duration in c:
        start = min(free)
        free[free.index(start)] = start + duration
        starts.append(start)
    j = max(range(len(c)), key=lambda k: starts[k] + c[k])
    return j, starts[j]


def tight(P):
    return [1] * (P * (P - 1)) + [P]


REASONS = """The short tasks come first and divide evenly, so that all workers are done with them at the same moment.
Then the long task begins, and until it ends all workers but one have nothing to do: that is (1 - 1/P) of its duration
lost on each. Sorted with the longest first, the long task runs beside the short ones and the lists end as early as
possible; for any list the longest first is within 4/3 - 1/(3P) of the best. In a build the durations are not known
beforehand, the length of a source is only a guess; kernels take about equally long and are more than the workers, so
little is lost in any order, and the stages before the build are serial anyway."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from ...measure.list_scheduling import list_schedule, tight_family
    from .ex31_runs import COEFFICIENT, ratio_of

    schedule = list_schedule(variant.tasks, variant.workers)
    return {
        "makespan_31": schedule.makespan,
        "improved_31": str(schedule.improved_bound),
        "last_task": last_task,
        "latest_start": "(S - d) / P",
        "latest_end": "S/P + (1 - 1/P) * d",
        "may_replace": COEFFICIENT,
        "improved_bound_31": "S/P + (1 - 1/P) * m",
        "own_list": list(tight_family(variant.workers, variant.factor)),
        "tight": tight,
        "greedy_ratio": str(ratio_of(variant.workers)),
        "why_bad": REASONS,
    }


_LAST = "j = max(range(len({})), key=lambda k: starts[k] + c[k])"
HARMLESS: dict[str, tuple[str, ...]] = {"last_task": (f"{_LAST.format('c')} -> {_LAST.format('starts')}",)}


def _last_of_list(c, P):
    free = [0] * P
    for j in range(len(c)):
        start = min(free)
        free[free.index(start)] = start + c[j]
    return len(c) - 1, start


def _longest_task(c, P):
    free = [0] * P
    starts = []
    for j in range(len(c)):
        start = min(free)
        free[free.index(start)] = start + c[j]
        starts.append(start)
    j = c.index(max(c))
    return j, starts[j]


def _end_not_begin(c, P):
    free = [0] * P
    last, ends = 0, 0
    for j in range(len(c)):
        start = min(free)
        free[free.index(start)] = start + c[j]
        if start + c[j] > ends:
            last, ends = j, start + c[j]
    return last, ends


def _in_turn(c, P):
    free = [0] * P
    last, begins, ends = 0, 0, 0
    for j in range(len(c)):
        start = free[j % P]
        free[j % P] = start + c[j]
        if start + c[j] > ends:
            last, begins, ends = j, start, start + c[j]
    return last, begins


def _no_pair(c, P):
    return 0


def _one_task(P):
    return [P]


def _longest_first(P):
    return [P] + [1] * (P * (P - 1))


def _too_few(P):
    return [1] * P + [P]


def _twice_as_many(P):
    return [1] * (2 * P * (P - 1)) + [P]


def _two_workers_only(P):
    return [1, 1, 2]


def _no_list(P):
    return P


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex31_runs import ALIKE, LAST_LONGEST, REPEATED, bound_slips, makespan_slips, ratio_slips

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    P, longest = variant.workers, variant.longest
    found = [slip(s.name, makespan_31=s.answer) for s in makespan_slips(variant)]
    found += [slip(s.name, improved_31=s.answer) for s in bound_slips(variant)]
    found += [slip(s.name, greedy_ratio=s.answer) for s in ratio_slips(P)]
    found += [slip(f"chose-{o.replace(' ', '-')}", may_replace=o) for o in (ALIKE, LAST_LONGEST, REPEATED)]
    return (
        *found,
        slip("last-of-list", last_task=_last_of_list),
        slip("longest-task", last_task=_longest_task),
        slip("end-not-begin", last_task=_end_not_begin),
        slip("in-turn", last_task=_in_turn),
        slip("wrong-form", last_task=_no_pair),
        slip("task-itself", latest_start="S/P"),
        slip("one-worker", latest_start="S - d"),
        slip("end-not-begin", latest_start="(S - d)/P + d"),
        slip("task-itself", latest_end="S/P + d"),
        slip("begin-not-end", latest_end="(S - d)/P"),
        slip("shared-task", latest_end="S/P"),
        slip("unimproved", improved_bound_31="S/P + m"),
        slip("lower-bound", improved_bound_31="max(S/P, m)"),
        slip("too-small", improved_bound_31="S/P"),
        slip("outweighs", own_list=[longest]),
        slip("order", own_list=[longest] + [variant.factor] * (P * (P - 1))),
        slip("longest", own_list=[1] * (P * (P - 1)) + [P]),
        slip("too-many", own_list=[variant.factor] * (2 * P * (P - 1)) + [longest]),
        slip("not-attained", own_list=[variant.factor] * (P * (P - 1) + 1) + [longest]),
        slip("outweighs", tight=_one_task),
        slip("order", tight=_longest_first),
        slip("outweighs", tight=_too_few),
        slip("too-many", tight=_twice_as_many),
        slip("not-attained", tight=_two_workers_only),
        slip("wrong-form", tight=_no_list),
    )
