"""The few things of CUDA that recording and replaying need, behind one interface (Section 9.9).

:class:`GraphDevice` says what :class:`.graphs.GraphedRegion` asks of a device; :class:`CudaGraphDevice` answers with
``torch.cuda``, and :class:`.simulated_device.SimulatedDevice` without a GPU, for tests and for readers.

What recording on a GPU has to look after:

* Recording executes nothing: launches on the recording stream go into the graph. What has to happen once before, such
  as compiling a kernel, loading its machine code, or a library's making of its workspace, is not allowed meanwhile; so
  the program runs once on the very stream that will record (``warm_up``).
* Memory asked for while recording comes from a pool that belongs to the graph, since the addresses are burnt in.
* Python's garbage collector might destroy some other CUDA object meanwhile, which may be a forbidden call: it pauses.
* Only this thread's calls are forbidden (``thread_local``): another thread may go on copying batches.
* One recording at a time: PyTorch's random generator can serve one. Another thread that draws random numbers on this
  card meanwhile gets PyTorch's error, not wrong numbers.
* After a failure nothing may be left recording: neither the stream, nor the allocator, nor the random generator.
"""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

Run = Callable[[Any], Sequence[Any]]

_one_at_a_time = threading.Lock()


class GraphDevice(Protocol):
    """What a device must be able to do so that launches can be recorded on it and replayed."""

    def is_capturing(self) -> bool:
        """Whether the current stream is recording for somebody else."""
        ...

    def current_stream(self) -> Any:
        """The stream that the caller's work goes to, comparable by ``==``."""
        ...

    def wait(self, stream: Any, earlier: Any) -> None:
        """Let what is submitted to ``stream`` from now on wait for what has been submitted to ``earlier``."""
        ...

    def warm_up(self, run: Run, inputs: list[Any]) -> Sequence[Any]:
        """Run on the recording stream, ordered before and after the current one. Returns the results."""
        ...

    def record(self, run: Run, inputs: list[Any], generators: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        """(graph, results): ``run(inputs)`` recorded and not executed. Whatever it raises, nothing records after."""
        ...

    def replay(self, graph: Any) -> None:
        """Submit a graph to the current stream."""
        ...


class CudaGraphDevice:
    """``torch.cuda`` as a :class:`GraphDevice`, for one card. All recordings made through one object share a private
    pool: they must be replayed in stream order, which :class:`.graphs.GraphedRegion` sees to."""

    def __init__(self, index: int):
        self.index = index
        self._side: Any = None
        self._pool: Any = None

    @property
    def side(self) -> Any:
        """The stream that recordings are made on."""
        if self._side is None:
            self._side = torch.cuda.Stream(device=self.index)
        return self._side

    def is_capturing(self) -> bool:
        return torch.cuda.is_current_stream_capturing()

    def current_stream(self) -> Any:
        return torch.cuda.current_stream(self.index)

    def wait(self, stream: Any, earlier: Any) -> None:
        stream.wait_stream(earlier)

    def warm_up(self, run: Run, inputs: list[Any]) -> Sequence[Any]:
        current, side = self.current_stream(), self.side
        side.wait_stream(current)
        with torch.cuda.stream(side):
            results = run(inputs)
        current.wait_stream(side)
        for result in results:
            if isinstance(result, torch.Tensor):
                result.record_stream(current)  # its memory belongs to the other stream
        return results

    def record(self, run: Run, inputs: list[Any], generators: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        with _one_at_a_time:
            return self._record(run, inputs, generators)

    def _record(self, run: Run, inputs: list[Any], generators: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        graph = torch.cuda.CUDAGraph()
        register = getattr(graph, "register_generator_state", None)
        for generator in generators:
            if register is None:
                raise RuntimeError("this PyTorch cannot register a random generator with a graph")
            register(generator)
        used = [torch.cuda.default_generators[self.index], *generators]
        saved = [generator.clone_state() for generator in used]
        side = self.side
        side.wait_stream(self.current_stream())
        with _no_garbage_collection(), torch.cuda.device(self.index), torch.cuda.stream(side):
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
            try:
                results = run(inputs)
            except BaseException:
                self._abandon(graph, used, saved)
                raise
            try:
                graph.capture_end()
            except BaseException:
                self._abandon(None, used, saved)
                raise
        return graph, results

    def _abandon(self, graph: Any, generators: list[Any], saved: list[Any]) -> None:
        """End a recording that failed, and put right what PyTorch leaves behind when ending it fails as well."""
        if graph is not None:
            with contextlib.suppress(RuntimeError):  # it says once more that the recording is invalid
                graph.capture_end()
        with contextlib.suppress(Exception):  # not there, or ended already
            torch._C._cuda_endAllocateToPool(self.index, self._pool)
        for generator, state in zip(generators, saved, strict=True):
            with contextlib.suppress(Exception):  # a state that still believes it is recording refuses to draw
                generator.graphsafe_set_state(state.graphsafe_get_state())

    def replay(self, graph: Any) -> None:
        if torch.cuda.current_device() == self.index:
            graph.replay()
        else:
            with torch.cuda.device(self.index):
                graph.replay()


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
