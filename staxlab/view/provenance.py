"""The links between stages: how a drawn thing says which captured nodes it stems from.

The compiler has one id space (``staxlab.provenance``): a captured node's id, carried along as ``origins``. A drawn
element repeats them as ``data-origins="3 7"``, and that is all a rendering has to do. One script
(``assets/provenance.js``) lights up whatever intersects, in every stage and pane below the same root, on hover, on
click, and from the keyboard. Nothing is matched by name or by text.

Keyboard access uses one tab stop per group (a listing, a diagram, a table): the first linked element of a group is
in the tab order, the arrow keys reach the others. A page with two thousand linked lines has a dozen tab stops.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any


def origins_text(origins: Iterable[int]) -> str | None:
    """``"3 7"``, ascending, or None for no origins (the attribute is then left out)."""
    return " ".join(map(str, sorted(origins))) or None


class TabStop:
    """Hands out ``tabindex`` values for the linked elements of one group: 0 once, then -1."""

    def __init__(self) -> None:
        self._given = False

    def attributes(self, origins: Iterable[int], label: str | None = None) -> dict[str, Any]:
        """The attributes of an element with these origins; ``label`` is what the status line calls it."""
        text = origins_text(origins)
        if text is None:
            return {"data_label": label}
        position = -1 if self._given else 0
        self._given = True
        return {"data_origins": text, "data_label": label, "tabindex": position}


def node_names(graph: Any) -> dict[int, str]:
    """What the status line calls each captured node: ``{3: "add (line 3)"}``."""
    names = {}
    for node in graph:
        if node.op == "output":
            continue
        where = f" (line {node.location.line})" if node.location else ""
        names[node.id] = f"{short_target(node)}{where}"
    return names


def short_target(node: Any) -> str:
    """The last part of a node's target: ``add`` for ``operator.add``, the input's name for a placeholder."""
    return (
        node.name if node.op in ("placeholder", "get_attr") else node.target_name().split("::")[-1].rpartition(".")[2]
    )


def names_attribute(names: dict[int, str]) -> str | None:
    """The names as a value for ``data-names``; None when there are none."""
    return json.dumps({str(key): names[key] for key in sorted(names)}, ensure_ascii=False) if names else None
