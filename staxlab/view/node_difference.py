"""What a pass did to a graph, node by node: added, removed, changed, kept.

Nodes are matched by their ids, which a copy of a graph keeps, so a renamed or moved node is still itself, and a node
whose argument was redirected is told from a new one. (Two listings compared as text would take a redirected argument
for the removal of one node and the addition of another.) Signs stand beside the colours: ``+`` added, ``−`` removed,
``~`` changed.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from ..provenance import Line
from .colour import coloured
from .diagram import Box, box_of, diagram
from .markup import Html, element
from .provenance import TabStop

KEPT, ADDED, REMOVED, CHANGED = "kept", "added", "removed", "changed"
SIGNS = {KEPT: " ", ADDED: "+", REMOVED: "−", CHANGED: "~"}
_STYLES = {KEPT: "", ADDED: " sx-added", REMOVED: " sx-removed", CHANGED: " sx-changed"}
CONTEXT = 3  # unchanged lines kept around a change
MOST_DRAWN = 80


@dataclass(frozen=True)
class NodeChange:
    """One node in both graphs: as it was (None if it is new) and as it is (None if it is gone)."""

    kind: str
    before: Any
    after: Any

    @property
    def node(self) -> Any:
        return self.after if self.after is not None else self.before

    def line(self) -> Line:
        """``%mul = ...``; a changed node says what it was."""
        node = self.node
        text = node.format()
        return Line(f"{text}   # was {self.before.format()}" if self.kind == CHANGED else text, node.origins)


def node_changes(before: Iterable[Any], after: Iterable[Any]) -> list[NodeChange]:
    """All nodes of both graphs, in the order of ``after``; removed ones stand where they stood. O(V + E).

    A node is changed if it reads as another line: another target, another argument, other metadata.
    """
    before, after = list(before), list(after)
    then = {_identity(node): node for node in before}
    now = {_identity(node) for node in after}
    gone: dict[Any, list[Any]] = {}  # the removed nodes behind each kept one; None: at the start
    last = None
    for node in before:
        if _identity(node) in now:
            last = _identity(node)
        else:
            gone.setdefault(last, []).append(node)
    changes = [NodeChange(REMOVED, node, None) for node in gone.get(None, ())]
    for node in after:
        old = then.get(_identity(node))
        kind = ADDED if old is None else KEPT if old.format() == node.format() else CHANGED
        changes.append(NodeChange(kind, old, node))
        changes += [NodeChange(REMOVED, each, None) for each in gone.get(_identity(node), ())]
    return changes


def _identity(node: Any) -> Any:
    return "output" if node.op == "output" else node.id


def changes_text(changes: Iterable[NodeChange]) -> str:
    """The changes for a terminal, unchanged nodes left out."""
    return "\n".join(f"{SIGNS[c.kind]} {c.line().text}" for c in changes if c.kind != KEPT)


def changes_listing(changes: list[NodeChange], name: str) -> Html:
    """One list of both graphs, unchanged stretches shortened."""
    near = set()
    for position, change in enumerate(changes):
        if change.kind != KEPT:
            near.update(range(position - CONTEXT, position + CONTEXT + 1))
    entries: list[tuple[str, Line]] = []
    skipped = 0
    for position, change in enumerate([*changes, None]):
        if change is not None and position not in near:
            skipped += 1
            continue
        if skipped:
            entries.append(("…", Line(f"… {skipped} node{'' if skipped == 1 else 's'} unchanged")))
            skipped = 0
        if change is not None:
            entries.append((change.kind, change.line()))
    stop = TabStop()
    drawn = []
    for (kind, line), markup in zip(entries, coloured([line.text for _, line in entries], "ir"), strict=True):
        mark = element("span", f"{SIGNS.get(kind, ' ')} ", class_="sx-n sx-sign")
        linked = stop.attributes(line.origins) if line.origins else {}
        style = _STYLES.get(kind, " sx-gap")
        drawn.append(element("span", mark, markup, class_="sx-line" + style, data_change=kind, **linked))
    label = f"changes by {name}"
    code = element("pre", Html("\n".join(drawn)), class_="sx-code sx-diff", data_group=True, aria_label=label)
    said = "node by node (+ added, − removed, ~ changed)"
    caption = element("figcaption", element("span", said, class_="sx-muted"))
    return element("figure", caption, code, class_="sx-listing", data_name=label, data_noun="changed line")


def changes_diagram(changes: list[NodeChange], name: str) -> Html | None:
    """Both graphs in one drawing: what is there now with its edges, and what is gone with what it read."""
    if len(changes) > MOST_DRAWN:
        return None
    place = {_identity(change.node): k for k, change in enumerate(changes)}
    edges = [
        (place[_identity(source)], k)
        for k, change in enumerate(changes)
        for source in change.node.inputs
        if _identity(source) in place
    ]
    return diagram([_box(change) for change in changes], edges, f"changes by {name}")


def _box(change: NodeChange) -> Box:
    box = box_of(change.node)
    if change.kind == KEPT:
        return box
    words = f"{SIGNS[change.kind]} {change.kind}"
    spoken = f"{box.spoken}; {change.kind} by this pass"
    return replace(box, rows=(*box.rows, words), spoken=spoken, emphasis=f"sx-node-{change.kind}")
