"""Values as text, without a way to run code: how plans and their keys are written (Section 11.1).

What stands on disk may have been written by an older version, or put there by somebody else. So nothing is pickled:
:func:`encode` knows the types below one by one and writes each with a tag, :func:`decode` makes exactly these again,
and what neither knows raises :class:`NotEncodable`, which makes a region one that is not kept. Equal texts mean values
that are equal in type, too: ``1``, ``1.0`` and ``True`` differ, as do ``0.0`` and ``-0.0``, a tuple and a list.

=====================================  ==============================================
None, booleans, whole numbers, text    as JSON has them
floating point, complex                their exact hexadecimal digits
tuple, list, ``torch.Size``, dict      their parts, in order; slices have three
frozenset of whole numbers             in ascending order
dtype, device, layout, memory format   their names
operator overloads                     namespace, operator and overload by name
functions that wrappers call           their names in :data:`CALLED`; allocation on a GPU by the device
=====================================  ==============================================
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch

from .. import native
from ..codegen.wrapper_calls import DIRECT, empty_on_cpu, empty_on_cuda, in_layout, written

#: What a generated wrapper calls besides operators and kernels, by the names that stand for it on disk.
CALLED: dict[str, Callable[..., Any]] = {
    "in_layout": in_layout, "written": written, "empty": empty_on_cpu(), "pooled": native.empty,
    "as_strided": torch.as_strided, "empty_strided": torch.empty_strided, "linear": torch._C._nn.linear,
    **{f"direct {overload.name()}": function for overload, function in DIRECT.items()},
}  # fmt: skip


class NotEncodable(Exception):
    """A value that has no portable text; the message says which."""


def text_of(value: Any, known: Callable[[Any], Any] | None = None) -> str:
    """:func:`encode` as one line of ASCII."""
    return json.dumps(encode(value, known), separators=(",", ":"), allow_nan=False)


def encode(value: Any, known: Callable[[Any], Any] | None = None) -> Any:
    """``value`` as JSON's own types. ``known`` may give an encodable stand-in for a value of any other type (None: it
    has none). Raises NotEncodable. Linear."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is tuple and value and all(type(part) is int for part in value):
        return ["i", *value]
    write = _WRITERS.get(kind)
    if write is not None:
        return write(value, known)
    if isinstance(value, torch._ops.OpOverload):
        return ["operator", value.name()]
    for name, function in CALLED.items():
        if value is function:
            return ["called", name]
    device = getattr(value, "allocates_on", None)
    if type(device) is torch.device:
        return ["empty", str(device)]
    stand_in = known(value) if known is not None else None
    if stand_in is None:
        raise NotEncodable(f"a value of type {kind.__module__}.{kind.__qualname__}")
    return ["known", encode(stand_in, known)]


def decode(text: Any) -> Any:
    """The value that :func:`encode` was given. ValueError for what it never writes, AttributeError for an operator that
    this PyTorch does not have."""
    kind = type(text)
    if text is None or kind in (bool, int, str):
        return text
    if kind is not list or not text or text[0] not in _READERS:
        raise ValueError(f"no encoded value: {str(text)[:80]}")
    return _READERS[text[0]](text[1:])


def _parts(tag: str) -> Callable[[Any, Any], list]:
    return lambda value, known: [tag, *(encode(part, known) for part in value)]


def _whole(value: frozenset, known: Any) -> list:
    if not all(type(part) is int for part in value):
        raise NotEncodable("a set of something else than whole numbers")
    return ["s", *sorted(value)]


def _named(kind: str) -> Callable[[Any, Any], list]:
    return lambda value, known: [kind, str(value).removeprefix("torch.")]


def _of_torch(kind: type) -> Callable[[list], Any]:
    def read(parts: list) -> Any:
        found = getattr(torch, parts[0])
        if type(found) is not kind:
            raise ValueError(f"torch.{parts[0]} is no {kind.__name__}")
        return found

    return read


_WRITERS: dict[type, Callable[[Any, Any], list]] = {
    float: lambda value, known: ["f", value.hex()],
    complex: lambda value, known: ["c", value.real.hex(), value.imag.hex()],
    tuple: _parts("t"),
    list: _parts("l"),
    torch.Size: lambda value, known: ["size", *map(int, value)],
    dict: lambda value, known: ["d", *([encode(k, known), encode(v, known)] for k, v in value.items())],
    slice: lambda value, known: ["slice", *(encode(v, known) for v in (value.start, value.stop, value.step))],
    type(...): lambda value, known: ["ellipsis"],
    frozenset: _whole,
    torch.dtype: _named("dtype"),
    torch.layout: _named("layout"),
    torch.memory_format: _named("memory"),
    torch.device: _named("device"),
}

_READERS: dict[str, Callable[[list], Any]] = {
    "i": tuple,
    "f": lambda parts: float.fromhex(parts[0]),
    "c": lambda parts: complex(*map(float.fromhex, parts)),
    "t": lambda parts: tuple(map(decode, parts)),
    "l": lambda parts: [*map(decode, parts)],
    "size": torch.Size,
    "d": lambda parts: {decode(key): decode(value) for key, value in parts},
    "slice": lambda parts: slice(*map(decode, parts)),
    "ellipsis": lambda parts: ...,
    "s": frozenset,
    "dtype": _of_torch(torch.dtype),
    "layout": _of_torch(torch.layout),
    "memory": _of_torch(torch.memory_format),
    "device": lambda parts: torch.device(parts[0]),
    "operator": lambda parts: overload_named(parts[0]),
    "called": lambda parts: CALLED[parts[0]],
    "empty": lambda parts: empty_on_cuda(torch.device(parts[0])),
}  # fmt: skip


def overload_named(name: str) -> torch._ops.OpOverload:
    """``aten::add.Tensor`` as the overload itself. AttributeError or ValueError if there is none of that name."""
    namespace, _, rest = name.partition("::")
    packet, _, overload = rest.partition(".")
    found = getattr(getattr(getattr(torch.ops, namespace), packet), overload or "default")
    if not isinstance(found, torch._ops.OpOverload):
        raise ValueError(f"{name} is no operator overload")
    return found
