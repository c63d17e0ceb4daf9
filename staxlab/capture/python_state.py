"""Python-side effects of a traced function: found by comparing what it could reach before and after (Section 3.7).

The graph records what happens to tensors. If the function also rebinds ``self.last``, counts calls in a global, or
fills a list it was given, that happens while tracing and never again, so later calls would differ from eager
execution. Assignments to attributes, globals and closure variables, and changes to argument containers, are therefore
undone and refused. Printing and appending to a list outside the arguments are what people do to look inside; they
stand, happen once, and are reported.
"""

from __future__ import annotations

import collections
import linecache
from collections.abc import Iterator
from typing import Any

import torch

from ..provenance import SourceLocation
from ..specialize.free_variables import UNBOUND, Environment, Place
from ..specialize.structure import children, is_dataclass_instance
from .outside import PythonEffect

_REGISTRIES = ("_parameters", "_buffers", "_modules")


class PythonState:
    """A shallow snapshot of everything a function can reach by name. Linear in its size."""

    def __init__(self, environment: Environment, leaves_of: tuple[tuple, dict], names: Any):
        self.places = [
            (place, _read(place)) for place in (*environment.tensors, *environment.scalars, *environment.structure,
                                                *environment.stored) if place.how in ("item", "cell")
        ]  # fmt: skip
        self.owners = [(path, owner, dict(vars(owner))) for path, owner in environment.owners]
        for path, owner in environment.owners:
            if isinstance(owner, torch.nn.Module):
                for name in _REGISTRIES:
                    registry = owner.__dict__[name]
                    self.owners.append((path, registry, dict(registry)))
        self.containers = [(path, value, _contents(value)) for path, value in environment.containers]
        args, kwargs = leaves_of
        self.arguments = [
            (path, value, _contents(value))
            for root, path in [*((a, names(i)) for i, a in enumerate(args)), *((v, k) for k, v in kwargs.items())]
            for path, value in _mutable_parts(root, path)
        ]
        self.prints = environment.prints

    def forbidden(self) -> list[str]:
        """Paths of what the function has rebound or changed and must not."""
        changed = [
            path for path, value, before in self.arguments if not _same_contents(_contents(value), before)
        ]  # fmt: skip
        inside = {id(value) for _, value, _ in self.containers}
        for place, before in self.places:
            if id(place.holder) not in inside and _read(place) is not before:
                changed.append(place.path)
        for path, owner, before in self.owners:
            now = owner if isinstance(owner, dict) else vars(owner)
            names = [name for name in {**before, **now} if now.get(name, UNBOUND) is not before.get(name, UNBOUND)]
            changed += [f"{path}.{name}" for name in names]
        return list(dict.fromkeys(changed))

    def effects(self) -> list[PythonEffect]:
        """Side effects that stand: containers that have changed, and calls of print."""
        found = [
            PythonEffect(f"{path or 'a container'} was changed")
            for path, value, before in self.containers
            if not _same_contents(_contents(value), before)
        ]
        for file, line in self.prints:
            text = linecache.getline(file, line).strip()
            found.append(PythonEffect("print is called", SourceLocation(file, line, text)))
        return found

    def restore(self) -> None:
        """Undo every change."""
        for _, owner, before in self.owners:
            target = owner if isinstance(owner, dict) else vars(owner)
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


def _mutable_parts(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    parts = children(value)
    if parts is None:
        return
    if not isinstance(value, tuple):
        yield path, value
    for kind, key, part in parts:
        yield from _mutable_parts(part, f"{path}.{key}" if kind == "attribute" else f"{path}[{key!r}]")
