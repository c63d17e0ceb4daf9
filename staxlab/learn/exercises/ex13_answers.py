"""Answers to Exercise 13: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex13 import Variant


def times(p, q):
    products = [a * b for a in p for b in q]
    return min(products), max(products)


def remainder(p, c):
    low, high = p
    if low // c == high // c:
        return low % c, high % c
    return 0, c - 1


def unproved(i, m):
    return i % m - i % (m // 2)


SOUND = """No. Proposition 6.4 goes one way: if the interval lies in the array, so do the values. It does not say that
the interval is the set of values. Here each remainder is bounded on its own, by [0, m - 1] and [0, m/2 - 1], and the
difference of the two intervals reaches below zero, because an interval does not remember that both remainders come from
the same i: pairs of values are subtracted that never occur together. Every rule is sound by itself, so the result is,
but what relates the operands is lost. The price is a check that never fails: a few instructions in the kernel. The
meaning of the program is the same with it; leaving it out where it is needed would read outside the array."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex13_runs import CHECK, NO_CHECK, quotient_facts, remainder_facts

    first = remainder_facts(variant.a, variant.b, variant.m, variant.extent, variant.size)
    second = quotient_facts(variant.q, variant.r, variant.extent, variant.size)
    return {
        "remainder_bounds": list(first[0]),
        "quotient_bounds": list(second[0]),
        "remainder_check": CHECK if first[1] else NO_CHECK,
        "quotient_check": CHECK if second[1] else NO_CHECK,
        "times": times,
        "remainder": remainder,
        "unproved": unproved,
        "no_contradiction": SOUND,
    }


# i mod m is never smaller than i mod 2 either.
HARMLESS = {"unproved": ("return i % m - i % (m // 2) -> return i % m - i % 2",)}


def _ends_only(p, q):
    return p[0] * q[0], p[1] * q[1]


def _magnitude(p, q):
    largest = max(abs(end) for end in p) * max(abs(end) for end in q)
    return -largest, largest


def _unordered(p, q):
    return p[1] * q[1], p[0] * q[0]


def _a_set(p, q):
    return {a * b for a in p for b in q}


def _ends_reduced(p, c):
    return p[0] % c, p[1] % c


def _always_all(p, c):
    return 0, c - 1


def _one_more(p, c):
    low, high = p
    return (low % c, high % c) if high - low < c and low % c <= high % c else (0, c)


def _in_range(i, m):
    return i % m


def _too_far(i, m):
    return i // 2


def _below_zero(i, m):
    return i % m - 1


def _square(i, m):
    return i % m * (i % m) % m


def _not_an_expression(i, m):
    return max(0, min(i, m - 1))


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    own = reference(variant)
    last = variant.extent - 1

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    def other(name: str) -> WrongAnswer:
        option = "check" if own[name] == "no check" else "no check"
        return slip(f"chose-{option.replace(' ', '-')}", **{name: option})

    return (
        slip("no-remainder", remainder_bounds=[variant.b, variant.a * last + variant.b]),
        slip("divisor-included", remainder_bounds=[0, variant.m]),
        slip("end-excluded", quotient_bounds=[variant.r, variant.extent // variant.q + variant.r]),
        slip("not-divided", quotient_bounds=[variant.r, last + variant.r]),
        other("remainder_check"),
        other("quotient_check"),
        slip("ends-multiplied", times=_ends_only),
        slip("too-wide", times=_magnitude),
        slip("unsound", times=_unordered),
        slip("wrong-form", times=_a_set),
        slip("ends-reduced", remainder=_ends_reduced),
        slip("too-wide", remainder=_always_all),
        slip("too-wide", remainder=_one_more),
        slip("proved", unproved=_in_range),
        slip("proved", unproved=_square),
        slip("out-of-range", unproved=_too_far),
        slip("out-of-range", unproved=_below_zero),
        slip("no-expression", unproved=_not_an_expression),
    )
