"""Argument trees: how a nest of containers is taken apart into leaves, with a path to print and a way to fetch each.

A call ``f(x, {"mask": m}, scale=2.0)`` has three leaves: ``x``, ``a1['mask']`` and ``scale``. Signatures (Section 2.2)
describe them, guards (Section 2.3) print their paths, and a compiled region fetches its tensors from them at each call.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

from ..errors import GuardError


def is_named_tuple(value: Any) -> bool:
    """A ``collections.namedtuple`` / ``typing.NamedTuple`` instance."""
    return isinstance(value, tuple) and hasattr(type(value), "_fields")


def is_dataclass_instance(value: Any) -> bool:
    return dataclasses.is_dataclass(value) and not isinstance(value, type)


def children(value: Any) -> list[tuple[str, Any, Any]] | None:
    """The parts of a container as (kind, key, part), kind "item" or "attribute"; None if ``value`` is a leaf.

    Containers are tuples, named tuples, lists, dicts and dataclass instances. Sets have no stable order: GuardError if
    one is met (a frozenset of plain values is a leaf).
    """
    if isinstance(value, torch.Size):
        return None
    if isinstance(value, tuple):
        return [("item", index, part) for index, part in enumerate(value)]
    if isinstance(value, list):
        return [("item", index, part) for index, part in enumerate(value)]
    if isinstance(value, dict):
        return [("item", key, part) for key, part in value.items()]
    if is_dataclass_instance(value) and not isinstance(value, torch.nn.Module):
        return [("attribute", name, getattr(value, name)) for name in attribute_names(value)]
    if isinstance(value, (set, frozenset)):
        raise GuardError(
            f"a {type(value).__name__} cannot be part of the arguments: its elements have no stable order",
            remedy="pass a tuple, a list or a dict",
        )
    return None


def attribute_names(value: Any) -> tuple[str, ...]:
    """The attributes that are the parts of a dataclass instance: its fields that have a value, or those that its class
    names in ``__specialized_by__``. A class does that where a field is more than a program can depend on, and
    properties say what it can: a function, for example, of which only what it computes counts."""
    named = getattr(type(value), "__specialized_by__", None)
    return named or tuple(f.name for f in dataclasses.fields(value) if hasattr(value, f.name))


def extra_attributes(value: Any) -> tuple[str, ...]:
    """The attributes of a container that are none of its parts: those of an instance of ``class Batch(dict)``, or what
    was set on a dataclass instance besides its fields."""
    state = getattr(value, "__dict__", None)
    if not isinstance(state, dict) or not state or hasattr(type(value), "__specialized_by__"):
        return ()
    parts = children(value) or ()
    fields = {key for kind, key, _ in parts if kind == "attribute"}
    items = {key: part for kind, key, part in parts if kind == "item" and isinstance(key, str)}
    return tuple(
        name for name, part in state.items() if name not in fields and not (name in items and items[name] is part)
    )


@dataclass(frozen=True)
class Leaf:
    """One leaf of the arguments: its printed path, Python source that fetches it from ``args``/``kwargs``, its
    value."""

    path: str
    expression: str
    value: Any


def argument_leaves(
    args: tuple[Any, ...], kwargs: dict[str, Any], names: Callable[[int], str], scope: dict[str, Any] | None = None
) -> Iterator[Leaf]:
    """All leaves of a call, in order. Keys without a literal spelling are put into ``scope`` under generated names."""
    scope = {} if scope is None else scope

    def walk(value: Any, path: str, expression: str) -> Iterator[Leaf]:
        parts = children(value)
        if parts is None:
            yield Leaf(path, expression, value)
            return
        for kind, key, part in parts:
            if kind == "attribute":
                yield from walk(part, f"{path}.{key}", f"{expression}.{key}")
                continue
            spelled = repr(key)
            if type(key) not in (str, int, bool, bytes, type(None)):
                spelled = f"key{len(scope)}"
                scope[spelled] = key
            shown = f"{path}.{type(value)._fields[key]}" if is_named_tuple(value) else f"{path}[{key!r}]"
            yield from walk(part, shown, f"{expression}[{spelled}]")

    for index, value in enumerate(args):
        yield from walk(value, names(index), f"args[{index}]")
    for name, value in kwargs.items():
        yield from walk(value, name, f"kwargs[{name!r}]")


@dataclass(frozen=True)
class Parameters:
    """The parameter list of a function, read once: names by position, and a canonical form for each call pattern."""

    positional: tuple[str, ...]
    rest: str | None  # the name of *args
    keywords: frozenset[str]

    @classmethod
    def of(cls, fn: Any) -> Parameters:
        """Parameters of any callable; for an nn.Module those of ``forward``. Unknown signatures count as ``*args``."""
        target = fn.forward if isinstance(fn, torch.nn.Module) else fn
        try:
            parameters = inspect.signature(target).parameters.values()
        except (TypeError, ValueError):
            return cls((), "args", frozenset())
        kinds = inspect.Parameter
        positional = tuple(p.name for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD))
        rest = next((p.name for p in parameters if p.kind is kinds.VAR_POSITIONAL), None)
        named = frozenset(p.name for p in parameters if p.kind is kinds.POSITIONAL_OR_KEYWORD)
        return cls(positional, rest, named)

    def name(self, index: int) -> str:
        """What the argument at a position is called."""
        if index < len(self.positional):
            return self.positional[index]
        return f"{self.rest or 'args'}[{index - len(self.positional)}]"

    def canonical(self, count: int, names: tuple[str, ...]) -> Callable[[tuple, dict], tuple[tuple, dict]]:
        """A function that moves keyword arguments to their positions where that is possible, so that ``f(x, w)`` and
        ``f(x, w=w)`` share a version. Worked out once for ``count`` positional arguments and these keywords."""
        return _canonical(self, count, names)


@functools.lru_cache(maxsize=4096)
def _canonical(
    parameters: Parameters, count: int, names: tuple[str, ...]
) -> Callable[[tuple, dict], tuple[tuple, dict]]:
    moved = []
    for name in parameters.positional[count:]:
        if name not in names or name not in parameters.keywords:
            break
        moved.append(name)
    stay = [name for name in names if name not in moved]  # order kept: **kwargs iterates in it

    def canonical(args: tuple, kwargs: dict) -> tuple[tuple, dict]:
        return (*args, *(kwargs[name] for name in moved)), {name: kwargs[name] for name in stay}

    return canonical


def rebuild_container(value: Any, parts: list[Any]) -> Any:
    """A container like ``value`` holding ``parts`` instead (same order as :func:`children`)."""
    if is_named_tuple(value):
        return type(value)(*parts)
    if isinstance(value, tuple):
        return tuple(parts) if type(value) is tuple else type(value)(parts)
    if isinstance(value, list):
        return list(parts) if type(value) is list else type(value)(parts)
    if isinstance(value, collections.defaultdict):
        return collections.defaultdict(value.default_factory, zip(value, parts, strict=True))
    if isinstance(value, dict):
        return type(value)(zip(value, parts, strict=True))
    clone = object.__new__(type(value))
    if hasattr(type(value), "__specialized_by__"):  # the other fields are as they are
        clone.__dict__.update({f.name: getattr(value, f.name) for f in dataclasses.fields(value)})
    for name, part in zip(attribute_names(value), parts, strict=True):
        object.__setattr__(clone, name, part)
    return clone
