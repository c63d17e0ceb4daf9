"""The first level of dispatch (Algorithm 2.1): does this call fit a version that has served one like it?

In C (:mod:`staxlab.native`) the tensors' metadata, the free variables and the ambient state are compared with what the
version expects, and its kernels are run, without the interpreter; fresh tensors are served as fast as the same ones.
Without the extension the level is the chapter's: the very tensors of the last call, found through weak references and
not touched since (``_version``).

Both are stricter than equality of keys, never laxer, so a call they let through needs no further look.
"""

from __future__ import annotations

import builtins
import weakref
from collections.abc import Iterable
from typing import Any

import torch

from .. import native
from .ambient import Ambient, must_run_eagerly, read_ambient
from .free_state import FreeState
from .free_variables import Place
from .signature import TENSOR, VALUE, tensor_signature

#: ``last_level`` of a call that was compiled for, and of one that ran eagerly because of a limit.
COMPILED, EAGER = 0, -1

#: A line that is always outdated before it has served a call is made anew so many times, not more.
MOST_VAIN_LINES = 4

#: How the extension reads free variables, by :attr:`Place.how`. What is not among these takes the slower levels.
_PLACES = {"item": 0, "cell": 1, "attribute": 2, "length": 3, "keys": 4}


class PythonEntry:
    """What :class:`staxlab.native.Entry` is in C: a callable that serves repeated calls itself and passes the others to
    ``self._dispatch``."""

    last_level: int
    _last: LastCall | None = None
    _entered: int = 0

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        served = None if kwargs else self._serve(args)
        return self._dispatch(*args, **kwargs) if served is None else served[0]

    def _serve(self, args: tuple) -> tuple[Any] | None:
        """The result in a tuple if the last call was one like this, else None."""
        last = self._last
        if last is None or not last.matches(args):
            return None
        self.last_level = 1
        self._entered += 1
        last.calls += 1
        return (last.rebuild(last.run(last.bind(args, {}))),)

    def _dispatch(self, *args: Any, **kwargs: Any) -> Any:
        raise NotImplementedError

    def _add_line(self, line: LastCall, outdated: LastCall | None) -> None:
        self._last = line

    def _forget_lines(self) -> None:
        self._last, self._entered, self.last_level = None, 0, 0


Entry: Any = native.Entry if native.available else PythonEntry


class LastCall:
    """The last call's tensors, and the version that served them."""

    __slots__ = ("calls", "tensors", "ambient", "state", "generation", "run", "bind", "rebuild")

    def __init__(self, region: Any, args: tuple, signatures: tuple, ambient: Ambient, state: FreeState):
        capture = region.capture
        self.calls, self.ambient, self.state, self.generation = 0, ambient, state, state.generation
        self.run, self.bind, self.rebuild = region.call, capture.bind, capture.rebuild
        self.tensors = [(weakref.ref(a), a._version, s) for a, s in zip(args, signatures, strict=True)]

    def matches(self, args: tuple) -> bool:
        """Whether these are the same objects, untouched. The signature is compared as well, since ``x.data = y`` and
        ``requires_grad_`` change a tensor without raising its version."""
        tensors = self.tensors
        if len(args) != len(tensors):
            return False
        for arg, (reference, version, layout) in zip(args, tensors):  # noqa: B905
            if reference() is not arg or arg._version != version or tensor_signature(arg) != layout:
                return False
        if read_ambient() != self.ambient or must_run_eagerly():
            return False
        state = self.state
        return state.is_empty or (state.generation == self.generation and state.is_same())


class Lines:
    """Decides which calls the first level of one dispatcher shall serve from now on."""

    def __init__(self, entry: Any):
        self.entry = entry
        self.last_ids: tuple[int, ...] = ()

    def remember(self, version: Any, args: tuple, lookup: tuple, state: FreeState, flat: list[torch.Tensor]) -> None:
        """A lower level found ``version`` for this call without keyword arguments: serve the next like it, where that
        is sound."""
        if state.environment.asked:
            return  # attributes of tensors are no metadata
        line = (
            self._native(version, args, lookup, state, flat)
            if native.available
            else self._python(version, args, lookup, state)
        )
        if line is not None:
            self.entry._add_line(line, version.line)
            version.served_before += version.line.calls if version.line is not None else 0
            version.line = line

    def _native(self, version: Any, args: tuple, lookup: tuple, state: FreeState, flat: list[torch.Tensor]) -> Any:
        arg_part, overlap, ambient = lookup[0], lookup[-2], lookup[-1]
        if overlap or ambient.autocast is not None or ambient.default_device is not None:
            return None
        if ambient.product_precision != "ieee" and _multiplies_in_less(version.region):
            return None
        if version.line is not None and version.line.calls == 0:
            if version.vain_lines >= MOST_VAIN_LINES:
                return None
            version.vain_lines += 1
        if not all(sig[0] == VALUE or _is_plain(arg) for sig, arg in zip(arg_part, args, strict=True)):
            return None
        own = [arg for sig, arg in zip(arg_part, args, strict=True) if sig[0] == TENSOR]
        lifted = version.region.capture.free_places
        if any(a is not b for a, b in zip(flat[len(lifted) :], own, strict=True)):
            return None  # an argument's tensor is not a placeholder of its own
        if not all(map(_is_plain, flat[: len(lifted)])):
            return None
        environment = state.environment
        others = (*environment.scalars, *environment.structure, *environment.extents)
        watched, untensored = _unlifted(environment, lifted)
        found = _as_native((*zip(others, state.rest, strict=True), *untensored))
        if found is None or not all(place.how in _PLACES for place in (*lifted, *(place for place, _ in watched))):
            return None
        if not all(_is_plain(tensor) for _, tensor in watched):
            return None
        if state.environment.compares_identities and len(lifted) < state.count:
            return None  # an argument may be a free tensor that is no input of the program
        if sum(not tensor.numel() for tensor in (*flat, *(tensor for _, tensor in watched))) > 1:
            return None  # which of them are one object cannot be told by their memory
        region = version.region
        run = getattr(region, "executor", region.call)
        run = run.executor_for(flat) if hasattr(run, "executor_for") else run  # the line compares all sizes
        try:
            return native.Line(
                args,
                flat,
                tuple((_PLACES[place.how], place.holder, place.key, None) for place in lifted),
                found,
                tuple((_PLACES[place.how], place.holder, place.key, None) for place, _ in watched),
                tuple(tensor for _, tensor in watched),
                (ambient.grad_mode, ambient.inference_mode, ambient.default_dtype, ambient.deterministic),
                version.replay,
                version.key.gamma_g,
                run,
                region.capture.rebuild_single,
            )
        except (ValueError, BufferError, RuntimeError):
            return None  # a tensor that DLPack cannot describe

    def _python(self, version: Any, args: tuple, lookup: tuple, state: FreeState) -> LastCall | None:
        """Only once the same objects have come twice: weak references cost more than the rest of a lookup."""
        ids = tuple(map(id, args))
        if ids != self.last_ids:
            self.entry._last, self.last_ids = None, ids
            return None
        if version.replay is not None or not all(type(a) is torch.Tensor for a in args):
            return None
        try:
            return LastCall(version.region, args, tuple(map(tensor_signature, args)), lookup[-1], state)
        except RuntimeError:  # an inference tensor keeps no version
            return None


def _unlifted(
    environment: Any, lifted: Iterable[Place]
) -> tuple[list[tuple[Place, torch.Tensor]], list[tuple[Place, Any]]]:
    """The places of free tensors that are no inputs of the graph, with what is there now: a tensor that only decided
    something (``x if w is None else x * w``), and what has taken a tensor's place meanwhile."""
    known = {(id(place.holder), place.how, place.key) for place in lifted}
    tensors: list[tuple[Place, torch.Tensor]] = []
    others: list[tuple[Place, Any]] = []
    for place in environment.tensors:
        if (id(place.holder), place.how, place.key) not in known:
            value = place.read()
            (tensors if isinstance(value, torch.Tensor) else others).append((place, value))
    return tensors, others


def _as_native(places: Iterable[tuple[Place, Any]]) -> tuple[tuple[int, Any, Any, Any], ...] | None:
    """Places and what was found there as the extension takes them; None if it cannot read one of them.

    Whether a builtin's name has been given to a global is asked of the number of globals.
    """
    result, scopes = [], {}
    for place, found in places:
        if place.how == "bound" and not found and isinstance(place.key, str) and hasattr(builtins, place.key):
            scopes[id(place.holder)] = (_PLACES["length"], place.holder, None, len(place.holder))
        elif place.how in _PLACES:
            result.append((_PLACES[place.how], place.holder, place.key, found))
        else:
            return None
    return (*result, *scopes.values())


def _multiplies_in_less(region: Any) -> bool:
    """Whether a kernel of a region multiplies float32 numbers in less than their precision. A backward half that is yet
    to be compiled may."""
    device = getattr(region, "device", None)
    if device is None or not device.is_gpu:
        return False
    kernels = getattr(region, "compiled_kernels", None) or ()
    return getattr(region, "trains", False) or any(kernel.launch.get("precision") == "tf32" for kernel in kernels)


def _is_plain(value: Any) -> bool:
    """Whether metadata says all there is to say about a tensor. The entry looks for a pending change of sign and takes
    it for a tensor it does not know; it has no look at a pending conjugation."""
    if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.layout is not torch.strided:
        return False
    return not (value.dtype.is_complex or value.is_neg())
