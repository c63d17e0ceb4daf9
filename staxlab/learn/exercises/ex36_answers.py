"""Answers to Exercise 36: the reference, and the mistakes that its checker must recognise by name."""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex36 import Variant

WHY = """The minimum cut can only save what the program computes. Written by operators, the program has the nodes S, P
and O (and inside the softmax the maxima, the exponentials and the sums), but nothing that holds LSE, and no edge by
which P could be made from Q, K and LSE; a cut cannot invent either. Somebody has to know the identity P = exp(S - LSE),
and that knowledge is in the template. What is paid is one product more, S = Q K^T in the backward pass, and its
exponentials: arithmetic, which the tensor cores have to spare, for N^2 elements of memory and their traffic."""


def _counts(variant: Variant) -> tuple[int, int]:
    n, d, rows = variant.length, variant.head_size, variant.rows
    return 4 * n * n + 4 * n * d, 2 * n * d + 2 * -(-n // rows) * n * d + n


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    n, (operators, tiles) = variant.length, _counts(variant)
    return {
        "operator_order": "N*d + N**2",
        "tiled_order": "N**2*d**2/C",
        "leading_ratio": f"{variant.capacity}/{variant.head_size**2}",
        "operator_elements": "4*N**2 + 4*N*d",
        "tiled_elements": "2*k*B*d + 2*k**2*B*d + k*B",
        "counted_ratio": f"{operators}/{tiles}",
        "p_bytes": 2 * n * n,
        "lse_bytes": 4 * n,
        "kept_ratio": "N/2",
        "why_the_template": WHY,
    }


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    n, d, capacity = variant.length, variant.head_size, variant.capacity
    operators, tiles = _counts(variant)

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    return (
        slip("matrices-forgotten", operator_order="N*d"),
        slip("constants-kept", operator_order="4*N**2 + 4*N*d"),
        slip("operands-forgotten", operator_order="N**2"),
        slip("one-d-forgotten", tiled_order="N**2*d/C"),
        slip("storage-forgotten", tiled_order="N**2*d"),
        slip("upside-down", leading_ratio=f"{d * d}/{capacity}"),
        slip("d-not-squared", leading_ratio=f"{capacity}/{d}"),
        slip("storage-in-bytes", leading_ratio=f"{2 * capacity}/{d * d}"),
        slip("with-operands", leading_ratio=str(Fraction(capacity, d * d) * (1 + Fraction(d, n)))),
        slip("written-once", operator_elements="2*N**2 + 4*N*d"),
        slip("softmax-forgotten", operator_elements="3*N**2 + 4*N*d"),
        slip("order", operator_elements="N*d + N**2"),
        slip("lse-forgotten", tiled_elements="2*k*B*d + 2*k**2*B*d"),
        slip("values-forgotten", tiled_elements="2*k*B*d + k**2*B*d + k*B"),
        slip("read-once", tiled_elements="4*k*B*d + k*B"),
        slip("queries-again", tiled_elements="k*B*d + 3*k**2*B*d + k*B"),
        slip("leading-order", counted_ratio=f"{capacity}/{d * d}"),
        slip("upside-down", counted_ratio=f"{tiles}/{operators}"),
        slip("operands-forgotten", counted_ratio=f"{4 * n * n}/{tiles}"),
        slip("elements-not-bytes", p_bytes=n * n),
        slip("in-float32", p_bytes=4 * n * n),
        slip("rows-of-values", p_bytes=2 * n * d),
        slip("elements-not-bytes", lse_bytes=n),
        slip("in-float16", lse_bytes=2 * n),
        slip("one-for-each-element", lse_bytes=4 * n * d),
        slip("elements-not-bytes", kept_ratio="N"),
        slip("upside-down", kept_ratio="2/N"),
        slip("bytes-the-wrong-way", kept_ratio="2*N"),
    )
