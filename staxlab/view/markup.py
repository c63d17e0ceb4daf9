"""HTML as a value: text is escaped when it enters, so no name or string of the user's can become markup.

There are two kinds of text. A ``str`` is somebody's words; an :class:`Html` is markup that was built here. The one
way from the first to the second is escaping, and :func:`element` does it for every child and attribute. That is the
whole safety argument of the renderings: nothing else concatenates angle brackets.

>>> print(element("b", "1 < 2", title='say "hi"'))
<b title="say &quot;hi&quot;">1 &lt; 2</b>
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

VOID = frozenset("area br col hr img input link meta source wbr".split())

# Control characters have no place in HTML; U+2400 and following are their visible pictures.
_CONTROLS = {code: chr(0x2400 + code) for code in range(32) if chr(code) not in "\t\n"}
_CONTROLS.update(
    {0x7F: "\u2421", ord("&"): "&amp;", ord("<"): "&lt;", ord(">"): "&gt;", ord('"'): "&quot;", ord("'"): "&#x27;"}
)
_SURROGATES = re.compile("[\ud800-\udfff]")


class Html(str):
    """Markup. Made by :func:`escape`, :func:`element` and :func:`join` only, or from a literal of this package."""

    __slots__ = ()


def escape(value: Any) -> Html:
    """``value`` as markup: an :class:`Html` unchanged, anything else as text."""
    if isinstance(value, Html):
        return value
    return Html(_SURROGATES.sub("\ufffd", str(value)).translate(_CONTROLS))


def join(parts: Iterable[Any], separator: str = "") -> Html:
    """Several pieces one after the other, each escaped unless it is markup already."""
    return Html(separator.join(escape(part) for part in parts))


def element(tag: str, *children: Any, **attributes: Any) -> Html:
    """An element. Attribute names are given with ``_`` for ``-`` (a trailing one is dropped: ``class_``, ``for_``).

    None and False leave an attribute out, True writes it bare. Children may be text, markup, None (nothing), or nested
    lists of these.
    """
    written = "".join(_attribute(name, value) for name, value in attributes.items())
    if tag in VOID:
        return Html(f"<{tag}{written}>")
    return Html(f"<{tag}{written}>{''.join(_flatten(children))}</{tag}>")


def _attribute(name: str, value: Any) -> str:
    if value is None or value is False:
        return ""
    spelled = name.rstrip("_").replace("_", "-")
    return f" {spelled}" if value is True else f' {spelled}="{escape(value)}"'


def _flatten(children: Iterable[Any]) -> Iterable[str]:
    for child in children:
        if child is None:
            continue
        if isinstance(child, (list, tuple)):
            yield from _flatten(child)
        else:
            yield escape(child)


def table(
    caption: str,
    head: Iterable[Any],
    rows: Iterable[Iterable[Any]],
    *,
    row_attributes: Iterable[dict] | None = None,
    **attributes: Any,
) -> Html:
    """A semantic table: caption, column headings, and rows whose first cell is the row's heading."""
    attributes.setdefault("class_", "sx-table")
    extra = iter(row_attributes) if row_attributes is not None else None
    body = []
    for row in rows:
        first, *rest = row
        cells = [element("th", first, scope="row"), *(_cell(value) for value in rest)]
        body.append(element("tr", cells, **(next(extra) if extra is not None else {})))
    headings = element("tr", [element("th", name, scope="col") for name in head])
    inner = [element("caption", caption), element("thead", headings), element("tbody", body)]
    return element("div", element("table", inner, **attributes), class_="sx-scroll")


def _cell(value: Any) -> Html:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return element("td", f"{value:,}" if is_number else value, class_="sx-num" if is_number else None)
