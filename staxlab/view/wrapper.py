"""The wrapper (Section 8.5), drawn: the generated Python that allocates, calls the kernels in order and frees.

Objects the source refers to that have no literal spelling (operators, dtypes, layouts) are listed below it.
"""

from __future__ import annotations

from typing import Any

from .document import Pane
from .listing import listing
from .markup import join, table


def panes(record: Any) -> list[Pane]:
    parts = [listing(record.lines, "python", name="wrapper")]
    if record.globals:
        rows = [[name, repr(value)[:200]] for name, value in record.globals.items()]
        parts.append(table("Names the source refers to", ["name", "object"], rows))
    return [Pane("wrapper", "Wrapper", join(parts), f"{len(record.lines)} lines of Python", record.source)]
