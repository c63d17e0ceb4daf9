"""The loop-level intermediate representation: tensors as functions from subscripts to values (Sections 6.3 and 6.4).

A value that exists in memory is a *buffer*; a value that does not is only a compute function its users call. Six kinds
of node say how a buffer's elements come to be (Definition 6.1 and what Table 6.1 adds to it): :class:`Pointwise`,
:class:`Reduction`, :class:`Scan` (all prefixes of a reduction), :class:`Scatter` (elements written at subscripts read
from data), :class:`Template` (loops laid out by hand around compute functions) and :class:`Extern` (PyTorch runs the
operator: a library call, or the fallback for what has no lowering).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..options import Decision
from ..provenance import NO_ORIGINS, Origins
from .expressions import ZERO, Expr, Like
from .ops import Ops

Index = tuple[Expr, ...]

# The merge operations of reductions and their neutral elements (Definition 6.3). The element of amax over integers is
# the smallest integer of the dtype; argmax and argmin merge (value, index) pairs, the smaller index winning ties, and
# NaN counting as the extreme value, as torch has it.
REDUCTIONS = ("sum", "prod", "amax", "amin", "any", "all", "argmax", "argmin")

# The merge operations of scans. amax and amin keep the later of equal elements and, once a NaN has come, NaN: the rule
# of cummax and cummin, whose positions argmax and argmin give. logaddexp is log(exp(a) + exp(b)) without overflow.
SCANS = ("sum", "prod", "amax", "amin", "argmax", "argmin", "logaddexp")

# How a scatter combines an element with what is there: replace it (the last one in the order of the loops stays), or
# merge the two.
SCATTERS = ("store", "sum", "prod", "amax", "amin")


@dataclass(frozen=True)
class Layout:
    """Shape, stride and offset in elements (Definition 6.2): element ``i`` is at ``offset + sum(stride_j * i_j)``."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: str
    offset: int = 0

    @staticmethod
    def contiguous(shape: tuple[int, ...], dtype: torch.dtype, device: str) -> Layout:
        """Row-major strides for ``shape``."""
        stride: list[int] = []
        step = 1
        for extent in reversed(shape):
            stride.append(step)
            step *= max(extent, 1)
        return Layout(tuple(shape), tuple(reversed(stride)), dtype, device)

    def address(self, index: tuple[Like, ...]) -> Expr:
        """The storage subscript of an element."""
        total = ZERO + self.offset
        for step, position in zip(self.stride, index, strict=True):
            total = total + Expr.of(position) * step
        return total

    @property
    def numel(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def storage_elements(self) -> int:
        """Elements of storage from the start to the last one addressed."""
        if self.numel == 0:
            return 0
        return self.offset + 1 + sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))

    @property
    def nbytes(self) -> int:
        return self.numel * self.dtype.itemsize

    def __str__(self) -> str:
        offset = f", offset={self.offset}" if self.offset else ""
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}, stride={list(self.stride)}{offset}"


@dataclass(frozen=True)
class Pointwise:
    """``value(i) = compute(ops, i)`` for i in the box ``ranges``. ``dtype`` is what is stored; the compute function
    yields a value of ``compute_dtype(dtype)``."""

    ranges: tuple[int, ...]
    dtype: torch.dtype
    compute: Callable[[Ops, Index], Any]
    origins: Origins = NO_ORIGINS


@dataclass(frozen=True)
class Reduction:
    """``value(i) = merge over r of compute(ops, i, r)``, r in the box ``reduction_ranges``, in lexicographic order
    in the reference semantics (Section 6.9). ``accumulate_dtype`` is the dtype of the accumulator and of what the
    compute function yields (float32 for float16 inputs, int64 for integer sums, bool for any/all); ``dtype`` is what is
    stored. For argmax and argmin the compute function yields the compared value (``accumulate_dtype`` is its dtype) and
    the position stored (``dtype`` int64) is the row-major number of ``r`` in ``reduction_ranges``."""

    ranges: tuple[int, ...]
    reduction_ranges: tuple[int, ...]
    kind: str
    dtype: torch.dtype
    accumulate_dtype: torch.dtype
    compute: Callable[[Ops, Index, Index], Any]
    origins: Origins = NO_ORIGINS


@dataclass(frozen=True)
class Scan:
    """``value(i) = merge over r <= i[axis] of compute(ops, i with r in place of i[axis])``: the prefixes of a
    reduction along ``axis`` of the box ``ranges``, merged in order of the axis. ``kind`` is one of :data:`SCANS`; the
    compute function takes a whole subscript and yields a value of ``accumulate_dtype``. For argmax and argmin that is
    the compared value, and what is stored (``dtype`` int64) is a position along the axis."""

    ranges: tuple[int, ...]
    axis: int
    kind: str
    dtype: torch.dtype
    accumulate_dtype: torch.dtype
    compute: Callable[[Ops, Index], Any]
    origins: Origins = NO_ORIGINS


@dataclass(frozen=True)
class Scatter:
    """``value(t)``, in place of what the buffer ``base`` holds, combined in the order of the loops with the elements
    that the box ``ranges`` sends to t. ``compute(ops, i)`` yields ``(t, element)``: the subscript in the result, whose
    components may be read from data (``ops.indirect``), and a value of ``compute_dtype(dtype)``. ``kind`` is one of
    :data:`SCATTERS`.

    The buffer takes over the memory of ``base``, which nobody else may read: it is made for this scatter. So a scatter
    is two loops, one that says what stands where nothing is written and one that writes.
    """

    ranges: tuple[int, ...]
    base: str
    kind: str
    dtype: torch.dtype
    compute: Callable[[Ops, Index], tuple[Index, Any]]
    origins: Origins = NO_ORIGINS


@dataclass(frozen=True)
class ProductForm:
    """How a GPU computes a product (Section 9.8): ``template`` is "tiled" or "persistent-tma", ``operands`` the dtype
    of what the matrix units take (a loader's float32 value of it is exact), ``precision`` of float32 operands "ieee" or
    "tf32", which keeps 10 bits of their mantissas."""

    template: str
    operands: torch.dtype
    precision: str = "ieee"


@dataclass(frozen=True)
class Template:
    """A product of matrices with holes for what surrounds it: ``value(b, i, j) = epilogue(ops, (b, i, j), sum over k of
    left(ops, (b, i, k)) * right(ops, (b, k, j)))``, b any number of batch subscripts.

    ``ranges`` is ``(*batch, rows, columns)`` and ``depth`` the extent of k. The loops around the holes are laid out by
    hand (blocks of rows and columns in registers), which no rule derives from the sum; what fills them is composed as
    everywhere: ``left`` and ``right`` are loaders with whatever was inlined into them, of ``accumulate_dtype``; the
    ``epilogue`` yields a value of ``compute_dtype(dtype)``. ``form`` says how a GPU lays the loops out; None: on a CPU.
    ``own`` are the origins of the product itself, without those of its operands.
    """

    ranges: tuple[int, ...]
    depth: int
    dtype: torch.dtype
    accumulate_dtype: torch.dtype
    left: Callable[[Ops, Index], Any]
    right: Callable[[Ops, Index], Any]
    epilogue: Callable[[Ops, Index, Any], Any]
    origins: Origins = NO_ORIGINS
    form: ProductForm | None = None
    own: Origins = NO_ORIGINS


Computed = Pointwise | Reduction | Scan | Scatter | Template


@dataclass(frozen=True)
class BufferArgument:
    """Stands for a tensor in an extern call's arguments: a view (``layout``) of the storage of buffer ``name``."""

    name: str
    layout: Layout


@dataclass(frozen=True)
class Extern:
    """An operator PyTorch runs as it is. ``args``/``kwargs`` hold :class:`BufferArgument` where tensors go.

    ``reason`` is "library" for operators that PyTorch's own routine computes on purpose (matmul, convolution, sort),
    because no generated loop would do it better, and "fallback" for those that no lowering rule covers, which
    strict mode refuses; ``cause`` then says why none does. ``location`` is the user's line.
    """

    operator: torch._ops.OpOverload
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    reason: str
    origins: Origins = NO_ORIGINS
    location: Any = None
    cause: str = ""


@dataclass(frozen=True)
class InputBuffer:
    """An input of the region, with the layout of the sample; it may be read but never rearranged. ``apart`` says that
    it is known to share no memory with another input."""

    name: str
    layout: Layout
    origins: Origins = NO_ORIGINS
    apart: bool = False


@dataclass(frozen=True)
class ComputedBuffer:
    """A block of memory filled by generated loops."""

    name: str
    layout: Layout
    data: Computed
    origins: Origins = NO_ORIGINS


@dataclass(frozen=True)
class ExternBuffer:
    """One tensor result of an extern call. ``call`` groups the results of one call; ``position`` is this one's place
    in the operator's tuple of results (None: the operator returns a single tensor)."""

    name: str
    layout: Layout
    data: Extern
    call: str
    position: int | None = None
    origins: Origins = NO_ORIGINS


Buffer = InputBuffer | ComputedBuffer | ExternBuffer


@dataclass(frozen=True)
class OutputReference:
    """One flat output of the region: a view (``layout``) of buffer ``name``'s storage, or, if ``name`` is None, the
    Python ``constant``. A view of an input buffer aliases the caller's tensor, exactly as in eager execution. A
    ``fresh`` output is a tensor object of its own even where it shows all of the buffer: ``x[:]`` is not ``x``."""

    name: str | None
    layout: Layout | None = None
    constant: Any = None
    origins: Origins = NO_ORIGINS
    fresh: bool = False


@dataclass(frozen=True)
class LoopProgram:
    """What lowering delivers: inputs, buffers in an order in which they can be computed, and outputs.

    ``decisions`` holds every realization decision (Section 6.6), with the rule that fired, and on a GPU a decision for
    every reduction: in how many segments it is computed (Section 6.5).
    """

    inputs: tuple[InputBuffer, ...]
    buffers: tuple[ComputedBuffer | ExternBuffer, ...]
    outputs: tuple[OutputReference, ...]
    decisions: tuple[Decision, ...] = ()

    def buffer(self, name: str) -> Buffer:
        """The input or buffer called ``name``. KeyError if there is none."""
        for candidate in (*self.inputs, *self.buffers):
            if candidate.name == name:
                return candidate
        raise KeyError(name)

    def composition(self, name: str | None = None) -> Any:
        """How the compute function of a buffer (default: the last) is composed of the operators inlined into it."""
        from .composition import compose

        return compose(self, name)

    def format(self, intervals: bool = False) -> str:
        """The listing: every buffer with its layout and its compute function, printed by the formatting handler. With
        ``intervals``, each line says what is known of its subscript or value, and which checks it spared (Section
        6.8)."""
        from .formatting import format_program

        return format_program(self, intervals)

    __str__ = format

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self)
