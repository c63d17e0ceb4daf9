"""Algebraic steps, checked: numerically for a counterexample, symbolically for a proof.

A derivation is a chain ``e1 = e2 <= e3 = ...`` of formulas. Each link is first tried at many points of a small domain
with exact arithmetic; a wrong step falls there at once, with numbers the student can check by hand. A link that
survives is then given to SymPy: an equality holds if the difference simplifies to zero, and ``a <= b`` over positive
integers holds if ``b - a``, written in powers of (symbol - 1), has no negative coefficient (a sufficient condition,
and the form most steps of this chapter take). What neither refutes nor proves is reported as exactly that, and so is a
step on which SymPy spends more than a few seconds.

SymPy is imported here only, when a chain is judged; it belongs to the extra ``grading``.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from fractions import Fraction
from functools import lru_cache
from typing import Any

from ..errors import MissingDependencyError
from . import limits
from .claims import Search, Values, falsify
from .formula import Formula, FormulaError, Value, parse_formula

RELATIONS = ("=", "<=", ">=")
_LEADING_RELATION = re.compile(r"^\s*(<=|>=|==|=|≤|≥)\s*")
_SPELLINGS = {"==": "=", "≤": "<=", "≥": ">="}

# What a double may be off by and still be the value it stands for, relative to that value: a computation of a thousand
# roundings stays below 1e-12, and nobody's mistake is that small. Exact values are compared exactly.
RELATIVE_TOLERANCE = Fraction(1, 10**9)
# Where the value is zero there is nothing to be relative to: what 0.1 + 0.2 - 0.3 leaves.
LEFT_OF_ZERO = Fraction(1, 10**15)

PROOF_SECONDS = 5.0


@dataclass(frozen=True)
class Step:
    """One formula of a chain and how it relates to the formula before it ("=" for the first, which has none)."""

    relation: str
    formula: Formula

    def __str__(self) -> str:
        return f"{self.relation} {self.formula.text}"


def parse_step(text: str, names: tuple[str, ...]) -> Step:
    """``"<= 9*n"`` or ``"8*n + 1"`` (an equality unless a relation is written). Raises FormulaError."""
    match = _LEADING_RELATION.match(text)
    relation = _SPELLINGS.get(match.group(1), match.group(1)) if match else "="
    return Step(relation, parse_formula(text[match.end() :] if match else text, names))


class Standing(Enum):
    PROVED = "proved"
    REFUTED = "refuted"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class Link:
    """What is known of ``left relation right``: for a refutation the point and both values there."""

    standing: Standing
    point: dict[str, Any] | None = None
    left: Value | None = None
    right: Value | None = None
    trials: int = 0
    problem: str = ""


def values_agree(a: Value, b: Value, relative: Fraction = RELATIVE_TOLERANCE) -> bool:
    """Whether ``a`` is the value ``b``: exactly for two fractions, within a relative tolerance where one is a float."""
    if isinstance(a, Fraction) and isinstance(b, Fraction):
        return a == b
    exact_a, exact_b = Fraction(a), Fraction(b)
    if exact_b == 0:
        return abs(exact_a) <= LEFT_OF_ZERO
    return abs(exact_a - exact_b) <= relative * max(abs(exact_a), abs(exact_b))


def _related(a: Value, relation: str, b: Value) -> bool:
    return values_agree(a, b) or (relation == "<=" and a < b) or (relation == ">=" and a > b)


def examine(
    left: Formula,
    relation: str,
    right: Formula,
    domain: Mapping[str, Values],
    *,
    constants: Mapping[str, Fraction] | None = None,
    seed: int | None = None,
    trials: int = 120,
) -> Link:
    """Refute or prove ``left relation right`` for all points of ``domain`` (positive integers).

    ``constants`` are names with one fixed value each. Raises MissingDependencyError without SymPy.
    """
    fixed = tuple((constants or {}).items())
    search = _search(left, relation, right, tuple(domain.items()), fixed, seed, trials)
    if search.counterexample is not None:
        a, b, problem = search.reason
        return Link(Standing.REFUTED, dict(search.counterexample), a, b, search.trials, problem)
    load_sympy()  # a missing package must be reported as such, not as an undecided step
    # Simplification has no bound of its own; a step that takes too long stays undecided.
    outcome = limits.call(_prove, left, relation, right, tuple(domain), fixed, seconds=PROOF_SECONDS)
    return Link(Standing.PROVED if outcome.value is True else Standing.UNDECIDED, trials=search.trials)


# Both halves are remembered: students check the same chain again and again, changing one step.
@lru_cache(maxsize=1024)
def _search(
    left: Formula,
    relation: str,
    right: Formula,
    domain: tuple[tuple[str, Values], ...],
    fixed: tuple[tuple[str, Fraction], ...],
    seed: int | None,
    trials: int,
) -> Search:
    def against(**point: Any) -> tuple[Value | None, Value | None, str] | None:
        try:
            a, b = left.judged_at(**dict(fixed), **point), right.judged_at(**dict(fixed), **point)
        except FormulaError as error:
            return None, None, str(error)
        return None if _related(a, relation, b) else (a, b, "")

    return falsify(against, dict(domain), seed=seed, trials=trials, purpose="algebra")


@lru_cache(maxsize=1024)
def _prove(
    left: Formula, relation: str, right: Formula, variables: tuple[str, ...], fixed: tuple[tuple[str, Fraction], ...]
) -> bool:
    """Prove it for every value of the constants if possible (short sums stay symbolic), else for the given ones."""
    sympy = load_sympy()
    symbols = {name: sympy.Symbol(name, integer=True, positive=True) for name in variables}
    general = {
        name: sympy.Symbol(name, integer=value.denominator == 1 or None, positive=value > 0 or None)
        for name, value in fixed
    }
    numeric = {name: sympy.Rational(value.numerator, value.denominator) for name, value in fixed}
    return any(_holds(left, relation, right, symbols | constants) for constants in (general, numeric))


def _holds(left: Formula, relation: str, right: Formula, symbols: Mapping[str, Any]) -> bool:
    sympy = load_sympy()
    a, b = to_sympy(left, symbols), to_sympy(right, symbols)
    difference = sympy.simplify((a - b if relation == ">=" else b - a).doit())
    if relation == "=":
        return difference == 0
    if difference.is_nonnegative:
        return True
    free = sorted((symbol for symbol in difference.free_symbols if symbol.is_positive and symbol.is_integer), key=str)
    shifted = sympy.expand(difference.subs({symbol: symbol + 1 for symbol in free}, simultaneous=True))
    if not free or not shifted.is_polynomial(*free):
        return bool(shifted.is_nonnegative)
    return all(coefficient.is_nonnegative for coefficient in sympy.Poly(shifted, *free).coeffs())


def load_sympy() -> Any:
    """The sympy module. Raises MissingDependencyError naming the extra."""
    try:
        import sympy
    except ImportError as error:
        raise MissingDependencyError(
            "checking algebraic steps needs sympy", remedy="pip install 'staxlab[grading]'"
        ) from error
    return sympy


def to_sympy(formula: Formula, symbols: Mapping[str, Any]) -> Any:
    """The formula as a SymPy expression: the checked tree is walked, no text is ever given to ``sympify``."""
    return _convert(load_sympy(), formula.tree, symbols)


def _convert(sympy: Any, node: ast.expr, symbols: Mapping[str, Any]) -> Any:
    def go(child: ast.expr) -> Any:
        return _convert(sympy, child, symbols)

    match node:
        case ast.Constant(value=value):
            return sympy.Rational(repr(value)) if isinstance(value, float) else sympy.Integer(value)
        case ast.Name(id=name):
            return symbols[name]
        case ast.UnaryOp(op=op, operand=operand):
            return -go(operand) if isinstance(op, ast.USub) else go(operand)
        case ast.BinOp(left=left, op=op, right=right):
            a, b = go(left), go(right)
            match op:
                case ast.Add():
                    return a + b
                case ast.Sub():
                    return a - b
                case ast.Mult():
                    return a * b
                case ast.Div():
                    return a / b
                case ast.FloorDiv():
                    return sympy.floor(a / b)
                case ast.Mod():
                    return sympy.Mod(a, b)
                case _:
                    return a**b
        case ast.Call(func=ast.Name(id="Sum"), args=[body, ast.Tuple(elts=[ast.Name(id=bound), low, high])]):
            index = sympy.Symbol(bound, integer=True)
            return sympy.Sum(_convert(sympy, body, {**symbols, bound: index}), (index, go(low), go(high)))
        case ast.Call(func=ast.Name(id=function), args=args):
            values = [go(argument) for argument in args]
            if function == "log2":
                return sympy.log(values[0], 2)
            name = {"min": "Min", "max": "Max", "abs": "Abs", "ceil": "ceiling"}.get(function, function)
            return getattr(sympy, name)(*values)
    raise FormulaError(f"{ast.unparse(node)!r} cannot stand in a formula")  # not reached: the tree was checked
