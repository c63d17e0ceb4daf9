"""Little's law (Section 9.1), drawn: the bandwidth that bytes in flight allow, and where a kernel stands."""

from __future__ import annotations

from typing import Any

from .document import Pane
from .markup import Html, join, table
from .plots import Curve, Level, Mark, plot


def panes(record: Any) -> list[Pane]:
    body = join([curve(record), derivation(record)])
    return [Pane("littles-law", f"Bytes in flight on {record.device.name}", body, record.summary(), record.format())]


def curve(record: Any) -> Html:
    """Achieved bandwidth over bytes in flight per multiprocessor: a straight line up to the corner, then level."""
    need = record.total / record.device.multiprocessors
    most = 1.1 * max([2 * need, *(min(point.per_multiprocessor, 16 * need) for point in record.points)])
    full = record.bandwidth / 1e12
    line = Curve("bandwidth", ((0.0, 0.0), (need / 1e3, full), (most / 1e3, full)))
    marks = [
        Mark(
            point.label + ("" if point.per_multiprocessor <= most else f", at {point.per_multiprocessor / 1e3:.3g} KB"),
            min(point.per_multiprocessor, most) / 1e3,
            record.achieved(point.per_multiprocessor) / 1e12,
        )
        for point in record.points
    ]
    said = f"Rises in a straight line to {record.bandwidth / 1e12:g} TB/s at {need / 1e3:.3g} KB, then level."
    for label, _, _, here, reached in record.rows():
        said += f" {label}: {here} per multiprocessor, at most {reached}."
    return plot(
        "Bandwidth that bytes in flight allow",
        said,
        ("bytes in flight per multiprocessor (KB)", "bandwidth (TB/s)"),
        [line],
        marks,
        [Level(f"{need / 1e3:.3g} KB", x=need / 1e3)],
    )


def derivation(record: Any) -> Html:
    """The numbers behind the picture."""
    rows = [[name, formula, value] for name, formula, value in record.steps()]
    found = [table(f"Little's law on {record.device.name}", ["quantity", "formula", "value"], rows)]
    if record.points:
        head = ["kernel", "bytes per thread", "resident warps", "in flight per multiprocessor", "bandwidth at most"]
        found.append(table("What is on its way", head, record.rows()))
    return join(found)
