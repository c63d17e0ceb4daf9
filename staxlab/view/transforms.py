"""The front-end passes (Section 4.1), drawn as what they did: a step per pass, with the rules that made it.

The overview has a row per round, ending with the round in which nothing changed any more, the measure of Proposition
4.1 over the passes, and the graph that came out with its pointwise regions coloured. Each pass that changed the graph
is a step of its own: the rules it applied with the law each states, and both graphs as one, compared node by node
(``node_difference``). Displayed alone the log is a stepper; among the stages of a compilation its steps fold.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath
from typing import Any

from .decisions import decisions_table
from .diagram import Box, box_of
from .document import Pane, View
from .graph import graph_markup
from .markup import Html, element, join, table
from .measure_chart import measure_chart, measure_text_chart
from .node_difference import KEPT, changes_diagram, changes_listing, changes_text, node_changes
from .provenance import TabStop, node_names


def view(record: Any, full: bool = False) -> View:
    """The overview, then a pane for each pass that changed the graph."""
    panes = [_overview_pane(record, full)]
    for number, run in enumerate(record.changes, 1):
        words = _count(len(run.applied), "rewrite")
        plain = _step_text(run)
        panes.append(Pane(f"pass-{number}", f"{run.round}. {run.name}", _pass_markup(run), words, plain))
    return View("graph transformation", tuple(panes), names=node_names(record.initial.graph))


def pane(record: Any, full: bool = False) -> Pane:
    """All of it as one pane, for a page that has other stages beside it."""
    overview = _overview_pane(record, full)
    steps = []
    for number, run in enumerate(record.changes):
        said = element("summary", f"Round {run.round}, {run.name}: {_count(len(run.applied), 'rewrite')}")
        steps.append(element("details", said, _pass_markup(run), class_="sx-more", open=number == 0))
    return Pane(overview.key, overview.title, join([overview.body, *steps]), overview.summary, overview.plain)


def _overview_pane(record: Any, full: bool) -> Pane:
    changes = record.changes
    parts = [_rounds(record)]
    if record.runs:
        parts.append(measure_chart(record))
    if not changes:
        parts.append(
            element("p", "No rule applied: the graph was in normal form as it was captured.", class_="sx-note")
        )
    if record.decisions:
        parts.append(decisions_table(record.decisions, "Attention that is written out, and what became of it"))
    final = element("summary", "the graph after all passes, its pointwise regions coloured")
    drawn = regions_markup(record.final.graph, full)
    parts.append(element("details", final, drawn, class_="sx-more", open=True))
    applied = sum(len(run.applied) for run in changes)
    summary = (
        f"{_count(applied, 'rewrite')} in {_count(len(changes), 'pass', 'passes')}, {_count(record.rounds, 'round')}"
    )
    plain = f"{record.format()}\n\n{measure_text_chart(record)}"
    return Pane("transforms", "Transformation", join(parts), summary, plain)


REGION_COLOURS = 6  # that the stylesheet has; beyond that they repeat, and the number tells regions apart


def regions_markup(graph: Any, full: bool = False) -> Html:
    """A graph with the pointwise regions of Section 4.7: same colour and same number, same region."""
    return graph_markup(graph, "transformed graph", full=full, box=_region_box, remark=_region_remark)


def _region_box(node: Any) -> Box:
    box, region = box_of(node), node.meta.get("region")
    if region is None:
        return box
    return replace(
        box,
        rows=(*box.rows, f"region {region}"),
        spoken=f"{box.spoken}; pointwise region {region}",
        emphasis=f"sx-region sx-region-{region % REGION_COLOURS}",
    )


def _region_remark(node: Any) -> str:
    region = node.meta.get("region")
    return "" if region is None else f"region {region}"


def _step_text(run: Any) -> str:
    from ..transform.rewrite import measure_text

    lines = [f"round {run.round}, {run.name}: measure {measure_text(run.measure)}", *map(str, run.applied)]
    if run.graph_before is not None and run.graph_after is not None:
        lines.append(changes_text(node_changes(run.graph_before.graph, run.graph_after.graph)))
    return "\n".join(lines)


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
    changes = node_changes(run.graph_before.graph, run.graph_after.graph)
    if all(change.kind == KEPT for change in changes):
        said = "The graph reads the same afterwards: this pass only wrote notes on its nodes."
        return join([heading, measure, rules, element("p", said, class_="sx-note")])
    name = f"{run.name}, round {run.round}"
    both = element("div", changes_diagram(changes, name), changes_listing(changes, name), class_="sx-columns")
    return join([heading, measure, rules, both])
