"""Answers to Exercise 28: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex28 import Variant


def shape_guard(n, d, s):
    return (n % d == 0) == (s % d == 0)


def bucket_versions(m, M):
    return (M - 1).bit_length() - (m - 1).bit_length() + 1


WAYS = """With symbolic shapes the branch becomes a guard: one version for sizes that d divides, one for the others, and
one for size 1. That costs constant loop bounds and masks on every block. Or the branch is taken outside, on the true
size, and the two functions behind it have no question about sizes any more, so each may be padded with its neutral
element: twice the buckets, and up to twice the computation. If only multiples of d ever occur, declaring the size as
d k makes the guard true by construction. Padding the function as it stands gives other values for most sizes."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex28_runs import VIOLATED, truth_of

    truth = truth_of(variant)
    return {
        "shape_guard": shape_guard,
        "guarded_sizes": truth.satisfied,
        "adjudication": VIOLATED,
        "narrower_range": list(truth.narrower),
        "concrete_versions_28": truth.concrete,
        "symbolic_versions_28": truth.symbolic,
        "bucketed_versions_28": truth.bucketed,
        "bucket_versions": bucket_versions,
        "largest_waste": str(truth.waste),
        "other_way": truth.other_way,
        "keep_values": WAYS,
    }


HARMLESS: dict[str, tuple[str, ...]] = {}


def _true_branch(n, d, s):
    return n % d == 0


def _other_branch(n, d, s):
    return (n % d == 0) != (s % d == 0)


def _concrete(n, d, s):
    return n == s


def _same_residue(n, d, s):
    return n % d == s % d


def _always(n, d, s):
    return True


def _remainder(n, d, s):
    return n % d


def _bound(m, M):
    return (M - 1).bit_length() - (m.bit_length() - 1) + 1


def _one_end(m, M):
    return (M - 1).bit_length() - (m - 1).bit_length()


def _from_one(m, M):
    return (M - 1).bit_length() + 1


def _every_size(m, M):
    return M - m + 1


def _logarithms(m, M):
    from math import log2

    return log2(M) - log2(m) + 1


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex28_runs import (
        IMPLIED,
        KEPT,
        branch_slips,
        bucketed_slips,
        concrete_slips,
        range_slips,
        satisfied_slips,
        symbolic_slips,
        waste_slips,
    )

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    found = [
        slip(s.name, **{name: list(s.answer) if isinstance(s.answer, tuple) else s.answer})
        for name, slips in {
            "guarded_sizes": satisfied_slips,
            "narrower_range": range_slips,
            "concrete_versions_28": concrete_slips,
            "symbolic_versions_28": symbolic_slips,
            "bucketed_versions_28": bucketed_slips,
            "largest_waste": waste_slips,
            "other_way": branch_slips,
        }.items()
        for s in slips(variant)
    ]
    found += [slip(f"chose-{option.replace(' ', '-')}", adjudication=option) for option in (IMPLIED, KEPT)]
    return (
        *found,
        slip("true-branch-only", shape_guard=_true_branch),
        slip("other-branch", shape_guard=_other_branch),
        slip("concrete", shape_guard=_concrete),
        slip("same-residue", shape_guard=_same_residue),
        slip("always", shape_guard=_always),
        slip("wrong-form", shape_guard=_remainder),
        slip("bound", bucket_versions=_bound),
        slip("one-end", bucket_versions=_one_end),
        slip("from-one", bucket_versions=_from_one),
        slip("every-size", bucket_versions=_every_size),
        slip("wrong-form", bucket_versions=_logarithms),
    )
