"""The number of versions over the calls (Section 2.4), drawn: does specializing come to rest, or run into a limit?

A line that is flat after its first steps has found its equivalence classes; one that rises with every call has a key
that is too fine. Both limits belong in the picture, because what lies beyond them runs eagerly. The call axis is
logarithmic where there are many calls, for then the compilations, which come early, would fall onto one point.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from ..specialize.report import DispatchReport, counted
from .charts import MUTED, RULE, TEXT, chart, text_at
from .markup import Html, element

WIDTH, HEIGHT = 700, 300
LEFT, RIGHT, TOP, BOTTOM = 62, 18, 44, 52  # margins
MANY_CALLS = 200  # beyond this the call axis is logarithmic


def growth_chart(record: DispatchReport) -> Html:
    """A step line of the number of versions, a point for each compilation, and the limits."""
    calls, versions = max(record.calls, 1), len(record.versions)
    is_log = calls > MANY_CALLS
    limits = [
        ("versions", record.max_versions),
        ("compilations", record.max_compilations),
    ]
    # A limit far above would press the line flat; it is then named above the plot instead.
    top = max([versions, 1, *(value for _, value in limits if value <= max(4 * versions, 10))]) + 1
    inside = [(name, value) for name, value in limits if value <= top]
    above = [f"limit of {value:,} {name}" for name, value in limits if value > top]

    def x(call: float) -> float:
        share = 0.0 if calls == 1 else math.log(call) / math.log(calls) if is_log else (call - 1) / (calls - 1)
        return LEFT + share * (WIDTH - LEFT - RIGHT)

    def y(count: float) -> float:
        return HEIGHT - BOTTOM - count / top * (HEIGHT - TOP - BOTTOM)

    title = f"Versions of {record.name} over its calls"
    said = _spoken(record, limits)
    axis = f"call number (calls{', logarithmic' if is_log else ''})"
    drawn = [
        element("title", title),
        element("desc", said),
        text_at(title, LEFT, 18, "sx-count", TEXT, font_weight="600"),
        *_axes(x, y, calls, top, is_log),
        text_at(axis, (LEFT + WIDTH - RIGHT) / 2, HEIGHT - 8, "sx-label", MUTED, text_anchor="middle"),
        text_at("versions (count)", 0, 0, "sx-label", MUTED, text_anchor="middle",
                transform=f"translate(16 {(TOP + HEIGHT - BOTTOM) / 2:g}) rotate(-90)"),
        *_limits(inside, y),
        *_steps(record, x, y, calls),
    ]  # fmt: skip
    if above:
        words = "above this plot: " + ", ".join(above)
        drawn.append(text_at(words, WIDTH - RIGHT, 34, "sx-label", MUTED, text_anchor="end"))
    return chart(drawn, title, said, WIDTH, HEIGHT)


def _spoken(record: DispatchReport, limits: list[tuple[str, int]]) -> str:
    steps = ", ".join(f"{count:,} from call {call:,}" for call, count in record.growth[:12])
    more = f", and {len(record.growth) - 12:,} more steps" if len(record.growth) > 12 else ""
    bounds = " and ".join(f"{value:,} {name}" for name, value in limits)
    return f"Number of versions: {steps}{more}; {counted(record.calls, 'call')} in all; limits: {bounds}."


def _axes(x: Any, y: Any, calls: int, top: int, is_log: bool) -> Iterator[Html]:
    right, base = WIDTH - RIGHT, HEIGHT - BOTTOM
    frame = f"M{LEFT} {TOP}V{base}H{right}"
    yield element("path", d=frame, class_="sx-chart-axis", fill="none", stroke=RULE)
    for count in range(0, top + 1, max(round(top / 8), 1)):
        at = y(count)
        yield element("path", d=f"M{LEFT - 4} {at:.1f}H{LEFT}", class_="sx-chart-axis", stroke=RULE)
        yield text_at(f"{count:,}", LEFT - 8, at + 4, "sx-label", MUTED, text_anchor="end")
    for call in ticks(calls, is_log):
        at = x(call)
        yield element("path", d=f"M{at:.1f} {base}V{base + 4}", class_="sx-chart-axis", stroke=RULE)
        yield text_at(f"{call:,}", at, base + 17, "sx-label", MUTED, text_anchor="middle")


def ticks(calls: int, is_log: bool) -> list[int]:
    """Call numbers to write below the axis: the first, the last, and some round ones well apart from both."""
    if is_log:
        between = [10**k for k in range(1, len(str(calls))) if 10**k * 2 < calls]
    else:
        step = next(s * 10**e for e in range(9) for s in (1, 2, 5) if s * 10**e * 8 >= calls)
        between = [call for call in range(step, calls, step) if call - 1 >= step / 2 and calls - call >= step / 2]
    return sorted({1, *between, calls})


def _limits(inside: list[tuple[str, int]], y: Any) -> Iterator[Html]:
    for position, (name, value) in enumerate(inside):
        at = y(value)
        yield element(
            "path", d=f"M{LEFT} {at:.1f}H{WIDTH - RIGHT}", class_="sx-chart-limit", fill="none", stroke="#8a4600",
            stroke_width="1.6", stroke_dasharray="7 4", data_limit=name,
        )  # fmt: skip
        # Two equal limits share a line; their names stand at its two ends.
        place, anchor = ((WIDTH - RIGHT - 4, "end"), (LEFT + 6, "start"))[position % 2]
        yield text_at(f"limit: {value:,} {name}", place, at - 5, "sx-count", TEXT, text_anchor=anchor)


def _steps(record: DispatchReport, x: Any, y: Any, calls: int) -> Iterator[Html]:
    if not record.growth:
        return
    (first, count), *rest = record.growth
    path = f"M{x(first):.1f} {y(0):.1f}V{y(count):.1f}"
    for call, count in rest:
        path += f"H{x(call):.1f}V{y(count):.1f}"
    path += f"H{x(calls):.1f}"
    yield element("path", d=path, class_="sx-chart-line", fill="none", stroke="#0b57b0", stroke_width="2.2")
    for call, count in record.growth:
        said = f"call {call:,}: version {count:,} compiled"
        yield element(
            "circle", element("title", said), cx=f"{x(call):.1f}", cy=f"{y(count):.1f}", r=4,
            class_="sx-chart-point", fill="#0b57b0", data_call=call, data_versions=count,
        )  # fmt: skip
