"""Answers to Exercise 25: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex25 import Variant


def largest_tile(S, B_K):
    T = 1
    while 4 * T * B_K + 4 * T * T <= S:
        T = 2 * T
    return T


WORTH = """What is saved, 2mn elements, does not depend on k, while what the product moves grows with k: so the share
is large for small k, where the product is near its bound of memory anyway and every byte counts in time. For large k
the product is bound by arithmetic, but the pointwise kernel after it is not: its time is bytes over bandwidth, and it
is added to that of the product. Tensor cores shorten the product and leave the pointwise kernel as it was, so its
part of the whole grows. The fused epilogue works on accumulators that are in registers, so it costs nearly nothing:
the bias is read, n elements, and the result is written once, as the product would have done."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex25_runs import saving_of, traffic_of

    traffic = traffic_of(variant)
    return {
        "tile_side_25": variant.side,
        "largest_tile": largest_tile,
        "reads_25": "2*n**2*ceil(n/T)",
        "bytes_25": traffic.nbytes,
        "intensity_25": str(traffic.intensity),
        "peak_25": str(traffic.peak_intensity),
        "saved_share": "2*T/(2*k + T)",
        "share_here": str(saving_of(variant).share),
        "worth_most": WORTH,
    }


HARMLESS: dict[str, tuple[str, ...]] = {}


def _no_operands(S, B_K):
    T = 1
    while 4 * T * T <= S:
        T = 2 * T
    return T


def _one_slice(S, B_K):
    T = 1
    while 2 * T * B_K + 4 * T * T <= S:
        T = 2 * T
    return T


def _too_large(S, B_K):
    T = 1
    while 2 * T * B_K + T * T <= S:
        T = 2 * T
    return T


def _strict(S, B_K):
    T = 1
    while 4 * T * B_K + 4 * T * T < S:
        T = 2 * T
    return T


def _any_side(S, B_K):
    T = 1
    while 2 * (T + 1) * B_K + (T + 1) * (T + 1) <= S:
        T = T + 1
    return T


def _text(S, B_K):
    return "128"


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex25_runs import saving_of, side_slips, traffic_of

    traffic, saving = traffic_of(variant), saving_of(variant)

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    return (
        *(slip(s.name, tile_side_25=s.answer) for s in side_slips(variant)),
        slip("operands-forgotten", largest_tile=_no_operands),
        slip("one-slice", largest_tile=_one_slice),
        slip("too-large", largest_tile=_too_large),
        slip("too-small", largest_tile=_strict),
        slip("no-power-of-two", largest_tile=_any_side),
        slip("wrong-form", largest_tile=_text),
        slip("divides-only", reads_25="2*n**3/T"),
        slip("one-operand", reads_25="n**2*ceil(n/T)"),
        slip("whole-tiles", reads_25="2*T*n*ceil(n/T)**2"),
        slip("every-product", reads_25="2*n**3"),
        slip("writes-forgotten", bytes_25=traffic.read * traffic.itemsize),
        slip("elements", bytes_25=traffic.elements),
        slip("writes-forgotten", intensity_25=traffic.read_intensity),
        slip("one-operation", intensity_25=traffic.intensity / 2),
        slip("per-element", intensity_25=traffic.intensity * traffic.itemsize),
        slip("result-forgotten", peak_25=Fraction(variant.n, variant.itemsize)),
        slip("one-operation", peak_25=traffic.peak_intensity / 2),
        slip("writes-forgotten", saved_share="T/k"),
        slip("one-way", saved_share="T/(2*k + T)"),
        slip("writes-forgotten", share_here=saving.share_of_reads),
        slip("one-way", share_here=saving.share / 2),
    )
