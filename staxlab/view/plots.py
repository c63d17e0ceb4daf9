"""A plot of lines and points as SVG: axes with ticks and units, lines told apart by dashes, points with their names.

For the curves of the hardware models (Section 9.1). Lines are numbers in, pixels out; nothing is fitted or smoothed.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from .charts import CHARACTER, MUTED, RULE, TEXT, Box, chart, free_spot, text_at
from .markup import Html, element

WIDTH, HEIGHT = 540, 300
LEFT, RIGHT, TOP, BOTTOM = 66, 20, 46, 52  # margins
DASHES = (None, "7 4", "2 3", "10 3 2 3")
STYLES = ("solid", "dashed", "dotted", "dash-dotted")

Place = Callable[[float, float], tuple[float, float]]  # a point of the axes, in pixels


@dataclass(frozen=True)
class Curve:
    """A line through points, in the units of the axes; ``steps``: it keeps its value until the next point."""

    label: str
    points: tuple[tuple[float, float], ...]
    steps: bool = False


@dataclass(frozen=True)
class Mark:
    """A point with a name."""

    label: str
    x: float
    y: float


@dataclass(frozen=True)
class Level:
    """A horizontal line at ``y``, or a vertical one at ``x``, with a name."""

    label: str
    x: float | None = None
    y: float | None = None


def round_ticks(most: float, count: int = 6) -> list[float]:
    """Zero and round numbers up to ``most``, about ``count`` of them."""
    if most <= 0:
        return [0.0]
    step = next(s * 10.0**e for e in itertools.count(-9) for s in (1, 2, 5) if s * 10.0**e * count >= most)
    return [round(k * step, 12) for k in range(int(most / step + 1e-9) + 1)]


def plot(
    title: str,
    said: str,
    axes: tuple[str, str],
    curves: Sequence[Curve],
    marks: Sequence[Mark] = (),
    levels: Sequence[Level] = (),
) -> Html:
    """The picture. ``axes`` are the labels with their units; both axes begin at zero."""
    highest_x = max([x for c in curves for x, _ in c.points] + [m.x for m in marks] + [v.x or 0 for v in levels])
    highest_y = 1.08 * max([y for c in curves for _, y in c.points] + [m.y for m in marks] + [v.y or 0 for v in levels])
    across, up = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return LEFT + x / (highest_x or 1) * across, HEIGHT - BOTTOM - y / (highest_y or 1) * up

    taken: list[Box] = []
    drawn = [
        element("title", title),
        element("desc", said),
        text_at(title, 8, 18, "sx-count", TEXT, font_weight="600"),
        *_axes(axes, highest_x, highest_y, at),
    ]
    for number, curve in enumerate(curves):
        drawn.append(_line(curve, at, DASHES[number % len(DASHES)]))
        taken += covered(curve.points, at, curve.steps)
    for level in levels:
        drawn += _level(level, at, taken)
    for mark in marks:
        drawn += _mark(mark, at, taken)
    if len(curves) > 1:
        names = " · ".join(f"{STYLES[number % 4]}: {curve.label}" for number, curve in enumerate(curves))
        drawn.append(text_at(names, 8, 34, "sx-label", MUTED))
    return chart(drawn, title, said, WIDTH, HEIGHT)


def covered(points: Iterable[tuple[float, float]], at: Place, steps: bool = False) -> Iterator[Box]:
    """Small boxes along a line through points, where words should not stand."""
    drawn = [at(x, y) for x, y in points]
    for (x0, y0), (x1, y1) in itertools.pairwise(drawn):
        for k in range(9):
            x, y = x0 + (x1 - x0) * k / 8, y0 if steps else y0 + (y1 - y0) * k / 8
            yield x - 3, y - 2, x + 3, y + 2
        if steps and y0 != y1:
            yield x1 - 3, min(y0, y1), x1 + 3, max(y0, y1)


def axes_drawn(
    labels: tuple[str, str],
    frame: tuple[float, float, float, float],
    across: Iterable[tuple[float, str]],
    up: Iterable[tuple[float, str]],
) -> Iterator[Html]:
    """Both axes of the ``frame`` (left, top, right, bottom in pixels) with labels, ``BOTTOM`` pixels of
    margin below it, and ticks: pixels along the axis and what stands there."""
    left, top, right, bottom = frame
    yield element("path", d=f"M{left} {top}V{bottom}H{right}", class_="sx-chart-axis", fill="none", stroke=RULE)
    for x, words in across:
        yield element("path", d=f"M{x:.1f} {bottom}V{bottom + 4}", class_="sx-chart-axis", stroke=RULE)
        yield text_at(words, x, bottom + 17, "sx-label", MUTED, text_anchor="middle")
    for y, words in up:
        yield element("path", d=f"M{left - 4} {y:.1f}H{left}", class_="sx-chart-axis", stroke=RULE)
        yield text_at(words, left - 8, y + 4, "sx-label", MUTED, text_anchor="end")
    yield text_at(labels[0], (left + right) / 2, bottom + BOTTOM - 10, "sx-label", MUTED, text_anchor="middle")
    yield text_at(labels[1], 0, 0, "sx-label", MUTED, text_anchor="middle",
                  transform=f"translate(16 {(top + bottom) / 2:g}) rotate(-90)")  # fmt: skip


def _axes(labels: tuple[str, str], highest_x: float, highest_y: float, at: Place) -> Iterator[Html]:
    across = ((at(value, 0)[0], f"{value:g}") for value in round_ticks(highest_x))
    up = ((at(0, value)[1], f"{value:g}") for value in round_ticks(highest_y, 5))
    return axes_drawn(labels, (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM), across, up)


def _line(curve: Curve, at: Place, dash: str | None) -> Html:
    path = ""
    for number, (x, y) in enumerate(curve.points):
        left, top = at(x, y)
        onward = f"H{left:.1f}V{top:.1f}" if curve.steps else f"L{left:.1f} {top:.1f}"
        path += onward if number else f"M{left:.1f} {top:.1f}"
    return element("path", element("title", curve.label), d=path, class_="sx-chart-line", fill="none",
                   stroke="#0b57b0", stroke_width="2.2", stroke_dasharray=dash)  # fmt: skip


def _level(level: Level, at: Place, taken: list[Box]) -> Iterator[Html]:
    base, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    x, y = at(level.x or 0, level.y or 0)
    path = f"M{x:.1f} {TOP}V{base}" if level.x is not None else f"M{LEFT} {y:.1f}H{right}"
    yield element("path", d=path, class_="sx-chart-limit", fill="none", stroke="#8a4600", stroke_width="1.6",
                  stroke_dasharray="7 4")  # fmt: skip
    room = CHARACTER * len(level.label)
    spots = (
        [(x + 6, TOP + 14), (x - room - 6, TOP + 14), (x + 6, base - 10)]
        if level.x is not None
        else [(right - room, y - 5), (LEFT + 6, y - 5), (right - room, y + 14)]
    )
    left, top = free_spot([spot for spot in spots if LEFT <= spot[0] <= right - room + 1] or spots, level.label, taken)
    yield text_at(level.label, left, top, "sx-count", TEXT)


def _mark(mark: Mark, at: Place, taken: list[Box]) -> Iterator[Html]:
    x, y = at(mark.x, mark.y)
    said = f"{mark.label}: {mark.x:.4g}, {mark.y:.4g}"
    yield element("circle", element("title", said), cx=f"{x:.1f}", cy=f"{y:.1f}", r=5, class_="sx-chart-point",
                  fill="#0b57b0", data_x=f"{mark.x:g}", data_y=f"{mark.y:g}")  # fmt: skip
    taken.append((x - 6, y - 6, x + 6, y + 6))
    room = CHARACTER * len(mark.label)
    spots = [(x + 9, y + 16), (x + 9, y - 8), (x - room - 9, y + 16), (x - room - 9, y - 8), (x - room / 2, y + 24)]
    inside = [spot for spot in spots if LEFT <= spot[0] <= WIDTH - 4 - room and TOP < spot[1] < HEIGHT - BOTTOM]
    left, top = free_spot(inside or spots, mark.label, taken)
    yield text_at(mark.label, left, top, "sx-count", TEXT)
