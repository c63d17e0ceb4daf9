"""Exercise 4 (Section 3.5, Algorithm 3.1, Corollary 3.1): what a backward slice costs, and when it must be taken.

Part 1 is a proof of O(|V| + |E|), taken apart: the student's own slice runs on graphs that count every look-up, every
edge and every comparison; the numbers of iterations that the proof adds up are asked for as formulas and compared with
what the package's slice does on a family of graphs. Part 2 moves the extraction of the guard replay behind dead code
elimination, in the real compiler, and asks what a series of calls then returns, and why no guard says so.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import torch

from ...specialize.dispatch import Dispatcher
from ..answers import Choice, FormulaIn, Function, Number, Numbers, Prose
from ..claims import integers
from ..dispatching import failing_on, key_of, replayed, slicing_early, slicing_late
from ..exercise import Part
from ..feedback import Verdict, right, wrong
from ..judges import Judge, Slip, close_to, one_of, read_by_a_person, same_quantity
from ..rubrics import Criterion, Rubric
from ..slicing import Walk, layers, slice_in_linear_time, walk, walk_without_check
from ..variants import BaseVariant, generator
from .ex04_answers import HARMLESS, reference, wrong_answers

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

SECTION = 3
TITLE = "The slice that answers the gates"
DIFFICULTY = 2
COLUMNS = 8

statement = r"""
Whenever Python asks a traced tensor for a plain value, the answer holds for the sample only. Before a compiled version
is used again, the questions have to be asked again, and the part of the graph that answers them is found by Algorithm
3.1: begin with the gates, go against the edges, and keep whatever has not been met before.
"""


@dataclass(frozen=True)
class Variant(BaseVariant):
    """The width of the layers in Part 1; function and calls (rows, value of all elements) of Part 2. The defaults of
    Part 2 are Example 3.2."""

    w: int = 2
    threshold: int = 0
    factor: int = 2
    minus: int = 1
    calls: tuple[tuple[int, int | float], ...] = ((4, 1), (4, -2), (6, 1))

    @classmethod
    def draw(cls, rng: random.Random) -> Variant:
        rows, others = rng.sample((2, 3, 4, 5, 6, 7), 2)
        sign = rng.choice((1, -1))
        signs = ((rows, sign), (rows, -sign), (others, rng.choice((1, -1))), (rng.choice((rows, others)), -sign))
        factor, minus = rng.randint(2, 5), rng.randint(1, 5)
        # Such values that the two branches never give the same.
        values = [value for value in (1, 2, 3, 4, 5) if -value * factor != -value - minus]
        calls = tuple((count, each * rng.choice(values)) for count, each in signs)
        return cls(rng.randint(2, 6), rng.choice((-4, 0, 4, 8, 10)), factor, minus, calls)

    def constants(self) -> dict[str, Fraction]:
        return {"w": Fraction(self.w)}

    def describe(self) -> tuple[tuple[str, str], ...]:
        calls = ", ".join(f"({rows}, {value})" for rows, value in self.calls)
        return (
            ("w", f"{self.w}"),
            ("t", f"{self.threshold}"),
            ("a", f"{self.factor}"),
            ("b", f"{self.minus}"),
            ("calls (rows, value)", f"[{calls}]"),
        )

    def function(self) -> Callable[[torch.Tensor], torch.Tensor]:
        """The function of Part 2."""
        threshold, factor, minus = self.threshold, self.factor, self.minus

        def f(x: torch.Tensor) -> torch.Tensor:
            if x.sum() > threshold:
                return x * factor
            return x - minus

        return f


# --- The questions ----------------------------------------------------------------------------------------------------

PART_1 = r"""
Show that Algorithm 3.1 takes $O(|V| + |E|)$ steps: once by doing it, once by counting, once in words.

1. **A slice.** `slice_nodes(inputs, gates)` returns the set of the gates and all their ancestors. `inputs[node]` are
   the nodes that a node reads, `gates` is a list of nodes; nodes can be put into sets and compared, and there is
   nothing else to know about them. It runs on graphs that count: looking up `inputs[node]`, going through what it
   returns, and comparing nodes are steps, and there may be no more than a fixed multiple of $|V| + |E|$ of them.
2. **Its iterations.** A graph has $n$ layers of $w$ nodes. Every node reads all nodes of the layer before; the nodes of
   the last layer are the gates. As formulas in `n` (and `w`): how many nodes enter `needed`? How often does the body of
   the loop run, that is, how often is a node popped? And how often would it run without line 4, which skips a node that
   has been met before?
3. **The argument.** What bounds the iterations on any graph, and what has to be true of `needed` and `pending`?
"""

PART_2 = f"""
Let

```python
def f(x):
    if x.sum() > t:
        return x * a
    return x - b
```

be compiled and called several times. Your values list the calls as (rows, value): each passes a matrix with that many
rows and {COLUMNS} columns, all of whose elements are that value. Now the compiler is changed in one place: the replay
subgraph of the gates is extracted *after* dead code elimination.

1. What does each call return under the changed compiler? (All elements of a result are alike: give one number per
   call.)
2. How many versions are there after all calls, with the replay extracted before elimination, and after it?
3. How many operations (call nodes) has the replay subgraph of the first version, extracted before, and after?
4. How many guards of the first version fail for the second call, extracted before, and after?
5. Look at the calls and versions of the changed compiler. Corollary 2.1: "all guards of a version hold exactly if the
   call's key is the version's". Proposition 2.1: "calls with equal keys get the right result from one version". Which
   of the two still holds?
6. In words: why can no guard notice?
"""

SLICE_EXAMPLE = """\
def slice_nodes(inputs, gates):   # the gates, and what they read
    found = set(gates)
    for node in gates:
        found.update(inputs[node])
    return found"""

LINEAR = Rubric(
    (
        Criterion(
            "Nodes",
            1,
            "Each node enters `needed` at most once, because line 4 skips it from then on; so its arguments are "
            "pushed at most once.",
            none="Takes this for granted without line 4.",
        ),
        Criterion(
            "Iterations",
            2,
            "Bounds the iterations: what is pushed is the gates and, for each node that enters, one entry per incoming "
            "edge, hence at most |D| + |E| pushes, and as many pops. Since D is a subset of V this is O(|V| + |E|).",
            "Counts the nodes only, or forgets the gates or the entries that are skipped.",
            "Multiplies the number of nodes by the largest in-degree.",
        ),
        Criterion(
            "Cost of one step",
            1,
            "Names what makes an iteration cheap: membership in a set and pushing take constant (expected) time; "
            "copying in line 7 is one more pass over nodes and edges.",
            none="Leaves out what membership costs.",
        ),
    ),
    "Why the slice takes linear time",
)

UNSEEN = Rubric(
    (
        Criterion(
            "What is lost",
            1,
            "The gate's value is read by a Python `if` and reaches no output, so its nodes are dead and are gone "
            "before they are looked for.",
            none="Says that dead code elimination is wrong.",
        ),
        Criterion(
            "Why no guard fails",
            2,
            "Guards are the components of the key. The gate is in no component any more, so nothing is compared with "
            "its value: the guards all hold, and truly so, because the keys are equal.",
            "Says that the guard is missing, without relating it to the key.",
            "Says that the guards are wrong or are not evaluated.",
        ),
        Criterion(
            "Which assumption breaks",
            1,
            "The answer of the gate was used as a constant while tracing and the key does not determine it: the "
            "assumption of Proposition 2.1 fails, while Corollary 2.1 is about guards and keys only and stays true.",
            none="Blames Corollary 2.1.",
        ),
    ),
    "Why no guard notices",
)

HOLDS, FAILS = "still holds", "no longer holds"
_COUNT, _FORMULA = "7", '"3*n*w + 7"'

PARTS = (
    Part(
        "1",
        "A slice in linear time",
        PART_1,
        (
            Function("slice_nodes", "the backward slice", 4, example=SLICE_EXAMPLE, parameters=("inputs", "gates"),
                     returns="a set of nodes"),
            FormulaIn("needed", "nodes that enter needed", 1, "", _FORMULA),
            FormulaIn("popped", "iterations of the loop", 2, "", _FORMULA),
            FormulaIn("popped_without_check", "iterations without line 4", 2, "", _FORMULA),
            Prose("linear", "why Algorithm 3.1 takes linear time", LINEAR.points, rubric=LINEAR),
        ),
        (
            "Draw the graph for n = 3 and w = 2, and play the algorithm through with a stack of cards.",
            "A node is pushed once for every edge that leaves towards a needed node, and once if it is a gate. It "
            "enters once. All further copies of it are popped and thrown away.",
            "Everything that is pushed is popped: w gates, and the edges between n layers. Without line 4 every copy "
            "pushes w more: w in the last layer, w*w in the one before, and so on; use Sum. For your own slice: in "
            "which container is asking whether a node is there one step?",
        ),
    ),
    Part(
        "2",
        "A slice that is taken too late",
        PART_2,
        (
            Numbers("late_results", "what each call returns, extracted after elimination", 3,
                    example="[2, -3.5, 2]", shape=(None,)),
            Number("early_versions", "versions, extracted before", 1, example=_COUNT, whole=True),
            Number("late_versions", "versions, extracted after", 1, example=_COUNT, whole=True),
            Number("early_replay", "operations in the replay subgraph, extracted before", 1, example=_COUNT,
                   whole=True),
            Number("late_replay", "operations in the replay subgraph, extracted after", 1, example=_COUNT, whole=True),
            Number("early_failing", "failing guards at the second call, extracted before", 1, example=_COUNT,
                   whole=True),
            Number("late_failing", "failing guards at the second call, extracted after", 1, example=_COUNT,
                   whole=True),
            Choice("corollary", "Corollary 2.1, under the changed compiler", 1, example=f'"{HOLDS}"',
                   options=(HOLDS, FAILS)),
            Choice("proposition", "Proposition 2.1, under the changed compiler", 1, example=f'"{HOLDS}"',
                   options=(HOLDS, FAILS)),
            Prose("unseen", "why no guard can notice", UNSEEN.points, rubric=UNSEEN),
        ),
        (
            "Write down the captured graph of the first call, with the nodes of the condition. From which of them can "
            "the output be reached?",
            "After elimination only one operation is left, and the key has no part that depends on the elements of x. "
            "Which calls then have equal keys?",
            "A version is found by shape alone, and runs the branch that was taken when it was compiled. Run the calls "
            "in order and note for each number of rows which branch came first.",
        ),
    ),
)  # fmt: skip


# --- The truth --------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def walked(w: int, n: int) -> Walk:
    """What the package's slice does on n layers of w nodes."""
    return walk(layers(n, w))


@lru_cache(maxsize=256)
def walked_without_check(w: int, n: int) -> int:
    return walk_without_check(layers(n, w))


@dataclass(frozen=True)
class Series:
    """A series of calls under one compiler: the dispatcher and what each call returned, as one number."""

    dispatcher: Dispatcher
    results: tuple[Fraction, ...]


def matrix(call: tuple[int, int | float]) -> torch.Tensor:
    rows, value = call
    return torch.full((rows, COLUMNS), float(value))


def _one_number(result: torch.Tensor) -> Fraction:
    first = result.flatten()[0]
    assert bool((result == first).all()), "the elements of the result differ"
    return Fraction(first.item())


def _run(variant: Variant, make: Callable[[Callable], Any]) -> Series:
    compiled = make(variant.function())
    return Series(compiled, tuple(_one_number(compiled(matrix(call))) for call in variant.calls))


@lru_cache(maxsize=64)
def early(variant: Variant) -> Series:
    """The calls under the compiler as it is."""
    return _run(variant, slicing_early)


@lru_cache(maxsize=64)
def late(variant: Variant) -> Series:
    """The calls under a compiler that slices after dead code elimination."""
    return _run(variant, slicing_late)


@lru_cache(maxsize=64)
def eager(variant: Variant) -> tuple[Fraction, ...]:
    """What the function returns."""
    return _run(variant, lambda function: function).results


def guards_that_fail(variant: Variant, series: Series, version: int, call: int) -> int:
    """How many guards of a version fail for a call; both count from 0."""
    dispatcher = series.dispatcher
    return len(failing_on(dispatcher.versions[version], dispatcher.fn, matrix(variant.calls[call])))


def corollary_holds(variant: Variant, series: Series) -> bool:
    """Whether, for each version and call, all guards hold exactly if the keys are equal (of a series without gates)."""
    dispatcher = series.dispatcher
    return all(
        (guards_that_fail(variant, series, number, call) == 0) == (key_of(dispatcher.fn, matrix(given)) == version.key)
        for number, version in enumerate(dispatcher.versions)
        for call, given in enumerate(variant.calls)
    )


# --- Judging ----------------------------------------------------------------------------------------------------------

LAYERS = {"n": integers(1, 5)}
HALF = Fraction(1, 2)


def check(variant: Variant, answers: Mapping[str, Any], seed: int | None) -> dict[str, Judge]:
    """A judge for every field."""
    return {**_part_1(variant, seed), **_part_2(variant)}


def _part_1(variant: Variant, seed: int | None) -> dict[str, Judge]:
    w = variant.w

    def needed(n: int) -> int:
        return walked(w, n).needed

    def popped(n: int) -> int:
        return walked(w, n).popped

    def equals(truth: Callable[[int], int], *slips: Slip, praise: str) -> Judge:
        return same_quantity(truth, LAYERS, seed=seed, slips=slips, counted="in the graph", praise=praise)

    return {
        "slice_nodes": slice_in_linear_time(rng=generator(seed, "graphs")),
        "needed": equals(
            needed,
            Slip("pops-for-nodes", popped, "This is how often a node is popped. Most of these are met again.", HALF),
            praise="Right: every node of the graph, once.",
        ),
        "popped": equals(
            popped,
            Slip("nodes-for-pops", needed, "This is how many nodes enter. A node is popped once per copy pushed."),
            Slip("gates-forgotten", lambda n: popped(n) - w, "The edges are right. The gates are pushed too.", HALF),
            Slip(
                "nodes-plus-edges",
                lambda n: popped(n) - w + needed(n),
                "This is |V| + |E|, a bound. Counted exactly, a node that is no gate is pushed by its edges alone.",
                HALF,
            ),
            praise="Right: the gates, and one entry for each edge.",
        ),
        "popped_without_check": equals(
            lambda n: walked_without_check(w, n),
            Slip("with-the-check", popped, "This is the number with line 4: each node pushes its arguments once."),
            Slip(
                "first-layer-only",
                lambda n: w**n,
                "These are the pops of nodes of the first layer, one for each path. The other layers are popped too.",
                HALF,
            ),
            Slip("gates-forgotten", lambda n: walked_without_check(w, n) - w, "The gates are popped too.", HALF),
            praise="Right, and exponential in n: one pop for every path to a gate.",
        ),
        "linear": read_by_a_person(LINEAR),
    }


def _part_2(variant: Variant) -> dict[str, Judge]:
    before, after = early(variant), late(variant)
    versions = len(before.dispatcher.versions), len(after.dispatcher.versions)
    replays = replayed(before.dispatcher.versions[0]), replayed(after.dispatcher.versions[0])
    failing = guards_that_fail(variant, before, 0, 1), guards_that_fail(variant, after, 0, 1)
    assert before.results == eager(variant), "the compiler as it is returns something wrong"

    def is_count(truth: int, *slips: Slip) -> Judge:
        return close_to(Fraction(truth), slips=slips)

    return {
        "late_results": _judge_results(after.results, eager(variant)),
        "early_versions": is_count(
            versions[0],
            Slip("gate-forgotten", versions[1], "This counts shapes. The answer of the gate is in the key as well."),
            Slip("calls-counted", len(variant.calls), "A call whose key is known compiles nothing."),
        ),
        "late_versions": is_count(
            versions[1],
            Slip(
                "gate-still-there",
                versions[0],
                "This is the count with the gate in the key. It was eliminated before it was looked for.",
            ),
        ),
        "early_replay": is_count(
            replays[0],
            Slip("input-counted", replays[0] + 1, "Nearly: the input is in the slice too, but is no operation.", HALF),
            Slip("condition-only", replays[0] - 1, "The condition reads a value that must be computed as well.", HALF),
        ),
        "late_replay": is_count(
            replays[1],
            Slip("gate-still-there", replays[0], "These are the nodes that were eliminated: no output reads them."),
        ),
        "early_failing": is_count(
            failing[0],
            Slip("gate-forgotten", failing[1], "The shape is the same, but there is a guard on the gate's answer."),
        ),
        "late_failing": is_count(
            failing[1],
            Slip("gate-still-there", failing[0], "That guard was made from the gate, which is gone."),
        ),
        "corollary": one_of(
            HOLDS if corollary_holds(variant, after) else FAILS,
            {FAILS: "It speaks of guards and keys only. Compare both for each version and each call: they agree."},
        ),
        "proposition": one_of(
            HOLDS if after.results == eager(variant) else FAILS,
            {HOLDS: "Look at the second call: its key is that of the first, and its result is not what f returns."},
        ),
        "unseen": read_by_a_person(UNSEEN),
    }


def _judge_results(truth: tuple[Fraction, ...], own: tuple[Fraction, ...]) -> Judge:
    def judge(answer: tuple[Any, ...]) -> Verdict:
        if len(answer) != len(truth):
            message = f"There are {len(truth)} calls, and your answer has {len(answer)} numbers."
            return wrong(message, mistake="wrong-length")
        differing = [number for number, (a, b) in enumerate(zip(answer, truth, strict=True), 1) if a != b]
        if not differing:
            return right("Right: a version is found by its shape, and runs the branch it was compiled for.")
        facts = (("wrong at", "call " + ", ".join(map(str, differing))),)
        if tuple(answer) == own:
            message = "This is what f returns. The changed compiler uses versions where it should not."
            return wrong(message, *facts, mistake="eager-values")
        if all(given == own[number - 1] for number, given in enumerate(answer, 1) if number in differing):
            message = "Some of these calls are answered by a stale version, and you give what f returns."
            return wrong(message, *facts, mistake="partly-eager")
        return wrong("Not this. Which version does the call find, and which branch is in it?", *facts)

    return judge
