"""Answers to Exercise 16: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex16 import Variant


def vector_sum(x, W):
    sums = x[:W]
    for k in range(W, len(x)):
        sums[k % W] = sums[k % W] + x[k]
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [sums[k] + sums[half + k] for k in range(half)]
    return sums[0]


def worst_case(n):
    return [1.0] + [2.0**-24] * (n - 1)


WIDE = """The coefficient is n/W - 1 + log2 W: as long as W is much smaller than n the first term decides, and halving W
doubles the bound. With W = 1 it is the sequential n - 1. At the other end a few more running sums cost one addition
each time W doubles, so there is nothing to fear from many. What limits W is that the sums have to stay in registers,
and a tail or a short row leaves most of them empty. Speed asks for the same thing: an addition can begin only when the
sum it adds to is there, so one running sum takes one latency per addition, however wide the machine is; W independent
ones keep it busy. The bound is a worst case, in which all roundings go one way, as in worst_case; typical errors are
far smaller, but they, too, grow with the length of a running sum."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from ...measure.rounding import pairwise, segmented, sequential
    from .ex16_runs import fewest_accumulators

    n = variant.n
    return {
        "sequential_coefficient": sequential(n).height,
        "few_coefficient": segmented(n, variant.few).height,
        "many_coefficient": segmented(n, variant.many).height,
        "tree_coefficient": pairwise(n).height,
        "best_segments": 2 ** (variant.exponent // 2),
        "vector_sum": vector_sum,
        "fewest_accumulators": fewest_accumulators(n, variant.limit),
        "worst_case": worst_case,
        "why_wide": WIDE,
    }


# When one sum is left, it is the first and the last.
HARMLESS = {"vector_sum": ("return sums[0] -> return sums[-1]",)}


def _one_sum(x, W):
    total = x[0]
    for value in x[1:]:
        total = total + value
    return total


def _merged_in_order(x, W):
    sums = x[:W]
    for k in range(W, len(x)):
        sums[k % W] = sums[k % W] + x[k]
    total = sums[0]
    for value in sums[1:]:
        total = total + value
    return total


def _tail_lost(x, W):
    sums = [x[w * (len(x) // W)] for w in range(W)]
    while len(sums) > 1:
        sums = [sums[k] + sums[k + 1] for k in range(0, len(sums), 2)]
    return sums[0]


def _first_twice(x, W):
    sums = x[:W]
    for k in range(len(x)):
        sums[k % W] = sums[k % W] + x[k]
    while len(sums) > 1:
        half = len(sums) // 2
        sums = [sums[k] + sums[half + k] for k in range(half)]
    return sums[0]


def _a_count(x, W):
    return len(x)


def _all_equal(n):
    return [1.0] * n


def _tenths(n):
    return [0.1] * n


def _too_small(n):
    return [1.0] + [2.0**-30] * (n - 1)


def _one_short(n):
    return [1.0] + [2.0**-24] * n


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    own = reference(variant)
    n, few, many = variant.n, variant.few, variant.many

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    return (
        slip("numbers-counted", sequential_coefficient=n),
        slip("merge-forgotten", few_coefficient=n // few - 1),
        slip("numbers-counted", few_coefficient=n // few + few),
        slip("tree-merge", few_coefficient=n // few - 1 + few.bit_length() - 1),
        slip("merge-forgotten", many_coefficient=n // many - 1),
        slip("numbers-counted", many_coefficient=n // many + many),
        slip("all-additions", tree_coefficient=n - 1),
        slip("all-segments", best_segments=n),
        slip("one-power-less", fewest_accumulators=own["fewest_accumulators"] // 2),
        slip("one-power-more", fewest_accumulators=2 * own["fewest_accumulators"]),
        slip("one-running-sum", vector_sum=_one_sum),
        slip("sequential-merge", vector_sum=_merged_in_order),
        slip("lost-number", vector_sum=_tail_lost),
        slip("added-twice", vector_sum=_first_twice),
        slip("wrong-form", vector_sum=_a_count),
        slip("no-error", worst_case=_all_equal),
        slip("far-from-the-bound", worst_case=_tenths),
        slip("far-from-the-bound", worst_case=_too_small),
        slip("wrong-form", worst_case=_one_short),
    )
