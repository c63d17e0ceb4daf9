"""Two lanes, host and device, for launches one by one and for one graph (Section 9.9), and how the gain grows with n.

Both runs stand on one axis of microseconds, so the shorter one is seen to be shorter. Kernels alternate between a plain
and a hatched box; where the device waits, the lane is dashed and says so.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from ..measure.launch_timeline import DEVICE, HOST, speedup_bound
from ..measure.tables import seconds_text
from .charts import CHARACTER, MUTED, RULE, TEXT, chart, text_at
from .document import Pane
from .figures import SERIES
from .markup import Html, element, join
from .measures import table_markup

WIDTH, LEFT, RIGHT, TOP, LANE, GAP = 760, 76, 24, 52, 24, 8
CURVE_WIDTH, CURVE_HEIGHT = 460, 220
MOST_DRAWN = 200  # kernels in a picture


def panes(record: Any) -> list[Pane]:
    """One pane: the lanes, the curve, and the numbers."""
    body = [lanes_chart(record), speedup_chart(record)] if record.kernels else []
    body.append(table_markup(record.table()))
    return [Pane("launch-timeline", "Launches and a graph", join(body), record.summary(), record.format())]


def lanes_chart(record: Any) -> Html:
    """Host and device while the kernels run, both ways."""
    runs = (record.launched, record.graph)
    end = float(max(run.total for run in runs)) or 1e-9
    block = 2 * LANE + GAP + 30
    base = TOP + len(runs) * block
    height = base + 46

    def x(seconds: Any) -> float:
        return LEFT + float(seconds) / end * (WIDTH - LEFT - RIGHT)

    title = f"{len(record.kernels)} kernels: launched one by one, and as one graph"
    said = record.summary() + "; " + "; ".join(
        f"{run.name}: the device is idle for {seconds_text(float(run.idle_seconds))}" for run in runs
    )
    hatch = element("path", d="M0 6L6 0", stroke=SERIES[0], stroke_width=1.2)
    pattern = element("pattern", hatch, id="sx-launch-hatch", width=6, height=6, patternUnits="userSpaceOnUse")
    drawn = [
        element("title", title),
        element("desc", said),
        element("defs", pattern),
        text_at(title, 12, 18, "sx-count", TEXT, font_weight="600"),
        text_at("kernels plain and hatched in turn; dashed: the device waits", 12, 36, "sx-label", MUTED),
    ]
    for number, run in enumerate(runs):
        drawn += _run(run, TOP + number * block, x)
    drawn.append(
        element("path", d=f"M{LEFT} {base}H{WIDTH - RIGHT}", class_="sx-chart-axis", fill="none", stroke=RULE)
    )
    for tick in ticks(end * 1e6):
        at = x(tick * 1e-6)
        drawn.append(element("path", d=f"M{at:.1f} {base}V{base + 4}", class_="sx-chart-axis", stroke=RULE))
        drawn.append(text_at(f"{tick:g}", at, base + 17, "sx-label", MUTED, text_anchor="middle"))
    drawn.append(text_at("time (microseconds)", (LEFT + WIDTH - RIGHT) / 2, base + 34, "sx-label", MUTED,
                         text_anchor="middle"))  # fmt: skip
    if len(record.kernels) > MOST_DRAWN:
        drawn.append(text_at(f"the first {MOST_DRAWN} are drawn", WIDTH - RIGHT, 36, "sx-label", MUTED,
                             text_anchor="end"))  # fmt: skip
    return chart(join(drawn), title, said, WIDTH, height)


def ticks(most: float, wanted: int = 8) -> list[float]:
    """Round numbers from 0 up to ``most``, about as many as wanted."""
    steps = (s * 10.0**e for e in itertools.count(-9) for s in (1, 2, 5))
    step = next(step for step in steps if step * wanted >= most)
    return [k * step for k in range(int(most / step) + 1)]


def _run(run: Any, top: float, x: Any) -> Iterator[Html]:
    words = f"{run.name}: {seconds_text(float(run.total))}"
    yield text_at(words, LEFT, top + 10, "sx-count", TEXT)
    for row, lane in enumerate((HOST, DEVICE)):
        y = top + 16 + row * (LANE + GAP / 2)
        yield text_at(lane, LEFT - 8, y + LANE / 2 + 4, "sx-label", MUTED, text_anchor="end")
        for start, until in run.idle if lane == DEVICE else ():
            said = f"idle for {seconds_text(float(until - start))}"
            yield element(
                "rect", element("title", said), x=f"{x(start):.1f}", y=y + 3, width=f"{x(until) - x(start):.1f}",
                height=LANE - 6, fill="none", stroke="#8a4600", stroke_dasharray="3 3", class_="sx-chart-limit",
                data_idle=f"{float(until - start):g}",
            )  # fmt: skip
            if x(until) - x(start) > 5 * CHARACTER:
                yield text_at("idle", (x(start) + x(until)) / 2, y + LANE / 2 + 4, "sx-label", MUTED,
                              text_anchor="middle")  # fmt: skip
        for span in run.lane(lane)[:MOST_DRAWN]:
            yield from _span(span, y, x)


def _span(span: Any, y: float, x: Any) -> Iterator[Html]:
    on_host = span.lane == HOST
    name = "graph" if span.kernel == 0 else f"{'launch' if on_host else 'kernel'} {span.kernel}"
    said = f"{name}: from {seconds_text(float(span.start))}, takes {seconds_text(float(span.seconds))}"
    width = max(x(span.end) - x(span.start), 0.5)
    fill = "#fff3c9" if on_host else (SERIES[0] if span.kernel % 2 else "url(#sx-launch-hatch)")
    yield element(
        "rect", element("title", said), x=f"{x(span.start):.1f}", y=y, width=f"{width:.1f}", height=LANE, rx=2,
        fill=fill, stroke=SERIES[0], class_="sx-part-2" if on_host else None, data_kernel=span.kernel,
    )  # fmt: skip
    short = "graph" if span.kernel == 0 else str(span.kernel)
    if on_host and width > CHARACTER * (len(short) + 1):
        yield text_at(short, x(span.start) + width / 2, y + LANE / 2 + 4, "sx-label", TEXT, text_anchor="middle")


def speedup_chart(record: Any) -> Html:
    """The first-order speedup for kernels of this mean duration, from 1 kernel to a few times as many as there are."""
    count = len(record.kernels)
    most = max(4 * count, 16)
    counts = sorted({max(1, round(most ** (k / 60))) for k in range(61)})
    points = record.speedups(counts)
    mean = record.work / count
    bound = float(speedup_bound(mean, record.launch))
    highest = max([value for _, value in points] + [1.0])
    top_value = min(bound, 2 * highest) if bound > 0 else highest
    top_value = max(top_value, highest) * 1.08
    left, right, top = 62, 16, 52
    base = top + CURVE_HEIGHT

    def x(n: float) -> float:
        return left + (n - 1) / (most - 1) * CURVE_WIDTH

    def y(value: float) -> float:
        return base - value / top_value * CURVE_HEIGHT

    own = dict(record.speedups([count]))[count]
    title = f"Speedup by a graph, for kernels of {seconds_text(float(mean))}"
    limit = f"the limit is {bound:.3g}" if bound < float("inf") else "there is no limit"
    said = f"It is {points[0][1]:.3g} for one kernel, {own:.3g} for {count}, {points[-1][1]:.3g} for {most}; {limit}."
    path = "M" + "L".join(f"{x(n):.1f} {y(value):.1f}" for n, value in points)
    drawn = [
        element("title", title),
        element("desc", said),
        text_at(title, 12, 18, "sx-count", TEXT, font_weight="600"),
        element("path", d=f"M{left} {top}V{base}H{left + CURVE_WIDTH}", class_="sx-chart-axis", fill="none",
                stroke=RULE),
        element("path", d=path, class_="sx-chart-line", fill="none", stroke="#0b57b0", stroke_width="2.2"),
        element("circle", element("title", f"n = {count}: {own:.3g}"), cx=f"{x(count):.1f}", cy=f"{y(own):.1f}", r=5,
                class_="sx-chart-point", fill="#0b57b0", data_n=count),
    ]  # fmt: skip
    for value, words in ((bound, f"limit {bound:.3g}"), (1.0, "no gain")):
        if value <= top_value:
            drawn.append(
                element("path", d=f"M{left} {y(value):.1f}H{left + CURVE_WIDTH}", class_="sx-chart-limit", fill="none",
                        stroke="#8a4600", stroke_dasharray="7 4")
            )  # fmt: skip
            place = left + CURVE_WIDTH - 4
            drawn.append(text_at(words, place, y(value) - 5, "sx-label", MUTED, text_anchor="end"))
    if bound > top_value:
        drawn.append(text_at(f"{limit}, above this plot", left + CURVE_WIDTH, 38, "sx-label", MUTED,
                             text_anchor="end"))  # fmt: skip
    for n in dict.fromkeys((1, *(round(tick) for tick in ticks(most)), most)):
        if n in (1, most) or ((n - 1) / most > 0.05 and (most - n) / most > 0.05):
            drawn.append(text_at(str(n), x(n), base + 16, "sx-label", MUTED, text_anchor="middle"))
    for tick in ticks(top_value):
        drawn.append(text_at(f"{tick:g}", left - 7, y(tick) + 4, "sx-label", MUTED, text_anchor="end"))
    drawn.append(text_at("n: kernels (count)", left + CURVE_WIDTH / 2, base + 34, "sx-label", MUTED,
                         text_anchor="middle"))  # fmt: skip
    turn = f"translate(14 {(top + base) / 2:g}) rotate(-90)"
    drawn.append(text_at("times faster", 0, 0, "sx-label", MUTED, text_anchor="middle", transform=turn))
    return chart(join(drawn), title, said, left + CURVE_WIDTH + right, base + 44)
