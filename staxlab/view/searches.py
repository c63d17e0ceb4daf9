"""Searches for a launch configuration, drawn and printed (Section 9.6): the map, the trials, and methods compared."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from ..measure.tables import Table, seconds_text
from ..runtime.autotune import Search
from ..runtime.autotune_landscapes import SideBySide
from ..specialize.report import counted
from .document import Pane, View
from .markup import element, join
from .measures import table_markup
from .search_charts import METHODS, halving_chart, landscape_chart, ranked, trials_chart, words_of

MOST_ROWS = 60  # trials in a table
MOST_CELLS = 40  # columns of a map as text


def trials_table(record: Search) -> Table:
    """Every trial of a search in order; of very many, the first and all that changed something."""
    changed = {k for k, trial in enumerate(record.trials) if trial.verdict in ("accepted", "undecided")}
    kept = [k for k in range(len(record.trials)) if k < MOST_ROWS or k in changed]
    rows = []
    for k in kept:
        trial = record.trials[k]
        noise = f"{100 * trial.noise:.2g}%" if trial.readings > 1 else ""
        required = f"{100 * trial.required:.2g}%" if trial.against is not None else ""
        words = record.space.words(trial.configuration)
        rows.append((str(k + 1), words, seconds_text(trial.cost), trial.readings, noise, required, trial.verdict))
    left_out = len(record.trials) - len(kept)
    cost = "not measured" if math.isnan(record.cost) else seconds_text(record.cost)
    most = f" of at most {record.bound}" if record.method == "descent" else ""
    taken = counted(record.acceptances, "acceptance")
    notes = [
        f"chosen: {record.space.words(record.chosen)}, {cost}: {record.reason}",
        f"{taken}{most}, {counted(record.evaluations, 'evaluation')}, {record.compilations} of {record.space.size} "
        "configurations",
        f"it began where {words_of(record.before)} ended" if record.before else "",
        record.guarantee,
        f"a cost is {record.statistic}" if record.trials else "",
        f"undecided comparisons: {len(record.undecided)}; the noise asks for more" * bool(record.undecided),
        f"{left_out} trials that changed nothing are left out" * bool(left_out),
        "" if record.complete else "interrupted: what was tried until then",
    ]
    columns = ("trial", "configuration", "time", "readings", "noise", "required gain", "verdict")
    return Table.build(f"Search: {words_of(record)}", columns, rows, notes, text_columns=2)


def comparison_table(record: SideBySide) -> Table:
    """The methods side by side: what each chose, how far from the best, and what it spent."""
    rows = []
    for search in record.searches:
        true = record.costs[search.chosen]
        rows.append(
            (
                METHODS.get(search.method, search.method),
                record.space.words(search.chosen),
                seconds_text(true),
                f"{true / record.best:.3f}",
                record.rank(search.chosen),
                search.compilations,
                search.evaluations,
            )  # fmt: skip
        )
    columns = ("method", "chosen", "time", "times the best", "rank", "configurations", "evaluations")
    notes = [f"the space: {record.space}", "times without noise; ranks among all configurations"]
    return Table.build("Searches side by side", columns, rows, notes, text_columns=2)


def landscape_text(space: Any, costs: Any) -> str:
    """The map for a terminal: ranks in a grid, ## where a configuration cannot run, . where nobody tried."""
    from .search_charts import axes_of, cells_of

    rows, columns = axes_of(space)
    down = space.parameters[rows]
    across = space.parameters[columns].values if rows != columns else (0,)
    cells = cells_of(space, costs)
    ranks = ranked({place: cost for place, (cost, _) in cells.items()})
    head = f"rank by {down.name} (down)"
    head += f" and {space.parameters[columns].name} (across)" if rows != columns else ""
    lines = [head, " " * 9 + "".join(f"{value:>6}" for value in across[:MOST_CELLS])]
    for row in down.values:
        shown = ["##" if (row, c) in cells else "." for c in across[:MOST_CELLS]]
        shown = [str(ranks.get((row, c), mark)) for c, mark in zip(across, shown, strict=False)]
        lines.append(f"{row:>8} " + "".join(f"{mark:>6}" for mark in shown))
    return "\n".join([*lines, "## cannot run, . not tried"])


def text(record: Any) -> str:
    """A search or a comparison as a terminal shows it."""
    if isinstance(record, SideBySide):
        return f"{comparison_table(record).text()}\n\n{landscape_text(record.space, record.costs)}"
    map_ = f"\n\n{landscape_text(record.space, record.costs)}" if record.trials else ""
    earlier = f"\n\n{text(record.before)}" if record.before else ""
    return trials_table(record).text() + map_ + earlier


def view(record: Any, full: bool = False) -> View:
    """A search: its map, its trials, its rounds. A comparison: the table, and a map with the path of each method."""
    if isinstance(record, SideBySide):
        drawn = [
            landscape_chart(record.space, record.costs, search.path, search.chosen, words_of(search))
            for search in record.searches
        ]
        content = comparison_table(record)
        body = join([table_markup(content), *(element("figure", picture, class_="sx-listing") for picture in drawn)])
        summary = f"{len(record.searches)} methods, {record.space.size} configurations"
        return View("searches", (Pane("searches", content.caption, body, summary, text(record)),))
    content = trials_table(record)
    parts: list[Any] = []
    if record.trials:
        parts = [landscape_chart(record.space, record.costs, record.path, record.chosen), trials_chart(record)]
        parts += [picture for picture in (halving_chart(record),) if picture is not None]
    body = join([*(element("figure", part, class_="sx-listing") for part in parts), table_markup(content)])
    summary = f"{record.space.words(record.chosen)}, {record.evaluations} evaluations"
    earlier = [replace(pane, key="search-before") for pane in (view(record.before).panes if record.before else ())]
    return View("search", (Pane("search", content.caption, body, summary, text(record)), *earlier))
