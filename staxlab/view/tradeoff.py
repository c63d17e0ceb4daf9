"""Storage against computation, drawn (Section 5.8): a point for each schedule, slots across and forward steps upwards.

Both axes are logarithmic. Members of a family are joined in the order of their parameter: equal segments turn back, so
their line runs over the same points twice. Families differ by marker and dash pattern as well as by colour.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

from ..specialize.report import counted
from .charts import MUTED, RULE, TEXT, chart, text_at
from .document import Pane, View
from .markup import Html, element, join, table

WIDTH, HEIGHT = 700, 380
LEFT, RIGHT, TOP, BOTTOM = 84, 24, 66, 52  # margins
_LINE = {"class_": "sx-chart-line", "fill": "none", "stroke": "#0b57b0", "stroke_width": "2.2"}
_DASHED = {"class_": "sx-chart-limit", "fill": "none", "stroke": "#8a4600", "stroke_width": "1.6",
           "stroke_dasharray": "7 4"}  # fmt: skip
# family: (line, marker)
LOOKS: dict[str, tuple[dict[str, Any] | None, str]] = {
    "binomial": (_LINE, "circle"),
    "uniform segments": (_DASHED, "square"),
    "extremes": (None, "diamond"),
}


def view(record: Any, full: bool = False) -> View:
    """The chart, and its points as a table."""
    title = f"Storage against computation: a chain of {counted(record.length, 'step')}"
    body = join([trade_off_chart(record), table(title, record.HEADINGS, record.rows())])
    return View("trade-off", (Pane("tradeoff", title, body, "", record.format()),))


def decades(low: float, high: float) -> list[int]:
    """1, 2 and 5 times powers of ten in [low, high], the powers alone if that would be more than eight."""
    span = range(math.ceil(math.log10(max(high, 1))) + 1)
    ticks = [m * 10**e for e in span for m in (1, 2, 5) if low <= m * 10**e <= high]
    return ticks if len(ticks) <= 8 else [tick for tick in ticks if str(tick)[0] == "1"]


def trade_off_chart(record: Any) -> Html:
    """The families as lines through their points."""
    slots = [point.slots for point in record.points]
    # A chain of one step computes nothing: drawn as 1, since a logarithmic axis has no 0.
    evaluations = [max(point.evaluations, 1) for point in record.points]
    across = _scale(min(slots), max(slots), LEFT, WIDTH - RIGHT)
    up = _scale(min(evaluations), max(evaluations), HEIGHT - BOTTOM, TOP)
    title = f"Storage against computation: a chain of {counted(record.length, 'step')}"
    said = _spoken(record)
    drawn = [
        element("title", title),
        element("desc", said),
        text_at(title, 12, 18, "sx-count", TEXT, font_weight="600"),
        *_axes(across, up, slots, evaluations),
    ]
    for place, (family, (line, marker)) in enumerate(LOOKS.items()):
        points = record.of(family)
        at = [(across(point.slots), up(max(point.evaluations, 1))) for point in points]
        x = LEFT + 190 * place
        if line is not None:
            drawn.append(
                element("path", d="M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in at), data_family=family, **line)
            )
            drawn.append(element("path", d=f"M{x} 42h26", **line))
        drawn.append(_marker(marker, x + 13, 42, family))
        drawn.append(text_at(family, x + 34, 46, "sx-label", MUTED))
        drawn += [
            _marker(marker, a, b, f"{p.name}: {counted(p.slots, 'slot')}, {p.evaluations:,} forward evaluations", p)
            for p, (a, b) in zip(points, at, strict=True)
        ]
    return chart(drawn, title, said, WIDTH, HEIGHT)


def _scale(low: float, high: float, start: float, stop: float) -> Callable[[float], float]:
    """A logarithmic axis from ``start`` to ``stop``, a little wider than the values."""
    first, last = math.log(low / 1.15), math.log(high * 1.15)
    return lambda value: start + (math.log(value) - first) / (last - first) * (stop - start)


def _spoken(record: Any) -> str:
    parts = []
    for family in LOOKS:
        points = record.of(family)
        if points:
            shown = points if len(points) <= 4 else (points[0], points[len(points) // 2], points[-1])
            each = "; ".join(f"{p.name}: {p.slots:,} slots, {p.evaluations:,} forward evaluations" for p in shown)
            parts.append(each)
    return "; ".join(parts)


def _axes(across: Any, up: Any, slots: list[int], evaluations: list[int]) -> Iterator[Html]:
    base, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    yield element("path", d=f"M{LEFT} {TOP}V{base}H{right}", class_="sx-chart-axis", fill="none", stroke=RULE)
    for tick in decades(min(slots), max(slots)):
        x = across(tick)
        yield element("path", d=f"M{x:.1f} {base}V{base + 4}", class_="sx-chart-axis", stroke=RULE)
        yield text_at(f"{tick:,}", x, base + 17, "sx-label", MUTED, text_anchor="middle")
    for tick in decades(min(evaluations), max(evaluations)):
        y = up(tick)
        yield element("path", d=f"M{LEFT - 4} {y:.1f}H{LEFT}", class_="sx-chart-axis", stroke=RULE)
        yield text_at(f"{tick:,}", LEFT - 8, y + 4, "sx-label", MUTED, text_anchor="end")
    yield text_at("slots (count, logarithmic)", (LEFT + right) / 2, HEIGHT - 8, "sx-label", MUTED, text_anchor="middle")
    yield text_at("forward steps (count, logarithmic)", 0, 0, "sx-label", MUTED, text_anchor="middle",
                  transform=f"translate(14 {(TOP + base) / 2:g}) rotate(-90)")  # fmt: skip


def _marker(kind: str, x: float, y: float, said: str, point: Any = None) -> Html:
    """A small shape that says what it stands for."""
    shape = {
        "circle": f"M{x - 4:.1f} {y:.1f}a4 4 0 1 0 8 0a4 4 0 1 0 -8 0z",
        "square": f"M{x - 3.5:.1f} {y - 3.5:.1f}h7v7h-7z",
        "diamond": f"M{x:.1f} {y - 5.5:.1f}l5.5 5.5l-5.5 5.5l-5.5 -5.5z",
    }[kind]
    style = {"circle": "sx-chart-point", "square": "sx-cell sx-cell-changed", "diamond": "sx-cell sx-cell-written"}[
        kind
    ]
    fill = {"circle": "#0b57b0", "square": "#fff3c9", "diamond": "#e2f5e7"}[kind]
    return element(
        "path", element("title", said), d=shape, class_=style, fill=fill, stroke=RULE,
        data_point=None if point is None else point.family, data_slots=None if point is None else point.slots,
    )  # fmt: skip
