"""Boxes and arrows of the pictures that follow a call (Figures 2.1 and 10.1)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .diagram import LINE
from .markup import Html, element


def station_box(
    x: float, y: float, width: float, height: float, rows: Sequence[str], kind: str, spoken: str,
    *, is_lit: bool = False, said: str = "", **attributes: Any,
) -> Html:  # fmt: skip
    """A box with its rows of text in the middle, the first of them strong, and so the row ``said``. Lit: other colours,
    a thicker frame, and that row, which says why."""
    fill = {"input": "#e4f0fb", "constant": "#efeaf9", "output": "#e6f4e8"}.get(kind, "#ffffff")
    frame = element(
        "rect", x=f"{x:g}", y=f"{y:g}", width=f"{width:g}", height=f"{height:g}", rx=14 if kind == "input" else 5,
        class_="sx-frame", fill="#e2f5e7" if is_lit else fill, stroke="#0f6a2e" if is_lit else "#7b858f",
        stroke_width=3 if is_lit else 1,
    )  # fmt: skip
    first = y + height / 2 - LINE * len(rows) / 2 + LINE * 0.74
    written = []
    for number, row in enumerate(rows):
        strong = number == 0 or row == said
        style = "sx-node-lit" if row == said else "sx-node-name" if number == 0 else "sx-node-detail"
        written.append(
            element(
                "text", row, x=f"{x + width / 2:g}", y=f"{first + number * LINE:.1f}", text_anchor="middle",
                class_=style, font_weight="600" if strong else None, fill="#1d2329" if strong else "#59636e",
            )
        )  # fmt: skip
    return element(
        "g", element("title", spoken), frame, written, class_=f"sx-node sx-node-{kind}{' sx-lit' if is_lit else ''}",
        role="img", aria_label=spoken, **attributes,
    )  # fmt: skip


def arrow(start: tuple[float, float], end: tuple[float, float], is_lit: bool) -> Html:
    """A straight arrow, along one axis."""
    (x1, y1), (x2, y2) = start, end
    dx, dy = (x2 > x1) - (x2 < x1), (y2 > y1) - (y2 < y1)
    bx, by = x2 - 7 * dx, y2 - 7 * dy
    head = f"M{x2:g} {y2:g}L{bx - 4 * dy:g} {by - 4 * dx:g}L{bx + 4 * dy:g} {by + 4 * dx:g}z"
    lit, colour = (" sx-lit", "#0f6a2e") if is_lit else ("", "#7b858f")
    line = element(
        "path", d=f"M{x1:g} {y1:g}L{bx:g} {by:g}", class_=f"sx-edge{lit}", fill="none", stroke=colour,
        stroke_width=3 if is_lit else 1.2,
    )  # fmt: skip
    return Html(line + element("path", d=head, class_=f"sx-arrow{lit}", fill=colour))


def words_at(words: str, x: float, y: float, name: str) -> Html:
    return element("text", words, x=f"{x:g}", y=f"{y:g}", class_="sx-count", fill="#1d2329", data_count=name)
