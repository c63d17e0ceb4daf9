"""What Exercise 42 runs: first-order errors by exact expansion, sums in float32, and compensated ones."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy
import torch

from ...measure.rounding import error_model, pairwise, unit_roundoff
from ..algebra import values_agree
from ..answers import Callee, Malformed, as_number
from ..feedback import Verdict, right, wrong
from ..judges import Judge, Slip, call_failed, result_text, unexpected_result
from ..variants import generator

if TYPE_CHECKING:
    from .ex42 import Variant

HALF = Fraction(1, 2)
PER_CENT = Fraction(1, 100)


@lru_cache(maxsize=64)
def tree_variance(n: int, mean: int) -> Fraction:
    """The variance of a tree's error in units of that of one rounding, over all its additions: for numbers of variance
    1 where ``mean`` is 0, else for numbers that all are ``mean``."""
    model = error_model(pairwise(n), float(mean), 0.0 if mean else 1.0)
    return sum(map(Fraction, model.parts), Fraction(0))


# --- Growth -----------------------------------------------------------------------------------------------------------


def _power(ways: bool, mean: float) -> Fraction:
    """The power of n with which the model's standard deviation grows, from doublings at a large n, to the next half."""
    from ...measure.rounding import segmented

    deviation = 0.0 if mean else 1.0
    found = [
        error_model(segmented(n, 16, "pairwise") if ways else pairwise(n), mean, deviation).error_deviation
        for n in (2**18, 2**19)
    ]
    return Fraction(round(2 * math.log2(found[1] / found[0])), 2)


#: Rows: the tree, running sums. Columns: mean not zero, mean zero.
GROWTH = tuple(tuple(_power(ways, mean) for mean in (1.0, 0.0)) for ways in (False, True))


def growth_slips() -> tuple[Slip, ...]:
    variances = tuple(tuple(2 * power for power in row) for row in GROWTH)
    return (
        Slip("variances", variances, "These are powers of the variance. The standard deviation is its root."),
        Slip("exchanged", GROWTH[::-1], "The first row is the tree."),
        Slip("columns-exchanged", tuple(row[::-1] for row in GROWTH), "The first column is for a mean that is not 0."),
    )


# --- Deviations -------------------------------------------------------------------------------------------------------


def deviation_slips(variant: Variant, way: str) -> tuple[Slip, ...]:
    """Other deviations one may arrive at, as long as they are outside of one per cent."""
    truth = variant.deviation(way)
    found = [
        Slip("no-third", truth * math.sqrt(3), "A rounding is uniform on [-u, u]: its variance is u^2/3."),
        Slip("variance", truth**2, "That is the variance."),
        Slip("deviation-forgotten", truth / variant.spread, "That is for numbers of standard deviation 1."),
        Slip("double-precision", truth * 2.0**-29, "The unit roundoff of float32 is 2^-24."),
    ]
    unit = variant.spread * unit_roundoff() / math.sqrt(3)
    if way == "ways":
        alone = unit * variant.n / math.sqrt(2 * variant.ways)
        message = "That is the accumulation alone. The merge is added: its variance has n log2(W)."
        found.append(Slip("merge-forgotten", alone, message, HALF))
    if way == "tree":
        alone = unit * math.sqrt(variant.n)
        found.append(Slip("last-only", alone, "That is the last addition. The others round, too."))
    return tuple(slip for slip in found if abs(slip.answer - truth) > 2 * float(PER_CENT) * truth)


def judge_deviation(variant: Variant, way: str, slips: Sequence[Slip], seed: int | None) -> Judge:
    """Within one per cent; then the same sums in float32."""
    truth = variant.deviation(way)

    def near(value: Any, target: float) -> bool:
        return abs(float(value) - target) <= PER_CENT * target

    def judge(answer: Any) -> Verdict:
        if not near(answer, truth):
            yours = ("yours", f"{float(answer):.4g}")
            found = [slip for slip in slips if near(answer, slip.answer)]
            return found[0].verdict(yours) if found else wrong("Not this deviation.", yours)
        measured = measured_deviation(variant, way, seed)
        return right(
            "Right.",
            ("float32 sums, root mean square error of 100", f"{measured:.2e}"),
            ("measured over predicted", f"{measured / truth:.2f}, roundings being less than u of most sums"),
        )

    return judge


def measured_deviation(variant: Variant, way: str, seed: int | None, rows: int = 100) -> float:
    """The root mean square error of float32 sums in that order."""
    drawn = torch.Generator().manual_seed(generator(seed, "rows").randrange(2**31))
    values = variant.spread * torch.randn(rows, variant.n, generator=drawn)
    return float((variant.plans[way].run(values).double() - values.double().sum(-1)).square().mean().sqrt())


# --- The first-order error --------------------------------------------------------------------------------------------


def tree_error(a: Sequence[Fraction], d: Sequence[Fraction]) -> Fraction:
    """The exact error of a tree whose additions have the relative roundings ``d``, level by level."""
    exact, roundings = sum(a, Fraction(0)), iter(d)
    level = list(a)
    while len(level) > 1:
        level = [(level[k] + level[k + 1]) * (1 + next(roundings)) for k in range(0, len(level), 2)]
    return level[0] - exact


def expanded(a: Sequence[int], d: Sequence[int]) -> Fraction:
    """The part of :func:`tree_error` that is linear in the roundings: each by itself, the others being 0."""
    return sum(
        (tree_error(list(map(Fraction, a)), [Fraction(d[k] if i == k else 0) for i in range(len(d))])
         for k in range(len(d))),
        Fraction(0),
    )  # fmt: skip


def _levels(a: Sequence[int]) -> list[list[int]]:
    found = []
    level = list(a)
    while len(level) > 1:
        found.append(level)
        level = [level[k] + level[k + 1] for k in range(0, len(level), 2)]
    return found


def judge_first_order(callee: Callee, seed: int | None) -> Verdict:
    """The student's error against an exact expansion, for whole numbers."""
    rng = generator(seed, "tree")
    tried = []
    for levels in (1, 1, 2, 2, 3, 3, 4):
        a = [rng.randint(-9, 9) or 3 for _ in range(2**levels)]
        d = [rng.randint(-9, 9) or 2 for _ in range(2**levels - 1)]
        outcome = callee.call(list(a), list(d))
        if outcome.failed:
            return call_failed(callee, (a, d), outcome)
        try:
            tried.append((a, d, as_number(outcome.value)))
        except Malformed as problem:
            return unexpected_result(callee, (a, d), str(problem))
    wrongs = [case for case in tried if not values_agree(case[2], expanded(*case[:2]))]
    if not wrongs:
        return right("What the exact product has to first order.", ("tried", f"{len(tried)} trees, expanded exactly"))
    a, d, value = wrongs[0]
    facts = (("a", a), ("d", d), ("yours", f"{float(value):g}"))
    alternatives: tuple[tuple[str, str, Callable[[list[int], list[int]], Any]], ...] = (
        ("operands", "A rounding is relative to the result of its addition, not to an operand.",
         lambda a, d: sum(x * y for x, y in zip(d, (row[k] for row in _levels(a) for k in range(0, len(row), 2)),
                                                strict=True))),
        ("whole-sum", "Only the last addition has the whole sum as its result.", lambda a, d: sum(a) * sum(d)),
        ("running-sum", "That is one running sum; the tree adds in pairs.",
         lambda a, d: sum(d[k - 1] * sum(a[: k + 1]) for k in range(1, len(a)))),
        ("all-orders", "That is the whole error. To first order, products of two roundings are left out.",
         lambda a, d: tree_error(list(map(Fraction, a)), list(map(Fraction, d)))),
    )  # fmt: skip
    for name, message, rule in alternatives:
        if all(values_agree(given, Fraction(rule(a, d))) for a, d, given in tried):
            return wrong(message, *facts, mistake=name)
    return wrong("Not the first-order error.", *facts)


# --- Compensated summation --------------------------------------------------------------------------------------------

UNIFORM = "roundings are not uniform on [-u, u]"
INDEPENDENCE = "roundings enter later summands through c, so errors are not a sum of independent terms"
FIRST_ORDER = "terms of second order in u may not be dropped"
GROWS = "partial sums do not grow with the number of summands"
STEPS_42 = (UNIFORM, FIRST_ORDER, INDEPENDENCE, GROWS)
REASONS_42 = {
    UNIFORM: "That changes the variance by a factor, whatever n is. What does c hold?",
    FIRST_ORDER: "They are small here, too. What becomes of the first-order term of each addition?",
    GROWS: "They are the partial sums of the same numbers. What is different is what is added to them.",
}


def chosen(option: str) -> str:
    """The name that :func:`~staxlab.learn.judges.one_of` gives a wrong choice."""
    return f"chose-{option.replace(' ', '-')}"


def _compensated(x: Sequence[Any], sign: int = -1) -> Any:
    s, c = x[0], x[0] - x[0]
    for number in x[1:]:
        y = number + c if sign > 0 else number - c
        t = s + y
        c = (t - s) - y
        s = t
    return s


def _plain(x: Sequence[Any]) -> Any:
    s = x[0]
    for number in x[1:]:
        s = s + number
    return s


def float32_rows(seed: int | None) -> list[list[Any]]:
    """Numbers on which compensation shows: one large and many that are lost beside it, like ones, and mixed signs."""
    rng = generator(seed, "float32")
    one = numpy.float32
    return [
        [one(1.5)],
        [one(1.0), one(2.0)],
        [one(1.0)] + [one(2.0**-24)] * 1000,
        [one(0.1)] * 1500,
        [one(rng.uniform(0, 1)) for _ in range(1200)],
        [one(rng.gauss(0, 1)) for _ in range(1200)],
        [one(2.0**-12 * rng.random()) if k else one(4096.0) for k in range(1000)],
    ]


def judge_kahan(callee: Callee, seed: int | None) -> Verdict:
    """The student's sum on float32 numbers: its error may be ``2u + 4nu^2`` of ``sum(|a|)`` (Higham, 2002, "Accuracy
    and Stability of Numerical Algorithms", section 4.3), whatever n is."""
    u = unit_roundoff()
    tried = []
    for row in float32_rows(seed):
        with numpy.errstate(all="ignore"):  # what overflows comes out as infinity, and is judged
            outcome = callee.call(list(row))
        shown = (f"{len(row)} float32 numbers",)
        if outcome.failed:
            return call_failed(callee, shown, outcome)
        if not isinstance(outcome.value, (int, float, numpy.floating)) or isinstance(outcome.value, bool):
            return unexpected_result(callee, shown, f"{result_text(outcome.value)} is no float32 number")
        tried.append((row, float(outcome.value)))
    numbers = [list(map(float, row)) for row, _ in tried]
    errors = [abs(value - math.fsum(row)) for (_, value), row in zip(tried, numbers, strict=True)]
    rooms = [(2 * u + 4 * len(row) * u * u) * math.fsum(map(abs, row)) for row in numbers]
    late = [k for k, (error, room) in enumerate(zip(errors, rooms, strict=True)) if not error <= room]
    if not late:
        plain = max(abs(float(_plain(row)) - math.fsum(map(float, row))) for row, _ in tried)
        facts = (("largest error", f"{max(errors):.1e}"), ("of the plain sum", f"{plain:.1e}"))
        return right("The error stays below 2u of the magnitudes, for any number of summands.", *facts)
    row, value = tried[late[0]]
    facts = (("numbers", len(row)), ("yours", f"{value!r}"), ("off by", f"{errors[late[0]]:.2g}"),
             ("allowed", f"{rooms[late[0]]:.2g}"))  # fmt: skip
    alternatives: tuple[tuple[str, str, Callable[[Sequence[Any]], Any]], ...] = (
        ("no-compensation", "That is the plain running sum: nothing that was lost comes back.", _plain),
        ("wrong-sign", "The correction is what was added too much: it has to be subtracted.",
         lambda x: _compensated(x, 1)),
    )  # fmt: skip
    for name, message, rule in alternatives:
        if all(value == float(rule(x)) for x, value in tried):
            return wrong(message, *facts, mistake=name)
    return wrong("The error is larger than that of compensated summation.", *facts)
