"""What attention moves (Theorem 9.2), drawn twice on logarithmic axes: against the length, and against the storage.

Against the length: operator by operator, in tiles, and every element once. Against the on-chip storage: the largest
tiles that fit, beside the order N^2 d^2 / S and what the operators move whatever the storage is.
"""

from __future__ import annotations

from typing import Any

from ..measure.tables import bytes_text
from .document import Pane
from .log_plots import log_plot
from .markup import Html, element, join
from .measures import table_markup
from .plots import Curve, Level, Mark

LENGTHS = tuple(1 << e for e in range(8, 18))
MEGA = 1e6


def panes(record: Any) -> list[Pane]:
    """One pane: both pictures and the table."""
    charts = [length_chart(record), capacity_chart(record)]
    body = join([element("div", chart) for chart in charts if chart] + [table_markup(record.table())])
    return [Pane("attention-traffic", record.table().caption, body, record.summary(), str(record))]


def length_chart(record: Any) -> Html:
    """Bytes against as many queries as keys, or, where these are not equally many, against the keys; what a mask leaves
    is a mark."""
    square = record.queries == record.keys
    make = record.with_length if square else record.with_keys
    curve = [make(n) for n in sorted({*LENGTHS, record.keys})]
    lines = [
        Curve(name, tuple((float(t.keys), value(t) / MEGA) for t in curve))
        for name, value in (
            ("operator by operator", lambda t: t.operator_bytes),
            (f"tiles of {record.tile[0]} x {record.tile[1]}", lambda t: t.nbytes),
            ("every element once", lambda t: t.compulsory_bytes),
        )
    ]
    marks = [Mark("with its mask" if record.masked else "this one", float(record.keys), record.nbytes / MEGA)]
    against = "its length" if square else f"the keys of {record.queries:,} quer{'y' if record.queries == 1 else 'ies'}"
    title = f"Traffic of attention against {against}, {record.batch * record.query_heads} heads of {record.head_size}"
    last = curve[-1]
    grows = "The first two grow with the square of N, the last in proportion to N." if square else ""
    said = (
        f"{record.summary()}. All blocks visited, at {last.keys:,} keys: {bytes_text(last.operator_bytes)} operator by "
        f"operator, {bytes_text(last.nbytes)} in tiles, {bytes_text(last.compulsory_bytes)} at least. {grows}"
    )
    axis = "length N (queries and keys)" if square else "keys (count)"
    return log_plot(title, said, (axis, "traffic (MB)"), lines, marks, base=2)


def capacity_chart(record: Any) -> Html | None:
    """Elements of one head against the storage on the chip; nothing where not even a few sizes of tiles differ."""
    one = _one_head(record)
    curve = one.against_capacity()
    if len(curve) < 2:
        return None
    n, d = one.queries, one.head_size
    order = tuple(
        (float(t.capacity), float(n) ** 2 * d**2 / t.capacity) for t in curve if d <= t.capacity <= n * d
    )  # fmt: skip
    ends = (float(curve[0].capacity), float(curve[-1].capacity))
    lines = [
        Curve("largest tiles", tuple((float(t.capacity), float(t.elements)) for t in curve)),
        Curve("order N^2 d^2 / S", order),
        Curve("operators", tuple((s, float(one.operator_elements)) for s in ends)),
    ]
    inside = curve[0].capacity <= one.capacity <= curve[-1].capacity
    levels = [Level(f"S = {one.capacity:,}", x=float(one.capacity))] if inside else []
    title = f"One head, {n:,} queries and keys of {d}: traffic against storage"
    said = (
        f"Operator by operator {one.operator_elements:,} elements are moved. The largest tiles that fit, with "
        f"{one.tile[1]} keys at a time, move {curve[0].elements:,} with {curve[0].capacity:,} elements of storage, and "
        f"{curve[-1].elements:,} with {curve[-1].capacity:,}; the order of Theorem 9.2 falls as 1 / S."
    )
    labels = ("on-chip storage S (elements)", "traffic (elements)")
    return log_plot(title, said, labels, [line for line in lines if len(line.points) > 1], (), levels, base=2)


def _one_head(record: Any) -> Any:
    from dataclasses import replace

    alone = replace(record, batch=1, query_heads=1, key_heads=1, packed=False)
    return alone.with_length(record.queries)
