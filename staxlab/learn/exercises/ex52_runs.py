"""What Exercise 52 runs: descent and random search on students' costs, and plans of halving against the package's."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ...codegen.configurations import ConfigurationSpace
from ...runtime.autotune import coordinate_descent, fewest_samples, halving_plan, random_search, samples_needed
from ..answers import Callee
from ..feedback import Verdict, right, wrong
from ..judges import Slip, call_failed, result_text, unexpected_result
from ..variants import generator
from . import ex52_answers
from .ex24_runs import read_trap

if TYPE_CHECKING:
    from .ex52 import Variant

DRAWING = "how likely a good one is drawn"
PICKING = "whether the best one drawn is picked"
BOTH = "both"
NOTHING = "neither"

DRAWS = 60
SEARCHES = 5
SPACES = ((8, 8), (8, 10), (8, 8, 8), (16, 8))  # numbers of values of each parameter
PLANS = ((2, 6), (3, 17), (5, 100), (8, 48), (16, 64), (6, 18), (37, 1000), (64, 4096), (1, 10), (460, 10_000))


def sample_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other numbers of draws one may arrive at with the formula of the proposition."""
    q, delta, truth = variant.q, variant.delta, samples_needed(variant.q, variant.delta)
    return _other_numbers(
        truth,
        (truth - 1, "rounded-down", "That is a little too few: at least so many are asked for."),
        (math.ceil(math.log10(1 / delta) / q), "decimal-logarithm", "The logarithm is the natural one."),
        (math.ceil(math.log2(1 / delta) / q), "binary-logarithm", "The logarithm is the natural one."),
        (
            math.ceil(math.log(1 / q) / delta),
            "swapped",
            "The share q is below, the probability delta in the logarithm.",
        ),
        (
            math.ceil(1 / q),
            "one-expected",
            "So many draws contain one good configuration on average, which is not sure.",
        ),
        (fewest_samples(q, delta), "exact-bound", "That is the smallest N; the proposition asks for a few more."),
    )


def exact_slips(variant: Variant) -> tuple[Slip, ...]:
    """Other numbers of draws one may arrive at from the bound itself."""
    q, delta, truth = variant.q, variant.delta, fewest_samples(variant.q, variant.delta)
    return _other_numbers(
        truth,
        (samples_needed(q, delta), "the-simpler-bound", "That suffices, but a few fewer do as well."),
        (truth - 1, "rounded-down", "With one draw less the bound does not hold yet."),
        (
            math.ceil(math.log(1 / delta) / math.log1p(q)),
            "plus-q",
            "The factor of each draw is 1 - q, not 1 / (1 + q).",
        ),
    )


def _other_numbers(truth: int, *others: tuple[int, str, str]) -> tuple[Slip, ...]:
    found: dict[int, Slip] = {}
    for number, name, words in others:
        if number != truth:
            found.setdefault(number, Slip(name, Fraction(number), words))
    return tuple(found.values())


def counted_total(k: int, r: int) -> int:
    """Readings of a halving of ``2**k`` configurations that begins with ``r`` each, summed round by round."""
    left, each, total = 1 << k, r, 0
    while left > 1:
        total += left * each
        left, each = left // 2, 2 * each
    return total


# --- The slow corner --------------------------------------------------------------------------------------------------


def judge_slow_corner(callee: Callee, seed: int | None) -> Verdict:
    """Walk over what the student made, and draw from it, in several spaces."""
    drawing = generator(seed, "draws")
    slow_draws = 0
    share = Fraction(0)
    for lengths in SPACES:
        values = [[1 << k for k in range(length)] for length in lengths]
        space = ConfigurationSpace.of({f"p{k + 1}": one for k, one in enumerate(values)})
        outcome = callee.call([list(one) for one in values])
        if outcome.failed:
            return call_failed(callee, (_short(lengths),), outcome)
        read = read_trap(outcome.value, space)
        if isinstance(read, Verdict):
            return read
        if isinstance(read, str):
            return unexpected_result(callee, (_short(lengths),), read)
        start, costs = read
        walk = coordinate_descent(space, start, costs.__getitem__)
        as_slow = sum(cost >= costs[walk.chosen] for cost in costs.values())
        facts = (
            ("values of each parameter", _short(lengths)),
            ("starts at", start),
            ("stops at", walk.chosen),
            ("as slow or slower", f"{as_slow} of {space.size}"),
        )
        if 10 * as_slow > space.size:
            if len(set(costs.values())) == 1:
                return wrong("All times are equal: none is among the slowest tenth.", *facts, mistake="all-equal")
            if walk.chosen != start:
                return wrong("The walk does not stay among the slow ones.", *facts, mistake="walks-away")
            return wrong("It stops, but that is not among the slowest tenth.", *facts, mistake="not-slow")
        share = max(share, Fraction(as_slow, space.size))
        for _ in range(SEARCHES):
            drawn = random_search(space, costs.__getitem__, samples=DRAWS, seed=drawing.randrange(2**30))
            slow_draws += drawn.cost >= costs[walk.chosen]
    facts = (
        ("random searches that ended there", f"{slow_draws} of {SEARCHES * len(SPACES)}"),
        ("likely at most", f"{float(share) ** DRAWS:.1g}"),
    )
    return right(f"The walk stays among the slowest tenth, and {DRAWS} draws avoid them.", *facts)


def _short(lengths: tuple[int, ...]) -> str:
    return " and ".join(f"1 to {1 << (length - 1)}" for length in lengths)


# --- The plan ---------------------------------------------------------------------------------------------------------

#: name of a mistake: the plan that makes it, and what to say.
PLAN_MISTAKES: dict[str, tuple[Callable[[int, int], list], str]] = {
    "one-round": (ex52_answers._one_round, "Nobody is dropped: that is one round for all of them."),
    "over-budget": (ex52_answers._no_shares, "Every round spends the whole budget."),
    "rounds-down": (ex52_answers._rounds_down, "Half of an odd number is rounded up."),
    "equal-readings": (ex52_answers._equal_readings, "The rounds get equal shares, so later rounds have more readings "
                       "for each."),
    "measures-one": (ex52_answers._last_one_too, "With one configuration left there is nothing to decide."),
    "totals": (ex52_answers._totals, "The second number is the readings of each, not of all together."),
}  # fmt: skip


def right_plan(n: int, budget: int) -> list[tuple[int, int]]:
    """The package's plan as pairs."""
    return [(stage.configurations, stage.readings) for stage in halving_plan(n, budget)]


def judge_plan(callee: Callee, seed: int | None) -> Verdict:
    """Every case; if the plans are those of a known mistake wherever they were tried, it is named."""
    rng = generator(seed, "plans")
    cases = list(PLANS)
    for _ in range(10):
        n = rng.randint(2, 200)
        cases.append((n, n * n.bit_length() + rng.randint(0, 3000)))
    given: list[list[tuple[int, int]]] = []
    for n, budget in cases:
        outcome = callee.collect(n, budget, limit=100)
        if outcome.failed:
            if "not iterable" in outcome.reason():
                return unexpected_result(callee, (n, budget), "that is no list of pairs")
            return call_failed(callee, (n, budget), outcome)
        plan = _pairs(outcome.value)
        if plan is None:
            return unexpected_result(callee, (n, budget), f"{result_text(outcome.value)} is no list of pairs of whole "
                                     "numbers")  # fmt: skip
        given.append(plan)
    wrong_at = next(
        (k for k, (case, plan) in enumerate(zip(cases, given, strict=True)) if plan != right_plan(*case)), None
    )
    if wrong_at is None:
        total = sum(s * r for s, r in right_plan(64, 4096))
        return right("Equal shares, and nobody who is left goes short.", ("readings for n = 64 of 4096", total))
    n, budget = cases[wrong_at]
    total = sum(s * r for s, r in given[wrong_at])
    facts = (("n", n), ("budget", budget), ("your plan", result_text(given[wrong_at])), ("readings in all", total))
    for name, (plan_of, message) in PLAN_MISTAKES.items():
        if given == [plan_of(*case) for case in cases]:
            return wrong(message, *facts, mistake=name)
    if total > budget:
        return wrong("That is more than the budget.", *facts, mistake="over-budget")
    return wrong("That is not the plan.", *facts)


def _pairs(value: Any) -> list[tuple[int, int]] | None:
    found = []
    for entry in itertools.islice(value, 101):
        whole = isinstance(entry, (tuple, list)) and len(entry) == 2
        if not whole or not all(isinstance(number, int) and not isinstance(number, bool) for number in entry):
            return None
        found.append((entry[0], entry[1]))
    return found
