"""CUDA Graphs around a compiled region (Section 9.9).

Every launch costs the host some microseconds, however short the kernel. Recording a region's launches once and
submitting them together afterwards pays that price once per call instead of once per kernel. A recording is a
specialization of the sequence of launches *and of all addresses in it* (Section 2): :mod:`.graph_checks` says whether a
region can have one at all, and here is its guard, which is looked at in every call:

    the inputs are where they were  ->  replay
    they are not                    ->  this call runs the compiled region itself

The first call for some addresses runs the region, which is the warm-up that recording needs; the second records, and
replays what it has recorded. So nothing is ever executed only for the sake of recording: a program that modifies its
inputs or draws random numbers does that once per call. Inputs that come from somewhere else every time are never
recorded for nothing, either.

Results lie in the graph's memory, and the next replay writes there again. A caller who still holds the last result must
not find other values in it, so a recording whose results are held is not replayed. ``y = f(x)`` in a loop holds the old
``y`` until the new one is there: two recordings that take turns serve that. Whoever holds more has the call run as it
is, with new memory for its results, and is told so once. With ``graph_outputs="copy"`` results are copied out instead;
what a forward half keeps for its backward stays, or else the backward would find it elsewhere every time.

With ``graph_inputs="copy"`` the inputs that are found at changing addresses are copied to a fixed place before each
replay. That is worth it for small inputs; those that stay where they are (parameters) and those that the program
modifies are still compared by address. In a backward half this is done with small upstream gradients in any case: it is
autograd that makes them, and nobody can tell it where.

States: *warming up* until the first recording, *recording* during one, *replaying* afterwards. If recording or
replaying fails, the state is *fallback* for good, with one warning that names the cause.

Replays of one region are in order whatever thread or stream they come from, for they share memory: a lock, and on
another stream a wait for all that was submitted to the last one. As with any memory of a stream, whoever reads a result
on a second stream has to make the first wait for it before calling again. In a forked child, and while the caller
records a graph of his own, a call runs as it is.
"""

from __future__ import annotations

import collections
import os
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import torch

from ..errors import GraphWarning
from ..provenance import SourceLocation, warn_user
from .graph_checks import GraphCheck, check_region
from .graph_devices import CudaGraphDevice, GraphDevice, Run
from .graph_recording import Recording, copied_out, describe_results, place_for, storages_of
from .graph_report import GraphReport, RecordingInfo

WARMING_UP, RECORDING, REPLAYING, FALLBACK = "warming up", "recording", "replaying", "fallback"
REFUSED, NOT_HERE = "refused", "checked only"

#: Recordings of a region, and those for the same addresses that take turns while results are held.
MOST_RECORDINGS, MOST_TURNS = 8, 2
#: So often must addresses come again, all recordings being in use for others, before they take the oldest one's place;
#: and so many calls are results waited for that are held, before new memory is taken for a recording.
PATIENCE = 16
SMALL = 4096  # bytes of an upstream gradient that is copied rather than compared by address
_REMEMBERED = 64  # addresses that have been seen and not recorded

# Why a call ran as it is.
FIRST_TIME = "the first call for these addresses (warm-up)"
ALL_TAKEN = "other addresses than those of the recordings, of which there are as many as may be"
HELD = "results of earlier calls are still held"
CAPTURED = "the caller records a graph of his own"
FORKED = "a forked process cannot use its parent's recordings"
FAILED = "the region is in its fallback state"
OTHER_INPUTS = "other inputs than the region was compiled for"


class GraphedRegion:
    """A compiled region that is recorded and replayed. Called like it: flat inputs in, flat results out.

    ``run`` is the region; ``name`` and ``where`` say in messages which. ``inputs`` is "check" or "copy", ``outputs``
    "reuse" or "copy". ``guarded`` says that whoever calls has checked number, shapes and strides of the inputs, as a
    specialization key does; else they are compared as well. ``movable`` are the inputs that are copied where they are
    found at changing addresses, and must not be any whose memory the region writes into; None: with ``inputs="copy"``
    all whose version counters the first call does not raise, else none. ``visible``: so many of the results, the first
    ones, go to the user (None: all). ``check`` is the static check, with the random generators to register.
    Thread-safe. The guard costs O(number of inputs).
    """

    def __init__(
        self,
        run: Run,
        device: GraphDevice,
        *,
        name: str = "region",
        where: SourceLocation | None = None,
        inputs: str = "check",
        outputs: str = "reuse",
        guarded: bool = False,
        movable: frozenset[int] | None = None,
        visible: int | None = None,
        check: GraphCheck | None = None,
        most_recordings: int = MOST_RECORDINGS,
    ):
        self.run, self.device, self.name, self.where = run, device, name, where
        self.inputs, self.outputs = inputs, outputs
        self.check = check or GraphCheck(name, looked_at=())
        self.state, self.cause = WARMING_UP, ""
        self.direct: collections.Counter[str] = collections.Counter()
        self.replays = 0
        self.dropped = 0
        self._guarded, self._visible = guarded, visible
        self._most = most_recordings
        self._lock = threading.Lock()
        self._process = os.getpid()
        self._recordings: dict[tuple, list[Recording]] = {}
        self._seen: collections.OrderedDict[tuple, int] = collections.OrderedDict()
        self._varying: frozenset[int] = frozenset()
        self._movable = frozenset() if movable is None and inputs == "check" else movable
        self._last_pointers: tuple[int, ...] | None = None
        self._layout: tuple | None = None
        self._stream: Any = None
        self._warned: dict = {}
        self._told_held = False
        self._held_calls, self._patience = 0, PATIENCE
        self._warm = threading.local()  # libraries have handles for each thread, and make them at the first use

    # -- a call -------------------------------------------------------------------------------------------------------

    def __call__(self, inputs: Any) -> Sequence[Any]:
        given = list(inputs)
        if self.state == FALLBACK:
            return self._directly(given, FAILED)
        if os.getpid() != self._process:
            return self._directly(given, FORKED)
        if self.device.is_capturing():
            return self._directly(given, CAPTURED)
        with self._lock:
            recording, reason = self._choose(given)
            if recording is not None:
                return self._replay(recording, given)
            if not self._is_warm() and self.state != FALLBACK:
                return self._warm_up(given, reason)
        return self._directly(given, reason)

    def _directly(self, given: list[Any], reason: str) -> Sequence[Any]:
        """Run the region itself."""
        self.direct[reason] += 1
        return self.run(_handed_over(given))

    def _warm_up(self, given: list[Any], reason: str) -> Sequence[Any]:
        self.direct[reason] += 1
        versions = _versions(given)
        results = self.device.warm_up(self.run, [*given])  # `given` holds them until the streams are in order
        self._warm.here = True
        if self._movable is None:
            seen = enumerate(zip(versions, _versions(given), given, strict=True))
            # An inference tensor has no counter to tell by.
            self._movable = frozenset(place for place, (a, b, x) in seen if a == b and not x.is_inference())
        return results

    def _choose(self, given: list[Any]) -> tuple[Recording | None, str]:
        """A recording that may be replayed for these inputs, made now if it is time; or None and the reason."""
        if not self._guarded and not self._same_layout(given):
            return None, OTHER_INPUTS
        pointers = tuple([x.data_ptr() for x in given])
        key = self._key(pointers)
        found = self._recordings.get(key, ())
        for recording in [*found]:
            if not recording.is_intact():
                self._forget(key, recording)
            elif not recording.is_busy():
                return recording, ""
        if key not in self._recordings:
            if self._movable is None or self._movable:
                key = self._learn(key, pointers)
            times = self._seen[key] = self._seen.pop(key, 0) + 1
            if len(self._seen) > _REMEMBERED:
                self._seen.popitem(last=False)
            if times == 1 or not self._is_warm():
                return None, FIRST_TIME
            if self._count() >= self._most and (times <= PATIENCE or not self._drop_oldest()):
                return None, ALL_TAKEN
            return self._record(given, pointers, key), FAILED
        if len(found) >= MOST_TURNS and self._is_time_to_give_up():
            self._forget(key, found[0])
        if len(found) < MOST_TURNS and self._count() < self._most and self._is_warm():
            return self._record(given, pointers, key), FAILED
        self._tell_held()
        return None, HELD

    def _is_warm(self) -> bool:
        """Whether this thread has run the region where it records."""
        return getattr(self._warm, "here", False)

    def _is_time_to_give_up(self) -> bool:
        """Whether results have been held for so many calls that they may be held for ever. Their memory is left to who
        holds them then. Each time takes twice as long as the one before: recording costs more than some launches."""
        self._held_calls += 1
        if self._held_calls < self._patience:
            return False
        self._held_calls, self._patience = 0, 2 * self._patience
        return True

    def _key(self, pointers: tuple[int, ...]) -> tuple[int | None, ...]:
        if not self._varying:
            return pointers
        return tuple([None if place in self._varying else p for place, p in enumerate(pointers)])

    def _learn(self, key: tuple, pointers: tuple[int, ...]) -> tuple:
        """Note which inputs are elsewhere than in the call before: they will be copied. Returns the key as of then."""
        last, self._last_pointers = self._last_pointers, pointers
        if last is None or len(last) != len(pointers):
            return key
        moved = {place for place, (a, b) in enumerate(zip(last, pointers, strict=True)) if a != b}
        moved = (moved & self._movable) - self._varying if self._movable else set()
        if not moved:
            return key
        self._varying |= moved
        self.dropped += self._count()
        self._recordings.clear()
        self._seen.clear()
        key = self._key(pointers)
        if key == self._key(last):
            self._seen[key] = 1  # the call before was this one's first
        return key

    def _same_layout(self, given: list[Any]) -> bool:
        layout = tuple([(x.shape, x.stride(), x.dtype, x.device) for x in given])
        if self._layout is None:
            self._layout = layout
        return layout == self._layout

    # -- recording and replaying --------------------------------------------------------------------------------------

    def _record(self, given: list[Any], pointers: tuple[int, ...], key: tuple) -> Recording | None:
        """A new recording for these inputs; None after a failure. Nothing is executed."""
        before, self.state = self.state, RECORDING
        try:
            copied = {place: place_for(given[place]) for place in self._varying}
            used = [copied.get(place, x) for place, x in enumerate(given)]
            versions = _versions(used)
            self._order()
            graph, delivered = self.device.record(self.run, [*used], self.check.generators)
            writes = tuple((k, b - a) for k, (a, b) in enumerate(zip(versions, _versions(used), strict=True)) if b != a)
            if any(place in copied for place, _ in writes):
                raise RuntimeError("an input that the program modifies was to be copied")
            results = describe_results(delivered, used)
            del delivered
            recording = Recording(graph, copied, writes, results, storages_of(results))
        except Exception as error:
            self._fail("recording", error)
            return None
        finally:
            if self.state == RECORDING:
                self.state = before
        self._recordings.setdefault(key, []).append(recording)
        self._seen.pop(key, None)
        return recording

    def _replay(self, recording: Recording, given: list[Any]) -> Sequence[Any]:
        try:
            self._order()
            recording.copy_in(given)
            self.device.replay(recording.graph)
        except Exception as error:
            self._fail("replaying", error)
            return self._directly(given, FAILED)
        self.state = REPLAYING
        self.replays += 1
        recording.replays += 1
        recording.last_used = self.replays
        recording.count_writes(given)
        results = recording.give_out(given)
        if self.outputs != "copy":
            return results
        return (*copied_out(results[: self._visible], recording), *results[len(results[: self._visible]) :])

    def _order(self) -> None:
        """Let the current stream wait for the one of the last replay, whose memory is about to be used again."""
        current = self.device.current_stream()
        if self._stream is not None and self._stream != current:
            self.device.wait(current, self._stream)
        self._stream = current

    def _fail(self, what: str, error: Exception) -> None:
        text = str(error).strip().split("\n")[0]
        self.state, self.cause = FALLBACK, f"{what} failed: {type(error).__name__}: {text}"
        self._recordings.clear()
        warn_user(
            f"{self.name} runs without CUDA Graphs from now on, its values are the same: {self.cause}"
            f"{self._at()}\n  remedy: options={{'cuda_graphs': False}} does not try",
            GraphWarning,
            self._warned,
        )

    def _tell_held(self) -> None:
        if self._told_held:
            return
        self._told_held = True
        warn_user(
            f"{self.name} cannot replay its CUDA Graph while results of earlier calls are held, and launches its "
            f"kernels one by one{self._at()}\n  remedy: keep result.clone() instead of the result, or compile with "
            "options={'graph_outputs': 'copy'}, which copies every result",
            GraphWarning,
            self._warned,
        )

    def _at(self) -> str:
        return f"\n  at {self.where}" if self.where else ""

    # -- the recordings -----------------------------------------------------------------------------------------------

    def _count(self) -> int:
        return sum(map(len, self._recordings.values()))

    def _forget(self, key: tuple, recording: Recording) -> None:
        """Give a recording up. Its memory stays with whoever holds results in it."""
        self._recordings[key].remove(recording)
        self.dropped += 1
        if not self._recordings[key]:
            del self._recordings[key]

    def _drop_oldest(self) -> bool:
        """Make room: forget the recording that has not been replayed for the longest time."""
        oldest = min(self._recordings, key=lambda key: max(r.last_used for r in self._recordings[key]), default=None)
        if oldest is None:
            return False
        self.dropped += len(self._recordings.pop(oldest))
        return True

    def reset(self) -> None:
        """Forget all recordings, and give their memory back as soon as nobody holds results in it."""
        with self._lock:
            self._recordings.clear()
            self._seen.clear()
            self._varying, self._last_pointers = frozenset(), None
            self._told_held = False
            self._warm = threading.local()
            if self.state != FALLBACK:
                self.state = WARMING_UP

    def report(self) -> GraphReport:
        """What has happened so far."""
        with self._lock:
            infos = tuple(
                RecordingInfo(number, recording.replays, len(recording.copied), recording.copied_bytes,
                              recording.result_bytes, recording.is_busy())
                for number, recording in enumerate((r for each in self._recordings.values() for r in each), 1)
            )  # fmt: skip
            return GraphReport(
                self.name, self.where, self.state, self.cause, self.check, self.inputs, self.outputs,
                infos, self.replays, tuple(self.direct.most_common()), self.dropped,
            )  # fmt: skip


def _versions(tensors: Sequence[torch.Tensor]) -> list[int]:
    return [0 if x.is_inference() else x._version for x in tensors]


def _handed_over(values: list[Any]) -> Iterator[Any]:
    """The values of a list, which is empty when the last one has been taken."""
    values.reverse()
    while values:
        yield values.pop()


# -- compilations ------------------------------------------------------------------------------------------------------


def graphed_call(compilation: Any) -> Run:
    """What a compilation's kernels are called through: the artifact itself, or recorded, where the options ask for it
    and the static check allows it. Keeps the :class:`GraphedRegion` in ``compilation.graphed``."""
    call = compilation.artifact.call
    if not compilation.options.cuda_graphs:
        return call
    check = check_region(compilation)
    device = graph_device(compilation) if check.allowed else None
    if device is None:
        return call
    compilation.graphed = graphed_region(compilation, call, device, check)
    return compilation.graphed


def graph_device(compilation: Any) -> GraphDevice | None:
    """The card that a compilation's kernels run on; None if it launches nothing on any."""
    devices = {torch.device(layout.device) for layout in compilation.schedule.layouts.values()}
    device = next(iter(devices), None)
    if device is None or device.type != "cuda":
        return None
    return CudaGraphDevice(torch.cuda.current_device() if device.index is None else device.index)


def graphed_region(compilation: Any, call: Run, device: GraphDevice, check: GraphCheck | None = None) -> GraphedRegion:
    """A compilation's region on a device of choice, with the options it was compiled with."""
    options = compilation.options
    return GraphedRegion(
        call,
        device,
        name=compilation.name,
        where=region_line(compilation),
        inputs=options.graph_inputs,
        outputs=options.graph_outputs,
        guarded=True,
        movable=_movable_inputs(compilation),
        visible=None if compilation.partition is None else len(compilation.joint.outputs),
        check=check or check_region(compilation),
    )


def _movable_inputs(compilation: Any) -> frozenset[int]:
    """The inputs that may be copied: none whose memory the region writes into (because the program modifies them, or
    they are left to it); of the others all with ``graph_inputs="copy"``, else small upstream gradients."""
    schedule = compilation.schedule
    written = {node.args[0].name for node in compilation.operators.write_backs} | set(compilation.owned_inputs)
    names = [(place, name) for place, name in enumerate(schedule.inputs) if name not in written]
    if compilation.options.graph_inputs == "copy":
        return frozenset(place for place, _ in names)
    if compilation.capture is not None:
        return frozenset()
    layouts = schedule.layouts
    small = {name for _, name in names if layouts[name].storage_elements * layouts[name].dtype.itemsize <= SMALL}
    return frozenset(place for place, name in names if name in small and name.startswith("tangents_"))


def graph_report(compilation: Any) -> GraphReport | None:
    """What there is to say about a compilation and CUDA Graphs; None if nobody asked for them."""
    if not compilation.options.cuda_graphs:
        return None
    if compilation.graphed is not None:
        return compilation.graphed.report()
    check = check_region(compilation)
    state = NOT_HERE if check.allowed else REFUSED
    return GraphReport(compilation.name, region_line(compilation), state, "", check)


def region_line(compilation: Any) -> SourceLocation | None:
    """The user's line that a region ends on: the one messages about it point at."""
    graph = compilation.operators.graph if compilation.operators is not None else compilation.graph
    writes = compilation.operators.write_backs if compilation.operators is not None else ()
    calls = [node for node in graph.calls if node not in writes] if graph is not None else []
    located = [node.location for node in calls if node.location is not None]
    return located[-1] if located else None
