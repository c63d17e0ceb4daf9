"""One kernel against the reference semantics of what it computes (Section 6.9): runs, comparison and verdict.

Inputs lie in memory full of NaN and results in memory full of a pattern, both with margins: a read beside the data, an
element nobody wrote and a write beside the result all show. Of a large kernel every element is compared on the first
kind of data, and the first, middle and last rows on each of the others.

A kernel of several fused nodes is judged by what leaves it. What stays inside is enclosed as well, node after node: an
interval that one of them has (a sum in another order, a function of another library) is what the next one reads.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..codegen.kernel import Kernel
from ..loops.body import LoopBody
from ..loops.enclosure import ULPS, Enclosure, OutsideDomain
from ..loops.ir import ComputedBuffer, Reduction
from ..loops.semantics import view_of
from ..provenance import NO_ORIGINS, Origins, SourceLocation
from ..schedule.records import Schedule, ScheduleNode
from .node_enclosures import enclose_node
from .reduction_bounds import reorders
from .rounding import plan_of
from .validation_inputs import KINDS, draw, subscript_bounds

MARGIN = 4096  # bytes on both sides of the data a kernel sees
PATTERN = 0xA5
MOST_POINTS = 1 << 19  # of an iteration space that are enclosed at once
SLICE_POINTS = 1 << 17  # of it in each of the three slices that all but the first kind of data are compared on
MOST_SOURCES = 4  # lines of the user that an error names


@dataclass(frozen=True)
class Mismatch:
    """One element that a kernel computes wrongly: on which data, where, what, and what it may be."""

    kernel: str
    buffer: str
    data: str
    element: tuple[int, ...]
    computed: Any
    expected: Any
    lower: Any
    upper: Any
    wrong: int
    elements: int
    what: str = ""
    sources: tuple[SourceLocation, ...] = ()

    def __str__(self) -> str:
        if self.what:
            return f"kernel {self.kernel}, {self.data} data: {self.what}"
        allowed = "" if _same(self.lower, self.upper) else f", {self.lower!r} to {self.upper!r} being allowed"
        place = f"{self.buffer}[{', '.join(map(str, self.element))}]"
        return (
            f"kernel {self.kernel}, {self.data} data: {place} is {self.computed!r}, the reference semantics has "
            f"{self.expected!r}{allowed} ({self.wrong} of {self.elements} elements are wrong)"
        )


def _same(one: Any, other: Any) -> bool:
    return one == other or (one != one and other != other)


@dataclass(frozen=True)
class KernelValidation:
    """The verdict on a kernel. ``order`` is the class, 1 or 2; ``basis`` says what it is held to.

    ``compared`` elements over all ``data`` were checked, of which ``exact`` had to be equal bit for bit, and ``free``
    ones could not be. ``deviation`` is the distance from the reference where the largest share of its bound was used,
    ``bound`` that bound, both absolute and 0 where everything is exact.
    """

    kernel: str
    buffer: str
    order: int
    basis: str
    data: tuple[str, ...] = ()
    compared: int = 0
    exact: int = 0
    free: int = 0
    bound: float = 0.0
    deviation: float = 0.0
    mismatch: Mismatch | None = None
    origins: Origins = NO_ORIGINS

    @property
    def share(self) -> float:
        """How much of its bound the worst deviation uses, 0 to 1."""
        return self.deviation / self.bound if self.bound else 0.0

    @property
    def verdict(self) -> str:
        if self.mismatch is not None:
            return "FAILED"
        if not self.compared:
            return "nothing to compare"
        return "equal bit for bit" if self.exact == self.compared else "within the bound"


@dataclass
class _Tally:
    """What the runs of one kernel add up to."""

    data: list[str] = field(default_factory=list)
    compared: int = 0
    exact: int = 0
    free: int = 0
    bound: float = 0.0
    deviation: float = 0.0
    mismatch: Mismatch | None = None


@dataclass(frozen=True)
class Part:
    """One buffer that a kernel computes, with its recorded body and the order of its sum, if it is one."""

    buffer: ComputedBuffer
    body: LoopBody
    order: Mapping[str, Any] | None = None

    @property
    def height(self) -> int | None:
        """The height of the summation tree; None where the order is that of the semantics, or is nothing."""
        data, order = self.buffer.data, self.order
        if not isinstance(data, Reduction) or not reorders(data.kind, data.accumulate_dtype) or order is None:
            return None
        one_by_one = order["sequential"] == order["n"] and order["chunks"] == 1
        if one_by_one and sum(extent > 1 for extent in data.reduction_ranges) <= 1:
            return None  # normalising may exchange two reduced loops, but has nothing to exchange here
        return max(plan_of(order).height, 0)

    def basis(self) -> list[str]:
        epilogue = self.body.epilogue
        statements = self.body.all_statements() + (epilogue.all_statements() if epilogue is not None else [])
        used = dict.fromkeys(s.operation for s in statements if s.operation in ULPS and s.dtype.is_floating_point)
        parts = [f"{name} {ULPS[name]} ulp" for name in used]
        if self.height is not None:
            assert self.order is not None
            height = f" in a tree of height {self.height:,}" if self.order["kind"] == "sum" else " in another order"
            parts.append(f"{self.order['kind']} of {self.order['n']:,}{height}")
        return parts


@dataclass
class OneKernel:
    """A kernel under validation. ``parts`` are the buffers it computes, in order; the ``results`` leave it."""

    schedule: Schedule
    node: ScheduleNode
    kernel: Kernel
    parts: tuple[Part, ...]
    number: int
    tally: _Tally = field(default_factory=_Tally)

    @property
    def results(self) -> tuple[Part, ...]:
        return tuple(part for part in self.parts if part.buffer.name in self.node.buffers)

    @property
    def name(self) -> str:
        return ", ".join(self.node.buffers)

    def basis(self) -> str:
        return ", ".join(dict.fromkeys(text for part in self.parts for text in part.basis())) or "bit for bit"

    # -- the runs ----------------------------------------------------------------------------------------------------

    def validate(
        self, launcher: Callable[..., None] | None, storages: dict[str, torch.Tensor],
        sources: Callable[[Origins], Sequence[SourceLocation]] | None,
    ) -> KernelValidation:  # fmt: skip
        elements = sum(part.buffer.layout.numel for part in self.results)
        if elements and launcher is not None:
            for kind, inputs in self.inputs(storages):
                self.run(kind, inputs, launcher, storages)
                if self.tally.mismatch is not None:
                    break
        elif not elements:
            for part in self.results:
                storages[part.buffer.name] = torch.zeros(0, dtype=part.buffer.layout.dtype)
        tally, mismatch = self.tally, self.tally.mismatch
        if mismatch is not None and sources is not None:
            lines = tuple(dict.fromkeys(sources(self.kernel.origins | self.node.origins)))[:MOST_SOURCES]
            mismatch = replace(mismatch, sources=lines)
        order = 1 if all(part.height is None for part in self.parts) else 2
        return KernelValidation(
            self.kernel.name, self.name, order, self.basis(), tuple(tally.data), tally.compared, tally.exact,
            tally.free, tally.bound, tally.deviation, mismatch, self.kernel.origins,
        )  # fmt: skip

    def inputs(self, storages: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
        """The storages of what the kernel reads, once for each kind of data."""
        names = [a.buffer for a in self.kernel.arguments if a.role == "input"]
        names += [self.node.base] if self.node.base is not None else []
        bounds: dict[str, int] = {}
        for part in self.parts:
            for name, size in subscript_bounds(part.body).items():
                bounds[name] = min(size, bounds.get(name, size))
        generator = torch.Generator().manual_seed(self.number)
        rarity = max(4, 2 * max(node.reduction_numel for node in self.node.members or (self.node,)))

        def drawn(name: str, kind: str) -> torch.Tensor:
            layout = self.schedule.layouts[name]
            return draw(kind, layout.dtype, layout.storage_elements, generator, bounds.get(name), rarity)

        if any(name in storages for name in names) or not names:
            yield "sample", {n: storages[n] if n in storages else drawn(n, "ordinary") for n in names}
        if not names:
            return
        for kind in KINDS:
            if kind != "outside" or any(name in bounds for name in names):
                yield kind, {name: drawn(name, kind) for name in names}

    def run(
        self, kind: str, inputs: dict[str, torch.Tensor], launcher: Callable[..., None],
        storages: dict[str, torch.Tensor],
    ) -> None:  # fmt: skip
        refused = False
        try:
            wanted = self.enclose(inputs, complete=not self.tally.data)
        except OutsideDomain:
            return  # nothing is claimed about such data
        except IndexError:
            refused = True
        pointers, keep = [], []
        layouts = self.schedule.layouts
        written = {name: _Memory(layouts[name].storage_elements, layouts[name].dtype, PATTERN)
                   for name in self.node.buffers}  # fmt: skip
        if self.node.base is not None:
            written[self.node.buffers[0]].data.copy_(inputs[self.node.base])
        for argument in self.kernel.arguments:
            if argument.role == "input":
                memory = _Memory(inputs[argument.buffer].numel(), argument.dtype, 0xFF)
                memory.data.copy_(inputs[argument.buffer])
                keep.append(memory)
                start = layouts[argument.buffer].offset * argument.dtype.itemsize
                pointers.append(memory.data.data_ptr() + start)
            else:
                pointers.append(written[argument.buffer].data.data_ptr())
        self.tally.data.append(kind)
        try:
            launcher(*pointers)
        except IndexError as error:
            if not refused:
                self.fail(kind, f"it raises {error!r}, the reference semantics has a value everywhere")
            return
        if refused:
            self.fail(kind, "a subscript is out of range, which it does not notice")
            return
        for part in self.results:
            self.judge(kind, part, written[part.buffer.name], wanted[part.buffer.name], storages)
            if self.tally.mismatch is not None:
                return

    def judge(
        self, kind: str, part: Part, memory: _Memory, wanted: list[tuple[int, Enclosure]],
        storages: dict[str, torch.Tensor],
    ) -> None:  # fmt: skip
        layout = part.buffer.layout
        if not memory.intact:
            self.fail(kind, f"it writes outside {part.buffer.name}")
            return
        computed = view_of(memory.data, layout).reshape(-1)
        for start, piece in wanted:
            self.compare(kind, part, computed[start : start + piece.value.numel()], piece, start)
            if self.tally.mismatch is not None:
                return
        if kind == "sample":
            storages[part.buffer.name] = _stored(wanted, part.buffer).value

    def fail(self, kind: str, what: str) -> None:
        nan = math.nan
        self.tally.mismatch = Mismatch(self.kernel.name, self.name, kind, (), nan, nan, nan, nan, 0, 0, what)

    def enclose(self, inputs: Mapping[str, torch.Tensor], complete: bool) -> dict[str, list[tuple[int, Enclosure]]]:
        """The enclosures of every buffer, piece by piece."""
        points = MOST_POINTS if complete else SLICE_POINTS
        storages: dict[str, torch.Tensor | Enclosure] = dict(inputs)
        found: dict[str, list[tuple[int, Enclosure]]] = {}
        for position, part in enumerate(self.parts):
            last = position == len(self.parts) - 1
            pieces = list(enclose_node(part.buffer, part.body, storages, part.height, points, complete or not last))
            found[part.buffer.name] = pieces
            if not last:
                storages[part.buffer.name] = _stored(pieces, part.buffer)
        return found

    def compare(self, kind: str, part: Part, computed: torch.Tensor, wanted: Enclosure, start: int) -> None:
        """Count and judge elements from the number ``start`` on. ``wanted`` may hold anything where it is free."""
        tally = self.tally
        right = _identical(computed, wanted.value)
        exact = torch.ones_like(right)
        if wanted.lower is not None and wanted.upper is not None:
            exact = _identical(wanted.lower, wanted.upper)
            inside = (computed >= wanted.lower) & (computed <= wanted.upper)
            right = torch.where(exact, _identical(computed, wanted.lower), inside)
        free = torch.zeros_like(right) if wanted.free is None else wanted.free
        checked = ~free
        tally.compared += int(checked.sum())
        tally.exact += int((checked & exact).sum())
        tally.free += int(free.sum())
        bad = ~right & checked
        if bool(bad.any()):
            at = int(bad.nonzero()[0, 0])
            place = torch.unravel_index(torch.tensor(start + at), part.buffer.layout.shape)
            tally.mismatch = Mismatch(
                self.kernel.name, part.buffer.name, kind, tuple(map(int, place)), computed[at].item(),
                wanted.value[at].item(), wanted.low[at].item(), wanted.high[at].item(), int(bad.sum()),
                computed.numel(),
            )  # fmt: skip
            return
        if not bool((checked & ~exact).any()):
            return
        value, got = wanted.value.double(), computed.double()
        bound = torch.where(got > value, wanted.high.double() - value, value - wanted.low.double())
        off = (got - value).abs()
        counted = checked & ~exact & off.isfinite() & bound.isfinite() & (bound > 0)
        share = torch.where(counted, off / bound, -1.0)
        if not share.numel() or float(share.max()) < 0:
            return
        worst = int(share.argmax())
        deviation, allowed = float(off[worst]), float(bound[worst])
        if not tally.bound or deviation / allowed > tally.deviation / tally.bound:
            tally.deviation, tally.bound = deviation, allowed


def _stored(pieces: list[tuple[int, Enclosure]], buffer: ComputedBuffer) -> Enclosure:
    """A buffer's flat storage, from the enclosures of all its elements."""
    layout = buffer.layout

    def placed(parts: list[torch.Tensor]) -> torch.Tensor:
        storage = torch.zeros(layout.storage_elements, dtype=parts[0].dtype)
        view_of(storage, layout).copy_(torch.cat(parts).reshape(layout.shape))
        return storage

    whole = [piece for _, piece in pieces]
    free = None
    if any(piece.free is not None for piece in whole):
        free = placed([torch.zeros(p.value.shape, dtype=torch.bool) if p.free is None else p.free for p in whole])
    value = placed([piece.value for piece in whole])
    if all(piece.lower is None for piece in whole):
        return Enclosure(value, free=free)
    return Enclosure(value, placed([piece.low for piece in whole]), placed([piece.high for piece in whole]), free)


def _identical(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Equal bit for bit, except that a NaN equals every NaN."""
    if not one.dtype.is_floating_point:
        return one == other
    return ((one == other) & (one.signbit() == other.signbit())) | (one.isnan() & other.isnan())


class _Memory:
    """``count`` elements in the middle of a block of memory full of one byte."""

    def __init__(self, count: int, dtype: torch.dtype, byte: int):
        size = count * dtype.itemsize
        self.byte = byte
        self.block = torch.full((MARGIN + size + MARGIN + (-size) % 64,), byte, dtype=torch.uint8)
        self.margins = (self.block[:MARGIN], self.block[MARGIN + size :])
        self.data = self.block[MARGIN : MARGIN + size].view(dtype)

    @property
    def intact(self) -> bool:
        """Whether the margins are as they were."""
        return all(bool((margin == self.byte).all()) for margin in self.margins)
