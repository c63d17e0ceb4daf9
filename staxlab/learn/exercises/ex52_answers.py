"""Answers to Exercise 52: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex52 import Variant


def slow_corner(A):
    from itertools import product

    start = tuple(values[0] for values in A)
    times = {c: sum(c) for c in product(*A)}
    slowest = 2 * max(times.values())
    for k in range(len(A)):
        times[start[:k] + (A[k][1],) + start[k + 1 :]] = 2 * slowest
    times[start] = slowest
    return start, times


def halving(n, budget):
    sizes = []
    while n > 1:
        sizes.append(n)
        n = (n + 1) // 2
    return [(s, budget // (s * len(sizes))) for s in sizes]


REASONS = """To find out that a configuration is twice as slow takes two readings; to tell two apart that differ by one
percent takes many. Halving spends little on the first kind and saves the readings for the last few, so that the total
is n log n and not n squared. It can be wrong: in an early round a good configuration may have bad luck with its few
readings and be gone for good, and that has to be counted against the probability of Proposition 9.3. And whoever wins
among many is partly the one with the most luck, so its measured time is too good. Before it replaces the rule's
configuration, both should be measured again, in turns, many times, and it should be taken only if it is faster by more
than the noise can explain, which is 2 eta / (1 + eta). Otherwise the question is open and the rule's stays."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from ...runtime.autotune import fewest_samples, samples_needed
    from .ex52_runs import PICKING

    return {
        "draws_asked": samples_needed(variant.q, variant.delta),
        "draws_needed": fewest_samples(variant.q, variant.delta),
        "slow_corner": slow_corner,
        "noise_affects": PICKING,
        "halving": halving,
        "halving_total": "r * k * 2**k",
        "uniform_total": "r * 2**(2*k - 1)",
        "after_halving": REASONS,
    }


# Other times in the same order, or the same number by another name.
_SLOWEST, _NEAR = "slowest = 2 * max(times.values()) -> slowest = ", "times[start[:k] + (A[k][1],) + start[k + 1:]] = "
HARMLESS: dict[str, tuple[str, ...]] = {
    "slow_corner": (
        *(_SLOWEST + other for other in (
            "max(times.values())", "2 + max(times.values())", "3 * max(times.values())", "1 * max(times.values())",
        )),
        *(f"{_NEAR}2 * slowest -> {_NEAR}{other}" for other in (
            "slowest", "2 + slowest", "3 * slowest", "1 * slowest",
        )),
        "times = {c: sum(c) for c in product(*A)} -> times = {c: sum(start) for c in product(*A)}",
        "for k in range(len(A)): -> for k in range(len(start)):",
    ),
}  # fmt: skip


def _not_slow(A):
    from itertools import product

    start = tuple(values[0] for values in A)
    times = {c: sum(c) + 10 for c in product(*A)}
    times[start] = 10
    return start, times


def _walks_away(A):
    from itertools import product

    start = tuple(values[0] for values in A)
    return start, {c: 1000 / sum(c) for c in product(*A)}


def _all_equal(A):
    from itertools import product

    return tuple(values[0] for values in A), dict.fromkeys(product(*A), 1)


def _half_is_slow(A):
    from itertools import product

    start = tuple(values[0] for values in A)
    times = dict.fromkeys(product(*A), 100)
    times[start] = 50
    times[tuple(values[-1] for values in A)] = 1
    for c in times:
        if c[0] >= A[0][4]:
            times[c] = 20
    return start, times


def _holes(A):
    start = tuple(values[0] for values in A)
    return start, {start: 1}


def _no_pair(A):
    return 5


def _one_round(n, budget):
    return [(n, budget // n)] if n > 1 else []


def _no_shares(n, budget):
    plan = []
    while n > 1:
        plan.append((n, budget // n))
        n = (n + 1) // 2
    return plan


def _rounds_down(n, budget):
    sizes = []
    while n > 1:
        sizes.append(n)
        n = n // 2
    return [(s, budget // (s * len(sizes))) for s in sizes]


def _equal_readings(n, budget):
    sizes = []
    while n > 1:
        sizes.append(n)
        n = (n + 1) // 2
    return [(s, budget // sum(sizes)) for s in sizes]


def _last_one_too(n, budget):
    sizes = [n]
    while n > 1:
        n = (n + 1) // 2
        sizes.append(n)
    return [(s, budget // (s * len(sizes))) for s in sizes]


def _totals(n, budget):
    sizes = []
    while n > 1:
        sizes.append(n)
        n = (n + 1) // 2
    return [(s, budget // len(sizes)) for s in sizes]


def _numbers(n, budget):
    return n * budget


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex52_runs import BOTH, DRAWING, NOTHING, exact_slips, sample_slips

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    found = [slip(s.name, draws_asked=s.answer) for s in sample_slips(variant)]
    found += [slip(s.name, draws_needed=s.answer) for s in exact_slips(variant)]
    found += [slip(f"chose-{option.replace(' ', '-')}", noise_affects=option) for option in (DRAWING, BOTH, NOTHING)]
    return (
        *found,
        slip("not-slow", slow_corner=_not_slow),
        slip("walks-away", slow_corner=_walks_away),
        slip("all-equal", slow_corner=_all_equal),
        slip("not-slow", slow_corner=_half_is_slow),
        slip("holes", slow_corner=_holes),
        slip("wrong-form", slow_corner=_no_pair),
        slip("one-round", halving=_one_round),
        slip("over-budget", halving=_no_shares),
        slip("rounds-down", halving=_rounds_down),
        slip("equal-readings", halving=_equal_readings),
        slip("measures-one", halving=_last_one_too),
        slip("totals", halving=_totals),
        slip("wrong-form", halving=_numbers),
        slip("first-round", halving_total="r*2**k"),
        slip("one-round-more", halving_total="r*2**k*(k + 1)"),
        slip("halves-only", halving_total="r*(2**(k + 1) - 2)"),
        slip("one-doubling-more", uniform_total="r*4**k"),
        slip("first-round", uniform_total="r*2**k"),
        slip("all-rounds-summed", uniform_total="r*2**k*(2**k - 1)"),
    )
