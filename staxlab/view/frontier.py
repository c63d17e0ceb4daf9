"""Memory against work (Sections 5.4 and 5.8), drawn: what less memory costs, with the minimum cut and eager beside it.

Bytes saved run to the right, work done again upwards. A plan holds for every budget from its own bytes up to the next
plan's, hence the steps. Where the solver ran out of time, a thin line leads down to the work that is proven necessary.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .charts import MUTED, RULE, TEXT, chart, free_spot, text_at
from .document import Pane, View
from .markup import Html, element, join, table
from .reversal import round_ticks
from .schedule import byte_text

WIDTH, HEIGHT = 700, 320
LEFT, RIGHT, TOP, BOTTOM = 78, 24, 48, 54  # margins
_LINE, _OTHER = "#0b57b0", "#8a4600"


def view(record: Any, full: bool = False) -> View:
    """The chart, and its points as a table."""
    head = ["plan", "saved (bytes)", "done again (bytes moved)", "of the forward pass", "proof"]
    rows = [
        [f"budget of {plan.budget:,} bytes", plan.saved_bytes, round(plan.work), f"{record.share(plan.work):.1%}",
         "the least possible" if not plan.gap else f"at most {plan.gap:.1%} too much"]
        for plan in record.plans
    ]  # fmt: skip
    rows += [
        [mark.name, mark.saved_bytes, round(mark.work), f"{record.share(mark.work):.1%}", "–"] for mark in record.marks
    ]
    body = join([frontier_chart(record), table("The points of the chart", head, rows)])
    summary = f"{len(record.plans)} plans from {byte_text(record.plans[0].saved_bytes)} saved" if record.plans else ""
    return View("memory frontier", (Pane("frontier", "Memory and work", body, summary, record.format()),))


def frontier_chart(record: Any) -> Html:
    """Bytes saved to the right, work done again upwards, both from 0."""
    plans, marks = record.plans, record.marks
    widest = max([*(p.saved_bytes for p in plans), *(m.saved_bytes for m in marks), 1]) * 1.05
    finite = [p.work for p in plans] + [m.work for m in marks if m.work != float("inf")]
    tallest = max([*finite, 1.0]) * 1.08

    def x(size: float) -> float:
        return LEFT + size / widest * (WIDTH - LEFT - RIGHT)

    def y(work: float) -> float:
        return HEIGHT - BOTTOM - work / tallest * (HEIGHT - TOP - BOTTOM)

    title = "The least work done again for the bytes that may be saved"
    said = _spoken(record)
    drawn = [
        element("title", title),
        element("desc", said),
        text_at(title, 12, 18, "sx-count", TEXT, font_weight="600"),
        *_axes(x, y, widest, tallest),
        *_steps(record, x, y, widest),
        *_marks(record, x, y, widest),
    ]
    return chart(drawn, title, said, WIDTH, HEIGHT)


def _spoken(record: Any) -> str:
    points = [f"{byte_text(p.saved_bytes)} saved, {byte_text(p.work)} moved again" for p in record.plans]
    others = [f"{m.name}: {byte_text(m.saved_bytes)} saved, {byte_text(m.work)} moved again" for m in record.marks]
    return "; ".join([*points, *others]) + "."


def _axes(x: Any, y: Any, widest: float, tallest: float) -> Iterator[Html]:
    right, base = WIDTH - RIGHT, HEIGHT - BOTTOM
    yield element("path", d=f"M{LEFT} {TOP - 8}V{base}H{right}", class_="sx-chart-axis", fill="none", stroke=RULE)
    for size in round_ticks(int(widest), 6):
        yield element("path", d=f"M{x(size):.1f} {base}V{base + 4}", class_="sx-chart-axis", stroke=RULE)
        yield text_at(f"{size:,}", x(size), base + 17, "sx-label", MUTED, text_anchor="middle")
    for work in round_ticks(int(tallest), 6):
        yield element("path", d=f"M{LEFT - 4} {y(work):.1f}H{LEFT}", class_="sx-chart-axis", stroke=RULE)
        yield text_at(f"{work:,}", LEFT - 8, y(work) + 4, "sx-label", MUTED, text_anchor="end")
    yield text_at("saved for the backward pass (bytes)", (LEFT + right) / 2, HEIGHT - 8, "sx-label", MUTED,
                  text_anchor="middle")  # fmt: skip
    yield text_at("done again (bytes moved)", LEFT - 66, TOP - 14, "sx-label", MUTED)


def _steps(record: Any, x: Any, y: Any, widest: float) -> Iterator[Html]:
    if not record.plans:
        return
    first, *rest = record.plans
    path = f"M{x(first.saved_bytes):.1f} {y(first.work):.1f}"
    for plan in rest:
        path += f"H{x(plan.saved_bytes):.1f}V{y(plan.work):.1f}"
    path += f"H{x(widest):.1f}"
    yield element("path", d=path, class_="sx-chart-line", fill="none", stroke=_LINE, stroke_width="2.2")
    for plan in record.plans:
        at, level = x(plan.saved_bytes), y(plan.work)
        if plan.gap:
            yield element(
                "path", d=f"M{at:.1f} {level:.1f}V{y(plan.bound):.1f}", class_="sx-chart-axis", stroke=RULE,
                stroke_dasharray="3 3", data_gap=f"{plan.gap:.4f}",
            )  # fmt: skip
        yield element(
            "circle", element("title", str(plan)), cx=f"{at:.1f}", cy=f"{level:.1f}", r=3.6, class_="sx-chart-point",
            fill=_LINE, data_bytes=plan.saved_bytes,
        )  # fmt: skip


def _marks(record: Any, x: Any, y: Any, widest: float) -> Iterator[Html]:
    """Diamonds, so that they are not taken for points of the frontier; names where they cover nothing."""
    shown = [mark for mark in record.marks if mark.work != float("inf")]
    taken = [(x(m.saved_bytes) - 6, y(m.work) - 6, x(m.saved_bytes) + 6, y(m.work) + 6) for m in shown]
    stops = [*(plan.saved_bytes for plan in record.plans[1:]), widest]
    for plan, stop in zip(record.plans, stops, strict=False):
        taken.append((x(plan.saved_bytes) - 4, y(plan.work) - 4, x(stop), y(plan.work) + 4))
    for before, plan in zip(record.plans, record.plans[1:], strict=False):
        taken.append((x(plan.saved_bytes) - 4, y(before.work), x(plan.saved_bytes) + 4, y(plan.work)))
    for mark in shown:
        at, level = x(mark.saved_bytes), y(mark.work)
        said = f"{mark.name}: {mark.saved_bytes:,} bytes saved, {mark.work:,.0f} bytes moved again"
        yield element(
            "path", element("title", said), d=f"M{at:.1f} {level - 6:.1f}l6 6l-6 6l-6 -6z", class_="sx-chart-limit",
            fill="none", stroke=_OTHER, stroke_width="2", stroke_dasharray="none", style="stroke-dasharray: none",
            data_mark=mark.name,
        )  # fmt: skip
        anchor = "end" if at > WIDTH - 120 else "start"
        shift = -9 if anchor == "end" else 9
        spots = [(at + shift, level - 8 - 6 * k) for k in range(12)]
        left, top = free_spot(spots, mark.name, taken, ends=anchor == "end")
        if level - top > 24:  # far from its diamond: a line leads there
            line = f"M{at:.1f} {level - 8:.1f}L{left + (2 if anchor == 'end' else -2):.1f} {top + 2:.1f}"
            yield element("path", d=line, class_="sx-chart-axis", fill="none", stroke=RULE)
        yield text_at(mark.name, left, top, "sx-count", TEXT, text_anchor=anchor)
