"""Stores that bypass the caches (Section 8.2): which outputs of a kernel are worth it, and when it can be known.

An ordinary store to a line that is not in the cache makes the processor read the line first, so a copy moves three
times its bytes instead of two. A *streaming* (non-temporal) store sends whole lines to memory and reads nothing. It
pays for an output larger than the caches that the kernel does not look at again. It costs where the line is in the
cache already, and that is so for new memory: the system zeroes each page just before the kernel writes it. (Measured
with two cores on 64 MiB, relu: into memory that had been written before 4.8 ms ordinary and 3.3 ms streaming, into new
pages 37 and 53.)

Whether an output's memory is new is known when the region is called, not when the kernel is written. Such a kernel
therefore has a second entry, ``NAME_resident``, for outputs whose pages have been there before: blocks that the pool
hands out again, and tensors of the caller's that are overwritten. Both are one template, so they compute the same.
"""

from __future__ import annotations

from dataclasses import replace

from ...options import Decision, DeviceSpec
from ...schedule.records import Schedule, ScheduleNode
from .values import Scope

#: From this many bytes on an output is taken to be larger than the caches near the core. (Measured: with 8 MiB both
#: kinds of store take the same time, with 16 MiB streaming takes 0.85 and with 64 MiB 0.70 of it; read again at once
#: by the next kernel, 0.85 and 0.80.)
STREAM_FROM = 12 << 20


def streamed_buffers(schedule: Schedule, node: ScheduleNode, device: DeviceSpec) -> tuple[frozenset[str], Decision]:
    """The outputs whose stores may bypass the caches, and why or why none."""
    members = node.members or (node,)
    read = {access.buffer for member in members for access in member.reads}
    written = {access.buffer: schedule.bytes_of(access) for access in node.writes}
    large = {buffer for buffer, size in written.items() if size >= STREAM_FROM}
    able = device.instruction_set in ("avx512", "avx2")
    chosen = frozenset(large - read if able and node.kind != "scatter" else ())
    if not able:
        reason = "the instruction set has none for whole vectors"
    elif chosen:
        reason = "larger than the caches and not read again here: lines of pages that are there already go to memory"
    elif node.kind == "scatter":
        reason = "a scatter reads what it adds to"
    elif large:
        reason = "the kernel reads its output again while it is in the cache"
    else:
        reason = "the output fits the caches, where whoever reads it next finds it"
    inputs = (("bytes written", max(written.values(), default=0)), ("threshold", STREAM_FROM))
    return chosen, Decision("streaming-stores", node.name, bool(chosen), reason, (False, True), inputs)


def resident_launch(scope: Scope) -> dict[str, tuple[str, ...]]:
    """What the launcher must know: ``resident`` are the outputs whose memory decides which entry is called."""
    return {"resident": tuple(dict.fromkeys(scope.streams))} if scope.streams else {}


def streaming_decision(decision: Decision, scope: Scope) -> Decision:
    """The decision as carried out: stores that are not whole aligned vectors remained ordinary ones."""
    if not decision.choice or scope.streams:
        return decision
    return replace(decision, choice=False, reason="no store is a whole vector at an address that is a multiple of it")
