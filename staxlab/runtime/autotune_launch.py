"""A kernel that finds its launch configuration when it is first called (Algorithm 9.1, Section 9.6).

The first call has what a measurement needs: arguments. It asks the disk record; if there is none, it searches by the
method of ``options={"autotune": ...}`` and keeps the finding. From then on it is the launcher of one kernel.

Measuring must leave no trace. A kernel that adds into what it finds (a scatter, an atomic sum), or whose result shares
memory with an input, computes something else when it runs twice, so whatever it writes and also reads is measured on
clones; every other result is overwritten by the call itself, which runs the chosen kernel on the actual arguments.
Ctrl-C during a search ends the search: the call goes on with the rule's configuration, which nothing is recorded of.

Different configurations add up in different orders, so a sum may differ in its last bits from what the rule's
configuration gives. The record keeps one machine's choice the same from run to run.
"""

from __future__ import annotations

import contextlib
import math
import random
import threading
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

import torch

from .. import logs
from ..codegen.configurations import Configuration
from ..codegen.kernel import Kernel
from ..errors import BuildError, CodegenError
from ..options import SEARCH_METHODS
from . import autotune_record
from .autotune import THRESHOLD, Search, coordinate_descent, random_search, select, successive_halving
from .autotune_noise import READINGS, Interleaved

READING_SECONDS = 1e-3  # of device time that a reading averages over, so that the events' own cost vanishes
MOST_CALLS = 200
HALVING_ARMS = 16

Launch = Callable[..., None]
Timer = Callable[[Launch, Sequence[torch.Tensor]], float]


class EventTimer:
    """Seconds per launch, between two CUDA events around as many launches as take about a millisecond.

    Launches follow each other on the same arguments, so what fits into the second-level cache is read from there.
    """

    def __init__(self) -> None:
        self.calls: MutableMapping[Launch, int] = WeakKeyDictionary()

    def __call__(self, launch: Launch, tensors: Sequence[torch.Tensor]) -> float:
        calls = self.calls.get(launch)
        if calls is None:
            once = max(min(self._reading(launch, tensors, 3) for _ in range(2)), 1e-7)
            calls = self.calls[launch] = max(1, min(MOST_CALLS, math.ceil(READING_SECONDS / once)))
        return self._reading(launch, tensors, calls)

    @staticmethod
    def _reading(launch: Launch, tensors: Sequence[torch.Tensor], calls: int) -> float:
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        for _ in range(calls):
            launch(*tensors)
        stop.record()
        stop.synchronize()
        return max(start.elapsed_time(stop) * 1e-3 / calls, 1e-9)


def spills_of(launch: Launch) -> int:
    """Registers per thread that the compiler put into local memory, as Triton counts them; 0 where nothing is said."""
    compiled = getattr(launch, "compiled", ())
    return max((getattr(one, "n_spills", 0) or 0 for one in compiled), default=0)


class KernelCost:
    """The cost of a configuration of one kernel on given arguments, in seconds: one reading per call.

    Infinite for what is not feasible, what the compiler refuses, and what spills registers (Algorithm 9.1, line 4).
    ``launchers`` has those made so far; ``excluded`` says why a configuration is out. ``ahead`` compiles several at
    once, where something can (:func:`~staxlab.runtime.triton_builds.compile_kernels`).
    """

    def __init__(
        self,
        tuning: Any,
        load: Callable[[Kernel], Launch],
        timer: Timer,
        tensors: Sequence[torch.Tensor],
        ahead: Callable[[list[Kernel]], Any] | None = None,
    ):
        self.tuning, self.load, self.timer, self.tensors, self.ahead = tuning, load, timer, tensors, ahead
        self.launchers: dict[Configuration, Launch] = {}
        self.excluded: dict[Configuration, str] = {}

    def __call__(self, configuration: Configuration) -> float:
        launch = self.launchers.get(configuration)
        if launch is None and configuration not in self.excluded:
            launch = self._prepare(configuration)
        return math.inf if configuration in self.excluded else self.timer(launch, self.tensors)

    def prepare(self, configurations: Sequence[Configuration]) -> None:
        """Have those that will be asked for compiled side by side. What is refused is found out when its turn comes."""
        kernels = []
        for configuration in configurations if self.ahead is not None else ():
            if configuration not in self.launchers and configuration not in self.excluded:
                with contextlib.suppress(CodegenError):
                    kernels.append(self.tuning.kernel(configuration))
        if len(kernels) > 1:
            self.ahead(kernels)

    def _prepare(self, configuration: Configuration) -> Launch | None:
        try:
            launch = self.load(self.tuning.kernel(configuration))
            launch(*self.tensors)  # compiles, and warms up
        except (CodegenError, BuildError) as error:
            self.excluded[configuration] = error.what
            return None
        if spilled := spills_of(launch):
            self.excluded[configuration] = f"{spilled} registers per thread spill"
            return None
        self.launchers[configuration] = launch
        return launch


def search_kernel(
    tuning: Any, cost: Any, method: str, *, readings: int = READINGS, seed: int = 0, subject: str = ""
) -> Search:
    """Search for the configuration of a kernel by one of ``SEARCH_METHODS``.

    ``tuning`` is a :class:`~staxlab.codegen.triton.candidates.KernelTuning`, ``cost`` takes one reading of a
    configuration, in seconds. Descent begins where the candidate set ends (Section 9.6); the search over the
    candidates is its ``before``. Halving gets the candidates and as many drawn from the space as make sixteen.
    """
    meter = Interleaved(cost, readings)
    if method == "random":
        return random_search(tuning.space, meter, seed=seed, start=tuning.rule, subject=subject)
    if method == "halving":
        generator = random.Random(seed)
        drawn = (tuning.space.draw(generator) for _ in range(16 * HALVING_ARMS))
        arms = list(dict.fromkeys([*tuning.candidates, *filter(tuning.feasible, drawn)]))[:HALVING_ARMS]
        return successive_halving(arms, meter, space=tuning.space, subject=subject)
    first = select(tuning.candidates, meter, space=tuning.space, threshold=THRESHOLD, subject=subject)
    if method == "candidates" or not first.complete:
        return first
    descended = coordinate_descent(tuning.space, first.chosen, meter, subject=subject)
    return replace(descended, before=first)


class TunedLauncher:
    """``launcher(*tensors)`` runs a kernel in the configuration that its first call found; ``search`` says how.

    ``method`` is one of ``SEARCH_METHODS``. ``load`` makes a launcher of a kernel and ``timer`` takes a reading of one,
    by default on CUDA; ``device`` and ``version`` (of Triton) name the record on disk. While a CUDA graph is being
    recorded nothing can be measured, so the rule's kernel runs. Raises as the launcher of the chosen kernel does.
    """

    def __init__(
        self,
        kernel: Kernel,
        method: str = SEARCH_METHODS[0],
        *,
        load: Callable[[Kernel], Launch] | None = None,
        timer: Timer | None = None,
        readings: int = READINGS,
        device: str | None = None,
        version: str | None = None,
    ):
        from ..codegen.triton.launcher import load as load_on_device

        self.kernel, self.method, self.readings = kernel, method, readings
        self.load, self.timer = load or load_on_device, timer or EventTimer()
        self.ahead = _compile_ahead if load is None else None
        self.device, self.version = device, version
        self.search: Search | None = None
        self.rule = self.load(kernel)
        self._chosen: Launch | None = None
        self._searching = threading.Lock()

    def __call__(self, *tensors: torch.Tensor) -> None:
        chosen = self._chosen
        if chosen is None:
            chosen = self._choose(tensors)
        chosen(*tensors)

    @property
    def configuration(self) -> Configuration:
        """The configuration in use: the rule's until the first call has found another."""
        return self.kernel.tuning.rule if self.search is None else self.search.chosen

    @property
    def compiled(self) -> list[Any]:
        """Triton's compiled kernels of the configuration in use, one per alignment seen."""
        return getattr(self._chosen or self.rule, "compiled", [])

    def _choose(self, tensors: Sequence[torch.Tensor]) -> Launch:
        if 0 in self.kernel.launch["grid"] or _is_recording(tensors):
            return self.rule
        with self._searching:
            if self._chosen is None:
                self._chosen = self._find(tensors)
            return self._chosen

    def _find(self, tensors: Sequence[torch.Tensor]) -> Launch:
        tuning = self.kernel.tuning
        device = self.device or torch.cuda.get_device_name(tensors[0].device)
        version = self.version or _triton_version()
        choices = tuning.candidates if self.method == "candidates" else str(tuning.space)
        key = autotune_record.key_of(self.kernel, self.method, choices, device, version)
        found = autotune_record.read(key, tuning.space)
        if found is not None:
            self.search = replace(found, reason=f"recorded: {found.reason}")
            logs.say("autotune", lambda: f"{self.kernel.name}: {self.search.decision}")
            return self._launcher_of(found.chosen)
        try:
            measured_on = stand_ins(self.kernel, tensors)
        except torch.OutOfMemoryError:
            from ..provenance import warn_user

            warn_user(f"no memory to measure {self.kernel.name} on copies; it runs as the rules say", UserWarning)
            return self.rule
        cost = KernelCost(tuning, self._load_once, self.timer, measured_on, self.ahead)
        search = search_kernel(tuning, cost, self.method, readings=self.readings, subject=self.kernel.name)
        if not search.complete:
            from ..provenance import warn_user

            rule = tuning.space.words(tuning.rule)
            warn_user(f"the search for {self.kernel.name} was interrupted; it runs with the rule's {rule}", UserWarning)
            self.search = replace(search, chosen=tuning.rule, cost=search.costs.get(tuning.rule, math.nan))
            return self.rule
        self.search = search
        logs.say("autotune", lambda: f"{self.kernel.name}: {search}")
        autotune_record.write(key, search, self.kernel.name, device, version)
        return cost.launchers.get(search.chosen) or self._launcher_of(search.chosen)

    def _load_once(self, kernel: Kernel) -> Launch:
        """A launcher; that of the rule's own text is there already."""
        same = kernel.source == self.kernel.source and kernel.launch == self.kernel.launch
        return self.rule if same else self.load(kernel)

    def _launcher_of(self, configuration: Configuration) -> Launch:
        return self._load_once(self.kernel.tuning.kernel(configuration))


def _compile_ahead(kernels: list[Kernel]) -> None:
    from .triton_builds import compile_kernels

    compile_kernels(kernels)


def stand_ins(kernel: Kernel, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
    """The arguments for measuring: a clone wherever the kernel writes what it or another argument reads, the rest as it
    is. Raises torch.OutOfMemoryError where a clone does not fit."""
    found = list(tensors)
    for place, argument in enumerate(kernel.arguments):
        if argument.role == "input":
            continue
        shared = any(_overlap(tensors[place], other) for k, other in enumerate(tensors) if k != place)
        if argument.role == "inout" or argument.shared or shared:
            found[place] = _clone(tensors[place])
    return found


def _clone(tensor: torch.Tensor) -> torch.Tensor:
    """The same values at the same strides, in memory of its own."""
    made = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device)
    return made.copy_(tensor)


def _overlap(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether the stretches of memory of two tensors meet."""
    (a, b), (c, d) = _stretch(one), _stretch(other)
    return a < d and c < b


def _stretch(tensor: torch.Tensor) -> tuple[int, int]:
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    last = sum((extent - 1) * step for extent, step in zip(tensor.shape, tensor.stride(), strict=True))
    return start, start + (last + 1) * tensor.element_size()


def _is_recording(tensors: Sequence[torch.Tensor]) -> bool:
    return bool(tensors) and tensors[0].is_cuda and torch.cuda.is_current_stream_capturing()


def _triton_version() -> str:
    from ..codegen.triton.source_files import require_triton

    return require_triton().__version__
