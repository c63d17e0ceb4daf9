"""The tables of backends and of modes (Sections 11.3 to 11.5), and a region in an outside backend's hands, drawn.

The graph that was handed over is drawn as every operator graph is, so its nodes light up with the user's lines; below
it stands what the backend made of it, in the backend's own language.
"""

from __future__ import annotations

from typing import Any

from ..modes import ACTS_ON
from .document import Pane, View
from .graph import graph_markup, summary_of
from .listing import listing, plain_lines
from .markup import Html, element, join, table
from .provenance import node_names

MOST_LINES = 400  # of a backend's text that are drawn


def view(record: Any, full: bool = False) -> View:
    """One pane."""
    kind = type(record).__name__
    if kind == "BackendTable":
        return View("backends", (_backends(record),))
    if kind == "ModeTable":
        return View("modes", (_modes(record),))
    return View("outside backend", (_delegated(record, full),), names=node_names(record.module.graph))


def _backends(record: Any) -> Pane:
    head = ("backend", "our stages end with", "what runs then", "extra")
    drawn = table("What backend= may name", head, record.cells())
    return Pane("backends", "Backends", drawn, f"{len(record)} backends", record.format())


def _modes(record: Any) -> Pane:
    meanings = [element("li", f"{option} acts on ", element("code", s), f", {w}") for option, (s, w) in ACTS_ON.items()]
    drawn = table("What each mode sets (Table 11.1)", record.head(), record.cells())
    parts = join([drawn, element("ul", meanings, class_="sx-note")])
    return Pane("modes", "Compilation modes", parts, f"{len(record.rows)} modes", record.format())


def _delegated(record: Any, full: bool) -> Pane:
    name = record.backend.name
    parts: list[Html] = [graph_markup(record.module.graph, f"graph given to {name}", full=full)]
    if record.division is not None and record.division.finishing:
        rows = [[f"%{node.name}", node.target_name()] for node in record.division.finishing]
        parts.append(table("Carried out here afterwards: views of results, writes into inputs", ["node", "call"], rows))
    if record.text:
        lines = plain_lines(record.text)
        shown = listing(lines, "text", name=f"{name}'s text", noun="line", limit=None if full else MOST_LINES)
        parts.append(element("section", element("h4", f"What {name} made of it"), shown))
    summary = f"{name}: {summary_of(record.module.graph)}"
    return Pane("outside", "Outside backend", join(parts), summary, record.format())
