"""Dispatch (Section 2.4), drawn: which way the calls went, what versions differ in, why there are so many.

The call path is Figure 2.1 with numbers on it: every call enters at the top, each level serves some and passes on the
rest, and the way the last call took is lit. The numbers are those of ``cache_info()``, so what enters a box leaves it.
The table of versions is the key over all of them: components on which all agree fold into one line, which is what keeps
a model of three hundred weights readable. The recompilations are Corollary 2.1, one at a time.

Each picture says the same in words to whoever does not see it, and has a text of its own in ``DispatchReport.format``.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ..specialize.report import (
    COMPILED,
    EAGER,
    PARTS,
    DispatchReport,
    RecompileReport,
    Row,
    counted,
    growth_plot,
    path_text,
    report,
    value_text,
)
from .call_boxes import arrow, station_box, words_at
from .charts import FONT
from .diagram import shortened
from .document import Pane, View
from .growth import growth_chart
from .markup import Html, element, join, table
from .registry import plain_text
from .size_dispatch import groups_pane

MOST_ROWS = 40  # of one recompilation, before the rest folds


def view(record: Any, full: bool = False) -> View:
    """A report in four panes, five where versions are told apart by sizes; a recompilation or version in one."""
    record = _report_of(record)
    if isinstance(record, RecompileReport):
        pane = Pane("recompile", "Recompilation", difference(record), _about(record), text(record))
        return View("recompilation", (pane,))
    if not isinstance(record, DispatchReport):
        from .specialization import specialization_pane

        return View(f"version {record.number}", (specialization_pane(record.key, record.guards),))
    panes = [_path_pane(record)]
    if record.versions:
        panes.append(_versions_pane(record))
    if record.groups or record.tries is not None:
        panes.append(groups_pane(record))
    if record.recompiles:
        panes.append(_recompiles_pane(record))
    if record.versions:
        panes.append(_history_pane(record))
    headline = element("div", element("span", record.headline), class_="sx-headline")
    return View(
        f"dispatch of {record.name}", tuple(panes), lead=headline,
        first=("path", "sizes" if record.groups else "versions"),
        hint="staxlab.view.write_page(path, compiled.report()) writes it whole",
    )  # fmt: skip


def text(record: Any) -> str:
    """The record for a terminal."""
    record = _report_of(record)
    if isinstance(record, RecompileReport):
        lines = [record.title]
        for number, failed in record.failures:
            lines += [f"    version {number}: {guard}" for guard in failed]
        return "\n".join(lines)
    return record.format() if isinstance(record, DispatchReport) else str(record)


def _report_of(record: Any) -> Any:
    """Live objects as records: a dispatcher as its report, a reason as one without a call number."""
    kinds = {kind.__name__ for kind in type(record).__mro__}
    if "Dispatcher" in kinds:
        return report(record)
    return RecompileReport(record.failures) if "Recompile" in kinds else record


# -- the call path -------------------------------------------------------------------------------------------------

LEFT, WIDTH = 12, 276  # of the boxes that every call passes
RIGHT, RIGHT_WIDTH = 452, 226  # of the boxes that end the way
_TOP = {"entry": 10, 1: 78, 2: 190, 3: 302, "limit": 414, EAGER: 512}
_HEIGHT = {"entry": 32, 1: 74, 2: 74, 3: 74, "limit": 60, EAGER: 60}
_ROWS = {
    1: ("level 1: the C entry", "like a call just served: the same", "metadata, or the same objects?"),
    2: ("level 2: fingerprints", "free variables unchanged,", "and the key known?"),
    3: ("level 3: the key", "looked up, data gates replayed:", "known, and the same answers?"),
    COMPILED: ("compile", "say which guards failed,", "capture, transform, ..., build"),
    EAGER: ("run eagerly", "operator by operator"),
}
_LAST = "▸ taken by the last call"


def _path_pane(record: DispatchReport) -> Pane:
    last = next((station for station in record.stations if station.is_last), None)
    summary = "no call yet" if last is None else f"{counted(record.calls, 'call')}, the last one: {last.name}"
    note = element(
        "p",
        "A call that a level cannot serve goes on to the next. Where a region asks about data, its questions are asked "
        "again before any level serves it. Level 2 keeps the part of the key that comes from free variables and looks "
        "up the rest.",
        class_="sx-note",
    )
    body = join([call_path(record), _path_table(record), note])
    return Pane("path", "Call path", body, summary, f"{record.headline}\n\n{path_text(record.stations)}")


def _path_table(record: DispatchReport) -> Html:
    rows = [[s.name, s.asks, s.does, s.reached, s.served, "▸ this one" if s.is_last else ""] for s in record.stations]
    folded = table("The call path in words", ["station", "asks", "does", "came here", "served", "last call"], rows)
    return element("details", element("summary", "the same as a table"), folded, class_="sx-more")


def call_path(record: DispatchReport) -> Html:
    """Figure 2.1 with counts on its edges and the way of the last call lit, as an SVG."""
    stations = {station.level: station for station in record.stations}
    order = [station.level for station in record.stations]
    last = record.last_level
    passed = order[: order.index(last)] if last in order else []  # the stations that sent the last call on
    middle = LEFT + WIDTH / 2
    drawn: list[Html] = []
    entered = last is not None
    drawn.append(arrow((middle, _bottom("entry")), (middle, _TOP[1]), entered))
    for level, below in ((1, 2), (2, 3), (3, "limit")):
        station, y = stations[level], _TOP[level] + _HEIGHT[level] / 2
        drawn.append(arrow((LEFT + WIDTH, y), (RIGHT, y), station.is_last))
        drawn.append(words_at(f"yes: {counted(station.served, 'call')}", LEFT + WIDTH + 8, y - 7, f"served-{level}"))
        drawn.append(arrow((middle, _bottom(level)), (middle, _TOP[below]), level in passed))
        onward = station.reached - station.served
        drawn.append(words_at(f"no: {counted(onward, 'call')}", middle + 12, _bottom(level) + 25, f"passed-{level}"))
    compiled, eager, y = stations[COMPILED], stations[EAGER], _TOP["limit"] + _HEIGHT["limit"] / 2
    drawn.append(arrow((LEFT + WIDTH, y), (RIGHT, y), compiled.is_last))
    drawn.append(words_at(f"yes: {counted(compiled.served, 'call')}", LEFT + WIDTH + 8, y - 7, "served-0"))
    drawn.append(arrow((middle, _bottom("limit")), (middle, _TOP[EAGER]), eager.is_last))
    drawn.append(words_at(f"no: {counted(eager.served, 'call')}", middle + 12, _bottom("limit") + 30, "served-eager"))
    run = RIGHT + RIGHT_WIDTH / 2
    compile_top, run_bottom = y - 37, _bottom(3)
    drawn.append(arrow((run, compile_top), (run, run_bottom), compiled.is_last))

    served = record.info.hits + compiled.served
    boxes = [
        station_box(LEFT, _TOP["entry"], WIDTH, _HEIGHT["entry"], [f"a call ({record.calls:,} so far)"], "input",
             f"{counted(record.calls, 'call')} so far"),
        *(_station(stations[level], LEFT, _TOP[level], WIDTH, _HEIGHT[level]) for level in (1, 2, 3)),
        station_box(LEFT, _TOP["limit"], WIDTH, _HEIGHT["limit"], ["no version fits", *_room(record)], "call",
             f"no version fits {counted(compiled.reached, 'call')}; {' '.join(_room(record))}"),
        _station(eager, LEFT, _TOP[EAGER], WIDTH, _HEIGHT[EAGER]),
        station_box(RIGHT, _TOP[1], RIGHT_WIDTH, run_bottom - _TOP[1], ["run the version", counted(served, "call")],
             "call", f"a compiled version ran, or was asked for, {counted(served, 'time')}"),
        _station(compiled, RIGHT, compile_top, RIGHT_WIDTH, 74),
    ]  # fmt: skip
    width, height = RIGHT + RIGHT_WIDTH + 12, _bottom(EAGER) + 10
    title = f"The call path of {record.name} (Figure 2.1)"
    picture = element(
        "svg",
        element("title", title),
        element("g", drawn, aria_hidden="true"),
        boxes,
        class_="sx-diagram sx-call-path",
        width=width,
        height=height,
        viewBox=f"0 0 {width} {height}",
        role="group",
        tabindex=0,
        aria_label=f"{title}. {_spoken_path(record)}",
        **FONT,
    )
    return element("div", picture, class_="sx-scroll sx-drawing")


def _spoken_path(record: DispatchReport) -> str:
    parts = [f"{s.name} served {counted(s.served, 'call')} of {s.reached:,}" for s in record.stations]
    last = next((station for station in record.stations if station.is_last), None)
    end = "There has been no call yet" if last is None else f"The last call was taken by: {last.name}"
    return "; ".join(parts) + f". {end}."


def _room(record: DispatchReport) -> tuple[str, str]:
    return (
        f"room? {len(record.versions):,} of {record.max_versions:,} versions,",
        f"{record.info.compilations:,} of {record.max_compilations:,} compilations",
    )


def _bottom(name: Any) -> float:
    return _TOP[name] + _HEIGHT[name]


def _station(station: Any, x: float, y: float, width: float, height: float) -> Html:
    rows = [*_ROWS[station.level], *([_LAST] if station.is_last else [])]
    spoken = f"{station.name}: {station.asks} {counted(station.reached, 'call')} came here, {station.served:,} served"
    kind = {COMPILED: "constant", EAGER: "constant"}.get(station.level, "call")
    return station_box(
        x, y, width, height, rows, kind, spoken + ("; taken by the last call" if station.is_last else ""),
        is_lit=station.is_last, said=_LAST if station.is_last else "", data_level=station.level,
    )  # fmt: skip


# -- versions ------------------------------------------------------------------------------------------------------


def _versions_pane(record: DispatchReport) -> Pane:
    head = ["version", "calls served", "compiled at call", "made of"]
    rows = [
        [f"version {v.number}", v.calls, "–" if v.compiled_at is None else v.compiled_at, v.made or "–"]
        for v in record.versions
    ]
    gates, sizes = ([v.path_condition for v in record.versions], [v.size_condition for v in record.versions])
    columns = [("sizes (shape guard)", sizes)] if any(sizes) else []
    columns += [("data gates (path condition)", gates)] if any(gates) or not any(sizes) else []
    for heading, conditions in columns:
        head.append(heading)
        for row, condition in zip(rows, conditions, strict=True):
            row.append(element("code", condition) if condition else "none")
    compared = record.rows
    apart = sum(not row.is_equal for row in compared)
    summary = f"{counted(len(record.versions), 'version')}, {counted(apart, 'component')} of {len(compared):,} differ"
    body = join([table("Versions", head, rows), guard_table(compared, len(record.versions))])
    return Pane("versions", "Versions", body, summary, "\n\n".join(map(plain_text, (v.key for v in record.versions))))


def guard_table(rows: Iterable[Row], versions: int) -> Html:
    """The key over all versions: a row per component in which they differ, a column per version, the rest folded."""
    rows = list(rows)
    apart, equal = [row for row in rows if not row.is_equal], [row for row in rows if row.is_equal]
    parts: list[Any] = []
    if apart:
        caption = "Where the keys differ (≠: from version 1)"
        head = ["component", *(f"version {k + 1}" for k in range(versions))]
        parts.append(_grouped(caption, head, apart, [[*map(_cell, row.texts, row.differs)] for row in apart]))
    else:
        said = "There is one version so far." if versions == 1 else "No component differs."
        parts.append(element("p", said, class_="sx-note"))
    if equal:
        cells = [[element("code", row.texts[0])] for row in equal]
        whose = "the version" if versions == 1 else f"all {versions} versions"
        inner = _grouped(f"The same in {whose}", ["component", "value"], equal, cells)
        summary = element("summary", f"{counted(len(equal), 'component')} the same in {whose}")
        parts.append(element("details", summary, inner, class_="sx-more"))
    return join(parts)


def _cell(shown: str, differs: bool) -> Html:
    code = element("code", shortened(shown, 60), title=shown if len(shown) > 60 else None)
    return element("mark", "≠ ", code, class_="sx-differs") if differs else code


def _grouped(caption: str, head: list[str], rows: list[Row], cells: list[list[Html]]) -> Html:
    """A table with a group of rows for each part of the key."""
    groups: dict[str, list[Html]] = {}
    for row, values in zip(rows, cells, strict=True):
        heading = element("th", element("code", row.path), scope="row")
        groups.setdefault(row.part, []).append(element("tr", heading, [element("td", value) for value in values]))
    bodies = [
        element("tbody", element("tr", element("th", PARTS[part], colspan=len(head), scope="rowgroup",
                                               class_="sx-group")), members)
        for part, members in groups.items()
    ]  # fmt: skip
    headings = element("thead", element("tr", [element("th", name, scope="col") for name in head]))
    inner = element("table", element("caption", caption), headings, bodies, class_="sx-table sx-versions")
    return element("div", inner, class_="sx-scroll", tabindex=0, role="region", aria_label=caption)


# -- recompilations ------------------------------------------------------------------------------------------------


def _recompiles_pane(record: DispatchReport) -> Pane:
    drawn = []
    for number, reason in enumerate(record.recompiles, 1):
        about = element("span", f" ({_about(reason)})", class_="sx-muted")
        head = element("summary", f"{number}. {reason.title}", about)
        # The latest is what one looks for.
        is_open = number == len(record.recompiles)
        drawn.append(element("details", head, difference(reason), class_="sx-more", open=is_open))
    plain = "\n".join(map(text, record.recompiles))
    return Pane("recompiles", "Recompilations", join(drawn), counted(len(record.recompiles), "reason"), plain)


def _about(reason: RecompileReport) -> str:
    paths = list(reason.paths)
    more = f" and {len(paths) - 3} more" if len(paths) > 3 else ""
    return ", ".join(shortened(path, 44) for path in paths[:3]) + more or "no component differs"


def difference(reason: RecompileReport) -> Html:
    """What each version expects and what the call had, side by side, for the guards that failed (Corollary 2.1)."""
    rows = []
    for number, failed in reason.failures:
        for guard in failed:
            expected = element("span", "− ", _code(guard.expected), class_="sx-removed")
            actual = element("span", "+ ", _code(guard.actual), class_="sx-added")
            rows.append([f"version {number}", element("code", guard.path), expected, actual])
        if not failed:
            rows.append([f"version {number}", "data gates", "answers", "could not be computed on this call"])
    head = ["against", "component", "− the version expects", "+ the call has"]
    caption = f"{reason.title[0].upper()}{reason.title[1:]}"
    shown = table(caption, head, rows[:MOST_ROWS], class_="sx-table sx-difference")
    if len(rows) <= MOST_ROWS:
        return shown
    rest = table("The other components", head, rows[MOST_ROWS:], class_="sx-table sx-difference")
    more = element("summary", f"{len(rows) - MOST_ROWS:,} more")
    return join([shown, element("details", more, rest, class_="sx-more")])


def _code(value: Any) -> Html:
    return element("code", shortened(value_text(value), 80))


# -- history -------------------------------------------------------------------------------------------------------


def _history_pane(record: DispatchReport) -> Pane:
    if record.limit_reached:
        said = f"The limit of {record.limit_reached} is reached: a call that fits none of them runs eagerly. Usually a "
        said += "number that could be a tensor is specialized by value, or a value is read from a tensor (Section 3.6)."
        note = element("p", said, class_="sx-note sx-warning")
    else:
        said = "A line that keeps rising means that the key is too fine for these calls."
        note = element("p", said, class_="sx-note")
    summary = f"{counted(len(record.versions), 'version')} after {counted(record.calls, 'call')}"
    return Pane("history", "History", join([growth_chart(record), note]), summary, growth_plot(record))
