"""The page of the tour: Example 1.1 with every stage, for this processor and for a GPU, and what was measured.

Compilations of one function share their captured graph, whatever they were compiled for. So the first explorer carries
the kernels and machine code of every target, and a source line lights up in C++, in Triton, in the processor's and in
the GPU's instructions at once. Whatever else the tour has to show follows below, each part under its heading.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .document import View, whole_page, write_atomically
from .explorer import same_captured_graph, with_other_targets
from .markup import Html, element, join
from .registry import panes_of

TITLE = "staxlab: a tour of one compilation"

_INTRODUCTION = (
    "A Python function of four tensor operators goes in; one kernel comes out. The buttons are the stages in between. "
    "Point at a line or a node to see what it became in every other stage, and where it came from; click to keep it.",
    "Everything on this page was recorded by the compiler while it compiled. Nothing is loaded from a network.",
)


def sections(records: Mapping[str, Any]) -> list[tuple[str, View]]:
    """(heading, view) in order; compilations of the first one's captured graph are drawn within its explorer."""
    compilations = {heading: r for heading, r in records.items() if type(r).__name__ == "Compilation"}
    if not compilations:
        return [(heading, panes_of(record, full=True)) for heading, record in records.items()]
    first = next(iter(compilations))
    joined = [
        heading
        for heading, other in compilations.items()
        if heading != first and other.kernels is not None and same_captured_graph(records[first], other)
    ]
    found = []
    for heading, record in records.items():
        if heading in joined:
            continue
        if heading == first and joined and record.kernels is not None:
            view = with_other_targets(record, [records[name] for name in joined], full=True)
            found.append((" and ".join([first, *(name[:1].lower() + name[1:] for name in joined)]), view))
        else:
            found.append((heading, panes_of(record, full=True)))
    return found


def tour_page(records: Mapping[str, Any], title: str = TITLE) -> str:
    """The page as text. ``records`` maps headings to compilations, traffic models, rooflines, measurements."""
    intro: Html = join(element("p", paragraph, class_="sx-intro") for paragraph in _INTRODUCTION)
    return whole_page(sections(records), title, intro)


def write_tour(path: str | Path, records: Mapping[str, Any], title: str = TITLE) -> Path:
    """Write the page, all or nothing. Returns the path."""
    return write_atomically(Path(path), tour_page(records, title))
