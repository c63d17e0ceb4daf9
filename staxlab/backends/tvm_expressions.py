"""Our compute functions in TVM's words: one more interpretation of the same description (Sections 6.7 and 12.3).

A loop body says how one element is made, whoever asks (:mod:`staxlab.loops.ops`). Here the values are expressions of
TVM's TensorIR, so what reaches TVM is the algorithm and nothing of our schedule. Expressions are built so that they
mean what PyTorch means: comparisons that let NaN through, conversions to truth values by ``!= 0``, half precision
computed as float32 and rounded where the program rounds. Functions whose expansion in TVM is less accurate than the C
library's are calls of the latter.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import torch

from ..loops.expressions import Expr, Symbol
from ..loops.ops import OPERATIONS, Ops, compute_dtype

NAMES = {
    torch.float32: "float32", torch.float64: "float64", torch.float16: "float16", torch.bfloat16: "bfloat16",
    torch.int8: "int8", torch.int16: "int16", torch.int32: "int32", torch.int64: "int64", torch.uint8: "uint8",
    torch.bool: "bool",
}  # fmt: skip
DTYPES = {name: dtype for dtype, name in NAMES.items()}

# TVM's own operations, which the code generator leaves to LLVM or to the C library.
_INTRINSIC = {
    "abs": "abs", "sqrt": "sqrt", "floor": "floor", "ceil": "ceil", "trunc": "trunc", "round": "nearbyint",
    "exp": "exp", "log": "log",
}  # fmt: skip
# Functions of the C library (an f is appended for float32).
_LIBRARY = {
    "exp2": "exp2", "expm1": "expm1", "log2": "log2", "log10": "log10", "log1p": "log1p", "sin": "sin", "cos": "cos",
    "tan": "tan", "asin": "asin", "acos": "acos", "atan": "atan", "sinh": "sinh", "cosh": "cosh", "tanh": "tanh",
    "asinh": "asinh", "acosh": "acosh", "atanh": "atanh", "erf": "erf", "erfc": "erfc", "lgamma": "lgamma",
    "atan2": "atan2", "hypot": "hypot", "copysign": "copysign", "nextafter": "nextafter", "fmod": "fmod",
    "pow": "pow",
}  # fmt: skip


@lru_cache(maxsize=1)
def _analyzer() -> Any:
    from tvm.sym import Analyzer

    return Analyzer()


MOST_NODES = 1000  # of an expression


class NotExpressible(Exception):
    """What TVM is not given, in words; :mod:`.tvm` adds the operator and the line."""


class TvmOps(Ops):
    """The interpretation. ``read`` gives the element of a buffer at a flat subscript; ``symbols``: loop variables."""

    def __init__(self, read: Callable[[str, Callable[[Expr], Any], Expr], Any], symbols: Mapping[str, Any]):
        from tvm import tirx

        self.tirx, self._read, self.symbols = tirx, read, dict(symbols)
        self._sizes: dict[int, tuple[int, Any]] = {}  # nodes of an expression's tree, by identity; keeps it alive

    def subscript(self, expression: Expr) -> Any:
        return expression.evaluate(self.symbols)

    def load(self, buffer: str, index: Expr) -> Any:
        return self.widened(self._read(buffer, self.subscript, index))

    def widened(self, value: Any) -> Any:
        dtype = self.dtype_of(value)
        return value if compute_dtype(dtype) == dtype else value.astype(NAMES[compute_dtype(dtype)])

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> Any:
        return self.tirx.const(value, NAMES[compute_dtype(dtype)])

    def index_value(self, expression: Expr, dtype: torch.dtype) -> Any:
        value = self.subscript(expression)
        name = NAMES[compute_dtype(dtype)]
        return self.tirx.const(value, name) if isinstance(value, int) else value.astype(name)

    def to_dtype(self, value: Any, dtype: torch.dtype) -> Any:
        if dtype not in NAMES:
            raise NotExpressible(f"{dtype} is unknown there")
        source = self.dtype_of(value)
        if dtype == torch.bool and source != torch.bool:
            return self._ne(value, self.constant(0, source))
        return self.widened(value.astype(NAMES[dtype]))

    def masked(self, condition: Any, body: Callable[[Ops], Any], other: bool | int | float) -> Any:
        value = body(self)
        chosen = self.tirx.if_then_else(condition, value, self.constant(other, self.dtype_of(value)))
        return self._measured(chosen, (condition, value))

    def _measured(self, value: Any, operands: tuple[Any, ...]) -> Any:
        """``value``, unless its tree is too large. TVM's passes go through trees: what two operands share counts twice,
        and grows exponentially along a chain."""
        size = 1 + sum(self._sizes.get(id(operand), (1, None))[0] for operand in operands)
        if size > MOST_NODES:
            raise NotExpressible(f"the expression of one element has more than {MOST_NODES} nodes as a tree")
        self._sizes[id(value)] = size, value
        return value

    def indirect(self, value: Any, size: Expr, *, check: bool | None = True) -> Expr:
        if check:
            raise NotExpressible("a subscript that is data would have to be checked, and generated code cannot raise")
        extent = self.subscript(size)
        if check is not None:
            value = self.tirx.Select(value < 0, value + extent, value)
        symbol = Symbol(f"read{len(self.symbols)}", 0, int(extent) - 1)
        self.symbols[symbol.name] = value.astype("int64")
        return Expr.of(symbol)

    def dtype_of(self, value: Any) -> torch.dtype:
        return DTYPES[str(value.ty.dtype)]

    def apply(self, operation: str, *operands: Any) -> Any:
        return self._measured(self._applied(operation, operands), operands)

    def _applied(self, operation: str, operands: tuple[Any, ...]) -> Any:
        own = getattr(self, f"_{operation}", None)
        if own is not None:
            return own(*operands)
        dtype = self.dtype_of(operands[0])
        if not dtype.is_floating_point and operation in ("floor", "ceil", "trunc", "round"):
            return operands[0]
        if operation in _INTRINSIC:
            return getattr(self.tirx, _INTRINSIC[operation])(*operands)
        if operation in _LIBRARY:
            return self._from_library(operation, dtype, operands)
        raise NotExpressible(f"the operation {operation!r} is not translated")

    def _from_library(self, operation: str, dtype: torch.dtype, operands: tuple[Any, ...]) -> Any:
        if dtype not in (torch.float32, torch.float64):
            raise NotExpressible(f"{operation} of {dtype}")
        name = _LIBRARY[operation] + ("f" if dtype == torch.float32 else "")
        return self.tirx.call_pure_extern(NAMES[dtype], name, *operands)

    def covered(self) -> frozenset[str]:
        """The operations of the table that are translated."""
        return frozenset(n for n in OPERATIONS if n in _INTRINSIC or n in _LIBRARY or hasattr(type(self), f"_{n}"))

    # -- one short method for each operation that is neither ----------------------------------------------------------

    def _zero(self, x: Any) -> Any:
        return self.constant(0, self.dtype_of(x))

    def _one(self, x: Any) -> Any:
        return self.constant(1, self.dtype_of(x))

    def _is_nan(self, x: Any) -> Any:
        return self.tirx.isnan(x) if self.dtype_of(x).is_floating_point else self.tirx.const(False, "bool")

    def _kept(self, node: Any, x: Any, y: Any) -> Any:
        """``node(x, y)``, which TVM must not simplify as if floating-point numbers were real ones: ``x - x`` and
        ``x * 0`` to 0, ``x == x`` to true. Where it would, it is not shown what the operands are."""
        made = node(x, y)
        immediate = (self.tirx.FloatImm, self.tirx.IntImm)
        if not self.dtype_of(x).is_floating_point or isinstance(x, immediate) and isinstance(y, immediate):
            return made
        if isinstance(_analyzer().simplify(made), immediate):
            return node(
                self._hidden(x) if isinstance(x, immediate) else x, y if isinstance(x, immediate) else self._hidden(y)
            )
        return made

    def _hidden(self, x: Any) -> Any:
        """The very value of ``x``, as a call: ``x * 1 + -0.0`` in one rounding, which LLVM sees through."""
        dtype = self.dtype_of(x)
        one, zero = self._one(x), self.constant(-0.0, dtype)
        return self.tirx.call_llvm_pure_intrin(NAMES[dtype], "llvm.fma", x, one, zero)

    def _neg(self, x: Any) -> Any:
        return self.tirx.Mul(x, self.constant(-1, self.dtype_of(x)))

    def _sign(self, x: Any) -> Any:
        zero, one = self._zero(x), self._one(x)
        select = self.tirx.Select
        return select(x > zero, one, select(x < zero, self.constant(-1, self.dtype_of(x)), zero))

    def _relu(self, x: Any) -> Any:
        return self.tirx.Select(self.tirx.any(x > self._zero(x), self._is_nan(x)), x, self._zero(x))

    def _square(self, x: Any) -> Any:
        return self._mul(x, x)

    def _reciprocal(self, x: Any) -> Any:
        return self.tirx.Div(self._one(x), x)

    def _rsqrt(self, x: Any) -> Any:
        return self.tirx.Div(self._one(x), self.tirx.sqrt(x))

    def _sigmoid(self, x: Any) -> Any:
        return self.tirx.Div(self._one(x), self.tirx.Add(self._one(x), self.tirx.exp(self._neg(x))))

    def _logical_not(self, x: Any) -> Any:
        # A plain Not would be simplified: not (x < y) to x >= y, which is another thing for NaN.
        return self.tirx.EQ(x.astype("int32"), self.tirx.const(0, "int32"))

    def _bitwise_not(self, x: Any) -> Any:
        return self._logical_not(x) if self.dtype_of(x) == torch.bool else ~x

    def _isnan(self, x: Any) -> Any:
        return self._is_nan(x)

    def _isinf(self, x: Any) -> Any:
        return self.tirx.EQ(self.tirx.abs(x), self.constant(math.inf, self.dtype_of(x)))

    def _add(self, x: Any, y: Any) -> Any:
        return self._kept(self.tirx.Add, x, y)

    def _sub(self, x: Any, y: Any) -> Any:
        return self._kept(self.tirx.Sub, x, y)

    def _mul(self, x: Any, y: Any) -> Any:
        return self._kept(self.tirx.Mul, x, y)

    def _truediv(self, x: Any, y: Any) -> Any:
        return self._kept(self.tirx.Div, x, y)

    def _floordiv(self, x: Any, y: Any) -> Any:
        if self.dtype_of(x).is_floating_point:
            raise NotExpressible("a floored quotient of floating-point numbers")
        return self.tirx.FloorDiv(x, y)

    def _truncdiv(self, x: Any, y: Any) -> Any:
        return self.tirx.Div(x, y)

    def _remainder(self, x: Any, y: Any) -> Any:
        dtype = self.dtype_of(x)
        if not dtype.is_floating_point:
            return self.tirx.FloorMod(x, y)
        rest, zero = self._from_library("fmod", dtype, (x, y)), self._zero(x)
        wrong = self.tirx.all(self.tirx.NE(rest, zero), self._logical_xor(rest < zero, y < zero))
        return self.tirx.Select(wrong, self.tirx.Add(rest, y), rest)

    def _fmod(self, x: Any, y: Any) -> Any:
        dtype = self.dtype_of(x)
        return self._from_library("fmod", dtype, (x, y)) if dtype.is_floating_point else self.tirx.Mod(x, y)

    def _maximum(self, x: Any, y: Any) -> Any:
        return self.tirx.Select(self.tirx.any(self._is_nan(x), x > y), x, y)

    def _minimum(self, x: Any, y: Any) -> Any:
        return self.tirx.Select(self.tirx.any(self._is_nan(x), x < y), x, y)

    def _fmax(self, x: Any, y: Any) -> Any:
        return self.tirx.Select(self.tirx.any(self._is_nan(y), x > y), x, y)

    def _fmin(self, x: Any, y: Any) -> Any:
        return self.tirx.Select(self.tirx.any(self._is_nan(y), x < y), x, y)

    def _eq(self, x: Any, y: Any) -> Any:
        return self._kept(self.tirx.EQ, x, y)

    def _ne(self, x: Any, y: Any) -> Any:
        """TVM's is false if one is NaN."""
        if not self.dtype_of(x).is_floating_point:
            return self.tirx.NE(x, y)
        return self.tirx.any(self._kept(self.tirx.NE, x, y), self._is_nan(x), self._is_nan(y))

    def _lt(self, x: Any, y: Any) -> Any:
        return self._kept(self.tirx.LT, x, y)

    def _le(self, x: Any, y: Any) -> Any:
        return self._kept(self.tirx.LE, x, y)

    def _gt(self, x: Any, y: Any) -> Any:
        return self._kept(self.tirx.GT, x, y)

    def _ge(self, x: Any, y: Any) -> Any:
        return self._kept(self.tirx.GE, x, y)

    def _logical_and(self, x: Any, y: Any) -> Any:
        return self.tirx.And(x, y)

    def _logical_or(self, x: Any, y: Any) -> Any:
        return self.tirx.Or(x, y)

    def _logical_xor(self, x: Any, y: Any) -> Any:
        return self.tirx.NE(x.astype("int32"), y.astype("int32"))

    def _bitwise_and(self, x: Any, y: Any) -> Any:
        return self.tirx.And(x, y) if self.dtype_of(x) == torch.bool else x & y

    def _bitwise_or(self, x: Any, y: Any) -> Any:
        return self.tirx.Or(x, y) if self.dtype_of(x) == torch.bool else x | y

    def _bitwise_xor(self, x: Any, y: Any) -> Any:
        return self._logical_xor(x, y) if self.dtype_of(x) == torch.bool else x ^ y

    def _bitwise_left_shift(self, x: Any, y: Any) -> Any:
        return x << y

    def _bitwise_right_shift(self, x: Any, y: Any) -> Any:
        return x >> y

    def _where(self, condition: Any, x: Any, y: Any) -> Any:
        return self.tirx.Select(condition, x, y)
