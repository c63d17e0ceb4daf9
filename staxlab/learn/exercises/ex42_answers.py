"""Answers to Exercise 42: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex42 import Variant


def first_order(a, d):
    error, position = 0, 0
    while len(a) > 1:
        a = [a[k] + a[k + 1] for k in range(0, len(a), 2)]
        for partial in a:
            error = error + d[position] * partial
            position = position + 1
    return error


def kahan(x):
    s, c = x[0], x[0] - x[0]
    for number in x[1:]:
        y = number - c
        t = s + y
        c = (t - s) - y
        s = t
    return s


REASSOCIATION = """The correction (t - s) - y is a rounding error and nothing else: over the real numbers t = s + y
makes it 0. Reassociation is the permission to compute as if additions were exact, that is, to take such errors for
nothing; so a compiler that has it may replace c by 0 and then y by the number itself, and what is left is the plain
running sum, whose error grows with n. The program was written for the rounding that the rewrite ignores. What may be
done is to split the loop as a whole: several compensated sums side by side, each in the order it is written, and
their results added, as vector kernels do; each of the lanes keeps its own correction."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex42_runs import INDEPENDENCE

    return {
        "first_order": first_order,
        "tree_zero": "n*log2(n)",
        "tree_mean": "2*n*(n - 1)",
        "growth": [[1, "1/2"], ["3/2", 1]],
        **{f"{way}_42": variant.deviation(way) for way in variant.plans},
        "kahan": kahan,
        "which_step": INDEPENDENCE,
        "correction": "0",
        "no_reassociation": REASSOCIATION,
    }


HARMLESS: dict[str, tuple[str, ...]] = {}


def _operands(a, d):
    error, position = 0, 0
    while len(a) > 1:
        for k in range(0, len(a), 2):
            error = error + d[position] * a[k]
            position = position + 1
        a = [a[k] + a[k + 1] for k in range(0, len(a), 2)]
    return error


def _whole_sum(a, d):
    return sum(a) * sum(d)


def _one_running_sum(a, d):
    error, partial = 0, a[0]
    for k in range(1, len(a)):
        partial = partial + a[k]
        error = error + d[k - 1] * partial
    return error


def _all_orders(a, d):
    exact, position = sum(a), 0
    while len(a) > 1:
        a = [a[k] + a[k + 1] for k in range(0, len(a), 2)]
        for k in range(len(a)):
            a[k] = a[k] * (1 + d[position])
            position = position + 1
    return a[0] - exact


def _plain(x):
    s = x[0]
    for number in x[1:]:
        s = s + number
    return s


def _wrong_sign(x):
    s, c = x[0], x[0] - x[0]
    for number in x[1:]:
        y = number + c
        t = s + y
        c = (t - s) - y
        s = t
    return s


def _text(x):
    return "sum"


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex42_runs import FIRST_ORDER, GROWS, UNIFORM, chosen, deviation_slips, growth_slips

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    return (
        slip("operands", first_order=_operands),
        slip("whole-sum", first_order=_whole_sum),
        slip("running-sum", first_order=_one_running_sum),
        slip("all-orders", first_order=_all_orders),
        slip("last-only", tree_zero="n"),
        slip("sequential", tree_zero="n*(n + 1)/2 - 1"),
        slip("numbers-counted", tree_zero="n*(log2(n) + 1)"),
        slip("last-only", tree_mean="n**2"),
        slip("leading-term", tree_mean="2*n**2"),
        slip("sequential", tree_mean="n*(n + 1)*(2*n + 1)/6 - 1"),
        slip("all-levels-alike", tree_mean="n**2*log2(n)"),
        *(slip(s.name, growth=s.answer) for s in growth_slips()),
        *(
            slip(s.name, **{f"{way}_42": s.answer})
            for way in variant.plans
            for s in deviation_slips(variant, way)
        ),
        slip("no-compensation", kahan=_plain),
        slip("wrong-sign", kahan=_wrong_sign),
        slip("wrong-form", kahan=_text),
        *(slip(chosen(option), which_step=option) for option in (UNIFORM, FIRST_ORDER, GROWS)),
        slip("what-was-added", correction="y"),
        slip("wrong-sign", correction="2*y"),
    )
