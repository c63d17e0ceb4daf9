"""What each ``aten`` overload of shapes, reductions, products and subscripts is in ONNX.

Rules as in :mod:`.onnx_elementwise`, which this module completes. Deviations of ONNX or of its CPU runtime from PyTorch
that rules make up for: ``ReduceMax`` and ``ReduceMin`` pass over NaN, and ``Gather`` takes negative subscripts where
PyTorch raises.
"""

from __future__ import annotations

import math
import operator
from typing import Any

import torch

from ..capture.graph import Node
from .onnx_elementwise import RULES, Rule, aten, rule_for
from .onnx_export import ONNX_DTYPES, Exporter

# -- shape ------------------------------------------------------------------------------------------------------------


@rule_for("view", "_unsafe_view", "reshape", "_reshape_alias", "view_copy", "unsqueeze", "squeeze", "squeeze.dim",
       "squeeze.dims")  # fmt: skip
def _reshape(e: Exporter, node: Node) -> str:
    return e.reshaped(e.names[node.args[0]], node.val.shape)


@rule_for("t", "transpose.int", "permute", "numpy_T", "swapaxes", "swapdims")
def _permute(e: Exporter, node: Node) -> str:
    rank = node.args[0].val.ndim
    order = list(range(rank))
    if node.target is aten.permute.default:
        order = [axis % max(rank, 1) for axis in node.args[1]]
    elif node.target in (aten.t.default, aten.numpy_T.default):
        order.reverse()
    elif rank:
        a, b = (axis % rank for axis in node.args[1:3])
        order[a], order[b] = order[b], order[a]
    return e.op("Transpose", e.names[node.args[0]], perm=order)


@rule_for("expand", "expand_copy")
def _expand(e: Exporter, node: Node) -> str:
    return e.op("Expand", e.names[node.args[0]], e.integers(*node.val.shape))


def _sliced(e: Exporter, name: str, axis: int, start: int, stop: int, step: int = 1) -> str:
    return e.op("Slice", name, e.integers(start), e.integers(stop), e.integers(axis), e.integers(step))


@rule_for("slice.Tensor")
def _slice(e: Exporter, node: Node) -> str:
    source, axis, start, stop, step = (*node.args, *(0, None, None, 1)[len(node.args) - 1 :])
    extent = source.val.shape[axis]
    start, stop, step = slice(start, stop, step).indices(extent)
    return _sliced(e, e.names[source], axis % source.val.ndim, start, max(start, stop), step)


@rule_for("select.int")
def _select(e: Exporter, node: Node) -> str:
    source, axis, place = node.args
    axis, place = axis % source.val.ndim, place % source.val.shape[axis]
    return e.reshaped(_sliced(e, e.names[source], axis, place, place + 1), node.val.shape)


@rule_for("split.Tensor", "split_with_sizes", "split.sizes", "unbind.int")
def _split(e: Exporter, node: Node) -> list[str]:
    """Several results, each a slice."""
    source = node.args[0]
    axis = node.args[1] if node.target is aten.unbind.int and len(node.args) > 1 else 0
    if node.target is not aten.unbind.int and len(node.args) > 2:
        axis = node.args[2]
    axis = node.kwargs.get("dim", axis) % source.val.ndim
    found, start = [], 0
    for part in node.val:
        extent = 1 if node.target is aten.unbind.int else part.shape[axis]
        piece = _sliced(e, e.names[source], axis, start, start + extent)
        found.append(e.reshaped(piece, part.shape))
        start += extent
    return found


@rule_for("cat", "stack")
def _cat(e: Exporter, node: Node) -> str:
    axis = node.args[1] if len(node.args) > 1 else 0
    axis, dtype, parts = axis % node.val.ndim, node.val.dtype, []
    for part in node.args[0]:
        name = e.operand(part, dtype)
        if node.target is aten.stack.default:
            shape = list(part.val.shape)
            name = e.reshaped(name, (*shape[:axis], 1, *shape[axis:]))
        elif part.val.shape == (0,) and node.val.ndim != 1:
            continue  # an old spelling of "nothing", of any rank
        parts.append(name)
    return e.op("Concat", *parts, axis=axis)


@rule_for("flip")
def _flip(e: Exporter, node: Node) -> str:
    name, rank = e.names[node.args[0]], node.val.ndim
    for axis in node.args[1]:
        name = e.op("Slice", name, e.integers(-1), e.integers(-(2**62)), e.integers(axis % rank), e.integers(-1))
    return name


@rule_for("constant_pad_nd")
def _pad(e: Exporter, node: Node) -> str:
    source, pads = node.args[:2]
    value = node.args[2] if len(node.args) > 2 else 0
    before, after = [0] * source.val.ndim, [0] * source.val.ndim
    for place in range(len(pads) // 2):
        before[-1 - place], after[-1 - place] = pads[2 * place : 2 * place + 2]
    dtype = node.val.dtype
    fill = e.rounded(e.scalar(value, dtype), dtype)
    return e.op("Pad", e.names[source], e.integers(*before, *after), fill)


@rule_for("tril", "triu")
def _triangle(e: Exporter, node: Node) -> str:
    diagonal = node.args[1] if len(node.args) > 1 else 0
    upper = int(node.target is aten.triu.default)
    return e.op("Trilu", e.names[node.args[0]], e.array(_int64(diagonal)), upper=upper)


def _int64(value: int) -> Any:
    return torch.tensor(value, dtype=torch.int64).numpy()


@rule_for("full_like", "zeros_like", "ones_like", "new_full", "new_zeros", "new_ones")
def _filled(e: Exporter, node: Node) -> str:
    name, dtype = node.target._opname, node.val.dtype
    value = 0 if "zeros" in name else 1 if "ones" in name else node.args[2 if name == "new_full" else 1]
    filled = e.rounded(e.operand(value, dtype), dtype)
    return e.op("Expand", filled, e.integers(*node.val.shape))


# -- reductions, products, subscripts ---------------------------------------------------------------------------------


def _axes(node: Node) -> list[int]:
    """The axes a reduction merges, none given meaning all."""
    rank = node.args[0].val.ndim
    given = node.args[1] if len(node.args) > 1 else node.kwargs.get("dim")
    if node.target._overloadname == "default" and node.target not in (aten.amax.default, aten.amin.default):
        given = None
    given = [given] if isinstance(given, int) else given
    return [axis % max(rank, 1) for axis in given] if given else list(range(rank))


def _merged(e: Exporter, node: Node, kind: str, name: str) -> str:
    axes = _axes(node)
    if node.args[0].val.ndim:
        name = e.op(kind, name, e.integers(*axes), keepdims=0)
    return e.reshaped(name, node.val.shape)


def _reduction(kind: str) -> Rule:
    def rule(e: Exporter, node: Node) -> str:
        dtype = node.val.dtype
        return e.rounded(_merged(e, node, kind, e.operand(node.args[0], dtype)), dtype)

    return rule


rule_for("sum", "sum.dim_IntList")(_reduction("ReduceSum"))
rule_for("mean", "mean.dim")(_reduction("ReduceMean"))
rule_for("prod", "prod.dim_int")(_reduction("ReduceProd"))


@rule_for("amax", "amin")
def _extreme(e: Exporter, node: Node) -> str:
    """NaN wherever one is among the elements, which ``ReduceMax`` passes over."""
    x, dtype = e.names[node.args[0]], node.val.dtype
    if 0 in node.args[0].val.shape:
        raise e.refuse("a maximum of no elements")
    found = _merged(e, node, "ReduceMax" if node.target is aten.amax.default else "ReduceMin", x)
    if not dtype.is_floating_point:
        return found
    spoiled = _merged(e, node, "ReduceMax", e.op("Cast", e.op("IsNaN", x), to=ONNX_DTYPES[torch.int32]))
    return e.op("Where", e.cast(spoiled, torch.int32, torch.bool), e.scalar(math.nan, dtype), found)


@rule_for("argmax", "argmin")
def _position(e: Exporter, node: Node) -> str:
    """Of the first extreme, or of the first NaN if there is one."""
    source, kind = node.args[0], "ArgMax" if node.target is aten.argmax.default else "ArgMin"
    axis = node.args[1] if len(node.args) > 1 else None
    if 0 in source.val.shape:
        raise e.refuse("a position among no elements")
    x = e.names[source]
    if axis is None or not source.val.ndim:
        x, axis = e.reshaped(x, (source.val.numel,)), 0
    axis %= max(source.val.ndim, 1)
    found = e.op(kind, x, axis=axis, keepdims=0)
    if source.val.dtype.is_floating_point:
        spoiled = e.op("Cast", e.op("IsNaN", x), to=ONNX_DTYPES[torch.int32])
        first = e.op("ArgMax", spoiled, axis=axis, keepdims=0)
        any_spoiled = e.op("ReduceMax", spoiled, e.integers(axis), keepdims=0)
        found = e.op("Where", e.cast(any_spoiled, torch.int32, torch.bool), first, found)
    return e.reshaped(found, node.val.shape)


@rule_for("var.correction", "var_mean.correction")
def _variance(e: Exporter, node: Node) -> Any:
    """The mean first, and then the squares of what is left: two passes, as PyTorch's compensated sum wants it."""
    source, is_pair = node.args[0], node.target is aten.var_mean.correction
    variance = node.val[0] if is_pair else node.val
    axes = _axes(node)
    count = math.prod(source.val.shape[axis] for axis in axes) if source.val.ndim else 1
    left = count - node.kwargs.get("correction", 1)
    if count == 0 or left <= 0:
        raise e.refuse("a variance of too few elements")
    x, dtype, places = e.names[source], variance.dtype, e.integers(*axes)
    mean = e.op("ReduceMean", x, places, keepdims=1) if source.val.ndim else x
    away = e.op("Sub", x, mean)
    squares = e.op("Mul", away, away)
    total = e.op("ReduceSum", squares, places, keepdims=0) if source.val.ndim else squares
    found = e.rounded(e.reshaped(e.op("Div", total, e.scalar(left, dtype)), variance.shape), dtype)
    return [found, e.rounded(e.reshaped(mean, node.val[1].shape), dtype)] if is_pair else found


@rule_for("any", "any.dim", "any.dims", "all", "all.dim", "all.dims")
def _quantified(e: Exporter, node: Node) -> str:
    is_any = node.target._opname == "any"
    if 0 in node.args[0].val.shape:
        return e.op("Expand", e.scalar(not is_any, torch.bool), e.integers(*node.val.shape))
    truth = e.op("Cast", e.operand(node.args[0], torch.bool), to=ONNX_DTYPES[torch.int32])
    found = _merged(e, node, "ReduceMax" if is_any else "ReduceMin", truth)
    return e.cast(e.cast(found, torch.int32, torch.bool), torch.bool, node.val.dtype)


@rule_for("_softmax", "_log_softmax")
def _softmax(e: Exporter, node: Node) -> str:
    kind = "Softmax" if node.target is aten._softmax.default else "LogSoftmax"
    source, axis = node.args[0], node.args[1]
    if not source.val.ndim:
        raise e.refuse("of a single number")
    return e.rounded(e.op(kind, e.operand(source, node.val.dtype), axis=axis % source.val.ndim), node.val.dtype)


@rule_for("cumsum")
def _cumsum(e: Exporter, node: Node) -> str:
    dtype, source = node.val.dtype, node.args[0]
    if not source.val.ndim:
        return e.operand(source, dtype)
    axis = e.array(_int64(node.args[1] % source.val.ndim))
    return e.rounded(e.op("CumSum", e.operand(source, dtype), axis), dtype)


@rule_for("mm", "bmm", "mv", "dot")
def _product(e: Exporter, node: Node) -> str:
    left, right = node.args[:2]
    if not node.val.dtype.is_floating_point:
        raise e.refuse(f"a product of {node.val.dtype}")
    return e.rounded(e.op("MatMul", e.names[left], e.names[right]), node.val.dtype)


@rule_for("addmm", "baddbmm")
def _product_and_sum(e: Exporter, node: Node) -> str:
    bias, left, right = node.args[:3]
    dtype = node.val.dtype
    alpha, beta = node.kwargs.get("alpha", 1), node.kwargs.get("beta", 1)
    if not dtype.is_floating_point:
        raise e.refuse(f"a product of {dtype}")
    product = e.op("MatMul", e.names[left], e.names[right])
    if alpha != 1:
        product = e.op("Mul", product, e.scalar(alpha, dtype))
    if beta != 0:  # otherwise not even NaN in the summand counts
        summand = e.names[bias]
        summand = e.op("Mul", summand, e.scalar(beta, dtype)) if beta != 1 else summand
        product = e.op("Add", product, summand)
    return e.rounded(product, dtype)


@rule_for("convolution")
def _convolution(e: Exporter, node: Node) -> str:
    x, weight, bias, stride, padding, dilation, transposed, output_padding, groups = node.args
    if not node.val.dtype.is_floating_point:
        raise e.refuse(f"a convolution of {node.val.dtype}")
    rank = weight.val.ndim - 2
    if x.val.ndim != rank + 2:
        raise e.refuse("a convolution without a batch")
    spread = [list(part) * (rank if len(part) == 1 else 1) for part in (stride, padding, dilation, output_padding)]
    strides, pads, dilations, more = spread
    operands = [e.names[x], e.names[weight]] + ([e.names[bias]] if bias is not None else [])
    extra = {"output_padding": more} if transposed else {}
    kind = "ConvTranspose" if transposed else "Conv"
    found = e.op(kind, *operands, strides=strides, pads=pads * 2, dilations=dilations, group=groups, **extra)
    return e.rounded(found, node.val.dtype)


def _within(e: Exporter, index: Node, extent: int) -> str:
    """Subscripts that must not be negative: those that are become the extent, which the runtime refuses."""
    name, dtype = e.names[index], index.val.dtype
    return e.op("Where", e.op("Less", name, e.scalar(0, dtype)), e.scalar(extent, dtype), name)


@rule_for("embedding")
def _embedding(e: Exporter, node: Node) -> str:
    weight, index = node.args[:2]
    return e.op("Gather", e.names[weight], _within(e, index, weight.val.shape[0]), axis=0)


@rule_for("index_select")
def _index_select(e: Exporter, node: Node) -> str:
    source, axis, index = node.args
    if not source.val.ndim or index.val.ndim != 1:
        raise e.refuse("a subscript of a single number")
    axis %= source.val.ndim
    return e.op("Gather", e.names[source], _within(e, index, source.val.shape[axis]), axis=axis)


@rule_for("gather")
def _gather(e: Exporter, node: Node) -> str:
    source, axis, index = node.args[:3]
    if not source.val.ndim or not index.val.ndim:
        raise e.refuse("a subscript of a single number")
    axis %= source.val.ndim
    return e.op("GatherElements", e.names[source], _within(e, index, source.val.shape[axis]), axis=axis)


@rule_for("scalar_tensor")
def _scalar_tensor(e: Exporter, node: Node) -> str:
    return e.rounded(e.operand(node.args[0], node.val.dtype), node.val.dtype)


def basis() -> frozenset[Any]:
    """The overloads with a rule, and those that make constants."""
    made = (aten.full.default, aten.zeros.default, aten.ones.default, aten.arange.default, aten.arange.start,
            aten.arange.start_step, aten.eye.default, aten.eye.m, aten.linspace.default)  # fmt: skip
    return frozenset({*RULES, *made})


def _item(e: Exporter, node: Node) -> Any:
    return e.names[node.args[0]][node.args[1]]


RULES[operator.getitem] = _item
