"""Straight-line programs: the model in which the cost of a gradient is counted (Section 5.2).

A straight-line program has inputs ``v_1, ..., v_d`` and computes ``v_(d+1), ..., v_N`` one after the other, each from
values before it by ``+``, ``-``, ``*``, ``/`` or an elementary function; the last one is its result. Its *size* is
``W = N - d``, the number of operations.

A program does not care what a number is. It runs on floats, fractions and scalar tensors; on :class:`Counted` numbers,
which count what is done to them; and on :class:`Traced` numbers, which record it. The last is how a program comes into
being (:func:`straight_line`), and how the gradient of a program becomes a program (``sweeps.joint``).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import torch

from ..errors import StaxError
from ..specialize.report import counted

MOST_LINES = 60  # instructions listed in a terminal


class ProgramError(StaxError):
    """A straight-line program that is none, or has no value at its inputs."""


# --- Numbers that count, and numbers that record ----------------------------------------------------------------------


class Arithmetic:
    """A number that hands every operation to its ``apply``."""

    def apply(self, operation: str, *operands: Any) -> Any:
        raise NotImplementedError

    def __add__(self, other: Any) -> Any:
        return self.apply("+", self, other)

    def __radd__(self, other: Any) -> Any:
        return self.apply("+", other, self)

    def __sub__(self, other: Any) -> Any:
        return self.apply("-", self, other)

    def __rsub__(self, other: Any) -> Any:
        return self.apply("-", other, self)

    def __mul__(self, other: Any) -> Any:
        return self.apply("*", self, other)

    def __rmul__(self, other: Any) -> Any:
        return self.apply("*", other, self)

    def __truediv__(self, other: Any) -> Any:
        return self.apply("/", self, other)

    def __rtruediv__(self, other: Any) -> Any:
        return self.apply("/", other, self)

    def __neg__(self) -> Any:
        return self.apply("neg", self)


class Tally:
    """How many operations were done."""

    def __init__(self) -> None:
        self.count = 0

    def number(self, value: Any) -> Counted:
        """``value`` as a number whose operations are counted here."""
        return Counted(value, self)


class Counted(Arithmetic):
    """A number of any kind; each operation with it counts as one in its tally."""

    __slots__ = ("tally", "value")

    def __init__(self, value: Any, tally: Tally):
        self.value, self.tally = value, tally

    def apply(self, operation: str, *operands: Any) -> Counted:
        self.tally.count += 1
        raw = [one.value if isinstance(one, Counted) else one for one in operands]
        return Counted(apply(operation, *raw), self.tally)


@dataclass(frozen=True)
class Elementary:
    """An elementary function of one number: its value, and its derivative from the argument and the value."""

    name: str
    value: Callable[[float], float]
    derivative: Callable[[Any, Any], Any]

    @cached_property
    def cost(self) -> int:
        """Operations for the derivative, counted: the ``c`` of Theorem 5.1."""
        tally = Tally()
        self.derivative(tally.number(0.5), tally.number(0.5))
        return tally.count


def apply(operation: str, *operands: Any) -> Any:
    """One operation on numbers of whatever kind. Elementary functions know floats, tensors, and :class:`Arithmetic`."""
    for one in operands:
        if isinstance(one, Arithmetic):
            return one.apply(operation, *operands)
    if operation in BINARY:
        return BINARY[operation](*operands)
    (argument,) = operands
    if isinstance(argument, torch.Tensor):
        return getattr(torch, operation)(argument)
    return ELEMENTARY[operation].value(argument)


def _sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


BINARY: dict[str, Callable[[Any, Any], Any]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv,
}  # fmt: skip
ELEMENTARY: dict[str, Elementary] = {
    one.name: one
    for one in (
        Elementary("neg", operator.neg, lambda a, v: -1),
        Elementary("exp", math.exp, lambda a, v: v),
        Elementary("log", math.log, lambda a, v: 1 / a),
        Elementary("sqrt", math.sqrt, lambda a, v: 1 / (2 * v)),
        Elementary("tanh", math.tanh, lambda a, v: 1 - v * v),
        Elementary("sigmoid", _sigmoid, lambda a, v: v * (1 - v)),
        Elementary("sin", math.sin, lambda a, v: apply("cos", a)),
        Elementary("cos", math.cos, lambda a, v: -apply("sin", a)),
    )
}
exp, log, sqrt, tanh, sigmoid, sin, cos = (
    partial(apply, name) for name in ("exp", "log", "sqrt", "tanh", "sigmoid", "sin", "cos")
)


# --- Programs ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Constant:
    """A number written in the program. It has no adjoint."""

    value: Any

    def __str__(self) -> str:
        return f"{self.value}"


Operand = int | Constant  # an int is the number of a value: 1 to d are the inputs


@dataclass(frozen=True)
class Instruction:
    """One operation: "+", "-", "*", "/" on two operands, or an elementary function of one."""

    operation: str
    operands: tuple[Operand, ...]

    def __str__(self) -> str:
        names = [f"v{one}" if isinstance(one, int) else str(one) for one in self.operands]
        if self.operation in BINARY:
            return f" {self.operation} ".join(names)
        return f"{self.operation}({names[0]})"


@dataclass(frozen=True)
class Program:
    """A straight-line program with ``inputs`` inputs. ``outputs`` are operands; by default the last value is the only
    one. Raises ProgramError for an instruction that reads what is not computed yet, or that is not known."""

    inputs: int
    instructions: tuple[Instruction, ...]
    outputs: tuple[Operand, ...] = ()
    name: str = "program"

    def __post_init__(self) -> None:
        if not self.outputs:
            object.__setattr__(self, "outputs", (self.inputs + len(self.instructions),))
        for number, instruction in enumerate(self.instructions, self.inputs + 1):
            arity = 2 if instruction.operation in BINARY else 1 if instruction.operation in ELEMENTARY else 0
            if arity != len(instruction.operands):
                raise ProgramError(
                    f"v{number} = {instruction.operation!r} of {counted(len(instruction.operands), 'operand')} is no "
                    "operation",
                    remedy=f"there are {', '.join(BINARY)} of two operands, and {', '.join(ELEMENTARY)} of one",
                )
            self._require_known(instruction.operands, number, f"v{number} = {instruction}")
        self._require_known(self.outputs, self.inputs + len(self.instructions) + 1, "the output")

    def _require_known(self, operands: Iterable[Operand], before: int, who: str) -> None:
        for one in operands:
            if isinstance(one, int) and not 1 <= one < before:
                raise ProgramError(f"{who} reads v{one}, which has no value then", remedy="read values before it")

    @property
    def size(self) -> int:
        """The number of operations ``W``."""
        return len(self.instructions)

    @property
    def factor(self) -> int:
        """``1 + max(4, c + 2)`` with the dearest elementary function that occurs: the constant of Theorem 5.1."""
        dearest = max((ELEMENTARY[i.operation].cost for i in self.instructions if i.operation in ELEMENTARY), default=0)
        return 1 + max(4, dearest + 2)

    def values(self, inputs: Sequence[Any]) -> list[Any]:
        """All values ``v_1, ..., v_N``, as a list from 0. Raises ProgramError where an operation has none."""
        if len(inputs) != self.inputs:
            raise ProgramError(f"{self.name} has {counted(self.inputs, 'input')} and was given {len(inputs)}")
        values = list(inputs)
        for number, instruction in enumerate(self.instructions, self.inputs + 1):
            with naming(number, instruction, "value"):
                values.append(apply(instruction.operation, *(value_of(one, values) for one in instruction.operands)))
        return values

    def __call__(self, *inputs: Any) -> Any:
        """The output, or a tuple of the outputs if there are several."""
        values = self.values(inputs)
        found = tuple(value_of(one, values) for one in self.outputs)
        return found[0] if len(found) == 1 else found

    def format(self) -> str:
        """A line for each instruction."""
        inputs = ", ".join(f"v{k}" for k in range(1, self.inputs + 1))
        lines = [f"{self.name}({inputs}): {counted(self.size, 'operation')}"]
        for number, instruction in list(enumerate(self.instructions, self.inputs + 1))[:MOST_LINES]:
            lines.append(f"  v{number} = {instruction}")
        if self.size > MOST_LINES:
            lines.append(f"  ... {self.size - MOST_LINES:,} more")
        names = [f"v{one}" if isinstance(one, int) else str(one) for one in self.outputs]
        return "\n".join([*lines, f"  return {', '.join(names)}"])

    __str__ = format


def value_of(operand: Operand, values: Sequence[Any]) -> Any:
    """What an operand stands for, given the values so far."""
    return values[operand - 1] if isinstance(operand, int) else operand.value


@contextmanager
def naming(number: int, instruction: Instruction, what: str) -> Iterator[None]:
    """Arithmetic that fails inside becomes a ProgramError that names the instruction."""
    try:
        yield
    except (ArithmeticError, ValueError) as error:
        raise ProgramError(f"v{number} = {instruction} has no {what} there: {error}") from error


class _Recorder:
    """Collects the instructions that :class:`Traced` numbers go through."""

    def __init__(self, inputs: int):
        self.inputs = inputs
        self.instructions: list[Instruction] = []

    def operand(self, number: Any) -> Operand:
        return number.operand if isinstance(number, Traced) else Constant(number)

    def add(self, operation: str, *operands: Any) -> Traced:
        self.instructions.append(Instruction(operation, tuple(map(self.operand, operands))))
        return Traced(self, self.inputs + len(self.instructions))


class Traced(Arithmetic):
    """A number that stands for a value of the program being recorded."""

    __slots__ = ("operand", "recorder")

    def __init__(self, recorder: _Recorder, operand: int):
        self.recorder, self.operand = recorder, operand

    def apply(self, operation: str, *operands: Any) -> Traced:
        return self.recorder.add(operation, *operands)


def straight_line(function: Callable[..., Any], inputs: int, name: str | None = None) -> Program:
    """The program that ``function`` is on ``inputs`` numbers: whatever it does to them by arithmetic and by the
    elementary functions of this module. It returns a number or a sequence of them.

    >>> print(straight_line(lambda x, y: exp(x * y) + 2 * x, 2, "f"))
    f(v1, v2): 4 operations
      v3 = v1 * v2
      v4 = exp(v3)
      v5 = 2 * v1
      v6 = v4 + v5
      return v6
    """
    recorder = _Recorder(inputs)
    found = function(*(Traced(recorder, number) for number in range(1, inputs + 1)))
    outputs = tuple(found) if isinstance(found, tuple | list) else (found,)
    called = name or getattr(function, "__name__", "program")
    return Program(inputs, tuple(recorder.instructions), tuple(map(recorder.operand, outputs)), called)
