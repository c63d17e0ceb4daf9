"""Table 4.2 with a picture: the error of each operator over the distance from where it is delicate (Section 4.4).

One small plot for each operator, all with the same axis of errors, so that one sees at a glance which formula lost what
and where. Both axes are logarithmic; results without any error lie on the lower edge, infinities and NaN on the upper.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ..errors import MissingDependencyError
from ..measure.transcendental import WAYS
from .document import Pane
from .figures import (
    DASHES,
    MARKERS,
    SERIES,
    colour_axes,
    follow_host,
    label_svg,
    new_figure,
    palette,
    render_svg,
    write_figure,
)
from .markup import Html, element, join
from .measures import table_markup

COLUMNS = 4
LEAST, MOST = 0.1, 1e9  # units in the last place: the edges of every plot
TITLE = "Error of composite operators in float32 (Table 4.2)"


def description(record: Any) -> str:
    """The picture in words: the largest error of each way for every operator."""
    said = [f"{entry.name}: " + ", ".join(f"{way} {entry.said(way)}" for way in entry.ways)
            for entry in record.measured]  # fmt: skip
    return "Largest errors in units in the last place. " + "; ".join(said) + "."


def build_figure(record: Any, colours: dict[str, str]) -> Any:
    """A matplotlib Figure with a plot for each measured operator. MissingDependencyError without matplotlib."""
    entries = record.measured
    rows = max(math.ceil(len(entries) / COLUMNS), 1)
    figure = new_figure((2.7 * COLUMNS, 0.9 + 1.75 * rows), colours)
    from matplotlib.ticker import LogLocator  # after what says that matplotlib is missing

    for position, entry in enumerate(entries):
        axes = figure.add_subplot(rows, COLUMNS, position + 1)
        for k, way in enumerate(WAYS):
            if way not in entry.ways:
                continue
            distances, units = zip(*entry.ways[way].curve, strict=True)
            shown = [min(max(value, LEAST), MOST) for value in units]
            axes.plot(
                distances, shown, color=SERIES[k], linestyle=DASHES[k], linewidth=(2.4, 1.6, 1.1)[k], marker=MARKERS[k],
                markersize=3.5, markevery=(3 * k, 9),
            )  # fmt: skip
        axes.axhline(0.5, color=colours["text"], linewidth=0.6, linestyle=":")
        axes.set(xscale="log", yscale="log", ylim=(LEAST * 0.7, MOST * 1.4))
        axes.xaxis.set_major_locator(LogLocator(numticks=5))
        axes.set_yticks([1, 1e3, 1e6])
        axes.set_title(f"{entry.name} ({entry.treatment})", loc="left", fontsize=8.5)
        axes.set_xlabel("|x|" if entry.near == 0 else f"|x − {entry.near:g}|", fontsize=8, labelpad=0)
        if position % COLUMNS == 0:
            axes.set_ylabel("error (ulp)", fontsize=8)
        axes.tick_params(labelsize=7)
        axes.minorticks_off()
        colour_axes(axes, colours)
    figure.suptitle(TITLE, color=colours["text"], fontsize=11, x=0.01, ha="left")
    # The first plot may lack a way that others have: the legend names all of them.
    lines = [_sample_line(k, way) for k, way in enumerate(WAYS) if any(way in entry.ways for entry in entries)]
    figure.legend(
        handles=lines, loc="outside lower left", ncols=4, frameon=False, fontsize=8.5, labelcolor=colours["text"]
    )
    return figure


def _sample_line(k: int, way: str) -> Any:
    from matplotlib.lines import Line2D

    return Line2D([], [], color=SERIES[k], linestyle=DASHES[k], marker=MARKERS[k], markersize=4, label=way)


def svg_text(record: Any) -> str:
    """The picture as an inline SVG in the host's colours."""
    colours = palette("light")
    return label_svg(follow_host(render_svg(build_figure(record, colours)), colours), TITLE, description(record))


def write(record: Any, path: str | Path, theme: str = "light") -> Path:
    """The picture as a file: SVG, PNG or PDF."""
    return write_figure(build_figure(record, palette(theme)), Path(path), TITLE, description(record))


def panes(record: Any) -> list[Pane]:
    """One pane: the picture, where matplotlib is, above the table."""
    content = record.table()
    parts = [table_markup(content)]
    if record.measured:
        try:
            parts.insert(0, element("figure", Html(svg_text(record)), class_="sx-listing"))
        except MissingDependencyError as error:
            parts.append(element("p", str(error), class_="sx-note"))
    summary = f"{len(record.entries)} operators, {len(record.measured)} measured"
    return [Pane("treatments", content.caption, join(parts), summary, str(record))]
