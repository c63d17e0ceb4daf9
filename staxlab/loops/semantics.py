"""The reference semantics of the loop IR (Section 6.9): what a loop program means, computed directly.

:func:`evaluate` is the denotation of a program: every buffer's compute function is interpreted over its whole box of
subscripts, and a reduction folds its elements in lexicographic order, the one order the semantics prescribes. Nothing
is scheduled, vectorised or reordered, so this is the yardstick for what code generation does: transformations of the
first class (inlining, realization, merging of equal statements) must match it bit for bit, those of the second class
(splitting and reordering sums) within the error bound of Section 6.5.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch

from ..errors import LoweringError
from .body import LoopBody, record
from .expressions import Expr, Symbol
from .ir import (
    BufferArgument,
    ComputedBuffer,
    ExternBuffer,
    Layout,
    LoopProgram,
    Pointwise,
    Reduction,
    Scan,
    Scatter,
    Template,
)
from .ops import Ops, compute_dtype

_FUNCTIONS: dict[str, Callable[..., torch.Tensor]] = {
    "neg": torch.neg, "abs": torch.abs, "sign": torch.sign, "relu": torch.relu, "square": lambda x: x * x,
    "reciprocal": torch.reciprocal, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "floor": torch.floor, "ceil": torch.ceil,
    "trunc": torch.trunc, "round": torch.round, "exp": torch.exp, "exp2": torch.exp2, "expm1": torch.expm1,
    "log": torch.log, "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p, "sin": torch.sin,
    "cos": torch.cos, "tan": torch.tan, "asin": torch.asin, "acos": torch.acos, "atan": torch.atan,
    "sinh": torch.sinh, "cosh": torch.cosh, "tanh": torch.tanh, "asinh": torch.asinh, "acosh": torch.acosh,
    "atanh": torch.atanh, "erf": torch.erf, "erfc": torch.erfc, "lgamma": torch.lgamma, "sigmoid": torch.sigmoid,
    "logical_not": torch.logical_not, "bitwise_not": torch.bitwise_not, "isnan": torch.isnan, "isinf": torch.isinf,
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "truediv": torch.true_divide,
    "floordiv": lambda x, y: torch.div(x, y, rounding_mode="floor"),
    "truncdiv": lambda x, y: torch.div(x, y, rounding_mode="trunc"),
    "remainder": torch.remainder, "fmod": torch.fmod, "pow": torch.pow, "maximum": torch.maximum,
    "minimum": torch.minimum, "fmax": torch.fmax, "fmin": torch.fmin, "atan2": torch.atan2, "hypot": torch.hypot,
    "copysign": torch.copysign, "nextafter": torch.nextafter, "eq": torch.eq, "ne": torch.ne, "lt": torch.lt,
    "le": torch.le, "gt": torch.gt, "ge": torch.ge, "logical_and": torch.logical_and, "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor, "bitwise_and": torch.bitwise_and, "bitwise_or": torch.bitwise_or,
    "bitwise_xor": torch.bitwise_xor, "bitwise_left_shift": torch.bitwise_left_shift,
    "bitwise_right_shift": torch.bitwise_right_shift, "where": torch.where,
}  # fmt: skip


class Evaluator(Ops):
    """The concrete interpretation: values are tensors over the whole iteration space (or broadcastable to it)."""

    operations = frozenset(_FUNCTIONS)

    def __init__(self, storages: Mapping[str, torch.Tensor], symbols: dict[str, torch.Tensor | int]):
        self.storages = storages
        self.symbols = symbols
        self.condition: torch.Tensor | None = None
        self.is_empty = any(isinstance(value, torch.Tensor) and not value.numel() for value in symbols.values())

    def subscript(self, expression: Expr) -> torch.Tensor:
        return torch.as_tensor(expression.evaluate(self.symbols), dtype=torch.int64)

    def load(self, buffer: str, index: Expr) -> torch.Tensor:
        return self.element(self.storages[buffer], index)

    def element(self, storage: torch.Tensor, index: Expr) -> torch.Tensor:
        """The element of a flat storage at a subscript, in its compute dtype."""
        position = self.subscript(index)
        if self.condition is not None:
            position = torch.where(self.condition, position, 0)
        if storage.numel() == 0 or self.is_empty:  # a subscript of no point may lie anywhere
            return storage.new_zeros(position.shape).to(compute_dtype(storage.dtype))
        return storage[position].to(compute_dtype(storage.dtype))

    def constant(self, value: Any, dtype: torch.dtype) -> torch.Tensor:
        return torch.tensor(value, dtype=compute_dtype(dtype))

    def index_value(self, expression: Expr, dtype: torch.dtype) -> torch.Tensor:
        return self.subscript(expression).to(compute_dtype(dtype))

    def to_dtype(self, value: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return value.to(dtype).to(compute_dtype(dtype))

    def masked(self, condition: torch.Tensor, body: Callable[[Ops], torch.Tensor], other: Any) -> torch.Tensor:
        outer = self.condition
        self.condition = condition if outer is None else outer & condition
        value = body(self)
        self.condition = outer
        return torch.where(condition, value, torch.tensor(other, dtype=value.dtype))

    def indirect(self, value: torch.Tensor, size: Expr, *, check: bool | None = True) -> Expr:
        extent = int(self.subscript(size))
        position = torch.where(value < 0, value + extent, value)
        outside = (position < 0) | (position >= extent)
        if self.condition is not None:
            outside = outside & self.condition
        if check and bool(outside.any()):
            raise IndexError(f"index out of range for a dimension of size {extent}")
        symbol = Symbol(f"read{len(self.symbols)}", 0, extent - 1)
        self.symbols[symbol.name] = torch.where(outside, 0, position)
        return Expr.of(symbol)

    def apply(self, operation: str, *operands: torch.Tensor) -> torch.Tensor:
        return _FUNCTIONS[operation](*operands)


def evaluate_body(
    body: LoopBody,
    ranges: tuple[int, ...],
    storages: Mapping[str, torch.Tensor],
    reduction_ranges: tuple[int, ...] = (),
    merged: torch.Tensor | None = None,
) -> torch.Tensor:
    """The value of a body at every point: a tensor of shape ``ranges + reduction_ranges``. An epilogue is given what
    was ``merged``."""
    extents = ranges + reduction_ranges
    evaluator = Evaluator(storages, iteration_symbols(body, extents))
    return body.replay(evaluator, merged).expand(extents)


def iteration_symbols(
    body: LoopBody, extents: tuple[int, ...], start: int = 0, stop: int | None = None
) -> dict[str, torch.Tensor | int]:
    """The values of a body's loop indices over a box, by name, each along an axis of its own."""
    symbols: dict[str, torch.Tensor | int] = {}
    for axis, (symbol, extent) in enumerate(zip(body.symbols, extents, strict=True)):
        first, last = (start, extent if stop is None else stop) if axis == 0 else (0, extent)
        places = [1] * len(extents)
        places[axis] = last - first
        symbols[symbol.name] = torch.arange(first, last).reshape(places)
    return symbols


def fold(values: torch.Tensor, reduction: str, merged_axes: int, dtype: torch.dtype) -> torch.Tensor:
    """Fold the last ``merged_axes`` axes in lexicographic order. ``dtype``: that of the accumulator.

    O(reduction length) steps over vectors of the outer size. An empty range yields the neutral element.
    """
    outer = values.shape[: values.dim() - merged_axes]
    flat = values.reshape(*outer, math.prod(values.shape[values.dim() - merged_axes :]))
    length = flat.shape[-1]
    if reduction in ("argmax", "argmin"):
        return getattr(torch, reduction)(flat, -1)
    accumulator = torch.full(outer, neutral_element(reduction, dtype), dtype=dtype)
    merge = {
        "sum": torch.add, "prod": torch.mul, "amax": torch.maximum, "amin": torch.minimum,
        "any": torch.logical_or, "all": torch.logical_and,
    }[reduction]  # fmt: skip
    for position in range(length):
        accumulator = merge(accumulator, flat[..., position])
    return accumulator


def prefixes(values: torch.Tensor, scan: str) -> torch.Tensor:
    """All prefixes along the last axis, merged in its order. O(axis) steps over vectors of the outer size. A scan's
    first element is its first prefix: no neutral element takes part."""
    found: list[torch.Tensor] = []
    positions: list[torch.Tensor] = []
    for position, element in enumerate(values.unbind(-1)):
        here = torch.full(element.shape, position)
        if not found:
            found.append(element)
            positions.append(here)
            continue
        before = found[-1]
        if scan in ("sum", "prod"):
            found.append(before + element if scan == "sum" else before * element)
        elif scan == "logaddexp":
            found.append(torch.logaddexp(before, element))
        else:
            beats = element >= before if scan in ("amax", "argmax") else element <= before
            taken = torch.isnan(element) | (beats & ~torch.isnan(before))
            found.append(torch.where(taken, element, before))
            positions.append(torch.where(taken, here, positions[-1]))
    if not found:
        return values if scan not in ("argmax", "argmin") else values.to(torch.int64)
    return torch.stack(positions if scan in ("argmax", "argmin") else found, -1)


def scattered(base: torch.Tensor, target: torch.Tensor, values: torch.Tensor, scatter: str) -> torch.Tensor:
    """The flat storage ``base`` after ``values`` went, in order, to the storage subscripts ``target``.

    O(elements) steps: a plain loop, because the order of equal subscripts is what it defines.
    """
    storage = base.clone()
    merge = {
        "store": lambda old, new: new, "sum": torch.add, "prod": torch.mul, "amax": torch.maximum,
        "amin": torch.minimum,
    }[scatter]  # fmt: skip
    for place, value in zip(target.reshape(-1).tolist(), values.reshape(-1), strict=True):
        storage[place] = merge(storage[place].to(value.dtype), value)
    return storage


def neutral_element(reduction: str, dtype: torch.dtype) -> bool | int | float:
    """The element that changes nothing (Definition 6.3): 0, 1, the extremes of the dtype, False, True."""
    if reduction in ("sum", "prod"):
        return {"sum": 0, "prod": 1}[reduction]
    if reduction in ("any", "all"):
        return reduction == "all"
    if dtype == torch.bool:
        return reduction in ("amin", "argmin")
    lowest = reduction in ("amax", "argmax")
    if dtype.is_floating_point:
        return -math.inf if lowest else math.inf
    limits = torch.iinfo(dtype)
    return limits.min if lowest else limits.max


def flat_storage(tensor: torch.Tensor, layout: Layout) -> torch.Tensor:
    """The elements from a tensor's data pointer on, as far as ``layout`` reaches: what a kernel sees of it."""
    return tensor.as_strided((layout.storage_elements,), (1,), tensor.storage_offset())


def view_of(storage: torch.Tensor, layout: Layout) -> torch.Tensor:
    """A tensor over a flat storage with the given layout."""
    return storage.as_strided(layout.shape, layout.stride, storage.storage_offset() + layout.offset)


def evaluate(program: LoopProgram, inputs: Mapping[str, torch.Tensor]) -> list[Any]:
    """Run a loop program by its definition. ``inputs`` by buffer name (CPU tensors); returns the flat outputs.

    Raises IndexError for a run-time subscript out of range, and whatever an extern operator raises.
    """
    storages = evaluate_buffers(program, inputs)
    results: list[Any] = []
    for output in program.outputs:
        if output.name is None:
            results.append(output.constant)
        elif output.name in inputs:
            tensor = inputs[output.name]
            layout = output.layout
            results.append(tensor.as_strided(layout.shape, layout.stride, tensor.storage_offset() + layout.offset))
        else:
            results.append(view_of(storages[output.name], output.layout))
    return results


def evaluate_buffers(program: LoopProgram, inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The flat storage of every input and buffer after the program has run."""
    storages = {buffer.name: flat_storage(inputs[buffer.name], buffer.layout) for buffer in program.inputs}
    dtypes = {b.name: b.layout.dtype for b in (*program.inputs, *program.buffers)}
    calls: dict[str, Any] = {}
    for buffer in program.buffers:
        layout = buffer.layout
        if isinstance(buffer, ExternBuffer):
            if buffer.call not in calls:
                calls[buffer.call] = call_extern(buffer, storages)
            if calls[buffer.call] is None:  # an operator that only checks
                continue
            result = calls[buffer.call] if buffer.position is None else calls[buffer.call][buffer.position]
            storages[buffer.name] = flat_storage(result, layout)
            continue
        storages[buffer.name] = evaluate_computed(buffer, dtypes, storages)
    return storages


def evaluate_computed(
    buffer: ComputedBuffer, dtypes: Mapping[str, torch.dtype], storages: Mapping[str, torch.Tensor]
) -> torch.Tensor:
    """The flat storage of one computed buffer."""
    data, layout = buffer.data, buffer.layout
    body = record(buffer, dtypes)
    if isinstance(data, Scatter):
        evaluator = Evaluator(storages, iteration_symbols(body, data.ranges))
        target, values = body.replay_target(evaluator)
        places = evaluator.subscript(target).expand(data.ranges)
        return scattered(storages[data.base], places, values.expand(data.ranges), data.kind)
    storage = torch.zeros(layout.storage_elements, dtype=layout.dtype)
    view_of(storage, layout).copy_(_elements(data, body, storages).to(data.dtype))
    return storage


def _elements(data: Any, body: LoopBody, storages: Mapping[str, torch.Tensor]) -> torch.Tensor:
    """The value at every point of a node's box, before it is stored."""
    if isinstance(data, Pointwise):
        return evaluate_body(body, data.ranges, storages)
    if isinstance(data, Scan):
        outer = data.ranges[: data.axis] + data.ranges[data.axis + 1 :]
        values = evaluate_body(body, outer, storages, (data.ranges[data.axis],))
        return prefixes(values, data.kind).movedim(-1, data.axis)
    if isinstance(data, Reduction):
        values = evaluate_body(body, data.ranges, storages, data.reduction_ranges)
        return fold(values, data.kind, len(data.reduction_ranges), data.accumulate_dtype)
    assert isinstance(data, Template) and body.epilogue is not None
    products = evaluate_body(body, data.ranges, storages, (data.depth,))
    return evaluate_body(body.epilogue, data.ranges, storages, merged=fold(products, "sum", 1, data.accumulate_dtype))


def call_extern(buffer: ExternBuffer, storages: Mapping[str, torch.Tensor]) -> Any:
    """Run an extern operator on views of the storages."""

    def resolve(argument: Any) -> Any:
        if isinstance(argument, BufferArgument):
            if argument.name not in storages:
                raise LoweringError(f"extern {buffer.data.operator} reads {argument.name} before it is computed")
            return view_of(storages[argument.name], argument.layout)
        if isinstance(argument, (tuple, list)) and not isinstance(argument, torch.Size):
            return type(argument)(resolve(a) for a in argument)
        return argument

    kwargs = {key: resolve(value) for key, value in buffer.data.kwargs.items()}
    return buffer.data.operator(*(resolve(a) for a in buffer.data.args), **kwargs)
