"""A set of points and its three shadows (Lemma 9.1), drawn: cubes in a corner, and where they project to.

The floor is the projection along the third axis, the walls those along the first and the second. Step by step one slice
more is there, with its part of the shadows; without scripts all are. A pebble game shows the segment with most
products.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ..measure.projections import FACES
from .charts import MUTED, RULE, TEXT, chart, text_at
from .document import Pane, View
from .markup import Html, element, join
from .measures import table_markup

UNIT = 26.0
MOST_POINTS = 700
SIDE = (0.866 * UNIT, 0.5 * UNIT)  # of a unit along the two horizontal axes


def view(record: Any, full: bool = False) -> View:
    """The corner and the table; of a pebble game also its segments."""
    if type(record).__name__ == "PebbleRun":
        largest = max(record.segments, key=lambda segment: len(segment.products.points))
        number = record.segments.index(largest)
        said = f"Segment {number}, with the most products; T_il are the elements of A it takes, T_lj those of B."
        parts = [projections_figure(largest.products), element("p", said, class_="sx-note")]
        caption = record.table().caption
        body = join([*parts, table_markup(record.table())])
        summary = f"{record.transfers:,} transfers, at least {max(record.bound, 0):,.1f} by Theorem 9.1"
        return View("pebbles", (Pane("pebbles", caption, body, summary, str(record)),))
    body = join([projections_figure(record), table_markup(record.table())])
    return View("projections", (Pane("projections", record.table().caption, body, record.summary(), str(record)),))


def projections_figure(record: Any) -> Html:
    """Slices one after the other; a sentence where there is nothing to draw, or too much."""
    points = sorted(record.points)
    if not points or len(points) > MOST_POINTS:
        return element("p", f"A drawing of {len(points):,} points would explain nothing.", class_="sx-note")
    slices = record.slices
    words = ["no slice"]
    for number, s in enumerate(slices):
        shown = sum(one.size for one in slices[: number + 1])
        words.append(
            f"slice {record.axes[0]} = {s.x}: {s.size} points, within {s.alpha} x {s.beta} and above "
            f"{record.sizes[2]}; {shown} points so far"
        )
    return element(
        "figure", corner(record), class_="sx-steps", data_steps=len(slices), data_words=json.dumps(words),
        data_play=True,
    )  # fmt: skip


def corner(record: Any) -> Html:
    """The picture: shadows first, then the cubes from back to front."""
    lows = [min(p[axis] for p in record.points) for axis in range(3)]
    extents = [max(p[axis] for p in record.points) - lows[axis] + 1 for axis in range(3)]
    ex, ey, ez = extents
    left = ey * SIDE[0] + 92
    top = 44 + ez * UNIT

    def at(x: float, y: float, z: float) -> tuple[float, float]:
        """x to the lower right, y to the lower left, z up."""
        return left + (x - y) * SIDE[0], top + (x + y) * SIDE[1] - z * UNIT

    width = max((ex + ey) * SIDE[0] + 190, 420)
    height = top + (ex + ey) * SIDE[1] + 34
    a, b, c = record.sizes
    x, y, z = record.axes
    title = f"{len(record.points):,} points and their projections"
    step = {s.x: number for number, s in enumerate(record.slices, 1)}
    last = len(step)

    def since(first: int) -> str:
        return " ".join(map(str, range(first, last + 1)))

    drawn: list[Html] = [
        element("title", title),
        element("desc", record.summary()),
        text_at(title, 8, 18, "sx-count", TEXT, font_weight="600"),
        text_at(f"|T|² = {len(record.points) ** 2:,} ≤ {a} · {b} · {c} = {a * b * c:,}", 8, 34, "sx-label", MUTED),
    ]
    drawn_from: list[dict[tuple[int, int], int]] = [{}, {}, {}]  # the first step at which a square is in the shade
    for p in record.points:
        for found, (u, v) in zip(drawn_from, FACES, strict=True):
            found[p[u], p[v]] = min(found.get((p[u], p[v]), last), step[p[0]])
    names = (f"T_{x}{y}, floor", f"T_{x}{z}, wall", f"T_{y}{z}, wall")
    drawn += _frame(extents, at)
    for face, (name, squares) in enumerate(zip(names, drawn_from, strict=True)):
        drawn += [_shadow(name, face, place, lows, at, since(first)) for place, first in sorted(squares.items())]
    order = sorted(record.points, key=lambda p: (p[0] + p[1] + p[2], p))
    for p in order:
        place = tuple(p[axis] - lows[axis] for axis in range(3))
        drawn.append(_cube(p, place, at, since(step[p[0]]), str(step[p[0]])))
    drawn += _names(record, extents, at)
    return chart(drawn, title, f"{record.summary()}.", width, height)


def _path(points: list[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{a:.1f} {b:.1f}" for a, b in points) + "z"


def _frame(extents: list[int], at: Any) -> Iterator[Html]:
    """The floor and the two walls behind."""
    ex, ey, ez = extents
    faces = (
        [at(0, 0, 0), at(ex, 0, 0), at(ex, ey, 0), at(0, ey, 0)],
        [at(0, 0, 0), at(ex, 0, 0), at(ex, 0, ez), at(0, 0, ez)],
        [at(0, 0, 0), at(0, ey, 0), at(0, ey, ez), at(0, 0, ez)],
    )
    for face in faces:
        yield element("path", d=_path(face), fill="none", stroke=RULE, stroke_width="0.8", class_="sx-chart-axis")


def _shadow(name: str, face: int, place: tuple[int, int], lows: list[int], at: Any, steps: str) -> Html:
    u, v = place
    if face == 0:
        x, y = u - lows[0], v - lows[1]
        square = [at(x, y, 0), at(x + 1, y, 0), at(x + 1, y + 1, 0), at(x, y + 1, 0)]
    elif face == 1:
        x, z = u - lows[0], v - lows[2]
        square = [at(x, 0, z), at(x + 1, 0, z), at(x + 1, 0, z + 1), at(x, 0, z + 1)]
    else:
        y, z = u - lows[1], v - lows[2]
        square = [at(0, y, z), at(0, y + 1, z), at(0, y + 1, z + 1), at(0, y, z + 1)]
    return element("path", element("title", f"{name}: ({u}, {v})"), d=_path(square), fill="#dfe3e8", stroke=RULE,
                   stroke_width="0.6", class_=f"sx-cell sx-part-{face}", data_shown=steps, data_face=face)  # fmt: skip


def _cube(point: tuple[int, int, int], place: tuple[int, ...], at: Any, steps: str, lit: str) -> Html:
    """The three sides of a cube that are seen, a little smaller than its place."""
    x, y, z = place
    a, b = 0.14, 0.86
    corners = {
        (i, j, k): at(x + (b if i else a), y + (b if j else a), z + (b if k else a))
        for i in (0, 1) for j in (0, 1) for k in (0, 1)
    }  # fmt: skip
    upper = _path([corners[q] for q in ((0, 0, 1), (1, 0, 1), (1, 1, 1), (0, 1, 1))])
    right = _path([corners[q] for q in ((1, 0, 0), (1, 1, 0), (1, 1, 1), (1, 0, 1))])
    front = _path([corners[q] for q in ((0, 1, 0), (1, 1, 0), (1, 1, 1), (0, 1, 1))])
    look = {"stroke": RULE, "stroke_width": "0.7", "class_": "sx-cell sx-lane-cell sx-cell-covered", "fill": "#e4f0fb"}
    sides = [element("path", d=side, data_lit=lit, **look) for side in (right, front, upper)]
    said = element("title", f"point {point}")
    return element("g", said, sides, data_shown=steps, data_point=" ".join(map(str, point)))


def _names(record: Any, extents: list[int], at: Any) -> Iterator[Html]:
    ex, ey, ez = extents
    x, y, z = record.axes
    for name, (a, b), anchor in (
        (f"{x} ({ex} units)", at(ex / 2, ey + 0.4, 0), "end"),
        (f"{y} ({ey} units)", at(ex + 0.4, ey / 2, 0), "start"),
        (f"{z} ({ez} units)", at(0, ey + 0.3, ez / 2), "end"),
    ):
        # x runs along the front left edge of the floor, y along the front right one.
        yield text_at(name, a, b + 12, "sx-label", MUTED, text_anchor=anchor)
