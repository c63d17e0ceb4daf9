"""What charts drawn as SVG have in common: the frame, the words, and the ink of both.

The colours are those of the light theme, so that a picture reads where no style sheet reaches; classes give it the
colours of the page.
"""

from __future__ import annotations

from typing import Any

from .markup import Html, element

TEXT, MUTED, RULE = "#1d2329", "#59636e", "#7b858f"
FONT = {"font_family": "ui-monospace, Menlo, Consolas, monospace", "font_size": "11.5"}


def text_at(words: str, x: float, y: float, style: str, colour: str, **attributes: Any) -> Html:
    """Words at a point of a picture, in pixels."""
    return element("text", words, x=f"{x:g}", y=f"{y:g}", class_=style, fill=colour, **attributes)


def chart(drawn: Any, title: str, said: str, width: float, height: float) -> Html:
    """A picture of ``width`` x ``height`` pixels, named by its title and by what it says in words."""
    picture = element(
        "svg", drawn, class_="sx-diagram sx-growth", width=f"{width:g}", height=f"{height:g}",
        viewBox=f"0 0 {width:g} {height:g}", role="img", tabindex=0, aria_label=f"{title}. {said}", **FONT,
    )  # fmt: skip
    return element("div", picture, class_="sx-scroll sx-drawing")
