"""Relations between sizes against trying every value of small ranges."""

from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from staxlab.loops.expressions import Expr, Symbol
from staxlab.shapes.relations import NEGATION, Relation

comparisons = st.sampled_from(sorted(NEGATION))


def evaluated(text: str, values: dict[str, int]) -> int:
    return eval(text, {}, dict(values))


@st.composite
def expressions(draw, symbols, depth=3):
    """An expression over the symbols, with its Python text beside it; divisors are never 0."""
    if depth == 0 or draw(st.integers(0, 3)) == 0:
        if draw(st.booleans()):
            constant = draw(st.integers(-6, 12))
            return Expr.of(constant), f"({constant})"
        symbol = draw(st.sampled_from(symbols))
        return Expr.of(symbol), symbol.name
    left, left_text = draw(expressions(symbols, depth - 1))
    operation = draw(st.sampled_from(["+", "-", "*", "//", "%", "// n", "% n"]))
    if operation in ("//", "%"):
        divisor = draw(st.sampled_from([-3, -1, 1, 2, 3, 4, 7]))
        return (left // divisor if operation == "//" else left % divisor), f"({left_text} {operation} ({divisor}))"
    if operation in ("// n", "% n"):
        positive = [s for s in symbols if s.lower > 0]
        if not positive:
            return left, left_text
        divisor = Expr.of(draw(st.sampled_from(positive)))
        return (left // divisor if operation == "// n" else left % divisor), f"({left_text} {operation[:-2]} {divisor})"
    right, right_text = draw(expressions(symbols, depth - 1))
    result = {"+": left + right, "-": left - right, "*": left * right}[operation]
    return result, f"({left_text} {operation} {right_text})"


@st.composite
def cases(draw):
    lowers = [draw(st.integers(0, 4)) for _ in range(2)]
    symbols = [Symbol(name, low, low + draw(st.integers(0, 6))) for name, low in zip("nm", lowers, strict=True)]
    left, right = draw(expressions(symbols)), draw(expressions(symbols))
    return symbols, left, draw(comparisons), right


@given(cases())
@settings(max_examples=120, deadline=None)
def test_decisions_and_negations_against_every_value(case):
    symbols, (left, left_text), comparison, (right, right_text) = case
    relation = Relation.of(left, comparison, right)
    truths = set()
    for values in itertools.product(*(range(s.lower, s.upper + 1) for s in symbols)):
        named = dict(zip([s.name for s in symbols], values, strict=True))
        truth = evaluated(f"{left_text} {comparison} {right_text}", named)
        assert relation.holds(named) == truth == evaluated(relation.python(), named)
        assert relation.negated().holds(named) == (not truth)
        truths.add(truth)
    answer = relation.decide()
    assert answer is None or truths == {answer}
    if len(relation.symbols) == 1:  # then it is exact
        assert (answer is None) == (len(truths) == 2)
    assert relation.negated().decide() == (None if answer is None else not answer)


@st.composite
def single(draw):
    low = draw(st.integers(0, 3))
    symbol = Symbol("n", low, low + draw(st.integers(0, 14)))
    left, right = draw(expressions([symbol], 2)), draw(expressions([symbol], 2))
    return symbol, left[0], draw(comparisons), right[0], draw(st.integers(symbol.lower, symbol.upper))


@given(single())
@settings(max_examples=120, deadline=None)
def test_the_range_around_a_hint_is_the_longest(case):
    symbol, left, comparison, right, hint = case
    relation = Relation.of(left, comparison, right)
    found = relation.range_around(hint)
    if len(relation.symbols) != 1 or not relation.holds({"n": hint}):
        assert found is None
        return
    low = high = hint
    while low > symbol.lower and relation.holds({"n": low - 1}):
        low -= 1
    while high < symbol.upper and relation.holds({"n": high + 1}):
        high += 1
    assert found == (low, high)


@given(
    st.integers(-4, 4).filter(bool), st.integers(-20, 20), comparisons, st.integers(-20, 20), st.integers(2, 30),
    st.integers(0, 2),
)  # fmt: skip
@example(3, 0, "!=", 7, 5, 2)  # 3 n != 7 holds for every n
@settings(deadline=None)
def test_ranges_without_an_upper_end(a, b, comparison, c, hint, lower):
    relation = Relation.of(a * Expr.of(Symbol("n", lower, math.inf)) + b, comparison, c)
    found = relation.range_around(hint)
    if not relation.holds({"n": hint}):
        assert found is None
        return
    low, high = found
    assert lower <= low <= hint <= high
    assert all(relation.holds({"n": n}) for n in range(low, int(min(high, 60)) + 1))
    assert low == lower or not relation.holds({"n": low - 1})
    assert (
        all(relation.holds({"n": n}) for n in range(hint, 90))
        if high == math.inf
        else not relation.holds({"n": high + 1})
    )
    decided = relation.decide()
    assert decided is None or all(relation.holds({"n": n}) == decided for n in range(lower, 90))


@pytest.mark.parametrize(
    ("lower", "expected"),
    [(2, True), (1, None), (0, None)],
)
def test_monotone_polynomials_are_decided_without_an_upper_end(lower, expected):
    n, m = (Expr.of(Symbol(name, lower, math.inf)) for name in "nm")
    assert Relation.of(n * m, ">", m).decide() is expected
    assert Relation.of(n * n + m, ">=", n).decide() is (True if lower else None)
    assert Relation.of(n, "==", m).decide() is None


def test_a_multiple_is_one_by_algebra():
    n = 8 * Expr.of(Symbol("k", 1, math.inf))
    assert Relation.of(n % 8, "==", 0).decide() is True
    assert Relation.of(n % 4, "!=", 0).decide() is False
    assert Relation.of(n % 16, "==", 0).decide() is None


def test_a_constant_is_written_on_the_right():
    n = Expr.of(Symbol("n", 0, 9))
    assert str(Relation.of(4, "<", n)) == "n > 4" and str(Relation.of(n, "<", 4)) == "n < 4"
