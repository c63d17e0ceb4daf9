"""Software pipelining of a product's inner loop: stages, the room they take, and what they hide (Section 9.8).

Every step of the inner loop reads a slice of either operand and multiplies. With ``s`` stages there are ``s`` buffers
for the slices, so that while step ``t`` is computed, those of steps ``t + 1`` to ``t + s - 1`` can be under way. A
buffer takes ``(B_M + B_N) B_K b`` bytes of shared memory, which is what limits ``s`` (:func:`stage_budget`).

How many are worth it follows from a model of two resources, :func:`pipeline`: the memory answers a request after a
``latency`` and takes ``transfer`` to deliver a slice, one slice after the other; the compute units take ``compute`` for
a step, one step after the other. A load begins as soon as a buffer is free, that is, when step ``t - s`` has been
computed. In the long run a step takes

    ``max(compute, transfer, (latency + transfer + compute) / s)``

so from ``s >= 1 + (latency + transfer) / compute`` on, the memory's latency is hidden. Little's law (Little, 1961) says
the same from the side of the memory: a bandwidth ``B`` needs ``latency x B`` bytes under way
(:mod:`staxlab.measure.little`), of which :func:`bytes_in_flight` says how many a number of stages has.

>>> stage_budget((128, 128, 64), itemsize=2, epilogue_bytes=32 << 10).stages
6
>>> [str(pipeline(64, s, latency=6, transfer=1, compute=2).period) for s in (1, 2, 3, 4, 5)]
['9', '9/2', '3', '9/4', '2']
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

from ..codegen.triton.launch import LATENCY, bytes_in_flight_wanted
from ..errors import OptionError
from ..options import GPU_SPECS, Decision, DeviceSpec
from .tables import Table, Tabular, bytes_text


def stage_bytes(tile: Sequence[int], itemsize: int) -> int:
    """Bytes of the two slices of a step, ``(B_M + B_N) B_K b``. Raises OptionError for sizes below 1.

    >>> stage_bytes((128, 128, 64), 2)
    32768
    """
    if len(tile) != 3 or not all(isinstance(size, int) and size >= 1 for size in (*tile, itemsize)):
        raise OptionError(f"no stage of a tile {tuple(tile)} with elements of {itemsize} bytes",
                          remedy="give (B_M, B_N, B_K) and the bytes of an element, all 1 or more")  # fmt: skip
    rows, columns, depth = tile
    return (rows + columns) * depth * itemsize


@dataclass(frozen=True, repr=False)
class StageBudget(Tabular):
    """How many stages fit. Bytes kept for the ``epilogue`` and ``reserved`` for the system are those of each of
    ``instances`` program instances on a multiprocessor; ``decision`` is the greatest number of stages, with its
    reason."""

    tile: tuple[int, int, int]
    itemsize: int
    spec: DeviceSpec
    epilogue: int
    reserved: int
    instances: int
    decision: Decision

    @property
    def stages(self) -> int:
        return self.decision.choice

    @property
    def stage(self) -> int:
        """Bytes of one stage."""
        return stage_bytes(self.tile, self.itemsize)

    @property
    def shared(self) -> int:
        """Bytes of shared memory of a multiprocessor."""
        return self.spec.shared_memory_per_multiprocessor

    @property
    def room(self) -> int:
        """Bytes that one instance has for its stages."""
        return self.shared // self.instances - self.epilogue - self.reserved

    def used(self, stages: int) -> int:
        """Bytes of shared memory that one instance takes."""
        return stages * self.stage + self.epilogue

    def table(self) -> Table:
        in_flight = [bytes_in_flight(self.tile, self.itemsize, s, self.instances) for s in range(1, self.stages + 2)]
        rows = [
            (s, bytes_text(self.used(s)), "yes" if s <= self.stages else "no", bytes_text(flight))
            for s, flight in enumerate(in_flight, 1)
        ]
        caption = f"Stages of {' x '.join(map(str, self.tile))}, {self.itemsize} bytes each, on {self.spec.name}"
        wanted = bytes_in_flight_wanted(self.spec)
        notes = [
            f"a stage takes {bytes_text(self.stage)}; of {bytes_text(self.shared)} for {self.instances} "
            f"instance{'' if self.instances == 1 else 's'}, {bytes_text(self.epilogue)} each are kept for the epilogue"
            + (f" and {bytes_text(self.reserved)} by the system" if self.reserved else ""),
            str(self.decision),
            f"Little's law asks for {bytes_text(wanted)} under way on each multiprocessor, for a latency of "
            f"{LATENCY * 1e9:g} ns",
        ]
        return Table.build(caption, ("stages", "shared memory", "fits", "under way on a multiprocessor"), rows, notes)


def stage_budget(
    tile: Sequence[int],
    *,
    itemsize: int,
    device: DeviceSpec | str = "sm_90",
    epilogue_bytes: int = 0,
    instances: int = 1,
    reserved_bytes: int = 0,
) -> StageBudget:
    """The greatest ``num_stages`` for tiles ``(B_M, B_N, B_K)`` of ``itemsize`` bytes, by shared memory alone.

    ``instances`` run on a multiprocessor at the same time and divide its shared memory; each keeps ``epilogue_bytes``
    for laying out the result and ``reserved_bytes`` for the system (1 KiB on compute capability 8 and 9, which Section
    9.8 leaves out). Raises OptionError for a device whose shared memory is not known, or a tile that is too large for
    even one stage.
    """
    spec = GPU_SPECS[device] if isinstance(device, str) and device in GPU_SPECS else device
    if not isinstance(spec, DeviceSpec) or not spec.shared_memory_per_multiprocessor:
        raise OptionError(f"the shared memory of {getattr(spec, 'name', spec)!r} is not known",
                          remedy=f"give a DeviceSpec of a GPU, or one of {', '.join(GPU_SPECS)}")  # fmt: skip
    whole = all(isinstance(number, int) for number in (instances, epilogue_bytes, reserved_bytes))
    if not whole or instances < 1 or epilogue_bytes < 0 or reserved_bytes < 0:
        raise OptionError(f"{instances} instances, {epilogue_bytes} and {reserved_bytes} bytes make no budget",
                          remedy="give at least one instance, and no negative sizes")  # fmt: skip
    one, shared = stage_bytes(tile, itemsize), spec.shared_memory_per_multiprocessor
    room = shared // instances - epilogue_bytes - reserved_bytes
    most = room // one
    if most < 1:
        raise OptionError(f"one stage takes {bytes_text(one)}, and there is room for {bytes_text(max(room, 0))}",
                          remedy="take smaller tiles, or fewer instances")  # fmt: skip
    reason = f"{most} x {bytes_text(one)} = {bytes_text(most * one)} fit in {bytes_text(room)}, {most + 1} do not"
    rows, columns, depth = tile
    decision = Decision("num-stages", f"{rows} x {columns} x {depth}", most, reason, tuple(range(1, most + 2)),
                        (("stage bytes", one), ("shared memory", shared), ("epilogue bytes", epilogue_bytes),
                         ("instances", instances)))  # fmt: skip
    return StageBudget((rows, columns, depth), itemsize, spec, epilogue_bytes, reserved_bytes, instances, decision)


def multiplies_in_place(tile: Sequence[int], num_warps: int, device: DeviceSpec, tensor_cores: bool = True) -> bool:
    """Whether tensor cores read the operands where they lie in shared memory: instructions of four warps (``wgmma``),
    from compute capability 9 on, for tiles of 64 rows or more. ``tensor_cores``: float32 is not multiplied exactly."""
    return tensor_cores and device.compute_capability >= 90 and tile[0] >= 64 and num_warps % 4 == 0


def compiled_shared_bytes(
    tile: Sequence[int],
    itemsize: int,
    stages: int,
    device: DeviceSpec | str = "sm_90",
    *,
    num_warps: int = 4,
    tensor_cores: bool = True,
    epilogue_bytes: int = 0,
) -> int:
    """What Triton (3.6 and 3.9) allocates for such a loop, which is less than Section 9.8 reckons with.

    Where operands are multiplied in place (:func:`multiplies_in_place`), there are ``s`` buffers. Elsewhere a warp
    takes them into its registers first, which frees the buffer that is being computed: ``s - 1``. And the room for
    laying out the result (``epilogue_bytes``) is that of the buffers, which nobody needs any more by then.
    """
    spec = GPU_SPECS[device] if isinstance(device, str) else device
    in_place = multiplies_in_place(tile, num_warps, spec, tensor_cores)
    return max((stages if in_place else max(stages - 1, 1)) * stage_bytes(tile, itemsize), epilogue_bytes)


def bytes_in_flight(tile: Sequence[int], itemsize: int, stages: int, instances: int = 1) -> int:
    """Bytes under way on a multiprocessor while a step is computed: ``s - 1`` slices for each instance. With one stage
    it is the slice that everybody waits for, while nothing is computed."""
    if stages < 1 or instances < 1:
        raise OptionError(f"{stages} stages of {instances} instances", remedy="give 1 or more of both")
    return max(stages - 1, 1) * stage_bytes(tile, itemsize) * instances


# --- The model over time ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Step:
    """When a step of the inner loop does what: its load is asked for at ``asked`` and is there at ``loaded``; it is
    computed from ``started`` to ``computed``."""

    number: int
    asked: Fraction
    loaded: Fraction
    started: Fraction
    computed: Fraction


@dataclass(frozen=True, repr=False)
class Pipeline(Tabular):
    """The steps of an inner loop over time, with ``stages`` buffers. Times in one unit, whichever it is (``unit``).

    In a notebook a chart of loads and computation for this and other numbers of stages (:meth:`compared`)."""

    stages: int
    latency: Fraction
    transfer: Fraction
    compute: Fraction
    steps: tuple[Step, ...]
    unit: str = "time units"
    others: tuple[Pipeline, ...] = ()

    @property
    def duration(self) -> Fraction:
        """Until the last step is computed."""
        return self.steps[-1].computed

    @property
    def period(self) -> Fraction:
        """Time per step in the long run, ``max(compute, transfer, (latency + transfer + compute) / s)``."""
        return max(self.compute, self.transfer, (self.latency + self.transfer + self.compute) / self.stages)

    @property
    def limit(self) -> str:
        """Which of the three it is: "computation", "bandwidth" or "latency" (the first of equals)."""
        if self.period == self.compute:
            return "computation"
        return "bandwidth" if self.period == self.transfer else "latency"

    @property
    def busy(self) -> Fraction:
        """The share of the time in which the compute units work."""
        return len(self.steps) * self.compute / self.duration

    @property
    def enough(self) -> int:
        """The fewest stages after which more do not help."""
        floor = max(self.compute, self.transfer)
        return max(1, -(-(self.latency + self.transfer + self.compute) // floor)) if floor else 1

    def compared(self, stages: Sequence[int]) -> Pipeline:
        """This run, with those for other numbers of stages beside it."""
        others = tuple(
            pipeline(len(self.steps), s, latency=self.latency, transfer=self.transfer, compute=self.compute,
                     unit=self.unit) for s in stages
        )  # fmt: skip
        return replace(self, others=tuple(other for other in others if other.stages != self.stages))

    @property
    def runs(self) -> tuple[Pipeline, ...]:
        """This one and the others, by the number of stages."""
        return tuple(sorted((replace(self, others=()), *self.others), key=lambda run: run.stages))

    def summary(self) -> str:
        return (
            f"{len(self.steps)} steps in {float(self.duration):.4g} {self.unit} with {self.stages} "
            f"stage{'' if self.stages == 1 else 's'}: {float(self.period):.4g} each in the long run, limited by "
            f"{self.limit}; {float(self.busy):.0%} of the time is spent computing"
        )

    def table(self) -> Table:
        rows = [
            (run.stages, f"{float(run.duration):.4g}", f"{float(run.period):.4g}", run.limit, f"{float(run.busy):.0%}")
            for run in self.runs
        ]
        head = ("stages", f"in all ({self.unit})", "per step", "limited by", "computing")
        caption = (
            f"{len(self.steps)} steps: latency {float(self.latency):g}, transfer {float(self.transfer):g}, computation "
            f"{float(self.compute):g} {self.unit}"
        )
        return Table.build(caption, head, rows, [f"{self.enough} stages are enough"])

    def format(self, width: int = 72) -> str:
        """The table, and the runs in characters: ``.`` waits for the memory, ``-`` is delivered, ``#`` is computed."""
        return "\n\n".join([self.table().text(), *(run.text_chart(width) for run in self.runs)])

    def text_chart(self, width: int = 72, most: int = 12) -> str:
        """A line for each of the first steps, the time from left to right."""
        shown = self.steps[:most]
        end = shown[-1].computed
        lines = [f"{self.stages} stage{'' if self.stages == 1 else 's'}, to {float(end):.4g} {self.unit}"]
        for step in shown:
            cells = [" "] * width
            delivery = step.loaded - self.transfer
            for mark, start, stop in ((".", step.asked, delivery), ("-", delivery, step.loaded),
                                      ("#", step.started, step.computed)):  # fmt: skip
                for place in range(round(start / end * width), round(stop / end * width)):
                    cells[place] = mark
            lines.append(f"step {step.number:>3} |{''.join(cells).rstrip()}")
        return "\n".join(lines)

    __str__ = __repr__ = format


def pipeline(
    steps: int, stages: int, *, latency: Any, transfer: Any = 0, compute: Any, unit: str = "time units"
) -> Pipeline:
    """Run ``steps`` steps of an inner loop with ``stages`` buffers; exact, O(steps).

    ``latency``, ``transfer`` and ``compute`` are times in ``unit``. A load is asked for when its buffer is free; the
    memory answers loads in order, each delivered no earlier than ``latency`` after it was asked for and ``transfer``
    after the one before; a step is computed once its slice is there and the step before is done. Raises OptionError for
    no steps, no stages, negative times, or times that are all zero.
    """
    try:
        times = tuple(Fraction(time) for time in (latency, transfer, compute))
    except (TypeError, ValueError, OverflowError):  # no numbers, NaN, or infinite
        times = ()
    whole = isinstance(steps, int) and isinstance(stages, int)
    if not whole or steps < 1 or stages < 1 or not any(times) or min(times) < 0:
        times_text = f"times {latency}, {transfer} and {compute}"
        raise OptionError(f"no pipeline of {steps} steps in {stages} stages with {times_text}",
                          remedy="give at least one step and one stage, and times of which one is above 0")  # fmt: skip
    wait, pass_time, work = times
    found: list[Step] = []
    for number in range(steps):
        free = found[number - stages].computed if number >= stages else Fraction(0)
        asked = max(free, found[-1].asked) if found else free
        port = found[-1].loaded if found else Fraction(0)
        loaded = max(asked + wait, port) + pass_time
        started = max(loaded, found[-1].computed if found else Fraction(0))
        found.append(Step(number, asked, loaded, started, started + work))
    return Pipeline(stages, wait, pass_time, work, tuple(found), unit)
