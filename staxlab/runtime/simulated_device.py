"""A device without hardware that records and replays for real, on CPU tensors (Section 9.9 without a GPU).

While :class:`SimulatedDevice` records, PyTorch's operators and launches of kernels are not executed but noted, with the
very tensors they were given; memory that is asked for meanwhile keeps its address. A replay runs the list again on the
same memory. So what one learns from it about addresses, lifetimes of results and stale inputs is what a GPU does;
only time is not simulated, and neither are two things at once.

Results made while recording are filled with garbage, since nothing has computed them: who gives them out without
replaying will notice. What a GPU forbids while recording is forbidden here too: reading a value back, and results whose
shapes depend on data.

>>> device = SimulatedDevice()
>>> x = torch.tensor([1.0, 2.0])
>>> graph, (y,) = device.record(lambda inputs: (inputs[0] * 2,), [x], ())
>>> device.replay(graph)
>>> y.tolist()
[2.0, 4.0]
>>> x.fill_(5.0).tolist(), y.tolist()
([5.0, 5.0], [2.0, 4.0])
>>> device.replay(graph)
>>> y.tolist()
[10.0, 10.0]
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_map_only

from ..errors import OptionError
from ..operators.basis import is_random, is_view, written_arguments
from .graph_checks import SYNCHRONIZING
from .graph_devices import Run
from .graphs import GraphedRegion, graphed_region

_MAKES_MEMORY = frozenset("empty empty_like empty_strided new_empty new_empty_strided empty_permuted".split())


class SimulatedError(RuntimeError):
    """What a GPU would refuse while it records."""


class _Noting(TorchDispatchMode):
    """Notes operators instead of executing them."""

    def __init__(self, device: SimulatedDevice):
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func._opname
        if is_view(func) or name in _MAKES_MEMORY or name in ("detach", "alias", "lift_fresh"):
            return func(*args, **kwargs)
        tags = func.tags
        reads = torch.Tag.data_dependent_output in tags or torch.Tag.dynamic_output_shape in tags
        if reads or name in SYNCHRONIZING:
            raise SimulatedError(f"operation not permitted when stream is capturing: {name} waits for the device")
        written = written_arguments(func, args, kwargs)
        if written:
            self.device.note(func, args, kwargs)
            return written[0] if len(func._schema.returns) == 1 else tuple(written[: len(func._schema.returns)])
        with _same_random_state(func):
            results = func(*args, **kwargs)  # for its layout only
        several = results if isinstance(results, (tuple, list)) else (results,)
        tensors = [r if isinstance(r, torch.Tensor) else None for r in several]
        self.device.note(_into, (func, args, kwargs, tensors), {})
        for tensor in tensors:
            if tensor is not None and tensor.numel():
                tensor.view(-1).view(torch.uint8).fill_(0xA5) if tensor.is_contiguous() else tensor.fill_(77)
        return results


@contextlib.contextmanager
def _same_random_state(func: Any) -> Iterator[None]:
    """The generator is where it was afterwards: recording draws nothing."""
    state = torch.get_rng_state() if is_random(func) else None
    yield
    if state is not None:
        torch.set_rng_state(state)


def _into(func: Any, args: tuple, kwargs: dict, targets: list[torch.Tensor | None]) -> None:
    """Run an operator and put its results where they were when it was noted."""
    results = func(*args, **kwargs)
    several = results if isinstance(results, (tuple, list)) else (results,)
    for target, result in zip(targets, several, strict=True):
        if target is not None:
            target.copy_(result)


@dataclass(frozen=True, eq=False)
class SimulatedGraph:
    """Launches in order, each with the memory it was given, and what keeps the memory of the graph's own."""

    launches: tuple[tuple[Callable[..., Any], tuple, dict], ...]
    pool: tuple[torch.UntypedStorage, ...]


class SimulatedDevice:
    """A :class:`.graph_devices.GraphDevice` over CPU memory. ``stream`` is the current stream, any comparable value;
    ``log`` says what was asked of the device. ``fails_at`` is "record" or "replay", to see what happens then."""

    def __init__(self, fails_at: str = "") -> None:
        self.stream: Any = "stream 0"
        self.log: list[tuple[Any, ...]] = []
        self.launched = 0
        self.fails_at = fails_at
        self.capturing_elsewhere = False
        self._notes: list[tuple[Callable[..., Any], tuple, dict]] | None = None
        self._own: list[torch.UntypedStorage] = []
        self._given: set[int] = set()

    def launch(self, kernel: Callable[..., Any], *tensors: Any) -> None:
        """Run a kernel on tensors, or note that it is to be run."""
        if self._notes is not None:
            self.note(kernel, tensors, {})
        else:
            self.launched += 1
            kernel(*tensors)

    def note(self, function: Callable[..., Any], args: tuple, kwargs: dict) -> None:
        assert self._notes is not None
        with _disable_current_modes():
            self._notes.append((function, *tree_map_only(torch.Tensor, self._address, (args, kwargs))))

    def _address(self, tensor: torch.Tensor) -> torch.Tensor:
        """The memory of a tensor, which is all that a recording knows of it: no version counter, and no claim on the
        memory, unless it was asked for while recording and so is the graph's own."""
        if tensor.untyped_storage()._cdata not in self._given:
            self._own.append(tensor.untyped_storage())
        return _apart(tensor)

    def is_capturing(self) -> bool:
        return self._notes is not None or self.capturing_elsewhere

    def current_stream(self) -> Any:
        return self.stream

    def wait(self, stream: Any, earlier: Any) -> None:
        self.log.append(("wait", stream, earlier))

    def warm_up(self, run: Run, inputs: list[Any]) -> Sequence[Any]:
        self.log.append(("warm up",))
        return run(inputs)

    def record(self, run: Run, inputs: list[Any], generators: Sequence[Any]) -> tuple[Any, Sequence[Any]]:
        self.log.append(("record",))
        self._notes, self._own = [], []
        self._given = {x.untyped_storage()._cdata for x in inputs}
        try:
            with _Noting(self):
                results = run(inputs)
            if self.fails_at == "record":
                raise SimulatedError("capture failed, as planned")
            return SimulatedGraph(tuple(self._notes), tuple(self._own)), results
        finally:
            self._notes, self._own, self._given = None, [], set()

    def replay(self, graph: Any) -> None:
        if self.fails_at == "replay":
            raise SimulatedError("launch failed, as planned")
        self.log.append(("replay", self.stream))
        for function, args, kwargs in graph.launches:
            with torch.no_grad():
                function(*args, **kwargs)


def _apart(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory through a storage object of its own, which keeps nothing alive. Triton's interpreter, for one,
    leaves references to what it is given in cycles, until the garbage collector comes by."""
    own = tensor.untyped_storage()
    if not own.nbytes():
        return tensor.data
    storage = torch._C._construct_storage_from_data_pointer(own.data_ptr(), tensor.device, own.nbytes())
    memory = torch.empty(0, dtype=tensor.dtype)
    return memory.set_(storage, tensor.storage_offset(), tuple(tensor.shape), tensor.stride())


def simulated_region(compilation: Any, device: SimulatedDevice | None = None) -> GraphedRegion:
    """The region of a compilation for a GPU target, recorded and replayed on a simulated device: its own wrapper, its
    Triton kernels run by Triton's interpreter, on CPU tensors. ``compilation.graphs`` is then its report.

    >>> import staxlab
    >>> x = torch.tensor([1.0, 2.0])
    >>> asked = {"cuda_graphs": True}
    >>> compilation = staxlab.explain(lambda x: x * 2, x, target="sm_90", options=asked)
    >>> region = simulated_region(compilation)
    >>> [region([x])[0].tolist() for _ in range(3)], region.state
    ([[2.0, 4.0], [2.0, 4.0], [2.0, 4.0]], 'replaying')

    Raises OptionError for a compilation that has no GPU kernels, or that the static check refuses.
    """
    from ..codegen.triton.interpreter import interpret
    from .artifact import load

    if compilation.wrapper is None or not compilation.device.is_gpu:
        raise OptionError(
            f"{compilation.name} has no kernels for a GPU: {compilation.fallback_reason or compilation.target}",
            remedy='explain it with target="sm_90"',
        )
    device = device or SimulatedDevice()

    def launcher(kernel: Any) -> Callable[..., None]:
        return lambda *tensors: device.launch(lambda *given: interpret(kernel, [*map(_apart, given)]), *tensors)

    launchers = {kernel.name: launcher(kernel) for kernel in compilation.kernels if kernel.language == "triton"}
    artifact = load(compilation.wrapper, launchers)
    region = graphed_region(compilation, artifact.call, device)
    if not region.check.allowed:
        refused = region.check.obstacles[0]
        raise OptionError(f"{compilation.name} is not recorded: {refused}", remedy=refused.remedy)
    compilation.graphed = region
    return region
