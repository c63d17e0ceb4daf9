"""What Exercise 16 runs: a student's summation on numbers that remember which additions they went through."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import torch

from ...measure.rounding import sequential, summation_bound, unit_roundoff, vectorized
from ..answers import Callee
from ..feedback import Verdict, nearly, right, wrong
from ..judges import call_failed, number_text, unexpected_result
from ..variants import generator
from .ex14_runs import float32_numbers

HALF = Fraction(1, 2)


class Summand:
    """A number to be added: which summands it holds, and how many additions the deepest of them went through."""

    __slots__ = ("height", "leaves")

    def __init__(self, leaves: Counter[int], height: int = 0):
        self.leaves, self.height = leaves, height

    def __add__(self, other: Any) -> Summand:
        if isinstance(other, int) and other == 0:  # adding zero is exact, and no addition
            return self
        if not isinstance(other, Summand):
            return NotImplemented
        return Summand(self.leaves + other.leaves, 1 + max(self.height, other.height))

    __radd__ = __add__


def fewest_accumulators(n: int, limit: int) -> int:
    """The smallest power of two of running sums, merged as a tree, whose coefficient is at most ``limit``."""
    ways = 1
    while vectorized(n, ways).height > limit:
        ways *= 2
    return ways


#: (numbers, running sums): small ones first.
SIZES = ((1, 1), (2, 1), (3, 1), (2, 2), (8, 1), (4, 2), (8, 2), (8, 4), (12, 4), (16, 8), (64, 4), (96, 8), (256, 16))


def judge_vector_sum(callee: Callee, seed: int | None) -> Verdict:
    """Every number once, and none through more additions than W running sums need; then float32 numbers."""
    for n, ways in SIZES:
        shown = (f"{n} numbers", ways)
        outcome = callee.call([Summand(Counter([k])) for k in range(n)], ways)
        if outcome.failed:
            return call_failed(callee, shown, outcome)
        total = outcome.value
        if not isinstance(total, Summand):
            return unexpected_result(callee, shown, f"got {type(total).__name__} and not a sum of the numbers in x")
        facts: tuple[tuple[str, Any], ...] = (("numbers", n), ("W", ways))
        lost = [k for k in range(n) if total.leaves[k] == 0]
        twice = [k for k in range(n) if total.leaves[k] > 1]
        if lost:
            return wrong("Not all numbers are in the sum.", *facts, ("missing", f"x[{lost[0]}]"), mistake="lost-number")
        if twice:
            message = "A number is added more than once."
            return wrong(message, *facts, ("more than once", f"x[{twice[0]}]"), mistake="added-twice")
        if total.height > vectorized(n, ways).height:
            facts += (("a number goes through", f"{total.height} additions"),)
            if total.height == n - 1:
                return wrong("That is one running sum.", *facts, mistake="one-running-sum")
            if total.height == n // ways - 1 + ways - 1:
                message = "The running sums are right. Merged one after the other they cost W - 1 additions more."
                return nearly(message, *facts, credit=HALF, mistake="sequential-merge")
            return wrong("Some number goes through more additions than it need.", *facts, mistake="too-high")
    return right("Every number once, and none through more additions than that.", *_measured(callee, seed))


def _measured(callee: Callee, seed: int | None) -> tuple[tuple[str, Any], ...]:
    """The same function on float32 numbers: its error, that of one running sum, and both bounds."""
    n, ways = 4096, 16
    rng = generator(seed, "summands")
    numbers = torch.tensor([rng.uniform(0, 1) for _ in range(n)], dtype=torch.float32)
    exact = math.fsum(numbers.tolist())
    outcome = callee.call(list(numbers.unbind()), ways)
    if outcome.failed:
        return ()
    rows = []
    for name, plan, value in (
        ("with 16 running sums", vectorized(n, ways), float(outcome.value)),
        ("with one", sequential(n), float(sequential(n).run(numbers))),
    ):
        bound = summation_bound(n, plan, exact)
        rows.append((f"float32, {n} numbers, {name}", f"off by {abs(value - exact):.1e}, at most {bound:.1e}"))
    return tuple(rows)


def judge_worst_case(callee: Callee) -> Verdict:
    """Numbers whose float32 sum, from left to right, is off by nine tenths of its bound or more."""
    for n in (8, 64, 1024):
        outcome = callee.call(n)
        if outcome.failed:
            return call_failed(callee, (n,), outcome)
        given = float32_numbers(outcome.value)
        if given is None or len(given) != n:
            return unexpected_result(callee, (n,), f"that is no list of {n} finite float32 numbers")
        numbers = torch.tensor(given, dtype=torch.float32)
        error, bound = sequential_error(given), (n - 1) * unit_roundoff() * math.fsum(map(abs, given))
        facts = (
            ("n", n),
            ("computed sum", number_text(float(sequential(n).run(numbers)))),
            ("exact sum", number_text(math.fsum(given))),
            ("error over bound", f"{error / bound:.3f}" if bound else "0"),
        )
        if error >= 0.9 * bound > 0:
            continue
        if error == 0:
            return wrong("That sum is computed exactly.", *facts, mistake="no-error")
        return wrong("The bound is far from reached.", *facts, mistake="far-from-the-bound")
    return right("Every single addition rounds as badly as it can, and in the same direction.", *facts)


def sequential_error(numbers: Sequence[float]) -> float:
    """How far the float32 sum from left to right is from the exact one."""
    computed = float(sequential(len(numbers)).run(torch.tensor(numbers, dtype=torch.float32)))
    return abs(float(Fraction(computed) - sum(map(Fraction, numbers))))
