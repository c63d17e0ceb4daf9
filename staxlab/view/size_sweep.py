"""Bandwidth against working set, drawn: the staircase of each number of threads, its knees, and the reported caches."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..measure.size_sweep import size_text
from ..measure.tables import bytes_text
from .characters import Grid, letters, named, powers
from .document import Pane
from .figures import DASHES, MARKERS, SERIES, colour_axes, new_figure, palette, write_figure
from .log_plots import log_plot
from .markup import Html, element, join
from .measures import table_markup
from .plots import Curve, Level, Mark

if TYPE_CHECKING:
    from ..measure.size_sweep import SizeSweep, SweepCurve

AXES = ("working set (KiB)", "bandwidth (GB/s)")


def panes(record: SizeSweep) -> list[Pane]:
    drawn = [element("figure", chart_of(record, curve), class_="sx-listing") for curve in record.curves]
    body = join([*drawn, table_markup(record.table())])
    return [Pane("size-sweep", record.title, body, "", str(record))]


def chart_of(record: SizeSweep, curve: SweepCurve) -> Html:
    """One curve with its knees as marks, and the capacities that the system reports as lines."""
    points = tuple((size / 1024, rate / 1e9) for size, rate in zip(curve.sizes, curve.bandwidths, strict=True))
    marks = [
        Mark(f"knee {size_text(knee.size)}", knee.size / 1024, (knee.before * knee.after) ** 0.5 / 1e9)
        for knee in curve.knees
    ]
    levels = [
        Level(f"{name}, {bytes_text(capacity)}", x=capacity / 1024)
        for name, capacity in record.reported(curve)
        if curve.sizes[0] <= capacity <= curve.sizes[-1]
    ]
    title = f"Bandwidth by working set: {curve.label}"
    return log_plot(title, record.description, AXES, [Curve(curve.label, points)], marks, levels, base=2)


# --- In files ---------------------------------------------------------------------------------------------------------


def build_figure(record: SizeSweep, colours: dict[str, str]) -> Any:
    """A matplotlib Figure of the sweep. MissingDependencyError without matplotlib."""
    from matplotlib.ticker import LogLocator

    figure = new_figure((7.2, 4.8), colours)
    axes = figure.add_subplot()
    axes.set(xlabel="Working set (bytes)", ylabel="Bandwidth (GB/s)")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    axes.set_title(record.title, loc="left", fontsize=11)
    for k, curve in enumerate(record.curves):
        rates = [rate / 1e9 for rate in curve.bandwidths]
        colour = SERIES[k % len(SERIES)]
        axes.plot(curve.sizes, rates, color=colour, linestyle=DASHES[k % len(DASHES)], label=curve.label,
                  marker=MARKERS[k % len(MARKERS)], markersize=3)  # fmt: skip
        for knee in curve.knees:
            height = (knee.before * knee.after) ** 0.5 / 1e9
            axes.plot([knee.size], [height], marker="D", markersize=8, color=colour, markeredgecolor=colours["text"])
            axes.annotate(size_text(knee.size), (knee.size, height), xytext=(8, 4),
                          textcoords="offset points", fontsize=8, color=colours["text"])  # fmt: skip
        for name, capacity in record.reported(curve):
            axes.axvline(capacity, color=colour, linewidth=0.9, linestyle=":")
            axes.annotate(name, (capacity, 0.01 + 0.05 * k), xycoords=("data", "axes fraction"), fontsize=8,
                          xytext=(3, 0), textcoords="offset points", color=colours["text"])  # fmt: skip
    colour_axes(axes, colours)
    axes.xaxis.set_major_locator(LogLocator(base=4, numticks=20))
    axes.xaxis.set_major_formatter(lambda value, position: bytes_text(round(value)))
    axes.tick_params(axis="x", labelrotation=35)
    axes.plot([], [], marker="D", linestyle="none", color=colours["text"], label="knee")
    axes.plot([], [], linestyle=":", color=colours["text"], label="capacity that the system reports")
    figure.legend(loc="outside lower left", ncols=4, frameon=False, fontsize=8.5, labelcolor=colours["text"])
    return figure


def write_plot(record: SizeSweep, path: Path, theme: str = "light") -> Path:
    """Write PNG, SVG or PDF by the path's suffix; the description goes into the file."""
    return write_figure(build_figure(record, palette(theme)), path, record.title, record.description)


# --- In characters ----------------------------------------------------------------------------------------------------


def text_plot(record: SizeSweep) -> str:
    """The curves in characters, a letter each; ``|`` stands at the capacities that the system reports for the first."""
    if not record.curves or not record.curves[0].sizes:
        return "(nothing was measured: nothing to draw)"
    rates = [rate for curve in record.curves for rate in curve.bandwidths]
    sizes = [size for curve in record.curves for size in curve.sizes]
    grid = Grid((min(sizes) / 1.01, max(sizes) * 1.01, min(rates) / 1.1, max(rates) * 1.1))
    for _, capacity in record.reported(record.curves[0]):
        if min(sizes) <= capacity <= max(sizes):
            for row in range(grid.height):
                grid.put(grid.column(capacity), row, ":")
    legend = []
    for character, curve in zip(letters(len(record.curves)), record.curves, strict=False):
        for (size, rate), after in itertools.zip_longest(
            zip(curve.sizes, curve.bandwidths, strict=True), curve.sizes[1:]
        ):
            last = grid.column(after) if after else grid.column(size) + 1
            for column in range(grid.column(size), max(last, grid.column(size) + 1)):
                grid.put(column, grid.row(rate), character)
        legend.append(f"  {character}  {curve.label}")
    legend.append(f"  :  capacities that the system reports, for {record.curves[0].label}")
    across = named(powers(min(sizes), max(sizes), 4), lambda value: bytes_text(round(value)).replace(" ", ""))
    up = named(powers(min(rates), max(rates)), lambda value: f"{value / 1e9:g}")
    return "\n".join([*grid.lines(("working set", "GB/s"), across, up), *legend])
