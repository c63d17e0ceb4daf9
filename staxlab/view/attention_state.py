"""The state of one program instance of attention, one block of keys after the other (Figure 9.2).

Above, the tiles of scores: a column of keys for each block, a row for each query of the instance; the greater a score,
the fuller its cell. A masked position has a cross, and a block that is skipped is an empty frame. Below, for each
query, what the instance holds: m, l, the length of its accumulator, and the factor that the last block multiplied it
with, beside a bar. Step by step the tiles appear; the last step is the end of the walk, and is what stands without
scripts.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ..measure.attention_state import number
from .charts import FONT, MUTED, RULE, TEXT, text_at
from .document import Pane
from .markup import Html, element, join
from .measures import table_markup

LEFT, TOP, CELL, GAP = 66, 76, 18, 8
BOARD, LINE = 66, 18  # room above the table of states, height of its rows
COLUMNS = ((66, "m"), (136, "l"), (206, "|acc|"), (276, "exp(m_old - m_new)"))
BAR_LEFT, BAR = 432, 120
MOST_CELLS = 1600


def panes(record: Any) -> list[Pane]:
    """One pane: the walk with a slider, and the table of all states."""
    body = join([walk_figure(record), table_markup(record.table())])
    title = f"One program instance, queries {record.queries[0]} to {record.queries[1] - 1}"
    return [Pane("attention-state", title, body, record.summary(), str(record))]


def walk_figure(record: Any) -> Html:
    """The tiles and the states; a sentence where there would be too many cells."""
    rows = record.queries[1] - record.queries[0]
    if rows * record.keys > MOST_CELLS:
        return element(
            "p", f"A drawing of {rows} x {record.keys} scores would explain nothing; the table has the states.",
            class_="sx-note",
        )  # fmt: skip
    words = ["nothing has been read: m = -inf, l = 0, acc = 0", *(step.words() for step in record.steps)]
    words.append("the end: o = acc / l and LSE = m + log(l)")
    return element(
        "figure", element("div", picture(record), class_="sx-scroll sx-drawing"), class_="sx-steps",
        data_steps=len(words) - 1, data_words=json.dumps(words), data_play=True,
    )  # fmt: skip


def picture(record: Any) -> Html:
    """The SVG: its elements carry the steps at which they are lit, are there, and what they say."""
    rows, last = record.queries[1] - record.queries[0], len(record.steps) + 1
    across = record.keys * CELL + (len(record.steps) - 1) * GAP
    board = TOP + rows * CELL + BOARD
    width, height = max(LEFT + across + 20, BAR_LEFT + BAR + 30, 560), board + rows * LINE + 16
    low, high = record.score_range
    title = f"Tiles of {record.tile[0]} x {record.tile[1]} scores, and the state (m, l, acc) of each query"
    drawn = [
        element("title", title),
        element("desc", record.summary()),
        text_at(title, 8, 18, "sx-count", TEXT, font_weight="600"),
        text_at(f"scores from {number(low)} (empty cell) to {number(high)} (full cell); cross: masked", 8, 35,
                "sx-label", MUTED),
        text_at("key", LEFT, 52, "sx-label", MUTED),
        text_at("query", 8, TOP - 6, "sx-label", MUTED),
        *_tiles(record, last, (low, high)),
        *_states(record, last, board),
    ]  # fmt: skip
    return element(
        "svg", drawn, class_="sx-diagram", width=f"{width:g}", height=f"{height:g}", role="img", tabindex=0,
        viewBox=f"0 0 {width:g} {height:g}", aria_label=f"{title}. {record.summary()}.", data_visits=record.visits,
        **FONT,
    )  # fmt: skip


def _shown(first: int, last: int) -> str:
    return " ".join(map(str, range(first, last + 1)))


def _tiles(record: Any, last: int, extent: tuple[float, float]) -> Iterator[Html]:
    rows = record.queries[1] - record.queries[0]
    for row in range(rows):
        yield text_at(str(record.queries[0] + row), LEFT - 8, TOP + row * CELL + 13, "sx-label", MUTED,
                      text_anchor="end")  # fmt: skip
    x = LEFT
    for number_of, step in enumerate(record.steps, start=1):
        wide, high = (step.keys[1] - step.keys[0]) * CELL, rows * CELL
        yield text_at(str(step.keys[0]), x, TOP - 6, "sx-label", MUTED)
        said = element("title", step.words())
        kind = "sx-cell-apart" if not step.visited else "sx-cell-changed" if step.kind == "partial" else ""
        yield element(
            "rect", said, x=x - 2, y=TOP - 2, width=wide + 4, height=high + 4, fill="none", stroke=RULE,
            stroke_width=1.2, stroke_dasharray=None if step.visited else "3 3", data_lit=str(number_of),
            data_block=step.block, data_kind=step.kind, class_=f"sx-cell sx-lane-cell sx-cell-apart {kind}",
        )  # fmt: skip
        if step.visited:
            yield element("g", list(_scores(step, x, extent)), data_shown=_shown(number_of, last))
        words = "skipped" if not step.visited else step.kind
        short = words if wide >= 7 * len(words) else words[0]
        yield text_at(short, x, TOP + high + 16, "sx-label", MUTED)
        x += wide + GAP


def _scores(step: Any, left: float, extent: tuple[float, float]) -> Iterator[Html]:
    low, high = extent
    for row, scores in enumerate(step.scores):
        for column, score in enumerate(scores):
            x, y = left + column * CELL, TOP + row * CELL
            if score == float("-inf"):
                yield element("path", element("title", "masked"), d=f"M{x + 5} {y + 5}l8 8m0 -8l-8 8",
                              class_="sx-chart-axis", stroke=RULE, fill="none", data_masked=True)  # fmt: skip
                continue
            share = (score - low) / (high - low) if high > low else 0.5
            # Size and shade say the same, so that neither has to be told apart from the ground.
            side = 3 + 13 * share
            yield element("rect", element("title", f"score {number(score)}"), x=f"{x + 9 - side / 2:.1f}",
                          y=f"{y + 9 - side / 2:.1f}", width=f"{side:.1f}", height=f"{side:.1f}", fill="#2f6fb5",
                          class_="sx-read", data_score=f"{score:.3g}")  # fmt: skip


def _states(record: Any, last: int, top: float) -> Iterator[Html]:
    """A line for each query: numbers that change with the steps, and the factor as a bar."""
    yield text_at("state after this block", 8, top - 26, "sx-count", TEXT, font_weight="600")
    yield text_at("query", 8, top - 6, "sx-label", MUTED)
    for x, name in COLUMNS:
        yield text_at(name, x, top - 6, "sx-label", MUTED)
    for x, end in ((BAR_LEFT, "0"), (BAR_LEFT + BAR, "1")):
        yield text_at(end, x, top - 6, "sx-label", MUTED, text_anchor="middle")
    for row in range(record.queries[1] - record.queries[0]):
        y = top + row * LINE
        yield text_at(str(record.queries[0] + row), LEFT - 24, y + 13, "sx-label", MUTED, text_anchor="end")
        yield from _line(record, row, last, y)


def _line(record: Any, row: int, last: int, y: float) -> Iterator[Html]:
    def texts(start: str, values: list[str], end: str) -> dict[str, str]:
        return {"0": start, **{str(k): value for k, value in enumerate(values, start=1)}, str(last): end}

    steps = record.steps
    said = (
        texts("-inf", [number(s.maximum[row]) for s in steps], f"LSE {number(record.lse[row])}"),
        texts("0", [number(s.total[row]) for s in steps], ""),
        texts("0", [number(s.norm[row]) for s in steps], f"|o| {number(record.norm[row])}"),
        texts("", [number(s.factor[row]) if s.visited else "not visited" for s in steps], ""),
    )
    for (x, name), found in zip(COLUMNS, said, strict=True):
        yield text_at(found[str(last)], x, y + 13, "sx-count", TEXT, data_texts=json.dumps(found), data_state=name)
    for k, step in enumerate(steps, start=1):
        if step.visited:
            label = element("title", f"factor {number(step.factor[row])}")
            yield element("rect", label, x=BAR_LEFT, y=y + 3, width=f"{max(step.factor[row] * BAR, 0.5):.1f}",
                          height=LINE - 7, fill="#2f6fb5", class_="sx-read", data_shown=str(k),
                          visibility="hidden")  # fmt: skip
    yield element("path", d=f"M{BAR_LEFT + BAR} {y + 1}v{LINE - 3}", class_="sx-chart-axis", stroke=RULE)
