"""Answers to Exercise 12: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex12 import Variant


def can_merge(extents, accesses, j):
    return all(access[j] == extents[j + 1] * access[j + 1] for access in accesses)


def loop_order(extents, accesses):
    from itertools import pairwise, permutations

    def fits(outer, inner):
        return all(access[outer] == extents[inner] * access[inner] for access in accesses)

    return max(permutations(range(len(extents))), key=lambda order: sum(fits(p, q) for p, q in pairwise(order)))


ORDER = """A merge makes one loop of two and leaves every address and the order of the iterations as it is, so it costs
and changes nothing. A reordering visits the same iterations in another order. For a pointwise loop that is free to do,
since every element is computed by itself, but neighbours in time are then other elements: an order that merges two
loops may stride through memory where the old one did not. For a sum it changes the order of the additions, which
shows in floating point: the result is equal in real numbers only (Theorem 6.3). And an access that is met by another
access running the other way cannot be repaired by any order: one of them would have to be copied first."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex12_runs import allowed_by, fewest_loops, loops_left

    nest = (variant.extents, variant.accesses)
    return {
        "outer_pair": allowed_by(*nest, 0),
        "inner_pair": allowed_by(*nest, 1),
        "loops_left": loops_left(*nest),
        "fewest_loops": fewest_loops(*nest),
        "can_merge": can_merge,
        "loop_order": loop_order,
        "what_order_changes": ORDER,
    }


HARMLESS: dict[str, tuple[str, ...]] = {}


def _own_extent(extents, accesses, j):
    return all(access[j] == extents[j] * access[j + 1] for access in accesses)


def _any_access(extents, accesses, j):
    return any(access[j] == extents[j + 1] * access[j + 1] for access in accesses)


def _first_access(extents, accesses, j):
    return accesses[0][j] == extents[j + 1] * accesses[0][j + 1]


def _divides(extents, accesses, j):
    return all(access[j + 1] and access[j] % (extents[j + 1] * access[j + 1]) == 0 for access in accesses)


def _contiguous(extents, accesses, j):
    return all(access[j + 1] == 1 and access[j] == extents[j + 1] for access in accesses)


def _a_word(extents, accesses, j):
    return "yes"


def _as_given(extents, accesses):
    return list(range(len(extents)))


def _by_the_first(extents, accesses):
    return sorted(range(len(extents)), key=lambda k: -accesses[0][k])


def _by_the_sum(extents, accesses):
    return sorted(range(len(extents)), key=lambda k: sum(access[k] for access in accesses))


def _extents(extents, accesses):
    return extents


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex12_runs import LAYERS, left_if_one_access_decided

    own = reference(variant)

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    careless = left_if_one_access_decided(variant.extents, variant.accesses)
    merged = 3 - own["loops_left"]
    return (
        *(
            slip(f"chose-{option.replace(' ', '-')}", **{name: option})
            for name in ("outer_pair", "inner_pair")
            for option in LAYERS
            if option != own[name]
        ),
        *([slip("one-access-is-enough", loops_left=careless)] if careless != own["loops_left"] else []),
        *([slip("merges-counted", loops_left=merged)] if merged not in (careless, own["loops_left"]) else []),
        slip("always-one", fewest_loops=1) if own["fewest_loops"] > 1 else slip("as-given", fewest_loops=3),
        slip("other-extent", can_merge=_own_extent),
        slip("one-access-is-enough", can_merge=_any_access),
        slip("one-access-is-enough", can_merge=_first_access),
        slip("missed-merge", can_merge=_divides),
        slip("unit-stride-only", can_merge=_contiguous),
        slip("wrong-form", can_merge=_a_word),
        slip("given-order", loop_order=_as_given),
        slip("not-the-fewest", loop_order=_by_the_first),
        slip("not-the-fewest", loop_order=_by_the_sum),
        slip("wrong-form", loop_order=_extents),
    )
