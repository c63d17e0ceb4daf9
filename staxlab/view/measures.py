"""Records of Section 13 as panes, so that a page can hold them beside the stages of a compilation.

Each of them knows its own table (``measure.tables``); what is added here is the look of the pane.
"""

from __future__ import annotations

from typing import Any

from .document import Pane
from .markup import Html, element, join


def table_markup(record: Any) -> Html:
    """A ``measure.tables.Table`` with caption, aligned numbers and notes."""
    head = element("tr", [element("th", name, scope="col") for name in record.columns])
    rows = []
    for row in record.rows:
        first, *rest = row
        cells = [
            element("td", cell, class_="sx-num" if position in record.numeric else None)
            for position, cell in enumerate(rest, start=1)
        ]
        rows.append(element("tr", element("th", first, scope="row"), cells))
    drawn = element(
        "table",
        element("caption", record.caption, class_="sx-spoken"),  # the pane's title says the same to those who see it
        element("thead", head),
        element("tbody", rows),
        class_="sx-table",
    )
    notes = [element("p", note, class_="sx-note") for note in record.notes]
    return join([element("div", drawn, class_="sx-scroll"), *notes])


def panes(record: Any) -> list[Pane]:
    """Any record that is a table."""
    content = record.table()
    table = table_markup(content)
    return [Pane(type(record).__name__.lower(), content.caption, table, "", str(record))]
