"""What Exercise 20 runs: orders of two chains, counted, and graphs on which a rule is compared with a search."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

from ...schedule.lifetimes import Step, peak
from ...schedule.orders import OrderProblem, exact, greedy
from ..answers import Callee
from ..feedback import Verdict, nearly, right, wrong
from ..judges import call_failed, result_text, unexpected_result
from ..variants import generator

READS = {"a": (), "b": (), "c": ("a",), "d": ("b",)}
RESULTS = ("c", "d")

#: The topological orders of the two chains.
ORDERS = tuple(
    "".join(order)
    for order in itertools.permutations("abcd")
    if all(order.index(read) < order.index(name) for name in "abcd" for read in READS[name])
)

MOST_KERNELS = 10


def peak_of(order: str, sizes: Mapping[str, int]) -> int:
    """The peak of an order of the two chains (Definition 7.5)."""
    return peak([Step(name, READS[name], (name,)) for name in order], sizes, RESULTS)


def _sizes(rng: random.Random) -> dict[str, int]:
    """Sizes of outputs; results no larger than what they are made of."""
    a, b = rng.randint(1, 9), rng.randint(1, 9)
    return {"a": a, "b": b, "c": rng.randint(1, a), "d": rng.randint(1, b)}


#: Sizes that tell mistakes apart: the chapter's, either chain larger, results as large as intermediates.
CASES = (
    {"a": 4, "b": 4, "c": 1, "d": 1},
    {"a": 9, "b": 2, "c": 1, "d": 1},
    {"a": 2, "b": 9, "c": 1, "d": 1},
    {"a": 5, "b": 4, "c": 5, "d": 1},
    {"a": 4, "b": 5, "c": 1, "d": 5},
    {"a": 6, "b": 5, "c": 3, "d": 5},
)


def cases(seed: int | None) -> list[dict[str, int]]:
    rng = generator(seed, "two chains")
    return [*CASES, *(_sizes(rng) for _ in range(12))]


def judge_peak(callee: Callee, seed: int | None) -> Verdict:
    """The student's count against the package's, on every order."""
    for sizes in cases(seed):
        for order in ORDERS:
            outcome = callee.call(order, dict(sizes))
            if outcome.failed:
                return call_failed(callee, (order, sizes), outcome)
            truth = peak_of(order, sizes)
            if not isinstance(outcome.value, int) or isinstance(outcome.value, bool):
                return unexpected_result(callee, (order, sizes), "a peak is a whole number of units")
            if outcome.value == truth:
                continue
            facts = (("order", order), ("sizes", sizes), ("yours", outcome.value))
            for mistake, value, message in _other_counts(order, sizes):
                if outcome.value == value:
                    return wrong(message, *facts, mistake=mistake)
            return wrong("That is not the peak of this order.", *facts, mistake="wrong-peak")
    return right("The peak of every order.", ("tried", f"{len(cases(seed))} sizes, {len(ORDERS)} orders each"))


def _other_counts(order: str, sizes: Mapping[str, int]) -> list[tuple[str, int, str]]:
    """What comes out if something is forgotten."""
    final = sum(sizes[name] for name in RESULTS)
    after, alive = [], 0
    for name in order:
        alive += sizes[name] - sum(sizes[read] for read in READS[name])
        after.append(alive)
    return [
        ("freed-too-early", max(after), "While a kernel runs, what it reads is still there beside what it writes."),
        ("never-freed", sum(sizes.values()), "What has been read for the last time is freed."),
        ("end-only", final, "That is what is left in the end, not the most on the way."),
    ]


def judge_order(callee: Callee, seed: int | None) -> Verdict:
    """The student's order against the best of all."""
    for sizes in cases(seed):
        given = tuple(sizes[name] for name in "abcd")
        outcome = callee.call(*given)
        if outcome.failed:
            return call_failed(callee, given, outcome)
        order = outcome.value
        if not isinstance(order, str) or order not in ORDERS:
            if isinstance(order, str) and sorted(order) == list("abcd"):
                facts = (("sizes", sizes), ("yours", order))
                return wrong("There a kernel runs before what it reads.", *facts, mistake="no-topological-order")
            return unexpected_result(callee, given, f"{result_text(order)} is no order of a, b, c and d")
        best = exact(_two_chains(sizes))
        assert best is not None
        yours = peak_of(order, sizes)
        if yours > best.peak:
            facts = (("sizes", sizes), ("yours", f"{order}, peak {yours}"), ("the lowest peak", best.peak))
            if order[:2] in ("ab", "ba"):
                return wrong("Both intermediates are alive at once.", *facts, mistake="both-at-once")
            message = "One chain after the other, as it should be, but in these sizes the other one should begin."
            return nearly(message, *facts, credit=Fraction(1, 2), mistake="smaller-first")
    return right("No order has a lower peak.", ("tried", f"{len(cases(seed))} sizes"))


def _two_chains(sizes: Mapping[str, int]) -> OrderProblem:
    steps = tuple(Step(name, READS[name], (name,)) for name in "abcd")
    return OrderProblem(steps, sizes, frozenset(RESULTS))


def problem_of(kernels: Any) -> OrderProblem | str:
    """Kernels ``(name, reads, size, kept)`` as a problem, or what is wrong with them."""
    if not isinstance(kernels, list | tuple) or not kernels:
        return "that is no list of kernels"
    if len(kernels) > MOST_KERNELS:
        return f"there are {len(kernels)} kernels; {MOST_KERNELS} are allowed"
    steps, sizes, kept = [], {}, set()
    for kernel in kernels:
        if not isinstance(kernel, list | tuple) or len(kernel) != 4:
            return f"{result_text(kernel)} is not (name, reads, size, kept)"
        name, reads, size, stays = kernel
        if not isinstance(name, str) or name in sizes:
            return f"{result_text(name)} is no name, or is there twice"
        if not isinstance(reads, list | tuple) or any(not isinstance(read, str) or read not in sizes for read in reads):
            return f"{name} reads something that no earlier kernel writes"
        if not isinstance(size, int) or isinstance(size, bool) or size < 1:
            return f"the size of {name} is no whole number of at least 1"
        if not isinstance(stays, bool):
            return f"whether {name} is kept is True or False"
        steps.append(Step(name, tuple(reads), (name,)))
        sizes[name] = size
        if stays:
            kept.add(name)
    return OrderProblem(tuple(steps), sizes, frozenset(kept))


def judge_graph(callee: Callee) -> Verdict:
    """A graph on which always leaving the fewest bytes alive does not give the lowest peak."""
    outcome = callee.call()
    if outcome.failed:
        return call_failed(callee, (), outcome)
    problem = problem_of(outcome.value)
    if isinstance(problem, str):
        return unexpected_result(callee, (), problem)
    best = exact(problem)
    assert best is not None
    order = greedy(problem)
    reached = problem.peak(order)
    facts = (
        ("the rule runs", " ".join(problem.steps[k].name for k in order)), ("its peak", reached),
        ("the best order", " ".join(problem.steps[k].name for k in best.positions)), ("its peak is", best.peak),
    )  # fmt: skip
    if reached == best.peak:
        return wrong("On this graph the rule finds an order of the lowest peak.", *facts, mistake="rule-succeeds")
    return right("No better order leaves the rule any excuse: it misses the lowest peak.", *facts)
