"""What Exercise 13 runs: the compiler's bounds and checks, and a student's interval rules on all small intervals."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from ...capture.tracer import trace
from ...loops.body import record as record_body
from ...loops.expressions import Expr, index
from ...loops.lowering import lower
from ...operators.record import record
from ...options import Options, host_device_spec
from ..answers import Callee
from ..feedback import Verdict, nearly, right, wrong
from ..judges import call_failed, result_text, unexpected_result
from ..limits import describe_error

Interval = tuple[int, int]
Subscript = Callable[[Any], Any]

NO_CHECK, CHECK = "no check", "check"


def keeps_check(subscript: Subscript, extent: int, size: int) -> bool:
    """Whether ``x[subscript(arange(extent))]``, x of ``size`` elements, is compiled with a check at run time: the
    program is recorded and lowered, and its loop body looked at. Raises what recording and lowering raise."""
    x = torch.zeros(size)
    captured = trace(lambda x: x[subscript(torch.arange(extent))], (x,), {})
    program = lower(record(captured.module, [x]), host_device_spec(), Options())
    dtypes = {buffer.name: buffer.layout.dtype for buffer in (*program.inputs, *program.buffers)}
    return any(record_body(buffer, dtypes).may_fail for buffer in program.buffers)


def bounds_of(subscript: Subscript, extent: int) -> Interval:
    """The interval that the compiler finds (Definition 6.4)."""
    found = Expr.of(subscript(index("i", extent))).bounds()
    return found.lower, found.upper


@lru_cache(maxsize=64)
def remainder_facts(a: int, b: int, m: int, extent: int, size: int) -> tuple[Interval, bool]:
    """Interval of (a i + b) mod m, and whether its check stays."""
    return bounds_of(lambda i: (a * i + b) % m, extent), keeps_check(lambda i: (a * i + b) % m, extent, size)


@lru_cache(maxsize=64)
def quotient_facts(q: int, r: int, extent: int, size: int) -> tuple[Interval, bool]:
    """Interval of floor(i / q) + r, and whether its check stays."""
    return bounds_of(lambda i: i // q + r, extent), keeps_check(lambda i: i // q + r, extent, size)


def drawn_subscripts(rng: random.Random) -> tuple[int, int, int, int, int, int, int]:
    """a, b, m of the first, q, r of the second, the extent of the loop and the size of the array.

    a and m have no common factor, so that all remainders occur; neither subscript leaves the array at the upper end or
    by more than a whole array at the lower one, which would be an error of the program.
    """
    size, q = rng.choice((32, 48, 64, 96, 100, 128)), rng.choice((2, 4, 8))
    m = size - rng.choice((0, 0, 3, 8))
    a = rng.choice([a for a in (3, 5, 7, 9, 11) if math.gcd(a, m) == 1])
    return a, rng.randint(1, 9), m, q, rng.choice((-2, -1, 0, 0)), q * size, size


# --- Interval rules ---------------------------------------------------------------------------------------------------

#: All small intervals, simplest first.
INTERVALS: tuple[Interval, ...] = tuple(
    sorted(
        ((low, high) for low in range(-6, 7) for high in range(low, 7)),
        key=lambda p: (p[1] - p[0], abs(p[0]) + abs(p[1]), -p[0]),
    )
)


def against_rule(
    callee: Callee, arguments: tuple[Any, ...], values: set[int], slips: dict[str, tuple[Interval | None, str]]
) -> Verdict | None:
    """The student's interval must contain ``values``, and be no wider than they need."""
    outcome = callee.call(*arguments)
    if outcome.failed:
        return call_failed(callee, arguments, outcome)
    yours = outcome.value
    if (
        not isinstance(yours, list | tuple)
        or len(yours) != 2
        or not all(isinstance(end, int) and not isinstance(end, bool) for end in yours)
    ):
        return unexpected_result(callee, arguments, f"{result_text(yours)} is no pair of integers")
    low, high = yours
    truth = (min(values), max(values))
    if (low, high) == truth:
        return None
    outside = sorted(value for value in values if not low <= value <= high)
    facts: list[tuple[str, Any]] = [("yours", [low, high])]
    if outside:
        facts.append(("possible, and outside", outside[0]))
    for name, (result, message) in slips.items():
        if result == (low, high):
            return wrong(message, *facts, mistake=name)
    if outside:
        return wrong("Not sound: a value that is possible is not in your interval.", *facts, mistake="unsound")
    return nearly("Sound, but wider than the values make necessary.", *facts, mistake="too-wide")


def against_times(callee: Callee, p: Interval, q: Interval) -> Verdict | None:
    """Two factors from all values of two intervals."""
    values = {a * b for a in range(p[0], p[1] + 1) for b in range(q[0], q[1] + 1)}
    ends = (p[0] * q[0], p[1] * q[1])
    message = "The smallest product need not be that of the two lower ends: think of signs."
    return against_rule(callee, (p, q), values, {"ends-multiplied": (ends, message)})


def against_remainder(callee: Callee, p: Interval, c: int) -> Verdict | None:
    """The remainder of all values of an interval."""
    values = {a % c for a in range(p[0], p[1] + 1)}
    message = "The remainder starts again from 0 at every multiple of c, so its ends are not those of the interval."
    return against_rule(callee, (p, c), values, {"ends-reduced": ((p[0] % c, p[1] % c), message)})


# --- What intervals do not see ----------------------------------------------------------------------------------------

SIZES = (4, 10, 32, 128)


def judge_unproved(callee: Callee, size: int) -> Verdict:
    """Always inside by brute force, and not provably so for the compiler, which is asked twice."""
    for m in dict.fromkeys((*SIZES, size)):
        extent = 4 * m
        for i in range(extent):
            outcome = callee.call(i, m)
            if outcome.failed:
                return call_failed(callee, (i, m), outcome)
            if isinstance(outcome.value, bool) or not isinstance(outcome.value, int):
                return unexpected_result(callee, (i, m), f"{result_text(outcome.value)} is no integer")
            if not 0 <= outcome.value < m:
                facts = (("m", m), ("i", i), ("subscript", outcome.value))
                return wrong("It leaves the array: that check is needed.", *facts, mistake="out-of-range")
        i = index("i", extent)
        outcome = callee.call(i, m)
        if outcome.failed or not isinstance(outcome.value, int | Expr):
            reason = outcome.reason() if outcome.failed else f"got {type(outcome.value).__name__}"
            message = "It is more than a subscript expression: use +, -, *, // and % only."
            return wrong(message, ("reason", reason), mistake="no-expression")
        expression = Expr.of(outcome.value)
        found = expression.bounds()
        facts = (("m", m), ("the compiler has", f"{expression} in {found}"))
        if found.within(0, m - 1):
            return wrong("The compiler proves that one.", *facts, mistake="proved")
    try:
        kept = keeps_check(lambda i: callee.function(i, size), 4 * size, size)
    except Exception as error:  # the student's own, on a tensor
        return wrong("It cannot be compiled.", ("reason", describe_error(error)), mistake="no-expression")
    if not kept:
        said = "Multiplied out, its bounds do not prove it; step by step, intervals do: the program has no check."
        return nearly(said, *facts, mistake="proved")
    return right("Always inside, and the compiler cannot tell: it keeps its check.", *facts)
