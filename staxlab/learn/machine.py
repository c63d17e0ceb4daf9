"""A machine with two levels of memory, small enough to count every access (Section 1.1, Proposition 1.1).

Main memory holds tensors, element by element, and is the slow level: each ``read`` and ``write`` of one element is
one transfer. On-chip memory is a handful of named registers and is free. A *schedule* is a sequence of instructions,
plain tuples, so a fused kernel can be written down as a Python generator and judged by running it:

    ("set", r, number)             register r becomes a constant
    ("read", r, "x", i, j)         register r becomes element x[i, j] of main memory
    ("write", r, "y", i)           element y[i] of main memory becomes register r
    ("add", r, p, q)               also sub, mul, div, max, min; p and q are registers or numbers
    ("relu", r, p)                 also neg, abs, copy

The machine computes with exact fractions, keeps the log of all transfers, and stops with :class:`MachineError` at the
first instruction that makes no sense, naming it. What a schedule *should* have done is a separate question:
:func:`departures` compares a run with the traffic bound of Proposition 1.1.
"""

from __future__ import annotations

import math
import operator
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

Index = tuple[int, ...]
Element = tuple[str, Index]
Tensors = Mapping[str, Mapping[Index, Fraction]]

BINARY: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "div": operator.truediv,
    "max": max,
    "min": min,
}
UNARY: dict[str, Callable[[Fraction], Fraction]] = {
    "relu": lambda a: max(a, Fraction(0)),
    "neg": operator.neg,
    "abs": abs,
    "copy": lambda a: a,
}
FORMS = '("set", r, number), ("read", r, "x", i, ...), ("write", r, "y", i, ...), ("add", r, p, q), ("relu", r, p)'


class MachineError(Exception):
    """An instruction cannot be executed. ``position`` counts from 0; ``kind`` is a short stable name of the reason."""

    def __init__(self, position: int, instruction: Any, message: str, kind: str = "instruction"):
        self.position, self.instruction, self.message, self.kind = position, instruction, message, kind
        super().__init__(f"step {position}, {instruction!r}: {message}")


class _Stop(Exception):
    """Message and kind of a MachineError, raised where the position is not known."""


@dataclass(frozen=True)
class Run:
    """What a schedule did. ``memory`` holds every element written or given; counters count transfers per element."""

    memory: dict[Element, Fraction]
    reads: Counter[Element]
    writes: Counter[Element]
    registers: int
    steps: int

    @property
    def transfers(self) -> int:
        """Elements moved between the two levels, in both directions."""
        return self.reads.total() + self.writes.total()


def element_text(element: Element) -> str:
    """``x[0, 3]``"""
    name, index = element
    return f"{name}[{', '.join(map(str, index))}]"


class _Machine:
    """Both levels of memory and the log of transfers between them."""

    def __init__(self, inputs: Tensors, outputs: Mapping[str, Index], registers: int | None):
        self.memory: dict[Element, Fraction] = {
            (name, index): Fraction(value) for name, elements in inputs.items() for index, value in elements.items()
        }
        self.inputs, self.outputs, self.registers = inputs, outputs, registers
        self.chip: dict[str, Fraction] = {}
        self.reads: Counter[Element] = Counter()
        self.writes: Counter[Element] = Counter()

    def step(self, instruction: Any) -> None:
        """Execute one instruction. Raises _Stop."""
        if not isinstance(instruction, tuple | list) or len(instruction) < 3 or not isinstance(instruction[0], str):
            raise _Stop(f"an instruction is a tuple such as {FORMS}")
        verb, register, *operands = instruction
        if not isinstance(register, str):
            raise _Stop(f"the second entry names a register, and {register!r} is not a string")
        if verb == "write":
            element = self.element(operands)
            self.writes[element] += 1
            self.memory[element] = self.value(register)
            return
        self.chip[register] = self.result(verb, operands)
        if self.registers is not None and len(self.chip) > self.registers:
            raise _Stop(
                f"{register!r} is register number {len(self.chip)}, and the chip has {self.registers}",
                "too-many-registers",
            )

    def result(self, verb: str, operands: list[Any]) -> Fraction:
        """The value an instruction leaves in its register."""
        if verb == "read":
            element = self.element(operands)
            if element not in self.memory:
                raise _Stop(f"{element_text(element)} is read before anything is in it", "read-before-write")
            self.reads[element] += 1
            return self.memory[element]
        if verb == "set" and len(operands) == 1:
            return self.value(operands[0])
        if verb in UNARY and len(operands) == 1:
            return UNARY[verb](self.value(operands[0]))
        if verb in BINARY and len(operands) == 2:
            a, b = map(self.value, operands)
            if verb == "div" and b == 0:
                raise _Stop("division by zero")
            return BINARY[verb](a, b)
        known = ", ".join(["set", "read", "write", *BINARY, *UNARY])
        raise _Stop(f"unknown instruction or wrong number of entries (instructions: {known}; forms: {FORMS})")

    def value(self, operand: Any) -> Fraction:
        """What an operand, a register's name or a finite number, stands for."""
        if isinstance(operand, str):
            if operand not in self.chip:
                raise _Stop(f"register {operand!r} is used before it is set", "unset-register")
            return self.chip[operand]
        if isinstance(operand, int | float | Fraction) and not isinstance(operand, bool) and abs(operand) < math.inf:
            return Fraction(operand)
        raise _Stop(f"{operand!r} is neither a register nor a finite number")

    def element(self, operands: list[Any]) -> Element:
        """The element of main memory that a name and indices stand for; inside the tensor where its shape is known."""
        name, *indices = operands
        if not isinstance(name, str):
            raise _Stop(f"{name!r} is not the name of a tensor")
        if not all(isinstance(i, int) and not isinstance(i, bool) for i in indices):
            raise _Stop("indices must be whole numbers")
        index = tuple(indices)
        shape = self.outputs.get(name)
        outside = shape is not None and (
            len(index) != len(shape) or not all(0 <= i < extent for i, extent in zip(index, shape, strict=True))
        )
        if outside or (name in self.inputs and index not in self.inputs[name]):
            raise _Stop(f"{element_text((name, index))} lies outside the tensor", "out-of-bounds")
        return name, index


def execute(
    schedule: Iterable[Any], inputs: Tensors, outputs: Mapping[str, Index], *, registers: int | None = None
) -> Run:
    """Run a schedule. ``inputs`` are the tensors in main memory at the start, ``outputs`` the shapes of the results.

    A tensor that is neither is scratch space in main memory: it may be written and read back, and both count.
    ``registers`` bounds the number of distinct registers. Raises MachineError. O(steps).
    """
    machine = _Machine(inputs, outputs, registers)
    steps = 0
    for position, instruction in enumerate(schedule):
        try:
            machine.step(instruction)
        except _Stop as stop:
            raise MachineError(position, instruction, *stop.args) from None
        steps = position + 1
    return Run(machine.memory, machine.reads, machine.writes, len(machine.chip), steps)


@dataclass(frozen=True)
class Departure:
    """One way in which a run is not the ideal one: a short stable ``kind`` and a sentence."""

    kind: str
    message: str


def departures(run: Run, inputs: Tensors, expected: Tensors) -> list[Departure]:
    """How a run falls short of "right result, each input read once, each output written once, nothing else moved".

    Empty exactly when the run computes ``expected`` and attains the bound of Proposition 1.1 on a region whose every
    input is needed. Wrong results come first, then excess traffic.
    """
    found: list[Departure] = []

    def note(kind: str, element: Element, what: str) -> None:
        found.append(Departure(kind, f"{element_text(element)} {what}"))

    for name, elements in expected.items():
        for index, value in elements.items():
            element = (name, index)
            if element not in run.memory:
                note("output-missing", element, "is never written")
            elif run.memory[element] != value:
                note("wrong-result", element, f"is {run.memory[element]}, and must be {value}")
    for element, count in run.writes.items():
        if element[0] in inputs:
            note("input-overwritten", element, "is an input and is overwritten")
        elif element[0] not in expected:
            note("intermediate-write", element, "is an intermediate value and is written to main memory")
        elif count > 1:
            note("output-rewritten", element, f"is written {count} times")
    for element, count in run.reads.items():
        if element[0] in inputs and count > 1:
            note("input-reread", element, f"is read {count} times")
        elif element[0] in expected:
            note("output-reread", element, "is an output and is read back")
    for name, elements in inputs.items():
        for index in elements:
            if (name, index) not in run.reads:
                note("input-skipped", (name, index), "is never read")
    return found


def elements_of(shape: Index) -> Iterable[Index]:
    """All indices of a shape in row-major order."""
    return product(*(range(extent) for extent in shape))
