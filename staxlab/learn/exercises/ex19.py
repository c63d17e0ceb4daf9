"""Exercise 19 (Section 7.2, Proposition 7.2): the fusion that would read a value that is not there yet.

Two loops that a student writes down are analysed by :mod:`staxlab.polyhedral` and run fused, iteration by iteration, on
numbers.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Choice, Function, Number, Prose
from ..exercise import Part
from ..judges import Judge, Slip, close_to, one_of, read_by_a_person
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex19_answers import HARMLESS, reference, wrong_answers
from .ex19_runs import VALUES, WAYS, backwards, distance, judge_fused, judge_two_loops, value_read

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

SECTION = 7
TITLE = "A value that is not there yet"
DIFFICULTY = 1

statement = r"""
Node $a$ computes `w[i] = 2*x[i]`, and node $b$, which runs after it over an iteration space of the same extent,
computes `y[i] = w[i + s]`. They share `w`, so fusing them would save reading it again: in one loop, iteration $i$ runs
$a$'s statement and then $b$'s (Proposition 7.2). The shift $s$ is among your values. Where `w` ends, both spaces do.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """How far ahead b reads."""

    shift: int = 1

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(rng.randint(1, 40))

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (("s", str(self.shift)),)


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
Suppose the two were fused all the same.

1. Iteration $i$ of the fused loop reads `w[i + s]`. Which value does it find there?
2. The dependence distance: by how many iterations does the reader come after the writer? Negative if before.
3. `fused(x, w, s)` returns the list `y` of the fused loop, for the iterations $i = 0, \dots, n - 1$ with $n$ the length
   of `x`. The list `w` has `n + s` elements and holds what was in memory before the loop. Also for `s = 0`.
"""

PART_2 = r"""
1. `two_loops(n, s)` returns a text of two loops, one after the other, in Python: two nodes over the same iteration
   space of `n` iterations (`for i in range(8):` where `n` is 8), of which the second reads what the first writes, `s`
   ahead, so that fusing them is not legal. The names are up to you. `staxlab.polyhedral.loop_nests` reads the text.
2. Both loops are run from the last iteration to the first instead. May they be fused then?
3. In words: which check does the scheduler make, on what, and why does it not look for a way to fuse anyway?
"""

FUSED_EXAMPLE = """\
def fused(x, w, s):
    return [0 * value for value in x]"""

LOOPS_EXAMPLE = '''\
def two_loops(n, s):
    return f"""
for i in range({n}):
    p[i] = q[i]
for i in range({n}):
    r[i] = p[i]
"""'''

WHY = Rubric(
    (
        Criterion(
            "The check",
            2,
            "The subscript of the read and that of the write are compared as expressions of the fused loop's variable; "
            "they must be equal, so that each iteration reads what it wrote itself (Proposition 7.2).",
            "Says that they must match, without saying what is compared.",
            "Speaks of sizes or dtypes only.",
        ),
        Criterion(
            "Why not anyway",
            1,
            "Shifting or reversing loops, or computing elements twice, would make it legal at a price (parallelism, "
            "work); two kernels are always right.",
            none="Gives no alternative.",
        ),
    ),
    "Why the scheduler rejects it",
)

PARTS = (
    Part(
        "1",
        "Fused all the same",
        PART_1,
        (
            Choice("value_found", "what iteration i finds in w[i + s]", 1, example=f'"{VALUES[2]}"', options=VALUES),
            Number("ahead_distance", "the dependence distance", 1, example="12", whole=True, unit="iterations"),
            Function("fused", "what the fused loop stores", 2, example=FUSED_EXAMPLE, parameters=("x", "w", "s"),
                     returns="the list y"),
        ),
        (
            "In iteration 0 of the fused loop, which elements of w have been written so far?",
            "Element w[k] is written in iteration k. In which iteration is it read?",
        ),
    ),
    Part(
        "2",
        "Two loops",
        PART_2,
        (
            Function("two_loops", "two loops that must not be fused", 2, example=LOOPS_EXAMPLE, parameters=("n", "s"),
                     returns="a text"),
            Choice("fused_backwards", "fusion of the reversed loops", 1, example=f'"{WAYS[1]}"', options=WAYS),
            Prose("why_rejected", "why the scheduler rejects it", WHY.points, rubric=WHY),
        ),
        (
            "The example's second loop reads p at i. Where must it read for the fused loop to come too early?",
            "Backwards, iteration i + s runs before iteration i.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    s = variant.shift
    truth = distance(s)
    found = value_read(s)
    reasons = {
        VALUES[1]: f"Node a writes w[i + {s}] in iteration i + {s}. Has that iteration run?",
        VALUES[2]: "Nothing is cleared: memory holds whatever was there.",
    }
    turned = Slip(
        "other-sign", Fraction(-truth), "That is how far ahead it reads. Which of the two iterations is first?"
    )
    none = Slip("distance-zero", Fraction(0), "At distance 0 both would be in the same iteration.")
    two_way = {
        WAYS[0]: "Backwards, iteration i + s runs before iteration i: is the element there by then?",
        WAYS[1]: "Backwards the reader does come after the writer, but in another iteration: what if all run at once?",
        WAYS[2]: "Backwards, iteration i + s runs before iteration i: is the element there by then?",
    }
    return {
        "value_found": one_of(found, reasons),
        "ahead_distance": close_to(Fraction(truth), slips=(turned, none)),
        "fused": lambda callee: judge_fused(callee, seed),
        "two_loops": lambda callee: judge_two_loops(callee),
        "fused_backwards": one_of(backwards(s), two_way),
        "why_rejected": read_by_a_person(WHY),
    }
