"""Renderings: every record of a compilation as text for a terminal and as HTML for a notebook or a page (Section 1.3).

The object a notebook draws is the object the compiler just used. A record fetches its rendering by calling
:func:`mimebundle` from its ``_repr_mimebundle_``; which module draws which record is one table in ``registry``, looked
up by the name of the record's type, so that nothing here is imported before something is drawn.

===============  ==================================================================================================
module           what it knows
===============  ==================================================================================================
``markup``       how to write HTML in which no text of the user's can become markup
``theme``        the colours of both themes, as data, and the contrast between them
``document``     panes, roots, pages; what is inlined; the size cap
``provenance``   how an element says which captured nodes it stems from
``listing``      numbered lines of code, coloured where pygments is installed
``layout``       where the nodes of a drawn graph go, with or without the ``dot`` program
``diagram``      the drawing itself
``explorer``     all stages of one compilation beside each other, as tabs
``stepper``      the same as an ipywidgets widget
===============  ==================================================================================================

The remaining modules draw one stage each. All HTML is self-contained: no script, font or image comes from a network.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

LONGEST_TEXT = 200_000  # characters of text/plain in one output

__all__ = ["html", "mimebundle", "page", "text", "write_page"]


def text(record: Any) -> str:
    """The record as a terminal shows it: its own ``format()``, else its ``str``."""
    from .registry import plain_text

    return plain_text(record)


def html(record: Any, full: bool = False) -> str:
    """The record as one self-contained HTML fragment with its styles and scripts.

    Views above ``document.SIZE_CAP`` bytes are cut to a summary and a beginning unless ``full``. TypeError for an
    object that no renderer knows and that is no record of this package.
    """
    from .document import fragment
    from .registry import panes_of

    return fragment(panes_of(record, full=full), full=full)


def mimebundle(record: Any) -> dict[str, str]:
    """What Jupyter asks of an object: always ``text/plain``, and ``text/html``.

    A drawing that fails must not take the record away from the reader: the bundle then carries the text, and the HTML
    says what went wrong above it.
    """
    plain = text(record)
    try:
        drawn = html(record)
    except Exception as error:
        from .document import failed_view

        drawn = failed_view(plain, error)
    if len(plain) > LONGEST_TEXT:
        plain = (
            f"{plain[:LONGEST_TEXT]}\n… ({len(plain) - LONGEST_TEXT:,} more characters: print the record to see all)"
        )
    return {"text/plain": plain, "text/html": drawn}


def page(record: Any, title: str | None = None) -> str:
    """A complete HTML page showing one record; several, given as a list, below one root with links between them; or
    several given as a dict, each below its heading. Never cut."""
    from .document import whole_page
    from .registry import sections_of

    return whole_page(sections_of(record), title or f"staxlab: {type(record).__name__}")


def write_page(path: str | Path, record: Any, title: str | None = None) -> Path:
    """Write :func:`page` to a file, all or nothing: a reader never sees half a page. Returns the path."""
    from .document import write_atomically

    return write_atomically(Path(path), page(record, title))
