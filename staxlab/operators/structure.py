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

    def visit(value: Any) -> None:
        if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            for part in value:
                visit(part)
        elif isinstance(value, dict):
            for part in value.values():
                visit(part)
        elif isinstance(value, slice):
            for part in (value.start, value.stop, value.step):
                visit(part)
        else:
            leaves.append(value)

    visit(structure)
    return leaves


def rebuild(structure: Any, leaves: Iterable[Any]) -> Any:
    """``structure`` with its leaves replaced, left to right. ValueError if there are too few or too many.

    >>> rebuild((1, [2, {"a": 3}]), "xyz")
    ('x', ['y', {'a': 'z'}])
    """
    remaining: Iterator[Any] = iter(leaves)
    end = object()

    def visit(value: Any) -> Any:
        if isinstance(value, (tuple, list)) and not isinstance(value, torch.Size):
            parts = [visit(part) for part in value]
            if type(value) in (tuple, list):
                return type(value)(parts)
            return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
        if isinstance(value, dict):
            return type(value)((key, visit(part)) for key, part in value.items())
        if isinstance(value, slice):
            return slice(visit(value.start), visit(value.stop), visit(value.step))
        leaf = next(remaining, end)
        if leaf is end:
            raise ValueError("fewer leaves than the structure has places")
        return leaf

    result = visit(structure)
    if next(remaining, end) is not end:
        raise ValueError("more leaves than the structure has places")
    return result
