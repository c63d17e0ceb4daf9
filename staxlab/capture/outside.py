"""What a traced function asks of the world outside its tensors (Section 3.7).

A graph computes from tensors. A clock, the state of a random number generator, an environment variable or a file are
inputs that appear in no signature: what they said while tracing would be said for ever. Such calls reach no tensor
mode, and reading the function's bytecode does not find them (``now = time.perf_counter`` under another name), so a
profile function watches for them while the user's function runs.

* Setting a generator's state and reading a clock are refused: the result is meant to differ from call to call.
* Reading an environment variable or a file is reported once as a side effect: it is usually configuration.

Only calls made by the user's own code count for clock, environment and files; libraries read them for purposes of their
own. A generator is watched wherever the call comes from.
"""

from __future__ import annotations

import _collections_abc
import contextlib
import datetime
import io
import linecache
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import BuiltinFunctionType, CodeType, FrameType
from typing import Any

import torch

from ..errors import CaptureError
from ..provenance import SourceLocation
from ..specialize.free_variables import is_library_file

_SEEDS = ("manual_seed", "seed")
_SETS_STATE = ("set_state", "set_offset", "graphsafe_set_state")
_CLOCKS = frozenset(
    getattr(time, name)
    for name in ("time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time",
                 "process_time_ns", "thread_time", "thread_time_ns", "localtime", "gmtime", "ctime")
    if hasattr(time, name)
)  # fmt: skip
_TODAY = ("now", "utcnow", "today")
_OPENS = frozenset({open, io.open_code, os.open})
_ENVIRONMENT = type(os.environ).__getitem__.__code__
_IN_BETWEEN = {os.__file__, getattr(_collections_abc, "__file__", None), "<frozen os>", "<frozen _collections_abc>"}
_COMPILER = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep


@dataclass(frozen=True)
class PythonEffect:
    """A side effect on the Python side, which happens once, while tracing, and is not part of the graph."""

    what: str
    location: SourceLocation | None = None

    def __str__(self) -> str:
        return self.what + (f" at {self.location}" if self.location else "")


class Outside:
    """Watches one run of a function on this thread. ``refusal`` is the first call that a graph cannot express,
    ``effects`` are those that stand and are reported."""

    def __init__(self) -> None:
        self.refusal: CaptureError | None = None
        self.effects: list[PythonEffect] = []
        self.calls: dict[CodeType, Callable[[FrameType], None]] = {}  # asked when Python code with that object begins
        self._before: dict[int, bytes] = {}

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch this thread. Chains to a profile function that is there already."""
        previous = sys.getprofile()

        def notice(frame: FrameType, event: str, argument: Any) -> None:
            if event == "c_call":
                self._called(frame, argument)
            elif event == "c_return":
                self._returned(argument)
            elif event == "call" and frame.f_code is _ENVIRONMENT:
                self._environment(frame)
            elif event == "call" and frame.f_code in self.calls:
                self.calls[frame.f_code](frame)
            if previous is not None:
                previous(frame, event, argument)

        sys.setprofile(notice)
        try:
            yield
        finally:
            sys.setprofile(previous)

    def _called(self, frame: FrameType, function: Any) -> None:
        owner = getattr(function, "__self__", None)
        if isinstance(owner, torch.Generator):
            if function.__name__ in _SEEDS:
                self.refusal = self.refusal or reseeded()
            elif function.__name__ in _SETS_STATE:
                self._before[id(owner)] = state_of(owner)
        elif _is_clock(function, owner):
            if _is_users(frame):
                self.refusal = self.refusal or CaptureError(
                    f"the function reads the clock ({function.__qualname__}), and what it says now would be said at "
                    "every later call",
                    where=_location(frame),
                    remedy="read the clock outside and pass the number as a 0-dimensional tensor",
                )
        elif type(function) is BuiltinFunctionType and function in _OPENS and _is_users(frame):
            self._note(f"a file is opened ({function.__name__})", frame)

    def _returned(self, function: Any) -> None:
        owner = getattr(function, "__self__", None)
        if isinstance(owner, torch.Generator) and function.__name__ in _SETS_STATE:
            if self._before.pop(id(owner), None) != state_of(owner):
                self.refusal = self.refusal or reseeded()

    def _environment(self, frame: FrameType) -> None:
        caller = frame.f_back
        while caller is not None and caller.f_code.co_filename in _IN_BETWEEN:
            caller = caller.f_back
        if caller is not None and _is_users(caller):
            self._note(f"the environment variable {frame.f_locals.get('key')!r} is read", caller)

    def _note(self, what: str, frame: FrameType) -> None:
        effect = PythonEffect(what, _location(frame))
        if effect not in self.effects:
            self.effects.append(effect)


def _is_clock(function: Any, owner: Any) -> bool:
    if isinstance(owner, type) and issubclass(owner, datetime.date):
        return function.__name__ in _TODAY
    return owner is time and function in _CLOCKS


def _is_users(frame: FrameType) -> bool:
    file = frame.f_code.co_filename
    return not is_library_file(file) and not file.startswith(_COMPILER)


def _location(frame: FrameType) -> SourceLocation:
    file, line = frame.f_code.co_filename, frame.f_lineno
    return SourceLocation(file, line, linecache.getline(file, line).strip())


def state_of(generator: torch.Generator) -> bytes:
    """A generator's state, read past all modes: the reading is the compiler's, not the user's."""
    with torch._C.DisableTorchFunction(), torch._C._DisableTorchDispatch():
        return bytes(generator.get_state().tolist())


def reseeded() -> CaptureError:
    """The refusal of a function that moves a generator itself."""
    return CaptureError(
        "the function sets or moves the state of a random number generator, which a graph cannot express",
        remedy="call torch.manual_seed (or fork_rng, set_rng_state) outside the compiled function",
    )
