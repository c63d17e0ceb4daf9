"""What charts drawn as SVG have in common: the frame, the words, and the ink of both.

The colours are those of the light theme, so that a picture reads where no style sheet reaches; classes give it the
colours of the page.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .markup import Html, element

TEXT, MUTED, RULE = "#1d2329", "#59636e", "#7b858f"
CHARACTER = 7.0  # width of a character, in pixels; fonts differ, so a little generous
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


Spot = tuple[float, float]
Box = tuple[float, float, float, float]  # left, top, right, bottom


def free_spot(spots: Sequence[Spot], words: str, taken: list[Box], *, ends: bool = False) -> Spot:
    """The first of ``spots`` where words would cover nothing that is ``taken``, or else the one where they cover the
    least; what they cover is taken from then on. A spot is where the words begin, or with ``ends`` where they end."""

    def box(spot: Spot) -> Box:
        x, y = spot
        left = x - CHARACTER * len(words) if ends else x
        return left, y - 11, left + CHARACTER * len(words), y + 3

    def covered(spot: Spot) -> float:
        left, top, right, bottom = box(spot)
        return sum(
            max(0.0, min(right, r) - max(left, l)) * max(0.0, min(bottom, b) - max(top, t)) for l, t, r, b in taken
        )

    best = min(spots, key=covered)
    taken.append(box(best))
    return best
