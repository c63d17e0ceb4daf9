"""The specialization key and its guards (Section 2), drawn as tables: for which inputs a compiled version holds.

A guard is a projection of the key, so a row of the first table says what was seen when the version was made, and a row
of the second what is asked of every later call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .document import Pane
from .listing import listing, plain_lines
from .markup import element, join, table
from .registry import plain_text


def specialization_pane(key: Any, guards: Iterable[Any] = ()) -> Pane:
    """The pane "key"."""
    guards = list(guards)
    parts = []
    if key is not None:
        parts.append(listing(plain_lines(plain_text(key)), "ir", name="specialization key", caption="key"))
    if guards:
        rows = [[str(number + 1), element("code", str(guard))] for number, guard in enumerate(guards)]
        parts.append(table("Guards: what every later call is asked", ["", "guard"], rows))
    summary = f"{len(guards)} guard{'' if len(guards) == 1 else 's'}"
    plain = "\n".join([plain_text(key) if key is not None else "", *map(str, guards)])
    return Pane("key", "Key", join(parts), summary, plain)
