"""Exercise 33 (Section 7.2, Proposition 7.3): dependence distances, and fusion that computes an element twice.

Distances and verdicts come from the package's analysis of the two loops; the fused kernel of Part 3 is a program
instance that a student writes, run alone and counted.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Choice, FormulaIn, Function, Number, Prose
from ..claims import integers
from ..exercise import Part
from ..judges import Judge, Slip, close_to, one_of, read_by_a_person, same_quantity
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex33_answers import HARMLESS, reference, wrong_answers
from .ex33_runs import distance, judge_fusion_kind, judge_instance, verdict

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
TITLE = "A distance that is not zero"
DIFFICULTY = 2

LEGAL = ("legal", "not legal")

statement = r"""
Iteration $i$ of node $a$ writes `B[i]`. Iteration $i$ of node $b$, which runs after $a$, reads `B` at a shifted place.
Fused into one loop, iteration $i$ runs $a$'s statement and then $b$'s; the loop is *sequential* if its iterations run
in order, and *parallel* if they may run in any order or at the same time. The shifts are among your values; iterations
whose element of `B` does not exist do not run.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """How far behind, and in the second question ahead, b reads."""

    behind: int = 1
    ahead: int = 1

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(rng.randint(1, 30), rng.randint(1, 30))

    def constants(self) -> dict[str, Fraction]:
        return {"s": Fraction(self.behind)}

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("s", str(self.behind)),
            ("b reads, in Parts 1.1 and 3", f"`B[i - {self.behind}]`"),
            ("and in Part 1.2", f"`B[i + {self.ahead}]`"),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. $b$ reads `B[i - s]`. The dependence distance (the reader's iteration minus the writer's), and which fusion is legal?
2. $b$ reads ahead, as your values have it. The distance, and is sequential fusion legal?
"""

PART_2 = r"""
`fusion_kind(shifts)`: $b$ reads `B[i + k]` for every `k` of the list `shifts`, which is not empty. Return the best way
of fusing that is legal: `"parallel"`, `"sequential"` or `"none"`.
"""

PART_3 = r"""
On a GPU the fused loop is shared among program instances that run in any order. For `B[i - s]` it can be made right all
the same: an instance computes for itself the elements of `B` that it reads and does not store.

1. `instance(a, start, size, s)` is the program instance of iterations `start` to `start + size - 1`. `a(i)` computes
   element `i` of `B`, and is all it has: there is no memory in common. Return two lists: the elements of `B` that it
   stores, in order, and the elements that $b$ reads in its iterations, in order (iterations $i < s$ of $b$ do not run).
   Do not compute an element twice.
2. How many elements of `B` do all instances compute together, for $n$ iterations in instances of $T$? Suppose that $T$
   divides $n$ and $T \ge s$, and do not except the first instance.
3. In words: what does this cost, what does it save, and when is it not possible?
"""

KIND_EXAMPLE = """\
def fusion_kind(shifts):
    return "none\""""

INSTANCE_EXAMPLE = """\
def instance(a, start, size, s):
    return [a(start)], [a(start)]"""

COSTS = Rubric(
    (
        Criterion(
            "The cost",
            1,
            "T + s elements in place of T per instance, with the reads behind them; small if s is much less than T.",
            none="Says only that it costs more.",
        ),
        Criterion(
            "The saving",
            1,
            "B is not read back (and perhaps never written); one launch fewer.",
            none="Names no saving.",
        ),
        Criterion(
            "Limits",
            1,
            "Halos add up along a chain of such nodes; what is computed twice must not draw random numbers or be "
            "expensive.",
            none="Names no limit.",
        ),
    ),
    "Computing twice",
)

PARTS = (
    Part(
        "1",
        "Distances",
        PART_1,
        (
            Number("behind_distance", "the distance for B[i - s]", 1, example="12", whole=True, unit="iterations"),
            Choice("behind_sequential", "fusion into a sequential loop", 1, example='"legal"', options=LEGAL),
            Choice("behind_parallel", "fusion into a parallel loop", 1, example='"legal"', options=LEGAL),
            Number("ahead_distance_33", "the distance for the read ahead", 1, example="12", whole=True,
                   unit="iterations"),
            Choice("ahead_sequential", "sequential fusion for the read ahead", 1, example='"legal"', options=LEGAL),
        ),
        (
            "Take one element, say B[10]. Which iteration writes it, and which reads it?",
            "In a sequential loop the writer must not come later; in a parallel one it must be the same iteration.",
        ),
    ),
    Part(
        "2",
        "Any reads",
        PART_2,
        (
            Function("fusion_kind", "the best legal fusion", 2, example=KIND_EXAMPLE, parameters=("shifts",),
                     returns='"parallel", "sequential" or "none"'),
        ),
        (
            "The distance of a read at shift k is -k.",
            "One read that is not legal is enough to forbid it, and one that is not at distance 0 to forbid parallel.",
        ),
    ),
    Part(
        "3",
        "Computing twice",
        PART_3,
        (
            Function("instance", "a program instance", 3, example=INSTANCE_EXAMPLE,
                     parameters=("a", "start", "size", "s"), returns="two lists"),
            FormulaIn("computed_elements", "elements of B computed in all", 1, example='"n*T + 7"',
                      variables=("n", "T")),
            Prose("what_it_costs", "what computing twice costs", COSTS.points, rubric=COSTS),
        ),
        (
            "Which elements does b read in iterations start to start + size - 1, and which of them does it store?",
            "If size is less than s, none of the elements it reads is one that it stores.",
            "How many instances are there, and how many elements does each compute?",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    s = variant.behind

    def legal(found: bool, against: str) -> Judge:
        right_option = LEGAL[0] if found else LEGAL[1]
        return one_of(right_option, {option: against for option in LEGAL if option != right_option})

    def signed(truth: int) -> Judge:
        turned = Slip("other-sign", Fraction(-truth), "The reader's iteration minus the writer's, not the other way.")
        return close_to(Fraction(truth), slips=(turned,))

    behind, ahead = verdict((-s,)), verdict((variant.ahead,))
    computed = same_quantity(
        lambda n, T: Fraction(n * (T + s), T),
        {"n": integers(1, 1 << 16), "T": integers(s, 1 << 10)},
        seed=seed,
        slips=(
            Slip("no-halo", lambda n, T: n, "So many there are. Which ones does more than one instance compute?"),
            Slip("all-twice", lambda n, T: 2 * n, "Only those at the border of an instance are computed twice."),
            Slip(
                "one-halo", lambda n, T: n + s, "That is the extra work of one instance. How many instances are there?"
            ),
        ),
    )
    return {
        "behind_distance": signed(distance(-s)),
        "behind_sequential": legal(behind.sequential.legal, "In order, has B[i - s] been written before iteration i?"),
        "behind_parallel": legal(behind.parallel.legal, "Iteration i may run before, or while, iteration i - s does."),
        "ahead_distance_33": signed(distance(variant.ahead)),
        "ahead_sequential": legal(ahead.sequential.legal, "In order, is the element there when iteration i reads it?"),
        "fusion_kind": lambda callee: judge_fusion_kind(callee, seed),
        "instance": lambda callee: judge_instance(callee, seed),
        "computed_elements": computed,
        "what_it_costs": read_by_a_person(COSTS),
    }
