"""Exercise 31 (Section 11.2, Proposition 11.2): the last task is not counted twice, and no bound is better.

Schedules are run: the student's claims about the task that ends last on drawn lists, and the student's own lists with
the greedy rule of the package, which must end exactly at the bound.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ...measure.list_scheduling import improved_bound, list_schedule
from ..answers import Choice, FormulaIn, Function, Number, Numbers, Prose
from ..claims import integers
from ..exercise import Part
from ..judges import Judge, Slip, close_to, one_of, read_by_a_person, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex31_answers import HARMLESS, reference, wrong_answers
from .ex31_runs import (
    ALIKE,
    COEFFICIENT,
    LAST_LONGEST,
    REPEATED,
    bound_slips,
    judge_last_task,
    judge_own_list,
    judge_tight,
    last_of,
    makespan_slips,
    ratio_of,
    ratio_slips,
    tasks_with,
)

__all__ = [
    "DIFFICULTY",
    "HARMLESS",
    "PARTS",
    "SECTION",
    "TITLE",
    "Variant",
    "check",
    "reference",
    "statement",
    "wrong_answers",
]

SECTION = 11
TITLE = "What a greedy schedule cannot exceed"
DIFFICULTY = 2

statement = r"""
Tasks of durations $c_0, \dots, c_{n-1}$ wait in a list. Whenever one of $P$ workers is free it takes the next task of
the list. Proposition 11.2 bounds the time $T$ at which the last task ends by $\frac1P\sum_i c_i + \max_i c_i$. In its
proof the last task is counted in the sum, and once more as the maximum.

(`staxlab.measure.list_scheduling` runs such schedules and draws them. Use it to look, after you have answered.)
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """The number of workers, a list of tasks for them, and the longest task of the list that is to be made, ``factor``
    times the number of workers."""

    workers: int = 3
    tasks: tuple[int, ...] = (2, 5, 3, 4, 1, 6)
    factor: int = 2

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        workers = rng.choice((2, 3, 4))
        while True:  # a list whose order matters
            variant = cls(workers, tuple(rng.randint(1, 9) for _ in range(2 * workers + 1)), rng.randint(2, 6))
            ends = {Fraction(slip.answer) for slip in makespan_slips(variant)}
            if len(ends) >= 2 and len(set(variant.tasks)) > 3:
                return variant

    @property
    def longest(self) -> int:
        return self.factor * self.workers

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("P", str(self.workers)),
            ("your list", ", ".join(map(str, self.tasks))),
            ("the longest task of the list you make", str(self.longest)),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. When does the last task of your list end, if the tasks are taken in this order?
2. What does $\frac1P\sum_i c_i + (1 - \frac1P)\max_i c_i$ come to for it?
"""

PART_2 = r"""
The proof in steps. Let $j$ be a task that ends last, $d = c_j$ its duration, $S = \sum_i c_i$ and $m = \max_i c_i$.

1. `last_task(c, P)` gets a list of durations (whole numbers, at least 1) and the number of workers. It returns the pair
   $(j, \tau)$: the number of a task that ends last, counted from 0, and when that task begins.
2. Until $\tau$ no worker was idle. So how large can $\tau$ be at most? A formula in `S`, `d` and `P`.
3. How large can $T$ be at most? A formula in `S`, `d` and `P`.
4. Why may $m$ now be put in the place of $d$?
5. The bound in `S`, `m` and `P`.
"""

PART_3 = r"""
Now a list of tasks for which the greedy schedule ends exactly there. A single task would do, but says little: so let
both terms be alike, $\frac1P\sum_i c_i = \max_i c_i$.

1. `own_list`: such a list for your $P$, whose longest task takes exactly as long as your values say.
2. `tight(P)` returns such a list for every $P \ge 2$, of whole numbers from 1 on. Your list is scheduled.
3. No schedule of any tasks ends before $\frac1P\sum_i c_i$ or before $\max_i c_i$. How many times as long as the best
   schedule of the same tasks can a greedy one take at most, for your $P$?
4. In words: what makes your lists as bad as they are? What would sorting change, and why is the order nevertheless not
   worth much in a build?
"""

LAST_EXAMPLE = """\
def last_task(c, P):
    return 0, 0"""

TIGHT_EXAMPLE = """\
def tight(P):
    return [P, 1, 1]"""

REASONS = Rubric(
    (
        Criterion(
            "What is bad",
            1,
            "All workers are equally busy with short tasks until the long one begins; then all but one are idle.",
            "Says that the long task comes last, not that the others are idle meanwhile.",
            "No reason.",
        ),
        Criterion(
            "Sorting",
            1,
            "With the longest first the long task runs beside the short ones: the lists end at the best possible time, "
            "and any list within 4/3 - 1/(3P) of it.",
            "Says that it gets better.",
            "Not said.",
        ),
        Criterion(
            "In a build",
            1,
            "Durations are not known beforehand (the length of the source is a guess); kernels take about equally "
            "long, there are more of them than workers, and the serial part remains.",
            none="Not said.",
        ),
    ),
    "What makes a list bad",
)

PARTS = (
    Part(
        "1",
        "One schedule",
        PART_1,
        (
            Number("makespan_31", "when the last task ends", 1, example="17"),
            Number("improved_31", "the improved bound", 1, example='"37/3"'),
        ),
        (
            "Write down when each worker is free. Who is free first takes the next task.",
            "The list is not sorted first: the order is part of the question.",
        ),
    ),
    Part(
        "2",
        "The proof",
        PART_2,
        (
            Function("last_task", "a task that ends last, and when it begins", 2, example=LAST_EXAMPLE,
                     parameters=("c", "P"), returns="a pair of a number and a time"),
            FormulaIn("latest_start", "how large tau can be", 1, example='"S - d*P"', variables=("S", "d", "P")),
            FormulaIn("latest_end", "how large T can be", 1, example='"S - d*P"', variables=("S", "d", "P")),
            Choice("may_replace", "why m may replace d", 1, example=f'"{ALIKE}"',
                   options=(COEFFICIENT, LAST_LONGEST, ALIKE, REPEATED)),
            FormulaIn("improved_bound_31", "the bound", 1, example='"S - m*P"', variables=("S", "m", "P")),
        ),
        (
            "P workers without a break until tau: how much work is that, and whose? Task j is not among it.",
            "Solve for T, and order by S and d. Which sign has the coefficient of d?",
        ),
    ),
    Part(
        "3",
        "It is tight",
        PART_3,
        (
            Numbers("own_list", "a list for your P", 2, example="[4, 1, 1]", shape=(None,)),
            Function("tight", "a list for every P", 3, example=TIGHT_EXAMPLE, parameters=("P",),
                     returns="a list of whole numbers"),
            Number("greedy_ratio", "how many times as long as the best", 1, example='"9/7"'),
            Prose("why_bad", "what makes a list bad, and what sorting changes", REASONS.points, rubric=REASONS),
        ),
        (
            "Every inequality of the proof has to be an equality: when do all workers stop being busy, and which task "
            "must end last?",
            "Equal short tasks, so many that each worker gets equally many of them, and then a long one.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    schedule = list_schedule(variant.tasks, variant.workers)
    domain = {"S": integers(60, 500), "d": integers(1, 40), "P": integers(1, 9)}
    with_longest = {"S": integers(60, 500), "m": integers(1, 40), "P": integers(1, 9)}
    itself = "Task j has not begun yet: it is not among what was done until then."
    return {
        "makespan_31": close_to(Fraction(schedule.makespan), slips=makespan_slips(variant)),
        "improved_31": close_to(Fraction(schedule.improved_bound), slips=bound_slips(variant)),
        "last_task": lambda callee: judge_last_task(callee, seed),
        "latest_start": same_quantity(
            lambda S, d, P: last_of(S, d, P)[0], domain, seed=seed, counted="by running",
            slips=(
                Slip("task-itself", lambda S, d, P: Fraction(S, P), itself),
                Slip("one-worker", lambda S, d, P: Fraction(S - d), "There are P workers who do this together."),
                Slip("end-not-begin", lambda S, d, P: last_of(S, d, P)[1], "That is when it ends."),
            ),
        ),
        "latest_end": same_quantity(
            lambda S, d, P: last_of(S, d, P)[1], domain, seed=seed, counted="by running",
            slips=(
                Slip("task-itself", lambda S, d, P: Fraction(S, P) + d, itself),
                Slip("begin-not-end", lambda S, d, P: last_of(S, d, P)[0], "That is when it begins."),
                Slip("shared-task", lambda S, d, P: Fraction(S, P), "A task is not divided among workers."),
            ),
        ),
        "may_replace": one_of(COEFFICIENT, {
            LAST_LONGEST: "A short task may well end last: run a few lists.",
            ALIKE: "Nothing was assumed about the durations.",
            REPEATED: "The maximum is no longer in the sum twice; that does not bound d.",
        }),
        "improved_bound_31": same_quantity(
            lambda S, m, P: improved_bound(tasks_with(S, m), P), with_longest, seed=seed,
            slips=(
                Slip("unimproved", lambda S, m, P: Fraction(S, P) + m, "That is the bound that is to be improved."),
                Slip("lower-bound", lambda S, m, P: max(Fraction(S, P), Fraction(m)), "That is the lower bound."),
                Slip("too-small", lambda S, m, P: Fraction(S, P), "That is the mean of the workers' loads: it may end "
                     "later."),
            ),
        ),
        "own_list": lambda tasks: judge_own_list(tasks, variant),
        "tight": lambda callee: judge_tight(callee),
        "greedy_ratio": close_to(ratio_of(variant.workers), slips=ratio_slips(variant.workers)),
        "why_bad": read_by_a_person(REASONS),
    }  # fmt: skip
