"""Answers to Exercise 23: the reference, and the mistakes that its checker must recognise by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex23 import Variant

INLINED = "subtraction and exponential"

SECOND = """The pair (m, d) of a row is final only when its last element has been seen, but the first result of the row
already needs it. By then the first elements are no longer in registers, since the row is too long for them; so they
have to be read again. What may help is the cache: the second pass follows directly, and a row of some ten thousand
floats, or what is left of it, may still be in L2, so that not all of the second reading comes from main memory."""


def elements(n: int, length: int) -> list[list[int]]:
    whole = n * length
    return [[whole, n], [whole + n, whole], [whole, whole], [whole, n], [whole + n, whole]]


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    return {
        "elements": elements(variant.n, variant.length),
        "five_bytes": "4*(8*n*L + 4*n)",
        "fused_bytes": "8*n*L",
        "ratio": "4 + 2/L",
        "ratio_limit": 4,
        "kernels": 3,
        "unfused_bytes": "4*(4*n*L + 5*n)",
        "inlined": INLINED,
        "two_pass": 3,
        "online": 2,
        "long_ratio": "(8*L + 4)/(3*L)",
        "second_pass": SECOND,
    }


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    n, whole = variant.n, variant.n * variant.length
    return (
        slip("row-values-not-read", elements=[[whole, n], [whole, whole], [whole, whole], [whole, n], [whole, whole]]),
        slip("results-as-large", elements=[[whole, whole], [whole + n, whole], [whole, whole], [whole, whole],
                                           [whole + n, whole]]),
        slip("bytes-not-elements", elements=[[4 * a for a in row] for row in elements(n, variant.length)]),
        slip("elements-not-bytes", five_bytes="8*n*L + 4*n"),
        slip("row-values-forgotten", five_bytes="32*n*L"),
        slip("reads-only", five_bytes="4*(5*n*L + 2*n)"),
        slip("elements-not-bytes", fused_bytes="2*n*L"),
        slip("not-written", fused_bytes="4*n*L"),
        slip("read-twice", fused_bytes="12*n*L"),
        slip("upside-down", ratio="L/(4*L + 2)"),
        slip("limit-for-ratio", ratio="4"),
        slip("kernels-counted", ratio_limit=5),
        slip("not-divided", ratio_limit=8),
        slip("one-for-each-operator", kernels=5),
        slip("fused-all-the-same", kernels=1),
        slip("reductions-only", kernels=2),
        slip("five-kernels", unfused_bytes="4*(8*n*L + 4*n)"),
        slip("row-values-forgotten", unfused_bytes="16*n*L"),
        slip("elements-not-bytes", unfused_bytes="4*n*L + 5*n"),
        slip("chose-maximum-and-sum", inlined="maximum and sum"),
        slip("chose-exponential-and-division", inlined="exponential and division"),
        slip("results-forgotten", two_pass=2),
        slip("one-for-each-operator", two_pass=5),
        slip("results-forgotten", online=1),
        slip("not-merged", online=3),
        slip("read-once", long_ratio="4 + 2/L"),
        slip("two-pass", long_ratio="(2*L + 1)/L"),
        slip("upside-down", long_ratio="3*L/(8*L + 4)"),
    )  # fmt: skip
