"""Several versions under one key (Figure 10.1), drawn: a call tries them in turn, each by its decisions about sizes.

With ``dynamic=True`` a key holds no sizes, so what tells versions apart is what was decided about sizes when each was
recorded. A call takes the first version all of whose decisions hold; if there is none, another one is compiled. Where
the report was asked for a call, its way is lit.
"""

from __future__ import annotations

from ..specialize.dispatch import arguments_text
from ..specialize.report import DispatchReport, Try, VersionReport, counted, groups_text, value_text
from .call_boxes import arrow, station_box, words_at
from .charts import CHARACTER, FONT
from .diagram import LINE, shortened
from .document import Pane, note
from .markup import Html, element, join, table

LEFT, RUN_WIDTH, GAP, STEP = 12, 140, 60, 46  # pixels: margin, the boxes on the right, room across and down
LONGEST, MOST_DECISIONS = 46, 5  # of one decision in a box, in characters; of decisions in a box
MET = "▸ this call meets it"


def groups_pane(record: DispatchReport) -> Pane:
    """A picture for each key with several versions, and what a given call finds."""
    drawn: list[Html] = []
    tried = {one.version: one for one in record.tries or ()}
    for group in record.groups:
        mine = [tried[version.number] for version in group if version.number in tried]
        drawn.append(group_picture(record, group, mine))
    if record.tries is not None:
        drawn.append(tries_table(record.tries))
    drawn.append(note("Versions without decisions about sizes, under a key of their own, are not drawn: the key alone "
                      "finds them."))  # fmt: skip
    most = max((len(group) for group in record.groups), default=0)
    summary = f"{counted(len(record.groups), 'key')}, up to {counted(most, 'version')} under one"
    return Pane("sizes", "One key, several versions", join(drawn), summary, "\n".join(groups_text(record)))


def tries_table(tries: tuple[Try, ...]) -> Html:
    """What a call found, version by version."""
    if not tries:
        return note("No version has the key of this call: one would be compiled.")
    rows = []
    for one in tries:
        failed = [element("li", element("code", g.path), f" (got {value_text(g.actual)})") for g in one.failed]
        rows.append([f"version {one.version}", "met" if one.is_met else "not met",
                     element("ul", failed, class_="sx-plain") if failed else "everything holds"])  # fmt: skip
    return table("What this call finds under its key", ["version", "answer", "does not hold"], rows)


def group_picture(record: DispatchReport, group: tuple[VersionReport, ...], tries: list[Try]) -> Html:
    """The key on top, below it the versions in the order in which they are tried."""
    boxes = [_rows(version) for version in group]
    key = arguments_text(group[0].key)
    head = shortened(f"key: {key}", LONGEST + 8)
    width = max(round(max(len(row) for rows in ([head], *boxes) for row in rows) * CHARACTER) + 30, 250)
    right, middle = LEFT + width + GAP, LEFT + width / 2
    met = next((one.version for one in tries if one.is_met), None)
    asked = {one.version for one in tries}
    drawn: list[Html] = []
    shown: list[Html] = []
    shown.append(station_box(LEFT, 30, width, 34, [head], "input", f"a call with this key: {key}"))
    y = 64.0
    is_lit = bool(tries)  # the way so far is that of the call
    for version, rows in zip(group, boxes, strict=True):
        is_met = version.number == met
        rows = [*rows, MET] if is_met else rows
        height = LINE * len(rows) + 16
        top = y + STEP
        drawn.append(arrow((middle, y), (middle, top), is_lit and version.number in asked))
        if y > 64:
            drawn.append(words_at("no", middle + 10, y + STEP / 2 + 4, f"no-before-{version.number}"))
        drawn.append(arrow((LEFT + width, top + height / 2), (right, top + height / 2), is_met))
        drawn.append(words_at("yes", LEFT + width + 10, top + height / 2 - 7, f"yes-{version.number}"))
        spoken = f"version {version.number}: {version.size_condition or 'no decision about sizes'}"
        spoken += "; this call meets it" if is_met else ""
        shown.append(station_box(LEFT, top, width, height, rows, "call", spoken, is_lit=is_met,
                                 said=MET if is_met else "", data_version=version.number))  # fmt: skip
        served = f"{counted(version.calls, 'call')} served"
        shown.append(station_box(right, top + height / 2 - 22, RUN_WIDTH, 44, [f"run version {version.number}", served],
                                 "output", f"version {version.number} runs: {served}"))  # fmt: skip
        y = top + height
    last = y + STEP
    none_met = bool(tries) and met is None
    drawn.append(arrow((middle, y), (middle, last), none_met))
    drawn.append(words_at("no", middle + 10, y + STEP / 2 + 4, "no-at-all"))
    ending = ["compile another version", *([MET.replace("meets it", "ends here")] if none_met else [])]
    shown.append(station_box(LEFT, last, width, LINE * len(ending) + 16, ending, "constant",
                             "no version's sizes are met: another one is compiled, within the limits",
                             is_lit=none_met, said=ending[-1] if none_met else ""))  # fmt: skip
    height = last + LINE * len(ending) + 26
    title = f"{record.name}: {counted(len(group), 'version')} under one key (Figure 10.1)"
    said = "; ".join(f"version {v.number} if {v.size_condition or 'nothing more is asked'}" for v in group)
    said += "; otherwise another is compiled." + (f" The given call meets version {met}." if met is not None else "")
    picture = element(
        "svg", element("title", title), element("desc", said),
        element("text", title, x="8", y="18", class_="sx-count", fill="#1d2329", font_weight="600"),
        element("g", drawn, aria_hidden="true"), shown, class_="sx-diagram sx-size-dispatch",
        width=f"{right + RUN_WIDTH + 12:g}", height=f"{height:g}", viewBox=f"0 0 {right + RUN_WIDTH + 12:g} {height:g}",
        role="group", tabindex=0, aria_label=f"{title}. {said}", **FONT,
    )  # fmt: skip
    return element("div", picture, class_="sx-scroll sx-drawing")


def _rows(version: VersionReport) -> list[str]:
    """What stands in a version's box."""
    if not version.sizes:
        return [f"version {version.number}", "nothing more is asked"]
    said = [shortened(text, LONGEST) + "?" for text in version.sizes[:MOST_DECISIONS]]
    rest = len(version.sizes) - len(said)
    return [f"version {version.number}", *said, *([f"and {counted(rest, 'more decision')}"] if rest else [])]
