"""Coalescing (Section 9.1), drawn: the lanes of a warp across, the sectors of memory down, a cell where they meet.

A coalesced access is a staircase: neighbouring lanes share a sector, or sit in the next one. An access that steps over
rows is a diagonal with one lane to a row, and the bar at the right shows how little of each sector was wanted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..measure.coalescing import LINE, SECTOR
from .charts import MUTED, RULE, TEXT, chart, text_at
from .document import Pane, View
from .markup import Html, element, join, table

LEFT, TOP, CELL, ROW, BAR = 92, 68, 11, 11, 64
MOST_SECTORS = 34  # rows of a picture


def view(record: Any, full: bool = False) -> View:
    """The accesses of a kernel, or of a node in two tilings side by side."""
    if hasattr(record, "flat"):
        return View("tilings", (_comparison(record),))
    pictures = element("div", [picture(access) for access in record.accesses], class_="sx-columns")
    body = join([pictures, _table(record), *_notes(record)])
    title = f"Sectors that {record.title} touches"
    return View("coalescing", (Pane("coalescing", title, body, record.summary(), record.format()),))


def _table(record: Any) -> Html:
    head = [
        "access",
        "in the kernel",
        "bytes of a lane",
        "sectors of an instruction",
        "least",
        "efficiency",
        "the lanes",
    ]
    return table(f"One instruction of a warp, on average, in {record.title}", head, record.rows())


def _notes(record: Any) -> list[Html]:
    sampled = (
        f"Counted over {len(record.programs)} of the program instances, those at the edges of the grid among them."
    )
    notes = [element("p", sampled, class_="sx-note")]
    return notes + [element("p", f"Not known beforehand: {text}.", class_="sx-note") for text in record.left_out]


def _comparison(record: Any) -> Pane:
    parts: list[Html] = []
    for half in (record.flat, record.chosen):
        parts += [
            element("p", f"{half.title}: {half.summary()}", class_="sx-heading"),
            element("div", [picture(access) for access in half.accesses], class_="sx-columns"),
        ]
    head = ["access", "sectors in 1-D", "efficiency", "sectors as tiled", "efficiency"]
    parts.append(table("One instruction of a warp, on average", head, record.rows()))
    parts += _notes(record.flat)
    return Pane("tilings", "One dimension against the tiling chosen", join(parts), record.summary(), record.format())


def picture(access: Any) -> Html:
    """The first instruction of the first warp: lanes across, sectors down."""
    instruction = access.first[0] if access.first else None
    sectors = instruction.sectors if instruction is not None else ()
    shown = sectors[:MOST_SECTORS]
    title = f"{access.role} {access.buffer}"
    count = f"{len(sectors)} sector{'' if len(sectors) == 1 else 's'}"
    needed = f"{instruction.least_sectors if instruction else 0} needed"
    said = f"{title}: the first instruction of a warp touches {count}, {needed}; {access.verdict()}."
    height = TOP + ROW * max(len(shown), 1) + (34 if len(sectors) > len(shown) else 20)
    drawn = [
        element("title", title),
        element("desc", said),
        text_at(title, 6, 16, "sx-count", TEXT, font_weight="600"),
        text_at(f"{count}, {needed}; {access.width} bytes of a lane", 6, 32, "sx-label", MUTED),
        *_axis(),
        *(part for row, sector in enumerate(shown) for part in _sector(instruction, sector, row, shown)),
    ]
    if len(sectors) > len(shown):
        drawn.append(text_at(f"and {len(sectors) - len(shown)} more", LEFT, height - 18, "sx-label", MUTED))
    drawn.append(text_at("sector (byte address)", 6, height - 5, "sx-label", MUTED))
    drawn.append(text_at("wanted (of 32 B)", LEFT + 32 * CELL + 4, height - 5, "sx-label", MUTED))
    return chart(drawn, title, said, LEFT + 32 * CELL + BAR + 64, height)


def _axis() -> Iterator[Html]:
    yield text_at("lane (number)", LEFT, TOP - 17, "sx-label", MUTED)
    for lane in (0, 8, 16, 24, 31):
        yield text_at(str(lane), LEFT + CELL * lane + CELL / 2, TOP - 4, "sx-label", MUTED, text_anchor="middle",
                      font_size="9.5")  # fmt: skip


def _sector(instruction: Any, sector: int, row: int, shown: tuple[int, ...]) -> Iterator[Html]:
    y = TOP + ROW * row
    begin = sector * SECTOR
    if row and shown[row - 1] // (LINE // SECTOR) != sector // (LINE // SECTOR):
        yield element("path", d=f"M{LEFT - 4} {y}H{LEFT + 32 * CELL + BAR}", class_="sx-chart-axis", stroke=RULE)
    yield text_at(f"{begin:,}", LEFT - 8, y + 9, "sx-label", MUTED, text_anchor="end", font_size="9.5")
    wanted: set[int] = set()
    for lane, address in enumerate(instruction.addresses):
        if address is None:
            continue
        bytes_ = set(range(max(address, begin), min(address + instruction.width, begin + SECTOR)))
        if not bytes_:
            continue
        wanted |= bytes_
        said = f"lane {lane}: {len(bytes_)} bytes from address {max(address, begin):,}"
        yield element(
            "rect", element("title", said), x=LEFT + CELL * lane, y=y + 1, width=CELL - 1, height=ROW - 2,
            fill="#e4f0fb", stroke=RULE, class_="sx-cell sx-cell-covered", data_lane=lane, data_sector=sector,
        )  # fmt: skip
    left = LEFT + 32 * CELL + 8
    yield element("rect", x=left, y=y + 2, width=BAR - 8, height=ROW - 4, fill="none", stroke=RULE,
                  stroke_dasharray="2 2", class_="sx-cell sx-cell-apart")  # fmt: skip
    yield element("rect", element("title", f"{len(wanted)} of {SECTOR} bytes wanted"), x=left, y=y + 2,
                  width=f"{(BAR - 8) * len(wanted) / SECTOR:.1f}", height=ROW - 4, fill="#e4f0fb", stroke=RULE,
                  class_="sx-cell sx-cell-covered", data_wanted=len(wanted))  # fmt: skip
    yield text_at(f"{len(wanted)}", left + BAR - 2, y + 9, "sx-label", MUTED, font_size="9.5")
