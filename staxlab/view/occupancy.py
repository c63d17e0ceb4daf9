"""Occupancy (Section 9.1), drawn: what each resource allows, the scarcest marked, and what other amounts would give.

The first picture has a row for each resource and a cell for each block: filled where all four have room, empty where
this resource would have room for more. The curves keep the kernel as it is and vary one amount.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .charts import MUTED, RULE, TEXT, chart, text_at
from .document import Pane
from .little import curve as littles_curve
from .little import derivation
from .markup import Html, element, join, table
from .plots import Curve, Level, Mark, plot

ROW, TOP, LEFT, CELLS, RIGHT = 26, 48, 150, 330, 110


def panes(record: Any) -> list[Pane]:
    pictures = [resources(record), registers(record), block_size(record), littles_curve(record.in_flight)]
    rows = table("What each resource allows", ["resource", "the kernel takes", "blocks", "because"], record.rows())
    notes = element("ul", [element("li", fact) for fact in record.facts()], class_="sx-note")
    heading = element("summary", "bytes in flight, step by step")
    numbers = element("details", heading, derivation(record.in_flight), class_="sx-more")
    body = join([element("div", pictures, class_="sx-columns"), rows, notes, numbers])
    title = f"Occupancy of {record.usage.kernel} on {record.device.name}"
    return [Pane("occupancy", title, body, record.summary(), record.format())]


def resources(record: Any) -> Html:
    """A row of cells for each resource."""
    allowed = {bound.resource: bound.blocks for bound in record.bounds}
    shown = max(record.limits.blocks, 1)
    title = "Blocks that each resource has room for"
    words = [
        f"{name} {'any number' if blocks is None else blocks}{' (binds)' if name in record.binding else ''}"
        for name, blocks in allowed.items()
    ]
    said = f"{'; '.join(words)}: {record.blocks} blocks of {record.usage.warps} warps are resident."
    height = TOP + ROW * len(allowed) + 26
    drawn = [
        element("title", title),
        element("desc", said),
        text_at(title, 8, 18, "sx-count", TEXT, font_weight="600"),
        text_at(record.summary(), 8, 35, "sx-label", MUTED),
        *(part for row, bound in enumerate(record.bounds) for part in _resource(record, bound, row, shown)),
        text_at("blocks on one multiprocessor (count)", LEFT, height - 8, "sx-label", MUTED),
    ]
    return chart(drawn, title, said, LEFT + CELLS + RIGHT, height)


def _resource(record: Any, bound: Any, row: int, shown: int) -> Iterator[Html]:
    y, size = TOP + ROW * row, CELLS / shown
    binds = bound.resource in record.binding
    yield text_at(f"{'▸ ' if binds else ''}{bound.resource}", LEFT - 10, y + 16, "sx-count" if binds else "sx-label",
                  TEXT if binds else MUTED, text_anchor="end")  # fmt: skip
    room = shown if bound.blocks is None else min(bound.blocks, shown)
    for number in range(room):
        used = number < record.blocks
        state = "resident" if used else "room is left, another resource has none"
        said = f"{bound.resource}: block {number + 1}, {state}"
        yield element(
            "rect", element("title", said), x=f"{LEFT + number * size:.1f}", y=y + 3, width=f"{max(size - 1.5, 1):.1f}",
            height=ROW - 8, fill="#e4f0fb" if used else "none", stroke=RULE, stroke_dasharray=None if used else "2 2",
            class_=f"sx-cell sx-lane-cell {'sx-cell-covered' if used else 'sx-cell-apart'}",
            data_resource=bound.resource, data_resident=int(used),
        )  # fmt: skip
    if binds:
        yield element("rect", x=LEFT - 3, y=y, width=f"{max(room * size, 6) + 4:.1f}", height=ROW - 2, rx=3,
                      fill="none", stroke="#8a4600", stroke_width="1.6", class_="sx-chart-limit")  # fmt: skip
    label = "any number" if bound.blocks is None else f"{bound.blocks}{', binds' if binds else ''}"
    yield text_at(label, LEFT + CELLS + 10, y + 16, "sx-count" if binds else "sx-label", TEXT if binds else MUTED)


def registers(record: Any) -> Html:
    """Resident warps over registers per thread, everything else as it is."""
    found = record.by_registers()
    here = record.usage.registers
    steps = Curve("resident warps", tuple((float(count), float(warps)) for count, warps in found), steps=True)
    changes = [f"{count}: {warps}" for k, (count, warps) in enumerate(found) if not k or found[k - 1][1] != warps]
    said = f"Resident warps from so many registers on: {'; '.join(changes)}. The kernel takes {here}."
    return plot(
        "If a thread took more registers", said, ("registers per thread (count)", "resident warps (count)"), [steps],
        [Mark(f"this kernel, {here}", float(here), float(record.warps))],
        [Level(f"a multiprocessor holds {record.limits.warps}", y=float(record.limits.warps))],
    )  # fmt: skip


def block_size(record: Any) -> Html:
    """Resident warps over warps per block, with the registers per thread and shared memory per block as they are."""
    found = record.by_block_size()
    here = record.usage.warps
    line = Curve("resident warps", tuple((float(count), float(warps)) for count, warps in found))
    said = f"Resident warps by warps per block: {'; '.join(f'{count}: {warps}' for count, warps in found)}."
    return plot(
        "If a block had more or fewer warps", said, ("warps per block (count)", "resident warps (count)"), [line],
        [Mark(f"this kernel, {here}", float(here), float(record.warps))],
        [Level(f"a multiprocessor holds {record.limits.warps}", y=float(record.limits.warps))],
    )  # fmt: skip
