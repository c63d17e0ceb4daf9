"""What Exercise 51 runs: the student's reversal orders, move by move, under the rules of Definition 5.3."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from math import isqrt
from typing import Any, ClassVar

from ...autodiff.checkpoint import beta, binomial, minimal_slots, uniform_segments
from ...autodiff.reversal import Advance, Free, Move, ReversalError, Reverse, Rule, Store, simulate
from ..answers import Callee, Field, Malformed
from ..feedback import Verdict, right, wrong
from ..judges import call_failed, unexpected_result
from ..variants import generator

KINDS: dict[str, tuple[type, int]] = {
    "advance": (Advance, 2), "store": (Store, 1), "free": (Free, 1), "reverse": (Reverse, 1),
}  # fmt: skip
FORM = '("advance", i, j), ("store", k), ("free", k) or ("reverse", k)'


def move_of(entry: Any) -> Move:
    """A move from a tuple or from a line of text such as ``advance 0 3``. Raises Malformed."""
    if isinstance(entry, Advance | Store | Free | Reverse):
        return entry
    if isinstance(entry, str):
        words: list[Any] = entry.replace("->", " ").replace(",", " ").split()
        words = words[:1] + [int(word) if word.lstrip("-").isdigit() else word for word in words[1:]]
    elif isinstance(entry, list | tuple):
        words = list(entry)
    else:
        words = []
    name = words[0].lower() if words and isinstance(words[0], str) else ""
    kind, arity = KINDS.get(name, (None, 0))
    numbers = words[1:]
    whole = all(isinstance(one, int) and not isinstance(one, bool) for one in numbers)
    if kind is None or len(numbers) != arity or not whole:
        raise Malformed(f"{entry!r} is no move; a move is {FORM}")
    return kind(*numbers)


def moves_of(answer: Any) -> tuple[Move, ...]:
    """An order from a list of moves, or from text with a move on each line. Raises Malformed."""
    if isinstance(answer, str):
        answer = [line for line in answer.splitlines() if line.strip()]
    if not isinstance(answer, list | tuple):
        raise Malformed(f"got {type(answer).__name__} and not a list of moves")
    return tuple(move_of(entry) for entry in answer)


def written(moves: Iterable[Move]) -> list[tuple]:
    """An order as students write it."""
    return [(type(move).__name__.lower(), *vars(move).values()) for move in moves]


@dataclass(frozen=True)
class Order(Field):
    """A reversal order: a list of moves."""

    kind: ClassVar[str] = f"a list of moves, each {FORM}"
    own_cell: ClassVar[bool] = True

    def read(self, answer: Any, constants: Any) -> tuple[Move, ...]:
        return moves_of(answer)


# What is said of a move that breaks a rule, beside the simulator's own reason.
SAID = {
    Rule.IN_CHAIN: "There is no such state or step in the chain.",
    Rule.FORWARD: "An advance goes forward, by one step at least.",
    Rule.FROM_CHECKPOINT: "It starts from a state that is not there any more: neither stored nor the current one.",
    Rule.STORE_AT_HAND: "Only the current state can be stored, and that is another one.",
    Rule.FREE_SLOT: "There is no free slot left.",
    Rule.FREE_STORED: "No slot holds that state.",
    Rule.LAST_FIRST: "Another backward step is next: its adjoint is the one that is known.",
    Rule.STATE_PRESENT: "The state that this backward step needs is neither stored nor the current one.",
    Rule.REPETITIONS: "A forward step is computed more often than t allows.",
    Rule.COMPLETE: "Backward steps are left at the end.",
}


def refused(error: ReversalError, *before: tuple[str, Any]) -> Verdict:
    """The verdict on an order that breaks a rule: which move, which rule, and the diagram up to it."""
    facts = before
    if error.move is not None:
        facts = (*facts, (f"move {error.position + 1}", error.move))
    facts = (*facts, ("reason", error.reason))
    if 0 < error.history.duration <= 72:
        facts = (*facts, ("up to there", "\n" + "\n".join(error.history.chart())))
    return wrong(SAID[error.rule], *facts, mistake=error.rule.name.lower().replace("_", "-"))


def judge_order(length: int, slots: int, repetitions: int, moves: tuple[Move, ...]) -> Verdict:
    """Run the student's order."""
    try:
        run = simulate(moves, length, slots, repetitions)
    except ReversalError as error:
        return refused(error)
    return right("Every move is legal, and every backward step is run.", ("it is", run.summary()))


def judge_orders(callee: Callee, seed: int | None) -> Verdict:
    """Run the orders of the student's function for all lengths that a few slots and repetitions reverse."""
    cases = [
        (length, s, t)
        for s in (1, 2, 3, 4)
        for t in (1, 2, 3)
        for length in range(1, beta(s, t) + 1)
        if length > beta(s, t - 1)
    ]
    rng = generator(seed, "orders")
    cases += [(rng.randint(beta(s, t - 1) + 1, beta(s, t)), s, t) for s, t in ((5, 4), (7, 3), (60, 2))]
    # And with more repetitions than are needed.
    cases += [(length, s, t + 2) for length, s, t in cases[:12]]
    cases.sort(key=lambda case: (case[0], case[1], case[2]))
    for length, s, t in cases:
        outcome = callee.call(length, s, t)
        if outcome.failed:
            return call_failed(callee, (length, s, t), outcome)
        try:
            moves = moves_of(outcome.value)
        except Malformed as problem:
            return unexpected_result(callee, (length, s, t), str(problem))
        try:
            simulate(moves, length, s, t)
        except ReversalError as error:
            return refused(error, ("call", callee.call_text(length, s, t)))
    longest = cases[-1][0]
    return right("Every order is legal and complete.", ("run for", f"{len(cases)} chains of up to {longest:,} steps"))


# --- Numbers ----------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def fewest_uniform_slots(length: int) -> int:
    """The fewest slots that equal segments need, by running every number of segments near the square root."""
    root = isqrt(length)
    candidates = range(max(1, root - 8), min(length, root + 8) + 1)
    return min(uniform_segments(length, segments).peak_slots for segments in candidates)


def gain_in_the_long_run() -> Fraction:
    """Slots of equal segments over slots of the binomial order with two evaluations per step, for a very long chain.

    The theorem's 2 sqrt(l) against the exact minimum; their ratio has settled long before 10^24 steps.
    """
    length = 10**24
    return Fraction(2 * isqrt(length), minimal_slots(length, 2))


def drawn_chain(rng: random.Random) -> tuple[int, int, int]:
    """(l, s, t): a chain that needs all its slots, and all its repetitions."""
    s, t = rng.choice(((2, 3), (3, 2), (4, 2), (2, 4)))
    return rng.randint(max(beta(s, t - 1), beta(s - 1, t)) + 1, beta(s, t)), s, t


def reference_order(length: int, slots: int, repetitions: int) -> list[tuple]:
    return written(binomial(length, slots, repetitions).moves)
