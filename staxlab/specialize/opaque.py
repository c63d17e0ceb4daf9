"""Objects of library types (Section 2.5): what can be known of their state, so that it may join the key.

A user's own object is followed attribute by attribute. An object of an installed library is mostly machinery (a logger
knows every other logger), and following all of it would put the whole process into a key. But some of them *hold*
values: an array, a ``Namespace``, a byte buffer, a thread-local. Three ways of describing them are tried in turn:

* by *content*: a NumPy array, a ``bytearray`` and their like become their bytes, compared by value;
* by *attributes*: those the user's code names, and those in which a container of the library keeps what it holds;
* not at all: something that can be subscripted, but shows no state, is refused where it would be read.

Random number generators hold state as well. It belongs to no key, since each draw is meant to differ: it is only
compared before and after a trace (:mod:`staxlab.capture.python_state`).
"""

from __future__ import annotations

import argparse
import array
import collections
import contextvars
import copy
import functools
import hashlib
import io
import operator
import queue
import random
import re
import sys
import threading
import types
import typing
from collections.abc import Callable
from typing import Any

import torch

#: Contents above this size (bytes) are refused: reading them at every call would cost more than most regions.
LARGEST_CONTENT = 1 << 20
_INLINE = 256  # bytes kept as they are; longer contents as a digest

#: Library types whose attributes are the user's own business, named or not.
NAMESPACES = (types.SimpleNamespace, argparse.Namespace, threading.local)

_HELD: dict[type, tuple[str, ...]] = {
    threading.Event: ("_flag",),
    queue.Queue: ("queue",),
    collections.UserString: ("data",),
    functools.partialmethod: ("func", "args", "keywords"),
    functools.cached_property: ("func",),
}
_STATELESS = (
    re.Match, types.GenericAlias, types.UnionType, typing._GenericAlias, typing._SpecialForm, typing.TypeVar,  # type: ignore[attr-defined]
    types.MappingProxyType, contextvars.ContextVar,
)  # fmt: skip
_NAMES = (operator.attrgetter, operator.methodcaller)


def _numpy() -> Any:
    return sys.modules.get("numpy")


def is_array(value: Any) -> bool:
    numpy = _numpy()
    return numpy is not None and isinstance(value, numpy.ndarray)


def has_content(value: Any) -> bool:
    """Whether the object is described by its content."""
    return isinstance(value, (bytearray, memoryview, array.array, io.StringIO, io.BytesIO)) or is_array(value)


def size_of_content(value: Any) -> int | None:
    """Its size in bytes; None if its content cannot be compared (an array of Python objects, a closed buffer)."""
    if is_array(value):
        return None if value.dtype.hasobject else value.nbytes
    if isinstance(value, memoryview):
        return value.nbytes
    if isinstance(value, array.array):
        return len(value) * value.itemsize
    if isinstance(value, (io.StringIO, io.BytesIO)):
        return None if value.closed else len(value.getvalue())
    return len(value)


def content(value: Any) -> tuple[Any, ...]:
    """The content as plain values that compare by ``==``: equal exactly if what can be read from the object is. Linear
    in its size."""
    if is_array(value):
        data = value.tobytes()
        kind: tuple[Any, ...] = (str(value.dtype), value.shape)
    elif isinstance(value, (io.StringIO, io.BytesIO)):
        if value.closed:
            return (type(value).__name__, "closed")
        text = value.getvalue()
        data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        kind = (type(value).__name__, value.tell())
    elif isinstance(value, memoryview):
        data, kind = value.tobytes(), ("memoryview", value.format, value.shape)
    else:
        data, kind = bytes(value), (type(value).__name__, getattr(value, "typecode", ""))
    return (*kind, data if len(data) <= _INLINE else hashlib.blake2b(data, digest_size=16).hexdigest())


def refill_content(value: Any, before: Any) -> None:
    """Put the content of an array or buffer back to the copy ``before`` (see :func:`copy_of_content`)."""
    if is_array(value):
        value[...] = before
    elif isinstance(value, (bytearray, array.array, memoryview)):
        value[:] = before


def copy_of_content(value: Any) -> Any:
    """A copy that :func:`refill_content` takes; None where the object cannot be put back."""
    if is_array(value):
        return value.copy()
    if isinstance(value, memoryview):
        return None if value.readonly else value.tobytes()
    return value[:] if isinstance(value, (bytearray, array.array)) else None


def draws(value: Any) -> bool:
    """Whether the object is a random number generator of Python or NumPy."""
    if isinstance(value, random.Random):
        return not isinstance(value, random.SystemRandom)
    numpy = _numpy()
    if numpy is None or "numpy.random" not in sys.modules:
        return False
    return isinstance(value, (numpy.random.Generator, numpy.random.RandomState, numpy.random.BitGenerator))


def generator_state(generator: Any) -> tuple[Any, Callable[[], None]]:
    """Its state in comparable form, and a function that puts it back."""
    if isinstance(generator, random.Random):
        state = generator.getstate()
        return state, lambda: generator.setstate(state)
    bits = getattr(generator, "bit_generator", None) or getattr(generator, "_bit_generator", generator)
    state = copy.deepcopy(bits.state)
    return repr(state), lambda: setattr(bits, "state", state)


def held_attributes(value: Any) -> tuple[str, ...]:
    """The attributes in which a library object keeps what it holds, whether the user's code names them or not."""
    for kind, names in _HELD.items():
        if isinstance(value, kind):
            return names
    state = getattr(value, "__dict__", None)
    if isinstance(state, dict) and not isinstance(value, _STATELESS) and hasattr(type(value), "__getitem__"):
        return tuple(name for name in state if isinstance(name, str))  # UserDict, ChainMap, ...
    return ()


def names_read_by(value: Any) -> tuple[str, ...]:
    """The attribute names inside ``operator.attrgetter("a.b")`` or ``methodcaller("f")``."""
    if not isinstance(value, _NAMES):
        return ()
    found: list[str] = []
    maker, given = value.__reduce__()
    for name in (*getattr(maker, "args", ()), *given):
        found += name.split(".") if isinstance(name, str) else []
    return tuple(found)


def is_unreadable(value: Any) -> bool:
    """Whether the object can be subscripted although nothing is known of its state."""
    kind, numpy = type(value), _numpy()
    if numpy is not None and isinstance(value, numpy.generic):
        return False  # a number, which cannot change
    if isinstance(value, (*_STATELESS, type, str, bytes, range, slice)) or hasattr(value, "__dict__"):
        return False
    if isinstance(value, (torch.UntypedStorage, torch.TypedStorage)):
        return True
    return hasattr(kind, "__getitem__") and not kind.__module__.startswith("torch")
