"""Nested arguments and results as a flat list of leaves, and back.

Operators and programs take and return tuples, lists, dictionaries and named tuples in any nesting. Stages work on the
flat list of leaves and rebuild the nesting at the end. Containers are ``tuple`` (named ones and torch's result types
included), ``list``, ``dict`` and ``slice``; everything else is a leaf, ``torch.Size`` too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch


def flatten(structure: Any) -> list[Any]:
    """The leaves, left to right; a dictionary's in its own order.

    >>> flatten((1, [2, {"a": 3}], slice(4, None)))
    [1, 2, 3, 4, None, None]
    """
    leaves: list[Any] = []
    _collect(structure, leaves)
    return leaves


# The recursions are functions of the module and not closures: a closure that calls itself is a reference cycle, which
# would keep the leaves, tensors among them, alive until the next garbage collection.
def _collect(value: Any, leaves: list[Any]) -> None:
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        for part in value:
            _collect(part, leaves)
    elif isinstance(value, dict):
        for part in value.values():
            _collect(part, leaves)
    elif isinstance(value, slice):
        for part in (value.start, value.stop, value.step):
            _collect(part, leaves)
    else:
        leaves.append(value)


def rebuild(structure: Any, leaves: Iterable[Any]) -> Any:
    """``structure`` with its leaves replaced, left to right. ValueError if there are too few or too many.

    >>> rebuild((1, [2, {"a": 3}]), "xyz")
    ('x', ['y', {'a': 'z'}])
    """
    remaining: Iterator[Any] = iter(leaves)
    result = _restore(structure, remaining)
    if next(remaining, _END) is not _END:
        raise ValueError("more leaves than the structure has places")
    return result


_END = object()


def _restore(value: Any, remaining: Iterator[Any]) -> Any:
    if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
        parts = [_restore(part, remaining) for part in value]
        if type(value) in (tuple, list):
            return type(value)(parts)
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    if isinstance(value, dict):
        return type(value)((key, _restore(part, remaining)) for key, part in value.items())
    if isinstance(value, slice):
        return slice(*(_restore(part, remaining) for part in (value.start, value.stop, value.step)))
    leaf = next(remaining, _END)
    if leaf is _END:
        raise ValueError("fewer leaves than the structure has places")
    return leaf
