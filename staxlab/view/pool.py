"""The memory pool, drawn: what is lent and what rests on one bar, with the limit and the peak, above the numbers."""

from __future__ import annotations

from typing import Any

from .charts import CHARACTER, MUTED, RULE, TEXT, chart, text_at
from .document import Pane
from .figures import SERIES
from .markup import Html, element, join, table
from .schedule import byte_text

WIDTH, LEFT, RIGHT, TOP, BAR = 640, 12, 12, 40, 26
TITLE = "Memory pool"


def panes(record: Any) -> list[Pane]:
    """One pane: the bar, and a table of the numbers."""
    if record.missing:
        return [Pane("pool", TITLE, element("p", str(record), class_="sx-note"), "none", str(record))]
    rows = [list(row) for row in record.rows()]
    body = [bar(record), table("Memory of CPU results and temporaries", ["what", "bytes", "blocks"], rows)]
    body.append(element("p", f"{record.hit_rate:.1%} of {record.hits + record.misses:,} requests needed no memory of "
                             "the system.", class_="sx-note"))  # fmt: skip
    if record.emptied:
        said = f"Emptied {record.emptied:,} times because the system had no memory left."
        body.append(element("p", said, class_="sx-note"))
    return [Pane("pool", TITLE, join(body), _summary(record), str(record))]


def _summary(record: Any) -> str:
    return f"{byte_text(record.lent_bytes)} lent, {byte_text(record.resting_bytes)} resting"


def bar(record: Any) -> Html:
    """Lent memory plain, resting memory hatched, on one axis of bytes with a mark at the peak and one at the limit."""
    whole = max(record.held_bytes, record.peak_held_bytes, 1)
    shows_limit = record.limit_bytes <= 4 * whole
    end = max(whole, record.lent_bytes + record.limit_bytes if shows_limit else 0)

    def x(count: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * count / end

    lent, held, base = x(record.lent_bytes), x(record.held_bytes), TOP + BAR
    hatch = element(
        "pattern", element("path", d="M0 6L6 0", stroke=SERIES[1], stroke_width=1.4), id="sx-pool-hatch",
        width=6, height=6, patternUnits="userSpaceOnUse",
    )  # fmt: skip
    said = _spoken(record)
    drawn = [element("title", TITLE), element("desc", said), element("defs", hatch)]
    drawn.append(text_at(f"{TITLE}: lent (plain) and resting (hatched)", LEFT, 14, "sx-count", TEXT, font_weight="600"))
    drawn.append(element("rect", x=LEFT, y=TOP, width=f"{lent - LEFT:g}", height=BAR, fill=SERIES[0]))
    drawn.append(
        element("rect", x=f"{lent:g}", y=TOP, width=f"{held - lent:g}", height=BAR, fill="url(#sx-pool-hatch)",
                stroke=SERIES[1])
    )  # fmt: skip
    drawn.append(element("path", d=f"M{LEFT} {base}H{WIDTH - RIGHT}", stroke=RULE, class_="sx-edge"))
    marks = [(record.peak_held_bytes, "most held", "4 3")]
    if shows_limit:
        marks.append((record.lent_bytes + record.limit_bytes, "at the limit", "1 3"))
    for row, (count, name, dashes) in enumerate(marks):
        drawn.append(
            element("path", d=f"M{x(count):g} {TOP - 8}V{base + 8}", stroke=TEXT, stroke_dasharray=dashes,
                    class_="sx-edge")
        )  # fmt: skip
        words = f"{name} {byte_text(count)}"
        right = x(count) + 4 + CHARACTER * len(words) > WIDTH
        at = x(count) - 4 if right else x(count) + 4
        anchor = "end" if right else "start"
        drawn.append(text_at(words, at, base + 16 + 14 * row, "sx-label", MUTED, text_anchor=anchor))
    y = base + 16 + 14 * len(marks)
    drawn.append(text_at("0", LEFT, y, "sx-label", MUTED))
    drawn.append(text_at("memory (bytes)", WIDTH / 2, y, "sx-label", MUTED, text_anchor="middle"))
    drawn.append(text_at(byte_text(end), WIDTH - RIGHT, y, "sx-label", MUTED, text_anchor="end"))
    return chart(join(drawn), TITLE, said, WIDTH, y + 10)


def _spoken(record: Any) -> str:
    return (
        f"{record.lent_bytes:,} bytes are lent and {record.resting_bytes:,} rest, of at most {record.limit_bytes:,} "
        f"that may; the most ever held was {record.peak_held_bytes:,} bytes."
    )
