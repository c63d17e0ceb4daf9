"""Exact integer expressions for subscripts, sizes and strides (Sections 6.4 and 6.8).

A subscript such as ``128*i0 + i1`` is a polynomial with integer coefficients over *atoms*: loop indices and size
symbols (:class:`Symbol`), and the two operations a reshape may leave behind, :class:`FloorDivision` and
:class:`Modulo`. Every :class:`Expr` is kept in one normal form, so equal expressions compare equal by structure and
hash alike; that is what makes "do these two kernels read the same element?" a dictionary lookup.

Symbols know the interval their values lie in (Definition 6.4), which lets ``(128*i0 + i1) // 128`` simplify to ``i0``
when ``0 <= i1 < 128``, and lets :meth:`Expr.bounds` answer whether a bounds check is needed.

Why not a computer-algebra package? The compiler needs sums, products, ``//`` and ``%``; importing one costs 0.45 s of
a 0.5 s budget for the first call of a process. :meth:`Expr.to_sympy` converts where algebra is wanted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Union

INFINITY = math.inf
Bound = int | float  # an integer, or plus/minus infinity


@dataclass(frozen=True)
class Interval:
    """A closed interval of integers (Definition 6.4); an infinite bound means "unknown on this side"."""

    lower: Bound
    upper: Bound

    def __add__(self, other: Interval) -> Interval:
        return Interval(self.lower + other.lower, self.upper + other.upper)

    def __mul__(self, other: Interval) -> Interval:
        products = [_product(a, b) for a in (self.lower, self.upper) for b in (other.lower, other.upper)]
        return Interval(min(products), max(products))

    def within(self, lower: Bound, upper: Bound) -> bool:
        """Whether every value of this interval lies in [lower, upper]."""
        return lower <= self.lower and self.upper <= upper

    def __str__(self) -> str:
        return f"[{self.lower}, {self.upper}]"


def _product(a: Bound, b: Bound) -> Bound:
    return 0 if a == 0 or b == 0 else a * b  # 0 * inf is 0 here: the other factor is some finite unknown integer


def _floor_quotient(a: Bound, b: Bound) -> Bound:
    if math.isinf(a):
        return a if b > 0 else -a
    if math.isinf(b):
        return 0 if (a >= 0) == (b > 0) or a == 0 else -1
    return a // b


@dataclass(frozen=True)
class Symbol:
    """A named integer in [lower, upper]: a loop index (``i0``, ``r0``), a size (``s0``) or a value read at run time."""

    name: str
    lower: Bound = 0
    upper: Bound = INFINITY

    @property
    def sort_key(self) -> str:
        return self.name

    def bounds(self) -> Interval:
        return Interval(self.lower, self.upper)

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class FloorDivision:
    """``numerator // denominator``, rounding toward minus infinity."""

    numerator: Expr
    denominator: Expr

    @cached_property
    def sort_key(self) -> str:
        return f"({self.numerator})//({self.denominator})"

    def bounds(self) -> Interval:
        n, d = self.numerator.bounds(), self.denominator.bounds()
        if d.lower <= 0 <= d.upper:
            return Interval(-INFINITY, INFINITY)
        quotients = [_floor_quotient(a, b) for a in (n.lower, n.upper) for b in (d.lower, d.upper)]
        return Interval(min(quotients), max(quotients))


@dataclass(frozen=True)
class Modulo:
    """``numerator % denominator`` with the sign of the denominator, as in Python."""

    numerator: Expr
    denominator: Expr

    @cached_property
    def sort_key(self) -> str:
        return f"({self.numerator})%({self.denominator})"

    def bounds(self) -> Interval:
        n, d = self.numerator.bounds(), self.denominator.bounds()
        if d.lower > 0:
            upper = d.upper - 1
            return Interval(0, min(upper, n.upper) if n.lower >= 0 else upper)
        return Interval(-INFINITY, INFINITY)


Atom = Symbol | FloorDivision | Modulo
Monomial = tuple[Atom, ...]  # sorted, repeated for powers; () is the constant term
Like = Union["Expr", Symbol, int]


def _monomial_key(monomial: Monomial) -> tuple:
    # Constants last, as one writes 128*i0 + i1 + 3.
    return (len(monomial) == 0, tuple(atom.sort_key for atom in monomial))


class Expr:
    """A polynomial over atoms in normal form. Immutable and hashable. Build with operators from :class:`Symbol`,
    ``Expr.of(...)`` and integers; ``==`` is structural equality.

    >>> i, j = index("i", 4), index("j", 8)
    >>> print(8 * i + j, (8 * i + j) // 8, (8 * i + j) % 8)
    8*i + j i j
    """

    __slots__ = ("__dict__", "terms")

    def __init__(self, terms: tuple[tuple[Monomial, int], ...]):
        self.terms = terms

    @staticmethod
    def of(value: Like) -> Expr:
        """Lift an int or a Symbol."""
        if isinstance(value, Expr):
            return value
        if isinstance(value, Symbol):
            return Expr((((value,), 1),))
        if isinstance(value, int):
            return _constant(int(value))
        raise TypeError(f"not an integer expression: {value!r}")

    @staticmethod
    def _normal(terms: Mapping[Monomial, int]) -> Expr:
        kept = {m: c for m, c in terms.items() if c}
        if any(isinstance(atom, Modulo) for monomial in kept for atom in monomial):
            kept = _recombine(kept)
        return Expr(tuple(sorted(kept.items(), key=lambda term: _monomial_key(term[0]))))

    # -- identity ---------------------------------------------------------------------------------------------------

    @cached_property
    def _hash(self) -> int:
        return hash(self.terms)

    def __hash__(self) -> int:
        return self._hash

    def __eq__(self, other: object) -> bool:
        if isinstance(other, (int, Symbol)) and not isinstance(other, bool):
            other = Expr.of(other)
        return isinstance(other, Expr) and self.terms == other.terms

    # -- arithmetic -------------------------------------------------------------------------------------------------

    def __add__(self, other: Like) -> Expr:
        total = dict(self.terms)
        for monomial, coefficient in Expr.of(other).terms:
            total[monomial] = total.get(monomial, 0) + coefficient
        return Expr._normal(total)

    __radd__ = __add__

    def __neg__(self) -> Expr:
        return Expr(tuple((m, -c) for m, c in self.terms))

    def __sub__(self, other: Like) -> Expr:
        return self + (-Expr.of(other))

    def __rsub__(self, other: Like) -> Expr:
        return Expr.of(other) - self

    def __mul__(self, other: Like) -> Expr:
        product: dict[Monomial, int] = {}
        for m1, c1 in self.terms:
            for m2, c2 in Expr.of(other).terms:
                monomial = tuple(sorted(m1 + m2, key=lambda atom: atom.sort_key))
                product[monomial] = product.get(monomial, 0) + c1 * c2
        return Expr._normal(product)

    __rmul__ = __mul__

    def __floordiv__(self, other: Like) -> Expr:
        return floor_divide(self, Expr.of(other))

    def __rfloordiv__(self, other: Like) -> Expr:
        return floor_divide(Expr.of(other), self)

    def __mod__(self, other: Like) -> Expr:
        return modulo(self, Expr.of(other))

    def __rmod__(self, other: Like) -> Expr:
        return modulo(Expr.of(other), self)

    # -- questions --------------------------------------------------------------------------------------------------

    @property
    def is_constant(self) -> bool:
        return not self.terms or (len(self.terms) == 1 and not self.terms[0][0])

    @property
    def constant_term(self) -> int:
        return self.terms[-1][1] if self.terms and not self.terms[-1][0] else 0

    def __int__(self) -> int:
        if not self.is_constant:
            raise ValueError(f"{self} is not a constant")
        return self.constant_term

    @cached_property
    def symbols(self) -> frozenset[Symbol]:
        """Every symbol that occurs, also inside divisions."""
        found: set[Symbol] = set()
        for monomial, _ in self.terms:
            for atom in monomial:
                if isinstance(atom, Symbol):
                    found.add(atom)
                else:
                    found |= atom.numerator.symbols | atom.denominator.symbols
        return frozenset(found)

    def coefficient(self, symbol: Symbol) -> Expr | None:
        """The coefficient of ``symbol`` if the expression is affine in it (0 if absent), else None."""
        total: dict[Monomial, int] = {}
        for monomial, value in self.terms:
            count = sum(1 for atom in monomial if atom == symbol)
            rest = tuple(atom for atom in monomial if atom != symbol)
            inside = any(
                not isinstance(atom, Symbol) and symbol in (atom.numerator.symbols | atom.denominator.symbols)
                for atom in rest
            )
            if count > 1 or inside:
                return None
            if count == 1:
                total[rest] = total.get(rest, 0) + value
        return Expr._normal(total)

    def affine(self, symbols: Iterable[Symbol]) -> tuple[tuple[int, ...], int] | None:
        """Integer coefficients for ``symbols`` and the constant, or None unless the expression is exactly that."""
        coefficients: list[int] = []
        rest: Expr = self
        for symbol in symbols:
            c = self.coefficient(symbol)
            if c is None or not c.is_constant:
                return None
            coefficients.append(int(c))
            rest = rest - int(c) * Expr.of(symbol)
        return (tuple(coefficients), int(rest)) if rest.is_constant else None

    def split_terms(self, n: int) -> tuple[Expr, Expr]:
        """``(quotient, rest)`` with ``self == n*quotient + rest``: each term goes one way or the other, whole."""
        quotient = {monomial: c // n for monomial, c in self.terms if c % n == 0}
        rest = {monomial: c for monomial, c in self.terms if c % n}
        return Expr._normal(quotient), Expr._normal(rest)

    @cached_property
    def _bounds(self) -> Interval:
        total = Interval(0, 0)
        for monomial, coefficient in self.terms:
            part = Interval(coefficient, coefficient)
            for atom in monomial:
                part = part * atom.bounds()
            total = total + part
        return total

    def bounds(self) -> Interval:
        """An interval that contains every value (sound, not always tight; Proposition 6.4)."""
        return self._bounds

    @property
    def is_nonnegative(self) -> bool:
        return self.bounds().lower >= 0

    # -- evaluation and printing --------------------------------------------------------------------------------------

    def substitute(self, values: Mapping[Symbol, Like]) -> Expr:
        """Replace symbols by expressions and simplify."""
        if not (self.symbols & values.keys()):
            return self
        total: Expr = _constant(0)
        for monomial, coefficient in self.terms:
            part: Expr = _constant(coefficient)
            for atom in monomial:
                if isinstance(atom, Symbol):
                    part = part * values.get(atom, Expr.of(atom))
                else:
                    operation = floor_divide if isinstance(atom, FloorDivision) else modulo
                    part = part * operation(atom.numerator.substitute(values), atom.denominator.substitute(values))
            total = total + part
        return total

    def evaluate(self, values: Mapping[str, Any]) -> Any:
        """The value for given symbol values, by name. Integers, NumPy arrays and integer tensors all work."""
        total: Any = 0
        for monomial, coefficient in self.terms:
            part: Any = coefficient
            for atom in monomial:
                if isinstance(atom, Symbol):
                    part = part * values[atom.name]
                elif isinstance(atom, FloorDivision):
                    part = part * (atom.numerator.evaluate(values) // atom.denominator.evaluate(values))
                else:
                    part = part * (atom.numerator.evaluate(values) % atom.denominator.evaluate(values))
            total = total + part
        return total

    def format(self, atom_text: Callable[[Atom], str] | None = None) -> str:
        """Text with ``+``, ``-`` and ``*``; ``atom_text`` prints atoms (default: Python's ``//`` and ``%``)."""
        atom_text = atom_text or _python_atom
        pieces: list[str] = []
        for monomial, coefficient in self.terms:
            factors = [atom_text(atom) for atom in monomial]
            magnitude = abs(coefficient)
            if magnitude != 1 or not factors:
                factors.insert(0, str(magnitude))
            text = "*".join(factors)
            sign = "-" if coefficient < 0 else "+"
            pieces.append(f"{'-' if sign == '-' else ''}{text}" if not pieces else f" {sign} {text}")
        return "".join(pieces) or "0"

    __str__ = format

    def __repr__(self) -> str:
        return f"Expr({self.format()})"

    def c_style(self) -> str:
        """Text for C++ and Triton, whose ``/`` and ``%`` truncate toward zero: exact also for negative values.

        C++ gets ``/``; see :meth:`triton_style` for ``//``.
        """
        return self.format(lambda atom: _truncating_atom(atom, "/", Expr.c_style))

    def triton_style(self) -> str:
        return self.format(lambda atom: _truncating_atom(atom, "//", Expr.triton_style))

    def to_sympy(self) -> Any:
        """The same expression as a SymPy object (imports SymPy)."""
        import sympy

        total = sympy.Integer(0)
        for monomial, coefficient in self.terms:
            part = sympy.Integer(coefficient)
            for atom in monomial:
                if isinstance(atom, Symbol):
                    part *= sympy.Symbol(atom.name, integer=True)
                elif isinstance(atom, FloorDivision):
                    part *= sympy.floor(atom.numerator.to_sympy() / atom.denominator.to_sympy())
                else:
                    part *= sympy.Mod(atom.numerator.to_sympy(), atom.denominator.to_sympy())
            total += part
        return total


@lru_cache(maxsize=4096)
def _constant(value: int) -> Expr:
    return Expr((((), value),) if value else ())


ZERO = _constant(0)
ONE = _constant(1)


def index(name: str, extent: int) -> Expr:
    """A loop index 0 <= name < extent."""
    return Expr.of(Symbol(name, 0, max(extent - 1, 0)))


def floor_divide(numerator: Expr, denominator: Expr) -> Expr:
    """``numerator // denominator`` in normal form. ZeroDivisionError for a constant zero denominator.

    For a positive constant n, the multiples of n leave the division (``(n*q + r)//n = q + r//n``), a rest known to
    lie in [0, n) vanishes, common factors cancel, and nested divisions merge.
    """
    if not denominator.is_constant:
        if numerator == denominator and denominator.bounds().lower > 0:
            return ONE
        return Expr(((((FloorDivision(numerator, denominator)),), 1),))
    n = int(denominator)
    if n == 0:
        raise ZeroDivisionError(f"({numerator}) // 0")
    if n < 0:
        return floor_divide(-numerator, _constant(-n))
    quotient, rest = _split(numerator, n)
    bounds = rest.bounds()
    if bounds.within(0, n - 1):
        return quotient
    if rest.is_constant:
        return quotient + int(rest) // n
    # A constant inside the rest is reduced modulo the common factor of the other terms: (4*i + 3)//8 = i//2.
    factor = math.gcd(n, *(c for m, c in rest.terms if m))
    if factor > 1 and n % factor == 0:
        reduced = Expr._normal({m: (c // factor) for m, c in rest.terms})
        rest, n = reduced, n // factor
        if n == 1:
            return quotient + rest
        if rest.bounds().within(0, n - 1):
            return quotient
    if len(rest.terms) == 1 and rest.terms[0][1] == 1 and len(rest.terms[0][0]) == 1:
        atom = rest.terms[0][0][0]
        if isinstance(atom, FloorDivision) and atom.denominator.is_constant and int(atom.denominator) > 0:
            return quotient + floor_divide(atom.numerator, _constant(int(atom.denominator) * n))
    return quotient + Expr((((FloorDivision(rest, _constant(n)),), 1),))


def modulo(numerator: Expr, denominator: Expr) -> Expr:
    """``numerator % denominator`` in normal form. ZeroDivisionError for a constant zero denominator."""
    if not denominator.is_constant:
        if numerator == denominator:
            return ZERO
        return Expr((((Modulo(numerator, denominator),), 1),))
    n = int(denominator)
    if n == 0:
        raise ZeroDivisionError(f"({numerator}) % 0")
    if n < 0:
        return -modulo(-numerator, _constant(-n))
    _, rest = _split(numerator, n)
    if rest.bounds().within(0, n - 1):
        return rest
    if rest.is_constant:
        return _constant(int(rest) % n)
    if len(rest.terms) == 1 and rest.terms[0][1] == 1 and len(rest.terms[0][0]) == 1:
        atom = rest.terms[0][0][0]
        if isinstance(atom, Modulo) and atom.denominator.is_constant and int(atom.denominator) % n == 0:
            return modulo(atom.numerator, denominator)
    factor = math.gcd(n, *(c for _, c in rest.terms))
    if factor > 1:
        reduced = Expr._normal({m: c // factor for m, c in rest.terms})
        return factor * modulo(reduced, _constant(n // factor))
    return Expr((((Modulo(rest, _constant(n)),), 1),))


def _split(expression: Expr, n: int) -> tuple[Expr, Expr]:
    """``expression = n*quotient + rest`` where every coefficient of the rest lies in [0, n) unless a smaller
    magnitude with its sign keeps the rest provably in range."""
    quotient: dict[Monomial, int] = {}
    rest: dict[Monomial, int] = {}
    for monomial, coefficient in expression.terms:
        q, r = divmod(coefficient, n)
        if q:
            quotient[monomial] = q
        if r:
            rest[monomial] = r
    q, r = Expr._normal(quotient), Expr._normal(rest)
    if not r.bounds().within(0, n - 1):
        # Coefficients such as -1 (a flip) are better left alone: (7 - i) % 8 is 7 - i for 0 <= i < 8.
        quotient, rest = {}, {}
        for monomial, coefficient in expression.terms:
            whole = coefficient // n if coefficient % n == 0 else 0
            if whole:
                quotient[monomial] = whole
            if coefficient - whole * n:
                rest[monomial] = coefficient - whole * n
        alternative = Expr._normal(rest)
        if alternative.bounds().within(0, n - 1):
            return Expr._normal(quotient), alternative
    return q, r


def _recombine(terms: dict[Monomial, int]) -> dict[Monomial, int]:
    """``n*(a // n) + a % n = a``: undo a reshape that was undone again."""
    for monomial, coefficient in list(terms.items()):
        for position, atom in enumerate(monomial):
            if not isinstance(atom, Modulo) or not atom.denominator.is_constant:
                continue
            rest = monomial[:position] + monomial[position + 1 :]
            n = int(atom.denominator)
            # The division's normal form may be spread over several terms, so it is rebuilt and looked for whole.
            division = floor_divide(atom.numerator, atom.denominator)
            scaled = {
                tuple(sorted(m + rest, key=lambda a: a.sort_key)): c * n * coefficient for m, c in division.terms
            }
            if scaled and all(terms.get(m) == c for m, c in scaled.items()):
                remaining = {m: c for m, c in terms.items() if m != monomial and m not in scaled}
                for m, c in atom.numerator.terms:
                    key = tuple(sorted(m + rest, key=lambda a: a.sort_key))
                    remaining[key] = remaining.get(key, 0) + c * coefficient
                remaining = {m: c for m, c in remaining.items() if c}
                return _recombine(remaining)
    return terms


def _python_atom(atom: Atom) -> str:
    if isinstance(atom, Symbol):
        return atom.name
    sign = "//" if isinstance(atom, FloorDivision) else "%"
    return f"({_parenthesize(str(atom.numerator))} {sign} {_parenthesize(str(atom.denominator))})"


def _truncating_atom(atom: Atom, divide: str, text: Callable[[Expr], str]) -> str:
    if isinstance(atom, Symbol):
        return atom.name
    n, d = text(atom.numerator), _parenthesize(text(atom.denominator))
    exact = atom.numerator.is_nonnegative and atom.denominator.is_nonnegative
    if isinstance(atom, FloorDivision):
        if exact:
            return f"(({n}) {divide} {d})"
        return f"((({n}) - (((({n}) % {d}) + {d}) % {d})) {divide} {d})"
    return f"(({n}) % {d})" if exact else f"(((({n}) % {d}) + {d}) % {d})"


def _parenthesize(text: str) -> str:
    return text if text.isidentifier() or text.isdigit() else f"({text})"
