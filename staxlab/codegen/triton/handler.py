"""The Triton interpretation of a loop body (Sections 6.7 and 9.2): every operation becomes a line of block arithmetic.

``ops.add(a, b)`` emits ``tmp2 = tmp0 + tmp1`` and returns the *name* ``tmp2`` together with what a later line must
know about it: its dtype label and the block dimensions along which it varies. A value that does not vary along the
reduction dimension is written to the *outer* writer and so computed once, before the loop of a looped reduction.

Masks are the union of what is needed, no more: the mask of every block dimension the address varies along (unless the
size divides the block, when that mask is true everywhere and does not exist), and the conditions of the ``masked``
regions the load stands in.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from ...errors import CodegenError
from ...loops.expressions import Expr, Symbol
from ...loops.ops import OPERATIONS, Ops, compute_dtype, result_dtype
from ...provenance import NO_ORIGINS, CodeWriter, Origins
from .operations import HELPERS, ROWS, constant_text, triton_dtype
from .space import BlockSpace

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class BlockValue:
    """A variable of the kernel: its name, its dtype label, and the block dimensions along which it varies."""

    name: str
    dtype: torch.dtype
    dims: frozenset[str]

    def __str__(self) -> str:
        return self.name


@dataclass
class Emission:
    """What a handler and its tagged twins share: writers, names in use, and facts about the kernel."""

    space: BlockSpace
    outer: CodeWriter
    inner: CodeWriter
    masks: frozenset[str]  # prefixes of the block dimensions whose mask exists
    pointers: dict[str, str]  # buffer -> pointer argument
    dtypes: dict[str, torch.dtype]  # buffer -> stored dtype
    cache_hint: Callable[[str, Expr], str]
    zero_fill: bool = False  # give masked-off lanes a defined value
    conditions: list[BlockValue] = field(default_factory=list)  # of the ``masked`` regions now open
    count: int = 0
    helpers: set[str] = field(default_factory=set)
    library: bool = False
    asserts: bool = False


class TritonOps(Ops):
    """Emits one kernel's lines. Values are :class:`BlockValue`."""

    def __init__(self, emission: Emission, origins: Origins = NO_ORIGINS):
        self.emission = emission
        self.origins = origins

    def tagged(self, origins: Origins) -> TritonOps:
        return TritonOps(self.emission, origins)

    # -- writing ------------------------------------------------------------------------------------------------------

    def fresh(self) -> str:
        name = f"tmp{self.emission.count}"
        self.emission.count += 1
        return name

    def writer(self, dims: frozenset[str]) -> CodeWriter:
        """Where a line goes that varies along ``dims``: outside the reduction loop if it can."""
        return self.emission.inner if "r0_" in dims else self.emission.outer

    def emit(self, text: str, dtype: torch.dtype, dims: frozenset[str], note: str = "") -> BlockValue:
        name = self.fresh()
        line = f"{name} = {text}"
        self.writer(dims).emit(f"{line}  # {note}" if note else line, self.origins)
        return BlockValue(name, dtype, dims)

    def check(self, text: str, dims: frozenset[str]) -> None:
        """A statement that makes no value."""
        self.writer(dims).emit(text, self.origins)

    def use(self, text: str) -> str:
        """Note which helpers and libraries a piece of text needs; returns the text."""
        for name, source in HELPERS.items():
            if name not in self.emission.helpers and re.search(rf"\b{name}\b", text):
                self.emission.helpers.add(name)
                self.use(source.split('"""')[-1])
        if "libdevice." in text:
            self.emission.library = True
        return text

    # -- the protocol -------------------------------------------------------------------------------------------------

    def mask_for(self, dims: frozenset[str]) -> tuple[str, frozenset[str]]:
        """The mask of an access whose address varies along ``dims``, and the dimensions the mask varies along."""
        space = self.emission.space
        parts = [d.mask_name for d in reversed(space.dims) if d.prefix in dims and d.prefix in self.emission.masks]
        varied = frozenset(d.prefix for d in space.dims if d.mask_name in parts)
        for condition in self.emission.conditions:
            parts.append(condition.name)
            varied |= condition.dims
        return " & ".join(parts), varied

    def address(self, pointer: str, flattened: Expr, needed: frozenset[str]) -> tuple[str, frozenset[str]]:
        """``pointer + (subscript)`` as a block that varies along ``needed`` and whatever the subscript varies along."""
        space = self.emission.space
        own = space.dims_of(flattened)
        text = space.text(flattened)
        if needed <= own:
            return f"{pointer} + ({text})", own
        dims = own | needed
        return f"{pointer} + {self._block(flattened, space.shape(dims))}", dims

    def _block(self, flattened: Expr, shape: str) -> str:
        """A subscript as a block of ``shape``. One that no index is in is a number, unless it was read at run time:
        what is read is a block already, if of one element."""
        text = self.emission.space.text(flattened)
        if flattened.is_constant or not flattened.symbols:
            return f"tl.full({shape}, {text}, tl.int32)"
        return f"tl.broadcast_to({text}, {shape})"

    def load(self, buffer: str, index: Expr) -> BlockValue:
        emission = self.emission
        flattened = emission.space.flatten(index)
        mask, varied = self.mask_for(emission.space.dims_of(flattened))
        address, dims = self.address(emission.pointers[buffer], flattened, varied)
        if mask and not dims:  # such a condition is a block of one element, and so must the address be
            address = f"{emission.pointers[buffer]} + {self._block(flattened, emission.space.shape(()))}"
        dtype = emission.dtypes[buffer]
        arguments = [address]
        if mask:
            arguments.append(mask)
        hint = emission.cache_hint(buffer, flattened)
        if hint:
            arguments.append(f"eviction_policy='{hint}'")
        if mask and (emission.zero_fill or emission.conditions):
            arguments.append(f"other={constant_text(0, dtype)}")
        triton_dtype(dtype)
        text = self.loaded(f"tl.load({', '.join(arguments)})", dtype)
        return self.emit(text, compute_dtype(dtype), dims, note=buffer)

    def loaded(self, text: str, dtype: torch.dtype) -> str:
        """What was read of a buffer of ``dtype``, as what it is computed with."""
        if dtype in HALF or (dtype.is_floating_point and dtype.itemsize == 1):
            return text + ".to(tl.float32)"
        return text + ".to(tl.int1)" if dtype == torch.bool else text  # a bool is stored as a byte

    def constant(self, value: bool | int | float, dtype: torch.dtype) -> BlockValue:
        dtype = compute_dtype(dtype)
        ones = self.emission.space.shape(())
        return self.emit(f"tl.full({ones}, {constant_text(value, dtype)}, {triton_dtype(dtype)})", dtype, frozenset())

    def index_value(self, expression: Expr, dtype: torch.dtype) -> BlockValue:
        flattened = self.emission.space.flatten(expression)
        dtype = compute_dtype(dtype)
        if flattened.is_constant:
            return self.constant(int(flattened), dtype)
        text = f"({self.emission.space.text(flattened)}).to({triton_dtype(dtype)})"
        return self.emit(text, dtype, self.emission.space.dims_of(flattened))

    def to_dtype(self, value: BlockValue, dtype: torch.dtype) -> BlockValue:
        if value.dtype == dtype:
            return value
        if dtype == torch.bool:
            return self.emit(f"{value} != 0", dtype, value.dims)
        if dtype in HALF:
            # Rounded through float32, as PyTorch's own conversion is, and kept in float32.
            through = "" if value.dtype == torch.float32 else ".to(tl.float32)"
            text = f"{value}{through}.to({triton_dtype(dtype)}).to(tl.float32)"
            return self.emit(text, torch.float32, value.dims, note=f"rounded to {triton_dtype(dtype)[3:]}")
        return self.emit(f"{value}.to({triton_dtype(dtype)})", dtype, value.dims)

    def masked(self, condition: BlockValue, body: Callable[[Ops], Any], other: bool | int | float) -> BlockValue:
        conditions = self.emission.conditions
        conditions.append(condition)
        try:
            value = body(self)
        finally:
            conditions.pop()
        ones = self.emission.space.shape(())
        otherwise = f"tl.full({ones}, {constant_text(other, value.dtype)}, {triton_dtype(value.dtype)})"
        dims = condition.dims | value.dims
        return self.emit(f"tl.where({condition}, {value}, {otherwise})", value.dtype, dims, note="masked")

    def indirect(self, value: BlockValue, size: Expr, *, check: bool | None = True) -> Expr:
        emission = self.emission
        bound = emission.space.text(emission.space.flatten(size))
        wrapped = value if check is None else self.emit(
            f"tl.where({value} < 0, {value} + {bound}, {value})", torch.int64, value.dims,
            note="a negative index counts from the end",
        )  # fmt: skip
        if check:
            emission.asserts = True
            mask, _ = self.mask_for(value.dims)
            valid = f"(0 <= {wrapped}) & ({wrapped} < {bound})"
            guarded = f"({valid}) | ~({mask})" if mask else valid
            message = f"index out of bounds: expected 0 <= {wrapped} < {bound}"
            self.check(f'tl.device_assert({guarded}, "{message}")', value.dims)
        symbol = Symbol(wrapped.name, 0, size.bounds().upper - 1)
        emission.space.symbol_dims[symbol] = value.dims
        return Expr.of(symbol)

    def apply(self, operation: str, *operands: BlockValue) -> BlockValue:
        kinds = tuple(o.dtype for o in operands)
        subject = kinds[1] if operation == "where" else kinds[0]
        template = ROWS[operation].template(subject)
        if template is None:
            raise CodegenError(f"ops.{operation} is not defined for {subject}")
        names = dict(zip("abc", (o.name for o in operands), strict=False))
        text = template.format(**names, T=triton_dtype(subject), bits=subject.itemsize * 8)
        dims = frozenset().union(*(o.dims for o in operands))
        return self.emit(self.use(text), result_dtype(operation, kinds), dims, note=operation)

    def broadcast(self, value: BlockValue) -> BlockValue:
        """The value as a whole block: what a reduction needs."""
        if value.dims == self.emission.space.all:
            return value
        shape = self.emission.space.shape()
        return self.emit(f"tl.broadcast_to({value}, {shape})", value.dtype, self.emission.space.all)


def missing_operations() -> list[str]:
    """Names of ``OPERATIONS`` without a row here; a test requires none."""
    return [name for name in OPERATIONS if name not in ROWS]
