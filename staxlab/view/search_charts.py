"""Pictures of a search for a launch configuration: the landscape with its path, the trials in order, the rounds.

Costs differ by little where a search gets interesting, so a cell shows its *rank*, written in it and as the strength of
its fill; a configuration that cannot run is hatched, one that nobody asked for is empty. Nothing depends on colour.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ..codegen.configurations import Configuration, ConfigurationSpace
from ..measure.tables import seconds_text
from ..runtime.autotune import ACCEPTED, DROPPED, KEPT, UNDECIDED, Search
from .charts import MUTED, RULE, TEXT, chart, text_at
from .markup import Html, element

CELL_WIDTH, CELL_HEIGHT = 62, 30
LEFT, TOP, RIGHT, BOTTOM = 104, 44, 24, 76
PLOT_WIDTH, PLOT_HEIGHT = 700, 280
FILL, ALARM = "#0b57b0", "#8a4600"
SOLID = "fill: var(--sx-warning, #8a4600)"
UNBROKEN = "stroke-dasharray: none"
ALARMED = {"class_": "sx-chart-limit", "fill": "none", "style": UNBROKEN}
MOST_ROWS = 40  # configurations drawn in a chart of halving rounds


def unit_of(name: str) -> str:
    """What the numbers of a parameter count."""
    if name.endswith("BLOCK") or name.startswith("BLOCK"):
        return "elements"
    return {"num_warps": "warps", "num_stages": "stages"}.get(name, "value")


def axes_of(space: ConfigurationSpace) -> tuple[int, int]:
    """The two parameters that a map shows, rows and columns: those with the most values."""
    order = sorted(range(len(space.parameters)), key=lambda k: (-len(space.parameters[k].values), k))
    rows, columns = (*order, *order)[:2]
    return (min(rows, columns), max(rows, columns)) if rows != columns else (rows, rows)


def cells_of(
    space: ConfigurationSpace, costs: Mapping[Configuration, float]
) -> dict[tuple[int, int], tuple[float, Configuration]]:
    """Row value and column value of a map to the smallest cost there, in seconds, and whose it is; of a space with one
    parameter the column value is 0."""
    rows, columns = axes_of(space)
    found: dict[tuple[int, int], tuple[float, Configuration]] = {}
    for configuration, cost in costs.items():
        place = (configuration[rows], configuration[columns] if rows != columns else 0)
        if place not in found or cost < found[place][0]:
            found[place] = (cost, configuration)
    return found


def landscape_chart(
    space: ConfigurationSpace,
    costs: Mapping[Configuration, float],
    path: Sequence[Configuration] = (),
    chosen: Configuration | None = None,
    name: str = "",
) -> Html:
    """The map of costs over two parameters, with the path of a search."""
    rows, columns = axes_of(space)
    down = space.parameters[rows]
    across = space.parameters[columns].values if rows != columns else (0,)
    cells = cells_of(space, costs)
    ranks = ranked({place: cost for place, (cost, _) in cells.items()})
    others = [p.name for k, p in enumerate(space.parameters) if k not in (rows, columns)]
    width = max(LEFT + CELL_WIDTH * len(across) + RIGHT, 580)
    height = TOP + CELL_HEIGHT * len(down.values) + BOTTOM
    title = f"Landscape of costs{f': {name}' if name else ''}"
    said = spoken_landscape(space, costs, path, chosen)

    def middle(configuration: Configuration) -> tuple[float, float]:
        column = across.index(configuration[columns]) if rows != columns else 0
        row = down.values.index(configuration[rows])
        return LEFT + CELL_WIDTH * (column + 0.5), TOP + CELL_HEIGHT * (row + 0.5)

    drawn = [
        element("title", title), element("desc", said),
        text_at(title, LEFT, 18, "sx-count", TEXT, font_weight="600"),
        text_at("numbers: rank of the cost, 1 is the fastest", LEFT, 34, "sx-label", MUTED),
        *_cells(space, cells, ranks, down.values, across),
        *_path([middle(c) for c in path]),
    ]  # fmt: skip
    if chosen is not None:
        x, y = middle(chosen)
        drawn.append(
            element(
                "rect",
                element("title", f"chosen: {space.words(chosen)}"),
                x=f"{x - CELL_WIDTH / 2 + 2:g}",
                y=f"{y - CELL_HEIGHT / 2 + 2:g}",
                width=CELL_WIDTH - 4,
                height=CELL_HEIGHT - 4,
                fill="none",
                stroke=FILL,
                stroke_width=3,
                class_="sx-chart-line",
                data_chosen=space.words(chosen),
            )  # fmt: skip
        )
    base = TOP + CELL_HEIGHT * len(down.values)
    for k, value in enumerate(across if rows != columns else ()):
        x = LEFT + CELL_WIDTH * (k + 0.5)
        drawn.append(text_at(f"{value:,}", x, base + 16, "sx-label", MUTED, text_anchor="middle"))
    for k, value in enumerate(down.values):
        y = TOP + CELL_HEIGHT * (k + 0.5) + 4
        drawn.append(text_at(f"{value:,}", LEFT - 8, y, "sx-label", MUTED, text_anchor="end"))
    if rows != columns:
        words = f"{space.parameters[columns].name} ({unit_of(space.parameters[columns].name)})"
        at = LEFT + CELL_WIDTH * len(across) / 2
        drawn.append(text_at(words, at, base + 34, "sx-label", MUTED, text_anchor="middle"))
    words = f"{down.name} ({unit_of(down.name)})"
    turned = f"translate(16 {(TOP + base) / 2:g}) rotate(-90)"
    drawn.append(text_at(words, 0, 0, "sx-label", MUTED, text_anchor="middle", transform=turned))
    key = "frame: chosen; line: path, ring: start; hatched: cannot run; empty: not tried"
    drawn.append(text_at(key, 12, base + 52, "sx-label", MUTED))
    if others:
        words = f"each cell: the fastest over {', '.join(others)}"
        drawn.append(text_at(words, 12, base + 68, "sx-label", MUTED))
    return chart(drawn, title, said, width, height)


def ranked(costs: Mapping[Any, float]) -> dict[Any, int]:
    """The rank of every finite cost among the distinct ones, 1 for the smallest; equal costs share a rank."""
    order = {cost: k for k, cost in enumerate(sorted({c for c in costs.values() if math.isfinite(c)}), 1)}
    return {key: order[cost] for key, cost in costs.items() if cost in order}


def _cells(
    space: ConfigurationSpace, cells: Any, ranks: dict, down: Sequence[int], across: Sequence[int]
) -> Iterator[Html]:
    last = max(ranks.values(), default=1)
    for i, row in enumerate(down):
        for j, column in enumerate(across):
            x, y = LEFT + CELL_WIDTH * j, TOP + CELL_HEIGHT * i
            frame = {"x": x, "y": y, "width": CELL_WIDTH, "height": CELL_HEIGHT, "stroke": RULE, "class_": "sx-cell"}
            place = (row, column)
            if place not in cells:
                yield element("rect", **frame, fill="none", data_state="untried")
                continue
            cost, configuration = cells[place]
            said = element("title", f"{space.words(configuration)}: {seconds_text(cost)}")
            if place not in ranks:
                yield element("rect", said, **frame, fill="none", data_state="impossible")
                lines = "".join(f"M{x + k} {y + CELL_HEIGHT}l{CELL_HEIGHT} {-CELL_HEIGHT}" for k in range(0, 33, 8))
                yield element("path", d=lines, class_="sx-chart-axis", stroke=RULE, fill="none")
                continue
            strength = 0.5 * (1 - (ranks[place] - 1) / max(last - 1, 1))
            yield element(
                "rect", said, x=x, y=y, width=CELL_WIDTH, height=CELL_HEIGHT, fill=FILL, class_="sx-chart-point",
                fill_opacity=f"{strength:.2f}", data_rank=ranks[place], data_state="measured",
            )  # fmt: skip
            yield element("rect", **frame, fill="none")
            yield text_at(str(ranks[place]), x + 6, y + 13, "sx-count", TEXT)


def _path(points: list[tuple[float, float]]) -> Iterator[Html]:
    if not points:
        return
    line = "M" + "L".join(f"{x:g} {y:g}" for x, y in points)
    yield element(
        "path", d=line, class_="sx-chart-limit", fill="none", stroke=ALARM, stroke_width=2,
        style=UNBROKEN,
    )  # fmt: skip
    (x, y), *rest = points
    yield element(
        "circle", element("title", "start"), cx=f"{x:g}", cy=f"{y:g}", r=6, class_="sx-chart-limit", fill="none",
        stroke=ALARM, stroke_width=2, style=UNBROKEN, data_start="start",
    )  # fmt: skip
    for number, (x, y) in enumerate(rest, 1):
        said = element("title", f"acceptance {number}")
        yield element("circle", said, cx=f"{x:g}", cy=f"{y:g}", r=3.4, fill=ALARM, style=SOLID, data_step=number)


def spoken_landscape(
    space: ConfigurationSpace,
    costs: Mapping[Configuration, float],
    path: Sequence[Configuration],
    chosen: Configuration | None,
) -> str:
    """The map in words."""
    finite = {c: cost for c, cost in costs.items() if math.isfinite(cost)}
    said = [f"{len(costs)} of {space.size} configurations have a cost, {len(costs) - len(finite)} of them cannot run"]
    if finite:
        best = min(finite, key=finite.get)
        said.append(f"the fastest is {space.words(best)} with {seconds_text(finite[best])}")
    if len(path) > 1:
        said.append(f"the path leads from {space.words(path[0])} over {len(path) - 1} acceptances")
    if chosen is not None:
        said.append(f"chosen is {space.words(chosen)}")
    return "; ".join(said) + "."


# --- Trials in order --------------------------------------------------------------------------------------------------


def trials_chart(record: Search) -> Html:
    """Every trial in order, its cost and what it came to, and the smallest cost so far as a line."""
    finite = [trial.cost for trial in record.trials if math.isfinite(trial.cost)]
    low, high = (min(finite), max(finite)) if finite else (1e-6, 1e-6)
    is_log = high > 4 * low
    count = len(record.trials)
    bottom = PLOT_HEIGHT - 52

    def x(k: int) -> float:
        return 96 + (k + 0.5) * (PLOT_WIDTH - 96 - 18) / max(count, 1)

    def y(cost: float) -> float:
        span = math.log(high / low) if is_log else high - low
        share = 0.5 if span == 0 else (math.log(cost / low) if is_log else cost - low) / span
        return bottom - 10 - share * (bottom - 10 - 62)

    title = f"Trials of {words_of(record)}"
    range_ = f"costs from {seconds_text(low)} to {seconds_text(high)}" if finite else "no finite cost"
    said = f"{count} trials, {record.acceptances} accepted, {len(record.undecided)} undecided; {range_}."
    key = "line: smallest so far; filled: accepted or kept; triangle: undecided; x: cannot run"
    drawn = [
        element("title", title), element("desc", said),
        text_at(title, 96, 18, "sx-count", TEXT, font_weight="600"),
        text_at(key, 96, 36, "sx-label", MUTED),
        element("path", d=f"M96 46V{bottom}H{PLOT_WIDTH - 18}", class_="sx-chart-axis", fill="none", stroke=RULE),
    ]  # fmt: skip
    for value in sorted({low, high}):
        drawn.append(text_at(seconds_text(value), 90, y(value) + 4, "sx-label", MUTED, text_anchor="end"))
    for k in sorted({0, count // 2, count - 1} & set(range(count))):
        drawn.append(text_at(str(k + 1), x(k), bottom + 16, "sx-label", MUTED, text_anchor="middle"))
    drawn.append(text_at("trial (number)", (96 + PLOT_WIDTH - 18) / 2, PLOT_HEIGHT - 14, "sx-label", MUTED,
                         text_anchor="middle"))  # fmt: skip
    scale = "time (logarithmic, units at the marks)" if is_log else "time (units at the marks)"
    turned = f"translate(14 {(46 + bottom) / 2:g}) rotate(-90)"
    drawn.append(text_at(scale, 0, 0, "sx-label", MUTED, text_anchor="middle", transform=turned))
    line = ""
    for k, best in enumerate(record.best_so_far):
        if math.isfinite(best):
            line += f"{'H' if line else 'M'}{x(k):.1f}" + (f"V{y(best):.1f}" if line else f" {y(best):.1f}")
    if line:
        drawn.append(element("path", d=line, class_="sx-chart-line", fill="none", stroke=FILL))
    drawn += [_mark(record, k, trial, x(k), y) for k, trial in enumerate(record.trials)]
    return chart(drawn, title, said, PLOT_WIDTH, PLOT_HEIGHT)


def _mark(record: Search, k: int, trial: Any, x: float, y: Any) -> Html:
    words = f"trial {k + 1}: {record.space.words(trial.configuration)}, {seconds_text(trial.cost)}, {trial.verdict}"
    said, facts = element("title", words), {"data_verdict": trial.verdict}
    if not math.isfinite(trial.cost):
        return element("path", said, d=f"M{x - 4:.1f} 50l8 8m0 -8l-8 8", stroke=ALARM, **ALARMED, **facts)
    at = y(trial.cost)
    if trial.verdict == UNDECIDED:
        return element("path", said, d=f"M{x:.1f} {at - 5:.1f}l5 9h-10z", stroke=ALARM, **ALARMED, **facts)
    filled = trial.verdict in (ACCEPTED, KEPT)
    style = {"fill": FILL, "class_": "sx-chart-point"} if filled else {"fill": "none", "class_": "sx-chart-line"}
    return element("circle", said, cx=f"{x:.1f}", cy=f"{at:.1f}", r=4, stroke=FILL, **style, **facts)


# --- Successive halving -----------------------------------------------------------------------------------------------


def halving_chart(record: Search) -> Html | None:
    """Who was still there in which round, with how many readings; None for a search without rounds of elimination."""
    rounds: dict[int, dict[Configuration, Any]] = {}
    for trial in record.trials:
        if trial.verdict in (KEPT, DROPPED):
            rounds.setdefault(trial.round, {})[trial.configuration] = trial
    if not rounds:
        return None
    lasted = {c: max(r for r, entries in rounds.items() if c in entries) for c in rounds[1]}
    everyone = sorted(rounds[1], key=lambda c: (-lasted[c], rounds[lasted[c]][c].cost))
    shown = everyone[:MOST_ROWS]
    label = 12 + 7 * max(len(record.space.words(c)) for c in shown)
    wide, high = 118, 20
    width, height = max(label + wide * len(rounds) + 20, 420), 62 + high * len(shown) + 40
    title = "Rounds of successive halving"
    said = "; ".join(
        f"round {r}: {len(entries)} configurations, {next(iter(entries.values())).readings} readings each"
        for r, entries in rounds.items()
    ) + f"; {record.space.words(everyone[0])} is left."  # fmt: skip
    drawn = [
        element("title", title), element("desc", said),
        text_at(title, 12, 18, "sx-count", TEXT, font_weight="600"),
        text_at("configuration", label - 8, 52, "sx-label", MUTED, text_anchor="end"),
    ]  # fmt: skip
    for k, (r, entries) in enumerate(rounds.items()):
        words = f"round {r}: +{next(iter(entries.values())).readings} each"
        drawn.append(text_at(words, label + wide * k, 52, "sx-label", MUTED))
    for row, configuration in enumerate(shown):
        at = 62 + high * row
        style = "sx-count" if configuration == record.chosen else "sx-label"
        drawn.append(text_at(record.space.words(configuration), label - 8, at + 14, style, TEXT, text_anchor="end"))
        for k, entries in enumerate(rounds.values()):
            if configuration not in entries:
                break
            trial = entries[configuration]
            kept = trial.verdict == KEPT
            drawn.append(
                element(
                    "rect",
                    element("title", f"{seconds_text(trial.cost)}: {trial.verdict}"),
                    x=label + wide * k,
                    y=at,
                    width=wide - 6,
                    height=high - 4,
                    fill=FILL,
                    fill_opacity="0.30" if kept else "0.06",
                    class_="sx-chart-point",
                    data_verdict=trial.verdict,
                )  # fmt: skip
            )
            words = f"{seconds_text(trial.cost)} {'✓' if kept else '✕'}"
            drawn.append(text_at(words, label + wide * k + 4, at + 12, "sx-count", TEXT))
    more = f"and {len(everyone) - len(shown)} more; " if len(everyone) > len(shown) else ""
    key = f"{more}median time (seconds) after each round; ✓ goes on, ✕ is dropped"
    drawn.append(text_at(key, 12, height - 14, "sx-label", MUTED))
    return chart(drawn, title, said, width, height)


METHODS = {
    "candidates": "the candidate set (Algorithm 9.1)",
    "descent": "coordinate descent (Algorithm 9.2)",
    "random": "random search (Proposition 9.3)",
    "halving": "successive halving",
    "exhaustive": "every configuration",
}


def words_of(record: Search) -> str:
    """What a search is called."""
    return METHODS.get(record.method, record.method) + (f" for {record.subject}" if record.subject else "")
