"""Products of matrices and vectors: loops of our own where they are small, the library's routine elsewhere (Table 6.1).

A library's matrix product is the result of decades, and for large matrices nothing generated here comes near it: it
multiplies and adds in one instruction and one rounding, which is twice as fast. But it costs about a microsecond to
call, which is what a product of 32 x 32 matrices takes, and it keeps a region from running without the interpreter. So
small products become :class:`~staxlab.loops.ir.Template` nodes, whose operands take in what made them (a relu before a
product costs no memory) and whose epilogue holds a bias, and larger ones stay library calls
(:mod:`~staxlab.loops.product_limits`). On a GPU :mod:`.product_choice` decides, and a product
whose summed dimension is very long is cut into segments there (split-K).

Not everything called a product is one: ``addr`` is pointwise, a product of two vectors or of a matrix and a vector is a
:class:`~staxlab.loops.ir.Reduction`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from ...capture.graph import Node, TensorMeta
from ...options import Decision, DeviceSpec, Options
from .. import product_limits
from ..layout import IndexMap, broadcast, numel
from ..ops import OPERATIONS, Ops, compute_dtype
from ..product_limits import dimensions, refusal
from .call import Call
from .product_choice import DEEP, choose, form_of, segments
from .registry import Decline, lowering
from .values import Number, TensorValue


def refusal_on_gpu(node: Node, device: DeviceSpec, options: Options) -> str | None:
    """Why a product is the library's business on a GPU (:mod:`.product_choice`); None if it is not."""
    if not isinstance(node.val, TensorMeta):
        return "products of other things than tensors"
    if node.target._opname in _OF_VECTORS:
        if not node.val.dtype.is_floating_point:
            return "no vendor's product of vectors takes integers, and eager execution says so"
        return None if options.matmul.startswith("template") else "products with a vector on a GPU"
    decision = choose(node, dimensions(node), device, options)
    return f"products on a GPU like this one: {decision.reason}" if decision.choice == "library" else None


def library_decision(node: Node, device: DeviceSpec, options: Options) -> Decision | None:
    """Why the library computes a product or a convolution on a GPU, with the arithmetic; None for other operators."""
    name = getattr(node.target, "_opname", "")
    if not device.is_gpu or not isinstance(node.val, TensorMeta):
        return None
    if "convolution" in name and "backward" not in name:
        reason = "a convolution has no template: the library picks among algorithms that no product of matrices is"
        return Decision("convolution", node.name, "library", reason, ("library",))
    if name in _OF_MATRICES:
        decision = choose(node, dimensions(node), device, options)
        return decision if decision.choice == "library" else None
    return None


_OF_MATRICES = ("mm", "bmm", "addmm", "baddbmm", "addbmm")
_OF_VECTORS = ("mv", "dot", "vdot", "addmv")


def _chosen(call: Call, form: str) -> None:
    """Write down why loops of our own were chosen."""
    if call.lowering.device.is_gpu:
        reason = "the option matmul asks for kernels of our own"
        call.lowering.decisions.append(Decision("lower", call.node.name, form, reason, (form, "extern")))
        return
    batch, rows, columns, depth = dimensions(call.node)
    count, dtype = batch * rows * columns * depth, call.meta.dtype
    limit = (product_limits.LIMITS if form == "template" else product_limits.VECTOR_LIMITS)[dtype]
    reason = f"{count:,} multiplications, less than {limit:,}: calling the library takes longer than its loops save"
    inputs = (("batch", batch), ("rows", rows), ("columns", columns), ("depth", depth), ("limit", limit))
    call.lowering.decisions.append(Decision("lower", call.node.name, form, reason, (form, "extern"), inputs))


def _scaled(ops: Ops, value: Any, factor: Number, dtype: torch.dtype) -> Any:
    return value if factor == 1 else ops.mul(ops.constant(factor, dtype), value)


def _added(beta: Number, alpha: Number, dtype: torch.dtype) -> Callable[..., Any]:
    """The epilogue ``beta * addend + alpha * total``. With beta 0 the addend is not looked at: NaN in it vanish."""

    def epilogue(ops: Ops, total: Any, *addend: Any) -> Any:
        total = _scaled(ops, total, alpha, dtype)
        return ops.add(_scaled(ops, addend[0], beta, dtype), total) if addend else total

    return epilogue


def _product(
    call: Call, left: TensorValue, right: TensorValue, addend: TensorValue | None, beta: Number, alpha: Number
) -> TensorValue:
    """``beta * addend + alpha * (left @ right)`` of matrices (or batches of them) that broadcasting has made fit."""
    dtype, shape = call.meta.dtype, call.meta.shape
    wide = compute_dtype(dtype)
    if alpha == 0:
        raise Decline("a factor of 0, with which some libraries do not look at the operands")
    extra = () if addend is None or beta == 0 else (addend,)
    if numel(shape) == 0 or left.shape[-1] == 0:  # nothing is summed
        if not extra or numel(shape) == 0:
            return call.full(0, shape, dtype)
        return call.pointwise(lambda ops, a: _scaled(ops, a, beta, wide), addend, operand_dtype=dtype)
    if not call.lowering.device.is_gpu:
        _chosen(call, "template")
        return call.template(left, right, _added(beta, alpha, wide), extra, accumulate_dtype=wide)
    device = call.lowering.device
    decision = choose(call.node, dimensions(call.node), device, call.lowering.options)
    form = form_of(decision, dtype)
    _keep_costly(call, left, right)
    count, length = segments(*shape[-2:], left.shape[-1], device) if len(shape) == 2 else (1, 0)
    if count == 1:
        call.lowering.decisions.append(decision)
        return call.template(left, right, _added(beta, alpha, wide), extra, accumulate_dtype=wide, form=form)
    call.lowering.decisions += [decision, _split(call, count, length, left.shape[-1])]
    partial = call.partial_products(left, right, count, length, dtype=wide, form=replace(form, template="tiled"))
    total = call.reduction("sum", partial, [0], dtype=wide, accumulate_dtype=wide)
    added = [call.pointwise(lambda ops, b: b, a, operand_dtype=wide, dtype=wide) for a in extra]
    epilogue = _added(beta, alpha, wide)
    return call.pointwise(lambda ops, t, *b: epilogue(ops, t, *b), total, *added, operand_dtype=wide, dtype=dtype)


def _keep_costly(call: Call, *operands: TensorValue) -> None:
    """Give an operand memory whose elements are costly to make: a tile makes them for itself, so each is made as often
    as there are tiles along the other side of the result."""
    for operand in operands:
        if operand.box.is_stored:
            continue
        named = call.lowering._cost(operand.box).functions
        costly = sorted(function for function in named if OPERATIONS[function].transcendental)
        if costly:
            call.lowering.realize(operand.box, f"{' and '.join(costly)} would be computed again for every tile")


def _split(call: Call, count: int, length: int, depth: int) -> Decision:
    reason = (
        f"{depth:,} is {DEEP} times the longer side of the result or more: {count} segments of {length} are multiplied "
        "side by side, each into memory of its own, and added in order"
    )
    return Decision("split-k", call.node.name, count, reason, (), (("depth", depth), ("length", length)))


@lowering("mm bmm", kind="template", refuses=refusal)
def lower_mm(call: Call, x: TensorValue, y: TensorValue) -> TensorValue:
    return _product(call, x, y, None, 1, 1)


@lowering("addmm baddbmm", kind="template", refuses=refusal)
def lower_addmm(
    call: Call, a: TensorValue, x: TensorValue, y: TensorValue, *, beta: Number = 1, alpha: Number = 1
) -> TensorValue:
    return _product(call, x, y, a, beta, alpha)


@lowering("addbmm", kind="template", refuses=refusal)
def lower_addbmm(
    call: Call, a: TensorValue, x: TensorValue, y: TensorValue, *, beta: Number = 1, alpha: Number = 1
) -> TensorValue:
    """The batch is part of what is summed: the factors side by side, and one below the other."""
    batch, rows, depth = x.shape
    columns = y.shape[2]
    step = max(depth, 1)
    wide = IndexMap((rows, batch * depth), lambda i: (i[1] // step, i[0], i[1] % step), name="side by side")
    tall = IndexMap((batch * depth, columns), lambda i: (i[0] // step, i[0] % step, i[1]), name="stacked")
    return _product(call, x.seen(wide), y.seen(tall), a, beta, alpha)


# -- Vectors -----------------------------------------------------------------------------------------------------------


def _sum_of_products(call: Call, x: TensorValue, y: TensorValue, dtype: torch.dtype) -> TensorValue:
    """The products of two tensors, ``y`` broadcast to ``x``, summed over the last dimension."""
    _chosen(call, "reduction")
    wide = compute_dtype(dtype)

    def element(ops: Ops, a: Any, b: Any) -> Any:
        return ops.mul(a, b)

    return call.reduction("sum", x, [x.ndim - 1], dtype=dtype, accumulate_dtype=wide, function=element, extra=(y,))


@lowering("mv dot vdot", kind="template", refuses=refusal)
def lower_mv(call: Call, x: TensorValue, y: TensorValue) -> TensorValue:
    return _sum_of_products(call, x, y, call.meta.dtype)


@lowering("addmv", kind="template", refuses=refusal)
def lower_addmv(
    call: Call, a: TensorValue, x: TensorValue, y: TensorValue, *, beta: Number = 1, alpha: Number = 1
) -> TensorValue:
    if alpha == 0:
        raise Decline("a factor of 0, with which some libraries do not look at the operands")
    dtype = call.meta.dtype
    wide = compute_dtype(dtype)
    total = _sum_of_products(call, x, y, wide)
    epilogue = _added(beta, alpha, wide)
    if beta == 0:
        return call.pointwise(epilogue, total, operand_dtype=wide, dtype=dtype)
    added = call.pointwise(lambda ops, b: b, a, operand_dtype=wide, dtype=wide)
    return call.pointwise(lambda ops, b, t: epilogue(ops, t, b), added, total, operand_dtype=wide, dtype=dtype)


@lowering("addr")
def lower_addr(
    call: Call, a: TensorValue, x: TensorValue, y: TensorValue, *, beta: Number = 1, alpha: Number = 1
) -> TensorValue:
    """``beta * a + alpha * x * y`` for every pair of elements of two vectors: no sum, hence pointwise."""
    shape, dtype = call.meta.shape, call.meta.dtype
    if dtype == torch.bool:
        raise Decline("addr of bool")
    column = x.seen(IndexMap(shape, lambda i: (i[0],), name="column"))
    row = y.seen(broadcast(y.shape, shape))
    wide = compute_dtype(dtype)

    def function(ops: Ops, u: Any, v: Any, *addend: Any) -> Any:
        product = ops.mul(_scaled(ops, u, alpha, wide), v)
        return ops.add(_scaled(ops, addend[0], beta, wide), product) if addend else product

    addend = () if beta == 0 else (a,)
    return call.pointwise(function, column, row, *addend, operand_dtype=dtype)
