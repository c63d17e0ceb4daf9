"""Elementwise ``aten`` overloads in ONNX, and how rules are registered.

A rule is called with the exporter and a node, and returns the name of the result. It sees to PyTorch's dtype promotion
itself, by the dtype of the node's value. ``Sign`` of NaN is 1 in ONNX, and ``Mod`` of floating-point numbers rounds
differently, so it is left out. The other families are in :mod:`.onnx_operators`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..capture.graph import Node
from .onnx_export import Exporter

Rule = Callable[[Exporter, Node], Any]
RULES: dict[Any, Rule] = {}
aten = torch.ops.aten


def rule_for(*overloads: str) -> Callable[[Rule], Rule]:
    """Register a function for overloads, written ``add.Tensor``; ``tanh`` is ``tanh.default``."""

    def register(rule: Rule) -> Rule:
        for overload in overloads:
            packet, _, name = overload.partition(".")
            RULES[getattr(getattr(aten, packet), name or "default")] = rule
        return rule

    return register


def _promoted(left: Any, right: Any) -> torch.dtype:
    """The dtype PyTorch compares two arguments in."""
    stand_ins = (
        torch.empty([1] * a.val.ndim, dtype=a.val.dtype, device="meta") if isinstance(a, Node) else a
        for a in (left, right)
    )
    return torch.result_type(*stand_ins)


def _unary(kind: str) -> Rule:
    def rule(e: Exporter, node: Node) -> str:
        dtype = node.val.dtype
        return e.rounded(e.op(kind, e.operand(node.args[0], dtype)), dtype)

    return rule


for _name, _kind in {
    "exp": "Exp", "log": "Log", "sqrt": "Sqrt", "sin": "Sin", "cos": "Cos", "tan": "Tan", "asin": "Asin",
    "acos": "Acos", "atan": "Atan", "sinh": "Sinh", "cosh": "Cosh", "asinh": "Asinh", "acosh": "Acosh",
    "atanh": "Atanh", "erf": "Erf", "tanh": "Tanh", "sigmoid": "Sigmoid", "neg": "Neg", "abs": "Abs",
    "reciprocal": "Reciprocal",
}.items():  # fmt: skip
    rule_for(_name)(_unary(_kind))


@rule_for("floor", "ceil", "round", "trunc")
def _whole(e: Exporter, node: Node) -> str:
    if not node.val.dtype.is_floating_point:
        return e.names[node.args[0]]
    if node.target is aten.trunc.default:
        x = e.names[node.args[0]]
        return e.op("Mul", e.op("Floor", e.op("Abs", x)), e.op("Sign", x))
    return _unary(node.target._opname.capitalize())(e, node)


@rule_for("relu")
def _relu(e: Exporter, node: Node) -> str:
    x, dtype = e.names[node.args[0]], node.val.dtype
    if dtype in (torch.int64, torch.int16, torch.uint8):
        return e.op("Max", x, e.scalar(0, dtype))
    return e.op("Relu", x)


@rule_for("gelu")
def _gelu(e: Exporter, node: Node) -> str:
    dtype = node.val.dtype
    approximate = node.kwargs.get("approximate", node.args[1] if len(node.args) > 1 else "none")
    return e.rounded(e.op("Gelu", e.operand(node.args[0], dtype), approximate=approximate), dtype)


@rule_for("rsqrt")
def _rsqrt(e: Exporter, node: Node) -> str:
    dtype = node.val.dtype
    return e.rounded(e.op("Reciprocal", e.op("Sqrt", e.operand(node.args[0], dtype))), dtype)


@rule_for("log1p")
def _log1p(e: Exporter, node: Node) -> str:
    """``log(u) * x / (u - 1)`` with u = 1 + x rounded: the error of u cancels (Kahan). Where u is 1 it is x."""
    dtype = node.val.dtype
    x, one = e.operand(node.args[0], dtype), e.scalar(1, dtype)
    u = e.op("Add", x, one)
    found = e.op("Mul", e.op("Log", u), e.op("Div", x, e.op("Sub", u, one)))
    plain = e.op("Or", e.op("Equal", u, one), e.op("IsInf", x, detect_negative=0))
    return e.rounded(e.op("Where", plain, x, found), dtype)


@rule_for("square")
def _square(e: Exporter, node: Node) -> str:
    x = e.operand(node.args[0], node.val.dtype)
    return e.rounded(e.op("Mul", x, x), node.val.dtype)


@rule_for("sign")
def _sign(e: Exporter, node: Node) -> str:
    x, dtype = e.names[node.args[0]], node.val.dtype
    if dtype == torch.bool:
        return x
    found = e.op("Sign", x)
    return e.op("Where", e.op("IsNaN", x), e.scalar(0, dtype), found) if dtype.is_floating_point else found


@rule_for("isnan", "isinf")
def _is(e: Exporter, node: Node) -> str:
    argument = node.args[0]
    if not argument.val.dtype.is_floating_point:
        return e.op("Expand", e.scalar(False, torch.bool), e.integers(*node.val.shape))
    return e.op("IsNaN" if node.target is aten.isnan.default else "IsInf", e.names[argument])


def _arithmetic(kind: str, logical: str | None = None) -> Rule:
    """``logical`` is what the operation means for truth values, if PyTorch has it for them."""

    def rule(e: Exporter, node: Node) -> str:
        dtype, (left, right) = node.val.dtype, node.args[:2]
        if node.target in (aten.rsub.Tensor, aten.rsub.Scalar):
            left, right = right, left
        alpha = node.kwargs.get("alpha", node.args[2] if len(node.args) > 2 else 1)
        if dtype == torch.bool:
            if logical is None or alpha != 1:
                raise e.refuse("it has no meaning for truth values there")
            return e.op(logical, e.operand(left, dtype), e.operand(right, dtype))
        first, second = e.operand(left, dtype), e.operand(right, dtype)
        if alpha != 1:
            second = e.op("Mul", second, e.scalar(alpha, dtype))
        return e.rounded(e.op(kind, first, second), dtype)

    return rule


rule_for("add.Tensor", "add.Scalar")(_arithmetic("Add", "Or"))
rule_for("sub.Tensor", "sub.Scalar", "rsub.Tensor", "rsub.Scalar")(_arithmetic("Sub"))
rule_for("mul.Tensor", "mul.Scalar")(_arithmetic("Mul", "And"))
rule_for("div.Tensor", "div.Scalar", "true_divide.Tensor")(_arithmetic("Div"))
rule_for("maximum")(_arithmetic("Max", "Or"))
rule_for("minimum")(_arithmetic("Min", "And"))
rule_for("pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar")(_arithmetic("Pow"))


def _comparison(kind: str) -> Rule:
    def rule(e: Exporter, node: Node) -> str:
        dtype = _promoted(*node.args[:2])
        if dtype == torch.bool and kind != "Equal":
            dtype = torch.int32
        operands = (e.rounded(e.operand(argument, dtype), dtype) for argument in node.args[:2])
        found = e.op(kind, *operands)
        return e.op("Not", found) if node.target in (aten.ne.Scalar, aten.ne.Tensor) else found

    return rule


for _name, _kind in {
    "eq": "Equal", "ne": "Equal", "lt": "Less", "le": "LessOrEqual", "gt": "Greater", "ge": "GreaterOrEqual"
}.items():  # fmt: skip
    rule_for(f"{_name}.Scalar", f"{_name}.Tensor")(_comparison(_kind))


def _logical(kind: str) -> Rule:
    def rule(e: Exporter, node: Node) -> str:
        return e.op(kind, *(e.operand(argument, torch.bool) for argument in node.args))

    return rule


for _name, _kind in {"logical_and": "And", "logical_or": "Or", "logical_xor": "Xor", "logical_not": "Not"}.items():
    rule_for(_name)(_logical(_kind))


def _bitwise(kind: str, logical: str) -> Rule:
    def rule(e: Exporter, node: Node) -> str:
        dtype = node.val.dtype
        return e.op(logical if dtype == torch.bool else kind, *(e.operand(a, dtype) for a in node.args[:2]))

    return rule


rule_for("bitwise_not")(_bitwise("BitwiseNot", "Not"))
for _name in ("and", "or", "xor"):
    _spelled = _name.capitalize()
    rule_for(f"bitwise_{_name}.Tensor", f"bitwise_{_name}.Scalar")(_bitwise(f"Bitwise{_spelled}", _spelled))


@rule_for("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def _where(e: Exporter, node: Node) -> str:
    condition, dtype = e.operand(node.args[0], torch.bool), node.val.dtype
    return e.op("Where", condition, *(e.rounded(e.operand(argument, dtype), dtype) for argument in node.args[1:3]))


@rule_for("masked_fill.Scalar", "masked_fill.Tensor")
def _masked_fill(e: Exporter, node: Node) -> str:
    x, mask, value = node.args
    dtype = node.val.dtype
    filled = e.rounded(e.operand(value, dtype), dtype)
    return e.op("Where", e.operand(mask, torch.bool), filled, e.operand(x, dtype))


@rule_for("clamp", "clamp_min", "clamp_max")
def _clamp(e: Exporter, node: Node) -> str:
    dtype, arguments = node.val.dtype, list(node.args[1:])
    if node.target is aten.clamp_max.default:
        arguments = [None, *arguments]
    low, high = (arguments + [None, None])[:2]
    low, high = node.kwargs.get("min", low), node.kwargs.get("max", high)
    x = e.operand(node.args[0], dtype)
    if low is not None:
        x = e.op("Max", x, e.rounded(e.scalar(low, dtype), dtype))
    if high is not None:
        x = e.op("Min", x, e.rounded(e.scalar(high, dtype), dtype))
    return x


@rule_for("_to_copy")
def _to_copy(e: Exporter, node: Node) -> str:
    source = node.args[0]
    return e.cast(e.names[source], source.val.dtype, node.val.dtype)


@rule_for("clone", "contiguous", "detach", "alias", "lift_fresh", "lift_fresh_copy", "lift", "positive")
def _same(e: Exporter, node: Node) -> str:
    return e.names[node.args[0]]
