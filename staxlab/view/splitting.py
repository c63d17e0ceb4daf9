"""Where reductions are split (Section 6.5), drawn: a cell for each shape of a reduction, outputs across and lengths up.

Both axes are logarithmic: from cell to cell a number doubles. A cell holds the number of segments, a dot where nothing
is split; the shades of the four regions only repeat what the numbers say. Example 6.2 has a frame.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .charts import MUTED, RULE, TEXT, chart, text_at
from .document import Pane, View
from .markup import Html, element, join, table

CELL, ROW = 46, 19
LEFT, RIGHT, TOP, BOTTOM = 116, 16, 58, 50  # margins
# Regions by the least number of segments: style, literal fill, what the legend says.
REGIONS: tuple[tuple[int, str, str, str], ...] = (
    (1, "sx-cell sx-cell-apart", "none", "not split"),
    (2, "sx-cell sx-cell-covered", "#e8eef7", "2 to 15"),
    (16, "sx-cell sx-cell-changed", "#fff3c9", "16 to 255"),
    (256, "sx-cell sx-cell-written", "#e2f5e7", "256 and more"),
)


def view(record: Any, full: bool = False) -> View:
    """The map, and the same as a table."""
    head = ["n_r \\ n", *(f"{n:,}" for n in record.outputs)]
    cells = element("details", element("summary", "the same as a table"), table(record.title, head, record.rows()),
                    class_="sx-more")  # fmt: skip
    note = element("p", record.facts() + ".", class_="sx-note")
    body = join([split_chart(record), note, cells])
    return View("split-map", (Pane("splitting", record.title, body, "", record.format()),))


def region_of(segments: int) -> tuple[int, str, str, str]:
    """The last region whose least number of segments is reached."""
    return [region for region in REGIONS if segments >= region[0]][-1]


def split_chart(record: Any) -> Html:
    """The cells with their axes, the legend and the mark."""
    base = TOP + ROW * len(record.lengths)
    right = LEFT + CELL * len(record.outputs)
    width, height = max(right + RIGHT, 640), base + BOTTOM
    said = _spoken(record)
    drawn = [
        element("title", record.title),
        element("desc", said),
        text_at(record.title, 12, 18, "sx-count", TEXT, font_weight="600"),
        *_legend(record),
        *_cells(record, base),
        *_axes(record, base, right),
    ]
    return chart(drawn, record.title, said, width, height)


def _cells(record: Any, base: int) -> Iterator[Html]:
    for column, n in enumerate(record.outputs):
        for row, n_r in enumerate(record.lengths):
            segments = record.segments(n, n_r)
            _, style, fill, _ = region_of(segments)
            x, y = LEFT + column * CELL, base - (row + 1) * ROW
            what = "not split" if segments == 1 else f"{segments:,} segments"
            yield element(
                "rect", element("title", f"n = {n:,}, n_r = {n_r:,}: {what}"), x=x + 1, y=y + 1, width=CELL - 2,
                height=ROW - 2, rx=2, fill=fill, stroke=RULE, class_=style, data_n=n, data_length=n_r,
                data_segments=segments,
            )  # fmt: skip
            text = "·" if segments == 1 else str(segments)
            style, colour = ("sx-label", MUTED) if segments == 1 else ("sx-count", TEXT)
            yield text_at(text, x + CELL / 2, y + ROW - 6, style, colour, text_anchor="middle")
    if record.mark is not None and record.mark[0] in record.outputs and record.mark[1] in record.lengths:
        x = LEFT + record.outputs.index(record.mark[0]) * CELL
        y = base - (record.lengths.index(record.mark[1]) + 1) * ROW
        yield element("rect", element("title", "Example 6.2"), x=x, y=y, width=CELL, height=ROW, fill="none",
                      stroke="#0b57b0", stroke_width="2.2", class_="sx-chart-line", data_mark=True)  # fmt: skip


def _axes(record: Any, base: int, right: int) -> Iterator[Html]:
    for column, n in enumerate(record.outputs):
        yield text_at(f"{n:,}", LEFT + (column + 0.5) * CELL, base + 16, "sx-label", MUTED, text_anchor="middle")
    for row, n_r in enumerate(record.lengths):
        yield text_at(f"{n_r:,}", LEFT - 8, base - row * ROW - 6, "sx-label", MUTED, text_anchor="end")
    words = "n: outputs (elements, doubling)"
    yield text_at(words, (LEFT + right) / 2, base + 38, "sx-label", MUTED, text_anchor="middle")
    yield text_at("n_r: merged into each (elements, doubling)", 0, 0, "sx-label", MUTED, text_anchor="middle",
                  transform=f"translate(16 {(TOP + base) / 2:g}) rotate(-90)")  # fmt: skip


def _legend(record: Any) -> Iterator[Html]:
    x = 12.0
    for _, style, fill, words in REGIONS:
        yield element("rect", x=f"{x:g}", y=31, width=12, height=12, rx=2, fill=fill, stroke=RULE, class_=style)
        yield text_at(words, x + 17, 41, "sx-label", MUTED)
        x += 17 + 7 * len(words) + 20
    if record.mark is not None:
        yield element("rect", x=f"{x:g}", y=30, width=14, height=14, fill="none", stroke="#0b57b0", stroke_width="2.2",
                      class_="sx-chart-line")  # fmt: skip
        yield text_at("Example 6.2", x + 20, 41, "sx-label", MUTED)


def _spoken(record: Any) -> str:
    """The picture in words: the boundaries, and how the count grows along the axes."""
    counts = {(n, n_r): record.segments(n, n_r) for n in record.outputs for n_r in record.lengths}
    cut = [place for place, segments in counts.items() if segments > 1]
    if not cut:
        return "Nothing is split."
    most = max(counts, key=counts.get)
    parts = [
        f"Split from n_r = {min(n_r for _, n_r in cut):,} on and up to n = {max(n for n, _ in cut):,} outputs",
        f"most segments, {counts[most]:,}, at n = {most[0]:,} and n_r = {most[1]:,}",
    ]
    if record.mark is not None:
        n, n_r = record.mark
        parts.append(f"Example 6.2 at n = {n} and n_r = {n_r:,}: {record.segments(n, n_r)} segments")
    return "; ".join(parts) + "."
