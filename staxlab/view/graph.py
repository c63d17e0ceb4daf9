"""The computation graph (Section 3.1), drawn: a diagram and, beside it, the listing that says the same in words.

Both carry the same links. The listing is what remains where a host strips drawings, and what a screen reader reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..provenance import Line
from .diagram import Box, box_of, graph_diagram
from .document import Pane, View
from .listing import listing
from .markup import Html, element
from .provenance import node_names


def graph_lines(graph: Iterable[Any]) -> list[Line]:
    """A line per node, as ``Graph.format`` prints it, with the node's origins."""
    return [Line(node.format(), node.origins) for node in graph]


def graph_markup(
    graph: Any,
    name: str = "graph",
    *,
    full: bool = False,
    box: Callable[[Any], Box] = box_of,
    remark: Callable[[Any], str] | None = None,
) -> Html:
    """Diagram and listing of a graph; ``full`` draws graphs that a notebook output would only list.

    ``box`` makes the box of a node, ``remark`` says what stands behind it in the listing.
    """
    nodes = list(graph)
    words = listing(
        graph_lines(nodes),
        "ir",
        name=name,
        label_of=lambda k: None if nodes[k].op == "output" else f"%{nodes[k].name}",
        after=None if remark is None else lambda k: _remark(remark(nodes[k])),
    )
    return element("div", graph_diagram(nodes, name, full=full, box=box), words, class_="sx-columns")


def _remark(text: str) -> Html | None:
    return element("span", f"   # {text}", class_="sx-comment") if text else None


def summary_of(graph: Any) -> str:
    """``2 inputs, 4 operations``."""
    inputs, calls = len(graph.placeholders), len(graph.calls)
    return f"{inputs} input{'' if inputs == 1 else 's'}, {calls} operation{'' if calls == 1 else 's'}"


def view(record: Any, full: bool = False) -> View:
    graph = record if hasattr(record, "placeholders") else record.graph
    pane = Pane("graph", "Graph", graph_markup(graph, full=full), summary_of(graph), graph.format())
    return View("graph", (pane,), names=node_names(graph))
