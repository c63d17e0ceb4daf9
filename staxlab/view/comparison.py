"""Several systems side by side (Section 12): tables of what they did, the texts they made, dialects as bars.

Texts of other compilers have no origins, for nothing in them says where it came from; lines of this package's kernels
have theirs, and light up with whatever else on the page stems from the same node.
"""

from __future__ import annotations

from typing import Any

from .document import Pane, View
from .inner_loop import bar_chart
from .listing import listing, plain_lines
from .markup import element, join
from .measures import table_markup

LONGEST = 400  # lines of a listing in a notebook output


def view(record: Any, full: bool = False) -> View:
    """The panes of a record of :mod:`staxlab.measure.comparison` or :mod:`staxlab.measure.representations`."""
    limit = None if full else LONGEST
    draw = {"Behaviour": _behaviour, "HloStages": _hlo, "LoopsBeside": _loops, "DialectCounts": _dialects}
    kind = next(base.__name__ for base in type(record).__mro__ if base.__name__ in draw)
    panes = draw[kind](record, limit)
    return View(panes[0].title, tuple(panes), first=(panes[0].key,))


def _behaviour(record: Any, limit: int | None) -> list[Pane]:
    program = record.program
    texts = [("the program", program.source)]
    if not program.same_words:
        texts = [("in PyTorch's words", program.source), ("in JAX's words", program.jax)]
    drawn = [listing(plain_lines(text), "python", name=name, caption=name) for name, text in texts]
    table = record.table()
    return [Pane(f"behaviour-{program.name}", table.caption, join([*drawn, table_markup(table)]), "", str(record))]


def _hlo(record: Any, limit: int | None) -> list[Pane]:
    table = record.table()
    panes = [Pane("hlo", table.caption, table_markup(table), "", str(record))]
    for step, text in record.texts.items():
        count = f"{record.operations[step]} operations"
        body = listing(plain_lines(text), "text", name=step, limit=limit)
        panes.append(Pane(f"hlo-{step.replace(' ', '-').lower()}", step, body, count, text))
    return panes


def _loops(record: Any, limit: int | None) -> list[Pane]:
    table = record.table()
    panes = [Pane("loops", table.caption, table_markup(table), "", str(record))]
    for place, found in enumerate(record.listings):
        body = listing(found.lines, found.language, name=found.title, limit=limit)
        text = "\n".join(line.text for line in found.lines)
        panes.append(Pane(f"loops-{place}", found.title, body, f"{len(found.lines)} lines", text))
    return panes


def _dialects(record: Any, limit: int | None) -> list[Pane]:
    rows = [
        (f"{step}, {name}", float(count), str(count), -1)
        for step, counts in record.steps
        for name, count in counts.items()
        if not name.startswith("(")
    ]
    said = "; ".join(f"{title}: {text}" for title, _, text, _ in rows) + "."
    chart = bar_chart("Operations by dialect", said, "operations (count)", rows)
    table = record.table()
    body = join([element("figure", chart, class_="sx-listing"), table_markup(table)])
    return [Pane("dialects", table.caption, body, "", str(record))]
