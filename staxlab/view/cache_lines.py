"""Cache lines (Section 8.2), drawn: a row for each line of memory, a cell for each element, and when which is used.

A panel for every access, a figure for every loop order, the kernel's own first. Numbers in the cells say in which step
an element is used; a step is one vector. What stays empty of a touched line was fetched and not used by these steps.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from .charts import FONT, MUTED, RULE, TEXT, text_at
from .document import Pane, View
from .markup import Html, element, join, table

MOST_LINES = 18  # rows of a panel
ROW, TOP, LEFT = 16, 40, 92


def view(record: Any, full: bool = False) -> View:
    """A figure for each loop order, then the table."""
    figures = []
    for number, order in enumerate(record.orders):
        figure = order_figure(order)
        said = f"{order.name}{' (the loops of the kernel)' if order.planned else ', to compare'}"
        if number == 0:
            figures += [element("p", said, class_="sx-heading"), figure]
        else:
            figures.append(element("details", element("summary", said), figure, class_="sx-more"))
    head = ["loop order", "access", "lines per vector", "used at once", "what becomes of the rest"]
    found = table(f"Lines of {record.line_bytes} bytes that one vector touches", head, record.rows())
    notes = [element("p", f"Not known beforehand: {text}.", class_="sx-note") for text in record.left_out]
    title = f"Cache lines of {record.node} in {record.kernel}"
    pane = Pane("cache-lines", title, join([*figures, found, *notes]), record.summary(), record.format())
    return View("cache lines", (pane,))


def order_figure(order: Any) -> Html:
    """All accesses in one loop order, with one slider."""
    steps = min(len(walk.steps) for walk in order.walks)
    words = ["no vector yet", *(_words(order, step) for step in range(steps))]
    panels = [element("div", panel(walk, order, steps), class_="sx-scroll sx-drawing") for walk in order.walks]
    return element(
        "figure", element("div", panels, class_="sx-columns"), class_="sx-steps", data_steps=steps,
        data_words=json.dumps(words), data_play=True,
    )  # fmt: skip


def _words(order: Any, step: int) -> str:
    parts = []
    for walk in order.walks:
        lines = len(walk.lines(step))
        used = len(set(walk.steps[step].elements)) * walk.itemsize
        parts.append(f"{walk.buffer} touches {lines} line{'' if lines == 1 else 's'}, uses {used} bytes")
    what = "row of the tile" if order.tile else "vector"
    return f"{what} {step}: {'; '.join(parts)}"


def panel(walk: Any, order: Any, steps: int) -> Html:
    """The lines of one access."""
    size = walk.line_bytes // walk.itemsize
    used: dict[int, list[int]] = {}
    for step in range(steps):
        for element_ in dict.fromkeys(walk.steps[step].elements):
            used.setdefault(element_, []).append(step + 1)
    lines = sorted({e // size for e in used})
    shown, hidden = lines[:MOST_LINES], len(lines) - MOST_LINES
    cell = 18 if size <= 16 else 9
    width, height = LEFT + cell * size + 14, TOP + ROW * len(shown) + (34 if hidden > 0 else 22)
    title = f"{walk.role} {walk.buffer}[{walk.index}]"
    rate = f"{walk.lines_per_step:.3g} line{'' if walk.lines_per_step == 1 else 's'} per vector"
    said = f"{rate}, {100 * walk.used:.3g}% of the bytes used: {walk.verdict()}"
    drawn = [
        element("title", f"{title}, {order.name}"),
        element("desc", said),
        text_at(title, 6, 16, "sx-count", TEXT, font_weight="600"),
        text_at(f"{rate}, {100 * walk.used:.3g}% used", 6, 31, "sx-label", MUTED),
        *(part for row, line in enumerate(shown) for part in _line(walk, line, row, size, cell, used)),
    ]
    bottom = TOP + ROW * len(shown) + 14
    if hidden > 0:
        drawn.append(text_at(f"and {hidden} more lines", LEFT, bottom, "sx-label", MUTED))
        bottom += 13
    drawn.append(text_at(f"elements of a line, {walk.itemsize} bytes each", LEFT, bottom, "sx-label", MUTED))
    width = max(width, 7.2 * len(title) + 16)
    return element(
        "svg", drawn, class_="sx-diagram", width=f"{width:g}", height=f"{height:g}",
        viewBox=f"0 0 {width:g} {height:g}", role="img", tabindex=0, aria_label=f"{title}, {order.name}: {said}.",
        data_buffer=walk.buffer, **FONT,
    )  # fmt: skip


def _line(walk: Any, line: int, row: int, size: int, cell: int, used: dict[int, list[int]]) -> Iterator[Html]:
    y = TOP + ROW * row
    touched = sorted({step for e in range(line * size, (line + 1) * size) for step in used.get(e, ())})
    yield text_at(f"line {line:,}", LEFT - 8, y + 12, "sx-label", MUTED, text_anchor="end")
    for place in range(size):
        steps = used.get(line * size + place, [])
        said = f"element {line * size + place:,}: " + (f"step {steps[0]}" if steps else "fetched, not used here")
        yield element(
            "rect", element("title", said), x=LEFT + cell * place, y=y + 1, width=cell - 1, height=ROW - 2,
            fill="#e4f0fb" if steps else "none", stroke=RULE, stroke_dasharray=None if steps else "2 2",
            class_=f"sx-cell sx-lane-cell {'sx-cell-covered' if steps else 'sx-cell-apart'}",
            data_lit=" ".join(map(str, steps)) or None, data_used=len(steps),
        )  # fmt: skip
        if steps and cell >= 18:
            at = LEFT + cell * place + (cell - 1) / 2
            yield text_at(str(steps[0]), at, y + 12, "sx-label", MUTED, text_anchor="middle", font_size="9.5")
    yield element(
        "rect", x=LEFT - 1, y=y, width=cell * size + 1, height=ROW, fill="none", stroke="none", rx=2,
        class_="sx-line-touched", data_lit=" ".join(map(str, touched)) or "-",
    )  # fmt: skip
