"""Answer fields: what an exercise asks for, one typed slot after the other.

A field declares its name, what it means, its unit and an example, and knows how to read what a student wrote. Reading
comes before judging: an answer of the wrong form gets one sentence that names the field, says what was found and
shows a well-formed example, and is not judged at all. So a checker only ever sees values of the declared type.

==============  ========================================================  ===================================
field           a student gives                                           a checker gets
==============  ========================================================  ===================================
``Number``      an int, float, Fraction, or text such as ``"3/8"``        ``Fraction`` (or float)
``Numbers``     nested lists or an array of a declared shape              nested tuples of ``Fraction``
``Choice``      one of the options                                        the option
``FormulaIn``   ``"8*C*n + 3"``, a function of n, a number, or SymPy      :class:`Quantity`, with ``.at(n=3)``
``Function``    a Python function                                         :class:`Callee`, called with a time limit
``Steps``       a list of formulas, each related to the one before        tuple of :class:`algebra.Step`
``Prose``       text                                                      the text; read by a person
==============  ========================================================  ===================================
"""

from __future__ import annotations

import inspect
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from typing import Any, ClassVar

from . import limits
from .algebra import Step, parse_step, values_agree
from .formula import Formula, FormulaError, Value, parse_formula
from .rubrics import Rubric

MAX_RECORDED = 20_000  # characters of one answer that a student's record keeps


class Malformed(ValueError):
    """An answer that does not have the declared form. The message is for the student, without the field's name."""

    timed_out = False


class OutOfTime(Malformed):
    """An answer that is a function and did not return in time."""

    timed_out = True


@dataclass(frozen=True)
class Field:
    """What all fields share. ``example`` is Python source of a well-formed (not necessarily right) answer."""

    name: str
    label: str
    points: int | Fraction = 1
    unit: str = ""
    example: str = ""

    kind: ClassVar[str] = "value"
    own_cell: ClassVar[bool] = False  # a notebook gives functions and lists a cell of their own

    def is_missing(self, answer: Any) -> bool:
        """None, blank text, the bare ``...`` and empty containers are no answer."""
        if answer is None or answer is Ellipsis:
            return True
        return isinstance(answer, str | list | tuple | dict | set) and not (
            answer.strip() if isinstance(answer, str) else answer
        )

    def read(self, answer: Any, constants: Mapping[str, Fraction]) -> Any:
        """The answer as the checker's type. Raises Malformed."""
        raise NotImplementedError

    def form(self) -> str:
        """The declared form in words, for messages and notebooks."""
        return self.kind + (f", in {self.unit}" if self.unit else "")

    def complaint(self, problem: str) -> str:
        """The one message for a malformed answer."""
        example = f" Example: {self.name} = {self.example}" if self.example else ""
        return f"{self.name} must be {self.form()}; {problem}.{example}"

    def recorded(self, answer: Any) -> str:
        """The answer as text for the student's record."""
        if callable(answer):
            try:
                text = inspect.getsource(answer)
            except (OSError, TypeError):
                text = repr(answer)
        else:
            text = answer if isinstance(answer, str) else repr(answer)
        return text if len(text) <= MAX_RECORDED else text[:MAX_RECORDED] + f"... ({len(text)} characters)"


def as_number(answer: Any) -> Value:
    """An exact Fraction from anything that is a real number, a float only where it must be.

    Accepts Python, NumPy and SymPy numbers, one-element tensors, and text such as ``"3/8"``. Raises Malformed.
    """
    try:
        return _as_number(answer)
    except Malformed:
        raise
    except Exception as error:  # an object whose conversion raises
        raise Malformed(f"reading it as a number raised {type(error).__name__}: {error}") from None


def _as_number(answer: Any) -> Value:
    if isinstance(answer, str):
        try:
            return parse_formula(answer, ()).at()
        except FormulaError as error:
            raise Malformed(str(error)) from None
    if isinstance(answer, bool) or isinstance(answer, complex):
        raise Malformed(f"{answer!r} is not a real number")
    if isinstance(answer, Fraction):
        return answer
    if isinstance(answer, Decimal) and answer.is_finite():
        return Fraction(answer)
    if isinstance(answer, numbers.Integral):
        return Fraction(int(answer))
    if isinstance(answer, numbers.Real):
        value = float(answer)
        if value != value or value in (float("inf"), float("-inf")):
            raise Malformed(f"{value} is not a finite number")
        return value
    if type(answer).__module__.split(".")[0] == "sympy" and getattr(answer, "is_number", False):
        return as_number(str(answer))
    if callable(getattr(answer, "item", None)) and not callable(answer):
        try:
            return as_number(answer.item())
        except (TypeError, ValueError, RuntimeError) as error:
            raise Malformed(f"it holds more than one value ({error})") from None
    raise Malformed(f"got {_kind_of(answer)}, which is not a number")


def _kind_of(answer: Any) -> str:
    text = repr(answer)
    return f"{type(answer).__name__} {text if len(text) <= 40 else text[:37] + '...'}"


@dataclass(frozen=True)
class Number(Field):
    """A real number. ``whole=True`` accepts integers only."""

    whole: bool = False
    kind: ClassVar[str] = "a number"

    def form(self) -> str:
        return ("a whole number" if self.whole else "a number") + (f", in {self.unit}" if self.unit else "")

    def read(self, answer: Any, constants: Mapping[str, Fraction]) -> Value:
        value = as_number(answer)
        if not self.whole:
            return value
        nearest = Fraction(round(value))
        if not values_agree(value, nearest):
            raise Malformed(f"{answer!r} is not whole")
        return nearest


@dataclass(frozen=True)
class Numbers(Field):
    """A vector, matrix or higher array of numbers. ``shape`` may hold None where any extent is allowed."""

    shape: tuple[int | None, ...] = (None,)
    own_cell: ClassVar[bool] = True

    def form(self) -> str:
        extents = " x ".join("any" if extent is None else str(extent) for extent in self.shape)
        text = f"numbers of shape {extents}"
        if len(self.shape) == 1:
            text = "a list of numbers" if self.shape[0] is None else f"a list of {self.shape[0]} numbers"
        return text + (f", in {self.unit}" if self.unit else "")

    def is_missing(self, answer: Any) -> bool:
        return not hasattr(answer, "tolist") and super().is_missing(answer)

    def read(self, answer: Any, constants: Mapping[str, Fraction]) -> Any:
        return self._level(answer.tolist() if hasattr(answer, "tolist") else answer, 0)

    def _level(self, value: Any, depth: int) -> Any:
        if depth == len(self.shape):
            if isinstance(value, list | tuple):
                raise Malformed(f"it is nested more than {len(self.shape)} deep")
            return as_number(value)
        what = "it" if len(self.shape) == 1 else f"level {depth + 1}"
        if not isinstance(value, list | tuple):
            raise Malformed(f"{what} is {_kind_of(value)} and not a list")
        extent = self.shape[depth]
        if extent is not None and len(value) != extent:
            raise Malformed(f"{what} has {len(value)} entries and not {extent}")
        return tuple(self._level(entry, depth + 1) for entry in value)


@dataclass(frozen=True)
class Choice(Field):
    """One of a few options, as text; letter case and blanks around it do not matter."""

    options: tuple[str, ...] = ()

    def form(self) -> str:
        return "one of " + ", ".join(repr(option) for option in self.options)

    def read(self, answer: Any, constants: Mapping[str, Fraction]) -> str:
        if isinstance(answer, str):
            for option in self.options:
                if option.casefold() == answer.strip().casefold():
                    return option
        raise Malformed(f"got {_kind_of(answer)}")


class Callee:
    """A student's function, safe to call: time limits, exceptions caught, the result not yet interpreted.

    One call may take ``seconds``; all calls of one check together ten times as long (so that a slow function cannot
    make a search of two hundred trials take minutes). After that every call counts as timed out.
    """

    def __init__(self, function: Callable[..., Any], parameters: tuple[str, ...], seconds: float):
        self.function, self.parameters, self.seconds = function, parameters, seconds
        self.left = 10 * seconds

    def call(self, *args: Any) -> limits.Outcome:
        return self._spend(limits.call, args)

    def collect(self, *args: Any, limit: int) -> limits.Outcome:
        """Its result as a list of at most ``limit + 1`` items (generators are run inside the time limit)."""
        return self._spend(limits.collect, args, limit=limit)

    def _spend(self, how: Callable[..., limits.Outcome], args: tuple[Any, ...], **more: Any) -> limits.Outcome:
        if self.left <= 0:
            return limits.Outcome(timed_out=True, limit=10 * self.seconds)
        outcome = how(self.function, *args, seconds=min(self.seconds, self.left), **more)
        self.left -= outcome.elapsed
        return outcome

    def call_text(self, *args: Any) -> str:
        name = getattr(self.function, "__name__", "f")
        return f"{'f' if name == '<lambda>' else name}({', '.join(map(repr, args))})"


@dataclass(frozen=True)
class Function(Field):
    """A Python function of the given parameters (positional), judged by calling it."""

    parameters: tuple[str, ...] = ()
    returns: str = ""
    seconds: float = limits.DEFAULT_SECONDS
    own_cell: ClassVar[bool] = True

    def form(self) -> str:
        result = f" that returns {self.returns}" if self.returns else ""
        return f"a function {self.name}({', '.join(self.parameters)}){result}"

    def complaint(self, problem: str) -> str:
        example = f" Example:\n{self.example}" if self.example else ""
        return f"{self.name} must be {self.form()}; {problem}.{example}"

    def read(self, answer: Any, constants: Mapping[str, Fraction]) -> Callee:
        if not callable(answer) or isinstance(answer, type):
            raise Malformed(f"got {_kind_of(answer)}")
        _require_arguments(answer, self.parameters)
        return Callee(answer, self.parameters, self.seconds)


def _require_arguments(function: Callable[..., Any], parameters: Sequence[str]) -> None:
    try:
        inspect.signature(function).bind(*parameters)
    except TypeError as error:
        raise Malformed(f"it cannot be called with ({', '.join(parameters)}): {error}") from None
    except ValueError:
        pass  # a builtin without a signature: the call itself will tell


@dataclass(frozen=True)
class Quantity:
    """A quantity as a function of the declared variables, whichever way the student wrote it."""

    formula: Formula | None
    callee: Callee | None
    variables: tuple[str, ...]
    constants: Mapping[str, Fraction]

    @property
    def is_constant(self) -> bool:
        """Whether it is one number, written without any variable or name."""
        return self.formula is not None and not self.formula.uses()

    def at(self, **point: int | Fraction) -> Value:
        """The value at a point. Raises Malformed with the reason if it has none there."""
        if self.formula is not None:
            try:
                return self.formula.judged_at(**self.constants, **point)
            except FormulaError as error:
                raise Malformed(str(error)) from None
        assert self.callee is not None
        arguments = [int(point[name]) if point[name] == int(point[name]) else point[name] for name in self.variables]
        outcome = self.callee.call(*arguments)
        if outcome.failed:
            raise (OutOfTime if outcome.timed_out else Malformed)(outcome.reason())
        return as_number(outcome.value)


@dataclass(frozen=True)
class FormulaIn(Field):
    """A formula in ``variables``. The names of the variant's constants may be used in it as well."""

    variables: tuple[str, ...] = ("n",)

    def form(self) -> str:
        variables = ", ".join(self.variables)
        return f"a formula in {variables}, as text or as a function of {variables}" + (
            f", in {self.unit}" if self.unit else ""
        )

    def read(self, answer: Any, constants: Mapping[str, Fraction]) -> Quantity:
        if type(answer).__module__.split(".")[0] == "sympy":
            answer = str(answer)
        if isinstance(answer, str):
            try:
                formula = parse_formula(answer, (*self.variables, *constants))
            except FormulaError as error:
                raise Malformed(str(error)) from None
            return Quantity(formula, None, self.variables, constants)
        if callable(answer) and not isinstance(answer, type):
            _require_arguments(answer, self.variables)
            callee = Callee(answer, self.variables, limits.DEFAULT_SECONDS)
            return Quantity(None, callee, self.variables, constants)
        value = as_number(answer)
        text = str(answer) if isinstance(answer, Decimal) else repr(value) if isinstance(value, float) else str(value)
        return Quantity(parse_formula(text, ()), None, (), {})


@dataclass(frozen=True)
class Steps(Field):
    """A chain of formulas in ``variables``: ``["n*(n + 1)", "= n**2 + n", "<= 2*n**2"]``."""

    variables: tuple[str, ...] = ("n",)
    minimum: int = 2
    own_cell: ClassVar[bool] = True

    def form(self) -> str:
        return f"a list of at least {self.minimum} formulas in {', '.join(self.variables)}, as text"

    def read(self, answer: Any, constants: Mapping[str, Fraction]) -> tuple[Step, ...]:
        if not isinstance(answer, list | tuple):
            raise Malformed(f"got {_kind_of(answer)}")
        if len(answer) < self.minimum:
            raise Malformed(f"got {len(answer)}")
        steps = []
        for position, text in enumerate(answer, 1):
            if not isinstance(text, str):
                raise Malformed(f"step {position} is {_kind_of(text)}")
            try:
                steps.append(parse_step(text, (*self.variables, *constants)))
            except FormulaError as error:
                raise Malformed(f"step {position}: {error}") from None
        return tuple(steps)


@dataclass(frozen=True)
class Prose(Field):
    """Text in the student's words, read by a person against ``rubric``; its points are the rubric's."""

    rubric: Rubric = Rubric(())
    kind: ClassVar[str] = "text"

    def read(self, answer: Any, constants: Mapping[str, Fraction]) -> str:
        if not isinstance(answer, str):
            raise Malformed(f"got {_kind_of(answer)}")
        return answer
