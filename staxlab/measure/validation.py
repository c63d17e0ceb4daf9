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
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..codegen.kernel import Kernel, KernelSet
from ..errors import ValidationError
from ..loops.body import record
from ..loops.ir import ComputedBuffer
from ..loops.semantics import flat_storage
from ..provenance import Origins, SourceLocation
from ..schedule.records import Schedule, ScheduleNode
from .tables import Table, Tabular
from .validation_kernel import KernelValidation, Mismatch, OneKernel, Part
from .validation_region import NotRun, region_difference

__all__ = ["KernelValidation", "Mismatch", "Validation", "user_lines", "validate", "whole_region"]


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
        one = OneKernel(schedule, node, kernel, _parts(schedule, node, kernel, dtypes), number)
        found.append(one.validate(launchers.get(kernel.name), storages, sources))
    return Validation(tuple(found), tuple(skipped))


def _parts(
    schedule: Schedule, node: ScheduleNode, kernel: Kernel, dtypes: Mapping[str, torch.dtype]
) -> tuple[Part, ...]:
    names = [name for member in node.members or (node,) for name in member.buffers]
    orders = kernel.launch.get("accumulations") or {names[0]: kernel.launch.get("accumulation")}
    found = []
    for name in names:
        buffer = schedule.program.buffer(name)
        assert isinstance(buffer, ComputedBuffer)
        found.append(Part(buffer, record(buffer, dtypes), orders.get(name)))
    return tuple(found)


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


def user_lines(graph: Any) -> Callable[[Origins], list[SourceLocation]]:
    """From origins to the user's lines, by the nodes of a graph that have any of them."""

    def sources(origins: Origins) -> list[SourceLocation]:
        found = (node.location for node in graph if node.location is not None and node.origins & origins)
        return list(dict.fromkeys(found))

    return sources
