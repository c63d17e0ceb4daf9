"""Answers to Exercise 46: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex46 import Variant


def products(x, w):
    for _ in range(w):
        x = x * x
    return x


def quotients(x, w):
    for _ in range(w):
        x = x / x
    return x


def logarithms(x, w):
    from staxlab.autodiff.straightline import log

    for _ in range(w):
        x = log(x)
    return x


def roots(x, w):
    from staxlab.autodiff.straightline import sqrt

    for _ in range(w):
        x = sqrt(x)
    return x


def tangents(x, w):
    from staxlab.autodiff.straightline import tanh

    for _ in range(w):
        x = tanh(x)
    return x


def sigmoids(x, w):
    from staxlab.autodiff.straightline import sigmoid

    for _ in range(w):
        x = sigmoid(x)
    return x


def sines(x, w):
    from staxlab.autodiff.straightline import sin

    for _ in range(w):
        x = sin(x)
    return x


def cosines(x, w):
    from staxlab.autodiff.straightline import cos

    for _ in range(w):
        x = cos(x)
    return x


DEAREST = {
    "*": products, "/": quotients, "log": logarithms, "sqrt": roots, "tanh": tangents, "sigmoid": sigmoids,
    "sin": sines, "cos": cosines,
}  # fmt: skip


def product_gradient(x):
    values = [x[0]]
    for factor in x[1:]:
        values.append(values[-1] * factor)
    adjoint, gradient = 1, []
    for k in range(len(x) - 1, 0, -1):
        gradient.insert(0, adjoint * values[k - 1])
        adjoint = adjoint * x[k]
    return [adjoint, *gradient]


WHY = """Forward mode carries one tangent: the derivative along one direction. A direction x_i tells nothing of the
others, so the n partial derivatives take n passes, and each pass goes through the whole program and costs at least W.
Reverse mode starts at the one output and goes back: each step hands its adjoint to all of its operands, so that the
adjoint of v_k, once it is complete, serves every input that v_k depends on. In terms of the Jacobian, which has one row
here and n columns: a forward pass gives a column, a reverse sweep a row (Proposition 5.2). With n outputs and one input
it would be the other way round. In return reverse mode needs the values of the forward sweep, last one first, and so
has to keep them."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex46_runs import factors

    smallest, largest = factors(variant.operations)
    return {
        "smallest_factor": int(smallest),
        "largest_factor": int(largest),
        "dearest": DEAREST[variant.operations[1]],
        "product_gradient": product_gradient,
        "reverse_cost": "5*(n - 1)",
        "independent_cost": "n*(n - 2)",
        "forward_cost": "4*n*(n - 1)",
        "why_forward": WHY,
    }


# There are as many products as factors.
HARMLESS = {
    "product_gradient": ("for k in range(len(x) - 1, 0, -1): -> for k in range(len(values) - 1, 0, -1):",),
}


def _one_more(x, w):
    for _ in range(w + 1):
        x = x * x
    return x


def _mixed(x, w):
    for k in range(w):
        x = x * x if k % 2 else 3 - x / (x + 1)
    return x


def _nothing(x, w):
    return x


def _a_constant(x, w):
    return 1.0


def _times_a_number(x, w):
    for _ in range(w):
        x = 2 * x
    return x


def _cheap(x, w):
    for _ in range(w):
        x = x + x
    return x


def _by_division(x):
    total = 1
    for factor in x:
        total = total * factor
    return [total / factor for factor in x]


def _by_itself(x):
    gradient = []
    for k in range(len(x)):
        total = 1
        for j in range(len(x)):
            if j != k:
                total = total * x[j]
        gradient.append(total)
    return gradient


def _backwards(x):
    gradient = []
    for k in range(len(x) - 1, -1, -1):
        total = 1
        for j in range(len(x)):
            if j != k:
                total = total * x[j]
        gradient.append(total)
    return gradient


def _prefixes(x):
    values = [1]
    for factor in x[:-1]:
        values.append(values[-1] * factor)
    return values


def _value_only(x):
    total = x[0]
    for factor in x[1:]:
        total = total * factor
    return total


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex46_runs import factors

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    smallest, largest = factors(variant.operations)
    slips = [
        slip("reverse-sweep-only", smallest_factor=int(smallest) - 1),
        slip("reverse-sweep-only", largest_factor=int(largest) - 1),
        slip("other-operation", dearest=_mixed),
        slip("wrong-form", dearest=_a_constant),
        slip("other-size", dearest=_nothing),
        slip("divides", product_gradient=_by_division),
        slip("too-many-operations", product_gradient=_by_itself),
        slip("opposite-order", product_gradient=_backwards),
        slip("wrong-derivative", product_gradient=_prefixes),
        slip("wrong-form", product_gradient=_value_only),
        slip("reverse-sweep-only", reverse_cost="4*(n - 1)"),
        slip("n-multiplications", reverse_cost="5*n"),
        slip("one-multiplication-too-many", independent_cost="n*(n - 1)"),
        slip("one-derivative", independent_cost="n - 2"),
        slip("one-pass", forward_cost="4*(n - 1)"),
        slip("values-once", forward_cost="(n - 1) + 3*n*(n - 1)"),
        slip("multiplications-only", forward_cost="3*n*(n - 1)"),
    ]
    if variant.operations == ("+", "*"):
        slips += [
            slip("other-size", dearest=_one_more),
            slip("not-the-dearest", dearest=_cheap),
            slip("not-the-dearest", dearest=_times_a_number),
        ]
    return tuple(slips)
