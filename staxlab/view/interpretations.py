"""One compute function under all its handlers, drawn (Section 6.7): a row for each operator, a column for each."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..measure.interpretations import LANGUAGES
from .document import Pane, note
from .markup import Html, element, join, table
from .provenance import TabStop


def panes(record: Any) -> list[Pane]:
    """One pane: the table, and what the handlers say of the body as a whole."""
    content = record.table()
    stop = TabStop()
    rows, attributes = [], []
    for row in record.rows:
        code = [_code(row.code[language]) for language in record.languages]
        rows.append(
            [row.node, _code(row.listing), row.operations, row.interval or "–", element("code", row.value), *code]
        )
        attributes.append(stop.attributes(row.origins, row.node))
    named = [LANGUAGES.get(language, language) for language in record.languages]
    head = ["node", "formatted", "operations", "interval", "value", *named]
    parts = [table(content.caption, head, rows, row_attributes=attributes, data_group=True)]
    parts += [note(f"{said[0].upper()}{said[1:]}.") for said in content.notes]
    return [Pane("interpretations", content.caption, join(parts), f"{len(rows)} rows", str(record))]


def _code(lines: Iterable[str]) -> Html:
    """Lines of code, one below the other."""
    drawn = [element("code", line) for line in lines]
    return element("span", [[line, element("br")] for line in drawn]) if drawn else Html("–")
