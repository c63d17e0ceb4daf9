"""What Exercise 43 computes: versions of drawn calls, counted over all histories, and what two strategies cost.

Where a list of sizes is short, an expectation is no formula here: every history of calls is gone through and weighed
with its probability, exactly. The formula of Proposition 13.5 (``staxlab.measure.amortize``) is used where there are
too many histories, and the tests hold one against the other.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from ...measure.amortize import bucket, expected_versions
from ..algebra import values_agree
from ..answers import Callee, Malformed, as_number
from ..feedback import Verdict, right, wrong
from ..formula import Value
from ..judges import Slip, call_failed, number_text, unexpected_result
from ..variants import generator
from .ex25_runs import different

if TYPE_CHECKING:
    from .ex43 import Variant

Distribution = Sequence[Value]

BETWEEN = "between: neither for one call nor for arbitrarily many"
FROM_SOME_ON = "from some number of calls on, and then always"
UNTIL_SOME = "from the first call until some number of calls"
ALWAYS = "for every number of calls, if compiling takes longer than a call"


# --- Distributions ----------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def zipf(sizes: int) -> tuple[float, ...]:
    """Probabilities proportional to 1/s for s from 1 to ``sizes``."""
    total = math.fsum(1 / s for s in range(1, sizes + 1))
    return tuple(1 / s / total for s in range(1, sizes + 1))


def uniform(sizes: int) -> tuple[float, ...]:
    return (1 / sizes,) * sizes


def buckets(p: Distribution) -> tuple[Value, ...]:
    """The probability of each bucket, the smallest first; ``p[s - 1]`` is that of size s."""
    shares: dict[int, Value] = {}
    for size, chance in enumerate(p, 1):
        shares[bucket(size)] = shares.get(bucket(size), Fraction(0)) + chance
    return tuple(shares.values())


def mean_size(p: Distribution, padded: bool) -> Value:
    """The expected size of a call, or of its bucket."""
    return sum(((bucket(s) if padded else s) * chance for s, chance in enumerate(p, 1)), Fraction(0))


# --- Expectations over all histories ----------------------------------------------------------------------------------


@lru_cache(maxsize=256)
def over_histories(p: tuple[Fraction, ...], calls: int) -> tuple[Fraction, Fraction, Fraction, Fraction]:
    """Expected (versions, versions with buckets, sum of sizes, sum of bucket sizes), each history weighed. Exact."""
    sums = [Fraction(0)] * 4
    possible = [(size, chance) for size, chance in enumerate(p, 1) if chance]
    for history in itertools.product(possible, repeat=calls):
        weight = math.prod((chance for _, chance in history), start=Fraction(1))
        sizes = [size for size, _ in history]
        padded = [bucket(size) for size in sizes]
        for k, value in enumerate((len(set(sizes)), len(set(padded)), sum(sizes), sum(padded))):
            sums[k] += weight * value
    return sums[0], sums[1], sums[2], sums[3]


def versions(p: Distribution, m: int) -> Value:
    """E[K_m] when every size is compiled for itself."""
    return over_histories(tuple(p), m)[0] if is_small(p, m) else expected_versions([float(x) for x in p], m)


def total(p: Distribution, m: int, C: Value, alpha: Value, padded: bool) -> Value:
    """Expected duration of m calls, by either strategy: ``C`` for each version, ``alpha`` times the size for a call."""
    if is_small(p, m):
        counted = over_histories(tuple(p), m)
        return C * counted[1 if padded else 0] + alpha * counted[3 if padded else 2]
    chances = [float(x) for x in (buckets(p) if padded else p)]
    return float(C) * expected_versions(chances, m) + m * float(alpha) * float(mean_size(p, padded))


def is_small(p: Distribution, m: int) -> bool:
    return all(isinstance(chance, Fraction) for chance in p) and len(p) ** m <= 1000


@lru_cache(maxsize=256)
def term(p: Fraction, m: int) -> Fraction:
    """The probability that a size of probability p is among m calls, over all histories of "this one" and "another"."""
    found = Fraction(0)
    for history in itertools.product((True, False), repeat=m):
        if any(history):
            found += math.prod(p if this_one else 1 - p for this_one in history)
    return found


def concave(counts: Sequence[int]) -> bool:
    """Whether increments never grow."""
    steps = [b - a for a, b in itertools.pairwise(counts)]
    return all(a >= b for a, b in itertools.pairwise(steps))


# --- Where bucketing wins ---------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Truth:
    """The right numbers for a variant. ``least_cost`` in milliseconds."""

    zipf_versions: float
    uniform_versions: float
    least_cost: float
    last_win: int


@lru_cache(maxsize=64)
def truth_of(variant: Variant) -> Truth:
    p, m = zipf(variant.sizes), variant.calls
    return Truth(
        expected_versions(p, m),
        expected_versions(uniform(variant.sizes), m),
        1e3 * cost_threshold(p, m, variant.alpha),
        last_win(p, variant.cost, variant.alpha),
    )


def cost_threshold(p: Distribution, m: int, alpha: float) -> float:
    """The compilation cost above which m calls are cheaper with buckets."""
    saved = expected_versions(p, m) - expected_versions(buckets(p), m)
    return m * alpha * float(mean_size(p, True) - mean_size(p, False)) / saved


def last_win(p: Distribution, C: float, alpha: float) -> int:
    """The largest number of calls for which buckets are strictly cheaper; 0 if there is none.

    The versions saved never become fewer (a call that needs a new bucket needs a new size as well), and what padding
    costs grows with every call. So from a number that is too large, the number of calls that pay for the versions saved
    until then is again too large or the answer, and smaller.
    """
    padding = alpha * float(mean_size(p, True) - mean_size(p, False))
    calls = math.ceil(C * len(p) / padding)
    while calls > 0:
        saved = C * (expected_versions(p, calls) - expected_versions(buckets(p), calls))
        paid = math.ceil(saved / padding) - 1
        if paid >= calls:
            return calls
        calls = paid
    return 0


# --- Slips ------------------------------------------------------------------------------------------------------------


@lru_cache(maxsize=64)
def zipf_slips(variant: Variant) -> tuple[Slip, ...]:
    n, m = variant.sizes, variant.calls
    raw = 1 + math.fsum(1 - (1 - 1 / s) ** m for s in range(2, n + 1))
    shape = "Sizes are not equally likely here."
    return _apart(
        truth_of(variant).zipf_versions,
        Slip("not-normalized", raw, "The numbers 1/s do not sum to 1: divide them by their sum."),
        Slip("uniform", expected_versions(uniform(n), m), shape),
        Slip("upper-bound", float(min(m, n)), "That is the bound of Part 2, not the expectation."),
        Slip("missing-sizes", n - expected_versions(zipf(n), m), "That many sizes are expected not to occur."),
    )


@lru_cache(maxsize=64)
def uniform_slips(variant: Variant) -> tuple[Slip, ...]:
    n, m = variant.sizes, variant.calls
    return _apart(
        truth_of(variant).uniform_versions,
        Slip("zipf", expected_versions(zipf(n), m), "Here all sizes are equally likely."),
        Slip("upper-bound", float(min(m, n)), "That is the bound of Part 2, not the expectation."),
        Slip("missing-sizes", n - expected_versions(uniform(n), m), "That many sizes are expected not to occur."),
    )


@lru_cache(maxsize=64)
def cost_slips(variant: Variant) -> tuple[Slip, ...]:
    """In milliseconds."""
    p, m, alpha = zipf(variant.sizes), variant.calls, variant.alpha
    truth = truth_of(variant).least_cost
    bound = m * alpha * float(mean_size(p, True) - mean_size(p, False))
    all_padded = m * alpha * float(mean_size(p, True))
    saved = expected_versions(p, m) - expected_versions(buckets(p), m)
    return _apart(
        truth,
        Slip("one-version", 1e3 * bound, "That is what padding costs in all. How many versions does it save?"),
        Slip("whole-work", 1e3 * all_padded / saved, "Without buckets a call costs something, too: only the padding "
             "counts."),
        Slip("versions-not-saved", 1e3 * bound / expected_versions(p, m), "Buckets are compiled as well."),
        Slip("seconds", truth / 1e3, "In milliseconds, please."),
    )  # fmt: skip


@lru_cache(maxsize=64)
def last_slips(variant: Variant) -> tuple[Slip, ...]:
    p, cost, alpha = zipf(variant.sizes), variant.cost, variant.alpha
    padding = alpha * float(mean_size(p, True) - mean_size(p, False))
    work = alpha * float(mean_size(p, True))
    truth = truth_of(variant).last_win
    missing = Slip("buckets-free", math.ceil(cost * len(p) / padding) - 1, "Buckets are compiled as well.")
    return different(
        Fraction(truth),
        (
            missing,
            Slip("first-loss", truth + 1, "There bucketing no longer wins.", Fraction(1, 2)),
            Slip("whole-work", math.ceil(cost * (len(p) - len(buckets(p))) / work) - 1,
                 "Without buckets a call costs something, too: only the padding counts."),
        ),
    )  # fmt: skip


def _apart(truth: float, *slips: Slip) -> tuple[Slip, ...]:
    """The slips that are off by more than a hundredth of the truth: nearer ones may be rounding."""
    return tuple(slip for slip in slips if abs(slip.answer - truth) > 0.01 * abs(truth))


# --- The students' functions ------------------------------------------------------------------------------------------


def small_cases(seed: int | None) -> list[tuple[list[Fraction], int]]:
    """Short distributions and numbers of calls, simplest first: for these every history is gone through."""
    half, third, quarter = Fraction(1, 2), Fraction(1, 3), Fraction(1, 4)
    cases = [
        ([Fraction(1)], 1),
        ([half, half], 0),
        ([half, half], 1),
        ([half, half], 2),
        ([third, 0 * third, 2 * third], 2),
        ([quarter, quarter, quarter, quarter], 3),
        ([0 * half, 0 * half, half, half], 3),  # two sizes, one bucket
    ]
    rng = generator(seed, "distributions")
    for _ in range(6):
        weights = [rng.randint(0, 4) for _ in range(rng.randint(3, 5))]
        weights[-1] += 1
        cases.append(([Fraction(w, sum(weights)) for w in weights], rng.randint(2, 4)))
    return cases


def judge_versions(callee: Callee, seed: int | None) -> Verdict:
    """The student's E[K_m] against going through all histories, and against the package's where they are too many."""
    cases: list[tuple[Any, ...]] = [*small_cases(seed), (list(zipf(300)), 700), (list(uniform(200)), 1000)]
    mistakes: dict[str, tuple[Callable[..., Value], str]] = {
        "upper-bound": (lambda p, m: Fraction(min(m, sum(x > 0 for x in p))), "That is the bound of Part 2."),
        "missing-sizes": (
            lambda p, m: sum(((1 - x) ** m for x in p), Fraction(0)),
            "That many sizes are expected not to occur.",
        ),
        "calls-repeat": (
            lambda p, m: sum((min(Fraction(1), m * Fraction(x)) for x in p), Fraction(0)),
            "A size may occur several times among the calls: m p is how often it is expected, not how likely it is.",
        ),
        "one-call-less": (lambda p, m: versions(p, max(m - 1, 0)), "That is after one call less."),
    }
    return _judge_values(callee, cases, versions, mistakes, "Every history of calls says the same.")


def judge_total(callee: Callee, seed: int | None, padded: bool) -> Verdict:
    """The student's expected duration of m calls."""
    costs = [(Fraction(c), Fraction(a)) for c, a in ((7, 1), (0, 1), (5, 0), (3, 2))]
    cases: list[tuple[Any, ...]] = [
        (p, m, *costs[k % len(costs)]) for k, (p, m) in enumerate(small_cases(seed))
    ]  # fmt: skip
    cases.append((list(zipf(300)), 700, 1.2, 1e-4))

    def other(versions_padded: bool, calls_padded: bool) -> Callable[..., Value]:
        def duration(p: Distribution, m: int, C: Value, alpha: Value) -> Value:
            return total(p, m, C, 0 * alpha, versions_padded) + total(p, m, 0 * C, alpha, calls_padded)

        return duration

    def once(p: Distribution, m: int, C: Value, alpha: Value) -> Value:
        return total(p, m, C, 0 * alpha, padded) + total(p, 1, 0 * C, alpha, padded)

    def highest(p: Distribution, m: int, C: Value, alpha: Value) -> Value:
        return C * sum(x > 0 for x in buckets(p)) + total(p, m, 0 * C, alpha, padded)

    def every_call(p: Distribution, m: int, C: Value, alpha: Value) -> Value:
        return C * m + total(p, m, 0 * C, alpha, padded)

    mistakes: dict[str, tuple[Callable[..., Value], str]] = {
        "calls-not-padded": (other(True, False), "A call computes the whole bucket, padding included."),
        "versions-not-bucketed": (other(False, True), "Sizes in one bucket share a version."),
        "the-other-strategy": (other(not padded, not padded), "That is what the other strategy takes."),
        "one-call": (once, "The work is done at every call; only compiling is not."),
        "every-call-compiles": (every_call, "A version that is there is not compiled again."),
    }
    if padded:
        message = "Not every bucket need occur: their number is only an upper bound."
        mistakes["all-buckets"] = (highest, message)
    return _judge_values(
        callee, cases, lambda *case: total(*case, padded), mistakes, "Every history of calls says the same."
    )


def _judge_values(
    callee: Callee,
    cases: Sequence[tuple[Any, ...]],
    truth: Callable[..., Value],
    mistakes: dict[str, tuple[Callable[..., Value], str]],
    praise: str,
) -> Verdict:
    given: list[Value] = []
    for case in cases:
        p, *more = case
        outcome = callee.call(list(p), *more)
        shown = (f"{len(p)} sizes" if len(p) > 8 else [str(x) for x in p], *map(str, more))
        if outcome.failed:
            return call_failed(callee, shown, outcome)
        try:
            given.append(as_number(outcome.value))
        except Malformed as error:
            return unexpected_result(callee, shown, str(error))
    for case, value in zip(cases, given, strict=True):
        expected = truth(*case)
        if values_agree(value, expected):
            continue
        p, *more = case
        sizes = f"{len(p)} sizes" if len(p) > 8 else ", ".join(map(str, p))
        facts = (("p", sizes), ("the rest", ", ".join(map(str, more))), ("yours", number_text(value)))
        for name, (mistaken, message) in mistakes.items():
            if all(values_agree(one, mistaken(*c)) for one, c in zip(given, cases, strict=True)):
                return wrong(message, *facts, mistake=name)
        much = "less" if expected < value else "more"
        return wrong("Not the expectation.", *facts, ("the value is", f"{much} than that"))
    return right(praise, ("compared at", f"{len(cases)} distributions"))


def judge_history(sizes: Sequence[Value]) -> Verdict:
    """Whether the versions counted along the student's history of calls are no concave function of m."""
    if any(size != int(size) or size < 1 for size in sizes):
        return wrong("Sizes are whole numbers from 1 on.", mistake="no-sizes")
    counts = [len(set(sizes[:m])) for m in range(len(sizes) + 1)]
    fact = ("K_0, K_1, ...", ", ".join(map(str, counts[:20])) + (", ..." if len(counts) > 20 else ""))
    if concave(counts):
        return wrong("Its increments never grow: this K is concave.", fact, mistake="concave")
    return right("One history need not be concave; the expectation over all of them is.", fact)
