"""Answers to Exercise 6: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..exercise import WrongAnswer
from .ex06_runs import CONDITIONS, FALLS, NO, YES

if TYPE_CHECKING:
    from .ex06 import Variant


def back_to_product():
    from staxlab.transform import Rule, Var

    x = Var("x")
    return [Rule("x", x + x, x * 2)], lambda a: (a.exp() * 2).sum()


def back_to_sum():
    from staxlab.transform import Rule, Var

    x = Var("x")
    return [Rule("x", x * 2, x + x)], lambda a: (a.exp() * 2).sum()


def back_to_factor():
    from staxlab.transform import Rule, Var

    x = Var("x")
    return [Rule("x", -x, x * -1)], lambda a: (a.exp() * -1).sum()


def back_to_power():
    from staxlab.transform import Rule, Var

    x = Var("x")
    return [Rule("x", x * x, x**2)], lambda a: (a.exp() ** 2).sum()


def back_to_division_by_2():
    from staxlab.transform import Rule, Var

    x = Var("x")
    return [Rule("x", x * 0.5, x / 2)], lambda a: (a.exp() / 2).sum()


def back_to_division_by_4():
    from staxlab.transform import Rule, Var

    x = Var("x")
    return [Rule("x", x * 0.25, x / 4)], lambda a: (a.exp() / 4).sum()


def back_to_division_by_8():
    from staxlab.transform import Rule, Var

    x = Var("x")
    return [Rule("x", x * 0.125, x / 8)], lambda a: (a.exp() / 8).sum()


def back_to_division_by_16():
    from staxlab.transform import Rule, Var

    x = Var("x")
    return [Rule("x", x * 0.0625, x / 16)], lambda a: (a.exp() / 16).sum()


def back_to_division_by_32():
    from staxlab.transform import Rule, Var

    x = Var("x")
    return [Rule("x", x * 0.03125, x / 32)], lambda a: (a.exp() / 32).sum()


def back_to_division_by_64():
    from staxlab.transform import Rule, Var

    x = Var("x")
    return [Rule("x", x * 0.015625, x / 64)], lambda a: (a.exp() / 64).sum()


def back_to_factor_4():
    from staxlab.transform import Rule, Var

    x = Var("x")
    return [Rule("x", x * 2 * 2, x * 4)], lambda a: (a.exp() * 4).sum()


def back_to_factor_8():
    from staxlab.transform import Rule, Var

    x = Var("x")
    return [Rule("x", x * 4 * 2, x * 8)], lambda a: (a.exp() * 8).sum()


def back_to_factor_16():
    from staxlab.transform import Rule, Var

    x = Var("x")
    return [Rule("x", x * 8 * 2, x * 16)], lambda a: (a.exp() * 16).sum()


def back_to_factor_32():
    from staxlab.transform import Rule, Var

    x = Var("x")
    return [Rule("x", x * 16 * 2, x * 32)], lambda a: (a.exp() * 32).sum()


def back_to_factor_64():
    from staxlab.transform import Rule, Var

    x = Var("x")
    return [Rule("x", x * 32 * 2, x * 64)], lambda a: (a.exp() * 64).sum()


ADDED = {
    "x * 2 -> x + x": back_to_product,
    "x + x -> x * 2": back_to_sum,
    "x * -1 -> -x": back_to_factor,
    "x ** 2 -> x * x": back_to_power,
    "x / 2 -> x * 0.5": back_to_division_by_2,
    "x / 4 -> x * 0.25": back_to_division_by_4,
    "x / 8 -> x * 0.125": back_to_division_by_8,
    "x / 16 -> x * 0.0625": back_to_division_by_16,
    "x / 32 -> x * 0.03125": back_to_division_by_32,
    "x / 64 -> x * 0.015625": back_to_division_by_64,
    "x * 4 -> (x * 2) * 2": back_to_factor_4,
    "x * 8 -> (x * 4) * 2": back_to_factor_8,
    "x * 16 -> (x * 8) * 2": back_to_factor_16,
    "x * 32 -> (x * 16) * 2": back_to_factor_32,
    "x * 64 -> (x * 32) * 2": back_to_factor_64,
}


def swap(a, b):
    return a[0] == b[0] == "value" and a[1] > b[1]


def measure(nodes):
    left = unordered = 0
    for operation, operands in nodes:
        if operation in ("add", "mul"):
            a, b = operands
            left += a[0] == "number"
            unordered += operation == "add" and a[0] == b[0] == "value" and a[1] > b[1]
    return len(nodes), left + unordered


DECREASE = """The exchange is made only where operands are out of order. It lowers the number of such sums by one for
each sum it changes, and changes neither the number of nodes nor that of numbers on the left: the second component
falls, the first stays. Normalization takes a number from the left to the right and touches no sum of two values: the
second component falls. Folding may put a number to the left of a sum, or two operands out of order, which raises the
second component; but it removes a node, and the first component counts more. Pairs of natural numbers in lexicographic
order are well-founded, so there is no infinite descent. Without a condition, a + b becomes b + a and then a + b again:
a measure would have to be smaller than itself."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    return {
        "added": ADDED[variant.given],
        "broken_condition": FALLS,
        "unconditional": NO,
        "swap": swap,
        "measure": measure,
        "decrease": DECREASE,
    }


# A measure that is larger by a constant is as good. And a number on the left beside a value is never seen by the
# exchange: normalization, which comes first, has moved it.
HARMLESS = {
    "swap": ("return a[0] == b[0] == 'value' and a[1] > b[1] -> return b[0] == b[0] == 'value' and a[1] > b[1]",),
    "measure": (
        "left = unordered = 0 -> left = unordered = 1",
        "unordered += operation == 'add' and a[0] == b[0] == 'value' and (a[1] > b[1]) -> "
        "unordered += operation == 'add' and b[0] == b[0] == 'value' and (a[1] > b[1])",
    ),
}


def _nothing_added():
    return [], lambda a: (a.exp() * 2).sum()


def _an_identity():
    from staxlab.transform import Rule, Var

    x = Var("x")
    return [Rule("one", x * 1, x)], lambda a: (a.exp() * 1).sum()


def _other_values():
    from staxlab.transform import Rule, Var, apply

    x = Var("x")
    return [Rule("more", apply("exp", x), apply("exp", x * 2))], lambda a: a.exp().sum()


def _by_itself():
    from staxlab.transform import Rule, Var

    x, y = Var("x"), Var("y")
    return [Rule("swap", x + y, y + x)], lambda a: (a.exp() + a.sin()).sum()


def _no_program():
    return []


def _not_traceable():
    return [], lambda a: a.no_such_method()


def _always(a, b):
    return True


def _never(a, b):
    return False


def _numbers_first(a, b):
    return a > b


def _ties(a, b):
    return a[0] == b[0] == "value" and a[1] >= b[1]


def _no_answer(a, b):
    return None


def _nodes_only(nodes):
    return len(nodes)


def _order_only(nodes):
    return sum(
        name in ("add", "mul")
        and (pair[0][0] == "number" or (name == "add" and pair[0] > pair[1] and pair[1][0] == "value"))
        for name, pair in nodes
    )


def _numbers_forgotten(nodes):
    return len(nodes), sum(
        name == "add" and pair[0][0] == pair[1][0] == "value" and pair[0][1] > pair[1][1] for name, pair in nodes
    )


def _negative(nodes):
    return (-len(nodes),)


def _a_fraction(nodes):
    return 1 / len(nodes)


def _text(nodes):
    return str(nodes)


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""

    def slip(mistake: str, **answers: Any) -> WrongAnswer:
        return WrongAnswer(mistake, answers, tuple(answers))

    others = tuple(option for option in CONDITIONS if option != FALLS)
    return (
        slip("terminates", added=_an_identity),
        slip("changes-values", added=_other_values),
        slip("given-rule-unused", added=_by_itself),
        slip("wrong-form", added=_no_program),
        slip("rules-fail", added=_not_traceable),
        *(slip(f"chose-{option.replace(' ', '-')}", broken_condition=option) for option in others),
        slip(f"chose-{YES.replace(' ', '-')}", unconditional=YES),
        slip("exchanges-equals", swap=_always),
        slip("not-canonical", swap=_never),
        slip("fights-normalization", swap=_numbers_first),
        slip("exchanges-equals", swap=_ties),
        slip("wrong-form", swap=_no_answer),
        slip("not-lowered-by-exchange", measure=_nodes_only),
        slip("not-lowered-by-fold", measure=_order_only),
        slip("not-lowered-by-normalize", measure=_numbers_forgotten),
        slip("not-well-founded", measure=_negative),
        slip("not-well-founded", measure=_a_fraction),
        slip("wrong-form", measure=_text),
    )
