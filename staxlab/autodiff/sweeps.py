"""What a gradient costs: the two sweeps of reverse mode, counted, and forward mode beside them (Theorem 5.1).

Reverse mode computes all values of a straight-line program (``W`` operations), sets the adjoint of the result to 1 and
all others to 0, and goes back through the program, adding to the adjoints of the operands (Section 5.2):

===============  ============================================================================  ==========
operation        reverse step                                                                  operations
===============  ============================================================================  ==========
``v = a + b``    ``a' += v'``, ``b' += v'``                                                    2
``v = a - b``    ``a' += v'``, ``b' -= v'``                                                    2
``v = a * b``    ``a' += v' * b``, ``b' += v' * a``                                            4
``v = a / b``    ``t = v' / b``, ``a' += t``, ``b' -= t * v``                                  4
``v = f(a)``     ``a' += v' * f'(a)``, the derivative from ``a`` and ``v`` in ``c`` operations  c + 2
===============  ============================================================================  ==========

So the gradient with respect to *all* inputs takes at most ``(1 + max(4, c + 2)) W`` operations, however many inputs
there are. Nothing of this is assumed here: :func:`reverse_mode` runs on numbers that count the operations done to them.
:func:`forward_mode` carries a tangent along instead (Section 5.7) and has to run once for every input: forward mode
gives a column of the Jacobian at a time, reverse mode a row (Proposition 5.2).

On numbers that record, the reverse sweep gives the program *and its gradient* as another straight-line program,
:func:`joint`. That is a joint graph (Section 5.3) in miniature, and since it is a program again, it can be
differentiated again.

Baur, W., & Strassen, V. (1983). The complexity of partial derivatives. Griewank, A., & Walther, A. (2008). Evaluating
Derivatives, 2nd edition.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..specialize.report import counted
from .straightline import (
    BINARY,
    ELEMENTARY,
    MOST_LINES,
    Counted,
    Instruction,
    Operand,
    Program,
    ProgramError,
    Tally,
    Traced,
    apply,
    naming,
    straight_line,
    value_of,
)

# --- Reverse mode -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ReverseSweep:
    """A program, its values, and the adjoint of every value (lists from 0: ``values[k - 1]`` is ``v_k``).

    ``forward_operations`` and ``step_operations`` (one number per instruction) were counted while the sweeps ran.
    """

    program: Program
    values: tuple[Any, ...]
    adjoints: tuple[Any, ...]
    forward_operations: int
    step_operations: tuple[int, ...]

    @property
    def gradient(self) -> tuple[Any, ...]:
        """The derivative of the result with respect to each input."""
        return self.adjoints[: self.program.inputs]

    @property
    def reverse_operations(self) -> int:
        return sum(self.step_operations)

    @property
    def operations(self) -> int:
        """Both sweeps."""
        return self.forward_operations + self.reverse_operations

    @property
    def bound(self) -> int:
        """``(1 + max(4, c + 2)) W`` (Theorem 5.1)."""
        return self.program.factor * self.program.size

    def summary(self) -> str:
        """One line: operations beside the bound."""
        return (
            f"{self.forward_operations:,} + {self.reverse_operations:,} = {counted(self.operations, 'operation')} for "
            f"{counted(self.program.inputs, 'derivative')}; the bound is {self.program.factor} W = {self.bound:,}"
        )

    def format(self) -> str:
        """The program with values, adjoints and counts, then the sum beside the bound."""
        rows = [("", "value", "adjoint", "reverse operations"), *self.rows()]
        shown = rows[: MOST_LINES + 1]
        widths = [max(len(row[k]) for row in shown) for k in range(4)]
        lines = [
            f"{row[0]:<{widths[0]}}  {row[1]:>{widths[1]}}  {row[2]:>{widths[2]}}  {row[3]:>{widths[3]}}".rstrip()
            for row in shown
        ]
        if len(rows) > len(shown):
            lines.append(f"... {len(rows) - len(shown):,} more")
        return "\n".join([f"reverse mode of {self.program.name}", *lines, self.summary()])

    __str__ = format

    def rows(self) -> list[tuple[str, str, str, str]]:
        """(what, value, adjoint, operations of the reverse step) for every value, inputs first."""
        texts = [f"v{k}" for k in range(1, self.program.inputs + 1)]
        texts += [f"v{k} = {i}" for k, i in enumerate(self.program.instructions, self.program.inputs + 1)]
        counts = [""] * self.program.inputs + [str(count) for count in self.step_operations]
        numbers = zip(self.values, self.adjoints, strict=True)
        return [
            (text, number_text(value), number_text(adjoint), count)
            for text, (value, adjoint), count in zip(texts, numbers, counts, strict=True)
        ]

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)


def number_text(value: Any) -> str:
    """A number in short, whatever its kind."""
    if isinstance(value, float | torch.Tensor):
        return f"{float(value):.6g}"
    return str(value)


def reverse_mode(program: Program, inputs: Sequence[Any]) -> ReverseSweep:
    """The gradient of a program with one output, by the two sweeps of Theorem 5.1, counted.

    ``inputs`` are floats, fractions or scalar tensors; values and adjoints are of the same kind. At most
    ``program.factor * program.size`` operations. Raises ProgramError where a value or derivative does not exist, and
    unless there is one output.
    """
    result = _result_of(program)
    tally = Tally()
    values = program.values([tally.number(one) for one in inputs])
    forward = tally.count
    adjoints = [tally.number(0) for _ in values]
    if isinstance(result, int):
        adjoints[result - 1] = tally.number(1)
    steps = _step_back(program, values, adjoints, tally)
    return ReverseSweep(program, _raw(values), _raw(adjoints), forward, steps)


def _result_of(program: Program) -> Operand:
    if len(program.outputs) != 1:
        raise ProgramError(
            f"{program.name} has {len(program.outputs)} outputs, and a gradient is that of one",
            remedy="choose one, or a combination of them: weighted(program, weights)",
        )
    return program.outputs[0]


def _step_back(program: Program, values: Sequence[Any], adjoints: list[Any], tally: Tally) -> tuple[int, ...]:
    """The reverse sweep, in the notation of the table above. Returns the operations of each step."""
    counts = [0] * program.size
    for position in range(program.size - 1, -1, -1):
        before = tally.count
        instruction = program.instructions[position]
        number = program.inputs + position
        adjoint = adjoints[number]
        if adjoint is NOTHING:
            continue
        with naming(number + 1, instruction, "derivative"):
            _step(instruction, values, adjoints, values[number], adjoint)
        counts[position] = tally.count - before
    return tuple(counts)


def _step(instruction: Instruction, values: Sequence[Any], adjoints: list[Any], v: Any, adjoint: Any) -> None:
    """One line of the table: from the adjoint of ``v`` to those of its operands."""
    a, *more = instruction.operands
    b = more[0] if more else None
    match instruction.operation:
        case "+":
            _add(adjoints, a, adjoint)
            _add(adjoints, b, adjoint)
        case "-":
            _add(adjoints, a, adjoint)
            _subtract(adjoints, b, adjoint)
        case "*":
            if isinstance(a, int):
                _add(adjoints, a, adjoint * value_of(b, values))
            if isinstance(b, int):
                _add(adjoints, b, adjoint * value_of(a, values))
        case "/":
            t = adjoint / value_of(b, values)
            _add(adjoints, a, t)
            if isinstance(b, int):
                _subtract(adjoints, b, t * v)
        case name:
            if isinstance(a, int):
                _add(adjoints, a, adjoint * ELEMENTARY[name].derivative(value_of(a, values), v))


def _add(adjoints: list[Any], operand: Operand | None, contribution: Any) -> None:
    if isinstance(operand, int):
        adjoints[operand - 1] = adjoints[operand - 1] + contribution


def _subtract(adjoints: list[Any], operand: Operand | None, contribution: Any) -> None:
    if isinstance(operand, int):
        adjoints[operand - 1] = adjoints[operand - 1] - contribution


def _raw(numbers: Iterable[Any]) -> tuple[Any, ...]:
    return tuple(one.value if isinstance(one, Counted) else one for one in numbers)


class _Nothing:
    """An adjoint to which nothing has been added: adding to it costs nothing."""

    def __add__(self, other: Any) -> Any:
        return other

    def __sub__(self, other: Any) -> Any:
        return apply("neg", other)


NOTHING = _Nothing()


def joint(program: Program) -> Program:
    """The program followed by its reverse sweep: outputs are the result and its derivative with respect to each input.

    The sweep runs on numbers that record, so the instructions are those that reverse mode executes, without the
    additions to an adjoint of 0: at most ``program.factor * program.size``. Raises ProgramError for several outputs.

    >>> print(joint(straight_line(lambda x, y: x * y, 2, "f")))
    joint f(v1, v2): 3 operations
      v3 = v1 * v2
      v4 = 1 * v2
      v5 = 1 * v1
      return v3, v4, v5
    """
    result = _result_of(program)

    def both(*inputs: Traced) -> tuple[Any, ...]:
        values = program.values(inputs)
        adjoints: list[Any] = [NOTHING] * len(values)
        if isinstance(result, int):
            adjoints[result - 1] = 1
        _step_back(program, values, adjoints, Tally())
        gradient = (0 if one is NOTHING else one for one in adjoints[: program.inputs])
        return (value_of(result, values), *gradient)

    return straight_line(both, program.inputs, f"joint {program.name}")


def weighted(program: Program, weights: Sequence[Any], name: str | None = None) -> Program:
    """The program whose one output is the sum of the outputs of ``program``, each times its weight (a number).

    With reverse mode this is ``u^T J``; applied to the gradient part of :func:`joint`, it is ``grad f . v``, whose
    gradient is the product of the Hessian with ``v``. Raises ProgramError for another number of weights.
    """
    if len(weights) != len(program.outputs):
        raise ProgramError(f"{program.name} has {len(program.outputs)} outputs and was given {len(weights)} weights")

    def total(*inputs: Traced) -> Any:
        found = program(*inputs)
        outputs = found if isinstance(found, tuple) else (found,)
        terms = [weight * one for weight, one in zip(weights, outputs, strict=True)]
        return sum(terms[1:], start=terms[0])

    return straight_line(total, program.inputs, name or f"weighted {program.name}")


# --- Forward mode -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ForwardSweep:
    """Values and tangents of a program in one direction, and the operations counted for both."""

    program: Program
    values: tuple[Any, ...]
    tangents: tuple[Any, ...]
    operations: int

    @property
    def derivative(self) -> Any:
        """The tangent of the output, or a tuple where there are several: ``J v``."""
        found = tuple(self.tangents[one - 1] if isinstance(one, int) else 0 for one in self.program.outputs)
        return found[0] if len(found) == 1 else found


def forward_mode(program: Program, inputs: Sequence[Any], direction: Sequence[Any]) -> ForwardSweep:
    """One ``J v``: each value carries its tangent along (Section 5.7). ``direction`` has one number per input.

    Nothing is stored for later. A multiplication costs 4 operations with its tangent (``b * a' + a * b'``), a division
    4, an elementary function ``c + 2``. Raises ProgramError where there is no value.
    """
    tally = Tally()
    values = [tally.number(one) for one in inputs]
    tangents = [tally.number(one) for one in direction]
    if not len(values) == len(tangents) == program.inputs:
        raise ProgramError(f"{program.name} has {counted(program.inputs, 'input')}, and a direction as many numbers")
    for number, instruction in enumerate(program.instructions, program.inputs + 1):
        operands = [value_of(one, values) for one in instruction.operands]
        moved = [tangents[one - 1] if isinstance(one, int) else None for one in instruction.operands]
        with naming(number, instruction, "value"):
            values.append(tally.number(0).apply(instruction.operation, *operands))
        with naming(number, instruction, "derivative"):
            tangents.append(_tangent(instruction.operation, operands, moved, values[-1]) or tally.number(0))
    return ForwardSweep(program, _raw(values), _raw(tangents), tally.count)


def _tangent(operation: str, operands: list[Any], moved: list[Any], v: Any) -> Any:
    """The tangent of a value; None stands for that of a constant."""
    a, da = operands[0], moved[0]
    if operation not in BINARY:
        return None if da is None else da * ELEMENTARY[operation].derivative(a, v)
    b, db = operands[1], moved[1]
    if operation == "/":
        numerator = _sum(da, None if db is None else v * db, BINARY["-"])
        return None if numerator is None else numerator / b
    if operation == "*":
        return _sum(None if da is None else b * da, None if db is None else a * db, BINARY["+"])
    return _sum(da, db, BINARY[operation])


def _sum(one: Any, other: Any, combine: Callable[[Any, Any], Any]) -> Any:
    if other is None:
        return one
    if one is None:
        return -other if combine is operator.sub else other
    return combine(one, other)
