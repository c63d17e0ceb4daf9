"""The measure of Proposition 4.1 over the passes, drawn: three counts, compared from the first, that together go down.

Each component has a panel of its own, since their sizes differ: composite operators, nodes, deviations from normal
form. The passes stand below, grouped by round. A count may rise only where one in a panel further up falls, as the
number of nodes does when an operator is taken apart. Every pass that changed the graph has a point, with the whole
triple.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from .charts import MUTED, RULE, TEXT, chart, text_at
from .markup import Html, element

COMPONENTS = (
    ("composite operators", "composites (count)"),
    ("nodes", "nodes (count)"),
    ("deviations from normal form", "deviations (count)"),
)
LEFT, RIGHT, TOP = 70, 16, 40  # margins
PANEL, BETWEEN, BELOW = 84, 18, 118
STEP = 34  # width of a pass


def measure_points(record: Any) -> list[tuple[str, int, tuple[int, int, int], bool]]:
    """(pass, round, measure after it, whether it changed the graph) from the state before the first pass on (round
    0)."""
    points = [("as captured", 0, tuple(record.measures[0]), False)]
    points += [(run.name, run.round, tuple(run.measure), run.changed) for run in record.runs]
    return points


def measure_text_chart(record: Any) -> str:
    """The chart as a table, for terminals."""
    head = ("round", "pass", "composites", "nodes", "deviations", "")
    rows = [
        (str(number or "–"), name, *map(str, measure), "changed" if changed else "")
        for name, number, measure, changed in measure_points(record)
    ]
    widths = [max(len(row[k]) for row in (head, *rows)) for k in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    )


def measure_chart(record: Any) -> Html:
    """Three panels over one axis of passes."""
    points = measure_points(record)
    width = max(LEFT + RIGHT + STEP * len(points), 460)
    height = TOP + 3 * PANEL + 2 * BETWEEN + BELOW
    title = "The measure of Proposition 4.1 after each pass"

    def x(position: float) -> float:
        return LEFT + STEP * (position + 0.5)

    drawn: list[Any] = [
        element("title", title),
        element("desc", _spoken(points)),
        text_at(title, 12, 18, "sx-count", TEXT, font_weight="600"),
    ]
    for component in range(3):
        drawn += _panel(points, component, x, TOP + component * (PANEL + BETWEEN), width)
    drawn += _axis(points, x, TOP + 3 * PANEL + 2 * BETWEEN, width, height)
    return chart(drawn, title, _spoken(points), width, height)


def _spoken(points: list[tuple]) -> str:
    changed = [f"{name} in round {number} leaves {measure}" for name, number, measure, is_change in points if is_change]
    return f"It starts at {points[0][2]}; " + ("; ".join(changed) or "no pass changes the graph") + "."


def _panel(points: list[tuple], component: int, x: Any, top: float, width: float) -> Iterator[Html]:
    values = [measure[component] for _, _, measure, _ in points]
    most = max(max(values), 1)
    bottom = top + PANEL

    def y(count: float) -> float:
        return bottom - count / most * (PANEL - 14)

    name, axis = COMPONENTS[component]
    yield element(
        "path", d=f"M{LEFT} {top}V{bottom}H{width - RIGHT}", class_="sx-chart-axis", fill="none", stroke=RULE
    )
    for count in sorted({0, most // 2, most} if most > 2 else set(range(most + 1))):
        yield element("path", d=f"M{LEFT - 4} {y(count):.1f}H{LEFT}", class_="sx-chart-axis", stroke=RULE)
        yield text_at(f"{count:,}", LEFT - 7, y(count) + 4, "sx-label", MUTED, text_anchor="end")
    middle = (top + bottom) / 2
    yield text_at(
        axis, 0, 0, "sx-label", MUTED, text_anchor="middle", transform=f"translate(14 {middle:g}) rotate(-90)",
        font_size="10",
    )  # fmt: skip
    path = f"M{x(0):.1f} {y(values[0]):.1f}"
    for position, value in enumerate(values[1:], start=1):
        path += f"H{x(position):.1f}V{y(value):.1f}"
    yield element("path", d=path, class_="sx-chart-line", fill="none", stroke="#0b57b0", stroke_width="2.2")
    for position, (step, number, measure, changed) in enumerate(points):
        if position and not changed:
            continue
        said = f"{step}, round {number}: {measure[component]:,} {name}; measure {measure}" if number else step
        yield element(
            "circle", element("title", said), cx=f"{x(position):.1f}", cy=f"{y(measure[component]):.1f}", r=3.6,
            class_="sx-chart-point", fill="#0b57b0", data_component=component, data_count=measure[component],
        )  # fmt: skip


def _axis(points: list[tuple], x: Any, base: float, width: float, height: float) -> Iterator[Html]:
    for position, (name, number, _, changed) in enumerate(points):
        if position and number != points[position - 1][1]:
            edge = x(position) - STEP / 2
            yield element(
                "path", d=f"M{edge:.1f} {TOP}V{base + 20:g}", class_="sx-chart-round", fill="none", stroke="#d5dae0",
                stroke_dasharray="3 3",
            )  # fmt: skip
            yield text_at(f"round {number}", edge + 4, base + 14, "sx-label", MUTED, data_round=number)
        at = x(position) + 3
        style = "sx-count" if changed else "sx-label"
        yield text_at(
            _short(name), 0, 0, style, TEXT if changed else MUTED, text_anchor="end",
            transform=f"translate({at:.1f} {base + 26:g}) rotate(-52)", data_pass=name,
        )  # fmt: skip
    words = "pass, by round (bold and with a point: it changed the graph)"
    yield text_at(words, (LEFT + width - RIGHT) / 2, height - 6, "sx-label", MUTED, text_anchor="middle")


_SHORT = {"MergeCommonSubexpressions": "Merge", "RemoveDeadCode": "DeadCode", "MarkPointwiseRegions": "Regions"}


def _short(name: str) -> str:
    """A pass's name for the axis: its own, or the last words of a long one."""
    return _SHORT.get(name) or (name if len(name) <= 12 else re.findall("[A-Z][a-z]*", name)[-1])
