"""Errors of elementwise functions over all exponents, drawn: a map of all functions, and a strip for each.

The map has a row for every function and a column for every exponent of its (first) operand; a cell is the largest error
of the generated kernels there, in steps from "correctly rounded" to "beyond the bound", which is crossed as well as
coloured. The strip of one function shows PyTorch's and every generated way over the same axis, and the bound as a line.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..errors import MissingDependencyError
from ..measure.accuracy_functions import BOUND
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

TITLE = "Errors of generated kernels over all exponents"
#: Upper edges of the steps in units in the last place, what they are called, and their colours and characters.
STEPS = (
    (0.5, "up to 0.5", "#dbe9f6", "."),
    (1.0, "up to 1", "#9cc7e0", "-"),
    (2.0, "up to 2", "#4c94c7", "+"),
    (BOUND, f"up to {BOUND:g}", "#155fa0", "#"),
    (float("inf"), f"beyond {BOUND:g}", "#d1495b", "!"),
)
LEAST, MOST = 0.1, 1e3  # units in the last place: the edges of a strip
COLUMNS = 60  # characters of a row in a terminal


def step_of(error: float) -> int:
    """The position in ``STEPS`` of an error in units in the last place."""
    return next(k for k, (edge, *_) in enumerate(STEPS) if error <= edge)


def _exponents(record: Any) -> range:
    found = [exponent for entry in record.entries for exponent in entry.curve()]
    return range(min(found), max(found) + 1) if found else range(0)


def text_map(record: Any) -> str:
    """The map in characters, several exponents in each."""
    exponents = _exponents(record)
    if not exponents:
        return ""
    width = -(-len(exponents) // COLUMNS)
    longest = max(len(entry.name) for entry in record.entries)
    rows = []
    for entry in record.entries:
        curve = entry.curve()
        cells = []
        for start in range(exponents.start, exponents.stop, width):
            errors = [curve[e] for e in range(start, start + width) if e in curve]
            cells.append(STEPS[step_of(max(errors))][3] if errors else " ")
        rows.append(f"{entry.name:{longest}} |{''.join(cells)}|")
    low, high = f"2^{exponents.start}", f"2^{exponents.stop - 1}"
    middle = " " * max(len(rows[0]) - longest - 3 - len(low) - len(high), 1)
    key = ", ".join(f"{sign} {words}" for _, words, _, sign in STEPS)
    head = f"{TITLE} (ulp), {width} exponents of the first operand in a character"
    return "\n".join([head, *rows, f"{'':{longest}}  {low}{middle}{high}", key])


def text(record: Any) -> str:
    """What a terminal shows: the table, and the map below it."""
    return "\n\n".join(part for part in (str(record), _is_map(record) and text_map(record)) if part)


def _is_map(record: Any) -> bool:
    return hasattr(record, "entries")


def description(record: Any) -> str:
    """The picture in words: the largest error of each way for every function."""
    entries = record.entries if _is_map(record) else (record,)
    said = [f"{entry.name}: " + ", ".join(f"{way} {entry[way].text()}" for way in entry.ways) for entry in entries]
    return "Largest errors in units in the last place. " + "; ".join(said) + "."


def build_map(record: Any, colours: dict[str, str]) -> Any:
    """A matplotlib Figure: functions by exponents. MissingDependencyError without matplotlib."""
    figure = new_figure((9.5, 1.6 + 0.17 * len(record.entries)), colours)
    from matplotlib.colors import BoundaryNorm, ListedColormap
    from matplotlib.patches import Patch

    exponents = _exponents(record)
    nowhere = float("nan")
    grid = [[entry.curve().get(exponent, nowhere) for exponent in exponents] for entry in record.entries]
    steps = [[step_of(error) if error == error else nowhere for error in row] for row in grid]
    axes = figure.add_subplot()
    shades = ListedColormap([colour for _, _, colour, _ in STEPS])
    axes.imshow(
        steps, cmap=shades, norm=BoundaryNorm([k - 0.5 for k in range(len(STEPS) + 1)], len(STEPS)), aspect="auto",
        interpolation="nearest", extent=(exponents.start - 0.5, exponents.stop - 0.5, len(grid) - 0.5, -0.5),
    )  # fmt: skip
    beyond = [(exponents[k], row) for row, line in enumerate(steps) for k, step in enumerate(line) if step == 4]
    if beyond:
        axes.plot(*zip(*beyond, strict=True), linestyle="", marker="x", markersize=3, color=colours["text"])
    axes.set_yticks(range(len(grid)), [entry.name for entry in record.entries], fontsize=7)
    axes.set_xlabel("exponent e of the first operand, 2^e <= |x| < 2^(e+1) (subnormal numbers on the left)", fontsize=8)
    axes.set_ylabel("function", fontsize=8)
    axes.set_title(TITLE, loc="left", fontsize=10)
    axes.tick_params(labelsize=7)
    colour_axes(axes, colours)
    axes.grid(False)
    keys = [
        Patch(facecolor=colour, edgecolor=colours["text"], linewidth=0.5, label=words + ", crossed" * (k == 4))
        for k, (_, words, colour, _) in enumerate(STEPS)
    ]
    figure.legend(
        handles=keys, loc="outside lower left", ncols=5, frameon=False, fontsize=8, labelcolor=colours["text"],
        title="largest error (ulp)", title_fontsize=8,
    ).get_title().set_color(colours["text"])  # fmt: skip
    return figure


def build_strip(entry: Any, colours: dict[str, str]) -> Any:
    """A matplotlib Figure: the errors of one function over the exponents. MissingDependencyError without matplotlib."""
    figure = new_figure((8.0, 2.8), colours)
    axes = figure.add_subplot()
    for k, (way, found) in enumerate(entry.ways.items()):
        places = [exponent for exponent, _, _ in found.curve]
        shown = [min(max(error, LEAST), MOST) for _, error, _ in found.curve]
        axes.plot(
            places, shown, color=SERIES[k], linestyle=DASHES[k], linewidth=(2.4, 1.8, 1.3, 1.0)[min(k, 3)],
            marker=MARKERS[k], markersize=3, markevery=(5 * k, 20), label=way,
        )  # fmt: skip
    if entry.bound <= MOST:
        bound = max(entry.bound, LEAST)
        axes.axhline(bound, color=colours["text"], linewidth=0.9, linestyle=":", label=f"bound {entry.bound:g}")
    axes.set(yscale="log", ylim=(LEAST * 0.8, MOST * 1.25))
    axes.set_xlabel("exponent of the first operand", fontsize=8.5)
    axes.set_ylabel("largest error (ulp)", fontsize=8.5)
    axes.set_title(f"Errors of {entry.name}, {entry.dtype}", loc="left", fontsize=10)
    axes.tick_params(labelsize=8)
    colour_axes(axes, colours)
    axes.legend(frameon=False, fontsize=8, labelcolor=colours["text"], ncols=5, loc="upper left")
    return figure


def _build(record: Any, colours: dict[str, str]) -> tuple[Any, str]:
    if _is_map(record):
        return build_map(record, colours), TITLE
    return build_strip(record, colours), f"Errors of {record.name} over all exponents"


def svg_text(record: Any) -> str:
    """The picture as an inline SVG in the host's colours."""
    colours = palette("light")
    figure, title = _build(record, colours)
    return label_svg(follow_host(render_svg(figure), colours), title, description(record))


def write(record: Any, path: str | Path, theme: str = "light") -> Path:
    """The picture as a file: SVG, PNG or PDF."""
    figure, title = _build(record, palette(theme))
    return write_figure(figure, Path(path), title, description(record))


def panes(record: Any) -> list[Pane]:
    """One pane: the picture, where matplotlib is, above the table."""
    content = record.table()
    parts: list[Any] = [table_markup(content)]
    try:
        parts.insert(0, element("figure", Html(svg_text(record)), class_="sx-listing"))
    except MissingDependencyError as error:
        if _is_map(record):
            parts.append(element("pre", text_map(record)))
        parts.append(element("p", str(error), class_="sx-note"))
    if not _is_map(record):
        return [Pane("accuracy", content.caption, join(parts), f"{len(record.ways)} ways", text(record))]
    summary = f"{len(record.entries)} functions, {len(record.beyond)} beyond their bound"
    return [Pane("accuracy", content.caption, join(parts), summary, text(record))]
