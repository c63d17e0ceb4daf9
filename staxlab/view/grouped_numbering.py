"""The blocks of a product in the order of their numbers (Proposition 9.4, Figure 9.1), drawn beside row-major order.

Each grid is the result, a cell a block with its number. Left of it the block rows of A, above it the block columns of
B. Step by step one block more is started, and what the running blocks read lights up; the last step is the whole
window. Without scripts that window is drawn: its cells are filled, and have a bold number and a thicker frame.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .charts import FONT, MUTED, RULE, TEXT, text_at
from .document import Pane, View
from .markup import Html, element, join
from .measures import table_markup

LEFT, TOP, GAP = 58, 84, 6
WIDEST = 300  # pixels of a grid
MOST_BLOCKS = 1200  # of a grid that is drawn
MOST_STEPS = 160


def view(record: Any, full: bool = False) -> View:
    """Both grids with a slider, and the counts."""
    parts = [numbering_figure(record), table_markup(record.table())]
    title = f"{record.grid_m} x {record.grid_n} blocks, {record.window} at a time"
    return View("numbering", (Pane("numbering", title, join(parts), record.summary(), record.format()),))


def numbering_figure(record: Any) -> Html:
    """Row-major and grouped, one block more at each step; a sentence where a drawing would be too large."""
    blocks = record.grid_m * record.grid_n
    if blocks > MOST_BLOCKS:
        return element("p", f"A drawing of {blocks:,} blocks would explain nothing; the table has the counts.",
                       class_="sx-note")  # fmt: skip
    sides = list(dict.fromkeys((record.row_major, record)))
    stride = -(-record.window // MOST_STEPS)
    stops = [*range(0, record.window, stride), record.window]
    words = [_words(sides, stop) for stop in stops]
    pictures = [element("div", grid(side, stops), class_="sx-scroll sx-drawing") for side in sides]
    return element(
        "figure", element("div", pictures, class_="sx-columns"), class_="sx-steps", data_steps=len(stops) - 1,
        data_words=json.dumps(words), data_play=True,
    )  # fmt: skip


def _words(sides: list[Any], running: int) -> str:
    if not running:
        return "no block is running"
    parts = []
    for side in sides:
        reads = side.reads(running)
        parts.append(
            f"{side.name}: {len(reads.rows)} rows of A and {len(reads.columns)} columns of B, {reads.total} in all"
        )
    return f"{running} block{'' if running == 1 else 's'} running; " + "; ".join(parts)


def _lit(stops: list[int], pids: list[int]) -> str | None:
    """The steps at which at least one of these blocks is running."""
    first = min(pids, default=None)
    return None if first is None else " ".join(str(step) for step, stop in enumerate(stops) if stop > first) or None


def grid(record: Any, stops: list[int]) -> Html:
    """One numbering."""
    cell = max(min(WIDEST // max(record.grid_n, record.grid_m), 34), 8)
    width = LEFT + GAP + cell * record.grid_n + 20
    height = TOP + GAP + cell * record.grid_m + 26
    reads = record.reads()
    title = f"{record.name}: {len(reads.rows)} + {len(reads.columns)} = {reads.total}"
    said = f"{record.name}, {record.window} running: they read block rows {list(reads.rows)} of A and block columns "
    said += f"{list(reads.columns)} of B"
    drawn = [
        element("title", title),
        element("desc", said),
        text_at(title, 8, 18, "sx-count", TEXT, font_weight="600"),
        text_at(f"the first {record.window} are running", 8, 34, "sx-label", MUTED),
        text_at("B: block columns", LEFT + GAP, 50, "sx-label", MUTED),
        text_at("A: rows", 4, TOP - 6, "sx-label", MUTED),
        *_operands(record, reads, stops, cell),
        *_blocks(record, stops, cell),
        text_at("C: blocks with their numbers", LEFT + GAP, height - 8, "sx-label", MUTED),
    ]
    width = max(width, 8 + 7.2 * len(title))
    return element(
        "svg", drawn, class_="sx-diagram", width=f"{width:g}", height=f"{height:g}",
        viewBox=f"0 0 {width:g} {height:g}", role="img", tabindex=0, aria_label=f"{title}. {said}.",
        data_group=record.group, **FONT,
    )  # fmt: skip


def _look(is_read: bool) -> dict[str, Any]:
    return {
        "fill": "#e4f0fb" if is_read else "none", "stroke": RULE, "stroke_width": "1.8" if is_read else "0.8",
        "class_": f"sx-cell sx-lane-cell {'sx-cell-covered' if is_read else 'sx-cell-apart'}",
        "stroke_dasharray": None if is_read else "2 2",
    }  # fmt: skip


def _operands(record: Any, reads: Any, stops: list[int], cell: int) -> Iterator[Html]:
    for row in range(record.grid_m):
        pids = [record.number[row, column] for column in range(record.grid_n)]
        said = f"block row {row} of A, read by blocks {', '.join(map(str, sorted(pids)[:8]))}..."
        yield element("rect", element("title", said), x=LEFT - cell, y=TOP + GAP + cell * row, width=cell - 2,
                      height=cell - 2, data_lit=_lit(stops, pids), data_a=row, **_look(row in reads.rows))  # fmt: skip
    for column in range(record.grid_n):
        pids = [record.number[row, column] for row in range(record.grid_m)]
        said = f"block column {column} of B, read by blocks {', '.join(map(str, sorted(pids)[:8]))}..."
        high = min(cell - 2, 24)
        yield element("rect", element("title", said), x=LEFT + GAP + cell * column, y=TOP - high, width=cell - 2,
                      height=high, data_lit=_lit(stops, pids), data_b=column,
                      **_look(column in reads.columns))  # fmt: skip


def _blocks(record: Any, stops: list[int], cell: int) -> Iterator[Html]:
    for row in range(record.grid_m):
        for column in range(record.grid_n):
            pid = record.number[row, column]
            runs = pid < record.window
            x, y = LEFT + GAP + cell * column, TOP + GAP + cell * row
            label = element("title", f"block {pid}: row {row}, column {column}") if cell >= 12 else None
            yield element("rect", label, x=x, y=y, width=cell - 2, height=cell - 2, data_lit=_lit(stops, [pid]),
                          data_pid=pid, **_look(runs))  # fmt: skip
            if cell >= 20:
                yield text_at(str(pid), x + cell / 2 - 1, y + cell / 2 + 3, "sx-count" if runs else "sx-label",
                              TEXT if runs else MUTED, text_anchor="middle", font_size="10.5",
                              font_weight="700" if runs else None)  # fmt: skip
