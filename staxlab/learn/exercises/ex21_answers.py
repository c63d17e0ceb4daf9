"""Answers to Exercise 21: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex21 import Variant


def parallel_depth(extents, P, m):
    left = 1
    for size in extents:
        left = left * size
    product = 1
    for depth, size in enumerate(extents):
        if product >= 2 * P or left < m * P:
            return depth
        product = product * size
        left = left // size
    return len(extents)


REASONS = """With P iterations for P threads everything is even, but with one more the busiest thread has two where
the average has little more than one: an imbalance of nearly 2, so half of the machine waits. From 2P on it stays
below 3/2, and q is hardly ever the worst number. 100P would bring it below 1.01, but for that the algorithm would
have to take inner loops, too: what remains as the body of a parallel iteration gets short, subscripts have to be
taken apart again, values that were computed once per outer iteration are computed more often, and in the end there is
no loop left for vectors. The grain is about the price of threads: waking them and waiting for the last one takes
microseconds whatever there is to do, so a share of less work than that is done sooner by the thread that is awake
already."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    iterations = variant.iterations(variant.many)
    return {
        "depth_few": variant.depth(variant.few),
        "depth_many": variant.depth(variant.many),
        "busiest": -(-iterations // variant.many),
        "parallel_depth": parallel_depth,
        "worst_q": "a*P + 1",
        "worst_imbalance": "(a + 1)*P/(a*P + 1)",
        "limit": f"{variant.multiple + 1}/{variant.multiple}",
        "why_twice": REASONS,
    }


# What is left is divided by an extent that is a factor of it.
HARMLESS = {"parallel_depth": ("left = left // size -> left = left / size",)}


def stops_at_threads(extents, P, m):
    left = 1
    for size in extents:
        left = left * size
    product = 1
    for depth, size in enumerate(extents):
        if product >= P or left < m * P:
            return depth
        product, left = product * size, left // size
    return len(extents)


def grain_per_iteration(extents, P, m):
    left = 1
    for size in extents:
        left = left * size
    product = 1
    for depth, size in enumerate(extents):
        if product >= 2 * P or left < m:
            return depth
        product, left = product * size, left // size
    return len(extents)


def no_grain(extents, P, m):
    product = 1
    for depth, size in enumerate(extents):
        if product >= 2 * P:
            return depth
        product = product * size
    return len(extents)


def looks_ahead(extents, P, m):
    left = 1
    for size in extents:
        left = left * size
    product = 1
    for depth, size in enumerate(extents):
        left = left // size
        if product >= 2 * P or left < m * P:
            return depth
        product = product * size
    return len(extents)


def inside_out(extents, P, m):
    left = 1
    for size in extents:
        left = left * size
    product = 1
    for depth, size in enumerate(reversed(extents)):
        if product >= 2 * P or left < m * P:
            return depth
        product, left = product * size, left // size
    return len(extents)


def _product(extents, P, m):
    product = 1
    for size in extents:
        if product >= 2 * P:
            break
        product = product * size
    return product


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex21_runs import busiest_slips, depth_slips

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    found = [slip(s.name, depth_few=s.answer) for s in depth_slips(variant, variant.few)]
    found += [slip(s.name, depth_many=s.answer) for s in depth_slips(variant, variant.many)]
    found += [slip(s.name, busiest=s.answer) for s in busiest_slips(variant)]
    return (
        *found,
        slip("stops-at-threads", parallel_depth=stops_at_threads),
        slip("grain-per-iteration", parallel_depth=grain_per_iteration),
        slip("no-grain", parallel_depth=no_grain),
        slip("looks-ahead", parallel_depth=looks_ahead),
        slip("inside-out", parallel_depth=inside_out),
        slip("wrong-form", parallel_depth=_product),
        slip("a-multiple", worst_q="a*P"),
        slip("a-multiple", worst_q="(a + 1)*P"),
        slip("last-before", worst_q="(a + 1)*P - 1"),
        slip("limit-for-maximum", worst_imbalance="(a + 1)/a"),
        slip("upside-down", worst_imbalance="(a*P + 1)/((a + 1)*P)"),
        slip("no-imbalance", limit="1"),
        slip("beginning", limit="2"),
    )
