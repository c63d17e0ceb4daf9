"""Values during lowering: functions from subscripts to elements, in memory or not yet (Sections 6.3 and 6.4).

A :class:`Box` is where a value lives: a stored buffer with a layout, or just a compute function that its users call. It
starts as the latter and may be *realized* later; users ask the box at the last moment, so a value realized after a
user's closure was made is read from memory by that closure too. A :class:`TensorValue` is a box seen through a view.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from ...provenance import NO_ORIGINS, Origins
from ..ir import Computed, Index, Layout
from ..layout import IndexMap
from ..ops import Ops, compute_dtype

HALF = frozenset({torch.float16, torch.bfloat16})


class Box:
    """The home of a value: ``data`` says how an element is computed, ``name`` and ``layout`` where it is stored.

    ``depth`` counts nested compute functions, ``stride`` is the stride eager execution gives the value; an input's
    storage belongs to the caller (``is_input``), and its ``origins`` are its placeholder's.
    """

    __slots__ = (
        "data",
        "depth",
        "device",
        "dtype",
        "is_input",
        "label",
        "layout",
        "name",
        "origins",
        "shape",
        "stride",
    )

    def __init__(self, shape: tuple[int, ...], dtype: torch.dtype, device: str, data: Computed | None):
        self.shape = shape
        self.dtype = dtype
        self.device = device
        self.data = data
        self.depth = 0
        self.name: str | None = None
        self.layout: Layout | None = None
        self.stride: tuple[int, ...] | None = None
        self.origins: Origins = NO_ORIGINS
        self.is_input = False
        self.label = ""

    @classmethod
    def stored(cls, name: str, layout: Layout, origins: Origins = NO_ORIGINS, is_input: bool = False) -> Box:
        box = cls(layout.shape, layout.dtype, layout.device, None)
        box.name, box.layout, box.stride, box.label = name, layout, layout.stride, name
        box.origins, box.is_input = origins, is_input
        return box

    @property
    def is_stored(self) -> bool:
        return self.name is not None


@dataclass(frozen=True)
class ViewStep:
    """One change of subscript: the map, and the operator node that is a view and made it (None: another operator's
    rule did, as broadcasting its operands does)."""

    map: IndexMap
    node: Any = None

    @property
    def operator(self) -> str:
        """``slice``, ``t``, ``broadcast``: the view operator, or what kind of map it is."""
        name = "_" if self.node is None else self.node.target._opname
        return self.map.name if name.startswith("_") else name  # what an operator is called inside PyTorch says little


@dataclass(frozen=True)
class TensorValue:
    """A box seen through a view (None: as it is), which is the composition of ``steps``, the first applied to the box
    first. ``origins`` are those of the view operators on the way."""

    box: Box
    view: IndexMap | None = None
    origins: Origins = NO_ORIGINS
    steps: tuple[ViewStep, ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.box.shape if self.view is None else self.view.shape

    @property
    def dtype(self) -> torch.dtype:
        return self.box.dtype

    @property
    def device(self) -> str:
        return self.box.device

    @property
    def ndim(self) -> int:
        return len(self.shape)

    @property
    def numel(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def compute_dtype(self) -> torch.dtype:
        """The dtype a loaded element has."""
        return compute_dtype(self.dtype)

    def seen(self, view: IndexMap, origins: Origins = NO_ORIGINS, node: Any = None) -> TensorValue:
        """A further view of this value; ``node`` is the view operator."""
        whole = view if self.view is None else self.view.after(view)
        return TensorValue(self.box, whole, self.origins | origins, (*self.steps, ViewStep(view, node)))

    def load(self, ops: Ops, index: Index) -> Any:
        """The element at ``index``: a load if the value is stored, otherwise its compute function's result."""
        return ops.read(self, index, lambda handler: self._element(handler, index))

    def _element(self, ops: Ops, index: Index) -> Any:
        position = index if self.view is None else self.view.function(index)
        box = self.box
        if box.name is not None:
            tagged = ops.tagged(ops.origins | self.origins | box.origins)
            return tagged.load(box.name, box.layout.address(position))
        return ops.once((box, position), lambda handler: box.data.compute(handler, position))


def convert(ops: Ops, value: Any, dtype: torch.dtype) -> Any:
    """``value`` with the dtype label ``dtype`` (a compute dtype, so nothing is rounded to half precision)."""
    target = compute_dtype(dtype)
    return value if ops.dtype_of(value) == target else ops.to_dtype(value, target)


def promote(ops: Ops, value: Any, source: torch.dtype, dtype: torch.dtype) -> Any:
    """Convert a loaded element of stored dtype ``source`` as type promotion to ``dtype`` does: an integer that
    meets half precision is rounded to it, as in eager execution; half precision itself stays float32."""
    if dtype in HALF and source in (torch.int16, torch.int32, torch.int64):
        return ops.to_dtype(value, dtype)
    return convert(ops, value, dtype)


# -- type promotion on metadata ---------------------------------------------------------------------------------------

Number = bool | int | float
_CATEGORY_DEFAULT = {bool: torch.bool, int: torch.int64}


def result_type(*operands: TensorValue | Number) -> torch.dtype:
    """The dtype operands promote to, as ``torch.result_type`` has it: tensors with dimensions decide, unless a 0-dim
    tensor or a Python number is of a higher category (bool < integer < floating point); numbers count least."""
    dims: torch.dtype | None = None
    zeros: torch.dtype | None = None
    numbers: torch.dtype | None = None
    for operand in operands:
        if isinstance(operand, TensorValue):
            if operand.ndim:
                dims = operand.dtype if dims is None else torch.promote_types(dims, operand.dtype)
            else:
                zeros = operand.dtype if zeros is None else torch.promote_types(zeros, operand.dtype)
        else:
            kind = _CATEGORY_DEFAULT.get(type(operand)) or torch.get_default_dtype()
            numbers = kind if numbers is None else torch.promote_types(numbers, kind)
    result = dims
    for lower in (zeros, numbers):
        if lower is not None and (result is None or _category(lower) > _category(result)):
            result = lower
    if result is None:
        raise TypeError("result_type of no operands")
    return result


def _category(dtype: torch.dtype) -> int:
    return 0 if dtype == torch.bool else 1 if not dtype.is_floating_point else 2


def to_floating(dtype: torch.dtype) -> torch.dtype:
    """``dtype`` if it is floating point, else the default floating dtype: what ``sqrt`` or ``/`` make of integers."""
    return dtype if dtype.is_floating_point else torch.get_default_dtype()
