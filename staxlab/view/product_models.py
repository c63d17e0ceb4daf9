"""The models of a compiled product, one pane each: the numbers, then the records they come from."""

from __future__ import annotations

from typing import Any

from .document import Pane, View
from .measures import table_markup


def view(record: Any, full: bool = False) -> View:
    """A pane with the numbers, and the panes of traffic, numbering and stages."""
    from .registry import panes_of

    content = record.table()
    first = Pane("product", content.caption, table_markup(content), record.summary(), content.text())
    others = [pane for part in record.parts for pane in panes_of(part, full=full).panes]
    return View("product models", (first, *others), first=("product",))
