"""Answers to Exercise 51: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from fractions import Fraction
from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex51 import Variant


def reversal_order(l, s, t):
    from math import comb

    def reverse(start, stop, s, t):
        if s == 1 or stop - start == 1:
            moves = []
            for k in range(stop, start + 1, -1):
                moves += [("advance", start, k - 1), ("reverse", k)]
            return [*moves, ("reverse", start + 1)]
        middle = start + max(1, stop - start - comb(s - 1 + t, t))
        later, earlier = reverse(middle, stop, s - 1, t), reverse(start, middle, s, t - 1)
        return [("advance", start, middle), ("store", middle), *later, ("free", middle), *earlier]

    return reverse(0, l, s, t)


COMPARISON = """With two evaluations per step the recursion gives C(s + 2, 2), about s^2 / 2, so s is about sqrt(2 l),
against 2 sqrt(l) for equal segments: both are of the order sqrt(l), and the gain is the constant factor sqrt(2). Equal
segments need all their slots only while the last segment is reversed; after that a checkpoint is given up with every
segment, and its slot stands empty. The recursion uses it: each segment is one state longer than the one after it,
because one slot more is free by then. What changes the order of growth is more repetitions: for fixed t slots grow as
the t-th root of l, and with s = t both are of the order log l, because C(2 s, s) grows like 4^s. Equal segments cannot
use a third evaluation at all."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from ...autodiff.checkpoint import beta, minimal_slots
    from .ex51_runs import fewest_uniform_slots, reference_order

    slots = [minimal_slots(variant.long, t) for t in (2, 3, 4)]
    return {
        "longest": beta(variant.sigma, variant.tau),
        "order": reference_order(variant.l, variant.s, variant.t),
        "slots_needed": slots,
        "reversal_order": reversal_order,
        "uniform_slots": fewest_uniform_slots(variant.long),
        "slots_saved": fewest_uniform_slots(variant.long) - slots[0],
        "gain": "2**(1/2)",
        "comparison": COMPARISON,
    }


HARMLESS: dict[str, tuple[str, ...]] = {}


def _keeps_everything(l, s, t):
    moves = []
    for k in range(1, l):
        moves += [("advance", k - 1, k), ("store", k)]
    for k in range(l, 0, -1):
        moves.append(("reverse", k))
    return moves


def _keeps_nothing(l, s, t):
    moves = []
    for k in range(l, 0, -1):
        moves += [("advance", 0, k - 1), ("reverse", k)] if k > 1 else [("reverse", 1)]
    return moves


def _halves(l, s, t):
    def reverse(start, stop, s):
        if stop - start == 1:
            return [("reverse", stop)]
        if s == 1:
            return [("advance", start, stop - 1), ("reverse", stop), *reverse(start, stop - 1, s)]
        middle = (start + stop) // 2
        later, earlier = reverse(middle, stop, s - 1), reverse(start, middle, s)
        return [("advance", start, middle), ("store", middle), *later, ("free", middle), *earlier]

    return reverse(0, l, s)


def _never_frees(l, s, t):
    from math import comb

    def reverse(start, stop, s, t):
        if stop - start == 1:
            return [("reverse", stop)]
        if s == 1:
            return [("advance", start, stop - 1), ("reverse", stop), *reverse(start, stop - 1, s, t - 1)]
        middle = start + max(1, stop - start - comb(s - 1 + t, t))
        later, earlier = reverse(middle, stop, s - 1, t), reverse(start, middle, s, t - 1)
        return [("advance", start, middle), ("store", middle), *later, *earlier]

    return reverse(0, l, s, t)


def _first_to_last(l, s, t):
    return [("reverse", k) for k in range(1, l + 1)]


def _no_order(l, s, t):
    return l


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    own = reference(variant)
    l, s, t = variant.l, variant.s, variant.t
    order, slots = own["order"], own["slots_needed"]

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    return (
        slip("pascal-one-row-up", longest=own["longest"] * variant.tau // (variant.sigma + variant.tau)),
        slip("free-slot", order=_keeps_everything(l, s, t)),
        slip("repetitions", order=_keeps_nothing(l, s, t)),
        slip("complete", order=order[:-1]),
        slip("last-first", order=_first_to_last(l, s, t)),
        slip("state-present", order=[("reverse", l)]),
        slip("from-checkpoint", order=[("advance", 1, 2)]),
        slip("store-at-hand", order=[("advance", 0, 2), ("store", 1)]),
        slip("free-stored", order=[("free", 1), *order]),
        slip("forward", order=[("advance", 0, 0), *order]),
        slip("in-chain", order=[*order[:2], ("reverse", l + 1)]),
        slip("one-too-few", slots_needed=[one - 1 for one in slots]),
        slip("z0-forgotten", slots_needed=[one + 1 for one in slots]),
        slip("wrong-number", slots_needed=[slots[0], slots[1] + 3, slots[2]]),
        slip("free-slot", reversal_order=_keeps_everything),
        slip("repetitions", reversal_order=_keeps_nothing),
        slip("repetitions", reversal_order=_halves),
        slip("free-slot", reversal_order=_never_frees),
        slip("last-first", reversal_order=_first_to_last),
        slip("wrong-form", reversal_order=_no_order),
        slip("start-counted-twice", uniform_slots=own["uniform_slots"] + 1),
        slip("wrong-sign", slots_saved=-own["slots_saved"]),
        slip("storage-of-segments", gain=2),
        slip("this-chain-only", gain=Fraction(own["uniform_slots"], slots[0])),
    )
