"""The cost of the graph passes, drawn: time over nodes, both logarithmic, a line for each family with its slope."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from ..errors import MissingDependencyError
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

TITLE = "Cost of the graph passes"


def description(record: Any) -> str:
    """The picture in words: the largest graph of each family and its exponent."""
    said = [
        f"{family} {measured[-1][2]:.2g} s at {measured[-1][1]:,} nodes, exponent {record.exponent(family):.2f}"
        for family, measured in record.points.items()
    ]
    return f"Time over nodes, both logarithmic: {'; '.join(said)}."


def build_figure(record: Any, colours: dict[str, str]) -> Any:
    """A matplotlib Figure. MissingDependencyError without matplotlib."""
    figure = new_figure((9.0, 5.2), colours)
    axes = figure.subplots()
    for position, (family, measured) in enumerate(record.points.items()):
        _, nodes, seconds = zip(*measured, strict=True)
        slope = record.exponent(family)
        label = family if math.isnan(slope) else f"{family} ({slope:.2f})"
        axes.plot(nodes, seconds, label=label, color=SERIES[position % len(SERIES)], linewidth=1.4, markersize=4,
                  marker=MARKERS[position % len(MARKERS)], linestyle=DASHES[position % len(DASHES)])  # fmt: skip
    every = [point for measured in record.points.values() for point in measured]
    low = 0.6 * min(seconds / nodes for _, nodes, seconds in every)
    first, last = axes.get_xlim()
    axes.plot([first, last], [low * first, low * last], color=colours["text"], linewidth=0.8, linestyle=":")
    axes.annotate("linear", (last, low * last), color=colours["text"], ha="right", va="top", fontsize=8)
    axes.set(xscale="log", yscale="log", xlabel="nodes of the graph", ylabel="all passes (s of processor time)")
    axes.set_title(TITLE, loc="left")
    colour_axes(axes, colours)
    legend = figure.legend(fontsize=8, frameon=False, labelcolor=colours["text"], loc="outside right upper")
    legend.set_title("family (exponent)", prop={"size": 8})
    legend.get_title().set_color(colours["text"])
    return figure


def write(record: Any, path: str | Path, theme: str = "light") -> Path:
    """The picture as a file: SVG, PNG or PDF."""
    return write_figure(build_figure(record, palette(theme)), Path(path), TITLE, description(record))


def panes(record: Any) -> list[Pane]:
    """One pane: the picture, where matplotlib is, above the table."""
    content = record.table()
    parts = [table_markup(content)]
    colours = palette("light")
    try:
        svg = label_svg(follow_host(render_svg(build_figure(record, colours)), colours), TITLE, description(record))
        parts.insert(0, element("figure", Html(svg), class_="sx-listing"))
    except MissingDependencyError as error:
        parts.append(element("p", str(error), class_="sx-note"))
    return [Pane("pass-costs", content.caption, join(parts), f"{len(record.points)} families", str(record))]
