"""What Exercise 26 runs: the timeline of host and device on many regions, and the mistakes one can make in it."""

from __future__ import annotations

import random
from collections.abc import Callable
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ...measure import launch_timeline as model
from ..answers import Callee
from ..feedback import Verdict, right, wrong
from ..judges import call_failed, unexpected_result
from ..variants import generator
from . import ex26_answers

Case = tuple[tuple[int, ...], int, int]

#: name of a mistake: the function that makes it, and what to say.
MISTAKES: dict[str, tuple[Callable[[Any, int, int], list[Any]], str]] = {
    "first-order": (
        ex26_answers.first_order,
        "That is the estimate. Exactly, nothing runs before the first launch is done, and waits add up along the way.",
    ),
    "one-after-the-other": (
        ex26_answers.serial,
        "Launches and kernels overlap: the host issues the next launch while the kernel runs.",
    ),
    "submission-per-kernel": (ex26_answers.launch_per_kernel, "A graph is submitted once, not once per kernel."),
    "never-waits": (
        ex26_answers.never_waits,
        "A kernel cannot start before its own launch is done, not only the first one.",
    ),
}


@lru_cache(maxsize=256)
def break_even(t: int, launch: int, graph: int) -> int:
    """The least number of kernels for which the graph is faster to first order, by trying."""
    return next(n for n in range(1, 100_000) if model.speedup(Fraction(n), t, launch, graph) > 1)


def truth(times: tuple[int, ...], launch: int, graph: int) -> list[Any]:
    """Both times, by simulating what host and device do."""
    return [model.run_launches(times, launch).total, model.run_graph(times, graph).total]


@lru_cache(maxsize=8)
def cases(seed: int | None) -> tuple[Case, ...]:
    """Regions with launch and graph times, small ones first; every mistake of :data:`MISTAKES` shows on one of them."""
    rng: random.Random = generator(seed, "regions")
    found: list[Case] = [
        ((), 3, 5), ((4,), 3, 5), ((1, 1), 3, 5), ((9, 1, 1), 3, 5), ((1, 9, 1, 1), 2, 7), ((1, 1, 9), 2, 7),
        ((0, 3, 3), 2, 4), ((8, 8, 8), 2, 6), ((1,) * 12, 4, 7), ((5, 5), 5, 5), ((3, 0, 0, 7), 0, 0), ((0, 0), 0, 5),
    ]  # fmt: skip
    for _ in range(30):
        times = tuple(rng.randint(0, 12) for _ in range(rng.randint(1, 14)))
        found.append((times, rng.randint(1, 8), rng.randint(1, 20)))
    return tuple(found)


def judge_execution_times(callee: Callee, seed: int | None) -> Verdict:
    """Every region; if the answers are those of a known mistake wherever it was tried, it is named."""
    given: list[list[Any]] = []
    failed: int | None = None
    for place, (times, launch, graph) in enumerate(cases(seed)):
        outcome = callee.call(list(times), launch, graph)
        if outcome.failed:
            return call_failed(callee, (list(times), launch, graph), outcome)
        yours = outcome.value
        if not isinstance(yours, (list, tuple)) or len(yours) != 2 or not all(map(_is_number, yours)):
            problem = "two numbers are asked for: launched one by one, and as a graph"
            return unexpected_result(callee, (list(times), launch, graph), problem)
        given.append([float(value) for value in yours])
        if failed is None and given[-1] != [float(value) for value in truth(times, launch, graph)]:
            failed = place
    if failed is None:
        return right("Both times, as the simulation has them.", ("tried", f"{len(given)} regions"))
    times, launch, graph = cases(seed)[failed]
    facts = (("times", list(times)), ("L", launch), ("G", graph), ("yours", given[failed]))
    for name, (function, message) in MISTAKES.items():
        if given == [[float(v) for v in function(list(t), a, b)] for t, a, b in cases(seed)]:
            return wrong(message, *facts, mistake=name)
    expected = [float(value) for value in truth(times, launch, graph)]
    which = "launched one by one" if given[failed][0] != expected[0] else "as a graph"
    return wrong(f"The time {which} is not what the simulation has.", *facts)


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float, Fraction)) and not isinstance(value, bool)
