"""Answer fields: every reasonable spelling is read, everything else gets one sentence with the field and an example."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from staxlab.learn import answers as a

CONSTANTS = {"C": Fraction(128), "b": Fraction(4)}
FORMULA = a.FormulaIn("traffic", "bytes moved", 1, "bytes", '"3*n + 7"')


def read(field, answer):
    return field.read(answer, CONSTANTS)


@pytest.mark.parametrize(
    "answer",
    ["b*C*n + 3", lambda n: 512 * n + 3, lambda n: np.int64(512 * n + 3), lambda n: torch.tensor(512 * n + 3)],
    ids=["text", "function", "numpy", "tensor"],
)
def test_a_formula_may_be_written_in_several_ways(answer):
    quantity = read(FORMULA, answer)
    assert [quantity.at(n=n) for n in (1, 7)] == [515, 3587]


def test_a_formula_may_be_a_number_or_a_sympy_expression():
    sympy = pytest.importorskip("sympy")
    n = sympy.Symbol("n")
    assert read(FORMULA, sympy.Symbol("C") * n + sympy.Rational(1, 2)).at(n=2) == Fraction(513, 2)
    assert read(FORMULA, 7).at(n=2) == 7
    assert read(FORMULA, 0.5).at(n=2) == Fraction(1, 2)
    assert read(FORMULA, Fraction(4, 7)).at(n=1) == Fraction(4, 7)


@pytest.mark.parametrize(
    ("answer", "part"),
    [
        ("8*m", "unknown name 'm'"),
        (lambda: 3, "cannot be called with (n)"),
        (lambda n, m: 3, "cannot be called with (n)"),
        (True, "not a real number"),
        (float("nan"), "not a finite number"),
        ([1, 2], "got list"),
        (int, "not a number"),
        (torch.zeros(3), "more than one value"),
        (object(), "not a number"),
    ],
)
def test_a_malformed_formula_gets_one_sentence(answer, part):
    with pytest.raises(a.Malformed) as caught:
        read(FORMULA, answer)
    message = FORMULA.complaint(str(caught.value))
    assert part in message and message.startswith("traffic must be a formula in n")
    assert 'Example: traffic = "3*n + 7"' in message


@pytest.mark.parametrize("result", [None, "many", True, 1j, float("inf"), [1], object()])
def test_a_function_that_returns_no_number_has_no_value(result):
    with pytest.raises(a.Malformed):
        read(FORMULA, lambda n: result).at(n=1)


def test_a_function_that_raises_or_hangs_says_so():
    with pytest.raises(a.Malformed, match="ZeroDivisionError.*at line"):
        read(FORMULA, lambda n: 1 / (n - 1)).at(n=1)

    def endless(n):
        while True:
            pass

    quantity = a.Quantity(None, a.Callee(endless, ("n",), 0.05), ("n",), {})
    with pytest.raises(a.OutOfTime, match="still running"):
        quantity.at(n=1)


def test_all_calls_of_one_function_share_a_budget():
    callee = a.Callee(lambda: None, (), seconds=0.01)
    callee.left = 0.0
    assert callee.call().timed_out


@pytest.mark.parametrize(
    ("answer", "value"),
    [
        (3, 3), ("3/8", Fraction(3, 8)), (Fraction(1, 3), Fraction(1, 3)), (0.5, 0.5), (np.float32(0.5), 0.5),
        (Decimal("0.1"), Fraction(1, 10)), (np.int8(4), 4), (torch.tensor(2.5), 2.5),
    ],
)  # fmt: skip
def test_numbers(answer, value):
    assert read(a.Number("x", "a number"), answer) == value


def test_whole_numbers():
    field = a.Number("x", "count", whole=True)
    assert read(field, 4.0) == 4 and "a whole number" in field.form()
    with pytest.raises(a.Malformed, match="not whole"):
        read(field, 2.5)


def test_arrays_have_a_shape():
    field = a.Numbers("order", "a matrix", shape=(2, None))
    assert read(field, [[1, 2, 3], (4, 5, 6)]) == ((1, 2, 3), (4, 5, 6))
    assert read(field, np.eye(2)) == read(field, torch.eye(2)) == ((1, 0), (0, 1))
    assert field.form() == "numbers of shape 2 x any"
    assert a.Numbers("ends", "", shape=(2,)).form() == "a list of 2 numbers"
    assert a.Numbers("history", "").form() == "a list of numbers"
    for wrong, part in (
        ([[1]], "1 entries and not 2"),
        ([1, 2], "not a list"),
        ([[[1]], [[2]]], "nested more"),
        (7, "not a list"),
    ):
        with pytest.raises(a.Malformed, match=part):
            read(field, wrong)


def test_choices_ignore_case_and_blanks():
    field = a.Choice("change", "what happens", options=("larger", "no different"))
    assert read(field, " No Different ") == "no different"
    for wrong in ("smaller", 3, "larger or no different"):
        with pytest.raises(a.Malformed):
            read(field, wrong)


def test_functions_must_take_the_parameters():
    field = a.Function(
        "schedule", "a kernel", parameters=("n", "k"), returns="steps", example="def schedule(n, k): ..."
    )
    assert read(field, lambda n, k: n + k).call(1, 2).value == 3
    assert read(field, lambda *args: len(args)).call(1, 2).value == 2
    assert read(field, max).call(1, 2).value == 2  # a builtin
    with pytest.raises(a.Malformed, match="cannot be called"):
        read(field, lambda n: n)
    assert "Example:\ndef schedule" in field.complaint("got 3")


def test_steps_name_the_step_that_is_wrong():
    field = a.Steps("steps", "a derivation")
    assert [str(step) for step in read(field, ["n*C", "= C*n", "<= 2*C*n"])] == ["= n*C", "= C*n", "<= 2*C*n"]
    for wrong, part in (
        (["n"], "got 1"),
        ("n = n", "got str"),
        (["n", 3], "step 2 is int"),
        (["n", "= 8n"], "step 2: "),
    ):
        with pytest.raises(a.Malformed, match=part):
            read(field, wrong)


@pytest.mark.parametrize("nothing", [None, ..., "", "  \n", [], (), {}])
def test_nothing_is_no_answer(nothing):
    assert FORMULA.is_missing(nothing)
    assert a.Numbers("x", "array").is_missing(nothing)


@pytest.mark.parametrize("something", [0, 0.0, False, "0", [0], np.zeros(0), torch.zeros(0), lambda: None])
def test_zero_is_an_answer(something):
    assert not FORMULA.is_missing(something)
    assert not a.Numbers("x", "array").is_missing(something)


def test_what_is_recorded_is_text():
    assert FORMULA.recorded("8*n") == "8*n"
    assert "lambda n: 8 * n" in FORMULA.recorded(lambda n: 8 * n)
    assert len(FORMULA.recorded("n" * 10**6)) < a.MAX_RECORDED + 100
    assert FORMULA.recorded(max) == "<built-in function max>"
