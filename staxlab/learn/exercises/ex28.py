"""Exercise 28 (Sections 10.2 and 10.4): a guard on divisibility, against a declared range, and versions with buckets.

Guards are decided at every size of the range, and versions are counted by compiling.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Choice, Function, Number, Numbers, Prose
from ..exercise import Part
from ..judges import Judge, close_to, one_of, read_by_a_person, same_numbers
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex28_answers import HARMLESS, reference, wrong_answers
from .ex28_runs import (
    IMPLIED,
    KEPT,
    VIOLATED,
    branch_slips,
    bucketed_slips,
    concrete_slips,
    judge_bucket_versions,
    judge_guard,
    range_slips,
    satisfied_slips,
    symbolic_slips,
    truth_of,
    waste_slips,
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

SECTION = 10
TITLE = "A guard, its range, and the versions"
DIFFICULTY = 2

statement = r"""
A function asks `if x.shape[0] % d == 0:` and goes one way or the other. It is specialized with a sample whose
dimension 0 has size $s$, and dimension 0 is declared as $n \in [1, U]$.

(`staxlab.measure.version_counts` has a record of versions against calls that draws itself, and `staxlab.bucketed` pads.
Use them to look, after you have answered.)
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """The divisor, the sample's size, the end of the declared range, and that of the sizes called in turn. The defaults
    are the chapter's."""

    divisor: int = 8
    sample: int = 64
    upper: int = 1024
    last: int = 64

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        divisor = rng.choice((4, 6, 8, 12, 16))
        sample = divisor * rng.randint(3, 12) + rng.choice((0, 0, 1, 2))
        return cls(divisor, sample, rng.choice((256, 500, 1000, 1024, 2048)), rng.randint(20, 70))

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("d", str(self.divisor)),
            ("s", str(self.sample)),
            ("U", str(self.upper)),
            ("called with sizes", f"1, 2, ..., {self.last}"),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
1. `shape_guard(n, d, s)` says whether a size `n` satisfies the guard that is recorded with a sample of size `s`. (The
   sample's size may be divisible or not.)
2. How many of the sizes in your declared range satisfy your guard?
3. Whoever declares a range wants the whole of it to be valid. Which of the three outcomes of Section 10.2 is it?
4. The error names a narrower range under which the guard is implied. The widest one that holds your sample: a list of
   its two ends. (Is it of any use?)
"""

PART_2 = r"""
Now the function is called with sizes $1, 2, \dots$ up to yours, in turn.

1. How many versions are there when each concrete shape has its own (and no limit stops it)?
2. How many with symbolic shapes and guards, where sizes 0 and 1 are specialized?
3. How many after rounding sizes up to powers of two?
4. `bucket_versions(m, M)` returns, for any $1 \le m \le M$, **exactly** how many powers of two the sizes from `m` to
   `M` are rounded up to. (The bound of Proposition 10.3 may be one too many.)
5. The largest ratio of padded size to true size among your calls, exactly.
"""

PART_3 = r"""
The padded function sees padded sizes only. That is no matter for most functions, but this one asks about its size.

1. For how many of your calls does the padded function go another way than the function itself?
2. In words: what would you do with this function, if few versions are wanted and its values must not change? Name two
   ways, and say what each costs.
"""

GUARD_EXAMPLE = """\
def shape_guard(n, d, s):
    return n < d"""

VERSIONS_EXAMPLE = """\
def bucket_versions(m, M):
    return M - m"""

WAYS = Rubric(
    (
        Criterion(
            "Two ways that keep the values",
            2,
            "Two of: symbolic shapes with the guard and its negation (two versions and one for size 1); sizes declared "
            "as multiples, n = d k; buckets that are multiples of d for calls whose size is one, and others for the "
            "rest; the branch taken outside, on the true size, and two functions padded; the branch replaced by "
            "arithmetic on the true length passed as a tensor.",
            "One of them.",
            "Pads as it is, or narrows the range to one size.",
        ),
        Criterion(
            "What each costs",
            1,
            "For instance no constant sizes and masked loops, computing on padding, twice the versions, both branches "
            "computed.",
            none="No cost named.",
        ),
    ),
    "Few versions without other values",
)

PARTS = (
    Part(
        "1",
        "The guard and the range",
        PART_1,
        (
            Function("shape_guard", "whether a size satisfies the guard", 2, example=GUARD_EXAMPLE,
                     parameters=("n", "d", "s"), returns="True or False"),
            Number("guarded_sizes", "sizes of the range that satisfy it", 1, example="100", whole=True, unit="sizes"),
            Choice("adjudication", "the outcome", 1, example=f'"{IMPLIED}"', options=(IMPLIED, VIOLATED, KEPT)),
            Numbers("narrower_range", "the widest narrower range", 1, example="[3, 17]", shape=(2,)),
        ),
        (
            "What is recorded is the decision: the truth value that the sample gave.",
            "An interval may not contain a single size that violates the guard. How far are the next ones?",
        ),
    ),
    Part(
        "2",
        "Versions",
        PART_2,
        (
            Number("concrete_versions_28", "versions for concrete shapes", 1, example="5", whole=True, unit="versions"),
            Number("symbolic_versions_28", "versions with guards", 1, example="5", whole=True, unit="versions"),
            Number("bucketed_versions_28", "versions with buckets", 1, example="5", whole=True, unit="versions"),
            Function("bucket_versions", "how many powers of two are used", 2, example=VERSIONS_EXAMPLE,
                     parameters=("m", "M"), returns="a whole number"),
            Number("largest_waste", "padded over true size, at most", 1, example='"9/7"'),
        ),
        (
            "With guards, sizes that answer every question alike share a version. Which sizes are set apart before?",
            "Both ends are rounded up. Which exponents lie between the two results?",
            "The worst size is the one just beyond a power of two. Do all of those occur?",
        ),
    ),
    Part(
        "3",
        "A padded size is another size",
        PART_3,
        (
            Number("other_way", "calls that go another way", 2, example="10", whole=True, unit="calls"),
            Prose("keep_values", "two ways to keep the values", WAYS.points, rubric=WAYS),
        ),
        (
            "Which powers of two does your d divide? Which of the sizes rounded up to them does it not?",
            "The question is about the true size. Who still knows it?",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    truth = truth_of(variant)
    declared = "Whoever declares a range wants all of it: a guard that part of it violates is an error."
    return {
        "shape_guard": lambda callee: judge_guard(callee, seed),
        "guarded_sizes": close_to(Fraction(truth.satisfied), slips=satisfied_slips(variant)),
        "adjudication": one_of(VIOLATED, {IMPLIED: "Some sizes of the range violate it.", KEPT: declared}),
        "narrower_range": same_numbers(truth.narrower, slips=range_slips(variant)),
        "concrete_versions_28": close_to(
            Fraction(truth.concrete), slips=concrete_slips(variant), praise="Right, and counted by compiling."
        ),
        "symbolic_versions_28": close_to(Fraction(truth.symbolic), slips=symbolic_slips(variant)),
        "bucketed_versions_28": close_to(
            Fraction(truth.bucketed), slips=bucketed_slips(variant), praise="Right, and counted by compiling."
        ),
        "bucket_versions": lambda callee: judge_bucket_versions(callee, variant),
        "largest_waste": close_to(truth.waste, slips=waste_slips(variant)),
        "other_way": close_to(
            Fraction(truth.other_way), slips=branch_slips(variant), praise="Right, and found by calling it."
        ),
        "keep_values": read_by_a_person(WAYS),
    }
