"""Iteration spaces (Section 7.7), drawn: a dot for each iteration, arrows for distances, before and after a change.

The outer loop runs downwards and the inner one to the right, so that the order of the loops is the order of reading. A
dot holds a number: when its iteration runs, or the number of its tile, or its date under a schedule; dots of one number
have one shade. An arrow leads from an iteration to one that has to wait for it; each distance has a dash pattern of its
own. Pointing at an iteration lights it up in both pictures and says what it waits for.

Nests with open sizes are drawn with small ones, and of nests of three loops or more there is the table alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..polyhedral.distances import WORDS, Dependences, dependences, running_pairs
from ..polyhedral.grid import MOST_SHOWN, SHOWN_SIZE, can_be_shown, grid, shown
from ..polyhedral.integers import Vector, apply, identity
from ..polyhedral.nests import LoopNest
from ..polyhedral.scan import TransformedNest, transformed
from .charts import CHARACTER, FONT, MUTED, RULE, TEXT, text_at
from .document import Pane, View
from .listing import listing, plain_lines
from .markup import Html, element, join, table
from .provenance import TabStop
from .theme import COLOURS

STEP, RADIUS = 34, 11.5
LEFT, TOP, RIGHT, BOTTOM = 62, 62, 14, 12
REGIONS = 6
MOST_ARROWS = 160  # of one picture; beyond that one arrow for each distance
MOST_NAMED = 4  # iterations that one waits for, in the words on its dot
DASHES = (None, "7 3", "2 3", "9 3 2 3", "5 2 1 2 1 2", "12 4")

Label = Callable[[Vector], int]


@dataclass(frozen=True)
class Waiting:
    """Which iterations wait for which: arrows (dash pattern, source, target), ``before[t]`` the sources of t, and what
    each pattern means."""

    arrows: tuple[tuple[int, Vector, Vector], ...] = ()
    before: dict[Vector, list[Vector]] | None = None
    legend: tuple[str, ...] = ()


@dataclass(frozen=True)
class Picture:
    """One iteration space: where each iteration stands (``place``), the number in its dot, and the arrows by
    distance."""

    title: str
    names: tuple[str, ...]
    points: tuple[Vector, ...]
    place: Callable[[Vector], Vector]
    number: Label
    numbered: str  # what the number is, for the words on a dot
    waiting: Waiting
    axes: tuple[str, str] = ("", "")


def view(record: Any, full: bool = False) -> View:
    """The pictures of a record of :mod:`staxlab.polyhedral`, its code where it has some, and the table."""
    title, pictures, below = _parts(record)
    body = join([_drawn(pictures, record), *below])
    names = {_key(p): f"iteration {_tuple(p)}" for picture in pictures for p in picture.points}
    pane = Pane("iteration-space", title, body, _summary(record), text(record))
    return View(title.lower(), (pane,), names=names)


def text(record: Any) -> str:
    """What a terminal shows: the record as text, and its numbers on a grid."""
    lines = [record.format()]
    for picture in _parts(record, markup=False)[1]:
        lines += ["", f"{picture.title} ({picture.numbered}):"]
        places = {picture.place(p): p for p in picture.points}
        lines.append(grid(places, lambda y, places=places, picture=picture: picture.number(places[y]), picture.names))
    return "\n".join(lines)


def _parts(record: Any, markup: bool = True) -> tuple[str, list[Picture], list[Html]]:
    kind = type(record).__name__
    if kind in ("LoopNest", "Dependences"):
        found = dependences(record) if kind == "LoopNest" else record
        pictures = _space(found)
        below = [_code("the nest", found.nest), dependence_table(found)] if markup else []
        return "Iteration space" if kind == "LoopNest" else "Dependences", pictures, below
    if kind == "Transformation":
        found = record.dependences
        new = transformed(shown(found.nest), record.rows)
        below = []
        if markup:
            notes = [element("p", str(v), class_="sx-note") for v in (record.legal, record.permutable)]
            below = [join(notes), _codes(transformed(found.nest, record.rows)), dependence_table(found, record.rows)]
        return "Transformation", _two_spaces(new, found), below
    if kind == "TransformedNest":
        found = dependences(record.nest)
        new = transformed(shown(record.nest), record.rows, record.sizes)
        below = [_codes(record), dependence_table(found, record.rows)] if markup else []
        return "Transformed nest", _two_spaces(new, found), below
    if kind == "AffineSchedule":
        below = [_proofs(record), dependence_table(record.dependences)] if markup else []
        return "Affine schedule", _dated(record), below
    pictures = _space(record.dependences)
    below = [element("pre", record.format(), class_="sx-code"), dependence_table(record.dependences)] if markup else []
    return "No affine schedule", pictures, below


def _summary(record: Any) -> str:
    return record.format().splitlines()[0]


# -- pictures ---------------------------------------------------------------------------------------------------------


def waiting(found: Dependences, small: LoopNest) -> Waiting:
    """The pairs of the nest as it is drawn. Where distances are few, all of them are arrows; otherwise each iteration
    has one, to the first that waits for it."""
    try:
        pairs = sorted(running_pairs(small))
    except KeyError:  # a subscript is read from data
        return Waiting(legend=("which iterations wait depends on data",))
    before: dict[Vector, list[Vector]] = {}
    for source, target in pairs:
        before.setdefault(target, []).append(source)
    distances = sorted({_minus(target, source) for source, target in pairs})
    if len(distances) > len(DASHES):
        first: dict[Vector, Vector] = {}
        for source, target in pairs:
            first.setdefault(source, target)
        arrows = tuple((0, source, target) for source, target in first.items())
        return Waiting(arrows[:MOST_ARROWS], before, (f"to the first of those that wait; {len(distances)} distances",))
    arrows = tuple((distances.index(_minus(target, source)), source, target) for source, target in pairs)
    if len(arrows) > MOST_ARROWS:  # one for each distance, from the middle
        middle = small.points()[len(small.points()) // 2]
        rank = {p: sum(abs(a - b) for a, b in zip(p, middle, strict=True)) for p in small.points()}
        arrows = tuple(
            min((a for a in arrows if a[0] == k), key=lambda a: (rank[a[1]], a)) for k in range(len(distances))
        )
    return Waiting(arrows, before, tuple(f"distance {_tuple(d)}" for d in distances))


def _minus(a: Vector, b: Vector) -> Vector:
    return tuple(x - y for x, y in zip(a, b, strict=True))


def _space(found: Dependences) -> list[Picture]:
    nest = found.nest
    small = shown(nest)
    if not can_be_shown(small):
        return []
    order = {point: k for k, point in enumerate(small.points())}
    title = "Iterations" + (f", for sizes of {SHOWN_SIZE}" if nest.parameters else "")
    waits = waiting(found, small)
    return [Picture(title, small.names, small.points(), lambda p: p, order.__getitem__, "runs as number", waits)]


def _two_spaces(new: TransformedNest, dependent: Dependences) -> list[Picture]:
    if not can_be_shown(new.nest):
        return []
    waits = waiting(dependent, new.nest)
    points = new.nest.points()
    if any(new.sizes):
        tiles: dict[Vector, int] = {}
        of = {}
        for y in new.new_points():
            tile = tuple(v // s if s else 0 for v, s in zip(y, new.sizes, strict=True))
            of[apply(new.inverse, y)] = tiles.setdefault(tile, len(tiles))
        numbered = "number of its tile"
        after = of.__getitem__
        before = after
    else:
        order = {point: k for k, point in enumerate(new.order())}
        numbered, after = "runs as number", order.__getitem__
        first = {point: k for k, point in enumerate(points)}
        before = first.__getitem__
    found = [Picture("Before", new.nest.names, points, lambda p: p, before, numbered, waits)]
    if new.rows != identity(new.nest.depth) or not any(new.sizes):
        rows = new.rows
        found.append(Picture("After", new.names, points, lambda p: apply(rows, p), after, numbered, waits))
    return found


def _dated(record: Any) -> list[Picture]:
    nest = record.dependences.nest
    small = shown(nest)
    if not can_be_shown(small):
        return []
    points, waits = small.points(), waiting(record.dependences, small)
    numbered = "date" if len(nest.statements) == 1 else f"date of {nest.statements[0].name}"
    found = [Picture(record.theta, small.names, points, lambda p: p, record.date, numbered, waits)]
    fronts: dict[int, list[Vector]] = {}
    for point in points:
        fronts.setdefault(record.date(point), []).append(point)
    place = {p: (k, date) for date, front in fronts.items() for k, p in enumerate(front)}
    axes = ("at the same time", "date")
    title = "Wavefronts: a column for each date"
    found.append(Picture(title, ("at once", "date"), points, place.__getitem__, record.date, numbered, waits, axes))
    return found


def _drawn(pictures: list[Picture], record: Any) -> Html:
    if not pictures:
        said = f"Spaces of one or two loops with at most {MOST_SHOWN} iterations are drawn; here are the numbers."
        return element("p", said, class_="sx-note")
    figures = [
        element("figure", element("figcaption", p.title), _svg(p), class_="sx-map", style="flex: 0 1 auto")
        for p in pictures
    ]
    legend = _legend(pictures[0])
    note = (
        "Each dot is an iteration; the number in it says when it runs, its tile or its date. An arrow leads from an "
        "iteration to one that has to wait for it."
    )
    return join([element("div", figures, class_="sx-maps"), legend, element("p", note, class_="sx-note")])


def _legend(picture: Picture) -> Html:
    if not picture.waiting.legend:
        return element("p", "No iteration waits for another.", class_="sx-note")
    items = []
    for k, words in enumerate(picture.waiting.legend):
        line = element(
            "svg", element("path", d="M2 7H36", **_stroke(k)), _head((2.0, 7.0), (42.0, 7.0)), width=46, height=14,
            aria_hidden="true",
        )  # fmt: skip
        items.append(element("li", line, f" {words}", class_="sx-note"))
    return element("ul", items, style="list-style: none; padding-left: 0; display: flex; flex-wrap: wrap; gap: 0 18px")


def _svg(picture: Picture) -> Html:
    places = {p: (0, *picture.place(p))[-2:] for p in picture.points}
    low = [min(y[k] for y in places.values()) for k in (0, 1)]
    high = [max(y[k] for y in places.values()) for k in (0, 1)]
    plane = len(picture.names) > 1

    def centre(point: Vector) -> tuple[float, float]:
        i, j = places[point]
        return LEFT + (j - low[1] + 0.5) * STEP, TOP + (i - low[0] + 0.5) * STEP

    outer = picture.axes[0] or (f"{picture.names[0]} (outer loop)" if plane else "")
    inner = picture.axes[1] or f"{picture.names[-1]} ({'inner loop' if plane else 'loop'})"
    words = max(LEFT + CHARACTER * len(inner) + 6, 12 + CHARACTER * len(outer) + 6)
    width = max(LEFT + (high[1] - low[1] + 1) * STEP + RIGHT, words)
    height = TOP + (high[0] - low[0] + 1) * STEP + BOTTOM
    said = f"{picture.title}: {len(picture.points)} iterations, "
    said += "; ".join(picture.waiting.legend) or "none waits for another"
    drawn = [
        element("title", said),
        *_axes(low, high, plane, inner, outer),
        element("g", list(_arrows(picture, centre)), aria_hidden="true"),
        *_dots(picture, centre),
    ]
    svg = element(
        "svg", drawn, class_="sx-diagram", width=f"{width:g}", height=f"{height:g}",
        viewBox=f"0 0 {width:g} {height:g}", role="group", aria_label=said, data_group=True, **FONT,
    )  # fmt: skip
    return element("div", svg, class_="sx-scroll sx-drawing")


def _axes(low: Sequence[int], high: Sequence[int], plane: bool, inner: str, outer: str) -> Iterator[Html]:
    yield text_at(inner, LEFT, 16, "sx-count", TEXT, font_weight="600")
    for j in range(low[1], high[1] + 1):
        x = LEFT + (j - low[1] + 0.5) * STEP
        yield text_at(str(j), x, TOP - 10, "sx-label", MUTED, text_anchor="middle")
    if plane:
        yield text_at(outer, 6, 34, "sx-count", TEXT, font_weight="600")
        for i in range(low[0], high[0] + 1):
            y = TOP + (i - low[0] + 0.5) * STEP
            yield text_at(str(i), LEFT - 10, y + 4, "sx-label", MUTED, text_anchor="end")
    right, bottom = LEFT + (high[1] - low[1] + 1) * STEP, TOP + (high[0] - low[0] + 1) * STEP
    yield element("path", d=f"M{right} {TOP}H{LEFT}V{bottom}", class_="sx-chart-axis", fill="none", stroke=RULE)


def _stroke(k: int) -> dict[str, Any]:
    return {"class_": "sx-chart-line", "stroke": "#0b57b0", "stroke_width": "1.6", "fill": "none",
            "stroke_dasharray": DASHES[k % len(DASHES)]}  # fmt: skip


def _head(start: tuple[float, float], tip: tuple[float, float]) -> Html:
    dx, dy = tip[0] - start[0], tip[1] - start[1]
    length = math.hypot(dx, dy) or 1
    dx, dy = dx / length, dy / length
    base = tip[0] - 7 * dx, tip[1] - 7 * dy
    corners = (tip, (base[0] - 3.4 * dy, base[1] + 3.4 * dx), (base[0] + 3.4 * dy, base[1] - 3.4 * dx))
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in corners) + "z"
    return element("path", d=path, class_="sx-chart-point", fill="#0b57b0")


def _arrows(picture: Picture, centre: Callable[[Vector], tuple[float, float]]) -> Iterator[Html]:
    for k, source, target in picture.waiting.arrows:
        (x, y), (u, v) = centre(source), centre(target)
        length = math.hypot(u - x, v - y) or 1
        dx, dy = (u - x) / length * (RADIUS + 1), (v - y) / length * (RADIUS + 1)
        start, tip = (x + dx, y + dy), (u - dx, v - dy)
        end = tip[0] - dx / 2.5, tip[1] - dy / 2.5
        bend = ""
        if length > 1.5 * STEP:  # past other dots: in an arc
            bend = f"Q{(x + u) / 2 - 2.6 * dy:.1f} {(y + v) / 2 + 2.6 * dx:.1f} "
        yield element("path", d=f"M{start[0]:.1f} {start[1]:.1f}{bend or 'L'}{end[0]:.1f} {end[1]:.1f}", **_stroke(k))
        yield _head(start, tip)


def _dots(picture: Picture, centre: Callable[[Vector], tuple[float, float]]) -> Iterator[Html]:
    stop = TabStop()
    for point in picture.points:
        before = (picture.waiting.before or {}).get(point, [])
        more = f" and {len(before) - MOST_NAMED} more" if len(before) > MOST_NAMED else ""
        number = picture.number(point)
        said = f"iteration {_tuple(point)}: {picture.numbered} {number}"
        if picture.waiting.before is not None:
            said += f", waits for {', '.join(map(_tuple, before[-MOST_NAMED:])) or 'none'}{more}"
        x, y = centre(point)
        shade = number % REGIONS
        yield element(
            "g",
            element("title", said),
            element("circle", cx=f"{x:g}", cy=f"{y:g}", r=RADIUS, fill=COLOURS[f"region-{shade}"][0], stroke="#7b858f",
                    class_="sx-frame"),
            element("text", str(number), x=f"{x:g}", y=f"{y + 4:g}", text_anchor="middle", class_="sx-node-detail",
                    fill=TEXT, font_size="10.5"),
            class_=f"sx-node sx-region-{shade}", role="img", aria_label=said, data_point=_tuple(point),
            data_number=number, **stop.attributes([_key(point)], f"iteration {_tuple(point)}"),
        )  # fmt: skip


def _key(point: Vector) -> Any:
    """What links the dots of one iteration in all pictures."""
    return "x" + "_".join(map(str, point))


def _tuple(point: Sequence[Any]) -> str:
    return "(" + ", ".join(map(str, point)) + ")"


# -- words ------------------------------------------------------------------------------------------------------------


def dependence_table(found: Dependences, rows: Sequence[Vector] | None = None) -> Html:
    """A row for each dependence; with ``rows``, what becomes of its distance as well."""
    if not found.found:
        return element("p", "No iteration depends on another.", class_="sx-note")
    head = ["kind", "array", "distance"] + (["after"] if rows is not None else []) + ["source", "target", "remark"]
    lines = []
    for d in found.found:
        after = []
        if rows is not None:
            after = [", ".join(_tuple(apply(tuple(rows), v)) for v in d.distances) if d.is_finite else "not listed"]
        source, target = f"{d.source}: {d.source_access}", f"{d.target}: {d.target_access}"
        remark = "may exist: " + d.reason if not d.exact else "merges" if d.merges else "–"
        lines.append([f"{d.kind} ({WORDS[d.kind]})", d.array, d.direction, *after, source, target, remark])
    return table("Dependences: which accesses meet, and how many iterations apart", head, lines)


def _code(name: str, nest: Any) -> Html:
    return listing(plain_lines(nest.format()), "python", name=name, caption=name)


def _codes(new: TransformedNest) -> Html:
    return join([_code("before", new.nest), _code("after", new)])


def _proofs(record: Any) -> Html:
    return listing(
        plain_lines(record.format()), "text", name="schedule", caption="why every dependence is kept (Lemma 7.1)"
    )
