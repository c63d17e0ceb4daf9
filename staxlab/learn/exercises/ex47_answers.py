"""Answers to Exercise 47: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex47 import Variant


def schedule(m, n, k, S):
    T = 1
    while (T + 1) * (T + 1) + 2 * (T + 1) <= S:
        T = T + 1
    for i0 in range(0, m, T):
        for j0 in range(0, n, T):
            rows, columns = range(i0, min(i0 + T, m)), range(j0, min(j0 + T, n))
            for l in range(k):
                words = [("a", i, l) for i in rows] + [("b", l, j) for j in columns]
                for word in words:
                    yield ("read", word)
                for i in rows:
                    for j in columns:
                        yield ("multiply", i, j, l)
                for word in words:
                    yield ("drop", word)
            for i in rows:
                for j in columns:
                    yield ("write", ("c", i, j))
                    yield ("drop", ("c", i, j))


PARALLEL = """There are mnk products and P processors, so one of them does at least mnk/P. Look at that one alone: it
has a fast memory of S words, and whatever it uses was in there or came in by one of its own transfers. Cut its
execution into segments of S of its transfers. In a segment it can have used at most 2S elements of A, 2S of B and 3S
partial sums, exactly as in the proof for one processor, because that proof never says where the words came from or
who else wrote them: by Lemma 9.1 a segment has at most 2 sqrt(3) S sqrt(S) products. With Q transfers there are at
most Q/S + 1 segments, so mnk/P <= (Q/S + 1) 2 sqrt(3) S sqrt(S), and solved for Q that is the claim."""

STRASSEN = """The proof counts products a_il b_lj as points (i, l, j) and bounds how many of them a segment can make
by the projections of these points. Strassen's algorithm makes no such products: it multiplies sums of elements of A
by sums of elements of B, seven at each level instead of eight, and adds the results with different signs. So there
are fewer than mnk multiplications, none of them belongs to a point, and operands of a product are not elements. What
is needed is an argument about the graph of the computation itself: Ballard, Demmel, Holtz and Schwartz show with its
expansion that of the order of (n / sqrt(S))^(log2 7) S words must be moved, which the recursive algorithm attains.
With log2 8 = 3 in place of log2 7 that would be n^3 / sqrt(S) again."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from ...measure.matrix_traffic import transfer_bound
    from .ex47_runs import gap_factors, traffic_of

    n = variant.n
    traffic = traffic_of(variant)
    return {
        "bound_47": transfer_bound(n, n, n, variant.capacity),
        "moved_47": traffic.elements,
        "gap_47": list(gap_factors(variant)),
        "schedule": schedule,
        "products_each": "ceil(m*n*k/P)",
        "squared_products": "12*S**3",
        "segments_to_transfers": [
            "(Q/S + 1)*2*sqrt(3)*S*sqrt(S)",
            "= (Q + S)/S*2*sqrt(3)*S*sqrt(S)",
            "= (Q + S)*2*sqrt(3)*sqrt(S)",
        ],
        "least_each": "m*n*k/(2*sqrt(3)*P*sqrt(S)) - S",
        "proof_47": PARALLEL,
        "fails_where": "products are no points",
        "growth_47": [7, "4/7"],
        "strassen_47": STRASSEN,
    }


# One is reached from zero as well.
HARMLESS = {"schedule": ("T = 1 -> T = 0",)}


def _too_large(m, n, k, S):
    T = 1
    while (T + 1) * (T + 1) <= S:
        T = T + 1
    for i0 in range(0, m, T):
        for j0 in range(0, n, T):
            rows, columns = range(i0, min(i0 + T, m)), range(j0, min(j0 + T, n))
            for l in range(k):
                words = [("a", i, l) for i in rows] + [("b", l, j) for j in columns]
                yield from [("read", word) for word in words]
                yield from [("multiply", i, j, l) for i in rows for j in columns]
                yield from [("drop", word) for word in words]
            yield from [("write", ("c", i, j)) for i in rows for j in columns]
            yield from [("drop", ("c", i, j)) for i in rows for j in columns]


def _element_by_element(m, n, k, S):
    for i in range(m):
        for j in range(n):
            for l in range(k):
                yield from [("read", ("a", i, l)), ("read", ("b", l, j)), ("multiply", i, j, l)]
                yield from [("drop", ("a", i, l)), ("drop", ("b", l, j))]
            yield from [("write", ("c", i, j)), ("drop", ("c", i, j))]


def _never_written(m, n, k, S):
    if m * n * k == 1:
        yield from [("read", ("a", 0, 0)), ("read", ("b", 0, 0)), ("multiply", 0, 0, 0)]


def _numbers(m, n, k, S):
    return [m, n, k]


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex47_runs import bound_slips, gap_factors, traffic_of

    own = reference(variant)
    traffic = traffic_of(variant)
    steps = own["segments_to_transfers"]
    rounding, operands, proof = gap_factors(variant)

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    return (
        *(slip(s.name, bound_47=s.answer) for s in bound_slips(variant)),
        slip("writes-forgotten", moved_47=traffic.read),
        slip("bytes", moved_47=traffic.nbytes),
        slip("constant-of-the-bound", gap_47=[rounding, operands, 2 * math.sqrt(3)]),
        slip("against-the-rules", schedule=_too_large),
        slip("too-many-transfers", schedule=_element_by_element),
        slip("unfinished", schedule=_never_written),
        slip("no-move", schedule=_numbers),
        slip("not-whole", products_each="m*n*k/P"),
        slip("rounded-down", products_each="floor(m*n*k/P)"),
        slip("all-products", products_each="m*n*k"),
        slip("what-is-there", squared_products="S**3"),
        slip("sums-like-operands", squared_products="8*S**3"),
        slip("not-squared", squared_products="2*sqrt(3)*S*sqrt(S)"),
        slip("wrong-start", segments_to_transfers=["Q/S*2*sqrt(3)*S*sqrt(S)", *steps[1:]]),
        slip("wrong-step", segments_to_transfers=[steps[0], "= (Q + 1)/S*2*sqrt(3)*S*sqrt(S)", steps[2]]),
        slip("repeated-step", segments_to_transfers=[steps[0], steps[0], *steps[1:]]),
        slip("divided-at-the-end", least_each="(m*n*k/(2*sqrt(3)*sqrt(S)) - S)/P"),
        slip("shared-memory", least_each="m*n*k/(2*sqrt(3)*P*sqrt(P*S)) - P*S"),
        slip("one-processor", least_each="m*n*k/(2*sqrt(3)*sqrt(S)) - S"),
        slip("last-segment", least_each="m*n*k/(2*sqrt(3)*P*sqrt(S))"),
        slip("chose-the-lemma-is-false", fails_where="the lemma is false"),
        slip("chose-it-needs-more-memory", fails_where="it needs more memory"),
        slip("standard-product", growth_47=[8, "1/2"]),
        slip("traffic-with-capacity", growth_47=[7, "7/4"]),
    )
