"""What Exercise 5 runs: both sides of a rewrite, on PyTorch's own float32 arithmetic."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar

import torch

from ...measure import bit_patterns
from ...measure.candidates import CANDIDATES
from ...measure.identities import Case, Identity, Verdict, compare, evaluate
from ...transform.patterns import Var, apply
from ..answers import Callee, Field, Malformed
from ..feedback import Verdict as Mark
from ..feedback import right, wrong
from ..judges import call_failed, unexpected_result

OPTIONS = {
    Verdict.EXACT: "exact",
    Verdict.SIGN_OF_ZERO: "sign of zero",
    Verdict.NAN: "NaN",
    Verdict.NAN_AND_SIGN: "NaN and sign of zero",
    Verdict.WRONG: "wrong",
}
NONE = "none"
LETTERS = "abcdefg"

#: The seven of the chapter, in its order.
CHAPTER = ("x * 1 -> x", "x + 0 -> x", "x - 0 -> x", "x * 0 -> 0", "x - x -> 0", "x / 2 -> x * 0.5",
           "x / 3 -> x * (1 / 3)")  # fmt: skip

#: What a student's seven are drawn from, and how many of each row.
POOL: tuple[tuple[int, tuple[str, ...]], ...] = (
    (2, ("x * 1 -> x", "x - 0 -> x", "x / 2 -> x * 0.5", "x * 2 -> x + x", "x * -1 -> -x", "x + -0.0 -> x",
         "(x * 2) * 2 -> x * 4", "(x / 2) / 2 -> x / 4", "x * 3 -> (x + x) + x")),
    (1, ("x + 0 -> x", "0 - x -> -x")),
    (1, ("x - x -> 0", "x / x -> 1")),
    (1, ("x * 0 -> 0", "0 / x -> 0")),
    (2, ("x / 3 -> x * (1 / 3)", "x / 10 -> x * (1 / 10)", "(x * 2) / 2 -> x", "(x / 2) * 2 -> x",
         "sqrt(x * x) -> abs(x)", "(x + 1) - 1 -> x", "1 / (1 / x) -> x")),
)  # fmt: skip

#: For which the numbers at which they fail can be described in one line.
DESCRIBED = ("x * 0 -> 0", "x + 0 -> x", "x - x -> 0", "x / x -> 1", "0 - x -> -x")


@lru_cache(maxsize=1)
def _by_law() -> dict[str, Identity]:
    return {identity.law: identity for identity in CANDIDATES}


@lru_cache(maxsize=64)
def decided(law: str) -> Case:
    """What the search over float32 numbers says."""
    return compare(_by_law()[law], torch.float32)


def sides(law: str, x: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Both sides at one float32 number. A vector of them, as the operators are meant to run, and its first element."""
    identity = _by_law()[law]
    values = {"x": torch.full((64,), x, dtype=torch.float32)}
    left, right_side = evaluate(identity.left, values), evaluate(identity.right, values)
    if not isinstance(right_side, torch.Tensor):
        right_side = torch.full_like(left, right_side)
    return left[0], right_side[0]


def differs(law: str, x: float) -> bool:
    left, other = sides(law, x)
    if bool(left.isnan()) and bool(other.isnan()):
        return False
    return bool(bit_patterns.bits_of(left[None]) != bit_patterns.bits_of(other[None]))


def harmless_number(law: str) -> float:
    """A plain number at which the two sides agree: what one tries first."""
    return next(x for x in (1.0, 2.0, 0.5, 3.0, 4.0) if not differs(law, x))


@dataclass(frozen=True)
class Float32(Field):
    """A float32 number, with zeros, infinities and NaN, or the word "none"."""

    kind: ClassVar[str] = 'a float32 number (1.5, "-0.0", "nan", "inf", 1e-45, ...) or "none"'

    def read(self, answer: Any, constants: Any) -> float | str:
        if isinstance(answer, str):
            text = answer.strip().lower()
            if text == NONE:
                return NONE
            try:
                answer = float.fromhex(text) if "0x" in text else float(text)
            except ValueError:
                raise Malformed(f"{answer!r} is no number") from None
        if callable(getattr(answer, "item", None)):
            answer = answer.item()
        if isinstance(answer, bool) or not isinstance(answer, (int, float)):
            raise Malformed(f"got {type(answer).__name__}")
        try:
            return torch.tensor(float(answer), dtype=torch.float64).to(torch.float32).item()
        except OverflowError:
            raise Malformed("the number is too large") from None


def judge_counterexample(law: str, answer: float | str) -> Mark:
    """Run the two sides at the number."""
    exact = decided(law).verdict is Verdict.EXACT
    if answer == NONE:
        if exact:
            return right("Right: a search found none.", ("tried", f"{decided(law).tried:,} float32 numbers"))
        return wrong(
            "There is one. Try what is unlike other numbers (both zeros, infinity, NaN, the largest and the smallest), "
            "and then numbers whose result has to be rounded.",
            mistake="counterexample-missed",
        )
    assert isinstance(answer, float)
    left, other = sides(law, answer)
    facts = (
        ("x", bit_patterns.number_text(torch.tensor(answer, dtype=torch.float32))),
        ("before", bit_patterns.number_text(left)),
        ("after", bit_patterns.number_text(other)),
    )
    if differs(law, answer):
        return right("Right, the two sides differ there.", *facts)
    return wrong("Both sides give the same float32 number there, bit by bit.", *facts, mistake="no-counterexample")


#: Numbers a predicate is tried on: the special ones and some ordinary ones, simplest first.
NUMBERS: tuple[float, ...] = tuple(
    dict.fromkeys([0.0, 1.0, 2.0, 3.0, 0.5, -1.0, -2.5, 7.25, 1e10, -1e-10, math.inf, math.nan])
) + tuple(x for x in bit_patterns.special(torch.float32).tolist() if x == x and x not in (0.5, 1.0, 2.0, 3.0, math.inf)
          and str(x) != "0.0")  # fmt: skip


def against_description(law: str, callee: Callee, x: float) -> Mark | None:
    """A student's predicate against what the two sides give."""
    outcome = callee.call(x)
    if outcome.failed:
        return call_failed(callee, (x,), outcome)
    if not isinstance(outcome.value, bool):
        return unexpected_result(callee, (x,), f"it returned {outcome.value!r}, which is neither True nor False")
    left, other = sides(law, x)
    if outcome.value == differs(law, x):
        return None
    facts = (("before", bit_patterns.number_text(left)), ("after", bit_patterns.number_text(other)))
    if outcome.value:
        return wrong("The rewrite changes nothing there.", *facts, mistake="false-alarm")
    return wrong("The rewrite changes the result there.", *facts, mistake="unnoticed-difference")


@lru_cache(maxsize=8192)
def division_case(c: int) -> Case:
    """``x / c => x * (1 / c)`` over float32."""
    x = Var("x")
    return compare(Identity(x / c, x * apply("div", 1, c)), torch.float32, quick=True)


def against_divisors(callee: Callee, c: int) -> Mark | None:
    """A student's predicate on divisors against the search."""
    outcome = callee.call(c)
    if outcome.failed:
        return call_failed(callee, (c,), outcome)
    if not isinstance(outcome.value, bool):
        return unexpected_result(callee, (c,), f"it returned {outcome.value!r}, which is neither True nor False")
    case = division_case(c)
    if outcome.value == (case.verdict is Verdict.EXACT):
        return None
    if outcome.value:
        return wrong("That division cannot be replaced.", ("found", case.counterexample), mistake="false-alarm")
    tried = f"{case.tried:,} float32 numbers"
    return wrong("No difference was found there.", ("tried", tried), mistake="unnoticed-exactness")
