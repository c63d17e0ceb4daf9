"""Realization with what-if, drawn (Section 6.6): a switch for each value, and the kernels that each setting leads to.

Every combination was lowered, scheduled and generated before the record was drawn, so a saved page needs no kernel: the
script only shows and hides. Kernels that several combinations share are there once. Without the script the table of
combinations says what each leads to, and the kernels stand below it, each with the combinations it belongs to.
"""

from __future__ import annotations

import json
from typing import Any

from ..loops.realize import INLINED, REALIZED, model_choice
from ..measure.tables import bytes_text, quantity_text, seconds_text
from ..measure.what_if import CHOICES, RealizationTable, rates_text
from .document import Pane, View, note
from .kernels import kernel_markup
from .listing import listing
from .markup import Html, element, join, table
from .schedule import traffic_bar

ROOM = 500_000  # bytes of HTML for the sources of kernels in one output
MOST_OPEN = 3  # kernels whose source is shown without being asked for
MODEL = (
    "k users; N elements, each of c operations, q bytes read and b stored. Inlined, a value costs k N (c/P + q/B); "
    "realized, N (c/P + q/B) + (1 + k) N b/B. "
)


def view(record: Any, full: bool = False) -> View:
    """The table with its switches, or one question and its answer."""
    if isinstance(record, RealizationTable):
        title = f"Realization in {record.name}"
        summary = f"{len(record.decisions)} open, {len(record.outcomes)} outcomes worked out"
        body = _realization(record, full)
        return View("realization", (Pane("realization", title, body, summary, record.format()),))
    content = record.table()
    rows = [[*row] for row in content.rows]
    parts = [table(content.caption, content.columns, rows), *(note(f"{said}.") for said in content.notes)]
    for title, outcome in (("as compiled", record.before), ("what if", record.after)):
        drawn = [kernel_markup(kernel, single=False) for kernel in outcome.kernels]
        parts.append(element("details", element("summary", f"kernels, {title}"), drawn, class_="sx-more"))
    return View("what-if", (Pane("what-if", content.caption, join(parts), "", str(record)),))


def _realization(record: RealizationTable, full: bool) -> Html:
    if not record.decisions:
        return join([note("No value has a choice: each is in memory in any case or read nowhere."), _required(record)])
    codes = [
        "".join(str(CHOICES.index(outcome.chosen(value))) for value in record.values) for outcome in record.outcomes
    ]
    words = [record.outcome_words(outcome) for outcome in record.outcomes]
    said = element("output", words[0], class_="sx-switches-words", aria_live="polite")
    return element(
        "div", _decisions(record), said, _outcomes(record), _kernels(record, full), class_="sx-switches",
        data_choices=json.dumps(CHOICES), data_combinations=json.dumps(codes), data_words=json.dumps(words),
        data_open=_few(record),
    )  # fmt: skip


def _few(record: RealizationTable) -> bool:
    """Whether the kernels are so few that all are shown at once."""
    return max(len(outcome.kernels) for outcome in record.outcomes) <= MOST_OPEN


def _decisions(record: RealizationTable) -> Html:
    rows = []
    for place, decision in enumerate(record.decisions):
        facts = dict(decision.inputs)
        said = model_choice(decision)
        verdict = "agrees" if said == decision.choice else element("strong", f"would {said}")
        rows.append(
            [
                element("code", decision.subject),
                element("span", decision.choice, data_switch=place, data_value=decision.subject),
                decision.reason, facts["users"], facts["N"], facts["c"], f"{facts['q']:g}", facts["b"],
                seconds_text(facts[INLINED]), seconds_text(facts[REALIZED]), verdict,
            ]
        )  # fmt: skip
    head = ["value", "chosen", "because", "k", "N", "c", "q", "b", "inlined", "realized", "the model"]
    caption = f"Which values are written to memory, for {record.device.name}: rule and cost model"
    said = note(f"{MODEL}{rates_text(record.rate)}.")
    return join([table(caption, head, rows), said, _required(record)])


def _required(record: RealizationTable) -> Html:
    words = record.required_text()
    return note(f"{words[0].upper()}{words[1:]}.") if record.required else Html("")


def _outcomes(record: RealizationTable) -> Html:
    longest = max(outcome.traffic.nbytes for outcome in record.outcomes)
    rows, attributes = [], []
    for place, outcome in enumerate(record.outcomes):
        traffic = outcome.traffic
        bar = traffic_bar(traffic.bytes_read, traffic.bytes_written, longest)
        mark = " (as compiled)" if place == 0 else " (least)" if outcome is record.best else ""
        rows.append(
            [
                *(outcome.chosen(value) for value in record.values), len(outcome.kernels), outcome.buffers,
                element("span", bar, element("span", bytes_text(traffic.nbytes), class_="sx-bar-text")),
                quantity_text(traffic.operations, "op"), seconds_text(outcome.seconds) + mark,
            ]
        )  # fmt: skip
        attributes.append({"data_states": str(place)})
    head = [*record.values, "kernels", "buffers", "bytes (plain: read, hatched: written)", "operations", "predicted"]
    caption = "Every combination" if record.together else "One decision changed at a time"
    return table(caption, head, rows, row_attributes=attributes)


def _kernels(record: RealizationTable, full: bool) -> Html:
    """Each distinct kernel once. Names number the kernels of a program, so the same source may have several. Unless
    ``full``, sources are drawn as long as there is room, those of the program as compiled first."""
    found: dict[tuple, tuple[Any, list[int]]] = {}
    for state, outcome in enumerate(record.outcomes):
        for place, kernel in enumerate(outcome.kernels):
            found.setdefault((place, kernel.name, kernel.source), (kernel, []))[1].append(state)
    sources: dict[int, Html] = {}
    room = ROOM
    for kernel, _ in sorted(found.values(), key=lambda entry: entry[1][0]):
        if full or room > 0:
            sources[id(kernel)] = listing(kernel.lines, kernel.language, name=kernel.name)
            room -= len(sources[id(kernel)])
    left_out = note("Its source is left out here, to be quick: staxlab.view.write_page(path, record) writes it.")
    drawn = []
    for _, (kernel, states) in sorted(found.items(), key=lambda entry: (entry[0][0], entry[1][1])):
        numbers = ", ".join(str(state + 1) for state in states)
        moved = f" reads {bytes_text(kernel.bytes_read)}, writes {bytes_text(kernel.bytes_written)}; in row {numbers}"
        head = element("summary", element("code", kernel.name), element("span", moved, class_="sx-muted"))
        inner = [head, sources.get(id(kernel), left_out)]
        at = " ".join(map(str, states))
        drawn.append(element("details", inner, class_="sx-more", open=0 in states and _few(record), data_states=at))
    return join(drawn)
