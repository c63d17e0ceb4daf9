"""Dispatch (Section 2.4, Algorithm 2.1): from a call to the compiled version that is valid for it.

Deciding must cost far less than computing, so there are three levels, cheapest first:

1. *the entry* (:mod:`.entry`): the call looks like one a version has just served. Decided in C, without the
   interpreter, by comparing metadata; without the extension, by finding the very tensors of the last call untouched.
2. *fingerprints*: the free part of the key (weights, training flags, submodules) is taken over from the last call if
   its objects are the same. In a model that is nearly everything; only the fresh batch is described anew.
3. *the key*: computed and looked up in a dictionary. In dynamic mode several versions may have one key (Figure 10.1):
   the first is taken whose decisions about sizes hold and whose data gates, replayed, answer as they did.

If no version fits, the guards of each that came close say why, and a new version is compiled. Numbers of versions and
of compilations are bounded; beyond the bound the function simply runs eagerly, with one warning that names the
component which keeps changing and what to do about it.

The dispatcher knows nothing of how regions are made: ``compile_region(fn, args, kwargs, key)`` returns an object with
``capture`` (which binds arguments to flat tensors and rebuilds results) and ``call(flat tensors) -> flat results``; it
may have an ``executor`` as well, which does the same with fewer questions.
"""

from __future__ import annotations

import collections
import copy
import sys
import threading
import types
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch

from .. import logs
from ..errors import GuardError, RecompileWarning
from ..options import Options
from ..provenance import warn_user
from ..shapes.environment import ShapeGuard
from .ambient import must_run_eagerly, read_ambient
from .entry import COMPILED, EAGER, Entry, Lines
from .free_state import FreeState
from .free_variables import argument_roots, collect
from .guards import Guard, failing_guards, guards
from .signature import (
    TENSOR,
    VALUE,
    InputSignature,
    Key,
    KeyNames,
    attributes_of,
    containers_of,
    dynamic_aliasing,
    dynamic_signature,
    exact_layout,
    gate_signature,
    identity,
    signature,
    tensors_of,
)
from .structure import Parameters


class Region(Protocol):
    """What ``compile_region`` returns."""

    capture: Any
    key: Key | None

    def call(self, inputs: list[torch.Tensor]) -> Any: ...


CompileRegion = Callable[[Any, tuple, dict, Key], Region]


@dataclass(eq=False, repr=False)
class Version:
    """A specialization version (Definition 2.1): its key and the region compiled for it. ``pinned`` are the positions
    of the inputs whose exact shapes stand in ``key.gamma_s``; ``shape_guard`` is what must hold of sizes that are
    symbols (Definition 10.2): several versions may have one key and differ in that alone."""

    key: Key
    region: Region
    number: int
    replay: Callable[[list[torch.Tensor]], tuple | None] | None = field(default=None, repr=False)
    line: Any = field(default=None, repr=False)  # what the first level knows of this version
    vain_lines: int = field(default=0, repr=False)
    served_before: int = field(default=0, repr=False)  # calls not counted by the present line
    pinned: tuple[int, ...] = ()
    shape_guard: ShapeGuard | None = field(default=None, repr=False)

    @property
    def calls(self) -> int:
        """How many calls this version has served."""
        return self.served_before + (self.line.calls if self.line is not None else 0)

    @property
    def guards(self) -> tuple[Guard, ...]:
        """One guard for each component of the key, and one for each decision about sizes."""
        return (*guards(self.key), *_shape_guards(self.shape_guard))

    @property
    def compilation(self) -> Any:
        """The record of the compilation, if the region keeps one."""
        return getattr(self.region, "compilation", self.region)

    def __str__(self) -> str:
        return f"version {self.number}\n" + "\n".join(f"    {guard.condition}" for guard in self.guards)

    def __repr__(self) -> str:
        """One line: several versions stand in a tuple, and the whole key is a page."""
        calls = f"{self.calls} call{'' if self.calls == 1 else 's'}"
        return f"<version {self.number} for ({arguments_text(self.key)}): {calls}, {len(self.guards)} guards>"


def arguments_text(key: Key) -> str:
    """``x float32[2, 4], k = 3``: the arguments a version was made for."""
    names = [*key.names.args, *(f"args[{place}]" for place in range(len(key.names.args), len(key.sigma.args)))]
    parts = []
    for name, sig in [*zip(names, key.sigma.args, strict=False), *key.sigma.kwargs]:
        if sig[0] == TENSOR:
            dtype = str(sig[3]).removeprefix("torch.")
            parts.append(f"{name} {dtype}{list(sig[2])}")
        elif sig[0] == VALUE:
            text = repr(sig[2])
            parts.append(f"{name} = {text if len(text) <= 24 else text[:21] + '...'}")
        else:
            parts.append(f"{name} {getattr(sig[1], '__name__', sig[0])}")
    return ", ".join(parts)


@dataclass(frozen=True, repr=False)
class Recompile:
    """Why a call fitted no version: for each existing version, the guards that failed."""

    function: str
    failures: tuple[tuple[int, tuple[Guard, ...]], ...]

    def __str__(self) -> str:
        parts = [f"version {number}: {', '.join(map(str, failed))}" for number, failed in self.failures]
        return f"recompiling {self.function!r}: " + "; ".join(parts)

    def __repr__(self) -> str:
        """The guards of the newest version that failed, the first two of them."""
        number, failed = self.failures[-1] if self.failures else (0, ())
        shown = ", ".join(map(str, failed[:2])) + (f" and {len(failed) - 2} more" if len(failed) > 2 else "")
        return f"<recompile of {self.function}: not version {number}, {shown or 'another version came close'}>"


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

    @property
    def calls(self) -> int:
        """All calls so far, however they were served."""
        return self.hits + self.compilations + self.eager


class Dispatcher(Entry):
    """A function together with its compiled versions. Calling it dispatches (Algorithm 2.1). Thread-safe."""

    def __init__(self, fn: Any, compile_region: CompileRegion, options: Options | None = None):
        self.fn = self.__wrapped__ = fn
        for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
            if hasattr(fn, attribute):
                setattr(self, attribute, getattr(fn, attribute))
        self._compile_region = compile_region
        self._options = options or Options()
        self._signature = dynamic_signature if self._options.dynamic else signature
        self._call_parameters = Parameters.of(fn)
        self._name = getattr(fn, "__name__", None) or type(fn).__name__
        self._lock = threading.RLock()
        self.reset()

    def of(self, fn: Any) -> Dispatcher:
        """A dispatcher like this for another function, without versions."""
        return type(self)(fn, self._compile_region, self._options)

    def __copy__(self) -> Dispatcher:
        return self.of(self.fn)

    def __deepcopy__(self, memo: dict[int, Any]) -> Dispatcher:
        """A dispatcher of the copied function or module; it compiles anew."""
        return type(self)(copy.deepcopy(self.fn, memo), copy.deepcopy(self._compile_region, memo), self._options)

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickled like the function: by name where the name leads here, else by its parts and without its versions."""
        name, found = self.__dict__.get("__qualname__"), sys.modules.get(self.__dict__.get("__module__", ""))
        for part in (name or "").split("."):
            found = getattr(found, part, None)
        return name if found is self else (type(self), (self.fn, self._compile_region, self._options))

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """As a class attribute it is a method: ``self`` is passed on, known by identity, and its tensors are lifted."""
        return self if instance is None else types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        """Anything else is the function's own: ``compiled.parameters()``, ``compiled.eval()``."""
        if name.startswith("__") or "fn" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.fn, name)

    def __repr__(self) -> str:
        return f"<compiled {self._name}: {len(self._versions)} versions>"

    def reset(self) -> None:
        """Forget all versions and counts."""
        with self._lock:
            self._versions: list[Version] = []
            self._cache: dict[tuple, list[Version]] = {}
            self._states: dict[tuple, FreeState] = {}
            self._replays: dict[str, Callable[[list[torch.Tensor]], tuple | None]] = {}
            self._lines = Lines(self)
            self._forget_lines()
            self._fingerprint_hits = self._key_hits = self._eager = self._compiled = 0
            self._recompiles: list[Recompile] = []
            self._changed: collections.Counter[tuple[str, str]] = collections.Counter()
            self._growth: list[tuple[int, int]] = []
            self._warned = False

    @property
    def versions(self) -> tuple[Version, ...]:
        return tuple(self._versions)

    @property
    def recompiles(self) -> tuple[Recompile, ...]:
        """The reason of every compilation after the first."""
        return tuple(self._recompiles)

    @property
    def options(self) -> Options:
        """The options it compiles with; the limits are among them."""
        return self._options

    @property
    def growth(self) -> tuple[tuple[int, int], ...]:
        """How the number of versions grew: (number of the call, versions after it) for each call that compiled."""
        return tuple(self._growth)

    def cache_info(self) -> CacheInfo:
        return CacheInfo(
            self._entered, self._fingerprint_hits, self._key_hits, self._compiled, len(self._versions), self._eager
        )

    def report(self, *args: Any, **kwargs: Any) -> Any:
        """A snapshot of all this, which draws itself: the call path, the guards of each version, the recompilations
        (:class:`.report.DispatchReport`). With the arguments of a call, it says as well which version that would meet,
        and why not those before it."""
        from .report import report

        return report(self, (args, kwargs) if args or kwargs else None)

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        from ..view import mimebundle

        return mimebundle(self.report())

    # -- a call -----------------------------------------------------------------------------------------------------

    def _dispatch(self, *args: Any, **kwargs: Any) -> Any:
        """A call that the first level could not serve."""
        if must_run_eagerly():
            return self.fn(*args, **kwargs)
        if kwargs:
            args, kwargs = self._call_parameters.canonical(len(args), tuple(kwargs))(args, kwargs)
            served = None if kwargs else self._serve(args)
            if served is not None:
                return served[0]
        version, flat = self._find(args, kwargs)
        if version is None:
            self._eager += 1
            self.last_level = EAGER
            return self.fn(*args, **kwargs)
        version.served_before += 1
        return version.region.capture.rebuild(version.region.call(flat), (args, kwargs))

    def specialize(self, *args: Any, **kwargs: Any) -> Version:
        """The version for these arguments, compiled if need be, without running it.

        Raises GuardError where a call would run eagerly: inside another capture, or beyond the limits of versions.
        """
        if kwargs:
            args, kwargs = self._call_parameters.canonical(len(args), tuple(kwargs))(args, kwargs)
        version = None if must_run_eagerly() else self._find(args, kwargs)[0]
        if version is None:
            raise GuardError(f"no version of {self._name!r} can be made for this call: it would run eagerly")
        return version

    def _find(self, args: tuple, kwargs: dict) -> tuple[Version | None, list[torch.Tensor]]:
        """The version for a call, compiled if need be, and its flat inputs; no version beyond the limits."""
        lookup, state, free_is_same = self._lookup(args, kwargs)
        version, flat = self._choose(self._cache.get(lookup, ()), args, kwargs)
        if version is None:
            with self._lock:
                # Another thread may have compiled this while we waited.
                version, flat = self._choose(self._cache.get(lookup, ()), args, kwargs)
                if version is None:
                    version = self._compile(args, kwargs, lookup, state)
                    if version is None:
                        return None, []
                    self.last_level = COMPILED
                    return version, version.region.capture.bind(args, kwargs)
        if free_is_same and not state.is_empty:
            self._fingerprint_hits += 1
            self.last_level = 2
        else:
            self._key_hits += 1
            self.last_level = 3
        if not kwargs:
            self._lines.remember(version, args, lookup, state, flat)
        return version, flat

    def _lookup(self, args: tuple, kwargs: dict) -> tuple[tuple, FreeState, bool]:
        """The part of a call's key that is known without tracing, and the free state it was made from."""
        ambient = read_ambient()
        arg_part = tuple(map(self._signature, args))
        kwarg_part = tuple([(name, self._signature(value)) for name, value in kwargs.items()]) if kwargs else ()
        state, free_is_same = self._free_state(args, kwargs, arg_part, kwarg_part)
        alone = not state.count and not kwargs and len(args) == 1 and arg_part[0][0] in _PLAIN_TAGS
        overlap: tuple = ()
        if not alone or state.environment.asked:
            tensors = tensors_of(args, kwargs)
            overlap = state.overlap_with(tensors)
            if overlap and self._options.dynamic:
                overlap = dynamic_aliasing(overlap, tensors, state.count)
            overlap += state.one_object([*tensors, *containers_of(args, kwargs)])
            if state.environment.asked:
                overlap += attributes_of(tensors, state.environment.asked)
        lookup = (arg_part, kwarg_part, state.tensor_part, state.scalar_part, state.object_part, overlap, ambient)
        return lookup, state, free_is_same

    def candidates(self, *args: Any, **kwargs: Any) -> tuple[tuple[Version, tuple[Guard, ...]], ...]:
        """The versions under the key of such a call, in the order in which it would try them, each with its guards that
        the call does not meet (Figure 10.1). Nothing is compiled; data gates are replayed."""
        if kwargs:
            args, kwargs = self._call_parameters.canonical(len(args), tuple(kwargs))(args, kwargs)
        lookup, state, _ = self._lookup(args, kwargs)
        found = self._cache.get(lookup, ())
        return tuple((version, self._failed(version, args, kwargs, lookup, state)) for version in found)

    def _free_state(self, args: tuple, kwargs: dict, arg_part: tuple, kwarg_part: tuple) -> tuple[FreeState, bool]:
        """The environment for these arguments (objects among them are roots of their own), brought up to date."""
        roots: Any = ()
        for sig in arg_part:
            if sig[0] not in _PLAIN_TAGS:
                roots = argument_roots(args, kwargs, self._call_parameters.name)
                break
        else:
            if kwarg_part:
                roots = argument_roots(args, kwargs, self._call_parameters.name)
        tokens = tuple([identity(of) for _, of, _ in roots])
        state = self._states.get(tokens)
        if state is not None and (state.is_empty or state.is_same()):
            return state, True
        if state is None or not state.refresh():
            state = FreeState(collect(self.fn, [(path, value) for path, _, value in roots]))
            if len(self._states) > 64:
                self._states.clear()
            self._states[tokens] = state
        return state, False

    def _choose(self, candidates: Any, args: tuple, kwargs: dict) -> tuple[Version | None, list[torch.Tensor]]:
        """The candidate for which the shapes that were read are the same, whose decisions about sizes hold, and whose
        data gates answer as they did when it was captured. Equal replays run once."""
        answers: dict[Any, Any] = {}
        for version in candidates:
            flat = version.region.capture.bind(args, kwargs)
            if version.pinned and _shapes(version.pinned, flat) != version.key.gamma_s:
                continue
            if version.shape_guard is not None and not version.shape_guard.check(flat):
                continue
            if version.replay is None:
                return version, flat
            if version.replay not in answers:
                answers[version.replay] = version.replay(flat)
            if answers[version.replay] == version.key.gamma_g:
                return version, flat
        return None, []

    # -- a new version ----------------------------------------------------------------------------------------------

    def _key(self, lookup: tuple, state: FreeState, gates: tuple = (), gate_names: tuple[str, ...] = (),
             shapes: tuple = (), shape_names: tuple[str, ...] = ()) -> Key:  # fmt: skip
        arg_part, kwarg_part, tensor_part, scalar_part, object_part, overlap, ambient = lookup
        environment = state.environment
        names = KeyNames(
            tuple(self._call_parameters.name(index) for index in range(len(arg_part))),
            tuple(place.path for place in environment.tensors),
            tuple(place.path for place in environment.scalars),
            tuple(place.path for place in (*environment.structure, *environment.extents)),
            gate_names,
            shape_names,
        )
        sigma = InputSignature(arg_part, kwarg_part, tensor_part, scalar_part, object_part, overlap)
        return Key(sigma, shapes, gates, ambient, names)

    def _compile(self, args: tuple, kwargs: dict, lookup: tuple, state: FreeState) -> Version | None:
        options = self._options
        if len(self._versions) >= options.max_versions or self._compiled >= options.max_compilations:
            self._explain(args, kwargs, lookup, state, record=False)
            self._warn_limit()
            return None
        if self._versions:
            self._explain(args, kwargs, lookup, state, record=True)
        self._compiled += 1
        region = self._compile_region(self.fn, args, kwargs, self._key(lookup, state))
        replay = region.capture.replay
        gates = gate_signature(gate.value for gate in replay.gates) if replay is not None else ()
        gate_names = tuple(_gate_name(gate) for gate in replay.gates) if replay is not None else ()
        pinned, shape_names = self._pinned(region.capture)
        shapes = _shapes(pinned, region.capture.bind(args, kwargs)) if pinned else ()
        key = self._key(lookup, state, gates, gate_names, shapes, shape_names)
        region.key = key  # only now complete: tracing has found the shapes read and the data gates
        version = Version(key, region, len(self._versions) + 1, replay=self._shared_replay(replay), pinned=pinned,
                          shape_guard=region.capture.shape_guard)  # fmt: skip
        self._versions.append(version)
        self._growth.append((self.cache_info().calls, len(self._versions)))
        self._cache.setdefault(lookup, []).append(version)
        title = f"version {version.number} of {self._name!r}:"
        logs.say("guards", lambda: "\n".join([title, *map(str, region.guards)]))
        return version

    def _pinned(self, capture: Any) -> tuple[tuple[int, ...], tuple[str, ...]]:
        """The inputs whose exact shapes the graph depends on, by position and path: the structure of gamma_s. Only the
        first trace can tell; without dynamic mode every shape is in sigma."""
        pinned = capture.pinned if self._options.dynamic else ()
        return pinned, tuple(capture.inputs[position].path for position in pinned)

    def _shared_replay(self, replay: Any) -> Callable[[list[torch.Tensor]], tuple | None] | None:
        """The replay as a function from flat inputs to comparable answers; one object for equal replays."""
        if replay is None:
            return None
        # Not the module's source: it gives constants without a literal spelling, such as a torch.Size, mere names.
        nodes = [(node.name, node.op, node.target, node.args, node.kwargs) for node in replay.module.graph]
        code = repr((nodes, [gate.kind for gate in replay.gates], replay.uses))
        return self._replays.setdefault(code, replay.component())

    def _explain(self, args: tuple, kwargs: dict, lookup: tuple, state: FreeState, *, record: bool) -> None:
        """Check every version's guards on this call and note which failed (line 9 of Algorithm 2.1)."""
        failures = []
        for version in self._versions:
            failures.append((version.number, self._failed(version, args, kwargs, lookup, state)))
        if failures:
            for guard in failures[-1][1]:
                self._changed[(guard.path, guard.kind)] += 1
        if record:
            reason = Recompile(self._name, tuple(failures))
            self._recompiles.append(reason)
            logs.say("recompiles", lambda: reason)

    def _failed(
        self, version: Version, args: tuple, kwargs: dict, lookup: tuple, state: FreeState
    ) -> tuple[Guard, ...]:
        """A version's guards that a call does not meet."""
        gates = _actual_gates(version, args, kwargs) if version.replay is not None else ()
        shapes = _actual_shapes(version, args, kwargs)
        actual = self._key(lookup, state, gates, version.key.names.gates, shapes, version.key.names.shapes)
        return (*failing_guards(version.key, actual), *_failing_shapes(version, args, kwargs))

    def _warn_limit(self) -> None:
        if self._warned:
            return
        self._warned = True
        limit = (
            f"{self._options.max_versions} versions"
            if len(self._versions) >= self._options.max_versions
            else f"{self._options.max_compilations} compilations"
        )
        (path, kind), _ = self._changed.most_common(1)[0] if self._changed else (("its inputs", "value"), 0)
        warn_user(
            f"{self._name!r} has reached {limit}; calls that fit none of them now run eagerly. "
            f"What keeps changing: {path}. {REMEDIES.get(kind, REMEDIES['value'])}",
            RecompileWarning,
        )


_PLAIN_TAGS = (TENSOR, VALUE)

REMEDIES = {
    "value": "Pass a number that changes often as a 0-dimensional tensor: it then is an input and not a constant.",
    "type": "Pass arguments of one type.",
    "gate": "Keep the value a tensor (staxlab.gate, torch.where) instead of reading it into Python.",
    "shape": "Compile with dynamic=True, or pad inputs to a few fixed sizes.",
    "size decision": "Decide by sizes outside the compiled function, or let each side of the branch have its version.",
    "size class": "Sizes 0 and 1 have versions of their own: pad, or keep a dimension at least 2 long.",
    "shape read": "Let operations take sizes from tensors (flatten, mean, new_zeros -> zeros_like) instead of reading "
    "them into Python.",
    "rank": "Pass tensors of one rank.",
    "stride": "Call .contiguous() on inputs whose layout varies.",
    "identity": "Pass the same object at every call, or plain values.",
    "length": "Pad the container to a fixed length.",
    "aliasing": "Pass tensors that do not overlap in memory.",
}


def _actual_gates(version: Version, args: tuple, kwargs: dict) -> tuple:
    """What a version's gates answer on a call that may have other shapes; () where that cannot be computed."""
    try:
        return version.replay(version.region.capture.bind(args, kwargs)) or ()
    except Exception:
        return ()


def _shapes(pinned: tuple[int, ...], flat: list[torch.Tensor]) -> tuple:
    """gamma_s: the exact shapes and strides of the pinned inputs."""
    return tuple([exact_layout(flat[position]) for position in pinned])


def _actual_shapes(version: Version, args: tuple, kwargs: dict) -> tuple:
    """gamma_s of a version on a call that may have other arguments altogether; () where it cannot be computed."""
    try:
        return _shapes(version.pinned, version.region.capture.bind(args, kwargs)) if version.pinned else ()
    except Exception:
        return ()


def _shape_guards(shape_guard: ShapeGuard | None, decisions: Any = None, actual: bool = True) -> tuple[Guard, ...]:
    """Decisions about sizes (all, or those given) as guards."""
    if shape_guard is None:
        return ()
    chosen = shape_guard.decisions if decisions is None else decisions
    texts = [shape_guard.condition(decision) for decision in chosen]
    return tuple(Guard(text, text, True, actual, "size decision") for text in texts)


def _failing_shapes(version: Version, args: tuple, kwargs: dict) -> tuple[Guard, ...]:
    """The decisions of a version that do not hold for a call, which may have other arguments altogether."""
    if version.shape_guard is None:
        return ()
    try:
        flat = version.region.capture.bind(args, kwargs)
        failing, values = version.shape_guard.failing(flat), version.shape_guard.values(flat)
        sizes = ", ".join(f"{place} = {values[symbol.name]}" for symbol, place in version.shape_guard.sources)
    except Exception:
        return ()
    return tuple(replace(guard, actual=_Sizes(sizes)) for guard in _shape_guards(version.shape_guard, failing))


class _Sizes(str):
    """Sizes that a guard was not met by."""

    __repr__ = str.__str__


def _gate_name(gate: Any) -> str:
    where = f" at {gate.location.file.rsplit('/', 1)[-1]}:{gate.location.line}" if gate.location else ""
    return f"{gate.condition}{where}"


__all__ = ["CacheInfo", "Dispatcher", "Recompile", "Region", "Version"]
