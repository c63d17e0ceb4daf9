"""Where an error was found, drawn (Section 11.4): the layers of the pipeline as boxes in reading order, with marks.

A check mark stands for a layer whose prefix agreed with eager execution, a cross for the one at fault, and a dash for
what lies behind it or takes no part. Words say the same, and frames differ (solid, thick, dotted). Beside each prefix
that was compared stands how much of its bound the largest error uses. The box of the culprit carries its origins, and
so lights up in every other picture of the compilation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..locate.record import LAYERS
from .charts import MUTED, RULE, TEXT, chart, text_at
from .diagram import shortened
from .document import Pane
from .listing import linked_span, listing, plain_lines
from .markup import Html, element, join
from .measures import table_markup
from .provenance import TabStop

COLUMNS, WIDTH, BOX, HEIGHT, GAP, TOP, LEFT = 4, 752, 172, 62, 16, 44, 12
RIGHT, WRONG, BEHIND, ABSENT = "right", "WRONG", "not reached", "takes no part"
_MARKS = {RIGHT: "✓", WRONG: "✗", BEHIND: "–", ABSENT: "–"}
_STYLE = {RIGHT: "sx-node sx-node-added", WRONG: "sx-node sx-node-removed", BEHIND: "sx-node", ABSENT: "sx-node"}
_DASHES = {BEHIND: "2 4", ABSENT: "1 5"}


def panes(record: Any) -> list[Pane]:
    """One pane: the boxes, what is at fault, the prefixes as a table, and the small program."""
    parts = [location_chart(record)]
    if record.culprit is not None:
        parts.append(_culprit(record.culprit))
    parts.append(table_markup(record.table()))
    if record.script:
        parts.append(listing(plain_lines(record.script), "python", name="the small program", caption=_caption(record)))
    return [Pane("location", "Location of an error", join(parts), record.verdict, str(record))]


def _caption(record: Any) -> str:
    return f"A small program that shows it{f', written to {record.path}' if record.path else ''}"


def _culprit(culprit: Any) -> Html:
    """What is known of the layer at fault, as a list of terms."""
    entries = [("at fault", linked_span(str(culprit), culprit.origins, culprit.title))]
    entries += [("how that was found", culprit.reason)] if culprit.reason else []
    entries += [("first difference", str(culprit.difference))] if culprit.difference is not None else []
    entries += [("your line", str(source)) for source in culprit.sources]
    return element("dl", [(element("dt", term), element("dd", words)) for term, words in entries])


def states(record: Any) -> dict[str, str]:
    """For each layer what was found: right, wrong, not reached, or that the region has no such layer."""
    wrong = record.culprit.layer if record.culprit is not None else None
    seen = {layer for check in record.checks if check.right for layer in check.layers}
    trains = any("gradient" in check.what or "backward" in check.what for check in record.checks)
    asked = any("dispatch" in check.layers for check in record.checks)
    found, past = {}, False
    for name, _, _ in LAYERS:
        if name == wrong:
            found[name], past = WRONG, True
        elif name in ("joint", "partition") and not trains:
            found[name] = ABSENT
        elif past:
            found[name] = BEHIND
        elif name in seen or wrong is not None and not (name == "dispatch" and not asked):
            found[name] = RIGHT
        else:
            found[name] = ABSENT if name == "dispatch" else BEHIND
    return found


def location_chart(record: Any) -> Html:
    """The boxes, row by row, with arrows between them."""
    found = states(record)
    title = f"Where {record.function} goes wrong" if record.culprit is not None else f"The layers of {record.function}"
    said = f"{record.verdict}; " + "; ".join(f"{title}: {found[name]}" for name, title, _ in LAYERS)
    drawn = [element("title", title), element("desc", said), text_at(title, LEFT, 18, "sx-count", TEXT,
             font_weight="600"), text_at("error: in units of its bound, 1 is the limit", LEFT, 35, "sx-label",
             MUTED)]  # fmt: skip
    stop = TabStop()
    for number, layer in enumerate(LAYERS):
        drawn += _layer(record, number, layer, found[layer[0]], stop)
    rows = -(-len(LAYERS) // COLUMNS)
    return chart(drawn, title, said, WIDTH, TOP + rows * (HEIGHT + GAP) + 4)


def _layer(record: Any, number: int, layer: tuple[str, str, str], state: str, stop: TabStop) -> Iterator[Html]:
    name, title, section = layer
    x = LEFT + (number % COLUMNS) * (BOX + GAP)
    y = TOP + (number // COLUMNS) * (HEIGHT + GAP)
    if number % COLUMNS:
        yield element("path", d=f"M{x - GAP} {y + HEIGHT / 2:g}h{GAP - 5}", class_="sx-edge", stroke=RULE, fill="none")
        yield element("path", d=f"M{x - 6} {y + HEIGHT / 2 - 4:g}l6 4l-6 4Z", class_="sx-arrow", fill=RULE)
    culprit = record.culprit if state == WRONG else None
    words = f"{title} ({section}): {state}" + (f", {culprit.part}" if culprit is not None else "")
    detail = culprit.part if culprit is not None else _share(record, name) or section
    frame = element("rect", x=x, y=y, width=BOX, height=HEIGHT, rx=5, class_="sx-frame", fill="#ffffff", stroke=RULE,
                    stroke_width=3 if culprit is not None else 1, stroke_dasharray=_DASHES.get(state))  # fmt: skip
    linked = stop.attributes(culprit.origins, title) if culprit is not None else {}
    yield element(
        "g", element("title", words), frame,
        text_at(title, x + 10, y + 18, "sx-node-name", TEXT),
        text_at(f"{_MARKS[state]} {state}", x + 10, y + 36, "sx-node-name", TEXT),
        text_at(shortened(detail, int((BOX - 20) / 7)), x + 10, y + 53, "sx-label", MUTED),
        class_=_STYLE[state], data_layer=name, data_state=state, **linked,
    )  # fmt: skip


def _share(record: Any, layer: str) -> str:
    """How much of its bound the largest error of the first prefix with this layer uses."""
    for check in record.checks:
        if layer in check.layers and check.right and check.agreement is not None:
            return "same bits" if check.agreement.identical else f"error {check.agreement.share:.2g}"
    return ""
