"""Answers to Exercise 5: the reference, and the mistakes that its checker must recognise by name.

The functions use nothing but their arguments: their source is put into notebooks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ...measure.bit_patterns import number_text
from ...measure.identities import Verdict
from ..exercise import WrongAnswer
from .ex05_runs import LETTERS, NONE, OPTIONS, decided, harmless_number

if TYPE_CHECKING:
    from .ex05 import Variant


def fails_times_zero(x):
    import math

    return not math.isfinite(x) or str(x).startswith("-")


def fails_plus_zero(x):
    return str(x) == "-0.0"


def fails_minus_itself(x):
    import math

    return not math.isfinite(x)


def fails_over_itself(x):
    import math

    return not math.isfinite(x) or x == 0


def fails_zero_minus(x):
    return str(x) == "0.0"


FAILS = {
    "x * 0 -> 0": fails_times_zero,
    "x + 0 -> x": fails_plus_zero,
    "x - x -> 0": fails_minus_itself,
    "x / x -> 1": fails_over_itself,
    "0 - x -> -x": fails_zero_minus,
}


def exact_divisor(c):
    return c & (c - 1) == 0


REASONS = """For c = 2^k the number 1/c is a float32 number, so x / c and x * (1/c) ask for the rounding of one and the
same real number, and both operations round correctly, subnormal results included. For any other c, 1/c has to be
rounded first, and the second rounding starts from a number that is already wrong; some x shows it. x + 0 -> x changes
nothing but the sign of a zero, and only a division by it, copysign or atan2 can tell; x * 0 -> 0 removes the NaN or the
infinity that would have told the user that something went wrong earlier."""


def reference(variant: Variant) -> dict[str, Any]:
    """A full answer."""
    answers: dict[str, Any] = {}
    for letter, law in zip(LETTERS, variant.laws, strict=True):
        case = decided(law)
        answers[f"verdict_{letter}"] = OPTIONS[case.verdict]
        answers[f"against_{letter}"] = NONE if case.counterexample is None else _argument(law)
    return {**answers, "fails": FAILS[variant.described], "exact_divisor": exact_divisor, "reasons": REASONS}


def _argument(law: str) -> str:
    import torch

    ((_, value),) = decided(law).counterexample.arguments  # type: ignore[union-attr]
    return number_text(torch.tensor(value, dtype=torch.float32))


# No change to the functions above leaves them right.
HARMLESS: dict[str, tuple[str, ...]] = {}


def _only_nan(x):
    return x != x


def _everywhere(x):
    return True


def _only_what_equals_zero(x):
    return x == 0


def _nowhere(x):
    return False


def _no_answer(x):
    return None


def _even(c):
    return c == 1 or c % 2 == 0


def _finite_decimal(c):
    while c % 2 == 0:
        c //= 2
    while c % 5 == 0:
        c //= 5
    return c == 1


def _only_two(c):
    return c == 2


def _fails(c):
    return 1 / (c - 1) == 1


def wrong_answers(variant: Variant) -> tuple[WrongAnswer, ...]:
    """Mistakes students make, each with the name its feedback must give it."""
    found = []
    for letter, law in zip(LETTERS, variant.laws, strict=True):
        verdict = decided(law).verdict
        other = OPTIONS[Verdict.WRONG if verdict is Verdict.EXACT else Verdict.EXACT]
        name = f"verdict_{letter}"
        found.append(WrongAnswer(f"chose-{other.replace(' ', '-')}", {name: other}, (name,)))
        if verdict is Verdict.SIGN_OF_ZERO:
            found.append(WrongAnswer("chose-wrong", {name: "wrong"}, (name,)))
        if verdict is Verdict.NAN_AND_SIGN:
            found.append(WrongAnswer("chose-NaN", {name: "NaN"}, (name,)))
        name = f"against_{letter}"
        found.append(WrongAnswer("no-counterexample", {name: harmless_number(law)}, (name,)))
        if verdict is not Verdict.EXACT:
            found.append(WrongAnswer("counterexample-missed", {name: NONE}, (name,)))
    first = {
        "x * 0 -> 0": ("unnoticed-difference", _only_nan),
        "x + 0 -> x": ("false-alarm", _only_what_equals_zero),
        "x - x -> 0": ("unnoticed-difference", _only_nan),
        "x / x -> 1": ("unnoticed-difference", _only_what_equals_zero),
        "0 - x -> -x": ("false-alarm", _only_what_equals_zero),
    }
    mistake, function = first[variant.described]
    return (
        *found,
        WrongAnswer(mistake, {"fails": function}, ("fails",)),
        WrongAnswer("false-alarm", {"fails": _everywhere}, ("fails",)),
        WrongAnswer("unnoticed-difference", {"fails": _nowhere}, ("fails",)),
        WrongAnswer("wrong-form", {"fails": _no_answer}, ("fails",)),
        WrongAnswer("false-alarm", {"exact_divisor": _even}, ("exact_divisor",)),
        WrongAnswer("false-alarm", {"exact_divisor": _finite_decimal}, ("exact_divisor",)),
        WrongAnswer("unnoticed-exactness", {"exact_divisor": _only_two}, ("exact_divisor",)),
        WrongAnswer("failed-call", {"exact_divisor": _fails}, ("exact_divisor",)),
    )
