"""Exercise 32 (Section 12): three ways to capture a function, in four aspects, and what each holds static.

Nothing here is typed in: programs were called in sequences, in three systems, and what happened after each call was
counted (:mod:`staxlab.measure.comparison`). The explanation from the viewpoint of program specialization is asked for
as programs, too: a function that maps a call to what a version is kept under is right if it tells apart exactly the
calls that the system told apart.
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..answers import Choice, Function, Numbers, Prose
from ..exercise import Part
from ..judges import Judge, one_of, read_by_a_person, same_numbers
from ..rubrics import Criterion, Rubric
from ..variants import BaseVariant
from .ex32_answers import HARMLESS, reference, wrong_answers
from .ex32_runs import (
    ENDINGS,
    REASONS,
    branch_slips,
    effect_slips,
    ending,
    final_counts,
    judge_graphs,
    judge_key,
    scale_slips,
    sequence,
    shape_slips,
    telling,
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

SECTION = 12
TITLE = "Three ways to capture a function"
DIFFICULTY = 3

statement = r"""
Three systems compile Python functions of tensors, and each has another way to find out what a function does: staxlab
*runs* it with proxies that record operations and hold values; TorchDynamo executes its *bytecode* symbolically before
it runs; JAX runs it with *abstract* values that have a shape and a dtype, but no data.

Calls are written by their arguments. `+4` is a tensor of four ones, `-4x2` one of minus ones of shape (4, 2), both
float32; an `h` at the end stands for float16; other arguments are Python numbers. All systems are used as they come,
and begin with nothing compiled.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """Which of the observed sequences of calls is asked for, for each program of Part 1."""

    branch: int = 0
    printing: int = 1
    scale: int = 1
    shapes: int = 2

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        return cls(*(rng.choice(telling(name)) for name in ("branch", "printing", "scale", "shapes")))

    def describe(self) -> tuple[tuple[str, str], ...]:
        names = (("branch", "branch"), ("printing", "printing"), ("number", "scale"), ("shapes", "shapes"))
        return tuple((f"calls of {title}", sequence(name, getattr(self, name))) for title, name in names)


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
```python
def branch(x):                def printing(x):              def number(x, k):       def shapes(x):
    if x.sum() > 0:               print("called")               return x * k            return relu(x) + 1
        return x * 2              return x * 2
    return x - 1
```

Every answer is a list of three numbers, for staxlab, TorchDynamo and JAX in this order. Where a system gives no value,
its number is 0. Your sequences of calls are among your values.

1. How many graphs has each system compiled for `branch`, when all calls of your sequence are made?
2. How many lines has `printing` printed?
3. How many graphs are compiled for `number`,
4. and for `shapes`?
5. A function calls an operator that the compiler has no rule for. What does the caller get from each system by default?
"""

PART_2 = r"""
Specialization divides the inputs of a program into static ones, which are evaluated while compiling, and dynamic ones.
What is static has to be the same again whenever a compiled version is used: it is what the version is kept under.

```python
def guarded_scale(x, k):
    if x.sum() > 0:
        return x * k
    return x - k
```

1. `key_of_proxies(shape, dtype, positive, k)` returns what staxlab keeps a version of it under: two calls get the same
   result exactly if the second needs no compilation after the first. `shape` is a tuple, `dtype` a text, `positive`
   says whether the sum of `x` is, `k` is an int or a float.
2. `key_of_abstract_values(shape, dtype, positive, k)` does the same for JAX, where the branch is written
   `lax.cond(x.sum() > 0, lambda: x * k, lambda: x - k)`.
3. TorchDynamo makes an input dynamic once it has seen it change, if it can. `graphs_of_bytecode(sizes)` returns how
   many graphs it compiles for `shapes`, called with vectors of these sizes, one after the other.
"""

PART_3 = r"""
Explain the differences you found in Part 1 from the viewpoint of program specialization, in half a page: for each of
the four aspects (data-dependent control flow, Python side effects, degree of specialization, failure of the compiler)
say which inputs a system holds static, what of the program is run while compiling, and what it costs to hold more
static.
"""

KEY_EXAMPLE = """\
def {}(shape, dtype, positive, k):
    return len(shape), k > 0"""

GRAPHS_EXAMPLE = """\
def graphs_of_bytecode(sizes):
    return len(sizes)"""

EXPLANATION = Rubric(
    (
        Criterion(
            "Control flow",
            2,
            "With values the answer to a condition is one more static input, kept in the key and asked again; without "
            "values it cannot be static, so the program is cut there, or refused, or the choice becomes an operation.",
            "Describes what each system does, without saying what is static.",
            "Says that a compiler cannot handle branches.",
        ),
        Criterion(
            "Side effects",
            2,
            "They happen while the static part is evaluated: once per version, or per trace; who executes bytecode "
            "knows of them and repeats them at every call.",
            "Says how often, without the reason.",
        ),
        Criterion(
            "Degree",
            2,
            "Values of numbers are static or only their types; each value held static allows folding and costs a "
            "version for each value; symbols after a second value are a compromise.",
            "Names one side of the trade only.",
        ),
        Criterion(
            "Failure",
            1,
            "Where a graph equivalent to the function is at hand it can be interpreted, so the backend may fail; where "
            "capture fails there is none, and the rest must go back to the interpreter or to the user.",
            none="Does not tell capture from the backend.",
        ),
    ),
    "Why the three differ",
)

PARTS = (
    Part(
        "1",
        "What happens",
        PART_1,
        (
            Numbers("graphs_branch", "graphs compiled for branch", 2, example="[1, 2, 3]", shape=(3,)),
            Numbers("lines_printed", "lines printed", 2, example="[1, 2, 3]", shape=(3,)),
            Numbers("graphs_number", "graphs compiled for number", 2, example="[1, 2, 3]", shape=(3,)),
            Numbers("graphs_shapes", "graphs compiled for shapes", 2, example="[1, 2, 3]", shape=(3,)),
            Choice("failure_proxies", "staxlab", 1, example=f'"{ENDINGS[2]}"', options=ENDINGS),
            Choice("failure_bytecode", "TorchDynamo", 1, example=f'"{ENDINGS[2]}"', options=ENDINGS),
            Choice("failure_abstract", "JAX", 1, example=f'"{ENDINGS[2]}"', options=ENDINGS),
        ),
        (
            "Which of the three knows, while it captures, whether the sum is positive?",
            "A graph that is cut at the branch has a part before it. How many parts come after it, in all?",
            "Does JAX know the value of k? Would a graph that does not depend on it have to be compiled again?",
            "Run a program yourself: python -m benchmarks.systems observe --systems dynamo --programs branch",
        ),
    ),
    Part(
        "2",
        "What is static",
        PART_2,
        (
            Function("key_of_proxies", "what staxlab keeps a version under", 2,
                     example=KEY_EXAMPLE.format("key_of_proxies"), parameters=("shape", "dtype", "positive", "k"),
                     returns="something that can be compared"),
            Function("key_of_abstract_values", "what JAX keeps one under", 2,
                     example=KEY_EXAMPLE.format("key_of_abstract_values"),
                     parameters=("shape", "dtype", "positive", "k"), returns="something that can be compared"),
            Function("graphs_of_bytecode", "graphs that TorchDynamo compiles", 2, example=GRAPHS_EXAMPLE,
                     parameters=("sizes",), returns="a whole number"),
        ),
        (
            "In Python 2 == 2.0. Do both give results of the same dtype, whatever x is?",
            "What of k can be seen in an abstract value?",
            "The first size is taken as it is. What is compiled for the second one, and what for a third?",
            "A vector of one element is special: it is broadcast, so its size is never made a symbol.",
        ),
    ),
    Part(
        "3",
        "Why",
        PART_3,
        (Prose("explanation_32", "the differences, explained", EXPLANATION.points, rubric=EXPLANATION),),
        (
            "Write down for each system: static inputs, dynamic ones, what happens at a question about a dynamic one.",
            "What runs while compiling runs once for each version. What runs in the version runs at each call.",
        ),
    ),
)  # fmt: skip


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    branch, lines = final_counts("branch", variant.branch), final_counts("printing", variant.printing, effects=True)
    number, shapes = final_counts("scale", variant.scale), final_counts("shapes", variant.shapes)
    return {
        "graphs_branch": same_numbers(branch, slips=branch_slips(branch)),
        "lines_printed": same_numbers(lines, slips=effect_slips(lines, sequence("printing", variant.printing))),
        "graphs_number": same_numbers(number, slips=scale_slips(number)),
        "graphs_shapes": same_numbers(shapes, slips=shape_slips(shapes)),
        **{
            field: one_of(ending(system), REASONS[system])
            for field, system in (
                ("failure_proxies", "own"), ("failure_bytecode", "dynamo"), ("failure_abstract", "xla"),
            )
        },
        "key_of_proxies": lambda callee: judge_key("own", callee),
        "key_of_abstract_values": lambda callee: judge_key("xla", callee),
        "graphs_of_bytecode": judge_graphs,
        "explanation_32": read_by_a_person(EXPLANATION),
    }  # fmt: skip
