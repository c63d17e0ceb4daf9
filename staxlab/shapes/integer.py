"""A size that the program may calculate with while it is being recorded (Section 10.2).

:class:`SymbolicInteger` is what ``x.shape[0]`` answers in a recording for many shapes. Arithmetic stays symbolic
(flattening ``s x 128`` gives ``128*s``), a comparison is a decision of the :class:`~.environment.ShapeEnvironment`,
and whatever needs the number itself (``range(n)``, ``int(n)``, text, a dictionary key) makes the recording rely on it:
``n == 64`` becomes part of the guard. So no use of a size, however far from PyTorch, can be missed; the worst outcome
is a version that serves one size only.

It derives from ``torch.SymInt``, because PyTorch's functions take those wherever they take integers and hand them on
unread, where they would ask any other object for its value at once.
"""

from __future__ import annotations

import numbers
import operator
import sys
from typing import Any

import numpy
import torch

from ..loops.expressions import Expr
from .environment import ShapeEnvironment
from .relations import Relation

_NAMES = {"==": "eq", "!=": "ne", "<": "lt", "<=": "le", ">": "gt", ">=": "ge"}


class _Specialized:
    """What PyTorch's own code finds if it looks inside: the value on the sample, and nothing symbolic."""

    def __init__(self, number: SymbolicInteger):
        self.number = number

    def guard_int(self, *_: Any) -> int:
        return int(self.number)

    expect_size = has_hint = guard_size_oblivious = None
    require_hint = int_ = maybe_as_int = guard_int

    def is_int(self) -> bool:
        return True

    def is_symbolic(self) -> bool:
        return True

    def is_float(self) -> bool:
        return False

    is_bool = is_constant = is_nested_int = is_float


class _Condition:
    """What PyTorch's own code finds in a condition: ``torch._check`` states it, everything else asks."""

    def __init__(self, condition: SymbolicBoolean):
        self.condition = condition

    def expect_true(self, *_: Any) -> bool:
        """Called by ``torch._check`` and its kin, whose frame has the exception and the message of the program."""
        given = sys._getframe(2).f_locals
        error, message = given.get("error_type", RuntimeError), given.get("message")
        text = str(message()) if callable(message) else f"Expected {self.condition.relation}"
        return self.condition.environment.assume(self.condition.relation, error, text)

    def guard_bool(self, *_: Any) -> bool:
        return bool(self.condition)

    bool_ = guard_size_oblivious = guard_bool

    def is_bool(self) -> bool:
        return True


class SymbolicBoolean(torch.SymBool):
    """A comparison that depends on data and that nothing known settles: to be stated with ``torch._check``, or decided
    by whoever needs to know, which makes the size a data gate."""

    def __init__(self, relation: Relation, environment: ShapeEnvironment):
        self.relation = relation
        self.environment = environment
        self.node = _Condition(self)

    def __bool__(self) -> bool:
        return self.environment.ask(self.relation)

    def __int__(self) -> int:
        return int(bool(self))

    __index__ = __int__

    def __and__(self, other: Any) -> Any:
        return bool(self) & other

    def __or__(self, other: Any) -> Any:
        return bool(self) | other

    __rand__, __ror__ = __and__, __or__

    def __xor__(self, other: Any) -> Any:
        return bool(self) ^ other

    def __invert__(self) -> Any:
        return ~int(self)

    def __eq__(self, other: Any) -> Any:
        return bool(self) == other

    def __hash__(self) -> int:
        return hash(bool(self))

    def __repr__(self) -> str:
        return repr(bool(self))

    __str__ = __repr__


class SymbolicInteger(torch.SymInt):
    """An integer expression over size symbols, with its value on the sample.

    ``isinstance(n, int)`` holds, since programs ask it to tell a number from a tuple.
    """

    def __init__(self, expression: Expr, environment: ShapeEnvironment):
        self.expression = expression
        self.environment = environment
        self.node = _Specialized(self)

    @property
    def __class__(self) -> type:  # type: ignore[override]
        return int

    @property
    def hint(self) -> int:
        """The value on the sample. Reading it decides nothing."""
        return self.environment.hint(self.expression)

    # -- arithmetic that stays symbolic ----------------------------------------------------------------------------

    def _combine(self, other: Any, operation: Any, reflected: bool = False) -> Any:
        expression = _expression(other, self.environment)
        if expression is None:
            if not isinstance(other, numbers.Number):
                return NotImplemented
            return operation(other, int(self)) if reflected else operation(int(self), other)
        left, right = (expression, self.expression) if reflected else (self.expression, expression)
        return number(operation(left, right), self.environment)

    def __add__(self, other: Any) -> Any:
        return self._combine(other, operator.add)

    def __radd__(self, other: Any) -> Any:
        return self._combine(other, operator.add, True)

    def __sub__(self, other: Any) -> Any:
        return self._combine(other, operator.sub)

    def __rsub__(self, other: Any) -> Any:
        return self._combine(other, operator.sub, True)

    def __mul__(self, other: Any) -> Any:
        return self._combine(other, operator.mul)

    def __rmul__(self, other: Any) -> Any:
        return self._combine(other, operator.mul, True)

    def __neg__(self) -> Any:
        return number(-self.expression, self.environment)

    def __pos__(self) -> Any:
        return self

    def __abs__(self) -> Any:
        return self if self >= 0 else -self

    def _divide(self, other: Any, operation: Any, reflected: bool) -> Any:
        divisor = self.expression if reflected else _expression(other, self.environment)
        if divisor is None:
            return self._combine(other, operation)
        if self.environment.ask(Relation.of(divisor, "==", 0), "the divisor"):
            raise ZeroDivisionError("integer division or modulo by zero")
        return self._combine(other, operation, reflected)

    def __floordiv__(self, other: Any) -> Any:
        return self._divide(other, operator.floordiv, False)

    def __rfloordiv__(self, other: Any) -> Any:
        return self._divide(other, operator.floordiv, True)

    def __mod__(self, other: Any) -> Any:
        return self._divide(other, operator.mod, False)

    def __rmod__(self, other: Any) -> Any:
        return self._divide(other, operator.mod, True)

    def __divmod__(self, other: Any) -> Any:
        return self // other, self % other

    def __rdivmod__(self, other: Any) -> Any:
        return other // self, other % self

    def __pow__(self, other: Any, modulus: Any = None) -> Any:
        if modulus is None and type(other) is int and 0 <= other <= 8:
            result: Any = 1
            for _ in range(other):
                result = self * result
            return result
        if isinstance(other, torch.Tensor):
            return NotImplemented
        return pow(int(self), _plain(other), _plain(modulus))

    # -- decisions -------------------------------------------------------------------------------------------------

    def _ask(self, comparison: str, other: Any) -> Any:
        expression = _expression(other, self.environment)
        if expression is None:
            if not isinstance(other, numbers.Number):
                return NotImplemented
            return getattr(operator, _NAMES[comparison])(int(self), other)
        relation = Relation.of(self.expression, comparison, expression)
        if self.environment.is_open(relation):
            return SymbolicBoolean(relation, self.environment)
        return self.environment.ask(relation)

    def __eq__(self, other: Any) -> Any:
        return self._ask("==", other)

    def __ne__(self, other: Any) -> Any:
        return self._ask("!=", other)

    def __lt__(self, other: Any) -> Any:
        return self._ask("<", other)

    def __le__(self, other: Any) -> Any:
        return self._ask("<=", other)

    def __gt__(self, other: Any) -> Any:
        return self._ask(">", other)

    def __ge__(self, other: Any) -> Any:
        return self._ask(">=", other)

    def __bool__(self) -> bool:
        return self.environment.ask(Relation.of(self.expression, "!=", 0))

    # -- uses of the number itself -----------------------------------------------------------------------------------

    def __int__(self) -> int:
        return self.environment.specialize(self.expression, "Python code took the number itself")

    __index__ = __trunc__ = __floor__ = __ceil__ = __int__

    def __round__(self, digits: Any = None) -> int:
        return round(int(self), digits) if digits is not None else int(self)

    def __float__(self) -> float:
        return float(int(self))

    def __complex__(self) -> complex:
        return complex(int(self))

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        return numpy.array(int(self), dtype=dtype)  # without it NumPy makes arrays of objects

    def __hash__(self) -> int:
        return hash(int(self))

    def __str__(self) -> str:
        return str(int(self))

    def __format__(self, specification: str) -> str:
        return format(int(self), specification)

    def __repr__(self) -> str:
        return repr(int(self))

    def __reduce_ex__(self, protocol: Any) -> Any:
        return int, (int(self),)

    def __copy__(self) -> SymbolicInteger:
        return self

    def __deepcopy__(self, memo: Any) -> SymbolicInteger:
        return self

    def __getattr__(self, name: str) -> Any:
        """Whatever else an integer has (``bit_length``, ``as_integer_ratio``) is asked of the number."""
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(int(self), name)


def _forward(name: str) -> Any:
    def method(self: SymbolicInteger, *others: Any) -> Any:
        if others and isinstance(others[0], torch.Tensor):
            return NotImplemented  # the tensor's operation takes a size as it is
        return getattr(operator, name)(int(self), *map(_plain, others))

    return method


def _reflect(name: str) -> Any:
    def method(self: SymbolicInteger, other: Any) -> Any:
        if not isinstance(other, numbers.Number):
            return NotImplemented
        return getattr(operator, name)(_plain(other), int(self))

    return method


for _name in ("truediv", "and_", "or_", "xor", "lshift", "rshift", "invert"):
    setattr(SymbolicInteger, f"__{_name.rstrip('_')}__", _forward(_name))
    if _name != "invert":
        setattr(SymbolicInteger, f"__r{_name.rstrip('_')}__", _reflect(_name))
SymbolicInteger.__rpow__ = _reflect("pow")


def is_symbolic(value: Any) -> bool:
    """Whether a value is a :class:`SymbolicInteger`, which ``isinstance`` takes for an ``int``."""
    return type(value) is SymbolicInteger


def number(expression: Expr, environment: ShapeEnvironment) -> SymbolicInteger | int:
    """The expression as a number: a plain one if it is constant."""
    return int(expression) if expression.is_constant else SymbolicInteger(expression, environment)


def _expression(value: Any, environment: ShapeEnvironment) -> Expr | None:
    """``value`` in a calculation of ``environment``; None if it is no integer, or one with operations of its own. A
    size of another recording, which a cache of the program's may have kept, is the number it was there: its symbols
    mean something else here."""
    if type(value) is SymbolicInteger:
        return value.expression if value.environment is environment else Expr.of(int(value))
    return Expr.of(int(value)) if type(value) in (int, bool) else None


def _plain(value: Any) -> Any:
    return int(value) if type(value) is SymbolicInteger else value


def plain(value: Any) -> Any:
    """The value with every size in it as a plain number, which the recording then relies on."""
    if isinstance(value, torch.Size):
        return torch.Size([_plain(part) for part in value])
    return _plain(value)


def hinted(value: Any) -> Any:
    """The value on the sample, without relying on it."""
    if isinstance(value, torch.Size):
        return torch.Size([hinted(part) for part in value])
    return value.hint if type(value) is SymbolicInteger else value
