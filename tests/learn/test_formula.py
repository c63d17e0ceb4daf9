"""Formulas from outside: what is read, what is refused with a useful sentence, and that values are exact."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from staxlab.learn.formula import FormulaError, parse_formula


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("8*n + 3", 43),
        ("n/3", Fraction(5, 3)),
        ("0.1*n", Fraction(1, 2)),
        ("2**n", 32),
        ("n**-1", Fraction(1, 5)),
        ("-n % 3", 1),
        ("n // 2", 2),
        ("min(n, 3) + max(n, 3)", 8),
        ("ceil(n/2) + floor(n/2)", 5),
        ("sqrt(n + 4)", 3),
        ("log2(n + 3)", 3),
        ("abs(1 - n)", 4),
        ("binomial(n, 2) + factorial(3)", 16),
        ("Sum(i, (i, 1, n))", 15),
        ("Sum(Sum(1, (j, 1, i)), (i, 1, n))", 15),
        ("Sum(i, (i, 3, 2))", 0),
        ("Sum(1/0, (i, 3, 2))", 0),
        ("Sum(n, (i, 2, n))", 20),
        ("Sum(Sum(j, (j, 1, 3)), (i, 1, 10**9))", 6 * 10**9),
        ("8×n − 3", 37),
        ("  8 *\n n ", 40),
    ],
)
def test_values_are_exact(text, value):
    result = parse_formula(text, ("n",)).at(n=5)
    assert isinstance(result, Fraction) and result == value


@pytest.mark.parametrize(("text", "value"), [("sqrt(2)", math.sqrt(2)), ("exp(1)", math.e), ("log(8, 2)", 3.0)])
def test_irrational_functions_give_floats(text, value):
    result = parse_formula(text, ()).at()
    assert isinstance(result, float) and math.isclose(result, value)


@pytest.mark.parametrize(
    ("text", "part"),
    [
        ("", "empty"),
        ("8n", "products with *"),
        ("8(n + 1)", "cannot stand"),
        ("n(8)", "not a function"),
        ("n^2", "powers with **"),
        ("y = 8*n", "right-hand side"),
        ("8*m", "unknown name 'm'"),
        ("colums*n", "did you mean 'columns'"),
        ("n if n else 1", "cannot stand"),
        ("n.real", "cannot stand"),
        ("[n]", "cannot stand"),
        ("'n'", "not a number"),
        ("True", "not a number"),
        ("1e999", "not a number"),
        ("2j", "not a number"),
        ("(lambda: n)()", "cannot stand"),
        ("__import__('os')", "unknown function"),
        ("exec(n)", "unknown function"),
        ("sqrt(n, n)", "takes 1 argument"),
        ("sqrt(x=n)", "plain arguments"),
        ("Sum(n)", "Sum(expression"),
        ("Sum(n, (n, 1, 3))", "name of its own"),
        ("n < 3", "cannot stand"),
        ("(" * 300 + "n" + ")" * 300, "nested"),
        ("-" * 1900 + "n", "deep"),
        ("n" * 3000, "3000 characters"),
        ("n + \ud800", "characters"),
    ],
)
def test_refusals_say_what_is_wrong(text, part):
    with pytest.raises(FormulaError, match="(?s)" + part.replace("(", r"\(").replace("*", r"\*")):
        formula = parse_formula(text, ("n", "columns"))
        formula.at(n=1, columns=1)


@pytest.mark.parametrize(
    "text",
    [
        "9**9**9",
        "(((2**900)**900)**900)**900",
        "factorial(factorial(20))",
        "Sum(Sum(Sum(i*j*k, (i, 1, 9999)), (j, 1, 9999)), (k, 1, 9999))",
        "1/(n - 5)",
        "0**-1",
        "log(n - 5)",
        "sqrt(-n)",
        "(-8)**0.5",
        "exp(10**9)",
        "n % 0",
        "factorial(0.5)",
        "binomial(-1, 2)",
        "1e300*1e300*exp(700)*exp(700)",
    ],
)
def test_what_cannot_be_computed_is_refused_quickly(text):
    formula = parse_formula(text, ("n",))
    with pytest.raises(FormulaError):
        formula.at(n=5)


@given(st.text(max_size=60))
def test_no_text_does_anything_but_parse_or_be_refused(text):
    try:
        formula = parse_formula(text, ("n",))
        formula.at(n=3)
    except FormulaError:
        pass


@given(st.integers(-50, 50), st.integers(-50, 50), st.integers(1, 50))
def test_arithmetic_agrees_with_fractions(a, b, c):
    value = parse_formula("(a + b)*a - b/c", ("a", "b", "c")).at(a=a, b=b, c=c)
    assert value == (Fraction(a) + b) * a - Fraction(b, c)


def test_uses_lists_the_declared_names_that_occur():
    assert parse_formula("C + Sum(i, (i, 1, n))", ("n", "C", "b")).uses() == {"n", "C"}
