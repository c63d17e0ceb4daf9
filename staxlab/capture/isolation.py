"""Isolating side effects (Section 3.7): after tracing, the world looks as if the function had not run.

Tracing runs the user's function for real. Whatever it changes must be undone, so that the compiled program can then do
it once, at the right time: tensors changed in place, and the state of random number generators.

Copies are made *on write*. A :class:`Watcher` sees every ``aten`` operation just before it runs; the operator's schema
says which arguments it writes, and if one of them shares storage with an input, that storage is copied first. A
function that changes nothing costs nothing. The same watcher collects the facts later stages rely on and cannot guess
from a name: did this call write, draw random numbers, read tensor data, or return a shape that depends on data?
"""

from __future__ import annotations

import random
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from ..errors import CaptureError
from ..provenance import SourceLocation
from ..specialize.ambient import read_ambient
from .failing import is_foreign, may_fail
from .outside import reseeded
from .subscripts import out_of_range

#: Functions that set or move a generator's state without drawing.
RESEEDING = frozenset({"manual_seed", "seed", "set_rng_state", "fork_rng", "manual_seed_all", "set_state", "seed_all"})

# Operators that write to an argument although their schema does not say so: positions of the written arguments.
_HIDDEN_WRITES = {"native_batch_norm": (3, 4), "cudnn_batch_norm": (3, 4), "miopen_batch_norm": (3, 4)}
_READS_DATA = frozenset({"_local_scalar_dense", "is_nonzero", "equal", "allclose", "item"})


@dataclass
class CallFacts:
    """What the ``aten`` operations behind one recorded call did."""

    mutates: bool = False
    random: bool = False
    reads_data: bool = False
    dynamic_shape: bool = False
    may_fail: bool = False
    foreign: bool = False
    operators: int = 0

    def as_meta(self) -> dict[str, bool]:
        """The true ones, as entries of ``node.meta``."""
        names = ("mutates", "random", "reads_data", "dynamic_shape", "may_fail", "foreign")
        return {name: True for name in names if getattr(self, name)}


@dataclass
class SavedStorage:
    storage: torch.UntypedStorage
    copy: torch.UntypedStorage


class Versions:
    """The version counters of some tensors, by which autograd notices writes: one that has been undone is none."""

    def __init__(self, tensors: Iterable[torch.Tensor] = ()):
        self._known: list[tuple[torch.Tensor, int]] = []
        for tensor in tensors:
            self.append(tensor)

    def append(self, tensor: torch.Tensor) -> None:
        if not tensor.is_inference():  # those have none
            self._known.append((tensor, tensor._version))

    def restore(self) -> None:
        for tensor, version in self._known:
            if tensor._version != version:
                torch._C._autograd._unsafe_set_version_counter((tensor,), (version,))

    def clear(self) -> None:
        self._known.clear()


@dataclass
class RandomState:
    """The state of the generators a function may draw from: PyTorch's (CPU and, once in use, CUDA), given ones, and
    the states of Python's and NumPy's generators, which a graph cannot draw from."""

    torch_cpu: torch.Tensor = field(default_factory=torch.get_rng_state)
    torch_cuda: list[torch.Tensor] = field(default_factory=lambda: _cuda_states())
    python: Any = field(default_factory=random.getstate)
    numpy: Any = field(default_factory=lambda: _numpy_state())
    given: list[tuple[torch.Generator, torch.Tensor]] = field(default_factory=list)  # passed to some call, first state

    def restore(self) -> None:
        """Rewind PyTorch's generators and the given ones."""
        for generator, state in self.given:
            generator.set_state(state)
        torch.set_rng_state(self.torch_cpu)
        if self.torch_cuda:
            torch.cuda.set_rng_state_all(self.torch_cuda)

    def restore_python(self) -> None:
        random.setstate(self.python)
        if self.numpy is not None:
            sys.modules["numpy"].random.set_state(self.numpy)

    def python_changed(self) -> str | None:
        """The name of a Python-level generator that has advanced, if any."""
        if random.getstate() != self.python:
            return "Python's random module"
        now = _numpy_state()
        if now is not None and not (_is_untouched(now) if self.numpy is None else _same_numpy_state(now, self.numpy)):
            return "numpy.random"
        return None


def _cuda_states() -> list[torch.Tensor]:
    return torch.cuda.get_rng_state_all() if torch.cuda.is_available() and torch.cuda.is_initialized() else []


def _numpy_state() -> Any:
    numpy = sys.modules.get("numpy")
    return numpy.random.get_state() if numpy is not None and "numpy.random" in sys.modules else None


def _is_untouched(state: Any) -> bool:
    """Whether a NumPy generator, imported only just now, has drawn nothing: it stands where a new one starts."""
    new = sys.modules["numpy"].random.RandomState().get_state()
    return state[2:4] == new[2:4]


def _same_numpy_state(a: Any, b: Any) -> bool:
    return all(bool((x == y).all()) if hasattr(x, "shape") and x.shape else x == y for x, y in zip(a, b, strict=True))


def storage_key(tensor: torch.Tensor) -> int:
    """Identity of a tensor's storage."""
    return tensor.untyped_storage()._cdata


class Watcher(TorchDispatchMode):
    """Sees every ``aten`` operation of a trace: saves protected storages before they are written, collects facts.

    ``protected`` holds the storages of inputs. ``inside`` is true while the tracer runs a recorded call; an operation
    that runs at any other time has slipped past the tracer, and CaptureError is raised before it can compute something
    that no node accounts for.
    """

    def __init__(self, locate: Callable[[], SourceLocation | None] = lambda: None) -> None:
        super().__init__()
        self.locate = locate
        self.refusal: CaptureError | None = None
        self.grad = False  # the user's gradient mode during the current call
        self.arguments: list[torch.Tensor] = []  # the tensors the current call was given
        self.protected: dict[int, torch.Tensor] = {}
        self.saved: dict[int, SavedStorage] = {}
        self.versions = Versions()
        self.facts = CallFacts()
        self.inside = False
        self.random_state: torch.Tensor | None = None  # the default generator as the last recorded draw left it
        self.has_drawn = self.moved = False
        self.generators: dict[int, tuple[torch.Generator, torch.Tensor, torch.Tensor]] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # the default wraps every call in torch._dynamo, which takes a second to import

    def protect(self, tensor: torch.Tensor) -> None:
        """Undo later whatever is written to the storage of ``tensor`` from now on."""
        if tensor.layout is torch.strided:
            self.protected.setdefault(storage_key(tensor), tensor)
            self.versions.append(tensor)

    def start(self, random_state: RandomState, *, may_reseed: bool) -> None:
        """Begin to watch. The default generator is shared by all threads: while others run, a state that has moved
        proves nothing, and is held against the function only if its code mentions a function that moves it, or if
        :class:`.outside.Outside` saw this thread move it."""
        if may_reseed or threading.active_count() == 1:
            self.random_state = random_state.torch_cpu

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        kwargs = kwargs or {}
        name = func._opname
        if not self.inside:
            self.refusal = CaptureError(
                f"{func} ran outside the tracer's sight: the call that caused it cannot be recorded",
                where=self.locate(),
                remedy="create the tensor with torch.tensor, torch.empty or torch.zeros, or move this call out of the "
                "function",
            )
            raise self.refusal
        facts, tags = self.facts, func.tags
        facts.operators += 1
        facts.may_fail = facts.may_fail or may_fail(func, args)
        facts.foreign = facts.foreign or is_foreign(func)
        if torch.Tag.nondeterministic_seeded in tags:
            facts.random = True
            return self._run_random(func, args, kwargs)
        if torch.Tag.dynamic_output_shape in tags and not _is_integer_index(name, args):
            facts.dynamic_shape = True
        if torch.Tag.data_dependent_output in tags or name in _READS_DATA:
            facts.reads_data = True
        self._before_writes(func, name, args, kwargs)
        try:
            return self._run_out(func, args, kwargs) if "out" in func._overloadname else func(*args, **kwargs)
        except (IndexError, RuntimeError) as error:
            found = out_of_range(func, args, kwargs)
            if found is None:
                raise
            raise found.error(self.locate()) from error

    def _run_out(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Run an operation with ``out=``, which gives a tensor of another shape the shape of the result."""
        before = [
            (tensor, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.untyped_storage().nbytes())
            for tensor in kwargs.values()
            if isinstance(tensor, torch.Tensor) and storage_key(tensor) in self.protected
        ]
        result = func(*args, **kwargs)
        for tensor, shape, stride, offset, size in before:
            if tensor.shape != shape:
                tensor.untyped_storage().resize_(size)
                tensor.set_(tensor.untyped_storage(), offset, shape, stride)
                raise CaptureError(
                    f"out= is an input of shape {list(shape)} and the result has another, which would resize the input",
                    remedy="pass an out tensor of the result's shape, or return the result",
                )
        return result

    def _before_writes(self, func: Any, name: str, args: tuple, kwargs: dict) -> None:
        written: list[Any] = []
        if func._schema.is_mutable:
            for index, argument in enumerate(func._schema.arguments):
                if argument.alias_info is not None and argument.alias_info.is_write:
                    written.append(args[index] if index < len(args) else kwargs.get(argument.name))
        elif name in _HIDDEN_WRITES and len(args) > 5 and args[5]:
            written = [args[index] for index in _HIDDEN_WRITES[name]]
        for value in written:
            for tensor in value if isinstance(value, (list, tuple)) else (value,):
                if isinstance(tensor, torch.Tensor) and self._is_visible(tensor):
                    self.facts.mutates = True
                    # A view made where nothing is recorded, as here, calls itself a leaf: what counts is its base.
                    if self.grad and tensor.requires_grad and (tensor._base if tensor._is_view() else tensor).is_leaf:
                        # The sample runs without gradient recording; eager execution would have refused.
                        what = "a view of a leaf Variable" if tensor._is_view() else "a leaf Variable"
                        raise RuntimeError(f"{what} that requires grad is being used in an in-place operation.")
                    self._save(tensor, reshapes=torch.Tag.inplace_view in func.tags, func=func)

    def _is_visible(self, tensor: torch.Tensor) -> bool:
        """Whether memory that is written was there before the call; scratch memory of the call itself is nobody's
        concern."""
        if tensor.layout is not torch.strided:
            return any(tensor is given for given in self.arguments)
        key = storage_key(tensor)
        return key in self.protected or any(storage_key(t) == key for t in self.arguments if t.layout is torch.strided)

    def _save(self, tensor: torch.Tensor, *, reshapes: bool, func: Any) -> None:
        if tensor.layout is not torch.strided:
            return
        key = storage_key(tensor)
        if key not in self.protected:
            return
        if reshapes:
            raise CaptureError(
                f"{func} changes the shape or storage of an input in place, which cannot be undone after tracing",
                remedy="use the out-of-place form (x.t() for x.t_()), or clone the input first",
            )
        if key not in self.saved:
            storage = tensor.untyped_storage()
            self.saved[key] = SavedStorage(storage, storage.clone())

    def _run_random(self, func: Any, args: tuple, kwargs: dict) -> Any:
        """Run an operation that draws numbers, checking that only recorded operations have moved the generator."""
        generator = next((a for a in (*args, *kwargs.values()) if isinstance(a, torch.Generator)), None)
        self._before_writes(func, func._opname, args, kwargs)
        if generator is None:
            self.check_random_state()
            result = func(*args, **kwargs)
            self.has_drawn = True
            if self.random_state is not None:
                self.random_state = torch.get_rng_state()
            return result
        first, last = self.generators.get(id(generator), (generator, None, None))[1:]
        now = generator.get_state()
        if last is not None and not torch.equal(now, last):
            raise reseeded()
        result = func(*args, **kwargs)
        self.generators[id(generator)] = (generator, now if first is None else first, generator.get_state())
        return result

    def check_random_state(self) -> None:
        """CaptureError if the default generator has been moved by something other than a recorded operation."""
        if self.random_state is not None and not torch.equal(torch.get_rng_state(), self.random_state):
            self.moved = True
            raise reseeded()

    def restore(self) -> None:
        """Write every saved storage back and rewind given generators and version counters."""
        for saved in reversed(self.saved.values()):  # two storages may lie on the same memory
            saved.storage.copy_(saved.copy)
        self.versions.restore()
        for generator, first, _ in self.generators.values():
            generator.set_state(first)

    def forget(self) -> None:
        """Let go of every tensor."""
        self.protected.clear()
        self.saved.clear()
        self.versions.clear()
        self.generators.clear()
        self.arguments = []


def _is_integer_index(name: str, args: tuple) -> bool:
    """``aten.index`` is tagged as shape-dynamic, but it is so only for boolean indices."""
    if name not in ("index", "index_put", "index_put_", "_unsafe_index"):
        return False
    return not any(isinstance(i, torch.Tensor) and i.dtype in (torch.bool, torch.uint8) for i in args[1])


def check_unchanged(random_state: RandomState, python_state: Any, ambient: Any) -> None:
    """CaptureError if the function drew from Python's generators, changed an object, or left PyTorch's settings other
    than it found them: what would happen while tracing and at no later call."""
    drawn = random_state.python_changed() or python_state.drawn()
    if drawn is not None:
        raise CaptureError(
            f"the function draws from {drawn}; the number drawn while tracing would be used for ever",
            remedy="draw with torch.rand, or draw outside and pass the number as an argument",
        )
    changed = python_state.forbidden()
    if changed:
        raise CaptureError(
            f"the function changes {', '.join(changed[:4])}; that would happen while tracing and at no later call",
            remedy="return the new value, or keep state in a tensor changed in place (buffer.copy_(...))",
        )
    if read_ambient() != ambient:
        raise CaptureError(
            "the function leaves gradient mode, autocast or the default dtype other than it found it",
            remedy="use the context managers (torch.no_grad(), torch.autocast(...)) inside the function",
        )
