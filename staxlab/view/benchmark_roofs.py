"""Plots of saved benchmark runs: how near each case comes to the roof, and where fusion begins to pay.

Both are drawn from plain JSON data, so a saved run can be drawn again.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .benchmark import ticks_in_plain_numbers
from .figures import DASHES, MARKERS, SERIES, colour_axes, new_figure, palette, write_figure

#: What a single pass over memory should reach (drawn as a line).
AIM = 0.8


# --- Share of the roof ------------------------------------------------------------------------------------------------


def _placed(record: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The cases whose roof was measured: share, interval, operations per byte and per second."""
    found = []
    for case in record["cases"]:
        roof = case.get("roof")
        entry = next((p for p in case["peers"] if p["peer"] == "staxlab"), None)
        if not roof or not roof["share"] or entry is None or not entry["rounds"]:
            continue
        seconds = min(r["median_s"] for r in entry["rounds"] if r["median_s"])
        model = case["model"]
        found.append(
            {
                "title": case["title"],
                "single": roof["single_pass"],
                "share": roof["share"]["median"],
                "low": roof["share"]["interval"]["low"],
                "high": roof["share"]["interval"]["high"],
                "intensity": model["operations"] / model["compiled_bytes"],
                "throughput": model["operations"] / seconds,
                "bandwidth": roof["bandwidth"],
                "peak": roof["arithmetic_peak"],
            }
        )
    return found


def roof_title(record: Mapping[str, Any]) -> str:
    machine, settings = record["machine"], record["settings"]
    return f"Share of the memory roof, {machine['processor']}, {machine['threads']} threads, {settings['dtype']}"


def roof_description(record: Mapping[str, Any]) -> str:
    """The plot in words."""
    parts = [roof_title(record) + "."]
    for number, case in enumerate(_placed(record), 1):
        passes = "one pass" if case["single"] else "several passes or kernels"
        parts.append(f"{number}, {case['title']}: {case['share']:.0%} of the roof ({passes}).")
    return " ".join(parts)


def build_roof_figure(record: Mapping[str, Any], colours: dict[str, str]) -> Any:
    """Two panels: every case's share of the bandwidth measured in the same readings, with its interval; and the same
    cases by number in a roofline (Definition 1.1), under the ceilings of the case in the middle."""
    cases = _placed(record)
    figure = new_figure((11.5, 1.8 + 0.34 * max(len(cases), 8)), colours)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    for row, case in enumerate(cases):
        colour, marker = (SERIES[0], MARKERS[0]) if case["single"] else (SERIES[1], MARKERS[1])
        left.plot([case["low"], case["high"]], [row, row], color=colour, linewidth=1.4)
        left.plot([case["share"]], [row], marker=marker, color=colour, markersize=7, linestyle="none")
    for k, label in enumerate(("one pass over memory", "several passes or kernels")):
        left.plot([], [], marker=MARKERS[k], color=SERIES[k], linestyle="none", label=label)
    left.axvline(AIM, color=colours["text"], linewidth=0.9, linestyle=":", label=f"{AIM:.0%}")
    left.set_yticks(range(len(cases)), [f"{case['title']}  {n}" for n, case in enumerate(cases, 1)])
    left.set_ylim(len(cases) - 0.4, -0.6)
    left.set_xlim(0, max([1.05, *(case["high"] * 1.05 for case in cases)]))
    left.set_xlabel("Share of the bandwidth measured in the same readings (1 = on the roof)")
    left.set_title(roof_title(record), loc="left", fontsize=11)
    right.set(xscale="log", yscale="log")
    right.set_xlabel("Arithmetic intensity (op/byte)")
    right.set_ylabel("Performance (Gop/s)")
    if cases:
        _draw_ceilings(right, cases)
    for number, case in enumerate(cases, 1):
        colour = SERIES[0] if case["single"] else SERIES[1]
        right.plot([case["intensity"]], [case["throughput"] / 1e9], marker=".", color=colour, linestyle="none")
        right.annotate(
            str(number), (case["intensity"], case["throughput"] / 1e9), xytext=(4, 2), textcoords="offset points",
            fontsize=8, color=colours["text"],
        )  # fmt: skip
    for axes in (left, right):
        colour_axes(axes, colours)
    handles, labels = left.get_legend_handles_labels()
    more, names = right.get_legend_handles_labels()
    figure.legend(
        handles + more, labels + names, loc="outside lower left", ncols=4, frameon=False, fontsize=8.5,
        labelcolor=colours["text"],
    )  # fmt: skip
    return figure


def _draw_ceilings(axes: Any, cases: list[dict[str, Any]]) -> None:
    middle = sorted(cases, key=lambda case: max(case["bandwidth"].values()))[len(cases) // 2]
    intensities = [case["intensity"] for case in cases if case["intensity"] > 0]
    ends = [min(intensities) / 2, max(intensities) * 2]
    for k, (name, rate) in enumerate(sorted(middle["bandwidth"].items(), key=lambda item: -item[1])):
        rates = [min(rate * x, middle["peak"]) / 1e9 for x in ends]
        axes.plot(
            ends, rates, color=SERIES[-1 - k], linestyle=DASHES[k], linewidth=2 if k == 0 else 1.2,
            label=f"{name}: {rate / 1e9:.3g} GB/s",
        )  # fmt: skip


def write_roof_plot(record: Mapping[str, Any], path: Path, theme: str = "light") -> Path | None:
    """Draw how near a saved run came to the roof; None, and no file, where the run has none.

    MissingDependencyError without matplotlib, OptionError for an unknown theme or file type.
    """
    if not _placed(record):
        return None
    figure = build_roof_figure(record, palette(theme))
    return write_figure(figure, Path(path), roof_title(record), roof_description(record))


# --- Small sizes ------------------------------------------------------------------------------------------------------


def sizes_title(record: Mapping[str, Any]) -> str:
    machine = record["machine"]
    return f"{record['program']} by size, {machine['processor']}, {machine['threads']} threads"


def sizes_description(record: Mapping[str, Any]) -> str:
    """The plot in words: first, middle and last size of every peer."""
    parts = [sizes_title(record) + "."]
    for peer, entry in record["peers"].items():
        points = entry["points"]
        some = [points[i] for i in sorted({0, len(points) // 2, len(points) - 1})] if points else []
        said = "; ".join(f"{p['elements']:,} elements {p['median_s'] * 1e6:.3g} us" for p in some)
        parts.append(f"{peer}: {said}.")
        if entry.get("smallest_size_never_slower") is not None:
            parts.append(f"{peer} is never slower than eager from {entry['smallest_size_never_slower']:,} elements on.")
    return " ".join(parts)


def build_sizes_figure(record: Mapping[str, Any], colours: dict[str, str]) -> Any:
    """Two panels over the number of elements: time of a call, and speedup over eager, medians with their intervals."""
    figure = new_figure((10.5, 4.6), colours)
    left, right = figure.subplots(1, 2)
    for k, (peer, entry) in enumerate(record["peers"].items()):
        points = [p for p in entry["points"] if p["median_s"]]
        style = {"marker": MARKERS[k], "color": SERIES[k], "linestyle": DASHES[k], "markersize": 4, "linewidth": 1.2}
        sizes = [p["elements"] for p in points]
        left.plot(sizes, [1e6 * p["median_s"] for p in points], label=peer, **style)
        for p in points:
            left.plot([p["elements"]] * 2, [1e6 * p["low_s"], 1e6 * p["high_s"]], color=SERIES[k], linewidth=1)
        faster = [p for p in points if p.get("speedup")]
        if faster:
            right.plot([p["elements"] for p in faster], [p["speedup"]["median"] for p in faster], **style)
        for p in faster:
            ends = [p["speedup"]["interval"]["low"], p["speedup"]["interval"]["high"]]
            right.plot([p["elements"]] * 2, ends, color=SERIES[k], linewidth=1)
    right.axhline(1.0, color=colours["text"], linewidth=0.8, linestyle=":")
    left.set_ylabel("Time of a call (us)")
    right.set_ylabel("Speedup over eager (times)")
    left.set_title(sizes_title(record), loc="left", fontsize=11)
    for axes in (left, right):
        axes.set_xscale("log", base=2)
        axes.set_yscale("log")
        axes.set_xlabel("Elements (float32)")
        colour_axes(axes, colours)
    ticks_in_plain_numbers(right, True)
    from matplotlib.ticker import LogLocator

    for axes in (left, right):
        axes.xaxis.set_major_locator(LogLocator(base=2, numticks=12))
        axes.xaxis.set_major_formatter(lambda value, position: f"$2^{{{round(math.log2(value))}}}$")
    figure.legend(loc="outside lower left", ncols=4, frameon=False, fontsize=8.5, labelcolor=colours["text"])
    return figure


def write_sizes_plot(record: Mapping[str, Any], path: Path, theme: str = "light") -> Path:
    """Draw what ``benchmarks.small_sizes`` writes as JSON into a PNG, SVG or PDF file.

    MissingDependencyError without matplotlib, OptionError for an unknown theme or file type.
    """
    figure = build_sizes_figure(record, palette(theme))
    return write_figure(figure, Path(path), sizes_title(record), sizes_description(record))
