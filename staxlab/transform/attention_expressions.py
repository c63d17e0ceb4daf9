"""What stands between the scores and the softmax, as an expression in (score, b, h, q, kv) and in captured tensors.

The user wrote tensors of N x M: a triangle of ones, a difference of two ``arange``, a table of biases. Read at one
position they are numbers (:mod:`.attention_reading`), and the expression of these numbers is a ``score_mod`` (Section
9.10). A comparison of coordinates in it says which keys a query sees. Expressions are simplified where that is exact,
printed as Python, and turned into functions.
"""

from __future__ import annotations

import linecache
import math
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..provenance import SourceLocation
from .attention_products import AXES


class Expression:
    """A number at every position of the scores. Compared by what it says."""


@dataclass(frozen=True)
class Score(Expression):
    """The scaled product of query and key."""

    def __str__(self) -> str:
        return "score"


@dataclass(frozen=True)
class Number(Expression):
    """The same number everywhere."""

    value: Any

    def __str__(self) -> str:
        return _number_text(self.value)


@dataclass(frozen=True)
class Coordinate(Expression):
    """The position itself, along one of (b, h, q, kv)."""

    axis: int

    def __str__(self) -> str:
        return AXES[self.axis]


@dataclass(frozen=True)
class Captured(Expression):
    """Element [b, h, q, kv] of a captured tensor, whose extent is 1 along axes it does not vary along."""

    number: int
    varies: tuple[int, ...]

    def __str__(self) -> str:
        subscripts = ", ".join(AXES[axis] for axis in self.varies)
        return f"captured{self.number}[{subscripts}]" if self.varies else f"captured{self.number}"


@dataclass(frozen=True)
class Call(Expression):
    """An operation applied at each position. ``keywords`` are (name, value) pairs."""

    name: str
    args: tuple[Any, ...]
    keywords: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        return text(self)


_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "lt": "<", "le": "<=", "gt": ">", "ge": ">=", "eq": "==",
          "ne": "!=", "bitwise_and": "&", "bitwise_or": "|"}  # fmt: skip
_OPPOSITE = {"lt": "ge", "ge": "lt", "gt": "le", "le": "gt", "eq": "ne", "ne": "eq"}
_NOT = frozenset({"bitwise_not", "logical_not"})
CASTS: dict[str, torch.dtype] = {"float": torch.float32, "double": torch.float64, "half": torch.float16,
                                 "bfloat16": torch.bfloat16, "bool": torch.bool, "long": torch.int64,
                                 "int": torch.int32}  # fmt: skip
_FOLDED: dict[str, Callable] = {
    "add": lambda x, y: x + y, "sub": lambda x, y: x - y, "mul": lambda x, y: x * y, "neg": lambda x: -x,
    "div": lambda x, y: x / y, "eq": lambda x, y: x == y, "ne": lambda x, y: x != y, "lt": lambda x, y: x < y,
    "le": lambda x, y: x <= y, "gt": lambda x, y: x > y, "ge": lambda x, y: x >= y, "logical_not": lambda x: not x,
}  # fmt: skip


def call(name: str, *args: Any, **keywords: Any) -> Expression:
    """``name(*args)``, simplified where that is exact: a choice between two numbers goes through arithmetic with
    numbers, and a choice between true and false is its condition."""
    if name == "bitwise_not":
        args_of = args[0]
        if isinstance(args_of, Number) and isinstance(args_of.value, bool):
            return Number(not args_of.value)
    if name in _NOT and isinstance(args[0], Call):
        inner = args[0]
        if inner.name in _OPPOSITE and is_whole(inner):
            return Call(_OPPOSITE[inner.name], inner.args)
        if inner.name == "bitwise_not":
            return inner.args[0]
        if name == "logical_not" and is_truth(inner):
            return call("bitwise_not", inner)
    if name == "to" and args[1] is torch.bool and is_truth(args[0]):
        return args[0]
    if name == "where":
        return _choice(*args)
    chosen = [part for part in args if isinstance(part, Call) and part.name == "where"]
    if len(chosen) == 1 and not keywords and _numbers_apart_from(args, chosen[0]):
        yes, no = (_folded(name, args, chosen[0], side) for side in chosen[0].args[1:])
        if yes is not None and no is not None:
            return _choice(chosen[0].args[0], yes, no)
    if args and not keywords and all(isinstance(part, (Number, torch.dtype)) for part in args):
        folded = _folded(name, args, None, None)
        if folded is not None:
            return folded
    # A truth value compared with a number: `mask == 0`, `mask.bool() != False`.
    if name in ("eq", "ne") and is_truth(args[0]) and isinstance(args[1], Number) and args[1].value in (0, 1):
        positive = bool(args[1].value) is (name == "eq")
        return args[0] if positive else call("bitwise_not", args[0])
    return Call(name, args, tuple(keywords.items()))


def _numbers_apart_from(args: Sequence[Any], choice: Call) -> bool:
    sides = choice.args[1:]
    return all(isinstance(x, Number) for x in sides) and all(isinstance(x, Number) or x is choice for x in args if
                                                             isinstance(x, Expression))  # fmt: skip


def _folded(name: str, args: Sequence[Any], choice: Any, side: Any) -> Number | None:
    values = [side if part is choice and choice is not None else part for part in args]
    plain = [part.value if isinstance(part, Number) else part for part in values]
    if name == "to" and len(plain) == 2 and isinstance(plain[1], torch.dtype):
        kind = plain[1]
        cast = bool if kind is torch.bool else float if kind.is_floating_point else int
        return Number(cast(plain[0])) if not isinstance(plain[0], float) or cast is not int else None
    if name == "bitwise_not" and isinstance(plain[0], bool):
        return Number(not plain[0])
    if name not in _FOLDED or not all(isinstance(x, (bool, int, float)) for x in plain):
        return None
    try:
        return Number(_FOLDED[name](*plain))
    except (ZeroDivisionError, OverflowError, TypeError):
        return None


def _choice(condition: Expression, yes: Expression, no: Expression) -> Expression:
    if isinstance(condition, Number):
        return yes if condition.value else no
    if isinstance(yes, Number) and isinstance(no, Number):
        if yes.value is True and no.value is False:
            return condition
        if yes.value is False and no.value is True:
            return call("bitwise_not", condition)
        if (
            type(yes.value) is type(no.value)
            and yes.value == no.value
            and math.copysign(1, yes.value) == math.copysign(1, no.value)
        ):
            return yes
    return Call("where", (condition, yes, no))


def is_truth(expression: Any) -> bool:
    """Whether an expression is known to be true or false everywhere."""
    if isinstance(expression, Number):
        return isinstance(expression.value, bool)
    if not isinstance(expression, Call):
        return False
    if expression.name in _OPPOSITE or expression.name in ("logical_not", "logical_and", "logical_or"):
        return True
    if expression.name in ("bitwise_not", "bitwise_and", "bitwise_or"):
        return all(map(is_truth, expression.args))
    return expression.name == "to" and expression.args[1] is torch.bool


def is_whole(comparison: Call) -> bool:
    """Whether a comparison is one of whole numbers, where "not less" is "greater or equal": there is no NaN."""
    return linear(comparison) is not None


def linear(expression: Any) -> tuple[tuple[int, int, int, int], int] | None:
    """``coefficients, constant`` of a whole-number sum of coordinates; of a comparison, of its left side minus its
    right."""
    if isinstance(expression, Number):
        whole = isinstance(expression.value, int) and not isinstance(expression.value, bool)
        return ((0, 0, 0, 0), expression.value) if whole else None
    if isinstance(expression, Coordinate):
        return tuple(int(axis == expression.axis) for axis in range(4)), 0  # type: ignore[return-value]
    if not isinstance(expression, Call) or expression.keywords:
        return None
    name, args = expression.name, expression.args
    if name == "to" and args[1] in (torch.int64, torch.int32):
        return linear(args[0])
    if name == "neg":
        return _scaled(linear(args[0]), -1)
    if name in ("sub", *_OPPOSITE):
        return _added(linear(args[0]), _scaled(linear(args[1]), -1))
    if name == "add":
        return _added(linear(args[0]), linear(args[1]))
    if name == "mul":
        left, right = linear(args[0]), linear(args[1])
        if left is not None and right is not None:
            for one, other in ((left, right), (right, left)):
                if not any(one[0]):
                    return _scaled(other, one[1])
    return None


def _scaled(form: Any, factor: int) -> Any:
    return form and (tuple(factor * x for x in form[0]), factor * form[1])


def _added(left: Any, right: Any) -> Any:
    if left is None or right is None:
        return None
    return tuple(x + y for x, y in zip(left[0], right[0], strict=True)), left[1] + right[1]


def is_causal(visible: Expression) -> bool:
    """Whether ``visible`` says kv <= q and nothing else."""
    if not isinstance(visible, Call) or visible.name not in ("le", "lt", "ge", "gt"):
        return False
    form = linear(visible)
    if form is None:
        return False
    (b, h, q, kv), constant = form
    if visible.name in ("ge", "gt"):
        (q, kv), constant = (-q, -kv), -constant
    if visible.name in ("lt", "gt"):
        constant += 1  # whole numbers: x < 0 is x + 1 <= 0
    return (b, h, constant) == (0, 0, 0) and kv == -q > 0


def parts_of(expression: Any) -> list[Expression]:
    """The expression and everything inside it."""
    found: list[Expression] = []
    pending = [expression]
    while pending:
        part = pending.pop()
        if isinstance(part, Expression):
            found.append(part)
            pending += part.args if isinstance(part, Call) else ()
            pending += [value for _, value in part.keywords] if isinstance(part, Call) else ()
    return found


def is_of_position(expression: Expression) -> bool:
    """Whether an expression depends on the position alone, not on scores or data."""
    return not any(isinstance(part, (Score, Captured)) for part in parts_of(expression))


def text(part: Any) -> str:
    """An expression as Python, over ``score``, the four coordinates and the names of captured tensors."""
    if isinstance(part, Number):
        return _number_text(part.value)
    if not isinstance(part, Call):
        return str(part) if isinstance(part, (Expression, torch.dtype)) else repr(part)
    sign = _INFIX.get(part.name)
    if sign and len(part.args) == 2 and not part.keywords:
        return f"({text(part.args[0])} {sign} {text(part.args[1])})"
    if part.name == "bitwise_not":
        return f"(~{text(part.args[0])})"
    if part.name == "neg":
        return f"(-{text(part.args[0])})"
    keywords = [f"{key}={text(value)}" for key, value in part.keywords]
    first, *others = part.args
    if part.name != "where" and not isinstance(first, Number) and hasattr(torch.Tensor, part.name):
        return f"{text(first)}.{part.name}({', '.join([*map(text, others), *keywords])})"
    module = "torch" if hasattr(torch, part.name) else "torch.nn.functional"
    return f"{module}.{part.name}({', '.join([*map(text, part.args), *keywords])})"


def _number_text(value: Any) -> str:
    if isinstance(value, float) and not math.isfinite(value):
        return "float('nan')" if math.isnan(value) else "-inf" if value < 0 else "inf"
    return f"({value!r})" if value < 0 else repr(value)


def function_of(
    expression: Expression,
    name: str,
    captured: Sequence[torch.Tensor] = (),
    where: SourceLocation | None = None,
    score: bool = True,
) -> Callable[..., Any]:
    """``score_mod(score, b, h, q, kv)``, or ``mask_mod(b, h, q, kv)`` without ``score``, as a Python function: what can
    be traced, and called with tensors that broadcast. It stands at the user's line ``where``; without one, at a line of
    its own that can be looked up."""
    parameters = (["score"] if score else []) + list(AXES)
    source = f"def {name}({', '.join(parameters)}): return {text(expression)}\n"
    file, line = (where.file, where.line) if where else (f"<{name} {zlib.crc32(source.encode()):08x}>", 1)
    if where is None:
        linecache.cache[file] = (len(source), None, source.splitlines(True), file)
    scope: dict[str, Any] = {"torch": torch, "inf": math.inf}
    scope.update({f"captured{number}": tensor for number, tensor in enumerate(captured)})
    exec(compile("\n" * (line - 1) + source, file, "exec"), scope)
    return scope[name]
