"""Decomposition of composite operators (Section 4.4): written out where fusion and merging gain and accuracy does not
lose.

Written out, ``selu`` is a chain of primitives that fuses with its neighbours, and two equal chains merge. But not
every formula may be written out. ``log1p`` exists because ``log(1 + x)`` loses all digits for small ``x`` (the sum
rounds to 1), and ``expm1`` for the same reason; ``gelu``, ``softmax`` and ``layer_norm`` have good implementations of
their own further down. Those stay. So ``selu`` and ``elu`` are written with ``expm1``, never with ``exp(x) - 1``: the
chain keeps the accuracy of the operator.

In float16 and bfloat16 every primitive would round its result, where the operator rounds once; there composites stay
whole. They also stay whole where gradients are recorded: equal values do not mean equal derivatives. ``relu6`` has the
derivative 0 at 0 and ``clamp`` the derivative 1, and in the gradient of ``where(x > 0, x, expm1(x))`` the overflow of
the side not taken turns up as ``0 * inf``.
"""

from __future__ import annotations

from typing import Any

import torch

from ..capture.graph import Graph, Node, TensorMeta
from .operations import is_number, operation
from .patterns import Apply, Expr, Var, apply, build, contiguous_stride
from .rewrite import Applied, describe

x = Var("x")

# The constants of Klambauer et al., "Self-Normalizing Neural Networks" (2017).
SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805


def _selu() -> Expr:
    return SELU_SCALE * apply("where", x > 0, x, SELU_ALPHA * apply("expm1", x))


def _elu(alpha: float = 1.0) -> Expr:
    return apply("where", x > 0, x, alpha * apply("expm1", x))


def _leaky_relu(negative_slope: float = 0.01) -> Expr:
    return apply("where", x > 0, x, x * negative_slope)


def _relu6() -> Expr:
    return apply("clamp", x, 0, 6)


def _hardsigmoid() -> Expr:
    return apply("clamp", x + 3, 0, 6) / 6


def _hardswish() -> Expr:
    return x * apply("clamp", x + 3, 0, 6) / 6


def _softsign() -> Expr:
    return x / (apply("abs", x) + 1)


def _tanhshrink() -> Expr:
    return x - apply("tanh", x)


#: Composite operators and their expansions, by operation name. Numeric parameters are passed through.
EXPANSIONS: dict[str, Any] = {
    "selu": _selu, "elu": _elu, "leaky_relu": _leaky_relu, "relu6": _relu6, "hardsigmoid": _hardsigmoid,
    "hardswish": _hardswish, "softsign": _softsign, "tanhshrink": _tanhshrink,
}  # fmt: skip

#: How far an expansion may round from the operator, in units in the last place; zeros, infinities and NaN are the
#: operator's. ``elu`` and ``selu`` have an exponential of their own, and ``selu`` multiplies its two constants first.
#: An expansion that is not named here is exact, bit for bit.
UNITS_IN_THE_LAST_PLACE: dict[str, int] = {"selu": 4, "elu": 3}

#: Left whole, and why (Table 4.2). ``staxlab.measure.transcendental`` measures it.
KEPT: dict[str, str] = {
    "log1p": "log(1 + x) cancels for small x",
    "expm1": "exp(x) - 1 cancels for small x",
    "sinh": "exp(x) - exp(-x) cancels for small x",
    "cosh": "one vector function; the formula has two, and three more roundings",
    "tanh": "cancels for small x; infinity / infinity for large x",
    "asinh": "cancels for small and for negative x; the square overflows",
    "acosh": "x * x - 1 cancels near 1; the square overflows",
    "atanh": "the quotient rounds small x away",
    "sigmoid": "has a lowering of its own, as accurate as the formula",
    "softplus": "switches formulas to stay accurate",
    "logsigmoid": "switches formulas to stay accurate",
    "logaddexp": "exp overflows where the result does not",
    "erf": "1 - erfc(x) cancels for small x",
    "erfc": "1 - erf(x) cancels for large x",
    "logit": "has a lowering of its own, which does not cancel near 1/2 as the formula does",
    "gelu": "has a lowering of its own, which does not cancel for x < -2 as the formula does",
    "softmax": "has a lowering of its own",
    "layer_norm": "has a lowering of its own",
}


def is_composite(node: Node) -> bool:
    """Whether the pass would expand this node, now or once its in-place form has become an ordinary one."""
    return _expression(node) is not None


def _expression(node: Node) -> Apply | None:
    name = (operation(node) or "").removesuffix("_")
    if name not in EXPANSIONS or not node.args or not isinstance(node.args[0], Node):
        return None
    source = node.args[0].val
    if not isinstance(node.val, TensorMeta) or not isinstance(source, TensorMeta) or node.val.requires_grad:
        return None
    if source.dtype not in (torch.float32, torch.float64) or (source.dtype, source.shape) != (
        node.val.dtype,
        node.val.shape,
    ):
        return None
    if any(extent < 2 for extent in source.shape) and source.stride != contiguous_stride(source.shape):
        return None  # some operators take over the stride of an axis of one element, and their parts do not
    parameters = {key: value for key, value in node.kwargs.items() if key != "inplace"}
    if not all(map(is_number, (*node.args[1:], *parameters.values()))) or len(node.args) > 2:
        return None
    try:
        return EXPANSIONS[name](*node.args[1:], **parameters)
    except TypeError:  # a parameter this expansion does not know
        return None


def decompose(graph: Graph) -> list[Applied]:
    """Expand every composite operator once."""
    applied: list[Applied] = []
    laws: dict[str, str] = {}  # by operation and parameters: writing a formula out takes longer than applying it
    for node in graph:
        expression = None if node.meta.get("mutates") else _expression(node)
        if expression is None:
            continue
        before = describe([node])
        key = repr((node.target, node.args[1:], node.kwargs))  # 1, 1.0 and True are not the same here
        law = laws.get(key) or laws.setdefault(key, f"{operation(node)}(x) -> {expression}")
        value, created = build(graph, expression, {"x": node.args[0]}, node)
        node.replace_all_uses_with(value)
        graph.erase(node)
        code = EXPANSIONS[operation(node)].__code__
        source = f"{code.co_filename}:{code.co_firstlineno}"
        applied.append(Applied(f"expand {operation(node)}", law, before, describe(created), node.origins, source))
    return applied
