"""A loop program as TVM's compute description: one ``te.compute`` for each buffer (Section 12.3).

Lowering has decided which values exist in memory and how each element is made (Section 6); nothing after it is used. A
buffer becomes a tensor of TVM over its axes in the order of its memory, axes of one element left out; a memory that is
not dense stays one axis of storage. A sum over an axis becomes TVM's reduction, and what our back end leaves to PyTorch
as a product of matrices becomes a sum of products, for there is nothing to schedule in a library call.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import BackendError
from ..loops.body import record
from ..loops.expressions import Expr, Symbol
from ..loops.ir import (
    BufferArgument,
    ComputedBuffer,
    ExternBuffer,
    Layout,
    LoopProgram,
    OutputReference,
    Pointwise,
    Reduction,
    Template,
)
from ..loops.semantics import neutral_element
from ..operators.graph import OperatorGraph
from .smaller_basis import unsupported
from .tvm_expressions import NAMES, NotExpressible, TvmOps

aten = torch.ops.aten
MOST_ELEMENTS = 2**31 - 1  # subscripts of TVM's loops are 32-bit integers


@dataclass(frozen=True)
class Place:
    """How a buffer lies in a tensor of TVM: ``axes`` are the layout's, in the order of memory, of more than one
    element; None: the tensor is the storage, of one axis."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    axes: tuple[int, ...] | None

    @staticmethod
    def of(layout: Layout) -> Place:
        axes = sorted((k for k, n in enumerate(layout.shape) if n != 1), key=lambda k: -layout.stride[k])
        shape = tuple(layout.shape[k] for k in axes)
        dense = Layout.contiguous(shape, layout.dtype, layout.device).stride
        if layout.offset or dense != tuple(layout.stride[k] for k in axes):
            return Place((layout.storage_elements,), (1,), None)
        return Place(shape or (1,), dense or (1,), tuple(axes))

    def subscripts(self, index: Expr) -> list[Expr]:
        """The subscripts of the element at a place in storage. Exact: quotients and remainders of normal forms."""
        found = []
        for stride in self.strides[:-1]:
            found.append(index // stride)
            index = index % stride
        return [*found, index]


@dataclass(frozen=True)
class Description:
    """``function`` is a ``tirx.PrimFunc`` over the storages of ``inputs`` and then of ``made``, by buffer name; None if
    nothing has elements. ``results`` say which view of which buffer each flat result is."""

    function: Any
    inputs: tuple[str, ...]
    made: tuple[str, ...]
    places: dict[str, Place]
    dtypes: dict[str, torch.dtype]
    results: tuple[OutputReference, ...]


def describe(program: LoopProgram, operators: OperatorGraph | None = None) -> Description:
    """Translate a program. BackendError, with the user's line where ``operators`` tells it, for a scan, a scatter, a
    checked subscript, or an operator that only PyTorch has. O(statements of the bodies)."""
    return _Translation(program, operators).description()


@dataclass
class _Translation:
    program: LoopProgram
    operators: OperatorGraph | None
    tensors: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Place] = field(default_factory=dict)

    def description(self) -> Description:
        from tvm import te

        program = self.program
        buffers = (*program.inputs, *program.buffers)
        dtypes = {buffer.name: buffer.layout.dtype for buffer in buffers}
        for buffer in program.inputs:
            if buffer.layout.storage_elements:
                place = self._place(buffer)
                name = NAMES.get(buffer.layout.dtype)
                if name is None:
                    raise BackendError(f"TVM is not given input {buffer.name}: {buffer.layout.dtype} is unknown there")
                self.tensors[buffer.name] = te.placeholder(place.shape, name, name=buffer.name)
        for buffer in program.buffers:
            if buffer.layout.storage_elements:
                try:
                    self._translate(buffer, dtypes)
                except NotExpressible as error:
                    raise self._refused(buffer, str(error)) from error
        inputs = tuple(b.name for b in program.inputs if b.name in self.tensors)
        made = tuple(dict.fromkeys(
            out.name for out in program.outputs if out.name in self.tensors and out.name not in inputs))  # fmt: skip
        function = te.create_prim_func([self.tensors[name] for name in (*inputs, *made)]) if made else None
        if function is not None:
            function = function.with_attr("global_symbol", "main")
        return Description(function, inputs, made, self.places, dtypes, program.outputs)

    def _place(self, buffer: Any) -> Place:
        if buffer.layout.storage_elements > MOST_ELEMENTS:
            raise self._refused(buffer, "it has more elements than a 32-bit subscript reaches")
        self.places[buffer.name] = place = Place.of(buffer.layout)
        return place

    def _translate(self, buffer: ComputedBuffer | ExternBuffer, dtypes: dict[str, torch.dtype]) -> None:
        place = self._place(buffer)
        if buffer.layout.dtype not in NAMES:
            raise NotExpressible(f"{buffer.layout.dtype} is unknown there")
        if place.axes is None:
            raise NotExpressible(f"its memory is not dense ({buffer.layout})")
        if isinstance(buffer, ExternBuffer):
            self._product(buffer, place)
            return
        data = buffer.data
        if not isinstance(data, (Pointwise, Reduction, Template)):
            raise NotExpressible(f"a {type(data).__name__.lower()} has an order that a compute description lacks")
        body = record(buffer, dtypes)
        if isinstance(data, Pointwise):
            self._stored(buffer, place, lambda index: self._value(body, body.indices, index))
            return
        ranges = data.reduction_ranges if isinstance(data, Reduction) else (data.depth,)
        kind = data.kind if isinstance(data, Reduction) else "sum"

        def element(index: list[Any], merged: list[Any]) -> Any:
            return self._value(body, body.symbols, [*index, *merged])

        total = self._merged(buffer.name, place, buffer.layout.shape, ranges, kind, data.accumulate_dtype, element)
        if isinstance(data, Template):
            epilogue = body.epilogue
            self._stored(buffer, place, lambda index: self._value(epilogue, epilogue.indices, index, total(index)))
        else:
            self._stored(buffer, place, total, total if data.accumulate_dtype == data.dtype else None)

    def _value(self, body: Any, symbols: tuple[Symbol, ...], values: list[Any], merged: Any = None) -> Any:
        return body.replay(self._ops(symbols, values), merged)

    def _ops(self, symbols: tuple[Symbol, ...], values: list[Any]) -> TvmOps:
        return TvmOps(self._read, {s.name: value for s, value in zip(symbols, values, strict=True)})

    def _read(self, buffer: str, subscript: Callable[[Expr], Any], index: Expr) -> Any:
        return self.tensors[buffer](*map(subscript, self.places[buffer].subscripts(index)))

    # -- tensors of TVM -----------------------------------------------------------------------------------------------

    def _stored(self, buffer: Any, place: Place, value: Callable[[list[Any]], Any], as_it_is: Any = None) -> None:
        """The tensor of a buffer: its elements in the dtype of memory. ``as_it_is``: a stage that has them already."""
        from tvm import te

        if as_it_is is not None:
            self.tensors[buffer.name] = as_it_is.tensor
            return
        dtype, rank = buffer.layout.dtype, len(buffer.layout.shape)
        compute = lambda *axes: value(_logical(place, axes, rank)).astype(NAMES[dtype])  # noqa: E731
        self.tensors[buffer.name] = te.compute(place.shape, compute, name=buffer.name)

    def _merged(
        self,
        name: str,
        place: Place,
        shape: tuple[int, ...],
        ranges: tuple[int, ...],
        kind: str,
        dtype: torch.dtype,
        element: Callable[[list[Any], list[Any]], Any],
    ) -> _Stage:
        """A stage that merges ``element`` over ``ranges``."""
        from tvm import te, tirx

        rank = len(shape)
        if kind in ("argmax", "argmin"):
            raise NotExpressible(f"{kind} merges pairs, and the first of equal elements wins")
        neutral = tirx.const(neutral_element(kind, dtype), NAMES[dtype])
        if 0 in ranges:
            return _Stage(te.compute(place.shape, lambda *axes: neutral, name=f"{name}_empty"), place)
        reads = [te.reduce_axis((0, extent), name=f"r{k}") for k, extent in enumerate(ranges)]
        ops = TvmOps(self._read, {})
        operation = {"sum": "add", "prod": "mul", "amax": "maximum", "amin": "minimum", "any": "logical_or",
                     "all": "logical_and"}[kind]  # fmt: skip
        merge = te.comm_reducer(lambda a, b: ops.apply(operation, a, b), lambda _: neutral, name=kind)
        if kind == "sum":
            merge = te.sum

        def compute(*axes: Any) -> Any:
            value = element(_logical(place, axes, rank), reads)
            return merge(value, axis=reads) if reads else value

        return _Stage(te.compute(place.shape, compute, name=f"{name}_total" if reads else name), place)

    def _product(self, buffer: ExternBuffer, place: Place) -> None:
        """A product of matrices, as sums of products."""
        operator, args, kwargs = buffer.data.operator, list(buffer.data.args), buffer.data.kwargs
        bias = args.pop(0) if operator in (aten.addmm.default, aten.baddbmm.default) else None
        known = (aten.mm.default, aten.bmm.default, aten.mv.default, aten.dot.default)
        if bias is None and operator not in known:
            raise NotExpressible(buffer.data.cause or f"{operator} is a routine of PyTorch's")
        left, right = args[:2]
        dtype = buffer.layout.dtype
        if not dtype.is_floating_point:
            raise NotExpressible(f"a product of {dtype}")
        accumulated = torch.float64 if dtype == torch.float64 else torch.float32
        batch = buffer.layout.shape[: len(left.layout.shape) - 2] if len(left.layout.shape) == 3 else ()

        def element(index: list[Any], merged: list[Any]) -> Any:
            rows = index[len(batch) : len(batch) + len(left.layout.shape) - len(batch) - 1]
            columns = index[len(batch) + len(rows) :]
            first = self._element(left, [*index[: len(batch)], *rows, *merged])
            return self._ops((), []).apply(
                "mul", first, self._element(right, [*index[: len(batch)], *merged, *columns])
            )

        shape, depth = buffer.layout.shape, (left.layout.shape[-1],)
        total = self._merged(buffer.name, place, shape, depth, "sum", accumulated, element)
        if bias is None:
            self._stored(buffer, place, total, total if dtype == accumulated else None)
            return
        alpha, beta = kwargs.get("alpha", 1), kwargs.get("beta", 1)

        def value(index: list[Any]) -> Any:
            ops = self._ops((), [])
            found = total(index)
            if alpha != 1:
                found = ops.mul(found, ops.constant(alpha, accumulated))
            if beta == 0:  # not even NaN in the summand counts
                return found
            trailing = index[len(index) - len(bias.layout.shape) :]
            summand = self._element(
                bias, [0 if n == 1 else i for i, n in zip(trailing, bias.layout.shape, strict=True)]
            )
            summand = summand if beta == 1 else ops.mul(summand, ops.constant(beta, accumulated))
            return ops.add(found, summand)

        self._stored(buffer, place, value)

    def _element(self, argument: BufferArgument, index: list[Any]) -> Any:
        symbols = tuple(Symbol(f"at{k}", 0, max(n - 1, 0)) for k, n in enumerate(argument.layout.shape))
        return self._ops(symbols, index).load(argument.name, argument.layout.address(symbols))

    def _refused(self, buffer: Any, why: str) -> BackendError:
        nodes = self.operators.graph.calls if self.operators else ()
        for node in reversed(nodes):
            if buffer.origins & node.origins:
                return unsupported(node, "TVM", why)
        where = getattr(buffer.data, "location", None) if hasattr(buffer, "data") else None
        return BackendError(f"TVM is not given {buffer.name}: {why}", where=where)


@dataclass(frozen=True)
class _Stage:
    """A tensor of TVM, called with logical subscripts."""

    tensor: Any
    place: Place

    def __call__(self, index: list[Any]) -> Any:
        axes = self.place.axes
        return self.tensor(*([index[k] for k in axes] if axes else [0]))


def _logical(place: Place, axes: tuple[Any, ...], rank: int) -> list[Any]:
    """Subscripts of the layout from those of the tensor."""
    index: list[Any] = [0] * rank
    for axis, variable in zip(place.axes or (), axes, strict=False):
        index[axis] = variable
    return index


def elements(shape: tuple[int, ...]) -> int:
    return math.prod(shape)
