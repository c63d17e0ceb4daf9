"""Judges: from a well-formed answer to a verdict. Each function here makes one, given the truth.

A judge is a function from the value a field delivers to a :class:`~staxlab.learn.feedback.Verdict`. The truth it holds
is always a function or a value that the package computes; the slips it recognises (:class:`Slip`) are computed in the
same way, as the answer a student gets who makes exactly that mistake. An answer is recognised as a slip only if it
agrees with the slip wherever it was tried, so a name is never put to something that merely looks similar.

A wrong answer is shown where it fails and in which direction, never what would have been right: a number that can be
copied teaches nothing, and at one point it often *is* the answer.

=====================  ==================================================================================
judge                  claim it checks
=====================  ==================================================================================
``same_quantity``      "this formula is the quantity", by exact comparison at many points
``close_to``           "this number is the value", within a stated tolerance
``same_numbers``       "these numbers are the vector or matrix", exactly
``one_of``             "this option is the right one"
``derivation``         "each step follows, from the given start to the given end" (SymPy)
``construction``       "this function builds what was asked for", by building and brute force
``for_all``            "this function is right for every input", by a search for a counterexample
``read_by_a_person``   prose, with its rubric
=====================  ==================================================================================
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from .algebra import RELATIVE_TOLERANCE, Standing, Step, examine, values_agree
from .answers import Callee, Malformed, Quantity
from .claims import Search, Values, falsify
from .feedback import Verdict, nearly, pending, right, wrong
from .formula import Value, parse_formula
from .limits import Outcome
from .rubrics import Rubric

Judge = Callable[[Any], Verdict]

# What a float in an answer may be off by, relative to the truth. Exact answers are compared exactly.
FLOAT_TOLERANCE = RELATIVE_TOLERANCE
# A decimal this close is the right value, written with too few digits.
FIRST_DIGITS = Fraction(1, 1000)
TOO_FEW_DIGITS = "The right value, rounded too early: give ten digits or more, or a fraction, or the formula behind it."


@dataclass(frozen=True)
class Slip:
    """A recognisable mistake: the ``answer`` it leads to, what to tell the student, and the credit it still earns.

    ``answer`` is a function of the same variables as the truth (for quantities), a value (for numbers) or an option.
    """

    name: str
    answer: Any
    message: str
    credit: Fraction = Fraction(0)

    def verdict(self, *facts: tuple[str, Any]) -> Verdict:
        if self.credit:
            return nearly(self.message, *facts, credit=self.credit, mistake=self.name)
        return wrong(self.message, *facts, mistake=self.name)


def number_text(value: Value) -> str:
    """``12,345``, ``4/7 (0.571429)``, ``0.1``; numbers too long to print as a power of ten."""
    if isinstance(value, float):
        return f"{value:.10g}"
    digits = max(value.numerator.bit_length(), value.denominator.bit_length())
    if digits > 200:
        size = value.numerator.bit_length() - value.denominator.bit_length()
        return f"{'-' if value < 0 else ''}about 10^{round(size * 0.30103)}"
    if value.denominator == 1:
        return f"{value.numerator:,}"
    return f"{value} ({float(value):.6g})" if digits < 64 else f"{float(value):.10g}"


def point_text(point: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} = {value}" for name, value in point.items())


def direction(yours: Value, truth: Value) -> str:
    """Where the truth lies from an answer, without saying what it is."""
    return "more than that" if truth > yours else "less than that"


def same_quantity(
    truth: Callable[..., Value],
    domain: Mapping[str, Values],
    *,
    seed: int | None,
    slips: Iterable[Slip] = (),
    trials: int = 40,
    tolerance: Fraction = FLOAT_TOLERANCE,
    counted: str = "counted",
    praise: str = "Right.",
) -> Judge:
    """The answer equals ``truth`` on the domain: exactly, or within a relative ``tolerance`` for floats.

    ``truth(**point)`` is evaluated at every point tried, as are the slips, so cache it if it is dear. A slip may raise
    Malformed where it has no value (one that follows another answer of the student). ``counted`` says where the truth
    comes from; feedback tells on which side of the answer it lies.
    """

    def differs(answer: Quantity, other: Callable[..., Value], tolerance: Fraction = tolerance) -> Search:
        """Search for a point where the answer is not ``other``; the reason is (answer, other, problem, timed out)."""

        def against(**point: Any) -> tuple[Value | None, Value | None, str, bool] | None:
            expected: Value | None = None
            try:
                expected = other(**point)
                value = answer.at(**point)
            except Malformed as error:
                return None, expected, str(error), error.timed_out
            return None if values_agree(value, expected, tolerance) else (value, expected, "", False)

        return falsify(
            against, domain, seed=seed, trials=trials, purpose="quantity", worth_shrinking=lambda reason: not reason[3]
        )

    def judge(answer: Quantity) -> Verdict:
        search = differs(answer, truth)
        if search.counterexample is None:
            return right(praise, ("compared at", f"{search.trials} points"))
        value, expected, problem, _ = search.reason
        where = ("at", point_text(search.counterexample))
        if value is None:
            return wrong("Your answer has no value there.", where, ("reason", problem), mistake="no-value")
        facts = (where, ("yours", number_text(value)), (counted, direction(value, expected)))
        for slip in slips:
            if differs(answer, slip.answer).survived:
                return slip.verdict(*facts)
        if answer.is_constant and isinstance(value, float) and differs(answer, truth, FIRST_DIGITS).survived:
            return nearly(TOO_FEW_DIGITS, *facts, mistake="rounded")
        if expected and value and not answer.is_constant:
            ratio = Fraction(value) / Fraction(expected)
            if differs(answer, lambda **point: ratio * Fraction(truth(**point))).survived:
                remark = (
                    f"Not this, but nearly of the right form: it is off by one constant factor, whatever "
                    f"{' and '.join(domain)}. Is something counted too often, or left out?"
                )
                return wrong(remark, *facts, mistake="constant-factor")
        return wrong("Not this.", *facts)

    return judge


def close_to(
    truth: Value,
    *,
    relative: Fraction = FLOAT_TOLERANCE,
    absolute: Fraction = Fraction(0),
    slips: Iterable[Slip] = (),
    unit: str = "",
    praise: str = "Right.",
) -> Judge:
    """The number is ``truth`` within ``absolute + relative * |truth|``. Slips give values."""
    margin = absolute + relative * abs(Fraction(truth))
    suffix = f" {unit}" if unit else ""

    def near(value: Value, target: Value) -> bool:
        return abs(Fraction(value) - Fraction(target)) <= margin or values_agree(value, target)

    def judge(answer: Value) -> Verdict:
        if near(answer, truth):
            return right(praise)
        yours = ("yours", number_text(answer) + suffix)
        for slip in slips:
            if near(answer, slip.answer):
                return slip.verdict(yours)
        if isinstance(answer, float) and values_agree(answer, truth, FIRST_DIGITS):
            return nearly(TOO_FEW_DIGITS, yours, mistake="rounded")
        return wrong("Not this number.", yours, ("the value is", direction(answer, truth)))

    return judge


def same_numbers(truth: Any, *, slips: Iterable[Slip] = (), praise: str = "Right.") -> Judge:
    """The nested numbers (a ``Numbers`` field) are ``truth``, entry by entry. Slips give nested numbers as well."""

    def flat(value: Any) -> list[Value]:
        return [entry for part in value for entry in flat(part)] if isinstance(value, list | tuple) else [value]

    def agreeing(answer: Any, other: Any) -> tuple[int, int]:
        mine, theirs = flat(answer), [Fraction(entry) for entry in flat(other)]
        return sum(map(values_agree, mine, theirs)), max(len(mine), len(theirs))

    def judge(answer: Any) -> Verdict:
        good, entries = agreeing(answer, truth)
        if good == entries:
            return right(praise)
        for slip in slips:
            same, count = agreeing(answer, slip.answer)
            if same == count:
                return slip.verdict()
        return wrong("Not all of these numbers are right.", ("right are", f"{good} of {entries}"))

    return judge


def one_of(truth: str, reasons: Mapping[str, str] | None = None, *, praise: str = "Right.") -> Judge:
    """The option is ``truth``; ``reasons`` says for each other option what speaks against it."""

    def judge(answer: str) -> Verdict:
        if answer == truth:
            return right(praise)
        reason = (reasons or {}).get(answer, "Not this one.")
        return wrong(reason, mistake=f"chose-{answer.replace(' ', '-')}")

    return judge


def derivation(
    start: Callable[..., Value],
    end: str,
    domain: Mapping[str, Values],
    *,
    constants: Mapping[str, Fraction],
    seed: int | None,
    start_is: str,
    end_is: str,
) -> Judge:
    """A chain of formulas begins with ``start`` (a counted quantity), ends with ``end``, and every step holds.

    Credit is the share of checks that hold: the start, each step, and the end. A step that only repeats the one before
    makes the whole chain wrong, since it says nothing. Needs SymPy.
    """
    names = (*domain, *constants)
    goal = parse_formula(end, names)

    def judge(steps: tuple[Step, ...]) -> Verdict:
        for position, (before, after) in enumerate(zip(steps, steps[1:], strict=False), 2):
            if before.formula.text.replace(" ", "") == after.formula.text.replace(" ", ""):
                return wrong(f"Step {position} repeats step {position - 1}.", mistake="repeated-step")
        first = Quantity(steps[0].formula, None, tuple(domain), constants)
        opening = same_quantity(start, domain, seed=seed, counted=start_is)(first)
        held, total, problems = int(opening.credit == 1), len(steps) + 1, []
        if opening.credit != 1:
            problems.append(wrong(f"Step 1 is not {start_is}.", *opening.facts, mistake="wrong-start"))
        weakest, unproved = "=", []
        for position, (before, after) in enumerate(zip(steps, steps[1:], strict=False), 2):
            link = examine(before.formula, after.relation, after.formula, domain, constants=constants, seed=seed)
            if after.relation != "=":
                weakest = after.relation
            if link.standing is Standing.REFUTED:
                assert link.point is not None
                facts = [("at", point_text(link.point))]
                if link.problem:
                    facts.append(("reason", link.problem))
                else:
                    facts.append((f"step {position - 1}", number_text(link.left)))  # type: ignore[arg-type]
                    facts.append((f"step {position}", number_text(link.right)))  # type: ignore[arg-type]
                problems.append(wrong(f"Step {position} does not follow.", *facts, mistake="wrong-step"))
            else:
                held += 1
                if link.standing is Standing.UNDECIDED:
                    unproved.append(position)
        closing = examine(steps[-1].formula, "=", goal, domain, constants=constants, seed=seed)
        if closing.standing is Standing.REFUTED:
            assert closing.point is not None
            last = closing.left or Fraction(0)
            facts = [("at", point_text(closing.point))]
            if closing.problem:
                facts.append(("reason", closing.problem))
            else:
                facts += [("last step", number_text(last)), (end_is, direction(last, closing.right or Fraction(0)))]
            problems.append(wrong(f"The chain does not end in {end_is}.", *facts, mistake="wrong-end"))
        else:
            held += 1
        if not problems and weakest != "=":
            return nearly(
                f"An equality is claimed, and your chain has a step with {weakest}: it proves only a bound.",
                mistake="inequality-for-equality",
            )
        if not problems:
            facts = (
                [("not proved", f"steps {unproved}: they hold wherever tried, which is no proof")] if unproved else []
            )
            return right(f"Every step holds, from {start_is} to {end_is}.", *facts)
        worst = problems[0]
        if held == 0 or worst.mistake == "wrong-start":
            return worst
        return nearly(worst.message, *worst.facts, credit=Fraction(held, 2 * total), mistake=worst.mistake)

    return judge


def construction(
    instances: Sequence[tuple[Any, ...]],
    examine_one: Callable[[Callee, tuple[Any, ...]], Verdict | None],
    *,
    praise: str = "Right.",
) -> Judge:
    """Run the student's function on every instance, smallest first; the first verdict that is not None is returned.

    ``examine_one`` calls the function (through :class:`Callee`, hence with a time limit) and judges what it built, by
    brute force. Because instances grow, the counterexample shown is the smallest that fails.
    """

    def judge(answer: Callee) -> Verdict:
        for arguments in instances:
            verdict = examine_one(answer, arguments)
            if verdict is not None:
                return verdict
        return right(praise, ("run on", f"{len(instances)} sizes"))

    return judge


def for_all(
    domain: Mapping[str, Values],
    reason_against: Callable[..., Verdict | None],
    *,
    seed: int | None,
    trials: int = 200,
    praise: str = "No counterexample found.",
) -> Judge:
    """The student's function does what is claimed for every input of the domain.

    ``reason_against(callee, **arguments)`` gives None, or the verdict that the arguments justify; the arguments are
    shrunk first and then added to its facts.
    """

    def judge(answer: Callee) -> Verdict:
        def against(**arguments: Any) -> Verdict | None:
            return reason_against(answer, **arguments)

        search = falsify(
            against, domain, seed=seed, trials=trials, worth_shrinking=lambda verdict: verdict.mistake != "timed-out"
        )
        if search.counterexample is None:
            source = "" if seed is None else f" drawn from seed {seed}"
            return right(praise, ("tried", f"{search.trials} inputs{source}"))
        verdict: Verdict = search.reason
        return Verdict(
            verdict.status,
            verdict.credit,
            verdict.message,
            (("for", point_text(search.counterexample)), *verdict.facts),
            verdict.mistake,
        )

    return judge


def call_failed(callee: Callee, arguments: tuple[Any, ...], outcome: Outcome) -> Verdict:
    """The verdict on a student's function that raised or did not return in time."""
    facts = (("call", callee.call_text(*arguments)), ("reason", outcome.reason()))
    return wrong("Your function failed.", *facts, mistake="timed-out" if outcome.timed_out else "failed-call")


def result_text(value: Any) -> str:
    """What a student's function returned, in 80 characters at most, whatever it is."""
    try:
        text = repr(value)
    except Exception:  # a repr that raises, or an integer of too many digits
        return f"a value of type {type(value).__name__} that cannot be printed"
    return text if len(text) <= 80 else text[:77] + "..."


def unexpected_result(callee: Callee, arguments: tuple[Any, ...], problem: str) -> Verdict:
    """The verdict on a student's function that returned the wrong kind of thing."""
    facts = (("call", callee.call_text(*arguments)), ("reason", problem))
    return wrong("Your function returned something of the wrong form.", *facts, mistake="wrong-form")


def read_by_a_person(rubric: Rubric) -> Judge:
    """Prose: recorded, and left to the instructor with the rubric."""

    def judge(answer: str) -> Verdict:
        names = "; ".join(criterion.name for criterion in rubric.criteria)
        return pending(f"Recorded. Your instructor reads it for: {names}.")

    return judge
