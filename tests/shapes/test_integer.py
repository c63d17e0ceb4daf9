"""A size that programs calculate with, against Python's own integers."""

from __future__ import annotations

import copy
import decimal
import enum
import fractions
import math
import operator
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from staxlab.loops.expressions import Expr
from staxlab.shapes.environment import ShapeEnvironment, ShapeGuard, SizeSource
from staxlab.shapes.integer import SymbolicInteger, hinted, is_symbolic, number, plain


def sizes(lower=2, **hints):
    """An environment and a number for each hint."""
    environment = ShapeEnvironment()
    made = []
    for position, (name, hint) in enumerate(hints.items()):
        symbol = environment.symbol(name, hint, lower, source=SizeSource(position, 0, name))
        made.append(number(Expr.of(symbol), environment))
    return environment, *made


def holds(environment, values):
    return all(decision.relation.holds(values) for decision in environment.decisions)


class Four(enum.IntEnum):
    FOUR = 4


#: Everything a program may do with two sizes, as text: what it gives must be what Python gives.
ATOMS = ["n", "m", "(n + m)", "(n * 3 - m)", "2", "5", "-3"]
BINARY = ["+", "-", "*", "//", "%", "<", "<=", ">", ">=", "==", "!=", "&", "|", "^", "/"]
CALLS = ["abs({})", "-{}", "+{}", "~{}", "int({})", "bool({})", "min({}, n)", "max({}, m)", "{} ** 2", "divmod({}, 3)",
         "divmod(9, n + {} * 0)", "sum([n, {}])", "sorted([m, {}, n])", "({} if n > m else m)", "round({})",
         "float({})", "math.gcd({}, n)", "{} * 0.5", "({} > 2.5)", "str({})", "hash({})"]  # fmt: skip


@st.composite
def programs(draw):
    text = draw(st.sampled_from(ATOMS))
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            pair = [text, draw(st.sampled_from(ATOMS))]
            if draw(st.booleans()):
                pair.reverse()
            text = f"({pair[0]} {draw(st.sampled_from(BINARY))} {pair[1]})"
        else:
            text = f"({draw(st.sampled_from(CALLS)).format(text)})"
    return text


def run(text, n, m):
    try:
        return eval(text, {"math": math}, {"n": n, "m": m})
    except (ZeroDivisionError, TypeError, OverflowError, ValueError) as error:
        return type(error)


def values_in(result, values):
    """A result with symbolic integers evaluated for other values of the symbols."""
    if isinstance(result, (tuple, list)):
        return type(result)(values_in(part, values) for part in result)
    return result.expression.evaluate(values) if is_symbolic(result) else result


@given(programs(), st.integers(2, 12), st.integers(2, 12))
@settings(max_examples=200, deadline=None)
def test_what_a_size_gives_is_what_an_integer_gives_wherever_the_decisions_hold(text, n, m):
    environment, a, b = sizes(n=n, m=m)
    result = run(text, a, b)
    expected = run(text, n, m)
    got = hinted(result) if not isinstance(result, (tuple, list)) else type(result)(map(hinted, result))
    assert got == expected and (isinstance(result, type) or type(got) is type(expected)), text
    assert holds(environment, {"n": n, "m": m})
    for other_n in range(2, 14):
        for other_m in (2, 3, 5, m, n):
            values = {"n": other_n, "m": other_m}
            if holds(environment, values):
                assert values_in(result, values) == run(text, other_n, other_m), (text, values)


#: Uses that need no number, and the decisions they take.
SYMBOLIC = {
    "flattened": (lambda n: n * 128, []),
    "halved": (lambda n: n // 2, []),
    "rounded up": (lambda n: -(-n // 4) * 4, []),
    "from the end": (lambda n: 10 - n, []),
    "a true size": (lambda n: bool(n), []),
    "compared": (lambda n: n > 4, ["n > 4"]),
    "smaller one": (lambda n: min(n, 16), ["n <= 16"]),
    "other integers": (lambda n: n + True, []),
    "chained": (lambda n: 2 < n <= 9, ["n > 2", "n <= 9"]),
    "nothing like it": (lambda n: (n == None, n == "a", n != ()), []),  # noqa: E711
    "type": (lambda n: isinstance(n, int) and not isinstance(n, (bool, float, tuple)), []),
    "copied": (lambda n: copy.deepcopy(copy.copy(n)), []),
}

#: Uses of the number itself: the guard is then that it is the same.
SPECIALIZED = {
    "int": int, "index": operator.index, "range": lambda n: list(range(n)), "list index": lambda n: "abcdefghi"[n],
    "dict key": lambda n: {7: "x"}.get(n), "set": lambda n: {n}, "f-string": lambda n: f"{n:>4} {n!r} {n}",
    "float": float, "complex": complex, "sqrt": math.sqrt, "division": lambda n: n / 2,
    "float comparison": lambda n: n > 4.5, "complex comparison": lambda n: n == 7 + 0j, "power": lambda n: n**0.5,
    "reflected power": lambda n: 2**n, "modular power": lambda n: pow(n, 2, 5), "shift": lambda n: 1 << n,
    "bits": lambda n: n.bit_length(), "attributes": lambda n: (n.numerator, n.real, n.denominator),
    "zfill": lambda n: str(n).zfill(3), "ceil": math.ceil, "trunc": math.trunc, "repeat": lambda n: [0] * n,
    "text": lambda n: "ab" * n,
    "an IntEnum": lambda n: (n == Four.FOUR, n + Four.FOUR, Four.FOUR < n, n < Four.FOUR),
    "Decimal": lambda n: (decimal.Decimal(7) == n, n + decimal.Decimal(1)),
    "Fraction": lambda n: n * fractions.Fraction(1, 3), "NumPy scalar": lambda n: n == np.int64(7),
    "NumPy function": lambda n: float(np.sqrt(n)), "NumPy array": lambda n: np.array([n, 2]).dtype.kind,
    "NumPy shape": lambda n: np.zeros((n, 2)).shape, "pickled": lambda n: pickle.loads(pickle.dumps(n)),
    "floor of a float": lambda n: (n // 2.0, 7.5 % n), "rounded": lambda n: round(n, -1),
}  # fmt: skip


@pytest.mark.parametrize("name", SYMBOLIC)
def test_a_use_that_keeps_the_symbol(name):
    use, decisions = SYMBOLIC[name]
    environment, n = sizes(n=7)
    result = use(n)
    assert hinted(result) == use(7)
    assert [str(d.relation) for d in environment.decisions] == decisions


@pytest.mark.parametrize("name", SPECIALIZED)
def test_a_use_of_the_number_relies_on_it(name):
    environment, n = sizes(n=7)
    result = SPECIALIZED[name](n)
    assert result == SPECIALIZED[name](7)
    assert type(result) is type(SPECIALIZED[name](7))
    assert [str(d.relation) for d in environment.decisions] == ["n == 7"]


def test_errors_are_pythons():
    environment, n = sizes(0, n=4)
    with pytest.raises(ZeroDivisionError):
        n // (n - 4)
    assert [str(d.relation) for d in environment.decisions] == ["n - 4 == 0"]
    for wrong in (lambda: n + "a", lambda: n < None, lambda: n < 1j, lambda: n.nothing, lambda: "abc"[n]):
        with pytest.raises((TypeError, AttributeError, IndexError)):
            wrong()


def test_the_tensor_operates_with_a_size_as_it_is():
    """``n / x`` and ``n ** x`` are the tensor's operations, which take the symbol; nothing is decided."""
    environment, n = sizes(n=4)
    for operation in ("truediv", "pow", "and_", "lshift"):
        method = getattr(n, f"__{operation.strip('_')}__")
        assert method(torch.tensor([1, 2])) is NotImplemented
    assert not environment.decisions


def test_a_size_of_another_recording_is_a_number():
    """A cache of the program's may keep one; its symbols have other meanings in the next recording."""
    old, before = sizes(n=4)
    environment, n = sizes(n=6)
    kept = before * 2
    assert hinted(n + kept) == 14 and (n + kept).environment is environment
    assert (n + kept).expression.evaluate({"n": 10}) == 18
    assert not n == before and n != before
    assert hinted(kept * n) == 48
    assert holds(environment, {"n": 6}) and not holds(environment, {"n": 7})  # `kept * n` took the number 6


def test_shapes_with_sizes_in_them():
    environment, n = sizes(n=4)
    shape = torch.Size([n, 3])
    assert hinted(shape) == torch.Size([4, 3]) and not environment.decisions
    assert plain(shape) == (4, 3) and [str(d.relation) for d in environment.decisions] == ["n == 4"]
    assert is_symbolic(n) and not is_symbolic(4) and type(n) is SymbolicInteger
    assert number(Expr.of(5), environment) == 5 and type(number(Expr.of(5), environment)) is int
    assert hinted(3) == plain(3) == 3


def test_the_guard_is_the_decisions():
    environment, n, m = sizes(n=8, m=4)
    if n % m == 0 and n > 2 * m - 1:
        environment.specialize(m.expression, "a number")
    guard = ShapeGuard.of(environment)
    assert [str(d.relation) for d in guard.decisions] == ["(n % m) == 0", "n > 2*m - 1", "m == 4"]
    for values in ((8, 4), (12, 4), (9, 4), (4, 4), (6, 3)):
        inputs = [torch.empty(value) for value in values]
        named = dict(zip("nm", values, strict=True))
        assert guard.check(inputs) == holds(environment, named) == (not guard.failing(inputs))
        assert guard.values(inputs) == named


def test_a_question_is_kept_once_and_implied_ones_apart():
    environment, n = sizes(n=8)
    assert n > 1 and n >= 2 and n > 4 and n > 4 and not n < 0 and n == n
    assert [str(d.relation) for d in environment.decisions] == ["n > 4"]
    assert "n > 1" in [str(d.relation) for d in environment.implied]
    assert ShapeGuard.of(ShapeEnvironment()) is None


def test_a_symbol_that_counts_multiples():
    environment = ShapeEnvironment()
    symbol = environment.symbol("k", 4, 1, source=SizeSource(0, 1, "x", 8))
    n = number(Expr.of(symbol) * 8, environment)
    assert n % 8 == 0 and n > 16
    guard = ShapeGuard.of(environment)
    assert guard.condition(guard.decisions[0]) == "8*(x.shape[1] // 8) > 16"
    assert guard.check([torch.empty(2, 24)]) and not guard.check([torch.empty(2, 16)])
    assert environment.symbol("k", 4) is symbol
