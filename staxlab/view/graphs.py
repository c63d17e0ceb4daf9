"""How a region fares with CUDA Graphs (Section 9.9), drawn: how its calls were served, why, and what is recorded.

The bar above has a part for the calls that were replayed and one for each reason why others ran as they are; parts
differ by hatching and by a letter, and the table below has the numbers.
"""

from __future__ import annotations

from typing import Any

from .charts import CHARACTER, MUTED, RULE, TEXT, chart, text_at
from .decisions import decisions_table
from .document import Pane
from .figures import SERIES
from .markup import Html, element, join, table
from .schedule import byte_text

WIDTH, LEFT, RIGHT, TOP, BAR = 640, 12, 12, 34, 26
TITLE = "CUDA Graphs"


def panes(record: Any) -> list[Pane]:
    """One pane: the state, the calls, the recordings, and the decisions of the static check."""
    head = [element("strong", record.name), f": {record.summary()}"]
    body = [element("p", head)]
    if record.where is not None:
        body.append(element("p", ["the region ends at ", element("code", str(record.where))], class_="sx-note"))
    served = calls_of(record)
    if served:
        body.append(calls_bar(record))
        rows = [[letter, words, count] for letter, words, count in served]
        body.append(table("How calls were served", ["part", "how", "calls"], rows))
    if record.recordings:
        rows = [
            [r.number, r.replays, byte_text(r.result_bytes), r.copied_inputs, byte_text(r.copied_bytes),
             "yes" if r.held else "no"]
            for r in record.recordings
        ]  # fmt: skip
        columns = ["recording", "replays", "results", "inputs copied", "bytes copied per call", "results held"]
        body.append(table("Recordings", columns, rows))
    body.append(decisions_table(record.decisions, "What the static check found"))
    if record.check.obstacles:
        body.append(element("p", f"Remedy: {record.check.obstacles[0].remedy}.", class_="sx-note"))
    return [Pane("cuda-graphs", TITLE, join(body), record.summary(), record.format())]


def calls_of(record: Any) -> list[tuple[str, str, int]]:
    """(letter, how, how many) for calls by what became of them."""
    found = [("replayed", record.replays)] if record.replays else []
    found += [(f"run as it is: {reason}", count) for reason, count in record.direct]
    return [("ABCDEFGHIJ"[k], words, count) for k, (words, count) in enumerate(found)]


def calls_bar(record: Any) -> Html:
    """All calls as one bar."""
    served = calls_of(record)
    whole = sum(count for _, _, count in served)
    room = WIDTH - LEFT - RIGHT
    title = f"{whole:,} call{'' if whole == 1 else 's'} of {record.name}"
    said = "; ".join(f"{letter}: {words}, {count:,} calls" for letter, words, count in served)
    patterns, parts, at = [], [], float(LEFT)
    for k, (letter, words, count) in enumerate(served):
        size = count / whole * room
        colour = SERIES[k % len(SERIES)]
        key = f"sx-graph-hatch-{k}"
        line = element("path", d=("M0 3H6", "M0 6L6 0", "M0 0L6 6", "M3 0V6")[k % 4], stroke=colour, stroke_width=1.4)
        patterns.append(element("pattern", line, id=key, width=6, height=6, patternUnits="userSpaceOnUse"))
        fill = colour if k == 0 and record.replays else f"url(#{key})"
        parts.append(
            element("rect", element("title", f"{letter}: {words}, {count:,} calls"), x=f"{at:.1f}", y=TOP,
                    width=f"{size:.1f}", height=BAR, fill=fill, stroke=colour, data_calls=count)
        )  # fmt: skip
        if size > 2 * CHARACTER:
            middle = {"text_anchor": "middle", "font_weight": "600"}
            parts.append(text_at(letter, at + size / 2, TOP + BAR + 14, "sx-count", TEXT, **middle))
        at += size
    axis = element("path", d=f"M{LEFT} {TOP + BAR}H{WIDTH - RIGHT}", stroke=RULE, class_="sx-chart-axis")
    drawn = [
        element("title", title),
        element("desc", said),
        element("defs", patterns),
        text_at(title, LEFT, 16, "sx-count", TEXT, font_weight="600"),
        *parts,
        axis,
        text_at("0", LEFT, TOP + BAR + 30, "sx-label", MUTED),
        text_at("calls (count)", WIDTH / 2, TOP + BAR + 30, "sx-label", MUTED, text_anchor="middle"),
        text_at(f"{whole:,}", WIDTH - RIGHT, TOP + BAR + 30, "sx-label", MUTED, text_anchor="end"),
    ]
    return chart(join(drawn), title, said, WIDTH, TOP + BAR + 40)
