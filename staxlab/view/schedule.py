"""The schedule (Section 7.1), drawn: a row per node with its iteration space, its reads and writes, and their bytes.

The bar behind each byte count is proportional to the largest traffic of any node, so the node that costs the time is
the one with the long bar; reads and writes are told apart by hatching and by their label as well as by colour.
"""

from __future__ import annotations

from typing import Any

from .decisions import decisions_table
from .dependences import dependence_diagram, schedule_edges
from .document import Pane
from .listing import linked_span
from .markup import Html, element, join, table
from .provenance import TabStop

SMALLEST_WRITE = 4.0  # however few bytes are written, their block is as wide as one stroke of its hatching


def byte_text(count: float) -> str:
    """``33,554,432`` as ``32 MiB``: three significant digits and a binary unit."""
    value = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if value < 1024 or unit == "TiB":
            return f"{int(value)} B" if unit == "B" else f"{value:.3g} {unit}"
        value /= 1024
    raise AssertionError


def traffic_bar(read: int, written: int, largest: int) -> Html:
    """Reads and writes as one horizontal bar; ``largest`` fills the whole width."""
    width, height = 120.0, 12.0
    scale = width / max(largest, 1)
    label = f"reads {byte_text(read)}, writes {byte_text(written)}"
    parts = [element("title", label)]
    if read:
        parts.append(_block(0, read * scale, height, "read", "#2f6fb5"))
    if written:
        wide = max(written * scale, SMALLEST_WRITE)
        start = min(read * scale, width - wide)
        parts.append(_block(start, wide, height, "write", "#b3541e"))
        parts += [_stroke(start + offset, height) for offset in range(1, int(wide) - 2, 5)]
    return element(
        "svg", parts, class_="sx-bar-chart", width=int(width), height=int(height), viewBox=f"0 0 {width:g} {height:g}",
        role="img", aria_label=label,
    )  # fmt: skip


def _block(start: float, wide: float, height: float, kind: str, fill: str) -> Html:
    return element(
        "rect", x=f"{start:.1f}", y=0, width=f"{wide:.1f}", height=f"{height:g}", class_=f"sx-{kind}", fill=fill
    )


def _stroke(x: float, height: float) -> Html:
    return element("path", d=f"M{x:g} {height:g}l3 {-height:g}", stroke="#ffffff", class_="sx-hatch")


def space_text(node: Any) -> str:
    """The iteration space: ``64`` or ``64 | 128`` with the reduced loops after the bar."""
    if node.members and node.product is not None:
        return space_text(node.product)
    if node.members:
        return f"{node.rows:,} rows"
    text = " × ".join(map(str, node.ranges)) or "1"
    if node.kind in ("reduction", "scan", "template"):
        text += " | " + (" × ".join(map(str, node.reduction_ranges)) or "1")
    return text


def panes(record: Any) -> list[Pane]:
    """The table of nodes, a legend, and the decisions that formed them."""
    from ..measure.bytes import node_operations

    totals = [(record.bytes_read(node), record.bytes_written(node)) for node in record.nodes]
    largest = max((read + written for read, written in totals), default=1)
    stop = TabStop()
    rows, attributes = [], []
    for node, (read, written) in zip(record.nodes, totals, strict=True):
        what = node.reduction or (str(node.extern.operator) if node.extern else "")
        rows.append(
            [
                node.name,
                _members(record, node) if node.members else f"{node.kind} {what}".strip(),
                space_text(node),
                [traffic_bar(read, written, largest), element("span", byte_text(read + written), class_="sx-bar-text")],
                _accesses(record, node.reads),
                _accesses(record, node.writes) if node.writes else ", ".join(node.buffers),
                f"{node_operations(record, node):,}",
            ]
        )
        attributes.append(stop.attributes(node.origins, node.name))
    head = ["node", "kind", "space (outer | reduced)", "traffic", "reads", "writes", "operations"]
    parts = [
        table(
            "Nodes in execution order",
            head,
            rows,
            row_attributes=attributes,
            class_="sx-table sx-schedule",
            data_group=True,
        ),
        element(
            "p", "Bars: plain = bytes read, hatched = bytes written; the longest is the largest node.", class_="sx-note"
        ),
    ]
    drawn = dependence_diagram(*schedule_edges(record), "Dependence graph")
    parts.append(element("details", element("summary", "dependence graph, with kernels"), drawn, class_="sx-more"))
    if record.decisions:
        parts.append(decisions_table(record.decisions, "How nodes were formed and ordered"))
        said = "Merge by merge, with a map of all pairs: staxlab.measure.fusion_gap.fusion_history(compilation)."
        parts.append(element("p", said, class_="sx-note"))
    total = sum(read + written for read, written in totals)
    count = f"{len(record.nodes)} node{'' if len(record.nodes) == 1 else 's'}"
    summary = f"{count}, {byte_text(total)} moved, for {record.device.name}"
    return [Pane("schedule", "Schedule", join(parts), summary, record.format())]


def _members(record: Any, node: Any) -> Html:
    """What a fused node does in each row, or on each tile of a product, one after the other."""
    from ..schedule.epilogues import saved_bytes

    where, stays_in = ("on each tile", "registers") if node.product else ("for each row", "the row")
    entries = []
    for member in node.members:
        what = f"{member.name}: {member.kind} {member.reduction or ''}".strip()
        space = element("span", f" {space_text(member)}", class_="sx-muted")
        stays = [b for b in member.buffers if b not in node.buffers]
        note = element("span", f", {', '.join(stays)} stays in {stays_in}", class_="sx-muted") if stays else ""
        entries.append(element("li", linked_span(what, member.origins), space, note))
    parts = [element("span", f"fused, {where}:"), element("ol", entries, class_="sx-plain")]
    if node.product is not None:
        saved = saved_bytes(node, record.layouts[node.product.buffers[0]].dtype.itemsize)
        parts.append(element("span", f"apart they would move {byte_text(saved)} more", class_="sx-muted"))
    return join(parts)


def _accesses(schedule: Any, accesses: Any) -> Html:
    entries = []
    for access in accesses:
        conditional = " where its condition holds" if access.conditional else ""
        size = f" {byte_text(schedule.bytes_of(access))}{conditional}"
        where = element("code", f"{access.buffer}[{access.index}]")
        entries.append(element("li", where, element("span", size, class_="sx-muted")))
    return element("ul", entries, class_="sx-plain") if entries else linked_span("–", ())
