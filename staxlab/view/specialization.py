"""The specialization key and its guards (Section 2), drawn as one table: for which inputs a compiled version holds.

A guard is a projection of the key (Definition 2.3), so showing the guards *is* showing the key. They are grouped by
what they are about: an argument, a free variable, the surroundings (gradient mode, default dtype, ...).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from .document import Pane
from .markup import Html, element, table
from .registry import plain_text

_ABOUT = {
    "ambient": "surroundings",
    "aliasing": "memory overlap",
    "gate": "data gates",
    "length": "containers",
    "keys": "containers",
}


def _subject(guard: Any) -> str:
    """What a guard is about: ``x`` for ``x.shape[0]`` and for ``type(x)``."""
    root = re.match(r"(?:\w+\()?([A-Za-z_][\w]*)", guard.path)
    about = _ABOUT.get(guard.kind)
    if about and not (guard.kind in ("length", "keys") and root and "(" in guard.path and root.group(1) != "args"):
        return about
    return root.group(1) if root else guard.path


def guards_table(guards: Iterable[Any]) -> Html:
    """A row per subject with everything that is asked of it."""
    groups: dict[str, list[Any]] = {}
    for guard in guards:
        groups.setdefault(_subject(guard) if hasattr(guard, "path") else "guards", []).append(guard)
    rows = []
    for subject, members in groups.items():
        conditions = [element("li", element("code", _text(guard))) for guard in members]
        rows.append([subject, element("ul", conditions, class_="sx-plain sx-wrapped")])
    return table("A later call shares this version exactly if all of this holds", ["about", "guards"], rows)


def _text(guard: Any) -> str:
    return getattr(guard, "condition", None) or str(guard)


def specialization_pane(key: Any, guards: Iterable[Any] = ()) -> Pane:
    """The pane "key". Without given guards, they are projected from the key."""
    guards = list(guards)
    if not guards and key is not None and hasattr(key, "sigma"):
        from ..specialize.guards import guards as project

        guards = list(project(key))
    body = (
        guards_table(guards)
        if guards
        else element("p", "Nothing is asked: one version serves all calls.", class_="sx-note")
    )
    summary = f"{len(guards)} guard{'' if len(guards) == 1 else 's'}"
    return Pane("key", "Key", body, summary, plain_text(key) if key is not None else "\n".join(map(str, guards)))


def panes(record: Any) -> list[Pane]:
    """A key, or a single guard."""
    return [specialization_pane(record)] if hasattr(record, "sigma") else [specialization_pane(None, [record])]
