"""What a traced function asks of the world outside its tensors (Section 3.7).

A graph computes from tensors. A clock, the state of a random number generator, an environment variable or a file are
inputs that appear in no signature: what they said while tracing would be said for ever. Such calls reach no tensor
mode, and reading the function's bytecode does not find them (``now = time.perf_counter`` under another name), so a
profile function watches for them while the user's function runs.

* Setting a generator's state, drawing from one of Python's, and reading a clock are refused: the result is meant to
  differ from call to call. So is reading a setting of the process that no key holds, such as the number of threads.
* Reading an environment variable or a file is reported once as a side effect: it is usually configuration. Writing is
  reported as well (a file, the log, a queue, an event, a setting), since later calls do not write again.

Only calls made by the user's own code count for clock, environment, files and settings; libraries read them for
purposes of their own. A generator is watched wherever the call comes from.
"""

from __future__ import annotations

import _collections_abc
import contextlib
import contextvars
import datetime
import io
import linecache
import logging
import os
import queue
import random
import sys
import threading
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
                 "process_time_ns", "thread_time", "thread_time_ns", "localtime", "gmtime", "ctime",
                 "asctime", "strftime")
    if hasattr(time, name)
)  # fmt: skip
_DRAWS = ("random", "getrandbits")
#: Packages that take fresh randomness for names of files and the like; importing a module may do so as well.
_DRAWS_FOR_ITSELF = ("tempfile", "torch", "importlib")
_BUFFERS = (io.StringIO, io.BytesIO)  # compared before and after instead
_TODAY = ("now", "utcnow", "today")
_OPENS = frozenset({open, io.open_code, os.open})
_WRITES = frozenset({"write", "writelines", "truncate"})
_CHANGES_FILES = frozenset(
    getattr(os, name)
    for name in ("write", "mkdir", "remove", "unlink", "rename", "replace", "rmdir", "link", "symlink", "truncate")
    if hasattr(os, name)
)
_SHARED = (contextvars.ContextVar, queue.SimpleQueue)
_ENVIRONMENT = type(os.environ).__getitem__.__code__
_SEED = random.Random.seed.__code__
#: Functions written in Python whose effect is what they are for, by code object.
_ACTS = {
    queue.Queue.put.__code__: "something is put into a queue",
    queue.Queue.get.__code__: "something is taken out of a queue",
    threading.Event.set.__code__: "an event is set",
    threading.Event.clear.__code__: "an event is cleared",
    logging.Logger.handle.__code__: "a message is logged",
    type(os.environ).__setitem__.__code__: "an environment variable is set",
    type(os.environ).__delitem__.__code__: "an environment variable is deleted",
}
#: Functions of PyTorch that read a setting which no key holds, or set one.
_SETTINGS = {
    "get_num_threads": "the number of threads", "get_num_interop_threads": "the number of threads",
    "_get_float32_matmul_precision": "the precision of float32 matrix products", "initial_seed": "the random seed",
    "_get_deterministic_algorithms_warn_only": "a setting of deterministic mode",
    "_get_deterministic_fill_uninitialized_memory": "a setting of deterministic mode",
    "is_anomaly_enabled": "whether anomalies are detected",
    "set_num_threads": "the number of threads", "set_num_interop_threads": "the number of threads",
    "_set_float32_matmul_precision": "the precision of float32 matrix products",
    "set_flush_denormal": "the treatment of denormal numbers",
    **{
        f"_get_{name}": "a setting of torch.backends"
        for name in ("mkldnn_enabled", "mkldnn_deterministic", "onednn_allow_tf32", "nnpack_enabled", "cudnn_enabled",
                     "cudnn_benchmark", "cudnn_deterministic", "cudnn_allow_tf32", "cublas_allow_tf32",
                     "flash_sdp_enabled", "math_sdp_enabled", "mem_efficient_sdp_enabled", "cudnn_sdp_enabled")
    },
}  # fmt: skip
_IN_BETWEEN = {os.__file__, logging.__file__, queue.__file__, getattr(_collections_abc, "__file__", None),
               "<frozen os>", "<frozen _collections_abc>"}  # fmt: skip
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
        self._profiles: tuple[Any, Any] = (None, None)  # what watches here, and what was there before
        self._before: dict[int, bytes] = {}
        self._seeded: dict[int, random.Random] = {}  # generators seeded with a value inside the function

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Watch this thread. Chains to a profile function that is there already."""
        previous = sys.getprofile()
        if not callable(previous):
            previous = None  # a profiler written in C (cProfile): it sees this call as one
        # By identity: the hash of a code object is that of all its instructions, and there is a lookup at every call.
        calls = {id(code): ask for code, ask in self.calls.items()}
        acts = {id(code): what for code, what in _ACTS.items()}

        def notice(frame: FrameType, event: str, argument: Any) -> None:
            if event == "c_call":
                self._called(frame, argument)
            elif event == "c_return":
                self._returned(argument)
            elif event == "call":
                code = frame.f_code
                if code is _ENVIRONMENT:
                    self._environment(frame)
                elif id(code) in calls:
                    calls[id(code)](frame)
                elif code is _SEED:
                    self._seeds(frame)
                elif id(code) in acts:
                    self._acts(acts[id(code)], frame)
            if previous is not None:
                previous(frame, event, argument)

        self._profiles = (notice, previous)
        sys.setprofile(notice)
        try:
            yield
        finally:
            sys.setprofile(previous)
            self._profiles = (None, None)

    def pause(self) -> None:
        """Look away. The tracer's own calls are none of the user's, and what a recorded operation does happens again
        whenever it runs; each of their thousands of Python calls would be looked at."""
        sys.setprofile(self._profiles[1])

    def resume(self) -> None:
        sys.setprofile(self._profiles[0])

    def _called(self, frame: FrameType, function: Any) -> None:
        owner = getattr(function, "__self__", None)
        if isinstance(owner, torch.Generator):
            if function.__name__ in _SEEDS:
                self.refusal = self.refusal or reseeded()
            elif function.__name__ in _SETS_STATE:
                self._before[id(owner)] = state_of(owner)
            elif function.__name__ == "initial_seed":
                self._setting(function, frame)
        elif isinstance(owner, random.Random):
            if function.__name__ in _DRAWS and not self._may_draw(owner, frame):
                self.refusal = self.refusal or _random("moves a random number generator (random.Random)", frame)
        elif function is os.urandom:
            self._urandom(frame)
        elif function.__name__ in _SETTINGS:
            self._setting(function, frame)
        elif function.__name__ in _WRITES and isinstance(owner, io.IOBase):
            if _is_users(frame) and (owner in (sys.stdout, sys.stderr) or not isinstance(owner, _BUFFERS)):
                self._note("a file is written to", frame)
        elif isinstance(owner, _SHARED) and function.__name__ in ("set", "put") and _is_users(frame):
            self._note(f"{type(owner).__name__}.{function.__name__} is called", frame)
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
        elif type(function) is BuiltinFunctionType and function in _CHANGES_FILES and _is_users(frame):
            self._note(f"os.{function.__name__} is called", frame)

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

    def _seeds(self, frame: FrameType) -> None:
        """A generator of Python's gets a seed: a value, or fresh randomness."""
        generator, value = frame.f_locals.get("self"), frame.f_locals.get("a")
        if value is not None:
            self._seeded[id(generator)] = generator
        elif not self._may_draw(generator, frame):
            self.refusal = self.refusal or _random("takes fresh randomness (random.Random without a seed)", frame)

    def _may_draw(self, generator: Any, frame: FrameType) -> bool:
        """The module's own generator is compared before and after; one seeded here draws the same at every call."""
        of_module = generator is random._inst  # type: ignore[attr-defined]
        return of_module or id(generator) in self._seeded or _passes_through(frame, _DRAWS_FOR_ITSELF)

    def _urandom(self, frame: FrameType) -> None:
        if not _passes_through(frame, _DRAWS_FOR_ITSELF):
            self.refusal = self.refusal or _random("takes fresh randomness (os.urandom)", frame)

    def _setting(self, function: Any, frame: FrameType) -> None:
        """A setting of the process, read or set by the user's code, perhaps through PyTorch's function for it."""
        caller = frame if _is_users(frame) else frame.f_back
        of_torch = getattr(function, "__module__", None) in (None, "torch._C", "torch")
        if not of_torch or caller is None or not _is_users(caller):
            return
        what = _SETTINGS.get(function.__name__, "")
        if "set_" in function.__name__:
            self._note(f"{what} is set", caller)
            return
        self.refusal = self.refusal or CaptureError(
            f"the function reads {what} ({function.__name__.strip('_')}), which is no part of a key",
            where=_location(caller),
            remedy="read it outside and pass it as an argument",
        )

    def _acts(self, what: str, frame: FrameType) -> None:
        caller = frame.f_back
        while caller is not None and caller.f_code.co_filename in _IN_BETWEEN:
            caller = caller.f_back
        if caller is not None and _is_users(caller):
            self._note(what, caller)

    def _note(self, what: str, frame: FrameType) -> None:
        effect = PythonEffect(what, _location(frame))
        if effect not in self.effects:
            self.effects.append(effect)


def _passes_through(frame: FrameType | None, packages: tuple[str, ...]) -> bool:
    """Whether code of one of the packages stands between a frame and the user's code."""
    while frame is not None and not _is_users(frame):
        if frame.f_globals.get("__name__", "").partition(".")[0] in packages:
            return True
        frame = frame.f_back
    return False


def _random(what: str, frame: FrameType | None) -> CaptureError:
    while frame is not None and not _is_users(frame):
        frame = frame.f_back
    return CaptureError(
        f"the function {what}; the number drawn while tracing would be used for ever",
        where=_location(frame) if frame is not None else None,
        remedy="draw with torch.rand, or draw outside and pass the number as an argument",
    )


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
