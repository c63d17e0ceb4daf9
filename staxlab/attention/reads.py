"""What the function of a modification reads besides its arguments, kept from call to call (Sections 2.5 and 9.10).

A ``score_mod`` is asked for at every call of an attention, in every layer, and hardly ever has anything changed that it
reads. To walk its bytecode each time costs more than the launch of the kernel; to trust that nothing has changed would
be wrong. So what was found is kept, and compared: the same code, the same numbers under the same names, the same
tensors with the same metadata (what *values* they hold, kernels read from memory).

Whatever is kept refers to the tensors that the function captured, and they are to go when it goes: a layer may make its
function anew in every call. So a record is made of a *twin* with the same closure, and dropped together with the
function. That holds only where nothing that the function reads leads back to it. Where a user's objects are among it,
which may refer to anything, only the environment of a function without tensors is kept.
"""

from __future__ import annotations

import threading
import types
import weakref
from collections.abc import Callable
from typing import Any

import torch

from ..specialize.free_variables import Environment, collect
from ..specialize.places import compile_reader

LARGEST = 512
_kept: dict[int, Kept] = {}  # by the id of a function; the oldest goes first
_lock = threading.Lock()
_keys = torch._C._dispatch_keys

#: What may be among the objects that a record refers to: nothing that refers to others which it does not name.
_CLOSED = (
    types.FunctionType, types.CodeType, types.ModuleType, types.BuiltinFunctionType, types.NoneType, tuple, dict,
)  # fmt: skip


class Kept:
    """The environment of a function as it was found. ``state`` is an object that stands for everything the function
    reads, and is replaced when something else is found there; None where that cannot be told by comparing."""

    def __init__(self, function: Any, environment: Environment, goes_with_it: bool):
        self.function: Callable[[], Any] = (
            weakref.ref(function, _forgetting(id(function))) if goes_with_it else lambda: function
        )
        self.environment = environment
        self.parts = _parts(function)
        self.state: object | None = None
        self.rest: tuple[Any, ...] = ()
        self.tensors: list[tuple[Callable[[], Any], tuple]] = []
        if goes_with_it:
            self.read_rest = compile_reader((*environment.scalars, *environment.structure, *environment.extents))
            self.describe()

    def describe(self) -> None:
        """What the function reads now is what later calls are compared with."""
        tensors = self.environment.read_tensors()
        if all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            self.rest = self.read_rest()
            self.tensors = [(weakref.ref(tensor), fingerprint(tensor)) for tensor in tensors]
            self.state = object()
        else:
            self.state = None

    def is_same(self) -> bool:
        """Whether the function would find the very same objects again, and tensors of the same metadata among them."""
        for now, then in zip(self.read_rest(), self.rest):  # noqa: B905
            if now is not then:
                return False
        if self.tensors:
            for tensor, (reference, then) in zip(self.environment.read_tensors(), self.tensors):  # noqa: B905
                if reference() is not tensor or fingerprint(tensor) != then:
                    return False
        return True


def fingerprint(tensor: torch.Tensor) -> tuple:
    """All of a tensor that a kernel's text or a derivative may depend on, and where it is; equal to no other where that
    cannot be said."""
    try:
        return (
            tensor.data_ptr(), tensor.requires_grad, tensor.shape, tensor.stride(), tensor.dtype, tensor.device,
            _keys(tensor).raw_repr(),
        )  # fmt: skip
    except RuntimeError:  # no strides, or no memory
        return (object(),)


def environment_of(function: Any) -> Environment:
    """What a function reads besides its arguments: as found before where that is all there is still."""
    known = _known(function)
    if known is not None and known.environment.is_current():
        return known.environment
    twin = _twin(function)
    found = collect(twin)
    goes_with_it = twin is not function and _is_closed(found, twin, function)
    if goes_with_it or not found.tensors:
        made = Kept(function, found, goes_with_it)
        with _lock:
            while len(_kept) >= LARGEST:
                _kept.pop(next(iter(_kept)))
            _kept[id(function)] = made
    return found


def state_of(function: Any) -> object | None:
    """What stands for all that a function reads, if it is known and nothing of it has been touched; None otherwise."""
    known = _known(function)
    return known.state if known is not None and known.state is not None and known.is_same() else None


def described_state(function: Any) -> object | None:
    """As :func:`state_of`, after looking again where something has been touched. None where nothing is kept."""
    environment_of(function)
    known = _known(function)
    if known is None or known.state is None:
        return None
    if not known.is_same():
        known.describe()
    return known.state


def clear() -> None:
    """Forget what functions read."""
    _kept.clear()


def _known(function: Any) -> Kept | None:
    known = _kept.get(id(function))
    if known is None or known.function() is not function:
        return None
    parts = known.parts
    if parts is None:
        return known
    code, defaults, keyword_defaults = parts
    same = function.__code__ is code and function.__defaults__ is defaults
    return known if same and function.__kwdefaults__ is keyword_defaults and not function.__dict__ else None


def _parts(function: Any) -> tuple | None:
    """What may be replaced in a function itself, which its twin would not notice."""
    if type(function) is not types.FunctionType or function.__dict__:
        return None
    return function.__code__, function.__defaults__, function.__kwdefaults__


def _twin(function: Any) -> Any:
    """A function that reads what this one reads, and does not refer to it; itself where there can be none."""
    if _parts(function) is None:
        return function
    made = types.FunctionType(
        function.__code__, function.__globals__, function.__name__, function.__defaults__, function.__closure__
    )
    made.__kwdefaults__, made.__qualname__ = function.__kwdefaults__, function.__qualname__
    return made


def _is_closed(found: Environment, twin: Any, function: Any) -> bool:
    """Whether nothing that the environment refers to can lead back to the function, except for a module's globals."""
    functions = [twin, *(value for value in found.expected if type(value) is types.FunctionType)]
    if function in functions or found.holders or found.containers or found.iterators:
        return False
    spaces = [space for one in functions for space in (one.__globals__, vars(one), one.__kwdefaults__)]
    spaces += [vars(value) for value in found.expected if type(value) is types.ModuleType]
    spaces += [vars(tensor) for tensor in found.read_tensors() if isinstance(tensor, torch.Tensor)]
    known = {id(space) for space in spaces}
    for place in (*found.tensors, *found.scalars, *found.structure, *found.extents):
        if not isinstance(place.holder, (types.CellType, types.FunctionType, tuple)) and id(place.holder) not in known:
            return False
    return all(isinstance(value, _CLOSED) for value in found.expected)


def _forgetting(identity: int) -> Callable[[Any], None]:
    return lambda reference: _forget(identity, reference)


def _forget(identity: int, reference: Any) -> None:
    known = _kept.get(identity)
    if known is not None and known.function is reference:
        _kept.pop(identity, None)


__all__ = ["Kept", "clear", "described_state", "environment_of", "fingerprint", "state_of"]
