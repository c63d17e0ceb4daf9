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
import contextvars
import enum
import functools
import inspect
import io
import os
import sys
import threading
import types
import weakref
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import torch

from ..errors import CaptureError
from . import opaque
from .bytecode import code_objects, imported_modules, reads
from .library import is_library_file, is_library_module, is_library_type
from .places import UNBOUND, Place, compile_reader, is_plain, is_same_extent, read_or_unbound, set_members
from .roots import EXACT, Attributes, argument_roots
from .structure import attribute_names

_LIMIT = 10_000  # values visited at most; beyond it a container is treated as an opaque object


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
    named_by_user: frozenset[str] = field(default=frozenset(), repr=False)  # of these, attributes in the user's code
    assigned: frozenset[str] = field(default=frozenset(), repr=False)  # attributes the user's code assigns to
    holders: tuple[tuple[str, Any], ...] = field(default=(), repr=False)  # objects of library types
    refused: tuple[tuple[str, str], ...] = field(default=(), repr=False)  # (what cannot be described, remedy)
    compares_identities: bool = field(default=False, repr=False)  # the user's code asks whether objects are the same
    asked: tuple[str, ...] = field(default=(), repr=False)  # attributes that arguments may be asked for
    expected: tuple[Any, ...] = field(default=(), repr=False)  # the structure as found
    expected_extents: tuple[Any, ...] = field(default=(), repr=False)

    def __post_init__(self) -> None:
        self.read_tensors = compile_reader(self.tensors)
        self.read_scalars = compile_reader(self.scalars)
        self.read_structure = compile_reader(self.structure)
        self.read_extents = compile_reader(self.extents)
        self.expected, self.expected_extents = self.read_structure(), self.read_extents()

    @property
    def codes(self) -> tuple[types.CodeType, ...]:
        """The bytecode of the functions among the structure."""
        return tuple(value for value in self.expected if isinstance(value, types.CodeType))

    @property
    def is_empty(self) -> bool:
        return not (self.tensors or self.scalars or self.structure or self.extents)

    def is_current(self) -> bool:
        """Whether the places still cover everything the function reads: no object has been replaced, no container has
        gained or lost a part, no plain value has become an object, and every name is still bound."""
        if not all(map(is_same_extent, self.read_extents(), self.expected_extents)):
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
            if read_or_unbound(place) is tensor:
                return place
        return None


def collect(fn: Any, roots: Iterable[tuple[str, Any]] = ()) -> Environment:
    """Walk everything ``fn`` can reach (and, by path, the ``roots``: argument objects such as modules).

    Linear in the size of what is reached; runs once per function, and again when the structure has changed.
    """
    roots = tuple(roots)
    names = _Names()
    while True:  # attribute names found late may make more attributes relevant: repeat until no new name turns up
        before = names.count()
        walk = _Walk(names)
        walk.callable(fn, "")
        for path, value in roots:
            walk.root(value, path)
        if names.count() == before:
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
                frozenset(names.all),
                frozenset(names.own),
                frozenset(names.assigned),
                tuple(walk.holders),
                tuple(walk.refused),
                walk.compares_identities,
                tuple(sorted(walk.asked)),
            )


@dataclass
class _Names:
    """The names found so far. ``everything``: some attribute is read by a name that no bytecode mentions."""

    all: set[str] = field(default_factory=set)
    own: set[str] = field(default_factory=set)
    assigned: set[str] = field(default_factory=set)
    everything: bool = False
    matches: bool = False

    def count(self) -> tuple[int, ...]:
        return len(self.all), len(self.own), len(self.assigned), self.everything, self.matches


class _Walk:
    def __init__(self, names: _Names):
        self.known, self.names = names, names.all
        self.tensors: dict[tuple, Place] = {}
        self.scalars: dict[tuple, Place] = {}
        self.structure: dict[tuple, Place] = {}
        self.extents: dict[tuple, Place] = {}
        self.owners: list[tuple[str, Any]] = []
        self.containers: list[tuple[str, Any]] = []
        self.stored: list[Place] = []
        self.prints: list[tuple[str, int]] = []
        self.iterators: list[str] = []
        self.holders: list[tuple[str, Any]] = []
        self.refused: list[tuple[str, str]] = []
        self.compares_identities = False
        self.asked: set[str] = set()
        self.visited: dict[tuple[str, int], Any] = {}
        self.namespaces: dict[type, Any] = {}  # one view of each class's dict, so that its places have one holder

    def root(self, value: Any, path: str) -> None:
        if isinstance(value, Attributes):
            state = vars(value.value)
            for name in value.names:
                if self._counts(name, state[name]):
                    self.visit(state[name], Place(f"{path}.{name}", state, name))
        else:
            self.visit(value, None, path)

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
        for code in code_objects(fn.__code__):
            self.names.update(code.co_names)
        scope = fn.__globals__.get("__name__")
        if not (is_library_file(fn.__code__.co_filename) or (isinstance(scope, str) and is_library_module(scope))):
            self._user_code(fn)
        for name, cell in zip(fn.__code__.co_freevars, fn.__closure__ or (), strict=True):
            try:
                value = cell.cell_contents
            except ValueError:
                self._put(self.extents, Place(f"is_bound({name})", cell, None, "bound"))
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

    def _user_code(self, fn: types.FunctionType) -> None:
        """What the bytecode of a function of the user's says about names."""
        found, known = reads(fn.__code__), self.known
        known.own |= found.attributes
        known.assigned |= found.stored_attributes
        known.everything = known.everything or found.all_attributes
        known.matches = known.matches or found.match_classes
        self.compares_identities = self.compares_identities or found.compares_identities
        self.asked.update(name for name in found.asked if not hasattr(torch.Tensor, name))
        self.names |= found.attributes
        for part in ("__code__", "__defaults__", "__kwdefaults__"):
            if getattr(fn, part) is not None:
                self._put(self.structure, Place(f"{fn.__name__}.{part}", fn, part, "attribute"))
        scope = fn.__globals__
        for name in found.globals:
            if name in scope:
                self.visit(scope[name], Place(name, scope, name))
            else:  # a builtin that may be shadowed later, or a name not bound yet
                self._put(self.extents, Place(f"is_bound({name})", scope, name, "bound"))
        self.stored += [Place(name, scope, name) for name in found.stored_globals]
        if "print" not in scope:
            self.prints += found.prints
        for name, module in imported_modules(fn.__code__, scope.get("__package__")):
            if module is not None:
                self.visit(module, Place(name, sys.modules, name))
            else:
                self._put(self.extents, Place(f"is_bound({name})", sys.modules, name, "bound"))
        if found.evaluates is not None and not {"eval", "exec", "globals"} & scope.keys():
            what, line = found.evaluates
            where = f"{os.path.basename(fn.__code__.co_filename)}:{line}"
            remedy = "name what is read, or pass it as an argument"
            self.refused.append((f"calls {what} at {where}, which may read anything", remedy))
        self.owners.append((fn.__name__, fn))
        self._put(self.extents, Place(f"len(vars({fn.__name__}))", vars(fn), None, "length"))

    # -- values ------------------------------------------------------------------------------------------------------

    def visit(self, value: Any, place: Place | None, path: str | None = None) -> None:
        """Sort a value into its group and go on to what it holds. ``place`` is None for a root, which is never
        replaced."""
        path = place.path if place is not None else path or ""
        if isinstance(value, torch.Tensor):
            if place is not None:
                self._put(self.tensors, place)
                if value.__dict__ or type(value) is torch.Tensor:
                    self._tensor_attributes(value, path)
            return
        if is_plain(value):
            if place is not None:
                self._put(self.scalars, place)
            if type(value) in EXACT or is_library_type(type(value)):
                return
        if place is not None and not (isinstance(value, types.ModuleType) and is_library_module(value.__name__)):
            self._put(self.structure, place)
        if self._enter(value):
            return
        if isinstance(value, torch.nn.Module):
            self.module(value, path)
        elif isinstance(value, (list, tuple, collections.deque)):
            self._parts(value, path, "length")
            for index, item in enumerate(value):
                self.visit(item, Place(f"{path}[{index}]", value, index))
            self._subclass(value, path)
        elif isinstance(value, (dict, types.MappingProxyType)):
            self._parts(value, path, "keys")
            for key, item in list(value.items()):
                self.visit(item, Place(f"{path}[{key!r}]", value, key))
                self.visit(key, None, f"a key of {path}")
            self._subclass(value, path)
        elif isinstance(value, (types.FunctionType, types.MethodType, functools.partial)):
            self.callable(value, "")
        elif isinstance(value, types.ModuleType):
            self.python_module(value, path)
        elif isinstance(value, type):
            if not is_library_type(value):
                self._methods(value)
                self._class_attributes(value, value, path)
                if not is_library_type(type(value)):
                    self._methods(type(value))
                    self._class_attributes(value, type(value), path)
                if self.known.matches:
                    self.names.update(getattr(value, "__match_args__", ()))
        elif isinstance(value, (set, frozenset)):
            self._parts(value, path, "length")
            self._put(self.scalars, Place(path, value, None, "members"))
            for member in value:
                self.visit(member, None, f"a member of {path}")
            self._subclass(value, path)
        elif is_plain(value):
            self._subclass(value, path)
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
        for hooks in _HOOKS:
            self._hooks(module.__dict__.get(hooks), f"{path}.{hooks}")
        if not self._enter(torch.nn.modules.module, "hooks of"):
            for hooks in _HOOKS:
                self._hooks(getattr(torch.nn.modules.module, f"_global{hooks}", None), f"torch.nn.Module.{hooks}")
        self._attributes(module, path, _MODULE_INTERNALS)

    def _hooks(self, registered: dict | None, path: str) -> None:
        """Hooks by the keys of their handles, which are never used twice."""
        if registered:
            self._put(self.extents, Place(f"list({path})", registered, None, "keys"))
            for hook in registered.values():
                self.callable(hook, "")
        elif registered is not None:
            self._put(self.extents, Place(f"len({path})", registered, None, "length"))

    def object(self, value: Any, path: str) -> None:
        kind = type(value)
        if hasattr(kind, "__specialized_by__"):
            for name in attribute_names(value):
                self.visit(getattr(value, name), Place(f"{path}.{name}", value, name, "attribute"))
            return
        wrapped = getattr(value, "__wrapped__", None)
        if callable(wrapped):  # functools.lru_cache and the like
            self.callable(wrapped, "")
        if is_library_type(kind):
            self._library_object(value, path)
            return
        self._methods(kind)
        self._put(self.structure, Place(f"{path}.__class__", value, "__class__", "attribute"))
        if hasattr(value, "__dict__"):
            self._own(value, path)
            self._attributes(value, path, frozenset())
        for name in _slots(kind):
            if hasattr(value, name) and self._counts(name, getattr(value, name)):
                self.visit(getattr(value, name), Place(f"{path}.{name}", value, name, "attribute"))

    def _library_object(self, value: Any, path: str) -> None:
        """An object of a library type: by content, or by those of its attributes that hold what the user reads."""
        self.holders.append((path, value))
        if isinstance(value, contextvars.ContextVar):
            place = Place(f"{path}.get()", value, None, "context")
            found = read_or_unbound(place)
            self.visit(found, place) if found is not UNBOUND else self._put(self.extents, place)
            return
        if isinstance(value, weakref.ref):
            self.visit(value(), Place(f"{path}()", value, None, "referent"))
            return
        if opaque.has_content(value):
            size = opaque.size_of_content(value)
            if size is None or size > opaque.LARGEST_CONTENT:
                what = "whose content cannot be compared" if size is None else f"of {size:,} bytes"
                remedy = "pass its content as a tensor argument, or keep it as a tensor"
                self.refused.append((f"reads {path}, {_a(type(value))} {what}", remedy))
            else:
                self._put(self.scalars, Place(path, value, None, "content"))
            return
        if opaque.is_unreadable(value):
            what = f"reads {path}, {_a(type(value))}, whose state cannot be compared between calls"
            self.refused.append((what, "take the value out of it and pass that as an argument"))
            return
        self.names.update(opaque.names_read_by(value))
        owner = getattr(value, "__self__", None)  # a bound method of a library object
        if owner is not None and not isinstance(owner, (types.ModuleType, type, torch.Tensor, torch.nn.Module)):
            self.visit(owner, None, f"{path}.__self__")
        state = getattr(value, "__dict__", None)
        is_namespace = isinstance(value, opaque.NAMESPACES)
        if is_namespace and state is not None:
            self.owners.append((path, value))
            if not isinstance(value, threading.local):
                self._put(self.extents, Place(f"len(vars({path}))", state, None, "length"))
        held = opaque.held_attributes(value)
        for name in list(state) if isinstance(state, dict) else held:
            wanted = self._counts(name, state[name]) if is_namespace else name in self.known.own
            if (wanted or name in held) and isinstance(name, str) and name.isidentifier():
                self.visit(getattr(value, name), Place(f"{path}.{name}", value, name, "attribute"))

    def _tensor_attributes(self, tensor: torch.Tensor, path: str) -> None:
        """Attributes that the user has given to a tensor."""
        state = tensor.__dict__
        self._put(self.extents, Place(f"len(vars({path}))", state, None, "length"))
        for name, value in list(state.items()):
            if name in self.known.own or self.known.everything:
                self.visit(value, Place(f"{path}.{name}", state, name))

    def _subclass(self, value: Any, path: str) -> None:
        """What an object of a class derived from a builtin type holds besides its parts."""
        kind = type(value)
        if kind in EXACT or is_library_type(kind):
            return
        self._methods(kind)
        if isinstance(value, enum.Enum):
            return
        self._put(self.structure, Place(f"{path}.__class__", value, "__class__", "attribute"))
        if hasattr(value, "__dict__"):
            self._own(value, path)
            self._attributes(value, path, frozenset())

    def _counts(self, name: str, value: Any) -> bool:
        """Whether some code may read an attribute of this name. What would be refused counts only if it is named."""
        if name in self.names or not self.known.everything or name.startswith("__"):
            return name in self.names
        if isinstance(value, collections.abc.Iterator) or opaque.is_unreadable(value):
            return False
        return not opaque.has_content(value) or (opaque.size_of_content(value) or 1 << 60) <= opaque.LARGEST_CONTENT

    def python_module(self, module: types.ModuleType, path: str) -> None:
        if is_library_module(module.__name__):
            return
        for name, value in list(vars(module).items()) if self.known.everything else ():
            if not name.startswith("__") and (is_plain(value) or isinstance(value, torch.Tensor)):
                self.visit(value, Place(f"{path}.{name}", vars(module), name))
        for name in sorted(self.names & vars(module).keys()):
            if not name.startswith("__"):
                self.visit(vars(module)[name], Place(f"{path}.{name}", vars(module), name))

    def _attributes(self, owner: Any, path: str, hidden: Iterable[str]) -> None:
        for name, value in list(vars(owner).items()):
            wanted = name == "training" or isinstance(value, torch.Tensor) or self._counts(name, value)
            shadows = callable(value) and callable(getattr(type(owner), name, None))  # stands for a method
            if name in hidden or not (wanted or shadows):
                continue
            self.visit(value, Place(f"{path}.{name}", vars(owner), name))
        self._class_attributes(owner, type(owner), path)

    def _class_attributes(self, owner: Any, kind: type, path: str) -> None:
        """Plain values that live on the class and are read through the instance (or the class itself)."""
        if is_library_type(kind):
            return
        own = vars(owner) if owner is not kind and hasattr(owner, "__dict__") else {}
        for base in kind.__mro__:
            if base is object or is_library_type(base):
                continue
            for name, value in list(vars(base).items()):
                if name in own or not self._counts(name, value) or name.startswith("__") or isinstance(value, _METHODS):
                    continue
                if _is_descriptor(value):  # read past its own __get__, whose code is followed
                    self.visit(value, Place(f"{path}.{name}", self._namespace(base), name))
                else:
                    self.visit(value, Place(f"{path}.{name}", owner, name, "attribute"))

    def _namespace(self, kind: type) -> Any:
        return self.namespaces.setdefault(kind, vars(kind))

    def _own(self, owner: Any, path: str) -> None:
        """Notice when an object gains or loses attributes (for a module: parameters, buffers or submodules)."""
        self.owners.append((path, owner))
        self._put(self.extents, Place(f"len(vars({path}))", vars(owner), None, "length"))
        if isinstance(owner, torch.nn.Module):
            self._put(self.structure, Place(f"{path}.__class__", owner, "__class__", "attribute"))
            for name in ("_parameters", "_buffers", "_modules"):
                registry = vars(owner)[name]
                ordered = name == "_modules" and len(registry) > 1 and isinstance(owner, _ITERATED)
                how, what = ("keys", "list") if ordered else ("length", "len")
                self._put(self.extents, Place(f"{what}({path}.{name})", registry, None, how))

    def _methods(self, kind: type) -> None:
        """Read the bytecode of the methods of a class that a call can reach, starting from ``forward``/``__call__``."""
        if self._enter(kind, "methods of"):
            return
        for base in kind.__mro__:
            if base in (object, torch.nn.Module) or self._enter(base, "members of"):
                continue
            library = is_library_type(base)
            if not library:
                self._put(self.extents, Place(f"len(vars({base.__name__}))", self._namespace(base), None, "length"))
            for name, member in list(vars(base).items()):
                if not isinstance(member, _METHODS) or name in _SETUP_METHODS:
                    continue
                if not (name in self.names or name in ("forward", "__call__") or name.startswith("__")):
                    continue
                if not library or name in ("forward", "__call__"):  # a method may be replaced on its class
                    self._put(self.structure, Place(f"{base.__name__}.{name}", self._namespace(base), name))
                function = _function_of(member)
                if isinstance(function, types.FunctionType):
                    self.function(function, f"{kind.__name__}.{name}.")

    def _parts(self, value: Any, path: str, how: str) -> None:
        """Notice when a mutable container gains or loses parts."""
        if not isinstance(value, (tuple, frozenset, types.MappingProxyType)):
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


def _is_descriptor(value: Any) -> bool:
    return hasattr(type(value), "__get__")


def _function_of(member: Any) -> Any:
    """The Python function behind a method, property or the like."""
    if isinstance(member, property):
        return member.fget
    if isinstance(member, (staticmethod, classmethod)):
        return member.__func__
    return getattr(member, "func", member)


def _a(kind: type) -> str:
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


def _slots(kind: type) -> list[str]:
    found: list[str] = []
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        found += [slots] if isinstance(slots, str) else list(slots)
    return found


_METHODS = (types.FunctionType, property, staticmethod, classmethod, functools.partialmethod, functools.cached_property)
_ITERATED = (torch.nn.ModuleDict, torch.nn.ModuleList, torch.nn.Sequential)
_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_SETUP_METHODS = frozenset({"__init__", "extra_repr", "__repr__", "reset_parameters", "__setstate__", "__new__"})
_MODULE_INTERNALS = frozenset(
    {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_backward_hooks", "_backward_pre_hooks",
     "_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called",
     "_forward_pre_hooks_with_kwargs", "_state_dict_hooks", "_state_dict_pre_hooks", "_is_full_backward_hook",
     "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks", "_compiled_call_impl"}
)  # fmt: skip


__all__ = ["UNBOUND", "Attributes", "Environment", "Place", "argument_roots", "collect", "compile_reader",
           "is_library_file", "is_library_module", "is_plain", "set_members"]  # fmt: skip
