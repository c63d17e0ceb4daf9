"""Several nodes in one kernel: a program instance makes whole rows (Sections 9.4 and 9.5).

Where a row fits into registers (*persistent*), every input is read once and each member's value is a variable of the
kernel: a buffer that only members read never exists in memory, and what several members compute is computed once. The
lines of a softmax are then those of its formula.

A longer row (*looped*) is walked along once for each reduction that needs the one before it; reductions of one pass
share its loop (:func:`~staxlab.schedule.programs.plan_passes`). What an earlier pass made of an element is made again.
A maximum and the sum of exponentials relative to it share a pass, and so do a mean and the squared deviations from it
(:mod:`.online`).

Values of half precision are rounded where the program stores them, whether they reach memory or not.
"""

from __future__ import annotations

import textwrap
from functools import partial
from typing import Any

import torch

from ...loops.body import LoopBody
from ...loops.expressions import Expr
from ...options import Decision
from ...provenance import CodeWriter, Origins
from ...schedule.programs import arrays_of_passes, is_full, plan_passes
from ...schedule.records import Schedule, ScheduleNode
from ..kernel import KernelArgument
from .handler import BlockValue, Emission, TritonOps
from .kernel_text import KernelWriter, own_origins
from .launch import Launch
from .online import OnlineDeviations, OnlineExponentials
from .reductions import RowReduction
from .tiling import Form


def pass_decision(node: ScheduleNode) -> Decision:
    """How often a row that is not held is walked along, and why."""
    passes = plan_passes(node.members)
    reason = "a reduction needs what the passes before it found" if passes.count > 1 else "one pass finds all"
    for total, maximum in passes.online.items():
        reason += f"; {maximum} and {total}, a maximum and a sum relative to it, share a pass (Proposition 9.1)"
    for total, deviations in passes.late.items():
        center = " and ".join(access.buffer for access in deviations.center.reads())
        reason += f"; the squared deviations that {total} adds up are gathered before {center} is known"
    inputs = tuple((name, f"pass {number}") for name, number in passes.number.items())
    return Decision("row-passes", node.name, passes.count, reason, inputs=inputs)


class FusedOps(TritonOps):
    """The handler of a fused kernel: what a member wrote is read from its variable, and a line that was written before
    is not written again."""

    def __init__(self, emission: Emission, kernel: FusedWriter, origins: Origins):
        super().__init__(emission, origins)
        self.kernel = kernel

    def tagged(self, origins: Origins) -> FusedOps:
        return FusedOps(self.emission, self.kernel, origins)

    def emit(self, text: str, dtype: torch.dtype, dims: frozenset[str], note: str = "") -> BlockValue:
        known, writer = self.kernel.known(dims), self.writer(dims)
        if (text, dtype) in known:
            value, line = known[text, dtype]
            writer.credit(line, self.origins)
            return value
        line = len(writer.lines())
        value = super().emit(text, dtype, dims, note)
        known[text, dtype] = (value, line)
        return value

    def check(self, text: str, dims: frozenset[str]) -> None:
        known = self.kernel.known(dims)
        if (text, None) not in known:
            known[text, None] = None
            super().check(text, dims)

    def load(self, buffer: str, index: Expr) -> BlockValue:
        value = self.kernel.value_of(buffer)
        return super().load(buffer, index) if value is None else value


class FusedWriter(KernelWriter):
    """Writes the members of a fused node as one kernel."""

    def __init__(self, schedule: Schedule, node: ScheduleNode, form: Form, launch: Launch, name: str):
        self.makers = {buffer: member for member in node.members for buffer in member.buffers}
        self.read_inside = {a.buffer for member in node.members for a in member.reads} & self.makers.keys()
        self.passes = plan_passes(node.members)
        self.last_pass: dict[str, int] = {}
        if form.kind == "looped":
            for number, (direct, again) in enumerate(arrays_of_passes(node.members, self.passes)):
                self.last_pass |= {buffer: number for buffer, _ in direct | again}
        self.number = 0  # of the pass that is being written
        self.values: dict[str, BlockValue] = {}  # of the members, as long as they are there
        self.of_this_pass: dict[str, BlockValue] = {}
        self.stored: set[str] = set()
        self._known: tuple[dict[Any, Any], dict[Any, Any]] = ({}, {})  # lines written: outside the loop, inside
        super().__init__(schedule, node, form, launch, name)

    def _arguments(self) -> tuple[KernelArgument, ...]:
        layouts = self.schedule.layouts
        loads = (a.buffer for member in self.node.members for a in member.body.reads())
        read = dict.fromkeys(buffer for buffer in loads if buffer not in self.makers)
        arguments = [KernelArgument(f"in_ptr{k}", b, "input", layouts[b].dtype) for k, b in enumerate(read)]
        written = enumerate(self.node.buffers)
        arguments += [KernelArgument(f"out_ptr{k}", b, "output", layouts[b].dtype) for k, b in written]
        return tuple(arguments)

    def _cache_hint(self, buffer: str, flattened: Expr) -> str:
        if self.number < self.last_pass.get(buffer, 0):
            return "evict_last"  # the next pass reads it again
        return super()._cache_hint(buffer, flattened)

    def _bodies(self) -> list[ScheduleNode]:
        return list(self.node.members)

    def _description(self) -> list[str]:
        how = {
            "pointwise": "every program instance makes XBLOCK elements of each",
            "persistent": "one program instance holds whole rows in registers (persistent)",
            "looped": "each program instance walks along its rows, R0_BLOCK elements at a time (looped)",
        }[self.form.kind]
        lines = [f"Fused kernel: {how}."]
        if self.looped:
            lines.append(f"Times that a row is walked along: {self.passes.count}")
        members = ", ".join(f"{m.name} ({m.reduction or 'elementwise'})" for m in self.node.members)
        lines += textwrap.wrap(f"Members: {members}", 110, subsequent_indent="    ")
        lines += [f"Writes {b}: {self.schedule.layouts[b]}" for b in self.node.buffers]
        if self.node.private:
            lines += textwrap.wrap(f"Never in memory: {', '.join(self.node.private)}", 110, subsequent_indent="    ")
        return lines

    # -- values -------------------------------------------------------------------------------------------------------

    def known(self, dims: frozenset[str]) -> dict[Any, Any]:
        """The lines written so far where a line goes that varies along ``dims``."""
        return self._known[self.looped and "r0_" in dims]

    def value_of(self, buffer: str) -> BlockValue | None:
        """The variable of a member's buffer, made again if the pass that made it is over; None for others."""
        if buffer not in self.makers:
            return None
        for values in (self.values, self.of_this_pass):
            if buffer in values:
                return values[buffer]
        open_conditions, self.emission.conditions = self.emission.conditions, []
        self._elementwise(self.makers[buffer])
        self.emission.conditions = open_conditions
        return (self.of_this_pass if self.looped and is_full(self.makers[buffer]) else self.values)[buffer]

    def write_body(self) -> None:
        if self.looped:
            self._write_passes()
        else:
            for member in self.node.members:
                if member.kind == "reduction":
                    self._title(member, self.outer)
                    reduction = RowReduction(self, member, own_origins(member))
                    reduction.take(self._replay(member))
                    self._made(member, reduction.finish())
                else:
                    self._elementwise(member)

    def _write_passes(self) -> None:
        members, passes = self.node.members, self.passes
        partners = {maximum: total for total, maximum in passes.online.items()}
        for number in range(max(passes.number.values()) + 1):
            self.number = number
            here = [member for member in members if passes.number[member.name] == number]
            for member in here:
                if member.kind == "pointwise" and not is_full(member) and member.buffers[0] not in self.values:
                    self._elementwise(member)
            self.of_this_pass = {}
            self._known[1].clear()
            self.inner = self.emission.inner = CodeWriter()
            open_ones: list[tuple[tuple[ScheduleNode, ...], Any]] = []
            for member in here:
                if member.kind == "reduction" and member.name not in passes.online:
                    self._title(member, self.inner)
                    if member.name in partners:
                        total = next(m for m in members if m.name == partners[member.name])
                        origins = own_origins(member) | own_origins(total) | total.body.origins
                        reduction: Any = OnlineExponentials(self, member, origins)
                        made: tuple[ScheduleNode, ...] = (member, total)
                    elif member.name in passes.late:
                        origins = own_origins(member) | member.body.origins
                        center = partial(self._replay, member, passes.late[member.name].center)
                        reduction, made = OnlineDeviations(self, member, center, origins), (member,)
                    else:
                        reduction, made = RowReduction(self, member, own_origins(member)), (member,)
                    late = passes.late.get(member.name)
                    reduction.take(self._replay(member, late and late.value))
                    open_ones.append((made, reduction))
                elif is_full(member) and member.buffers[0] in self.node.buffers:
                    self.value_of(member.buffers[0])
            if self.inner.lines():
                self.close_loop([start for _, reduction in open_ones for start in reduction.starts])
            self._known[1].clear()
            for made, reduction in open_ones:
                found = reduction.finish()
                for member, value in zip(made, found if len(made) > 1 else (found,), strict=True):
                    self._made(member, value)

    def _replay(self, member: ScheduleNode, body: LoopBody | None = None) -> BlockValue:
        """What a member stores or reduces, or what a part of its body makes."""
        return (body or member.body).replay(FusedOps(self.emission, self, member.origins))

    def _elementwise(self, member: ScheduleNode) -> None:
        """A member without a reduction: its lines, and its store where it has one and has not been stored."""
        self._title(member, self.inner if is_full(member) else self.outer)
        self._made(member, self._replay(member))

    def _title(self, member: ScheduleNode, writer: CodeWriter) -> None:
        late = self.passes.late.get(member.name) if self.looped else None
        for access in late.value.reads() if late else member.reads:
            self.value_of(access.buffer)  # whose lines would stand under this title otherwise
        again = ", again" if member.buffers[0] in self.stored else ""
        writer.emit(f"# {member.name}: {member.reduction or 'elementwise'}{again}", member.origins)

    def _made(self, member: ScheduleNode, value: BlockValue) -> None:
        (buffer,) = member.buffers
        origins = own_origins(member)
        if buffer in self.read_inside:  # as it would be read from memory
            value = FusedOps(self.emission, self, origins).to_dtype(value, self.schedule.layouts[buffer].dtype)
        (self.of_this_pass if self.looped and is_full(member) else self.values)[buffer] = value
        if buffer in self.node.buffers and buffer not in self.stored:
            self._store_member(member, value, origins)
        self.stored.add(buffer)

    def _store_member(self, member: ScheduleNode, value: BlockValue, origins: Origins) -> None:
        (buffer,) = member.buffers
        space, ops = self.space, TritonOps(self.emission, origins)
        stored = space.all if is_full(member) or self.form.kind == "pointwise" else frozenset({"x"})
        address, _ = ops.address(self.emission.pointers[buffer], space.flatten(member.writes[0].index), stored)
        mask, _ = ops.mask_for(stored)
        arguments = [address, value.name, *([mask] if mask else [])]
        if stored == space.all and self.streams and not self._read_later(buffer):
            arguments.append("eviction_policy='evict_first'")
        ops.writer(stored).emit(f"tl.store({', '.join(arguments)})", origins)
