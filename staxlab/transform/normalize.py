"""Normalization (Section 4.2): one way of writing each thing, and identities removed where IEEE 754 allows it.

Three kinds of rewrites. Spelling: a scalar constant of a commutative operation goes to the right (``2 * x`` becomes
``x * 2``), and ``torch.add(x, y)``, ``x.add(y)`` become ``x + y``; later patterns then meet one form only. In-place
operations on a value nobody else can see become ordinary ones. And algebraic identities disappear, but only those that
hold for floating-point numbers, with their signed zeros, infinities and NaN:

    x + 0 -> x      only the sign of a zero can differ, which is accepted
    x - 0, x * 1, x / 1, x ** 1, -(-x) -> x      exact for every value
    x * 0 -> 0, x - x -> 0, x / x -> 1           wrong for NaN and infinity: not rules here
    (x + a) + b -> x + (a + b)                   rounding differs: not a rule here

The value is not all. ``x + 0.0`` is a float tensor where ``x`` may hold integers; ``x + zeros(4, 1)`` may have another
shape; ``x + 0`` is dense in memory where ``x`` may have gaps, and can be viewed where ``x`` cannot; and a result that
is returned must not turn into the caller's own input. Where metadata is missing nothing is rewritten.
"""

from __future__ import annotations

import math

import torch

from ..capture.graph import Graph, Node, TensorMeta
from ..provenance import Origins
from .effects import Effects, takes_element
from .operations import BY_NAME, COMMUTATIVE, OPERATORS, UNARY, is_in_place, is_number, operation
from .patterns import Rule, Var, apply, contiguous_stride, same_metadata, same_strides
from .rewrite import Applied, describe

x = Var("x")

IDENTITIES: tuple[Rule, ...] = (
    Rule("add zero", x + 0, x),
    Rule("subtract zero", x - 0, x),
    Rule("multiply by one", x * 1, x),
    Rule("divide by one", x / 1, x),
    Rule("first power", x**1, x),
    Rule("double negation", apply("neg", apply("neg", x)), x),
    Rule("relu is idempotent", apply("relu", apply("relu", x)), apply("relu", x)),
    Rule("abs is idempotent", apply("abs", apply("abs", x)), apply("abs", x)),
)
IDENTITY_LAWS = tuple(rule.law for rule in IDENTITIES)
#: The same by the operation at the root: a node is matched with the rules that may fit, not with all of them.
_IDENTITIES_OF = {
    name: tuple(rule for rule in IDENTITIES if rule.pattern.operation == name)
    for name in {rule.pattern.operation for rule in IDENTITIES}
}

# Binary operations that exist as an operator: the operator is the normal form.
_OPERATOR_FORMS = frozenset({"add", "sub", "mul", "div", "pow", "matmul", "remainder", "eq", "ne", "lt", "le", "gt",
                             "ge", "bitwise_and", "bitwise_or", "bitwise_xor"})  # fmt: skip


def normalize(graph: Graph) -> list[Applied]:
    """Apply every normalization once to each node, in topological order."""
    applied: list[Applied] = []
    for node in graph:
        applied += _spell_as_operator(node)
        applied += _constant_to_the_right(node)
    applied += _remove_in_place(graph)
    applied += _remove_identities(graph)
    return applied


def irregular(node: Node) -> int:
    """How many steps of rewriting a node is away from its normal form: the third component of the measure.

    An in-place call counts twice: its ordinary form may still have to be spelled as an operator.
    """
    return int(_has_operator_form(node)) + int(_constant_is_left(node)) + 2 * int(is_in_place(node))


def _has_operator_form(node: Node) -> bool:
    return (
        operation(node) in _OPERATOR_FORMS
        and node.target not in OPERATORS
        and len(node.args) == 2
        and not node.kwargs
        and not node.meta.get("mutates")
        and isinstance(node.val, TensorMeta)
    )


def _spell_as_operator(node: Node) -> list[Applied]:
    if not _has_operator_form(node):
        return []
    before = node.format()
    node.op, node.target = "call_function", BY_NAME[operation(node)]
    return [_applied("spell as operator", "torch.f(x, y) -> x f y", before, node, _spell_as_operator)]


def _constant_is_left(node: Node) -> bool:
    return (
        node.target in OPERATORS
        and OPERATORS[node.target] in COMMUTATIVE
        and len(node.args) == 2
        and is_number(node.args[0])
        and isinstance(node.args[1], Node)
    )


def _constant_to_the_right(node: Node) -> list[Applied]:
    if not _constant_is_left(node):
        return []
    before = node.format()
    node.args = (node.args[1], node.args[0])
    return [_applied("constant to the right", "c + x -> x + c,  c * x -> x * c", before, node, _constant_to_the_right)]


def _remove_in_place(graph: Graph) -> list[Applied]:
    """``t.relu_()`` becomes ``t.relu()`` where ``t`` is a fresh intermediate that nothing else reads.

    Writes that require grad stay, unless nobody has saved what is overwritten (:func:`_unsaved`): autograd reads ``t``
    as well, and raises where it has.
    """
    applied: list[Applied] = []
    for node in graph:
        target = node.args[0] if node.args and isinstance(node.args[0], Node) else None
        if target is None or not node.meta.get("mutates") or not is_in_place(node) or not _is_private(target, node):
            continue
        if not same_metadata(node, target) or not _keeps_dtype(node, target):
            continue
        if node.val.requires_grad and not (_unsaved(target) and _unsaved(node)):
            continue
        if not _keeps_strides(node, target):
            continue
        before = node.format()
        if node.kwargs.get("inplace") is True:
            node.kwargs = {key: value for key, value in node.kwargs.items() if key != "inplace"}
        else:
            name = node.target if isinstance(node.target, str) else node.target.__name__
            plain = name.removesuffix("_")
            if node.op == "call_method" and hasattr(torch.Tensor, plain):
                node.target = plain
            elif (
                node.op == "call_function" and callable(getattr(torch, plain, None)) and _is_torch_function(node.target)
            ):
                node.target = getattr(torch, plain)
            else:
                continue
        node.meta = {key: value for key, value in node.meta.items() if key not in ("mutates", "aliases")}
        applied.append(_applied("out of place", "t.f_() -> t.f()", before, node, _remove_in_place))
    return applied


def _is_torch_function(target: object) -> bool:
    return getattr(torch, getattr(target, "__name__", ""), None) is target


def _is_private(target: Node, writer: Node) -> bool:
    """A fresh value whose only reader is the writing call: no input, no view, no second user. The element of a
    multi-result operation is as fresh as the operation's results are: a part of ``chunk`` or ``unbind`` is a view."""
    maker = target
    while takes_element(maker):
        maker = maker.args[0]
    return (
        maker.op.startswith("call_")
        and not any(node.meta.get("aliases") or node.meta.get("mutates") for node in (target, maker))
        and isinstance(target.val, TensorMeta)
        and list(target.users) == [writer]
        and writer.inputs.count(target) == 1
        and sum(argument is target for argument in writer.args) == 1
    )


def _unsaved(node: Node) -> bool:
    """Whether the derivative of an operation reads neither its result nor, where it is written in place, its first
    argument: a product of matrices, a sum, a multiplication by a number, a masking."""
    name = (operation(node) or "").removesuffix("_")
    if name in ("mul", "div"):
        return len(node.args) == 2 and any(is_number(x) and not isinstance(x, complex) for x in node.args)
    return name in ("matmul", "bmm", "mm", "baddbmm", "einsum", "add", "sub", "neg", "masked_fill")


_SIMPLE_BINARY = frozenset({"add", "sub", "mul"})
_GIVES_BOOL = frozenset({"logical_not", "isnan", "isinf", "isfinite"})


def _keeps_dtype(node: Node, target: Node) -> bool:
    """Whether the ordinary form gives the dtype and the shape that the in-place form kept."""
    name = (operation(node) or "").removesuffix("_")
    dtype = target.val.dtype
    if name in _GIVES_BOOL:
        return dtype == torch.bool
    if name in UNARY and len(node.inputs) == 1:
        return dtype.is_floating_point or name in ("relu", "abs", "neg")
    if name == "masked_fill" and len(node.args) == 3 and not node.kwargs:
        return is_number(node.args[2]) and not isinstance(node.args[2], complex)
    if name == "div" and not dtype.is_floating_point:
        return False
    if name not in (*_SIMPLE_BINARY, "div") or len(node.args) != 2 or node.kwargs:
        return False
    other = node.args[1]
    if isinstance(other, Node):
        meta = other.val
        return isinstance(meta, TensorMeta) and meta.dtype == dtype and meta.device == target.val.device
    if not is_number(other) or isinstance(other, complex):
        return False
    return dtype.is_floating_point or (isinstance(other, int) and not isinstance(other, bool) and dtype != torch.bool)


def _keeps_strides(node: Node, target: Node) -> bool:
    """Whether the ordinary form lays its result out as the written tensor is. It does where every axis has more than
    one element and there are no gaps: then the target's strides order the axes. An axis of one element may have any
    stride, which a new tensor does not take over; there all must be contiguous. masked_fill fills a contiguous clone,
    however its argument and the mask lie."""
    value = target.val
    if operation(node) == "masked_fill_":
        return value.stride == contiguous_stride(value.shape)
    if all(extent > 1 for extent in value.shape):
        axes = sorted(zip(value.stride, value.shape, strict=True))
        return all(stride == math.prod(extent for _, extent in axes[:place]) for place, (stride, _) in enumerate(axes))
    others = [part.val for part in node.inputs]
    return all(other.shape == value.shape and other.stride == contiguous_stride(value.shape) for other in others)


def _remove_identities(graph: Graph) -> list[Applied]:
    applied: list[Applied] = []
    effects: Effects | None = None
    own: dict[Node, Origins] = {}  # what a node stood for before others were replaced by it
    for node in graph:
        for rule in _IDENTITIES_OF.get(operation(node), ()):
            bindings = rule.match(node)
            if bindings is None:
                continue
            effects = effects or Effects(graph)
            other = bindings["x"] if isinstance(rule.replace, Var) else node.args[0]
            if not same_metadata(node, other) or not same_strides(node, other):
                continue
            # In -(-x) the value between, too, must be what was computed: a write may have come in the meantime.
            if not effects.may_replace(node, other) or any(map(effects.is_written, node.inputs)):
                continue
            before = describe([node])
            if other not in own:
                own[other] = other.origins
            origins = node.origins | own[other]
            node.replace_all_uses_with(other)
            graph.erase(node)
            effects.merge(node, other)
            applied.append(Applied(rule.name, rule.law, before, describe([other]), origins, rule.source))
            break
    return applied


def _applied(name: str, law: str, before: str, node: Node, function: object) -> Applied:
    code = function.__code__  # type: ignore[attr-defined]
    return Applied(name, law, (before,), describe([node]), node.origins, f"{code.co_filename}:{code.co_firstlineno}")
