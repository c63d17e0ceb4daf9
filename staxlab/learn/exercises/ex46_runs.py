"""What Exercise 46 runs: straight-line programs on numbers that count, and the student's functions on the same."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from functools import lru_cache
from math import prod
from typing import Any

from ...autodiff.straightline import Counted, Program, ProgramError, Tally, apply, straight_line
from ...autodiff.sweeps import forward_mode, reverse_mode
from ..answers import Callee
from ..feedback import Verdict, right, wrong
from ..judges import call_failed, unexpected_result
from ..variants import generator

# What a student's programs of Part 1 may consist of: the second of a pair has the dearer reverse step.
PAIRS = (
    ("+", "*"), ("-", "*"), ("+", "/"), ("-", "/"), ("exp", "*"), ("exp", "/"), ("+", "log"), ("-", "log"),
    ("exp", "log"), ("+", "sqrt"), ("-", "tanh"), ("exp", "sigmoid"), ("+", "sin"), ("-", "cos"),
)  # fmt: skip


@lru_cache(maxsize=64)
def factor_of(operation: str) -> Fraction:
    """Both sweeps over the forward sweep, for a program of that one operation."""
    arity = 2 if operation in "+-*/" else 1
    sweep = reverse_mode(straight_line(lambda x: apply(operation, *[x] * arity), 1), [0.5])
    return Fraction(sweep.operations, sweep.forward_operations)


def factors(operations: Sequence[str]) -> tuple[Fraction, Fraction]:
    """The smallest and the largest factor that a program of these operations can have: mixing them averages them."""
    found = [factor_of(operation) for operation in operations]
    return min(found), max(found)


def judge_program(operations: Sequence[str], callee: Callee) -> Verdict:
    """The student's program must consist of w of the operations, and its gradient must be as dear as can be."""
    largest = factors(operations)[1]
    for w in (1, 2, 3, 8, 25):
        program = _recorded(callee, w)
        if isinstance(program, Verdict):
            return program
        asked = (("w", w), ("operations", program.size))
        strange = sorted({i.operation for i in program.instructions} - set(operations))
        if strange:
            allowed = " and ".join(operations)
            return wrong(f"Only {allowed} may occur.", ("and yours has", ", ".join(strange)), mistake="other-operation")
        if program.size != w:
            return wrong("It does not have w operations.", *asked, mistake="other-size")
        counted = _operations(program)
        if counted != largest * w:
            facts = (*asked, ("both sweeps", counted), ("possible is", "more than that"))
            return wrong("The reverse sweep of another program takes more.", *facts, mistake="not-the-dearest")
    return right("As dear as Theorem 5.1 lets it be with these operations.", ("run for", "5 sizes"))


def _recorded(callee: Callee, w: int) -> Program | Verdict:
    outcomes: list[Any] = []

    def body(x: Any) -> Any:
        outcome = callee.call(x, w)
        outcomes.append(outcome)
        return 0 if outcome.failed else outcome.value

    try:
        program = straight_line(body, 1)
    except ProgramError as error:
        return unexpected_result(callee, ("x", w), error.what)
    (outcome,) = outcomes
    if outcome.failed:
        return call_failed(callee, ("x", w), outcome)
    if not isinstance(program.outputs[0], int):
        return unexpected_result(callee, ("x", w), "the result does not depend on x")
    return program


def _operations(program: Program) -> int:
    """The operations of both sweeps. The numbers are recorded and not computed, so that it does not matter whether the
    program has a value at any particular x."""
    counts: list[int] = []

    def body(x: Any) -> Any:
        counts.append(reverse_mode(program, [x]).operations)
        return x

    straight_line(body, 1)
    return counts[0]


# --- The product ------------------------------------------------------------------------------------------------------


def product(n: int) -> Program:
    """``x_1 x_2 ... x_n`` with n - 1 multiplications, from the left."""

    def function(*x: Any) -> Any:
        v = x[0]
        for factor in x[1:]:
            v = v * factor
        return v

    return straight_line(function, n, "product")


def numbers(n: int) -> list[Fraction]:
    return [Fraction(k + 2, 3) for k in range(n)]


@lru_cache(maxsize=256)
def reverse_operations(n: int) -> int:
    """Both sweeps of reverse mode."""
    return reverse_mode(product(n), numbers(n)).operations


@lru_cache(maxsize=256)
def independent_operations(n: int) -> int:
    """Every partial derivative as a product of its own."""
    tally = Tally()
    x = [tally.number(one) for one in numbers(n)]
    for k in range(n):
        rest = x[:k] + x[k + 1 :]
        total = rest[0]
        for factor in rest[1:]:
            total = total * factor
    return tally.count


@lru_cache(maxsize=256)
def forward_operations(n: int) -> int:
    """Forward mode, one whole pass for each input."""
    unit = [[Fraction(int(j == k)) for j in range(n)] for k in range(n)]
    return sum(forward_mode(product(n), numbers(n), direction).operations for direction in unit)


def judge_gradient(callee: Callee, seed: int | None) -> Verdict:
    """All partial derivatives, right for every input, in a number of operations proportional to n."""
    rng = generator(seed, "factors")
    for n in (2, 3, 4, 5, 8):
        for zeros in (0, 1, 2):
            x = [Fraction(rng.randint(1, 9), rng.choice((1, 2, 5))) for _ in range(n)]
            for place in rng.sample(range(n), min(zeros, n)):
                x[place] = Fraction(0)
            verdict = _check_gradient(callee, x)
            if verdict is not None:
                return verdict
    counts = {n: _count(callee, n) for n in (2, 16, 32, 64)}
    over = next((n for n, count in counts.items() if isinstance(count, Verdict)), None)
    if over is not None:
        return counts[over]
    dear = next((n for n, count in counts.items() if count > 5 * n), None)
    if dear is not None:
        facts = (("n", dear), ("operations", counts[dear]), ("reverse mode takes", reverse_operations(dear)))
        return wrong("Right, but the number of operations grows faster than n.", *facts, mistake="too-many-operations")
    shown = ", ".join(f"{count} for n = {n}" for n, count in counts.items())
    return right("All partial derivatives in a number of operations proportional to n.", ("operations", shown))


def _check_gradient(callee: Callee, x: list[Fraction]) -> Verdict | None:
    truth = [prod(x[:k] + x[k + 1 :]) for k in range(len(x))]
    outcome = callee.call(list(x))
    shown = ("x", _text(x))
    if isinstance(outcome.error, ZeroDivisionError):
        message = "It divides by a factor that is 0; the partial derivatives exist there too."
        return wrong(message, shown, mistake="divides")
    if outcome.failed:
        return call_failed(callee, (_text(x),), outcome)
    yours = outcome.value
    if not isinstance(yours, list | tuple) or len(yours) != len(x):
        problem = f"that is no list of {len(x)} numbers"
        return unexpected_result(callee, (_text(x),), problem)
    place = next((k for k, (mine, true) in enumerate(zip(yours, truth, strict=True)) if mine != true), None)
    if place is None:
        return None
    facts = (shown, ("with respect to", f"x[{place}]"), ("yours", yours[place]))
    if list(yours) == truth[::-1]:
        return wrong("These are the derivatives in the opposite order.", *facts, mistake="opposite-order")
    return wrong("Not the partial derivatives.", *facts, mistake="wrong-derivative")


def _count(callee: Callee, n: int) -> int | Verdict:
    tally = Tally()
    x: list[Counted] = [tally.number(one) for one in numbers(n)]
    outcome = callee.call(x)
    if outcome.failed:
        return call_failed(callee, (f"{n} numbers",), outcome)
    return tally.count


def _text(x: Sequence[Fraction]) -> str:
    return "[" + ", ".join(map(str, x)) + "]"
