"""What a lowering rule works with: one operator call, and the ways to make a value from others (Section 6.2).

* :meth:`Call.pointwise` composes a scalar function with the loaders of its operands (Property 6.1: elementwise fusion
  is function composition; Listing 6.1),
* :meth:`Call.reduction` merges elements along dimensions (Definition 6.1), :meth:`Call.scan` keeps all prefixes,
* :meth:`Call.scatter` sends elements to subscripts read from data,
* :meth:`Call.template` multiplies matrices,
* :meth:`Call.view` looks at a value through a change of subscript (Proposition 6.2).

None of them computes or allocates. Broadcasting and type promotion happen here, once for all rules.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from ...capture.graph import Node, TensorMeta
from ...operators.structure import flatten
from ...provenance import Origins, unite
from ..expressions import ZERO, Expr
from ..ir import Index, Pointwise, ProductForm, Reduction, Scan, Scatter, Template
from ..layout import IndexMap, broadcast, is_injective, numel
from ..ops import Ops, compute_dtype
from .registry import RULES
from .values import HALF, Box, Number, TensorValue, convert, promote, result_type

if TYPE_CHECKING:
    from .graph import GraphLowering

Loader = Callable[[Ops, Index], Any]


class Call:
    """One operator node being lowered.

    ``node`` is the operator node, ``origins`` what everything made here stems from, ``val`` the recorded metadata of
    the result: shapes, strides and dtypes are known, a rule never has to work out what eager execution would return.
    """

    def __init__(self, lowering: GraphLowering, node: Node):
        self.lowering = lowering
        self.node = node
        self.origins: Origins = node.origins

    @property
    def val(self) -> Any:
        return self.node.val

    @property
    def meta(self) -> TensorMeta:
        """Metadata of the result, of the first that there is: a backward operator makes only those asked for."""
        if isinstance(self.val, TensorMeta):
            return self.val
        return next(meta for meta in self.val if meta is not None)

    @property
    def device(self) -> str:
        return str(self.meta.device)

    @property
    def fuses_rows(self) -> bool:
        """Whether loops that share rows will share a kernel that keeps a row in the cache: on a CPU, unless switched
        off."""
        return self.lowering.options.fuse and not self.lowering.device.is_gpu

    def is_used(self, position: int) -> bool:
        """Whether anybody reads result ``position`` of an operator with several."""
        return any(user.op == "output" or user.args[1:2] == (position,) for user in self.node.users)

    # -- pointwise ----------------------------------------------------------------------------------------------------

    def pointwise(
        self,
        function: Callable[..., Any],
        *operands: TensorValue | Number,
        shape: Sequence[int] | None = None,
        dtype: torch.dtype | None = None,
        operand_dtype: torch.dtype | None = None,
    ) -> TensorValue:
        """A value whose elements are ``function(ops, *elements)`` of the broadcast operands.

        ``operand_dtype`` is what every operand is converted to first (default: what they promote to; half precision
        stays float32). ``dtype`` is the result's (default: the recorded one of the first result), ``shape`` likewise.
        """
        shape = self.meta.shape if shape is None else tuple(shape)
        dtype = dtype or self.meta.dtype
        operand_dtype = operand_dtype or result_type(*operands)
        loaders = [self.loader(operand, shape, operand_dtype) for operand in operands]

        def compute(ops: Ops, index: Index) -> Any:
            ops = ops.tagged(self.origins)
            return convert(ops, function(ops, *[load(ops, index) for load in loaders]), dtype)

        return self.computed(compute, shape, dtype, operands)

    def computed(
        self,
        compute: Callable[[Ops, Index], Any],
        shape: Sequence[int],
        dtype: torch.dtype,
        operands: Sequence[Any] = (),
    ) -> TensorValue:
        """A value given by its compute function, which must tag what it makes and yield ``compute_dtype(dtype)``.
        ``operands`` are the values it reads, for provenance and nesting depth."""
        shape = tuple(shape)
        box = Box(shape, dtype, self.device, None)

        def made(ops: Ops, index: Index) -> Any:
            return compute(ops.made_by(self.node), index)

        box.data = Pointwise(shape, dtype, made, self._origins(operands))
        inlined = [o.box.depth for o in operands if isinstance(o, TensorValue) and not o.box.is_stored]
        box.depth = 1 + max(inlined, default=0)
        return TensorValue(box)

    def loader(self, operand: TensorValue | Number, shape: Sequence[int], dtype: torch.dtype) -> Loader:
        """``load(ops, index)`` of an operand broadcast to ``shape`` and promoted to ``dtype``."""
        if not isinstance(operand, TensorValue):
            return lambda ops, index: ops.constant(operand, compute_dtype(dtype))
        seen = operand if operand.shape == tuple(shape) else operand.seen(broadcast(operand.shape, shape))
        source = operand.dtype
        if compute_dtype(source) == compute_dtype(dtype):
            return seen.load
        return lambda ops, index: promote(ops, seen.load(ops, index), source, dtype)

    def rounded(self, *operands: TensorValue | Number) -> list[TensorValue | Number]:
        """The operands as eager execution sees them, rounded to half precision where that is their dtype.

        Arithmetic on half precision stays in float32 until a value is stored (Section 6.2). Functions that jump cannot
        be given what eager execution would have rounded away: ``y == y.amax()`` must find its maximum, 2.9999 must
        truncate to 3 where it is 3 in bfloat16. They ask for their operands through this method.
        """
        common = result_type(*operands)
        result: list[TensorValue | Number] = []
        for operand in operands:
            if not isinstance(operand, TensorValue):
                half = common in HALF and not isinstance(operand, bool)
                operand = torch.tensor(operand, dtype=common).item() if half else operand
            elif operand.dtype in HALF and not operand.box.is_stored:
                operand = self._rounding(operand)
            result.append(operand)
        return result

    def _rounding(self, operand: TensorValue) -> TensorValue:
        def compute(ops: Ops, index: Index) -> Any:
            return ops.tagged(self.origins).to_dtype(operand.load(ops, index), operand.dtype)

        return self.computed(compute, operand.shape, operand.dtype, (operand,))

    def _origins(self, operands: Sequence[Any]) -> Origins:
        parts = [self.origins]
        for operand in operands:
            if isinstance(operand, TensorValue):
                parts.append(operand.origins)
                parts.append(operand.box.origins if operand.box.is_stored else operand.box.data.origins)
        return unite(parts)

    # -- reductions ---------------------------------------------------------------------------------------------------

    def reduction(
        self,
        kind: str,
        operand: TensorValue,
        dimensions: Sequence[int],
        *,
        keepdim: bool = False,
        dtype: torch.dtype | None = None,
        accumulate_dtype: torch.dtype | None = None,
        function: Callable[[Ops, Any], Any] | None = None,
        extra: Sequence[TensorValue] = (),
    ) -> TensorValue:
        """Merge ``function(ops, element)`` (default: the element) over ``dimensions`` with the monoid ``kind``.

        ``accumulate_dtype`` defaults to the compute dtype of ``dtype``, which defaults to the recorded result's. With
        ``extra``, values that broadcast against the operand, ``function`` gets their elements too. An empty range gives
        the neutral element, a range of one element gives that element; neither makes a reduction node.
        """
        shape = operand.shape
        reduced = sorted({d % max(len(shape), 1) for d in dimensions}) if shape else []
        dtype = dtype or self.meta.dtype
        accumulate_dtype = compute_dtype(accumulate_dtype or dtype)
        kept = [d for d in range(len(shape)) if d not in reduced]
        ranges = tuple(shape[d] for d in kept)
        if keepdim:
            ranges = tuple(1 if d in reduced else extent for d, extent in enumerate(shape))
        extents = tuple(shape[d] for d in reduced)
        loaders = [operand.load] + [(e if e.shape == shape else e.seen(broadcast(e.shape, shape))).load for e in extra]
        position_wanted = kind in ("argmax", "argmin")

        def element(ops: Ops, index: Index, inner: Index) -> Any:
            ops = ops.made_by(self.node).tagged(self.origins)
            place = dict(zip(reduced, inner, strict=True))
            outer = iter(index if not keepdim else [index[d] for d in kept])
            full = tuple(place[d] if d in place else next(outer) for d in range(len(shape)))
            values = [load(ops, full) for load in loaders]
            value = function(ops, *values) if function else values[0]
            return value if position_wanted else convert(ops, value, accumulate_dtype)

        operands = (operand, *extra)
        if numel(extents) == 0 and not position_wanted:
            return self.full(_NEUTRAL[kind], ranges, dtype)
        if numel(extents) == 1:
            inner = tuple(ZERO for _ in extents)

            def single(ops: Ops, index: Index) -> Any:
                if position_wanted:
                    return ops.tagged(self.origins).constant(0, dtype)
                return convert(ops.tagged(self.origins), element(ops, index, inner), dtype)

            return self.computed(single, ranges, dtype, operands)
        box = Box(ranges, dtype, self.device, None)
        merged = operand.compute_dtype if position_wanted else accumulate_dtype
        box.data = Reduction(ranges, extents, kind, dtype, merged, element, self._origins(operands))
        self.lowering.pending.append((box, f"a {kind} reduction"))
        return TensorValue(box)

    # -- products -----------------------------------------------------------------------------------------------------

    def template(
        self,
        left: TensorValue,
        right: TensorValue,
        epilogue: Callable[..., Any],
        extra: Sequence[TensorValue] = (),
        *,
        accumulate_dtype: torch.dtype,
        form: ProductForm | None = None,
    ) -> TensorValue:
        """The product of matrices ``left`` (``(*batch, rows, depth)``) and ``right`` (``(*batch, depth, columns)``),
        neither empty, laid out on a GPU as ``form`` has it. Elements are converted to ``accumulate_dtype`` before they
        are multiplied; ``epilogue(ops, total, *elements)`` makes what is stored of a sum of products and of the
        elements of ``extra``, values that broadcast against the result and are converted likewise.
        """
        shape, dtype = (*left.shape[:-1], right.shape[-1]), self.meta.dtype
        first = self.loader(left, left.shape, accumulate_dtype)
        second = self.loader(right, right.shape, accumulate_dtype)
        others = [self.loader(value, shape, accumulate_dtype) for value in extra]

        def operand(load: Loader) -> Loader:
            return lambda ops, index: load(ops.made_by(self.node).tagged(self.origins), index)

        def finish(ops: Ops, index: Index, total: Any) -> Any:
            ops = ops.made_by(self.node).tagged(self.origins)
            return convert(ops, epilogue(ops, total, *[load(ops, index) for load in others]), dtype)

        box = Box(shape, dtype, self.device, None)
        origins = self._origins((left, right, *extra))
        box.data = Template(
            shape, left.shape[-1], dtype, accumulate_dtype, operand(first), operand(second), finish, origins, form,
            self.origins,
        )  # fmt: skip
        self.lowering.pending.append((box, "a product of matrices"))
        return TensorValue(box)

    def partial_products(
        self, left: TensorValue, right: TensorValue, count: int, length: int, *, dtype: torch.dtype, form: ProductForm
    ) -> TensorValue:
        """The products of two matrices over each of ``count`` segments of the summed dimension, of ``length`` elements
        (the last of fewer): ``(count, rows, columns)`` of ``dtype``, in memory (split-K, Section 9.8)."""
        depth = left.shape[1]
        loads = [self.loader(value, value.shape, dtype) for value in (left, right)]

        def operand(load: Loader, place: Callable[[Index, Expr], Index], summed: int) -> Loader:
            def element(ops: Ops, index: Index) -> Any:
                ops = ops.made_by(self.node).tagged(self.origins)
                k = index[0] * length + index[summed]
                if count * length == depth:
                    return load(ops, place(index, k))
                inside = ops.lt(ops.index_value(k, torch.int64), ops.constant(depth, torch.int64))
                return ops.masked(inside, lambda inner: load(inner, place(index, k)), 0)

            return element

        box = Box((count, left.shape[0], right.shape[1]), dtype, self.device, None)
        box.data = Template(
            box.shape, length, dtype, dtype,
            operand(loads[0], lambda index, k: (index[1], k), 2),
            operand(loads[1], lambda index, k: (k, index[2]), 1),
            lambda ops, index, total: total, self._origins((left, right)), form, self.origins,
        )  # fmt: skip
        self.lowering.realize(box, f"the partial products of {count} segments")
        return TensorValue(box)

    # -- scans and scatters -------------------------------------------------------------------------------------------

    def scan(
        self,
        kind: str,
        operand: TensorValue,
        dimension: int,
        *,
        dtype: torch.dtype | None = None,
        accumulate_dtype: torch.dtype | None = None,
    ) -> TensorValue:
        """All prefixes of ``operand`` along ``dimension``, merged by ``kind`` (one of :data:`~..ir.SCANS`).

        ``dtype`` is the result's (default: the recorded one), ``accumulate_dtype`` what elements are converted to
        before they are merged (default: the compute dtype of ``dtype``). For argmax and argmin elements are compared
        as they are and positions come out.
        """
        shape, axis = operand.shape, dimension % max(operand.ndim, 1)
        dtype = dtype or self.meta.dtype
        positions = kind in ("argmax", "argmin")
        merged = operand.compute_dtype if positions else compute_dtype(accumulate_dtype or dtype)

        def element(ops: Ops, index: Index) -> Any:
            ops = ops.made_by(self.node).tagged(self.origins)
            return convert(ops, operand.load(ops, index), merged)

        if not shape or shape[axis] == 1 or numel(shape) == 0:  # the first prefix is the element itself

            def first(ops: Ops, index: Index) -> Any:
                ops = ops.tagged(self.origins)
                return ops.constant(0, dtype) if positions else convert(ops, element(ops, index), dtype)

            return self.computed(first, shape, dtype, (operand,))
        box = Box(shape, dtype, self.device, None)
        box.data = Scan(shape, axis, kind, dtype, merged, element, self._origins((operand,)))
        self.lowering.pending.append((box, f"a {kind} scan"))
        return TensorValue(box)

    def scatter(
        self,
        kind: str,
        base: TensorValue,
        ranges: Sequence[int],
        compute: Callable[[Ops, Index], tuple[Index, Any]],
        operands: Sequence[Any] = (),
    ) -> TensorValue:
        """A copy of ``base`` with the elements of the box ``ranges`` combined into it by ``kind`` (one of
        :data:`~..ir.SCATTERS`). ``compute(ops, index)`` yields the subscript in the result and the element, of the
        compute dtype of ``base``; ``operands`` are the values it reads, for provenance. There is no copy where ``base``
        is another scatter's result that nobody else reads."""
        shape, dtype = base.shape, base.dtype
        if numel(ranges) == 0 or numel(shape) == 0:
            return self.pointwise(lambda ops, x: x, base, shape=shape, dtype=dtype)

        def tagged(ops: Ops, index: Index) -> tuple[Index, Any]:
            ops = ops.made_by(self.node).tagged(self.origins)
            position, value = compute(ops, index)
            return position, convert(ops, value, dtype)

        memory = base.box if self._takes_over(base) else self._copied(base)
        self.lowering.realize(memory, "the memory that a scatter writes to")
        box = Box(shape, dtype, self.device, None)
        box.stride = memory.layout.stride
        origins = self._origins((base, *operands))
        box.data = Scatter(tuple(ranges), memory.name, kind, dtype, tagged, origins)
        self.lowering.pending.append((box, f"a scatter by {kind}"))
        return TensorValue(box)

    def _copied(self, base: TensorValue) -> Box:
        """A box of its own with the contents of ``base``, in eager's layout where that is known."""
        copy = self.pointwise(lambda ops, x: x, base, shape=base.shape, dtype=base.dtype).box
        if base.shape == self.meta.shape and is_injective(base.shape, self.meta.stride):
            copy.stride = self.meta.stride
        return copy

    def _takes_over(self, base: TensorValue) -> bool:
        """Whether ``base`` is what another scatter made and nobody else reads: then this one may go on in its memory.
        The other may belong to the same rule (it has no memory yet), or to the operator whose only user this one is."""
        box, source = base.box, self.node.args[0]
        if base.view is not None or not isinstance(box.data, Scatter):
            return False
        if not box.is_stored:
            return True
        if not isinstance(source, Node) or self.lowering.values.get(source) is not base:
            return False
        rule = RULES.get(source.target)
        reads = sum(leaf is source for leaf in flatten((self.node.args, self.node.kwargs)))
        alone = list(source.users) == [self.node] and reads == 1
        made_there = rule is not None and rule.kind == "scatter"
        return made_there and alone and box.layout.stride == self.meta.stride

    # -- views and memory ---------------------------------------------------------------------------------------------

    def stored(self, value: TensorValue, reason: str) -> TensorValue:
        """Keep a small value that many loops read in memory, once this rule is done."""
        if not value.box.is_stored and value.view is None:
            self.lowering.pending.append((value.box, reason))
        return value

    # -- views and constants ------------------------------------------------------------------------------------------

    def view(self, operand: TensorValue, view: IndexMap) -> TensorValue:
        """``operand`` through a change of subscript, which costs nothing until an element is read."""
        return operand.seen(view, self.origins, self.node)

    def full(self, value: Number, shape: Sequence[int], dtype: torch.dtype) -> TensorValue:
        """The same number everywhere."""

        def compute(ops: Ops, index: Index) -> Any:
            return ops.tagged(self.origins).constant(value, compute_dtype(dtype))

        return self.computed(compute, shape, dtype)

    def position(self, expression: Callable[[Index], Expr], shape: Sequence[int], dtype: torch.dtype) -> TensorValue:
        """A value computed from the subscript alone."""

        def compute(ops: Ops, index: Index) -> Any:
            return ops.tagged(self.origins).index_value(Expr.of(expression(index)), compute_dtype(dtype))

        return self.computed(compute, shape, dtype)


_NEUTRAL: dict[str, Number] = {"sum": 0, "prod": 1, "any": False, "all": True}
