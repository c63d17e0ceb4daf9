"""Subscript expressions: normal form, simplification, intervals, and agreement with plain integer arithmetic."""

from __future__ import annotations

import numpy
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from staxlab.loops.expressions import Expr, Symbol, index

I, J, K, M = index("i", 4), index("j", 8), index("k", 3), index("m", 4096)
EXTENTS = {"i": 4, "j": 8, "k": 3, "m": 4096}


@st.composite
def programs(draw, depth: int = 4):
    """An expression together with a function that computes it directly from symbol values."""
    if depth == 0 or draw(st.booleans()):
        leaf = draw(st.sampled_from([I, J, K, M, *(Expr.of(n) for n in range(-5, 10))]))
        return leaf, lambda values: leaf.evaluate(values)
    left, compute_left = draw(programs(depth=depth - 1))
    operation = draw(st.sampled_from(["+", "-", "*", "//", "%"]))
    if operation in "+-*":
        right, compute_right = draw(programs(depth=max(depth - 2, 0)))
        apply = {"+": lambda a, b: a + b, "-": lambda a, b: a - b, "*": lambda a, b: a * b}[operation]
        return apply(left, right), lambda values: apply(compute_left(values), compute_right(values))
    n = draw(st.sampled_from([1, 2, 3, 4, 6, 8, -3, 128]))
    if operation == "//":
        return left // n, lambda values: compute_left(values) // n
    return left % n, lambda values: compute_left(values) % n


values = st.fixed_dictionaries({name: st.integers(0, extent - 1) for name, extent in EXTENTS.items()})


def truncating(text: str, environment: dict[str, int]) -> int:
    """Evaluate C-style text, where / and % truncate toward zero."""
    import ast

    def run(node):
        if isinstance(node, ast.Expression):
            return run(node.body)
        if isinstance(node, ast.Constant):
            return node.value
        if isinstance(node, ast.Name):
            return environment[node.id]
        if isinstance(node, ast.UnaryOp):
            return -run(node.operand)
        a, b = run(node.left), run(node.right)
        quotient = (
            abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1) if isinstance(node.op, (ast.Div, ast.Mod)) else 0
        )
        return {
            ast.Add: lambda: a + b,
            ast.Sub: lambda: a - b,
            ast.Mult: lambda: a * b,
            ast.Div: lambda: quotient,
            ast.Mod: lambda: a - quotient * b,
        }[type(node.op)]()

    return run(ast.parse(text, mode="eval"))


@given(programs(), values)
def test_normal_form_agrees_with_integer_arithmetic(program, environment):
    expression, compute = program
    expected = compute(environment)
    assert expression.evaluate(environment) == expected
    assert expression.bounds().lower <= expected <= expression.bounds().upper
    assert truncating(expression.c_style(), environment) == expected


@given(programs(), programs(depth=1), values)
def test_substitution_commutes_with_evaluation(program, replacement, environment):
    expression, _ = program
    inner, _ = replacement
    moved = expression.substitute({Symbol("m", 0, 4095): inner})
    assert moved.evaluate(environment) == expression.evaluate({**environment, "m": inner.evaluate(environment)})


def test_a_reshape_and_its_inverse_cancel():
    flat = 8 * I + J
    assert flat // 8 == I
    assert flat % 8 == J
    assert 128 * (M // 128) + M % 128 == M


def test_divisions_simplify():
    assert (4 * J + 3) // 8 == J // 2
    assert (M // 4) // 8 == M // 32
    assert (7 - J) % 8 == 7 - J
    assert (7 - J) // 8 == 0
    assert (M % 128) % 64 == M % 64
    assert str((3 * M) % 128) == "((3*m) % 128)"


def test_equal_expressions_are_equal_and_hash_alike():
    assert I + J + I == 2 * I + J == J + I * 2
    assert len({I + J, J + I, I + J + 0}) == 1
    assert I + J != I - J


def test_coefficients():
    expression = 128 * I + 3 * J * K + 5
    symbol = {name: Symbol(name, 0, extent - 1) for name, extent in EXTENTS.items()}
    assert expression.coefficient(symbol["i"]) == 128
    assert expression.coefficient(symbol["j"]) == 3 * K
    assert expression.coefficient(symbol["m"]) == 0
    assert (J * J).coefficient(symbol["j"]) is None
    assert (M // 3).coefficient(symbol["m"]) is None
    assert (128 * I + J + 5).affine([symbol["i"], symbol["j"]]) == ((128, 1), 5)
    assert (J * K).affine([symbol["j"], symbol["k"]]) is None


def test_printing_keeps_the_order_of_a_listing():
    assert str(index("r0", 128) + 128 * index("i0", 64)) == "128*i0 + r0"
    assert str(Expr.of(0)) == "0"
    assert str(-I + 7) == "-i + 7"
    assert (M // 7).triton_style() == "((m) // 7)"


def test_evaluation_takes_arrays_and_tensors():
    positions = numpy.arange(4096)
    assert ((M // 7).evaluate({"m": positions}) == positions // 7).all()
    assert torch.equal((M % 7).evaluate({"m": torch.arange(50)}), torch.arange(50) % 7)


def test_bad_input_is_refused():
    with pytest.raises(ZeroDivisionError):
        I // 0
    with pytest.raises(ZeroDivisionError):
        I % 0
    with pytest.raises(TypeError, match="not an integer expression"):
        I + 1.5
    with pytest.raises(ValueError, match="not a constant"):
        int(I + 1)


def test_sympy_agrees():
    sympy = pytest.importorskip("sympy")
    expression = 128 * ((M // 128) % 4) + 3 * I - 7
    environment = {"m": 1234, "i": 2}
    converted = expression.to_sympy()
    names = {s: environment[s.name] for s in converted.free_symbols}
    assert sympy.simplify(converted.subs(names)) == expression.evaluate(environment)
