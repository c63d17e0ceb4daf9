"""What the passes know about operations, by name: one spelling for each, and the properties rules rely on.

A program can say the same thing as ``x + y``, ``torch.add(x, y)`` and ``x.add(y)``. :func:`operation` gives all of
them the name ``add``, so that a rule is written once. Facts that depend on the call and not on the name (does it
write, does it draw random numbers, does its result share memory with an argument?) were observed at capture and are in
``node.meta``.
"""

from __future__ import annotations

import builtins
import operator
from typing import Any

import torch

from ..capture.graph import Node, TensorMeta, map_nodes

OPERATORS: dict[Any, str] = {
    operator.add: "add", operator.sub: "sub", operator.mul: "mul", operator.truediv: "div",
    operator.floordiv: "floor_divide",
    operator.mod: "remainder", operator.pow: "pow", operator.matmul: "matmul", operator.neg: "neg",
    operator.pos: "positive",
    operator.invert: "bitwise_not", operator.and_: "bitwise_and", operator.or_: "bitwise_or",
    operator.xor: "bitwise_xor",
    operator.lshift: "bitwise_left_shift", operator.rshift: "bitwise_right_shift",
    operator.eq: "eq", operator.ne: "ne", operator.lt: "lt", operator.le: "le", operator.gt: "gt", operator.ge: "ge",
    operator.getitem: "getitem", operator.setitem: "setitem",
}  # fmt: skip
BY_NAME: dict[str, Any] = {name: target for target, name in OPERATORS.items()}
_SYNONYMS = {"true_divide": "div", "divide": "div", "multiply": "mul", "subtract": "sub", "negative": "neg",
             "absolute": "abs", "greater": "gt", "less": "lt", "__and__": "bitwise_and", "__or__": "bitwise_or",
             "__xor__": "bitwise_xor", "clip": "clamp", "arccos": "acos", "arcsin": "asin",
             "arctan": "atan"}  # fmt: skip

COMMUTATIVE = frozenset({"add", "mul", "bitwise_and", "bitwise_or", "bitwise_xor"})
COMPARISONS = frozenset({"eq", "ne", "lt", "le", "gt", "ge"})

# Unary operations whose result has the argument's shape and, for floating-point arguments, its dtype.
UNARY = frozenset(
    {"abs", "neg", "positive", "exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "sqrt", "rsqrt",
    "reciprocal", "square",
     "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh", "sigmoid", "relu",
     "relu6", "silu", "gelu", "mish", "selu", "elu", "celu", "leaky_relu", "hardswish", "hardsigmoid", "hardtanh",
     "softplus",
     "softsign", "tanhshrink", "logsigmoid", "erf", "erfc", "floor", "ceil", "round", "trunc", "frac", "sign", "sgn",
     "logit", "hardshrink", "softshrink", "threshold", "nan_to_num", "bitwise_not", "logical_not", "isnan", "isinf",
     "isfinite"}
)  # fmt: skip
POINTWISE = (
    UNARY
    | COMPARISONS
    | COMMUTATIVE
    | frozenset(
        {"sub", "div", "floor_divide", "remainder", "fmod", "pow", "where", "clamp", "clamp_min", "clamp_max",
        "maximum",
         "minimum", "atan2", "hypot", "copysign", "lerp", "addcmul", "addcdiv", "logical_and", "logical_or",
         "logical_xor",
         "bitwise_left_shift", "bitwise_right_shift", "masked_fill", "float", "double", "half", "bfloat16", "int",
         "long",
         "bool", "logaddexp", "xlogy"}
    )
)  # fmt: skip


def operation(node: Node) -> str | None:
    """The name of the operation a call node applies, whatever its spelling; None for other nodes."""
    if node.op == "call_method":
        return _SYNONYMS.get(node.target, node.target)
    if node.op != "call_function":
        return None
    if node.target in OPERATORS:
        return OPERATORS[node.target]
    if node.target is builtins.getattr:
        return node.args[1]
    module = getattr(node.target, "__module__", None) or ""
    name = getattr(node.target, "__name__", None)
    if name is None or not (module.startswith(("torch", "_operator")) or isinstance(node.target, _BUILTIN)):
        return None
    return _SYNONYMS.get(name, name)


_BUILTIN = (type(torch.add), type(torch._C._nn.gelu))


def is_in_place(node: Node) -> bool:
    """Whether the call has an in-place spelling: ``x.relu_()``, ``F.relu(x, inplace=True)``."""
    name = operation(node)
    return bool(name and name.endswith("_") and not name.endswith("__")) or node.kwargs.get("inplace") is True


def is_number(value: Any) -> bool:
    """A Python number (a bool is one, a tensor is not)."""
    return isinstance(value, (bool, int, float, complex))


def is_pointwise(node: Node) -> bool:
    """Whether each element of the result depends on the elements of the arguments at the same (broadcast) position
    only."""
    if node.meta.get("mutates") or node.meta.get("random") or not isinstance(node.val, TensorMeta):
        return False
    return operation(node) in POINTWISE and "out" not in node.kwargs


def run_without_memory(node: Node, values: dict[Node, torch.Tensor]) -> Any:
    """A call computed on tensors without memory, which shows its shape and strides; ``values`` are those of some
    inputs. Raises what the call raises."""

    def value(source: Node) -> Any:
        if source in values:
            return values[source]
        meta = source.val
        if not isinstance(meta, TensorMeta):
            return meta
        return torch.empty_strided(meta.shape, meta.stride, dtype=meta.dtype, device="meta")

    args, kwargs = map_nodes(node.args, value), map_nodes(node.kwargs, value)
    if node.op == "call_method":
        return getattr(args[0], node.target)(*args[1:], **kwargs)
    return node.target(*args, **kwargs)
