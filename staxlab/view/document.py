"""From drawn stages to something a browser shows: panes, a root with styles and scripts, pages, and the size cap.

The static form is a sequence of ``<details>`` elements, one per stage, which needs neither style nor script: code
hosting sites strip both, and what is left must still be read. A script turns the same elements into tabs, two of which
can stand beside each other (``assets/explorer.js``), and adds the links between them (``assets/provenance.js``). The
result is the same in a live notebook, in a page saved by nbconvert, and in a file of our own.

Everything is inlined. A view above :data:`SIZE_CAP` is cut, biggest stage first, because a browser that stalls on a
ten megabyte output shows nothing at all; a page written to a file is never cut.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from ..files import write_whole
from .listing import listing, plain_lines
from .markup import Html, element, escape, join
from .provenance import names_attribute
from .theme import stylesheet

SIZE_CAP = 1_000_000  # bytes of HTML in one notebook output
_HEAD_LINES = 120  # of a stage that was cut

ASSETS = Path(__file__).parent / "assets"


@dataclass(frozen=True)
class Pane:
    """One stage, drawn. ``key`` is its stable short name, ``summary`` a line of plain text, ``body`` the markup,
    ``plain`` the same content as text (what remains of it when the view must be cut)."""

    key: str
    title: str
    body: Html
    summary: str = ""
    plain: str = ""


@dataclass(frozen=True)
class View:
    """What a record looks like: one pane or several. ``names`` says what the status line calls each captured node,
    ``lead`` is markup above the panes, and ``first`` the keys of the panes shown at the start."""

    title: str
    panes: tuple[Pane, ...]
    lead: Html = Html("")
    names: dict[int, str] = field(default_factory=dict)
    first: tuple[str, ...] = ()
    hint: str = "staxlab.view.write_page(path, record) writes it whole"


@lru_cache(maxsize=8)
def asset(name: str) -> str:
    """A file of ``assets/`` without its comments and indentation."""
    text = (ASSETS / name).read_text(encoding="utf-8")
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    lines = (line.strip() for line in text.splitlines())
    return "\n".join(line for line in lines if line and not line.startswith("//"))


@lru_cache(maxsize=1)
def styles() -> Html:
    """The one ``<style>`` element."""
    theme = "\n".join(line.strip() for line in stylesheet().splitlines())
    return element("style", Html(theme + asset("staxlab.css")))


@lru_cache(maxsize=1)
def scripts() -> Html:
    """The one ``<script>`` element. Running it again is harmless: the second run only looks for new roots."""
    names = ("provenance.js", "explorer.js", "steps.js", "switches.js", "roofline.js")
    return element("script", Html("\n".join(map(asset, names))))


def pane_markup(pane: Pane, *, alone: bool, is_open: bool) -> Html:
    """A pane as ``<details>``, or as a plain section when it is the only one."""
    head = [element("span", pane.title, class_="sx-stage-title")]
    if pane.summary:
        head += [" ", element("span", pane.summary, class_="sx-stage-summary")]
    body = element("div", pane.body, class_="sx-stage-body")
    if alone:
        inner = [element("div", head, class_="sx-stage-head"), body]
        return element("section", inner, class_="sx-stage", data_stage=pane.key, data_title=pane.title)
    inner = [element("summary", head, class_="sx-stage-head"), body]
    return element("details", inner, class_="sx-stage", data_stage=pane.key, data_title=pane.title, open=is_open)


def root_markup(view: View, *, with_assets: bool = True) -> Html:
    """The root element of a view: everything inside is styled, and linked to everything else inside."""
    alone = len(view.panes) == 1
    first = view.first or tuple(pane.key for pane in view.panes[:1])
    stages = [pane_markup(pane, alone=alone, is_open=pane.key in first) for pane in view.panes]
    parts = [
        styles() if with_assets else None,
        view.lead or None,
        element("div", stages, class_="sx-stages"),
        scripts() if with_assets else None,
    ]
    return element(
        "div",
        parts,
        class_="staxlab sx-root" + ("" if alone else " sx-explorer"),
        data_names=names_attribute(view.names),
        data_first=None if alone else " ".join(first),
        # JupyterLab's own shortcuts would take Enter, Escape and the arrow keys away from the links.
        data_lm_suppress_shortcuts="true",
        role="group",
        aria_label=view.title,
    )


def fragment(view: View, full: bool = False) -> Html:
    """The view as one output of a notebook cell, cut to :data:`SIZE_CAP` unless ``full``."""
    drawn = root_markup(view)
    if full or _size(drawn) <= SIZE_CAP:
        return drawn
    panes = list(view.panes)
    # The biggest panes give way first; what remains of each is its beginning as plain text.
    for position in sorted(range(len(panes)), key=lambda k: (-_size(panes[k].body), k)):
        panes[position] = _beginning(panes[position], view.hint)
        drawn = root_markup(replace(view, panes=tuple(panes)))
        if _size(drawn) <= SIZE_CAP:
            return drawn
    return root_markup(replace(view, panes=tuple(_named_only(pane, view.hint) for pane in panes), names={}))


def _size(markup: str) -> int:
    return len(markup.encode("utf-8"))


def _cut_note(pane: Pane, hint: str) -> Html:
    size = _size(pane.body) / 1e6
    return element("p", f"This stage is {size:.1f} MB of HTML and is cut here: {hint}.", class_="sx-note sx-warning")


def _beginning(pane: Pane, hint: str) -> Pane:
    lines = [replace(line, text=line.text[:400]) for line in plain_lines(pane.plain)]
    head = listing(lines, "text", name=pane.title, limit=_HEAD_LINES) if pane.plain else None
    return replace(pane, body=join([_cut_note(pane, hint), head or ""]))


def _named_only(pane: Pane, hint: str) -> Pane:
    return replace(pane, body=_cut_note(pane, hint), summary=pane.summary[:200])


def failed_view(plain: str, error: Exception) -> Html:
    """What is shown when drawing failed: the reason, and the record as text."""
    reason = f"The drawing failed ({type(error).__name__}: {error}); this is the record as text."
    note = element("p", reason, class_="sx-note sx-warning")
    body = element("pre", plain[: SIZE_CAP // 4], class_="sx-code")
    return element("div", styles(), note, body, class_="staxlab sx-root")


def whole_page(sections: list[tuple[str, View]], title: str, intro: Html | None = None) -> str:
    """A complete page: character set, width for small screens, a switch between the themes, and the views below their
    headings (a single one needs none). The styles and scripts are there once."""
    head = [
        element("meta", charset="utf-8"),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("title", title),
        styles(),
    ]
    parts = []
    for heading, view in sections:
        parts += [
            element("h2", heading, class_="sx-page-heading") if heading else None,
            root_markup(view, with_assets=False),
        ]
    main = element("main", element("h1", title, class_="sx-page-title"), intro, parts)
    body = element(
        "body", element("div", main, class_="staxlab sx-page"), scripts(), element("script", Html(asset("theme.js")))
    )
    return "<!doctype html>\n" + element("html", element("head", head), body, lang="en") + "\n"


def write_atomically(path: Path, text: str) -> Path:
    """Write a text file, and the folders it stands in, so that a reader sees the old content or the new one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    return write_whole(path, text.encode(), private=False)


def note(text: Any) -> Html:
    """A paragraph of explanation inside a pane."""
    return element("p", escape(text), class_="sx-note")
