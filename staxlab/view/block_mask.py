"""A block mask drawn (Figure 9.3): the positions that are visible, and beside them the classes of the blocks.

Full blocks are filled, partial ones shaded and crossed by a line, empty ones left out. Beyond :data:`MOST_CELLS` blocks
a side several share a cell, which then is of a class only if all of them are. Positions are evaluated for the picture;
where there are too many, or the visible ones form too many runs, a sentence stands in their place.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..attention.block_mask import EMPTY, FULL, NAMES, PARTIAL, coarsened
from ..errors import StaxError
from .charts import MUTED, RULE, TEXT, chart, text_at
from .document import Pane, View
from .markup import Html, element, join, table

LEFT, TOP, SIDE, BOTTOM = 64, 62, 320, 64  # pixels
MOST_CELLS = 64  # a side of the grid as drawn
MOST_POSITIONS = 1 << 22  # evaluated for a picture
MOST_RUNS = 6000  # of visible positions that are drawn
MOST_GRIDS = 4  # of batch elements and heads that are drawn
MOST_ROWS = 32  # of batch elements and heads in the table

LOOK = {
    FULL: {"fill": "#2f6fb5", "class_": "sx-read"},
    PARTIAL: {"fill": "#e4f0fb", "class_": "sx-cell sx-cell-covered", "stroke": RULE, "stroke_width": "0.6"},
}


def view(record: Any, full: bool = False) -> View:
    """A pane for each of the first grids, then the counts of all."""
    batch, heads, queries, keys = record.shape
    grids = [(b, h) for b in range(batch) for h in range(heads)]
    if not grids or 0 in (queries, keys):
        body = element("p", record.summary(), class_="sx-note")
        return View("block mask", (Pane("block-mask", "Block mask", body, record.summary(), record.format()),))
    counts = [count.cpu() for count in record.counts()]
    panes = []
    for b, h in grids[:MOST_GRIDS]:
        where = f"batch element {b}, head {h}" if len(grids) > 1 else "Block mask"
        own = [int(count[b, h]) for count in counts]
        pictures = [positions_picture(record, b, h), blocks_picture(record, b, h)]
        summary = record.summary() if len(grids) == 1 else ", ".join(
            f"{n:,} {NAMES[kind]}" for n, kind in zip(own, (PARTIAL, FULL, EMPTY), strict=True)
        )  # fmt: skip
        key = "block-mask" if len(grids) == 1 else f"block-mask-{b}-{h}"
        body = element("div", pictures, class_="sx-columns")
        panes.append(Pane(key, where, body, summary, record.format(b, h)))
    if len(grids) > 1:
        shown = grids[:MOST_ROWS]
        rows = [(f"batch {b}, head {h}", *(int(count[b, h]) for count in counts)) for b, h in shown]
        caption = "Blocks of each batch element and head"
        caption += f" (the first {MOST_ROWS} of {len(grids):,})" if len(grids) > MOST_ROWS else ""
        body = table(caption, ("grid", "partial", "full", "empty"), rows)
        panes.append(Pane("block-mask-counts", "Counts", body, record.summary(), record.summary()))
    return View("block mask", tuple(panes))


def positions_picture(record: Any, batch: int = 0, head: int = 0) -> Html:
    """The visible positions of one grid, run by run."""
    queries, keys = record.seq_lengths
    if queries * keys > MOST_POSITIONS:
        return _sentence(f"{queries:,} x {keys:,} positions are not drawn one by one; the blocks are.")
    try:
        visible = record.positions(batch, head).cpu()
    except (StaxError, RuntimeError) as error:
        return _sentence(f"The positions cannot be evaluated here: {str(error).splitlines()[0]}")
    runs = list(visible_runs(visible))
    if len(runs) > MOST_RUNS:
        return _sentence(f"The visible positions form {len(runs):,} runs, too many to draw; the blocks are drawn.")
    total = sum(height * (stop - start) for _, height, start, stop in runs)
    title = f"{record.name}: positions"
    said = f"{total:,} of {queries:,} x {keys:,} positions are visible, in {len(runs):,} rectangles"
    width, height = _extent(queries, keys)
    path = "".join(f"M{start} {top}h{stop - start}v{high}h{start - stop}z" for top, high, start, stop in runs)
    drawn = [
        element("path", d=path, transform=f"translate({LEFT} {TOP}) scale({width / keys:.6g} {height / queries:.6g})",
                data_runs=len(runs), **LOOK[FULL]),
    ]  # fmt: skip
    share = f"visible: {100 * total / (queries * keys):.4g}% of the positions"
    axes = ("key position kv_idx", "query position q_idx")
    return _picture(drawn, title, said, (width, height), (queries, keys), axes, [(FULL, share)])


def visible_runs(visible: Any) -> Iterator[tuple[int, int, int, int]]:
    """Rectangles (top, height, start, stop) that cover the True positions of a bool tensor [N, M] once: the runs of
    each row, rows that are alike taken together."""
    import torch

    rows, count = visible.unique_consecutive(dim=0, return_counts=True)
    padded = torch.nn.functional.pad(rows.to(torch.int8), (1, 1))
    edges = padded.diff(dim=1)
    starts, stops = ((edges == sign).nonzero().tolist() for sign in (1, -1))
    tops = [0, *count.cumsum(0).tolist()]
    heights = count.tolist()
    for (row, start), (_, stop) in zip(starts, stops, strict=True):
        yield tops[row], heights[row], start, stop


def blocks_picture(record: Any, batch: int = 0, head: int = 0) -> Html:
    """The classes of the blocks of one grid."""
    classes = record.classes()[batch, head].cpu()
    counts = {kind: int((classes == kind).sum()) for kind in (FULL, PARTIAL, EMPTY)}
    shown, step = coarsened(classes, MOST_CELLS)
    rows, columns = shown.shape
    width, height = _extent(rows, columns)
    cell = (width / columns, height / rows)
    title = f"{record.name}: {classes.shape[0]} x {classes.shape[1]} blocks"
    said = ", ".join(f"{n:,} {NAMES[kind]}" for kind, n in counts.items())
    said += f"; a cell stands for {step} x {step} blocks" if step > 1 else ""
    said += f". Row by row: {_spoken(shown)}" if rows <= 16 else ""
    drawn = [part for row, kinds in enumerate(shown.tolist()) for part in _row(row, kinds, cell)]
    if min(cell) >= 8:
        drawn.append(_grid_lines(rows, columns, cell))
    rows_each, columns_each = record.block_size
    axes = (f"blocks of {columns_each} keys", f"blocks of {rows_each} queries")
    legend = [(kind, f"{NAMES[kind]}: {n:,}") for kind, n in counts.items()]
    note = f"a cell is {step} x {step} blocks" if step > 1 else ""
    return _picture(drawn, title, said, (width, height), tuple(classes.shape), axes, legend, note)


def _spoken(shown: Any) -> str:
    parts = []
    for row, kinds in enumerate(shown.tolist()):
        runs = [f"{NAMES[kind]} {a}" + (f" to {b - 1}" if b - a > 1 else "") for kind, a, b in class_runs(kinds)]
        parts.append(f"{row}: {', '.join(runs) or 'all empty'}")
    return "; ".join(parts)


def class_runs(kinds: list[int]) -> Iterator[tuple[int, int, int]]:
    """(class, start, stop) of neighbours that are alike, empty ones left out."""
    start = 0
    for at in range(1, len(kinds) + 1):
        if at == len(kinds) or kinds[at] != kinds[start]:
            if kinds[start] != EMPTY:
                yield kinds[start], start, at
            start = at


def _row(row: int, kinds: list[int], cell: tuple[float, float]) -> Iterator[Html]:
    wide, high = cell
    y = TOP + row * high
    for kind, start, stop in class_runs(kinds):
        x = LEFT + start * wide
        said = f"row {row}, column {start}" + (f" to {stop - 1}" if stop - start > 1 else "") + f": {NAMES[kind]}"
        yield element(
            "rect", element("title", said), x=f"{x:.2f}", y=f"{y:.2f}", width=f"{(stop - start) * wide:.2f}",
            height=f"{high:.2f}", data_class=NAMES[kind], data_row=row, data_columns=f"{start} {stop}", **LOOK[kind],
        )  # fmt: skip
        if kind == PARTIAL:
            lines = "".join(f"M{x + k * wide:.2f} {y + high:.2f}l{wide:.2f} {-high:.2f}" for k in range(stop - start))
            yield element("path", d=lines, stroke=RULE, stroke_width="1", fill="none", class_="sx-heat-hatch")


def _grid_lines(rows: int, columns: int, cell: tuple[float, float]) -> Html:
    width, height = columns * cell[0], rows * cell[1]
    lines = [f"M{LEFT + k * cell[0]:.2f} {TOP}v{height:.2f}" for k in range(columns + 1)]
    lines += [f"M{LEFT} {TOP + k * cell[1]:.2f}h{width:.2f}" for k in range(rows + 1)]
    return element("path", d="".join(lines), stroke=RULE, stroke_width="0.5", stroke_dasharray="1 3", fill="none",
                   class_="sx-cell")  # fmt: skip


def _extent(rows: int, columns: int) -> tuple[float, float]:
    """Width and height of a grid whose longer side is SIDE; a side is never so short that nothing is seen."""
    longest = max(rows, columns)
    return max(SIDE * columns / longest, 12.0), max(SIDE * rows / longest, 12.0)


def _picture(
    drawn: list[Html],
    title: str,
    said: str,
    extent: tuple[float, float],
    sizes: tuple[int, int],
    axes: tuple[str, str],
    legend: list[tuple[int, str]],
    note: str = "",
) -> Html:
    """The frame, the axes with their ends, and the legend around what is drawn."""
    width, height = extent
    bottom = TOP + height
    frame = element("rect", x=LEFT, y=TOP, width=f"{width:g}", height=f"{height:g}", fill="none", stroke=RULE,
                    class_="sx-chart-axis")  # fmt: skip
    middle = TOP + height / 2
    words = [
        text_at(title, 8, 18, "sx-count", TEXT, font_weight="600"),
        text_at(axes[0], LEFT, 38, "sx-label", MUTED),
        text_at("0", LEFT, TOP - 6, "sx-label", MUTED),
        text_at(f"{sizes[1]:,}", LEFT + width, TOP - 6, "sx-label", MUTED, text_anchor="end"),
        text_at("0", LEFT - 6, TOP + 10, "sx-label", MUTED, text_anchor="end"),
        text_at(f"{sizes[0]:,}", LEFT - 6, bottom, "sx-label", MUTED, text_anchor="end"),
        text_at(axes[1], 14, max(middle, TOP + 70), "sx-label", MUTED, text_anchor="middle",
                transform=f"rotate(-90 14 {max(middle, TOP + 70):g})"),
    ]  # fmt: skip
    at, low = 8.0, max(bottom, TOP + 140) + 22
    for kind, label in legend:
        look = LOOK.get(kind, {"fill": "none", "stroke": RULE, "stroke_dasharray": "2 2", "class_": "sx-cell"})
        words.append(element("rect", x=f"{at:g}", y=f"{low - 10:g}", width=12, height=12, **look))
        if kind == PARTIAL:
            words.append(element("path", d=f"M{at:g} {low + 2:g}l12 -12", stroke=RULE, fill="none",
                                 class_="sx-heat-hatch"))  # fmt: skip
        words.append(text_at(label, at + 18, low, "sx-label", TEXT))
        at += 30 + 7.2 * len(label)
    if note:
        words.append(text_at(note, 8, low + 20, "sx-label", MUTED))
    longest = max(8 + 7.6 * len(title), LEFT + 7.2 * len(axes[0]))
    wide = max(LEFT + width + 16, at, longest)
    parts = [element("title", title), element("desc", said), *drawn, frame, *words]
    return chart(join(parts), title, said, wide, low + BOTTOM - 34)


def _sentence(words: str) -> Html:
    return element("p", words, class_="sx-note")
