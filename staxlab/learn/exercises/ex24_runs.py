"""What Exercise 24 runs: the package's coordinate descent on tables and on what students construct."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...codegen.configurations import Configuration, ConfigurationSpace
from ...errors import OptionError
from ...runtime.autotune import Search, coordinate_descent
from ...runtime.autotune_noise import checked_cost
from ..answers import Callee
from ..feedback import Verdict, right, wrong
from ..judges import Slip, call_failed, result_text, unexpected_result

if TYPE_CHECKING:
    from .ex24 import Variant

#: What a trap is tried with: the chapter's values, fewer and more of them, and other thresholds.
CASES = (((1, 2, 4, 8), 1e-3), ((1, 2, 4, 8, 16), 0.05), ((1, 2, 4), 0.2), ((1, 2, 4, 8), 0.4))
ENOUGH = 2  # times the fastest


# --- Other walks, as mistakes -----------------------------------------------------------------------------------------


def other_walk(variant: Variant, mistake: str) -> Configuration:
    """Where a walk ends that is not Algorithm 9.2 but one of its misreadings."""
    space, table = variant.space, variant.table
    threshold = 0.0 if mistake == "no-threshold" else variant.threshold
    order = (1, 0) if mistake == "b-first" else (0, 1)
    here, rounds = variant.start, 0
    while True:
        moved = False
        rounds += 1
        if mistake == "steepest":
            near = min(space.neighbours(here), key=table.__getitem__)
            if table[near] < (1 - threshold) * table[here]:
                here, moved = near, True
        else:
            for position in order:
                turn = list(space.along(here, position))
                for other in reversed(turn) if mistake == "half-first" else turn:
                    if table[other] < (1 - threshold) * table[here]:
                        here, moved = other, True
        if not moved or (mistake == "one-round" and rounds == 1):
            return here


END_MISTAKES = {
    "one-round": "There is another round: it only stops when nothing was accepted in one.",
    "no-threshold": "One of these steps gains less than the threshold.",
    "b-first": "The parameter a has its turn first.",
    "half-first": "Times 2 is tried before divided by 2.",
    "steepest": "It does not look for the best neighbour: the first that is fast enough is accepted.",
}


def end_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other places one may arrive at."""
    found: dict[Configuration, Slip] = {}
    truth = variant.walk().chosen
    best = "That is the fastest of all. Does the walk get there?"
    for place, name, words in (
        (variant.best, "the-best", best),
        *((other_walk(variant, name), name, words) for name, words in END_MISTAKES.items()),
        (variant.start, "the-start", "It does not stop there: look at the neighbours."),
    ):
        if place != truth:
            found.setdefault(place, Slip(name, place, words))
    return tuple(found.values())


def acceptance_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other numbers one may count."""
    walk, found = variant.walk(), {}
    for number, name, words in (
        (walk.acceptances + 1, "start-counted", "The start was not accepted, it was given."),
        (len(walk.trials) - 1, "comparisons", "So many comparisons were made; most of them accepted nothing."),
        (walk.trials[-1].round, "rounds", "So many rounds it took. A round may accept several, and the last none."),
    ):
        if number != walk.acceptances:
            found.setdefault(number, Slip(name, Fraction(number), words))
    return tuple(found.values())


# --- How many places to stop at ---------------------------------------------------------------------------------------


@lru_cache(maxsize=16)
def most_stops(rows: int, columns: int) -> int:
    """The largest set of configurations no two of which are neighbours, found row by row over all sets. O(4**columns *
    rows).

    Where neighbours' times differ by more than the threshold, the walk leaves the slower one of any two; and any set
    without neighbours is where it stops, if those are fast and all others slow.
    """
    patterns = [p for p in range(1 << columns) if not p & (p >> 1)]
    best = {0: 0}
    for _ in range(rows):
        best = {
            pattern: pattern.bit_count() + max(count for above, count in best.items() if not above & pattern)
            for pattern in patterns
        }
    return max(best.values())


def stop_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other numbers of places."""
    size, truth, found = variant.rows * variant.columns, most_stops(variant.rows, variant.columns), {}
    for number, name, words in (
        (size, "everywhere", "Of two neighbours the slower one is left."),
        (1, "one", "It depends on where it starts: there may be several."),
        (min(variant.rows, variant.columns), "one-per-row", "Two in the same row need not be neighbours."),
        (4, "corners", "There are more places than the corners without a common neighbour."),
    ):
        if number != truth:
            found.setdefault(number, Slip(name, Fraction(number), words))
    return tuple(found.values())


# --- The trap ---------------------------------------------------------------------------------------------------------


def judge_trap(callee: Callee, seed: int | None) -> Verdict:
    """Run Algorithm 9.2 over what the student made, for several spaces and thresholds."""
    walks: list[Search] = []
    for values, threshold in CASES:
        space = ConfigurationSpace.of(a=values, b=values)
        outcome = callee.call(list(values), threshold)
        if outcome.failed:
            return call_failed(callee, (list(values), threshold), outcome)
        read = read_trap(outcome.value, space)
        if isinstance(read, Verdict):
            return read
        if isinstance(read, str):
            return unexpected_result(callee, (list(values), threshold), read)
        start, costs = read
        walk = coordinate_descent(space, start, costs.__getitem__, threshold=threshold)
        verdict = _caught(walk, costs, threshold)
        if verdict is not None:
            return verdict
        walks.append(walk)
    first = walks[0]
    facts = (("stops at", first.chosen), ("evaluations", first.evaluations), ("tried", f"{len(CASES)} spaces"))
    return right("The walk stops there, and the fastest configuration is never reached.", *facts)


def read_trap(
    value: Any, space: ConfigurationSpace
) -> tuple[Configuration, dict[Configuration, float]] | str | Verdict:
    """Start and costs; words for what has not the form of the two; a verdict on costs that are none."""
    if not isinstance(value, (tuple, list)) or len(value) != 2 or not isinstance(value[1], Mapping):
        return f"{result_text(value)} is no pair of a configuration and a dictionary"
    start, given = value
    if not isinstance(start, (tuple, list)) or tuple(start) not in space:
        return f"{result_text(start)} is no configuration of the space"
    costs: dict[Configuration, float] = {}
    for configuration in space:
        if configuration not in given:
            facts = (("values", space.parameters[0].values), ("missing", configuration))
            return wrong("There is a configuration without a time.", *facts, mistake="holes")
        try:
            costs[configuration] = checked_cost(given[configuration], configuration)
        except (OptionError, ArithmeticError):
            facts = (("configuration", configuration), ("given", result_text(given[configuration])))
            return wrong("A time is a number above 0, or infinity.", *facts, mistake="no-time")
    start = tuple(start)
    if math.isinf(costs[start]):
        return wrong("The start cannot run: Proposition 9.2 does not speak of that.", ("start", start),
                     mistake="infinite-start")  # fmt: skip
    return start, costs


def _caught(walk: Search, costs: Mapping[Configuration, float], threshold: float) -> Verdict | None:
    """What is wrong with a trap, or None if it holds."""
    best = min(costs, key=costs.__getitem__)
    ratio = costs[walk.chosen] / costs[best]
    if ratio >= ENOUGH:
        return None
    values = walk.space.parameters[0].values
    path = " -> ".join(map(str, _short(walk.path)))
    facts = (("values", values), ("threshold", threshold), ("the walk", path), ("fastest", best))
    if len(set(costs.values())) == 1:
        return wrong("All times are equal, so every configuration is the fastest.", *facts, mistake="all-equal")
    if ratio == 1 and walk.start == walk.chosen:
        return wrong("The walk starts at the fastest configuration.", *facts, mistake="starts-at-the-best")
    if ratio == 1:
        return wrong("The walk gets to the fastest configuration.", *facts, mistake="reaches-the-best")
    more = ("times the fastest", f"{ratio:.3g}")
    return wrong("It stops elsewhere, but that is less than twice as slow.", *facts, more, mistake="hardly-slower")


def _short(path: tuple[Configuration, ...]) -> Iterator[Any]:
    yield from path if len(path) <= 6 else (*path[:3], "...", *path[-2:])
