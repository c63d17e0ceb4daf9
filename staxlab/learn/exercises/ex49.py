"""Exercise 49 (Section 6.9, Theorem 6.2): what the core language rests on, and what changes when it is left.

A view of a view is one view: the student composes the maps, and the package composes its own. Random numbers become a
function of a state that is passed along; the student's translation is run, and run again after both eliminations of
Theorem 6.2. And with operations that may fail, equivalence becomes refinement: a function of the student's is trimmed
of what it does not use until the difference shows.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..answers import Choice, Function, Prose
from ..claims import choices, lists
from ..exercise import Part
from ..judges import Judge, for_all, one_of, read_by_a_person
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex49_answers import HARMLESS, reference, wrong_answers
from .ex49_runs import (
    PAIRS,
    PROGRAMS,
    STRIDES,
    against_refines,
    judge_compose,
    judge_thread,
    judge_unused,
    may_merge,
    strides_of_both,
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

SECTION = 6
TITLE = "The core language and its borders"
DIFFICULTY = 2

statement = r"""
The core language (Definition 6.5) has names, elementwise functions, views and reductions; a program is a list of
bindings. The value of an expression is a function of its environment, and two programs are equivalent ($\equiv$) if
they have the same value in every environment, bit by bit. That is all that inlining, merging equal bindings and
removing unused ones rest on (Theorems 6.1 and 6.2). This exercise composes two views, and then adds what the language
lacks: random numbers, and operations that fail.
"""

NAMES = ("first", "second", "third")


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Which programs are asked about in Part 2."""

    chosen: tuple[int, ...] = (0, 1, 2)

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(tuple(rng.sample(range(len(PROGRAMS)), 3)))

    def programs(self) -> tuple[tuple[str, str], ...]:
        """(name, text)"""
        texts = tuple(PROGRAMS)
        return tuple((name, texts[k]) for name, k in zip(NAMES, self.chosen, strict=True))

    def describe(self) -> tuple[tuple[str, str], ...]:
        return tuple((f"{name} program", f"`{text}`") for name, text in self.programs())


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
Element $i$ of $\mathrm{view}_{\pi}(e)$ is element $\pi(i)$ of $e$. Let $\pi_1(i) = A_1 i + c_1$ and
$\pi_2(i) = A_2 i + c_2$.

1. $\mathrm{view}_{\pi_1}(\mathrm{view}_{\pi_2}(e)) \equiv \mathrm{view}_{\pi}(e)$ with one affine map $\pi$:
   `compose(A1, c1, A2, c2)` returns its matrix and vector, `(A, c)`. Matrices are lists of rows, with a row for each
   dimension of what is looked at and a column for each dimension of the view. Nothing but lists of integers is needed.
2. If $e$ has strides $t$, the strides of both views together are?
"""

PART_2 = r"""
Integers, with `add`, `sub` and `mul`, and a random operation. `rand(s)` is a function: from a state it makes a pair, of
a number (`first`) and the state after it (`second`). `s0` is the state at the start.

1. May `q` be replaced by `p` in your three programs, whatever `s0` is? (`merge_first`, `merge_second`, `merge_third`)
2. **Naming the state.** In an *implicit* program a draw is written `("r", "rand")` and gives a number; it takes the
   state that the draw before it left. `thread(program)` translates a list of bindings `(name, operator, argument, ...)`
   into one of the explicit language, where draws are `(name, "rand", state)`, and `(name, "first", pair)` and
   `(name, "second", pair)` take pairs apart. Arguments are names or integers; the programs read `"x"`, yours may read
   `"s0"` as well. The value is that of the last binding. Yours must have the same value; it is then run once more with
   equal bindings merged, and with unused ones removed.
3. In words: under which condition does Theorem 6.2 (1) hold for `rand`? Where does its proof use it?
"""

PART_3 = r"""
1. `unused(x)` is a function of an integer tensor of three elements that returns a tensor. It is recorded for `x` full
   of ones, what its result does not need is removed, and both are run on other inputs: their behaviour must differ.
2. `refines(before, after)` gets what two programs did on the same inputs, two lists of equal length; an entry is an
   integer, the result, or `"error"`. It says, `True` or `False`, whether the second program refines the first: the
   relation under which removing unused bindings is always right.
3. In words: define refinement. In which direction does removal go, which transformations are no longer allowed, and
   when is it the same as $\equiv$?
"""

COMPOSE_EXAMPLE = """\
def compose(A1, c1, A2, c2):
    return A1, c1"""

THREAD_EXAMPLE = """\
def thread(program):
    return [("r", "rand", "s0"), ("v", "first", "r")]"""

UNUSED_EXAMPLE = """\
def unused(x):
    return x + 1"""

REFINES_EXAMPLE = """\
def refines(before, after):
    return len(before) == len(after)"""

CONDITION = Rubric(
    (
        Criterion(
            "The condition",
            2,
            "rand is a function of the state it is given, value and new state: two bindings with the same state may be "
            "merged, draws with different states may not.",
            "Says that the state must be explicit, without the same state.",
            "Says that random operations cannot be merged.",
        ),
        Criterion(
            "Where the proof uses it",
            1,
            "At determinism: equal expressions in environments that agree have equal values (Lemma 6.1).",
            none="Does not refer to the proof.",
        ),
    ),
    "Merging draws",
)

RELATION = Rubric(
    (
        Criterion(
            "The definition",
            2,
            "Where the original has a result, the transformed program has the same; where it fails, anything.",
            "Leaves open what may happen in one of the two cases.",
            "Says that both behave alike.",
        ),
        Criterion(
            "Direction",
            1,
            "Removing is a refinement, putting in what may fail is none (nor executing it where it was not executed).",
            none="Treats the relation as symmetric.",
        ),
        Criterion(
            "Against equivalence",
            1,
            "The same where no operation fails; equivalence is refinement both ways.",
            none="Does not compare.",
        ),
    ),
    "Refinement",
)

YES_NO = ("yes", "no")

PARTS = (
    Part(
        "1",
        "A view of a view",
        PART_1,
        (
            Function("compose", "both maps in one", 2, example=COMPOSE_EXAMPLE, parameters=("A1", "c1", "A2", "c2"),
                     returns="(A, c)"),
            Choice("strides_of_both", "strides of both views", 1, example=f'"{STRIDES[0]}"', options=STRIDES),
        ),
        (
            "Element i of the outer view is an element of the inner one: which? And that one is which element of e?",
            "Put A1 i + c1 in for the subscript in A2 i + c2.",
            "The rule for strides is A^T t. What is the transpose of a product?",
        ),
    ),
    Part(
        "2",
        "Random numbers",
        PART_2,
        (
            *(Choice(f"merge_{name}", f"may q be p in the {name} program", 1, example='"yes"', options=YES_NO)
              for name in NAMES),
            Function("thread", "implicit states made explicit", 3, example=THREAD_EXAMPLE, parameters=("program",),
                     returns="a list of bindings"),
            Prose("when_merging", "when draws may be merged", CONDITION.points, rubric=CONDITION),
        ),
        (
            "rand is a function: the same state, the same pair. Which states do p and q take?",
            "Go through the bindings and remember the name of the state that the next draw has to take.",
            "Each draw becomes three bindings: the pair, its number under the old name, and the state after it under a "
            "new name. Draws that nobody reads count, too.",
        ),
    ),
    Part(
        "3",
        "Operations that fail",
        PART_3,
        (
            Function("unused", "where removing is seen", 2, example=UNUSED_EXAMPLE, parameters=("x",),
                     returns="a tensor"),
            Function("refines", "the refinement relation", 2, example=REFINES_EXAMPLE,
                     parameters=("before", "after"), returns="True or False"),
            Prose("refinement", "what refinement is", RELATION.points, rubric=RELATION),
        ),
        (
            "Which operations on integers, or with x as a subscript, fail for some x, but not for ones?",
            "An error may turn into a result. May a result turn into an error?",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    merging = {}
    for name, text in variant.programs():
        reasons = {
            "yes": "There is a state s0 from which p and q are different.",
            "no": "From every state that was tried, p and q are the same pair. Which states do they take?",
        }
        merging[f"merge_{name}"] = one_of("yes" if may_merge(text) else "no", reasons)
    transposed = "Take the views one after the other: which of them sees the strides of e?"
    return {
        "compose": lambda callee: judge_compose(callee, seed),
        "strides_of_both": one_of(strides_of_both(), dict.fromkeys(STRIDES, transposed)),
        **merging,
        "thread": lambda callee: judge_thread(callee, seed),
        "when_merging": read_by_a_person(CONDITION),
        "unused": judge_unused,
        "refines": for_all(
            {"pairs": lists(choices(PAIRS), 0, 4)},
            against_refines, seed=seed, trials=300, praise="It holds and fails where refinement does.",
        ),
        "refinement": read_by_a_person(RELATION),
    }  # fmt: skip
