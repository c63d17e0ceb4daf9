"""Drawing a roofline (Figure 1.1): log-log, units on both axes, and the same content in characters for a terminal.

Notebooks get the picture of ``roofline_chart``, files one of matplotlib. The highest ceiling of each kind is the roof,
drawn stronger; the others lie beneath it with dash patterns of their own. Kernels are markers, labelled with what they
reach and how much that is of the ceiling for their own mix of reads and writes, to which a thin line leads up.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..measure.tables import quantity_text
from .characters import Grid, letters, named, powers
from .document import Pane
from .figures import DASHES, MARKERS, SERIES, colour_axes, new_figure, palette, write_figure
from .markup import element, join
from .measures import table_markup
from .roofline_chart import drawn_ceilings, ends, extent, figure
from .size_sweep import panes as sweep_panes

if TYPE_CHECKING:
    from ..measure.roofline import Roofline


def panes(record: Roofline) -> list[Pane]:
    """The picture with its switches and the table; where working sets were swept, that too."""
    drawn = figure(record) if record.ceilings else element("pre", text_plot(record), class_="sx-code")
    body = join([element("figure", drawn, class_="sx-listing"), table_markup(record.table())])
    found = [Pane("roofline", "Roofline", body, "", str(record))]
    return found + (sweep_panes(record.sweep) if record.sweep is not None else [])


def build_figure(roofline: Roofline, colours: dict[str, str]) -> Any:
    """A matplotlib Figure of the roofline. MissingDependencyError without matplotlib."""
    entries = len(drawn_ceilings(roofline)) + len(roofline.points)
    drawn = new_figure((7.2, 4.6 + 0.2 * math.ceil(entries / 2)), colours)
    axes = drawn.add_subplot()
    left, right, bottom, top = extent(roofline)
    axes.set(xscale="log", yscale="log", xlim=(left, right), ylim=(bottom / 1e9, top / 1e9))
    axes.set_xlabel("Arithmetic intensity (FLOP/byte)")
    axes.set_ylabel("Performance (GFLOP/s)")
    axes.set_title(roofline.title, loc="left", fontsize=11)
    _draw_ceilings(axes, roofline, left, right)
    for k, point in enumerate(roofline.points):
        label = f"{point.label}: {quantity_text(point.throughput, 'FLOP/s')}"
        if math.isfinite(roofline.ridge):
            limit = roofline.limit(point)
            label += f" ({100 * roofline.fraction(point):.0f}% of {limit.name})"
            reach = limit.value * (point.intensity if limit.kind == "bandwidth" else 1.0) / 1e9
            axes.plot(
                [point.intensity] * 2, [point.throughput / 1e9, reach], linewidth=0.8, color=SERIES[k % len(SERIES)],
                zorder=3,
            )  # fmt: skip
        axes.plot(
            [point.intensity], [point.throughput / 1e9], linestyle="none", marker=MARKERS[k % len(MARKERS)],
            markersize=9, color=SERIES[k % len(SERIES)], markeredgecolor=colours["text"], markeredgewidth=0.8,
            label=label, zorder=4,
        )  # fmt: skip
    if math.isfinite(roofline.ridge):
        axes.plot(
            [roofline.ridge] * 2,
            [bottom / 1e9, roofline.throughput / 1e9],
            linestyle=":",
            linewidth=1,
            color=colours["text"],
        )
        # Beside the line, on the side that has room.
        aside = math.log(roofline.ridge / left) > 0.6 * math.log(right / left)
        axes.annotate(
            f"ridge {roofline.ridge:.3g} FLOP/byte", (roofline.ridge, bottom / 1e9), xytext=(-5 if aside else 5, 6),
            textcoords="offset points", ha="right" if aside else "left", color=colours["text"], fontsize=9,
        )  # fmt: skip
    colour_axes(axes, colours)
    if entries:
        drawn.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=8.5, labelcolor=colours["text"])
    return drawn


def _draw_ceilings(axes: Any, roofline: Roofline, left: float, right: float) -> None:
    """Every ceiling as a line of its own dash pattern; the highest of each level and of arithmetic is drawn
    stronger."""
    for number, ceiling in enumerate(drawn_ceilings(roofline)):
        xs = ends(roofline, ceiling, left, right)
        ys = [ceiling.value * x for x in xs] if ceiling.kind == "bandwidth" else [ceiling.value] * 2
        peers = roofline.of(ceiling.kind, ceiling.level)
        first = peers[0] is ceiling
        label = f"{ceiling.name}: {ceiling.text()}"
        if ceiling.kind == "throughput" and len(peers) > 1 and math.isfinite(roofline.bandwidth):
            label += f" (ridge {ceiling.value / roofline.bandwidth:.3g})"
        axes.plot(
            xs, [y / 1e9 for y in ys], linestyle=DASHES[number % len(DASHES)],
            linewidth=2.4 if first else 1.3, color=SERIES[-1 - number % len(SERIES)], label=label,
            zorder=3 if first else 2,
        )  # fmt: skip


def write_plot(roofline: Roofline, path: Path, theme: str = "light") -> Path:
    """Write PNG, SVG or PDF by the path's suffix; the description goes into the file."""
    return write_figure(build_figure(roofline, palette(theme)), path, roofline.title, roofline.description)


# --- In characters ----------------------------------------------------------------------------------------------------


def text_plot(roofline: Roofline) -> str:
    """The roofline in characters: ``/`` and ``-`` for the roof, ``.`` for lower ceilings of arithmetic, ``1``, ``2``,
    ... for the slopes of caches, a letter per kernel."""
    if not roofline.of("bandwidth") or not roofline.of("throughput"):
        return "(a roofline needs a bandwidth and a throughput: nothing to draw)"
    left, right, bottom, top = extent(roofline)
    grid = Grid((left, right, bottom, top))
    near = [level for level in roofline.levels if level != "memory"]
    for column in range(grid.width):
        intensity = grid.middle(column)
        sloped = intensity < roofline.ridge
        grid.put(column, grid.row(roofline.attainable(intensity)), "/" if sloped else "-")
        for ceiling in roofline.of("throughput")[1:]:
            if intensity > ceiling.value / roofline.bandwidth:
                grid.put(column, grid.row(ceiling.value), ".", over=False)
        for level in near:
            rate = roofline.of("bandwidth", level)[0].value * intensity
            if rate <= roofline.throughput:
                grid.put(column, grid.row(rate), level.removeprefix("L")[:1], over=False)
    legend = []
    for character, point in zip(letters(len(roofline.points)), roofline.points, strict=False):
        grid.put(grid.column(max(point.intensity, left)), grid.row(point.throughput or bottom), character)
        legend.append(f"  {character}  {point.label}")
    if near:
        legend.append(f"  {', '.join(level.removeprefix('L') for level in near)}: slopes of {', '.join(near)}")
    up = named(powers(bottom, top), lambda value: f"{value / 1e9:g}")
    across = named(powers(left, right), lambda value: f"{value:g}")
    return "\n".join([*grid.lines(("FLOP/byte", "GFLOP/s"), across, up), *legend])
