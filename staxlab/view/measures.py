"""Records of Section 13 as panes, so that a page can hold them beside the stages of a compilation.

They draw themselves (``benchmark``, ``roofline``); what is added here is the frame around them.
"""

from __future__ import annotations

from typing import Any

from .document import Pane
from .markup import Html


def panes(record: Any) -> list[Pane]:
    """A roofline with its plot, or any record that is a table."""
    if type(record).__name__ == "Roofline":
        from .roofline import figure_html

        return [Pane("roofline", "Roofline", Html(figure_html(record)), "", str(record))]
    from .benchmark import table_html

    name = type(record).__name__
    return [Pane(name.lower(), name, Html(table_html(record.table())), "", str(record))]
