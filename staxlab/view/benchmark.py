"""Tables and plots of measurements: ratios with their intervals, speedup against the byte model (Section 13.2)."""

from __future__ import annotations

import html
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..measure.tables import Table
from .figures import MARKERS, SERIES, colour_axes, new_figure, palette, write_figure

# Foreground and background both come from the host's theme, with literal values where it has none.
TABLE_STYLE = """
.stax-measure {
  color: var(--jp-content-font-color1, var(--vscode-editor-foreground, #1b1b1b));
  background: var(--jp-layout-color0, var(--vscode-editor-background, #ffffff));
  padding: 0.4em; overflow-x: auto;
}
.stax-measure table { border-collapse: collapse; color: inherit; }
.stax-measure caption { text-align: left; font-weight: 600; padding-bottom: 0.3em; }
.stax-measure th, .stax-measure td {
  padding: 0.15em 0.8em; text-align: left; border-bottom: 1px solid #8888;
  color: inherit; background: inherit;
}
.stax-measure .num { text-align: right; font-variant-numeric: tabular-nums; }
.stax-measure p { margin: 0.2em 0; }
"""


def table_html(table: Table) -> str:
    """A self-contained HTML table with caption, scoped style, and right-aligned numeric columns."""

    def cells(tag: str, row: tuple[str, ...], extra: str = "") -> str:
        parts = []
        for i, cell in enumerate(row):
            number = ' class="num"' if i in table.numeric else ""
            parts.append(f"<{tag}{extra}{number}>{html.escape(cell)}</{tag}>")
        return "<tr>" + "".join(parts) + "</tr>"

    head = cells("th", table.columns, ' scope="col"')
    body = "\n".join(cells("td", row) for row in table.rows)
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in table.notes)
    caption = html.escape(table.caption)
    return "\n".join(
        (
            f'<div class="stax-measure"><style>{TABLE_STYLE}</style>',
            f"<table><caption>{caption}</caption>",
            f"<thead>{head}</thead>",
            f"<tbody>\n{body}\n</tbody></table>",
            f"{notes}</div>",
        )
    )


# --- Plots of a benchmark run (plain JSON data, so saved runs can be drawn again) -------------------------------------


def run_title(record: Mapping[str, Any]) -> str:
    """Where and how the run was made."""
    machine, settings = record["machine"], record["settings"]
    where = machine["device"] if machine.get("device", "cpu") != "cpu" else machine["processor"]
    threads = f", {machine['threads']} threads" if machine.get("device", "cpu") == "cpu" else ""
    return f"Speedup over eager on {where}{threads}, {settings['dtype']}"


def run_description(record: Mapping[str, Any]) -> str:
    """The plot in words: every speedup of the last round."""
    parts = [run_title(record) + "."]
    for case in record["cases"]:
        for peer in case["peers"]:
            if peer["speedups_over_eager"] and peer["speedups_over_eager"][-1]["median"] is not None:
                speedup = peer["speedups_over_eager"][-1]["median"]
                parts.append(
                    f"{case['title']}: {peer['peer']} {speedup:.3g} times eager (byte ratio {case['rho']:.3g})."
                )
    return " ".join(parts)


def build_run_figure(record: Mapping[str, Any], colours: dict[str, str]) -> Any:
    """Two panels: every peer's speedup with its interval, and speedup against the byte ratio (Figure 13.1).

    Rounds are hollow (first) and filled (later) markers; peers differ by marker as well as colour. The line in the
    second panel is ``S = rho``: below it a kernel is further from the bandwidth ceiling than eager's.
    """
    figure = new_figure((10.5, 1.6 + 0.62 * max(len(record["cases"]), 3)), colours)
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    peers = list(dict.fromkeys(p["peer"] for c in record["cases"] for p in c["peers"] if p["peer"] != "eager"))
    for row, case in enumerate(record["cases"]):
        for entry in case["peers"]:
            if entry["peer"] == "eager":
                continue
            k = peers.index(entry["peer"])
            style = {"marker": MARKERS[k], "color": SERIES[k], "linestyle": "none", "markersize": 7}
            count = len(entry["speedups_over_eager"])
            for r, speedup in enumerate(entry["speedups_over_eager"]):
                if speedup["median"] is None:
                    continue
                fill = {} if r or count == 1 else {"markerfacecolor": colours["background"]}
                y = row + (k - (len(peers) - 1) / 2) * 0.22 + (r - (count - 1) / 2) * 0.07
                left.plot([speedup["median"]], [y], **style, **fill)
                if speedup["interval"]:
                    ends = [speedup["interval"]["low"], speedup["interval"]["high"]]
                    left.plot(ends, [y, y], color=SERIES[k], linewidth=1.2)
                right.plot([case["model"]["eager_bytes"] / entry["model_bytes"]], [speedup["median"]], **style, **fill)
    for k, peer in enumerate(peers):
        left.plot([], [], marker=MARKERS[k], color=SERIES[k], linestyle="none", label=peer)
    left.axvline(1.0, color=colours["text"], linewidth=0.8, linestyle=":")
    left.set_yticks(range(len(record["cases"])), [c["title"] for c in record["cases"]])
    left.set_ylim(len(record["cases"]) - 0.4, -0.6)
    left.set_xscale("log")
    left.set_xlabel("Speedup over eager (times) with its interval; hollow: first round")
    ratios = [c["model"]["eager_bytes"] / p["model_bytes"] for c in record["cases"] for p in c["peers"]]
    ends = [min([0.7, *(r / 1.3 for r in ratios)]), max([2.0, *(r * 1.3 for r in ratios)])]
    right.plot(ends, ends, color=colours["text"], linewidth=1, label="S = rho")
    right.set(xscale="log", yscale="log")
    right.set_xlabel("Model byte ratio rho (times)")
    right.set_ylabel("Speedup S (times)")
    left.set_title(run_title(record), loc="left", fontsize=11)
    for axes in (left, right):
        ticks_in_plain_numbers(axes, axes is right)
        colour_axes(axes, colours)
    handles, labels = left.get_legend_handles_labels()
    line, name = right.get_legend_handles_labels()
    figure.legend(
        handles + line, labels + name, loc="outside lower left", ncols=6, frameon=False, fontsize=8.5,
        labelcolor=colours["text"],
    )  # fmt: skip
    return figure


def ticks_in_plain_numbers(axes: Any, vertical: bool) -> None:
    """Label a logarithmic axis 1, 2, 5, 10 instead of with powers of ten."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    for axis in (axes.xaxis, axes.yaxis) if vertical else (axes.xaxis,):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axis.set_major_formatter(FuncFormatter(lambda value, position: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())


def write_run_plot(record: Mapping[str, Any], path: Path, theme: str = "light") -> Path:
    """Draw a run (what ``benchmarks.run`` writes as JSON) into a PNG, SVG or PDF file.

    MissingDependencyError without matplotlib, OptionError for an unknown theme or file type.
    """
    figure = build_run_figure(record, palette(theme))
    return write_figure(figure, Path(path), run_title(record), run_description(record))
