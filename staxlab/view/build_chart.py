"""A lane for every worker: what a build did, or what a list schedule does (Section 11.2).

Boxes are tasks; of a build those that were found compiled are drawn as an outline with a tick, so that colour is not
all that tells them apart. Dashed lines are the bounds of Proposition 11.2, and for a list schedule that of Exercise 31.
In front of a build that knows of its compilation stands what only one thread can do, the stages from capture on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from ..measure.tables import Table, seconds_text
from ..runtime.build_report import CALLER
from .charts import CHARACTER, MUTED, RULE, TEXT, chart, text_at
from .document import Pane
from .figures import SERIES
from .launch_timeline import ticks
from .markup import Html, element, join
from .measures import table_markup
from .provenance import TabStop, origins_text

WIDTH, LEFT, RIGHT, TOP, LANE, GAP = 760, 84, 28, 56, 24, 6
CHARACTERS = 64


@dataclass(frozen=True)
class Box:
    """A stretch of a lane: ``name`` in words, ``kind`` one of task, hit, stage; ``marks`` are further attributes."""

    start: float
    finish: float
    name: str
    said: str
    kind: str = "task"
    origins: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Lanes:
    """What is drawn: lanes by name, lines across them (position and words), the unit of the axis and how a position is
    written."""

    title: str
    said: str
    lanes: tuple[tuple[str, tuple[Box, ...]], ...]
    lines: tuple[tuple[float, str], ...]
    unit: str
    scale: float
    word: Callable[[float], str]

    @property
    def end(self) -> float:
        return max([box.finish for _, boxes in self.lanes for box in boxes] + [at for at, _ in self.lines], default=0.0)


def lanes_of(record: Any) -> Lanes:
    """The lanes of a :class:`~staxlab.runtime.build_report.BuildReport` or a
    :class:`~staxlab.measure.list_scheduling.ListSchedule`."""
    return _of_schedule(record) if hasattr(record, "assignments") else _of_build(record)


def _of_build(report: Any) -> Lanes:
    ahead, lanes, at = report.serial, [], 0.0
    if report.before:
        stages = []
        for name, seconds in report.before:
            stages.append(Box(at, at + seconds, name, f"{name}: {seconds_text(seconds)}", "stage"))
            at += seconds
        lanes.append(("serial", tuple(stages)))
    for number, tasks in report.lanes:
        boxes = tuple(
            Box(ahead + t.started, ahead + t.finished, t.kernel, _task_text(t), "hit" if t.hit else "task", t.origins)
            for t in tasks
        )
        lanes.append(("caller" if number == CALLER else f"worker {number}", boxes))
    lines: tuple = ()
    if report.compiled:
        began = ahead + min(task.queued for task in report.compiled)
        low, high = report.bound
        lines = ((began + low, "lower bound"), (began + high, "upper bound"))
    title = f"Build of {len(report.tasks)} kernel{'' if len(report.tasks) == 1 else 's'}"
    said = report.summary()
    if report.before:
        said += f"; before it, {seconds_text(ahead)} in one thread"
    end = max([ahead + report.seconds, *(at for at, _ in lines)])
    unit, scale = ("seconds", 1.0) if end >= 1 else ("milliseconds", 1e3)
    return Lanes(title, said, tuple(lanes), lines, unit, scale, seconds_text)


def _task_text(task: Any) -> str:
    if task.hit:
        return f"{task.kernel}: found compiled, loaded in {seconds_text(task.seconds)}"
    waited = task.started - task.queued
    return f"{task.kernel}: waits {seconds_text(max(waited, 0.0))}, compiled in {seconds_text(task.seconds)}"


def _of_schedule(schedule: Any) -> Lanes:
    def word(value: float) -> str:
        return f"{value:.4g}"

    lanes = tuple(
        (
            f"worker {number}",
            tuple(
                Box(float(a.start), float(a.finish), f"task {a.task}",
                    f"task {a.task}: from {word(float(a.start))} to {word(float(a.finish))}")
                for a in schedule.lane(number)
            ),
        )
        for number in range(schedule.workers)
    )  # fmt: skip
    low, high = schedule.bounds
    lines = [(float(low), "lower bound"), (float(schedule.improved_bound), "improved bound")]
    if high != schedule.improved_bound:
        lines.append((float(high), "upper bound"))
    title = f"{len(schedule.durations)} tasks on {schedule.workers} worker{'' if schedule.workers == 1 else 's'}"
    return Lanes(title, schedule.summary(), lanes, tuple(lines), "the unit of the durations", 1.0, word)


# -- text --------------------------------------------------------------------------------------------------------------


def text(record: Any) -> str:
    """The lanes in characters, and a line for every task."""
    drawn = lanes_of(record)
    return "\n".join([drawn.said, *_picture(drawn), table_of(record).text()])


def _picture(drawn: Lanes) -> Iterator[str]:
    end = drawn.end
    if not drawn.lanes or end <= 0:
        return
    wide = max(len(name) for name, _ in drawn.lanes)
    for name, boxes in drawn.lanes:
        cells = [" "] * CHARACTERS
        for number, box in enumerate(boxes):
            letter = {"hit": "·", "stage": "Ss"[number % 2]}.get(box.kind, "Kk"[number % 2])
            first = min(int(box.start / end * CHARACTERS), CHARACTERS - 1)
            last = min(max(int(box.finish / end * CHARACTERS), first + 1), CHARACTERS)
            cells[first:last] = [letter] * (last - first)
        yield f"{name:>{wide}} |{''.join(cells).rstrip()}"
    cells = [" "] * (CHARACTERS + 1)
    for at, _ in drawn.lines:
        cells[int(at / end * CHARACTERS)] = "^"
    if drawn.lines:
        words = ", ".join(f"{name} {drawn.word(at)}" for at, name in drawn.lines)
        yield f"{'':>{wide}}  {''.join(cells).rstrip()}   ^ {words}"
    yield f"{'':>{wide}} |0{drawn.word(end):>{CHARACTERS - 1}}"
    kinds = {box.kind for _, boxes in drawn.lanes for box in boxes}
    signs = {"stage": "S s stages in one thread", "task": "K k tasks in turn", "hit": "· found compiled"}
    yield f"{'':>{wide}}  {', '.join(words for kind, words in signs.items() if kind in kinds)}"


def table_of(record: Any) -> Table:
    """The tasks as rows."""
    if hasattr(record, "assignments"):
        return record.table()
    rows = [
        (
            task.kernel,
            task.language,
            "caller" if task.worker == CALLER else task.worker,
            "found compiled" if task.hit else "compiled",
            seconds_text(task.started),
            seconds_text(task.seconds),
        )
        for task in record.tasks
    ]
    columns = ("kernel", "language", "worker", "", "begins", "takes")
    notes = ["begins: since the build began"] if rows else []
    return Table.build("Tasks of the build", columns, rows, notes, text_columns=4)


# -- SVG ---------------------------------------------------------------------------------------------------------------


def panes(record: Any) -> list[Pane]:
    """The lanes, and a row for every task."""
    drawn = lanes_of(record)
    body = [lanes_chart(drawn)] if drawn.lanes else [element("p", drawn.said, class_="sx-note")]
    body.append(table_markup(table_of(record)))
    return [Pane("build", drawn.title, join(body), drawn.said, text(record))]


def lanes_chart(drawn: Lanes) -> Html:
    """The picture of the lanes."""
    end = drawn.end or 1e-9
    base = TOP + len(drawn.lanes) * (LANE + GAP)
    height = base + 46 + 14 * len(drawn.lines)

    def x(value: float) -> float:
        return LEFT + value / end * (WIDTH - LEFT - RIGHT)

    stop = TabStop()
    parts = [
        element("title", drawn.title),
        element("desc", drawn.said),
        text_at(drawn.title, 12, 18, "sx-count", TEXT, font_weight="600"),
        text_at("boxes are tasks; an outline with a tick was found compiled; dashed lines are bounds", 12, 36,
                "sx-label", MUTED),
    ]  # fmt: skip
    # Behind the boxes, whose labels are to be read.
    for number, (at, words) in enumerate(drawn.lines):
        place, low = x(at), base + 46 + 14 * number
        parts.append(
            element("path", element("title", f"{words}: {drawn.word(at)}"), d=f"M{place:.1f} {TOP - 6}V{base}",
                    class_="sx-chart-limit", fill="none", stroke="#8a4600", stroke_dasharray="7 4",
                    data_bound=words)
        )  # fmt: skip
        parts.append(text_at(f"dashed: {words} {drawn.word(at)}", WIDTH - RIGHT, low, "sx-label", MUTED,
                             text_anchor="end", data_line=words))  # fmt: skip
    for row, (name, boxes) in enumerate(drawn.lanes):
        y = TOP + row * (LANE + GAP)
        parts.append(text_at(name, LEFT - 8, y + LANE / 2 + 4, "sx-label", MUTED, text_anchor="end"))
        for number, box in enumerate(boxes):
            parts += _box(box, number, y, x, stop)
    parts.append(element("path", d=f"M{LEFT} {base}H{WIDTH - RIGHT}", class_="sx-chart-axis", fill="none", stroke=RULE))
    for tick in ticks(end * drawn.scale):
        at = x(tick / drawn.scale)
        parts.append(element("path", d=f"M{at:.1f} {base}V{base + 4}", class_="sx-chart-axis", stroke=RULE))
        parts.append(text_at(f"{tick:g}", at, base + 17, "sx-label", MUTED, text_anchor="middle"))
    parts.append(text_at(f"time ({drawn.unit})", (LEFT + WIDTH - RIGHT) / 2, base + 34, "sx-label", MUTED,
                         text_anchor="middle"))  # fmt: skip
    return chart(join(parts), drawn.title, drawn.said, WIDTH, height)


def _box(box: Box, number: int, y: float, x: Callable[[float], float], stop: TabStop) -> Iterator[Html]:
    width = max(x(box.finish) - x(box.start), 1.0)
    style = {"stage": "sx-part-2", "hit": None}.get(box.kind, f"sx-part-{number % 2}")
    fill = {"stage": "#fff3c9", "hit": "none"}.get(box.kind, ("#fbe9d3", "#dcecfb")[number % 2])
    yield element(
        "rect", element("title", box.said), x=f"{x(box.start):.1f}", y=y, width=f"{width:.1f}", height=LANE, rx=2,
        fill=fill, stroke=SERIES[0], class_=style, data_kind=box.kind,
        **(stop.attributes(box.origins, box.name) if origins_text(box.origins) else {}),
    )  # fmt: skip
    label = "\N{CHECK MARK}" if box.kind == "hit" else box.name
    room = int((width - 4) // CHARACTER)
    if room >= min(len(label), 3):
        short = label if len(label) <= room else label[: max(room - 1, 1)] + "\N{HORIZONTAL ELLIPSIS}"
        middle = x(box.start) + width / 2
        yield text_at(short, middle, y + LANE / 2 + 4, "sx-label", TEXT, text_anchor="middle")
