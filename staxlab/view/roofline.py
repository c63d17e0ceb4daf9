"""Drawing a roofline (Figure 1.1): log-log, units on both axes, and the same content in characters for a terminal.

The highest ceiling of each kind is the roof, drawn stronger; the others lie beneath it with dash patterns of their own.
Kernels are markers, labelled with what they reach and how much that is of the ceiling for their own mix of reads and
writes, to which a thin line leads up.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..measure.tables import quantity_text
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

if TYPE_CHECKING:
    from ..measure.roofline import Roofline


def extent(roofline: Roofline) -> tuple[float, float, float, float]:
    """Limits of the plot, powers of ten times 1, 2 or 5: intensity from and to, performance from and to."""
    intensities = [p.intensity for p in roofline.points]
    ridge = roofline.ridge if math.isfinite(roofline.ridge) else 10.0
    left = min([0.05, *(i / 2 for i in intensities)])
    right = max([ridge * 8, *(i * 2 for i in intensities)])
    rates = [p.throughput for p in roofline.points]
    low = [c.value * left for c in roofline.of("bandwidth")] + [r / 2 for r in rates]
    high = [c.value for c in roofline.of("throughput")] + rates
    return left, right, min(low, default=1e9) / 1.5, max(high, default=1e12) * 2


def build_figure(roofline: Roofline, colours: dict[str, str]) -> Any:
    """A matplotlib Figure of the roofline. MissingDependencyError without matplotlib."""
    entries = len(roofline.ceilings) + len(roofline.points)
    figure = new_figure((7.2, 4.6 + 0.2 * math.ceil(entries / 2)), colours)
    axes = figure.add_subplot()
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
        figure.legend(loc="outside lower left", ncols=2, frameon=False, fontsize=8.5, labelcolor=colours["text"])
    return figure


def _draw_ceilings(axes: Any, roofline: Roofline, left: float, right: float) -> None:
    """Every ceiling as a line of its own dash pattern; the highest of each kind is the roof, drawn stronger."""
    highest = max((c.value for c in roofline.of("throughput")), default=math.inf)
    fastest = max((c.value for c in roofline.of("bandwidth")), default=math.inf)
    series = 0
    for kind in ("bandwidth", "throughput"):
        for k, ceiling in enumerate(roofline.of(kind)):
            if kind == "bandwidth":
                knee = min(highest / ceiling.value, right)
                xs, ys = [left, knee], [ceiling.value * left, ceiling.value * knee]
            else:
                xs, ys = (
                    [min(ceiling.value / fastest, right) if fastest < math.inf else left, right],
                    [ceiling.value] * 2,
                )
            label = f"{ceiling.name}: {ceiling.text()}"
            if kind == "throughput" and len(roofline.of(kind)) > 1 and fastest < math.inf:
                label += f" (ridge {ceiling.value / fastest:.3g})"
            axes.plot(
                xs, [y / 1e9 for y in ys], linestyle=DASHES[k % len(DASHES)], linewidth=2.4 if k == 0 else 1.3,
                color=SERIES[-1 - series % len(SERIES)], label=label, zorder=3 if k == 0 else 2,
            )  # fmt: skip
            series += 1


def svg_text(roofline: Roofline, theme: str | None = None) -> str:
    """The plot as an SVG element with a title and a description. ``theme=None`` follows the page it is put in."""
    colours = palette(theme or "light")
    text = render_svg(build_figure(roofline, colours))
    return label_svg(text if theme else follow_host(text, colours), roofline.title, roofline.description)


def write_plot(roofline: Roofline, path: Path, theme: str = "light") -> Path:
    """Write PNG, SVG or PDF by the path's suffix; the description goes into the file."""
    return write_figure(build_figure(roofline, palette(theme)), path, roofline.title, roofline.description)


# --- In characters ----------------------------------------------------------------------------------------------------


def text_plot(roofline: Roofline, width: int = 64, height: int = 16) -> str:
    """The roofline in characters: ``/`` and ``-`` for the roof, ``.`` for lower ceilings of arithmetic, a letter per
    kernel."""
    if not roofline.of("bandwidth") or not roofline.of("throughput"):
        return "(a roofline needs a bandwidth and a throughput: nothing to draw)"
    left, right, bottom, top = (math.log10(v) for v in extent(roofline))

    def column(intensity: float) -> int:
        return round((math.log10(intensity) - left) / (right - left) * (width - 1))

    def row(rate: float) -> int:
        return round((top - math.log10(rate)) / (top - bottom) * (height - 1))

    grid = [[" "] * width for _ in range(height)]
    for c in range(width):
        intensity = 10 ** (left + (right - left) * c / (width - 1))
        r = row(roofline.attainable(intensity))
        if 0 <= r < height:
            grid[r][c] = "/" if intensity < roofline.ridge else "-"
        for ceiling in roofline.of("throughput")[1:]:
            r = row(ceiling.value)
            if intensity > ceiling.value / roofline.bandwidth and 0 <= r < height and grid[r][c] == " ":
                grid[r][c] = "."
    legend = []
    for k, point in enumerate(roofline.points):
        letter = chr(ord("A") + k % 26)
        r, c = row(point.throughput), column(point.intensity)
        if 0 <= r < height and 0 <= c < width:
            grid[r][c] = letter
        legend.append(f"  {letter}  {point.label}")
    labels = {row(10.0**e): f"{10.0 ** (e - 9):g}" for e in range(math.ceil(bottom), math.floor(top) + 1)}
    lines = ["GFLOP/s"]
    lines += [f"{labels.get(r, ''):>8} |{''.join(cells)}".rstrip() for r, cells in enumerate(grid)]
    lines.append(" " * 9 + "+" + "-" * width)
    axis = [" "] * (width + 10)
    for e in range(math.ceil(left), math.floor(right) + 1):
        text, at = f"{10.0**e:g}", 10 + column(10.0**e)
        axis[at : at + len(text)] = text
    lines += ["".join(axis).rstrip(), " " * 10 + "FLOP/byte", *legend]
    return "\n".join(lines)
