"""Answers to Exercise 14: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex14 import Variant


def merge(a, b):
    if b[0] == 0:
        return a
    n, d = a[0] + b[0], b[1] - a[1]
    return n, a[1] + d * b[0] / n, a[2] + b[2] + d * d * a[0] * b[0] / n


def sums(t):
    return t[0], t[0] * t[1], t[2] + t[0] * t[1] * t[1]


def cancelling(n):
    return [70000.0 + k % 2 for k in range(n)]


ALGEBRA = """sums maps a triple to (n, sum of x, sum of x^2), and this map can be undone: the mean is S/n, and
M2 = Q - S^2/n (the empty triple goes to (0, 0, 0) and back). By the cross term, sums(merge(a, b)) = sums(a) + sums(b):
the counts and sums of two segments add up by definition, and so do the squares. So merge is addition in other
coordinates. Addition of triples is associative and commutative and has the zero, hence merge has all three, with the
empty segment as the neutral element: sums(merge(merge(a, b), c)) = sums(a) + sums(b) + sums(c) =
sums(merge(a, merge(b, c))), and sums is one to one."""

STABLE = """Q - S^2/n subtracts two numbers of size n (mu^2 + v) to get one of size n v. Both have been rounded, with
relative errors of u or more, and relative to the difference these are (mu^2 + v)/v times as large. When mu^2 is 1/u
times the variance, the roundings are as large as the result: it can be anything, even negative. Merging subtracts, too,
but it subtracts means, before anything is squared: numbers near each other, whose difference is exact or nearly so. And
then it adds terms that are not negative, so nothing cancels, and errors stay relative to M2 itself (to the extent that
the means are known: they are rounded to u mu)."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex14_runs import first_failing_mean, merged

    return {
        "merged_triple": [str(number) for number in merged(variant.first, variant.second)],
        "merge": merge,
        "sums": sums,
        "cross_term": [
            "p*(q*d/(p + q))**2 + q*(p*d/(p + q))**2",
            "= p*q*d**2*(q + p)/(p + q)**2",
            "= p*q*d**2/(p + q)",
        ],
        "why_algebra": ALGEBRA,
        "amplification": "(mu**2 + v)/v",
        "failing_mean": first_failing_mean(variant.variance),
        "cancelling": cancelling,
        "why_stable": STABLE,
    }


# Other numbers of that kind.
HARMLESS = {
    "cancelling": tuple(
        f"return [70000.0 + k % 2 for k in range(n)] -> return [{other} for k in range(n)]"
        for other in ("70000.0 - k % 2", "70001.0 + k % 2", "69999.0 + k % 2", "70000.0 + k % 3")
    ),
}


def _unweighted(a, b):
    return a[0] + b[0], (a[1] + b[1]) / 2, a[2] + b[2]


def _no_cross_term(a, b):
    if a[0] + b[0] == 0:
        return a
    n = a[0] + b[0]
    return n, (a[0] * a[1] + b[0] * b[1]) / n, a[2] + b[2]


def _divides(a, b):
    n, d = a[0] + b[0], b[1] - a[1]
    return n, a[1] + d * b[0] / n, a[2] + b[2] + d * d * a[0] * b[0] / n


def _whole_weight(a, b):
    if a[0] + b[0] == 0:
        return a
    n, d = a[0] + b[0], b[1] - a[1]
    return n, a[1] + d * b[0] / n, a[2] + b[2] + d * d


def _second_only(a, b):
    return b


def _floats(a, b):
    return float(a[0] + b[0]), 0.0, 0.0


def _central(t):
    return t[0], t[0] * t[1], t[2]


def _mean(t):
    return t[0], t[1], t[2] + t[0] * t[1] * t[1]


def _mean_squared_once(t):
    return t[0], t[0] * t[1], t[2] + t[1] * t[1]


def _near_zero(n):
    return [k % 2 * 2.0 for k in range(n)]


def _too_far(n):
    return [1e9 + k % 2 for k in range(n)]


def _equal(n):
    return [70000.0] * n


def _too_many(n):
    return [70000.0 + k % 2 for k in range(n + 1)]


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    own = reference(variant)
    (n_a, mean_a, m2_a), (n_b, mean_b, m2_b) = variant.first, variant.second
    n, mean, m2 = own["merged_triple"]
    steps = own["cross_term"]

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    return (
        slip("no-cross-term", merged_triple=[n, mean, m2_a + m2_b]),
        *([slip("unweighted-mean", merged_triple=[n, Fraction(mean_a + mean_b, 2), m2])] if n_a != n_b else []),
        slip("unweighted-mean", merge=_unweighted),
        slip("no-cross-term", merge=_no_cross_term),
        slip("empty-segment", merge=_divides),
        slip("wrong-moment", merge=_whole_weight),
        slip("wrong-count", merge=_second_only),
        slip("wrong-form", merge=_floats),
        slip("central-moment", sums=_central),
        slip("wrong-sum", sums=_mean),
        slip("wrong-squares", sums=_mean_squared_once),
        slip("wrong-start", cross_term=["(p + q)*d**2", *steps[1:]]),
        slip("wrong-step", cross_term=[steps[0], "= p*q*d**2*(q - p)/(p + q)**2", steps[2]]),
        slip("wrong-end", cross_term=steps[:2] + ["= p*q*d**2/(p + q)", "<= p*q*d**2"]),
        slip("repeated-step", cross_term=[steps[0], steps[0], *steps[1:]]),
        slip("variance-forgotten", amplification="mu**2/v"),
        slip("not-squared", amplification="mu/sqrt(v)"),
        slip("whole-variance", amplification="mu**2 + v"),
        slip("one-power-less", failing_mean=own["failing_mean"] // 2),
        slip("one-power-more", failing_mean=2 * own["failing_mean"]),
        slip("no-cancellation", cancelling=_near_zero),
        slip("other-variance", cancelling=_too_far),
        slip("other-variance", cancelling=_equal),
        slip("wrong-form", cancelling=_too_many),
    )
