"""Free variables (Section 2.5): everything a function reads that is not in its argument list.

A model's weights live in attributes, a scale in a global, a bias in a closure. None of them is an argument, yet each
is read anew at every call: it may have been changed in place, or its name may have been bound to something else. A
compiler that wrote the values into its artifact would go on computing with yesterday's. The remedy is *lambda lifting*:
turn every such value into a leading argument that is fetched from where it lives at each call.

What a function can reach is found by reading its bytecode. Starting from the function (or module, bound method,
partial), the walk follows

* globals named by a global-reading instruction, in this function and in the user functions it calls,
* closure cells and default values,
* ``self``, submodules, parameters, buffers, and the attributes whose names some visited bytecode mentions.

Each value found is a :class:`Place`: a path to print (``self.layers.0.weight``), a holder and a key to read it from.
The places form an :class:`Environment` of three groups. *Tensors* become leading arguments. *Scalars* (numbers,
strings, training flags) cannot be arguments of a tensor program, so they join the specialization key by value.
*Structure* (functions, submodules, other objects) joins it by identity: a layer that has been replaced is a different
program.
"""

from __future__ import annotations

import collections
import collections.abc
import dis
import functools
import inspect
import io
import os
import sys
import sysconfig
import types
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import CaptureError

SCALARS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, type(Ellipsis))
_LIMIT = 10_000  # values visited at most; beyond it a container is treated as an opaque object

_LIBRARY_ROOTS = tuple(
    os.path.abspath(path) + os.sep
    for path in {sysconfig.get_paths()["stdlib"], sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]}
    | {os.path.dirname(os.path.dirname(torch.__file__))}
)
_COMPILER = tuple(
    f"{__name__.partition('.')[0]}.{stage}" for stage in ("specialize", "capture", "pipeline", "api", "runtime")
)


def is_library_file(file: str) -> bool:
    """Whether code in ``file`` is installed software (standard library, site-packages) and not the user's program."""
    return file.startswith(_LIBRARY_ROOTS) or file.startswith("<frozen")


def is_library_module(name: str) -> bool:
    """Whether the module of this name is installed software, or part of the compiler itself."""
    root = name.partition(".")[0]
    if root in sys.builtin_module_names or root in sys.stdlib_module_names or root == "torch":
        return True
    if root == __name__.partition(".")[0]:
        return name.startswith(_COMPILER)
    return is_library_file(getattr(sys.modules.get(name), "__file__", None) or "<dynamic>")


@dataclass(frozen=True, eq=False)
class Place:
    """Where a free value lives: ``read()`` fetches what is there now.

    ``how`` is "item" (``holder[key]``), "cell" (a closure cell), "attribute", "length" (``len(holder)``), "keys" (the
    keys of a dict, in order) or "members" (the elements of a set, as text, in a stable order).
    """

    path: str
    holder: Any
    key: Any
    how: str = "item"

    def read(self) -> Any:
        """The value now. KeyError, AttributeError, IndexError or ValueError if the name is no longer bound."""
        if self.how == "item":
            return self.holder[self.key]
        if self.how == "cell":
            return self.holder.cell_contents
        if self.how == "length":
            return len(self.holder)
        if self.how == "keys":
            return tuple(self.holder)
        if self.how == "members":
            return set_members(self.holder)
        return getattr(self.holder, self.key)

    def expression(self, scope: dict[str, Any]) -> str:
        """Python source that reads the place; objects it needs are added to ``scope``."""
        name = f"h{id(self.holder)}"
        scope[name] = self.holder
        if self.how == "cell":
            return f"{name}.cell_contents"
        if self.how == "length":
            return f"len({name})"
        if self.how == "keys":
            return f"tuple({name})"
        if self.how == "members":
            scope["set_members"] = set_members
            return f"set_members({name})"
        if self.how == "attribute":
            return f"{name}.{self.key}"
        if type(self.key) in (str, int, bool):
            return f"{name}[{self.key!r}]"
        key = f"k{id(self.key)}"
        scope[key] = self.key
        return f"{name}[{key}]"


def is_plain(value: Any) -> bool:
    """A number, string or the like, or a tuple of such: compared by value."""
    return isinstance(value, SCALARS) or (type(value) is tuple and all(map(is_plain, value)))


def set_members(members: Iterable[Any]) -> str:
    """The elements of a set as one string that does not depend on their order of insertion."""
    return ", ".join(sorted(f"{type(member).__name__} {member!r}" for member in members))


#: Stands for the value of a place whose name is no longer bound.
UNBOUND = "<unbound>"


def compile_reader(places: Iterable[Place]) -> Callable[[], tuple[Any, ...]]:
    """One function that reads all places at once, as a tuple; generated, so that a read costs tens of nanoseconds."""
    places = tuple(places)
    scope: dict[str, Any] = {}
    body = ", ".join(place.expression(scope) for place in places)
    exec(f"def read(): return ({body}{',' if places else ''})", scope)
    fast = scope["read"]

    def read() -> tuple[Any, ...]:
        try:
            return fast()
        except (KeyError, AttributeError, IndexError, ValueError, NameError):
            return tuple(_read_or_unbound(place) for place in places)

    return read if places else tuple


def _read_or_unbound(place: Place) -> Any:
    try:
        return place.read()
    except (KeyError, AttributeError, IndexError, ValueError, NameError):
        return UNBOUND


@dataclass(eq=False)
class Environment:
    """The places a function reads besides its arguments.

    ``tensors`` are lifted, ``scalars`` compared by value, ``structure`` by identity. ``extents`` are lengths and key
    lists of containers and objects: when one changes, there may be places nobody knows of yet, and all are collected
    anew.
    """

    tensors: tuple[Place, ...] = ()
    scalars: tuple[Place, ...] = ()
    structure: tuple[Place, ...] = ()
    extents: tuple[Place, ...] = ()
    owners: tuple[tuple[str, Any], ...] = field(default=(), repr=False)  # modules and objects whose attributes count
    containers: tuple[tuple[str, Any], ...] = field(default=(), repr=False)  # lists, dicts and sets
    stored: tuple[Place, ...] = field(default=(), repr=False)  # globals that the bytecode assigns to
    prints: tuple[tuple[str, int], ...] = field(default=(), repr=False)  # (file, line) of calls of print
    iterators: tuple[str, ...] = field(default=(), repr=False)  # paths of iterators: a call would use them up
    names: frozenset[str] = field(default=frozenset(), repr=False)  # names the visited bytecode mentions
    expected: tuple[Any, ...] = field(default=(), repr=False)  # the structure as found
    expected_extents: tuple[Any, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        self.read_tensors = compile_reader(self.tensors)
        self.read_scalars = compile_reader(self.scalars)
        self.read_structure = compile_reader(self.structure)
        self.read_extents = compile_reader(self.extents)
        self.expected, self.expected_extents = self.read_structure(), self.read_extents()

    @property
    def is_empty(self) -> bool:
        return not (self.tensors or self.scalars or self.structure or self.extents)

    def is_current(self) -> bool:
        """Whether the places still cover everything the function reads: no object has been replaced, no container has
        gained or lost a part, no plain value has become an object, and every name is still bound."""
        if self.read_extents() != self.expected_extents:
            return False
        for now, then in zip(self.read_structure(), self.expected, strict=True):
            if now is not then:
                return False
        for value in self.read_scalars():
            if value is UNBOUND or not (isinstance(value, torch.Tensor) or is_plain(value)):
                return False
        return not any(value is UNBOUND for value in self.read_tensors())

    def find(self, tensor: torch.Tensor) -> Place | None:
        """The place that holds this very tensor, if any."""
        for place in self.tensors:
            if _read_or_unbound(place) is tensor:
                return place
        return None


def collect(fn: Any, roots: Iterable[tuple[str, Any]] = ()) -> Environment:
    """Walk everything ``fn`` can reach (and, by path, the ``roots``: argument objects such as modules).

    Linear in the size of what is reached; runs once per function, and again when the structure has changed.
    """
    roots = tuple(roots)
    names: set[str] = set()
    while True:  # attribute names found late may make more attributes relevant: repeat until no new name turns up
        before = len(names)
        walk = _Walk(names)
        walk.callable(fn, "")
        for path, value in roots:
            walk.visit(value, None, path)
        if len(names) == before:
            return Environment(
                tuple(walk.tensors.values()),
                tuple(walk.scalars.values()),
                tuple(walk.structure.values()),
                tuple(walk.extents.values()),
                tuple(walk.owners),
                tuple(walk.containers),
                tuple(walk.stored),
                tuple(walk.prints),
                tuple(walk.iterators),
                frozenset(names),
            )


class _Walk:
    def __init__(self, names: set[str]):
        self.names = names
        self.tensors: dict[tuple, Place] = {}
        self.scalars: dict[tuple, Place] = {}
        self.structure: dict[tuple, Place] = {}
        self.extents: dict[tuple, Place] = {}
        self.owners: list[tuple[str, Any]] = []
        self.containers: list[tuple[str, Any]] = []
        self.stored: list[Place] = []
        self.prints: list[tuple[str, int]] = []
        self.iterators: list[str] = []
        self.visited: dict[tuple[str, int], Any] = {}

    # -- callables ---------------------------------------------------------------------------------------------------

    def callable(self, fn: Any, path: str) -> None:
        """The function at the root, or one it reaches."""
        if isinstance(fn, functools.partial):
            self.callable(fn.func, path)
            for index, value in enumerate(fn.args):
                self.visit(value, Place(f"{path or 'partial'}.args[{index}]", fn.args, index))
            for key, value in fn.keywords.items():
                self.visit(value, Place(f"{path or 'partial'}.{key}", fn.keywords, key))
        elif isinstance(fn, types.MethodType):
            self.visit(fn.__self__, None, path or "self")
            self.callable(fn.__func__, path)
        elif isinstance(fn, types.FunctionType):
            self.function(fn, path)
        elif not isinstance(fn, (types.BuiltinFunctionType, type)):
            self.visit(fn, None, path or "self")
            method = inspect.getattr_static(type(fn), "__call__", None)
            if isinstance(method, types.FunctionType):
                self.function(method, path)

    def function(self, fn: types.FunctionType, path: str) -> None:
        if self._enter(fn, "code of"):
            return
        wrapped = getattr(fn, "__wrapped__", None)
        if callable(wrapped):
            self.callable(wrapped, path)
        library = is_library_file(fn.__code__.co_filename)
        for code in _code_objects(fn.__code__):
            self.names.update(code.co_names)
            if not library and not _BY_NAME.isdisjoint(code.co_names):  # getattr(self, "mask", None)
                self.names.update(c for c in code.co_consts if isinstance(c, str) and c.isidentifier())
        if not library:
            for part in ("__code__", "__defaults__", "__kwdefaults__"):
                if getattr(fn, part) is not None:
                    self._put(self.structure, Place(f"{fn.__name__}.{part}", fn, part, "attribute"))
            for name in _global_names(fn.__code__):
                if name in fn.__globals__:
                    self.visit(fn.__globals__[name], Place(name, fn.__globals__, name))
            self.stored += [Place(name, fn.__globals__, name) for name in _stored_names(fn.__code__)]
            if "print" not in fn.__globals__:
                self.prints += _print_calls(fn.__code__)
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                continue
            self.visit(value, Place(name, cell, None, "cell"))
        parameters = fn.__code__.co_varnames[: fn.__code__.co_argcount]
        for index, value in enumerate(fn.__defaults__ or ()):
            name = parameters[len(parameters) - len(fn.__defaults__) + index]
            self.visit(value, Place(f"{path}{name}", fn.__defaults__, index))
        for name, value in (fn.__kwdefaults__ or {}).items():
            self.visit(value, Place(f"{path}{name}", fn.__kwdefaults__, name))
        for name, value in list(vars(fn).items()):
            if name in self.names and name != "__wrapped__":
                self.visit(value, Place(f"{fn.__name__}.{name}", vars(fn), name))

    # -- values ------------------------------------------------------------------------------------------------------

    def visit(self, value: Any, place: Place | None, path: str | None = None) -> None:
        """Sort a value into its group and go on to what it holds. ``place`` is None for a root, which is never
        replaced."""
        path = place.path if place is not None else path or ""
        if isinstance(value, torch.Tensor):
            if place is not None:
                self._put(self.tensors, place)
            return
        if is_plain(value):
            if place is not None:
                self._put(self.scalars, place)
            return
        if place is not None and not (isinstance(value, types.ModuleType) and _is_library_module(value)):
            self._put(self.structure, place)
        if self._enter(value):
            return
        if isinstance(value, torch.nn.Module):
            self.module(value, path)
        elif isinstance(value, (list, tuple, collections.deque)):
            self._parts(value, path, "length")
            for index, item in enumerate(value):
                self.visit(item, Place(f"{path}[{index}]", value, index))
        elif isinstance(value, dict):
            self._parts(value, path, "keys")
            for key, item in list(value.items()):
                self.visit(item, Place(f"{path}[{key!r}]", value, key))
        elif isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            self.callable(value, "")
        elif isinstance(value, types.ModuleType):
            self.python_module(value, path)
        elif isinstance(value, type):
            if not _is_library_type(value):
                self._methods(value)
                self._class_attributes(value, value, path)
        elif isinstance(value, (set, frozenset)):
            self._parts(value, path, "length")
            self._put(self.scalars, Place(path, value, None, "members"))
        elif isinstance(value, collections.abc.Iterator) and not isinstance(value, io.IOBase):
            self.iterators.append(path)
        else:
            self.object(value, path)

    def module(self, module: torch.nn.Module, path: str) -> None:
        if isinstance(module, torch.jit.ScriptModule):
            raise CaptureError(
                f"{path} is a TorchScript module ({module.original_name}), whose operations pass by the tracer",
                remedy="use the Python module that was scripted or traced",
            )
        self._methods(type(module))
        self._own(module, path)
        for group in (module._parameters, module._buffers):
            for name, value in group.items():
                self.visit(value, Place(f"{path}.{name}", group, name))
        for name, child in module._modules.items():
            self.visit(child, Place(f"{path}.{name}", module._modules, name))
        for hooks in ("_forward_hooks", "_forward_pre_hooks"):
            registered = module.__dict__.get(hooks)
            if registered is not None:
                self._put(self.extents, Place(f"len({path}.{hooks})", registered, None, "length"))
                for hook in registered.values():
                    self.callable(hook, "")
        self._attributes(module, path, {*_MODULE_INTERNALS})

    def object(self, value: Any, path: str) -> None:
        kind = type(value)
        wrapped = getattr(value, "__wrapped__", None)
        if callable(wrapped):  # functools.lru_cache and the like
            self.callable(wrapped, "")
        if _is_library_type(kind) and not isinstance(value, types.SimpleNamespace):
            return
        self._methods(kind)
        if hasattr(value, "__dict__"):
            self._own(value, path)
            self._attributes(value, path, frozenset())
        for name in _slots(kind):
            if name in self.names and hasattr(value, name):
                self.visit(getattr(value, name), Place(f"{path}.{name}", value, name, "attribute"))

    def python_module(self, module: types.ModuleType, path: str) -> None:
        if _is_library_module(module):
            return
        for name in sorted(self.names & vars(module).keys()):
            if not name.startswith("__"):
                self.visit(vars(module)[name], Place(f"{path}.{name}", vars(module), name))

    def _attributes(self, owner: Any, path: str, hidden: Iterable[str]) -> None:
        for name, value in list(vars(owner).items()):
            if name in hidden or not (name in self.names or name == "training" or isinstance(value, torch.Tensor)):
                continue
            self.visit(value, Place(f"{path}.{name}", vars(owner), name))
        self._class_attributes(owner, type(owner), path)

    def _class_attributes(self, owner: Any, kind: type, path: str) -> None:
        """Plain values that live on the class and are read through the instance (or the class itself)."""
        if _is_library_type(kind):
            return
        own = vars(owner) if owner is not kind and hasattr(owner, "__dict__") else {}
        for base in kind.__mro__:
            if base is object or _is_library_type(base):
                continue
            for name, value in list(vars(base).items()):
                if name in own or name not in self.names or name.startswith("__") or _is_descriptor(value):
                    continue
                self.visit(value, Place(f"{path}.{name}", owner, name, "attribute"))

    def _own(self, owner: Any, path: str) -> None:
        """Notice when an object gains or loses attributes (for a module: parameters, buffers or submodules)."""
        self.owners.append((path, owner))
        self._put(self.extents, Place(f"len(vars({path}))", vars(owner), None, "length"))
        if isinstance(owner, torch.nn.Module):
            for name in ("_parameters", "_buffers", "_modules"):
                self._put(self.extents, Place(f"len({path}.{name})", vars(owner)[name], None, "length"))

    def _methods(self, kind: type) -> None:
        """Read the bytecode of the methods of a class that a call can reach, starting from ``forward``/``__call__``."""
        if self._enter(kind, "methods of"):
            return
        for base in kind.__mro__:
            if base in (object, torch.nn.Module):
                continue
            for name, member in list(vars(base).items()):
                if isinstance(member, property):
                    member = member.fget
                if isinstance(member, (staticmethod, classmethod)):
                    member = member.__func__
                if not isinstance(member, types.FunctionType) or name in _SETUP_METHODS:
                    continue
                if name in self.names or name in ("forward", "__call__") or name.startswith("__"):
                    self.function(member, f"{kind.__name__}.{name}.")

    def _parts(self, value: Any, path: str, how: str) -> None:
        """Notice when a mutable container gains or loses parts."""
        if not isinstance(value, (tuple, frozenset)):
            self.containers.append((path, value))
            self._put(self.extents, Place(f"{'len' if how == 'length' else 'list'}({path})", value, None, how))

    def _put(self, group: dict[tuple, Place], place: Place) -> None:
        group.setdefault((id(place.holder), place.how, place.key), place)

    def _enter(self, value: Any, aspect: str = "value") -> bool:
        """True if the value has been visited, or there are too many; remembers it otherwise."""
        if (aspect, id(value)) in self.visited or len(self.visited) > _LIMIT:
            return True
        self.visited[aspect, id(value)] = value
        return False


def _is_library_type(kind: type) -> bool:
    return kind.__module__ != "__main__" and is_library_module(kind.__module__)


def _is_descriptor(value: Any) -> bool:
    return callable(value) or hasattr(value, "__get__")


def _slots(kind: type) -> list[str]:
    found: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        found += [slots] if isinstance(slots, str) else list(slots)
    return found


def _is_library_module(module: types.ModuleType) -> bool:
    return is_library_module(module.__name__)


_BY_NAME = frozenset({"getattr", "hasattr"})
_SETUP_METHODS = frozenset({"__init__", "extra_repr", "__repr__", "reset_parameters", "__setstate__", "__new__"})
_MODULE_INTERNALS = frozenset(
    {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_backward_hooks", "_backward_pre_hooks",
     "_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
     "_forward_pre_hooks_with_kwargs", "_state_dict_hooks", "_state_dict_pre_hooks", "_is_full_backward_hook",
     "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_compiled_call_impl"}
)  # fmt: skip


def _code_objects(code: types.CodeType) -> Iterable[types.CodeType]:
    """A code object and the ones nested in it: lambdas, comprehensions, inner functions."""
    yield code
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _code_objects(constant)


@functools.lru_cache(maxsize=4096)
def _global_names(code: types.CodeType) -> tuple[str, ...]:
    """The names a code object (or one nested in it) loads as globals, in order of first appearance."""
    names = {}
    for part in _code_objects(code):
        for instruction in dis.get_instructions(part):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS"):
                names[instruction.argval] = None
    return tuple(names)


@functools.lru_cache(maxsize=4096)
def _stored_names(code: types.CodeType) -> tuple[str, ...]:
    """The globals a code object assigns to or deletes."""
    return tuple(
        {
            instruction.argval: None
            for part in _code_objects(code)
            for instruction in dis.get_instructions(part)
            if instruction.opname in ("STORE_GLOBAL", "DELETE_GLOBAL")
        }
    )


@functools.lru_cache(maxsize=4096)
def _print_calls(code: types.CodeType) -> tuple[tuple[str, int], ...]:
    """(file, line) of each place that reads the name ``print``."""
    return tuple(
        (part.co_filename, instruction.positions.lineno)
        for part in _code_objects(code)
        for instruction in dis.get_instructions(part)
        if instruction.opname == "LOAD_GLOBAL" and instruction.argval == "print" and instruction.positions
    )
