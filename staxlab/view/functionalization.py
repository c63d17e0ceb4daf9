"""Functionalization (Section 4.9), drawn: the program before and after, and the storages that explain the difference.

A storage is a row of cells, one per element, with their byte offsets above. Below it each tensor that looks at the
storage has a lane: a cell that it covers holds the number of the element in the tensor itself, so a transpose shows as
numbers out of order. Where tensors of several dtypes look at a storage, an element may take several cells. What is
written has a mark as well as a colour: ``*`` where the write goes through this tensor, a small circle where it goes
through another one, which is what functionalization must let this tensor see.
"""

from __future__ import annotations

from typing import Any

from .charts import FONT, MUTED, TEXT, text_at
from .diagram import shortened
from .document import Pane, View
from .graph import graph_lines
from .listing import listing
from .markup import Html, element, join, table
from .provenance import TabStop, node_names
from .source import location_text

MOST_CELLS = 48  # drawn of a storage
_LANE, _TOP, _GAP = 26, 62, 3
# kind of cell: (fill, stroke, width of the stroke, what it means)
CELLS = {
    "written": ("#e2f5e7", "#0f6a2e", 2, "written through this tensor"),
    "changed": ("#fff3c9", "#8a5300", 2, "written through another tensor"),
    "covered": ("#e4f0fb", "#7b858f", 1, "looked at"),
    "apart": ("none", "#d5dae0", 1, "not looked at"),
}


def view(record: Any, full: bool = False) -> View:
    """A Functionalization (both programs, then its storages), or a single storage."""
    if not hasattr(record, "after"):
        return View("storage", (Pane("storage", "Storage", storage_markup(record), _size(record), record.format()),))
    parts = [_programs(record), *map(storage_markup, record.storages), _legend() if record.storages else None]
    parts += [element("p", f"No picture: {reason}.", class_="sx-note") for reason in record.left_out]
    backs = len(record.after.write_backs)
    summary = f"{_count(len(record.writes), 'write')}, {_count(backs, 'write-back')}"
    pane = Pane("functionalization", "Functionalization", join(p for p in parts if p), summary, record.format())
    return View("functionalization", (pane,), names=node_names(record.before.graph))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun if number == 1 else noun + 's'}"


def _size(row: Any) -> str:
    return row.extent


# -- the programs --------------------------------------------------------------------------------------------------


def _programs(record: Any) -> Html:
    writes = set(record.writes)
    before = list(record.before.graph)
    after = list(record.after.graph)
    backs = {node.name for node in record.after.write_backs}

    def before_remark(k: int) -> Html | None:
        return _remark("writes") if before[k].name in writes else None

    def after_remark(k: int) -> Html | None:
        name = _operator_name(after[k])
        if after[k].name in backs:
            return _remark("write-back")
        return _remark("scatter inverse") if name.endswith("_scatter") else None

    left = listing(graph_lines(before), "ir", name="before", caption="before: with writes", after=before_remark)
    right = listing(graph_lines(after), "ir", name="after", caption="after: values only", after=after_remark)
    note = element(
        "p",
        "Every write has become a new value. A write through a view becomes: look, compute, and put together the new "
        "contents of the whole with the view's scatter inverse (Proposition 4.4). Inputs that were written get their "
        "final contents by one copy_ at the end.",
        class_="sx-note",
    )
    body = join([element("div", left, right, class_="sx-columns"), note])
    if record.after.obstacles:
        rows = [[f"%{o.node}", o.reason, location_text(o.location)] for o in record.after.obstacles]
        body = join([body, table("What could not be made a value", ["node", "why", "written at"], rows)])
    return body


def _operator_name(node: Any) -> str:
    """The operator of a node without its overload: ``select_scatter``."""
    return getattr(node.target, "_opname", "")


def _remark(text: str) -> Html:
    return element("span", f"   # {text}", class_="sx-comment")


# -- the storages --------------------------------------------------------------------------------------------------


def kind_of(row: Any, lane: Any, place: int) -> str:
    """What a cell of a lane is: one of CELLS."""
    if place not in lane.cells:
        return "apart"
    return "written" if lane.writers else "changed" if place in row.written else "covered"


def storage_markup(row: Any) -> Html:
    """The picture of a storage, and the same as a table."""
    return element("figure", _picture(row), _lanes_table(row), class_="sx-listing")


def _picture(row: Any) -> Html:
    shown = min(row.size, MOST_CELLS)
    cell = max(26, 7 * len(str((row.size - 1) * row.itemsize)) + 6)
    labels = [f"%{lane.name}" + (f" = {lane.made_by} of %{lane.base}" if lane.base else "") for lane in row.lanes]
    left = 16 + 7 * max(len("element"), *(len(shortened(label, 36)) for label in labels))
    width = left + shown * cell + 12
    height = _TOP + len(row.lanes) * (_LANE + _GAP) + 12
    title = f"Storage of %{row.name}: {row.extent}"
    if shown < row.size:
        title += f" (the first {shown} drawn)"
    width = max(width, 7.3 * len(title) + 20)
    drawn = [text_at(title, 8, 16, "sx-count", TEXT, font_weight="600")]
    for name, step, y in (("byte", row.itemsize, 36), (row.unit, 1, 52)):
        drawn.append(text_at(name, left - 8, y, "sx-label", MUTED, text_anchor="end"))
        drawn += [
            text_at(str(k * step), left + (k + 0.5) * cell, y, "sx-label", MUTED, text_anchor="middle")
            for k in range(shown)
        ]
    stop = TabStop()
    for position, (lane, label) in enumerate(zip(row.lanes, labels, strict=True)):
        drawn.append(_lane(row, lane, label, left, _TOP + position * (_LANE + _GAP), cell, shown, stop))
    return element(
        "div",
        element(
            "svg", element("title", title), drawn, class_="sx-diagram sx-storage", width=f"{width:g}", height=height,
            viewBox=f"0 0 {width:g} {height}", role="group", aria_label=f"{title}; {len(row.lanes)} tensors look at it",
            data_group=True, **FONT,
        ),
        class_="sx-scroll sx-drawing",
    )  # fmt: skip


def _lane(row: Any, lane: Any, label: str, left: float, y: float, cell: float, shown: int, stop: TabStop) -> Html:
    spoken = f"{label}: {lane.geometry}; covers {_bytes_text(row, lane)}"
    spoken += f"; written by {', '.join('%' + name for name in lane.writers)}" if lane.writers else ""
    parts = [
        element("title", spoken),
        text_at(shortened(label, 36), left - 8, y + 17, "sx-label", TEXT, text_anchor="end"),
    ]
    for place in range(shown):
        kind = kind_of(row, lane, place)
        fill, stroke, weight, _ = CELLS[kind]
        x = left + place * cell
        parts.append(
            element(
                "rect", x=f"{x + 1:g}", y=f"{y:g}", width=f"{cell - 2:g}", height=_LANE, rx=3, fill=fill, stroke=stroke,
                stroke_width=weight, class_=f"sx-cell sx-cell-{kind}", data_element=place,
                stroke_dasharray="2 3" if kind == "apart" else None,
            )
        )  # fmt: skip
        if kind != "apart":
            parts.append(text_at(row.cell(lane, place), x + cell / 2, y + 17, "sx-count", TEXT, text_anchor="middle"))
    return element(
        "g", parts, class_="sx-lane", role="img", aria_label=spoken, data_lane=lane.name,
        **stop.attributes(lane.origins, f"%{lane.name}"),
    )  # fmt: skip


def _bytes_text(row: Any, lane: Any) -> str:
    ranges = row.bytes_of(lane)
    if not ranges:
        return "no bytes"
    words = [f"{first}–{last}" for first, last in ranges[:6]]
    more = f" and {len(ranges) - 6} more ranges" if len(ranges) > 6 else ""
    return f"bytes {', '.join(words)}{more}"


def _lanes_table(row: Any) -> Html:
    stop = TabStop()
    rows, attributes = [], []
    for lane in row.lanes:
        made = f"{lane.made_by} of %{lane.base}" if lane.base else lane.made_by
        writers = ", ".join(f"%{name}" for name in lane.writers) or "–"
        shape, stride = ", ".join([str(lane.shape), *lane.seen_as]), str(lane.stride)
        rows.append([f"%{lane.name}", made, shape, stride, lane.offset, _bytes_text(row, lane), writers])
        attributes.append(stop.attributes(lane.origins, f"%{lane.name}"))
    head = ["tensor", "made by", "shape", "stride (elements)", "offset (elements)", "covers", "written by"]
    folded = table(f"Tensors of the storage of %{row.name}", head, rows, row_attributes=attributes, data_group=True)
    return element("details", element("summary", "the same as a table"), folded, class_="sx-more")


def _legend() -> Html:
    said = "A number in a lane is the element's position in that tensor. * written through this tensor; ° written "
    said += "through another one, so that its value here changes too; -: the rest of an element; dashed: not looked at."
    return element("p", said, class_="sx-note")
