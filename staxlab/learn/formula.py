"""Formulas as students type them: ``"8*C*n*b + n*b"``, parsed without ``eval`` and computed exactly.

A formula is data from outside, so it is never evaluated as Python. The text is parsed to a syntax tree, every node is
checked against a short list of what a formula may contain, and the tree is then walked with exact fractions: ``1/3``
is a third and ``0.1`` a tenth. Only irrational functions (``sqrt`` of 2, ``log``, ``exp``) give floats. Sizes are
bounded, so ``9**9**9`` is refused rather than computed.

Allowed: numbers, declared names, ``+ - * / // % **``, ``min max abs floor ceil sqrt log log2 exp factorial binomial``
and ``Sum(expression, (i, low, high))`` with both ends included. :mod:`staxlab.learn.algebra` turns the same tree into
a SymPy expression when two formulas have to be proved equal.
"""

from __future__ import annotations

import ast
import difflib
import math
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field
from fractions import Fraction

Value = Fraction | float

MAX_LENGTH = 2000
MAX_BITS = 1 << 14  # of any exact intermediate result
MAX_STEPS = 200_000  # nodes visited in one evaluation: bounds nested sums
FUNCTIONS = ("min", "max", "abs", "floor", "ceil", "sqrt", "log", "log2", "exp", "factorial", "binomial")
_LOOKALIKES = str.maketrans({"×": "*", "·": "*", "⋅": "*", "÷": "/", "−": "-", "–": "-", "\u00a0": " "})


class FormulaError(ValueError):
    """The text is no formula, or cannot be computed at the given point. The message is for the student."""


@dataclass(frozen=True)
class Formula:
    """A parsed formula. ``names`` are the symbols it may use; ``tree`` is the checked syntax tree.

    Two formulas are equal when their texts are, which is not the mathematical question.
    """

    text: str
    names: tuple[str, ...]
    tree: ast.expr = field(compare=False, repr=False)

    def at(self, **values: Fraction | int) -> Value:
        """The value at a point: an exact Fraction where possible, otherwise a float.

        Raises FormulaError for a division by zero, a result that is too large, or a logarithm of nothing.
        """
        return _evaluate(self.tree, {name: Fraction(value) for name, value in values.items()}, _Budget())

    def judged_at(self, **values: Fraction | int) -> Value:
        """As :meth:`at`, but a float where the text holds a decimal: such an answer is as good as its digits and no
        better, so it is compared with a tolerance and not exactly."""
        value = self.at(**values)
        return value if self.exact else as_float(value)

    @property
    def exact(self) -> bool:
        """Whether no number in the text is written as a decimal (``0.571428``, ``1e-3``)."""
        return not any(isinstance(node, ast.Constant) and isinstance(node.value, float) for node in ast.walk(self.tree))

    def uses(self) -> frozenset[str]:
        """The declared names that occur."""
        return frozenset(node.id for node in ast.walk(self.tree) if isinstance(node, ast.Name)) & set(self.names)


def as_float(value: Value) -> Value:
    """The value as a double; unchanged where a double cannot hold it."""
    try:
        rounded = float(value)
    except OverflowError:
        return value
    return rounded if rounded or not value else value


def parse_formula(text: str, names: tuple[str, ...]) -> Formula:
    """Parse ``text`` as a formula in ``names``. Raises FormulaError with what is wrong and where.

    >>> parse_formula("n*(n + 1)/2", ("n",)).at(n=4)
    Fraction(10, 1)
    """
    cleaned = " ".join(text.translate(_LOOKALIKES).split())
    if not cleaned:
        raise FormulaError("the formula is empty")
    if len(cleaned) > MAX_LENGTH:
        raise FormulaError(f"the formula has {len(cleaned)} characters, more than {MAX_LENGTH}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # "1or 2" is an error here in any case
            tree = ast.parse(cleaned, mode="eval").body
    except SyntaxError as error:
        hint = "; write products with *, as in 8*n" if _implicit_product(cleaned) else ""
        if "=" in cleaned:
            hint = "; give the right-hand side only, without an equals sign"
        raise FormulaError(f"{cleaned!r} is not a formula ({error.msg}){hint}") from None
    except (RecursionError, MemoryError):
        raise FormulaError("the formula is nested too deeply") from None
    except ValueError:
        raise FormulaError(f"{cleaned!r} holds characters that cannot stand in a formula") from None
    try:
        _check(tree, frozenset(names))
    except RecursionError:
        raise FormulaError("the formula is nested too deeply") from None
    return Formula(cleaned, tuple(names), tree)


def _implicit_product(text: str) -> bool:
    return any(a.isdigit() and (b.isalpha() or b == "(") for a, b in zip(text, text[1:], strict=False))


_OPERATORS = (ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow)


def _check(node: ast.expr, names: frozenset[str]) -> None:
    """Raise FormulaError unless every node is on the list."""
    match node:
        case ast.Constant(value=value):
            if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < math.inf:
                raise FormulaError(f"{ast.unparse(node)} is not a number")
        case ast.Name(id=name):
            if name not in names:
                raise FormulaError(_unknown(name, names))
        case ast.UnaryOp(op=ast.UAdd() | ast.USub(), operand=operand):
            _check(operand, names)
        case ast.BinOp(op=ast.BitXor()):
            raise FormulaError("write powers with **, not with ^")
        case ast.BinOp(left=left, op=op, right=right) if isinstance(op, _OPERATORS):
            _check(left, names)
            _check(right, names)
        case ast.Call(
            func=ast.Name(id="Sum"), args=[body, ast.Tuple(elts=[ast.Name(id=bound), low, high])], keywords=[]
        ):
            if bound in names:
                raise FormulaError(f"the index of a Sum needs a name of its own, not {bound!r}")
            _check(low, names)
            _check(high, names)
            _check(body, names | {bound})
        case ast.Call(func=ast.Name(id="Sum")):
            raise FormulaError("a sum is written Sum(expression, (i, low, high)), both ends included")
        case ast.Call(func=ast.Name(id=function), args=args, keywords=[]) if function in FUNCTIONS:
            low, high = {"min": (1, 16), "max": (1, 16), "log": (1, 2), "binomial": (2, 2)}.get(function, (1, 1))
            if not low <= len(args) <= high:
                count = str(low) if low == high else f"{low} to {high}"
                raise FormulaError(f"{function} takes {count} argument{'s' * (high > 1)}, got {len(args)}")
            for argument in args:
                _check(argument, names)
        case ast.Call(func=ast.Name(id=function)) if function in FUNCTIONS:
            raise FormulaError(f"{function} takes plain arguments, as in {function}(2)")
        case ast.Call(func=ast.Name(id=function)):
            if function in names:
                raise FormulaError(f"{function} is a number, not a function; write {function}*(...) for a product")
            raise FormulaError(_unknown(function, frozenset(FUNCTIONS) | {"Sum"}, "function"))
        case _:
            raise FormulaError(f"{ast.unparse(node)!r} cannot stand in a formula")


def _unknown(name: str, known: frozenset[str], kind: str = "name") -> str:
    close = difflib.get_close_matches(name, sorted(known), n=1)
    listing = ", ".join(sorted(known)) or "no names"
    return f"unknown {kind} {name!r}" + (f"; did you mean {close[0]!r}?" if close else f"; known here: {listing}")


class _Budget:
    """Counts the nodes one evaluation visits."""

    def __init__(self) -> None:
        self.left = MAX_STEPS

    def spend(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise FormulaError("the formula takes too many steps to compute here: its sums are too long")


def _evaluate(node: ast.expr, env: Mapping[str, Fraction], budget: _Budget) -> Value:
    budget.spend()
    match node:
        case ast.Constant(value=value):
            # repr gives the shortest decimal that stands for the float: what the student typed, up to rounding.
            return Fraction(value) if isinstance(value, int) else Fraction(repr(value))
        case ast.Name(id=name):
            if name not in env:
                raise FormulaError(f"no value for {name!r}")
            return env[name]
        case ast.UnaryOp(op=op, operand=operand):
            value = _evaluate(operand, env, budget)
            return -value if isinstance(op, ast.USub) else value
        case ast.BinOp(left=left, op=op, right=right):
            return _bounded(_operate(op, _evaluate(left, env, budget), _evaluate(right, env, budget)))
        case ast.Call(func=ast.Name(id="Sum"), args=[body, ast.Tuple(elts=[ast.Name(id=bound), low, high])]):
            first = _whole(_evaluate(low, env, budget), "the start of a Sum")
            last = _whole(_evaluate(high, env, budget), "the end of a Sum")
            total: Value = Fraction(0)
            if first <= last and not any(isinstance(n, ast.Name) and n.id == bound for n in ast.walk(body)):
                return _bounded((last - first + 1) * _evaluate(body, env, budget))
            for i in range(first, last + 1):
                total = total + _evaluate(body, {**env, bound: Fraction(i)}, budget)
            return _bounded(total)
        case ast.Call(func=ast.Name(id=function), args=args):
            return _bounded(_apply(function, [_evaluate(argument, env, budget) for argument in args]))
    raise FormulaError(f"{ast.unparse(node)!r} cannot stand in a formula")  # not reached after _check


def _operate(op: ast.operator, a: Value, b: Value) -> Value:
    try:
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
                return Fraction(a // b)
            case ast.Mod():
                return a % b
            case _:
                return _power(a, b)
    except ZeroDivisionError:
        raise FormulaError("division by zero") from None
    except OverflowError:
        raise FormulaError("the result is too large") from None


def _power(base: Value, exponent: Value) -> Value:
    if isinstance(base, Fraction) and isinstance(exponent, Fraction) and exponent.denominator == 1:
        if base == 0 and exponent < 0:
            raise ZeroDivisionError
        bits = max(base.numerator.bit_length(), base.denominator.bit_length())
        if bits * abs(exponent) > MAX_BITS and abs(base) != 1 and base != 0:
            raise OverflowError
        return base ** int(exponent)
    result = float(base) ** float(exponent)
    if isinstance(result, complex):
        raise FormulaError("a root of a negative number")
    return result


def _apply(function: str, values: list[Value]) -> Value:
    first = values[0]
    try:
        match function:
            case "min":
                return min(values)
            case "max":
                return max(values)
            case "abs":
                return abs(first)
            case "floor":
                return Fraction(math.floor(first))
            case "ceil":
                return Fraction(math.ceil(first))
            case "sqrt":
                return _root(first)
            case "log2":
                return _log2(first)
            case "log":
                return math.log(first) if len(values) == 1 else math.log(first) / math.log(values[1])
            case "exp":
                return math.exp(first)
            case "factorial":
                return Fraction(math.factorial(_whole(first, "factorial", high=500)))
            case _:
                top, bottom = (_whole(value, "binomial", high=5000) for value in values)
                return Fraction(math.comb(top, bottom))
    except ZeroDivisionError:
        raise FormulaError("division by zero") from None
    except OverflowError:
        raise FormulaError("the result is too large") from None
    except ValueError as error:
        if isinstance(error, FormulaError):
            raise
        raise FormulaError(f"{function} of {first} does not exist") from None


def _root(value: Value) -> Value:
    """Exact for squares of rationals, which keeps comparisons exact where they can be."""
    if isinstance(value, Fraction) and value >= 0:
        top, bottom = math.isqrt(value.numerator), math.isqrt(value.denominator)
        if top * top == value.numerator and bottom * bottom == value.denominator:
            return Fraction(top, bottom)
    return math.sqrt(value)


def _log2(value: Value) -> Value:
    if isinstance(value, Fraction) and value.denominator == 1 and value > 0 and value.numerator.bit_count() == 1:
        return Fraction(value.numerator.bit_length() - 1)
    return math.log2(value)


def _whole(value: Value, what: str, high: int | None = None) -> int:
    if value != int(value):
        raise FormulaError(f"{what} needs a whole number, not {value}")
    if high is not None and not 0 <= value <= high:
        raise FormulaError(f"{what} of {value} is outside 0 to {high}")
    return int(value)


def _bounded(value: Value) -> Value:
    if isinstance(value, Fraction):
        if max(value.numerator.bit_length(), value.denominator.bit_length()) > 2 * MAX_BITS:
            raise FormulaError("the result is too large")
    elif math.isnan(value) or math.isinf(value):
        raise FormulaError("the result is not a finite number")
    return value
