"""Exercise 2 (Section 2.2, Example 2.1): a number in the key, out of the key, and out of the program.

The function is ``g(x, k)`` with a Python number ``k``. Part 1 takes ``k`` out of the specialization key and asks on
which calls Proposition 2.1 then fails: two calls are run through a dispatcher whose key has everything but ``k``, and
a predicate that claims to know all such calls is searched for a counterexample. Part 2 makes ``k`` dynamic: the
student's rewrite is compiled and its versions are counted. Part 3 is the price: what the passes of Section 4 can no
longer do, read off the transformed graphs.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from ..answers import Choice, Function, Number, Prose
from ..claims import choices, integers
from ..exercise import Part
from ..judges import Judge, Slip, close_to, for_all, one_of, read_by_a_person
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex02_answers import HARMLESS, reference, wrong_answers
from .ex02_runs import (
    FORMS,
    NEITHER,
    NUMBERS,
    RULES,
    against_operations,
    against_predicate,
    count_versions,
    identity_applied,
    judge_calls,
    judge_rewrite,
    operations_left,
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
TITLE = "A number in the key"
DIFFICULTY = 1

statement = r"""
A function takes a tensor `x` and a Python number `k`:

```python
def g(x, k):
    return ...   # your values below say what
```

While it is traced, `k` is a plain number: the graph holds its value as a constant. That is sound because the key holds
it too (Example 2.1). This exercise takes `k` out of the key, then out of the constants, and looks at the price.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Which function, the numbers of a series of calls, and the constants of Part 3. The defaults are Example 2.1."""

    form: str = "scale"
    ks: tuple[int | float, ...] = (3, 4)
    a: int = 2
    b: int = 5

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        form = rng.choice(tuple(FORMS))
        few = rng.sample((1, 2, 3, 4, 5, 6), 3)
        ks = [few[0], few[1], float(few[0]), few[2], few[0], *rng.sample((float(few[1]), few[1], few[2], 0.5), 2)]
        first, rest = ks[0], ks[1:]
        rng.shuffle(rest)
        a = rng.randint(1, 6)
        b = rng.choice([b for b in range(1, 10) if b not in (a, a + 1)])
        return cls(form, (first, *rest), a, b)

    def describe(self) -> tuple[tuple[str, str], ...]:
        return (
            ("g(x, k)", FORMS[self.form][1]),
            ("series of k", f"[{', '.join(map(repr, self.ks))}]"),
            ("a", f"{self.a}"),
            ("b", f"{self.b}"),
        )


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = """
Suppose the key is computed as always and then everything it says of `k` is deleted. The first call compiles; a later
one with an equal key reuses what is there.

1. **Two calls.** Give `((x1, k1), (x2, k2))`, tensors and numbers, such that the second call returns a wrong result.
   They are run one after the other through such a dispatcher, and the second result is compared with that of `g`.
2. **All of them.** Let `x` be float32 with every element equal to the number `x`. `violated(k_first, x, k)` says
   whether a call with `x` and `k` returns a wrong *value* after `g` was compiled with `k_first`: `True` exactly where
   it does. (Numbers that compare equal count as equal.)
"""

PART_2 = """
Now the other way round: the key is as it should be, and `k` changes from call to call.

1. `g` is compiled once and called with one and the same `x` and the series of `k` of your values, one call each. How
   many versions are there in the end? And how many if every call passes `torch.tensor(k)` instead of `k`?
2. **A rewrite.** `rewrite(g, compile)` returns a function that takes `x` and a number `k`, gives what `g` gives, and
   needs *one* version for all floats `k`. Use the `compile` that is handed in: it is `staxlab.compile`, and it counts.
   Inside the compiled part, `k` must be an input.
"""

PART_3 = """
What does the program lose when `k` is an input? Look at

```python
def h(x, k):
    return torch.relu(x * (k - a) + (k - b))
```

on a float32 tensor `x`, after the six passes of Section 4.1. `k - a` and `k - b` of plain numbers are computed by
Python while tracing, and do not appear in the graph at all.

1. `operations(k, a, b)`: how many operations (call nodes) does the transformed graph have, for a plain integer `k`?
2. How many has it when `k` is passed as an integer tensor without dimensions (with your `a` and `b`)?
3. Let $k = a + 1$ with your `a` and `b`. Which of the two identities is applied when `k` is a number, and which when
   `k` is a tensor that holds this number?
4. In words: what does the compiler lose, what does it gain, and when is the exchange worth it?
"""

CALLS_EXAMPLE = """\
def calls():
    import torch
    return (torch.zeros(4), 1), (torch.zeros(5), 1)"""

VIOLATED_EXAMPLE = """\
def violated(k_first, x, k):
    return k > 3"""

REWRITE_EXAMPLE = """\
def rewrite(g, compile):
    compiled = compile(g)
    return lambda x, k: compiled(x, k)"""

OPERATIONS_EXAMPLE = """\
def operations(k, a, b):
    return a + b + 1"""

PRICE = Rubric(
    (
        Criterion(
            "What is lost",
            2,
            "Names both: arithmetic on k that was done once while tracing is now done at every call, and rewrites that "
            "need the value (x * 1, x + 0) do not apply, because an identity must hold for every k that can come.",
            "Names only one of the two.",
            "Says that the program is 'slower' without saying what it does in addition.",
        ),
        Criterion(
            "What is gained",
            1,
            "One version serves all values: no compilation, no cache entry and no dispatch by value for each new k; "
            "says that this pays when k changes often.",
            none="Speaks of the values only, not of the number of versions.",
        ),
    ),
    "What a constant was worth",
)

PARTS = (
    Part(
        "1",
        "Without k in the key",
        PART_1,
        (
            Function("calls", "two calls, the second answered wrongly", 2, example=CALLS_EXAMPLE,
                     returns="((x1, k1), (x2, k2))", seconds=5.0),
            Function("violated", "the calls on which Proposition 2.1 fails", 3, example=VIOLATED_EXAMPLE,
                     parameters=("k_first", "x", "k"), returns="True or False"),
        ),
        (
            "The version compiled at the first call is a function of x alone. Write it down: which number is in it?",
            "Everything else in the key still has to agree, or the second call compiles a version of its own: same "
            "shape, same dtype, same layout.",
            "The second call is wrong exactly if g(x, k_first) and g(x, k) differ. Different k are not enough: is "
            "there an x on which your g gives the same for two different k?",
        ),
    ),
    Part(
        "2",
        "With k as an input",
        PART_2,
        (
            Number("versions_by_value", "versions when k is passed as a number", 1, example="7", whole=True),
            Number("versions_as_tensor", "versions when torch.tensor(k) is passed", 1, example="7", whole=True),
            Function("rewrite", "one version for all k", 3, example=REWRITE_EXAMPLE, parameters=("g", "compile"),
                     returns="a function of x and k", seconds=10.0),
        ),
        (
            "What does the signature of Definition 2.2 keep of a number, and what of a tensor? In both cases, more "
            "than one thing.",
            "A number enters with its type and its value: is 2 the same as 2.0? A tensor without dimensions enters "
            "with its dtype; which dtype does torch.tensor give an int, and which a float?",
            "Make the number a tensor before the compiled function sees it, at every call; compile once, outside. "
            "Reading the tensor back into a number inside (item, float, int) would put its value into the key again.",
        ),
    ),
    Part(
        "3",
        "What constant folding loses",
        PART_3,
        (
            Function("operations", "operations left when k is a number", 2, example=OPERATIONS_EXAMPLE,
                     parameters=("k", "a", "b"), returns="a whole number"),
            Number("operations_tensor", "operations left when k is a tensor", 1, example="7", whole=True),
            Choice("fired_number", "identity applied for the number k = a + 1", 1, example='"add zero"',
                   options=(*RULES, NEITHER)),
            Choice("fired_tensor", "identity applied for a tensor that holds a + 1", 1, example='"add zero"',
                   options=(*RULES, NEITHER)),
            Prose("price", "what is lost, what is gained, and when it is worth it", PRICE.points, rubric=PRICE),
        ),
        (
            "Write down the graph for a k for which nothing special happens: one node each for multiplication, "
            "addition and relu. For which k is one of them superfluous?",
            "x * 1 and x + 0 are rules of Section 4.2. x * 0 is none: it would turn NaN and infinity into 0.",
            "With a tensor k, the two subtractions are operations as well. Print "
            "staxlab.explain(h, x, torch.tensor(3), backend='eager').transforms and see.",
        ),
    ),
)  # fmt: skip


HALF = Fraction(1, 2)


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    by_value, as_tensor = (count_versions(variant.form, variant.ks, as_tensor) for as_tensor in (False, True))
    a, b = variant.a, variant.b
    tensor_operations = operations_left(a + 1, a, b, as_tensor=True)
    number_operations = operations_left(a + b + 3, a, b)
    return {
        "calls": lambda callee: judge_calls(variant.form, callee),
        "violated": for_all(
            {"k_first": choices(FORMS[variant.form][2]), "x": choices(NUMBERS), "k": choices(FORMS[variant.form][2])},
            lambda callee, k_first, x, k: against_predicate(variant.form, callee, k_first, x, k),
            seed=seed,
            trials=400,
            praise="It agrees with what the dispatcher returned, wherever it was tried.",
        ),
        "versions_by_value": close_to(
            Fraction(by_value),
            slips=[
                Slip("read-at-run-time", as_tensor, "This is the count for tensors. A number is in the key by value."),
                Slip("calls-counted", len(variant.ks), "Calls with an equal key share a version.", HALF),
                Slip(
                    "types-ignored",
                    len(set(variant.ks)),
                    "The type of a number is in the key beside its value: 2 and 2.0 make different programs.",
                    HALF,
                ),
            ],
        ),
        "versions_as_tensor": close_to(
            Fraction(as_tensor),
            slips=[
                Slip("value-in-the-key", by_value, "This is the count for numbers. The key has no tensor's elements."),
                Slip(
                    "dtype-ignored",
                    1,
                    "Nearly: the value is not in the key, but the dtype is, and your series has ints and floats.",
                    HALF,
                ),
            ],
        ),
        "rewrite": lambda callee: judge_rewrite(variant.form, callee, seed),
        "operations": for_all(
            {"k": integers(0, 7), "a": integers(0, 6), "b": integers(0, 7)},
            against_operations,
            seed=seed,
            trials=300,
            praise="It agrees with the transformed graph wherever it was tried.",
        ),
        "operations_tensor": close_to(
            Fraction(tensor_operations),
            slips=[
                Slip(
                    "arithmetic-on-k-forgotten",
                    number_operations,
                    "This is the count for a number. The subtractions were Python's then; now they are in the graph.",
                    HALF,
                ),
                Slip(
                    "value-known",
                    tensor_operations - 1,
                    "You let an identity apply. It would have to hold for every value of the tensor.",
                ),
            ],
        ),
        "fired_number": one_of(
            identity_applied(a + 1, a, b),
            {
                "add zero": f"k - b is {a + 1 - b} here, and not 0.",
                NEITHER: "k - a is 1 here, and the passes see the number 1.",
            },
        ),
        "fired_tensor": one_of(
            identity_applied(a + 1, a, b, as_tensor=True),
            dict.fromkeys(
                RULES, "The passes see the tensor and not its value; at the next call it may hold another one."
            ),
        ),
        "price": read_by_a_person(PRICE),
    }
