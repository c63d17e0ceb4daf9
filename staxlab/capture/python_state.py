"""Python-side effects of a traced function: found by comparing what it could reach before and after (Section 3.7).

The graph records what happens to tensors. If the function also rebinds ``self.last``, counts calls in a global, or
fills a list it was given, that happens while tracing and never again, so later calls would differ from eager
execution. Assignments to attributes, globals and closure variables, and changes to argument containers, are therefore
undone and refused. Printing and appending to a list outside the arguments are what people do to look inside; they
stand, happen once, and are reported.
"""

from __future__ import annotations

import collections
import functools
import linecache
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch

from ..provenance import SourceLocation
from ..specialize import opaque
from ..specialize.free_variables import UNBOUND, Environment, Place
from ..specialize.library import is_library_type
from ..specialize.structure import argument_leaves, children, is_dataclass_instance
from .outside import PythonEffect

_REGISTRIES = ("_parameters", "_buffers", "_modules")


class PythonState:
    """A shallow snapshot of everything a function can reach by name. Linear in its size."""

    def __init__(self, environment: Environment, leaves_of: tuple[tuple, dict], names: Any):
        self.places = [
            (place, _read(place)) for place in (*environment.tensors, *environment.scalars, *environment.structure,
                                                *environment.stored) if place.how in ("item", "cell")
        ]  # fmt: skip
        # The dicts that hold attributes: of objects, of modules (their registries as well), of tensors.
        states = [(path, vars(owner)) for path, owner in environment.owners]
        self.lazy = {id(vars(owner)): _lazy(type(owner)) for _, owner in environment.owners}
        for path, owner in environment.owners:
            if isinstance(owner, torch.nn.Module):
                states += [(path, owner.__dict__[name]) for name in _REGISTRIES]
        for path, tensor in _tensors(environment, leaves_of, names):
            states.append((path, tensor.__dict__))
        self.states = [(path, state, dict(state)) for path, state in states]
        self.containers = [(path, value, _contents(value)) for path, value in environment.containers]
        args, kwargs = leaves_of
        self.arguments = [
            (path, value, _contents(value))
            for root, path in [*((a, names(i)) for i, a in enumerate(args)), *((v, k) for k, v in kwargs.items())]
            for path, value in _mutable_parts(root, path)
        ]
        self.prints = environment.prints
        self._library_state(environment, given={id(root) for root in (*args, *kwargs.values())})

    def _library_state(self, environment: Environment, given: set[int]) -> None:
        """What objects of library types hold: contents, generator states, attributes that the user's code assigns
        to."""
        self.generators = [
            (path, value, *opaque.generator_state(value)) for path, value in environment.holders if opaque.draws(value)
        ]
        self.contents = [
            (place, place.read(), opaque.copy_of_content(place.holder), id(place.holder) in given)
            for place in environment.scalars
            if place.how == "content"
        ]
        assigned = environment.assigned
        self.attributes = [
            (path, vars(value), {key: part for key, part in vars(value).items() if key in assigned or "*" in assigned})
            for path, value in environment.holders
            if assigned and isinstance(getattr(value, "__dict__", None), dict)
        ]
        self.assigned = assigned
        found = [(place.path, _read(place)) for place in environment.structure] if assigned else []
        found += [(f"type({path})", type(owner)) for path, owner in environment.owners] if assigned else []
        kinds = {kind: path for path, value in reversed(found) if isinstance(value, type) for kind in value.__mro__}
        self.classes = [(path, kind, dict(vars(kind))) for kind, path in kinds.items() if not is_library_type(kind)]

    def drawn(self) -> str | None:
        """The path of a random number generator that has been drawn from, if any."""
        for path, generator, before, _ in self.generators:
            if opaque.generator_state(generator)[0] != before:
                return path
        return None

    def forbidden(self) -> list[str]:
        """Paths of what the function has rebound or changed and must not."""
        changed = [
            path for path, value, before in self.arguments if not _same_contents(_contents(value), before)
        ]  # fmt: skip
        inside = {id(value) for _, value, _ in self.containers}
        for place, before in self.places:
            if id(place.holder) not in inside and _read(place) is not before:
                changed.append(place.path)
        for path, now, before in self.states:
            lazy = self.lazy.get(id(now), ())  # computed at the first reading, and kept: no change that matters
            names = [name for name in {**before, **now} if now.get(name, UNBOUND) is not before.get(name, UNBOUND)]
            names = [name for name in names if name not in lazy or name in before]
            changed += [f"{path}.{name}" for name in names]
        for path, state, before in self.attributes:
            changed += [f"{path}.{name}" for name in self._assigned_in(state, before)]
        for path, kind, before in self.classes:
            changed += [f"{path}.{name}" for name in self._assigned_in(vars(kind), before)]
        changed += [place.path for place, before, _, is_given in self.contents if is_given and place.read() != before]
        return list(dict.fromkeys(changed))

    def effects(self) -> list[PythonEffect]:
        """Side effects that stand: containers that have changed, and calls of print."""
        found = [
            PythonEffect(f"{path or 'a container'} was changed")
            for path, value, before in self.containers
            if not _same_contents(_contents(value), before)
        ]
        found += [
            PythonEffect(f"{place.path} was written to")
            for place, before, _, is_given in self.contents
            if not is_given and place.read() != before
        ]
        for file, line in self.prints:
            text = linecache.getline(file, line).strip()
            found.append(PythonEffect("print is called", SourceLocation(file, line, text)))
        return found

    def _assigned_in(self, state: Mapping[str, Any], before: dict) -> list[str]:
        """The names among the assigned ones that are bound to something else than before."""
        names = {**before, **state} if "*" in self.assigned else {*before, *self.assigned}
        return [name for name in names if state.get(name, UNBOUND) is not before.get(name, UNBOUND)]

    def restore(self) -> None:
        """Undo every change."""
        for _, state, before in self.attributes:
            for name in self._assigned_in(state, before):
                if name in before:
                    state[name] = before[name]
                else:
                    del state[name]
        for _, kind, before in self.classes:
            for name in self._assigned_in(vars(kind), before):
                if name in before:
                    type.__setattr__(kind, name, before[name])
                else:
                    type.__delattr__(kind, name)
        for place, before, copy, _ in self.contents:
            if copy is not None and place.read() != before:
                opaque.refill_content(place.holder, copy)
        for _, generator, before, put_back in self.generators:
            if opaque.generator_state(generator)[0] != before:
                put_back()
        for _, target, before in self.states:
            for name in [name for name in target if name not in before]:
                del target[name]
            for name, value in before.items():
                if target.get(name, UNBOUND) is not value:
                    target[name] = value
        for _, value, before in (*self.containers, *self.arguments):
            if not _same_contents(_contents(value), before):
                _refill(value, before)
        for place, before in self.places:
            if _read(place) is not before:
                _write(place, before)


def _read(place: Place) -> Any:
    try:
        return place.read()
    except (KeyError, AttributeError, IndexError, ValueError):
        return UNBOUND


def _write(place: Place, value: Any) -> None:
    if place.how == "cell":
        if value is UNBOUND:
            del place.holder.cell_contents
        else:
            place.holder.cell_contents = value
    elif value is UNBOUND:
        place.holder.pop(place.key, None)
    elif not isinstance(place.holder, tuple):
        place.holder[place.key] = value


def _contents(value: Any) -> Any:
    if isinstance(value, dict):
        return list(value.items())
    if isinstance(value, (list, set, frozenset, collections.deque)):
        return list(value)
    return [(key, part) for _, key, part in children(value) or ()]


def _same_contents(a: list, b: list) -> bool:
    if len(a) != len(b):
        return False
    for x, y in zip(a, b, strict=True):
        if x is not y and not (type(x) is type(y) is tuple and len(x) == len(y) == 2 and x[0] == y[0] and x[1] is y[1]):
            return False
    return True


def _refill(value: Any, before: list) -> None:
    if isinstance(value, dict):
        value.clear()
        value.update(before)
    elif isinstance(value, list):
        value[:] = before
    elif isinstance(value, set):
        value.clear()
        value.update(before)
    elif isinstance(value, collections.deque):
        value.clear()
        value.extend(before)
    elif is_dataclass_instance(value):
        for name, part in before:
            object.__setattr__(value, name, part)


def _lazy(kind: type) -> frozenset[str]:
    """The names of a class's cached properties."""
    if kind is types.FunctionType:
        return frozenset()
    return frozenset(
        name
        for base in kind.__mro__
        for name, member in list(vars(base).items())
        if isinstance(member, functools.cached_property)
    )


def _tensors(
    environment: Environment, leaves_of: tuple[tuple, dict], names: Callable[[int], str]
) -> Iterator[tuple[str, torch.Tensor]]:
    for place in environment.tensors:
        if isinstance(tensor := _read(place), torch.Tensor):
            yield place.path, tensor
    for leaf in argument_leaves(*leaves_of, names):
        if isinstance(leaf.value, torch.Tensor):
            yield leaf.path, leaf.value


def _mutable_parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    parts = children(value)
    if parts is None:
        return
    if not isinstance(value, tuple):
        yield path, value
    for kind, key, part in parts:
        yield from _mutable_parts(part, f"{path}.{key}" if kind == "attribute" else f"{path}[{key!r}]")
