"""Translation validation: every generated kernel against the reference semantics of its loops (Section 6.9).

A compiler may be proved right once for all programs, or each of its translations may be checked for itself (Pnueli,
Siegel and Singerman, 1998, "Translation validation"). This is the second, by testing: with ``options={"validate":
True}`` every kernel runs on data that reach the corners (:mod:`.validation_inputs`), and each element it writes is
compared with the denotation of its buffer, computed from the compute function that lowering made. Between the two lie
normalising, merging of equal statements, vectors, threads, tiles, layouts and the C++ compiler.

=========  =============================================================================================================
class one  what keeps the floating-point semantics (Theorems 6.1 and 6.2: inlining, realization, merging of equal
           statements, views; vectors and threads that leave the order alone): equal bit for bit, NaN being NaN, with
           the room of :mod:`staxlab.loops.enclosure` where elementary functions of another library come in
class two  what keeps the semantics over the real numbers only (Theorem 6.3: reordered sums and products): within the
           error bound of Section 6.5 for the kernel's own summation tree (:mod:`.reduction_bounds`)
=========  =============================================================================================================

Inputs lie in memory full of NaN and results in memory full of a pattern, both with margins: a read beside the data, an
element nobody wrote and a write beside the result all show. Of a large kernel every element is compared on the first
kind of data, and the first, middle and last rows on each of the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..codegen.kernel import Kernel, KernelSet
from ..errors import ValidationError
from ..loops.body import LoopBody, record
from ..loops.enclosure import ULPS, Enclosure, OutsideDomain
from ..loops.ir import ComputedBuffer, Reduction
from ..loops.semantics import flat_storage, view_of
from ..provenance import NO_ORIGINS, Origins, SourceLocation
from ..schedule.records import Schedule, ScheduleNode
from .node_enclosures import enclose_node
from .reduction_bounds import reorders
from .rounding import plan_of
from .tables import Table, Tabular
from .validation_inputs import KINDS, draw, subscript_bounds
from .validation_region import NotRun, region_difference

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


@dataclass(frozen=True, repr=False)
class Validation(Tabular):
    """What the validation of a region found, kernel by kernel. ``skipped`` are PyTorch's operators; ``whole`` says
    whether the region as a whole ran (:mod:`.validation_region`), ``difference`` what was wrong with its results."""

    kernels: tuple[KernelValidation, ...]
    skipped: tuple[str, ...] = ()
    whole: str = ""
    difference: str | None = None

    @property
    def failures(self) -> tuple[KernelValidation, ...]:
        return tuple(kernel for kernel in self.kernels if kernel.mismatch is not None)

    @property
    def passed(self) -> bool:
        return not self.failures and self.difference is None

    def require(self) -> Validation:
        """The record itself. ValidationError with the first kernel that failed."""
        if self.passed:
            return self
        remedy = "this is a defect of the code generator, please report it; backend='aot_eager' avoids it"
        if not self.failures:
            raise ValidationError(
                f"right kernels are put together wrongly: {self.difference}", remedy=remedy, validation=self
            )
        mismatch = self.failures[0].mismatch
        assert mismatch is not None
        lines = "".join(f"\n  from {source}" for source in mismatch.sources[1:])
        raise ValidationError(
            f"a generated kernel does not compute what its loops mean: {mismatch}{lines}",
            where=mismatch.sources[0] if mismatch.sources else None,
            remedy=remedy,
            validation=self,
        )

    def table(self) -> Table:
        columns = ("kernel", "held to", "data", "class", "compared", "bit for bit", "open", "deviation", "bound",
                   "verdict")  # fmt: skip
        rows = [
            (k.kernel, k.basis, len(k.data), k.order, f"{k.compared:,}", f"{k.exact:,}", f"{k.free:,}",
             f"{k.deviation:.3g}", f"{k.bound:.3g}", k.verdict)
            for k in self.kernels
        ]  # fmt: skip
        notes = [str(k.mismatch) for k in self.failures]
        notes.append("class one keeps the floating-point semantics, class two that of the real numbers (Section 6.9)")
        if self.whole:
            notes.append(f"the region as a whole: {self.difference or self.whole}")
        if self.skipped:
            notes.append(f"run by PyTorch, and taken for right: {', '.join(self.skipped)}")
        failed = f"{len(self.failures)} of {len(self.kernels)} kernels FAILED"
        if not self.failures:
            failed = "the region as a whole FAILED"
        count = {0: "there is no generated kernel", 1: "1 kernel agrees"}
        agree = count.get(len(self.kernels), f"{len(self.kernels)} kernels agree")
        return Table.build(f"Translation validation: {agree if self.passed else failed}", columns, rows, notes, 2)


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


def validate(
    schedule: Schedule,
    kernels: KernelSet,
    launchers: Mapping[str, Callable[..., None]],
    sample: Sequence[torch.Tensor] | None = None,
    sources: Callable[[Origins], Sequence[SourceLocation]] | None = None,
) -> Validation:
    """Run every C++ kernel of a schedule on sample and drawn data, and compare. Nothing is raised for a wrong value:
    see :meth:`Validation.require`.

    ``sample`` are the program's inputs in order; what later kernels read is then computed by the semantics.
    ``sources`` leads origins to the user's lines. Takes O(data * points) tensor operations; sums that keep their order
    are folded one element at a time.
    """
    dtypes = {name: layout.dtype for name, layout in schedule.layouts.items()}
    storages: dict[str, torch.Tensor] = {}
    for buffer, tensor in zip(schedule.program.inputs, sample or (), strict=False):
        if isinstance(tensor, torch.Tensor) and tensor.shape == buffer.layout.shape and tensor.dtype == dtypes[
            buffer.name
        ] and tensor.stride() == buffer.layout.stride:  # fmt: skip
            storages[buffer.name] = flat_storage(tensor.detach(), buffer.layout).clone()
    found, skipped = [], []
    for number, (node, kernel) in enumerate(zip(schedule.nodes, kernels, strict=True)):
        if kernel.language != "cpp":
            skipped.append(kernel.name)
            continue
        buffer = schedule.program.buffer(node.buffers[0])
        assert isinstance(buffer, ComputedBuffer)
        one = _OneKernel(schedule, node, kernel, buffer, record(buffer, dtypes), number)
        found.append(one.validate(launchers.get(kernel.name), storages, sources))
    return Validation(tuple(found), tuple(skipped))


def whole_region(
    found: Validation,
    schedule: Schedule,
    kernels: KernelSet,
    launchers: Mapping[str, Callable[..., None]],
    call: Callable[[list[torch.Tensor]], Sequence[Any]],
    sample: Sequence[torch.Tensor] | None = None,
) -> Validation:
    """The record, with what became of running the region as a whole, by ``call``, on the sample."""
    try:
        difference = region_difference(schedule, kernels, launchers, call, sample)
    except NotRun as reason:
        return replace(found, whole=f"not run, {reason}")
    return replace(found, whole="equal to its kernels run one by one, bit for bit", difference=difference)


@dataclass
class _OneKernel:
    schedule: Schedule
    node: ScheduleNode
    kernel: Kernel
    buffer: ComputedBuffer
    body: LoopBody
    number: int
    tally: _Tally = field(default_factory=_Tally)

    # -- what it is held to ------------------------------------------------------------------------------------------

    @property
    def height(self) -> int | None:
        """The height of the kernel's summation tree; None where the order is that of the semantics, or is nothing."""
        data = self.buffer.data
        if not isinstance(data, Reduction) or not reorders(data.kind, data.accumulate_dtype):
            return None
        order = self.kernel.launch.get("accumulation")
        if order is None:
            return None
        one_by_one = order["sequential"] == order["n"] and order["chunks"] == 1
        if one_by_one and sum(extent > 1 for extent in data.reduction_ranges) <= 1:
            return None  # normalising may exchange two reduced loops, but has nothing to exchange here
        return max(plan_of(order).height, 0)

    def basis(self) -> str:
        epilogue = self.body.epilogue
        statements = self.body.all_statements() + (epilogue.all_statements() if epilogue is not None else [])
        used = dict.fromkeys(
            s.operation for s in statements if s.operation in ULPS and s.dtype.is_floating_point
        )
        parts = [f"{name} {ULPS[name]} ulp" for name in used]
        if self.height is not None:
            order = self.kernel.launch["accumulation"]
            height = f" in a tree of height {self.height:,}" if order["kind"] == "sum" else " in another order"
            parts.append(f"{order['kind']} of {order['n']:,}{height}")
        return ", ".join(parts) or "bit for bit"

    # -- the runs ----------------------------------------------------------------------------------------------------

    def validate(
        self, launcher: Callable[..., None] | None, storages: dict[str, torch.Tensor],
        sources: Callable[[Origins], Sequence[SourceLocation]] | None,
    ) -> KernelValidation:  # fmt: skip
        layout = self.buffer.layout
        if layout.numel and launcher is not None:
            for kind, inputs in self.inputs(storages):
                self.run(kind, inputs, launcher, storages)
                if self.tally.mismatch is not None:
                    break
        elif not layout.numel:
            storages[self.buffer.name] = torch.zeros(0, dtype=layout.dtype)
        tally, mismatch = self.tally, self.tally.mismatch
        if mismatch is not None and sources is not None:
            lines = tuple(dict.fromkeys(sources(self.kernel.origins | self.node.origins)))[:MOST_SOURCES]
            mismatch = replace(mismatch, sources=lines)
        order = 1 if self.height is None else 2
        return KernelValidation(
            self.kernel.name, self.buffer.name, order, self.basis(), tuple(tally.data), tally.compared, tally.exact,
            tally.free, tally.bound, tally.deviation, mismatch, self.kernel.origins,
        )  # fmt: skip

    def inputs(self, storages: Mapping[str, torch.Tensor]) -> Iterator[tuple[str, dict[str, torch.Tensor]]]:
        """The storages of what the kernel reads, once for each kind of data."""
        names = [a.buffer for a in self.kernel.arguments if a.role == "input"]
        names += [self.node.base] if self.node.base is not None else []
        bounds = subscript_bounds(self.body)
        generator = torch.Generator().manual_seed(self.number)
        rarity = max(4, 2 * self.node.reduction_numel)

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
            wanted = list(self.enclose(inputs, complete=not self.tally.data))
        except OutsideDomain:
            return  # nothing is claimed about such data
        except IndexError:
            refused = True
        pointers, keep, layout = [], [], self.buffer.layout
        result = _Memory(layout.storage_elements, layout.dtype, PATTERN)
        if self.node.base is not None:
            result.data.copy_(inputs[self.node.base])
        for argument in self.kernel.arguments:
            if argument.role == "input":
                memory = _Memory(inputs[argument.buffer].numel(), argument.dtype, 0xFF)
                memory.data.copy_(inputs[argument.buffer])
                keep.append(memory)
                start = self.schedule.layouts[argument.buffer].offset * argument.dtype.itemsize
                pointers.append(memory.data.data_ptr() + start)
            else:
                pointers.append(result.data.data_ptr())
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
        if not result.intact:
            self.fail(kind, f"it writes outside {self.buffer.name}")
            return
        computed = view_of(result.data, layout).reshape(-1)
        for start, part in wanted:
            self.compare(kind, computed[start : start + part.value.numel()], part, start)
            if self.tally.mismatch is not None:
                return
        if kind == "sample":
            storage = torch.zeros(layout.storage_elements, dtype=layout.dtype)
            view_of(storage, layout).copy_(torch.cat([part.value for _, part in wanted]).reshape(layout.shape))
            storages[self.buffer.name] = storage

    def fail(self, kind: str, what: str) -> None:
        nan = math.nan
        self.tally.mismatch = Mismatch(self.kernel.name, self.buffer.name, kind, (), nan, nan, nan, nan, 0, 0, what)

    def enclose(self, inputs: Mapping[str, torch.Tensor], complete: bool) -> Iterator[tuple[int, Enclosure]]:
        points = MOST_POINTS if complete else SLICE_POINTS
        return enclose_node(self.buffer, self.body, inputs, self.height, points, complete)

    def compare(self, kind: str, computed: torch.Tensor, wanted: Enclosure, start: int) -> None:
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
            place = torch.unravel_index(torch.tensor(start + at), self.buffer.layout.shape)
            tally.mismatch = Mismatch(
                self.kernel.name, self.buffer.name, kind, tuple(map(int, place)), computed[at].item(),
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


def user_lines(graph: Any) -> Callable[[Origins], list[SourceLocation]]:
    """From origins to the user's lines, by the nodes of a graph that have any of them."""

    def sources(origins: Origins) -> list[SourceLocation]:
        found = (node.location for node in graph if node.location is not None and node.origins & origins)
        return list(dict.fromkeys(found))

    return sources
