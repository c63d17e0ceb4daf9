"""One description, many interpretations (Section 6.7): the scalar operations, and the protocol handlers implement.

A compute function is written once, as ``compute(ops, index)`` or ``compute(ops, index, rindex)``: it takes its
interpreter as the first argument and says how one element is made. What ``ops`` is decides what comes back: a recorded
loop body, the reads and writes, an operation count, text, an interval, the concrete value, a line of C++ or of Triton.

:data:`OPERATIONS` is the whole vocabulary. A handler subclasses :class:`Ops`, and an operation's entry in it is one
row of a table or one short method. ``missing_operations(handler)`` lists what a handler does not cover; a test
requires the list to be empty.

Conventions every handler relies on:

* operands of an operation have equal dtypes; lowering rules insert ``to_dtype`` where they do not,
* float16 and bfloat16 values are *represented* as float32: ``load`` widens, ``store`` narrows, and
  ``to_dtype(x, bfloat16)`` rounds to bfloat16 but yields a float32 value,
* comparisons and predicates yield ``torch.bool``; ``where(condition, a, b)`` has the dtype of ``a``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ..provenance import NO_ORIGINS, Origins
from .expressions import Expr


@dataclass(frozen=True)
class Operation:
    """A scalar operation: its arity, result dtype ("same" as the first value operand, or "bool"), a rough cost in
    floating-point operations (for the models of Sections 6.6 and 1.1), and whether it is a transcendental function."""

    name: str
    arity: int
    result: str
    cost: int
    transcendental: bool
    meaning: str


def _table(*rows: tuple) -> dict[str, Operation]:
    return {row[0]: Operation(*row) for row in rows}


OPERATIONS: dict[str, Operation] = _table(
    # name, arity, result, cost, transcendental, meaning
    ("neg", 1, "same", 1, False, "-x"),
    ("abs", 1, "same", 1, False, "|x|"),
    ("sign", 1, "same", 1, False, "-1, 0 or 1; NaN becomes 0 as torch.sign has it"),
    ("relu", 1, "same", 1, False, "x if x > 0 or x is NaN, else +0"),
    ("square", 1, "same", 1, False, "x*x"),
    ("reciprocal", 1, "same", 1, False, "1/x"),
    ("sqrt", 1, "same", 1, False, "square root, correctly rounded"),
    ("rsqrt", 1, "same", 2, False, "1/sqrt(x)"),
    ("floor", 1, "same", 1, False, "largest integer <= x"),
    ("ceil", 1, "same", 1, False, "smallest integer >= x"),
    ("trunc", 1, "same", 1, False, "toward zero"),
    ("round", 1, "same", 1, False, "to nearest, ties to even"),
    ("exp", 1, "same", 10, True, "e**x"),
    ("exp2", 1, "same", 10, True, "2**x"),
    ("expm1", 1, "same", 12, True, "e**x - 1 without cancellation"),
    ("log", 1, "same", 10, True, "natural logarithm"),
    ("log2", 1, "same", 10, True, "base-2 logarithm"),
    ("log10", 1, "same", 10, True, "base-10 logarithm"),
    ("log1p", 1, "same", 12, True, "log(1 + x) without cancellation"),
    ("sin", 1, "same", 12, True, "sine"),
    ("cos", 1, "same", 12, True, "cosine"),
    ("tan", 1, "same", 14, True, "tangent"),
    ("asin", 1, "same", 14, True, "arc sine"),
    ("acos", 1, "same", 14, True, "arc cosine"),
    ("atan", 1, "same", 14, True, "arc tangent"),
    ("sinh", 1, "same", 14, True, "hyperbolic sine"),
    ("cosh", 1, "same", 14, True, "hyperbolic cosine"),
    ("tanh", 1, "same", 14, True, "hyperbolic tangent"),
    ("asinh", 1, "same", 14, True, "inverse hyperbolic sine"),
    ("acosh", 1, "same", 14, True, "inverse hyperbolic cosine"),
    ("atanh", 1, "same", 14, True, "inverse hyperbolic tangent"),
    ("erf", 1, "same", 14, True, "error function"),
    ("erfc", 1, "same", 14, True, "complementary error function"),
    ("lgamma", 1, "same", 20, True, "logarithm of |gamma(x)|"),
    ("sigmoid", 1, "same", 12, True, "1/(1 + exp(-x))"),
    ("logical_not", 1, "bool", 1, False, "not x, for bool"),
    ("bitwise_not", 1, "same", 1, False, "~x, for integers"),
    ("isnan", 1, "bool", 1, False, "x is NaN"),
    ("isinf", 1, "bool", 1, False, "x is +-infinity"),
    ("add", 2, "same", 1, False, "x + y; integers wrap"),
    ("sub", 2, "same", 1, False, "x - y"),
    ("mul", 2, "same", 1, False, "x * y"),
    ("truediv", 2, "same", 1, False, "x / y for floating point"),
    ("floordiv", 2, "same", 1, False, "floor(x / y); integers and floating point; integer y is never 0"),
    ("truncdiv", 2, "same", 1, False, "x / y toward zero, integers; y is never 0"),
    ("remainder", 2, "same", 2, False, "sign of the divisor, as Python's %"),
    ("fmod", 2, "same", 2, False, "sign of the dividend, as C's fmod"),
    ("pow", 2, "same", 20, True, "x ** y"),
    ("maximum", 2, "same", 1, False, "greater of two, NaN if either is"),
    ("minimum", 2, "same", 1, False, "smaller of two, NaN if either is"),
    ("fmax", 2, "same", 1, False, "greater of two, the other if one is NaN"),
    ("fmin", 2, "same", 1, False, "smaller of two, the other if one is NaN"),
    ("atan2", 2, "same", 16, True, "angle of (y=first, x=second)"),
    ("hypot", 2, "same", 4, True, "sqrt(x*x + y*y) without overflow"),
    ("copysign", 2, "same", 1, False, "magnitude of x, sign of y"),
    ("nextafter", 2, "same", 2, False, "the neighbour of x toward y"),
    ("eq", 2, "bool", 1, False, "x == y"),
    ("ne", 2, "bool", 1, False, "x != y"),
    ("lt", 2, "bool", 1, False, "x < y"),
    ("le", 2, "bool", 1, False, "x <= y"),
    ("gt", 2, "bool", 1, False, "x > y"),
    ("ge", 2, "bool", 1, False, "x >= y"),
    ("logical_and", 2, "bool", 1, False, "x and y, for bool"),
    ("logical_or", 2, "bool", 1, False, "x or y, for bool"),
    ("logical_xor", 2, "bool", 1, False, "x != y, for bool"),
    ("bitwise_and", 2, "same", 1, False, "x & y, for integers"),
    ("bitwise_or", 2, "same", 1, False, "x | y, for integers"),
    ("bitwise_xor", 2, "same", 1, False, "x ^ y, for integers"),
    ("bitwise_left_shift", 2, "same", 1, False, "x << y, for integers"),
    ("bitwise_right_shift", 2, "same", 1, False, "x >> y, for integers, sign extending"),
    ("where", 3, "same", 1, False, "y if condition x else z"),
)  # fmt: skip


def result_dtype(operation: str, operands: tuple[torch.dtype, ...]) -> torch.dtype:
    """The dtype an operation of :data:`OPERATIONS` yields for operand dtypes (``where``: that of its second)."""
    rule = OPERATIONS[operation]
    if rule.result == "bool":
        return torch.bool
    return operands[1] if operation == "where" else operands[0]


def compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """The dtype a stored ``dtype`` has inside a compute function: half precision, and less, is computed in float32."""
    return torch.float32 if dtype in (torch.float16, torch.bfloat16, torch.float8_e4m3fn) else dtype


class Ops:
    """The protocol of interpreters. ``V`` below is whatever the handler's values are.

    Subclasses implement :meth:`load`, :meth:`constant`, :meth:`index_value`, :meth:`to_dtype`, :meth:`masked`,
    :meth:`indirect` and :meth:`apply`; ``ops.add(a, b)`` is ``ops.apply("add", a, b)`` for every name in the table.
    """

    origins: Origins = NO_ORIGINS

    #: What the buffers hold, where the handler knows: a lowering rule may then ask for intervals (Section 6.8).
    dtypes: Mapping[str, torch.dtype] | None = None

    def load(self, buffer: str, index: Expr) -> Any:
        """The element of ``buffer`` at the flat storage subscript ``index`` (in elements)."""
        raise NotImplementedError

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> Any:
        raise NotImplementedError

    def index_value(self, expression: Expr, dtype: torch.dtype) -> Any:
        """The value of a subscript expression, as a number of ``dtype`` (int32, int64 or a floating dtype)."""
        raise NotImplementedError

    def to_dtype(self, value: Any, dtype: torch.dtype) -> Any:
        """Convert with PyTorch's semantics (float to bool is ``!= 0``, float to integer truncates)."""
        raise NotImplementedError

    def masked(self, condition: Any, body: Callable[[Ops], Any], other: bool | int | float) -> Any:
        """``body(ops)`` where ``condition`` (a bool value) holds, else the constant ``other``; loads inside the body do
        not touch memory where it does not hold. This is how concatenation, padding and triangles are pointwise."""
        raise NotImplementedError

    def indirect(self, value: Any, size: Expr, *, check: bool | None = True) -> Expr:
        """A subscript read at run time (an integer value): negative ones count from the end, and with ``check`` an
        index outside [-size, size) is an error. ``check`` is None where the value was proved to lie in [0, size), so
        that a kernel does neither. Returns an expression with a fresh symbol in [0, size)."""
        raise NotImplementedError

    def proved(self, subscript: Expr, size: int) -> Expr:
        """The subscript, which was proved to lie in [0, size) and so needs neither fix-up nor check (Section 6.8). A
        handler that explains notes it."""
        return subscript

    def apply(self, operation: str, *operands: Any) -> Any:
        raise NotImplementedError

    def once(self, key: Any, compute: Callable[[Ops], Any]) -> Any:
        """``compute(ops)``, which a handler may remember under ``key`` while the value stays visible: a value two
        users share is then made once, where nested closures would make it exponentially often."""
        return compute(self)

    def read(self, value: Any, index: tuple[Expr, ...], evaluate: Callable[[Ops], Any]) -> Any:
        """``evaluate(ops)``: a compute function reads ``value``, a tensor seen through a view, at ``index``. Most
        handlers care for what comes of it only; one that shows how functions are composed notes who reads what."""
        return evaluate(self)

    def made_by(self, node: Any) -> Ops:
        """The same interpreter, told that the compute function of an operator node begins."""
        return self

    def dtype_of(self, value: Any) -> torch.dtype:
        """The dtype label of a value this handler produced."""
        return value.dtype

    def tagged(self, origins: Origins) -> Ops:
        """The same interpreter, attributing what it makes to ``origins`` (captured node ids)."""
        return self

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name in OPERATIONS:
            return lambda *operands: self.apply(name, *operands)
        raise AttributeError(f"{type(self).__name__} has no operation {name!r}")
