"""Which operators the back end has rules for, known without loading the rules (Definition 4.2 and Section 11.1).

The recorder of operators asks of each overload whether it is in the back end's basis. The rules are thirty modules; a
region that comes from the cache needs none of them, but the names. They are kept on disk under the package's text and
PyTorch's version, which determine them. A program may add rules (``staxlab.register_lowering``), for which it loads
the registry; then the registry is asked, and nothing that rules of others had a part in is kept or restored.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Collection, Iterator
from typing import Any

from . import cache, plan_sources
from .plan_key import host_versions

_REGISTRY = "staxlab.loops.lowering"


class NamedBasis(Collection):
    """A set of overloads given by their names, as ``aten.add.Tensor``."""

    def __init__(self, names: frozenset[str]):
        self.names = names

    def __contains__(self, overload: Any) -> bool:
        return str(overload) in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)


_named: dict[str, NamedBasis] = {}


def basis() -> Collection[Any]:
    """The back end's basis: the registry's own if that is loaded, else by names from disk; if those are not there, the
    registry is loaded and they are written."""
    sources = None if _REGISTRY in sys.modules else plan_sources.digest()
    if sources is None:
        from ..loops.lowering import basis as registered

        return registered()
    name = "basis-" + hashlib.sha256("\n".join((sources, *host_versions())).encode()).hexdigest()
    if name not in _named:
        content = cache.read_verified(name)
        if content is None:
            from ..loops.lowering import basis as registered

            content = json.dumps(sorted(map(str, registered()))).encode()
            cache.write_verified(name, content, title="operators that have a rule or a library call")
        _named[name] = NamedBasis(frozenset(json.loads(content)))
    return _named[name]


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
    """Forget the names read from disk."""
    _named.clear()
