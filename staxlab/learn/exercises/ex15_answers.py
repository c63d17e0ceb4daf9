"""Answers to Exercise 15: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex15 import Variant

IDENTITY = "(-inf, 0, 0)"


def merge(x, y, exp, maximum):
    mu = maximum(x[0], y[0])
    total, gathered = 0, 0
    for m, l, a in (x, y):
        factor = 1 if m == mu else exp(m - mu)
        total = total + l * factor
        gathered = gathered + a * factor
    return mu, total, gathered


def gradients(q, k, v, out, lse, d_out):
    scale = q.shape[1] ** -0.5
    p = (scale * (q @ k.mT) - lse[:, None]).exp()
    d_p = d_out @ v.mT
    delta = (d_out * out).sum(1)
    d_s = p * (d_p - delta[:, None])
    return scale * (d_s @ k), scale * (d_s.mT @ q), p.mT @ d_out


LAWS = """Write a state as (m, l exp(m), a exp(m)) instead of (m, l, a). That loses nothing, since exp(m) is not 0 as
long as a key is visible. Merging (m1, l1, a1) and (m2, l2, a2) gives l = l1 exp(m1 - mu) + l2 exp(m2 - mu), so l
exp(mu) = l1 exp(m1) + l2 exp(m2), and the same for a. In the new form merging is therefore the maximum of the first and
the sum of the second and third entries, and each of these is associative and commutative; so is merging. A segment
without keys has m = -inf, l = 0, a = 0: mu is the other's maximum, its own factor exp(-inf) is 0 and the other's is 1.
If both are without keys, -inf - (-inf) is no number, and the factor is taken to be 1, or anything, as it multiplies
zeros."""

ONE_BLOCK = """By the derivative of a softmax, dS_ij = P_ij (dP_ij - sum_k P_ik dP_ik), where the sum runs over the
whole row. With dP = dO V^T it is sum_k P_ik sum_c dO_ic V_kc = sum_c dO_ic sum_k P_ik V_kc = sum_c dO_ic O_ic = D_i,
because O = P V. So the sum over the row is hidden in O, which was computed by walking along all keys, and D is known
before the first block. What is left belongs to the block: P_ij = exp(S_ij - LSE_i) from its own scores, LSE having seen
all keys, and dP_ij from dO and its own values. dk and dv of the block are complete; dq is a sum over blocks."""


def _merged(variant: Variant) -> list[Any]:
    (m, l, a), (n, k, b) = variant.first, variant.second
    mu = max(m, n)
    return [mu, f"{l}*exp({m - mu}) + {k}*exp({n - mu})", f"{a}*exp({m - mu}) + ({b})*exp({n - mu})"]


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    return {
        "merged": _merged(variant),
        "identity": IDENTITY,
        "merge": merge,
        "laws": LAWS,
        "lse": "m + log(l)",
        "p_from_lse": "exp(S - LSE)",
        "same_m": [[0, 1, 1], [0, 1, 0]],
        "same_l": [[0, 1], [0, -1]],
        "d_score": "P*(dP - D)",
        "d_score_with_lse": "P*(dP - D + L)",
        "gradients": gradients,
        "one_block": ONE_BLOCK,
    }


# Rows of q and of k are equally long.
HARMLESS = {"gradients": ("scale = q.shape[1] ** (-0.5) -> scale = k.shape[1] ** (-0.5)",)}


def added(x, y, exp, maximum):
    return maximum(x[0], y[0]), x[1] + y[1], x[2] + y[2]


def values_not_rescaled(x, y, exp, maximum):
    mu = maximum(x[0], y[0])
    factors = [1 if m == mu else exp(m - mu) for m in (x[0], y[0])]
    return mu, x[1] * factors[0] + y[1] * factors[1], x[2] + y[2]


def inverse_factor(x, y, exp, maximum):
    mu = maximum(x[0], y[0])
    factors = [1 if m == mu else exp(mu - m) for m in (x[0], y[0])]
    return mu, x[1] * factors[0] + y[1] * factors[1], x[2] * factors[0] + y[2] * factors[1]


def first_maximum(x, y, exp, maximum):
    factor = 1 if x[0] == y[0] else exp(y[0] - x[0])
    return x[0], x[1] + y[1] * factor, x[2] + y[2] * factor


def normalized(x, y, exp, maximum):
    mu = maximum(x[0], y[0])
    factors = [1 if m == mu else exp(m - mu) for m in (x[0], y[0])]
    total = x[1] * factors[0] + y[1] * factors[1]
    return mu, total, (x[2] * factors[0] + y[2] * factors[1]) / (total if total != 0 else 1)


def unguarded(x, y, exp, maximum):
    mu = maximum(x[0], y[0])
    factors = [exp(m - mu) for m in (x[0], y[0])]
    return mu, x[1] * factors[0] + y[1] * factors[1], x[2] * factors[0] + y[2] * factors[1]


def own_functions(x, y, exp, maximum):
    import math

    mu = max(x[0], y[0])
    factors = [1 if m == mu else math.exp(m - mu) for m in (x[0], y[0])]
    return mu, x[1] * factors[0] + y[1] * factors[1], x[2] * factors[0] + y[2] * factors[1]


def _pair(x, y, exp, maximum):
    return maximum(x[0], y[0]), x[1] + y[1]


def softmax_of_the_block(q, k, v, out, lse, d_out):
    scale = q.shape[1] ** -0.5
    p = (scale * (q @ k.mT)).softmax(-1)
    d_s = p * (d_out @ v.mT - (d_out * out).sum(1)[:, None])
    return scale * (d_s @ k), scale * (d_s.mT @ q), p.mT @ d_out


def sum_over_the_block(q, k, v, out, lse, d_out):
    scale = q.shape[1] ** -0.5
    p = (scale * (q @ k.mT) - lse[:, None]).exp()
    d_p = d_out @ v.mT
    d_s = p * (d_p - (p * d_p).sum(1)[:, None])
    return scale * (d_s @ k), scale * (d_s.mT @ q), p.mT @ d_out


def row_term_forgotten(q, k, v, out, lse, d_out):
    scale = q.shape[1] ** -0.5
    p = (scale * (q @ k.mT) - lse[:, None]).exp()
    d_s = p * (d_out @ v.mT)
    return scale * (d_s @ k), scale * (d_s.mT @ q), p.mT @ d_out


def scale_forgotten(q, k, v, out, lse, d_out):
    scale = q.shape[1] ** -0.5
    p = (scale * (q @ k.mT) - lse[:, None]).exp()
    d_s = p * (d_out @ v.mT - (d_out * out).sum(1)[:, None])
    return d_s @ k, d_s.mT @ q, p.mT @ d_out


def _no_gradients(q, k, v, out, lse, d_out):
    return q


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex15_runs import merged_slips

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    return (
        *(slip(s.name, merged=list(s.answer)) for s in merged_slips(variant)),
        slip("chose-(0,-0,-0)", identity="(0, 0, 0)"),
        slip("chose-(-inf,-1,-0)", identity="(-inf, 1, 0)"),
        slip("added", merge=added),
        slip("values-not-rescaled", merge=values_not_rescaled),
        slip("inverse-factor", merge=inverse_factor),
        slip("first-maximum", merge=first_maximum),
        slip("normalized", merge=normalized),
        slip("nothing-seen", merge=unguarded),
        slip("own-functions", merge=own_functions),
        slip("wrong-form", merge=_pair),
        slip("sum-not-logarithm", lse="m + l"),
        slip("logarithm-alone", lse="log(l)"),
        slip("logarithm-of-both", lse="log(m*l)"),
        slip("upside-down", p_from_lse="exp(LSE - S)"),
        slip("divided-by-lse", p_from_lse="exp(S)/LSE"),
        slip("difference", p_from_lse="S - LSE"),
        slip("not-the-same", same_m=[[0, 1], [0, 2]]),
        slip("equal-probabilities", same_m=[[0, 1, 0], [0, 1, 0]]),
        slip("other-score", same_m=[[0, 1], [1, 1]]),
        slip("not-the-same", same_l=[[0, 1, 1], [0, 1, 0]]),
        slip("equal-probabilities", same_l=[[0, 1], [0, 1]]),
        slip("other-score", same_l=[[0, 1], [5, 6]]),
        slip("row-term-forgotten", d_score="P*dP"),
        slip("sign", d_score="P*(D - dP)"),
        slip("not-weighted", d_score="dP - D"),
        slip("diagonal-only", d_score="P*(1 - P)*dP"),
        slip("lse-forgotten", d_score_with_lse="P*(dP - D)"),
        slip("lse-not-weighted", d_score_with_lse="P*(dP - D) + L"),
        slip("lse-subtracted", d_score_with_lse="P*(dP - D - L)"),
        slip("softmax-of-the-block", gradients=softmax_of_the_block),
        slip("sum-over-the-block", gradients=sum_over_the_block),
        slip("row-term-forgotten", gradients=row_term_forgotten),
        slip("scale-forgotten", gradients=scale_forgotten),
        slip("wrong-form", gradients=_no_gradients),
    )
