"""Reductions along the second axis of a block (Sections 6.5 and 9.4): what a lane gathers, and how lanes merge.

A row that is held whole is merged at once. A row that is walked along is gathered by its lanes first, each of which
carries a partial result around the loop (:meth:`RowReduction.take`), and merged along the row once, after the loop
(:meth:`RowReduction.finish`). Lanes past the row's end carry the neutral element (Definition 6.3).
"""

from __future__ import annotations

from typing import Any

import torch

from ...errors import CodegenError
from ...provenance import Origins
from ...schedule.records import ScheduleNode
from .handler import BlockValue, TritonOps
from .operations import ROWS, constant_text, triton_dtype

INDEX_PADDING = 2**31 - 1  # the position that lanes outside a row carry in argmax: larger than any real one


def neutral_element(kind: str, dtype: torch.dtype) -> bool | int | float:
    """The value that changes nothing when merged (Definition 6.3). CodegenError if the reduction has none."""
    if kind in ("sum", "any"):
        return False if dtype == torch.bool else 0
    if kind in ("prod", "all"):
        return True if dtype == torch.bool else 1
    if kind in ("amax", "argmax", "amin", "argmin"):
        lowest = kind in ("amax", "argmax")
        if dtype == torch.bool:
            return not lowest
        if dtype.is_floating_point:
            return float("-inf") if lowest else float("inf")
        return torch.iinfo(dtype).min if lowest else torch.iinfo(dtype).max
    raise CodegenError(f"reduction {kind!r} has no Triton form")


class RowReduction:
    """One reduction inside a kernel; ``writer`` is the kernel's."""

    def __init__(self, writer: Any, node: ScheduleNode, origins: Origins):
        self.writer, self.node, self.origins = writer, node, origins
        self.ops = TritonOps(writer.emission, origins)
        self.starts: list[tuple[str, Origins]] = []  # how what is carried around the loop begins
        self.carried: list[BlockValue] = []
        self.kind, self.dtype = node.reduction, node.accumulate_dtype
        if self.dtype == torch.bool:
            # One bit cannot be merged by maximum and minimum; a byte can, and "any" is the maximum of 0 and 1.
            self.kind = {"any": "amax", "all": "amin"}.get(self.kind, self.kind)
            self.dtype = torch.int8
        elif self.kind in ("any", "all"):
            raise CodegenError(f"{node.name}: {self.kind} merges bools, not {self.dtype}")
        self.neutral = constant_text(neutral_element(self.kind, self.dtype), self.dtype)

    @property
    def mask(self) -> str:
        """The mask of elements that take part in the reduction; rows past the end are never stored."""
        return "r0_mask" if "r0_" in self.writer.emission.masks else ""

    def take(self, value: BlockValue) -> None:
        """Merge a block's elements into what the lanes carry; without a loop, the block is all there is."""
        ops, space, mask = self.ops, self.writer.space, self.mask
        if self.node.accumulate_dtype == torch.bool:
            value = ops.emit(f"{value}.to(tl.int8)", torch.int8, value.dims)
        value = ops.broadcast(value)
        if self.kind in ("argmax", "argmin"):
            self._take_position(value)
        elif self.writer.looped:
            total = self._carry(f"tl.full({space.shape()}, {self.neutral}, {triton_dtype(self.dtype)})", self.dtype)
            merged = self._merge_text(total.name, value.name)
            if mask:
                merged = f"tl.where({mask}, {merged}, {total})"
            self.writer.inner.emit(f"{total} = {merged}", self.origins)
        elif mask:
            note = "past the row's end: the neutral element"
            self.carried = [ops.emit(f"tl.where({mask}, {value}, {self.neutral})", self.dtype, space.all, note)]
        else:
            self.carried = [value]

    def finish(self) -> BlockValue:
        """The result of the row, one for each."""
        ops, rows = self.ops, frozenset({"x"})
        if self.kind in ("argmax", "argmin"):
            first, second = ops.fresh(), ops.fresh()
            pair = ", ".join(value.name for value in self.carried)
            merge = f"merge_{self.kind}"
            self.writer.outer.emit(f"{first}, {second} = tl.reduce(({pair}), 1, {merge})", self.origins)
            return ops.emit(f"{second}[:, None].to(tl.int64)", torch.int64, rows, self.node.reduction)
        text = ops.use(along_row(self.kind, self.dtype, self.carried[0].name))
        return ops.emit(f"{text}[:, None].to({triton_dtype(self.dtype)})", self.dtype, rows, self.kind)

    def _carry(self, start: str, dtype: torch.dtype) -> BlockValue:
        value = BlockValue(f"_{self.ops.fresh()}", dtype, self.writer.space.all)
        self.starts.append((f"{value} = {start}", self.origins))
        self.carried.append(value)
        return value

    def _merge_text(self, a: str, b: str) -> str:
        """How a lane's partial result takes in one more element."""
        operation = {"sum": "add", "prod": "mul", "amax": "maximum", "amin": "minimum"}[self.kind]
        return self.ops.use(ROWS[operation].template(self.dtype).format(a=a, b=b, T=triton_dtype(self.dtype)))

    def _take_position(self, value: BlockValue) -> None:
        """argmax and argmin: (value, position) pairs; a lane outside the row carries a position past every real one."""
        ops, space, mask = self.ops, self.writer.space, self.mask
        merge = ops.use(f"merge_{self.kind}")
        large = space.dim("r0_").numel > INDEX_PADDING
        index_type, padding = ("tl.int64", 2**63 - 1) if large else ("tl.int32", INDEX_PADDING)
        text = f"tl.broadcast_to(r0_index.to({index_type}), {space.shape()})"
        here = ops.emit(text, torch.int32, space.all, "positions in the row")
        if mask:
            value = ops.emit(f"tl.where({mask}, {value}, {self.neutral})", self.dtype, space.all)
            here = ops.emit(f"tl.where({mask}, {here}, {padding})", torch.int32, space.all)
        if not self.writer.looped:
            self.carried = [value, here]
            return
        shape = space.shape()
        best = self._carry(f"tl.full({shape}, {self.neutral}, {triton_dtype(self.dtype)})", self.dtype)
        place = self._carry(f"tl.full({shape}, {padding}, {index_type})", torch.int32)
        self.writer.inner.emit(f"{best}, {place} = {merge}({best}, {place}, {value}, {here})", self.origins)


def along_row(kind: str, dtype: torch.dtype, value: str) -> str:
    """How a block merges along its second axis."""
    if kind == "sum":
        return f"tl.sum({value}, 1)"
    if kind == "prod":
        return f"tl.reduce({value}, 1, merge_product)"
    if not dtype.is_floating_point:
        return f"tl.{'max' if kind == 'amax' else 'min'}({value}, 1)"
    return f"tl.reduce({value}, 1, {'merge_greater' if kind == 'amax' else 'merge_smaller'})"
