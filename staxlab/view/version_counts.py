"""Versions against calls (Proposition 13.5), drawn: what rises with the sizes that were met, and what stays bounded."""

from __future__ import annotations

from typing import Any

from ..measure.version_counts import VersionCurve, VersionHistory
from .document import Pane
from .log_plots import Dots, log_plot
from .markup import Html, join
from .measures import table_markup
from .plots import Curve

POINTS = 25  # drawn of a curve that rises with nearly every call


def panes(record: Any) -> list[Pane]:
    """One pane: the curves and their numbers."""
    body = join([curves(record), table_markup(record.table())])
    return [Pane("versions", "Versions against calls", body, record.summary(), str(record))]


def curves(record: VersionHistory) -> Html:
    """Lines for what models and rules say, dots for what was counted beside an expectation or by compiling; over the
    calls, both axes logarithmic."""
    said = f"Number of versions after some numbers of calls, by what counts as the same size. {_spoken(record)}"
    title = f"Versions that {record.calls:,} calls need"
    axes = ("calls m (count, logarithmic)", "versions K (count, logarithmic)")
    dotted = {curve.name for curve in record.curves if curve.by_running}
    if any(curve.smooth for curve in record.curves):
        dotted.add("concrete")
    lines = [Curve(c.name, line_points(c, record.calls)) for c in record.curves if c.name not in dotted]
    dots = [Dots(c.name, drawn_points(c, record.calls)) for c in record.curves if c.name in dotted]
    return log_plot(title, said, axes, lines, dots=dots)


def drawn_points(curve: VersionCurve, calls: int) -> tuple[tuple[float, float], ...]:
    """Few points of a curve, spread over the logarithm of the calls, and the last."""
    at = sorted({*(round(calls ** (k / (POINTS - 1))) for k in range(POINTS)), calls})
    return tuple((call, curve.after(call)) for call in at)


def line_points(curve: VersionCurve, calls: int) -> tuple[tuple[float, float], ...]:
    """The corners of a line that goes up in steps; of one with many steps, or a smooth one, points as above."""
    if curve.smooth or len(curve.steps) > POINTS:
        return drawn_points(curve, calls)
    corners = [curve.steps[0]]
    for call, count in curve.steps[1:]:
        corners += [(call, corners[-1][1]), (call, count)]
    return tuple(dict.fromkeys((*corners, (calls, corners[-1][1]))))


def _spoken(record: VersionHistory) -> str:
    parts = []
    for curve in record.curves:
        counts = ", ".join(f"{curve.after(m):,.4g} after {m:,}" for m in record.points)
        parts.append(f"{curve.name}: {counts}{f' ({curve.note})' if curve.note else ''}.")
    return " ".join(parts)
