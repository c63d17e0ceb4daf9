"""Answers to Exercise 7: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer

if TYPE_CHECKING:
    from .ex07 import Variant

NEVER, STOPS, LEFT = "never", "after some steps", "as soon as only o2 is left"
EXISTS, NONE = "one number", "none"


def cyclic_table(length):
    rules = {k: [(k + 1) % length, "leaf"] for k in range(length)}
    return rules, {"leaf"}


def terminates(rules, basis):
    left = set(rules) - set(basis)
    while True:
        ready = {operator for operator in left if not left & set(rules[operator])}
        if not ready:
            return not left
        left -= ready


MEASURE = """Depth is a measure as the triple is: a map into a well-founded set. Taking an operator of depth k apart
puts finitely many operators of smaller depth in its place, so in a multiset of depths one number is exchanged for
finitely many smaller ones, and that cannot go on for ever, as the triple of Proposition 4.1 cannot fall for ever. With
a cycle there is no such map: d(o1) > d(o2) and d(o2) > d(o1) would both have to hold. An operator in the basis is not
taken apart, so its rule is as if it were not there: with o2 in the basis the only rule left is that of o1, and d(o1) is
1."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    from .ex07_runs import depth_list

    return {
        "ends": NEVER,
        "has_depth": NONE,
        "operators_left": "1 + m*(p + q)",
        "cyclic_table": cyclic_table,
        "depth_with_basis": 1,
        "depth_in_basis": 0,
        "own_depths": depth_list(variant),
        "terminates": terminates,
        "same_argument": MEASURE,
    }


# A change to the function above that leaves it right: the cycle may be walked the other way.
HARMLESS = {
    "cyclic_table": (
        "rules = {k: [(k + 1) % length, 'leaf'] for k in range(length)} -> "
        "rules = {k: [(k - 1) % length, 'leaf'] for k in range(length)}",
    ),
}


def _chain(length):
    return {k: [k + 1] for k in range(length)}, set()


def _self_cycle(length):
    return {"o1": ["o1", "c"]}, set()


def _two_always(length):
    return {"o1": ["o2", "o3"], "o2": ["o1", "c"]}, set()


def _basis_breaks_it(length):
    return {k: [(k + 1) % length] for k in range(length)}, {0}


def _not_a_table(length):
    return [(0, 1), (1, 0)]


def _no_self_rule(rules, basis):
    return all(operator not in rules[operator] for operator in rules if operator not in basis)


def _forgets_the_basis(rules, basis):
    left = set(rules)
    while True:
        ready = {operator for operator in left if not left & set(rules[operator])}
        if not ready:
            return not left
        left -= ready


def _every_part_in_the_basis(rules, basis):
    return all(part in basis for operator in rules if operator not in basis for part in rules[operator])


def _always(rules, basis):
    return True


def _unfolds_for_ever(rules, basis):
    pending = list(rules)
    while pending:
        operator = pending.pop()
        if operator not in basis:
            pending.extend(rules.get(operator, ()))
    return True


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    from .ex07_runs import depth_list

    def slip(mistake: str, *loses: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, loses or tuple(answers))

    depths = depth_list(variant)
    shifted = [depth + 1 for depth in depths]
    swapped = [*depths[:-1], depths[-1] + 2]
    slips = [
        slip("chose-after-some-steps", ends=STOPS),
        slip("chose-as-soon-as-only-o2-is-left", ends=LEFT),
        slip("chose-one-number", has_depth=EXISTS),
        slip("forgets-the-operator", operators_left="m*(p + q)"),
        slip("counts-rules", operators_left="1 + 2*m"),
        slip("doubles", operators_left="2**m"),
        slip("no-cycle", cyclic_table=_chain),
        slip("cycle-of-another-length", cyclic_table=_self_cycle),
        slip("cycle-of-another-length", cyclic_table=_two_always),
        slip("basis-breaks-the-cycle", cyclic_table=_basis_breaks_it),
        slip("wrong-form", cyclic_table=_not_a_table),
        slip("parts-have-no-rule-counted", depth_with_basis=2),
        slip("has-a-rule", depth_in_basis=1),
        slip("leaves-count-as-one", own_depths=shifted),
        slip("wrong-depth", own_depths=swapped),
        slip("misses-a-cycle", terminates=_no_self_rule),
        slip("ignores-the-basis", terminates=_forgets_the_basis),
        slip("refuses-a-good-table", terminates=_every_part_in_the_basis),
        slip("misses-a-cycle", terminates=_always),
        slip("timed-out", terminates=_unfolds_for_ever),
    ]
    # Where both rules have one more operator each, a count of rules is a count of operators.
    return tuple(s for s in slips if s.mistake != "counts-rules" or variant.p + variant.q != 2)
