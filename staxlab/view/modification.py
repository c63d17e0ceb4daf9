"""A ``score_mod`` or ``mask_mod`` drawn (Section 9.10): the function, the captured graph, and beside it the loop body
of one score that kernels embed; for scores, the body of the derivative.

All of it is linked: whoever points at a line of the function sees which operations, which statements and which part of
the derivative stem from it.
"""

from __future__ import annotations

from typing import Any

from ..errors import StaxError
from ..loops.formatting import body_lines
from ..provenance import Line
from .document import Pane, View, note
from .graph import graph_diagram, summary_of
from .listing import listing
from .markup import Html, element, join, table
from .provenance import node_names
from .source import source_markup


def view(record: Any, full: bool = False) -> View:
    """A modification: the function and its body, and its derivative if it has one. An adjoint by itself: its body."""
    if hasattr(record, "reverse"):
        return View("derivative of a score_mod", (_derivative_pane(record),))
    graph = record.graph
    body = body_lines(record.body)
    caption = f"{record.kind}_mod {record.name}: one score at b, h, q, kv; result tmp{record.body.result}"
    drawn = element(
        "div",
        graph_diagram(list(graph), f"graph of {record.name}", full=full),
        listing(body, "ir", name="loop body", caption=caption),
        class_="sx-columns",
    )
    parts = [source_markup(graph, title=record.name), drawn, _captured(record)]
    summary = f"{summary_of(graph)}; {len(body)} statements, {len(record.captured)} captured tensors"
    title = f"{record.kind}_mod {record.name}"
    panes = [Pane("modification", title, join(parts), summary, record.format())]
    if record.kind == "score":
        panes.append(_derivative_of(record))
    return View(title, tuple(panes), names=node_names(graph))


def _captured(record: Any) -> Html:
    if not record.captured:
        return note("It captures no tensor.")
    rows = [
        (c.name, c.path, str(c.dtype).removeprefix("torch."), str(list(c.shape)), str(list(c.strides)),
         "yes" if c.requires_grad else "no")
        for c in record.captured
    ]  # fmt: skip
    head = ("in the body", "in the function", "dtype", "shape", "strides (elements)", "learned")
    return table("Captured tensors, which kernels are given as arguments", head, rows)


def _derivative_of(record: Any) -> Pane:
    try:
        return _derivative_pane(record.adjoint)
    except StaxError as error:
        return Pane("derivative", "Derivative", note(error.what), "none", str(error))


def _derivative_pane(adjoint: Any) -> Pane:
    lines = list(body_lines(adjoint.reverse))
    caption = f"forwardN is tmpN of the loop body; derivative by the score: tmp{adjoint.reverse.result}"
    parts = [listing(lines, "ir", name="derivative", caption=caption)]
    added = [
        Line(f"add tmp{c.value} to captured{c.number}[{c.subscript}]", _origins(adjoint, c.value))
        for c in adjoint.contributions
    ]
    if added:
        parts.append(listing(added, "ir", name="contributions", caption="What captured tensors get, for each score"))
    summary = f"{len(lines)} statements, {len(added)} contributions to captured tensors"
    return Pane("derivative", "Derivative", join(parts), summary, adjoint.format())


def _origins(adjoint: Any, number: int) -> frozenset[int]:
    return next((s.origins for s in adjoint.reverse.all_statements() if s.id == number), frozenset())
