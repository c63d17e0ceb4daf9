"""Pipelined loops (Section 9.8), drawn over time, and the shared memory that their stages take.

A panel for each number of stages, all over the same time. Every step has a row: a thin dashed bar from when its load is
asked for, a hatched part while its slice is delivered, a filled bar while it is computed. Where a filled bar does not
follow the one above without a gap, the compute units wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..measure.tables import bytes_text
from .charts import MUTED, RULE, TEXT, chart, text_at
from .document import Pane, View
from .markup import Html, element, join
from .measures import table_markup
from .plots import round_ticks

MOST_STEPS = 12  # rows of a panel
WIDTH, LEFT, RIGHT = 680, 62, 16
ROW, HEAD, FOOT = 15, 40, 40


def view(record: Any, full: bool = False) -> View:
    """The chart of a Pipeline or a StageBudget, and its table."""
    content = record.table()
    if type(record).__name__ == "StageBudget":
        body = join([budget_chart(record), table_markup(content)])
        return View("stages", (Pane("stages", content.caption, body, record.decision.reason, str(record)),))
    body = join([pipeline_chart(record), table_markup(content)])
    return View("pipeline", (Pane("pipeline", "Software pipelining", body, record.summary(), record.format()),))


def pipeline_chart(record: Any) -> Html:
    """A panel for each number of stages."""
    runs = record.runs
    steps = min(len(record.steps), MOST_STEPS)
    end = max(float(run.steps[steps - 1].computed) for run in runs)
    panel = HEAD - 14 + ROW * steps
    height = 30 + len(runs) * (panel + 12) + FOOT

    def x(time: float) -> float:
        return LEFT + float(time) / end * (WIDTH - LEFT - RIGHT)

    title = f"Loads and computation of {steps} steps"
    said = "; ".join(run.summary() for run in runs)
    drawn = [
        element("title", title),
        element("desc", said),
        text_at(title, 8, 18, "sx-count", TEXT, font_weight="600"),
    ]
    drawn += _legend()
    for number, run in enumerate(runs):
        drawn += _panel(run, steps, 34 + number * (panel + 12), x)
    base = 34 + len(runs) * (panel + 12) - 4
    drawn.append(element("path", d=f"M{LEFT} {base}H{WIDTH - RIGHT}", class_="sx-chart-axis", fill="none", stroke=RULE))
    for time in round_ticks(end, 8):
        drawn.append(element("path", d=f"M{x(time):.1f} {base}v4", class_="sx-chart-axis", stroke=RULE))
        drawn.append(text_at(f"{time:g}", x(time), base + 16, "sx-label", MUTED, text_anchor="middle"))
    middle = (LEFT + WIDTH - RIGHT) / 2
    drawn.append(text_at(f"time ({record.unit})", middle, base + 31, "sx-label", MUTED, text_anchor="middle"))
    return chart(drawn, title, f"{said}.", WIDTH, height)


_WAIT = {"fill": "none", "stroke": RULE, "stroke_dasharray": "3 2", "class_": "sx-cell sx-cell-apart"}
_DELIVER = {"fill": "#e4f0fb", "stroke": RULE, "class_": "sx-cell sx-cell-covered"}
_COMPUTE = {"fill": "#2f6fb5", "class_": "sx-read"}


def _legend() -> Iterator[Html]:
    x = 290
    for look, words, step in ((_WAIT, "waits for memory", 148), (_DELIVER, "delivered", 96), (_COMPUTE, "computed", 0)):
        yield element("rect", x=x, y=10, width=18, height=8, **look)
        yield text_at(words, x + 23, 18, "sx-label", MUTED)
        x += step


def _panel(run: Any, steps: int, top: float, x: Any) -> Iterator[Html]:
    stages = f"{run.stages} stage{'' if run.stages == 1 else 's'}"
    words = f"{stages}: {float(run.period):.3g} {run.unit} per step in the long run, limited by {run.limit}"
    yield text_at(words, 8, top + 10, "sx-count", TEXT)
    for number, step in enumerate(run.steps[:steps]):
        y = top + 16 + ROW * number
        yield text_at(f"step {step.number}", LEFT - 6, y + 10, "sx-label", MUTED, text_anchor="end", font_size="10")
        delivery = step.loaded - run.transfer
        for look, start, stop, what in (
            (_WAIT, step.asked, delivery, "waits for memory"),
            (_DELIVER, delivery, step.loaded, "is delivered"),
            (_COMPUTE, step.started, step.computed, "is computed"),
        ):
            if stop > start:
                said = f"step {step.number} {what} from {float(start):g} to {float(stop):g}"
                wide = max(x(stop) - x(start), 0.8)
                yield element("rect", element("title", said), x=f"{x(start):.1f}", y=f"{y:g}", width=f"{wide:.1f}",
                              height=ROW - 4, rx=1, data_step=step.number, data_stages=run.stages,
                              data_what=what.split()[-1], **look)  # fmt: skip


def budget_chart(record: Any) -> Html:
    """A bar for each number of stages: the slices and the epilogue, against what there is."""
    shared, shown = record.shared // record.instances, record.stages + 1
    room = WIDTH - LEFT - 90
    most = max(shared, record.used(shown))
    height = 58 + 22 * shown + FOOT

    def x(size: float) -> float:
        return LEFT + size / most * room

    title = f"Shared memory of {' x '.join(map(str, record.tile))} on {record.spec.name}"
    said = f"{record.decision.reason}; {bytes_text(record.epilogue)} for the epilogue"
    drawn = [
        element("title", title),
        element("desc", said),
        text_at(title, 8, 18, "sx-count", TEXT, font_weight="600"),
    ]
    for stages in range(1, shown + 1):
        y = 44 + 22 * (stages - 1)
        drawn.append(text_at(f"s = {stages}", LEFT - 8, y + 12, "sx-label", MUTED, text_anchor="end"))
        for number in range(stages):
            drawn.append(
                element("rect", element("title", f"stage {number + 1}: {bytes_text(record.stage)}"),
                        x=f"{x(number * record.stage):.1f}", y=y, width=f"{record.stage / most * room - 1:.1f}",
                        height=15, data_stage=number, **_DELIVER)
            )  # fmt: skip
        if record.epilogue:
            drawn.append(
                element("rect", element("title", f"epilogue: {bytes_text(record.epilogue)}"),
                        x=f"{x(stages * record.stage):.1f}", y=y, width=f"{record.epilogue / most * room - 1:.1f}",
                        height=15, data_epilogue=record.epilogue, **_WAIT)
            )  # fmt: skip
        verdict = "fits" if stages <= record.stages else "too much"
        drawn.append(text_at(verdict, x(most) + 8, y + 12, "sx-label", MUTED))
    base = 46 + 22 * shown
    edge = x(shared)
    drawn.append(
        element("path", d=f"M{edge:.1f} 36V{base}", class_="sx-chart-limit", fill="none", stroke="#8a4600",
                stroke_width="1.6", stroke_dasharray="7 4")
    )  # fmt: skip
    drawn.append(text_at(f"{bytes_text(shared)} for an instance", edge - 4, 34, "sx-count", TEXT, text_anchor="end"))
    drawn.append(text_at("shared memory (bytes): a box for each stage, dashed for the epilogue", LEFT, base + 18,
                         "sx-label", MUTED))  # fmt: skip
    return chart(drawn, title, f"{said}.", WIDTH, height)
