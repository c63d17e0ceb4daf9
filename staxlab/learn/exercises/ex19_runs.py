"""What Exercise 19 runs: two loops fused iteration by iteration, and the analysis of loops a student writes down."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from ...errors import ScheduleError
from ...polyhedral import LoopNest, fusion, loop_nests
from ..answers import Callee
from ..feedback import Verdict, right, wrong
from ..judges import call_failed, result_text, unexpected_result
from ..variants import generator

VALUES = ("what was in memory before", "what a computes for it", "zero")
WAYS = ("not at all", "into one parallel loop", "into one sequential loop")


def nodes(read: str, n: str = "N", write: str = "i") -> tuple[LoopNest, ...]:
    """Node a, and node b reading w at ``read``."""
    return loop_nests(
        f"for i in range({n}):\n    w[{write}] = 2 * x[{write}]\nfor i in range({n}):\n    y[i] = w[{read}]"
    )


@lru_cache(maxsize=64)
def distance(shift: int) -> int:
    """The dependence distance of a read ``shift`` ahead."""
    (only,) = {v for d in fusion(*nodes(f"i + {shift}")).distances for v in d.distances}
    return only[0]


def run_fused(x: list[int], w: list[int], shift: int) -> list[int]:
    """y of the fused loop, statement by statement."""
    memory, y = list(w), []
    for i, value in enumerate(x):
        memory[i] = 2 * value
        y.append(memory[i + shift])
    return y


@lru_cache(maxsize=64)
def value_read(shift: int) -> str:
    """What iteration i of the fused loop finds, by running it on numbers that tell."""
    n = shift + 3
    found = run_fused([1] * n, [7] * (n + shift), shift)
    return VALUES[0] if set(found) == {7} else VALUES[1] if set(found) == {2} else VALUES[2]


@lru_cache(maxsize=64)
def backwards(shift: int) -> str:
    """How the two may be fused where both loops count down from n - 1: iteration k is then i = -k, n elements on."""
    verdict = fusion(*nodes(f"{shift} - i", write="-i"))
    return WAYS[1] if verdict.parallel else WAYS[2] if verdict.sequential else WAYS[0]


# --- Judges -----------------------------------------------------------------------------------------------------------


def judge_fused(callee: Callee, seed: int | None) -> Verdict:
    """The student's fused loop against running the two statements in turn."""
    rng = generator(seed, "memory")
    tried = []
    for n, shift in ((1, 1), (2, 1), (3, 0), (3, 1), (3, 2), (5, 1), (4, 6), (8, 3), (9, 9)):
        x, w = ([rng.randint(1, 99) for _ in range(count)] for count in (n, n + shift))
        outcome = callee.call(list(x), list(w), shift)
        if outcome.failed:
            return call_failed(callee, (x, w, shift), outcome)
        try:
            mine = list(outcome.value)
        except TypeError:
            return unexpected_result(callee, (x, w, shift), f"{result_text(outcome.value)} is no list")
        tried.append((x, w, shift, mine))
    for x, w, shift, mine in tried:
        truth = run_fused(x, w, shift)
        if mine == truth:
            continue
        new = [2 * value for value in x]
        facts = (("x", x), ("w before", w), ("s", shift), ("yours", result_text(mine)))
        after = new + w[len(x) :]
        if all(y == ([2 * v for v in a] + b[len(a) :])[s : s + len(a)] for a, b, s, y in tried):
            message = "That is what two loops give: all of w is written before any of it is read."
            return wrong(message, *facts, ("w after the first loop", after), mistake="not-fused")
        if all(y == [2 * v for v in a] for a, _, _, y in tried):
            return wrong("That reads w[i], not w[i + s].", *facts, mistake="own-element")
        message = "Go through it: after iteration i, elements 0 to i of w are new, and all others are as before."
        return wrong(message, *facts, mistake="wrong-value")
    return right("Every element it reads is still the old one.", ("run for", f"{len(tried)} sizes and shifts"))


def judge_two_loops(callee: Callee) -> Verdict:
    """Two loops over one space of n iterations, the second reading ahead what the first writes."""
    for n, shift in ((4, 1), (5, 2), (9, 3), (7, 1), (30, 12)):
        outcome = callee.call(n, shift)
        shown: tuple[Any, ...] = (n, shift)
        if outcome.failed:
            return call_failed(callee, shown, outcome)
        if not isinstance(outcome.value, str):
            return unexpected_result(callee, shown, f"{result_text(outcome.value)} is no text")
        facts = (("for", f"n = {n}, s = {shift}"), ("your loops", outcome.value.strip()))
        try:
            found = loop_nests(outcome.value)
        except ScheduleError as error:
            return unexpected_result(callee, shown, f"it cannot be read: {error.what}")
        if len(found) != 2:
            return wrong(f"There are {len(found)} loops and not two.", *facts, mistake="not-two-loops")
        if any(nest.depth != 1 or nest.parameters or nest.extents != ((0, n - 1),) for nest in found):
            message = "Both iteration spaces must be 0 to n - 1; nodes of other spaces are not compatible at all."
            return wrong(message, *facts, mistake="different-spaces")
        verdict = fusion(*found)
        passed = [d for d in verdict.distances if d.kind == "RAW"]
        if not passed:
            message = "The second loop reads nothing that the first writes, so nothing forbids fusing them."
            return wrong(message, *facts, mistake="nothing-passed-on")
        if verdict.sequential:
            reason = verdict.sequential.reason
            return wrong("These may be fused into one loop.", *facts, ("because", reason), mistake="legal-fusion")
        if verdict.sequential.distance != (-shift,):
            facts += (("your distance", verdict.sequential.distance[0]),)  # type: ignore[index]
            return wrong("It reads ahead, but not by s.", *facts, mistake="other-shift")
    return right("Fused, the second loop would read what has not been written yet.")
