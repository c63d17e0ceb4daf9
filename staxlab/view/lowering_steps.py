"""The steps of Triton's compiler (Section 9.2), drawn: counts first, then every listing, linked line by line.

Inside this view an origin is a line of the kernel's text, not a captured node: pointing at ``tmp2 = tmp0 + tmp1``
lights up exactly the operations and instructions that this line became, in each of the five.
"""

from __future__ import annotations

from typing import Any

from ..measure.lowering_steps import HEAD
from ..provenance import Line
from .document import Pane, View
from .inner_loop import bar_chart
from .listing import listing
from .markup import Html, element, join, table

LONGEST = 1500  # lines of a listing in a notebook output


def view(record: Any, full: bool = False) -> View:
    """The counts, the kernel, and a pane for each step; kernel and machine code stand beside each other at first."""
    limit = None if full else LONGEST
    panes = [_counts(record), _kernel(record)]
    for step in record.steps:
        lines = [Line(text, _ids(number)) for text, number in step.lines]
        body = listing(lines, step.name, name=step.title, noun=f"{step.title} line", limit=limit)
        summary = f"{step.operations} operations, {step.linked} of {len(lines)} lines with a known origin"
        panes.append(Pane(step.name, step.title, body, summary, "\n".join(text for text, _ in step.lines)))
    names = {
        number: f"line {number}: {line.text.strip()}" for number, line in enumerate(record.source, 1) if line.origins
    }
    return View(f"{record.kernel}, step by step", tuple(panes), names=names, first=("steps-kernel", "sass"))


def _ids(number: int | None) -> frozenset[int]:
    return frozenset() if number is None else frozenset({number})


def _kernel(record: Any) -> Pane:
    lines = [Line(line.text, _ids(number if line.origins else None)) for number, line in enumerate(record.source, 1)]
    body = listing(lines, "triton", name=record.kernel, noun="line")
    return Pane("steps-kernel", "Kernel", body, f"{len(lines)} lines of Triton", "\n".join(line.text for line in lines))


def _counts(record: Any) -> Pane:
    rows = table(f"{record.kernel}, step by step", HEAD, record.rows())
    note = element("p", f"The machine code takes {record.takes()}.", class_="sx-note")
    what = element(
        "p", "Loads and stores of TTIR and TTGIR are of whole blocks, those after them of one thread.", class_="sx-note"
    )
    return Pane("steps", "Counts", join([chart_of(record), rows, note, what]), record.summary(), record.format())


def chart_of(record: Any) -> Html:
    """A bar for each step."""
    rows = [(step.title, float(step.operations), str(step.operations), -1) for step in record.steps]
    said = "; ".join(f"{title}: {text}" for title, _, text, _ in rows) + "."
    return bar_chart(
        "Operations of each step", said, "operations on blocks, then instructions of a thread (count)", rows
    )
