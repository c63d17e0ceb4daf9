"""Answers to Exercise 29: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex29 import Variant


def most_rows(c):
    return 2**31 // c


def index_bits(uppers, strides):
    largest = 0
    for upper, stride in zip(uppers, strides, strict=True):
        if stride == 0:
            continue
        if upper is None:
            return 64
        largest = largest + stride * (upper - 1)
    return 32 if largest < 2**31 else 64


def version_counts(sizes, c):
    return 1, len({c * n <= 2**31 for n in sizes})


def segment_sums(values, k):
    length = (len(values) + k - 1) // k
    return [sum(values[j * length : (j + 1) * length]) for j in range(k)]


HINTED = """The number of segments is written into the kernel, and the best one grows with n, which is not known when it
is written: the hint is the only size there is. It is not a question with one answer over the whole range, as that of
the subscripts is. For the result it does not matter: k segments of ceil(n / k) hold every element exactly once for
every n, the last ones masked or empty, so no guard is needed. For the time it does: a larger n runs with too few
segments and leaves multiprocessors idle, a smaller one with many that have hardly anything to do."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex29_runs import FITS, GUARD_COST, TOO_LARGE, WIDE_COST, truth_of

    truth = truth_of(variant)
    return {
        "largest_subscript": truth.largest,
        "narrow": FITS if truth.fits else TOO_LARGE,
        "most_rows": most_rows,
        "index_bits": index_bits,
        "version_counts": version_counts,
        "wide_cost": WIDE_COST,
        "guard_cost": GUARD_COST,
        "segment_sums": segment_sums,
        "longest_ratio": str(truth.ratio),
        "by_the_hint": HINTED,
    }


HARMLESS: dict[str, tuple[str, ...]] = {}


def _count_below(c):
    return (2**31 - 1) // c


def _in_bytes(c):
    return 2**31 // (4 * c)


def _unsigned(c):
    return 2**32 // c


def _one_more(c):
    return 2**31 // c + 1


def _one_less(c):
    return 2**31 // c - 1


def _divided(c):
    return 2**31 / c


def _bits_of_counts(uppers, strides):
    largest = 0
    for upper, stride in zip(uppers, strides, strict=True):
        if stride:
            if upper is None:
                return 64
            largest = largest + stride * upper
    return 32 if largest < 2**31 else 64


def _bits_unbounded(uppers, strides):
    if None in uppers:
        return 64
    return 32 if sum(s * (u - 1) for u, s in zip(uppers, strides, strict=True)) < 2**31 else 64


def _bits_wide(uppers, strides):
    return 64


def _bits_of_bounded(uppers, strides):
    return 32 if sum(s * (u - 1) for u, s in zip(uppers, strides, strict=True) if u is not None) < 2**31 else 64


def _bits_as_text(uppers, strides):
    return "int32"


def _counts_of_sizes(sizes, c):
    return len(set(sizes)), len(set(sizes))


def _counts_two(sizes, c):
    return 1, 2


def _counts_at_edge(sizes, c):
    return 1, len({c * n < 2**31 for n in sizes})


def _counts_alone(sizes, c):
    return 1


def _sums_of_floor(values, k):
    length = len(values) // k
    return [sum(values[j * length : (j + 1) * length]) for j in range(k)]


def _sums_not_empty(values, k):
    length = -(-len(values) // k) or 1
    return [sum(values[j : j + length]) for j in range(0, len(values), length)]


def _sums_in_turn(values, k):
    return [sum(values[j::k]) for j in range(k)]


def _sums_overlap(values, k):
    length = -(-len(values) // k)
    return [sum(values[j * length : (j + 1) * length + 1]) for j in range(k)]


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex29_runs import (
        COPY_COST,
        FITS,
        GUARD_COST,
        TOO_LARGE,
        VALUES_COST,
        WIDE_COST,
        index_slips,
        slowdown_slips,
        truth_of,
    )

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    def chose(option: str) -> str:
        return f"chose-{option.replace(' ', '-')}"

    other = TOO_LARGE if truth_of(variant).fits else FITS
    return (
        *(slip(s.name, largest_subscript=s.answer) for s in index_slips(variant)),
        slip(chose(other), narrow=other),
        slip("count-below", most_rows=_count_below),
        slip("bytes", most_rows=_in_bytes),
        slip("unsigned", most_rows=_unsigned),
        slip("too-large", most_rows=_one_more),
        slip("too-small", most_rows=_one_less),
        slip("wrong-form", most_rows=_divided),
        slip("counts", index_bits=_bits_of_counts),
        slip("broadcast-forgotten", index_bits=_bits_unbounded),
        slip("always-wide", index_bits=_bits_wide),
        slip("overflow", index_bits=_bits_of_bounded),
        slip("wrong-form", index_bits=_bits_as_text),
        slip("concrete", version_counts=_counts_of_sizes),
        slip("always-two", version_counts=_counts_two),
        slip("edge", version_counts=_counts_at_edge),
        slip("wrong-form", version_counts=_counts_alone),
        *(slip(chose(option), wide_cost=option) for option in (GUARD_COST, VALUES_COST, COPY_COST)),
        *(slip(chose(option), guard_cost=option) for option in (WIDE_COST, VALUES_COST, COPY_COST)),
        slip("tail-lost", segment_sums=_sums_of_floor),
        slip("number-of-segments", segment_sums=_sums_not_empty),
        slip("other-segments", segment_sums=_sums_in_turn),
        slip("counted-twice", segment_sums=_sums_overlap),
        *(slip(s.name, longest_ratio=s.answer) for s in slowdown_slips(variant)),
    )
