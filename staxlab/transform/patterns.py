"""Patterns written as formulas, so that a rule reads as the law it states: ``Rule(x + 0, x)``.

An :class:`Expr` is a tree of operations over variables and numbers. Matched against a node, it binds its variables;
built, it creates the nodes of a replacement. Operators are overloaded, named operations are called: ``apply("where", x
> 0, x, 0)``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F

from ..capture.graph import Graph, Node, TensorMeta
from ..errors import TransformError
from .operations import BY_NAME, COMPARISONS, is_number, operation

_INFIX = {"add": "+", "sub": "-", "mul": "*", "div": "/", "pow": "**", "gt": ">", "lt": "<", "ge": ">=", "le": "<=",
          "bitwise_and": "&", "bitwise_or": "|", "bitwise_xor": "^"}  # fmt: skip


class Expr:
    """A variable, a number, or an operation applied to expressions."""

    def __add__(self, other: Any) -> Expr:
        return apply("add", self, other)

    def __radd__(self, other: Any) -> Expr:
        return apply("add", other, self)

    def __sub__(self, other: Any) -> Expr:
        return apply("sub", self, other)

    def __rsub__(self, other: Any) -> Expr:
        return apply("sub", other, self)

    def __mul__(self, other: Any) -> Expr:
        return apply("mul", self, other)

    def __rmul__(self, other: Any) -> Expr:
        return apply("mul", other, self)

    def __truediv__(self, other: Any) -> Expr:
        return apply("div", self, other)

    def __rtruediv__(self, other: Any) -> Expr:
        return apply("div", other, self)

    def __pow__(self, other: Any) -> Expr:
        return apply("pow", self, other)

    def __rpow__(self, other: Any) -> Expr:
        return apply("pow", other, self)

    def __and__(self, other: Any) -> Expr:
        return apply("bitwise_and", self, other)

    def __or__(self, other: Any) -> Expr:
        return apply("bitwise_or", self, other)

    def __xor__(self, other: Any) -> Expr:
        return apply("bitwise_xor", self, other)

    def __neg__(self) -> Expr:
        return apply("neg", self)

    def __gt__(self, other: Any) -> Expr:
        return apply("gt", self, other)

    def __le__(self, other: Any) -> Expr:
        return apply("le", self, other)


@dataclass(frozen=True)
class Var(Expr):
    """A variable: stands for a node (``kind="tensor"``), a Python number ("number"), or either ("any")."""

    name: str
    kind: str = "tensor"

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True)
class Apply(Expr):
    """``operation(*args, **kwargs)``."""

    operation: str
    args: tuple[Any, ...]
    kwargs: tuple[tuple[str, Any], ...] = ()

    def __str__(self) -> str:
        parts = [_text(a) for a in self.args]
        if self.operation in _INFIX:
            left, right = (f"({p})" if isinstance(a, Apply) and a.operation in _INFIX else p
                           for a, p in zip(self.args, parts, strict=True))  # fmt: skip
            return f"{left} {_INFIX[self.operation]} {right}"
        if self.operation == "neg":
            return f"-{parts[0]}" if isinstance(self.args[0], Var) else f"-({parts[0]})"
        return f"{self.operation}({', '.join([*parts, *(f'{k}={_text(v)}' for k, v in self.kwargs)])})"


def _text(value: Any) -> str:
    if isinstance(value, float):
        text = f"{value:.6g}"
        return text if any(mark in text for mark in ".en") else f"{text}.0"  # 0.0 is not 0: it makes integers floats
    return str(value) if isinstance(value, Expr) else repr(value)


def apply(name: str, *args: Any, **kwargs: Any) -> Apply:
    """The expression that applies a named operation."""
    return Apply(name, args, tuple(kwargs.items()))


Bindings = dict[str, Any]


def match(pattern: Any, value: Any, bindings: Bindings | None = None) -> Bindings | None:
    """Bind the variables of ``pattern`` so that it equals ``value`` (a Node or an argument), or None.

    A number in a pattern matches a Python number of equal value (0 matches 0.0, never False); a variable that occurs
    twice must be bound to the same node both times.
    """
    bindings = {} if bindings is None else bindings
    if isinstance(pattern, Var):
        fits = {"tensor": isinstance(value, Node), "number": is_number(value), "any": True}[pattern.kind]
        if not fits:
            return None
        if pattern.name in bindings:
            known = bindings[pattern.name]
            return (
                bindings
                if known is value or (is_number(known) and type(known) is type(value) and known == value)
                else None
            )
        bindings[pattern.name] = value
        return bindings
    if isinstance(pattern, Apply):
        if not isinstance(value, Node) or operation(value) != pattern.operation or len(value.args) != len(pattern.args):
            return None
        if set(value.kwargs) != {name for name, _ in pattern.kwargs}:
            return None
        for part, argument in zip(pattern.args, value.args, strict=True):
            if match(part, argument, bindings) is None:
                return None
        for name, part in pattern.kwargs:
            if match(part, value.kwargs[name], bindings) is None:
                return None
        return bindings
    if is_number(pattern):
        equal = is_number(value) and not isinstance(value, bool) and value == pattern
        return bindings if equal else None
    return bindings if type(value) is type(pattern) and value == pattern else None


@dataclass(frozen=True)
class Rule:
    """``pattern -> replace`` where ``where(node, bindings)`` holds.

    ``replace`` is an expression over the pattern's variables (or a function of the node and the bindings that returns
    one). ``law`` is what the rule says, by default its formula; ``source`` the file and line it is written at.
    Conditions on dtype, shape and memory that every identity needs are checked by the passes themselves.
    """

    name: str
    pattern: Apply
    replace: Any
    where: Callable[[Node, Bindings], bool] | None = None
    law: str = ""
    source: str = field(default="", compare=False)

    def __post_init__(self) -> None:
        if not self.law:
            shown = self.replace if not callable(self.replace) else "..."
            object.__setattr__(self, "law", f"{self.pattern} -> {shown}")
        if not self.source:
            frame = sys._getframe(2)
            object.__setattr__(self, "source", f"{frame.f_code.co_filename}:{frame.f_lineno}")

    def match(self, node: Node) -> Bindings | None:
        """The bindings under which the rule applies to ``node``, or None."""
        bindings = match(self.pattern, node)
        if bindings is None or (self.where is not None and not self.where(node, bindings)):
            return None
        return bindings

    def replacement(self, node: Node, bindings: Bindings) -> Any:
        return (
            self.replace(node, bindings)
            if callable(self.replace) and not isinstance(self.replace, Expr)
            else self.replace
        )


def build(graph: Graph, expression: Any, bindings: Bindings, root: Node) -> tuple[Any, list[Node]]:
    """Create the nodes of ``expression`` before ``root``; returns its value (a node or number) and the new nodes.

    New nodes carry the root's source line and the origins of everything the match covered, and metadata inferred from
    the root: same dtype and device, bool for comparisons, shapes by broadcasting.
    """
    created: list[Node] = []

    def make(part: Any) -> Any:
        if isinstance(part, Var):
            return bindings[part.name]
        if not isinstance(part, Apply):
            return part
        args = tuple(make(a) for a in part.args)
        kwargs = {name: make(value) for name, value in part.kwargs}
        op, target = spelling(part.operation)
        node = graph.create(op, target, args, kwargs, origins=root.origins, location=root.location)
        node.meta["val"] = infer(part.operation, args, root)
        created.append(node)
        return node

    with graph.inserting_before(root):
        return make(expression), created


def spelling(name: str) -> tuple[str, Any]:
    """Opcode and target that apply a named operation."""
    if name in BY_NAME:
        return "call_function", BY_NAME[name]
    if name in ("where", "clamp", "maximum", "minimum"):
        return "call_function", getattr(torch, name)
    if hasattr(torch.Tensor, name):
        return "call_method", name
    if hasattr(F, name):
        return "call_function", getattr(F, name)
    raise TransformError(f"no operation is called {name!r}")


def infer(name: str, args: tuple[Any, ...], root: Node) -> TensorMeta:
    """Metadata of a pointwise operation inside the expansion of ``root``."""
    meta: TensorMeta = root.val
    metas = [a.val for a in args if isinstance(a, Node)]
    shapes = {m.shape for m in metas} or {meta.shape}
    shape = shapes.pop() if len(shapes) == 1 else tuple(torch.broadcast_shapes(*shapes))
    dtype = torch.bool if name in COMPARISONS else meta.dtype
    same = next((m for m in (meta, *metas) if m.shape == shape), None)
    stride = same.stride if same is not None else contiguous_stride(shape)
    grad = meta.requires_grad and dtype is not torch.bool
    found = TensorMeta(shape, stride, dtype, meta.device, grad)
    return meta if found == meta else found  # a graph of equal values shares one description of them


def contiguous_stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    stride, step = [], 1
    for extent in reversed(shape):
        stride.append(step)
        step *= max(extent, 1)
    return tuple(reversed(stride))


def same_metadata(a: Node, b: Any) -> bool:
    """Whether two values agree in dtype, shape and device; False when either is unknown (Section 4.2, conditions 1 and
    2)."""
    if not isinstance(b, Node) or not isinstance(a.val, TensorMeta) or not isinstance(b.val, TensorMeta):
        return False
    return (a.val.dtype, a.val.shape, a.val.device) == (b.val.dtype, b.val.shape, b.val.device)


def same_strides(a: Node, b: Node) -> bool:
    """Whether two values also lie in memory in one order. ``x - 0`` is dense where ``x`` may be expanded or have gaps:
    then ``(x - 0).view(-1)`` works and ``x.view(-1)`` does not, and a sum over ``x`` would add in another order."""
    return a.val.stride == b.val.stride


def is_finite_number(value: Any) -> bool:
    return is_number(value) and (not isinstance(value, float) or math.isfinite(value))
