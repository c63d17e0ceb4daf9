"""Saved benchmark runs drawn (Section 13.2): a row for every case, a panel for every quantity, intervals as lines."""

from __future__ import annotations

import textwrap
from typing import Any

from ..errors import MissingDependencyError
from .benchmark import ticks_in_plain_numbers
from .document import Pane
from .figures import (
    MARKERS,
    SERIES,
    colour_axes,
    follow_host,
    label_svg,
    new_figure,
    palette,
    render_svg,
)
from .markup import Html, element, join
from .measures import table_markup


def panes(record: Any) -> list[Pane]:
    """The plot, and the table with every number. Without matplotlib the table alone."""
    table = table_markup(record.table())
    try:
        drawing = element("figure", Html(svg_text(record)), class_="sx-listing")
    except MissingDependencyError as error:
        drawing = element("p", error, class_="sx-note")
    title = f"{record.title}, {record.where}"
    return [Pane("saved-run", title, join([drawing, table]), record.summary(), str(record))]


def build_figure(record: Any, colours: dict[str, str]) -> Any:
    """A matplotlib Figure. Series differ by marker as well as by colour; MissingDependencyError without matplotlib."""
    most = max((len(panel.series) for panel in record.panels), default=1)  # markers of a case, one below the other
    figure = new_figure((8.6, 1.7 + max(0.32, 0.13 * most) * max(len(record.cases), 3)), colours)
    row = {case: place for place, case in enumerate(record.cases)}
    drawn = figure.subplots(1, max(len(record.panels), 1), sharey=True, squeeze=False)[0]
    names = list(dict.fromkeys(series for panel in record.panels for series in panel.series))
    for axes, panel in zip(drawn, record.panels, strict=True):
        for series in panel.series:
            place, among = names.index(series), panel.series.index(series)
            shift = (among - (len(panel.series) - 1) / 2) * min(0.2, 0.84 / len(panel.series))
            look = {"marker": MARKERS[place], "color": SERIES[place], "linestyle": "none", "markersize": 6}
            for reading in (r for r in panel.readings if r.series == series):
                at = row[reading.case] + shift
                axes.plot([reading.value], [at], **look)
                axes.plot([reading.low, reading.high], [at, at], color=SERIES[place], linewidth=1.6)
        if panel.reference is not None:
            axes.axvline(panel.reference, color=colours["text"], linewidth=1, linestyle=":")
        label = textwrap.fill(panel.label, 60 // len(record.panels))
        axes.set_xlabel(label + (f"\n(dotted: {panel.meaning})" if panel.meaning else ""))
        values = [value for reading in panel.readings for value in (reading.low, reading.high)]
        if max(values) > 6 * min(values) and min(values) > 0:
            axes.set_xscale("log")
            axes.set_xlim(min(values) / 1.15, max(values) * 1.15)
            ticks_in_plain_numbers(axes, False)
        colour_axes(axes, colours)
    drawn[0].set_yticks(range(len(record.cases)), record.cases)
    drawn[0].set_ylim(len(record.cases) - 0.4, -0.6)
    figure.suptitle(f"{record.title}, {record.where}", x=0.01, ha="left", fontsize=10.5, color=colours["text"])
    for place, series in enumerate(names):
        drawn[0].plot([], [], marker=MARKERS[place], color=SERIES[place], linestyle="none", label=series)
    handles, labels = drawn[0].get_legend_handles_labels()
    figure.legend(
        handles, labels, loc="outside lower left", ncols=6 if len(names) <= 6 else 4, frameon=False, fontsize=9,
        labelcolor=colours["text"],
    )
    return figure


def svg_text(record: Any, theme: str | None = None) -> str:
    """The plot as an SVG element with a title and every number in words. ``theme=None`` follows the page."""
    colours = palette(theme or "light")
    text = render_svg(build_figure(record, colours))
    title = f"{record.title}, {record.where}"
    return label_svg(text if theme else follow_host(text, colours), title, record.description())
