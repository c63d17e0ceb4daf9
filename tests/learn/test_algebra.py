"""Steps of a derivation: refuted with numbers, proved with SymPy, or honestly undecided."""

from __future__ import annotations

import builtins
from fractions import Fraction

import pytest

from staxlab.errors import MissingDependencyError
from staxlab.learn.algebra import Standing, examine, parse_step, values_agree
from staxlab.learn.claims import integers
from staxlab.learn.formula import parse_formula

pytest.importorskip("sympy")
N = {"n": integers(1, 40)}


def standing(left, relation, right, names=("n",), domain=None, **constants):
    fixed = {name: Fraction(value) for name, value in constants.items()}
    known = (*names, *fixed)
    return examine(
        parse_formula(left, known), relation, parse_formula(right, known), domain or N, constants=fixed, seed=1
    )


@pytest.mark.parametrize(
    ("left", "relation", "right"),
    [
        ("(n + 1)**2", "=", "n**2 + 2*n + 1"),
        ("Sum(i, (i, 1, n))", "=", "n*(n + 1)/2"),
        ("Sum(2**i, (i, 0, n - 1))", "=", "2**n - 1"),
        ("n/(n + 1)", "=", "1 - 1/(n + 1)"),
        ("sqrt(n**2)", "=", "n"),
        ("n", "<=", "n**2"),
        ("2*n - 1", "<=", "n**2"),
        ("n**2 + n", ">=", "2*n"),
        ("log2(n)*2", "=", "log2(n**2)"),
        ("min(n, n)", "=", "n"),
    ],
)
def test_what_holds_is_proved(left, relation, right):
    assert standing(left, relation, right).standing is Standing.PROVED


@pytest.mark.parametrize(
    ("left", "relation", "right", "point"),
    [
        ("(n + 1)**2", "=", "n**2 + 1", {"n": 1}),
        ("2**n", "<=", "n**3 + 1", {"n": 10}),
        ("1/(n - 3)", "=", "1/(n - 3)", {"n": 3}),
        ("n // 2", "=", "n/2", {"n": 1}),
        ("n**2", ">=", "2*n", {"n": 1}),
    ],
)
def test_what_fails_is_refuted_at_the_smallest_point(left, relation, right, point):
    link = standing(left, relation, right)
    assert link.standing is Standing.REFUTED and link.point == point


def test_constants_have_their_values_and_general_proofs_need_none():
    assert standing("C*n", "=", "128*n", C=128).standing is Standing.PROVED
    assert standing("C*n", "=", "128*n", C=127).standing is Standing.REFUTED
    assert standing("Sum(C, (j, 1, n))", "=", "n*C", C=100_000).standing is Standing.PROVED


def test_what_is_neither_refuted_nor_proved_is_undecided():
    assert standing("floor(n/2) + floor((n + 1)/2)", "=", "n + floor(1/(n + 100))").standing is not Standing.REFUTED
    link = standing("n", "<=", "n + abs(n - 1000)")
    assert link.standing in (Standing.UNDECIDED, Standing.PROVED) and link.trials > 10


def test_a_proof_that_takes_too_long_is_given_up(monkeypatch):
    from staxlab.learn import algebra

    def endless(*args):
        while True:
            pass

    monkeypatch.setattr(algebra, "PROOF_SECONDS", 0.05)
    monkeypatch.setattr(algebra, "_prove", endless)
    assert standing("n", "=", "n + 0").standing is Standing.UNDECIDED


def test_without_sympy_the_extra_is_named(monkeypatch):
    real = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "sympy":
            raise ImportError("no module named sympy")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingDependencyError, match=r"staxlab\[grading\]"):
        standing("n", "=", "n + 0")


@pytest.mark.parametrize(
    ("text", "relation"), [("n", "="), ("= n", "="), ("== n", "="), ("<= n", "<="), ("≥ n", ">="), ("  >=n", ">=")]
)
def test_relations(text, relation):
    step = parse_step(text, ("n",))
    assert step.relation == relation and step.formula.text == "n"


def test_floats_agree_within_the_tolerance_only():
    assert values_agree(Fraction(1, 3), 1 / 3) and values_agree(1e300, 1e300 * (1 + 1e-12))
    assert not values_agree(Fraction(1, 3), 0.3333333)
    assert not values_agree(Fraction(10**20), Fraction(10**20 + 1))
    assert not values_agree(0.0, 1e-30)
