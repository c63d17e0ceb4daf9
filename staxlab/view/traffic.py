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
    from ..measure.bytes import in_units

    symbols = record.eager.symbols
    sides = [record.eager] + ([record.compiled] if record.compiled is not None else [])
    largest = max([side.nbytes for side in sides] + [record.bound.nbytes, 1])
    stop = TabStop()
    groups = []
    for side in sides:
        what = "eager, operator by operator" if side.side == "eager" else "compiled, kernel by kernel"
        rows = [_row(row, row.name, largest, symbols, in_units, stop) for row in side.rows]
        total = f"all of it ({side.intensity:.3g} operations per byte)"
        groups.append(_group(what, [*rows, _row(side, total, largest, symbols, in_units, None)]))
    least = _row(record.bound, "each input read once, each output written once", largest, symbols, in_units, None)
    groups.append(_group("what no implementation can avoid (Proposition 1.1)", [least]))
    head = ["", "elements", "bytes (plain: read, hatched: written)", "operations"]
    headings = element("thead", element("tr", [element("th", name, scope="col") for name in head]))
    caption = element("caption", "Memory traffic: the longest bar is all of eager execution")
    drawn = element("table", caption, headings, groups, class_="sx-table sx-traffic", data_group=True)
    parts = [element("div", drawn, class_="sx-scroll")]
    meaning = ", ".join(f"{name} = {value:,}" for name, value in symbols.items())
    if meaning:
        parts.append(element("p", f"In elements: {meaning}.", class_="sx-note"))
    parts += [element("p", reason, class_="sx-note") for reason in record.bound.reasons]
    return [Pane("traffic", "Traffic", join(parts), _summary(record), str(record))]


def _summary(record: Any) -> str:
    if record.compiled is None or math.isnan(record.rho):
        return f"eager moves {byte_text(record.eager.nbytes)}"
    attained = "which is the lower bound" if record.attains_bound else f"and at most {record.best_rho:.3g} is possible"
    return f"the kernels move {record.rho:.3g} times less than eager, {attained}"


def _group(heading: str, rows: list[Html]) -> Html:
    title = element("tr", element("th", heading, colspan=4, scope="rowgroup", class_="sx-group"))
    return element("tbody", title, rows)


def _row(side: Any, name: str, largest: int, symbols: Any, in_units: Any, stop: TabStop | None) -> Html:
    """A row of a group; without a ``stop`` it is a sum, which links to nothing."""
    # The bound knows only its total; it is drawn as one plain bar.
    read, written = getattr(side, "bytes_read", side.nbytes), getattr(side, "bytes_written", 0)
    operations = getattr(side, "operations", None)
    cells = [
        element("th", name, scope="row"),
        element("td", in_units(side.elements, symbols)),
        element(
            "td", traffic_bar(read, written, largest), element("span", byte_text(side.nbytes), class_="sx-bar-text")
        ),
        element("td", "–" if operations is None else f"{operations:,}", class_="sx-num"),
    ]
    linked = stop.attributes(side.origins, name) if stop is not None else {"class_": "sx-total"}
    return element("tr", cells, **linked)
