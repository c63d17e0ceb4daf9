"""Which operators the back end has rules for, known without loading the rules (Definition 4.2 and Section 11.1).

The recorder of operators asks of each overload whether it is in the back end's basis, and whoever divides a joint graph
asks what kind of rule there is. The rules are thirty modules; a region that comes from the cache needs none of them,
but this table. It is kept on disk under the package's text and PyTorch's version, which determine it. A program may add
rules (``staxlab.register_lowering``), for which it loads the registry; then the registry is asked, and nothing that
rules of others had a part in is kept or restored.
"""

from __future__ import annotations

import functools
import hashlib
import json
import sys
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from ..capture.graph import Node
from ..loops.kinds import Row, kind_by
from ..loops.product_limits import refusal
from . import cache, plan_sources
from .plan_key import host_versions

_REGISTRY = "staxlab.loops.lowering"

#: What rules refuse nodes by, by name; a table on disk holds the name.
_REFUSALS: dict[str, Callable[[Any], str | None]] = {"small products only": refusal}


class NamedBasis(Collection):
    """A set of overloads given by their names, as ``aten.add.Tensor``, with what there is for each."""

    def __init__(self, rows: dict[str, Row]):
        self.rows = rows

    def __contains__(self, overload: Any) -> bool:
        return str(overload) in self.rows

    def __iter__(self) -> Iterator[str]:
        return iter(self.rows)

    def __len__(self) -> int:
        return len(self.rows)

    def row_of(self, overload: torch._ops.OpOverload) -> Row:
        """The row of an overload, in the basis or not."""
        return self.rows.get(str(overload), Row(None))


_named: dict[str, NamedBasis] = {}


def basis() -> Collection[Any]:
    """The back end's basis: the registry's own if that is loaded, else by names from disk; if those are not there, the
    registry is loaded and they are written."""
    named = _from_disk()
    if named is not None:
        return named
    from ..loops.lowering import basis as registered

    return registered()


def kind_of() -> Callable[[Node], str]:
    """What gives the kind of a node (:func:`staxlab.loops.kinds.kind_by`), from the same table as :func:`basis`."""
    named = _from_disk()
    if named is not None:
        return functools.partial(kind_by, named.row_of)
    from ..loops.lowering.kinds import kind_of as registered

    return registered


def _from_disk() -> NamedBasis | None:
    """The table on disk, written if it is not there; None where the registry is to be asked."""
    sources = None if _REGISTRY in sys.modules else plan_sources.digest()
    if sources is None:
        return None
    name = "basis-" + hashlib.sha256("\n".join((sources, *host_versions())).encode()).hexdigest()
    if name not in _named:
        content = cache.read_verified(name)
        if content is None:
            text = registered_rows()
            if text is None:
                return None
            content = json.dumps(text, separators=(",", ":")).encode()
            cache.write_verified(name, content, title="operators that have a rule or a library call")
        rows = {
            overload: Row(kind, is_view, _REFUSALS.get(refused), library)
            for overload, (kind, is_view, refused, library) in json.loads(content).items()
        }
        _named[name] = NamedBasis(rows)
    return _named[name]


def registered_rows() -> dict[str, list[Any]] | None:
    """The registry's table as text; None if a rule refuses nodes by something that has no name here."""
    from ..loops.lowering.kinds import row_of
    from ..loops.lowering.registry import basis as registered

    names = {id(function): name for name, function in _REFUSALS.items()} | {id(None): ""}
    found = {str(overload): row_of(overload) for overload in registered()}
    if any(id(row.refuses) not in names for row in found.values()):
        return None
    return {
        overload: [row.kind, row.is_view, names[id(row.refuses)], row.library]
        for overload, row in sorted(found.items())
    }  # fmt: skip


def is_own() -> bool:
    """Whether every rule is this package's: nobody has registered one, in the place of another or beside them."""
    registry = sys.modules.get(_REGISTRY)
    if registry is None:
        return True
    return all(
        (getattr(rule.function, "__module__", None) or "").startswith("staxlab.") for rule in registry.RULES.values()
    )


def digest() -> str:
    """SHA-256 of the basis, by names."""
    return hashlib.sha256("\n".join(sorted(map(str, basis()))).encode()).hexdigest()


def clear() -> None:
    """Forget the table read from disk."""
    _named.clear()
