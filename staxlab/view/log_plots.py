"""A plot of lines over two logarithmic axes: powers on both, lines told apart by dashes, every point with its values.

The logarithmic counterpart of ``plots``, with the same curves, marks and levels. A level may also bound a range that is
out of reach, which is hatched. What was measured beside what a curve says are dots, told apart by their shapes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from .charts import CHARACTER, MUTED, RULE, TEXT, Box, chart, free_spot, text_at
from .markup import Html, element
from .plots import BOTTOM, DASHES, STYLES, Curve, Level, Mark, Place, axes_drawn, covered

WIDTH, HEIGHT = 620, 340
LEFT, RIGHT, TOP = 84, 22, 52  # margins; below as in plots
MOST_TICKS = 9
SHAPES = ("circles", "squares", "triangles", "crosses")


@dataclass(frozen=True)
class Dots:
    """Points that no line joins, in the units of the axes, under one name and shape."""

    label: str
    points: tuple[tuple[float, float], ...]


def power_ticks(low: float, high: float, base: int = 10) -> list[float]:
    """Powers of ``base`` from ``low`` to ``high``, every second, fifth or tenth of them where they are many."""
    first, last = math.ceil(math.log(low, base) - 1e-9), math.floor(math.log(high, base) + 1e-9)
    stride = next(s for s in (1, 2, 5, 10, 20, 50) if (last - first) / s < MOST_TICKS)
    return [float(base) ** e for e in range(first, last + 1, stride)]


def log_plot(
    title: str,
    said: str,
    axes: tuple[str, str],
    curves: Sequence[Curve],
    marks: Sequence[Mark] = (),
    levels: Sequence[Level] = (),
    *,
    base: int = 10,
    beyond: float | None = None,
    dots: Sequence[Dots] = (),
) -> Html:
    """The picture. ``axes`` are the labels with their units, ``base`` that of the ticks across; what is right of
    ``beyond`` is hatched. Where there are ``dots``, the points of curves are not drawn. Values of 0 or less cannot be
    drawn and are left out."""
    points = [p for c in (*curves, *dots) for p in c.points] + [(m.x, m.y) for m in marks]
    xs = [x for x, y in points if x > 0 < y] + [v.x for v in levels if v.x]
    ys = [y for x, y in points if x > 0 < y] + [v.y for v in levels if v.y]
    low_x, high_x, low_y, high_y = min(xs) / 1.2, max(xs) * 1.2, min(ys) / 1.6, max(ys) * 1.6
    across, up = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM

    def at(x: float, y: float) -> tuple[float, float]:
        return (
            LEFT + math.log(x / low_x) / math.log(high_x / low_x) * across,
            HEIGHT - BOTTOM - math.log(y / low_y) / math.log(high_y / low_y) * up,
        )

    taken: list[Box] = []
    drawn = [
        element("title", title),
        element("desc", said),
        text_at(title, 8, 18, "sx-count", TEXT, font_weight="600"),
        *_beyond(beyond, high_x, at, (low_x, low_y)),
        *_axes(axes, (low_x, high_x, low_y, high_y), base, at),
    ]
    for number, curve in enumerate(curves):
        drawn += _curve(curve, at, DASHES[number % len(DASHES)], with_points=not dots)
        taken += covered([(x, y) for x, y in curve.points if x > 0 < y], at)
    for number, scattered in enumerate(dots):
        drawn += _dots(scattered, at, SHAPES[number % len(SHAPES)])
    for level in levels:
        drawn += _level(level, at, (low_x, low_y), taken)
    for mark in marks:
        drawn += _mark(mark, at, taken)
    if len(curves) > 1:
        names = " · ".join(f"{STYLES[number % 4]}: {curve.label}" for number, curve in enumerate(curves))
        drawn.append(text_at(names, 8, 36, "sx-label", MUTED))
    if dots:
        names = " · ".join(f"{SHAPES[number % len(SHAPES)]}: {each.label}" for number, each in enumerate(dots))
        drawn.append(text_at(names, 8, 49, "sx-label", MUTED))
    return chart(drawn, title, said, WIDTH, HEIGHT)


def _number(value: float) -> str:
    """``64``, ``0.25``, ``10^9``"""
    exponent = math.log10(value)
    if abs(exponent - round(exponent)) < 1e-9 and abs(exponent) >= 4:
        return f"10^{round(exponent)}"
    return f"{value:,.0f}" if value >= 1 else f"{value:g}"


def _axes(labels: tuple[str, str], extent: tuple[float, ...], base: int, at: Place) -> Iterator[Html]:
    low_x, high_x, low_y, high_y = extent
    across = ((at(value, low_y)[0], _number(value)) for value in power_ticks(low_x, high_x, base))
    up = ((at(low_x, value)[1], _number(value)) for value in power_ticks(low_y, high_y))
    return axes_drawn(labels, (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM), across, up)


def _curve(curve: Curve, at: Place, dash: str | None, with_points: bool = True) -> Iterator[Html]:
    shown = [(x, y) for x, y in curve.points if x > 0 < y]
    path = "L".join("{:.1f} {:.1f}".format(*at(x, y)) for x, y in shown)
    yield element("path", element("title", curve.label), d=f"M{path}", class_="sx-chart-line", fill="none",
                  stroke="#0b57b0", stroke_width="2.2", stroke_dasharray=dash, data_curve=curve.label)  # fmt: skip
    for x, y in shown if with_points else ():
        left, top = at(x, y)
        yield element("circle", element("title", f"{curve.label}: {x:g}, {y:,.6g}"), cx=f"{left:.1f}", cy=f"{top:.1f}",
                      r=3, class_="sx-chart-point", fill="#0b57b0", data_x=f"{x:g}", data_y=f"{y:g}")  # fmt: skip


def _dots(dots: Dots, at: Place, shape: str) -> Iterator[Html]:
    """The points under their shape: each path begins at its left."""
    path = {
        "circles": "M-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0z", "squares": "M-3.5 -3.5h7v7h-7z",
        "triangles": "M-4.5 3.5h9l-4.5 -8z", "crosses": "M-5 -1h4v-4h2v4h4v2h-4v4h-2v-4h-4z",
    }[shape]  # fmt: skip
    for x, y in dots.points:
        if not (x > 0 < y):
            continue
        left, top = at(x, y)
        yield element("path", element("title", f"{dots.label}: {x:g}, {y:,.4g}"), d=path, class_="sx-chart-point",
                      fill="#0b57b0", transform=f"translate({left:.1f} {top:.1f})", data_dots=dots.label,
                      data_x=f"{x:g}", data_y=f"{y:g}")  # fmt: skip


def _beyond(edge: float | None, high_x: float, at: Place, origin: tuple[float, float]) -> Iterator[Html]:
    """Slanted lines over what is right of the edge."""
    if edge is None or edge >= high_x:
        return
    x, y = at(max(edge, origin[0]), origin[1])
    right, height = WIDTH - RIGHT, y - TOP
    lines = ""
    start = x - height
    while start < right:
        # From the lower left to the upper right, cut at the edge and at the frame.
        a, b = max(start, x), min(start + height, right)
        if b > a:
            lines += f"M{a:.1f} {y - (a - start):.1f}L{b:.1f} {y - (b - start):.1f}"
        start += 9
    yield element("path", element("title", "out of reach"), d=lines, class_="sx-chart-round", fill="none", stroke=RULE,
                  stroke_width="0.8", data_beyond=f"{edge:g}")  # fmt: skip


def _level(level: Level, at: Place, origin: tuple[float, float], taken: list[Box]) -> Iterator[Html]:
    bottom, right = HEIGHT - BOTTOM, WIDTH - RIGHT
    x, y = at(level.x or origin[0], level.y or origin[1])
    path = f"M{x:.1f} {TOP}V{bottom}" if level.x is not None else f"M{LEFT} {y:.1f}H{right}"
    yield element("path", element("title", level.label), d=path, class_="sx-chart-limit", fill="none",
                  stroke="#8a4600", stroke_width="1.6", stroke_dasharray="7 4", data_level=level.label)  # fmt: skip
    room = CHARACTER * len(level.label)
    if level.x is not None:
        taken.append((x - 2, TOP, x + 2, bottom))  # no name is written across the line
        spots = [(x - room - 6, TOP + 12), (x + 6, TOP + 12), (x - room - 6, bottom - 10), (x + 6, bottom - 10)]
    else:
        spots = [(right - room, y - 6), (LEFT + 6, y - 6), (right - room, y + 14), (LEFT + 6, y + 14)]
    inside = [spot for spot in spots if LEFT <= spot[0] <= right - room + 1 and TOP < spot[1] < bottom]
    left, top = free_spot(inside or spots, level.label, taken)
    yield text_at(level.label, left, top, "sx-count", TEXT)


def _mark(mark: Mark, at: Place, taken: list[Box]) -> Iterator[Html]:
    x, y = at(mark.x, mark.y)
    path = f"M{x:.1f} {y - 7:.1f}l7 7l-7 7l-7 -7z"
    yield element("path", element("title", f"{mark.label}: {mark.x:g}, {mark.y:,.6g}"), d=path, class_="sx-cell "
                  "sx-cell-written", fill="#e2f5e7", stroke=RULE, data_mark=mark.label)  # fmt: skip
    taken.append((x - 8, y - 8, x + 8, y + 8))
    room = CHARACTER * len(mark.label)
    spots = [(x + 11, y - 9), (x - room - 11, y + 16), (x + 11, y + 16), (x - room - 11, y - 9)]
    inside = [s for s in spots if LEFT <= s[0] <= WIDTH - 4 - room and TOP < s[1] < HEIGHT - BOTTOM]
    left, top = free_spot(inside or spots, mark.label, taken)
    yield text_at(mark.label, left, top, "sx-count", TEXT)
