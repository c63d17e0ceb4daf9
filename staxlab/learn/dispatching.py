"""Dispatch as it must not be: versions chosen by a key with a part left out, by guards kept apart, by gates found late.

The exercises of Sections 2 and 3 ask what goes wrong when a piece of specialization is missing. The answer is not
argued but run: real keys (:mod:`staxlab.specialize.signature`), real captures and the real dispatcher, with one thing
broken on purpose. Whatever then comes out is compared with calling the function itself.

Versions are made by the ``eager`` backend, a prefix of the pipeline that ends with the transformed graph (Section
11.4): which version a call gets does not depend on how the version is executed, and no C++ compiler is needed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from ..api import compile as stax_compile
from ..capture.gates import replay_graph
from ..capture.module import GraphModule
from ..compilation import Compilation
from ..options import Options, host_device_spec
from ..pipeline import compile_region
from ..specialize.dispatch import Dispatcher, Version
from ..specialize.free_variables import collect
from ..specialize.guards import Guard, failing_guards
from ..specialize.signature import Key, compute_key
from ..specialize.structure import Parameters
from ..transform.dce import eliminate_dead_code

BACKEND = "eager"


def _compile(function: Callable, args: tuple, kwargs: dict[str, Any], key: Key | None = None) -> Compilation:
    return compile_region(function, args, kwargs, Options(backend=BACKEND), host_device_spec(), key=key)


@dataclass(frozen=True)
class Compiled:
    """A specialization version without its guard: made for some arguments, it runs on whatever it is given."""

    compilation: Compilation

    @classmethod
    def of(cls, function: Callable, *args: Any) -> Compiled:
        """Capture and transform ``function`` on these arguments. Raises CaptureError, or what the function raises."""
        return cls(_compile(function, args, {}))

    def __call__(self, *args: Any) -> Any:
        capture = self.compilation.capture
        return capture.rebuild(self.compilation.call(capture.bind(args, {})))


def key_of(function: Callable, *args: Any, gates: tuple[Any, ...] = ()) -> Key:
    """The specialization key of a call (Definition 2.2); ``gates`` are the answers of the data gates on it.

    Raises GuardError where an argument has no signature.
    """
    return compute_key(args, {}, collect(function, []), gates, parameter_name=Parameters.of(function).name)


def without(key: Key, argument: str) -> Key:
    """The key with everything left out that it says of one argument: its type, its value, its shape."""
    kept = [position for position, name in enumerate(key.names.args) if name != argument]
    sigma = dataclasses.replace(key.sigma, args=tuple(key.sigma.args[position] for position in kept))
    names = dataclasses.replace(key.names, args=tuple(key.names.args[position] for position in kept))
    return dataclasses.replace(key, sigma=sigma, names=names)


class ForgetfulCache:
    """A cache of versions (line 7 of Algorithm 2.1) whose key does not know one of the arguments.

    Calling it compiles where the rest of the key is new and otherwise reuses what is there; ``reused`` tells which it
    was for the last call, and ``refused`` the guards of the last version that sent it away.
    """

    def __init__(self, function: Callable, forgotten: str):
        self.function, self.forgotten = function, forgotten
        self.versions: list[tuple[Key, Compiled]] = []
        self.reused = False
        self.refused: tuple[Guard, ...] = ()

    def __call__(self, *args: Any) -> Any:
        key = without(key_of(self.function, *args), self.forgotten)
        for known, version in self.versions:
            if known == key:
                self.reused = True
                return version(*args)
        self.reused = False
        self.refused = failing_guards(self.versions[-1][0], key) if self.versions else ()
        version = Compiled.of(self.function, *args)
        self.versions.append((key, version))
        return version(*args)


# --- Gates that are looked for too late (Corollary 3.1) ---------------------------------------------------------------


@dataclass(eq=False)
class LateRegion:
    """A compiled region whose guard replay is extracted from what dead code elimination has left."""

    capture: Any
    key: Key | None = None

    def call(self, inputs: list[torch.Tensor]) -> Any:
        return self.capture.flat_results(self.capture.module(*inputs))

    @property
    def executor(self) -> Callable[[list[torch.Tensor]], Any]:
        return self.call


def slice_late(function: Callable, args: tuple, kwargs: dict[str, Any], key: Key | None = None) -> LateRegion:
    """Capture ``function``, eliminate dead code, and only then extract the replay subgraph (Algorithm 3.1 in the wrong
    place). A gate whose node has been eliminated cannot be found any more."""
    capture = _compile(function, args, kwargs, key).capture
    graph, twins = capture.graph.copy()
    eliminate_dead_code(graph)
    alive = set(graph)
    gates = tuple(
        dataclasses.replace(gate, node=twins[gate.node]) for gate in capture.gates if twins[gate.node] in alive
    )
    module = GraphModule(graph, capture.module.constants)
    late = dataclasses.replace(capture, module=module, gates=gates, replay=replay_graph(module, gates))
    return LateRegion(late)


def slicing_early(function: Callable) -> Dispatcher:
    """``function`` compiled as it should be."""
    return stax_compile(function, backend=BACKEND)


def slicing_late(function: Callable) -> Dispatcher:
    """``function`` under the compiler's own dispatcher, with gates looked for after dead code elimination."""
    return Dispatcher(function, slice_late, Options(backend=BACKEND))


def failing_on(version: Version, function: Callable, *args: Any) -> tuple[Guard, ...]:
    """The guards of a version that fail on a call. Its replay subgraph, if it has one, answers the gates."""
    capture = version.region.capture
    answers = capture.replay.evaluate(capture.bind(args, {})) if capture.replay is not None else ()
    actual = key_of(function, *args, gates=answers)
    names = dataclasses.replace(actual.names, gates=version.key.names.gates)
    return failing_guards(version.key, dataclasses.replace(actual, names=names))


def replayed(version: Version) -> int:
    """How many operations the version's replay subgraph runs at every call."""
    replay = version.region.capture.replay
    return len(replay.module.graph.calls) if replay is not None else 0


# --- Comparing results ------------------------------------------------------------------------------------------------


def same_result(a: Any, b: Any) -> bool:
    """Two tensors of equal shape, dtype and elements; NaN equals NaN, and 0.0 equals -0.0."""
    if not (isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor)):
        return False
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    return bool(((a == b) | ((a != a) & (b != b))).all())


def result_of(function: Callable, *args: Any) -> tuple[Any, str]:
    """(result, "") or (None, what was raised), and gradients are left out of it."""
    try:
        with torch.no_grad():
            return function(*args), ""
    except Exception as error:
        return None, f"{type(error).__name__}: {error}".splitlines()[0]


def value_text(value: Any) -> str:
    """A tensor of one repeated element as ``3 (float32, 2 x 4)``, another small one as its elements."""
    if not isinstance(value, torch.Tensor):
        return repr(value)
    size = " x ".join(map(str, value.shape)) or "one number"
    kind = f"{str(value.dtype).removeprefix('torch.')}, {size}"
    if value.numel() and bool((value == value.flatten()[0]).all()):
        return f"{value.flatten()[0].item():g} ({kind}, all elements alike)" if value.ndim else f"{value.item():g}"
    return f"{value.tolist()} ({kind})" if value.numel() <= 12 else f"a tensor ({kind})"
