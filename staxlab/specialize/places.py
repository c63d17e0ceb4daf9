"""Places (Section 2.5): where a free value lives, and how it is read anew at each call.

A place is a holder and a key: a module's globals and a name, a closure cell, an object and an attribute. Reading all
places of an environment happens at every call, so the reading is generated as one expression.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

import torch

from . import opaque

SCALARS = (type(None), bool, int, float, complex, str, bytes, torch.dtype, torch.device, torch.Size, type(Ellipsis))


class Place:
    """Where a free value lives: ``read()`` fetches what is there now.

    ``how`` is "item" (``holder[key]``), "cell" (a closure cell), "attribute", "length" (``len(holder)``), "keys" (the
    keys of a dict, in order), "members" (the elements of a set, as text, in a stable order), "content" (of an array or
    buffer, see :mod:`.opaque`), "context" (of a context variable), "referent" (of a weak reference) or "bound" (whether
    a dict has a key, a cell a content). The holder is kept alive, and with it what it refers to.
    """

    __slots__ = ("path", "holder", "key", "how")  # thousands are made at a time, which a dataclass does more slowly

    def __init__(self, path: str, holder: Any, key: Any, how: str = "item"):
        self.path, self.holder, self.key, self.how = path, holder, key, how

    def __repr__(self) -> str:
        return f"Place({self.path!r}, {self.how!r})"

    def read(self) -> Any:
        """The value now. KeyError, AttributeError, IndexError or ValueError if the name is no longer bound."""
        if self.how == "item":
            return self.holder[self.key]
        if self.how == "cell":
            return self.holder.cell_contents
        if self.how == "attribute":
            return getattr(self.holder, self.key)
        return _READERS[self.how](self.holder, self.key)

    def expression(self, scope: dict[str, Any]) -> str:
        """Python source that reads the place; objects it needs are added to ``scope``."""
        name = f"h{id(self.holder)}"
        scope[name] = self.holder
        if self.how == "cell":
            return f"{name}.cell_contents"
        if self.how == "length":
            return f"len({name})"
        if self.how in ("context", "referent"):
            return f"{name}.get()" if self.how == "context" else f"{name}()"
        if self.how in _READERS:
            reader = f"r{len(scope)}"
            scope[reader] = _Kept(self)
            return f"{reader}()"
        if self.how == "attribute":
            return f"{name}.{self.key}"
        if type(self.key) in (str, int, bool):
            return f"{name}[{self.key!r}]"
        key = f"k{id(self.key)}"
        scope[key] = self.key
        return f"{name}[{key}]"


class _Kept:
    """Reads a place whose value is made anew at each reading, and returns the last one for as long as it is the same:
    most comparisons between calls are by identity."""

    def __init__(self, place: Place):
        self.read, self.holder, self.key = _READERS[place.how], place.holder, place.key
        self.last: Any = None

    def __call__(self) -> Any:
        value = self.read(self.holder, self.key)
        if not is_same_extent(value, self.last):
            self.last = value
        return self.last


def is_same_extent(a: Any, b: Any) -> bool:
    """Equal, where 1 and 1.0 are not."""
    if a is b:
        return True
    if type(a) is not type(b) or a != b:
        return False
    return type(a) is not tuple or all(x is y or (type(x) is type(y) and x == y) for x, y in zip(a, b, strict=True))


def _is_bound(holder: Any, key: Any) -> bool:
    if isinstance(holder, types.CellType):
        try:
            return holder.cell_contents is not holder
        except ValueError:
            return False
    return key in holder


def is_plain(value: Any) -> bool:
    """A number, string or the like, or a tuple of such: compared by value."""
    return isinstance(value, SCALARS) or (type(value) is tuple and all(map(is_plain, value)))


def set_members(members: Iterable[Any]) -> str:
    """The elements of a set as one string that does not depend on their order of insertion."""
    return ", ".join(sorted(f"{type(member).__name__} {member!r}" for member in members))


_READERS: dict[str, Callable[[Any, Any], Any]] = {
    "length": lambda holder, key: len(holder),
    "keys": lambda holder, key: tuple(holder),
    "members": lambda holder, key: set_members(holder),
    "content": lambda holder, key: opaque.content(holder),
    "context": lambda holder, key: holder.get(),
    "referent": lambda holder, key: holder(),
    "bound": _is_bound,
}

#: Stands for the value of a place whose name is no longer bound.
UNBOUND = "<unbound>"
_UNBOUND_ERRORS = (LookupError, AttributeError, ValueError, NameError)


def compile_reader(places: Iterable[Place]) -> Callable[[], tuple[Any, ...]]:
    """One function that reads all places at once, as a tuple; generated, so that a read costs tens of nanoseconds."""
    places = tuple(places)
    scope: dict[str, Any] = {}
    body = ", ".join(place.expression(scope) for place in places)
    exec(f"def read(): return ({body}{',' if places else ''})", scope)
    fast = scope.pop("read")  # no cycle with its own globals, which would keep what it reads until a collection

    def read() -> tuple[Any, ...]:
        try:
            return fast()
        except _UNBOUND_ERRORS:
            return tuple(read_or_unbound(place) for place in places)

    return read if places else tuple


def read_or_unbound(place: Place) -> Any:
    """What is at the place now, :data:`UNBOUND` if nothing is."""
    try:
        return place.read()
    except _UNBOUND_ERRORS:
        return UNBOUND
