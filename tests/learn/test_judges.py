"""Judges: right answers pass, wrong ones come back with the smallest counterexample and, where known, a name."""

from __future__ import annotations

import re
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from staxlab.learn import answers as a
from staxlab.learn import judges as j
from staxlab.learn.claims import integers, lists
from staxlab.learn.feedback import Status, wrong
from staxlab.learn.rubrics import Criterion, Rubric

FORMULA = a.FormulaIn("f", "a formula", example='"n"')
N = {"n": integers(1, 1000)}


def quantity(answer):
    return FORMULA.read(answer, {})


def squares(**more):
    return j.same_quantity(lambda n: Fraction(n * n), N, seed=1, **more)


def test_the_right_formula_is_right_however_it_is_written():
    for answer in ("n**2", "n*(n + 1) - n", lambda n: n * n, lambda n: float(n) ** 2):
        assert squares()(quantity(answer)).status is Status.RIGHT


def test_a_wrong_formula_gets_the_smallest_counterexample():
    verdict = squares()(quantity("n*n*min(1, 7/n)"))
    assert verdict.status is Status.WRONG
    facts = dict(verdict.facts)
    assert facts == {"at": "n = 8", "yours": "56", "counted": "more than that"}
    assert dict(squares()(quantity("n*n*max(1, n/7)")).facts)["counted"] == "less than that"


def test_slips_are_named_only_where_they_agree_everywhere():
    slip = j.Slip("doubled", lambda n: Fraction(2 * n * n), "Twice.", Fraction(1, 4))
    verdict = squares(slips=[slip])(quantity("2*n*n"))
    assert (verdict.mistake, verdict.credit, verdict.message) == ("doubled", Fraction(1, 4), "Twice.")
    assert squares(slips=[slip])(quantity("2*n*n + max(0, n - 900)")).mistake is None


def test_a_slip_without_a_value_is_no_match():
    def broken(n):
        raise a.Malformed("none")

    assert squares(slips=[j.Slip("broken", broken, "?")])(quantity("n")).mistake is None


def test_a_constant_factor_is_remarked():
    verdict = squares()(quantity("n**2/4"))
    assert verdict.mistake == "constant-factor" and "one constant factor" in verdict.message


def test_zero_is_not_a_constant_factor_of_everything():
    assert squares()(quantity("0")).mistake is None
    assert j.same_quantity(lambda n: Fraction(0), N, seed=1)(quantity("1")).mistake is None


def test_a_function_that_fails_somewhere_is_wrong_there():
    verdict = squares()(quantity(lambda n: n * n if n < 10 else 1 / 0))
    facts = dict(verdict.facts)
    assert verdict.mistake == "no-value" and facts["at"] == "n = 10" and "ZeroDivisionError" in facts["reason"]


def test_a_slow_function_is_called_few_times():
    calls = []

    def slow(n):
        calls.append(n)
        while True:
            pass

    answer = a.Quantity(None, a.Callee(slow, ("n",), 0.02), ("n",), {})
    assert squares()(answer).mistake == "no-value" and len(calls) < 5


def test_floats_are_held_to_the_tolerance():
    assert squares()(quantity(lambda n: n * n * (1 + 1e-12))).credit == 1
    assert squares()(quantity(lambda n: n * n * (1 + 1e-6))).credit == 0
    assert squares(tolerance=Fraction(1, 1000))(quantity(lambda n: n * n * (1 + 1e-6))).credit == 1


@pytest.mark.parametrize(
    "answer",
    [7 / 23, 1 - 16 / 23, "0.30434782608695654", "n*0.30434782608695654/n", lambda n: 7 / 23, np.float64(7) / 23,
     Decimal(7) / Decimal(23), torch.tensor(7 / 23, dtype=torch.float64)],
)  # fmt: skip
def test_a_double_is_right_wherever_its_exact_value_would_be(answer):
    judge = j.same_quantity(lambda n: Fraction(7 * n, 23 * n), N, seed=1)
    assert judge(quantity(answer)).credit == 1
    if not callable(answer) and "n" not in str(answer):
        assert j.close_to(Fraction(7, 23))(a.as_number(answer)).credit == 1


def test_doubles_in_derivations_and_counts():
    pytest.importorskip("sympy")
    judge = j.derivation(
        lambda n: Fraction(n, 3), "n/3", {"n": integers(1, 30)},
        constants={}, seed=1, start_is="a third", end_is="a third",
    )  # fmt: skip
    steps = a.Steps("steps", "s", example="[]").read(["n*0.3333333333333333", "= n/3"], {})
    assert judge(steps).credit == 1
    whole = a.Number("x", "count", whole=True)
    assert whole.read(0.1 * 3 * 10, {}) == 3
    assert j.close_to(Fraction(0))(0.1 + 0.2 - 0.3).credit == 1
    assert j.same_quantity(lambda n: Fraction(0), N, seed=1)(quantity(0.1 + 0.2 - 0.3)).credit == 1


def test_a_decimal_of_three_digits_is_told_so():
    for verdict in (
        j.same_quantity(lambda n: Fraction(7, 23), N, seed=1)(quantity(0.3043)),
        j.close_to(Fraction(7, 23))(0.3043),
    ):
        assert verdict.mistake == "rounded" and 0 < verdict.credit < 1
    assert squares()(quantity("n*n*1.0001")).mistake == "constant-factor"  # a formula is not rounded


WRONG = [
    j.same_quantity(lambda n: Fraction(7, 23), N, seed=1)(quantity("5/23")),
    j.same_quantity(lambda n: Fraction(7, 23), N, seed=1)(quantity(0.3)),
    j.same_quantity(lambda n: Fraction(7, 23), N, seed=1)(quantity("1/(n - n)")),
    j.same_quantity(lambda n: Fraction(7, 23), N, seed=1)(quantity("14*n/(23*n)")),
    j.same_quantity(lambda n: Fraction(7, 23), N, seed=1)(quantity("n")),
    j.close_to(Fraction(7, 23))(Fraction(5, 23)),
    j.close_to(Fraction(7, 23))(0.3),
    j.close_to(Fraction(7, 23), slips=[j.Slip("inverted", Fraction(23, 7), "Inverted.")])(Fraction(23, 7)),
]


@pytest.mark.parametrize("verdict", WRONG)
def test_feedback_does_not_give_the_answer_away(verdict):
    """Neither the value nor what is missing from it: the direction only."""
    assert verdict.credit < 1
    said = " ".join([verdict.message, *(value for label, value in verdict.facts if label not in ("yours", "at"))])
    assert not re.search(r"\d{2}|7/23|2/23|14|0\.|1/2|2 times", said), said


def test_numbers_within_a_stated_tolerance():
    judge = j.close_to(Fraction(1, 3), relative=Fraction(1, 100), slips=[j.Slip("inverted", Fraction(3), "Inverted.")])
    assert judge(0.3333).credit == 1 and judge(Fraction(1, 3)).credit == 1
    assert judge(0.34).status is Status.WRONG and judge(Fraction(3)).mistake == "inverted"
    assert j.close_to(Fraction(0))(Fraction(0)).credit == 1 and j.close_to(Fraction(0))(1e-12).credit == 0


def test_vectors_and_matrices_entry_by_entry():
    field = a.Numbers("m", "a matrix", example="[[1, 2]]", shape=(None, 2))
    judge = j.same_numbers([[1, Fraction(1, 3)]], slips=(j.Slip("turned", ((Fraction(1, 3), 1),), "Turned round."),))

    def judged(answer):
        return judge(field.read(answer, {}))

    for answer in ([[1, "1/3"]], ((1, 1 / 3),), torch.tensor([[1, 1 / 3]], dtype=torch.float64)):
        assert judged(answer).status is Status.RIGHT
    assert judged([["1/3", 1]]).mistake == "turned"
    verdict = judged([[1, 2]])
    assert (verdict.credit, verdict.mistake) == (0, None) and dict(verdict.facts) == {"right are": "1 of 2"}
    assert judged([[1, "1/3"], [1, "1/3"]]).credit == 0, "another number of rows"


def test_options():
    judge = j.one_of("smaller", {"larger": "It is not."})
    assert judge("smaller").credit == 1
    assert judge("larger").message == "It is not." and judge("larger").mistake == "chose-larger"


# --- Derivations ---

STEPS = a.Steps("steps", "a derivation", example="[]")


def derive(*steps):
    pytest.importorskip("sympy")
    judge = j.derivation(
        lambda n: Fraction(n * (n + 1), 2), "n**2/2 + n/2", {"n": integers(1, 30)},
        constants={}, seed=1, start_is="the sum", end_is="the closed form",
    )  # fmt: skip
    return judge(STEPS.read(list(steps), {}))


def test_a_right_derivation():
    assert derive("Sum(i, (i, 1, n))", "= n*(n + 1)/2", "= n**2/2 + n/2").status is Status.RIGHT


@pytest.mark.parametrize(
    ("steps", "mistake"),
    [
        (("Sum(i, (i, 0, n - 1))", "= n**2/2 - n/2"), "wrong-start"),
        (("Sum(i, (i, 1, n))", "= n*(n + 2)/2", "= n**2/2 + n/2"), "wrong-step"),
        (("Sum(i, (i, 1, n))", "<= n**2"), "wrong-end"),
        (("n*(n + 1)/2", "= n * (n+1) / 2"), "repeated-step"),
        (("n*(n + 1)/2", "<= n**2/2 + n/2"), "inequality-for-equality"),
    ],
)
def test_a_wrong_derivation_is_told_where(steps, mistake):
    verdict = derive(*steps)
    assert verdict.mistake == mistake and verdict.credit < 1


def test_the_wrong_step_is_shown_with_both_values():
    facts = dict(derive("Sum(i, (i, 1, n))", "= n*(n + 2)/2", "= n**2/2 + n/2").facts)
    assert facts == {"at": "n = 1", "step 1": "1", "step 2": "3/2 (1.5)"}


# --- Functions ---

FUNCTION = a.Function("f", "a function", parameters=("values",), example="f = sorted")


def sorts(callee, values):
    outcome = callee.call(list(values))
    if outcome.failed:
        return j.call_failed(callee, (values,), outcome)
    if not isinstance(outcome.value, list):
        return j.unexpected_result(callee, (values,), f"{outcome.value!r} is no list")
    return None if outcome.value == sorted(values) else wrong("Not sorted.", ("got", outcome.value))


SORTING = j.for_all({"values": lists(integers(0, 9), 0, 6)}, sorts, seed=7)


def test_for_all_accepts_and_says_how_many_trials():
    verdict = SORTING(FUNCTION.read(sorted, {}))
    assert verdict.credit == 1 and "seed 7" in dict(verdict.facts)["tried"]


@pytest.mark.parametrize(
    ("function", "counterexample"),
    [
        (lambda values: values, "values = [1, 0]"),
        (lambda values: sorted(set(values)), "values = [0, 0]"),
        (lambda values: values[1:] and sorted(values), "values = [0]"),
        (lambda values: None, "values = []"),
        (lambda values: max(values) and sorted(values), "values = []"),
    ],
)
def test_for_all_finds_the_smallest_counterexample(function, counterexample):
    verdict = SORTING(FUNCTION.read(function, {}))
    assert verdict.status is Status.WRONG and dict(verdict.facts)["for"] == counterexample


def test_constructions_are_tried_from_the_smallest_up():
    tried = []

    def examine(callee, arguments):
        tried.append(arguments)
        return wrong("No.", ("size", arguments[0])) if arguments[0] >= 3 else None

    judge = j.construction([(1,), (2,), (3,), (4,)], examine)
    assert dict(judge(FUNCTION.read(sorted, {})).facts)["size"] == "3" and tried == [(1,), (2,), (3,)]


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no")


@pytest.mark.parametrize("make", [Unprintable, lambda: [Unprintable()], lambda: 10**5000, lambda: "x" * 10**6])
def test_whatever_a_function_returns_can_be_shown(make):
    value = make()
    assert len(j.result_text(value)) <= 80
    shown = wrong("No.", ("yours", value)).facts[0][1]
    assert shown and (isinstance(value, str) or "cannot be printed" in shown)


def test_prose_waits_for_a_reader():
    verdict = j.read_by_a_person(Rubric((Criterion("Storage", 2, "all"),)))("Because.")
    assert verdict.status is Status.PENDING and "Storage" in verdict.message


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Fraction(12345), "12,345"), (Fraction(4, 7), "4/7 (0.571429)"), (0.1, "0.1"),
        (Fraction(10**3000), "about 10^3000"), (Fraction(1, 10**3000), "about 10^-3000"),
        (-Fraction(10**5000, 3), "-about 10^5000"), (Fraction(1, 3**60), "2.358982488e-29"),
    ],
)  # fmt: skip
def test_numbers_print_at_any_size(value, text):
    assert j.number_text(value) == text
