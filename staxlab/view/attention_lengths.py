"""Measured time and peak memory of attention against its length, each on logarithmic axes, a line for each way."""

from __future__ import annotations

from typing import Any

from .document import Pane
from .log_plots import log_plot
from .markup import Html, element, join
from .measures import table_markup
from .plots import Curve


def panes(record: Any) -> list[Pane]:
    """One pane: both pictures and the table."""
    charts = [chart for chart in (memory_chart(record), time_chart(record)) if chart]
    body = join([*(element("div", chart) for chart in charts), table_markup(record.table())])
    return [Pane("attention-lengths", record.table().caption, body, record.summary(), str(record))]


def time_chart(record: Any) -> Html:
    lines = [Curve(way, tuple((float(p.length), 1e3 * p.seconds) for p in points)) for way, points in record.ways]
    return _chart(record, f"Time of attention, {record.shape}", "time of a call (ms)", lines)


def memory_chart(record: Any) -> Html | None:
    """Nothing where no peak was counted."""
    lines = []
    for way, points in record.ways:
        counted = tuple((float(p.length), p.peak_bytes / 1e6) for p in points if p.peak_bytes)
        lines += [Curve(way, counted)] if counted else []
    if not lines:
        return None
    return _chart(record, f"Peak memory of attention, {record.shape}", "allocated beyond the operands (MB)", lines)


def _chart(record: Any, title: str, label: str, lines: list[Curve]) -> Html:
    said = f"{record.summary()}. " + " ".join(
        f"{line.label}: " + ", ".join(f"{y:.4g} at {x:,.0f}" for x, y in line.points) + "." for line in lines
    )
    return log_plot(title, said, ("length N (queries and keys)", label), lines, base=2)
