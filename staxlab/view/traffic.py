"""The byte model (Sections 1.1 and 13.2), drawn: what eager moves, what the kernels move, and what nobody can avoid.

Three blocks of bars on one scale. The longest is the whole of eager execution, so the promise of fusion is the ratio of
two lengths that can be seen.
"""

from __future__ import annotations

import math
from typing import Any

from .document import Pane
from .markup import Html, element, join
from .provenance import TabStop
from .schedule import byte_text, traffic_bar


def panes(record: Any) -> list[Pane]:
    """One pane: a table with a block of rows per way of executing, the lower bound, and the ratio."""
    from ..measure.bytes import operation_notes

    symbols = record.eager.symbols
    sides = [record.eager] + ([record.compiled] if record.compiled is not None else [])
    largest = max([side.nbytes for side in sides] + [record.bound.nbytes, 1])
    notes = operation_notes(record.eager)
    stop = TabStop()
    groups = []
    for side in sides:
        what = "eager, operator by operator" if side.side == "eager" else "compiled, kernel by kernel"
        rows = [_row(row, row.name, largest, symbols, stop) for row in side.rows]
        groups.append(_group(what, [*rows, _row(side, "all of it", largest, symbols, None)]))
    least = _row(record.bound, "each input read once, each output written once", largest, symbols, None)
    groups.append(_group("what no implementation can avoid (Proposition 1.1)", [least]))
    head = ["", "elements", "bytes (plain: read, hatched: written)", "operations", "operations per byte"]
    counting = "; ".join(notes) or None
    headings = [element("th", name, scope="col", title=counting if "operations" in name else None) for name in head]
    caption = element("caption", "Memory traffic: the longest bar is all of eager execution")
    drawn = element(
        "table", caption, element("thead", element("tr", headings)), groups, class_="sx-table sx-traffic",
        data_group=True,
    )  # fmt: skip
    parts = [element("div", drawn, class_="sx-scroll")]
    if record.legend:
        parts.append(element("p", f"In elements: {record.legend}.", class_="sx-note"))
    parts += [element("p", said, class_="sx-note") for said in (*record.bound.reasons, *notes)]
    return [Pane("traffic", "Traffic", join(parts), _summary(record), str(record))]


def _summary(record: Any) -> str:
    if record.compiled is None or math.isnan(record.rho):
        return f"eager moves {byte_text(record.eager.nbytes)}"
    attained = "which is the lower bound" if record.attains_bound else f"and at most {record.best_rho:.3g} is possible"
    return f"the kernels move {record.rho:.3g} times less than eager, {attained}"


def _group(heading: str, rows: list[Html]) -> Html:
    title = element("tr", element("th", heading, colspan=5, scope="rowgroup", class_="sx-group"))
    return element("tbody", title, rows)


def _row(side: Any, name: str, largest: int, symbols: Any, stop: TabStop | None) -> Html:
    """A row of a group; without a ``stop`` it is a sum, which links to nothing."""
    from ..measure.bytes import in_units, per_byte

    operations = getattr(side, "operations", None)  # the lower bound counts bytes only
    bar = traffic_bar(side.bytes_read, side.bytes_written, largest)
    cells = [
        element("th", name, scope="row"),
        element("td", in_units(side.parts, symbols)),
        element("td", bar, element("span", byte_text(side.nbytes), class_="sx-bar-text")),
        element("td", "–" if operations is None else f"{operations:,}", class_="sx-num"),
        element("td", "–" if operations is None else per_byte(side), class_="sx-num"),
    ]
    linked = stop.attributes(side.origins, name) if stop is not None else {"class_": "sx-total"}
    return element("tr", cells, **linked)
