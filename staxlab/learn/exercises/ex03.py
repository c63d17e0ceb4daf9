"""Exercise 3 (Section 2.3, Corollary 2.1): what goes wrong when guards do not come from the key.

Part 1 asks for a key and guards that were written independently and disagree: they are built from the student's own
functions, a version is compiled for one call and, because its guards hold, used for another. What comes out is
compared with calling the function. Part 2 takes the proof of Corollary 2.1 apart: its statement becomes a predicate
that is searched for counterexamples, and each of its steps is tried on keys whose guards are arbitrary, which shows
where the proof needs guards to be projections.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..answers import Choice, Function, Prose
from ..exercise import Part
from ..feedback import Verdict
from ..judges import Judge, one_of, read_by_a_person
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex03_answers import HARMLESS, reference, wrong_answers
from .ex03_runs import (
    CONSEQUENCES,
    FORMS,
    FREE,
    STEPS,
    USES,
    consequence,
    function_of,
    judge_exactly,
    judge_separate,
    refutation_of,
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

SECTION = 2
TITLE = "Guards that do not come from the key"
DIFFICULTY = 1

statement = r"""
In Definition 2.3 a guard is nothing but a component of the key, compared with what it was at compile time. Suppose
instead that two people wrote the two independently: one a function that computes a key, the other a list of conditions
under which a compiled version may be used again. The function that is compiled is

```python
def f(x, k):
    return ...   # your values below say what
```

where `x` is a float32 matrix and `k` an integer.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Which function is compiled, and the constant in it."""

    form: str = "scaled mean"
    c: int = 1

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(rng.choice(tuple(FORMS)), rng.randint(2, 9))

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (("f(x, k)", FORMS[self.form][1].format(c=self.c)),)


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = """
1. **An example.** `separate()` returns `(key, guards, first, second)`:

   * `key(x, k)` is a specialization key for `f`, fine enough to be sound (Proposition 2.1) and equal for equal calls;
   * `guards` is a list of functions of `(x, k)`, conditions that hold for the first call. They must not be empty talk:
     there have to be calls that they turn away;
   * `first` and `second` are two calls `(x, k)` whose keys differ, although all guards hold for the second.

   `f` is compiled for `first`. The version is then used for `second`, because its guards say so, and the result has to
   be wrong.
2. **What happens** if the dispatcher decides by the guards? And what if it looks the key up, and asks the guards only
   for the reason of a recompilation?
"""

PART_2 = r"""
The proof of Corollary 2.1, in four steps. Let $x$ be a call and $x_j$ the one that a version was compiled for.

1. $x$ misses the version: its key is looked up and is not the version's, so $\kappa(x) \ne \kappa(x_j)$.
2. Two tuples that are not equal differ in some component $i$: $\kappa_i(x) \ne \kappa_i(x_j)$.
3. Where $\kappa_i(x) \ne \kappa_i(x_j)$, the guard $g_i$ fails for $x$.
4. Where the guard $g_i$ fails for $x$, $\kappa_i(x) \ne \kappa_i(x_j)$.

So the guards that fail are exactly those of the components that differ, and there is at least one.

1. **The claim as a predicate.** `exactly(key, version_key, held)` gets the two keys as tuples of equal length, and for
   each component whether its guard holds. It returns `True` where the conclusion about *these* guards is right: the
   failing ones are exactly those of the differing components. It is tried on real keys and guards, and on invented ones
   whose guards hold or fail as they please.
2. **Each step.** Does it use that guards are projections of the key, or is it right whatever the guards are?
3. In words: at which point does the proof need the projection, and what does your example of Part 1 do there?
"""

SEPARATE_EXAMPLE = """\
def separate():
    import torch
    def key(x, k):
        return x.dtype
    guards = [lambda x, k: x.dtype == torch.float32]
    return key, guards, (torch.zeros(2, 3), 1), (torch.ones(2, 3), 1)"""

EXACTLY_EXAMPLE = """\
def exactly(key, version_key, held):
    return len(key) == len(held)"""

PROOF = Rubric(
    (
        Criterion(
            "Where the projection enters",
            2,
            "Says that a difference of keys becomes a failing guard only because g_i is by definition the statement "
            "that the i-th components are equal, and that the same definition, read backwards, gives that a failing "
            "guard points at a difference.",
            "Names the place but only one of the two directions.",
            "Says that the proof 'uses Definition 2.3' without saying for what.",
        ),
        Criterion(
            "What does not need it",
            1,
            "Says that the first two steps are about lookup and about tuples, and hold for any guards.",
            none="Claims that every step needs it.",
        ),
        Criterion(
            "The example",
            1,
            "Applies this to Part 1: names the component that differs and has no guard, hence the step that breaks, "
            "and what follows (a stale version is used; or a recompilation that nothing explains).",
            none="Describes the example without relating it to a step.",
        ),
    ),
    "Where Corollary 2.1 needs projections",
)


def _step(number: int, label: str) -> Choice:
    return Choice(f"step_{number}", label, 1, example=f'"{FREE}"', options=(USES, FREE))


PARTS = (
    Part(
        "1",
        "An example, and what it does",
        PART_1,
        (
            Function("separate", "a key and guards that disagree", 4, example=SEPARATE_EXAMPLE,
                     returns="(key, guards, first, second)", seconds=5.0),
            Choice("by_guards", "the dispatcher decides by the guards", 1, example=f'"{CONSEQUENCES[-1]}"',
                   options=CONSEQUENCES),
            Choice("by_key", "the dispatcher decides by the key", 1, example=f'"{CONSEQUENCES[-1]}"',
                   options=CONSEQUENCES),
        ),
        (
            "What does f use of x and of k that becomes a constant while it is traced? All of it must be in the key. "
            "Which of it could the author of the guards forget?",
            "Let the guards check something that is true and useful, such as the dtype or the shape, and leave out "
            "one thing the key has. Your two calls differ in just that.",
            "A key: (tuple(x.shape), k). Guards that ask for the shape only do not see another k, and guards that ask "
            "for k only do not see another shape. Take care that f really gives another value.",
        ),
    ),
    Part(
        "2",
        "The step that needs projections",
        PART_2,
        (
            Function("exactly", "the conclusion of Corollary 2.1", 2, example=EXACTLY_EXAMPLE,
                     parameters=("key", "version_key", "held"), returns="True or False"),
            _step(1, "a miss means different keys"),
            _step(2, "different tuples differ somewhere"),
            _step(3, "a difference makes its guard fail"),
            _step(4, "a failing guard points at a difference"),
            Prose("projection", "where the proof needs projections", PROOF.points, rubric=PROOF),
        ),
        (
            "For one component there are four cases: equal or not, guard holds or not. In which two is the conclusion "
            "right?",
            "Go through the steps with guards that are drawn by lot. In which of them does a guard occur at all?",
            "Your example of Part 1 has a component that differs and no guard that fails. Which step says that this "
            "cannot be?",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    return {
        "separate": lambda callee: judge_separate(function_of(variant.form, variant.c), callee, seed),
        "by_guards": one_of(
            consequence(variant.form, variant.c, by_guards=True),
            {
                "a recompilation without a reason": "The guards hold, so the dispatcher sees no need to compile.",
                "an error": "Nothing fails: the version runs on the second call's tensors as on any others.",
                "no harm": "The keys differ because the two calls need different programs.",
            },
            praise="Right, and nobody is told: a stale version runs, and its result looks like any other.",
        ),
        "by_key": one_of(
            consequence(variant.form, variant.c, by_guards=False),
            {
                "a wrong value": "The key differs, so no stale version is used.",
                "an error": "Nothing fails: a key that is not found is compiled.",
                "no harm": "Values are right, but look at what the log can say about the compilation.",
            },
            praise="Right: the value is good, but no guard fails that could say why it was compiled.",
        ),
        "exactly": lambda callee: judge_exactly(callee, seed),
        **{f"step_{number}": _judge_step(number, seed) for number in STEPS},
        "projection": read_by_a_person(PROOF),
    }


def _judge_step(number: int, seed: int | None) -> Judge:
    def judge(answer: str) -> Verdict:
        refuted = refutation_of(number, seed)
        needed = USES if refuted is not None else FREE
        reasons = {
            FREE: "With guards that are not projections it fails.",
            USES: "No guards were found for which it fails: it does not speak of them, or what it says is always so.",
        }
        verdict = one_of(needed, reasons)(answer)
        return verdict.with_facts(("fails for", refuted)) if refuted is not None and verdict.credit == 0 else verdict

    return judge
