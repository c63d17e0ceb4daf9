"""A roofline in a notebook (Definition 1.1): one slope for each level of memory, and what stands under each.

Plain SVG whose every line and marker carries its numbers, as a title for the mouse and as words that a script
(``assets/roofline.js``) shows below the picture where the pointer or the keyboard's focus is. The same script turns the
list of ceilings into switches. Without it everything is drawn and every number stands in the list.

Which slope limits a kernel depends on where its working set lies; a thin line leads from each marker up to its own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from ..measure.tables import bytes_text, quantity_text
from .charts import MUTED, RULE, TEXT, Box, chart, free_spot, text_at
from .log_plots import power_ticks
from .markup import Html, element, join
from .plots import BOTTOM, axes_drawn

if TYPE_CHECKING:
    from ..measure.roofline import Ceiling, Point, Roofline

WIDTH, HEIGHT = 700, 430
LEFT, RIGHT, TOP = 84, 22, 40
DASHES = (None, "9 4", "2 3", "9 3 2 3", "5 2", "1 2", "12 3 2 3 2 3")
SIZE = 7  # of a marker, from its middle, in pixels

Place = Callable[[float, float], tuple[float, float]]


def extent(roofline: Roofline) -> tuple[float, float, float, float]:
    """Limits of the plot with room around what is drawn: intensity from and to, performance from and to."""
    intensities = [p.intensity for p in roofline.points if p.intensity > 0]
    ridge = roofline.ridge if math.isfinite(roofline.ridge) else 10.0
    left = min([0.05, *(i / 2 for i in intensities)])
    right = max([ridge * 8, *(i * 2 for i in intensities)])
    rates = [p.throughput for p in roofline.points if p.throughput > 0]
    low = [c.value * left for c in roofline.of("bandwidth")] + [r / 2 for r in rates]
    high = [c.value for c in roofline.of("throughput")] + rates
    return left, right, min(low, default=1e9) / 1.5, max(high, default=1e12) * 2


def drawn_ceilings(roofline: Roofline) -> tuple[Ceiling, ...]:
    """What is drawn: the highest bandwidth of each cache, every bandwidth of main memory, every rate of arithmetic. The
    others stand in the table."""
    near = [top for level in roofline.levels if level != "memory" for top in roofline.of("bandwidth", level)[:1]]
    return (*near, *roofline.of("bandwidth"), *roofline.of("throughput"))


def ends(roofline: Roofline, ceiling: Ceiling, left: float, right: float) -> tuple[float, float]:
    """From which intensity to which a ceiling is drawn: a slope up to the highest rate of arithmetic, a rate from where
    the steepest slope reaches it."""
    if ceiling.kind == "bandwidth":
        highest = max((c.value for c in roofline.of("throughput")), default=math.inf)
        return left, min(highest / ceiling.value, right)
    steepest = max((c.value for c in drawn_ceilings(roofline) if c.kind == "bandwidth"), default=math.nan)
    start = ceiling.value / steepest if math.isfinite(steepest) else left
    return min(max(start, left), right), right


def said_of_ceiling(roofline: Roofline, ceiling: Ceiling) -> str:
    """A ceiling in words: its value, where its bytes lie, and the ridge point it makes with the other roof."""
    if ceiling.kind == "throughput":
        ridge = f"; with main memory its ridge point is {ceiling.value / roofline.bandwidth:.3g} FLOP/byte"
        words = f"{ceiling.name}: {ceiling.text()}{ridge if math.isfinite(roofline.bandwidth) else ''}"
    else:
        holds = f", working sets up to {bytes_text(ceiling.capacity)}" if ceiling.capacity else ""
        ridge = roofline.throughput / ceiling.value
        words = f"{ceiling.name}: {ceiling.text()}{holds}"
        words += f"; ridge point {ridge:.3g} FLOP/byte" if math.isfinite(ridge) else ""
    return f"{words} ({ceiling.remark()})" if ceiling.remark() else words


def said_of_point(roofline: Roofline, point: Point) -> str:
    """A kernel in words: rate, share of its roof, bytes, operations, time and working set."""
    parts = [f"{point.label}: {quantity_text(point.throughput, 'FLOP/s')} at {point.intensity:.3g} FLOP/byte"]
    if roofline.of("bandwidth") and roofline.of("throughput"):
        parts.append(roofline.fraction_text(point))
    parts.append(f"{quantity_text(point.operations, 'FLOP', 4)} and {quantity_text(point.nbytes, 'B', 4)} moved")
    parts.append(f"effectively {quantity_text(point.bandwidth, 'B/s')}")
    if point.working_set is not None:
        parts.append(f"working set {bytes_text(round(point.working_set))}, in {roofline.level_of(point)}")
    return "; ".join(parts)


def figure(roofline: Roofline) -> Html:
    """The picture, the line of words below it, and the list of ceilings that a script turns into switches."""
    left, right, bottom, top = extent(roofline)

    def at(x: float, y: float) -> tuple[float, float]:
        across, up = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
        return (
            LEFT + math.log(max(x, left) / left) / math.log(right / left) * across,
            HEIGHT - BOTTOM - math.log(max(y, bottom) / bottom) / math.log(top / bottom) * up,
        )

    taken: list[Box] = []
    ceilings = drawn_ceilings(roofline)
    drawn = [element("title", roofline.title), element("desc", roofline.description),
             text_at(roofline.title, 8, 20, "sx-count", TEXT, font_weight="600"),
             *_axes((left, right, bottom, top), at)]  # fmt: skip
    for point in roofline.points:
        x, y = at(point.intensity, point.throughput)
        taken.append((x - 10, y - 10, x + 10, y + 10))
    for number, ceiling in enumerate(ceilings):
        drawn.append(_ceiling(roofline, ceiling, number, at, (left, right), taken))
    drawn += [_point(roofline, point, number, at, taken) for number, point in enumerate(roofline.points)]
    picture = chart(drawn, roofline.title, roofline.description, WIDTH, HEIGHT)
    hint = "Every line and marker has its numbers: point at one, or reach it with the Tab key."
    said = element("output", hint, class_="sx-roof-words", aria_live="polite")
    entries = [
        element("li", _sample(number), " ", said_of_ceiling(roofline, ceiling), data_ceiling=number)
        for number, ceiling in enumerate(ceilings)
    ]
    marks = [
        element("li", f"{letter(number)}  {said_of_point(roofline, point)}")
        for number, point in enumerate(roofline.points)
    ]
    lists = [element("ul", entries, class_="sx-roof-list", aria_label="Ceilings")]
    if marks:
        lists.append(element("ul", marks, class_="sx-roof-list", aria_label="Kernels"))
    return element("div", join([picture, said, *lists]), class_="sx-roofline")


def letter(number: int) -> str:
    return chr(ord("A") + number % 26)


def _axes(limits: tuple[float, ...], at: Place) -> Iterator[Html]:
    left, right, bottom, top = limits
    across = ((at(value, bottom)[0], f"{value:g}") for value in power_ticks(left, right))
    up = ((at(left, value)[1], f"{value / 1e9:,g}") for value in power_ticks(bottom, top))
    labels = ("arithmetic intensity (FLOP/byte)", "performance (GFLOP/s)")
    return axes_drawn(labels, (LEFT, TOP, WIDTH - RIGHT, HEIGHT - BOTTOM), across, up)


def _is_roof(ceiling: Ceiling, roofline: Roofline) -> bool:
    """The highest of each level and of arithmetic is drawn stronger."""
    return roofline.of(ceiling.kind, ceiling.level)[0] is ceiling


def _ceiling(
    roofline: Roofline, ceiling: Ceiling, number: int, at: Place, limits: tuple[float, float], taken: list[Box]
) -> Html:
    begin, end = ends(roofline, ceiling, *limits)
    rate = (lambda x: ceiling.value * x) if ceiling.kind == "bandwidth" else (lambda x: ceiling.value)
    (x0, y0), (x1, y1) = at(begin, rate(begin)), at(end, rate(end))
    words, strong = said_of_ceiling(roofline, ceiling), _is_roof(ceiling, roofline)
    line = element("path", element("title", words), d=f"M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}", fill="none",
                   class_="sx-chart-line" if strong else "sx-chart-line sx-roof-lower", stroke="#0b57b0",
                   stroke_width="2.2" if strong else "1.2",
                   stroke_dasharray=DASHES[number % len(DASHES)])  # fmt: skip
    # A wide and invisible line is easier to point at.
    target = element("path", element("title", words), d=f"M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}", fill="none",
                     stroke="transparent", stroke_width="10")  # fmt: skip
    if ceiling.kind == "bandwidth":
        spots = [(x0 + (x1 - x0) * part + 4, y0 + (y1 - y0) * part - 7) for part in (0.06, 0.16, 0.28, 0.4, 0.55)]
        name = f"{ceiling.name}" if ceiling.level != "memory" else f"memory: {ceiling.name}"
    else:
        name = ceiling.name
        room = 7.0 * len(name)
        spots = [(x1 - room - 4, y1 - 5), (x1 - room - 4, y1 + 13), (max(x0, x1 - 2 * room) - 4, y1 - 5)]
    x, y = free_spot(spots, name, taken)
    return element("g", line, target, text_at(name, x, y, "sx-count", TEXT), class_="sx-roof-part", tabindex=0,
                   role="img", aria_label=words, data_words=words, data_ceiling=number)  # fmt: skip


def _sample(number: int) -> Html:
    """A piece of the line, for the list."""
    line = element("path", d="M1 6H37", class_="sx-chart-line", fill="none", stroke="#0b57b0", stroke_width="2",
                   stroke_dasharray=DASHES[number % len(DASHES)])  # fmt: skip
    return element("svg", line, width=38, height=12, viewBox="0 0 38 12", aria_hidden="true")


def marker(number: int, x: float, y: float) -> str:
    """The outline of a marker, one of four shapes."""
    s = SIZE
    return (
        f"M{x - s:.1f} {y:.1f}a{s} {s} 0 1 0 {2 * s} 0a{s} {s} 0 1 0 {-2 * s} 0z",
        f"M{x - s:.1f} {y - s:.1f}h{2 * s}v{2 * s}h{-2 * s}z",
        f"M{x:.1f} {y - s:.1f}l{s} {2 * s}h{-2 * s}z",
        f"M{x:.1f} {y - s:.1f}l{s} {s}l{-s} {s}l{-s} {-s}z",
    )[number % 4]


def _point(roofline: Roofline, point: Point, number: int, at: Place, taken: list[Box]) -> Html:
    words = said_of_point(roofline, point)
    x, y = at(point.intensity, point.throughput)
    parts = []
    if roofline.of("bandwidth") and roofline.of("throughput"):
        limit = roofline.limit(point)
        reach = limit.value * (point.intensity if limit.kind == "bandwidth" else 1.0)
        high = at(point.intensity, reach)[1]
        parts.append(element("path", d=f"M{x:.1f} {y:.1f}V{high:.1f}", fill="none", stroke=RULE, stroke_width="1",
                             data_reach=f"{reach:.6g}"))  # fmt: skip
    parts.append(element("path", element("title", words), d=marker(number, x, y), class_="sx-chart-point",
                         fill="#0b57b0", stroke=MUTED, data_x=f"{point.intensity:.6g}",
                         data_y=f"{point.throughput:.6g}"))  # fmt: skip
    name = f"{letter(number)} {point.label}"
    room = 7.0 * len(name)
    spots = [(x + 12, y + 4), (x - room - 12, y + 4), (x + 12, y + 20), (x - room - 12, y + 20), (x + 12, y - 12)]
    inside = [spot for spot in spots if LEFT <= spot[0] <= WIDTH - room] or spots
    parts.append(text_at(name, *free_spot(inside, name, taken), "sx-count", TEXT))
    return element("g", parts, class_="sx-roof-part", tabindex=0, role="img", aria_label=words, data_words=words,
                   data_point=number)  # fmt: skip
