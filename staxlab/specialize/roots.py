"""Arguments with state of their own (Section 2.5): roots of the walk that finds free variables."""

from __future__ import annotations

import collections
import enum
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .library import is_library_type
from .places import SCALARS
from .structure import children, extra_attributes

#: Types whose instances hold their parts and nothing else.
EXACT = frozenset({*SCALARS, list, tuple, dict, set, frozenset, collections.deque, collections.OrderedDict,
                   collections.defaultdict, types.MappingProxyType})  # fmt: skip
_EXACT_SCALARS = frozenset({*SCALARS, torch.layout, torch.memory_format, range, slice})


@dataclass(frozen=True)
class Attributes:
    """A root of which only these attributes count: an argument whose parts are arguments already."""

    value: Any
    names: tuple[str, ...]


#: (path, what identifies the root, the root)
Root = tuple[str, Any, Any]


def argument_roots(args: tuple, kwargs: dict[str, Any], names: Callable[[int], str]) -> list[Root]:
    """Objects among the arguments that have state of their own, beside the parts that signatures describe.

    Modules, functions and other objects are roots as they are. Of a container or a plain value of a class of the
    user's, the class is one (its methods may read anything), and so are attributes that are no parts. Linear in the
    number of leaves.
    """
    roots: list[Root] = []
    for index, value in enumerate(args):
        _gather_roots(names(index), value, roots)
    for name, value in kwargs.items():
        _gather_roots(name, value, roots)
    return roots


def _gather_roots(path: str, value: Any, roots: list[Root]) -> None:
    kind = type(value)
    if kind in _EXACT_SCALARS or isinstance(value, torch.Tensor):
        return
    parts = children(value)
    if parts is None and not isinstance(value, (*SCALARS, enum.Enum)):
        roots.append((path, value, value))
        return
    if kind not in EXACT and not is_library_type(kind):
        roots.append((path, kind, kind))
        extra = () if isinstance(value, enum.Enum) else extra_attributes(value)
        if extra:
            roots.append((path, value, Attributes(value, extra)))
    for how, key, part in parts or ():
        _gather_roots(f"{path}.{key}" if how == "attribute" else f"{path}[{key!r}]", part, roots)
