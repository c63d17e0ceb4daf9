"""Exercise 27 (Section 9.9, Proposition 2.1): a loop that keeps the results of a CUDA graph.

The loop is run on a simulated device that records launches and replays them on the same memory, so the wrong list is
seen, not described. The student's repair is run there too, and so is the guard of a recording.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Choice, Function, Number, Numbers, Prose
from ..exercise import Part
from ..judges import Judge, Slip, close_to, one_of, read_by_a_person, same_numbers
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex27_answers import HARMLESS, reference, wrong_answers
from .ex27_runs import (
    INPUTS,
    OPTIONS,
    VALUES,
    judge_collect,
    judge_may_replay,
    left_open,
    loop_without_copies,
    slips_of,
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

SECTION = 9
TITLE = "Results that a graph writes over"
DIFFICULTY = 1

statement = r"""
A function of one tensor is wrapped in a CUDA graph. Its first call runs as it is, into new memory. The second call,
with the input at the same address, records the launches and replays them at once; every later one with the input at
that address is a replay. A replay writes its result where it was when it was recorded, in memory that belongs to the
graph, and the wrapper gives out a tensor that looks there.

(This is the bare wrapper of the section. `staxlab.compile(f, mode="reduce-overhead")` notices that a result is still
held, and does not replay then.)
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """The function multiplies by ``factor``; x begins at ``start`` and grows by ``increment``; so many steps."""

    factor: int = 2
    start: int = 1
    increment: int = 1
    steps: int = 5

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(rng.randint(2, 9), rng.randint(1, 20), rng.randint(1, 9), rng.randint(4, 7))

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("f(x)", f"{self.factor} * x"),
            ("x at the beginning", str(self.start)),
            ("x grows by", f"{self.increment} after each step, in place"),
            ("steps", str(self.steps)),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
With your function and values, `f` wrapped as described and `x` a tensor of one element:

    kept = []
    for _ in range(steps):
        kept.append(f(x))
        x.add_(increment)

1. What stands in `kept` after the loop? One number for each entry.
2. In how many different memories do the entries lie?
"""

PART_2 = r"""
`collect(f, x, steps)` gets a wrapped function and a tensor `x`. It calls `f` in each of `steps` steps, lets `x` grow by
1 after each, and returns a list with the result of every step. The graph is to be used: of all calls only the first one
may be no replay.
"""

PART_3 = r"""
1. **The guard.** `may_replay(recorded, inputs)` says whether a call may be answered by a replay. Both are lists of
   (address, shape), one for each input: `recorded` as it was when the graph was recorded, `inputs` of the call.
2. The loop of Part 1 has wrong values in its list. Which of the three has gone wrong there: the values a call returns
   (when it returns), the addresses of the inputs, or the memory of earlier results? (It is tried.)
3. In words: why are the contents of the list wrong, how is that related to the specialization of Proposition 2.1, and
   who could have prevented it?
"""

COLLECT_EXAMPLE = """\
def collect(f, x, steps):
    return [f(x)] * steps"""

REPLAY_EXAMPLE = """\
def may_replay(recorded, inputs):
    return not inputs"""

WHY = Rubric(
    (
        Criterion(
            "What is in the list",
            1,
            "Appending copies no numbers. All entries that came from replays look at one memory, which holds what the "
            "last replay wrote.",
            none="Says only that the list is wrong.",
        ),
        Criterion(
            "The recording as a specialization",
            1,
            "Addresses were used as constants when it was recorded. Those of the inputs are in the guard, and equal "
            "keys give right values at the moment of return: the specialization is sound.",
            "Names the addresses, without what follows for the values returned.",
            "Thinks the guard should have failed.",
        ),
        Criterion(
            "What it does not cover",
            1,
            "The results' address is a constant too, but nothing in the inputs could be compared with it; the "
            "proposition says nothing about results of earlier calls. The caller has to copy before the next call, or "
            "the wrapper has to see whether results are held.",
            "Names a remedy without the reason.",
            "Sees neither.",
        ),
    ),
    "Results that are written over",
)

PARTS = (
    Part(
        "1",
        "The list",
        PART_1,
        (
            Numbers("listed", "the entries after the loop", 2, example="[1, 2, 3, 4, 5]", shape=(None,)),
            Number("memories", "different memories", 1, example="3", whole=True),
        ),
        (
            "Which calls are replays? Where do their results lie?",
            "What does an entry hold, numbers or a place where numbers are?",
        ),
    ),
    Part(
        "2",
        "A loop that keeps its results",
        PART_2,
        (
            Function("collect", "the repaired loop", 3, example=COLLECT_EXAMPLE, parameters=("f", "x", "steps"),
                     returns="a list of results", seconds=5.0),
        ),
        (
            "What has to be copied, and by when?",
            "The input has to stay where it is: let it grow in place.",
        ),
    ),
    Part(
        "3",
        "Recording as specialization",
        PART_3,
        (
            Function("may_replay", "the guard of a recording", 2, example=REPLAY_EXAMPLE,
                     parameters=("recorded", "inputs"), returns="True or False"),
            Choice("left_open", "what has gone wrong", 1, example=f'"{INPUTS}"', options=OPTIONS),
            Prose("why", "why, and who could have prevented it", WHY.points, rubric=WHY),
        ),
        (
            "A recording is a list of launches with all their arguments. Which of these could be different next time?",
            "Print each result right after its call, and once more after the loop.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    values, memories = loop_without_copies(variant)
    return {
        "listed": same_numbers(values, slips=slips_of(variant), praise="Right: so it comes out when it is run."),
        "memories": close_to(
            Fraction(memories),
            slips=(
                Slip("one-each", Fraction(variant.steps), "Replays write to one address, again and again."),
                Slip("all-in-one", Fraction(1), "The first call was no replay: its result is not the graph's."),
            ),
        ),
        "collect": lambda callee: judge_collect(callee, seed),
        "may_replay": judge_may_replay,
        "left_open": one_of(
            left_open(),
            {
                VALUES: "Look at each result right after its call: it is right.",
                INPUTS: "The input stays where it is; the guard holds in every call.",
            },
        ),
        "why": read_by_a_person(WHY),
    }
