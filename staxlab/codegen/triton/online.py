"""Two reductions of a row in one pass along it (Section 9.5): what else a lane has to carry around the loop.

A row that is not held is walked along once for every reduction that needs the one before it, unless partial results can
be corrected afterwards. Two kinds can. A maximum and a sum of exponentials relative to it: a lane carries the pair
(m, d), and a larger element rescales the sum (Proposition 9.1; Milakov and Gimelshein, 2018, "Online normalizer
calculation for softmax"; the rule is that of :mod:`staxlab.loops.online_softmax`). And a sum of squared deviations from
a row's mean: a lane carries the mean of its own elements and the sum of squared deviations from that (Welford, 1962),
and what separates the lanes' means from the row's is added when that is known (Chan, Golub and LeVeque, 1983;
:mod:`staxlab.schedule.squared_deviations`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...provenance import Origins
from ...schedule.records import ScheduleNode
from .handler import BlockValue, TritonOps
from .operations import constant_text, triton_dtype
from .reductions import along_row


class OnlineExponentials:
    """A maximum and the sum of exponentials relative to it, in one pass (Proposition 9.1)."""

    def __init__(self, writer: Any, maximum: ScheduleNode, origins: Origins):
        self.writer, self.ops = writer, TritonOps(writer.emission, origins)
        self.dtype, self.origins = maximum.accumulate_dtype, origins
        kind, shape = triton_dtype(self.dtype), writer.space.shape()
        self.greatest, self.total = (f"_{self.ops.fresh()}" for _ in range(2))
        self.starts = [
            (f'{self.greatest} = tl.full({shape}, float("-inf"), {kind})', origins),
            (f"{self.total} = tl.full({shape}, 0.0, {kind})", origins),
        ]

    def take(self, value: BlockValue) -> None:
        value = self.ops.broadcast(value)
        if "r0_" in self.writer.emission.masks:
            note = "past the row's end: adds nothing"
            value = self.ops.emit(f'tl.where(r0_mask, {value}, float("-inf"))', self.dtype, value.dims, note)
        merge = self.ops.use("merge_exponential_into")
        pair = f"{self.greatest}, {self.total}"
        self.writer.inner.emit(f"{pair} = {merge}({pair}, {value})", self.origins)

    def finish(self) -> tuple[BlockValue, BlockValue]:
        ops, m, d, rows = self.ops, self.greatest, self.total, frozenset({"x"})
        kind = triton_dtype(self.dtype)
        text = ops.use(along_row("amax", self.dtype, m))
        greatest = ops.emit(f"{text}[:, None].to({kind})", self.dtype, rows, "amax")
        scaled = ops.use(f"tl.where({m} == {greatest}, {d}, {d} * libdevice.exp({m} - {greatest}))")
        lanes = ops.emit(scaled, self.dtype, self.writer.space.all, "relative to the row's maximum")
        total = ops.emit(f"tl.sum({lanes}, 1)[:, None].to({kind})", self.dtype, rows, "sum")
        nan = constant_text(float("nan"), self.dtype)
        note = "exp(x - m) is NaN for every x where m is not finite"
        total = ops.emit(f"tl.where({greatest} - {greatest} == 0, {total}, {nan})", self.dtype, rows, note)
        return greatest, total


class OnlineDeviations:
    """``sum of (v - c)^2`` in a pass before c is known; ``center`` writes the lines that make c afterwards."""

    def __init__(self, writer: Any, member: ScheduleNode, center: Callable[[], BlockValue], origins: Origins):
        self.writer, self.center, self.origins = writer, center, origins
        self.ops, self.dtype = TritonOps(writer.emission, origins), member.accumulate_dtype
        self.mean, self.squares = (f"_{self.ops.fresh()}" for _ in range(2))
        zero = f"tl.full({writer.space.shape()}, 0.0, {triton_dtype(self.dtype)})"
        self.starts = [(f"{name} = {zero}", origins) for name in (self.mean, self.squares)]

    def take(self, value: BlockValue) -> None:
        ops, kind = self.ops, triton_dtype(self.dtype)
        value = ops.broadcast(value)
        if "r0_" in self.writer.emission.masks:
            text = f"tl.where(r0_mask, {value}, {self.mean})"
            value = ops.emit(text, self.dtype, value.dims, "past the row's end: no deviation")
        text = f"tl.full([1, 1], 1.0, {kind}) / (r0_offset // R0_BLOCK + 1)"
        share = ops.emit(text, self.dtype, frozenset({"r0_"}), "of one element in what a lane has seen")
        merge = ops.use("merge_deviation_into")
        pair = f"{self.mean}, {self.squares}"
        self.writer.inner.emit(f"{pair} = {merge}({pair}, {value}, {share})", self.origins)

    def finish(self) -> BlockValue:
        ops, kind, full = self.ops, triton_dtype(self.dtype), self.writer.space.all
        center = self.center()
        between = ops.emit(f"{self.mean} - {center}", self.dtype, full, "from the row's mean to those of the lanes")
        masked = "r0_" in self.writer.emission.masks
        count = "(r0_numel - r0_base + R0_BLOCK - 1) // R0_BLOCK" if masked else "r0_numel // R0_BLOCK"
        count = ops.emit(f"({count}) * tl.full([1, 1], 1.0, {kind})", self.dtype, full, "elements of each lane")
        added = f"{count} * {between} * {between}"
        if masked:
            added = f"tl.where({count} > 0, {added}, 0.0)"
        lanes = ops.emit(f"{self.squares} + {added}", self.dtype, full, "relative to the row's mean")
        return ops.emit(f"tl.sum({lanes}, 1)[:, None].to({kind})", self.dtype, frozenset({"x"}), "sum")
