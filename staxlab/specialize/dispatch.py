"""Dispatch (Section 2.4, Algorithm 2.1): from a call to the compiled version that is valid for it.

Deciding must cost far less than computing, so there are three levels, cheapest first:

1. *the same objects*: every argument is the very tensor of the last call and has not been touched (``_version``), and so
   are the free variables. Nothing about the key can have changed.
2. *fingerprints*: the free part of the key (weights, training flags, submodules) is taken over from the last call if its
   objects are the same. In a model that is nearly everything; only the fresh batch is described anew.
3. *the key*: computed and looked up in a dictionary. If the version found asked questions about data, its guard replay
   runs and the answers are compared.

If no version fits, the guards of each that came close say why, and a new version is compiled. Numbers of versions and of
compilations are bounded; beyond the bound the function simply runs eagerly, with one warning that names the component which
keeps changing and what to do about it.

The dispatcher knows nothing of how regions are made: ``compile_region(fn, args, kwargs, key)`` returns an object with
``capture`` (which binds arguments to flat tensors and rebuilds results) and ``call(flat tensors) -> flat results``.
"""

from __future__ import annotations

import collections
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch

from ..errors import GuardError, RecompileWarning
from ..options import Options
from .ambient import must_run_eagerly, read_ambient
from .free_variables import Environment, collect
from .guards import Guard, failing_guards, guards
from .signature import (
    OBJECT,
    InputSignature,
    Key,
    KeyNames,
    Signature,
    aliasing,
    gate_signature,
    identity,
    signature,
    tensor_signature,
    tensors_of,
)
from .structure import Parameters, children


class Region(Protocol):
    """What ``compile_region`` returns."""

    capture: Any
    key: Key | None

    def call(self, inputs: list[torch.Tensor]) -> Any: ...


CompileRegion = Callable[[Any, tuple, dict, Key], Region]


@dataclass(eq=False)
class Version:
    """A specialization version (Definition 2.1): its key and the region compiled for it."""

    key: Key
    region: Region
    number: int
    calls: int = 0
    replay_code: str = field(default="", repr=False)

    @property
    def guards(self) -> tuple[Guard, ...]:
        """One guard for each component of the key."""
        return guards(self.key)

    @property
    def compilation(self) -> Any:
        """The record of the compilation, if the region keeps one."""
        return getattr(self.region, "compilation", self.region)

    def __str__(self) -> str:
        return f"version {self.number}\n" + "\n".join(f"    {guard.condition}" for guard in self.guards)


@dataclass(frozen=True)
class Recompile:
    """Why a call fitted no version: for each existing version, the guards that failed."""

    function: str
    failures: tuple[tuple[int, tuple[Guard, ...]], ...]

    def __str__(self) -> str:
        parts = [f"version {number}: {', '.join(map(str, failed))}" for number, failed in self.failures]
        return f"recompiling {self.function!r}: " + "; ".join(parts)


@dataclass(frozen=True)
class CacheInfo:
    """Counts of how calls were dispatched, by level, and what has been compiled."""

    same_objects: int
    fingerprint: int
    key: int
    compilations: int
    versions: int
    eager: int

    @property
    def hits(self) -> int:
        return self.same_objects + self.fingerprint + self.key


class FreeState:
    """The free part of the key, kept as long as its objects are the same (level 2)."""

    def __init__(self, environment: Environment):
        self.environment = environment
        self.references: tuple[weakref.ref, ...] | None = None
        self.pointers: tuple[Any, ...] = ()
        self.scalars: tuple[Any, ...] = ()
        self.tensor_part: tuple[Signature, ...] = ()
        self.scalar_part: tuple[Signature, ...] = ()
        self.object_part = tuple((OBJECT, type(v), identity(v)) for v in environment.expected)

    def refresh(self) -> bool:
        """Bring the free part up to date. True if it is what it was."""
        environment, same = self.environment, True
        scalars = environment.read_scalars()
        if len(scalars) != len(self.scalars) or any(a is not b for a, b in zip(scalars, self.scalars, strict=True)):
            part = tuple(signature(value) for value in scalars)
            same = part == self.scalar_part and bool(self.scalars)
            self.scalars, self.scalar_part = scalars, part
        tensors = environment.read_tensors()
        if not self.unchanged(tensors):
            part = tuple(signature(value) for value in tensors)
            self.tensor_part = part
            self.references = tuple(weakref.ref(t) if isinstance(t, torch.Tensor) else (lambda: None) for t in tensors)
            self.pointers = tuple(_fingerprint(t) for t in tensors)
            return False
        return same

    def unchanged(self, tensors: tuple[Any, ...]) -> bool:
        references = self.references
        if references is None:
            return False
        for tensor, reference, fingerprint in zip(tensors, references, self.pointers, strict=True):
            if reference() is not tensor or _fingerprint(tensor) != fingerprint:
                return False
        return True


def _fingerprint(tensor: Any) -> Any:
    """What must be equal for a tensor object to have kept its metadata: assigning ``.data`` (as ``module.half()`` does)
    changes the pointer, ``requires_grad_`` the flag, in-place reshaping the version."""
    if not isinstance(tensor, torch.Tensor):
        return tensor
    try:
        return tensor._version, tensor.data_ptr(), tensor.requires_grad, tensor.dtype, tensor.shape
    except RuntimeError:  # inference tensors keep no version
        return object()


class LastCall:
    """The last call's tensors, and the version that served them (level 1)."""

    __slots__ = ("version", "references", "versions", "layouts", "ambient", "state", "call", "bind", "rebuild")

    def __init__(self, version: Version, args: tuple, ambient: Any, state: FreeState):
        capture = version.region.capture
        self.version, self.ambient, self.state = version, ambient, state
        self.call, self.bind, self.rebuild = version.region.call, capture.bind, capture.rebuild
        self.references = tuple(map(weakref.ref, args))
        self.versions = tuple(a._version for a in args)
        self.layouts = tuple((a.shape, a.stride(), a.dtype, a.requires_grad) for a in args)

    def matches(self, args: tuple) -> bool:
        if len(args) != len(self.references):
            return False
        for arg, reference, version, layout in zip(args, self.references, self.versions, self.layouts, strict=True):
            if reference() is not arg or arg._version != version:
                return False
            if (arg.shape, arg.stride(), arg.dtype, arg.requires_grad) != layout:
                return False
        return True


class Dispatcher:
    """A function together with its compiled versions. Calling it dispatches (Algorithm 2.1). Thread-safe."""

    def __init__(self, fn: Any, compile_region: CompileRegion, options: Options | None = None):
        self.fn = fn
        self.compile_region = compile_region
        self.options = options or Options()
        self.parameters = Parameters.of(fn)
        self.name = getattr(fn, "__name__", None) or type(fn).__name__
        self._lock = threading.RLock()
        self.reset()

    def reset(self) -> None:
        """Forget all versions and counts."""
        with self._lock:
            self._versions: list[Version] = []
            self._cache: dict[tuple, list[Version]] = {}
            self._states: dict[tuple, FreeState] = {}
            self._last: LastCall | None = None
            self._counts: collections.Counter[str] = collections.Counter()
            self._recompiles: list[Recompile] = []
            self._changed: collections.Counter[tuple[str, str]] = collections.Counter()
            self._warned = False
            self.last_level = 0

    @property
    def versions(self) -> tuple[Version, ...]:
        return tuple(self._versions)

    @property
    def recompiles(self) -> tuple[Recompile, ...]:
        """The reason of every compilation after the first."""
        return tuple(self._recompiles)

    def cache_info(self) -> CacheInfo:
        counts = self._counts
        return CacheInfo(
            counts["same objects"], counts["fingerprint"], counts["key"], counts["compiled"], len(self._versions),
            counts["eager"],
        )  # fmt: skip

    # -- a call -----------------------------------------------------------------------------------------------------

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        last = self._last
        if last is not None and not kwargs and last.matches(args) and self._level_one(last):
            self._counts["same objects"] += 1
            self.last_level = 1
            last.version.calls += 1
            return last.rebuild(last.call(last.bind(args, kwargs)))
        if must_run_eagerly():
            return self.fn(*args, **kwargs)
        if kwargs:
            args, kwargs = self.parameters.canonical(len(args), tuple(kwargs))(args, kwargs)
        version, flat = self._find(args, kwargs)
        if version is None:
            self._counts["eager"] += 1
            return self.fn(*args, **kwargs)
        version.calls += 1
        return version.region.capture.rebuild(version.region.call(flat))

    def specialize(self, *args: Any, **kwargs: Any) -> Version:
        """The version for these arguments, compiled if need be, without running it.

        Raises GuardError where a call would run eagerly: inside another capture, or beyond the limits of versions.
        """
        if kwargs:
            args, kwargs = self.parameters.canonical(len(args), tuple(kwargs))(args, kwargs)
        version = None if must_run_eagerly() else self._find(args, kwargs)[0]
        if version is None:
            raise GuardError(f"no version of {self.name!r} can be made for this call: it would run eagerly")
        return version

    def specialize(self, *args: Any, **kwargs: Any) -> Version:
        """The version for these arguments, compiled if there is none yet, without running it."""
        if kwargs:
            args, kwargs = self.parameters.canonical(len(args), tuple(kwargs))(args, kwargs)
        version, _ = self._find(args, kwargs)
        if version is None:
            raise GuardError(f"{self.name!r} has reached its limit of versions", remedy="reset() it, or raise max_versions")
        return version

    def _level_one(self, last: LastCall) -> bool:
        state = last.state
        if read_ambient() != last.ambient or must_run_eagerly():
            return False
        environment = state.environment
        return environment.is_empty or (environment.structure_holds() and state.refresh())

    def _find(self, args: tuple, kwargs: dict) -> tuple[Version | None, list[torch.Tensor]]:
        ambient = read_ambient()
        arg_part = tuple(map(signature, args))
        kwarg_part = tuple((name, signature(value)) for name, value in kwargs.items()) if kwargs else ()
        state, free_same = self._free_state(args, kwargs, arg_part, kwarg_part)
        lookup = self._lookup_key(args, kwargs, arg_part, kwarg_part, state, ambient)
        version, flat = self._choose(self._cache.get(lookup, ()), args, kwargs)
        if version is None:
            with self._lock:
                # Another thread may have compiled this while we waited.
                version, flat = self._choose(self._cache.get(lookup, ()), args, kwargs)
                if version is None:
                    version = self._compile(args, kwargs, lookup, state)
                    if version is None:
                        return None, []
                    self.last_level = 0
                    flat = version.region.capture.bind(args, kwargs)
                    self._remember(version, args, kwargs, ambient, state)
                    return version, flat
        level = "fingerprint" if free_same and not state.environment.is_empty else "key"
        self._counts[level] += 1
        self.last_level = 2 if level == "fingerprint" else 3
        self._remember(version, args, kwargs, ambient, state)
        return version, flat

    def _remember(self, version: Version, args: tuple, kwargs: dict, ambient: Any, state: FreeState) -> None:
        """Let the next call with the same tensors go the short way, where that is sound."""
        if kwargs or version.region.capture.replay is not None or not all(type(a) is torch.Tensor for a in args):
            self._last = None
            return
        try:
            self._last = LastCall(version, args, ambient, state)
        except RuntimeError:  # an inference tensor keeps no version
            self._last = None

    def _free_state(
        self, args: tuple, kwargs: dict, arg_part: tuple, kwarg_part: tuple
    ) -> tuple[FreeState, bool]:
        """The environment for these arguments (objects among them are roots of their own), brought up to date."""
        roots = _object_roots(args, kwargs, arg_part, kwarg_part, self.parameters)
        state = self._states.get(tuple(token for _, token, _ in roots) if roots else ())
        if state is None or not state.environment.structure_holds():
            state = FreeState(collect(self.fn, [(path, value) for path, _, value in roots]))
            if len(self._states) > 64:
                self._states.clear()
            self._states[tuple(token for _, token, _ in roots) if roots else ()] = state
        return state, state.refresh()

    def _lookup_key(
        self, args: tuple, kwargs: dict, arg_part: tuple, kwarg_part: tuple, state: FreeState, ambient: Any
    ) -> tuple:
        tensors = tensors_of(args, kwargs)
        overlap: tuple = ()
        if len(tensors) + len(state.tensor_part) > 1:
            free = [t for t in state.environment.read_tensors() if isinstance(t, torch.Tensor)]
            overlap = aliasing([*free, *tensors])
        return arg_part, kwarg_part, state.tensor_part, state.scalar_part, state.object_part, overlap, ambient

    def _choose(self, candidates: Any, args: tuple, kwargs: dict) -> tuple[Version | None, list[torch.Tensor]]:
        """The candidate whose data gates answer as they did when it was captured. Equal replays run once."""
        answers: dict[str, Any] = {}
        for version in candidates:
            capture = version.region.capture
            flat = capture.bind(args, kwargs)
            if capture.replay is None:
                return version, flat
            if version.replay_code not in answers:
                answers[version.replay_code] = _replay(capture.replay, flat)
            if answers[version.replay_code] == version.key.gamma_g:
                return version, flat
        return None, []

    # -- a new version ----------------------------------------------------------------------------------------------

    def _key(self, lookup: tuple, state: FreeState, gates: tuple = (), gate_names: tuple[str, ...] = ()) -> Key:
        arg_part, kwarg_part, tensor_part, scalar_part, object_part, overlap, ambient = lookup
        environment = state.environment
        names = KeyNames(
            tuple(self.parameters.name(index) for index in range(len(arg_part))),
            tuple(place.path for place in environment.tensors),
            tuple(place.path for place in environment.scalars),
            tuple(place.path for place in environment.structure),
            gate_names,
        )
        sigma = InputSignature(arg_part, kwarg_part, tensor_part, scalar_part, object_part, overlap)
        return Key(sigma, (), gates, ambient, names)

    def _compile(self, args: tuple, kwargs: dict, lookup: tuple, state: FreeState) -> Version | None:
        options = self.options
        if len(self._versions) >= options.max_versions or self._counts["compiled"] >= options.max_compilations:
            self._explain(args, kwargs, lookup, state, record=False)
            self._warn_limit()
            return None
        if self._versions:
            self._explain(args, kwargs, lookup, state, record=True)
        self._counts["compiled"] += 1
        region = self.compile_region(self.fn, args, kwargs, self._key(lookup, state))
        replay = region.capture.replay
        gates = gate_signature(gate.value for gate in replay.gates) if replay is not None else ()
        gate_names = tuple(_gate_name(gate) for gate in replay.gates) if replay is not None else ()
        key = self._key(lookup, state, gates, gate_names)
        region.key = key  # only now complete: tracing has found the data gates
        code = _replay_code(replay) if replay is not None else ""
        version = Version(key, region, len(self._versions) + 1, replay_code=code)
        self._versions.append(version)
        self._cache.setdefault(lookup, []).append(version)
        return version

    def _explain(self, args: tuple, kwargs: dict, lookup: tuple, state: FreeState, *, record: bool) -> None:
        """Check every version's guards on this call and note which failed (line 9 of Algorithm 2.1)."""
        failures = []
        for version in self._versions:
            replay = version.region.capture.replay
            gates: tuple = ()
            if replay is not None:
                gates = _actual_gates(version, args, kwargs)
            actual = self._key(lookup, state, gates, version.key.names.gates)
            failed = failing_guards(version.key, actual)
            failures.append((version.number, failed))
        if failures:
            for guard in failures[-1][1]:
                self._changed[(guard.path, guard.kind)] += 1
        if record:
            reason = Recompile(self.name, tuple(failures))
            self._recompiles.append(reason)
            if "recompiles" in os.environ.get("STAXLAB_LOGS", "").split(","):
                print(reason, file=sys.stderr)

    def _warn_limit(self) -> None:
        if self._warned:
            return
        self._warned = True
        limit = (
            f"{self.options.max_versions} versions"
            if len(self._versions) >= self.options.max_versions
            else f"{self.options.max_compilations} compilations"
        )
        (path, kind), _ = self._changed.most_common(1)[0] if self._changed else (("its inputs", "value"), 0)
        warnings.warn(
            f"{self.name!r} has reached {limit}; calls that fit none of them now run eagerly. What keeps changing: {path}. "
            f"{REMEDIES.get(kind, REMEDIES['value'])}",
            RecompileWarning,
            stacklevel=5,
        )


REMEDIES = {
    "value": "Pass a number that changes often as a 0-dimensional tensor: it then is an input and not a constant.",
    "type": "Pass arguments of one type.",
    "gate": "Keep the value a tensor (staxlab.gate, torch.where) instead of reading it into Python.",
    "shape": "Compile with dynamic=True, or pad inputs to a few fixed sizes.",
    "stride": "Call .contiguous() on inputs whose layout varies.",
    "identity": "Pass the same object at every call, or plain values.",
    "length": "Pad the container to a fixed length.",
    "aliasing": "Pass tensors that do not overlap in memory.",
}


def _object_roots(
    args: tuple, kwargs: dict, arg_part: tuple, kwarg_part: tuple, parameters: Parameters
) -> list[tuple[str, Any, Any]]:
    """(path, identity, object) of the arguments that are objects with state of their own: modules, functions."""
    roots: list[tuple[str, Any, Any]] = []

    def walk(path: str, sig: Signature, value: Any) -> None:
        if sig[0] == OBJECT:
            roots.append((path, sig[2], value))
        elif sig[0] not in ("tensor", "value"):
            parts = children(value) or ()
            for (_, key, part), inner in zip(parts, sig[-1], strict=True):
                walk(f"{path}[{key!r}]", inner, part)

    for index, (sig, value) in enumerate(zip(arg_part, args, strict=True)):
        if sig[0] not in ("tensor", "value"):
            walk(parameters.name(index), sig, value)
    for (name, sig), value in zip(kwarg_part, kwargs.values(), strict=True):
        if sig[0] not in ("tensor", "value"):
            walk(name, sig, value)
    return roots


def _replay(replay: Any, flat: list[torch.Tensor]) -> tuple | None:
    """The answers of the gates on these inputs, comparable; None if the replay fails, as it may off its own path."""
    try:
        return gate_signature(replay.evaluate(flat))
    except Exception:
        return None


def _actual_gates(version: Version, args: tuple, kwargs: dict) -> tuple:
    """What a version's gates answer on a call that may have other shapes; () where that cannot be computed."""
    capture = version.region.capture
    try:
        return _replay(capture.replay, capture.bind(args, kwargs)) or ()
    except Exception:
        return ()


def _replay_code(replay: Any) -> str:
    return replay.module.code + repr([gate.kind for gate in replay.gates]) + repr(replay.uses)


def _gate_name(gate: Any) -> str:
    where = f" at {gate.location.file.rsplit('/', 1)[-1]}:{gate.location.line}" if gate.location else ""
    return f"{gate.condition}{where}"


__all__ = ["CacheInfo", "Dispatcher", "Recompile", "Region", "Version", "tensor_signature"]
