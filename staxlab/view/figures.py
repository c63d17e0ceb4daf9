"""What every plot of this package shares: colours, accessible SVG, files (rendering contract of ``view``).

A file (PNG, SVG, PDF) sets its own foreground and background. An SVG inline in a notebook takes both from the host's
theme, with literal values where there is none. Series differ by marker or dash pattern, never by colour alone, and an
SVG carries its title and its content in words. matplotlib is used through its object interface only, so no display and
no global state is touched; it is imported when something is drawn.
"""

from __future__ import annotations

import io
import re
from pathlib import Path
from typing import Any

from ..errors import MissingDependencyError, OptionError
from ..files import write_whole
from .markup import escape
from .theme import COLOURS

MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*", "<", ">")
DASHES = ("-", (0, (6, 2)), (0, (2, 2)), (0, (6, 2, 1, 2)), (0, (1, 1)), (0, (9, 3)))

#: Colours of lines and markers, at least 3:1 against both backgrounds (WCAG 2.2, 1.4.11).
SERIES = ("#2f7fd0", "#c8602a", "#3a8f4f", "#9a62c7", "#b0554f", "#7a7f2f", "#2f8f8f", "#b05a9a", "#6f7a86", "#a67a1f")

#: How an inline SVG finds the host's own colours, by role.
HOST_COLOURS = {
    "background": "var(--jp-layout-color0, var(--vscode-editor-background, {}))",
    "text": "var(--jp-content-font-color1, var(--vscode-editor-foreground, {}))",
}
FILE_TYPES = (".png", ".svg", ".pdf")


def palette(theme: str) -> dict[str, str]:
    """Literal colours of the "light" or "dark" theme. OptionError for another name."""
    if theme not in ("light", "dark"):
        raise OptionError(f"unknown theme {theme!r}", remedy="choose 'light' or 'dark'")
    position = ("light", "dark").index(theme)
    return {role: COLOURS[role][position] for role in ("background", "text")}


def new_figure(size: tuple[float, float], colours: dict[str, str]) -> Any:
    """An empty matplotlib Figure on a coloured background. MissingDependencyError without matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError(
            "drawing a plot needs matplotlib", remedy='pip install "staxlab[notebook]"'
        ) from error
    return Figure(figsize=size, layout="constrained", facecolor=colours["background"])


def colour_axes(axes: Any, colours: dict[str, str]) -> None:
    """Foreground and background of everything that is neither line nor marker."""
    axes.set_facecolor(colours["background"])
    axes.grid(True, which="major", color=colours["text"], alpha=0.2, linewidth=0.7)
    axes.tick_params(which="both", colors=colours["text"], labelcolor=colours["text"])
    for spine in axes.spines.values():
        spine.set_color(colours["text"])
    for text in (axes.title, axes._left_title, axes.xaxis.label, axes.yaxis.label):
        text.set_color(colours["text"])


def render_svg(figure: Any) -> str:
    """A figure as an ``<svg>`` element: text kept as text, the same bytes every time."""
    import matplotlib

    buffer = io.StringIO()
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "staxlab", "font.family": ["sans-serif"]}):
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def follow_host(svg: str, colours: dict[str, str]) -> str:
    """Replace the literal foreground and background by the host's variables, keeping the literal as the fallback."""
    for role, value in HOST_COLOURS.items():
        svg = re.sub(rf"(fill|stroke): {colours[role]}\b", rf"\1: {value.format(colours[role])}", svg)
    return svg


def label_svg(svg: str, title: str, description: str) -> str:
    """Give an SVG a name and a description that assistive technology reads."""
    head, rest = svg.split(">", 1)
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    head += ' role="img" style="max-width: 46em; width: 100%; height: auto"'
    head += f' aria-label="{escape(title + ". " + description)}"'
    return f"{head}><title>{escape(title)}</title><desc>{escape(description)}</desc>{rest}"


def write_figure(figure: Any, path: Path, title: str, description: str) -> Path:
    """Write a matplotlib figure with its alternative text, at once or not at all. OptionError for a file type other
    than PNG, SVG, PDF."""
    kind = path.suffix.lower()
    if kind not in FILE_TYPES:
        raise OptionError(
            f"cannot write a plot as {path.suffix or path.name!r}", remedy=f"end the name in {', '.join(FILE_TYPES)}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    if kind == ".svg":
        content = (label_svg(render_svg(figure), title, description) + "\n").encode()
    else:
        words = {"Title": title, "Description" if kind == ".png" else "Subject": description}
        buffer = io.BytesIO()
        figure.savefig(buffer, format=kind[1:], dpi=150, metadata=words)
        content = buffer.getvalue()
    return write_whole(path, content, private=False)
