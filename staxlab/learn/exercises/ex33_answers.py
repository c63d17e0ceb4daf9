"""Answers to Exercise 33: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex33 import Variant


def fusion_kind(shifts):
    if not any(shifts):
        return "parallel"
    return "sequential" if max(shifts) <= 0 else "none"


def instance(a, start, size, s):
    made = {}
    for i in (*range(start, start + size), *range(max(start - s, 0), start + size - s)):
        if i not in made:
            made[i] = a(i)
    own = [made[i] for i in range(start, start + size)]
    read = [made[i] for i in range(max(start - s, 0), start + size - s)]
    return own, read


COST = """Every program instance computes s elements of B that another instance computes as well: T + s elements in
place of T, and the reads of A that they need. For T much larger than s the share s/T is small; for s of the order of T
all work of a is done twice or more. In return B is not read back from memory, and need not be written if nobody else
reads it, and one launch is saved. It pays where a is cheap (memory-bound) and s is small. For a chain of k such nodes
the halo grows to k s, which is why tiles of stencils cannot be fused without end. Computing the element twice needs a
to be a function of its inputs: a random number, or a sum that runs along, may not be repeated."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex33_runs import distance, verdict

    def yes(legal: Any) -> str:
        return "legal" if legal else "not legal"

    behind, ahead = verdict((-variant.behind,)), verdict((variant.ahead,))
    return {
        "behind_distance": distance(-variant.behind),
        "behind_sequential": yes(behind.sequential),
        "behind_parallel": yes(behind.parallel),
        "ahead_distance_33": distance(variant.ahead),
        "ahead_sequential": yes(ahead.sequential),
        "fusion_kind": fusion_kind,
        "instance": instance,
        "computed_elements": "n*(T + s)/T",
        "what_it_costs": COST,
    }


HARMLESS: dict[str, tuple[str, ...]] = {}


def _signs_exchanged(shifts):
    return "parallel" if not any(shifts) else "sequential" if min(shifts) >= 0 else "none"


def _any_read(shifts):
    return "parallel" if 0 in shifts else "sequential" if min(shifts) <= 0 else "none"


def _no_difference(shifts):
    return "parallel" if max(shifts) <= 0 else "none"


def _first(shifts):
    return "parallel" if shifts[0] == 0 else "sequential" if shifts[0] < 0 else "none"


def _never(shifts):
    return "none"


def _number(shifts):
    return max(shifts)


def _no_halo(a, start, size, s):
    own = [a(i) for i in range(start, start + size)]
    return own, [own[i - s] for i in range(size) if start + i >= s]


def _twice(a, start, size, s):
    own = [a(i) for i in range(start, start + size)]
    return own, [a(i) for i in range(max(start - s, 0), start + size - s)]


def _negative(a, start, size, s):
    made = [a(i) for i in range(start - s, start + size)]
    return made[s:], made[:size]


def _ahead(a, start, size, s):
    made = [a(i) for i in range(start, start + size + s)]
    return made[:size], made[s:]


def _own_only(a, start, size, s):
    return [a(i) for i in range(start, start + size)]


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    own = reference(variant)

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    def other(name: str) -> WrongAnswer:
        option = "not legal" if own[name] == "legal" else "legal"
        return slip(f"chose-{option.replace(' ', '-')}", **{name: option})

    return (
        slip("other-sign", behind_distance=-variant.behind),
        slip("other-sign", ahead_distance_33=variant.ahead),
        *map(other, ("behind_sequential", "behind_parallel", "ahead_sequential")),
        slip("signs-exchanged", fusion_kind=_signs_exchanged),
        slip("one-read-is-enough", fusion_kind=_any_read),
        slip("sequential-is-parallel", fusion_kind=_no_difference),
        slip("first-read-only", fusion_kind=_first),
        slip("too-careful", fusion_kind=_never),
        slip("wrong-form", fusion_kind=_number),
        slip("wrong-read", instance=_no_halo),
        slip("too-many-calls", instance=_twice),
        slip("before-the-first", instance=_negative),
        slip("wrong-read", instance=_ahead),
        slip("wrong-form", instance=_own_only),
        slip("no-halo", computed_elements="n"),
        slip("all-twice", computed_elements="2*n"),
        slip("one-halo", computed_elements="n + s"),
    )
