"""What Exercise 32 looks up: what three systems were observed to do, and which calls they told apart."""

from __future__ import annotations

from collections.abc import Iterable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ...measure.comparison import Observations, numbers_of, observations
from ..answers import Callee
from ..feedback import Verdict, right, wrong
from ..judges import Slip, call_failed, result_text, unexpected_result

#: In the order of the answers.
SYSTEMS = ("own", "dynamo", "xla")
ENDINGS = ("an error", "the value, with a warning", "the value, without a word")
KEYED = "guarded_scale"
HALF = Fraction(1, 2)

REASONS = {
    "own": {
        "an error": "The graph is at hand, so its operators can be called one by one.",
        "the value, without a word": "From the value nobody could tell that a part was not compiled: so it is said.",
    },
    "dynamo": {
        "the value, with a warning": "It goes back to the interpreter only if it is told to (suppress_errors).",
        "the value, without a word": "By default it does not hide that its backend has failed.",
    },
    "xla": {
        "the value, with a warning": "Under jit there is no interpreter to go back to.",
        "the value, without a word": "Under jit there is no interpreter to go back to.",
    },
}


def sequence(program: str, number: int) -> str:
    """The calls of a program's sequence, as text."""
    return observations().program(program).sequences[number]


def final_counts(program: str, number: int, effects: bool = False) -> tuple[int, ...]:
    """Graphs compiled (or effects that happened) when all calls are made, in each system; 0 where no value came."""
    return _final_counts(observations(), program, number, effects)


def _final_counts(found: Observations, program: str, number: int, effects: bool) -> tuple[int, ...]:
    counts = []
    for system in SYSTEMS:
        run = found.of(system, program, number)
        counts.append(0 if run.refused else (run.effects if effects else run.graphs)[-1])
    return tuple(counts)


@lru_cache(maxsize=8)
def telling(program: str) -> tuple[int, ...]:
    """The sequences of a program in which the systems differ enough for every mistake to show."""
    kept = []
    for number, text in enumerate(observations().program(program).sequences):
        own, dynamo, xla = final_counts(program, number, effects=program == "printing")
        calls = len(text.split("; "))
        if program == "branch":
            shows = own < dynamo and xla == 0
        elif program == "printing":
            shows = own < calls and xla < calls and dynamo == calls
        else:
            shows = dynamo < own and (dynamo != xla) and calls > 2
        if shows:
            kept.append(number)
    return tuple(kept)


def ending(system: str) -> str:
    """What a system's caller gets by default where the compiler has no rule: one of :data:`ENDINGS`."""
    found = observations().systems[system].failures["default"]
    if found["outcome"] != "right":
        return ENDINGS[0]
    return ENDINGS[1] if found["said"] else ENDINGS[2]


# --- Mistakes in predictions ------------------------------------------------------------------------------------------


def _different(truth: tuple[int, ...], slips: Iterable[Slip]) -> tuple[Slip, ...]:
    """The slips that lead elsewhere than to the truth, each answer under its first name."""
    found: dict[tuple[int, ...], Slip] = {}
    for slip in slips:
        if slip.answer != truth:
            found.setdefault(slip.answer, slip)
    return tuple(found.values())


def branch_slips(truth: tuple[int, ...]) -> tuple[Slip, ...]:
    own, dynamo, xla = truth
    return _different(
        truth,
        (
            Slip(
                "break-forgotten",
                (own, own, xla),
                "Bytecode without data cannot go past the branch in one graph.",
                HALF,
            ),
            Slip("abstract-branch", (own, dynamo, own), "What is abstract is neither positive nor not.", HALF),
            Slip("one-graph-for-both", (1, 1, 1), "Which of them have both sides of the branch in a graph?"),
        ),
    )


def effect_slips(truth: tuple[int, ...], calls: str) -> tuple[Slip, ...]:
    own, _, xla = truth
    count = len(calls.split("; "))
    return _different(
        truth,
        (
            Slip("at-every-call", (count, count, count), "Whose compiled version knows of a line to be printed?"),
            Slip(
                "not-replayed",
                (own, own, xla),
                "One of them sees the call of print as an instruction, and keeps it.",
                HALF,
            ),
            Slip("never", (0, 0, 0), "While a function is captured it runs, or its effects are known."),
        ),
    )


def scale_slips(truth: tuple[int, ...]) -> tuple[Slip, ...]:
    own, dynamo, xla = truth
    return _different(
        truth,
        (
            Slip("values-everywhere", (own, own, own), "Not everybody holds the value of a number static for long."),
            Slip("no-symbols", (own, own, xla), "What has changed once is a symbol from then on.", HALF),
            Slip("abstract-values", (own, dynamo, own), "Of a number an abstract value has the type only.", HALF),
        ),
    )


def shape_slips(truth: tuple[int, ...]) -> tuple[Slip, ...]:
    own, dynamo, xla = truth
    return _different(
        truth,
        (
            Slip("no-symbols", (own, own, xla), "What has changed once is a symbol from then on.", HALF),
            Slip("symbols-everywhere", (dynamo, dynamo, dynamo), "Who has symbols without being told to?"),
            Slip("abstract-shapes", (own, dynamo, 1), "An abstract value has a shape, and it is a static one.", HALF),
        ),
    )


# --- Keys -------------------------------------------------------------------------------------------------------------

#: What two calls can differ in, from what is forgotten most easily, and how it is said.
ASPECTS = {
    "data": "the sign of the data",
    "type": "the type of k",
    "number": "the value of k",
    "dtype": "the dtype",
    "shape": "the shape",
}


def described(call: tuple[Any, ...]) -> tuple[tuple[int, ...], str, bool, Any]:
    """A written call as (shape, dtype, positive, k)."""
    tensor, k = call
    half = tensor.endswith("h")
    shape = tuple(int(extent) for extent in tensor[1:].removesuffix("h").split("x"))
    return shape, "float16" if half else "float32", tensor[0] == "+", k


def differences(first: tuple[Any, ...], second: tuple[Any, ...]) -> tuple[str, ...]:
    """Which aspects two described calls differ in, in the order of :data:`ASPECTS`."""
    differ = {
        "shape": first[0] != second[0],
        "dtype": first[1] != second[1],
        "data": first[2] != second[2],
        "number": first[3] != second[3],
        "type": type(first[3]) is not type(second[3]),
    }
    return tuple(aspect for aspect in ASPECTS if differ[aspect])


def judge_key(system: str, callee: Callee) -> Verdict:
    """The student's key against every pair of calls that the system was observed with."""
    found = observations()
    shared = found.shared(KEYED, system)
    calls = [described(call) for call in numbers_of(found.program(KEYED).sequences[0])]
    kept, asked = [], []  # a key is made anew when it is looked for
    for call in calls:
        for keys in (kept, asked):
            outcome = callee.call(*call)
            if outcome.failed:
                return call_failed(callee, call, outcome)
            keys.append(outcome.value)
    wrongs = []
    for i, first in enumerate(calls):
        for j, second in enumerate(calls):
            try:
                same = bool(kept[i] == asked[j])
            except Exception as error:
                return unexpected_result(callee, first, f"results cannot be compared: {type(error).__name__}")
            if same != shared.together(i, j):
                differ = differences(first, second)
                wrongs.append((len(differ), list(ASPECTS).index(differ[0]) if differ else -1, i, j, differ, same))
    if not wrongs:
        return right("It tells apart what the system tells apart.", ("pairs of calls", len(calls) ** 2))
    _, _, i, j, differ, same = min(wrongs)
    facts = (
        ("first call", callee.call_text(*calls[i])),
        ("second call", callee.call_text(*calls[j])),
        ("yours", f"{result_text(kept[i])} and {result_text(asked[j])}"),
    )
    if not differ:
        return wrong("The same call twice gets two keys.", *facts, mistake="changes")
    what = ASPECTS[differ[0]]
    if same:
        said = f"{shared.system} compiles again for the second of these calls: {what} is static."
        return wrong(said, *facts, mistake=f"forgets-{differ[0]}")
    said = f"{shared.system} needs no compilation for the second of these calls: {what} is not static."
    return wrong(said, *facts, mistake=f"keeps-{differ[0]}")


# --- Sizes that become symbols ----------------------------------------------------------------------------------------


@lru_cache(maxsize=1)
def vectors() -> tuple[tuple[tuple[int, ...], int], ...]:
    """The sequences in which ``shapes`` was called with vectors: their sizes, and TorchDynamo's graphs."""
    found = observations()
    kept = []
    for number, text in enumerate(found.program("shapes").sequences):
        shapes = [call[0][1:] for call in numbers_of(text)]
        if all("x" not in shape for shape in shapes):
            kept.append((tuple(map(int, shapes)), found.of("dynamo", "shapes", number).graphs[-1]))
    return tuple(sorted(kept, key=lambda item: (len(item[0]), item[0])))


def judge_graphs(callee: Callee) -> Verdict:
    """The student's function against the number of graphs of every observed sequence of vectors."""
    tried = []
    for sizes, truth in vectors():
        outcome = callee.call(list(sizes))
        if outcome.failed:
            return call_failed(callee, (list(sizes),), outcome)
        if isinstance(outcome.value, bool) or not isinstance(outcome.value, int):
            return unexpected_result(callee, (list(sizes),), f"{result_text(outcome.value)} is no whole number")
        tried.append((sizes, outcome.value, truth))
    wrongs = [entry for entry in tried if entry[1] != entry[2]]
    if not wrongs:
        return right("So many graphs each time.", ("sequences", len(tried)))
    sizes, value, truth = wrongs[0]
    facts = (("sizes", list(sizes)), ("yours", value), ("observed", "more" if truth > value else "fewer"))
    if all(value == len(set(sizes)) for sizes, value, _ in tried):
        return wrong("A size that has changed is a symbol from then on: no graph for each.", *facts,
                     mistake="graph-for-each-size")  # fmt: skip
    if all(value == 1 for _, value, _ in tried):
        return wrong("The first graph is for the first size alone.", *facts, mistake="one-graph")
    if all(value == min(len(set(sizes)), 2) for sizes, value, _ in tried):
        return wrong("A size of 1 is never made a symbol.", *facts, mistake="one-is-a-size")
    return wrong("Not this number.", *facts)
