"""The front-end passes (Section 4.1), drawn as what they did: a difference per pass, with the rules that made it.

Each pass that changed the graph shows the rules it applied with the law each states, and the graph before and after as
one list: removed lines are marked with a minus sign, added ones with a plus sign, in a column of their own. The table
on top has a row per round, ending with the round in which nothing changed any more.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import PurePath
from typing import Any

from ..provenance import Line
from .colour import coloured
from .document import Pane, View
from .graph import graph_lines, graph_markup
from .markup import Html, element, join, table
from .provenance import TabStop, node_names

CONTEXT = 3  # unchanged lines kept around a change


def view(record: Any, full: bool = False) -> View:
    """One pane: rounds, differences, and the graph that came out."""
    changes = record.changes
    parts = [_rounds(record)]
    for run in changes:
        parts.append(_pass_markup(run))
    if not changes:
        parts.append(
            element("p", "No rule applied: the graph was in normal form as it was captured.", class_="sx-note")
        )
    final = element("summary", "the graph after all passes")
    parts.append(
        element("details", final, graph_markup(record.final.graph, "transformed graph", full=full), class_="sx-more")
    )
    applied = sum(len(run.applied) for run in changes)
    summary = (
        f"{_count(applied, 'rewrite')} in {_count(len(changes), 'pass', 'passes')}, {_count(record.rounds, 'round')}"
    )
    pane = Pane("transforms", "Transformation", join(parts), summary, record.format())
    return View("graph transformation", (pane,), names=node_names(record.initial.graph))


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number} {noun if number == 1 else plural or noun + 's'}"


def _rounds(record: Any) -> Html | None:
    """Rounds by passes: how many rewrites each made."""
    names = list(dict.fromkeys(run.name for run in record.runs))
    if not names:
        return None
    counts = {(run.round, run.name): len(run.applied) for run in record.runs}
    rows = []
    for number in range(1, record.rounds + 1):
        cells = [counts.get((number, name)) for name in names]
        rows.append([str(number), *(str(count) if count else "–" for count in cells)])
    return table("Rewrites by round and pass (the last round changes nothing)", ["round", *names], rows)


def _pass_markup(run: Any) -> Html:
    heading = element("h4", f"Round {run.round}, {run.name}", class_="sx-heading")
    from ..transform.rewrite import measure_text

    why = "every change makes the measure smaller, its first number counting most, so rewriting ends (Proposition 4.1)"
    measure = element("p", f"measure after the pass {measure_text(run.measure)}", class_="sx-note", title=why)
    stop = TabStop()
    rows, attributes = [], []
    for applied in run.applied:
        before = element("ul", [element("li", element("code", text)) for text in applied.before], class_="sx-plain")
        after = element("ul", [element("li", element("code", text)) for text in applied.after], class_="sx-plain")
        law = element("code", applied.law.replace("->", "→"), class_="sx-nowrap" if len(applied.law) < 30 else None)
        rows.append([applied.rule, law, before, after if applied.after else "(removed)"])
        attributes.append({**stop.attributes(applied.origins), "title": PurePath(applied.source).name or None})
    rules = table("Rules applied", ["rule", "law", "before", "after"], rows, row_attributes=attributes, data_group=True)
    if run.graph_before is None or run.graph_after is None:
        return join([heading, measure, rules])
    before, after = graph_lines(run.graph_before.graph), graph_lines(run.graph_after.graph)
    if [line.text for line in before] == [line.text for line in after]:
        said = "The graph reads the same afterwards: this pass only wrote notes on its nodes."
        return join([heading, measure, rules, element("p", said, class_="sx-note")])
    return join([heading, measure, rules, difference(before, after, f"{run.name}, round {run.round}")])


def difference(before: Sequence[Line], after: Sequence[Line], name: str, language: str = "ir") -> Html:
    """Two listings as one, with ``-`` and ``+`` in front of what was removed and added."""
    entries: list[tuple[str, Line]] = []
    matcher = difflib.SequenceMatcher(None, [l.text for l in before], [l.text for l in after], autojunk=False)
    operations = matcher.get_opcodes()
    for position, (kind, i1, i2, j1, j2) in enumerate(operations):
        if kind == "equal":
            kept = [(" ", line) for line in after[j1:j2]]
            head = CONTEXT if position else 0
            tail = CONTEXT if position < len(operations) - 1 else 0
            if len(kept) > head + tail + 1:
                gap = f"… {len(kept) - head - tail} lines unchanged"
                kept = [*kept[:head], ("…", Line(gap)), *(kept[-tail:] if tail else [])]
            entries += kept
            continue
        entries += [("-", line) for line in before[i1:i2]]
        entries += [("+", line) for line in after[j1:j2]]
    stop = TabStop()
    styles = {"-": " sx-removed", "+": " sx-added", "…": " sx-gap", " ": ""}
    signs = {"-": "−", "+": "+", "…": " ", " ": " "}
    drawn = []
    for (sign, line), markup in zip(entries, coloured([line.text for _, line in entries], language), strict=True):
        mark = element("span", f"{signs[sign]} ", class_="sx-n sx-sign")
        linked = stop.attributes(line.origins) if line.origins else {}
        drawn.append(element("span", mark, markup, class_="sx-line" + styles[sign], **linked))
    code = element(
        "pre", Html("\n".join(drawn)), class_="sx-code sx-diff", data_group=True, aria_label=f"changes by {name}"
    )
    caption = element("figcaption", element("span", "what changed (− removed, + added)", class_="sx-muted"))
    return element(
        "figure", caption, code, class_="sx-listing", data_name=f"changes by {name}", data_noun="changed line"
    )
