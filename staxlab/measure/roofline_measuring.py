"""How the limits of a machine are measured (Section 13.1): rounds, in each of which everything has its turns.

A capability is the best of many readings (Proposition 13.1). The readings come in rounds with fresh buffers, because
where the system places them in memory, and what else the machine does, change from one to the next; each round's best
is kept, and how far they differ is the error of which a single round says nothing.

**Caches.** A cache's bandwidth is measured with working sets that fit into it with room to spare and do not fit into
the one before: half its capacity, and the geometric mean between that and twice the capacity before it; the better
counts. Capacities are those that the system reports (``size_sweep`` finds out whether they are true), times the number
of caches that the threads have. """

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..errors import BuildError, MissingDependencyError
from .machine import busy_note, cache_capacity, command_line, machine_record, timestamp, version_record
from .roofline import MEMORY, Ceiling, Probe, Roofline
from .tables import bytes_text
from .timing import Progress, compare, quiet

#: Size of each buffer the bandwidth kernels walk over: that of the chapter's cases (8192 x 2048 float32), or twice the
#: last cache where that is larger, but no more than the second.
CPU_BUFFER, LARGEST_CPU_BUFFER = 64 << 20, 256 << 20
CUDA_BUFFER = 1 << 30

#: Measuring stops before the next round once this many seconds have passed.
TIME_LIMIT = 18.0

#: Readings that a level takes in each round.
LEVEL_READINGS = 5


@dataclass
class _Best:
    """What one ceiling may become: the best value of every round so far."""

    template: Ceiling
    rounds: list[float] = field(default_factory=list)

    def ceiling(self) -> Ceiling:
        return replace(self.template, value=max(self.rounds), rounds=tuple(self.rounds))


def measured(
    progress: Progress | None, quick: bool, device: str, buffer_bytes: int | None, native: bool, levels: bool
) -> Roofline:
    """What :func:`staxlab.measure.roofline.measure` does."""
    import torch

    before = machine_record()
    notes = [note for note in [busy_note(before)] if note]
    gpu = device.startswith("cuda")
    if gpu:
        from .roofline_probes import cuda_probes as probes_for
        from .roofline_probes import cuda_round as run_round

        size = buffer_bytes or CUDA_BUFFER
    else:
        from .roofline_probes import cpu_probes as probes_for

        run_round = _cpu_round
        size = buffer_bytes or cpu_buffer(before["last_level_cache_bytes"])
    started = time.monotonic()
    rounds = 1 if quick else 3
    parts = 2 if levels else 1
    best: dict[str, _Best] = {}
    complete = True
    for r in range(rounds):
        # Fresh buffers every round: where the system places them in memory is part of the noise.
        probes, remarks = probes_for(device, size, native, every_number=levels)
        notes += [note for note in remarks if note not in notes]
        readings = 6 if quick or levels else 10
        timed, complete = run_round(probes, readings, _part(progress, r / rounds, 1 / rounds / parts))
        threads = None if gpu else torch.get_num_threads()
        for probe in probes:
            seconds = timed.get(probe.name, math.nan)
            if not math.isnan(seconds):
                counted = threads if levels and probe.kind == "bandwidth" else None
                template = Ceiling(probe.name, probe.kind, 0.0, probe.note, threads=counted)
                best.setdefault(probe.name, _Best(template)).rounds.append(probe.amount / seconds)
        del probes
        if complete and levels and native:
            part = _part(progress, (r + 0.5) / rounds, 0.5 / rounds)
            complete, remarks = _levels_round(device, size, before["caches"], best, part)
            notes += [note for note in remarks if note not in notes]
        if not complete:
            break
        if time.monotonic() - started > TIME_LIMIT and r + 1 < rounds:
            notes.append(f"{r + 1} of {rounds} rounds: the time limit of {TIME_LIMIT:.0f} s was reached")
            break
    if progress is not None:
        progress(1.0, "done" if complete else "interrupted")
    machine = {**machine_record(device), "load_average": before["load_average"]}
    notes += _cache_notes(machine, size)
    return Roofline(
        ceilings=tuple(entry.ceiling() for entry in best.values()),
        machine=machine,
        versions=version_record(),
        command=command_line(),
        date=timestamp(),
        notes=tuple(notes),
        complete=complete,
    )


def cpu_buffer(last_level_cache: int | None) -> int:
    """Bytes of each buffer that main memory is measured with."""
    return min(max(CPU_BUFFER, 2 * (last_level_cache or 0)), LARGEST_CPU_BUFFER)


def _cpu_round(probes: Sequence[Probe], readings: int, progress: Progress | None) -> tuple[dict[str, float], bool]:
    """Best seconds per probe over one round of alternating readings, and whether the round ran to its end."""
    result = compare({p.name: p.run for p in probes}, readings=readings, warmup=2, calls=1, progress=progress)
    return {t.name: t.minimum for t in result.timings}, result.complete


def _part(progress: Progress | None, offset: float, share: float) -> Progress | None:
    """The progress of one round as a part of the whole."""
    if progress is None:
        return None
    return lambda fraction, message: progress(offset + share * fraction, message)


def _cache_notes(machine: Mapping[str, Any], buffer_bytes: int) -> list[str]:
    """A warning when the buffers may sit in a cache: then the figures are not main memory's."""
    cache = machine.get("last_level_cache_bytes")
    if machine.get("device") != "cpu" or cache is None or cache < buffer_bytes:
        return []
    return [
        f"buffers of {bytes_text(buffer_bytes)} fit in the reported last-level cache ({bytes_text(cache)}): "
        "bandwidths may be partly the cache's"
    ]


# --- Levels -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Visit:
    """A level to be measured with ``threads`` (None on a GPU): it holds ``capacity`` bytes (None: no end), and the best
    of these ``working_sets`` counts."""

    level: str
    threads: int | None
    capacity: int | None
    working_sets: tuple[int, ...]

    def name(self, probe: str, all_threads: int | None) -> str:
        """The name of a ceiling: ``read``, ``L2 read``, ``L2 read, 1 thread``."""
        prefix = "" if self.level == MEMORY else f"{self.level} "
        if self.threads == all_threads:
            return f"{prefix}{probe}"
        return f"{prefix}{probe}, {self.threads} thread{'s' if self.threads != 1 else ''}"


def thread_numbers(most: int) -> tuple[int, ...]:
    """All threads, and the powers of two below, the largest first: how a bandwidth grows with threads.

    >>> thread_numbers(6)
    (6, 4, 2, 1)
    """
    return (most, *(1 << k for k in reversed(range(most.bit_length())) if 1 << k < most))


def visits(caches: Iterable[Mapping[str, int]], threads: int) -> list[Visit]:
    """How every level is measured by that many threads. A cache that is hardly larger than the one before is left out.

    >>> [(v.level, [size >> 10 for size in v.working_sets]) for v in visits(
    ...     [{"level": 1, "bytes": 32 << 10, "shared_by": 1}, {"level": 2, "bytes": 1 << 20, "shared_by": 1}], 1)]
    [('L1', [8, 16]), ('L2', [181, 512])]
    """
    found = []
    before = 0
    for cache in caches:
        capacity = cache_capacity(dict(cache), threads)
        if capacity < 1.5 * before:
            continue
        half = capacity // 2
        between = math.isqrt(2 * before * half) if before else half // 2
        sets = (between, half) if between < half else (half,)
        found.append(Visit(f"L{cache['level']}", threads, capacity, sets))
        before = capacity
    return found


def _levels_round(
    device: str,
    size: int,
    caches: Sequence[Mapping[str, int]],
    best: dict[str, _Best],
    progress: Progress | None,
) -> tuple[bool, list[str]]:
    """Add a round of every level to ``best``; whether it ran to its end, and remarks. An interrupted round adds what it
    has of the levels that were done."""
    import torch

    from .bandwidth_kernels import GpuKernels, kernels_for

    try:
        kernels = kernels_for(device, 2 * size)
    except (BuildError, MissingDependencyError) as error:
        return True, [f"levels of memory were not measured ({error.what})"]
    if isinstance(kernels, GpuKernels):
        capacity, all_threads = kernels.spec.l2_bytes, None
        plan = [Visit("L2", None, capacity, (capacity // 4, capacity // 2)), Visit(MEMORY, None, None, (2 * size,))]
    else:
        all_threads = torch.get_num_threads()
        numbers = thread_numbers(all_threads)
        plan = [v for n in numbers for v in visits(caches, n)]
        plan += [Visit(MEMORY, n, None, (2 * size,)) for n in numbers[1:]]
    remarks = []
    if not caches and not isinstance(kernels, GpuKernels):
        remarks.append("the system does not report its caches, so that only main memory was measured")
    with quiet():
        try:
            for done, visit in enumerate(plan):
                if progress is not None:
                    progress(done / len(plan), f"bandwidth of {visit.level}")
                _visit(kernels, visit, all_threads, best)
        except KeyboardInterrupt:
            return False, remarks
    return True, remarks


def _visit(kernels: Any, visit: Visit, all_threads: int | None, best: dict[str, _Best]) -> None:
    """Take the readings of one level, probes taking turns, and keep the best of each."""
    far = {"far": True} if visit.level == MEMORY and visit.threads is not None else {}
    found: dict[str, float] = {}
    for _ in range(LEVEL_READINGS):
        for working_set in visit.working_sets:
            for probe in kernels.probes:
                value = kernels.bandwidth(probe, working_set, visit.threads, **far)
                found[probe] = max(value, found.get(probe, 0.0))
    for probe, value in found.items():
        name = visit.name(probe, all_threads)
        note = "past the caches: how fast memory takes them" if "streaming" in probe and visit.level != MEMORY else ""
        template = Ceiling(name, "bandwidth", 0.0, note, visit.level, visit.capacity, visit.threads)
        entry = best.setdefault(name, _Best(template))
        if visit.level == MEMORY and visit.threads == all_threads and entry.rounds:
            # PyTorch's operators had a GPU's memory just before: the better of both is this round's.
            if value > entry.rounds[-1]:
                entry.rounds[-1] = value
                entry.template = replace(entry.template, note="a Triton kernel of ours")
        else:
            entry.rounds.append(value)
