"""An exported program (Section 10.2), drawn: what it declares, what became of each decision, and its graph.

Assertions are lit on the graph: they are what the program rests on at run time. A decision is linked to the nodes that
were recorded on the line that made it and, where it was kept, to the assertion that checks it, so pointing at one shows
the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from ..exporting.adjudication import IMPLIED, KEPT, Adjudication
from ..exporting.program import ExportedProgram
from ..shapes.assertions import range_text
from .diagram import Box, box_of
from .document import Pane, View, note
from .graph import graph_markup, summary_of
from .markup import Html, element, join, table
from .provenance import TabStop, node_names, short_target
from .shape_guard import asked_by
from .source import location_text, source_markup

MEANING = {
    IMPLIED: "every declared size satisfies it, so it is not checked",
    KEPT: "no declaration says so: the program checks it at every call",
}


def view(record: ExportedProgram, full: bool = False) -> View:
    """Two panes: the program (source and graph), and its contract (declarations and decisions)."""
    drawn = join([source_markup(record.graph, title=record.name), asserted_graph(record, full)])
    checks = f"{len(record.assertions)} assertion{'' if len(record.assertions) == 1 else 's'}"
    program = Pane("program", "Exported program", drawn, f"{summary_of(record.graph)}, of them {checks}",
                   record.graph.format())  # fmt: skip
    contract = Pane("contract", "Declarations and decisions", join([declarations(record), decisions(record)]),
                    f"{len(record.dims)} declared, {len(record.adjudications)} decided", str(record))  # fmt: skip
    return View(f"exported program {record.name}", (program, contract), names=node_names(record.graph),
                first=("program", "contract") if record.adjudications else ("program",))  # fmt: skip


def asserted_graph(record: ExportedProgram, full: bool = False) -> Html:
    """The graph with its assertions lit: another colour, a thicker frame, and a row that says so."""
    asserted = {node.id for node in record.assertions}

    def remark(node: Any) -> str:
        return "asserted at every call" if node.op != "output" and node.id in asserted else ""

    words = "Lit: the assertions, which every call has to pass." if asserted else "Nothing is asserted."
    graph = graph_markup(record.graph, "exported graph", full=full, box=_box(asserted), remark=remark)
    return join([graph, note(words)])


def _box(asserted: set[int]) -> Callable[[Any], Box]:
    def box(node: Any) -> Box:
        plain = box_of(node)
        if node.op == "output" or node.id not in asserted:
            return plain
        rows = (f"%{node.name}", short_target(node), "asserted")
        return replace(plain, rows=rows, spoken=f"{plain.spoken}; asserted at every call", emphasis="sx-lit")

    return box


def declarations(record: ExportedProgram) -> Html:
    """A row for each input: its sizes, declared or fixed; with it the declared dimensions and where they are used."""
    stop, rows, linked = TabStop(), [], []
    inputs = dict(zip((place.path for place in record.places), record.graph.placeholders, strict=True))
    for row in record.dims.values():
        uses = [(path, d) for (path, d), name in record.declared.items() if name == row.name]
        upper = math.inf if row.max is None else row.max
        where = ", ".join(f"{path}.shape[{d}]" for path, d in uses)
        rows.append([element("code", row.name), range_text(row.name, row.min, upper),
                     row.multiple_of if row.multiple_of > 1 else "any", element("code", where)])  # fmt: skip
        origins = frozenset().union(*(inputs[path].origins for path, _ in uses))
        linked.append(stop.attributes(origins, row.name))
    head = ["size", "range", "multiple of", "stands at"]
    parts: list[Html] = []
    if rows:
        parts.append(table("Declared", head, rows, row_attributes=linked, data_group=True))
    else:
        parts.append(note("Nothing was declared: the program holds for the sample's sizes."))
    takes: list[list[Any]] = []
    for place in record.places:
        dtype = str(place.dtype).removeprefix("torch.")
        takes.append([element("code", place.path), dtype, element("code", _sizes(record, place)), place.device.type])
    parts.append(table("Inputs", ["input", "dtype", "sizes", "device"], takes))
    return join(parts)


def _sizes(record: ExportedProgram, place: Any) -> str:
    names = (record.declared.get((place.path, d)) if n is None else n for d, n in enumerate(place.sizes))
    return f"[{', '.join(map(str, names))}]"


def decisions(record: ExportedProgram) -> Html:
    """A row for each decision with its outcome, linked to the nodes it is about."""
    if not record.adjudications:
        return note("The program asked nothing about the declared sizes.")
    stop, rows, linked = TabStop(), [], []
    for a in record.adjudications:
        outcome = [element("strong", a.outcome), f": {MEANING.get(a.outcome, '')}"]
        rows.append([element("code", a.condition), outcome, asked_by(a.decision), location_text(a.decision.location)])
        linked.append(stop.attributes(origins_of(record, a), a.condition))
    caption = "Decisions about declared sizes, adjudicated against the declared ranges"
    head = ["condition", "outcome", "asked by", "at"]
    return table(caption, head, rows, row_attributes=linked, data_group=True)


def origins_of(record: ExportedProgram, a: Adjudication) -> frozenset[int]:
    """The captured nodes of a decision's line, and of the assertion that checks it."""
    line = _line(a.decision.location)
    found = [node for node in record.graph if node.op != "output" and line is not None and _line(node.location) == line]
    found += [node for node in record.assertions if a.outcome == KEPT and a.condition in node.args]
    return frozenset().union(*(node.origins for node in found))


def _line(location: Any) -> tuple[str, int] | None:
    return None if location is None else (location.file, location.line)
